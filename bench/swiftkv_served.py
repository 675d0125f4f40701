#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an overlay is worth served: `pipitd --overlay` under a policy beside the base model under full f16, two daemons.

    bench/swiftkv_served.py --model FILE [--overlay FILE] [--kv fp8+keyformer:50%] [--data DATA] [--tokens 2048]
                            [--rounds 6] [--answers 10] [--json FILE] [--transcripts FILE.md]

kv        bytes held after a prompt of --tokens, as a part of the base's (the policy's own state apart)
prefill   time of such a prompt, pairs by turns, each another passage: the ratio of each pair (median, least, most), of
          wall time and of the engine's CPU time (on a machine with other work only that with --threads 1 says anything:
          threads that wait for one another spin)
answers   the first questions of MT-Bench, sampled (temperature 0.7, top_p 0.95, a seed each), by both; for each its
          repetition rate (the share of its four-grams of tokens that it has said before) and its perplexity under the teacher,
          by the base's own scores
PIPIT_BUILD is the build folder. Needs cffi."""
import argparse
import ctypes
import datetime
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PIPIT_BUILD", ROOT / "build")).resolve()
os.environ["PIPIT_BUILD"] = str(BUILD)
ctypes.CDLL(str(BUILD / "client/libpipit.so.0"))  # the client finds it by its name
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]
import pipit  # noqa: E402
from daemon import Daemon  # noqa: E402

ASKED = {"kv_share": 0.135, "prefill_ratio": 0.55}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SPECIAL = {"<|im_start|>": 1, "<|im_end|>": 2}  # SmolLM2's
CHAT = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def repetition(ids, n=4):
    grams = [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def perplexity(scores):
    return math.exp(-sum(t.logprob for t in scores) / max(len(scores), 1))


def cpu_s(d):
    """CPU time of all threads of a daemon's engine."""
    total = 0
    pid = d.child("pipit-engine")
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def prefills(o, base, served, daemons):
    """KV bytes of both, and seconds by turns: wall, CPU."""
    words = (o.data / "text/war-and-peace.txt").read_text(errors="replace")
    kv, times, cpu = {}, {"base": [], "served": []}, {"base": [], "served": []}
    for k in range(o.rounds + 1):  # the first warms both
        at = 200000 + 8 * o.tokens * k
        part = base.tokenize(words[at:at + 8 * o.tokens])[:o.tokens]
        both = [("base", base, daemons[0]), ("served", served, daemons[1])]
        for name, c, d in both if k % 2 else both[::-1]:
            t0 = cpu_s(d)
            done = c.generate(part, max_tokens=1, temperature=0, ignore_end=1).done
            assert done.n_prompt == o.tokens and done.n_cached == 0, done
            kv[name] = done.kv_bytes
            if k:
                times[name].append(done.prefill_ns / 1e9)
                cpu[name].append(cpu_s(d) - t0)
    return kv, times, cpu


def ratios(seconds):
    pairs = [s / b for s, b in zip(seconds["served"], seconds["base"])]
    return {"median": round(statistics.median(pairs), 3), "least": round(min(pairs), 3), "most": round(max(pairs), 3)}


def chat(c, ask):
    """Tokens of a question in the template. tokenize() takes "<|im_start|>" for text: that none can write a turn by it."""
    parts = re.split(r"(<\|im_start\|>|<\|im_end\|>)", CHAT.format(SYSTEM, ask))
    return [i for part in parts if part for i in ([SPECIAL[part]] if part in SPECIAL else c.tokenize(part))]


def answers(o, base, served):
    lines = (o.data / "tasks/mt_bench.jsonl").read_text().splitlines()[:o.answers]
    for seed, line in enumerate(lines):
        ask = json.loads(line)["turns"][0]
        prompt = chat(base, ask)
        by_template = base.generate([{"role": "user", "content": ask}], max_tokens=1).done.n_prompt
        assert by_template == len(prompt), f"the model's template makes {by_template} tokens of it, not {len(prompt)}"
        row = {"ask": ask}
        for name, c in (("base", base), ("served", served)):
            a = c.generate(prompt, temperature=0.7, top_p=0.95, seed=seed, max_tokens=o.new)
            said = [t.id for t in a.tokens if t.id >= 0]  # what is left of a character cut short is text without a token
            scored = base.score(prompt + said, first=len(prompt) - 1)
            row[name] = {"text": a.text, "tokens": len(said), "repetition": round(repetition(said), 4),
                         "perplexity": round(perplexity(scored), 2), "reason": a.done.reason}
        print(json.dumps({"answer": seed, **{n: {k: row[n][k] for k in ("tokens", "repetition", "perplexity")}
                                             for n in ("base", "served")}}), flush=True)
        yield row


def transcripts(o, ret, rows):
    out = [f"# Ten answers under {o.kv}, beside the teacher's\n",
           f"`{ret['command']}`, {ret['date']}, {ret['commit']}. Sampled: temperature 0.7, top_p 0.95, seed 0 and on, at most {o.new} "
           "tokens. Nothing was chosen or left out; ends are the answers' own or the limit's.\n"]
    for i, r in enumerate(rows):
        quote = lambda t: "\n".join("> " + line if line else ">" for line in t.strip().splitlines()) or "> (nothing)"
        out.append(f"## {i + 1}\n\n{quote(r['ask'])}\n")
        for name, title in (("base", "The base model, full f16"), ("served", f"{pathlib.Path(o.overlay).stem}, {o.kv}")):
            a = r[name]
            text = a["text"].replace("```", "'''").strip()
            out.append(f"**{title}** ({a['tokens']} tokens, repetition {100 * a['repetition']:.0f} %, perplexity under the base "
                       f"{a['perplexity']:.1f}):\n\n```\n{text}\n```\n")
    o.transcripts.write_text("\n".join(out))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2"))
    p.add_argument("--overlay", default=str(ROOT / "models/smollm2-135m-swiftkv-14-16.gguf"))
    p.add_argument("--kv", default="fp8+keyformer:50%")
    p.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data")
    p.add_argument("--tokens", type=int, default=2048)
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--answers", type=int, default=10)
    p.add_argument("--new", type=int, default=128, help="tokens of an answer at most")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("--transcripts", type=pathlib.Path)
    o = p.parse_args()
    if not o.model:
        sys.exit("swiftkv_served.py: --model FILE, or PIPIT_SMOLLM2")
    common = ["--model", o.model, "--backend", "cpu", "--threads", str(o.threads), "--ctx", str(o.tokens + 64), "--sequences", "1"]
    daemons = [Daemon(*common, "--kv", "full", model=None), Daemon(*common, "--overlay", o.overlay, "--kv", o.kv, model=None)]
    try:
        for d in daemons:
            d.ready().close()
        with pipit.Client(runtime_dir=daemons[0].folder) as base, pipit.Client(runtime_dir=daemons[1].folder) as served:
            kv, times, cpu = prefills(o, base, served, daemons)
            rows = list(answers(o, base, served))
    finally:
        for d in daemons:
            d.stop(30)
    mean = lambda name, key: round(statistics.mean(r[name][key] for r in rows), 4)
    git = lambda *a: subprocess.run(["git", *a], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    ret = {"command": "bench/swiftkv_served.py " + " ".join(f"--{k} {getattr(o, k)}" for k in ("kv", "tokens", "rounds", "answers", "new", "threads")),
           "date": str(datetime.date.today()), "commit": git("rev-parse", "--short", "HEAD"),
           "overlay": os.path.basename(o.overlay), "model": os.path.basename(o.model),
           "kv_bytes": kv, "kv_share": round(kv["served"] / kv["base"], 4),
           "prefill_s": {k: [round(x, 3) for x in v] for k, v in times.items()},
           "prefill_ratio": ratios(times), "prefill_cpu_s": {k: [round(x, 3) for x in v] for k, v in cpu.items()},
           "prefill_cpu_ratio": ratios(cpu),
           "answers": {n: {"repetition": mean(n, "repetition"), "perplexity_geometric": round(
               math.exp(statistics.mean(math.log(r[n]["perplexity"]) for r in rows)), 2), "tokens": mean(n, "tokens")}
               for n in ("base", "served")} if rows else {}}
    ret["asked"] = ASKED
    ret["met"] = {"kv_share": ret["kv_share"] <= ASKED["kv_share"], "prefill_ratio": ret["prefill_ratio"]["median"] <= ASKED["prefill_ratio"]}
    print(json.dumps(ret, indent=1))
    if o.json:
        o.json.write_text(json.dumps(ret | {"each": [{n: {k: v for k, v in r[n].items() if k != "text"} for n in ("base", "served")}
                                                     for r in rows]}, indent=1) + "\n")
    if o.transcripts:
        transcripts(o, ret, rows)


if __name__ == "__main__":
    main()
