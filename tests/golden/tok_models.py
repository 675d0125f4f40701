# SPDX-License-Identifier: Apache-2.0
"""Tokenizers by other hands, for comparing: byte-level BPE by the package `tokenizers`, built from a
GGUF's own vocabulary and merges; SentencePiece's BPE straight from its definition, slowly."""

import os
import pathlib
import struct

import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

ENDINGS = r"'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = ENDINGS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:" + ENDINGS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def plain_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def pre_tokenizer(name):
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name == "llama-bpe":
        return pre_tokenizers.Sequence([split(LLAMA3 % r"\p{N}{1,3}"), plain_bytes()])
    if name == "qwen2":
        return pre_tokenizers.Sequence([split(LLAMA3 % r"\p{N}"), plain_bytes()])
    if name == "default":
        return pre_tokenizers.Sequence([split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"),
                                        split(r"[0-9][0-9][0-9]"), plain_bytes()])
    raise ValueError(name)


class Vocabulary:
    """What a GGUF says about its tokenizer."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields

        def value(key):
            return fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else None

        self.tokens, self.kinds = value("tokens"), value("token_type")
        self.merges, self.scores, self.pre = value("merges"), value("scores"), value("pre")


def byte_letters():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


class Bpe:
    def __init__(self, vocabulary, pre):
        v = vocabulary
        plain = {t: i for i, t in enumerate(v.tokens) if v.kinds[i] == 1}
        merges = [tuple(m.split(" ")) for m in v.merges]
        self.missing = {b for b, letter in byte_letters().items() if letter not in plain}
        self.tokenizer = Tokenizer(models.BPE(vocab=plain, merges=merges, ignore_merges=pre == "llama-bpe"))
        self.tokenizer.pre_tokenizer = pre_tokenizer(pre)

    def can_spell(self, text):
        return not self.missing.intersection(text.encode())

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Spm:
    """Best pair first, looked for anew after each merge."""

    def __init__(self, vocabulary):
        v = vocabulary
        self.ids = {t: i for i, t in enumerate(v.tokens) if v.kinds[i] in (1, 4, 5)}
        self.bytes = {int(t[3:5], 16): i for i, t in enumerate(v.tokens) if v.kinds[i] == 6}
        self.scores = v.scores

    def can_spell(self, text):
        return "\u2581" not in text

    def encode(self, text):
        if not text:
            return []
        parts = list((" " + text).replace(" ", "\u2581"))
        while True:
            best = None
            for i in range(len(parts) - 1):
                token = self.ids.get(parts[i] + parts[i + 1])
                if token is not None and (best is None or self.scores[token] > best[0]):
                    best = (self.scores[token], i)
            if best is None:
                break
            parts[best[1]:best[1] + 2] = ["".join(parts[best[1]:best[1] + 2])]
        out = []
        for part in parts:
            out += [self.ids[part]] if part in self.ids else [self.bytes[b] for b in part.encode()]
        return out


def with_pre(path, name, target):
    """Copies a GGUF that has no tensors, with another name in tokenizer.ggml.pre."""
    raw = pathlib.Path(path).read_bytes()
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = raw.index(key) + len(key)
    (size,) = struct.unpack_from("<Q", raw, at)
    pathlib.Path(target).write_bytes(raw[:at] + struct.pack("<Q", len(name)) + name.encode() + raw[at + 8 + size:])


def sources(root):
    """(name, GGUF or None, pre-tokenizer or None for SentencePiece) of all that can be compared."""
    shared = pathlib.Path(os.environ.get("PIPIT_SHARED") or root / ".." / "shared") / "data" / "tokenizer"
    smollm = os.environ.get("PIPIT_SMOLLM2")
    gpt2, llama = shared / "ggml-vocab-gpt-2.gguf", shared / "ggml-vocab-llama-bpe.gguf"
    rows = [("stories260K", root / "tests" / "data" / "stories260K.gguf", None),
            ("llama-spm", shared / "ggml-vocab-llama-spm.gguf", None),
            ("smollm2", pathlib.Path(smollm) if smollm else None, "smollm"),
            ("gpt-2", gpt2, "gpt-2"), ("gpt-2/smollm", gpt2, "smollm"), ("gpt-2/qwen2", gpt2, "qwen2"),
            ("gpt-2/default", gpt2, "default"), ("llama-bpe", llama, "llama-bpe"),
            ("llama-bpe/qwen2", llama, "qwen2")]
    return [(name, path if path and path.is_file() else None, pre) for name, path, pre in rows]
