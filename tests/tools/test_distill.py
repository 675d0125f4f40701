#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/distill on the small model of the tree: its teacher and its exported overlays against the C engine (ref), its
8-bit cache against C's, fused.c against PyTorch, training that must succeed where teacher and student can be equal,
resuming, and what must be refused. Exits 77 without PyTorch or gguf.

usage: test_distill.py PIPIT_EVAL TOK_DUMP [unittest arguments]"""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import zlib

try:
    import gguf
    import numpy as np
    import torch
except ImportError as e:
    print(f"SKIP: {e}: pip install gguf torch", file=sys.stderr)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "tools/distill/train.py"
STORIES = ROOT / "tests/data/stories260K.gguf"
TEXT = ROOT / "tests/data/stories260K.txt"
CTX = 64
PIPIT_EVAL, TOK_DUMP = sys.argv[1:3]
sys.path.insert(0, str(TRAIN.parent))
import cache8  # noqa: E402
import corpus  # noqa: E402
import curves  # noqa: E402
import data  # noqa: E402
import evaluate  # noqa: E402
import fit  # noqa: E402
import layers  # noqa: E402
import loss  # noqa: E402
import make_data  # noqa: E402
import model  # noqa: E402
import ops  # noqa: E402
import overlay  # noqa: E402
import run_all  # noqa: E402
import train  # noqa: E402
import weights  # noqa: E402

torch.set_num_threads(1)
CPU = torch.device("cpu")


def ids(path, text, n, bos):
    out = subprocess.run([TOK_DUMP, str(path), "0"], input=text.encode().hex() + "\n", capture_output=True, text=True,
                         check=True).stdout
    t = [int(i) for i in out.split()]
    return torch.tensor([([bos] + t if bos is not None else t)[:n]])


def engine(folder, path, text, ctx, kv="f32", over=None):
    """Logits of the second half of the first ctx tokens, by pipit's reference backend."""
    (folder / "text").write_text(text)
    args = [PIPIT_EVAL, "-m", str(path), "--text", str(folder / "text"), "-c", str(ctx), "-n", "1", "--backend", "ref",
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


class AgainstC(WithStories):
    def compare(self, mine, theirs, tolerance):
        self.assertLess((mine - theirs).abs().max().item(), tolerance)

    def student(self, split, group, kind, kv, outputs=None):
        s = random_student(self.frozen, split, group, kv if kv in ("fp8", "kv8") else "none", outputs is not None)
        path = self.folder / "over.gguf"
        overlay.write(str(path), s, kind, outputs=outputs)
        overlay.load(str(path), s)  # what Q8_0 made of it
        with torch.no_grad():
            mine = s(self.tokens)[0, CTX // 2:CTX - 1]
        return mine, engine(self.folder, STORIES, self.text, CTX, kv, path)

    def test_teacher(self):
        with torch.no_grad():
            mine = self.frozen.logits(self.frozen.shallow(self.tokens, self.w.n_layers))[0, CTX // 2:CTX - 1]
        self.compare(mine, engine(self.folder, STORIES, self.text, CTX), 1e-3)

    def test_overlays(self):
        for split, group in ((4, 1), (2, 1), (2, 3), (1, 3)):  # the last ends in a short group
            for kind in ("F32", "Q8_0"):
                with self.subTest(split=split, group=group, kind=kind):
                    self.compare(*self.student(split, group, kind, "f32"), 1e-3)

    def test_overlays_with_outputs(self):
        for split, group, kind, outputs in ((2, 3, "F32", "F32"), (1, 3, "Q8_0", "Q8_0"), (2, 1, "Q8_0", "Q5_1")):
            with self.subTest(split=split, group=group, outputs=outputs):
                self.compare(*self.student(split, group, kind, "f32", outputs), 1e-3)
                types = {t.tensor_type.name for t in gguf.GGUFReader(self.folder / "over.gguf").tensors
                         if t.name.endswith("attn_output_swiftkv.weight")}
                self.assertEqual(types, {outputs})

    def test_eight_bit_cache(self):
        """Both round the same numbers, but not from the same bits: a value on the edge between two codes may go
        either way, so the largest difference is bounded loosely, the usual one tightly, and what leaving the cache
        out would make is shown to be far outside."""
        exact = self.student(2, 3, "F32", "f32")[0]
        for kv in ("fp8", "kv8"):
            with self.subTest(kv=kv):
                mine, theirs = self.student(2, 3, "F32", kv)
                self.compare(mine, theirs, 2e-2)
                self.assertLess((mine - theirs).abs().median().item(), 1e-3)
                self.assertGreater((exact - theirs).abs().median().item(), 5e-3)

    def test_rows_of_fp8(self):
        """Each code's value comes back as it was, ties go to even, and the end saturates."""
        codes = torch.arange(256, dtype=torch.uint8)
        values = codes.view(torch.float8_e4m3fn).float()[torch.arange(256) % 128 != 127]
        row = values * 2.0 ** -8 * 4  # absmax 448 * 2^-8 * 4: the scale is 4
        self.assertTrue(torch.equal(cache8.fp8_row(row), row))
        row = torch.tensor([448.0, 17.0, 19.0, 0.0])
        self.assertEqual(cache8.fp8_row(row).tolist(), [448.0, 16.0, 20.0, 0.0])
        self.assertEqual(cache8.fp8_row(torch.zeros(4)).tolist(), [0.0] * 4)

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_smollm2(self):
        path = os.environ["PIPIT_SMOLLM2"]
        text = self.text[:400]
        frozen = model.Frozen(weights.read(path), CPU, torch.float32)
        tokens = ids(path, text, 32, None)
        theirs = engine(self.folder, path, text, 32)
        with torch.no_grad():
            self.compare(frozen.logits(frozen.shallow(tokens, frozen.w.n_layers))[0, 16:31], theirs, 1e-3)


class AgainstHuggingFace(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("transformers") and importlib.util.find_spec("safetensors"),
                         "transformers is not installed")
    def test_folder(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        ops.use("torch")
        torch.manual_seed(0)
        for tied in (True, False):
            theirs = LlamaForCausalLM(LlamaConfig(
                vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, rope_theta=5000.0, rms_norm_eps=1e-5, tie_word_embeddings=tied)).eval()
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                theirs.save_pretrained(folder, safe_serialization=True)
                mine = model.Frozen(weights.read(folder), CPU, torch.float32)
                tokens = torch.randint(0, 300, (2, 40))
                got = mine.logits(mine.shallow(tokens, 3))
                self.assertLess((got - theirs(tokens).logits).abs().max().item(), 1e-5)


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


class Operations(unittest.TestCase):
    def compare_with_torch(self, way, s, v):
        """`way` in bf16 against PyTorch in f32: values and gradients within bf16's rounding."""
        try:
            ops.use(way)
        except SystemExit as e:
            self.skipTest(str(e))
        torch.manual_seed(0)
        bf = torch.bfloat16
        angle = torch.outer(torch.arange(float(s)), 1e4 ** (-torch.arange(0, 64, 2) / 64))
        c, t = angle.cos().contiguous(), angle.sin().contiguous()
        w, head, teacher = torch.rand(576) + 0.5, torch.randn(v, 64), torch.randn(s, 64)
        heads = [torch.randn(2, n, s, 64) for n in (9, 3, 3)]
        wide, narrow_ = torch.randn(2, 160, 96) / 8, torch.randn(96, 160) / 8
        layers = {k: {"ffn_norm": w[:96].contiguous(), "gate": wide[0].to(k), "up": wide[1].to(k), "down": narrow_.to(k)}
                  for k in (bf, torch.float32)}
        kind = lambda: bf if ops._lib else torch.float32
        cases = {
            "rms": (lambda x: ops.rms(x, w, 1e-5, kind()), [torch.randn(2, s, 576) * 3], False),
            "rope": (lambda x: ops.rope_heads(x, c, t, 9), [torch.randn(2, s, 576)], True),
            "attention": (ops.attention, heads, True),
            "gate": (ops.gate, [torch.randn(s, 96) * 3, torch.randn(s, 96)], True),
            "mlp": (lambda x: ops.mlp(x, layers[kind()], 1e-5, kind()) - x, [torch.randn(2, s, 96)], False),
            "kl": (lambda x: loss.head_kl(x, teacher.to(x.dtype), head.to(x.dtype), 2.0, 16), [torch.randn(s, 64)], True),
        }
        for name, (f, inputs, narrow) in cases.items():
            inputs = [x.to(bf).float() if narrow else x for x in inputs]
            runs = []
            for path in (way, "torch"):
                ops.use(path)
                xs = [(x.to(bf) if narrow and path == way else x.clone()).requires_grad_() for x in inputs]
                y = f(*xs)
                g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
                (y.float() * g).sum().backward()
                runs.append([y, *(x.grad for x in xs)])
            for i, (a, b) in enumerate(zip(*runs)):
                with self.subTest(op=name, output=i):
                    error = (a.float() - b.float()).norm() / b.float().norm()
                    self.assertLess(error.item(), 2e-2 if name == "kl" else 6e-3)

    def test_fused(self):
        self.compare_with_torch("fused", 33, 5000)

    def test_tiles(self):
        """Sequences of several blocks; and of a length that whole passes leave to fused.c. 160 rows are more than one
        block of rows back, 1056 words two slices and a part."""
        for way in ways():
            with self.subTest(way=way):
                self.compare_with_torch(way, 160, 1056)
                self.compare_with_torch(way, 33, 1056)

    def test_kl_of_far_logits(self):
        """Sums of powers beyond f32, both ways, and a row that is not: tile_kl.c must find the rows' maxima."""
        for way in ways():
            with self.subTest(way=way):
                self.far_logits(way)

    def far_logits(self, way):
        ops.use(way)
        torch.manual_seed(0)
        bf = torch.bfloat16
        head, s, t = torch.randn(96, 64), torch.randn(300, 64), torch.randn(300, 64)
        head[:, 0], s[:, 0], t[:, 0] = 8, 0, 0
        far = [100, 90, -100, -120]  # times 8, over a temperature of 2
        exact = way != "avx512-f16"
        if not exact:  # sums of 32 products are rounded by 2^-11 of themselves: nearer, and still beyond f32
            far = [x / 4 for x in far]
        s[:100, 0], t[:100, 0], s[150:200, 0], t[200:299, 0] = far
        head, s, t = head.to(bf), s.to(bf), t.to(bf)
        kl, grad = ops.kl_head(s, t, head, 2.0)
        log_q, log_p = [torch.log_softmax(x.float() @ head.float().t() / 2, -1) for x in (s, t)]
        want = (log_p.exp() * (log_p - log_q)).sum().item()
        self.assertLess(abs(kl.item() / want - 1), 1e-3)
        want = (log_q.exp() - log_p.exp()) @ head.float()
        self.assertLess(((grad.float() - want).norm() / want.norm()).item(), 1e-2 if exact else 4e-2)

    def test_kl_gradient(self):
        """The hand-written gradient of the chunked KL against autograd of its formula."""
        ops.use("torch")
        torch.manual_seed(0)
        x, t, head = torch.randn(37, 16), torch.randn(37, 16), torch.randn(501, 16)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        one = loss.head_kl(a, t, head, 2.0, 8)
        p, q = torch.log_softmax(t @ head.t() / 2, -1), torch.log_softmax(b @ head.t() / 2, -1)
        two = 4 * (p.exp() * (p - q)).sum(-1).mean()
        (3 * one).backward()
        (3 * two).backward()
        self.assertAlmostEqual(one.item(), two.item(), places=5)
        self.assertLess((a.grad - b.grad).abs().max().item(), 1e-6)


class WholeLayers(unittest.TestCase):
    """tile_layer.c in bf16 against PyTorch in f32: the shallow and the teacher's layers, the student's, and the gradients of
    a loss with both terms by everything that is trained. Weights are exact in bf16; 288 positions are more than a block
    of rows; query heads are wider together than the residual stream; the last group is short."""
    S, SPLIT = 288, 1

    @classmethod
    def setUpClass(cls):
        rng = np.random.default_rng(5)
        make = lambda *shape: torch.from_numpy(rng.standard_normal(shape) / shape[-1] ** 0.5).bfloat16().float().numpy()
        norm = lambda: (1 + rng.standard_normal(96) / 4).astype(np.float32)
        layer = lambda: {"q": make(256, 96), "k": make(128, 96), "v": make(128, 96), "o": make(96, 256),
                         "gate": make(160, 96), "up": make(160, 96), "down": make(96, 160), "attn_norm": norm(),
                         "ffn_norm": norm()}
        embed = 2 * make(352, 96)
        cls.w = weights.Weights(4, 4, 2, 64, 96, 1e-5, 1e4, embed, embed, norm(), [layer() for _ in range(4)])
        cls.tokens = torch.from_numpy(rng.integers(0, 352, (3, cls.S)))

    def made(self, way, dtype, hidden, outputs):
        ops.use(way)
        frozen = model.Frozen(self.w, CPU, dtype)
        torch.manual_seed(3)
        s = model.Student(frozen, self.SPLIT, 2, kv_heads=1, outputs=outputs)
        with torch.no_grad():
            for p in s.parameters():
                p.add_(torch.randn_like(p) * p.std() * 0.5)
                if p.ndim == 2:
                    p.copy_(p.bfloat16())
        x = frozen.shallow(self.tokens, self.SPLIT)
        self.assertEqual(layers.able(frozen, x), way != "torch")
        teacher = frozen.states(x, self.SPLIT, 4)
        last, error = s.outcome(x, teacher if hidden else None)
        index = torch.arange(0, 3 * self.S, 2)
        rows = lambda h: frozen.last_norm(h).flatten(0, 1)[index]
        total = loss.head_kl(rows(last), rows(teacher[-1]), frozen.head, 2.0)
        out = {"shallow": x, "teacher": torch.stack(teacher), "last": last, "kl": total}
        if hidden:
            out["hidden"], total = error, total + 0.7 * error
        total.backward()
        return out | {n: p.grad for n, p in s.named_parameters()}

    def test_gradients(self):
        for hidden, outputs in ((True, False), (False, False), (True, True)):
            want = self.made("torch", torch.float32, hidden, outputs)
            self.assertEqual(len(want), 4 + hidden + 1 + 3 + 3 * outputs + 2 + 2)
            for way in ways():
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    got = self.made(way, torch.bfloat16, hidden, outputs)
                    torch.set_num_threads(1)
                    self.assertEqual(got.keys(), want.keys())
                    for name, a in want.items():
                        with self.subTest(name=name, hidden=hidden, outputs=outputs, way=way, threads=threads):
                            error = ((got[name].float() - a).norm() / a.norm()).item()
                            self.assertLess(error, 2e-2)

    def test_wide_and_long_go_another_way(self):
        """What is longer than a thread's widened rows is not for tile_*.c."""
        ways()
        def able(width, s):
            w = types.SimpleNamespace(layers=[{"gate": torch.empty(width, 0)}], dim=64, n_heads=1, n_embd=64)
            frozen = types.SimpleNamespace(w=w, dtype=torch.bfloat16)
            return layers.able(frozen, torch.empty(1, s, 64))
        self.assertTrue(able(4096, 8192))
        self.assertFalse(able(4128, 64))
        self.assertFalse(able(64, 8224))

    def test_packed_again_when_trained(self):
        """What is packed of a trained projection follows an optimizer's step and a loaded state."""
        ops.use(ways()[0])
        frozen = model.Frozen(self.w, CPU, torch.bfloat16)
        s = model.Student(frozen, self.SPLIT, 3, outputs=True)
        with torch.no_grad():
            x = frozen.shallow(self.tokens, self.SPLIT)
            one = s.outcome(x)[0]
            state = {k: v.clone() for k, v in s.state_dict().items()}
            for p in (s.q[1], s.o[1]):
                p.mul_(-1)
                self.assertGreater((one - s.outcome(x)[0]).abs().max().item(), 1e-2)
                s.load_state_dict(state)
                self.assertTrue(torch.equal(one, s.outcome(x)[0]))


class Training(WithStories):
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

    def train(self, name, *args, code=0):
        """In this process: a fresh PyTorch costs seconds."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                train.Run(train.options([
                    "--model", str(STORIES), "--data", str(self.data), "--run", str(self.folder / name), "--ctx", "32",
                    "--threads", "1", "--dtype", "f32", "--warmup", "1", "--report-every", "1", "--device", "cpu",
                    *args])).train()
                self.assertEqual(code, 0)
            except SystemExit as e:
                self.assertEqual(code, 1, e)
                print(e)
        return said.getvalue()

    def log(self, name):
        return [json.loads(line) for line in (self.folder / name / "log.jsonl").read_text().splitlines()]

    def test_equal_models_reach_zero(self):
        """Split at the last layer: its input is the split's state, so the teacher itself is a student. From random
        projections the loss must come down steadily (to a hundredth here); from the teacher's own it must be 0."""
        self.train("own", "--split", "4", "--steps", "1")
        self.assertLess(self.log("own")[0]["kl"], 1e-6)
        path = self.folder / "start.gguf"
        overlay.write(str(path), random_student(self.frozen, 4, 1), "F32")
        self.train("zero", "--split", "4", "--steps", "120", "--lr", "1e-2", "--resume-from", str(path))
        kl = [line["kl"] for line in self.log("zero")]
        self.assertGreater(kl[0], 0.1)
        self.assertLess(kl[-1], kl[0] / 50)

    def test_every_option_learns(self):
        for i, args in enumerate((["--stage", "attention"], ["--hidden", "1"], ["--on", "answers"], ["--share", "0.5"],
                                  ["--cache", "fp8"], ["--cache", "kv8"], ["--loss", "lm"], ["--kv-heads", "1"],
                                  ["--kv-heads", "8"], ["--optimizer", "muon"], ["--stage", "exit", "--exit-words", "99"], ["--micro", "3"], ["--dtype", "bf16"],
                                  ["--outputs"], ["--outputs", "--stage", "attention", "--quant-outputs", "Q5_1"])):
            with self.subTest(args=args):
                self.train(f"o{i}", "--split", "2", "--group", "3", "--steps", "12", *args)
                lines = self.log(f"o{i}")
                key = next((k for k in ("attention", "lm", "exit") if k in args), "kl")
                self.assertLess(lines[-1][key], lines[0][key])
                over = str(self.folder / f"o{i}/overlay.gguf")
                engine(self.folder, STORIES, self.text, CTX, "f16", over)  # loads and runs

    def fitted(self, split, group, outputs=False):
        s = model.Student(self.frozen, split, group, outputs=outputs)
        f = fit.Fit(s, data.Shards(self.data, 32, 1), 40)
        f.apply()
        return s, f

    def test_fit_alone_keeps_every_score(self):
        """Groups of one: each head's scores are those of its own q on the regression of its own k, at any distance:
        for every frequency conj(q) k is what it was, so the turn that q and k took together does not show."""
        s, f = self.fitted(2, 1)
        half, per = self.w.dim // 2, self.w.n_heads // self.w.n_kv
        pairs = lambda a: torch.complex(a[:, :half], a[:, half:])
        heads = lambda a: pairs(torch.as_tensor(a).double().view(-1, self.w.dim, self.w.n_heads * self.w.dim))
        score = lambda q, k: torch.einsum("hfd,hfe->hfde", q.conj(), k.repeat_interleave(per, 0))
        for j, q in enumerate(s.q):
            own = self.w.layers[2 + j]
            want = score(heads(own["q"]), heads(own["k"]) @ f.guess[j].to(torch.complex128))
            got = score(heads(q.detach()), heads(s.k[j].detach()))
            self.assertLess(((got - want).abs().max() / want.abs().max()).item(), 1e-5)
            self.assertLess((s.v[j].detach() - torch.as_tensor(own["v"]).double() @ f.guess[j]).abs().max().item(), 1e-4)

    def test_fit_alone_keeps_every_value(self):
        """Groups of one with outputs: whatever V's rows have become, behind a head's output they are what they were."""
        s, f = self.fitted(2, 1, True)
        heads = lambda a: torch.as_tensor(a).double().view(-1, self.w.dim, self.w.n_heads * self.w.dim)
        per = self.w.n_heads // self.w.n_kv
        for j in range(3):
            own = self.w.layers[2 + j]
            through = lambda o, v: torch.einsum("ehd,hdf->hef", torch.as_tensor(o).double().view(-1, self.w.n_heads, self.w.dim),
                                                heads(v).repeat_interleave(per, 0))
            want = through(own["o"], torch.as_tensor(own["v"]).double() @ f.guess[j])
            got = through(s.o[j].detach(), s.v[j].detach())
            self.assertLess(((got - want).abs().max() / want.abs().max()).item(), 1e-5)

    def test_fit_of_slow_frequencies(self):
        """What their part of a score varies by is nearer the layers' own with the subspace of the group than with one
        complex number a frequency (its q and k from the same fit)."""
        s, f = self.fitted(2, 3)
        members, half, n_kv, per = range(3), self.w.dim // 2, self.w.n_kv, self.w.n_heads // self.w.n_kv
        slow = [i for i in range(half) if fit.NEAR * self.w.theta ** (-i / half) < 1]
        self.assertTrue(slow and len(slow) < half)
        slow += [half + i for i in slow]
        share, f.share_slow = f.share_slow, lambda *a: None
        plain = f.shared_k(members)
        f.share_slow = share

        def error(k, q):
            k, q, out = k.view(n_kv, -1, k.shape[-1]), q.view(3, n_kv, per, -1, q.shape[-1]), 0.0
            for j in members:
                own_q = f.weight(j, "q").view(q.shape[1:])
                root = torch.linalg.cholesky(f.xx[j] + 1e-9 * torch.eye(len(f.xx[j]), dtype=torch.double))
                for g in range(n_kv):
                    own_k = f.weight(j, "k")[g] @ f.guess[j]
                    score = lambda a, b: torch.einsum("had,ae->hde", a[:, slow], b[slow])
                    off = score(own_q[g], own_k) - score(q[j, g], k[g])
                    whole = score(own_q[g], own_k)
                    norm = lambda m: (root.mT @ m @ f.varying).square().sum()
                    out += (norm(off) / norm(whole)).item()
            return out
        with_slow = f.shared_k(members)
        self.assertLess(error(*with_slow), error(*plain))

    def test_fit_is_the_least(self):
        """Of shared values: any step away from them adds more error, summed over layers behind their output projections.
        Of the start: nearer the teacher than the mean is, on text that it has not seen."""
        s, f = self.fitted(2, 3)
        x = torch.randn(200, f.root.shape[0], dtype=torch.double) @ f.root.T  # of z's second moments

        def error(v):
            out = 0.0
            for j in range(3):
                own, o = f.weight(j, "v").flatten(0, 1), f.weight(j, "o")
                per = o.shape[1] // self.w.n_kv
                through = lambda rows: torch.einsum("ehd,nhd->neh", o, (x @ rows.T).view(
                    len(x), self.w.n_kv, -1).repeat_interleave(per, 1))
                adds = sum(torch.trace(o[:, h] @ a @ o[:, h].T) for h in range(o.shape[1])
                           for a in [f.weight(j, "v")[h // per] @ f.xx[j] @ f.weight(j, "v")[h // per].T])
                out += (through(own @ f.guess[j]) - through(v)).square().sum() / adds
            return out
        v = s.v[0].detach().double()
        least = error(v)
        step = torch.randn_like(v) * v.std() * 0.1
        self.assertLess(least, error(v + step))
        self.assertLess(least, error(v - step))
        self.assertLess(least, error(model.Student(self.frozen, 2, 3).v[0].detach().double()))

        for start in ("mean", "fit"):
            self.train(f"from-{start}", "--split", "2", "--group", "3", "--steps", "1", "--start", start, "--seed", "2")
        self.assertLess(self.log("from-fit")[0]["kl"], self.log("from-mean")[0]["kl"])
        self.train("from-fit-o", "--split", "2", "--group", "3", "--steps", "1", "--start", "fit", "--seed", "2", "--outputs")
        self.assertLess(self.log("from-fit-o")[0]["kl"], self.log("from-fit")[0]["kl"])
        for start in ("mean", "fit"):
            self.train(f"exit-from-{start}", "--split", "2", "--stage", "exit", "--exit-words", "99", "--steps", "1", "--start", start,
                       "--seed", "2")
        self.assertLess(self.log("exit-from-fit")[0]["exit"], self.log("exit-from-mean")[0]["exit"])
        self.assertIn("--start fit keeps", self.train("odd", "--split", "2", "--kv-heads", "1", "--start", "fit", "--steps", "1", code=1))

    def test_resumed_is_the_same_curve(self):
        self.train("whole", "--split", "2", "--steps", "8", "--min-lr", "1")
        self.train("parts", "--split", "2", "--steps", "3", "--min-lr", "1")
        self.train("parts", "--split", "2", "--steps", "8", "--min-lr", "1")
        whole, parts = self.log("whole"), self.log("parts")
        self.assertEqual([line["kl"] for line in whole], [line["kl"] for line in parts])
        # a state cut short by a crash: the one before it is taken
        state = self.folder / "parts/state.pt"
        state.write_bytes(state.read_bytes()[:1000])
        self.assertIn("goes on at step 3", self.train("parts", "--split", "2", "--steps", "9", "--min-lr", "1"))

    def all_of_them(self, name, *args, code=0, stages=None):
        """run_all.main() with a small table, `stages` in the place of x's; what it said."""
        said, models = io.StringIO(), self.folder / name / "models"
        models.mkdir(parents=True, exist_ok=True)
        stage = ["--ctx", "32", "--batch", "4", "--lr", "1e-2", "--min-lr", "1"]
        (self.folder / name / "settings.json").write_text(json.dumps({
            "x": {"name": "small", "shape": ["--split", "2", "--group", "3"],
                  "stages": stages or [["attention", 4 * 128, [*stage, "--stage", "attention"]],
                                       ["full", 12 * 128, [*stage, "--stage", "full"]]]},
            "y": {"name": "after", "shape": ["--split", "2", "--group", "3"], "from": "x",
                  "stages": [["exit", 2 * 128, [*stage, "--stage", "exit", "--exit-words", "99"]]]}}))
        data = self.folder / name / "work/data"
        if not data.exists():
            shutil.copytree(self.data, data)
        with contextlib.redirect_stdout(said):
            try:
                run_all.main(["--model", str(STORIES), "--work", str(self.folder / name / "work"), "--models", str(models),
                              "--settings", str(self.folder / name / "settings.json"), "--threads", "1", "--dtype", "f32",
                              "--warmup", "1", "--report-every", "1", "--device", "cpu", "--quant", "F32", *args])
                self.assertEqual(code, 0)
            except SystemExit as e:
                self.assertEqual(code, 1, e)
                print(e)
        return said.getvalue()

    def test_all_survives_a_bare_machine(self):
        """Sessions of five steps. With state.pt the curve is that of a run that never stopped; when all but models/ is
        lost in the middle, the same data come at the same steps, the loss stays down, and the tokens add up."""
        curve = lambda name: {(x["stage"], x["step"]): x for x in map(json.loads, (
            self.folder / name / "models/small.run.jsonl").read_text().splitlines())}
        self.assertIn("y (after): done, 2304 tokens seen in all", self.all_of_them("once"))
        self.assertIn("x (small): stage full, step 0 of 12, 512 tokens", self.all_of_them("one", "--session-stages", "1", "--only", "x"))
        said = [self.all_of_them("kept", "--session-steps", "5", "--only", "x") for _ in range(3)]
        self.assertIn("stage full, step 5 of 12, 1152 tokens", said[0])
        self.assertIn("x (small): done, 2048 tokens", said[2])
        whole, kept = curve("once"), curve("kept")
        self.assertEqual(len(whole), 16)
        self.assertEqual({k: v.get("kl") for k, v in whole.items()}, {k: v.get("kl") for k, v in kept.items()})

        batches, read = [], data.Shards.batch
        self.all_of_them("bare", "--session-steps", "5", "--only", "x")
        shutil.rmtree(self.folder / "bare/work")
        data.Shards.batch = lambda s, first, n, device: batches.append(first) or read(s, first, n, device)
        try:
            said = self.all_of_them("bare")
        finally:
            data.Shards.batch = read
        self.assertIn("goes on at step 5 from small.place.json; the optimizer begins anew", said)
        self.assertEqual(batches[0], 5 * 4)  # not from the start
        self.assertIn("x (small): done, 2048 tokens", said)
        self.assertIn("y (after): done, 2304 tokens", said)
        bare = curve("bare")
        self.assertEqual(list(bare), list(whole))
        self.assertEqual(bare["full", 5]["kl"], whole["full", 5]["kl"])
        self.assertAlmostEqual(bare["full", 6]["kl"], whole["full", 6]["kl"], places=3)  # the weights, less than a step's change
        self.assertNotEqual(bare["full", 5]["kl"], bare["full", 6]["kl"])
        self.assertLess(bare["full", 12]["kl"], bare["full", 1]["kl"])
        loaded = gguf.GGUFReader(self.folder / "bare/models/after.gguf")
        self.assertEqual(loaded.fields["pipit.distill.tokens"].contents(), "2304")

    def test_all_with_a_stage_twice(self):
        """The same stage again, with longer sequences: the log keeps both, the last of an option's values counts, and
        where all but models/ is lost in the second, the first one's lines stay."""
        full = ["--stage", "full", "--ctx", "32", "--batch", "4", "--lr", "1e-2", "--min-lr", "1"]
        stages = [["full", 3 * 128, full], ["full", 4 * 128, [*full, "--ctx", "64", "--batch", "2"]]]
        self.all_of_them("twice", "--session-steps", "3", "--only", "x", stages=stages)
        shutil.rmtree(self.folder / "twice/work")
        said = self.all_of_them("twice", "--only", "x", stages=stages)
        self.assertIn("goes on at step 3 from small.place.json", said)
        self.assertIn("x (small): done, 896 tokens seen in all", said)
        path = self.folder / "twice/models/small.run.jsonl"
        lines = [json.loads(x) for x in path.read_text().splitlines()]
        self.assertEqual([(x["index"], x["step"]) for x in lines], [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (1, 4)])
        self.assertEqual([x for x, _ in curves.curve(path)], [128 * i for i in range(1, 8)])

    def test_all_keeps_what_is_further(self):
        """A work folder that models/ has gone beyond, and a session that ends before its first export: models/ stays, and so
        it does where an export was interrupted between its two files. Then it goes on from models/."""
        self.all_of_them("back", "--session-steps", "5", "--only", "x")  # 4 of the first stage, 1 of the second
        shutil.copytree(self.folder / "back/work", self.folder / "back/old")
        self.all_of_them("back", "--session-steps", "5", "--only", "x")
        place, kept = self.folder / "back/models/small.place.json", self.folder / "back/models/small.gguf"
        before = place.read_text(), kept.read_bytes()
        self.assertEqual(json.loads(before[0])["step"], 10)
        shutil.rmtree(self.folder / "back/work")
        shutil.copytree(self.folder / "back/old", self.folder / "back/work")
        with unittest.mock.patch.object(train.Run, "train", side_effect=SystemExit("ended")):
            self.assertIn("ended", self.all_of_them("back", "--only", "x", code=1))
        self.assertEqual((place.read_text(), kept.read_bytes()), before)
        self.assertIn("goes on at step 10 from small.place.json", self.all_of_them("back", "--session-steps", "1", "--only", "x"))
        before = place.read_text(), kept.read_bytes()
        (self.folder / "back/work/x/1-full/overlay.gguf").write_bytes(b"of the next export")
        with unittest.mock.patch.object(train.Run, "train", side_effect=SystemExit("ended")):
            self.assertIn("ended", self.all_of_them("back", "--only", "x", code=1))
        self.assertEqual((place.read_text(), kept.read_bytes()), before)

    def test_all_goes_on_in_an_exit_stage(self):
        """On a bare machine too it is the head that the optimizer moves."""
        self.all_of_them("exit", "--session-stages", "2", "--only", "x")
        self.all_of_them("exit", "--session-steps", "1", "--only", "y")
        shutil.rmtree(self.folder / "exit/work")
        head = lambda: gguf.GGUFReader(self.folder / "exit/models/after.gguf")
        data_of = lambda r: next(t.data.copy() for t in r.tensors if t.name == "exit_head.weight")
        before = data_of(head())
        self.assertIn("goes on at step 1 from after.place.json", self.all_of_them("exit", "--only", "y"))
        self.assertFalse(np.array_equal(before, data_of(head())))

    def test_all_refuses_another_beginning(self):
        """A stage's folder that began on what models/ has no more."""
        self.all_of_them("begun", "--session-steps", "5", "--only", "x")
        (self.folder / "begun/models/small.place.json").unlink()
        (self.folder / "begun/work/x/0-attention/begun-on").write_text("something else")
        self.assertIn("began on another overlay", self.all_of_them("begun", "--only", "x", code=1))

    def test_all_makes_data_anew(self):
        """What a session that was ended left of the data counts as nothing; a folder without a shard is said to lack it."""
        def make(command, check):
            folder = pathlib.Path(command[command.index("--out") + 1])
            self.assertEqual([p.name for p in folder.iterdir()], [])
            shutil.copytree(self.data, folder, dirs_exist_ok=True)
        o = types.SimpleNamespace(work=self.folder / "anew", models=self.folder / "anew-models", model="m", avoid=[], new_data=False)
        (o.work / "data.part").mkdir(parents=True)
        (o.work / "data.part/manifest.json").write_text('{"shards": []}')
        o.models.mkdir()
        with unittest.mock.patch.object(run_all.subprocess, "run", make):
            folder = run_all.make_data(o)
        self.assertTrue((folder / "made.bin").exists())
        self.assertFalse((o.work / "data.part").exists())
        kept = json.loads((o.models / "data.manifest.json").read_text())
        kept["shards"].append(kept["shards"][0] | {"name": "more"})
        (o.models / "data.manifest.json").write_text(json.dumps(kept))
        with self.assertRaisesRegex(SystemExit, "lacks shards of .*: more: delete"):
            run_all.make_data(o)

    def test_all_settings_fit_what_is_shipped(self):
        """Every overlay that models/ has a place of can go on under the table of run_all.py."""
        o = types.SimpleNamespace(models=ROOT / "models", settings=run_all.SETTINGS)
        for key in o.settings:
            x = run_all.Overlay(o, key)
            if not x.place or x.done():
                continue
            self.assertLessEqual(x.place["step"], x.steps(x.stage()), key)
            name, _, args = x.settings["stages"][x.stage()]
            if x.place["step"]:
                self.assertEqual((x.place["stage"], str(x.place["ctx"])), (name, args[len(args) - args[::-1].index("--ctx")]), key)
            split, group, reader = overlay.shape(x.file)
            shape = x.settings["shape"]
            self.assertEqual([str(split), str(group)], [shape[shape.index(k) + 1] for k in ("--split", "--group")], key)
            self.assertEqual(overlay.has_outputs(x.file, reader), "--outputs" in shape, key)

    def test_state_of_another_stage(self):
        """state.pt says what it is of: another length of sequences is refused, other data begin their first epoch."""
        self.train("other", "--split", "2", "--steps", "2")
        state = torch.load(self.folder / "other/state.pt", weights_only=True)
        torch.save(state | {"ctx": 256}, self.folder / "other/state.pt")
        self.assertIn("is of stage full, 256 tokens", self.train("other", "--split", "2", "--steps", "3", code=1))
        torch.save(state | {"data": "another"}, self.folder / "other/state.pt")
        self.assertIn("other data than before", self.train("other", "--split", "2", "--steps", "3"))
        now = torch.load(self.folder / "other/state.pt", weights_only=True)
        self.assertEqual((now["sequences"], now["before"]), (state["sequences"] // 2, state["sequences"] * 32))

    def test_all_refuses(self):
        """Data that came out otherwise, a shard that is not its manifest's, an overlay that is not its place's."""
        self.all_of_them("odd", "--session-steps", "5", "--only", "x")
        shard = self.folder / "odd/work/data/made.bin"
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-2] + b"\1\1")
        self.assertIn("made.bin is not what its manifest says", self.all_of_them("odd", code=1))
        manifest = json.loads((self.data / "manifest.json").read_text())  # without a hash: as another make_data.py made it
        (self.folder / "odd/work/data/manifest.json").write_text(json.dumps(manifest))
        self.assertIn("these shards are not those of", self.all_of_them("odd", code=1))
        self.assertIn(": made. Packages", self.all_of_them("odd", code=1))
        self.assertIn("step 10 of 12", self.all_of_them("odd", "--new-data", "--session-steps", "5", "--only", "x"))
        (self.folder / "odd/models/small.gguf").write_bytes(b"GGUF")
        self.assertIn("is not the overlay of small.place.json", self.all_of_them("odd", "--new-data", code=1))

    def test_running_mean(self):
        """--ema writes the mean of the weights: here, of the first two steps, half of each; and a resumed run's."""
        rate = ["--split", "2", "--min-lr", "1", "--quant", "F32", "--lr", "1e-2", "--ema", "0.9"]
        get = lambda: {t.name: np.array(t.data) for t in gguf.GGUFReader(self.folder / "mean/overlay.gguf").tensors}
        self.train("mean", *rate, "--steps", "1")
        one = get()
        self.train("mean", *rate, "--steps", "2")
        state = torch.load(self.folder / "mean/state.pt", weights_only=True)
        name = "blk.3.attn_v_swiftkv.weight"
        last = state["student"]["v.1"].numpy()
        self.assertGreater(np.abs(last - one[name]).max(), 1e-3)
        np.testing.assert_allclose(get()[name], (one[name] + last) / 2, atol=1e-6)

    def test_exit_head(self):
        """Its KL falls; training it touches nothing else; and what it says of the split's state, greedily, token after
        token, is what C says with exit:P."""
        s = random_student(self.frozen, 4, 1)
        start = self.folder / "exit-start.gguf"
        overlay.write(str(start), s, "F32")
        rate = ["--split", "4", "--stage", "exit", "--lr", "1e-2", "--quant", "F32", "--resume-from", str(start)]
        self.train("exit", *rate, "--exit-words", "200", "--steps", "40")
        kl = [line["exit"] for line in self.log("exit")]
        self.assertLess(kl[-1], kl[0] / 2)
        path = self.folder / "exit/overlay.gguf"
        made = {t.name: np.array(t.data) for t in gguf.GGUFReader(path).tensors}
        for t in gguf.GGUFReader(start).tensors:
            np.testing.assert_array_equal(made[t.name], t.data)
        overlay.load(str(path), s)
        self.assertEqual(len(s.exit_words), len(s.exit_head) - 1)
        # C, greedy, every token exits: each must be the head's own choice at its place
        prompts = self.folder / "exit.jsonl"
        prompts.write_text(json.dumps({"id": "a", "prompt": "Once upon a time", "max_tokens": 24}) + "\n")
        out = self.folder / "exit-out.jsonl"
        subprocess.run([PIPIT_EVAL, "-m", str(STORIES), "--prompts", str(prompts), "--backend", "ref", "-c", "128", "--overlay",
                        str(path), "--kv", "f32+exit:0.01", "-o", str(out)], check=True, capture_output=True)
        got = json.loads(out.read_text().splitlines()[0])
        self.assertEqual(got["n_exited"], got["n_new"] - 1)
        row = ids(STORIES, "Once upon a time", 99, 1)
        vocabulary = gguf.GGUFReader(STORIES).fields["tokenizer.ggml.tokens"].contents()
        said = ""
        with torch.no_grad():
            for i in range(got["n_new"]):
                x = self.frozen.shallow(row, 4)
                if i == 0:  # follows the prompt, whose rows do not exit
                    logits = self.frozen.logits(s.run(x)[-1])[0, -1]
                else:
                    own = s.exit_logits(x)[0, -1]
                    rest = len(vocabulary) - len(s.exit_words)
                    logits = torch.full((len(vocabulary),), (own[-1] - np.log(rest)).item())
                    logits[s.exit_words] = own[:-1]
                row = torch.cat((row, logits.argmax().view(1, 1)), 1)
                said += vocabulary[row[0, -1]].replace("\u2581", " ")
        said = re.sub("<0x(..)>", lambda m: chr(int(m[1], 16)), said)
        self.assertTrue(said.strip().startswith(got["text"].strip()) and len(got["text"]) > 10, f"{said!r}, C: {got['text']!r}")

    def test_whole_deep_layers(self):
        """--train all moves what else is frozen, comes further, and says that it leaves no overlay."""
        said = self.train("all", "--split", "2", "--group", "3", "--steps", "12", "--train", "all")
        self.train("some", "--split", "2", "--group", "3", "--steps", "12")
        self.assertIn("no overlay", said)
        self.assertFalse((self.folder / "all/overlay.gguf").exists())
        self.assertLess(self.log("all")[-1]["kl"], self.log("some")[-1]["kl"])
        state = torch.load(self.folder / "all/state.pt", weights_only=True)["student"]
        self.assertGreater((state["deep.0.o"] - self.frozen.layers[2]["o"]).abs().max().item(), 1e-4)

    def test_out_of_memory(self):
        """A micro-batch that memory does not hold is halved and the step repeated: the same curve as with small ones."""
        self.train("small", "--split", "2", "--steps", "3", "--micro", "1", "--min-lr", "1")
        whole = train.Run.losses

        def greedy(run, tokens, mask):
            if len(tokens) > 1:
                torch.empty(1 << 60)  # a real refusal of PyTorch's allocator
            return whole(run, tokens, mask)
        train.Run.losses = greedy
        try:
            said = self.train("big", "--split", "2", "--steps", "3", "--micro", "4", "--min-lr", "1")
        finally:
            train.Run.losses = whole
        self.assertIn("out of memory: 1 sequences at once", said)
        self.assertEqual([line["kl"] for line in self.log("small")], [line["kl"] for line in self.log("big")])

    def test_nan_stops(self):
        self.train("nan", "--split", "2", "--steps", "2", "--lr", "1e-3")
        before = (self.folder / "nan/state.pt").read_bytes()
        said = self.train("nan", "--split", "2", "--steps", "9", "--lr", "1e38", "--clip", "1e30", code=1)
        self.assertRegex(said, r"step \d+: not finite")
        self.assertEqual(before, (self.folder / "nan/state.pt").read_bytes())

    def test_refusals(self):
        def refused(text, *args):
            said = self.train("bad", *args, code=1)
            self.assertIn(text, said)
        refused("--split: 5 is not in 1..4", "--split", "5", "--steps", "1")
        refused("--group: 4 is not in 1..3", "--split", "2", "--group", "4", "--steps", "1")
        refused("--kv-heads: 3 does not divide 8", "--split", "2", "--kv-heads", "3", "--steps", "1")
        refused("--exit-words: 512 is not in 1..511", "--split", "2", "--steps", "1", "--stage", "exit", "--exit-words", "512")
        refused("no manifest", "--split", "2", "--steps", "1", "--data", str(self.folder / "none"))
        refused("architecture 'qwen2' is not supported", "--split", "2", "--steps", "1", "--model",
                str(ROOT / "tests/data/arch_qwen2.gguf"))
        path = self.folder / "other.gguf"
        s = random_student(self.frozen, 2, 3)
        overlay.write(str(path), s, "F32", sha256="0" * 64)
        refused("made for another base", "--split", "2", "--group", "3", "--steps", "1", "--resume-from", str(path))
        overlay.write(str(path), s, "F32")
        refused("has split 2, group 3", "--split", "2", "--group", "1", "--steps", "1", "--resume-from", str(path))
        overlay.write(str(path), random_student(self.frozen, 2, 3, outputs=True), "F32")
        refused("give --outputs", "--split", "2", "--group", "3", "--steps", "1", "--resume-from", str(path))
        rows = overlay.rows
        with unittest.mock.patch.object(overlay, "rows", lambda s: {k: a for k, a in rows(s).items() if k != "blk.3." + overlay.OUTPUT}):
            overlay.write(str(path), random_student(self.frozen, 2, 3, outputs=True), "F32")
        refused("no blk.3.attn_output", "--split", "2", "--group", "3", "--steps", "1", "--outputs", "--resume-from", str(path))
        self.assertTrue(re.fullmatch("[0-9a-f]{64}", gguf.GGUFReader(path).fields["pipit.overlay.base_sha256"].contents()))


class Curves(unittest.TestCase):
    def test_power_law(self):
        factor, slope = curves.power_law([(x, 3 * x ** -0.25) for x in (1e6, 2e6, 5e6, 1e7)])
        self.assertAlmostEqual(factor, 3)
        self.assertAlmostEqual(slope, -0.25)

    def test_tokens_of_all_stages(self):
        """Those of the stages before count, and a count that new data began anew does not."""
        lines = [{"stage": "attention", "step": 10, "tokens": 1000, "attention": 1.0},
                 {"stage": "attention", "step": 30, "tokens": 3000, "attention": 0.5},
                 {"stage": "full", "step": 10, "tokens": 2000, "kl": 0.7}, {"stage": "full", "step": 20, "tokens": 400, "kl": 0.6},
                 {"stage": "full", "index": 2, "step": 5, "tokens": 500, "kl": 0.4, "temperature": 1.0}]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write("".join(json.dumps(x) + "\n" for x in lines))
            f.flush()
            self.assertEqual(curves.curve(pathlib.Path(f.name)), [(5000, 0.7), (7000, 0.6), (7500, 0.4)])
            self.assertEqual(curves.curve(pathlib.Path(f.name), 2), [(5000, 0.7), (7000, 0.6)])
            self.assertEqual(curves.curve(pathlib.Path(f.name), 1), [(7500, 0.4)])


class Data(unittest.TestCase):
    def test_filter(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("It was the best of times, it was the worst of times, it was the age of wisdom.")
            f.flush()
            keep = make_data.Filter([f.name])
        text = "He said: it was the best of times, IT WAS the worst, and left.\n\nAn honest line of six plain words."
        self.assertEqual(keep(text), "An honest line of six plain words.")
        self.assertEqual(keep(text), "")
        self.assertEqual((keep.overlapping, keep.repeated), (1, 2))

    def test_evaluation_table(self):
        """Every figure of scores.json is in both tables, a task that was not run in neither, and missing data are said."""
        scores = {"war-and-peace": {"ctx": 2048, "positions": 4096, "perplexity": {"teacher": 27.36, "untrained": 6909.5, "mine": 72.49},
                                    "kl": {"untrained": 5.6, "mine": 0.99}},
                  "lambada": {"cases": 100, "accuracy": {"teacher": 0.3, "untrained": 0.0, "mine": 0.25}, "of_teacher": {}},
                  "summary": {"cases": 4, "untrained": 0.0, "mine": 0.125}}
        rows = evaluate.rows(scores)
        self.assertEqual(rows[0], ["war-and-peace: perplexity", 4096, {"teacher": 27.36, "untrained": 6909.5, "mine": 72.49}])
        self.assertEqual(rows[1], ["war-and-peace: KL from the teacher, nats", 4096, {"teacher": 0, "untrained": 5.6, "mine": 0.99}])
        with tempfile.TemporaryDirectory() as d:
            evaluate.write_tables(pathlib.Path(d), scores)
            table, text = (pathlib.Path(d) / "scores.csv").read_text(), (pathlib.Path(d) / "scores.md").read_text()
        self.assertIn("war-and-peace: perplexity,4096,mine,72.49\n", table)
        self.assertIn("| measure | sample | teacher | untrained | mine |", text)
        self.assertIn("| LAMBADA, last word | 100 | 30.0% | 0.0% | 25.0% |", text)
        self.assertIn("| summaries, F of word pairs against the teacher's | 4 | 1 | 0.000 | 0.125 |", text)
        self.assertEqual(table.count("\n"), 1 + 4 * 3)
        with tempfile.TemporaryDirectory() as d:
            made = {"command": "evaluate.py --out DIR", "date": "2026-11-23", "machine": "AMD EPYC, 2 CPUs", "commit": "926d7e1"}
            evaluate.write_tables(pathlib.Path(d), {**scores, "made": made})
            said = (pathlib.Path(d) / "scores.csv").read_text()
        self.assertEqual(said, "# 2026-11-23, AMD EPYC, 2 CPUs, commit 926d7e1\n# evaluate.py --out DIR\n" + table)
        self.assertFalse(evaluate.there(pathlib.Path("/nonexistent/lambada.jsonl"), "LAMBADA"))

    def test_evaluation_of_exits(self):
        """Counts by hand: four positions, a head of the words 1 and 3 and one row for all others."""
        head = torch.eye(4)
        # sure of 1; hardly; sure of 3; of another, but 1 has 0.42
        logits = torch.tensor([[9., 0, 0], [1, 0, 0], [0, 9, 0], [0.65, -2, 0.9]])
        student = types.SimpleNamespace(frozen=types.SimpleNamespace(head=head), exit_words=torch.tensor([1, 3]),
                                        exit_logits=lambda x: logits)
        rows = lambda *words: head[list(words)]
        found = evaluate.exits(student, None, rows(1, 1, 2, 3), rows(1, 1, 3, 3))
        self.assertEqual(found.tolist(), [[2, 1, 2]] * 4 + [[4, 2, 3]])  # 0.58 of the second row is over 0.4
        scores = {"t": {"positions": 4, "perplexity": {}, "kl": {}, "exits": {"x": {
            str(p): {"exit": 0.5, "as_full": 0.5, "as_teacher": 1.0} for p in evaluate.EXITS}}}}
        self.assertIn(["t, exit:0.95: tokens that exit", 4, {"x": 0.5}], evaluate.rows(scores))

    def test_readers(self):
        page = b"<html><head><title>no</title></head><body><p>One\n two</p><script>no()</script><p>three</p></body></html>"
        self.assertEqual(corpus.html_text(page)[0].split(), ["One", "two", "three"])
        line = "00001740 29 v 02 breathe 0 respire 0 001 | draw air into; \"I can breathe\"  \n"
        self.assertEqual(corpus.wordnet(line.encode()), ['breathe: draw air into; "I can breathe"'])
        strings = b"".join(b"\x00\x04\x00\x09" + len(t).to_bytes(4, "big") + t for t in [b"It is a truth", b""] * 1000)
        raw = b"".join(len(strings).to_bytes(4, "big") + zlib.compress(strings) for _ in range(2))
        self.assertEqual(corpus.r_strings(raw), ["\n".join(["It is a truth", ""] * 1000)] * 2)
        self.assertEqual(corpus.man(b".TH X 1\n.SH NAME\nls \\- list\n.B bold\n.\\\" no\n")[0].split(), "NAME ls - list bold".split())

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_tokenizer(self):
        path = os.environ["PIPIT_SMOLLM2"]
        text = TEXT.read_text() + " 1234 <|im_start|>user\nIt's  naïve, 東京!\n\n\tx<|im_end|>"
        out = subprocess.run([TOK_DUMP, path, "4"], input=text.encode().hex() + "\n", capture_output=True, text=True,
                             check=True).stdout
        self.assertEqual(make_data.Tokens(path).encode([text])[0], [int(i) for i in out.split()])

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_answers(self):
        """A chat is what the model's own template says, the mask is the answer's; what failed, was asked twice or stands in an
        evaluation text is left out."""
        import jinja2
        path = os.environ["PIPIT_SMOLLM2"]
        a = argparse.Namespace(model=path, seed=1, repeat=3, avoid=[])
        lines = [("0", "What is 2 + 3?", "It is 5.", "stop"), ("1", "Say it.", "one two three", "length"),
                 ("2", "And?", None, "error"), ("3", "Say it.", "again", "stop"),
                 ("4", "A book?", "It was the best of times, it was the worst of times.", "stop")]
        with tempfile.TemporaryDirectory() as d:
            a.out = pathlib.Path(d)
            (a.out / "book.txt").write_text("It was the best of times, it was the worst of times")
            a.avoid = [str(a.out / "book.txt")]
            for name, row in (("prompts", lambda i, q, t, r: {"custom_id": i, "prompt": q}),
                              ("answers", lambda i, q, t, r: {"custom_id": i, "text": t, "finish_reason": r})):
                (a.out / f"{name}.jsonl").write_text("".join(json.dumps(row(*x)) + "\n" for x in lines))
            make_data.make_answers(a)
            ids, mask = np.fromfile(a.out / "answers.bin", np.uint16), np.fromfile(a.out / "answers.mask", np.uint8)
            (shard,) = json.loads((a.out / "manifest.json").read_text())["shards"]
        self.assertEqual((shard["tokens"], shard["repeat"], shard["left_out"]), (len(ids), 3, 3))
        template = jinja2.Environment().from_string(gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents())
        chats = [template.render(messages=[{"role": "user", "content": q}], add_generation_prompt=True) for _, q, _, _ in lines[:2]]
        tokens = make_data.Tokens(path)
        want = tokens.encode([chats[0], "It is 5.<|im_end|>\n", chats[1], "one two three"])
        self.assertEqual(ids.tolist(), sum(want, []))
        self.assertEqual(mask.tolist(), sum(([i % 2] * len(w) for i, w in enumerate(want)), []))

    def test_prompts(self):
        """One seed, the same prompts; every kind is there; what is asked to be found stands there once."""
        fetch, corpus.fetch = corpus.fetch, lambda package, folder: None
        try:
            with tempfile.TemporaryDirectory() as d:
                a = argparse.Namespace(out=pathlib.Path(d), seed=1, n=400, max_tokens=9, avoid=[])
                texts = []
                for _ in range(2):
                    make_data.make_prompts(a)
                    texts.append((a.out / "prompts.jsonl").read_text())
        finally:
            corpus.fetch = fetch
        self.assertEqual(texts[0], texts[1])
        rows = [json.loads(x) for x in texts[0].splitlines()]
        self.assertEqual([r["custom_id"] for r in rows], [str(i) for i in range(400)])
        self.assertEqual({r["max_tokens"] for r in rows}, {9})
        found = [r["prompt"] for r in rows if "The number of " in r["prompt"]]
        self.assertTrue(15 < len(found) < 200)
        for text in found:
            key = re.search(r"What is the number of (.*)\?$", text)[1]
            self.assertEqual(text.count(f"The number of {key} is"), 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
