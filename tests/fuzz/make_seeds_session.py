#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_session in which calls fail, or a budget is spent, beside those that fuzzing found.

    make_seeds_session.py            into seeds/session"""

import pathlib

folder = pathlib.Path(__file__).parent / "seeds" / "session"
NO_ROOM, NO_WRITES = 64, 128
IN_TURN = b"\xffF\0\0"

for world in range(3):
    (folder / f"spent_{world}").write_bytes(bytes([world, 7 | NO_ROOM | NO_WRITES]))
for name, bits in (("fail", 7), ("fail_spent", 7 | NO_ROOM | NO_WRITES), ("fail_no_writes", 7 | NO_WRITES), ("fail_no_room", 7 | NO_ROOM)):
    (folder / name).write_bytes(bytes([0, bits]) + IN_TURN)
