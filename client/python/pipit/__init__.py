# SPDX-License-Identifier: Apache-2.0
"""pipit: talking to pipitd, the local language-model daemon, through libpipit.

    import pipit

    with pipit.Client() as c:
        print(c.chat("Why is the sky blue?").text)
        for ev in c.stream("Once upon a time", max_tokens=40):
            ...
        # NumPy views of memory shared with the daemon; a wider window needs a lane of more bytes (pipitd --lane-bytes)
        for position, rows in c.logits("Some text"):
            ...

pipit.aio.Client is the same for asyncio. Errors are PipitError, with the daemon's code (BUSY, CONTEXT_OVERFLOW, ...).
"""
from . import aio
from ._types import Alternative, Answer, Call, Done, PipitError, Token
from .client import Client, Lease

__all__ = ["Alternative", "Answer", "Call", "Client", "Done", "Lease", "PipitError", "Token", "aio"]
