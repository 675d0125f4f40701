#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints run.py --scored's CSV files, one a model, as a table: tasks_table.py CSV...

A cell has the share that is right in percent, and for policies other than full the difference from full with half of its 95 %
interval, by Student's t over the questions' paired differences. A difference within its interval, or of which McNemar's exact
test has p of 0.05 or more, is "none": where few questions differ, the interval is too narrow."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
import table  # noqa: E402


def cell(t, task, policy):
    mine = t.rows.get((task, policy, "all"))
    if not mine:
        return "–"
    less = t.rows.get((task, policy, "less"))
    text = f"{float(mine['value']):.1f}"
    if less:
        half = table.t95(int(less["n"]) - 1) * float(less["se"])
        value, p = float(less["value"]), float(mine["mcnemar"])
        text += f" ({value:+.1f} ± {half:.1f}" + (", none)" if abs(value) <= half or p >= 0.05 else f", p {p:.2g})")
    return text


def main(paths):
    for path in paths:
        t = table.Table(path)
        tasks = [n for n in cells.SCORED if (n, "full", "all") in t.rows]
        policies = list(dict.fromkeys(p for task, p, _ in t.rows if task in tasks))
        print("\n".join(t.comments), end="\n\n")
        print("| policy | " + " | ".join(f"{n}, {t.rows[n, 'full', 'all']['n']}" for n in tasks) + " |")
        print("|---" * (len(tasks) + 1) + "|")
        for p in policies:
            print(f"| `{p}` | " + " | ".join(cell(t, n, p) for n in tasks) + " |")
        print()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
