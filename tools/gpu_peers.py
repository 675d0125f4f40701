#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What others reach on this GPU, as CSV: PyTorch's scaled-dot-product attention of one decode row, matrix products by
cuBLAS (through PyTorch), a copy within the device, and llama.cpp's llama-bench where a model and the program are given.

Usage: tools/gpu_peers.py OUT.csv [LLAMA_BENCH MODEL.gguf]
Exit code: 77 when PyTorch with CUDA is not there and no llama-bench is given.
"""
import csv
import shutil
import statistics
import subprocess
import sys

ROTATE_BYTES = 256 << 20  # operands in turn, more than any L2 holds


def timed(torch, calls):
    """Median seconds of a call; `calls` are used in turn."""
    for call in calls[:2]:
        call()
    times = []
    for i in range(max(20, len(calls))):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        calls[i % len(calls)]()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


def copies(torch, out):
    n = 1 << 29
    a, b = torch.empty(n, dtype=torch.uint8, device="cuda"), torch.empty(n, dtype=torch.uint8, device="cuda")
    out("copy, both directions", n, 2 * n, timed(torch, [lambda: b.copy_(a)]), "GB/s", 2 * n)


def products(torch, out):
    n = 8192
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    out("cuBLAS bf16 product", n, 6 * n * n, timed(torch, [lambda: a @ b]), "TFLOP/s", 2 * n**3 / 1e3)
    w = [torch.randn(14336, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    x = torch.randn(4096, 1, device="cuda", dtype=torch.bfloat16)
    size = w[0].numel() * 2
    out("cuBLAS bf16 row times 14336 x 4096", 1, size, timed(torch, [lambda w=w: w @ x for w in w]), "GB/s", size)


def attention(torch, out):
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for depth in (8192, 65536):
        size = 2 * 8 * depth * 128 * 2
        sets = [[torch.randn(1, 8, depth, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
                for _ in range(max(2, ROTATE_BYTES // size))]
        q = torch.randn(1, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
        calls = [lambda k=k, v=v: sdpa(q, k, v, enable_gqa=True) for k, v in sets]
        out("PyTorch attention, 32 heads on 8, decode", depth, size, timed(torch, calls), "GB/s", size)
    k, v, q = (torch.randn(1, h, 8192, 128, device="cuda", dtype=torch.bfloat16) for h in (32, 32, 32))
    flop = 2 * 2 * 32 * 8192 * 8192 * 128 / 2
    out("PyTorch attention, prefill", 8192, 4 * q.numel() * 2, timed(torch, [lambda: sdpa(q, k, v, is_causal=True)]),
        "TFLOP/s", flop / 1e3)


def main():
    if len(sys.argv) not in (2, 4):
        print(__doc__)
        return 2
    rows = []
    try:
        import torch
        have = torch.cuda.is_available()
    except ImportError:
        have = False
    if not have and len(sys.argv) == 2:
        print("PyTorch with CUDA is not here")
        return 77
    with open(sys.argv[1], "w", newline="") as f:
        csv_out = csv.writer(f, lineterminator="\n")
        csv_out.writerow(["device", "what", "size", "bytes", "microseconds", "value", "unit"])
        if have:
            name = torch.cuda.get_device_name()
            for part in (copies, products, attention):
                try:
                    part(torch, lambda what, size, moved, s, unit, amount: csv_out.writerow(
                        [name, what, size, moved, f"{s * 1e6:.1f}", f"{amount / s / 1e9:.1f}", unit]))
                except (RuntimeError, TypeError) as e:  # out of memory, an older PyTorch
                    print(f"{part.__name__}: {e}")
        if len(sys.argv) == 4 and shutil.which(sys.argv[2]):
            done = subprocess.run([sys.argv[2], "-m", sys.argv[3], "-ngl", "99", "-fa", "1", "-p", "512", "-n", "128", "-o",
                                   "csv"], capture_output=True, text=True)
            f.write(done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
