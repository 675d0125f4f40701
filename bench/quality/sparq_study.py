#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What SparQ's parts are worth, computed in PyTorch apart from the engine, because the engine has no random components and no
other temperature:

    sparq_study.py --model MODEL.gguf --text FILE --out FILE.csv --agreement FILE.csv [--chunks N]

As pipit-eval --mode decode does: the first half of a chunk of --ctx tokens is read densely, each token of the second half attends
by the method under test, and so writes K and V that its successors see. All tokens of the second half are known, so a layer
computes them together. Weights are the file's, dequantised; everything is f32 (the engine has int8 activations and an f16 cache, so
its perplexity is a little higher; differences from `full` are what is to be compared). llama architecture, rows of RoPE by
pairs.

A setting is a ranking and what is read (docs/design/sparse-attention.md):
    oracle:K                exact weights rank, nothing is read for it
    sparq:R,K               the R dims with the largest |q| rank; tau=dim: sqrt(d), tau=rank: sqrt(R) in place of
                            sqrt(d |q[r]|_1 / |q|_1); mean: what is not read is the mean of V, at the weight that ranking gives it
    components:R,K          R dims drawn once for each layer and K head rank
    projection:R,K          the first R values of A q and A k, A a random rotation for each layer and K head: the paper's
                            "random low rank projection"
All but oracle read the latest K / 4 tokens whatever their rank. Query heads of a K head choose together, by the sum of their weights.

--out has a line a setting and chunk, as soon as it is made; a line that is there is not made again. --agreement: of the exact
queries of the first chunk, by layer: the share of the true K best that R dims find, and the weight that both hold.
Needs torch, gguf and llama-cpp-python (its tokenizer)."""

import argparse
import csv
import math
import os
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

BUDGETS = ((32, 384), (16, 192), (8, 96))
SETTINGS = (
    ["full"]
    + [s for r, k in BUDGETS for s in (f"sparq:{r},{k}", f"oracle:{k}")]
    + [f"sparq:{r},{k},mean{tau}" for r, k in BUDGETS[:0:-1] for tau in ("", ",tau=rank", ",tau=dim")]
    + [f"{kind}:{r},{k}" for kind in ("projection", "components") for r, k in BUDGETS]
    + [f"sparq:{r},{k}" for i, (r, _) in enumerate(BUDGETS) for j, (_, k) in enumerate(BUDGETS) if i != j])
AGREEMENT = ((8, 128), (16, 128), (32, 128))
FIELDS = ["setting", "chunk", "rows", "nll", "kl", "same_top1", "seconds"]


class Weights:
    def __init__(self, path):
        r = gguf.GGUFReader(path)
        key = lambda name: r.fields[f"llama.{name}"].contents()
        self.n_layers, self.dim = key("block_count"), key("embedding_length")
        self.n_q, self.n_k = key("attention.head_count"), key("attention.head_count_kv")
        self.eps, self.theta = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base")
        self.d = self.dim // self.n_q
        self.t = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)) for t in r.tensors}

    def of(self, layer, name):
        return self.t[f"blk.{layer}.{name}.weight"]


def rope(x, at, theta):
    """x (heads, rows, d): pairs of neighbours turn."""
    d = x.shape[-1]
    angle = at[:, None].double() * theta ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Setting:
    def __init__(self, text):
        kind, _, rest = text.partition(":")
        words = rest.split(",") if rest else []
        numbers = [int(w) for w in words if w.isdigit()]
        self.kind, self.mean, self.tau = kind, "mean" in words, "share"
        self.k = numbers[-1] if numbers else 0
        self.r = numbers[0] if len(numbers) > 1 else 0
        for w in words:
            if w.startswith("tau="):
                self.tau = w[4:]


def rotation(layer, head, d):
    g = torch.Generator().manual_seed(1000 * layer + head)
    q, r = torch.linalg.qr(torch.randn(d, d, generator=g))
    return q * torch.sign(torch.diagonal(r))


def ranking(s, q, k, layer, head, hidden):
    """(weights that rank, q heads, rows, slots), of one K head; hidden: 0, or -inf where a row does not see a slot."""
    d = k.shape[-1]
    if s.kind == "oracle":
        x = q @ k.t() / math.sqrt(d)
        return F.softmax(x.add_(hidden), -1)
    if s.kind == "sparq":
        top = q.abs().sum(0).topk(s.r, -1).indices
        dims = torch.zeros(q.shape[1:], dtype=torch.bool).scatter_(-1, top, True)
    elif s.kind == "components":
        g = torch.Generator().manual_seed(1000 * layer + head)
        dims = torch.zeros(d, dtype=torch.bool)
        dims[torch.randperm(d, generator=g)[:s.r]] = True
    else:
        a = rotation(layer, head, d)
        q, k, dims = q @ a, k @ a, torch.arange(d) < s.r
    some = q * dims
    share = some.abs().sum(-1, keepdim=True) / q.abs().sum(-1, keepdim=True)
    tau = {"share": (d * share).sqrt(), "rank": torch.tensor(float(s.r)).sqrt(), "dim": torch.tensor(float(d)).sqrt()}[s.tau]
    return F.softmax(((some / tau) @ k.t()).add_(hidden), -1)


def choose(weights, k, local, at, hidden):
    """(rows, slots): whether a slot is among the k best, by the sum over heads, or among the latest. Each row sees k at least."""
    p = weights.sum(0).add_(hidden)
    if local:
        p += 1e3 * (torch.arange(p.shape[-1]) > at[:, None] - local)
    least = np.partition(p.numpy(), -k, -1)[:, -k]  # several times quicker than topk
    return p >= torch.from_numpy(least)[:, None]


def attend(s, q, k, v, layer, at, found=None):
    """q (n_q, rows, d) at the positions `at`; k, v (n_k, slots, d), slot is position. (n_q, rows, d)"""
    out = torch.empty_like(q)
    group = len(q) // len(k)
    hidden = torch.zeros(len(at), k.shape[1]).masked_fill_(torch.arange(k.shape[1]) > at[:, None], -math.inf)
    for h in range(len(k)):
        mine = slice(h * group, (h + 1) * group)
        x = q[mine] @ k[h].t() / math.sqrt(q.shape[-1])
        if s.kind == "full":
            w = F.softmax(x.add_(hidden), -1)
            out[mine] = w @ v[h]
            if found:
                found(layer, h, q[mine], k[h], w, at, hidden)
            continue
        p = ranking(s, q[mine], k[h], layer, h, hidden)
        chosen = choose(p, s.k, 0 if s.kind == "oracle" else s.k // 4, at, hidden)
        y = F.softmax(x.add_(torch.zeros(chosen.shape).masked_fill_(~chosen, -math.inf)), -1) @ v[h]
        if s.mean:
            a = (p * chosen).sum(-1, keepdim=True)
            mean = v[h].cumsum(0)[at] / (at[:, None] + 1)
            y = a * y + (1 - a) * mean
        out[mine] = y
    return out


def forward(m, s, ids, at, past, keep=False, found=None):
    """Hidden rows of `ids` at positions `at`, with the K and V of `past` before them; keep: theirs are put there."""
    heads = lambda t, n: t.view(len(ids), n, m.d).transpose(0, 1)
    norm = lambda t, w: F.rms_norm(t, (m.dim,), w, m.eps)
    x = m.t["token_embd.weight"][ids]
    for i in range(m.n_layers):
        n = norm(x, m.of(i, "attn_norm"))
        q = rope(heads(n @ m.of(i, "attn_q").t(), m.n_q), at, m.theta)
        k = rope(heads(n @ m.of(i, "attn_k").t(), m.n_k), at, m.theta)
        v = heads(n @ m.of(i, "attn_v").t(), m.n_k)
        if keep:
            past.append((k, v))
        else:
            k, v = torch.cat([past[i][0], k], 1), torch.cat([past[i][1], v], 1)
        y = attend(s, q, k, v, i, at, found)
        x = x + y.transpose(0, 1).reshape(len(ids), -1) @ m.of(i, "attn_output").t()
        n = norm(x, m.of(i, "ffn_norm"))
        x = x + (F.silu(n @ m.of(i, "ffn_gate").t()) * (n @ m.of(i, "ffn_up").t())) @ m.of(i, "ffn_down").t()
    return norm(x, m.t["output_norm.weight"])


def log_probabilities(m, x):
    return F.log_softmax(x @ m.t.get("output.weight", m.t["token_embd.weight"]).t(), -1)


class Agreement:
    """Of every eighth row of the exact queries: what R dims find of the true K best."""

    def __init__(self):
        self.lines = []

    def __call__(self, layer, head, q, k, w, at, hidden):
        q, w, at, hidden = q[:, ::8], w[:, ::8].clone(), at[::8], hidden[::8]
        for r, n in AGREEMENT:
            true = choose(w, n, 0, at, hidden)
            p = ranking(Setting(f"sparq:{r},{n}"), q, k, layer, head, hidden)
            mine = choose(p, n, 0, at, hidden)
            share = (true & mine).sum(-1).float() / n
            self.lines.append({"layer": layer, "head": head, "r": r, "k": n, "rows": len(at),
                               "agreement": round(share.mean().item(), 5), "deviation": round(share.std().item(), 5),
                               "weight_true": round((w * true).sum(-1).mean().item(), 5),
                               "weight_found": round((w * mine).sum(-1).mean().item(), 5)})


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(line for line in f if not line.startswith("#")))


def write(path, fields, lines, comment):
    with open(f"{path}.tmp", "w", newline="", encoding="utf-8") as f:
        f.write(f"# {comment}\n")
        w = csv.DictWriter(f, fields, lineterminator="\n")
        w.writeheader()
        w.writerows(lines)
    os.replace(f"{path}.tmp", path)


@torch.no_grad()
def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--text", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--agreement", required=True)
    a.add_argument("--ctx", type=int, default=2048)
    a.add_argument("--chunks", type=int, default=2)
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--comment", default="bench/quality/sparq_study.py", help="the first line of both files")
    o = a.parse_args()
    import llama_cpp  # what infinigen_study.py takes from here does without
    torch.set_num_threads(o.threads)
    m = Weights(o.model)
    with open(o.text, "rb") as f:
        raw = f.read(o.ctx * (o.chunks + 1) * 6)
    tok = llama_cpp.Llama(o.model, vocab_only=True, verbose=False)
    ids = torch.tensor(tok.tokenize(raw, add_bos=False, special=False)[:o.ctx * o.chunks]).view(o.chunks, o.ctx)
    half = o.ctx // 2
    at = torch.arange(half, o.ctx - 1)
    lines = read(o.out)
    for c in range(o.chunks):
        there = {x["setting"] for x in lines if int(x["chunk"]) == c}
        todo = [s for s in SETTINGS if s not in there]
        if not todo:
            continue
        past, found = [], Agreement() if c == 0 and not os.path.exists(o.agreement) else None
        forward(m, Setting("full"), ids[c, :half], torch.arange(half), past, keep=True)
        full = None
        for text in ["full"] + [s for s in todo if s != "full"]:
            t0 = time.process_time()
            x = forward(m, Setting(text), ids[c, half:-1], at, past, found=found if text == "full" else None)
            logp = log_probabilities(m, x)
            if full is None:
                full = logp
                if found:
                    write(o.agreement, list(found.lines[0]), found.lines, o.comment)
            nll = -logp.gather(1, ids[c, half + 1:, None]).mean().item()
            kl = (full.exp() * (full - logp)).sum(-1).mean().item()
            same = (full.argmax(-1) == logp.argmax(-1)).float().mean().item()
            if text not in there:
                lines.append({"setting": text, "chunk": c, "rows": len(at), "nll": round(nll, 6), "kl": round(kl, 6),
                              "same_top1": round(same, 5), "seconds": round(time.process_time() - t0, 1)})
                write(o.out, FIELDS, lines, o.comment)
            print(f"chunk {c}: {text}: {nll:.4f}, KL {kl:.4f}, {time.process_time() - t0:.1f} s", flush=True)


if __name__ == "__main__":
    main()
