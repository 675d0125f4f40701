#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The inline PTX of kernels/cuda/prim.cuh for the interpreter (interpreter.cc).

    asm.py rewrite ROOT OUTPUT DEPFILE SOURCE COMPILER...   preprocesses SOURCE as a GPU's compiler would, and puts a call
                                                  of ptx_run() in the place of each asm statement; their texts follow
    asm.py nvcc ROOT SOURCE FOLDER COMPILER...    SOURCE by nvcc to .ptx: has it each statement of the source, with
                                                  registers in the place of operands?

rewrite fails when a statement of the sources is not in the result: another file of kernels/cuda has one, or a condition
of prim.cuh hides one. Exit code: 77, there is no nvcc.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

DEFINES = ["-D__CUDACC__", "-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL"]
STRING = r'"(?:\\.|[^"\\\n])*"'


def blank_comments(text):
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def raw_statements(root):
    """(file, line, macro) of each asm statement of kernels/cuda; macro: the one whose definition it is in, or None."""
    found = []
    for path in sorted((root / "kernels/cuda").iterdir()):
        if path.suffix not in (".cu", ".cuh", ".h"):
            continue
        macro, goes_on = None, False
        for i, line in enumerate(blank_comments(path.read_text()).splitlines(), 1):
            if not goes_on:
                define = re.match(r"\s*#\s*define\s+(\w+)", line)
                macro = define.group(1) if define else None
            goes_on = line.endswith("\\")
            if re.search(r"\b(asm|__asm__|__asm)\b", re.sub(STRING, '""', line)):
                found.append((path, i, macro))
    return found


def split(text, at):
    """At the characters of `at` that are in no brackets and no string."""
    parts, depth, start = [], 0, 0
    for token in re.finditer(STRING + r"|[()\[\]{}]|" + re.escape(at), text):
        if token.group() in "([{":
            depth += 1
        elif token.group() in ")]}":
            depth -= 1
        elif token.group() == at and depth == 0:
            parts.append(text[start:token.start()])
            start = token.end()
    return parts + [text[start:]]


def closing(text, at):
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for token in re.finditer(STRING + r"|[()]", text[at:]):
        depth += {"(": 1, ")": -1}.get(token.group(), 0)
        if depth == 0:
            return at + token.end()
    raise ValueError("an asm statement without an end")


def operands(section, call):
    for item in split(section, ","):
        if item.strip():
            constraint, expression = re.fullmatch(rf"\s*({STRING})\s*\((.*)\)\s*", item, re.S).groups()
            yield f"{call}({constraint}, ({expression}))"


def rewrite(text):
    """The text with calls in the place of statements, and [(file, line, PTX)]."""
    out, sites, done = [], [], 0
    name, line, marked = "", 0, 0
    for token in re.finditer(r'^# (\d+) "([^"]*)".*\n|\basm\b', text, re.M):
        if token.start() < done:
            continue
        if token.group(1):
            name, line, marked = token.group(2), int(token.group(1)), token.end()
            continue
        opened = text.index("(", token.end())
        end = closing(text, opened)
        body = re.sub(r"^# .*\n", "", text[opened + 1:end - 1], flags=re.M)
        sections = split(body, ":") + ["", ""]
        ptx = "".join(json.loads(s) for s in re.findall(STRING, sections[0]))
        args = [*operands(sections[1], "ptx_out"), *operands(sections[2], "ptx_in")]
        out += [text[done:token.start()], f"ptx_run({len(sites)}, {{{', '.join(args)}}})"]
        sites.append((name, line + text.count("\n", marked, token.start()), ptx))
        done = end
    return "".join(out) + text[done:], sites


def check_all_there(root, sites):
    """Every statement of the sources is one of the sites, or its macro is used at one."""
    source = root / "kernels/cuda/prim.cuh"
    lines = source.read_text().splitlines()
    there = {line for name, line, _ in sites if pathlib.Path(name).name == source.name}
    bad = []
    for path, line, macro in raw_statements(root):
        used = any(re.search(rf"\b{macro}\(", lines[i - 1]) for i in there) if macro else line in there
        if path != source or not used:
            bad.append(f"{path}:{line}: inline PTX that no test interprets")
    if bad:
        sys.exit("\n".join(bad))


def empty_headers(folder):
    path = pathlib.Path(folder) / "ptx_toolkit"
    path.mkdir(exist_ok=True)
    for name in ("cuda_runtime.h", "cuda_bf16.h", "cuda_fp16.h"):
        if not (path / name).exists():
            (path / name).touch()
    return str(path)


def preprocess(root, source, folder, *command):
    """The source as a GPU's compiler sees it, with toolkit.cuh in the place of CUDA's headers."""
    command = [*command, "-E", *DEFINES, "-I", root, "-I", empty_headers(folder), "-include", f"{root}/tests/cuda/ptx/toolkit.cuh",
               "-x", "c++", "-std=gnu++20", source]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def cmd_rewrite(root, output, depfile, source, *compiler):
    text, sites = rewrite(preprocess(root, source, pathlib.Path(output).parent, *compiler, "-MD", "-MF", depfile, "-MT", output))
    check_all_there(pathlib.Path(root), sites)
    rows = "".join(f"    {{{line}, {json.dumps(ptx)}}},\n" for _, line, ptx in sites)
    pathlib.Path(output).write_text(f"{text}\nextern const struct ptx_site ptx_sites[] = {{\n{rows}}};\n"
                                    f"extern const int ptx_n_sites = {len(sites)};\n")


def normal(text):
    return " ".join(text.replace("{", " { ").replace("}", " } ").replace(",", " , ").replace(";", " ; ").split())


def pattern(ptx):
    """What nvcc writes for a statement: each operand one register, or one number."""
    seen, parts = set(), []
    for part in re.split(r"(%\d+)", normal(ptx)):
        if not re.fullmatch(r"%\d+", part):
            parts.append(re.escape(part))
        else:
            parts.append(f"(?P=r{part[1:]})" if part in seen else rf"(?P<r{part[1:]}>%\w+|-?\d+)")
            seen.add(part)
    return re.compile("".join(parts))


def cmd_nvcc(root, source, folder, *compiler):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not pathlib.Path(nvcc).exists():
        print("no nvcc: the interpreted statements are those of the source alone")
        sys.exit(77)
    compiled = pathlib.Path(folder) / "ptx_side.ptx"
    subprocess.run([nvcc, "-ptx", "-arch=compute_90a", "-rdc=true", "-std=c++20", "-x", "cu", "-I", root, source, "-o", str(compiled)],
                   check=True)
    blocks = {normal(b) for b in re.findall(r"// begin inline asm\n(.*?)// end inline asm", compiled.read_text(), re.S)}
    _, sites = rewrite(preprocess(root, source, folder, *compiler))
    patterns = {ptx: pattern(ptx) for _, _, ptx in sites}
    # blocks has those of the toolkit's headers, too
    bad = [f"nvcc has no such statement: {ptx}" for ptx, p in patterns.items() if not any(p.fullmatch(b) for b in blocks)]
    if bad:
        sys.exit("\n".join(bad))
    print(f"the .ptx of nvcc agrees: {len(patterns)} texts")


if __name__ == "__main__":
    {"rewrite": cmd_rewrite, "nvcc": cmd_nvcc}[sys.argv[1]](*sys.argv[2:])
