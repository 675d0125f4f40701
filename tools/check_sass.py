#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Machine code of the CUDA kernels against rules and against the committed kernels/cuda/sass.csv.

Reads the SASS of a module with cuobjdump and nvdisasm (PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm; PATH is searched,
then the folders of Python's packages). Rules, whatever compiler made the module:
  - a kernel's heaviest loop uses no local memory (LDL, STL);
  - a kernel that waits for the one before it (ACQBULK, sm_90 and up) reads no global memory before the wait;
  - kernels for matrix units (MATRIX below) hold matrix instructions.
With the nvcc that made the table, a kernel's row must be the table's. Of each kernel the row tells its size and its
heaviest loop, which is the one that reads most bytes of global memory and holds no other loop that reads any:
  instructions   of the whole kernel
  loop           instructions of that loop, as they stand: both sides of a branch count
  loads, bytes   its loads of global memory, and the bytes a thread reads by them
  in_flight      most loads that begin before a result of one of them is used
  matrix         its matrix instructions
  convert        its conversions between integer and float
Usage: tools/check_sass.py [--module FILE] [--fix] [--show KERNEL]
Exit code: 0 as in the table, 1 not, 77 no module or no disassembler.
"""
import argparse
import csv
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "kernels", "cuda", "sass.csv")
FIELDS = ["nvcc", "arch", "kernel", "instructions", "loop", "loads", "bytes", "in_flight", "matrix", "convert"]
MATRIX = re.compile(r"^(decode_stream|prefill_mma|observe_sums|observe_columns|tiles_|stream_|row_q)")
LOAD = re.compile(r"^(?:@!?U?P\w+ )?(LDG|LDGSTS|UBLKCP|UTMALDG)\b([\w.]*)\s+(.*)")
WEIGHTS = re.compile(r"^((norm_)?stream_|row_q)")  # these copy weights, which no kernel writes, before they wait
AHEAD = re.compile(r"^decode_stream")  # this one slots that the step does not write, and loads a page's number
COPY = re.compile(r"^(LDGSTS|UBLKCP)\b")
MMA = re.compile(r"^(?:@!?U?P\w+ )?(HMMA|IMMA|QMMA|OMMA|BMMA|HGMMA|IGMMA|QGMMA)\b")
CONVERT = re.compile(r"^(?:@!?U?P\w+ )?(I2F|I2FP|F2I|F2F|F2FP|I2I)\b")
BRANCH = re.compile(r"^(?:@!?U?P\w+ )?BRA\b.*?(0x[0-9a-f]+)\s*$")


def find(tool):
    places = [os.path.join(d, "nvidia", "*", "bin", tool) for d in sys.path]
    return shutil.which(tool) or next((f for p in places for f in glob.glob(p)), None)


def disassemble(module):
    tools = find("cuobjdump"), find("nvdisasm")
    if not all(tools):
        print("no cuobjdump and nvdisasm: machine code is not looked at")
        sys.exit(77)
    env = dict(os.environ, PATH=os.path.dirname(tools[1]) + os.pathsep + os.environ["PATH"])
    done = subprocess.run([tools[0], "-sass", module], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"{module}: {done.stderr.strip()}")
    return done.stdout


def demangle(names):
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    out = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"\((?:int|bool)\)", "", re.sub(r"^(?:void )?", "", s)).split("(")[0] for s in out]


def kernels(text):
    """(architecture, name, [(address, instruction)]) of every function of a dump."""
    arch, out = "", []
    for line in text.splitlines():
        if m := re.match(r"\s*arch = sm_(\d+)", line):
            arch = m.group(1)
        elif m := re.match(r"\s*Function : (\S+)", line):
            out.append((arch, m.group(1), []))
        elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            out[-1][2].append((int(m.group(1), 16), re.sub(r"^\{\s*", "", m.group(2))))
    names = demangle([o[1] for o in out])
    return [(a, n, code) for (a, _, code), n in zip(out, names)]


def load_bytes(text):
    m = LOAD.match(text)
    if not m or m.group(1) in ("UBLKCP", "UTMALDG"):
        return 0
    width = re.search(r"\.(128|64|U8|S8|U16|S16)\b", m.group(2))
    return {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}[width.group(1)] if width else 4


def loops(code):
    """Loops that read global memory and hold no other one that does."""
    at = {a: i for i, (a, _) in enumerate(code)}
    spans = set()
    for i, (_, text) in enumerate(code):
        m = BRANCH.match(text)
        to = at.get(int(m.group(1), 16)) if m else None
        if to is not None and to < i and any(LOAD.match(t) for _, t in code[to:i + 1]):
            spans.add((to, i))
    return [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]


def in_flight(body):
    """The most loads that begin before a register that one of them writes is read."""
    best, flying = 0, []
    for text in body:
        m = LOAD.match(text)
        operands = m.group(3) if m else text
        used = set(re.findall(r"\bR\d+\b", operands.split(",", 1)[1] if m and "," in operands else operands))
        if any(r in used for f in flying for r in f):
            flying = []
        if m and m.group(1) == "LDG":
            first = re.search(r"\bR(\d+)\b", operands.split(",")[0])
            n = max(1, load_bytes(text) // 4)
            flying.append({f"R{int(first.group(1)) + k}" for k in range(n)} if first else set())
        elif m:
            flying.append(set())
        best = max(best, len(flying))
    return best


def heaviest(code):
    bodies = [[t for _, t in code[a:b + 1]] for a, b in loops(code)]
    return max(bodies, key=lambda b: (sum(map(load_bytes, b)), len(b)), default=[])


def row_of(version, arch, name, code):
    texts, body = [t for _, t in code], heaviest(code)
    count = lambda pattern: sum(bool(pattern.match(t)) for t in body)
    return {"nvcc": version, "arch": arch, "kernel": name, "instructions": len(texts), "loop": len(body),
            "loads": count(LOAD), "bytes": sum(map(load_bytes, body)), "in_flight": in_flight(body), "matrix": count(MMA),
            "convert": count(CONVERT)}


def broken_rules(arch, name, code):
    texts = [re.sub(r"^@!?U?P\w+ ", "", t) for _, t in code]
    bad = []
    if any(re.match(r"(@!?U?P\w+ )?(LDL|STL)\b", t) for t in heaviest(code)):
        bad.append("uses local memory in its heaviest loop")
    wait = next((i for i, t in enumerate(texts) if t.startswith("ACQBULK")), None)
    early = [t for t in texts[:wait or 0] if LOAD.match(t)]
    loads = [t for t in early if not COPY.match(t)]
    ahead = AHEAD.match(name)
    if len(loads) > (1 if ahead else 0) or (early and not ahead and not WEIGHTS.match(name)):
        bad.append("reads global memory before it waits for the kernel ahead")
    if MATRIX.match(name) and not any(MMA.match(t) for t in texts):
        bad.append("has no matrix instruction")
    return [f"sm_{arch} {name} {b}" for b in bad]


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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--module", default="build/kernels/cuda/libpipit-cuda.so")
    p.add_argument("--fix", action="store_true", help="write the table's rows of the module's architectures anew")
    p.add_argument("--show", metavar="KERNEL", help="print the heaviest loop of this kernel")
    args = p.parse_args()
    if not os.path.exists(args.module):
        print(f"{args.module} is not there: machine code is not looked at")
        return 77
    version, all_ = nvcc_version(), kernels(disassemble(args.module))
    if args.show:
        for arch, name, code in all_:
            if name == args.show:
                print("\n".join(f"sm_{arch} {t}" for t in heaviest(code)))
        return 0
    got = [row_of(version, *k) for k in all_]
    bad = [b for k in all_ for b in broken_rules(*k)]
    table = []
    if os.path.exists(TABLE):
        with open(TABLE, newline="") as f:
            table = list(csv.DictReader(f))
    archs = {g["arch"] for g in got}
    if args.fix:
        rows = [r for r in table if r["arch"] not in archs] + got
        with open(TABLE, "w", newline="") as f:
            out = csv.DictWriter(f, FIELDS, lineterminator="\n")
            out.writeheader()
            out.writerows(sorted(rows, key=lambda r: (int(r["arch"]), r["kernel"])))
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
