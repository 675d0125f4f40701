#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models of real shapes with random weights, for speed and memory: what pipit and llama.cpp both load.

    shaped.py OUT-FOLDER [NAME]... [--tokenizer FILE.gguf]

    qwen35-0.8b        24 layers, every fourth with attention, the others with the gated delta rule
    qwen3moe-2b-a0.3b  20 layers of 48 experts, 6 of them a token
    gemma4-e2b         35 layers, the last 20 of which read earlier K and V; per-layer embeddings

Keys and tensors are those of tests/golden/make_oracle_vectors.py. Matrices have the types that llama-quantize gives Q4_K_M,
random codes, and scales that keep values near 1. --tokenizer: the vocabulary of another file, filled up with unused tokens, so
that a daemon can be asked; without one there are token ids alone. Needs the Python packages gguf and numpy."""

import argparse
import importlib.util
import os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = os.path.dirname(os.path.abspath(__file__))
SPEC = importlib.util.spec_from_file_location("oracle", os.path.join(HERE, "../../tests/golden/make_oracle_vectors.py"))
oracle = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(oracle)
N_BLOCKS = 10007  # a prime: rows differ
UNUSED = 5


def blocks(rng, kind):
    """Random blocks of a type whose values have a standard deviation of 1, and where their f16 scales are."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    b = rng.integers(0, 256, (N_BLOCKS, size), dtype=np.uint8)
    at = {Type.Q4_K: [0, 2], Type.Q6_K: [208]}[kind]
    if kind == Type.Q6_K:
        b[:, 192:208] &= 31  # scales of 16 values, none negative

    def scale(d):
        for i in at:  # the second one is what minima are in: codes are 0 to 15
            b[:, i:i + 2] = np.frombuffer(np.float16(d * (7.5 if i else 1) if len(at) > 1 else d).tobytes(), np.uint8)
    scale(2.0**-6)
    unit = gguf.quants.dequantize(b, kind).std() * 2.0**6
    return b, lambda std: scale(std / unit)


class Shaped(oracle.Tiny):
    """As Tiny, with large quantised matrices that are written as they are made."""

    real, tokenizer = {}, None

    def __init__(self, path, arch, seed, **keys):
        self.todo, self.layers, self.made = [], keys["block_count"], {}
        super().__init__(path, arch, seed, **{**keys, **self.real})

    def add_tokenizer(self):
        if not self.tokenizer:
            return super().add_tokenizer()
        for name, f in gguf.GGUFReader(self.tokenizer).fields.items():
            if not name.startswith("tokenizer.") or name.endswith("chat_template"):
                continue
            v, kinds = f.contents(), f.types
            fill = {"tokens": [f"[unused {i}]" for i in range(oracle.VOCAB)], "scores": [0.0] * oracle.VOCAB,
                    "token_type": [UNUSED] * oracle.VOCAB}.get(name.rsplit(".", 1)[1], [])
            if fill:
                v = (v + fill[len(v):])[:oracle.VOCAB]
            self.w.add_key_value(name, v, kinds[0], kinds[-1] if len(kinds) > 1 else None)

    def kind_of(self, name):
        il = int(name.split(".")[1]) if name.startswith("blk.") else 0
        n = self.layers
        if "ffn_gate_inp" in name or "conv1d" in name:
            return Type.F32
        if name.startswith("per_layer_model_proj"):
            return Type.BF16
        if name in ("token_embd.weight", "output.weight"):
            return Type.Q6_K
        more = il < n // 8 or il >= 7 * n // 8 or (il - n // 8) % 3 == 2
        return Type.Q6_K if more and ("ffn_down" in name or "attn_v" in name) else Type.Q4_K

    def put(self, name, shape, dtype, make, kind=None):
        self.w.add_tensor_info(name, shape, np.dtype(dtype), int(np.prod(shape)) * np.dtype(dtype).itemsize, kind)
        self.todo.append(make)

    def stack(self, name, experts, rows, cols, size=2.0):
        self.matrix(name, rows, cols, size, experts)

    def matrix(self, name, rows, cols, size=1.0, experts=0):
        kind, std, lead = self.kind_of(name), size / cols**0.5, ((experts,) if experts else ())
        if kind in (Type.F32, Type.BF16):
            values = self.rng.normal(0, std, (rows, cols)).astype(np.float32)
            if kind == Type.F32:
                return self.put(name, values.shape, np.float32, lambda: values)
            return self.put(name, (rows, 2 * cols), np.uint8, lambda: (values.view(np.uint32) >> 16).astype(np.uint16), kind)
        n, size = gguf.GGML_QUANT_SIZES[kind]
        assert cols % n == 0, name

        def make():
            if kind not in self.made:
                self.made[kind] = blocks(self.rng, kind)
            b, scale = self.made[kind]
            scale(std)
            return np.resize(b, (max(experts, 1) * rows * (cols // n), size))
        return self.put(name, (*lead, rows, cols // n * size), np.uint8, make, kind)

    def vector(self, name, n, mean=1.0, size=0.1):
        self.values(name, self.rng.normal(mean, size, n))

    def values(self, name, values):
        v = np.array(values, dtype=np.float32)
        self.put(name, v.shape, np.float32, lambda: v)

    def close(self):
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_ti_data_to_file()
        for make in self.todo:
            self.w.write_tensor_data(make())
        self.w.close()


MODELS = {
    "qwen35-0.8b": (248320, {"context_length": 262144, "rope__dimension_sections": [11, 11, 10, 0], "rope__freq_base": 1e7},
                    lambda path: oracle.qwen35(path, 1, layers=24, period=4, predictors=0, kv=2, rot=64, groups=16, ranks=16, state=128,
                                               embd=1024, n_ff=3584, heads=8, dim=256)),
    "qwen3moe-2b-a0.3b": (151936, {"context_length": 40960, "rope__freq_base": 1e6},
                          lambda path: oracle.moe(path, 1, experts=48, used=6, embd=1024, n_ff=3072, wide=512, heads=16, kv=4, dim=128,
                                                  layers=20, qk_norm=True)),
    "gemma4-e2b": (262144, {"context_length": 131072, "attention__sliding_window": 512, "final_logit_softcapping": 30.0},
                   lambda path: oracle.gemma4(path, 1, layers=35, shared=20, ple=256, dims=(256, 512), period=5, embd=1536,
                                              ffs=(6144, 12288), heads=8)),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    p.add_argument("--tokenizer")
    a = p.parse_args()
    oracle.Tiny, Shaped.tokenizer = Shaped, a.tokenizer
    for name in a.names or MODELS:
        oracle.VOCAB, Shaped.real, make = MODELS[name]
        path = os.path.join(a.folder, name + ".gguf")
        make(path + ".part")
        os.rename(path + ".part", path)
        print(f"{path}: {os.path.getsize(path) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
