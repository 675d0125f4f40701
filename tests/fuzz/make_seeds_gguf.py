#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_gguf: one right file and files with one lie each.

    make_seeds_gguf.py DIR
"""

import struct
import sys


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(s)) + s


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


KEYS = [
    key("general.alignment", 4, struct.pack("<I", 32)),
    key("general.architecture", 8, text("llama")),
    key("u8", 0, b"\x01"),
    key("i64", 11, struct.pack("<q", -1)),
    key("f32", 6, struct.pack("<f", 1.5)),
    key("f64", 12, struct.pack("<d", 1e300)),
    key("bool", 7, b"\x01"),
    key("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
    key("floats", 9, struct.pack("<IQ2f", 6, 2, 1, 2)),
]


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


TENSORS = [tensor("a.weight", [4, 2], 0, 0), tensor("b.weight", [32], 2, 32)]


def write(name, keys=KEYS, tensors=TENSORS, data=50, n_keys=None, n_tensors=None, version=3, cut=None):
    out = b"GGUF" + struct.pack("<IQQ", version, n_tensors or len(tensors), n_keys or len(keys))
    out += b"".join(keys) + b"".join(tensors)
    out += bytes(-len(out) % 32) + bytes(range(data))
    with open(f"{sys.argv[1]}/{name}", "wb") as f:
        f.write(out[:cut])


write("good")
write("empty_tables", [], [], 0)
write("version_2", version=2)
write("many_keys", n_keys=1 << 60)
write("many_tensors", n_tensors=1 << 60)
write("cut_in_key", cut=60)
write("cut_in_data", cut=-1)
write("key_twice", KEYS + KEYS[-1:])
write("tensor_twice", tensors=[TENSORS[0], tensor("a.weight", [32], 2, 32)])
write("overlap", tensors=[TENSORS[0], tensor("b.weight", [32], 2, 0)])
write("unaligned", tensors=[tensor("a", [4], 0, 1)])
write("zero_dim", tensors=[tensor("a", [4, 0], 0, 0)])
write("huge_dims", tensors=[tensor("a", [1 << 40, 1 << 40], 0, 0)])
write("five_dims", tensors=[tensor("a", [1] * 5, 0, 0)])
write("unknown_type", tensors=[tensor("a", [4], 99, 0)])
write("nested_array", [key("n", 9, struct.pack("<IQIQ", 9, 1, 4, 0))], [], 0)
write("long_string", [key("s", 8, struct.pack("<Q", 1 << 63))], [], 0)
write("many_strings", [key("s", 9, struct.pack("<IQ", 8, 1 << 61))], [], 0)
write("bad_alignment", [key("general.alignment", 4, struct.pack("<I", 24))], [], 0)
write("bad_bool", [key("b", 7, b"\x02")], [], 0)
write("bad_utf8_name", [key(b"\xff", 0, b"\0")], [], 0)
write("zero_byte_in_name", [key(b"a\0b", 0, b"\0"), key("a", 0, b"\1")], [], 0)
write("no_magic", cut=0)
write("cut_after_magic", cut=6)
write("name_empty", [key("", 0, b"\0")], [], 0)
write("key_unknown", [key("k", 13, b"")], [], 0)
write("array_unknown", [key("k", 9, struct.pack("<IQ", 13, 1))], [], 0)
write("array_long", [key("k", 9, struct.pack("<IQ", 0, 1 << 33))], [], 0)
write("array_cut", [key("k", 9, b"\0\0")], [], 0)
write("strings_cut", [key("k", 9, struct.pack("<IQ", 8, 2) + text("a"))], [], 0)
write("dims_overflow", tensors=[tensor("a", [1 << 30, 1 << 30, 1 << 30], 0, 0)])
write("part_of_block", tensors=[tensor("a", [33], 2, 0)])
write("cut_in_tensor", cut=len(b"".join(KEYS)) + 24 + 30)
write("tensor_name_cut", cut=len(b"".join(KEYS)) + 24 + 4)
with open(f"{sys.argv[1]}/bad_magic", "wb") as f:
    f.write(b"GGML" + bytes(60))
for name in ("good", "many_words"):  # every allocation fails in turn (fail.h)
    write(f"no_memory_{name}", KEYS + [key("more", 9, struct.pack("<IQ", 8, 40) + text("w") * 40)] * (name != "good"))
    with open(f"{sys.argv[1]}/no_memory_{name}", "ab") as f:
        f.write(b"\xffF\0\0")
