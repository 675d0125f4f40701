# SPDX-License-Identifier: Apache-2.0
"""Small decoder-only models whose attention has any numbers of query, K and V heads (DiffQKV: Lin et al. 2025, section 3),
with augmented Q (appendix E) or without: RMS norm, RoPE by halves, gated feed-forward, head tied to the embedding. One
code for all shapes, so that variants differ in nothing else. Tokens are bytes.

Query head h reads K head floor(h n_k / n_q) and V head floor(h n_v / n_q). Augmented Q: u = W_q x,
q = W_down (silu(W_gate u) * W_up u), before RoPE; no norm, no residual."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

EOT = 256
VOCAB = 258  # 256 bytes, the end of a text, and what GGUF's one merge makes (export.py)
EPS = 1e-5
THETA = 10000.0


@dataclasses.dataclass(frozen=True)
class Shape:
    n_q: int
    n_k: int
    n_v: int
    hidden: int = 128
    layers: int = 4
    ffn: int = 344
    aug: int = 0  # width of augmented Q, 0: none

    @property
    def dim(self):
        return self.hidden // self.n_q

    def parameters(self):
        """Of the layers; the embedding, the same for all, apart."""
        h, d = self.hidden, self.dim
        attention = h * d * (self.n_q + self.n_k + self.n_v + self.n_q) + 3 * self.aug * self.n_q * d
        return self.layers * (attention + 3 * h * self.ffn + 2 * h)

    def kv_elements(self):
        """Of a token."""
        return self.layers * self.dim * (self.n_k + self.n_v)


def variants(hidden=128, layers=4, n_q=8, ffn=344):
    """name -> Shape. The heads stand as the paper's 32/4/16 do: 8/1/4."""
    few, half = n_q // 8, n_q // 2
    of = lambda n_k, n_v, ffn=ffn, aug=0: Shape(n_q, n_k, n_v, hidden, layers, ffn, aug)
    aug = hidden * 3 // 2
    ret = {
        "mha": of(n_q, n_q),
        "gqa": of(half, half),
        "k-only": of(few, half),
        "v-only": of(half, few),
        "sigma": of(few, half, aug=aug),
        "gqa+aug": of(half, half, aug=aug),
    }
    # As many parameters as the GQA twin with augmented Q, in the feed-forward (the paper's AugF).
    more = (ret["gqa+aug"].parameters() - ret["gqa"].parameters()) // (3 * hidden * layers)
    ret["gqa+ffn"] = of(half, half, ffn=ffn + more)
    return ret


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        lin = lambda rows, cols: nn.Linear(cols, rows, bias=False)
        self.attn_norm = nn.RMSNorm(s.hidden, eps=EPS)
        self.q = lin(s.n_q * s.dim, s.hidden)
        self.k = lin(s.n_k * s.dim, s.hidden)
        self.v = lin(s.n_v * s.dim, s.hidden)
        self.o = lin(s.hidden, s.n_q * s.dim)
        if s.aug:
            self.q_gate, self.q_up = lin(s.aug, s.n_q * s.dim), lin(s.aug, s.n_q * s.dim)
            self.q_down = lin(s.n_q * s.dim, s.aug)
        self.ffn_norm = nn.RMSNorm(s.hidden, eps=EPS)
        self.gate, self.up, self.down = lin(s.ffn, s.hidden), lin(s.ffn, s.hidden), lin(s.hidden, s.ffn)

    def forward(self, x, cos, sin):
        s = self.s
        n = self.attn_norm(x)
        q = self.q(n)
        if s.aug:
            q = self.q_down(F.silu(self.q_gate(q)) * self.q_up(q))
        heads = lambda t, m: t.view(*x.shape[:2], m, s.dim).transpose(1, 2)
        q, k, v = rope(heads(q, s.n_q), cos, sin), rope(heads(self.k(n), s.n_k), cos, sin), heads(self.v(n), s.n_v)
        k = k.repeat_interleave(s.n_q // s.n_k, 1)
        v = v.repeat_interleave(s.n_q // s.n_v, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        n = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(VOCAB, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, eps=EPS)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[1] ** -0.5)
            # What adds to the residual stream begins small (GPT-2).
            if name.endswith(("o.weight", "down.weight")) and "q_down" not in name:
                with torch.no_grad():
                    p.mul_((2 * s.layers) ** -0.5)

    def forward(self, ids):
        """(batch, tokens) -> logits (batch, tokens, VOCAB)"""
        half = self.s.dim // 2
        at = torch.arange(ids.shape[1], device=ids.device)[:, None]
        angle = at * THETA ** (-torch.arange(half, device=ids.device) / half)
        cos, sin = torch.cos(angle), torch.sin(angle)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos.to(x.dtype), sin.to(x.dtype))
        return self.norm(x) @ self.embed.weight.t()
