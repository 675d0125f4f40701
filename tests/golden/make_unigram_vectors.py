#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small vocabularies of SentencePiece's unigram model, trained by the package `sentencepiece` on this tree's documents, and
texts with the ids and the text back that the package gives.

    make_unigram_vectors.py OUT-FOLDER
    make_unigram_vectors.py --large FOLDER [--dump build/tests/unit/tok_dump]

Writes unigram.gguf (a few rules of normalisation, runs of spaces merged, an unknown token), unigram_bytes.gguf (texts as they
are, bytes for what is no token) and unigram_vectors.txt, a line a text: VOCABULARY HEX ID,ID,... HEX-OF-TEXT-BACK.
--large: vocabularies with the rules of T5 (nmt_nfkc) and others, for bench/oracle/vocabularies.py --vocabularies; with --dump
2,000 texts of each are compared with the package.
Needs the Python packages sentencepiece, protobuf and gguf."""

import argparse
import io
import pathlib
import random
import subprocess
import tempfile

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tok_text import random_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What becomes what, as code points: digits, ligatures, letters of two, white space, and what goes.
RULES = {"\uff11": "1", "\uff12": "2", "\ufb01": "fi", "\ufb02": "fl", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u3000": " ",
         "e\u0301": "\u00e9", "a\u0308": "\u00e4", "\u200b": "", "\u2026": "...", "\u00bd": "1\u20442", "\ufdfa": "a b c d e f"}
SMALL = {
    "unigram": {"vocab_size": 400, "rules": RULES, "character_coverage": 0.99},
    "unigram_bytes": {"vocab_size": 600, "normalization_rule_name": "identity", "byte_fallback": True,
                      "remove_extra_whitespaces": False, "character_coverage": 0.995},
}
LARGE = {
    "t5-nmt_nfkc": {"vocab_size": 2000},
    "t5-nfkc_cf-bytes": {"vocab_size": 2000, "normalization_rule_name": "nfkc_cf", "byte_fallback": True},
    "t5-identity": {"vocab_size": 2000, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "t5-bare": {"vocab_size": 2000, "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "t5-user": {"vocab_size": 2000, "user_defined_symbols": ["<x>", "<xy>"]},
}
FIXED = ["Once upon a time, there was a little girl named Lily.", "  two  spaces\n\n\nlines\t.  ", "na\u00efve caf\u00e9 cafe\u0301 \u2014 12345",
         " ", "", "\t\n", "a", " a", "a ", "\uff11\uff12 \ufb01x \ufdfa\u2026", "\u200b\u200ba\u200b", "\U0001f999\U0001f999 \u6f22\u5b57\u6f22",
         "\ufb01\ufb01\ufb01", "a\u0308a\u0308", "</s><s><unk><0x0A>", "\x00\x01\x7f", "keykeykey" * 9]


def train(rules=None, **options):
    texts = [line for path in sorted(ROOT.glob("docs/**/*.md")) for line in path.read_text().splitlines() if line.strip()]
    options = {"character_coverage": 0.9995, **options}
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:
        if rules:
            for a, b in sorted(rules.items()):
                f.write(" ".join(f"{ord(c):x}" for c in a) + "\t" + " ".join(f"{ord(c):x}" for c in b) + "\n")
            f.flush()
            options["normalization_rule_tsv"] = f.name
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=out, model_type="unigram", num_threads=1,
                                                 pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, **options)
    return out.getvalue()


def write(path, model):
    m = sentencepiece_model_pb2.ModelProto.FromString(model)
    w = gguf.GGUFWriter(path, "t5")
    w.add_name(path.stem)
    w.add_tokenizer_model("t5")
    w.add_tokenizer_pre("default")
    w.add_token_list([p.piece for p in m.pieces])
    w.add_token_scores([p.score for p in m.pieces])
    w.add_token_types([p.type for p in m.pieces])
    w.add_add_space_prefix(m.normalizer_spec.add_dummy_prefix)
    w.add_remove_extra_whitespaces(m.normalizer_spec.remove_extra_whitespaces)
    w.add_precompiled_charsmap(m.normalizer_spec.precompiled_charsmap)
    w.add_pad_token_id(0)
    w.add_eos_token_id(1)
    w.add_unk_token_id(2)
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def vectors(name, model, n):
    sp, rng = sentencepiece.SentencePieceProcessor(model_proto=model), random.Random(name)
    for text in FIXED + [random_text(rng)[:40] for _ in range(n)]:
        if "\u2581" in text:
            continue
        ids = sp.encode(text)
        yield f"{name} {text.encode().hex() or '-'} {','.join(map(str, ids)) or '-'} {sp.decode(ids).encode().hex() or '-'}\n"


def compare(dump, path, model):
    sp, rng = sentencepiece.SentencePieceProcessor(model_proto=model), random.Random(path.stem)
    texts = [t for t in (random_text(rng) for _ in range(2000)) if "\u2581" not in t]
    out = subprocess.run([dump, path], input="".join(t.encode().hex() + "\n" for t in texts), capture_output=True, text=True, check=True).stdout
    bad = [t for t, got in zip(texts, out.split("\n")) if got != " ".join(map(str, sp.encode(t)))]
    print(f"{path.stem}: {len(bad)} of {len(texts)} texts differ", repr(bad[0]) if bad else "")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out", type=pathlib.Path, nargs="?")
    a.add_argument("--large", type=pathlib.Path)
    a.add_argument("--dump")
    o = a.parse_args()
    lines = []
    for name, options in (LARGE if o.large else SMALL).items():
        model = train(**options)
        if o.large:
            path = o.large / f"ggml-vocab-{name}.gguf"
            write(path, model)
            if o.dump:
                compare(o.dump, path, model)
        else:
            write(o.out / f"{name}.gguf", model)
            lines += vectors(name, model, 70)
    if not o.large:
        (o.out / "unigram_vectors.txt").write_text("".join(lines))
        print(len(lines), "texts")


main()
