#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/sampler_vectors.txt: the sampler's steps by a short NumPy model in double precision,
with a Philox of its own, over random logits. Cases in which rounding could decide (a draw or a cut
within 1e-4 of a border) are left out, so every correct implementation agrees.

    make_sampler_vectors.py OUTPUT

A case is four lines: numbers "temperature top_k top_p min_p repeat presence frequency window seed
index n_logprobs n_vocab"; logits as hex of f32; accepted tokens ("-" for none); the token, its
logprob and pairs of id and logprob."""

import sys

import numpy as np

DOMAIN = 0x73616D70
NEAR = 1e-4


def philox(key, counter):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed, index):
    mask = 0xFFFFFFFF
    bits = philox((seed & mask, seed >> 32), (index & mask, index >> 32, DOMAIN, 0))
    return ((bits[0] << 20 | bits[1] >> 12) + 0.5) / 2.0 ** 52


def penalized(logits, p, accepted):
    out = logits.astype(np.float64).copy()
    window = accepted[-p["window"]:] if p["window"] else []
    for token in set(window):
        x = out[token]
        x = x / p["repeat"] if x > 0 else x * p["repeat"]
        out[token] = x - window.count(token) * p["frequency"] - p["presence"]
    return out


def sample(logits, p, accepted):
    """The token, or None when the case is too near a border."""
    x = penalized(logits, p, accepted)
    order = sorted(range(x.size), key=lambda i: (-x[i], i))
    if p["temperature"] == 0:
        return order[0] if x[order[0]] - x[order[1]] > NEAR or np.array_equal(x, logits) else None
    cut = 0 < p["top_k"] < x.size
    if cut:
        if x[order[p["top_k"] - 1]] - x[order[p["top_k"]]] < NEAR and x[order[p["top_k"] - 1]] != x[order[p["top_k"]]]:
            return None
        order = order[:p["top_k"]]
    if p["top_p"] < 1:
        w = np.exp(x[order] - x[order[0]])
        share = np.cumsum(w) / w.sum()
        if np.abs(share - p["top_p"]).min() < NEAR:
            return None
        order = order[:int(np.searchsorted(share, p["top_p"])) + 1]
    if not cut:
        order = sorted(order)
    top = x[order].max()
    ratio = np.exp(x[order] - top)
    if p["min_p"] > 0:
        if np.abs(ratio - p["min_p"]).min() < NEAR * p["min_p"]:
            return None
        order = [i for i, r in zip(order, ratio) if r >= p["min_p"]]
    w = np.exp((x[order] - top) / p["temperature"])
    share = np.cumsum(w) / w.sum()
    u = uniform(p["seed"], p["index"])
    if np.abs(share[:-1] - u).min(initial=1) < NEAR:
        return None
    return order[int(np.searchsorted(share, u))]


def case(rng):
    n = int(rng.choice([1, 2, 7, 16, 33, 100, 300]))
    logits = (rng.standard_normal(n) * rng.choice([0.5, 2, 6])).astype("<f4")
    if rng.random() < 0.3:
        logits = np.round(logits).astype("<f4")
    p = {"temperature": rng.choice([0, 0.2, 0.7, 1, 1, 3]), "top_k": int(rng.choice([0, 0, 1, 3, 40, 2000])),
         "top_p": rng.choice([1, 1, 0.95, 0.5, 0]), "min_p": rng.choice([0, 0, 0.05, 0.4, 1]),
         "repeat": 1, "presence": 0, "frequency": 0, "window": int(rng.choice([0, 4, 64])),
         "seed": int(rng.integers(1 << 63)), "index": int(rng.choice([0, 1, 5, 1 << 33])),
         "n_logprobs": int(rng.choice([-1, 0, 3, 20]))}
    if rng.random() < 0.5:
        p.update(repeat=rng.choice([1, 1.3, 0.8]), presence=rng.choice([0, 0.6, -0.5]),
                 frequency=rng.choice([0, 0.25]))
    p = {k: (float(np.float32(v)) if isinstance(v, float) else v) for k, v in p.items()}
    accepted = [int(i) for i in rng.integers(0, n, rng.choice([0, 3, 10, 90]))]
    return logits, p, accepted


def main():
    rng = np.random.default_rng(5)
    lines, n_cases = [], 0
    while n_cases < 150:
        logits, p, accepted = case(rng)
        token = sample(logits, p, accepted) if logits.size > 1 else 0
        if token is None:
            continue
        x = logits.astype(np.float64)
        logp = x - x.max() - np.log(np.exp(x - x.max()).sum())
        best = sorted(range(x.size), key=lambda i: (-x[i], i))[:max(p["n_logprobs"], 0)]
        lines += [" ".join(repr(v) if isinstance(v, int) else repr(float(v)) for v in p.values()) + f" {x.size}",
                  logits.tobytes().hex(), " ".join(map(str, accepted)) or "-",
                  " ".join([f"{token} {logp[token]:.6f}"] + [f"{i} {logp[i]:.6f}" for i in best])]
        n_cases += 1
    with open(sys.argv[1], "w") as f:
        f.write("\n".join(lines) + "\n")
    print(f"{n_cases} cases")


main()
