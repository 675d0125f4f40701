/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines of 64 bytes a selecting query moves, measured: each line of a sequence's pages is
 * overwritten in turn, and it counts as read if what attention makes of the row is then another
 * number. Held against kernels/kv_lines.h, from which step sizes and
 * docs/design/sparse-attention.md have their bytes: exactly where that is exact, within MARGIN
 * where it is the mean over choices.
 *
 * What is overwritten takes large values of both signs: of K they make or unmake a choice, or move
 * an exact logit; of V and of scales they show in the sum. No NaN, which would count lines that are
 * loaded and masked. Head groups know nothing of each other, so one call tries a line of each. What
 * is loaded without need (whole pages of the last slots, hints to the prefetcher) is not seen: a
 * kernel's own loss. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/cpu/kv_page.h"
#include "kernels/kv_lines.h"
#include "tests/kernels/check_kv.h"

enum { SLOTS = 250, GROUPS = 12, SHARE = 2, LINE = 64 };
/* Of the mean over choices where lines hold many slots: 12 groups, in which some 80 such lines of
 * about the same chance stand for as many throws, have a standard deviation of 5 %. */
#define MARGIN 0.12

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_FP16 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 4,
    .max_decode = 4,
    .max_seqs = 1,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = GROUPS * SHARE,
    .max_head_dim = 64,
    .max_slots = 320,
    .select = true,
};

struct one {
    struct ops_attention p;
    struct ops_seq seq;
    struct ops_select select;
    float *out;  /* what p.out points to */
    float *want; /* before anything is overwritten */
};

/* Parts of a page, for what is said when they are too many or too few. */
enum part { KEYS, VALUES, OTHERS, N_PARTS };

static bool within(const uint8_t *at, const void *from, const void *end)
{
    return at >= (const uint8_t *)from && at < (const uint8_t *)end;
}

static enum part part_of(const struct ops_kv_layout *l, uint8_t *page, const uint8_t *at)
{
    return within(at, page, kv_page_v(l, page, 0))            ? KEYS
           : within(at, page, kv_page_v(l, page, l->v_heads)) ? VALUES
                                                              : OTHERS;
}

/* The bytes of elements that an fp8 line takes are no number of 16 bits, and the other way round.
 */
static bool is_fp8(const struct ops_kv_layout *l, uint8_t *page, const uint8_t *at)
{
    enum part part = part_of(l, page, at);

    return part == KEYS     ? l->k_type == OPS_KV_FP8
           : part == VALUES ? l->v_type == OPS_KV_FP8
           : l->rank == OPS_RANK_ONCE || !within(at, kv_page_rows(l, page, 0), page + l->page_bytes)
               ? false /* scales */
           : within(at, kv_page_rows(l, page, 0), kv_page_rows(l, page, l->k_heads))
               ? l->k_type == OPS_KV_FP8
               : within(at, kv_page_rank(l, page, 0), kv_page_rank(l, page, l->k_heads));
}

static void call(struct check *c, struct one *o)
{
    c->err = c->ops->attention(c->be, &o->p);
    check_require(c->ops->sync(c->be), "sync");
}

/* Is what group g says another number than before? */
static bool shows(const struct one *o, int32_t g)
{
    size_t n = SHARE * (size_t)o->seq.kv.layout->v_dim;

    return memcmp(o->out + (size_t)g * n, o->want + (size_t)g * n, n * sizeof(float)) != 0;
}

/* Line `at` of page `index` of every group. */
static void try_line(struct check *c, struct one *o, int32_t index, size_t at, uint64_t *count)
{
    static const uint8_t large[] = {0x60, 0xe0}; /* f16: 560, -560 */
    static const uint8_t most[] = {0x7e, 0xfe};  /* fp8: 448, -448 */
    const struct ops_kv_layout *l = o->seq.kv.layout;
    uint8_t held[GROUPS][LINE];
    bool read[GROUPS] = {false};

    for (int sign = 0; sign < 2; sign++) {
        for (int32_t g = 0; g < GROUPS; g++) {
            uint8_t *page = kv_page_of(&o->seq.kv, g, index * OPS_PAGE_SLOTS);

            memcpy(held[g], page + at, LINE);
            memset(page + at, is_fp8(l, page, page + at) ? most[sign] : large[sign], LINE);
        }
        call(c, o);
        for (int32_t g = 0; g < GROUPS; g++) {
            uint8_t *page = kv_page_of(&o->seq.kv, g, index * OPS_PAGE_SLOTS);

            read[g] = read[g] || shows(o, g);
            memcpy(page + at, held[g], LINE);
            count[part_of(l, page, page + at)] += sign == 1 && read[g];
        }
    }
}

static void measure(struct check *c, struct one *o, bool exact)
{
    const struct ops_kv_layout *l = o->seq.kv.layout;
    uint64_t count[N_PARTS] = {0};
    double want = GROUPS * kv_lines_read(l, &o->select, SLOTS);
    double sum = 0;

    call(c, o);
    memcpy(o->want, o->out, (size_t)(GROUPS * SHARE * l->v_dim) * sizeof(float));
    for (int32_t page = 0; page * OPS_PAGE_SLOTS < SLOTS; page++) {
        for (size_t at = 0; at < l->page_bytes; at += LINE) {
            try_line(c, o, page, at, count);
        }
    }
    for (int i = 0; i < N_PARTS; i++) {
        sum += (double)count[i];
    }
    if (fabs(sum - want) > (exact ? 0.5 : MARGIN * want)) {
        check_fail(c, "%.0f lines were read (K by dim %d, V %d, others %d), by the formula %.1f%s",
                   sum, (int)count[KEYS], (int)count[VALUES], (int)count[OTHERS], want,
                   exact ? "" : " in the mean");
        return;
    }
    c->n_passed++;
    if (getenv("CHECK_VERBOSE")) {
        printf("     %s, %s: %.0f lines, by the formula %.1f\n", c->variant, c->name, sum, want);
    }
}

static void lines(struct check *c, const char *what, enum ops_kv_type type, enum ops_rank rank,
                  struct ops_select select, bool exact)
{
    struct ops_kv_layout l = {GROUPS, 1, 1, 64, 64, type, type, .rank = rank};
    struct check_kv kv;
    struct one o = {.select = select};

    if (!check_kv_offered(c, &l) || !check_case(c, "lines %s %s", ops_kv_type_name(type), what)) {
        return;
    }
    int32_t n_q = GROUPS * SHARE;
    struct check_buf *q = check_buf(c, "q", (size_t)(n_q * l.k_dim) * sizeof(float));
    struct check_buf *out = check_buf(c, "out", (size_t)(n_q * l.v_dim) * sizeof(float));

    check_kv_make(c, &kv, &l, SLOTS + 6, SLOTS, false, false);
    check_fill(c, q, 1.5f);
    o.want = calloc((size_t)(n_q * l.v_dim), sizeof(float));
    while (check_call(c)) {
        o.seq = (struct ops_seq){.n_rows = 1, .pos0 = SLOTS - 1, .kv = check_kv_of(c, &kv)};
        o.seq.slot0 = SLOTS - 1;
        o.out = check_dev(c, out);
        o.p = (struct ops_attention){
            .rows = {1, 1},
            .q = check_dev(c, q),
            .out = o.out,
            .ldq = n_q * l.k_dim,
            .ldo = n_q * l.v_dim,
            .n_q = n_q,
            .scale = 0.125f,
            .seqs = &o.seq,
            .n_seqs = 1,
            .select = &o.select,
        };
        call(c, &o);
        if (c->side == 1 && !c->err) {
            measure(c, &o, exact);
            call(c, &o); /* the other sides' output is compared with this one */
        }
    }
    free(o.want);
    check_kv_free(&kv);
}

void check_op(struct check *c)
{
    struct ops_select sparq = {OPS_SELECT_SPARQ, 8, 12, 3, false, false};
    struct ops_select topv = {OPS_SELECT_TOPV, 0, 12, 0, false, true};
    struct ops_select all = {.kind = OPS_SELECT_ALL};

    if (strcmp(c->sides[1]->ops->name, "cpu") != 0 || c->bench) {
        printf("skipped: only the backend cpu's page is counted\n");
        return;
    }
    lines(c, "all", OPS_KV_F16, OPS_RANK_ONCE, all, true);
    lines(c, "sparq once", OPS_KV_F16, OPS_RANK_ONCE, sparq, false);
    lines(c, "sparq 2k", OPS_KV_F16, OPS_RANK_2K, sparq, true);
    lines(c, "sparq rank8", OPS_KV_F16, OPS_RANK_8, sparq, true);
    lines(c, "sparq once", OPS_KV_FP8, OPS_RANK_ONCE, sparq, false);
    lines(c, "topv", OPS_KV_F16, OPS_RANK_ONCE, topv, true);
}
