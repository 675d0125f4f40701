#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of answers through the command line beside the engine alone: many short pairs, either first in turn, for as long as
--seconds says; each pair's ratio is appended to --log, and what is known from the whole log is printed. So a figure that wants
more pairs than a machine stays quiet for comes together in pieces.

usage: pairs.py --model FILE --log FILE [--tokens N] [--seconds S]
PIPIT_BUILD is the build folder."""
import argparse
import csv
import io
import json
import math
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import overhead  # noqa: E402
from student import t975  # noqa: E402


def speed_of_service(d, n):
    """New tokens a second as the client sees them, from the first token to the end."""
    out = overhead.ask(d, n, "--json", "--no-draft")[1]  # the engine alone drafts nothing
    last = json.loads(out.splitlines()[-1])
    t = last["timings"]
    return (last["usage"]["completion_tokens"] - 1) / (t["total_ms"] - t["ttft_ms"]) * 1e3


def speed_alone(args):
    command = [os.path.join(overhead.BUILD, "bench/pipit-bench"), "--model", args.model, "--backend", args.backend, "-t", str(args.threads),
               "--prefill", "", "--depth", "5", "-n", str(args.tokens - 1), "-r", "1", "--real", "--header"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(next(r for r in csv.DictReader(io.StringIO(out)) if r["what"] == "decode")["value"])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2", overhead.STORIES))
    p.add_argument("--backend", default="cpu")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=40)
    p.add_argument("--seconds", type=float, default=45)
    p.add_argument("--log", required=True)
    args = p.parse_args()
    d = overhead.Daemon("--ctx", "512", "--model", args.model, "--backend", args.backend, "--threads", str(args.threads), model=None)
    d.ready().close()
    end = time.monotonic() + args.seconds
    i = 0
    with open(args.log, "a") as log:
        while time.monotonic() < end:
            runs = [lambda: speed_of_service(d, args.tokens), lambda: speed_alone(args)]
            got = {k: runs[k]() for k in ((0, 1) if i % 2 else (1, 0))}
            log.write(f"{got[0]:.3f},{got[1]:.3f}\n")
            i += 1
    d.stop(30)
    with open(args.log) as log:
        logs = [math.log(float(a) / float(b)) for a, b in (line.split(",") for line in log if line[0].isdigit())]
    if len(logs) < 2:
        print(f"{len(logs)} pair says nothing")
        return 1
    mean, half = statistics.mean(logs), t975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    print(f"{len(logs)} pairs: {math.exp(mean):.4f} of the engine's speed, 95 % between {math.exp(mean - half):.4f} and "
          f"{math.exp(mean + half):.4f}; the middle one {math.exp(statistics.median(logs)):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
