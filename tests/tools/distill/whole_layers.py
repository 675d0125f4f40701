# SPDX-License-Identifier: Apache-2.0
"""tile_layer.c, whole layers both ways, against PyTorch."""

import types
import unittest

import numpy as np
import torch

from stories import CPU, ways
import layers
import loss
import model
import ops
import weights
import wide


class WholeLayers(unittest.TestCase):
    """tile_layer.c in bf16 against PyTorch in f32: the shallow and the teacher's layers, the student's, and the gradients of
    a loss with both terms by everything that is trained. Weights are exact in bf16; 288 positions are more than a block
    of rows; query heads are wider together than the residual stream; the last group is short."""
    S, SPLIT = 288, 1

    @classmethod
    def setUpClass(cls):
        rng = np.random.default_rng(5)
        make = lambda *shape: torch.from_numpy(rng.standard_normal(shape) / shape[-1] ** 0.5).bfloat16().float().numpy()
        norm = lambda: (1 + rng.standard_normal(96) / 4).astype(np.float32)
        layer = lambda: {"q": make(256, 96), "k": make(128, 96), "v": make(128, 96), "o": make(96, 256),
                         "gate": make(160, 96), "up": make(160, 96), "down": make(96, 160), "attn_norm": norm(),
                         "ffn_norm": norm()}
        embed = 2 * make(352, 96)
        cls.w = weights.Weights(4, 4, 2, 64, 96, 1e-5, 1e4, embed, embed, norm(), [layer() for _ in range(4)])
        cls.tokens = torch.from_numpy(rng.integers(0, 352, (3, cls.S)))

    def student(self, frozen, outputs, kv_heads=1, dims=None):
        """Weights moved by chance; dims: of wide stores, whose frequencies are any, the last pairs' none."""
        torch.manual_seed(3)
        s = wide.Wide(frozen, self.SPLIT, (1, 2), dims, outputs=outputs) if dims else \
            model.Student(frozen, self.SPLIT, 2, kv_heads=kv_heads, outputs=outputs)
        with torch.no_grad():
            for p in s.parameters():
                p.add_(torch.randn_like(p) * (p.std() * 0.5 if p.std() > 0 else p.shape[-1] ** -0.5))
                if p.ndim > 1:
                    p.copy_(p.bfloat16())
            if dims:
                s.freqs.copy_(torch.rand(s.freqs.shape).square())
                s.freqs[:, -3:] = 0
        return s

    def made(self, way, dtype, hidden, outputs, at=None, kv_heads=1, dims=None):
        ops.use(way)
        frozen = model.Frozen(self.w, CPU, dtype)
        s = self.student(frozen, outputs, kv_heads, dims)
        x = frozen.shallow(self.tokens, self.SPLIT)
        self.assertEqual(layers.able(frozen, x), way != "torch")
        teacher = frozen.states(x, self.SPLIT, 4)
        last, error = s.outcome(x, teacher if hidden else None, at)
        index = torch.arange(0, last.shape[0] * last.shape[1], 2)
        rows = lambda h: frozen.last_norm(h).flatten(0, 1)[index]
        total = loss.head_kl(rows(last), rows(teacher[-1] if at is None else teacher[-1][:, at]), frozen.head, 2.0)
        out = {"shallow": x, "teacher": torch.stack(teacher), "last": last, "kl": total}
        if hidden:
            out["hidden"], total = error, total + 0.7 * error
        total.backward()
        return out | {n: p.grad for n, p in s.named_parameters()}

    def test_gradients(self):
        """Of all positions; of 96 anywhere; and of 64 before the last keys, which nobody reads."""
        anywhere = torch.randperm(self.S, generator=torch.Generator().manual_seed(1))[:96].sort().values
        early = torch.randperm(150, generator=torch.Generator().manual_seed(2))[:64].sort().values
        for hidden, outputs, at, heads, dims in ((True, False, None, 1, None), (False, False, None, 2, None), (True, True, None, 1, None),
                                                 (True, True, anywhere, 2, None), (False, False, early, 1, None), (True, False, None, 1, (32, 96)),
                                                 (False, True, anywhere, 1, (96, 64)), (False, False, early, 1, (128, 256))):
            want = self.made("torch", torch.float32, hidden, outputs, at, heads, dims)
            self.assertEqual(len(want), 4 + hidden + 1 + 3 + 3 * outputs + 2 + 2 + (6 if dims else 0))
            for way in ways():
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    got = self.made(way, torch.bfloat16, hidden, outputs, at, heads, dims)
                    torch.set_num_threads(1)
                    self.assertEqual(got.keys(), want.keys())
                    for name, a in want.items():
                        with self.subTest(name=name, hidden=hidden, outputs=outputs, rows=at is None or len(at), dims=dims, way=way,
                                          threads=threads):
                            error = ((got[name].float() - a).norm() / a.norm()).item()
                            self.assertLess(error, 3e-2 if dims else 2e-2)  # two more roundings each way

    def test_rows_are_those_of_all(self):
        """A position's outcome is the same to the bit whether the others are computed or not."""
        at = torch.randperm(self.S, generator=torch.Generator().manual_seed(3))[:96].sort().values
        for way in ways():
            ops.use(way)
            frozen = model.Frozen(self.w, CPU, torch.bfloat16)
            for dims in (None, (32, 96)):
                s = self.student(frozen, False, dims=dims)
                with torch.no_grad():
                    x = frozen.shallow(self.tokens, self.SPLIT)
                    self.assertTrue(torch.equal(s.outcome(x)[0][:, at], s.outcome(x, at=at)[0]))

    def test_wide_and_long_go_another_way(self):
        """What is longer than a thread's widened rows is not for tile_*.c."""
        ways()
        def able(width, s):
            w = types.SimpleNamespace(layers=[{"gate": torch.empty(width, 0)}], dim=64, n_heads=1, n_embd=64)
            frozen = types.SimpleNamespace(w=w, dtype=torch.bfloat16)
            return layers.able(frozen, torch.empty(1, s, 64))
        self.assertTrue(layers.able_wide(model.Frozen(self.w, CPU, torch.bfloat16), torch.empty(1, 64, 96), (32, 64)))
        for dims in ((24, 64), (32, 40)):
            self.assertFalse(layers.able_wide(model.Frozen(self.w, CPU, torch.bfloat16), torch.empty(1, 64, 96), dims))
        self.assertTrue(able(4096, 8192))
        self.assertFalse(able(4128, 64))
        self.assertFalse(able(64, 8224))

    def test_packed_again_when_trained(self):
        """What is packed of a trained projection follows an optimizer's step and a loaded state."""
        ops.use(ways()[0])
        frozen = model.Frozen(self.w, CPU, torch.bfloat16)
        for dims in (None, (32, 96)):
            s = self.student(frozen, True, dims=dims)
            with torch.no_grad():
                x = frozen.shallow(self.tokens, self.SPLIT)
                one = s.outcome(x)[0]
                state = {k: v.clone() for k, v in s.state_dict().items()}
                for p in (s.q[1], s.o[1], *((s.q_map[1], s.v_map[1]) if dims else ())):
                    p.mul_(-1)
                    self.assertGreater((one - s.outcome(x)[0]).abs().max().item(), 1e-2)
                    s.load_state_dict(state)
                    self.assertTrue(torch.equal(one, s.outcome(x)[0]))
