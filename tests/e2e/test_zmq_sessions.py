#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saved sessions over ZeroMQ: turns, questions about them, removal, and what one client may not do to another's."""
import json
import os
import shutil
import signal
import struct
import tempfile
import unittest

from daemon import SLOW
from lane import E2C, F_PRINCIPAL, SESSION, Lane
from test_zmq import Served
from zclient import Client, generate, pb, zmq


class Sessions(Served):
    """A saved conversation goes on over either door, each turn as if it had all been one text."""
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="pz-")
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.args = ("--sequences", "4", "--state-dir", folder)
        super().setUpClass()

    def turn(self, session, text, n=12, **top):
        r = generate(text, temperature=0, max_tokens=n)
        r.generate.session = session
        for name, value in top.items():
            setattr(r, name, value)
        return self.client.text(r, 60 * SLOW)

    def test_goes_on_and_is_the_command_lines(self):
        first, done = self.turn(b"trip", "Once upon a time")
        self.assertEqual((done.session, done.session_cause), (pb.Done.SESSION_SAVED, b""))
        self.assertGreater(done.session_bytes, 4096)
        self.assertIn(b"trip", self.pipit("session", "list"))
        cached = done.n_prompt + done.n_new - 1
        ask = ("ask", "--raw", "--temp", "0", "-n", "12", "--session")
        self.assertEqual(self.pipit(*ask, "same", "Once upon a time").rstrip(b"\n"), first)
        second, done = self.turn(b"trip", " Then")
        self.assertEqual(done.n_cached, cached)
        self.assertEqual(self.pipit(*ask, "same", " Then").rstrip(b"\n"), second)

    def ask_list(self, after=b"", client=None, **top):
        r = pb.Request(**top)
        r.session_list.after = after
        return (client or self.client).last(r, 20 * SLOW)

    def remove(self, name, client=None, **top):
        r = pb.Request(**top)
        r.session_remove.name = name
        return (client or self.client).last(r, 20 * SLOW)

    def all_names(self):
        names = []
        while page := self.ask_list(names[-1] if names else b"").sessions.sessions:
            names += [s.name for s in page]
        return names

    def test_listed_and_removed(self):
        self.turn(b"gone", "Once upon a time", n=2)
        self.turn(b"stays", "Once upon a time", n=2)
        listed = {s.name.decode(): (s.bytes, s.modified) for s in self.ask_list().sessions.sessions}
        cli = [json.loads(line) for line in self.pipit("session", "list", "--json").splitlines()]
        self.assertEqual(listed, {o["name"]: (o["bytes"], o["modified"]) for o in cli})
        self.assertTrue(self.remove(b"gone").HasField("sessions"))
        self.assertEqual(set(map(str.encode, listed)) - {b"gone"}, set(self.all_names()))
        self.assertEqual(self.remove(b"gone").error.code, pb.Error.NOT_FOUND)
        for name in (b"../stays", b".stays", b"a/b", b"stays\0x"):
            e = self.remove(name).error
            self.assertEqual((e.code, e.field), (pb.Error.INVALID, b"session_remove.name"), name)
        for name in (b"", b"x" * 65):
            e = self.remove(name).error
            self.assertEqual((e.code, e.field), (pb.Error.INVALID, b"session_remove.name"))
        self.assertEqual(self.ask_list(tenant=b"shop").error.code, pb.Error.DENIED)
        self.assertEqual(self.remove(b"stays", tenant=b"shop").error.code, pb.Error.DENIED)
        self.assertIn(b"stays", self.all_names())

    def test_a_long_list_comes_in_pages(self):
        self.turn(b"stays", "Once upon a time", n=2)
        folder = os.path.join(self.args[-1], "sessions", str(os.getuid()))
        files = [os.path.join(folder, "%064d.session" % i) for i in range(600)]
        for path in files:
            open(path, "w").close()
        try:
            self.assertEqual(self.all_names(), sorted(n[:-8].encode() for n in os.listdir(folder) if n.endswith(".session")))
            self.assertLess(len(self.ask_list().sessions.sessions), 600)
        finally:
            for path in files:
                os.unlink(path)

    def test_many_questions_at_once(self):
        """Of two kinds, in any order: each has its own answer."""
        self.turn(b"stays", "Once upon a time", n=2)
        asked = {}
        for i in range(103):
            if i < 100:
                r = pb.Request(id=os.urandom(16))
                (r.session_list if i % 3 else r.status).SetInParent()
                asked[self.client.send(r)] = "sessions" if i % 3 else "status"
            if i < 3:
                continue
            e = self.client.receive(20 * SLOW)
            self.assertEqual(e.WhichOneof("body"), asked.pop(e.id))
            if e.HasField("sessions"):
                self.assertIn(b"stays", [s.name for s in e.sessions.sessions])

    def test_one_cannot_ask_everything(self):
        """While the front is busy: four of a socket, 64 of a user; the others are told, and have nothing of it."""
        r = pb.Request()
        r.session_list.SetInParent()
        self.turn(b"stays", "Once upon a time", n=2)
        clients = [Client(self.path) for _ in range(17)]
        for c in clients:
            self.addCleanup(c.close)
            c.ping(10 * SLOW)
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        try:
            for n, c in enumerate(clients):
                for _ in range(5):
                    r.id = os.urandom(16)
                    c.send(r)
                for _ in range(1 if n < 16 else 5):
                    self.assertEqual(c.receive(10 * SLOW).error.code, pb.Error.BUSY)
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)
        for c in clients[:16]:
            for _ in range(4):
                self.assertIn(b"stays", [s.name for s in c.receive(20 * SLOW).sessions.sessions])

    def test_anothers_sessions(self):
        """Another user's list is empty, and what they remove is their own; a lane cannot speak for others."""
        if os.getuid():
            self.skipTest("needs root to become another user")
        self.turn(b"mine", "Once upon a time", n=2)
        os.chmod(self.daemon.folder, 0o755)
        os.chmod(self.path, 0o666)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setresuid(12345, 12345, 12345)
                with Client(self.path, context=zmq.Context()) as c:
                    listed = self.ask_list(client=c)
                    removed = self.remove(b"mine", client=c)
                    os.write(write, b"%d %d %d" % (listed.HasField("sessions"), len(listed.sessions.sessions), removed.error.code))
                    code = 0
            finally:
                os._exit(code)
        os.close(write)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(os.read(read, 100).split(), [b"1", b"0", b"%d" % pb.Error.NOT_FOUND])
        os.close(read)
        self.assertIn(b"mine", self.all_names())
        lane = Lane(self.daemon.folder)
        lease = lane.lease(E2C, 16 << 10)
        lane.send(SESSION, struct.pack("<IIII72s", 1, lease.buf, lease.generation, 12345, b""), flags=F_PRINCIPAL)
        self.assertEqual(lane.recv().code, "DENIED")
        lane.close()

    def test_tenants_have_none(self):
        r = generate("x")  # clients choose tenants freely: each would have a quota of its own
        r.generate.session, r.tenant = b"trip", b"shop"
        self.assertEqual(self.error(r).code, pb.Error.DENIED)

    def test_names(self):
        for name in (b".hidden", b"a/b", b"\xff", b"n n"):
            r = generate("x")
            r.generate.session = name
            self.assertEqual(self.error(r).code, pb.Error.INVALID, name)
        for name in (b"", b"x" * 65):
            r = generate("x")
            r.generate.session = name
            e = self.error(r)
            self.assertEqual((e.code, e.field), (pb.Error.INVALID, b"generate.session"), name)

    def test_chat_has_the_field(self):
        r = pb.Request(id=os.urandom(16))
        r.chat.messages.add(role=pb.Message.USER, content=b"x")
        r.chat.session = b".x"
        self.assertEqual(self.error(r).code, pb.Error.INVALID)


class Writes(Served):
    """What is saved over ZeroMQ counts as the user's, and status shows it; tenants have no sessions, so no budgets of their own."""
    turn = Sessions.turn
    LIMIT = 200000

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="pz-")
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.args = ("--sequences", "4", "--session-writes", str(cls.LIMIT), "--state-dir", folder)
        super().setUpClass()

    def test_one_budget(self):
        written = 0
        for i in range(50):
            _, done = self.turn(b"s%d" % i, "Once upon a time", n=2)
            if done.session == pb.Done.SESSION_NOT_SAVED:
                self.assertIn(b"left of session-writes", done.session_cause)
                break
            written += done.session_bytes + 4096
            self.assertEqual(json.loads(self.pipit("status", "--json"))["sessions_writes"]["written"], written)
        self.assertGreaterEqual(i, 2)
        self.assertLessEqual(written, self.LIMIT)
        r = generate("Once upon a time", max_tokens=2)
        r.generate.session, r.tenant = b"s", b"shop"
        self.assertEqual(self.error(r).code, pb.Error.DENIED)
        self.assertEqual(os.listdir(os.path.join(self.args[-1], "sessions")), [str(os.getuid())])


if __name__ == "__main__":
    unittest.main(verbosity=2)
