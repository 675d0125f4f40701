# SPDX-License-Identifier: Apache-2.0
"""Reads the CSV that run.py writes."""

import csv
import math
import re

import cells
import score

TEXT_METRICS = ("perplexity more %", "mean KL")
UNSAID = re.compile(r"(keyformer:\d+%,min=16)(?!,noise|,mode)")  # until 2026-11-27 that meant noise=once


def within(t, df):
    """P(|T| <= t) of Student's distribution (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(df))
    term = math.cos(theta) if df % 2 else 1.0
    total = 0.0 if df == 1 else term
    for i in range(3 if df % 2 else 2, df - 1, 2):
        term *= math.cos(theta) ** 2 * (i - 1) / i
        total += term
    return 2 / math.pi * (theta + math.sin(theta) * total) if df % 2 else math.sin(theta) * total


def t95(df):
    low, high = 0.0, 16.0
    for _ in range(50):
        mid = (low + high) / 2
        low, high = (mid, high) if within(mid, df) < 0.95 else (low, mid)
    return high


class Table:
    def __init__(self, path):
        self.comments = []
        lines = []
        with open(path, encoding="utf-8") as f:
            for line in f:
                (self.comments if line.startswith("#") else lines).append(line)
        old = self.comments and self.comments[0][2:12] < "2026-11-27"
        self.rows = {(r["task"], UNSAID.sub(r"\1,noise=once", r["policy"]) if old else r["policy"], r["metric"]): r
                     for r in csv.DictReader(lines)}

    def get(self, task, policy, metric, field="value"):
        """A number, or None where the cell was not measured."""
        r = self.rows.get((task, policy, metric))
        return float(r[field]) if r and r[field] != "" else None

    def half(self, task, policy, metric):
        """Half of a 95 % interval by Student's t, over a text's chunks or the cases; None where there is no error."""
        se = self.get(task, policy, metric, "se")
        n = int(self.get(task, policy, "chunks") or 0)
        while (task, policy, f"nll of chunk {n}") in self.rows:
            n += 1
        n = n or (0 if metric in TEXT_METRICS or se is None else int(self.rows[task, policy, metric]["n"]))
        return None if se is None or n < 2 else t95(n - 1) * se

    def any(self, task, policy, field):
        """A field that is the same in all of a cell's rows."""
        for (t, p, _), r in self.rows.items():
            if t == task and p == policy and r[field] != "":
                return float(r[field])
        return None

    def versus(self, task, policy_text, other):
        """Perplexity more than another policy's in percent and half of its 95 % interval over chunks, of the paired
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
        return 100 * math.expm1(mean), None if se is None else 100 * t95(len(d) - 1) * se


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


def curve_point(t, policy):
    """(percent of full's bytes, mean KL, half of its 95 % interval), or None."""
    y, x = t.get("curve", policy, "mean KL"), t.get("curve", policy, "mean KL", "kv_share")
    return None if y is None else (100 * x, y, t.half("curve", policy, "mean KL") or 0.0)


def curves(t):
    """[(method, is it a line?, its points)]: what was measured."""
    ret = [(p, False, [curve_point(t, p)]) for p in cells.CURVE_TYPES]
    for methods in (cells.CURVE_BOTH, cells.CURVE_EVICTING):
        ret += [(m, True, [curve_point(t, p) for p in cells.curve_at({m: budgets})]) for m, budgets in methods.items()]
    return [(m, line, have) for m, line, points in ret if (have := [p for p in points if p])]
