#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Knowledge-preserving distillation of a checkpoint into its SwiftKV form (Qiao et al. 2024, arXiv 2410.03960, section 3 and B.1).

    train.py --model BASE.gguf --data DIR --run RUN --split 14 --group 16 --minutes 60

RUN holds state.pt (resume: give the same command again), log.jsonl (one line a report), overlay.gguf and place.json, from
which --place goes on where state.pt is lost (run_all.py keeps them). What is
trained: norm_swiftkv, each deep layer's q, the leaders' k and v, with --outputs each deep layer's o; all else is frozen and
shared with the teacher.

Two stages. `attention`: each deep layer's attention alone learns to add what the teacher's adds, from the teacher's
own input to that layer; no head, no way back through layers, so it is quick, and it undoes the worst of averaging
projections whose heads have nothing in common. `full`: the paper's, KL of the outputs, plus the hidden-state term.

A third trains the early-exit head that `exit:P` asks at decode: `exit`, by the same KL, nothing else being touched.

A loss that is not finite ends the run, names the step, and leaves the last good state."""

import argparse
import json
import math
import os
import pathlib
import signal
import sys
import time

# Read when PyTorch loads its OpenMP: threads of it that spin for work would take the processors from those of ops.each().
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

import checkpoint
import course
import fit
import loss
import model
import ops
import overlay
import peak
import states
import weights
import wide
from data import Shards
from muon import Muon

# Bytes a trained parameter that --states leaves free: state.pt, the one before and the next, each the weights, the optimizer's two
# moments and the running mean in f32; an overlay and the next.
ROOM = 4 * (3 * 4 + 2)


def options(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="GGUF file or Hugging Face folder")
    p.add_argument("--base-gguf", help="with a folder: the GGUF that overlays are for")
    p.add_argument("--data", required=True, help="folder of token shards")
    p.add_argument("--run", required=True, type=pathlib.Path)
    p.add_argument("--split", type=int, required=True)
    p.add_argument("--group", default=1, type=lambda g: int(g) if g.isdigit() else tuple(map(int, g.split(","))),
                   help="layers that share a store: how many, or the sizes of all groups (\"1,14,1\")")
    p.add_argument("--kv-heads", type=int, help="of the shared stores, if not the model's own number")
    p.add_argument("--wide", metavar="K+V", help="stores of one wide head, of so many dims of K and of V (\"160+224\"), or of so many in all "
                   "(\"384\"), whose division --start fit searches")
    p.add_argument("--states", type=pathlib.Path, help="folder where the teacher's split and last states are kept, 4 bytes a token and dim, "
                   "and read again in later epochs, which then cut the text at the same places; not with --hidden or another stage than full")
    p.add_argument("--fill", action="store_true", help="with --states: do not train; keep the states of every second sequence, in the order in "
                   "which a run of the same options takes them, which then finds them. For a second process beside it; SIGTERM ends it")
    p.add_argument("--visits", type=int, default=1, help="with --states and --share: how often a sequence comes, each time at other "
                   "positions, before the next ones do")
    p.add_argument("--look-back", type=pathlib.Path, help="folder of lookback.py, whose texts are --look-back-share of all sequences, for "
                   "one epoch of them")
    p.add_argument("--look-back-share", type=float, default=0.1)
    p.add_argument("--look-back-others", type=float, default=1.0, help="positions of a look-back text beside its answers', as a share of these")
    p.add_argument("--outputs", action="store_true", help="train the deep layers' output projections too; the overlay brings them")
    p.add_argument("--start", choices=("mean", "fit"), default="mean",
                   help="mean: of a group's projections; fit: least squares from the teacher's states (fit.py)")
    p.add_argument("--fit-sequences", type=int, default=64, help="of the data, for --start fit")
    p.add_argument("--resume-from", help="start from this overlay instead of what --start makes")
    p.add_argument("--stage", choices=("attention", "full", "exit"), default="full")
    p.add_argument("--exit-words", type=int, default=4095,
                   help="stage exit: rows of a new head, for the commonest words of the data; one more is for all others")
    p.add_argument("--train", choices=("projections", "all"), default="projections",
                   help="all: the paper's control, every weight of the deep layers; no overlay can hold that")
    p.add_argument("--loss", choices=("kl", "lm"), default="kl", help="lm: the paper's control without a teacher")
    p.add_argument("--temperature", type=float, default=2.0)
    p.add_argument("--hidden", type=float, default=0.0, help="weight of the hidden-state term")
    p.add_argument("--on", choices=("all", "answers"), default="all", help="positions of the KL")
    p.add_argument("--share", type=float, default=1.0,
                   help="share of positions drawn for the loss of stages full and exit; in full the student's deep layers run at "
                   "these alone (in whole 32s; with --on answers at all)")
    p.add_argument("--cache", choices=("none", "fp8", "kv8"), default="none", help="8-bit cache in the loop")
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--batch", type=int, default=8, help="sequences of a step")
    p.add_argument("--micro", type=int, default=4, help="sequences at once; halved when memory runs out")
    p.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=0.05, help="share of lr at the end")
    p.add_argument("--fall", type=float, default=1.0, help="last share of the run in which the rate falls; before it is constant")
    p.add_argument("--warmup", type=int, default=20, help="steps")
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--betas", type=float, nargs=2, default=(0.9, 0.99))
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--ema", type=float, default=0.0,
                   help="export the running mean of the weights, this share of it kept a step (it stands in for the "
                        "end of a falling rate, whenever the run is stopped)")
    p.add_argument("--minutes", type=float, default=0, help="stop after; lr falls along a half cosine towards it")
    p.add_argument("--steps", type=int, default=0, help="stop after, and the cosine's length, if --minutes is not")
    p.add_argument("--place", type=pathlib.Path,
                   help="a place.json of an earlier run, the overlay beside it: goes on from there where state.pt is gone or behind")
    p.add_argument("--session-minutes", type=float, default=0, help="stop this session after; the rate's length is --steps'")
    p.add_argument("--session-steps", type=int, default=0, help="the same, in steps")
    p.add_argument("--save-every", type=float, default=180, help="seconds between states")
    p.add_argument("--report-every", type=int, default=10, help="steps between log lines")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--ops", choices=("auto", "amx", "avx512", "avx512-f16", "avx512-bf16", "avx512-f32", "fused", "torch"), default="auto")
    p.add_argument("--quant", default="Q8_0", help="type of the overlay's projections")
    p.add_argument("--quant-outputs", help="type of its output projections, if another")
    o = p.parse_args(argv)
    if o.outputs and o.train == "all":
        p.error("--train all has the output projections in it: leave out --outputs")
    if not 0 < o.share <= 1:
        p.error(f"--share {o.share}: more than 0, at most 1")
    if not o.minutes and not o.steps:
        p.error("give --minutes or --steps")
    if o.states and (o.stage != "full" or o.hidden or o.cache != "none"):
        p.error("--states keeps what stage full without --hidden and --cache asks of the teacher")
    if not 0 < o.fall <= 1:
        p.error(f"--fall {o.fall}: more than 0, at most 1")
    if o.fill and not o.states:
        p.error("--fill: with --states, which it fills")
    if o.visits < 1 or (o.visits > 1 and not o.states):
        p.error("--visits: 1 or more, with --states")
    if o.look_back and (o.stage != "full" or o.loss != "kl" or o.hidden or o.cache != "none" or not 0 < o.look_back_share < 1):
        p.error("--look-back: with stage full, without --hidden and --cache, and a share between 0 and 1")
    if o.wide:
        try:
            o.wide = [int(n) for n in o.wide.split("+")]
        except ValueError:
            p.error(f"--wide {o.wide}: dims as 160+224, or 384")
        if len(o.wide) > 2 or any(n < 32 or n % 2 for n in o.wide) or (len(o.wide) == 1 and o.start != "fit" and not o.resume_from):
            p.error("--wide: one even number of dims from 32 on with --start fit, or two")
        if o.kv_heads or o.train == "all" or o.stage == "attention":
            p.error("--wide: not with --kv-heads, --train all or --stage attention")
        if o.start != "fit" and not o.resume_from:
            p.error("--wide: --start fit fills its maps, or --resume-from")
    return o


class Run:
    def __init__(self, o):
        self.o = o
        self.device = torch.device(o.device)
        self.dtype = torch.bfloat16 if o.dtype == "bf16" else torch.float32
        if o.threads:
            torch.set_num_threads(o.threads)
        torch.manual_seed(o.seed)
        self.ops = ops.use("torch" if self.device.type == "cuda" else o.ops)
        w = weights.read(o.model)
        if o.base_gguf:
            w.sha256 = weights.sha256(o.base_gguf)
        self.frozen = model.Frozen(w, self.device, self.dtype)
        self.data = Shards(o.data, o.ctx, o.seed, fixed=bool(o.states))
        o.run.mkdir(parents=True, exist_ok=True)
        self.state_path = str(o.run / "state.pt")
        state = self.last_state()
        if o.wide:
            self.student = wide.Wide(self.frozen, o.split, o.group, self.wide_dims(state), o.cache, o.outputs)
        else:
            self.student = model.Student(self.frozen, o.split, o.group, o.kv_heads, o.cache, o.outputs, o.train == "all")
        if o.resume_from:
            overlay.load(o.resume_from, self.student)
        if o.wide and not (state or o.resume_from or o.place):  # its sizes are found, so before there is an optimizer
            wide.WideFit(self.student, self.data, o.fit_sequences).apply(o.wide[0] if len(o.wide) == 1 else None)
        self.states = states.States(o.states, w.sha256, self.data, o.split, w.n_embd) if o.states else None
        self.back = self.back_states = None
        if o.look_back:
            self.back = Shards(o.look_back, o.ctx, o.seed, fixed=True)
            self.back_states = states.States(o.states / "look-back", w.sha256, self.back, o.split, w.n_embd) if o.states else None
        if o.stage == "exit" and self.student.exit_words is None and state and state.get("exit_words"):
            self.student.add_exit(state["exit_words"])
        elif o.stage == "exit" and self.student.exit_words is None:
            if not 1 <= o.exit_words < len(w.embed):
                raise SystemExit(f"distill: --exit-words: {o.exit_words} is not in 1..{len(w.embed) - 1}")
            self.student.add_exit(self.data.commonest(o.exit_words))
            if o.start == "fit":
                fit.exit_head(self.student, self.data, o.fit_sequences)
        for name, p in self.student.named_parameters():
            p.requires_grad_(name.startswith("exit_") == (o.stage == "exit"))
        self.params = [p for p in self.student.parameters() if p.requires_grad]
        if o.optimizer == "muon":
            self.opt = Muon(self.params, o.lr, o.betas, o.weight_decay, self.dtype)
        else:
            self.opt = torch.optim.AdamW(self.params, lr=o.lr, betas=tuple(o.betas), weight_decay=o.weight_decay)
        self.step, self.sequences, self.spent, self.micro = 0, 0, 0.0, min(o.micro, o.batch)
        self.before = 0  # tokens that the overlay had seen before this run
        self.anew = 0    # the step at which the optimizer began, for the warm-up
        self.looked = 0  # look-back texts so far, and of which folder
        self.looked_of = self.back.fingerprint if self.back else None
        self.asked = False  # to end after the step at hand
        place = self.place()
        if place and (not state or state["step"] < place["step"]):
            overlay.load(str(o.place.parent / place["overlay"]), self.student)
            self.go_on(place)
            self.anew, state = self.step, None
            print(f"distill: goes on at step {self.step} from {o.place.name}; the optimizer begins anew", flush=True)
        if o.start == "fit" and not (state or place or o.resume_from or o.wide):
            fit.Fit(self.student, self.data, o.fit_sequences).apply()
        self.mean = [p.detach().clone() for p in self.params] if o.ema else None
        for kept in filter(None, (self.states, self.back_states)):
            kept.room = ROOM * sum(p.numel() for p in self.params)
        if state:
            self.student.load_state_dict(state["student"])
            self.opt.load_state_dict(state["opt"])
            self.go_on(state)
            self.student.longest = state.get("longest")
            self.anew = state.get("anew", 0)
            if o.ema:
                self.mean = state.get("mean") or [p.detach().clone() for p in self.params]
            print(f"distill: goes on at step {self.step}", flush=True)

    def go_on(self, kept):
        """Where a state or a place stopped. Numbers of sequences hold for their data: of other data the first epoch begins, as one
        epoch of another folder of look-back texts does."""
        data, back = kept.get("data", self.data.fingerprint), kept.get("looked_of")
        self.step, self.sequences, self.spent = kept["step"], kept["sequences"], kept["spent"]
        self.before, self.looked = kept.get("before", 0), kept.get("looked", 0)
        if self.step and data != self.data.fingerprint:
            print("distill: other data than before: their first epoch begins", flush=True)
            self.before, self.sequences, self.looked = self.tokens(), 0, 0
        if self.looked_of is None:
            self.looked_of = back  # of a session without them the number is kept for the next
        elif back not in (None, self.looked_of):
            print("distill: other look-back texts than before: their epoch begins", flush=True)
            self.before, self.looked = self.before + self.looked * self.o.ctx, 0

    def wide_dims(self, state):
        """K's and V's dims: what an earlier run found, or what is asked for; of a division to be searched anything."""
        o, place = self.o, self.place()
        path = o.resume_from or (place and str(o.place.parent / place["overlay"]))
        if state:
            return tuple(state["dims"])
        if path:
            dims = overlay.wide_dims(overlay.shape(path)[2])
            if not dims:
                raise SystemExit(f"distill: {path} has no wide stores")
            return dims
        return tuple(o.wide) if len(o.wide) == 2 else (32, o.wide[0] - 32)

    def last_state(self):
        """state.pt, or None; an error where it is of another stage."""
        state, o = checkpoint.load(self.state_path, self.device), self.o
        if state and bool(state.get("dims")) != bool(o.wide):
            raise SystemExit(f"distill: {self.state_path} is of {'wide' if state.get('dims') else 'narrow'} stores: give another --run")
        if state and [state.get(k, getattr(o, k)) for k in ("stage", "ctx", "optimizer")] != [o.stage, o.ctx, o.optimizer]:
            raise SystemExit(f"distill: {self.state_path} is of stage {state['stage']}, {state['ctx']} tokens a sequence, by "
                             f"{state.get('optimizer', o.optimizer)}: give another --run, or delete the folder")
        return state

    def place(self):
        """What --place says, if its overlay is the one that it was written for."""
        if not self.o.place:
            return None
        try:
            place = json.loads(self.o.place.read_text())
            found = weights.sha256(str(self.o.place.parent / place["overlay"]))
        except (OSError, ValueError, KeyError) as e:
            raise SystemExit(f"distill: --place {self.o.place}: {e}") from e
        if found != place["sha256"]:
            raise SystemExit(f"distill: {place['overlay']} is not the overlay of {self.o.place.name}: put back the two that were "
                             "written together")
        if place["step"] and (place["stage"], place["ctx"]) != (self.o.stage, self.o.ctx):
            raise SystemExit(f"distill: {self.o.place.name} is of stage {place['stage']}, {place['ctx']} tokens a sequence")
        return place

    def tokens(self):
        """Seen in all."""
        return self.before + (self.sequences + self.looked) * self.o.ctx

    def save(self):
        checkpoint.save(self.state_path, {"student": self.student.state_dict(), "opt": self.opt.state_dict(),
                                          "step": self.step, "sequences": self.sequences, "spent": self.spent,
                                          "mean": self.mean, "dims": list(self.student.dims or ()), "before": self.before, "anew": self.anew,
                                          "looked": self.looked, "looked_of": self.looked_of,
                                          "longest": self.student.longest, "stage": self.o.stage, "ctx": self.o.ctx, "optimizer": self.o.optimizer, "data": self.data.fingerprint,
                                          "exit_words": [int(i) for i in self.student.exit_words]
                                          if self.student.exit_words is not None else None})

    def rate(self):
        o = self.o
        done = self.spent / (60 * o.minutes) if o.minutes else self.step / o.steps
        done = max(0.0, min(done, 1.0) - (1 - o.fall)) / o.fall
        cosine = o.min_lr + (1 - o.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
        return o.lr * min(1.0, (self.step - self.anew + 1) / max(o.warmup, 1)) * cosine

    def chosen(self, mask, n):
        """Positions (flat) of the KL: the answers' if asked, a random share of them, from a generator of the step."""
        index = mask.flatten().nonzero().flatten() if self.o.on == "answers" else torch.arange(n, device=self.device)
        if self.o.share < 1 and len(index):
            index = index[self.drawn(len(index))[:max(1, int(len(index) * self.o.share))].to(self.device)]
        return index

    def n_rows(self, s):
        """How many positions of s the student runs at: as many 32s as come nearest to the share, where tile_layer.c could
        take s of them."""
        if self.o.on == "answers":
            return s
        whole = 32 if s % 32 == 0 else 1
        return max(whole, round(s * self.o.share / whole) * whole)

    def rows(self, s):
        """These positions (ascending), or None for all. From a generator of the step, the same in all its sequences, so that
        smaller micro-batches make the same curve."""
        n = self.n_rows(s)
        return None if n == s else self.drawn(s)[:n].sort().values.to(self.device)

    def drawn(self, n):
        """0 to n - 1 in an order of the step's own."""
        return torch.randperm(n, generator=torch.Generator().manual_seed(self.o.seed * 1000003 + self.sequences))

    def kept_losses(self, tokens, kept, first, at):
        """The same of stage full at the positions `at`, from the teacher's states on disk, `kept`: those of sequences that have none
        are made and written. Without `kept` all are made."""
        o, f, s = self.o, self.frozen, self.student
        if kept:
            x, final = kept.get(f, tokens[:, :-1], first)
        else:
            x = f.shallow(tokens[:, :-1], o.split)
            final = f.last_norm(f.through(x.clone(), o.split, f.w.n_layers))
        last, _ = s.outcome(x, None, at)
        asked = final if at is None else final[:, at]
        total = loss.head_kl(f.last_norm(last).flatten(0, 1), asked.flatten(0, 1), f.head, o.temperature)
        return total, {"kl": total.item()}

    def losses(self, tokens, mask):
        """The loss of a micro-batch and its parts."""
        o, f, s = self.o, self.frozen, self.student
        x = f.shallow(tokens[:, :-1], o.split)
        mine = x if o.cache == "none" else f.shallow(tokens[:, :-1], o.split, o.cache)
        if o.stage == "attention":
            inputs, added = f.run(x, o.split, f.w.n_layers)
            stores = s.stores(mine)
            got = [s.attention(j, h, stores) for j, h in enumerate(inputs[:-1])]
            total = loss.relative(got, added)
            return total, {"attention": total.item()}
        if o.stage == "exit":
            index = self.chosen(mask, x.shape[0] * x.shape[1])
            teacher = f.states(x, o.split, f.w.n_layers)
            logits = s.exit_logits(mine.flatten(0, 1)[index])
            if not len(index):  # nothing is asked for
                total = logits.sum()
            else:
                total = loss.exit_kl(logits, s.exit_words, f.last_norm(teacher[-1]).flatten(0, 1)[index], f.head, o.temperature)
            return total, {"exit": total.item()}
        teacher = None if o.loss == "lm" else f.states(x, o.split, f.w.n_layers)
        at = self.rows(x.shape[1])
        last, hidden = s.outcome(mine, teacher if o.hidden > 0 else None, at)
        asked = lambda t: t if at is None else t[:, at]
        index = self.chosen(mask, x.shape[0] * x.shape[1]) if at is None else slice(None)
        final = f.last_norm(last).flatten(0, 1)[index]
        if not len(final):  # nothing is asked for
            total = final.float().sum()
        elif o.loss == "lm":
            total = loss.lm(final, f.head, asked(tokens[:, 1:]).flatten()[index])
        else:
            total = loss.head_kl(final, f.last_norm(asked(teacher[-1])).flatten(0, 1)[index], f.head, o.temperature)
        parts = {o.loss: total.item()}
        if hidden is not None:
            parts["hidden"] = hidden.item()
            total = total + o.hidden * hidden
        return total, parts

    def jobs(self):
        """Of the step at hand: (how many sequences, what makes their loss), one by one."""
        o, first, at = self.o, self.sequences, None
        if self.states:
            at = self.rows(o.ctx)
        if o.visits > 1:
            number, visit = course.group(self.sequences // o.batch, o.visits, o.seed)
            first = number * o.batch
            at = at if at is None else course.visited(o.seed, number, visit, o.ctx, len(at)).to(self.device)

        def plain(i, n):
            tokens, mask = self.data.batch(i, n, self.device)
            return self.kept_losses(tokens, self.states, i, at) if self.states else self.losses(tokens, mask)

        def looked(i):
            tokens, mask = self.back.batch(i, 1, self.device)
            total, parts = self.kept_losses(tokens, self.back_states, i, course.asked(mask[0].cpu(), o.seed, i, others=o.look_back_others).to(self.device))
            return total, {"kl_back": parts["kl"]}
        done = 0
        while done < o.batch:
            n = min(self.micro, o.batch - done)
            yield n, lambda i=first + done, n=n: plain(i, n)
            done += n
        for i in range(self.n_looked()):
            yield 1, lambda i=self.looked + i: looked(i)

    def n_looked(self):
        """Look-back texts of the step at hand; none once all have come."""
        if not self.back:
            return 0
        left = max(0, self.back.count() - self.looked)
        return min(left, course.extra(self.sequences // self.o.batch, self.o.batch, self.o.look_back_share))

    def gradients(self):
        """Of a step's sequences. Sums over parts of the loss, or None where memory ran out."""
        sums, count, n_looked = {}, {}, self.n_looked()
        self.opt.zero_grad(set_to_none=True)
        for n, made in self.jobs():
            try:
                total, parts = made()
                (total * (n / (self.o.batch + n_looked))).backward()
            except (RuntimeError, MemoryError) as e:
                # on a CPU PyTorch has no type for it
                if not isinstance(e, (torch.OutOfMemoryError, MemoryError)) and "allocate memory" not in str(e):
                    raise
                if self.micro == 1:
                    raise SystemExit(f"distill: step {self.step}: no memory for one sequence: {e}") from e
                self.micro //= 2
                print(f"distill: out of memory: {self.micro} sequences at once from here", flush=True)
                return None
            for k, v in parts.items():
                sums[k] = sums.get(k, 0.0) + v * n
                count[k] = count.get(k, 0) + n
        return {k: v / count[k] for k, v in sums.items()}

    def train_step(self):
        o, sums = self.o, None
        while sums is None:
            sums = self.gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.params, o.clip).item()
        if not all(map(math.isfinite, [norm, *sums.values()])):
            raise SystemExit(f"distill: step {self.step}: not finite (loss {sums}, gradient {norm}); "
                             f"{self.state_path} is the last good state")
        for g in self.opt.param_groups:
            g["lr"] = self.rate()
        self.opt.step()
        for mean, p in zip(self.mean or (), self.params):
            # while few steps are behind, the plain mean of all of them
            mean.lerp_(p.detach(), max(1 - o.ema, 1 / (self.step - self.anew + 1)))
        self.looked += self.n_looked()
        self.step += 1
        self.sequences += o.batch
        sums["grad"] = norm
        return sums

    def fill(self):
        """What --fill says."""
        o, n, looked, made = self.o, self.sequences, self.looked, 0
        every = max(1, round(o.batch * o.look_back_share / (1 - o.look_back_share))) if self.back else 0
        ends = self.data.count(), self.back.count() if self.back else 0
        full = lambda: self.states.full or (self.back and self.back_states.full)
        while not self.asked and not full() and (n < ends[0] or looked < ends[1]):
            for data, kept, first, end in ((self.data, self.states, n, min(n + o.batch, ends[0])),
                                           (self.back, self.back_states, looked, min(looked + every, ends[1]))):
                for i in range(first + first % 2, end, 2):
                    if not self.asked and not full() and kept.read(kept.number(i)) is None:
                        kept.get(self.frozen, data.batch(i, 1, self.device)[0][:, :-1], i)
                        made += not kept.full
            n, looked = n + o.batch, looked + every
        print(f"distill: --fill: the states of {made} sequences are kept", flush=True)

    def done(self):
        o = self.o
        return (o.minutes and self.spent >= 60 * o.minutes) or (o.steps and self.step >= o.steps)

    def ends(self, began, first):
        """The run, or this session of it."""
        o = self.o
        return self.asked or self.done() or (o.session_minutes and time.monotonic() - began >= 60 * o.session_minutes) or \
            (o.session_steps and self.step - first >= o.session_steps)

    def train(self):
        o, began, first = self.o, time.monotonic(), self.step
        best = peak.measured_peak(self.device, self.dtype)
        flops = peak.flops_per_token(self.student, o.stage, o.share, o.ctx, self.n_rows(o.ctx) / o.ctx)
        n = sum(p.numel() for p in self.params)
        print(f"distill: {n / 1e6:.2f} M parameters of {len(self.student.q)} deep layers, {self.data.tokens / 1e6:.1f} M tokens"
              f" of text, {self.ops} operations, {torch.get_num_threads()} threads, peak {best / 1e9:.0f} GFLOP/s,"
              f" {flops / 1e6:.0f} MFLOP a token", flush=True)
        saved = since = time.monotonic()
        sums, steps, seen = {}, 0, self.sequences
        while not self.ends(began, first):
            before = time.monotonic()
            parts = self.train_step()
            now = time.monotonic()
            self.spent += now - before
            for k, v in parts.items():
                sums.setdefault(k, []).append(v)
            steps += 1
            if steps == o.report_every or self.ends(began, first):
                rate = (self.sequences - seen) * o.ctx / (now - since)
                line = {"step": self.step, "tokens": self.sequences * o.ctx, "stage": o.stage,
                        **{k: round(sum(v) / len(v), 5) for k, v in sums.items()},
                        **({"temperature": o.temperature} if o.stage != "attention" and o.loss == "kl" else {}), "lr": round(self.rate(), 7),
                        "minutes": round(self.spent / 60, 2), "tokens_s": round(rate, 1),
                        "peak_share": round(rate * flops / best, 3)}
                self.kept(lambda: checkpoint.append(o.run / "log.jsonl", json.dumps(line) + "\n"))
                print(" ".join(f"{k} {v}" for k, v in line.items()), flush=True)
                sums, steps, since, seen = {}, 0, now, self.sequences
            if now - saved >= o.save_every:
                self.kept(self.save)
                self.kept(lambda: self.export(quiet=True))
                saved = time.monotonic()
        if not all([self.kept(self.save), self.kept(self.export)]):
            raise SystemExit(f"distill: not all of step {self.step} could be written: with more room the same command goes on from what is there")
        return self

    def kept(self, write):
        """Whether it could be written. What could not is written the next time."""
        try:
            write()
            return True
        except OSError as e:
            print(f"distill: {e.filename}: {e.strerror}: what was written before stays", flush=True)
            return False

    def write_overlay(self, path):
        """Of the running mean, where there is one."""
        mine = [p.data for p in self.params]
        try:
            for mean, p in zip(self.mean or (), self.params):
                p.data = mean
            overlay.write(str(path), self.student, self.o.quant, notes={
                "general.license": "apache-2.0", "pipit.distill.tokens": self.tokens(),
                "pipit.distill.stage": self.o.stage}, outputs=self.o.quant_outputs)
        finally:
            for data, p in zip(mine, self.params):
                p.data = data

    def export(self, quiet=False):
        path = self.o.run / "overlay.gguf"
        if self.o.train == "all":
            print(f"distill: {self.step} steps; no overlay: it would replace the base's own tensors", flush=True)
            return
        if self.student.longest is not None:
            self.student.longest = max(self.student.longest, self.o.ctx)
        checkpoint.export(self.o.run, self.write_overlay, lambda new: json.dumps({
            "overlay": path.name, "sha256": weights.sha256(str(new)), "stage": self.o.stage, "step": self.step,
            "sequences": self.sequences, "looked": self.looked, "looked_of": self.looked_of, "ctx": self.o.ctx,
            "spent": round(self.spent, 1), "before": self.before,
            "tokens": self.tokens(), "data": self.data.fingerprint}, indent=1) + "\n")
        if not quiet:
            print(f"distill: {path}: {path.stat().st_size} bytes after {self.step} steps, "
                  f"{self.sequences * self.o.ctx} tokens, {self.tokens()} in all, {self.spent / 60:.1f} minutes", flush=True)


def main():
    o = options()
    try:
        run = Run(o)
        signal.signal(signal.SIGTERM, lambda *_: setattr(run, "asked", True))
        run.fill() if o.fill else run.train()
    except KeyboardInterrupt:
        sys.exit("distill: interrupted; the last state stays")


if __name__ == "__main__":
    main()
