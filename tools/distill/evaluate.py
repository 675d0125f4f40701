#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an overlay costs against its teacher, and against the untrained start of the same shape.

    evaluate.py --model BASE.gguf --overlay trained=A.gguf --data DATA --out DIR [--pipit-eval PATH]

By PyTorch, teacher-forced, over all positions: perplexity of both and mean KL(teacher || student) at temperature 1 of
chunks of each text, and accuracy of LAMBADA's last word (all its tokens the most probable). By the C engine, greedy
(--pipit-eval): arithmetic from a seeded generator, numbers retrieved from 7000 characters (2k tokens), and ROUGE of
summaries against the teacher's own. "untrained" is always measured beside: the averaged projections.

What --data lacks is left out, loudly. DIR/scores.json keeps every figure with the sizes of its sample, scores.csv and
scores.md are its tables; --tables makes them again from scores.json alone."""

import argparse
import csv
import datetime
import json
import pathlib
import platform
import random
import subprocess
import sys

import torch

import loss
import model
import ops
import overlay
import wide
import weights
from make_data import Tokens

EXITS = (0.95, 0.9, 0.8, 0.6, 0.4)
QUALITY = pathlib.Path(__file__).resolve().parents[2] / "bench" / "quality"


def students(o, frozen):
    """name -> Student; the untrained one first, of shapes that averaging projections can make (wide stores are fitted)."""
    shapes, out = set(), {}
    for item in o.overlay:
        name, path = item.split("=", 1)
        (split, group, heads, dims, _), student, _ = wide.opened(path, frozen)
        if not dims and (split, group, heads) not in shapes and not o.skip_untrained:
            label = "untrained" if not shapes else f"untrained-{split}-{group}-{heads}"
            out[label] = model.Student(frozen, split, group, heads)
            shapes.add((split, group, heads))
        out[name] = student
    return out


@torch.no_grad()
def text_scores(frozen, models, tokens, ctx, chunks):
    """name -> mean KL, also of each quarter of the chunks, and perplexity over every position; of an early-exit head, exits()."""
    kl, nll, n = {name: [0.0] * 4 for name in models}, dict.fromkeys(["teacher", *models], 0.0), 0
    exit_counts = {name: torch.zeros(len(EXITS), 3) for name, s in models.items() if s.exit_words is not None}
    for c in range(min(chunks, (len(tokens) - 1) // ctx)):
        ids = torch.tensor([tokens[c * ctx:(c + 1) * ctx + 1]])
        goal = ids[0, 1:]
        n += ctx
        teacher = frozen.last_norm(frozen.shallow(ids[:, :-1], frozen.w.n_layers))[0]
        nll["teacher"] += loss.lm(teacher, frozen.head, goal).item() * ctx
        for name, s in models.items():
            x = frozen.shallow(ids[:, :-1], s.split)
            h = frozen.last_norm(s.outcome(x)[0])[0]
            if name in exit_counts:
                exit_counts[name] += exits(s, x[0], h, teacher)
            nll[name] += loss.lm(h, frozen.head, goal).item() * ctx
            for i in range(4):
                part = slice(i * ctx // 4, (i + 1) * ctx // 4)
                kl[name][i] += loss.head_kl(h[part], teacher[part], frozen.head, 1.0).item() * (part.stop - part.start)
    ppl = {name: float(torch.tensor(v / n).exp()) for name, v in nll.items()}
    share = lambda c: {"exit": c[0] / n, "as_full": c[1] / max(c[0], 1), "as_teacher": c[2] / max(c[0], 1)}
    out = {"ctx": ctx, "positions": n, "perplexity": ppl, "kl": {name: sum(v) / n for name, v in kl.items()},
           "kl_by_quarter": {name: [4 * x / n for x in v] for name, v in kl.items()}}
    if exit_counts:
        out["exits"] = {name: {str(p): share(c) for p, c in zip(EXITS, counts.tolist())} for name, counts in exit_counts.items()}
    return out


def exits(student, split_state, last, teacher):
    """For each of EXITS, of the positions of (n, d) states: how many an early-exit head is that sure of, by one of its words; how
    many of these words are the full depth's likeliest (`last`, normed), and the teacher's."""
    head = student.frozen.head
    sure, at = torch.softmax(student.exit_logits(split_state).float(), -1)[:, :len(student.exit_words)].max(-1)
    word = student.exit_words[at]
    right = [word == torch.cat([(part @ head.t()).argmax(-1) for part in h.split(256)]) for h in (last, teacher)]
    return torch.tensor([[(sure > p).sum(), *(((sure > p) & r).sum() for r in right)] for p in EXITS], dtype=torch.float32)


@torch.no_grad()
def lambada(frozen, models, encode, path, cases):
    """Share of last words whose every token is the most probable one, and agreement with the teacher's hits."""
    hits = {name: [] for name in ["teacher", *models]}
    for line in open(path).read().splitlines()[:cases]:
        item = json.loads(line)
        start, word = encode([item["context"], " " + item["continuation"].strip()])
        ids = torch.tensor([start + word])
        at = slice(len(start) - 1, len(start) + len(word) - 1)
        for name in hits:
            s = models.get(name)
            if s is None:
                h = frozen.shallow(ids, frozen.w.n_layers)
            else:
                h = s.outcome(frozen.shallow(ids, s.split))[0]
            best = frozen.logits(h[:, at])[0].argmax(-1)
            hits[name].append(bool((best == ids[0, len(start):]).all()))
    share = {name: sum(v) / len(v) for name, v in hits.items()}
    return {"cases": len(hits["teacher"]), "accuracy": share,
            "of_teacher": {n: share[n] / max(share["teacher"], 1e-9) for n in models}}


def arithmetic(path, cases, seed=11):
    """One-step sums that a small model can do: the figure is how many survive, not how many a large model gets."""
    rng = random.Random(seed)
    with open(path, "w") as f:
        for i in range(cases):
            a, b, c = rng.randint(2, 40), rng.randint(2, 40), rng.randint(2, 9)
            kind = i % 3
            ask, answer = ((f"What is {a} + {b}?", a + b), (f"What is {a + b} - {b}?", a), (f"What is {a} * {c}?", a * c))[kind]
            f.write(json.dumps({"id": f"sum-{i}", "user": ask, "max_tokens": 48, "answer": str(answer)}) + "\n")


def generated(o, name, path, prompts, ctx):
    """The C engine's greedy answers under an overlay (None: the base), id -> text. An earlier run's teacher and
    untrained start are taken from --out, if they are of this model and shape and answered the same prompts."""
    of = weights.sha256(o.model)[:12]
    if path:
        split, group, _ = overlay.shape(path)
        of += f"-{split}-{group}".replace(" ", "")
    out = o.out / f"{prompts.stem}-{name}-{of}.jsonl"
    ids = [json.loads(line)["id"] for line in open(prompts)]
    if (name == "teacher" or name.startswith("untrained")) and out.exists():
        old = {r["id"]: r["text"] for r in map(json.loads, open(out))}
        if list(old) == ids:
            return old
    args = [o.pipit_eval, "-m", o.model, "--prompts", str(prompts), "-c", str(ctx), "--batch", "8", "-o", str(out)]
    subprocess.run(args + (["--overlay", str(path)] if path else []), check=True, stderr=subprocess.DEVNULL)
    return {r["id"]: r["text"] for r in map(json.loads, open(out))}


LABELS = {"lambada": ("LAMBADA, last word", "accuracy"), "arithmetic": ("sums of two numbers", None),
          "retrieval": ("numbers found in 7000 characters (2k tokens)", None),
          "summary": ("summaries, F of word pairs against the teacher's", None)}


def rows(scores):
    """[measure, size of its sample, model -> figure] of what was measured; the teacher's own distance is 0, its likeness 1."""
    out = []
    for name, s in scores.items():
        if "perplexity" in s:
            out.append([f"{name}: perplexity", s["positions"], s["perplexity"]])
            out.append([f"{name}: KL from the teacher, nats", s["positions"], {"teacher": 0, **s["kl"]}])
            for p in EXITS if "exits" in s else ():
                for key, label in (("exit", "tokens that exit"), ("as_full", "these agree with the full depth"),
                                   ("as_teacher", "these agree with the teacher")):
                    out.append([f"{name}, exit:{p}: {label}", s["positions"], {m: e[str(p)][key] for m, e in s["exits"].items()}])
        elif name in LABELS:
            label, key = LABELS[name]
            found = s[key] if key else {k: v for k, v in s.items() if k != "cases"}
            out.append([label, s["cases"], {"teacher": 1, **found} if name == "summary" else found])
    return out


def write_tables(folder, scores):
    table = rows(scores)
    models = sorted({m for _, _, found in table for m in found}, key=lambda m: (m != "teacher", not m.startswith("untrained"), m))
    with open(folder / "scores.csv", "w", newline="") as f:
        if "made" in scores:
            made = scores["made"]
            f.write(f"# {made['date']}, {made['machine']}, commit {made['commit']}\n# {made['command']}\n")
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["measure", "sample", "model", "value"])
        out.writerows([label, n, m, round(found[m], 5)] for label, n, found in table for m in models if m in found)

    def shown(label, v):
        if v in (0, 1) and ("KL" in label or "F of" in label):
            return str(v) if isinstance(v, int) else f"{v:.3f}"
        return f"{v:,.1f}" if "perplexity" in label else f"{v:.2f}" if "KL" in label else f"{v:.3f}" if "F of" in label else f"{100 * v:.1f}%"
    lines = ["| measure | sample | " + " | ".join(models) + " |", "|---" * (len(models) + 2) + "|"]
    for label, n, found in table:
        lines.append(f"| {label} | {n} | " + " | ".join(shown(label, found[m]) if m in found else "" for m in models) + " |")
    if "made" in scores:
        lines += ["", f"`{scores['made']['command']}`, {scores['made']['date']}, {scores['made']['machine']}, commit {scores['made']['commit']}"]
    (folder / "scores.md").write_text("\n".join(lines) + "\n")


def there(path, what):
    if not path.exists():
        print(f"evaluate: {what} is LEFT OUT: there is no {path}", file=sys.stderr, flush=True)
    return path.exists()


def about():
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=QUALITY, capture_output=True, text=True).stdout.strip()
    names = [x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")] \
        if pathlib.Path("/proc/cpuinfo").exists() else [platform.processor()]
    return {"command": "evaluate.py " + " ".join(a if "/" not in a else ("=".join(filter(None, [a.partition("=")[0] if "=" in a else "",
            pathlib.Path(a).name]))) for a in sys.argv[1:]), "date": str(datetime.date.today()),
            "machine": f"{names[0]}, {len(names)} CPUs", "commit": git}


def tasks(o, overlays):
    made = lambda *args: [json.loads(x) for x in subprocess.run(
        [sys.executable, str(QUALITY / "make_prompts.py"), *args], check=True, capture_output=True, text=True).stdout.splitlines()]
    files = {"arithmetic": o.out / "arithmetic.jsonl"}
    arithmetic(files["arithmetic"], o.sums)
    book, articles = o.data / "text/war-and-peace.txt", o.data / "tasks/xsum_0shot_300.jsonl"
    for name, source, args in (("retrieval", book, ("needle", "--text", str(book), "--cells", str(o.needles))),
                               ("summary", articles, ("summary", "--tasks", str(articles), "--cases", str(o.summaries)))):
        if there(source, name):
            files[name] = o.out / f"{name}.jsonl"
            files[name].write_text("".join(json.dumps(r) + "\n" for r in made(*args)))
    out = {}
    for task, path in files.items():
        want = {p["id"]: p.get("answer", "") for p in map(json.loads, open(path))}
        texts = {n: generated(o, n, p, path, 4096 if task != "arithmetic" else 256) for n, p in overlays.items()}
        if task == "summary":
            out[task] = {n: rouge2(texts["teacher"], t) for n, t in texts.items() if n != "teacher"}
        else:
            out[task] = {n: sum(want[i] in t.replace(",", "") for i, t in ts.items()) / len(ts) for n, ts in texts.items()}
        out[task]["cases"] = len(want)
    return out


def rouge2(teacher, mine):
    """Mean F of word pairs, the teacher's answer being the reference."""
    def pairs(text):
        w = text.lower().split()
        return [tuple(w[i:i + 2]) for i in range(len(w) - 1)]
    total = 0.0
    for i, t in teacher.items():
        a, b = pairs(t), pairs(mine[i])
        left, both = list(a), 0
        for p in b:
            if p in left:
                left.remove(p)
                both += 1
        total += 2 * both / max(len(a) + len(b), 1)
    return total / len(teacher)


def seen(overlays):
    """name -> tokens that it was trained on, where the file says so."""
    key, out = "pipit.distill.tokens", {}
    for name, path in (i.split("=", 1) for i in overlays):
        fields = overlay.shape(path)[2].fields
        if key in fields:
            out[name] = int(fields[key].contents())
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model")
    p.add_argument("--overlay", nargs="+", metavar="NAME=FILE")
    p.add_argument("--data", type=pathlib.Path, help="folder with text/ and tasks/")
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--pipit-eval", help="also the tasks that generate")
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--chunks", type=int, default=4, help="of each text; 0: none")
    p.add_argument("--lambada", type=int, default=300, help="cases; 0: none")
    p.add_argument("--sums", type=int, default=60)
    p.add_argument("--needles", type=int, default=2, help="for each of five depths")
    p.add_argument("--summaries", type=int, default=8)
    p.add_argument("--skip-untrained", action="store_true", help="when its figures are known")
    p.add_argument("--dtype", choices=("bf16", "f32"), default="f32")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--tables", action="store_true", help="only make the tables of --out's scores.json again")
    o = p.parse_args()
    if o.tables:
        return write_tables(o.out, json.loads((o.out / "scores.json").read_text()))
    if not (o.model and o.overlay and o.data):
        p.error("give --model, --overlay and --data, or --tables")
    if o.threads:
        torch.set_num_threads(o.threads)
    o.out.mkdir(parents=True, exist_ok=True)
    ops.use("auto")
    frozen = model.Frozen(weights.read(o.model), torch.device("cpu"), torch.bfloat16 if o.dtype == "bf16" else torch.float32)
    models, tokens, scores = students(o, frozen), Tokens(o.model), {}
    for text in ("tinyshakespeare", "war-and-peace") if o.chunks else ():
        if not there(o.data / f"text/{text}.txt", text):
            continue
        raw = (o.data / f"text/{text}.txt").read_text(errors="replace")[:o.ctx * o.chunks * 8]
        scores[text] = text_scores(frozen, models, tokens.encode([raw])[0], o.ctx, o.chunks)
        print(json.dumps({text: scores[text]}), flush=True)
    if o.lambada and there(o.data / "tasks/lambada_openai.jsonl", "LAMBADA"):
        scores["lambada"] = lambada(frozen, models, tokens.encode, o.data / "tasks/lambada_openai.jsonl", o.lambada)
        print(json.dumps({"lambada": scores["lambada"]}), flush=True)
    if o.pipit_eval:
        overlays = {"teacher": None}
        for item, name in zip(o.overlay, (i.split("=", 1)[0] for i in o.overlay)):
            overlays[name] = item.split("=", 1)[1]
        for name in models:
            if name not in overlays:
                overlays[name] = o.out / f"{name}.gguf"
                overlay.write(str(overlays[name]), models[name])
        scores.update(tasks(o, overlays))
    scores["tokens"], scores["made"] = seen(o.overlay), about()
    (o.out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n")
    write_tables(o.out, scores)
    print((o.out / "scores.md").read_text())


if __name__ == "__main__":
    main()
