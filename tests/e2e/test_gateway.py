#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit-gateway alone, between real ZeroMQ clients and a fake front (fake_front.py): translation both
ways, identity, limits, slow and vanished clients, hostile peers, restarts.

usage: test_gateway.py PATH_OF_pipit-gateway [unittest arguments]"""
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import fake_front
import wire
from daemon import SLOW
from zclient import Client, Timeout, generate, pb, wait_until, zmq

GATEWAY = os.environ.get("PIPIT_GATEWAY", "")


class ListeningFront(fake_front.FakeFront):
    """The gateway connects to gateway.sock, as one with a service unit of its own does."""

    def start_gateway(self):
        path = os.path.join(self.folder, "gateway.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(1)
            self.process = subprocess.Popen([self.gateway, "--runtime-dir", self.folder], stderr=subprocess.PIPE, text=True)
            self.sock, self.attached = listener.accept()[0], set()
        os.unlink(path)
        self.n_starts += 1


class Base(unittest.TestCase):
    extra = ()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="pg-")
        self.front = fake_front.FakeFront(GATEWAY, self.folder.name, self.extra)
        self.assertTrue(wait_until(lambda: os.path.exists(self.front.path)))
        self.client = Client(self.front.path)
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.front.stop)
        self.addCleanup(self.client.close)

    def error(self, client, request):
        e = client.last(request)
        self.assertTrue(e.HasField("error"), e)
        return e.error

    def raw_error(self, raw, client=None):
        client = client or self.client
        client.send_raw(raw)
        e = client.receive()
        self.assertTrue(e.HasField("error"), e)
        return e.error

    def cancelled(self, rid):
        return any(kind == fake_front.CANCEL and who == rid for kind, _, who, _ in list(self.front.records))


class Translation(Base):
    def test_stream(self):
        events = list(self.client.events(generate("count 5")))
        self.assertEqual([e.WhichOneof("body") for e in events], ["accepted"] + ["delta"] * 5 + ["done"])
        self.assertEqual([e.seq for e in events], list(range(1, 8)))
        self.assertEqual(b"".join(e.delta.text for e in events), b"0 1 2 3 4 ")
        self.assertEqual([e.delta.token for e in events[1:-1]], list(range(5)))
        self.assertFalse(events[1].delta.HasField("logprob"))
        done = events[-1].done
        self.assertEqual((done.reason, done.n_prompt, done.n_cached, done.n_new, done.seed), (pb.Done.STOP, 10, 2, 5, 99))
        asked = self.front.requests[0]
        self.assertEqual((asked["kind"], asked["uid"], asked["tenant"]), ("generate", os.getuid(), b""))
        self.assertEqual(asked["items"][0], (1, b"count 5"))

    def test_sampling_items(self):
        r = generate("count 1", temperature=0, top_k=40, top_p=0.5, min_p=0.25, repeat_penalty=1.5, presence_penalty=-2,
                     frequency_penalty=3, penalty_last_n=7, seed=2**64 - 1, max_tokens=9, logprobs=2, ignore_end=True,
                     stop=[b"a", b"bc"])
        r.tenant, r.urgency, r.timeout_ms, r.detach, r.progress = b"shop", -100, 86400000, True, True
        r.generate.policy = b"fp8+keyformer:50%"
        e = self.client.last(r)
        self.assertTrue(e.HasField("done"), e)
        asked = self.front.requests[0]
        self.assertEqual((asked["tenant"], asked["urgency"], asked["timeout"]), (b"shop", -100, 86400000))
        self.assertEqual(asked["flags"], fake_front.F_DETACH | fake_front.F_PRINCIPAL | fake_front.F_PROGRESS)
        by_type = dict(asked["items"])
        self.assertEqual(struct.unpack("<ffffffiiiiIiQ", by_type[8]),
                         (0, 0.5, 0.25, 1.5, -2, 3, 40, 7, 9, 2, 7, 0, 2**64 - 1))
        self.assertEqual([v for t, v in asked["items"] if t == 7], [b"a", b"bc"])
        self.assertEqual(by_type[6], b"fp8+keyformer:50%")

    def test_sampling_defaults(self):
        self.client.last(generate("count 1"))
        got = struct.unpack("<ffffffiiiiIiQ", dict(self.front.requests[0]["items"])[8])
        self.assertEqual(tuple(round(x, 6) for x in got), (0.7, 0.95, 0.05, 1, 0, 0, 0, 64, 0, -1, 0, 0, 0))

    def test_chat_items(self):
        r = pb.Request()
        for role, text in ((pb.Message.SYSTEM, b"be brief"), (pb.Message.USER, b"hi"), (pb.Message.ASSISTANT, b"")):
            r.chat.messages.add(role=role, content=text)
        self.client.last(r)
        self.assertEqual(self.front.requests[0]["kind"], "chat")
        self.assertEqual(self.front.requests[0]["items"][:6],
                         [(4, b"system"), (5, b"be brief"), (4, b"user"), (5, b"hi"), (4, b"assistant"), (5, b"")])

    def test_alternatives(self):
        events = list(self.client.events(generate("alts 3", logprobs=2)))
        self.assertEqual([e.seq for e in events], [1, 4, 7, 10, 11])
        for e in events[1:-1]:
            self.assertEqual([(a.token, a.logprob, a.text) for a in e.delta.alternatives],
                             [(100, -1.5, b"a"), (101, -2.5, b"a")])
            self.assertEqual(e.delta.logprob, -0.25)

    def test_progress(self):
        r = generate("count 1")
        r.progress = True
        kinds = [e.WhichOneof("body") for e in self.client.events(r)]
        self.assertIn("progress", kinds)

    def test_tokenize_detokenize_score(self):
        r = pb.Request()
        r.tokenize.text = b"ab" * 5000
        events = list(self.client.events(r))
        self.assertEqual([e.WhichOneof("body") for e in events], ["accepted", "tokens", "tokens", "tokens", "done"])
        self.assertEqual([t for e in events for t in e.tokens.tokens], list(b"ab" * 5000))
        self.assertEqual([e.seq for e in events], [1, 4097, 8193, 10001, 10002])
        r = pb.Request()
        r.detokenize.tokens.extend(b"xyz")
        self.assertEqual(self.client.text(r)[0], b"xyz")
        r = pb.Request()
        r.score.prompt = b"abcd"
        events = list(self.client.events(r))
        self.assertEqual(list(events[1].scores.logprobs), [0, -1, -2, -3])
        self.assertEqual(events[1].scores.row0, 1)
        self.assertTrue(wait_until(lambda: any(k == fake_front.CREDIT for k, *_ in list(self.front.records))))
        r.ClearField("id")
        r.unary = True
        self.assertEqual(list(self.client.last(r).done.logprobs), [0, -1, -2, -3])

    def test_unary_and_req(self):
        with Client(self.front.path, zmq.REQ) as c:
            for _ in range(3):
                r = generate("count 4", logprobs=0)
                r.unary = True
                e = c.last(r)
                self.assertEqual((e.done.text, list(e.done.tokens)), (b"0 1 2 3 ", [0, 1, 2, 3]))
                self.assertEqual(list(e.done.logprobs), [-0.25] * 4)
                self.assertEqual(c.ping().ctx, 512)

    def test_ping_and_status(self):
        pong = self.client.ping()
        self.assertEqual((pong.front_epoch, pong.model_epoch, pong.state, pong.model), (11, 22, pb.Pong.READY, b"fake model"))
        self.assertGreater(pong.gateway_epoch, 10**18)
        r = pb.Request()
        r.status.SetInParent()
        s = self.client.last(r).status
        self.assertEqual((s.n_running, s.n_requests, s.ctx, s.model, s.backend), (1, 5, 512, b"fake", b"none"))
        self.assertEqual(s.gateway_epoch, pong.gateway_epoch)

    def test_error_passes_through(self):
        error = self.error(self.client, generate("busy"))
        self.assertEqual((error.code, error.text, error.retry_after_ms), (pb.Error.BUSY, b"queue full", 250))

    def test_many_at_once(self):
        clients = [Client(self.front.path) for _ in range(20)]
        waiting = {}
        for i in range(200):
            c = clients[i % 20]
            waiting[c.send(generate(f"count {i % 7 + 1}"))] = (c, i % 7 + 1)
        n = 0
        for c in clients:
            while n < 200:
                try:
                    e = c.receive(1)
                except Timeout:
                    break
                if e.HasField("done"):
                    self.assertEqual(e.done.n_new, waiting[e.id][1])
                    self.assertIs(waiting.pop(e.id)[0], c)
                    n += 1
                self.assertFalse(e.HasField("error"), e)
                if not any(v[0] is c for v in waiting.values()):
                    break
            c.close()
        self.assertEqual(waiting, {})

    def test_limit_of_one_socket(self):
        ids = [self.client.send(generate("hang")) for _ in range(65)]
        for _ in range(65):
            e = self.client.receive()
            if e.HasField("error"):
                break
        self.assertEqual((e.error.code, e.id), (pb.Error.BUSY, ids[-1]))
        self.assertGreater(e.error.retry_after_ms, 0)


class Requests(Base):
    def test_cancel_own(self):
        rid = self.client.send(generate("hang"))
        self.assertTrue(self.client.receive().HasField("accepted"))
        r = pb.Request(id=rid)
        r.cancel.SetInParent()
        self.client.send(r)
        e = self.client.receive()
        self.assertEqual((e.id, e.done.reason), (rid, pb.Done.CANCELLED))

    def test_cancel_from_another_socket(self):
        rid = self.client.send(generate("hang"))
        self.assertTrue(self.client.receive().HasField("accepted"))
        r = pb.Request(id=rid)
        r.cancel.SetInParent()
        with Client(self.front.path) as other:
            self.assertEqual(other.last(r).done.reason, pb.Done.CANCELLED)
        self.assertEqual(self.client.receive().done.reason, pb.Done.CANCELLED)

    def test_cancel_unknown(self):
        r = pb.Request(id=os.urandom(16))
        r.cancel.SetInParent()
        self.assertEqual(self.error(self.client, r).code, pb.Error.NOT_FOUND)
        # Of another lane, as far as this gateway knows: the front takes it without a word.
        job = fake_front.Job((os.getuid(), b"", r.id))
        self.front.jobs[job.key] = job
        self.assertEqual(self.client.last(r).done.reason, pb.Done.CANCELLED)

    def test_tenants_are_apart(self):
        r = generate("hang")
        r.tenant = b"a"
        rid = self.client.send(r)
        self.client.receive()
        for body in ("cancel", "resume"):
            q = pb.Request(id=rid, tenant=b"b")
            getattr(q, body).SetInParent()
            if body == "resume":
                q.resume.next_seq = 1
            self.assertEqual(self.error(self.client, q).code, pb.Error.NOT_FOUND)
        q = generate("hang")
        q.id, q.tenant = rid, b"b"
        self.assertEqual(self.error(self.client, q).code, pb.Error.DENIED)

    def test_repetition_attaches(self):
        r = generate("count 3")
        first = list(self.client.events(r))
        r = generate("hang")
        self.client.send(r)
        self.client.receive()
        n = len(self.front.requests)
        with Client(self.front.path) as other:
            other.send(r)
            self.assertEqual(other.receive().seq, 1)
            self.assertEqual(len(self.front.requests), n)
            r2 = pb.Request(id=r.id)
            r2.cancel.SetInParent()
            other.send(r2)
            self.assertEqual(other.receive().done.reason, pb.Done.CANCELLED)
        self.assertEqual(len(first), 5)

    def test_resume_after_gateway_death(self):
        rid = self.client.send(generate("hang"))
        self.client.receive()
        before = self.client.ping().gateway_epoch
        job = next(iter(self.front.jobs.values()))
        seconds = []
        for _ in range(5):  # the best of five: the machine may be busy with something else
            os.kill(self.front.process.pid, signal.SIGKILL)
            start = time.monotonic()
            with Client(self.front.path) as fresh:
                self.assertNotEqual(fresh.ping().gateway_epoch, before)
            seconds.append(time.monotonic() - start)
        self.assertLess(min(seconds), 0.1)
        self.front.token(job, 0, b"after ")
        self.front.done(job)
        r = pb.Request(id=rid)
        r.resume.next_seq = 2
        self.assertNotEqual(self.client.ping().gateway_epoch, before)
        events = list(self.client.events(r))
        self.assertEqual([(e.seq, e.WhichOneof("body")) for e in events], [(2, "delta"), (3, "done")])
        self.assertEqual(events[0].delta.text, b"after ")

    def test_resume_on_another_socket(self):
        list(self.client.events(generate("count 2")))
        job = next(iter(self.front.jobs.values()))
        with Client(self.front.path) as other:
            r = pb.Request(id=job.key[2])
            r.resume.next_seq = 3
            self.assertEqual([e.seq for e in other.events(r)], [3, 4])
            r.unary = True
            self.assertEqual(other.last(r).done.text, b"0 1 ")
        r = pb.Request(id=os.urandom(16))
        r.resume.next_seq = 1
        self.assertEqual(self.error(self.client, r).code, pb.Error.NOT_FOUND)

    def test_resumed_rows(self):
        """Scores lay in the gateway's buffer: never told as rows of a lease. Other rows do lie in one."""
        r = pb.Request(id=os.urandom(16))
        r.score.prompt = b"abcd"
        self.assertEqual([e.WhichOneof("body") for e in self.client.events(r)], ["accepted", "scores", "done"])

        def resumed(rid, next_seq, **top):
            q = pb.Request(id=rid, **top)
            q.resume.next_seq = next_seq
            return list(self.client.events(q))
        for unary in (False, True):
            *before, e = resumed(r.id, 1, unary=unary)
            self.assertEqual([b.WhichOneof("body") for b in before], [] if unary else ["accepted"])
            self.assertEqual(e.error.code, pb.Error.NOT_FOUND, e)
            self.assertIn(b"ask again", e.error.text)
            self.client.ping()
        self.assertTrue(resumed(r.id, 3)[-1].HasField("done"))
        # One that named a lease is told where its rows are, and by the next gateway not any more.
        r = pb.Request(id=os.urandom(16))
        r.score.prompt = b"abcd"
        r.score.output.lane, r.score.output.buf, r.score.output.generation = 5, 2, 7
        events = list(self.client.events(r))
        self.assertEqual([e.WhichOneof("body") for e in events], ["accepted", "bulk", "done"])
        self.assertEqual((events[1].bulk.kind, events[1].bulk.n_rows), (pb.Bulk.LOGPROBS, 4))
        self.assertEqual(resumed(r.id, 1)[-1].error.code, pb.Error.NOT_FOUND)
        # Logits are always in a lease of the client's.
        rid = self.client.send(generate("hang"))
        self.assertTrue(self.client.receive().HasField("accepted"))
        job = self.front.jobs[(os.getuid(), b"", rid)]
        os.kill(self.front.process.pid, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: self.front.n_starts == 2))
        self.client.ping()
        self.front.event(job, fake_front.BULK, struct.pack("<IIIIQIIQQ", 3, 9, 7, 16384, 0, 1, 512, 2048, 64))
        self.front.done(job)
        events = resumed(rid, 2)
        self.assertEqual([e.WhichOneof("body") for e in events], ["bulk", "done"])
        self.assertEqual((events[0].bulk.kind, events[0].bulk.offset), (pb.Bulk.LOGITS, 64))

    def test_vanished_client(self):
        with Client(self.front.path) as other:
            rid = other.send(generate("hang"))
            other.receive()
        job = self.front.jobs[(os.getuid(), b"", rid)]
        time.sleep(0.1)
        self.front.token(job, 0, b"nobody hears")
        self.front.push(job)
        self.assertTrue(wait_until(lambda: self.cancelled(rid)))

    def test_vanished_client_detached(self):
        with Client(self.front.path) as other:
            r = generate("hang")
            r.detach = True
            rid = other.send(r)
            other.receive()
        job = self.front.jobs[(os.getuid(), b"", rid)]
        time.sleep(0.1)
        self.front.token(job, 0, b"kept")
        self.front.push(job)
        time.sleep(0.3)
        self.assertFalse(self.cancelled(rid))
        r = pb.Request(id=rid)
        r.resume.next_seq = 1
        self.client.send(r)
        self.assertEqual([self.client.receive().seq for _ in range(2)], [1, 2])
        time.sleep(0.7)
        self.assertFalse(self.cancelled(rid))

    def test_slow_reader(self):
        slow = Client(self.front.path, rcvhwm=1)
        rid = slow.send(generate("flood"))
        worst = 0
        for _ in range(600):
            start = time.monotonic()
            self.client.ping()
            worst = max(worst, time.monotonic() - start)
            if self.cancelled(rid):
                break
            time.sleep(0.01)
        self.assertTrue(self.cancelled(rid))
        self.assertLess(worst, 2)
        while True:
            e = slow.receive()
            if e.HasField("done"):
                break
        self.assertEqual(e.done.reason, pb.Done.SLOW_CONSUMER)
        slow.close()

    def test_unary_over_the_limit(self):
        r = generate("flood")
        r.unary = True
        error = self.client.last(r, 60).error
        self.assertEqual(error.code, pb.Error.TOO_LARGE)
        self.assertTrue(wait_until(lambda: self.cancelled(r.id)))


class BadInput(Base):
    def test_ranges(self):
        """Every numeric field of a Request, outside its range: an Error that names the field."""
        for row in wire.RANGES:
            for value in wire.outside(row):
                with self.subTest(field=row[0], value=value):
                    rid = os.urandom(16)
                    self.client.send_raw(wire.with_value(rid, row, value))
                    e = self.client.receive()
                    self.assertEqual((e.id, e.error.code, e.error.field.decode()), (rid, pb.Error.INVALID, row[0]))
                    self.assertIn(row[0], e.error.text.decode())
        self.assertEqual(self.front.requests, [])

    def test_table_is_complete(self):
        """A numeric field that is new in pipit.proto must come into wire.RANGES too."""
        known = {name.replace("[0]", "").split(".")[-1] for name, *_ in wire.RANGES}
        known |= {"lane", "buf", "generation", "bytes"}  # a lease: only all of them together mean one (test_zmq Leases)

        def walk(message, seen):
            for f in message.fields:
                if f.message_type and f.message_type.name not in seen:
                    walk(f.message_type, seen | {f.message_type.name})
                elif not f.message_type and f.cpp_type not in (f.CPPTYPE_STRING, f.CPPTYPE_BOOL):
                    self.assertIn(f.name, known)
        walk(pb.Request.DESCRIPTOR, {"Request"})

    def test_bounds_are_allowed(self):
        for row in wire.RANGES:
            if row[0].startswith(("resume", "chat.messages", "score", "detokenize", "embed", "credit")):
                continue
            for value in row[4:6]:
                with self.subTest(field=row[0], value=value):
                    self.client.send_raw(wire.with_value(os.urandom(16), row, value))
                    while not (e := self.client.receive()).HasField("done"):
                        self.assertFalse(e.HasField("error"), e)

    def test_malformed(self):
        rid = wire.field(1, os.urandom(16))
        ok = wire.field(16, wire.field(1, b"count 1"))
        for name, raw, code, where in (
                ("nothing", b"", pb.Error.INVALID, "id"),
                ("noise", bytes(range(255, 0, -1)), pb.Error.INVALID, ""),
                ("text", b"hello, are you there?", pb.Error.INVALID, ""),
                ("cut", (rid + ok)[:-3], pb.Error.INVALID, ""),
                ("no id", ok, pb.Error.INVALID, "id"),
                ("short id", wire.field(1, b"x" * 15) + ok, pb.Error.INVALID, "id"),
                ("zero id", wire.field(1, bytes(16)) + ok, pb.Error.INVALID, "id"),
                ("no body", rid, pb.Error.INVALID, ""),
                ("two ids", rid + rid + ok, pb.Error.INVALID, "id"),
                ("two bodies", rid + ok + ok, pb.Error.INVALID, "generate"),
                ("two kinds", rid + ok + wire.field(24, b""), pb.Error.INVALID, "ping"),
                ("wrong wire type", rid + wire.field(16, 7), pb.Error.INVALID, "generate"),
                ("group", rid + wire.varint(30 << 3 | 3) + wire.varint(30 << 3 | 4) + ok, pb.Error.INVALID, ""),
                ("long tenant", rid + wire.field(2, b"t" * 65) + ok, pb.Error.INVALID, "tenant"),
                ("nine unknown", rid + ok + b"".join(wire.field(200 + i, 1) for i in range(9)), pb.Error.INVALID, ""),
                ("prompt and tokens", rid + wire.field(16, wire.field(1, b"x") + wire.field(2, 5)), pb.Error.INVALID,
                 "generate"),
                ("no prompt", rid + wire.field(16, b""), pb.Error.INVALID, "generate"),
                ("no messages", rid + wire.field(17, b""), pb.Error.INVALID, "chat.messages"),
                ("no content", rid + wire.field(17, wire.field(1, wire.field(1, 2))), pb.Error.INVALID,
                 "chat.messages[0].content"),
                ("1025 messages", rid + wire.field(17, wire.USER_MESSAGE * 1025), pb.Error.TOO_LARGE,
                 "chat.messages[1024]"),
                ("17 stops", rid + wire.field(16, wire.field(1, b"x") + wire.field(3, wire.field(13, b"s") * 17)),
                 pb.Error.TOO_LARGE, "generate.sampling.stop[16]"),
                ("empty stop", rid + wire.field(16, wire.field(1, b"x") + wire.field(3, wire.field(13, b""))),
                 pb.Error.INVALID, "generate.sampling.stop[0]"),
                ("long policy", rid + wire.field(16, wire.field(1, b"x") + wire.field(4, b"p" * 1025)),
                 pb.Error.INVALID, "generate.policy"),
                ("unpacked bomb", rid + wire.field(19, wire.field(1, 1) * 30000), pb.Error.TOO_LARGE, ""),
                ("too long", rid + wire.field(16, wire.field(1, b"x" * 70000)), pb.Error.TOO_LARGE, ""),
        ):
            with self.subTest(name):
                error = self.raw_error(raw)
                self.assertEqual((error.code, error.field.decode()), (code, where), error)
                self.assertGreater(len(error.text), 10)
        self.assertEqual(self.front.requests, [])
        self.client.ping()
        self.assertEqual(self.front.n_starts, 1)

    def test_too_long_says_how_long(self):
        error = self.raw_error(wire.field(1, os.urandom(16)) + wire.field(16, wire.field(1, b"x" * 70000)))
        self.assertEqual(error.allowed, self.client.ping().max_request_bytes)
        self.assertGreater(error.asked, error.allowed)

    def test_eight_unknown_fields_are_ignored(self):
        raw = generate("count 1").SerializeToString() + b"".join(wire.field(200 + i, b"new") for i in range(8))
        self.client.send_raw(raw)
        self.assertTrue(self.client.receive().HasField("accepted"))

    def test_frames(self):
        good = generate("count 1").SerializeToString()
        for frames in ((good, b"more"), (b"", b"", good), (b"",) * 100, (b"x", good), (b"", good, b"")):
            self.client.send_raw(*frames)
            self.assertEqual(self.client.receive().error.code, pb.Error.PROTOCOL)
        self.client.send_raw(b"", good)
        self.assertTrue(self.client.receive().HasField("accepted"))

    def test_huge_frame(self):
        """Beyond what is read at all: libzmq drops the connection; nobody else notices."""
        with Client(self.front.path) as big:
            big.send_raw(b"x" * (4 << 20))
            self.client.ping()
            self.assertEqual(self.client.text(generate("count 2"))[0], b"0 1 ")
        self.assertEqual(self.front.n_starts, 1)

    def test_chosen_routing_id(self):
        for name in (b"victim", b"\x00abcde"):
            with Client(self.front.path, routing_id=name) as c:
                self.assertEqual(self.error(c, generate("count 1")).code, pb.Error.DENIED)
        self.assertEqual(self.front.requests, [])

    def test_lane_ends(self):
        self.front.stopping = True
        self.front.sock.shutdown(socket.SHUT_RDWR)
        self.assertEqual(self.front.process.wait(5), 0)

    def test_lane_ends_of_a_gateway_of_its_own(self):
        """Not pipitd's child: nobody else says why it ended, so it does."""
        with tempfile.TemporaryDirectory(prefix="pg-") as folder:
            front = ListeningFront(GATEWAY, folder)
            try:
                with Client(front.path) as c:
                    c.ping()
                front.stopping = True
                front.sock.shutdown(socket.SHUT_RDWR)
                _, said = front.process.communicate(timeout=5)
            finally:
                front.stop()
        self.assertEqual(front.process.returncode, 0)
        self.assertIn("the front ended the lane", said)


class Attacks(Base):
    extra = ("--memory", "128MiB")

    def flood(self, n, seconds):
        """Idle connections, as many of n as can be made in that time."""
        held = []
        end = time.monotonic() + seconds
        while len(held) < n and time.monotonic() < end:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                s.connect(self.front.path)  # waits while the listener's queue is full
                held.append(s)
            except OSError:
                s.close()  # the gateway is being started again
                time.sleep(0.01)
        self.addCleanup(lambda: [s.close() for s in held])
        return held

    def raw(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(5)
        s.connect(self.front.path)
        return s

    def test_idle_connections(self):
        """About 1,050 idle connections abort a libzmq server at the usual limit."""
        self.assertEqual(len(self.flood(1100, 20)), 1100)
        self.assertEqual(self.client.text(generate("count 2"), 30)[0], b"0 1 ")
        with Client(self.front.path) as fresh:
            fresh.ping(30)
        self.assertEqual(self.front.n_starts, 1)

    def test_idle_connections_without_descriptors(self):
        """The same where the hard limit cannot be raised: libzmq aborts, and the gateway is back."""
        pid = self.front.process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
        held = self.flood(100, 5)
        self.assertTrue(wait_until(lambda: self.front.process.pid != pid))
        for s in held:
            s.close()
        with Client(self.front.path) as fresh:
            self.assertEqual(fresh.text(generate("count 2"), 30)[0], b"0 1 ")

    def test_half_handshakes(self):
        held = []
        for part in (b"\xff", b"\xff" + bytes(8) + b"\x7f", b"\xff" + bytes(8) + b"\x7f\x03\x00NULL",
                     b"GET / HTTP/1.1\r\n\r\n", bytes(64)):
            for _ in range(20):
                s = self.raw()
                s.send(part)
                held.append(s)
        self.client.ping()
        self.assertEqual(self.front.n_starts, 1)

        def closed(s):
            try:
                while s.recv(4096):
                    pass
                return True
            except ConnectionError:
                return True
        for s in held:
            self.assertTrue(closed(s))  # after HANDSHAKE_IVL
            s.close()

    def test_endless_more_frames(self):
        """Frames with MORE are bounded by no limit of libzmq's. The process is: it ends
        at its memory limit and is back; or it has not got there yet, and serves on."""
        s = self.raw()
        greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)
        s.send(greeting + b"\x04" + bytes([len(ready)]) + ready)
        frames = (b"\x03" + struct.pack(">Q", 1000) + b"m" * 1000) * 1000
        pid = self.front.process.pid
        end = time.monotonic() + 15
        s.settimeout(1)
        try:
            while time.monotonic() < end and self.front.process.pid == pid:
                s.sendall(frames)
        except OSError:
            pass
        s.close()
        self.assertTrue(wait_until(lambda: self.front.process.pid != pid, 2) or self.front.process.poll() is None)
        with Client(self.front.path) as fresh:
            self.assertEqual(fresh.ping(10).front_epoch, 11)
        with open(f"/proc/{self.front.process.pid}/status") as f:
            resident = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        if SLOW == 1:  # under a sanitizer there is no limit: how much came in 15 s is the machine's speed
            self.assertLess(resident, 300 << 10)

    def test_idle_is_quiet(self):
        def switches():
            n = 0
            for task in os.listdir(f"/proc/{self.front.process.pid}/task"):
                with open(f"/proc/{self.front.process.pid}/task/{task}/status") as f:
                    n += sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)
            return n
        self.client.ping()
        time.sleep(1.5)
        before = switches()
        time.sleep(3)
        self.assertLessEqual(switches() - before, 3)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and os.path.exists(sys.argv[1]):
        GATEWAY = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
