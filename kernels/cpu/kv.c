/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's cache: layout, scratch, export and import of slots.
 *
 * Scratch follows from the limits alone. What grows with the context: a decode row's partial
 * results (a head's sums for every KV_CHUNK slots) and, where policies observe, its weights of all
 * slots. They are kept for a wave of rows that fits WAVE_BYTES, at least one row; a batch with more
 * decode rows runs in several waves. */

#include "kernels/cpu/kv.h"
#include "kernels/kv_code.h"

#include <errno.h>
#include <string.h>

enum {
    WAVE_BYTES = 16 << 20,
    SEEN_BYTES = 4 << 20, /* of one thread's prefill block, observed */
};

static size_t at_least_one(int32_t n)
{
    return n > 0 ? (size_t)n : 1;
}

struct sizes {
    size_t rows;
    size_t dim;
    size_t pad;
    size_t heads;
    size_t pairs;
    size_t sums;     /* pairs, or those of a block of tiles */
    size_t tile_dim; /* 0 without tiles */
    size_t slots;    /* whole chunks */
    size_t wave;
    size_t partial;    /* floats of one row */
    size_t seen;       /* floats of one decode row, 0 where nothing observes */
    size_t block_seen; /* floats of a prefill block */
};

static struct sizes sizes_of(const struct backend_limits *l, bool tiles)
{
    struct sizes s = {.rows = at_least_one(l->max_rows), .heads = at_least_one(l->max_heads)};
    size_t row_bytes;

    s.dim = at_least_one(l->max_head_dim);
    s.pad = (s.dim + 15) & ~(size_t)15;
    s.pairs = s.heads > KV_PAIRS ? s.heads : KV_PAIRS;
    s.sums = s.pairs;
    if (tiles) {
        s.tile_dim = (s.dim + TILE_COLS - 1) / TILE_COLS * TILE_COLS;
        s.sums = s.heads * TILE_QUERIES > KV_TILE_PAIRS ? s.heads * TILE_QUERIES : KV_TILE_PAIRS;
    }
    s.slots = (at_least_one(l->max_slots) + KV_CHUNK - 1) / KV_CHUNK * KV_CHUNK;
    s.partial = s.heads * (s.slots / KV_CHUNK) * (KV_PARTIAL_HEAD + s.pad);
    s.seen = l->observe ? s.heads * s.slots : 0;
    row_bytes = (s.partial + s.seen) * sizeof(float);
    s.wave = WAVE_BYTES / row_bytes;
    s.wave = s.wave < 1                             ? 1
             : s.wave > at_least_one(l->max_decode) ? at_least_one(l->max_decode)
                                                    : s.wave;
    if (l->observe) {
        s.block_seen = SEEN_BYTES / sizeof(float);
        s.block_seen = s.block_seen > s.seen ? s.block_seen : s.seen;
    }
    return s;
}

static struct kv_select lay_out_select(struct memory_arena *a, const struct sizes *s,
                                       const struct backend_limits *l)
{
    size_t row_bytes = s->heads * s->slots * (l->observe ? 2 : 1) * sizeof(float);
    size_t wave = WAVE_BYTES / row_bytes;

    wave = wave < 1 ? 1 : wave > at_least_one(l->max_decode) ? at_least_one(l->max_decode) : wave;
    return (struct kv_select){
        .seqs = memory_arena_take(a, at_least_one(l->max_seqs) * sizeof(struct ops_seq)),
        .x = memory_arena_take(a, wave * s->heads * s->slots * sizeof(float)),
        .seen = memory_arena_take(a, l->observe ? wave * s->heads * s->slots * sizeof(float) : 0),
        .max = memory_arena_take(a, wave * s->heads * (s->slots / 512 + 1) * sizeof(float)),
        .q = memory_arena_take(a, wave * s->heads * s->pad * sizeof(float)),
        .dims = memory_arena_take(a, wave * s->heads * s->pad * sizeof(int32_t)),
        .ld = s->slots,
        .pad = s->pad,
        .wave = (int32_t)wave,
    };
}

static struct kv_thread lay_out_thread(struct memory_arena *a, const struct sizes *s, bool select)
{
    size_t listed = select ? s->slots : 0;
    size_t chunk = s->heads * KV_CHUNK;
    size_t pages = s->pairs * OPS_PAGE_SLOTS;
    size_t acc = s->sums * s->pad;
    size_t latest = s->heads * OPS_PAGE_SLOTS; /* a page's dot products of latest_keys() */

    return (struct kv_thread){
        .k = memory_arena_take(a, OPS_PAGE_SLOTS * s->pad * sizeof(float)),
        .v = memory_arena_take(a, OPS_PAGE_SLOTS * s->pad * sizeof(float)),
        .x = memory_arena_take(a, (chunk > pages ? chunk : pages) * sizeof(float)),
        .acc = memory_arena_take(a, (acc > latest ? acc : latest) * sizeof(float)),
        .state = memory_arena_take(a, 8 * s->sums * sizeof(float)),
        .row = memory_arena_take(a, s->pad * sizeof(float)),
        .noise = memory_arena_take(a, OPS_PAGE_SLOTS * sizeof(float)),
        .pos = memory_arena_take(a, KV_CHUNK * sizeof(int32_t)),
        .seen = memory_arena_take(a, s->block_seen * sizeof(float)),
        .seen_max = memory_arena_take(a, s->block_seen / OPS_PAGE_SLOTS * sizeof(float)),
        .keys = memory_arena_take(a, 2 * s->slots * sizeof(uint64_t)),
        .tile_q = memory_arena_take(a, s->tile_dim ? s->sums * s->tile_dim * 2 : 0),
        .tile_k = memory_arena_take(a, TILE_KEYS * s->tile_dim * 2),
        .tile_v = memory_arena_take(a, TILE_KEYS * s->tile_dim * 2),
        .tile_s = memory_arena_take(a, s->tile_dim ? TILE_QUERIES * TILE_KEYS * 4 : 0),
        .tile_p = memory_arena_take(a, s->tile_dim ? TILE_QUERIES * TILE_KEYS * 2 : 0),
        .tile_mul = memory_arena_take(a, s->tile_dim ? 2 * TILE_KEYS * sizeof(float) : 0),
        .total = memory_arena_take(a, listed * sizeof(float)),
        .left = memory_arena_take(a, listed * sizeof(float)),
        .list = memory_arena_take(a, listed * sizeof(int32_t)),
        .list_pos = memory_arena_take(a, listed * sizeof(int32_t)),
        .list_scale = memory_arena_take(a, listed * sizeof(uint16_t)),
        .list_rows = memory_arena_take(a, listed * sizeof(void *)),
        .rank = memory_arena_take(a, s->slots * sizeof(int32_t)),
        .q = memory_arena_take(a, s->pairs * s->pad * sizeof(float)),
    };
}

static struct kv_scratch lay_out(struct memory_arena *a, int n_threads, int tid, bool tiles,
                                 const struct backend_limits *l)
{
    struct sizes s = sizes_of(l, tiles);
    struct kv_scratch k = {.wave = (int32_t)s.wave, .seen_floats = s.block_seen};
    size_t coarse = s.slots / OPS_PAGE_SLOTS + 1;

    (void)memory_arena_take(a, (size_t)n_threads * sizeof(k)); /* cpu_kv_scratch_ready() */
    for (int i = 0; i < KV_ROPE_TABLES; i++) {
        k.rope[i] = (struct kv_rope_table){
            .key = memory_arena_take(a, sizeof(*k.rope[i].key)),
            .inv_freq = memory_arena_take(a, s.pad * sizeof(float)),
            .step = memory_arena_take(a, KV_ANGLE_STEPS * s.pad * sizeof(double)),
            .pos = memory_arena_take(a, s.rows * sizeof(int32_t)),
            .cos = memory_arena_take(a, s.rows * s.pad * sizeof(float)),
            .sin = memory_arena_take(a, s.rows * s.pad * sizeof(float)),
            .pad = s.pad,
        };
        k.rank[i] = (struct kv_rank_table){
            .key = memory_arena_take(a, sizeof(*k.rank[i].key)),
            .inv_freq = memory_arena_take(a, s.pad * sizeof(float)),
            .coarse_cos = memory_arena_take(a, coarse * (s.pad / 2) * sizeof(float)),
            .coarse_sin = memory_arena_take(a, coarse * (s.pad / 2) * sizeof(float)),
            .fine_cos = memory_arena_take(a, OPS_PAGE_SLOTS * (s.pad / 2) * sizeof(float)),
            .fine_sin = memory_arena_take(a, OPS_PAGE_SLOTS * (s.pad / 2) * sizeof(float)),
            .ld = s.pad / 2,
        };
    }
    k.partial = memory_arena_take(a, s.wave * s.partial * sizeof(float));
    k.seen = memory_arena_take(a, s.wave * s.seen * sizeof(float));
    k.done = memory_arena_take(a, s.wave * s.heads * sizeof(*k.done));
    k.commit = memory_arena_take(a, at_least_one(l->max_seqs) * s.heads * sizeof(*k.commit));
    k.score = memory_arena_take(a, s.slots * sizeof(float));
    if (l->select) {
        k.select = lay_out_select(a, &s, l);
    }
    for (int i = 0; i < n_threads; i++) {
        struct kv_thread t = lay_out_thread(a, &s, l->select);

        if (i == tid) {
            k.t = t;
        }
    }
    return k;
}

uint64_t cpu_kv_scratch_bytes(int n_threads, bool tiles, const struct backend_limits *limits)
{
    struct memory_arena plan = {0};

    (void)lay_out(&plan, n_threads, 0, tiles, limits);
    return plan.used;
}

void cpu_kv_scratch_ready(struct cpu *cpu)
{
    struct kv_scratch *all = (void *)cpu->kv_scratch;

    for (int i = 0; i < cpu->n_threads; i++) {
        struct memory_arena a = {.base = cpu->kv_scratch, .size = SIZE_MAX};

        all[i] = lay_out(&a, cpu->n_threads, i, cpu->table.tile_qk != NULL, &cpu->limits);
    }
}

struct kv_scratch cpu_kv_scratch(const struct cpu *cpu, int tid)
{
    return ((const struct kv_scratch *)(const void *)cpu->kv_scratch)[tid];
}

/* ---- layout ------------------------------------------------------------------------------- */

int cpu_kv_layout(struct ops_kv_layout *l, struct error *reterr)
{
    int r = kv_code_check(l, reterr);

    if (r) {
        return r;
    }
    if ((kv_page_by_slot(l->k_type) || kv_page_by_slot(l->v_type)) &&
        (l->rank != OPS_RANK_ONCE || l->part_dims > 0)) {
        return error_set(reterr, -ENOTSUP, "backend \"cpu\" cannot select in a cache of type %s",
                         ops_kv_type_name(kv_page_by_slot(l->k_type) ? l->k_type : l->v_type));
    }
    if (l->part_apart) {
        return error_set(reterr, -ENOTSUP, "backend \"cpu\" has partial keys in the page alone");
    }
    l->page_bytes = (uint64_t)l->k_heads * kv_page_k_bytes(l) +
                    (uint64_t)l->v_heads * kv_page_v_bytes(l) +
                    OPS_PAGE_SLOTS * ((uint64_t)l->k_heads * ops_kv_scale_bytes(l->k_type) +
                                      (uint64_t)l->v_heads * ops_kv_scale_bytes(l->v_type)) +
                    kv_page_copy_bytes(l) + kv_page_part_bytes(l);
    return 0;
}

/* ---- canonical slots ---------------------------------------------------------------------- */

static void copy(uint8_t *page, uint8_t *host, size_t n, bool out)
{
    if (out) {
        memcpy(host, page, n);
    } else {
        memcpy(page, host, n);
    }
}

/* One slot to (`out`) or from canonical form; returns the byte after it. */
static uint8_t *copy_slot(const struct ops_kv_slots *p, int32_t slot, uint8_t *host, bool out)
{
    const struct ops_kv_layout *l = p->kv->layout;
    uint8_t *page = kv_page_of(p->kv, p->group, slot);
    size_t i = (size_t)(slot % OPS_PAGE_SLOTS);
    bool by_slot = kv_page_by_slot(l->k_type);
    size_t k_size =
        by_slot ? (size_t)ops_kv_type_bytes(l->k_type, l->k_dim) : kv_page_element(l->k_type);
    size_t v_size = (size_t)ops_kv_type_bytes(l->v_type, l->v_dim);

    for (int32_t h = 0; h < l->k_heads; h++) {
        uint8_t *k = kv_page_k(l, page, h) + i * k_size;

        for (int32_t d = 0; d < (by_slot ? 1 : l->k_dim); d++, host += k_size) {
            copy(k + (size_t)d * OPS_PAGE_SLOTS * k_size, host, k_size, out);
        }
    }
    for (int32_t h = 0; h < l->v_heads; h++, host += v_size) {
        copy(kv_page_v(l, page, h) + i * kv_page_v_row_bytes(l), host, v_size, out);
    }
    for (int32_t h = 0; h < l->k_heads && ops_kv_scale_bytes(l->k_type); h++, host += 2) {
        copy((uint8_t *)(kv_page_k_scale(l, page, h) + i), host, 2, out);
    }
    for (int32_t h = 0; h < l->v_heads && ops_kv_scale_bytes(l->v_type); h++, host += 2) {
        copy((uint8_t *)(kv_page_v_scale(l, page, h) + i), host, 2, out);
    }
    return host;
}

int cpu_kv_export(struct backend *be, const struct ops_kv_slots *p)
{
    uint8_t *host = p->host;

    (void)be;
    for (int32_t i = 0; i < p->n_slots; i++) {
        host = copy_slot(p, p->slot0 + i, host, true);
    }
    return 0;
}

int cpu_kv_import(struct backend *be, const struct ops_kv_slots *p)
{
    struct cpu *cpu = cpu_of(be);
    const struct ops_kv_layout *l = p->kv->layout;
    uint8_t *host = p->host;

    for (int32_t i = 0; i < p->n_slots; i++) {
        int32_t slot = p->slot0 + i;

        host = copy_slot(p, slot, host, false);
        for (int32_t h = 0; h < l->k_heads && l->rank != OPS_RANK_ONCE; h++) {
            cpu_kv_copy_k(cpu, l, kv_page_of(p->kv, p->group, slot), h, slot % OPS_PAGE_SLOTS, 1,
                          cpu_kv_scratch(cpu, 0).t.k);
        }
    }
    for (int32_t i = 0; i < p->n_slots && l->part_dims > 0;) {
        struct kv_scratch s = cpu_kv_scratch(cpu, 0);
        int32_t left = OPS_PAGE_SLOTS - (p->slot0 + i) % OPS_PAGE_SLOTS;
        int32_t n = p->n_slots - i < left ? p->n_slots - i : left;

        cpu_kv_make_part(cpu, p->kv, p->group, p->slot0 + i, n, &s.t);
        i += n;
    }
    return 0;
}

/* ---- tables of angles ----------------------------------------------------------------------- */

int cpu_kv_find_table(struct kv_rope_key *const keys[], float *const inv_freqs[],
                      const struct ops_rope *r, bool *ret_stale)
{
    size_t bytes = (size_t)(r->n_dims / 2) * sizeof(float);
    int found = 0; /* the oldest, unless one fits */
    uint32_t latest = 0;

    *ret_stale = true;
    for (int i = 0; i < KV_ROPE_TABLES; i++) {
        latest = keys[i]->used > latest ? keys[i]->used : latest;
        found = keys[i]->used < keys[found]->used ? i : found;
    }
    for (int i = 0; i < KV_ROPE_TABLES; i++) {
        if (keys[i]->n_dims == r->n_dims && keys[i]->form == r->form &&
            keys[i]->mscale == r->mscale &&
            (bytes == 0 || memcmp(inv_freqs[i], r->inv_freq, bytes) == 0)) {
            found = i;
            *ret_stale = false;
            break;
        }
    }
    *keys[found] = (struct kv_rope_key){r->n_dims, r->form, r->mscale, latest + 1};
    if (bytes > 0) { /* else inv_freq may be NULL */
        memcpy(inv_freqs[found], r->inv_freq, bytes);
    }
    return found;
}

/* ---- kernels by type ---------------------------------------------------------------------- */

#define BY_TYPE(fn_type, stem, f32)                                                                \
    fn_type *cpu_kv_##stem(const struct cpu_table *t, enum ops_kv_type type)                       \
    {                                                                                              \
        switch (type) {                                                                            \
        case OPS_KV_F16:                                                                           \
            return t->stem##_f16;                                                                  \
        case OPS_KV_BF16:                                                                          \
            return t->stem##_bf16;                                                                 \
        case OPS_KV_FP8:                                                                           \
            return t->stem##_fp8;                                                                  \
        case OPS_KV_I8:                                                                            \
            return t->stem##_i8;                                                                   \
        default:                                                                                   \
            return f32;                                                                            \
        }                                                                                          \
    }

BY_TYPE(cpu_kv_dims_fn, dims, t->dims_f32)
BY_TYPE(cpu_kv_rows_fn, rows, t->rows_f32)
BY_TYPE(cpu_kv_blend_fn, blend, t->blend_f32)
BY_TYPE(cpu_kv_qk_fn, qk, type == OPS_KV_G4 ? t->qk_g4 : t->qk_f32)
BY_TYPE(cpu_kv_pv_fn, pv, type == OPS_KV_G4 ? t->pv_g4 : t->pv_f32)
BY_TYPE(cpu_kv_unpack_fn, unpack, NULL)
BY_TYPE(cpu_kv_encode_fn, encode, NULL)

cpu_kv_query_fn *cpu_kv_query(const struct cpu_table *t, enum ops_kv_type type)
{
    return type == OPS_KV_I8 ? t->query_i8 : type == OPS_KV_G4 ? t->query_g4 : NULL;
}
