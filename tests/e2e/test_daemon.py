#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipitd and pipit-engine through the lane: answers, leases, limits, resume, bad input."""
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from daemon import DATA, OTHERS, OTHERS_RUN, PIPITD, SLOW, STORIES, Daemon, wait_until
from lane import (ACCEPTED, ALT, BULK, C2E, CHAT, DETOKENIZE, DONE, E2C, EMBED, ERROR, F_DETACH, F_PRINCIPAL, F_PROGRESS,
                  GENERATE, HELLO, HELLO_REPLY, LEASE, LEASE_PUT, PING, PONG, PROGRESS, REQUEST, RESUME, S_IGNORE_END, S_NO_DRAFT,
                  S_LOGITS, SCORE, STATES, T_CONTENT, T_POLICY, T_PROMPT, T_ROLE, T_SCHEMA, T_SESSION, T_STOP, T_TOKENS,
                  TEXT, TOKEN, TOKENIZE, CREDIT, METRICS_GET, Lane, Record, item, pack, prompt, sampling, text_of)
import lane as lane_py

ONCE = b", there was a little girl named Lily. She loved to play outside in the park. One day,"


def accepted(folder):
    """A connection, or None while nobody listens: the socket is there a moment before."""
    try:
        return Lane(folder, timeout=20)
    except OSError:
        return None


class Served(unittest.TestCase):
    """One daemon for all tests of a class; a fresh connection each."""
    args = ()

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*cls.args)

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        assert code == 0, (code, cls.daemon.text())

    def setUp(self):
        self.lane = self.daemon.ready()
        self.addCleanup(self.lane.close)

    def ask(self, items, **kw):
        return list(self.lane.events(self.lane.request(items, **kw)))

    def error(self, items, **kw):
        e = self.ask(items, **kw)[-1]
        self.assertEqual(e.type, ERROR, e)
        return e


class Answers(Served):
    args = ("--sequences", "2")

    def test_no_process_leaves_a_core_dump(self):
        """A limit of 1 byte: nothing is that small, and a crash reporter behind a pipe is not started either."""
        daemon = Daemon(env={"PIPIT_DEBUGGER": "no"})
        self.addCleanup(daemon.stop)
        daemon.ready().close()
        for pid in (daemon.process.pid, daemon.child("pipit-engine")):
            with open(f"/proc/{pid}/limits") as f:
                soft, hard = next(line.split()[4:6] for line in f if line.startswith("Max core file size"))
            self.assertEqual(hard, "1")
            self.assertIn(soft, "1" if SLOW == 1 else "01")  # AddressSanitizer sets its own

    def test_nobody_attaches(self):
        """A process that no debugger may attach to belongs to root in /proc, whoever runs it."""
        if os.geteuid() == 0 and not OTHERS_RUN:
            self.skipTest(OTHERS)
        user = {} if os.geteuid() else {"user": 65534, "group": 65534, "extra_groups": []}
        for hidden in (True, False):
            with tempfile.TemporaryDirectory(prefix="pd-") as folder:
                os.chmod(folder, 0o755)
                if user:
                    os.chown(folder, 65534, 65534)
                argv = [PIPITD, "--model", STORIES, "--backend", "ref", "--threads", "1", "--gateway", "no", "--runtime-dir", folder]
                with subprocess.Popen([*argv, *([] if hidden else ["--debugger"])], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                      env={k: v for k, v in os.environ.items() if not k.startswith("PIPIT_")}, **user) as p:
                    try:
                        lane = wait_until(lambda: accepted(folder))
                        if not lane:
                            p.kill()
                            self.skipTest("another user cannot run the daemon here: " + p.stderr.read().decode())
                        lane.wait_ready(20)
                        with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
                            pids = [p.pid, int(f.read().split()[0])]
                        owners = {os.stat(f"/proc/{pid}/environ").st_uid for pid in pids}
                        lane.close()
                        p.terminate()
                        p.wait(20)
                    finally:
                        p.kill()  # else a failure would wait for its end
                    self.assertEqual(owners, {0 if hidden else user.get("user", os.geteuid())})

    def test_generate(self):
        events = self.ask(prompt("Once upon a time", 30))
        self.assertEqual([e.type for e in events], [ACCEPTED] + [TOKEN] * 30 + [DONE])
        self.assertEqual([e.seq for e in events], list(range(1, 33)))
        self.assertEqual([e.index for e in events[1:-1]], list(range(30)))
        self.assertEqual(text_of(events), ONCE)
        done = events[-1]
        self.assertEqual((done.reason, done.n_prompt, done.n_new, done.replay), ("length", 5, 30, 0))
        self.assertGreater(done.kv_bytes, 0)

    def test_tokens_in_and_same_answer(self):
        ids = [e.token for e in self.ask(item(T_PROMPT, "Once upon a time"), kind=TOKENIZE) if e.type == TOKEN]
        self.assertEqual(len(ids), 5)
        raw = struct.pack(f"<{len(ids)}i", *ids)
        self.assertEqual(text_of(self.ask(item(T_TOKENS, raw) + sampling(max_tokens=30))), ONCE)
        lease = self.lane.lease(C2E, 4096)
        self.assertEqual(lease.type, LEASE)
        self.lane.c2e[lease.offset:lease.offset + len(raw)] = raw
        self.assertEqual(text_of(self.ask(sampling(max_tokens=30), tokens=(lease, len(raw)))), ONCE)
        back = self.ask(b"", kind=DETOKENIZE, tokens=(lease, len(raw)))
        self.assertEqual(text_of(back), b"Once upon a time")

    def test_tokenize_into_lease(self):
        lease = self.lane.lease(E2C, 4096)
        events = self.ask(item(T_PROMPT, "Once upon a time"), kind=TOKENIZE, out=lease)
        self.assertEqual([e.type for e in events], [ACCEPTED, BULK, DONE])
        ids = struct.unpack_from("<5i", self.lane.e2c, lease.offset)
        self.assertEqual(ids[0], 1)
        self.assertEqual((events[1].kind, events[1].n_rows, events[1].n_bytes), (1, 5, 20))
        self.assertEqual(self.error(item(T_PROMPT, "many " * 2000), kind=TOKENIZE, out=lease).code, "TOO_LARGE")

    def test_seed(self):
        def say(**kw):
            events = self.ask(prompt("Once", 12, temperature=1.5, **kw))
            return text_of(events), events[-1].seed
        self.assertEqual(say(seed=7), say(seed=7))
        a, b = say(), say()
        self.assertNotEqual(a[1], b[1])
        self.assertEqual(say(seed=a[1])[0], a[0])

    def test_stop_string_across_tokens(self):
        events = self.ask(item(T_STOP, "never") + item(T_STOP, "ittle gi") + prompt("Once upon a time", 30))
        self.assertEqual(text_of(events), b", there was a l")
        self.assertEqual((events[-1].reason, events[-1].stop_index), ("stop", 2))
        self.assertLess(events[-1].n_new, 30)

    def test_logprobs_and_alternatives(self):
        events = self.ask(prompt("Once upon a time", 4, n_logprobs=3))
        self.assertEqual([e.type for e in events], [ACCEPTED] + [ALT, ALT, ALT, TOKEN] * 4 + [DONE])
        for i in range(1, 17, 4):
            alts, token = events[i:i + 3], events[i + 3]
            self.assertEqual([a.rank for a in alts], [0, 1, 2])
            self.assertEqual((alts[0].token, alts[0].logprob), (token.token, token.logprob))
            self.assertEqual(token.n_alts, 3)
            self.assertGreater(alts[0].logprob, alts[1].logprob)

    def test_logits_into_lease(self):
        row = self.lane.hello.n_vocab * 4
        lease = self.lane.lease(E2C, 3 * row)
        events = self.ask(prompt("Once upon a time", 8, n_logprobs=0), out=lease)
        bulk = [e for e in events if e.type == BULK]
        tokens = [e for e in events if e.type == TOKEN]
        self.assertEqual([b.row0 for b in bulk], list(range(8)))
        self.assertEqual({(b.window, b.n_rows, b.n_cols, b.n_bytes) for b in bulk}, {(3, 1, row // 4, row)})
        for b, t in list(zip(bulk, tokens))[5:]:  # the rows that nothing has overwritten since
            logits = struct.unpack_from(f"<{row // 4}f", self.lane.e2c, lease.offset + b.offset)
            self.assertEqual(max(range(len(logits)), key=logits.__getitem__), t.token)
        small = self.lane.lease(E2C, row - 1)
        e = self.error(prompt("Once", 1), out=small)
        self.assertEqual((e.code, e.count_a, e.count_b), ("TOO_LARGE", row, row - 1))

    def test_score(self):
        text = item(T_PROMPT, "Once upon a time there was a girl")
        tokens = [e for e in self.ask(text + sampling(), kind=SCORE) if e.type == TOKEN]
        n = len(tokens)
        self.assertGreater(n, 6)
        lease = self.lane.lease(E2C, 4096)
        events = self.ask(text + sampling(), kind=SCORE, out=lease)
        self.assertEqual(sum(e.n_rows for e in events if e.type == BULK), n)
        got = struct.unpack_from(f"<{n}f", self.lane.e2c, lease.offset)
        self.assertEqual(list(got), [t.logprob for t in tokens])
        part = [e for e in self.ask(text + sampling(score_first=3), kind=SCORE) if e.type == TOKEN]
        self.assertEqual([(t.token, t.logprob) for t in part], [(t.token, t.logprob) for t in tokens[3:]])
        self.assertEqual(self.error(text + sampling(score_first=99), kind=SCORE).code, "INVALID")

    def test_score_logits_with_credit(self):
        row = self.lane.hello.n_vocab * 4
        text = item(T_PROMPT, "Once upon a time there was a girl") + sampling(flags=S_LOGITS)
        n = len([e for e in self.ask(text[:-64] + sampling(), kind=SCORE) if e.type == TOKEN])
        lease = self.lane.lease(E2C, 64 + 2 * row)
        rid = self.lane.request(text, kind=SCORE, out=lease)
        seen, done = [], None
        while not done:
            try:
                e = self.lane.recv(timeout=0.5)
            except TimeoutError:
                self.assertEqual(len(seen) % 2, 0)  # the window is full
                self.lane.send(CREDIT, struct.pack("<Q", len(seen) + 2), rid)
                continue
            if e.type == BULK and e.kind == 3:
                for i in range(e.n_rows):
                    at = lease.offset + 64 + (e.row0 + i) % 2 * row
                    seen.append(struct.unpack_from(f"<{row // 4}f", self.lane.e2c, at))
            done = e.type == DONE
            self.assertNotEqual(e.type, ERROR, e)
        self.assertEqual(len(seen), n)
        self.assertEqual(len(set(seen)), n)

    def test_progress(self):
        events = self.ask(prompt("time " * 100, 2), flags=F_PROGRESS)
        progress = [e for e in events if e.type == PROGRESS]
        self.assertTrue(progress)
        self.assertEqual(progress[-1].n_total, events[-1].n_prompt)

    def test_context_overflow(self):
        ctx = self.lane.hello.ctx
        e = self.error(prompt("word " * 1000, 1))
        self.assertEqual((e.code, e.count_b), ("CONTEXT_OVERFLOW", ctx - 1))
        self.assertGreater(e.count_a, ctx)
        events = self.ask(prompt("time " * 200, 0, flags=S_IGNORE_END))
        self.assertEqual(events[-1].reason, "context")
        self.assertEqual(events[-1].n_prompt + events[-1].n_new, ctx)

    def test_refused_values(self):
        for items, kw, code in [
            (item(T_PROMPT, b"\xff\xfe") + sampling(), {}, "INVALID"),
            (item(T_PROMPT, b"a\0b") + sampling(), {}, "INVALID"),
            (item(T_PROMPT, b"caf\xc3") + sampling(), {}, "INVALID"),
            (sampling(), {}, "INVALID"),
            (item(T_PROMPT, "a") + item(T_PROMPT, "b"), {}, "INVALID"),
            (item(T_PROMPT, "a") + item(T_TOKENS, bytes(4)), {}, "INVALID"),
            (item(T_TOKENS, bytes(5)), {}, "INVALID"),
            (item(T_TOKENS, struct.pack("<i", -1)), {}, "INVALID"),
            (item(T_TOKENS, struct.pack("<i", 512)), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(temperature=-1), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(temperature=float("nan")), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(top_p=1.5), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(n_logprobs=21), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(max_tokens=-1), {}, "INVALID"),
            (item(T_PROMPT, "a") + sampling(flags=1 << 20), {}, "INVALID"),
            (item(T_PROMPT, "a") + item(T_STOP, "") + sampling(), {}, "INVALID"),
            (item(T_PROMPT, "a") + item(T_STOP, "x") * 17, {}, "TOO_LARGE"),
            (item(T_PROMPT, "a") + item(T_POLICY, "nonsense"), {}, "INVALID"),
            (item(T_PROMPT, "a") + item(T_SCHEMA, "{}"), {}, "UNSUPPORTED"),
            (item(T_PROMPT, "a") + item(T_SESSION, "s"), {}, "INVALID"),
            (item(T_PROMPT, "a"), {"kind": EMBED}, "INVALID"),  # without a lease
            (item(T_PROMPT, "a b") + sampling(seed=1), {"kind": SCORE}, "INVALID"),  # wishes of answers, and
            (item(T_PROMPT, "a b") + sampling(flags=S_IGNORE_END), {"kind": SCORE}, "INVALID"),
            (item(T_PROMPT, "a b") + sampling(n_logprobs=2), {"kind": SCORE}, "INVALID"),
            (item(T_PROMPT, "a b") + item(T_STOP, "b"), {"kind": TOKENIZE}, "INVALID"),
            (item(T_PROMPT, "a b") + sampling(flags=16), {"kind": SCORE}, "INVALID"),  # of embeddings
            (item(T_PROMPT, "a b") + sampling(flags=32), {}, "INVALID"),
            (item(T_PROMPT, "a"), {"kind": CHAT}, "UNSUPPORTED"),  # this model has no template
            (item(T_ROLE, "user") + sampling(), {"kind": CHAT}, "INVALID"),
            (item(T_ROLE, "robot") + item(T_CONTENT, "x"), {"kind": CHAT}, "INVALID"),
            (item(T_PROMPT, "a")[:12], {}, "INVALID"),
            (item(99, "a"), {}, "INVALID"),
        ]:
            e = self.error(items, **kw)
            self.assertEqual(e.code, code, (items, e))
            self.assertTrue(e.text, items)
        self.assertEqual(text_of(self.ask(prompt("Once upon a time", 30))), ONCE)

    def test_timeout(self):
        events = self.ask(prompt("Once", 0, flags=S_IGNORE_END), timeout_ms=60)
        self.assertEqual(events[-1].reason, "timeout")

    def test_ping_status_metrics(self):
        self.lane.send(PING)
        pong = self.lane.recv()
        self.assertEqual((pong.type, pong.front_epoch), (PONG, self.lane.hello.front_epoch))
        s = self.lane.status()
        self.assertEqual((STATES[s.state], s.ctx, s.n_seqs), ("ready", self.lane.hello.ctx, 2))
        self.assertGreater(s.plan_bytes, 1 << 20)
        lease = self.lane.lease(E2C, 8192)
        self.lane.send(METRICS_GET, struct.pack("<IIIIQQ", E2C, lease.buf, lease.generation, 0, 0, 0))
        bulk, done = self.lane.recv(), self.lane.recv()
        text = self.lane.e2c[lease.offset:lease.offset + bulk.n_bytes].decode()
        self.assertEqual(done.type, DONE)
        self.assertIn("pipit_requests_total ", text)
        self.assertIn("pipit_drafted_tokens_total ", text)
        helped, typed = [], {}
        for line in text.splitlines():
            what = re.fullmatch(r"# (HELP|TYPE) (pipit_\w+) (\S.*)", line)
            if what and what[1] == "HELP":
                helped.append(what[2])
            elif what:
                self.assertEqual(helped[-1], what[2])
                self.assertIn(what[3], ("gauge", "counter"))
                typed[what[2]] = what[3]
            else:
                name = re.fullmatch(r'(pipit_\w+)(?:\{\w+="[^"\\]*"\})? [-+.\de]+', line)
                self.assertTrue(name, line)
                self.assertEqual(name[1], helped[-1])
        self.assertEqual(sorted(helped), sorted(typed))  # each once


class Drafts(Served):
    """A daemon that has timed nothing yet, so the first guesses are tried whatever the machine is like."""

    def test_drafts_change_nothing(self):
        n_drafted = 0
        for kw in ({}, {"temperature": 0.3, "seed": 4}):
            done = {}
            for flags in (S_IGNORE_END, S_IGNORE_END | S_NO_DRAFT):
                events = self.ask(prompt("the little dog saw the little cat and " * 8, 120, n_logprobs=0, flags=flags, **kw))
                done[flags] = [(e.token, e.logprob, e.text) for e in events if e.type in (TOKEN, TEXT)], events[-1]
            (a, with_drafts), (b, without) = done.values()
            self.assertEqual(a, b)
            self.assertEqual((without.n_drafted, without.n_accepted), (0, 0))
            self.assertLessEqual(with_drafts.n_accepted, with_drafts.n_drafted)
            n_drafted += with_drafts.n_drafted
        self.assertGreater(n_drafted, 0)


class NoDrafts(Served):
    args = ("--draft", "0")

    def test_none_where_none_are_planned(self):
        done = self.ask(prompt("the little dog saw the little cat and " * 8, 60, flags=S_IGNORE_END))[-1]
        self.assertEqual((done.n_new, done.n_drafted, done.n_accepted), (60, 0, 0))


class Draw:
    """ref can draw: whoever draws, the answers are these."""

    def test_answers(self):
        texts = []
        for kw in ({}, {"temperature": 0.9, "seed": 4}):
            events = self.ask(prompt("Once upon a time", 40, flags=S_IGNORE_END, **kw))
            texts.append([e.token for e in events if e.type == TOKEN])
            self.assertEqual(events[-1].n_new, 40)
        self.said.append(texts)
        self.assertEqual(texts, self.said[0])
        pid = self.daemon.child("pipit-engine")
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            arguments = f.read().split(b"\0")
        self.assertIn(f"--draw={self.args[-1]}".encode(), arguments)
        self.assertIn(b"--prefill=own" if "own" in self.args else b"--prefill=auto", arguments)

    said: list = []


class DrawHost(Draw, Served):
    args = ("--draft", "0", "--prefill", "own", "--draw", "host")


class DrawDevice(Draw, Served):
    args = ("--draft", "0", "--draw", "device")


class Leases(Served):
    def test_life(self):
        a, b = self.lane.lease(E2C, 5000), self.lane.lease(E2C, 4096)
        self.assertEqual((a.offset % 4096, b.offset), (0, a.offset + 8192))
        self.lane.put(a)
        c = self.lane.lease(E2C, 8192)
        self.assertEqual((c.offset, c.buf), (a.offset, a.buf))
        self.assertNotEqual(c.generation, a.generation)
        self.lane.put(a)  # stale
        self.assertEqual(self.lane.recv().code, "DENIED")
        e = self.lane.lease(E2C, 1 << 40)
        self.assertEqual((e.type, e.code), (ERROR, "TOO_LARGE"))
        self.assertEqual(self.lane.lease(E2C, e.count_b).type, LEASE)
        self.assertEqual(self.lane.lease(E2C, 0).code, "INVALID")

    def test_table_is_bounded(self):
        got = [self.lane.lease(C2E, 1).type for _ in range(63)]
        self.assertEqual(set(got), {LEASE})
        self.assertEqual(self.lane.lease(C2E, 1).code, "BUSY")

    def test_foreign_and_busy_leases(self):
        out = self.lane.lease(E2C, 4096)
        fake = Record(pack(LEASE, struct.pack("<IIIIQQ", E2C, 7, 7, 0, 0, 4096)))
        self.assertEqual(self.error(prompt("a", 1), out=fake).code, "DENIED")
        rid = self.lane.request(prompt("Once", 0, flags=S_IGNORE_END), out=out)
        self.assertEqual(self.error(prompt("a", 1), out=out).code, "DENIED")
        self.lane.put(out)  # while the engine has it: it goes when the engine is done
        self.lane.cancel(rid)
        self.assertEqual(list(self.lane.events(rid))[-1].reason, "cancelled")
        self.assertEqual(self.error(prompt("a", 1), out=out).code, "DENIED")
        self.assertEqual(self.lane.lease(E2C, 4096).offset, out.offset)
        self.assertEqual(self.error(prompt("a", 1), out=out, flags=F_DETACH).code, "DENIED")

    def test_arenas(self):
        with self.assertRaises((PermissionError, OSError)):
            mmap.mmap(self.lane.fds[1], self.lane.hello.e2c_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        for fd in self.lane.fds:
            with self.assertRaises(OSError):
                os.ftruncate(fd, 1 << 30)
        with self.assertRaises(OSError):
            os.ftruncate(self.lane.fds[0], 0)
        big = self.daemon.lane(e2c=900 << 10)
        self.assertGreaterEqual(big.hello.e2c_bytes, 800 << 10)
        self.assertLessEqual(big.hello.c2e_bytes + big.hello.e2c_bytes, 1 << 20)
        # A closed lane's memory goes back although its client keeps the mapping.
        big.c2e[:] = b"x" * len(big.c2e)
        big.sock.close()
        self.assertTrue(wait_until(lambda: big.c2e[0:1] == b"\0"))


class Connections(Served):
    args = ("--lanes", "16", "--sequences", "2")

    def closed_with(self, code, *records):
        raw = self.daemon.lane(hello=False)
        for r in records:
            try:
                raw.sock.send(r)
            except BrokenPipeError:
                break
        got = raw.recv()
        if got.type == HELLO_REPLY:
            got = raw.recv()
        self.assertEqual((got.type, got.code), (ERROR, code))
        with self.assertRaises((EOFError, ConnectionResetError)):
            raw.recv()
        raw.close()

    def hello(self, magic=lane_py.MAGIC, major=1, size=256):
        return pack(HELLO, struct.pack("<IHHIIQQ32s", magic, major, 0, size, 0, 0, 0, b"x"))

    def test_garbage(self):
        engine = self.daemon.child("pipit-engine")
        rid = os.urandom(16)
        self.closed_with("PROTOCOL", os.urandom(256))
        self.closed_with("PROTOCOL", b"x")
        self.closed_with("PROTOCOL", bytes(255))
        self.closed_with("PROTOCOL", bytes(4096))
        self.closed_with("PROTOCOL", self.hello(magic=1))
        self.closed_with("PROTOCOL", self.hello(size=128))
        self.closed_with("ABI", self.hello(major=2))
        self.closed_with("PROTOCOL", pack(PING))
        self.closed_with("PROTOCOL", self.hello(), self.hello())
        self.closed_with("PROTOCOL", self.hello(), pack(TOKEN))
        self.closed_with("PROTOCOL", self.hello(), pack(0x102, bytes(100), rid))
        self.closed_with("PROTOCOL", self.hello(), pack(REQUEST, bytes(8), rid))
        self.closed_with("PROTOCOL", self.hello(), pack(REQUEST, struct.pack("<Ii", 1, 500), rid))
        self.closed_with("PROTOCOL", self.hello(), pack(REQUEST, struct.pack("<Ii", 1, 0)))
        self.closed_with("PROTOCOL", self.hello(), pack(RESUME, bytes(8), rid))
        self.closed_with("PROTOCOL", self.hello(), pack(PING, flags=1))
        for seed in range(50):
            raw = self.daemon.lane()
            try:
                for i in range(20):
                    r = bytearray(os.urandom(256))
                    r[0:2] = struct.pack("<H", 1 + (seed + i) % 12)
                    r[4:8] = struct.pack("<I", 256)
                    raw.sock.send(bytes(r))
            except (BrokenPipeError, ConnectionResetError):
                pass
            raw.close()
        self.assertEqual(text_of(self.ask(prompt("Once upon a time", 30))), ONCE)
        self.assertEqual(self.daemon.child("pipit-engine"), engine)

    def test_descriptors_are_dropped(self):
        import array
        import socket
        before = len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
        for _ in range(3):
            raw = self.daemon.lane()
            raw.sock.sendmsg([pack(PING)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            self.assertEqual(raw.recv().type, PONG)
            raw.close()
        for fd in fds:
            os.close(fd)
        self.assertTrue(wait_until(lambda: len(os.listdir(f"/proc/{self.daemon.process.pid}/fd")) <= before))

    def test_descriptors_after_1000_connects(self):
        def count(pid):
            return len(os.listdir(f"/proc/{pid}/fd"))
        engine = self.daemon.child("pipit-engine")
        before, before_engine = count(self.daemon.process.pid), count(engine)
        for i in range(1000):
            raw = self.daemon.lane(hello=i % 4 > 0)
            if i % 10 == 1:
                lease = raw.lease(E2C, 4096)
                raw.request(prompt("Once", 5), out=lease)
            raw.close()
        self.assertTrue(wait_until(lambda: count(self.daemon.process.pid) <= before), count(self.daemon.process.pid))
        self.assertTrue(wait_until(lambda: count(engine) <= before_engine))
        self.assertTrue(wait_until(lambda: self.lane.status().n_running + self.lane.status().n_queued == 0))
        self.assertEqual(self.lane.status().n_lanes, 1)

    @unittest.skipIf(SLOW > 1, "a sanitizer's malloc keeps what is freed")
    def test_memory_of_forgotten_answers_comes_back(self):
        """Three thousand answers are kept for 30 s, each for a client that is gone. malloc alone would hold their pages for good."""
        daemon = Daemon("--sequences", "2")
        self.addCleanup(daemon.stop)
        lane = daemon.ready()
        self.addCleanup(lane.close)

        def kb():
            with open(f"/proc/{daemon.process.pid}/status") as f:
                return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))
        before = kb()
        for _ in range(3000):
            raw = daemon.lane()
            self.assertEqual(list(raw.events(raw.request(prompt("Once", 1))))[-1].type, DONE)
            raw.close()
        grown = kb() - before
        self.assertGreater(grown, 1000)
        self.assertTrue(wait_until(lambda: kb() - before < grown / 2, 40), (before, grown, kb()))

    def test_too_many_lanes(self):
        held = [self.daemon.lane() for _ in range(13)]
        raw = self.daemon.lane(hello=False)
        e = raw.recv()
        self.assertEqual((e.type, e.code), (ERROR, "BUSY"))
        self.assertGreater(e.retry_after_ms, 0)
        raw.close()
        for l in held:
            l.close()
        self.assertTrue(wait_until(lambda: self.lane.status().n_lanes == 1))
        self.daemon.lane().close()

    def test_speaking_for_others_is_denied(self):
        self.assertEqual(self.error(prompt("a", 1), flags=F_PRINCIPAL, uid=12345).code, "DENIED")

    def test_vanished_client(self):
        gone = self.daemon.lane()
        gone.request(prompt("Once", 0, flags=S_IGNORE_END))
        self.assertTrue(wait_until(lambda: self.lane.status().n_running == 1))
        gone.close()
        self.assertTrue(wait_until(lambda: self.lane.status().n_running == 0, 2))

    def test_what_one_that_left_had_sent_is_read(self):
        """Its pong lies unread in its socket as it closes, its request in ours."""
        a = self.daemon.lane()
        a.send(PING)
        self.assertTrue(a.readable(5 * SLOW))
        self.leaves_behind(a)

    def test_what_comes_behind_what_nobody_reads(self):
        """Its ping is read when it has gone: the pong finds nobody, and behind it lies its request."""
        self.leaves_behind(self.daemon.lane(), PING)

    def leaves_behind(self, a, *before):
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            for what in before:
                a.send(what)
            rid = a.request(prompt("Once upon a time", 5), flags=F_DETACH)
            a.close()
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        self.lane.resume(rid, 1)
        self.assertEqual(list(self.lane.events(rid))[-1].type, DONE)

    def test_resume(self):
        a = self.daemon.lane()
        rid = a.request(prompt("Once upon a time", 60), flags=F_DETACH)
        first = [a.recv() for _ in range(10)]
        a.close()
        b = self.daemon.lane()
        b.resume(rid, 11)
        rest = list(b.events(rid))
        self.assertEqual([e.seq for e in first + rest], list(range(1, 63)))
        whole = self.ask(prompt("Once upon a time", 60))
        self.assertEqual(text_of(first + rest), text_of(whole))
        # Kept after its end, from any seq, on any connection; a known id attaches.
        for start in (1, 30, 62):
            self.lane.resume(rid, start)
            self.assertEqual([e.seq for e in self.lane.events(rid)], list(range(start, 63)))
        self.lane.request(prompt("something else", 3), rid=rid)
        self.assertEqual(text_of(self.lane.events(rid)), text_of(whole))
        self.lane.resume(rid, 64)
        self.assertEqual(self.lane.recv().code, "INVALID")
        self.lane.resume(os.urandom(16), 1)
        self.assertEqual(self.lane.recv().code, "NOT_FOUND")
        b.close()

    def test_without_detach_a_lost_lane_cancels(self):
        a = self.daemon.lane()
        rid = a.request(prompt("Once upon a time", 0, flags=S_IGNORE_END))
        a.recv()
        a.close()
        self.assertTrue(wait_until(lambda: self.lane.status().n_running == 0, 2))
        self.lane.resume(rid, 1)
        self.assertEqual(list(self.lane.events(rid))[-1].reason, "cancelled")

    def test_cancel(self):
        rid = self.lane.request(prompt("Once", 0, flags=S_IGNORE_END))
        events = [self.lane.recv() for _ in range(3)]
        other = self.daemon.lane()
        other.cancel(rid)
        receipt = other.recv()
        self.assertEqual((receipt.type, receipt.seq, receipt.reason), (DONE, 0, "cancelled"))
        events += list(self.lane.events(rid))
        self.assertEqual(events[-1].reason, "cancelled")
        self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
        other.cancel(os.urandom(16))
        self.assertEqual(other.recv().code, "NOT_FOUND")
        other.close()

    def test_two_at_once(self):
        other = self.daemon.lane()
        a = self.lane.request(prompt("Once upon a time", 40))
        b = other.request(prompt("Once upon a time", 40))
        stamps = []
        for l, rid in ((self.lane, a), (other, b)):
            events = list(l.events(rid))
            stamps.append(events)
        self.assertEqual(text_of(stamps[0]), text_of(stamps[1]))
        self.assertEqual(text_of(stamps[0])[:len(ONCE)], ONCE)
        other.close()


class Queue(Served):
    args = ("--max-queue", "8", "--sequences", "1")

    def test_turns(self):
        """One sequence: a tenant with five requests does not delay another tenant by more than one."""
        order = []
        hog = [self.lane.request(prompt("Once", 15), tenant=b"hog") for _ in range(5)]
        other = self.daemon.lane()
        late = other.request(prompt("Once", 15), tenant=b"late")
        left = set(hog)
        while left:
            e = self.lane.recv()
            if e.type == DONE:
                left.discard(e.id)
                order.append(("hog", time.monotonic()))
            if other.readable():
                e = other.recv()
                if e.type == DONE:
                    order.append(("late", time.monotonic()))
        self.assertLessEqual([who for who, _ in order].index("late"), 2, order)
        self.assertTrue(late)
        other.close()

    def daemon_running(self):
        other = self.daemon.lane()
        try:
            return other.status().n_running
        finally:
            other.close()

    def test_urgency(self):
        first = self.lane.request(prompt("Once", 30))
        self.assertTrue(wait_until(lambda: self.daemon_running() == 1))
        low = self.lane.request(prompt("Once", 3), urgency=-5)
        high = self.lane.request(prompt("Once", 3), urgency=5)
        ends = []
        while len(ends) < 3:
            e = self.lane.recv()
            if e.type == DONE:
                ends.append(e.id)
        self.assertEqual(ends, [first, high, low])

    def test_busy(self):
        rids = [self.lane.request(prompt("Once", 0, flags=S_IGNORE_END)) for _ in range(12)]
        refused = []
        while len(refused) < 4:
            e = self.lane.recv()
            if e.type == ERROR:
                refused.append(e)
        for e in refused:
            self.assertEqual(e.code, "BUSY")
            self.assertGreaterEqual(e.retry_after_ms, 100)
        for rid in rids:
            self.lane.cancel(rid)
        self.assertTrue(wait_until(lambda: self.daemon_running() == 0, 5))

    def test_queued_requests_time_out_and_cancel(self):
        busy = [self.lane.request(prompt("Once", 400, flags=S_IGNORE_END)) for _ in range(5)]
        late = self.lane.request(prompt("Once", 3), timeout_ms=1)
        cancelled = self.lane.request(prompt("Once", 3))
        self.lane.cancel(cancelled)
        ends = {}
        while len(ends) < 2:
            e = self.lane.recv()
            if e.type == DONE and e.id in (late, cancelled):
                ends[e.id] = e.reason
        self.assertEqual(ends, {late: "timeout", cancelled: "cancelled"})
        for rid in busy:
            self.lane.cancel(rid)
        self.assertTrue(wait_until(lambda: self.daemon_running() == 0, 5))


class Ends(unittest.TestCase):
    """What the log says of requests."""

    def lines(self, n, *args):
        d = Daemon(*args)
        lane = d.ready()
        for _ in range(n):
            list(lane.events(lane.request(prompt("Once upon a midnight dreary", 2))))
        list(lane.events(lane.request(prompt("word " * 600, 2))))
        lane.close()
        self.assertEqual(d.stop(), 0)
        self.text = d.text()
        self.assertNotIn("midnight", self.text)
        return re.findall(r"request \d+ of uid \d+: (\S+), (\d+) \+ (\d+) tokens, [\d.]+ ms(.*)", self.text)

    def test_each_has_a_line(self):
        got = self.lines(3)
        self.assertEqual([(g[0], g[2]) for g in got], [("length", "2")] * 3 + [("CONTEXT_OVERFLOW", "0")])
        self.assertGreater(int(got[0][1]), 4)

    def test_or_only_failures_or_none(self):
        self.assertEqual([g[0] for g in self.lines(3, "--log-requests", "failed")], ["CONTEXT_OVERFLOW"])
        self.assertEqual(self.lines(3, "--log-requests", "no"), [])

    def test_not_more_than_some(self):
        began = time.monotonic()
        got = self.lines(200)
        self.assertGreaterEqual(len(got), 100)
        self.assertLessEqual(len(got), 101 + (time.monotonic() - began))
        told = [int(n) for n in re.findall(r"ends of (\d+) requests not told, of uid \d+", self.text)]
        before = [int(n) for g in got for n in re.findall(r"\((\d+) before it not told", g[3])]
        self.assertEqual(len(got) + sum(told) + sum(before), 201, "at the stop the rest is told")


class SlowReaders(Served):
    args = ("--stall-timeout", "0.5", "--sequences", "2")

    def test_stalled(self):
        slow = self.daemon.lane()
        rids = [slow.request(prompt("Once", 400, n_logprobs=20, flags=S_IGNORE_END)) for _ in range(24)]
        self.assertTrue(wait_until(lambda: self.lane.status().n_running > 0))
        self.assertEqual(text_of(self.ask(prompt("Once upon a time", 30))), ONCE)
        self.assertTrue(wait_until(lambda: self.lane.status().n_running == 0, 30))
        reasons = {}
        while len(reasons) < len(rids):
            e = slow.recv()
            if e.type == DONE:
                reasons[e.id] = e.reason
        self.assertIn("slow_consumer", [reasons[r] for r in rids])
        slow.close()

    def test_no_credit(self):
        """Who leaves a window of logits full holds up nobody for long, and no engine dies of it."""
        engine = self.daemon.child("pipit-engine")
        text = item(T_PROMPT, "Once upon a time there was a girl") + sampling(flags=S_LOGITS)
        slow = [self.daemon.lane() for _ in range(2)]
        rids = [s.request(text, kind=SCORE, out=s.lease(E2C, 64 + 4 * s.hello.n_vocab)) for s in slow]
        self.assertEqual(text_of(self.ask(prompt("Once upon a time", 30))), ONCE)
        for s, rid in zip(slow, rids):
            self.assertEqual(list(s.events(rid))[-1].reason, "slow_consumer")
            s.close()
        self.assertEqual(self.daemon.child("pipit-engine"), engine)

    def test_crumbs_of_credit(self):
        """Who reads a row now and then, of a window of eight, is as slow as one who reads none."""
        text = item(T_PROMPT, "Once upon a time there was a girl. " * 8) + sampling(flags=S_LOGITS)
        slow = self.daemon.lane()
        rid = slow.request(text, kind=SCORE, out=slow.lease(E2C, 64 + 8 * 4 * slow.hello.n_vocab))
        reason, credit = None, 8
        while not reason:
            try:
                e = slow.recv(timeout=0.4)
            except TimeoutError:
                credit += 1
                self.assertLess(credit, 16)
                slow.send(CREDIT, struct.pack("<Q", credit), rid)
                continue
            self.assertNotEqual(e.type, ERROR, e)
            reason = e.reason if e.type == DONE else None
        self.assertEqual(reason, "slow_consumer")
        slow.close()

    def test_flood_of_credit(self):
        """The front tells the engine the last word of it, however often a client says more."""
        engine = self.daemon.child("pipit-engine")
        text = item(T_PROMPT, "Once upon a time there was a girl") + sampling(flags=S_LOGITS)
        rid = self.lane.request(text, kind=SCORE, out=self.lane.lease(E2C, 64 + 4 * self.lane.hello.n_vocab))
        os.kill(engine, signal.SIGSTOP)
        try:
            for i in range(20000):
                self.lane.send(CREDIT, struct.pack("<Q", 2 + i), rid)
            other = self.daemon.lane()
            self.assertEqual(other.status().n_restarts, 0)
            other.close()
        finally:
            os.kill(engine, signal.SIGCONT)
        self.assertEqual(list(self.lane.events(rid))[-1].reason, "stop")
        self.assertEqual(self.daemon.child("pipit-engine"), engine)


if __name__ == "__main__":
    unittest.main(verbosity=2)
