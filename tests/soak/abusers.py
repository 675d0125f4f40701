# SPDX-License-Identifier: Apache-2.0
"""What an ordinary member of group pipit does to the others, without a broken record: it asks for what it may ask for, again
and again. Each is a function of a folder, a random.Random, a Stop and note(what), and goes on until it is told to stop; what
refuses it is right, as long as others do not feel it. neighbour() is the other user: it asks, checks and times its answers."""
import os
import select
import struct
import time

import common
import lane as lane_py
from common import SLOW, wait_until
from lane import (BULK, C2E, CREDIT, DETOKENIZE, DONE, E2C, EMBED, ERROR, F_SESSION, LEASE, METRICS_GET, PING, PONG, RESUME, S_IGNORE_END, S_LOGITS, SCORE,
                  T_PROMPT, T_SESSION, TOKEN, TOKENIZE, Lane, Refused, item, order, prompt, sampling, text_of)

TEXT_BYTES = 262144  # of a request at the default --lane-bytes
WORDS = "Lily Tim dog cat ball park tree mom dad house big small red blue happy sad ran saw said went".split()
QUESTION, TOKENS = "Once upon a time", 64


def connect(folder, **kw):
    return Lane(folder, timeout=60 * SLOW, **kw)


def long_text(rng, n):
    """About n bytes of a kind that tokenizers find easy, hard, or neither."""
    some = rng.randrange(3)
    if some == 0:
        return ("Once upon a time there was a girl. " * (n // 35 + 1))[:n]
    if some == 1:
        return ("zqxj" * (n // 4 + 1))[:n]
    return " ".join(rng.choice(WORDS) for _ in range(n // 6))[:n]


def last_of(lane, rid, note):
    """Its last event; says what it was. Who is told BUSY comes again when it is told."""
    for e in lane.events(rid):
        pass
    note(e.reason if e.type == DONE else e.code)
    if e.type == ERROR and e.code in ("BUSY", "NO_MEMORY"):
        time.sleep(min(1, max(0.01, e.retry_after_ms / 1000)))
    return e


def tokenizes(folder, rng, stop, note):
    """Texts of 256 KiB, one behind the other, their ids into a lease."""
    lane = connect(folder)
    out = lane.lease(E2C, len(lane.e2c) - 4096)
    text = long_text(rng, lane.hello.max_request_bytes - 64)
    while not stop:
        last_of(lane, lane.request(item(T_PROMPT, text), kind=TOKENIZE, out=out), note)
    lane.close()


def row_lease(lane):
    return lane.lease(E2C, 4096 + 4 * lane.hello.n_vocab)


def reads_slowly(folder, rng, stop, note, pause=9.0):
    """Rows of logits, each asked for at the last moment."""
    lane = connect(folder)
    out, row = row_lease(lane), 0
    rid = lane.request(item(T_PROMPT, "Once upon a time there was " * 100) + sampling(flags=S_LOGITS), kind=SCORE, out=out)
    while not stop:
        if not lane.readable(0.2):
            continue
        e = lane.recv()
        if e.id == rid and e.type in (DONE, ERROR):
            note(e.reason if e.type == DONE else e.code)
            break
        if e.type == BULK and e.kind == 3:
            note("row")
            row += e.n_rows
            wait_until(lambda: stop, pause / SLOW, 0.05)
            lane.send(CREDIT, struct.pack("<Q", row + 1), rid)
    lane.close()


def scores_and_embeds(folder, rng, stop, note):
    """Logits of texts and hidden states, taken as fast as they come."""
    lane = connect(folder)
    out, state = row_lease(lane), lane.lease(E2C, 64 << 10)
    while not stop:
        text = long_text(rng, rng.choice((100, 1000, lane.hello.max_request_bytes - 64)))
        if rng.random() < 0.5:
            last_of(lane, lane.request(item(T_PROMPT, text) + sampling(), kind=EMBED, out=state), note)
            continue
        rid, row = lane.request(item(T_PROMPT, text[:2000]) + sampling(flags=S_LOGITS), kind=SCORE, out=out), 0
        for e in lane.events(rid):
            if e.type == BULK and e.kind == 3:
                row += e.n_rows
                lane.send(CREDIT, struct.pack("<Q", row + 1), rid)
        note(f"score {e.reason if e.type == DONE else e.code}")
        if e.type == ERROR:
            time.sleep(0.05)
    lane.close()


def cancels(folder, rng, stop, note, pause=0.06):
    """Two requests in turn: one is cancelled while the other runs, and asked again."""
    lane = connect(folder)
    text = item(T_PROMPT, "Once upon a time there was a girl. " * 4) + sampling(max_tokens=1000, flags=S_IGNORE_END)
    asked = [lane.request(text), lane.request(text)]
    turn = 0
    while not stop:
        time.sleep(pause)
        lane.cancel(asked[turn])
        asked[turn] = lane.request(text)
        turn = 1 - turn
        while lane.readable():
            e = lane.recv()
            if e.type in (DONE, ERROR):
                note(e.reason if e.type == DONE else e.code)
    lane.close()


def resumes(folder, rng, stop, note, ready=None):
    """Behind the end of as long an answer as the journal takes from one."""
    lane = connect(folder)
    rid, n = b"", lane.hello.max_request_bytes - 64
    while not rid and not stop:
        rid = lane.request(item(T_PROMPT, ("zqxj" * (n // 4 + 1))[:n]), kind=TOKENIZE)
        e = last_of(lane, rid, note)
        if e.type == ERROR:
            rid, n = b"", n if e.code == "BUSY" else n // 2
    end = time.monotonic() + 25
    if ready and rid:
        ready.release()
    while not stop and (time.monotonic() < end or ready):
        for _ in range(200):
            lane.resume(rid, e.seq + 1 - rng.randrange(2))
        note("resume", 200)
        lane.send(PING)
        while lane.recv().type != PONG:
            pass
    lane.close()


def poisons(folder, rng, stop, note, pause=0.0):
    """Kills the engine beside whoever runs, takes the request back before it can be told from theirs, and sends another. Only
    with the tests' engine."""
    lane, spy = connect(folder), connect(folder)
    while not stop:
        before = spy.status().n_restarts
        rid = lane.request(order("crash-always:2") + item(T_PROMPT, "Once") + sampling(max_tokens=50))
        end = time.monotonic() + 5 * SLOW
        while spy.status().n_restarts == before and time.monotonic() < end and not stop:
            time.sleep(0.02)
        note("killed" if spy.status().n_restarts != before else "waited")
        lane.cancel(rid)
        while lane.readable(0.1):
            lane.recv()
        wait_until(lambda: stop, pause / SLOW, 0.1)
    lane.close()
    spy.close()


def fills_lanes(folder, rng, stop, note):
    """Has all connections that it is given, and asks for more."""
    held = []
    while not stop:
        try:
            held.append(connect(folder))
            note("connected")
        except Refused:
            note("refused")
            time.sleep(0.05)
        if len(held) > 4096 or (len(held) and rng.random() < 0.001):
            held.pop().close()
    for lane in held:
        lane.close()


def fills_quota(folder, rng, stop, note):
    """Answers of a third of the journal each, kept for RESUME."""
    lane = connect(folder)
    size = min(lane.hello.max_request_bytes - 64, 200000)
    while not stop:
        last_of(lane, lane.request(item(T_PROMPT, ("zqxj" * (size // 4 + 1))[:size]), kind=TOKENIZE), note)
    lane.close()


def without_items(folder, rng, stop, note, n=8):
    """Requests whose prompt is in a lease and not in the journal, several at once; each must be told its end."""
    lane = connect(folder)
    asked, tokens = {}, struct.pack("<256i", *(rng.randrange(5, 250) for _ in range(256)))
    for _ in range(n):
        ids = lane.lease(C2E, 1024)  # each is lent to its request
        while ids.type not in (LEASE, ERROR) or ids.id != bytes(16):
            asked.update({ids.id: ids} if ids.type in (DONE, ERROR) else {})
            ids = lane.recv()
        if ids.type == ERROR:
            break  # there are so many and no more
        lane.c2e[ids.offset:ids.offset + 1024] = tokens
        asked[lane.request(b"", kind=rng.choice((DETOKENIZE, SCORE)), tokens=(ids, 4 * rng.randrange(1, 250)))] = None
        note("asked")
    end = time.monotonic() + 60 * SLOW
    while None in asked.values() and time.monotonic() < end:
        if lane.readable(0.5):
            e = lane.recv()
            if e.id in asked and e.type in (DONE, ERROR):
                asked[e.id] = e
    for e in asked.values():
        if e:
            note("told")
            note(e.reason if e.type == DONE else e.code)
    lane.close()


def keeps_sessions(folder, rng, stop, note):
    """Turns of two conversations, saved and taken up."""
    lane = connect(folder)
    while not stop:
        name = rng.choice("ab") + str(rng.randrange(1000) if rng.random() < 0.02 else 0)
        e = last_of(lane, lane.request(item(T_PROMPT, " and then " + rng.choice(WORDS)) + item(T_SESSION, name) +
                                       sampling(max_tokens=12, flags=S_IGNORE_END), flags=F_SESSION), note)
        if e.type == ERROR:
            time.sleep(0.1)
            lane.send(lane_py.SESSION, struct.pack("<IIII72s", 2, 0, 0, 0, name.encode()))  # full: it begins again
            lane.recv()
    lane.close()


def spies(folder, rng, stop, note):
    """Polls all figures that it may see."""
    lane = connect(folder)
    out = lane.lease(E2C, 65536)
    while not stop:
        lane.status()
        lane.send(METRICS_GET, struct.pack("<IIIIQQ", E2C, out.buf, out.generation, 0, 0, 0))
        while lane.recv().type not in (DONE, ERROR):
            pass
        note("polls")
        time.sleep(0.002)
    lane.close()


def long_answers(folder, rng, stop, note):
    """300 tokens a question, three questions at once."""
    lane = connect(folder)
    items, asked = item(T_PROMPT, "Once upon a time") + sampling(max_tokens=300, flags=S_IGNORE_END), set()
    while not stop:
        while len(asked) < 3:
            asked.add(lane.request(items))
        if not lane.readable(0.2):
            continue
        e = lane.recv()
        if e.id in asked and e.type in (DONE, ERROR):
            asked.discard(e.id)
            note(e.reason if e.type == DONE else e.code)
            if e.type == ERROR:
                time.sleep(0.05)
    lane.close()


def run(which, what, folder, seed, stop, out, **kw):
    """A process of the which-th user that does it until it is told to stop."""
    import random
    common.pin(which)
    common.humble()
    counts = {}

    def note(name, n=1):
        counts[name] = counts.get(name, 0) + n
    while not stop:
        try:
            what(folder, random.Random(seed), stop, note, **kw)
        except (ConnectionRefusedError, FileNotFoundError):
            note("met nobody")
            time.sleep(0.05)
        except (OSError, EOFError, AssertionError, TimeoutError, Refused) as e:
            note("sent away" if not isinstance(e, Refused) else "refused a lane")
            time.sleep(0.05)
        seed += 1
    out.put(counts)


def ask_again(lane, n, question=QUESTION, flags=S_IGNORE_END):
    return lane.request(item(T_PROMPT, question) + sampling(max_tokens=n, flags=flags))


def neighbour(which, folder, stop, out, want=None, n=TOKENS, pause=0.0):
    """The other user: (when, gap) and (when, seconds to the first token) of its answers, and what was wrong with one."""
    common.pin(which)
    lane, gaps, firsts, wrong, n_answers, busy = connect(folder), [], [], [], 0, 0
    while not stop:
        try:
            began, last, events = time.monotonic(), None, []
            rid = ask_again(lane, n)
            while not events or events[-1].type not in (DONE, ERROR):
                if not select.select([lane.sock], [], [], 0.5)[0]:
                    if stop and time.monotonic() > stop.end + 20 * SLOW:
                        break
                    continue
                e = lane.recv()
                if e.id != rid:
                    continue
                events.append(e)
                if e.type == TOKEN:
                    now = time.monotonic()
                    if last:
                        gaps.append((now, now - last))
                    else:
                        firsts.append((now, now - began))
                    last = now
                if stop and not want:
                    break
            if not events or events[-1].type not in (DONE, ERROR):
                gaps.append((time.monotonic(), time.monotonic() - (last or began)))
                if not last:
                    firsts.append((time.monotonic(), time.monotonic() - began))
                break
            if events[-1].type == ERROR and events[-1].code == "BUSY":
                busy += 1
                time.sleep(min(1, events[-1].retry_after_ms / 1000))
            elif events[-1].type != DONE or (want and text_of(events) != want):
                wrong.append(f"{text_of(events)!r} {events[-1]!r}")
            else:
                n_answers += 1
        except (OSError, EOFError, AssertionError) as e:
            wrong.append(repr(e))
            time.sleep(0.2)
            lane = connect(folder)
        time.sleep(pause)
    lane.close()
    out.put({"gaps": gaps, "firsts": firsts, "wrong": wrong[:5], "n_wrong": len(wrong), "answers": n_answers, "busy": busy})


def either(*lanes):
    """The next event of any of them."""
    while True:
        for s in select.select([lane.sock for lane in lanes], [], [], 60 * SLOW)[0]:
            return next(lane for lane in lanes if lane.sock is s).recv()
        raise TimeoutError
