# SPDX-License-Identifier: Apache-2.0
"""A model that says what a test wrote down. Embeddings are unit vectors, attention and feed-forward
are zero, so the hidden state is the last token's own, and a row of the output matrix for each token
names the one token that it follows. Each token thus has one successor: a script is a chain of tokens,
the first of which the template puts at the prompt's end. For tests of what reads answers."""
import struct

NORMAL, CONTROL, USER = 1, 3, 4
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def _string(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name, kind, value):
    return _string(name) + struct.pack("<I", kind) + value


def _array(kind, values):
    packed = b"".join(_string(v) if kind == STRING else struct.pack("<i", v) for v in values)
    return struct.pack("<IQ", kind, len(values)) + packed


def _letters():
    """Byte to its letter in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def write(path, chains, template):
    """chains: lists of (text, kind), a text only once in all of them."""
    letters = _letters()
    tokens, kinds = [letters[b] for b in range(256)], [NORMAL] * 256
    follows = {}
    for chain in chains:
        before = None
        for text, kind in chain:
            spelt = text if kind != NORMAL else "".join(letters[b] for b in text.encode())
            if spelt not in tokens[256:]:
                tokens.append(spelt)
                kinds.append(kind)
            at = 256 + tokens[256:].index(spelt)
            if before is not None:
                assert follows.setdefault(before, at) == at, text
            before = at
    n = len(tokens)
    width = -(-n // 64) * 64
    keys = [_key("general.architecture", STRING, _string("llama")), _key("general.name", STRING, _string("Scripted")),
            *[_key("llama." + k, U32, struct.pack("<I", v)) for k, v in (
                ("context_length", 2048), ("embedding_length", width), ("block_count", 1), ("feed_forward_length", 64),
                ("attention.head_count", width // 64), ("attention.head_count_kv", width // 64))],
            _key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
            _key("tokenizer.ggml.model", STRING, _string("gpt2")), _key("tokenizer.ggml.pre", STRING, _string("default")),
            _key("tokenizer.ggml.tokens", ARRAY, _array(STRING, tokens)),
            _key("tokenizer.ggml.token_type", ARRAY, _array(I32, kinds)),
            _key("tokenizer.ggml.merges", ARRAY, _array(STRING, [])),
            _key("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", tokens.index("<|im_end|>"))),
            _key("tokenizer.chat_template", STRING, _string(template))]

    def unit(rows):
        row = bytearray(width * n * 4)
        for at, column in rows:
            struct.pack_into("<f", row, (at * width + column) * 4, 1.0)
        return bytes(row)

    def zeros(*dims):
        return b"\0" * (4 * dims[0] * dims[1])

    ones = struct.pack("<f", 1.0) * width
    tensors = [("token_embd.weight", (width, n), unit((i, i) for i in range(n))), ("output_norm.weight", (width,), ones),
               ("output.weight", (width, n), unit((after, before) for before, after in follows.items())),
               ("blk.0.attn_norm.weight", (width,), ones), ("blk.0.ffn_norm.weight", (width,), ones),
               *[(f"blk.0.attn_{x}.weight", (width, width), zeros(width, width)) for x in ("q", "k", "v", "output")],
               ("blk.0.ffn_gate.weight", (width, 64), zeros(width, 64)), ("blk.0.ffn_up.weight", (width, 64), zeros(width, 64)),
               ("blk.0.ffn_down.weight", (64, width), zeros(64, width))]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    offset = 0
    for name, dims, data in tensors:
        head += _string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", 0, offset)
        offset += len(data)
        assert offset % 32 == 0
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32))
        for _, _, data in tensors:
            f.write(data)
