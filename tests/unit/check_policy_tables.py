#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the tables of docs/guide/policies.md, from which pipit-policy(7) is made, say what the registry of
policy words says?

    check_policy_tables.py POLICY_DUMP docs/guide/policies.md base/policy_words.h [--fix]

A table is found by its first line. --fix writes the registry's rows into the page. Words of precision and of early
exit have no generated table; each must be named on the page. The words of base/policy_words.h, which --help and
completions list, are the registry's, in its order."""

import re
import subprocess
import sys

TABLES = {  # heading of the section, first line of the table: rows of the dump
    ("## Precision", "| key | words | values | default | meaning |"): "precision options",
    ("## Eviction", "| word | keeps |"): "evict words",
    ("## Options of an evicting word", "| key | words | values | default | meaning |"): "evict options",
    ("## Selection", "| word | reads |"): "select words",
    ("## Selection", "| key | words | values | default | meaning |"): "select options",
}
KEPT = ("| none (default) |",)  # rows that are no word


def main(dump, page, header, *options):
    rows, words = {}, []
    for line in subprocess.run([dump], check=True, capture_output=True, text=True).stdout.splitlines():
        name, row = line.split("\t")
        rows.setdefault(name, []).append(row)
        if name.endswith(" words"):
            words.append(re.match(r"\| `(\w+)", row).group(1))
    with open(page, encoding="utf-8") as f:
        old = f.read().splitlines()
    new, section, i, seen = [], "", 0, set()
    while i < len(old):
        section = old[i] if old[i].startswith("## ") else section
        name = TABLES.get((section, old[i]))
        new.append(old[i])
        i += 1
        if name:
            seen.add(name)
            new.append(old[i])
            i += 1
            while i < len(old) and old[i].startswith("|"):
                if old[i].startswith(KEPT):
                    new.append(old[i])
                i += 1
            new += rows[name]
    bad = [f"{page}: no table of {name}" for name in TABLES.values() if name not in seen]
    with open(header, encoding="utf-8") as f:
        listed = re.findall(r"\w+", re.search(r"#define POLICY_WORDS(.*)", f.read(), re.S).group(1).partition("]")[0])
    if [w for w in listed if w != "or"] != words:
        bad.append(f"{header}: the registry has {', '.join(words)}")
    for name in ("precision words", "exit words"):
        for row in rows[name]:
            word = row.split("`")[1]
            if f"`{word}`" not in "\n".join(old):
                bad.append(f"{page}: does not name {word}")
    if "--fix" in options:
        with open(page, "w", encoding="utf-8") as f:
            f.write("\n".join(new) + "\n")
    elif new != old:
        bad += [f"{page}: not as the registry says: {line}" for line in new if line not in old]
        bad += [f"{page}: not in the registry: {line}" for line in old if line not in new]
        bad += [f"{page}: the order of rows differs; check_policy_tables.py --fix writes them"]
    sys.exit("\n".join(bad) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
