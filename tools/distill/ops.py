# SPDX-License-Identifier: Apache-2.0
"""The operations of a layer with their gradients: RMS norm, heads with RoPE, causal attention, gated FFN, KL rows.

Each has one meaning and two ways: PyTorch's own operations (any device, any type), and for bf16 on a CPU the loops of
fused.c between PyTorch's matrix products. `use("torch")` takes the first everywhere; tests compare the two."""

import ctypes
import hashlib
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.nn.functional as F

_lib = None


def use(way):
    """"torch", "fused" (an error without a C compiler), or "auto". Returns what it took."""
    global _lib
    _lib = None
    if way != "torch":
        try:
            _lib = _build()
        except (OSError, subprocess.CalledProcessError) as e:
            if way == "fused":
                raise SystemExit(f"distill: fused.c cannot be compiled: {e}") from e
    return "fused" if _lib else "torch"


def _build():
    """Compiled for this machine's own processor, once for each text of the source. Not linked with -ffast-math: gcc
    would then change how the whole process treats denormal numbers."""
    source = pathlib.Path(__file__).with_name("fused.c")
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    tag = hashlib.sha256(source.read_bytes() + cpu.encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pipit"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"distill-{tag}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache) as tmp:
            cc = os.environ.get("CC", "cc").split()
            flags = ["-O3", "-march=native", "-ffast-math", "-fPIC"]
            if " avx512f " in cpu:
                flags.append("-mprefer-vector-width=512")
            subprocess.run(cc + flags + ["-c", str(source), "-o", f"{tmp}/fused.o"], check=True)
            subprocess.run(cc + ["-shared", f"{tmp}/fused.o", "-o", f"{tmp}/fused.so", "-lm"], check=True)
            os.rename(f"{tmp}/fused.so", path)
    return ctypes.CDLL(str(path))


def _fused(*tensors):
    return _lib is not None and all(t.device.type == "cpu" and t.dtype == torch.bfloat16 for t in tensors)


def _call(name, *args):
    def convert(a):
        if isinstance(a, torch.Tensor):
            assert a.is_contiguous()
            return ctypes.c_void_p(a.data_ptr())
        return ctypes.c_float(a) if isinstance(a, float) else ctypes.c_int64(a)
    getattr(_lib, name)(*[convert(a) for a in args])


class _Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        n, d = x.numel() // x.shape[-1], x.shape[-1]
        y = torch.empty(x.shape, dtype=torch.bfloat16)
        inv = torch.empty(n)
        _call("fused_rms", x, w, n, d, float(eps), y, inv)
        ctx.save_for_backward(x, w, inv)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, inv = ctx.saved_tensors
        dx = torch.empty_like(x)
        _call("fused_rms_back", x, w, inv, dy.contiguous(), inv.numel(), x.shape[-1], dx)
        return dx, None, None


def rms(x, w, eps, dtype):
    """x (..., d) f32 over its root mean square, times w, as `dtype`. The fused way has no gradient for w."""
    if _lib is not None and x.device.type == "cpu" and dtype == torch.bfloat16 and not w.requires_grad:
        return _Rms.apply(x.contiguous(), w, eps)
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w).to(dtype)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cosine, sine, heads):
        b, s, width = x.shape
        y = torch.empty((b, heads, s, width // heads), dtype=x.dtype)
        _call("fused_rope", x, cosine, sine, b, s, heads, width // heads, 0, y)
        ctx.save_for_backward(cosine, sine)
        return y

    @staticmethod
    def backward(ctx, dy):
        cosine, sine = ctx.saved_tensors
        b, h, s, d = dy.shape
        dx = torch.empty((b, s, h * d), dtype=dy.dtype)
        _call("fused_rope", dy.contiguous(), cosine, sine, b, s, h, d, 1, dx)
        return dx, None, None, None


def rope_heads(x, cosine, sine, heads):
    """x (b, s, heads * d) to (b, heads, s, d), element i of a head turned with i + d / 2; cosine, sine (s, d / 2)."""
    if _fused(x):
        return _Rope.apply(x.contiguous(), cosine, sine, heads)
    b, s, width = x.shape
    x = x.view(b, s, heads, width // heads).transpose(1, 2)
    c, t = cosine.to(x.dtype), sine.to(x.dtype)
    lo, hi = x.chunk(2, -1)
    return torch.cat((lo * c - hi * t, hi * c + lo * t), -1)


class _Attention(torch.autograd.Function):
    """Query heads of one K/V head lie side by side, so they are the rows of one product with it."""

    @staticmethod
    def forward(ctx, q, k, v):
        b, h, s, d = q.shape
        n = k.shape[1]
        q = q.reshape(b * n, h // n * s, d)
        k, v = k.reshape(b * n, s, d), v.reshape(b * n, s, v.shape[-1])
        p = torch.bmm(q, k.transpose(1, 2))
        ctx.scale = d ** -0.5
        _call("fused_softmax", p, p.shape[0] * p.shape[1], s, ctx.scale, torch.empty(s))
        ctx.save_for_backward(q, k, v, p)
        ctx.n = n
        return torch.bmm(p, v).view(b, h, s, -1)

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        b, h, s, d = do.shape
        do = do.reshape(p.shape[0], p.shape[1], d)
        dv = torch.bmm(p.transpose(1, 2), do)
        dp = torch.bmm(do, v.transpose(1, 2))
        _call("fused_softmax_back", p, dp, p.shape[0] * p.shape[1], s, ctx.scale)
        dq = torch.bmm(dp, k).view(b, h, s, -1)
        dk = torch.bmm(dp.transpose(1, 2), q)
        return dq, dk.view(b, ctx.n, s, -1), dv.view(b, ctx.n, s, -1)


def attention(q, k, v):
    """Causal. q (b, heads, s, d), k and v (b, kv heads, s, d); query heads [i * g, i * g + g) read K/V head i."""
    if _fused(q, k, v):
        return _Attention.apply(q.contiguous(), k.contiguous(), v.contiguous())
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, u):
        y = torch.empty_like(g)
        _call("fused_gate", g, u, g.numel(), y)
        ctx.save_for_backward(g, u)
        return y

    @staticmethod
    def backward(ctx, dy):
        g, u = ctx.saved_tensors
        dg, du = torch.empty_like(g), torch.empty_like(u)
        _call("fused_gate_back", g, u, dy.contiguous(), g.numel(), dg, du)
        return dg, du


def gate(g, u):
    """silu(g) * u"""
    if _fused(g, u):
        return _Gate.apply(g.contiguous(), u.contiguous())
    return F.silu(g) * u


def kl_rows(s, t, temperature):
    """Logits s, t (n, v) of student and teacher, s overwritten: KL(t || s) at the temperature (n) f32, and
    softmax(s / T) - softmax(t / T), T times its gradient by s, in s's type."""
    if _fused(s, t):
        kl = torch.empty(s.shape[0])
        _call("fused_kl", s, t, s.shape[0], s.shape[1], 1.0 / temperature, kl)
        return kl, s
    log_q = F.log_softmax(s.float() / temperature, -1)
    log_p = F.log_softmax(t.float() / temperature, -1)
    p = log_p.exp()
    return (p * (log_p - log_q)).sum(-1), (log_q.exp() - p).to(s.dtype)
