# SPDX-License-Identifier: Apache-2.0
"""The loop for a lent GPU (gpu.py), on the CPU: its losses are train.py's, and whatever happens an overlay is written."""

import contextlib
import io
import json
import time
import unittest.mock

import numpy as np
import torch

from stories import CTX, STORIES, Trained, engine
import gpu
import loss
import ops
import overlay
import train
import wide


class GpuLoop(Trained):
    WIDE = ("--split", "2", "--group", "3", "--wide", "32+40", "--start", "fit", "--fit-sequences", "20", "--quant", "F32", "--ops", "torch",
            "--steps", "1", "--batch", "4")

    def made(self, name, *more, seconds=30, margin=2):
        args = ["--model", str(STORIES), "--data", str(self.data), "--run", str(self.folder / name), "--ctx", "32", "--threads", "1",
                "--dtype", "f32", "--warmup", "2", "--report-every", "3", "--device", "cpu", "--seconds", str(seconds),
                "--margin", str(margin), "--micros", "4",
                *self.WIDE, *more]
        return gpu.options(args)

    def back(self):
        back = self.folder / "back"
        if not back.exists():
            back.mkdir()
            rng = np.random.default_rng(4)
            rng.integers(3, 512, 5 * 32 + 1).astype(np.uint16).tofile(back / "b.bin")
            (rng.random(5 * 32 + 1) < 0.3).astype(np.uint8).tofile(back / "b.mask")
            (back / "manifest.json").write_text(json.dumps({"shards": [{"name": "b", "tokens": 5 * 32 + 1, "aligned": 32}]}))
        return back

    def test_same_as_train(self):
        """Loss and gradients of a batch are those of train.py, in micro-batches of any size, and those of the layers that
        keep their scores; a weight of 1 changes nothing, and others weigh rows."""
        g = gpu.Gpu(*self.made("same"))
        run = g.run
        tokens = g.text.rows(g.text.queue[:4])

        def expected():
            for p in run.params:
                p.grad = None
            total, _ = run.losses(tokens, torch.ones(4, 32, dtype=torch.bool))
            total.backward()
            return total.detach(), [p.grad.clone() for p in run.params]
        whole = expected()

        def scored(j, h, stores, layer):
            return wide.Wide.attention(run.student, j, h, stores, layer, torch.arange(32))
        with unittest.mock.patch.object(run.student, "whole", scored):
            runs = [whole, expected()]
        for weight, micro in ((None, 4), (None, 2), (torch.ones(4, 32), 1)):
            runs.append((g.gradients(tokens, weight, micro), [p.grad.clone() for p in run.params]))
        for total, grads in runs[1:]:
            self.assertAlmostEqual(total.item(), whole[0].item(), delta=1e-5)
            for a, b in zip(grads, whole[1]):
                self.assertLess((a - b).norm().item(), 1e-4 * b.norm().item() + 1e-7)
        weight = torch.rand(4, 32)
        weight /= weight.mean()
        x, f = run.frozen.shallow(tokens[:, :-1], 2), run.frozen
        final = f.last_norm(f.states(x, 2, f.w.n_layers)[-1]).flatten(0, 1)
        mine = f.last_norm(run.student.outcome(x)[0]).flatten(0, 1)
        kl = torch.stack([loss.head_kl(a[None], b[None], f.head, 1.0) for a, b in zip(mine, final)])
        g.o.temperature = 1.0
        self.assertAlmostEqual(g.losses(tokens, weight).item(), (kl * weight.flatten()).mean().item(), delta=1e-5)

    def test_narrow_values(self):
        """V narrower than K, of K's width, and one that is no multiple of it."""
        torch.manual_seed(2)
        for n in (16, 24, 60):
            q, k, v = torch.randn(2, 3, 8, 24), torch.randn(2, 1, 8, 24), torch.randn(2, 1, 8, n)
            p = (q @ k.mT * 0.3).masked_fill(torch.ones(8, 8).triu(1) > 0, float("-inf")).softmax(-1) @ v
            self.assertLess((torch.cat(ops.wide_attention(q, k, v, 0.3), -1)[..., :n] - p).abs().max().item(), 1e-5)

    def main(self, name, *more, seconds=9, code=None, **patches):
        mine, o = self.made(name, *more, seconds=seconds)
        said = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(said))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(unittest.mock.patch.object(gpu, "options", lambda argv: (mine, o)))
            for where, value in patches.items():
                stack.enter_context(unittest.mock.patch.object(gpu.Gpu, where, value))
            began = time.time()
            if code is None:
                gpu.main()
            else:
                with self.assertRaises(SystemExit) as e:
                    gpu.main()
                self.assertEqual(e.exception.code, code)
        self.assertLess(time.time() - began, seconds + 4)
        engine(self.folder, STORIES, self.text, CTX, "f32", str(self.folder / name / "overlay.gguf"))
        return said.getvalue(), json.loads((self.folder / name / "place.json").read_text())

    def test_run(self):
        """Trials, the course, look-back texts; the place is one that train.py goes on from; the held-out KL falls."""
        said, place = self.main("run", "--look-back", str(self.back()), "--trial", "0.5", "--trials", "adamw:1e-3,muon:2e-3", "--ema", "0.9",
                                "--micros", "4,2,3")
        self.assertIn("1 of 4 look back", said)
        self.assertIn("goes on with", said)
        self.assertIn("half time", said)
        held = [float(line.split(": ")[-1]) for line in said.splitlines() if "  held out, " in line]
        self.assertLess(min(held[1:]), held[0])
        self.assertGreater(place["step"], 3)
        self.assertGreater(place["tokens"], 3 * 4 * 32)
        o = train.options(["--model", str(STORIES), "--data", str(self.data), "--run", str(self.folder / "on"), "--ctx", "32", "--device", "cpu",
                           *self.WIDE, "--place", str(self.folder / "run/place.json")])
        with contextlib.redirect_stdout(io.StringIO()):
            on = train.Run(o)
        self.assertEqual((on.step, on.tokens()), (place["step"], place["tokens"]))

    def test_not_finite(self):
        """Weights go back to the last good ones, the rate is halved, and the run ends as ever."""
        right, count = gpu.Gpu.gradients, [0]

        def wrong(g, tokens, weight, micro):
            count[0] += 1
            total = right(g, tokens, weight, micro)
            if count[0] == 12:
                g.params[0].grad.fill_(float("nan"))
            return total
        said, _ = self.main("nan", gradients=wrong)
        self.assertIn("weights as before, rate times 0.5", said)
        kept = overlay.shape(str(self.folder / "nan/overlay.gguf"))[2]
        self.assertTrue(all(np.isfinite(t.data).all() for t in kept.tensors if t.data.dtype == np.float32))

    def test_errors(self):
        """What ends a run leaves the weights that there are; where the device's can no longer be read, the host's."""
        right, count = gpu.Gpu.gradients, [0]

        def wrong(g, tokens, weight, micro):
            count[0] += 1
            if count[0] == 12:
                raise RuntimeError("CUDA error: gone")
            return right(g, tokens, weight, micro)
        said, _ = self.main("error", seconds=60, code=1, gradients=wrong)  # it ends at the error
        self.assertIn("what was there", said)
        count[0] = 0
        export = gpu.Gpu.export

        def gone(g, why, values=None):
            if values is None:
                raise RuntimeError("CUDA error: gone")
            return export(g, why, values)
        said, _ = self.main("gone", seconds=60, code=1, gradients=wrong, export=gone)
        self.assertIn("from the host's copy", said)

    def test_refused(self):
        for bad in (["--stage", "exit"], ["--share", "0.5"], ["--hidden", "1"], ["--on", "answers"]):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                self.made("bad", *bad)
