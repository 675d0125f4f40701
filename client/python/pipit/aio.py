# SPDX-License-Identifier: Apache-2.0
"""asyncio: many answers at once on one connection, its descriptor watched by the loop. No thread.

    async with pipit.aio.Client() as c:
        async for ev in c.stream("Once upon a time"):
            ...
"""
from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Iterable, Mapping

from . import client as blocking
from ._lib import lib
from ._request import Prompt, Request
from ._types import Answer, Done, PipitError, Token


class Client:
    """As pipit.Client; the connection is made in __aenter__ (a Unix socket's hello: under 200 ms)."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._client: blocking.Client | None = None

    async def __aenter__(self) -> "Client":
        self._client = blocking.Client(**self._options)
        asyncio.get_running_loop().add_reader(lib.pipit_client_fd(self._client.c), self._dispatch)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._client:
            asyncio.get_running_loop().remove_reader(lib.pipit_client_fd(self._client.c))
            self._client.close()
            self._client = None

    def _dispatch(self) -> None:
        if self._client:
            self._client.dispatch(0)

    @property
    def blocking(self) -> blocking.Client:
        """For status(), tokenize() and the like, which answer at once."""
        if not self._client:
            raise PipitError("the client is not connected")
        return self._client

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncIterator[Token | Done]:
        """As pipit.Client.stream(); leaving the loop, or cancelling the task, cancels the request."""
        c = self.blocking
        arrived = asyncio.Event()
        r: Request = c.start(blocking._kind(prompt), prompt, **options)
        r.on_event = arrived.set
        try:
            while True:
                while r.events:
                    ev = r.events.popleft()
                    if isinstance(ev, PipitError):
                        raise ev
                    yield ev
                if r.ended:
                    return
                arrived.clear()
                await arrived.wait()
        finally:
            c.finish(r)

    async def generate(self, prompt: Prompt, **options: Any) -> Answer:
        return blocking.whole([ev async for ev in self.stream(prompt, **options)])

    async def chat(self, message: str, history: Iterable[Mapping[str, Any]] = (), **options: Any) -> Answer:
        return await self.generate([*history, {"role": "user", "content": message}], **options)
