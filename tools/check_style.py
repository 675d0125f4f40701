#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a script can check: one SPDX line, no `//` comments in C, no file over 1200 lines,
no TODO without an issue number, library folders that never print or exit, no machine paths."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = (".c", ".h", ".cu", ".cuh")
LIBRARY = ("base/", "quant/", "gguf/", "kernels/", "engine/", "proto/", "client/lib/")
HARD_LINES = 1200


def strip_strings_and_comments(text):
    """Replaces /* */ comments and string and character literals by blanks, keeping line breaks."""
    pattern = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def main():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True,
                           check=True).stdout.split("\n")
    bad = []
    for name in filter(None, names):
        path = ROOT / name
        suffix = path.suffix
        if not path.is_file() or suffix not in CODE + (".py", ".sh", ".build"):
            continue
        text = path.read_text(errors="replace")
        lines = text.splitlines()
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
            bad.append(f"{name}:1: no SPDX line")
        if len(lines) > HARD_LINES and "generated" not in lines[0]:
            bad.append(f"{name}: {len(lines)} lines, more than {HARD_LINES}")
        for i, line in enumerate(lines, 1):
            if re.search(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)", line) and name != "tools/check_style.py":
                bad.append(f"{name}:{i}: TODO without an issue number")
            if re.search(r"(?<![\w.])/(root|work|opt/oracle)/\w", line) and name != "tools/check_style.py":
                bad.append(f"{name}:{i}: a path of one machine")
            if "\t" in line and suffix != ".build":
                bad.append(f"{name}:{i}: a tab")
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
    print("\n".join(bad) if bad else "style holds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
