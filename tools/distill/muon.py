# SPDX-License-Identifier: Apache-2.0
"""Muon (Jordan et al. 2024): the momentum of a matrix, made nearly orthogonal by five Newton-Schulz steps, so that rare
directions move as far as common ones. The update has the root mean square 0.2 that AdamW's typically has (Liu et al.
2025), so both take the same rates. Vectors get Adam."""

import torch


def orthogonal(g, dtype, steps=5):
    x = g.to(dtype)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.t()
        x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.t() if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay, dtype, momentum=0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": tuple(betas)})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                if p.ndim == 2:
                    m = state.setdefault("momentum", torch.zeros_like(p))
                    m.lerp_(p.grad, 1 - group["momentum"])
                    u = orthogonal(p.grad.lerp(m, group["momentum"]), self.dtype)
                    p.add_(u, alpha=-0.2 * max(p.shape) ** 0.5 * group["lr"])
                else:
                    self.adam(p, state, group)

    def adam(self, p, state, group):
        b1, b2 = group["betas"]
        m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
        n = state["n"] = state.get("n", 0) + 1
        m.lerp_(p.grad, 1 - b1)
        v.lerp_(p.grad.square(), 1 - b2)
        p.add_((m / (1 - b1 ** n)) / ((v / (1 - b2 ** n)).sqrt() + 1e-8), alpha=-group["lr"])
