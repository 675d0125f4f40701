# SPDX-License-Identifier: Apache-2.0
"""What a run writes where the disk is full: each file is there whole, or as it was before, and what is missing is said."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import unittest

import torch

from stories import Trained, random_student
import checkpoint
import overlay
import train
import weights


@contextlib.contextmanager
def no_file_over(n):
    """Bytes. Python ignores SIGXFSZ, so that a longer file is an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class FullFile(Trained):
    def files(self):
        return {p.name: p.read_bytes() for p in self.folder.iterdir() if p.is_file()}

    def stays(self, write):
        before = self.files()
        with no_file_over(20000), self.assertRaises(OSError) as raised:
            write()
        self.assertEqual(self.files(), before)
        return str(raised.exception)

    def test_as_it_was(self):
        state, text, lines = (self.folder / n for n in ("a.pt", "a.json", "a.jsonl"))
        big = {"a": torch.zeros(9000), "b": torch.ones(9000)}
        checkpoint.save(str(state), {"a": torch.zeros(9)})
        checkpoint.save(str(state), {"a": torch.ones(9)})
        checkpoint.write_text(str(text), "short")
        checkpoint.append(lines, "x\n" * 9500)
        self.assertIn("a.pt", self.stays(lambda: checkpoint.save(str(state), big)))
        self.assertIn("a.pt", self.stays(lambda: checkpoint.write(str(state), big)))
        self.assertIn("a.json", self.stays(lambda: checkpoint.write_text(str(text), "y" * 30000)))
        self.assertIn("a.jsonl", self.stays(lambda: checkpoint.append(lines, "y" * 5000 + "\n")))

    def test_overlay_and_place(self):
        """Both or none; the weights are the run's own again whatever happens."""
        self.train("run", "--split", "2", "--group", "3", "--steps", "2", "--ema", "0.5")
        run = train.Run(self.options("run", "--split", "2", "--group", "3", "--steps", "4", "--ema", "0.5"))
        run.train_step()
        kept = {n: (self.folder / "run" / n).read_bytes() for n in ("overlay.gguf", "place.json")}
        mine = [p.detach().clone() for p in run.params]
        with no_file_over(len(kept["overlay.gguf"]) // 2), self.assertRaises(OSError):
            run.export()
        self.assertEqual({p.name for p in (self.folder / "run").iterdir()}, {"overlay.gguf", "place.json", "state.pt", "log.jsonl"})
        self.assertEqual({n: (self.folder / "run" / n).read_bytes() for n in kept}, kept)
        for a, b in zip(mine, run.params):
            self.assertTrue(torch.equal(a, b))
        run.export()
        place = json.loads((self.folder / "run/place.json").read_text())
        self.assertEqual((place["step"], place["sha256"]), (3, weights.sha256(str(self.folder / "run/overlay.gguf"))))

    def test_overlay_alone(self):
        self.stays(lambda: overlay.write(str(self.folder / "b.gguf"), random_student(self.frozen, 2, 3), "F32"))


class FullDisk(Trained):
    SIZE = 1 << 20  # five states of the student's 16,500 parameters, or the teacher's of all 78 sequences and two
    ARGS = ["--split", "2", "--group", "3", "--save-every", "1000"]

    def setUp(self):
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "tmpfs", str(self.disk)]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
            self.disk.rmdir()
            self.skipTest("no file system can be mounted: needs root")

    def tearDown(self):
        subprocess.run(["umount", "--lazy", str(self.disk)], check=True)  # States keeps its files open
        self.disk.rmdir()

    def fill_up(self):
        with open(self.disk / "ballast", "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(4096)):
                pass

    def step(self, name):
        return checkpoint.load(str(self.disk / name / "state.pt"), "cpu")["step"]

    def test_states_leave_room(self):
        """The teacher's states end where the run's own files would lack the room."""
        args = [*self.ARGS, "--states", str(self.disk / "states")]
        said = self.train("disk/fill", *args, "--steps", "1", "--fill")
        self.assertIn("--states: No space left on device", said)
        for steps in (2, 3, 4):
            self.assertNotIn("stays", self.train("disk/run", *args, "--steps", str(steps)))
        self.assertEqual(self.step("run"), 4)

    def test_nothing_is_lost(self):
        self.train("disk/run", *self.ARGS, "--steps", "2")
        kept = {p.name: p.read_bytes() for p in (self.disk / "run").iterdir() if p.name != "log.jsonl"}
        self.fill_up()
        said = self.train("disk/run", *self.ARGS, "--steps", "3", code=1)
        for name in ("state.pt", "overlay.gguf"):
            self.assertRegex(said, f"distill: [^ ]*/{name}[^ ]*: No space left on device: what was written before stays")
        self.assertIn("not all of step 3 could be written", said)
        self.assertEqual({p.name: p.read_bytes() for p in (self.disk / "run").iterdir() if p.name != "log.jsonl"}, kept)
        self.log("disk/run")  # of whole lines
        (self.disk / "ballast").unlink()
        self.assertIn("goes on at step 2", self.train("disk/run", *self.ARGS, "--steps", "3"))
        self.assertTrue((self.disk / "run/state.pt.1").exists())
        # no room for three states: the one before the last gives its own
        self.fill_up()
        self.train("disk/run", *self.ARGS, "--steps", "4", code=1)
        self.assertEqual(self.step("run"), 4)


if __name__ == "__main__":
    unittest.main()
