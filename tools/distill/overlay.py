# SPDX-License-Identifier: Apache-2.0
"""Overlays on disk: what the daemon loads with --overlay, and what a later run can start from. Tensors and keys as
pipit-mkmodel --swiftkv writes them; the projections in Q8_0 (or another type of gguf's quantisers), the norm in f32."""

import numpy as np
import torch

import checkpoint
import model
from weights import to_halves, to_pairs


OUTPUT = "attn_output_swiftkv.weight"
SIZE, SIZES = "pipit.swiftkv.key_value_group_size", "pipit.swiftkv.key_value_group_sizes"
LONGEST = "pipit.swiftkv.context_length"


def turned_map(m, k_dim, dim, order):
    """A layer's maps of queries (heads * k_dim, dim), rows and columns in another order of RoPE's pairs."""
    return order(order(m, k_dim).T, dim).T


def wide_rows(student):
    """What an overlay with wide stores has beside the others' tensors."""
    get = lambda p: p.detach().float().cpu().numpy()
    (k_dim, _), dim, out = student.dims, student.frozen.w.dim, {}
    for j, (q_map, v_map) in enumerate(zip(student.q_map, student.v_map)):
        at = f"blk.{student.split + j}."
        out[at + "attn_q_map_swiftkv.weight"] = turned_map(get(q_map).reshape(-1, dim), k_dim, dim, to_pairs)
        out[at + "attn_v_map_swiftkv.weight"] = get(v_map).reshape(-1, v_map.shape[-1])
        if student.leads(j):
            out[at + "attn_freqs_swiftkv.weight"] = get(student.freqs[student.store[j]])
    return out


def rows(student):
    """name -> f32 array, in the GGUF's order of rows. K's and Q's heads have the model's own width."""
    dim = student.frozen.w.dim
    k_dim = student.dims[0] if student.dims else dim
    get = lambda p: p.detach().float().cpu().numpy()
    out = {"norm_swiftkv.weight": get(student.norm)}
    for j, q in enumerate(student.q):
        at = f"blk.{student.split + j}."
        out[at + "attn_q_swiftkv.weight"] = to_pairs(get(q), dim)
        if student.o:
            out[at + OUTPUT] = get(student.o[j])
        if student.leads(j):
            out[at + "attn_k_swiftkv.weight"] = to_pairs(get(student.k[student.store[j]]), k_dim)
            out[at + "attn_v_swiftkv.weight"] = get(student.v[student.store[j]])
    if student.dims:
        out.update(wide_rows(student))
    if student.exit_words is not None:
        out["exit_norm.weight"], out["exit_head.weight"] = get(student.exit_norm), get(student.exit_head)
    return out


def write(path, student, kind="Q8_0", sha256=None, notes=None, outputs=None):
    """Whole or not at all. sha256: of the base GGUF, when the weights came from elsewhere. outputs: another type for the output
    projections."""
    import gguf
    sha256 = sha256 or student.frozen.w.sha256
    if not sha256:
        raise SystemExit("distill: an overlay names its base GGUF by SHA-256: give --base-gguf FILE")
    with checkpoint.whole(path) as f:
        w = gguf.GGUFWriter(f.name, "llama")
        try:
            put_all(w, student, kind, sha256, notes, outputs)
        finally:
            w.close()


def put_all(w, student, kind, sha256, notes, outputs):
    """write()'s metadata and tensors, by a GGUFWriter."""
    import gguf
    w.add_string("general.type", "overlay")
    w.add_string("pipit.overlay.base_sha256", sha256)
    w.add_uint32("pipit.swiftkv.num_key_value_layers", student.split)
    if isinstance(student.group, int):
        w.add_uint32(SIZE, student.group)
    else:
        w.add_array(SIZES, student.sizes)
    if student.longest:
        w.add_uint32(LONGEST, student.longest)
    if student.dims:
        w.add_uint32("pipit.swiftkv.key_length", student.dims[0])
        w.add_uint32("pipit.swiftkv.value_length", student.dims[1])
    if student.exit_words is not None:
        w.add_array("pipit.exit.words", student.exit_words.tolist())
    for key, value in (notes or {}).items():
        w.add_string(key, str(value))
    for name, a in rows(student).items():
        a = np.ascontiguousarray(a, dtype=np.float32)
        qtype = gguf.GGMLQuantizationType[outputs if outputs and name.endswith(OUTPUT) else kind]
        if a.ndim == 1 or qtype == gguf.GGMLQuantizationType.F32:
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, gguf.quants.quantize(a, qtype), raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()


def shape(path):
    """(split, group: a number or a tuple of sizes) of an overlay file, and its reader."""
    import gguf
    r = gguf.GGUFReader(path)
    key = lambda k: r.fields[k].contents()
    try:
        split = int(key("pipit.swiftkv.num_key_value_layers"))
        group = tuple(map(int, key(SIZES))) if SIZES in r.fields else int(key(SIZE))
    except KeyError as e:
        raise SystemExit(f"distill: {path} is no SwiftKV overlay: {e} is missing") from e
    return split, group, r


def wide_dims(reader):
    """K's and V's dims of an overlay with wide stores; None of another."""
    keys = ["pipit.swiftkv.key_length", "pipit.swiftkv.value_length"]
    return tuple(int(reader.fields[k].contents()) for k in keys) if all(k in reader.fields for k in keys) else None


def has_outputs(path, reader):
    """Whether the deep layers bring output projections of their own: all or none. (The daemon asks that of each store's layers.)"""
    names = {t.name for t in reader.tensors}
    query = "attn_q_swiftkv.weight"
    own = [n.replace(query, OUTPUT) for n in sorted(names) if n.endswith(query)]
    missing = [n for n in own if n not in names]
    if 0 < len(missing) < len(own):
        raise SystemExit(f"distill: {path} has output projections of its own, but no {missing[0]}: all deep layers have one, or none")
    return bool(own) and not missing


def leaders(group, n):
    """Of each of n deep layers the first one that reads its store."""
    sizes = model.sizes(group, n)
    return [sum(sizes[:i]) for i, size in enumerate(sizes) for _ in range(size)]


def put_wide(student, t, path, put, first):
    k_dim, dim = student.dims[0], student.frozen.w.dim
    for j, (q_map, v_map) in enumerate(zip(student.q_map, student.v_map)):
        at = f"blk.{student.split + j}."
        q, v = q_map.detach().view(-1, dim), v_map.detach().view(-1, v_map.shape[-1])
        put(q, at + "attn_q_map_swiftkv.weight", False)
        q.copy_(torch.from_numpy(turned_map(q.cpu().numpy(), k_dim, dim, to_halves).copy()))
        put(v, at + "attn_v_map_swiftkv.weight", False)
        if student.leads(j):
            put(student.freqs[student.store[j]], f"blk.{student.split + first[j]}.attn_freqs_swiftkv.weight", False)
    student.turns = {}


def load(path, student):
    """An overlay's weights into a student of the same shape, or of smaller groups: each begins with the store of the one that it
    is a part of."""
    import gguf
    split, group, r = shape(path)
    if "pipit.overlay.base_sha256" not in r.fields:
        raise SystemExit(f"distill: {path} does not say for which base it is: pipit.overlay.base_sha256 is missing")
    base = r.fields["pipit.overlay.base_sha256"].contents()
    if student.frozen.w.sha256 and base != student.frozen.w.sha256:
        raise SystemExit(f"distill: {path} was made for another base (SHA-256 {base})")
    if split != student.split:
        raise SystemExit(f"distill: {path} has split {split}; asked for {student.split}")
    first, mine = leaders(group, len(student.q)), leaders(student.group, len(student.q))
    if any(first[j] != first[mine[j]] for j in range(len(first))):
        raise SystemExit(f"distill: {path} has groups of {group} layers; {student.group} are no parts of them")
    if wide_dims(r) != student.dims:
        raise SystemExit(f"distill: {path} has stores of {wide_dims(r) or 'the model own'} dims, the student of {student.dims or 'the model own'}")
    own = has_outputs(path, r)
    if own and not student.o:
        raise SystemExit(f"distill: {path} has output projections of its own: give --outputs")
    t = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in r.tensors}
    dim = student.frozen.w.dim
    k_dim = student.dims[0] if student.dims else dim

    def put(param, name, turned, dim=dim):
        if name not in t:
            raise SystemExit(f"distill: {path} has no {name}")
        a = to_halves(t[name], dim) if turned else t[name]
        if a.shape != tuple(param.shape):
            raise SystemExit(f"distill: {path}: {name} is {a.shape}, the student's is {tuple(param.shape)}")
        with torch.no_grad():
            param.copy_(torch.from_numpy(np.array(a)))
    student.longest = int(r.fields[LONGEST].contents()) if LONGEST in r.fields else None
    put(student.norm, "norm_swiftkv.weight", False)
    for j, q in enumerate(student.q):
        at = f"blk.{split + j}."
        put(q, at + "attn_q_swiftkv.weight", True)
        if own:  # where the overlay has none, the student's stay as they are: the base's
            put(student.o[j], at + OUTPUT, False)
        if student.leads(j):
            leader = f"blk.{split + first[j]}."
            put(student.k[student.store[j]], leader + "attn_k_swiftkv.weight", True, k_dim)
            put(student.v[student.store[j]], leader + "attn_v_swiftkv.weight", False)
    if student.dims:
        put_wide(student, t, path, put, first)
    if "exit_head.weight" in t:
        words = [int(i) for i in r.fields["pipit.exit.words"].contents()]
        if student.exit_words is None or student.exit_words.tolist() != words:  # else into what an optimizer may have already
            student.add_exit(words)
        put(student.exit_norm, "exit_norm.weight", False)
        put(student.exit_head, "exit_head.weight", False)
