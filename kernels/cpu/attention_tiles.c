/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows where the CPU multiplies tiles of bf16 (table_tile.h).
 *
 * A block (attention_prefill.c) takes TILE_KEYS slots at a time, cut at multiples of TILE_KEYS of
 * the sequence: their K, and V, become tiles once for all rows of the block; then TILE_QUERIES rows
 * of one query head go together, dot products to softmax to weighted sums, their logits in L1.
 * Queries become tiles once a block.
 *
 * A row's bits: its own products against whole steps of slots, in order; slots it does not see
 * weigh exactly 0, so a step that is left out, or cut short after the last slot that a row sees,
 * changes nothing. The cache's values are rounded to bf16: bf16, fp8 and int8 codes are exact, of
 * four bits level times scale is rounded. So are queries and weights: models trained in bf16 meet
 * nothing coarser than what they were trained with. An f32 cache, GGUF's blocks, softcap, ALiBi and
 * pos=new go the way of attention_prefill.c in f32.
 *
 * Observation takes the weights of the same softmax. */

#include <string.h>

#include "kernels/cpu/attention_block.h"
#include "quant/half.h"

#define LOG2_E 1.44269504f

enum { STEP_PAGES = TILE_KEYS / OPS_PAGE_SLOTS };

/* Of f32 tiles would lose bits; GGUF's blocks are there to be compared with. */
static bool has_tiles(enum ops_kv_type type)
{
    switch (type) {
    case OPS_KV_F16:
    case OPS_KV_BF16:
    case OPS_KV_FP8:
    case OPS_KV_I8:
    case OPS_KV_G4:
        return true;
    case OPS_KV_F32:
    case OPS_KV_Q8_0:
    case OPS_KV_Q4_0:
        break;
    }
    return false;
}

bool att_tiles_serve(const struct att_unit *u)
{
    return u->cpu->table.tile_qk && u->p->softcap == 0 && u->p->alibi_max == 0 &&
           !u->l->k_unrotated && has_tiles(u->l->k_type) && has_tiles(u->l->v_type);
}

int32_t att_tiles_rows(const struct att_unit *u)
{
    /* Behind a long context blocks take about the same time each, so they may be large: a step's
     * slots become tiles once a block. Otherwise the last ones take longest. */
    bool deep = u->seq->pos0 >= 4 * u->seq->n_rows;
    int32_t rows = (deep ? KV_TILE_PAIRS : KV_TILE_PAIRS / 2) / u->n_heads;
    /* two blocks of each group and thread, so that threads end together */
    int32_t share = u->seq->n_rows * u->l->n_groups / (2 * u->cpu->n_threads);

    rows = share < rows ? share : rows;
    rows = rows / TILE_QUERIES * TILE_QUERIES;
    return rows > TILE_QUERIES ? rows : TILE_QUERIES;
}

/* What a step of slots has in common. */
struct step {
    int32_t page; /* the first */
    int32_t slot0;
    int32_t n_slots; /* that exist and some row of the block may see, in whole pages */
    int32_t n_valid; /* that exist */
    int32_t pos_min; /* of the n_slots, -1 where one is empty */
    int32_t pos_max;
};

static int32_t n_kd(const struct att_unit *u)
{
    return (u->l->k_dim + TILE_COLS - 1) / TILE_COLS;
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void load_queries(const struct att_block *b)
{
    const struct att_unit *u = &b->u;
    const size_t tile_row = (size_t)n_kd(u) * TILE_ELEMENTS;

    for (int32_t h = 0; h < u->n_heads; h++) {
        for (int32_t i = 0; i < b->n_rows; i++) {
            const float *q = u->p->q + (size_t)(u->seq->row0 + b->row0 + i) * (size_t)u->p->ldq +
                             (size_t)(u->group * u->n_heads + h) * (size_t)u->l->k_dim;
            int32_t row = h * b->ld_rows + i;

            u->cpu->table.tile_acts(q, u->l->k_dim,
                                    u->t->tile_q + (size_t)(row / TILE_ROWS) * tile_row +
                                        (size_t)(row % TILE_ROWS) * TILE_COLS);
        }
    }
}

static struct step make_step(const struct att_block *b, int32_t page)
{
    const struct att_unit *u = &b->u;
    struct step s = {.page = page, .slot0 = page * OPS_PAGE_SLOTS};
    int32_t pages = min_i32(b->n_pages - page, STEP_PAGES);

    s.n_slots = pages * OPS_PAGE_SLOTS;
    s.n_valid = min_i32(u->seq->kv.n_slots - s.slot0, s.n_slots);
    s.pos_min = INT32_MAX;
    s.pos_max = -1;
    for (int32_t i = 0; i < pages; i++) {
        att_positions(u, s.slot0 + i * OPS_PAGE_SLOTS, u->t->pos + i * OPS_PAGE_SLOTS);
    }
    for (int32_t i = 0; i < s.n_slots; i++) {
        s.pos_min = min_i32(s.pos_min, u->t->pos[i]);
        s.pos_max = max_i32(s.pos_max, u->t->pos[i]);
    }
    return s;
}

/* Scales of the step's slots: f16, times a factor; without scales the factor alone. */
static void load_scales(const struct att_unit *u, const struct step *s, bool keys, int32_t kv_head,
                        float factor, float *ret)
{
    const struct ops_kv_layout *l = u->l;

    for (int32_t i = 0; i < s->n_slots; i++) {
        ret[i] = factor;
    }
    for (int32_t i = 0; i < s->n_slots; i += OPS_PAGE_SLOTS) {
        uint8_t *page = kv_page_of(&u->seq->kv, u->group, s->slot0 + i);
        const uint16_t *scale =
            keys ? kv_page_k_scale(l, page, kv_head) : kv_page_v_scale(l, page, kv_head);

        for (int32_t j = 0; scale && j < OPS_PAGE_SLOTS && i + j < s->n_valid; j++) {
            ret[i + j] = factor * half_f16_to_f32(scale[j]);
        }
    }
}

static void load_keys(const struct att_unit *u, const struct step *s, int32_t k_head)
{
    const size_t pair = (size_t)n_kd(u) * 2 * TILE_ELEMENTS; /* of 32 slots */

    for (int32_t i = 0; i < s->n_slots; i += OPS_PAGE_SLOTS) {
        struct cpu_tile_kv t = {
            .type = u->l->k_type,
            .src = kv_page_k(u->l, kv_page_of(&u->seq->kv, u->group, s->slot0 + i), k_head),
            .turned = kv_page_by_slot(u->l->k_type),
            .n_rows = u->l->k_dim,
            .n_valid = u->l->k_dim,
            .n_cols = OPS_PAGE_SLOTS,
            .dst = u->t->tile_k + (size_t)(i / 32) * pair,
            .row_step = 2 * TILE_ELEMENTS,
            .pair_step = pair,
        };

        u->cpu->table.tile_kv(&t);
    }
    load_scales(u, s, true, k_head, u->p->scale * LOG2_E, u->t->tile_mul);
}

static void load_values(const struct att_unit *u, const struct step *s, int32_t v_head)
{
    for (int32_t i = 0; i < s->n_slots; i += OPS_PAGE_SLOTS) {
        struct cpu_tile_kv t = {
            .type = u->l->v_type,
            .src = kv_page_v(u->l, kv_page_of(&u->seq->kv, u->group, s->slot0 + i), v_head),
            .n_rows = OPS_PAGE_SLOTS,
            .n_valid = min_i32(s->n_valid - i, OPS_PAGE_SLOTS),
            .n_cols = kv_page_pad(u->l->v_dim),
            .dst = u->t->tile_v + (size_t)(i / 32) * 2 * TILE_ELEMENTS,
            .row_step = 2 * TILE_ELEMENTS,
            .pair_step = (size_t)TILE_KEY_TILES * 2 * TILE_ELEMENTS,
        };

        u->cpu->table.tile_kv(&t);
    }
    load_scales(u, s, false, v_head, 1.0f, u->t->tile_mul + TILE_KEYS);
}

/* e^noise of a step's keys for one query head, where it is the same for all rows (noise=once):
 * drawn once a block, or NULL. */
static const float *noise_of_step(const struct att_block *b, const struct step *s, int32_t head,
                                  float *ret)
{
    const struct att_unit *u = &b->u;
    const int32_t row = b->row0 + b->n_rows - 1;

    if (att_mode(u, row) != ATT_GUMBEL || !u->observe->noise_once) {
        return NULL;
    }
    for (int32_t at = 0; at < s->n_slots; at += OPS_PAGE_SLOTS) {
        memcpy(ret + at, att_noise(u, ATT_GUMBEL, row, head, u->t->pos + at),
               OPS_PAGE_SLOTS * sizeof(float));
    }
    return ret;
}

/* What a policy sees of one row in this step; its weights lie in t.seen already. `once`: from
 * noise_of_step(). */
static void see_row(const struct att_block *b, const struct step *s, int32_t head, int32_t i,
                    float factor, const float *once, float *logits)
{
    const struct att_unit *u = &b->u;
    const int32_t row = b->row0 + i;
    const int32_t pair = head * b->n_rows + i;
    const enum att_mode mode = att_mode(u, row);

    if (mode == ATT_GUMBEL) {
        b->seen_sum[pair] *= factor;
    }
    for (int32_t at = 0; at < s->n_slots && mode != ATT_UNSEEN; at += OPS_PAGE_SLOTS) {
        const int32_t page = s->page + at / OPS_PAGE_SLOTS;
        const int32_t *pos = u->t->pos + at;

        if (mode == ATT_TEMPERED) {
            uint8_t *bytes = kv_page_of(&u->seq->kv, u->group, s->slot0 + at);

            (void)att_logits(u, row, head, kv_page_k_scale(u->l, bytes, head / u->share_k), pos,
                             pos, true, logits + at);
            att_temper(b, head, i, page, logits + at, att_noise(u, ATT_TEMPERED, row, head, pos));
            continue;
        }
        *att_seen_max_of(b, pair, page) = b->max[pair];
        if (mode == ATT_GUMBEL) {
            b->seen_sum[pair] += u->cpu->table.kv_weigh(
                att_seen_of(b, pair, page), once ? once + at : att_noise(u, mode, row, head, pos));
        }
    }
    if (mode == ATT_SOFTMAX) {
        b->seen_sum[pair] = b->sum[pair];
    }
}

/* Rows [r, r + TILE_QUERIES) of one query head against a step of slots. */
static void rows_step(const struct att_block *b, const struct step *s, int32_t head, int32_t r,
                      const float *once)
{
    const struct att_unit *u = &b->u;
    const struct cpu_table *table = &u->cpu->table;
    const int32_t window = u->p->window;
    const int32_t first = u->seq->pos0 + b->row0 + r; /* positions */
    const int32_t n_rows = min_i32(b->n_rows - r, TILE_QUERIES);
    const int32_t last = first + n_rows - 1;
    const int32_t pair = head * b->n_rows + r;
    const int32_t pad = kv_page_pad(u->l->v_dim);
    const bool in_order = !u->seq->kv.slot_pos && !u->observe;
    float factor[TILE_QUERIES];
    struct cpu_tile_att t = {
        .n_rows = n_rows,
        .n_slots = s->n_slots,
        .n_kd = n_kd(u),
        .n_vd = pad / 16,
        .q = u->t->tile_q + (size_t)(head * b->ld_rows + r) * (size_t)n_kd(u) * TILE_COLS,
        .k = u->t->tile_k,
        .v = u->t->tile_v,
        .s = u->t->tile_s,
        .p = u->t->tile_p,
        .acc = u->t->acc + (size_t)(head * b->ld_rows + r) * (size_t)pad,
        .ld_acc = (size_t)pad,
        .k_mul = u->t->tile_mul,
        .v_mul = ops_kv_scale_bytes(u->l->v_type) ? u->t->tile_mul + TILE_KEYS : NULL,
        .row_pos = first,
        .window = window,
        .max = b->max + pair,
        .sum = b->sum + pair,
        .factor = factor,
        .seen = u->observe ? att_seen_of(b, pair, s->page) : NULL,
        .ld_seen = (size_t)b->n_pages * OPS_PAGE_SLOTS,
    };

    if (in_order) { /* slots are positions: what no row sees is left out */
        if (s->slot0 > last || (window > 0 && s->slot0 + s->n_slots - 1 <= first - window)) {
            return;
        }
        t.n_slots = min_i32(t.n_slots, (last + 1 - s->slot0 + 31) / 32 * 32);
    }
    if (s->pos_min < max_i32(0, window > 0 ? last - window + 1 : 0) || s->pos_max > first) {
        t.pos = u->t->pos;
    }
    table->tile_qk(&t);
    table->tile_soft(&t);
    for (int32_t i = 0; u->observe && i < n_rows; i++) {
        see_row(b, s, head, r + i, factor[i], once, t.s + (size_t)i * TILE_KEYS);
    }
    table->tile_pv(&t);
}

void att_tiles_block(struct att_block *b, int32_t first_page)
{
    const struct att_unit *u = &b->u;

    u->cpu->table.tile_begin();
    load_queries(b);
    for (int32_t page = first_page / STEP_PAGES * STEP_PAGES; page < b->n_pages;
         page += STEP_PAGES) {
        struct step s = make_step(b, page);
        bool hidden = true;

        for (int32_t i = page; i < page + s.n_slots / OPS_PAGE_SLOTS; i++) {
            hidden = hidden && att_page_hidden(b, i);
        }
        if (hidden) {
            continue;
        }

        for (int32_t h = 0; h < u->n_heads; h++) {
            float noise[TILE_KEYS];
            const float *once = noise_of_step(b, &s, h, noise);

            if (h % u->share_k == 0) {
                load_keys(u, &s, h / u->share_k);
            }
            if (h % u->share_v == 0) {
                load_values(u, &s, h / u->share_v);
            }
            for (int32_t r = 0; r < b->n_rows; r += TILE_QUERIES) {
                rows_step(b, &s, h, r, once);
            }
        }
    }
    u->cpu->table.tile_end();
}
