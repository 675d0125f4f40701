#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Table (Markdown, stdout) and plot of a CSV that bench/run.sh made: medians over rounds with their spread, ratios to the
best of llama.cpp's settings, and the share of the machine's limit in the same run (decode: read bandwidth of a working
set of the same size; prefill: the peak of bf16 products)."""

import csv
import statistics
import sys
from collections import defaultdict


LESS_IS_MORE = ("resident", "first")  # bytes and milliseconds; the others are rates


def read(path):
    rows = defaultdict(list)
    with open(path) as f:
        for r in csv.DictReader(line for line in f if not line.startswith("#")):
            key = (r["cell"], "llama.cpp" if r["model"] == "llama.cpp" else "machine" if r["model"] == "machine" else "pipit",
                   r["kv"].split(",")[0], r["what"])
            rows[key].append(r)
    return rows


def median(rows, column):
    v = [float(r[column]) for r in rows if r[column]]
    return statistics.median(v) if v else None


def number(v):
    return "" if v is None else f"{v:.0f}" if v >= 100 else f"{v:.1f}"


def main():
    rows = read(sys.argv[1])
    cells = list(dict.fromkeys(k[0] for k in rows))
    peaks = {k[3]: median(v, "value") for k, v in rows.items() if k[0] == "limits" and k[1] == "machine"}
    print("machine: " + ", ".join(f"{k} {v:.2f} Top/s" for k, v in peaks.items() if k.startswith("peak")) + "\n")
    print("| cell | program | cache | tokens/s (MB, ms) | from .. to | x best peer | share of the limit |")
    print("|---|---|---|---|---|---|---|")
    plot = []
    for cell in cells:
        if cell == "limits":
            continue
        wanted = cell.split("-")[0]
        part = {k: v for k, v in rows.items() if k[0] == cell and k[3] == wanted}
        peers = {k: median(v, "value") for k, v in part.items() if k[1] == "llama.cpp"}
        best = (min if wanted in LESS_IS_MORE else max)(peers.values(), default=None)
        for k, v in part.items():
            m = median(v, "value")
            low = min(float(r["min"] or r["value"]) for r in v)
            high = max(float(r["max"] or r["value"]) for r in v)
            share = median(v, "share")
            name = "pipit" if k[1] == "machine" else k[1]
            ratio = m / best if best else None
            print(f"| {cell} | {name} | {k[2]} | {number(m)} | {number(low)} .. {number(high)} | "
                  f"{'' if ratio is None else f'{ratio:.2f}'} | {'' if share is None else f'{100 * share:.0f} %'} |")
            if wanted not in LESS_IS_MORE and ratio and (name == "pipit" or m == best):
                plot.append((cell, name, k[2], m, share))
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        print("table.py: no matplotlib, no plot", file=sys.stderr)
        return
    fig, axes = plt.subplots(1, 2, figsize=(14, 5))
    for ax, wanted in zip(axes, ("prefill", "decode")):
        shown = [p for p in plot if p[0].startswith(wanted)]
        names = list(dict.fromkeys(p[0] for p in shown))
        series = list(dict.fromkeys((p[1], p[2] if p[1] == "pipit" else "best") for p in shown))
        for i, (who, kv) in enumerate(series):
            at = {p[0]: p for p in shown if p[1] == who and (who != "pipit" or p[2] == kv)}
            x = [names.index(n) + i * 0.8 / len(series) for n in at]
            bars = ax.bar(x, [p[3] for p in at.values()], 0.8 / len(series), label=f"{who} {kv}")
            for bar, p in zip(bars, at.values()):
                if p[4] is not None:
                    ax.text(bar.get_x() + bar.get_width() / 2, bar.get_height(), f"{100 * p[4]:.0f}%", ha="center",
                            va="bottom", fontsize=7)
        ax.set_xticks(range(len(names)), [n.split("-", 1)[1] for n in names])
        ax.set_ylabel("tokens a second; on the bars: share of the limit")
        ax.set_yscale("log")
        ax.set_title(wanted)
        ax.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(sys.argv[1].rsplit(".", 1)[0] + ".png", dpi=110)


if __name__ == "__main__":
    main()
