# SPDX-License-Identifier: Apache-2.0
"""Bytes of K and V that one new token reads and writes under a policy, as a share of what `full` in f16 does: by the
formulas of docs/sparq.md and docs/infinigen.md, of SmolLM2's shape (30 layers, head dims of 64, one K and one V head a
group). Asked for, not moved: what moves depends on the layout (docs/sparq.md, "What is read")."""

LAYERS, RESIDENT, DIM = 30, 2, 64  # infinigen reads the first two layers whole
# Bits of one element, scales among them (DESIGN 5.6; blocks of 32 with an f16 scale).
BITS = {"f16": 16, "fp8": 8 + 16 / DIM, "kv8": 8 + 16 / DIM, "k16v8": (16 + 8 + 16 / DIM) / 2, "q8_0": 8.5, "q4_0": 4.5}


def options(word):
    """("sparq", {"r": "8", "k": "96"}) of one word of a policy."""
    name, _, rest = word.partition(":")
    ret = {}
    for i, part in enumerate(rest.split(",") if rest else []):
        key, eq, value = part.partition("=")
        if eq:
            ret[key] = value
        elif i == 0:
            ret[""] = key
    return name, ret


def elements(policy, live):
    """Of one layer's head group with one K and one V head, `live` slots holding tokens; mean over layers. None where that is told by
    the data alone (infinigen's alpha)."""
    for word in policy.split("+"):
        name, o = options(word)
        if name == "sparq":
            k = min(live, int(o.get("k", 128)) + (o.get("mode") == "as-shipped"))
            return live * int(o.get("r", 32)) + 2 * k * DIM + 4 * DIM
        if name == "topv":
            return live * DIM + min(live, int(o[""])) * DIM + 2 * DIM
        if name == "infinigen":
            if "share" not in o:
                return None
            chosen = float(o["share"].rstrip("%")) / 100 * live + 1
            part = round(float(o.get("partial", 0.3)) * DIM)
            whole, some = 2 * live * DIM + 2 * DIM, live * part + 2 * chosen * DIM + 2 * DIM
            return (RESIDENT * whole + (LAYERS - RESIDENT) * some) / LAYERS
    return 2 * live * DIM + 2 * DIM


def share(policy, live, tokens):
    """`live`: slots that hold tokens (run.py's tokens_per_step); `tokens`: those of the text, which full reads."""
    bits = next((b for name, b in BITS.items() if name in policy.split("+")), BITS["f16"])
    n = elements(policy, live)
    return None if n is None else n * bits / ((2 * tokens * DIM + 2 * DIM) * BITS["f16"])
