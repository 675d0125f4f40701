#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon on the CUDA backend whose device is lost in the middle of answers: the engine ends with that cause, the front
starts another, and every answer goes on without a gap. The device is emulated (tests/cuda/emu). And a module that others could
have put there: it is not opened, and the cause names the folder.

usage: test_device_lost.py libpipit-cuda-emu.so [unittest arguments]"""
import os
import shutil
import sys
import tempfile
import unittest

MODULE = sys.argv.pop(1)
FROM = os.environ.get("PIPIT_BUILD", "build")
TREE = tempfile.mkdtemp(prefix="pipit-")
os.environ["PIPIT_BUILD"] = TREE  # programs that find the module beside them, as in a build folder

from daemon import SLOW, Daemon  # noqa: E402
from lane import DONE, F_REPLAYED, prompt, text_of  # noqa: E402


def setUpModule():
    for name in ("daemon/front/pipitd", "daemon/worker/pipit-engine"):
        os.makedirs(os.path.join(TREE, os.path.dirname(name)))
        shutil.copy2(os.path.join(FROM, name), os.path.join(TREE, name))
    os.makedirs(os.path.join(TREE, "kernels/cuda"))
    shutil.copy2(MODULE, os.path.join(TREE, "kernels/cuda/libpipit-cuda.so"))


def tearDownModule():
    shutil.rmtree(TREE)


class DeviceLost(unittest.TestCase):
    N = 8

    def test_answers_go_on(self):
        lost = os.path.join(TREE, "lost")
        d = Daemon("--sequences", "2", backend="cuda", env={"EMU_LOST": lost})
        self.addCleanup(lambda: self.assertEqual(d.stop(), 0, d.text()))
        lane = d.ready()
        self.assertIn("cuda", d.text())
        texts = ["Once upon a time", "The little dog"]
        whole = [text_of(lane.events(lane.request(prompt(t, self.N)))) for t in texts]

        events = {}
        for t in texts:
            rid = lane.request(prompt(t, self.N))
            events[rid] = []
            while not events[rid]:  # accepted: the items' place in the arena is free again
                e = lane.recv()
                events[e.id].append(e)
        ids = list(events)
        while not all(e and e[-1].type == DONE for e in events.values()):
            e = lane.recv()
            events[e.id].append(e)
            if e.id == ids[0] and e.seq == 3:
                open(lost, "w").close()
        for rid, text in zip(ids, whole):
            got = events[rid]
            self.assertEqual([e.seq for e in got], list(range(1, len(got) + 1)))
            self.assertEqual(text_of(got), text)
            self.assertEqual((got[-1].reason, got[-1].n_new, got[-1].replay), ("length", self.N, 1))
            self.assertTrue(got[-1].flags & F_REPLAYED)
        self.assertFalse(os.path.exists(lost))
        self.assertEqual(lane.status().n_restarts, 1)
        self.assertRegex(d.text(), r"pipit-engine: the CUDA device \(.*\) is lost: ")
        lane.close()


class OthersModule(unittest.TestCase):
    def setUp(self):
        self.folder = os.path.join(os.path.realpath(TREE), "kernels")
        os.chmod(self.folder, 0o777)
        self.addCleanup(os.chmod, self.folder, 0o755)
        self.cause = f"{self.folder} may be written by all users (mode 0777)"

    def test_cuda_fails(self):
        d = Daemon(backend="cuda", wait=False)
        self.addCleanup(d.stop)
        self.assertEqual(d.process.wait(20 * SLOW), 2, d.text())
        self.assertIn(f'backend "cuda": {self.cause}', d.text())

    def test_auto_takes_the_cpu(self):
        d = Daemon(backend="auto")
        self.addCleanup(lambda: self.assertEqual(d.stop(), 0, d.text()))
        lane = d.ready()
        self.assertTrue(text_of(lane.events(lane.request(prompt("The little dog", 4)))))
        self.assertIn(f"backend auto: no GPU is used ({self.cause}", d.text())
        self.assertTrue(lane.status().backend.startswith(b"cpu"), lane.status().backend)
        lane.close()


if __name__ == "__main__":
    unittest.main()
