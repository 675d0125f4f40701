#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/stories260K.txt: the text of the 200 tokens that llama2.c prints for
`run stories260K.bin -z tok512.bin -t 0 -n 200`, from the checkpoint and its tokenizer file.

Deliberately shares nothing with pipit or pipit-convert: NumPy in double precision (the smallest
gap between the two best logits is printed; as long as it is far above f32's rounding, every correct
implementation says the same), full recomputation of attention at every position, llama2.c's own
rules for printing tokens (no space after BOS, <0xXX> is a byte).

usage: make_stories.py CHECKPOINT.bin TOKENIZER.bin OUTPUT.txt [OUTPUT.ids]
"""
import struct
import sys

import numpy as np

N_TOKENS = 200
BOS = 1


def load(path):
    raw = open(path, "rb").read()
    dim, hidden, n_layers, n_heads, n_kv, vocab, ctx = struct.unpack_from("<7i", raw)
    flat = np.frombuffer(raw, "<f4", offset=28).astype(np.float64)
    tied, vocab, head = vocab > 0, abs(vocab), dim // n_heads
    pos = 0

    def take(*shape):
        nonlocal pos
        n = int(np.prod(shape))
        pos += n
        return flat[pos - n:pos].reshape(shape)

    m = {"embed": take(vocab, dim), "att_norm": take(n_layers, dim), "wq": take(n_layers, dim, dim),
         "wk": take(n_layers, n_kv * head, dim), "wv": take(n_layers, n_kv * head, dim),
         "wo": take(n_layers, dim, dim), "ffn_norm": take(n_layers, dim), "w1": take(n_layers, hidden, dim),
         "w2": take(n_layers, dim, hidden), "w3": take(n_layers, hidden, dim), "norm": take(dim)}
    take(2, ctx, head // 2)
    m["out"] = m["embed"] if tied else take(vocab, dim)
    assert pos == flat.size, "the checkpoint has another size than its header says"
    m.update(dim=dim, n_layers=n_layers, n_heads=n_heads, n_kv=n_kv, head=head)
    return m


def norm(x, w):
    return x / np.sqrt(np.mean(x * x) + 1e-5) * w


def rotate(x, position, head):
    """x: (n, head); pairs (2i, 2i+1)."""
    angle = position * 10000.0 ** (-np.arange(0, head, 2) / head)
    c, s = np.cos(angle), np.sin(angle)
    out = np.empty_like(x)
    out[:, 0::2] = x[:, 0::2] * c - x[:, 1::2] * s
    out[:, 1::2] = x[:, 0::2] * s + x[:, 1::2] * c
    return out


def step(m, cache, token, position):
    """cache: per layer a list of (k, v), each (n_kv, head). Returns logits (vocab,)."""
    x = m["embed"][token].copy()
    for layer in range(m["n_layers"]):
        h = norm(x, m["att_norm"][layer])
        q = rotate((m["wq"][layer] @ h).reshape(m["n_heads"], -1), position, m["head"])
        k = rotate((m["wk"][layer] @ h).reshape(m["n_kv"], -1), position, m["head"])
        cache[layer].append((k, (m["wv"][layer] @ h).reshape(m["n_kv"], -1)))
        ks = np.stack([a for a, _ in cache[layer]])
        vs = np.stack([b for _, b in cache[layer]])
        out = []
        for i in range(m["n_heads"]):
            g = i // (m["n_heads"] // m["n_kv"])
            score = ks[:, g] @ q[i] / np.sqrt(m["head"])
            weight = np.exp(score - score.max())
            out.append(weight / weight.sum() @ vs[:, g])
        x = x + m["wo"][layer] @ np.concatenate(out)
        h = norm(x, m["ffn_norm"][layer])
        gate = m["w1"][layer] @ h
        x = x + m["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (m["w3"][layer] @ h))
    return m["out"] @ norm(x, m["norm"])


def pieces(path):
    raw, pos, out = open(path, "rb").read(), 4, []
    while pos < len(raw):
        _, n = struct.unpack_from("<fi", raw, pos)
        out.append(raw[pos + 8:pos + 8 + n])
        pos += 8 + n
    return out


def text_of(vocab, before, token):
    piece = vocab[token]
    if before == BOS and piece.startswith(b" "):
        piece = piece[1:]
    if len(piece) == 6 and piece.startswith(b"<0x"):
        piece = bytes([int(piece[3:5], 16)])
    return piece


def main():
    m, vocab = load(sys.argv[1]), pieces(sys.argv[2])
    cache = [[] for _ in range(m["n_layers"])]
    token, text, ids, gap = BOS, b"", [], np.inf
    for position in range(N_TOKENS):
        logits = step(m, cache, token, position)
        best = np.sort(logits)[-2:]
        gap = min(gap, best[1] - best[0])
        after = int(np.argmax(logits))
        if after == BOS:
            break
        text += text_of(vocab, token, after)
        ids.append(after)
        token = after
    with open(sys.argv[3], "wb") as f:
        f.write(text)
    if len(sys.argv) > 4:
        with open(sys.argv[4], "w") as f:
            f.write("\n".join(map(str, ids)) + "\n")
    print(f"{len(ids)} tokens, {len(text)} bytes; smallest gap between the two best logits {gap:.5f}")


if __name__ == "__main__":
    main()
