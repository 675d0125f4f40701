#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of SIGMA (DiffQKV attention: Lin et al., 2025), of which no implementation is published: tiny random
models in PyTorch, written from the paper and its appendix's listing, as GGUF, and their logits for a random text.

    make_sigma_vectors.py OUT-FOLDER

Query head h reads K head floor(h n_k / n_q) and V head floor(h n_v / n_q), K and V heads may differ in number and size.
Augmented Q: q = down(silu(gate(u)) * up(u)), u = q_proj(x), before RoPE; no norm, no residual. RoPE turns pairs
(i, i + d/2). Each model's logits are also computed by repeating K and V heads to n_q and ordinary multi-head attention
(torch's own); the two must agree. The .vec format is make_arch_vectors.py's."""

import struct
import sys

import gguf
import numpy as np
import torch
import torch.nn.functional as F

VOCAB, HIDDEN, FFN, LAYERS, EPS, THETA, TOKENS = 96, 48, 64, 2, 1e-5, 50000.0, 96

MODELS = {
    # name: n_q, n_k, n_v, K dim, V dim, augmented Q's width
    "sigma": (8, 2, 4, 16, 12, 40),       # fewer K heads than V heads, wider
    "sigma_more_k": (8, 4, 2, 8, 20, 24),  # the other way round
    "sigma_uneven": (12, 4, 6, 8, 8, 0),   # two head groups of two K and three V heads; Q as usual
}


def rms(x, w):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * w


def rope(x):
    """(tokens, heads, dim), positions 0, 1, 2 ..."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    c, s = torch.cos(angle)[:, None].to(x.dtype), torch.sin(angle)[:, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def attend(q, k, v):
    """(tokens, heads, dim) each; heads by the paper's map."""
    n, n_q = q.shape[:2]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    out = []
    for h in range(n_q):
        x = q[:, h] @ k[:, h * k.shape[1] // n_q].T / q.shape[-1] ** 0.5
        out.append(torch.softmax(x.masked_fill(~mask, -torch.inf), -1) @ v[:, h * v.shape[1] // n_q])
    return torch.cat(out, -1)


def attend_repeated(q, k, v):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    out = F.scaled_dot_product_attention(q.swapaxes(0, 1)[None], k.swapaxes(0, 1)[None], v.swapaxes(0, 1)[None], is_causal=True)
    return out[0].swapaxes(0, 1).reshape(q.shape[0], -1)


def forward(w, ids, shape, attention):
    n_q, n_k, n_v, k_dim, v_dim, aug = shape
    x = w["token_embd.weight"][ids]
    for i in range(LAYERS):
        t = lambda name, b=f"blk.{i}.": w[b + name + ".weight"]
        n = rms(x, t("attn_norm"))
        q = n @ t("attn_q").T
        if aug:
            q = (F.silu(q @ t("attn_q_gate").T) * (q @ t("attn_q_up").T)) @ t("attn_q_down").T
        q = rope(q.view(-1, n_q, k_dim))
        k = rope((n @ t("attn_k").T).view(-1, n_k, k_dim))
        v = (n @ t("attn_v").T).view(-1, n_v, v_dim)
        x = x + attention(q, k, v) @ t("attn_output").T
        n = rms(x, t("ffn_norm"))
        x = x + (F.silu(n @ t("ffn_gate").T) * (n @ t("ffn_up").T)) @ t("ffn_down").T
    return rms(x, w["output_norm.weight"]) @ w["output.weight"].T


def weights(shape):
    n_q, n_k, n_v, k_dim, v_dim, aug = shape
    sizes = {"attn_norm": (HIDDEN,), "attn_q": (n_q * k_dim, HIDDEN), "attn_k": (n_k * k_dim, HIDDEN),
             "attn_v": (n_v * v_dim, HIDDEN), "attn_output": (HIDDEN, n_q * v_dim), "ffn_norm": (HIDDEN,),
             "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
    if aug:
        sizes |= {"attn_q_gate": (aug, n_q * k_dim), "attn_q_up": (aug, n_q * k_dim), "attn_q_down": (n_q * k_dim, aug)}
    names = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (VOCAB, HIDDEN)}
    names |= {f"blk.{i}.{name}.weight": size for i in range(LAYERS) for name, size in sizes.items()}
    # Large enough that attention is far from uniform, small enough to stay finite.
    return {name: 1 + 0.1 * torch.randn(size) if len(size) == 1 else torch.randn(size) * (1.4 / size[1] ** 0.5)
            for name, size in names.items()}


def write_gguf(path, w, shape):
    n_q, n_k, n_v, k_dim, v_dim, aug = shape
    g = gguf.GGUFWriter(path, "sigma")
    g.add_name("tiny random sigma")
    g.add_block_count(LAYERS)
    g.add_context_length(1024)
    g.add_embedding_length(HIDDEN)
    g.add_feed_forward_length(FFN)
    g.add_head_count(n_q)
    g.add_key_length(k_dim)
    g.add_value_length(v_dim)
    g.add_layer_norm_rms_eps(EPS)
    g.add_rope_freq_base(THETA)
    for key, value in (("head_count_k", n_k), ("head_count_v", n_v), ("aug_q_length", aug)):
        g.add_uint32(f"sigma.attention.{key}", value)
    for name, t in w.items():
        g.add_tensor(name, t.numpy().astype(np.float32))
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main(out):
    for seed, (name, shape) in enumerate(MODELS.items()):
        torch.manual_seed(21 + seed)
        w = weights(shape)
        ids = torch.randint(0, VOCAB, (TOKENS,))
        double = {key: t.double() for key, t in w.items()}
        logits = forward(double, ids, shape, attend)
        again = forward(double, ids, shape, attend_repeated)
        assert torch.isfinite(logits).all() and (logits - again).abs().max() < 1e-9
        write_gguf(f"{out}/arch_{name}.gguf", w, shape)
        with open(f"{out}/arch_{name}.vec", "wb") as f:
            f.write(b"PARC" + struct.pack("<3i", TOKENS, 0, VOCAB))
            f.write(ids.numpy().astype("<i4").tobytes() + logits.numpy().astype("<f4").tobytes())
        p = torch.log_softmax(logits, -1)
        print(name, "largest logit", float(logits.abs().max()), "mean entropy", float(-(p.exp() * p).sum(-1).mean()))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
