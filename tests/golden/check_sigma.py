#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The golden vectors of SIGMA (make_sigma_vectors.py, PyTorch) against the paper's attention once more, in NumPy alone: PyTorch is
too large for every run of the tests, NumPy comes with gguf. Of each tests/data/arch_sigma*.gguf the logits of the committed text, in
f64 from the file's own weights and keys, have to be those of arch_sigma*.vec to 1e-4; test_arch.c holds the engine against the same.

    check_sigma.py DATA-FOLDER

Written for whole texts, a score matrix a head, without what the engine or the other script has: heads are copied out to n_q first.
Exit 77 without the package gguf."""

import pathlib
import struct
import sys

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"SKIP: {e}; this check needs gguf from PyPI")
    sys.exit(77)


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Sigma:
    def __init__(self, path):
        r = gguf.GGUFReader(str(path))
        get = lambda key: r.fields[f"sigma.{key}"].contents()
        self.n_layers, self.eps, self.theta = get("block_count"), get("attention.layer_norm_rms_epsilon"), get("rope.freq_base")
        self.n_q, self.n_k, self.n_v = (get(f"attention.head_count{s}") for s in ("", "_k", "_v"))
        self.k_dim, self.v_dim, self.aug = get("attention.key_length"), get("attention.value_length"), get("attention.aug_q_length")
        self.w = {t.name.removesuffix(".weight"): np.array(t.data, np.float64) for t in r.tensors}

    def norm(self, x, name):
        return x * self.w[name] / np.sqrt((x ** 2).mean(1, keepdims=True) + self.eps)

    def turned(self, x):
        """x (heads, tokens, dim): the pair (i, i + dim / 2) as a complex number, turned by its angle."""
        half = x.shape[-1] // 2
        angle = np.outer(np.arange(x.shape[1]), self.theta ** (-np.arange(half) / half))
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    def heads(self, x, n, dim):
        """(n_q, tokens, dim): head h is the floor(h n / n_q)-th of the n that x (tokens, n dim) has."""
        of = [h * n // self.n_q for h in range(self.n_q)]
        return x.reshape(len(x), n, dim).transpose(1, 0, 2)[of]

    def attention(self, x, i):
        b = f"blk.{i}."
        u = x @ self.w[b + "attn_q"].T
        if self.aug:
            u = (silu(u @ self.w[b + "attn_q_gate"].T) * (u @ self.w[b + "attn_q_up"].T)) @ self.w[b + "attn_q_down"].T
        q = self.turned(self.heads(u, self.n_q, self.k_dim))
        k = self.turned(self.heads(x @ self.w[b + "attn_k"].T, self.n_k, self.k_dim))
        v = self.heads(x @ self.w[b + "attn_v"].T, self.n_v, self.v_dim)
        later = np.triu(np.full((len(x), len(x)), -np.inf), 1)
        y = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(self.k_dim) + later) @ v
        return y.transpose(1, 0, 2).reshape(len(x), -1) @ self.w[b + "attn_output"].T

    def logits(self, ids):
        x = self.w["token_embd"][ids]
        for i in range(self.n_layers):
            b = f"blk.{i}."
            x = x + self.attention(self.norm(x, b + "attn_norm"), i)
            n = self.norm(x, b + "ffn_norm")
            x = x + (silu(n @ self.w[b + "ffn_gate"].T) * (n @ self.w[b + "ffn_up"].T)) @ self.w[b + "ffn_down"].T
        return self.norm(x, "output_norm") @ self.w["output"].T


def vector(path):
    """(ids, logits) of a .vec file (make_arch_vectors.py)."""
    raw = path.read_bytes()
    n, _, n_vocab = struct.unpack_from("<3i", raw, 4)
    assert raw[:4] == b"PARC" and len(raw) == 16 + 4 * n * (1 + n_vocab), path
    return np.frombuffer(raw, "<i4", n, 16), np.frombuffer(raw, "<f4", n * n_vocab, 16 + 4 * n).reshape(n, n_vocab)


def main(folder):
    paths = sorted(pathlib.Path(folder).glob("arch_sigma*.gguf"))
    bad = 0
    shapes = set()
    for path in paths:
        m = Sigma(path)
        ids, want = vector(path.with_suffix(".vec"))
        off = abs(m.logits(ids) - want).max()
        bad += not off < 1e-4
        shapes.add((m.n_k < m.n_v, m.n_k > m.n_v, m.aug > 0))
        print(f"{path.stem}: {m.n_q}/{m.n_k}/{m.n_v} heads of {m.k_dim} and {m.v_dim}, augmented Q {m.aug}: off by at most {off:.1e}")
    if not {(True, False, True), (False, True, True), (True, False, False)} <= shapes:
        print("one of the three kinds of shape is missing")
        bad += 1
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
