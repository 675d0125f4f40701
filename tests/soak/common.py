# SPDX-License-Identifier: Apache-2.0
"""What the soaks share: a pipitd that other users can reach, its children's figures, and the result.

Each soak is a command with --minutes, --seed and --json FILE (the result, to be committed below bench/results/); without
arguments it runs for some seconds, as the tests do. Run as root the clients are of several users; else of one, and the
result says so. PIPIT_BUILD is the build folder, which may be one with sanitizers."""
import argparse
import datetime
import json
import multiprocessing
import os
import platform
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import daemon  # noqa: E402
from daemon import SLOW, STORIES, wait_until  # noqa: E402,F401
import lane as lane_py  # noqa: E402

fork = multiprocessing.get_context("fork")
FIRST_UID = 61100  # and those above: nobody's, in a usual system


def arguments(what, seconds):
    p = argparse.ArgumentParser(description=what)
    p.add_argument("--minutes", type=float, default=seconds / 60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", help="where the result goes")
    p.add_argument("--model", default=STORIES)
    p.add_argument("--backend", default="cpu")
    return p


def seat(i):
    """Becomes the i-th user, where that is possible."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(FIRST_UID + i)
        os.setuid(FIRST_UID + i)


class Daemon(daemon.Daemon):
    """Its folder and sockets are open to all users of this machine while it runs."""

    def __init__(self, *args, **kw):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        super().__init__(*args, **kw)
        self.ready().close()
        self.open()

    def open(self):
        os.chmod(self.folder, 0o755)
        for name in ("lane.sock", "zmq.sock"):
            if wait_until(lambda n=name: os.path.exists(os.path.join(self.folder, n)), 2 if name == "zmq.sock" else 10):
                os.chmod(os.path.join(self.folder, name), 0o666)

    def open_again(self):
        """A gateway that was killed makes its socket anew."""
        try:
            os.chmod(os.path.join(self.folder, "zmq.sock"), 0o666)
        except FileNotFoundError:
            pass

    def has_gateway(self):
        return os.path.exists(os.path.join(self.folder, "zmq.sock"))

    def figures(self):
        """Descriptors and bytes of memory that are its own, of the front and the engine."""
        return {name: {"fds": len(os.listdir(f"/proc/{pid}/fd")), "bytes": own_bytes(pid)}
                for name, pid in (("front", self.process.pid), ("engine", self.child("pipit-engine"))) if pid}

    def at_rest(self, lane, others=1):
        s = lane.status()
        return s.n_running + s.n_queued == 0 and s.n_lanes <= others


def own_bytes(pid):
    """Anonymous memory. Shared memory is of a fixed size (journal), or given back with its lane: attacks.keep_mapped looks."""
    with open(f"/proc/{pid}/status") as f:
        return sum(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] if values else 0.0


def finish(args, result, failures):
    """Prints and writes the result; the exit code."""
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    result = {"command": "tests/soak/" + os.path.basename(sys.argv[0]) + "".join(" " + a for a in sys.argv[1:]),
              "date": datetime.date.today().isoformat(), "machine": f"{cpu}, {os.cpu_count()} CPUs",
              "sanitizers": SLOW > 1, "users": "several" if os.getuid() == 0 else "one", "seed": args.seed,
              "minutes": args.minutes, **result, "failures": failures, "passed": not failures}
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")
    return 1 if failures else 0


class Stop:
    """Tells processes when to end."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.early = fork.Event()

    def __bool__(self):
        return self.early.is_set() or time.monotonic() > self.end
