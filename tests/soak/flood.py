#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Floods: what attacks.py does to the lanes and to the gateway, several of it at once and for as long as it is told, while
a client of another user asks the same question again and again. It passes when the engine is the same process all the
time, that client's answers do not change, and descriptors, lanes and memory are at the end what they were.

usage: flood.py [--minutes M] [--seed S] [--json FILE]      PIPIT_BUILD=build-asan PIPIT_SLOW=8 for sanitizers"""
import os
import random
import sys
import time

import common
import attacks
from common import SLOW, Daemon, Stop, fork, wait_until
from lane import DONE, ERROR, TOKEN, prompt, text_of

MEMORY_SLACK = 4 << 20  # what malloc keeps


def attacker(folder, which, seed, stop, out):
    common.seat(which)
    rng, counts = random.Random(seed), {}
    mine = attacks.GATEWAY if which else attacks.LANE
    turn = rng.randrange(len(mine))
    while not stop:
        attack = mine[turn % len(mine)]
        turn += 1
        try:
            attack(folder, rng)
            counts[attack.__name__] = counts.get(attack.__name__, 0) + 1
        except (OSError, EOFError, AssertionError, TimeoutError):
            # It was sent away, or the gateway was between two lives.
            counts[attack.__name__] = counts.get(attack.__name__, 0) + 1
    out.put(counts)


def witness(folder, stop, want, out):
    """Another user's program: the same question, the same answer."""
    common.seat(2)
    lane, gaps, n, busy, wrong = None, [], 0, 0, []
    while not stop:
        try:
            lane = lane or attacks.connect(folder)
            rid, last, got = lane.request(prompt("Once upon a time", 60)), time.monotonic(), []
            for e in lane.events(rid, 30 * SLOW):
                got.append(e)
                if e.type == TOKEN:
                    now = time.monotonic()
                    gaps.append(now - last) if e.index else None
                    last = now
            if got[-1].type == ERROR and got[-1].code == "BUSY":
                busy += 1
                time.sleep(got[-1].retry_after_ms / 1000)
            elif got[-1].type != DONE or text_of(got) != want:
                wrong.append(repr(got[-1]))
            else:
                n += 1
        except Exception as e:  # noqa: BLE001 - whatever it is, it must not happen to it
            wrong.append(repr(e))
            lane = None
            time.sleep(0.1)
    out.put({"answers": n, "busy": busy, "wrong": wrong[:5], "n_wrong": len(wrong),
             "token_ms_p50": round(common.percentile(gaps, 50) * 1e3, 3),
             "token_ms_p99": round(common.percentile(gaps, 99) * 1e3, 3)})


def main():
    args = common.arguments(__doc__.split("\n")[0], 8).parse_args()
    d = Daemon("--sequences", "4", "--lanes", "256", "--stall-timeout", "1", model=args.model, backend=args.backend,
               gateway="yes" if os.path.exists(os.path.join(common.daemon.BUILD, "daemon/gateway/pipit-gateway")) else "no")
    lane = d.lane()
    want = text_of(lane.events(lane.request(prompt("Once upon a time", 60))))
    failures = []
    for attack in attacks.LANE:  # once each, so that what is allocated on first use is there
        try:
            attack(d.folder, random.Random(0))
        except (OSError, EOFError, AssertionError):
            pass
    wait_until(lambda: d.at_rest(lane), 20)
    before, engine = d.figures(), d.child("pipit-engine")
    stop, counts, seen = Stop(args.minutes * 60), {}, {}
    which = [0, 0] + ([1] if d.has_gateway() else [])
    pipes = [fork.SimpleQueue() for _ in range(len(which) + 1)]
    run = [fork.Process(target=attacker, args=(d.folder, w, args.seed * 100 + i, stop, pipes[i])) for i, w in enumerate(which)]
    run.append(fork.Process(target=witness, args=(d.folder, stop, want, pipes[-1])))
    for p in run:
        p.start()
    while not stop:
        time.sleep(0.2)
        d.open_again()
        if d.child("pipit-engine") != engine or any(p.exitcode for p in run):
            stop.early.set()
    for p in run:
        p.join(60 * SLOW)
        if p.exitcode:
            failures.append(f"a process of the test ended with {p.exitcode}")
            p.kill()
    for i, pipe in enumerate(pipes):
        got = pipe.get() if not pipe.empty() else {}
        if i == len(which):
            seen = got
        else:
            counts.update({k: counts.get(k, 0) + v for k, v in got.items()})
    if d.child("pipit-engine") != engine:
        failures.append("the engine is another process")
    if not seen.get("answers") or seen.get("n_wrong"):
        failures.append("another user's answers were hurt")
    if not wait_until(lambda: d.at_rest(lane), 40):
        failures.append(f"not at rest: {lane.status()}")
    wait_until(lambda: all(d.figures()[k]["fds"] <= before[k]["fds"] for k in before), 20)
    after = d.figures()
    for k in before:
        if after[k]["fds"] > before[k]["fds"]:
            failures.append(f"{k}: {after[k]['fds']} descriptors, {before[k]['fds']} before")
        if SLOW == 1 and after[k]["bytes"] > before[k]["bytes"] * 1.02 + MEMORY_SLACK:
            failures.append(f"{k}: {after[k]['bytes']} bytes, {before[k]['bytes']} before")
    final = text_of(lane.events(lane.request(prompt("Once upon a time", 60))))
    if final != want:
        failures.append("the answer is another one afterwards")
    lane.close()
    try:
        code = d.stop(30)
        if code:
            failures.append(f"pipitd ended with {code}")
    except Exception as e:  # noqa: BLE001
        failures.append(str(e) or repr(e))
    result = {"attacks": counts, "other_client": seen, "before": before, "after": after}
    return common.finish(args, result, failures)


if __name__ == "__main__":
    sys.exit(main())
