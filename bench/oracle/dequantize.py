#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a copy of a GGUF file with every tensor as F32, by the Python package gguf: the weights an
independent engine shall run with when its results are compared.   dequantize.py IN OUT"""

import sys

import gguf
import numpy as np
from gguf import quants


def main(src, dst):
    r = gguf.GGUFReader(src)
    w = gguf.GGUFWriter(dst, r.fields["general.architecture"].contents())
    for name, field in r.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        w.add_key_value(name, field.contents(), kind, sub_type=sub)
    w.add_uint32("general.file_type", 0)
    for t in r.tensors:
        data = quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        w.add_tensor(t.name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
