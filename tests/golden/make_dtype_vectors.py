#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/dtype_vectors.bin with the Python package `gguf` (from PyPI) as the authority.

    make_dtype_vectors.py OUT

Little-endian records until the end of the file: u32 kind (0 decode, 1 encode), u32 type, u32 elements,
u32 bytes, then the block bytes, then the elements as f32. A decode record's floats are what the
package makes of the bytes, an encode record's bytes what it makes of the floats.
"""

import struct
import sys

import gguf
import numpy as np

from dtype_inputs import ENCODED, TYPES, corner_floats, random_blocks


def record(out, kind, name, raw, floats):
    raw = raw.tobytes()
    floats = floats.astype("<f4").tobytes()
    qtype = gguf.GGMLQuantizationType[name]
    out.write(struct.pack("<4I", kind, int(qtype), len(floats) // 4, len(raw)))
    out.write(raw)
    out.write(floats)


def main():
    with open(sys.argv[1], "wb") as out:
        for i, (name, (length, _, _)) in enumerate(TYPES.items()):
            raw = random_blocks(name, {1: 64, 32: 6, 256: 2}[length], 100 + i)
            floats = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
            record(out, 0, name, raw, floats)
        for i, name in enumerate(ENCODED):
            x = corner_floats(16, 200 + i)
            record(out, 1, name, gguf.quants.quantize(x, gguf.GGMLQuantizationType[name]), x)


main()
