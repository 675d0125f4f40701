#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load: 64 clients of four users, most of them well behaved, some that cancel, leave, stall, or are killed; the gateway is
killed every 15 s and the engine every two minutes. Of every request that survives, seq is contiguous and the text is the
one stored under its id (asked for again with RESUME) and the one that its question has on a quiet machine. At the end
descriptors, memory and sequences are back. The inter-token times of one well-behaved client are compared with those of the
same load without the abuse, outside the windows between a kill and the client's next token; that window is compared with
the time to load and replay.

usage: load.py [--minutes M] [--seed S] [--clients N] [--engine-every S] [--json FILE]   (M minutes without abuse and M with)"""
import os
import random
import re
import signal
import sys
import threading
import time

import common
from common import SLOW, Daemon, Stop, fork, wait_until
from lane import DONE, ERROR, F_DETACH, S_IGNORE_END, TOKEN, Lane, prompt, text_of

QUESTIONS = [(text, n, seed) for seed, (text, n) in enumerate(
    (("Once upon a time", 40), ("Lily", 60), ("The big dog", 25), ("One day, a boy named Tim", 80), ("Once", 12), ("Her mom said", 50)))]
WAYS = [("well", 60), ("cancels", 10), ("leaves", 8), ("comes back", 10), ("stalls", 4), ("twice", 8)]


def ask(lane, q, **kw):
    text, n, seed = q
    return lane.request(prompt(text, n, temperature=0.8, seed=seed, flags=S_IGNORE_END), **kw)


class Client:
    """One client's life; its findings go to `tell`."""

    def __init__(self, folder, seed, stop, want, abuse, counts, wrong):
        self.folder, self.rng, self.stop, self.want = folder, random.Random(seed), stop, want
        self.abuse, self.counts, self.wrong, self.lane = abuse, counts, wrong, None

    def note(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, what):
        self.wrong.append(what)

    def check(self, events, q, whole=True):
        seqs = [e.seq for e in events if e.seq]
        if seqs != list(range(seqs[0], seqs[0] + len(seqs))) if seqs else False:
            self.fault(f"seq {seqs}")
        text = text_of(events)
        if whole and text != self.want[q]:
            self.fault(f"{q}: {text!r} instead of {self.want[q]!r}")
        if not whole and not self.want[q].startswith(text):
            self.fault(f"{q}: {text!r} is no beginning of {self.want[q]!r}")

    def stored(self, rid, q):
        """The text that the daemon keeps under the id, on another connection."""
        other = Lane(self.folder, timeout=60 * SLOW)
        other.resume(rid)
        events = list(other.events(rid))
        other.close()
        if events[-1].type == DONE:
            self.check(events, q)
            self.note("stored texts compared")

    def one(self):
        q = self.rng.choice(QUESTIONS)
        way = self.rng.choices([w for w, _ in WAYS], [n for _, n in WAYS])[0] if self.abuse else "well"
        self.lane = self.lane or Lane(self.folder, timeout=60 * SLOW)
        flags = F_DETACH if way == "comes back" else 0
        rid, events, n = ask(self.lane, q, flags=flags), [], self.rng.randrange(1, 20)
        if way == "twice":
            ask(self.lane, q, rid=rid)  # attaches to itself; events begin again
        while not events or events[-1].type not in (DONE, ERROR):
            e = self.lane.recv()
            if e.id != rid:
                continue
            if way == "twice" and e.seq == 1:
                events = []  # from the second beginning on
            events.append(e)
            if len(events) != n:
                continue
            if way == "cancels":
                self.lane.cancel(rid)
            elif way == "leaves":
                self.leave()
                self.note(way)
                return
            elif way == "comes back":
                self.leave()
                self.lane = Lane(self.folder, timeout=60 * SLOW)
                self.lane.resume(rid, e.seq + 1)
            elif way == "stalls":
                time.sleep(1.5)
        last = events[-1]
        if last.type == ERROR:
            self.note(last.code)
            if last.code == "BUSY":
                time.sleep(min(1, last.retry_after_ms / 1000))
            elif last.code not in ("ENGINE_CRASHED",):
                self.fault(repr(last))
            return
        self.note(f"{way}: {last.reason}")
        self.check(events, q, whole=last.reason == "length")
        if last.reason == "length" and self.rng.random() < 0.1:
            self.stored(rid, q)

    def leave(self):
        self.lane.close()
        self.lane = None

    def live(self):
        while not self.stop:
            try:
                self.one()
            except (OSError, EOFError, TimeoutError, AssertionError) as e:
                self.fault(repr(e))
                self.lane = None
        if self.lane:
            self.leave()


def user(which, n, folder, seed, stop, want, abuse, out):
    common.seat(which)
    counts, wrong = {}, []
    clients = [Client(folder, seed * 1000 + which * 100 + i, stop, want, abuse, counts, wrong) for i in range(n)]
    threads = [threading.Thread(target=c.live) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    out.put((counts, wrong[:5], len(wrong)))


def victim(which, folder, seed):
    """Lives until it is killed."""
    common.seat(which)
    Client(folder, seed, Stop(1e6), {q: b"" for q in QUESTIONS}, False, {}, []).live()


def over_zmq(folder, stop, want, out):
    """Four questions at a time through the gateway; resumes what a killed one had."""
    import zclient  # before it is another user, who may not see the source
    from zclient import Client as Zmq, Timeout, generate, pb
    common.seat(3)
    zclient.CONTEXT = zclient.zmq.Context()
    c, running, counts, wrong, epoch, rng = Zmq(os.path.join(folder, "zmq.sock")), {}, {}, [], None, random.Random(7)
    epoch = c.ping(20 * SLOW).gateway_epoch  # one that has changed later means that requests are to be resumed
    while not stop or running:
        while len(running) < 4 and not stop:
            q = rng.choice(QUESTIONS)
            rid = c.send(generate(q[0], temperature=0.8, seed=q[2], max_tokens=q[1], ignore_end=True))
            running[rid] = [q, b"", 1]
        try:
            e = c.receive(0.5)
        except Timeout:
            r = pb.Request(id=os.urandom(16))
            r.ping.SetInParent()
            c.send(r)
            continue
        if e.HasField("pong"):
            if epoch not in (None, e.pong.gateway_epoch):
                for rid, (q, _, seq) in running.items():
                    r = pb.Request(id=rid)
                    r.resume.next_seq = seq
                    c.send(r)
                    counts["resumed over ZeroMQ"] = counts.get("resumed over ZeroMQ", 0) + 1
            epoch = e.pong.gateway_epoch
            continue
        mine = running.get(e.id)
        if not mine:
            continue
        if e.HasField("error"):
            if e.error.code == pb.Error.NOT_FOUND:  # killed before it had passed the request on
                c.send(generate_again(generate, mine[0], e.id))
                mine[1:] = [b"", 1]
                continue
            counts[f"zmq {e.error.code}"] = counts.get(f"zmq {e.error.code}", 0) + 1
            del running[e.id]
            continue
        if e.seq:
            if e.seq < mine[2]:
                continue
            if e.seq != mine[2]:
                wrong.append(f"zmq seq {e.seq} instead of {mine[2]}")
            mine[2] = e.seq + 1
        mine[1] += e.delta.text
        if e.HasField("done"):
            if mine[1] != want[mine[0]]:
                wrong.append(f"zmq {mine[1]!r}")
            counts["zmq done"] = counts.get("zmq done", 0) + 1
            del running[e.id]
    out.put((counts, wrong[:5], len(wrong)))


def generate_again(generate, q, rid):
    r = generate(q[0], temperature=0.8, seed=q[2], max_tokens=q[1], ignore_end=True)
    r.id = rid
    return r


def measured(folder, stop, want, out):
    """The well-behaved client whose times count: (when, gap) of every token after the first."""
    common.seat(0)
    lane, gaps, wrong = Lane(folder, timeout=60 * SLOW), [], []
    while not stop:
        q = QUESTIONS[3]
        rid, last, events = ask(lane, q, urgency=50), None, []
        for e in lane.events(rid):
            events.append(e)
            if e.type == TOKEN:
                now = time.monotonic()
                if last:
                    gaps.append((now, now - last))
                last = now
        if events[-1].type == ERROR and events[-1].code == "BUSY":
            time.sleep(0.2)
        elif text_of(events) != want[q]:
            wrong.append(repr(events[-1]))
    lane.close()
    out.put((gaps, wrong[:5]))


def speaks_zmq():
    try:
        import zclient  # noqa: F401
        return True
    except SystemExit:
        return False


def phase(d, args, want, abuse, failures):
    """One run; gaps, counts, kills [(when, what)]."""
    stop, lane = Stop(args.minutes * 60), d.lane()
    per = (args.clients + 3) // 4
    jobs = [(user, (w, per, d.folder, args.seed, stop, want, abuse)) for w in range(4)]
    jobs.append((measured, (d.folder, stop, want)))
    if d.has_gateway() and speaks_zmq():
        jobs.append((over_zmq, (d.folder, stop, want)))
    pipes = [fork.SimpleQueue() for _ in jobs]
    run = [fork.Process(target=f, args=(*a, pipes[i])) for i, (f, a) in enumerate(jobs)]
    victims, kills, rng = [], [], random.Random(args.seed)
    for p in run:
        p.start()
    began, next_engine, next_gateway = time.monotonic(), args.engine_every, args.gateway_every
    while not stop:
        time.sleep(0.25)
        at = time.monotonic() - began
        d.open_again()
        if not abuse or at > args.minutes * 60 - 3:
            continue
        victims = [v for v in victims if v.is_alive()]
        if len(victims) < 4:
            victims.append(fork.Process(target=victim, args=(rng.randrange(4), d.folder, rng.randrange(10**6))))
            victims[-1].start()
        elif rng.random() < 0.2:
            rng.choice(victims).kill()
        for name, due, step in (("pipit-engine", next_engine, args.engine_every), ("pipit-gateway", next_gateway, args.gateway_every)):
            pid = d.child(name)
            if at >= due and pid:
                kills.append((time.monotonic(), name))
                os.kill(pid, signal.SIGKILL)
                if name == "pipit-engine":
                    next_engine += step
                else:
                    next_gateway += step
    for v in victims:
        v.kill()
        v.join()
    counts, gaps = {}, []
    for i, p in enumerate(run):
        name = jobs[i][0].__name__
        if not wait_until(lambda i=i, p=p: not pipes[i].empty() or p.exitcode is not None, 90):
            failures.append(f"{name} does not end")
            p.kill()
        got = pipes[i].get() if not pipes[i].empty() else None
        p.join(5)
        if got is None:
            failures.append(f"{name} ended with {p.exitcode}")
        elif name == "measured":
            gaps = got[0]
            failures += got[1]
        else:
            counts.update({k: counts.get(k, 0) + v for k, v in got[0].items()})
            failures += got[1]
    if not wait_until(lambda: d.at_rest(lane), 40):
        failures.append(f"not at rest: {lane.status()}")
    lane.close()
    return gaps, counts, kills


def main():
    p = common.arguments(__doc__.split("\n")[0], 6)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--engine-every", type=float, default=None)
    p.add_argument("--gateway-every", type=float, default=None)
    args = p.parse_args()
    short = args.minutes < 1
    args.engine_every = args.engine_every or (2.5 if short else 120)
    args.gateway_every = args.gateway_every or (1.5 if short else 15)
    gateway = os.path.exists(os.path.join(common.daemon.BUILD, "daemon/gateway/pipit-gateway"))
    d = Daemon("--sequences", "8", "--lanes", "256", "--stall-timeout", "1", "--max-queue", "256", "--journal-bytes", "64MiB",
               model=args.model, backend=args.backend, gateway="yes" if gateway else "no")
    lane, want, failures = d.lane(), {}, []
    for q in QUESTIONS:
        want[q] = text_of(lane.events(ask(lane, q)))
    rid, began = ask(lane, QUESTIONS[3]), time.monotonic()
    list(lane.events(rid))
    alone = time.monotonic() - began  # reading and saying the longest: an upper limit of one replay
    lane.close()
    quiet, quiet_counts, _ = phase(d, args, want, False, failures)
    before = d.figures()
    loud, counts, kills = phase(d, args, want, True, failures)
    wait_until(lambda: all(d.figures()[k]["fds"] <= before[k]["fds"] for k in before), 20)
    after = d.figures()
    for k in before:
        if after[k]["fds"] > before[k]["fds"]:
            failures.append(f"{k}: {after[k]['fds']} descriptors, {before[k]['fds']} before")
        if SLOW == 1 and after[k]["bytes"] > before[k]["bytes"] * 1.02 + (4 << 20):
            failures.append(f"{k}: {after[k]['bytes']} bytes, {before[k]['bytes']} before")
    windows = []  # from a kill of the engine to the measured client's next token
    for t, name in kills:
        after_kill = [when for when, _ in loud if when > t]
        if name == "pipit-engine" and after_kill:
            windows.append((t, after_kill[0]))
    outside = [gap for when, gap in loud if not any(a <= when <= b + 1 for a, b in windows)]
    p99 = [common.percentile([g for _, g in quiet], 99), common.percentile(outside, 99)]
    loads = [float(x) for x in re.findall(r"loaded in ([0-9.]+) s", d.text())]
    limit = max(loads, default=0) + 1.2 * 8 * alone  # eight sequences are replayed, one after the other at first
    recoveries = [round(b - a, 3) for a, b in windows]
    result = {"clients": args.clients, "quiet": quiet_counts, "counts": counts,
              "kills": {n: sum(1 for _, k in kills if k == n) for n in ("pipit-engine", "pipit-gateway")},
              "token_ms_p99": {"quiet": round(p99[0] * 1e3, 3), "abuse": round(p99[1] * 1e3, 3), "gaps": [len(quiet), len(outside)],
                               "ratio": round(p99[1] / p99[0], 3) if p99[0] else None},
              "recovery_s": recoveries, "recovery_limit_s": round(limit, 3), "load_s": loads, "before": before, "after": after}
    if not short and p99[1] > 1.5 * p99[0]:
        failures.append("the well-behaved client's p99 is over 1.5 times that of the quiet load")
    if not short and any(r > limit for r in recoveries):
        failures.append("a recovery took longer than loading and 1.2 times the replay")
    if not kills or not counts.get("well: length"):
        failures.append("nothing happened")
    try:
        code = d.stop(30)
        if code:
            failures.append(f"pipitd ended with {code}")
    except Exception as e:  # noqa: BLE001
        failures.append(str(e) or repr(e))
    return common.finish(args, result, failures)


if __name__ == "__main__":
    sys.exit(main())
