#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_policy, a text a line: those that tests/unit/test_policy.c says are good, and those whose faults it
knows.

    make_seeds_policy.py            into seeds/policy"""

import pathlib
import re

root = pathlib.Path(__file__).parent
source = (root.parent / "unit" / "test_policy.c").read_text()
source = re.sub(r'"\s*\n\s*"', "", source)  # a string over two lines
good = "".join(re.findall(r"const char \*texts\[\] = \{(.*?)\};", source, re.S))
faults = re.search(r"faults\[\] = \{(.*?)\n    \};", source, re.S)[1]
MIXES = ["full=60%;fp8=30%", "full;", "full=50%;fp8=50", "full=0%", "full=20%;" * 4 + "full=20%", "full=100%;x", "full=100%x",
         "sinks:100+h2o:110=100%", "h2o:99,layers=pyramid", "h2o:40,layers=measured", "h2o:6,layers=pyramid", "keyfromer:50%",
         "windw:24", "keyformer:50%,recnt=30%", "somethingelse", "h2o:64,score=shared,layers=pyramid",
         "h2o:64,score=shared,prefill=bounded", "h2o:64,score=shared", "h2o:50%,chunk", "h2o:50%,chunk=7,min=3",
         "sparq:r=16,mode=as-shipped+h2o:64,prefill=bounded", "keyformer:64,mode=as-shipped,prefill=bounded", "exit:0.5", "exit:draft",
         "kv8,rot=on+sparq", "0123456789.0123456789", "exit:0.12345678901234"]


def write(name, lines):
    (root / "seeds" / "policy" / name).write_text("\n".join(lines))


def pack(name, lines):
    for i in range(0, len(lines), 16):
        write(f"{name}_{i // 16}", lines[i:i + 16])


pack("good", re.findall(r'"([^"]*)"', good))
pack("fault", [re.sub(r"\\(.)", r"\1", m) for m in re.findall(r'\{"((?:[^"\\]|\\.)*)", \d+, ', faults)])
pack("mix", MIXES)
