#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/distill on the small model of the tree: its teacher and its exported overlays against the C engine (ref), its
8-bit cache against C's, fused.c and tile_*.c against PyTorch, training that must succeed where teacher and student can be
equal, resuming, and what must be refused; the tests are in distill/. Exits 77 without PyTorch or gguf.

usage: test_distill.py PIPIT_EVAL TOK_DUMP [unittest arguments]"""
import pathlib
import sys
import unittest

try:
    import gguf  # noqa: F401
    import torch  # noqa: F401
except ImportError as e:
    print(f"SKIP: {e}: pip install gguf torch", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "distill"))
from engine import AgainstC, AgainstHuggingFace  # noqa: E402, F401
from operations import Operations  # noqa: E402, F401
from whole_layers import WholeLayers  # noqa: E402, F401
from training import Training  # noqa: E402, F401
from full_disk import FullDisk, FullFile  # noqa: E402, F401
from fitting import Fitting  # noqa: E402, F401
from wide_stores import WideStores  # noqa: E402, F401
from run_all_sessions import Sessions  # noqa: E402, F401
from data_and_scores import Curves, Data  # noqa: E402, F401
from looking_back import Courses, LookBack, LookBackRuns, Samples  # noqa: E402, F401
from single_heads import SingleHeads  # noqa: E402, F401
from gpu_loop import GpuLoop  # noqa: E402, F401

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
