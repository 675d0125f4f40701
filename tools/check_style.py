#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a script can check: one SPDX line, no `//` comments in C, no file over 1200 lines, headers,
CUDA and prose within 100 columns, no TODO without an issue number, library folders that never print or exit, no
machine paths, links of documents that lead somewhere, a tracked tree under 40 MiB.

tools/style_allow.txt lists what still breaks a limit: `columns FOLDER N` (long lines of a folder in all) and
`lines FILE N`. Its numbers only shrink."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = (".c", ".h", ".cu", ".cuh", ".cc")
SET_BY_HAND = (".h", ".cu", ".cuh", ".cc")  # of the others clang-format knows the columns
COLUMNS = 100
TREE_BYTES = 40 << 20
LIBRARY = ("base/", "quant/", "gguf/", "kernels/", "engine/", "proto/", "client/lib/")
HARD_LINES = 1200


def strip_strings_and_comments(text):
    """Replaces /* */ comments and string and character literals by blanks, keeping line breaks."""
    pattern = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def allowed():
    """{(what, folder or file): number} of style_allow.txt"""
    lines = (ROOT / "tools/style_allow.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {(what, where): int(number) for what, where, number in rows}


def check_columns(long_lines, allow):
    """long_lines: [(name, line number)]. A folder of the list may have so many in all."""
    bad, left = [], {where: n for (what, where), n in allow.items() if what == "columns"}
    for name, i in long_lines:
        folder = max((f for f in left if name.startswith(f)), key=len, default=None)
        if folder is None or left[folder] == 0:
            bad.append(f"{name}:{i}: more than {COLUMNS} columns")
        else:
            left[folder] -= 1
    return bad


def check_links(name, text):
    """Relative links of a document lead to a file of the tree."""
    bare = re.sub(r"```.*?```", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    for i, line in enumerate(bare.splitlines(), 1):
        for link in re.findall(r"\]\(([^)#\s]+)", line):
            if "://" not in link and not ((ROOT / name).parent / link).exists():
                yield f"{name}:{i}: no such file: {link}"


def check_prose(name, text):
    """Prose of documents within COLUMNS; tables, code and what cannot be broken may be longer."""
    bare = re.sub(r"```.*?```|<!-- table.*?<!-- end -->", lambda m: re.sub(r"[^\n]", "", m.group()), text, flags=re.S)
    for i, line in enumerate(bare.splitlines(), 1):
        if len(line) <= COLUMNS or line.startswith(("|", "    ", "!", "#")):
            continue
        whole = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", lambda m: m.group().replace(" ", "_"), line)
        if " " in whole.strip()[2:COLUMNS]:
            yield f"{name}:{i}: prose of more than {COLUMNS} columns"


def main():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True,
                           check=True).stdout.split("\n")
    bad, long_lines, allow = [], [], allowed()
    for name in filter(None, names):
        path = ROOT / name
        suffix = path.suffix
        if path.is_file() and suffix == ".md":
            bad += [*check_links(name, path.read_text()), *check_prose(name, path.read_text())]
        if not path.is_file() or suffix not in CODE + (".py", ".sh", ".build"):
            continue
        text = path.read_text(errors="replace")
        lines = text.splitlines()
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
            bad.append(f"{name}:1: no SPDX line")
        if len(lines) > allow.get(("lines", name), HARD_LINES) and "generated" not in lines[0]:
            bad.append(f"{name}: {len(lines)} lines, more than {HARD_LINES}")
        for i, line in enumerate(lines, 1):
            if re.search(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)", line) and name != "tools/check_style.py":
                bad.append(f"{name}:{i}: TODO without an issue number")
            if re.search(r"(?<![\w.])/(root|work|opt/oracle)/\w", line) and name != "tools/check_style.py":
                bad.append(f"{name}:{i}: a path of one machine")
            if "\t" in line and suffix != ".build":
                bad.append(f"{name}:{i}: a tab")
            if suffix in SET_BY_HAND and len(line) > COLUMNS:
                long_lines.append((name, i))
            if line != line.rstrip():
                bad.append(f"{name}:{i}: white space at the end")
        if suffix in CODE:
            bare = strip_strings_and_comments(text)
            for i, line in enumerate(bare.splitlines(), 1):
                if "//" in line:
                    bad.append(f"{name}:{i}: a // comment")
                if name.startswith(LIBRARY) and name != "base/log.c" and re.search(
                        r"\b(printf|puts|exit|abort|perror)\s*\(|\bfprintf\s*\(\s*std", line):
                    bad.append(f"{name}:{i}: a library folder prints or exits")
                if re.search(r"\bgetenv\s*\(", line) and name not in (
                        "base/log.c", "client/lib/find.c") and not name.endswith("main.c") \
                        and not name.startswith("tests/"):
                    bad.append(f"{name}:{i}: getenv outside main")
    bad += check_columns(long_lines, allow)
    tree = sum(p.stat().st_size for p in map(ROOT.joinpath, filter(None, names)) if p.is_file())
    if tree > TREE_BYTES:
        bad.append(f"the tree is {tree >> 20} MiB, more than {TREE_BYTES >> 20}")
    print("\n".join(bad) if bad else "style holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
