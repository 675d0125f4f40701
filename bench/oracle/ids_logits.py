#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The LOGITS-PROGRAM of tests/golden/make_oracle_vectors.py: llama.cpp's logits after each of some token ids.

    LLAMA_CPP=DIR [LLAMA_CPP_LIB_PATH=LIBS] ids_logits.py MODEL.gguf IDS.txt OUT.f32

DIR is the unpacked source package llama-cpp-python 0.3.36 of PyPI, LIBS where its shared libraries are
(DIR/vendor/llama.cpp/build/bin). For gemma they must be built without GGML_GELU_FP16 (ggml-cpu/vec.h).
Needs the Python package numpy."""

import os
import sys

import numpy as np

import families


def main(model, ids, out):
    home = os.environ["LLAMA_CPP"]
    os.environ.setdefault("LLAMA_CPP_LIB_PATH", os.path.join(home, "vendor", "llama.cpp", "build", "bin"))
    sys.path.insert(0, home)
    theirs = families.Llama(model)
    with open(ids) as f:
        tokens = [int(word) for word in f.read().split()]
    theirs.run(theirs.context(512), tokens, 0, True).astype("<f4").tofile(out)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
