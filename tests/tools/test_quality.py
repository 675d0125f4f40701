#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tools that make docs/results/quality.md: pipit-eval with several policies at once, bench/quality/run.py that goes on where
it stopped, scores known by hand, and the page's tables.

    test_quality.py PIPIT_EVAL [PIPIT_SKEW]
"""

import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUALITY = os.path.join(SOURCE, "bench", "quality")
MODEL = os.path.join(SOURCE, "tests", "data", "stories260K.gguf")
STORY = os.path.join(SOURCE, "tests", "data", "stories260K.txt")
sys.path.insert(0, QUALITY)
import cells  # noqa: E402
import make_prompts  # noqa: E402
import page  # noqa: E402
import reads  # noqa: E402
import score  # noqa: E402
import step_time  # noqa: E402
import table as tables  # noqa: E402
import tasks_table  # noqa: E402

with open(STORY, encoding="utf-8") as f:
    WORDS = f.read().split()
EVAL = sys.argv[1]
SKEW = sys.argv[2] if len(sys.argv) > 2 else None
H2O = "h2o:50%,min=16"


class Folder(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        os.makedirs(self.path("data/text"))
        with open(STORY, encoding="utf-8") as f:
            story = f.read().strip()
        # Paragraphs that differ, so that a place in the text can be told by what follows.
        text = "".join(f"Story {i}. {story[13 * i:13 * i + 150]}\n\n" for i in range(40))
        for name in ("tinyshakespeare", "war-and-peace"):
            with open(self.path(f"data/text/{name}.txt"), "w", encoding="utf-8") as f:
                f.write(text)

    def path(self, name):
        return os.path.join(self.dir.name, name)


class Eval(Folder):
    def rows(self, *options, kv=("full",)):
        argv = [EVAL, "--model", MODEL, "--text", self.path("data/text/tinyshakespeare.txt"), "--ctx", "128",
                "--chunks", "3", "--threads", "1", *options]
        for p in kv:
            argv += ["--kv", p]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stderr)
        return {row["policy"]: row for row in csv.DictReader(r.stdout.splitlines())}

    def test_decode_is_prefill_for_full(self):
        a = self.rows("--mode", "decode")["full"]
        b = self.rows("--mode", "prefill")["full"]
        self.assertAlmostEqual(float(a["perplexity"]), float(b["perplexity"]), delta=2e-3 * float(b["perplexity"]))
        self.assertEqual(a["tokens_per_step"], "96.5")  # of 66 to 127 after a prompt of 65
        self.assertEqual(a["rows"], "189")

    def test_company_does_not_matter(self):
        kv = ("full", H2O, "keyformer:50%,min=16", "kv8", "window:32")
        alone = {}
        for p in kv[1:]:
            alone.update(self.rows("--mode", "decode", kv=("full", p)))
        for options in (("--batch", "1"), ("--batch", "7"), ("--batch", "4", "--reference-bytes", "1")):
            self.assertEqual(self.rows("--mode", "decode", *options, kv=kv), alone)
        self.assertEqual(alone["full"]["mean_kl"], "0.000000")
        self.assertGreater(float(alone["window:32"]["mean_kl"]), float(alone["kv8"]["mean_kl"]))
        self.assertEqual(alone["window:32"]["tokens_per_step"], "32.0")

    def test_pools_of_every_rule_share_an_engine(self):
        if not SKEW:
            self.skipTest("pipit-skew was not built")
        overlay = self.path("skew.gguf")
        subprocess.run([SKEW, "--model", MODEL, "--text", self.path("data/text/tinyshakespeare.txt"), "--tokens", "256", overlay],
                       check=True, capture_output=True, timeout=60)
        pools = [f"sinks:2+infinigen:share=50%,pool=40,exempt=4,victim={v}" for v in ("fifo", "lru", "counter")]
        got = self.rows("--mode", "decode", "--batch", "5", "--overlay", overlay, kv=("full", "infinigen:share=50%", *pools))
        for p in pools:
            self.assertLess(float(got[p]["tokens_per_step"]), 80)  # layers 0 and 1 hold all, 96.5 on average
            self.assertNotEqual(got[p]["chunk_nll"], got["infinigen:share=50%"]["chunk_nll"])
        alone = self.rows("--mode", "decode", "--overlay", overlay, kv=("full", "infinigen:share=50%"))
        self.assertEqual(got["infinigen:share=50%"], alone["infinigen:share=50%"])

    def test_divergence_against_dumped_logits(self):
        try:
            import numpy as np
        except ImportError as e:
            self.skipTest(str(e))
        for name, p in (("a", "full"), ("b", H2O)):
            self.rows("--mode", "decode", "--dump", self.path(name + ".npy"), kv=(p,))
        a, b = (np.load(self.path(n + ".npy")).astype(np.float64) for n in "ab")
        a -= np.log(np.exp(a).sum(-1, keepdims=True))
        b -= np.log(np.exp(b).sum(-1, keepdims=True))
        kl = (np.exp(a) * (a - b)).sum(-1)
        row = self.rows("--mode", "decode", "--batch", "2", kv=("full", H2O))[H2O]
        self.assertAlmostEqual(float(row["mean_kl"]), kl.mean(), delta=5e-6)
        self.assertAlmostEqual(float(row["p99_kl"]), np.sort(kl)[len(kl) * 99 // 100], delta=5e-6)
        self.assertAlmostEqual(float(row["same_top1"]), (a.argmax(-1) == b.argmax(-1)).mean(), delta=1e-4)
        for got, want in zip(row["chunk_kl"].split(), kl.reshape(3, -1).mean(-1)):
            self.assertAlmostEqual(float(got), want, delta=5e-6)


class Lines(Folder):
    """Lines that are scored: after a prompt of 20 words the text's own next ones, and others."""
    PROMPT = " ".join(WORDS[:20])
    LINES = []
    for i in (1, 2, 4):
        for k, scored in enumerate((" " + " ".join(WORDS[20 + 3 * i:25 + 3 * i]), " red red", " cat.")):
            LINES.append({"id": f"choice-{i}-{k}", "prompt": PROMPT, "given": " " + " ".join(WORDS[20:20 + 3 * i]), "scored": scored})

    def scored(self, lines, *options, kv=("full",), fails=False):
        with open(self.path("lines.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line in lines)
        argv = [EVAL, "--model", MODEL, "--prompts", self.path("lines.jsonl"), "--ctx", "256", "--threads", "1", *options]
        r = subprocess.run(argv + [a for p in kv for a in ("--kv", p)], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode != 0, fails, r.stderr)
        return r.stderr if fails else {(a["policy"], a["id"]): a for a in map(json.loads, r.stdout.splitlines())}

    def test_a_text_is_its_perplexity(self):
        """The same tokens by pipit-eval --text, where a chunk's second half begins and ends with words."""
        text = " ".join(WORDS)
        ends = [i for i, c in enumerate(text) if c == " " and 0 < i < 400]
        counts = {a["n_prompt"]: int(a["id"]) for a in self.scored(
            [{"id": str(i), "prompt": text[:i], "scored": " a"} for i in ends], "--ctx", "400").values()}
        ctx = [n for n in counts if n >= 32 and n % 2 == 0 and n // 2 + 1 in counts][-1]
        cut = counts[ctx // 2 + 1]
        got = self.scored([{"id": "x", "prompt": text[:cut], "scored": text[cut:counts[ctx]]}])["full", "x"]
        self.assertEqual(got["n_scored"], ctx // 2 - 1)
        with open(self.path("text"), "w", encoding="utf-8") as f:
            f.write(text)
        for mode, near in (("decode", 1e-5), ("prefill", 0.01)):
            r = subprocess.run([EVAL, "--model", MODEL, "--text", self.path("text"), "--ctx", str(ctx), "--chunks", "1", "--mode", mode],
                               capture_output=True, text=True, timeout=60)
            nats = int(ctx // 2 - 1) * float(next(csv.DictReader(r.stdout.splitlines()))["chunk_nll"])
            self.assertAlmostEqual(-got["logprob"], nats, delta=near * nats, msg=mode)

    def test_company_does_not_matter(self):
        kv = ("full", "kv8", "window:16", H2O)
        want = {}
        for line in self.LINES:
            want.update(self.scored([line], kv=kv))
        for batch in "1", "2", "5", "32":
            got = self.scored(self.LINES, "--batch", batch, kv=kv)
            self.assertEqual({k: (a["logprob"], a["likeliest"], a["n_scored"]) for k, a in got.items()},
                             {k: (a["logprob"], a["likeliest"], a["n_scored"]) for k, a in want.items()}, batch)
        self.assertNotEqual(want["window:16", "choice-4-0"]["logprob"], want["full", "choice-4-0"]["logprob"])
        self.assertGreater(want["full", "choice-1-0"]["logprob"] / want["full", "choice-1-0"]["n_scored"],
                           want["full", "choice-1-1"]["logprob"] / want["full", "choice-1-1"]["n_scored"])

    def test_given_is_not_scored(self):
        """A text's log-probability is the sum over its parts."""
        a, b = "n the park and saw a", " big dog who was very sad."
        of = [self.scored([{"id": "x", "prompt": self.PROMPT, **line}])["full", "x"]["logprob"]
              for line in ({"given": a, "scored": b}, {"scored": a}, {"scored": a + b})]
        self.assertAlmostEqual(of[0] + of[1], of[2], places=4)

    def test_bad_lines(self):
        line = {"id": "x", "prompt": "Once", "scored": " upon"}
        for lines, said in (([{**line, "scored": ""}], "need a token each"), ([{**line, "prompt": "", "scored": ""}], "need a token"),
                            ([line, {"id": "y", "prompt": "Once", "max_tokens": 3}], "beside lines to be answered"),
                            ([{**line, "scored": " a" * 300}], "context")):
            self.assertIn(said, self.scored(lines, fails=True))

    def test_questions_become_lines(self):
        items = [{"query": f"Question: {i}?", "choices": ["a b", "c"], "gold": i % 2} for i in range(9)]
        pairs = [{"context_options": [f"x{i}", f"y{i}"], "continuation": "z", "gold": 1} for i in range(9)]
        words = [{"context": f"w{i}", "continuation": "v"} for i in range(9)]
        for name, task, v in (("items", "choice", items), ("pairs", "choice", pairs), ("words", "word", words)):
            with open(self.path(name), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(x) + "\n" for x in v)
            out = io.StringIO()
            make_prompts.main([task, "--tasks", self.path(name), "--cases", "4", "--shots", "2"], out)
            lines = [json.loads(x) for x in out.getvalue().splitlines()]
            self.assertEqual(len({line["id"].split("-")[1] for line in lines}), 4)
            self.assertEqual(len({line["prompt"] for line in lines}), 1)
            i = int(lines[0]["id"].split("-")[1])
            self.assertNotIn(lines[0]["given"].strip().split("\n")[0], lines[0]["prompt"])
            if name == "items":
                self.assertEqual(lines[1]["given"], f"\n\nQuestion: {i}?\nAnswer:")
                self.assertEqual([x["scored"] for x in lines[:2]], [" a b", " c"])
                self.assertEqual(lines[0]["gold"], i % 2)
                for shot in lines[0]["prompt"].split("\n\n"):
                    n = int(shot.split()[1].strip("?"))
                    self.assertTrue(shot.endswith(("Answer: a b", "Answer: c")[n % 2]), shot)
            elif name == "pairs":
                self.assertEqual([x["given"] + x["scored"] for x in lines[:2]], [f"\n\nx{i} z", f"\n\ny{i} z"])
                self.assertRegex(lines[0]["prompt"], r"^y\d z\n\ny\d z$")
            else:
                self.assertEqual(lines[0]["given"] + lines[0]["scored"], f"\n\nw{i} v")
                out = io.StringIO()
                make_prompts.main([task, "--tasks", self.path(name), "--cases", "4", "--shots", "0"], out)
                line = json.loads(out.getvalue().splitlines()[0])
                self.assertRegex(line["prompt"], r"^w\d$")  # without shots it is the prompt: an empty one is refused
                self.assertEqual(line["given"], "")


class Run(Folder):
    TASKS = ("ppl-shakespeare-2k", "repeat")

    def run_it(self, *options, code=0):
        argv = [sys.executable, os.path.join(QUALITY, "run.py"), "--model", MODEL, "--data", self.path("data"), "--work",
                self.path("work"), "--out", self.path("out.csv"), "--eval", EVAL, "--tiny", "--date", "2026-11-22",
                "--commit", "abc", *options]
        for t in self.TASKS:
            argv += ["--only", t]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=100)
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        return r.stdout

    def csv(self):
        with open(self.path("out.csv"), encoding="utf-8") as f:
            return f.read()

    def raws(self):
        return sorted(f for f in os.listdir(self.path("work")) if f.endswith(".raw"))

    def test_a_task_of_other_options(self):
        """It would measure nothing, and say that nothing is missing."""
        self.run_it("--scored", code=2)

    def test_stops_and_goes_on(self):
        said = self.run_it("--minutes", "0")
        n = len({(t, p) for t, policies in cells.steps(True) if t in self.TASKS for p in policies})
        self.assertIn(f"0 figures in {self.path('out.csv')}; {n} cells missing", said)
        self.assertEqual(self.raws(), [])

        self.assertIn("; 0 cells missing", self.run_it("--jobs", "2"))
        whole = self.csv()
        self.assertTrue(whole.startswith("# 2026-11-22, "))
        self.assertIn(", stories260K.gguf, commit abc\n", whole)
        before = self.raws()
        self.assertIn("; 0 cells missing", self.run_it())
        self.assertEqual(self.raws(), before)  # nothing was made again

        # A run that was cut off in the middle of a line, and one that lost its last answer.
        for task in self.TASKS:
            path = self.path("work/" + [f for f in before if f.startswith(task)][0])
            with open(path) as f:
                lines = f.read().splitlines(keepends=True)
            with open(path, "w") as f:
                f.write("".join(lines[:-1]) + lines[-1][:20])
        self.assertIn("; 2 cells missing", self.run_it("--collect"))
        self.assertIn("; 0 cells missing", self.run_it())
        self.assertEqual(len(self.raws()), len(before) + 2)
        self.assertEqual(sorted(self.csv().splitlines()), sorted(whole.splitlines()))

        with open(self.path("work/repeat.prompts"), "a") as f:
            f.write("\n")
        self.assertNotEqual(subprocess.run(
            [sys.executable, os.path.join(QUALITY, "run.py"), "--model", MODEL, "--data", self.path("data"), "--work",
             self.path("work"), "--out", self.path("out.csv"), "--tiny", "--collect"], capture_output=True).returncode, 0)

    def test_failure_is_said(self):
        said = self.run_it("--backend", "nonsense", code=1)
        self.assertIn("pipit-eval ended with", said)


class Scores(unittest.TestCase):
    def answer(self, i, text, policy="p"):
        return {"id": i, "policy": policy, "text": text, "kv_bytes": 50, "kv_bytes_full": 200, "tokens_per_step": 7,
                "n_prompt": 10}

    def scores(self, prompts, answers):
        return {(r["policy"], r["cell"]): r for r in score.rows({p["id"]: p for p in prompts}, answers)}

    def test_needle(self):
        prompts = [{"id": f"needle-{d}", "answer": "1234567", "chars": 100, "depth": d, "kind": "single"} for d in (0, 50)]
        r = self.scores(prompts, [self.answer("needle-0", "It is 1,234,567."), self.answer("needle-50", "1234568")])
        self.assertEqual(r["p", "all"]["score"], 50)
        self.assertEqual(r["p", "all"]["se"], 50)
        self.assertEqual((r["p", "100@0"]["score"], r["p", "100@50"]["score"]), (100, 0))
        self.assertEqual(r["p", "all"]["kv_share"], 0.25)

    def test_mcnemar(self):
        self.assertEqual(score.mcnemar([100, 0], [100, 0]), 1)
        self.assertEqual(score.mcnemar([100] * 5, [0] * 5), 2 / 32)
        self.assertEqual(score.mcnemar([100] * 5 + [0] * 2, [0] * 5 + [100, 0]), 2 * 7 / 64)
        prompts = [{"id": f"needle-{i}", "answer": "7", "chars": 1, "depth": 0, "kind": "single"} for i in range(3)]
        r = self.scores(prompts, [self.answer(p["id"], "7", "full") for p in prompts]
                        + [self.answer(p["id"], "8") for p in prompts])
        self.assertEqual((r["full", "all"]["mcnemar"], r["p", "all"]["mcnemar"]), ("", "0.25"))

    def test_repeat(self):
        prompts = [{"id": f"repeat-{i}", "answer": "to be or not", "chars": 9} for i in range(2)]
        r = self.scores(prompts, [self.answer("repeat-0", "to be! or not"), self.answer("repeat-1", "to be or nit")])
        self.assertEqual(r["p", "all"]["score"], 7.5)  # 5 and 10
        self.assertEqual(r["p", "all"]["se"], 2.5)

    def test_names(self):
        out = io.StringIO()
        make_prompts.main(["frequent", "--chars", "1500", "--cases", "2"], out)
        prompts = [json.loads(x) for x in out.getvalue().splitlines()]
        for p in prompts:
            words = p["user"].split("\n\n")[1].split()
            counts = sorted(((words.count(w), w) for w in set(words)), reverse=True)
            self.assertEqual([w for _, w in counts[:4]], ["....."] + p["answers"])
            self.assertAlmostEqual(len(words), 250, delta=50)
        r = self.scores(prompts, [self.answer(prompts[0]["id"], " ".join(prompts[0]["answers"])),
                                  self.answer(prompts[1]["id"], prompts[1]["answers"][2] + ".")])
        self.assertEqual(r["p", "all"]["score"], 66.67)

    def test_variables(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("".join(f"A sentence {i}. " for i in range(2000)))
            f.flush()
            out = io.StringIO()
            make_prompts.main(["track", "--text", f.name, "--chars", "1500", "--cases", "2"], out)
        p = json.loads(out.getvalue().splitlines()[1])
        number, said = p["user"].split("value ")[1][:5], re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", p["user"])
        self.assertEqual(said, list(zip(p["answers"], [number] + p["answers"])))

    def test_cut_before_the_question(self):
        """before: the prompt has every number and no question, the same for a text's questions; after: the whole is equal."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("".join(f"A sentence {i}. " for i in range(2000)))
            f.flush()
            made = {}
            for when in "before", "after":
                out = io.StringIO()
                make_prompts.main(["ask", "--text", f.name, "--chars", "1500", "--cases", "2", "--questions", "3",
                                   "--when", when], out)
                made[when] = [json.loads(x) for x in out.getvalue().splitlines()]
        before, after = made["before"], made["after"]
        self.assertEqual([p["id"] for p in before], [f"ask-1500-{c}-{k}" for c in range(2) for k in range(3)])
        self.assertEqual([len({p["prompt"] for p in v}) for v in (before, after)], [2, 6])
        for x, y in zip(before, after):
            self.assertEqual((x["prompt"] + x["given"] + x["scored"], ""), (y["prompt"] + y["scored"], y["given"]))
            self.assertNotIn("What is", x["prompt"])
            key = re.search(r"number for (\w+) mentioned", x["given"]).group(1)
            self.assertIn(f"numbers for {key} is: {x['scored'].strip()}.", x["prompt"])
        r = self.scores(before, [{**self.answer(p["id"], "", policy), "logprob": -i, "likeliest": i < n}
                                 for policy, n in (("full", 6), ("p", 4)) for i, p in enumerate(before)])
        self.assertEqual([r[k]["score"] for k in (("full", "all"), ("p", "all"), ("p", "less"), ("p", "nats"))],
                         [100, 66.67, -33.33, 2.5])
        self.assertEqual((r["p", "all"]["n"], r["p", "less"]["se"], r["p", "all"]["mcnemar"]), (2, 33.33, "1"))

    def test_choice(self):
        prompts = [{"id": f"choice-{q}-{k}", "scored": scored, "gold": 0} for q in "ab" for k, scored in enumerate((" four", " to"))]
        values = {"full": (-4, -3, -2, -3), "p": (-4, -3, -4, -1)}  # a character: -1 -1.5 -0.5 -1.5; -1 -1.5 -1 -0.5
        r = self.scores(prompts, [{**self.answer(p["id"], "", policy), "logprob": x}
                                  for policy, v in values.items() for p, x in zip(prompts, v)])
        self.assertEqual({k: v["score"] for k, v in r.items()}, {
            ("full", "all"): 50, ("full", "by length"): 100, ("p", "all"): 0, ("p", "by length"): 50, ("p", "less"): -50})
        self.assertEqual((r["p", "all"]["n"], r["p", "less"]["se"], r["p", "all"]["mcnemar"]), (2, 50, "1"))

    def test_word(self):
        prompts = [{"id": f"word-{i}-0", "gold": 0} for i in range(2)]
        r = self.scores(prompts, [{**self.answer(p["id"], ""), "logprob": -1.5, "likeliest": i == 0} for i, p in enumerate(prompts)])
        self.assertEqual({k[1]: v["score"] for k, v in r.items()}, {"all": 50, "nats": 1.5})

    def test_rouge(self):
        try:
            import rouge_score  # noqa: F401
        except ImportError as e:
            self.skipTest(str(e))
        prompts = [{"id": "summary-0", "answer": "the dog sat"}]
        r = self.scores(prompts, [self.answer("summary-0", "the cat sat", "full"), self.answer("summary-0", "the cat")])
        self.assertEqual(r["full", "rouge1 vs full"]["score"], 100)
        self.assertEqual(r["p", "rouge1 vs full"]["score"], 80)     # precision 1, recall 2/3
        self.assertEqual(r["p", "rouge2 vs full"]["score"], 66.67)  # 1, 1/2
        self.assertEqual(r["p", "rougeL vs truth"]["score"], 40)    # 1/2, 1/3


class Reads(unittest.TestCase):
    def test_by_hand(self):
        full = 2 * 1000 * 64 + 128
        for policy, live, bits in (
                ("full", 1000, 16 * full), ("q4_0", 1000, 4.5 * full), ("fp8", 1000, 8.25 * full),
                ("h2o:50%,min=16", 500, 16 * (500 * 128 + 128)),
                ("sparq:r=8,k=96", 1000, 16 * (8000 + 192 * 64 + 256)),
                ("sparq:r=8,k=96,mode=as-shipped", 1000, 16 * (8000 + 194 * 64 + 256)),
                ("fp8+sparq:r=8,k=96", 1000, 8.25 * (8000 + 192 * 64 + 256)),
                ("h2o:50%,min=16+sparq:r=16,k=128", 500, 16 * (8000 + 256 * 64 + 256)),
                ("topv:128", 1000, 16 * (64000 + 128 * 64 + 128)),
                ("infinigen:share=10%", 1000, 16 * (2 * full + 28 * (19000 + 101 * 128 + 128)) / 30),
                ("infinigen:share=10%,partial8=on", 1000,
                 (32 * full + 28 * (1000 * (19 * 8 + 16) + 16 * (101 * 128 + 128))) / 30)):
            self.assertAlmostEqual(reads.asked(policy, live, 1000), bits / (16 * full), places=9, msg=policy)
        self.assertIsNone(reads.asked("infinigen:alpha=4,cap=20%", 1000, 1000))
        self.assertIsNone(reads.moved("infinigen:alpha=4,cap=20%", 1000, 1000))

    def test_lines_are_the_engines(self):
        """Of the rows of the engine's own bytes that keep no positions or scores: 7900 tokens and half of 8 more."""
        path = os.path.join(SOURCE, "bench", "results", "2026-11-22-reading-7900.csv")
        with open(path, encoding="utf-8") as f:
            rows = list(csv.DictReader(line for line in f if not line.startswith("#")))
        full = float(rows[0]["kv_bytes"])
        n = 0
        for row in rows:
            policy = row["kv"].removesuffix(" with overlay").replace(",chunk=512", "").replace("count=0,", "")
            if "window" in policy or "h2o" in policy:
                continue
            n += 1
            self.assertAlmostEqual(reads.moved(policy, 7904, 7904), float(row["kv_bytes"]) / full, delta=0.0005, msg=policy)
        self.assertGreater(n, 20)
        self.assertAlmostEqual(reads.some(64, 2, 1, 2), 1 + 32 / 63)


class Steps(unittest.TestCase):
    def test_scaled(self):
        for policy, timed in (("sparq:r=32,k=384,layout=2k", "sparq:r=32,k=1975,layout=2k"), ("topv:32,renorm=off", "topv:165,renorm=off"),
                              ("sinks:16+window:50%,min=32", "sinks:16+window:33%,min=32"), ("q8_0", "q8_0"),
                              ("h2o:20%,min=16,recent=25%", "h2o:13%,min=16,recent=25%"),
                              ("infinigen:share=20%,partial8=on", "infinigen:share=20%,partial8=on")):
            self.assertEqual(step_time.scaled(policy), timed)

    def test_each_policy_once(self):
        all_of = [p for mine in step_time.runs() for p in mine]
        self.assertEqual(sorted(all_of), sorted(set(step_time.policies())))
        for mine in step_time.runs():
            self.assertEqual(len({p in cells.FORETOLD for p in mine}), 1, mine)

    def test_of_the_table(self):
        p = page.Page(None, steps={"q8_0": {"policy": "q8_0", "bytes_of_full": "0.531", "time_of_full": "7.49"}})
        self.assertEqual(p.step("q8_0"), ["53", "749"])
        self.assertEqual(p.step("full"), ["100", "100"])
        self.assertEqual(p.step("q4_0"), [page.DASH] * 2)
        self.assertEqual(page.Page(None).step("full"), [page.DASH] * 2)

    def test_agreements(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as a, tempfile.NamedTemporaryFile("w", suffix=".csv") as b:
            a.write("# by hand\nsetting,layer,agreement\nshare=10,2,0.5\nshare=10,3,0.7\n\"share=10,partial8\",2,0.4\n")
            b.write("layer,r,k,agreement\n0,8,128,0.25\n0,16,128,0.75\n")
            a.flush(), b.flush()
            p = page.Page(None, agreements=page.agreements([a.name, b.name]))
        for policy, said in (("infinigen:share=10%", "60"), ("infinigen:share=10%,partial8=on", "40"), ("infinigen:share=20%", page.DASH),
                             ("infinigen:share=10%,skew=off", page.DASH), ("infinigen:alpha=4,cap=20%", page.DASH),
                             ("sparq:r=8,k=96", "25"), ("sparq:r=32,k=96", page.DASH), ("fp8+sparq:r=16,k=192", page.DASH),
                             ("topv:32", "100"), ("full", "100"), ("q8_0", page.DASH)):
            self.assertEqual(p.agreed(policy), said, policy)


class Page(unittest.TestCase):
    ROWS = """# by hand
task,policy,metric,n,value,se,kv_bytes,kv_share,tokens_per_step
ppl-shakespeare-2k,full,perplexity,10,20,,100,1,9
ppl-shakespeare-2k,{h2o90},perplexity,10,20.1,,90,0.9,8
ppl-shakespeare-2k,{h2o70},perplexity,10,20.2,,70,0.7,7
ppl-shakespeare-2k,{h2o50},perplexity,10,20.3,,50,0.5,6
ppl-shakespeare-2k,{h2o50},perplexity more %,10,1.5,0.25,50,0.5,6
ppl-shakespeare-2k,{h2o50},nll of chunk 0,10,3,,50,0.5,6
ppl-shakespeare-2k,{h2o50},nll of chunk 1,10,3,,50,0.5,6
ppl-shakespeare-2k,{h2o50},nll of chunk 2,10,3,,50,0.5,6
repeat,{h2o50},all,4,20,2,50,0.5,6
"""

    def test_tables(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
            f.write(self.ROWS.format(**{f"h2o{b}": f'"{tables.policy("h2o", b)}"' for b in (90, 70, 50)}))
            f.flush()
            t = tables.Table(f.name)
        self.assertEqual(tables.smallest(t, "ppl-shakespeare-2k", "h2o"), (70, [90, 70, 50]))  # 20.2 is 20 / 0.99
        self.assertEqual(tables.smallest(t, "repeat", "h2o"), (None, []))
        got = page.fill("kept\n<!-- table perplexity -->\nold\n<!-- end -->\nkept too\n", page.Page(t))
        self.assertTrue(got.startswith("kept\n<!-- table perplexity -->\n| method |"))
        self.assertTrue(got.endswith("\n<!-- end -->\nkept too\n"))
        self.assertIn("| h2o | – | – | – | +1.50 ± 1.08 | – | – |", got)
        self.assertNotIn("old", got)
        self.assertEqual(page.Page(t).score("repeat", tables.policy("h2o", 50)), "20.0 ± 6.4")
        self.assertEqual([page.less_or_none(0.5, h) for h in (0.4, 0.5, None)], ["+0.50 ± 0.40", "+0.50 ± 0.50, none", "+0.50"])
        self.assertEqual(page.fill(got, page.Page(t)), got)

    def test_curves(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
            f.write("task,policy,metric,n,value,se,kv_bytes,kv_share,tokens_per_step,mcnemar\n"
                    "curve,kv8,mean KL,10,0.003,0.001,5,0.5,9,\ncurve,kv8,chunks,10,2,,5,0.5,9,\n"
                    '"curve","h2o:50%ctx,min=16",mean KL,10,0.05,,5,0.25,9,\n"curve","h2o:12%ctx,min=16",mean KL,10,0.2,,1,0.06,9,\n')
            f.flush()
            t = tables.Table(f.name)
        (kv8, line, points), h2o = tables.curves(t)
        self.assertEqual((kv8, line, points[0][:2]), ("kv8", False, (50, 0.003)))
        self.assertAlmostEqual(points[0][2], 0.012706, places=5)  # of two chunks
        self.assertEqual(h2o, ("h2o", True, [(25, 0.05, 0.0), (6, 0.2, 0.0)]))

    def test_tasks(self):
        for df, t in ((1, 12.706), (2, 4.303), (10, 2.228), (99, 1.984)):
            self.assertAlmostEqual(tables.t95(df), t, places=3)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as f:
            f.write("task,policy,metric,n,value,se,kv_bytes,kv_share,tokens_per_step,mcnemar\ncopa,full,all,100,60,5,9,1,9,\n"
                    "copa,kv8,all,100,61,5,9,1,9,0.7\ncopa,kv8,less,100,1,1,9,1,9,\ncopa,fp8,all,100,50,5,9,1,9,0.04\n"
                    "copa,fp8,less,100,-10,4,9,1,9,\ncopa,kv4,all,100,58,5,9,1,9,0.1\ncopa,kv4,less,100,-2,0.9,9,1,9,\n")
            f.flush()
            t = tables.Table(f.name)
        self.assertEqual([tasks_table.cell(t, "copa", p) for p in ("full", "kv8", "fp8", "kv4", "f32")],
                         ["60.0", "61.0 (+1.0 ± 2.0, none)", "50.0 (-10.0 ± 7.9, p 0.04)", "58.0 (-2.0 ± 1.8, none)", "–"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
