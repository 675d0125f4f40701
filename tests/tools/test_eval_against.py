#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-eval --against: figures of a model beside itself, beside its overlay and beside a model of other tokens; and the
intervals of its figures, computed a second time from the chunks' means.

    test_eval_against.py PIPIT-EVAL tests/data"""

import math
import os
import subprocess
import sys
import tempfile

EVAL, DATA = sys.argv[1:3]
T95 = {1: 12.7062, 3: 3.1824}  # Student's t of 2 and 4 chunks, from a printed table
STORIES = os.path.join(DATA, "stories260K.gguf")
MODEL = os.path.join(DATA, "cache_model.gguf")
OVERLAY = os.path.join(DATA, "cache_swiftkv_2_1.gguf")
TEXT = tempfile.NamedTemporaryFile()
with open(os.path.join(DATA, "stories260K.txt"), "rb") as story:
    TEXT.write(story.read() * 8)
    TEXT.flush()
IDS = tempfile.NamedTemporaryFile("w")
IDS.write(" ".join(str(1 + 7 * i % 50) for i in range(60)))
IDS.flush()


def run(model, *more):
    return subprocess.run([EVAL, "--model", model, "-t", "1", *more], capture_output=True, text=True)


def kv(*policies):
    return [word for p in policies for word in ("--kv", p)]


def rows(model, *more):
    r = run(model, *more)
    assert r.returncode == 0, r.stderr
    names, *lines = r.stdout.splitlines()
    out = []
    for line in lines:
        policy, rest = line[1:].split('",')
        out.append({"policy": policy, **dict(zip(names.split(",")[1:], rest.split(",")))})
    return out


text = ["--text", TEXT.name, "-c", "64", "-n", "4"]
beside = rows(STORIES, *text, *kv("full", "kv8", "fp8", "recency:50%"))
against = rows(STORIES, *text, "--against", STORIES, *kv("kv8", "fp8", "recency:50%", "full"))
assert [r["policy"] for r in against[:1]] == ["full"], against
by_name = {r["policy"]: r for r in against[1:]}
for r in beside:
    assert r["mode"] == "decode", r
    assert by_name[r["policy"]] == r, (by_name[r["policy"]], r)
assert float(by_name["full"]["mean_kl"]) == 0 and by_name["full"]["differs"] == "none", by_name["full"]

for n in (2, 4):
    got = rows(STORIES, "--text", TEXT.name, "-c", "64", "-n", str(n), *kv("full", "recency:50%"))
    nll = [[float(x) for x in r["chunk_nll"].split()] for r in got]
    kl = [float(x) for x in got[1]["chunk_kl"].split()]
    more = [b - a for a, b in zip(*nll)]
    mean = sum(more) / n
    half = T95[n - 1] * math.sqrt(sum((x - mean) ** 2 for x in more) / (n - 1) / n)
    mean_kl = sum(kl) / n
    half_kl = T95[n - 1] * math.sqrt(sum((x - mean_kl) ** 2 for x in kl) / (n - 1) / n)
    assert abs(float(got[1]["more_percent"]) - 100 * math.expm1(mean)) < 2e-3, (got[1], mean)
    assert abs(float(got[1]["more_95"]) - 100 * math.exp(mean) * half) < 2e-2, (got[1], half)
    assert abs(float(got[1]["kl_95"]) - half_kl) < 2e-5, (got[1], half_kl)
    assert got[1]["differs"] == ("none" if abs(mean) <= half else "more" if mean > 0 else "less"), got[1]
assert rows(STORIES, "--text", TEXT.name, "-c", "64", "-n", "1")[0]["differs"] == "-"

# an overlay beside its base, and the same the other way round, by ids
ids = ["--ids", IDS.name]
away = rows(MODEL, *ids, "--overlay", OVERLAY, "--against", MODEL, "--kv", "full")
back = rows(MODEL, *ids, "--against", f"{MODEL},{OVERLAY},full")
same = rows(MODEL, *ids, "--overlay", OVERLAY, "--against", f"{MODEL},{OVERLAY}", "--kv", "full")
assert float(away[1]["mean_kl"]) > 1e-3 and float(same[1]["mean_kl"]) == 0, (away, same)
assert away[0]["perplexity"] == back[1]["perplexity"] and away[1]["perplexity"] == back[0]["perplexity"], (away, back)
# a policy with commas of its own
assert rows(MODEL, *ids, "--against", f"{MODEL},keyformer:50%,min=2", "--kv", "full")[0]["policy"] == "keyformer:50%,min=2"

other = run(STORIES, *ids, "--against", MODEL)
assert other.returncode != 0 and "cannot be compared" in other.stderr, other.stderr
assert run(STORIES, *ids, "--against", "/nowhere.gguf").returncode != 0
wrong = run(STORIES, *ids, "--against", f"{STORIES},nonsense:3")
assert wrong.returncode != 0 and "nonsense" in wrong.stderr, wrong.stderr
