#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The overlays of the plan, each by its settings, on a machine that may forget everything but one folder.

    run_all.py --model BASE.gguf --work DIR --models KEEP [--only c d] [--session-minutes 60] [--avoid TEXTS...]
    run_all.py --models KEEP --status

KEEP is a folder outside the source tree that must outlast the machine: copy it after every session. It holds each overlay
NAME.gguf, its NAME.place.json (stage, step, place in the data, tokens seen in all, the file's SHA-256, the data's fingerprint),
its log NAME.run.jsonl, data.manifest.json, and the prompts and the teacher's answers (prompts.jsonl, answers.jsonl).
DIR has the token shards and each stage's run folder with state.pt. With state.pt a run goes on as if it had not stopped;
without, from the overlay at its place: same data order, same point of the rate's fall, the optimizer's moments anew and a
short warm-up for them. The shards are made again by make_data.py where DIR has none, and must have the
hashes of KEEP/data.manifest.json; where the packages have changed, --new-data begins their first epoch.

A trained file joins models/ in the source tree once: when it replaces the one that is shipped.
Prints what each overlay has seen, and the folder to keep."""

import argparse
import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import checkpoint

HERE = pathlib.Path(__file__).resolve().parent

# Tokens of a stage are its rate's length. d goes on from n's overlay, c's former shape; its first two stages are there to have a head to serve soon.
COMMON = ["--ctx", "512", "--batch", "8", "--micro", "2"]
FULL = [*COMMON, "--stage", "full", "--hidden", "1", "--share", "0.5", "--lr", "4e-4", "--ema", "0.97"]
# What was never seen at a distance is wrong there. At temperature 1: 50 steps of it after 490 at 2 came 2 to 3 % lower in KL than 50 more at 2.
LONG = [*FULL, "--ctx", "2048", "--batch", "2", "--share", "0.25", "--temperature", "1"]
WIDE = [*LONG, "--hidden", "0", "--batch", "4", "--lr", "1e-3", "--ema", "0.95"]
ATTENTION = [*COMMON, "--stage", "attention", "--start", "fit", "--lr", "3e-3", "--min-lr", "0.1"]
ATTENTION_LONG = [*ATTENTION, "--ctx", "2048", "--batch", "2"]
EXIT = [*COMMON, "--stage", "exit", "--start", "fit", "--temperature", "1", "--lr", "1e-3"]
FP8 = ["--cache", "fp8"]
MUON = ["--optimizer", "muon", "--lr", "2e-3", "--ema", "0.99"]
ANSWERS = 4  # passes over the teacher's answers in one epoch
OUTPUTS = ["--outputs", "--quant-outputs"]  # in a smaller type where the file would be over 10 MB
# A stage ends with its rate fallen; the last one is for whoever goes on.
SETTINGS = {
    "a": {"name": "smollm2-135m-swiftkv-15-1", "shape": ["--split", "15", "--group", "1"],
          "stages": [["full", 339968, [*FULL, "--start", "fit", *MUON]], ["full", 409600, LONG], ["full", 20e6, LONG]]},
    "b": {"name": "smollm2-135m-swiftkv-15-4", "shape": ["--split", "15", "--group", "4", *OUTPUTS, "Q5_1"],
          "stages": [["attention", 3e5, ATTENTION_LONG], ["full", 409600, LONG], ["full", 20e6, LONG]]},
    # its second stage was gpu.py's: minutes of a GPU, all positions
    "c": {"name": "smollm2-135m-swiftkv-14-16", "shape": ["--split", "14", "--group", "16", "--wide", "128+256"],
          "stages": [["full", 2162688, [*WIDE, "--start", "fit"]], ["full", 75.5e6, WIDE]]},
    "n": {"name": "smollm2-135m-swiftkv-14-16-narrow", "shape": ["--split", "14", "--group", "16", *OUTPUTS, "Q5_1"],
          "stages": [["attention", 5e5, ATTENTION], ["full", 2170880, FULL], ["full", 4915200, LONG],
                     ["full", 12419072, LONG], ["full", 20e6, LONG]]},
    # with a head beside the output projections, both are made smaller: 9.8 MB
    "d": {"name": "smollm2-135m-swiftkv-14-16-fp8-exit", "from": "n",
          "shape": ["--split", "14", "--group", "16", *OUTPUTS, "Q4_1", "--exit-words", "1023"],
          "stages": [["full", 6e4, [*LONG, *FP8]], ["exit", 4e5, [*EXIT, *FP8]],
                     ["full", 5e6, [*LONG, *FP8]], ["exit", 5e6, [*EXIT, *FP8]]]},
    # trained by train.py alone, whose command docs/design/distillation.md has
    "g": {"name": "smollm2-135m-swiftkv-22-8",
          "shape": ["--split", "22", "--group", "8", "--wide", "128+256", *OUTPUTS, "Q8_0", "--exit-words", "1023"],
          "stages": [["full", 7.6e6, [*WIDE, "--start", "fit"]], ["exit", 8.2e5, EXIT]]},
    "e": {"name": "smollm2-135m-swiftkv-18-12", "shape": ["--split", "18", "--group", "12", *OUTPUTS, "Q8_0"],
          "stages": [["attention", 3e5, ATTENTION_LONG], ["full", 409600, LONG], ["full", 20e6, LONG]]},
}


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def load(path):
    return json.loads(path.read_text()) if path.exists() else None


# ---- data ----------------------------------------------------------------------------------------------------------


def hashes(manifest):
    return {s["name"]: (s.get("sha256"), s.get("repeat", 1)) for s in manifest["shards"]}


def avoided(o):
    """The texts that no paragraph may overlap, as the manifest has them."""
    return sorted(({"name": pathlib.Path(p).name, "sha256": sha256(p)} for p in o.avoid), key=lambda a: a["sha256"])


def check_avoid(o, want):
    """Before minutes are spent on data that cannot be the same."""
    asked = want.get("avoid")
    if asked is None or [a["sha256"] for a in asked] == [a["sha256"] for a in avoided(o)]:
        return
    texts = ", ".join(f"{a['name']} ({a['sha256'][:12]})" for a in asked) or "none"
    raise SystemExit(f"run_all: the overlays were trained on data without the paragraphs of these texts (SHA-256): {texts}. Give --avoid the "
                     "same, and it goes on; with others, or without, --new-data begins an epoch of other data")


def make_data(o):
    """The shards in DIR/data, made where they are not, and what they must be."""
    folder, kept = o.work / "data", o.models / "data.manifest.json"
    if not folder.exists():
        if not o.new_data:
            check_avoid(o, load(kept) or {})
        part = o.work / "data.part"  # begun and not ended, it is made anew
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        run = [sys.executable, str(HERE / "make_data.py")]
        subprocess.run([*run, "text", "--model", o.model, "--out", str(part), "--avoid", *o.avoid], check=True)
        answers = [o.models / f"{n}.jsonl" for n in ("prompts", "answers")]
        if all(a.exists() for a in answers):
            for a in answers:
                shutil.copy(a, part / a.name)
            subprocess.run([*run, "answers", "--model", o.model, "--out", str(part), "--repeat", str(ANSWERS), "--avoid", *o.avoid],
                           check=True)
        made = load(part / "manifest.json")
        if made:
            checkpoint.write_text(part / "manifest.json", json.dumps(made | {"avoid": avoided(o)}, indent=1) + "\n")
        part.rename(folder)
    if not (folder / "manifest.json").exists():
        raise SystemExit(f"run_all: {folder} has no manifest.json: delete the folder, and it is made again")
    manifest = load(folder / "manifest.json")
    for s in manifest["shards"]:
        found = sha256(folder / (s["name"] + ".bin"))
        if s.setdefault("sha256", found) != found:
            raise SystemExit(f"run_all: {folder}/{s['name']}.bin is not what its manifest says (SHA-256 {found}): "
                             "delete the folder, and it is made again")
    text = json.dumps(manifest, indent=1) + "\n"
    if load(folder / "manifest.json") != manifest:
        checkpoint.write_text(folder / "manifest.json", text)
    want = load(kept)
    if want is None or o.new_data:
        checkpoint.write_text(kept, text)
    elif hashes(want) != hashes(manifest):
        a, b = hashes(want), hashes(manifest)
        missing = sorted(a.keys() - b.keys())
        if missing:
            raise SystemExit(f"run_all: {folder} lacks shards of {kept}: {', '.join(missing)}: delete the folder, and it is "
                             "made again; if they cannot be had any more, --new-data goes on without them")
        bad = sorted(n for n in b if a.get(n) != b[n])
        raise SystemExit(f"run_all: these shards are not those of {kept}: {', '.join(bad)}. Packages may have changed: "
                         "--new-data goes on with what there is, from its first epoch")
    return folder


# ---- an overlay ----------------------------------------------------------------------------------------------------


class Overlay:
    def __init__(self, o, key):
        self.o, self.key, self.settings = o, key, o.settings[key]
        name = self.settings["name"]
        self.file, self.place_file = o.models / f"{name}.gguf", o.models / f"{name}.place.json"
        self.log = o.models / f"{name}.run.jsonl"
        self.place = load(self.place_file)
        if self.place and self.file.exists() and sha256(self.file) != self.place["sha256"]:
            raise SystemExit(f"run_all: {self.file} is not the overlay of {self.place_file.name}: "
                             "put back the two that were kept together")

    def seen(self):
        return self.place["tokens"] if self.place else 0

    def stage(self):
        return self.place["stage_index"] if self.place else 0

    def done(self):
        return self.stage() >= len(self.settings["stages"])

    def steps(self, index):
        _, tokens, args = self.settings["stages"][index]
        value = lambda k: int(args[len(args) - args[::-1].index(k)])  # the last one counts
        return max(1, int(tokens) // (value("--ctx") * value("--batch")))

    def start(self):
        """(overlay that the next stage begins with, or None; tokens seen before it)"""
        if self.place:
            return self.file, self.seen()
        if "from" in self.settings:
            other = Overlay(self.o, self.settings["from"])
            if not other.place:
                raise SystemExit(f"run_all: overlay {self.key} goes on from {other.key}, which there is not yet")
            return other.file, other.seen()
        return None, 0

    def run(self, data, session):
        import train
        index = self.stage()
        name, _, args = self.settings["stages"][index]
        folder = self.o.work / self.key / f"{index}-{name}"
        overlay, before = self.start()
        more = ["--resume-from", str(overlay)] if overlay else []
        inside = self.place and self.place["step"] > 0
        if not inside:
            self.begin(folder, sha256(overlay) if overlay else "nothing")
        if inside:
            more += ["--place", str(self.place_file)]
        print(f"run_all: overlay {self.key}, stage {name}: {before} tokens seen in all", flush=True)
        run = train.Run(train.options([
            "--model", self.o.model, "--data", str(data), "--run", str(folder), *self.settings["shape"], *args, *more,
            "--steps", str(self.steps(index)), *session, *self.o.extra]))
        if not inside and run.step == 0:
            run.before = before
        first = run.step
        was = signal.signal(signal.SIGTERM, lambda *_: setattr(run, "asked", True))  # its state is saved, too
        try:
            run.train()
        finally:
            # not between the two files
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.publish(folder, index, run)
            signal.signal(signal.SIGTERM, was)
        return run, run.step > first

    def begin(self, folder, on):
        """What a stage begins on is noted in its folder: what lies there of another beginning is not gone on with."""
        note = folder / "begun-on"
        if (folder / "state.pt").exists() and note.exists() and note.read_text() != on:
            raise SystemExit(f"run_all: {folder} began on another overlay than {self.file} is now: delete the folder")
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(on)

    def publish(self, folder, index, run):
        """From the run's folder into the kept one, what belongs together last by its place."""
        place = load(folder / "place.json")
        # not what another machine has gone beyond, nor two files of which an interrupted export has replaced one
        reached = self.place["step"] if self.place and self.stage() == index else 0
        if place is None or place["step"] < reached or sha256(folder / "overlay.gguf") != place["sha256"]:
            print(f"run_all: nothing of {folder} goes into {self.o.models}: no export that is whole and further", flush=True)
            return
        over = place["step"] >= run.o.steps
        with open(folder / "overlay.gguf", "rb") as new, checkpoint.whole(self.file) as f:
            shutil.copyfileobj(new, f)
        place |= {"stage_index": index + 1 if over else index, "overlay": self.file.name}
        if over:
            place |= {"step": 0, "sequences": 0, "looked": 0, "looked_of": None, "spent": 0.0, "before": place["tokens"]}
        checkpoint.write_text(self.place_file, json.dumps(place, indent=1) + "\n")
        self.place = place
        lines = (folder / "log.jsonl").read_text().splitlines() if (folder / "log.jsonl").exists() else []
        if lines:
            # a stage's name may come again; lines of before the index was written have each name once
            names = [s[0] for s in self.settings["stages"]]
            at = lambda line: (line.get("index", names.index(line["stage"]) if line["stage"] in names else -1), line["step"])
            new = [json.loads(x) | {"index": index} for x in lines]
            old = [json.loads(x) for x in self.log.read_text().splitlines()] if self.log.exists() else []
            old = [x | {"index": at(x)[0]} for x in old if at(x) < at(new[0])]
            checkpoint.write_text(self.log, "".join(json.dumps(x) + "\n" for x in old + new))


def status(o):
    for key in o.only or o.settings:
        x = Overlay(o, key)
        stages = x.settings["stages"]
        at = x.stage()
        where = "not begun" if not x.place else "done" if x.done() else f"{at} of {len(stages)} stages done, " + (
            f"in the next ({stages[at][0]}) step {x.place['step']} of {x.steps(at)}" if x.place["step"] else
            f"the next ({stages[at][0]}, {x.steps(at)} steps) not begun")
        print(f"run_all: {key} ({x.settings['name']}): {where}, {x.seen()} tokens seen in all", flush=True)


def options(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="the base, a GGUF")
    p.add_argument("--work", type=pathlib.Path, help="a folder that may be lost")
    p.add_argument("--models", type=pathlib.Path, help="the folder that outlasts the machine: overlays, places, logs")
    p.add_argument("--only", nargs="+", help="these overlays; else all that are not done, in order")
    p.add_argument("--settings", type=pathlib.Path, help="JSON instead of the table in this file")
    p.add_argument("--avoid", nargs="*", default=[], help="texts that no paragraph of the data may overlap; to go on: those that KEEP/data.manifest.json names")
    p.add_argument("--session-minutes", type=float, default=0, help="stop after; what there is then is kept")
    p.add_argument("--session-steps", type=int, default=0, help="the same in steps of each stage")
    p.add_argument("--session-stages", type=int, default=0, help="the same in stages of each overlay, ended with their rates fallen")
    p.add_argument("--new-data", action="store_true", help="packages have changed: go on with what they hold now")
    p.add_argument("--status", action="store_true", help="only say what was reached")
    o, o.extra = p.parse_known_args(argv)  # the rest goes to train.py: --threads, --device, ...
    o.settings = load(o.settings) if o.settings else SETTINGS
    for key in o.only or []:
        if key not in o.settings:
            p.error(f"--only: {key} is none of {', '.join(o.settings)}")
    if not o.models or not (o.status or (o.model and o.work)):
        p.error("give --models with --model and --work, or with --status")
    return o


def main(argv=None):
    import time
    o = options(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what there is goes into the kept folder
    if o.status:
        return status(o)
    sys.path.insert(0, str(HERE))
    data = make_data(o)
    until = time.monotonic() + 60 * o.session_minutes
    for key in o.only or list(o.settings):
        x, ended = Overlay(o, key), 0
        while not x.done() and not (o.session_stages and ended >= o.session_stages):
            left = (until - time.monotonic()) / 60
            if o.session_minutes and left <= 0:
                break
            session = ["--session-steps", str(o.session_steps)] if o.session_steps else []
            run, went = x.run(data, session + (["--session-minutes", f"{max(left, 0.001):.3f}"] if o.session_minutes else []))
            if run.asked:
                status(o)
                sys.exit(143)
            if run.step < run.o.steps:
                break
            ended += went
    status(o)
    print(f"run_all: keep {o.models}: it has what this session trained", flush=True)


if __name__ == "__main__":
    main()
