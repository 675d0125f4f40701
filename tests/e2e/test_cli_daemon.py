#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit with the real pipitd and pipit-engine on the 1 MB stories model: the answer itself, and what
happens to it when people interrupt, readers leave, time runs out and processes die.

PIPIT_BUILD is the build folder."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from daemon import DATA, SLOW, wait_until
from harness import BUILD, CliDaemon, environment, finish, read_some

RAW = ("ask", "--raw", "--temp", "0")
with open(os.path.join(DATA, "stories260K.txt"), "rb") as story_file:
    STORY = story_file.read()  # 200 greedy tokens from nothing


class Served(unittest.TestCase):
    args = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = CliDaemon(*cls.args)

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        assert code == 0, (code, cls.daemon.text())

    def cli(self, *args, **kw):
        return self.daemon.cli(*args, **kw)

    def start(self, *args, **kw):
        p = self.daemon.start(*args, **kw)
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.wait(), p.stdout.close(), p.stderr.close()))
        return p


class Answers(Served):
    def test_one_continuation_and_nothing_else(self):
        rc, out, err = self.cli("ask", "--raw", "-n", "8", "--temp", "0", stdin=b"Once upon a time\n")
        self.assertEqual((rc, out, err), (0, b", there was a little girl\n", ""))

    def test_the_story(self):
        rc, out, err = self.cli(*RAW, "-n", "200", "")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(out, STORY + b"\n")

    def test_json(self):
        rc, out, err = self.cli(*RAW, "-n", "5", "--json", "--logprobs", "2", "Once upon a time")
        self.assertEqual((rc, err), (0, ""))
        lines = [json.loads(line) for line in out.splitlines()]
        tokens = [o for o in lines if o["type"] == "token"]
        last = lines[-1]
        self.assertEqual(len(tokens), 5)
        self.assertEqual("".join(o["text"] for o in tokens), last["text"])
        self.assertEqual((last["finish_reason"], last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]),
                         ("length", 5, 5))
        for o in tokens:
            self.assertEqual(len(o["alternatives"]), 2)
            self.assertAlmostEqual(o["logprob"], o["alternatives"][0]["logprob"], places=5)
        self.assertGreater(last["kv"]["bytes"], 0)
        if shutil.which("jq"):
            p = subprocess.run(["jq", "-e", "-c", ".type"], input=out, capture_output=True)
            self.assertEqual((p.returncode, len(p.stdout.splitlines())), (0, len(lines)))

    def test_same_seed_same_text(self):
        texts = [self.cli("ask", "--raw", "--temp", "1", "--seed", seed, "-n", "30", "The dog")[1] for seed in ("7", "7", "8")]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        _, out, _ = self.cli("ask", "--raw", "--temp", "1", "-n", "30", "--json", "The dog")
        last = json.loads(out.splitlines()[-1])
        _, again, _ = self.cli("ask", "--raw", "--temp", "1", "-n", "30", "--seed", last["seed"], "The dog")
        self.assertEqual(again.decode(), last["text"] + "\n")

    def test_stop_string(self):
        rc, out, _ = self.cli(*RAW, "-n", "60", "--stop", " Lily", "Once upon a time")
        self.assertEqual((rc, out), (0, b", there was a little girl named\n"))

    def test_tokens_there_and_back(self):
        with open(os.path.join(DATA, "stories260K.txt"), "rb") as f:
            rc, out, err = self.cli("tokenize", "-", stdin=f.read() + b"\n")
        self.assertEqual((rc, err), (0, ""))
        rc, text, _ = self.cli("detokenize", stdin=out)
        self.assertEqual((rc, text), (0, STORY + b"\n"))
        self.assertEqual(self.cli("tokenize", "--count", stdin=STORY + b"\n")[1], b"%d\n" % len(out.splitlines()))

    def test_score(self):
        rc, out, err = self.cli("score", "Once upon a time")
        self.assertEqual((rc, err), (0, ""))
        rows = [line.split("\t") for line in out.decode().splitlines()]
        self.assertEqual([text for _, text in rows], ['" Once"', '" upon"', '" a"', '" time"'])
        self.assertTrue(all(float(v) < 0 for v, _ in rows))
        rc, out, _ = self.cli("score", "--json", "--first", "2", "Once upon a time")
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([o["type"] for o in lines], ["token", "token", "score", "done"])
        self.assertAlmostEqual(lines[2]["logprob"], sum(float(v) for v, _ in rows[2:]), places=4)
        rc, out, _ = self.cli("score", "--total", stdin=STORY)
        perplexity = float(out.split()[-1])
        self.assertTrue(1 < perplexity < 2, out)  # the model's own greedy words
        rc, out, err = self.cli("score", "--first", "99", "Once")
        self.assertEqual((rc, out), (2, b""))

    def test_metrics(self):
        rc, out, err = self.cli("metrics")
        self.assertEqual((rc, err), (0, ""))
        for line in out.decode().splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) pipit_\w+ .+|pipit_\w+(\{.*\})? [-+0-9.e]+)$")
        self.assertIn(b"pipit_", out)

    def test_example_program(self):
        p = subprocess.run([os.path.join(BUILD, "client/examples/example-logprobs")], capture_output=True,
                           env=environment(PIPIT_RUNTIME_DIR=self.daemon.folder))
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(len(p.stdout.splitlines()), 21)

    def test_refusals(self):
        for args, want, said in (
                ((*RAW, "word " * 2000), 5, "512"), ((*RAW, "x", "--kv", "nonsense"), 2, "policy"),
                (("ask", "hello"), 2, "template"), (("detokenize", "99999"), 2, "99999")):
            rc, out, err = self.cli(*args)
            self.assertEqual((rc, out), (want, b""), err)
            self.assertIn(said, err)
        _, _, err = self.cli(*RAW, "word " * 2000)
        self.assertRegex(err, r"[0-9]{4}.*512, the model's own")
        self.assertNotIn("--ctx", err)
        d = CliDaemon("--ctx", "256")
        self.addCleanup(d.stop)
        _, _, err = d.cli(*RAW, "word " * 2000)
        self.assertRegex(err, r"[0-9]{4}.*256.*\n.*larger --ctx")


class Manners(Served):
    args = ("--sequences", "2")

    def test_sigint_keeps_what_came(self):
        p = self.start(*RAW, "-n", "200", "")
        got = read_some(p)
        p.send_signal(signal.SIGINT)
        rc, out, err = finish(p)
        self.assertEqual((rc, err), (130, ""))
        self.assertTrue(out.endswith(b"\n"))
        self.assertTrue(STORY.startswith((got + out)[:-1]))
        self.assertTrue(self.daemon.idle())

    def test_broken_pipe(self):
        p = subprocess.run(["sh", "-c", '"$@" | head -c 5', "sh", *self.daemon.command(*RAW, "-n", "400", "")],
                           stdin=subprocess.DEVNULL, capture_output=True, env=environment())
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, STORY[:5], b""))
        self.assertTrue(self.daemon.idle())

    def test_timeout(self):
        rc, out, err = self.cli(*RAW, "-n", "450", "--timeout", "0.1", "")
        self.assertEqual(rc, 7, err)
        self.assertTrue(STORY.startswith(out[:-1][:len(STORY)]))
        self.assertIn("--timeout 0.1", err)

    def test_two_clients_at_once(self):
        both = [self.start(*RAW, "-n", "200", "") for _ in range(3)]
        for p in both:
            self.assertEqual(finish(p), (0, STORY + b"\n", ""))

    def test_cancel_from_elsewhere(self):
        p = self.start(*RAW, "-n", "450", "--json", "")
        rid = json.loads(p.stdout.readline())["id"]
        self.assertEqual(self.cli("cancel", rid), (0, b"", ""))
        rc, out, _ = finish(p)
        self.assertEqual((rc, json.loads(out.splitlines()[-1])["finish_reason"]), (7, "cancelled"))

    def test_status_json(self):
        rc, out, _ = self.cli("status", "--json")
        st = json.loads(out)
        self.assertEqual((rc, st["state"], st["ctx"], st["sequences"]), (0, "ready", 512, 2))
        self.assertEqual(self.cli("doctor")[0], 0)


class Policies(Served):
    """Who holds the cache, by policy, whatever clients ask for."""
    args = ("--sequences", "2", "--kv", "full=60%;fp8+keyformer:50%,min=4=40%")

    def status(self):
        rc, out, err = self.cli("status", "--json")
        self.assertEqual(rc, 0, err)
        return json.loads(out)

    def row(self, word):
        return next(p for p in self.status()["kv"]["policies"] if word in p["policy"])

    def test_held_and_evicted(self):
        self.assertGreater(self.status()["front_epoch"], 0)
        p = self.start(*RAW, "--kv", "fp8+keyformer:50%,min=4", "-n", "480", "Once upon a time there was")
        read_some(p)
        self.daemon.rest_engine()
        held = wait_until(lambda: (r := self.row("keyformer"))["slots"] > 0 and r)
        self.assertTrue(held, "no slot was seen to be held")
        self.assertEqual((held["sequences"], held["requests"]), (1, 1))
        self.assertGreater(held["bytes"], 0)
        self.assertEqual(self.row("f16")["sequences"], 0)
        self.assertEqual(finish(p)[0], 0)
        self.assertTrue(wait_until(lambda: self.row("keyformer")["sequences"] == 0))
        end = self.row("keyformer")
        self.assertEqual((end["slots"], end["bytes"], end["requests"]), (0, 0, 1))
        self.assertGreater(end["evicted"], 1000)
        text = self.cli("status")[1].decode()
        self.assertIn(f"{end['evicted']} evicted, 1 requests: {end['policy']}", text)
        metrics = self.cli("metrics")[1].decode()
        self.assertIn(f'pipit_policy_evictions_total{{policy="{end["policy"]}"}} {end["evicted"]}\n', metrics)
        self.assertIn(f"pipit_evictions_total {end['evicted']}\n", metrics)

    def test_what_this_daemon_does_not_hold(self):
        """Refused with one exit code, and with what the daemon runs with; a full cache by the whole context names -n."""
        for kv in ("k16v8", "full,chunk=5000"):
            rc, out, err = self.cli(*RAW, "--kv", kv, "-n", "4", "x")
            self.assertEqual((rc, out), (4, b""), err)
            self.assertIn("this daemon runs with --kv full=60%;fp8+keyformer:50%,min=4=40%: ", err)
            self.assertNotIn("-n N", err)
        d = CliDaemon("--kv", "keyformer:25%,min=4")
        self.addCleanup(d.stop)
        rc, _, err = d.cli(*RAW, "--kv", "full", "x")
        self.assertEqual(rc, 4, err)
        self.assertIn("-n N may ask for less", err)
        self.assertEqual(d.cli(*RAW, "--kv", "full", "-n", "4", "x")[0], 0)

    def test_more_than_the_table_holds(self):
        before = sum(p["requests"] for p in self.status()["kv"]["policies"])
        for n in range(20, 32):
            self.assertEqual(self.cli(*RAW, "--kv", f"window:{n}", "-n", "40", "Once upon a time")[0], 0)
        all_of = lambda: self.status()["kv"]["policies"]
        self.assertTrue(wait_until(lambda: sum(p["requests"] for p in all_of()) == before + 12), all_of())
        rows = all_of()
        self.assertEqual(rows[-1]["policy"], "others")
        self.assertGreater(rows[-1]["evicted"], 0)
        self.assertEqual(sum(p["evicted"] for p in rows), float(
            next(l for l in self.cli("metrics")[1].decode().splitlines() if l.startswith("pipit_evictions_total ")).split()[1]))
        self.assertIn("window:31", rows[-2]["policy"])


class Advice(unittest.TestCase):
    """--kv auto serves with the policy that the plan advises."""
    MODEL = os.path.join(DATA, "stories260K.gguf")

    def plan(self, *args):
        r = subprocess.run([os.path.join(BUILD, "daemon/front/pipitd"), "plan", "--model", self.MODEL, "--backend", "ref", "--ctx", "2048",
                            "--sequences", "1", "--threads", "1", "--gateway", "no", "--json", *args], capture_output=True, text=True)
        return r.returncode, json.loads(r.stdout)

    def test_auto_is_what_the_plan_advises(self):
        rc, kv8 = self.plan("--kv", "kv8")
        self.assertEqual(rc, 0)
        self.assertNotIn("advice", kv8)
        memory = f"{kv8['total_bytes'] + kv8['mapped_bytes']}"
        rc, told = self.plan("--advise", "--memory", memory)
        self.assertEqual((rc, told["advice"]["kv"], told["policy"]), (0, "kv8", kv8["policy"]))
        self.assertEqual(told["total_bytes"], kv8["total_bytes"])
        self.assertEqual(self.plan("--kv", "auto", "--memory", memory)[1], told)
        self.assertEqual(self.plan("--advise")[1]["advice"]["kv"], "full")
        self.assertEqual(self.plan("--advise", "--memory", "1MiB")[0], 4)
        d = CliDaemon("--kv", "auto", "--memory", memory, "--ctx", "2048", "--sequences", "1")
        try:
            rc, out, err = d.cli(*RAW, "-n", "5", "--kv", "kv8", "Once")
            self.assertEqual((rc, err), (0, ""))
            self.assertIn("kv auto: kv8\n", d.text())
        finally:
            d.stop()


class Full(Served):
    args = ("--max-queue", "0", "--sequences", "1")

    def test_busy(self):
        p = self.start(*RAW, "-n", "450", "")
        read_some(p)
        rc, out, err = self.cli(*RAW, "-n", "5", "x")
        if p.poll() is None or rc != 0:
            self.assertEqual((rc, out), (4, b""), err)
        p.send_signal(signal.SIGINT)
        self.assertEqual(finish(p)[0], 130)

    def test_busy_is_asked_again(self):
        long = [self.start(*RAW, "--kv", "full", "-n", "450", "") for _ in range(4)]
        [read_some(p) for p in long[:1]]
        rc, out, err = self.cli(*RAW, "-n", "5", "--retry", "60", "Once upon a time")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(out, b", there was a little\n")
        p = self.start(*RAW, "-n", "450", "")
        read_some(p)
        rc, out, err = self.cli(*RAW, "-n", "5", "--retry", "0.001", "x")
        if p.poll() is None or rc != 0:
            self.assertEqual((rc, out), (4, b""), err)
        for p in (*long, p):
            p.send_signal(signal.SIGINT)
            finish(p)

    def test_watched_status(self):
        p = self.start("status", "--watch", "--json")
        lines = [json.loads(p.stdout.readline())]
        self.cli(*RAW, "-n", "50", "--retry", "20", "Once upon a time")
        lines += [json.loads(p.stdout.readline()) for _ in range(3)]
        p.kill()
        finish(p)
        self.assertNotIn("tokens_per_second", lines[0])
        self.assertGreater(max(o["tokens_per_second"]["new"] for o in lines[1:]), 0)
        self.assertNotIn(b"speed", self.cli("status")[1])


class Deaths(unittest.TestCase):
    def daemon(self, *args, **kw):
        d = CliDaemon(*args, **kw)
        self.addCleanup(lambda: d.process.poll() is None and d.stop())
        return d

    def test_killed_engine_the_text_goes_on(self):
        d = self.daemon()
        p = d.start(*RAW, "-n", "200", "--json", "")
        first = b""
        while first.count(b'"token"') < 20:
            first += os.read(p.stdout.fileno(), 4096)
        os.kill(d.child("pipit-engine"), signal.SIGKILL)
        rc, out, err = finish(p)
        self.assertEqual((rc, err), (0, ""))
        last = json.loads((first + out).splitlines()[-1])
        self.assertEqual(last["text"].encode(), STORY)
        self.assertIn(last.get("replay"), ("exact", "approximate"))
        self.assertIn("1 restarts", d.cli("status")[1].decode())
        self.assertEqual(d.stop(), 0)

    def test_sigterm_says_shutdown(self):
        d = self.daemon()
        p = d.start(*RAW, "-n", "450", "")
        got = read_some(p)
        d.process.send_signal(signal.SIGTERM)
        rc, out, err = finish(p)
        self.assertEqual(rc, 8, err)
        self.assertIn("shutting down", err)
        self.assertTrue((got + out).startswith(STORY[:len(got)]))
        self.assertEqual(d.stop(), 0)

    def test_killed_front_and_a_new_one(self):
        d = self.daemon()
        p = d.start(*RAW, "-n", "450", "")
        read_some(p)
        d.process.kill()
        d.process.wait()
        wait_until(lambda: d.child("pipit-engine") is None)
        again = CliDaemon(folder=d.folder)
        self.addCleanup(shutil.rmtree, d.folder)
        rc, out, err = finish(p)
        self.assertEqual(rc, 8, err)
        self.assertIn("no longer knows", err)
        self.assertTrue(out.endswith(b"\n"))
        self.assertEqual(again.stop(), 0)
        d.log.close()

    def test_no_daemon_behind_the_socket(self):
        d = self.daemon()
        d.process.kill()
        d.process.wait()
        begin = time.monotonic()
        rc, out, err = d.cli(*RAW, "x")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("no daemon behind it", err)
        self.assertLess(time.monotonic() - begin, 2 * SLOW)
        shutil.rmtree(d.folder)
        d.log.close()


if __name__ == "__main__":
    unittest.main()
