#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Power cuts: what a daemon did to its state folder is recorded (power_preload.c) and each prefix of it replayed as if the
power had failed there. Of what was not synced, any of these may be left: nothing; everything; names without data (files have
their length and hold zeros, or have none); data and half of the last write; data under old names; and every name that a
folder has had since it was last synced. In each such state a daemon must find the session as it was before the turn under way
or after it, whole; after a turn was told to be saved, only that turn. The file that counts written bytes must say one of the
numbers that it has held, or none.

The record shows that the test can fail, too: it is replayed with each kind of sync left out (of files, of their folder, of the
folders above), and then some state must be wrong. The journal needs no such test: it is memory, and gone with the power."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from daemon import BUILD, Daemon  # noqa: E402
from lane import DONE, F_SESSION, S_IGNORE_END, T_PROMPT, T_SESSION, item, sampling, text_of  # noqa: E402

PRELOAD = os.path.abspath(os.path.join(BUILD, "tests/fault/power_preload.so"))
TURNS = [("Once upon a time", 30), (" Then", 24), (" And", 40)]
NAME = "cut"


class File:
    def __init__(self):
        self.data, self.synced, self.writes = b"", b"", []  # writes: (what, ...) since the last sync

    def write(self, at, data):
        self.writes.append((at, data))
        self.data = put(self.data, at, data)

    def size(self, n, only_grow):
        self.data = self.data if only_grow and n <= len(self.data) else (self.data + bytes(max(0, n - len(self.data))))[:n]

    def sync(self):
        self.synced, self.writes = self.data, []

    def left(self, how):
        if how == "current":
            return self.data
        if how == "synced":
            return self.synced
        if how == "zeros":  # as long as it was, but only synced bytes were written
            return (self.synced + bytes(max(0, len(self.data) - len(self.synced))))[:len(self.data)]
        got = self.zeroed()  # "torn": the writes but for the second half of the last one
        for i, (at, data) in enumerate(self.writes):
            got = put(got, at, data if i < len(self.writes) - 1 else data[:len(data) // 2])
        return got[:len(self.data)]

    def zeroed(self):
        return self.left("zeros")


def put(old, at, data):
    old += bytes(max(0, at + len(data) - len(old)))
    return old[:at] + data + old[at + len(data):]


class Folder:
    def __init__(self):
        self.names, self.history = {}, [{}]  # history: at the last sync, and after each change since

    def change(self):
        self.history.append(dict(self.names))

    def sync(self):
        self.history = [dict(self.names)]


class Disk:
    """The state folder as the recorded calls make it. skip: syncs that are left out."""

    def __init__(self, root, skip=()):
        self.skip, self.root = skip, str(root)
        self.nodes = {self.root: Folder()}
        self.n_syncs = {"file": 0, "folder": 0, "above": 0}

    def kind(self, node):
        if isinstance(node, File):
            return "file"
        holds_files = any(isinstance(n, File) for names in node.history for n in names.values())
        return "folder" if holds_files else "above"

    def do(self, words):
        op, nodes = words[0], self.nodes
        if op in ("create", "mkdir"):
            node = File() if op == "create" else Folder()
            nodes[words[3]] = node
            nodes[words[1]].names[words[2]] = node
            nodes[words[1]].change()
        elif op == "unlink":
            nodes[words[1]].names.pop(words[2])
            nodes[words[1]].change()
        elif op == "rename":
            nodes[words[3]].names[words[4]] = nodes[words[1]].names.pop(words[2])
            nodes[words[1]].change()
        elif op == "write":
            nodes[words[1]].write(int(words[2]), bytes.fromhex(words[3]))
        elif op in ("size", "grow"):
            nodes[words[1]].size(int(words[2]), op == "grow")
        elif op == "sync":
            node = nodes[words[1]]
            kind = self.kind(node)
            self.n_syncs[kind] += 1
            if kind not in self.skip:
                node.sync()
        else:
            raise AssertionError(op)

    def states(self, path):
        """What the folder at `path` may hold after a cut here: names and bytes, each once; and how that came."""
        found = {}
        for names in ("synced", "current"):
            folder = self.nodes[self.root]
            for part in path:
                folder = (folder.history[0] if names == "synced" else folder.names).get(part) if folder else None
            for i, held in enumerate(folder.history if folder else [{}]):
                for data in ("synced", "current", "zeros", "torn"):
                    state = tuple(sorted((n, f.left(data)) for n, f in held.items() if isinstance(f, File)))
                    found.setdefault(state, f"names {i} of {len(folder.history) if folder else 0} under {names} folders, data {data}")
        return found


class Reader:
    """A daemon that finds a state as the power cut left it."""

    def __init__(self, folder):
        self.state = os.path.join(folder, "read")
        self.own = os.path.join(self.state, "sessions", str(os.getuid()))
        os.makedirs(self.own)
        self.daemon = Daemon("--state-dir", self.state, "--session-writes", "1GiB")
        self.lane = self.daemon.ready()
        self.known = {}

    def put(self, state):
        shutil.rmtree(self.own)
        os.mkdir(self.own, 0o700)
        for name, data in state:
            with open(os.path.join(self.own, name), "wb") as f:
                f.write(data)

    def finds(self, state):
        """What the session goes on with, and how long it is; the error's text for one that is refused."""
        key = tuple((n, d) for n, d in state if n.startswith((NAME, "." + NAME)))
        if key not in self.known:
            self.put(state)
            self.known[key] = ask(self.lane, " The", 10)
        return self.known[key]

    def written(self, state):
        key = ".writes", tuple((n, d) for n, d in state if n == ".writes")
        if key not in self.known:
            self.put(state)
            told = subprocess.run([os.path.join(BUILD, "client/pipit"), "status", "--json", "--runtime-dir", self.daemon.folder],
                                  check=True, capture_output=True)
            self.known[key] = json.loads(told.stdout)["sessions_writes"]["written"]
        return self.known[key]

    def close(self):
        self.lane.close()
        self.daemon.stop()


def ask(lane, text, n):
    events = list(lane.events(lane.request(item(T_PROMPT, text) + item(T_SESSION, NAME) +
                                           sampling(max_tokens=n, flags=S_IGNORE_END), flags=F_SESSION)))
    end = events[-1]
    if end.type != DONE:
        return end.text
    assert (end.reason, end.session) == ("length", 1), end
    return text_of(events), end.n_prompt


def record(folder, reader):
    """The calls of some turns, with a line after each that the client was told of; what each turn leaves."""
    root, log = os.path.join(folder, "root"), os.path.join(folder, "calls")
    os.mkdir(root)
    own = os.path.join(root, "state", "sessions", str(os.getuid()))
    d = Daemon("--state-dir", os.path.join(root, "state"), "--session-writes", "1GiB",
               env={"LD_PRELOAD": PRELOAD, "POWER_LOG": log, "POWER_ROOT": root,
                    "ASAN_OPTIONS": ":".join(o for o in (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0") if o)})
    lane = d.ready()
    turns = [reader.finds(())]
    for i, (text, n) in enumerate(TURNS):
        ask(lane, text, n)
        with open(log, "a", encoding="ascii") as f:
            f.write(f"told {i + 1}\n")
        state = []
        for name in os.listdir(own):
            with open(os.path.join(own, name), "rb") as f:
                state.append((name, f.read()))
        turns.append(reader.finds(tuple(sorted(state))))
    with open(log, "a", encoding="ascii") as f:
        f.write("removing\n")
    subprocess.run([os.path.join(BUILD, "client/pipit"), "session", "rm", NAME, "--runtime-dir", d.folder], check=True, capture_output=True)
    lane.close()
    assert d.stop() == 0, d.text()
    assert len(set(turns)) == len(turns), turns
    with open(log, encoding="ascii") as f:
        return os.stat(root).st_ino, [line.split() for line in f], turns


def replay(root, calls, turns, reader, skip=()):
    """Wrong states, and how many were looked at."""
    path = ("state", "sessions", str(os.getuid()))
    disk, told, may, wrong, n_states, counts = Disk(root, skip), 0, turns[:2], [], 0, {0}
    for i, words in enumerate(calls):
        if words[0] == "told":
            told = int(words[1])
            may = turns[told:told + 2]
        elif words[0] == "removing":
            may = turns[told], turns[0]
        else:
            disk.do(words)
        folder = disk.nodes[disk.root]
        for part in path:
            folder = folder.names.get(part) if folder else None
        if folder:
            counts.add(reader.written(tuple((n, f.data) for n, f in folder.names.items() if n == ".writes")))
        for state, how in disk.states(path).items():
            n_states += 1
            found, count = reader.finds(state), reader.written(state)
            if found not in may:
                wrong.append(f"call {i} ({' '.join(words)[:60]}), {told} turns told, {how}: {found}")
            if count not in counts:
                wrong.append(f"call {i} ({' '.join(words)[:60]}), {how}: {count} bytes counted, not of {sorted(counts)}")
    return wrong, n_states, disk.n_syncs


def main():
    folder = tempfile.mkdtemp(prefix="power-")
    reader = Reader(folder)
    try:
        root, calls, turns = record(folder, reader)
        wrong, n_states, n_syncs = replay(root, calls, turns, reader)
        print(f"{len(calls)} calls, syncs {n_syncs}, {n_states} states, {len(reader.known)} different: {len(wrong)} wrong")
        print("\n".join(wrong[:20]))
        for kind in n_syncs:
            left_out = replay(root, calls, turns, reader, (kind,))[0]
            print(f"without the syncs of kind {kind}: {len(left_out)} wrong" + (f", e.g. {left_out[0]}" if left_out else ""))
            if not left_out:
                wrong.append(f"a missing sync of kind {kind} is not noticed")
                print(wrong[-1])
    finally:
        reader.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
