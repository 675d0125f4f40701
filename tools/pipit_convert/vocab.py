# SPDX-License-Identifier: Apache-2.0
"""Tokenizers to GGUF: byte-level BPE (tokenizer.json) and SentencePiece's BPE (tokenizer.model, or a
tokenizer.json with byte fallback).

Byte-level BPE cuts text into words before merging, by a pattern GGUF knows only by name. The
pattern in the file is compared with the known ones, and an unknown one is refused: a wrong pattern
gives a model that works almost.
"""
import json
import os
import struct

from .output import ConvertError, need
from .shards import read_json

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _ENDINGS + r"\p{N}{1,3}" + _REST
QWEN2 = _ENDINGS + r"\p{N}" + _REST


def canonical(pre):
    """A pre-tokenizer as a short text: what it is, without what makes no difference."""
    if pre is None:
        return "none"
    kind = pre.get("type")
    if kind == "Sequence":
        return " + ".join(canonical(p) for p in pre.get("pretokenizers", []))
    if kind == "Split":
        pattern = pre.get("pattern", {})
        return f"split {pre.get('behavior')} {pattern.get('Regex', pattern.get('String'))}" + (
            " inverted" if pre.get("invert") else "")
    if kind == "Digits":
        return f"digits {'one' if pre.get('individual_digits') else 'all'}"
    if kind == "ByteLevel":
        return "bytes" + (" gpt2" if pre.get("use_regex", True) else "") + (
            " prefix" if pre.get("add_prefix_space") else "")
    return str(kind)


PRE = {
    "bytes gpt2": "gpt-2",
    "digits one + bytes gpt2": "smollm",
    f"split Isolated {LLAMA3} + bytes": "llama-bpe",
    f"split Removed {LLAMA3} inverted + bytes": "llama-bpe",
    f"split Isolated {QWEN2} + bytes": "qwen2",
    f"split Removed {QWEN2} inverted + bytes": "qwen2",
}


def pre_name(tokenizer, path):
    text = canonical(tokenizer.get("pre_tokenizer"))
    if text not in PRE:
        raise ConvertError(f"{path}: its pre-tokenizer is not one of gpt-2, smollm, llama-bpe, qwen2: {text}")
    return PRE[text]


class Vocab:
    """Token texts (bytes), types and scores by id; holes are unused tokens."""

    def __init__(self, n):
        self.tokens = [b"[PAD%d]" % i for i in range(n)]
        self.types = [UNUSED] * n
        self.scores = [-1000.0] * n

    def set(self, i, text, kind, score=None):
        if type(i) is not int or not 0 <= i < len(self.tokens):
            raise ConvertError(f"token id {i} is outside the model's {len(self.tokens)} rows")
        self.tokens[i] = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.types[i] = kind
        if score is not None:
            self.scores[i] = float(score)

    def add_added(self, tokenizer):
        for t in tokenizer.get("added_tokens") or []:
            self.set(t["id"], t["content"], CONTROL if t.get("special") else USER)

    def unique(self):
        """GGUF readers look tokens up by text."""
        seen = {}
        for i, t in enumerate(self.tokens):
            if t in seen:
                raise ConvertError(f"tokens {seen[t]} and {i} have the same text")
            seen[t] = i


def merge_pairs(tokenizer, path):
    out = []
    for m in tokenizer["model"].get("merges") or []:
        pair = m.split(" ") if isinstance(m, str) else list(m)
        if len(pair) != 2:
            raise ConvertError(f"{path}: merge {m!r} is no pair")
        out.append(pair)
    return out


def byte_level(out, tokenizer, path, n_vocab):
    pre = pre_name(tokenizer, path)
    v = Vocab(n_vocab)
    for text, i in tokenizer["model"]["vocab"].items():
        v.set(i, text, NORMAL)
    v.add_added(tokenizer)
    v.unique()
    out.writer.add_tokenizer_model("gpt2")
    out.writer.add_tokenizer_pre(pre)
    out.writer.add_token_list(v.tokens)
    out.writer.add_token_types(v.types)
    # A space inside half of a merge would be read as the border of its halves.
    out.writer.add_token_merges([" ".join(part.replace(" ", "\u0120") for part in pair)
                                 for pair in merge_pairs(tokenizer, path)])
    return v


def wire_fields(raw, path):
    """(number, value) of a protobuf message: ints for varints, bytes for the rest."""
    pos = 0

    def varint():
        nonlocal pos
        n = shift = 0
        while True:
            if pos >= len(raw) or shift > 63:
                raise ConvertError(f"{path}: not a SentencePiece model, or cut")
            n |= (raw[pos] & 0x7f) << shift
            shift += 7
            pos += 1
            if raw[pos - 1] < 0x80:
                return n

    while pos < len(raw):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        n = {1: 8, 5: 4}.get(tag & 7)
        n = varint() if tag & 7 == 2 else n
        if n is None or n > len(raw) - pos:
            raise ConvertError(f"{path}: not a SentencePiece model, or cut")
        yield tag >> 3, raw[pos:pos + n]
        pos += n


def spm_file(path, n_vocab):
    """(Vocab, add_dummy_prefix) of a tokenizer.model."""
    with open(path, "rb") as f:
        fields = list(wire_fields(f.read(), path))
    v = Vocab(n_vocab)
    prefix = True
    i = 0
    for number, raw in fields:
        if number == 1 and isinstance(raw, bytes):
            piece = {k: x for k, x in wire_fields(raw, path)}
            kind = piece.get(3, NORMAL)
            v.set(i, piece.get(1, b""), kind if kind in range(1, 7) else NORMAL,
                  struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            i += 1
        elif number == 2 and isinstance(raw, bytes) and dict(wire_fields(raw, path)).get(3, 1) != 2:
            raise ConvertError(f"{path}: a SentencePiece model that is not of type BPE")
        elif number == 3 and isinstance(raw, bytes):
            prefix = bool(dict(wire_fields(raw, path)).get(3, 1))
    return v, prefix


def spm_json(tokenizer, path, n_vocab):
    """The same from a tokenizer.json. SentencePiece merges by score of the result, tokenizers by rank of
    the pair; a token's score is therefore minus the rank of the first pair that makes it."""
    v = Vocab(n_vocab)
    model = tokenizer["model"]
    rank = {}
    for r, (a, b) in enumerate(merge_pairs(tokenizer, path)):
        rank.setdefault(a + b, r)
    for text, i in model["vocab"].items():
        kind = NORMAL
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            kind = BYTE
        elif text == model.get("unk_token"):
            kind = UNKNOWN
        v.set(i, text, kind, -float(rank[text]) if text in rank else -1e9 if len(text) > 1 else -float(len(rank) + i))
    blob = json.dumps([tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")])
    prefix = '"Prepend"' in blob or '"prepend_scheme": "first"' in blob or '"prepend_scheme": "always"' in blob
    return v, prefix


def sentencepiece(out, folder, tokenizer, path, n_vocab):
    model = os.path.join(folder, "tokenizer.model")
    v, prefix = spm_file(model, n_vocab) if os.path.exists(model) else spm_json(tokenizer, path, n_vocab)
    keep = {i for i, t in enumerate(v.types) if t in (UNKNOWN, BYTE)}
    if tokenizer:
        before = {i: v.types[i] for i in keep}
        v.add_added(tokenizer)
        for i, kind in before.items():
            v.types[i] = kind
    v.unique()
    out.writer.add_tokenizer_model("llama")
    out.writer.add_tokenizer_pre("default")
    out.writer.add_token_list(v.tokens)
    out.writer.add_token_scores(v.scores)
    out.writer.add_token_types(v.types)
    out.writer.add_add_space_prefix(prefix)
    return v


def add_extra_end(out, folder):
    """Models that end a turn with another token than the text: GGUF's end of turn."""
    path = os.path.join(folder, "generation_config.json")
    ends = read_json(path).get("eos_token_id") if os.path.exists(path) else None
    if isinstance(ends, list) and len(ends) > 1 and type(ends[-1]) is int and ends[-1] >= 0:
        known = out.writer.kv_data[0].get("tokenizer.ggml.eos_token_id")
        extra = [e for e in ends if type(e) is int and (known is None or e != known.value)]
        if extra:
            out.writer.add_eot_token_id(extra[0])


def add(out, folder, n_vocab):
    """Writes the tokenizer's keys."""
    from pathlib import Path

    path = os.path.join(folder, "tokenizer.json")
    tokenizer = read_json(path) if os.path.exists(path) else None
    kind = ((tokenizer or {}).get("model") or {}).get("type")
    if tokenizer is None and not os.path.exists(os.path.join(folder, "tokenizer.model")):
        raise ConvertError(f"{folder}: neither tokenizer.json nor tokenizer.model")
    try:
        if kind == "BPE" and not tokenizer["model"].get("byte_fallback"):
            byte_level(out, tokenizer, path, n_vocab)
        elif kind in ("BPE", None):
            sentencepiece(out, folder, tokenizer, path, n_vocab)
        else:
            raise ConvertError(f"{path}: a tokenizer of type {kind}; only BPE is known")
    except (KeyError, TypeError, AttributeError) as e:
        raise ConvertError(f"{path}: malformed: {type(e).__name__} {e}") from e
    special = need("gguf.vocab", "gguf").SpecialVocab(Path(folder), load_merges=False, n_vocab=n_vocab)
    special.add_to_gguf(out.writer, quiet=True)
    add_extra_end(out, folder)
