#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine's threads together, for ThreadSanitizer (tools/test.sh, configuration tsan): worker, I/O, text, saver, loader and
pool, with rings between them; then again with a cache on disk. Answers, cancels, conversations that are saved and loaded, texts that are tokenized and read
back, rows of logits, lanes that come and go, and a model that is unloaded meanwhile. No race is reported, no engine dies, and
every answer is the one of a quiet daemon. PIPIT_SEED repeats the choices; --seconds (10) says how long."""
import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time

from daemon import BUILD, DATA, STORIES, Daemon
from lane import (BULK, C2E, CREDIT, DETOKENIZE, DONE, E2C, F_SESSION, LEASE, SCORE, S_IGNORE_END, S_LOGITS, T_PROMPT, T_SESSION, TOKEN, TOKENIZE,
                  UNLOAD, item, prompt, sampling, text_of)

SEED = int(os.environ.get("PIPIT_SEED", "1"))
STORY = "Once upon a time"
WINDOW = 4  # rows of logits
KINDS = ("answer", "cancel", "session", "tokenize", "score", "come and go")


class User(threading.Thread):
    def __init__(self, daemon, kind, right, end):
        super().__init__(name=kind, daemon=True)
        self.pipitd, self.kind, self.right, self.end = daemon, kind, right, end
        self.random, self.n, self.error = random.Random(f"{SEED} {kind}"), 0, None

    def run(self):
        try:
            lane = self.pipitd.lane()
            while time.monotonic() < self.end:
                if self.kind == "come and go" and self.n % 2:
                    lane.close()
                    lane = self.pipitd.lane()
                getattr(self, self.kind.replace(" ", "_"))(lane)
                self.n += 1
            lane.close()
        except BaseException as e:  # pylint: disable=broad-except
            self.error = f"{self.kind}, round {self.n}: {e!r}"

    def answer(self, lane):
        n = self.random.choice((5, 20, 60))
        events = list(lane.events(lane.request(prompt(STORY, n, flags=S_IGNORE_END))))
        assert events[-1].type == DONE, events[-1]
        text = text_of(events)
        assert self.right[0].startswith(text) and text, text

    come_and_go = answer

    def cancel(self, lane):
        rid = lane.request(prompt(STORY * self.random.choice((1, 8)), 200, flags=S_IGNORE_END))
        for _ in range(self.random.randint(0, 6)):
            lane.recv()
        lane.cancel(rid)
        end = list(lane.events(rid))[-1]
        assert end.type == DONE and end.reason in ("cancelled", "length"), end

    def session(self, lane):
        name = f"s{self.n}"
        for i, (text, n) in enumerate(((STORY, 10), (" Then", 10))):
            events = list(lane.events(lane.request(item(T_PROMPT, text) + item(T_SESSION, name) + sampling(max_tokens=n, flags=S_IGNORE_END),
                                                   flags=F_SESSION)))
            assert events[-1].type == DONE and events[-1].session == 1, events[-1]
            assert text_of(events) == self.right[1 + i], (i, text_of(events))

    def lease(self, lane, n, arena=E2C):
        got = lane.lease(arena, n)
        assert got.type == LEASE, got
        return got

    def tokenize(self, lane):
        text = STORY * self.random.choice((1, 50, 400))
        lease = self.lease(lane, 65536)
        events = list(lane.events(lane.request(item(T_PROMPT, text), kind=TOKENIZE, out=lease)))
        assert events[-1].type == DONE, events[-1]
        bulk = [e for e in events if e.type == BULK][0]
        ids = bytes(lane.e2c[bulk.offset:bulk.offset + 4 * bulk.n_rows])
        lane.put(lease)
        lease = self.lease(lane, len(ids), C2E)
        lane.c2e[lease.offset:lease.offset + len(ids)] = ids
        events = list(lane.events(lane.request(b"", kind=DETOKENIZE, tokens=(lease, len(ids)))))
        lane.put(lease)
        assert events[-1].type == DONE, events[-1]
        assert text_of(events).decode().strip().startswith(text[:40]), text_of(events)[:60]

    def score(self, lane):
        """With room for some rows of logits: it pauses, and goes on as they are read."""
        lease = self.lease(lane, 64 + WINDOW * 4 * lane.hello.n_vocab)
        rid = lane.request(item(T_PROMPT, STORY * 3) + sampling(flags=S_LOGITS), kind=SCORE, out=lease)
        n = 0
        for e in lane.events(rid):
            if e.type == BULK and e.kind == 3:
                n += e.n_rows
                lane.send(CREDIT, struct.pack("<Q", n + WINDOW), rid)
        assert e.type == DONE and n, e
        lane.put(lease)


def learn(daemon):
    lane = daemon.ready()
    right = [text_of(lane.events(lane.request(prompt(STORY, 60, flags=S_IGNORE_END))))]
    for text in (STORY, " Then"):
        events = list(lane.events(lane.request(item(T_PROMPT, text) + item(T_SESSION, "learn") +
                                               sampling(max_tokens=10, flags=S_IGNORE_END), flags=F_SESSION)))
        assert [e for e in events if e.type == TOKEN] and events[-1].session == 1, events[-1]
        right.append(text_of(events))
    lane.close()
    return right


def under(arguments, seconds):
    """What was wrong under a mixed load of a daemon with these arguments."""
    daemon = Daemon("--threads", "2", *arguments, backend="cpu",
                    env={"TSAN_OPTIONS": "halt_on_error=0 second_deadlock_stack=1 " + os.environ.get("TSAN_OPTIONS", "")})
    right = learn(daemon)
    users = [User(daemon, k, right, time.monotonic() + seconds) for k in KINDS]
    for u in users:
        u.start()
    lane = daemon.lane()
    while any(u.is_alive() for u in users):
        time.sleep(seconds / 5)
        lane.control(UNLOAD)  # BUSY, mostly
        assert daemon.process.poll() is None, daemon.text()
    restarts = lane.status().n_restarts
    lane.close()
    code = daemon.stop()
    text = daemon.text()
    print(", ".join(f"{u.n} rounds of {u.kind}" for u in users))
    wrong = [u.error for u in users if u.error] + [f"{u.kind} did nothing" for u in users if u.n == 0]
    if "ThreadSanitizer" in text:
        print(text)
        wrong.append(f"{text.count('WARNING: ThreadSanitizer')} reports of ThreadSanitizer")
    if restarts or code:
        print(text[-3000:])
        wrong.append(f"{restarts} engines died, exit code {code}")
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=10)
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        wrong = under(("--state-dir", os.path.join(folder, "a"), "--sequences", "3"), 0.6 * args.seconds)
        # The cache's own reads and writes of a file; such a file is made for one sequence.
        skew = os.path.join(folder, "skew.gguf")
        subprocess.run([os.path.join(BUILD, "tools/pipit-skew"), "--model", STORIES, "--text", os.path.join(DATA, "stories260K.txt"), "--tokens",
                        "100", skew], check=True, stdout=subprocess.DEVNULL)
        wrong += under(("--state-dir", os.path.join(folder, "b"), "--sequences", "1", "--overlay", skew, "--tier-dir", folder, "--kv",
                        "infinigen:count=20,pool=disk"), 0.4 * args.seconds)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
