#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What front, gateway and client of two builds cost a token, side by side: both daemons stay up, requests go to either in turn,
the middle of the rounds counts. So a change shows on a machine whose own state changes more between two runs of overhead.py.
Drafts are off: each token is a step of its own.

usage: beside.py BUILD_A BUILD_B [--model FILE] [--tokens N] [--rounds N] [--json FILE]"""
import argparse
import datetime
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import overhead  # noqa: E402
import daemon  # noqa: E402
from zclient import Client, generate  # noqa: E402


class Service:
    def __init__(self, build, model):
        daemon.PIPITD = os.path.join(build, "daemon/front/pipitd")
        self.cli = os.path.join(build, "client/pipit")
        self.daemon = overhead.Daemon("--ctx", "512", "--draft", "0", model=model, backend="cpu", gateway="yes")
        self.daemon.ready().close()
        socket = os.path.join(self.daemon.folder, "zmq.sock")
        overhead.wait_until(lambda: os.path.exists(socket))
        self.pids = {"front": self.daemon.process.pid, "gateway": self.daemon.child("pipit-gateway")}
        self.client = Client(socket)
        self.zmq(8)
        self.start = min(self.ask(1) for _ in range(6))
        self.rounds = []

    def ask(self, n):
        return overhead.ask(self.daemon, n, cli=self.cli)[0]

    def zmq(self, n):
        self.client.text(generate("Once upon a time", temperature=0, max_tokens=n, ignore_end=True), 60)

    def measure(self, n):
        client = (self.ask(n) - self.start) / n
        before = {k: overhead.cpu_us(pid) for k, pid in self.pids.items()}
        self.zmq(n)
        self.rounds.append({"client": client, **{k: (overhead.cpu_us(pid) - before[k]) / n for k, pid in self.pids.items()}})

    def middle(self):
        figures = {k: statistics.median(r[k] for r in self.rounds) for k in ("front", "gateway", "client")}
        return {**{k: round(v, 1) for k, v in figures.items()}, "sum": round(sum(figures.values()), 1)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("builds", nargs=2)
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2", overhead.STORIES))
    p.add_argument("--tokens", type=int, default=60)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--json")
    args = p.parse_args()
    services = [Service(build, args.model) for build in args.builds]
    for i in range(args.rounds):
        for s in services[::-1] if i % 2 else services:
            s.measure(args.tokens)
    ratios = [statistics.median(b[k] / a[k] for a, b in zip(services[0].rounds, services[1].rounds))
              for k in ("front", "gateway", "client")]
    result = {"command": "bench/service/beside.py A B " + " ".join(sys.argv[3:]), "date": datetime.date.today().isoformat(),
              "model": os.path.basename(args.model), "a": services[0].middle(), "b": services[1].middle(),
              "b_to_a": dict(zip(("front", "gateway", "client"), (round(r, 3) for r in ratios)))}
    for s in services:
        s.client.close()
        s.daemon.stop(30)
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            f.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
