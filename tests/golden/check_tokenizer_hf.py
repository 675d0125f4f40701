#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every pre-tokenizer against the package `tokenizers`, and SentencePiece against its definition, on
random texts; tok_dump also says when a text does not come back from its ids.

    check_tokenizer_hf.py TOK_DUMP [TEXTS [SEED]]       (the default seed is $PIPIT_PHASE)

With PIPIT_PHASE one vocabulary of four is checked, the next ones with the next number.

Vocabularies: tests/data/stories260K.gguf, $PIPIT_SMOLLM2, and the vocabulary files of
$PIPIT_SHARED/data/tokenizer (or ../shared). Exit 77 without the packages."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    from tok_models import Bpe, Spm, Vocabulary, sources, with_pre
except ImportError as e:
    print(f"SKIP: {e}; this check needs gguf and tokenizers from PyPI")
    sys.exit(77)

from tok_text import random_text


def ask(program, path, texts):
    """texts: bytes each; the lines that tok_dump prints for them."""
    lines = "\n".join(t.hex() for t in texts) + "\n"
    out = subprocess.run([program, path], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    return out.split("\n")[:len(texts)]


def compare(program, path, model, n, seed):
    rng = random.Random(seed)
    texts = [t for t in (random_text(rng) for _ in range(n + n // 2)) if model.can_spell(t)][:n]
    got = ask(program, path, [t.encode() for t in texts])
    bad = 0
    for text, line in zip(texts, got):
        want = " ".join(map(str, model.encode(text)))
        if line != want:
            bad += 1
            if bad <= 3:
                print(f"  {text!r}\n    wanted {want}\n    got    {line}")
    noise = [rng.randbytes(rng.randint(1, 200)) for _ in range(200)]
    spelt = [t for t in noise if not getattr(model, "missing", set()).intersection(t)]
    lost = sum(line.startswith("!") for line in ask(program, path, spelt))
    return len(texts), bad, len(spelt), lost


def main():
    program, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(os.environ.get("PIPIT_PHASE", 1))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, path, pre) in enumerate(sources(pathlib.Path(__file__).resolve().parents[2])):
            if "PIPIT_PHASE" in os.environ and (i + int(os.environ["PIPIT_PHASE"])) % 4:
                continue
            if path is None:
                print(f"{name:16} SKIP: its vocabulary is not here")
                continue
            vocabulary = Vocabulary(path)
            if pre and pre != vocabulary.pre:
                with_pre(path, pre, f"{folder}/vocabulary.gguf")
                path = f"{folder}/vocabulary.gguf"
            model = Bpe(vocabulary, pre) if pre else Spm(vocabulary)
            texts, bad, noise, lost = compare(program, path, model, n, seed)
            failed += bad + lost
            print(f"{name:16} {texts} texts, {bad} differ; {noise} of random bytes, {lost} do not come back")
    return 1 if failed else 0


sys.exit(main())
