# SPDX-License-Identifier: Apache-2.0
"""What a step costs in products, and what the machine can do at best: the share of peak that train.py prints."""

import time

import torch


def flops_per_token(student, stage, share, ctx, rows):
    """Multiply-adds times two of all matrix products of one trained token. Attention counts its causal half. share: of
    positions in the loss; rows: of those at which the student's deep layers run."""
    w = student.frozen.w
    width, kv = w.n_heads * w.dim, w.n_kv * w.dim
    attn = 2 * w.n_embd * width * 2 + 2 * ctx * width  # q, o; two products with ctx / 2 keys
    own_kv = 4 * w.n_embd * kv
    mlp = 6 * w.n_embd * w.layers[0]["gate"].shape[0]
    head = 2 * w.n_embd * w.embed.shape[0]
    deep, shared = w.n_layers - student.split, len(student.k) * 4 * w.n_embd * student.kv_heads * w.dim
    teacher = w.n_layers * (attn + own_kv + mlp)
    if stage == "exit":
        return teacher + share * (head + 3 * 2 * w.n_embd * student.exit_head.shape[0])
    outputs = len(student.o) * 2 * w.n_embd * width  # gradients by weights
    if stage == "attention":
        return teacher + outputs + deep * (3 * attn - 4 * w.n_embd * width) + 2 * shared  # q's input needs no gradient
    # back: gradients by inputs of everything, by weights of q, k, v only
    read, maps = 2 * ctx * width, 0
    if student.dims:
        read, maps = ctx * w.n_heads * sum(student.dims), 2 * width * sum(student.dims)
        shared = len(student.k) * 2 * w.n_embd * sum(student.dims)
    there = 4 * w.n_embd * width + read + maps + mlp
    back = outputs + deep * (there + 2 * w.n_embd * width + maps + read)
    return teacher + rows * (deep * there + back) + 3 * shared + 3 * share * head


def measured_peak(device, dtype, seconds=0.5):
    """FLOP/s of the largest plain product here: 2048 x 1536 x 576 on a CPU, square 8192 on a GPU. On a CPU of f32 too, which
    some do faster than bf16."""
    best = 0.0
    for kind in {dtype} if device.type == "cuda" else {dtype, torch.float32}:
        m, n, k = (8192, 8192, 8192) if device.type == "cuda" else (2048, 1536, 576)
        a, b = torch.randn(m, k, device=device, dtype=kind), torch.randn(n, k, device=device, dtype=kind)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            t = time.monotonic()
            for _ in range(3):
                torch.nn.functional.linear(a, b)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = max(best, 3 * 2 * m * n * k / (time.monotonic() - t))
    return best
