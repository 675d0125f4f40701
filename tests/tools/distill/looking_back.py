# SPDX-License-Identifier: Apache-2.0
"""Made texts that look back, the order in which training takes them, and sampled texts."""

import argparse
import json
import pathlib
import random
import re
import tempfile
import unittest
import unittest.mock

import numpy as np
import torch

from stories import Trained
import course
import data
import lookback
import make_data
import sample


class WordTokens:
    """Words, digits and signs, each with an id of its own."""
    end = 0

    def __init__(self):
        self.known = {}

    def encode(self, texts):
        return [[self.known.setdefault(p, 1 + len(self.known)) for p in re.findall(r" ?[A-Za-z]+|\d|\s|[^\w\s]|_", t)] for t in texts]

    def decode(self, ids):
        names = {i: p for p, i in self.known.items()}
        return "".join(names.get(int(i), "~") for i in ids)


class LookBack(unittest.TestCase):
    def maker(self, seed, keep=None):
        rng = np.random.default_rng(1)
        return lookback.Maker(WordTokens(), [rng.integers(20000, 60000, 50000), rng.integers(20000, 60000, 100)], random.Random(seed), keep)

    def test_documents(self):
        """The number of every answer, or its first words where it has none, stands in the same document, `least` to `most`
        tokens before; the form is none that the evaluation has; the same seed makes the same."""
        maker, again, answers = self.maker(3), self.maker(3), 0
        for _ in range(30):
            ids, mask = maker.document()
            self.assertEqual((ids, mask), again.document())
            self.assertEqual((len(ids), len(mask), ids[-1], mask[-1]), (lookback.LENGTH, lookback.LENGTH, 0, 0))
            self.assertLess(0.02 * len(ids), sum(mask))
            cuts = np.flatnonzero(np.diff([0, *mask, 0]))
            for a, b in zip(cuts[::2], cuts[1::2]):
                answer = ids[a:b - 1] if b - a > 1 else ids[a:b]  # its end may be another sign
                number = re.search(r"\d+", maker.tokens.decode(answer))
                key = maker.tokens.encode([number.group()])[0] if number else answer[:3]
                found = [i for i in range(a) if ids[i:i + len(key)] == key]
                self.assertTrue(any(lookback.LEAST <= a - i <= lookback.MOST for i in found), (a, maker.tokens.decode(answer)))
                answers += 1
            self.assertNotIn("magic", maker.tokens.decode(ids))
        self.assertGreater(answers, 100)

    def test_chats(self):
        """Every answer of a chat is a sentence of its text, `least` tokens or more before the first question."""
        maker = self.maker(3)
        for _ in range(30):
            ids, mask = maker.chat()
            self.assertEqual((len(ids), len(mask), ids[-1], mask[-1]), (lookback.LENGTH, lookback.LENGTH, 0, 0))
            text, *turns = maker.tokens.decode(ids).split("<|im_end|>\n<|im_start|>assistant\n")
            self.assertEqual(text.count("<|im_start|>"), 2)
            ends = [i for i in np.flatnonzero(mask) if not mask[i - 1]]
            self.assertEqual(len(ends), len(turns))
            for turn in turns:
                said = turn.split(".<|im_end|>")[0]
                self.assertIn(said, text)
                self.assertGreater(ends[0] - len(maker.tokens.encode([text[:text.index(said)]])[0]), lookback.LEAST)
            self.assertNotIn("magic", text)

    def test_overlaps(self):
        """A text with eight words in a row of an evaluation text is not made."""
        keep = make_data.Filter([])
        keep.overlaps = lambda w: w[:1] == ["guests"]
        maker = self.maker(5, keep)
        text = maker.tokens.decode(sum((maker.document()[0] for _ in range(20)), []))
        self.assertNotIn("Guests", text)
        self.assertIn("Abbreviations", text)

    def test_command(self):
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            np.random.default_rng(2).integers(20000, 60000, 30000).astype(np.uint16).tofile(folder / "a.bin")
            (folder / "manifest.json").write_text(json.dumps({"shards": [{"name": "a", "tokens": 30000}]}))
            args = ["lookback.py", "--model", "x", "--data", d, "--out", str(folder / "out"), "--tokens", "6000"]
            with unittest.mock.patch("sys.argv", args), unittest.mock.patch.object(make_data, "Tokens", lambda _: WordTokens()):
                lookback.main()
            shards = lookback.data.Shards(folder / "out", lookback.LENGTH, 1, fixed=True)
            self.assertEqual((shards.count(), len(set(shards._places(0)))), (8, 2))
            self.assertEqual({at for _, at in shards._places(0)}, {0, 2048})
            self.assertEqual(lookback.data.Shards(folder / "out", 1024, 1).aligned, [False])


class Courses(unittest.TestCase):
    def test_visits(self):
        """Each sequence comes `visits` times, each time at other positions while there are any."""
        steps = [course.group(k, 3, 1) for k in range(4 * 3 * course.SPAN)]
        self.assertEqual(sorted(steps), [(n, v) for n in range(4 * course.SPAN) for v in range(3)])
        self.assertNotEqual([n for n, _ in steps[:course.SPAN]], [n for n, _ in steps[course.SPAN:2 * course.SPAN]])
        self.assertEqual([course.group(k, 1, 1)[1] for k in range(40)], [0] * 40)
        for n in range(2):
            met = torch.cat([course.visited(1, n, v, 64, 16) for v in range(4)])
            self.assertEqual(sorted(met.tolist()), list(range(64)))
        again = course.visited(1, 0, 4, 64, 16)
        self.assertEqual((len(again), again.tolist()), (16, sorted(set(again.tolist()))))
        self.assertNotEqual(again.tolist(), course.visited(1, 0, 0, 64, 16).tolist())

    def test_look_back_share(self):
        for batch, share in ((4, 0.1), (8, 0.1), (2, 0.5), (1, 0.9)):
            n = sum(course.extra(k, batch, share) for k in range(1000))
            self.assertAlmostEqual(n / (n + 1000 * batch), share, delta=0.001)

    def test_asked(self):
        mask = np.zeros(256, bool)
        mask[[3, 70, 71, 200]] = True
        at = course.asked(mask, 1, 5).tolist()
        self.assertEqual((len(at), at), (32, sorted(set(at))))
        self.assertTrue({3, 70, 71, 200} <= set(at))
        mask[:150] = True
        self.assertEqual(course.asked(mask, 1, 5).tolist(), list(range(256)))
        self.assertEqual(len(course.asked(mask, 1, 5, others=0.25)), 192)  # 151 answers, 38 others, in whole 32s
        self.assertEqual(len(course.asked(np.zeros(256, bool), 1, 5)), 32)


class LookBackRuns(Trained):
    def texts(self, name, n):
        """A folder of n look-back texts."""
        back = self.folder / name
        back.mkdir()
        rng = np.random.default_rng(4)
        rng.integers(3, 512, n * 32 + 1).astype(np.uint16).tofile(back / "b.bin")
        (rng.random(n * 32 + 1) < 0.3).astype(np.uint8).tofile(back / "b.mask")
        (back / "manifest.json").write_text(json.dumps({"shards": [{"name": "b", "tokens": n * 32 + 1, "aligned": 32}]}))
        return back

    def test_another_folder(self):
        """A resumed run counts the texts of the folder it has: what was taken of another is seen, and no step has less than none.
        State and place say of which folder they are; those that do not yet go on as before."""
        many, few = self.texts("many", 5), self.texts("few", 1)
        args = lambda back, n, steps: ["--split", "2", "--group", "3", "--share", "0.25", "--batch", "3", "--quant", "F32", "--steps", steps,
                                       "--states", str(self.folder / n), *(["--look-back", str(back), "--look-back-share", "0.25"] if back else [])]
        self.train("of", *args(many, "s1", "3"))
        state = torch.load(self.folder / "of/state.pt", weights_only=True)
        place = json.loads((self.folder / "of/place.json").read_text())
        self.assertEqual([(x["looked"], x["looked_of"]) for x in (state, place)], [(3, data.Shards(many, 32, 1).fingerprint)] * 2)
        self.assertEqual(place["tokens"], 12 * 32)

        # without them: nothing is forgotten; another folder: its own are taken from the first on
        self.train("of", *args(None, "s1", "4"))
        self.assertIn("other look-back texts than before", self.train("of", *args(few, "s2", "6")))
        now = torch.load(self.folder / "of/state.pt", weights_only=True)
        self.assertEqual((now["looked"], now["before"]), (1, 3 * 32))
        self.assertEqual(json.loads((self.folder / "of/place.json").read_text())["tokens"], (18 + 3 + 1) * 32)

        # of a place the same, where state.pt is lost
        kept = self.folder / "kept"
        (self.folder / "of").rename(kept)
        self.train("placed", *args(few, "s2", "7"), "--place", str(kept / "place.json"))
        now = torch.load(self.folder / "placed/state.pt", weights_only=True)
        self.assertEqual((now["looked"], now["before"]), (1, 3 * 32))

        # a state of before the folder was said, with more taken than there are
        del state["looked_of"]
        torch.save(state, self.folder / "placed/state.pt")
        self.train("placed", *args(few, "s2", "4"))
        now = torch.load(self.folder / "placed/state.pt", weights_only=True)
        self.assertEqual((now["looked"], now["sequences"], now["before"]), (3, 12, 0))
        self.assertEqual("kl_back" in self.log("placed")[-1], False)

        # other data: all that was seen counts once, and look-back texts begin with the data
        torch.save(state | {"data": "another"}, self.folder / "placed/state.pt")
        self.train("placed", *args(many, "s1", "4"))
        now = torch.load(self.folder / "placed/state.pt", weights_only=True)
        self.assertEqual((now["looked"], now["sequences"], now["before"]), (1, 3, 12 * 32))

    def test_train(self):
        """Look-back texts join the steps until they have all come, and a stopped run goes on with the next."""
        back = self.texts("back", 5)
        args = ["--split", "2", "--group", "3", "--wide", "32+32", "--start", "fit", "--fit-sequences", "20", "--fall", "0.25", "--share", "0.25",
                "--batch", "3", "--quant", "F32", "--visits", "4", "--look-back", str(back), "--look-back-share", "0.25", "--steps", "8"]
        states = lambda n: ["--states", str(self.folder / n)]
        self.train("whole", *args, *states("one"))
        self.train("parts", *args, *states("two"), "--session-steps", "3")
        self.train("parts", *args, *states("two"))
        whole, parts = self.log("whole"), self.log("parts")
        self.assertEqual([[line.get(k) for k in ("kl", "kl_back", "lr")] for line in whole],
                         [[line.get(k) for k in ("kl", "kl_back", "lr")] for line in parts])
        self.assertEqual(["kl_back" in line for line in whole], [True] * 5 + [False] * 3)
        self.assertEqual(len({line["lr"] for line in whole[:5]}), 1)
        self.assertLess(whole[-1]["lr"], whole[0]["lr"])
        self.assertEqual((self.folder / "one/done.bin").read_bytes().count(1), 3 * 8)
        self.assertEqual((self.folder / "one/look-back/done.bin").read_bytes().count(1), 5)
        # a second process has made every second state: the same curve
        self.assertIn("states of", self.train("fills", *args, *states("three"), "--fill"))
        self.assertEqual(((self.folder / "three/look-back/done.bin").read_bytes() + b"\0" * 5)[:5].count(1), 3)
        self.train("filled", *args, *states("three"))
        self.assertEqual([line["kl"] for line in whole], [line["kl"] for line in self.log("filled")])
        for bad in (["--visits", "2"], ["--look-back", "x", "--hidden", "1"], ["--fall", "0"], ["--fill"]):
            with self.assertRaises(SystemExit), unittest.mock.patch("sys.stderr"):
                self.options("bad", "--split", "2", "--steps", "1", *bad)


class Samples(unittest.TestCase):
    def test_shard(self):
        """What is on disk is not asked for again, a line cut off is; texts of another overlay are refused; overlaps are left out."""
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            o = argparse.Namespace(out=folder, model="m.gguf", overlay=None, kv="full", begin=6, length=20, seed=1, avoid=[], tokens=60)
            shards = [np.arange(1, 400, dtype=np.uint16), np.arange(400, 500, dtype=np.uint16)]
            rows = [{"custom_id": str(i), "text": t, "finish_reason": "stop"} for i, t in ((1, "one two"), (0, "a b c d e f g h i"))]
            path = folder / "samples.jsonl"
            path.write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"custom_id": "2", "te')
            self.assertEqual(sorted(sample.lines(path)), [0, 1])
            (folder / "bad.txt").write_text("x a b c d e f g h i y")
            o.avoid = [str(folder / "bad.txt")]
            tokens = WordTokens()
            sample.shard(o, shards, tokens, path)
            ids = np.fromfile(folder / "samples.bin", np.uint16).tolist()
            self.assertEqual(ids, sample.prompt(shards, 1, 1, 6) + tokens.encode(["one two"])[0] + [0])
            asked = sample.asked(o, shards, 2, 0)
            self.assertEqual((asked["tokens"], asked["max_tokens"]), (sample.prompt(shards, 1, 2, 6), 14))
            self.assertNotEqual(sample.prompt(shards, 1, 2, 6), sample.prompt(shards, 1, 3, 6))
            shards[0].tofile(folder / "a.bin")
            args = ["--model", "m.gguf", "--data", d, "--out", d, "--tokens", "60", "--begin", "6", "--length", "20"]
            (folder / "manifest.json").write_text(json.dumps({"shards": [{"name": "a", "tokens": 399, "sha256": "first"}]}))
            mine = sample.about(o, data.Shards(d, 6, 1).fingerprint)
            self.assertEqual(mine["overlay"], None)
            (folder / "about.json").write_text(json.dumps({**mine, "kv": "fp8"}))
            with self.assertRaisesRegex(SystemExit, "give another folder"):
                sample.main(args)
            # other data: a text would follow a beginning that it was not drawn for
            (folder / "about.json").write_text(json.dumps(mine))
            (folder / "manifest.json").write_text(json.dumps({"shards": [{"name": "a", "tokens": 399, "sha256": "second"}]}))
            with self.assertRaisesRegex(SystemExit, "give another folder"):
                sample.main(args)
