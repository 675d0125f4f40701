#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_lane: a record of each type from who may send it, and each refusal of lane_record_check().

    make_seeds_lane.py            into seeds/lane"""

import pathlib
import struct

folder = pathlib.Path(__file__).parent / "seeds" / "lane"
CLIENT, FRONT, TO_ENGINE, ENGINE = range(4)
SHORT = 4  # of the first byte: what is missing of the record is zeros
ID = bytes(range(1, 17))
MAGIC = struct.pack("<I", 0x54504950)
BODIES = {  # type: bytes of the body, as in record.c
    1: 72, 2: 32, 3: 32, 4: 136, 5: 72, 6: 80, 7: 0, 8: 0, 9: 32, 10: 8, 11: 88, 12: 8, 13: 32, 14: 32,
    0x40: 152, 0x41: 32, 0x42: 24, 0x43: 12, 0x44: 216, 0x45: 216, 0x46: 144, 0x47: 48, 0x48: 224, 0x49: 216, 0x4a: 152, 0x4b: 216,
    0x100: 24, 0x101: 24, 0x102: 160, 0x103: 4, 0x104: 0, 0x105: 8, 0x140: 216, 0x141: 24, 0x142: 216, 0x143: 0}


def write(name, peer, kind, body=b"", ident=ID, flags=0, items=b"", size=None):
    size = 32 + BODIES.get(kind, 0) if size is None else size
    record = struct.pack("<HHI", kind, flags, size) + ident + bytes(8) + body
    if items:
        record = record.ljust(256, b"\0") + items
    (folder / name).write_bytes(bytes([peer | SHORT]) + record)


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def peer_of(kind):
    return CLIENT if kind < 0x40 else FRONT if kind < 0x100 else TO_ENGINE if kind < 0x140 else ENGINE


GOOD = {1: MAGIC + u32(0, 256), 4: u32(1), 6: struct.pack("<Q", 1), 11: u32(1), 12: u32(1), 0x40: MAGIC, 0x4a: MAGIC,
        0x47: u32(1), 0x48: u32(1), 0x49: u32(1), 0x102: u32(1), 0x103: u32(1), 0x142: u32(1)}
for kind in BODIES:
    write(f"good_{kind:x}", peer_of(kind), kind, GOOD.get(kind, b""))
for kind in (0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49):
    write(f"engine_{kind:x}", ENGINE, kind, GOOD.get(kind, b""))
BAD = {
    "hello_size": (1, MAGIC + u32(0, 255)), "hello_magic": (1, u32(1)), "hello_program": (1, MAGIC + u32(0, 256) + bytes(20) + b"\1" * 40),
    "lease_arena": (2, u32(2)), "kind": (4, u32(9)), "session_op": (11, u32(9)), "session_name": (11, u32(1, 0, 0, 0) + b"x" * 72),
    "control_op": (12, u32(9)), "cancel_tenant": (5, u32(0, 65)), "resume_zero": (6, b""), "resume_tenant": (6, u32(1, 0, 0, 65)),
    "reply_magic": (0x40, u32(1)), "reply_state": (0x40, MAGIC + bytes(52) + u32(9)), "reply_model": (0x40, MAGIC + bytes(84) + b"m" * 64),
    "reply_arena": (0x41, u32(2)), "alt_text": (0x46, u32(0, 0, 0) + struct.pack("<HH", 0, 129)), "bulk_kind": (0x47, u32(9)),
    "done_reason": (0x48, u32(0)), "done_session": (0x48, u32(1) + bytes(92) + u32(9)),
    "done_cause": (0x48, u32(1) + bytes(108) + b"c" * 96), "error_code": (0x49, u32(99)),
    "status_state": (0x4b, bytes(16) + u32(9)), "status_model": (0x4b, bytes(112) + b"\x1b" * 96),
    "cancel_reason": (0x103, u32(99)), "engine_kind": (0x102, u32(99)), "state": (0x140, u32(99)), "state_model": (0x140, bytes(96) + b"m" * 96),
    "report_kind": (0x142, u32(9)), "report_rows": (0x142, u32(1, 17)), "report_text": (0x142, u32(1, 0, 0, 0) + bytes(36) + u32(161)),
    "report_control": (0x142, u32(1, 0, 0, 0) + bytes(36) + u32(3) + b"a\n\x7f")}
for name, (kind, body) in BAD.items():
    write(f"bad_{name}", peer_of(kind), kind, body)
write("bad_report_beyond", ENGINE, 0x142, u32(1, 0, 0, 0) + bytes(36) + u32(100), size=88)
write("bad_type", CLIENT, 0x77, size=32)
write("bad_peer", FRONT, 1)
write("bad_no_id", CLIENT, 4, GOOD[4], ident=bytes(16))
write("bad_flags", CLIENT, 4, GOOD[4], flags=0x8000)
ITEM = struct.pack("<HHI", 1, 0, 3) + b"abc" + bytes(5)
SAMPLING = struct.pack("<HHI", 8, 0, 56) + bytes(56)
write("items", CLIENT, 4, GOOD[4], items=ITEM + SAMPLING + struct.pack("<HHI", 8, 0, 4) + u32(1, 0) + struct.pack("<HHI", 2, 0, 0))
write("items_flags", CLIENT, 4, GOOD[4], items=struct.pack("<HHI", 1, 1, 0))
write("items_unknown", CLIENT, 4, GOOD[4], items=ITEM + struct.pack("<HHI", 99, 0, 0))
