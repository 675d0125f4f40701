#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text that a model writes itself, as a shard for train.py: the teacher's own, or with --overlay the student's.

    sample.py --model BASE.gguf --data DIR --out DIR2 --tokens 3000000 [--overlay FILE --kv WORDS] [--minutes M] [--avoid FILE...]

The first --begin tokens come from the shards of DIR, all others are drawn by pipit from the whole distribution at temperature 1.
DIR2/samples.jsonl grows by a line a text; the same command goes on where it was stopped, and each ends with the shard of what there
is. A text with eight words in a row of a file of --avoid is left out of the shard."""

import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import data
import make_data


def prompt(shards, seed, i, n):
    """The i-th text's first n tokens."""
    rng = random.Random(f"{seed} {i}")
    shard = rng.choices(shards, [len(s) for s in shards])[0]
    at = rng.randrange(len(shard) - n)
    return [int(t) for t in shard[at:at + n]]


def lines(path):
    """Texts so far, by number; a line that was cut off is none."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            found[int(row["custom_id"])] = row
        except (ValueError, KeyError):
            continue
    return found


def about(o, fingerprint):
    """Whose texts these are, and of which data their beginnings, which shard() cuts anew: others do not go on in the same folder."""
    overlay = hashlib.sha256(pathlib.Path(o.overlay).read_bytes()).hexdigest() if o.overlay else None
    return {"model": pathlib.Path(o.model).name, "overlay": overlay, "kv": o.kv, "begin": o.begin, "length": o.length, "seed": o.seed,
            "data": fingerprint}


def asked(o, shards, i, end):
    return {"custom_id": str(i), "tokens": [t for t in prompt(shards, o.seed, i, o.begin) if t != end] or [end], "max_tokens": o.length - o.begin,
            "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": i}


def draw(o, shards, end, path):
    """Asks a daemon of its own until there are texts enough or the time is over."""
    done, total = lines(path), -(-o.tokens // o.length)
    left = [i for i in range(total) if i not in done]
    stop = time.monotonic() + 60 * o.minutes if o.minutes else None
    if not left:
        return
    with tempfile.TemporaryDirectory() as run, open(path, "a") as out:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            out.write("\n")
        daemon = subprocess.Popen([o.build / "daemon/front/pipitd", "--model", o.model, "--ctx", str(o.length + 64), "--sequences", str(o.jobs),
                                   "--threads", str(o.threads), "--kv", o.kv, "--runtime-dir", run, *(["--overlay", o.overlay] if o.overlay else [])])
        pipit = [o.build / "client/pipit"]
        try:
            subprocess.run([*pipit, "wait", "--timeout", "120", "--runtime-dir", run], check=True)
            while left and not (stop and time.monotonic() > stop):
                now, left = left[:o.jobs], left[o.jobs:]
                asks = "".join(json.dumps(asked(o, shards, i, end)) + "\n" for i in now)
                said = subprocess.run([*pipit, "batch", "-j", str(o.jobs), "--runtime-dir", run], input=asks, capture_output=True, text=True)
                rows = [json.loads(line) for line in said.stdout.splitlines()]
                rows = [r for r in rows if r.get("finish_reason") in ("stop", "length")]
                if not rows:
                    sys.exit(f"sample: no answer: {said.stderr or said.stdout}")
                for r in rows:
                    out.write(json.dumps({k: r.get(k) for k in ("custom_id", "text", "finish_reason")}) + "\n")
                out.flush()
        finally:
            daemon.terminate()
            daemon.wait()


def shard(o, shards, tokens, path):
    keep, left_out, n = make_data.Filter(o.avoid), 0, 0
    made = make_data.Shard(o.out, "samples")
    for i, row in sorted(lines(path).items()):
        if keep.overlaps(make_data.words(row["text"] or "")):
            left_out += 1
            continue
        begin = [t for t in prompt(shards, o.seed, i, o.begin) if t != tokens.end]
        made.add(begin + tokens.encode([row["text"] or ""])[0] + [tokens.end])
        n += 1
    made.close(source=f"{n} texts of {'the student' if o.overlay else 'the teacher'}, drawn by pipit at temperature 1", left_out=left_out, repeat=1)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True, type=pathlib.Path)
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--tokens", type=int, required=True, help="of all texts, were each as long as it may be")
    p.add_argument("--overlay")
    p.add_argument("--kv", default="full")
    p.add_argument("--avoid", nargs="*", default=[])
    p.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2] / "build")
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--begin", type=int, default=48)
    p.add_argument("--jobs", type=int, default=8, help="texts at once")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--minutes", type=float, default=0, help="begin no text after")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args(argv)
    o.out.mkdir(parents=True, exist_ok=True)
    texts = data.Shards(o.data, o.begin, 1)
    mine, now = o.out / "about.json", about(o, texts.fingerprint)
    if mine.exists() and json.loads(mine.read_text()) != now:
        raise SystemExit(f"sample: {o.out} has texts of {mine.read_text().strip()}: give another folder")
    mine.write_text(json.dumps(now) + "\n")
    shards = [tokens for tokens, mask, _ in texts.shards if mask is None and len(tokens) > o.begin]
    tokens, path = make_data.Tokens(o.model), o.out / "samples.jsonl"
    draw(o, shards, tokens.end, path)
    shard(o, shards, tokens, path)


if __name__ == "__main__":
    main()
