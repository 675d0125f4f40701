#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the pipit command says when a user goes wrong: nobody there, another user's socket, a session that is full, a daemon that
ends during an answer, an instance beside an environment variable.

usage: test_cli_mistakes.py PATH_OF_pipit [unittest arguments]"""
import glob
import os
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import unittest

import test_cli_fake
from test_cli_fake import Base, environment
from fake_lane import LaneFront


class Wait(Base):
    def wait(self, *more, folder):
        p = subprocess.run([test_cli_fake.PIPIT, "wait", "--runtime-dir", folder, *more], capture_output=True, timeout=20,
                           env=environment())
        return p.returncode, p.stderr.decode()

    def test_nobody_there_is_no_reason_to_wait_for_ever(self):
        rc, err = self.wait("--patience", "0.3", folder="/nonexistent")
        self.assertEqual(rc, 3)
        self.assertIn("/nonexistent/lane.sock", err)

    def test_it_says_what_it_waits_for(self):
        rc, err = self.wait("--timeout", "2.3", folder="/nonexistent")
        self.assertEqual(rc, 7)
        self.assertIn("waiting: no pipitd answers; tried /nonexistent/lane.sock", err)

    def test_a_model_that_loads_slowly_is_waited_for(self):
        self.front.state = "loading"
        p = self.start("wait", "--patience", "0.1")
        self.assertIsNone(self.ended(p, 0.5))
        self.front.state = "ready"
        self.assertEqual(p.wait(5), 0)

    @staticmethod
    def ended(p, seconds):
        try:
            return p.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Limit(Base):
    def limit_of(self, *args, env=None, stdin=b""):
        rc, out, err = self.cli(*args, env=env, stdin=stdin)
        self.assertEqual(rc, 0, err)
        return eval(out.splitlines()[-1])[8]

    def test_a_conversation_has_a_limit_unless_told(self):
        self.assertEqual(self.limit_of("chat", stdin=b"settings\n"), 1024)
        self.assertEqual(self.limit_of("chat", "-n", "0", stdin=b"settings\n"), 0)
        self.assertEqual(self.limit_of("chat", "-n", "9", stdin=b"settings\n"), 9)
        self.assertEqual(self.limit_of("chat", stdin=b"settings\n", env=environment(PIPIT_MAX_TOKENS="7")), 7)
        self.assertEqual(self.limit_of("ask", "--session", "trip", "settings"), 1024)
        self.assertEqual(self.limit_of("ask", "settings"), 0)

    def test_an_answer_that_it_cut_is_told(self):
        rc, out, err = self.cli("chat", stdin=b"reason 2\n")
        self.assertEqual((rc, out), (0, b"some\n"))
        self.assertEqual(err, "pipit: the answer was ended after 1 token; -n sets another limit\n")
        self.assertEqual(self.cli("chat", "-n", "1", stdin=b"reason 2\n"), (0, b"some\n", ""))


class FullSession(Base):
    def test_the_remedy_is_the_sessions(self):
        for args in (("ask", "--session", "notes", "error overflow"), ("chat", "--session", "notes")):
            rc, _, err = self.cli(*args, stdin=b"error overflow\n" if args[0] == "chat" else b"")
            self.assertEqual(rc, 5)
            self.assertIn("pipit session rm notes", err)
            self.assertNotIn("--ctx", err)
        rc, _, err = self.cli("ask", "error overflow")
        self.assertNotIn("session", err)
        self.assertIn("--ctx", err)

    def test_clear_does_not_promise_a_new_conversation(self):
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(test_cli_fake.PIPIT, self.args("chat", "--session", "notes"), environment(TERM="xterm"))
        self.addCleanup(os.close, fd)
        os.write(fd, b"error overflow\n/clear\n/help\n/quit\n")
        got = b""
        while select.select([fd], [], [], 5)[0]:
            try:
                got += os.read(fd, 4096)
            except OSError:
                break
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertIn(b"pipit session rm notes", got)
        self.assertNotIn(b"/clear begins", got)
        self.assertNotIn(b"/clear forgets", got)


class Lost(Base):
    def test_an_answer_that_its_daemon_cut_is_incomplete(self):
        rc, out, err = self.cli("ask", "forget 2")
        self.assertEqual((rc, out), (8, b"0 1 \n"))
        self.assertIn("the answer is incomplete", err)
        self.assertIn("pipit doctor", err)


class Instance(Base):
    def setUp(self):
        super().setUp()
        self.other = tempfile.mkdtemp(prefix="pc-")
        self.addCleanup(shutil.rmtree, self.other)

    def status(self, *args, **env):
        p = subprocess.run([test_cli_fake.PIPIT, "status", *args], capture_output=True, timeout=20, env=environment(**env))
        return p.returncode, p.stderr.decode()

    def test_what_is_given_goes_before_the_environment(self):
        self.assertEqual(self.status(PIPIT_RUNTIME_DIR=self.folder)[0], 0)
        rc, err = self.status("--instance", "nobody", PIPIT_RUNTIME_DIR=self.folder)
        self.assertEqual(rc, 3)
        self.assertIn("/run/pipit/nobody/lane.sock", err)
        self.assertEqual(self.status("--runtime-dir", self.folder, "--instance", "nobody")[0], 0)

    def test_an_instance_in_the_environment(self):
        rc, err = self.status(PIPIT_INSTANCE="nobody")
        self.assertEqual(rc, 3)
        self.assertIn("/run/pipit/nobody/lane.sock", err)
        self.assertEqual(self.status(PIPIT_INSTANCE="nobody", PIPIT_RUNTIME_DIR=self.folder)[0], 0)


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
class Closed(unittest.TestCase):
    def setUp(self):
        """The build folder may be closed to the user 'nobody'."""
        open_folder = tempfile.mkdtemp(prefix="pc-")
        self.addCleanup(shutil.rmtree, open_folder)
        os.chmod(open_folder, 0o755)
        for path in (test_cli_fake.PIPIT, *glob.glob(os.path.join(os.path.dirname(test_cli_fake.PIPIT), "libpipit.so*"))):
            if os.path.isfile(path):
                shutil.copy(path, open_folder)
        self.program = os.path.join(open_folder, "pipit")

    def doctor(self, folder_mode, socket_mode, gid):
        folder = tempfile.mkdtemp(prefix="pc-")
        self.addCleanup(shutil.rmtree, folder)
        front = LaneFront(folder)
        self.addCleanup(front.stop)
        os.chmod(folder, folder_mode)
        os.chmod(front.path, socket_mode)
        os.chown(front.path, 0, gid)
        os.chown(folder, 0, gid)
        p = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", self.program, "doctor",
                            "--runtime-dir", folder], capture_output=True, text=True,
                           env=environment(LD_LIBRARY_PATH=os.path.dirname(self.program)))
        self.assertEqual((p.returncode, p.stderr), (3, ""))
        return p.stdout

    def test_the_remedy_names_the_group(self):
        self.assertIn("ask root: adduser nobody daemon; then log in again", self.doctor(0o755, 0o660, 1))
        self.assertIn("ask root: adduser nobody daemon; then log in again", self.doctor(0o750, 0o660, 1))

    def test_a_socket_of_one_user_alone(self):
        out = self.doctor(0o755, 0o600, 0)
        self.assertIn("only its owner (uid 0) may", out)
        self.assertNotIn("pipitd --model", out)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        test_cli_fake.PIPIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
