#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds/zmq: honest requests of every kind and hostile ones, each with the byte that says which
allocation fails (255: none). usage: make_zmq_seeds.py (needs protoc, python3-protobuf, python3-zmq)"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import wire  # noqa: E402
from zclient import pb  # noqa: E402

RID = bytes(range(1, 17))


def honest():
    out = {}
    for body in ("generate", "chat", "tokenize", "detokenize", "score", "status", "cancel", "resume", "ping"):
        r = pb.Request(id=RID)
        m = getattr(r, body)
        m.SetInParent()
        if body == "generate":
            m.prompt, m.policy = b"The capital of France is", b"fp8+keyformer:50%"
            m.sampling.stop.extend([b"\n\n", b"<end>"])
            m.sampling.temperature, m.sampling.top_p, m.sampling.seed = 0.7, 0.9, 2**64 - 1
            r.tenant, r.urgency, r.timeout_ms, r.detach, r.progress = b"shop", 7, 5000, True, True
        elif body == "chat":
            for role in (1, 2, 3):
                m.messages.add(role=role, content="naïve ☃ text".encode())
            m.sampling.logprobs, m.sampling.max_tokens = 20, 16
            r.unary = True
        elif body == "tokenize":
            m.text = b"\xff\x00broken utf-8"
        elif body in ("detokenize", "score"):
            m.tokens.extend([1, 300, 70000, 2**31 - 1])
        elif body == "resume":
            m.next_seq = 2**63
        out[body] = r.SerializeToString()
    return out


def hostile():
    rid = wire.field(1, RID)
    ok = wire.field(16, wire.field(1, b"x"))
    out = {
        "empty": b"", "noise": bytes(range(255, 0, -3)), "cut": (rid + ok)[:-1], "two_bodies": rid + ok + ok,
        "oneof": rid + ok + wire.field(24, b""), "unknown_8": rid + ok + wire.field(99, 1) * 8,
        "unknown_9": rid + ok + wire.field(99, 1) * 9, "group": rid + wire.varint(30 << 3 | 3) + ok,
        "length_wraps": rid + wire.varint(2 << 3 | 2) + b"\xff" * 9 + b"\x01",
        "varint_11": rid + wire.varint(4 << 3) + b"\xff" * 10 + b"\x01",
        "unpacked": rid + wire.field(19, wire.field(1, 5) * 50), "messages_1025": rid + wire.field(17, wire.USER_MESSAGE * 1025),
        "packed_cut": rid + wire.field(19, wire.field(1, b"\x01\x80")),
        "deep": rid + wire.field(16, wire.field(3, wire.field(3, wire.field(3, b"")))),
    }
    for row in filter(wire.outside, wire.RANGES):
        out["range_" + row[0].replace(".", "_").replace("[0]", "")] = wire.with_value(RID, row, wire.outside(row)[0])
    return out


def main():
    folder = HERE / "seeds" / "zmq"
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in {**honest(), **hostile()}.items():
        (folder / name).write_bytes(b"\xff" + raw)
    for k in (0, 3, 9):
        (folder / f"chat_no_memory_{k}").write_bytes(bytes([k]) + honest()["chat"])


if __name__ == "__main__":
    main()
