#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long tokens of running answers are apart while another's long prompt is read, beside how long they are apart alone; and how
long that prompt takes then and alone.

usage: stall.py --model FILE [--overlay FILE] [--prompt TOKENS] [--running N] [--depth TOKENS] [--kv POLICY] [--threads N]
                [--rounds N] [--json FILE]
Tokens are about 2.5 a word of the synthetic prompts. PIPIT_BUILD is the build folder."""
import argparse
import datetime
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import overhead  # noqa: E402


class Stream:
    """Times at which an answer's text comes."""
    def __init__(self, d, text, n):
        self.times = []
        self.process = overhead.start_ask(d, n, text=text)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while os.read(self.process.stdout.fileno(), 4096):
            self.times.append(time.monotonic())

    def end(self):
        self.thread.join()
        self.process.wait()
        assert self.process.returncode == 0, self.process.returncode


def gaps(times, first, last):
    """ms between tokens, of those that came between two times"""
    inside = [t for t in times if first <= t <= last]
    return [1e3 * (b - a) for a, b in zip(inside, inside[1:])]


def figures(v):
    v = sorted(v)
    return {"n": len(v), "p50": round(statistics.median(v), 2), "p90": round(v[len(v) * 9 // 10], 2),
            "p99": round(v[len(v) * 99 // 100], 2), "worst": round(v[-1], 2)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2", overhead.STORIES))
    p.add_argument("--overlay")
    p.add_argument("--prompt", type=int, default=4000)
    p.add_argument("--running", type=int, default=2)
    p.add_argument("--depth", type=int, default=500)
    p.add_argument("--kv", default="full")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--json")
    args = p.parse_args()
    d = overhead.Daemon("--ctx", str(args.prompt + 400), "--sequences", str(args.running + 1), "--model", args.model, "--kv", args.kv,
                        "--draft", "0", "--threads", str(args.threads), *(["--overlay", args.overlay] if args.overlay else []),
                        model=None)
    d.ready().close()
    alone, beside, prompt_alone, prompt_beside = [], [], [], []
    for i in range(args.rounds):
        words = " ".join(f"{i}{j} birds" for j in range(args.prompt // 6))
        t0 = time.monotonic()
        Stream(d, words, 1).end()
        prompt_alone.append(time.monotonic() - t0)
        running = [Stream(d, " ".join(f"{i}{k}{j} times" for j in range(args.depth // 6)), 3000) for k in range(args.running)]
        while min(len(a.times) for a in running) < 100:
            time.sleep(0.01)
        t0 = time.monotonic()
        b = Stream(d, words[1:], 1)
        b.end()
        t1 = time.monotonic()
        prompt_beside.append(t1 - t0)
        all_running = max(a.times[8] for a in running)
        for a in running:
            assert a.process.poll() is None, "an answer ended before the prompt was read: a shorter --prompt"
            a.process.terminate()
        for a in running:
            a.thread.join()
            a.process.wait()
            alone += gaps(a.times, all_running, t0)
            beside += gaps(a.times, t0 + 0.02, t1 - 0.01)
    d.stop(30)
    ret = {"command": "bench/service/stall.py", "date": str(datetime.date.today()), "model": os.path.basename(args.model),
           "overlay": args.overlay and os.path.basename(args.overlay), "kv": args.kv, "running": args.running, "depth": args.depth,
           "threads": args.threads, "ms_between_tokens_alone": figures(alone), "ms_between_tokens_beside": figures(beside),
           "to_p50_alone": {k: round(v / statistics.median(alone), 2) for k, v in figures(beside).items() if k != "n"},
           "prompt_s_alone": [round(x, 2) for x in prompt_alone], "prompt_s_beside": [round(x, 2) for x in prompt_beside]}
    print(json.dumps(ret, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(ret, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
