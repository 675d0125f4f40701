# SPDX-License-Identifier: Apache-2.0
"""fused.c and tile_*.c against PyTorch, operation by operation."""

import unittest

import torch

from stories import ways
import loss
import ops


class Operations(unittest.TestCase):
    def compare_with_torch(self, way, s, v):
        """`way` in bf16 against PyTorch in f32: values and gradients within bf16's rounding."""
        try:
            ops.use(way)
        except SystemExit as e:
            self.skipTest(str(e))
        torch.manual_seed(0)
        bf = torch.bfloat16
        angle = torch.outer(torch.arange(float(s)), 1e4 ** (-torch.arange(0, 64, 2) / 64))
        c, t = angle.cos().contiguous(), angle.sin().contiguous()
        w, head, teacher = torch.rand(576) + 0.5, torch.randn(v, 64), torch.randn(s, 64)
        heads = [torch.randn(2, n, s, 64) for n in (9, 3, 3)]
        wide, narrow_ = torch.randn(2, 160, 96) / 8, torch.randn(96, 160) / 8
        layers = {k: {"ffn_norm": w[:96].contiguous(), "gate": wide[0].to(k), "up": wide[1].to(k), "down": narrow_.to(k)}
                  for k in (bf, torch.float32)}
        kind = lambda: bf if ops._lib else torch.float32
        cases = {
            "rms": (lambda x: ops.rms(x, w, 1e-5, kind()), [torch.randn(2, s, 576) * 3], False),
            "rope": (lambda x: ops.rope_heads(x, c, t, 9), [torch.randn(2, s, 576)], True),
            "attention": (ops.attention, heads, True),
            "gate": (ops.gate, [torch.randn(s, 96) * 3, torch.randn(s, 96)], True),
            "mlp": (lambda x: ops.mlp(x, layers[kind()], 1e-5, kind()) - x, [torch.randn(2, s, 96)], False),
            "kl": (lambda x: loss.head_kl(x, teacher.to(x.dtype), head.to(x.dtype), 2.0, 16), [torch.randn(s, 64)], True),
        }
        for name, (f, inputs, narrow) in cases.items():
            inputs = [x.to(bf).float() if narrow else x for x in inputs]
            runs = []
            for path in (way, "torch"):
                ops.use(path)
                xs = [(x.to(bf) if narrow and path == way else x.clone()).requires_grad_() for x in inputs]
                y = f(*xs)
                g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
                (y.float() * g).sum().backward()
                runs.append([y, *(x.grad for x in xs)])
            for i, (a, b) in enumerate(zip(*runs)):
                with self.subTest(op=name, output=i):
                    error = (a.float() - b.float()).norm() / b.float().norm()
                    self.assertLess(error.item(), 2e-2 if name == "kl" else 6e-3)

    def test_fused(self):
        self.compare_with_torch("fused", 33, 5000)

    def test_tiles(self):
        """Sequences of several blocks; and of a length that whole passes leave to fused.c. 160 rows are more than one
        block of rows back, 1056 words two slices and a part."""
        for way in ways():
            with self.subTest(way=way):
                self.compare_with_torch(way, 160, 1056)
                self.compare_with_torch(way, 33, 1056)

    def test_kl_of_far_logits(self):
        """Sums of powers beyond f32, both ways, and a row that is not: tile_kl.c must find the rows' maxima."""
        for way in ways():
            with self.subTest(way=way):
                self.far_logits(way)

    def far_logits(self, way):
        ops.use(way)
        torch.manual_seed(0)
        bf = torch.bfloat16
        head, s, t = torch.randn(96, 64), torch.randn(300, 64), torch.randn(300, 64)
        head[:, 0], s[:, 0], t[:, 0] = 8, 0, 0
        far = [100, 90, -100, -120]  # times 8, over a temperature of 2
        exact = way != "avx512-f16"
        if not exact:  # sums of 32 products are rounded by 2^-11 of themselves: nearer, and still beyond f32
            far = [x / 4 for x in far]
        s[:100, 0], t[:100, 0], s[150:200, 0], t[200:299, 0] = far
        head, s, t = head.to(bf), s.to(bf), t.to(bf)
        kl, grad = ops.kl_head(s, t, head, 2.0)
        log_q, log_p = [torch.log_softmax(x.float() @ head.float().t() / 2, -1) for x in (s, t)]
        want = (log_p.exp() * (log_p - log_q)).sum().item()
        self.assertLess(abs(kl.item() / want - 1), 1e-3)
        want = (log_q.exp() - log_p.exp()) @ head.float()
        self.assertLess(((grad.float() - want).norm() / want.norm()).item(), 1e-2 if exact else 4e-2)

    def test_kl_gradient(self):
        """The hand-written gradient of the chunked KL against autograd of its formula."""
        ops.use("torch")
        torch.manual_seed(0)
        x, t, head = torch.randn(37, 16), torch.randn(37, 16), torch.randn(501, 16)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        one = loss.head_kl(a, t, head, 2.0, 8)
        p, q = torch.log_softmax(t @ head.t() / 2, -1), torch.log_softmax(b @ head.t() / 2, -1)
        two = 4 * (p.exp() * (p - q)).sum(-1).mean()
        (3 * one).backward()
        (3 * two).backward()
        self.assertAlmostEqual(one.item(), two.item(), places=5)
        self.assertLess((a.grad - b.grad).abs().max().item(), 1e-6)
