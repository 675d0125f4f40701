# SPDX-License-Identifier: Apache-2.0
"""What the tests of tools/distill share: the small model of the tree, the C engine on it, training in this process."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRAIN = ROOT / "tools/distill/train.py"
STORIES = ROOT / "tests/data/stories260K.gguf"
HEADS_32 = ROOT / "tests/data/heads_32.gguf"
TEXT = ROOT / "tests/data/stories260K.txt"
CTX = 64
PIPIT_EVAL, TOK_DUMP = sys.argv[1:3]
sys.path.insert(0, str(TRAIN.parent))
import model  # noqa: E402
import ops  # noqa: E402
import train  # noqa: E402
import weights  # noqa: E402

torch.set_num_threads(1)
CPU = torch.device("cpu")


def ids(path, text, n, bos):
    out = subprocess.run([TOK_DUMP, str(path), "0"], input=text.encode().hex() + "\n", capture_output=True, text=True,
                         check=True).stdout
    t = [int(i) for i in out.split()]
    return torch.tensor([([bos] + t if bos is not None else t)[:n]])


def engine(folder, path, text, ctx, kv="f32", over=None, backend="ref"):
    """Logits of the second half of the first ctx tokens, by a backend of pipit."""
    (folder / "text").write_text(text)
    args = [PIPIT_EVAL, "-m", str(path), "--text", str(folder / "text"), "-c", str(ctx), "-n", "1", "--backend", backend,
            "--kv", kv, "--dump", str(folder / "dump.npy")] + (["--overlay", str(over)] if over else [])
    subprocess.run(args, check=True, capture_output=True)
    return torch.from_numpy(np.load(folder / "dump.npy")).view(ctx - 1 - ctx // 2, -1)


def random_student(frozen, split, group, cache="none", outputs=False):
    """Projections that are far from their start, so that nothing agrees by chance."""
    torch.manual_seed(3)
    s = model.Student(frozen, split, group, cache=cache, outputs=outputs)
    with torch.no_grad():
        for p in s.parameters():
            p.add_(torch.randn_like(p) * p.std() * 0.5)
    return s


class WithStories(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ops.use("torch")
        cls.tmp = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.tmp.name)
        cls.w = weights.read(STORIES)
        cls.frozen = model.Frozen(cls.w, CPU, torch.float32)
        cls.text = TEXT.read_text()
        cls.tokens = ids(STORIES, cls.text, CTX, 1)

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()


class Trained(WithStories):
    """Training on text that this makes, in this process."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.folder / "data"
        cls.data.mkdir()
        rng = np.random.default_rng(0)
        t = cls.tokens[0].numpy()
        rows = np.concatenate([np.concatenate([t[rng.integers(0, 40):], rng.integers(3, 512, 40)]) for _ in range(60)])
        rows.astype(np.uint16).tofile(cls.data / "made.bin")
        (rng.random(len(rows)) < 0.3).astype(np.uint8).tofile(cls.data / "made.mask")
        (cls.data / "manifest.json").write_text(json.dumps({"shards": [{"name": "made", "tokens": len(rows)}]}))

    def options(self, name, *args):
        return train.options([
            "--model", str(STORIES), "--data", str(self.data), "--run", str(self.folder / name), "--ctx", "32", "--threads", "1",
            "--dtype", "f32", "--warmup", "1", "--report-every", "1", "--device", "cpu", *args])

    def train(self, name, *args, code=0):
        """In this process: a fresh PyTorch costs seconds."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                run = train.Run(self.options(name, *args))
                run.fill() if run.o.fill else run.train()
                self.assertEqual(code, 0)
            except SystemExit as e:
                self.assertEqual(code, 1, e)
                print(e)
        return said.getvalue()

    def log(self, name):
        return [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().splitlines()]


KNOWN = {"amx": "__AMX_BF16__", "avx512-f16": "__AVX512FP16__", "avx512-bf16": "__AVX512BF16__", "avx512-f32": "__AVX512BF16__"}


def compiler():
    """The names that the compiler defines for this processor."""
    cc = os.environ.get("CC", "cc").split()
    return subprocess.run([*cc, "-march=native", "-dM", "-E", "-x", "c", "/dev/null"], capture_output=True, text=True).stdout


def ways():
    """Those of whole passes that this machine can do; a test without one is skipped."""
    found = []
    for way in ops.WAYS:
        try:
            found += [ops.use(way)] if ops.fits(way) else []
        except SystemExit as e:  # a compiler older than the processor, or a system that grants no tiles
            if isinstance(e.__cause__, subprocess.CalledProcessError) and KNOWN[way] in compiler():
                raise
    if not found:
        raise unittest.SkipTest("neither AMX nor AVX-512 for bf16 is to be had here")
    return found
