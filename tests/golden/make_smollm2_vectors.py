#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/smollm2.topk: what llama.cpp (Python package llama-cpp-python, built with clang) says of SmolLM2's
next tokens when its weights are dequantised to F32 (bench/oracle/dequantize.py) and its cache is f32.

    make_smollm2_vectors.py F32.gguf TEXT OUT

OUT: "PTOP", i32 n_tokens, first, top, then token ids (n_tokens), and for each position from `first` on but the last:
`top` ids in falling order and their natural-log probabilities (f32)."""

import struct
import sys

import llama_cpp
import numpy as np

N, FIRST, TOP = 288, 96, 64


def main(model, text, out):
    llm = llama_cpp.Llama(model, n_ctx=N, n_batch=N, n_threads=2, logits_all=True, type_k=0, type_v=0,
                          flash_attn=False, verbose=False)
    raw = open(text, "rb").read(4 * N * 4)
    tokens = llm.tokenize(raw, add_bos=False, special=False)[:N]
    llm.eval(tokens)
    logits = llm.scores[FIRST:N - 1].astype(np.float64)
    logp = logits - logits.max(axis=1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(axis=1, keepdims=True))
    order = np.argsort(-logp, axis=1, kind="stable")[:, :TOP]
    with open(out, "wb") as f:
        f.write(b"PTOP" + struct.pack("<3i", N, FIRST, TOP) + np.array(tokens, "<i4").tobytes())
        for row, ids in zip(logp, order):
            f.write(ids.astype("<i4").tobytes() + row[ids].astype("<f4").tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:4])
