#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of families whose oracle is llama.cpp: tiny random models, float32, written as GGUF with the package
`gguf`, and the logits that llama.cpp gives for random ids.

    make_oracle_vectors.py OUT-FOLDER LOGITS-PROGRAM [NAME]

LOGITS-PROGRAM MODEL.gguf IDS.txt OUT.f32 writes a row of n_vocab f32 for every id of IDS.txt (decimal, one a line): the
logits after it, from llama.cpp with K and V in f32, all ids in one batch (bench/oracle/ids_logits.py). ggml looks GELU up in a table of f16 values,
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
        self.add_tokenizer()
        self.w.add_uint32(f"{arch}.vocab_size", VOCAB)
        for key, v in keys.items():
            key = f"{arch}." + key.replace("__", ".")
            if isinstance(v, list):
                self.w.add_array(key, v)
            elif isinstance(v, bool):
                self.w.add_bool(key, v)
            elif isinstance(v, float):
                self.w.add_float32(key, v)
            elif isinstance(v, str):
                self.w.add_string(key, v)
            else:
                self.w.add_uint32(key, v)

    def add_tokenizer(self):
        self.w.add_tokenizer_model("none")

    def matrix(self, name, rows, cols, size=1.0):
        """Attention far from uniform, values finite."""
        self.w.add_tensor(name, self.rng.normal(0, size / cols**0.5, (rows, cols)).astype(np.float32))

    def stack(self, name, experts, rows, cols):
        self.w.add_tensor(name, self.rng.normal(0, 2 / cols**0.5, (experts, rows, cols)).astype(np.float32))

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
           embd=32, ffs=(48, 64), heads=2, experts=0, used=2, wide=24, fused=False):
    """dims, kv: of sliding and of global layers; the last `shared` layers read earlier ones' K and V. experts: beside each FFN,
    `used` of them a token, each `wide`."""
    slides = [int(il % period != period - 1) for il in range(layers)]
    first = layers - shared
    t = Tiny(path, "gemma4", seed, context_length=1024, embedding_length=embd, block_count=layers,
             feed_forward_length=[ffs[il >= first] for il in range(layers)], attention__head_count=heads,
             attention__head_count_kv=[kv[1 - s] for s in slides],
             attention__key_length=dims[1], attention__value_length=dims[1],
             attention__key_length_swa=dims[0], attention__value_length_swa=dims[0],
             rope__dimension_count=dims[1], rope__dimension_count_swa=dims[0], rope__freq_base=1e6,
             rope__freq_base_swa=1e4, attention__layer_norm_rms_epsilon=1e-6, attention__sliding_window=24,
             attention__shared_kv_layers=shared, embedding_length_per_layer_input=ple, final_logit_softcapping=3.0,
             **({"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": wide} if experts else {}))
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
        if experts:
            for n in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                t.vector(b + n + ".weight", embd)
            t.matrix(b + "ffn_gate_inp.weight", experts, embd, 6)
            t.vector(b + "ffn_gate_inp.scale", embd, 3)
            stack = lambda rows, cols: t.rng.normal(0, 2 / cols**0.5, (experts, rows, cols)).astype(np.float32)
            gate, up = stack(wide, embd), stack(wide, embd)
            if fused:
                t.w.add_tensor(b + "ffn_gate_up_exps.weight", np.concatenate([gate, up], axis=1))
            else:
                t.w.add_tensor(b + "ffn_gate_exps.weight", gate)
                t.w.add_tensor(b + "ffn_up_exps.weight", up)
            t.w.add_tensor(b + "ffn_down_exps.weight", stack(embd, wide))
            t.vector(b + "ffn_down_exps.scale", experts, 1, 0.5)
    t.vector("output_norm.weight", embd)
    t.close()


def moe(path, seed, arch="qwen3moe", experts=8, used=3, embd=32, n_ff=48, wide=24, shared=0, heads=4, kv=2, dim=16, layers=3,
        qk_norm=False, bias=False, gate=False, oss=False, lead=0, chooses=False,
        late_norm=False, rot=0, **keys):
    """Layers of experts. wide: of each one; llama and granitemoe make them as wide as n_ff says. oss: what gpt-oss has.
    lead: so many layers without them, or all. chooses: a bias where experts are chosen. shared: its width."""
    split = {} if wide == n_ff else {"expert_feed_forward_length": wide}
    if shared and "expert_shared_count" not in keys:
        split["expert_shared_feed_forward_length"] = shared
    if lead:
        split["leading_dense_block_count"] = lead
    t = Tiny(path, arch, seed, context_length=1024, embedding_length=embd, block_count=layers, feed_forward_length=n_ff,
             attention__head_count=heads, attention__head_count_kv=kv, attention__key_length=dim,
             attention__value_length=dim, rope__dimension_count=rot or dim, attention__layer_norm_rms_epsilon=1e-6,
             expert_count=experts, expert_used_count=used, **split, **keys)
    t.matrix("token_embd.weight", VOCAB, embd)
    for il in range(layers):
        b = f"blk.{il}."
        for n in ("attn_norm", "post_attention_norm" if oss or late_norm else "ffn_norm"):
            t.vector(b + n + ".weight", embd)
        for n, rows in ("q", heads * dim), ("k", kv * dim), ("v", kv * dim):
            t.matrix(b + f"attn_{n}.weight", rows, embd, 2)
            if bias:
                t.vector(b + f"attn_{n}.bias", rows, 0, 0.3)
            if qk_norm and n != "v":
                t.vector(b + f"attn_{n}_norm.weight", dim)
        t.matrix(b + "attn_output.weight", embd, heads * dim)
        if il < lead:
            t.matrix(b + "ffn_gate.weight", n_ff, embd)
            t.matrix(b + "ffn_up.weight", n_ff, embd)
            t.matrix(b + "ffn_down.weight", embd, n_ff)
            continue
        t.matrix(b + "ffn_gate_inp.weight", experts, embd, 2)
        if chooses:
            t.vector(b + "exp_probs_b.bias", experts, 0, 0.5)
        if oss:
            t.vector(b + "attn_sinks.weight", heads, 1, 1.5)
            t.vector(b + "attn_output.bias", embd, 0, 0.3)
            t.vector(b + "ffn_gate_inp.bias", experts, 0, 0.5)
        for n, rows, cols in ("gate", wide, embd), ("up", wide, embd), ("down", embd, wide):
            t.stack(b + f"ffn_{n}_exps.weight", experts, rows, cols)
            if oss:
                t.values(b + f"ffn_{n}_exps.bias", t.rng.normal(0, 0.5, (experts, rows)))
            if shared:
                s = (rows, shared) if n == "down" else (shared, cols)
                t.matrix(b + f"ffn_{n}_shexp.weight", *s, 2)
        if gate:
            t.vector(b + "ffn_gate_inp_shexp.weight", embd, 0, 0.5)
    t.vector("output_norm.weight", embd)
    t.matrix("output.weight", VOCAB, embd)
    t.close()


def qwen35(path, seed, layers=5, period=3, predictors=1, kv=1, rot=8, groups=2, ranks=6, state=16, width=4, embd=32, n_ff=48,
           heads=2, dim=16, tied=True, recurrent=None, arch="qwen35", experts=0, used=0, wide=24, shared=40):
    """Every period-th layer has attention, or those that `recurrent` lists with 0. With experts n_ff is in no key."""
    keys = {"full_attention_interval": period} if not recurrent else {}
    ffn = {"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": wide,
           "expert_shared_feed_forward_length": shared} if experts else {"feed_forward_length": n_ff}
    t = Tiny(path, arch, seed, context_length=1024, embedding_length=embd, block_count=layers + predictors, **ffn,
             attention__head_count=heads, attention__head_count_kv=kv,
             attention__key_length=dim, attention__value_length=dim, attention__layer_norm_rms_epsilon=1e-4,
             rope__dimension_count=rot, rope__dimension_sections=[2, 1, 1, 0], rope__freq_base=1e4,
             ssm__conv_kernel=width, ssm__state_size=state, ssm__group_count=groups, ssm__time_step_rank=ranks,
             ssm__inner_size=ranks * state, **keys)
    if predictors:
        t.w.add_uint32(f"{arch}.nextn_predict_layers", predictors)
    if recurrent:
        t.w.add_array("qwen35.attention.recurrent_layers", [bool(r) for r in recurrent])
    t.matrix("token_embd.weight", VOCAB, embd)
    if not tied:
        t.matrix("output.weight", VOCAB, embd)
    for il in range(layers + predictors):
        b = f"blk.{il}."
        t.vector(b + "attn_norm.weight", embd)
        t.vector(b + "post_attention_norm.weight", embd)
        if experts:
            t.matrix(b + "ffn_gate_inp.weight", experts, embd, 2)
            t.vector(b + "ffn_gate_inp_shexp.weight", embd, 0, 0.5)
        for n, rows, cols in ("gate", n_ff, embd), ("up", n_ff, embd), ("down", embd, n_ff):
            if experts:
                rows, cols = (rows, wide) if n == "down" else (wide, cols)
                t.stack(b + f"ffn_{n}_exps.weight", experts, rows, cols)
                s = (rows, shared) if n == "down" else (shared, cols)
                t.matrix(b + f"ffn_{n}_shexp.weight", *s, 2)
            else:
                t.matrix(b + f"ffn_{n}.weight", rows, cols)
        if il < layers and (recurrent[il] if recurrent else (il + 1) % period):
            channels = (2 * groups + ranks) * state
            t.matrix(b + "attn_qkv.weight", channels, embd, 2)
            t.matrix(b + "attn_gate.weight", ranks * state, embd)
            t.matrix(b + "ssm_alpha.weight", ranks, embd)
            t.matrix(b + "ssm_beta.weight", ranks, embd, 2)
            t.matrix(b + "ssm_conv1d.weight", channels, width)
            t.values(b + "ssm_a", [-0.02 * 3**(i % 4) for i in range(ranks)])
            t.vector(b + "ssm_dt.bias", ranks, 0)
            t.vector(b + "ssm_norm.weight", state)
            t.matrix(b + "ssm_out.weight", embd, ranks * state)
        else:
            t.matrix(b + "attn_q.weight", 2 * heads * dim, embd, 2)
            t.matrix(b + "attn_k.weight", kv * dim, embd, 2)
            t.matrix(b + "attn_v.weight", kv * dim, embd)
            t.matrix(b + "attn_output.weight", embd, heads * dim)
            t.vector(b + "attn_q_norm.weight", dim, 1.5)
            t.vector(b + "attn_k_norm.weight", dim, 1.5)
        if il >= layers:
            t.matrix(b + "nextn.eh_proj.weight", embd, 2 * embd)
            t.vector(b + "nextn.enorm.weight", embd)
            t.vector(b + "nextn.hnorm.weight", embd)
    t.vector("output_norm.weight", embd)
    t.close()


def lfm2(path, seed, kv=(0, 2, 0, 0, 1), embd=32, n_ff=48, heads=4, width=3):
    """Layers without K and V heads are short convolutions."""
    t = Tiny(path, "lfm2", seed, context_length=1024, embedding_length=embd, block_count=len(kv), feed_forward_length=n_ff,
             attention__head_count=heads, attention__head_count_kv=list(kv), attention__layer_norm_rms_epsilon=1e-5,
             rope__freq_base=1e4, shortconv__l_cache=width)
    t.matrix("token_embd.weight", VOCAB, embd)
    t.vector("token_embd_norm.weight", embd)
    dim = embd // heads
    for il, n_kv in enumerate(kv):
        b = f"blk.{il}."
        t.vector(b + "attn_norm.weight", embd)
        t.vector(b + "ffn_norm.weight", embd)
        t.matrix(b + "ffn_gate.weight", n_ff, embd)
        t.matrix(b + "ffn_up.weight", n_ff, embd)
        t.matrix(b + "ffn_down.weight", embd, n_ff)
        if n_kv:
            for n, rows in ("q", embd), ("k", n_kv * dim), ("v", n_kv * dim):
                t.matrix(b + f"attn_{n}.weight", rows, embd, 2)
            t.matrix(b + "attn_output.weight", embd, embd)
            t.vector(b + "attn_q_norm.weight", dim, 1.5)
            t.vector(b + "attn_k_norm.weight", dim, 1.5)
        else:
            t.matrix(b + "shortconv.in_proj.weight", 3 * embd, embd)
            t.matrix(b + "shortconv.conv.weight", embd, width)
            t.matrix(b + "shortconv.out_proj.weight", embd, embd)
    t.close()


def scan(path, seed, arch="granitehybrid", layers="aSSa", embd=32, n_ff=48, heads=4, kv=2, dim=16, width=4, state=24, groups=2,
         ssm_heads=4, ssm_dim=16, experts=0, used=2, shared=0, **keys):
    """Layers of a state space (S), attention (a) or, of nemotron_h, an FFN alone (f); others have an FFN behind, mamba2 none."""
    single, inner = arch in ("nemotron_h", "nemotron_h_moe", "mamba2"), ssm_heads * ssm_dim
    channels = inner + 2 * groups * state
    if experts:
        keys |= {"expert_count": experts, "expert_used_count": used, "expert_shared_feed_forward_length": shared}
    sizes = {"feed_forward_length": [n_ff * (c == "f") for c in layers] if single else n_ff, "attention__head_count": heads,
             "attention__head_count_kv": [kv * (c == "a") for c in layers], "attention__key_length": dim,
             "attention__value_length": dim, "attention__layer_norm_rms_epsilon": 1e-5, "attention__layer_norm_epsilon": 1e-5,
             "rope__dimension_count": dim}
    if arch == "mamba2":  # as its converter says it
        sizes = {"feed_forward_length": 0, "attention__head_count": 0, "attention__layer_norm_rms_epsilon": 1e-5}
    t = Tiny(path, arch, seed, context_length=1024, embedding_length=embd, block_count=len(layers), **sizes,
             ssm__conv_kernel=width, ssm__state_size=state, ssm__group_count=groups,
             ssm__time_step_rank=ssm_heads, ssm__inner_size=inner, **keys)
    t.matrix("token_embd.weight", VOCAB, embd)
    for il, kind in enumerate(layers):
        b = f"blk.{il}."
        t.vector(b + "attn_norm.weight", embd)
        if kind == "S":
            t.matrix(b + "ssm_in.weight", inner + channels + ssm_heads, embd, 2)
            t.matrix(b + "ssm_conv1d.weight", channels, width)
            t.vector(b + "ssm_conv1d.bias", channels, 0, 0.3)
            t.vector(b + "ssm_dt.bias", ssm_heads, 0)
            t.values(b + "ssm_a", [[-0.02 * 3**(i % 4)] for i in range(ssm_heads)])
            t.values(b + "ssm_d", [[0.5 + 0.2 * i] for i in range(ssm_heads)])
            t.values(b + "ssm_norm.weight", t.rng.normal(1, 0.1, (groups, inner // groups)))
            t.matrix(b + "ssm_out.weight", embd, inner)
        elif kind == "a":
            for n, rows in ("q", heads * dim), ("k", kv * dim), ("v", kv * dim):
                t.matrix(b + f"attn_{n}.weight", rows, embd, 2)
            t.matrix(b + "attn_output.weight", embd, heads * dim)
        if single and kind == "f" and experts:  # without gates
            t.matrix(b + "ffn_gate_inp.weight", experts, embd, 2)
            t.vector(b + "exp_probs_b.bias", experts, 0, 0.3)
            for n, rows, cols in ("up", n_ff, embd), ("down", embd, n_ff):
                t.w.add_tensor(b + f"ffn_{n}_exps.weight", t.rng.normal(0, 2 / cols**0.5, (experts, rows, cols)).astype(np.float32))
                t.matrix(b + f"ffn_{n}_shexp.weight", *((rows, shared) if n == "down" else (shared, cols)), 2)
        elif single and kind == "f":
            t.matrix(b + "ffn_up.weight", n_ff, embd, 2)
            t.matrix(b + "ffn_down.weight", embd, n_ff)
        if single:
            continue
        t.vector(b + "ffn_norm.weight", embd)
        if experts:
            t.matrix(b + "ffn_gate_inp.weight", experts, embd, 2)
        for n, rows, cols in ("gate", n_ff, embd), ("up", n_ff, embd), ("down", embd, n_ff):
            if experts:
                t.stack(b + f"ffn_{n}_exps.weight", experts, rows, cols)
                s = (rows, shared) if n == "down" else (shared, cols)
                t.matrix(b + f"ffn_{n}_shexp.weight", *s, 2)
            else:
                t.matrix(b + f"ffn_{n}.weight", rows, cols)
    t.vector("output_norm.weight", embd)
    t.close()


# 300 ids: windows have slid, and rings of window + chunk slots have wrapped in the tests that make them small.
MODELS = {
    "gemma2": (gemma2, {}, 300, 240),
    "qwen35": (qwen35, {}, 300, 240),
    "qwen35_list": (qwen35, {"layers": 4, "recurrent": [0, 1, 1, 0], "predictors": 0, "tied": False, "ranks": 2,
                             "width": 3, "kv": 2, "rot": 16, "state": 32}, 300, 240),
    "qwen35moe": (qwen35, {"arch": "qwen35moe", "layers": 3, "period": 2, "experts": 6, "used": 3, "ranks": 2, "groups": 1},
                  160, 100),
    "lfm2": (lfm2, {}, 300, 240),
    "granitehybrid": (scan, {"experts": 4, "shared": 24, "layers": "SaS", "logit_scale": 3.0, "residual_scale": 0.4,
                             "embedding_scale": 5.0, "attention__scale": 0.2, "rope__scaling__finetuned": False}, 160, 100),
    "nemotron_h": (scan, {"arch": "nemotron_h", "layers": "SfaSf", "groups": 1, "ssm_heads": 2, "ssm_dim": 32, "width": 3},
                   160, 100),
    "nemotron_h_moe": (scan, {"arch": "nemotron_h_moe", "layers": "Sfaf", "groups": 1, "ssm_heads": 2, "ssm_dim": 16, "width": 3,
                              "n_ff": 32, "experts": 4, "used": 2, "shared": 24, "kv": 1, "expert_feed_forward_length": 32,
                              "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}, 130, 100),
    "mamba2": (scan, {"arch": "mamba2", "layers": "SSS"}, 300, 240),
    "gemma4_e": (gemma4, {}, 300, 240),
    "gemma4_dense": (gemma4, {"shared": 0, "ple": 0, "v_is_k": True, "kv": (2, 1), "layers": 6}, 300, 240),
    "gemma4_moe": (gemma4, {"shared": 0, "ple": 0, "v_is_k": True, "kv": (2, 1), "layers": 3, "experts": 6, "fused": True}, 160, 100),
    "qwen3moe": (moe, {"qk_norm": True}, 160, 100),
    "qwen2moe": (moe, {"arch": "qwen2moe", "bias": True, "gate": True, "shared": 40, "dim": 8, "used": 4}, 160, 100),
    "granitemoe": (moe, {"arch": "granitemoe", "wide": 48, "experts": 5, "used": 2, "shared": 24, "layers": 2,
                         "logit_scale": 3.0, "residual_scale": 0.4, "embedding_scale": 5.0, "attention__scale": 0.2},
                   160, 100),
    "llama_moe": (moe, {"arch": "llama", "wide": 48, "experts": 4, "used": 2, "layers": 2,
                        "expert_weights_scale": 1.5},  # which llama.cpp does not read in this family
                  160, 100),
    "glm4moe": (moe, {"arch": "glm4moe", "late_norm": True, "lead": 1, "chooses": True, "rot": 8, "used": 2, "shared": 48,
                      "expert_shared_count": 2, "expert_weights_scale": 1.5, "expert_weights_norm": True}, 160, 100),
    "ernie_moe": (moe, {"arch": "ernie4_5-moe", "lead": 1, "chooses": True, "shared": 40, "interleave_moe_layer_step": 1},
                  160, 100),
    "qwen3vl": (moe, {"arch": "qwen3vl", "experts": 0, "used": 0, "lead": 3, "qk_norm": True,
                      "rope__dimension_sections": [3, 3, 2, 0]}, 160, 100),
    "gpt_oss": (moe, {"arch": "gpt-oss", "oss": True, "bias": True, "experts": 6, "layers": 4, "attention__sliding_window": 24,
                      "rope__freq_base": 150000.0, "rope__scaling__type": "yarn", "rope__scaling__factor": 8.0,
                      "rope__scaling__original_context_length": 64}, 160, 100),
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
