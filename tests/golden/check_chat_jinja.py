#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chat rendering against the model's own template, run by Jinja2, and the package `tokenizers`.

    check_chat_jinja.py CHAT_DUMP [MODEL.gguf [TEMPLATE]]

MODEL: $PIPIT_SMOLLM2 unless given. Messages never spell markers here (there the two must differ: see
test_chat.c). Exit 77 without the packages or the model."""

import os
import random
import re
import subprocess
import sys

try:
    import gguf
    import jinja2
    import jinja2.sandbox
    from tok_models import Bpe, Vocabulary
except ImportError as e:
    print(f"SKIP: {e}; this check needs gguf, jinja2 and tokenizers from PyPI")
    sys.exit(77)

from tok_text import SPECIAL, random_text

N = 300


def conversation(rng, model):
    def text():
        while True:
            s = random_text(rng)
            if rng.random() < 0.3:
                s = rng.choice([" ", "\n", "\t \n", "\u3000", "\x85"]) + s + rng.choice([" ", "\n\n", "\u2003"])
            if not any(m in s for m in SPECIAL) and model.can_spell(s):
                return s

    out = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    for i in range(rng.choice([1, 1, 3, 5])):
        out.append({"role": "assistant" if i % 2 else "user", "content": text()})
    return out


def main():
    program, path = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.environ.get("PIPIT_SMOLLM2")
    if not path or not os.path.isfile(path):
        print("SKIP: no model ($PIPIT_SMOLLM2)")
        return 77
    fields, vocabulary = gguf.GGUFReader(path).fields, Vocabulary(path)
    model = Bpe(vocabulary, vocabulary.pre)
    source = open(sys.argv[3]).read() if len(sys.argv) > 3 else fields["tokenizer.chat_template"].contents()
    names = {k: vocabulary.tokens[fields[f"tokenizer.ggml.{k}_id"].contents()] for k in ("bos_token", "eos_token")}
    template = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    special = {t: i for i, t in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == 3}
    border = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")
    rng = random.Random(3)
    talks = [conversation(rng, model) for _ in range(N)]
    lines = [" ".join(f"{m['role']} {m['content'].encode().hex() or '-'}" for m in talk) for talk in talks]
    out = subprocess.run([program, path, *sys.argv[3:4]], input="\n".join(lines) + "\n", stdout=subprocess.PIPE,
                         text=True, check=True).stdout.split("\n")
    bad = 0
    for talk, got in zip(talks, out):
        text = template.render(messages=talk, add_generation_prompt=True, **names)
        want = [i for part in border.split(text) if part
                for i in ([special[part]] if part in special else model.encode(part))]
        if got != " ".join(map(str, want)):
            bad += 1
            if bad <= 2:
                print(f"  {talk!r}\n    wanted {want}\n    got    {got}")
    print(f"{N} conversations, {bad} differ")
    return 1 if bad else 0


sys.exit(main())
