#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/results/quality.md and docs/results/sparse-attention.md from run.py's CSV, from that of run.py --reading, and from step_time.py's:

    page.py CSV READING-CSV STEPS-CSV [--agreement CSV]... PAGE.md...

--agreement: of sparq_study.py and infinigen_study.py.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; the text around is written by hand and kept. A cell that
was not measured is a dash."""

import argparse
import os
import re
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
import reads  # noqa: E402
import step_time  # noqa: E402
import table as tables  # noqa: E402

SHAKE, WAR, LONG = "ppl-shakespeare-2k", "ppl-war-and-peace-2k", "ppl-shakespeare-8k"
CHANGES = "ablations"  # one thing changed at a time
TYPES = "precision"
DASH = "–"


def number(v, digits, sign=False):
    return DASH if v is None else f"{v:{'+' if sign else ''}.{digits}f}"


def with_half(v, half, digits, sign=False):
    """A value and half of its 95 % interval."""
    return number(v, digits, sign) + (f" ± {half:.{digits}f}" if v is not None and half is not None else "")


def less_or_none(v, half):
    """A difference, which is "none" where it lies within its interval."""
    return with_half(v, half, 2, sign=True) + (", none" if v is not None and half is not None and abs(v) <= half else "")


def markdown(head, rows):
    rows = [[c if isinstance(c, str) else str(c) for c in row] for row in rows]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


class Page:
    def __init__(self, table, reads=None, steps=None, agreements=None):
        self.t = table
        self.reads = reads
        self.steps = steps or {}
        self.agreements = agreements or {}

    def more(self, task, policy):
        return self.score(task, policy, "perplexity more %", 2, sign=True)

    def kl(self, task, policy):
        return self.score(task, policy, "mean KL", 4)

    def score(self, task, policy, metric="all", digits=1, sign=False):
        return with_half(self.t.get(task, policy, metric), self.t.half(task, policy, metric), digits, sign)

    def rouge(self, task, policy, against):
        v = [self.t.get(task, policy, f"{k} {against}") for k in ("rouge1", "rouge2", "rougeL")]
        return DASH if None in v else f"{v[0]:.1f} / {self.score(task, policy, f'rouge2 {against}')} / {v[2]:.1f}"

    def about(self):
        return "\n".join("    " + c[1:].strip() for c in self.t.comments)

    def sizes(self):
        rows = []
        for task, size in cells.TASKS.items():
            n = self.t.rows.get((task, "full", "perplexity")) or self.t.rows.get((task, "full", "all")) or \
                self.t.rows.get((task, "full", "rouge1 vs full"))
            policies = len({p for t, p, _ in self.t.rows if t == task})
            what = "greedy answers"
            if size["kind"] == "text":
                what = f"{size['chunks']} chunks of {size['ctx']}, " + (
                    f"prompt {size['ctx'] // 2}" if size.get("mode", "decode") == "decode" else "prefill mode")
            rows.append([f"`{task}`", what, n["n"] if n else DASH, policies])
        return markdown(["task", "size", "rows or answers a policy", "policies measured"], rows)

    def budget_table(self, cell):
        budgets = [b for b in cells.BUDGETS]
        rows = [[m] + [cell(tables.policy(m, b)) for b in budgets] for m in cells.METHODS]
        rows = [r for r in rows if any(c != DASH for c in r[1:])]
        return markdown(["method"] + [f"{b} %" for b in budgets], rows)

    def perplexity(self):
        return self.budget_table(lambda p: self.more(SHAKE, p))

    def divergence(self):
        return self.budget_table(lambda p: number(self.t.get(SHAKE, p, "mean KL"), 4))

    def war(self):
        return self.budget_table(lambda p: self.more(WAR, p))

    def long(self):
        return self.budget_table(lambda p: self.more(LONG, p))

    def answers(self):
        rows = []
        for name, p in [("full", "full")] + [(f"`{t}`", t) for t in cells.TYPES] + [
                (f"{m} {b} %", tables.policy(m, b)) for b in cells.BUDGETS for m in cells.METHODS]:
            row = [name, self.rouge("chat", p, "vs full"), self.rouge("summary", p, "vs full"),
                   self.rouge("summary", p, "vs truth")]
            if any(c != DASH for c in row[1:]):
                rows.append(row)
        return markdown(["policy", "MT-Bench against full's answers", "XSum against full's", "XSum against references"],
                        rows)

    def needle(self, task, policy):
        """Without an interval: of ten, half of one by Student's t says nothing."""
        return number(self.t.get(task, policy, "all"), 0) if (self.t.get(task, "full", "all") or 0) >= 80 else DASH

    def found(self, task):
        """Retrieval says something only where the full cache itself finds most."""
        full = self.t.get(task, "full", "all")
        if full is None:
            return f"Not measured: `{task}`."
        if full < 80:
            return f"`{task}`: the full cache itself finds {full:.0f} %, so nothing can be told."
        return f"`{task}` (full: {full:.0f} %):\n\n" + self.budget_table(lambda p: self.needle(task, p))

    def retrieval(self):
        return self.found("needle-2k") + "\n\n" + self.found("needle-4k")

    def repetition(self):
        return self.budget_table(lambda p: self.score("repeat", p))

    def changes(self, head, changes, other, said):
        rows = []
        for name, p in changes.items():
            rows.append([name, number(self.t.get(CHANGES, p, "perplexity"), 3), self.more(CHANGES, p),
                         less_or_none(*self.t.versus(CHANGES, p, other)), self.kl(CHANGES, p),
                         number(self.t.get(CHANGES, p, "same top-1 %"), 1)])
        return markdown([head, "perplexity", "more than full, %", f"more than {said}, %", "mean KL", "same top-1, %"],
                        [r for r in rows if r[1] != DASH])

    def noise(self):
        return self.changes("`keyformer:50%`, noise", {**cells.NOISE, "(`h2o:50%`)": tables.policy("h2o", 50)},
                            cells.NOISE["none"], "without noise")

    def other(self):
        return self.changes("`keyformer:50%`, else", cells.OTHER, tables.policy("keyformer", 50), "the default")

    def recency(self):
        return self.changes("`recency:50%`", cells.RECENCY, tables.policy("recency", 50), "the default")

    def damping(self):
        return self.changes("at 50 %", cells.DAMP, cells.DAMP["h2o"], "`h2o:50%`")

    def sinks(self):
        return self.changes("`sinks:4+...:50%`", cells.SINKS, tables.policy("sinks", 50), "`sinks:4+window:50%`")

    def reading(self):
        return Page(self.reads, steps=self.steps, agreements=self.agreements).reading_rows() if self.reads else DASH

    def agreed(self, policy):
        """Of as many slots as it chooses, how many are among those with the largest exact weights, in %."""
        name, o = reads.options(next((w for w in policy.split("+") if w.startswith(("sparq", "topv", "infinigen"))), ""))
        if policy == "full" or name == "topv":
            return "100"
        if name == "sparq" and "+" not in policy:
            return number(self.agreements.get(f"sparq:r={o['r']}"), 0)
        words = [f"share={o['share'].rstrip('%')}"] if name == "infinigen" and "share" in o else [""]
        words += ["partial8"] * (o.get("partial8") == "on") + ["off"] * (o.get("skew") == "off")
        words += [f"partial={o['partial']}"] if "partial" in o else []
        return number(self.agreements.get(",".join(words)), 0)

    def step(self, policy):
        """Bytes and time of one step at depth 7900, in % of full's."""
        row = self.steps.get(policy, {"bytes_of_full": 1, "time_of_full": 1} if policy == "full" and self.steps else None)
        return [number(row and 100 * float(row[field]), 0) for field in ("bytes_of_full", "time_of_full")]

    def steps_about(self):
        return "\n".join("    " + c for c in self.steps_comments)

    steps_comments = ()

    def reading_about(self):
        return Page(self.reads).about() if self.reads else DASH

    def reading_bytes(self, policy, layout=None):
        """Asked for, moved and held, in % of full's."""
        share = self.t.any(SHAKE, policy, "kv_share")
        live, tokens = self.t.any(SHAKE, policy, "tokens_per_step"), self.t.any(SHAKE, "full", "tokens_per_step")
        held = share and share * (reads.held_2k(policy) if layout else 1)
        step = (reads.asked(policy, live, tokens), reads.moved(policy, live, tokens, layout)) if live else (None, None)
        return [number(v and 100 * v, digits) for v, digits in ((step[0], 0), (step[1], 0), (held, 1))]

    def reading_rows(self):
        rows = []
        for name, p in {"full": "full", **cells.READING, **cells.BESIDE}.items():
            said = [self.more(SHAKE, p), self.kl(SHAKE, p), number(self.t.get(SHAKE, p, "same top-1 %"), 1),
                    self.score("repeat", p), self.needle("needle-2k", p)]
            if all(c == DASH for c in said):
                continue
            rows.append([name, f"`{p}`", *said, self.agreed(p), *self.reading_bytes(p), *self.step(p)])
            if name in cells.IN_2K:
                rows.append(["the same slots", f"`{p},layout=2k`", *[DASH] * len(said), self.agreed(p), *self.reading_bytes(p, "2k"),
                             *self.step(f"{p},layout=2k")])
        return markdown(["", "policy", "perplexity more, %", "mean KL", "same top-1, %", "repetition, characters",
                         "retrieval 2k, %", "of the true best chosen, %", "K and V asked for a step, % of full", "moved", "held",
                         "whole step at 7900: bytes, % of full's", "its time, % of full's"], rows)

    def smallest(self):
        rows = []
        for m in cells.METHODS:
            row = [m]
            for task in tables.YARDSTICKS:
                best, measured = tables.smallest(self.t, task, m)
                if not measured:
                    row.append(DASH)
                elif best is None:
                    row.append(f"over {measured[0]} %")  # the largest that was measured
                else:
                    row.append(f"{best} %")
            if any(c != DASH for c in row[1:]):
                rows.append(row)
        return markdown(["method"] + [f"`{t}`" for t in tables.YARDSTICKS], rows)

    def memory(self):
        """A task with the same texts and policies as another's is not told twice."""
        tasks = [task for task in cells.TASKS if task not in (CHANGES, TYPES, WAR)]

        def cell(task, p):
            share, tokens = self.t.any(task, p, "kv_share"), self.t.any(task, p, "tokens_per_step")
            return DASH if share is None else f"{100 * share:.1f} ({tokens:.0f})"
        rows = [[f"`{p}`"] + [cell(task, p) for task in tasks]
                for p in ["full", "kv8"] + [tables.policy("h2o", b) for b in (70, 50, 20)]]
        return markdown(["policy"] + [f"`{task}`" for task in tasks], rows)


def fill(text, page):
    """`text` with each table made anew; an unknown name is an error."""
    def one(m):
        return f"<!-- table {m[1]} -->\n{getattr(page, m[1])()}\n<!-- end -->"
    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", one, text, flags=re.S)


def agreements(paths):
    """{setting of infinigen_study.py, or sparq:r=R: mean over layers, heads and chunks in %}."""
    of = {}
    for path in paths:
        for r in step_time.read(path):
            of.setdefault(r["setting"] if "setting" in r else f"sparq:r={r['r']}", []).append(100 * float(r["agreement"]))
    return {setting: statistics.fmean(v) for setting, v in of.items()}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("csv", "reading", "steps"):
        a.add_argument(name)
    a.add_argument("--agreement", action="append", default=[], metavar="CSV")
    a.add_argument("pages", nargs="+")
    o = a.parse_args()
    reading = tables.Table(o.reading) if os.path.exists(o.reading) else None
    page = Page(tables.Table(o.csv), reading, {r["policy"]: r for r in step_time.read(o.steps)}, agreements(o.agreement))
    if page.steps:
        with open(o.steps, encoding="utf-8") as f:
            page.steps_comments = [line[1:].strip() for line in f if line.startswith("#")]
    for path in o.pages:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(fill(text, page))


if __name__ == "__main__":
    main()
