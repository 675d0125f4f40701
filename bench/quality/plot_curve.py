#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what run.py --curve measured: plot_curve.py NAME=CSV... FOLDER

quality-curves.svg      mean KL against the bytes of keys and values held, a panel a model, a line a method

Needs matplotlib and scour."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plot  # noqa: E402
import table as tables  # noqa: E402

LOOK = {**plot.LOOK, "sinks:4+window": plot.LOOK["sinks"], "expected": ("#56b4e9", "v"), "snapkv": ("#999999", "x"),
        "kv8+recency": ("#cc79a7", "2"), "kv4+recency": ("#000000", "D"), "kv4+expected": ("#000000", "v"),
        "kv4": ("#000000", "P"), "k8v4": ("#000000", "X"), "q8_0": ("#d55e00", "h"), "q4_0": ("#d55e00", "H")}


def panel(ax, t, name):
    for method, line, points in tables.curves(t):
        color, marker = LOOK[method]
        x, y, half = zip(*points)
        dashed = "--" if "+recency" in method or "+expected" in method else "-"
        low = [min(h, 0.9 * v) for v, h in zip(y, half)]  # the axis has no 0
        ax.errorbar(x, y, yerr=(low, half), color=color, marker=marker, markersize=4 if line else 5, linewidth=1, capsize=2, label=method,
                    linestyle=dashed if line else "none")
        if not line:
            ax.annotate(method, (x[0], y[0]), xytext=(5, -3), textcoords="offset points", fontsize=6, color=color)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = (3.5, 7, 14, 28, 52, 100)
    ax.set_xlim(3, 110)
    ax.set_xticks(ticks, [str(v) for v in ticks])
    ax.set_xticks([], minor=True)
    ax.set_title(name, fontsize=9)
    ax.set_xlabel("bytes of keys and values, % of f16's", fontsize=8)
    ax.set_ylabel("mean KL from full, nats", fontsize=8)
    ax.tick_params(labelsize=7)
    ax.grid(linewidth=0.3)


def main(argv):
    named, folder = [a.split("=", 1) for a in argv[:-1]], argv[-1]
    plot.begin(folder)
    fig, axes = plot.plt.subplots(1, len(named), figsize=(3.7 * len(named), 3.8), squeeze=False, sharey=True)
    for ax, (name, path) in zip(axes.flat, named):
        panel(ax, tables.Table(path), name)
    plot.save(fig, folder, "quality-curves.svg")


if __name__ == "__main__":
    if len(sys.argv) < 3 or any("=" not in a for a in sys.argv[1:-1]):
        sys.exit(__doc__)
    main(sys.argv[1:])
