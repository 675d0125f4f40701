#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resident memory of a daemon under load against its plan, over 10,000 generated tokens (bench/memory.sh).

For each setting a daemon is started with as many clients as sequences, all of which generate until --tokens are out. Ten
times a second private memory (RssAnon) and shared memory (Pss_Shmem: each page once) of its processes are read. The engine is
compared with the plan less the front's part (lanes, journal, gateway), which is room for clients that are not all there;
the whole daemon is printed beside it, and what is resident of files (RssFile: programs, and weights that are read where they lie
in the model's map) after loading and at most. Exit 1 where an engine is more than 2 % off its plan at any time."""

import argparse
import csv
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

BUILD = pathlib.Path(os.environ.get("PIPIT_BUILD", "build"))
PIPITD = str(BUILD / "daemon" / "front" / "pipitd")
PIPIT = str(BUILD / "client" / "pipit")
POLICIES = ["full", "fp8+keyformer:50%"]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}


def lines_kb(path, key):
    with open(path) as f:
        return sum(int(x.split()[1]) for x in f if x.startswith(key)) << 10


def memory_of(pid):
    """(private, shared, of files) bytes."""
    return (lines_kb(f"/proc/{pid}/status", "RssAnon:"), lines_kb(f"/proc/{pid}/smaps_rollup", "Pss_Shmem:"),
            lines_kb(f"/proc/{pid}/status", "RssFile:"))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(c) for c in f.read().split()]


def name_of(pid):
    with open(f"/proc/{pid}/comm") as f:
        return f.read().strip()


class Load:
    """n clients that ask again and again, until so many tokens are out."""

    def __init__(self, folder, n, n_tokens, n_answer):
        self.folder, self.n_tokens, self.n_answer, self.said = folder, n_tokens, str(n_answer), 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.one, args=(i,)) for i in range(n)]
        for t in self.threads:
            t.start()

    def running(self):
        return any(t.is_alive() for t in self.threads)

    def one(self, i):
        for k in range(1000):
            if self.said >= self.n_tokens:
                return
            p = subprocess.run([PIPIT, "ask", "--runtime-dir", self.folder, "--raw", "--json", "-n", self.n_answer, "--temp", "1",
                                "--seed", str(i * 1000 + k), "Once upon a time there was a very long story. It began"],
                               capture_output=True, env=CLEAN, stdin=subprocess.DEVNULL)
            done = [json.loads(x) for x in p.stdout.splitlines() if b'"done"' in x]
            if p.returncode or not done:
                sys.exit(f"pipit ask: {p.returncode} {p.stderr.decode()}")
            with self.lock:
                self.said += done[-1]["usage"]["completion_tokens"]


def measure(model, kv, ctx, n_seqs, n_tokens, n_answer):
    with tempfile.TemporaryDirectory(prefix="pm-") as folder:
        args = ["--model", model, "--ctx", str(ctx), "--sequences", str(n_seqs), "--kv", kv, "--runtime-dir", folder,
                "--lanes", str(n_seqs + 2)]
        plan = json.loads(subprocess.run([PIPITD, "plan", "--json", *args], check=True, capture_output=True, env=CLEAN).stdout)
        daemon = subprocess.Popen([PIPITD, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=CLEAN)
        try:
            subprocess.run([PIPIT, "wait", "--runtime-dir", folder, "--timeout", "300"], check=True, env=CLEAN)
            children = {name_of(p): p for p in children_of(daemon.pid)}
            engine = children["pipit-engine"]
            samples, loaded = [], memory_of(engine)
            load = Load(folder, n_seqs, n_tokens, n_answer)
            while load.running():
                parts = [memory_of(p) for p in (daemon.pid, *children.values())]
                samples.append((memory_of(engine), sum(a + b for a, b, _ in parts)))
                time.sleep(0.1)
            return plan, loaded, samples, load.said
        finally:
            daemon.terminate()
            daemon.wait()


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2"))
    a.add_argument("--tokens", type=int, default=10000)
    a.add_argument("--answer", type=int, default=1900, help="tokens that a client asks for")
    a.add_argument("--ctx", type=int, default=2048)
    a.add_argument("--sequences", type=int, default=4)
    a.add_argument("--kv", action="append", help=f"a policy; repeats (default: {', '.join(POLICIES)})")
    a.add_argument("--out", help="CSV to write; default: stdout")
    o = a.parse_args()
    if not o.model:
        sys.exit("memory.py: --model FILE, or PIPIT_SMOLLM2")
    out = open(o.out, "w") if o.out else sys.stdout
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"# {datetime.date.today()}, commit {commit}, {os.path.basename(o.model)}; bytes, over --tokens {o.tokens}", file=out)
    w = csv.writer(out)
    w.writerow(["kv", "ctx", "sequences", "tokens", "engine_planned", "engine_min", "engine_mean", "engine_max", "worst_percent",
                "planned", "daemon_mean", "daemon_percent", "mapped_planned", "file_loaded", "file_max"])
    bad = False
    for kv in o.kv or POLICIES:
        plan, loaded, samples, said = measure(o.model, kv, o.ctx, o.sequences, o.tokens, o.answer)
        want = plan["total_bytes"] - plan["lane_bytes"]
        engine = [s[0][0] for s in samples]
        whole = sum(s[1] for s in samples) / len(samples)
        worst = max((e / want - 1 for e in engine), key=abs)
        bad |= abs(worst) > 0.02
        w.writerow([kv, o.ctx, o.sequences, said, want, min(engine), round(sum(engine) / len(engine)), max(engine),
                    f"{100 * worst:+.2f}", plan["total_bytes"], round(whole), f"{100 * (whole / plan['total_bytes'] - 1):+.2f}",
                    plan["mapped_bytes"], loaded[2], max(s[0][2] for s in samples)])
        out.flush()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
