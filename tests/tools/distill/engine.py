# SPDX-License-Identifier: Apache-2.0
"""The teacher and exported overlays against the C engine, and a Hugging Face folder against the GGUF."""

import importlib.util
import os
import tempfile
import unittest

import gguf
import torch

from stories import CPU, CTX, STORIES, WithStories, engine, ids, random_student
import cache8
import model
import ops
import overlay
import weights


class AgainstC(WithStories):
    def compare(self, mine, theirs, tolerance):
        self.assertLess((mine - theirs).abs().max().item(), tolerance)

    def student(self, split, group, kind, kv, outputs=None):
        s = random_student(self.frozen, split, group, "none" if kv == "f32" else kv[:3], outputs is not None)
        path = self.folder / "over.gguf"
        overlay.write(str(path), s, kind, outputs=outputs)
        overlay.load(str(path), s)  # what Q8_0 made of it
        with torch.no_grad():
            mine = s(self.tokens)[0, CTX // 2:CTX - 1]
        return mine, engine(self.folder, STORIES, self.text, CTX, kv, path)

    def test_teacher(self):
        with torch.no_grad():
            mine = self.frozen.logits(self.frozen.shallow(self.tokens, self.w.n_layers))[0, CTX // 2:CTX - 1]
        self.compare(mine, engine(self.folder, STORIES, self.text, CTX), 1e-3)

    def test_overlays(self):
        for split, group in ((4, 1), (2, 1), (2, 3), (1, 3), (1, (1, 2, 1))):  # the fourth ends in a short group
            for kind in ("F32", "Q8_0"):
                with self.subTest(split=split, group=group, kind=kind):
                    self.compare(*self.student(split, group, kind, "f32"), 1e-3)

    def test_overlays_with_outputs(self):
        for split, group, kind, outputs in ((2, 3, "F32", "F32"), (1, 3, "Q8_0", "Q8_0"), (2, 1, "Q8_0", "Q5_1")):
            with self.subTest(split=split, group=group, outputs=outputs):
                self.compare(*self.student(split, group, kind, "f32", outputs), 1e-3)
                types = {t.tensor_type.name for t in gguf.GGUFReader(self.folder / "over.gguf").tensors
                         if t.name.endswith("attn_output_swiftkv.weight")}
                self.assertEqual(types, {outputs})

    def test_eight_bit_cache(self):
        """Both round the same numbers, but not from the same bits: a value on the edge between two codes may go
        either way, so the largest difference is bounded loosely, the usual one tightly, and what leaving the cache
        out would make is shown to be far outside."""
        exact = self.student(2, 3, "F32", "f32")[0]
        for kv in ("fp8", "kv8,rot=off"):  # the loop does not turn what is stored
            with self.subTest(kv=kv):
                mine, theirs = self.student(2, 3, "F32", kv)
                self.compare(mine, theirs, 2e-2)
                self.assertLess((mine - theirs).abs().median().item(), 1e-3)
                self.assertGreater((exact - theirs).abs().median().item(), 5e-3)

    def test_rows_of_fp8(self):
        """Each code's value comes back as it was, ties go to even, and the end saturates."""
        codes = torch.arange(256, dtype=torch.uint8)
        values = codes.view(torch.float8_e4m3fn).float()[torch.arange(256) % 128 != 127]
        row = values * 2.0 ** -8 * 4  # absmax 448 * 2^-8 * 4: the scale is 4
        self.assertTrue(torch.equal(cache8.fp8_row(row), row))
        row = torch.tensor([448.0, 17.0, 19.0, 0.0])
        self.assertEqual(cache8.fp8_row(row).tolist(), [448.0, 16.0, 20.0, 0.0])
        self.assertEqual(cache8.fp8_row(torch.zeros(4)).tolist(), [0.0] * 4)

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_smollm2(self):
        path = os.environ["PIPIT_SMOLLM2"]
        text = self.text[:400]
        frozen = model.Frozen(weights.read(path), CPU, torch.float32)
        tokens = ids(path, text, 32, None)
        theirs = engine(self.folder, path, text, 32)
        with torch.no_grad():
            self.compare(frozen.logits(frozen.shallow(tokens, frozen.w.n_layers))[0, 16:31], theirs, 1e-3)


class AgainstHuggingFace(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("transformers") and importlib.util.find_spec("safetensors"),
                         "transformers is not installed")
    def test_folder(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        ops.use("torch")
        torch.manual_seed(0)
        for tied in (True, False):
            theirs = LlamaForCausalLM(LlamaConfig(
                vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, rope_theta=5000.0, rms_norm_eps=1e-5, tie_word_embeddings=tied)).eval()
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                theirs.save_pretrained(folder, safe_serialization=True)
                mine = model.Frozen(weights.read(folder), CPU, torch.float32)
                tokens = torch.randint(0, 300, (2, 40))
                got = mine.logits(mine.shallow(tokens, 3))
                self.assertLess((got - theirs(tokens).logits).abs().max().item(), 1e-5)
