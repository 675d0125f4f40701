#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Model families beside llama.cpp: small random models, KL divergence of pipit's next-token distributions to llama.cpp's.

    families.py --llama-cpp DIR --work DIR --eval build/bench/pipit-eval [--family qwen3]... [--seeds 1,2,3]
                [--backends ref,cpu] [--libs FOLDER] [--out FILE.csv]

DIR of --llama-cpp is the unpacked source package llama-cpp-python 0.3.36 of PyPI, whose vendor/llama.cpp/build has been
built with shared libraries (targets llama and test-llama-archs). test-llama-archs writes the models, in F32. Its weights
are so small that a model's output hardly depends on its layers: each matrix is drawn anew with a standard deviation of
2 / sqrt(inputs), norms around 1, so that an error in any layer shows. It does not write gemma4, nor nemotron_h_moe with
experts: those models are made by tests/golden/make_oracle_vectors.py. Both sides keep K and V in F32, and llama.cpp uses
no flash attention. --libs: other shared libraries than those of the build.

200 token ids are scored in one prompt; then 136 are a prompt and 64 are decoded one by one. A line a model and backend:
    family, seed, file, backend, mean KL prompt, mean KL decode, largest KL
Needs the Python packages gguf and numpy."""

import argparse
import csv
import glob
import importlib.util
import os
import shutil
import subprocess
import sys

import numpy as np

FAMILIES = ["llama", "mistral3", "granite", "qwen2", "qwen3", "gemma2", "gemma3", "smollm3", "phi3", "olmo2", "exaone4",
            "nemotron", "seed_oss", "qwen3moe", "qwen2moe", "granitemoe", "gpt-oss", "qwen3vlmoe", "olmoe",
            "glm4moe", "ernie4_5-moe", "dots1", "minimax-m2", "lfm2moe", "qwen35", "qwen35moe", "lfm2", "granitehybrid", "nemotron_h",
            "nemotron_h_moe", "mamba2", "gemma4"]
# Of make_oracle_vectors.py: Gemma's E4B, 31B and 26B-A4B in small, and Nemotron 3 Nano.
OWN = {"gemma4": {"e": {}, "dense": {"shared": 0, "ple": 0, "v_is_k": True, "kv": (2, 1), "layers": 6},
                  "experts": {"shared": 0, "ple": 0, "v_is_k": True, "kv": (4, 1), "heads": 8, "layers": 12, "period": 6, "embd": 64,
                              "experts": 16, "used": 4, "wide": 32, "fused": True}},
       "nemotron_h_moe": {"experts": {"arch": "nemotron_h_moe", "layers": "SfaSfSf", "embd": 64, "experts": 16, "used": 4, "shared": 80,
                                      "expert_feed_forward_length": 48, "expert_gating_func": 2, "expert_weights_norm": True,
                                      "expert_weights_scale": 2.5}}}
N, FIRST = 200, 135


def strengthen(path, seed):
    """Draws the weights of a file anew, in place."""
    from gguf import GGUFReader
    rng = np.random.default_rng(seed)
    for t in GGUFReader(path, "r+").tensors:
        shape, name = t.data.shape, t.name
        if name.endswith(("exps.scale", "exp.scale")):  # pipit knows factors of what experts give only
            t.data[...] = 1 + 0.5 * rng.random(shape) if "down" in name else 1
        if name.endswith("ssm_a") and len(shape) == 2:  # of a state space: decays of different speed
            t.data[...] = -0.02 * 3.0**np.arange(shape[0]).reshape(shape)
            continue
        if t.data.dtype != np.float32 or "scale" in name or "ssm_a" in name or "sinks" in name:
            continue
        if "rope" in name:  # factors that divide frequencies: near 0 the angles are beyond what f32 holds
            new = 1 + 3 * rng.random(shape)
        elif "norm" in name and len(shape) == 1:
            new = 1 + 0.2 * rng.standard_normal(shape)
        elif "ernie" in path and name.endswith("attn_output.bias"):  # llama.cpp loads it and does not add it
            new = np.zeros(shape)
        elif len(shape) == 1:
            new = 0.3 * rng.standard_normal(shape)
        elif "token_embd" in name:
            new = rng.standard_normal(shape)
        else:
            new = 2 / np.sqrt(shape[-1]) * rng.standard_normal(shape)
        t.data[...] = new.astype(np.float32)


class Llama:
    """llama.cpp's logits for token ids."""

    def __init__(self, path):
        import llama_cpp
        self.api = llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        model = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def context(self, n=256):
        api, p = self.api, self.api.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_threads, p.n_threads_batch = n, n, n, 1, 1  # LongRoPE goes by n_ctx
        p.type_k = p.type_v = 0  # F32
        p.flash_attn_type = 0
        return api.llama_init_from_model(self.model, p)

    def run(self, ctx, ids, at, rows):
        """Evaluates ids from position `at`; the logits of all of them (`rows`), or of the last."""
        api = self.api
        batch = api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = int(t), at + i, 1, 0
            batch.logits[i] = rows or i == len(ids) - 1
        if api.llama_decode(ctx, batch):
            raise RuntimeError("llama.cpp cannot evaluate the ids")
        which = range(len(ids)) if rows else [len(ids) - 1]
        out = np.array([np.ctypeslib.as_array(api.llama_get_logits_ith(ctx, i), (self.n_vocab,)).copy() for i in which])
        api.llama_batch_free(batch)
        return out

    def logits(self, ids):
        prompt = self.run(self.context(), ids, 0, True)
        ctx = self.context()
        decoded = [self.run(ctx, ids[:FIRST + 1], 0, False)]
        for i in range(FIRST + 1, len(ids)):
            decoded.append(self.run(ctx, ids[i:i + 1], i, False))
        return prompt, np.concatenate(decoded)


def ours(o, path, ids, backend, decode):
    names = os.path.join(o.work, "ids.txt"), os.path.join(o.work, "out.npy")
    with open(names[0], "w") as f:
        f.write(" ".join(map(str, ids)))
    c = [o.eval, "--model", path, "--ids", names[0], "--kv", "f32", "--backend", backend, "-t", "1", "--dump", names[1],
         "--mode", "decode" if decode else "prefill", "--first", str(FIRST if decode else 0)]
    r = subprocess.run(c, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr.strip().splitlines()[-1])
    return np.load(names[1])


def divergence(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    a -= a.max(-1, keepdims=True)
    b -= b.max(-1, keepdims=True)
    a -= np.log(np.exp(a).sum(-1, keepdims=True))
    b -= np.log(np.exp(b).sum(-1, keepdims=True))
    return (np.exp(a) * (a - b)).sum(-1)


def models(o, family, seed):
    folder = os.path.join(o.work, f"{family}-{seed}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if family in OWN:
        here = os.path.dirname(os.path.abspath(__file__))
        spec = importlib.util.spec_from_file_location("own", os.path.join(here, "../../tests/golden/make_oracle_vectors.py"))
        own = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(own)
        for name, options in OWN[family].items():
            getattr(own, "scan" if family == "nemotron_h_moe" else family)(os.path.join(folder, f"{family}-{name}.gguf"), seed, **options)
        return sorted(glob.glob(os.path.join(folder, "*.gguf")))
    subprocess.run([os.path.join(o.libs, "test-llama-archs"), "-a", family, "-s", str(seed), "-o", folder], capture_output=True)
    found = sorted(glob.glob(os.path.join(folder, "*.gguf")))
    for path in found:
        strengthen(path, seed)
    return found


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--llama-cpp", required=True)
    a.add_argument("--work", required=True)
    a.add_argument("--eval", required=True)
    a.add_argument("--family", action="append")
    a.add_argument("--seeds", default="1,2,3")
    a.add_argument("--backends", default="ref,cpu")
    a.add_argument("--libs")
    a.add_argument("--out")
    o = a.parse_args()
    o.other, o.libs = o.libs, os.path.join(o.llama_cpp, "vendor", "llama.cpp", "build", "bin")
    os.environ["LLAMA_CPP_LIB_PATH"] = o.other or o.libs
    sys.path.insert(0, o.llama_cpp)
    os.makedirs(o.work, exist_ok=True)
    out = csv.writer(open(o.out, "w") if o.out else sys.stdout, lineterminator="\n")
    out.writerow(["family", "seed", "file", "backend", "kl_prompt", "kl_decode", "largest"])
    for family in o.family or FAMILIES:
        for seed in map(int, o.seeds.split(",")):
            for path in models(o, family, seed):
                row = [family, seed, os.path.basename(path)]
                try:
                    theirs = Llama(path)
                    ids = np.random.default_rng(seed).integers(0, theirs.n_vocab, N)
                    prompt, decoded = theirs.logits(ids)
                    for backend in o.backends.split(","):
                        kl = divergence(prompt, ours(o, path, ids, backend, False)), divergence(decoded, ours(o, path, ids, backend, True))
                        out.writerow([*row, backend, f"{kl[0].mean():.2e}", f"{kl[1].mean():.2e}", f"{max(kl[0].max(), kl[1].max()):.1e}"])
                except RuntimeError as e:
                    out.writerow([*row, "", e])


if __name__ == "__main__":
    main()
