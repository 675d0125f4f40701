#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws processes.svg, request.svg and cache.svg of docs/design into the folder of this script, or --out DIR.

A picture is a list of boxes, arrows and texts in pixels; nothing is laid out by itself."""

import argparse
import html
import pathlib

STYLE = """<style>
text { font: 13px sans-serif; fill: #1b1b1b } .b { font-weight: bold } .s { font-size: 11px; fill: #555 } .m { font: 12px monospace }
</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" fill="#444"/></marker></defs>
"""
FILL = {"user": "#eef3fb", "front": "#e3f1e6", "engine": "#fbeede", "gateway": "#f3e6f5", "page": "#e3f1e6", "free": "#ffffff",
        "old": "#d9d9d9", "store": "#f7f7f7", "device": "#fbeede", "host": "#eef3fb", "disk": "#eeeeee"}


class Picture:
    def __init__(self, width, height):
        self.size, self.parts = (width, height), []

    def box(self, x, y, w, h, fill, *lines, round_=6):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{round_}" fill="{FILL[fill]}" stroke="#666"/>')
        for i, line in enumerate(lines):
            self.text(x + 10, y + 20 + 16 * i, line, "b" if i == 0 else "s")

    def text(self, x, y, line, kind="", anchor="start"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{html.escape(line)}</text>')

    def arrow(self, x1, y1, x2, y2, both=False, dash=False):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#444" marker-end="url(#a)"'
                          + (' marker-start="url(#a)"' if both else "") + (' stroke-dasharray="4 3"' if dash else "") + "/>")

    def write(self, path):
        w, h = self.size
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}">\n{STYLE}'
                        f'<rect width="{w}" height="{h}" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def processes():
    p = Picture(840, 330)
    p.box(10, 20, 200, 60, "user", "pipit, C, Python", "programs with libpipit")
    p.box(10, 130, 200, 60, "user", "any language", "programs with ZeroMQ, protobuf")
    p.box(270, 130, 180, 60, "gateway", "pipit-gateway", "ZeroMQ, protobuf, no state")
    p.box(510, 20, 310, 110, "front", "pipitd, the front", "limits, queue, journal, supervision",
          "knows no model, reads no text", "survives the other two")
    p.box(510, 200, 310, 110, "engine", "pipit-engine", "the model, the device, the cache", "I/O thread, worker thread, pool of threads",
          "a crash costs a reload and a replay")
    p.arrow(210, 50, 508, 50, both=True)
    p.text(359, 42, "lane: records of 256 bytes,", "s", "middle")
    p.text(359, 68, "bulk data in shared memory", "s", "middle")
    p.arrow(210, 160, 268, 160, both=True)
    p.text(239, 150, "zmq", "s", "middle")
    p.arrow(450, 150, 508, 100, both=True)
    p.text(272, 208, "privileged lane: names users", "s")
    p.arrow(620, 132, 620, 198, both=True)
    p.arrow(720, 132, 720, 198, dash=True)
    p.text(632, 170, "requests,", "s")
    p.text(632, 184, "tokens", "s")
    p.text(732, 177, "starts, watches", "s")
    p.box(10, 240, 440, 70, "free", "systemd", "holds the sockets and the journal's memory file while the front restarts;",
          "pipitd starts without it, too")
    p.arrow(450, 260, 560, 132, dash=True)
    return p


def request():
    p = Picture(890, 400)
    columns = [(90, "client", "user"), (310, "front", "front"), (540, "engine: I/O", "engine"),
               (760, "engine: worker", "engine")]
    for x, name, fill in columns:
        p.box(x - 85, 10, 170, 32, fill, name)
        p.parts.append(f'<line x1="{x}" y1="42" x2="{x}" y2="390" stroke="#999"/>')
    c, f, i, w = (x for x, _, _ in columns)

    def step(y, a, b, line, note=""):
        p.arrow(a, y, b, y)
        p.text((a + b) / 2, y - 6, line, "", "middle")
        p.text((a + b) / 2, y + 14, note, "s", "middle")

    step(75, c, f, "REQUEST, 16-byte id", "prompt in a lease")
    p.text(f + 8, 100, "checks limits, copies it", "s")
    p.text(f + 8, 114, "into the journal", "s")
    step(135, f, c, "ACCEPTED")
    p.text(f + 8, 150, "waits for its turn", "s")
    step(185, f, i, "ENGINE_REQUEST", "when a sequence is free")
    step(225, i, w, "token ids", "chat template, tokenizer")
    p.text(w + 8, 258, "admit", "s")
    p.text(w + 8, 272, "prefill", "s")
    p.text(w + 8, 286, "decode, step", "s")
    p.text(w + 8, 300, "by step", "s")
    step(290, w, i, "token")
    step(310, i, f, "TOKEN")
    p.text(f + 8, 328, "journal: seq n", "s")
    step(330, f, c, "TOKEN, seq n")
    p.text(550, 345, "... for every token, then release", "s")
    step(375, f, c, "DONE", "kept for 30 s: RESUME from any seq")
    return p


def cache():
    p = Picture(900, 430)
    p.text(10, 22, "layers", "b")
    p.text(170, 22, "stores", "b")
    p.text(390, 22, "a page table: pages of 64 slots, one head group", "b")
    rows = [(40, "layer 0", "store 0"), (80, "layer 1", "store 1"), (150, "layers 14 to 29", "store 14, shared")]
    for y, layer, store in rows:
        p.box(10, y, 130, 30, "user", layer)
        p.box(170, y, 150, 30, "store", store)
        p.arrow(140, y + 15, 168, y + 15)
        for k in range(6):
            full = k < 4
            p.parts.append(f'<rect x="{390 + 50 * k}" y="{y}" width="44" height="30" fill="{FILL["page" if full else "free"]}" stroke="#666"'
                           + ("" if full else ' stroke-dasharray="3 3"') + "/>")
        p.arrow(320, y + 15, 388, y + 15)
    p.text(60, 134, "...", "", "middle")
    p.text(700, 60, "filled: pages that are used", "s")
    p.text(700, 76, "dashed: reserved when the", "s")
    p.text(700, 90, "sequence was admitted", "s")
    p.text(10, 222, "slots of a page", "b")
    for k, (label, fill) in enumerate([("0", "page"), ("1", "page"), ("90", "page"), ("3", "page"), ("57", "old"), ("88", "page"),
                                       ("89", "page"), ("", "free")]):
        p.parts.append(f'<rect x="{10 + 44 * k}" y="236" width="44" height="34" fill="{FILL[fill]}" stroke="#666"/>')
        p.text(32 + 44 * k, 258, label, "m", "middle")
    p.text(376, 250, "A slot holds K and V of one token; the number is its position.", "s")
    p.text(376, 266, "Grey: the victim, which the next token overwrites. Nothing is copied.", "s")
    p.text(10, 306, "kinds of store", "b")
    for x, lines in [(10, ("paged", "any position in any slot;", "may evict, may be selected from")),
                     (230, ("ring", "a sliding window; the oldest", "position is overwritten"))]:
        p.box(x, 318, 205, 62, "store", *lines)
    p.text(470, 306, "homes: where K and V are", "b")
    for x, fill, lines in [(470, "device", ("device", "every store,", "by default")), (610, "host", ("host", "beside a GPU:", "pool=host")),
                           (750, "disk", ("disk", "a file: pool=disk,", "full=spill"))]:
        p.box(x, 318, 125, 62, fill, *lines)
    p.text(470, 400, "From host and disk, slots are fetched one layer ahead of their use.", "s")
    return p


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    out = a.parse_args().out
    for draw in (processes, request, cache):
        draw().write(out / f"{draw.__name__}.svg")


if __name__ == "__main__":
    main()
