#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what reading part of the cache costs:

    plot_reading.py bench/results/DATE docs/pictures

reads DATE-quality-smollm2.csv, DATE-quality-reading.csv (run.py), DATE-sparq-study.csv, DATE-sparq-agreement.csv
(sparq_study.py), DATE-infinigen-agreement.csv, DATE-sparq-grid.csv and DATE-infinigen-layers.csv (pipit-eval, pipit-skew) as far as they are there, and writes

reading-bytes.svg       perplexity against bytes moved a step and against bytes held, all methods
sparq-ablations.svg     the SparQ paper's Fig. 7: what ranks, the temperature, r and k
sparq-agreement.svg     its Fig. 4e by layer: what r dims find of the true k best
infinigen-agreement.svg what InfiniGen predicts of the true best, by layer (infinigen_study.py)
infinigen-layers.svg    InfiniGen's Table 1 and Fig. 5: likeness of layers' inputs, keys that hold 0.9 of the weight

Bars are from the least to the most of the chunks, where they are not said to be standard errors. Needs matplotlib and scour."""

import csv
import os
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
import reads  # noqa: E402
import table as tables  # noqa: E402
from plot import LOOK, begin, save, write  # noqa: E402

TASK = "ppl-shakespeare-2k"
TOKENS = 1536.5  # of the text, the mean over the scored half of 2048
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999", "#000000")
# In the picture of all methods; lines join the budgets of one.
FAMILIES = {
    "sparq": ["sparq, 1/2", "sparq, 1/4", "sparq, 1/8"],
    "top-k V": ["top-k V, 512", "top-k V, 128", "top-k V, 32"],
    "infinigen": ["infinigen, 20 %", "infinigen, 10 %", "infinigen, 5 %"],
    "infinigen, FP8 partial keys": [f"infinigen, {n} %, FP8 partial keys" for n in (20, 10, 5)],
    "fp8 and sparq, 1/4": ["fp8 and sparq, 1/4"],
    "h2o 50 % and sparq": ["h2o 50 % and sparq, 1/4 of it"],
    "q8_0": ["integers, 8 bits a block of 32"],
    "q4_0": ["integers, 4 bits a block of 32"],
}


def lines(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def small(ax, title, x, y):
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    ax.tick_params(labelsize=7)
    ax.grid(linewidth=0.3)


def bars(ax, xs, many, color, marker, label, style="-"):
    """`many`: for each x its values by chunk."""
    mean = [statistics.fmean(v) for v in many]
    less, more = [m - min(v) for m, v in zip(mean, many)], [max(v) - m for m, v in zip(mean, many)]
    ax.errorbar(xs, mean, yerr=(less, more), color=color, marker=marker, markersize=4, linewidth=1, capsize=2, label=label,
                linestyle=style)


# ---- all methods -------------------------------------------------------------------------------------------------------

def of(t, policies, layout=None):
    """(bytes moved, bytes held, perplexity more, error), in percent; with layout=2k as it would be."""
    ret = []
    for p in policies:
        more = t.get(TASK, p, "perplexity more %")
        if more is None:
            continue
        live = t.any(TASK, p, "tokens_per_step")
        held = t.any(TASK, p, "kv_share") * (reads.held_2k(p) if layout else 1)
        ret.append((100 * reads.moved(p, live, TOKENS, layout), 100 * held, more,
                    t.get(TASK, p, "perplexity more %", "se") or 0.0))
    return sorted(ret)


def reading_bytes(prefix, folder):
    paths = [f"{prefix}-quality-smollm2.csv", f"{prefix}-quality-reading.csv"]
    if not all(os.path.exists(p) for p in paths):
        return
    drops, partly = (tables.Table(p) for p in paths)
    all_of = {**cells.READING, **cells.BESIDE}
    curves = {m: (of(drops, [tables.policy(m, b) for b in cells.BUDGETS]), *LOOK[m], ":")
              for m in ("sinks", "h2o", "keyformer", "recency")}
    curves |= {p: (of(drops, [p]), *LOOK[p], "none") for p in ("fp8", "kv8")}
    for (name, parts), color, marker in zip(FAMILIES.items(), COLORS[4:] + COLORS, "PX*<hdpv"):
        curves[name] = (of(partly, [all_of[p] for p in parts]), color, marker, "-" if len(parts) > 1 else "none")
    curves["sparq, layout=2k (not run)"] = (of(partly, [all_of[p] for p in FAMILIES["sparq"]], "2k"), *curves["sparq"][1:3], "--")
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
    for ax, column, x in zip(axes, (0, 1), ("K and V moved a step, % of full's bytes", "K and V held at the end, % of full's bytes")):
        for name, (v, color, marker, style) in curves.items():
            if v:
                ax.errorbar([p[column] for p in v], [max(p[2], 0.05) for p in v], yerr=[p[3] for p in v], color=color, marker=marker,
                            markersize=5, linewidth=1, capsize=2, linestyle=style, label=name)
        ax.set_yscale("log")
        ax.set_ylim(0.05, 60)
        ax.set_xlim(left=0)
        small(ax, "tiny Shakespeare, 2k, decode mode", x, "perplexity more than full's, % (± standard error)" if column == 0 else "")
    save(fig, folder, "reading-bytes.svg")


# ---- SparQ's parts -------------------------------------------------------------------------------------------------------

def study_points(study):
    """{setting: [KL of a chunk]}, of chunks in which all settings stand."""
    by, names = {}, {x["setting"] for x in study}
    for x in study:
        by.setdefault(int(x["chunk"]), {})[x["setting"]] = float(x["kl"])
    whole = [c for c in by.values() if len(c) == len(names)]
    return {s: [c[s] for c in whole] for s in names}


def elements(setting):
    """Share of full's elements that a setting reads, in percent; the oracle's ranking is free."""
    kind, _, rest = setting.partition(":")
    n = [int(w) for w in rest.split(",") if w.isdigit()]
    r, k = (0, n[0]) if kind == "oracle" else n
    return 100 * reads.asked(f"sparq:r={r},k={k}", TOKENS, TOKENS)


def ranks(ax, points):
    for (kind, label), color, marker in zip({
            "oracle": "oracle: the true k best, ranking free", "sparq": "SparQ: r dims of largest |q|",
            "projection": "r dims of a random rotation", "components": "r random dims"}.items(), COLORS, "*o^s"):
        have = sorted((elements(s), s) for s in points if s.startswith(kind + ":") and s.count(",") < 2)
        if have:
            bars(ax, [x for x, _ in have], [points[s] for _, s in have], color, marker, label)
    ax.set_yscale("log")
    small(ax, "a. what ranks", "elements read, % of full's", "mean KL from full, nats")
    ax.legend(fontsize=6, loc="lower left")


def temperatures(ax, points):
    forms = {"": "no reallocation", ",mean": "paper's", ",mean,tau=rank": "sqrt(r)", ",mean,tau=dim": "sqrt(d)"}
    budgets = ("16,192", "8,96")
    for i, b in enumerate(budgets):
        for j, suffix in enumerate(forms):
            v = points.get(f"sparq:{b}{suffix}")
            if v:
                ax.bar([i + 0.2 * j], [statistics.fmean(v)], width=0.18, color=COLORS[j], label=forms[suffix] if i else None)
                ax.plot([i + 0.2 * j] * len(v), v, linestyle="none", marker=".", markersize=4, color="black")
    ax.set_xticks([i + 0.3 for i in range(len(budgets))], [f"r={b.split(',')[0]}, k={b.split(',')[1]}" for b in budgets])
    small(ax, "b. mean of V, by temperature", "", "mean KL from full, nats (dots: chunks)")
    ax.legend(fontsize=6)


def engine_points(rows):
    """The same of pipit-eval's lines."""
    ret = {}
    for row in rows:
        name, o = reads.options(row["policy"])
        if name == "sparq":
            ret[f"sparq:{o['r']},{o['k']}"] = [float(v) for v in row["chunk_kl"].split()]
    return ret


def grid(ax, points, said):
    by = {}
    for s, v in points.items():
        if s.startswith("sparq:") and s.count(",") == 1:
            r, k = (int(w) for w in s[6:].split(","))
            by.setdefault(r, []).append((elements(s), k, v))
    for (r, v), color, marker in zip(sorted(by.items()), COLORS, "so^D"):
        v.sort()
        bars(ax, [x[0] for x in v], [x[2] for x in v], color, marker, f"r={r}" + (" (all of K)" if r == reads.DIM else ""))
        for x in v:
            ax.annotate(f"{x[1]}", (x[0], statistics.fmean(x[2])), fontsize=6, xytext=(3, 3), textcoords="offset points")
    ax.set_yscale("log")
    small(ax, f"c. r by line, k by point{said}", "elements read, % of full's", "mean KL from full, nats")
    ax.legend(fontsize=6)


def ablations(prefix, folder):
    study, rows = lines(f"{prefix}-sparq-study.csv"), lines(f"{prefix}-sparq-grid.csv")
    if not study:
        return
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.9))
    points = study_points(study)
    ranks(axes[0], points)
    temperatures(axes[1], points)
    grid(axes[2], engine_points(rows) if rows else points, " (engine)" if rows else "")
    fig.tight_layout()
    write(fig, folder, "sparq-ablations.svg")


def agreement(prefix, folder):
    rows = lines(f"{prefix}-sparq-agreement.csv")
    if not rows:
        return
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.8))
    for r, color, marker in zip(sorted({int(x["r"]) for x in rows}), COLORS, "so^"):
        mine = [x for x in rows if int(x["r"]) == r]
        layers = sorted({int(x["layer"]) for x in mine})
        for ax, value in zip(axes, (lambda x: 100 * float(x["agreement"]),
                                    lambda x: 100 * float(x["weight_found"]) / float(x["weight_true"]))):
            bars(ax, layers, [[value(x) for x in mine if int(x["layer"]) == i] for i in layers], color, marker, f"r={r} of 64")
    small(axes[0], f"of the true {rows[0]['k']} best, how many r dims find", "layer", "% (mean, least and most of the K heads)")
    small(axes[1], "weight of what was chosen", "layer", "% of the true best's weight")
    for ax in axes:
        ax.set_ylim(top=100)
    save(fig, folder, "sparq-agreement.svg")


def predicted(prefix, folder):
    rows = lines(f"{prefix}-infinigen-agreement.csv")
    if not rows:
        return
    fig, axes = plt.subplots(1, 3, figsize=(12.5, 3.8))
    of_layer = sorted({int(x["layer"]) for x in rows})

    def draw(ax, curves, value):
        for (setting, label), color, marker in zip(curves.items(), COLORS, "so^D*v"):
            mine = [x for x in rows if x["setting"] == setting]
            ax.plot(of_layer, [statistics.fmean(value(x) for x in mine if int(x["layer"]) == i) for i in of_layer], color=color,
                    marker=marker, markersize=3.5, linewidth=1, label=label)
        ax.set_ylim(top=100)
        ax.legend(fontsize=6, loc="lower right")

    draw(axes[0], {"share=10": "predicted, 19 of 64 dims", "share=10,partial8": "the same in FP8",
                   "share=10,own": "the layer's own queries, 19 dims", "share=10,whole": "predicted, whole keys",
                   "share=10,off": "without skew", "share=10,partial=0.1": "6 dims"}, lambda x: 100 * float(x["agreement"]))
    small(axes[0], "of the true best 10 %, how many are chosen", "layer", "% (mean over heads and rows)")
    draw(axes[1], {f"share={n}": f"{n} %" for n in (20, 10, 5)}, lambda x: 100 * float(x["weight"]) / float(x["weight_true"]))
    small(axes[1], "weight of what is chosen", "layer", "% of what as many true best hold")
    draw(axes[2], {"share=20": "no pool", "share=20,pool=60,counter": "60 %, counter", "share=20,pool=60,fifo": "60 %, fifo",
                   "share=20,pool=40,lru": "40 %, lru", "share=20,pool=40,counter": "40 %, counter",
                   "share=20,pool=40,fifo": "40 %, fifo"}, lambda x: 100 * float(x["weight"]) / float(x["weight_true"]))
    small(axes[2], "the same of 20 %, from a pool", "layer", "")
    fig.tight_layout()
    write(fig, folder, "infinigen-agreement.svg")


def layers(prefix, folder):
    rows = lines(f"{prefix}-infinigen-layers.csv")
    if not rows:
        return
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.6))
    v = [(int(x["layer"]), float(x["cosine"])) for x in rows if x["cosine"]]
    axes[0].plot(*zip(*v), marker="o", markersize=4, color=COLORS[0], linewidth=1)
    axes[0].axhspan(0.89, 0.91, color=COLORS[1], alpha=0.3, linewidth=0, label="Llama-2 in the paper")
    axes[0].axhspan(0.95, 0.97, color=COLORS[2], alpha=0.3, linewidth=0, label="OPT in the paper")
    small(axes[0], "a layer's input and the one's before", "layer", "cosine")
    v = [(int(x["layer"]), float(x["keys"])) for x in rows if x["keys"]]
    axes[1].bar(*zip(*v), color=COLORS[0])
    small(axes[1], "keys that hold 0.9 of a query's weight", "layer", "keys, mean over heads and rows")
    save(fig, folder, "infinigen-layers.svg")


def main():
    prefix, folder = sys.argv[1:3]
    begin(folder)
    reading_bytes(prefix, folder)
    ablations(prefix, folder)
    agreement(prefix, folder)
    predicted(prefix, folder)
    layers(prefix, folder)


if __name__ == "__main__":
    main()
