# SPDX-License-Identifier: Apache-2.0
"""A student's start by least squares instead of means: minutes, no gradient.

What the split's hidden state z (normed) says about the input x_l of deep layer l is the regression R_l = E[x_l z'] E[z z']^-1,
from the teacher's states over some text. So W_v R_l z is the best linear guess at layer l's V rows, and W_k R_l z at its K rows.

V of a group: output projections are frozen, so its layers' wishes meet only in the shared rows; C, a head's (dim, embd), is
where the sum over layers of |O_l (V_l - C z)|^2 is least, O_l being the columns of the query heads that read it, a layer's share over
what its values add in all: (sum O'O) C = sum O'O W_v R_l.

Where output projections are free too (--outputs), what is left of V is a subspace: a head's rows are the dim directions of
z of which the layers' O_l V_l R_l make most (eigenvectors of sum (O V R)' (O V R), shares as above, in z's metric), and O_l
becomes O_l V_l R_l on them.

K of a group: queries are free, and RoPE leaves one freedom a layer and frequency: a pair of elements is a complex number, a
score the sum of Re(conj(q) k e^(i angle)), so k_l ~ a_l c with a complex a_l is as good as c if q becomes conj(a_l) q. The best
c is the first right singular vector of the layers' k_l, each over the root of its queries' power, in z's metric.

Frequencies that hardly turn between near tokens (less than a radian in NEAR) are plain numbers, not pairs: any subspace of z of
as many dims can serve, and what is the same at all positions no softmax sees. So theirs is, of a group of layers, the one in
which most of the scores' variance is: eigenvectors of sum (W_k R)' E[q q'] (W_k R), a layer's over its trace, in the metric of
z's covariance; q becomes what its own key is made of there.

With groups of one both are exact up to R: q stays (turned), k and v are regressions.

The early-exit head likewise: the last normed state's regression on the split's, through the rows of the model's head (what
"Eliciting Latent Predictions from Transformers with the Tuned Lens", arXiv 2303.08112, trains), and for all
other words the regression of the logarithm of the sum of their exponentials."""

import torch

import ops

NEAR = 256


@torch.no_grad()
def moments(frozen, data, split, n, micro=4):
    """E[z], E[z z'] and, of each deep layer, E[x z'] and E[x x'] over the first n sequences of the data: f32 sums, f64 results."""
    w, d = frozen.w, frozen.embed.shape[1]
    mean, zz = torch.zeros(d, device=frozen.device), torch.zeros(d, d, device=frozen.device)
    xz, xx = [torch.zeros(w.n_layers - split, d, d, device=frozen.device) for _ in range(2)]
    normed = lambda h, i: ops.rms(h, frozen.layers[i]["attn_norm"], w.eps, frozen.dtype).flatten(0, 1).float()
    rows = 0
    for at in range(0, n, micro):
        tokens, _ = data.batch(at, min(micro, n - at), frozen.device)
        states = frozen.states(frozen.shallow(tokens[:, :-1], split), split, w.n_layers)
        z = normed(states[0], split)
        mean += z.sum(0)
        zz += z.t() @ z
        for j in range(w.n_layers - split):
            x = normed(states[j], split + j)
            xz[j] += x.t() @ z
            xx[j] += x.t() @ x
        rows += z.shape[0]
    return [m.cpu().double() / rows for m in (mean, zz, xz, xx)]


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
        mean, zz, xz, self.xx = moments(student.frozen, data, student.split, n)
        zz += ridge * zz.diagonal().mean() * torch.eye(len(zz), dtype=zz.dtype)
        self.root, self.varying = torch.linalg.cholesky(zz), torch.linalg.cholesky(zz - torch.outer(mean, mean))
        self.guess = torch.cholesky_solve(xz.mT, self.root).mT  # R of each layer

    def weight(self, j, name):
        """f64 (heads, dim, embd) of q, k, v; (embd, heads, dim) of o."""
        a = torch.as_tensor(self.w.layers[self.student.split + j][name]).double()
        return a.view(len(a), -1, self.w.dim) if name == "o" else a.view(-1, self.w.dim, a.shape[1])

    def values(self, j):
        """A layer's V (n_kv, dim, embd), O (embd, n_kv, heads of a group, dim), O'O, and what its values add in all."""
        w = self.w
        v, o = self.weight(j, "v"), self.weight(j, "o").view(-1, w.n_kv, w.n_heads // w.n_kv, w.dim)
        oo = torch.einsum("egha,eghb->gab", o, o)
        return v, o, oo, torch.einsum("gab,gad,de,gbe->", oo, v, self.xx[j], v)

    def shared_v_for_any_o(self, members):
        """V's (n_kv * dim, embd), and each member's o (embd, n_heads * dim) for it."""
        w, wishes, all_add, rows, outputs = self.w, [], [], [], []
        for j in members:
            v, o, _, adds = self.values(j)
            wishes.append(torch.einsum("egha,gad->ghed", o, v @ self.guess[j]) @ self.root)
            all_add.append(adds)
        for g in range(w.n_kv):
            a = sum(torch.einsum("hed,hef->df", m[g], m[g]) / adds for m, adds in zip(wishes, all_add))
            rows.append(torch.linalg.eigh(a)[1][:, -w.dim:])  # (embd, dim): the directions of z that most is made of
        for m in wishes:
            o = torch.stack([m[g] @ rows[g] for g in range(w.n_kv)])  # (n_kv, heads of a group, embd, dim)
            outputs.append(o.permute(2, 0, 1, 3).flatten(1))
        v = torch.cat([torch.linalg.solve(self.root.mT, r) for r in rows], 1).mT
        size = sum((self.weight(j, "v").square().mean() for j in members)).div(len(members)).div(v.square().mean()).sqrt()
        return v * size, [o / size for o in outputs]

    def shared_v(self, members):
        """(n_kv * dim, embd)"""
        left, right, w = 0, 0, self.w
        for j in members:
            v, _, oo, adds = self.values(j)
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
        k, q = rows(c), rows(turn[..., None] * q)
        if len(members) > 1:
            self.share_slow(members, k.view(w.n_kv, w.dim, -1), q.view(len(members), w.n_kv, -1, w.dim, q.shape[-1]))
        return k, q

    def share_slow(self, members, k, q):
        """The slow frequencies' part of k (n_kv, dim, embd) and q (members, n_kv, heads of a group, dim, embd), in place."""
        w, half = self.w, self.w.dim // 2
        slow = [i for i in range(half) if NEAR * w.theta ** (-i / half) < 1]
        slow = torch.tensor(slow + [half + i for i in slow], dtype=torch.int64)
        own = [(self.weight(j, "q").view(w.n_kv, -1, w.dim, q.shape[-1])[:, :, slow], self.weight(j, "k")[:, slow]) for j in members]
        for g in range(w.n_kv if len(slow) else 0):
            keys = [(k_j[g] @ self.guess[j]) @ self.varying for j, (_, k_j) in zip(members, own)]
            power = [torch.einsum("had,de,hbe->ab", q_j[g], self.xx[j], q_j[g]) for j, (q_j, _) in zip(members, own)]
            scores = [m.mT @ p @ m for m, p in zip(keys, power)]
            most = torch.linalg.eigh(sum(a / a.trace() for a in scores))[1][:, -len(slow):]
            rows = torch.linalg.solve(self.varying.mT, most).mT
            size = torch.stack([k_j[g].square().mean() for _, k_j in own]).mean().div(rows.square().mean()).sqrt()
            k[g, slow] = rows * size
            for i, (q_j, _) in enumerate(own):
                q[i, g][:, slow] = torch.einsum("ac,hae->hce", keys[i] @ most / size, q_j[g])

    @torch.no_grad()
    def apply(self):
        s = self.student
        for i in range(len(s.k)):
            members = s.members(i)
            v, outputs = self.shared_v_for_any_o(members) if s.o else (self.shared_v(members), [])
            s.v[i].copy_(v)
            for j, o in zip(members, outputs):
                s.o[j].copy_(o)
            k, q = self.shared_k(members)
            s.k[i].copy_(k)
            for j, rows in zip(members, q):
                s.q[j].copy_(rows)
