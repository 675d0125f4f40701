# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's weights for training: from a GGUF (dequantised, the very numbers that the daemon runs) or a Hugging
Face folder. Llama-shaped models without biases.

Heads: a Llama GGUF keeps the rows of Q and K so that RoPE turns elements (2i, 2i + 1) of a head; Hugging Face and
ops.py turn (i, i + d/2). `to_halves` and `to_pairs` reorder rows between the two; Weights always holds halves."""

import dataclasses
import hashlib
import json
import pathlib

import numpy as np
import torch

GGUF_NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
              "down": "ffn_down", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}
HF_NAMES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm"}


def to_halves(w, dim):
    """Rows (heads * dim, ...) in pairs (2i, 2i + 1) to (i, i + dim / 2)."""
    return w.reshape(-1, dim // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def to_pairs(w, dim):
    return w.reshape(-1, 2, dim // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


@dataclasses.dataclass
class Weights:
    n_layers: int
    n_heads: int
    n_kv: int
    dim: int  # of a head
    n_embd: int
    eps: float
    theta: float
    embed: np.ndarray  # (vocabulary, n_embd) f32
    head: np.ndarray  # the same array when tied
    out_norm: np.ndarray
    layers: list  # of dict: the short names above to f32 arrays (out, in)
    sha256: str | None = None  # of the GGUF file


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def _refuse(what):
    raise SystemExit(f"distill: {what}")


def read_gguf(path):
    try:
        import gguf
    except ImportError as e:
        _refuse(f"needs the Python package gguf: {e}")
    try:
        r = gguf.GGUFReader(path)
    except (OSError, ValueError) as e:
        _refuse(f"{path}: {e}")
    get = lambda key, default=None: r.fields[key].contents() if key in r.fields else default
    arch = get("general.architecture")
    if arch != "llama":
        _refuse(f"{path}: architecture {arch!r} is not supported, llama is")
    if get("llama.rope.scaling.type", "none") != "none" or "llama.expert_count" in r.fields:
        _refuse(f"{path}: scaled RoPE and experts are not supported")
    if "pipit.swiftkv.num_key_value_layers" in r.fields:
        _refuse(f"{path}: already a SwiftKV model")
    t = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in r.tensors}
    odd = [n for n in t if n.endswith(".bias") or n == "rope_freqs.weight"]
    if odd:
        _refuse(f"{path}: tensor {odd[0]} is not supported")
    heads = get("llama.attention.head_count")
    embd = get("llama.embedding_length")
    dim = get("llama.attention.key_length", embd // heads)
    layers = []
    for i in range(get("llama.block_count")):
        layer = {short: t[f"blk.{i}.{name}.weight"] for short, name in GGUF_NAMES.items()}
        layer["q"], layer["k"] = to_halves(layer["q"], dim), to_halves(layer["k"], dim)
        layers.append(layer)
    embed = t["token_embd.weight"]
    return Weights(len(layers), heads, get("llama.attention.head_count_kv", heads), dim, embd,
                   get("llama.attention.layer_norm_rms_epsilon"), get("llama.rope.freq_base", 10000.0), embed,
                   t.get("output.weight", embed), t["output_norm.weight"], layers, sha256(path))


def read_hf(folder):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    if config.get("architectures") != ["LlamaForCausalLM"]:
        _refuse(f"{folder}: architecture {config.get('architectures')} is not supported, LlamaForCausalLM is")
    if config.get("rope_scaling") or config.get("attention_bias") or config.get("mlp_bias"):
        _refuse(f"{folder}: scaled RoPE and biases are not supported")
    from safetensors import safe_open
    t = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as f:
            t.update({name: f.get_tensor(name).float().numpy() for name in f.keys()})
    heads = config["num_attention_heads"]
    layers = [{short: t[f"model.layers.{i}.{name}.weight"] for short, name in HF_NAMES.items()}
              for i in range(config["num_hidden_layers"])]
    embed = t["model.embed_tokens.weight"]
    rope = config.get("rope_parameters") or {}
    return Weights(len(layers), heads, config.get("num_key_value_heads") or heads,
                   config.get("head_dim") or config["hidden_size"] // heads, config["hidden_size"],
                   config["rms_norm_eps"], config.get("rope_theta") or rope.get("rope_theta", 10000.0), embed,
                   embed if config.get("tie_word_embeddings") else t["lm_head.weight"], t["model.norm.weight"], layers)


def read(path):
    return read_hf(path) if pathlib.Path(path).is_dir() else read_gguf(path)


def tensor(a, device, dtype):
    return torch.from_numpy(np.ascontiguousarray(a)).to(device=device, dtype=dtype)
