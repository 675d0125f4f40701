/* SPDX-License-Identifier: Apache-2.0 */
/* victim and cut: random scores with many ties, empty slots, sinks and protected positions, one
 * choice for all groups or one each, window policies. Bit for bit: victims, slot_pos, score and the
 * moved slots. The choice itself is checked by counting, independent of any sort. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_kv.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 1,
    .max_decode = 1,
    .max_seqs = 1,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 8192,
    .observe = true,
};

struct shape {
    int32_t n_slots;
    int32_t budget;
    int32_t sinks;
    int32_t protect;  /* the last so many positions */
    int32_t n_values; /* scores are multiples of 1 / n_values: few values, many ties */
    bool by_position;
    bool shared;
};

/* Positions scattered over slots, some slots empty; shared choices need the same in all groups. */
static void prepare(struct check *c, const struct shape *s, struct check_kv *kv,
                    const struct ops_kv_layout *l)
{
    int32_t *pos;
    float *score;

    check_kv_make(c, kv, l, s->n_slots + 7, s->n_slots, true, true);
    pos = (int32_t *)(void *)kv->slot_pos->init;
    score = (float *)(void *)kv->score->init;
    for (int32_t g = 0; g < l->n_groups; g++) {
        int32_t *own = pos + (size_t)g * (size_t)kv->cap;

        for (int32_t i = s->n_slots; i-- > 1;) {
            int32_t j = check_range(c, 0, i);
            int32_t held = own[i];

            own[i] = own[j];
            own[j] = held;
        }
        if (s->shared && g > 0) {
            memcpy(own, pos, (size_t)kv->cap * 4);
        }
        for (int32_t i = 0; i < s->n_slots; i++) {
            score[g * kv->cap + i] = (float)check_range(c, 0, s->n_values) / (float)s->n_values;
        }
    }
    for (int32_t i = 0; i < s->n_slots; i += 11) { /* empty, but the newest stays */
        for (int32_t g = 0; g < l->n_groups; g++) {
            if (pos[g * kv->cap + i] < s->n_slots - 1 && (!s->shared || pos[i] < s->n_slots - 1)) {
                pos[g * kv->cap + i] = -1;
            }
        }
    }
}

static double score_of(const struct check_kv *kv, const struct shape *s, int32_t group,
                       int32_t slot)
{
    const float *score = (const float *)(const void *)kv->score->init;
    float sum = 0;

    if (s->by_position) {
        return 0;
    }
    for (int32_t g = 0; g < kv->layout[0].n_groups && s->shared; g++) {
        sum += score[g * kv->cap + slot];
    }
    return (double)(s->shared ? sum : score[group * kv->cap + slot]);
}

static bool may_go(const struct check_kv *kv, const struct shape *s, int32_t group, int32_t slot)
{
    int32_t pos = ((const int32_t *)(const void *)kv->slot_pos->init)[group * kv->cap + slot];

    return pos >= 0 && pos >= s->sinks && pos < s->n_slots - s->protect;
}

/* How many slots that may go would go before this one. */
static int32_t n_before(const struct check_kv *kv, const struct shape *s, int32_t group,
                        int32_t slot)
{
    const int32_t *pos = (const int32_t *)(const void *)kv->slot_pos->init + group * kv->cap;
    double own = score_of(kv, s, group, slot);
    int32_t n = 0;

    for (int32_t o = 0; o < s->n_slots; o++) {
        double other = score_of(kv, s, group, o);

        n += may_go(kv, s, group, o) && (other < own || (other == own && pos[o] < pos[slot]));
    }
    return n;
}

static void victim(struct check *c, const struct shape *s, const struct ops_kv_layout *l)
{
    struct check_kv kv;
    struct check_buf *out;

    if (!check_case(c, "victim slots %d sinks %d protect %d values %d%s%s", s->n_slots, s->sinks,
                    s->protect, s->n_values, s->by_position ? " by position" : "",
                    s->shared ? " shared" : "")) {
        return;
    }
    prepare(c, s, &kv, l);
    out = check_buf(c, "victim", (size_t)l->n_groups * 4);
    c->bench_bytes = (uint64_t)l->n_groups * (uint64_t)s->n_slots * 8;
    while (check_call(c)) {
        struct ops_kv of = check_kv_of(c, &kv);
        struct ops_victim p = {
            .kv = &of,
            .sinks = s->sinks,
            .pos_protect = s->n_slots - s->protect,
            .by_position = s->by_position,
            .shared = s->shared,
            .victim = check_dev(c, out),
        };

        c->err = c->ops->victim(c->be, &p);
    }
    check_bits(c, "victim", out->out[1], out->out[0], out->bytes);
    for (int32_t g = 0; g < l->n_groups; g++) {
        int32_t slot = ((const int32_t *)(const void *)out->out[0])[g];

        if (!may_go(&kv, s, g, slot) || n_before(&kv, s, s->shared ? 0 : g, slot) != 0) {
            check_fail(c, "reference's victim %d of group %d is not the first to go", slot, g);
        }
    }
    check_kv_free(&kv);
}

/* Which slots survive, and that survivors above the budget fill the gaps in order. */
static void check_survivors(struct check *c, const struct shape *s, const struct check_kv *kv,
                            int32_t g)
{
    const int32_t *before = (const int32_t *)(const void *)kv->slot_pos->init + g * kv->cap;
    const int32_t *after = (const int32_t *)(const void *)kv->slot_pos->out[0] + g * kv->cap;
    const float *scores = (const float *)(const void *)kv->score->init + g * kv->cap;
    const float *moved = (const float *)(const void *)kv->score->out[0] + g * kv->cap;
    int32_t live = 0;
    int32_t to = 0;
    int32_t *want = malloc((size_t)kv->cap * 4);

    for (int32_t i = 0; i < s->n_slots; i++) {
        live += before[i] >= 0;
    }
    for (int32_t i = 0; i < kv->cap; i++) {
        want[i] = i < s->n_slots && before[i] >= 0 &&
                          !(may_go(kv, s, g, i) &&
                            n_before(kv, s, s->shared ? 0 : g, i) < live - s->budget)
                      ? i
                      : -1;
    }
    for (int32_t i = s->budget; i < s->n_slots; i++) {
        if (want[i] >= 0) {
            while (want[to] >= 0) {
                to++;
            }
            want[to] = i;
            want[i] = -1;
        }
    }
    for (int32_t i = 0; i < kv->cap; i++) {
        size_t at = (size_t)(g * kv->cap + i) * kv->slot_bytes;

        if (after[i] != (want[i] >= 0 ? before[want[i]] : -1)) {
            check_fail(c, "reference: group %d slot %d holds position %d", g, i, after[i]);
            break;
        }
        if (want[i] >= 0) {
            size_t from = (size_t)(g * kv->cap + want[i]) * kv->slot_bytes;

            check_bits(c, "a kept slot", kv->back[0] + at, kv->content + from, kv->slot_bytes);
            check_bits(c, "a kept score", &moved[i], &scores[want[i]], 4);
        }
    }
    free(want);
}

/* Does the budget hold what must stay of group 0? In a shape it does of all groups, or of none. */
static bool fits(const struct shape *s, const struct check_kv *kv)
{
    const int32_t *pos = (const int32_t *)(const void *)kv->slot_pos->init;
    int32_t stay = 0;

    for (int32_t i = 0; i < s->n_slots; i++) {
        stay += pos[i] >= 0 && !may_go(kv, s, 0, i);
    }
    return stay <= s->budget;
}

static void cut(struct check *c, const struct shape *s, const struct ops_kv_layout *l)
{
    struct check_kv kv;

    if (!check_case(c, "cut %s slots %d budget %d sinks %d protect %d values %d%s%s",
                    ops_kv_type_name(l->k_type), s->n_slots, s->budget, s->sinks, s->protect,
                    s->n_values, s->by_position ? " by position" : "",
                    s->shared ? " shared" : "")) {
        return;
    }
    prepare(c, s, &kv, l);
    c->bench_bytes = (uint64_t)l->n_groups * (uint64_t)s->n_slots * 8;
    while (check_call(c)) {
        struct ops_kv of = check_kv_of(c, &kv);
        struct ops_cut p = {
            .kv = &of,
            .budget = s->budget,
            .sinks = s->sinks,
            .pos_protect = s->n_slots - s->protect,
            .pos_end = s->n_slots,
            .by_position = s->by_position,
            .shared = s->shared,
        };

        c->err = c->ops->cut(c->be, &p);
    }
    if (!c->bench && !fits(s, &kv)) { /* then nothing has changed, and all sides say so */
        for (int i = 0; i < c->n_sides; i++) {
            if (c->errs[i] != -EINVAL) {
                check_fail(c, "side %d returned %d: too much must stay", i, c->errs[i]);
            }
        }
        check_bits(c, "slot_pos as it was", kv.slot_pos->out[1], kv.slot_pos->init,
                   kv.slot_pos->bytes);
        check_kv_free(&kv);
        return;
    }
    if (!c->bench && c->errs[0] != 0) {
        check_fail(c, "the reference returned %d", c->errs[0]);
    }
    check_bits(c, "slot_pos", kv.slot_pos->out[1], kv.slot_pos->out[0], kv.slot_pos->bytes);
    check_bits(c, "score", kv.score->out[1], kv.score->out[0], kv.score->bytes);
    check_kv_export(c, &kv, s->n_slots);
    for (int32_t g = 0; g < l->n_groups; g++) {
        check_bits(c, "slots below the budget", kv.back[1] + (size_t)(g * kv.cap) * kv.slot_bytes,
                   kv.back[0] + (size_t)(g * kv.cap) * kv.slot_bytes,
                   (size_t)(s->budget < s->n_slots ? s->budget : s->n_slots) * kv.slot_bytes);
        if (!c->bench) {
            check_survivors(c, s, &kv, g);
        }
    }
    check_kv_free(&kv);
}

/* The reference refuses a position that the caller excludes. A device trusts the caller. */
static void beyond_the_end(struct check *c, const struct ops_kv_layout *l)
{
    static const struct shape s = {16, 10, 0, 1, 5, false, false};
    const int refused = -EINVAL;
    struct check_kv kv;

    if (!check_case(c, "cut of a position beyond the end")) {
        return;
    }
    prepare(c, &s, &kv, l);
    while (check_call(c)) {
        struct ops_kv of = check_kv_of(c, &kv);
        struct ops_cut p = {
            .kv = &of, .budget = s.budget, .pos_protect = s.n_slots, .pos_end = s.n_slots - 1};

        c->err = c->side > 0 ? refused : c->ops->cut(c->be, &p);
    }
    check_bits(c, "what the reference returns", &c->errs[0], &refused, sizeof(refused));
    check_kv_free(&kv);
}

/* The last six shapes: what must stay is as many positions as the budget; more, of which some are
 * in no slot; and more slots than the budget. */
void check_op(struct check *c)
{
    static const struct shape shapes[] = {
        {16, 10, 0, 1, 1000000, false, false}, {200, 100, 4, 10, 1000000, false, false},
        {200, 100, 4, 10, 3, false, false},    {200, 100, 0, 64, 1, false, false},
        {333, 150, 4, 30, 5, false, true},     {333, 150, 4, 30, 100000, false, true},
        {333, 90, 4, 50, 5, true, false},      {129, 64, 0, 10, 5, true, true},
        {64, 64, 4, 10, 5, false, false},      {100, 300, 4, 10, 5, false, false},
        {200, 104, 4, 100, 5, false, false},   {200, 102, 4, 100, 5, false, false},
        {200, 102, 4, 100, 5, false, true},    {16, 0, 0, 1, 5, false, false},
        {200, 30, 40, 10, 5, true, false},     {200, 60, 4, 100, 5, false, true},
    };
    static const struct shape large = {8000, 4000, 4, 1200, 1000000, false, false};

    if (c->bench) {
        struct ops_kv_layout l = {3, 1, 1, 64, 64, OPS_KV_F16, OPS_KV_F16, false, 0};

        victim(c, &large, &l);
        cut(c, &large, &l);
        return;
    }
    for (int t = 0; t < check_kv_n_types; t++) {
        struct ops_kv_layout l = {3,     1, 2, 20, 32, check_kv_types[t].k, check_kv_types[t].v,
                                  false, 0};

        l.k_dim = ops_kv_block_dims(l.k_type) > 1 ? 32 : l.k_dim;
        if (!check_kv_offered(c, &l)) {
            continue;
        }
        if (t == 0) {
            beyond_the_end(c, &l);
        }
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            victim(c, &shapes[i], &l);
            cut(c, &shapes[i], &l);
        }
    }
}
