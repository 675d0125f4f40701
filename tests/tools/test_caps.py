#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/caps.sh in seconds: every setting is served at every rate, sharing stores makes room, and the median is one.

    test_caps.py BUILD_FOLDER
"""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(SOURCE, "bench", "speed"))
import caps  # noqa: E402


class Caps(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "caps.csv")
            r = subprocess.run([os.path.join(SOURCE, "bench", "caps.sh"), "--quick", "--out", out], capture_output=True, text=True,
                               env={**os.environ, "PIPIT_BUILD": BUILD}, timeout=100)
            self.assertEqual(r.returncode, 0, r.stderr)
            with open(out, encoding="utf-8") as f:
                rows = list(csv.DictReader(line for line in f if not line.startswith("#")))
        self.assertEqual({(r["kv"], r["rate"]) for r in rows}, {(s, rate) for s in caps.SETTINGS for rate in ("0", "50")})
        bytes_of = {r["kv"]: int(r["sequence_bytes"]) for r in rows}
        self.assertLess(bytes_of["FP8"], 0.53 * bytes_of["f16"])
        self.assertLess(bytes_of["AcrossKV 4"], 0.64 * bytes_of["f16"])
        self.assertLess(bytes_of["AcrossKV 4, FP8"], 0.53 * bytes_of["AcrossKV 4"])
        self.assertEqual(bytes_of["merged"], bytes_of["f16"])

    def test_medians(self):
        row = {"cap_mib": "24", "kv": "f16", "rate": "2", "sequences": "3", **dict.fromkeys(caps.FIGURES, "1")}
        table = caps.medians([{**row, "ttft_ms": v} for v in ("5", "100", "7")])
        self.assertEqual(table[24, "f16", 2.0]["ttft_ms"], 7.0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
