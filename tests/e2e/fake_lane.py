# SPDX-License-Identifier: Apache-2.0
"""A front for testing the command line alone: a listening lane.sock in a folder, any number of clients,
and prompts that say what to do (in the last message, or the raw prompt):

    echo TEXT      TEXT as one token a word, then Done stop
    count N        N tokens "0 ", "1 ", ...
    hang           accepted, one token "begun", then nothing until cancelled
    deaf           the same, but a cancel is ignored
    lone           accepted, then nothing until cancelled
    flood N        N tokens of 200 bytes
    slow N         N tokens, 50 ms apart
    progress       three PROGRESS records 400 ms apart, then one token
    die N          N tokens, then the connection ends; RESUME brings two more and Done
    forget         one token, then the connection ends; RESUME is answered NOT_FOUND
    garbage        one token, then a record of unknown type
    error CODE     LANE_ERROR with that code (number); busy, overflow, toolarge carry their counts
    reason N       one token, then Done with that reason
    alts           one token with two alternatives, one of them half a character
    limit          one token, then Done timeout after the request's own limit
    history        what messages there are, as role:length
    settings       the sampling numbers as text
"""
import array
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import time

from fake_front import (ACCEPTED, ALT, BULK, CANCEL, DONE, ERROR, HEADER, HELLO, HELLO_REPLY, LEASE, LEASE_GET,
                        LEASE_PUT, PING, PONG, PROGRESS, REQUEST, RESUME, STATUS, STATUS_GET, TEXT, TOKEN, items,
                        record)

MAX_REQUEST, C2E, E2C = 1 << 16, 1 << 18, 1 << 17
STATES = {"unloaded": 0, "loading": 1, "ready": 2, "failed": 3, "stopping": 4}


class Job:
    def __init__(self, rid):
        self.rid, self.seq, self.cancelled = rid, 0, threading.Event()
        self.conn = None
        self.resumed = threading.Event()


class Conn:
    def __init__(self, front, sock):
        self.front, self.sock, self.lock = front, sock, threading.Lock()
        self.granted, self.n_bufs = {0: MAX_REQUEST, 1: 0}, 1

    def send(self, raw):
        with self.lock:
            self.sock.send(raw)

    def serve(self):
        try:
            while True:
                raw = self.sock.recv(4096)
                if not raw:
                    break
                assert len(raw) == 256, len(raw)
                self.handle(raw)
        except (BrokenPipeError, ConnectionError, OSError):
            pass
        self.sock.close()
        with self.front.mutex:
            self.front.n_open -= 1
        for job in list(self.front.jobs.values()):
            if job.conn is self:
                job.cancelled.set()
                self.front.vanished.append(job.rid)

    def error(self, code, text, rid=bytes(16), retry=0, a=0, b=0):
        self.send(record(ERROR, struct.pack("<IiIIQQ", code, 0, retry, 0, a, b) + text.encode().ljust(184, b"\0"), rid))

    def hello_body(self):
        f = self.front
        return (struct.pack("<IHHIIQQQQQIIIIiiII", 0x54504950, f.abi, 0, 256, 0, 11, 22, 33, C2E, E2C,
                            STATES[f.state], 500, MAX_REQUEST, 1 << 17, 512, 512, 1, 7) + b"fake model".ljust(64, b"\0"))

    def handle(self, raw):
        kind, flags, _, rid, _ = HEADER.unpack_from(raw)
        body = raw[32:]
        self.front.records.append((kind, rid, body))
        if kind == HELLO:
            self.hello()
        elif kind == PING:
            self.send(record(PONG, self.hello_body()))
        elif kind == STATUS_GET:
            self.send(record(STATUS, struct.pack("<QQIIIIII", 11, 22, STATES[self.front.state], 500, 1, 2, 3, 4)
                             + struct.pack("<QQQQQQqqii", 5, 6, 7, 8 << 20, 9 << 20, 10 << 20, 11, 12 * 10**9, 512, 4)
                             + b"fake model".ljust(64, b"\0") + b"none".ljust(32, b"\0")))
        elif kind == LEASE_GET:
            arena, _, _, _, _, length = struct.unpack_from("<IIIIQQ", body)
            if length > (C2E if arena == 0 else E2C) - self.granted[arena]:
                self.error(13, "no room", a=length, b=1)
                return
            self.n_bufs += 1
            self.send(record(LEASE, struct.pack("<IIIIQQ", arena, self.n_bufs, 7, 0, self.granted[arena], length)))
            self.granted[arena] += (length + 63) // 64 * 64
        elif kind == LEASE_PUT:
            pass
        elif kind == REQUEST:
            self.request(rid, body, flags)
        elif kind == CANCEL:
            job = self.front.jobs.get(rid)
            if not job:
                self.error(9, "no request of that id is known (any more)", rid)
            else:
                job.cancelled.set()
                if job.conn is not self:
                    self.send(record(DONE, struct.pack("<I", 4).ljust(112, b"\0"), rid))
        elif kind == RESUME:
            self.resume(rid, body)
        else:
            raise AssertionError(f"record {kind}")

    def hello(self):
        f = self.front
        if f.hello == "silent":
            return
        if f.hello == "busy":
            self.error(5, "all lanes are taken", retry=1500)
            self.sock.shutdown(socket.SHUT_RDWR)
            return
        fds = []
        for size in (C2E, E2C):
            fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            fds.append(fd)
        self.c2e, self.e2c = mmap.mmap(fds[0], C2E), mmap.mmap(fds[1], E2C)
        self.sock.sendmsg([record(HELLO_REPLY, self.hello_body())],
                          [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        for fd in fds:
            os.close(fd)

    def event(self, job, kind, body):
        job.seq += 1
        self.send(record(kind, body, job.rid, job.seq))

    def token(self, job, text, token=None, n_alts=0):
        raw = text.encode() if isinstance(text, str) else text
        index = job.seq
        self.event(job, TOKEN, struct.pack("<iifHH", index, index if token is None else token, -0.25, len(raw), n_alts)
                   + raw)
        job.n_new += 1

    def done(self, job, reason=1):
        self.event(job, DONE, struct.pack("<IiiiqqqqQQqqIIQ", reason, 10, 2, job.n_new, 10**6, 2 * 10**6, 3 * 10**6, 0,
                                          1 << 20, 2 << 20, 7, 8, 0, 0, 2**64 - 1))
        job.conn = None

    def request(self, rid, body, flags):
        kind, urgency, buf, gen, n, timeout, out_buf, _ = struct.unpack_from("<IiIIIIII", body)
        tlv = items(bytes(self.c2e[:n]))
        assert buf == 1 and gen == 7
        texts = [v for t, v in tlv if t in (1, 5)]
        text = texts[-1].decode() if texts else ""
        job = Job(rid)
        job.conn, job.n_new = self, 0
        self.front.jobs[rid] = job
        self.front.requests.append({"kind": kind, "timeout": timeout, "flags": flags, "items": tlv, "text": text})
        word, _, rest = text.partition(" ")
        if word == "error":
            code = {"busy": 5, "overflow": 6, "toolarge": 13}.get(rest) or int(rest)
            self.error(code, f"this is error {code}", rid, retry=1500 if code == 5 else 0, a=700 if code in (6, 13) else 0,
                       b=512 if code in (6, 13) else 0)
            job.conn = None
            return
        self.event(job, ACCEPTED, struct.pack("<QQI", 11, 22, 0))
        if kind == 3:
            ids = list(text.encode())
            if out_buf:
                self.e2c[0:4 * len(ids)] = struct.pack(f"<{len(ids)}i", *ids)
                self.event(job, BULK, struct.pack("<IIIIQIIQQ", 1, out_buf, 7, len(ids), 0, len(ids), 1, 4 * len(ids), 0))
            else:
                for i in ids:
                    self.token(job, "", token=i)
            self.done(job)
        elif kind == 4:
            ids = next(v for t, v in tlv if t == 2)
            raw = bytes(ids[::4])
            for at in range(0, len(raw), 200):
                part = raw[at:at + 200]
                self.event(job, TEXT, struct.pack("<iifHH", 0, -1, 0, len(part), 0) + part)
            self.done(job)
        else:
            threading.Thread(target=self.act, args=(job, word, rest, tlv, timeout), daemon=True).start()

    def act(self, job, word, rest, tlv, timeout):
        try:
            self.play(job, word, rest, tlv, timeout)
        except OSError:
            pass

    def play(self, job, word, rest, tlv, timeout):
        sampling = next((v for t, v in tlv if t == 8), None)
        if word == "echo":
            for i, w in enumerate(rest.split(" ")):
                self.token(job, w if i == 0 else " " + w)
            self.done(job)
        elif word in ("count", "flood", "slow"):
            for i in range(int(rest)):
                if job.cancelled.is_set():
                    self.done(job, 4)
                    return
                self.token(job, b"x" * 200 if word == "flood" else f"{i} ")
                if word == "slow":
                    time.sleep(0.05)
            self.done(job)
        elif word in ("hang", "deaf", "lone"):
            if word != "lone":
                self.token(job, "begun")
            if word == "deaf":
                time.sleep(60)
            job.cancelled.wait(60)
            self.done(job, 4)
        elif word == "progress":
            for i in range(3):
                time.sleep(0.4)
                self.send(record(PROGRESS, struct.pack("<II", i * 100, 300), job.rid))
            self.token(job, "read")
            self.done(job)
        elif word in ("die", "forget"):
            for i in range(int(rest or 1)):
                self.token(job, f"{i} ")
            if word == "forget":
                del self.front.jobs[job.rid]
            job.conn = None
            self.sock.shutdown(socket.SHUT_RDWR)
        elif word == "garbage":
            self.token(job, "good")
            self.send(record(0x7777))
        elif word == "reason":
            self.token(job, "some")
            self.done(job, int(rest))
        elif word == "alts":
            for rank, raw in enumerate((b"one", b"\xc3")):
                self.event(job, ALT, struct.pack("<iifHH", 0, 40 + rank, -0.5 - rank, rank, len(raw)) + raw)
            self.token(job, "one", n_alts=2)
            self.done(job)
        elif word == "limit":
            self.token(job, "some")
            job.cancelled.wait(timeout / 1000)
            self.done(job, 5)
        elif word == "history":
            roles = [v.decode() for t, v in tlv if t == 4]
            sizes = [len(v) for t, v in tlv if t == 5]
            self.token(job, ",".join(f"{r}:{n}" for r, n in zip(roles, sizes)))
            self.done(job)
        elif word == "settings":
            self.token(job, repr(struct.unpack("<ffffffiiiiIiQ", sampling)))
            self.done(job)
        else:
            self.token(job, f"unknown word {word}"[:200])
            self.done(job)

    def resume(self, rid, body):
        next_seq, = struct.unpack_from("<Q", body)
        job = self.front.jobs.get(rid)
        if not job:
            self.error(9, "no request of that id is known (any more)", rid)
            return
        assert next_seq == job.seq + 1, (next_seq, job.seq)
        job.conn = self
        self.token(job, "back ")
        self.token(job, "again")
        self.done(job)


class LaneFront:
    def __init__(self, folder, hello="normal", state="ready", abi=1):
        self.folder, self.hello, self.state, self.abi = folder, hello, state, abi
        self.jobs, self.requests, self.records, self.vanished = {}, [], [], []
        self.mutex, self.n_open, self.n_lanes = threading.Lock(), 0, 0
        self.path = os.path.join(folder, "lane.sock")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(self.path)
        self.sock.listen(16)
        self.stopping = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopping:
            if select.select([self.sock], [], [], 0.05)[0]:
                conn, _ = self.sock.accept()
                with self.mutex:
                    self.n_open += 1
                    self.n_lanes += 1
                threading.Thread(target=Conn(self, conn).serve, daemon=True).start()

    def stop(self):
        self.stopping = True
        self.thread.join(5)
        self.sock.close()
        os.unlink(self.path)

    def cancelled(self):
        return [rid for kind, rid, _ in self.records if kind == CANCEL]
