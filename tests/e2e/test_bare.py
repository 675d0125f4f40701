#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit and pipitd as cron, sudo and worse start them: an environment of nothing or of somebody else, no terminal, / as
the working directory, streams that are closed. Run as root the users are others, and one of them is let in by a group only;
else all is done as whoever runs it."""
import glob
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from daemon import BUILD, SLOW, STORIES, wait_until

ROOT = os.getuid() == 0
UID, OTHER, GROUP = (61140, 61141, 61142) if ROOT else (os.getuid(),) * 3
CRON = {"HOME": "/nonexistent", "LOGNAME": "someone", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
ASK = ("ask", "--raw", "--temp", "0", "-n", "5", "Once")
SAID = b" upon a time, there\n"


class Bare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="pb-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        os.chmod(cls.folder, 0o755)
        for path in ("daemon/front/pipitd", "daemon/worker/pipit-engine", "client/pipit"):
            shutil.copy(os.path.join(BUILD, path), cls.folder)
        for path in glob.glob(os.path.join(BUILD, "client/libpipit.so.?")):
            shutil.copy(path, cls.folder)
        shutil.copy(STORIES, os.path.join(cls.folder, "model.gguf"))
        os.chmod(os.path.join(cls.folder, "model.gguf"), 0o644)
        cls.instance = f"bare-{os.getpid()}"

    def popen(self, argv, env=CRON, uid=UID, groups=(), **kw):
        if ROOT:
            kw = {"user": uid, "group": uid, "extra_groups": list(groups), **kw}
        sanitizers = {k: v for k, v in os.environ.items() if "SAN_OPTIONS" in k}
        return subprocess.Popen([os.path.join(self.folder, argv[0]), *argv[1:]], cwd="/", stdin=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, stdout=subprocess.PIPE, env={"LD_LIBRARY_PATH": self.folder, **sanitizers, **env}, **kw)

    def daemon(self, *args, **kw):
        d = self.popen(["pipitd", "--model", os.path.join(self.folder, "model.gguf"), "--gateway", "no", "--backend", "ref", "--threads", "1",
                        *(args or ("--instance", self.instance))], **kw)

        def stop():
            d.send_signal(signal.SIGTERM)
            err = d.communicate(timeout=20 * SLOW)[1].decode()
            self.assertEqual(d.returncode, 0, err)
        self.addCleanup(stop)
        return d

    def pipit(self, *args, **kw):
        """Exit code, stdout, stderr."""
        p = self.popen(["pipit", *args], **kw)
        try:
            out, err = p.communicate(timeout=30 * SLOW)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            self.fail(f"{args} does not end")
        return p.returncode, out, err.decode()

    def waits(self, *args, **kw):
        self.assertEqual(self.pipit("wait", "--timeout", str(20 * SLOW), *args, **kw)[0], 0)

    def test_a_users_own_daemon_needs_nothing_of_the_environment(self):
        self.daemon(env={})
        name = ("--instance", self.instance)
        self.assertTrue(wait_until(lambda: self.pipit("status", *name)[0] == 0))
        self.waits(*name)
        for env in ({}, CRON, {"XDG_RUNTIME_DIR": "/run/user/12345", "HOME": "/root", "SUDO_UID": "0", "USER": "root"}):
            self.assertEqual(self.pipit(*ASK, *name, env=env), (0, SAID, ""))
        self.assertEqual(self.pipit(*ASK, env={"PIPIT_INSTANCE": self.instance}), (0, SAID, ""))
        rc, out, err = self.pipit("ask", "--raw", "--session", "s", "-n", "2", *name, "Once")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("--state-dir", err)  # it has no HOME: it says what to give
        if ROOT:  # as another user, or as root through sudo: not found by the name, and said where it was looked for
            for uid in (OTHER, 0):
                rc, out, err = self.pipit(*ASK, *name, uid=uid)
                self.assertEqual((rc, out), (3, b""))
                for place in (f"/run/user/{uid}/pipit/{self.instance}", f"/run/pipit/{self.instance}", f"/tmp/pipit-{uid}/{self.instance}"):
                    self.assertIn(place, err)
            place = next(p for p in (f"/run/user/{UID}/pipit", f"/tmp/pipit-{UID}") if os.path.exists(os.path.join(p, self.instance)))
            self.assertEqual(self.pipit(*ASK, "--runtime-dir", os.path.join(place, self.instance), uid=0), (0, SAID, ""))

    @unittest.skipUnless(ROOT, "needs root, for another user and /run/pipit")
    def test_the_machines_daemon_lets_a_group_in(self):
        """cron and sudo give a job the groups of its user as /etc/group has them."""
        folder = os.path.join("/run/pipit", self.instance)
        made = not os.path.exists("/run/pipit")
        os.makedirs(folder)
        self.addCleanup(lambda: made and os.rmdir("/run/pipit"))
        self.addCleanup(shutil.rmtree, folder)
        os.chown(folder, UID, GROUP)
        os.chmod(folder, 0o750)
        self.daemon("--runtime-dir", folder)
        lane = os.path.join(folder, "lane.sock")
        self.assertTrue(wait_until(lambda: os.path.exists(lane)))
        os.chown(lane, UID, GROUP)
        os.chmod(lane, 0o660)
        name = ("--instance", self.instance)
        self.waits(*name)
        self.assertEqual(self.pipit(*ASK, *name, uid=OTHER, groups=[GROUP]), (0, SAID, ""))
        rc, out, err = self.pipit(*ASK, *name, uid=OTHER)
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("this user may not open it", err)
        self.assertEqual(self.pipit(*ASK, *name, uid=0), (0, SAID, ""))  # sudo pipit

    def closed(self, which, *args):
        """With those streams closed, as `<&-` does."""
        def close():
            for fd in which:
                os.close(fd)
        return self.pipit(*args, preexec_fn=close)

    def test_closed_streams(self):
        """Else its first descriptors would be those of the streams, and it would print into the daemon's socket."""
        self.daemon(preexec_fn=lambda: [os.close(fd) for fd in (0, 1)])
        name = ("--instance", self.instance)
        self.assertTrue(wait_until(lambda: self.pipit("status", *name)[0] == 0))
        self.waits(*name)
        self.assertEqual(self.closed([0], *ASK, *name), (0, SAID, ""))
        self.assertEqual(self.closed([2], *ASK, *name)[:2], (0, SAID))
        rc, _, err = self.closed([0], "ask", "--raw", *name, "-")
        self.assertEqual((rc, err), (2, "pipit: cannot read stdin: Bad file descriptor\n"))
        rc, _, err = self.closed([1], *ASK, *name)
        self.assertEqual(rc, 8, err)
        self.assertIn("Bad file descriptor", err)
        self.assertEqual(self.closed([0, 1, 2], *ASK, *name)[0], 8)
        self.assertEqual(self.pipit(*ASK, *name), (0, SAID, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
