#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what run.py --curve measured as a table: curve_table.py NAME=CSV...

A model has two columns: perplexity above full's in percent and mean KL, each with half of a 95 % interval over the chunks.
Bytes of keys and values: in percent of full's, those of each model that differ. A dash: not measured."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
import table  # noqa: E402


def cell(t, policy):
    point = table.curve_point(t, policy)
    if not point:
        return "– | –"
    more, half = t.get("curve", policy, "perplexity more %"), t.half("curve", policy, "perplexity more %")
    return f"{more:+.1f} ± {half:.1f} | {point[1]:.4f} ± {point[2]:.4f}"


def main(argv):
    named = [a.split("=", 1) for a in argv]
    tables = [table.Table(path) for _, path in named]
    print("| policy | bytes, % | " + " | ".join(f"{name} | KL" for name, _ in named) + " |")
    print("|---" * (2 + 2 * len(named)) + "|")
    for p in cells.CURVE_TYPES + cells.curve_at(cells.CURVE_BOTH) + cells.curve_at(cells.CURVE_EVICTING):
        points = [q for t in tables if (q := table.curve_point(t, p))]
        if points:
            sizes = list(dict.fromkeys(f"{q[0]:.0f}" for q in points))
            print(f"| `{p.replace(',min=16', '')}` | {', '.join(sizes)} | " + " | ".join(cell(t, p) for t in tables) + " |")


if __name__ == "__main__":
    if len(sys.argv) < 2 or any("=" not in a for a in sys.argv[1:]):
        sys.exit(__doc__)
    main(sys.argv[1:])
