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


def seed(name, make, mode, body, fail=False):
    """`fail`: every allocation fails in turn (fail.h)."""
    head = bytes([make & 1 | mode << 1 | (make & 30) << 3])
    (root / "tokenizer" / name).write_bytes(head + body + (b"\xffF\0\0" if fail else b""))


# The vocabularies are fuzz_tokenizer.c's `makes`.
MIXED = ("Hello WORLDs' it's 1234567 12\u0663\u06634 3.5\r\n\n  \u6f22\u5b57\u304b\u306a \uac00 \u0e01 x=y/ z\t\t "
         "\u00c4\u00e4\u0300 'LL \u2019").encode()
for make in range(16):
    seed(f"pre_{make}", make, 0, MIXED)
UNIGRAM = b"  abcab aa\tbcbc ca xxyAz\xc3\xa6\xff\xe2\x96\x81zz user<x> </s>\n\n"
for make in 16, 17:
    seed(f"unigram_{make}", make, 0, UNIGRAM)
    seed(f"unigram_special_{make}", make, 1, UNIGRAM)
    seed(f"unigram_no_memory_{make}", make, 0, b"ab z x", True)
    seed(f"unigram_load_no_memory_{make}", make, 7, b"-ab", True)
    seed(f"unigram_render_{make}", make, 5, b"hello ab c")
MAP = struct.pack("<3I", 8, 97 << 10, 0) + b"b\0"
for name, body in {"map": b"c" + bytes([len(MAP)]) + MAP + b"-ab", "map_short": b"c\x02ab-", "map_large": b"c\x09\xff\xff\xff\xffabcde-",
                   "scores_none": b"S\0-ab", "scores_nan": b"s\x05\0\1-", "no_bytes": b"k\x05\0\1-ab"}.items():
    seed(f"unigram_{name}", 16, 7, body)
seed("lines", 3, 0, b"a\n\n\n\nbc abc\n\xc3\xa4\xff  a")
seed("encode_no_memory", 1, 0, b"ab ab " * 20, True)
seed("encode_no_memory_bpe", 0, 1, b"hello user<|im_end|>" + b"he" * 70, True)
seed("render_no_memory", 0, 5, b"hello", True)
seed("stop_empty", 0, 3, b"a\xff\xffb")
seed("stop_broken", 0, 3, b"\xc3\xffb")
seed("stop_none", 0, 3, b"abc")
seed("stop_long", 0, 3, b"a" * 300 + b"\xffb")
seed("stop_many", 0, 3, b"a\xff" * 40)
TOOLS = b'[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}, {"name": "g"}]'
CALLS = b'\xff{"a": 1, "<|im_end|>": [2.5, null, true, "\\u0000"]}\xff\xfff\xffid\xffI think\xffsaid'
seed("tools", 0, 6, TOOLS + CALLS)
seed("tools_no_memory", 0, 6, TOOLS + CALLS, True)
seed("tools_spm", 1, 6, TOOLS + CALLS)
for i, bad in enumerate([b"{", b"[]", b"[{}]", b"[1]", b'{"name": "f"}', b'[{"function": {"name": ""}}]']):
    seed(f"tools_bad_{i}", 0, 6, bad + CALLS)
seed("calls_bad", 0, 6, TOOLS + b"\xff{]\xff{}\xfff\xff\xff\xffx")
seed("calls_list", 0, 6, TOOLS + b"\xff[1]\xff{}\xfff\xff\xff\xffx")
seed("calls_nothing_said", 0, 6, TOOLS + b"\xff{}\xff{}\xfff\xff\xff\xff")


def named(what, text):
    return what + bytes([len(text)]) + text


for name, make, changes in (
        ("merge_unknown", 0, named(b"m", b"q zz")), ("merge_no_gap", 0, named(b"m", b"he")),
        ("merge_no_result", 0, named(b"m", b"z q")), ("merge_left", 0, named(b"m", b"zz q")),
        ("merge_twice", 0, named(b"m", b"h e")), ("merge_gap_first", 0, named(b"m", b" e")),
        ("merge_letters", 0, named(b"m", b"\xf0\x9f\xa6\x99 e")), ("no_merges", 0, b"M"),
        ("merge_gemma4", 3, named(b"m", b"q\xe2\x96\x81 ")), ("kind", 0, b"k\x41\0\5"),
        ("pre_unknown", 0, named(b"p", b"unknown")), ("token", 0, named(b"t", b"userhello") + b"\1"),
        ("score_nan", 1, b"s\5\0\1"), ("score", 1, b"s\x05\1\0"), ("no_scores", 1, b"S\0"),
        ("few_scores", 1, b"S\5"), ("no_byte", 1, b"k\x20\0\1"), ("no_byte_gemma4", 3, b"k\x20\0\1")):
    seed(f"load_{name}", make, 7, changes + b"\0hello user A ab")
for make in (0, 1, 3, 4):
    seed(f"load_no_memory_{make}", make, 7, named(b"m", b"o w") * (make == 0) + b"\0hello", True)

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
