/* SPDX-License-Identifier: Apache-2.0 */
/* expect: statistics of a prompt's queries and scores of slots against the reference, which undoes
 * center, balance and transform key by key (tests/unit/test_expect.c compares its arithmetic with
 * double). All types, both RoPE forms, partial rotation, a table with mscale, empty slots. Rows in
 * two calls give the bits of one. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/expect.h"
#include "tests/kernels/check_kv.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 640,
    .max_decode = 1,
    .max_seqs = 1,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = 16,
    .max_head_dim = 256,
    .max_slots = 1024,
    .expect = true,
};

enum { CENTERED = 1, BALANCED = 2, HADAMARD = 4, NO_COV = 8, FLOOR = 16, MSCALE = 32 };
enum { ROW0 = 3, FIRST = 4, POS0 = 77 };

struct shape {
    int32_t n_groups;
    int32_t k_heads;
    int32_t v_heads;
    int32_t k_dim;
    int32_t v_dim;
    int32_t n_q;
    enum ops_rope_form form;
    int32_t n_dims;
    int32_t n_rows;
    int32_t n_slots;
    int options;
};

struct inputs {
    struct check_kv kv;
    struct check_buf *q;
    struct check_buf *stats;
    struct check_buf *split; /* the same in two calls */
    float inv_freq[128];
    struct ops_rope rope;
    int32_t ldq;
    uint8_t *memory;
    struct expect_work *work;
};

static struct expect_work *make_work(const struct shape *s, const struct ops_kv_layout *l,
                                     uint8_t **ret_memory)
{
    const struct expect_sizes sizes = {
        .n_q = (size_t)s->n_q,
        .n_v = (size_t)(s->n_groups * s->v_heads),
        .heads = (size_t)(s->n_q / s->n_groups),
        .k_heads = (size_t)s->k_heads,
        .k_dim = (size_t)s->k_dim,
        .v_dim = (size_t)s->v_dim,
        .k_row = (size_t)(s->k_heads * s->k_dim),
        .slot = ops_kv_slot_bytes(l),
        .ctx = (size_t)s->n_slots,
    };
    struct memory_arena plan = {0};

    (void)expect_work_lay(&sizes, &plan);
    *ret_memory = aligned_alloc(64, (plan.used + 63) / 64 * 64);
    struct memory_arena a = {.base = *ret_memory, .size = plan.used};

    return expect_work_lay(&sizes, &a);
}

static void prepare(struct check *c, const struct shape *s, const struct ops_kv_layout *l,
                    struct inputs *in)
{
    const size_t words =
        (size_t)s->n_groups * expect_words(s->k_dim, s->n_q / s->n_groups) * sizeof(float);

    *in = (struct inputs){.ldq = s->n_q * s->k_dim + 3};
    check_kv_make(c, &in->kv, l, s->n_slots, s->n_slots, true, true);
    check_kv_scatter(c, &in->kv);
    if (s->options & CENTERED) {
        in->kv.center = check_buf(
            c, "center", (size_t)(s->n_groups * s->k_heads) * (size_t)s->k_dim * sizeof(float));
        check_fill(c, in->kv.center, 3);
    }
    if (s->options & BALANCED) {
        check_kv_balance(c, &in->kv);
    }
    in->kv.k_hadamard = s->options & HADAMARD;
    in->kv.v_hadamard = in->kv.k_hadamard;
    in->q = check_buf(c, "q", (size_t)(ROW0 + s->n_rows) * (size_t)in->ldq * sizeof(float));
    check_fill(c, in->q, 1);
    for (size_t i = 0; i < in->q->bytes / sizeof(float); i++) { /* they have a mean */
        ((float *)(void *)in->q->init)[i] += (float)(i % 5);
    }
    in->stats = check_buf(c, "stats", words);
    in->split = check_buf(c, "stats of two calls", words);
    for (int32_t i = 0; i < s->n_dims / 2; i++) {
        in->inv_freq[i] = powf(1e4f, -2.0f * (float)i / (float)s->n_dims);
    }
    in->rope = (struct ops_rope){.form = s->form,
                                 .n_dims = s->n_dims,
                                 .inv_freq = in->inv_freq,
                                 .mscale = s->options & MSCALE ? 1.25f : 1};
    in->work = make_work(s, l, &in->memory);
}

static int call(struct check *c, const struct shape *s, const struct inputs *in,
                const struct ops_kv *kv, struct check_buf *stats, int32_t from, int32_t to)
{
    const struct ops_seq seq = {
        .row0 = ROW0 + from, .n_rows = to - from, .pos0 = POS0 + from, .kv = *kv};
    const struct ops_expect p = {
        .q = check_dev(c, in->q),
        .ldq = in->ldq,
        .n_q = s->n_q,
        .scale = 1 / sqrtf((float)s->k_dim),
        .rope = &in->rope,
        .seq = &seq,
        .stats = check_dev(c, stats),
        .first = from < FIRST ? FIRST - from : 0,
        .cov = !(s->options & NO_COV),
        .score = to == s->n_rows,
        .pos = POS0 + to,
        .ahead = 64,
        .floor = s->options & FLOOR ? 0.01f : 0,
        .work = in->work,
    };

    return c->ops->expect(c->be, &p);
}

static void expect(struct check *c, const struct shape *s, const struct check_kv_types *types)
{
    const struct ops_kv_layout l = {.n_groups = s->n_groups,
                                    .k_heads = s->k_heads,
                                    .v_heads = s->v_heads,
                                    .k_dim = s->k_dim,
                                    .v_dim = s->v_dim,
                                    .k_type = types->k,
                                    .v_type = types->v};
    const int32_t words = (int32_t)expect_words(s->k_dim, s->n_q / s->n_groups);
    struct ops_kv_layout offered = l;
    struct inputs in;

    if (!check_kv_offered(c, &offered) ||
        !check_case(
            c, "expect %s %s heads %d of %dx%d dims %d %d rope %d %d rows %d slots %d kind %d",
            ops_kv_type_name(l.k_type), ops_kv_type_name(l.v_type), s->n_q, s->n_groups, s->k_heads,
            s->k_dim, s->v_dim, (int)s->form, s->n_dims, s->n_rows, s->n_slots, s->options)) {
        return;
    }
    prepare(c, s, &l, &in);
    c->bench_bytes = in.q->bytes;
    while (check_call(c)) {
        const struct ops_kv kv = check_kv_of(c, &in.kv);
        const int32_t middle = s->n_rows / 3;

        if (!c->bench) {
            c->err = call(c, s, &in, &kv, in.split, 0, middle);
            c->err = c->err ? c->err : call(c, s, &in, &kv, in.split, middle, s->n_rows);
        }
        c->err = c->err ? c->err : call(c, s, &in, &kv, in.stats, 0, s->n_rows);
    }
    if (!c->bench) {
        check_floats(c, in.stats, s->n_groups, words, words, &tol_reduce);
        check_floats(c, in.kv.score, s->n_groups, in.kv.cap, s->n_slots, &tol_score);
        for (int side = 0; side < 2; side++) {
            check_bits(c, "rows in two calls", in.split->out[side], in.stats->out[side],
                       in.stats->bytes);
        }
    }
    check_kv_free(&in.kv);
    free(in.memory);
}

void check_op(struct check *c)
{
    static const struct shape shapes[] = {
        {3, 1, 1, 64, 64, 9, OPS_ROPE_NORM, 64, 131, 300, 0},
        {2, 1, 1, 64, 64, 14, OPS_ROPE_NEOX, 64, 40, 129, CENTERED | BALANCED | HADAMARD | FLOOR},
        {1, 1, 2, 128, 96, 4, OPS_ROPE_NEOX, 64, 70, 64, CENTERED | HADAMARD | MSCALE},
        {1, 2, 1, 32, 32, 4, OPS_ROPE_NORM, 32, 21, 77, BALANCED | NO_COV | MSCALE},
        {2, 1, 1, 96, 64, 2, OPS_ROPE_NONE, 0, 9, 15, CENTERED | NO_COV},
        {1, 1, 1, 256, 256, 2, OPS_ROPE_NEOX, 256, 12, 70, CENTERED | HADAMARD},
    };
    static const struct shape uneven = {2, 1, 1, 22, 20, 6, OPS_ROPE_NORM, 18, 50, 200, CENTERED};
    static const struct shape large = {3, 1, 1, 64, 64, 9, OPS_ROPE_NORM, 64, 512, 1024, 0};
    static const struct shape long_one = {3, 1, 1, 64, 64, 9, OPS_ROPE_NORM, 64, FIRST, 1024, 0};

    if (c->bench) {
        expect(c, &large, &check_kv_types[1]);
        expect(c, &long_one, &check_kv_types[1]);
        return;
    }
    for (int t = 0; t < check_kv_n_types; t++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            expect(c, &shapes[i], &check_kv_types[t]);
        }
        if (ops_kv_block_dims(check_kv_types[t].k) == 1 &&
            ops_kv_block_dims(check_kv_types[t].v) == 1) {
            expect(c, &uneven, &check_kv_types[t]);
        }
    }
}
