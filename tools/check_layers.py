#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every #include of the tree against the may-use table of ARCHITECTURE.md, and that each
header compiles alone (in C17; those that .cu files include, in C++17 as well).

The table below is the one in ARCHITECTURE.md, read from there, so that the page cannot lie."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
SYSTEM = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)
SKIP = ("build", ".git")
# Libraries that only these folders may see.
LIBRARIES = {
    "zmq.h": ("daemon/gateway", "bench/service"),
    "protobuf-c/": ("proto/zmq", "daemon/gateway"),
    "systemd/": ("daemon/front",),
    "jansson.h": ("client/cli", "engine/text", "bench/eval"),
    "pcre2.h": ("engine/text",),
    "openssl/": ("gguf", "daemon/front", "daemon/worker", "engine", "tests/fuzz"),
    "cuda": ("kernels/cuda",),
}


def table():
    """Rows `| `folder` | owns | `a` `b` |` of the section "Who may use whom"."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Who may use whom", 1)[1].split("\n## ", 1)[0]
    rows = {}
    for line in section.splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) < 5 or not cells[1].startswith("`"):
            continue
        folder = re.findall(r"`([^`]+)`", cells[1])[0].rstrip("/")
        rows[folder] = [u.rstrip("/") for u in re.findall(r"`([^`]+)`", cells[3])]
    return rows


def longest(rows, path):
    best = [f for f in rows if path == f or path.startswith(f + "/")]
    return max(best, key=len) if best else None


def main():
    rows = table()
    bad = []
    files = [p for ext in ("c", "h", "cu", "cuh") for p in ROOT.rglob("*." + ext)]
    files = [p for p in files if not p.relative_to(ROOT).parts[0].startswith(SKIP)]
    headers = []
    seen_by_cuda = set()
    for path in sorted(files):
        rel = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        owner = longest(rows, rel)
        if owner is None:
            bad.append(f"{rel}: its folder is not in ARCHITECTURE.md's table")
            continue
        for inc in INCLUDE.findall(text):
            if not (ROOT / inc).exists():
                if (path.parent / inc).exists():
                    bad.append(f'{rel}: "{inc}" should be included by its path from the root')
                continue  # generated (protobuf-c)
            target = longest(rows, inc)
            if target is None:
                continue
            may = rows[owner]
            ok = target == owner or "*" in may or any(
                target == m or target.startswith(m + "/") for m in may)
            if not ok:
                bad.append(f"{rel}: {owner} may not use {target} ({inc})")
            if rel.startswith("kernels/cuda"):
                seen_by_cuda.add(inc)
        if not rel.startswith("tests/"):
            for inc in SYSTEM.findall(text):
                for lib, where in LIBRARIES.items():
                    if inc.startswith(lib) and not rel.startswith(where):
                        bad.append(f"{rel}: <{inc}> belongs to {', '.join(where)}")
        if path.suffix == ".h" and not path.name.endswith("_body.h"):
            headers.append(rel)  # a _body.h is compiled once for each instruction set, by its table file
    for rel in headers:
        for lang, std in (("c", "c17"), ("c++", "c++17")):
            if lang == "c++" and rel not in seen_by_cuda:
                continue
            flags = []
            if rel.startswith(("kernels/x86", "tools/distill/tile")):
                flags = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
            if rel.startswith("tools/distill/tile"):
                flags += ["-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mavx512fp16"]
            if rel.startswith("kernels/arm"):
                continue
            r = subprocess.run(
                ["gcc", "-x", lang, f"-std={std}", "-D_GNU_SOURCE", "-Wall", "-Wextra",
                 "-Wno-unused-parameter", "-Werror", *flags, "-I", str(ROOT), "-fsyntax-only", "-"],
                input=f'#include "{rel}"\n', text=True, capture_output=True, check=False)
            if r.returncode and "pb-c.h" not in r.stderr:
                bad.append(f"{rel}: does not compile alone as {lang}:\n{r.stderr.strip()[:600]}")
    print("\n".join(bad) if bad else f"{len(files)} files, {len(headers)} headers: layers hold")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
