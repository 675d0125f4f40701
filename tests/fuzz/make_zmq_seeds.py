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


def lease(lane=1, size=None):
    return wire.field(1, lane) + wire.field(2, 1) + wire.field(3, 1) + (b"" if size is None else wire.field(4, size))


def crossed():
    """Fields that depend on others, and messages that protobuf-c refuses. By hand: needs no protobuf."""
    f, rid = wire.field, wire.field(1, RID)
    call = f(4, f(1, b"id") + f(2, b"f") + f(3, b"{}"))
    said = f(1, f(1, 3) + f(2, b"") + f(3, b"thought") + call + call)
    told = f(1, f(1, 4) + f(2, b"7") + f(5, b"f") + f(6, b"id"))
    return {
        "embed": rid + f(26, f(1, b"x") + f(3, 1) + f(4, b"full") + f(6, lease()) + f(7, 1)),
        "embed_rows": rid + f(7, 1) + f(26, f(2, b"\1\2") + f(3, 2) + f(6, lease())),
        "embed_input": rid + f(26, f(5, lease(1, 8)) + f(6, lease())),
        "embed_nothing": rid + f(26, f(6, lease())),
        "chat_tools": rid + f(17, wire.USER_MESSAGE + said + told + f(3, f(1, 0.0) + f(12, 1) + f(14, 1)) + f(4, b"full") + f(5, b"s")
                              + f(8, b"[]") + f(9, 1)),
        "generate_session": rid + f(16, f(1, b"x") + f(5, b"s")),
        "generate_leases": rid + f(16, f(6, lease(1, 8)) + f(7, lease())),
        "input_without_bytes": rid + f(16, f(6, lease())),
        "other_lane": rid + f(16, f(6, lease(1, 8)) + f(7, lease(2))),
        "unary_output": rid + f(7, 1) + f(16, f(1, b"x") + f(7, lease())),
        "two_sources": rid + f(16, f(1, b"x") + f(2, b"\1")),
        "tokenize_output": rid + f(18, f(1, b"x") + f(2, lease())),
        "chat_output": rid + f(17, wire.USER_MESSAGE + f(7, lease())),
        "detokenize_input": rid + f(19, f(2, lease(1, 8))),
        "score_leases": rid + f(20, f(1, b"x") + f(3, 1) + f(4, b"full") + f(6, lease()) + f(7, 1)),
        "score_logits_alone": rid + f(20, f(1, b"x") + f(7, 1)),
        "score_input_alone": rid + f(20, f(5, lease(1, 8))),
        "zero_id": f(1, bytes(16)) + f(18, f(1, b"x")), "no_body": rid, "session_list": rid + f(27, f(1, b"a")),
        "session_remove": rid + f(28, f(1, b"a")), "credit": rid + f(25, f(1, 5)),
        "fixed_64": rid + wire.varint(99 << 3 | 1) + bytes(8) + f(18, f(1, b"x")), "fixed_64_cut": rid + wire.varint(99 << 3 | 1),
        "tenant_65": rid + f(2, b"t" * 65) + f(18, f(1, b"x")), "wire_type": rid + f(3, b"x"),
        "too_many_items": rid + f(17, f(1, f(1, 3) + f(2, b"") + f(4, f(2, b"f")) * 64) * 10),
        "too_long": rid + f(18, f(1, bytes(16400))),
    }


def main():
    folder = HERE / "seeds" / "zmq"
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in {**honest(), **hostile(), **crossed()}.items():
        (folder / name).write_bytes(b"\xff" + raw)
    for k in (0, 3, 9):
        (folder / f"chat_no_memory_{k}").write_bytes(bytes([k]) + honest()["chat"])


if __name__ == "__main__":
    main()
