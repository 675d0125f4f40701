#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The check of pipit-eval's scored lines (bench/eval/generate.h): llama.cpp's log-probability of each line's `scored`.

    [PYTHONPATH=DIR LLAMA_CPP_LIB_PATH=LIBS] line_logprobs.py MODEL.gguf PROMPTS.jsonl ANSWERS.raw

ANSWERS.raw: pipit-eval's, or run.py's; its policy `full` is compared. DIR is the unpacked source package llama-cpp-python
0.3.36 of PyPI, LIBS where its shared libraries are; both only where that package is not installed. Needs numpy."""

import json
import sys

import llama_cpp
import numpy as np


def main(model, prompts, answers):
    llm = llama_cpp.Llama(model, n_ctx=1024, n_batch=1024, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)
    bos = bool(llama_cpp.llama_vocab_get_add_bos(llama_cpp.llama_model_get_vocab(llm.model)))
    said = {a["id"]: a for a in map(json.loads, open(answers, encoding="utf-8")) if a["policy"] == "full"}
    off, likeliest, right, differing, kept = [], 0, [0, 0], 0, []
    questions = {}
    for p in map(json.loads, open(prompts, encoding="utf-8")):
        before = (p["prompt"] + p.get("given", "")).encode()
        ids = llm.tokenize(before + p["scored"].encode(), add_bos=bos, special=False)
        head = llm.tokenize(before, add_bos=bos, special=False)
        at = next((i for i, (x, y) in enumerate(zip(ids, head)) if x != y), len(head))
        same = next((i for i, (x, y) in enumerate(zip(ids, kept)) if x != y), min(len(ids), len(kept)))
        llm.n_tokens = min(same, at - 1)  # what the line before has in common with this one is kept
        llm.eval(ids[llm.n_tokens:])
        kept = ids
        rows = llm.scores[at - 1:len(ids) - 1].astype(np.float64)
        logprobs = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        theirs = logprobs[np.arange(len(rows)), ids[at:]].sum()
        mine = said[p["id"]]
        differing += mine["n_scored"] != len(ids) - at
        off.append(mine["logprob"] - theirs)
        likeliest += mine["likeliest"] == all(rows.argmax(1) == ids[at:])
        questions.setdefault(p["id"].rsplit("-", 1)[0], (p["gold"], [], []))
        questions[p["id"].rsplit("-", 1)[0]][1].append(mine["logprob"])
        questions[p["id"].rsplit("-", 1)[0]][2].append(theirs)
    n = len(off)
    same = sum(np.argmax(a) == np.argmax(b) for _, a, b in questions.values())
    right = [sum(np.argmax(v[k]) == v[0] for v in questions.values()) for k in (1, 2)]
    print(f"{n} lines, {differing} of other token counts; log-probability less theirs: mean {np.mean(off):+.4f}, "
          f"mean size {np.abs(off).mean():.4f}, largest {np.abs(off).max():.3f}; likeliest the same in {likeliest}; "
          f"of {len(questions)} questions the same choice in {same}, right {right[0]}, theirs {right[1]}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
