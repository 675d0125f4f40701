# SPDX-License-Identifier: Apache-2.0
"""A trained Model as GGUF of architecture `sigma`, f32, which pipitd loads. Its tokenizer is bytes as GPT-2 spells them; GGUF
has no empty array, so there is one merge, of the bytes 0 and 1."""

import os

import numpy as np

from model import EOT, EPS, THETA, VOCAB

NAMES = {
    "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "q_gate": "attn_q_gate",
    "q_up": "attn_q_up", "q_down": "attn_q_down", "ffn_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up",
    "down": "ffn_down",
}


def byte_names():
    """How GPT-2 spells a byte: printable ones as themselves, the others from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
    other = iter(range(256))
    return [chr(b) if b in plain else chr(256 + next(other)) for b in range(256)]


def tensors(model):
    """name -> f32 array, as GGUF has them."""
    ret = {"token_embd.weight": model.embed.weight, "output_norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        ret.update({f"blk.{i}.{NAMES[name.split('.')[0]]}.weight": p for name, p in layer.named_parameters()})
    return {name: p.detach().float().cpu().numpy().astype(np.float32) for name, p in ret.items()}


def write(path, model, name, ctx):
    """Whole or not at all."""
    import gguf
    s = model.s
    tmp = f"{path}.tmp"
    g = gguf.GGUFWriter(tmp, "sigma")
    g.add_name(name)
    g.add_block_count(s.layers)
    g.add_context_length(ctx)
    g.add_embedding_length(s.hidden)
    g.add_feed_forward_length(s.ffn)
    g.add_head_count(s.n_q)
    g.add_key_length(s.dim)
    g.add_value_length(s.dim)
    g.add_layer_norm_rms_eps(EPS)
    g.add_rope_freq_base(THETA)
    for key, value in (("head_count_k", s.n_k), ("head_count_v", s.n_v), ("aug_q_length", s.aug)):
        g.add_uint32(f"sigma.attention.{key}", value)
    names = byte_names()
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-2")
    g.add_token_list(names + ["<|endoftext|>", names[0] + names[1]])
    g.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL, gguf.TokenType.NORMAL])
    g.add_token_merges([f"{names[0]} {names[1]}"])
    g.add_eos_token_id(EOT)
    g.add_bos_token_id(EOT)
    g.add_add_bos_token(False)
    assert len(names) + 2 == VOCAB
    for key, a in tensors(model).items():
        g.add_tensor(key, a)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()
    os.replace(tmp, path)
