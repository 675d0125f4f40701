#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Words of prose of Markdown files, and their sum: without tables, code, comments and pictures.

    tools/count_words.py README.md ARCHITECTURE.md docs/*.md docs/*/*.md"""

import pathlib
import re
import sys


def words(text):
    text = re.sub(r"<!--.*?-->|```.*?```", "", text, flags=re.S)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("|") and not line.startswith(("    ", "!["))]
    return len(" ".join(lines).split())


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    counts = [words(pathlib.Path(name).read_text()) for name in sys.argv[1:]]
    for name, count in zip(sys.argv[1:], counts):
        print(f"{count:6} {name}")
    print(f"{sum(counts):6} in all")


if __name__ == "__main__":
    main()
