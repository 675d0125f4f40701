#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The weighted mean of two overlays of one run: what a later one learnt, with less of what it forgot (Wortsman et al. 2022, arXiv
2203.05482: means of weights that were trained on from one place are as good as either, and often better).

    mean.py --model BASE.gguf --overlay EARLIER.gguf LATER.gguf --share 0.6 --out MEAN.gguf

Both have the same split, dims and fixed frequencies, and the same groups, or the later one parts of the earlier's; tokens and
stage are the later one's."""

import argparse

import torch

import model
import overlay
import weights
import wide


NOTES = "general.license", "pipit.distill.tokens", "pipit.distill.stage"


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="GGUF file that both are for")
    p.add_argument("--overlay", nargs=2, required=True, metavar=("EARLIER", "LATER"))
    p.add_argument("--share", type=float, default=0.5, help="of the later one, 0 to 1")
    p.add_argument("--quant", default="Q8_0")
    p.add_argument("--out", required=True)
    o = p.parse_args(argv)
    if not 0 <= o.share <= 1:
        p.error(f"--share {o.share}: 0 to 1")
    frozen = model.Frozen(weights.read(o.model), torch.device("cpu"), torch.float32)
    shape, later, reader = wide.opened(o.overlay[1], frozen)
    if overlay.has_outputs(o.overlay[0], overlay.shape(o.overlay[0])[2]) != shape[-1]:
        raise SystemExit(f"distill: one of {o.overlay[0]} and {o.overlay[1]} has outputs of its own")
    first = wide.blank(shape, frozen)
    overlay.load(o.overlay[0], first)
    state, more = first.state_dict(), later.state_dict()
    different = [k for k, v in first.named_buffers() if not torch.equal(v, more[k])] if set(state) == set(more) else ["tensors"]
    if different:
        raise SystemExit(f"distill: {o.overlay[1]} differs in {different[0]}, of which there is no mean")
    first.longest = max(first.longest, later.longest) if first.longest and later.longest else None
    with torch.no_grad():
        for a, b in zip(first.parameters(), later.parameters()):
            a.lerp_(b, o.share)
    overlay.write(o.out, first, o.quant, notes={k: reader.fields[k].contents() for k in NOTES if k in reader.fields})


if __name__ == "__main__":
    main()
