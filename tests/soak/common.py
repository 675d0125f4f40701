# SPDX-License-Identifier: Apache-2.0
"""What the soaks share: a pipitd that other users can reach, its children's figures, and the result.

Each soak is a command with --minutes, --seed and --json FILE (the result, to be committed below bench/results/); without
arguments it runs for some seconds, as the tests do. Run as root the clients are of several users; else of one, and the
result says so. PIPIT_BUILD is the build folder, which may be one with sanitizers.

On a machine of few cores the clients' own Python would take the cores that the engine needs, and what is measured were the
kernel's time slices (docs/design/service.md). So who is not measured is humble(): nice, as what stands for other machines' work."""
import argparse
import datetime
import json
import multiprocessing
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
import daemon  # noqa: E402
from daemon import BUILD, SLOW, STORIES, wait_until  # noqa: E402,F401
import lane as lane_py  # noqa: E402

fork = multiprocessing.get_context("fork")
FIRST_UID = 61100  # and those above: nobody's, in a usual system
TEXT_COST = 90  # bytes a byte of text, as the plan counts them
NICE = 10  # of clients that are not measured


def arguments(what, seconds):
    p = argparse.ArgumentParser(description=what)
    p.add_argument("--minutes", type=float, default=seconds / 60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", help="where the result goes")
    p.add_argument("--model", default=STORIES)
    p.add_argument("--backend", default="cpu")
    return p


def pin(i):
    """Becomes the i-th user, where that is possible."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(FIRST_UID + i)
        os.setuid(FIRST_UID + i)


def humble(by=NICE):
    os.nice(by)


def meson_info(name):
    """What meson says of the build folder, of introspection file `name`; {} or [] where there is none."""
    try:
        with open(os.path.join(BUILD, "meson-info", name)) as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


SANITIZERS = next((o["value"] for o in meson_info("intro-buildoptions.json") if o["name"] == "b_sanitize"), "unknown")


LIVE_HEAP = os.path.abspath(os.path.join(BUILD, "tests/soak/live_heap.so"))


def commit():
    """Of the source that the build folder is made from, "+" when it is not as committed."""
    source = meson_info("meson-info.json").get("directories", {}).get("source", ".")

    def git(*args):
        return subprocess.run(["git", "-C", source, *args], capture_output=True, text=True, check=True).stdout.strip()
    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Daemon(daemon.Daemon):
    """Its folder and sockets are open to all users of this machine while it runs. Under AddressSanitizer its processes tell
    what of their heap is in use (live_heap.c); what was freed is kept for finding uses of it, and counts as in use: 1 MB."""

    def __init__(self, *args, **kw):
        if "address" in SANITIZERS:
            options = [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64"]
            kw["env"] = {**kw.get("env", {}), "ASAN_OPTIONS": ":".join(o for o in options if o), "LD_PRELOAD": LIVE_HEAP}
        self.state = tempfile.mkdtemp(prefix="ps-")
        args = (*args, *(() if "--state-dir" in args else ("--state-dir", self.state)))
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

    def stop(self, timeout=10.0):
        try:
            return super().stop(timeout)
        finally:
            shutil.rmtree(self.state, ignore_errors=True)

    def end(self, failures):
        """Stopped; whatever is wrong with it is a failure."""
        try:
            code = self.stop(30)
            if code:
                failures.append(f"pipitd ended with {code}")
        except Exception as e:  # noqa: BLE001
            failures.append(str(e) or repr(e))

    def open_again(self):
        """A gateway that was killed makes its socket anew."""
        try:
            os.chmod(os.path.join(self.folder, "zmq.sock"), 0o666)
        except FileNotFoundError:
            pass

    def has_gateway(self):
        return os.path.exists(os.path.join(self.folder, "zmq.sock"))

    def processes(self):
        pids = {"front": self.process.pid, "engine": self.child("pipit-engine"), "gateway": self.child("pipit-gateway")}
        return {name: pid for name, pid in pids.items() if pid}

    def figures(self, lane=None):
        """Descriptors and bytes of memory that are its own, of each process; with a lane, also what the daemon itself counts."""
        got = {}
        for name, pid in self.processes().items():
            try:
                got[name] = {"fds": len(os.listdir(f"/proc/{pid}/fd")), "bytes": own_bytes(pid)}
            except (FileNotFoundError, ConnectionRefusedError):
                pass  # it died meanwhile, or has just begun
        if lane:
            s = lane.status()
            got["counted"] = {"running": s.n_running, "waiting": s.n_queued, "lanes": s.n_lanes, "kv_bytes": s.kv_bytes_used,
                              "kv_bytes_total": s.kv_bytes_total, "plan_bytes": s.plan_bytes}
        return got

    def compare(self, before, lane, failures):
        """figures() when all is at rest again, and what is amiss with them. An arena that had not been given back would be a
        descriptor of the front; leases lie in their lane's arena and end with it."""
        limit = 0.02, (8 if "address" in SANITIZERS else 4) << 20  # what allocators keep, redzones too
        kept = {"engine": TEXT_COST << 18}  # and of the longest text that was read
        weighed = SANITIZERS in ("none", "address", "address,undefined", "undefined")
        names = [k for k in before if k != "counted"]

        def too_much(now):
            return [f"{k}: {now[k][what]} {what}, {before[k][what]} before" for k in names if k in now for what, most in (
                ("fds", before[k]["fds"]), ("bytes", before[k]["bytes"] * (1 + limit[0]) + limit[1] + kept.get(k, 0) if weighed else float("inf")))
                if now[k][what] > most]
        wait_until(lambda: not too_much(self.figures()), 40)  # answers are kept for 30 s
        after = self.figures(lane)
        failures += [f"{k}: gone" for k in names if k not in after] + too_much(after)
        for k, was in before["counted"].items():
            if after["counted"][k] > was:
                failures.append(f"{k}: {after['counted'][k]}, {was} before")
        return after

    def at_rest(self, lane, others=1):
        s = lane.status()
        return s.n_running + s.n_queued == 0 and s.n_lanes <= others


def resident(pid):
    """Anonymous memory. Shared memory is of a fixed size (journal), or given back with its lane: attacks.keep_mapped looks."""
    with open(f"/proc/{pid}/status") as f:
        return sum(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))


def live_heap(pid):
    """What live_heap.c says; raises where it is not loaded."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(10 * SLOW)
        s.connect(f"\0pipit-live-{pid}")
        return int(s.recv(64))


# Where AddressSanitizer has its heap and its shadow, on x86-64; what else is mapped is the program's, as without it.
ITS_OWN = ((0x7fff7000, 0x10007fff8000), (0x600000000000, 0x640000000000)) if platform.machine() == "x86_64" else ()


def mapped_besides(pid):
    """Anonymous memory outside the sanitizer's own."""
    total, mine = 0, True
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            word = line.split()
            if not word[0].endswith(":"):
                start = int(word[0].split("-")[0], 16)
                mine = bool(ITS_OWN) and not any(a <= start < b for a, b in ITS_OWN)
            elif word[0] == "Anonymous:" and mine:
                total += int(word[1]) << 10
    return total


def own_bytes(pid):
    """Of the process's own memory, what is in use, as far as can be known: all that is resident, or, where a sanitizer's
    allocator keeps what was freed, what it says is live and what is mapped beside it."""
    return live_heap(pid) + mapped_besides(pid) if "address" in SANITIZERS else resident(pid)


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] if values else 0.0


def finish(args, result, failures):
    """Prints and writes the result; the exit code."""
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    result = {"command": "tests/soak/" + os.path.basename(sys.argv[0]) + "".join(" " + a for a in sys.argv[1:]),
              "date": datetime.date.today().isoformat(), "commit": commit(), "machine": f"{cpu}, {os.cpu_count()} CPUs",
              "model": os.path.basename(args.model), "sanitizers": SANITIZERS, "users": "several" if os.getuid() == 0 else "one", "seed": args.seed,
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
