# SPDX-License-Identifier: Apache-2.0
"""What bench/quality/run.py measures: tasks with their sizes, policies, and the order in which cells are made.

A cell is one policy on one task. Steps come in order of worth, so that a run that is stopped early leaves the
figures that matter most. Every budget in percent has min=16, because the policy's default of 128 slots would hide
the budget in short prompts."""

BUDGETS = (90, 70, 60, 50, 30, 20)
METHODS = {
    "window": "window:{b}%,min=16",
    "sinks": "sinks:4+window:{b}%,min=16",
    "h2o": "h2o:{b}%,min=16",
    "keyformer": "keyformer:{b}%,min=16",
    "keyformer bounded": "keyformer:{b}%,min=16,prefill=bounded",
    "keyformer as-shipped": "keyformer:{b}%,min=16,mode=as-shipped",
    "recency": "recency:{b}%,min=16",
}
TYPES = ["fp8", "kv8", "k16v8"]

# Keyformer and recency at 50 %, one thing changed at a time.
NOISE = {
    "Gumbel, once a key (paper)": "",
    "Gumbel, seed 1": ",seed=1",
    "Gumbel, seed 2": ",seed=2",
    "Gumbel, each query": ",noise=fresh",
    "Gaussian": ",noise=gauss",
    "constant": ",noise=const",
    "none": ",noise=none",
}
OTHER = {
    "recent 0 %": ",recent=0",
    "recent 10 %": ",recent=10",
    "recent 50 %": ",recent=50",
    "recent 70 %": ",recent=70",
    "tau 1..1": ",tau=1..1",
    "tau 2..2": ",tau=2..2",
    "tau 1..4": ",tau=1..4",
    "damp 0.99": ",damp=0.99",
    "damp 0.9": ",damp=0.9",
    "none, tau 1..1, damp 0.95": ",noise=none,tau=1..1,damp=0.95",
}
RECENCY = {
    "decay 0.95, observe 64 (default)": "",
    "decay 0.8": ",decay=0.8",
    "decay 0.99": ",decay=0.99",
    "decay 0.99, observe 256": ",decay=0.99,observe=256",
    "observe 16": ",observe=16",
    "recent 10 %": ",recent=10",
    "recent 60 %": ",recent=60",
}

# kind text: a text scored in decode mode, the second half of each chunk. kind answers: prompts answered greedily.
TASKS = {
    "ppl-shakespeare-2k": {"kind": "text", "text": "text/tinyshakespeare.txt", "ctx": 2048, "chunks": 6, "batch": 12},
    "ppl-war-and-peace-2k": {"kind": "text", "text": "text/war-and-peace.txt", "ctx": 2048, "chunks": 4, "batch": 12},
    "ppl-shakespeare-8k": {"kind": "text", "text": "text/tinyshakespeare.txt", "ctx": 8192, "chunks": 1, "batch": 6},
    "repeat": {"kind": "answers", "ctx": 2048, "batch": 12, "prompts": [
        "repeat", "--text", "text/tinyshakespeare.txt", "--chars", "3000", "--cases", "16", "--tokens", "64"]},
    "needle-2k": {"kind": "answers", "ctx": 2560, "batch": 12, "prompts": [
        "needle", "--text", "text/war-and-peace.txt", "--chars", "8000", "--cells", "4", "--tokens", "20"]},
    "needle-4k": {"kind": "answers", "ctx": 5120, "batch": 6, "prompts": [
        "needle", "--text", "text/war-and-peace.txt", "--chars", "16500", "--cells", "2", "--tokens", "20"]},
    "chat": {"kind": "answers", "ctx": 1024, "batch": 16, "prompts": [
        "chat", "--tasks", "tasks/mt_bench.jsonl", "--cases", "40", "--tokens", "96"]},
    "summary": {"kind": "answers", "ctx": 3072, "batch": 12, "prompts": [
        "summary", "--tasks", "tasks/xsum_0shot_300.jsonl", "--cases", "100", "--tokens", "40"]},
}
# The same run in seconds, on a model of any quality: for tests.
TINY = {
    "ppl-shakespeare-2k": {"ctx": 128, "chunks": 2, "batch": 4},
    "ppl-war-and-peace-2k": {"ctx": 128, "chunks": 1, "batch": 4},
    "ppl-shakespeare-8k": {"ctx": 256, "chunks": 1, "batch": 2},
    "repeat": {"ctx": 2048, "prompts": ["--chars", "1200", "--cases", "2", "--tokens", "4"]},
    "needle-2k": {"ctx": 2048, "prompts": ["--chars", "500", "--cells", "1", "--tokens", "4"]},
    "needle-4k": {"ctx": 2048, "prompts": ["--chars", "700", "--cells", "1", "--tokens", "4"]},
    "chat": {"ctx": 2048, "prompts": ["--cases", "2", "--tokens", "4"]},
    "summary": {"ctx": 3072, "prompts": ["--cases", "1", "--tokens", "4"]},
}


def tasks(tiny):
    if not tiny:
        return TASKS
    ret = {}
    for name, t in TASKS.items():
        ret[name] = {**t, **TINY[name]}
        if "prompts" in t:
            ret[name]["prompts"] = t["prompts"] + TINY[name]["prompts"]
    return ret


def at(budgets, methods=tuple(METHODS)):
    return [METHODS[m].format(b=b) for b in budgets for m in methods]


def variants(method, changes):
    return [METHODS[method].format(b=50) + c for c in changes.values()]


MAIN = ("sinks", "h2o", "keyformer", "recency")

STEPS = [
    ("ppl-shakespeare-2k", at([50]) + TYPES),
    ("ppl-shakespeare-2k", at([20, 70])),
    ("repeat", at([50]) + TYPES),
    ("needle-2k", at([50])),
    ("ppl-shakespeare-2k", variants("keyformer", NOISE)),
    ("chat", at([50]) + TYPES),
    ("ppl-war-and-peace-2k", at([50]) + TYPES),
    ("ppl-shakespeare-2k", at([30, 60, 90])),
    ("summary", at([50], ("window",) + MAIN)),
    ("ppl-shakespeare-2k", variants("keyformer", OTHER) + variants("recency", RECENCY)),
    ("needle-2k", at([70, 30], MAIN)),
    ("repeat", at([20, 70], MAIN)),
    ("ppl-shakespeare-8k", at([50], ("window",) + MAIN)),
    ("chat", at([20, 70], MAIN)),
    ("needle-4k", at([50], MAIN)),
    ("ppl-war-and-peace-2k", at([20, 70, 30, 60, 90])),
    ("repeat", at([30, 60, 90]) + at([20, 70])),
    ("needle-2k", TYPES + at([90, 60, 20]) + at([70, 30])),
    ("chat", at([30, 60, 90]) + at([20, 70])),
    ("needle-4k", TYPES + at(BUDGETS)),
    ("ppl-shakespeare-8k", ["fp8", "kv8"] + at([20])),
    ("summary", TYPES + at(BUDGETS)),
]
