# SPDX-License-Identifier: Apache-2.0
"""Architectures as rows of data: what a Hugging Face model's tensors are called in GGUF, which shape
they must have, and what has to be done to their values.

 * llama: GGUF's RoPE turns pairs (2i, 2i+1), Hugging Face's (i, i + d/2), so the rows of q and k
   change places; qwen and gemma turn (i, i + d/2) in both.
 * gemma3: its norms multiply by 1 + weight; GGUF stores the sum.
 * SwiftKV (published names `..._swiftkv`): from layer num_key_value_layers on, q comes from
   q_proj_swiftkv, k and v of a group from its leader's {k,v}_proj_swiftkv. A teacher's q, k, v of
   those layers may still be in the file; nothing reads them.
"""
import math
import re

from .output import ConvertError


class Arch:
    def __init__(self, name, permute=False, plus_one=False, qk_norm=False, sandwich=False):
        self.name, self.permute, self.plus_one = name, permute, plus_one
        self.qk_norm, self.sandwich = qk_norm, sandwich


LLAMA = Arch("llama", permute=True)
QWEN2 = Arch("qwen2")
ARCHS = {
    "LlamaForCausalLM": LLAMA,
    "LlamaSwiftKVForCausalLM": LLAMA,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2SwiftKVForCausalLM": QWEN2,
    "Qwen3ForCausalLM": Arch("qwen3", qk_norm=True),
    "Gemma3ForCausalLM": Arch("gemma3", plus_one=True, qk_norm=True, sandwich=True),
    "Gemma3ForConditionalGeneration": Arch("gemma3", plus_one=True, qk_norm=True, sandwich=True),
}

# Never needed: tables, the other modalities of a model whose text part is taken.
IGNORED = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|^(model\.)?(vision_tower|multi_modal_projector)\.")
PREFIXES = ("", "language_model.", "model.language_model.")


def find_arch(config, path):
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHS:
            return ARCHS[name]
    raise ConvertError(f"{path}: architecture {names or config.get('model_type')} is not known "
                       f"(known: {', '.join(ARCHS)})")


class Params:
    """The numbers of config.json, checked."""

    def __init__(self, config, path):
        self.path = path
        self.config = {**config, **(config.get("text_config") or {})}
        self.n_embd = self.whole("hidden_size", 1 << 16)
        self.n_layers = self.whole("num_hidden_layers", 1024)
        self.n_ff = self.whole("intermediate_size", 1 << 20)
        self.n_q = self.whole("num_attention_heads", 1024)
        self.n_kv = self.whole("num_key_value_heads", 1024, self.n_q)
        self.head = self.whole("head_dim", 1024, self.n_embd // self.n_q)
        self.n_ctx = self.whole("max_position_embeddings", 1 << 24)
        self.n_vocab = self.whole("vocab_size", 1 << 24)
        self.eps = self.config.get("rms_norm_eps", 1e-6)
        self.tied = bool(self.config.get("tie_word_embeddings", False))
        self.swift_layers = None
        if "num_key_value_layers" in self.config and self.config.get("swiftkv", True):
            self.swift_layers = self.whole("num_key_value_layers", self.n_layers)
            self.swift_group = self.whole("key_value_group_size", 1024, 1)
            self.swift_sizes = self.sizes("key_value_group_sizes", self.n_layers - self.swift_layers)
            self.swift_leaders = self.leaders()

    def sizes(self, key, total):
        """A list of groups' sizes whose sum is total, or None."""
        sizes = self.config.get(key)
        if sizes is None:
            return None
        whole = isinstance(sizes, list) and all(type(n) is int and n >= 1 for n in sizes)
        if not whole or sum(sizes) != total or "key_value_group_size" in self.config:
            raise ConvertError(f"{self.path}: {key} is {sizes!r}, but must list whole numbers whose sum is {total}, "
                               "without key_value_group_size")
        return sizes

    def leaders(self):
        """Deep layers that own keys and values: the first of each group."""
        if self.swift_sizes is None:
            return set(range(self.swift_layers, self.n_layers, self.swift_group))
        return {self.swift_layers + sum(self.swift_sizes[:i]) for i in range(len(self.swift_sizes))}

    def whole(self, key, limit, default=None):
        n = self.config.get(key)
        n = default if n is None else n
        if type(n) is not int or not 1 <= n <= limit:
            raise ConvertError(f"{self.path}: {key} is {n!r}, but must be a whole number from 1 to {limit}")
        return n


def unrotate(a, n_heads):
    """Rows of q or k from Hugging Face's order of RoPE pairs to GGUF's."""
    return a.reshape(n_heads, 2, a.shape[0] // n_heads // 2, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)


class Mapper:
    """Takes tensors out of the source one by one and declares them in the output."""

    def __init__(self, tensors, params, arch, out):
        self.left, self.p, self.arch, self.out = dict(tensors), params, arch, out
        self.prefix = next((x for x in PREFIXES if x + "model.embed_tokens.weight" in tensors
                            or x + "embed_tokens.weight" in tensors), "")
        # transformers 5 dropped the inner "model." of multimodal models.
        self.inner = "" if self.prefix + "embed_tokens.weight" in tensors else "model."

    def full(self, name):
        return self.prefix + ("" if name.startswith("lm_head") else self.inner) + name

    def has(self, name):
        return self.full(name) in self.left

    def take(self, source, target, shape, heads=None, norm=False, f32=False):
        """shape: with None where any multiple of the head's size will do (SwiftKV's deep K and V)."""
        full = self.full(source)
        t = self.left.pop(full, None)
        if t is None and source == "lm_head.weight":
            t = self.left.pop(source, None)
        if t is None:
            raise ConvertError(f"tensor {full} is missing")
        ok = len(t.shape) == len(shape) and all(b is None or a == b for a, b in zip(t.shape, shape))
        if not ok or (shape[0] is None and (t.shape[0] == 0 or t.shape[0] % self.p.head)):
            raise ConvertError(f"tensor {full} has shape {list(t.shape)}; by config.json it should have "
                               f"{['any heads' if n is None else n for n in shape]}")

        def make():
            a = t.values()
            if norm and self.arch.plus_one:
                a = a + 1
            if heads and self.arch.permute:
                a = unrotate(a, a.shape[0] // self.p.head)
            return a
        self.out.tensor(target, t.shape, make, keep_f32=f32)

    def linear(self, source, target, rows, cols, heads=None):
        self.take(source + ".weight", target + ".weight", (rows, cols), heads)
        if self.has(source + ".bias"):
            self.take(source + ".bias", target + ".bias", (rows,), heads)

    def attention(self, i, at, blk):
        p = self.p
        deep = p.swift_layers is not None and i >= p.swift_layers
        if deep:
            self.linear(at + "self_attn.q_proj_swiftkv", blk + "attn_q_swiftkv", p.n_q * p.head, p.n_embd, heads=p.n_q)
            if i in p.swift_leaders:
                self.linear(at + "self_attn.k_proj_swiftkv", blk + "attn_k_swiftkv", None, p.n_embd, heads=p.n_kv)
                self.linear(at + "self_attn.v_proj_swiftkv", blk + "attn_v_swiftkv", None, p.n_embd)
            for leftover in ("q", "k", "v"):
                for kind in ("weight", "bias"):
                    self.left.pop(self.full(f"{at}self_attn.{leftover}_proj.{kind}"), None)
        else:
            self.linear(at + "self_attn.q_proj", blk + "attn_q", p.n_q * p.head, p.n_embd, heads=p.n_q)
            self.linear(at + "self_attn.k_proj", blk + "attn_k", p.n_kv * p.head, p.n_embd, heads=p.n_kv)
            self.linear(at + "self_attn.v_proj", blk + "attn_v", p.n_kv * p.head, p.n_embd)
        self.linear(at + "self_attn.o_proj", blk + "attn_output", p.n_embd, p.n_q * p.head)
        if self.arch.qk_norm:
            self.take(at + "self_attn.q_norm.weight", blk + "attn_q_norm.weight", (p.head,), norm=True)
            self.take(at + "self_attn.k_norm.weight", blk + "attn_k_norm.weight", (p.head,), norm=True)

    def layer(self, i):
        p, at, blk = self.p, f"layers.{i}.", f"blk.{i}."

        def norm(source, target):
            self.take(at + source + ".weight", blk + target + ".weight", (p.n_embd,), norm=True)

        norm("input_layernorm", "attn_norm")
        self.attention(i, at, blk)
        if self.arch.sandwich:
            norm("post_attention_layernorm", "post_attention_norm")
            norm("pre_feedforward_layernorm", "ffn_norm")
            norm("post_feedforward_layernorm", "post_ffw_norm")
        else:
            norm("post_attention_layernorm", "ffn_norm")
        self.linear(at + "mlp.gate_proj", blk + "ffn_gate", p.n_ff, p.n_embd)
        self.linear(at + "mlp.up_proj", blk + "ffn_up", p.n_ff, p.n_embd)
        self.linear(at + "mlp.down_proj", blk + "ffn_down", p.n_embd, p.n_ff)

    def run(self):
        p = self.p
        self.take("embed_tokens.weight", "token_embd.weight", (p.n_vocab, p.n_embd))
        for i in range(p.n_layers):
            self.layer(i)
        self.take("norm.weight", "output_norm.weight", (p.n_embd,), norm=True)
        if p.swift_layers is not None and p.swift_layers < p.n_layers:
            self.take("norm_swiftkv.weight", "norm_swiftkv.weight", (p.n_embd,), norm=True)
        head = self.has("lm_head.weight") or "lm_head.weight" in self.left
        if p.tied:
            self.left.pop(self.full("lm_head.weight"), None)
            self.left.pop("lm_head.weight", None)
        elif head:
            self.take("lm_head.weight", "output.weight", (p.n_vocab, p.n_embd))
        else:
            raise ConvertError("tensor lm_head.weight is missing and tie_word_embeddings is not set")
        unknown = [n for n in self.left if not IGNORED.search(n)]
        if unknown:
            raise ConvertError(f"{len(unknown)} tensors are not known for architecture {self.arch.name}: "
                               f"{', '.join(sorted(unknown)[:3])}{' ...' if len(unknown) > 3 else ''}")


def rope_settings(p):
    """(base, base of windowed layers or None, scaling dict) in either of transformers' spellings."""
    c = p.config
    rope = c.get("rope_parameters") or {}
    local = None
    if "full_attention" in rope:
        local = (rope.get("sliding_attention") or {}).get("rope_theta")
        rope = rope["full_attention"]
    scaling = rope or c.get("rope_scaling") or {}
    base = rope.get("rope_theta", c.get("rope_theta", 10000.0))
    local = local or c.get("rope_local_base_freq")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return float(base), local, kind, scaling


def llama3_factors(base, head, s, path):
    """Llama 3's scaling as one divisor a frequency."""
    try:
        factor, low, high = s["factor"], s.get("low_freq_factor", 1.0), s.get("high_freq_factor", 4.0)
        old = s["original_max_position_embeddings"]
    except KeyError as e:
        raise ConvertError(f"{path}: rope scaling llama3 without {e}") from e
    out = []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * base ** (i / head)
        if wavelength < old / high:
            out.append(1.0)
        elif wavelength > old / low:
            out.append(float(factor))
        else:
            smooth = (old / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


def window_period(p):
    """Every how many layers one attends to everything; None when the config does not say."""
    types = p.config.get("layer_types")
    if not types:
        return p.config.get("sliding_window_pattern")
    full = [i for i, t in enumerate(types) if t == "full_attention"]
    period = full[0] + 1 if full else len(types) + 1
    if [i for i in range(len(types)) if (i + 1) % period == 0] != full:
        raise ConvertError(f"{p.path}: layer_types has no period; only every n-th layer attending to "
                           "everything can be written")
    return period
