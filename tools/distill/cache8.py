# SPDX-License-Identifier: Apache-2.0
"""The 8-bit caches of quant/fp8.h in the training loop: values as a reader of the cache gets them, gradients as if
nothing had happened (straight through). One f16 scale a row (token and head):

    fp8    value = scale * e4m3 * 2^-8, scale = absmax / 1.75
    kv8    K: value = scale * int8, scale = absmax / 127; V as fp8"""

import torch


def _scale(x, largest):
    s = (x.float().abs().amax(-1, keepdim=True) / largest).clamp(max=65504.0).half().float()
    return s, torch.where(s > 0, 1 / s.clamp(min=1e-30), torch.zeros_like(s))


def fp8_row(x):
    """Rows along the last axis, as quantised and read again; f32."""
    s, inv = _scale(x, 1.75)
    code = (x.float() * (inv * 256)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return code.float() * 2.0 ** -8 * s


def int8_row(x):
    s, inv = _scale(x, 127.0)
    return torch.round(x.float() * inv).clamp(-127, 127) * s


def through(x, rows):
    return x + (rows(x.detach()).to(x.dtype) - x.detach())


def store(k, v, name):
    """K and V (b, heads, s, d) as the cache `name` gives them back."""
    if name == "fp8":
        return through(k, fp8_row), through(v, fp8_row)
    if name == "kv8":
        return through(k, int8_row), through(v, fp8_row)
    assert name == "none", name
    return k, v
