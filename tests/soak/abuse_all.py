# SPDX-License-Identifier: Apache-2.0
"""abuse.py --all: every abuser at once against one daemon, beside two neighbours on lanes and one over the gateway. The poisons
come once a minute (they cost everybody a load of the model, which is what a crash costs), all others without a pause."""
import os
import random
import re
import shutil
import tempfile
import time

import abusers
import common
import flood
from common import SLOW, Daemon, Stop, fork, percentile, wait_until
from lane import text_of

# (user, abuser, how many, keywords)
ABUSERS = [
    (1, abusers.tokenizes, 4, {}), (2, abusers.reads_slowly, 1, {}), (2, abusers.scores_and_embeds, 1, {}), (3, abusers.cancels, 1, {}),
    (4, abusers.resumes, 2, {}), (5, abusers.poisons, 1, {"pause": 60}), (6, abusers.fills_lanes, 1, {}), (7, abusers.fills_quota, 2, {}),
    (8, abusers.without_items, 1, {}), (9, abusers.keeps_sessions, 1, {}), (10, abusers.spies, 1, {}), (11, abusers.long_answers, 1, {}),
]
NEIGHBOURS = (0, 12)


def over_gateway(folder, stop, want, out):
    """The neighbour whose answers come through the gateway."""
    common.pin(13)
    client, n, wrong, busy = flood.OverZmq(folder), 0, [], 0
    while not stop:
        try:
            got = client.ask()
            if isinstance(got, float):
                busy += 1
                time.sleep(min(1, got))
            elif b"".join(text for _, text in got) != want:
                wrong.append(repr(got)[:500])
            else:
                n += 1
        except Exception as e:  # noqa: BLE001 - whatever it is, it must not happen to it
            wrong.append(repr(e))
            time.sleep(0.2)
    out.put({"answers": n, "busy": busy, "wrong": wrong[:5], "n_wrong": len(wrong), "resumed": client.resumed})


def by_tenth(pairs, began, seconds, p):
    """The percentile in each tenth of the run, ms: does it grow?"""
    parts = [[] for _ in range(10)]
    for at, s in pairs:
        parts[min(9, int((at - began) / seconds * 10))].append(s)
    return [round(percentile(x, p) * 1e3, 1) for x in parts]


def start(f, a, kw=None):
    pipe = fork.SimpleQueue()
    p = fork.Process(target=f, args=(*a, pipe), kwargs=kw or {})
    p.start()
    return f, a, pipe, p


def result_of(job, end):
    f, a, pipe, p = job
    wait_until(lambda: not pipe.empty() or p.exitcode is not None, 90 + max(0, end - time.monotonic()), 0.05)
    got = None if pipe.empty() else pipe.get()
    if got is None:
        p.kill()
    p.join(5)
    return got


def together(folder):
    """pipitd, the tests' engine and the gateway in one folder, which no later build changes."""
    build = common.daemon.BUILD
    for path in ("tests/e2e/pipitd", "tests/e2e/pipit-engine", "daemon/gateway/pipit-gateway"):
        if os.path.exists(os.path.join(build, path)):
            shutil.copy(os.path.join(build, path), folder)
    common.daemon.HOOKED = os.path.join(folder, "pipitd")


def main(args):
    state, programs = tempfile.mkdtemp(prefix="ps-"), tempfile.mkdtemp(prefix="pp-")
    together(programs)
    d = Daemon("--threads", str(args.threads), "--sequences", "4", "--lanes", "256", "--state-dir", state, "--session-bytes", "64MiB",
               model=args.model, backend=args.backend, hooks=True,
               gateway="yes" if os.path.exists(os.path.join(programs, "pipit-gateway")) else "no")
    commit = common.commit()
    lane, failures = d.lane(), []
    want = text_of(lane.events(abusers.ask_again(lane, abusers.TOKENS)))
    want_zmq = text_of(lane.events(lane.request(abusers.prompt(flood.QUESTION, flood.TOKENS))))
    zmq = d.has_gateway() and flood.speaks_zmq()
    warm = Stop(3)
    for job in [start(abusers.run, (which, what, d.folder, 1, warm), kw) for which, what, _, kw in ABUSERS if what is not abusers.poisons]:
        result_of(job, warm.end)  # what is allocated on first use is there
    wait_until(lambda: d.at_rest(lane), 30)
    time.sleep(31)  # kept answers go
    before, front, began = d.figures(lane), d.process.pid, time.monotonic()
    stop, peak = Stop(args.seconds), {}
    good = [start(abusers.neighbour, (which, d.folder, stop), {"want": want, "pause": 0.2}) for which in NEIGHBOURS]
    good += [start(over_gateway, (d.folder, stop, want_zmq))] if zmq else []
    bad = [start(abusers.run, (which, what, d.folder, args.seed * 1000 + i, stop), kw) for which, what, n, kw in ABUSERS for i in range(n)]
    while not stop:
        time.sleep(1)
        for name, now in d.figures().items():
            for k, v in now.items():
                peak[f"{name} {k}"] = max(peak.get(f"{name} {k}", 0), v)
        if d.process.poll() is not None:
            failures.append("the front ended")
            stop.early.set()
    seen, counts = [result_of(job, stop.end) for job in good], {}
    for job in bad:
        got = result_of(job, stop.end)
        name = job[1][1].__name__
        if got is None:
            failures.append(f"{name} does not end")
        for k, v in (got or {}).items():
            counts.setdefault(name, {})[k] = counts.get(name, {}).get(k, 0) + v
    others = {}
    for job, got in zip(good, seen):
        name = f"{job[0].__name__} {job[1][0] if job[0] is abusers.neighbour else ''}".strip()
        if not got or got["n_wrong"] or not got["answers"]:
            failures.append(f"an answer of {name} was hurt")
        others[name] = {k: v for k, v in (got or {}).items() if k not in ("gaps", "firsts")}
        for k in ("gaps", "firsts"):
            if got and k in got:
                ms = [s for _, s in got[k]]
                others[name][k] = {"n": len(ms), "ms_p50_p99_worst": [round(percentile(ms, p) * 1e3, 1) for p in (50, 99, 100)],
                                   "ms_p99_by_tenth": by_tenth(got[k], began, args.seconds, 99)}
    if not wait_until(lambda: d.at_rest(lane), 60):
        failures.append(f"not at rest: {lane.status()}")
    time.sleep(31)
    log = d.text()
    died, hung = len(re.findall(r"the engine (?:died|ended|was killed)", log)), len(re.findall(r"was not read in time|no progress|is killed", log))
    killed = counts.get("poisons", {}).get("killed", 0)
    if lane.status().n_restarts > killed + 1:
        failures.append(f"{lane.status().n_restarts} engines died, {killed} of poisons")
    told = counts.get("without_items", {})
    if told.get("asked") != told.get("told"):
        failures.append("a client was not told its request's end")
    after = d.compare(before, lane, failures)
    most = peak.get("engine bytes", 0)
    if most > after["counted"]["plan_bytes"]:
        failures.append(f"the engine's memory was {most} bytes, over its plan of {after['counted']['plan_bytes']}")
    if text_of(lane.events(abusers.ask_again(lane, abusers.TOKENS))) != want:
        failures.append("the answer is another one afterwards")
    restarts = lane.status().n_restarts
    lane.close()
    d.end(failures)
    shutil.rmtree(programs)
    shutil.rmtree(state)
    return common.finish(args, {"commit": commit, "front": front, "restarts": restarts, "poisons": killed, "log_says_died": died, "log_says_hung": hung,
                                "neighbours": others, "abusers": counts, "peak": peak, "before": before, "after": after}, failures)
