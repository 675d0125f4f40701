# SPDX-License-Identifier: Apache-2.0
"""llama2.c's legacy checkpoint (seven int32, then F32 weights) and its tokenizer file to GGUF.

The checkpoint's layout, in order: token embedding (vocab, dim); for all layers at once each of
attention norm, wq, wk, wv, wo, ffn norm, w1, w2, w3; the final norm; two tables of RoPE values
that nobody reads any more; and a head of its own when the vocabulary's size is negative. Its rows
are already in the order of interleaved RoPE (pairs 2i, 2i+1), which is what GGUF's llama means.

The tokenizer file: the longest token's length, then for each token score, length, bytes, with
plain spaces where SentencePiece has U+2581.
"""
import os
import struct

from .output import FILE_TYPES, ConvertError, Output

HEADER = struct.Struct("<7i")
MAGIC_V1 = 0x616B3432  # "ak42": the later, versioned export
LIMIT = 1 << 24

TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 1, 2, 3, 6


def read_header(path, f):
    raw = f.read(HEADER.size)
    if len(raw) < HEADER.size:
        raise ConvertError(f"{path}: shorter than a llama2.c header")
    dim, hidden, layers, heads, kv_heads, vocab, ctx = HEADER.unpack(raw)
    if dim == MAGIC_V1:
        raise ConvertError(f"{path}: a versioned llama2.c export; only the legacy form (version 0) is read")
    numbers = {"dim": dim, "hidden_dim": hidden, "n_layers": layers, "n_heads": heads,
               "n_kv_heads": kv_heads, "vocab_size": abs(vocab), "seq_len": ctx}
    for name, n in numbers.items():
        if not 0 < n <= LIMIT:
            raise ConvertError(f"{path}: {name} is {n}; a llama2.c header has 1 to {LIMIT} there")
    if dim % heads or heads % kv_heads or (dim // heads) % 2:
        raise ConvertError(f"{path}: dim {dim}, {heads} heads and {kv_heads} KV heads do not divide evenly")
    return {**numbers, "tied": vocab > 0}


def read_tokenizer(path, n_vocab):
    """tokens (bytes, U+2581 for spaces), scores, types."""
    tokens, scores, types = [], [], []
    with open(path, "rb") as f:
        data = f.read()
    pos = 4
    for i in range(n_vocab):
        if pos + 8 > len(data):
            raise ConvertError(f"{path}: ends after {i} of {n_vocab} tokens")
        score, n = struct.unpack_from("<fi", data, pos)
        pos += 8
        if n < 0 or n > len(data) - pos:
            raise ConvertError(f"{path}: token {i} has a length of {n}")
        text = data[pos:pos + n]
        pos += n
        kind = TYPE_NORMAL
        if i == 0:
            text, kind = b"<unk>", TYPE_UNKNOWN
        elif i in (1, 2):
            text, kind = (b"<s>", b"</s>")[i - 1], TYPE_CONTROL
        elif i < 259 and text == b"<0x%02X>" % (i - 3):
            kind = TYPE_BYTE
        tokens.append(text if kind != TYPE_NORMAL else text.replace(b" ", "\u2581".encode()))
        scores.append(score)
        types.append(kind)
    return tokens, scores, types


def convert(path, out_path, type_name, tokenizer, name):
    import numpy as np

    tokenizer = tokenizer or os.path.join(os.path.dirname(path) or ".", "tokenizer.bin")
    with open(path, "rb") as f:
        h = read_header(path, f)
    dim, hidden, layers = h["dim"], h["hidden_dim"], h["n_layers"]
    head = dim // h["n_heads"]
    kv_dim = head * h["n_kv_heads"]
    vocab = h["vocab_size"]
    parts = [("embed", (vocab, dim)), ("attn_norm", (layers, dim)), ("attn_q", (layers, dim, dim)),
             ("attn_k", (layers, kv_dim, dim)), ("attn_v", (layers, kv_dim, dim)),
             ("attn_output", (layers, dim, dim)), ("ffn_norm", (layers, dim)),
             ("ffn_gate", (layers, hidden, dim)), ("ffn_down", (layers, dim, hidden)),
             ("ffn_up", (layers, hidden, dim)), ("norm", (dim,)),
             ("rope", (2, h["seq_len"], head // 2))]
    if not h["tied"]:
        parts.append(("head", (vocab, dim)))
    wanted = HEADER.size + 4 * sum(int(np.prod(s, dtype=object)) for _, s in parts)
    size = os.path.getsize(path)
    if size != wanted:
        raise ConvertError(f"{path}: {size} bytes; its header asks for {wanted}")
    weights, pos = {}, HEADER.size
    for part, shape in parts:
        weights[part] = np.memmap(path, "<f4", "r", pos, shape)
        pos += weights[part].nbytes
    tokens, scores, types = read_tokenizer(tokenizer, vocab)

    out = Output(out_path, "llama", type_name)
    w = out.writer
    w.add_name(name or os.path.splitext(os.path.basename(path))[0])
    w.add_file_type(FILE_TYPES[type_name])
    w.add_context_length(h["seq_len"])
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(h["n_heads"])
    w.add_head_count_kv(h["n_kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)

    out.tensor("token_embd.weight", (vocab, dim), lambda: weights["embed"])
    for i in range(layers):
        for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate",
                     "ffn_down", "ffn_up"):
            a = weights[part][i]
            out.tensor(f"blk.{i}.{part}.weight", a.shape, lambda a=a: a)
    out.tensor("output_norm.weight", (dim,), lambda: weights["norm"])
    if not h["tied"]:
        out.tensor("output.weight", (vocab, dim), lambda: weights["head"])
    out.write()
