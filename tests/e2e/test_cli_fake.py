#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit alone, against a fake front (fake_lane.py): every exit code, what goes to stdout and what to
stderr, forms of input, signals, broken pipes, reconnects, terminals.

usage: test_cli_fake.py PATH_OF_pipit [unittest arguments]"""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from fake_lane import LaneFront

PIPIT = os.environ.get("PIPIT_CLI", "")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIPIT_") and k not in ("NO_COLOR",)}
    env.update(more)
    return env


class Base(unittest.TestCase):
    front_options = {}

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pc-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.front = LaneFront(self.folder, **self.front_options)
        self.addCleanup(self.front.stop)

    def args(self, *args):
        return [PIPIT, args[0], "--runtime-dir", self.folder, *args[1:]]

    def cli(self, *args, stdin=b"", timeout=20, env=None):
        p = subprocess.run(self.args(*args), input=stdin, capture_output=True, timeout=timeout, env=env or environment())
        return p.returncode, p.stdout, p.stderr.decode()

    def start(self, *args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more):
        p = subprocess.Popen(self.args(*args), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment(), **more)
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.wait(), p.stdout and p.stdout.close(), p.stderr.close()))
        return p

    def wait_for(self, what, timeout=5):
        end = time.monotonic() + timeout
        while not what():
            self.assertLess(time.monotonic(), end, "it did not happen")
            time.sleep(0.005)


class Output(Base):
    def test_text_and_nothing_else(self):
        rc, out, err = self.cli("ask", "--raw", "echo Paris is a city")
        self.assertEqual((rc, out, err), (0, b"Paris is a city\n", ""))

    def test_a_text_that_ends_in_a_newline_gets_one_more(self):
        rc, out, _ = self.cli("ask", "--raw", "echo one\n")
        self.assertEqual((rc, out), (0, b"one\n\n"))

    def test_no_escape_sequences_anywhere(self):
        for more in ([], ["--json"], ["--stats"], ["--logprobs", "2"]):
            _, out, err = self.cli("ask", "progress", *more)
            self.assertNotIn(b"\x1b", out)
            self.assertNotIn("\x1b", err)
            self.assertNotIn("\r", err)

    def on_a_terminal(self, *args):
        """What a terminal gets of the command's stdout."""
        main, other = pty.openpty()
        p = self.start(*args, stdout=other)
        os.close(other)
        got = b""
        while True:
            try:
                piece = os.read(main, 4096)
            except OSError:  # EIO: nobody has the other end any more
                break
            got += piece
        os.close(main)
        self.assertEqual(p.wait(10), 0)
        return got.replace(b"\r\n", b"\n")

    def test_an_answer_gives_a_terminal_no_orders(self):
        orders = "a\x1b]0;title\x07b\x1b[2J\u009b31mc\x7f\x08\td\u00a0\u00e9\n"
        self.assertEqual(self.on_a_terminal("ask", "--raw", "echo " + orders), "a]0;titleb[2J31mc\td\u00a0\u00e9\n\n".encode())
        self.assertEqual(self.cli("ask", "--raw", "echo " + orders)[1], (orders + "\n").encode())

    def test_stats_go_to_stderr(self):
        rc, out, err = self.cli("ask", "count 3", "--stats")
        self.assertEqual((rc, out), (0, b"0 1 2 \n"))
        self.assertRegex(err, r"^pipit: prompt 10 tokens \(2 cached\) .* answer 3 tokens .*; stop\n$")

    def test_logprobs_go_to_stderr(self):
        rc, out, err = self.cli("ask", "alts", "--logprobs", "2")
        self.assertEqual((rc, out), (0, b"one\n"))
        self.assertEqual(err, '"one" -0.2500  of "one" -0.5000, "\\xc3" -1.5000\n')

    def test_kind_system_and_sampling(self):
        rc, out, _ = self.cli("ask", "settings", "--system", "Be brief.", "--temp", "0", "--top-k", "4", "--top-p", "0.5",
                              "--min-p", "0.25", "--repeat-penalty", "1.5", "--presence-penalty", "2",
                              "--frequency-penalty", "3", "-n", "9", "--seed", str(2**64 - 1), "--logprobs", "1",
                              "--stop", "a", "--stop", "b", "--kv", "full", "--timeout", "3")
        self.assertEqual(rc, 0)
        self.assertEqual(eval(out), (0, 0.5, 0.25, 1.5, 2, 3, 4, 64, 9, 1, 5, 0, 2**64 - 1))
        asked = self.front.requests[0]
        self.assertEqual((asked["kind"], asked["timeout"]), (2, 3000))
        self.assertEqual([v for t, v in asked["items"] if t == 7], [b"a", b"b"])
        self.assertIn((3, b"Be brief."), asked["items"])
        self.assertIn((6, b"full"), asked["items"])
        self.assertIn((4, b"user"), asked["items"])
        self.cli("ask", "--raw", "count 1")
        asked = self.front.requests[1]
        self.assertEqual((asked["kind"], [v for t, v in asked["items"] if t == 1]), (1, [b"count 1"]))

    def test_environment_and_file(self):
        conf = os.path.join(self.folder, "conf")
        with open(conf, "w") as f:
            f.write("temp = 0.5\ntop-k = 7\n# a comment\n")
        p = subprocess.run(self.args("ask", "settings", "--config", conf, "--top-k", "9"), capture_output=True,
                           stdin=subprocess.DEVNULL, env=environment(PIPIT_MIN_P="0.75", PIPIT_TOP_K="8"))
        got = eval(p.stdout)
        self.assertEqual((got[0], got[2], got[6]), (0.5, 0.75, 9))
        p = subprocess.run([PIPIT, "ask", "count 1"], capture_output=True, stdin=subprocess.DEVNULL,
                           env=environment(PIPIT_RUNTIME_DIR=self.folder))
        self.assertEqual((p.returncode, p.stdout), (0, b"0 \n"))

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            p = subprocess.run(self.args("ask", "count 3"), stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, 8)
        self.assertIn(b"No space left", p.stderr)


class Json(Base):
    def lines(self, *args):
        rc, out, err = self.cli("ask", "--json", *args)
        self.assertTrue(out.endswith(b"\n"))
        return rc, [json.loads(line) for line in out.decode().splitlines()], err

    def check_last(self, last):
        for key in ("finish_reason", "usage", "timings", "kv", "id", "v", "text"):
            self.assertIn(key, last)

    def test_stream(self):
        rc, lines, err = self.lines("count 3", "--logprobs", "0")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual([o["type"] for o in lines], ["accepted", "token", "token", "token", "done"])
        self.assertRegex(lines[0]["id"], r"^[0-9a-f]{32}$")
        self.assertEqual(lines[0]["id"], lines[-1]["id"])
        self.assertEqual(lines[1]["text"], "0 ")
        self.assertEqual(lines[1]["logprob"], -0.25)
        last = lines[-1]
        self.check_last(last)
        self.assertEqual((last["finish_reason"], last["text"]), ("stop", "0 1 2 "))
        self.assertEqual(last["usage"], {"prompt_tokens": 10, "cached_tokens": 2, "completion_tokens": 3, "total_tokens": 13,
                                         "drafted_tokens": 0, "accepted_tokens": 0})
        self.assertEqual(last["kv"], {"bytes": 1 << 20, "bytes_full": 2 << 20, "slots": 7, "evicted": 8})
        self.assertEqual(last["timings"]["decode_ms"], 3.0)
        self.assertEqual(last["seed"], str(2**64 - 1))
        self.assertEqual(last["model"], "fake model")

    def test_jq_reads_it(self):
        if not shutil.which("jq"):
            self.skipTest("jq is not installed")
        _, out, _ = self.cli("ask", "--json", "count 5")
        p = subprocess.run(["jq", "-e", "-c", ".type"], input=out, capture_output=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len(p.stdout.splitlines()), len(out.splitlines()))

    def test_half_characters_are_bytes(self):
        _, lines, _ = self.lines("alts", "--logprobs", "2")
        alts = lines[1]["alternatives"]
        self.assertEqual(alts[0], {"token": 40, "logprob": -0.5, "text": "one"})
        self.assertEqual(alts[1], {"token": 41, "logprob": -1.5, "bytes": [0xc3]})

    def test_without_logprobs_none(self):
        _, lines, _ = self.lines("count 1")
        self.assertNotIn("logprob", lines[1])

    def test_errors_end_in_the_same_form(self):
        rc, lines, err = self.lines("error overflow")
        self.assertEqual(rc, 5)
        self.check_last(lines[-1])
        self.assertEqual((lines[-1]["type"], lines[-1]["finish_reason"]), ("error", "context"))
        self.assertEqual((lines[-1]["error"]["count_a"], lines[-1]["error"]["count_b"]), (700, 512))
        self.assertIn("700", err)
        rc, lines, _ = self.lines("error busy")
        self.assertEqual((rc, lines[-1]["error"]["code"], lines[-1]["error"]["retry_after_ms"]), (4, "BUSY", 1500))
        p = subprocess.run([PIPIT, "ask", "--json", "--runtime-dir", "/nonexistent", "x"], capture_output=True,
                           stdin=subprocess.DEVNULL)
        last = json.loads(p.stdout)
        self.check_last(last)
        self.assertEqual((p.returncode, last["error"]["code"]), (3, "UNREACHABLE"))

    def test_resumed(self):
        rc, lines, _ = self.lines("die 2")
        self.assertEqual(rc, 0)
        self.assertEqual([o["type"] for o in lines], ["accepted", "token", "token", "resumed", "token", "token", "done"])


class ExitCodes(Base):
    def test_table(self):
        for prompt, want, said in (
                ("reason 1", 0, ""), ("reason 2", 0, ""), ("reason 3", 5, "context is full"), ("reason 4", 7, "cancelled"),
                ("reason 6", 8, "slow_consumer"), ("reason 7", 8, "shutting down"), ("reason 8", 8, "error"),
                ("error 1", 2, "this is error 1"), ("error 4", 4, "error 4"), ("error busy", 4, "Try again in 1.5 s"),
                ("error overflow", 5, "700 asked, 512 allowed"), ("error 7", 4, "error 7"), ("error 8", 2, "error 8"),
                ("error 9", 4, "error 9"), ("error 10", 6, "error 10"), ("error 11", 8, "error 11"),
                ("error 12", 4, "error 12"), ("error toolarge", 4, "700"), ("error 14", 8, "error 14"),
                ("garbage", 8, "garbage"), ("forget", 8, "no longer knows")):
            with self.subTest(prompt):
                rc, out, err = self.cli("ask", prompt)
                self.assertEqual(rc, want, err)
                self.assertIn(said, err)
                if want == 0:
                    self.assertEqual(err, "")
                if prompt.startswith("error"):
                    self.assertEqual(out, b"")

    def test_usage(self):
        for args, said in (
                ((), "usage: pipit"), (("akk",), "did you mean 'ask'"), (("--frobnicate",), "follow the command"),
                (("ask", "x", "--tmp", "1"), "did you mean --temp?"), (("ask", "x", "--temp", "101"), "0..100"),
                (("ask", "x", "--temp", "nan"), "0..100"), (("ask", "x", "--top-p", "1.5"), "0..1"),
                (("ask", "x", "-n", "-1"), "--max-tokens"), (("ask", "x", "--logprobs", "21"), "-1..20"),
                (("ask", "x", "--seed", "1.5"), "--seed"), (("ask", "x", "--seed", "-1"), "--seed"),
                (("ask", "x", "--stop", ""), "--stop"), (("ask", "x", "--timeout", "-1"), "--timeout"),
                (("ask", "two", "words"), "quotes"), (("ask", ""), "empty"), (("ask", "x", "--temp"), "needs a value"),
                (("ask", "x", "--schema", "s"), "not built yet"),
                (("ask", "--raw", "--system", "s", "x"), "--system"),
                (("load",), "not built yet"), (("metrics", "x"), "not an option"),
                (("session", "mv"), "rm NAME"), (("load",), "not built yet"), (("cancel",), "no id"),
                (("cancel", "xyz"), "32 hexadecimal digits"), (("cancel", "0" * 32), "32 hexadecimal digits"),
                (("status", "x"), "'x' is not an option"), (("detokenize", "12", "x1"), "'x1' is not a token id"),
                (("detokenize", "-5"), "unknown option -5"), (("detokenize", "2147483648"), "not a token id"),
                (("ask", "x", "--instance", "../x"), "instance"), (("ask", "x", "--config", "/nonexistent"), "/nonexistent"),
                (("ask", "@/nonexistent/file"), "/nonexistent/file")):
            with self.subTest(args):
                p = subprocess.run([PIPIT, *args], capture_output=True, stdin=subprocess.DEVNULL, env=environment())
                self.assertEqual(p.returncode, 2, p.stderr)
                self.assertEqual(p.stdout, b"")
                self.assertIn(said, p.stderr.decode())
        self.assertEqual(self.front.requests, [])

    def test_help(self):
        for args in (("--help",), ("help",), ("help", "ask"), ("--version",), *((c, "--help") for c in (
                "ask", "chat", "tokenize", "detokenize", "status", "cancel", "doctor", "wait", "score",
                "metrics"))):
            p = subprocess.run([PIPIT, *args], capture_output=True, stdin=subprocess.DEVNULL)
            self.assertEqual((p.returncode, p.stderr), (0, b""), args)
            self.assertTrue(p.stdout)
            if args[-1] == "--help" and len(args) == 2:
                self.assertIn(b"Exit codes: 0 ok, 2 usage", p.stdout)
                self.assertIn(b"--runtime-dir", p.stdout)

    def test_unreachable(self):
        for args in (("ask", "x"), ("tokenize", "x"), ("status",), ("cancel", "1" * 32), ("doctor",)):
            p = subprocess.run([PIPIT, *args, "--runtime-dir", "/nonexistent"], capture_output=True,
                               stdin=subprocess.DEVNULL)
            self.assertEqual(p.returncode, 3, args)
            self.assertIn(b"/nonexistent/lane.sock", p.stderr + p.stdout)
        p = subprocess.run([PIPIT, "ask", "x", "--instance", "nobody"], capture_output=True, stdin=subprocess.DEVNULL,
                           env=environment())
        self.assertEqual(p.returncode, 3)
        for place in (f"/run/user/{os.geteuid()}/pipit/nobody", "/run/pipit/nobody", f"/tmp/pipit-{os.geteuid()}/nobody"):
            self.assertIn(place, p.stderr.decode())
        p = subprocess.run([PIPIT, "ask", "x", "--runtime-dir", "/" + "d" * 120], capture_output=True,
                           stdin=subprocess.DEVNULL)
        self.assertEqual(p.returncode, 3)
        self.assertIn(b"107", p.stderr)


class Refusals(Base):
    front_options = {"hello": "busy"}

    def test_busy_hello(self):
        rc, out, err = self.cli("ask", "x")
        self.assertEqual((rc, out), (4, b""))
        self.assertIn("all lanes are taken", err)
        self.assertIn("1.5 s", err)


class Abi(Base):
    front_options = {"abi": 2}

    def test_other_version(self):
        rc, out, err = self.cli("ask", "x")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("version 2.0", err)


class Silent(Base):
    front_options = {"hello": "silent"}

    def test_no_hello(self):
        rc, out, err = self.cli("wait", "--timeout", "0.5")
        self.assertEqual((rc, out), (7, b""))


class Input(Base):
    def prompt(self, *args, stdin=b""):
        rc, out, err = self.cli("ask", "--raw", *args, stdin=stdin)
        return rc, self.front.requests[-1]["text"] if rc == 0 else err

    def test_forms(self):
        path = os.path.join(self.folder, "file")
        with open(path, "wb") as f:
            f.write("from a file é\n".encode())
        self.assertEqual(self.prompt("argument"), (0, "argument"))
        self.assertEqual(self.prompt(stdin=b"from stdin\n"), (0, "from stdin"))
        self.assertEqual(self.prompt("-", stdin=b"from stdin\n"), (0, "from stdin"))
        self.assertEqual(self.prompt(stdin=b"two ends\n\n"), (0, "two ends\n"))
        self.assertEqual(self.prompt(stdin=b"dos\r\n"), (0, "dos"))
        self.assertEqual(self.prompt("sum up:", stdin=b"a\nb\n"), (0, "sum up:\na\nb"))
        self.assertEqual(self.prompt("@" + path), (0, "from a file é"))
        self.assertEqual(self.prompt("@" + path, stdin=b"more"), (0, "from a file é\nmore"))
        self.assertEqual(self.prompt("@@home"), (0, "@home"))
        self.assertEqual(self.prompt("--", "--help"), (0, "--help"))
        self.assertEqual(self.prompt(stdin=b""), (0, ""))

    def test_bad_bytes_have_an_offset(self):
        for raw, at in ((b"abc\xff", 3), (b"\xc0\x80", 0), (b"ab\xed\xa0\x80", 2), (b"\xf4\x90\x80\x80", 0), (b"x\xe2\x82", 1)):
            rc, err = self.prompt(stdin=raw)
            self.assertEqual(rc, 2)
            self.assertIn(f"stdin is not UTF-8 at byte {at}", err)
        rc, err = self.prompt(stdin=b"abc\0def")
        self.assertEqual(rc, 2)
        self.assertIn("zero byte at byte 3", err)
        rc, err = self.prompt(b"ab\xff".decode(errors="surrogateescape"))
        self.assertEqual(rc, 2)
        self.assertIn("the prompt is not UTF-8 at byte 2", err)
        self.assertEqual(self.front.requests, [])

    def test_closed_stdin(self):
        p = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *self.args("ask", "count 1")], capture_output=True)
        self.assertEqual((p.returncode, p.stdout), (0, b"0 \n"))

    def test_too_large(self):
        rc, out, err = self.cli("ask", stdin=b"x" * 70000)
        self.assertEqual((rc, out), (4, b""))
        self.assertRegex(err, r"takes 70\d\d\d bytes, the daemon allows 65536: shorten it, or .*--lane-bytes, .* a quarter, .*--journal-bytes")

    def test_stdin_that_does_not_end_is_mentioned(self):
        p = self.start("ask", "count 1", stdin=subprocess.PIPE)
        line = p.stderr.readline()
        self.assertIn(b"waiting for stdin", line)
        p.stdin.close()
        self.assertEqual(p.wait(5), 0)


class Signals(Base):
    def test_sigint_prints_what_came(self):
        p = self.start("ask", "hang")
        self.assertEqual(os.read(p.stdout.fileno(), 100), b"begun")
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(5), 130)
        self.assertEqual(p.stdout.read(), b"\n")
        self.assertEqual(p.stderr.read(), b"")
        self.assertEqual(len(self.front.cancelled()), 1)

    def test_sigint_in_json(self):
        p = self.start("ask", "hang", "--json")
        got = b""
        while b"begun" not in got:
            got += os.read(p.stdout.fileno(), 1000)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(5), 130)
        last = json.loads((got + p.stdout.read()).splitlines()[-1])
        self.assertEqual((last["finish_reason"], last["text"]), ("cancelled", "begun"))

    def test_second_sigint_leaves_at_once(self):
        p = self.start("ask", "deaf")
        os.read(p.stdout.fileno(), 100)
        begin = time.monotonic()
        p.send_signal(signal.SIGINT)
        time.sleep(0.2)
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(5), 130)
        self.assertLess(time.monotonic() - begin, 1.5)

    def test_sigint_without_any_answer(self):
        p = self.start("ask", "deaf")
        os.read(p.stdout.fileno(), 100)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(5), 130)

    def test_sigterm(self):
        p = self.start("ask", "hang")
        os.read(p.stdout.fileno(), 100)
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(5), 7)
        self.assertEqual(len(self.front.cancelled()), 1)

    def test_broken_pipe_cancels_quietly(self):
        p = subprocess.Popen(["sh", "-c", '"$@" | head -c 5', "sh", *self.args("ask", "flood 100000")],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = p.communicate(timeout=20)
        self.assertEqual((p.returncode, out, err), (0, b"xxxxx", b""))
        self.wait_for(lambda: self.front.cancelled() or self.front.vanished)

    def test_reader_that_leaves_before_the_first_token(self):
        p = self.start("ask", "lone")
        self.wait_for(lambda: self.front.requests)
        p.stdout.close()
        p.stdout = None
        self.assertEqual(p.wait(5), 7)
        self.assertEqual(p.stderr.read(), b"")
        self.wait_for(lambda: self.front.cancelled() or self.front.vanished)

    def test_reader_that_pauses_loses_nothing(self):
        p = self.start("ask", "flood 3000")  # 600 kB: far more than pipe and socket hold
        self.wait_for(lambda: any(kind == 4 for kind, _, _ in self.front.records))
        time.sleep(1)
        out, err = p.communicate(timeout=20)
        self.assertEqual((p.returncode, len(out), err), (0, 600001, b""))


class Time(Base):
    def test_the_daemon_keeps_the_limit(self):
        rc, out, err = self.cli("ask", "limit", "--timeout", "0.3")
        self.assertEqual((rc, out), (7, b"some\n"))
        self.assertIn("--timeout 0.3", err)

    def test_the_daemon_does_not(self):
        begin = time.monotonic()
        rc, out, err = self.cli("ask", "deaf", "--timeout", "0.3")
        self.assertEqual((rc, out), (7, b"begun\n"))
        self.assertLess(time.monotonic() - begin, 4)

    def test_slow_answers_come_as_they_are_made(self):
        p = self.start("ask", "slow 10")
        first = os.read(p.stdout.fileno(), 100)
        self.assertLess(len(first), 10)
        rest = p.stdout.read()
        self.assertEqual((p.wait(5), first + rest), (0, b"0 1 2 3 4 5 6 7 8 9 \n"))


class Reconnect(Base):
    def test_text_goes_on(self):
        rc, out, err = self.cli("ask", "die 3")
        self.assertEqual((rc, out, err), (0, b"0 1 2 back again\n", ""))
        self.assertEqual(self.front.n_lanes, 2)


class Tokens(Base):
    def test_round_trip(self):
        rc, out, err = self.cli("tokenize", "hello")
        self.assertEqual((rc, out, err), (0, b"104\n101\n108\n108\n111\n", ""))
        self.assertEqual(self.cli("detokenize", stdin=out)[:2], (0, b"hello\n"))
        self.assertEqual(self.cli("detokenize", "104", "105,33")[:2], (0, b"hi!\n"))
        self.assertEqual(self.cli("tokenize", "--count", stdin=b"abc\n")[:2], (0, b"3\n"))
        rc, out, _ = self.cli("tokenize", "--json", "ab")
        self.assertEqual(json.loads(out), {"v": 1, "count": 2, "tokens": [97, 98]})
        self.assertEqual(self.cli("tokenize", "", "--count")[:2], (0, b"0\n"))

    def test_more_than_a_lease_holds(self):
        rc, out, _ = self.cli("tokenize", stdin=b"a" * 40000)
        self.assertEqual((rc, out.count(b"97\n")), (0, 40000))


class Daemon(Base):
    def test_status(self):
        rc, out, err = self.cli("status")
        self.assertEqual((rc, err), (0, ""))
        self.assertIn("fake model", out.decode())
        self.assertIn("1 running, 2 waiting", out.decode())
        rc, out, _ = self.cli("status", "--json")
        st = json.loads(out)
        self.assertEqual((st["state"], st["ctx"], st["requests"]["running"], st["uptime_s"]), ("ready", 512, 1, 12.0))

    def test_cancel(self):
        p = self.start("ask", "hang", "--json")
        rid = json.loads(p.stdout.readline())["id"]
        self.assertEqual(self.cli("cancel", rid.upper()), (0, b"", ""))
        self.assertEqual(p.wait(5), 7)
        rc, out, err = self.cli("cancel", "ab" * 16)
        self.assertEqual((rc, out), (4, b""))
        self.assertIn("no request of that id", err)

    def test_wait_and_doctor(self):
        self.assertEqual(self.cli("wait"), (0, b"", ""))
        rc, out, err = self.cli("doctor")
        self.assertEqual((rc, err), (0, ""))
        for word in ("socket", "hello", "model", "cpu", "limits"):
            self.assertIn(word, out.decode())
        rc, out, _ = self.cli("doctor", "--json")
        self.assertTrue(all(json.loads(line)["level"] in ("ok", "note") for line in out.splitlines()))
        self.front.state = "loading"
        rc, _, err = self.cli("wait", "--timeout", "0.3")
        self.assertEqual(rc, 7)
        self.assertIn("being loaded", err)
        p = self.start("wait")
        time.sleep(0.2)
        self.front.state = "ready"
        self.assertEqual(p.wait(5), 0)
        self.front.state = "failed"
        self.assertEqual(self.cli("wait")[0], 6)
        rc, out, _ = self.cli("doctor")
        self.assertEqual(rc, 6)
        self.assertIn("cannot be loaded", out.decode())

    def test_wait_for_a_daemon_to_come(self):
        later = tempfile.mkdtemp(prefix="pc-")
        self.addCleanup(shutil.rmtree, later)
        p = subprocess.Popen([PIPIT, "wait", "--runtime-dir", later, "--timeout", "5"])
        time.sleep(0.2)
        front = LaneFront(later)
        self.addCleanup(front.stop)
        self.assertEqual(p.wait(5), 0)


class Chat(Base):
    def test_piped(self):
        rc, out, err = self.cli("chat", "--system", "Be kind.", stdin=b"echo hi\n\nhistory\necho a\\\nb\n\nhistory")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(out.decode().splitlines(), [
            "hi", "user:7,assistant:2,user:7", "a", "b", "user:7,assistant:2,user:7,assistant:25,user:8,assistant:3,user:7"])
        self.assertEqual([v for t, v in self.front.requests[0]["items"] if t == 3], [b"Be kind."])

    def test_quit_and_clear(self):
        rc, out, _ = self.cli("chat", stdin=b"echo hi\n/clear\nhistory\n/quit\necho never\n")
        self.assertEqual((rc, out), (0, b"hi\nuser:7\n"))

    def test_the_first_error_ends_it(self):
        rc, out, err = self.cli("chat", stdin=b"echo hi\nerror overflow\necho never\n")
        self.assertEqual((rc, out), (5, b"hi\n"))
        self.assertIn("700", err)

    def test_bad_utf8(self):
        rc, _, err = self.cli("chat", stdin=b"ab\xff\n")
        self.assertEqual(rc, 2)
        self.assertIn("byte 2", err)


class Terminal(Base):
    """A pseudo-terminal as stdin, stdout and stderr."""
    seen = b""

    def terminal(self, *args, env=None):
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(PIPIT, self.args(*args), env or environment(TERM="xterm"))
        self.addCleanup(os.close, fd)
        return pid, fd

    def expect(self, fd, text, timeout=5):
        end = time.monotonic() + timeout
        while text not in self.seen:
            left = end - time.monotonic()
            self.assertGreater(left, 0, f"{text!r} is not in {self.seen!r}")
            if select.select([fd], [], [], left)[0]:
                try:
                    self.seen += os.read(fd, 4096)
                except OSError:
                    self.fail(f"{text!r} is not in {self.seen!r}")
        at = self.seen.index(text) + len(text)
        got, self.seen = self.seen[:at], self.seen[at:]
        return got

    def rest(self, pid, fd):
        got = b""
        try:
            while True:
                got += os.read(fd, 4096)
        except OSError:
            pass
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got

    def test_progress_line_comes_and_goes(self):
        pid, fd = self.terminal("ask", "progress")
        rc, got = self.rest(pid, fd)
        self.assertEqual(rc, 0)
        self.assertIn(b"\rreading the prompt: 100 of 300 tokens", got)
        self.assertTrue(got.endswith(b"\rread\r\n"), got)
        self.assertNotIn(b"\x1b", got)

    def test_no_prompt_in_a_terminal(self):
        pid, fd = self.terminal("ask")
        rc, got = self.rest(pid, fd)
        self.assertEqual(rc, 2)
        self.assertIn(b"no text", got)

    def test_chat(self):
        pid, fd = self.terminal("chat")
        self.expect(fd, b"> ")
        os.write(fd, b"hang\n")
        self.expect(fd, b"begun")
        os.write(fd, b"\x03")
        self.expect(fd, b"> ")
        os.write(fd, b"error overflow\n")
        self.expect(fd, b"/clear begins")
        self.expect(fd, b"> ")
        os.write(fd, b"history\n")
        got = self.expect(fd, b"> ")
        self.assertIn(b"user:4,assistant:5,user:7", got)
        os.write(fd, b"half a line\x03")
        self.expect(fd, b"ends)")
        os.write(fd, b"/quit\n")
        rc, _ = self.rest(pid, fd)
        self.assertEqual(rc, 0)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
        PIPIT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
