#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times one decode step at depth 7900 of every policy of the table of methods that read part of the cache (cells.py), beside
`full` in the same run, and writes a CSV that page.py puts beside their quality:

    step_time.py --model MODEL.gguf --skew SKEW.gguf --bench build/bench/pipit-bench --out FILE.csv

Keys and values are made up, so choices are scattered. What is a number of slots in a policy is scaled to the depth: k of 1536 tokens,
the mean of the chunks that quality is told by, becomes k 7900 / 1536; a budget in percent is of those chunks' prompts, 1024 tokens, and
becomes the same share of the text as it is there in the mean. pipit-bench runs once for each five policies, with a `full` of its
own, and takes turns. A run that is in the file is not made again: --runs N makes N more, so that each fits a short quiet time."""

import argparse
import csv
import datetime
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
from run import commit, cpu_name  # noqa: E402

DEPTH, MEAN, PROMPT, AT_ONCE = 7900, 1536, 1024, 5
FIELDS = ["policy", "timed", "ms", "least_ms", "most_ms", "full_ms", "kv_bytes", "weight_bytes", "bytes_of_full", "time_of_full"]


def scaled(policy):
    """The policy that reads the same share of DEPTH tokens as `policy` does of MEAN in the mean."""
    text = re.sub(r"\bk=(\d+)", lambda m: f"k={round(int(m[1]) * DEPTH / MEAN)}", policy)
    text = re.sub(r"\btopv:(\d+)", lambda m: f"topv:{round(int(m[1]) * DEPTH / MEAN)}", text)
    return re.sub(r"\b(window|h2o):(\d+)%", lambda m: f"{m[1]}:{round(int(m[2]) * PROMPT / MEAN)}%", text)


def policies():
    ret = []
    for name, p in {**cells.READING, **cells.BESIDE}.items():
        ret += [p] + ([f"{p},layout=2k"] if name in cells.IN_2K else [])
    return ret


def runs():
    """[policies]: those that need an overlay by themselves."""
    told = [p for p in policies() if p in cells.FORETOLD]
    others = [p for p in policies() if p not in cells.FORETOLD]
    return [of[i:i + AT_ONCE] for of in (others, told) for i in range(0, len(of), AT_ONCE)]


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def measure(o, mine):
    c = [o.bench, "--model", o.model, "-p", "", "-d", str(DEPTH), "-n", "8", "-r", "3", "-t", str(o.threads), "--kv", "full"]
    for p in mine:
        c += ["--kv", scaled(p)]
    if any(p in cells.FORETOLD for p in mine):
        c += ["--overlay", o.skew]
    out = subprocess.run(c, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = list(csv.DictReader(out.splitlines()))
    ms = lambda row, field: 1e3 / float(row[field])
    for p, row in zip(mine, rows[1:], strict=True):
        yield {"policy": p, "timed": scaled(p), "ms": round(ms(row, "value"), 2), "least_ms": round(ms(row, "max"), 2),
               "most_ms": round(ms(row, "min"), 2), "full_ms": round(ms(rows[0], "value"), 2), "kv_bytes": row["kv_bytes"],
               "weight_bytes": row["weight_bytes"], "bytes_of_full": round(1 / float(row["byte_ratio"]), 4),
               "time_of_full": round(1 / float(row["ratio"]), 4)}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--skew", required=True, help="pipit-skew's overlay of the model")
    a.add_argument("--bench", default="pipit-bench")
    a.add_argument("--out", required=True)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--runs", type=int, default=1000, help="at most so many of pipit-bench")
    a.add_argument("--commit", help="that pipit-bench was built from; else the working tree's")
    o = a.parse_args()
    rows = read(o.out)
    for mine in runs():
        if o.runs == 0:
            break
        if {p for p in mine} <= {r["policy"] for r in rows}:
            continue
        o.runs -= 1
        rows = [r for r in rows if r["policy"] not in mine] + list(measure(o, mine))
        with open(o.out, "w", newline="", encoding="utf-8") as f:
            f.write(f"# {datetime.date.today().isoformat()}, {cpu_name()}, {os.path.basename(o.model)}, commit {o.commit or commit()}\n")
            f.write(f"# bench/quality/step_time.py --model MODEL --skew SKEW --threads {o.threads} --out FILE.csv\n")
            w = csv.DictWriter(f, FIELDS, lineterminator="\n")
            w.writeheader()
            w.writerows(rows)
    left = [p for p in policies() if p not in {r["policy"] for r in rows}]
    print(f"step_time.py: {len(rows)} policies in {o.out}; {len(left)} missing")


if __name__ == "__main__":
    main()
