# SPDX-License-Identifier: Apache-2.0
"""Starts and watches a pipitd for tests. PIPIT_BUILD is the build folder; PIPIT_SLOW (default 1)
stretches every time limit (sanitizers)."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import lane

BUILD = os.environ.get("PIPIT_BUILD", "build")
SLOW = float(os.environ.get("PIPIT_SLOW", "1"))
PIPITD = os.path.join(BUILD, "daemon/front/pipitd")
HOOKED = os.path.join(BUILD, "tests/e2e/pipitd")  # the same, beside an engine that obeys lane.order()
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data")
STORIES = os.path.join(DATA, "stories260K.gguf")


def others_enter(folder):
    """May every user? A clone in a folder of mktemp -d is one's own."""
    path = os.path.realpath(folder)
    while os.stat(path).st_mode & 1:
        if path == "/":
            return True
        path = os.path.dirname(path)
    return False


OTHERS_RUN = os.geteuid() == 0 and others_enter(BUILD)  # programs of the build, as another user
OTHERS = "another user needs root, and a build folder that others may enter"


def wait_until(what, timeout=10.0, step=0.005):
    end = time.monotonic() + timeout * SLOW
    while True:
        value = what()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)


class Daemon:
    def __init__(self, *args, model=STORIES, backend="ref", gateway="no", folder=None, wait=True, env=None, hooks=False, prefix=()):
        self.own_folder = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="pd-")
        self.last_text = ""
        self.log_path = os.path.join(self.folder, "log")
        self.log = open(self.log_path, "ab")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}
        if os.geteuid() and "PIPIT_DEBUGGER" not in (env or {}):
            clean["PIPIT_DEBUGGER"] = "yes"  # or /proc shows nobody but root their files and memory
        self.began = time.monotonic()
        made = ["--model", model, "--backend", backend, "--threads", "1"] if model else []  # None: the arguments say it
        self.process = subprocess.Popen(
            [*prefix, HOOKED if hooks else PIPITD, *made, "--gateway", gateway, "--runtime-dir", self.folder, *args], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**clean, **(env or {})})
        if wait:
            self.lane().close()

    def lane(self, **kw):
        """A new connection; waits for the socket. The daemon must be there within 10 s."""
        end = time.monotonic() + 10 * SLOW
        while True:
            try:
                return lane.Lane(self.folder, timeout=20 * SLOW, **kw)
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.001)

    def ready(self, **kw):
        """A connection made when the model was there: its hello knows the context."""
        first = self.lane()
        first.wait_ready(20 * SLOW)
        first.close()
        return self.lane(**kw)

    def rest_engine(self, seconds=1.2):
        """The engine says its state once a second; a fast one has ended what it was asked before. After a rest its next step says it."""
        pid = self.child("pipit-engine")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def child(self, name):
        """pid of the child of that name, or None."""
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
                pids = f.read().split()
            for pid in pids:
                with open(f"/proc/{pid}/comm") as f:
                    if f.read().strip() == name[:15]:
                        return int(pid)
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile, before its file was opened, or was read
            pass
        return None

    def text(self):
        if not os.path.exists(self.log_path):
            return self.last_text
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def stop(self, timeout=10.0):
        """SIGTERM; its exit code. Harmless when it has been stopped already."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.log.close()
        self.last_text = self.text()
        if any(word in self.last_text for word in ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:")):
            sys.stderr.write(self.last_text)
            raise AssertionError("a sanitizer complained")
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return code
