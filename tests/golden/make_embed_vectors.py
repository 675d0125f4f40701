#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/data/embed_vectors.json: embeddings of a few texts by llama.cpp (llama-cpp-python), an implementation that shares
nothing with pipit: hidden states behind the last norm, the mean of all tokens and the last token's, as they are.

usage: make_embed_vectors.py > tests/data/embed_vectors.json"""
import json
import pathlib

import llama_cpp

MODEL = pathlib.Path(__file__).resolve().parents[1] / "data/stories260K.gguf"
TEXTS = ("Once upon a time", "Lily and Tim went to the park.", "x", "The big dog saw a red ball. " * 12)


def main():
    out = {"model": MODEL.name, "made_by": f"llama-cpp-python {llama_cpp.__version__}", "texts": []}
    models = {name: llama_cpp.Llama(str(MODEL), embedding=True, pooling_type=kind, n_ctx=512, n_batch=512, verbose=False)
              for name, kind in (("mean", llama_cpp.LLAMA_POOLING_TYPE_MEAN), ("last", llama_cpp.LLAMA_POOLING_TYPE_LAST))}
    for text in TEXTS:
        entry = {"text": text, "n_tokens": len(models["mean"].tokenize(text.encode(), add_bos=True))}
        for name, model in models.items():
            entry[name] = [float(f"{x:.7g}") for x in model.embed(text, normalize=False)]
        out["texts"].append(entry)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
