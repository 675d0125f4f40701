#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model, so many bytes for keys and values: how much is served, and how soon (bench/caps.sh).

After SwiftKV (Qiao et al. 2024), Table 5 and Fig. 3 and 4. A 16-layer model with as many K and V heads as query heads is served with
and without SingleInputKV (the deeper half), AcrossKV groups of four, and FP8, under each memory cap: first all requests at
once (rate 0: the largest throughput), then arriving at random at each rate (exponential gaps, the same for all). `merged` is
the paper's Merge-all-Layers, the ceiling: all arithmetic is done, and of 16 layers' memory one is charged. Under a cap the
settings take turns, --rounds times; the table has medians over the rounds."""

import argparse
import csv
import datetime
import os
import pathlib
import statistics
import subprocess
import tempfile

BUILD = pathlib.Path(os.environ.get("PIPIT_BUILD", "build"))
SHAPE = ["--arch", "llama", "--layers", "16", "--hidden", "512", "--ffn", "1536", "--heads", "8", "--kv-heads", "8", "--head-dim",
         "64", "--vocab", "4096", "--ctx", "4096", "-t", "Q4_0"]
LAYERS = 16
# name: overlay group (0: none), policy, the share of the memory that is charged
SETTINGS = {
    "f16": (0, "full", 1),
    "FP8": (0, "fp8", 1),
    "SingleInputKV": (1, "full", 1),
    "AcrossKV 4": (4, "full", 1),
    "AcrossKV 4, FP8": (4, "fp8", 1),
    "merged": (0, "full", LAYERS),
}
FIGURES = ("total_tok_s", "ttft_ms", "ttft_p95_ms", "tpot_ms", "tpot_p95_ms")


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "unknown CPU")


def make_models(folder):
    mk = str(BUILD / "tools" / "pipit-mkmodel")
    model = os.path.join(folder, "model.gguf")
    subprocess.run([mk, *SHAPE, model], check=True)
    overlays = {0: None}
    for group in (1, 4):
        overlays[group] = os.path.join(folder, f"swiftkv-{group}.gguf")
        subprocess.run([mk, "--base", model, "--swiftkv", str(LAYERS // 2), "--group", str(group), "-t", "Q4_0",
                        overlays[group]], check=True)
    return model, overlays


def run(o, model, overlay, kv, mib, charged, label):
    c = [str(BUILD / "bench" / "pipit-bench"), "--model", model, "--kv", kv, "--arrivals", o.rates, "--kv-memory",
         f"{mib * charged}MiB", "--requests", str(o.requests), "--prompt", str(o.prompt), "--answer", str(o.answer), "--threads",
         str(o.threads), "--label", label, "--header"]
    c += ["--overlay", overlay] if overlay else []
    return list(csv.DictReader(subprocess.run(c, check=True, capture_output=True, text=True).stdout.splitlines()))


def measure(o):
    rows = []
    with tempfile.TemporaryDirectory(prefix="caps-") as folder:
        model, overlays = make_models(folder)
        for k in range(o.rounds):
            for mib in o.caps:
                for name, (group, kv, charged) in SETTINGS.items():
                    for r in run(o, model, overlays[group], kv, mib, charged, name):
                        rows.append({"round": k, "cap_mib": mib, **r})
                    print(f"caps.py: round {k + 1}, {mib} MiB, {name}", flush=True)
    return rows


def medians(rows):
    """{(cap, setting, rate): {figure: median}}"""
    ret = {}
    for r in rows:
        ret.setdefault((int(r["cap_mib"]), r["kv"], float(r["rate"])), []).append(r)
    return {k: {**{f: statistics.median(float(r[f]) for r in v) for f in FIGURES}, "sequences": int(v[0]["sequences"])}
            for k, v in ret.items()}


def print_tables(table):
    caps = sorted({k[0] for k in table})
    rates = sorted({k[2] for k in table})
    print("\nTotal tokens a second, all requests at once (sequences that fit):\n")
    print("| keys and values may have | " + " | ".join(f"{c} MiB" for c in caps) + " |\n|---" + "|---" * len(caps) + "|")
    for s in SETTINGS:
        cells = [table[c, s, rates[0]] for c in caps]
        print(f"| {s} | " + " | ".join(f"{c['total_tok_s']:.0f} ({c['sequences']})" for c in cells) + " |")
    for cap in caps:
        print(f"\nMedian TTFT, ms / TPOT, ms at {cap} MiB, by requests a second:\n")
        print("| | " + " | ".join(f"{r:g}" for r in rates[1:]) + " |\n|---" + "|---" * len(rates[1:]) + "|")
        for s in SETTINGS:
            cells = [table[cap, s, r] for r in rates[1:]]
            print(f"| {s} | " + " | ".join(f"{c['ttft_ms']:.0f} / {c['tpot_ms']:.1f}" for c in cells) + " |")


def plot(table, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    caps = sorted({k[0] for k in table})
    rates = sorted({k[2] for k in table if k[2] > 0})
    fig, axes = plt.subplots(2, len(caps), figsize=(4 * len(caps), 6), squeeze=False, sharex=True)
    for i, cap in enumerate(caps):
        for ax, figure, word in ((axes[0][i], "ttft_ms", "time to first token, ms"),
                                 (axes[1][i], "tpot_ms", "time per token, ms")):
            for s in SETTINGS:
                ax.plot(rates, [table[cap, s, r][figure] for r in rates], marker="o", label=s)
            ax.set_yscale("log")
            ax.set_ylabel(word)
            ax.grid(alpha=0.3)
        axes[0][i].set_title(f"{cap} MiB of keys and values")
        axes[1][i].set_xlabel("requests a second")
    axes[0][0].legend(fontsize="small")
    fig.tight_layout()
    fig.savefig(path)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--out", default=f"bench/results/{datetime.date.today()}-memory-caps.csv")
    a.add_argument("--plot", help="a picture of times against rate (needs matplotlib)")
    a.add_argument("--caps", type=lambda v: [int(x) for x in v.split(",")], default=[24, 96, 384], metavar="MIB,...")
    a.add_argument("--rates", default="0,1,2,4", help="requests a second; 0 must be the first")
    a.add_argument("--requests", type=int, default=16)
    a.add_argument("--prompt", type=int, default=384)
    a.add_argument("--answer", type=int, default=64)
    a.add_argument("--rounds", type=int, default=1)
    a.add_argument("--threads", type=int, default=os.cpu_count())
    a.add_argument("--quick", action="store_true", help="seconds, to see that it runs")
    o = a.parse_args()
    if o.quick:
        o.caps, o.rates, o.requests, o.prompt, o.answer = [24], "0,50", 2, 32, 4
    rows = measure(o)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with open(o.out, "w", newline="", encoding="utf-8") as f:
        f.write(f"# {datetime.date.today()}, {cpu_name()}, {o.threads} threads, commit {commit or 'unknown'}\n")
        f.write(f"# bench/caps.sh --rates {o.rates} --requests {o.requests} --prompt {o.prompt} --answer {o.answer}"
                f" --rounds {o.rounds}\n")
        w = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        w.writeheader()
        w.writerows(rows)
    table = medians(rows)
    print_tables(table)
    if o.plot:
        plot(table, o.plot)


if __name__ == "__main__":
    main()
