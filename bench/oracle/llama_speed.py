#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of llama.cpp (Python package llama-cpp-python) through its C interface, in pipit-bench's CSV columns.

    prefill N   from the first llama_decode of N tokens to its end, one sequence
    first N     the same as a time: ms until the first token could be drawn
    decode D    the median step of one token a sequence at depth D, for --batch sequences

Samples and steps during which the kernel took a CPU away (involuntary context switches) do not count where others
are there. Random token ids; the sampler is left out, only llama_decode is timed. Each setting is K and V's type, with
`-flash` for flash attention: f16, f16-flash, q8_0-flash (llama.cpp quantises V only with flash attention).

Reading 7900 tokens takes llama.cpp half a minute, so with --states DIR a sequence of each setting is read once, saved
there by llama.cpp itself, and loaded from then on; shallower depths are that one cut."""

import argparse
import ctypes
import importlib.metadata
import os
import resource
import statistics
import time

import llama_cpp as L

SAVED_DEPTHS = (512, 7900)
HEADER = "model,kv,what,tokens,batch,value,min,max,unit,repeats,clean,weight_bytes,kv_bytes,read_gb_s,share,ratio,byte_ratio"


def switches():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def resident_kb(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key))


class Setting:
    """One context: a type of K and V, flash attention or not."""

    def __init__(self, model, name, o, n_ctx_seq):
        self.name, self.o = name, o
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        p = L.llama_context_default_params()
        p.n_ctx = n_ctx_seq * o.batch
        p.n_seq_max = o.batch
        p.n_batch = 2048
        p.n_ubatch = 512
        p.n_threads = p.n_threads_batch = o.threads
        p.type_k = p.type_v = {"f16": 1, "q8_0": 8}[name.split("-")[0]]
        p.flash_attn_type = 1 if name.endswith("-flash") else 0
        self.ctx = L.llama_init_from_model(model, p)
        if not self.ctx:
            raise SystemExit(f"llama.cpp refuses {name}")
        self.memory = L.llama_get_memory(self.ctx)
        self.one = L.llama_batch_init(o.batch, 0, 1)
        self.many = L.llama_batch_init(2048, 0, 1)

    def clear(self):
        L.llama_memory_clear(self.memory, True)

    def put(self, b, i, token, pos, seq, logits):
        b.token[i] = token
        b.pos[i] = pos
        b.n_seq_id[i] = 1
        b.seq_id[i][0] = seq
        b.logits[i] = logits

    def run(self, b):
        if L.llama_decode(self.ctx, b):
            raise SystemExit(f"llama_decode failed under {self.name}")
        L.llama_synchronize(self.ctx)

    def read(self, n, salt, seq=0):
        for at in range(0, n, 2048):
            part = min(2048, n - at)
            self.many.n_tokens = part
            for i in range(part):
                self.put(self.many, i, ((at + i) * 2654435761 + salt) % self.vocab, at + i, seq, at + i == n - 1)
            self.run(self.many)

    def step(self, pos, salt):
        self.one.n_tokens = self.o.batch
        for s in range(self.o.batch):
            self.put(self.one, s, (pos * 97 + s + salt) % self.vocab, pos, s, True)
        before = switches()
        t = time.perf_counter()
        self.run(self.one)
        return time.perf_counter() - t, switches() == before

    def state_path(self, depth):
        model = os.path.basename(self.o.model)
        return os.path.join(self.o.states, f"{model}.{importlib.metadata.version('llama_cpp_python')}.{self.name}.{depth}")

    def make_states(self):
        for depth in SAVED_DEPTHS:
            path = self.state_path(depth)
            if not os.path.exists(path):
                self.clear()
                self.read(depth, 1)
                tokens = (ctypes.c_int32 * depth)()
                if not L.llama_state_seq_save_file(self.ctx, (path + ".new").encode(), 0, tokens, depth):
                    raise SystemExit(f"llama.cpp saved no state to {path}")
                os.rename(path + ".new", path)

    def go_to(self, depth):
        """Every sequence to a depth."""
        self.clear()
        # A context of several sequences keeps each apart, and does not load what one of a single sequence saved.
        saved = next((d for d in SAVED_DEPTHS if d >= depth), 0) if self.o.states and self.o.batch == 1 else 0
        for s in range(self.o.batch):
            if depth <= 1 or not saved or not os.path.exists(self.state_path(saved)):
                self.read(depth, 1, s)
                continue
            tokens = (ctypes.c_int32 * saved)()
            n = ctypes.c_size_t(0)
            if not L.llama_state_seq_load_file(self.ctx, self.state_path(saved).encode(), s, tokens, saved,
                                               ctypes.byref(n)):
                raise SystemExit(f"llama.cpp does not load {self.state_path(saved)}")
            if saved > depth:
                L.llama_memory_seq_rm(self.memory, s, depth, -1)


def prefill(s, n, salt):
    s.clear()
    before = switches()
    t = time.perf_counter()
    s.read(n, salt)
    return n / (time.perf_counter() - t), switches() == before


def decode(s, depth, salt):
    """Tokens a second of one sample: all sequences, from where the last sample stopped."""
    steps = [s.step(depth + i, salt) for i in range(s.o.n_new)]
    clean = [t for t, ok in steps if ok]
    ok = len(clean) >= (len(steps) + 1) // 2
    return s.o.batch / statistics.median(clean if ok else [t for t, _ in steps]), ok


def report(name, what, n, batch, samples, unit="tok/s"):
    clean = [v for v, ok in samples if ok]
    v = sorted(clean or [v for v, _ in samples])
    print(f"llama.cpp,{name},{what},{n},{batch},{statistics.median(v):.1f},{v[0]:.1f},{v[-1]:.1f},{unit},"
          f"{len(samples)},{len(clean)},,,,,,", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--model", required=True)
    a.add_argument("--prefill", default="", help="lengths, by commas")
    a.add_argument("--first", default="", help="lengths, by commas")
    a.add_argument("--depth", default="", help="depths, by commas")
    a.add_argument("--settings", default="f16,f16-flash,q8_0-flash")
    a.add_argument("--n-new", type=int, default=32)
    a.add_argument("--batch", type=int, default=1)
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--repeats", type=int, default=3)
    a.add_argument("--ctx", type=int, default=0)
    a.add_argument("--states", help="folder of saved sequences")
    a.add_argument("--prepare", action="store_true", help="only make the saved sequences")
    a.add_argument("--resident", action="store_true", help="print resident memory, less Python's own")
    a.add_argument("--version", action="store_true")
    a.add_argument("--header", action="store_true")
    o = a.parse_args()
    if o.version:
        print(importlib.metadata.version("llama_cpp_python"))
        return
    silent = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(silent, ctypes.c_void_p(0))
    L.llama_backend_init()
    own = resident_kb("VmRSS:")
    model = L.llama_model_load_from_file(o.model.encode(), L.llama_model_default_params())
    lengths = [int(n) for n in o.prefill.split(",") if n]
    firsts = [int(n) for n in o.first.split(",") if n]
    depths = [max(1, int(n)) for n in o.depth.split(",") if n]
    if o.states:
        os.makedirs(o.states, exist_ok=True)
    if o.header:
        print(HEADER)
    for name in o.settings.split(","):
        longest = max([*lengths, *firsts] + [d + o.n_new * o.repeats + 4 for d in depths] + [o.ctx])
        if o.states and (o.prepare or depths):  # room to load what is cut then
            longest = max([longest] + [d + 8 for d in SAVED_DEPTHS if o.prepare or d <= 512 or max(depths) > 512])
        s = Setting(model, name, o, longest)
        if o.prepare:
            s.make_states()
        for n in lengths:
            prefill(s, 16, 0)
            report(name, "prefill", n, 1, [prefill(s, n, r) for r in range(o.repeats)])
        for n in firsts:
            prefill(s, 16, 0)
            samples = [prefill(s, n, r) for r in range(o.repeats)]
            report(name, "first", n, 1, [(n / v * 1e3, ok) for v, ok in samples], "ms")
        for d in depths:
            s.go_to(d)
            for i in range(3):
                s.step(d + i, 0)
            report(name, "decode", d, o.batch, [decode(s, d + 3 + r * o.n_new, r) for r in range(o.repeats)])
        if o.resident:
            s.clear()
            s.read(o.ctx - o.n_new, 1)
            for i in range(o.n_new):
                s.step(o.ctx - o.n_new + i, 0)
            kb = resident_kb("VmRSS:") - own
            print(f"llama.cpp,{name},resident,{o.ctx},1,{kb * 1024 / 1e6:.1f},,,MB,,,,,,,,", flush=True)
        L.llama_free(s.ctx)


if __name__ == "__main__":
    main()
