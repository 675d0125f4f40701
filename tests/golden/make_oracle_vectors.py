#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of families whose oracle is llama.cpp: tiny random models, float32, written as GGUF with the package
`gguf`, and the logits that llama.cpp gives for random ids.

    make_oracle_vectors.py OUT-FOLDER LOGITS-PROGRAM [NAME]

LOGITS-PROGRAM MODEL.gguf IDS.txt OUT.f32 writes a row of n_vocab f32 for every id of IDS.txt (decimal, one a line): the
logits after it, from llama.cpp with K and V in f32, all ids in one batch. ggml looks GELU up in a table of f16 values,
which moves these logits by up to 0.03: build it without GGML_GELU_FP16 (ggml-cpu/vec.h). Writes arch_NAME.gguf and arch_NAME.vec as
make_arch_vectors.py does (its head says the format)."""

import os
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np

VOCAB = 96


class Tiny:
    """A model that is being written: keys with the family's prefix, tensors of random numbers."""

    def __init__(self, path, arch, seed, **keys):
        self.arch = arch
        self.w = gguf.GGUFWriter(path, arch)
        self.rng = np.random.default_rng(seed)
        self.w.add_name("tiny random " + arch)
        self.w.add_tokenizer_model("none")
        self.w.add_uint32(f"{arch}.vocab_size", VOCAB)
        for key, v in keys.items():
            key = f"{arch}." + key.replace("__", ".")
            if isinstance(v, list):
                self.w.add_array(key, v)
            elif isinstance(v, float):
                self.w.add_float32(key, v)
            elif isinstance(v, str):
                self.w.add_string(key, v)
            else:
                self.w.add_uint32(key, v)

    def matrix(self, name, rows, cols, size=1.0):
        """Attention far from uniform, values finite."""
        self.w.add_tensor(name, self.rng.normal(0, size / cols**0.5, (rows, cols)).astype(np.float32))

    def vector(self, name, n, mean=1.0, size=0.1):
        self.w.add_tensor(name, self.rng.normal(mean, size, n).astype(np.float32))

    def values(self, name, values):
        self.w.add_tensor(name, np.array(values, dtype=np.float32))

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def sandwich(t, il, embd, n_ff):
    """Gemma's norms before and after, and its FFN."""
    b = f"blk.{il}."
    for n in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        t.vector(b + n + ".weight", embd)
    t.matrix(b + "ffn_gate.weight", n_ff, embd)
    t.matrix(b + "ffn_up.weight", n_ff, embd)
    t.matrix(b + "ffn_down.weight", embd, n_ff)


def gemma2(path, seed):
    embd, heads, kv, dim, n_ff, layers = 32, 2, 1, 16, 48, 4
    t = Tiny(path, "gemma2", seed, context_length=1024, embedding_length=embd, block_count=layers,
             feed_forward_length=n_ff, attention__head_count=heads, attention__head_count_kv=kv,
             attention__key_length=dim, attention__value_length=dim, attention__layer_norm_rms_epsilon=1e-6,
             attention__sliding_window=24, attn_logit_softcapping=4.0, final_logit_softcapping=3.0)
    t.matrix("token_embd.weight", VOCAB, embd)
    for il in range(layers):
        b = f"blk.{il}."
        sandwich(t, il, embd, n_ff)
        t.matrix(b + "attn_q.weight", heads * dim, embd, 2)
        t.matrix(b + "attn_k.weight", kv * dim, embd, 2)
        t.matrix(b + "attn_v.weight", kv * dim, embd)
        t.matrix(b + "attn_output.weight", embd, heads * dim)
    t.vector("output_norm.weight", embd)
    t.close()


def gemma4(path, seed, layers=7, shared=4, ple=16, v_is_k=False, kv=(1, 1), dims=(16, 24), scales=True, period=3,
           embd=32, ffs=(48, 64), heads=2):
    """dims, kv: of sliding and of global layers; the last `shared` layers read earlier ones' K and V."""
    slides = [int(il % period != period - 1) for il in range(layers)]
    first = layers - shared
    t = Tiny(path, "gemma4", seed, context_length=1024, embedding_length=embd, block_count=layers,
             feed_forward_length=[ffs[il >= first] for il in range(layers)], attention__head_count=heads,
             attention__head_count_kv=[kv[1 - s] for s in slides],
             attention__key_length=dims[1], attention__value_length=dims[1],
             attention__key_length_swa=dims[0], attention__value_length_swa=dims[0],
             rope__dimension_count=dims[1], rope__dimension_count_swa=dims[0], rope__freq_base=1e6,
             rope__freq_base_swa=1e4, attention__layer_norm_rms_epsilon=1e-6, attention__sliding_window=24,
             attention__shared_kv_layers=shared, embedding_length_per_layer_input=ple, final_logit_softcapping=3.0)
    t.w.add_array("gemma4.attention.sliding_window_pattern", [bool(s) for s in slides])
    t.matrix("token_embd.weight", VOCAB, embd)
    half = dims[1] // 2
    t.values("rope_freqs.weight", [1.0] * (half // 4) + [1e30] * (half - half // 4))
    if ple:
        t.matrix("per_layer_token_embd.weight", VOCAB, ple * layers)
        t.matrix("per_layer_model_proj.weight", ple * layers, embd, 5)
        t.vector("per_layer_proj_norm.weight", ple)
    for il in range(layers):
        b = f"blk.{il}."
        dim, k = dims[1 - slides[il]], kv[1 - slides[il]]
        sandwich(t, il, embd, ffs[il >= first])
        t.matrix(b + "attn_q.weight", heads * dim, embd)
        t.vector(b + "attn_q_norm.weight", dim, 0.8)
        if il < first:
            t.matrix(b + "attn_k.weight", k * dim, embd)
            t.vector(b + "attn_k_norm.weight", dim, 0.8)
            if slides[il] or not v_is_k:
                t.matrix(b + "attn_v.weight", k * dim, embd)
        t.matrix(b + "attn_output.weight", embd, heads * dim)
        if ple:
            t.matrix(b + "inp_gate.weight", ple, embd)
            t.matrix(b + "proj.weight", embd, ple)
            t.vector(b + "post_norm.weight", embd)
        if scales:
            t.values(b + "layer_output_scale.weight", [0.7 + 0.1 * (il % 5)])
    t.vector("output_norm.weight", embd)
    t.close()


# 300 ids: windows have slid, and rings of window + chunk slots have wrapped in the tests that make them small.
MODELS = {
    "gemma2": (gemma2, {}, 300, 240),
    "gemma4_e": (gemma4, {}, 300, 240),
    "gemma4_dense": (gemma4, {"shared": 0, "ple": 0, "v_is_k": True, "kv": (2, 1), "layers": 6}, 300, 240),
}


def make(out, program, name):
    build, options, n, first = MODELS[name]
    path = f"{out}/arch_{name}.gguf"
    seed = sum(map(ord, name))
    build(path, seed, **options)
    ids = np.random.default_rng(seed + 1).integers(0, VOCAB, n)
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/ids", "w") as f:
            f.write("\n".join(map(str, ids)) + "\n")
        subprocess.run([program, path, f"{tmp}/ids", f"{tmp}/out"], check=True, stdout=subprocess.DEVNULL)
        logits = np.fromfile(f"{tmp}/out", "<f4").reshape(n, VOCAB)[first:]
    assert np.isfinite(logits).all()
    with open(f"{out}/arch_{name}.vec", "wb") as f:
        f.write(b"PARC" + struct.pack("<3i", n, first, VOCAB) + ids.astype("<i4").tobytes() + logits.tobytes())
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    print(name, os.path.getsize(path), "bytes, largest logit", abs(logits).max(), "mean entropy",
          float(-(p * np.log(p)).sum(-1).mean()))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    for model in sys.argv[3:] or MODELS:
        make(sys.argv[1], sys.argv[2], model)
