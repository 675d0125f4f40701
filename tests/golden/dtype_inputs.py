# SPDX-License-Identifier: Apache-2.0
"""Inputs for the checks of quant/dtype: random blocks with sane scales, and floats with corners."""

import numpy as np

# name -> (elements a block, bytes a block, byte offsets of f16 fields)
TYPES = {
    "F32": (1, 4, []),
    "F16": (1, 2, [0]),
    "BF16": (1, 2, []),
    "Q4_0": (32, 18, [0]),
    "Q4_1": (32, 20, [0, 2]),
    "Q5_0": (32, 22, [0]),
    "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]),
    "Q4_K": (256, 144, [0, 2]),
    "Q5_K": (256, 176, [0, 2]),
    "Q6_K": (256, 210, [208]),
    "IQ4_NL": (32, 18, [0]),
    "IQ4_XS": (256, 136, [0]),
    "MXFP4": (32, 17, []),
    "Q2_K": (256, 84, [80, 82]),
    "Q3_K": (256, 110, [108]),
}
SEARCHED = {"Q4_K": 0.071, "Q5_K": 0.035, "Q6_K": 0.0175, "IQ4_NL": 0.08}  # and the relative error of normal values, at most
ENCODED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]


def random_blocks(name, n_blocks, seed):
    """Random bits everywhere; f16 fields are any finite number, subnormals and -0 included."""
    rng = np.random.default_rng(seed)
    _, size, halves = TYPES[name]
    raw = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    if name == "F32":
        return rng.standard_normal(n_blocks).astype("<f4").view(np.uint8).reshape(n_blocks, 4)
    if name == "BF16":
        bits = rng.integers(0, 1 << 16, n_blocks, dtype=np.uint16)
        bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF
        return bits.astype("<u2").view(np.uint8).reshape(n_blocks, 2)
    for at in halves:
        bits = rng.integers(0, 1 << 16, n_blocks, dtype=np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0xBFFF
        raw[:, at : at + 2] = bits.astype("<u2").view(np.uint8).reshape(n_blocks, 2)
    return raw


def corner_floats(n_blocks, seed):
    """Blocks of 32 floats: many sizes, then constant, zero, one-sided, tied and tiny ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_blocks, 32)) * 10.0 ** rng.uniform(-6, 3, (n_blocks, 1))
    x = x.astype(np.float32)
    corners = [
        np.zeros(32),
        np.full(32, -0.0),
        np.full(32, 1.0),
        np.full(32, -3.25),
        np.arange(32) - 16,
        (np.arange(32) - 15.5) / 2,
        np.arange(32) + 100,
        np.where(np.arange(32) % 2, 8.0, -8.0),
        np.where(np.arange(32) % 2, -8.0, 8.0),
        (np.arange(32) - 16) * 2.0**-24,
        (np.arange(32) - 16) * 2.0**-30,
        np.r_[60000.0, np.zeros(31)],
        np.r_[np.zeros(31), -60000.0],
    ]
    for i, c in enumerate(corners[:n_blocks]):
        x[i] = c
    return x
