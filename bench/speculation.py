#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What drafting gains: the same requests with and without, in turns, in one engine (pipit-eval).

    bench/speculation.py [--model FILE] [--kinds edit,summary,chat,random] [--cases 8] [--rounds 4] [--tokens 160]
                         [--temp 0] [--draft 15] [--csv FILE]

edit     a function of Python source is to be given back with a name changed
summary  an article is to be summed up (xsum; --tasks DIR)
chat     the first questions of MT-Bench (--tasks DIR)
random   the chat's questions at temperature 2: nothing repeats itself, so drafts cannot help

Rounds are even in number, and each of the two goes first in half of them. A line a kind: tokens a second of
decoding with drafts and without (medians over cases of the median round), the ratio of these (median, least
and most over cases), the ratio of the first round alone (cold), the geometric mean of all pairs' ratios with
its 95 % interval (`from`, `to`; cases are what is drawn, the pairs of one case are its mean), tokens said, drafted and accepted in the runs with drafts, and whether every
answer was the same.

The kind random is the control: `possible` is the most that accepted tokens can gain, tokens / (tokens -
accepted), and `error` by how much its ratio is beyond that. What another kind gains is known no better than so.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from student import t975

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PIPIT_BUILD", ROOT / "build"))
EDIT = "Rename the function `{old}` to `{new}` and give back the whole code, with nothing else changed.\n\n```python\n{code}```"


def functions():
    """Functions of this repository's Python sources, of 15 to 40 lines."""
    for path in sorted(ROOT.glob("t*/**/*.py")):
        for m in re.finditer(r"^def (\w+)\(.*?(?=^\S)", path.read_text(), re.M | re.S):
            if 15 <= m.group(0).count("\n") <= 40:
                yield m.group(1), m.group(0).rstrip() + "\n"


def prompts(kind, n, tasks):
    if kind == "edit":
        found = list(functions())
        for old, code in found[::max(1, len(found) // n)][:n]:
            yield EDIT.format(old=old, new=old + "_all", code=code)
    elif kind == "summary":
        for line in list(open(tasks / "xsum_0shot_300.jsonl", encoding="utf-8"))[:n]:
            article = json.loads(line)["article"].replace("###\nArticle:", "").split("\n\nSummarize")[0].strip()
            yield "Summarize this article in one or two sentences:\n\n" + article
    else:
        for line in list(open(tasks / "mt_bench.jsonl", encoding="utf-8"))[:n]:
            d = json.loads(line)
            yield (d.get("turns") or d.get("prompt") or [d["question"]])[0]


def runs(o):
    """Every case --rounds times, with drafts and without in turns."""
    for kind in o.kinds.split(","):
        for case, prompt in enumerate(prompts("chat" if kind == "random" else kind, o.cases, o.tasks)):
            for k in range(o.rounds):
                for draft in ((True, False), (False, True))[k % 2]:
                    yield {"id": f"{kind}:{case}:{k}:{int(draft)}", "user": prompt, "max_tokens": o.tokens,
                           "temperature": 2 if kind == "random" else o.temp, "draft": o.draft if draft else 0}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2"))
    p.add_argument("--kinds", default="edit,summary,chat,random")
    p.add_argument("--tasks", type=pathlib.Path, default=ROOT.parent / "shared/data/tasks")
    p.add_argument("--cases", type=int, default=8)
    p.add_argument("--rounds", type=int, default=4, help="even")
    p.add_argument("--tokens", type=int, default=160)
    p.add_argument("--draft", type=int, default=15)
    p.add_argument("--temp", type=float, default=0)
    p.add_argument("--ctx", type=int, default=4096)
    p.add_argument("--runner", default="", help="words before the measured command, such as: taskset -c 0,1")
    p.add_argument("--csv", type=pathlib.Path)
    o = p.parse_args()
    if not o.model:
        sys.exit("speculation.py: --model FILE, or PIPIT_SMOLLM2")
    if o.rounds < 2 or o.rounds % 2:
        sys.exit("speculation.py: --rounds must be even, so that both go first equally often")
    rows = []
    for kind in o.kinds.split(","):
        o.kinds = kind
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.writelines(json.dumps(r) + "\n" for r in runs(o))
            f.flush()
            out = subprocess.run([*o.runner.split(), BUILD / "bench/pipit-eval", "--model", o.model, "--ctx", str(o.ctx),
                                  "--draft", str(o.draft), "--prompts", f.name], capture_output=True, text=True,
                                 check=True).stdout
        rate, text, same, sums = {}, {}, True, {"n_new": 0, "n_drafted": 0, "n_accepted": 0}
        for d in map(json.loads, out.splitlines()):
            _, case, _, draft = d["id"].split(":")
            same &= text.setdefault(case, d["text"]) == d["text"]
            if d["n_new"] > 16:
                rate.setdefault(case, {"0": [], "1": []})[draft].append((d["n_new"] - 1) / d["decode_ms"] * 1e3)
            if draft == "1":
                sums = {k: v + d[k] for k, v in sums.items()}
        middle = [{k: statistics.median(v) for k, v in r.items()} for r in rate.values()]
        ratio = [r["1"] / r["0"] for r in middle]
        pairs = [statistics.mean(math.log(a / b) for a, b in zip(r["1"], r["0"])) for r in rate.values()]
        half = t975(len(pairs) - 1) * statistics.stdev(pairs) / len(pairs)**0.5 if len(pairs) > 1 else math.inf
        possible = sums["n_new"] / (sums["n_new"] - sums["n_accepted"])
        rows.append({"kind": kind, "temp": 2 if kind == "random" else o.temp, "cases": len(rate),
                     "with": round(statistics.median(r["1"] for r in middle), 1),
                     "without": round(statistics.median(r["0"] for r in middle), 1),
                     "ratio": round(statistics.median(ratio), 3), "least": round(min(ratio), 3),
                     "most": round(max(ratio), 3),
                     "cold": round(statistics.median(r["1"][0] / r["0"][0] for r in rate.values()), 3),
                     "pairs": sum(len(r["1"]) for r in rate.values()), "mean": round(math.exp(statistics.mean(pairs)), 3),
                     "from": round(math.exp(statistics.mean(pairs) - half), 3),
                     "to": round(math.exp(statistics.mean(pairs) + half), 3), **sums, "possible": round(possible, 3),
                     "error": round(statistics.median(ratio) / possible - 1, 3) if kind == "random" else "", "same": same})
        print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    if o.csv:
        with open(o.csv, "w", newline="") as f:
            w = csv.DictWriter(f, rows[0].keys())
            w.writeheader()
            w.writerows(rows)


if __name__ == "__main__":
    main()
