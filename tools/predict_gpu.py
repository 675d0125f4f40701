#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What decode, attention and prompts should take on a GPU, by counts, beside the aims and what an H200 took.

Prints the table of docs/design/cuda.md, whose section "What a step takes, by counts" states the model: a kernel takes
the longest of its bytes, its instructions and its tiles, and a constant. Constants of 1B and kv4 come from their own rows.
Measured: an H200, 2026-11-26 and -27, docs/results/gpu.md and bench/results. Published: data sheets of H100 SXM, H200,
Jetson AGX Orin 64 GB. Supposed: neither.

    tools/predict_gpu.py [--fix]     --fix writes the table into the page"""

import csv
import math
import pathlib
import re
import sys
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "cuda.md"
HEAD = "| | H200's time, % | H100 | H200 | Orin | aim | a kernel may cost, us | measured | time off by |"

# Measured. TB/s of reads; of the published rate what they reach; of theirs copies and products (head of 8B, bf16).
READ = 4.5126
READ_REACH, COPY, PRODUCT = READ / 4.8, 4.16 / READ, 4.3503 / READ
MATRIX_REACH = 781.6 / 989.4     # cuBLAS, 8,192 cubed, of the published rate of 16 bits
ATTENTION_REACH = 274.4 / 781.6  # attention of a prompt of 2,048 at 8B, of cuBLAS
ISSUE_REACH = 0.62               # instructions a clock and scheduler: kv4, from 8,192 to 65,536 slots
# us from the end of the kernel ahead to its own: the six kernels of a layer of 1B, by clocks; the layer's bytes.
LAYER_US, LAYER_BYTES = (14.0, 7.5, 2.3, 5.0, 20.4, 13.2), 121.6e6
BEGIN = (0.9 + 0.7 + 0.6 + 0.7 + 0.8 + 0.8) / 6  # us of them until blocks may go on
KERNEL = (sum(LAYER_US) - LAYER_BYTES / (READ * PRODUCT * 1e6)) / len(LAYER_US)  # us of a kernel beside its bytes
ALONE = 2.99      # the same where no kernel waits for another: mean of six bf16 products of one row
TOKEN = 4.54      # us of a greedy token of 128,256 logits
PROMPT = 860.0    # us of a prompt beside its kernels: 8B of 4 and of 32 layers, 512 tokens
# Supposed.
ORIN_REACH, LATE = 0.85, 1.2  # of memory's rate; us more of a kernel that cannot begin early
L2 = 50e6         # bytes of an H200's: activations of a chunk stay there, those of a step of 2,048 rows do not
# Counted.
CHUNK, SLOTS = 512, 221  # tokens of a prompt that went at once when it was measured; slots in the middle of what a bench draws at 128
STEP = 2048       # tokens of a prompt that go at once now
LAYER_KERNELS, STEP_KERNELS, CUT_KERNELS = 6, 3, 2  # of a decode layer; embedding, gather, head; attention and join

Device = namedtuple("Device", "read issue matrix sms kernel alone tile prompt_kernels")
Model = namedtuple("Model", "layers dim heads kv_heads head_dim ff vocab head_norms")
M8B, M1B = Model(32, 4096, 32, 8, 128, 14336, 128256, False), Model(16, 2048, 32, 8, 64, 8192, 128256, False)
M06B = Model(28, 1024, 16, 8, 128, 3072, 151936, True)
# Bytes of a weight; row_q's kernel of kernels/cuda/sass.csv, whose path takes so many bytes of the weight.
WEIGHTS = {"BF16": (2, "", 1), "Q8_0": (34 / 32, "row_q<frag_q8_0, 2>", 2176),
           "Q4_K": (144 / 256, "row_q<frag_q4_k, 2>", 2304)}
# Bytes and warp instructions of a slot and K head of 128: "Decode attention, by counts" in docs/design/cuda.md.
CACHE = {"bf16": (512, 16.6), "fp8": (260, 23.5), "kv4": (144, 30.7)}


def device(read, sms, ghz, matrix, late, tile, prompt_kernels):
    """Published rates; rows and columns of a prompt's tile; its kernels a layer. What of a kernel is not the beginning
    are instructions one after another, as long as the clock makes them (an H200's: 1.75 GHz)."""
    kernel, alone = (BEGIN + (us - BEGIN) * 1.75 / ghz + late for us in (KERNEL, ALONE))
    issue = sms * 4 * ghz * 1e3 * ISSUE_REACH
    return Device(read * 1e6, issue, matrix * 1e6 * MATRIX_REACH, sms, kernel, alone, tile, prompt_kernels)


H200 = device(READ, 132, 1.75, 989.4, 0, (128, 256), 14)
DEVICES = {"H100": device(3.35 * READ_REACH, 132, 1.75, 989.4, 0, (128, 256), 14), "H200": H200,
           "Orin": device(0.2048 * ORIN_REACH, 16, 1.3, 42.5, LATE, (128, 64), 10)}


def products(m):
    """(outputs, inputs) of a layer: q, k, v, output, gate, up, down."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    return [(q, m.dim), (kv, m.dim), (kv, m.dim), (m.dim, q), (m.ff, m.dim), (m.ff, m.dim), (m.dim, m.ff)]


def weight_bytes(m, weights):
    norms = (2 * m.layers + 1) * m.dim + 2 * m.layers * m.head_dim * m.head_norms
    return int((m.layers * sum(n * k for n, k in products(m)) + m.vocab * m.dim) * WEIGHTS[weights][0]) + 4 * norms


def step_bytes(m, weights):
    return weight_bytes(m, weights) + SLOTS * m.layers * m.kv_heads * m.head_dim * 2 * 2


def rows_of(path):
    with open(ROOT / path, newline="") as f:
        return list(csv.DictReader(f))


def instructions(m, weights):
    _, kernel, unit = WEIGHTS[weights]
    loops = {r["kernel"]: int(r["path"]) for r in rows_of("kernels/cuda/sass.csv") if "90" in r["arch"].split()}
    return weight_bytes(m, weights) * loops[kernel] / unit if kernel else 0


def longest(d, n_bytes, n_instructions):
    """{what limits: us}; a device's rates are a us."""
    by = {"bytes": n_bytes / (d.read * PRODUCT), "instructions": n_instructions / d.issue}
    return dict([max(by.items(), key=lambda item: item[1])])


def decode(d, m, weights):
    return {**longest(d, step_bytes(m, weights), instructions(m, weights)),
            "kernels": (m.layers * LAYER_KERNELS + STEP_KERNELS) * d.kernel, "token": TOKEN}


def attention(d, cache, slots):
    return {**longest(d, *(slots * 8 * each for each in CACHE[cache])), "kernels": CUT_KERNELS * d.alone}


def product(d, rows, n, k, most=CHUNK):
    """us: tiles in whole waves, halved while those of the most rows are fewer than two fifths of the multiprocessors. That
    is supposed: by rows 512 x 4096 the library takes whole tiles for 48 % of them, and prompts are as quick as if k and v
    had smaller."""
    height, width = d.tile
    while math.ceil(most / height) * math.ceil(n / width) < 0.4 * d.sms:
        width //= 2
    waves = math.ceil(math.ceil(rows / height) * math.ceil(n / width) / d.sms)
    return max(waves * 2 * height * width * k / (d.matrix / d.sms), 2 * n * k / (d.read * PRODUCT))


def prompt_ops(m, tokens):
    """Of the layers' products, and of attention to the tokens before."""
    return 2 * tokens * m.layers * sum(n * k for n, k in products(m)), 2 * tokens**2 * m.layers * m.heads * m.head_dim


def joined(m):
    """The same with q, k and v as one and gate and up as one."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    return [(q + 2 * kv, m.dim), (m.dim, q), (2 * m.ff, m.dim), (m.dim, m.ff)]


def between(m, passed):
    """Bytes a row and layer of the kernels between a prompt's products: three preparations, RoPE and store, the end of gate
    and up, and before they were passed on in bf16 their preparation; second pieces of prepared rows until then, too."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    store = 4 * (q + 2 * kv) + 4 * q + 2 * 2 * kv
    return store + (6 * (2 * m.dim + q) + 10 * m.ff if passed else 8 * (2 * m.dim + q) + (12 + 8) * m.ff)


def step(d, m, tokens, as_one):
    """A prompt in steps of STEP rows: q, k, v, gate and up apart and all operands prepared; or as one and passed on."""
    steps = [min(STEP, tokens - at) for at in range(0, tokens, STEP)]
    parts = joined(m) if as_one else products(m)
    kernels = d.prompt_kernels - (4 if as_one else 0)
    read = sum(m.layers * rows * between(m, as_one) for rows in steps if rows * m.ff * 4 > L2)
    return {"tiles": sum(m.layers * product(d, rows, n, k, STEP) for rows in steps for n, k in parts),
            "between": read / (d.read * COPY), "kernels": (len(steps) * m.layers * kernels + STEP_KERNELS) * d.kernel,
            "attention": prompt_ops(m, tokens)[1] / (d.matrix * ATTENTION_REACH),
            "head": m.vocab * m.dim * 2 / (d.read * PRODUCT), "prompt": PROMPT}


def prompt(d, m, tokens):
    chunks = [min(CHUNK, tokens - at) for at in range(0, tokens, CHUNK)]
    return {"tiles": sum(m.layers * product(d, rows, n, k) for rows in chunks for n, k in products(m)),
            "kernels": (len(chunks) * m.layers * d.prompt_kernels + STEP_KERNELS) * d.kernel,
            "attention": prompt_ops(m, tokens)[1] / (d.matrix * ATTENTION_REACH),
            "head": m.vocab * m.dim * 2 / (d.read * PRODUCT), "prompt": PROMPT}


def measured(kind, column, day=27, **want):
    return [float(r[column]) for r in rows_of(f"bench/results/2026-11-{day}-h200-{kind}.csv") if want.items() <= r.items()]


def step_us(model, weights, what, tokens):
    """Of a decode step or a prompt: one sequence, f16, the best of the runs' medians."""
    want = {"model": model, "weights": weights, "kv": "f16", "what": what, "tokens": str(tokens), "batch": "1"}
    rates = measured("steps", "tok_s", products="auto", **want) + measured("steps", "tok_s", products="cublas", **want)
    return (1 if what == "decode" else tokens) / max(rates) * 1e6


def attention_us(cache, slots):
    # kv4's type was called g4 when that file was made
    return min(measured("kernels", "us", figure=f"attention {cache.replace('kv4', 'g4')}, depth {slots}, batch 1"))


def row(name, predict, seen, say, full=None, aim="", kernels=0, kernel=0.0):
    """predict(device): {what: us}. full(device): us of a share of 100 %. kernels of `kernel` us each: what may one cost?"""
    def cell(d, us):
        if seen is None and d.prompt_kernels != H200.prompt_kernels:
            return ""  # Orin: own tiles take q, k and v in one launch anyway
        return say(us) + (f", {100 * full(d) / us:.0f} %" if full else "")
    parts, us = predict(H200), sum(predict(H200).values())
    allowed = f"{kernel - (us - 100 * full(H200) / int(aim)) / kernels:.1f}" if kernels and aim else ""
    return [name, ", ".join(f"{what} {100 * part / us:.0f}" for what, part in parts.items() if part >= 0.03 * us),
            *(cell(d, sum(predict(d).values())) for d in DEVICES.values()), aim + " %" * aim.isdigit(), allowed,
            *([cell(H200, seen), f"{100 * (us / seen - 1):+.0f} %"] if seen else [])]


def decode_row(name, model, m, weights, aim=""):
    return row(f"{name} {weights}", lambda d: decode(d, m, weights), step_us(model, weights, "decode", 128),
               lambda us: f"{1e6 / us:,.0f}" if us < 1e4 else f"{1e6 / us:.1f}",
               lambda d: step_bytes(m, weights) / (d.read * COPY), aim, m.layers * LAYER_KERNELS + STEP_KERNELS, H200.kernel)


def attention_row(cache, slots, aim=""):
    return row(f"{cache}, {slots:,} slots", lambda d: attention(d, cache, slots), attention_us(cache, slots),
               lambda us: f"{us:,.0f} us" if us >= 100 else f"{us:.1f} us",
               lambda d: slots * 8 * CACHE[cache][0] / d.read, aim, CUT_KERNELS, H200.alone)


def slope_row(aim):
    """fp8's share of bf16's time from 8,192 slots to 65,536."""
    def ratio(us):
        return (us("fp8", 65536) - us("fp8", 8192)) / (us("bf16", 65536) - us("bf16", 8192))
    return row("fp8's slope of bf16's", lambda d: {"bytes": ratio(lambda *at: sum(attention(d, *at).values()))},
               ratio(attention_us), "{:.2f}".format, aim=aim)


def prompt_row(name, model, m, tokens, aim=""):
    return row(f"{name} BF16, {tokens:,} tokens", lambda d: prompt(d, m, tokens), step_us(model, "BF16", "prefill", tokens),
               lambda us: f"{us / 1e3:.1f} ms",
               (lambda d: sum(prompt_ops(m, tokens)) / d.matrix) if tokens >= CHUNK else None, aim)


def step_row(name, m, tokens, as_one):
    return row(f"{name} BF16, {tokens:,} tokens, {'as one' if as_one else 'apart'}", lambda d: step(d, m, tokens, as_one),
               None, lambda us: f"{us / 1e3:.1f} ms",
               (lambda d: sum(prompt_ops(m, tokens)) / d.matrix) if tokens >= CHUNK else None)


def product_row(name, n, k, rows):
    """One of 8B, with the kernel that prepares its activations."""
    seen, = measured("kernels", "us", 26, figure=f"prefill BF16 8B {name} ({n} x {k}), {rows} rows")
    return row(f"{n} x {k}, {rows:,} rows", lambda d: {"tiles": product(d, rows, n, k), "kernels": 2 * d.alone}, seen,
               lambda us: f"{us:,.0f} us", lambda d: 2 * rows * n * k / d.matrix)


def table():
    big, one, small = "llama-3.1-8b", "llama-3.2-1b", "qwen3-0.6b"
    rows = [["*decode, tok/s*"], decode_row("8B", big, M8B, "BF16", "90"), decode_row("8B", big, M8B, "Q8_0", "88"),
            decode_row("8B", big, M8B, "Q4_K", "80"), decode_row("1B", one, M1B, "BF16", "80"),
            decode_row("1B", one, M1B, "Q4_K"), decode_row("0.6B", small, M06B, "BF16", "65"),
            ["*attention alone*"], attention_row("bf16", 65536, "88"), attention_row("fp8", 65536, "82"), slope_row("0.53"),
            attention_row("bf16", 8192), attention_row("fp8", 8192), attention_row("kv4", 65536),
            ["*prompts*"], prompt_row("8B", big, M8B, 2048, "70"), prompt_row("1B", one, M1B, 16, "2 ms"),
            prompt_row("0.6B", small, M06B, 512), ["*prompts in steps of 2,048 rows*"],
            *(step_row(name, m, tokens, as_one) for name, m, tokens in (("8B", M8B, 2048), ("8B", M8B, 128), ("1B", M1B, 16))
              for as_one in (False, True)), ["*products of prompts alone*"],
            product_row("gate", 14336, 4096, 512), product_row("gate", 14336, 4096, 2048),
            product_row("down", 4096, 14336, 512), product_row("down", 4096, 14336, 2048)]
    width = HEAD.count("|") - 1
    return "\n".join([HEAD, "|---" * width + "|", *(f"| {' | '.join(r + [''] * (width - len(r)))} |" for r in rows)])


def in_page(text):
    """The table that a page has."""
    return re.search(re.escape(HEAD) + r"(\n\|.*)*", text).group()


if __name__ == "__main__":
    print(table())
    if "--fix" in sys.argv[1:]:
        PAGE.write_text(PAGE.read_text().replace(in_page(PAGE.read_text()), table()))
