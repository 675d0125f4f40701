#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-convert on folders made here by hand (safetensors, config, tokenizers), read back with the
package gguf and compared tensor by tensor with formulas written down a second time; then what must be
refused. Exits 77 without gguf.

usage: test_convert.py [unittest arguments]"""
import json
import os
import pathlib
import resource
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"SKIP: {e}: pip install gguf", file=sys.stderr)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONVERT = ROOT / "tools" / "pipit-convert"
EMBD, FF, HEADS, KV, HEAD, VOCAB, LAYERS = 64, 96, 4, 2, 16, 300, 3
RNG = np.random.default_rng(7)


def bf16(a):
    return (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widen(a):
    return (a.astype(np.uint32) << 16).view(np.float32)


def save(path, tensors):
    """name -> (dtype name, array)"""
    header, blob = {}, b""
    for name, (kind, a) in tensors.items():
        raw = a.tobytes()
        header[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + blob)


def weights(extra=(), bias=False, qk_norm=False, sandwich=False, tied=False):
    t = {}

    def add(name, *shape):
        t[name] = RNG.standard_normal(shape).astype(np.float32)

    add("model.embed_tokens.weight", VOCAB, EMBD)
    add("model.norm.weight", EMBD)
    if not tied:
        add("lm_head.weight", VOCAB, EMBD)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        add(at + "input_layernorm.weight", EMBD)
        add(at + "post_attention_layernorm.weight", EMBD)
        if sandwich:
            add(at + "pre_feedforward_layernorm.weight", EMBD)
            add(at + "post_feedforward_layernorm.weight", EMBD)
        for part, rows in (("q", HEADS * HEAD), ("k", KV * HEAD), ("v", KV * HEAD)):
            add(at + f"self_attn.{part}_proj.weight", rows, EMBD)
            if bias:
                add(at + f"self_attn.{part}_proj.bias", rows)
            if qk_norm and part != "v":
                add(at + f"self_attn.{part}_norm.weight", HEAD)
        add(at + "self_attn.o_proj.weight", EMBD, HEADS * HEAD)
        add(at + "mlp.gate_proj.weight", FF, EMBD)
        add(at + "mlp.up_proj.weight", FF, EMBD)
        add(at + "mlp.down_proj.weight", EMBD, FF)
    for name, *shape in extra:
        add(name, *shape)
    return t


def config(arch, **more):
    return {"architectures": [arch], "hidden_size": EMBD, "intermediate_size": FF, "num_attention_heads": HEADS,
            "num_key_value_heads": KV, "head_dim": HEAD, "num_hidden_layers": LAYERS, "vocab_size": VOCAB,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, **more}


def byte_alphabet():
    """GPT-2's letters for the 256 bytes, from their published rule."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


SMOLLM = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]}
QWEN2 = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {
        "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
LLAMA3 = json.loads(json.dumps(QWEN2).replace(r"|\\p{N}|", r"|\\p{N}{1,3}|"))


def bpe(pre=None):
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    for pair in ("th", "he", "the"):
        vocab[pair] = len(vocab)
    return {"added_tokens": [{"id": 259, "content": "<|im_start|>", "special": True},
                             {"id": 260, "content": "<|im_end|>", "special": True},
                             {"id": 261, "content": "<tool>", "special": False}],
            "pre_tokenizer": pre or SMOLLM, "normalizer": None, "post_processor": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], "h e", ["th", "e"]]}}


class Base(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="pipit-convert-")
        self.addCleanup(self.tmp.cleanup)
        self.folder = pathlib.Path(self.tmp.name) / "model"
        self.folder.mkdir()
        self.out = pathlib.Path(self.tmp.name) / "out.gguf"

    def write(self, cfg, tensors, tokenizer=None, kind="F32"):
        (self.folder / "config.json").write_text(json.dumps(cfg))
        (self.folder / "tokenizer.json").write_text(json.dumps(tokenizer or bpe()))
        (self.folder / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": "{{ messages }}"}))
        cast = {"F32": lambda a: a, "BF16": bf16, "F16": lambda a: a.astype(np.float16)}[kind]
        save(self.folder / "model.safetensors", {n: (kind, cast(a)) for n, a in tensors.items()})

    def run_convert(self, *args, **popen):
        return subprocess.run([sys.executable, CONVERT, *(args or (self.folder, "--type", "f32")), "-o", self.out],
                              capture_output=True, text=True, check=False, **popen)

    def convert(self, *args):
        r = self.run_convert(*args)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout, "")
        reader = gguf.GGUFReader(self.out)
        self.keys = {k: f.contents() for k, f in reader.fields.items()}
        self.kinds = {t.name: t.tensor_type.name for t in reader.tensors}
        return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}

    def refused(self, *parts, args=(), code=6, **popen):
        r = self.run_convert(*args, **popen)
        self.assertEqual(r.returncode, code, r.stderr)
        self.assertNotIn("Traceback", r.stderr)
        for p in parts:
            self.assertIn(p, r.stderr)
        self.assertEqual([p.name for p in self.out.parent.iterdir() if p.name != "model"], [])


def turned(a, heads):
    """Rows of GGUF's order: 2i is Hugging Face's i, 2i + 1 its i + d/2."""
    d = a.shape[0] // heads
    order = [h * d + (j // 2 if j % 2 == 0 else d // 2 + j // 2) for h in range(heads) for j in range(d)]
    return a[order]


class Architectures(Base):
    def check(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, a in want.items():
            np.testing.assert_array_equal(got[name], a, err_msg=name)

    def common(self, t, plus=0.0, permute=False, deep=LAYERS):
        turn = turned if permute else lambda a, _: a
        want = {"token_embd.weight": t["model.embed_tokens.weight"], "output_norm.weight": t["model.norm.weight"] + np.float32(plus)}
        if "lm_head.weight" in t:
            want["output.weight"] = t["lm_head.weight"]
        for i in range(LAYERS):
            at, blk = f"model.layers.{i}.", f"blk.{i}."
            want[blk + "attn_norm.weight"] = t[at + "input_layernorm.weight"] + np.float32(plus)
            want[blk + "attn_output.weight"] = t[at + "self_attn.o_proj.weight"]
            for part in ("gate", "up", "down"):
                want[blk + f"ffn_{part}.weight"] = t[at + f"mlp.{part}_proj.weight"]
            if i < deep:
                for part, heads in (("q", HEADS), ("k", KV)):
                    want[blk + f"attn_{part}.weight"] = turn(t[at + f"self_attn.{part}_proj.weight"], heads)
                want[blk + "attn_v.weight"] = t[at + "self_attn.v_proj.weight"]
            if f"{at}pre_feedforward_layernorm.weight" not in t:
                want[blk + "ffn_norm.weight"] = t[at + "post_attention_layernorm.weight"]
        return want

    def test_llama(self):
        t = weights()
        t["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
        self.write(config("LlamaForCausalLM"), t)
        self.check(self.convert(), self.common(t, permute=True))
        k = self.keys
        self.assertEqual((k["general.architecture"], k["llama.block_count"], k["llama.attention.head_count_kv"]),
                         ("llama", LAYERS, KV))
        self.assertEqual((k["llama.rope.dimension_count"], k["llama.attention.key_length"]), (HEAD, HEAD))
        self.assertEqual(k["tokenizer.chat_template"], "{{ messages }}")

    def test_llama_biases_turn_too(self):
        t = weights(bias=True)
        self.write(config("LlamaForCausalLM"), t)
        got = self.convert()
        b = t["model.layers.1.self_attn.k_proj.bias"]
        np.testing.assert_array_equal(got["blk.1.attn_k.bias"], turned(b, KV))
        np.testing.assert_array_equal(got["blk.1.attn_v.bias"], t["model.layers.1.self_attn.v_proj.bias"])

    def test_llama3_rope(self):
        t = weights(tied=True)
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}
        self.write(config("LlamaForCausalLM", tie_word_embeddings=True, rope_scaling=scaling), t, bpe(LLAMA3))
        got = self.convert()
        self.assertNotIn("output.weight", got)
        f = got["rope_freqs.weight"]
        self.assertEqual((f.shape, f[0], f[-1]), ((HEAD // 2,), 1.0, 8.0))
        self.assertTrue((np.diff(f) >= 0).all())
        self.assertEqual(self.keys["tokenizer.ggml.pre"], "llama-bpe")

    def test_qwen2(self):
        t = weights(bias=True, tied=True)
        self.write(config("Qwen2ForCausalLM", tie_word_embeddings=True, use_sliding_window=False, sliding_window=9), t,
                   bpe(QWEN2), "BF16")
        t = {n: widen(bf16(a)) for n, a in t.items()}
        want = self.common(t)
        for i in range(LAYERS):
            for part in "qkv":
                want[f"blk.{i}.attn_{part}.bias"] = t[f"model.layers.{i}.self_attn.{part}_proj.bias"]
        self.check(self.convert(), want)
        self.assertEqual(self.keys["tokenizer.ggml.pre"], "qwen2")

    def test_qwen3(self):
        t = weights(qk_norm=True)
        self.write(config("Qwen3ForCausalLM"), t, bpe(QWEN2), "F16")
        t = {n: a.astype(np.float16).astype(np.float32) for n, a in t.items()}
        want = self.common(t)
        for i in range(LAYERS):
            for part in "qk":
                want[f"blk.{i}.attn_{part}_norm.weight"] = t[f"model.layers.{i}.self_attn.{part}_norm.weight"]
        self.check(self.convert(), want)

    def test_gemma3(self):
        t = weights(qk_norm=True, sandwich=True, tied=True)
        cfg = config("Gemma3ForCausalLM", tie_word_embeddings=True, sliding_window=128, query_pre_attn_scalar=64,
                     rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
                     layer_types=["sliding_attention", "sliding_attention", "full_attention"])
        cfg["rope_theta"] = 1e6
        self.write(cfg, t)
        one = np.float32(1)
        want = self.common(t, plus=1)
        for i in range(LAYERS):
            at, blk = f"model.layers.{i}.", f"blk.{i}."
            for part in "qk":
                want[f"{blk}attn_{part}_norm.weight"] = t[f"{at}self_attn.{part}_norm.weight"] + one
            want[blk + "post_attention_norm.weight"] = t[at + "post_attention_layernorm.weight"] + one
            want[blk + "ffn_norm.weight"] = t[at + "pre_feedforward_layernorm.weight"] + one
            want[blk + "post_ffw_norm.weight"] = t[at + "post_feedforward_layernorm.weight"] + one
        self.check(self.convert(), want)
        k = self.keys
        self.assertEqual((k["gemma3.attention.sliding_window"], k["gemma3.attention.sliding_window_pattern"]), (128, 3))
        self.assertEqual((k["gemma3.attention.scale"], k["gemma3.rope.scaling.factor"]), (0.125, 8.0))
        self.assertEqual((k["gemma3.rope.freq_base"], k["gemma3.rope.freq_base_swa"]), (1e6, 1e4))

    def test_gemma3_of_a_multimodal_model(self):
        t = weights(qk_norm=True, sandwich=True, tied=True)
        text = config("x", tie_word_embeddings=True, sliding_window=128)
        for prefix in ("language_model.", "model.language_model."):
            named = {(prefix if prefix.endswith("model.") and not prefix.startswith("model.") else prefix)
                     + (n if prefix == "language_model." else n.removeprefix("model.")): a for n, a in t.items()}
            named["vision_tower.x.weight"] = np.ones((2, 2), np.float32)
            self.write({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text,
                        "tie_word_embeddings": True}, named)
            got = self.convert()
            np.testing.assert_array_equal(got["token_embd.weight"], t["model.embed_tokens.weight"])
            self.out.unlink()

    def test_swiftkv(self):
        """Published names; group leaders only; deep heads of their own number; a teacher's leftovers ignored."""
        extra = [("model.norm_swiftkv.weight", EMBD)]
        for i in (1, 2):
            extra.append((f"model.layers.{i}.self_attn.q_proj_swiftkv.weight", HEADS * HEAD, EMBD))
        for part in "kv":
            extra.append((f"model.layers.1.self_attn.{part}_proj_swiftkv.weight", HEAD, EMBD))
        t = weights(extra)
        self.write(config("LlamaSwiftKVForCausalLM", swiftkv=True, num_key_value_layers=1, key_value_group_size=2), t)
        want = self.common(t, permute=True, deep=1)
        want["norm_swiftkv.weight"] = t["model.norm_swiftkv.weight"]
        for i in (1, 2):
            want[f"blk.{i}.attn_q_swiftkv.weight"] = turned(t[f"model.layers.{i}.self_attn.q_proj_swiftkv.weight"], HEADS)
        want["blk.1.attn_k_swiftkv.weight"] = turned(t["model.layers.1.self_attn.k_proj_swiftkv.weight"], 1)
        want["blk.1.attn_v_swiftkv.weight"] = t["model.layers.1.self_attn.v_proj_swiftkv.weight"]
        self.check(self.convert(), want)
        self.assertEqual((self.keys["pipit.swiftkv.num_key_value_layers"], self.keys["pipit.swiftkv.key_value_group_size"]),
                         (1, 2))

    def test_swiftkv_group_sizes(self):
        """Groups of unequal sizes: each one's first layer has k and v; sums and both keys are checked."""
        extra = [("model.norm_swiftkv.weight", EMBD)]
        for i in (1, 2):
            extra.append((f"model.layers.{i}.self_attn.q_proj_swiftkv.weight", HEADS * HEAD, EMBD))
            for part in "kv":
                extra.append((f"model.layers.{i}.self_attn.{part}_proj_swiftkv.weight", HEAD, EMBD))
        t = weights(extra)
        swift = {"swiftkv": True, "num_key_value_layers": 1}
        self.write(config("LlamaSwiftKVForCausalLM", **swift, key_value_group_sizes=[1, 1]), t)
        got = self.convert()
        self.assertTrue({f"blk.{i}.attn_{p}_swiftkv.weight" for i in (1, 2) for p in "kv"} <= set(got))
        self.assertEqual(list(self.keys["pipit.swiftkv.key_value_group_sizes"]), [1, 1])
        self.assertNotIn("pipit.swiftkv.key_value_group_size", self.keys)
        self.out.unlink()
        for sizes in ([3], [1], [], [2, 0], "2", [True, 1]):
            self.write(config("LlamaSwiftKVForCausalLM", **swift, key_value_group_sizes=sizes), t)
            self.refused("key_value_group_sizes")

    def test_shards_and_types(self):
        t = weights(tied=True)
        self.write(config("LlamaForCausalLM", tie_word_embeddings=True), t)
        names = sorted(t)
        (self.folder / "model.safetensors").unlink()
        shard = {n: f"model-{i % 2}.safetensors" for i, n in enumerate(names)}
        for file in set(shard.values()):
            save(self.folder / file, {n: ("F32", t[n]) for n in names if shard[n] == file})
        (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard}))
        for kind, limit in (("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 2e-2)):
            got = self.convert(self.folder, "--type", kind)
            a = t["model.layers.0.mlp.down_proj.weight"]
            self.assertEqual(self.kinds["blk.0.ffn_down.weight"], kind.upper())
            self.assertEqual(self.kinds["blk.0.attn_norm.weight"], "F32")
            self.assertLess(np.abs(got["blk.0.ffn_down.weight"] - a).max(), limit * np.abs(a).max())
            self.out.unlink()


class Tokenizers(Base):
    def test_byte_level(self):
        self.write(config("LlamaForCausalLM"), weights())
        (self.folder / "generation_config.json").write_text('{"eos_token_id": [260, 261]}')
        self.convert()
        k = self.keys
        self.assertEqual((k["tokenizer.ggml.model"], k["tokenizer.ggml.pre"]), ("gpt2", "smollm"))
        self.assertEqual(k["tokenizer.ggml.merges"], ["t h", "h e", "th e"])
        self.assertEqual(k["tokenizer.ggml.tokens"][256:263],
                         ["th", "he", "the", "<|im_start|>", "<|im_end|>", "<tool>", "[PAD262]"])
        self.assertEqual(k["tokenizer.ggml.token_type"][256:263], [1, 1, 1, 3, 3, 4, 5])
        self.assertEqual(len(k["tokenizer.ggml.tokens"]), VOCAB)
        self.assertEqual((k["tokenizer.ggml.bos_token_id"], k["tokenizer.ggml.eos_token_id"], k["tokenizer.ggml.eot_token_id"]),
                         (259, 260, 261))

    def test_gpt2(self):
        self.write(config("LlamaForCausalLM"), weights(), bpe({"type": "ByteLevel", "add_prefix_space": False}))
        self.convert()
        self.assertEqual(self.keys["tokenizer.ggml.pre"], "gpt-2")

    def test_unknown_patterns_are_refused(self):
        for pre in (None, {"type": "Whitespace"}, {"type": "ByteLevel", "add_prefix_space": True},
                    json.loads(json.dumps(QWEN2).replace(r"\\p{N}|", r"\\p{N}{1,2}|"))):
            t = bpe()
            t["pre_tokenizer"] = pre
            self.write(config("LlamaForCausalLM"), weights(), t)
            self.refused("pre-tokenizer", "gpt-2, smollm, llama-bpe, qwen2")
        t["model"]["type"] = "Unigram"
        self.write(config("LlamaForCausalLM"), weights(), t)
        self.refused("Unigram")

    def pieces(self, model_type=2, prefix=True):
        def field(n, v):
            return bytes([n << 3 | 2, len(v)]) + v
        rows = [(b"<unk>", 2, 0.0), (b"<s>", 3, 0.0), (b"</s>", 3, 0.0)]
        rows += [(b"<0x%02X>" % i, 6, 0.0) for i in range(256)] + [("\u2581t".encode(), 1, -0.5), (b"he", 1, -1.5)]
        raw = b"".join(field(1, field(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind]))
                       for text, kind, score in rows)
        return raw + field(2, b"\x18" + bytes([model_type])) + field(3, b"\x18" + bytes([prefix])), rows

    def test_sentencepiece_model(self):
        for prefix in (True, False):
            raw, rows = self.pieces(prefix=prefix)
            self.write(config("LlamaForCausalLM"), weights())
            (self.folder / "tokenizer.json").unlink()
            (self.folder / "tokenizer.model").write_bytes(raw)
            self.convert()
            k = self.keys
            self.assertEqual((k["tokenizer.ggml.model"], k["tokenizer.ggml.add_space_prefix"]), ("llama", prefix))
            self.assertEqual(k["tokenizer.ggml.tokens"][:len(rows)], [r[0].decode() for r in rows])
            self.assertEqual(k["tokenizer.ggml.token_type"][:len(rows)], [r[1] for r in rows])
            self.assertEqual(k["tokenizer.ggml.scores"][:len(rows)], [r[2] for r in rows])
            self.out.unlink()
        (self.folder / "tokenizer.model").write_bytes(self.pieces(model_type=1)[0])
        self.refused("not of type BPE")
        (self.folder / "tokenizer.model").write_bytes(raw[:100])
        self.refused("or cut")

    def test_sentencepiece_from_json(self):
        vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
        vocab.update({f"<0x{i:02X}>": i + 3 for i in range(256)})
        for text in ("t", "h", "e", "th", "he", "the"):
            vocab[text] = len(vocab)
        t = {"added_tokens": [{"id": i, "content": c, "special": True} for i, c in enumerate(("<unk>", "<s>", "</s>"))],
             "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]},
             "pre_tokenizer": None, "model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": vocab,
                                              "merges": ["h e", "t h", "t he", "th e"]}}
        self.write(config("LlamaForCausalLM"), weights(), t)
        self.convert()
        k = self.keys
        score = dict(zip(k["tokenizer.ggml.tokens"], k["tokenizer.ggml.scores"]))
        self.assertGreater(score["he"], score["th"])
        self.assertGreater(score["th"], score["the"])
        self.assertEqual(k["tokenizer.ggml.token_type"][:4], [2, 3, 3, 6])
        self.assertTrue(k["tokenizer.ggml.add_space_prefix"])


class Refusals(Base):
    def test_architecture(self):
        self.write(config("MambaForCausalLM"), weights())
        self.refused("MambaForCausalLM", "LlamaForCausalLM")

    def test_missing_tensor(self):
        t = weights()
        del t["model.layers.2.mlp.up_proj.weight"]
        self.write(config("LlamaForCausalLM"), t)
        self.refused("model.layers.2.mlp.up_proj.weight", "missing")

    def test_shape(self):
        t = weights()
        t["model.layers.1.self_attn.k_proj.weight"] = np.ones((HEAD, EMBD), np.float32)
        self.write(config("LlamaForCausalLM"), t)
        self.refused("model.layers.1.self_attn.k_proj.weight", "[16, 64]", "[32, 64]")

    def test_unknown_tensor(self):
        self.write(config("LlamaForCausalLM"), weights([("model.layers.0.mlp.experts.weight", 2, 2)]))
        self.refused("model.layers.0.mlp.experts.weight")

    def test_config(self):
        for key, value in (("hidden_size", 0), ("num_hidden_layers", "three"), ("vocab_size", 2**40), ("hidden_act", "relu"),
                           ("rope_scaling", {"rope_type": "longrope"}), ("quantization_config", {"quant_method": "gptq"})):
            self.write(config("LlamaForCausalLM", **{key: value}), weights())
            self.refused("config.json")
        (self.folder / "config.json").write_text("{")
        self.refused("config.json", "JSON")
        (self.folder / "config.json").unlink()
        self.refused("config.json")

    def test_safetensors(self):
        self.write(config("LlamaForCausalLM"), weights())
        path = self.folder / "model.safetensors"
        whole = path.read_bytes()
        n = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + n])

        def entry(**change):
            h = {**header, "model.norm.weight": {**header["model.norm.weight"], **change}}
            raw = json.dumps(h).encode()
            return struct.pack("<Q", len(raw)) + raw + whole[8 + n:]
        for raw, text in ((b"", "cut"), (whole[:7], "cut"), (whole[:100], "cut"), (whole[:-1], "bytes"),
                          (b"\xff" * 16, "cut"), (struct.pack("<Q", 5) + b"[1,2]" + bytes(9), "JSON"),
                          (entry(shape=[65]), "model.norm.weight"), (entry(shape=[-64]), "model.norm.weight"),
                          (entry(shape=[2**62, 4]), "model.norm.weight"), (entry(data_offsets=[0]), "model.norm.weight"),
                          (entry(data_offsets=[64, 0]), "model.norm.weight"), (entry(dtype="F8_E4M3"), "F8_E4M3"),
                          (entry(data_offsets=[2**60, 2**60 + 256]), "model.norm.weight")):
            path.write_bytes(raw)
            self.refused("model.safetensors", text)
        path.unlink()
        self.refused("safetensors")
        (self.folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../x.safetensors"}}')
        self.refused("plain file name")

    def test_values(self):
        t = weights()
        t["model.layers.0.mlp.up_proj.weight"][3, 5] = np.nan
        self.write(config("LlamaForCausalLM"), t)
        self.refused("blk.0.ffn_up.weight", "finite")
        t["model.layers.0.mlp.up_proj.weight"][3, 5] = 1e6
        self.write(config("LlamaForCausalLM"), t)
        self.refused("blk.0.ffn_up.weight", "65504", args=(self.folder, "--type", "f16"))

    def test_full_disk(self):
        """A write that fails midway: the message says why, nothing is left."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        self.write(config("LlamaForCausalLM"), weights())
        self.refused("cannot be written", "limits the file", preexec_fn=limit)

    def test_usage(self):
        self.write(config("LlamaForCausalLM"), weights())
        self.refused("no such file", args=(self.folder / "absent",))
        self.out.write_bytes(b"mine")
        r = self.run_convert()
        self.assertEqual((r.returncode, self.out.read_bytes()), (2, b"mine"))
        self.assertIn("--force", r.stderr)

    def test_what_is_no_regular_file_stays(self):
        self.write(config("LlamaForCausalLM"), weights())
        os.mkfifo(self.out)
        r = self.run_convert(self.folder, "--type", "f32", "--force")
        self.assertEqual(r.returncode, 6, r.stderr)
        self.assertIn("no regular file", r.stderr)
        self.assertTrue(stat.S_ISFIFO(os.lstat(self.out).st_mode))


class Llama2c(Base):
    """The shipped tests/data/stories260K.gguf is made by this path; here only what it must refuse."""

    def checkpoint(self, vocab=16, cut=0):
        dim, hidden, layers, heads, kv, ctx = 8, 12, 1, 2, 1, 4
        n = abs(vocab) * dim * (2 if vocab < 0 else 1) + dim * 3 + dim * dim * 2 + 2 * dim * 4 + 3 * hidden * dim + 2 * ctx * 2
        raw = struct.pack("<7i", dim, hidden, layers, heads, kv, vocab, ctx)
        raw += RNG.standard_normal(n).astype("<f4").tobytes()
        path = self.folder / "m.bin"
        path.write_bytes(raw[:len(raw) - cut])
        tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n"] + [b"<0x%02X>" % i for i in range(13)]
        (self.folder / "tokenizer.bin").write_bytes(struct.pack("<i", 9) + b"".join(
            struct.pack("<fi", -i, len(t)) + t for i, t in enumerate(tokens)))
        return path

    def test_tied_and_untied(self):
        for vocab in (16, -16):
            got = self.convert(self.checkpoint(vocab))
            self.assertEqual("output.weight" in got, vocab < 0)
            self.assertEqual(self.keys["tokenizer.ggml.tokens"][:4], ["<unk>", "<s>", "</s>", "<0x00>"])
            self.assertEqual(self.keys["tokenizer.ggml.token_type"][:4], [2, 3, 3, 6])
            self.out.unlink()

    def test_refusals(self):
        self.refused("bytes", args=(self.checkpoint(cut=4),))
        path = self.checkpoint()
        raw = path.read_bytes()
        for bad, text in ((raw[:20], "header"), (struct.pack("<i", 0x616b3432) + raw[4:], "versioned"),
                          (struct.pack("<i", -8) + raw[4:], "dim is -8"), (raw[:12] + struct.pack("<i", 3) + raw[16:], "evenly")):
            path.write_bytes(bad)
            self.refused(text, args=(path,))
        path = self.checkpoint()
        t = self.folder / "tokenizer.bin"
        t.write_bytes(t.read_bytes()[:-3])
        self.refused("tokenizer.bin", args=(path,))
        t.unlink()
        self.refused("tokenizer.bin", args=(path,))


if __name__ == "__main__":
    unittest.main(verbosity=2)
