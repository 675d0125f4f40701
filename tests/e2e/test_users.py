#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One user who means harm beside one who does not. Each test is an attack, short, and what the other user
must not notice of it. Users are stated through the gateway's door, which this script may use: it stands in
systemd's place and has made the sockets (test_supervised.Systemd)."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from daemon import HOOKED, OTHERS, OTHERS_RUN
from lane import (BULK, CANCEL, CREDIT, DONE, E2C, ERROR, F_PRINCIPAL, GENERATE, PING, PONG, RESUME, S_IGNORE_END, S_LOGITS, SCORE, T_PROMPT,
                  TOKEN, TOKENIZE, Lane, Refused, item, order, prompt, sampling)
from test_supervised import BUILD, PIPITD, WAIT, Base

SLOW = float(os.environ.get("PIPIT_SLOW", "1"))
GOOD, BAD = 1000, 1001


class Door(Lane):
    """A lane that speaks for any user; each request says for whom."""

    def __init__(self, folder, **kw):
        super().__init__(folder, door="gateway.sock", timeout=WAIT, **kw)

    def ask(self, uid, items, **kw):
        kw["flags"] = kw.get("flags", 0) | F_PRINCIPAL
        return self.request(items, uid=uid, **kw)

    def again(self, uid, rid, next_seq=1):
        self.send(RESUME, struct.pack("<QII64s", next_seq, uid, 0, b""), rid, F_PRINCIPAL)

    def withdraw(self, uid, rid):
        self.send(CANCEL, struct.pack("<II64s", uid, 0, b""), rid, F_PRINCIPAL)


class Users(Base):
    program = HOOKED
    slow = None

    @classmethod
    def slow_model(cls):
        """A model that takes some milliseconds for a token: an answer is still under way when we look."""
        if not Users.slow:
            Users.folder_of_slow = tempfile.TemporaryDirectory()
            Users.slow = os.path.join(Users.folder_of_slow.name, "slow.gguf")
            subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", "4", "--hidden", "256", "--ffn",
                            "1024", "--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--vocab", "300", "--ctx", "8192", "-t",
                            "F16", Users.slow], check=True, capture_output=True)
        return Users.slow

    def begin(self, **settings):
        self.configure(**settings)
        self.pid, self.log = self.daemon("lane", "gateway")
        self.systemd.wait_for("READY=1")
        good, bad, self.spy = Door(self.folder), Door(self.folder), Lane(self.folder)
        for lane in (good, bad, self.spy):
            self.addCleanup(lane.close)
        good.wait_ready(WAIT)
        return good, bad

    def until(self, what):
        end = time.monotonic() + WAIT
        while not what():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def some(self, lane, rid, n):
        """The first n tokens."""
        events = []
        while sum(e.type == TOKEN for e in events) < n:
            events += [e for e in [lane.recv()] if e.id == rid]
            self.assertNotIn(events[-1].type if events else None, (DONE, ERROR), events[-1:])
        return events


class Answers(Users):
    """Kept answers: nobody's are pushed out by another's, and no place in one is dear to find."""

    def test_ones_quota_is_ones_own(self):
        good, bad = self.begin(journal_bytes="1MiB")
        rid = good.ask(GOOD, prompt("Once", 5))
        said = list(good.events(rid))
        for _ in range(6):  # each takes more than a third of the journal
            last = list(bad.events(bad.ask(BAD, item(T_PROMPT, "zqxj" * 3000), kind=TOKENIZE)))[-1]
            self.assertEqual(last.type, DONE, last)
            self.assertGreater(last.n_prompt, 10000)
        good.again(GOOD, rid)
        self.assertEqual([(e.type, e.seq) for e in good.events(rid)], [(e.type, e.seq) for e in said])

    def test_what_is_too_long_is_told_the_limit(self):
        good, bad = self.begin(journal_bytes="1MiB")
        last = list(bad.events(bad.ask(BAD, item(T_PROMPT, "zqxj" * 10000), kind=TOKENIZE)))[-1]
        self.assertEqual((last.type, last.code), (ERROR, "NO_MEMORY"), last)
        self.assertIn("the journal of 1048576 bytes is full, for 7/8 of it are this user's", last.text)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_resume_in_a_long_answer(self):
        good, _ = self.begin()
        rid = good.ask(GOOD, item(T_PROMPT, "zqxj" * 15000), kind=TOKENIZE)
        end = list(good.events(rid))[-1].seq
        self.assertGreater(end, 50000)
        n, began = 3000, self.cpu_seconds()
        for i in range(n):
            good.again(GOOD, rid, end + 1 - i % 3 % 2)  # behind the last event, or at it
            if i % 3 == 1:
                self.assertEqual(good.recv().seq, end)
        good.send(PING)
        while good.recv().type != PONG:
            pass
        each = (self.cpu_seconds() - began) / n
        print(f"resume behind {end} events: {each * 1e6:.0f} us of the daemon's CPU", file=sys.stderr)
        self.assertLess(each, 300e-6 * SLOW)


@unittest.skipUnless(os.getuid() == 0, "only root may be another user")
class Subordinates(Users):
    """A user with a line in /etc/subuid is many ids and one person."""

    def connect_as(self, uid):
        """True if that id was given a lane, which it keeps until the test ends."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(uid, uid, uid)
                kept = Lane(self.folder, timeout=WAIT)
                os.write(write, b"+")
                time.sleep(600)
                kept.close()
            except Refused:
                os.write(write, b"-")
            finally:
                os._exit(0)
        os.close(write)

        def end():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.addCleanup(end)
        with os.fdopen(read, "rb") as f:
            return f.read(1) == b"+"

    def test_lanes(self):
        subuid = os.path.join(self.folder, "subuid")
        with open(subuid, "w") as f:
            f.write("5001:100000:65536\n")
        self.arguments = (*self.arguments, "--subuid-file", subuid)
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.join(self.folder, "lane.sock"), 0o666)
        self.begin(lanes=16)
        self.spy.sock.close()
        time.sleep(0.1)
        got = [self.connect_as(100000 + i) for i in range(15)]
        self.assertEqual(got.count(True), 13, "one user's share")
        self.assertFalse(self.connect_as(5001), "the owner's share is used up")
        self.assertTrue(self.connect_as(5002))
        self.assertFalse(self.connect_as(5003), "all lanes but the reserved ones are taken")
        for _ in range(2):
            self.addCleanup(Lane(self.folder).close)
        self.assertRaises(Refused, Lane, self.folder)


    @unittest.skipUnless(OTHERS_RUN, OTHERS)
    def test_refusals_are_seen_late(self):
        """As all figures of requests: by the daemon's user at once, by another not."""
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.join(self.folder, "lane.sock"), 0o666)
        good, bad = self.begin(model=self.slow_model(), ctx=1024, sequences=1, max_queue=0)
        rid = good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=900, flags=S_IGNORE_END))
        self.some(good, rid, 3)
        self.assertEqual(list(bad.events(bad.ask(BAD, prompt("x", 5))))[-1].code, "BUSY")
        line = b'pipit_requests_refused_total{cause="queue"} %d\n'
        argv = [os.path.join(BUILD, "client/pipit"), "metrics", "--runtime-dir", self.folder]
        self.assertIn(line % 0, subprocess.run(argv, user=5003, check=True, capture_output=True).stdout)
        self.assertIn(line % 1, subprocess.run(argv, check=True, capture_output=True).stdout)
        good.withdraw(GOOD, rid)


class Poison(Users):
    def test_poisons_in_turn_end_nobody_else(self):
        """Each dies beside the answer, is withdrawn before it can be told from it, and followed by the next."""
        good, bad = self.begin(model=self.slow_model(), ctx=1024, sequences=2)
        asked = item(T_PROMPT, "x") + sampling(max_tokens=220, flags=S_IGNORE_END)
        rid = good.ask(GOOD, asked)
        events = self.some(good, rid, 3)
        for i in range(1, 4):
            poison = bad.ask(BAD, order("crash-always:2") + prompt("x", 50))
            end = time.monotonic() + (WAIT if i == 1 else 0.7 * SLOW)  # the later ones wait apart
            while self.spy.status().n_restarts < i and time.monotonic() < end:
                time.sleep(0.01)
            bad.withdraw(BAD, poison)
        while events[-1].type not in (DONE, ERROR):
            events.append(good.recv())
        self.assertEqual(events[-1].type, DONE, events[-1])
        self.assertEqual((events[-1].reason, events[-1].n_new), ("length", 220))
        self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))

    def test_who_is_blamed_waits_and_others_do_not(self):
        good, bad = self.begin(sequences=2)
        for _ in range(3):
            events = list(bad.events(bad.ask(BAD, order("crash-always:2") + prompt("x", 50))))
            self.assertEqual(events[-1].code, "ENGINE_CRASHED", events[-1])
            self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)
        refused = list(bad.events(bad.ask(BAD, prompt("Once", 5))))[-1]
        self.assertEqual((refused.type, refused.code), (ERROR, "BUSY"))
        self.assertTrue(5000 < refused.retry_after_ms <= 10000, refused)
        self.assertIn("charged 6, allowed are 4", refused.text)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)


    def test_deaths_at_work_make_nobody_wait(self):
        """They are charged; the pauses of engines that cannot start do not grow by them."""
        _, bad = self.begin()
        for i in range(6):
            self.assertEqual(list(bad.events(bad.ask(BAD + i, order("crash:2") + prompt("Once", 5))))[-1].type, DONE)
        self.systemd.stop(self.pid)
        pauses = [float(s) for s in re.findall(rb"starting it again in ([0-9.]+) s", self.log.read())]
        self.assertEqual((len(pauses), max(pauses)), (6, 0.2))


class Readers(Users):
    """Who reads slowly keeps nobody from a sequence."""

    def creep(self, lane, rid, done):
        """Row by row, each at the last moment."""
        row = 0
        try:
            while True:
                e = lane.recv()
                if e.id == rid and e.type in (DONE, ERROR):
                    done.append(e)
                    return
                if e.type == BULK and e.kind == 3:
                    time.sleep(0.3)
                    row += e.n_rows
                    lane.send(CREDIT, struct.pack("<Q", row + 1), rid)
        except (OSError, EOFError) as e:
            done.append(e)

    def test_a_row_a_stall(self):
        good, _ = self.begin(stall_timeout=1, pause_limit=1.5, sequences=1)
        bad, done = Lane(self.folder, timeout=WAIT), []
        lease = bad.lease(E2C, 512 + 4 * bad.hello.n_vocab)
        rid = bad.request(item(T_PROMPT, "Once upon a time there was " * 12) + sampling(flags=S_LOGITS), kind=SCORE, out=lease)
        reader = threading.Thread(target=self.creep, args=(bad, rid, done))
        reader.start()
        self.until(lambda: self.spy.status().n_running == 1)
        time.sleep(0.5)
        began = time.monotonic()
        asked = good.ask(GOOD, prompt("Once", 5))
        self.some(good, asked, 1)
        print(f"first token beside a reader of a row in 0.3 s: {time.monotonic() - began:.1f} s", file=sys.stderr)
        self.assertLess(time.monotonic() - began, 5 * SLOW)
        reader.join()
        bad.close()
        self.assertEqual((done[0].type, done[0].reason), (DONE, "slow_consumer"), done)

    def test_request_timeout_is_the_servers(self):
        good, _ = self.begin(model=self.slow_model(), ctx=4096, request_timeout=0.5)
        for timeout_ms in (0, 3600000):
            events = list(good.events(good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=4000, flags=S_IGNORE_END),
                                               timeout_ms=timeout_ms)))
            self.assertEqual((events[-1].type, events[-1].reason), (DONE, "timeout"), events[-1])


class Shares(Users):
    """Nobody has all sequences, and who is refused comes again when told."""

    def test_a_sequence_is_left_for_others(self):
        good, bad = self.begin(model=self.slow_model(), ctx=2048, sequences=2)
        long = item(T_PROMPT, "x") + sampling(max_tokens=2000, flags=S_IGNORE_END)
        alone = [bad.ask(BAD, long) for _ in range(2)]
        self.until(lambda: self.spy.status().n_running == 2)  # nobody else is about
        for rid in alone:
            bad.withdraw(BAD, rid)
        self.until(lambda: self.spy.status().n_running == 0)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 2))))[-1].type, DONE)
        for _ in range(3):
            bad.ask(BAD, long)
        self.until(lambda: self.spy.status().n_queued == 2)
        self.some(good, good.ask(GOOD, long), 1)
        status = self.spy.status()
        self.assertEqual((status.n_running, status.n_queued), (2, 2))

    def running(self, n):
        self.until(lambda: self.spy.status().n_running >= n)
        self.assertEqual(self.spy.status().n_running, n)

    def endless(self, lane, uid, n):
        return [lane.ask(uid, item(T_PROMPT, "x") + sampling(max_tokens=8000, flags=S_IGNORE_END)) for _ in range(n)]

    def test_a_reload_gives_more(self):
        """Nothing else happens: what waits starts by the new setting alone."""
        settings = {"model": self.slow_model(), "ctx": 8192, "sequences": 3}
        _, bad = self.begin(**settings, person_sequences=1)
        self.endless(bad, BAD, 3)
        self.until(lambda: self.spy.status().n_queued == 2)
        self.configure(**settings, person_sequences=2)
        os.kill(self.pid, signal.SIGHUP)
        self.running(2)

    @unittest.skipUnless(os.getuid() == 0, "only root may be another user")
    def test_who_leaves_gives_more(self):
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.join(self.folder, "lane.sock"), 0o666)
        _, bad = self.begin(model=self.slow_model(), ctx=8192, sequences=2)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setresuid(5001, 5001, 5001)
            kept = Lane(self.folder, timeout=WAIT)
            os.write(write, b"+")
            time.sleep(600)
            kept.close()
            os._exit(0)
        os.read(read, 1)
        try:
            self.endless(bad, BAD, 2)
            self.until(lambda: self.spy.status().n_queued == 1)
            time.sleep(0.3)
            self.assertEqual(self.spy.status().n_running, 1)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.running(2)

    def test_who_is_forgotten_gives_more(self):
        """Half a minute behind a user's last answer."""
        good, bad = self.begin(model=self.slow_model(), ctx=8192, sequences=2)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 2))))[-1].type, DONE)
        asked = time.monotonic()
        bad.close()
        bad = Door(self.folder)
        self.addCleanup(bad.close)
        while time.monotonic() < asked + 28:
            time.sleep(0.1)
        self.endless(bad, BAD, 2)
        self.until(lambda: self.spy.status().n_queued == 1)
        self.running(2)

    def pipit(self, *words):
        return subprocess.Popen([os.path.join(BUILD, "client/pipit"), *words, "--runtime-dir", self.folder], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def test_forty_ask_at_once(self):
        self.begin(lanes=16)
        asked = [self.pipit("ask", "--raw", "--retry", "60", "-n", "3", "Once") for _ in range(40)]
        for p in asked:
            out, err = p.communicate(timeout=WAIT)
            self.assertEqual((p.returncode, err), (0, b""), out)
            self.assertTrue(out)
        out, _ = self.pipit("status", "--json").communicate(timeout=WAIT)
        said = json.loads(out)
        self.assertGreater(said["refused"]["clients"], 0)
        self.assertEqual((said["limits"]["lanes"], said["limits"]["answer-limit"]), (16, 0))
        out, _ = self.pipit("status").communicate(timeout=WAIT)
        self.assertRegex(out.decode(), r"\nlimits    tokens of an answer: no limit \(answer-limit\)\n          time of a request: no limit "
                         r"\(request-timeout\)\n")
        self.assertRegex(out.decode(), r"shared memory of a client, both ways together: 1.0 MiB \(lane-bytes\)\n")
        self.assertRegex(out.decode(), r"\nrefused   \d+ clients at connect, too many were there\n")

    def test_the_longest_answer(self):
        good, _ = self.begin(answer_limit=7)
        for n in (0, 5, 100):
            last = list(good.events(good.ask(GOOD, item(T_PROMPT, "Once") + sampling(max_tokens=n, flags=S_IGNORE_END))))[-1]
            self.assertEqual((last.type, last.reason, last.n_new), (DONE, "length", 5 if n == 5 else 7), last)

    def test_a_lease_that_does_not_fit_is_told_the_option(self):
        self.begin(lane_bytes="1MiB")
        refused = self.spy.lease(E2C, 600000)
        self.assertEqual((refused.code, refused.count_a, refused.count_b), ("TOO_LARGE", 600000, 524288))
        self.assertIn("600000 bytes: 524288 are free", refused.text)
        self.assertIn("--lane-bytes", refused.text)


@unittest.skipUnless(OTHERS_RUN, OTHERS)
class Lists(Users):
    """Root sees everybody's requests and ends any; a user sees and ends only the own ones."""

    def pipit(self, *words, uid=0):
        """Exit code, stdout, stderr."""
        p = subprocess.run([os.path.join(BUILD, "client/pipit"), *words, "--runtime-dir", self.folder], capture_output=True,
                           timeout=WAIT, user=uid, group=uid, extra_groups=[], cwd="/")
        return p.returncode, p.stdout.decode(), p.stderr.decode()

    def requests(self, uid=0):
        code, out, err = self.pipit("requests", "--json", uid=uid)
        self.assertEqual((code, err), (0, ""))
        return [json.loads(line) for line in out.splitlines()]

    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.join(self.folder, "lane.sock"), 0o666)

    def test_who_sees_and_ends_what(self):
        good, bad = self.begin(model=self.slow_model(), ctx=8192, sequences=2, person_sequences=1)
        long = item(T_PROMPT, "x" * 100) + sampling(max_tokens=8000, flags=S_IGNORE_END)
        mine, other, waiting = good.ask(GOOD, long), bad.ask(BAD, long), bad.ask(BAD, long)
        self.some(good, mine, 5)
        self.until(lambda: self.spy.status().n_queued == 1)
        all_of_them = self.requests()
        self.assertEqual([(r["id"], r["uid"], r["state"], r["place"]) for r in all_of_them],
                         [(mine.hex(), GOOD, "running", 0), (other.hex(), BAD, "running", 0), (waiting.hex(), BAD, "waiting", 1)])
        self.assertGreaterEqual(all_of_them[0]["new_tokens"], 5)
        for r in all_of_them:
            self.assertEqual(r["kind"], "generate")
            self.assertEqual(r["bytes_in"], len(long))
            self.assertTrue(0 <= r["age_s"] < 60, r)
        self.assertEqual([r["id"] for r in self.requests(GOOD)], [mine.hex()])
        self.assertEqual([r["id"] for r in self.requests(BAD)], [other.hex(), waiting.hex()])
        self.assertEqual(self.requests(5002), [])
        code, out, _ = self.pipit("requests")
        self.assertEqual((code, len(out.splitlines())), (0, 4))
        self.assertRegex(out, r"(?m)^ID +USER +KIND .*\n[0-9a-f]{32} ")

        code, _, err = self.pipit("cancel", mine.hex(), uid=BAD)
        self.assertEqual(code, 4)
        self.assertIn("no request of that id", err)
        self.assertEqual(len(self.requests()), 3)
        self.assertEqual(self.pipit("cancel", waiting.hex(), uid=BAD)[0], 0)
        self.assertEqual(self.pipit("cancel", mine.hex())[0], 0)
        last = list(good.events(mine))[-1]
        self.assertEqual((last.type, last.reason), (DONE, "cancelled"))
        self.until(lambda: [r["id"] for r in self.requests()] == [other.hex()])
        self.assertEqual(self.pipit("cancel", "0" * 31 + "1")[0], 4)
        self.systemd.stop(self.pid)
        self.assertRegex(self.log.read().decode(), rf"request \d+ of uid {GOOD} is cancelled by uid 0")

    def test_more_than_a_page(self):
        good, _ = self.begin(model=self.slow_model(), ctx=8192, sequences=1, max_queue=1000)
        asked = [good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=8000, flags=S_IGNORE_END)).hex() for _ in range(800)]
        self.until(lambda: self.spy.status().n_queued == 799)
        self.assertEqual([r["id"] for r in self.requests()], asked)
        self.assertEqual([r["place"] for r in self.requests(GOOD)], list(range(800)))


class Texts(Users):
    """Who tokenizes takes no time from who generates."""

    def attack(self, stop, text):
        lane = Lane(self.folder, c2e=1 << 20, e2c=3 << 20, timeout=WAIT)
        out = lane.lease(E2C, 2 << 20)
        n = 0
        try:
            while not stop.is_set():
                last = list(lane.events(lane.request(item(T_PROMPT, text), kind=TOKENIZE, out=out)))[-1]
                assert (last.type == DONE and last.n_prompt > 1000) or (last.code == "BUSY" and last.retry_after_ms), last
                n += last.type == DONE
        finally:
            lane.close()
        self.tokenized.append(n)

    def test_four_tokenize_without_a_pause(self):
        good, _ = self.begin(model=self.slow_model(), ctx=4096, engine_timeout=2 * SLOW, lane_bytes="4MiB")
        text, stop, self.tokenized = "Once upon a time there was a girl. " * 7000, threading.Event(), []
        rid = good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=4000, flags=S_IGNORE_END))
        self.some(good, rid, 5)
        threads = [threading.Thread(target=self.attack, args=(stop, text)) for _ in range(4)]
        for t in threads:
            t.start()
        last, worst, n, end = time.monotonic(), 0, 0, time.monotonic() + 5
        while last < end:
            event = good.recv()
            self.assertEqual(event.type, TOKEN, event)
            now = time.monotonic()
            worst, last, n = max(worst, now - last), now, n + 1
        stop.set()
        for t in threads:
            t.join()
        print(f"tokenize: {sum(self.tokenized)} texts of {len(text)} bytes; {n} tokens, worst gap {worst * 1e3:.0f} ms", file=sys.stderr)
        self.assertEqual(len(self.tokenized), 4)
        self.assertGreater(sum(self.tokenized), 4)
        self.assertEqual(self.spy.status().n_restarts, 0)
        self.assertLess(worst, 0.5 * SLOW)

    def test_texts_are_read_in_turns(self):
        """One user's eight long texts wait; another's short one waits for the one that is being read."""
        self.begin(lane_bytes="16MiB", lanes=4)
        lane = Door(self.folder, c2e=2 << 20, e2c=14 << 20)
        self.addCleanup(lane.close)
        text = "Once upon a time there was a girl. " * (262144 // 35)
        leases = [lane.lease(E2C, 600000) for _ in range(8)]
        flood = [lane.ask(BAD, item(T_PROMPT, text), kind=TOKENIZE, out=out) for out in leases]
        ended, small = [], None
        while len(ended) < 9:
            e = lane.recv()
            if e.type in (DONE, ERROR):
                self.assertEqual(e.type, DONE, e)
                ended.append(e.id)
                if len(ended) == 1:
                    small = lane.ask(GOOD, item(T_PROMPT, "Once"), kind=TOKENIZE)
        self.assertEqual(sorted(ended), sorted([*flood, small]))
        print(f"a short text was read behind {ended.index(small)} of 8 long ones", file=sys.stderr)
        self.assertLessEqual(ended.index(small), 2, "the one before it was sent, and the one that was being read")

    def test_texts_share_with_prompts(self):
        """Long prompts without end, each refused once it is read, do not keep another's text waiting."""
        good, bad = self.begin(sequences=2, ctx=256)
        text, stop = "Once upon a time there was a girl. " * 3500, threading.Event()

        def attack():
            while not stop.is_set():
                last = list(bad.events(bad.ask(BAD, item(T_PROMPT, text) + sampling(max_tokens=1))))[-1]
                assert last.code in ("CONTEXT_OVERFLOW", "BUSY"), last
        thread = threading.Thread(target=attack)
        thread.start()
        for _ in range(20):
            self.assertEqual(list(good.events(good.ask(GOOD, item(T_PROMPT, "Once"), kind=TOKENIZE)))[-1].type, DONE)
        stop.set()
        thread.join()

    def test_a_text_that_hangs_the_reader(self):
        """The engine is started again, also while another's steps go on, and both get their answers."""
        good, bad = self.begin(model=self.slow_model(), ctx=4096, sequences=2, engine_timeout=2 * SLOW)
        rid = good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=1500, flags=S_IGNORE_END))
        self.some(good, rid, 3)
        for n, how in enumerate(("text-hang", "text-spin"), 1):
            last = list(bad.events(bad.ask(BAD, order(how) + prompt("Once", 5))))[-1]
            self.assertEqual((last.type, last.reason), (DONE, "length"), last)
            self.assertEqual(self.spy.status().n_restarts, n)
        good.withdraw(GOOD, rid)
        self.assertEqual(list(good.events(rid))[-1].type, DONE)
        last = list(bad.events(bad.ask(BAD, order("text-hang-always") + prompt("Once", 5))))[-1]
        self.assertEqual((last.type, last.code), (ERROR, "ENGINE_CRASHED"), last)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)
        self.systemd.stop(self.pid)
        self.assertIn(b"a text was not read in time", self.log.read())

    def test_prompts_are_read_beside_steps(self):
        good, bad = self.begin(model=self.slow_model(), ctx=4096, sequences=2, lane_bytes="64MiB", journal_bytes="64MiB")
        rid = good.ask(GOOD, item(T_PROMPT, "x") + sampling(max_tokens=4000, flags=S_IGNORE_END))
        self.some(good, rid, 5)
        text = "Once upon a time there was a girl. " * 110000
        began, answer = time.monotonic(), []

        def read():
            answer.extend(bad.events(bad.ask(BAD, item(T_PROMPT, text) + sampling(max_tokens=1))))
            answer.append(time.monotonic() - began)
        reader = threading.Thread(target=read)
        reader.start()
        last, worst, n = began, 0, 0
        while reader.is_alive():
            self.assertEqual(good.recv().type, TOKEN)
            now = time.monotonic()
            worst, last, n = max(worst, now - last), now, n + 1
        reader.join()
        print(f"prompt of {len(text)} bytes: refused after {answer[-1]:.2f} s; {n} tokens, worst gap {worst * 1e3:.0f} ms",
              file=sys.stderr)
        self.assertEqual((answer[-2].type, answer[-2].code), (ERROR, "CONTEXT_OVERFLOW"), answer[-2])
        self.assertLess(worst, answer[-1] / 3)
        bad.withdraw(GOOD, rid)

    def test_a_prompt_is_withdrawn_while_it_is_read(self):
        good, bad = self.begin(sequences=2, lane_bytes="64MiB", journal_bytes="64MiB")
        text = "Once upon a time there was a girl. " * 50000
        for kind in GENERATE, SCORE:
            rid = bad.ask(BAD, item(T_PROMPT, text), kind=kind)
            time.sleep(0.05)
            bad.withdraw(BAD, rid)
            last = list(bad.events(rid))[-1]
            self.assertIn((last.type, last.reason if last.type == DONE else last.code), ((DONE, "cancelled"), (ERROR, "CONTEXT_OVERFLOW")), last)
            self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)

    def test_one_that_is_withdrawn_or_too_long(self):
        good, bad = self.begin(lane_bytes="64MiB", journal_bytes="64MiB")
        text = "Once upon a time there was a girl. " * 4000
        rid = good.ask(GOOD, item(T_PROMPT, text), kind=TOKENIZE)
        while good.recv().type != TOKEN:
            pass
        good.withdraw(GOOD, rid)
        last = list(good.events(rid))[-1]
        self.assertEqual((last.type, last.reason), (DONE, "cancelled"))
        for kind in TOKENIZE, GENERATE, SCORE:
            last = list(bad.events(bad.ask(BAD, item(T_PROMPT, b"x" * (5 << 20)), kind=kind)))[-1]
            self.assertEqual((last.code, last.count_a, last.count_b), ("TOO_LARGE", 5 << 20, 4 << 20), last)
        self.assertEqual(list(good.events(good.ask(GOOD, prompt("Once", 5))))[-1].type, DONE)


if __name__ == "__main__":
    for program in (PIPITD, os.path.join(BUILD, "daemon/worker/pipit-engine")):
        if not os.path.exists(program):
            print(f"SKIP: {program} was not built", file=sys.stderr)
            sys.exit(77)
    unittest.main(verbosity=2, warnings="ignore")
