#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One ordinary user who abuses the daemon beside one who does not: each case is an attack of abusers.py and the figure that
the other user must not see get worse than what is asked. Prints a row of a table for each, and writes them as JSON.

--all is the soak: every abuser at once against one daemon with the tests' engine (so the poisons work), while two neighbours
and one over the gateway check and time their answers. It passes when no answer was wrong, the front is one process, no engine
died but of a poison, nothing is left behind, and the engine stayed within its plan.

usage: abuse.py [--model FILE] [--only NAME]... [--all] [--seconds S] [--seed N] [--json FILE]     as root, for several users"""
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

import abusers
import common
from abusers import connect, long_text, neighbour
from common import FIRST_UID, SLOW, Daemon, Stop, fork, percentile, wait_until
from lane import (DONE, E2C, ERROR, F_SESSION, METRICS_GET, PING, PONG, S_IGNORE_END, S_NO_DRAFT, T_PROMPT, T_SESSION, TOKEN, TOKENIZE, Lane,
                  Refused, item, sampling, text_of)

BUILD = common.daemon.BUILD
CASES = {}
GOOD, BAD = 0, 1  # users, by common.pin()


def case(attack, asked):
    def keep(f):
        CASES[f.__name__.replace("_", "-")] = (f, attack, asked)
        return f
    return keep


def daemon(args, *options, **kw):
    return Daemon("--threads", str(args.threads), *options, model=args.model, backend=args.backend, **kw)


class Beside:
    """Abusers [(user, function, keywords)] and a neighbour, each a process, for so many seconds."""

    def __init__(self, d, args, who, seconds, neighbours=1, **kw):
        self.stop, self.pipes, self.run = Stop(seconds), [], []
        for i, (which, what, more) in enumerate(who):
            self.start(abusers.run, which, what, d.folder, args.seed * 1000 + i, self.stop, **more)
        self.told = []
        for _ in range(neighbours):
            self.start(neighbour, GOOD, d.folder, self.stop, **kw)

    def start(self, f, *a, **kw):
        pipe = fork.SimpleQueue()
        a = (*a[:4], a[4], pipe) if f is abusers.run and len(a) == 5 else (*a, pipe)
        p = fork.Process(target=f, args=a, kwargs=kw)
        p.start()
        self.pipes.append((f, pipe, p))

    def end(self):
        """(what the neighbours say, counts of all abusers)"""
        told, counts = [], {}
        for f, pipe, p in self.pipes:
            wait_until(lambda pipe=pipe, p=p: not pipe.empty() or p.exitcode is not None, 60 + max(0, self.stop.end - time.monotonic()))
            got = pipe.get() if not pipe.empty() else None
            if got is None:
                p.kill()
            p.join(5)
            if f is neighbour:
                told.append(got or {"gaps": [], "firsts": [], "wrong": ["it did not end"], "n_wrong": 1, "answers": 0, "busy": 0})
            else:
                counts.update({k: counts.get(k, 0) + v for k, v in (got or {"did not end": 1}).items()})
        return told, counts


def worst(pairs):
    return max((s for _, s in pairs), default=float("inf"))


@case("four programs tokenize texts of 256 KiB without a pause, then 60", "no restart; worst gap under 0.5 s")
def tokenize(args):
    d = daemon(args, "--lanes", "128")
    lane, gaps, n = d.lane(), [], {}
    for how_many in (4, 60):
        b = Beside(d, args, [(BAD, abusers.tokenizes, {})] * how_many, args.seconds / 2)
        told, counts = b.end()
        gaps += told[0]["gaps"]
        n[how_many] = counts.get("stop", 0) + counts.get("length", 0)
    restarts = lane.status().n_restarts
    lane.close()
    d.stop(30)
    return restarts == 0 and worst(gaps) < 0.5 * SLOW, \
        f"{restarts} restarts; worst gap {worst(gaps):.3f} s, p99 {percentile([g for _, g in gaps], 99) * 1e3:.0f} ms; texts {n[4]} and {n[60]}", \
        {"restarts": restarts, "worst_gap_s": worst(gaps), "gaps": len(gaps), "texts": n}


@case("a reader of logits takes a row a stall, one sequence", "first token under 5 s")
def slow_reader(args):
    d = daemon(args, "--sequences", "1")
    lane, firsts = d.lane(), []
    end = time.monotonic() + args.seconds
    while not firsts or time.monotonic() < end:
        b = Beside(d, args, [(BAD, abusers.reads_slowly, {})], 20 * SLOW, neighbours=0)
        wait_until(lambda: lane.status().n_running == 1, 20)
        time.sleep(1)
        began = time.monotonic()
        rid = abusers.ask_again(lane, 5)
        for e in lane.events(rid):
            if e.type == TOKEN:
                firsts.append(time.monotonic() - began)
                break
        for e in lane.events(rid):
            pass
        b.stop.early.set()
        b.end()
    lane.close()
    d.stop(30)
    return max(firsts) < 5 * SLOW, f"worst first token of {len(firsts)}: {max(firsts):.2f} s", {"first_token_s": firsts}


@case("two requests cancelled in turn, slow steps", "at least 4 of 8.3 tokens a second")
def cancel_turns(args):
    """Compared with the speed beside two requests that are not cancelled: those share the steps, too."""
    with tempfile.TemporaryDirectory() as folder:
        model = args.slow_model or os.path.join(folder, "slow.gguf")
        if not args.slow_model:
            make_model(model, layers=16, hidden=1024, ffn=4096, heads=16)
        os.chmod(folder, 0o755)
        d = Daemon("--threads", "1", "--sequences", "3", "--ctx", "2048", model=model, backend=args.backend)
        rates = {}
        for name, who in (("alone", []), ("beside two that end", [(BAD, abusers.cancels, {"pause": 3600})]),
                          ("beside two cancelled in turn", [(BAD, abusers.cancels, {})])):
            b = Beside(d, args, who, args.seconds / 3, n=200)
            told, counts = b.end()
            span = sum(g for _, g in told[0]["gaps"])
            rates[name] = len(told[0]["gaps"]) / span if span else 0.0
        d.stop(30)
    rate, other = rates["beside two cancelled in turn"], rates["beside two that end"]
    return rate >= 4 / 8.3 * other, f"{rate:.1f} of {other:.1f} tokens a second beside two that are not cancelled ({rates['alone']:.1f} alone)", \
        {"tokens_a_second": rates, "cancelled": counts.get("cancelled", 0)}


@case("RESUME behind the longest answer, four clients", "ping p99 20 ms, hello 50 ms")
def resume(args):
    d = daemon(args, "--journal-bytes", "64MiB", "--lanes", "64")
    lane = d.lane()
    n = lane.hello.max_request_bytes - 64
    last = list(lane.events(lane.request(item(T_PROMPT, ("zqxj" * n)[:n]), kind=TOKENIZE)))[-1]
    ready = fork.Semaphore(0)
    pings, hellos = {}, {}
    for how in ("alone", "beside"):
        pings[how], hellos[how] = [], []
        if how == "beside":
            b = Beside(d, args, [(BAD, abusers.resumes, {"ready": ready})] * 4, 3600, neighbours=0)
            if not all(ready.acquire(timeout=120 * SLOW) for _ in range(4)):
                raise TimeoutError("no long answers to resume")
        end = time.monotonic() + args.seconds / 2
        while time.monotonic() < end:
            began = time.monotonic()
            lane.send(PING)
            while lane.recv().type != PONG:
                pass
            pings[how].append(time.monotonic() - began)
            began = time.monotonic()
            d.lane().close()
            hellos[how].append(time.monotonic() - began)
            time.sleep(0.005)
    b.stop.early.set()
    _, counts = b.end()
    lane.close()
    d.stop(30)
    p = [[percentile(x[how], 99) * 1e3 for x in (pings, hellos)] for how in ("beside", "alone")]
    return p[0][0] <= 20 * SLOW and p[0][1] <= 50 * SLOW, f"p99 ping {p[0][0]:.1f} ms, hello {p[0][1]:.1f} ms ({p[1][0]:.1f} and {p[1][1]:.1f} without) of " \
        f"{len(pings['beside'])}; {counts.get('resume', 0)} resumes behind {last.seq} events", \
        {"ping_hello_ms_p99": {"beside": p[0], "alone": p[1]}, "events": last.seq, "counts": counts}


def turns(which, folder, seed, out, n):
    """Turns of one session, each again until it is taken."""
    common.pin(which)
    lane, saved, wrong = connect(folder), 0, []
    for i in range(n):
        while True:
            rid = lane.request(item(T_PROMPT, f" and then {seed} {i}") + item(T_SESSION, "same") + sampling(max_tokens=4, flags=S_IGNORE_END),
                               flags=F_SESSION)
            e = list(lane.events(rid))[-1]
            if e.type == DONE and e.session == 1:
                saved += 1
                break
            if e.type == ERROR and e.code != "BUSY":
                wrong.append(repr(e))
                break
            if e.type == DONE:
                wrong.append(f"not saved: {e!r}")
                break
            time.sleep(0.005)
    lane.close()
    out.put((saved, wrong))


@case("two daemons of one state folder, turns of the same session at once", "no turn is lost")
def two_daemons(args):
    """The session has at the end the tokens of all turns that were told to be saved, one after the other."""
    state, n = tempfile.mkdtemp(prefix="ps-"), max(3, int(args.seconds / 3))
    os.chmod(state, 0o777)
    options = ("--state-dir", state, "--ctx", "4096")
    two = [daemon(args, *options) for _ in range(2)]
    pipes = [fork.SimpleQueue() for _ in two]
    run = [fork.Process(target=turns, args=(BAD, d.folder, i, pipes[i], n)) for i, d in enumerate(two)]
    for p in run:
        p.start()
    got = [pipe.get() for pipe in pipes]
    for p in run:
        p.join()
    lane = two[0].lane()
    ids = 0
    for i in range(2):  # what the turns are in tokens
        for j in range(n):
            e = list(lane.events(lane.request(item(T_PROMPT, f" and then {i} {j}"), kind=TOKENIZE)))[-1]
            ids += e.n_prompt + 4
    lane.close()
    path = os.path.join(state, "sessions", str(FIRST_UID + BAD if os.getuid() == 0 else os.getuid()), "same.session")
    with open(path, "rb") as f:
        held = struct.unpack_from("<I", f.read(16), 12)[0]
    for d in two:
        d.stop(30)
    saved, wrong = got[0][0] + got[1][0], got[0][1] + got[1][1]
    # The last token of a turn is not yet in the cache when it is saved, or is; a beginning of text is once more in each count.
    lost = 2 * n - saved
    short = ids - held
    return not wrong and lost == 0 and short <= 4 * n, f"{saved} of {2 * n} turns saved; the file holds {held} tokens of {ids} said", \
        {"saved": saved, "turns": 2 * n, "tokens": held, "tokens_said": ids, "wrong": wrong[:5]}


def hold(uid, folder, got, end):
    """A lane of that id, until the end."""
    os.setgroups([])
    os.setresuid(uid, uid, uid)
    try:
        lane = connect(folder)
        got.put(uid)
        end.wait()
        lane.close()
    except Refused:
        got.put(None)


@case("an owner of 65,536 subordinate ids takes lanes with each; root connects", "root connects; the owner has one user's share")
def subordinate_ids(args):
    if os.getuid() != 0:
        return None, "needs root", {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "subuid")
        with open(path, "w") as f:
            f.write(f"{FIRST_UID + BAD}:1000000:65536\n")
        d = daemon(args, "--subuid-file", path)
        got, end, run = fork.SimpleQueue(), fork.Event(), []
        for i in random.Random(args.seed).sample(range(65536), 40):
            run.append(fork.Process(target=hold, args=(1000000 + i, d.folder, got, end)))
            run[-1].start()
        n = sum(got.get() is not None for _ in run)
        try:
            d.lane().close()
            root = "connects"
        except Refused as e:
            root = f"refused: {e}"
        one = fork.SimpleQueue()
        p = fork.Process(target=hold, args=(FIRST_UID + 5, d.folder, one, end))
        p.start()
        other = one.get() is not None
        end.set()
        for q in (*run, p):
            q.join()
        d.stop(30)
    return root == "connects" and other and n < 32, f"40 ids got {n} of 32 lanes; root {root}, another user {'connects' if other else 'is refused'}", \
        {"lanes": n, "root": root, "another": other}


@case("poison requests in turn, each withdrawn before it is convicted", "the neighbour ends DONE")
def poison(args):
    d = daemon(args, "--sequences", "3", hooks=True)
    lane = d.lane()
    want = text_of(lane.events(abusers.ask_again(lane, 200)))
    b = Beside(d, args, [(BAD, abusers.poisons, {})], args.seconds, want=want, n=200)
    told, counts = b.end()
    restarts = lane.status().n_restarts
    lane.close()
    d.stop(30)
    t = told[0]
    return t["n_wrong"] == 0 and t["answers"] > 0 and restarts > 0, f"{t['answers']} answers DONE, {t['n_wrong']} otherwise; {restarts} engines killed", \
        {"answers": t["answers"], "wrong": t["wrong"], "restarts": restarts, "counts": counts}


@case("clients fill all lanes under socket activation", "one start of the gateway, it serves")
def lanes_full(args):
    import test_supervised
    import zclient
    system = test_supervised.Systemd()
    conf = os.path.join(system.folder, "conf")
    with open(conf, "w") as f:
        f.write(f"model = {args.model}\nbackend = {args.backend}\nthreads = {args.threads}\n")
    os.chmod(system.folder, 0o755)
    for name in ("lane", "zmq"):
        os.chmod(os.path.join(system.folder, name + ".sock"), 0o666)
    starts = 0
    try:
        system.start([test_supervised.PIPITD, "--config", conf, "--runtime-dir", system.folder], ["lane", "gateway"])
        system.wait_for("READY=1")
        pipe, stop = fork.SimpleQueue(), Stop(args.seconds + 4)
        p = fork.Process(target=abusers.run, args=(BAD, abusers.fills_lanes, system.folder, args.seed, stop, pipe))
        p.start()
        time.sleep(2)
        client, served, last, gateway = zclient.Client(os.path.join(system.folder, "zmq.sock"), context=zclient.zmq.Context()), 0, 0.0, None
        while not stop:
            if gateway is None or os.waitpid(gateway, os.WNOHANG)[0]:
                if gateway:
                    system.children.remove(gateway)
                gateway, _ = system.start([test_supervised.GATEWAY, "--runtime-dir", system.folder, "--listen-fd", "3"], ["zmq"])
                starts += 1
            r = zclient.generate("Once", temperature=0, max_tokens=3)
            began = time.monotonic()
            try:
                e = client.last(r)
                served += e.HasField("done")
                last = max(last, time.monotonic() - began)
            except zclient.Timeout:
                pass
        counts = pipe.get()
        p.join()
        client.close()
    finally:
        system.close()
    return starts == 1 and served > 0 and counts.get("refused", 0) > 0, f"{starts} start, {served} requests served, the slowest in {last:.2f} s; " \
        f"{counts.get('connected', 0)} lanes held, {counts.get('refused', 0)} refused", {"starts": starts, "served": served, "counts": counts}


def watch(which, folder, stop, ready, out):
    """All that another user sees: (when, name, value) of each change."""
    common.pin(which)
    lane, was, seen = connect(folder), {}, []
    lease = lane.lease(E2C, 65536)
    n = 0
    while not stop:
        s = lane.status()
        now = {k: getattr(s, k) for k in ("n_running", "n_queued", "n_restarts", "n_requests", "n_prompt_tokens", "n_new_tokens", "kv_bytes_used",
                                          "step_age_ns")}
        lane.send(METRICS_GET, struct.pack("<IIIIQQ", E2C, lease.buf, lease.generation, 0, 0, 0))
        bulk = lane.recv()
        text = lane.e2c[lease.offset:lease.offset + bulk.n_bytes].decode()
        lane.recv()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                now[name] = float(value)
        at = time.monotonic()
        seen += [(at, k, v) for k, v in now.items() if was.get(k) != v]
        was = now
        n += 1
        ready.set()
        time.sleep(0.001)
    lane.close()
    out.put((n, seen))


@case("a spy polls status and metrics", "nothing better than tens of tokens, 10 s late")
def spy(args):
    """The neighbour asks once after a rest; the spy's first change is the lateness. Steps of token counters are the grain."""
    d = daemon(args)
    lane, ready, pipe, stop = d.lane(), fork.Event(), fork.SimpleQueue(), Stop(3600)
    time.sleep(2)
    p = fork.Process(target=watch, args=(BAD, d.folder, stop, ready, pipe))
    p.start()
    ready.wait()
    rng, asked = random.Random(args.seed), []
    for _ in range(args.rounds):
        n_prompt, n_new = rng.randrange(20, 200), rng.randrange(20, 60)
        began = time.monotonic()
        e = list(lane.events(lane.request(item(T_PROMPT, long_text(rng, 6 * n_prompt)) + sampling(max_tokens=n_new, flags=S_IGNORE_END))))[-1]
        asked.append((began, e.n_prompt, e.n_new))
        time.sleep(23)  # by then it has come out
    stop.early.set()
    n, seen = pipe.get()
    p.join()
    lane.close()
    d.stop(30)
    late, grain, values = [], {}, {}
    for began, _, _ in asked:
        late.append(min((t - began for t, k, v in seen if t > began and k != "pipit_lanes"), default=float("inf")))
    for _, k, v in seen:
        if "tokens" in k and k in values and v > values[k]:
            grain[k] = min(grain.get(k, float("inf")), v - values[k])
        values[k] = v
    # A count that is told in whole grains changes by multiples of it.
    steps = min(grain.values(), default=float("inf"))
    exact = [a for a in asked if any(v - w in (a[1], a[2]) for k in ("n_prompt_tokens", "n_new_tokens")
                                     for v, w in pairs_of(seen, k))]
    return 10 <= min(late) <= max(late) < 30 and steps >= 20 and not exact, \
        f"first sign after {min(late):.1f} s; token counters move by {steps:g} or more; {n} polls", \
        {"first_sign_s": late, "grain_tokens": grain, "polls": n, "exact": exact}


def pairs_of(seen, name):
    values = [v for _, k, v in seen if k == name]
    return zip(values[1:], values)


@case("one user's answers fill its quota", "another's finished answer is there for its 30 s")
def quota(args):
    d = daemon(args)
    lane = d.lane()
    rid = abusers.ask_again(lane, 20)
    said = [(e.type, e.seq) for e in lane.events(rid) if e.seq]
    began = time.monotonic()
    b = Beside(d, args, [(BAD, abusers.fills_quota, {})] * 2, 29 * SLOW, neighbours=0)
    held = 0.0
    while time.monotonic() < began + 28.5:
        other = d.lane()
        other.resume(rid)
        again = [(e.type, e.seq) for e in other.events(rid) if e.seq]
        other.close()
        if again != said:
            break
        held = time.monotonic() - began
        time.sleep(0.5)
    b.stop.early.set()
    _, counts = b.end()
    lane.close()
    d.stop(30)
    return held > 27, f"read again in full until {held:.1f} s (the last try), beside {sum(counts.values())} answers", {"held_s": held, "counts": counts}


@case("the journal is full, last events of requests without items", "every client is told")
def journal_full(args):
    d = daemon(args, "--journal-bytes", "1MiB", "--sequences", "8", "--max-queue", "256")
    b = Beside(d, args, [(BAD + i, abusers.without_items, {"n": 40}) for i in range(3)] + [(BAD, abusers.fills_quota, {})] * 2, args.seconds)
    told, counts = b.end()
    lane = d.lane()
    left = not wait_until(lambda: d.at_rest(lane), 20)
    lane.close()
    d.stop(30)
    return counts.get("asked") == counts.get("told") and not left and counts.get("asked", 0) > 0, \
        f"{counts.get('told', 0)} of {counts.get('asked', 0)} told; {counts.get('NO_MEMORY', 0)} of them that the journal is full", {"counts": counts}


@case("40 parallel `pipit ask --retry 20 -n 3`", "40 answers")
def forty_asks(args):
    d = daemon(args)
    words = [os.path.join(BUILD, "client/pipit"), "ask", "--raw", "--retry", "20", "-n", "3", "--runtime-dir", d.folder, "Once"]
    who = {"user": FIRST_UID + BAD, "group": FIRST_UID + BAD, "extra_groups": [], "cwd": "/"} if os.getuid() == 0 else {}
    began = time.monotonic()
    run = [subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **who) for _ in range(40)]
    got = [(p.communicate(timeout=60 * SLOW), p.returncode) for p in run]
    seconds = time.monotonic() - began
    d.stop(30)
    good = sum(rc == 0 and len(out) > 0 for (out, err), rc in got)
    return good == 40, f"{good} answers in {seconds:.1f} s", {"answers": good, "seconds": seconds, "errors": sorted({e.decode()[:200] for (_, e), _ in got if e})}


@case("one user asks for 300 tokens, another for 5", "the second's first token within two of the first's gaps")
def long_and_short(args):
    """Counted are the first's tokens that are told between the second's question and its first token."""
    d = daemon(args, "--ctx", "2048")
    long, short, waited = d.lane(), d.lane(), []
    end = time.monotonic() + args.seconds
    while time.monotonic() < end or len(waited) < 3:
        rid, n, began = abusers.ask_again(long, 300, flags=S_IGNORE_END | S_NO_DRAFT), 0, time.monotonic()
        while n < 50 or long.readable():
            n += long.recv().type == TOKEN
        asked, sid, between = time.monotonic(), abusers.ask_again(short, 5, "One day"), 0
        while True:
            e = abusers.either(short, long)
            between += e.id == rid and e.type == TOKEN
            if e.id == sid and e.type == TOKEN:
                break
        waited.append((between, time.monotonic() - asked, (asked - began) / n))
        for lane, which in ((short, sid), (long, rid)):
            for e in lane.events(which):
                pass
    long.close()
    short.close()
    d.stop(30)
    mid, most = (percentile([n for n, _, _ in waited], p) for p in (50, 100))
    return mid <= args.gaps, f"behind {mid} tokens of the first, at most {most} ({len(waited)} times); " \
        f"median {percentile([s for _, s, _ in waited], 50) * 1e3:.0f} ms at gaps of {percentile([g for _, _, g in waited], 50) * 1e3:.0f} ms", \
        {"waited": waited[:50]}


def make_model(path, layers=4, hidden=256, ffn=1024, heads=8):
    subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", str(layers), "--hidden", str(hidden), "--ffn", str(ffn),
                    "--heads", str(heads), "--kv-heads", str(heads // 2), "--head-dim", str(hidden // heads), "--vocab", "300", "--ctx", "8192", "-t", "F16",
                    path], check=True, capture_output=True)
    os.chmod(path, 0o644)


def main():
    p = common.arguments(__doc__.split("\n")[0], 15)
    p.add_argument("--seconds", type=float, help="of each case, where it has no time of its own; of --all")
    p.add_argument("--only", action="append", choices=sorted(CASES), help="this case; may be given again")
    p.add_argument("--all", action="store_true", help="all abusers at once against one daemon")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3, help="questions of the spied-on neighbour, each with a rest of 23 s")
    p.add_argument("--gaps", type=int, default=2, help="so many may a first token wait in long-and-short")
    p.add_argument("--slow-model", help="whose steps take some 120 ms; made where none is given")
    args = p.parse_args()
    args.seconds = args.seconds or args.minutes * 60
    args.minutes = args.seconds / 60
    if args.all:
        import abuse_all
        return abuse_all.main(args)
    rows, failures = [], []
    print("| attack | asked | measured |\n|---|---|---|", flush=True)
    for name in args.only or CASES:
        f, attack, asked = CASES[name]
        try:
            passed, said, figures = f(args)
        except Exception as e:  # noqa: BLE001 - the others are still of use
            passed, said, figures = False, f"{type(e).__name__}: {e}", {}
        print(f"| {attack} | {asked} | {'' if passed else '**missed** ' if passed is False else '**skipped** '}{said} |", flush=True)
        rows.append({"name": name, "attack": attack, "asked": asked, "measured": said, "passed": passed, **figures})
        if passed is False:
            failures.append(name)
    return common.finish(args, {"rows": rows}, failures)


if __name__ == "__main__":
    sys.exit(main())
