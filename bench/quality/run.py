#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what each cache policy costs in quality, and writes one CSV. One command makes it all:

    bench/quality/run.py --model SmolLM2-135M-Instruct.Q4_1.gguf --data DIR --work DIR --out FILE.csv

With --curve: all policies on one text, on any model, for plot_curve.py.
With --scored: ARC-easy, COPA, OpenBookQA, Winograd and LAMBADA by log-probability after five shots, and larger samples.

DIR of --data has text/ and tasks/ (bench/quality/cells.py names the files). Cells, their sizes and their order are in
cells.py. What pipit-eval said lies under --work, a line a cell (answers: a line a prompt); a cell that is there is not
made again, so the command may be stopped (--minutes, or Ctrl-C) and given again. The CSV is made anew from these
lines each time, also by --collect alone.

Needs rouge-score for the chat and summary tasks (pip install rouge-score)."""

import argparse
import csv
import datetime
import io
import math
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import cells  # noqa: E402
import make_prompts  # noqa: E402
import score  # noqa: E402

FIELDS = ["task", "policy", "metric", "n", "value", "se", "kv_bytes", "kv_share", "tokens_per_step", "mcnemar"]
TEXT_FIELDS = ["policy", "mode", "ctx", "chunks", "rows", "perplexity", "mean_kl", "p99_kl", "same_top1", "kv_bytes",
               "tokens_per_step", "chunk_nll", "chunk_kl", "more_percent", "more_95", "differs", "kl_95"]


# ---- the store: what is there already -----------------------------------------------------------------------------

def raw_files(o, task):
    return sorted(os.path.join(o.work, f) for f in os.listdir(o.work)
                  if f.startswith(task + ".") and f.endswith(".raw"))


def text_rows(o, task, size):
    """{policy: row}; half a last line is dropped. row["full"]: the file's own, since a build later rounds otherwise."""
    ret = {}
    for path in raw_files(o, task):
        with open(path, encoding="utf-8") as f:
            whole = [line for line in f if line.endswith("\n")]
        full = None
        for row in csv.DictReader(whole):
            if int(row["ctx"]) != size["ctx"] or int(row["chunks"]) != size["chunks"]:
                sys.exit(f"run.py: {path} has other sizes than cells.py: take another --work")
            full = row if row["policy"] == "full" else full
            ret.setdefault(row["policy"], {**row, "full": full})
    return ret


def answer_rows(o, task, n_prompts):
    """{policy: [answer]} of policies that have answered every prompt."""
    ret = {}
    for path in raw_files(o, task):
        for a in score.read_lines(path):
            ret.setdefault(a["policy"], {})[a["id"]] = a
    return {p: list(a.values()) for p, a in ret.items() if len(a) == n_prompts}


def prompts_of(o, task, size):
    """The task's prompt file, made once; a file of other sizes is refused."""
    path = os.path.join(o.work, task + ".prompts")
    argv = [os.path.join(o.data, a) if a.startswith(("text/", "tasks/")) else a for a in size["prompts"]]
    text = io.StringIO()
    make_prompts.main(argv, text)
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.getvalue())
    elif open(path, encoding="utf-8").read() != text.getvalue():
        sys.exit(f"run.py: {path} was made with other sizes: take another --work")
    return path


def done(o, task, size):
    if not raw_files(o, task):
        return set()
    if size["kind"] == "text":
        return set(text_rows(o, task, size))
    return set(answer_rows(o, task, len(score.read_lines(prompts_of(o, task, size)))))


def steps_of(o):
    return [(t, o.kv or policies) for t, policies in cells.steps(o.tiny, o.reading, o.scored, o.curve)]


# ---- making cells --------------------------------------------------------------------------------------------------

def command(o, task, size, policies, out):
    c = [o.eval, "--model", o.model, "--ctx", str(size["ctx"]), "--batch", str(size["batch"]),
         "--threads", str(o.threads), "--backend", o.backend, "--out", out]
    if size["kind"] == "text":
        c += ["--mode", size.get("mode", "decode"), "--text", os.path.join(o.data, size["text"])]
        c += ["--chunks", str(size["chunks"])]
    else:
        c += ["--prompts", prompts_of(o, task, size)]
    if o.skew and any(p in cells.FORETOLD for p in policies):
        c += ["--overlay", o.skew]
    if o.overlay:
        c += ["--overlay", o.overlay]
    for p in policies:
        c += ["--kv", p]
    return c


class Runner:
    def __init__(self, o):
        self.o = o
        self.end = time.monotonic() + 60 * o.minutes
        self.lock = threading.Lock()
        self.children = set()
        self.in_flight = set()  # cells that were given to a child
        self.stopped = False
        self.failed = []
        self.ran = False

    def step(self, task, policies):
        o, size = self.o, cells.tasks(self.o.tiny)[task]
        if not o.skew:
            policies = [p for p in policies if p not in cells.FORETOLD]
        with self.lock:
            there = done(o, task, size)
            there.update(p for t, p in self.in_flight if t == task)
            todo = [p for p in dict.fromkeys(["full"] + policies) if p not in there]
            if not todo or self.stopped or time.monotonic() >= self.end:
                return
            if size["kind"] == "text" and "full" not in todo:
                todo.insert(0, "full")  # what the others are compared with
            self.in_flight.update((task, p) for p in todo)
            n = 1
            while os.path.exists(out := os.path.join(o.work, f"{task}.{n}.raw")):
                n += 1
            open(out, "x").close()  # the name is taken
            log = open(os.path.join(o.work, f"{task}.{n}.log"), "wb")
            try:
                child = subprocess.Popen(command(o, task, size, todo, out), stdout=log, stderr=log)
            except OSError as e:
                self.failed.append(task)
                print(f"run.py: {task}: cannot start {o.eval}: {e.strerror}", flush=True)
                return
            self.children.add(child)
            self.ran = True
        print(f"run.py: {task}: {len(todo)} policies", flush=True)
        t0 = time.monotonic()
        try:
            rc = child.wait(timeout=max(0.0, self.end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.stop()
            rc = child.wait()
        self.children.discard(child)
        log.close()
        if rc and not self.stopped:
            self.failed.append(task)
            tail = open(log.name, encoding="utf-8", errors="replace").read().splitlines()[-1:]
            print(f"run.py: {task}: pipit-eval ended with {rc}: {' '.join(tail)}", flush=True)
        print(f"run.py: {task}: {time.monotonic() - t0:.0f} s", flush=True)

    def stop(self, *_):
        self.stopped = True
        for child in list(self.children):
            child.terminate()

    def work(self, steps):
        while True:
            try:
                self.step(*steps.get_nowait())
            except queue.Empty:
                return

    def run(self, only):
        steps = queue.Queue()
        for task, policies in steps_of(self.o):
            if not only or task in only:
                steps.put((task, policies))
        signal.signal(signal.SIGINT, self.stop)
        signal.signal(signal.SIGTERM, self.stop)
        threads = [threading.Thread(target=self.work, args=(steps,)) for _ in range(self.o.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(0.5)


# ---- figures ---------------------------------------------------------------------------------------------------------

def numbers(text):
    return [float(v) for v in text.split()]


def text_figures(task, rows):
    """Errors are over chunks: those of a difference from `full` are of the paired differences, which vary far less than
    the texts do."""
    for policy, r in rows.items():
        full = r["full"]
        nll, ref, kl = numbers(r["chunk_nll"]), numbers(full["chunk_nll"]), numbers(r["chunk_kl"])
        ppl = math.exp(statistics.fmean(nll))
        more, se = score.mean_se([a - b for a, b in zip(nll, ref)])
        _, se_kl = score.mean_se(kl)
        common = {"task": task, "policy": policy, "n": int(r["rows"]), "kv_bytes": int(r["kv_bytes"]),
                  "kv_share": round(int(r["kv_bytes"]) / int(full["kv_bytes"]), 4),
                  "tokens_per_step": float(r["tokens_per_step"])}
        for metric, value, error in (
                ("perplexity", float(r["perplexity"]), None),
                ("perplexity more %", 100 * math.expm1(more), None if se is None else 100 * ppl / math.exp(
                    statistics.fmean(ref)) * se),
                ("mean KL", float(r["mean_kl"]), se_kl),
                ("same top-1 %", 100 * float(r["same_top1"]), None)):
            yield {**common, "metric": metric, "value": round(value, 5), "se": "" if error is None else round(error, 5)}
        if task == "curve":  # its policies are compared with full alone
            yield {**common, "metric": "chunks", "value": len(nll), "se": ""}
            continue
        for i, v in enumerate(nll):
            yield {**common, "metric": f"nll of chunk {i}", "value": v, "se": ""}


def figures(o):
    for task, size in cells.tasks(o.tiny).items():
        if not raw_files(o, task):
            continue
        if size["kind"] == "text":
            rows = text_rows(o, task, size)
            if "full" in rows:
                yield from text_figures(task, rows)
        else:
            prompts = {p["id"]: p for p in score.read_lines(prompts_of(o, task, size))}
            answers = answer_rows(o, task, len(prompts))
            if "full" not in answers:
                continue
            flat = answers.pop("full")
            flat = flat + [a for mine in answers.values() for a in mine]
            for r in score.rows(prompts, flat):
                yield {"task": task, "policy": r["policy"], "metric": r["cell"], "n": r["n"], "value": r["score"],
                       "se": r["se"], "kv_bytes": r["kv_bytes"], "kv_share": r["kv_share"],
                       "tokens_per_step": r["tokens_per_step"], "mcnemar": r["mcnemar"]}


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def commit():
    r = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return r.stdout.strip() or "unknown"


def write_csv(o):
    lines = list(figures(o))
    with open(o.out, "w", newline="", encoding="utf-8") as f:
        f.write(f"# {o.date}, {cpu_name()}, {os.path.basename(o.model)}, commit {o.commit or commit()}\n")
        f.write("# bench/quality/run.py --model MODEL --data DIR --work DIR --out FILE.csv\n")
        w = csv.DictWriter(f, FIELDS, lineterminator="\n")
        w.writeheader()
        w.writerows(lines)
    return len(lines)


def missing(o, only):
    sizes = cells.tasks(o.tiny)
    there = {task: done(o, task, size) for task, size in sizes.items()}
    for task, policies in steps_of(o):
        if not only or task in only:
            yield from ((task, p) for p in policies if p not in there[task])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--data", required=True)
    a.add_argument("--work", required=True, help="what has been measured so far, kept between runs")
    a.add_argument("--out", required=True, help="the CSV")
    a.add_argument("--eval", default="pipit-eval", help="the pipit-eval to use")
    a.add_argument("--backend", default="cpu")
    a.add_argument("--threads", type=int, default=1, help="of each pipit-eval")
    a.add_argument("--jobs", type=int, default=1, help="pipit-evals at once")
    a.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    a.add_argument("--only", action="append", choices=list(cells.tasks(False)), help="this task alone; repeats")
    a.add_argument("--tiny", action="store_true", help="sizes for a test of the tools, not for figures")
    a.add_argument("--reading", action="store_true", help="the methods that read part of the cache, instead")
    a.add_argument("--scored", action="store_true", help="answers by log-probability, and larger samples, instead")
    a.add_argument("--curve", action="store_true", help="all policies on one text, for quality against bytes, instead")
    a.add_argument("--overlay", metavar="FILE", help="for all cells (pipit-calibrate's); take a --work of its own")
    a.add_argument("--kv", action="append", help="this policy instead of those of cells.py; repeats")
    a.add_argument("--skew", metavar="FILE", help="pipit-skew's overlay for the model: without it infinigen is left out")
    a.add_argument("--collect", action="store_true", help="measure nothing, make the CSV")
    a.add_argument("--commit", help="that pipit-eval was built from; else the working tree's")
    a.add_argument("--date", default=datetime.date.today().isoformat())
    o = a.parse_args()
    of = {t for t, _ in cells.steps(o.tiny, o.reading, o.scored, o.curve)}
    if strange := [t for t in o.only or [] if t not in of]:
        a.error(f"--only {strange[0]}: these options choose among {', '.join(sorted(of))}")
    os.makedirs(o.work, exist_ok=True)
    runner = Runner(o)
    if not o.collect:
        runner.run(o.only)
    used = os.times()
    if runner.ran:
        print(f"run.py: {(used.children_user + used.children_system) / 60:.0f} CPU minutes in pipit-eval")
    n = write_csv(o)
    left = list(dict.fromkeys(missing(o, o.only)))
    print(f"run.py: {n} figures in {o.out}; {len(left)} cells missing"
          + "".join(f"\n  {task}  {policy}" for task, policy in left))
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
