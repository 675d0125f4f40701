#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of the architectures: tiny random models of the `transformers` package (PyPI), float32, written as
GGUF with the package `gguf`, and the logits that `transformers` gives for a random text.

    make_arch_vectors.py OUT-FOLDER

Writes arch_NAME.gguf and arch_NAME.vec. A .vec file: "PARC", int32 n_tokens, first, n_vocab; int32 ids (n_tokens);
f32 logits (n_tokens - first, n_vocab) of the positions from `first` on. tests/golden/test_arch.c reads them."""

import struct
import sys

import gguf
import numpy as np
import torch
import transformers as tf

VOCAB = 96


def permuted(w, n_heads):
    """GGUF's llama keeps rows so that RoPE turns pairs (2i, 2i + 1)."""
    rows, cols = w.shape
    return w.reshape(n_heads, 2, rows // n_heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensors(arch, config, model):
    """(GGUF name, array) of every tensor."""
    names = {**NAMES, **(GEMMA if arch == "gemma3" else {})}
    for name, t in model.state_dict().items():
        w = t.detach().numpy().astype(np.float32)
        if arch == "gemma3" and "norm" in name:
            w = w + 1
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", w
        elif name == "model.norm.weight":
            yield "output_norm.weight", w
        elif name == "lm_head.weight":
            if not config.tie_word_embeddings:
                yield "output.weight", w
        else:
            _, _, layer, rest = name.split(".", 3)
            stem, kind = rest.rsplit(".", 1)
            if arch == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads
                w = permuted(w.reshape(len(w), -1), heads).reshape(w.shape)
            yield f"blk.{layer}.{names[stem]}.{kind}", w


def llama3_factors(config, rope):
    """What divides the frequencies: the converter's formula, from the published description."""
    dim = config.head_dim
    freqs = 1.0 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    old = rope["original_max_position_embeddings"]
    low, high = old / rope["low_freq_factor"], old / rope["high_freq_factor"]
    out = []
    for f in freqs:
        wave = 2 * np.pi / f
        if wave < high:
            out.append(1.0)
        elif wave > low:
            out.append(rope["factor"])
        else:
            smooth = (old / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1.0 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write_gguf(path, arch, config, model, rope):
    w = gguf.GGUFWriter(path, arch)
    w.add_name("tiny random " + arch)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_key_length(config.head_dim)
    w.add_value_length(config.head_dim)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        w.add_string(f"{arch}.rope.scaling.type", rope["rope_type"])
        w.add_float32(f"{arch}.rope.scaling.factor", rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_uint32(f"{arch}.rope.scaling.original_context_length", rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(config, rope))
    if arch == "gemma3":
        w.add_sliding_window(config.sliding_window)
    for name, t in tensors(arch, config, model):
        w.add_tensor(name, t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(out, name, arch, klass, config, n_tokens, first, rope, seed):
    torch.manual_seed(seed)
    model = klass(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            one = 1.0 if "norm" in key and arch != "gemma3" else 0.0
            # Large enough that attention is far from uniform, small enough to stay finite.
            p.copy_(one + torch.randn_like(p) * (0.1 if p.ndim == 1 else 0.5 / p.shape[-1] ** 0.5 * 2))
        ids = torch.randint(0, VOCAB, (1, n_tokens))
        logits = model(ids).logits[0, first:].float().numpy()
    assert np.isfinite(logits).all()
    write_gguf(f"{out}/arch_{name}.gguf", arch, config, model, rope)
    with open(f"{out}/arch_{name}.vec", "wb") as f:
        f.write(b"PARC" + struct.pack("<3i", n_tokens, first, VOCAB))
        f.write(ids.numpy().astype("<i4").tobytes())
        f.write(logits.astype("<f4").tobytes())
    print(name, "largest logit", abs(logits).max(), "mean entropy", float(
        -(torch.log_softmax(torch.tensor(logits), -1).exp() * torch.log_softmax(torch.tensor(logits), -1)).sum(-1).mean()))


def main(out):
    base = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, head_dim=16, max_position_embeddings=1024, rms_norm_eps=1e-5,
                attention_dropout=0.0, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    linear = {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}
    make(out, "llama", "llama", tf.LlamaForCausalLM,
         tf.LlamaConfig(**base, rope_parameters=plain, tie_word_embeddings=False), 96, 0, plain, 1)
    make(out, "llama3", "llama", tf.LlamaForCausalLM,
         tf.LlamaConfig(**base, rope_parameters=llama3, tie_word_embeddings=True), 200, 136, llama3, 2)
    make(out, "qwen2", "qwen2", tf.Qwen2ForCausalLM,
         tf.Qwen2Config(**{**base, "head_dim": 12}, rope_parameters=plain, tie_word_embeddings=True), 96, 0, plain, 3)
    make(out, "qwen2_yarn", "qwen2", tf.Qwen2ForCausalLM,
         tf.Qwen2Config(**{**base, "head_dim": 12}, rope_parameters=yarn, tie_word_embeddings=False), 200, 136, yarn, 4)
    make(out, "qwen3", "qwen3", tf.Qwen3ForCausalLM,
         tf.Qwen3Config(**base, rope_parameters=plain, tie_word_embeddings=False), 96, 0, plain, 5)
    gemma = {**base, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7, "num_attention_heads": 2,
             "num_key_value_heads": 1}
    # 700 tokens: the sliding layers' ring of window + chunk slots has wrapped.
    make(out, "gemma3", "gemma3", tf.Gemma3ForCausalLM,
         tf.Gemma3TextConfig(**gemma, sliding_window=24, query_pre_attn_scalar=16, tie_word_embeddings=True,
                             hidden_activation="gelu_pytorch_tanh",
                             rope_parameters={"full_attention": linear,
                                              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
         700, 640, linear, 6)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
