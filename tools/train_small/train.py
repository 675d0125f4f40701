#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models that differ in their heads alone (DiffQKV: paper's Tables 1, 3 and 13, at a size that a CPU trains in
minutes), and compares them:

    train.py --out DIR TEXT... [--steps N] [--seeds N] [--variant NAME]... [--report]

One run is a variant and a seed: DIR/VARIANT.SEED.json (its curve and validation loss) and, of seed 0, DIR/VARIANT.gguf, which
pipitd loads. Runs of a seed see the same text in the same order. A run that is there is not made again. The last 5 % of each
text are never trained on; the validation loss is that of their first --validate bytes, in chunks of the context, in nats a byte.

What difference counts was settled before any run: that of two variants' validation losses, paired by seed, whose 95 %
confidence interval (Student's t) is without zero, and which is at least 0.5 % of the loss. The questions (docs/results/diffqkv.md) were
settled as well: they are answered below the table."""

import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../bench")]
import export  # noqa: E402
from model import Model, variants  # noqa: E402
from student import t975  # noqa: E402

AGAINST = ("gqa", "gqa+ffn", "mha")
LEAST = 0.005
QUESTIONS = (("v-only", "k-only"), ("k-only", "gqa"), ("gqa+aug", "gqa"), ("gqa+aug", "gqa+ffn"), ("sigma", "gqa"), ("sigma", "k-only"))


def load(paths, ctx):
    """Bytes to train on, as one text; and validation chunks (n, ctx + 1)."""
    train, valid = [], []
    for path in paths:
        with open(path, "rb") as f:
            t = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)
        cut = len(t) - len(t) // 20
        if len(t) - cut < ctx + 1:
            sys.exit(f"train.py: {path}: {len(t)} bytes are too few for a context of {ctx}")
        train.append(t[:cut])
        valid.append(t[cut:])
    chunks = [v[i:i + ctx + 1] for v in valid for i in range(0, len(v) - ctx, ctx)]
    return torch.cat(train), torch.stack(chunks).long()


def loss_of(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1))


@torch.no_grad()
def validate(model, chunks, batch):
    sums = [loss_of(model, c).item() * len(c) for c in chunks.split(batch)]
    return sum(sums) / len(chunks)


def rate(step, steps, peak):
    """Warm-up over 5 % of the steps, then a cosine to a tenth."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def run(o, name, shape, seed, text, chunks):
    torch.manual_seed(1000 + seed)
    model = Model(shape)
    order = torch.Generator().manual_seed(seed)  # the same for every variant
    flat = [p for p in model.parameters() if p.ndim == 1]
    wide = [p for p in model.parameters() if p.ndim == 2]
    adam = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], betas=(0.9, 0.95))
    curve, t0 = [], time.process_time()
    for step in range(o.steps):
        at = torch.randint(len(text) - o.ctx - 1, (o.batch,), generator=order)
        ids = torch.stack([text[i:i + o.ctx + 1] for i in at.tolist()]).long()
        for g in adam.param_groups:
            g["lr"] = rate(step, o.steps, o.lr)
        loss = loss_of(model, ids)
        if not torch.isfinite(loss):
            sys.exit(f"train.py: {name}, seed {seed}: the loss of step {step} is {loss.item()}; no file is written")
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        if step % 20 == 0 or step == o.steps - 1:
            curve.append([step, round(loss.item(), 4)])
    return model, {
        "variant": name, "seed": seed, "heads": [shape.n_q, shape.n_k, shape.n_v], "aug": shape.aug, "ffn": shape.ffn,
        "parameters": shape.parameters(), "kv_elements": shape.kv_elements(), "steps": o.steps,
        "tokens": o.steps * o.batch * o.ctx, "validation": round(validate(model, chunks, o.batch), 5),
        "cpu_seconds": round(time.process_time() - t0, 1), "curve": curve}


def read(o):
    ret = {}
    for f in sorted(os.listdir(o.out)):
        if f.endswith(".json"):
            with open(os.path.join(o.out, f), encoding="utf-8") as file:
                r = json.load(file)
            ret.setdefault(r["variant"], {})[r["seed"]] = r
    return ret


def difference(runs, a, b):
    """Mean of a's loss less b's over the seeds that both have, and half its 95 % interval (None: fewer than two seeds)."""
    d = [runs[a][s]["validation"] - runs[b][s]["validation"] for s in sorted(runs[a].keys() & runs[b].keys())]
    if not d:
        return None, None
    half = t975(len(d) - 1) * statistics.stdev(d) / len(d) ** 0.5 if len(d) >= 2 else None
    return statistics.fmean(d), half


def said(runs, a, b):
    """a's loss less b's with half its interval, and whether it counts; empty with fewer than two common seeds."""
    mean, half = difference(runs, a, b)
    if mean is None or half is None:
        return ""
    loss = statistics.fmean(x["validation"] for x in runs[a].values())
    counts = abs(mean) > half and abs(mean) >= LEAST * loss
    return f"{mean:+.4f} ± {half:.4f}" + (" **counts**" if counts else "")


def report(runs):
    lines = ["| variant | q/k/v heads | augmented Q | FFN | parameters | K and V elements a token | nats a byte |"
             + "".join(f" less {b} |" for b in AGAINST), "|---" * (7 + len(AGAINST)) + "|"]
    for name in variants():
        if name not in runs:
            continue
        r = next(iter(runs[name].values()))
        v = [x["validation"] for x in runs[name].values()]
        cells = [name, "/".join(map(str, r["heads"])), r["aug"] or "", r["ffn"], r["parameters"], r["kv_elements"],
                 f"{statistics.fmean(v):.4f} ({', '.join(f'{x:.4f}' for x in v)})"]
        for b in AGAINST:
            cells.append(said(runs, name, b) if b in runs and b != name else "")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    answers = [(a, b, said(runs, a, b)) for a, b in QUESTIONS if a in runs and b in runs]
    if any(text for _, _, text in answers):
        lines += ["", "| question | nats a byte |", "|---|---|"]
        lines += [f"| {a} less {b} | {text} |" for a, b, text in answers if text]
    return "\n".join(lines)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("text", nargs="*")
    a.add_argument("--out", required=True)
    a.add_argument("--variant", action="append", choices=list(variants()), help="repeats; all by default")
    a.add_argument("--seeds", type=int, default=3)
    a.add_argument("--steps", type=int, default=500)
    a.add_argument("--batch", type=int, default=16)
    a.add_argument("--ctx", type=int, default=256)
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--validate", type=int, default=65536, metavar="BYTES")
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--report", action="store_true", help="train nothing, print the table")
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    torch.set_num_threads(o.threads)
    if not o.report:
        if not o.text:
            a.error("TEXT is needed")
        text, chunks = load(o.text, o.ctx)
        chunks = chunks[torch.linspace(0, len(chunks) - 1, max(1, min(len(chunks), o.validate // o.ctx))).long()]
        for seed in range(o.seeds):
            for name in o.variant or variants():
                path = os.path.join(o.out, f"{name}.{seed}.json")
                if os.path.exists(path):
                    continue
                model, r = run(o, name, variants()[name], seed, text, chunks)
                if seed == 0:
                    export.write(os.path.join(o.out, f"{name}.gguf"), model, f"small {name}", o.ctx * 4)
                with open(f"{path}.tmp", "w", encoding="utf-8") as f:
                    json.dump(r, f)
                os.replace(f"{path}.tmp", path)
                print(f"train.py: {name}, seed {seed}: {r['validation']} nats a byte, {r['cpu_seconds']} s", flush=True)
    print(report(read(o)))


if __name__ == "__main__":
    main()
