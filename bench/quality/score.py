#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores pipit-eval's answers: score.py PROMPTS.jsonl ANSWERS.jsonl [--csv OUT] [--reference POLICY]

needle   share of answers that hold the number, by length and depth and in all; mcnemar is the exact two-sided
         probability of the cases in which it and the reference differ, were either as likely to be right
track, frequent   share of the names or words that the answer holds; mcnemar: of the cases with more and with less
repeat   matching characters before the answer leaves the passage
summary, chat   ROUGE-1/2/L (F1, package rouge-score) against the reference policy's answer, and against the
                article's own summary where there is one
choice   share of questions whose right answer has the largest probability ("all"), or the largest log-probability a
         character ("by length"); "less": share less the reference's, of the same questions; mcnemar as above
ask      share of a text's numbers whose tokens were each the likeliest ("all"), and "less"; "nats" of a number; the cases are
         texts, since a text's questions depend on each other; mcnemar: of the texts with more and with less
word     share of texts whose last word's tokens were each the likeliest ("all"), and "less"; "nats" of the word
The reference is the first policy in the answers unless --reference names another. se is the standard error of
the mean over the cases."""

import argparse
import csv
import json
import math
import os
import statistics
import sys
from collections import defaultdict

FIELDS = ["task", "policy", "cell", "n", "score", "se", "kv_bytes", "kv_share", "tokens_per_step", "n_prompt", "mcnemar"]
ROUGE = ("rouge1", "rouge2", "rougeL")


def matching(a, b):
    return len(os.path.commonprefix([a, b]))


def mean_se(v):
    """Mean of v, and its standard error (None for fewer than two)."""
    return statistics.fmean(v), statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else None


def mcnemar(a, b):
    """Exact, two-sided, of the pairs in which one is right and the other wrong."""
    wins = sum(x > y for x, y in zip(a, b))
    losses = sum(x < y for x, y in zip(a, b))
    n = wins + losses
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2 ** n)


def rouge(pairs):
    """ROUGE F1 in percent of each (reference, text)."""
    from rouge_score import rouge_scorer
    scorer = rouge_scorer.RougeScorer(list(ROUGE), use_stemmer=True)
    kept = {}
    for pair in pairs:
        if pair not in kept:
            kept[pair] = {k: 100 * s.fmeasure for k, s in scorer.score(*pair).items()}
    return {k: [kept[pair][k] for pair in pairs] for k in ROUGE}


def chosen(prompts, mine):
    """Of each question, in the order of the answers: was the right one the largest?"""
    questions = defaultdict(list)
    for a in mine:
        questions[a["id"].rsplit("-", 1)[0]].append(a)
    cells = defaultdict(list)
    for v in questions.values():
        gold = prompts[v[0]["id"]]["gold"]
        for cell, values in (("all", [a["logprob"] for a in v]),
                             ("by length", [a["logprob"] / (len(prompts[a["id"]]["scored"]) - 1) for a in v])):
            cells[cell].append(100.0 * (values.index(max(values)) == gold))
    return cells


def of_texts(mine):
    """Of each text, in the order of the answers: the means over its questions."""
    texts = defaultdict(list)
    for a in mine:
        texts[a["id"].rsplit("-", 1)[0]].append(a)
    return {"all": [100.0 * statistics.fmean(a["likeliest"] for a in v) for v in texts.values()],
            "nats": [-statistics.fmean(a["logprob"] for a in v) for v in texts.values()]}


def cells_of(task, prompts, mine, said, reference):
    """{cell: [score of each case]} of one policy's answers."""
    cells = defaultdict(list)
    for a in mine:
        p = prompts[a["id"]]
        if task == "needle":
            ok = p["answer"] in a["text"].replace(",", "")
            for cell in ("all", str(p["chars"]), f"{p['chars']}@{p['depth']}", p["kind"]):
                cells[cell].append(100.0 * ok)
        elif task in ("track", "frequent"):
            for cell in ("all", str(p["chars"])):
                cells[cell].append(100.0 * sum(x in a["text"] for x in p["answers"]) / len(p["answers"]))
        elif task == "repeat":
            for cell in ("all", str(p["chars"])):
                cells[cell].append(matching(p["answer"], a["text"]))
    if task == "choice":
        cells = chosen(prompts, mine)
    if task == "ask":
        cells = of_texts(mine)
    if task == "word":
        cells = {"all": [100.0 * a["likeliest"] for a in mine], "nats": [-a["logprob"] for a in mine]}
    if task in ("summary", "chat"):
        for name, pairs in ((f"vs {reference}", [(said[a["id"]], a["text"]) for a in mine if a["id"] in said]),
                            ("vs truth", [(prompts[a["id"]]["answer"], a["text"]) for a in mine
                                          if prompts[a["id"]]["answer"]])):
            if pairs:
                for k, v in rouge(pairs).items():
                    cells[f"{k} {name}"] = v
    return cells


def rows(prompts, answers, reference=None):
    by_policy = defaultdict(list)
    for a in answers:
        by_policy[a["policy"]].append(a)
    reference = reference or next(iter(by_policy))
    said = {a["id"]: a["text"] for a in by_policy[reference]}
    first = {}
    for policy, mine in sorted(by_policy.items(), key=lambda item: item[0] != reference):
        task = mine[0]["id"].split("-")[0]
        held = statistics.fmean(a["kv_bytes"] for a in mine)
        full = statistics.fmean(a["kv_bytes_full"] for a in mine)
        cells = cells_of(task, prompts, mine, said, reference)
        if task in ("ask", "choice", "word") and policy != reference:
            cells["less"] = [x - y for x, y in zip(cells["all"], first["all"])]
        for cell, v in cells.items():
            mean, se = mean_se(v)
            first.setdefault(cell, v)
            paired = task in ("needle", "ask", "track", "frequent", "choice", "word") and cell not in ("less", "nats") and policy != reference and len(first[cell]) == len(v)
            yield {"task": task, "policy": policy, "cell": cell, "n": len(v), "score": round(mean, 2),
                   "se": "" if se is None else round(se, 2), "kv_bytes": int(held),
                   "kv_share": round(held / full, 4) if full else "",
                   "tokens_per_step": round(statistics.fmean(a["tokens_per_step"] for a in mine), 1),
                   "n_prompt": int(statistics.fmean(a["n_prompt"] for a in mine)),
                   "mcnemar": f"{mcnemar(first[cell], v):.3g}" if paired else ""}


def read_lines(path):
    """JSON lines; a last line that a stopped writer left half is dropped."""
    ret = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.endswith("\n"):
                ret.append(json.loads(line))
    return ret


def main():
    a = argparse.ArgumentParser()
    a.add_argument("prompts")
    a.add_argument("answers")
    a.add_argument("--csv")
    a.add_argument("--reference")
    o = a.parse_args()
    prompts = {p["id"]: p for p in read_lines(o.prompts)}
    out = open(o.csv, "w", newline="", encoding="utf-8") if o.csv else sys.stdout
    w = csv.DictWriter(out, FIELDS)
    w.writeheader()
    for row in rows(prompts, read_lines(o.answers), o.reference):
        w.writerow(row)


if __name__ == "__main__":
    main()
