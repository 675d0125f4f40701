# SPDX-License-Identifier: Apache-2.0
"""Token shards and the order in which they are seen.

A data folder holds manifest.json and, for each shard, NAME.bin (uint16 token ids, documents one after another) and,
where only answers are to be learnt, NAME.mask (uint8, 1: an answer's token). The manifest's "shards" is a list of
{"name", "tokens", "repeat"}; `repeat` (default 1) is how many passes over the shard make one epoch. A shard whose documents have "aligned" tokens
each is cut between them, where that is the context.

Order is a function of seed, epoch and context alone: a run that resumes with the number of sequences seen goes on
exactly where it was. Each epoch cuts the shards at another offset."""

import hashlib
import json
import pathlib

import numpy as np
import torch


class Shards:
    def __init__(self, folder, ctx, seed, fixed=False):
        """fixed: later epochs cut the shards where the first did, so that what is kept of a sequence serves all of them."""
        folder = pathlib.Path(folder)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
        except (OSError, ValueError) as e:
            raise SystemExit(f"distill: {folder}: no manifest of token shards (make_data.py makes it): {e}") from e
        self.ctx, self.seed, self.fixed, self.shards, self.aligned = ctx, seed, fixed, [], []
        # of what decides which tokens the n-th sequence has
        self.fingerprint = hashlib.sha256(json.dumps(
            [seed, ctx, [[s["name"], s["tokens"], s.get("repeat", 1), s.get("sha256")] for s in manifest["shards"]]]
        ).encode()).hexdigest()
        for s in manifest["shards"]:
            tokens = np.memmap(folder / (s["name"] + ".bin"), np.uint16, "r")
            mask = folder / (s["name"] + ".mask")
            mask = np.memmap(mask, np.uint8, "r") if mask.exists() else None
            self.shards.append((tokens, mask, int(s.get("repeat", 1))))
            self.aligned.append(s.get("aligned") == ctx)
        self.tokens = sum(len(t) for t, _, _ in self.shards)
        self._epoch, self._order = -1, None
        if not self._places(0):
            raise SystemExit(f"distill: {folder}: no shard holds {ctx + 1} tokens")

    def _places(self, epoch):
        rng = np.random.default_rng([self.seed, 0 if self.fixed else epoch, self.ctx])
        out = []
        for i, (tokens, _, repeat) in enumerate(self.shards):
            for _ in range(repeat):
                start = 0 if self.aligned[i] else int(rng.integers(0, self.ctx))
                out += [(i, at) for at in range(start, len(tokens) - self.ctx, self.ctx)]
        if self.fixed and epoch:
            rng = np.random.default_rng([self.seed, epoch, self.ctx])
        return [out[k] for k in rng.permutation(len(out))]

    def count(self):
        """Sequences of an epoch."""
        return self.place(0)[1]

    def place(self, n):
        """(shard, first token) of the n-th sequence, and how many an epoch has."""
        epoch = 0
        while True:
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._places(epoch)
            if n < len(self._order):
                return self._order[n], len(self._order)
            n, epoch = n - len(self._order), epoch + 1

    def commonest(self, n):
        """The n commonest token ids of all shards, ascending; fewer where there are not so many."""
        count = sum(np.bincount(t, minlength=65536) * repeat for t, _, repeat in self.shards)
        order = np.argsort(-count, kind="stable")[:n]
        return sorted(int(i) for i in order if count[i] > 0)

    def sequence(self, n):
        """The n-th sequence of the run: tokens (ctx + 1) and mask (ctx + 1), 1 everywhere without a mask file."""
        (shard, at), _ = self.place(n)
        tokens, mask, _ = self.shards[shard]
        end = at + self.ctx + 1
        return tokens[at:end].astype(np.int64), np.ones(self.ctx + 1, bool) if mask is None else mask[at:end] != 0

    def batch(self, first, n, device):
        """tokens (n, ctx + 1) and mask (n, ctx): whether a position's *next* token is to be learnt."""
        rows = [self.sequence(first + i) for i in range(n)]
        tokens = torch.from_numpy(np.stack([t for t, _ in rows])).to(device)
        mask = torch.from_numpy(np.stack([m[1:] for _, m in rows])).to(device)
        return tokens, mask
