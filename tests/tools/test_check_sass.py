#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_sass.py on small dumps: each rule is broken once, and a row's numbers are counted by hand."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import check_sass  # noqa: E402


def dump(name, *instructions):
    lines = ["arch = sm_90", f"\t\tFunction : {name}"]
    lines += [f"        /*{i * 16:04x}*/                   {t} ;      /* 0x0 */" for i, t in enumerate(instructions)]
    return check_sass.kernels("\n".join(lines))


LOOP = ["MOV R1, R2", "LDG.E.128 R4, [R2.64]", "@P0 LDG.E R8, [R2.64+0x10]", "HMMA.16816.F32 R12, R4, R8, R12",
        "I2F.S8 R9, R8", "@!P1 BRA 0x10", "EXIT"]


class Sass(unittest.TestCase):
    def rules(self, name, *code):
        return [b.split(" ", 2)[2] for k in dump(name, *code) for b in check_sass.broken_rules(*k)]

    def test_a_row_is_counted(self):
        (arch, name, code), = dump("rows", *LOOP)
        row = check_sass.row_of("1", arch, name, code)
        self.assertEqual([row[f] for f in check_sass.FIELDS],
                         ["1", "90", "rows", 7, 5, 2, 20, 2, 1, 1])

    def test_loads_that_are_used_at_once_do_not_overlap(self):
        body = ["LDG.E R4, [R2.64]", "FADD R5, R4, R4", "LDG.E R6, [R2.64+0x4]", "FADD R5, R5, R6"]
        self.assertEqual(check_sass.in_flight(body), 1)
        self.assertEqual(check_sass.in_flight([body[0], body[2], body[1], body[3]]), 2)

    def test_the_rules(self):
        self.assertEqual(self.rules("rows", *LOOP), [])
        self.assertEqual(self.rules("stream_q", *LOOP), [])
        self.assertEqual(self.rules("stream_q", *(t for t in LOOP if "HMMA" not in t)),
                         ["has no matrix instruction"])
        self.assertEqual(self.rules("rows", *LOOP[:4], "STL [R1], R9", "@!P1 BRA 0x10", "EXIT"),
                         ["uses local memory in its heaviest loop"])
        self.assertEqual(self.rules("rows", "LDG.E R4, [R2.64]", "ACQBULK", *LOOP),
                         ["reads global memory before it waits for the kernel ahead"])
        self.assertEqual(self.rules("rows", "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]", "ACQBULK", *LOOP),
                         ["reads global memory before it waits for the kernel ahead"])
        self.assertEqual(self.rules("stream_half", "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]", "ACQBULK", *LOOP), [])
        self.assertEqual(self.rules("stream_half", "LDG.E R4, [R2.64]", "ACQBULK", *LOOP),
                         ["reads global memory before it waits for the kernel ahead"])
        self.assertEqual(self.rules("rows", "ACQBULK", "LDG.E R4, [R2.64]", "EXIT"), [])

    def test_the_table(self):
        (arch, name, code), = dump("rows", *LOOP)
        row = check_sass.row_of("1", arch, name, code)
        as_read = {k: str(v) for k, v in row.items()}
        self.assertEqual(check_sass.compare([row], [as_read]), [])
        self.assertEqual(check_sass.compare([row], [dict(as_read, loop="4")]), ["sm_90 rows: loop 5, the table has 4"])
        self.assertEqual(check_sass.compare([row], [dict(as_read, loop="4", nvcc="2")]), [])
        self.assertEqual(check_sass.compare([], [dict(as_read)]), [])
        self.assertEqual(check_sass.compare([row], [as_read, dict(as_read, kernel="gone")]),
                         ["sm_90 gone: in the table, but gone"])


if __name__ == "__main__":
    unittest.main()
