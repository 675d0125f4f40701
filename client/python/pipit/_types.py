# SPDX-License-Identifier: Apache-2.0
"""What events and answers are in Python: copies, so that they outlive the library's own structs."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional

from ._lib import ffi, lib


class PipitError(Exception):
    """What the daemon or the library refused. `code` is a name such as BUSY or CONTEXT_OVERFLOW."""

    def __init__(self, text: str, code: str = "LOCAL", err: int = 0, retry_after_ms: int = 0, count_a: int = 0,
                 count_b: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.err = err
        self.retry_after_ms = retry_after_ms
        self.count_a = count_a
        self.count_b = count_b


def text_of(c: Any) -> str:
    return ffi.string(c).decode("utf-8", "replace") if c != ffi.NULL else ""


def error_of(e: Any) -> PipitError:
    return PipitError(text_of(ffi.cast("const char *", e.text)), text_of(lib.pipit_code_name(e.code)), e.err,
                      e.retry_after_ms, e.count_a, e.count_b)


def check(r: int, e: Any = None, what: str = "") -> int:
    """A library call's result, or its error raised."""
    if r >= 0:
        return r
    if e is not None and e.code:
        raise error_of(e)
    import os
    raise PipitError(f"{what}: {os.strerror(-r)}", err=r)


@dataclasses.dataclass(frozen=True)
class Alternative:
    token: int
    logprob: float
    bytes: bytes


@dataclasses.dataclass(frozen=True)
class Token:
    """One token. `text` is whole characters, perhaps none yet; alternatives where they were asked for."""
    index: int
    id: int
    text: str
    logprob: float
    alternatives: tuple[Alternative, ...] = ()
    part: str = "text"  # or "reasoning"; "name" and "arguments" of a call
    call: int = 0  # which, from 0


@dataclasses.dataclass(frozen=True)
class Done:
    """How an answer ended and what it cost; names as in struct pipit_done."""
    reason: str
    n_prompt: int
    n_cached: int
    n_new: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    load_ns: int
    kv_bytes: int
    kv_bytes_full: int
    n_slots: int
    n_evicted: int
    seed: int
    replay: Optional[str]
    n_drafted: int = 0
    n_accepted: int = 0
    n_calls: int = 0
    broken: bool = False  # something began as a call, did not parse, and is text


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool. The id is ours: its result names it."""
    id: str
    name: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str
    tokens: tuple[Token, ...]
    done: Done
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation that goes on."""
        calls = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in self.calls]
        return {"role": "assistant", "content": self.text, **({"reasoning_content": self.reasoning} if self.reasoning else {}),
                **({"tool_calls": calls} if calls else {})}


PARTS = ("text", "reasoning", "name", "arguments")


def token_of(ev: Any) -> Token:
    alts = tuple(Alternative(a.token, a.logprob, bytes(ffi.buffer(a.text, a.text_len)))
                 for a in (ev.alts[i] for i in range(ev.n_alts)))
    return Token(ev.index, ev.token, bytes(ffi.buffer(ev.text, ev.text_len)).decode("utf-8", "replace"), ev.logprob, alts,
                 PARTS[ev.part], ev.call)


def done_of(d: Any) -> Done:
    return Done(text_of(lib.pipit_reason_name(d.reason)), d.n_prompt, d.n_cached, d.n_new, d.queue_ns, d.prefill_ns,
                d.decode_ns, d.load_ns, d.kv_bytes, d.kv_bytes_full, d.n_slots, d.n_evicted, d.seed,
                {0: None, 1: "exact"}.get(d.replay, "approximate"), d.n_drafted, d.n_accepted, d.n_calls,
                bool(d.broken))
