# SPDX-License-Identifier: Apache-2.0
"""Requests: options by name, events from the library's callback into a queue of Python values."""
from __future__ import annotations

import collections
import json
from typing import Any, Callable, Iterable, Mapping, Optional, Union

from ._lib import ffi, lib
from ._types import PipitError, check, done_of, error_of, token_of

PARAMS = {
    "temperature": lib.PIPIT_TEMPERATURE, "top_p": lib.PIPIT_TOP_P, "min_p": lib.PIPIT_MIN_P, "top_k": lib.PIPIT_TOP_K,
    "repeat_penalty": lib.PIPIT_REPEAT_PENALTY, "presence_penalty": lib.PIPIT_PRESENCE_PENALTY,
    "frequency_penalty": lib.PIPIT_FREQUENCY_PENALTY, "penalty_last_n": lib.PIPIT_PENALTY_LAST_N,
    "max_tokens": lib.PIPIT_MAX_TOKENS, "logprobs": lib.PIPIT_LOGPROBS, "ignore_end": lib.PIPIT_IGNORE_END,
    "draft": lib.PIPIT_DRAFT,
    "score_first": lib.PIPIT_SCORE_FIRST, "urgency": lib.PIPIT_URGENCY, "logits": lib.PIPIT_LOGITS,
    "pooling": lib.PIPIT_POOLING, "unit": lib.PIPIT_UNIT, "parts": lib.PIPIT_PARTS,
}
Prompt = Union[str, Iterable[int], Iterable[Mapping[str, Any]]]


class Bulk:
    """Rows that the daemon wrote into the output lease: where they lie, for a view."""

    def __init__(self, b: Any) -> None:
        self.kind, self.data, self.bytes = b.kind, b.data, b.bytes
        self.row0, self.n_rows, self.n_cols, self.window = b.row0, b.n_rows, b.n_cols, b.window


class Request:
    """One request; `events` fills while its client dispatches: Token, Bulk, Done, or a PipitError last."""

    def __init__(self, client: Any, kind: int) -> None:
        p = ffi.new("struct pipit_request **")
        check(lib.pipit_request_create(client, kind, p), None, "request")
        self.c = p[0]
        self.events: collections.deque[Any] = collections.deque()
        self.ended = False
        self.on_event: Optional[Callable[[], None]] = None
        self._callback = ffi.callback("void(struct pipit_request *, const struct pipit_event *, void *)", self._take)
        check(lib.pipit_request_set_callback(self.c, self._callback, ffi.NULL), None, "callback")

    def _take(self, _request: Any, ev: Any, _user: Any) -> None:
        if ev.type in (lib.PIPIT_EVENT_TOKEN, lib.PIPIT_EVENT_TEXT):
            self.events.append(token_of(ev))
        elif ev.type == lib.PIPIT_EVENT_BULK:
            self.events.append(Bulk(ev.bulk))
        elif ev.type == lib.PIPIT_EVENT_DONE:
            self.events.append(done_of(ev.done))
            self.ended = True
        elif ev.type == lib.PIPIT_EVENT_ERROR:
            self.events.append(error_of(ev.error))
            self.ended = True
        if self.on_event:
            self.on_event()

    def apply(self, prompt: Prompt, system: Optional[str] = None, stop: Union[str, Iterable[str]] = (),
              kv: Optional[str] = None, tools: Union[str, Iterable[Mapping[str, Any]]] = (), seed: Optional[int] = None, timeout: Optional[float] = None,
              **params: float) -> None:
        if isinstance(prompt, str):
            raw = prompt.encode()
            check(lib.pipit_request_set_prompt(self.c, raw, len(raw)), None, "prompt")
        else:
            self._apply_list(list(prompt))
        if system is not None:
            raw = system.encode()
            check(lib.pipit_request_set_system(self.c, raw, len(raw)), None, "system")
        if tools:
            raw = (tools if isinstance(tools, str) else json.dumps(list(tools))).encode()
            check(lib.pipit_request_set_tools(self.c, raw, len(raw)), None, "tools")
        for text in [stop] if isinstance(stop, str) else stop:
            raw = text.encode()
            check(lib.pipit_request_add_stop(self.c, raw, len(raw)), None, "stop")
        if kv is not None:
            check(lib.pipit_request_set_policy(self.c, kv.encode()), None, "kv")
        if seed is not None:
            check(lib.pipit_request_set_seed(self.c, seed), None, "seed")
        if timeout is not None:
            self.param("timeout", lib.PIPIT_TIMEOUT_MS, timeout * 1000)
        for name, value in params.items():
            if name not in PARAMS:
                raise TypeError(f"no option is named {name!r}")
            self.param(name, PARAMS[name], float(value))

    def param(self, name: str, number: int, value: float) -> None:
        if lib.pipit_request_set_param(self.c, number, value) < 0:
            raise PipitError(f"{name}={value}: out of range", "INVALID", -22)

    def _apply_list(self, items: list[Any]) -> None:
        if items and isinstance(items[0], Mapping):
            for m in items:
                self._apply_message(m)
            return
        check(lib.pipit_request_set_tokens(self.c, ffi.new("int32_t[]", [int(i) for i in items]), len(items)), None,
              "tokens")

    def _apply_message(self, m: Mapping[str, Any]) -> None:
        raw = (m.get("content") or "").encode()
        if m["role"] == "tool":
            check(lib.pipit_request_add_result(self.c, m.get("tool_call_id", "").encode(), m.get("name", "").encode(), raw,
                                               len(raw)), None, "result")
            return
        check(lib.pipit_request_add_message(self.c, m["role"].encode(), raw, len(raw)), None, "message")
        if m.get("reasoning_content"):
            raw = m["reasoning_content"].encode()
            check(lib.pipit_request_add_reasoning(self.c, raw, len(raw)), None, "reasoning")
        for call in m.get("tool_calls") or ():
            f = call["function"]
            said = f.get("arguments", {})
            raw = (said if isinstance(said, str) else json.dumps(said)).encode()
            check(lib.pipit_request_add_call(self.c, call.get("id", "").encode(), f["name"].encode(), raw, len(raw)), None,
                  "call")

    def send(self) -> None:
        e = ffi.new("struct pipit_error *")
        check(lib.pipit_request_send(self.c, e), e, "send")

    def cancel(self) -> None:
        if not self.ended:
            lib.pipit_request_cancel(self.c)

    def close(self) -> None:
        """Ends it if it runs."""
        if self.c != ffi.NULL:
            lib.pipit_request_destroy(self.c)
            self.c = ffi.NULL
            self.ended = True
