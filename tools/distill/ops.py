# SPDX-License-Identifier: Apache-2.0
"""The operations of a layer with their gradients: RMS norm, heads with RoPE, causal attention, gated FFN, KL rows.

Each has one meaning and up to three ways: PyTorch's own operations (any device, any type); for bf16 on a CPU the loops
of fused.c between PyTorch's matrix products; and where the processor has AMX the whole passes of amx_*.c (layers.py has
those of whole layers). `use("torch")` takes the first everywhere; tests compare them."""

import concurrent.futures
import ctypes
import hashlib
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.nn.functional as F

_lib = None
_amx = None
_pool = None
_space = {}
AMX = ("amx_layer.c", "amx_attention.c", "amx_kl.c", "amx.h")


def use(way):
    """"torch", "fused" or "amx" (each includes the one before; an error where it cannot be), or "auto". Returns what
    it took."""
    global _lib, _amx
    _lib = _amx = None
    if way != "torch":
        try:
            _lib = _build("fused.c")
            if way != "fused" and " amx_bf16 " in _processor():
                _amx = _build(*AMX)
                if _amx.amx_request():
                    raise OSError("the system grants no tile registers")
        except (OSError, subprocess.CalledProcessError) as e:
            _amx = None
            if way != "auto":
                raise SystemExit(f"distill: --ops {way}: not to be had here: {e}") from e
        if way == "amx" and not _amx:
            raise SystemExit("distill: --ops amx: this processor has no AMX for bf16")
    return "amx" if _amx else "fused" if _lib else "torch"


def _processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line + " " for line in lines if line.startswith(("flags", "Features"))), "")


def _build(*names):
    """Compiled for this machine's own processor, once for each text of the sources. Not linked with -ffast-math: gcc
    would then change how the whole process treats denormal numbers."""
    sources = [pathlib.Path(__file__).resolve().with_name(name) for name in names]
    cpu = _processor()
    tag = hashlib.sha256(b"".join(s.read_bytes() for s in sources) + cpu.encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pipit"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"distill-{tag}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache) as tmp:
            cc = os.environ.get("CC", "cc").split()
            flags = ["-O3", "-march=native", "-ffast-math", "-fPIC", f"-I{sources[0].parents[2]}"]
            if " avx512f " in cpu:
                flags.append("-mprefer-vector-width=512")
            made = []
            for source in sources:
                if source.suffix == ".c":
                    made.append(f"{tmp}/{source.stem}.o")
                    subprocess.run(cc + flags + ["-c", str(source), "-o", made[-1]], check=True)
            subprocess.run(cc + ["-shared", *made, "-o", f"{tmp}/made.so", "-lm"], check=True)
            os.rename(f"{tmp}/made.so", path)
    return ctypes.CDLL(str(path))


def has_amx():
    return _amx is not None


def _fused(*tensors):
    return _lib is not None and all(t.device.type == "cpu" and t.dtype == torch.bfloat16 for t in tensors)


def call(name, *args):
    """A function of the C files: tensors and structs by address, integers as int64_t."""
    def convert(a):
        if isinstance(a, torch.Tensor):
            assert a.is_contiguous()
            return ctypes.c_void_p(a.data_ptr())
        if isinstance(a, ctypes.Structure):
            return ctypes.byref(a)
        if a is None:
            return ctypes.c_void_p(None)
        return ctypes.c_float(a) if isinstance(a, float) else ctypes.c_int64(a)
    getattr(_amx if name.startswith("amx") else _lib, name)(*[convert(a) for a in args])


def size(name, *args):
    """Bytes of scratch, by one of amx_*_scratch."""
    f = getattr(_amx, name)
    f.restype = ctypes.c_int64
    return f(*[ctypes.byref(a) if isinstance(a, ctypes.Structure) else ctypes.c_int64(a) for a in args])


def _scratch(n):
    return torch.empty(n, dtype=torch.uint8)


def parts(n, unit=1):
    """[first, end) of n things for each thread, in multiples of `unit`."""
    count = max(1, min(torch.get_num_threads(), n // unit))
    cuts = [n // unit * i // count * unit for i in range(count)] + [n]
    return list(zip(cuts, cuts[1:]))


def each(ranges, size, f):
    """f(first, end, scratch of `size` bytes) for every range, each in a thread of its own."""
    global _pool
    for i in range(len(ranges)):
        if i not in _space or _space[i].numel() < size:
            _space[i] = torch.empty(size, dtype=torch.uint8)
    if len(ranges) == 1:
        f(*ranges[0], _space[0])
        return
    if _pool is None or _pool._max_workers < len(ranges):
        _pool = concurrent.futures.ThreadPoolExecutor(len(ranges))
    for done in [_pool.submit(f, *r, _space[i]) for i, r in enumerate(ranges)]:
        done.result()


def packed(w, plain):
    """A bf16 matrix as amx.h's right operand: for x w^T, or (`plain`) for x w."""
    m, k = reversed(w.shape) if plain else w.shape
    out = torch.empty(m * k, dtype=torch.bfloat16)
    call("amx_pack", w, w.shape[1], m, k, int(plain), out)
    return out


def _packed(w, plain):
    """The same of a frozen matrix, kept with it."""
    kept = w.__dict__.setdefault("packed", {})
    if plain not in kept:
        kept[plain] = packed(w, plain)
    return kept[plain]


class _Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        n, d = x.numel() // x.shape[-1], x.shape[-1]
        y = torch.empty(x.shape, dtype=torch.bfloat16)
        inv = torch.empty(n)
        call("fused_rms", x, w, n, d, float(eps), y, inv)
        ctx.save_for_backward(x, w, inv)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, inv = ctx.saved_tensors
        dx = torch.empty_like(x)
        call("fused_rms_back", x, w, inv, dy.contiguous(), inv.numel(), x.shape[-1], dx)
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
        call("fused_rope", x, cosine, sine, b, s, heads, width // heads, 0, y)
        ctx.save_for_backward(cosine, sine)
        return y

    @staticmethod
    def backward(ctx, dy):
        cosine, sine = ctx.saved_tensors
        b, h, s, d = dy.shape
        dx = torch.empty((b, s, h * d), dtype=dy.dtype)
        call("fused_rope", dy.contiguous(), cosine, sine, b, s, h, d, 1, dx)
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
        call("fused_softmax", p, p.shape[0] * p.shape[1], s, ctx.scale, torch.empty(s))
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
        call("fused_softmax_back", p, dp, p.shape[0] * p.shape[1], s, ctx.scale)
        dq = torch.bmm(dp, k).view(b, h, s, -1)
        dk = torch.bmm(dp.transpose(1, 2), q)
        return dq, dk.view(b, ctx.n, s, -1), dv.view(b, ctx.n, s, -1)


class _AmxAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        b, h, s, d = q.shape
        ctx.sizes = b * k.shape[1], h // k.shape[1], s, d ** -0.5
        o = torch.empty_like(q)
        log_sum = torch.empty((b, h, s)) if any(ctx.needs_input_grad) else None
        call("amx_attention", q, k, v, *ctx.sizes, o, log_sum, _scratch(s * 448 + 2048))
        if log_sum is not None:
            ctx.save_for_backward(q, k, v, o, log_sum)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, log_sum = ctx.saved_tensors
        s = q.shape[2]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        call("amx_attention_back", q, k, v, o, log_sum, do.contiguous(), *ctx.sizes, dq, dk, dv,
              _scratch(s * (640 + 128 + 4 + 512) + 2 * s * s + 4096))
        return dq, dk, dv


def attention(q, k, v):
    """Causal. q (b, heads, s, d), k and v (b, kv heads, s, d); query heads [i * g, i * g + g) read K/V head i."""
    if _amx and _fused(q, k, v) and q.shape[2] % 32 == 0 and q.shape[3] == v.shape[3] == 64:
        return _AmxAttention.apply(q.contiguous(), k.contiguous(), v.contiguous())
    if _fused(q, k, v):
        return _Attention.apply(q.contiguous(), k.contiguous(), v.contiguous())
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, u):
        y = torch.empty_like(g)
        call("fused_gate", g, u, g.numel(), y)
        ctx.save_for_backward(g, u)
        return y

    @staticmethod
    def backward(ctx, dy):
        g, u = ctx.saved_tensors
        dg, du = torch.empty_like(g), torch.empty_like(u)
        call("fused_gate_back", g, u, dy.contiguous(), g.numel(), dg, du)
        return dg, du


def gate(g, u):
    """silu(g) * u"""
    if _fused(g, u):
        return _Gate.apply(g.contiguous(), u.contiguous())
    return F.silu(g) * u


class _AmxMlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, layer, eps):
        gate, down = layer["gate"], layer["down"]
        d, width = down.shape
        n = h.numel() // d
        both = layer.get("gate_up")
        if both is None:
            both = torch.stack((gate.view(-1, 16, d), layer["up"].view(-1, 16, d)), 1).reshape(2 * width, d)
            layer["gate_up"] = both
        out, inv, gated = torch.empty_like(h), None, None
        if ctx.needs_input_grad[0]:
            inv, gated = torch.empty(n), torch.empty((n, 2 * width), dtype=torch.bfloat16)
            ctx.save_for_backward(h, inv, gated)
            ctx.layer = layer
        call("amx_mlp", h, n, d, width, layer["ffn_norm"], float(eps), _packed(both, False), _packed(down, False), out,
             inv, gated, _scratch(size("amx_mlp_scratch", d, width)))
        return out

    @staticmethod
    def backward(ctx, dout):
        h, inv, gated = ctx.saved_tensors
        layer, n, width, d = ctx.layer, gated.shape[0], gated.shape[1] // 2, h.shape[-1]
        both = layer.get("gate_up_rows")
        if both is None:
            layer["gate_up_rows"] = both = torch.cat((layer["gate"], layer["up"]))
        dh = torch.empty_like(h)
        call("amx_mlp_back", dout.contiguous(), h, inv, gated, n, d, width, layer["ffn_norm"], _packed(both, True),
             _packed(layer["down"], True), dh, _scratch(size("amx_mlp_scratch", d, width)))
        return dh, None, None


def mlp(h, layer, eps, dtype):
    """h (..., d) f32 plus down(silu(gate(x)) * up(x)), x its norm; weights of `layer` are frozen."""
    w = layer["gate"]
    rows = h.numel() // h.shape[-1]
    if _amx and _fused(w) and not w.requires_grad and rows % 32 == 0 and w.shape[0] % 32 == 0 and w.shape[1] % 32 == 0:
        return _AmxMlp.apply(h.contiguous(), layer, eps)
    x = rms(h, layer["ffn_norm"], eps, dtype)
    return h + F.linear(gate(F.linear(x, w), F.linear(x, layer["up"])), layer["down"])


def kl_head(s, t, head, temperature):
    """States s, t (n, d) of student and teacher and the head (v, d): the sum of KL(t || s) over rows, and its gradient
    by s, T times it, in s's type. None where amx_kl.c cannot."""
    n, d = s.shape
    v = head.shape[0]
    if not (_amx and _fused(s, t, head) and d % 32 == 0 and v % 32 == 0):
        return None
    rows = (n + 31) // 32 * 32
    s, t = [F.pad(x, (0, 0, 0, rows - n)).contiguous() for x in (s, t)]
    kl, grad = torch.empty(rows), torch.empty((rows, d))
    there, back = _packed(head, False), _packed(head, True)
    each(parts(rows, 32), size("amx_kl_scratch", d, v), lambda a, b, space: call(
        "amx_kl", s[a:b], t[a:b], b - a, d, v, there, back, 1.0 / temperature, kl[a:b], grad[a:b], space))
    return kl[:n].sum(), grad[:n].to(s.dtype)


def kl_rows(s, t, temperature):
    """Logits s, t (n, v) of student and teacher, s overwritten: KL(t || s) at the temperature (n) f32, and
    softmax(s / T) - softmax(t / T), T times its gradient by s, in s's type."""
    if _fused(s, t):
        kl = torch.empty(s.shape[0])
        call("fused_kl", s, t, s.shape[0], s.shape[1], 1.0 / temperature, kl)
        return kl, s
    log_q = F.log_softmax(s.float() / temperature, -1)
    log_p = F.log_softmax(t.float() / temperature, -1)
    p = log_p.exp()
    return (p * (log_p - log_q)).sum(-1), (log_q.exp() - p).to(s.dtype)
