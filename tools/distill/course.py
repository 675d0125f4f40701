# SPDX-License-Identifier: Apache-2.0
"""Which sequences a step takes, and at which of their positions.

With `visits` a step's sequences come again that many times, each time at other positions, so that the teacher, which costs more
than the student at a quarter of the positions, runs once for all of them (its states are kept, states.py). SPAN steps' sequences
come once, in another order a second time, and so on.

Look-back texts (lookback.py) join the steps as further sequences of their own, `share` of all. They are taken at the answers'
positions and some others."""

import numpy as np
import torch

SPAN = 16


def group(step, visits, seed):
    """(number, visit) of the sequences that a step takes."""
    block, at = divmod(step, SPAN * visits)
    visit, at = divmod(at, SPAN)
    order = np.random.default_rng([seed, block, visit]).permutation(SPAN)
    return block * SPAN + int(order[at]), visit


def visited(seed, number, visit, s, n):
    """The n of s positions that a visit is for: others each time, while there are any."""
    turn, part = divmod(visit, max(1, s // n))
    order = np.random.default_rng([seed, number, turn, s]).permutation(s)
    return torch.from_numpy(np.sort(order[part * n:(part + 1) * n]))


def extra(step, batch, share):
    """How many look-back texts a step takes."""
    each = batch * share / (1 - share)
    return int((step + 1) * each) - int(step * each)


def asked(mask, seed, number, unit=32, others=1.0):
    """Positions (ascending) whose next token is an answer's, by mask (s), and `others` times as many more; in whole `unit`s."""
    mask = np.asarray(mask)
    s, answers = len(mask), np.flatnonzero(mask)
    unit = unit if s % unit == 0 else 1
    n = min(s, max(unit, -(-round((1 + others) * len(answers)) // unit) * unit))
    more = np.random.default_rng([seed, number, s, 1]).permutation(np.flatnonzero(mask == 0))
    return torch.from_numpy(np.sort(np.concatenate([answers, more[:n - len(answers)]])))
