#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_model beside those that it had: what keys and tensors of a model can say that is not so, by name.
The numbers of keys and tensors in a seed are those of the harness, so it reads the models as that does.

    make_seeds_model.py            into seeds/model"""

import pathlib
import re
import struct

root = pathlib.Path(__file__).parent
data = root.parent / "data"
harness = (root / "fuzz_model.c").read_text()


def table(name):
    return [None if n == "NULL" else n.strip('"')
            for n in re.findall(r'NULL|"[^"]*"', re.search(rf"{name}\[\] = \{{(.*?)\}};", harness, re.S)[1])]


MODELS, OVERLAYS = table("models"), table("overlays")
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
NO_MEMORY = b"\xffF\0\0"


def u32(*v):
    return struct.pack(f"<{len(v)}I", *v)


def f32(v):
    return struct.pack("<f", v)


def string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def numbers(*v):
    return struct.pack("<IQ", 5, len(v)) + struct.pack(f"<{len(v)}i", *v)


def read(name):
    """Names of keys and tensors, as read_file() of the harness lists them."""
    b = (data / f"{name}.gguf").read_bytes()
    n_tensors, n_keys = struct.unpack_from("<QQ", b, 8)
    at = 24

    def text():
        nonlocal at
        n, = struct.unpack_from("<Q", b, at)
        at += 8 + n
        return b[at - n:at].decode()

    def value(kind):
        nonlocal at
        if kind == STRING:
            text()
        elif kind == ARRAY:
            of, n = struct.unpack_from("<IQ", b, at)
            at += 12
            for _ in range(n):
                value(of)
        else:
            at += SIZES[kind]

    keys, tensors = [], []
    for _ in range(n_keys):
        key = text()
        kind, = struct.unpack_from("<I", b, at)
        at += 4
        begin = at
        value(kind)
        if at - begin <= 512 and not key.startswith("tokenizer."):
            keys.append((key, kind, b[begin:at]))
    keys.append(("tokenizer.ggml.model", STRING, b""))
    for _ in range(n_tensors):
        tensors.append(text())
        dims, = struct.unpack_from("<I", b, at)
        at += 4 + 8 * dims + 12
    return keys, tensors


class File:
    def __init__(self, name, bit, out):
        self.keys, self.tensors = read(name)
        self.bit, self.out = bit, out

    def op(self, what, *parts):
        self.out += bytes([what | self.bit]) + b"".join(bytes([p]) if isinstance(p, int) else p for p in parts)

    def key(self, name):
        return next((i for i, k in enumerate(self.keys) if k[0].endswith(name)), None)

    def t(self, name):
        i = self.tensors.index(name)
        return bytes([i & 255]) + (bytes([i >> 8]) if len(self.tensors) > 256 else b"")

    def drop(self, *names):
        for name in names:
            i = self.key(name)
            self.op(0, i)
            self.keys[i] = self.keys[-1]
            self.keys.pop()

    def put(self, name, kind, value):
        if self.key(name) is not None:
            name = self.keys[self.key(name)][0]
            self.drop(name)
        name = name.lstrip("*")
        self.op(11, kind, len(name), name.encode(), len(value), value)
        self.keys.append((name, kind, value))

    def arch(self, new):
        """Another family, whose keys say the same."""
        old = self.keys[self.key("general.architecture")][2][8:].decode()
        self.put("general.architecture", STRING, string(new))
        for name, kind, value in [k for k in self.keys if k[0].startswith(old + ".")]:
            self.put("*" + new + name[len(old):], kind, value)

    def drop_tensors(self, *names):
        for name in names:
            self.op(4, self.t(name))
            i = self.tensors.index(name)
            self.tensors[i] = self.tensors[-1]
            self.tensors.pop()

    def dim(self, name, d, v):
        self.op(5, self.t(name), d, struct.pack("<H", v))

    def kind(self, name, kind):
        self.op(6, self.t(name), kind)

    def n_dims(self, name, n):
        self.op(7, self.t(name), n)

    def data(self, name, at, data):
        self.op(9, self.t(name), at, len(data), data)

    def copy(self, name, new):
        self.op(10, self.t(name), len(new), new.encode())
        self.tensors.append(new)

    def small(self, new, n, *more, of="blk.0.attn_norm.weight"):
        """A tensor of n f32, of the data of another."""
        self.copy(of, new)
        self.dim(new, 0, n)
        for f in more:
            f()


def seed(name, model, change=lambda m, o: None, overlay=None, policy=0, tail=b""):
    out = bytearray([MODELS.index(model), OVERLAYS.index(overlay), policy])
    m = File(model, 0, out)
    o = File(overlay, 128, out) if overlay else None
    change(m, o)
    (root / "seeds" / "model" / name).write_bytes(bytes(out) + tail)


def key(name, model, field, kind, value, **more):
    seed(name, model, lambda m, o: m.put(field, kind, value), **more)


BASE = "cache_model"
# Keys of sizes.
for field in ("attention.layer_norm_rms_epsilon", "llama.block_count", "attention.head_count", "general.architecture"):
    seed("no_" + field.split(".")[-1], BASE, lambda m, o: m.drop(field))
key("eps_high", BASE, "attention.layer_norm_rms_epsilon", F32, f32(2))
key("rope_base_low", BASE, "rope.freq_base", F32, f32(0.5))
key("kv_heads_list", BASE, "attention.head_count_kv", ARRAY, numbers(2, 2, 2, 2, 2, 2))
key("kv_heads_high", BASE, "attention.head_count_kv", ARRAY, numbers(2, 2, 2, 99999, 2, 2))
key("kv_heads_few", BASE, "attention.head_count_kv", ARRAY, numbers(2, 2))
key("heads_3", BASE, "attention.head_count", U32, u32(3))
key("rot_odd", BASE, "rope.dimension_count", U32, u32(7))
key("arch_unknown", BASE, "general.architecture", STRING, string("nobody"))
key("arch_long", BASE, "general.architecture", STRING, string("n" * 70))
key("experts_5000", BASE, "*llama.expert_count", U32, u32(5000))


def no_even(m, o):
    m.put("attention.head_count", U32, u32(6))
    m.drop("attention.key_length", "attention.value_length", "rope.dimension_count")


def wide_head(m, o):
    m.put("embedding_length", U32, u32(2048))
    m.put("attention.head_count", U32, u32(1))
    m.put("attention.head_count_kv", U32, u32(1))
    m.drop("attention.key_length", "attention.value_length", "rope.dimension_count")


seed("heads_uneven", BASE, no_even)
seed("heads_wide", BASE, wide_head)
seed("no_embd", BASE, lambda m, o: m.drop_tensors("token_embd.weight"))


# RoPE.
def scaling(word, *files, factor=2.0, kind=None):
    def change(m, o):
        m.put("*llama.rope.scaling.type", STRING, string(word))
        m.put("*llama.rope.scaling.factor", F32, f32(factor))
        m.put("*llama.rope.scaling.original_context_length", U32, u32(8))
        for f in files:
            m.small(f"rope_factors_{f}.weight", 4)
            m.data(f"rope_factors_{f}.weight", 0, f32(1.5) * 4)
            if kind is not None:
                m.kind(f"rope_factors_{f}.weight", kind)
    return change


seed("scaling_none", BASE, scaling("none"))
seed("scaling_linear", BASE, scaling("linear"))
seed("scaling_odd", BASE, scaling("dynamic"))
seed("longrope", BASE, scaling("longrope", "short", "long"))
seed("longrope_short", BASE, scaling("longrope", "short"))
seed("longrope_f16", BASE, scaling("longrope", "short", "long", kind=1))
seed("longrope_none", BASE, scaling("longrope"))


def temperature(m, o):
    m.arch("mistral3")
    m.put("*mistral3.attention.temperature_scale", F32, f32(0.1))
    m.put("*mistral3.rope.scaling.original_context_length", U32, u32(8))


seed("temperature", BASE, temperature)


def switch(m, o):
    m.arch("granite")
    m.put("*granite.rope.scaling.finetuned", BOOL, b"\0")
    m.put("*granite.residual_scale", F32, f32(0.5))


seed("granite_switch", BASE, switch)
for other in ("smollm3", "qwen3", "olmo2", "exaone4", "seed_oss", "nemotron", "granite", "dots1", "olmoe", "lfm2moe"):
    seed(f"as_{other}", BASE, lambda m, o: m.arch(other))


def fused_ffn(m, o):
    m.arch("phi3")
    for i in range(6):
        m.dim(f"blk.{i}.ffn_up.weight", 1, 96)
        m.drop_tensors(f"blk.{i}.ffn_gate.weight")


seed("phi3_fused", BASE, fused_ffn)

# Windows, heads of their own, embeddings of layers.
E = "arch_gemma4_e"
seed("no_pattern", E, lambda m, o: m.drop("sliding_window_pattern"))
seed("no_window", E, lambda m, o: m.drop("attention.sliding_window"))
key("shared_6", E, "attention.shared_kv_layers", U32, u32(6))
seed("no_ple", E, lambda m, o: m.drop_tensors("per_layer_token_embd.weight"))
seed("no_ple_proj", E, lambda m, o: m.drop_tensors("per_layer_model_proj.weight"))
seed("ple_shape", E, lambda m, o: m.dim("per_layer_token_embd.weight", 0, 111))
seed("ple_proj_shape", E, lambda m, o: m.dim("per_layer_model_proj.weight", 1, 111))
seed("out_scale_f16", E, lambda m, o: m.kind("blk.0.layer_output_scale.weight", 1))
seed("out_scale_inf", E, lambda m, o: m.data("blk.0.layer_output_scale.weight", 0, f32(float("inf"))))
key("v_is_not_k", "arch_gemma4_dense", "attention.value_length", U32, u32(8))
key("ple_odd", E, "embedding_length_per_layer_input", U32, u32(15))
seed("sigma", "arch_sigma")
seed("sigma_no_aug", "arch_sigma", lambda m, o: m.drop("aug_q_length"))
seed("sigma_no_v", "arch_sigma", lambda m, o: m.drop("head_count_v"))
seed("sigma_k_list", "arch_sigma", lambda m, o: m.put("attention.head_count_k", ARRAY, numbers(2, 4)))

# Recurrent layers.
R = "arch_qwen35"
key("gated_v", R, "attention.value_length", U32, u32(8))
key("recurrent_list", R, "*qwen35.attention.recurrent_layers", ARRAY, numbers(1, 1, 0, 1, 1, 0))
key("recurrent_all", R, "*qwen35.attention.recurrent_layers", ARRAY, numbers(1, 1, 1, 1, 1, 1))


def by_heads(m, o):
    m.drop("full_attention_interval")
    m.put("attention.head_count_kv", ARRAY, numbers(0, 0, 1, 0, 0, 1))


seed("recurrent_by_heads", R, by_heads)
key("delta_heads", R, "ssm.time_step_rank", U32, u32(5))
key("delta_dims", R, "ssm.state_size", U32, u32(20))
key("delta_inner", R, "ssm.inner_size", U32, u32(7))
key("delta_order", R, "*qwen35.ssm.v_head_reordered", BOOL, b"\0")
key("predictors_all", R, "nextn_predict_layers", U32, u32(6))
key("lfm2_no_queries", "arch_lfm2", "attention.head_count", U32, u32(0))
S = "arch_qwen3vl"
key("sections_one", S, "rope.dimension_sections", U32, u32(3))
key("sections_far", S, "rope.dimension_sections", ARRAY, numbers(3, 99999, 2, 0))
key("sections_none", S, "rope.dimension_sections", ARRAY, numbers(0, 4, 4, 0))

# Experts.
X = "arch_qwen2moe"


def little(m, o):
    m.put("qwen2moe.feed_forward_length", U32, u32(1))
    m.drop("expert_feed_forward_length")


def much(m, o):
    m.put("expert_feed_forward_length", U32, u32(2048))
    m.put("expert_shared_count", U32, u32(1000))


seed("experts_little", X, little)
seed("experts_shared_much", "arch_glm4moe", much)
seed("experts_shared_none", X, lambda m, o: m.drop("expert_shared_feed_forward_length"))
seed("experts_stack", X, lambda m, o: m.dim("blk.0.ffn_up_exps.weight", 2, 3))


def fused_experts(m, o):
    for i in range(2):
        m.copy(f"blk.{i}.ffn_up_exps.weight", f"blk.{i}.ffn_gate_up_exps.weight")
        m.dim(f"blk.{i}.ffn_gate_up_exps.weight", 1, 48)
        m.drop_tensors(f"blk.{i}.ffn_up_exps.weight", f"blk.{i}.ffn_gate_exps.weight")


for model in ("arch_granitemoe", X, "arch_qwen3moe"):
    seed(f"fused_{model}", model, fused_experts)
L = "arch_llama_moe"
for name, n, value, kind in (("ones", 5, 1.0, 0), ("two", 5, 2.0, 0), ("f16", 5, 1.0, 1), ("few", 2, 1.0, 0)):
    for model in (L, "arch_qwen3moe"):
        def factors(m, o):
            scale = "blk.0.ffn_up_exps.scale"
            m.small(scale, int(struct.unpack("<I", m.keys[m.key("expert_count")][2])[0]) if n == 5 else n)
            m.data(scale, 0, f32(value) * 8)
            m.kind(scale, kind)
        seed(f"factors_{name}_{model}", model, factors)


def router_factor(m, o):
    m.small("blk.0.ffn_gate_inp.scale", 1)
    m.data("blk.0.ffn_gate_inp.scale", 0, f32(2))


seed("factor_router", L, router_factor)
seed("norm_q8", BASE, lambda m, o: m.kind("blk.0.attn_norm.weight", 8))
seed("q_q8", BASE, lambda m, o: m.kind("blk.0.attn_q.weight", 8))
for kind in (1, 2, 3, 6, 7, 8, 20, 30, 39):
    seed(f"type_{kind}", BASE, lambda m, o: [m.kind(f"blk.0.attn_{w}.weight", kind) for w in "qkv"])

# Overlays.
W = "cache_swiftkv_2_3"
for model in (R, E, "arch_sigma_uneven", "arch_gemma3", "arch_gemma2", "arch_qwen3vl"):
    seed(f"swift_on_{model}", model, overlay=W)
seed("swift_shape", BASE, lambda m, o: o.dim("blk.2.attn_k_swiftkv.weight", 1, 12), overlay=W)
seed("swift_output_lacks", BASE, lambda m, o: o.drop_tensors("blk.4.attn_output_swiftkv.weight"), overlay=W + "_outputs")
seed("swift_replaces", BASE, lambda m, o: o.op(12, m.t("blk.0.attn_q.weight"), 19, b"blk.0.attn_q.weight"), overlay=W)
seed("swift_builds_on", BASE, lambda m, o: o.put("*pipit.overlay.builds_on", ARRAY, struct.pack("<IQ", 8, 1) + string("0" * 64)), overlay=W)
seed("swift_builds_wrong", BASE, lambda m, o: o.put("*pipit.overlay.builds_on", U32, u32(1)), overlay=W)
seed("swift_builds_none", BASE, lambda m, o: o.put("*pipit.overlay.builds_on", ARRAY, struct.pack("<IQ", 8, 0)), overlay=W)
seed("swift_other_base", BASE, lambda m, o: o.put("base_sha256", STRING, string("0" * 60)), overlay=W)


def deep_bias(m, o):
    for i in (2, 5):
        for w in "kv":
            o.small(f"blk.{i}.attn_{w}_swiftkv.bias", 8 if (i, w) == (2, "v") else 16, of="norm_swiftkv.weight")


def biased_qwen(m, o):
    deep_bias(m, o)
    for i in range(2, 6):
        o.small(f"blk.{i}.attn_q_swiftkv.bias", 32, of="norm_swiftkv.weight")


seed("swift_biases", BASE, biased_qwen, overlay=W)


def exit_head(rows, words=False):
    def change(m, o):
        o.copy("blk.2.attn_k_swiftkv.weight", "exit_head.weight")
        o.dim("exit_head.weight", 1, rows)
        o.copy("norm_swiftkv.weight", "exit_norm.weight")
        if words:
            o.put("*pipit.exit.words", ARRAY, numbers(*range(rows - 1)))
    return change


seed("exit_rows_1", BASE, exit_head(1), overlay=W)
seed("exit_no_words", BASE, exit_head(16), overlay=W)
seed("exit_16", BASE, exit_head(16, True), overlay=W)
for model in (R, "arch_qwen3moe", "arch_gemma3", "arch_sigma"):
    seed(f"skew_on_{model}", model, overlay="cache_skew")
for wide in ("cache_wide_2_2", "cache_wide_4_1"):
    seed(wide, BASE, overlay=wide)
    seed(f"{wide}_no_v", BASE, lambda m, o: o.drop("swiftkv.value_length"), overlay=wide)
    seed(f"{wide}_gemma", "arch_gemma3", overlay=wide)
    seed(f"{wide}_long", BASE, scaling("longrope", "short", "long"), overlay=wide)
    seed(f"{wide}_no_map", BASE, lambda m, o: o.drop_tensors(next(t for t in o.tensors if "q_map" in t)), overlay=wide)
    seed(f"{wide}_map_shape", BASE, lambda m, o: o.dim(next(t for t in o.tensors if "q_map" in t), 1, 79), overlay=wide)
    seed(f"{wide}_freqs", BASE, lambda m, o: o.dim(next(t for t in o.tensors if "freqs" in t), 0, 9), overlay=wide)


def ple_moves(m, o):
    o.op(12, m.t("per_layer_token_embd.weight"), 27, b"per_layer_token_embd.weight")
    m.drop_tensors("per_layer_token_embd.weight")


seed("ple_in_overlay", E, ple_moves, overlay="cache_skew")
seed("no_memory", BASE, overlay=W, tail=NO_MEMORY)
seed("no_memory_biases", "arch_qwen2", policy=1, tail=NO_MEMORY)
seed("no_memory_ple", E, policy=2, tail=NO_MEMORY)
seed("no_memory_wide", BASE, overlay="cache_wide_2_2", tail=NO_MEMORY)
seed("no_memory_exit", BASE, exit_head(16, True), overlay=W, tail=NO_MEMORY)
