#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stage full on a GPU that is lent for minutes: train.py's student, loss and overlay, in a loop that never waits for the device.

    gpu.py --seconds 300 --device cuda --model BASE.gguf --data DIR --run RUN --split 14 --group 16 --wide 128+256 --place P.json
           --batch 16 --lr 2e-3 --warmup 40 --ema 0.98 --steps 1

--seconds bounds the whole process, from --began on (seconds since 1970, if the clock ran before). First the sizes of micro-batches
and the attention kernels are timed, then every one of --trials for --trial seconds on the same text, each from the start, with a rate that
falls at its end; the one whose KL on held-out text is least goes on from where it came, along a half cosine by the clock, to
min-lr at the end. All positions are trained: the kernels that keep no scores know causal masks alone.

Text is on the device as a whole. Every report copies losses to the host, and the weights beside them: a loss that is not finite, or
three times what it was, puts these back and halves the rate. RUN gets overlay.gguf (the running mean of the weights or the last ones,
by the held-out KL) and place.json, once in the middle and at the end, whatever ends the run; overlay-before.gguf is the one that was
there before, log.txt has all lines.

--look-back texts are --look-back-share of a batch's sequences, at least one; half of a text's weight is its answers'."""

import argparse
import contextlib
import json
import math
import signal
import sys
import time
import traceback

import torch

import checkpoint
import loss
import ops
import overlay
import train
import weights
from muon import Muon

ROWS = 8192  # of the head at once
ANSWER = 6.0  # the most that an answer's position weighs in a look-back text
HELD = 2  # sequences at every shard's end that are never trained


class TimeUp(Exception):
    pass


def options(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, required=True, help="of the whole process")
    p.add_argument("--began", type=float, default=time.time())
    p.add_argument("--margin", type=float, default=14, help="seconds before the end when training stops")
    p.add_argument("--micros", default="16,8", help="sequences at once, to be timed; divisors of --batch")
    p.add_argument("--kernels", default="flash,cudnn", help="attention kernels to be timed (flash, cudnn, efficient, math)")
    p.add_argument("--trial", type=float, default=0, help="seconds of each trial")
    p.add_argument("--trials", default="adamw:1e-3,adamw:2.5e-3,muon:2e-3,muon:5e-3", help="optimizer:rate, ...")
    mine, rest = p.parse_known_args(argv)
    o = train.options(rest)
    if o.stage != "full" or o.loss != "kl" or o.hidden or o.cache != "none" or o.share != 1 or o.states or o.on != "all":
        p.error("stage full by KL at all positions, without --hidden, --cache and --states")
    return mine, o


class Texts:
    """All shards on the device, and where the n-th sequence begins."""

    def __init__(self, shards, device, held=0):
        self.shards, self.ctx, self.held, self.at, self.skip = shards, shards.ctx, [], [], []
        rows, total = [], 0
        for tokens, _, _ in shards.shards:
            self.at.append(total)
            keep = held * self.ctx + 1 if len(tokens) > 8 * held * self.ctx else 0
            self.skip.append(len(tokens) - keep)
            self.held += [total + len(tokens) - keep + i * self.ctx for i in range(held if keep else 0)]
            rows.append(torch.from_numpy(tokens.astype("int32")))
            total += len(tokens)
        self.tokens = torch.cat(rows).to(device)
        self.window = torch.arange(self.ctx + 1, device=device)
        self.held = torch.tensor(self.held, device=device, dtype=torch.int64)
        self.n, self.queue = 0, None

    def ahead(self, first, n):
        """Places of the sequences `first` and on, n of them, made at once so that no step waits for the host."""
        starts, number, epoch = [], 0, 0
        while len(starts) < n:
            order = self.shards._places(epoch)
            starts += [(self.at[shard] + at, number + i) for i, (shard, at) in enumerate(order)
                       if number + i >= first and at + self.ctx + 1 <= self.skip[shard]]
            number, epoch = number + len(order), epoch + 1
        starts = starts[:n]
        self.numbers = [i for _, i in starts]
        self.queue, self.n = torch.tensor([s for s, _ in starts], device=self.tokens.device), 0

    def take(self, n):
        if self.n + n > len(self.queue):
            self.n = 0  # more than was ever planned
        self.n += n
        return self.rows(self.queue[self.n - n:self.n])

    def rows(self, starts):
        return self.tokens[starts[:, None] + self.window].long()

    def seen(self, first):
        """The number after the last sequence taken."""
        return self.numbers[self.n - 1] + 1 if self.n else first


class Gpu:
    def __init__(self, mine, o):
        self.mine, self.o, self.end = mine, o, mine.began + mine.seconds
        self.run = r = train.Run(o)
        self.frozen, self.student, self.device, self.params = r.frozen, r.student, r.device, r.params
        self.cuda = self.device.type == "cuda"
        self.log_file = open(o.run / "log.txt", "a")
        self.text = Texts(r.data, self.device, HELD)
        self.text.ahead(r.sequences, 65536)
        self.back, self.n_back = None, 0
        if r.back:
            self.back = Texts(r.back, self.device)
            self.n_back = max(1, round(o.batch * o.look_back_share))
            self.back.ahead(r.looked, 4 * r.back.count())
            self.weights = self.answer_weights()
        self.n_plain, self.micro = o.batch - self.n_back, None
        self.first = [p.detach().clone() for p in self.params]
        self.mean = [p.clone() for p in self.first]
        self.start = r.sequences, r.looked
        self.steps = 0
        self.kept = None
        self.say(f"{sum(p.numel() for p in self.params) / 1e6:.2f} M parameters, {len(self.text.tokens) / 1e6:.1f} M tokens of text, "
                 f"{len(self.text.held)} sequences held out, {self.n_back} of {o.batch} look back, on {self.name()}")

    def name(self):
        return torch.cuda.get_device_name() if self.cuda else "cpu"

    def left(self):
        return self.end - time.time()

    def say(self, line):
        line = f"{time.time() - self.mine.began:6.1f} s  {line}"
        print(line, flush=True)
        print(line, file=self.log_file, flush=True)

    def answer_weights(self):
        """(tokens of all look-back texts,) f32: a text's answers weigh half of it, as far as ANSWER allows; 1 on average."""
        out = []
        for (tokens, mask, _) in self.run.back.shards:
            m = torch.ones(len(tokens)) if mask is None else torch.from_numpy((mask[:] != 0).astype("float32"))
            s = self.o.ctx
            docs = torch.nn.functional.pad(m, (0, -len(m) % s)).view(-1, s)
            n = docs.sum(1, keepdim=True)
            w = (s / 2 / n.clamp(min=1)).clamp(max=ANSWER)
            out.append((docs * w + (1 - docs) * ((s - n * w) / (s - n).clamp(min=1)).clamp(min=0)).flatten()[:len(m)])
        return torch.cat(out).to(self.device)

    def batch(self):
        """tokens (batch, ctx + 1), weights (batch, ctx) or None."""
        tokens = self.text.take(self.n_plain)
        if not self.back:
            return tokens, None
        at = self.back.n if self.back.n + self.n_back <= len(self.back.queue) else 0
        looked = self.back.take(self.n_back)
        starts = self.back.queue[at:at + self.n_back]
        w = self.weights[starts[:, None] + self.back.window[1:]]
        w = w / w.mean(1, keepdim=True)
        return torch.cat((tokens, looked)), torch.cat((torch.ones(len(tokens), self.o.ctx, device=self.device), w))

    def losses(self, tokens, weight=None):
        o, f = self.o, self.frozen
        x = f.shallow(tokens[:, :-1], o.split)
        final = f.last_norm(f.through(x.clone(), o.split, f.w.n_layers))
        last, _ = self.student.outcome(x)
        return loss.head_kl(f.last_norm(last).flatten(0, 1), final.flatten(0, 1), f.head, o.temperature, ROWS,
                            None if weight is None else weight.flatten())

    def gradients(self, tokens, weight, micro):
        """Their loss, still on the device."""
        total = torch.zeros((), device=self.device)
        for p in self.params:
            p.grad = None
        for at in range(0, len(tokens), micro):
            part = self.losses(tokens[at:at + micro], None if weight is None else weight[at:at + micro]) * (micro / len(tokens))
            part.backward()
            total += part.detach()
        return total

    def optimizer(self, kind, lr):
        o = self.o
        if kind == "muon":
            return Muon(self.params, lr, o.betas, o.weight_decay, self.run.dtype)
        return torch.optim.AdamW(self.params, lr=lr, betas=tuple(o.betas), weight_decay=o.weight_decay, **({"fused": True} if self.cuda else {}))

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    @torch.no_grad()
    def kl(self):
        total, n, micro = 0.0, len(self.text.held), self.micro or 1
        for at in range(0, n, micro):
            some = self.text.rows(self.text.held[at:at + micro])
            total += self.losses(some).item() * len(some) / n
        return total

    def kernels(self, name):
        from torch.nn.attention import SDPBackend as B, sdpa_kernel
        order = {"flash": [B.FLASH_ATTENTION, B.EFFICIENT_ATTENTION, B.MATH], "cudnn": [B.CUDNN_ATTENTION, B.FLASH_ATTENTION, B.MATH],
                 "efficient": [B.EFFICIENT_ATTENTION, B.MATH], "math": [B.MATH]}[name]
        return sdpa_kernel(order, set_priority=True)

    def fastest(self):
        """Times (kernel, sequences at once); takes the quickest whose loss and gradient are the first's."""
        tokens, weight = self.text.rows(self.text.queue[:self.o.batch]), None
        best, reference = None, None
        for kernel in self.mine.kernels.split(",") if self.cuda else ["math"]:
            for micro in [n for n in map(int, self.mine.micros.split(",")) if self.o.batch % n == 0] or [1]:
                if best and self.left() < 0.8 * self.mine.seconds:
                    continue
                try:
                    with self.kernels(kernel):
                        self.gradients(tokens[:micro], weight, micro)
                        self.wait()
                        t = time.time()
                        total = self.gradients(tokens, weight, micro)
                        norm = torch.nn.utils.get_total_norm([p.grad for p in self.params])
                        found = total.item(), norm.item()
                        rate = tokens[:, 1:].numel() / (time.time() - t)
                except (RuntimeError, torch.OutOfMemoryError) as e:
                    self.say(f"{kernel} {micro}: {str(e).splitlines()[0][:150]}")
                    for p in self.params:
                        p.grad = None
                    continue
                right = all(map(math.isfinite, found))
                reference = reference or (found if right else None)
                right = right and all(abs(a - b) < 0.03 * b for a, b in zip(found, reference))
                memory = torch.cuda.max_memory_allocated() / 2**30 if self.cuda else 0
                self.say(f"{kernel} {micro}: {rate:.0f} tokens/s, loss {found[0]:.5f}, gradient {found[1]:.4f}, {memory:.1f} GiB"
                         f"{'' if right else ': NOT THE SAME, not taken'}")
                if right and (not best or rate > best[0] * 1.02):
                    best = rate, kernel, micro
        if not best:
            raise SystemExit("gpu: no kernel and size of micro-batch works")
        self.micro = best[2]
        self.say(f"takes {best[1]}, {best[2]} sequences at once")
        return self.kernels(best[1])

    def put(self, values):
        with torch.no_grad():
            torch._foreach_copy_(self.params, values)

    def course(self, opt, lr, until, fall, warmup, reports, half=None):
        """Trains until then. The rate falls over the last share `fall` of the time."""
        o, began, steps = self.o, time.time(), 0
        marks, sums, norms, scale, lowest = [], [], [], 1.0, math.inf
        since, seen, step_of_mean = began, 0, 0
        while (now := time.time()) < until:
            done = max(0.0, (now - began) / (until - began) - (1 - fall)) / fall
            rate = lr * scale * min(1.0, (steps + 1) / max(1, warmup)) * (o.min_lr + (1 - o.min_lr) * 0.5 * (1 + math.cos(math.pi * done)))
            tokens, weight = self.batch()
            sums.append(self.gradients(tokens, weight, self.micro))
            norms.append(torch.nn.utils.clip_grad_norm_(self.params, o.clip))
            for group in opt.param_groups:
                group["lr"] = rate
            opt.step()
            steps += 1
            step_of_mean += 1
            if o.ema and reports:
                torch._foreach_lerp_(self.mean, [p.detach() for p in self.params], max(1 - o.ema, 1 / step_of_mean))
            if self.cuda:  # at most two steps are asked for ahead of the device
                marks.append(torch.cuda.Event())
                marks[-1].record()
                if len(marks) > 2:
                    marks.pop(0).synchronize()
            if reports and len(sums) >= reports:
                got, norm = torch.stack(sums).mean().item(), torch.stack(norms).max().item()
                now = time.time()
                self.say(f"step {steps} loss {got:.5f} gradient {norm:.3f} lr {rate:.6f} "
                         f"tokens_s {(steps - seen) * o.batch * o.ctx / (now - since):.0f}")
                since, seen, sums, norms = now, steps, [], []
                if not math.isfinite(got + norm) or got > 3 * lowest:
                    scale *= 0.5
                    self.restore(opt)
                    step_of_mean = 0
                    self.say(f"not finite, or far above {lowest:.4f}: weights as before, rate times {scale}")
                    continue
                lowest = min(lowest, got)
                self.keep()
                if half and now > half:
                    half = None
                    self.export("half time")
        self.wait()
        if reports:
            self.steps = steps
        else:
            got = torch.stack(sums[-8:]).mean().item() if sums else math.nan
            return steps, got

    def keep(self):
        """The weights as they are, on the device to go back to, on the host against its loss."""
        copy = lambda values: [p.detach().clone() for p in values]
        self.kept = copy(self.params), copy(self.mean)
        self.host = [[p.cpu() for p in some] for some in self.kept]

    def restore(self, opt):
        values, mean = self.kept or (self.first, self.first)
        self.put(values)
        torch._foreach_copy_(self.mean, mean)
        opt.state.clear()

    def trials(self):
        """(optimizer, rate) whose short course ends best, and its weights put into the student."""
        best, tried = None, self.mine.trials.split(",")
        place = self.text.n, self.back.n if self.back else 0
        for one in tried:
            kind, lr = one.split(":")
            self.put(self.first)
            self.text.n = place[0]
            if self.back:
                self.back.n = place[1]
            opt = self.optimizer(kind, float(lr))
            steps, got = self.course(opt, float(lr), time.time() + self.mine.trial, 0.5, 8, 0)
            kl = self.kl()
            self.say(f"trial {one}: {steps} steps, loss {got:.5f}, held out {kl:.5f}")
            if math.isfinite(kl) and (not best or kl < best[0]):
                best = kl, kind, float(lr), [p.detach().clone() for p in self.params], opt
        if not best:
            self.put(self.first)
            return "adamw", 5e-4, None
        self.put(best[3])
        self.say(f"goes on with {best[1]}, {best[2]}")
        return best[1:3] + (best[4],)

    def export(self, why, values=None):
        """overlay.gguf and place.json from `values`, or from the mean."""
        o, r, path = self.o, self.run, self.o.run / "overlay.gguf"
        r.sequences, r.looked = self.text.seen(self.start[0]), self.start[1]
        if self.back and self.back.n:
            r.looked = self.back.seen(self.start[1])
        r.step += self.steps
        self.steps = 0
        if self.student.longest is not None:
            self.student.longest = max(self.student.longest, o.ctx)

        def write(new):
            mine = [p.data for p in self.params]
            try:
                for p, v in zip(self.params, values or self.mean):
                    p.data = v
                overlay.write(str(new), self.student, o.quant, notes={
                    "general.license": "apache-2.0", "pipit.distill.tokens": r.tokens(), "pipit.distill.stage": o.stage})
            finally:
                for p, v in zip(self.params, mine):
                    p.data = v
        checkpoint.export(o.run, write, lambda new: json.dumps({
            "overlay": path.name, "sha256": weights.sha256(str(new)), "stage": o.stage, "step": r.step, "sequences": r.sequences,
            "looked": r.looked, "looked_of": r.looked_of, "ctx": o.ctx, "spent": round(r.spent + time.time() - self.mine.began, 1),
            "before": r.before, "tokens": r.tokens(), "data": r.data.fingerprint}, indent=1) + "\n", "overlay-before.gguf")
        self.say(f"{path}: {why}, {r.tokens()} tokens in all")

    def finish(self):
        """The better of mean and last weights."""
        found = {}
        if self.left() > self.mine.margin / 2:
            last = [p.detach().clone() for p in self.params]
            for name, values in (("last", last), ("mean", self.mean)):
                self.put(values)
                found[name] = self.kl(), values
                self.say(f"held out, {name}: {found[name][0]:.5f}")
        good = {n: f for n, f in found.items() if math.isfinite(f[0])}
        name = min(good, key=lambda n: good[n][0]) if good else "mean"
        self.export(f"the {name} weights", good[name][1] if good else None)

    def lost(self):
        """Without the device: the last weights that the host has."""
        if self.kept:
            self.student.freqs = self.freqs
            self.export("from the host's copy", self.host[1])

    def train(self):
        self.freqs = self.student.freqs.cpu() if self.student.dims else None
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.fastest())
            before = self.kl()
            self.say(f"held out, at the start: {before:.5f}")
            kind, lr, opt = self.o.optimizer, self.o.lr, None
            if self.mine.trial:
                kind, lr, opt = self.trials()
            opt = opt or self.optimizer(kind, lr)
            self.mean = [p.detach().clone() for p in self.params]
            self.keep()
            until = self.end - self.mine.margin
            self.course(opt, lr, until, self.o.fall, self.o.warmup, self.o.report_every, time.time() + (until - time.time()) / 2)
            self.finish()


def main():
    mine, o = options(sys.argv[1:])
    torch.set_float32_matmul_precision("high")  # of the maps' products; all others are bf16

    def up(*_):
        raise TimeUp
    signal.signal(signal.SIGALRM, up)
    signal.signal(signal.SIGTERM, up)
    signal.setitimer(signal.ITIMER_REAL, max(1, mine.began + mine.seconds - time.time() - mine.margin / 3))
    gpu = Gpu(mine, o)
    try:
        gpu.train()
    except BaseException:  # what is there is written, whatever it was
        traceback.print_exc()
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            gpu.export("what was there")
        except BaseException:
            traceback.print_exc()
            gpu.lost()
        sys.exit(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
