#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Floods: what attacks.py does to the lanes and to the gateway, several of it at once and for as long as it is told, while
clients of another user, one on a lane and one of the gateway's, ask the same question again and again. It passes when front
and engine are the same processes all the time, those clients' answers do not change, descriptors, lanes, pages and memory are
at the end what they were, and the engine's memory is within its plan.

The gateway, too, is the same process under AddressSanitizer, where its memory has no limit. Else a peer that sends endless MORE frames fast
enough ends it: libzmq bounds them by nothing, and aborts at the gateway's 512 MiB. That is what it is for; its deaths are
counted and must all be such. Its client does what the protocol asks of one that waits: it resumes.

The clients' times between tokens are taken before the attack too. p99 beside it may be FACTOR times that of before and
ROOM_MS more: the attackers' own questions, of up to 450 tokens, are read in the same steps, and share two cores with them. The attackers
are nice (common.py).

usage: flood.py [--minutes M] [--seed S] [--json FILE]      PIPIT_BUILD=build-asan PIPIT_SLOW=8 for sanitizers"""
import os
import random
import re
import sys
import time

import common
import attacks
from common import SLOW, Daemon, Stop, fork, wait_until
from lane import DONE, ERROR, TOKEN, prompt, text_of

FACTOR, ROOM_MS = 3, 20
QUESTION, TOKENS = "Once upon a time", 60


def attacker(folder, which, seed, stop, out):
    common.pin(which)
    common.humble()
    rng, counts = random.Random(seed), {}
    mine = attacks.GATEWAY if which else attacks.LANE
    turn = rng.randrange(len(mine))
    while not stop:
        attack = mine[turn % len(mine)]
        turn += 1
        name = attack.__name__
        try:
            attack(folder, rng)
        except (ConnectionRefusedError, FileNotFoundError, PermissionError):
            name = "met nobody"  # between two lives, or not yet open to us
            time.sleep(0.05)
        except (OSError, EOFError, AssertionError, TimeoutError):
            pass  # it was sent away
        counts[name] = counts.get(name, 0) + 1
    out.put(counts)


class OnLane:
    def __init__(self, folder):
        self.lane = attacks.connect(folder)

    def ask(self):
        """(when, text) of each token, or the seconds that a BUSY daemon says."""
        rid = self.lane.request(prompt(QUESTION, TOKENS))
        got = []
        for e in self.lane.events(rid, 30 * SLOW):
            if e.type == TOKEN:
                got.append((time.monotonic(), e.text))
            elif e.type == ERROR and e.code == "BUSY":
                return e.retry_after_ms / 1000
            elif e.type == ERROR:
                raise AssertionError(repr(e))
            elif e.type != DONE:
                got.append((None, text_of([e])))
        return got


class OverZmq:
    def __init__(self, folder):
        import zclient
        self.z, self.resumed = zclient, 0
        self.client = zclient.Client(os.path.join(folder, "zmq.sock"), context=zclient.zmq.Context())

    def events(self, request):
        """Those of the request, across deaths of the gateway: asked for again after a second of silence, each once."""
        rid, next_seq, end = self.client.send(request), 1, time.monotonic() + 30 * SLOW
        while True:
            try:
                e = self.client.receive(SLOW)
            except self.z.Timeout:
                if time.monotonic() > end:
                    raise
                again = self.z.pb.Request(id=rid)
                again.resume.next_seq = next_seq
                self.client.send(again)
                self.resumed += 1
                continue
            if e.id != rid or (e.seq and e.seq < next_seq):
                continue
            if e.HasField("error") and e.error.code == self.z.pb.Error.NOT_FOUND and next_seq == 1:
                self.client.send(request)  # it had not got through
                continue
            if e.seq > next_seq:
                raise AssertionError(f"event {e.seq} ({e.WhichOneof('body')}) where {next_seq} was due, {self.resumed} resumed")
            next_seq = e.seq + 1 if e.seq else next_seq
            yield e
            if e.HasField("done") or e.HasField("error"):
                return

    def ask(self):
        got = []
        request = self.z.generate(QUESTION, temperature=0, max_tokens=TOKENS)
        for e in self.events(request):
            if e.HasField("delta"):
                got.append((time.monotonic(), e.delta.text))
            elif e.HasField("done") and e.done.reason != self.z.pb.Done.LENGTH:
                raise AssertionError(f"ended at {len(got)} tokens: {e.done}, {self.resumed} resumed")
            elif e.HasField("error") and e.error.code == self.z.pb.Error.BUSY:
                return e.error.retry_after_ms / 1000
            elif e.HasField("error"):
                raise AssertionError(e.error)
        return got


def speaks_zmq():
    try:
        import zclient  # noqa: F401
        return True
    except SystemExit:
        return False


def witness(folder, kind, stop, attacked, want, out):
    """Another user's program: the same question, the same answer."""
    common.pin(2)
    client, gaps, n, busy, wrong = None, {"before": [], "beside": []}, 0, 0, []
    while not stop:
        try:
            client = client or kind(folder)
            into = gaps["beside" if attacked.is_set() else "before"]
            got = client.ask()
            if isinstance(got, float):
                busy += 1
                time.sleep(got)
                continue
            if b"".join(text for _, text in got) != want:
                wrong.append(repr(got))
            times = [when for when, _ in got if when]
            into += [b - a for a, b in zip(times, times[1:])]
            n += 1
        except Exception as e:  # noqa: BLE001 - whatever it is, it must not happen to it
            wrong.append(repr(e))
            client = None
            time.sleep(0.1)
    ms = {k: [round(common.percentile(v, p) * 1e3, 3) for p in (50, 99)] for k, v in gaps.items()}
    out.put({"answers": n, "busy": busy, "wrong": wrong[:5], "n_wrong": len(wrong), "token_ms_p50_p99": ms,
             "p99_limit_ms": round(FACTOR * ms["before"][1] + ROOM_MS, 3)})


def changed(now, alive):
    """Is one of them another, or gone? The gateway may be where it has a limit to its memory."""
    keep = [k for k in alive if k != "gateway" or "address" in common.SANITIZERS]
    return any(now.get(k) != alive[k] for k in keep)


def main():
    args = common.arguments(__doc__.split("\n")[0], 6).parse_args()
    d = Daemon("--sequences", "4", "--lanes", "256", "--stall-timeout", "1", model=args.model, backend=args.backend,
               gateway="yes" if os.path.exists(os.path.join(common.daemon.BUILD, "daemon/gateway/pipit-gateway")) else "no")
    lane = d.lane()
    want = text_of(lane.events(lane.request(prompt(QUESTION, TOKENS))))
    failures = []
    for attack in attacks.LANE:  # once each, so that what is allocated on first use is there
        try:
            attack(d.folder, random.Random(0))
        except (OSError, EOFError, AssertionError):
            pass
    attacks.warm(d.folder)
    kinds = [OnLane] + ([OverZmq] if d.has_gateway() and speaks_zmq() else [])
    if d.has_gateway():
        try:
            attacks.idle_connections(d.folder, random.Random(0))  # its tables grow to their size
        except OSError:
            pass
    for kind in kinds:
        kind(d.folder).ask()
    wait_until(lambda: d.at_rest(lane), 20)
    before, alive = d.figures(lane), d.processes()
    seconds = args.minutes * 60
    baseline = min(60, seconds / 4)
    stop, quiet, attacked, counts, seen = Stop(baseline + seconds), Stop(baseline), fork.Event(), {}, {}
    which = [0, 0] + ([1] if d.has_gateway() else [])
    pipes = [fork.SimpleQueue() for _ in range(len(which) + len(kinds))]
    attackers = [fork.Process(target=attacker, args=(d.folder, w, args.seed * 100 + i, stop, pipes[i])) for i, w in enumerate(which)]
    run = [fork.Process(target=witness, args=(d.folder, kind, stop, attacked, want, pipes[len(which) + i]))
           for i, kind in enumerate(kinds)]
    for p in run:
        p.start()
    while not quiet:
        time.sleep(0.05)
    attacked.set()
    for p in attackers:
        p.start()
    run = attackers + run
    while not stop:
        time.sleep(0.2)
        d.open_again()
        if changed(d.processes(), alive) or any(p.exitcode for p in run):
            stop.early.set()
    for p in run:
        p.join(60 * SLOW)
        if p.exitcode or p.is_alive():
            failures.append(f"a process of the test ended with {p.exitcode}")
            p.kill()
    for i, pipe in enumerate(pipes):
        got = pipe.get() if not pipe.empty() else {}
        if i >= len(which):
            seen[kinds[i - len(which)].__name__] = got
        else:
            counts.update({k: counts.get(k, 0) + v for k, v in got.items()})
    wait_until(lambda: len(d.processes()) == len(alive), 20)
    if changed(d.processes(), alive):
        failures.append(f"{alive} are now {d.processes()}")
    deaths = re.findall(r"the gateway ended with (.*);", d.text())
    # libzmq and the C++ library abort; the gateway itself ends (code 8).
    told = re.findall("OUT OF MEMORY|bad_alloc|no memory for an event", d.text())
    if set(deaths) - {"signal 6 (Aborted)", "exit code 8"} or len(told) < len(deaths):
        failures.append(f"the gateway died otherwise than of its limit: {deaths}, of which told: {told}")
    for name, got in seen.items():
        if not got.get("answers") or got["n_wrong"]:
            failures.append(f"another user's answers were hurt: {name}")
        elif args.minutes >= 1 and got["token_ms_p50_p99"]["beside"][1] > got["p99_limit_ms"]:
            failures.append(f"another user's tokens came late: {name}")
    if not wait_until(lambda: d.at_rest(lane), 40):
        failures.append(f"not at rest: {lane.status()}")
    after = d.compare(before, lane, failures)
    # The plan knows nothing of what a sanitizer adds, which was there before.
    over = before["engine"]["bytes"] if common.SANITIZERS not in ("none", "undefined") else 0
    if after.get("engine", {"bytes": 0})["bytes"] > after["counted"]["plan_bytes"] + over:
        failures.append("the engine's memory is over its plan")
    final = text_of(lane.events(lane.request(prompt(QUESTION, TOKENS))))
    if final != want:
        failures.append("the answer is another one afterwards")
    lane.close()
    d.end(failures)
    result = {"baseline_s": baseline, "attacks": counts, "gateway_deaths": len(deaths), "other_clients": seen, "before": before, "after": after}
    return common.finish(args, result, failures)


if __name__ == "__main__":
    sys.exit(main())
