# SPDX-License-Identifier: Apache-2.0
"""libpipit through cffi. The declarations are read from pipit.h itself, so that Python and C cannot disagree about a
struct; installed, the header lies beside this file."""
from __future__ import annotations

import pathlib
import re

import cffi

SONAME = "libpipit.so.0"


def _header() -> str:
    here = pathlib.Path(__file__).resolve().parent
    for path in (here / "pipit.h", here.parent.parent / "pipit.h"):
        if path.exists():
            return path.read_text(encoding="utf-8")
    raise ImportError(f"pipit.h is not beside {__file__}: the package is not whole")


def _declarations(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'#ifdef __cplusplus.*?#endif', "", text, flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    return re.sub(r"\b(PIPIT_API|PIPIT_CHECKED)\b", "", text)


ffi = cffi.FFI()
ffi.cdef(_declarations(_header()))
try:
    lib = ffi.dlopen(SONAME)
except OSError as e:
    raise ImportError(f"{SONAME} (package libpipit0) is not installed (in a build tree: "
                      f"LD_LIBRARY_PATH=build/client): {e}") from e
