#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_request beside those that fuzzing found: chats with tools, sessions that go on, replays, wrong
counts of items, leases that are too small, memory that fails.

    make_seeds_request.py            into seeds/request"""

import pathlib
import struct

folder = pathlib.Path(__file__).parent / "seeds" / "request"
GENERATE, CHAT, TOKENIZE, DETOKENIZE, SCORE, EMBED = range(1, 7)
IN, OUT, FOLDER, CANCEL, TWICE, CLOSE, AFTER, REPLAY = (1 << i for i in range(8))
H2O, CHUNK, FULL, BY_CHAT, LONG = 1 << 4, 2 << 4, 3 << 4, 64, 128  # of the third byte
NO_MEMORY = b"\xffF\0\0"


def item(kind, data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<HHI", kind, 0, len(data)) + data + bytes(-len(data) % 8)


def sampling(max_tokens=2, flags=2 | 4, logprobs=0, first=0, top_k=0):
    return item(8, struct.pack("<6f6IQ", 0.8, 0.95, 0.05, 1, 0, 0, top_k, 64, max_tokens, logprobs & 0xffffffff, flags,
                               first & 0xffffffff, 0))


def prompt(text="Once"):
    return item(1, text)


def said(role, text, *more):
    return item(4, role) + item(5, text) + b"".join(more)


def seed(name, kind, items, bits=0, third=0, changes=(), tail=b""):
    """changes: of the record: offset in its body and bytes."""
    record = b"".join(bytes([at, len(b)]) + b for at, b in changes)
    (folder / name).write_bytes(bytes([kind, bits, third, len(changes)]) + record + items + tail)


SESSION = item(10, "one")
TOOLS = item(11, '[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]')
CALL = item(13, "c1") + item(14, "f") + item(15, '{"a":[1,2]}')
TALK = said("user", "hi") + said("assistant", "", item(12, "hm"), CALL, item(13, "") + item(14, "f")) + said(
    "tool", "7", item(14, "f"), item(16, "c1"))
seed("tools_calls", CHAT, TOOLS + TALK + prompt() + sampling())
seed("tools_session", CHAT, TOOLS + TALK + sampling() + SESSION, FOLDER)
seed("parts_plain", CHAT, said("user", "hi") + prompt() + sampling(flags=2 | 4 | 256))
seed("call_no_name", CHAT, said("assistant", "", item(13, "c")) + prompt())
seed("call_bad_utf8", CHAT, said("assistant", "", item(13, b"\xff")) + prompt())
seed("call_bad_json", CHAT, said("assistant", "", item(13, "c") + item(14, "f") + item(15, "{")) + prompt())
seed("name_misplaced", CHAT, said("user", "x", item(14, "f")) + prompt())
seed("tools_generate", GENERATE, TOOLS + prompt())
seed("tools_empty_list", CHAT, item(11, "[]") + prompt())
seed("role_cut", CHAT, item(4, "user"))
seed("role_then_end", CHAT, item(4, "user") + prompt())
seed("role_then_bad", CHAT, item(4, "user") + b"\1")
seed("content_utf8", CHAT, said("user", b"\xc3"))
seed("system_utf8", CHAT, item(3, b"\xc3"))
seed("system_late_2", CHAT, said("user", "x") + item(3, "y"))
seed("chat_tokens", CHAT, item(2, struct.pack("<2i", 1, 2)))
seed("messages_generate", GENERATE, said("user", "x") + prompt())
seed("stops_17", GENERATE, prompt() + item(7, "s") * 17)
seed("stop_utf8", GENERATE, prompt() + item(7, b"\xff"))
seed("stop_empty", GENERATE, prompt() + item(7, ""))
seed("policy_long", GENERATE, prompt() + item(6, "f" * 1025))
seed("policy_utf8", GENERATE, prompt() + item(6, b"\xff"))
seed("score_first_negative", SCORE, prompt() + sampling(flags=0, first=-1, logprobs=-1))
seed("score_short", SCORE, item(2, struct.pack("<i", 1)) + sampling(flags=0, logprobs=-1))
seed("score_beyond", SCORE, prompt() + sampling(flags=0, first=50, logprobs=-1))
seed("score_alternatives", SCORE, prompt() + sampling(flags=0, logprobs=3))
seed("score_stops", SCORE, prompt() + item(7, "x") + sampling(flags=0, logprobs=-1))
seed("score_out", SCORE, prompt() + sampling(flags=0, logprobs=-1), OUT)
seed("tokens_twice", GENERATE, item(2, struct.pack("<i", 1)) * 2)
seed("tokens_half", GENERATE, item(2, b"\1\2\3"))
seed("tokens_high", GENERATE, item(2, struct.pack("<i", 512)))
seed("tokens_none", GENERATE, sampling())
seed("tokens_empty", GENERATE, item(2, b""))
seed("lease_and_prompt", GENERATE, b"", IN, changes=[(16, struct.pack("<Q", 4096)), (24, struct.pack("<I", 16))], tail=struct.pack("<4i", 1, 5, 6, 7))
seed("lease_odd", GENERATE, b"", IN, changes=[(80 - 8, struct.pack("<Q", 3))], tail=struct.pack("<4i", 1, 5, 6, 7))
small = [(56, struct.pack("<Q", 16))]  # out_bytes
seed("out_small_embed", EMBED, prompt() + sampling(flags=0, logprobs=-1), OUT, changes=small)
seed("out_small_score", SCORE, prompt("Once upon a time there was") + sampling(flags=0, logprobs=-1), OUT, changes=small)
seed("out_small_logits", SCORE, prompt() + sampling(flags=8, logprobs=-1), OUT, changes=[(56, struct.pack("<Q", 600))])
seed("out_small_answer", GENERATE, prompt() + sampling(), OUT, changes=small)
seed("out_nowhere", GENERATE, prompt() + sampling(), OUT, changes=[(48, struct.pack("<Q", 1 << 40))])
seed("embed_no_lease", EMBED, prompt() + sampling(flags=0, logprobs=-1))
seed("embed_last", EMBED, prompt() + sampling(flags=16 | 64, logprobs=-1), OUT)
seed("flags_unknown", GENERATE, prompt() + sampling(flags=1 << 20))
seed("flags_of_others", TOKENIZE, prompt() + sampling(flags=2))
seed("forced_unknown", GENERATE, prompt() + sampling(), third=15, changes=[(32, struct.pack("<Q", 4096))])
seed("forced_many", GENERATE, prompt() + sampling(max_tokens=3), third=3)
seed("forced_then_stop", GENERATE, prompt() + sampling(max_tokens=0, flags=4) + item(7, "e"), third=12)
seed("messages_many", CHAT, said("user", "x") * 40 + prompt() + sampling())
seed("prompt_too_long", GENERATE, prompt("a b " * 200) + sampling())
seed("answer_too_long", GENERATE, prompt("a b c d e f g h " * 4) + item(6, "kv8+h2o:24,recent=50%") + sampling(max_tokens=6))
seed("cancel_tokenize", TOKENIZE, prompt("a " * 2000), CANCEL)
seed("cancel_chat", CHAT, said("user", "a " * 500) + prompt() + sampling(), CANCEL)
seed("cancel_tokens", GENERATE, item(2, struct.pack("<9i", 1, *range(300, 308))) + sampling(max_tokens=6), CANCEL)
seed("cancel_session", GENERATE, SESSION + prompt("a b c " * 10) + sampling(), FOLDER | CANCEL)
seed("cancel_loading", GENERATE, SESSION + prompt() + sampling(), FOLDER | CANCEL | AFTER)
seed("two_sessions", GENERATE, SESSION * 2 + prompt(), FOLDER)
seed("session_score", SCORE, SESSION + prompt(), FOLDER)
seed("session_no_folder", GENERATE, SESSION + prompt())
seed("session_bad_name", GENERATE, item(10, ".x") + prompt(), FOLDER)
seed("session_in_use", GENERATE, SESSION + prompt() + sampling(max_tokens=6), FOLDER | TWICE)
for name, third in (("full", 0), ("h2o", H2O), ("chunk", CHUNK), ("chat", BY_CHAT), ("long", LONG)):
    seed(f"on_{name}", GENERATE, SESSION + prompt(" there") + sampling(), FOLDER | AFTER, third)
    seed(f"on_{name}_chat", CHAT, SESSION + prompt("there") + sampling(), FOLDER | AFTER, third)
    seed(f"replay_{name}", GENERATE, SESSION + prompt() + sampling(max_tokens=3), FOLDER | AFTER | REPLAY, third | 2)
    seed(f"replay_{name}_whole", CHAT, SESSION + prompt() + sampling(max_tokens=0), FOLDER | AFTER | REPLAY, third | 3)
seed("on_policy_same", GENERATE, SESSION + item(6, "full") + prompt(" there") + sampling(), FOLDER | AFTER, FULL)
seed("on_policy_other", GENERATE, SESSION + item(6, "kv8+h2o:24") + prompt(" there") + sampling(), FOLDER | AFTER, FULL)
seed("on_messages", GENERATE, SESSION + said("user", "x") + prompt(), FOLDER | AFTER)
seed("on_system", CHAT, SESSION + item(3, "be kind") + prompt(), FOLDER | AFTER)
seed("on_tokens", GENERATE, SESSION + item(2, struct.pack("<3i", 300, 301, 302)) + sampling(), FOLDER | AFTER)
seed("on_out", GENERATE, SESSION + prompt(" there") + sampling(), FOLDER | AFTER | OUT, H2O)
seed("on_max", GENERATE, SESSION + prompt(" there") + sampling(max_tokens=5), FOLDER | AFTER, H2O)
seed("on_calls", CHAT, SESSION + TOOLS + TALK + prompt("there") + sampling(), FOLDER | AFTER, BY_CHAT)
seed("replay_other", GENERATE, SESSION + prompt() + sampling(), FOLDER | AFTER | REPLAY, 9)
seed("replay_parts", CHAT, SESSION + TOOLS + prompt() + sampling(), FOLDER | AFTER | REPLAY, BY_CHAT | 1)
seed("no_memory_chat", CHAT, TOOLS + TALK + prompt() + sampling() + item(7, "x"), OUT, tail=NO_MEMORY)
seed("no_memory_score", SCORE, item(2, struct.pack("<3i", 1, 300, 301)) + sampling(flags=8, logprobs=-1), OUT, tail=NO_MEMORY)
seed("no_memory_session", GENERATE, SESSION + prompt() + sampling(), FOLDER, tail=NO_MEMORY)
seed("no_memory_on", CHAT, SESSION + prompt(" there") + sampling(), FOLDER | AFTER, H2O, tail=NO_MEMORY)
seed("no_memory_replay", GENERATE, SESSION + prompt() + sampling(), FOLDER | AFTER | REPLAY, 2, tail=NO_MEMORY)
seed("no_memory_tokenize", TOKENIZE, prompt("a b"), tail=NO_MEMORY)
