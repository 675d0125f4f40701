#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load: 64 clients of four users, most of them well behaved, some that cancel, leave, stall, or are killed; the gateway is
killed every 15 s and the engine every two minutes. Of every request that survives, seq is contiguous and the text is the
one stored under its id (asked for again with RESUME) and the one that its question has on a quiet machine. At the end
descriptors, memory and sequences are back.

The inter-token times of one well-behaved client are compared with those of the same load without the abuse: in both halves
the same clients ask the same things at the same times (each every --period seconds, so the machine is not full), and only
what they then do differs; one more client asks what attacks.mixture() does. All but that client are nice: their Python would else take the engine's core for a time slice now
and then, 3 to 4 ms in either half, which is the kernel's doing. Left out are the windows from a kill of the
engine to that client's resumed token; that window is compared with the median time to load, 1.2 times what the replay repeats.

usage: load.py [--minutes M] [--seed S] [--clients N] [--period S] [--nice N] [--engine-every S] [--json FILE]
(M minutes without abuse and M with)"""
import os
import random
import re
import signal
import statistics
import sys
import threading
import time

import common
import attacks
from common import SLOW, Daemon, Stop, fork, wait_until
from lane import DONE, ERROR, F_DETACH, S_IGNORE_END, TOKEN, Lane, prompt, text_of

QUESTIONS = [(text, n, seed) for seed, (text, n) in enumerate(
    (("Once upon a time", 40), ("Lily", 60), ("The big dog", 25), ("One day, a boy named Tim", 80), ("Once", 12), ("Her mom said", 50)))]
WAYS = [("well", 62), ("cancels", 11), ("leaves", 8), ("comes back", 11), ("twice", 8)]
# A reader stalls when its socket is full, some 400 records: no question above has as many. Of every user one client does so.
LONG = ("Once upon a time there was a girl", 450, 99)
STALL_AT_ONCE, STALL_EVERY, STALL_TIMEOUT = 8, 24, 0.2
SHORT_STALL = 32  # so many at once in a run of seconds, which no quiet half is compared with: a fast machine says 8 before the clock ends
TRUST = 16  # tokens that a request which ran at a crash says alone, before the next one is let in
SEQUENCES = 8


def ask(lane, q, **kw):
    text, n, seed = q
    return lane.request(prompt(text, n, temperature=0.8, seed=seed, flags=S_IGNORE_END), **kw)


class Client:
    """One client's life. What it does not do well it does only where `abuse` is; what it asks, and when, is the same (but for
    `at_once`, long requests of who stalls)."""
    at_once = STALL_AT_ONCE

    def __init__(self, folder, seed, stop, want, abuse, counts, wrong, period, stalls=False):
        self.folder, self.rng, self.stop, self.want = folder, random.Random(seed), stop, want
        self.abuse, self.counts, self.wrong, self.lane = abuse, counts, wrong, None
        self.period, self.stalls, self.n = period, stalls, 0

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

    def stall(self):
        """Asks for more than its socket holds and does not look. The requests that ran, or waited, when the clock ran out have
        ended; what was said before is there."""
        rids = [ask(self.lane, LONG) for _ in range(self.at_once if self.abuse else STALL_AT_ONCE)]
        if self.abuse:
            time.sleep(5 * STALL_TIMEOUT * SLOW)
        events = {rid: [] for rid in rids}
        while not all(e and e[-1].type in (DONE, ERROR) for e in events.values()):
            e = self.lane.recv()
            if e.id in events:
                events[e.id].append(e)
        ends = [got[-1].reason if got[-1].type == DONE else got[-1].code for got in events.values()]
        for got, end in zip(events.values(), ends):
            if end not in ("length", "slow_consumer", "ENGINE_CRASHED", "BUSY"):
                self.fault(repr(got[-1]))
            self.check(got, LONG, whole=end == "length")
        self.note("long: slow_consumer" if "slow_consumer" in ends else f"long: {ends[-1]}")

    def one(self):
        q = self.rng.choice(QUESTIONS)
        way = self.rng.choices([w for w, _ in WAYS], [n for _, n in WAYS])[0]
        n = self.rng.randrange(1, 20)
        store = self.rng.random() < 0.1
        self.n += 1
        self.note("asked")
        self.lane = self.lane or Lane(self.folder, timeout=60 * SLOW)
        if self.stalls and self.n % STALL_EVERY == 2:
            self.stall()
            return
        if way == "well":
            self.note("asked by the well-behaved")
        elif not self.abuse:
            way = "tame"
        flags = F_DETACH if way == "comes back" else 0
        rid, events = ask(self.lane, q, flags=flags), []
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
        if last.reason == "length" and store:
            self.stored(rid, q)

    def leave(self):
        self.lane.close()
        self.lane = None

    def live(self):
        due = time.monotonic() + self.rng.random() * self.period
        while not self.stop:
            now = time.monotonic()
            if now < due:
                time.sleep(due - now)
                continue
            due = max(due + self.period, now)
            try:
                self.one()
            except (OSError, EOFError, TimeoutError, AssertionError) as e:
                self.fault(repr(e))
                self.lane = None
        if self.lane:
            self.leave()


def user(which, n, folder, seed, stop, want, abuse, period, nice, out):
    common.pin(which)
    common.humble(nice)
    counts, wrong = {}, []
    clients = [Client(folder, seed * 1000 + which * 100 + i, stop, want, abuse, counts, wrong, period, i == 0) for i in range(n)]
    threads = [threading.Thread(target=c.live) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    out.put((counts, wrong[:5], len(wrong)))


def victim(which, folder, seed, want, period, nice):
    """Lives until it is killed."""
    common.pin(which)
    common.humble(nice)
    Client(folder, seed, Stop(1e6), want, False, {}, [], period).live()


def over_zmq(folder, stop, want, period, nice, out):
    """Four questions at a time through the gateway; resumes what a killed one had."""
    import zclient  # before it is another user, who may not see the source
    from zclient import Client as Zmq, Timeout, generate, pb
    common.pin(3)
    common.humble(nice)
    due = 0
    zclient.CONTEXT = zclient.zmq.Context()
    c, running, counts, wrong, epoch, rng = Zmq(os.path.join(folder, "zmq.sock")), {}, {}, [], None, random.Random(7)
    epoch = c.ping(20 * SLOW).gateway_epoch  # one that has changed later means that requests are to be resumed
    while not stop or running:
        while len(running) < 4 and not stop and time.monotonic() >= due:
            due = max(due + period / 4, time.monotonic())
            q = rng.choice(QUESTIONS)
            rid = c.send(generate(q[0], temperature=0.8, top_p=1, min_p=0, seed=q[2], max_tokens=q[1], ignore_end=True))
            running[rid] = [q, b"", 1]
        try:
            e = c.receive(min(0.5, period))
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
    r = generate(q[0], temperature=0.8, top_p=1, min_p=0, seed=q[2], max_tokens=q[1], ignore_end=True)
    r.id = rid
    return r


def measured(folder, stop, want, out):
    """The well-behaved client whose times count: (when, gap, since the first of its answer) of every token after the first,
    and what the daemon counts: ns of decoding, tokens, of its answers."""
    common.pin(0)
    lane, gaps, wrong, decoding = Lane(folder, timeout=60 * SLOW), [], [], [0, 0]
    while not stop:
        q = QUESTIONS[3]
        rid, last, events = ask(lane, q, urgency=50), None, []
        for e in lane.events(rid):
            events.append(e)
            if e.type == TOKEN:
                now = time.monotonic()
                if last:
                    gaps.append((now, now - last, last - first))
                else:
                    first = now
                last = now
        if events[-1].type == ERROR and events[-1].code == "BUSY":
            time.sleep(0.2)
        elif text_of(events) != want[q]:
            wrong.append(repr(events[-1]))
        else:
            decoding[0] += events[-1].decode_ns
            decoding[1] += events[-1].n_new - 1
    waited = [int(x) for x in open("/proc/thread-self/schedstat").read().split()[:2]]
    lane.close()
    out.put((gaps, wrong[:5], {"decode_ms_a_token": round(decoding[0] / max(1, decoding[1]) / 1e6, 3),
                               "client": [round(x / 1e9, 2) for x in waited]}))


def mixes(folder, seed, stop, period, out):
    """In both halves: texts of up to 256 KiB, tokenized, scored and embedded, and sessions."""
    got = fork.SimpleQueue()
    attacks.mixes(2, folder, seed, stop, got, pause=period)
    out.put(({f"mixture: {k}": v for k, v in got.get().items()}, [], 0))


def scheduled(pid):
    """Seconds that a process, all its threads, ran and waited for a CPU."""
    got = [0, 0]
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            ran, waited, _ = f.read().split()
        got = [got[0] + int(ran), got[1] + int(waited)]
    return [x / 1e9 for x in got]


def speaks_zmq():
    try:
        import zclient  # noqa: F401
        return True
    except SystemExit:
        return False


def phase(d, lane, args, want, abuse, failures):
    """One run; gaps, counts, kills [(when, what)], seconds that who is measured ran and waited for a CPU."""
    stop = Stop(args.minutes * 60)
    per = (args.clients + 3) // 4
    jobs = [(user, (w, per, d.folder, args.seed, stop, want, abuse, args.period, args.nice)) for w in range(4)]
    jobs.append((measured, (d.folder, stop, want)))
    jobs.append((mixes, (d.folder, args.seed, stop, args.period)))
    if d.has_gateway() and speaks_zmq():
        jobs.append((over_zmq, (d.folder, stop, want, args.period, args.nice)))
    pipes = [fork.SimpleQueue() for _ in jobs]
    run = [fork.Process(target=f, args=(*a, pipes[i])) for i, (f, a) in enumerate(jobs)]
    victims, kills, rng = [], [], random.Random(args.seed)
    for p in run:
        p.start()
    clock = {pid: (name, scheduled(pid)) for name, pid in d.processes().items()}
    began, next_engine, next_gateway = time.monotonic(), args.engine_every, args.gateway_every
    while not stop:
        time.sleep(0.25)
        at = time.monotonic() - began
        d.open_again()
        if not abuse or at > args.minutes * 60 - 3:
            continue
        victims = [v for v in victims if v.is_alive()]
        if len(victims) < 4:
            victims.append(fork.Process(target=victim, args=(rng.randrange(4), d.folder, rng.randrange(10**6), want, args.period,
                                                             args.nice)))
            victims[-1].start()
        elif rng.random() < 0.4:
            rng.choice(victims).kill()
            kills.append((time.monotonic(), "client"))
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
    spent = {}
    for pid, (name, was) in clock.items():  # of those that lived all the time
        if pid in d.processes().values():
            spent[name] = [round(b - a, 2) for a, b in zip(was, scheduled(pid))]
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
            spent.update(got[2])
        else:
            counts.update({k: counts.get(k, 0) + v for k, v in got[0].items()})
            failures += got[1]
    if not wait_until(lambda: d.at_rest(lane), 40):
        failures.append(f"not at rest: {lane.status()}")
    return gaps, counts, kills, spent


def recoveries(gaps, kills, load_s, others_s):
    """Of each kill of the engine: (from, to) its client's resumed token, and the limit. `load_s`: what the engine said of every
    load, the first at the start and then one a kill; where it is not (an engine killed while it loaded), their median stands
    for each. No engine answers before it has loaded, so what comes earlier was on its way at the kill. What is repeated is what
    its answer had taken up to there; before it come the other sequences that ran, one after the other: half a question each, as
    far as one is on average at any moment, and TRUST tokens alone."""
    died = [t for t, name in kills if name == "pipit-engine"]
    own = load_s[1:] if len(load_s) == len(died) + 1 else [statistics.median(load_s)] * len(died)
    for t, load in zip(died, own):
        after = [(when, gap, age) for when, gap, age in gaps if when >= t + min(load_s)]
        if after:
            when, gap, age = after[0]
            replay = max(0.0, age) if when - gap <= t + min(load_s) else 0.0
            yield t, when, load + 1.2 * (replay + others_s)


def main():
    p = common.arguments(__doc__.split("\n")[0], 6)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--period", type=float, default=0.5, help="seconds from one question of a client to its next")
    p.add_argument("--nice", type=int, default=common.NICE, help="of all clients but the measured one")
    p.add_argument("--engine-every", type=float, default=None)
    p.add_argument("--gateway-every", type=float, default=None)
    args = p.parse_args()
    short = args.minutes < 1
    if short:
        Client.at_once = SHORT_STALL
    args.engine_every = args.engine_every or (2.5 if short else 120)
    args.gateway_every = args.gateway_every or (1.5 if short else 15)
    gateway = os.path.exists(os.path.join(common.daemon.BUILD, "daemon/gateway/pipit-gateway"))
    d = Daemon("--sequences", str(SEQUENCES), "--lanes", "256", "--stall-timeout", str(STALL_TIMEOUT * SLOW), "--max-queue", "256", "--journal-bytes", "64MiB",
               model=args.model, backend=args.backend, gateway="yes" if gateway else "no")
    lane, want, failures = d.ready(), {}, []
    for q in (*QUESTIONS, LONG):
        want[q] = text_of(lane.events(ask(lane, q)))
    began = time.monotonic()
    list(lane.events(ask(lane, LONG)))
    token_s = (time.monotonic() - began) / LONG[1]
    attacks.warm(d.folder)
    quiet, quiet_counts, _, quiet_spent = phase(d, lane, args, want, False, failures)
    if not d.has_gateway() and gateway:
        failures.append("the gateway has gone")
    before = d.figures(lane)
    loud, counts, kills, spent = phase(d, lane, args, want, True, failures)
    after = d.compare(before, lane, failures)
    lane.close()
    loads = [float(x) for x in re.findall(r"loaded in ([0-9.]+) s", d.text())]
    back = list(recoveries(loud, kills, loads, (SEQUENCES - 1) * (TRUST + statistics.mean(n for _, n, _ in QUESTIONS) / 2) * token_s))
    outside = [gap for when, gap, _ in loud if not any(a < when <= b for a, b, _ in back)]
    p99 = [common.percentile([g for _, g, _ in quiet], 99), common.percentile(outside, 99)]
    result = {"clients": args.clients, "period_s": args.period, "nice": args.nice, "quiet": quiet_counts, "counts": counts,
              "kills": {n: sum(1 for _, k in kills if k == n) for n in ("client", "pipit-engine", "pipit-gateway")},
              "token_ms_p99": {"quiet": round(p99[0] * 1e3, 3), "abuse": round(p99[1] * 1e3, 3), "gaps": [len(quiet), len(outside)],
                               "ratio": round(p99[1] / p99[0], 3) if p99[0] else None, "limit": 1.5},
              "ran_and_waited_s": {"quiet": quiet_spent, "abuse": spent},
              "recovery_s": [[round(b - a, 3), round(limit, 3)] for a, b, limit in back], "load_s": loads,
              "before": before, "after": after}
    if not short and p99[1] > 1.5 * p99[0]:
        failures.append("the well-behaved client's p99 is over 1.5 times that of the quiet load")
    if not short and any(b - a > limit for a, b, limit in back):
        failures.append("a recovery took longer than loading and 1.2 times the replay")
    died = result["kills"]
    if not died["pipit-engine"] or (gateway and not died["pipit-gateway"]) or (not short and not died["client"]) or \
            not counts.get("well: length"):
        failures.append("nothing happened")
    if not counts.get("long: slow_consumer"):
        failures.append("no reader stalled until its clock ended it")
    d.end(failures)
    return common.finish(args, result, failures)


if __name__ == "__main__":
    sys.exit(main())
