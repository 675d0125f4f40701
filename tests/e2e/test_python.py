#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package on libpipit with the real daemon.

PIPIT_BUILD is the build folder."""
import asyncio
import ctypes
import gc
import os
import shutil
import signal
import sys
import tempfile
import unittest

from daemon import BUILD, DATA, wait_until
from harness import CliDaemon

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client/python"))
try:
    import cffi  # noqa: F401
    import numpy
except ImportError as missing:
    print(f"python3-cffi or python3-numpy is not installed: {missing}")
    sys.exit(77)
ctypes.CDLL(os.path.join(BUILD, "client/libpipit.so.0"))  # so that dlopen by name finds this one
import pipit  # noqa: E402
from pipit._lib import ffi, lib  # noqa: E402

with open(os.path.join(DATA, "stories260K.txt"), encoding="utf-8") as story_file:
    STORY = story_file.read()


class Python(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = CliDaemon("--sequences", "4")

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        assert code == 0, (code, cls.daemon.text())

    def setUp(self):
        self.c = pipit.Client(self.daemon.folder)
        self.addCleanup(self.c.close)

    def test_the_story(self):
        a = self.c.generate("", max_tokens=200, temperature=0)
        self.assertEqual(a.text, STORY)
        self.assertEqual((a.done.reason, a.done.n_new, len(a.tokens)), ("length", 200, 200))
        self.assertGreater(a.done.kv_bytes, 0)

    def test_an_option_changes_nothing_else(self):
        """Said without options, and then with its seed, its length or the temperature that is the default alone."""
        plain = self.c.generate("Once upon a time")
        seed, n = plain.done.seed, min(plain.done.n_new, 60)
        self.assertTrue(all(t.logprob < 0 for t in plain.tokens))
        for more in ({}, {"max_tokens": n}, {"temperature": 0.7}, {"top_p": 0.95}, {"min_p": 0.05}, {"top_k": 0}, {"logprobs": 0}):
            again = self.c.generate("Once upon a time", seed=seed, **more)
            self.assertEqual([(t.id, t.logprob) for t in again.tokens][:n], [(t.id, t.logprob) for t in plain.tokens][:n], more)

    def test_sessions(self):
        folder = tempfile.mkdtemp(prefix="pp-")
        self.addCleanup(shutil.rmtree, folder)
        daemon = CliDaemon("--state-dir", folder)
        self.addCleanup(daemon.stop)
        with pipit.Client(daemon.folder) as c:
            self.assertEqual(c.sessions(), [])
            self.assertEqual(daemon.cli("ask", "--raw", "-n", "2", "--session", "trip", "Once")[0], 0)
            listed = c.sessions()
            self.assertEqual([s["name"] for s in listed], ["trip"])
            self.assertGreater(listed[0]["bytes"], 4096)
            c.session_remove("trip")
            self.assertEqual(c.sessions(), [])
            with self.assertRaises(pipit.PipitError) as caught:
                c.session_remove("trip")
            self.assertIn("no session trip", str(caught.exception))

    def test_about(self):
        self.assertEqual(self.c.info()["state"], "ready")
        self.assertGreater(self.c.status()["kv_bytes_total"], 0)
        self.assertIn("\npipit_ready 1\n", self.c.metrics())
        report = self.c.report()
        self.assertEqual((report["backend"].partition(":")[0], report["cause"]), (self.c.status()["backend"], ""))
        self.assertIn("full", report["policies"][0]["policy"])
        ids = self.c.tokenize("Once upon a time")
        self.assertEqual(self.c.detokenize(ids).strip(), "Once upon a time")
        self.assertEqual(self.c.tokenize(""), self.c.tokenize("x")[:1])

    def test_a_ping_leaves_the_lane_as_it_was(self):
        self.assertEqual(lib.pipit_client_ping(self.c.c, ffi.NULL), 0)
        self.assertEqual(self.c.generate("Once upon a time", temperature=0, max_tokens=5).text, ", there was a little")

    def test_embed(self):
        unit = self.c.embed("Once upon a time")
        rows = self.c.embed("Once upon a time", pooling="none", unit=False, bytes=256)
        self.assertEqual((unit.shape, rows.shape), ((64,), (5, 64)))
        mean = rows.mean(axis=0)
        self.assertLess(float(abs(mean / numpy.linalg.norm(mean) - unit).max()), 1e-5)
        self.assertFalse(unit.flags.writeable)

    def test_stream_stop_and_logprobs(self):
        events = list(self.c.stream("Once upon a time", temperature=0, max_tokens=50, stop=[" girl"], logprobs=2))
        text = "".join(t.text for t in events[:-1])
        self.assertEqual((text, events[-1].reason), (", there was a little", "stop"))
        t = events[0]
        self.assertEqual(len(t.alternatives), 2)
        self.assertEqual(t.alternatives[0].token, t.id)
        self.assertAlmostEqual(t.alternatives[0].logprob, t.logprob, places=5)

    def test_leaving_the_loop_cancels(self):
        for ev in self.c.stream("Once", max_tokens=0, ignore_end=1):
            break
        self.assertTrue(wait_until(lambda: self.c.status()["n_running"] == 0))

    def test_tokens_and_policies(self):
        ids = self.c.tokenize("Once upon a time")
        a = self.c.generate(ids, temperature=0, max_tokens=8)
        self.assertEqual(a.text, self.c.generate("Once upon a time", temperature=0, max_tokens=8).text)

    def test_errors(self):
        with self.assertRaises(pipit.PipitError) as e:
            self.c.generate("word " * 5000)
        self.assertEqual(e.exception.code, "CONTEXT_OVERFLOW")
        self.assertGreater(e.exception.count_a, e.exception.count_b)
        with self.assertRaises(pipit.PipitError) as e:
            self.c.generate("a", kv="windw:3")
        self.assertEqual(e.exception.code, "INVALID")
        with self.assertRaises(pipit.PipitError):
            self.c.generate("a", temperature=-1)
        with self.assertRaises(TypeError):
            self.c.generate("a", temprature=1)
        with self.assertRaises(pipit.PipitError) as e:
            pipit.Client("/nowhere")
        self.assertEqual(e.exception.code, "UNREACHABLE")
        self.c.close()
        with self.assertRaises(pipit.PipitError):
            self.c.status()

    def test_score_and_logits_agree(self):
        text = "Once upon a time there was a little girl"
        ids = self.c.tokenize(text)
        scores = self.c.score(text)
        self.assertEqual([t.id for t in scores], ids[1:])
        rows, views = [], 0
        for at, view in self.c.logits(text, window=3):
            self.assertFalse(view.flags.writeable)
            self.assertFalse(view.flags.owndata)
            self.assertLessEqual(len(view), 3)
            self.assertEqual(at, len(rows))
            rows.extend(numpy.array(view))
            views += 1
        self.assertGreater(views, 2)
        for row, t in zip(rows, scores):
            x = row.astype(numpy.float64)
            self.assertAlmostEqual(x[t.id] - x.max() - numpy.log(numpy.exp(x - x.max()).sum()), t.logprob, places=4)

    def test_views_outlive_their_client(self):
        gc.collect()  # what earlier tests left goes now, or it would be counted here
        c = pipit.Client(self.daemon.folder)
        kept = [view for _, view in c.logits("Once upon a time", window=64)]
        same = [view.sum() for view in kept]
        n_lanes = self.c.status()["n_lanes"]
        c.close()
        gc.collect()
        self.assertEqual([view.sum() for view in kept], same)
        del kept
        gc.collect()
        self.assertTrue(wait_until(lambda: self.c.status()["n_lanes"] < n_lanes))

    def test_killed_engine_the_text_goes_on(self):
        text = ""
        for i, ev in enumerate(self.c.stream("", max_tokens=200, temperature=0)):
            text += ev.text if isinstance(ev, pipit.Token) else ""
            if i == 20:
                os.kill(self.daemon.child("pipit-engine"), signal.SIGKILL)
        self.assertEqual(text, STORY)

    def test_asyncio(self):
        async def many():
            async with pipit.aio.Client(runtime_dir=self.daemon.folder) as c:
                answers = await asyncio.gather(*(c.generate(p, temperature=0, max_tokens=30) for p in ("Once", "One") * 6))
                with self.assertRaises(pipit.PipitError):
                    await c.generate("word " * 5000)
                task = asyncio.ensure_future(c.generate("Once", ignore_end=1))
                await asyncio.sleep(0.05)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                return answers

        answers = asyncio.run(many())
        for i, p in enumerate(("Once", "One") * 6):
            self.assertEqual(answers[i].text, self.c.generate(p, temperature=0, max_tokens=30).text)
        self.assertTrue(wait_until(lambda: self.c.status()["n_running"] == 0))


if __name__ == "__main__":
    unittest.main()
