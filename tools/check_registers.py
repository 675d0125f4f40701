#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, shared memory, stack and spills of every CUDA kernel against the committed kernels/cuda/registers.csv.

Reads what ptxas -v said when a build folder's module was made (--build), or compiles the sources for it. Fails when a
kernel spills, when one is missing from the table, or when the table has one that is gone; with the nvcc that made the
table also when registers, stack or shared memory differ (other versions of nvcc differ there). --fix writes the table's
rows of the given architectures anew, unless a kernel spills.

Usage: tools/check_registers.py [--build DIR | --arch 80,87,89,90,100 [--jobs N]] [--fix] [FILE.cu]...
Exit code: 0 as in the table, 1 not, 77 no nvcc, or a build without the module.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

import arch_table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "kernels", "cuda")
TABLE = os.path.join(FOLDER, "registers.csv")
FIELDS = ["nvcc", "arch", "file", "kernel", "registers", "shared", "stack", "spill_stores", "spill_loads"]
FLAGS = ["-std=c++20", "-O3", "-lineinfo", "-Werror=all-warnings", "--expt-relaxed-constexpr", '-DPIPIT_VERSION="x"', '-DCUDA_ARCHS="x"', "-DCUDA_LT=1", "-D_GNU_SOURCE",
         "-I", ROOT, "-Xptxas", "-v", "-cubin", "-o", os.devnull]


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


def parse(version, name, log):
    """Rows of all entry functions that a log of ptxas -v tells of, of all architectures."""
    rows = []
    for part in log.split("Compiling entry function '")[1:]:
        symbol, arch = re.match(r"([^']+)' for 'sm_(\d+)a?'", part).groups()
        stack, stores, loads = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                                         part).groups()
        registers = re.search(r"Used (\d+) registers", part).group(1)
        shared = re.search(r"(\d+) bytes smem", part.split("Compiling entry")[0])
        rows.append([symbol, arch, registers, shared.group(1) if shared else "0", stack, stores, loads])
    names = demangle([r[0] for r in rows]) if rows else []
    return [dict(zip(FIELDS, [version, r[1], name, n, *r[2:]])) for n, r in zip(names, rows)]


def compile_one(nvcc, version, arch, name):
    code = arch + "a" * (arch == "90" and "wgmma" in name)  # as kernels/cuda/meson.build has it
    command = [nvcc, *FLAGS, f"-gencode=arch=compute_{code},code=sm_{code}", os.path.join(FOLDER, name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}, sm_{arch}: {done.stderr.strip()[-2000:]}")
    return parse(version, name, done.stderr)


def read_build(version, build, files):
    rows = []
    for name in files:
        log = os.path.join(build, "kernels", "cuda", name[:-3] + ".ptxas")
        if not os.path.exists(log):
            print(f"{log} is not there: the module was not built, registers are not looked at")
            sys.exit(77)
        with open(log) as f:
            rows += parse(version, name, f.read())
    return rows


def compile_all(nvcc, version, archs, files, jobs):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        work = [pool.submit(compile_one, nvcc, version, a, f) for a in archs for f in files]
        return [row for w in work for row in w.result()]


def spills(row):
    return int(row["spill_stores"]) > 0 or int(row["spill_loads"]) > 0


def compare(got, table, files, arch):
    bad = []
    want = {r["kernel"] + r["file"]: r for r in table if r["arch"] == arch and r["file"] in files}
    for g in got:
        what = f"sm_{arch} {g['file']} {g['kernel']}"
        w = want.pop(g["kernel"] + g["file"], None)
        if not w:
            bad.append(f"{what}: not in the table")
            continue
        for field in ["registers", "shared", "stack"]:
            if g["nvcc"] == w["nvcc"] and g[field] != w[field]:
                bad.append(f"{what}: {field} {g[field]}, the table has {w[field]}")
    return bad + [f"sm_{arch} {w['file']} {w['kernel']}: in the table, but gone" for w in want.values()]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", help="a build folder in which the module was made")
    p.add_argument("--arch", default="80,87,89,90,100")
    p.add_argument("--fix", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("files", nargs="*", metavar="FILE.cu")
    args = p.parse_args()
    nvcc, version = find_nvcc()
    files = [os.path.basename(f) for f in args.files] or sorted(f for f in os.listdir(FOLDER) if f.endswith(".cu"))
    if args.build:
        got = read_build(version, args.build, files)
    else:
        got = compile_all(nvcc, version, args.arch.split(","), files, args.jobs)
    table = arch_table.read(TABLE)
    bad = [f"sm_{g['arch']} {g['file']} {g['kernel']} spills: {g['spill_stores']} bytes stored, {g['spill_loads']} loaded"
           for g in got if spills(g)]
    known = {r["arch"] for r in table} | ({g["arch"] for g in got} if args.fix else set())
    for arch in sorted({g["arch"] for g in got}, key=int):
        of_arch = [g for g in got if g["arch"] == arch]
        if args.fix:
            table = [r for r in table if r["arch"] != arch or r["file"] not in files] + of_arch
        elif arch in known:
            bad += compare(of_arch, table, files, arch)
        print(f"sm_{arch}: {len(of_arch)} kernels, {sum(map(spills, of_arch))} of them spill"
              + ("" if arch in known else "; not in the table"))
    if not got:
        bad.append("no kernels were found")
    if args.fix and not bad:
        arch_table.write(TABLE, FIELDS, table)
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
