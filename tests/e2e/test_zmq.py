#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pipit over ZeroMQ, whole: pipitd, pipit-engine and pipit-gateway, asked by pyzmq and Google's protobuf
and compared with what the command line says. What the gateway does alone is test_gateway.py; sessions are in
test_zmq_sessions.py."""
import json
import math
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import wire
from daemon import BUILD, DATA, SLOW, Daemon, wait_until
from lane import C2E, E2C, LEASE, Lane
from zclient import SOURCE, Client, Timeout, generate, pb, skip, zmq

PIPIT = os.path.join(BUILD, "client/pipit")
GATEWAY = "pipit-gateway"
if not os.path.exists(os.path.join(BUILD, "daemon/gateway/pipit-gateway")):
    skip("pipit-gateway was not built")
with open(os.path.join(DATA, "stories260K.txt"), "rb") as f:
    STORY = f.read()
with open(os.path.join(DATA, "stories260K.ids")) as f:
    STORY_IDS = [int(line) for line in f]


class Served(unittest.TestCase):
    args = ("--sequences", "4")

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*cls.args, gateway="yes")
        cls.daemon.ready().close()
        cls.path = os.path.join(cls.daemon.folder, "zmq.sock")
        assert wait_until(lambda: os.path.exists(cls.path))

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        assert code == 0, (code, cls.daemon.text())

    def setUp(self):
        self.client = Client(self.path)
        self.addCleanup(self.client.close)
        self.client.ping(10 * SLOW)
        self.pids = self.daemon.process.pid, self.daemon.child("pipit-engine")

    def tearDown(self):
        self.assertEqual(self.pids, (self.daemon.process.pid, self.daemon.child("pipit-engine")), "the engine or the front died")

    def pipit(self, *args, text=None):
        r = subprocess.run([PIPIT, args[0], "--runtime-dir", self.daemon.folder, *args[1:]], input=text, capture_output=True,
                           check=False, timeout=60 * SLOW)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def error(self, request, client=None):
        e = (client or self.client).last(request, 20 * SLOW)
        self.assertTrue(e.HasField("error"), e)
        return e.error


class Answers(Served):
    def test_a_dozen_lines(self):
        """README's client, as it is there. The stories model has no template: the error, in its words."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run(["protoc", f"--python_out={folder.name}", f"--proto_path={SOURCE}/proto/zmq", "pipit.proto"], check=True)
        example = SOURCE / "client/python/examples/ask_zmq.py"
        env = {**os.environ, "PYTHONPATH": folder.name}
        r = subprocess.run([sys.executable, example, self.path, "Hello"], env=env, capture_output=True, text=True, check=False,
                           timeout=60 * SLOW)
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("template", r.stderr)
        for arguments, said in (([], "usage: "), ([self.path + "x", "Hello"], self.path + "x: nobody answers")):
            r = subprocess.run([sys.executable, example, *arguments], env=env, capture_output=True, text=True, check=False,
                               timeout=60 * SLOW)
            self.assertEqual((r.returncode, r.stdout, r.stderr[:len(said)]), (1, "", said))
        # The same program without the template.
        plain = pathlib.Path(folder.name) / "plain.py"
        source = example.read_text().replace("request.chat.messages.add(role=pb.Message.USER, content=sys.argv[2].encode())",
                                             "request.generate.prompt = sys.argv[2].encode()")
        plain.write_text(source.replace("request.chat.sampling.temperature = 0",
                                        "request.generate.sampling.temperature, request.generate.sampling.max_tokens = 0, 30"))
        r = subprocess.run([sys.executable, plain, self.path, "Once upon a time"], env=env, capture_output=True, check=False,
                           timeout=60 * SLOW)
        want = self.pipit("ask", "--raw", "-n", "30", "--temp", "0", "Once upon a time")
        self.assertEqual((r.returncode, r.stdout.strip()), (0, want.strip()), r.stderr)

    def test_the_story(self):
        """200 greedy tokens are llama2.c's, byte for byte, streamed."""
        deltas = [e.delta for e in self.client.events(generate("", temperature=0, max_tokens=200), 60 * SLOW) if e.HasField("delta")]
        self.assertEqual([d.token for d in deltas if d.HasField("token")], STORY_IDS)
        self.assertEqual(b"".join(d.text for d in deltas), STORY)
        for d in deltas:
            d.text.decode()  # whole characters only

    def test_equal_to_the_command_line(self):
        """Tokens, log-probabilities, alternatives, sampling with a seed: the same numbers."""
        for options, sampling in ((["--temp", "0"], {"temperature": 0}),
                                  (["--temp", "0.9", "--top-k", "30", "--top-p", "0.9", "--min-p", "0.02", "--seed", "7",
                                    "--repeat-penalty", "1.1", "--presence-penalty", "0.1", "--frequency-penalty", "0.2"],
                                   dict(temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, seed=7, repeat_penalty=1.1,
                                        presence_penalty=0.1, frequency_penalty=0.2))):
            lines = [json.loads(line) for line in self.pipit(
                "ask", "--raw", "-n", "24", "--json", "--logprobs", "3", *options, "Lily saw").splitlines()]
            want = [line for line in lines if line["type"] == "token"]
            got = [e.delta for e in self.client.events(generate("Lily saw", max_tokens=24, logprobs=3, **sampling), 60 * SLOW)
                   if e.HasField("delta") and e.delta.HasField("token")]
            self.assertEqual([d.token for d in got], [w["token"] for w in want])
            for d, w in zip(got, want):
                self.assertAlmostEqual(d.logprob, w["logprob"], places=6)
                self.assertEqual([a.token for a in d.alternatives], [a["token"] for a in w["alternatives"]])
                for a, b in zip(d.alternatives, w["alternatives"]):
                    self.assertAlmostEqual(a.logprob, b["logprob"], places=6)

    def test_tokenize_detokenize_score(self):
        text = "Once upon a time, Tom said \u00fcber \u2603!"
        want = json.loads(self.pipit("tokenize", "--json", text))["tokens"]
        r = pb.Request()
        r.tokenize.text = text.encode()
        ids = [t for e in self.client.events(r) for t in e.tokens.tokens]
        self.assertEqual(ids, want)
        r = pb.Request(unary=True)
        r.detokenize.tokens.extend(ids)
        self.assertEqual(self.client.last(r).done.text.decode(), text)
        # A text's score is what generating it greedily said.
        prompt = ids[:1]
        r = pb.Request()
        r.generate.tokens.extend(prompt)
        r.generate.sampling.temperature, r.generate.sampling.max_tokens, r.generate.sampling.logprobs = 0, 12, 0
        said = [e.delta for e in self.client.events(r, 60 * SLOW) if e.HasField("delta") and e.delta.HasField("token")]
        r = pb.Request()
        r.score.tokens.extend(prompt + [d.token for d in said])
        scores = [x for e in self.client.events(r, 60 * SLOW) for x in e.scores.logprobs]
        self.assertEqual(len(scores), 12)
        for d, s in zip(said, scores):
            self.assertAlmostEqual(d.logprob, s, places=4)

    def test_many_clients(self):
        """16 clients at once, each with its own text; everyone gets all of theirs, and only theirs."""
        prompts = [f"{name} had a" for name in ("Lily", "Tom", "Sam", "Mia")]
        alone = {p: self.client.text(generate(p, temperature=0, max_tokens=20), 60 * SLOW)[0] for p in prompts}
        results = {}

        def ask(i):
            with Client(self.path) as c:
                results[i] = c.text(generate(prompts[i % 4], temperature=0, max_tokens=20), 120 * SLOW)[0]
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(results, {i: alone[prompts[i % 4]] for i in range(16)})

    def test_stop_strings(self):
        text, done = self.client.text(generate("Once upon a time", temperature=0, max_tokens=60, stop=[b"zzz", b"girl named"]))
        self.assertEqual((text, done.reason, done.stop_index), (b", there was a little ", pb.Done.STOP, 2))

    def test_req_socket(self):
        with Client(self.path, zmq.REQ) as c:
            self.assertEqual(c.ping().state, pb.Pong.READY)
            r = generate("Once upon a time", temperature=0, max_tokens=8)
            r.unary = True
            e = c.last(r, 60 * SLOW)
            self.assertEqual(len(e.done.tokens), 8)
            self.assertEqual(e.done.text, self.client.text(generate("Once upon a time", temperature=0, max_tokens=8))[0])

    def test_status(self):
        r = pb.Request()
        r.status.SetInParent()
        s = self.client.last(r).status
        self.assertEqual((s.state, s.ctx, s.n_seqs, s.model), (pb.Pong.READY, 512, 4, b"stories260K"))
        self.assertEqual(s.gateway_epoch, self.client.ping().gateway_epoch)
        cli = json.loads(self.pipit("status", "--json"))
        self.assertEqual(cli["model"], s.model.decode())
        self.assertEqual(cli["backend"], s.backend.decode())

    def test_status_of_a_gateway_is_for_many(self):
        """Also of one that the daemon started itself: nothing exact of requests, and not at once."""
        self.client.last(generate("Once", max_tokens=3), 20 * SLOW)
        r = pb.Request()
        r.status.SetInParent()
        s = self.client.last(r).status
        exact = json.loads(self.pipit("status", "--json"))
        self.assertLess(s.n_requests, exact["requests"]["total"])
        self.assertTrue(wait_until(lambda: json.loads(self.pipit("status", "--json"))["kv"]["policies"], 5 * SLOW))
        self.assertEqual(len(self.client.last(r).status.policies), 0)

    def test_cancel(self):
        rid = self.client.send(generate("", temperature=0, max_tokens=400, ignore_end=True))
        while not self.client.receive(20 * SLOW).HasField("delta"):
            pass
        r = pb.Request(id=rid)
        r.cancel.SetInParent()
        self.client.send(r)
        while not (e := self.client.receive(20 * SLOW)).HasField("done"):
            pass
        self.assertEqual(e.done.reason, pb.Done.CANCELLED)
        self.assertLess(e.done.n_new, 400)
        r = pb.Request(id=os.urandom(16))
        r.cancel.SetInParent()
        self.assertEqual(self.error(r).code, pb.Error.NOT_FOUND)

    def test_cancel_from_the_command_line(self):
        rid = self.client.send(generate("", temperature=0, max_tokens=500, ignore_end=True))
        while not self.client.receive(20 * SLOW).HasField("delta"):
            pass
        # 500 tokens end before a busy machine has started the command
        rest = threading.Thread(target=self.daemon.rest_engine, args=(2,))
        rest.start()
        self.pipit("cancel", rid.hex())
        rest.join()
        while not (e := self.client.receive(20 * SLOW)).HasField("done"):
            pass
        self.assertEqual(e.done.reason, pb.Done.CANCELLED)

    def test_timeout(self):
        r = generate("", temperature=0, max_tokens=500, ignore_end=True)
        r.timeout_ms = 30
        self.assertEqual(self.client.last(r, 30 * SLOW).done.reason, pb.Done.TIMEOUT)


class Leases(Served):
    """Control over ZeroMQ, bulk data in the shared memory of a lane of the same user."""

    def setUp(self):
        super().setUp()
        self.lane = self.daemon.lane()
        self.addCleanup(self.lane.close)

    def lease(self, arena, n_bytes):
        lease = self.lane.lease(arena, n_bytes)
        self.assertEqual(lease.type, LEASE, lease)
        return lease

    def name(self, message, lease, n_bytes=None, **other):
        message.lane, message.buf, message.generation = self.lane.hello.lane_id, lease.buf, lease.generation
        if n_bytes is not None:
            message.bytes = n_bytes
        for field, value in other.items():
            setattr(message, field, value)

    def floats(self, lease, at, n):
        return struct.unpack_from(f"<{n}f", self.lane.e2c, lease.offset + at)

    def owned(self, lease):
        """The client has it (again): it can be put, and its range be had anew."""
        self.lane.put(lease)
        return not self.lane.readable(0.05)

    def test_score_with_logits_through_a_window(self):
        ids = json.loads(self.pipit("tokenize", "--json", "Once upon a time there was a little girl named Lily"))["tokens"]
        want = [json.loads(l)["logprob"] for l in self.pipit(
            "score", "--json", "Once upon a time there was a little girl named Lily").splitlines() if b"logprob" in l]
        n, n_vocab, window = len(ids) - 1, 512, 3
        behind = (n * 4 + 63) // 64 * 64
        into = self.lease(C2E, len(ids) * 4)
        self.lane.c2e[into.offset:into.offset + len(ids) * 4] = struct.pack(f"<{len(ids)}i", *ids)
        out = self.lease(E2C, behind + window * n_vocab * 4)
        r = pb.Request(id=os.urandom(16))
        self.name(r.score.input, into, len(ids) * 4)
        self.name(r.score.output, out)
        r.score.logits = True
        rows = []
        for e in self.client.events(r, 20 * SLOW):
            self.assertFalse(e.HasField("error"), e)
            if e.HasField("bulk") and e.bulk.kind == pb.Bulk.LOGITS:
                self.assertEqual((e.bulk.n_cols, e.bulk.window), (n_vocab, window))
                for row in range(e.bulk.row0, e.bulk.row0 + e.bulk.n_rows):
                    rows.append(self.floats(out, behind + row % window * n_vocab * 4, n_vocab))
                c = pb.Request(id=r.id)
                c.credit.n_rows = len(rows) + window
                self.client.send(c)
        self.assertEqual(len(rows), n)
        got = self.floats(out, 0, n)
        for i, row in enumerate(rows):
            top = max(row)
            logprob = row[ids[i + 1]] - top - math.log(sum(math.exp(x - top) for x in row))
            self.assertAlmostEqual(logprob, got[i], places=3)
            self.assertAlmostEqual(got[i], want[i], places=3)
        self.assertTrue(self.owned(into) and self.owned(out))

    def test_logits_of_each_step_tokens_embedding(self):
        out = self.lease(E2C, 8 * 512 * 4)
        r = generate("Once upon a time", temperature=0, max_tokens=5)
        self.name(r.generate.output, out)
        events = list(self.client.events(r, 20 * SLOW))
        said = [e.delta.token for e in events if e.HasField("delta") and e.delta.HasField("token")]
        bulks = [e.bulk for e in events if e.HasField("bulk")]
        self.assertEqual([b.row0 for b in bulks], list(range(5)))
        for b, token in zip(bulks, said):
            row = self.floats(out, b.offset, 512)
            self.assertEqual(row.index(max(row)), token)
        r = pb.Request(id=os.urandom(16))
        r.tokenize.text = b"Once upon a time"
        self.name(r.tokenize.output, out)
        bulk = next(e.bulk for e in self.client.events(r) if e.HasField("bulk"))
        ids = struct.unpack_from(f"<{bulk.n_rows}i", self.lane.e2c, out.offset)
        self.assertEqual(list(ids), json.loads(self.pipit("tokenize", "--json", "Once upon a time"))["tokens"])
        into = self.lease(C2E, len(ids) * 4)
        self.lane.c2e[into.offset:into.offset + bulk.n_bytes] = struct.pack(f"<{len(ids)}i", *ids)
        r = pb.Request(unary=True)
        self.name(r.detokenize.input, into, len(ids) * 4)
        self.assertEqual(self.client.last(r).done.text, b"Once upon a time")
        r = pb.Request(id=os.urandom(16))
        self.name(r.embed.input, into, len(ids) * 4)
        self.name(r.embed.output, out)
        bulk = next(e.bulk for e in self.client.events(r) if e.HasField("bulk"))
        self.assertEqual((bulk.kind, bulk.n_rows, bulk.n_cols), (pb.Bulk.HIDDEN, 1, 64))
        want = json.loads(self.pipit("embed", "--json", "Once upon a time"))["embedding"]
        other = self.lease(E2C, 256)
        self.name(r.embed.output, other)
        r.id, r.unary = os.urandom(16), True  # one event, and the row is there
        self.assertEqual([e.WhichOneof("body") for e in self.client.events(r)], ["done"])
        self.assertEqual(self.floats(other, 0, 64), self.floats(out, 0, 64))
        r = generate("x", max_tokens=1)
        self.name(r.generate.output, out)
        r.unary = True
        self.assertEqual(self.error(r).code, pb.Error.INVALID)
        for a, b in zip(self.floats(out, 0, 64), want):
            self.assertAlmostEqual(a, b, places=5)

    def test_refusals(self):
        out, small = self.lease(E2C, 4096), self.lease(E2C, 64)
        other = self.lease(C2E, 64)

        def asks(code, text=None, **other):
            r = pb.Request(id=os.urandom(16), **{k: v for k, v in other.items() if k in ("tenant", "detach")})
            r.generate.prompt = b"x"
            r.generate.sampling.max_tokens = 2
            self.name(r.generate.output, other.pop("lease", out), **{k: v for k, v in other.items() if k not in ("tenant", "detach")})
            e = self.error(r)
            self.assertEqual(e.code, code, e)
            self.assertIn(text or b"", e.text)
            return e.text
        mine = {asks(pb.Error.DENIED, lane=self.lane.hello.lane_id + 1000), asks(pb.Error.DENIED, generation=out.generation + 1),
                asks(pb.Error.DENIED, buf=200), asks(pb.Error.DENIED, tenant=b"shop"),
                asks(pb.Error.DENIED, lease=other)}
        self.assertEqual(len(mine), 1, "what is not there and what is another's sound the same")
        asks(pb.Error.INVALID, b"detached", detach=True)
        asks(pb.Error.TOO_LARGE, lease=small)
        gateway = self.daemon.child(GATEWAY)
        for lane in range(1, self.lane.hello.lane_id):  # the gateway's own lane is among them
            asks(pb.Error.DENIED, lane=lane, buf=1, generation=1)
            r = pb.Request(unary=True)  # there its clients' requests lie
            self.name(r.detokenize.input, other, 4, lane=lane, buf=1, generation=1)
            self.assertEqual(self.error(r).code, pb.Error.DENIED)
        self.assertEqual(self.daemon.child(GATEWAY), gateway)
        r = pb.Request(id=os.urandom(16))
        self.name(r.score.input, other, 64)
        self.assertEqual(self.error(r).field, b"output")
        self.name(r.score.output, out, lane=self.lane.hello.lane_id + 1)
        self.assertEqual(self.error(r).field, b"input")
        self.assertTrue(self.owned(out) and self.owned(small) and self.owned(other))

    def test_another_users_lane(self):
        """Denied in the words for a lane that is not there."""
        if os.geteuid() != 0:
            self.skipTest("needs root to be two users")
        os.chmod(self.daemon.folder, 0o755)
        os.chmod(os.path.join(self.daemon.folder, "lane.sock"), 0o777)
        said, say = os.pipe()
        wait, end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(12345, 12345, 12345)
                theirs = Lane(self.daemon.folder)
                lease = theirs.lease(E2C, 4096)
                os.write(say, struct.pack("<QII", theirs.hello.lane_id, lease.buf, lease.generation))
                os.close(end)
                os.read(wait, 1)
            finally:
                os._exit(0)
        os.close(say)
        os.close(wait)
        got = os.read(said, 16)
        self.assertEqual(len(got), 16, "the other user has no lane")
        number, buf, generation = struct.unpack("<QII", got)
        errors = []
        for lane in (number, number + 1000):
            r = generate("x", max_tokens=1)
            r.generate.output.lane, r.generate.output.buf, r.generate.output.generation = lane, buf, generation
            errors.append(self.error(r))
        os.close(end)
        os.close(said)
        os.waitpid(child, 0)
        self.assertEqual([e.code for e in errors], [pb.Error.DENIED] * 2)
        self.assertEqual(errors[0].text, errors[1].text)

    def test_a_lane_that_closes_ends_its_requests(self):
        out = self.lease(E2C, 4 * 512 * 4)
        r = generate("", temperature=0, max_tokens=400, ignore_end=True)
        self.name(r.generate.output, out)
        self.client.send(r)
        while not self.client.receive(20 * SLOW).HasField("bulk"):
            pass
        self.lane.close()
        while not (e := self.client.receive(20 * SLOW)).HasField("done"):
            pass
        self.assertEqual(e.done.reason, pb.Done.CANCELLED)
        self.lane = self.daemon.lane()

    def test_credit_of_strangers_is_nothing(self):
        """A full window waits for its own reader, whatever another tenant says about that id."""
        ids = json.loads(self.pipit("tokenize", "--json", "Once upon a time there was a little girl named Lily"))["tokens"]
        n, n_vocab, window = len(ids) - 1, 512, 3
        out = self.lease(E2C, (n * 4 + 63) // 64 * 64 + window * n_vocab * 4)
        r = pb.Request(id=os.urandom(16))
        r.score.tokens.extend(ids)
        self.name(r.score.output, out)
        r.score.logits = True
        self.client.send(r)
        rows = 0

        def read(timeout):
            nonlocal rows
            e = self.client.receive(timeout)
            self.assertEqual(e.id, r.id)
            self.assertFalse(e.HasField("error"), e)
            if e.HasField("bulk") and e.bulk.kind == pb.Bulk.LOGITS:
                rows = e.bulk.row0 + e.bulk.n_rows
            return e

        def credit(client, **top):
            c = pb.Request(id=r.id, **top)
            c.credit.n_rows = rows + window
            client.send(c)
            self.assertEqual(client.ping().state, pb.Pong.READY)  # it was read
        while rows < window:
            read(20 * SLOW)
        self.assertLess(rows, n)
        with Client(self.path) as other:
            credit(other, tenant=b"shop")
            c = pb.Request(id=os.urandom(16))
            c.credit.n_rows = n
            other.send(c)
            other.ping()
        with self.assertRaises(Timeout):
            while True:
                read(0.5)
        self.assertEqual(rows, window)
        with Client(self.path) as second:  # its own principal may, from any socket
            credit(second)
            while not (e := read(20 * SLOW)).HasField("done"):
                if e.HasField("bulk") and rows < n:
                    credit(second)
        self.assertEqual((e.done.reason, rows), (pb.Done.STOP, n))


class BadInput(Served):
    def test_what_only_the_engine_can_refuse(self):
        for request, code, words in (
                (generate(b"\xff\xfe"), pb.Error.INVALID, b"UTF-8"),
                (generate(b"a\0b"), pb.Error.INVALID, b"NUL"),
                (generate("word " * 2000), pb.Error.CONTEXT_OVERFLOW, b"512"),
                (generate("x", stop=[b"\xff"]), pb.Error.INVALID, b"stop")):
            with self.subTest(words=words):
                e = self.error(request)
                self.assertEqual(e.code, code, e)
                self.assertIn(words, e.text)
                if code == pb.Error.CONTEXT_OVERFLOW:
                    self.assertGreater(e.asked, e.allowed)
        r = generate("x")
        r.generate.policy = b"banana"
        self.assertIn(b"policy", self.error(r).text)
        r = pb.Request()
        r.generate.tokens.extend([5, 512])
        self.assertIn(b"512", self.error(r).text)

    def test_every_number(self):
        for row in wire.RANGES:
            for value in wire.outside(row):
                rid = os.urandom(16)
                self.client.send_raw(wire.with_value(rid, row, value))
                e = self.client.receive()
                self.assertEqual((e.id, e.error.code, e.error.field.decode()), (rid, pb.Error.INVALID, row[0]))

    def test_garbage(self):
        with Client(self.path) as bad:
            for raw in (b"", b"\0", b"hello", os.urandom(1000), b"\xff" * 5000, b"x" * (1 << 19)):
                bad.send_raw(raw)
            for _ in range(5):
                self.assertIn(bad.receive().error.code, (pb.Error.INVALID, pb.Error.TOO_LARGE))
        with Client(self.path) as huge:
            huge.send_raw(b"x" * (32 << 20))
            self.assertTrue(self.client.ping().ctx)

    def test_floods_leave_others_alone(self):
        """Idle connections, half handshakes and endless MORE frames while another user is being answered
        through a lane: their answer does not change, the engine is the same process, ZeroMQ is back."""
        held = []

        def attack():
            for i in range(1100):
                s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    s.settimeout(1)
                    s.connect(self.path)
                    if i % 3 == 0:
                        s.send(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL")
                except OSError:
                    pass
                held.append(s)
            greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
            ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held.append(s)
            frames = (b"\x03" + struct.pack(">Q", 60000) + b"m" * 60000) * 20
            try:
                s.settimeout(2)
                s.connect(self.path)
                s.send(greeting + b"\x04" + bytes([len(ready)]) + ready)
                for _ in range(900):
                    s.sendall(frames)
            except OSError:
                pass
        want = self.pipit("ask", "--raw", "-n", "100", "--temp", "0", "Once upon a time")
        attacker = threading.Thread(target=attack)
        attacker.start()
        n = 0
        while attacker.is_alive() or n < 2:
            self.assertEqual(self.pipit("ask", "--raw", "-n", "100", "--temp", "0", "Once upon a time"), want)
            n += 1
        attacker.join()
        for s in held:
            s.close()
        with Client(self.path) as fresh:
            self.assertEqual(fresh.ping(20 * SLOW).state, pb.Pong.READY)
            self.assertEqual(fresh.text(generate("Once upon a time", temperature=0, max_tokens=5), 30 * SLOW)[0],
                             b", there was a little")


class Deaths(unittest.TestCase):
    """Whoever dies, the stream goes on, and the text is the same."""

    def setUp(self):
        self.daemon = Daemon("--sequences", "2", gateway="yes")
        self.addCleanup(self.daemon.stop)
        self.daemon.ready().close()
        self.path = os.path.join(self.daemon.folder, "zmq.sock")
        self.assertTrue(wait_until(lambda: os.path.exists(self.path)))
        self.client = Client(self.path)
        self.addCleanup(self.client.close)
        self.client.ping(10 * SLOW)

    def epoch(self):
        try:
            return self.client.ping(0.5 * SLOW).gateway_epoch
        except Timeout:
            return None  # it went down with the old gateway

    def start(self, n=300):
        """A long answer, up to its 20th event; (id, text so far, next seq)."""
        rid = self.client.send(generate("", temperature=0, max_tokens=n, ignore_end=True))
        text, seq = b"", 0
        while seq < 20:
            e = self.client.receive(20 * SLOW)
            text, seq = text + e.delta.text, e.seq
        return rid, text, seq + 1

    def finish(self, client, text, next_seq):
        while True:
            e = client.receive(60 * SLOW)
            if not e.seq:
                continue
            self.assertEqual(e.seq, next_seq)
            next_seq += 1
            text += e.delta.text
            if e.HasField("done"):
                return text, e.done
            self.assertFalse(e.HasField("error"), e)

    def test_gateway(self):
        rid, text, next_seq = self.start()
        before = self.client.ping(10 * SLOW).gateway_epoch
        os.kill(self.daemon.child(GATEWAY), signal.SIGKILL)
        # The pings of a client that waits: the epoch tells.
        self.assertTrue(wait_until(lambda: self.epoch() not in (before, None)))
        r = pb.Request(id=rid)
        r.resume.next_seq = next_seq
        self.client.send(r)
        text, done = self.finish(self.client, text, next_seq)
        self.assertEqual(text[:len(STORY)], STORY)
        self.assertEqual((done.reason, done.n_new), (pb.Done.LENGTH, 300))

    def test_gateway_is_back_soon(self):
        seconds = []
        for _ in range(5):
            time.sleep(1.1)  # a second death within a second waits 50 ms
            os.kill(self.daemon.child(GATEWAY), signal.SIGKILL)
            start = time.monotonic()
            with Client(self.path, reconnect_ivl=2) as fresh:
                fresh.ping(20 * SLOW)
            seconds.append(time.monotonic() - start)
        print("back after", [round(s * 1000) for s in seconds], "ms", file=sys.stderr)
        self.assertLess(min(seconds), 0.1 * SLOW)

    def test_engine(self):
        _, text, next_seq = self.start()
        engine = self.daemon.child("pipit-engine")
        os.kill(engine, signal.SIGKILL)
        text, done = self.finish(self.client, text, next_seq)
        self.assertEqual(text[:len(STORY)], STORY)
        self.assertEqual((done.reason, done.n_new, done.replay), (pb.Done.LENGTH, 300, pb.Done.REPLAY_EXACT))
        self.assertNotEqual(self.daemon.child("pipit-engine"), engine)

    def test_shutdown(self):
        _, text, next_seq = self.start(500)
        start = time.monotonic()
        self.daemon.process.send_signal(signal.SIGTERM)
        _, done = self.finish(self.client, text, next_seq)
        self.assertEqual(done.reason, pb.Done.SHUTDOWN)
        self.assertEqual(self.daemon.process.wait(10 * SLOW), 0)
        self.assertLess(time.monotonic() - start, 2 * SLOW)
        self.assertFalse(os.path.exists(f"/proc/{self.daemon.process.pid}"))
        self.assertEqual(os.listdir(self.daemon.folder), ["log"], "nothing is left behind")
        self.assertNotIn(GATEWAY, self.daemon.text())

    def test_a_start_that_fails(self):
        """The cause is the engine's to tell, and nobody else's noise."""
        d = Daemon(model="/nowhere/m.gguf", gateway="yes", wait=False)
        self.assertEqual(d.process.wait(20 * SLOW), 6)
        self.assertIn("/nowhere/m.gguf", d.text())
        self.assertNotIn(GATEWAY, d.text())
        d.stop()

    def test_vanished_client_is_cancelled(self):
        with Client(self.path) as other:
            other.send(generate("", temperature=0, max_tokens=500, ignore_end=True))
            other.receive(20 * SLOW)
        lane = self.daemon.ready()
        self.addCleanup(lane.close)
        self.assertTrue(wait_until(lambda: lane.status().n_running == 0, 5 * SLOW))


if __name__ == "__main__":
    unittest.main(verbosity=2)
