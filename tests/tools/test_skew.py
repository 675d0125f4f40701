#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-skew and pipit-calibrate against NumPy: the queries and keys of a real model by tests/golden/numpy_model.py, which shares no code with
it, their singular values by LAPACK. And what it refuses.

    test_skew.py PIPIT-SKEW TOK_DUMP PIPIT-CALIBRATE          needs numpy and gguf, else exits 77"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy as np
except ImportError as e:
    print(f"{e.name} is missing")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
sys.path.insert(0, str(ROOT / "golden"))
import make_cache_vectors  # noqa: E402
import numpy_model  # noqa: E402

MODEL = DATA / "stories260K.gguf"
N = 96
BASE = {"name": "full", "budget": 0, "recent": 0, "sinks": 0, "noise": "none", "seed": 0, "observe": 64,
        "tau0": 1.0, "tau1": 1.0, "scope": "head", "pos_new": False, "damp": 1.0, "select": None, "n_prompt": N}


class Recorder(numpy_model.Model):
    """Keeps every layer's inputs and rotated queries."""

    def attend(self, j, x, pos, tau):
        self.seen_inputs.setdefault(j, []).append(x)
        q = self.rope(self.project(f"blk.{j}.attn_q", x, self.n_head), pos)
        self.seen_queries.setdefault(j, []).append(q)
        return super().attend(j, x, pos, tau)


def run(*args):
    return subprocess.run([SKEW, *map(str, args)], capture_output=True, text=True)


class Skew(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.dir.name) / "skew.gguf"
        cls.text = DATA / "stories260K.txt"
        cls.result = run("--model", MODEL, "--text", cls.text, "--tokens", N, "--report", cls.out)
        reader = gguf.GGUFReader(str(cls.out))
        cls.keys = {k: f.contents() for k, f in reader.fields.items()}
        cls.tensors = {t.name: np.array(t.data, np.float64) for t in reader.tensors}
        hexed = cls.text.read_bytes().hex()
        ids = subprocess.run([DUMP, str(MODEL), "1"], input=hexed + "\n", capture_output=True, text=True).stdout
        cls.ids = [int(i) for i in ids.split()][:N]
        cls.m = Recorder([MODEL], BASE)
        cls.m.seen_queries, cls.m.seen_inputs = {}, {}
        for pos, token in enumerate(cls.ids):
            cls.m.token(token, pos, 1.0)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def heads(self, layer):
        """Of each K head: its queries, its keys, and what the file has for it."""
        m, d = self.m, self.m.dim
        q = np.array(m.seen_queries[layer])  # (N, n_head, d)
        share = m.n_head // m.n_kv
        for h in range(m.n_kv):
            yield (q[:, h * share:(h + 1) * share].reshape(-1, d), np.array(m.stores[layer].k[h]),
                   self.tensors[f"blk.{layer}.attn_skew.weight"][h * d:(h + 1) * d],
                   self.tensors[f"blk.{layer}.attn_columns.weight"][h * d:(h + 1) * d])

    def test_runs(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)
        self.assertEqual(len(self.ids), N)
        self.assertEqual(self.keys["pipit.overlay.base_sha256"], hashlib.sha256(MODEL.read_bytes()).hexdigest())
        layers = sorted({int(name.split(".")[1]) for name in self.tensors})
        self.assertEqual(layers, list(range(2, self.m.n_layer)))
        rows = [line.split() for line in self.result.stdout.splitlines()[1:]]
        self.assertEqual([int(r[0]) for r in rows], list(range(self.m.n_layer)))
        self.assertTrue(all(-1 <= float(r[1]) <= 1 for r in rows[1:]))

    def test_orthogonal_and_ordered(self):
        for layer in range(2, self.m.n_layer):
            for q, k, a, _ in self.heads(layer):
                self.assertLess(abs(a @ a.T - np.eye(len(a))).max(), 1e-5)
                self.assertLess(abs((q @ a.T) @ (k @ a.T).T - q @ k.T).max(), 1e-4 * abs(q @ k.T).max())
                energy = ((q @ a.T) ** 2).sum(0)
                want = np.linalg.svd(q, compute_uv=False) ** 2
                self.assertLess(abs(energy - want).max(), 1e-3 * want[0])
                self.assertTrue((np.diff(energy) <= 1e-3 * want[0]).all())

    def test_columns(self):
        for layer in range(2, self.m.n_layer):
            for q, k, _, order in self.heads(layer):
                self.assertTrue(((order == 0) | (order == 1)).all() and (order.sum(0) == 1).all())
                sums = order @ (abs(q).sum(0) + abs(k).sum(0))
                self.assertTrue((np.diff(sums) <= 1e-3 * sums[0]).all())

    def test_refuses(self):
        out = pathlib.Path(self.dir.name) / "other.gguf"
        for args, code, says in [
            (("--model", MODEL, out), 2, "--text"),
            (("--model", MODEL, "--text", self.text, "--tokens", 100000, out), 2, "are needed"),
            (("--model", "/nonexistent", "--text", self.text, out), 6, "nonexistent"),
            (("--model", MODEL, "--text", "/nonexistent", out), 6, "nonexistent"),
            (("--model", MODEL, "--overlay", self.out, "--text", self.text, out), 2, "skews already"),
            (("--model", DATA / "cache_model.gguf", "--overlay", self.out, "--text", self.text, out), 6, "another base"),
        ]:
            r = run(*args)
            self.assertEqual(r.returncode, code, r.stderr)
            self.assertIn(says, r.stderr)
            self.assertFalse(out.exists())

    def test_refuses_recurrent_layers(self):
        for tool in SKEW, CALIBRATE:
            for name in "arch_qwen35.gguf", "arch_lfm2.gguf":
                out = pathlib.Path(self.dir.name) / "other.gguf"
                r = subprocess.run([tool, "--model", str(DATA / name), "--text", str(self.text), str(out)], capture_output=True,
                                   text=True)
                self.assertEqual(r.returncode, 8, r.stderr)
                self.assertIn("not offered", r.stderr)
                self.assertFalse(out.exists())

    def check_reach(self, got):
        """How many keys hold 0.9 of a query's weight, on average over 14 rows of the only chunk."""
        self.assertEqual(len(got), self.m.n_layer)
        for layer in range(self.m.n_layer):
            counts = []
            for q, k in self.pairs(layer):
                for row in range(0, N, 7):
                    x = q[row] @ k[:row + 1].T / np.sqrt(self.m.dim)
                    w = np.sort(np.exp(x - x.max()))[::-1]
                    counts.append(1 + np.searchsorted(np.cumsum(w) / w.sum(), 0.9))
            self.assertAlmostEqual(got[layer], np.mean(counts), delta=0.1)

    def pairs(self, layer):
        """Queries and keys of each query head."""
        for h in range(self.m.n_head):
            yield (np.array(self.m.seen_queries[layer])[:, h], np.array(self.m.stores[layer].k[h * self.m.n_kv // self.m.n_head]))

    def test_centers(self):
        out = pathlib.Path(self.dir.name) / "center.gguf"
        args = [CALIBRATE, "--model", MODEL, "--text", self.text, "--tokens", str(N)]
        r = subprocess.run([*map(str, args), str(out)], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        tensors = {t.name: np.array(t.data, np.float64) for t in gguf.GGUFReader(str(out)).tensors}
        self.assertEqual(len(tensors), 2 * self.m.n_layer)
        for layer in range(self.m.n_layer):
            want = np.concatenate([np.array(k).mean(0) for k in self.m.stores[layer].k])
            got = tensors[f"blk.{layer}.attn_center.weight"]
            self.assertLess(abs(got - want).max(), 1e-3 * abs(want).max())
            q = np.array(self.m.seen_queries[layer], np.float64)
            q = q.reshape(len(q), self.m.n_kv, -1, self.m.dim)
            want = np.einsum("nkgi,nkgj->kij", q, q) / (len(q) * q.shape[2])
            got = tensors[f"blk.{layer}.attn_query.weight"].reshape(want.shape)
            self.assertLess(abs(got - want).max(), 1e-3 * abs(want).max())
        self.check_reach(gguf.GGUFReader(str(out)).fields["pipit.cache.layer_weights"].contents())
        again = pathlib.Path(self.dir.name) / "again.gguf"
        for more, says in [(["--overlay", out, again], "centers already"), ([], "OUT.gguf"),
                           (["--tokens", "100000", again], "are needed")]:
            r = subprocess.run([*map(str, args), *map(str, more)], capture_output=True, text=True)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn(says, r.stderr)
            self.assertFalse(again.exists())

    def test_stores_of_other_widths(self):
        """A wide overlay's store has dims of its own. The layers ahead of it are as without it."""
        names = {k: pathlib.Path(self.dir.name) / f"{k}.gguf" for k in ("bare", "wide", "with", "again")}
        m = self.m
        make_cache_vectors.write_wide(names["wide"], MODEL, 2, 3, "wide", 2, 20, 12, m.n_layer, m.n_head * m.dim, m.n_head)
        args = [CALIBRATE, "--model", MODEL, "--text", self.text, "--tokens", N]
        for more in [names["bare"]], ["--overlay", names["wide"], names["with"]]:
            r = subprocess.run([*map(str, args + more)], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stderr)
        bare, got = ({t.name: np.array(t.data, np.float64) for t in gguf.GGUFReader(str(names[k])).tensors} for k in ("bare", "with"))
        for layer in range(2):
            for kind in "center", "query":
                name = f"blk.{layer}.attn_{kind}.weight"
                self.assertTrue((got[name] == bare[name]).all(), name)

        class Asked(numpy_model.Model):
            def queries(self, j, x, pos):
                q = super().queries(j, x, pos)
                self.asked.setdefault(self.owner(j), []).append(q)
                return q

        m = Asked([MODEL, names["wide"]], {**BASE, "observe": N})  # the prompt's rows go through all layers
        m.asked = {}
        for pos, token in enumerate(self.ids):
            m.token(token, pos, 1.0)
        self.assertEqual(sorted(m.stores), [0, 1, 2])
        want = np.concatenate([np.array(k).mean(0) for k in m.stores[2].k])
        self.assertEqual(want.shape, (40,))
        self.assertLess(abs(got["blk.2.attn_center.weight"] - want).max(), 1e-3 * abs(want).max())
        q = np.array(m.asked[2], np.float64)
        q = q.reshape(len(q), 2, -1, 20)
        want = np.einsum("nkgi,nkgj->kij", q, q) / (len(q) * q.shape[2])
        self.assertLess(abs(got["blk.2.attn_query_swiftkv.weight"].reshape(want.shape) - want).max(), 1e-3 * abs(want).max())
        # the engine takes both, else it would say another thing
        both = ["--overlay", names["wide"], "--overlay", names["with"], names["again"]]
        r = subprocess.run([*map(str, args + both)], capture_output=True, text=True)
        self.assertEqual(r.returncode, 2, r.stderr)
        self.assertIn("centers already", r.stderr)
        mixed = ["--overlay", names["wide"], "--overlay", names["bare"], names["again"]]
        r = subprocess.run([*map(str, args + mixed)], capture_output=True, text=True)
        self.assertEqual(r.returncode, 6, r.stderr)
        self.assertIn("with its SwiftKV overlay", r.stderr)

    def kvzip(self, ids, ask):
        """Of each layer: inputs of a text's tokens but its first four, and the scores that saying it again gives them."""
        n, ids = len(ids), self.ids[:1] + ids + ask + ids  # BOS first
        m = Recorder([MODEL], {**BASE, "n_prompt": len(ids)})
        m.seen_queries, m.seen_inputs = {}, {}
        for pos, token in enumerate(ids):
            m.token(token, pos, 1.0)
        first, again = slice(5, n + 1), slice(len(ids) - n, len(ids))
        for layer in range(m.n_layer):
            x = np.array(m.seen_inputs[layer])
            o = m.w[f"blk.{layer}.attn_output.weight"].reshape(-1, m.n_head, m.dim)
            y = np.full((m.n_kv, n - 4), -np.inf)
            for head in range(m.n_head):
                h = head * m.n_kv // m.n_head
                q, k, v = np.array(m.seen_queries[layer])[:, head], np.array(m.stores[layer].k[h]), np.array(m.stores[layer].v[h])
                logits = np.where(np.tri(len(ids), dtype=bool), q @ k.T / np.sqrt(m.dim), -np.inf)
                w = np.exp(logits - logits.max(1, keepdims=True))
                w /= w.sum(1, keepdims=True) * np.linalg.norm(x, axis=1)[:, None]
                y[h] = np.maximum(y[h], np.log(w[again, first].max(0) * np.linalg.norm(v[first] @ o[:, head].T, axis=1)))
            yield x[first], y.T

    def test_scores(self):
        """The maps are what ridge regression gives on KVzip's scores, and explain what is printed."""
        n = 48
        out = pathlib.Path(self.dir.name) / "scores.gguf"
        args = [CALIBRATE, "--model", MODEL, "--text", self.text, "--scores", "--tokens", n]
        r = subprocess.run([*map(str, args), "--check", str(self.text), str(out)], capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(f"fitting {self.m.n_layer} layers takes ", r.stderr)
        encode = lambda t, flags: [int(i) for i in subprocess.run([DUMP, str(MODEL), flags], input=t.encode().hex() + "\n",
                                                                  capture_output=True, text=True).stdout.split()]
        ids, ask = encode(self.text.read_text(), "0"), encode("\n\nRepeat the previous context exactly.\n\n", "8")
        pieces = [list(self.kvzip(ids[i * (len(ids) // 4):][:n], ask)) for i in range(4)]
        printed = [[float(x) for x in line.split()[1:]] for line in r.stdout.splitlines()[1:]]
        tensors = {t.name: t for t in gguf.GGUFReader(str(out)).tensors}
        self.assertEqual(len(tensors), 2 * self.m.n_layer)
        for layer in range(self.m.n_layer):
            x, y = pieces[0][layer]
            a = x - x.mean(0)
            squares = a.T @ a
            want = np.linalg.solve(squares + 0.1 * np.trace(squares) / len(squares) * np.eye(len(squares)), a.T @ (y - y.mean(0))).T
            t = tensors[f"blk.{layer}.attn_score.weight"]
            got = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
            self.assertLess(abs(got - want).max(), 2e-2 * abs(want).max(), f"layer {layer}")
            bias = np.array(tensors[f"blk.{layer}.attn_score.bias"].data, np.float64)
            self.assertLess(abs(bias - (y - x @ want.T).mean(0)).max(), 1e-2)
            x, y = (np.concatenate([p[layer][i] for p in pieces]) for i in range(2))
            explains = 1 - ((y - x @ want.T - bias) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
            self.assertLess(abs(explains - printed[layer]).max(), 0.02)
        once = pathlib.Path(self.dir.name) / "once.gguf"
        for more, code, says in [(["--overlay", out, once], 2, "already"), (["--tokens", "8", once], 2, "at least 16"),
                                 (["--tokens", "100000", once], 2, "are needed"), (["--check", "/nonexistent", once], 6, "nonexistent")]:
            r = subprocess.run([*map(str, args), *map(str, more)], capture_output=True, text=True)
            self.assertEqual(r.returncode, code, r.stderr)
            self.assertIn(says, r.stderr)
            self.assertFalse(once.exists())


if __name__ == "__main__":
    SKEW, DUMP, CALIBRATE = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
