# SPDX-License-Identifier: Apache-2.0
"""The blocking client: answers whole or token by token, scores, logits as NumPy views of the shared memory."""
from __future__ import annotations

import json
import secrets
import weakref
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from ._lib import ffi, lib
from ._request import Bulk, Prompt, Request
from ._types import Answer, Call, Done, PipitError, Token, check, text_of


class Lease:
    """A range of the memory shared with the daemon. The daemon writes, we read. A NumPy view holds its lease, and that
    the mapping, also after the client is closed: no view ever points to memory that is gone."""

    def __init__(self, client: "Client", n_bytes: int) -> None:
        p, e = ffi.new("struct pipit_lease **"), ffi.new("struct pipit_error *")
        check(lib.pipit_lease_get(client.c, lib.PIPIT_FROM_DAEMON, n_bytes, p, e), e, "lease")
        # The destructor's own reference keeps the client until the lease is back.
        self.c = ffi.gc(p[0], lambda lease, _client=client.c: lib.pipit_lease_put(lease))
        client._leases.add(self)

    def view(self, data: Any, shape: Sequence[int]) -> Any:
        """Rows of f32 at an address inside: a read-only array that shares the memory."""
        import numpy

        n = 1
        for d in shape:
            n *= d
        held = ffi.gc(ffi.cast("char *", data), lambda _data, _lease=self: None)
        array = numpy.frombuffer(ffi.buffer(held, n * 4), dtype="<f4").reshape(shape)
        array.flags.writeable = False
        return array


class Client:
    """A connection to pipitd. One thread at a time; a context manager.

        with pipit.Client() as c:
            print(c.chat("Why is the sky blue?").text)
    """

    def __init__(self, runtime_dir: Optional[str] = None, instance: Optional[str] = None, timeout: float = 5.0,
                 reconnect: float = 15.0, program: str = "python") -> None:
        p, e = ffi.new("struct pipit_client **"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_create(p), None, "client")
        self.c = ffi.gc(p[0], lib.pipit_client_destroy)
        self._requests: set[Request] = set()
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        try:
            if runtime_dir is not None:
                check(lib.pipit_client_set_runtime_dir(self.c, str(runtime_dir).encode()), None, "runtime_dir")
            if instance is not None:
                check(lib.pipit_client_set_instance(self.c, instance.encode()), None, "instance")
            check(lib.pipit_client_set_program(self.c, program.encode()[:31]), None, "program")
            check(lib.pipit_client_set_timeout_ms(self.c, int(timeout * 1000)), None, "timeout")
            check(lib.pipit_client_set_reconnect_ms(self.c, int(reconnect * 1000)), None, "reconnect")
            check(lib.pipit_client_connect(self.c, e), e, "connect")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for r in list(self._requests):
            r.close()
        self._requests.clear()
        c, self.c = self.c, ffi.NULL
        if c != ffi.NULL and not self._leases:
            ffi.release(c)  # else the last view's death closes it

    # ---- about the daemon ------------------------------------------------------------------

    def _open(self) -> Any:
        if self.c == ffi.NULL:
            raise PipitError("the client is closed")
        return self.c

    def info(self) -> dict[str, Any]:
        i = lib.pipit_client_info(self._open())
        return {"path": text_of(i.path), "model": text_of(i.model), "state": text_of(lib.pipit_state_name(i.state)),
                "ctx": i.ctx, "n_vocab": i.n_vocab, "max_request_bytes": i.max_request_bytes,
                "from_daemon_bytes": i.from_daemon_bytes, "hello_ns": i.hello_ns}

    def status(self) -> dict[str, Any]:
        p, e = ffi.new("const struct pipit_status **"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_status(self._open(), p, e), e, "status")
        s, names = p[0], ("n_running", "n_queued", "n_lanes", "n_restarts", "n_requests", "n_prompt_tokens",
                          "n_new_tokens", "kv_bytes_used", "kv_bytes_total", "plan_bytes", "step_age_ns", "uptime_ns",
                          "ctx", "n_seqs")
        return {"state": text_of(lib.pipit_state_name(s.state)), "model": text_of(s.model),
                "backend": text_of(s.backend), **{n: getattr(s, n) for n in names}}

    def report(self) -> dict[str, Any]:
        """What status() has no room for: the backend's whole name, why the model could not be loaded, and who holds the
        cache, by policy; what saving this user's sessions may write in 24 hours, with what is left of it; limits by option
        (0: none), and how many requests and clients were refused, by cause."""
        p, e = ffi.new("const struct pipit_report **"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_report(self._open(), p, e), e, "report")
        r, names = p[0], ("n_seqs", "n_requests", "n_slots", "kv_bytes", "n_evicted")
        return {"backend": text_of(r.backend), "cause": text_of(r.cause),
                **{n: getattr(r, n) for n in ("writes_limit", "writes_left", "written")},
                **{n: {text_of(v[i].name): v[i].value for i in range(count)}
                   for n, v, count in (("limits", r.limits, r.n_limits), ("refused", r.refused, r.n_refused))},
                "policies": [{"policy": text_of(u.policy), **{n: getattr(u, n) for n in names}}
                             for u in (r.policies[i] for i in range(r.n_policies))]}

    def sessions(self) -> list[dict[str, Any]]:
        """This user's saved conversations."""
        p, n, e = ffi.new("char **"), ffi.new("size_t *"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_sessions(self._open(), p, n, e), e, "sessions")
        lines = bytes(ffi.buffer(_owned(p[0]), n[0])).decode().splitlines()
        return [{"name": name, "bytes": int(size), "modified": int(when)}
                for name, size, when in (line.split("\t")[:3] for line in lines)]

    def session_remove(self, name: str) -> None:
        e = ffi.new("struct pipit_error *")
        check(lib.pipit_client_session_remove(self._open(), name.encode(), e), e, "session_remove")

    def metrics(self) -> str:
        p, n, e = ffi.new("char **"), ffi.new("size_t *"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_metrics(self._open(), p, n, e), e, "metrics")
        return bytes(ffi.buffer(_owned(p[0]), n[0])).decode()

    def tokenize(self, text: str, timeout: float = 0) -> list[int]:
        raw = text.encode()
        p, n, e = ffi.new("int32_t **"), ffi.new("size_t *"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_tokenize(self._open(), raw, len(raw), int(timeout * 1000), p, n, e), e, "tokenize")
        return ffi.unpack(_owned(p[0]), n[0]) if n[0] else []

    def detokenize(self, tokens: Iterable[int], timeout: float = 0) -> str:
        ids = [int(t) for t in tokens]
        p, n, e = ffi.new("char **"), ffi.new("size_t *"), ffi.new("struct pipit_error *")
        check(lib.pipit_client_detokenize(self._open(), ffi.new("int32_t[]", ids), len(ids), int(timeout * 1000), p, n, e),
              e, "detokenize")
        return bytes(ffi.buffer(_owned(p[0]), n[0])).decode("utf-8", "replace")

    # ---- answers ---------------------------------------------------------------------------

    def start(self, kind: int, prompt: Prompt, lease: Optional[Lease] = None, **options: Any) -> Request:
        """A request under way; its events come while somebody dispatches. For stream(), and for asyncio."""
        r = Request(self._open(), kind)
        try:
            r.apply(prompt, **options)
            if lease is not None:
                check(lib.pipit_request_set_output(r.c, lease.c), None, "output")
            r.send()
        except BaseException:
            r.close()
            raise
        self._requests.add(r)
        return r

    def finish(self, r: Request) -> None:
        r.close()
        self._requests.discard(r)

    def dispatch(self, timeout_ms: int) -> None:
        r = lib.pipit_client_dispatch(self._open(), timeout_ms)
        if r < 0 and r != -107:  # a lost connection has become each request's own error
            check(r, None, "dispatch")

    def _events(self, r: Request) -> Iterator[Any]:
        try:
            while True:
                while r.events:
                    ev = r.events.popleft()
                    if isinstance(ev, PipitError):
                        raise ev
                    yield ev
                if r.ended:
                    return
                self.dispatch(200)  # signals are seen in between
        finally:
            self.finish(r)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Token | Done]:
        """Token after token, Done last. A text is continued as it stands; so is a list of token ids; a list of
        messages ({"role": ..., "content": ...}) goes through the model's template. Leaving the loop cancels.

        Options: temperature (0.7), top_k (0), top_p (0.95), min_p (0.05), max_tokens, stop, seed, kv (a cache policy), timeout (seconds),
        system, logprobs, repeat_penalty, presence_penalty, frequency_penalty, ignore_end, draft, urgency; tools (a list of
        definitions as OpenAI's: Answer.calls), parts (True: Answer.reasoning is apart from the text, as with tools)."""
        return self._events(self.start(_kind(prompt), prompt, **options))

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer."""
        return whole(list(self.stream(prompt, **options)))

    def chat(self, message: str, history: Iterable[Mapping[str, Any]] = (), **options: Any) -> Answer:
        """A message of the user, after a history of messages."""
        return self.generate([*history, {"role": "user", "content": message}], **options)

    # ---- embeddings ------------------------------------------------------------------------

    def embed(self, prompt: str | Iterable[int], pooling: str = "mean", unit: bool = True, bytes: int = 65536,
              kv: Optional[str] = None) -> Any:
        """The text's embedding as a read-only f32 array (n_embd) in the memory shared with the daemon, or, with pooling
        "none", (n_tokens, n_embd). pooling: "mean", "last" or "none"; unit: of length 1. `bytes` is what the array may
        take at first; more is asked for when that is too little."""
        number = {"mean": lib.PIPIT_POOL_MEAN, "last": lib.PIPIT_POOL_LAST, "none": lib.PIPIT_POOL_NONE}[pooling]
        lease = Lease(self, bytes)
        found = None
        try:
            for ev in self._events(self.start(lib.PIPIT_EMBED, prompt, lease, pooling=number, unit=int(unit), kv=kv)):
                if isinstance(ev, Bulk) and ev.kind == lib.PIPIT_BULK_HIDDEN:
                    found = lease.view(ev.data, (ev.n_cols,) if pooling != "none" else (ev.n_rows, ev.n_cols))
        except PipitError as e:
            if e.code != "TOO_LARGE" or e.count_a <= bytes:
                raise
            return self.embed(prompt, pooling, unit, e.count_a, kv)
        return found

    # ---- scores ----------------------------------------------------------------------------

    def score(self, prompt: str | Iterable[int], first: int = 0, kv: Optional[str] = None) -> list[Token]:
        """Each token's log-probability given all before it, from the one after `first` on."""
        options: dict[str, Any] = {"score_first": first, "kv": kv}
        return [t for t in self._events(self.start(lib.PIPIT_SCORE, prompt, **options)) if isinstance(t, Token)]

    def logits(self, prompt: str | Iterable[int], first: int = 0, window: Optional[int] = None,
               kv: Optional[str] = None) -> Iterator[tuple[int, Any]]:
        """(position, rows): the next-token logits of positions from `first` on, as read-only f32 arrays (n, n_vocab)
        in the memory shared with the daemon. An array is valid until the next is asked for: copy what is to stay.
        At most `window` rows are held at once (None: as many as half of the lane has room for, 16 at most), so a
        text of any length takes bounded memory."""
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        n_vocab = self.info()["n_vocab"]
        n_scores = max(0, len(tokens) - 1 - first)
        if window is None:
            window = max(1, min(16, self.info()["from_daemon_bytes"] // 2 // (n_vocab * 4)))
        lease = Lease(self, (n_scores * 4 + 63) // 64 * 64 + window * n_vocab * 4)
        r = self.start(lib.PIPIT_SCORE, tokens, lease, score_first=first, logits=1, kv=kv)
        seen = 0
        events = self._events(r)
        try:
            for ev in events:
                if isinstance(ev, Bulk) and ev.kind == lib.PIPIT_BULK_LOGITS:
                    yield first + ev.row0, lease.view(ev.data, (ev.n_rows, ev.n_cols))
                    seen += ev.n_rows
                    lib.pipit_request_credit(r.c, seen + ev.window)
        finally:
            events.close()
            del lease


def whole(events: list[Any]) -> Answer:
    tokens = tuple(t for t in events if isinstance(t, Token))
    done = next(d for d in events if isinstance(d, Done))
    calls = []
    for t in tokens:
        if t.part == "name":
            calls.append([t.text, ""])
        elif t.part == "arguments":
            calls[-1][1] += t.text
    return Answer("".join(t.text for t in tokens if t.part == "text"), tokens, done,
                  "".join(t.text for t in tokens if t.part == "reasoning"),
                  tuple(Call(secrets.token_hex(5)[:9], name, json.loads(said)) for name, said in calls))


def _kind(prompt: Prompt) -> int:
    chat = not isinstance(prompt, str) and isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping)
    return lib.PIPIT_CHAT if chat else lib.PIPIT_GENERATE


_libc = None


def _owned(p: Any) -> Any:
    """Memory of malloc() that goes with the returned value."""
    global _libc
    if _libc is None:
        from cffi import FFI
        f = FFI()
        f.cdef("void free(void *);")
        _libc = f.dlopen(None), f
    libc, f = _libc
    return ffi.gc(p, lambda q: libc.free(f.cast("void *", int(ffi.cast("uintptr_t", q)))))
