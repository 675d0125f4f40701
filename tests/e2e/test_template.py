#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chat templates that the daemon is given, and models that bring none, or no tokenizer at all."""
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

from daemon import PIPITD, SLOW, STORIES, Daemon
from lane import (ACCEPTED, CHAT, DETOKENIZE, DONE, EMBED, ERROR, GENERATE, SCORE, T_CONTENT, T_PROMPT, T_ROLE, T_STOP, T_TOKENS, TOKEN,
                  TOKENIZE, item, prompt, sampling, text_of)


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pt-")
        self.addCleanup(shutil.rmtree, self.folder)

    def daemon(self, *args, model=STORIES):
        d = Daemon(*args, model=model)
        self.addCleanup(d.stop)
        self.lane = d.ready()
        self.addCleanup(self.lane.close)
        return d

    def ask(self, items, **kw):
        return list(self.lane.events(self.lane.request(items, **kw)))

    def refused(self, *args, model=STORIES):
        """The daemon's words when it ends at once."""
        p = subprocess.run([PIPITD, "--model", model, "--backend", "ref", "--threads", "1", "--gateway", "no", "--runtime-dir",
                            self.folder, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * SLOW)
        self.assertEqual(p.returncode, 2, p.stderr)
        return p.stderr.decode()

    def write(self, text):
        path = os.path.join(self.folder, "t.jinja")
        with open(path, "w") as f:
            f.write(text)
        return path


class Given(Base):
    def test_without_one(self):
        self.daemon()
        e = self.ask(prompt("Hello", 5), kind=CHAT)[-1]
        self.assertEqual((e.type, e.code), (ERROR, "UNSUPPORTED"))
        for word in ("--template FILE|NAME", "chatml", "--raw"):
            self.assertIn(word, e.text)
        self.assertEqual(self.ask(prompt("Once", 3))[-1].type, DONE)

    def test_a_style(self):
        self.daemon("--template", "mistral")
        chat = self.ask(prompt("Once", 5), kind=CHAT)
        raw = self.ask(prompt("[INST] Once [/INST]", 5))
        self.assertEqual((chat[-1].type, chat[-1].n_prompt, text_of(chat)), (DONE, raw[-1].n_prompt, text_of(raw)))

    def test_a_file(self):
        self.daemon("--template", self.write("{% for m in messages %}{{ m.content }}{% endfor %} upon a time"))
        self.assertEqual(text_of(self.ask(prompt("Once", 10), kind=CHAT)), b", there was a little girl named Lily")

    def test_writes_no_more_than_is_planned(self):
        """What it makes of a conversation is tokenized: the plan holds as much as for the longest text of a request."""
        path = self.write("{% for i in range(8) %}{{ messages[0].content }}{% endfor %}")
        self.daemon("--template", path, "--lane-bytes", "1MiB")
        fits, more = (self.ask(item(T_PROMPT, "x" * n), kind=CHAT)[-1] for n in (32 << 10, (32 << 10) + 1))
        self.assertNotIn("writes more", fits.text if fits.type == ERROR else "")
        self.assertEqual((more.type, more.code), (ERROR, "TOO_LARGE"))
        self.assertIn("writes more than 262144 bytes", more.text)
        self.assertEqual(self.ask(item(T_PROMPT, "Once"), kind=CHAT)[-1].type, DONE)

    def test_refused(self):
        self.assertIn("needs the token <|im_start|>", self.refused("--template", "chatml"))
        self.assertIn("no file that can be read", self.refused("--template", "nonsense"))
        self.assertIn("line 1", self.refused("--template", self.write("{% for %}")))


class Ids(Base):
    """A file without `tokenizer.ggml.model`: ids in, ids out."""

    def test_ids_alone(self):
        path = os.path.join(self.folder, "ids.gguf")
        with open(STORIES, "rb") as f:
            raw = f.read()
        self.assertEqual(raw.count(b"tokenizer.ggml.model"), 1)
        with open(path, "wb") as f:
            f.write(raw.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.modeX"))
        self.daemon(model=path)
        ids = item(T_TOKENS, struct.pack("<5i", 1, 403, 407, 261, 378))
        events = self.ask(ids + sampling(max_tokens=8))
        self.assertEqual([e.type for e in events], [ACCEPTED] + [TOKEN] * 8 + [DONE])
        self.assertEqual([e.token for e in events[1:-1]], [432, 383, 286, 261, 376, 298, 315, 421])
        self.assertEqual((text_of(events), events[-1].reason, events[-1].n_new), (b"", "length", 8))
        self.assertEqual(self.ask(ids, kind=SCORE)[-1].type, DONE)
        for kind in (GENERATE, TOKENIZE, SCORE, EMBED):
            e = self.ask(prompt("Once", 3) if kind == GENERATE else item(T_PROMPT, "Once"), kind=kind)[-1]
            self.assertEqual((e.type, e.code), (ERROR, "UNSUPPORTED"), kind)
            self.assertIn("no tokenizer", e.text)
        e = self.ask(prompt("Once", 3), kind=CHAT)[-1]
        self.assertEqual((e.code, "token ids" in e.text), ("UNSUPPORTED", True), e.text)
        for e in self.ask(ids, kind=DETOKENIZE)[-1], self.ask(item(T_STOP, "x") + ids + sampling(max_tokens=8))[-1]:
            self.assertEqual((e.type, e.code, "no tokenizer" in e.text), (ERROR, "UNSUPPORTED", True), e)
        too_large = self.ask(item(T_TOKENS, struct.pack("<1i", 512)) + sampling(max_tokens=8))[-1]
        self.assertEqual((too_large.type, too_large.code), (ERROR, "INVALID"))
        self.assertIn("allowed are 0..511", too_large.text)
        self.assertIn("no tokenizer", self.refused("--template", "mistral", model=path))


if __name__ == "__main__":
    unittest.main(verbosity=2)
