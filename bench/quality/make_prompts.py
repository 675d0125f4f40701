#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the prompt files that pipit-eval --prompts answers and bench/quality/score.py scores. Seeded: the same
options give the same file, byte for byte.

    make_prompts.py needle  --text war-and-peace.txt --chars 7000,14000 --cells 8
    make_prompts.py ask     --text war-and-peace.txt --chars 7000 --cases 13 --questions 4 --when before
    make_prompts.py track   --text war-and-peace.txt --chars 3500 --cases 50
    make_prompts.py frequent --chars 2500 --cases 50
    make_prompts.py repeat  --text tinyshakespeare.txt --chars 4000,8000 --cases 16
    make_prompts.py summary --tasks xsum_0shot_300.jsonl --cases 100
    make_prompts.py chat    --tasks mt_bench.jsonl --cases 80
    make_prompts.py choice  --tasks arc_easy.jsonl --cases 200 --shots 5
    make_prompts.py word    --tasks lambada_openai.jsonl --cases 5148 --shots 5

needle   RULER's niah family (single and multi-key with three distractors): a sentence with a seven-digit number is
         put at each of five depths into the text, and asked for. --kinds single leaves the second out.
ask      the same with four numbers in a text and up to four questions, whose answers' beginnings are given, as RULER does: the
         number is scored (found: each of its tokens was the likeliest). --when before: the text alone is the prompt, so that a
         policy has chosen before a question is known (kvpress' protocol), and each question is decoded; after: text and
         question are the prompt, as usual.
track    its variable tracking: one variable gets a number, four others each the one before, in order through the text; all
         that hold the number are asked for.
frequent its frequent words: made-up words whose counts fall with the square of their rank; the first is dots, the three
         after it are asked for.
repeat   "Text Repetition" of the SparQ paper, section 5.1: a context, then the beginning of one of its paragraphs
         again; the model goes on. The repeated passage begins at a paragraph border.
choice   answers to be scored, a line for each: {"query", "choices", "gold"}, or {"context_options", "continuation", "gold"},
         where the continuation is scored behind each context.
word     the last words of texts: {"context", "continuation"}
         Of both, the shots, drawn from the same file, are the prompt, the same for all; what is asked follows as "given".
         With --shots 0 it is the prompt.
"""

import argparse
import json
import random
import sys

DEPTHS = (0, 25, 50, 75, 100)
KEYS = ("harbour lantern orchard velvet granite meadow compass thunder willow saddle beacon copper "
        "marble falcon ribbon cellar anchor pepper bridge candle").split()
NEEDLE = "One of the special magic numbers for {key} is: {number}."
ASK = ("Some special magic numbers are hidden within the following text. Make sure to memorize it. I will "
       "quiz you about the numbers afterwards.\n\n{text}\n\nWhat is the special magic number for {key} "
       "mentioned in the provided text?")


def sentences_cut(text, at):
    """The end of a sentence at or after `at`."""
    for i in range(at, min(len(text) - 1, at + 2000)):
        if text[i] in ".!?" and text[i + 1] in " \n":
            return i + 1
    return at


def needle(o, rng):
    text = open(o.text, encoding="utf-8").read().replace("\r", "")
    for n_chars in o.chars:
        for depth in DEPTHS:
            for cell in range(o.cells):
                start = sentences_cut(text, rng.randrange(len(text) - n_chars - 4000))
                hay = text[start:start + n_chars].strip()
                keys = rng.sample(KEYS, 4 if o.kinds[cell % len(o.kinds)] == "multikey" else 1)
                numbers = [str(rng.randrange(1000000, 10000000)) for _ in keys]
                at = [sentences_cut(hay, len(hay) * depth // 100)]
                at += [sentences_cut(hay, rng.randrange(len(hay))) for _ in keys[1:]]
                for pos, key, number in sorted(zip(at, keys, numbers), reverse=True):
                    hay = hay[:pos] + " " + NEEDLE.format(key=key, number=number) + " " + hay[pos:]
                yield {"id": f"needle-{n_chars}-{depth}-{cell}", "user": ASK.format(text=hay, key=keys[0]),
                       "max_tokens": o.tokens or 24, "answer": numbers[0], "chars": n_chars, "depth": depth,
                       "kind": "multikey" if len(keys) > 1 else "single"}


def ask(o, rng):
    opening, question = ASK.split("{text}")
    with open(o.text, encoding="utf-8") as f:
        text = f.read().replace("\r", "")
    for n_chars in o.chars:
        for case in range(o.cases):
            start = sentences_cut(text, rng.randrange(len(text) - n_chars - 4000))
            hay = text[start:start + n_chars].strip()
            keys = rng.sample(KEYS, 4)
            numbers = [str(rng.randrange(1000000, 10000000)) for _ in keys]
            at = [sentences_cut(hay, rng.randrange(len(hay))) for _ in keys]
            for pos, key, number in sorted(zip(at, keys, numbers), reverse=True):
                hay = hay[:pos] + " " + NEEDLE.format(key=key, number=number) + " " + hay[pos:]
            for k in range(o.questions):
                given = f"{question} The special magic number for {{key}} mentioned in the provided text is".format(key=keys[k])
                prompt = opening + hay + ("" if o.when == "before" else given)
                yield {"id": f"ask-{n_chars}-{case}-{k}", "prompt": prompt, "given": given if o.when == "before" else "",
                       "scored": " " + numbers[k], "chars": n_chars, "depth": 100 * at[k] // len(hay)}


def made_up(rng, n, letters):
    """n different words of five letters."""
    ret = []
    while len(ret) < n:
        w = "".join(rng.choices(letters, k=5))
        ret += [w] if w not in ret else []
    return ret


def track(o, rng):
    with open(o.text, encoding="utf-8") as f:
        text = f.read().replace("\r", "")
    for n_chars in o.chars:
        for case in range(o.cases):
            start = sentences_cut(text, rng.randrange(len(text) - n_chars - 4000))
            hay = text[start:start + n_chars].strip()
            names = made_up(rng, 5, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
            number = str(rng.randrange(10000, 100000))
            ends = [i + 1 for i in range(len(hay) - 1) if hay[i] in ".!?" and hay[i + 1] in " \n"]
            at = sorted(rng.sample(ends, len(names)))
            said = [f" VAR {a} = {b}." for a, b in zip(names, [number] + [f"VAR {a}" for a in names])]
            for pos, line in reversed(list(zip(at, said))):
                hay = hay[:pos] + line + hay[pos:]
            yield {"id": f"track-{n_chars}-{case}", "user": "Variables are set within this text. Keep in mind what each of them "
                   f"holds.\n\n{hay}\n\nName all five variables that hold the value {number}.", "max_tokens": o.tokens or 48,
                   "answers": names, "chars": n_chars}


def frequent(o, rng):
    for n_chars in o.chars:
        for case in range(o.cases):
            names = ["....."] + made_up(rng, 200, "abcdefghijklmnopqrstuvwxyz")
            total = n_chars // 6
            words = [w for k, w in enumerate(names, 1) for _ in range(round(total * 6 / (3.14159 * k) ** 2))]
            rng.shuffle(words)
            yield {"id": f"frequent-{n_chars}-{case}", "user": "This text is in code. Count how often each word of it occurs.\n\n"
                   + " ".join(words) + "\n\nWhich three words occur most often, the dots left out? Name these three only.",
                   "max_tokens": o.tokens or 32, "answers": names[1:4], "chars": n_chars}


def repeat(o, rng):
    text = open(o.text, encoding="utf-8").read().replace("\r", "")
    for n_chars in o.chars:
        for case in range(o.cases):
            at = rng.randrange(len(text) - n_chars - 2000)
            at = text.index("\n\n", at) + 2
            context = text[at:at + n_chars]
            starts = [i + 2 for i in range(len(context) - 800)
                      if context.startswith("\n\n", i) and i < 0.8 * len(context)]
            start = rng.choice(starts)
            shown = context[start:start + 120]
            shown = shown[:shown.rindex(" ")]
            yield {"id": f"repeat-{n_chars}-{case}", "prompt": context + "\n\n" + shown, "max_tokens": o.tokens or 128,
                   "answer": context[start + len(shown):start + len(shown) + 600], "chars": n_chars}


def summary(o, rng):
    lines = [json.loads(line) for line in open(o.tasks, encoding="utf-8")]
    for case, line in enumerate(lines[:o.cases]):
        article = line["article"].replace("###\nArticle:", "").split("\n\nSummarize")[0].strip()
        yield {"id": f"summary-{case}", "user": "Summarize this article in one or two sentences:\n\n" + article,
               "max_tokens": o.tokens or 96, "answer": line.get("summary_gt") or line.get("summary") or ""}


def chat(o, rng):
    for line in list(open(o.tasks, encoding="utf-8"))[:o.cases]:
        q = json.loads(line)
        yield {"id": f"chat-{q['question_id']}", "user": q["turns"][0], "max_tokens": o.tokens or 256, "answer": ""}


def asked(line):
    """A line's question and answer, for each choice."""
    if "choices" in line:
        between = "\nAnswer:" if line["query"].startswith("Question:") else ""
        return [(line["query"] + between, " " + c) for c in line["choices"]]
    return [(c, " " + line["continuation"]) for c in line.get("context_options", [line.get("context")])]


def choice(o, rng):
    with open(o.tasks, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    order = rng.sample(range(len(lines)), len(lines))
    shots = "\n\n".join("".join(asked(lines[i])[lines[i].get("gold", 0)]) for i in order[:o.shots])
    for i in order[o.shots:o.shots + o.cases]:
        for k, (given, scored) in enumerate(asked(lines[i])):
            prompt, given = (shots, "\n\n" + given) if shots else (given, "")
            yield {"id": f"{o.task}-{i}-{k}", "prompt": prompt, "given": given, "scored": scored, "gold": lines[i].get("gold", 0)}


word = choice


def main(argv=None, out=None):
    a = argparse.ArgumentParser()
    a.add_argument("task", choices=("needle", "ask", "track", "frequent", "repeat", "summary", "chat", "choice", "word"))
    a.add_argument("--text")
    a.add_argument("--tasks")
    a.add_argument("--chars", type=lambda s: [int(n) for n in s.split(",")], default=[7000])
    a.add_argument("--cells", type=int, default=8)
    a.add_argument("--kinds", type=lambda s: s.split(","), default=["single", "multikey"], help="of needles, in turns")
    a.add_argument("--cases", type=int, default=16)
    a.add_argument("--shots", type=int, default=5)
    a.add_argument("--questions", type=int, choices=range(1, 5), default=4, help="of ask, about a text")
    a.add_argument("--when", choices=("before", "after"), default="before", help="of ask: the cut, against the question")
    a.add_argument("--tokens", type=int, help="most tokens of an answer")
    a.add_argument("--seed", type=int, default=1)
    o = a.parse_args(argv)
    for row in globals()[o.task](o, random.Random(o.seed)):
        print(json.dumps(row, ensure_ascii=False), file=out or sys.stdout)


if __name__ == "__main__":
    main()
