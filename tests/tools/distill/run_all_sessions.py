# SPDX-License-Identifier: Apache-2.0
"""run_all.py: sessions on machines that forget."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import signal
import types
import unittest
import unittest.mock

import gguf
import numpy as np

from stories import ROOT, STORIES, Trained
import curves
import data
import overlay
import run_all
import train


class Sessions(Trained):
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
                self.assertEqual(code, 143 if e.code == 143 else 1, e)
                print(e)
        return said.getvalue()

    def test_all_survives_a_bare_machine(self):
        """Sessions of five steps. With state.pt the curve is that of a run that never stopped; when all but models/ is
        lost in the middle, the same data come at the same steps, the loss stays down, and the tokens add up."""
        curve = lambda name: {(x["stage"], x["step"]): x for x in map(json.loads, (
            self.folder / name / "models/small.run.jsonl").read_text().splitlines())}
        self.assertIn("y (after): done, 2304 tokens seen in all", self.all_of_them("once"))
        self.assertIn("x (small): 1 of 2 stages done, the next (full, 12 steps) not begun, 512 tokens", self.all_of_them("one", "--session-stages", "1", "--only", "x"))
        said = [self.all_of_them("kept", "--session-steps", "5", "--only", "x") for _ in range(3)]
        self.assertIn("1 of 2 stages done, in the next (full) step 5 of 12, 1152 tokens", said[0])
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

    def test_all_asked_to_end(self):
        """SIGTERM: the step at hand is ended, state and models/ have it, and the next session makes the same curve."""
        step = train.Run.train_step
        def asks(run):
            if run.o.stage == "full" and run.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(run)
        curve = lambda name: [json.loads(x)["kl"] for x in
                              (self.folder / name / "models/small.run.jsonl").read_text().splitlines() if "kl" in x]
        with unittest.mock.patch.object(train.Run, "train_step", asks):
            said = self.all_of_them("asked", "--only", "x", code=143)
        self.assertIn("1 of 2 stages done, in the next (full) step 5 of 12", said)
        self.assertEqual(len(curve("asked")), 5)
        self.assertEqual(train.checkpoint.load(str(self.folder / "asked/work/x/1-full/state.pt"), "cpu")["step"], 5)
        self.all_of_them("asked", "--only", "x")
        self.all_of_them("unasked", "--only", "x")
        self.assertEqual(curve("asked"), curve("unasked"))

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

    def test_all_avoids_the_same(self):
        """The texts that were kept out of the data are known by hash, and asked for before data are made without them."""
        o = types.SimpleNamespace(work=self.folder / "avoid", models=self.folder / "avoid-models", model="m", new_data=False,
                                  avoid=[str(STORIES.with_suffix(".txt"))])
        o.models.mkdir()
        def make(command, check):
            shutil.copytree(self.data, command[command.index("--out") + 1], dirs_exist_ok=True)
        with unittest.mock.patch.object(run_all.subprocess, "run", make):
            run_all.make_data(o)
            shutil.rmtree(o.work / "data")
            run_all.make_data(o)
            shutil.rmtree(o.work / "data")
            o.avoid = []
            with self.assertRaisesRegex(SystemExit, r"these texts \(SHA-256\): stories260K.txt \([0-9a-f]{12}\). Give --avoid"):
                run_all.make_data(o)
            self.assertFalse((o.work / "data").exists())
            o.new_data = True
            run_all.make_data(o)
        self.assertEqual(json.loads((o.models / "data.manifest.json").read_text())["avoid"], [])

    def test_all_settings_fit_what_is_shipped(self):
        """Every overlay of models/ has the shape that the table of run_all.py gives its name."""
        names = {s["name"]: s["shape"] for s in run_all.SETTINGS.values()}
        shipped = sorted((ROOT / "models").glob("*.gguf"))
        self.assertTrue(shipped)
        for path in shipped:
            shape = names[path.stem]
            split, group, reader = overlay.shape(path)
            self.assertEqual([str(split), str(group)], [shape[shape.index(k) + 1] for k in ("--split", "--group")], path.stem)
            self.assertEqual(overlay.has_outputs(path, reader), "--outputs" in shape, path.stem)
            self.assertEqual(reader.fields[overlay.LONGEST].contents(), 2048, path.stem)
            dims = overlay.wide_dims(reader)
            self.assertEqual([f"{dims[0]}+{dims[1]}"] if dims else [], shape[shape.index("--wide") + 1:][:1] if "--wide" in shape else [])

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
