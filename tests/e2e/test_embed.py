#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit embed against llama.cpp's embeddings of the same texts (tests/golden/make_embed_vectors.py), and what it refuses.

PIPIT_BUILD is the build folder."""
import json
import math
import os
import struct
import unittest

from daemon import DATA
from harness import CliDaemon
from lane import BULK, DONE, E2C, EMBED, ERROR, T_PROMPT, item, sampling

with open(os.path.join(DATA, "embed_vectors.json")) as f:
    GOLDEN = json.load(f)["texts"]
POOL_LAST, POOL_NONE, NOT_UNIT = 16, 32, 64


def length(v):
    return math.sqrt(sum(x * x for x in v))


def off(a, b):
    """The difference's length as a share of b's."""
    return length([x - y for x, y in zip(a, b, strict=True)]) / length(b)


class Embed(unittest.TestCase):
    def setUp(self):
        self.daemon = None

    def tearDown(self):
        if self.daemon:
            self.daemon.stop()

    def start(self, *args, **kw):
        self.daemon = CliDaemon(*args, **kw)

    def embed(self, *args):
        rc, out, err = self.daemon.cli("embed", *args)
        self.assertEqual((rc, err), (0, ""), self.daemon.text())
        return [[float(x) for x in line.split()] for line in out.splitlines()]

    def test_equal_to_another_implementation(self):
        """llama.cpp keeps K and V in f16, and cpu multiplies prompts in bf16."""
        for backend, most in (("ref", 2e-3), ("cpu", 1.2e-2)):
            self.start("--kv", "full", backend=backend)
            for g in GOLDEN:
                for pooling in ("mean", "last"):
                    got, = self.embed("--pooling", pooling, "--no-normalize", g["text"])
                    self.assertLess(off(got, g[pooling]), most, (backend, pooling, g["text"][:20]))
                    unit, = self.embed("--pooling", pooling, g["text"])
                    self.assertAlmostEqual(length(unit), 1, places=5)
                    self.assertLess(off(unit, [x / length(got) for x in got]), 1e-6)
                rows = self.embed("--pooling", "none", "--no-normalize", g["text"])
                self.assertEqual(len(rows), g["n_tokens"])
                mean, = self.embed("--no-normalize", g["text"])
                self.assertLess(off([sum(c) / len(rows) for c in zip(*rows)], mean), 1e-5)
                self.assertEqual(rows[-1], self.embed("--pooling", "last", "--no-normalize", g["text"])[0])
            self.daemon.stop()
        self.daemon = None

    def test_chunks_company_and_json(self):
        self.start("--sequences", "2", "--kv", "full", backend="cpu")
        long = GOLDEN[3]["text"]
        whole, = self.embed(long)
        parts, = self.embed("--kv", "full,chunk=16", long)
        self.assertLess(off(parts, whole), 1e-3)
        self.assertEqual(self.embed("--kv", "full,chunk=16", long)[0], parts, "also from kept pages")
        alone = self.daemon.cli("ask", "--raw", "--temp", "0", "-n", "200", "Once upon a time")[1]
        p = self.daemon.start("ask", "--raw", "--temp", "0", "-n", "200", "Once upon a time")
        while p.poll() is None:
            self.assertEqual(self.embed(long)[0], whole)
        self.assertEqual(p.communicate()[0], alone)
        rc, out, _ = self.daemon.cli("embed", "--json", long)
        got = json.loads(out)
        self.assertEqual((rc, got["prompt_tokens"], got["normalized"], got["pooling"]), (0, GOLDEN[3]["n_tokens"], True, "mean"))
        self.assertLess(off(got["embedding"], whole), 1e-6)

    def test_refusals(self):
        self.start("--ctx", "512")
        lane = self.daemon.lane()

        def last(lease, flags=0, text="Once"):
            events = list(lane.events(lane.request(item(T_PROMPT, text) + sampling(flags=flags), kind=EMBED, out=lease)))
            return events[-1], [e for e in events if e.type == BULK]
        e, _ = last(None)
        self.assertEqual((e.type, e.code), (ERROR, "INVALID"))
        small = lane.lease(E2C, 255)
        e, _ = last(small, NOT_UNIT)
        self.assertEqual((e.code, e.count_a, e.count_b), ("TOO_LARGE", 256, 255))
        lease = lane.lease(E2C, 4096)
        e, bulk = last(lease, NOT_UNIT | POOL_LAST)
        self.assertEqual((e.type, bulk[0].kind, bulk[0].n_rows, bulk[0].n_cols), (DONE, 4, 1, 64))
        values = struct.unpack_from("<64f", lane.e2c, lease.offset)
        self.assertTrue(all(math.isfinite(x) for x in values) and any(values))
        e, _ = last(lease, POOL_NONE, "word " * 40)
        self.assertEqual(e.code, "TOO_LARGE")
        self.assertGreater(e.count_a, 4096)
        self.assertEqual(last(lease)[0].reason, "stop")
        lane.close()
        rc, _, err = self.daemon.cli("embed", "word " * 1000)
        self.assertEqual(rc, 5, err)
        self.daemon.stop()
        self.start("--kv", "h2o:16")
        rc, _, err = self.daemon.cli("embed", GOLDEN[3]["text"])
        self.assertNotEqual(rc, 0)
        self.assertIn("prefill=dense or bounded", err)
        self.embed("--kv", "h2o:16,prefill=bounded", "Once upon a time")
        self.embed("--kv", "h2o:16,prefill=dense", "Once upon a time")


if __name__ == "__main__":
    unittest.main()
