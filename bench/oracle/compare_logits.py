#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares rows of logits: mean and 99th-percentile KL(reference || other) in nats, share of rows with the
same top token, largest difference of logits.   compare_logits.py REFERENCE.npy OTHER.npy"""

import sys

import numpy as np


def main(reference, other):
    a = np.load(reference, mmap_mode="r")
    b = np.load(other, mmap_mode="r")
    n = min(len(a), len(b))
    kl = np.empty(n)
    same = 0
    worst = 0.0
    for i in range(n):
        x = a[i].astype(np.float64)
        y = b[i].astype(np.float64)
        same += x.argmax() == y.argmax()
        worst = max(worst, np.abs(x - y).max())
        x -= x.max() + np.log(np.exp(x - x.max()).sum())
        y -= y.max() + np.log(np.exp(y - y.max()).sum())
        kl[i] = (np.exp(x) * (x - y)).sum()
    print(f"rows {n}  mean KL {kl.mean():.3e}  p99 KL {np.quantile(kl, 0.99):.3e}  "
          f"same top-1 {100 * same / n:.2f} %  largest logit difference {worst:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
