#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of several model files beside llama.cpp, in turns at real-time priority.

    families.py --llama-bench PATH --out FILE.csv [--bench build/bench/pipit-bench] [--rounds 4] [--report] FILE.gguf...

A round of a file is a process of pipit-bench and one of llama-bench for each of flash attention on and off, first for prompts
of 512 and 2048, then for decode at depths 0 and 4096: two threads, K and V in f16. The better of llama.cpp's two settings counts,
round by round; the worse is left out of later rounds of a file and part where it was more than 3 % slower in every figure of the first.
Ratios are of one round; the table has their median, least and most. Every process is a line or more of the CSV, and what is there
is not made again. A round with a process from which others took the CPU more than five times a second does not count. Needs the right to real-time priority (chrt); --no-rt runs without."""

import argparse
import collections
import csv
import json
import os
import statistics
import resource
import subprocess
import sys
import time

PARTS = {"prompt": [512, 2048], "decode": [0, 4096]}
COLUMNS = ["model", "part", "round", "program", "setting", "n", "tokens_s", "share", "switches_s"]
DISTURBED = 5  # involuntary context switches a second: another program has the same priority


def ours(o, path, part):
    lengths = ",".join(map(str, PARTS[part]))
    what = ["-p", lengths, "-d", ""] if part == "prompt" else ["-p", "", "-d", lengths]
    out = run(o, [o.bench, "--model", path, "-t", str(o.threads), *what, "-n", str(o.n_new), "-r", str(o.repeats)])
    for r in csv.DictReader(out.splitlines()):
        if r["what"] in ("prefill", "decode"):
            yield (0 if part == "decode" and r["tokens"] == "1" else int(r["tokens"])), float(r["value"]), r["share"]


def theirs(o, path, part, flash):
    lengths = ",".join(map(str, PARTS[part]))
    what = ["-p", lengths, "-n", "0"] if part == "prompt" else ["-p", "0", "-n", str(o.n_new), "-d", lengths]
    out = run(o, [o.llama_bench, "-m", path, "-t", str(o.threads), *what, "-r", str(o.repeats), "-fa", flash, "-o", "jsonl"])
    for line in out.splitlines():
        r = json.loads(line)
        yield r["n_prompt"] or r["n_depth"], statistics.median(r["samples_ts"]), ""


def run(o, command):
    began, switches = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_nivcsw
    r = subprocess.run([*([] if o.no_rt else ["chrt", "-r", "10"]), *command], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(command)}: {r.returncode}\n{r.stderr[-2000:]}")
    took = time.monotonic() - began
    o.switches_s = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_nivcsw - switches) / took
    time.sleep(o.rest * took)
    return r.stdout


class Results:
    def __init__(self, path):
        self.path, self.rows = path, []
        if os.path.exists(path):
            with open(path) as f:
                self.rows = list(csv.DictReader(x for x in f if not x.startswith("#")))
        else:
            cpu = next(x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name"))
            commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
            with open(path, "w") as f:
                print(f"# {cpu}, {os.cpu_count()} CPUs, commit {commit}", file=f)
                print(",".join(COLUMNS), file=f)

    def of(self, *key):
        return [r for r in self.rows if all(r[k] == str(v) for k, v in zip(COLUMNS, key) if v is not None)]

    def add(self, key, figures, switches_s):
        """The figures of one process, at once: a run that was stopped has all or none of them."""
        new = [dict(zip(COLUMNS, map(str, (*key, n, f"{v:.2f}", share, f"{switches_s:.1f}")))) for n, v, share in figures]
        with open(self.path, "a") as f:
            csv.DictWriter(f, COLUMNS).writerows(new)
        self.rows += new


def left_out(res, name, part, flash):
    other = {"on": "off", "off": "on"}[flash]
    speed = {s: {r["n"]: float(r["tokens_s"]) for r in res.of(name, part, 1, "llama.cpp", s)} for s in (flash, other)}
    return bool(speed[flash]) and all(1.03 * v < speed[other].get(n, 0) for n, v in speed[flash].items())


def measure(o, res):
    for k in range(1, o.rounds + 1):
        for path in o.models:
            measure_round(o, res, path, k)


def measure_round(o, res, path, k):
    name = os.path.basename(path).rsplit(".", 1)[0]
    for part in PARTS:
        turns = [("pipit", "f16"), ("llama.cpp", "on"), ("llama.cpp", "off")]
        for program, setting in turns if k % 2 else turns[::-1]:
            key = (name, part, k, program, setting)
            if res.of(*key) or (k > 1 and program != "pipit" and left_out(res, name, part, setting)):
                continue
            figures = list(ours(o, path, part) if program == "pipit" else theirs(o, path, part, setting))
            res.add(key, figures, o.switches_s)
            print(*key, [r["tokens_s"] for r in res.of(*key)], file=sys.stderr, flush=True)


def report(res):
    print("| model | | pipit, tok/s | llama.cpp | ratio | share of read bandwidth |\n|---|---|---|---|---|---|")
    for name in dict.fromkeys(r["model"] for r in res.rows):
        for part, lengths in PARTS.items():
            for n in lengths:
                mine, best, share = {}, collections.defaultdict(float), []
                rows = res.of(name, part, None, None, None, n)
                disturbed = {r["round"] for r in rows if float(r["switches_s"] or 0) > DISTURBED}
                for r in (r for r in rows if r["round"] not in disturbed):
                    if r["program"] == "pipit":
                        mine[r["round"]] = float(r["tokens_s"])
                        share += [float(r["share"])] if r["share"] else []
                    else:
                        best[r["round"]] = max(best[r["round"]], float(r["tokens_s"]))
                ratios = [mine[k] / best[k] for k in mine if k in best]
                if ratios:
                    print(f"| {name} | {part} {n} | {statistics.median(mine.values()):.4g} | {statistics.median(best.values()):.4g} | "
                          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) | "
                          f"{f'{100 * statistics.median(share):.0f} %' if share else ''} |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", metavar="FILE.gguf")
    p.add_argument("--out", required=True)
    p.add_argument("--bench", default="build/bench/pipit-bench")
    p.add_argument("--llama-bench", default="llama-bench")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--n-new", type=int, default=32)
    p.add_argument("--rest", type=float, default=0, help="a pause behind each process, by what it took: for others on the machine")
    p.add_argument("--no-rt", action="store_true")
    p.add_argument("--report", action="store_true", help="only the table of what is there")
    o = p.parse_args()
    res = Results(o.out)
    if not o.report:
        measure(o, res)
    report(res)


if __name__ == "__main__":
    main()
