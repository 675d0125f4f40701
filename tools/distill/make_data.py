#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Token shards for distillation, without a hub: text of Debian packages (corpus.py), and the teacher's own answers.

    make_data.py text    --model BASE.gguf --out DIR [--avoid FILE...] [--only PACKAGE...]
    make_data.py prompts --model BASE.gguf --out DIR [-n 4000]      prompts to be answered
    pipit batch DIR/prompts.jsonl | jq -c '{custom_id, text, finish_reason}' >DIR/answers.jsonl     by a daemon with BASE
    make_data.py answers --model BASE.gguf --out DIR                their shard, with a mask of the answers' tokens

Paragraphs that were seen are dropped (by hash), and any text that shares an 8-word sequence with a file of --avoid
(the evaluation texts) loses the paragraph. manifest.json says what went in."""

import argparse
import hashlib
import json
import pathlib
import random
import re
import sys

import numpy as np

import corpus

WORD = re.compile(r"[a-z0-9']+")


def words(text):
    return WORD.findall(text.lower())


def ngrams(w, n=8):
    return {hash(" ".join(w[i:i + n])) for i in range(len(w) - n + 1)}


class Filter:
    """Drops repeated paragraphs and those of the evaluation texts; counts what it dropped."""

    def __init__(self, avoid):
        self.seen, self.bad, self.repeated, self.overlapping = set(), set(), 0, 0
        for path in avoid:
            text = pathlib.Path(path).read_text(errors="replace")
            if path.endswith(".jsonl"):
                for line in text.splitlines():
                    self.bad |= ngrams(words(" ".join(str(v) for v in json.loads(line).values())))
            else:
                self.bad |= ngrams(words(text))

    def overlaps(self, w):
        return bool(self.bad) and not self.bad.isdisjoint(ngrams(w))

    def __call__(self, text):
        keep = []
        for p in text.split("\n\n"):
            w = words(p)
            key = hashlib.blake2b(" ".join(w).encode(), digest_size=8).digest()
            if len(w) >= 6 and key in self.seen:
                self.repeated += 1
                continue
            self.seen.add(key)
            if self.overlaps(w):
                self.overlapping += 1
                continue
            keep.append(p)
        return "\n\n".join(keep).strip()


class Tokens:
    """The base's own tokenizer, from its GGUF. Byte-level BPE of the smollm kind."""

    def __init__(self, model):
        import gguf
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
        r = gguf.GGUFReader(model)
        get = lambda k: r.fields["tokenizer.ggml." + k].contents()
        if get("model") != "gpt2" or get("pre") not in ("smollm", "gpt-2"):
            raise SystemExit(f"make_data: tokenizer {get('model')}/{get('pre')} is not supported, gpt2/smollm is")
        vocab = get("tokens")
        if len(vocab) > 65536:
            raise SystemExit("make_data: shards hold 16-bit ids; the vocabulary is larger")
        self.t = Tokenizer(models.BPE({t: i for i, t in enumerate(vocab)}, [tuple(m.split(" ", 1)) for m in get("merges")]))
        byte = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if get("pre") == "smollm" else []
        self.t.pre_tokenizer = pre_tokenizers.Sequence(digits + [byte])
        kinds = get("token_type")
        self.t.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                   for t, k in zip(vocab, kinds) if k == 3])
        self.end = vocab.index("<|endoftext|>")

    def encode(self, texts):
        return [e.ids for e in self.t.encode_batch(texts, add_special_tokens=False)]


class Shard:
    def __init__(self, folder, name, masked=False):
        self.folder, self.name, self.n = folder, name, 0
        self.bin = open(folder / f"{name}.bin.tmp", "wb")
        self.mask = open(folder / f"{name}.mask.tmp", "wb") if masked else None

    def add(self, ids, mask=None):
        self.bin.write(np.asarray(ids, np.uint16).tobytes())
        if self.mask:
            self.mask.write(np.asarray(mask, np.uint8).tobytes())
        self.n += len(ids)

    def close(self, **about):
        self.bin.close()
        (self.folder / f"{self.name}.bin.tmp").rename(self.folder / f"{self.name}.bin")
        if self.mask:
            self.mask.close()
            (self.folder / f"{self.name}.mask.tmp").rename(self.folder / f"{self.name}.mask")
        path = self.folder / "manifest.json"
        manifest = json.loads(path.read_text()) if path.exists() else {"shards": []}
        manifest["shards"] = [s for s in manifest["shards"] if s["name"] != self.name]
        found = hashlib.sha256((self.folder / f"{self.name}.bin").read_bytes()).hexdigest()
        manifest["shards"].append({"name": self.name, "tokens": self.n, "sha256": found, **about})
        path.write_text(json.dumps(manifest, indent=1) + "\n")
        print(f"{self.name}: {self.n} tokens", about, flush=True)


def make_text(a):
    tokens, keep = Tokens(a.model), Filter(a.avoid)
    for package, pattern, reader, cap, repeat, about in corpus.SOURCES:
        if a.only and package not in a.only:
            continue
        root = corpus.fetch(package, a.out)
        if root is None:
            print(f"make_data: {package}: not to be had here, left out", file=sys.stderr)
            continue
        keep.repeated = keep.overlapping = 0
        shard, chars = Shard(a.out, package), 0
        texts = [t for t in map(keep, corpus.documents(root, pattern, reader, cap)) if len(t) >= 40]
        random.Random(0).shuffle(texts)
        for ids, t in zip(tokens.encode(texts), texts):
            shard.add(ids + [tokens.end])
            chars += len(t)
        shard.close(source=f"Debian {package}: {about}", repeat=repeat, characters=chars, paragraphs_repeated=keep.repeated,
                    paragraphs_of_evaluation_texts=keep.overlapping)


ASK = ["Write a short story about {w}.", "Explain {w} to a child.", "What is {w}?", "Write a poem about {w}.",
       "Give me three facts about {w}.", "Tell me how {w} and {x} are related.", "Write a dialogue between a {w} and a {x}.",
       "Why is {w} important?", "List five uses of {w}.", "Write a letter to a friend about {w}.",
       "Describe {w} in two sentences.", "What would happen if there were no {w}?", "Write an email to a colleague about {w}.",
       "Compare {w} and {x}. What are the differences?", "I want to learn about {w}. Where should I start?",
       "Write a short article about {w} with a title.", "What are the advantages and disadvantages of {w}?",
       "Suggest three questions about {w} for a quiz, with answers.", "How do I choose a good {w}?", "Write a joke about {w}.",
       "Plan a day about {w} for a family with children.", "Who uses {w}, and what for?", "Write a scene in which {w} meets {x}.",
       "Give me step-by-step instructions that have to do with {w}.", "Write an advertisement for {w}.",
       "What is the history of {w}?", "Write a sentence with the words {w} and {x}.", "Is {w} a kind of {x}? Explain.",
       "Write a Python function whose name has to do with {w}, and explain it.", "Make a list of words that go with {w}."]
READ = ["Summarize the following text:\n\n{t}", "Rewrite the following text in plain words:\n\n{t}",
        "What is the main point of this text?\n\n{t}", "Continue this text:\n\n{t}", "Ask three questions about this text:\n\n{t}",
        "Give this text a title:\n\n{t}", "{t}\n\nSummarize this in one sentence.", "Repeat this text word for word:\n\n{t}",
        "List the names and numbers in this text:\n\n{t}", "{t}\n\nWho or what is this about?"]
WHO = ["Anna", "Ben", "Clara", "David", "Emma", "Tom", "Lucy", "Peter", "Maria", "James", "Olga", "Ravi", "Mei", "Hassan", "Nina"]


def sum_prompt(rng):
    x, y, z = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 20)
    return rng.choice([f"What is {x} + {y}?", f"What is {x} * {z}?", f"What is {x + y} - {x}?", f"Add {x} and {y}.",
                       f"{rng.choice(WHO)} has {x} apples and buys {y} more, then gives {z} away. How many are left? Think step by step.",
                       f"A box holds {z} pens. How many pens are in {x} boxes?", f"Write the numbers from {z} to {z + 9}.",
                       f"Write a Python function that adds {x} to its argument."])


def find_prompt(rng, nouns):
    """A value that stands once among others."""
    n = rng.randint(4, 14)
    keys = rng.sample(WHO if n <= len(WHO) and rng.random() < 0.5 else sorted(set(rng.sample(nouns, n + 8))), n)
    lines = [f"The number of {k} is {rng.randint(100, 9999)}." for k in keys]
    k = rng.choice(keys)
    return "\n".join(lines) + f"\n\nWhat is the number of {k}?"


def make_prompts(a):
    """A fifth arithmetic, a quarter about a passage of the shards, a tenth to find something, the rest about nouns of
    WordNet. Lines as `pipit batch` reads them, each with a seed of its own."""
    rng = random.Random(a.seed)
    root = corpus.fetch("wordnet-base", a.out)
    counted = [line.split() for line in next(root.glob("**/cntlist.rev")).read_text().splitlines()] if root else []
    nouns = sorted({k.split("%")[0].replace("_", " ") for k, _, n in counted if "%1:" in k and int(n) > 2}) or \
        sorted("water sea bread house music moon horse paper river salt winter garden bridge letter glass wool clock road ship "
               "tree stone lamp bird rice".split())
    keep = Filter(a.avoid)
    passages = []
    for package, pattern, reader, cap, _, _ in corpus.SOURCES:
        root = corpus.fetch(package, a.out)
        for text in corpus.documents(root, pattern, reader, cap // 4) if root else []:
            passages += [p for p in text.split("\n\n") if 200 < len(p) < 1200]
    with open(a.out / "prompts.jsonl", "w") as f:
        for i in range(a.n):
            kind = rng.random()
            if kind < 0.2:
                text = sum_prompt(rng)
            elif kind < 0.45 and passages:
                text = rng.choice(READ).format(t=keep(rng.choice(passages)) or "The sun rises in the east.")
            elif kind < 0.55:
                text = find_prompt(rng, nouns)
            else:
                text = rng.choice(ASK).format(w=rng.choice(nouns), x=rng.choice(nouns))
            f.write(json.dumps({"custom_id": str(i), "prompt": text, "max_tokens": a.max_tokens, "seed": i}) + "\n")


SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # what the model's own template says


def make_answers(a):
    """An answer is taken whole or left out: where there is none, where its prompt has been asked before, and where it has eight
    words in a row of an evaluation text."""
    tokens, keep, seen = Tokens(a.model), Filter(a.avoid), set()
    prompts = {p["custom_id"]: p["prompt"] for p in map(json.loads, open(a.out / "prompts.jsonl"))}
    shard, n, left_out = Shard(a.out, "answers", masked=True), 0, 0
    for r in map(json.loads, open(a.out / "answers.jsonl")):
        prompt, text = prompts[r["custom_id"]], r.get("text") or ""
        if not text or r["finish_reason"] not in ("stop", "length") or prompt in seen or keep.overlaps(words(text)):
            left_out += 1
            continue
        seen.add(prompt)
        q, answer = tokens.encode([f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n",
                                   text + ("<|im_end|>\n" if r["finish_reason"] == "stop" else "")])
        shard.add(q + answer, [0] * len(q) + [1] * len(answer))
        n += 1
    shard.close(source=f"the teacher's answers to {n} prompts, sampled by pipit batch", repeat=a.repeat, left_out=left_out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("text", "prompts", "answers"))
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--avoid", nargs="*", default=[], help="texts and JSON lines that no paragraph may overlap")
    p.add_argument("--only", nargs="*", help="these packages only")
    p.add_argument("-n", type=int, default=4000, help="prompts")
    p.add_argument("--max-tokens", type=int, default=192)
    p.add_argument("--repeat", type=int, default=1, help="passes over the answers in one epoch")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    {"text": make_text, "prompts": make_prompts, "answers": make_answers}[a.what](a)


if __name__ == "__main__":
    main()
