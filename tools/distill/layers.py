# SPDX-License-Identifier: Apache-2.0
"""Whole layers by tile_layer.c: the teacher's, in place and without gradients, and a student's deep half as one
operation of autograd, whose way back is written out. Same meaning as model.py's layers, but that q, k, v and what
attention adds are not rounded to bf16 between products, and that gradients by the stores are summed over layers in f32.

With more than one thread, sequences are divided among them; packed weights are kept with the weights."""

import ctypes

import torch

import ops


class Layer(ctypes.Structure):
    """struct tile_layer"""
    _fields_ = [(n, ctypes.c_int64) for n in ("s", "keys", "d", "heads", "kv", "width", "key_dim", "value_dim")] + [("eps", ctypes.c_double)] + [
        (n, ctypes.c_void_p) for n in ("at", "cosine", "sine", "attn_norm", "ffn_norm", "q", "k", "v", "o", "gate_up", "down",
                                       "q_back", "o_back", "gate_up_back", "down_back", "q_map", "v_map", "q_map_back",
                                       "v_map_back")]


class Kept(ctypes.Structure):
    """struct tile_kept"""
    _fields_ = [(n, ctypes.c_void_p) for n in ("state", "mid", "inv_attn", "inv_ffn", "log_sum", "queries", "out", "gated", "plain",
                                              "read")]


class Back(ctypes.Structure):
    """struct tile_back"""
    _fields_ = [(n, ctypes.c_void_p) for n in ("dq", "x", "dy", "out", "dmapped", "plain", "da", "read")]


def able(frozen, x):
    """Whether tile_layer.c can take x (b, s, d) through layers of this model: rows of products are widened 32 at once."""
    w = frozen.w
    width = w.layers[0]["gate"].shape[0]
    return (ops.has_tiles() and frozen.dtype == torch.bfloat16 and x.device.type == "cpu" and not x.requires_grad
            and w.dim == 64 and x.shape[1] % 32 == 0 and w.n_embd % 32 == 0 and width % 32 == 0
            and max(x.shape[1], w.n_embd, 2 * width, w.n_heads * w.dim) <= ops.WIDEST)


def able_wide(frozen, x, dims):
    """The same of a student with wide stores of `dims`."""
    return able(frozen, x) and all(n % 32 == 0 for n in dims)


def halves(w, dim=64):
    """Rows (heads * dim, d) in the order that RoPE wants beside each other in a panel: of 64 0..15, 32..47, 16..31, 48..63."""
    return w.reshape(-1, 2, dim // 32, 16, w.shape[-1]).transpose(1, 2).reshape(w.shape)


def _pack(w, plain):
    return ops.packed(w.contiguous(), plain)


def _frozen_weights(layer, name):
    """A packed matrix of a frozen layer, made when first asked for."""
    kept = layer.setdefault("whole", {})
    if name not in kept:
        d = layer["gate"].shape[1]
        make = {
            "q": lambda: _pack(halves(layer["q"]), False),
            "k": lambda: _pack(halves(layer["k"]), False),
            "v": lambda: _pack(halves(layer["v"]), False),
            "o": lambda: _pack(layer["o"], False),
            "gate_up": lambda: _pack(torch.stack((layer["gate"].view(-1, 16, d), layer["up"].view(-1, 16, d)), 1)
                                     .reshape(-1, d), False),
            "down": lambda: _pack(layer["down"], False),
            "o_back": lambda: _pack(halves(layer["o"].t()).t(), True),
            "o_rows_back": lambda: _pack(layer["o"], True),
            "gate_up_back": lambda: _pack(torch.cat((layer["gate"], layer["up"])), True),
            "down_back": lambda: _pack(layer["down"], True),
        }
        kept[name] = make[name]()
    return kept[name]


def _projection(w):
    return _pack(halves(w), False), _pack(w, True)


def _output(w):
    return _pack(w, False), _pack(halves(w.t()).t(), True)


def _in_order(w):
    return _pack(w, False), _pack(w, True)


def _query_map(w):
    """(heads, key_dim, 64)"""
    return _pack(halves(w.flatten(0, 1), w.shape[1]), False), torch.cat([_pack(head, True) for head in w])


def _value_map(w):
    """(heads, 64, value_dim)"""
    return _pack(w.flatten(0, 1), False), torch.cat([_pack(head, True) for head in w])


def _trained(p, pack):
    """What is trained, packed both ways, again whenever it has changed."""
    now = (p._version, p.data_ptr(), pack)
    if p.__dict__.get("packed_at") != now:
        p.packed_ways = pack(p.detach().to(torch.bfloat16))
        p.packed_at = now
    return p.packed_ways


def _layer(frozen, layer, shape, names, kv, q=None, o=None, keys=None, at=None, maps=None):
    """A struct tile_layer and what must live as long as it is used. q, o: trained projections instead of the layer's. at:
    the rows' positions among `keys`, if they are not all. maps: of a wide store, a head's query map, its value map, and the
    rows' cosine and sine."""
    b, s, d = shape
    w = frozen.w
    use = {n: _frozen_weights(layer, n) for n in names if o is None or n not in ("o", "o_back")}
    dims = w.dim, w.dim
    if q is not None:
        use["q"], use["q_back"] = _trained(q, _in_order if maps else _projection)
    if o is not None:
        use["o"], use["o_back"] = _trained(o, _in_order if maps else _output)
    elif maps and "o_back" in use:
        use["o_back"] = _frozen_weights(layer, "o_rows_back")
    if maps:
        q_map, v_map, use["cosine"], use["sine"] = maps
        use["q_map"], use["q_map_back"] = _trained(q_map, _query_map)
        use["v_map"], use["v_map_back"] = _trained(v_map, _value_map)
        dims = q_map.shape[1], v_map.shape[2]
    else:
        use["cosine"], use["sine"] = frozen.angles(keys or s, at)
    if at is not None:
        use["at"] = at.to(torch.int32)
    use["attn_norm"], use["ffn_norm"] = layer["attn_norm"], layer["ffn_norm"]
    made = Layer(s=s, keys=keys or s, d=d, heads=w.n_heads, kv=kv, width=layer["gate"].shape[0], key_dim=dims[0], value_dim=dims[1],
                 eps=w.eps, **{n: t.data_ptr() for n, t in use.items()})
    return made, use


_spare = []


def _arrays(b, layer):
    """What the way back reads of one layer. Sets go round: fresh ones of this size would be mapped and zeroed each time."""
    s, d, heads = layer.s, layer.d, layer.heads
    f32, bf = torch.empty, lambda *shape: torch.empty(shape, dtype=torch.bfloat16)
    wide = {"plain": bf(b, heads, s, 64), "read": bf(b, heads, s, layer.value_dim)} if layer.q_map else {}
    shapes = b, s, d, heads, layer.width, layer.key_dim, layer.value_dim, bool(wide)
    if _spare and _spare[-1]["of"] == shapes:
        return _spare.pop()
    _spare.clear()
    return {"of": shapes, "state": f32(b, s, d), "mid": f32(b, s, d), "inv_attn": f32(b, s), "inv_ffn": f32(b, s),
            "log_sum": f32(b, heads, s), "queries": bf(b, heads, s, layer.key_dim), "out": bf(b, s, heads * 64),
            "gated": bf(b, s, 2 * layer.width), **wide}


def _kept(tensors):
    return Kept(**{n: t.data_ptr() for n, t in tensors.items() if n != "of"})


def frozen_run(frozen, h, first, last, states=False):
    """The model's own layers [first, last) from h (b, s, d) f32, which is overwritten: the last output, or (`states`) a
    list of each layer's input and the last output."""
    out = []
    for i in range(first, last):
        layer, use = _layer(frozen, frozen.layers[i], h.shape, ("q", "k", "v", "o", "gate_up", "down"), frozen.w.n_kv)
        kept = {"state": torch.empty_like(h)} if states else {}
        out += kept.values()
        keep = _kept(kept)
        ops.each(ops.parts(h.shape[0]), ops.size("tile_layer_scratch", layer),
             lambda a, b, space: ops.call("tile_layer", layer, keep, None, None, a, b, h, space))
        del use
    return out + [h] if states else h


class _Deep(torch.autograd.Function):
    """(last output, mean over layers of the relative error to `teacher`, 0 without) of a student's deep layers at the
    positions `at` (None: at all), of which x and `teacher` have the rows. `trained`: every layer's q, every layer's o (none
    where they are frozen), every layer's query maps and value maps (of wide stores; `turns` are these stores' cosines and
    sines); `tensors`: all these and then every group's K and V, bf16 (b, kv, keys, dim)."""

    @staticmethod
    def forward(ctx, keep_all, frozen, split, of, trained, turns, teacher, at, x, *tensors):
        qs, os, q_maps, v_maps = trained
        n = len(qs)
        stores = [t.contiguous() for t in tensors[sum(map(len, trained)):]]
        ks, vs = stores[:len(stores) // 2], stores[len(stores) // 2:]
        b, s, d = x.shape
        kv, keys = ks[0].shape[1:3]
        # what tile_attention.c relies on
        assert at is None or (len(at) == s and s % 32 == 0 and at[0] >= 0 and at[-1] < keys and (at[1:] > at[:-1]).all())

        def layer_of(j, names):
            return _layer(frozen, frozen.layers[split + j], x.shape, names, kv, qs[j], os[j] if os else None, keys, at,
                          (q_maps[j], v_maps[j], *turns[of[j]]) if q_maps else None)
        h, error, kept, weights = x.clone(), 0.0, [], []
        keep_all = keep_all and any(ctx.needs_input_grad)
        for j in range(n):
            layer, use = layer_of(j, ("o", "gate_up", "down"))
            mine = _arrays(b, layer) if keep_all else {}
            keep = _kept(mine)
            ops.each(ops.parts(b), ops.size("tile_layer_scratch", layer), lambda a, e, space: ops.call(
                "tile_layer", layer, keep, ks[of[j]], vs[of[j]], a, e, h, space))
            kept.append(mine)
            if teacher is not None:
                weight, one = torch.empty(b * s), torch.empty(1)
                ops.call("tile_relative", h, teacher[j + 1], b * s, d, weight, one)
                weights.append(weight)
                error += one.item() / n
            del use
        if keep_all:
            ctx.of = frozen.w.n_heads, of, trained, teacher, layer_of
            ctx.lists = kept, ks, vs, weights
            ctx.save_for_backward(h)
        return h, torch.tensor(error)

    @staticmethod
    def backward(ctx, dh, derror):
        heads, of, (qs, os, q_maps, v_maps), teacher, layer_of = ctx.of
        kept, ks, vs, weights = ctx.lists
        (after,) = ctx.saved_tensors
        b, s, d = after.shape
        n, inner = len(qs), heads * 64
        dh = dh.clone(memory_format=torch.contiguous_format)
        dk, dv = [torch.zeros(k.shape) for k in ks], [torch.zeros(v.shape) for v in vs]
        made = lambda *shape: torch.empty(shape, dtype=torch.bfloat16)
        back = {"dq": made(b * s, inner), "x": made(b * s, d)}
        if os:
            back |= {"dy": made(b * s, d), "out": made(b * s, inner)}
        if q_maps:
            by_head = lambda dim: made(b, heads, s, dim)
            back |= {"dmapped": by_head(ks[0].shape[-1]), "plain": by_head(64), "da": by_head(64), "read": by_head(vs[0].shape[-1])}
        to = Back(**{name: t.data_ptr() for name, t in back.items()})
        by_q, by_o, by_q_map, by_v_map = [None] * n, [None] * len(os), [None] * len(q_maps), [None] * len(v_maps)
        for j in reversed(range(n)):
            layer, use = layer_of(j, ("o_back", "gate_up_back", "down_back"))
            if teacher is not None:
                ops.call("tile_relative_back", after, teacher[j + 1], weights[j], 2 * derror.item() / (b * s * n), b * s, d, dh)
            keep, g = _kept(kept[j]), of[j]
            ops.each(ops.parts(b), ops.size("tile_layer_scratch", layer), lambda a, e, space: ops.call(
                "tile_layer_back", layer, keep, to, ks[g], vs[g], a, e, int(j == 0), dh, dk[g], dv[g], space))
            by_q[j] = ops.outer(back["dq"], back["x"])
            if os:
                by_o[j] = ops.outer(back["dy"], back["out"])
            if q_maps:
                by_q_map[j], by_v_map[j] = ops.outers(back["dmapped"], back["plain"]), ops.outers(back["da"], back["read"])
            after = kept[j]["state"]
            del use
        ctx.lists = None
        _spare.extend(kept)
        return (None,) * 9 + tuple(by_q + by_o + by_q_map + by_v_map) + tuple(g.to(ks[0].dtype) for g in dk + dv)


def deep(frozen, split, of, qs, os, stores, x, teacher=None, at=None, maps=None):
    """A student's deep layers on x (b, n, d) f32, rows of the positions `at` (ascending, a multiple of 32 of them; None: all):
    the last output and the mean relative error to the teacher's states there (a list: the split's, then each layer's
    output). of: each layer's store. os: its output projections, empty where they are the base's. maps: of wide stores, every layer's query maps, value
    maps, and every store's cosine and sine at these rows."""
    q_maps, v_maps, turns = maps or ((), (), ())
    trained = [list(t) for t in (qs, os, q_maps, v_maps)]
    return _Deep.apply(torch.is_grad_enabled(), frozen, split, of, trained, turns, teacher, at, x, *(p for t in trained for p in t),
                       *(k for k, _ in stores), *(v for _, v in stores))
