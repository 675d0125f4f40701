# SPDX-License-Identifier: Apache-2.0
"""Teacher and student on one copy of the frozen weights.

The layers below the split are the same for both and run once, without gradients (twice with an 8-bit cache in the
loop, which the student reads in every layer and the teacher in none). Above it the teacher runs its own
q, k, v; the student its own q of each layer, and K and V that the leader of a group makes from z = RMSNorm(x; norm),
x being the hidden state that enters the split layer (SwiftKV, equations 1 and 2; the norm is in the authors' code).

Everything trainable is in Student: f32 masters, cast to the computing type where they are used. The residual stream
stays f32; products run in `dtype`."""

import torch
import torch.nn.functional as F
from torch import nn

import cache8
import layers
import loss
import ops
from weights import tensor


class Frozen:
    def __init__(self, w, device, dtype):
        self.w, self.device, self.dtype = w, device, dtype
        self.embed = tensor(w.embed, device, dtype)
        self.head = self.embed if w.head is w.embed else tensor(w.head, device, dtype)
        self.out_norm = tensor(w.out_norm, device, torch.float32)
        norm = lambda k: torch.float32 if k.endswith("norm") else dtype
        self.layers = [{k: tensor(a, device, norm(k)) for k, a in layer.items()} for layer in w.layers]
        self._angles = None

    def angles(self, s, at=None):
        """cosine, sine (s, d / 2) f32, of positions from 0; or of those in `at` alone."""
        if self._angles is None or self._angles[0].shape[0] < s:
            d = self.w.dim
            freq = self.w.theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
            a = torch.outer(torch.arange(s, dtype=torch.float64), freq)
            self._angles = [x.float().contiguous().to(self.device) for x in (a.cos(), a.sin())]
        return [x[:s].contiguous() if at is None else x[at] for x in self._angles]

    def heads(self, x, n, turned, s=None, at=None):
        if turned:
            return ops.rope_heads(x, *self.angles(s or x.shape[1], at), n)
        return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)

    def attend(self, o, q, k, v, at=None):
        """Rows of q (at the positions `at`) and heads of k, v to what attention adds to the residual stream, by the output
        projection o."""
        out = ops.attention(self.heads(q, self.w.n_heads, True, k.shape[2], at), k, v, at)
        return F.linear(out.transpose(1, 2).flatten(2), o)

    def mlp(self, layer, h):
        return ops.mlp(h, layer, self.w.eps, self.dtype)

    def own_attention(self, layer, h, cache="none"):
        x = ops.rms(h, layer["attn_norm"], self.w.eps, self.dtype)
        k = self.heads(F.linear(x, layer["k"]), self.w.n_kv, True)
        v = self.heads(F.linear(x, layer["v"]), self.w.n_kv, False)
        return self.attend(layer["o"], F.linear(x, layer["q"]), *cache8.store(k, v, cache))

    @torch.no_grad()
    def run(self, h, first, last):
        """The teacher's layers [first, last): each one's input, what its attention added; then the last output."""
        states, added = [], []
        for i in range(first, last):
            states.append(h)
            a = self.own_attention(self.layers[i], h)
            added.append(a)
            h = h + a
            h = self.mlp(self.layers[i], h)
        return states + [h], added

    @torch.no_grad()
    def states(self, h, first, last):
        """Inputs of the teacher's layers [first, last) and the last output."""
        if layers.able(self, h):
            return layers.frozen_run(self, h.clone(), first, last, True)
        return self.run(h, first, last)[0]

    @torch.no_grad()
    def shallow(self, tokens, split, cache="none"):
        return self.through(self.embed[tokens].float(), 0, split, cache)

    @torch.no_grad()
    def through(self, h, first, last, cache="none"):
        """The last output of the teacher's layers [first, last) from h, which may be overwritten."""
        if cache == "none" and layers.able(self, h):
            return layers.frozen_run(self, h, first, last)
        for i in range(first, last):
            h = h + self.own_attention(self.layers[i], h, cache)
            h = self.mlp(self.layers[i], h)
        return h

    def last_norm(self, h):
        return ops.rms(h, self.out_norm, self.w.eps, self.dtype)

    def logits(self, h):
        return self.last_norm(h) @ self.head.t()


def sizes(group, n):
    """Sizes of the groups of n deep layers: `group` each, the last what is left; or as listed."""
    if isinstance(group, int):
        if not 1 <= group <= n:
            raise SystemExit(f"distill: --group: {group} is not in 1..{n}")
        return [min(group, n - at) for at in range(0, n, group)]
    if min(group) < 1 or sum(group) != n:
        raise SystemExit(f"distill: --group: {','.join(map(str, group))} are not sizes whose sum is {n}")
    return list(group)


class Student(nn.Module):
    """group: how many layers share a store, or a tuple of such sizes. Starts as pipit-mkmodel --swiftkv does: the split layer's norm, each layer's own q, the group's mean k and v.
    `outputs`: the deep layers' output projections are its own and trained too. `whole`: all their weights are (the paper's
    control, Table 6)."""

    def __init__(self, frozen, split, group, kv_heads=None, cache="none", outputs=False, whole=False):
        super().__init__()
        w = frozen.w
        if not 1 <= split < w.n_layers:
            raise SystemExit(f"distill: --split: {split} is not in 1..{w.n_layers - 1}")
        self.frozen, self.split, self.group, self.cache = frozen, split, group, cache
        self.sizes = sizes(group, w.n_layers - split)
        self.store = [i for i, n in enumerate(self.sizes) for _ in range(n)]  # of each deep layer
        self.kv_heads = kv_heads or w.n_kv
        self.dims = None  # wide.py's K and V
        self.longest = 0  # text that it was trained on, in tokens; None: an overlay did not say
        if w.n_heads % self.kv_heads:
            raise SystemExit(f"distill: --kv-heads: {self.kv_heads} does not divide {w.n_heads} query heads")
        param = lambda a: nn.Parameter(tensor(a, frozen.device, torch.float32).clone())
        self.norm = param(w.layers[split]["attn_norm"])
        self.q = nn.ParameterList(param(layer["q"]) for layer in w.layers[split:])
        self.k, self.v = nn.ParameterList(), nn.ParameterList()
        for i in range(len(self.sizes)):
            members = [w.layers[split + j] for j in self.members(i)]
            for name, into in (("k", self.k), ("v", self.v)):
                mean = sum(m[name] for m in members) / len(members)
                into.append(param(self.spread(mean.reshape(w.n_kv, w.dim, -1))))

        self.o = nn.ParameterList(param(layer["o"]) for layer in w.layers[split:] if outputs)
        self.deep = nn.ModuleList()
        for layer in w.layers[split:] if whole else ():
            self.deep.append(nn.ParameterDict({k: param(a) for k, a in layer.items() if k not in "qkv"}))
        self.exit_words = None

    def members(self, i):
        """The deep layers, counted from the split, that read store i."""
        first = sum(self.sizes[:i])
        return range(first, first + self.sizes[i])

    def leads(self, j):
        """Whether deep layer j is the first of its group."""
        return j == 0 or self.store[j] != self.store[j - 1]

    def add_exit(self, words):
        """An early-exit head for these token ids (ascending) and one row for all other words, on the split's state. It
        starts as the model's own last norm and its head's rows; the last row as zeros."""
        f = self.frozen
        self.exit_words = torch.as_tensor(words, dtype=torch.int64, device=f.device)
        rows = f.head[self.exit_words].float()
        self.exit_norm = nn.Parameter(f.out_norm.clone())
        self.exit_head = nn.Parameter(torch.cat((rows, torch.zeros_like(rows[:1]))))

    def exit_logits(self, x):
        """(..., words + 1) from the hidden state that enters the split layer."""
        f = self.frozen
        x = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + f.w.eps) * self.exit_norm).to(f.dtype)
        return F.linear(x, self.exit_head.to(f.dtype))

    def layer(self, j):
        """The weights of deep layer j but q, k, v, and o where there are `outputs`."""
        f = self.frozen
        if not self.deep:
            return f.layers[self.split + j]
        return {k: p if k.endswith("norm") else p.to(f.dtype) for k, p in self.deep[j].items()}

    def spread(self, heads):
        """(n_kv, dim, embd) to kv_heads: each repeated when there are more, means of neighbours when fewer."""
        n, m = heads.shape[0], self.kv_heads
        if m >= n:
            index = [i * n // m for i in range(m)]
            return heads[index].reshape(-1, heads.shape[-1])
        return heads.reshape(m, n // m, *heads.shape[1:]).mean(1).reshape(-1, heads.shape[-1])

    def stores(self, x):
        """K and V (b, kv_heads, s, d) of every group, from the hidden state that enters the split layer."""
        f = self.frozen
        z = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + f.w.eps) * self.norm).to(f.dtype)
        out = []
        for k, v in zip(self.k, self.v):
            k = f.heads(F.linear(z, k.to(f.dtype)), self.kv_heads, True)
            v = f.heads(F.linear(z, v.to(f.dtype)), self.kv_heads, False)
            out.append(cache8.store(k, v, self.cache))
        return out

    def attention(self, j, h, stores, layer=None, at=None):
        """What attention adds in deep layer j, counted from the split."""
        f = self.frozen
        layer = layer or self.layer(j)
        x = ops.rms(h, layer["attn_norm"], f.w.eps, f.dtype)
        o = self.o[j].to(f.dtype) if self.o else layer["o"]
        return f.attend(o, F.linear(x, self.q[j].to(f.dtype)), *stores[self.store[j]], at)

    def run(self, x, at=None):
        """Inputs of the deep layers and the last output, from the split's hidden state (b, s, embd) f32."""
        f = self.frozen
        stores, h, states = self.stores(x), x if at is None else x[:, at], []
        for j in range(len(self.q)):
            states.append(h)
            layer = self.layer(j)
            h = h + self.attention(j, h, stores, layer, at)
            h = f.mlp(layer, h)
        return states + [h]

    def outcome(self, x, teacher=None, at=None):
        """The last output, and the hidden-state loss against the teacher's states (None without them), at the positions `at`
        (ascending) or at all. No deep layer reads another row than its own and the stores, which are the split's: what is
        not asked for need not be computed."""
        if at is not None and teacher is not None:
            teacher = [None, *(t[:, at] for t in teacher[1:])]
        if not self.deep and layers.able(self.frozen, x) and (at is None or len(at) % 32 == 0):
            rows = x if at is None else x[:, at]
            last, error = layers.deep(self.frozen, self.split, self.store, self.q, self.o, self.stores(x), rows, teacher, at)
            return last, None if teacher is None else error
        states = self.run(x, at)
        return states[-1], None if teacher is None else loss.relative(states[1:], teacher[1:])

    def forward(self, tokens):
        return self.frozen.logits(self.outcome(self.frozen.shallow(tokens, self.split, self.cache))[0])
