#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-convert against transformers, end to end: needs torch, transformers, tokenizers, gguf.

usage: make_hf_tiny.py FOLDER && build/tests/golden/test_arch FOLDER ref

Writes tiny random models as Hugging Face folders (FOLDER/NAME), converts each with pipit-convert
(FOLDER/arch_NAME.gguf) and stores the logits that transformers gives for a fixed text
(FOLDER/arch_NAME.vec, the form that tests/golden/test_arch.c reads). Not part of the ordinary
tests, which compare converted tensors by name instead (tests/tools/test_convert.py).

The models are made so that mistakes show: weights of standard deviation 0.3 (attention is far from
uniform), norms away from 1, biases, grouped heads, a head size that is not hidden/heads, windows
shorter than the text, Llama 3's RoPE scaling, Gemma's linear scaling of global layers only.
"""
import json
import pathlib
import struct
import subprocess
import sys

import torch
import transformers

N_IDS = 24
IDS = [(i * 37 + 11) % 280 for i in range(N_IDS)]

COMMON = dict(vocab_size=288, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=280,
              eos_token_id=281, pad_token_id=None)
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, dict(
        tie_word_embeddings=False, head_dim=8,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16})),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, dict(
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, dict(
        tie_word_embeddings=False, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, dict(
        tie_word_embeddings=True, head_dim=16, sliding_window=8, query_pre_attn_scalar=32,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}})),
}
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
            "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def tokenizer(folder, pre):
    """A byte-level BPE of 256 bytes, 24 merges and two special tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for a, b in ("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is",
                 "it", "al", "ar", "st", "to", "nt", "ng"):
        vocab[a + b] = len(vocab)
        merges.append(f"{a} {b}")
    added = [{"id": 280 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, t in enumerate(("<|im_start|>", "<|im_end|>"))]
    doc = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
           "pre_tokenizer": pre, "post_processor": None, "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                     "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                     "merges": merges}}
    (folder / "tokenizer.json").write_text(json.dumps(doc, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False, "chat_template": TEMPLATE}))


def make(name, folder):
    config_class, model_class, extra = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    config = config_class(**{**COMMON, **extra})
    model = model_class(config)
    with torch.no_grad():
        for key, w in model.named_parameters():
            if "norm" in key:
                w.copy_(torch.randn_like(w) * 0.2 + (0.0 if name == "gemma3" else 1.0))
            else:
                w.copy_(torch.randn_like(w) * (0.1 if key.endswith("bias") else 0.3))
    model.save_pretrained(folder)
    tokenizer(folder, {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]})
    reference = model_class.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = reference(torch.tensor([IDS])).logits[0]
    # transformers caps nothing here; float64 inside, except that some norms go through float32.
    return logits.to(torch.float32).numpy()


def main():
    out = pathlib.Path(sys.argv[1])
    convert = pathlib.Path(__file__).resolve().parents[2] / "tools" / "pipit-convert"
    for name in MODELS:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        logits = make(name, folder).astype("<f4")
        with open(out / f"arch_{name}.vec", "wb") as f:
            f.write(b"PARC" + struct.pack("<3i", N_IDS, 0, logits.shape[1]) + struct.pack(f"<{N_IDS}i", *IDS))
            f.write(logits.tobytes())
        subprocess.run([sys.executable, str(convert), str(folder), "--type", "f32", "--name", f"tiny {name}", "--force",
                        "-o", str(out / f"arch_{name}.gguf")], check=True)


if __name__ == "__main__":
    main()
