#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama-shaped model with SwiftKV, AcrossKV and eviction in NumPy, written from the papers, in double precision.
It is slow, holds everything in plain arrays, and shares no code with pipit: the golden vectors of the cache come
from here.

    SwiftKV   (Qiao et al.): after layer l-1, z = RMSNorm(x; norm_swiftkv); K and V of every deep layer come from
              z, for prompt and decoded tokens alike; Q from the layer's own normed input by q_swiftkv. With groups
              of G (AcrossKV) layers (l + i) .. (l + i + G - 1), i a multiple of G, share one K and V.
    wide      a deep store has heads of its own width and frequencies; a query head's own matrix maps its projected query
              to the keys' width (then it is rotated), another what attention gives to the output projection's columns.
    Keyformer (Adnan et al., Algorithm 1): scores sum softmax((logits + noise) / tau) over queries, apart from the
              true softmax, old sums times `damp` at each new token; the budget keeps the w latest tokens and the best-scored of the others. H2O is
              the same without noise and with tau = 1.
    pos=new   K is kept before RoPE and rotated, as it is read, to its rank among the live slots (counted from the
              row's own position backwards).
    kvzap     (Jegou and Jeblick): a key's score is exp(W x + b) of its layer's normed input x, set when it is stored.
    expected  (Devoto et al.): queries of later positions are Gaussian, with mean and covariance of the prompt's before RoPE
              (but its first 4), turned by the mean of RoPE's matrices over the next `ahead` positions; a key's weight is the
              softmax over the keys of scale m.k + scale^2 k.C k / 2, its score that plus `floor` times the length of its
              V. At the end of the prompt and after each `every` new tokens; in between what is new has 0.
    GQA       a K/V head's score is the sum over its query heads; layers that share a store sum as well.
    SparQ     (Ribar et al., Algorithm 1), for new tokens only: the r components with the largest |q| (summed over the
              query heads of a K head), tau = sqrt(d |q[r]|_1 / |q|_1) per query head, the k positions with the
              largest approximate probabilities (summed over the query heads), the latest `local` before them, and
              alpha of the attention over them, 1 - alpha of the mean of V. as-shipped: the current token is beside k
              and the window. With an evicting policy the scores sum the approximate probabilities.
    topv      exact probabilities; of each V head the V of the k largest only, renormalised or not.
    InfiniGen (Lee et al.), for new tokens, from the third layer on: layer j's queries are predicted by its own W_q from
              what layer j-1 reads (its input by its own norm), and rotated; slots rank by (A q)[:m] . (A k)[:m] /
              sqrt(d). As many are read as lie within alpha of a query head's best, that number's mean over the heads,
              at most cap percent of the text (or a fixed count or share); each K/V head its own, by the sum of
              softmax over its query heads; the current token always. Layers that share a store read what its first
              reader was predicted. skew off: A is the permutation `attn_columns`.

Use: numpy_model.py MODEL.gguf [OVERLAY.gguf] --prompt IDS --new IDS [--policy h2o|keyformer|as-shipped|window|full] ..."""

import argparse
import json
import math

import numpy as np


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011) on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def gumbel(seed, layer, head, query, pos):
    """The counter layout and the word of the result are stated in kernels/noise.h."""
    words = philox([(pos >> 6) << 4 | (pos & 15), query, layer, head], [seed & 0xFFFFFFFF, seed >> 32])
    return -math.log(-math.log(uniform(words[pos >> 4 & 3])))


def uniform(bits):
    """base/rng.h: 23 bits and a half, exact in f32."""
    return float((np.float32(bits >> 9) + np.float32(0.5)) * np.float32(2.0) ** np.float32(-23))


class Weights:
    def __init__(self, paths):
        import gguf
        from gguf import quants
        self.t, self.kv = {}, {}
        for path in paths:
            r = gguf.GGUFReader(path)
            for t in r.tensors:
                self.t[t.name] = quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            for name, f in r.fields.items():
                if not name.startswith("GGUF."):
                    self.kv.setdefault(name, f.contents())

    def __getitem__(self, name):
        return self.t[name]

    def get(self, name):
        return self.t.get(name)


class Store:
    """Slots of one K/V owner: per head lists of (position, k, v, score)."""

    def __init__(self, n_heads):
        self.pos = [[] for _ in range(n_heads)]
        self.k = [[] for _ in range(n_heads)]
        self.v = [[] for _ in range(n_heads)]
        self.score = [[] for _ in range(n_heads)]
        self.mask = [[] for _ in range(n_heads)]  # as-shipped: which positions may be seen


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def fp8(x):
    """A row as it comes back from FP8: codes E4M3 (bias 7, largest 448), and scale = largest |x| / 1.75 in f16 at code 256."""
    scale = float(np.float16(abs(x).max() / 1.75))
    if scale == 0:
        return np.zeros_like(x)
    y = np.minimum(abs(x) / scale * 256, 448)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(y, 2.0 ** -9))), -6) - 3)
    return np.copysign(np.round(y / step) * step, x) * scale / 256


class Model:
    def __init__(self, paths, policy):
        self.w = Weights(paths)
        kv = self.w.kv
        arch = kv["general.architecture"]
        self.n_layer = int(kv[f"{arch}.block_count"])
        self.n_head = int(kv[f"{arch}.attention.head_count"])
        self.n_kv = int(kv.get(f"{arch}.attention.head_count_kv", self.n_head))
        self.eps = float(kv[f"{arch}.attention.layer_norm_rms_epsilon"])
        self.dim = int(kv.get(f"{arch}.attention.key_length", int(kv[f"{arch}.embedding_length"]) // self.n_head))
        self.theta = float(kv.get(f"{arch}.rope.freq_base", 10000.0))
        self.split = int(kv.get("pipit.swiftkv.num_key_value_layers", self.n_layer))
        self.group = int(kv.get("pipit.swiftkv.key_value_group_size", 1))
        self.policy = policy
        self.wide = (int(kv["pipit.swiftkv.key_length"]), int(kv["pipit.swiftkv.value_length"])) if "pipit.swiftkv.key_length" in kv else None
        self.stores = {self.owner(j): Store(self.heads(j)) for j in range(self.n_layer)}
        self.predicted = {}
        self.bare = {j: [] for j in range(self.n_layer)}  # queries of the prompt before RoPE

    def owner(self, j):
        return j if j < self.split else self.split + (j - self.split) // self.group * self.group

    def is_wide(self, j):
        return self.wide is not None and j >= self.split

    def heads(self, j):
        """K/V heads of the store that layer j reads."""
        return len(self.w[f"blk.{self.owner(j)}.attn_k_swiftkv.weight"]) // self.wide[0] if self.is_wide(j) else self.n_kv

    def rope(self, x, pos, j=0):
        """Pairs (2i, 2i+1), as Llama GGUF files store their heads."""
        half = self.dim // 2
        if self.is_wide(j):
            freq = self.w[f"blk.{self.owner(j)}.attn_freqs_swiftkv.weight"]
        else:
            freq = np.array([np.float32(self.theta ** (-2.0 * i / self.dim)) for i in range(half)], np.float64)
        angle = pos * freq
        c, s = np.cos(angle), np.sin(angle)
        y = x.copy()
        y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        y[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
        return y

    def project(self, name, x, n, dim=None):
        y = self.w[name + ".weight"] @ x
        bias = self.w.get(name + ".bias")
        return (y if bias is None else y + bias).reshape(n, dim or self.dim)

    def queries(self, j, x, pos):
        q = self.project(f"blk.{j}.attn_q" + ("_swiftkv" if j >= self.split else ""), x, self.n_head)
        if self.is_wide(j):
            q = np.stack([m @ one for m, one in zip(self.w[f"blk.{j}.attn_q_map_swiftkv.weight"].reshape(self.n_head, self.wide[0], self.dim), q)])
        if 4 <= pos < self.policy["n_prompt"]:
            self.bare[j].append(q)
        return self.rope(q, pos, j)

    def expect(self, j, pos):
        """Scores of all keys of a layer, for the positions after pos."""
        p, st = self.policy, self.stores[j]
        eye = np.eye(self.dim)
        turn = np.mean([np.stack([self.rope(e, pos + 1 + i, j) for e in eye], 1) for i in range(p["ahead"])], 0)
        for h in range(self.heads(j)):
            k, v = np.array(st.k[h]), np.array(st.v[h])
            st.score[h] = [0.0] * len(k)
            for head in range(h * self.n_head // self.n_kv, (h + 1) * self.n_head // self.n_kv):
                q = np.array([row[head] for row in self.bare[j]])
                mean = turn @ q.mean(0)
                cov = turn @ np.cov(q.T, bias=True) @ turn.T * p["cov"]
                w = softmax(k @ mean / math.sqrt(self.dim) + np.einsum("si,ij,sj->s", k, cov, k) / (2 * self.dim))
                st.score[h] = [s + (x + p["floor"]) * np.linalg.norm(row) for s, x, row in zip(st.score[h], w, v)]

    def turn(self, j):
        """New tokens after the prompt, modulo `every`, behind which a layer's keys are scored again."""
        return list(self.stores).index(self.owner(j)) * self.policy["every"] // len(self.stores)

    def put(self, j, x, pos, deep):
        """K and V of store owner j at a position, into an empty slot or a victim's."""
        s = "_swiftkv" if deep else ""
        dims = self.wide if self.is_wide(j) else (self.dim, self.dim)
        k = self.project(f"blk.{j}.attn_k{s}", x, self.heads(j), dims[0])
        if not self.policy["pos_new"]:
            k = self.rope(k, pos, j)
        v = self.project(f"blk.{j}.attn_v{s}", x, self.heads(j), dims[1])
        st = self.stores[j]
        score = np.zeros(len(st.pos))
        if self.policy["name"] == "kvzap":
            score = np.exp(self.project(f"blk.{j}.attn_score", x, self.heads(j), 1)[:, 0])
        for h in range(len(st.pos)):
            slot = self.victims[j, h]
            if slot is None:
                for row, value in ((st.pos, pos), (st.k, k[h]), (st.v, v[h]), (st.score, score[h])):
                    row[h].append(value)
            else:
                st.pos[h][slot], st.k[h][slot], st.v[h][slot], st.score[h][slot] = pos, k[h], v[h], score[h]

    def total(self, st, h, s):
        """The score that a slot is chosen by: its head's, or the sum over the layer's or all layers' heads."""
        scope = self.policy["scope"]
        if scope == "head":
            return st.score[h][s]
        at = st.pos[h][s]
        return sum(o.score[g][o.pos[g].index(at)] for o in (self.stores.values() if scope == "shared" else [st])
                   for g in range(len(o.pos)))

    def victim(self, st, h, pos):
        p = self.policy
        if p["name"] in ("full", "as-shipped") or pos < p["n_prompt"] or len(st.pos[h]) < p["budget"]:
            return None
        if p["name"] == "streaming":
            return min((at, s) for s, at in enumerate(st.pos[h]) if at >= p["sinks"])[1]
        if p["name"] == "snapkv":  # new tokens take slots of the lowest scores, then of each other
            room = max(0, (p["budget"] - p["observe"] - p["sinks"]) // 2)
            if pos - p["n_prompt"] < room:
                return min((st.score[h][s], at, s) for s, at in enumerate(st.pos[h])
                           if p["sinks"] <= at < p["n_prompt"] - p["observe"])[2]
            first = p["n_prompt"] if room else p["n_prompt"] - p["observe"]
            return min((at, s) for s, at in enumerate(st.pos[h]) if at >= max(p["sinks"], first))[1]
        protect = pos - p["recent"] + 1
        best = None
        for s, at in enumerate(st.pos[h]):
            if p["sinks"] <= at < protect:
                key = (0.0 if p["name"] == "window" else self.total(st, h, s), at)
                if best is None or key < best[0]:
                    best = (key, s)
        return best[1]

    def cut(self):
        """The end of the prompt: protected tokens and the best-scored of the others stay."""
        p = self.policy
        if p["name"] in ("full", "as-shipped", "streaming") or p["n_prompt"] <= p["budget"]:
            return
        totals = {(o, h): [self.total(st, h, s) for s in range(len(st.pos[h]))]
                  for o, st in self.stores.items() for h in range(len(st.pos))}
        if p["name"] == "snapkv":
            totals = {at: self.pooled(row) for at, row in totals.items()}
            for (o, h), row in totals.items():
                self.stores[o].score[h] = row
        for o, st in self.stores.items():
            for h in range(len(st.pos)):
                protect = p["n_prompt"] - p["recent"]
                order = sorted(range(len(st.pos[h])), key=lambda s: (
                    not (st.pos[h][s] < p["sinks"] or st.pos[h][s] >= protect),
                    0.0 if p["name"] == "window" else -totals[o, h][s], -st.pos[h][s]))
                keep = sorted(order[:p["budget"]])
                for row in (st.pos, st.k, st.v, st.score):
                    row[h] = [row[h][s] for s in keep]

    def forget(self):
        """StreamingLLM, after a token of the prompt: the oldest but the sinks go until the cache has its size."""
        for st in self.stores.values():
            for h in range(len(st.pos)):
                while len(st.pos[h]) > self.policy["budget"]:
                    oldest = min((at, s) for s, at in enumerate(st.pos[h]) if at >= self.policy["sinks"])[1]
                    for row in (st.pos, st.k, st.v, st.score):
                        del row[h][oldest]

    def pooled(self, row):
        """SnapKV: the keys before the window by their neighbours, zeros beyond both ends."""
        n, k = self.policy["n_prompt"] - self.policy["recent"], self.policy["kernel"]
        near = np.lib.stride_tricks.sliding_window_view(np.pad(np.array(row[:n]), k // 2), k)
        return list(near.max(1) if self.policy["pool"] == "max" else near.mean(1)) + row[n:]

    def remask(self, pos):
        """The authors' rule, after the forward pass of position pos: of the S keys seen and the one to come, the last
        w slots and, of [0, S - w), the best-scored budget - w; a key that was masked stays masked, its score is 0."""
        p = self.policy
        if p["name"] != "as-shipped" or pos < p["n_prompt"] - 1:
            return
        seen, w = pos + 1, p["recent"]
        for st in self.stores.values():
            for h in range(len(st.pos)):
                old = st.mask[h] or [True] * seen
                score = [s * m for s, m in zip(st.score[h], old)]
                keys = sorted(range(seen - w), key=lambda s: -score[s])[:p["budget"] - w]
                new = [s in keys or s > seen - w for s in range(seen)]
                st.mask[h] = [a and b for a, b in zip(old, new)] + [True]
                st.score[h] = [s * m for s, m in zip(st.score[h], st.mask[h])]

    def observe(self, j, head, logits, pos, st, h, tau):
        p = self.policy
        if p["name"] in ("full", "window", "streaming", "expected", "kvzap"):
            return
        if p["name"] == "snapkv" and not p["n_prompt"] - p["recent"] <= pos < p["n_prompt"]:
            return
        if j >= self.split and pos < p["n_prompt"] - p["observe"]:
            return  # SwiftKV: only the prompt's last tokens run through the deep layers
        if p["name"] in ("keyformer", "as-shipped"):
            query = 0xFFFFFFFF if p["noise"] == "once" else pos
            x = np.array([l + (0.0 if p["noise"] == "none" else gumbel(p["seed"], j, head, query, at))
                          for l, at in zip(logits, st.pos[h])])
        else:
            x = logits
        for s, value in enumerate(softmax(x / tau)):
            st.score[h][s] += value

    def output(self, j, out):
        """By the overlay's own projection, where it brings one."""
        own = self.w.get(f"blk.{j}.attn_output_swiftkv.weight")
        if self.is_wide(j):
            maps = self.w[f"blk.{j}.attn_v_map_swiftkv.weight"].reshape(self.n_head, self.dim, self.wide[1])
            out = np.stack([m @ one for m, one in zip(maps, out)])
        return (self.w[f"blk.{j}.attn_output.weight"] if own is None else own) @ out.reshape(-1)

    def attend(self, j, x, pos, tau):
        deep = j >= self.split
        first = self.policy["scope"] != "shared" and j == self.owner(j) or j == 0
        if first and pos >= self.policy["n_prompt"]:
            for o, other in self.stores.items():
                if self.policy["scope"] == "shared" or o == j:
                    other.score = [[v * self.policy["damp"] for v in row] for row in other.score]
        q = self.queries(j, x, pos)
        done = pos + 1 - self.policy["n_prompt"]
        if self.policy["name"] == "expected" and (done == 0 or done > 0 and done % self.policy["every"] == self.turn(j)):
            self.expect(j, pos)
        st, n_kv = self.stores[self.owner(j)], self.heads(j)
        out = np.zeros((self.n_head, self.wide[1] if self.is_wide(j) else self.dim))
        if self.ahead() and self.owner(j) >= 2 and pos >= self.policy["n_prompt"]:
            for head in range(self.n_head):
                h = head * self.n_kv // self.n_head
                k, v = np.array(st.k[h]), np.array(st.v[h])
                read = self.predicted[self.owner(j)][h] + [pos]
                out[head] = softmax(k[read] @ q[head] / math.sqrt(self.dim)) @ v[read]
            return self.output(j, out)
        if self.policy["select"] and not self.ahead() and pos >= self.policy["n_prompt"]:
            for h in range(n_kv):
                self.attend_some(j, h, q, pos, st, tau, out)
            return self.output(j, out)
        for head in range(self.n_head):
            h = head * n_kv // self.n_head
            k = np.array(st.k[h])
            if self.policy["pos_new"]:
                rank = np.argsort(np.argsort(st.pos[h]))
                shift = pos - rank[st.pos[h].index(pos)]
                k = np.array([self.rope(row, int(r + shift), j) for row, r in zip(k, rank)])
            logits = k @ q[head] / math.sqrt(self.dim)
            if st.mask[h]:
                logits = np.where(st.mask[h], logits, -1e30)
            out[head] = softmax(logits) @ np.array(st.v[h])
            self.observe(j, head, logits, pos, st, h, tau)
        return self.output(j, out)

    def ahead(self):
        return self.policy["select"] and self.policy["select"]["name"] == "infinigen"

    def predict(self, j, x, pos):
        """What layer j will read, from the normed input of the layer before."""
        s = self.policy["select"]
        st = self.stores[j]
        q = self.queries(j, x, pos)
        a = self.w[f"blk.{j}.attn_{'skew' if s.get('skew', True) else 'columns'}.weight"].reshape(self.n_kv, self.dim, self.dim)
        m = max(1, int(s["partial"] * self.dim))
        share = self.n_head // self.n_kv
        x = np.zeros((self.n_head, pos))
        for head in range(self.n_head):
            h = head // share
            part = np.array(st.k[h][:pos]) @ a[h][:m].T
            part = np.array([fp8(row) for row in part]) if s.get("partial8") else part
            x[head] = part @ (a[h][:m] @ q[head]) / math.sqrt(self.dim)
        if s.get("count"):
            n = s["count"]
        elif s.get("share"):
            n = pos * s["share"] // 100
        else:
            n = min(int((x >= x.max(1, keepdims=True) - s["alpha"]).sum()) // self.n_head, pos * s["cap"] // 100)
        n = min(max(n, 1), pos)
        self.predicted[j] = []
        for h in range(self.n_kv):
            total = sum(softmax(x[head]) for head in range(h * share, (h + 1) * share))
            self.predicted[j].append(sorted(sorted(range(pos), key=lambda i: (-total[i], i))[:n]))

    def attend_some(self, j, h, q, pos, st, tau, out):
        """The query heads of K/V head h, into out."""
        s = self.policy["select"]
        n_kv = len(st.pos)
        group = range(h * self.n_head // n_kv, (h + 1) * self.n_head // n_kv)
        k, v, at = np.array(st.k[h]), np.array(st.v[h]), np.array(st.pos[h])
        exact = {head: k @ q[head] / math.sqrt(self.dim) for head in group}
        rank = exact
        if s["name"] == "sparq":
            size = sum(abs(q[head]) for head in group)
            dims = sorted(range(len(size)), key=lambda d: (-size[d], d))[:s["r"]]
            rank = {head: k[:, dims] @ q[head][dims] / math.sqrt(self.dim * abs(q[head][dims]).sum() / abs(q[head]).sum())
                    for head in group}
        for head in group:
            self.observe(j, head, rank[head], pos, st, h, tau)
        p = {head: softmax(rank[head]) for head in group}
        extra = 1 if s.get("mode") == "as-shipped" else 0
        n, local = s["k"] + extra, s.get("local", 0) + extra if s["name"] == "sparq" else 0
        total = sum(p.values())
        chosen = sorted(range(len(at)), key=lambda i: (at[i] <= pos - local, -total[i] if at[i] <= pos - local else 0, at[i]))[:n]
        for head in group:
            if s["name"] == "topv":
                w = softmax(exact[head])[chosen]
                out[head] = (w / w.sum() if s["renorm"] else w) @ v[chosen]
                continue
            out[head] = softmax(exact[head][chosen]) @ v[chosen]
            if s["mean"]:
                alpha = p[head][chosen].sum()
                out[head] = alpha * out[head] + (1 - alpha) * v.mean(0)

    def token(self, token, pos, tau):
        """All layers for one token; logits."""
        w = self.w
        x = w["token_embd.weight"][token].copy()
        self.victims = {(o, h): self.victim(st, h, pos) for o, st in self.stores.items() for h in range(len(st.pos))}
        for j in range(self.n_layer):
            if j == self.split:
                z = rms(x, w["norm_swiftkv.weight"], self.eps)
                for owner in sorted(o for o in self.stores if o >= self.split):
                    self.put(owner, z, pos, True)
            n = rms(x, w[f"blk.{j}.attn_norm.weight"], self.eps)
            if j < self.split:
                self.put(j, n, pos, False)
            if self.ahead() and j + 1 >= 2 and j + 1 in self.stores and pos >= self.policy["n_prompt"]:
                self.predict(j + 1, n, pos)
            x = x + self.attend(j, n, pos, tau)
            n = rms(x, w[f"blk.{j}.ffn_norm.weight"], self.eps)
            gate = w[f"blk.{j}.ffn_gate.weight"] @ n
            x = x + w[f"blk.{j}.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (w[f"blk.{j}.ffn_up.weight"] @ n))
        head = w.get("output.weight")
        return (w["token_embd.weight"] if head is None else head) @ rms(x, w["output_norm.weight"], self.eps)


def run(paths, prompt, new, policy):
    """Logits after the prompt and after each new token but the last, and each step's live positions by store and
    head: what the cut left, then what each new token's query could see. tau rises from tau0 in the prompt to tau1 at the last new token."""
    policy = dict(policy, n_prompt=len(prompt))
    m = Model(paths, policy)
    for pos, t in enumerate(prompt):
        logits = m.token(t, pos, policy["tau0"])
        if policy["name"] == "streaming":
            m.forget()
    m.cut()
    m.remask(len(prompt) - 1)
    rows, live = [logits], [snapshot(m)]
    for i, t in enumerate(new[:-1]):
        step = (i + 1) / len(new)
        tau = policy["tau0"] + step * (policy["tau1"] - policy["tau0"])
        rows.append(m.token(t, len(prompt) + i, tau))
        live.append(snapshot(m))
        m.remask(len(prompt) + i)
    return np.array(rows), live


def snapshot(m):
    return {str(o): [sorted(q for q in p if not st.mask[h] or st.mask[h][q]) for h, p in enumerate(st.pos)]
            for o, st in m.stores.items()}


def policy_of(o):
    return {"select": json.loads(o.select), "scope": o.score, "pos_new": o.pos == "new", "damp": o.damp, "name": o.policy, "budget": o.budget, "recent": o.budget * o.recent // 100, "sinks": o.sinks,
            "noise": o.noise, "seed": o.seed, "observe": o.observe, "tau0": o.tau[0] if o.policy in ("keyformer", "as-shipped") else 1.0,
            "tau1": o.tau[1] if o.policy in ("keyformer", "as-shipped") else 1.0}


def main():
    ints = lambda s: [int(n) for n in s.split(",")]
    a = argparse.ArgumentParser()
    a.add_argument("files", nargs="+")
    a.add_argument("--prompt", type=ints, required=True)
    a.add_argument("--new", type=ints, required=True)
    a.add_argument("--policy", default="full", choices=("full", "window", "h2o", "keyformer", "as-shipped"))
    a.add_argument("--budget", type=int, default=0)
    a.add_argument("--recent", type=int, default=30)
    a.add_argument("--sinks", type=int, default=0)
    a.add_argument("--noise", default="once", choices=("once", "fresh", "none"))
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--score", default="head", choices=("head", "layer", "shared"))
    a.add_argument("--pos", default="org", choices=("org", "new"))
    a.add_argument("--select", default="null", help='JSON: {"name": "sparq", "r": 4, "k": 8, "local": 2, "mean": true}')
    a.add_argument("--damp", type=float, default=1.0)
    a.add_argument("--observe", type=int, default=64)
    a.add_argument("--tau", type=lambda s: [float(n) for n in s.split("..")], default=[1.0, 2.0])
    a.add_argument("--out", required=True, help="OUT.npy logits, OUT.json live positions")
    o = a.parse_args()
    rows, live = run(o.files, o.prompt, o.new, policy_of(o))
    np.save(o.out + ".npy", rows.astype(np.float32))
    json.dump(live, open(o.out + ".json", "w"))


if __name__ == "__main__":
    main()
