# SPDX-License-Identifier: Apache-2.0
"""Runs of train.py: they learn, resume, stop where they must and refuse what they should."""

import json
import re
import subprocess
import unittest
import unittest.mock

import gguf
import numpy as np
import torch

from stories import CTX, PIPIT_EVAL, ROOT, STORIES, Trained, engine, ids, random_student
import loss
import overlay
import train


class Training(Trained):
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

    def test_rows_drawn(self):
        """--share: the loss is the mean over the positions drawn, other ones at each step, of what all positions have."""
        o = self.options("rows", "--ctx", "64", "--batch", "2", "--split", "2", "--group", "3", "--steps", "9", "--share", "0.5",
                         "--hidden", "1")
        run = train.Run(o)
        tokens, mask = run.data.batch(0, 2, run.device)
        drawn = []
        for run.sequences in (0, 2):
            at = run.rows(64)
            self.assertEqual(at.tolist(), sorted(set(at.tolist())))
            self.assertEqual(len(at), 32)
            drawn.append(at.tolist())
            with torch.no_grad():
                got = run.losses(tokens, mask)[1]
                x = run.frozen.shallow(tokens[:, :-1], 2)
                states, teacher = run.student.run(x), run.frozen.states(x, 2, run.frozen.w.n_layers)
                p, q = (torch.log_softmax(run.frozen.logits(h[-1])[:, at] / o.temperature, -1) for h in (teacher, states))
                kl = o.temperature ** 2 * (p.exp() * (p - q)).sum(-1).mean().item()
                hidden = loss.relative([h[:, at] for h in states[1:]], [h[:, at] for h in teacher[1:]]).item()
            self.assertAlmostEqual(got["kl"], kl, places=4)
            self.assertAlmostEqual(got["hidden"], hidden, places=5)
        self.assertNotEqual(*drawn)
        for s, share, n in ((2048, 0.25, 512), (512, 0.3, 160), (512, 0.01, 32), (100, 0.9, 90), (64, 0.99, 64)):
            run.o.share = share
            self.assertEqual(run.n_rows(s), n)

    def test_rows_resume(self):
        """And the curve is that of a run that never stopped."""
        common = ["--split", "2", "--ctx", "64", "--min-lr", "1", "--share", "0.5"]
        self.train("rows whole", *common, "--steps", "6")
        self.train("rows parts", *common, "--steps", "2")
        self.train("rows parts", *common, "--steps", "6")
        self.assertEqual(*([line["kl"] for line in self.log(n)] for n in ("rows whole", "rows parts")))

    def test_no_answer(self):
        """--on answers: a micro-batch that has none asks for nothing but the hidden-state term."""
        for i, args in enumerate((["--hidden", "1"], ["--loss", "lm"], ["--stage", "exit", "--exit-words", "9"])):
            run = train.Run(self.options(f"none{i}", "--ctx", "64", "--split", "2", "--steps", "9", "--on", "answers", *args))
            tokens, mask = run.data.batch(0, 2, run.device)
            total, parts = run.losses(tokens, torch.zeros_like(mask))
            total.backward()
            self.assertEqual(parts.pop(args[1] if args[1] in ("lm", "exit") else "kl"), 0)
            self.assertAlmostEqual(total.item(), parts.get("hidden", 0), places=5)

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
        refused("has split 2; asked for 1", "--split", "1", "--group", "3", "--steps", "1", "--resume-from", str(path))
        overlay.write(str(path), random_student(self.frozen, 2, 3, outputs=True), "F32")
        refused("give --outputs", "--split", "2", "--group", "3", "--steps", "1", "--resume-from", str(path))
        rows = overlay.rows
        with unittest.mock.patch.object(overlay, "rows", lambda s: {k: a for k, a in rows(s).items() if k != "blk.3." + overlay.OUTPUT}):
            overlay.write(str(path), random_student(self.frozen, 2, 3, outputs=True), "F32")
        refused("no blk.3.attn_output", "--split", "2", "--group", "3", "--steps", "1", "--outputs", "--resume-from", str(path))
        self.assertTrue(re.fullmatch("[0-9a-f]{64}", gguf.GGUFReader(path).fields["pipit.overlay.base_sha256"].contents()))
