#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit ask and pipit chat with a real model: a true answer, and a conversation that is remembered.

PIPIT_BUILD is the build folder; PIPIT_SMOLLM2 names a GGUF of SmolLM2-135M-Instruct."""
import os
import re
import sys
import unittest

MODEL = os.environ.get("PIPIT_SMOLLM2", "")
if not os.path.exists(MODEL):
    print("SKIP: PIPIT_SMOLLM2 names no model (tools/fetch_model.sh fetches it)")
    sys.exit(77)

from harness import CliDaemon


class Chat(unittest.TestCase):
    def test_a_real_model_answers_and_remembers(self):
        d = CliDaemon("--ctx", "1024", "--threads", "2", model=MODEL, backend=os.environ.get("PIPIT_TEST_BACKEND", "auto"))
        self.addCleanup(d.stop)
        rc, out, err = d.cli("ask", "--raw", "The capital of France is", "--temp", "0", "-n", "1", timeout=120)
        self.assertEqual((rc, out, err), (0, b" Paris\n", ""))
        rc, out, err = d.cli("ask", "What is the capital of France?", "--temp", "0", "-n", "12", timeout=120)
        self.assertEqual((rc, err), (0, ""))
        self.assertGreater(len(out), 10)
        rc, out, err = d.cli("chat", "--temp", "0", "-n", "6", "--stats", stdin=b"Hello!\nAnd now?\n", timeout=120)
        self.assertEqual((rc, out.count(b"\n")), (0, 2), err)
        first, second = [int(n) for n in re.findall(r"prompt (\d+) tokens", err)]
        self.assertGreater(second, first + 10)  # the first message and its answer went along


if __name__ == "__main__":
    unittest.main()
