#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model that cannot be loaded is told before anybody is told that the daemon listens: file, header, tensor table and
plan. `pipit wait` ends with the cause. A model that is good at the start and bad at a reload costs nobody the daemon."""
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from daemon import BUILD, Daemon, OTHERS, OTHERS_RUN, PIPITD, SLOW, STORIES, wait_until
from lane import DONE, ERROR, LOAD, RELOAD, STATES, UNLOAD, prompt
from harness import PIPIT, environment

LISTENING = "listening in"


def whole():
    with open(STORIES, "rb") as f:
        return f.read()


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pd-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.run = os.path.join(self.folder, "run")
        os.mkdir(self.run, 0o700)
        self.model = os.path.join(self.folder, "some-model.gguf")

    def write(self, data):
        with open(self.model, "wb") as f:
            f.write(data)

    def refused(self, code, *words, args=(), user=None, again=False):
        """The daemon ends with that code, has not said that it listens, and `pipit wait`, begun before or `again` after, ends with 6."""
        with open(os.path.join(self.folder, "log"), "w+") as log:
            waits = subprocess.Popen([PIPIT, "wait", "--runtime-dir", self.run], stderr=subprocess.PIPE, env=environment(), text=True)
            self.addCleanup(waits.kill)
            d = subprocess.run([PIPITD, "--model", self.model, "--backend", "ref", "--threads", "1", "--gateway", "no", "--runtime-dir",
                                self.run, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
                               timeout=20 * SLOW, user=user)
            log.seek(0)
            text = log.read()
        self.assertEqual(d.returncode, code, text)
        self.assertNotIn(LISTENING, text)
        lines = [line for line in text.splitlines() if all(w in line for w in words)]
        self.assertEqual(len(lines), 1, text)
        began = time.monotonic()
        err = waits.communicate(timeout=20 * SLOW)[1]
        ends = [(waits.returncode, err)]
        if again:
            late = subprocess.run([PIPIT, "wait", "--runtime-dir", self.run], capture_output=True, env=environment(), text=True,
                                  timeout=20 * SLOW)
            ends.append((late.returncode, late.stderr))
        self.assertLess(time.monotonic() - began, 25 * SLOW)  # neither waits until its patience is at an end, nor for ever
        for rc, said in ends:
            self.assertEqual(rc, 6, said)
            self.assertTrue(all(w in said for w in words), said)
            self.assertEqual(said.count("\n"), 1, said)


class Refused(Case):
    def test_missing(self):
        self.refused(6, "cannot open", "some-model.gguf", "No such file", again=True)

    def test_empty(self):
        self.write(b"")
        self.refused(6, "some-model.gguf", "empty")

    def test_truncated_in_the_header(self):
        for n in (3, 4, 20, 24, 100, 5000):
            self.write(whole()[:n])
            self.refused(6, "some-model.gguf")

    def test_truncated_in_the_data(self):
        data = whole()
        for n in (len(data) - 1, len(data) // 2):
            self.write(data[:n])
            self.refused(6, "some-model.gguf", "tensor")

    def test_folder(self):
        os.mkdir(self.model)
        self.refused(6, "some-model.gguf", "not a regular file", again=True)

    def test_unsupported_family(self):
        data = whole()
        at = data.index(b"llama", data.index(b"general.architecture"))
        self.write(data[:at] + b"lluma" + data[at + 5:])
        self.refused(6, "some-model.gguf", "lluma")

    @unittest.skipUnless(OTHERS_RUN, OTHERS)
    def test_no_permission(self):
        self.write(whole())
        os.chmod(self.model, 0)
        os.chown(self.run, 65534, -1)
        self.refused(6, "some-model.gguf", "Permission denied", user=65534)

    def test_does_not_fit(self):
        self.write(whole())
        self.refused(4, "memory", args=("--memory", "1MiB"))

    def test_bad_policy(self):
        self.write(whole())
        self.refused(2, "policy", args=("--kv", "nonsense"))


class Good(Case):
    def test_listening_is_said_once_and_the_note_is_gone(self):
        self.write(b"")
        self.refused(6, "empty")
        self.assertTrue(os.path.exists(os.path.join(self.run, "failure")))
        d = Daemon(folder=self.run)
        lane = d.ready()
        self.assertFalse(os.path.exists(os.path.join(self.run, "failure")))
        self.assertEqual(d.text().count(LISTENING), 1)
        lane.control(UNLOAD)
        lane.control(LOAD)
        self.assertEqual(list(lane.events(lane.request(prompt("Once", 3))))[-1].type, DONE)
        lane.close()
        self.assertEqual(d.stop(), 0)
        self.assertEqual(d.text().count(LISTENING), 1)

    def test_an_old_note_is_not_the_new_daemons(self):
        """A daemon that is on its way to its lock, where it removes what the last one left."""
        self.write(b"")
        self.refused(6, "empty")
        waits = subprocess.Popen([PIPIT, "wait", "--runtime-dir", self.run], stderr=subprocess.PIPE, env=environment(), text=True)
        self.addCleanup(waits.kill)
        time.sleep(1)
        self.assertIsNone(waits.poll())
        os.unlink(os.path.join(self.run, "failure"))
        d = Daemon(folder=self.run)
        self.assertEqual(waits.wait(20 * SLOW), 0, waits.stderr.read())
        self.assertEqual(d.stop(), 0)

    def test_bad_at_a_reload(self):
        """The daemon stays, says the cause to whoever asks, and takes the next good file."""
        conf = os.path.join(self.folder, "conf")
        with open(conf, "w") as f:
            f.write(f"model = {self.model}\nbackend = ref\nthreads = 1\n")
        data = whole()
        self.write(data)
        d = Daemon("--config", conf, model=None, folder=self.run)
        lane = d.ready()
        for bad in (data[:len(data) // 2], data[:20], b""):
            other = self.model + ".new"
            with open(other, "wb") as f:
                f.write(bad)
            os.rename(other, self.model)
            lane.control(RELOAD)
            self.assertTrue(wait_until(lambda: STATES[lane.status().state] == "failed"), d.text())
            e = list(lane.events(lane.request(prompt("Once", 3))))[-1]
            self.assertEqual((e.type, e.code), (ERROR, "MODEL"))
            self.assertIn("some-model.gguf", e.text)
            said = subprocess.run([PIPIT, "wait", "--runtime-dir", self.run], capture_output=True, env=environment(), text=True)
            self.assertEqual(said.returncode, 6, said.stderr)
            self.assertIn("some-model.gguf", said.stderr)
            self.assertIsNone(d.process.poll())
            self.write(data)
            lane.control(LOAD)
            lane.wait_ready(20 * SLOW)
        self.assertEqual(list(lane.events(lane.request(prompt("Once", 3))))[-1].type, DONE)
        lane.close()
        self.assertEqual(d.stop(), 0)
        self.assertEqual(d.text().count(LISTENING), 1)


if __name__ == "__main__":
    unittest.main()
