#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two principals and the prefix cache: the time to the first token of a prompt that another principal has just had read is
told apart from that of a prompt nobody had by no Kolmogorov-Smirnov test (p over 0.01), while the same test does tell them
apart within one principal (p under 1e-6). And nothing of one is shown to the other: its ids are unknown, its cancels and
resumes fail, figures name no id and no text.

The samples are taken in turn and in random order, so that whatever else the machine does falls on all alike. Principals are
two tenants of the gateway's door where there are not two users; the cache knows a principal only as one number.

usage: principals.py [--samples N] [--seed S] [--json FILE]"""
import math
import os
import random
import struct
import sys
import time

import common
import attacks
from common import Daemon, fork
from lane import DONE, E2C, ERROR, METRICS_GET, TOKEN, Lane, prompt

WORDS = "Lily Tim dog cat ball park tree mom dad house big small red blue happy sad ran saw said went".split()


def ks(a, b):
    """Two-sample Kolmogorov-Smirnov: (D, p) by the asymptotic distribution."""
    a, b = sorted(a), sorted(b)
    i = j = 0
    d = 0.0
    while i < len(a) and j < len(b):
        x = min(a[i], b[j])
        while i < len(a) and a[i] <= x:
            i += 1
        while j < len(b) and b[j] <= x:
            j += 1
        d = max(d, abs(i / len(a) - j / len(b)))
    n = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    t = (n + 0.12 + 0.11 / n) * d
    p = 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * t * t) for k in range(1, 101)) if t > 0.2 else 1.0
    return d, max(0.0, min(1.0, p))


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(120))


def ask(lane, what):
    """(seconds to the first token, n_cached)"""
    began = time.perf_counter()
    rid, first = lane.request(prompt(what, 1)), None
    for e in lane.events(rid):
        if e.type == TOKEN:
            first = time.perf_counter() - began
        if e.type == ERROR:
            raise AssertionError(repr(e))
    assert e.type == DONE
    return first, e.n_cached


def serve(which, folder, asked, said):
    """A user's process: asks what it is told to, and says how long it took."""
    common.pin(which)
    lane = Lane(folder, timeout=60 * common.SLOW)
    while True:
        what = asked.get()
        if what is None:
            return
        said.put(ask(lane, what))


class User:
    def __init__(self, which, folder):
        self.asked, self.said = fork.SimpleQueue(), fork.SimpleQueue()
        self.process = fork.Process(target=serve, args=(which, folder, self.asked, self.said))
        self.process.start()

    def ask(self, what):
        self.asked.put(what)
        return self.said.get()


def peek(which, folder, rid, secret, out):
    """What another user can find of a request."""
    common.pin(which)
    lane, found = Lane(folder, timeout=20 * common.SLOW), []
    for send in (lambda: lane.resume(rid), lambda: lane.cancel(rid)):
        send()
        e = lane.recv()
        while e.id != rid:
            e = lane.recv()
        if (e.type, getattr(e, "code", None)) != (ERROR, "NOT_FOUND"):
            found.append(repr(e))
    lane.request(prompt("Once", 1), rid=rid)  # the same id is another request of another principal
    events = list(lane.events(rid))
    if events[-1].type != DONE or any(secret in e.text for e in events if e.type == TOKEN):
        found.append(repr(events))
    lease = lane.lease(E2C, 65536)
    lane.send(METRICS_GET, struct.pack("<IIIIQQ", E2C, lease.buf, lease.generation, 0, 0, 0))
    bulk = lane.recv()
    shown = bytes(lane.e2c[:]) + repr(vars(lane.status())).encode()
    lane.recv()
    if rid in shown or rid.hex().encode() in shown or secret in shown:
        found.append("the figures show it")
    if bulk.n_bytes == 0:
        found.append("no figures came")
    if any(lane.c2e[4096:]):
        found.append("a new lane's memory is not empty")
    out.put(found)


def main():
    p = common.arguments(__doc__.split("\n")[0], 0)
    p.add_argument("--samples", type=int, default=0)
    args = p.parse_args()
    if os.getuid() != 0:
        print("two users are needed: run as root")
        return 77
    samples = args.samples or 60
    d = Daemon("--ctx", "512", "--kv", "full,chunk=64", "--sequences", "2", "--lanes", "64", model=args.model, backend=args.backend)
    a, b = User(0, d.folder), User(1, d.folder)
    rng, failures = random.Random(args.seed), []
    times = {"hit of one's own": [], "miss": [], "after the other's": []}
    cached = {k: set() for k in times}
    for user in (a, b):
        for _ in range(5):
            user.ask(text(rng))
    stop, mixed = common.Stop(24 * 3600), fork.SimpleQueue()
    other = fork.Process(target=attacks.mixes, args=(2, d.folder, args.seed, stop, mixed), kwargs={"pause": 0.2})
    other.start()
    for _ in range(samples):
        for kind in rng.sample(sorted(times), 3):
            what = text(rng)
            first = {"hit of one's own": b, "after the other's": a}.get(kind)
            (first or a).ask(what if first else text(rng))  # somebody always asks just before
            seconds, n = b.ask(what)
            times[kind].append(seconds)
            cached[kind].add(n > 0)
    stop.early.set()
    mixture = mixed.get()
    other.join()
    across, within = ks(times["after the other's"], times["miss"]), ks(times["hit of one's own"], times["miss"])
    if cached != {"hit of one's own": {True}, "miss": {False}, "after the other's": {False}}:
        failures.append(f"what was cached: {cached}")
    if across[1] <= (0.01 if samples >= 400 else 1e-4):  # often run: one in a hundred would be many
        failures.append(f"the other's prompts can be told: p = {across[1]:.4g}")
    if within[1] >= 1e-6:
        failures.append(f"the test tells nothing: p = {within[1]:.4g} within one principal")
    lane, out = d.lane(), fork.SimpleQueue()
    rid = lane.request(prompt("Once upon a time there was a secret", 400))
    lane.recv()
    other = fork.Process(target=peek, args=(1, d.folder, rid, b"secret", out))
    other.start()
    found = out.get()
    other.join()
    failures += found
    lane.cancel(rid)
    lane.close()
    for user in (a, b):
        user.asked.put(None)
        user.process.join()
    if d.stop(30):
        failures.append("pipitd did not end well")
    ms = {k: round(1e3 * common.percentile(v, 50), 3) for k, v in times.items()}
    return common.finish(args, {"samples": samples, "first_token_ms_p50": ms, "mixture": mixture,
                                "across": {"D": round(across[0], 4), "p": round(across[1], 4)},
                                "within": {"D": round(within[0], 4), "p": within[1]}}, failures)


if __name__ == "__main__":
    sys.exit(main())
