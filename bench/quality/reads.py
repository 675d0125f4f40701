# SPDX-License-Identifier: Apache-2.0
"""Bytes of K and V that one new token asks for and moves under a policy, as a share of what `full` in f16 does, for SmolLM2's
shape (30 layers, head dims of 64, one K and one V head a group). Asked for: the elements, by the formulas of
docs/design/sparse-attention.md. Moved: lines of 64 bytes of the cpu's pages, by layout: kernels/kv_lines.c once more, since a table is made without
a build; of lines that hold many slots the mean over choices. tests/tools/test_quality.py holds them against figures of the former."""

LAYERS, RESIDENT, DIM, PAGE, LINE = 30, 2, 64, 64, 64  # infinigen reads the first two layers whole
# Bits of one element, scales among them (blocks of 32 with an f16 scale).
BITS = {"f16": 16, "fp8": 8 + 16 / DIM, "kv8": 8 + 16 / DIM, "k16v8": (16 + 8 + 16 / DIM) / 2, "q8_0": 8.5, "q4_0": 4.5}
# Bytes of one element of K (0: K by slot, in blocks), of a head of V of one slot (and of such K), of the scale of K and of V.
TYPES = {"f16": (2, 128, 0, 0), "fp8": (1, 64, 2, 2), "kv8": (1, 64, 2, 2), "k16v8": (2, 64, 0, 2), "q8_0": (0, 68, 0, 0),
         "q4_0": (0, 36, 0, 0)}


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


def part_dims(o):
    return max(1, int(float(o.get("partial", 0.3)) * DIM))


def coded(o):
    """Are infinigen's partial keys in FP8, with a scale a slot?"""
    return o.get("partial8") == "on"


def precision(policy):
    return next((name for name in BITS if name in policy.split("+")), "f16")


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
            part = part_dims(o) * (8 if coded(o) else 16) + (16 if coded(o) else 0)  # bits
            part /= BITS[precision(policy)]
            whole, some_ = 2 * live * DIM + 2 * DIM, live * part + 2 * chosen * DIM + 2 * DIM
            return (RESIDENT * whole + (LAYERS - RESIDENT) * some_) / LAYERS
    return 2 * live * DIM + 2 * DIM


def asked(policy, live, tokens):
    """`live`: slots that hold tokens (run.py's tokens_per_step); `tokens`: those of the text, which full reads."""
    n = elements(policy, live)
    return None if n is None else n * BITS[precision(policy)] / ((2 * tokens * DIM + 2 * DIM) * BITS["f16"])


# ---- lines -------------------------------------------------------------------------------------------------------------

def chance(n, k, w):
    """That w slots hold one of k that lie anywhere among n."""
    none = 1.0
    for i in range(w):
        none *= max(0, n - k - i) / (n - i)
    return 1 - none


def some(n, k, local, row_bytes):
    """Of rows of row_bytes, 64 a page: lines that hold some of k of the n, the latest `local` and any others."""
    hit, ret = {}, 0.0
    for page in range(0, n, PAGE):
        for i in range(PAGE * row_bytes // LINE):
            first, last = page + i * LINE // row_bytes, page + (i * LINE + LINE - 1) // row_bytes
            if first >= n:
                break
            last = min(last, n - 1)
            w = last - first + 1
            if k >= n or last >= n - local:
                ret += 1
                continue
            if w not in hit:
                hit[w] = chance(n - local, k - local, w)
            ret += hit[w]
    return ret


def all_lines(n, row_bytes):
    return some(n, n, 0, row_bytes) if row_bytes else 0


def lines(policy, live, layout=None):
    """Of one layer's head group, mean over layers; `layout` in place of the policy's own."""
    n = round(live)
    element, row, k_scale, v_scale = TYPES[precision(policy)]
    keys = DIM * all_lines(n, element) if element else all_lines(n, row)
    whole = keys + all_lines(n, row) + all_lines(n, k_scale) + all_lines(n, v_scale)

    def values(k, local):
        return some(n, k, local, row) + (some(n, k, local, v_scale) if v_scale else 0)

    for word in policy.split("+"):
        name, o = options(word)
        if name == "sparq":
            free = o.get("mode") == "as-shipped"
            k = int(o.get("k", 128)) + free
            local, r = int(o.get("local", int(o.get("k", 128)) // 4)) + free, int(o.get("r", 32))
            layout = layout or o.get("layout", "once")
            if layout == "once":
                ranked = r * all_lines(n, element) + (DIM - r) * some(n, k, local, element)
            elif layout == "2k":
                ranked = r * all_lines(n, element) + some(n, k, local, DIM * element)
            else:
                ranked = r * all_lines(n, 1) + all_lines(n, 2) + some(n, k, local, DIM * element)
            scales = 0 if not k_scale else some(n, k, local, 2) if layout == "rank8" else all_lines(n, 2)
            return ranked + scales + values(k, local)
        if name == "topv":
            return keys + all_lines(n, k_scale) + values(int(o[""]), 0)
        if name == "infinigen":
            if "share" not in o:
                return None
            k = max(1, (n - 1) * int(o["share"].rstrip("%")) // 100) + 1
            part = part_dims(o) * all_lines(n, 1 if coded(o) else 2) + (all_lines(n, 2) if coded(o) else 0)
            chosen = DIM * some(n, k, 1, element) + (some(n, k, 1, k_scale) if k_scale else 0) + values(k, 1)
            return (RESIDENT * whole + (LAYERS - RESIDENT) * (part + chosen)) / LAYERS
    return whole


def moved(policy, live, tokens, layout=None):
    n = lines(policy, live, layout)
    return None if n is None else n / lines("full", tokens)


def held_2k(policy):
    """Bytes held with layout=2k by those held without: K twice."""
    element, row, k_scale, v_scale = TYPES[precision(policy)]
    k, v = DIM * element + k_scale, row + v_scale
    return (k + DIM * element + v) / (k + v)
