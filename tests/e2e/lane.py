# SPDX-License-Identifier: Apache-2.0
"""The lane protocol in Python, written from the text of proto/lane/record.h and tlv.h: hello with
descriptors, leases, requests, events, RESUME. Independent of libpipit; used by the tests of pipitd."""
import array
import mmap
import os
import select
import socket
import struct
import time

HEADER = struct.Struct("<HHI16sQ")
HELLO, LEASE_GET, LEASE_PUT, REQUEST, CANCEL, RESUME, PING, STATUS_GET, METRICS_GET, CREDIT, SESSION, CONTROL = range(1, 13)
(HELLO_REPLY, LEASE, ACCEPTED, PROGRESS, TOKEN, TEXT, ALT, BULK, DONE, ERROR, PONG, STATUS) = range(0x40, 0x4c)
F_DETACH, F_PRINCIPAL, F_PROGRESS, F_REPLAYED, F_SESSION = 1, 2, 4, 8, 16
GENERATE, CHAT, TOKENIZE, DETOKENIZE, SCORE, EMBED = range(1, 7)
T_PROMPT, T_TOKENS, T_SYSTEM, T_ROLE, T_CONTENT, T_POLICY, T_STOP, T_SAMPLING, T_SCHEMA, T_SESSION = range(1, 11)
T_TOOLS, T_REASONING, T_CALL, T_NAME, T_ARGUMENTS, T_CALL_ID = range(11, 17)
S_SEED, S_IGNORE_END, S_GREEDY, S_LOGITS, S_NO_DRAFT = 1, 2, 4, 8, 128
C2E, E2C = 0, 1
LOAD, UNLOAD, DRAIN, RELOAD = range(1, 5)
STATES = ["unloaded", "loading", "ready", "failed", "stopping"]
REASONS = [None, "stop", "length", "context", "cancelled", "timeout", "slow_consumer", "shutdown", "error", "tool_calls"]
ERRORS = [None, "INVALID", "PROTOCOL", "ABI", "DENIED", "BUSY", "CONTEXT_OVERFLOW", "NO_MEMORY", "UNSUPPORTED",
          "NOT_FOUND", "MODEL", "ENGINE_CRASHED", "SHUTDOWN", "TOO_LARGE", "INTERNAL"]
MAGIC = 0x54504950

BODIES = {  # type: (format, field names); `text` and names are bytes
    HELLO_REPLY: ("<IHHIIQQQQQIIIIiiII64s", "magic major minor record_bytes features front_epoch model_epoch lane_id "
                  "c2e_bytes e2c_bytes state progress max_request_bytes max_lease_bytes ctx n_vocab request_buf "
                  "request_generation model"),
    LEASE: ("<IIIIQQ", "arena buf generation pad offset length"),
    ACCEPTED: ("<QQI", "front_epoch model_epoch n_ahead"),
    PROGRESS: ("<III", "n_done n_total phase"),
    TOKEN: ("<iifHH200s", "index token logprob text_len n_alts text"),
    ALT: ("<iifHH128s", "index token logprob rank text_len text"),
    BULK: ("<IIIIQIIQQ", "kind buf generation window row0 n_rows n_cols n_bytes offset"),
    DONE: ("<IiiiqqqqQQqqIIQIiQ96siiII", "reason n_prompt n_cached n_new queue_ns prefill_ns decode_ns load_ns kv_bytes "
           "kv_bytes_full n_slots n_evicted replay stop_index seed "
           "session session_err session_bytes session_cause n_drafted n_accepted n_calls broken"),
    ERROR: ("<IiIIQQ184s", "code err retry_after_ms pad count_a count_b text"),
    STATUS: ("<QQIIIIIIQQQQQQqqii64s32s", "front_epoch model_epoch state progress n_running n_queued n_lanes "
             "n_restarts n_requests n_prompt_tokens n_new_tokens kv_bytes_used kv_bytes_total plan_bytes step_age_ns "
             "uptime_ns ctx n_seqs model backend"),
}
BODIES[TEXT] = BODIES[TOKEN]
BODIES[PONG] = BODIES[HELLO_REPLY]


class Record:
    """One record from the daemon: type, flags, id, seq, and the body's fields."""

    def __init__(self, raw):
        assert len(raw) == 256, len(raw)
        self.type, self.flags, size, self.id, self.seq = HEADER.unpack_from(raw)
        fmt, names = BODIES[self.type]
        assert 32 + struct.calcsize(fmt) <= size <= 256, (self.type, size)
        for name, value in zip(names.split(), struct.unpack_from(fmt, raw, 32)):
            setattr(self, name, value)
        if self.type in (TOKEN, TEXT, ALT):
            self.text = self.text[:self.text_len]
        elif self.type == ERROR:
            self.text, self.code = self.text.split(b"\0")[0].decode(), ERRORS[self.code]
        elif self.type == DONE:
            self.reason = REASONS[self.reason]

    def __repr__(self):
        return str({k: v for k, v in vars(self).items() if k != "id"})


def pack(kind, body=b"", rid=bytes(16), flags=0):
    return (HEADER.pack(kind, flags, 32 + len(body), rid, 0) + body).ljust(256, b"\0")


def item(kind, data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<HHI", kind, 0, len(data)) + data + bytes(-len(data) % 8)


def order(text):
    """What the tests' engine is to do (engine_hooks.c), as an item of the request; after its other stop strings."""
    return item(T_STOP, "\x01" + text)


def sampling(temperature=0.0, top_p=1.0, min_p=0.0, top_k=0, max_tokens=0, n_logprobs=-1, flags=0, score_first=0,
             seed=None):
    flags |= S_SEED if seed is not None else 0
    return item(T_SAMPLING, struct.pack("<ffffffiiiiIiQ", temperature, top_p, min_p, 1.0, 0.0, 0.0, top_k, 64,
                                        max_tokens, n_logprobs, flags, score_first, seed or 0))


class Refused(AssertionError):
    """A hello that was answered with an error; its record."""


class Lane:
    """A connection; connects and says hello. Blocking, with a time limit on every wait."""

    def __init__(self, folder, c2e=0, e2c=0, hello=True, timeout=20.0, door="lane.sock"):
        self.timeout, self.fds = timeout, []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        try:
            self.sock.connect(os.path.join(folder, door))
        except OSError:
            self.sock.close()
            raise
        self.pending = []
        if hello:
            try:
                self.send(HELLO, struct.pack("<IHHIIQQ32s", MAGIC, 1, 0, 256, 0, c2e, e2c, b"lane.py"))
            except BrokenPipeError:
                pass  # refused before a word: why lies in the socket
            raw, anc = self.recv_raw()
            for level, kind, data in anc:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self.fds += array.array("i", data[:len(data) // 4 * 4])
            if not raw:
                raise EOFError
            self.hello = Record(raw)
            if self.hello.type != HELLO_REPLY:
                self.sock.close()
                raise Refused(self.hello)
            assert self.hello.magic == MAGIC and len(self.fds) == 2
            self.c2e = mmap.mmap(self.fds[0], self.hello.c2e_bytes)
            self.e2c = mmap.mmap(self.fds[1], self.hello.e2c_bytes, prot=mmap.PROT_READ)

    def close(self):
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def send(self, kind, body=b"", rid=bytes(16), flags=0):
        self.sock.send(pack(kind, body, rid, flags))

    def recv_raw(self):
        """Bytes and descriptors. A peer that left something of ours unread shows as a reset, once, before what it said."""
        try:
            return self.sock.recvmsg(512, socket.CMSG_SPACE(16))[:2]
        except ConnectionResetError:
            return self.sock.recvmsg(512, socket.CMSG_SPACE(16))[:2]

    def recv(self, timeout=None):
        self.sock.settimeout(self.timeout if timeout is None else timeout)
        raw, _ = self.recv_raw()
        if not raw:
            raise EOFError
        return Record(raw)

    def readable(self, timeout=0.0):
        return bool(select.select([self.sock], [], [], timeout)[0])

    def lease(self, arena, length):
        self.send(LEASE_GET, struct.pack("<IIIIQQ", arena, 0, 0, 0, 0, length))
        return self.recv()

    def put(self, lease):
        self.send(LEASE_PUT, struct.pack("<IIIIQQ", lease.arena, lease.buf, lease.generation, 0, 0, 0))

    def status(self):
        self.send(STATUS_GET)
        return self.recv()

    def request(self, items, kind=GENERATE, rid=None, flags=0, timeout_ms=0, out=None, tokens=None, urgency=0,
                uid=0, tenant=b""):
        """Sends a request; its id. `out` a lease for output, `tokens` (lease, bytes)."""
        rid = rid or os.urandom(16)
        self.c2e[:len(items)] = items
        self.send(REQUEST, struct.pack(
            "<IiIIIIIIIIQII64s", kind, urgency, self.hello.request_buf, self.hello.request_generation, len(items),
            timeout_ms, out.buf if out else 0, out.generation if out else 0, tokens[0].buf if tokens else 0,
            tokens[0].generation if tokens else 0, tokens[1] if tokens else 0, uid, len(tenant), tenant), rid, flags)
        return rid

    def control(self, op, limit_ms=0):
        """LOAD, UNLOAD, DRAIN, RELOAD; the pong or error."""
        self.send(CONTROL, struct.pack("<II", op, limit_ms))
        return self.recv()

    def resume(self, rid, next_seq=1):
        self.send(RESUME, struct.pack("<QII64s", next_seq, 0, 0, b""), rid)

    def cancel(self, rid):
        self.send(CANCEL, struct.pack("<II64s", 0, 0, b""), rid)

    def events(self, rid, timeout=None):
        """The request's events, seq checked, up to and with the last one."""
        seq = None
        while True:
            e = self.recv(timeout)
            if e.id != rid:
                continue
            if e.seq:
                assert seq is None or e.seq == seq + 1, (seq, e)
                seq = e.seq
            yield e
            if e.type in (DONE, ERROR):
                return

    def wait_ready(self, timeout=20.0):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            s = self.status()
            if STATES[s.state] == "ready":
                return s
            time.sleep(0.01)
        raise TimeoutError(STATES[s.state])


def text_of(events):
    return b"".join(e.text for e in events if e.type in (TOKEN, TEXT))


def prompt(text, n=20, **kw):
    return item(T_PROMPT, text) + sampling(max_tokens=n, **kw)
