# SPDX-License-Identifier: Apache-2.0
"""Starts by least squares (fit.py)."""

import torch

from stories import Trained
import data
import fit
import model


class Fitting(Trained):
    def fitted(self, split, group, outputs=False):
        s = model.Student(self.frozen, split, group, outputs=outputs)
        f = fit.Fit(s, data.Shards(self.data, 32, 1), 40)
        f.apply()
        return s, f

    def test_fit_alone_keeps_every_score(self):
        """Groups of one: each head's scores are those of its own q on the regression of its own k, at any distance:
        for every frequency conj(q) k is what it was, so the turn that q and k took together does not show."""
        s, f = self.fitted(2, 1)
        half, per = self.w.dim // 2, self.w.n_heads // self.w.n_kv
        pairs = lambda a: torch.complex(a[:, :half], a[:, half:])
        heads = lambda a: pairs(torch.as_tensor(a).double().view(-1, self.w.dim, self.w.n_heads * self.w.dim))
        score = lambda q, k: torch.einsum("hfd,hfe->hfde", q.conj(), k.repeat_interleave(per, 0))
        for j, q in enumerate(s.q):
            own = self.w.layers[2 + j]
            want = score(heads(own["q"]), heads(own["k"]) @ f.guess[j].to(torch.complex128))
            got = score(heads(q.detach()), heads(s.k[j].detach()))
            self.assertLess(((got - want).abs().max() / want.abs().max()).item(), 1e-5)
            self.assertLess((s.v[j].detach() - torch.as_tensor(own["v"]).double() @ f.guess[j]).abs().max().item(), 1e-4)

    def test_fit_alone_keeps_every_value(self):
        """Groups of one with outputs: whatever V's rows have become, behind a head's output they are what they were."""
        s, f = self.fitted(2, 1, True)
        heads = lambda a: torch.as_tensor(a).double().view(-1, self.w.dim, self.w.n_heads * self.w.dim)
        per = self.w.n_heads // self.w.n_kv
        for j in range(3):
            own = self.w.layers[2 + j]
            through = lambda o, v: torch.einsum("ehd,hdf->hef", torch.as_tensor(o).double().view(-1, self.w.n_heads, self.w.dim),
                                                heads(v).repeat_interleave(per, 0))
            want = through(own["o"], torch.as_tensor(own["v"]).double() @ f.guess[j])
            got = through(s.o[j].detach(), s.v[j].detach())
            self.assertLess(((got - want).abs().max() / want.abs().max()).item(), 1e-5)

    def test_fit_of_slow_frequencies(self):
        """What their part of a score varies by is nearer the layers' own with the subspace of the group than with one
        complex number a frequency (its q and k from the same fit)."""
        s, f = self.fitted(2, 3)
        members, half, n_kv, per = range(3), self.w.dim // 2, self.w.n_kv, self.w.n_heads // self.w.n_kv
        slow = [i for i in range(half) if fit.NEAR * self.w.theta ** (-i / half) < 1]
        self.assertTrue(slow and len(slow) < half)
        slow += [half + i for i in slow]
        share, f.share_slow = f.share_slow, lambda *a: None
        plain = f.shared_k(members)
        f.share_slow = share

        def error(k, q):
            k, q, out = k.view(n_kv, -1, k.shape[-1]), q.view(3, n_kv, per, -1, q.shape[-1]), 0.0
            for j in members:
                own_q = f.weight(j, "q").view(q.shape[1:])
                root = torch.linalg.cholesky(f.xx[j] + 1e-9 * torch.eye(len(f.xx[j]), dtype=torch.double))
                for g in range(n_kv):
                    own_k = f.weight(j, "k")[g] @ f.guess[j]
                    score = lambda a, b: torch.einsum("had,ae->hde", a[:, slow], b[slow])
                    off = score(own_q[g], own_k) - score(q[j, g], k[g])
                    whole = score(own_q[g], own_k)
                    norm = lambda m: (root.mT @ m @ f.varying).square().sum()
                    out += (norm(off) / norm(whole)).item()
            return out
        with_slow = f.shared_k(members)
        self.assertLess(error(*with_slow), error(*plain))

    def test_fit_is_the_least(self):
        """Of shared values: any step away from them adds more error, summed over layers behind their output projections.
        Of the start: nearer the teacher than the mean is, on text that it has not seen."""
        s, f = self.fitted(2, 3)
        x = torch.randn(200, f.root.shape[0], dtype=torch.double) @ f.root.T  # of z's second moments

        def error(v):
            out = 0.0
            for j in range(3):
                own, o = f.weight(j, "v").flatten(0, 1), f.weight(j, "o")
                per = o.shape[1] // self.w.n_kv
                through = lambda rows: torch.einsum("ehd,nhd->neh", o, (x @ rows.T).view(
                    len(x), self.w.n_kv, -1).repeat_interleave(per, 1))
                adds = sum(torch.trace(o[:, h] @ a @ o[:, h].T) for h in range(o.shape[1])
                           for a in [f.weight(j, "v")[h // per] @ f.xx[j] @ f.weight(j, "v")[h // per].T])
                out += (through(own @ f.guess[j]) - through(v)).square().sum() / adds
            return out
        v = s.v[0].detach().double()
        least = error(v)
        step = torch.randn_like(v) * v.std() * 0.1
        self.assertLess(least, error(v + step))
        self.assertLess(least, error(v - step))
        self.assertLess(least, error(model.Student(self.frozen, 2, 3).v[0].detach().double()))

        for start in ("mean", "fit"):
            self.train(f"from-{start}", "--split", "2", "--group", "3", "--steps", "1", "--start", start, "--seed", "2")
        self.assertLess(self.log("from-fit")[0]["kl"], self.log("from-mean")[0]["kl"])
        self.train("from-fit-o", "--split", "2", "--group", "3", "--steps", "1", "--start", "fit", "--seed", "2", "--outputs")
        self.assertLess(self.log("from-fit-o")[0]["kl"], self.log("from-fit")[0]["kl"])
        for start in ("mean", "fit"):
            self.train(f"exit-from-{start}", "--split", "2", "--stage", "exit", "--exit-words", "99", "--steps", "1", "--start", start,
                       "--seed", "2")
        self.assertLess(self.log("exit-from-fit")[0]["exit"], self.log("exit-from-mean")[0]["exit"])
        self.assertIn("--start fit keeps", self.train("odd", "--split", "2", "--kv-heads", "1", "--start", "fit", "--steps", "1", code=1))
