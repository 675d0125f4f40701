# SPDX-License-Identifier: Apache-2.0
"""daemon.Daemon with the command line: a pipitd in a folder of its own, `pipit` pointed at it, and the check
that nothing is left behind."""
import os
import subprocess
import time

from daemon import BUILD, SLOW, Daemon, wait_until

PIPIT = os.path.join(BUILD, "client/pipit")


def environment(**more):
    """The environment without settings of whoever runs the tests."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("PIPIT_") and k != "NO_COLOR"}, **more}


def processes_of(folder):
    """pids of processes whose command line names the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if folder.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


class CliDaemon(Daemon):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.runtime_dir = self.folder
        if kw.get("wait", True):
            rc, _, err = self.cli("wait", "--timeout", str(30 * SLOW))
            assert rc == 0, (err, self.text())

    def command(self, *args):
        return [PIPIT, args[0], "--runtime-dir", self.folder, *args[1:]]

    def cli(self, *args, stdin=b"", timeout=60, env=None):
        """(exit code, stdout, stderr as text)"""
        p = subprocess.run(self.command(*args), input=stdin, capture_output=True, timeout=timeout * SLOW,
                           env=env or environment())
        return p.returncode, p.stdout, p.stderr.decode()

    def start(self, *args, **kw):
        """The same, running."""
        kw = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw}
        return subprocess.Popen(self.command(*args), env=environment(), **kw)

    def stop(self, timeout=10.0):
        engine = self.child("pipit-engine")
        code = super().stop(timeout)
        assert not engine or wait_until(lambda: not os.path.exists(f"/proc/{engine}")), "the engine is left"
        assert wait_until(lambda: not processes_of(self.folder)), processes_of(self.folder)
        return code

    def idle(self):
        """True once no request runs or waits."""
        return wait_until(lambda: b" 0 running, 0 waiting" in self.cli("status")[1])


def finish(process, timeout=30):
    """(exit code, stdout, stderr) of a started command."""
    out, err = process.communicate(timeout=timeout * SLOW)
    return process.returncode, out, err.decode()


def read_some(process, n=1, timeout=10):
    """At least n bytes of its stdout."""
    got, end = b"", time.monotonic() + timeout * SLOW
    while len(got) < n and time.monotonic() < end:
        got += os.read(process.stdout.fileno(), 4096)
    return got
