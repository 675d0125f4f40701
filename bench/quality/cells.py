# SPDX-License-Identifier: Apache-2.0
"""What bench/quality/run.py measures: tasks with their sizes, policies, and the order in which cells are made.

A cell is one policy on one task. Steps come in order of worth, so that a run that is stopped early leaves the
figures that matter most. Every budget in percent has min=16, because the policy's default of 128 slots would hide
the budget in short prompts. Keyformer's noise is the paper's unless it says other: the default is none since
2026-11-27."""

BUDGETS = (90, 70, 60, 50, 30, 20)
METHODS = {
    "window": "window:{b}%,min=16",
    "sinks": "sinks:4+window:{b}%,min=16",
    "h2o": "h2o:{b}%,min=16",
    "keyformer": "keyformer:{b}%,min=16,noise=once",
    "keyformer bounded": "keyformer:{b}%,min=16,noise=once,prefill=bounded",
    "keyformer as-shipped": "keyformer:{b}%,min=16,mode=as-shipped",
    "recency": "recency:{b}%,min=16,decay=0.99,observe=256",
}
TYPES = ["fp8", "kv8", "k16v8"]

# At 50 %, one thing changed at a time.
NOISE = {
    "Gumbel, once a key (paper)": "keyformer:50%,min=16,noise=once",
    "Gumbel, seed 1": "keyformer:50%,min=16,noise=once,seed=1",
    "Gumbel, seed 2": "keyformer:50%,min=16,noise=once,seed=2",
    "Gumbel, each query": "keyformer:50%,min=16,noise=fresh",
    "Gaussian": "keyformer:50%,min=16,noise=gauss",
    "constant": "keyformer:50%,min=16,noise=const",
    "none": "keyformer:50%,min=16,noise=none",
}
OTHER = {
    "recent 0 %": "keyformer:50%,min=16,noise=once,recent=0%",
    "recent 10 %": "keyformer:50%,min=16,noise=once,recent=10%",
    "recent 50 %": "keyformer:50%,min=16,noise=once,recent=50%",
    "recent 70 %": "keyformer:50%,min=16,noise=once,recent=70%",
    "tau 1..1": "keyformer:50%,min=16,noise=once,tau=1..1",
    "tau 2..2": "keyformer:50%,min=16,noise=once,tau=2..2",
    "tau 1..4": "keyformer:50%,min=16,noise=once,tau=1..4",
    "damp 0.99": "keyformer:50%,min=16,noise=once,damp=0.99",
    "damp 0.9": "keyformer:50%,min=16,noise=once,damp=0.9",
    "none, tau 1..1, damp 0.95": "keyformer:50%,min=16,noise=none,tau=1..1,damp=0.95",
}
RECENCY = {
    "decay 0.8, observe 64": "recency:50%,min=16,decay=0.8,observe=64",
    "decay 0.95, observe 64": "recency:50%,min=16,decay=0.95,observe=64",
    "decay 0.99, observe 64": "recency:50%,min=16,decay=0.99,observe=64",
    "decay 0.99, observe 256 (the default)": "recency:50%,min=16,decay=0.99,observe=256",
    "decay 0.998, observe 512": "recency:50%,min=16,decay=0.998,observe=512",
    "decay 0.95, observe 16": "recency:50%,min=16,decay=0.95,observe=16",
    "decay 0.99, recent 10 %": "recency:50%,min=16,decay=0.99,observe=256,recent=10%",
    "decay 0.99, recent 60 %": "recency:50%,min=16,decay=0.99,observe=256,recent=60%",
}
# What was attended to long ago counts for less: the prompt's scores as published, then shrinking at each new token.
DAMP = {
    "h2o": "h2o:50%,min=16",
    "h2o, damp 0.99": "h2o:50%,min=16,damp=0.99",
    "keyformer": "keyformer:50%,min=16,noise=once",
    "keyformer, damp 0.99": "keyformer:50%,min=16,noise=once,damp=0.99",
    "keyformer, no noise": "keyformer:50%,min=16,noise=none",
    "keyformer, no noise, damp 0.99": "keyformer:50%,min=16,noise=none,damp=0.99",
    "recency, decay 0.99, observe 256": "recency:50%,min=16,decay=0.99,observe=256",
}
# The first four tokens kept beside what the scores keep.
SINKS = {
    "h2o": "sinks:4+h2o:50%,min=16",
    "keyformer": "sinks:4+keyformer:50%,min=16,noise=once",
    "keyformer, no noise": "sinks:4+keyformer:50%,min=16,noise=none",
    "recency": "sinks:4+recency:50%,min=16,decay=0.99,observe=256",
}

# What a new token reads of a cache that holds all (docs/design/sparse-attention.md), at about a half, a quarter and an eighth
# of the elements that full reads at 1536 tokens, as far down as the method goes. infinigen's need run.py --skew.
READING = {
    "sparq, 1/2": "sparq:r=32,k=384",
    "sparq, 1/4": "sparq:r=16,k=192",
    "sparq, 1/8": "sparq:r=8,k=96",
    "sparq, 1/8, mean of V": "sparq:r=8,k=96,mean=on",
    "sparq, 1/8, as-shipped": "sparq:r=8,k=96,mode=as-shipped",
    "top-k V, 512": "topv:512",
    "top-k V, 128": "topv:128",
    "top-k V, 32": "topv:32",
    "top-k V, 32, no renormalisation": "topv:32,renorm=off",
    "infinigen, 20 %": "infinigen:share=20%",
    "infinigen, 10 %": "infinigen:share=10%",
    "infinigen, 5 %": "infinigen:share=5%",
    "infinigen, 20 %, FP8 partial keys": "infinigen:share=20%,partial8=on",
    "infinigen, 10 %, FP8 partial keys": "infinigen:share=10%,partial8=on",
    "infinigen, 5 %, FP8 partial keys": "infinigen:share=5%,partial8=on",
    "infinigen, 10 %, no skew": "infinigen:share=10%,skew=off",
    "infinigen, 10 %, partial 0.1": "infinigen:share=10%,partial=0.1",
    "infinigen, alpha 4, at most 20 %": "infinigen:alpha=4,cap=20%",
}
# Of these the table has another line: the same dims and slots, read from copies of K by slot, move less and hold more.
IN_2K = ("sparq, 1/2", "sparq, 1/4", "sparq, 1/8", "fp8 and sparq, 1/4")
# Beside them: what drops instead, at the settings of the methods' own papers, and both at once.
BESIDE = {
    "16 sinks and a window, 50 % (LM-infinity)": "sinks:16+window:50%,min=32",
    "16 sinks and a window, 20 %": "sinks:16+window:20%,min=32",
    "h2o, a quarter recent, 50 %": "h2o:50%,min=16,recent=25%",
    "h2o, a quarter recent, 20 %": "h2o:20%,min=16,recent=25%",
    "integers, 8 bits a block of 32": "q8_0",
    "integers, 4 bits a block of 32": "q4_0",
    "fp8 and sparq, 1/4": "fp8+sparq:r=16,k=192",
    "h2o 50 % and sparq, 1/4 of it": "h2o:50%,min=16+sparq:r=16,k=128",
}

# kind text: a text scored, the second half of each chunk, in decode mode or (where it says so) in prefill mode. kind answers:
# prompts answered greedily.
TASKS = {
    "ppl-shakespeare-2k": {"kind": "text", "text": "text/tinyshakespeare.txt", "ctx": 2048, "chunks": 4, "batch": 48},
    "ablations": {"kind": "text", "text": "text/tinyshakespeare.txt", "ctx": 2048, "chunks": 3, "batch": 48},
    "ppl-war-and-peace-2k": {"kind": "text", "text": "text/war-and-peace.txt", "ctx": 2048, "chunks": 3, "batch": 48},
    "precision": {"kind": "text", "mode": "prefill", "text": "text/tinyshakespeare.txt", "ctx": 2048, "chunks": 20, "batch": 4},
    "ppl-shakespeare-8k": {"kind": "text", "text": "text/tinyshakespeare.txt", "ctx": 8192, "chunks": 1, "batch": 12},
    "repeat": {"kind": "answers", "ctx": 2048, "batch": 32, "prompts": [
        "repeat", "--text", "text/tinyshakespeare.txt", "--chars", "3000", "--cases", "16", "--tokens", "48"]},
    "needle-2k": {"kind": "answers", "ctx": 2560, "batch": 32, "prompts": [
        "needle", "--text", "text/war-and-peace.txt", "--chars", "8000", "--cells", "2", "--tokens", "28"]},
    # Among three others of its kind the full cache finds one number in five at this length: single ones only.
    "needle-4k": {"kind": "answers", "ctx": 5120, "batch": 16, "prompts": [
        "needle", "--text", "text/war-and-peace.txt", "--chars", "16500", "--kinds", "single", "--cells", "2", "--tokens", "28"]},
    "chat": {"kind": "answers", "ctx": 1024, "batch": 48, "prompts": [
        "chat", "--tasks", "tasks/mt_bench.jsonl", "--cases", "40", "--tokens", "64"]},
    "summary": {"kind": "answers", "ctx": 3072, "batch": 32, "prompts": [
        "summary", "--tasks", "tasks/xsum_0shot_300.jsonl", "--cases", "100", "--tokens", "40"]},
}
def scored(word, name, cases, ctx):
    return {"kind": "answers", "ctx": ctx, "batch": 32, "prompts": [
        word, "--tasks", f"tasks/{name}.jsonl", "--cases", str(cases)]}


ASK = ["ask", "--text", "text/war-and-peace.txt", "--chars", "7000", "--cases", "13"]
# Asked for by run.py --scored: answers by log-probability after five shots, two more of RULER's tasks, and larger samples of
# the tasks above.
SCORED = {
    "arc-easy": scored("choice", "arc_easy", 200, 512),
    "copa": scored("choice", "copa", 95, 256),
    "openbook-qa": scored("choice", "openbook_qa", 200, 384),
    "winograd": scored("choice", "winograd_wsc", 268, 384),
    "lambada": scored("word", "lambada_openai", 400, 768),
    "lambada-whole": scored("word", "lambada_openai", 5148, 768),
    "frequent": {"kind": "answers", "ctx": 2560, "batch": 16, "prompts": ["frequent", "--chars", "2500", "--cases", "50"]},
    "track": {"kind": "answers", "ctx": 1536, "batch": 16, "prompts": [
        "track", "--text", "text/war-and-peace.txt", "--chars", "3500", "--cases", "50"]},
    # kvpress' protocol, a cut before the question is known, and the usual one. n is of texts.
    "ask-before": {"kind": "answers", "ctx": 2560, "batch": 16, "prompts": ASK + ["--when", "before"]},
    "ask-after": {"kind": "answers", "ctx": 2560, "batch": 16, "prompts": ASK + ["--when", "after", "--questions", "1"]},
    "repeat-200": {**TASKS["repeat"], "prompts": TASKS["repeat"]["prompts"] + ["--cases", "200"]},
    "summary-300": {**TASKS["summary"], "prompts": TASKS["summary"]["prompts"] + ["--cases", "300"]},
}
# Asked for by run.py --curve: one task for all policies, on any model, from which the curves of quality against bytes are drawn.
# Budgets are of the context.
CURVE = {
    "curve": {"kind": "text", "text": "text/war-and-peace.txt", "ctx": 1024, "chunks": 8, "batch": 16},
}
CURVE_TYPES = ["kv8", "fp8", "k8v4", "kv4", "q8_0", "q4_0"]
CURVE_EVICTING = {  # shares of the context, percent
    "recency": (50, 25, 12), "h2o": (50, 25, 12), "keyformer": (50, 25, 12), "expected": (50, 25, 12), "snapkv": (50, 25),
    "sinks:4+window": (50, 25, 12),
}
CURVE_BOTH = {
    "kv8+recency": (50, 25), "kv4+recency": (50, 43, 25, 12), "kv4+expected": (50, 43, 25),
}
# The same run in seconds, on a model of any quality: for tests.
TINY = {
    "curve": {"ctx": 128, "chunks": 2, "batch": 4},
    "ppl-shakespeare-2k": {"ctx": 128, "chunks": 2, "batch": 4},
    "ablations": {"ctx": 128, "chunks": 1, "batch": 4},
    "ppl-war-and-peace-2k": {"ctx": 128, "chunks": 1, "batch": 4},
    "precision": {"ctx": 128, "chunks": 2, "batch": 2},
    "ppl-shakespeare-8k": {"ctx": 256, "chunks": 1, "batch": 2},
    "repeat": {"ctx": 2048, "prompts": ["--chars", "1200", "--cases", "1", "--tokens", "4"]},
    "needle-2k": {"ctx": 2048, "prompts": ["--chars", "500", "--cells", "1", "--tokens", "4"]},
    "needle-4k": {"ctx": 2048, "prompts": ["--chars", "700", "--cells", "1", "--tokens", "4"]},
    "chat": {"ctx": 2048, "prompts": ["--cases", "2", "--tokens", "4"]},
    "summary": {"ctx": 3072, "prompts": ["--cases", "1", "--tokens", "4"]},
    "ask": {"ctx": 2048, "prompts": ["--chars", "500", "--cases", "2"]},
}
TINY.update({name: TINY.get(name.split("-")[0], {"prompts": ["--cases", "3"]}) for name in SCORED})


def tasks(tiny):
    whole = {**TASKS, **SCORED, **CURVE}
    if not tiny:
        return whole
    ret = {}
    for name, t in whole.items():
        ret[name] = {**t, **TINY[name]}
        if "prompts" in t:
            ret[name]["prompts"] = t["prompts"] + TINY[name]["prompts"]
    return ret


def at(budgets, methods=tuple(METHODS)):
    return [METHODS[m].format(b=b) for b in budgets for m in methods]


MAIN = ("sinks", "h2o", "keyformer", "recency")


def some(changes, *names):
    return [changes[n] for n in names] if names else list(changes.values())


# A step is one pipit-eval, whose policies share its batch: few and large steps are quickest. The policies of a type have
# an engine of their own.
STEPS = [
    ("ppl-war-and-peace-2k", at([50], MAIN) + TYPES),
    ("ppl-war-and-peace-2k", at(BUDGETS)),
    ("repeat", at([50, 20]) + TYPES),
    ("needle-2k", at([50, 20]) + TYPES),
    ("ppl-shakespeare-2k", at(BUDGETS) + TYPES),
    ("chat", at([50, 20]) + TYPES),
    ("summary", at([50], MAIN) + TYPES),
    ("ablations", at([50], MAIN) + some(NOISE) + some(OTHER) + some(RECENCY) + some(DAMP) + some(SINKS)),
    ("precision", TYPES),
    ("ppl-shakespeare-8k", ["fp8", "kv8"] + at([50])),
    ("repeat", at(BUDGETS)),
    ("needle-2k", at(BUDGETS)),
    ("chat", at(BUDGETS)),
    ("summary", at([50, 20])),
    ("needle-4k", at([50], MAIN) + TYPES),
    ("needle-4k", at([50, 20])),
    ("summary", at([70, 30])),
    ("ppl-shakespeare-8k", at([20])),
    ("needle-4k", at([70, 30])),
    ("summary", at(BUDGETS)),
    ("needle-4k", at(BUDGETS)),
]


# Asked for by run.py --reading.
FORETOLD = [p for p in READING.values() if p.startswith("infinigen")]
STEPS_READING = [
    (task, policies)
    for task in ("ppl-shakespeare-2k", "repeat", "needle-2k")
    for policies in ([p for p in list(READING.values()) + list(BESIDE.values()) if p not in FORETOLD], FORETOLD)
]


# Budgets in percent are of the shots.
SCORED_POLICIES = ["fp8", "kv4", "kv8", "kv4+recency:43%,min=16", "h2o:50%,min=16", "k8v4"]
ASKED = ["kv4", "h2o:50%", "snapkv:50%", "keyformer:50%", "kv8+recency:50%", "kv4+snapkv:88%", "kv4+expected:88%",
         "kv4+recency:88%", "kv4+expected:50%"]


def curve_at(methods):
    """snapkv's 32 latest slots need a larger least budget than others', which is its default."""
    rest = {"snapkv": "", "keyformer": ",min=16,noise=once"}
    return [f"{m}:{b}%ctx" + rest.get(m, ",min=16") for m, budgets in methods.items() for b in budgets]


# The most telling first.
STEPS_CURVE = [("curve", CURVE_TYPES + curve_at(CURVE_BOTH)), ("curve", curve_at(CURVE_EVICTING))]


def steps(tiny, reading=False, scored=False, curve=False):
    """Two steps a task are enough to test the tools."""
    if curve:
        return STEPS_CURVE
    if scored:
        return [(t, ASKED if t.startswith("ask-") else SCORED_POLICIES) for t in SCORED]
    if reading:
        return STEPS_READING
    if not tiny:
        return STEPS
    return [(t, p) for t in TASKS for p in (["kv8"] + at([50], MAIN), at([20], MAIN))]
