# SPDX-License-Identifier: Apache-2.0
"""Data, its readers and curves; evaluate.py's tables."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile
import types
import unittest
import zlib

import gguf
import numpy as np
import torch

from stories import TEXT, TOK_DUMP
import corpus
import curves
import evaluate
import make_data


class Curves(unittest.TestCase):
    def test_power_law(self):
        factor, slope = curves.power_law([(x, 3 * x ** -0.25) for x in (1e6, 2e6, 5e6, 1e7)])
        self.assertAlmostEqual(factor, 3)
        self.assertAlmostEqual(slope, -0.25)

    def test_tokens_of_all_stages(self):
        """Those of the stages before count, and a count that new data began anew does not."""
        lines = [{"stage": "attention", "step": 10, "tokens": 1000, "attention": 1.0},
                 {"stage": "attention", "step": 30, "tokens": 3000, "attention": 0.5},
                 {"stage": "full", "step": 10, "tokens": 2000, "kl": 0.7}, {"stage": "full", "step": 20, "tokens": 400, "kl": 0.6},
                 {"stage": "full", "index": 2, "step": 5, "tokens": 500, "kl": 0.4, "temperature": 1.0}]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write("".join(json.dumps(x) + "\n" for x in lines))
            f.flush()
            self.assertEqual(curves.curve(pathlib.Path(f.name)), [(5000, 0.7), (7000, 0.6), (7500, 0.4)])
            self.assertEqual(curves.curve(pathlib.Path(f.name), 2), [(5000, 0.7), (7000, 0.6)])
            self.assertEqual(curves.curve(pathlib.Path(f.name), 1), [(7500, 0.4)])


class Data(unittest.TestCase):
    def test_filter(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("It was the best of times, it was the worst of times, it was the age of wisdom.")
            f.flush()
            keep = make_data.Filter([f.name])
        text = "He said: it was the best of times, IT WAS the worst, and left.\n\nAn honest line of six plain words."
        self.assertEqual(keep(text), "An honest line of six plain words.")
        self.assertEqual(keep(text), "")
        self.assertEqual((keep.overlapping, keep.repeated), (1, 2))

    def test_evaluation_table(self):
        """Every figure of scores.json is in both tables, a task that was not run in neither, and missing data are said."""
        scores = {"war-and-peace": {"ctx": 2048, "positions": 4096, "perplexity": {"teacher": 27.36, "untrained": 6909.5, "mine": 72.49},
                                    "kl": {"untrained": 5.6, "mine": 0.99}},
                  "lambada": {"cases": 100, "accuracy": {"teacher": 0.3, "untrained": 0.0, "mine": 0.25}, "of_teacher": {}},
                  "summary": {"cases": 4, "untrained": 0.0, "mine": 0.125}}
        rows = evaluate.rows(scores)
        self.assertEqual(rows[0], ["war-and-peace: perplexity", 4096, {"teacher": 27.36, "untrained": 6909.5, "mine": 72.49}])
        self.assertEqual(rows[1], ["war-and-peace: KL from the teacher, nats", 4096, {"teacher": 0, "untrained": 5.6, "mine": 0.99}])
        with tempfile.TemporaryDirectory() as d:
            evaluate.write_tables(pathlib.Path(d), scores)
            table, text = (pathlib.Path(d) / "scores.csv").read_text(), (pathlib.Path(d) / "scores.md").read_text()
        self.assertIn("war-and-peace: perplexity,4096,mine,72.49\n", table)
        self.assertIn("| measure | sample | teacher | untrained | mine |", text)
        self.assertIn("| LAMBADA, last word | 100 | 30.0% | 0.0% | 25.0% |", text)
        self.assertIn("| summaries, F of word pairs against the teacher's | 4 | 1 | 0.000 | 0.125 |", text)
        self.assertEqual(table.count("\n"), 1 + 4 * 3)
        with tempfile.TemporaryDirectory() as d:
            made = {"command": "evaluate.py --out DIR", "date": "2026-11-23", "machine": "AMD EPYC, 2 CPUs", "commit": "926d7e1"}
            evaluate.write_tables(pathlib.Path(d), {**scores, "made": made})
            said = (pathlib.Path(d) / "scores.csv").read_text()
        self.assertEqual(said, "# 2026-11-23, AMD EPYC, 2 CPUs, commit 926d7e1\n# evaluate.py --out DIR\n" + table)
        self.assertFalse(evaluate.there(pathlib.Path("/nonexistent/lambada.jsonl"), "LAMBADA"))

    def test_evaluation_of_exits(self):
        """Counts by hand: four positions, a head of the words 1 and 3 and one row for all others."""
        head = torch.eye(4)
        # sure of 1; hardly; sure of 3; of another, but 1 has 0.42
        logits = torch.tensor([[9., 0, 0], [1, 0, 0], [0, 9, 0], [0.65, -2, 0.9]])
        student = types.SimpleNamespace(frozen=types.SimpleNamespace(head=head), exit_words=torch.tensor([1, 3]),
                                        exit_logits=lambda x: logits)
        rows = lambda *words: head[list(words)]
        found = evaluate.exits(student, None, rows(1, 1, 2, 3), rows(1, 1, 3, 3))
        self.assertEqual(found.tolist(), [[2, 1, 2]] * 4 + [[4, 2, 3]])  # 0.58 of the second row is over 0.4
        scores = {"t": {"positions": 4, "perplexity": {}, "kl": {}, "exits": {"x": {
            str(p): {"exit": 0.5, "as_full": 0.5, "as_teacher": 1.0} for p in evaluate.EXITS}}}}
        self.assertIn(["t, exit:0.95: tokens that exit", 4, {"x": 0.5}], evaluate.rows(scores))

    def test_readers(self):
        page = b"<html><head><title>no</title></head><body><p>One\n two</p><script>no()</script><p>three</p></body></html>"
        self.assertEqual(corpus.html_text(page)[0].split(), ["One", "two", "three"])
        line = "00001740 29 v 02 breathe 0 respire 0 001 | draw air into; \"I can breathe\"  \n"
        self.assertEqual(corpus.wordnet(line.encode()), ['breathe: draw air into; "I can breathe"'])
        strings = b"".join(b"\x00\x04\x00\x09" + len(t).to_bytes(4, "big") + t for t in [b"It is a truth", b""] * 1000)
        raw = b"".join(len(strings).to_bytes(4, "big") + zlib.compress(strings) for _ in range(2))
        self.assertEqual(corpus.r_strings(raw), ["\n".join(["It is a truth", ""] * 1000)] * 2)
        self.assertEqual(corpus.man(b".TH X 1\n.SH NAME\nls \\- list\n.B bold\n.\\\" no\n")[0].split(), "NAME ls - list bold".split())

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_tokenizer(self):
        path = os.environ["PIPIT_SMOLLM2"]
        text = TEXT.read_text() + " 1234 <|im_start|>user\nIt's  naïve, 東京!\n\n\tx<|im_end|>"
        out = subprocess.run([TOK_DUMP, path, "4"], input=text.encode().hex() + "\n", capture_output=True, text=True,
                             check=True).stdout
        self.assertEqual(make_data.Tokens(path).encode([text])[0], [int(i) for i in out.split()])

    @unittest.skipUnless(os.environ.get("PIPIT_SMOLLM2"), "PIPIT_SMOLLM2 names no model")
    def test_answers(self):
        """A chat is what the model's own template says, the mask is the answer's; what failed, was asked twice or stands in an
        evaluation text is left out."""
        import jinja2
        path = os.environ["PIPIT_SMOLLM2"]
        a = argparse.Namespace(model=path, seed=1, repeat=3, avoid=[])
        lines = [("0", "What is 2 + 3?", "It is 5.", "stop"), ("1", "Say it.", "one two three", "length"),
                 ("2", "And?", None, "error"), ("3", "Say it.", "again", "stop"),
                 ("4", "A book?", "It was the best of times, it was the worst of times.", "stop")]
        with tempfile.TemporaryDirectory() as d:
            a.out = pathlib.Path(d)
            (a.out / "book.txt").write_text("It was the best of times, it was the worst of times")
            a.avoid = [str(a.out / "book.txt")]
            for name, row in (("prompts", lambda i, q, t, r: {"custom_id": i, "prompt": q}),
                              ("answers", lambda i, q, t, r: {"custom_id": i, "text": t, "finish_reason": r})):
                (a.out / f"{name}.jsonl").write_text("".join(json.dumps(row(*x)) + "\n" for x in lines))
            make_data.make_answers(a)
            ids, mask = np.fromfile(a.out / "answers.bin", np.uint16), np.fromfile(a.out / "answers.mask", np.uint8)
            (shard,) = json.loads((a.out / "manifest.json").read_text())["shards"]
        self.assertEqual((shard["tokens"], shard["repeat"], shard["left_out"]), (len(ids), 3, 3))
        template = jinja2.Environment().from_string(gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents())
        chats = [template.render(messages=[{"role": "user", "content": q}], add_generation_prompt=True) for _, q, _, _ in lines[:2]]
        tokens = make_data.Tokens(path)
        want = tokens.encode([chats[0], "It is 5.<|im_end|>\n", chats[1], "one two three"])
        self.assertEqual(ids.tolist(), sum(want, []))
        self.assertEqual(mask.tolist(), sum(([i % 2] * len(w) for i, w in enumerate(want)), []))

    def test_prompts(self):
        """One seed, the same prompts; every kind is there; what is asked to be found stands there once."""
        fetch, corpus.fetch = corpus.fetch, lambda package, folder: None
        try:
            with tempfile.TemporaryDirectory() as d:
                a = argparse.Namespace(out=pathlib.Path(d), seed=1, n=400, max_tokens=9, avoid=[])
                texts = []
                for _ in range(2):
                    make_data.make_prompts(a)
                    texts.append((a.out / "prompts.jsonl").read_text())
        finally:
            corpus.fetch = fetch
        self.assertEqual(texts[0], texts[1])
        rows = [json.loads(x) for x in texts[0].splitlines()]
        self.assertEqual([r["custom_id"] for r in rows], [str(i) for i in range(400)])
        self.assertEqual({r["max_tokens"] for r in rows}, {9})
        found = [r["prompt"] for r in rows if "The number of " in r["prompt"]]
        self.assertTrue(15 < len(found) < 200)
        for text in found:
            key = re.search(r"What is the number of (.*)\?$", text)[1]
            self.assertEqual(text.count(f"The number of {key} is"), 1)
