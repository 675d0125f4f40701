#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits single heads of an overlay with wide stores anew, so that they attend where the teacher's do.

    heads.py --model BASE.gguf --overlay FROM.gguf --out TO.gguf --text DIR:24 --look-back DIR2:100 --ctx 512 --heads 17.3 17.4 18.6

Layer by layer on the teacher's own inputs, the stores as they are: a head's rows of q and its query map by the KL of its attention
(AdamW, a text a step; the answers of look-back texts, if there are any, weigh as much as all other rows); then its value map by
least squares, drawn to what it was, so that the head adds what the teacher's adds. No MLP and no head of the model is run, nothing
goes back through layers: a step of four heads takes 0.1 s of one AVX2 core. The teacher runs once a text, up to the last layer asked for."""

import argparse
import math
import pathlib

import torch
import torch.nn.functional as F

import checkpoint
import data
import model
import ops
import overlay
import weights
import wide

ROWS = 256  # of a text in a step, at most


def options(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--overlay", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--text", nargs="*", default=[], metavar="DIR:N[:CTX]", help="so many sequences of the shards of a folder")
    p.add_argument("--look-back", nargs="*", default=[], metavar="DIR:N[:CTX]", help="the same of lookback.py's")
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--heads", nargs="+", required=True, metavar="LAYER.HEAD")
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--ridge", type=float, default=0.01, help="of the value maps' least squares, of the mean square of what is read")
    p.add_argument("--quant", default="Q8_0", help="type of the overlay's projections")
    p.add_argument("--states", type=pathlib.Path, help="a file that keeps the teacher's states, to try again")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=0)
    o = p.parse_args(argv)
    for given in o.look_back + o.text:
        if not all(n.isdigit() and int(n) for n in given.split(":")[1:]) or given.count(":") not in (1, 2):
            p.error(f"{given}: DIR:N or DIR:N:CTX")
    return o


class Heads:
    def __init__(self, student, heads):
        self.s, self.f, self.w = student, student.frozen, student.frozen.w
        self.heads = heads
        self.parts = {}
        for layer, h in heads:
            j, rows = layer - student.split, slice(h * self.w.dim, (h + 1) * self.w.dim)
            self.parts[layer, h] = [torch.nn.Parameter(t.detach().clone()) for t in (student.q[j][rows], student.q_map[j][h])]

    @torch.no_grad()
    def inputs(self, tokens):
        """(deep layers up to the last asked for, s, embd): what enters each in the teacher."""
        f, first, last = self.f, self.s.split, max(layer for layer, _ in self.heads)
        h = f.shallow(tokens, first)
        return torch.cat(f.run(h, first, last)[0])

    def teacher(self, states, layer, h, rows):
        """The head's attention (rows, s) and its values (s, dim)."""
        f, w, own = self.f, self.w, self.f.layers[layer]
        x = ops.rms(states[layer - self.s.split], own["attn_norm"], w.eps, f.dtype)
        g = h // (w.n_heads // w.n_kv)
        part = lambda m, i: m[i * w.dim:(i + 1) * w.dim]
        k = ops.rope_heads(F.linear(x, part(own["k"], g))[None], *f.angles(len(x)), 1)[0, 0]
        q = ops.rope_heads(F.linear(x[rows], part(own["q"], h))[None], *f.angles(len(x), rows), 1)[0, 0]
        return self.softmax(q, k, rows).exp(), F.linear(x, part(own["v"], g)), x

    def softmax(self, q, k, rows):
        scores = (q @ k.t()).float() * self.w.dim ** -0.5
        return scores.masked_fill(torch.arange(len(k)) > rows[:, None], -1e30).log_softmax(-1)

    def student(self, k, x, layer, h, rows):
        q_rows, q_map = self.parts[layer, h]
        turn = self.s.turn(self.s.store[layer - self.s.split], len(k), rows)
        q = ops.rope_heads(F.linear(F.linear(x[rows], q_rows), q_map)[None], *turn, 1)[0, 0]
        return self.softmax(q, k, rows)

    @torch.no_grad()
    def stores(self, states):
        return [(k[0, 0], v[0, 0]) for k, v in self.s.stores(states[None, 0])]

    def rows(self, mask, s, rng):
        """Rows of a step and their weights."""
        answers = mask[1:s + 1].nonzero()[:, 0] if mask is not None else torch.zeros(0, dtype=torch.int64)
        others = torch.ones(s, dtype=torch.bool).index_fill(0, answers, False).nonzero()[:, 0]
        others = others[torch.randperm(len(others), generator=rng)[:max(ROWS - len(answers), 32)]]
        rows = torch.cat((answers, others))
        weight = torch.cat((torch.full((len(answers),), 0.5 / max(1, len(answers))), torch.full((len(others),), (0.5 if len(answers) else 1.0) / len(others))))
        order = rows.argsort()
        return rows[order], weight[order]

    def losses(self, text, rng):
        """KL of each head's attention."""
        states, mask = text[0].float(), text[1]
        rows, weight = self.rows(mask, states.shape[1], rng)
        stores, out = self.stores(states), []
        for layer, h in self.heads:
            p, _, x = self.teacher(states, layer, h, rows)
            log_q = self.student(stores[self.s.store[layer - self.s.split]][0], x, layer, h, rows)
            out.append(((p * (p.clamp(min=1e-12).log() - log_q)).sum(-1) * weight).sum())
        return torch.stack(out)

    @torch.no_grad()
    def score(self, texts):
        return torch.stack([self.losses(t, torch.Generator().manual_seed(0)) for t in texts]).mean(0)

    def fit(self, texts, held, steps, lr, seed):
        params = [p for pair in self.parts.values() for p in pair]
        opt, rng = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), weight_decay=0), torch.Generator().manual_seed(seed)
        self.say("before", self.score(held))
        for step in range(steps):
            if step % len(texts) == 0:
                order = torch.randperm(len(texts), generator=rng)
            for group in opt.param_groups:
                group["lr"] = lr * min(1, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
            total = self.losses(texts[order[step % len(texts)]], rng).sum()
            opt.zero_grad()
            total.backward()
            if not math.isfinite(total.item()):
                raise SystemExit(f"distill: step {step}: not finite")
            opt.step()
            if step % 200 == 199:
                print(f"step {step + 1}: {total.item() / len(self.heads):.3f}", flush=True)
        self.say("after", self.score(held))

    def say(self, when, kl):
        print(f"KL of attention on texts held out, {when}: " + ", ".join(f"{a}.{b} {v:.2f}" for (a, b), v in zip(self.heads, kl.tolist())), flush=True)

    @torch.no_grad()
    def values(self, texts, ridge, seed):
        """Value maps (dim, v_dim) by least squares from what the student's head now reads to what the teacher's reads."""
        out, rng, v_dim = {}, torch.Generator().manual_seed(seed), self.s.dims[1]
        sums = {hd: [torch.zeros(v_dim, v_dim), torch.zeros(self.w.dim, v_dim)] for hd in self.heads}
        for text in texts:
            states = text[0].float()
            rows, weight = self.rows(text[1], states.shape[1], rng)
            stores = self.stores(states)
            for layer, h in self.heads:
                p, v, x = self.teacher(states, layer, h, rows)
                k, shared = stores[self.s.store[layer - self.s.split]]
                read = self.student(k, x, layer, h, rows).exp() @ shared
                sums[layer, h][0] += read.t() @ (read * weight[:, None])
                sums[layer, h][1] += (p @ v).t() @ (read * weight[:, None])
        for (layer, h), (xx, yx) in sums.items():
            old = self.s.v_map[layer - self.s.split][h]
            xx.diagonal().add_(ridge * xx.diagonal().mean())
            out[layer, h] = torch.linalg.solve(xx, yx + ridge / (1 + ridge) * xx.diagonal().mean() * old, left=False)
        return out

    @torch.no_grad()
    def put(self, v_maps):
        for (layer, h), (q_rows, q_map) in self.parts.items():
            j = layer - self.s.split
            self.s.q[j][h * self.w.dim:(h + 1) * self.w.dim] = q_rows
            self.s.q_map[j][h] = q_map
            if v_maps:
                self.s.v_map[j][h] = v_maps[layer, h]


def texts_of(heads, o):
    out = []
    for kind, given in (("look-back", o.look_back), ("text", o.text)):
        for g in given:
            folder, n, *ctx = g.split(":")
            shards = data.Shards(folder, int(ctx[0]) if ctx else o.ctx, o.seed, fixed=True)
            for i in range(int(n)):
                tokens, mask = shards.sequence(i)
                out.append((heads.inputs(torch.from_numpy(tokens[None, :-1])).half(), torch.from_numpy(mask) if kind == "look-back" else None))
    return out


def main():
    o = options()
    if o.threads:
        torch.set_num_threads(o.threads)
    ops.use("torch")
    (split, *_, dims, _), student, _ = wide.opened(o.overlay, model.Frozen(weights.read(o.model), torch.device("cpu"), torch.float32))
    if not dims:
        raise SystemExit(f"distill: {o.overlay} has no wide stores")
    heads = sorted(tuple(map(int, h.split("."))) for h in o.heads)
    bad = [h for h in heads if not (split <= h[0] < student.frozen.w.n_layers and 0 <= h[1] < student.frozen.w.n_heads)]
    if bad:
        raise SystemExit(f"distill: --heads: {bad[0][0]}.{bad[0][1]} is no head of a deep layer")
    fitted = Heads(student, heads)
    # what the states are of: other ones are refused
    of = [weights.sha256(o.model), str(o.text), str(o.look_back), o.ctx, o.seed, heads[-1][0]]
    if o.states and o.states.exists():
        kept = torch.load(o.states)
        if kept["of"] != of:
            raise SystemExit(f"distill: {o.states} is of another model, text, --ctx, --seed or last layer: {kept['of']}")
        texts = kept["texts"]
    else:
        texts = texts_of(fitted, o)
        if o.states:
            checkpoint.write(o.states, {"of": of, "texts": texts})
    held = texts[::8]
    texts = [t for i, t in enumerate(texts) if i % 8]
    fitted.fit(texts, held, o.steps, o.lr, o.seed)
    fitted.put(fitted.values(texts, o.ridge, o.seed))
    overlay.write(o.out, student, o.quant, notes={
        "general.license": "apache-2.0", "pipit.distill.from": weights.sha256(o.overlay),
        "pipit.distill.heads": " ".join(f"{layer}.{h}" for layer, h in heads)})


if __name__ == "__main__":
    main()
