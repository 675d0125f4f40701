/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/attention_prefetch.h"

#include "kernels/cpu/attention.h"

enum {
    /* Lines to ask for while a page's logits become weights of one head, and while noise is drawn
     * for them: about one each 12 cycles, the pace of memory on a Sapphire Rapids Xeon. */
    SOFT_LINES = 8,
    NOISE_LINES = 32,
};

static int32_t slots_end(const struct att_span *c)
{
    return c->kv->n_slots - c->slot0 < KV_CHUNK ? c->kv->n_slots : c->slot0 + KV_CHUNK;
}

static void add_block(struct att_prefetch *a, const uint8_t *block)
{
    if (a->n < ATT_PREFETCH_BLOCKS) {
        a->block[a->n++] = block;
    }
}

static void add_blocks(struct att_prefetch *a, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += KV_PREFETCH_BYTES) {
        add_block(a, from + i);
    }
}

/* ---- pages of whole blocks: a little ahead of reading ---- */

static bool whole_blocks(const struct ops_kv_layout *l)
{
    return (l->page_bytes | kv_page_k_bytes(l) | kv_page_v_bytes(l)) % KV_PREFETCH_BYTES == 0;
}

static void add_in_order(struct att_prefetch *a, const struct att_span *c, int32_t limit)
{
    const struct ops_kv *kv = c->kv;
    const struct ops_kv_layout *l = c->kv->layout;
    const size_t k_bytes = (size_t)l->k_heads * kv_page_k_bytes(l);
    const size_t v_bytes = (size_t)l->v_heads * kv_page_v_bytes(l);
    int32_t end = slots_end(c);

    for (int32_t s = c->slot0; s < end && a->n < limit; s += OPS_PAGE_SLOTS) {
        add_blocks(a, kv_page_of(kv, c->group, s), k_bytes);
    }
    for (int32_t s = c->slot0; s < end && a->n < limit; s += OPS_PAGE_SLOTS) {
        add_blocks(a, kv_page_of(kv, c->group, s) + k_bytes, v_bytes);
    }
}

/* ---- others: the next chunk ---- */

/* The blocks of a stretch; those at its ends move into it, so that nothing else is asked for, and
 * some lines twice. */
static void add_stretch(struct att_prefetch *a, const uint8_t *from, const uint8_t *end)
{
    const uint8_t *last = end - KV_PREFETCH_BYTES;

    for (const uint8_t *at = from - (uintptr_t)from % KV_PREFETCH_BYTES; at < end;
         at += KV_PREFETCH_BYTES) {
        add_block(a, at < from ? from : at > last && last >= from ? last : at);
    }
}

static void add_by_address(struct att_prefetch *a, const struct att_span *c)
{
    const struct ops_kv *kv = c->kv;
    int32_t end = slots_end(c);
    const uint8_t *from = kv_page_of(kv, c->group, c->slot0);
    const uint8_t *to = from;

    for (int32_t s = c->slot0; s < end; s += OPS_PAGE_SLOTS) {
        uint8_t *page = kv_page_of(kv, c->group, s);

        if (page != to) {
            add_stretch(a, from, to);
            from = page;
        }
        to = kv_page_rows(c->kv->layout, page,
                          0); /* its copies for queries that select are not read here */
    }
    add_stretch(a, from, to);
}

/* ---- both ---- */

static void ask_for_positions(const struct att_span *c)
{
    const struct ops_kv *kv = c->kv;

    for (int32_t i = 0; kv->slot_pos && i < KV_CHUNK; i += 64 / (int32_t)sizeof(int32_t)) {
        __builtin_prefetch(
            kv->slot_pos + (size_t)c->group * (size_t)kv->cap + (size_t)(c->slot0 + i), 0, 3);
    }
}

/* Shares the lines of n blocks out to the chunk's keys, weights and values; returns how many of
 * them keys do not ask for while they are read. */
static int32_t set_pace(const struct att_span *c, int32_t n, struct att_prefetch *a)
{
    const struct ops_kv_layout *l = c->kv->layout;
    const int32_t end = slots_end(c);
    const int32_t n_pages = (end - c->slot0 + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    const int32_t steps = n_pages * c->n_heads;
    const int32_t k_lines = n_pages * (int32_t)((size_t)l->k_heads * kv_page_k_bytes(l) / 64);
    const int32_t read =
        k_lines + n_pages * (int32_t)((size_t)l->v_heads * kv_page_v_bytes(l) / 64);
    int32_t lines = 64 * n;

    a->soft = SOFT_LINES + (c->noisy ? NOISE_LINES : 0);
    a->soft = steps * a->soft > lines / 4 * 3 ? lines / 4 * 3 / steps : a->soft;
    lines -= a->soft * steps;
    lines = lines < read ? lines : read;
    a->a.stream = 0;
    a->a.offset = 0;
    a->a.due = 0;
    a->a.step = (uint32_t)((uint64_t)lines * KV_PREFETCH_LINE / (uint64_t)read);
    return k_lines - (int32_t)((int64_t)k_lines * lines / read);
}

static void look_ahead_skewed(const struct att_span *c, const struct att_span *next,
                              const uint8_t *weights, struct att_prefetch *a)
{
    int32_t lead;
    int32_t n;

    add_in_order(a, c, ATT_PREFETCH_BLOCKS);
    lead = (set_pace(c, a->n, a) + KV_PREFETCH_LOT + 63) / 64;
    n = a->n + lead + KV_PREFETCH_SKEWED + 1;
    a->on = n <= ATT_PREFETCH_BLOCKS;
    if (!a->on) {
        return;
    }
    if (next && whole_blocks(next->kv->layout)) {
        add_in_order(a, next, n);
    } else if (weights) {
        add_blocks(a, weights, KV_PREFETCH_SKEWED * KV_PREFETCH_BYTES);
    }
    for (; a->n < n; a->n++) { /* nothing known: what is in the caches already */
        a->block[a->n] = a->block[0];
    }
    a->a.block = a->block + lead;
    a->a.n_streams = 0;
}

static void look_ahead_abreast(const struct att_span *c, const struct att_span *next,
                               const uint8_t *weights, struct att_prefetch *a)
{
    int32_t batches;

    if (next) {
        add_by_address(a, next);
    } else if (weights) {
        add_blocks(a, weights, KV_PREFETCH_SKEWED * KV_PREFETCH_BYTES);
    }
    a->on = a->n > 0;
    if (!a->on) {
        return;
    }
    batches = (a->n + KV_PREFETCH_ABREAST - 1) / KV_PREFETCH_ABREAST;
    a->a.n_streams = (uint32_t)((a->n + batches - 1) / batches);
    for (uint32_t i = 0; i < a->a.n_streams; i++) { /* a batch that is not full, rounding */
        a->block[a->n + (int32_t)i] = a->block[a->n - 1];
    }
    a->a.block = a->block;
    (void)set_pace(c, a->n, a);
}

void att_look_ahead(const struct att_span *c, const struct att_span *next, const uint8_t *weights,
                    struct att_prefetch *a)
{
    a->n = 0;
    a->soft = 0;
    if (next) {
        ask_for_positions(next);
    }
    if (whole_blocks(c->kv->layout)) {
        look_ahead_skewed(c, next, weights, a);
    } else {
        look_ahead_abreast(c, next, weights, a);
    }
}

void att_ask_at_once(const struct att_span *c)
{
    struct att_prefetch a;

    a.n = 0;
    if (whole_blocks(c->kv->layout)) {
        add_in_order(&a, c, KV_PREFETCH_SKEWED);
    } else {
        add_by_address(&a, c);
    }
    for (int32_t i = 0; i < KV_PREFETCH_BYTES; i += 64) {
        for (int32_t j = 0; j < a.n; j++) {
            __builtin_prefetch(a.block[j] + i, 0, 2);
        }
    }
}
