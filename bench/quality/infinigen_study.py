#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of what a layer will weigh InfiniGen predicts, computed in PyTorch apart from the engine, because the engine of a pool
no longer has what the pool has lost:

    infinigen_study.py --model MODEL.gguf --skew SKEW.gguf --tok TOK_DUMP --text FILE --out FILE.csv [--quality FILE.csv]

The text is read densely, so queries and keys are those of the full cache, and each token of a chunk's second half is looked at as
a decode step (every fourth is told of): of the slots before it, those that the layer before predicts (docs/design/sparse-attention.md), against as many that weigh most by
the layer's own queries and whole keys. For each setting, layer from the third on and head group, means over these rows:

    agreement     the share of the true best n that are among the n predicted
    weight        the share of the queries' weight (softmax over all slots and the row's own) that the predicted and the row's own hold
    weight_true   the same of the true best n

Settings: share=S, and with it partial=M, partial8, no skew; `own`: by the layer's own queries, and so what partial keys alone lose;
`whole`: by whole keys, and so what foretelling alone loses. pool=C% with a victim's rule: slots that went are gone for ranking, while the
true best are of all. The prompt is cut to the pool, but for four sinks. Keys are f16, as the cache has them; all else is f32.

--quality: KL from full of the first chunk by the same method, run as sparq_study.py runs its own: held against the engine's, it checks both.
A line is written as soon as it is made. Needs torch and gguf; TOK_DUMP is tests/unit/tok_dump of a build."""

import argparse
import subprocess
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from sparq_study import Weights, log_probabilities, read, rope, write

FIELDS = ["setting", "chunk", "layer", "head", "rows", "slots", "agreement", "weight", "weight_true"]
QUALITY = ["setting", "chunk", "rows", "nll", "kl", "same_top1", "seconds"]
SINKS, EXEMPT, EVERY = 4, 32, 4
SHARES = (20, 10, 5)
SETTINGS = ([f"share={s}" for s in SHARES] + [f"share={s},partial8" for s in SHARES] + [f"share={s},own" for s in SHARES]
            + [f"share={s},whole" for s in SHARES] + ["share=10,off", "share=10,partial=0.1"])
POOLS = [f"share=20,pool={c},{rule}" for c in (80, 60, 40) for rule in ("fifo", "lru", "counter")]


def options(text):
    ret = {}
    for word in text.split(","):
        key, _, value = word.partition("=")
        ret[key] = value or True
    return ret


def fp8(x):
    """(.., n) as a row comes back: E4M3 codes and one f16 scale, largest |x| / 1.75 at code 256."""
    scale = (x.abs().amax(-1, keepdim=True) / 1.75).half().float()
    y = (x.abs() / scale.clamp_min(1e-30) * 256).clamp_max(448)
    step = torch.exp2(torch.log2(y.clamp_min(2.0 ** -9)).floor().clamp_min(-6) - 3)
    return torch.copysign((y / step).round() * step, x) * scale / 256


class Model(Weights):
    def __init__(self, path, skew):
        super().__init__(path)
        for t in gguf.GGUFReader(skew).tensors:
            self.t[t.name] = torch.from_numpy(np.array(t.data).astype(np.float32)).view(self.n_k, self.d, self.d)

    def heads(self, x, n):
        return x.view(len(x), n, self.d).transpose(0, 1)

    def norm(self, x, w):
        return F.rms_norm(x, (self.dim,), w, self.eps)

    def queries(self, layer, n, at):
        return rope(self.heads(n @ self.of(layer, "attn_q").t(), self.n_q), at, self.theta)

    def keys(self, layer, n, at):
        return rope(self.heads(n @ self.of(layer, "attn_k").t(), self.n_k), at, self.theta).half().float()

    def values(self, layer, n):
        return self.heads(n @ self.of(layer, "attn_v").t(), self.n_k).half().float()

    def rest(self, layer, x, y):
        x = x + y.transpose(0, 1).reshape(len(x), -1) @ self.of(layer, "attn_output").t()
        n = self.norm(x, self.of(layer, "ffn_norm"))
        return x + (F.silu(n @ self.of(layer, "ffn_gate").t()) * (n @ self.of(layer, "ffn_up").t())) @ self.of(layer, "ffn_down").t()


def logits(q, k):
    """(n_k, q heads of one, rows, slots)."""
    q = q.view(len(k), -1, *q.shape[1:])
    return torch.einsum("ghrd,gsd->ghrs", q, k) / q.shape[-1] ** 0.5


def ranking(m, o, layer, own, told, k):
    """Logits that rank. own, told (n_q, rows, d): the layer's queries and those predicted; k (n_k, slots, d)."""
    q = own if "own" in o else told
    if "whole" in o:
        return logits(q, k)
    a = m.of(layer, "attn_columns" if "off" in o else "attn_skew")
    n = max(1, int(float(o.get("partial", 0.3)) * m.d))
    part = torch.einsum("gjd,gsd->gsj", a[:, :n], k)
    part = fp8(part) if "partial8" in o else part.half().float()
    some = torch.einsum("gjd,ghrd->ghrj", a[:, :n], q.view(len(k), -1, *q.shape[1:]))
    return torch.einsum("ghrj,gsj->ghrs", some, part) / m.d ** 0.5


def best(weights, n):
    """(g, rows, slots): the n[row] largest of each row."""
    order = weights.sort(-1, descending=True).values
    least = order.gather(-1, (n - 1)[None, :, None].expand(len(weights), -1, 1))
    return weights >= least


def count(o, at):
    return (at * int(o["share"]) // 100).clamp_min(1)


class Truth:
    """Of one layer: which slots weigh most, and how much."""

    def __init__(self, own, k, at):
        slots = torch.arange(k.shape[1])
        self.at, self.before, self.mine = at, slots < at[:, None], slots == at[:, None]
        seen = self.before | self.mine
        w = F.softmax(logits(own, k).masked_fill_(~seen, -torch.inf), -1)
        self.weight = w.mean(1)  # (g, rows, slots)

    def lines(self, setting, chunk, layer, n, chosen):
        true = best(self.weight * self.before, n) & self.before
        share = (true & chosen).sum(-1) / true.sum(-1)
        of = lambda some: (self.weight * (some | self.mine)).sum(-1)
        found, most = of(chosen), of(true)
        return [{"setting": setting, "chunk": chunk, "layer": layer, "head": g, "rows": len(n), "slots": round(n.float().mean().item(), 1),
                 "agreement": round(share[g].mean().item(), 5), "weight": round(found[g].mean().item(), 5),
                 "weight_true": round(most[g].mean().item(), 5)} for g in range(len(chosen))]


def choose(x, before, n):
    return best(F.softmax(x.masked_fill(~before, -torch.inf), -1).sum(1) * before, n) & before


def simulate(x, at, ctx, pools):
    """{pool: chosen (g, rows, slots)} of x (g, heads, rows, slots), a step a row; a token's slot is named by its position."""
    x = x.numpy()
    groups, slots = len(x), x.shape[-1]
    caps = np.array([int(options(p)["pool"]) * ctx // 100 for p in pools])
    rules = [p.rsplit(",", 1)[1] for p in pools]
    live = np.zeros((len(pools), groups, slots), bool)
    score = np.zeros((len(pools), groups, slots), np.float32)
    ret = np.zeros((len(pools), groups, len(at), slots), bool)
    first = int(at[0])
    for i, cap in enumerate(caps):
        live[i, :, :min(SINKS, first)] = True
        live[i, :, max(SINKS, first - max(cap - SINKS, 0)):first] = True
    for row, p in enumerate(at.tolist()):
        for i, rule in enumerate(rules):
            if live[i, 0].sum() < caps[i]:
                continue
            exempt = {"counter": EXEMPT, "lru": 2, "fifo": 1}[rule]
            key = np.broadcast_to(np.arange(slots, dtype=np.float32), (groups, slots)) if rule == "fifo" else score[i]
            can = live[i].copy()
            can[:, :SINKS] = False
            can[:, max(0, p - exempt + 1):] = False
            live[i, np.arange(groups), np.where(can, key, np.inf).argmin(-1)] = False
        e = np.exp(x[:, :, row, :p] - x[:, :, row, :p].max(-1, keepdims=True))
        seen = live[:, :, :p]
        total = np.einsum("ghp,agp->agh", e, seen)
        weight = np.einsum("ghp,agh->agp", e, 1 / total) * seen
        share = int(options(pools[0])["share"])
        n = max(1, p * share // 100)
        least = np.partition(weight, p - min(n, p), -1)[..., p - min(n, p), None]
        chosen = (weight >= least) & seen
        ret[:, :, row, :p] = chosen
        for i, rule in enumerate(rules):
            if rule == "counter":
                full = (chosen[i] & (score[i, :, :p] >= 255)).any(-1)
                score[i, full] = np.floor(score[i, full] / 2)
                score[i, :, :p] += chosen[i]
            elif rule == "lru":
                score[i, :, :p] = np.where(chosen[i], p, np.maximum(score[i, :, :p], np.arange(p)))
        live[:, :, p] = True
    return {name: torch.from_numpy(ret[i]) for i, name in enumerate(pools)}


def agreement(m, ids, chunk, settings, pools, put):
    """One dense pass; `put` gets each layer's lines."""
    ctx, half = len(ids), len(ids) // 2
    every, at = torch.arange(ctx), torch.arange(half, ctx - 1)
    causal = every[:, None] >= every
    x, before = m.t["token_embd.weight"][ids], None
    for i in range(m.n_layers):
        n = m.norm(x, m.of(i, "attn_norm"))
        q, k = m.queries(i, n, every), m.keys(i, n, every)
        if i >= 2:
            some = at[::EVERY]
            truth, told = Truth(q[:, some], k, some), m.queries(i, before[at], at)
            lines = []
            for s in settings:
                o = options(s)
                n_of = count(o, some)
                rank = ranking(m, o, i, q[:, some], told[:, ::EVERY], k)
                lines += truth.lines(s, chunk, i, n_of, choose(rank, truth.before, n_of))
            if pools:
                for s, chosen in simulate(ranking(m, {}, i, None, told, k), at, ctx, pools).items():
                    lines += truth.lines(s, chunk, i, count(options(s), some), chosen[:, ::EVERY])
            put(i, lines)
        y = torch.cat([F.softmax(logits(q[:, r], k).masked_fill_(~causal[r], -torch.inf), -1).flatten(0, 1)
                       @ m.values(i, n).repeat_interleave(m.n_q // m.n_k, 0) for r in every.split(512)], 1)
        x, before = m.rest(i, x, y), n


def run(m, o, ids, half, past):
    """Hidden rows of the second half by the method ({}: full); K and V of the first half in `past`, which it fills where empty."""
    if not past:
        forward(m, {}, ids[:half], torch.arange(half), past, True)
    return forward(m, o, ids[half:-1], torch.arange(half, len(ids) - 1), past, False)


def forward(m, o, ids, at, past, keep):
    x, before = m.t["token_embd.weight"][ids], None
    for i in range(m.n_layers):
        n = m.norm(x, m.of(i, "attn_norm"))
        q, k, v = m.queries(i, n, at), m.keys(i, n, at), m.values(i, n)
        if keep:
            past.append((k, v))
        else:
            k, v = torch.cat([past[i][0], k], 1), torch.cat([past[i][1], v], 1)
        slots = torch.arange(k.shape[1])
        seen = (slots <= at[:, None]).expand(m.n_k, -1, -1)
        if o and i >= 2:
            earlier = slots < at[:, None]
            told = m.queries(i, before, at)
            seen = choose(ranking(m, o, i, q, told, k), earlier, count(o, at)) | (slots == at[:, None])
        w = F.softmax(logits(q, k).masked_fill_(~seen[:, None], -torch.inf), -1)
        x, before = m.rest(i, x, (w @ v[:, None]).flatten(0, 1)), n
    return m.norm(x, m.t["output_norm.weight"])


def quality(m, ids, chunk, path, comment):
    lines = read(path)
    there = {x["setting"] for x in lines if int(x["chunk"]) == chunk}
    half, past, full = len(ids) // 2, [], None
    for s in ["full"] + [s for s in [f"share={n}" for n in SHARES] if s not in there]:
        t0 = time.process_time()
        logp = log_probabilities(m, run(m, options(s) if s != "full" else {}, ids, half, past))
        full = logp if full is None else full
        if s not in there:
            kl = (full.exp() * (full - logp)).sum(-1).mean().item()
            lines.append({"setting": s, "chunk": chunk, "rows": len(logp),
                          "nll": round(-logp.gather(1, ids[half + 1:, None]).mean().item(), 6), "kl": round(kl, 6),
                          "same_top1": round((full.argmax(-1) == logp.argmax(-1)).float().mean().item(), 5),
                          "seconds": round(time.process_time() - t0, 1)})
            write(path, QUALITY, lines, comment)
            print(f"chunk {chunk}: {s}: KL {kl:.4f}, {time.process_time() - t0:.1f} s", flush=True)


@torch.no_grad()
def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--skew", required=True, help="pipit-skew's overlay of the model")
    a.add_argument("--tok", required=True, help="tests/unit/tok_dump of a build")
    a.add_argument("--text", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--quality")
    a.add_argument("--ctx", type=int, default=2048)
    a.add_argument("--chunks", type=int, default=2)
    a.add_argument("--no-pools", action="store_true")
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--comment", default="bench/quality/infinigen_study.py", help="the first line of both files")
    o = a.parse_args()
    torch.set_num_threads(o.threads)
    m = Model(o.model, o.skew)
    with open(o.text, "rb") as f:
        raw = f.read(o.ctx * (o.chunks + 1) * 6)
    said = subprocess.run([o.tok, o.model], input=raw.hex() + "\n", capture_output=True, text=True, check=True).stdout
    ids = torch.tensor([int(t) for t in said.split("\n")[0].split()][:o.ctx * o.chunks]).view(o.chunks, o.ctx)
    lines = read(o.out)
    for c in range(o.chunks):
        if o.quality and c == 0:
            quality(m, ids[c], c, o.quality, o.comment)
        if any(int(x["chunk"]) == c for x in lines):
            continue
        mine = []

        def put(layer, new):
            mine.extend(new)
            print(f"chunk {c}: layer {layer}: {time.process_time():.0f} s", flush=True)

        agreement(m, ids[c], c, SETTINGS, [] if o.no_pools else POOLS, put)
        lines += mine
        write(o.out, FIELDS, lines, o.comment)


if __name__ == "__main__":
    main()
