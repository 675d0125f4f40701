#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_sass.py on small dumps: each rule is broken once, a row's numbers are counted by hand, and of several
loops and ways the right one is found. The documents say what the table holds."""
import os
import re
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import arch_table  # noqa: E402
import check_registers  # noqa: E402
import check_sass  # noqa: E402


def dump(name, *instructions):
    """A kernel from instructions; LABEL: stands before one, {LABEL} for where that leads."""
    lines = [".target\tsm_90", '\t.section\t.text.kernel,"ax",@progbits', ".text.kernel:"]
    for i, t in enumerate(instructions):
        if m := re.match(r"([A-Z]+): ", t):
            lines.append(f".L_x_{m.group(1)}:")
            t = t[m.end():]
        t = re.sub(r"\{([A-Z]+)\}", r"`(.L_x_\1)", t)
        lines.append(f"        /*{i * 16:04x}*/                   {t} ;")
    (arch, _, code), = check_sass.kernels("\n".join(lines))
    return check_sass.Kernel(arch, name, code)


def row(name, *instructions):
    r = check_sass.row_of("1", dump(name, *instructions))
    return [r[f] for f in ("loop", "path", "loads", "bytes", "in_flight", "matrix")]


LOOP = ["MOV R1, R2", "LDG.E.128 R4, [R2.64]", "@P0 LDG.E R8, [R2.64+0x10]", "HMMA.16816.F32 R12, R4, R8, R12",
        "I2F.S8 R9, R8", "@!P1 BRA 0x10", "EXIT"]
# More bytes than LOOP, and no matrix instruction: the end of a kernel that turns heads.
TURN = ["B: LDG.E.128 R4, [R2.64]", "LDG.E.128 R8, [R2.64]", "FADD R4, R4, R8", "@P1 BRA {B}"]
MULTIPLY = ["A: LDG.E.128 R4, [R2.64]", "HMMA.16816.F32 R12, R4, R8, R12", "@P1 BRA {A}"]


class Sass(unittest.TestCase):
    def rules(self, name, *code):
        return [b.removeprefix(f"sm_90 {name} ") for b in check_sass.broken_rules(dump(name, *code))]

    def test_a_row_is_counted(self):
        r = check_sass.row_of("1", dump("stream_q", *LOOP))
        self.assertEqual([r[f] for f in check_sass.FIELDS], ["1", "90", "stream_q", 7, 5, 5, 2, 20, 2, 1, 1])

    def test_loads_on_their_way(self):
        body = ["LDG.E R4, [R2.64]", "FADD R5, R4, R4", "LDG.E R6, [R2.64+0x4]", "FADD R5, R5, R6"]
        self.assertEqual(check_sass.in_flight(body), 1)
        self.assertEqual(check_sass.in_flight([body[0], body[2], body[1], body[3]]), 2)
        # loaded for the next time round, behind the use of this time's
        self.assertEqual(check_sass.in_flight([body[1], body[0], body[3], body[2]]), 2)
        # three groups of two copies, of which one may be missing when the first is read
        copies = ["LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]"] * 2 + ["LDGDEPBAR"]
        self.assertEqual(check_sass.in_flight(["DEPBAR.LE SB0, 0x2", *copies]), 6)
        self.assertEqual(check_sass.in_flight(["DEPBAR.LE SB0, 0x0", *copies]), 2)

    def test_loops_with_matrix_instructions_come_first(self):
        code = [*MULTIPLY, *TURN, "EXIT"]
        self.assertEqual(row("stream_q", *code), [3, 3, 1, 16, 1, 1])
        self.assertEqual(row("rows", *code), [4, 4, 2, 32, 2, 0])
        # only the loop around both has both
        code = ["O: MOV R1, R2", "C: LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]", "@P0 BRA {C}",
                "M: HMMA.16816.F32 R12, R4, R8, R12", "@P1 BRA {M}", "@P2 BRA {O}", *TURN, "EXIT"]
        self.assertEqual(row("prefill_mma", *code), [6, 6, 1, 16, 2, 1])
        # a table of the sine is read by four bytes, in the loop that multiplies
        code = ["O: LDG.E.128 R20, [R2.64]", "M: LDG.E R4, [R2.64]", "HMMA.16816.F32 R12, R4, R8, R12", "@P1 BRA {M}",
                "@P2 BRA {O}", "EXIT"]
        self.assertEqual(row("observe_columns", *code), [5, 5, 2, 20, 2, 1])
        # the one with most of them
        code = ["A: LDG.E.128 R4, [R2.64]", "HMMA.1 R12, R4, R8, R12", "HMMA.1 R12, R4, R8, R12", "@P1 BRA {A}",
                "B: LDG.E.128 R4, [R2.64]", "LDG.E.128 R8, [R2.64]", "HMMA.1 R12, R4, R8, R12", "@P1 BRA {B}", "EXIT"]
        self.assertEqual(row("stream_q", *code), [4, 4, 1, 16, 1, 2])

    def test_kernels_for_matrix_units(self):
        for name in ["norm_stream_half<true>", "norm_stream_half_store<false>", "experts_q<frag_q4_0, 1>",
                     "experts_half<true, 4>", "stream_half<false, 2>", "row_q_store<frag_q4_0>", "prefill_wgmma<true>"]:
            self.assertTrue(check_sass.is_matrix("90", name), name)
        for name in ["rows", "experts_f32", "choose_experts", "expect_count<1>"]:
            self.assertFalse(check_sass.is_matrix("90", name), name)
        self.assertFalse(check_sass.is_matrix("100", "prefill_wgmma<true>"))

    def test_a_path_has_one_side_of_a_branch(self):
        # 1 + the shorter side (1) + 3; the other one (2) lies behind the kernel's end
        code = ["A: LDG.E.128 R4, [R2.64]", "@P0 BRA {COLD}", "FADD R4, R4, R4", "BACK: FADD R5, R4, R4", "@P1 BRA {A}",
                "EXIT", "COLD: FMUL R4, R4, R4", "FMUL R4, R4, R5", "BRA {BACK}"]
        self.assertEqual(row("rows", *code), [8, 5, 1, 16, 1, 0])
        # the side that loads, though it is longer, where sides meet by a barrier
        code = ["A: BSSY B0, {MEET}", "@P0 BRA {ELSE}", "LDG.E.128 R4, [R2.64]", "FADD R4, R4, R4", "BSYNC B0",
                "ELSE: BSYNC B0", "MEET: @P1 BRA {A}", "EXIT"]
        self.assertEqual(row("rows", *code), [7, 6, 1, 16, 1, 0])

    def test_a_table_of_jumps_leads_on(self):
        code = ["A: BRX R6 -0x10 (*\"BRANCH_TARGETS .L_x_X,.L_x_Y\"*)", "X: LDG.E.64 R4, [R2.64]", "BRA {END}",
                "Y: LDG.E.128 R4, [R2.64]", "FADD R4, R4, R4", "END: @P1 BRA {A}", "EXIT"]
        self.assertEqual(row("rows", *code), [6, 4, 1, 16, 1, 0])

    def test_calls(self):
        # as sm_80 leaves a loop; a function comes back
        code = ["A: LDG.E.64 R4, [R2.64]", "CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_rn_f64_full)",
                "@P0 CALL.REL.NOINC {OUT}", "BRA {A}", "OUT: MOV R1, R2", "@P0 CALL.REL.NOINC {END}", "BRA {A}", "END: EXIT"]
        self.assertEqual(row("rows", *code), [7, 4, 1, 8, 1, 0])

    def test_copies_that_exclude_each_other(self):
        # two tests of the same comparison, as the compiler makes them for `if (whole) ... if (!whole) ...`
        tests = ["A: ISETP.NE.AND P1, PT, R3.reuse, 0x100, PT", "{ISETP}.AND P2, PT, R3, 0x100, PT",
                 "@P1 BRA {X}", "LDG.E.128 R4, [R2.64]", "X: @{NOT}P2 BRA {Y}", "FADD R9, R9, R9", "LDG.E.128 R4, [R2.64]",
                 "Y: @P3 BRA {A}", "EXIT"]
        put = lambda isetp, no: [t.replace("{ISETP}", isetp).replace("{NOT}", no) for t in tests]
        self.assertEqual(row("rows", *put("ISETP.NE", "!")), [8, 6, 1, 16, 1, 0])
        self.assertEqual(row("rows", *put("ISETP.EQ", "")), [8, 6, 1, 16, 1, 0])
        self.assertEqual(row("rows", *put("ISETP.NE", "")), [8, 8, 2, 32, 1, 0])  # both, or neither
        changed = put("ISETP.NE", "!")
        changed[0:1] = [changed[0], "IADD3 R3, R3, 0x1, RZ"]
        self.assertEqual(row("rows", *changed), [9, 9, 2, 32, 1, 0])
        # the register that both ask about, beside others that are written between them
        code = ["A: ISETP.NE.AND P1, PT, R19, 0x80, PT", "@!P1 IADD3 R18, R6, R8, RZ", "IMAD.WIDE.U32 R20, R6, R7, R8",
                "ISETP.NE.AND P2, PT, R19, 0x80, PT", "@!P1 LDG.E.128 R4, [R2.64]", "@P2 LDG.E.128 R4, [R2.64]",
                "@P3 BRA {A}", "EXIT"]
        self.assertEqual(row("rows", *code), [7, 7, 1, 16, 1, 0])
        other = ["A: IMAD.WIDE.U32 R18, R6, R7, R8", *code[:1], "IMAD.WIDE.U32 R18, R9, R7, R8", *code[3:]]
        self.assertEqual(row("rows", other[0], other[1].removeprefix("A: "), *other[2:]), [7, 7, 2, 32, 1, 0])
        guarded = ["@P4 MOV R19, R7", *other[1:2], "MOV R19, R7", *code[3:]]
        self.assertEqual(row("rows", f"A: {guarded[0]}", other[1].removeprefix("A: "), *guarded[2:]), [7, 7, 2, 32, 1, 0])
        for change in ["IMAD.WIDE.U32 R18, R6, R7, R8", "@P4 IADD3 R19, R6, R8, RZ", "LDG.E.64 R18, [R2.64]"]:
            self.assertEqual(row("rows", *code[:2], change, *code[3:])[2:4], [2 + ("LDG" in change), 32 + 8 * ("LDG" in change)])
        # a way that no warp can take is none
        code = ["A: @P1 BRA {X}", "EXIT", "X: LDG.E.128 R4, [R2.64]", "@!P1 BRA {A}", "EXIT"]
        self.assertEqual(self.rules("rows", *code), ["has no way round its heaviest loop whose branches agree"])
        # the same by predicates: both are issued, one side loads
        code = ["A: ISETP.NE.AND P1, PT, R3, 0x100, PT", "@P1 LDG.E.128 R4, [R2.64]", "@!P1 LDG.E.128 R4, [R2.64]",
                "@P3 BRA {A}", "EXIT"]
        self.assertEqual(row("rows", *code), [4, 4, 1, 16, 1, 0])

    def test_the_rules(self):
        self.assertEqual(self.rules("stream_q", *LOOP), [])
        self.assertEqual(self.rules("rows", *LOOP), ["has matrix instructions, but MATRIX does not name it"])
        plain = [t for t in LOOP if "HMMA" not in t]
        self.assertEqual(self.rules("rows", *plain), [])
        none = ["has no matrix instruction in its heaviest loop"]
        self.assertEqual(self.rules("stream_q", *plain), none)
        self.assertEqual(self.rules("stream_q", "HMMA.16816.F32 R12, R4, R8, R12", *plain), none)
        self.assertEqual(self.rules("rows", *plain[:3], "STL [R1], R9", "@!P1 BRA 0x10", "EXIT"),
                         ["uses local memory on the path of its heaviest loop"])
        reads = ["reads global memory before it waits for the kernel ahead"]
        copy = "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]"
        self.assertEqual(self.rules("rows", "LDG.E R4, [R2.64]", "ACQBULK", *plain), reads)
        self.assertEqual(self.rules("rows", copy, "ACQBULK", *plain), reads)
        self.assertEqual(self.rules("norm_stream_half", copy, "ACQBULK", *MULTIPLY, "EXIT"), [])
        self.assertEqual(self.rules("stream_half", "LDG.E R4, [R2.64]", "ACQBULK", *MULTIPLY, "EXIT"), reads)
        self.assertEqual(self.rules("rows", "ACQBULK", "LDG.E R4, [R2.64]", "EXIT"), [])
        self.assertEqual(self.rules("rows", "@P0 ST.E [R2.64], R4", "ACQBULK", "EXIT"),
                         ["writes global memory before it waits for the kernel ahead"])
        many = ["A: LDG.E.128 R4, [R2.64]", *["IMMA.16832.S8.S8 R12, R4, R8, R12"] * 119, "@P1 BRA {A}", "EXIT"]
        self.assertEqual(self.rules("row_q<frag_q4_0, 2>", *many),
                         ["takes 121 instructions on its path, more than 120"])
        self.assertEqual(self.rules("row_q<frag_q4_0, 2>", *many[:-3], *many[-2:]), [])

    def test_before_the_wait_is_what_may_run_before_it(self):
        reads = ["reads global memory before it waits for the kernel ahead"]
        # laid out in front of it, and run behind it
        self.assertEqual(self.rules("rows", "BRA {W}", "L: LDG.E R4, [R2.64]", "EXIT", "W: ACQBULK", "BRA {L}"), [])
        # laid out behind it, and run before it
        self.assertEqual(self.rules("rows", "@P0 BRA {L}", "W: ACQBULK", "EXIT", "L: LDG.E R4, [R2.64]", "BRA {W}"), reads)

    def test_the_table(self):
        r = check_sass.row_of("1", dump("stream_q", *LOOP))
        as_read = {k: str(v) for k, v in r.items()}
        self.assertEqual(check_sass.compare([r], [as_read]), [])
        self.assertEqual(check_sass.compare([r], [dict(as_read, loop="4")]),
                         ["sm_90 stream_q: loop 5, the table has 4"])
        self.assertEqual(check_sass.compare([r], [dict(as_read, path="4")]),
                         ["sm_90 stream_q: path 5, the table has 4"])
        self.assertEqual(check_sass.compare([r], [dict(as_read, loop="4", nvcc="2")]), [])
        self.assertEqual(check_sass.compare([], [dict(as_read)]), [])
        self.assertEqual(check_sass.compare([r], [as_read, dict(as_read, kernel="gone")]),
                         ["sm_90 gone: in the table, but gone"])

    def test_equal_rows_are_one(self):
        fields = ["nvcc", "arch", "kernel", "path"]
        rows = [dict(zip(fields, ["1", *r])) for r in
                [("100", "a", "5"), ("80", "a", "5"), ("90", "a", "6"), ("90", "b", "7")]]
        file = arch_table.gather(rows, fields)
        self.assertEqual([[r[f] for f in fields[1:]] for r in file],
                         [["80 100", "a", "5"], ["90", "a", "6"], ["90", "b", "7"]])
        key = lambda r: (r["arch"], r["kernel"])
        self.assertEqual(sorted(arch_table.spread(file), key=key), sorted(rows, key=key))

    def test_both_tables_have_all_that_ci_compiles(self):
        with open(os.path.join(ROOT, "tools", "test.sh")) as f:
            archs = set(re.search(r"^archs=\((.*)\)", f.read(), re.MULTILINE).group(1).split())
        for table in check_registers.TABLE, check_sass.TABLE:
            rows = arch_table.read(table)
            self.assertEqual({r["arch"] for r in rows}, archs)
            names = {a: {r["kernel"] for r in rows if r["arch"] == a} for a in archs}
            self.assertTrue(all(n == names["90"] for n in names.values()))

    def test_the_documents_say_what_the_table_holds(self):
        with open(os.path.join(ROOT, "docs", "design", "cuda.md")) as f:
            lines = f.read().splitlines()
        for want in check_sass.document_rows(arch_table.read(check_sass.TABLE)):
            self.assertIn(want, lines)


if __name__ == "__main__":
    unittest.main()
