#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_client beside those that it had: connecting by path, a callback that calls, watched descriptors, bad
hellos, memory and calls that fail.

    make_seeds_client.py            into seeds/client"""

import pathlib

folder = pathlib.Path(__file__).parent / "seeds" / "client"
RECORD, MAKE, CANCEL, DISPATCH, READ, CALL, ARENA, LEASE, RESUME, CREDIT, DROP, HANG_UP, CONNECT, WATCH = range(14)
ACCEPTED, PROGRESS, TOKEN, TEXT, ALT, BULK, DONE, ERROR = range(2, 10)
IN_TURN = b"\xffF\0\0"


def record(kind, which=1, seq=0):
    return bytes([RECORD, kind, which, seq, 0])


def make(i, kind=0, bits=0):
    return bytes([MAKE, i, kind, bits])


def call(which, *records):
    return bytes([CALL, which, len(records)]) + b"".join(bytes([r, 0]) for r in records)


def changed(at, data):
    return bytes([16, 1, at, len(data)]) + data


ANSWER = b"".join(map(record, (ACCEPTED, PROGRESS, ALT, TOKEN, TEXT, DONE)))
SEEDS = {
    "first_no_hello": bytes([32]),
    "hello_no_request": changed(64, bytes(4)),
    "hello_no_arena": changed(48, bytes(8)),
    "callback_calls": b"\0" + make(0, bits=2 | 16) + ANSWER + bytes([DISPATCH]),
    "watch": b"\0" + bytes([WATCH, DISPATCH]) + make(0) + bytes([DISPATCH, READ, 0]) + call(6, 8) + bytes([WATCH]),
    "watch_call": b"\0" + bytes([WATCH]) + call(6) + call(4),
    "resumed": b"\0" + bytes([RESUME, 0, 0]) + record(ACCEPTED, 1, 1) + record(TOKEN, 1, 2) + bytes([DISPATCH, READ, 0]),
    "unknown_record": b"\0" + make(0) + record(1) + record(0) + record(12) + bytes([DISPATCH]),
    "fail_connect": b"\0" + IN_TURN,
    "fail_answer": b"\0" + bytes([LEASE, 0]) + make(0, bits=1 | 4 | 8) + ANSWER + bytes([DISPATCH, READ, 0]) + IN_TURN,
    "fail_callback": b"\0" + make(0, bits=2) + ANSWER + bytes([DISPATCH]) + IN_TURN,
    "fail_tokenize": b"\0" + call(10, 0, 5 - 0, 6) + IN_TURN,
    "fail_detokenize": b"\0" + call(12, 0, 3, 6) + IN_TURN,
    "fail_path": b"\0" + bytes([CONNECT, 0]) + IN_TURN,
}
for how in range(4):
    SEEDS[f"path_{how}"] = b"\0" + bytes([CONNECT, how])
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
