#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every element type against the Python package `gguf`, bit for bit, on thousands of blocks.

    check_dtype_gguf.py DTYPE_DUMP

Exit 77 without the package.
"""

import subprocess
import sys

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"SKIP: {e}; this check needs numpy and gguf from PyPI")
    sys.exit(77)

from dtype_inputs import ENCODED, SEARCHED, TYPES, corner_floats, random_blocks


def run(program, what, name, data):
    return subprocess.run([program, what, name], input=data, stdout=subprocess.PIPE, check=True).stdout


def main():
    program = sys.argv[1]
    failed = 0
    for i, (name, (length, _, _)) in enumerate(TYPES.items()):
        raw = random_blocks(name, 1 << 16 if length == 1 else 4096, i)
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype("<f4").reshape(-1)
        got = np.frombuffer(run(program, "decode", name, raw.tobytes()), "<f4")
        bad = int((want.view("<u4") != got.view("<u4")).sum())
        failed += bad
        print(f"decode {name:5} {want.size:8} elements, {bad} differ")
    for i, name in enumerate(ENCODED):
        x = corner_floats(8192, 1000 + i)
        want = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name]).tobytes()
        got = run(program, "encode", name, x.astype("<f4").tobytes())
        bad = sum(a != b for a, b in zip(want, got)) + abs(len(want) - len(got))
        failed += bad
        print(f"encode {name:5} {x.size:8} elements, {bad} bytes differ")
    for i, (name, most) in enumerate(SEARCHED.items()):  # the package has no encoder for these
        for what, x in (("normal", np.random.default_rng(i).standard_normal((64, 256)).astype("<f4") / 50),
                        ("corners", corner_floats(512, 2000 + i).reshape(64, 256).astype("<f4"))):
            raw = run(program, "encode", name, x.tobytes())
            theirs = gguf.quants.dequantize(np.frombuffer(raw, np.uint8).reshape(64, -1), gguf.GGMLQuantizationType[name])
            ours = np.frombuffer(run(program, "decode", name, raw), "<f4").reshape(64, 256)
            bad = int((theirs.astype("<f4").view("<u4") != ours.view("<u4")).sum())
            error = float(np.sqrt(((theirs - x).astype("f8") ** 2).mean() / (x.astype("f8") ** 2).mean()))
            failed += bad + (error > most)
            print(f"encode {name:5} {what}: {bad} elements are read otherwise, relative error {error:.4f}")
    return 1 if failed else 0


sys.exit(main())
