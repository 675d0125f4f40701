# SPDX-License-Identifier: Apache-2.0
"""Wide stores: students against the C engine, their closed forms, runs, and the teacher's states on disk."""

import argparse
import errno
import unittest.mock

import torch

from stories import CTX, HEADS_32, STORIES, Trained, engine, random_student
import data
import evaluate
import fit
import loss
import mean
import model
import overlay
import states
import weights
import wide

DIMS = (24, 40)


class WideStores(Trained):
    def random(self, split, group, dims=DIMS, cache="none", outputs=False, frozen=None):
        torch.manual_seed(5)
        s = wide.Wide(frozen or self.frozen, split, group, dims, cache, outputs)
        with torch.no_grad():
            for p in s.parameters():
                p.add_(torch.randn_like(p) * (p.std() * 0.5 if p.std() > 0 else p.shape[-1] ** -0.5))
            s.freqs.copy_(torch.rand(s.freqs.shape).square())
            s.freqs[:, -3:] = 0
        return s

    def test_against_the_engine(self):
        for split, group, kv, outputs in ((2, 3, "f32", False), (1, 3, "f32", True), (2, 1, "f32", False), (2, (1, 2), "f32", True), (2, 3, "kv8,rot=off", False), (2, 3, "fp8", False)):
            with self.subTest(split=split, group=group, kv=kv):
                s = self.random(split, group, cache="none" if kv == "f32" else kv[:3], outputs=outputs)
                path = self.folder / "wide.gguf"
                overlay.write(str(path), s, "F32")
                with torch.no_grad():
                    mine = s(self.tokens)[0, CTX // 2:CTX - 1]
                off = (mine - engine(self.folder, STORIES, self.text, CTX, kv, path)).abs()
                self.assertLess(off.max().item(), 1e-3 if kv == "f32" else 2e-2)
                other = wide.Wide(self.frozen, split, group, DIMS, outputs=outputs)
                overlay.load(str(path), other)
                for (name, a), b in zip(s.state_dict().items(), other.state_dict().values()):
                    self.assertTrue(torch.equal(a, b), name)

    def test_four_bits(self):
        """The fast backend reads stores in four bits as the reference does, and both are near what is not rounded."""
        frozen = model.Frozen(weights.read(HEADS_32), torch.device("cpu"), torch.float32)
        path = self.folder / "wide.gguf"
        overlay.write(str(path), self.random(1, 2, (64, 96), outputs=True, frozen=frozen), "F32")
        whole = engine(self.folder, HEADS_32, self.text, CTX, "f32", path)
        for kv in ("kv4", "k8v4", "kv4,shared=kv8"):
            ref, cpu = (engine(self.folder, HEADS_32, self.text, CTX, kv, path, backend) for backend in ("ref", "cpu"))
            self.assertLess((ref - cpu).abs().mean().item(), 0.05 * whole.std(), kv)
            self.assertLess((ref - whole).abs().mean().item(), 0.1 * whole.std(), kv)

    def test_loading_another_size(self):
        path = self.folder / "wide.gguf"
        overlay.write(str(path), self.random(2, 3), "F32")
        with self.assertRaisesRegex(SystemExit, r"stores of \(24, 40\) dims"):
            overlay.load(str(path), wide.Wide(self.frozen, 2, 3, (26, 40)))
        with self.assertRaisesRegex(SystemExit, r"stores of \(24, 40\) dims"):
            overlay.load(str(path), model.Student(self.frozen, 2, 3))
        overlay.write(str(path), self.random(2, (1, 2)), "F32")
        for group, said in ((3, "3 are no parts"), ((2, 1), r"\(1, 2\) layers; \(2, 1\) are no parts")):
            with self.assertRaisesRegex(SystemExit, said):
                overlay.load(str(path), wide.Wide(self.frozen, 2, group, DIMS))
        for group in ((2, 2), (0, 3), (3, 1, -1)):
            with self.assertRaisesRegex(SystemExit, "not sizes whose sum is 3"):
                wide.Wide(self.frozen, 2, group, DIMS)

    def test_parts_of_a_group(self):
        """Smaller groups begin with the store of the one that they are parts of, and say what it said."""
        for kind in (lambda group: self.random(2, group), lambda group: random_student(self.frozen, 2, group, outputs=True)):
            one, parts, path = kind(3), kind((1, 2)), self.folder / "one.gguf"
            overlay.write(str(path), one, "F32")
            overlay.load(str(path), parts)
            with torch.no_grad():
                self.assertTrue(torch.equal(one(self.tokens), parts(self.tokens)))
            overlay.write(str(self.folder / "parts.gguf"), parts, "F32")
            said = [engine(self.folder, STORIES, self.text, CTX, "f32", self.folder / n) for n in ("one.gguf", "parts.gguf")]
            self.assertTrue(torch.equal(*said))

    def test_mean(self):
        """Every weight lies where --share says; other shapes and other frequencies are refused. The earlier one's groups may be
        larger."""
        paths = [str(self.folder / f"{n}.gguf") for n in ("earlier", "later", "mean")]
        both = [self.random(2, 3), self.random(2, 3)]
        with torch.no_grad():
            for p in both[1].parameters():
                p.add_(1)
        for s, path in zip(both, paths):
            overlay.write(path, s, "F32", notes={"pipit.distill.tokens": 7 if s is both[1] else 5})
        args = ["--model", str(STORIES), "--overlay", *paths[:2], "--quant", "F32", "--out", paths[2], "--share"]
        mean.main([*args, "0.25"])
        found = wide.Wide(self.frozen, 2, 3, DIMS)
        overlay.load(paths[2], found)
        for (name, p), first in zip(found.named_parameters(), both[0].parameters()):
            self.assertLess((p - first - 0.25).abs().max().item(), 1e-5, name)
        self.assertEqual(int(overlay.shape(paths[2])[2].fields["pipit.distill.tokens"].contents()), 7)
        self.assertIsNone(found.longest)
        both[0].longest, both[1].longest = 96, 32
        for s, path in zip(both, paths):
            overlay.write(path, s, "F32", notes={"pipit.distill.tokens": 7})
        mean.main([*args, "0.25"])
        overlay.load(paths[2], found)
        self.assertEqual(found.longest, 96)
        both[1].freqs.add_(0.5)
        overlay.write(paths[1], both[1], "F32")
        with self.assertRaisesRegex(SystemExit, "differs in freqs"):
            mean.main([*args, "0.25"])
        parts = self.random(2, (1, 2))
        overlay.load(paths[0], parts)
        with torch.no_grad():
            parts.k[1].add_(1)
        overlay.write(paths[1], parts, "F32")
        mean.main([*args, "0.25"])
        overlay.load(paths[2], parts)
        self.assertLess((parts.k[0] - both[0].k[0]).abs().max().item(), 1e-5)
        self.assertLess((parts.k[1] - both[0].k[0] - 0.25).abs().max().item(), 1e-5)
        for first, other, said in ((parts, self.random(2, 3), "are no parts"), (both[0], self.random(2, 3, (26, 40)), "stores of"),
                                   (both[0], self.random(2, 3, outputs=True), "has outputs of its own")):
            for s, path in zip((first, other), paths):
                overlay.write(path, s, "F32")
            with self.assertRaisesRegex(SystemExit, said):
                mean.main([*args, "0.25"])
        with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
            mean.main([*args, "2"])

    def test_evaluated(self):
        """Averaged projections make no untrained wide store; of narrow ones they do."""
        wide_path, narrow = str(self.folder / "wide.gguf"), str(self.folder / "narrow.gguf")
        overlay.write(wide_path, self.random(2, 3), "F32")
        overlay.write(narrow, model.Student(self.frozen, 2, 3), "F32")
        o = argparse.Namespace(overlay=[f"w={wide_path}", f"n={narrow}"], skip_untrained=False)
        self.assertEqual(list(evaluate.students(o, self.frozen)), ["w", "untrained", "n"])

    def test_rows_are_those_of_all(self):
        s, at = self.random(2, 3), torch.tensor([1, 5, 30, 62])
        with torch.no_grad():
            x = self.frozen.shallow(self.tokens, 2)
            self.assertLess((s.outcome(x)[0][:, at] - s.outcome(x, None, at)[0]).abs().max().item(), 1e-4)

    def test_closed_form(self):
        """With dims for all that the split's state can say, the student is the one without sharing; with as many as three narrow
        heads have, it is nearer the teacher than these, and what it explains falls with its size."""
        shards = data.Shards(self.data, 32, 1)
        kl = {}
        for name, dims in (("all", (256, 64)), ("same", (32, 32)), ("half", (16, 16))):
            f = wide.WideFit(wide.Wide(self.frozen, 2, 3, dims), shards, 40)
            with unittest.mock.patch.object(wide, "NEAR", 1e9):  # every frequency rotates
                f.apply()
            kl[name] = f.kl(8)

        def narrow(group):
            s = model.Student(self.frozen, 2, group)
            fit.Fit(s, shards, 40).apply()
            with unittest.mock.patch.object(f, "student", s):
                return wide.WideFit.kl(f, 8)
        self.assertAlmostEqual(kl["all"], narrow(1), delta=0.02 * narrow(1))
        self.assertLess(kl["same"], narrow(3))
        self.assertLess(kl["all"], kl["same"])
        self.assertLess(kl["same"], kl["half"])

    def test_runs(self):
        """The division is searched, the run learns and goes on, and its overlay is served."""
        args = ["--split", "2", "--group", "3", "--wide", "64", "--start", "fit", "--fit-sequences", "20", "--min-lr", "1", "--quant", "F32"]
        said = self.train("w", *args, "--steps", "4")
        self.assertIn("distill: K of ", said)
        self.train("w", *args, "--steps", "12")
        lines = self.log("w")
        self.assertEqual(len(lines), 12)
        self.assertLess(lines[-1]["kl"], lines[0]["kl"])
        engine(self.folder, STORIES, self.text, CTX, "kv8", str(self.folder / "w/overlay.gguf"))
        self.train("again", *args, "--steps", "1", "--resume-from", str(self.folder / "w/overlay.gguf"))
        s = wide.Wide(self.frozen, 2, 3, overlay.wide_dims(overlay.shape(self.folder / "again/overlay.gguf")[2]))
        overlay.load(self.folder / "again/overlay.gguf", s)
        self.assertEqual(s.longest, 32)
        with unittest.mock.patch.object(overlay, "LONGEST", "unknown"):  # of an overlay that does not say it
            overlay.write(str(self.folder / "older.gguf"), s, "F32")
        self.train("older", *args, "--steps", "1", "--resume-from", str(self.folder / "older.gguf"))
        overlay.load(self.folder / "older/overlay.gguf", s)
        self.assertIsNone(s.longest)
        self.train("uneven", "--split", "2", "--group", "1,2", *args[4:], "--steps", "2")
        engine(self.folder, STORIES, self.text, CTX, "kv8", str(self.folder / "uneven/overlay.gguf"))
        narrow = ["--split", "2", "--group", "3", "--steps", "13"]
        self.assertIn("is of wide stores", self.train("w", *narrow, code=1))

    def test_states(self):
        """Losses from the disk are those that the teacher's states made, in later epochs too; those of another base or data are
        refused, and a full disk ends the writing only."""
        args = ["--split", "2", "--group", "3", "--wide", "64+64", "--start", "fit", "--fit-sequences", "20", "--min-lr", "1",
                "--quant", "F32", "--states", str(self.folder / "states"), "--steps", "3"]
        self.train("s1", *args)
        with unittest.mock.patch.object(states.States, "write", side_effect=AssertionError("made again")):
            self.train("s2", *args)
        self.assertEqual([line["kl"] for line in self.log("s1")], [line["kl"] for line in self.log("s2")])
        shards = data.Shards(self.data, 32, 1, fixed=True)
        count = len(shards._places(0))
        kept = states.States(self.folder / "states", self.w.sha256, shards, 2, 64)
        self.assertEqual(sorted(shards._places(0)), sorted(shards._places(1)))
        self.assertEqual({kept.number(n) for n in range(count)}, {kept.number(n) for n in range(count, 2 * count)})
        tokens, _ = shards.batch(1, 1, self.frozen.device)
        x, last = kept.get(self.frozen, tokens[:, :-1], 1)
        self.assertLess((x - self.frozen.shallow(tokens[:, :-1], 2)).abs().max().item(), 0.05)
        self.assertEqual(last.shape, (1, 32, 64))
        for sha, split in (("0" * 64, 2), (self.w.sha256, 3)):
            with self.assertRaisesRegex(SystemExit, "states of another (base|split)"):
                states.States(self.folder / "states", sha, shards, split, 64)
        fresh = states.States(self.folder / "full", self.w.sha256, shards, 2, 64)
        with unittest.mock.patch.object(states.os, "pwrite", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            a = fresh.get(self.frozen, tokens[:, :-1], 1)
        self.assertTrue(fresh.full)
        self.assertTrue(torch.equal(a[0], fresh.get(self.frozen, tokens[:, :-1], 1)[0]))
        with unittest.mock.patch.object(states.os, "pwrite", side_effect=OSError(errno.ENOSPC, "No space left on device")), \
                unittest.mock.patch.object(states.States, "get", autospec=True, side_effect=states.States.get) as got:
            said = self.train("s3", *args[:-4], "--states", str(self.folder / "filled"), "--steps", "3", "--fill")
        self.assertIn("the states of 0 sequences are kept", said)
        self.assertEqual(got.call_count, 1, "what cannot be kept is not computed")
        self.assertLess(loss.relative([a[0]], [x]).item(), 1e-4)
