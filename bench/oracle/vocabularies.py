#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers beside llama.cpp, on vocabulary files: ids of texts, round trips, tokens that end a generation.

    vocabularies.py --llama-cpp DIR --dump build/tests/unit/tok_dump [--vocabularies DIR]... [--texts 300] [--seed 1]
                    [--all-names] [--only NAME] [--show 2]

DIR of --llama-cpp is the unpacked source package llama-cpp-python 0.3.36 of PyPI, whose vendor/llama.cpp/build has been
built with shared libraries. Its vendor/llama.cpp/models holds vocabularies with texts and the ids of the models' own
tokenizers (.inp, .out). A line a vocabulary:

    vectors    cases of .inp whose ids differ from .out, of how many
    random     random texts whose ids differ from llama.cpp's
    bytes      random byte strings that do not come back from their ids
    ends       ids that end a generation for one side only

--all-names runs each name of `tokenizer.ggml.pre` that pipit knows on the vocabularies gpt-2 and llama-bpe as well.
Texts hold no U+2581, which llama.cpp takes for a space."""

import argparse
import ctypes
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "golden"))
from tok_text import random_text  # noqa: E402

GAP = b"\n__ggml_vocab_test__\n"


class Llama:
    """llama.cpp's vocabulary of a file."""

    def __init__(self, api, path):
        p = api.llama_model_default_params()
        p.vocab_only = True
        self.api, self.model = api, api.llama_model_load_from_file(str(path).encode(), p)
        if not self.model:
            raise RuntimeError("llama.cpp refuses it")
        self.vocab = api.llama_model_get_vocab(self.model)

    def encode(self, text):
        n = 2 * len(text) + 16
        ids = (ctypes.c_int32 * n)()
        got = self.api.llama_tokenize(self.vocab, text, len(text), ids, n, False, False)
        return list(ids[:got])

    def ends(self):
        return {i for i in range(self.api.llama_vocab_n_tokens(self.vocab)) if self.api.llama_vocab_is_eog(self.vocab, i)}

    def close(self):
        self.api.llama_model_free(self.model)


def ours(o, path, texts, *flags):
    r = subprocess.run([o.dump, path, *flags], input="".join(t.hex() + "\n" for t in texts), capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr.strip())
    return r.stdout.split("\n")[:len(texts)]


def with_pre(path, name, target):
    """Copies a GGUF that has no tensors, with another name in tokenizer.ggml.pre."""
    raw, key = pathlib.Path(path).read_bytes(), b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = raw.index(key) + len(key)
    (size,) = struct.unpack_from("<Q", raw, at)
    pathlib.Path(target).write_bytes(raw[:at] + struct.pack("<Q", len(name)) + name.encode() + raw[at + 8 + size:])


def vectors(o, path):
    if not os.path.exists(f"{path}.inp"):
        return "-"
    texts = pathlib.Path(f"{path}.inp").read_bytes().split(GAP)
    want = pathlib.Path(f"{path}.out").read_text().split("\n")
    got = ours(o, path, texts)
    bad = [(t, w.strip(), g) for t, w, g in zip(texts, want, got) if w.strip() != g]
    show(o, bad)
    return f"{len(bad)}/{len(texts)}"


def show(o, bad):
    for text, want, got in bad[:o.show]:
        print(f"    {text!r}\n      wanted {want}\n      got    {got}")


def random_ids(o, theirs, path, texts):
    got = ours(o, path, texts)
    pairs = [(t, " ".join(map(str, theirs.encode(t))), g) for t, g in zip(texts, got)]
    spelt = [p for p in pairs if "no token for it" not in p[2]]
    bad = [p for p in spelt if p[1] != p[2]]
    show(o, bad)
    return f"{len(bad)}/{len(spelt)}"


def one(o, name, path):
    rng = random.Random(o.seed)
    texts = [random_text(rng).replace("\u2581", "").replace("\0", "").encode() for _ in range(o.texts)]
    noise = [rng.randbytes(rng.randint(1, 200)) for _ in range(o.texts)]
    try:
        theirs = Llama(o.api, path)
        row = [vectors(o, path) if "/" not in name else "-", random_ids(o, theirs, path, texts)]
        lost = [g for g in ours(o, path, noise) if g.startswith("!") and "no token for it" not in g]
        mine = set(map(int, ours(o, path, [b""], "ends")[0].split()))
        wanted = theirs.ends()
        theirs.close()
        ends = f"{len(wanted)} the same" if wanted == mine else f"missing {sorted(wanted - mine)} more {sorted(mine - wanted)}"
        print(f"{name:28} {row[0]:>8} {row[1]:>8} {len(lost)}/{len(noise):<6} {ends}", flush=True)
        return row[0] in ("-",) or row[0].startswith("0/")
    except RuntimeError as e:
        print(f"{name:28} {e}", flush=True)
        return True


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--llama-cpp", required=True)
    a.add_argument("--dump", required=True)
    a.add_argument("--vocabularies", action="append", default=[])
    a.add_argument("--texts", type=int, default=300)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--all-names", action="store_true")
    a.add_argument("--only", help="vocabularies whose name has this in it")
    a.add_argument("--show", type=int, default=0, help="differing texts to print for each vocabulary")
    o = a.parse_args()
    vendor = pathlib.Path(o.llama_cpp) / "vendor" / "llama.cpp"
    os.environ["LLAMA_CPP_LIB_PATH"] = str(vendor / "build" / "bin")
    sys.path.insert(0, o.llama_cpp)
    import llama_cpp
    o.api, quiet = llama_cpp, llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    files = [p for d in [vendor / "models", *o.vocabularies] for p in sorted(pathlib.Path(d).glob("*.gguf"))]
    rows = [(p.stem.removeprefix("ggml-vocab-"), p, None) for p in files]
    if o.all_names:
        table = (ROOT / "engine" / "text" / "tok_patterns.c").read_text().partition("rules[] = {")[2]
        names = sorted({n for group in re.findall(r"\{\{([^}]*)\}", table) for n in re.findall(r'"([^"]+)"', group)})
        for base in ("gpt-2", "llama-bpe"):
            rows += [(f"{base}/{n}", vendor / "models" / f"ggml-vocab-{base}.gguf", n) for n in names]
    print(f"{'vocabulary':28} {'vectors':>8} {'random':>8} {'bytes':8} ends")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, path, pre in rows:
            if o.only and o.only not in name:
                continue
            if pre:
                with_pre(path, pre, f"{folder}/vocabulary.gguf")
                path = f"{folder}/vocabulary.gguf"
            good = one(o, name, path) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
