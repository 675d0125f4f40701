#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A text of four times the context under streaming:N: pipit-eval scores it to the bit as an engine does whose context
holds all of it, and policies that stop at the context are refused. Figures that a full disk did not take are an error.

    test_eval_beyond.py PIPIT-EVAL tests/data"""

import os
import subprocess
import sys
import tempfile

EVAL, DATA = sys.argv[1:3]
N, CONTEXT = 512, 128
TEXT = tempfile.NamedTemporaryFile()
with open(os.path.join(DATA, "stories260K.txt"), "rb") as story:
    TEXT.write(story.read() * 8)
    TEXT.flush()


def scored(kv, *more):
    return subprocess.run([EVAL, "--model", os.path.join(DATA, "stories260K.gguf"), "--text", TEXT.name,
                           "-c", str(N), "-n", "1", "-t", "1", "--mode", "decode", "--kv", kv, *more], capture_output=True, text=True)


for kv in ("streaming:60,chunk=32", "streaming:100,chunk=1"):  # a chunk and the budget fit into the context
    small, large = scored(kv, "--context", str(CONTEXT)), scored(kv)
    assert small.returncode == 0 and large.returncode == 0, small.stderr + large.stderr
    a, b = (dict(zip(r.stdout.splitlines()[0].split(","), r.stdout.splitlines()[1].replace('"' + kv + '"', "kv").split(",")))
            for r in (small, large))
    assert int(a["rows"]) == N // 2 - 1, a
    assert a["perplexity"] == b["perplexity"] and a["chunk_nll"] == b["chunk_nll"], (a, b)
    assert float(a["perplexity"]) < 60, a
full = scored("full", "--context", str(CONTEXT))
assert full.returncode != 0 and str(CONTEXT) in full.stderr, full.stderr

# Each of them has an engine of its own.
r = scored("streaming:60,chunk=32", *(x for n in range(61, 77) for x in ("--kv", f"streaming:{n},chunk=32")), "--context", str(CONTEXT))
assert r.returncode != 0 and "at most 16 classes of policies, each with an engine" in r.stderr, r.stderr
# Three engines, since h2o has the pages of its precision; and the same bits as alone.
together = scored("full", "--kv", "fp8", "--kv", "h2o:50%", "--kv", "kv8", "--kv", "fp8+h2o:50%")
assert together.returncode == 0, together.stderr
columns = together.stdout.splitlines()[0].split(",")
at = columns.index("perplexity") - len(columns)  # from the end: a policy may have commas
for line in together.stdout.splitlines()[1:]:
    kv = line.split('"')[1]
    alone = scored(kv)
    assert line.split(",")[at] == alone.stdout.splitlines()[1].split(",")[at], (kv, line, alone.stdout, alone.stderr)

with open("/dev/full", "w") as full_disk:
    for out, more in ((full_disk, []), (subprocess.DEVNULL, ["-o", "/dev/full"])):
        r = subprocess.run([EVAL, "--model", os.path.join(DATA, "stories260K.gguf"), "--text", TEXT.name, "-c", "32", "-n", "1", "-t", "1",
                            "--kv", "full", *more], stdout=out, stderr=subprocess.PIPE, text=True)
        assert r.returncode != 0 and "cannot write" in r.stderr, (more, r.returncode, r.stderr)
