#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What many askers see of one daemon: time to the first token, time between tokens, and the whole; by gap-target, and beside
llama-server. Three loads:

  batch   24 requests of about 250 tokens in and 64 out, eight at once
  stream  64 of them, two a second, whether or not the ones before have ended
  long    eight chats of 300 tokens out; after a second one more asks with a prompt of 4,000 tokens and 64 out

All prompts differ from their first word on, so no prefix is known; drafts are off. pipit is asked over ZeroMQ, llama-server
over HTTP. The servers of a run take turns, load by load, --rounds times; the table gives the median of the rounds. A gap is the
time between two pieces of one answer.

usage: chats.py --model FILE [--gap-target 20,40,60,100,200] [--load batch,stream,long] [--rounds 3] [--threads N]
                [--llama-server PROGRAM] [--csv FILE]
PIPIT_BUILD is the build folder."""
import argparse
import csv
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/e2e"))
from daemon import Daemon, wait_until  # noqa: E402
from zclient import Client, generate, pb  # noqa: E402

WORDS = ("river house light morning paper garden window letter silver mountain yellow winter people music bread train "
         "simple answer number circle quiet market doctor island engine bottle forest summer captain evening").split()
FIELDS = ("load", "server", "gap_target_ms", "total_s", "requests_per_s", "first_p50_s", "first_p99_s", "gap_p50_ms", "gap_p99_ms",
          "long_first_s")


class Ask:
    """One request: when it was sent and when each piece of its answer came."""

    def __init__(self, seed, n_in, n_out, at=None, is_long=False):
        r = random.Random(seed)
        self.prompt = " ".join(r.choice(WORDS) for _ in range(n_in))
        self.n_out = n_out
        self.at = at  # seconds after the load's start; None: when one before it has ended
        self.is_long = is_long
        self.sent = 0.0
        self.pieces = []


def load_of(name, seed):
    """(requests, how many at once)"""
    if name == "batch":
        return [Ask(f"{seed}b{i}", 250, 64) for i in range(24)], 8
    if name == "stream":
        return [Ask(f"{seed}s{i}", 250, 64, at=i / 2) for i in range(64)], 64
    return [Ask(f"{seed}c{i}", 50, 300, at=0) for i in range(8)] + [Ask(f"{seed}l", 4000, 64, at=1, is_long=True)], 9


def to_send(asks, at_once, n_running, since):
    """The requests whose time has come."""
    ready = []
    for a in asks:
        if a.at is None and n_running + len(ready) >= at_once or a.at is not None and since < a.at:
            break
        ready.append(a)
    return ready


class Pipit:
    def __init__(self, o, gap_target):
        self.name, self.gap_target = "pipit", gap_target
        self.daemon = Daemon("--model", o.model, "--backend", "cpu", "--threads", str(o.threads), "--ctx", "5120",
                             "--sequences", "9", "--draft", "0", "--gap-target", str(gap_target), gateway="yes", model=None)
        self.daemon.ready().close()
        path = os.path.join(self.daemon.folder, "zmq.sock")
        assert wait_until(lambda: os.path.exists(path))
        self.client = Client(path)

    def run(self, asks, at_once):
        waiting, running = list(asks), {}
        start = time.monotonic()
        while waiting or running:
            for a in to_send(waiting, at_once, len(running), time.monotonic() - start):
                waiting.remove(a)
                a.sent = time.monotonic()
                running[self.client.send(generate(a.prompt, temperature=0, max_tokens=a.n_out, ignore_end=True))] = a
            if not self.client.socket.poll(20):
                continue
            e = pb.Event.FromString(self.client.socket.recv_multipart()[-1])
            if e.HasField("delta"):
                running[e.id].pieces.append(time.monotonic())
            elif e.HasField("done"):
                del running[e.id]
            elif e.HasField("error"):
                sys.exit(f"chats: {e.error.text}")
        return time.monotonic() - start

    def stop(self):
        self.client.close()
        self.daemon.stop(30)


class Llama:
    def __init__(self, o):
        self.name, self.gap_target = "llama-server", ""
        self.port = 18473
        self.process = subprocess.Popen(
            [o.llama_server, "-m", o.model, "-t", str(o.threads), "-tb", str(o.threads), "-np", "9", "-c", str(9 * 5120),
             "--port", str(self.port), "--no-webui"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(self.is_up, 120, 0.2), "llama-server did not start"

    def is_up(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except OSError:
            return False
        finally:
            c.close()

    def ask(self, a, slots, start):
        if a.at is not None:
            time.sleep(max(0.0, a.at - (time.monotonic() - start)))
        with slots:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
            body = {"prompt": a.prompt, "n_predict": a.n_out, "temperature": 0, "ignore_eos": True, "stream": True,
                    "cache_prompt": False}
            a.sent = time.monotonic()
            c.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            for line in c.getresponse():
                if line.startswith(b"data: ") and not json.loads(line[6:]).get("stop"):
                    a.pieces.append(time.monotonic())
            c.close()

    def run(self, asks, at_once):
        slots = threading.Semaphore(at_once)
        start = time.monotonic()
        threads = [threading.Thread(target=self.ask, args=(a, slots, start)) for a in asks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.monotonic() - start

    def stop(self):
        self.process.terminate()
        self.process.wait()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def measure(server, name, seed):
    asks, at_once = load_of(name, seed)
    total = server.run(asks, at_once)
    short = [a for a in asks if not a.is_long]
    first = [a.pieces[0] - a.sent for a in short]
    gaps = [(b - a) * 1e3 for k in short for a, b in zip(k.pieces, k.pieces[1:])]
    return {"total_s": total, "requests_per_s": len(asks) / total, "first_p50_s": percentile(first, .5),
            "first_p99_s": percentile(first, .99), "gap_p50_ms": percentile(gaps, .5), "gap_p99_ms": percentile(gaps, .99),
            **{"long_first_s": a.pieces[0] - a.sent for a in asks if a.is_long}}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--gap-target", default="20,40,60,100,200")
    p.add_argument("--load", default="batch,stream,long")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--llama-server")
    p.add_argument("--csv")
    o = p.parse_args()
    makers = [lambda g=int(g): Pipit(o, g) for g in o.gap_target.split(",") if g]
    makers += [lambda: Llama(o)] if o.llama_server else []
    rows = {}
    for i in range(o.rounds):
        for make in makers[::-1] if i % 2 else makers:
            server = make()
            try:
                measure(server, "batch", "warm")
                for load in o.load.split(","):
                    rows.setdefault((load, server.name, server.gap_target), []).append(measure(server, load, i))
            finally:
                server.stop()
    table = []
    for (load, name, gap), measured in sorted(rows.items(), key=lambda r: (r[0][0], r[0][1] != "pipit", r[0][2] or 0)):
        row = {"load": load, "server": name, "gap_target_ms": gap}
        row.update({k: f"{statistics.median(m[k] for m in measured):.3g}" for k in measured[0]})
        table.append(row)
        print(" ".join(f"{row.get(k, ''):>14}" for k in FIELDS), flush=True)
    if o.csv:
        with open(o.csv, "w", newline="") as f:
            w = csv.DictWriter(f, FIELDS)
            w.writeheader()
            w.writerows(table)


if __name__ == "__main__":
    main()
