# SPDX-License-Identifier: Apache-2.0
"""The teacher's states on disk, so that a step costs the student alone: of each token the state that enters the split layer and
the last one, normed, both bf16 (4 bytes a token and dim; 2.3 kB for SmolLM2-135M). From the second the head makes the exact
distribution over all words.

A folder holds about.json (whose states these are), states.bin (a sequence's two arrays at its number), and done.bin (a byte a
sequence, 1 once its states are whole). A sequence that has none is computed and written when it is first asked for, so that
filling needs no run of its own and may stop anywhere. When the disk is full, but for the `room` that the run's own files still
need, the run goes on without writing."""

import errno
import json
import os

import torch

import checkpoint


class States:
    def __init__(self, folder, sha256, data, split, width):
        folder.mkdir(parents=True, exist_ok=True)
        about = {"base": sha256, "data": data.fingerprint, "fixed": data.fixed, "split": split, "ctx": data.ctx, "width": width}
        path = folder / "about.json"
        if path.exists():
            found = json.loads(path.read_text())
            other = [k for k in about if found.get(k) != about[k]]
            if other:
                raise SystemExit(f"distill: --states {folder}: states of another {other[0]} ({found.get(other[0])}, asked for "
                                 f"{about[other[0]]}): give another folder")
        else:
            checkpoint.write_text(str(path), json.dumps(about, indent=1) + "\n")
        self.data, self.shape, self.full = data, (2, data.ctx, width), False
        self.bytes = 2 * 2 * data.ctx * width
        self.states, self.done = [os.open(folder / n, os.O_RDWR | os.O_CREAT, 0o644) for n in ("states.bin", "done.bin")]
        self.split, self.numbers = split, {}
        self.room = 0  # bytes that stay free

    def number(self, n):
        """Of the n-th sequence of the run: its rank among an epoch's places."""
        place, _ = self.data.place(n)
        if not self.numbers:
            self.numbers = {p: i for i, p in enumerate(sorted(set(self.data._places(0))))}
        return self.numbers[place]

    def read(self, i):
        if os.pread(self.done, 1, i) != b"\1":
            return None
        raw = os.pread(self.states, self.bytes, i * self.bytes)
        if len(raw) != self.bytes:
            return None
        return torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).view(self.shape)

    def write(self, i, states):
        if self.full:
            return
        try:
            disk = os.fstatvfs(self.states)
            if disk.f_bavail * disk.f_frsize < self.bytes + self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raw = states.contiguous().view(torch.uint8).numpy().tobytes()
            at = 0
            while at < len(raw):
                at += os.pwrite(self.states, raw[at:], i * self.bytes + at)
            os.fdatasync(self.states)
            os.pwrite(self.done, b"\1", i)
        except OSError as e:
            self.full = True
            print(f"distill: --states: {e.strerror}: what is there is used, no more is written", flush=True)

    @torch.no_grad()
    def get(self, f, tokens, first):
        """The split's states (b, s, d) f32 and the last normed ones in the computing type, of sequences `first` and on."""
        split = []
        for b in range(len(tokens)):
            i = self.number(first + b)
            states = self.read(i)
            if states is None:
                x = f.shallow(tokens[b:b + 1], self.split)
                last = f.last_norm(f.states(x, self.split, f.w.n_layers)[-1])
                states = torch.cat((x, last.float())).to(torch.bfloat16).cpu()
                self.write(i, states)
            split.append(states)
        both = torch.stack(split).to(f.device)
        return both[:, 0].float(), both[:, 1].to(f.dtype)
