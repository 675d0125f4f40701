#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training curves of run_all.py's kept folder as a picture, and what more tokens would give.

    curves.py --models KEEP --scores bench/results/*-distill-scores*.json --name 14-16 --picture curves.svg

Left: what each overlay's second stage asks for (T^2 KL, mean of ten steps; thin at temperature 2, else 1) by the tokens that
it had seen, from KEEP/NAME.run.jsonl. Right: KL from the teacher at temperature 1 on the evaluation's texts, of the overlays called --name in
files of evaluate.py that say how many tokens these had seen, and a line of least squares through the points'
logarithms. Prints that line's exponent and its value at 20 and 200 million tokens. Needs matplotlib."""

import argparse
import json
import math
import pathlib

NAMES = {"15-1": "(a) 15, none", "15-4": "(b) 15, fours", "14-16": "(c) 14, sixteen", "18-12": "(e) 18, twelve"}
TEXTS = ("tinyshakespeare", "war-and-peace")


def curve(path, temperature=None):
    """(tokens, KL) of the stage `full`, of what was asked for at one temperature if not None; tokens of the stages before it
    count. Lines of before the log said it are of temperature 2."""
    before, at, each, stage, out = 0, 0, 0, None, []
    for line in map(json.loads, path.read_text().splitlines()):
        if (line["stage"], line.get("index")) != stage:
            before, stage, each = before + at, (line["stage"], line.get("index")), line["tokens"] / line["step"]
        at = line["step"] * each  # the field "tokens" begins anew with new data
        if stage[0] == "full" and temperature in (None, line.get("temperature", 2)):
            out.append((before + at, line["kl"]))
    return out


def power_law(points):
    """(factor, exponent) of the least squares line through logarithms."""
    x, y = [[math.log(p[i]) for p in points] for i in (0, 1)]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)
    return math.exp(my - slope * mx), slope


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=pathlib.Path, required=True, help="run_all.py's folder of logs")
    p.add_argument("--scores", type=pathlib.Path, nargs="+", default=[])
    p.add_argument("--name", default="14-16")
    p.add_argument("--picture", type=pathlib.Path)
    o = p.parse_args()
    measured = {t: [] for t in TEXTS}
    for path in o.scores:
        scores = json.loads(path.read_text())
        seen = scores.get("tokens", {}).get(o.name)
        for text in TEXTS:
            if seen and o.name in scores.get(text, {}).get("kl", {}):
                measured[text].append((seen, scores[text]["kl"][o.name]))
    laws = {t: power_law(sorted(points)) for t, points in measured.items() if len(points) > 1}
    for text, (factor, slope) in laws.items():
        print(f"{text}: KL ~ tokens^{slope:.3f}: " +
              ", ".join(f"{factor * n ** slope:.2f} at {n / 1e6:.0f} M" for n in (20e6, 200e6)))
    if not o.picture:
        return
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pipit"
    import matplotlib.pyplot as plt
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name, label in NAMES.items():
        path = o.models / f"smollm2-135m-swiftkv-{name}.run.jsonl"
        color = None
        for temperature, width in ((2, 0.6), (1, 1.4)):
            points = curve(path, temperature) if path.exists() else []
            if points:
                (line,) = left.plot(*zip(*points), label=f"{label}, T = {temperature}", linewidth=width, color=color)
                color = line.get_color()
    left.set(xscale="log", yscale="log", xlabel="tokens seen", ylabel="T² KL, nats")
    left.legend(fontsize=7, loc="lower left")
    for text, points in measured.items():
        if not points:
            continue
        (dots,) = right.plot(*zip(*sorted(points)), "o", label=text)
        if text in laws:
            factor, slope = laws[text]
            x = [min(p[0] for p in points), 200e6]
            right.plot(x, [factor * n ** slope for n in x], "--", color=dots.get_color(), linewidth=1,
                       label=f"tokens^{slope:.2f}")
    right.axhline(0.1, color="grey", linewidth=1, linestyle=":", label="the aim")
    right.set(xscale="log", yscale="log", xlabel="tokens seen", ylabel=f"KL of {o.name} from the teacher, nats")
    right.legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(o.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
