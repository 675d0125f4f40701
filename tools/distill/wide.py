# SPDX-License-Identifier: Apache-2.0
"""A student with wide stores: a group's layers share one head of K and V, wider than the model's, which every query head reads
by two small maps of its own. K's pairs of dims rotate by frequencies of their own (0: not at all).

    z = norm(split's state);  k = rope(K z; freqs);  v = V z
    layer j, head h: q = rope(Q_h (q_j x)_h; freqs);  a = sum softmax(q k / sqrt(dim)) v;  out = o concat_h(M_h a)

and its start by closed forms. RoPE commutes with maps between pairs of one frequency, so what serves one frequency is a complex
matrix: of all layers' and heads' keys at that frequency, as the split's state can say them (R of fit.py), each times the root of
its queries' power, the singular vectors in z's metric are the best few complex numbers to keep, and a query head reads its
key as a sum of them: its own query times the conjugate of each factor.

Frequencies that hardly turn within NEAR tokens are plain numbers: all layers' keys there, times the root of E[q q'], meet in one
real subspace without RoPE, what is the same at all positions left out, since no softmax sees it.

Numbers go where a real number stored explains most of the scores' variance (a complex one costs two and half of it is seen). V:
the directions of z of which the layers' o_h v R make most, as in fit.py, of all heads together. How the dims are divided
between K and V is tried (SHARES) on text that the fit has not seen."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import cache8
import fit
import layers
import loss
import model
import ops
import overlay

NEAR = 900
SHARES = (0.25, 0.33, 0.42, 0.5, 0.67)  # of the dims that are K's
WIDEST = 256  # heads that every backend takes


class Wide(model.Student):
    def __init__(self, frozen, split, group, dims, cache="none", outputs=False):
        super().__init__(frozen, split, group, cache=cache, outputs=outputs)
        w = frozen.w
        self.kv_heads, self.dims = 1, None
        self.set_dims(*dims)
        self.turns = {}
        if w.n_heads * w.dim != self.q[0].shape[0]:
            raise SystemExit("distill: --wide: queries are not n_heads heads")

    def set_dims(self, k_dim, v_dim):
        """Maps and stores of this size, all zeros: fit or load fills them."""
        w, zeros = self.frozen.w, lambda *s: nn.Parameter(torch.zeros(s, device=self.frozen.device))
        self.dims = k_dim, v_dim
        self.k = nn.ParameterList(zeros(k_dim, w.n_embd) for _ in self.k)
        self.v = nn.ParameterList(zeros(v_dim, w.n_embd) for _ in self.v)
        self.q_map = nn.ParameterList(zeros(w.n_heads, k_dim, w.dim) for _ in self.q)
        self.v_map = nn.ParameterList(zeros(w.n_heads, w.dim, v_dim) for _ in self.q)
        self.register_buffer("freqs", torch.zeros(len(self.k), k_dim // 2, dtype=torch.float32, device=self.frozen.device))
        self.turns = {}

    def turn(self, i, s, at=None):
        """cosine, sine (s, k_dim / 2) of store i's frequencies."""
        if i not in self.turns or self.turns[i][0].shape[0] < s:
            a = torch.outer(torch.arange(s, dtype=torch.float64, device=self.freqs.device), self.freqs[i].double())
            self.turns[i] = [x.float().contiguous() for x in (a.cos(), a.sin())]
        return [x[:s].contiguous() if at is None else x[at].contiguous() for x in self.turns[i]]

    def stores(self, x):
        f = self.frozen
        z = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + f.w.eps) * self.norm).to(f.dtype)
        out = []
        for i, (k, v) in enumerate(zip(self.k, self.v)):
            k = ops.rope_heads(F.linear(z, k.to(f.dtype)), *self.turn(i, x.shape[1]), 1)
            out.append(cache8.store(k, F.linear(z, v.to(f.dtype))[:, None], self.cache))
        return out

    @staticmethod
    def mapped(x, maps):
        """x (b, s, heads, i), maps (heads, o, i): (b, s, heads, o)"""
        b, s, h, _ = x.shape
        y = torch.bmm(x.flatten(0, 1).transpose(0, 1), maps.transpose(1, 2))
        return y.transpose(0, 1).reshape(b, s, h, -1)

    def whole(self, j, h, stores, layer):
        """The same at all positions. The maps go into the projections beside them first: one product each, and no head's rows are
        moved."""
        f, (k, v), n = self.frozen, stores[self.store[j]], self.frozen.w.n_heads
        k_dim, v_dim = self.dims
        x = ops.rms(h, layer["attn_norm"], f.w.eps, f.dtype)
        into = torch.bmm(self.q_map[j], self.q[j].view(n, f.w.dim, -1)).flatten(0, 1)
        q = ops.rope_heads(F.linear(x, into.to(f.dtype)), *self.turn(self.store[j], k.shape[2]), n)
        o = self.o[j] if self.o else layer["o"].float()
        back = torch.bmm(o.view(-1, n, f.w.dim).transpose(0, 1), self.v_map[j]).to(f.dtype)  # (n, embd, v_dim)
        out = 0
        for at, a in zip(range(0, v_dim, k_dim), ops.wide_attention(q, k, v, f.w.dim ** -0.5)):
            some = F.pad(back[..., at:at + k_dim], (0, max(0, at + k_dim - v_dim)))
            out = out + F.linear(a.transpose(1, 2).flatten(2), some.transpose(0, 1).flatten(1))
        return out

    def attention(self, j, h, stores, layer=None, at=None):
        f, i = self.frozen, self.store[j]
        layer = layer or self.layer(j)
        if at is None:
            return self.whole(j, h, stores, layer)
        (b, s), n, (k, v) = h.shape[:2], f.w.n_heads, stores[i]
        x = ops.rms(h, layer["attn_norm"], f.w.eps, f.dtype)
        q = F.linear(x, self.q[j].to(f.dtype)).view(b, s, n, f.w.dim)
        q = self.mapped(q, self.q_map[j].to(f.dtype)).flatten(2)
        q = ops.rope_heads(q, *self.turn(i, k.shape[2], at), n)
        # one head of K, so all heads' queries are the rows of one product with it
        scores = torch.bmm(q.reshape(b, n * s, -1), k[:, 0].transpose(1, 2)).view(b, n, s, -1) * f.w.dim ** -0.5
        rows = torch.arange(s, device=h.device) if at is None else at
        unseen = torch.arange(k.shape[2], device=h.device) > rows[:, None]
        p = scores.masked_fill(unseen, -math.inf).softmax(-1, dtype=torch.float32).to(f.dtype)
        a = torch.bmm(p.view(b, n * s, -1), v[:, 0]).view(b, n, s, -1).transpose(1, 2)
        o = self.o[j].to(f.dtype) if self.o else layer["o"]
        return F.linear(self.mapped(a, self.v_map[j].to(f.dtype)).flatten(2), o)

    def outcome(self, x, teacher=None, at=None):
        if at is not None and teacher is not None:
            teacher = [None, *(t[:, at] for t in teacher[1:])]
        if layers.able_wide(self.frozen, x, self.dims) and (at is None or len(at) % 32 == 0):
            rows = x if at is None else x[:, at]
            maps = self.q_map, self.v_map, [self.turn(i, x.shape[1], at) for i in range(len(self.k))]
            last, error = layers.deep(self.frozen, self.split, self.store, self.q, self.o, self.stores(x), rows, teacher, at, maps)
            return last, None if teacher is None else error
        states = self.run(x, at)
        return states[-1], None if teacher is None else loss.relative(states[1:], teacher[1:])


def blank(shape, frozen):
    """A Student of that shape, as opened() says it."""
    split, group, heads, dims, outputs = shape
    return Wide(frozen, split, group, dims, outputs=outputs) if dims else model.Student(frozen, split, group, heads, outputs=outputs)


def opened(path, frozen):
    """((split, group, heads of the narrow stores, dims of the wide ones, whether it has outputs), its Student, its reader) of an
    overlay file."""
    split, group, reader = overlay.shape(path)
    rows = next(t for t in reader.tensors if t.name.endswith(f"{split}.attn_k_swiftkv.weight")).shape[1]
    heads, dims, outputs = int(rows) // frozen.w.dim, overlay.wide_dims(reader), overlay.has_outputs(path, reader)
    shape = split, group, heads, dims, outputs
    ret = blank(shape, frozen)
    overlay.load(path, ret)
    return shape, ret, reader


class WideFit(fit.Fit):
    def __init__(self, student, data, n, ridge=1e-4):
        self.student, self.w, self.data, self.n = student, student.frozen.w, data, n
        self.mean, zz, xz, self.xx = fit.moments(student.frozen, data, student.split, n)
        zz += ridge * zz.diagonal().mean() * torch.eye(len(zz), dtype=zz.dtype)
        self.root, self.varying = torch.linalg.cholesky(zz), torch.linalg.cholesky(zz - torch.outer(self.mean, self.mean))
        self.guess = torch.cholesky_solve(xz.mT, self.root).mT
        self.kept = {}

    def found_v(self, members):
        """Eigenvalues and directions (embd, embd), the least first."""
        a = 0
        for j in members:
            v, _, oo, adds = self.values(j)
            m = v @ self.guess[j] @ self.root
            a = a + torch.einsum("gad,gab,gbe->de", m, oo, m) / adds
        return torch.linalg.eigh(a)

    def found_k(self, members):
        """Candidates (gain a real number, frequency or None, row, factors by member): complex ones of fast frequencies, pairs of
        real ones of the slow."""
        w, half = self.w, self.w.dim // 2
        cut = next((i for i in range(half) if NEAR * w.theta ** (-i / half) < 1), half)
        heads = w.n_heads // w.n_kv
        pairs = lambda a: torch.complex(a[:, :half], a[:, half:])
        keys = {j: self.weight(j, "k") @ self.guess[j] for j in members}  # (n_kv, dim, embd)
        root, out = self.root.to(torch.complex128), []
        power = {}
        for j in members:
            q = pairs(self.weight(j, "q"))
            p = torch.einsum("hfd,de,hfe->hf", q, self.xx[j].to(q.dtype), q.conj()).real
            power[j] = p.view(w.n_kv, heads, half).sum(1).clamp(min=1e-12).sqrt()
        for i in range(cut):
            size = torch.cat([power[j][:, i] for j in members])
            m = torch.cat([pairs(keys[j])[:, i] for j in members]) @ root * size[:, None]
            u, s, vh = torch.linalg.svd(m, full_matrices=False)
            rows, factors = torch.linalg.solve(root, vh, left=False), u * s / size[:, None]
            out += [(s[k].item() ** 2 / 4, i, rows[k], factors[:, k], s[k].item()) for k in range(len(s))]
        slow = list(range(cut, half)) + list(range(half + cut, w.dim))
        scores = 0
        for j in members if cut < half else ():
            q = self.weight(j, "q").view(w.n_kv, heads, w.dim, -1)[:, :, slow]
            qq = torch.einsum("ghad,de,ghbe->gab", q, self.xx[j], q)
            k = keys[j][:, slow] @ self.varying
            scores = scores + torch.einsum("gad,gab,gbe->de", k, qq, k)
        if cut < half:
            e, vectors = torch.linalg.eigh(scores)
            e, vectors = e.flip(0), vectors.flip(1)
            rows = torch.linalg.solve(self.varying.mT, vectors).mT
            read = torch.cat([keys[j][:, slow] @ self.varying @ vectors for j in members])  # (members * n_kv, slow, embd)
            out += [((e[k] + e[k + 1]).item() / 2, None, rows[k:k + 2], read[:, :, k:k + 2], e[k:k + 2].clamp(min=1e-12).sqrt())
                    for k in range(0, len(e) - 1, 2)]
        return sorted(out, key=lambda c: -c[0]), slow, cut

    @torch.no_grad()
    def fill(self, dims):
        """The student's weights, for K and V of these sizes. Stored values are scaled by the root of what they explain, so that a
        code of even steps hurts all alike."""
        s, w, half = self.student, self.w, self.w.dim // 2
        s.set_dims(*dims)
        for i in range(len(s.k)):
            members = s.members(i)
            if i not in self.kept:
                self.kept[i] = self.found_v(members), self.found_k(members)
            (e, directions), (found, slow, cut) = self.kept[i]
            self.fill_v(i, members, e[-dims[1]:], directions[:, -dims[1]:])
            self.fill_k(i, members, found[:dims[0] // 2], slow)
            for j in members:
                s.q[j].copy_(torch.as_tensor(w.layers[s.split + j]["q"]))

    def fill_v(self, i, members, e, directions):
        s, w = self.student, self.w
        scale = e.clamp(min=1e-12) ** 0.25
        rows = torch.linalg.solve(self.root.mT, directions).mT * scale[:, None]
        own = torch.stack([self.weight(j, "v").square().mean() for j in members]).mean()
        size = (own / rows.square().mean()).sqrt()
        s.v[i].copy_(rows * size)
        for j in members:
            m = self.weight(j, "v") @ self.guess[j] @ self.root @ directions / (scale * size)  # (n_kv, dim, v_dim)
            s.v_map[j].copy_(m.repeat_interleave(w.n_heads // w.n_kv, 0))

    def fill_k(self, i, members, taken, slow):
        s, w, n, half = self.student, self.w, self.student.dims[0] // 2, self.w.dim // 2
        freqs, rows, maps = torch.zeros(n), torch.zeros(2 * n, w.n_embd, dtype=torch.float64), \
            torch.zeros(len(members) * w.n_kv, 2 * n, w.dim, dtype=torch.float64)
        for at, (_, f, row, read, value) in enumerate(sorted(taken, key=lambda c: half if c[1] is None else c[1])):
            both = [at, n + at]
            if f is None:
                scale = value.sqrt()
                rows[both] = row * scale[:, None]
                for part, place in enumerate(both):
                    maps[:, place, slow] = read[:, :, part] / scale[part]
                continue
            freqs[at], scale = w.theta ** (-f / half), math.sqrt(value)
            rows[at], rows[n + at] = row.real * scale, row.imag * scale
            a = read / scale  # q times its conjugate
            maps[:, at, f], maps[:, at, half + f] = a.real, a.imag
            maps[:, n + at, f], maps[:, n + at, half + f] = -a.imag, a.real
        own = torch.stack([self.weight(j, "k").square().mean() for j in members]).mean()
        size = (own / rows.square().mean()).sqrt()
        s.freqs[i].copy_(freqs)
        s.turns = {}
        s.k[i].copy_(rows * size)
        maps = (maps / size).view(len(members), w.n_kv, 2 * n, w.dim)
        for j, m in zip(members, maps):
            s.q_map[j].copy_(m.repeat_interleave(w.n_heads // w.n_kv, 0))

    @torch.no_grad()
    def kl(self, sequences=2):
        """Mean over positions of text that was not fitted."""
        s, f, total = self.student, self.student.frozen, 0.0
        for at in range(sequences):
            tokens, _ = self.data.batch(self.n + at, 1, f.device)
            x = f.shallow(tokens[:, :-1], s.split)
            last = f.last_norm(f.states(x, s.split, f.w.n_layers)[-1]).flatten(0, 1)
            total += loss.head_kl(f.last_norm(s.outcome(x)[0]).flatten(0, 1), last, f.head, 1.0).item() / sequences
        return total

    def apply(self, total=None):
        """total: K's and V's dims, whose division is searched; None: as the student has them."""
        if total:
            unit = 32 if total >= 192 else 8  # 4-bit types have a scale each 32 dims
            sizes = sorted({round(total * share / unit) * unit for share in SHARES})
            sizes = [n for n in sizes if 0 < n < total and n <= WIDEST and total - n <= min(WIDEST, self.w.n_embd)]
            tried = []
            for k_dim in sizes:
                self.fill((k_dim, total - k_dim))
                tried.append((self.kl(), k_dim))
                print(f"distill: K of {k_dim} dims, V of {total - k_dim}: KL {tried[-1][0]:.4f}", flush=True)
            self.fill((min(tried)[1], total - min(tried)[1]))
        else:
            self.fill(self.student.dims)
            print(f"distill: K of {self.student.dims[0]} dims, V of {self.student.dims[1]}: KL {self.kl():.4f}", flush=True)
