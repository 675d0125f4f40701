# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder (config.json, safetensors, tokenizer) to GGUF."""
import os

from . import models, shards, vocab
from .output import FILE_TYPES, ConvertError, Output


def add_rope(out, p, arch):
    w = out.writer
    base, local, kind, scaling = models.rope_settings(p)
    w.add_rope_dimension_count(p.head)
    w.add_rope_freq_base(base)
    if arch.name == "gemma3" and local:
        w.add_float32(f"{arch.name}.rope.freq_base_swa", float(local))
    if kind == "llama3":
        factors = models.llama3_factors(base, p.head, scaling, p.path)

        def make():
            import numpy as np

            return np.array(factors, np.float32)
        out.tensor("rope_freqs.weight", (len(factors),), make)
    elif kind == "linear":
        w.add_rope_scaling_type(out.gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(float(scaling["factor"]))
    elif kind == "yarn":
        w.add_rope_scaling_type(out.gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(float(scaling["factor"]))
        w.add_rope_scaling_orig_ctx_len(int(scaling.get("original_max_position_embeddings", p.n_ctx)))
    elif kind != "default":
        raise ConvertError(f"{p.path}: rope scaling '{kind}' is not known (known: linear, llama3, yarn)")


def add_hparams(out, p, arch):
    w = out.writer
    w.add_context_length(p.n_ctx)
    w.add_embedding_length(p.n_embd)
    w.add_block_count(p.n_layers)
    w.add_feed_forward_length(p.n_ff)
    w.add_head_count(p.n_q)
    w.add_head_count_kv(p.n_kv)
    w.add_key_length(p.head)
    w.add_value_length(p.head)
    w.add_layer_norm_rms_eps(float(p.eps))
    w.add_vocab_size(p.n_vocab)
    add_rope(out, p, arch)
    if arch.name == "gemma3":
        w.add_sliding_window(p.whole("sliding_window", 1 << 24))
        period = models.window_period(p)
        if period not in (None, 6):
            w.add_uint32(f"{arch.name}.attention.sliding_window_pattern", int(period))
        scalar = p.config.get("query_pre_attn_scalar", p.head)
        if scalar != p.head:
            w.add_float32(f"{arch.name}.attention.scale", float(scalar) ** -0.5)
        for key, name in (("final_logit_softcapping", "final_logit_softcapping"),
                          ("attn_logit_softcapping", "attn_logit_softcapping")):
            if p.config.get(key):
                w.add_float32(f"{arch.name}.{name}", float(p.config[key]))
    elif p.config.get("use_sliding_window") and p.config.get("sliding_window"):
        raise ConvertError(f"{p.path}: a sliding window in architecture {arch.name} is not offered")
    if p.swift_layers is not None:
        w.add_uint32("pipit.swiftkv.num_key_value_layers", p.swift_layers)
        if p.swift_sizes is None:
            w.add_uint32("pipit.swiftkv.key_value_group_size", p.swift_group)
        else:
            w.add_array("pipit.swiftkv.key_value_group_sizes", p.swift_sizes)


def check_activation(p, arch):
    wanted = "gelu_pytorch_tanh" if arch.name == "gemma3" else "silu"
    name = p.config.get("hidden_activation") or p.config.get("hidden_act") or wanted
    if name != wanted:
        raise ConvertError(f"{p.path}: activation '{name}'; architecture {arch.name} has {wanted}")


def convert(folder, out_path, type_name, name):
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        raise ConvertError(f"{path}: no such file; a Hugging Face folder has one")
    config = shards.read_json(path)
    if not isinstance(config, dict):
        raise ConvertError(f"{path}: no JSON object")
    if config.get("quantization_config"):
        raise ConvertError(f"{path}: the checkpoint is quantised; convert the original one")
    arch = models.find_arch(config, path)
    p = models.Params(config, path)
    check_activation(p, arch)
    tensors = shards.read_folder(folder)

    out = Output(out_path, arch.name, type_name)
    out.writer.add_name(name or os.path.basename(os.path.abspath(folder)))
    out.writer.add_file_type(FILE_TYPES[type_name])
    add_hparams(out, p, arch)
    models.Mapper(tensors, p, arch, out).run()
    vocab.add(out, folder, p.n_vocab)
    out.write()
