#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-mkmodel and pipit-quantize as a user calls them.

    test_model_tools.py PIPIT_MKMODEL PIPIT_QUANTIZE [PIPIT_EVAL]

Files are read back by a reader of this folder, not by ours; wide overlays by the engine, too. Exit 77 without numpy.
"""

import csv
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError as e:
    print(f"SKIP: {e}; the tests of the model tools need python3-numpy")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gguf_file import F16, F32, Q8_0, Gguf  # noqa: E402

MKMODEL, QUANTIZE, *EVAL = sys.argv[1:]
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
SMALL = ["--layers", "3", "--hidden", "64", "--ffn", "96", "--heads", "4", "--kv-heads", "2", "--vocab", "300"]


class Tools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.dir.cleanup()

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def run_tool(self, *argv, code=0, says=None):
        r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(r.returncode, code, r.stderr)
        if code == 0:
            self.assertEqual(r.stdout, "")
        if says:
            self.assertIn(says, r.stderr)
        return r.stderr

    def make(self, name, *options):
        self.run_tool(MKMODEL, *options, self.path(name))
        return Gguf(self.path(name))

    def assert_no_leftovers(self, *expected):
        self.assertEqual(sorted(os.listdir(self.dir.name)), sorted(expected))


class MkModel(Tools):
    def test_llama(self):
        g = self.make("a", *SMALL, "--type", "f16", "--ctx", "777", "--rope-base", "5000")
        k = g.keys
        self.assertEqual(k["general.architecture"], b"llama")
        self.assertEqual(k["llama.block_count"], 3)
        self.assertEqual(k["llama.context_length"], 777)
        self.assertEqual(k["llama.attention.head_count"], 4)
        self.assertEqual(k["llama.attention.head_count_kv"], 2)
        self.assertEqual(k["llama.attention.key_length"], 16)
        self.assertEqual(k["llama.rope.freq_base"], 5000)
        self.assertEqual(g.tensors["blk.2.attn_k.weight"][:2], (F16, [64, 32]))
        self.assertEqual(g.tensors["blk.0.attn_norm.weight"][:2], (F32, [64]))
        self.assertNotIn("output.weight", g.tensors)
        self.assertEqual(len(g.tensors), 2 + 3 * 9)
        w = g.array("blk.1.ffn_up.weight")
        self.assertAlmostEqual(float(w.std()), 1 / 8, delta=0.01)
        self.assertLess(abs(float(w.mean())), 0.01)
        self.assertFalse(np.array_equal(w, g.array("blk.0.ffn_up.weight")))
        self.assert_no_leftovers("a")

    def test_architectures(self):
        qwen2 = self.make("qwen2", "--arch", "qwen2", *SMALL)
        self.assertEqual(qwen2.tensors["blk.0.attn_v.bias"][:2], (F32, [32]))
        qwen3 = self.make("qwen3", "--arch", "qwen3", *SMALL, "--head-dim", "32", "--tied", "no")
        self.assertEqual(qwen3.tensors["blk.0.attn_k_norm.weight"][1], [32])
        self.assertEqual(qwen3.tensors["blk.0.attn_q.weight"][1], [64, 128])
        self.assertIn("output.weight", qwen3.tensors)
        gemma3 = self.make("gemma3", "--arch", "gemma3", *SMALL, "--window", "99")
        self.assertEqual(gemma3.keys["gemma3.attention.sliding_window"], 99)
        self.assertIn("blk.2.post_ffw_norm.weight", gemma3.tensors)
        sigma = self.make("sigma", "--arch", "sigma", *SMALL, "--k-heads", "1", "--v-heads", "2")
        self.assertEqual(sigma.keys["sigma.attention.head_count_k"], 1)
        self.assertEqual(sigma.keys["sigma.attention.aug_q_length"], 96)
        self.assertEqual(sigma.tensors["blk.0.attn_q_down.weight"][1], [96, 64])
        self.assertEqual(sigma.tensors["blk.0.attn_k.weight"][1], [64, 16])

    def test_tokenizer_is_every_byte(self):
        k = self.make("a", *SMALL).keys
        tokens = [t.decode() for t in k["tokenizer.ggml.tokens"]]
        self.assertEqual(len(tokens), 300)
        self.assertEqual(len(set(tokens)), 300)
        self.assertEqual(tokens[0], "!")
        self.assertEqual(tokens[93], "~")
        self.assertEqual(tokens[94], "\u00a1")
        self.assertEqual(tokens[188], "\u0100")  # byte 0
        self.assertEqual(tokens[220], "\u0120")  # space
        self.assertEqual(tokens[255], "\u0143")  # byte 0xad
        self.assertEqual(tokens[k["tokenizer.ggml.eos_token_id"]], "<|eos|>")
        self.assertEqual(k["tokenizer.ggml.token_type"], [1] * 256 + [3] * 4 + [5] * 40)
        self.assertEqual(k["tokenizer.ggml.merges"], [])

    def test_same_seed_same_bytes(self):
        files = []
        for name, options in (("a", ["--threads", "1"]), ("b", ["--threads", "3"]), ("c", ["--seed", "2"])):
            self.make(name, *SMALL, "--type", "q4_1", *options)
            with open(self.path(name), "rb") as f:
                files.append(f.read())
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0], files[2])

    def test_types(self):
        for kind, number in (("F32", 0), ("BF16", 30), ("Q8_0", 8), ("Q4_0", 2), ("Q5_1", 7), ("IQ4_NL", 20), ("MXFP4", 39)):
            g = self.make(kind, *SMALL, "--type", kind, "--embd-type", "f16")
            self.assertEqual(g.tensors["blk.0.attn_q.weight"][0], number)
            self.assertEqual(g.tensors["token_embd.weight"][0], F16)
        for kind, number in (("Q2_K", 10), ("Q3_K", 11), ("Q4_K", 12), ("Q5_K", 13), ("Q6_K", 14), ("IQ4_XS", 23)):
            g = self.make(kind, "--layers", "1", "--type", kind)
            self.assertEqual(g.tensors["blk.0.attn_q.weight"][0], number)
        g = self.make("narrow", *SMALL, "--type", "q4_k")  # rows of 64 and 96
        self.assertEqual(g.tensors["blk.0.attn_q.weight"][0], Q8_0)

    def test_presets(self):
        g = self.make("a", "--shape", "kvheavy", "--layers", "1")
        self.assertEqual(g.keys["llama.attention.head_count_kv"], 16)
        self.assertEqual(g.keys["llama.block_count"], 1)

    def test_refusals(self):
        for options, says in (
            (["--shape", "gpt-9"], "--shape: 'gpt-9' is not known"),
            (["--arch", "rnn"], "--arch: 'rnn'"),
            (["--kv-heads", "3"], "--k-heads: 3 does not divide 4"),
            (["--k-heads", "1"], "--arch sigma does"),
            (["--head-dim", "33"], "is odd"),
            (["--vocab", "259"], "260..16777216"),
            (["--type", "q9"], "--type: 'q9'"),
            (["--layres", "3"], "did you mean --layers?"),
            (["--swiftkv", "1"], "needs --base"),
            (["--wide", "128+256"], "--wide belongs to --swiftkv"),
            (["--skew"], "--skew needs --base"),
            (["--skew", "--swiftkv", "1"], "are two files"),
            (["--tied", "maybe"], "--tied: 'maybe'"),
        ):
            self.run_tool(MKMODEL, *options, self.path("x"), code=2, says=says)
        self.run_tool(MKMODEL, code=2, says="one output file is needed")
        self.run_tool(MKMODEL, "--base", self.path("none"), "--swiftkv", "1", self.path("x"), code=6)
        self.assert_no_leftovers()


class SwiftKv(Tools):
    def test_overlay_is_the_mean_of_its_group(self):
        base = self.make("base", *SMALL, "--layers", "6", "--arch", "qwen2", "--type", "f32")
        self.run_tool(MKMODEL, "--swiftkv", "1", "--group", "3", "--base", self.path("base"), self.path("over"))
        over = Gguf(self.path("over"))
        with open(self.path("base"), "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        self.assertEqual(over.keys["pipit.overlay.base_sha256"].decode(), digest)
        self.assertEqual(over.keys["pipit.swiftkv.num_key_value_layers"], 1)
        self.assertEqual(over.keys["pipit.swiftkv.key_value_group_size"], 3)
        self.assertTrue(np.array_equal(over.array("norm_swiftkv.weight"), base.array("blk.1.attn_norm.weight")))
        for part, kind in (("attn_k", "weight"), ("attn_v", "weight"), ("attn_k", "bias")):
            for leader, members in ((1, (1, 2, 3)), (4, (4, 5))):
                want = np.mean([base.array(f"blk.{j}.{part}.{kind}") for j in members], axis=0)
                got = over.array(f"blk.{leader}.{part}_swiftkv.{kind}")
                self.assertLess(np.abs(want - got).max(), 1e-6)
        for j in range(1, 6):
            self.assertEqual(over.tensors[f"blk.{j}.attn_q_swiftkv.weight"], base.tensors[f"blk.{j}.attn_q.weight"])
        self.assertEqual(len(over.tensors), 1 + 5 * 2 + 2 * 4)

    def test_wide_stores(self):
        """Shapes as docs/design/distillation.md has them, and the engine takes the file."""
        base = self.make("base", *SMALL, "--layers", "6", "--type", "q4_1")
        wide = ["--swiftkv", "2", "--group", "3", "--wide", "48+80", "--base", self.path("base")]
        self.run_tool(MKMODEL, *wide, self.path("over"))
        over = Gguf(self.path("over"))
        self.assertEqual([over.keys[f"pipit.swiftkv.{k}_length"] for k in ("key", "value")], [48, 80])
        self.assertEqual([over.keys[f"pipit.swiftkv.{k}"] for k in ("num_key_value_layers", "key_value_group_size")], [2, 3])
        q4_1 = base.tensors["blk.2.attn_q.weight"][0]
        want = {"norm_swiftkv.weight": (F32, [64])}
        for j in range(2, 6):
            want[f"blk.{j}.attn_q_swiftkv.weight"] = (q4_1, [64, 64])
            want[f"blk.{j}.attn_q_map_swiftkv.weight"] = (F16, [16, 4 * 48])  # rows that are no whole blocks
            want[f"blk.{j}.attn_v_map_swiftkv.weight"] = (F16, [80, 4 * 16])
        for j in (2, 5):
            want |= {f"blk.{j}.attn_k_swiftkv.weight": (q4_1, [64, 48]), f"blk.{j}.attn_v_swiftkv.weight": (q4_1, [64, 80]),
                     f"blk.{j}.attn_freqs_swiftkv.weight": (F32, [24])}
        self.assertEqual({n: (kind, list(dims)) for n, (kind, dims, _) in over.tensors.items()}, want)
        self.assertTrue(np.allclose(over.array("blk.5.attn_freqs_swiftkv.weight"), 1e4 ** (-np.arange(24) / 24), rtol=1e-5))
        maps = [over.array(f"blk.{j}.attn_v_map_swiftkv.weight") for j in range(2, 6)]
        self.assertLess(abs(np.std(maps) * 80 ** 0.5 - 1), 0.05)
        self.assertFalse(np.array_equal(maps[0], maps[1]))
        self.run_tool(MKMODEL, *wide, self.path("same"))
        self.run_tool(MKMODEL, *wide, "--seed", "2", self.path("other"))
        self.assertEqual(over.data, Gguf(self.path("same")).data)
        self.assertNotEqual(over.data, Gguf(self.path("other")).data)
        with open(self.path("text"), "w", encoding="utf-8") as f:
            f.write("Once upon a time there was a base. " * 8)
        for program in EVAL:
            found = set()
            for more in ([], ["--overlay", self.path("over")], ["--overlay", self.path("other")]):
                p = subprocess.run([program, "-m", self.path("base"), "--text", self.path("text"), "-c", "64", "-n", "1", "--backend", "ref",
                                    *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(p.returncode, 0, p.stderr)
                found.add(float(next(csv.DictReader(p.stdout.splitlines()))["perplexity"]))
            self.assertTrue(np.isfinite(list(found)).all())
            self.assertEqual(len(found), 3)

    def test_wide_refusals(self):
        self.make("base", *SMALL)
        self.make("biased", *SMALL, "--arch", "qwen2")
        for base, wide, says in (("base", "128", "is not K+V"), ("base", "127+256", "is not K+V"), ("base", "128+", "is not K+V"),
                                 ("base", "1026+64", "is not K+V"), ("base", "64+64+64", "is not K+V"), ("base", "-2+64", "is not K+V"),
                                 ("biased", "128+256", "has biases")):
            self.run_tool(MKMODEL, "--swiftkv", "1", "--wide", wide, "--base", self.path(base), self.path("x"), code=2, says=says)
        self.assert_no_leftovers("base", "biased")

    def test_refusals(self):
        self.make("base", *SMALL)
        for split, group, says in (("3", "1", "--swiftkv: 3 is not in 1..2"), ("1", "3", "--group: 3 is not in 1..2")):
            self.run_tool(MKMODEL, "--swiftkv", split, "--group", group, "--base", self.path("base"),
                          self.path("x"), code=2, says=says)
        self.assert_no_leftovers("base")


class Skew(Tools):
    def test_overlay_of_unit_matrices(self):
        base = self.make("base", *SMALL, "--layers", "4", "--type", "f32")
        self.run_tool(MKMODEL, "--skew", "--base", self.path("base"), self.path("over"))
        over = Gguf(self.path("over"))
        with open(self.path("base"), "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        self.assertEqual(over.keys["pipit.overlay.base_sha256"].decode(), digest)
        dim = base.keys["llama.attention.key_length"]
        want = np.tile(np.eye(dim), (base.keys["llama.attention.head_count_kv"], 1))
        for j in (2, 3):
            for part in ("attn_skew", "attn_columns"):
                self.assertTrue(np.array_equal(over.array(f"blk.{j}.{part}.weight").reshape(want.shape), want))
        self.assertEqual(len(over.tensors), 4)

    def test_refusals(self):
        self.make("base", *SMALL, "--layers", "2")
        self.run_tool(MKMODEL, "--skew", "--base", self.path("base"), self.path("x"), code=2, says="no third one")
        self.assert_no_leftovers("base")


class Quantize(Tools):
    def test_matrices_change_and_the_rest_stays(self):
        a = self.make("a", *SMALL, "--type", "f32", "--tied", "no")
        err = self.run_tool(QUANTIZE, self.path("a"), self.path("b"), "q8_0", "--keep", "blk.0.*", "--head-type", "f16")
        b = Gguf(self.path("b"))
        self.assertEqual(err.count("\n"), len(a.tensors) + 1)  # a line each, and what it came to
        self.assertEqual(list(a.tensors), list(b.tensors))
        for name, (kind, dims, raw) in a.tensors.items():
            self.assertEqual(dims, b.tensors[name][1])
            if name == "output.weight":
                self.assertEqual(b.tensors[name][0], F16)
                self.assertEqual(b.tensors[name][2], np.frombuffer(raw, "<f4").astype("<f2").tobytes())
            elif name.startswith("blk.0.") or "norm" in name:
                self.assertEqual(b.tensors[name][2], raw)
            else:
                self.assertEqual(b.tensors[name][0], Q8_0)
                x, y = a.array(name), b.array(name)
                self.assertLess(np.sqrt(((x - y) ** 2).mean() / (x ** 2).mean()), 0.01)
        changed = {"general.file_type": 7, "general.quantization_version": 2}
        self.assertEqual({**a.keys, **changed}, b.keys)

    def test_experts_change_and_their_router_stays(self):
        a = Gguf(os.path.join(DATA, "arch_qwen2moe.gguf"))
        self.run_tool(QUANTIZE, "-q", os.path.join(DATA, "arch_qwen2moe.gguf"), self.path("b"), "f16")
        b = Gguf(self.path("b"))
        for name, (_, dims, raw) in a.tensors.items():
            self.assertEqual(dims, b.tensors[name][1])
            if "ffn_gate_inp" in name:
                self.assertEqual(b.tensors[name][2], raw)
            elif "_exps" in name:
                self.assertEqual(len(dims), 3)
                self.assertEqual(b.tensors[name][2], np.frombuffer(raw, "<f4").astype("<f2").tobytes())

    def test_biases_of_experts_stay(self):
        model = os.path.join(DATA, "arch_gpt_oss.gguf")
        a = Gguf(model)
        self.run_tool(QUANTIZE, "-q", "--keep", "*ffn_down*.weight", model, self.path("b"), "q8_0")
        b = Gguf(self.path("b"))
        biases = [n for n in a.tensors if n.endswith("_exps.bias")]
        self.assertGreater(len(biases), 2)
        for name in biases:
            self.assertEqual(len(a.tensors[name][1]), 2)
            self.assertEqual(b.tensors[name], a.tensors[name])

    def test_convolutions_stay(self):
        for model, stays in ("arch_qwen35.gguf", "ssm_conv1d"), ("arch_lfm2.gguf", "shortconv.conv"):
            a = Gguf(os.path.join(DATA, model))
            keep = [o for n in ("ffn_down", "ssm_out") for o in ("--keep", f"*{n}*")]  # no whole blocks
            self.run_tool(QUANTIZE, "-q", *keep, os.path.join(DATA, model), self.path("b"), "q8_0")
            b = Gguf(self.path("b"))
            for name, (_, dims, raw) in a.tensors.items():
                if stays in name:
                    self.assertEqual(b.tensors[name], (F32, dims, raw))
                elif "attn_k.weight" in name:
                    self.assertEqual(b.tensors[name][0], Q8_0)

    def test_says_that_a_file_grew(self):
        self.make("a", *SMALL, "--type", "q4_0")
        self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), "q8_0", says="larger, its weights had fewer bits already")
        self.run_tool(QUANTIZE, self.path("b"), self.path("c"), "q4_0", says=" MB, ")

    def test_columns_of_one_stay(self):
        """Mamba-2 has a factor and an offset for each head, as rows of one value: vectors by another shape."""
        for model in "arch_mamba2.gguf", "arch_nemotron_h.gguf", "arch_granitehybrid.gguf":
            a = Gguf(os.path.join(DATA, model))
            ones = [n for n in a.tensors if n.endswith(("ssm_a", "ssm_d"))]
            self.assertGreater(len(ones), 1)
            for kind in "bf16", "q8_0":
                self.run_tool(QUANTIZE, "-q", "--keep", "*ffn_down*", "--keep", "*ssm_out*", os.path.join(DATA, model), self.path("b"), kind)
                b = Gguf(self.path("b"))
                for name in ones:
                    self.assertEqual(b.tensors[name], a.tensors[name])

    def test_there_and_back(self):
        self.make("a", *SMALL, "--type", "q4_1")
        self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), "f32")
        self.run_tool(QUANTIZE, "-q", "--threads", "3", self.path("b"), self.path("c"), "bf16")
        self.assertEqual(Gguf(self.path("b")).keys["general.file_type"], 0)
        x, y = Gguf(self.path("b")).array("blk.0.attn_q.weight"), Gguf(self.path("c")).array("blk.0.attn_q.weight")
        self.assertLess(np.abs(x - y).max(), np.abs(x).max() / 200)

    def test_a_tied_embedding_is_the_head(self):
        self.make("a", *SMALL, "--type", "f32")
        self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), "q4_0", "--head-type", "q8_0")
        self.assertEqual(Gguf(self.path("b")).tensors["token_embd.weight"][0], Q8_0)

    def test_mixes(self):
        wide = ["--layers", "8", "--hidden", "256", "--ffn", "256", "--heads", "4", "--kv-heads", "2", "--vocab", "300"]
        self.make("a", *wide, "--type", "bf16", "--tied", "no")
        for mix, base, number in (("Q4_K_M", 12, 15), ("q5_k_m", 13, 17)):
            self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), mix)
            b = Gguf(self.path("b"))
            self.assertEqual(b.keys["general.file_type"], number)
            for name, (kind, dims, _) in b.tensors.items():
                layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
                more = name == "output.weight" or (layer in (0, 3, 6, 7) and ("attn_v" in name or "ffn_down" in name))
                if len(dims) == 2:
                    self.assertEqual(kind, 14 if more else base, name)
        self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), "q4_k_m", "--head-type", "q8_0")
        self.assertEqual(Gguf(self.path("b")).tensors["output.weight"][0], Q8_0)

    def test_narrow_rows_of_a_k_quant(self):
        self.make("a", *SMALL, "--type", "f32")
        for kind, number, head in (("q4_k", 6, 6), ("q5_k", 7, 7), ("q6_k", 8, 8), ("q4_k_m", 6, 8)):
            self.run_tool(QUANTIZE, "-q", self.path("a"), self.path("b"), kind)
            b = Gguf(self.path("b"))
            self.assertEqual(b.tensors["blk.1.attn_q.weight"][0], number)
            self.assertEqual(b.tensors["token_embd.weight"][0], head)

    def test_refusals(self):
        self.make("a", *SMALL, "--ffn", "100")
        out = self.path("x")
        self.run_tool(QUANTIZE, self.path("a"), out, "q3", code=2, says="'q3' is not an element type")
        self.run_tool(QUANTIZE, self.path("a"), code=2, says="IN, OUT and TYPE are needed")
        self.run_tool(QUANTIZE, self.path("none"), out, "q8_0", code=6, says="No such file")
        self.run_tool(QUANTIZE, self.path("a"), out, "q8_0", code=6,
                      says="tensor 'blk.0.ffn_down.weight': its rows of 100 are not whole blocks of Q8_0 (32)")
        self.run_tool(QUANTIZE, "-q", self.path("a"), out, "q8_0", "--keep", "*ffn_down*")
        self.run_tool(QUANTIZE, self.path("a"), "/nonexistent/x", "q8_0", code=6, says="cannot create")
        self.assert_no_leftovers("a", "x")

    def test_a_weight_that_is_not_a_number_is_named(self):
        self.make("a", *SMALL, "--type", "f32")
        g = Gguf(self.path("a"))
        raw = g.tensors["blk.1.attn_v.weight"][2]
        at = g.data.index(raw[:64]) + 4 * (64 * 5 + 3)  # row 5
        with open(self.path("a"), "r+b") as f:
            f.seek(at)
            f.write(struct.pack("<f", float("nan")))
        self.run_tool(QUANTIZE, self.path("a"), self.path("x"), "q4_0", code=6,
                      says="tensor 'blk.1.attn_v.weight': row 5 has a value that is not finite")
        self.assert_no_leftovers("a")

    def test_broken_files(self):
        self.make("a", *SMALL)
        with open(self.path("a"), "r+b") as f:
            f.truncate(os.path.getsize(self.path("a")) // 2)
        self.run_tool(QUANTIZE, self.path("a"), self.path("x"), "q8_0", code=6, says="reaches beyond the end")


unittest.main(argv=sys.argv[:1], verbosity=1)
