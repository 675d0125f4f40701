#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Machine code of the CUDA kernels against rules and against the committed kernels/cuda/sass.csv.

Reads the SASS of a module with cuobjdump and nvdisasm (PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm; PATH is searched,
then the folders of Python's packages). Rules, whatever compiler made the module:
  - the path of a kernel's heaviest loop uses no local memory (LDL, STL);
  - a kernel that waits for the one before it (ACQBULK, sm_90 and up) neither reads nor writes global memory before the
    wait, but for copies of weights and, in decode attention, old slots;
  - kernels for matrix units (MATRIX below), and no others, have matrix instructions, in their heaviest loop.
With the nvcc that made the table, a kernel's row must be the table's. Of each kernel the row tells its size and its
heaviest loop: of the loops that read global memory and hold no other one that does, the one that reads most bytes. Of
a kernel for matrix units it is the one with most matrix instructions, of the loops that have them and loads of 8 bytes
or more, and hold no other one with both.
  instructions   of the whole kernel
  loop           instructions of that loop: both sides of a branch count
  path           instructions of a way round it (sass_flow.py): the way with most matrix instructions, then with most
                 bytes by its widest loads, then the shortest. A loop within the loop counts once.
  loads, bytes   on that way, loads of global memory, and the bytes a thread reads by them; of loads that exclude each
                 other by a predicate one side
  in_flight      most loads that are on their way at once, going round again and again: a load until its result is
                 used, a copy to shared memory until its group is waited for
  matrix         matrix instructions of the way
  convert        its conversions between integer and float
A row's arch names all architectures for which the kernel is the same.
Usage: tools/check_sass.py [--module FILE...] [--fix] [--show KERNEL] | --counts
Exit code: 0 as in the table, 1 not, 77 no module or no disassembler.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import arch_table
import sass_flow

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "kernels", "cuda", "sass.csv")
FIELDS = ["nvcc", "arch", "kernel", "instructions", "loop", "path", "loads", "bytes", "in_flight", "matrix", "convert"]
MATRIX = re.compile(r"^(decode_stream|prefill_mma|observe_sums|observe_columns|tiles_|(norm_)?stream_|row_q|"
                    r"experts_(q|half)\b)")
MATRIX_OF = {"prefill_wgmma": ["90"]}  # empty on all others
LOAD = re.compile(r"^(?:@!?U?P\w+ )?(LDG|LDGSTS|UBLKCP|UTMALDG)\b([\w.]*)\s+(.*)")
WEIGHTS = re.compile(r"^((norm_)?stream_|row_q)")  # these copy weights, which no kernel writes, before they wait
AHEAD = re.compile(r"^decode_stream")  # this one slots that the step does not write, and loads a page's number
MOST = {  # of a path on sm_90, where the documents say so: 16 slots; 16 rows by 128 and, of Q4_K, 256 columns
    "decode_stream<0, 0, 128, 3>": 17 * 16, "decode_stream<2, 2, 128, 2>": 24 * 16,
    "row_q<frag_q4_0, 2>": 120, "row_q<frag_q4_k, 2>": 2 * 110}
STORE = re.compile(sass_flow.GUARD + r"(ST|STG|RED|REDG|ATOM|ATOMG)\b")
WAIT = re.compile(sass_flow.GUARD + r"ACQBULK")
COPY = re.compile(r"^(LDGSTS|UBLKCP)\b")
MMA = re.compile(r"^(?:@!?U?P\w+ )?(HMMA|IMMA|QMMA|OMMA|BMMA|HGMMA|IGMMA|QGMMA)\b")
CONVERT = re.compile(r"^(?:@!?U?P\w+ )?(I2F|I2FP|F2I|F2F|F2FP|I2I)\b")
COMMIT = re.compile(r"^(?:@!?U?P\w+ )?LDGDEPBAR\b")
ARRIVED = re.compile(r"^(?:@!?U?P\w+ )?DEPBAR\.LE SB\d+, (0x[0-9a-f]+)")
WIDE = 8  # bytes; tables of the sine are read by fewer
LAPS = 24  # more than the stages of any ring


def find(tool):
    places = [os.path.join(d, "nvidia", "*", "bin", tool) for d in sys.path]
    return shutil.which(tool) or next((f for p in places for f in glob.glob(p)), None)


def disassemble(module):
    """The text of a module's machine code, or of one *.cubin, with names of what is jumped to."""
    tools = find("cuobjdump"), find("nvdisasm")
    if not all(tools):
        print("no cuobjdump and nvdisasm: machine code is not looked at")
        sys.exit(77)

    def run(*command, **more):
        done = subprocess.run(command, capture_output=True, text=True, **more)
        if done.returncode:
            sys.exit(f"{module}: {done.stderr.strip()}")
        return done.stdout
    if module.endswith(".cubin"):
        return run(tools[1], "-c", module)
    with tempfile.TemporaryDirectory() as folder:
        run(tools[0], "-xelf", "all", os.path.abspath(module), cwd=folder)
        return "".join(run(tools[1], "-c", os.path.join(folder, f)) for f in sorted(os.listdir(folder)))


def demangle(names):
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    out = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"\((?:int|bool)\)", "", re.sub(r"^(?:void )?", "", s)).split("(")[0] for s in out]


def kernels(text):
    """(architecture, name, [(address, instruction)]) of every function of a disassembly, with addresses for names."""
    arch, out, labels, new = "", [], {}, []
    for line in text.splitlines():
        if m := re.match(r"\s*\.target\s+sm_(\d+)", line):
            arch = m.group(1)
        elif m := re.match(r"\s*\.section\s+\.text\.(\S+?),", line):
            labels, new = {}, []
            out.append((arch, m.group(1), [], labels))
        elif m := re.match(r"([.$\w]+):$", line):
            new.append(m.group(1))
        elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            address = int(m.group(1), 16)
            labels.update(dict.fromkeys(new, hex(address)))
            new = []
            out[-1][2].append((address, re.sub(r"^\{\s*", "", m.group(2))))
    names = demangle([o[1] for o in out])
    return [(a, n, [(address, resolve(t, labels)) for address, t in code])
            for (a, _, code, labels), n in zip(out, names)]


def resolve(text, labels):
    """`(NAME) becomes an address, and what a table jumps to a list of them behind an arrow. Functions keep their names."""
    if "(" not in text:
        return text
    text = re.sub(r"`\((\.\w+)\)", lambda m: labels.get(m.group(1), m.group()), text)
    if m := re.search(r"\s*\(\*\"BRANCH_TARGETS ([^\"]*)\"\*\)", text):
        return text[:m.start()] + " -> " + " ".join(labels[n] for n in m.group(1).split(",") if n in labels)
    return re.sub(r"\s*\(\*.*?\*\)", "", text)


def load_bytes(text):
    m = LOAD.match(text)
    if not m or m.group(1) in ("UBLKCP", "UTMALDG"):
        return 0
    width = re.search(r"\.(128|64|U8|S8|U16|S16)\b", m.group(2))
    return {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}[width.group(1)] if width else 4


def is_matrix(arch, name):
    of = next((archs for stem, archs in MATRIX_OF.items() if name.startswith(stem)), None)
    return arch in of if of else bool(MATRIX.match(name))


def in_flight(path):
    """The most loads on their way at once, where a way is gone round again and again."""
    most, flying, groups = 0, {}, [0]  # loads by their first registers; copies by groups, of which the last one is open
    steps = []
    for text in path:
        load, arrived = LOAD.match(text), ARRIVED.match(text)
        operands = load.group(3).split(",", 1) if load else ["", text]
        first = re.search(r"\bR(\d+)\b", operands[0])
        number = int(first.group(1)) if first else -1
        wide = range(number, number + max(1, load_bytes(text) // 4))
        left = int(arrived.group(1), 16) if arrived else None
        steps.append((load and load.group(1), set(re.findall(r"\bR\d+\b", operands[-1])), number,
                      {f"R{r}" for r in wide}, bool(COMMIT.match(text)), left))
    for load, used, number, wide, commit, left in steps * (LAPS if any(s[-1] is not None for s in steps) else 2):
        last = max((i for i, w in enumerate(flying.values()) if not used.isdisjoint(w)), default=-1)
        if last >= 0:  # what began before one that has arrived has arrived, too
            flying = dict(list(flying.items())[last + 1:])
        if load == "LDG":
            flying.pop(number, None)
            flying[number] = wide
        elif load:
            groups[-1] += 1
        elif commit:
            groups.append(0)
        elif left is not None:
            groups = groups[-1 - left:]
        if load:
            most = max(most, len(flying) + sum(groups))
    return most


class Kernel:
    """A kernel and its heaviest loop: that loop's instructions, its path, and of the path those that are not held back
    by a predicate; all empty without a loop that reads."""

    def __init__(self, arch, name, code):
        self.arch, self.name, self.flow = arch, name, sass_flow.Flow(code)
        self.matrix = is_matrix(arch, name)
        self.loop, self.path, self.taken = [], [], []
        loops = {head: self.flow.text_of(body) for head, body in self.flow.loops.items()}
        reads = [h for h, texts in loops.items() if any(map(LOAD.match, texts))]
        if self.matrix:
            multiply = [h for h, texts in loops.items() if any(map(MMA.match, texts))]
            wide = [h for h in multiply if any(load_bytes(t) >= WIDE for t in loops[h])]
            reads = wide or multiply or reads
        reads = [h for h in reads if not any(self.flow.loops[o] < self.flow.loops[h] for o in reads)]
        best = None
        for head in sorted(reads):
            path = self.flow.path(head, path_gain(loops[head]))
            taken = sass_flow.one_side(path, load_bytes)
            weight = (count(MMA, taken) if self.matrix else 0, sum(map(load_bytes, taken)), len(path))
            if best is None or weight > best:
                best, self.loop, self.path, self.taken = weight, loops[head], path, taken


def count(pattern, texts):
    return sum(bool(pattern.match(t)) for t in texts)


def path_gain(loop):
    widest = max(map(load_bytes, loop), default=0)

    def gain(texts):
        depth = sum(int(m.group(1), 16) for m in map(ARRIVED.match, texts) if m)  # of rings the deepest
        return count(MMA, texts), sum(b for b in map(load_bytes, texts) if b == widest), depth
    return gain


def row_of(version, k):
    return {"nvcc": version, "arch": k.arch, "kernel": k.name, "instructions": len(k.flow.texts), "loop": len(k.loop),
            "path": len(k.path), "loads": count(LOAD, k.taken), "bytes": sum(map(load_bytes, k.taken)),
            "in_flight": in_flight(k.taken), "matrix": count(MMA, k.taken), "convert": count(CONVERT, k.taken)}


def broken_rules(k):
    bare = lambda texts: [re.sub(sass_flow.GUARD, "", t) for t in texts]
    bad = []
    if any(re.match(r"(LDL|STL)\b", t) for t in bare(k.path)):
        bad.append("uses local memory on the path of its heaviest loop")
    if k.loop and not k.path:
        bad.append("has no way round its heaviest loop whose branches agree")
    if count(WAIT, k.flow.texts):
        early = bare(k.flow.before(WAIT))
        copies = count(COPY, early)
        loads = count(LOAD, early) - copies
        ahead = AHEAD.match(k.name)
        if loads > (1 if ahead else 0) or (copies and not ahead and not WEIGHTS.match(k.name)):
            bad.append("reads global memory before it waits for the kernel ahead")
        if count(STORE, early):
            bad.append("writes global memory before it waits for the kernel ahead")
    if k.matrix and not count(MMA, k.path):
        bad.append("has no matrix instruction in its heaviest loop")
    if k.arch == "90" and len(k.path) > MOST.get(k.name, len(k.path)):
        bad.append(f"takes {len(k.path)} instructions on its path, more than {MOST[k.name]}")
    if not k.matrix and count(MMA, k.flow.texts):
        bad.append("has matrix instructions, but MATRIX does not name it")
    return [f"sm_{k.arch} {k.name} {b}" for b in bad]


def nvcc_version():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(nvcc, os.X_OK):
        return ""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d+\.\d+\.\d+)", text).group(1)


def compare(got, table):
    bad = []
    want = {(r["arch"], r["kernel"]): r for r in table}
    archs = {r["arch"] for r in table} & {g["arch"] for g in got}
    for g in got:
        w = want.pop((g["arch"], g["kernel"]), None)
        if g["arch"] not in archs:
            continue
        if not w:
            bad.append(f"sm_{g['arch']} {g['kernel']}: not in the table")
        elif w["nvcc"] == g["nvcc"]:
            bad += [f"sm_{g['arch']} {g['kernel']}: {f} {g[f]}, the table has {w[f]}"
                    for f in FIELDS[3:] if str(g[f]) != w[f]]
    return bad + [f"sm_{a} {k}: in the table, but gone" for a, k in want if a in archs]


def document_rows(table):
    """Rows of tables in docs/design/cuda.md, from the path of sm_90: instructions a slot of decode attention with heads
    of 128, and for 16 rows by 128 columns of one row's products (four matrix instructions, of Q2_K eight)."""
    of = {r["kernel"]: r for r in table if r["arch"] == "90"}
    forms = ["0, 0, 128, 3", "1, 1, 128, 3", "2, 2, 128, 2", "3, 3, 128, 2", "3, 4, 128, 3", "4, 4, 128, 3"]
    types = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
    slots = [int(of[f"decode_stream<{f}>"]["path"]) / 16 for f in forms]
    rows = [of[f"row_q<frag_{t}, 2>"] for t in types]
    blocks = [int(r["path"]) * (8 if t == "q2_k" else 4) / int(r["matrix"]) for t, r in zip(types, rows)]
    return [f"| {name} | {' | '.join(values)} |" for name, values in [
        ("now", [f"{n:.1f}" for n in slots]), ("16 x 128", [f"{n:.0f}" for n in blocks])]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--module", nargs="+", default=["build/kernels/cuda/libpipit-cuda.so"], help="or files of single kernels")
    p.add_argument("--fix", action="store_true", help="write the table's rows of the module's architectures anew")
    p.add_argument("--show", metavar="KERNEL", help="print the path of this kernel's heaviest loop")
    p.add_argument("--counts", action="store_true", help="print the rows of docs/design/cuda.md that the table gives")
    args = p.parse_args()
    table = arch_table.read(TABLE)
    if args.counts:
        print("\n".join(document_rows(table)))
        return 0
    if missing := next((m for m in args.module if not os.path.exists(m)), None):
        print(f"{missing} is not there: machine code is not looked at")
        return 77
    version, all_ = nvcc_version(), [k for m in args.module for k in kernels(disassemble(m))]
    if args.show:
        for arch, name, code in all_:
            if name == args.show:
                print("\n".join(f"sm_{arch} {t}" for t in Kernel(arch, name, code).path))
        return 0
    looked_at = [Kernel(*k) for k in all_]
    got = [row_of(version, k) for k in looked_at]
    bad = [b for k in looked_at for b in broken_rules(k)]
    archs = {g["arch"] for g in got}
    if args.fix:
        arch_table.write(TABLE, FIELDS, [r for r in table if r["arch"] not in archs] + got)
    else:
        bad += compare(got, table)
    if not got:
        bad.append("no kernels were found")
    print(f"{len(got)} kernels of sm_{', sm_'.join(sorted(archs))}, {len(bad)} findings")
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
