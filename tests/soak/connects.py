#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A million connections, one after the other from several processes: of a hundred 96 are closed as soon as they are made, three
after a hello (arenas are made and mapped), one with a request under way, and of two thousand one ends what attacks.mixture()
asks, with texts of up to 256 KiB; each fiftieth goes to the gateway's socket instead, which
is another process's. It passes when the same processes are there, descriptors, lanes, pages and memory are at
the end what they were, and another user's answers were right throughout.

usage: connects.py [--number N] [--seed S] [--json FILE]"""
import os
import random
import socket
import sys
import time

import common
import attacks
import flood
from common import Daemon, Stop, fork, wait_until
from lane import prompt, text_of

PROCESSES = 2


def knock(path, kind):
    """Connects and closes; false when the listener's queue is full."""
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.settimeout(5)
        try:
            s.connect(path)
        except BlockingIOError:
            return False
    return True


def enter(folder, ask):
    lane = attacks.connect(folder)
    if ask:
        lane.request(prompt("Once", 300))
    lane.close()


def connector(folder, number, seed, zmq, out):
    common.pin(0)
    common.humble()
    rng, n, refused = random.Random(seed), {"lane": 0, "hello": 0, "request": 0, "zmq": 0, "mixture": 0}, 0
    lane_path, zmq_path = (os.path.join(folder, name) for name in ("lane.sock", "zmq.sock"))
    while sum(n.values()) < number:
        which = rng.randrange(100)
        try:
            if zmq and rng.randrange(50) == 0:
                done, what = knock(zmq_path, socket.SOCK_STREAM), "zmq"
            elif which == 98 and rng.randrange(20) == 0:
                attacks.mixture(folder, rng)
                done, what = True, "mixture"
            elif which < 96:
                done, what = knock(lane_path, socket.SOCK_SEQPACKET), "lane"
            else:
                what = "request" if which == 99 else "hello"
                enter(folder, which == 99)
                done = True
            n[what] += done
            refused += not done
        except (OSError, EOFError, AssertionError):
            refused += 1
            time.sleep(0.001)
    out.put((n, refused))


def main():
    p = common.arguments(__doc__.split("\n")[0], 6)
    p.add_argument("--number", type=int, default=4000)
    args = p.parse_args()
    d = Daemon("--sequences", "4", "--lanes", "256", "--stall-timeout", "1", model=args.model, backend=args.backend,
               gateway="yes" if os.path.exists(os.path.join(common.daemon.BUILD, "daemon/gateway/pipit-gateway")) else "no")
    lane = d.lane()
    want = text_of(lane.events(lane.request(prompt(flood.QUESTION, flood.TOKENS))))
    first = fork.SimpleQueue()
    warm = fork.Process(target=connector, args=(d.folder, 400, args.seed, d.has_gateway(), first))
    warm.start()  # what is allocated on first use is there
    warm.join()
    attacks.warm(d.folder)
    flood.OnLane(d.folder).ask()
    wait_until(lambda: d.at_rest(lane), 20)
    failures = []
    before, alive = d.figures(lane), d.processes()
    stop, attacked, pipe = Stop(24 * 3600), fork.Event(), fork.SimpleQueue()
    attacked.set()
    witness = fork.Process(target=flood.witness, args=(d.folder, flood.OnLane, stop, attacked, want, pipe))
    witness.start()
    began = time.monotonic()
    pipes = [fork.SimpleQueue() for _ in range(PROCESSES)]
    run = [fork.Process(target=connector, args=(d.folder, args.number // PROCESSES, args.seed * 100 + i, d.has_gateway(), pipes[i]))
           for i in range(PROCESSES)]
    for r in run:
        r.start()
    for r in run:
        r.join()
        if r.exitcode:
            failures.append(f"a process of the test ended with {r.exitcode}")
    seconds = time.monotonic() - began
    counts, refused = {}, 0
    for q in pipes:
        n, no = q.get() if not q.empty() else ({}, 0)
        counts = {k: counts.get(k, 0) + v for k, v in n.items()}
        refused += no
    stop.early.set()
    witness.join(60)
    seen = pipe.get() if not pipe.empty() else {}
    if not seen.get("answers") or seen["n_wrong"]:
        failures.append("another user's answers were hurt")
    if d.processes() != alive:
        failures.append(f"{alive} are now {d.processes()}")
    if not wait_until(lambda: d.at_rest(lane), 40):
        failures.append(f"not at rest: {lane.status()}")
    after = d.compare(before, lane, failures)
    if text_of(lane.events(lane.request(prompt(flood.QUESTION, flood.TOKENS)))) != want:
        failures.append("the answer is another one afterwards")
    lane.close()
    d.end(failures)
    return common.finish(args, {"connections": counts, "refused": refused, "a_second": round(sum(counts.values()) / seconds),
                                "other_client": seen, "before": before, "after": after}, failures)


if __name__ == "__main__":
    sys.exit(main())
