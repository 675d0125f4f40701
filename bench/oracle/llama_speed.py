#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of llama.cpp (Python package llama-cpp-python) through its C interface, in pipit-bench's CSV columns:
prefill of N tokens, decode of --n-new tokens at depth D, medians over --repeats. Random token ids; the
sampler is left out, only llama_decode and reading the last logits are timed."""

import argparse
import ctypes
import statistics
import time

import llama_cpp as L


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--model", required=True)
    a.add_argument("--prefill", default="512")
    a.add_argument("--depth", default="0")
    a.add_argument("--n-new", type=int, default=64)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--repeats", type=int, default=5)
    a.add_argument("--flash", type=int, default=0)
    a.add_argument("--kv", choices=("f16", "q8_0"), default="f16")
    a.add_argument("--header", action="store_true")
    o = a.parse_args()
    silent = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(silent, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(o.model.encode(), L.llama_model_default_params())
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    points = [("prefill", int(n)) for n in o.prefill.split(",") if n]
    points += [("decode", max(1, int(n))) for n in o.depth.split(",") if n]
    p = L.llama_context_default_params()
    p.n_ctx = max(n for _, n in points) + o.n_new + 8
    p.n_batch = 2048
    p.n_ubatch = 512
    p.n_threads = p.n_threads_batch = o.threads
    p.type_k = p.type_v = {"f16": 1, "q8_0": 8}[o.kv]
    p.flash_attn_type = 1 if o.flash else 0
    ctx = L.llama_init_from_model(model, p)
    memory = L.llama_get_memory(ctx)

    def feed(ids, pos, last_logits=True):
        for at in range(0, len(ids), 2048):
            part = ids[at:at + 2048]
            b = L.llama_batch_init(len(part), 0, 1)
            b.n_tokens = len(part)
            for i, t in enumerate(part):
                b.token[i] = t
                b.pos[i] = pos + at + i
                b.n_seq_id[i] = 1
                b.seq_id[i][0] = 0
                b.logits[i] = last_logits and at + i == len(ids) - 1
            assert L.llama_decode(ctx, b) == 0
            L.llama_synchronize(ctx)
            L.llama_batch_free(b)

    def ids(n, salt):
        return [(i * 2654435761 + salt) % vocab for i in range(n)]

    times = {pt: [] for pt in points}
    L.llama_memory_clear(memory, True)
    feed(ids(16, 1), 0)
    for rep in range(o.repeats):
        for what, n in points:
            L.llama_memory_clear(memory, True)
            t0 = time.perf_counter()
            feed(ids(n, rep), 0)
            if what == "decode":
                t0 = time.perf_counter()
                for i in range(o.n_new):
                    feed([(i * 97 + rep) % vocab], n + i)
            times[what, n].append(time.perf_counter() - t0)
    if o.header:
        print("model,kv,what,tokens,batch,tok_s,tok_s_min,tok_s_max,repeats,clean")
    for what, n in points:
        v = sorted((n if what == "prefill" else o.n_new) / t for t in times[what, n])
        print(f"llama.cpp,{o.kv}{' flash' if o.flash else ''},{what},{n},1,"
              f"{statistics.median(v):.1f},{v[0]:.1f},{v[-1]:.1f},{o.repeats},", flush=True)


if __name__ == "__main__":
    main()
