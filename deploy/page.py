#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A man page from one of docs/*.md, so that no text is written twice; prints to stdout:

    page.py NAME SECTION SUMMARY VERSION FILE.md SEE-ALSO...

It knows what these pages use: headings, paragraphs, indented code, lists, tables, `code`, **bold**, [links](whose targets go).
A row of a table becomes a tagged paragraph: its first cell; its last one, where that column says what the row means; and the others, each
after its column's name."""
import re
import sys

SAYS = ("keeps", "means", "meaning", "reads")  # columns that need no name
INLINE = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith(".") else text


def inline(text):
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    out = [f"\\fB{roff(part.strip('`*'))}\\fR" if INLINE.fullmatch(part) else roff(part) for part in INLINE.split(text) if part]
    return "".join(out)


def cells(line):
    return [c.strip() for c in line.strip().strip("|").split("|")]


def table(lines):
    names, out = [inline(n) for n in cells(lines[0])], []
    for row in map(cells, lines[2:]):
        row = [inline(c) for c in row]
        text = row.pop() if names[-1] in SAYS else ""
        named = "; ".join(f"{n}: {c}" for n, c in zip(names[1:], row[1:]) if c)
        out += [".TP", row[0], f"{text} [{named}]" if text and named else text or named or "\\&"]
    return out


def block(lines):
    """Of a paragraph, code, list or table: lines without an empty one between."""
    if lines[0].startswith("#"):
        return [".SH " + roff(lines[0].strip("# ").upper())] + (block(lines[1:]) if lines[1:] else [])
    if lines[0].startswith("    "):
        return [".PP", ".nf", *(roff(line[2:]) for line in lines), ".fi"]
    if lines[0].startswith("|"):
        return table(lines)
    if lines[0].startswith("* "):
        items = re.split(r"\n(?=\* )", "\n".join(lines))
        return [w for item in items for w in (".IP \\(bu 2", inline(" ".join(item[2:].split())))]
    return [".PP", inline(" ".join(lines))]


def main(name, section, summary, version, path, *also):
    with open(path, encoding="utf-8") as f:
        title, _, body = f.read().partition("\n\n")
    if not title.startswith("# "):
        sys.exit(f"{path}: no title")
    out = [f'.\\" Generated from docs/{path.rsplit("/", 1)[-1]}.', f'.TH {name.upper()} {section} "" "pipit {version}" "pipit"',
           ".SH NAME", f"{roff(name)} \\- {roff(summary)}", ".SH DESCRIPTION"]
    for text in re.split(r"\n\n+", body.strip("\n")):
        out += block(text.split("\n"))
    out += [".SH SEE ALSO", ", ".join(f"\\fB{roff(n)}\\fR({s})" for n, _, s in (a.partition(".") for a in also))]
    print("\n".join(line for i, line in enumerate(out) if not (line == ".PP" and out[i - 1].startswith(".SH"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
