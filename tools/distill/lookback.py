#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts that look back: what stands early in a document is looked up, copied or continued 200 to 1,900 tokens later, among text of
the shards of make_data.py.

    lookback.py --model BASE.gguf --data DIR --out DIR2 [--tokens 1300000] [--avoid FILE...] [--forms numbers notice] [--length 512]
    train.py ... --look-back DIR2

Forms: guests of a register, words of a glossary, pairs of a list, a notice once more, an order that goes on, constants of a program,
numbers of five to nine digits that sentences in the text say of somebody, alone or among others; none is one of bench/quality's
(a number hidden in prose and asked for; a paragraph that is begun again). Names and words are made from syllables. A document has
LENGTH tokens, so that a context of as many is one document; the mask has the answers. The same options give the same bytes."""

import argparse
import pathlib
import random

import numpy as np

import data
import make_data

LENGTH, LEAST, MOST = 2048, 200, 1900
PARTS = "ba ren tol mi sa dor vik lun pe gar hol ti na mur es kal ro wen ash bel cor dun fen gil har is jor kel lor mon".split()
ENDS = "th n r s l m dar vin sel nor ra by ley ton mere".split()


class Words:
    """Made names and words, none twice in a document."""

    def __init__(self, rng):
        self.rng, self.used = rng, set()

    def word(self):
        while True:
            w = "".join(self.rng.sample(PARTS, self.rng.randint(1, 2))) + self.rng.choice(ENDS)
            if w not in self.used:
                self.used.add(w)
                return w

    def name(self):
        return self.word().capitalize()

    def of(self, listed):
        """One of these words, or a made one when all are used."""
        left = [w for w in listed if w not in self.used]
        word = self.rng.choice(left) if left else self.word()
        self.used.add(word)
        return word


# Each: (what stands first, [(how it is asked for, the answer), ...])

def register(rng, words, _):
    rooms = rng.sample(range(1, 60), rng.randint(4, 9))
    guests = {r: f"{words.name()} {words.name()} of {words.name()}" for r in rooms}
    first = "Guests of the house\n" + "".join(f"  room {r}: {g}\n" for r, g in guests.items())
    asked = rng.sample(rooms, rng.randint(1, 2))
    return first, [(f"In room {r} of that house slept", f" {guests[r]}.\n") for r in asked]


def glossary(rng, words, _):
    terms = {"".join(rng.sample("BCDFGHJKLMNPQRSTVWXZ", 3)): f"{words.word()} {words.word()} {words.word()}" for _ in range(rng.randint(3, 6))}
    first = "Abbreviations. " + " ".join(f"{t} is short for {w}." for t, w in terms.items()) + "\n"
    return first, [(f"By {t} we mean", f" {terms[t]}.\n") for t in rng.sample(sorted(terms), rng.randint(1, 2))]


def pairs(rng, words, _):
    said = {words.word(): words.word() for _ in range(rng.randint(6, 12))}
    first = "word list\n" + "".join(f"{a} = {b}\n" for a, b in said.items())
    return first, [(f"{a} =", f" {said[a]}\n") for a in rng.sample(sorted(said), rng.randint(3, 5))]


def notice(rng, words, slice_of):
    label = f"Notice {rng.randint(2, 99)} from {words.name()}"
    text = slice_of(rng.randint(24, 70))
    return [f"{label}:", text, "\n"], [(f"{label}, once more:", text)]


def order(rng, words, _):
    names = [words.name() for _ in range(rng.randint(7, 14))]
    start = rng.randint(2, len(names) - 4)
    first = f"They came from {words.name()} one by one: " + ", ".join(names) + ".\n"
    return first, [(f"As was said: after {names[start - 1]} came {names[start]},", " " + ", ".join(names[start + 1:]) + ".\n")]


def constants(rng, words, _):
    values = {f"{words.word()}_{rng.choice(('limit', 'size', 'code', 'port'))}".upper(): rng.randint(100, 99999) for _ in range(rng.randint(3, 7))}
    first = "```python\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) + "```\n"
    asked = rng.sample(sorted(values), rng.randint(1, 3))
    return first, [("```python\n" + f"assert {k} ==", f" {values[k]}\n") for k in asked[:1]] + \
        [(f"assert {k} ==", f" {values[k]}\n") for k in asked[1:]]


SAID = [("{name} has ticket {n}.", "{name} shows the ticket", " {n}.\n"), ("Whoever wants {name} calls {n}.", "He called {name} at", " {n}.\n"),
        ("In the ledger {name} stands under {n}.", "So the clerk looked up {name}, which is", " {n}.\n"),
        ("The crate for {name} weighs {n} grains.", "{name} paid by weight, for grains", " {n}.\n"),
        ("{name}, born in the parish, was given the mark {n}.",
         "<|im_end|>\n<|im_start|>user\nWhich mark was given to {name}?<|im_end|>\n<|im_start|>assistant\nThe mark of {name} is", " {n}."),
        ("Postcode of {name}: {n}.",
         "<|im_end|>\n<|im_start|>user\nI need the postcode of {name}.<|im_end|>\n<|im_start|>assistant\n", "The postcode of {name} is {n}."),
        ("The drawer marked {name} opens by {n}, they say.",
         "<|im_end|>\n<|im_start|>user\nBy which number does the drawer marked {name} open?<|im_end|>\n<|im_start|>assistant\n",
         "The drawer marked {name} opens by {n}."),
        ("On the lid of the {name} box was scratched {n}.", "What had been scratched on the {name} box was", " {n}.\n")]
NOUNS = ("apple basket candy dragon engine feather garden hammer island jacket kettle ladder mirror needle oyster paddle quiver rabbit "
         "scarf table umbrella violin wagon yarn zebra barrel cotton drum eagle flute goose helmet iron jewel kite lemon").split()


def entry(rng, words):
    """Who or what a number is of, and the number."""
    name = words.name() if rng.random() < 0.5 else words.of(NOUNS)
    return {"name": name, "n": "".join(rng.choices("0123456789", k=rng.randint(5, 9)))}


def numbers(rng, words, _):
    first, asked, answer = rng.choice(SAID)
    said = entry(rng, words)
    return first.format(**said), [(asked.format(**said), answer.format(**said))]


def ledger(rng, words, slice_of):
    """Several of `numbers` by one sentence, with text between them: only the name tells them apart."""
    said, asked, answer = rng.choice(SAID)
    rows = [entry(rng, words) for _ in range(rng.randint(3, 5))]
    first = [part for row in rows for part in (" " + said.format(**row) + " ", slice_of(rng.randint(8, 90)))]
    return first, [(asked.format(**row), answer.format(**row)) for row in rng.sample(rows, rng.randint(2, len(rows)))]


# Of a chat: what a text says somewhere, how it is asked for behind the text, the answer.
TOLD = [("{name} has ticket {n}.", "Which ticket has {name}?", "{name} has ticket {n}."),
        ("Whoever wants {name} calls {n}.", "What does one call who wants {name}?", "Whoever wants {name} calls {n}."),
        ("In the ledger {name} stands under {n}.", "Under what does {name} stand in the ledger?", "In the ledger {name} stands under {n}."),
        ("The crate for {name} weighs {n} grains.", "How many grains does the crate for {name} weigh?", "The crate for {name} weighs {n} grains."),
        ("{name} was given the mark {n}.", "Which mark was given to {name}?", "{name} was given the mark {n}."),
        ("The postcode of {name} is {n}.", "I need the postcode of {name} from this text.", "The postcode of {name} is {n}."),
        ("The drawer marked {name} opens by {n}.", "By what does the drawer marked {name} open?", "The drawer marked {name} opens by {n}."),
        ("The account of {name} holds {n} coins.", "How many coins are in the account of {name}?", "The account of {name} holds {n} coins.")]
TASKS = ["", "Read this text. A question about it follows.\n\n", "Here is a text, and below it what I want to know of it.\n\n",
         "Answer the question at the end by what the text says.\n\n", "I am looking for something that is said in the middle of this:\n\n"]
ASKED = ["{q}", "According to the text: {q}", "Question: {q}", "Now tell me from the text above: {q}"]

FORMS = register, glossary, pairs, notice, order, constants, numbers, ledger


class Maker:
    """tokens: encode(texts) and end, as make_data.Tokens; shards: lists of token ids to fill with; keep: make_data.Filter."""

    def __init__(self, tokens, shards, rng, keep=None, length=LENGTH, least=LEAST, most=MOST, forms=FORMS):
        self.tokens, self.rng, self.keep, self.forms = tokens, rng, keep, forms
        self.length, self.least, self.most = length, least, most
        self.shards = [s for s in shards if len(s) > 4 * length]
        if not self.shards:
            raise SystemExit(f"lookback: no shard of more than {4 * length} tokens")

    def slice_of(self, n):
        """n tokens of a shard, without ends of documents."""
        shard = self.rng.choices(self.shards, [len(s) for s in self.shards])[0]
        while True:
            at = self.rng.randrange(len(shard) - 2 * n - 16)
            found = [int(i) for i in shard[at:at + 2 * n + 16] if i != self.tokens.end]
            if len(found) >= n:
                return found[:n]

    def ids(self, text):
        if isinstance(text, str):
            return self.tokens.encode([text])[0]
        return text if not text or isinstance(text[0], int) else [i for part in text for i in self.ids(part)]

    def task(self, words):
        """(ids of what stands first, ids of the question and its answer, their mask), or None where it overlaps."""
        first, asked = self.rng.choice(self.forms)(self.rng, words, self.slice_of)
        if self.keep and any(self.keep.overlaps(make_data.words(t)) for t in [first, *(q + a for q, a in asked if isinstance(a, str))]
                             if isinstance(t, str)):
            return None
        later, mask = self.ids("\n\n"), []
        mask += [0] * len(later)
        for q, a in asked:
            q, a = self.ids(q), self.ids(a)
            later, mask = later + q + a, mask + [0] * len(q) + [1] * len(a)
        return self.ids("\n\n") + self.ids(first), later, mask

    def placed(self, tasks):
        """[(position, ids, mask)] in order: every task's halves, `least` to `most` tokens from the first's beginning and end to the
        second's end and beginning, where there is room for both."""
        taken, out = [], []
        free = lambda a, n: all(a + n <= b or a >= b + m for b, m in taken)
        for first, later, mask in tasks:
            for _ in range(60):
                n, m = len(first), len(later)
                last = min(self.length - 1 - m, self.length)
                if last - self.least - n < 0:
                    break
                at = self.rng.randint(0, last - self.least - n)
                low, high = at + n + self.least, min(at + self.most - m, last)
                if low > high:
                    continue
                then = self.rng.randint(low, high)
                if free(at, n) and free(then, m):
                    taken += [(at, n), (then, m)]
                    out += [(at, first, [0] * n), (then, later, mask)]
                    break
        return sorted(out, key=lambda x: x[0])

    def document(self):
        """`length` ids, the last one an end, and the answers' mask."""
        words, tasks = Words(self.rng), []
        while sum(len(a) + len(b) for a, b, _ in tasks) < 0.6 * self.length:
            made = self.task(words)
            if made:
                tasks.append(made)
        ids, mask = [], []
        for at, part, its_mask in [*self.placed(tasks), (self.length - 1, [self.tokens.end], [0])]:
            fill = at - len(ids)
            ids += (self.slice_of(fill) if fill else []) + part
            mask += [0] * fill + its_mask
        return ids, mask

    def chat(self):
        """The same of a chat in the model's template: a text in which two to eight of TOLD are said, by the same words half of the time,
        then questions about it, a turn each."""
        words, rng, told = Words(self.rng), self.rng, self.rng.sample(TOLD, len(TOLD))
        same = rng.random() < 0.5
        facts = [(told[0 if same else i], entry(rng, words)) for i in range(rng.randint(2, 8))]
        head = self.ids(f"<|im_start|>system\n{make_data.SYSTEM}<|im_end|>\n<|im_start|>user\n{rng.choice(TASKS)}")
        tail, mask = [], []
        for i, ((_, q, a), row) in enumerate(rng.sample(facts, len(facts))):
            asked = rng.choice(ASKED).format(q=q.format(**row))
            asked = self.ids(("<|im_start|>user\n" if i else "\n\n") + asked + "<|im_end|>\n<|im_start|>assistant\n")
            answer = self.ids(a.format(**row) + "<|im_end|>")
            end = self.ids("\n")
            tail, mask = tail + asked + answer + end, mask + [0] * len(asked) + [1] * len(answer) + [0] * len(end)
        said = [self.ids(" " + first.format(**row)) for (first, _, _), row in facts]
        text = self.slice_of(self.length - 1 - len(head) - len(tail) - sum(map(len, said)))
        cuts = sorted(rng.randint(0, max(0, len(text) - self.least)) for _ in said)
        parts = [text[a:b] + (said[i] if i < len(said) else []) for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, len(text)]))]
        ids = head + [i for part in parts for i in part] + tail + [self.tokens.end]
        return ids, [0] * (len(ids) - len(mask) - 1) + mask + [0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True, type=pathlib.Path, help="folder of make_data.py's shards")
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--tokens", type=int, default=1300000)
    p.add_argument("--avoid", nargs="*", default=[])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--forms", nargs="*", choices=[f.__name__ for f in FORMS], help="these alone; a form named twice comes twice as often")
    p.add_argument("--chats", type=float, default=0.0, help="share of documents that are a chat: a text and questions about it")
    p.add_argument("--length", type=int, default=LENGTH, help="of a document, in tokens")
    p.add_argument("--least", type=int, default=LEAST, help="tokens between what is said and where it is asked for")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    shards = [tokens for tokens, mask, _ in data.Shards(a.data, a.length, 1).shards if mask is None]
    maker = Maker(make_data.Tokens(a.model), shards, random.Random(a.seed), make_data.Filter(a.avoid) if a.avoid else None,
                  a.length, a.least, forms=[globals()[f] for f in a.forms] if a.forms else FORMS)
    shard, n = make_data.Shard(a.out, "lookback", masked=True), 0
    answers = 0
    for _ in range(max(1, a.tokens // a.length)):
        ids, mask = maker.chat() if maker.rng.random() < a.chats else maker.document()
        shard.add(ids, mask)
        n, answers = n + 1, answers + int(np.sum(mask))
    shard.add([maker.tokens.end], [0])  # what the last one's last token predicts
    shard.close(source=f"{n} made documents that look back", aligned=a.length, answers=answers, repeat=4)


if __name__ == "__main__":
    main()
