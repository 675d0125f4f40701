# SPDX-License-Identifier: Apache-2.0
"""A student's start by least squares instead of means: minutes, no gradient.

What the split's hidden state z (normed) says about the input x_l of deep layer l is the regression R_l = E[x_l z'] E[z z']^-1,
from the teacher's states over some text. So W_v R_l z is the best linear guess at layer l's V rows, and W_k R_l z at its K rows.

V of a group: output projections are frozen, so its layers' wishes meet only in the shared rows; C, a head's (dim, embd), is
where the sum over layers of |O_l (V_l - C z)|^2 is least, O_l being the columns of the query heads that read it, a layer's share over
what its values add in all: (sum O'O) C = sum O'O W_v R_l.

K of a group: queries are free, and RoPE leaves one freedom a layer and frequency: a pair of elements is a complex number, a
score the sum of Re(conj(q) k e^(i angle)), so k_l ~ a_l c with a complex a_l is as good as c if q becomes conj(a_l) q. The best
c is the first right singular vector of the layers' k_l, each over the root of its queries' power, in z's metric.

With groups of one both are exact up to R: q stays (turned), k and v are regressions.

The early-exit head likewise: the last normed state's regression on the split's, through the rows of the model's head (what
"Eliciting Latent Predictions from Transformers with the Tuned Lens", arXiv 2303.08112, trains), and for all
other words the regression of the logarithm of the sum of their exponentials."""

import torch

import ops


@torch.no_grad()
def moments(frozen, data, split, n, micro=4):
    """E[z z'] and, of each deep layer, E[x z'] and E[x x'] over the first n sequences of the data: f32 sums, f64 results."""
    w, d = frozen.w, frozen.embed.shape[1]
    zz = torch.zeros(d, d, device=frozen.device)
    xz, xx = [torch.zeros(w.n_layers - split, d, d, device=frozen.device) for _ in range(2)]
    normed = lambda h, i: ops.rms(h, frozen.layers[i]["attn_norm"], w.eps, frozen.dtype).flatten(0, 1).float()
    rows = 0
    for at in range(0, n, micro):
        tokens, _ = data.batch(at, min(micro, n - at), frozen.device)
        states = frozen.states(frozen.shallow(tokens[:, :-1], split), split, w.n_layers)
        z = normed(states[0], split)
        zz += z.t() @ z
        for j in range(w.n_layers - split):
            x = normed(states[j], split + j)
            xz[j] += x.t() @ z
            xx[j] += x.t() @ x
        rows += z.shape[0]
    return [m.cpu().double() / rows for m in (zz, xz, xx)]


@torch.no_grad()
def exit_head(student, data, n, ridge=1e-3, micro=2):
    """Of a student whose early-exit head is new, over the first n sequences of the data."""
    f, norm = student.frozen, student.exit_norm.detach()
    d, eps = f.embed.shape[1], f.w.eps
    others = torch.ones(len(f.head), dtype=torch.bool, device=f.device)
    others[student.exit_words] = False
    zz, yz, oz = torch.zeros(d, d, device=f.device), torch.zeros(d, d, device=f.device), torch.zeros(d, device=f.device)
    rows = 0
    for at in range(0, n, micro):
        tokens, _ = data.batch(at, min(micro, n - at), f.device)
        x = f.shallow(tokens[:, :-1], student.split)
        y = f.last_norm(f.states(x, student.split, f.w.n_layers)[-1]).flatten(0, 1)
        z = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm).flatten(0, 1).float()
        zz += z.t() @ z
        yz += y.float().t() @ z
        for i in range(0, len(y), 256):
            rest = torch.logsumexp((y[i:i + 256] @ f.head.t()).float()[:, others], -1)
            oz += rest @ z[i:i + 256]
        rows += len(z)
    zz = zz.cpu().double() / rows
    zz += ridge * zz.diagonal().mean() * torch.eye(d, dtype=zz.dtype)
    targets = torch.cat((yz, oz[None])).cpu().double() / rows
    made = torch.linalg.solve(zz, targets.t()).t()
    head = f.head[student.exit_words].cpu().double() @ made[:-1]
    student.exit_head.copy_(torch.cat((head, made[-1:])))


class Fit:
    def __init__(self, student, data, n, ridge=1e-4):
        """ridge: share of z's mean square that is added to E[z z'], for what the text leaves undetermined."""
        self.student, self.w = student, student.frozen.w
        if student.kv_heads != self.w.n_kv:
            raise SystemExit("distill: --start fit keeps the model's number of KV heads; leave out --kv-heads")
        zz, xz, self.xx = moments(student.frozen, data, student.split, n)
        zz += ridge * zz.diagonal().mean() * torch.eye(len(zz), dtype=zz.dtype)
        self.root = torch.linalg.cholesky(zz)
        self.guess = torch.cholesky_solve(xz.mT, self.root).mT  # R of each layer

    def weight(self, j, name):
        """f64 (heads, dim, embd) of q, k, v; (embd, heads, dim) of o."""
        a = torch.as_tensor(self.w.layers[self.student.split + j][name]).double()
        return a.view(len(a), -1, self.w.dim) if name == "o" else a.view(-1, self.w.dim, a.shape[1])

    def shared_v(self, members):
        """(n_kv * dim, embd)"""
        w, left, right = self.w, 0, 0
        for j in members:
            v, o = self.weight(j, "v"), self.weight(j, "o").view(-1, w.n_kv, w.n_heads // w.n_kv, w.dim)
            oo = torch.einsum("egha,eghb->gab", o, o)
            adds = torch.einsum("gab,gad,de,gbe->", oo, v, self.xx[j], v)
            left = left + oo / adds
            right = right + oo @ v @ self.guess[j] / adds
        left += 1e-6 * left.diagonal(dim1=1, dim2=2).mean() * torch.eye(w.dim, dtype=left.dtype)
        return torch.linalg.solve(left, right).flatten(0, 1)

    def shared_k(self, members):
        """K's (n_kv * dim, embd), and each member's q for it."""
        w, half = self.w, self.w.dim // 2
        pairs = lambda a: torch.complex(a[:, :half], a[:, half:])
        q = torch.stack([pairs(self.weight(j, "q")) for j in members])  # (members, n_heads, half, embd)
        k = torch.stack([pairs(self.weight(j, "k") @ self.guess[j]) for j in members])
        power = torch.stack([torch.einsum("hfd,de,hfe->hf", a, self.xx[j].to(a.dtype), a.conj()).real for a, j in zip(q, members)])
        power = power.view(len(members), w.n_kv, -1, half).sum(2).clamp(min=1e-12).sqrt()
        wishes = (power[..., None] * k).permute(1, 2, 0, 3) @ self.root.to(k.dtype)  # (n_kv, half, members, embd)
        u, s, vh = torch.linalg.svd(wishes, full_matrices=False)
        a = u[..., 0] * s[..., :1] / power.permute(1, 2, 0)
        size = a.abs().square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)  # K keeps the size of a layer's own
        c = size * torch.linalg.solve(self.root.to(k.dtype), vh[:, :, 0], left=False)
        turn = (a / size).conj().permute(2, 0, 1).repeat_interleave(w.n_heads // w.n_kv, 1)  # (members, n_heads, half)
        rows = lambda x: torch.cat((x.real, x.imag), -2).flatten(-3, -2)
        return rows(c), rows(turn[..., None] * q)

    @torch.no_grad()
    def apply(self):
        s = self.student
        for i in range(len(s.k)):
            members = range(i * s.group, min((i + 1) * s.group, len(s.q)))
            s.v[i].copy_(self.shared_v(members))
            k, q = self.shared_k(members)
            s.k[i].copy_(k)
            for j, rows in zip(members, q):
                s.q[j].copy_(rows)
