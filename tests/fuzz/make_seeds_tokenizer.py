#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_tokenizer and fuzz_vocabulary.

    make_seeds_tokenizer.py SEEDS_DIR
"""

import pathlib
import struct
import sys

root = pathlib.Path(sys.argv[1])

# ---- fuzz_tokenizer: one byte that says what, then a text ---------------------------------------

TEXTS = {
    "prose": "Hello hello, user's 123 users!\r\n\n  \u3000x'LL".encode(),
    "markers": b"</s><s><unk><0x41><|im_end|>\n<|im_start|>system<x><x><x>x><",
    "broken": b"\xe2\x96\x81\xe2\x96\xff\xf0\x9f\xa6\x99\xc0\x80 \xed\xa0\x80ab",
    "spaces": b"  <  ab\xe2\x96\x81 <x> <x>  ",
}
for name, text in TEXTS.items():
    for bit in (0, 1):
        for mode, label in ((0, "encode"), (1, "special"), (5, "render")):
            (root / "tokenizer" / f"{label}_{name}_{bit}").write_bytes(bytes([mode << 1 | bit]) + text)
(root / "tokenizer" / "decode").write_bytes(bytes([2 << 1 | 1]) + bytes(range(256)) + struct.pack("<4h", -1, -300, 270, 275))
(root / "tokenizer" / "stop").write_bytes(bytes([3 << 1]) + b"abab\xffba\xffb\xc3\xa4\xffUser:\xffabaabab")
TEMPLATES = {
    "chatml": b"{{'<|im_start|>system\\nBe\\'kind<|im_end|>'}}<|im_start|>{{content | trim}}<|im_end|>",
    "llama3": b"{{bos_token}}<|start_header_id|>x<|end_header_id|><|eot_id|>Cutting Knowledge Date: December 202326 Jul 2024",
    "gemma": b"<start_of_turn>user\n{{ content | trim }}<end_of_turn>",
    "unknown": b"[INST] {{ content }} [/INST]",
    "cut": b"<|im_end|><|im_start|>system\n",
}
for name, text in TEMPLATES.items():
    (root / "tokenizer" / f"template_{name}").write_bytes(bytes([4 << 1]) + text)

# ---- fuzz_vocabulary: small GGUF files ----------------------------------------------------------


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def key(name, kind, value):
    return text("tokenizer." + name) + struct.pack("<I", kind) + value


def strings(name, values):
    return key(name, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))


def numbers(name, code, kind, values):
    return key(name, 9, struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}{code}", *values))


def number(name, value):
    return key(name, 4, struct.pack("<I", value))


def write(name, keys):
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(keys)
    (root / "vocabulary" / name).write_bytes(out + bytes(-len(out) % 32))


SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = [chr(b) for b in SHOWN] + [chr(256 + i) for i in range(256 - len(SHOWN))]
MARKERS = ["<|im_start|>", "<|im_end|>", "<|mine|>"]


def bpe(pre="gpt-2", merges=("h e", "l l", "he ll"), extra=(), bos=259, kinds=None):
    tokens = LETTERS + ["he", "ll", "hell"] + MARKERS + list(extra)
    kinds = kinds if kinds is not None else [1] * 259 + [3, 3, 4] + [1] * len(extra)
    return [key("ggml.model", 8, text("gpt2")), key("ggml.pre", 8, text(pre)), strings("ggml.tokens", tokens),
            numbers("ggml.token_type", "i", 5, kinds), strings("ggml.merges", merges),
            number("ggml.bos_token_id", bos), number("ggml.eos_token_id", 260),
            key("chat_template", 8, text("{{'<|im_start|>system\\nx<|im_end|>'}}"))]


def spm(scores=None, kinds=None):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "h", "e", "he", "\u2581he", "<x>"]
    kinds = kinds or [2, 3, 3] + [6] * 256 + [1] * 5 + [4]
    scores = scores or [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0, 0.0]
    return [key("ggml.model", 8, text("llama")), strings("ggml.tokens", tokens),
            numbers("ggml.token_type", "i", 5, kinds), numbers("ggml.scores", "f", 6, scores),
            number("ggml.bos_token_id", 1), number("ggml.eos_token_id", 2)]


write("bpe", bpe())
for pre in ("smollm", "llama-bpe", "qwen2", "default", "unknown"):
    write(f"bpe_{pre}", bpe(pre))
write("bpe_merge_unknown", bpe(merges=["q z"]))
write("bpe_merge_twice", bpe(merges=["h e", "h e"]))
write("bpe_merge_no_gap", bpe(merges=["he"]))
write("bpe_twice", bpe(extra=["he"]))
write("bpe_odd_tokens", bpe(extra=["", b"\xff\xc4", "a b", "x" * 4096]))
write("bpe_kinds_short", bpe(kinds=[1, 2]))
write("bpe_bos_far", bpe(bos=1 << 20))
write("spm", spm())
write("spm_nan", spm(scores=[float("nan")] * 265))
write("spm_no_bytes", spm(kinds=[1] * 265))
write("spm_all_bytes", spm(kinds=[6] * 265))
