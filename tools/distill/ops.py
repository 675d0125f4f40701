# SPDX-License-Identifier: Apache-2.0
"""The operations of a layer with their gradients: RMS norm, heads with RoPE, causal attention, gated FFN, KL rows.

Each has one meaning and up to three ways: PyTorch's own operations (any device, any type); for bf16 on a CPU the loops
of fused.c between PyTorch's matrix products; and where the processor has AMX, or AVX-512 with bf16, the whole passes of
tile_*.c (layers.py has those of whole layers). `use("torch")` takes the first everywhere; tests compare them."""

import concurrent.futures
import ctypes
import hashlib
import math
import os
import pathlib
import subprocess
import tempfile
import time

import torch
import torch.nn.functional as F

_lib = None
_tiles = None
_wide = False  # products of bf16 are slower here than those of f32
_pool = None
_space = {}
WIDEST = 8192  # of a product: WIDE / 32 in tile_avx512.h
TILES = ("tile_layer.c", "tile_wide.c", "tile_attention.c", "tile_kl.c", "tile_layer.h", "tile.h", "tile_amx.h",
         "tile_avx512.h", "tile_halves.h", "tile_finish.h")
# way -> (the processor's flag, the compiler's)
WAYS = {"amx": ("amx_bf16", ["-DTILE_AMX"]), "avx512-f16": ("avx512_fp16", ["-DTILE_HALVES"]),
        "avx512-bf16": ("avx512_bf16", ["-DTILE_DOTS"]), "avx512-f32": ("avx512_bf16", [])}


def use(way):
    """"torch", "fused", or whole passes with their products by "amx", by AVX-512's of "avx512-f16", "avx512-bf16" or
    "avx512-f32", or by the fastest of these three ("avx512"); "auto": the best of all there is. Another is an error where
    it cannot be. Returns what it took."""
    global _lib, _tiles, _wide
    _lib = _tiles = None
    _wide = False
    if way == "torch":
        return way
    try:
        _lib = _build(["fused.c"])
        if way == "fused":
            return way
        found = {}
        for one in WAYS:
            if fits(one) and (way == "auto" or one.startswith(way)) and "amx" not in found:
                try:
                    lib = _build(TILES, WAYS[one][1])
                except subprocess.CalledProcessError:  # a compiler older than the processor
                    if way == one:
                        raise
                    continue
                if lib.tile_request() == 0:
                    found[one] = lib
        if found:
            one = min(found, key=lambda w: _seconds(found[w])) if len(found) > 1 else next(iter(found))
            _tiles, _wide = found[one], one in ("avx512-f16", "avx512-f32")
            return one
    except (OSError, subprocess.CalledProcessError) as e:
        if way != "auto":
            raise SystemExit(f"distill: --ops {way}: not to be had here: {e}") from e
    if way != "auto":
        raise SystemExit(f"distill: --ops {way}: this processor has no {'AMX for bf16' if way == 'amx' else 'AVX-512 for it'}")
    return "fused" if _lib else "torch"


def fits(way):
    """Whether the processor has what one of WAYS needs, the system's leave apart."""
    return f" {WAYS[way][0]} " in _processor()


def _seconds(lib):
    """The least of a few runs of an MLP of 128 rows: which products are faster here."""
    global _tiles
    n, d, width = 128, 256, 512
    h, norm = torch.ones(n, d), torch.ones(d)
    there, back = torch.ones(2 * width * d, dtype=torch.bfloat16), torch.ones(d * width, dtype=torch.bfloat16)
    _tiles, best = lib, math.inf
    space = _scratch(size("tile_mlp_scratch", d, width))
    for _ in range(5):
        start = time.perf_counter()
        call("tile_mlp", h, n, d, width, norm, 1e-5, there, back, torch.empty_like(h), None, None, space)
        best = min(best, time.perf_counter() - start)
    return best


def _processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line + " " for line in lines if line.startswith(("flags", "Features"))), "")


def _build(names, more=()):
    """Compiled for this machine's own processor, with `more` flags, once for each text of the sources. Not linked with -ffast-math: gcc
    would then change how the whole process treats denormal numbers."""
    sources = [pathlib.Path(__file__).resolve().with_name(name) for name in names]
    cpu = _processor()
    tag = hashlib.sha256(b"".join(s.read_bytes() for s in sources) + f"{cpu}{more}".encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pipit"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"distill-{tag}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache) as tmp:
            cc = os.environ.get("CC", "cc").split()
            flags = ["-O3", "-march=native", "-ffast-math", "-fPIC", f"-I{sources[0].parents[2]}"]
            if " avx512f " in cpu:
                flags.append("-mprefer-vector-width=512")
            flags += more
            made = []
            for source in sources:
                if source.suffix == ".c":
                    made.append(f"{tmp}/{source.stem}.o")
                    subprocess.run(cc + flags + ["-c", str(source), "-o", made[-1]], check=True)
            subprocess.run(cc + ["-shared", *made, "-o", f"{tmp}/made.so", "-lm"], check=True)
            os.rename(f"{tmp}/made.so", path)
    return ctypes.CDLL(str(path))


def has_tiles():
    return _tiles is not None


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
    getattr(_tiles if name.startswith("tile") else _lib, name)(*[convert(a) for a in args])


def size(name, *args):
    """Bytes of scratch, by one of tile_*_scratch."""
    f = getattr(_tiles, name)
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


def outer(a, b):
    """a^T b f32, of bf16 (n, i) and (n, j): a gradient by weights."""
    if _wide:
        return a.float().t() @ b.float()
    return (a.t() @ b).float()


def outers(a, b):
    """Sums over the first dim of such products: bf16 (b, heads, n, i) and (b, heads, n, j) to f32 (heads, i, j)."""
    if _wide:
        a, b = a.float(), b.float()
    return sum(torch.bmm(x.transpose(1, 2), y).float() for x, y in zip(a, b))


def packed(w, plain):
    """A bf16 matrix as tile.h's right operand: for x w^T, or (`plain`) for x w."""
    m, k = reversed(w.shape) if plain else w.shape
    out = torch.empty(m * k, dtype=torch.bfloat16)
    call("tile_pack_weights", w, w.shape[1], m, k, int(plain), out)
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
    return F.rms_norm(x, w.shape, w, eps).to(dtype)


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


def _turn(x, cosine, sine):
    """x (..., s, d), element i turned with i + d / 2, in four passes over halves; products are f32."""
    y = torch.empty_like(x)
    (lo, hi), (low, high) = x.chunk(2, -1), y.chunk(2, -1)
    torch.mul(lo, cosine, out=low)
    low.addcmul_(hi, sine, value=-1)
    torch.mul(hi, cosine, out=high)
    high.addcmul_(lo, sine)
    return y


class _TorchRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cosine, sine):
        ctx.save_for_backward(cosine, sine)
        return _turn(x, cosine, sine)

    @staticmethod
    def backward(ctx, dy):
        cosine, sine = ctx.saved_tensors
        return _turn(dy, cosine, -sine), None, None


def rope_heads(x, cosine, sine, heads):
    """x (b, s, heads * d) to (b, heads, s, d), element i of a head turned with i + d / 2; cosine, sine (s, d / 2)."""
    if _fused(x):
        return _Rope.apply(x.contiguous(), cosine, sine, heads)
    b, s, width = x.shape
    return _TorchRope.apply(x.view(b, s, heads, width // heads).transpose(1, 2), cosine, sine)


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


class _TileAttention(torch.autograd.Function):
    """Threads divide the K/V heads of all sequences."""

    @staticmethod
    def forward(ctx, q, k, v):
        b, h, s, d = q.shape
        ctx.sizes = h // k.shape[1], s, d ** -0.5
        groups = b * k.shape[1]
        o = torch.empty_like(q)
        log_sum = torch.empty((b, h, s)) if any(ctx.needs_input_grad) else None
        rows = lambda x: None if x is None else x.view(groups, -1)
        q_rows, k_rows, v_rows, o_rows, sums = map(rows, (q, k, v, o, log_sum))
        each(parts(groups), s * 448 + 2048, lambda a, e, space: call(
            "tile_attention", q_rows[a:e], k_rows[a:e], v_rows[a:e], e - a, *ctx.sizes, o_rows[a:e],
            None if sums is None else sums[a:e], space))
        if log_sum is not None:
            ctx.save_for_backward(q, k, v, o, log_sum)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, log_sum = ctx.saved_tensors
        s, groups = q.shape[2], q.shape[0] * k.shape[1]
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        given = [x.view(groups, -1) for x in (q, k, v, o, log_sum, do.contiguous())]
        made = [x.view(groups, -1) for x in (dq, dk, dv)]
        each(parts(groups), s * (640 + 128 + 4 + 512) + 2 * s * s + 4096, lambda a, e, space: call(
            "tile_attention_back", *(x[a:e] for x in given), e - a, *ctx.sizes, *(x[a:e] for x in made), space))
        return dq, dk, dv


def attention(q, k, v, at=None):
    """Causal. q (b, heads, s, d), k and v (b, kv heads, s, d); query heads [i * g, i * g + g) read K/V head i. With `at` q
    has the rows of these positions only."""
    if at is not None:
        g = q.shape[1] // k.shape[1]
        seen = torch.arange(k.shape[2], device=q.device) <= at[:, None]
        return F.scaled_dot_product_attention(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), attn_mask=seen)
    if _tiles and _fused(q, k, v) and q.shape[2] % 32 == 0 and q.shape[2] <= WIDEST and q.shape[3] == v.shape[3] == 64:
        return _TileAttention.apply(q.contiguous(), k.contiguous(), v.contiguous())
    if _fused(q, k, v):
        return _Attention.apply(q.contiguous(), k.contiguous(), v.contiguous())
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def wide_attention(q, k, v, scale):
    """Causal. q (b, heads, s, d), one head of K (b, 1, s, d) and V (b, 1, s, n): a list of (b, heads, s, d), what is read of each d dims
    of V. GPUs' kernels that keep no scores want K and V of one width; d of V at once cost them less than K padded to n."""
    each = lambda x: x.expand(-1, q.shape[1], -1, -1).contiguous()
    k, parts = each(k), v.split(q.shape[-1], -1)
    parts = [F.pad(x, (0, q.shape[-1] - x.shape[-1])) for x in parts]
    return [F.scaled_dot_product_attention(q, k, each(x), is_causal=True, scale=scale) for x in parts]


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


class _TileMlp(torch.autograd.Function):
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
        part = lambda x, a, e: None if x is None else x.view(n, -1)[a:e]
        there, back = _packed(both, False), _packed(down, False)
        each(parts(n, 32), size("tile_mlp_scratch", d, width), lambda a, e, space: call(
            "tile_mlp", part(h, a, e), e - a, d, width, layer["ffn_norm"], float(eps), there, back, part(out, a, e),
            part(inv, a, e), part(gated, a, e), space))
        return out

    @staticmethod
    def backward(ctx, dout):
        h, inv, gated = ctx.saved_tensors
        layer, n, width, d = ctx.layer, gated.shape[0], gated.shape[1] // 2, h.shape[-1]
        both = layer.get("gate_up_rows")
        if both is None:
            layer["gate_up_rows"] = both = torch.cat((layer["gate"], layer["up"]))
        dh = torch.empty_like(h)
        part = lambda x, a, e: x.view(n, -1)[a:e]
        there, back, dout = _packed(both, True), _packed(layer["down"], True), dout.contiguous()
        each(parts(n, 32), size("tile_mlp_scratch", d, width), lambda a, e, space: call(
            "tile_mlp_back", part(dout, a, e), part(h, a, e), part(inv, a, e), part(gated, a, e), e - a, d, width,
            layer["ffn_norm"], there, back, part(dh, a, e), space))
        return dh, None, None


def mlp(h, layer, eps, dtype):
    """h (..., d) f32 plus down(silu(gate(x)) * up(x)), x its norm; weights of `layer` are frozen."""
    w = layer["gate"]
    rows = h.numel() // h.shape[-1]
    fits_tiles = rows % 32 == 0 and w.shape[0] % 32 == 0 and w.shape[1] % 32 == 0 and max(2 * w.shape[0], w.shape[1]) <= WIDEST
    if _tiles and _fused(w) and not w.requires_grad and fits_tiles:
        return _TileMlp.apply(h.contiguous(), layer, eps)
    x = rms(h, layer["ffn_norm"], eps, dtype)
    return h + F.linear(gate(F.linear(x, w), F.linear(x, layer["up"])), layer["down"])


def kl_head(s, t, head, temperature):
    """States s, t (n, d) of student and teacher and the head (v, d): the sum of KL(t || s) over rows, and its gradient
    by s, T times it, in s's type. None where tile_kl.c cannot."""
    n, d = s.shape
    v = head.shape[0]
    if not (_tiles and _fused(s, t, head) and d % 32 == 0 and d <= WIDEST and v % 32 == 0):
        return None
    rows = (n + 31) // 32 * 32
    s, t = [F.pad(x, (0, 0, 0, rows - n)).contiguous() for x in (s, t)]
    kl, grad = torch.empty(rows), torch.empty((rows, d))
    there, back = _packed(head, False), _packed(head, True)
    each(parts(rows, 32), size("tile_kl_scratch", d, v), lambda a, b, space: call(
        "tile_kl", s[a:b], t[a:b], b - a, d, v, there, back, 1.0 / temperature, kl[a:b], grad[a:b], space))
    return kl[:n].sum(), grad[:n].to(s.dtype)


def kl_rows(s, t, temperature):
    """Logits s, t (n, v) of student and teacher, s overwritten: KL(t || s) at the temperature (n) f32, and
    softmax(s / T) - softmax(t / T), T times its gradient by s, in s's type."""
    if _fused(s, t):
        kl = torch.empty(s.shape[0])
        call("fused_kl", s, t, s.shape[0], s.shape[1], 1.0 / temperature, kl)
        return kl, s
    dtype = s.dtype
    if temperature != 1:
        s, t = s.float() / temperature, t.float() / temperature
    log_q, log_p = (F.log_softmax(x, -1, dtype=torch.float32) for x in (s, t))
    apart = log_p - log_q
    p = log_p.exp_()  # these arrays are the largest of a step: few of them, few passes
    return apart.mul_(p).sum(-1), log_q.exp_().sub_(p).to(dtype)
