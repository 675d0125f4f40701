#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes matplotlib's pictures smaller, in place: small_svg.py FILE.svg...

Coordinates get two decimals instead of six, and of a list of fonts the first and the last stay. What is written and what lies
below 1 (scales, opacities) is not touched."""

import re
import sys

FONTS = re.compile(r"(font(?:-family)?: (?:[\d.]+px )?'[^',;\"]+'), (?:'[^',;\"]+', )+sans-serif")


def smaller(text):
    text = FONTS.sub(r"\1, sans-serif", text)
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<![\w.])[1-9]\d*\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."),
                                                 tag[0]), text)


def main(paths):
    for path in paths:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(smaller(text))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
