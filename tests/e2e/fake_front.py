# SPDX-License-Identifier: Apache-2.0
"""A front for testing pipit-gateway alone: lane records over a socketpair, written from record.h's
text by hand (a second implementation of the lane), a journal, and prompts that say what to do:

    count N    N tokens "0 ", "1 ", ..., then Done stop
    alts N     the same with two alternatives before each token
    hang       accepted, then nothing until cancelled
    flood      tokens of 200 bytes without end, until cancelled
    busy       refused with BUSY
    silent     not even accepted, until cancelled
"""
import array
import fcntl
import mmap
import os
import select
import socket
import struct
import subprocess
import threading
import time

HEADER = struct.Struct("<HHI16sQ")
HELLO, LEASE_GET, LEASE_PUT, REQUEST, CANCEL, RESUME, PING, STATUS_GET, METRICS_GET, CREDIT = range(1, 11)
HELLO_REPLY, LEASE, ACCEPTED, PROGRESS, TOKEN, TEXT, ALT, BULK, DONE, ERROR, PONG, STATUS = range(0x40, 0x4c)
F_DETACH, F_PRINCIPAL, F_PROGRESS = 1, 2, 4
KIND = {1: "generate", 2: "chat", 3: "tokenize", 4: "detokenize", 5: "score"}
STOP, LENGTH, CONTEXT, CANCELLED = 1, 2, 3, 4
INVALID, BUSY, NOT_FOUND = 1, 5, 9
MAX_REQUEST, C2E, E2C = 1 << 16, 1 << 18, 1 << 17


def record(kind, body=b"", rid=bytes(16), seq=0, flags=0):
    return (HEADER.pack(kind, flags, 32 + len(body), rid, seq) + body).ljust(256, b"\0")


def items(raw):
    pos, out = 0, []
    while pos < len(raw):
        kind, flags, n = struct.unpack_from("<HHI", raw, pos)
        assert flags == 0
        out.append((kind, raw[pos + 8:pos + 8 + n]))
        assert not any(raw[pos + 8 + n:pos + 8 + n + -n % 8]), "padding"
        pos += 8 + n + -n % 8
    return out


class Job:
    def __init__(self, key):
        self.key, self.events, self.sent, self.over, self.flood = key, [], 0, False, False


class FakeFront:
    def __init__(self, gateway, folder, extra=(), start_delay=0.0, env=None):
        self.gateway, self.folder, self.extra, self.env = gateway, folder, list(extra), env
        self.jobs, self.requests, self.records = {}, [], []
        self.process, self.sock, self.stopping = None, None, False
        self.n_starts, self.paused = 0, False
        self.start_delay = start_delay
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @property
    def path(self):
        return os.path.join(self.folder, "zmq.sock")

    def stop(self):
        self.stopping = True
        if self.process:
            self.process.terminate()
        self.thread.join(10)

    def start_gateway(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        time.sleep(self.start_delay)
        self.process = subprocess.Popen(
            [self.gateway, "--lane-fd", str(theirs.fileno()), "--runtime-dir", self.folder, *self.extra],
            pass_fds=[theirs.fileno()], env=self.env)
        theirs.close()
        self.sock, self.attached = ours, set()
        self.n_starts += 1

    def run(self):
        while not self.stopping:
            self.start_gateway()
            try:
                self.serve()
            except (ConnectionError, BrokenPipeError):
                pass
            self.process.wait()
            self.sock.close()

    def serve(self):
        while True:
            flooding = [j for j in self.jobs.values() if j.flood and j.key in self.attached]
            ready, _, _ = select.select([self.sock], [], [], 0.0005 if flooding else 0.1)
            while self.paused:
                time.sleep(0.01)
            if ready:
                raw = self.sock.recv(256)
                if not raw:
                    return
                assert len(raw) == 256, len(raw)
                self.handle(raw)
            elif self.stopping:
                return
            for j in flooding:
                self.token(j, len(j.events), b"x" * 200)
                self.push(j)

    def handle(self, raw):
        kind, flags, size, rid, seq = HEADER.unpack_from(raw)
        body = raw[32:]
        self.records.append((kind, flags, rid, body))
        if kind == HELLO:
            magic, major = struct.unpack_from("<IH", body)
            assert magic == 0x54504950 and major == 1
            self.hello()
        elif kind == LEASE_GET:
            arena, _, _, _, _, length = struct.unpack_from("<IIIIQQ", body)
            free = (C2E if arena == 0 else E2C) - self.granted[arena]
            if length > free:
                self.send(record(ERROR, self.error(INVALID, b"no room")))
                return
            self.n_bufs += 1
            self.send(record(LEASE, struct.pack("<IIIIQQ", arena, self.n_bufs, 7, 0, self.granted[arena], length)))
            self.granted[arena] += length
        elif kind == REQUEST:
            self.request(flags, rid, body)
        elif kind == CANCEL:
            self.cancel(flags, rid, body)
        elif kind == RESUME:
            self.resume(flags, rid, body)
        elif kind == PING:
            self.send(record(PONG, self.hello_body()))
        elif kind == STATUS_GET:
            self.send(record(STATUS, struct.pack("<QQIIIIII", 11, 22, 2, 0, 1, 2, 3, 4)
                             + struct.pack("<QQQQQQqqii", 5, 6, 7, 8, 9, 10, 11, 12, 512, 4) + b"fake".ljust(64, b"\0")
                             + b"none".ljust(32, b"\0")))

    def hello_body(self):
        return (struct.pack("<IHHIIQQQQQIIIIiiII", 0x54504950, 1, 0, 256, 0, 11, 22, 33, C2E, E2C, 2, 1000,
                            MAX_REQUEST, MAX_REQUEST, 512, 512, 1, 7) + b"fake model".ljust(64, b"\0"))

    def hello(self):
        fds = []
        self.granted, self.n_bufs = {0: MAX_REQUEST, 1: 0}, 1
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

    def send(self, raw):
        self.sock.send(raw)

    @staticmethod
    def error(code, text, retry=0, a=0, b=0):
        return struct.pack("<IiIIQQ", code, -22, retry, 0, a, b) + text.ljust(184, b"\0")

    @staticmethod
    def principal(flags, body, at):
        uid, n = struct.unpack_from("<II", body, at)
        assert flags & F_PRINCIPAL and n <= 64
        return uid, bytes(body[at + 8:at + 8 + n])

    def request(self, flags, rid, body):
        kind, urgency, buf, gen, n, timeout = struct.unpack_from("<IiIIII", body)
        key = (*self.principal(flags, body, 48), rid)
        assert gen == 7 and buf >= 1
        # Buffers are granted one after the other: request_buf is 1, then the score buffer, then 3, 4 ...
        order = [1] + [r for r in range(2, 20)]
        c2e_bufs = [1] + [b for b in order[1:] if b != 2]
        at = c2e_bufs.index(buf) * MAX_REQUEST
        tlv = items(bytes(self.c2e[at:at + n]))
        self.requests.append({"kind": KIND[kind], "urgency": urgency, "timeout": timeout, "flags": flags, "uid": key[0],
                              "tenant": key[1], "items": tlv, "buf": buf})
        text = b"".join(v for t, v in tlv if t in (1, 5))
        if text == b"busy":
            self.send(record(ERROR, self.error(BUSY, b"queue full", retry=250), rid))
            return
        job = self.jobs[key] = Job(key)
        self.attached.add(key)
        if text == b"silent":
            return
        self.event(job, ACCEPTED, struct.pack("<QQI", 11, 22, 3))
        word, _, number = text.partition(b" ")
        if kind == 3:
            for i in range(len(text)):
                self.token(job, i, b"", token=text[i])
            self.done(job)
        elif kind == 4:
            ids = next(v for t, v in tlv if t == 2)
            self.event(job, TEXT, struct.pack("<iifHH", 0, -1, 0, len(ids) // 4, 0) + bytes(ids[::4]))
            self.done(job)
        elif kind == 5:
            n = len(text)
            self.e2c[0:4 * n] = struct.pack(f"<{n}f", *[-float(i) for i in range(n)])
            self.event(job, BULK, struct.pack("<IIIIQIIQQ", 2, 2, 7, 16384, 1, n, 1, 4 * n, 0))
            self.done(job)
        elif word in (b"count", b"alts"):
            if flags & F_PROGRESS:
                self.send(record(PROGRESS, struct.pack("<II", 5, 10), rid))
            for i in range(int(number)):
                if word == b"alts":
                    for rank in range(2):
                        self.event(job, ALT, struct.pack("<iifHH", i, 100 + rank, -1.5 - rank, rank, 1) + b"a")
                self.token(job, i, b"%d " % i)
            self.done(job, n_new=int(number))
        elif word == b"flood":
            job.flood = True
        elif word != b"hang":
            self.done(job)
        self.push(job)

    def token(self, job, index, text, token=None):
        self.event(job, TOKEN, struct.pack("<iifHH", index, index if token is None else token, -0.25, len(text), 0) + text)

    def event(self, job, kind, body):
        job.events.append(record(kind, body, job.key[2], len(job.events) + 1))

    def done(self, job, reason=STOP, n_new=0):
        self.event(job, DONE, struct.pack("<IiiiqqqqQQqqIIQ", reason, 10, 2, n_new, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 99))
        job.over, job.flood = True, False

    def push(self, job):
        if job.key in self.attached:
            while job.sent < len(job.events):
                self.send(job.events[job.sent])
                job.sent += 1

    def cancel(self, flags, rid, body):
        key = (*self.principal(flags, body, 0), rid)
        job = self.jobs.get(key)
        if not job or job.over:
            self.send(record(ERROR, self.error(NOT_FOUND, b"no such request"), rid))
            return
        self.done(job, CANCELLED)
        self.push(job)

    def resume(self, flags, rid, body):
        next_seq, = struct.unpack_from("<Q", body)
        key = (*self.principal(flags, body, 8), rid)
        job = self.jobs.get(key)
        if not job:
            self.send(record(ERROR, self.error(NOT_FOUND, b"no such request"), rid))
            return
        self.attached.add(key)
        job.sent = next_seq - 1
        self.push(job)
