#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of kernels by architecture (kernels/cuda/registers.csv, sass.csv): rows that differ in nothing but the
architecture are one row in the file, whose arch names all of them: `80 87 89`."""
import csv
import os


def spread(rows):
    """A row for each architecture."""
    return [dict(row, arch=arch) for row in rows for arch in row["arch"].split()]


def gather(rows, fields):
    """The file's rows, in the order of the fields but for the compiler and the architectures, which come last."""
    archs = {}
    for row in rows:
        key = tuple(str(row[f]) for f in fields if f != "arch")
        archs.setdefault(key, set()).add(row["arch"])
    out = [dict(zip([f for f in fields if f != "arch"], key), arch=" ".join(sorted(of, key=int)))
           for key, of in archs.items()]
    rest = [f for f in fields if f in ("file", "kernel")]
    return sorted(out, key=lambda row: ([row[f] for f in rest], int(row["arch"].split()[0])))


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as f:
        return spread(csv.DictReader(f))


def write(path, fields, rows):
    with open(path, "w", newline="") as f:
        out = csv.DictWriter(f, fields, lineterminator="\n")
        out.writeheader()
        out.writerows(gather(rows, fields))
