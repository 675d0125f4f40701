# SPDX-License-Identifier: Apache-2.0
"""Reads the CSV that run.py writes."""

import csv
import math

import cells
import score


class Table:
    def __init__(self, path):
        self.comments = []
        lines = []
        with open(path, encoding="utf-8") as f:
            for line in f:
                (self.comments if line.startswith("#") else lines).append(line)
        self.rows = {(r["task"], r["policy"], r["metric"]): r for r in csv.DictReader(lines)}

    def get(self, task, policy, metric, field="value"):
        """A number, or None where the cell was not measured."""
        r = self.rows.get((task, policy, metric))
        return float(r[field]) if r and r[field] != "" else None

    def any(self, task, policy, field):
        """A field that is the same in all of a cell's rows."""
        for (t, p, _), r in self.rows.items():
            if t == task and p == policy and r[field] != "":
                return float(r[field])
        return None

    def versus(self, task, policy_text, other):
        """Perplexity more than another policy's in percent and its standard error over chunks, of the paired
        differences; (None, None) where either was not measured."""
        d = []
        while (v := self.get(task, policy_text, f"nll of chunk {len(d)}")) is not None:
            w = self.get(task, other, f"nll of chunk {len(d)}")
            if w is None:
                return None, None
            d.append(v - w)
        if not d:
            return None, None
        mean, se = score.mean_se(d)
        return 100 * math.expm1(mean), None if se is None else 100 * se


def policy(method, budget):
    return cells.METHODS[method].format(b=budget)


# What "keeps 99 % of full's score" is told by: the metric, and whether less is better.
YARDSTICKS = {
    "ppl-shakespeare-2k": ("perplexity", True),
    "ppl-war-and-peace-2k": ("perplexity", True),
    "ppl-shakespeare-8k": ("perplexity", True),
    "repeat": ("all", False),
    "needle-2k": ("all", False),
    "needle-4k": ("all", False),
    "summary": ("rouge2 vs truth", False),
}


def keeps(table, task, policy_text, share=0.99):
    """Whether a policy keeps the share of full's score; None where not measured."""
    metric, less = YARDSTICKS[task]
    full, mine = table.get(task, "full", metric), table.get(task, policy_text, metric)
    if full is None or mine is None:
        return None
    return mine * share <= full if less else mine >= share * full


def smallest(table, task, method):
    """The smallest measured budget that keeps 99 %, all larger measured ones keeping it too: (budget or None, budgets
    measured)."""
    best, measured = None, []
    for b in sorted(cells.BUDGETS, reverse=True):
        ok = keeps(table, task, policy(method, b))
        if ok is None:
            continue
        measured.append(b)
        if not ok:
            break
        best = b
    return best, measured


