#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs outside see of libpipit: pipit.h compiles alone in C99 and C++11 without a warning, each
function it declares is exported under its symbol version, and nothing else is.

usage: check_public.py PIPIT_H LIBPIPIT_MAP LIBPIPIT_SO"""
import re
import shutil
import subprocess
import sys


def main():
    header, version_map, library = sys.argv[1:4]
    with open(header) as f:
        text = f.read()
    bad = []
    for compiler, lang, std in (("cc", "c", "c99"), ("c++", "c++", "c++11")):
        if not shutil.which(compiler):
            print(f"no {compiler}: pipit.h is not tried as {std}")
            continue
        r = subprocess.run([compiler, "-x", lang, f"-std={std}", "-Wall", "-Wextra", "-pedantic", "-Werror",
                            "-fsyntax-only", header], capture_output=True, text=True)
        if r.returncode:
            bad.append(f"as {std}: {r.stderr.strip().splitlines()[0]}")
    declared = set(re.findall(r"^PIPIT_(?:API|CHECKED)\b[^;(]*?\b(pipit_\w+)\(", text, re.M))
    with open(version_map) as f:
        mapped = set(re.findall(r"^\s+(pipit_\w+);", f.read(), re.M))
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {}
    for line in out.splitlines():
        name, _, version = line.split()[-1].partition("@@")
        if line.split()[1] != "A":
            exported[name] = version
    for what, names in (("declared but not in the map", declared - mapped), ("in the map but not declared", mapped - declared),
                        ("declared but not exported", declared - set(exported)),
                        ("exported but not declared", set(exported) - declared),
                        ("without a version", {n for n, v in exported.items() if not v})):
        if names:
            bad.append(f"{what}: {' '.join(sorted(names))}")
    print("\n".join(bad) if bad else f"{len(declared)} functions")
    return 1 if bad or len(declared) < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
