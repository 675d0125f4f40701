#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws run.py's CSV: plot.py CSV docs/pictures

quality-tasks.svg       retrieval, repetition and answers against the bytes of K and V held, a line a method

Needs matplotlib, and scour, which makes pictures 0.6 times as large."""

import os
import subprocess
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cells  # noqa: E402
import table as tables  # noqa: E402

LOOK = {
    "sinks": ("#0072b2", "o"), "h2o": ("#e69f00", "s"), "keyformer": ("#009e73", "^"), "recency": ("#cc79a7", "D"),
    "keyformer bounded": ("#56b4e9", "v"), "keyformer as-shipped": ("#999999", "x"), "window": ("#d55e00", "+"),
    "full": ("#000000", "*"), "fp8": ("#000000", "1"), "kv8": ("#000000", "2"), "k16v8": ("#000000", "3"),
}
SCOUR = ("--set-precision=4", "--create-groups", "--enable-id-stripping", "--shorten-ids", "--indent=none",
         "--no-line-breaks", "--enable-comment-stripping", "--remove-descriptive-elements")
# So much worse than the rest that it would flatten every picture.
OFF_SCALE = ("window",)


def points(t, task, metric, method):
    ret = []
    for b in sorted(cells.BUDGETS):
        p = tables.policy(method, b)
        y, x = t.get(task, p, metric), t.get(task, p, metric, "kv_bytes")
        if y is not None:
            ret.append((x / 1e6, y, t.get(task, p, metric, "se") or 0.0))
    return ret


def panel(ax, t, task, metric, title, label):
    for method in cells.METHODS:
        v = points(t, task, metric, method)
        if not v or method in OFF_SCALE:
            continue
        color, marker = LOOK[method]
        x, y, se = zip(*v)
        ax.errorbar(x, y, yerr=se, color=color, marker=marker, markersize=4, linewidth=1, capsize=2, label=method)
    for p in ["full"] + cells.TYPES:
        y, x = t.get(task, p, metric), t.get(task, p, metric, "kv_bytes")
        if y is not None:
            ax.plot([x / 1e6], [y], linestyle="none", marker=LOOK[p][1], color=LOOK[p][0], markersize=7, label=p)
    full = t.get(task, "full", metric)
    if full is not None:
        ax.axhline(full, color="#000000", linewidth=0.5, linestyle=":")
    ax.set_title(title, fontsize=9)
    ax.set_xlabel("MB of keys and values held at the end", fontsize=8)
    ax.set_ylabel(label, fontsize=8)
    ax.set_xlim(left=0)
    ax.tick_params(labelsize=7)
    ax.grid(linewidth=0.3)


def begin(folder):
    os.makedirs(folder, exist_ok=True)
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "pipit"


def write(fig, folder, name):
    path = os.path.join(folder, name)
    fig.savefig(path + ".large", format="svg", metadata={"Date": None, "Creator": None})
    subprocess.run([sys.executable, "-m", "scour.scour", "-q", *SCOUR, path + ".large", path], check=True)
    os.remove(path + ".large")
    plt.close(fig)


def save(fig, folder, name):
    """With one legend below for all panels."""
    handles, labels = {}, []
    for ax in fig.axes:
        for h, label in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(label, h)
    labels = list(handles)
    if labels:
        fig.legend(handles.values(), labels, loc="lower center", ncols=min(6, len(labels)), fontsize=7, frameon=False)
    fig.tight_layout(rect=(0, 0.11 if labels else 0, 1, 1))
    write(fig, folder, name)


def panels(t, folder, name, wanted):
    """A picture of those panels that have more than full's own figure."""
    have = [w for w in wanted if any(task == w[0] and metric == w[1] and p != "full" for task, p, metric in t.rows)]
    if not have:
        return
    fig, axes = plt.subplots(1, len(have), figsize=(3.7 * len(have), 3.6), squeeze=False)
    for ax, w in zip(axes.flat, have):
        panel(ax, t, *w)
    save(fig, folder, name)


def quality_tasks(t, folder):
    panels(t, folder, "quality-tasks.svg", (
        ("needle-2k", "all", "retrieval, 2k", "answers with the number, %"),
        ("repeat", "all", "text repetition", "matching characters"),
        ("chat", "rougeL vs full", "MT-Bench first turns", "ROUGE-L against full's answers")))


def main():
    t, folder = tables.Table(sys.argv[1]), sys.argv[2]
    begin(folder)
    quality_tasks(t, folder)


if __name__ == "__main__":
    main()
