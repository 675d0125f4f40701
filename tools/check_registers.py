#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, stack and spills of every CUDA kernel against the committed table kernels/cuda/registers.csv.

Compiles the sources for the given architectures as `ptxas -v` reports them. Fails when a kernel spills more bytes than
the table says, when one is missing from it, or when the table has one that is gone. With the nvcc that made the table the
number of registers must be the same, too. --fix writes the table's rows of the given architectures anew.

Usage: tools/check_registers.py [--arch 90[,80...]] [--fix] [--jobs N] [FILE.cu]...
Exit code: 0 as in the table, 1 not, 77 no nvcc.
"""
import argparse
import concurrent.futures
import csv
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "kernels", "cuda")
TABLE = os.path.join(FOLDER, "registers.csv")
FIELDS = ["nvcc", "arch", "file", "kernel", "registers", "stack", "spill_stores", "spill_loads"]
FLAGS = ["-std=c++20", "-O3", "-Werror=all-warnings", "--expt-relaxed-constexpr", '-DPIPIT_VERSION="x"', "-D_GNU_SOURCE", "-I", ROOT,
         "-Xptxas", "-v", "-cubin", "-o", os.devnull]


def find_nvcc():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.access(nvcc, os.X_OK):
        print("no nvcc: registers are not looked at")
        sys.exit(77)
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return nvcc, re.search(r"V(\d+\.\d+\.\d+)", version).group(1)


def demangle(names):
    tool = shutil.which("cu++filt") or shutil.which("c++filt") or "/usr/local/cuda/bin/cu++filt"
    out = subprocess.run([tool] + names, capture_output=True, text=True, check=True).stdout.splitlines()
    # without arguments and return type: stream_q<frag_q4_0, 1, 4>
    return [re.sub(r"\((?:int|bool)\)", "", re.sub(r"^(?:void )?", "", s)).split("(")[0] for s in out]


def measure(nvcc, version, arch, name):
    command = [nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", os.path.join(FOLDER, name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}, sm_{arch}: {done.stderr.strip()[-2000:]}")
    rows = []
    for part in done.stderr.split("Compiling entry function '")[1:]:
        stack, stores, loads = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                         part).groups()
        registers = re.search(r"Used (\d+) registers", part).group(1)
        rows.append([part.split("'")[0], registers, stack, stores, loads])
    names = demangle([r[0] for r in rows]) if rows else []
    return [dict(zip(FIELDS, [version, arch, name, n, *r[1:]])) for n, r in zip(names, rows)]


def read_table():
    if not os.path.exists(TABLE):
        return []
    with open(TABLE, newline="") as f:
        return list(csv.DictReader(f))


def write_table(rows):
    with open(TABLE, "w", newline="") as f:
        out = csv.DictWriter(f, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(sorted(rows, key=lambda r: (int(r["arch"]), r["file"], r["kernel"])))


def compare(got, table, files, arch):
    bad = []
    want = {r["kernel"] + r["file"]: r for r in table if r["arch"] == arch and r["file"] in files}
    for g in got:
        what = f"sm_{arch} {g['file']} {g['kernel']}"
        w = want.pop(g["kernel"] + g["file"], None)
        if not w:
            bad.append(f"{what}: not in the table")
            continue
        for field in ["spill_stores", "spill_loads"]:
            if int(g[field]) > int(w[field]):
                bad.append(f"{what}: {field} {g[field]}, the table has {w[field]}")
        if g["nvcc"] == w["nvcc"] and g["registers"] != w["registers"]:
            bad.append(f"{what}: {g['registers']} registers, the table has {w['registers']}")
    return bad + [f"sm_{arch} {w['file']} {w['kernel']}: in the table, but gone" for w in want.values()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--arch", default="90")
    p.add_argument("--fix", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("files", nargs="*", metavar="FILE.cu")
    args = p.parse_args()
    nvcc, version = find_nvcc()
    files = [os.path.basename(f) for f in args.files] or sorted(f for f in os.listdir(FOLDER) if f.endswith(".cu"))
    archs = args.arch.split(",")
    table = read_table()
    bad = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = {(a, f): pool.submit(measure, nvcc, version, a, f) for a in archs for f in files}
        for arch in archs:
            got = [row for f in files for row in jobs[arch, f].result()]
            if args.fix:
                table = [r for r in table if r["arch"] != arch or r["file"] not in files] + got
            else:
                bad += compare(got, table, files, arch)
            spills = [g for g in got if int(g["spill_stores"]) or int(g["spill_loads"])]
            print(f"sm_{arch}: {len(got)} kernels, {len(spills)} of them spill")
    if args.fix:
        write_table(table)
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
