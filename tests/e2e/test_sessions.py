#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saved conversations with the real pipitd, pipit-engine and pipit: they go on after any restart as if
there had been none, and nothing that is wrong with a file or the disk loses one.

PIPIT_BUILD is the build folder. With PIPIT_SMOLLM2, a chat through that model's template too."""
import fcntl
import glob
import hashlib
import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time
import unittest

from daemon import BUILD, DATA, SLOW, wait_until
from harness import CliDaemon
from lane import (ACCEPTED, DONE, E2C, ERROR, F_REPLAYED, F_SESSION, S_IGNORE_END, S_NO_DRAFT, SCORE, SESSION, T_PROMPT, T_SESSION, TOKEN, item, order,
                  sampling, text_of)

ASK = ("ask", "--raw", "--temp", "0", "--json")


class Sessions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ps-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.daemon = None
        self.addCleanup(self.stop)

    def start(self, *args, state="state", **kw):
        self.state = os.path.join(self.folder, state)
        self.args = (*args, "--state-dir", self.state)
        self.kw = kw
        assert self.daemon is None, "it would be left behind"
        self.daemon = CliDaemon(*self.args, **kw)

    def stop(self):
        if self.daemon:
            self.daemon.stop()
            self.daemon = None

    def restart(self, how=signal.SIGTERM):
        engine = self.daemon.child("pipit-engine")
        self.daemon.process.send_signal(how)
        self.daemon.process.wait()
        wait_until(lambda: not os.path.exists(f"/proc/{engine}"))
        self.daemon.stop()
        self.daemon = CliDaemon(*self.args, **self.kw)

    def lock_all(self):
        """As an engine that is still ending would: a descriptor that holds the lock of every name."""
        fd = os.open(os.path.join(os.path.dirname(self.file()), ".lock"), os.O_RDWR)
        fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
        return fd

    def ask(self, text, session="s", n=20, fails=None, more=()):
        """The last object of an answer; with `fails`, its exit code and cause are checked."""
        rc, out, err = self.daemon.cli(*ASK, "-n", str(n), "--session", session, *more, text)
        last = json.loads(out.splitlines()[-1]) if out else {}
        if fails:
            self.assertEqual(rc, fails[0], (out, err))
            self.assertIn(fails[1], err)
        else:
            self.assertEqual((rc, err), (0, ""), self.daemon.text())
        return last

    def file(self, session="s"):
        return os.path.join(self.state, "sessions", str(os.getuid()), session + ".session")

    def files(self):
        """All but what counts writes and is locked."""
        return sorted(f for f in os.listdir(os.path.dirname(self.file())) if f not in (".writes", ".lock"))

    def content(self):
        with open(self.file(), "rb") as f:
            return f.read()

    def put(self, data):
        with open(self.file(), "wb") as f:
            f.write(data)


class Together(Sessions):
    def test_lock_of_an_engine_that_is_still_ending(self):
        """A successor finds it, and waits a moment for it; for one that stays it does not wait long."""
        self.start("--load", "request")
        self.ask("Once upon a time")
        def turn(held):
            """Its exit code, and for how long at most the lock was held when the model was ready."""
            self.restart()
            fd = self.lock_all()
            p = self.daemon.start(*ASK, "-n", "5", "--session", "s", " Then")
            began = time.monotonic()
            lane = self.daemon.lane()
            lane.wait_ready(10 * SLOW)
            lane.close()
            if held:
                time.sleep(held)
                os.close(fd)
            took = time.monotonic() - began
            p.communicate(timeout=20 * SLOW)
            if not held:
                os.close(fd)
            return p.returncode, took
        for _ in range(10):  # the second that it waits knows nothing of a busy machine
            rc, took = turn(0.1)
            if rc == 0 or took < 0.9:
                break
        self.assertEqual(rc, 0)
        self.assertEqual(turn(None)[0], 4)

    def test_two_turns_at_once_after_a_load(self):
        """The second is refused, and not waited with for the first, which could not go on meanwhile."""
        self.start("--load", "request", "--sequences", "2")
        for i in range(5):
            asked = item(T_PROMPT, "Once") + item(T_SESSION, f"s{i}") + sampling(max_tokens=100, flags=S_IGNORE_END)
            self.restart()
            lane, other = self.daemon.lane(), self.daemon.lane()
            first, second = [lane.request(asked, flags=F_SESSION) for _ in range(2)]
            other.wait_ready(10 * SLOW)
            ready, ends = time.monotonic(), {}
            while len(ends) < 2:
                e = lane.recv()
                if e.type in (DONE, ERROR):
                    ends[e.id] = (e, time.monotonic() - ready)
            lane.close()
            other.close()
            self.assertEqual(ends[first][0].type, DONE, ends)
            if ends[second][0].type == ERROR and ends[second][1] < 0.6:
                break
        self.assertEqual(ends[second][0].type, ERROR, ends)
        self.assertIn("in use by another request", ends[second][0].text)
        self.assertLess(ends[second][1], 0.6)

    def test_two_daemons_of_one_folder(self):
        """A turn of the one while another is under way at the other is refused, and after it none is lost."""
        self.start("--ctx", "256")
        one = self.daemon
        two = CliDaemon(*self.args)
        try:
            self.ask("Once upon a time")
            lane = one.ready()
            rid = lane.request(item(T_PROMPT, " there") + item(T_SESSION, "s") + sampling(max_tokens=30, flags=S_IGNORE_END),
                               flags=F_SESSION)
            while lane.recv().type != TOKEN:
                pass
            os.kill(one.child("pipit-engine"), signal.SIGSTOP)
            self.daemon = two
            self.ask(" and then", fails=(4, "session s is in use by another request, of this daemon or another"))
            self.ask(" and then", session="t")
            os.kill(one.child("pipit-engine"), signal.SIGCONT)
            self.assertEqual(list(lane.events(rid))[-1].session, 1)
            before = struct.unpack_from("<I", self.content(), 12)[0]
            self.ask(" and then")
            self.assertGreater(struct.unpack_from("<I", self.content(), 12)[0], before)
            lane.close()
        finally:
            two.stop()
            self.daemon = one


class Misused(Sessions):
    def refused(self, lane, n=1, **kw):
        codes = set()
        for _ in range(n):
            rid = lane.request(item(T_PROMPT, "Once upon a time") + item(T_SESSION, "s") + sampling(), flags=F_SESSION, **kw)
            codes.add(list(lane.events(rid))[-1].code)
        return codes

    def test_wrong_kind_and_tenants(self):
        """What a lane may ask for and the command line does not: refused, and nothing of it stays open or on the disk."""
        self.start()
        self.ask("Once")
        lane = self.daemon.lane()
        engine = self.daemon.child("pipit-engine")
        self.assertEqual(self.refused(lane, kind=SCORE), {"INVALID"})
        before = len(os.listdir(f"/proc/{engine}/fd"))
        self.assertEqual(self.refused(lane, 50, kind=SCORE), {"INVALID"})
        self.assertLessEqual(len(os.listdir(f"/proc/{engine}/fd")), before + 1)
        self.assertEqual(self.refused(lane, tenant=b"another"), {"DENIED"})
        self.assertEqual(os.listdir(os.path.join(self.state, "sessions")), [str(os.getuid())])
        lane.close()

    def test_a_save_that_was_cut_short_can_be_removed(self):
        self.start()
        self.ask("Once")
        with open(os.path.join(os.path.dirname(self.file()), ".t.session"), "wb") as f:
            f.write(b"x" * 1000)
        self.assertEqual(self.daemon.cli("session", "rm", "t")[0], 0)
        self.assertEqual(self.files(), ["s.session"])
        self.assertEqual(self.daemon.cli("session", "rm", "t")[0], 4)


class Older(Sessions):
    """Files that an earlier version wrote (tests/data/sessions), and what it answered from them."""

    def continued(self, name, change=lambda data: data):
        with open(os.path.join(DATA, "sessions/continued.json"), encoding="utf-8") as f:
            told = json.load(f)
        want = told["sessions"][name]
        self.start("--ctx", "128", "--kv", want["kv"])
        os.makedirs(os.path.dirname(self.file(name)), exist_ok=True)
        with open(os.path.join(DATA, f"sessions/{name}.session"), "rb") as f:
            data = f.read()
        with open(self.file(name), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(change(data))
        out = self.daemon.cli(*ASK, "-n", str(len(want["tokens"])), "--logprobs", "0", "--session", name, told["prompt"])
        return want, out

    def test_they_go_on_to_the_bit(self):
        for name in ("full", "h2o"):
            want, (rc, out, err) = self.continued(name)
            self.assertEqual((rc, err), (0, ""), self.daemon.text())
            rows = [json.loads(line) for line in out.splitlines()]
            tokens = [r for r in rows if r["type"] == "token"]
            self.assertEqual([r["token"] for r in tokens], want["tokens"], name)
            for r, logprob in zip(tokens, want["logprobs"], strict=True):
                self.assertAlmostEqual(r["logprob"], logprob, delta=1e-6)  # libraries of mathematics differ
            self.assertEqual(rows[-1]["text"], want["text"], name)
            self.stop()

    def test_of_another_version_they_are_refused_with_the_cause(self):
        _, (rc, _, err) = self.continued("full", lambda data: data[:8] + (data[8] ^ 0x40).to_bytes(1, "little") + data[9:])
        self.assertEqual(rc, 6, err)
        self.assertIn("version", err)


class Killed(Sessions):
    def run_to_the_save(self, crash, stopped):
        """An answer of many records whose engine dies when its file has its name; `stopped`: the front, meanwhile."""
        lane = self.daemon.lane()
        hook = order("crash:saved") if crash else b""
        rid = lane.request(item(T_PROMPT, "Once upon a time") + item(T_SESSION, f"c{int(crash)}") + hook +
                           sampling(max_tokens=400, n_logprobs=20, flags=S_IGNORE_END), flags=F_SESSION)
        self.assertEqual(lane.recv().type, ACCEPTED)
        if stopped:
            self.daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(2)
            self.daemon.process.send_signal(signal.SIGCONT)
        events = list(lane.events(rid))
        lane.close()
        return events

    def test_a_turn_that_was_saved_is_said_once_and_in_full(self):
        self.start("--stall-timeout", "30", hooks=True)
        want = self.run_to_the_save(False, False)
        got = self.run_to_the_save(True, True)
        self.assertEqual([e.token for e in got if e.type == TOKEN], [e.token for e in want if e.type == TOKEN])
        self.assertEqual(text_of(got), text_of(want))
        self.assertTrue(got[-1].flags & F_REPLAYED)
        self.assertEqual((got[-1].reason, got[-1].session), ("length", 1))
        texts = [self.ask(" The", session=s)["text"] for s in ("c0", "c1")]
        self.assertEqual(texts[0], texts[1])


class Beside(Sessions):
    """A large session is saved, and loaded, in slices between the steps of others. Its model has much cache for a token
    and little to compute. With sanitizers, which make each step ten times as long, the session is smaller."""

    TEXT = "".join(chr(97 + i * i % 26) for i in range(130 if SLOW == 1 else 40))
    BYTES = 30e6 if SLOW == 1 else 10e6

    def setUp(self):
        super().setUp()
        model = os.path.join(self.folder, "large.gguf")
        subprocess.run([os.path.join(BUILD, "tools/pipit-mkmodel"), "--arch", "llama", "--layers", "16", "--hidden", "16", "--ffn", "16",
                        "--heads", "16", "--kv-heads", "16", "--head-dim", "256", "--ctx", "512", "--vocab", "300", model], check=True,
                       stdout=subprocess.DEVNULL)
        self.start("--sequences", "2", "--ctx", "512", model=model, backend="cpu")
        self.lane = self.daemon.lane()
        self.addCleanup(self.lane.close)
        self.early = []

    def next_event(self):
        return self.early.pop(0) if self.early else (time.monotonic(), self.lane.recv())

    def request(self, *args, **kw):
        """Asks, and waits until the lease is free for the next request."""
        rid = self.lane.request(*args, **kw)
        while True:
            e = self.lane.recv()
            if (e.id, e.type) == (rid, ACCEPTED):
                return rid
            self.early.append((time.monotonic(), e))

    def begin_stream(self):
        self.stream = self.request(item(T_PROMPT, "Once") + sampling(max_tokens=100, flags=S_IGNORE_END | S_NO_DRAFT))

    def ask_beside(self, text, first):
        """An answer of two tokens with session s; its end, and when the stream's tokens came (None: it began anew) between two moments of it: from
        when it was asked to its first token (`first`), or from its last one to its end."""
        times, found = [time.monotonic()], None
        asked = self.request(item(T_PROMPT, text) + item(T_SESSION, "s") + sampling(max_tokens=2, flags=S_IGNORE_END), flags=F_SESSION)
        text = b""
        while True:
            now, e = self.next_event()
            if e.id == self.stream and e.type == DONE:
                self.begin_stream()
                if times:
                    times.append(None)
            elif e.id == self.stream and e.type == TOKEN and times:
                times.append(now)
            elif e.id == asked and e.type == TOKEN:
                text += e.text
                if first and e.index == 0:
                    times, found = None, [*times, now]
                elif not first:
                    times = [now]
            elif e.id == asked and e.type == DONE:
                self.assertEqual(e.session, 1)
                self.assertGreater(e.session_bytes, self.BYTES)
                return e, text, found if first else [*times, now]

    def check(self, what, done, times):
        gaps = sorted((b - a) * 1e3 for a, b in zip(times, times[1:]) if a and b)
        print(f"{what} {done.session_bytes / 1e6:.0f} MB took {(times[-1] - times[0]) * 1e3:.0f} ms; {len(gaps)} gaps between another's tokens, at "
              f"most {gaps[-1]:.1f} ms, half of them {gaps[len(gaps) // 2]:.1f}", flush=True)
        # 1 MiB is copied before a step at the least, more only for a tenth of its time.
        self.assertGreater(len(gaps), done.session_bytes / 2e6)

    def test_others_go_on_while_a_session_is_saved_and_loaded(self):
        self.begin_stream()
        done, _, times = self.ask_beside(self.TEXT, False)
        self.check("saving", done, times)
        before = self.content()
        done, said, times = self.ask_beside("", True)
        self.check("loading", done, times)
        self.lane.cancel(self.stream)
        list(self.lane.events(self.stream))
        self.put(before)
        _, alone, _ = self.ask_beside("", True)
        self.assertEqual(said, alone)
        self.put(before)
        self.restart()
        again = self.daemon.lane()
        rid = again.request(item(T_PROMPT, "") + item(T_SESSION, "s") + sampling(max_tokens=2, flags=S_IGNORE_END), flags=F_SESSION)
        self.assertEqual(b"".join(e.text for e in again.events(rid) if e.type == TOKEN), said)
        again.close()

    def test_a_request_is_cancelled_while_its_session_is_read(self):
        """At whatever moment: it ends, its place is free, and the session is as it was."""
        self.begin_stream()
        self.ask_beside(self.TEXT, False)
        before = self.content()
        for ms in (0, 1, 3, 6, 10, 15, 20, 30, 50):
            asked = self.request(item(T_PROMPT, "") + item(T_SESSION, "s") + sampling(max_tokens=300, flags=S_IGNORE_END), flags=F_SESSION)
            time.sleep(ms / 1e3)
            self.lane.cancel(asked)
            last = None
            while not last:
                _, e = self.next_event()
                if e.id == self.stream and e.type == DONE:
                    self.begin_stream()
                last = e if e.id == asked and e.type == DONE else None
            self.assertEqual((last.reason, last.session), ("cancelled", 2))
        self.assertEqual(self.content(), before)
        self.ask_beside("", True)


class Stopped(Sessions):
    def grow(self, name, size=64 << 30):
        """Session s under another name, whose cache is said to have `size` bytes, nearly all of them zeros that no disk
        holds: its header is well, and to read it takes a minute."""
        at = struct.calcsize("<8sII64s512s16s")
        with open(self.file(), "rb") as f:
            data = bytearray(f.read())
        offset = struct.unpack_from("<Q", data, at)[0]
        struct.pack_into("<Q", data, at + 8, size)
        data[4064:4096] = hashlib.sha256(data[:4064]).digest()
        with open(self.file(name), "wb") as f:
            f.write(data)
            f.truncate(offset + size)

    def test_an_end_does_not_wait_for_a_long_file(self):
        """Neither that of the request whose file is being read, nor of those that wait behind it; and the next one's is read."""
        self.start("--sequences", "4")
        self.ask("Once upon a time")
        lane = self.daemon.lane()
        self.addCleanup(lane.close)

        def begin(session, **kw):
            rid = lane.request(item(T_PROMPT, "") + item(T_SESSION, session) + sampling(max_tokens=4), flags=F_SESSION, **kw)
            e = lane.recv()
            self.assertEqual((e.id, e.type), (rid, ACCEPTED))
            return rid

        def ends(rid, reason):
            e = lane.recv(2 * SLOW)
            self.assertEqual((e.id, e.type), (rid, DONE), e)
            self.assertEqual((e.reason, e.session), (reason, 2))

        for name in "tuv":
            self.grow(name)
        t, u, v = map(begin, "tuv")
        time.sleep(0.1)
        for rid in (u, t, v):
            lane.cancel(rid)
            ends(rid, "cancelled")
        ends(begin("t", timeout_ms=300), "timeout")
        t, s = map(begin, "ts")
        time.sleep(0.1)  # the engine has t: what is cancelled before has no session yet
        lane.cancel(t)
        ends(t, "cancelled")
        self.assertEqual(list(lane.events(s))[-1].n_new, 4)
        begin("t")
        begin("u")
        time.sleep(0.1)
        began = time.monotonic()
        self.daemon.process.send_signal(signal.SIGTERM)
        self.daemon.process.wait(20 * SLOW)
        print(f"a drain took {time.monotonic() - began:.2f} s", flush=True)


class Continuing(Sessions):
    TURNS = ("Once upon a time", " Then her mother", " The end. One day", "")

    def turns(self, restarts):
        texts = []
        for text, how in zip(self.TURNS, (None, *restarts)):
            if how:
                self.restart(how)
            texts.append(self.ask(text)["text"])
        return texts

    def skew(self):
        data = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data")
        out = os.path.join(self.folder, "skew.gguf")
        subprocess.run([os.path.join(BUILD, "tools/pipit-skew"), "--model", os.path.join(data, "stories260K.gguf"),
                        "--text", os.path.join(data, "stories260K.txt"), "--tokens", "200", out], check=True, stdout=subprocess.DEVNULL)
        return out

    def test_as_if_there_had_been_no_restart(self):
        for i, kv in enumerate(("full", "fp8+keyformer:32", "sinks:2+window:30", "infinigen:count=20,pool=disk")):
            with self.subTest(kv):
                options = ("--kv", kv, *(("--overlay", self.skew(), "--tier-dir", self.folder) if "disk" in kv else ()))
                self.start(*options, state=f"a{i}", backend="cpu")
                want = self.turns((None, None, None))
                self.stop()
                self.start(*options, state=f"b{i}", backend="cpu")
                self.assertEqual(self.turns((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)), want)
                self.stop()

    def test_as_if_it_had_not_been_interrupted(self):
        """Twice 20 tokens are the 40 that one answer has."""
        for i, kv in enumerate(("kv8", "keyformer:24,tau=1..1", "keyformer:24,tau=1..1,mode=as-shipped", "h2o:24")):
            with self.subTest(kv):
                self.start("--kv", kv, state=f"s{i}")
                whole = self.ask("Once upon a time", session="whole", n=40)["text"]
                first = self.ask("Once upon a time")
                self.restart(signal.SIGKILL)
                second = self.ask("")
                self.assertEqual(first["text"] + second["text"], whole)
                self.assertEqual(second["usage"]["completion_tokens"], 20)
                self.assertEqual(second["usage"]["cached_tokens"], second["usage"]["prompt_tokens"] - 1)
                self.stop()

    def test_only_ends_are_saved(self):
        self.start()
        self.ask("Once upon a time")
        before = self.content()
        p = self.daemon.start(*ASK, "--session", "s", "-n", "400", "--timeout", "0.001", " Then")
        p.communicate()
        if p.returncode == 7:
            self.assertEqual(self.content(), before)
        self.ask("x", fails=(2, "leave --kv out: session s was begun with f16+full,chunk=512"), more=("--kv", "full,chunk=64"))

    def test_a_chat_through_its_template(self):
        model = os.environ.get("PIPIT_SMOLLM2")
        if not model or not os.path.exists(model):
            self.skipTest("PIPIT_SMOLLM2 is not set")
        chat = ("ask", "--temp", "0", "-n", "24", "--session", "c", "--json")
        lines = ("What is the capital of France?", "And of Italy?")
        texts = []
        self.start("--ctx", "1024", model=model, backend="cpu")
        rc, want, err = self.daemon.cli("chat", "--temp", "0", "-n", "24", stdin="\n".join(lines).encode())
        self.assertEqual((rc, err), (0, ""))
        for text in lines:
            rc, out, err = self.daemon.cli(*chat, text)
            self.assertEqual((rc, err), (0, ""))
            texts.append(json.loads(out.splitlines()[-1])["text"] + "\n")
            self.restart(signal.SIGKILL)
        self.assertEqual("".join(texts), want.decode(), "as with the whole history in the request")
        rc, _, err = self.daemon.cli(*chat, "--system", "Be brief.", "Why?")
        self.assertEqual(rc, 2)
        self.assertIn("its system text stays", err)


class Files(Sessions):
    def setUp(self):
        super().setUp()
        self.start()

    def test_private_listed_and_removed(self):
        self.ask("Once upon a time", session="first")
        self.ask("Once upon a time", session="second.2")
        folder = os.path.dirname(self.file())
        self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.file("first")).st_mode), 0o600)
        self.assertEqual(self.files(), ["first.session", "second.2.session"])
        rc, out, _ = self.daemon.cli("session", "list", "--json")
        listed = {o["name"]: o["bytes"] for o in map(json.loads, out.splitlines())}
        self.assertEqual((rc, listed), (0, {n: os.path.getsize(self.file(n)) for n in ("first", "second.2")}))
        self.assertEqual(self.daemon.cli("session", "rm", "first")[0], 0)
        self.assertEqual(self.files(), ["second.2.session"])
        rc, _, err = self.daemon.cli("session", "rm", "first")
        self.assertEqual((rc, err), (4, "pipit: no session first\n"))
        for name in ("../second.2", ".x", "a/b", "x" * 65, ""):
            rc, _, err = self.daemon.cli("session", "rm", name)
            self.assertEqual(rc, 2, (name, err))
            if name:
                self.ask("x", session=name, fails=(2, "session name: allowed are"))

    def test_damaged_files_are_refused_and_stay(self):
        self.ask("Once upon a time")
        good = self.content()
        bent = []
        for at in (0, 100, 700, 4090, 4100, 6000, 8200, len(good) - 1):
            bent.append((good[:at] + bytes([good[at] ^ 1]) + good[at + 1:], "s "))
        for size in (0, 1, 4095, 4096, 4200, 8192, len(good) - 1):
            bent.append((good[:size], "damaged"))
        bent.append((good + b"\0", "damaged"))
        bent.append((good[:8] + struct.pack("<I", 2) + good[12:], "of version 2, this is 1"))
        for data, cause in bent:
            self.put(data)
            self.ask(" Then", fails=(6, cause))
            self.assertEqual(self.content(), data, "it was not touched")
        self.put(good)
        self.ask(" Then")
        self.assertNotEqual(self.content(), good)

    def test_what_the_header_tells_is_told_before_the_file_is_read(self):
        """A file of which only the header is whole: what refuses without its sums does."""
        self.ask("Once upon a time")
        with open(self.file(), "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        self.ask("x", fails=(2, "leave --kv out"), more=("--kv", "full,chunk=64"))
        self.ask("x", fails=(6, "its cache's sum is wrong"))

    def test_another_model(self):
        self.ask("Once upon a time")
        self.stop()
        other = os.path.join(self.folder, "other.gguf")
        with open(self.kw.get("model") or glob.glob(os.path.join(os.path.dirname(__file__), "../data/stories260K.gguf"))[0], "rb") as f:
            data = bytearray(f.read())
        data[-1] ^= 1  # a weight
        with open(other, "wb") as f:
            f.write(data)
        self.start(model=other)
        self.ask(" Then", fails=(6, "with another model or overlay"))

    def test_a_full_disk_loses_nothing(self):
        first = self.ask("Once upon a time")["text"]
        before = self.content()
        engine = self.daemon.child("pipit-engine")
        resource.prlimit(engine, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        self.ask(" Then", fails=(4, "cannot be written: File too large"))
        self.assertEqual(self.content(), before)
        self.assertEqual(self.files(), ["s.session"])
        resource.prlimit(engine, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual(self.ask(" Then", session="s")["usage"]["cached_tokens"] > 20, True, first)

    def small_disk(self, kind, options):
        """A file system of its own for the state folder; skips where that needs more rights."""
        self.stop()
        os.makedirs(self.state, exist_ok=True)
        if subprocess.run(["mount", "-t", kind, "-o", options, "none", self.state], capture_output=True).returncode:
            self.skipTest("file systems cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.state], check=True)
        self.start()

    def test_a_full_file_system_loses_nothing(self):
        """tmpfs says so when room is asked for; ramfs, as copy-on-write ones, when it is written."""
        for kind, options, cause in (("tmpfs", "size=100k", "No space left"), ("ramfs", "size=0", "File too large")):
            with self.subTest(kind):
                self.small_disk(kind, options)
                engine = self.daemon.child("pipit-engine")
                self.ask("Once upon a time")
                before = self.content()
                if kind == "ramfs":
                    resource.prlimit(engine, resource.RLIMIT_FSIZE, (len(before) + 4096, resource.RLIM_INFINITY))
                self.ask(" Then", n=200, fails=(4, "cannot be"))
                self.assertEqual(self.content(), before)
                self.assertEqual(self.files(), ["s.session"])
                self.assertEqual(self.daemon.child("pipit-engine"), engine, cause)
                if kind == "ramfs":
                    resource.prlimit(engine, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                self.ask("", n=2)

    def test_a_long_list_comes_in_pages(self):
        self.ask("Once")
        names = sorted("%064d" % (i * i) for i in range(700))
        for name in names:
            with open(self.file(name), "w") as f:
                f.write("x" * 10)
        rc, out, err = self.daemon.cli("session", "list", "--json")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual([json.loads(line)["name"] for line in out.splitlines()], [*names, "s"])
        lane = self.daemon.lane()
        lease = lane.lease(E2C, 128 << 10)
        lane.send(SESSION, struct.pack("<IIII72s", 1, lease.buf, lease.generation, 0, b""))
        page = lane.recv()
        self.assertEqual(lane.e2c[lease.offset:lease.offset + page.n_bytes].count(b"\n"), len(names) + 1, "in one reading")
        lane.close()

    def test_quota_and_places(self):
        self.stop()
        self.start("--session-bytes", "40000")
        self.ask("Once upon a time")
        self.ask("Once upon a time", session="t", fails=(4, "this user's others"))
        self.assertEqual(self.files(), ["s.session"])
        self.stop()
        blocked = os.path.join(self.folder, "file")
        open(blocked, "w").close()
        self.start(state="file/below")
        self.ask("Once", fails=(2, "sessions cannot be kept in"))
        self.assertEqual(self.daemon.cli("ask", "--raw", "-n", "2", "Once")[0], 0)


class Writes(Sessions):
    """Flash wears: what saves write in a day is limited, for each user."""

    def status(self):
        return json.loads(self.daemon.cli("status", "--json")[1])["sessions_writes"]

    def metric(self, name):
        text = self.daemon.cli("metrics")[1].decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"pipit_{name} ")))

    def fill(self, limit):
        """Saves until the budget has no room for another; the last file that was saved, and what its bytes were."""
        for i in range(50):
            last = self.ask("Once upon a time", session=f"s{i}") if not i else None
            rc, out, err = self.daemon.cli(*ASK, "-n", "20", "--session", f"t{i}", "Once upon a time")
            if rc:
                self.assertEqual(rc, 4, err)
                self.assertRegex(err, r"[\d.]+ MB to write, [\d.]+ left of session-writes, [\d.]+ a day: in \d+ (hours|minutes|seconds)")
                self.assertIn(b'"text"', out)
                return i
        self.fail("it was never refused")

    def test_the_limit_holds_and_survives_restarts(self):
        limit = 400000
        self.start("--session-writes", str(limit))
        self.assertEqual((self.status()["left"], self.status()["written"]), (limit, 0))
        n = self.fill(limit)
        self.assertGreaterEqual(n, 2)
        names = self.files()
        s = self.status()
        size = os.path.getsize(self.file("t0"))
        self.assertEqual(s["limit_a_day"], limit)
        self.assertEqual(s["written"], (size + 4096) * len(names))
        self.assertLess(s["left"], size + 4096)
        self.assertGreaterEqual(s["left"], limit - s["written"])
        self.assertLess(s["left"], limit - s["written"] + limit / 86400 * 100 * SLOW)  # what came free since
        self.assertEqual(self.metric("session_written_bytes_total"), size * len(names))
        self.assertEqual((self.metric("sessions_saved_total"), self.metric("sessions_not_saved_total")), (len(names), 1))
        self.assertEqual(self.metric("session_writes_limit_bytes"), limit)
        text = self.daemon.cli("status")[1].decode()
        self.assertRegex(text, r"sessions  yours may still write .* of .* a day")
        folder = os.path.dirname(self.file())
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.restart(how)
            changed = os.stat(folder).st_mtime_ns
            self.ask("Once upon a time", session="again", fails=(4, "left of session-writes"))
            self.assertEqual(self.files(), names, "what was refused left something behind")
            self.assertEqual(os.stat(folder).st_mtime_ns, changed, "it was refused after its file had been made")
            self.assertEqual(self.status()["written"], s["written"])

    def test_a_session_that_is_refused_stays_as_it_was(self):
        self.start("--session-writes", "100000")
        self.ask("Once upon a time")
        before = self.content()
        for _ in range(10):
            rc, _, err = self.daemon.cli(*ASK, "-n", "1", "--session", "s", "")
            if rc:
                break
            before = self.content()
        self.assertIn("left of session-writes", err)
        self.assertEqual(self.content(), before)

    def test_larger_than_a_day(self):
        self.start("--session-writes", "9000")
        self.ask("Once upon a time", fails=(4, "a day: never"))
        self.assertEqual(self.files(), [])

    def test_as_the_hours_go_by(self):
        """Its slot, as it were written some hours ago: as much has come free."""
        self.start("--session-writes", "100000")
        self.fill(100000)
        path = os.path.join(os.path.dirname(self.file()), ".writes")
        began, was = time.monotonic(), self.status()["left"]
        with open(path, "r+b") as f:
            for at in (0, 4096):
                f.seek(at)
                raw = bytearray(f.read(72))
                ns = struct.unpack_from("<q", raw, 40)[0]
                struct.pack_into("<q", raw, 40, max(0, ns - 12 * 3600 * 10**9))
                gone = (ns - max(0, ns - 12 * 3600 * 10**9)) / 1e9
                total = 0xcbf29ce484222325
                for b in raw[:64]:
                    total = (total ^ b) * 0x100000001b3 & (2**64 - 1)
                struct.pack_into("<Q", raw, 64, total)
                f.seek(at)
                f.write(raw)
        left = self.status()["left"]
        rate = 100000 / 86400
        self.assertGreaterEqual(left, min(100000, was + rate * gone - 2))
        self.assertLessEqual(left, was + rate * (gone + time.monotonic() - began) + 2)

    def test_without_a_limit_all_is_counted(self):
        self.start("--session-writes", "0")
        self.ask("Once upon a time")
        self.assertNotIn("sessions_writes", json.loads(self.daemon.cli("status", "--json")[1]))
        size = os.path.getsize(self.file())
        self.stop()
        self.start("--session-writes", "100000")
        self.assertEqual(self.status()["written"], size + 4096)
        self.assertLess(self.status()["left"], 100000 - size)

    def test_without_a_limit_no_count_is_needed(self):
        self.start("--session-writes", "0")
        self.ask("Once upon a time")
        count = os.path.join(os.path.dirname(self.file()), ".writes")
        os.unlink(count)
        os.mkdir(count)
        self.ask(" Then")
        self.stop()
        self.start("--session-writes", "10M")
        self.ask(" Then", fails=(4, "cannot be counted"))

    def test_what_was_not_written_is_given_back(self):
        self.start("--session-writes", "10M")
        self.ask("Once upon a time")
        size = os.path.getsize(self.file())
        engine = self.daemon.child("pipit-engine")
        resource.prlimit(engine, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        before = self.status()["written"]
        self.ask("Once upon a time", session="t", fails=(4, "File too large"))
        self.assertGreaterEqual(self.status()["written"], before + 4096)
        self.assertLessEqual(self.status()["written"], before + 4096 + 8192)
        self.assertGreater(size, 8192, "or this says nothing")


if __name__ == "__main__":
    unittest.main()
