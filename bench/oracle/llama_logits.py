#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Teacher-forced logits of llama.cpp (Python package llama-cpp-python) on a text, chunk by chunk as its
perplexity tool counts: chunks of --ctx tokens, the second half of each scored.

Writes OUT.npy, f32 (chunks * (ctx - 1 - ctx / 2), n_vocab), OUT.tokens.npy, i32 (chunks, ctx), and prints the
perplexity. Flash attention and the cache type are options because llama.cpp's own results depend on them."""

import argparse
import math

import llama_cpp
import numpy as np


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", required=True)
    a.add_argument("--text", required=True)
    a.add_argument("--ctx", type=int, default=2048)
    a.add_argument("--chunks", type=int, default=2)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--flash", action="store_true")
    a.add_argument("--kv", choices=("f16", "f32"), default="f16")
    a.add_argument("--out")
    o = a.parse_args()
    kv = {"f16": 1, "f32": 0}[o.kv]
    llm = llama_cpp.Llama(o.model, n_ctx=o.ctx, n_batch=512, n_threads=o.threads,
                          n_threads_batch=o.threads, logits_all=True, flash_attn=o.flash,
                          type_k=kv, type_v=kv, verbose=False)
    text = open(o.text, "rb").read()
    add_bos = bool(llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(llm.model)))
    tokens = np.array(llm.tokenize(text, add_bos=add_bos, special=False), dtype=np.int32)
    first = o.ctx // 2
    per_chunk = o.ctx - 1 - first
    out = None
    if o.out:
        out = np.lib.format.open_memmap(o.out + ".npy", "w+", np.float32,
                                        (o.chunks * per_chunk, llm.n_vocab()))
        np.save(o.out + ".tokens.npy", tokens[: o.chunks * o.ctx].reshape(o.chunks, o.ctx))
    nll = 0.0
    for c in range(o.chunks):
        chunk = tokens[c * o.ctx: (c + 1) * o.ctx].copy()
        if add_bos:
            chunk[0] = llm.token_bos()
        llm.reset()
        llm.eval(chunk.tolist())
        logits = llm.scores[first: o.ctx - 1].astype(np.float64)
        m = logits.max(axis=1, keepdims=True)
        lse = (m + np.log(np.exp(logits - m).sum(axis=1, keepdims=True)))[:, 0]
        nll -= (logits[np.arange(per_chunk), chunk[first + 1:]] - lse).sum()
        if out is not None:
            out[c * per_chunk: (c + 1) * per_chunk] = logits
        n = (c + 1) * per_chunk
        print(f"chunk {c + 1}: perplexity {math.exp(nll / n):.4f}", flush=True)


if __name__ == "__main__":
    main()
