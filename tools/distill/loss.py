# SPDX-License-Identifier: Apache-2.0
"""What the student is asked to match.

KL: T^2 * KL(teacher || student) of softmax at temperature T, over the whole vocabulary, mean over the chosen
positions. The logits of 4096 positions at 49,152 words are 400 MB a model and pass, and a step needs four such
arrays if autograd keeps them; here each slice of positions goes head product, softmaxes, gradient, product back, and
only the gradient by the hidden state (n, d) outlives the slice. A custom gradient may do that because the loss is
the last node: what comes from above is one number.

Hidden: mean over deep layers of ||student - teacher||^2 / ||teacher||^2, position by position, since a few
positions (the first above all) have norms a hundred times the others'."""

import torch

import ops


class _HeadKl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, teacher, head, temperature, rows, weight):
        grad = torch.empty_like(hidden)
        total = torch.zeros((), device=hidden.device)
        n = hidden.shape[0]
        ctx.factor = temperature / n  # T^2 of the loss, 1 / T of the softmax
        with torch.no_grad():
            whole = ops.kl_head(hidden, teacher, head, temperature) if weight is None else None
        if whole:
            ctx.save_for_backward(whole[1])
            return whole[0] * (temperature * temperature / n)
        for at in range(0, n, rows):
            with torch.no_grad():
                s = hidden[at:at + rows] @ head.t()
                t = teacher[at:at + rows] @ head.t()
                kl, diff = ops.kl_rows(s, t, temperature)
                by_state = diff @ head
                if weight is not None:
                    kl, by_state = kl * weight[at:at + rows], by_state * weight[at:at + rows, None].to(by_state.dtype)
                total += kl.sum()
                grad[at:at + rows] = by_state
        ctx.save_for_backward(grad)
        return total * (temperature * temperature / n)

    @staticmethod
    def backward(ctx, above):
        (grad,) = ctx.saved_tensors
        return grad * (above * ctx.factor).to(grad.dtype), None, None, None, None, None


def head_kl(hidden, teacher, head, temperature, rows=256, weight=None):
    """hidden, teacher (n, d): normed states before the head (v, d). weight (n): of the rows in the mean, 1 on average."""
    return _HeadKl.apply(hidden, teacher, head, temperature, rows, weight)


def exit_kl(logits, words, teacher, head, temperature, rows=256):
    """The same KL for an early-exit head's logits (n, words + 1): the teacher's probabilities of `words`, and of all
    other words together as the last."""
    total = 0.0
    for at in range(0, teacher.shape[0], rows):
        with torch.no_grad():
            p = torch.softmax((teacher[at:at + rows] @ head.t()).float() / temperature, -1)
            known = p[:, words]
            p = torch.cat((known, (1 - known.sum(-1, keepdim=True)).clamp(min=0)), -1)
        log_q = torch.log_softmax(logits[at:at + rows].float() / temperature, -1)
        total = total + torch.nn.functional.kl_div(log_q, p, reduction="sum")
    return total * (temperature * temperature / teacher.shape[0])


def relative(students, teachers):
    """Two lists of (b, s, d) f32."""
    total = 0.0
    for s, t in zip(students, teachers):
        t = t.float()
        total = total + ((s.float() - t).square().sum(-1) / (t.square().sum(-1) + 1e-6)).mean()
    return total / len(students)


def lm(hidden, head, targets, rows=256):
    """The paper's control (Table 6): the next token's cross entropy, no teacher."""
    total = 0.0
    for at in range(0, hidden.shape[0], rows):
        logits = (hidden[at:at + rows] @ head.t()).float()
        total = total + torch.nn.functional.cross_entropy(logits, targets[at:at + rows], reduction="sum")
    return total / hidden.shape[0]
