#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/cache_*: a tiny random model, SwiftKV overlays of it, and for each policy the logits that
numpy_model.py gives, which tests/golden/test_cache.c compares with the engine's.

    make_cache_vectors.py PATH/TO/pipit-mkmodel [NAME ...]          needs numpy and gguf; NAME: only these

A .vec file: "PVEC", i32 n_prompt, n_new, n_vocab, bytes of policy text, bytes of overlay name, then policy text, overlay
name (both padded to 4 with zeros), prompt ids, new ids (i32), and f32 logits (n_new, n_vocab): the distribution that each
new token follows.

A .live file, for policies that evict: for each of these rows, each store and head the positions that its query could
see, as bits of a u64 (of the first row: that the prompt's cut left)."""

import hashlib
import pathlib
import random
import struct
import subprocess
import sys

import numpy as np

import numpy_model

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
N_PROMPT, N_NEW, N_VOCAB = 40, 24, 300
BASE = {"name": "full", "budget": 0, "recent": 0, "sinks": 0, "noise": "none", "seed": 0, "observe": 64,
        "tau0": 1.0, "tau1": 1.0, "scope": "head", "pos_new": False, "damp": 1.0, "select": None}
SPARQ = {"name": "sparq", "r": 3, "k": 12, "local": 3, "mean": False}
AHEAD = {"name": "infinigen", "alpha": 4, "cap": 20, "partial": 0.5}
WIDE = (2, 4, "wide", 1, 20, 12)  # heads of the store, dims of K and V
WIDE_TWO = (2, 2, "wide", 2, 20, 12)
CASES = [
    # name, overlay (split, group), () or None, policy text, policy of the NumPy model; infinigen: and a skew
    ("full", None, "f32", {}),
    ("window", None, "f32+window:20", {"name": "window", "budget": 20, "recent": 20}),
    ("sinks", None, "f32+sinks:4+window:16", {"name": "window", "budget": 20, "recent": 16, "sinks": 4}),
    ("h2o", None, "f32+h2o:20,recent=50%", {"name": "h2o", "budget": 20, "recent": 10}),
    ("keyformer", None, "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0}),
    ("fresh", None, "f32+keyformer:20,recent=30%,noise=fresh,tau=1..2,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "fresh", "seed": 3, "tau1": 2.0}),
    ("as_shipped", None, "f32+keyformer:20,recent=30%,mode=as-shipped,tau=1..2,seed=3",
     {"name": "as-shipped", "budget": 20, "recent": 6, "noise": "fresh", "seed": 3, "tau1": 2.0}),
    ("damped", None, "f32+keyformer:20,recent=30%,noise=fresh,tau=1..2,seed=3,damp=0.7",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "fresh", "seed": 3, "tau1": 2.0, "damp": 0.7}),
    ("layer_scores", None, "f32+h2o:20,recent=30%,score=layer", {"name": "h2o", "budget": 20, "recent": 6, "scope": "layer"}),
    ("shared_scores", None, "f32+keyformer:20,recent=30%,noise=once,score=shared,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0, "scope": "shared"}),
    ("acrosskv_shared", (2, 3), "f32+h2o:20,recent=30%,score=shared", {"name": "h2o", "budget": 20, "recent": 6, "scope": "shared"}),
    ("new_positions", None, "f32+h2o:20,recent=30%,pos=new", {"name": "h2o", "budget": 20, "recent": 6, "pos_new": True}),
    ("new_sinks", None, "f32+sinks:4+window:16,pos=new",
     {"name": "window", "budget": 20, "recent": 16, "sinks": 4, "pos_new": True}),
    ("snapkv", None, "f32+snapkv:20,observe=8,kernel=5,pool=max",
     {"name": "snapkv", "budget": 20, "recent": 8, "observe": 8, "kernel": 5, "pool": "max"}),
    ("snapkv_avg", None, "f32+snapkv:24,observe=4,kernel=7,pool=avg",
     {"name": "snapkv", "budget": 24, "recent": 4, "observe": 4, "kernel": 7, "pool": "avg"}),
    ("snapkv_acrosskv", (2, 3), "f32+sinks:2+snapkv:20,observe=6,kernel=3,prefill=dense",
     {"name": "snapkv", "budget": 20, "recent": 6, "observe": 6, "sinks": 2, "kernel": 3, "pool": "max"}),
    ("expected", None, "f32+expected:20,recent=30%,ahead=16,every=5",
     {"name": "expected", "budget": 20, "recent": 6, "sinks": 4, "ahead": 16, "every": 5, "cov": 1, "floor": 0}),
    ("expected_mean", None, "f32+sinks:2+expected:24,recent=50%,ahead=512,every=64,cov=off,floor=0.05",
     {"name": "expected", "budget": 24, "recent": 12, "sinks": 2, "ahead": 512, "every": 64, "cov": 0, "floor": 0.05}),
    ("kvzap", None, "f32+kvzap:20,window=6", {"name": "kvzap", "budget": 20, "recent": 6, "sinks": 4, "n_new": 5}),
    ("streaming", None, "f32+streaming:12,chunk=1",
     {"name": "streaming", "budget": 16, "sinks": 4, "pos_new": True}),
    ("streaming_sinks", None, "f32+sinks:1+streaming:9,chunk=1",
     {"name": "streaming", "budget": 10, "sinks": 1, "pos_new": True}),
    ("dense", None, "f32+keyformer:20,recent=0%,noise=none,tau=1..1,prefill=dense",
     {"name": "keyformer", "budget": 20, "recent": 0}),
    ("sparq", None, "f32+sparq:r=3,k=12", {"select": SPARQ}),
    ("sparq_as_shipped", None, "f32+sparq:r=3,k=12,mode=as-shipped,layout=2k", {"select": {**SPARQ, "mode": "as-shipped"}}),
    ("sparq_mean", None, "f32+sparq:r=3,k=12,mean=on", {"select": {**SPARQ, "mean": True}}),
    ("sparq_keyformer", None, "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3+sparq:r=3,k=12,mean=on",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0, "select": {**SPARQ, "mean": True}}),
    ("sparq_acrosskv", (2, 3), "f32+window:20+sparq:r=3,k=12,mean=on",
     {"name": "window", "budget": 20, "recent": 20, "select": {**SPARQ, "mean": True}}),
    # RocketKV's two stages: the prompt's keys are thinned out once, then each query selects among those left.
    ("snapkv_sparq", None, "f32+snapkv:24,observe=8,kernel=5,pool=max+sparq:r=3,k=12,layout=2k",
     {"name": "snapkv", "budget": 24, "recent": 8, "observe": 8, "kernel": 5, "pool": "max", "select": SPARQ}),
    ("snapkv_topv", None, "f32+snapkv:24,observe=8,kernel=5,pool=max+topv:9,renorm=on",
     {"name": "snapkv", "budget": 24, "recent": 8, "observe": 8, "kernel": 5, "pool": "max",
      "select": {"name": "topv", "k": 9, "renorm": True}}),
    ("topv", None, "f32+topv:9,renorm=off", {"select": {"name": "topv", "k": 9, "renorm": False}}),
    ("topv_h2o", None, "f32+h2o:20,recent=50%+topv:9,renorm=on",
     {"name": "h2o", "budget": 20, "recent": 10, "select": {"name": "topv", "k": 9, "renorm": True}}),
    ("infinigen", (), "f32+infinigen:alpha=1,cap=60%,partial=0.5", {"select": {**AHEAD, "alpha": 1, "cap": 60}}),
    ("infinigen_cap", (), "f32+infinigen:alpha=4,cap=20%,partial=0.3", {"select": {**AHEAD, "partial": 0.3}}),
    ("infinigen_count", (), "f32+infinigen:count=7,partial=1", {"select": {**AHEAD, "count": 7, "partial": 1}}),
    ("infinigen_share", (), "f32+infinigen:share=25%,partial=0.5,skew=off", {"select": {**AHEAD, "share": 25, "skew": False}}),
    ("infinigen_all", (), "f32+infinigen:alpha=1000,cap=100%,partial=0.2", {}),
    ("infinigen_partial8", (), "f32+infinigen:count=7,partial=0.5,partial8=on", {"select": {**AHEAD, "count": 7, "partial8": True}}),
    ("infinigen_swiftkv", (2, 1), "f32+infinigen:count=6,partial=0.5", {"select": {**AHEAD, "count": 6}}),
    ("infinigen_acrosskv", (2, 3), "f32+infinigen:alpha=1,cap=50%,partial=0.5", {"select": {**AHEAD, "alpha": 1, "cap": 50}}),
    ("swiftkv", (2, 1), "f32", {}),
    ("acrosskv", (2, 4), "f32", {}),
    ("acrosskv_short", (2, 3), "f32", {}),
    ("acrosskv_outputs", (2, 3, "--outputs"), "f32", {}),
    ("acrosskv_outputs_keyformer", (2, 3, "--outputs"), "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0}),
    ("acrosskv_keyformer", (2, 4), "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0}),
    ("acrosskv_observe", (2, 4), "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3,observe=8",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0, "observe": 8}),
    ("wide", WIDE, "f32", {}),
    ("wide_two_heads", WIDE_TWO, "f32", {}),
    ("wide_keyformer", WIDE, "f32+keyformer:20,recent=30%,noise=once,tau=1..2,seed=3",
     {"name": "keyformer", "budget": 20, "recent": 6, "noise": "once", "seed": 3, "tau1": 2.0}),
    ("wide_snapkv", WIDE, "f32+sinks:2+snapkv:20,observe=6,kernel=3,prefill=dense",
     {"name": "snapkv", "budget": 20, "recent": 6, "observe": 6, "sinks": 2, "kernel": 3, "pool": "max"}),
    ("wide_new_positions", WIDE, "f32+h2o:20,recent=30%,pos=new", {"name": "h2o", "budget": 20, "recent": 6, "pos_new": True}),
    ("wide_sparq", WIDE, "f32+sparq:r=5,k=12,mean=on", {"select": {**SPARQ, "r": 5, "mean": True}}),
    ("wide_topv", WIDE, "f32+topv:9,renorm=off", {"select": {"name": "topv", "k": 9, "renorm": False}}),
]


def pad(text):
    raw = text.encode()
    return raw + b"\0" * (-len(raw) % 4)


def write_skew(path, base, below, split):
    """Random rotations and permutations for every store that the third layer or a later one owns."""
    import gguf
    rng = np.random.default_rng(23)
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_string("general.type", "overlay")
    w.add_string("pipit.overlay.base_sha256", hashlib.sha256(base.read_bytes()).hexdigest())
    if below:
        w.add_array("pipit.overlay.builds_on", [hashlib.sha256(below.read_bytes()).hexdigest()])
    for j in range(2, 6):
        if split and (j - split[0]) % split[1]:
            continue
        turn = np.concatenate([np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2)])
        order = np.concatenate([np.eye(8)[rng.permutation(8)] for _ in range(2)])
        w.add_tensor(f"blk.{j}.attn_skew.weight", turn.astype(np.float32))
        w.add_tensor(f"blk.{j}.attn_columns.weight", order.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_scores(path, base):
    """Random maps of hidden states to scores."""
    import gguf
    rng = np.random.default_rng(31)
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_string("general.type", "overlay")
    w.add_string("pipit.overlay.base_sha256", hashlib.sha256(base.read_bytes()).hexdigest())
    for j in range(6):
        w.add_tensor(f"blk.{j}.attn_score.weight", rng.standard_normal((2, 32)).astype(np.float32))
        w.add_tensor(f"blk.{j}.attn_score.bias", rng.standard_normal(2).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_wide(path, base, split, group, _, heads, k_dim, v_dim, layers=6, embd=32, n_head=4):
    """Random stores of a width of their own, and each query head's maps."""
    import gguf
    rng = np.random.default_rng(29)
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_string("general.type", "overlay")
    w.add_string("pipit.overlay.base_sha256", hashlib.sha256(base.read_bytes()).hexdigest())
    for key, value in (("num_key_value_layers", split), ("key_value_group_size", group), ("key_length", k_dim), ("value_length", v_dim)):
        w.add_uint32("pipit.swiftkv." + key, value)
    add = lambda name, rows, cols: w.add_tensor(name, (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32))
    w.add_tensor("norm_swiftkv.weight", rng.uniform(0.5, 1.5, embd).astype(np.float32))
    for j in range(split, layers):
        add(f"blk.{j}.attn_q_swiftkv.weight", embd, embd)
        add(f"blk.{j}.attn_q_map_swiftkv.weight", n_head * k_dim, embd // n_head)
        add(f"blk.{j}.attn_v_map_swiftkv.weight", embd, v_dim)
        if (j - split) % group == 0:
            add(f"blk.{j}.attn_k_swiftkv.weight", heads * k_dim, embd)
            add(f"blk.{j}.attn_v_swiftkv.weight", heads * v_dim, embd)
            freqs = np.sort(rng.uniform(0, 1, k_dim // 2))[::-1] ** 2
            freqs[-3:] = 0  # these do not rotate
            w.add_tensor(f"blk.{j}.attn_freqs_swiftkv.weight", freqs.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main(mkmodel, *names):
    base = DATA / "cache_model.gguf"
    subprocess.run([mkmodel, "--arch", "llama", "--layers", "6", "--hidden", "32", "--heads", "4", "--kv-heads", "2",
                    "--ffn", "48", "--vocab", str(N_VOCAB), "--ctx", "128", "--type", "F32", "--tied", "yes", "--seed", "11",
                    str(base)], check=True)
    overlays = {}
    skews = {}
    for name, split, _, _ in CASES:
        if name.startswith("infinigen") and split not in skews:
            skews[split] = DATA / ("cache_skew.gguf" if not split else f"cache_skew_{split[0]}_{split[1]}.gguf")
        if split and split not in overlays and split[2:3] == ("wide",):
            overlays[split] = DATA / f"cache_wide_{split[1]}_{split[3]}.gguf"
            write_wide(overlays[split], base, *split)
        if split and split not in overlays:
            more = split[2:]  # options
            overlays[split] = DATA / f"cache_swiftkv_{split[0]}_{split[1]}{''.join(more).replace('--', '_')}.gguf"
            subprocess.run([mkmodel, "--swiftkv", str(split[0]), "--group", str(split[1]), "--base", str(base),
                            "--type", "F32", *more, str(overlays[split])], check=True)
    for split, path in skews.items():
        write_skew(path, base, overlays.get(split), split)
    scores = DATA / "cache_scores.gguf"
    write_scores(scores, base)
    rng = random.Random(5)
    prompt = [rng.randrange(256) for _ in range(N_PROMPT)]
    new = [rng.randrange(256) for _ in range(N_NEW)]
    for name, split, text, policy in CASES:
        if names and name not in names:
            continue
        files = [base] + ([overlays[split]] if split else []) + ([skews[split]] if name.startswith("infinigen") else [])
        files += [scores] if name == "kvzap" else []
        said = new[:policy.pop("n_new", N_NEW)]
        rows, live = numpy_model.run(files, prompt, said, {**BASE, **policy})
        overlay = ",".join(f.name for f in files[1:])
        with open(DATA / f"cache_{name}.vec", "wb") as f:
            f.write(b"PVEC" + struct.pack("<5i", N_PROMPT, len(said), N_VOCAB, len(pad(text)), len(pad(overlay))))
            f.write(pad(text) + pad(overlay))
            f.write(struct.pack(f"<{N_PROMPT + len(said)}i", *prompt, *said))
            f.write(rows.astype("<f4").tobytes())
        if policy.get("budget"):
            bits = [sum(1 << q for q in head) for row in live for store in row.values() for head in store]
            (DATA / f"cache_{name}.live").write_bytes(struct.pack(f"<{len(bits)}Q", *bits))
        print(name, rows.shape, float(abs(rows).max()))


if __name__ == "__main__":
    main(*sys.argv[1:])
