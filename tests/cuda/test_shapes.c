/* SPDX-License-Identifier: Apache-2.0 */
/* Launch geometry of the cuda backend for extremes of shapes, over the fake run-time library: every
 * operation, with the largest and the oddest rows, weights, heads, contexts and batches that the
 * layers above allow, on devices with little and with much shared memory, alone and as a graph.
 * Each call must go, and within the device's limits (fake/fake.h says which).
 *
 *     test_cuda_shapes MODULE */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/fake_open.h"

enum {
    MAX_ROWS = 65536 + 64,
    MAX_SLOTS = 1 << 20,
    MAX_COLS = 28672,
    MAX_SEQS = 64,
    MAX_HEADS = 128
};

static struct backend *be;
static uint8_t *memory; /* of the device: operands lie anywhere in it */
static const uint64_t memory_bytes = (uint64_t)8 << 30;

static void done(int r, const char *what, int a, int b, int c)
{
    if (r == 0) {
        r = be->ops->sync(be);
    }
    expect(r == 0 && !fake.broken(), "%s %d %d %d: %d, %s", what, a, b, c, r,
           fake.broken() ? fake.broken() : "");
}

static struct ops_weight weight(enum dtype type, enum ops_role role, int32_t n_rows, int32_t n_cols)
{
    return (struct ops_weight){
        .type = type, .role = role, .n_rows = n_rows, .n_cols = n_cols, .device = memory};
}

/* ---- rows and weights --------------------------------------------------------------------------
 */

static void matmuls(void)
{
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                                       DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                                       DTYPE_Q2_K, DTYPE_Q3_K,   DTYPE_Q4_K,   DTYPE_Q5_K,
                                       DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    static const int32_t outputs[] = {1, 17, 4096, 262144};
    static const int32_t cols[] = {256, MAX_COLS};
    static const int32_t rows[][2] = {{1, 1}, {9, 9}, {64, 64}, {512, 0}, {576, 64}, {MAX_ROWS, 0}};

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int i = 0; i < 4 * 2 * 6 * 3; i++) {
            struct ops_weight w = weight(types[t], i % 3 == 2 ? OPS_ROLE_EMBED : OPS_ROLE_MATMUL,
                                         outputs[i / 36], cols[i / 18 % 2]);
            struct ops_matmul p = {.rows = {rows[i / 3 % 6][0], rows[i / 3 % 6][1]},
                                   .x = (float *)memory,
                                   .ldx = w.n_cols,
                                   .n_parts = i % 3 == 1 ? 2 : 1,
                                   .gated = i % 3 == 1};

            for (int k = 0; k < p.n_parts; k++) {
                p.part[k].w = &w;
                p.part[k].y = (float *)memory;
                p.part[k].ldy = w.n_rows;
            }
            done(be->ops->matmul(be, &p), "matmul", (int)types[t], w.n_rows, p.rows.n);
        }
    }
}

static void whole_rows(void)
{
    static int32_t ids[MAX_ROWS];
    static const int32_t n_rows[] = {1, 16, 769, MAX_ROWS};

    for (int i = 0; i < 4; i++) {
        int32_t n = n_rows[i];
        struct ops_weight q = weight(DTYPE_Q6_K, OPS_ROLE_EMBED, 262144, 8192);
        struct ops_weight v = weight(DTYPE_F32, OPS_ROLE_VECTOR, 1, 8192);
        struct ops_embed e = {
            .rows = {n, n}, .ids = ids, .w = &q, .scale = 1, .y = (float *)memory, .ld = 8192};
        struct ops_norm_op o = {.rows = {n, 0},
                                .x = (float *)memory,
                                .y = (float *)memory,
                                .ldx = 8192,
                                .ldy = 8192,
                                .n_cols = 8192};
        struct ops_gather g = {.x = (float *)memory,
                               .y = (float *)memory,
                               .index = ids,
                               .n_rows = n,
                               .n_cols = 8192,
                               .ldx = 8192,
                               .ldy = 8192};
        struct ops_softcap s = {
            .x = (float *)memory, .ld = 262144, .n_rows = n, .n_cols = 262144, .cap = 30};

        o.norm = (struct ops_norm){.w = &v, .eps = 1e-5f};
        done(be->ops->embed(be, &e), "embed", n, 0, 0);
        done(be->ops->norm(be, &o), "norm", n, 0, 0);
        done(be->ops->gather(be, &g), "gather", n, 0, 0);
        done(be->ops->softcap(be, &s), "softcap", n, 0, 0);
    }
}

/* Heads and channels from small to the largest, rows of one sequence or of all. */
static void recurrent(void)
{
    static struct ops_state seqs[MAX_SEQS];
    static const int32_t dims[][2] = {{16, 16}, {128, 128}, {128, 256}, {256, 128}, {256, 256}};
    static const int32_t n_seqs[] = {1, 16, MAX_SEQS};

    for (int i = 0; i < 5 * 3 * 2; i++) {
        int32_t n = n_seqs[i % 3];
        int32_t rows = i / 3 % 2 ? MAX_ROWS / n : 1;
        const int32_t *d = dims[i / 6];
        struct ops_weight v = weight(DTYPE_F32, OPS_ROLE_VECTOR, 1, 4 * MAX_COLS);
        struct ops_conv c = {.rows = {n * rows, rows == 1 ? n : 0},
                             .n_channels = i == 0 ? 1 : MAX_COLS,
                             .width = i % 2 ? 4 : OPS_CONV_MAX_WIDTH,
                             .w = &v,
                             .x = (float *)memory,
                             .y = (float *)memory,
                             .ldx = MAX_COLS,
                             .ldy = MAX_COLS,
                             .seqs = seqs,
                             .n_seqs = n};
        struct ops_delta p = {.rows = c.rows,
                              .n_k = MAX_HEADS / 2,
                              .n_v = MAX_HEADS,
                              .k_dim = d[0],
                              .v_dim = d[1],
                              .a = &v,
                              .dt = &v,
                              .w = &v,
                              .qkv = (float *)memory,
                              .alpha = (float *)memory,
                              .beta = (float *)memory,
                              .z = (float *)memory,
                              .y = (float *)memory,
                              .seqs = seqs,
                              .n_seqs = n};
        struct ops_gate g = {.rows = c.rows,
                             .n_heads = MAX_HEADS,
                             .dim = d[1],
                             .x = (float *)memory,
                             .gate = (float *)memory,
                             .y = (float *)memory};

        for (int32_t k = 0; k < n; k++) {
            seqs[k] = (struct ops_state){.row0 = k * rows, .n_rows = rows, .out = memory};
        }
        done(be->ops->conv(be, &c), "conv", c.n_channels, n, rows);
        done(be->ops->delta(be, &p), "delta", d[0], n, rows);
        done(be->ops->gate(be, &g), "gate", d[1], n, rows);
    }
}

/* Few experts and the most, of which a row uses some or all; with a shared one. */
static void mixtures(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_Q4_K};
    static const int32_t experts[][2] = {{2, 1}, {8, 2}, {128, 8}, {1024, 128}};
    static const int32_t rows[][2] = {{1, 1}, {16, 16}, {600, 5}, {MAX_ROWS, 0}};

    for (int i = 0; i < 3 * 4 * 4; i++) {
        enum dtype type = types[i / 16];
        int32_t n = experts[i / 4 % 4][0];
        struct ops_weight router = weight(DTYPE_F32, OPS_ROLE_MATMUL, n, 7168);
        struct ops_weight up = weight(type, OPS_ROLE_MATMUL, 2048, 7168);
        struct ops_weight down = weight(type, OPS_ROLE_MATMUL, 7168, 2048);
        struct ops_weight shared_up = up;
        struct ops_weight shared_down = down;
        struct ops_experts p = {.rows = {rows[i % 4][0], rows[i % 4][1]},
                                .x = (float *)memory,
                                .y = (float *)memory,
                                .ldx = 7168,
                                .ldy = 7168,
                                .n_expert = n,
                                .n_used = experts[i / 4 % 4][1],
                                .router = &router,
                                .gate = {.w = &up},
                                .up = {.w = &up},
                                .down = {.w = &down}};

        up.n_stack = (uint32_t)n & 0xffff;
        down.n_stack = up.n_stack;
        if (i % 2) {
            p.shared_gate_proj.w = p.shared_up.w = &shared_up;
            p.shared_down.w = &shared_down;
        }
        done(be->ops->experts(be, &p), "experts", n, p.n_used, p.rows.n);
        fake.log_clear();
    }
}

/* Packing of a vocabulary's rows; where memory is shared the packed bytes come from pinned memory,
 * else they are copied. */
static void packing(const struct fake_device *d)
{
    enum { ROWS = 262144, COLS = 2048 };
    uint64_t bytes = (uint64_t)ROWS * COLS / 32 * 34;
    void *rows = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct ops_weight_desc desc = {.name = "token_embd",
                                   .type = DTYPE_Q8_0,
                                   .role = OPS_ROLE_EMBED,
                                   .n_rows = ROWS,
                                   .n_cols = COLS,
                                   .data = rows};
    struct ops_weight w = {0};
    struct error e = {0};
    const struct fake_call *c;
    uint64_t copied = 0;
    int n;
    int r = rows == MAP_FAILED ? -ENOMEM : 0;

    /* few of the rows where each is summed up by the fake */
    desc.n_rows = d->integrated ? 8192 : ROWS;
    fake.log_clear();
    r = r < 0 ? r : be->ops->weight_create(be, &desc, &w, &e);
    done(r, e.text, 0, 0, 0);
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        copied += c[i].kind == FAKE_WRITE ? c[i].bytes : 0;
    }
    expect(copied == (d->integrated ? 0 : bytes), "%llu bytes copied to pack %llu",
           (unsigned long long)copied, (unsigned long long)bytes);
    if (r == 0) {
        be->ops->weight_destroy(be, &w);
    }
    (void)munmap(rows, bytes);
    fake.log_clear();
}

/* ---- caches ------------------------------------------------------------------------------------
 */

struct shape {
    int32_t n_groups, k_heads, v_heads, k_dim, v_dim, n_q;
    enum ops_kv_type k_type, v_type;
};

static struct ops_kv kv_of(const struct ops_kv_layout *l, int32_t n_slots, bool scores)
{
    return (struct ops_kv){.layout = l,
                           .pool = memory,
                           .pages = (uint32_t *)memory,
                           .max_pages = MAX_SLOTS / OPS_PAGE_SLOTS,
                           .cap = MAX_SLOTS,
                           .slot_pos = scores ? (int32_t *)memory : NULL,
                           .score = scores ? (float *)memory : NULL,
                           .v_sum = scores ? (float *)memory : NULL,
                           .n_slots = n_slots};
}

static void attend(const struct shape *s, const struct ops_kv_layout *l, int32_t n_seqs,
                   int32_t rows, int32_t slots, int mode)
{
    static struct ops_seq seqs[MAX_SEQS];
    static struct ops_observe observe[MAX_SEQS];
    static struct ops_select select[MAX_SEQS];
    static const float inv_freq[128];
    bool decode = rows == 1;
    int32_t n = n_seqs * rows;
    struct ops_attention a = {.rows = {n, decode ? n : 0},
                              .q = (float *)memory,
                              .out = (float *)memory,
                              .ldq = s->n_q * s->k_dim,
                              .ldo = s->n_q * s->v_dim,
                              .n_q = s->n_q,
                              .scale = 1,
                              .seqs = seqs,
                              .n_seqs = n_seqs};
    struct ops_rope_store p = {.rows = a.rows,
                               .q = (float *)memory,
                               .k = (float *)memory,
                               .v = (float *)memory,
                               .ldq = a.ldq,
                               .ldk = 4096,
                               .ldv = 4096,
                               .n_q = s->n_q,
                               .n_k = s->n_groups * s->k_heads,
                               .n_v = s->n_groups * s->v_heads,
                               .k_dim = s->k_dim,
                               .seqs = seqs,
                               .n_seqs = n_seqs};

    p.rope = (struct ops_rope){
        .form = OPS_ROPE_NEOX, .n_dims = s->k_dim, .inv_freq = inv_freq, .mscale = 1};
    for (int32_t i = 0; i < n_seqs; i++) {
        seqs[i] = (struct ops_seq){
            .row0 = i * rows, .n_rows = rows, .pos0 = slots - rows, .slot0 = slots - rows};
        seqs[i].victim = mode == 1 && decode ? (const int32_t *)memory : NULL;
        seqs[i].kv = kv_of(l, slots, mode > 0);
        observe[i] =
            (struct ops_observe){.noise = OPS_NOISE_GUMBEL,
                                 .row_first = mode == 1 ? (rows > 64 ? rows - 64 : 0) : rows,
                                 .row_weight0 = 1,
                                 .row_growth = 1,
                                 .damp = 1,
                                 .tau0 = 1};
        select[i] = (struct ops_select){.kind = mode == 2 ? OPS_SELECT_SPARQ : OPS_SELECT_TOPV,
                                        .r = s->k_dim < 32 ? 1 : 32,
                                        .k = slots < 4096 ? 128 : 4096,
                                        .local = 16,
                                        .mean = mode == 2};
    }
    if (decode && mode < 2) {
        struct ops_weight w[3] = {
            weight(DTYPE_Q4_K, OPS_ROLE_MATMUL, p.n_q * s->k_dim, MAX_COLS),
            weight(DTYPE_BF16, OPS_ROLE_MATMUL, p.n_k * s->k_dim, MAX_COLS),
            weight(DTYPE_Q4_K, OPS_ROLE_MATMUL, p.n_v * s->v_dim, MAX_COLS),
        };
        struct ops_matmul m = {.rows = a.rows, .x = (float *)memory, .ldx = MAX_COLS, .n_parts = 3};
        const int32_t ld[] = {p.ldq, p.ldk, p.ldv};

        for (int k = 0; k < 3; k++) {
            m.part[k].w = &w[k];
            m.part[k].y = (float *)memory;
            m.part[k].ldy = ld[k];
        }
        done(be->ops->qkv_store(be, &m, &p), "qkv_store", s->k_dim, n, mode);
    }
    a.observe = mode == 1 ? observe : NULL;
    a.select = mode >= 2 && decode ? select : NULL;
    done(be->ops->rope_store(be, &p), "rope_store", s->k_dim, n, mode);
    done(be->ops->attention(be, &a), rows == 1 ? "decode" : "prefill", s->k_dim, slots, mode);
}

/* One row of each sequence predicted for, and attention over what that gives. */
static void predicted(const struct shape *s, enum ops_kv_type part_type, int32_t n_seqs,
                      int32_t slots)
{
    static struct ops_seq seqs[MAX_SEQS];
    static struct ops_select select[MAX_SEQS];
    struct ops_chosen chosen = {.n = (int32_t *)memory,
                                .slots = (int32_t *)memory,
                                .max_groups = s->n_groups,
                                .ld = MAX_SLOTS};
    struct ops_kv_layout l = {.n_groups = s->n_groups,
                              .k_heads = s->k_heads,
                              .v_heads = s->v_heads,
                              .k_dim = s->k_dim,
                              .v_dim = s->v_dim,
                              .k_type = s->k_type,
                              .v_type = s->v_type,
                              .part_dims = part_type == OPS_KV_F32 ? s->k_dim : s->k_dim * 3 / 10,
                              .part_type = part_type};
    struct ops_predict p = {.rows = {n_seqs, n_seqs},
                            .q = (float *)memory,
                            .ldq = s->n_q * s->k_dim,
                            .n_q = s->n_q,
                            .scale = 1,
                            .seqs = seqs,
                            .n_seqs = n_seqs,
                            .select = select,
                            .chosen = &chosen};
    struct ops_attention a = {.rows = p.rows,
                              .q = p.q,
                              .out = (float *)memory,
                              .ldq = p.ldq,
                              .ldo = s->n_q * s->v_dim,
                              .n_q = s->n_q,
                              .scale = 1,
                              .seqs = seqs,
                              .n_seqs = n_seqs,
                              .select = select};
    struct error e = {0};

    expect(be->ops->kv_layout(&l, &e) == 0, "%s", e.text);
    for (int32_t i = 0; i < n_seqs; i++) {
        bool pool = i % 2 == 1;

        seqs[i] = (struct ops_seq){.row0 = i,
                                   .n_rows = 1,
                                   .pos0 = slots - 1,
                                   .slot0 = slots - 1,
                                   .victim = pool ? (const int32_t *)memory : NULL,
                                   .kv = kv_of(&l, slots, pool)};
        seqs[i].kv.skew = (const float *)memory;
        select[i] = (struct ops_select){.kind = OPS_SELECT_GIVEN,
                                        .count = i % 3 == 1 ? 1000 : 0,
                                        .share = i % 3 == 2 ? 10 : 0,
                                        .alpha = 4,
                                        .cap = 100,
                                        .use = pool ? OPS_USE_COUNT : OPS_USE_NONE,
                                        .chosen = &chosen,
                                        .entry = i};
    }
    done(be->ops->predict(be, &p), "predict", s->k_dim, slots, n_seqs);
    done(be->ops->attention(be, &a), "predicted", s->k_dim, slots, n_seqs);
}

static void policies(const struct ops_kv_layout *l, int32_t slots)
{
    struct ops_kv kv = kv_of(l, slots, true);

    for (int shared = 0; shared < 2; shared++) {
        struct ops_victim v = {.kv = &kv,
                               .sinks = 4,
                               .pos_protect = slots - 1,
                               .shared = shared,
                               .victim = (int32_t *)memory};
        struct ops_cut c = {.kv = &kv,
                            .budget = slots / 2,
                            .sinks = 4,
                            .pos_protect = slots - 1,
                            .pos_end = slots,
                            .shared = shared};

        done(be->ops->victim(be, &v), "victim", slots, l->n_groups, shared);
        done(be->ops->cut(be, &c), "cut", slots, l->n_groups, shared);
    }
    struct ops_kv_sum sum = {.kv = &kv};

    done(be->ops->kv_sum(be, &sum), "kv_sum", slots, l->n_groups, 0);
}

static void caches(void)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 8, 8, 1, OPS_KV_F16, OPS_KV_F16},
        {8, 1, 1, 128, 128, 32, OPS_KV_BF16, OPS_KV_BF16},
        {8, 1, 1, 128, 128, 64, OPS_KV_FP8, OPS_KV_FP8},
        {32, 1, 1, 128, 128, 32, OPS_KV_I8, OPS_KV_FP8},
        {4, 1, 1, 256, 256, 8, OPS_KV_F16, OPS_KV_F16},
        {4, 1, 1, 256, 256, 8, OPS_KV_FP8, OPS_KV_FP8},
        {1, 1, 1, 256, 256, 16, OPS_KV_F32, OPS_KV_F32},
        {4, 1, 4, 128, 128, 32, OPS_KV_F16, OPS_KV_F16},
        {2, 1, 1, 80, 80, 2, OPS_KV_F16, OPS_KV_FP8},
        {MAX_HEADS, 1, 1, 64, 64, MAX_HEADS, OPS_KV_F16, OPS_KV_F16},
        {1, 1, 1, 64, 64, MAX_HEADS, OPS_KV_F16, OPS_KV_F16},
    };
    static const int32_t slots[] = {1, 64, 4097, 32769, MAX_SLOTS};
    static const enum ops_kv_type part_types[] = {OPS_KV_F32, OPS_KV_F16, OPS_KV_FP8};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct shape *s = &shapes[i];

        fake.log_clear();
        for (int j = 0; j < 5 * 3; j++) {
            predicted(s, part_types[j % 3], 1, slots[j / 3]);
            predicted(s, part_types[j % 3], 17, slots[j / 3]);
            predicted(s, part_types[j % 3], MAX_SEQS, slots[j / 3]);
        }
        for (int rank = 0; rank < 3; rank++) {
            struct ops_kv_layout l = {.n_groups = s->n_groups,
                                      .k_heads = s->k_heads,
                                      .v_heads = s->v_heads,
                                      .k_dim = s->k_dim,
                                      .v_dim = s->v_dim,
                                      .k_type = s->k_type,
                                      .v_type = s->v_type,
                                      .rank = (enum ops_rank)rank};
            struct error e = {0};
            int r = be->ops->kv_layout(&l, &e);

            expect(r == 0, "%s", e.text);
            for (int j = 0; j < 5 * 4 && r == 0; j++) {
                int mode = j % 4;

                attend(s, &l, 1, 1, slots[j / 4], mode);
                attend(s, &l, 17, 1, slots[j / 4], mode);
                attend(s, &l, MAX_SEQS, 1, slots[j / 4], mode);
                if (slots[j / 4] > 65536) {
                    attend(s, &l, 1, 65536, slots[j / 4], mode); /* the largest chunk */
                    attend(s, &l, 17, 500, slots[j / 4], mode);
                }
            }
            for (int j = 0; j < 5 && r == 0 && rank == 0; j++) {
                policies(&l, slots[j] > 8 ? slots[j] : 8);
            }
        }
    }
}

/* Steps as graphs: a thousand launches and more, whose grids change from step to step. */
static void graphs(void)
{
    struct ops_weight q = weight(DTYPE_Q4_0, OPS_ROLE_EMBED, 1024, 256);
    struct ops_kv_layout l = {.n_groups = 8,
                              .k_heads = 1,
                              .v_heads = 1,
                              .k_dim = 128,
                              .v_dim = 128,
                              .k_type = OPS_KV_FP8,
                              .v_type = OPS_KV_FP8};
    struct shape s = {8, 1, 1, 128, 128, 32, OPS_KV_FP8, OPS_KV_FP8};
    static const int32_t ids[MAX_SEQS];
    struct error e = {0};
    float back;

    expect(be->ops->kv_layout(&l, &e) == 0, "%s", e.text);
    fake.log_clear();
    for (int step = 0; step < 6; step++) {
        struct ops_embed p = {
            .rows = {4, 4}, .ids = ids, .w = &q, .scale = 1, .y = (float *)memory, .ld = 256};
        struct ops_seq seq[4];
        struct ops_attention a = {.rows = {4, 4},
                                  .q = (float *)memory,
                                  .out = (float *)memory,
                                  .ldq = 4096,
                                  .ldo = 4096,
                                  .n_q = s.n_q,
                                  .scale = 1,
                                  .seqs = seq,
                                  .n_seqs = 4};

        for (int i = 0; i < 4; i++) {
            seq[i] =
                (struct ops_seq){.row0 = i, .n_rows = 1, .pos0 = 4095 + step, .slot0 = 4095 + step};
            seq[i].kv = kv_of(&l, 4096 + step, false); /* chunks of 256 become chunks of 320 */
        }
        expect(be->ops->embed(be, &p) == 0, "embed");
        for (int layer = 0; layer < 650; layer++) {
            expect(be->ops->attention(be, &a) == 0, "layer %d", layer);
        }
        done(be->ops->read(be, &back, memory, sizeof(back)), "step", step, 0, 0);
    }
    int n;
    int launches = 0;
    const struct fake_call *c = fake.log(&n);

    for (int i = 0; i < n; i++) {
        launches += c[i].kind == FAKE_GRAPH_LAUNCH;
        expect(c[i].kind != FAKE_GRAPH || (c[i].n > 0 && c[i].n <= 1024), "a graph of %d", c[i].n);
    }
    /* 1,301 kernels: two parts, each a graph from the second step on */
    expect(launches == 2 * 5, "%d launches of graphs", launches);
}

int main(int argc, char **argv)
{
    struct backend_limits limits = {.max_rows = MAX_ROWS,
                                    .max_decode = MAX_SEQS,
                                    .max_seqs = MAX_SEQS,
                                    .max_cols = MAX_COLS,
                                    .max_outputs = 262144,
                                    .max_heads = MAX_HEADS,
                                    .max_head_dim = 256,
                                    .max_slots = MAX_SLOTS,
                                    .max_experts = 1024,
                                    .max_experts_used = 128,
                                    .observe = true,
                                    .select = true};
    struct backend_config config = {0};

    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_cuda_shapes MODULE\n");
        return 2;
    }
    fake_open(argv[1]);
    for (int i = 0; i < N_DEVICES; i++) {
        struct fake_device d = fake_devices[i];
        struct error e = {0};
        void *p = NULL;

        d.memory = (uint64_t)1 << 40;
        fake.start(&d);
        if (fake.ops->create(&config, &be, &e) < 0 || be->ops->reserve(be, &limits, &e) < 0 ||
            be->ops->alloc(be, memory_bytes, "operands", &p, &e) < 0) {
            expect(false, "%s", e.text);
            break;
        }
        memory = p;
        matmuls();
        fake.log_clear();
        whole_rows();
        recurrent();
        mixtures();
        packing(&d);
        fake.log_clear();
        caches();
        graphs();
        be->ops->free(be, memory, memory_bytes);
        be->ops->destroy(be);
        expect_clean("shapes");
        printf("sm_%d%d done, %d failed\n", d.major, d.minor, n_failed);
    }
    return n_failed > 0;
}
