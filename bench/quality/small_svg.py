#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes matplotlib's pictures smaller, in place: small_svg.py FILE.svg...

Coordinates get two decimals instead of six, of a list of fonts the first and the last stay, and names that nothing refers to,
groups of one element, what would turn by 0, metadata and indentation go. What is written and what lies below 1 (scales,
opacities) is not touched."""

import re
import sys

FONTS = re.compile(r"(font(?:-family)?: (?:[\d.]+px )?'[^',;\"]+'), (?:'[^',;\"]+', )+sans-serif")


ALONE = re.compile(r"<g>\n((?:<(?:use|path)[^<>]*/>|<text[^<>]*>[^<>]*</text>))\n</g>")


def smaller(text):
    text = FONTS.sub(r"\1, sans-serif", text)
    text = re.sub(r"<metadata>.*?</metadata>\n?", "", text, flags=re.S)
    text = re.sub(r"(?m)^ +", "", text)
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", text)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    while ALONE.search(text):
        text = ALONE.sub(r"\1", text)
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
