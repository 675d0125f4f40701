#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores pipit-eval's answers: score.py PROMPTS.jsonl ANSWERS.jsonl [--csv OUT] [--reference POLICY]

needle   share of answers that hold the number, by length and depth and in all
repeat   matching characters before the answer leaves the passage
summary, chat   ROUGE-1/2/L (F1, package rouge-score) against the reference policy's answer, and against the
                article's own summary where there is one
The reference is the first policy in the answers unless --reference names another."""

import argparse
import csv
import json
import os
import statistics
import sys
from collections import defaultdict

FIELDS = ["task", "policy", "cell", "n", "score", "kv_bytes", "kv_share", "n_prompt"]


def matching(a, b):
    return len(os.path.commonprefix([a, b]))


def rouge(pairs):
    from rouge_score import rouge_scorer
    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = rouge_scorer.RougeScorer(kinds, use_stemmer=True)
    sums = defaultdict(float)
    for reference, text in pairs:
        for kind, s in scorer.score(reference, text).items():
            sums[kind] += s.fmeasure
    return {k: 100 * sums[k] / max(1, len(pairs)) for k in kinds}


def rows(prompts, answers, reference):
    by_policy = defaultdict(list)
    for a in answers:
        by_policy[a["policy"]].append(a)
    policies = list(by_policy)
    reference = reference or policies[0]
    said = {a["id"]: a["text"] for a in by_policy[reference]}
    for policy in policies:
        mine = by_policy[policy]
        task = mine[0]["id"].split("-")[0]
        cells = defaultdict(list)
        for a in mine:
            p = prompts[a["id"]]
            if task == "needle":
                ok = p["answer"] in a["text"].replace(",", "")
                for cell in ("all", str(p["chars"]), f"{p['chars']}@{p['depth']}", p["kind"]):
                    cells[cell].append(100.0 * ok)
            elif task == "repeat":
                for cell in ("all", str(p["chars"])):
                    cells[cell].append(matching(p["answer"], a["text"]))
        if task in ("summary", "chat"):
            pairs = [(said[a["id"]], a["text"]) for a in mine if a["id"] in said]
            for k, v in rouge(pairs).items():
                cells[f"{k} vs {reference}"] = [v] * len(pairs)
            truth = [(prompts[a["id"]]["answer"], a["text"]) for a in mine if prompts[a["id"]]["answer"]]
            if truth:
                for k, v in rouge(truth).items():
                    cells[f"{k} vs truth"] = [v] * len(truth)
        held = statistics.mean(a["kv_bytes"] for a in mine)
        full = statistics.mean(a["kv_bytes_full"] for a in mine)
        for cell, v in cells.items():
            yield {"task": task, "policy": policy, "cell": cell, "n": len(v),
                   "score": round(statistics.mean(v), 2), "kv_bytes": int(held),
                   "kv_share": round(held / full, 4) if full else "",
                   "n_prompt": int(statistics.mean(a["n_prompt"] for a in mine))}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("prompts")
    a.add_argument("answers")
    a.add_argument("--csv")
    a.add_argument("--reference")
    o = a.parse_args()
    prompts = {}
    for line in open(o.prompts, encoding="utf-8"):
        p = json.loads(line)
        prompts[p["id"]] = p
    answers = [json.loads(line) for line in open(o.answers, encoding="utf-8")]
    out = open(o.csv, "w", newline="", encoding="utf-8") if o.csv else sys.stdout
    w = csv.DictWriter(out, FIELDS)
    w.writeheader()
    for row in rows(prompts, answers, o.reference):
        w.writerow(row)


if __name__ == "__main__":
    main()
