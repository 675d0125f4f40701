#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit batch with the real daemon: order, errors among answers, a full daemon, input that comes slowly, signals,
a daemon that dies.

PIPIT_BUILD is the build folder."""
import json
import os
import shutil
import signal
import subprocess
import unittest

from daemon import wait_until
from harness import CliDaemon, finish, read_some

ARGS = ("batch", "--temp", "0", "--raw", "-n", "12")


def lines_of(*objects):
    return b"".join(json.dumps(o).encode() + b"\n" for o in objects)


class Batch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = CliDaemon("--sequences", "2", "--max-queue", "2")

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        assert code == 0, (code, cls.daemon.text())

    def batch(self, data, *more):
        rc, out, err = self.daemon.cli(*ARGS, *more, stdin=data)
        return rc, [json.loads(l) for l in out.splitlines()], err

    def ask(self, prompt, *more):
        rc, out, err = self.daemon.cli("ask", "--raw", "--temp", "0", *more, prompt)
        self.assertEqual((rc, err), (0, ""))
        return out.decode()[:-1]

    def test_answers_in_order(self):
        """More lines than the daemon admits and queues, long before short; each equals its own ask."""
        prompts = ["Once upon a time", "One day", "The dog", "She said", "Tom"] * 8
        asked = [{"prompt": p, "custom_id": {"n": i}, "max_tokens": 40 if i % 5 == 0 else 3} for i, p in enumerate(prompts)]
        rc, got, err = self.batch(lines_of(*asked), "--jobs", "16")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual([o["index"] for o in got], list(range(40)))
        self.assertEqual([o["custom_id"]["n"] for o in got], list(range(40)))
        for a in asked[:5]:
            want = self.ask(a["prompt"], "-n", str(a["max_tokens"]))
            same = [o["text"] for o, b in zip(got, asked) if b["prompt"] == a["prompt"]]
            self.assertEqual(set(same), {want})

    def test_bad_lines_do_not_stop_the_others(self):
        bad = [b"{\n", b"[1]\n", b'{"prompt": "a", "promt": 1}\n', b'{"max_tokens": 3}\n', b'{"prompt": "a", "tokens": [1]}\n',
               b'{"prompt": "a", "temperature": -1}\n', b'{"tokens": [99999999]}\n', b'{"prompt": "a\\u0000b"}\n',
               b'{"messages": [{"role": "king", "content": "x"}]}\n', b'{"prompt": "a", "kv": "windw:3"}\n', b'{"prompt": "a", "stop": ""}\n',
               b'{"prompt": "a", "seed": -1}\n', b'{"prompt": "a", "raw": 1}\n', b'\xff\n', b'"text"\n',
               lines_of({"prompt": "word " * 4000})]
        data = b"".join(b + b"\n  \r\n" + lines_of({"prompt": "Once", "max_tokens": 2}) for b in bad)
        rc, got, err = self.batch(data)
        self.assertEqual(len(got), 2 * len(bad))
        self.assertEqual([o["type"] for o in got], ["error", "done"] * len(bad))
        self.assertEqual(got[14]["error"]["code"], "INVALID")
        self.assertEqual(got[-2]["error"]["code"], "CONTEXT_OVERFLOW")
        for o, b in zip(got[::2], bad):
            self.assertTrue(o["error"]["text"], b)
        self.assertEqual(rc, 2, "the first failure's code")
        self.assertIn(f"{len(bad)} of {len(got)} lines failed, the first is index 0: ", err)

    def test_bad_lines_alone(self):
        """Nothing runs that could wake it: the last line without its newline; more bad lines than the window holds."""
        for data, n in ((b"[1]", 1), (b'{"prmpt": "a"}\n' * 300, 300)):
            rc, got, err = self.batch(data)
            self.assertEqual((rc, [o["type"] for o in got]), (2, ["error"] * n))
        p = self.daemon.start(*ARGS, stdin=subprocess.PIPE)
        p.stdin.write(b"{}\n")
        p.stdin.flush()
        self.assertEqual(json.loads(read_some(p))["type"], "error")
        self.assertEqual(finish(p)[0], 2)

    def test_a_full_daemon_is_asked_again(self):
        rc, got, err = self.batch(lines_of(*[{"prompt": "Once", "max_tokens": 30}] * 24), "--jobs", "24")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(len({o["text"] for o in got}), 1)

    def test_answers_come_while_input_is_open(self):
        p = self.daemon.start(*ARGS, stdin=subprocess.PIPE)
        for i in range(3):
            p.stdin.write(lines_of({"prompt": "Once", "custom_id": i}))
            p.stdin.flush()
            self.assertEqual(json.loads(read_some(p).splitlines()[-1])["custom_id"], i)
        p.stdin.write(b'{"prompt": "Once", "custom_id": 3}')  # the last line may lack its newline
        rc, out, err = finish(p)
        self.assertEqual((rc, json.loads(out)["custom_id"]), (0, 3))

    def test_empty_and_missing_input(self):
        self.assertEqual(self.batch(b""), (0, [], ""))
        rc, out, err = self.daemon.cli("batch", "/nowhere.jsonl")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("/nowhere.jsonl", err)

    def test_interrupted(self):
        p = self.daemon.start("batch", "--temp", "0", "--raw", "--jobs", "2", stdin=subprocess.PIPE)
        p.stdin.write(lines_of({"prompt": "Once", "max_tokens": 2}, *[{"prompt": "Once", "max_tokens": 450}] * 50))
        p.stdin.flush()
        first = read_some(p)
        p.send_signal(signal.SIGINT)
        rc, out, err = finish(p)
        self.assertEqual(rc, 130, err)
        got = [json.loads(l) for l in (first + out).splitlines()]
        self.assertEqual(got[0]["finish_reason"], "length")
        self.assertEqual([o["index"] for o in got], list(range(len(got))))
        self.assertTrue(wait_until(self.daemon.idle))

    def test_reader_gone(self):
        p = self.daemon.start(*ARGS, stdin=subprocess.PIPE)
        p.stdin.write(lines_of(*[{"prompt": "Once"}] * 200))
        p.stdin.close()
        p.stdin = None
        read_some(p)
        p.stdout.close()
        p.stdout = None
        err = p.stderr.read()
        self.assertEqual((p.wait(), err), (7, b""))
        p.stderr.close()
        self.assertTrue(wait_until(self.daemon.idle))


class Deaths(unittest.TestCase):
    def test_killed_engine_nothing_is_lost(self):
        d = CliDaemon("--sequences", "2")
        p = d.start("batch", "--temp", "0", "--raw", "-n", "200", stdin=subprocess.PIPE)
        p.stdin.write(lines_of(*[{"prompt": ""}] * 12))
        p.stdin.close()
        p.stdin = None
        first = read_some(p)
        os.kill(d.child("pipit-engine"), signal.SIGKILL)
        rc, out, err = finish(p, 60)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(len({json.loads(l)["text"] for l in (first + out).splitlines()}), 1)
        self.assertEqual(d.stop(), 0)

    def test_killed_front(self):
        d = CliDaemon("--sequences", "2")
        p = d.start("batch", "--temp", "0", "--raw", "-n", "100", "--jobs", "2", stdin=subprocess.PIPE)
        p.stdin.write(lines_of(*[{"prompt": ""}] * 200))
        p.stdin.close()
        p.stdin = None
        first = read_some(p)
        d.process.kill()
        d.process.wait()
        shutil.rmtree(d.folder)
        rc, out, err = finish(p, 60)
        self.assertEqual(rc, 3, err)
        got = [json.loads(l) for l in (first + out).splitlines()]
        self.assertEqual([o["index"] for o in got], list(range(len(got))))
        self.assertLess(len(got), 200)
        self.assertIn("not asked", err)
        d.log.close()


if __name__ == "__main__":
    unittest.main()
