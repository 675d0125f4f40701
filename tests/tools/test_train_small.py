#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/train_small: every variant, trained for some steps and exported, says in the C engine (ref) what it says in PyTorch;
the variants are what they are called; a run that is there is not made again; what must be refused. Exits 77 without
PyTorch or gguf.

usage: test_train_small.py PIPIT_EVAL [unittest arguments]"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf  # noqa: F401
    import numpy as np
    import torch
except ImportError as e:
    print(f"SKIP: {e}: pip install gguf torch", file=sys.stderr)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = ROOT / "tools/train_small/train.py"
TEXT = ROOT / "tests/data/stories260K.txt"
CTX = 64
PIPIT_EVAL = sys.argv[1]
sys.path.insert(0, str(TRAIN.parent))
import export  # noqa: E402
import model as small  # noqa: E402
import train  # noqa: E402


class TrainSmall(unittest.TestCase):
    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = pathlib.Path(tmp.name)
        torch.set_num_threads(1)
        # Enough for a validation part of more than a context.
        self.text = self.dir / "text"
        self.text.write_bytes(TEXT.read_bytes() * 20)

    def train(self, *args):
        return subprocess.run([sys.executable, str(TRAIN), "--out", str(self.dir / "out"), "--steps", "3", "--batch", "2",
                               "--ctx", str(CTX), "--seeds", "1", *args], capture_output=True, text=True)

    def test_variants_differ_in_what_they_are_called_after(self):
        v = small.variants()
        self.assertEqual(v["sigma"].kv_elements() * 8, v["gqa"].kv_elements() * 5)  # 37.5 % less
        self.assertEqual(v["gqa"].kv_elements() * 2, v["mha"].kv_elements())
        self.assertEqual(v["gqa+ffn"].parameters(), v["gqa+aug"].parameters())
        for name, shape in v.items():
            m = small.Model(shape)
            n = sum(p.numel() for p in m.layers.parameters())
            self.assertEqual(n, shape.parameters(), name)

    def test_the_engine_says_what_pytorch_says(self):
        text = TEXT.read_bytes()[:CTX]
        (self.dir / "probe").write_bytes(TEXT.read_bytes()[:4 * CTX])
        ids = torch.tensor([list(text)])
        for seed, (name, shape) in enumerate(small.variants().items()):
            torch.manual_seed(seed)
            m = small.Model(shape)
            with torch.no_grad():
                for p in m.parameters():  # far from where all begin alike
                    p.add_(torch.randn_like(p) * p.std().nan_to_num(0.1) * 0.5)
                want = m(ids)[0, CTX // 2:CTX - 1]
            path = self.dir / "model.gguf"
            export.write(path, m, name, 4 * CTX)
            subprocess.run([PIPIT_EVAL, "-m", str(path), "--text", str(self.dir / "probe"), "-c", str(CTX), "-n", "1", "--backend",
                            "ref", "--kv", "f32", "--dump", str(self.dir / "dump.npy")], check=True, capture_output=True)
            got = torch.from_numpy(np.load(self.dir / "dump.npy")).view(len(want), -1)
            self.assertGreater(want.std().item(), 0.1)
            self.assertLess((torch.log_softmax(got, -1) - torch.log_softmax(want, -1)).abs().max().item(), 1e-4, name)

    def test_training_learns_and_goes_on(self):
        r = self.train("--steps", "30", "--variant", "sigma", str(self.text))
        self.assertEqual(r.returncode, 0, r.stderr)
        path = self.dir / "out/sigma.0.json"
        run = json.loads(path.read_text())
        self.assertLess(run["validation"], 4.0)  # ln 258 = 5.55 untrained
        stamp = path.stat().st_mtime_ns
        r = self.train("--variant", "sigma", "--variant", "gqa", str(self.text))
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(path.stat().st_mtime_ns, stamp)
        self.assertIn("| gqa |", r.stdout)
        self.assertTrue((self.dir / "out/gqa.gguf").exists())

    def test_a_difference_counts_by_the_rule_alone(self):
        runs = {"a": {0: {"validation": 2.00}, 1: {"validation": 2.10}, 2: {"validation": 2.05}},
                "b": {0: {"validation": 1.95}, 1: {"validation": 2.05}, 2: {"validation": 2.00}}}
        mean, half = train.difference(runs, "a", "b")
        self.assertAlmostEqual(mean, 0.05)
        self.assertAlmostEqual(half, 0.0)
        self.assertEqual(train.difference({"a": {0: {"validation": 1}}, "b": {}}, "a", "b"), (None, None))

    def test_refusals(self):
        short = self.dir / "short"
        short.write_text("too short")
        r = self.train(str(short))
        self.assertEqual(r.returncode, 1)
        self.assertIn("are too few for a context", r.stderr)
        r = self.train("--lr", "1e30", "--variant", "gqa", str(self.text))
        self.assertEqual(r.returncode, 1)
        self.assertIn("the loss of step", r.stderr)
        self.assertFalse((self.dir / "out/gqa.0.json").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
