/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant of a kernel of weights or rows gives the bits of the plain C one
 * (kernels/cpu/table.h), for every instruction set of this CPU: panels of all types by all numbers
 * of tokens up to two tiles, norms, quantised activations, the end of a matmul, soft-capping,
 * recurrent layers. Heads of the cache have the bits of their definition (kernels/hadamard.h), and
 * encoded together those of one alone. Tiles of the cache's pages have its values rounded to bf16,
 * each in its place. Inputs are made here, directly in the packed layout. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/cpu/kv.h"
#include "kernels/cpu/kv_encode16.h"
#include "kernels/hadamard.h"
#include "kernels/kv_code.h"
#include "kernels/kv_round.h"
#include "quant/gauss4.h"

enum { MAX_COLS = 512, MAX_TOKENS = 32, ROWS = 16, MAX_HEAD = 512 };

static const struct {
    const char *name;
    uint32_t flags;
} variants[] = {
    {"avx2", CPU_AVX2},
    {"avx2+vnni", CPU_AVX2 | CPU_AVX_VNNI},
    {"avx512", CPU_AVX2 | CPU_AVX512},
    {"avx512+vnni", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI},
    {"neon", CPU_NEON},
    {"neon+dotprod", CPU_NEON | CPU_DOTPROD},
    {"neon+i8mm", CPU_NEON | CPU_DOTPROD | CPU_I8MM},
};

static uint32_t counter;
static int n_failed;

static uint32_t random_word(void)
{
    static uint32_t words[4];

    if (counter % 4 == 0) {
        rng_philox(rng_key_make(11), (uint32_t[4]){counter / 4, 0, 0, 0}, words);
    }
    return words[counter++ % 4];
}

static float random_float(void)
{
    return (float)(int32_t)random_word() * 0x1p-31f;
}

static void fill(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = random_float();
    }
}

/* 16-bit floats with exponents from e on, eight of them. */
static void fill_halves(uint8_t *p, size_t n, int mantissa_bits, int e)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t r = random_word();
        uint32_t kept = 0x8000u | ((1u << mantissa_bits) - 1);
        uint16_t h = (uint16_t)((r & kept) | ((uint32_t)e + (r >> 16 & 7)) << mantissa_bits);

        memcpy(p + 2 * i, &h, 2);
    }
}

static void make_panel(enum dtype type, int32_t n_cols, uint8_t *w)
{
    size_t bytes = (size_t)panel_bytes(type, (uint64_t)n_cols);
    size_t codes = 0; /* before the scales of a block */
    size_t step = PANEL_SUPER_HEAD;

    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t r = random_word();

        memcpy(w + i, &r, 4);
    }
    switch (type) {
    case DTYPE_F32:
        fill((float *)(void *)w, n_cols * ROWS);
        return;
    case DTYPE_F16:
        fill_halves(w, bytes / 2, 10, 10);
        return;
    case DTYPE_BF16:
        fill_halves(w, bytes / 2, 7, 120);
        return;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_IQ4_XS:
        step = (size_t)panel_bytes(type, 256);
        break;
    default:
        step = (size_t)panel_bytes(type, 32);
        codes = type == DTYPE_Q8_0                         ? PANEL_BYTES
                : type == DTYPE_Q5_0 || type == DTYPE_Q5_1 ? PANEL_NIBBLES + PANEL_HIGH1
                                                           : PANEL_NIBBLES;
        break;
    }
    for (size_t at = codes; at < bytes; at += step) {
        size_t n = codes ? (step - codes) / 2 : 32; /* K-quants: d and dmin */

        if (type == DTYPE_MXFP4) {
            fill_halves(w + at, n, 7, 110);
        } else {
            fill_halves(w + at, n, 10, 5);
        }
    }
}

static void same(const char *variant, const char *slot, int32_t n, const void *got,
                 const void *want, size_t bytes)
{
    if (memcmp(got, want, bytes) != 0) {
        printf("FAIL %s: %s with n %d gives other bits than plain C\n", variant, slot, n);
        n_failed++;
    }
}

static void panels(const char *variant, const struct cpu_table *t, const struct cpu_table *plain)
{
    static const enum dtype types[] = {DTYPE_F32,    DTYPE_F16,   DTYPE_BF16, DTYPE_Q4_0,
                                       DTYPE_Q4_1,   DTYPE_Q5_0,  DTYPE_Q5_1, DTYPE_Q8_0,
                                       DTYPE_Q4_K,   DTYPE_Q5_K,  DTYPE_Q6_K, DTYPE_IQ4_NL,
                                       DTYPE_IQ4_XS, DTYPE_MXFP4, DTYPE_Q2_K, DTYPE_Q3_K};
    static const int32_t counts[] = {1, 2, 3, 4, 5, 8, 9, 15, 22};
    static _Alignas(64) uint8_t w[MAX_COLS * 64 + 64];
    static _Alignas(64) float x[MAX_TOKENS * MAX_COLS];
    static struct panel_act q[MAX_TOKENS * (MAX_COLS / PANEL_COLS)];
    static _Alignas(64) float got[MAX_TOKENS * ROWS];
    static _Alignas(64) float want[MAX_TOKENS * ROWS];

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const int32_t block = dtype_info(types[i])->block_len;
        const int32_t n_cols = block == 1 ? 131 : block == 32 ? 96 : 512;
        const struct cpu_acts a = {
            .n_cols = n_cols, .q = q, .ldq = (size_t)n_cols / PANEL_COLS, .x = x, .ldx = MAX_COLS};

        make_panel(types[i], n_cols, w);
        fill(x, MAX_TOKENS * MAX_COLS);
        for (int32_t token = 0; token < MAX_TOKENS; token++) {
            plain->quantize(x + token * MAX_COLS, n_cols / PANEL_COLS * PANEL_COLS,
                            q + (size_t)token * a.ldq);
        }
        for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
            cpu_table_panel(t, types[i])(w, &a, counts[k], got);
            cpu_table_panel(plain, types[i])(w, &a, counts[k], want);
            same(variant, dtype_info(types[i])->name, counts[k], got, want,
                 (size_t)counts[k] * ROWS * sizeof(float));
        }
    }
}

static void ends(const char *variant, const struct cpu_table *t, const struct cpu_table *plain)
{
    static const enum ops_act acts[] = {OPS_ACT_NONE,     OPS_ACT_SILU, OPS_ACT_GELU_TANH,
                                        OPS_ACT_GELU_ERF, OPS_ACT_RELU, OPS_ACT_RELU_SQ};
    float g[5 * ROWS];
    float u[5 * ROWS];
    float bias[ROWS];

    fill(g, 5 * ROWS);
    fill(u, 5 * ROWS);
    fill(bias, ROWS);
    for (int i = 0; i < 5 * ROWS; i += 3) {
        g[i] *= 100;
    }
    for (int32_t k = 0; k < 6 * 2 * 2; k++) {
        float got[5 * ROWS] = {0};
        float want[5 * ROWS] = {0};
        struct cpu_epilogue e = {
            .g = g,
            .u = k % 2 ? u : NULL,
            .bias = bias,
            .u_bias = bias,
            .scale = k % 4 ? 1.0f : -0.75f,
            .bias_scale = k % 4 ? 1.0f : 0.375f,
            .u_scale = 1.25f,
            .u_bias_scale = 1.0f,
            .y = got,
            .ldy = ROWS,
            .n = 5,
            .n_rows = k / 2 % 2 ? 11 : ROWS,
            .act = acts[k / 4],
            .add = true,
        };

        t->epilogue(&e);
        e.y = want;
        plain->epilogue(&e);
        same(variant, t->epilogue_name, k, got, want, sizeof(got));
    }
}

static void rows(const char *variant, const struct cpu_table *t, const struct cpu_table *plain)
{
    static const int32_t lengths[] = {1, 15, 16, 67, 288};
    static float x[288];
    static float w[288];
    static float b[288];
    static float got[288];
    static float want[288];
    struct panel_act q[2][288 / PANEL_COLS];

    fill(x, 288);
    fill(w, 288);
    fill(b, 288);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        int32_t n = lengths[i];
        size_t bytes = (size_t)n * sizeof(float);

        t->norm_rms(x, w, b, 1e-5f, n, got);
        plain->norm_rms(x, w, b, 1e-5f, n, want);
        same(variant, t->norm_rms_name, n, got, want, bytes);
        t->norm_layer(x, w, NULL, 1e-5f, n, got);
        plain->norm_layer(x, w, NULL, 1e-5f, n, want);
        same(variant, t->norm_layer_name, n, got, want, bytes);
        memcpy(got, x, bytes);
        memcpy(want, x, bytes);
        t->softcap(got, n, 0.7f);
        plain->softcap(want, n, 0.7f);
        same(variant, t->softcap_name, n, got, want, bytes);
    }
    t->quantize(x, 288, q[0]);
    plain->quantize(x, 288, q[1]);
    same(variant, t->quantize_name, 288, q[0], q[1], sizeof(q[0]));
}

static void recurrent(const char *variant, const struct cpu_table *t, const struct cpu_table *plain)
{
    enum { N = 3, K = 16, V = 80 };
    static float in[K * V + N * (2 * K + V) + 2 * N];
    static float s[2][K * V];
    static float y[2][N * V];
    static float u[2][7 * 16];
    const float *q = in + K * V;

    for (int32_t width = 2; width <= OPS_CONV_MAX_WIDTH; width++) {
        const struct cpu_table *tables[2] = {t, plain};

        fill(in, (int32_t)(sizeof(in) / sizeof(in[0])));
        for (int i = 0; i < 2; i++) {
            struct cpu_conv c = {.n = N,
                                 .n_channels = width == 5 ? 7 : 16,
                                 .width = width,
                                 .w = in,
                                 .u = u[i],
                                 .x = in + 200,
                                 .before = in + 300,
                                 .after = in + 400,
                                 .y = y[i],
                                 .ldx = 16,
                                 .ldy = 16,
                                 .act = OPS_ACT_SILU};
            struct cpu_delta d = {.n = N,
                                  .k_dim = K,
                                  .v_dim = V,
                                  .q = q,
                                  .k = q + N * K,
                                  .v = q + 2 * N * K,
                                  .decay = q + N * (2 * K + V),
                                  .beta = q + N * (2 * K + V) + N,
                                  .y = y[i] + 48,
                                  .from = in,
                                  .to = s[i],
                                  .ldv = V,
                                  .ldy = 16};

            tables[i]->conv(&c);
            d.n = 1;
            tables[i]->delta(&d);
            d.n = N;
            d.from = s[i];
            d.y = y[i];
            d.ldy = V;
            tables[i]->delta(&d);
            tables[i]->gate(in, in + 100, 67, width % 2, y[i]);
        }
        same(variant, t->conv_name, width, u[0], u[1], sizeof(u[0]));
        same(variant, t->delta_name, width, s[0], s[1], sizeof(s[0]));
        same(variant, t->gate_name, width, y[0], y[1], sizeof(y[0]));
    }
}

/* Sizes follow a power of the head's number; one of zeros of both signs, one beyond f16. */
static void make_heads(float *heads, int32_t n)
{
    fill(heads, CPU_KV_ENCODE16 * n);
    for (int32_t i = 0; i < CPU_KV_ENCODE16 * n; i++) {
        int32_t head = i / n;

        heads[i] *= head == 3 ? 0 : head == 5 && i % 7 < 2 ? 3e6f : (float)(1 << head) * 1e-3f;
    }
}

static void encoded(const char *variant, const struct cpu_table *t)
{
    static const int32_t lengths[] = {32, 64, 80, 256, 512};
    static const int32_t counts[] = {1, 2, 7, 16};
    static float carries[MAX_HEAD * MAX_HEAD];
    static float heads[CPU_KV_ENCODE16 * MAX_HEAD];
    static float scratch[CPU_KV_ENCODE16 * 2 * MAX_HEAD];
    static uint8_t got[CPU_KV_ENCODE16 * MAX_HEAD];
    static uint8_t want[CPU_KV_ENCODE16 * MAX_HEAD];

    for (int32_t k = 0; k < 3 * 5 * 4; k++) {
        enum ops_kv_type type = k < 20 ? OPS_KV_FP8 : OPS_KV_G4;
        const float *carry = k < 40 ? carries : NULL;
        int32_t n = lengths[k / 4 % 5];
        size_t bytes = (size_t)ops_kv_type_bytes(type, n);
        uint16_t scales[2][CPU_KV_ENCODE16] = {0};
        size_t n_scratch = cpu_kv_encode16_scratch(n);
        struct cpu_kv_encode16 e = cpu_kv_encode16_begin(type, carry, n, scratch);

        if ((type == OPS_KV_G4 && n % GAUSS4_BLOCK) || (carry && n > KV_ROUND_MOST)) {
            continue;
        }
        make_heads(heads, n);
        fill(carries, n * n);
        for (int32_t i = 0; i < n * n; i++) { /* no key grows without end */
            carries[i] *= i % n < i / n ? 2.0f / (float)n : 0;
        }
        for (int32_t i = 0; i < counts[k % 4]; i++) {
            /* those of large numbers, too, where few are taken */
            const float *head = heads + (size_t)((i * 3 + k % 16) % CPU_KV_ENCODE16 * n);
            uint8_t *to = want + (size_t)i * bytes;

            cpu_kv_encode16_add(&e, head);
            if (carry) {
                scales[1][i] = kv_round_encode(type, carry, head, to, n);
            } else {
                kv_code_encode(type, head, to, NULL, n);
            }
        }
        memset(got, 0xa5, sizeof(got));
        scratch[n_scratch] = 7; /* stays */
        cpu_kv_encode16_end(t, &e, got, bytes, type == OPS_KV_FP8 ? scales[0] : NULL);
        same(variant, carry ? ops_kv_type_name(type) : "4 bits", n, got, want,
             (size_t)counts[k % 4] * bytes);
        same(variant, "beyond the scratch", n, scratch + n_scratch, &(float){7}, sizeof(float));
        same(variant, "scales", n, scales[0], scales[1], sizeof(scales[0]));
    }
}

/* n values of both signs, zeros and subnormal numbers among them, at an address that is no multiple
 * of 8; behind them one that stays. */
static float *make_head(float *room, int32_t n)
{
    float *x = room + 1;

    fill(x, n);
    for (int32_t i = 0; i < n; i += 5) {
        x[i] = i % 3 == 0 ? 0.0f : i % 3 == 1 ? -0.0f : x[i] * 0x1p-128f;
    }
    x[n] = 7;
    return x;
}

static void heads(const char *variant, const struct cpu_table *t)
{
    static const int32_t lengths[] = {1, 4, 15, 16, 20, 36, 40, 48, 64, 80, 96, 128, 192, 256, 512};
    static float room[3][MAX_HEAD + 2];

    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        const int32_t n = lengths[k];
        const size_t bytes = (size_t)(n + 1) * sizeof(float);
        const float *first = make_head(room[2], n);
        float *got = make_head(room[0], n);
        float *want = room[1] + 1;

        memcpy(want, got, bytes);
        hadamard_head(want, n);
        t->kv_hadamard(got, n);
        same(variant, t->kv_hadamard_name, n, got, want, bytes);
        for (int op = 0; op < 3; op++) {
            for (int32_t i = 0; i < n; i++) {
                want[i] = op == 0   ? want[i] - first[i]
                          : op == 1 ? want[i] * first[i]
                                    : want[i] / (first[i] + 2);
            }
        }
        t->kv_minus(got, first, n);
        t->kv_times(got, first, n);
        for (int32_t i = 0; i < n; i++) {
            room[2][1 + i] += 2;
        }
        t->kv_over(got, first, n);
        same(variant, "minus, times, over", n, got, want, bytes);
    }
}

/* ---- tiles of pages ---- */

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

enum { TILE_DIMS = 256 };

/* n_rows rows of n values each as the type has them, without scales but for g4's; and what they
 * stand for. */
static void make_page(const struct cpu_table *plain, enum ops_kv_type type, int32_t n_rows,
                      int32_t n, uint8_t *page, float *values)
{
    const size_t row = (size_t)ops_kv_type_bytes(type, n);
    cpu_kv_unpack_fn *unpack = type == OPS_KV_G4 ? plain->unpack_g4 : cpu_kv_unpack(plain, type);
    float x[TILE_DIMS];
    uint16_t scale; /* fp8, int8 */

    for (int32_t i = 0; i < n_rows; i++) {
        fill(x, n);
        if (!unpack) { /* f32 */
            memcpy(page + (size_t)i * row, x, row);
            memcpy(values + i * n, x, row);
            continue;
        }
        kv_code_encode(type, x, page + (size_t)i * row, &scale, n);
        unpack(page + (size_t)i * row, (size_t)n, values + i * n);
    }
}

/* A page of 64 slots and n dims: V (dims are columns, of slots from n_valid on there is nothing) or
 * K (slots are columns). */
static void page_tiles(const struct cpu_table *t, const struct cpu_table *plain,
                       enum ops_kv_type type, bool keys, int32_t n, int32_t n_valid)
{
    static uint8_t page[OPS_PAGE_SLOTS * TILE_DIMS * sizeof(float)];
    static float values[OPS_PAGE_SLOTS * TILE_DIMS];
    static uint16_t got[OPS_PAGE_SLOTS * TILE_DIMS];
    static uint16_t want[OPS_PAGE_SLOTS * TILE_DIMS];
    const bool turned = keys && type == OPS_KV_G4;
    const int32_t n_rows = keys ? n : OPS_PAGE_SLOTS;
    const int32_t n_cols = keys ? OPS_PAGE_SLOTS : n;
    struct cpu_tile_kv p = {
        .type = type,
        .src = page,
        .turned = turned,
        .n_rows = n_rows,
        .n_valid = keys ? n : n_valid,
        .n_cols = n_cols,
        .dst = got,
        .row_step = 2 * TILE_ELEMENTS,
        .pair_step = (size_t)(n_rows / TILE_COLS) * 2 * TILE_ELEMENTS,
    };

    make_page(plain, type, turned ? n_cols : n_rows, turned ? n_rows : n_cols, page, values);
    if (!keys) { /* what is not valid is not read: NaN, but for integers */
        const size_t row = (size_t)ops_kv_type_bytes(type, n);

        memset(page + (size_t)n_valid * row, 0xff, (size_t)(n_rows - n_valid) * row);
    }
    for (int32_t r = 0; r < n_rows; r++) {
        for (int32_t c = 0; c < n_cols; c++) {
            const float value = values[turned ? c * n_rows + r : r * n_cols + c];
            const size_t tile = (size_t)(r / TILE_COLS) * p.row_step +
                                (size_t)(c / 32) * p.pair_step +
                                (size_t)(c / 16 % 2) * TILE_ELEMENTS;

            want[tile + (size_t)(r % 32 / 2 * 32 + c % 16 * 2 + r % 2)] =
                r < p.n_valid ? to_bf16(value) : 0;
        }
    }
    memset(got, 0xa5, sizeof(got));
    t->tile_kv(&p);
    same(t->tile_kv_name, ops_kv_type_name(type), n, got, want,
         (size_t)(n_rows * n_cols) * sizeof(*got));
}

static void tiles(const struct cpu_table *t, const struct cpu_table *plain)
{
    static const enum ops_kv_type types[] = {OPS_KV_F32, OPS_KV_F16, OPS_KV_BF16,
                                             OPS_KV_FP8, OPS_KV_I8,  OPS_KV_G4};
    static const int32_t dims[] = {32, 64, 96, 256};
    static const int32_t valid[] = {0, 1, 33, 64};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (size_t k = 0; k < 4; k++) {
            page_tiles(t, plain, types[i], true, dims[k], OPS_PAGE_SLOTS);
            for (size_t v = 0; v < 4; v++) {
                page_tiles(t, plain, types[i], false, dims[k], valid[v]);
            }
        }
    }
}

int main(void)
{
    struct cpu_table plain;
    struct cpu_table all;
    int n_run = 0;

    cpu_table_init(&plain, 0);
    encoded("plain C", &plain);
    heads("plain C", &plain);
    cpu_table_init(&all, cpu_flags());
    if (all.tile_kv) {
        tiles(&all, &plain);
    }
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        struct cpu_table t;

        if ((cpu_flags() & variants[i].flags) != variants[i].flags) {
            continue;
        }
        cpu_table_init(&t, variants[i].flags);
        counter = 0;
        panels(variants[i].name, &t, &plain);
        rows(variants[i].name, &t, &plain);
        ends(variants[i].name, &t, &plain);
        recurrent(variants[i].name, &t, &plain);
        encoded(variants[i].name, &t);
        heads(variants[i].name, &t);
        printf("%s: done\n", variants[i].name);
        n_run++;
    }
    printf("%d variants, %d differences\n", n_run, n_failed);
    if (n_run == 0) {
        printf("SKIP: this CPU has plain C only\n");
        return 77;
    }
    return n_failed > 0;
}
