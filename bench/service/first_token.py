#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a prompt as who asks sees it, in pipit-bench's CSV columns: from the start of a `pipit ask -n 1` to
its end, so the client's process, lane, front, queue, tokenizer and prompt are all in it. Every prompt begins with other words, so
no prefix is known. Beside it stands the time in which llama.cpp reads as many token ids inside one process (llama_speed.py
--first), which leaves all of that out.

usage: first_token.py --model FILE [--tokens 512] [--repeats 5] [--threads N]
PIPIT_BUILD is the build folder."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/e2e"))
from daemon import Daemon  # noqa: E402
from harness import PIPIT, environment  # noqa: E402


def ask(d, text):
    """(ms, tokens of the prompt)"""
    command = [PIPIT, "ask", "--runtime-dir", d.folder, "--raw", "--temp", "0", "-n", "1", "--json", "-"]
    start = time.perf_counter()
    out = subprocess.run(command, input=text, capture_output=True, text=True, check=True, env=environment()).stdout
    took = (time.perf_counter() - start) * 1e3
    return took, json.loads(out.splitlines()[-1])["usage"]["prompt_tokens"]


def prompt(salt, n_words):
    return f"{salt * 7919 % 9973}" + " river" * n_words


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    o = p.parse_args()
    d = Daemon("--model", o.model, "--backend", "cpu", "--threads", str(o.threads), "--ctx", "2048", model=None)
    try:
        d.ready().close()
        words = o.tokens - 8
        words += o.tokens - ask(d, prompt(1, words))[1]
        samples = []
        for i in range(o.repeats):
            took, n = ask(d, prompt(i + 2, words))
            assert abs(n - o.tokens) <= 4, n
            samples.append(took)
    finally:
        d.stop()
    print(f"pipit,f16+full,first,{o.tokens},1,{statistics.median(samples):.1f},{min(samples):.1f},{max(samples):.1f},ms,"
          f"{len(samples)},{len(samples)},,,,,,")


if __name__ == "__main__":
    main()
