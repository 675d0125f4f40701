# SPDX-License-Identifier: Apache-2.0
"""heads.py: single heads of a wide overlay are fitted anew, all else stays."""

import contextlib
import io
import re
import unittest.mock

import gguf
import numpy as np
import torch

from stories import STORIES, Trained
import heads
import overlay
import wide

DIMS = (24, 40)


class SingleHeads(Trained):
    def start(self):
        torch.manual_seed(5)
        s = wide.Wide(self.frozen, 2, 3, DIMS)
        with torch.no_grad():
            for p in s.parameters():
                p.add_(torch.randn_like(p) * (p.std() * 0.5 if p.std() > 0 else p.shape[-1] ** -0.5))
            s.freqs.copy_(torch.rand(s.freqs.shape).square())
        path = self.folder / "from.gguf"
        overlay.write(str(path), s, "F32")
        return path

    def fitted(self, *args):
        said = io.StringIO()
        argv = ["heads.py", "--model", str(STORIES), "--overlay", str(self.start()), "--out", str(self.folder / "to.gguf"), "--quant", "F32",
                "--text", f"{self.data}:8:32", "--look-back", f"{self.data}:8:32", "--threads", "1", *args]
        with unittest.mock.patch("sys.argv", argv), contextlib.redirect_stdout(said):
            heads.main()
        return said.getvalue()

    def test_nearer_and_alone(self):
        said = self.fitted("--heads", "3.1", "4.2", "--steps", "60", "--lr", "1e-2", "--states", str(self.folder / "kept.pt"))
        before, after = [[float(x) for x in re.findall(r"\d\.\d (\d+\.\d+)", line)] for line in said.splitlines() if line.startswith("KL")]
        self.assertEqual((len(before), len(after)), (2, 2))
        for a, b in zip(before, after):
            self.assertLess(b, 0.7 * a)
        old, new = [{t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(self.folder / n).tensors}
                    for n in ("from.gguf", "to.gguf")]
        other = {n for n in old if not np.array_equal(old[n], new[n])}
        self.assertEqual(other, {f"blk.{i}.attn_{n}_swiftkv.weight" for i in (3, 4) for n in ("q", "q_map", "v_map")})
        dim, k_dim = self.w.dim, DIMS[0]
        for i, h in ((3, 1), (4, 2)):
            for n, rows in (("q", dim), ("q_map", k_dim), ("v_map", dim)):
                name = f"blk.{i}.attn_{n}_swiftkv.weight"
                changed = np.unique(np.flatnonzero((old[name] != new[name]).any(1)) // rows)
                self.assertEqual(changed.tolist(), [h], name)
        with unittest.mock.patch.object(heads.Heads, "inputs", side_effect=AssertionError("made again")):
            self.fitted("--heads", "3.1", "4.2", "--steps", "2", "--states", str(self.folder / "kept.pt"))

    def test_value_maps(self):
        """Where the student's head attends as the teacher's does, its values are the best that the shared ones can say."""
        s = wide.Wide(self.frozen, 2, 3, DIMS)
        overlay.load(str(self.start()), s)
        fitted = heads.Heads(s, [(2, 0)])
        states = fitted.inputs(self.tokens[:, :40]).half()
        v_map = fitted.values([(states, None)], 1e-6, 1)[2, 0]
        rows = torch.arange(40)
        x = states.float()
        p, v, own = fitted.teacher(x, 2, 0, rows)
        k, shared = fitted.stores(x)[0]
        with torch.no_grad():
            read = fitted.student(k, own, 2, 0, rows).exp() @ shared
            left = lambda m: ((p @ v) - read @ m.t()).square().mean().item()
            best = torch.linalg.lstsq(read.double(), (p @ v).double()).solution.t().float()
        self.assertLess(left(v_map), left(s.v_map[0][0].detach()))
        self.assertLess(left(v_map), 1.05 * left(best) + 1e-6)

    def test_refused(self):
        for head in ("1.0", "3.8"):
            with self.assertRaisesRegex(SystemExit, f"{head} is no head of a deep layer"):
                self.fitted("--heads", head)
        for bad in ("x", "x:0", "x:1:y"):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                heads.options(["--model", "m", "--overlay", "o", "--out", "t", "--heads", "3.1", "--text", bad])
            self.assertIn("DIR:N", said.getvalue())
