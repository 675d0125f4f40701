# SPDX-License-Identifier: Apache-2.0
"""What hostile programs of one user do to the sockets, each as a function of a folder and a random.Random. They end by
themselves after a moment; whatever the daemon does to their connection is right, as long as others do not feel it. Where
nobody listens they raise what connect() says: an attack that met nobody was none."""
import array
import ctypes
import errno
import mmap
import os
import random
import signal
import socket
import struct
import time

import lane as lane_py
from lane import (BULK, C2E, CREDIT, DONE, DRAIN, E2C, EMBED, ERROR, F_DETACH, F_SESSION, GENERATE, HELLO, LEASE, LEASE_GET, LEASE_PUT, LOAD,
                  PONG, RELOAD, REQUEST, RESUME, S_IGNORE_END, S_LOGITS, SCORE, SESSION, T_PROMPT, T_SESSION, TOKENIZE, UNLOAD, Lane, item, pack,
                  prompt, sampling)

TYPES = list(range(0, 14)) + list(range(0x40, 0x4e)) + list(range(0x100, 0x108)) + list(range(0x140, 0x144)) + [0xffff]


LIBC = ctypes.CDLL(None, use_errno=True)


def connect(folder, **kw):
    return Lane(folder, timeout=5.0, **kw)


def drain(lane, seconds=0.05):
    """Reads what comes; so the kernel takes what we send."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and lane.readable(0.01):
        if not lane.sock.recv(512):
            raise EOFError


def hello(rng):
    return pack(HELLO, struct.pack("<IHHIIQQ32s", lane_py.MAGIC, 1, 0, 256, 0, 0, 0, b"attack"))


def wrong_records(folder, rng):
    """Records of every kind, also those that only the front or the engine may send, with anything in them."""
    for _ in range(10):
        lane = connect(folder)
        try:
            for _ in range(rng.randrange(1, 8)):
                r = bytearray(rng.randbytes(256))
                struct.pack_into("<HHI", r, 0, rng.choice(TYPES), rng.choice((0, 1, 2, 16, rng.randrange(65536))),
                                 rng.choice((256, 32, 0, rng.randrange(2**32))))
                lane.sock.send(bytes(r[:rng.choice((256, 256, 256, 0, 31, 255))]))
            drain(lane)
        finally:
            lane.close()


def bent_records(folder, rng):
    """Records that were right before a few bits of them were turned over."""
    lane = connect(folder)
    try:
        lease = lane.lease(E2C, 4096)
        for _ in range(60):
            right = rng.choice((
                pack(LEASE_GET, struct.pack("<IIIIQQ", rng.randrange(2), 0, 0, 0, 0, 4096)),
                pack(LEASE_PUT, struct.pack("<IIIIQQ", E2C, lease.buf, lease.generation, 0, 0, 0)),
                pack(REQUEST, struct.pack("<IiIIIIIIIIQII64s", GENERATE, 0, lane.hello.request_buf,
                                          lane.hello.request_generation, 64, 100, lease.buf, lease.generation, 0, 0, 0, 0, 0,
                                          b""), rng.randbytes(16)),
                pack(RESUME, struct.pack("<QII64s", 1, 0, 0, b""), rng.randbytes(16)),
                pack(CREDIT, struct.pack("<Q", rng.randrange(2**64)), rng.randbytes(16)),
                pack(11, struct.pack("<IIII72s", 1, lease.buf, lease.generation, 0, b"name"))))
            r = bytearray(right)
            for _ in range(rng.randrange(1, 4)):
                r[rng.randrange(160)] ^= 1 << rng.randrange(8)
            lane.sock.send(bytes(r))
            if lane.readable() and not lane.sock.recv(512):
                return
    finally:
        lane.close()


def leases(folder, rng):
    """Reused, freed, foreign, lent twice, put while the engine writes to them."""
    lane, other = connect(folder), connect(folder)
    try:
        out, foreign = lane.lease(E2C, 8192), other.lease(E2C, 8192)
        rid = lane.request(prompt("Once", 0, flags=S_IGNORE_END), out=out)
        lane.put(out)
        lane.request(prompt("Once", 5), out=out)
        lane.request(prompt("Once", 5), out=foreign)
        lane.request(sampling(max_tokens=5), tokens=(out, 64))
        lane.put(foreign)
        drain(lane)
        lane.cancel(rid)
        for _ in range(80):
            lane.send(LEASE_GET, struct.pack("<IIIIQQ", rng.randrange(3), rng.randrange(70), rng.randrange(9), 0, rng.randrange(2**33),
                                             rng.choice((0, 1, 4096, 1 << 19, 2**63, rng.randrange(2**20)))))
            lane.send(LEASE_PUT, struct.pack("<IIIIQQ", rng.randrange(2), rng.randrange(70), rng.randrange(200), 0, 0, 0))
            drain(lane, 0.02)
    finally:
        lane.close()
        other.close()


def punch(fd, size):
    """Makes a hole of all of a file that may be written: its pages are given back while others have them mapped."""
    keep_size, punch_hole = 1, 2
    if LIBC.fallocate(fd, keep_size | punch_hole, ctypes.c_long(0), ctypes.c_long(size)):
        raise SystemExit(f"no hole: {os.strerror(ctypes.get_errno())}")


def scribble(folder, rng):
    """Writes into every byte that a client may write to while the daemon reads it; asks for what it may not."""
    lane = connect(folder)
    try:
        try:
            mmap.mmap(lane.fds[1], 4096)
            raise SystemExit("what the daemon writes can be mapped for writing")
        except PermissionError:
            pass
        ids = lane.lease(C2E, 4096)
        out = lane.lease(E2C, 64 << 10)
        for fd in lane.fds:
            for size in (0, 4096, 1 << 30):
                try:
                    os.ftruncate(fd, size)
                    if size != os.fstat(fd).st_size or size in (0, 4096):
                        raise SystemExit("an arena's size can be changed")
                except OSError:
                    pass
        noise = rng.randbytes(1 << 16)
        for _ in range(6):
            lane.c2e[ids.offset:ids.offset + 4096] = struct.pack("<1024i", *(rng.randrange(512) for _ in range(1024)))
            kind = rng.choice((GENERATE, TOKENIZE, SCORE))
            lane.request(item(T_PROMPT, "time " * 50) + sampling(max_tokens=20), kind=kind)
            lane.request(sampling(max_tokens=20), tokens=(ids, 512), out=out)
            for at in range(0, len(lane.c2e), len(noise)):
                lane.c2e[at:at + len(noise)] = noise[:len(lane.c2e) - at]
            punch(lane.fds[0], len(lane.c2e))  # the pages go, under whoever reads them
            drain(lane)
    finally:
        lane.close()


def stopped(folder, rng):
    """A client that the kernel stops in one of its stages, for longer than a reader may stall, and lets go on."""
    stage = rng.randrange(4)
    pid = os.fork()
    if pid == 0:
        try:
            def here(n):
                if n == stage:
                    os.kill(os.getpid(), signal.SIGSTOP)
            lane = connect(folder)
            here(0)
            out = lane.lease(E2C, 64 << 10)
            here(1)
            rid = lane.request(item(T_PROMPT, "time " * 50) + sampling(max_tokens=20), kind=SCORE, out=out)
            here(2)
            lane.recv()
            lane.send(CREDIT, struct.pack("<Q", 1), rid)
            here(3)
            lane.request(prompt("Once", 300))
            drain(lane)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        time.sleep(rng.random() * 1.5)
        os.kill(pid, rng.choice((signal.SIGCONT, signal.SIGKILL)))
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)


KEPT = []


def keep_mapped(folder, rng):
    """Fills its arena, closes the connection and keeps the mapping: the memory must be given back all the same."""
    lane = connect(folder)
    lane.c2e[:] = b"\xaa" * len(lane.c2e)
    fd = os.dup(lane.fds[0])
    lane.request(prompt("Once", 0, flags=S_IGNORE_END))
    lane.close()
    KEPT.append((lane.c2e, lane.e2c, fd))
    end = time.monotonic() + 20
    while os.fstat(fd).st_blocks and time.monotonic() < end:
        time.sleep(0.01)
    if os.fstat(fd).st_blocks:
        raise SystemExit(f"a closed lane's arena still holds {os.fstat(fd).st_blocks * 512} bytes")
    if len(KEPT) > 20:
        for old in KEPT[:10]:
            os.close(old[2])
        del KEPT[:10]


def io_uring():
    """A new one's descriptor, or -1: the system call is 425 wherever there is it."""
    params = ctypes.create_string_buffer(120)
    return LIBC.syscall(425, 4, params)


def descriptors(folder, rng):
    """253 descriptors in a message, of all sorts: also closed ones (what is sent is then refused by the kernel, here) and an
    io_uring's, where the kernel has that."""
    lane = connect(folder, hello=rng.random() < 0.5)
    sorts = [os.open("/dev/null", os.O_RDONLY), os.open("/", os.O_RDONLY), os.memfd_create("attack"), lane.sock.fileno()]
    pair = socket.socketpair()
    sorts += [s.fileno() for s in pair]
    ring = io_uring()
    sorts += [ring] if ring >= 0 else []
    closed = os.dup(sorts[0])
    os.close(closed)
    try:
        try:
            lane.sock.sendmsg([pack(7)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sorts[0], closed]))])
        except OSError as e:
            if e.errno != errno.EBADF:
                raise
        for _ in range(5):
            lane.sock.sendmsg([hello(rng) if rng.random() < 0.3 else pack(7)],
                              [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [rng.choice(sorts) for _ in range(253)]))])
            drain(lane)
    finally:
        lane.close()
        for s in pair:
            s.close()
        for fd in sorts[:3] + ([ring] if ring >= 0 else []):
            os.close(fd)


def connections(folder, rng):
    """Without a hello, with half of one, with none and a request, gone at once."""
    held = []
    for _ in range(40):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(2)
        try:
            s.connect(os.path.join(folder, "lane.sock"))
        except BlockingIOError:
            continue  # its queue of new ones is full
        try:
            what = rng.randrange(4)
            if what:
                s.send((hello(rng), hello(rng)[:100], pack(8))[what - 1])
        except OSError:
            pass
        held.append(s)
    time.sleep(rng.random() * 0.2)
    for s in held:
        s.close()


def requests(folder, rng):
    """Begun and left: cancelled, abandoned, detached, never read, without credit, of many ids and of one."""
    lane = connect(folder)
    try:
        same = rng.randbytes(16)
        out = lane.lease(E2C, 64 << 10)
        for i in range(rng.randrange(1, 12)):
            what = rng.randrange(6)
            if what == 0:
                lane.request(prompt("Once upon", 0, flags=S_IGNORE_END, n_logprobs=20))
            elif what == 1:
                lane.cancel(lane.request(prompt("time " * 90, 0, flags=S_IGNORE_END)))
            elif what == 2:
                lane.request(prompt("Once", 50), flags=F_DETACH)
            elif what == 3:
                lane.request(item(T_PROMPT, "time " * 40) + sampling(flags=S_LOGITS), kind=SCORE, out=out)
            elif what == 4:
                lane.request(prompt("Once", 9), rid=same)
            else:
                lane.request(rng.randbytes(rng.randrange(200)), kind=rng.randrange(8))
        if rng.random() < 0.5:
            drain(lane, 0.3)
    finally:
        lane.close()


def controls(folder, rng):
    """Orders about the model and the daemon, well formed: anybody may have it loaded, nobody but its owner may do more."""
    owner = os.stat(os.path.join(folder, "lane.sock")).st_uid
    may = os.geteuid() in (0, owner)
    lane = connect(folder)
    try:
        rid = lane.request(prompt("Once", 0, flags=S_IGNORE_END))
        for _ in range(60):
            op = LOAD if may else rng.choice((LOAD, UNLOAD, DRAIN, RELOAD))
            lane.send(12, struct.pack("<II", op, rng.choice((0, 1, 1000, 2**32 - 1))))
            while True:
                e = lane.recv()
                if e.type == PONG or (e.type == ERROR and e.id == bytes(16)):
                    break
            if op != LOAD and (e.type != ERROR or e.code != "DENIED"):
                raise SystemExit(f"order {op} of uid {os.geteuid()} was obeyed: {e!r}")
        lane.cancel(rid)
        drain(lane)
    finally:
        lane.close()


def embeddings(folder, rng):
    """Hidden states into leases that fit, that do not, that are put meanwhile; of texts and of ids; cancelled and left."""
    lane = connect(folder)
    try:
        out, small = lane.lease(E2C, 64 << 10), lane.lease(E2C, 64)
        ids = lane.lease(C2E, 4096)
        lane.c2e[ids.offset:ids.offset + 4096] = struct.pack("<1024i", *(rng.randrange(512) for _ in range(1024)))
        for _ in range(10):
            flags = rng.choice((0, 16, 32, 64, 96, rng.randrange(128)))  # pooling, length, and what is no flag of it
            rid = lane.request(item(T_PROMPT, "time " * rng.randrange(1, 90)) + sampling(flags=flags), kind=EMBED,
                               out=rng.choice((out, out, out, small, None)))
            what = rng.randrange(5)
            if what == 0:
                lane.cancel(rid)
            elif what == 1:
                lane.request(sampling(flags=flags), kind=EMBED, tokens=(ids, 4 * rng.randrange(1, 200)), out=out)
            elif what == 2:
                lane.put(out)
            elif what == 3:
                lane.request(item(T_PROMPT, "Once") + sampling(), kind=EMBED, flags=F_DETACH, out=out)
            elif [e.type for e in lane.events(rid)][-1] not in (DONE, ERROR):
                raise SystemExit("an embedding did not end")
            if what == 2:
                lane.send(LEASE_GET, struct.pack("<IIIIQQ", E2C, 0, 0, 0, 0, 64 << 10))
                out = lane.recv()
                while out.type != LEASE:
                    if out.type == ERROR and out.id == bytes(16):
                        return  # the old one is lent: it cannot be put
                    out = lane.recv()
            drain(lane, 0.02)
    finally:
        lane.close()


TEXT_BYTES = 262000  # a request's of the default --lane-bytes takes


def long_text(rng, n=None):
    """Up to 256 KiB."""
    n = n or rng.choice((100, 3000, 60000, TEXT_BYTES))
    return (rng.choice(("Once upon a time there was a girl. ", "zqxj", "a b ")) * (n // 4 + 1))[:n]


def mixture(folder, rng, what=None, n=None):
    """What is asked beside chats, as programs ask it: tokenizing, logits, hidden states and sessions, of texts of any length."""
    lane = Lane(folder, timeout=60 * float(os.environ.get("PIPIT_SLOW", "1")))
    try:
        out = lane.lease(E2C, 256 << 10)
        what = rng.randrange(5) if what is None else what
        if what == 0:
            rid = lane.request(item(T_PROMPT, long_text(rng, n)), kind=TOKENIZE, out=rng.choice((None, out)))
        elif what == 1:
            rid = lane.request(item(T_PROMPT, long_text(rng, n)) + sampling(flags=S_LOGITS), kind=SCORE, out=out)
        elif what == 2:
            rid = lane.request(item(T_PROMPT, long_text(rng, n)) + sampling(), kind=EMBED, out=out)
        elif what == 3:
            rid = lane.request(item(T_PROMPT, " and then") + item(T_SESSION, rng.choice("ab")) +
                               sampling(max_tokens=5, flags=S_IGNORE_END), flags=F_SESSION)
        else:
            rid = lane.request(prompt(long_text(rng, n), 5))
        row = 0
        for e in lane.events(rid):
            if e.type == BULK and what == 1:
                row += e.n_rows
                lane.send(CREDIT, struct.pack("<Q", row + 64), rid)
        if what == 3 and e.type == ERROR and e.code == "CONTEXT_OVERFLOW":
            for name in b"ab":  # full: they begin again
                lane.send(SESSION, struct.pack("<IIII72s", 2, 0, 0, 0, bytes([name])))
                lane.recv()
        return e
    finally:
        lane.close()


def warm(folder):
    """Each of them with the longest text: what the engine's allocator keeps of that is there."""
    for what in range(5):
        for seed in range(3):
            mixture(folder, random.Random(seed), what, TEXT_BYTES)


def mixes(which, folder, seed, stop, out, pause=0.0):
    """A process of the which-th user that does nothing else; what its requests ended with."""
    import common
    common.pin(which)
    common.humble()
    rng, counts = random.Random(seed), {}
    while not stop:
        try:
            e = mixture(folder, rng)
            name = e.reason if e.type == DONE else e.code
        except (OSError, EOFError, AssertionError) as e:
            name = type(e).__name__
        counts[name] = counts.get(name, 0) + 1
        time.sleep(pause)
    out.put(counts)


LANE = [mixture, wrong_records, bent_records, leases, scribble, stopped, keep_mapped, descriptors, connections, requests, controls, embeddings]

# ---- the gateway's socket ----

GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)


def raw(folder):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(2)
    s.connect(os.path.join(folder, "zmq.sock"))
    return s


def idle_connections(folder, rng, n=2000):
    held = [raw(folder)]
    try:
        for _ in range(n - 1):
            held.append(raw(folder))
    except OSError:
        pass
    time.sleep(1)
    for s in held:
        s.close()


def half_handshakes(folder, rng):
    held = []
    for _ in range(60):
        s = raw(folder)
        held.append(s)
        s.send(rng.choice((b"\xff", GREETING[:10], GREETING[:40], GREETING, GREETING + b"\x04\xff", rng.randbytes(64),
                           b"GET / HTTP/1.1\r\n\r\n")))
    time.sleep(rng.random())
    for s in held:
        s.close()


def peer(folder):
    """One that libzmq has let in: what comes before it has is the end of the connection, and no attack."""
    s = raw(folder)
    s.send(GREETING + b"\x04" + bytes([len(READY)]) + READY)
    got = b""
    while b"READY" not in got:
        more = s.recv(4096)
        if not more:
            raise EOFError
        got += more
    return s


def more_frames(folder, rng):
    s = peer(folder)
    size = rng.choice((0, 10, 1000, 60000))
    frames = (b"\x03" + struct.pack(">Q", size) + b"m" * size) * max(1, 200000 // (size + 9))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        s.sendall(frames)
    s.close()


def oversized_frames(folder, rng):
    s = peer(folder)
    size = rng.choice((2**20, 2**31, 2**40, 2**63 - 1, 2**64 - 1))
    s.send(b"\x02" + struct.pack(">Q", size))
    for _ in range(200):
        s.sendall(rng.randbytes(1 << 16))
    s.close()


def odd_messages(folder, rng):
    s = peer(folder)
    for _ in range(100):
        n = rng.randrange(200)
        s.sendall(b"\x02" + struct.pack(">Q", n) + rng.randbytes(n))
    s.close()


GATEWAY = [idle_connections, half_handshakes, more_frames, oversized_frames, odd_messages]
