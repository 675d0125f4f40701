#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the daemon's changes of state take, and what it costs while nothing happens. Prints a line a figure and
exits 1 when one is over its limit (times PIPIT_SLOW):

    ready      from exec to a model that answers, its file in the page cache: 1 s
    recovery   from the kill of the engine in mid-answer to the next token: starting beside loading, as it was measured at
               starts, loading, as that engine logged it, and 1.2 times what the answer had taken up to there; of the
               runs, that in the middle and the worst
    on demand  the same load, by a request that finds the model unloaded: told, no limit of its own
    idle       context switches a process (one a second) and clock ticks of CPU time (one in all)

    lifetimes.py [--model FILE] [--backend NAME] [--idle SECONDS] [--runs N] [--tokens N]

The short form in CI: the 1 MB model, 3 runs, 5 s. PIPIT_BUILD is the build folder."""
import argparse
import os
import re
import signal
import sys
import time

from daemon import SLOW, STORIES, Daemon, wait_until
from lane import DONE, S_IGNORE_END, TOKEN, UNLOAD, prompt

failed = []


def tell(name, value, limit=None, unit="ms", note=""):
    over = limit is not None and value > limit * SLOW
    failed.extend([name] if over else [])
    bound = "" if limit is None else f", at most {limit:.4g}{' OVER' if over else ''}"
    print(f"{name:10} {value:10.4g} {unit}{bound}{note and '  (' + note + ')'}", flush=True)


def median(values):
    return sorted(values)[len(values) // 2]


def loaded(d):
    """Seconds that the last engine said it took."""
    return float(re.findall(r"loaded in ([\d.]+) s", d.text())[-1])


def start(a, *more):
    d = Daemon(*more, model=a.model, backend=a.backend, wait=False)
    lane = d.lane()
    wait_until(lambda: lane.status().state in (2, 3), 120, 0.002)
    took = time.monotonic() - d.began
    return d, lane, took


def ready(a):
    """Times from exec to ready. What of it is not loading, as the engine counts that."""
    took, beside = [], []
    for _ in range(a.runs):
        d, lane, seconds = start(a)
        took.append(seconds)
        beside.append(seconds - loaded(d))
        lane.close()
        assert d.stop() == 0, d.text()
    tell("ready", median(took) * 1e3, 1000, note=f"{a.runs} starts, worst {max(took) * 1e3:.0f} ms")
    return median(beside)


def ask(lane, n):
    return lane.request(prompt("Once upon a time there was a " * 8, n, flags=S_IGNORE_END))


def recovery(a, beside_s):
    """Killed behind the token of that number: all that had come is read, so the replay begins where we look. Each run has a
    daemon of its own: an engine that dies again within a minute is started after a pause, of 100 ms and more."""
    runs = []  # (part of its limit, s, limit, load, tokens)
    for i in range(a.runs):
        d, lane, _ = start(a, "--sequences", "1")
        list(lane.events(ask(lane, 4)))  # pages that the first answer touches
        rid, began, n = ask(lane, 4 * a.tokens), time.monotonic(), 0
        while n < a.tokens:
            n += lane.recv(60 * SLOW).type == TOKEN
        replay_s = time.monotonic() - began
        pid = d.child("pipit-engine")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.02)
        while lane.readable():  # said before it stood still
            n += lane.recv().type == TOKEN
        replay_s *= n / a.tokens
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        e = lane.recv(120 * SLOW)
        took = time.monotonic() - began
        assert e.type == TOKEN, e
        load_s = beside_s + loaded(d)
        limit = load_s + 1.2 * replay_s
        runs.append((took / limit, took, limit, load_s, n))
        lane.cancel(rid)
        assert [x for x in lane.events(rid)][-1].type == DONE
        if i < a.runs - 1:
            lane.close()
            assert d.stop() == 0, d.text()
    for what, (_, took, limit, load_s, n) in (("median", median(runs)), ("worst", max(runs))):
        tell("recovery", took * 1e3, limit * 1e3, note=f"{what} of {a.runs}; load {load_s * 1e3:.0f} ms, {n} tokens repeated")
    lane.control(UNLOAD)
    done = list(lane.events(ask(lane, 4)))[-1]
    tell("on demand", done.load_ns / 1e6)
    lane.close()
    assert d.stop() == 0, d.text()


def counts(pid):
    switches = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as f:
            switches += sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)
    with open(f"/proc/{pid}/stat") as f:
        words = f.read().rpartition(")")[2].split()
    return switches, int(words[11]) + int(words[12])


def idle(a):
    d = Daemon(model=a.model, backend=a.backend, gateway="yes")
    lane = d.ready()
    list(lane.events(ask(lane, 4)))
    lane.close()
    time.sleep(2)
    pids = {n: d.child(n) for n in ("pipit-engine", "pipit-gateway")}
    pids["pipitd"] = d.process.pid
    before = {n: counts(p) for n, p in pids.items() if p}
    time.sleep(a.idle)
    for name, (switches, ticks) in before.items():
        now = counts(pids[name])
        tell("idle", now[0] - switches, a.idle, "switches", f"{name}, {a.idle:g} s")
        tell("idle", now[1] - ticks, 1, "ticks of 10 ms", name)
    assert d.stop() == 0, d.text()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=STORIES)
    p.add_argument("--backend", default="ref")
    p.add_argument("--idle", type=float, default=5)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--tokens", type=int, default=60)
    a = p.parse_args()
    recovery(a, ready(a))
    if a.idle:
        idle(a)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
