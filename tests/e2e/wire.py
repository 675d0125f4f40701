# SPDX-License-Identifier: Apache-2.0
"""Protobuf's wire format by hand, for messages that no honest encoder makes."""
import struct


def varint(v):
    v &= (1 << 64) - 1
    out = b""
    while v > 0x7f:
        out += bytes([v & 0x7f | 0x80])
        v >>= 7
    return out + bytes([v])


def field(number, value):
    """An int as varint, a float as 32 bits, bytes with their length."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


# Path, number of the body in Request, the bodies' other (required) fields, numbers down to the field,
# allowed range: the promises of pipit.proto, written down a second time.
USER_MESSAGE = field(1, field(1, 2) + field(2, b"x"))
RANGES = [
    ("urgency", None, b"", [3], -100, 100),
    ("timeout_ms", None, b"", [4], 0, 86400000),
    ("generate.tokens[0]", 16, b"", [2], 0, 2**31 - 1),
    ("chat.messages[0].role", 17, b"", [1, 1], 1, 4),
    ("chat.sampling.temperature", 17, USER_MESSAGE, [3, 1], 0.0, 100.0),
    ("chat.sampling.top_k", 17, USER_MESSAGE, [3, 2], 0, 1000000),
    ("generate.sampling.top_p", 16, field(1, b"x"), [3, 3], 0.0, 1.0),
    ("generate.sampling.min_p", 16, field(1, b"x"), [3, 4], 0.0, 1.0),
    ("generate.sampling.repeat_penalty", 16, field(1, b"x"), [3, 5], 0.01, 100.0),
    ("generate.sampling.presence_penalty", 16, field(1, b"x"), [3, 6], -100.0, 100.0),
    ("generate.sampling.frequency_penalty", 16, field(1, b"x"), [3, 7], -100.0, 100.0),
    ("generate.sampling.penalty_last_n", 16, field(1, b"x"), [3, 8], 0, 1024),
    ("generate.sampling.seed", 16, field(1, b"x"), [3, 9], 0, 2**64 - 1),
    ("generate.sampling.max_tokens", 16, field(1, b"x"), [3, 10], 0, 16777216),
    ("generate.sampling.logprobs", 16, field(1, b"x"), [3, 11], 0, 20),
    ("detokenize.tokens[0]", 19, b"", [1], 0, 2**31 - 1),
    ("score.tokens[0]", 20, b"", [2], 0, 2**31 - 1),
    ("score.first", 20, field(1, b"x"), [3], 0, 16777216),
    ("embed.pooling", 26, field(1, b"x") + field(6, field(1, 1) + field(2, 1) + field(3, 1)), [3], 0, 2),
    ("credit.n_rows", 25, b"", [1], 1, 2**64 - 1),
    ("resume.next_seq", 23, b"", [1], 1, 2**64 - 1),
]


def with_value(rid, row, value):
    """A Request in which the row's field has that value."""
    _, body, rest, numbers, _, _ = row
    raw = field(numbers[-1], value)
    for n in reversed(numbers[:-1]):
        if rest == b"" and n == 1 and body == 17:
            raw = field(2, b"x") + raw  # a chat message's content
        raw = field(n, raw)
    if body is None:
        return field(1, rid) + raw + field(16, field(1, b"count 1"))
    return field(1, rid) + field(body, rest + raw)


def outside(row):
    """Values just and far outside the row's range."""
    low, high = row[4], row[5]
    if isinstance(low, float):
        return [low - 1.0, high + 1.0, float("nan"), float("inf"), float("-inf")]
    far = [] if high >= 2**63 else [2**31 - 1 if high < 2**31 - 1 else -1]
    above = [high + 1] if high < 2**31 - 1 else []
    below = [low - 1] if low != 0 or high < 2**63 else []
    if row[0] == "timeout_ms":
        below = []  # unsigned: -1 is above
    return far + above + below
