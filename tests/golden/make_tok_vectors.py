#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/tok_vectors.txt: texts and the ids that other implementations give them (see
tok_models.py), one a line: VOCABULARY HEX ID,ID,...

    make_tok_vectors.py OUTPUT"""

import pathlib
import random
import sys

from tok_models import Bpe, Spm, Vocabulary, sources
from tok_text import random_text

FIXED = ["Once upon a time, there was a little girl named Lily.", "  two  spaces\n\n\nlines\t.", "naïve café — 12345",
         "I'LL we'Ve 'tis don't", "مرحبا 世界 नमस्ते 👩\u200d👩\u200d👧", "<|im_end|></s><0x0A>"]


def main():
    lines = []
    for name, path, pre in sources(pathlib.Path(__file__).resolve().parents[2]):
        assert path, f"{name}: its vocabulary is not here"
        model = Bpe(Vocabulary(path), pre) if pre else Spm(Vocabulary(path))
        rng = random.Random(name)
        texts = FIXED + [random_text(rng)[:40] for _ in range(60)]
        for text in [t for t in texts if model.can_spell(t)][:40]:
            lines.append(f"{name} {text.encode().hex()} {','.join(map(str, model.encode(text)))}\n")
    pathlib.Path(sys.argv[1]).write_text("".join(lines))
    print(f"{len(lines)} texts")


main()
