/* SPDX-License-Identifier: Apache-2.0 */
/* quant/dtype.h against vectors that the Python package `gguf` made (tests/data/dtype_vectors.bin,
 * written by tests/golden/make_dtype_vectors.py): decoding and encoding bit for bit; the K-quants'
 * encoders, whose codes are ours to choose, by the error that they leave; and the table of types,
 * refusals, and sizes that overflow. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/dtype.h"

struct record {
    uint32_t kind;
    uint32_t type;
    uint32_t n;
    uint32_t bytes;
};

static void check_record(const struct record *r, const uint8_t *raw, const float *floats)
{
    const char *name = dtype_info(r->type)->name;
    uint64_t bytes;

    cr_assert(dtype_row_bytes((enum dtype)r->type, r->n, &bytes));
    cr_assert_eq(bytes, r->bytes, "%s", name);
    void *out = malloc(r->kind == 0 ? r->n * sizeof(float) : r->bytes);
    cr_assert(out);
    if (r->kind == 0) {
        dtype_decode((enum dtype)r->type, raw, out, r->n);
        for (uint32_t i = 0; i < r->n; i++) {
            cr_assert_eq(memcmp((float *)out + i, floats + i, 4), 0,
                         "decode %s, element %u: %a, %a", name, i, (double)((float *)out)[i],
                         (double)floats[i]);
        }
    } else {
        cr_assert_eq(dtype_encode((enum dtype)r->type, floats, out, r->n), 0, "%s", name);
        for (uint32_t i = 0; i < r->bytes; i++) {
            cr_assert_eq(((uint8_t *)out)[i], raw[i], "encode %s, byte %u", name, i);
        }
    }
    free(out);
}

Test(dtype, same_bits_as_the_gguf_package)
{
    int n_records[2] = {0};
    struct record r;
    const char *dir = getenv("PIPIT_TEST_DATA");
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/dtype_vectors.bin", dir ? dir : "tests/data");
    FILE *f = fopen(path, "rbe");
    cr_assert(f, "no %s", path);
    while (fread(&r, sizeof(r), 1, f) == 1) {
        cr_assert(dtype_info(r.type));
        cr_assert_leq(r.kind, 1);
        uint8_t *raw = malloc(r.bytes);
        float *floats = malloc(r.n * sizeof(float));

        cr_assert(raw && floats);
        cr_assert_eq(fread(raw, 1, r.bytes, f), r.bytes);
        cr_assert_eq(fread(floats, sizeof(float), r.n, f), r.n);
        check_record(&r, raw, floats);
        n_records[r.kind]++;
        free(raw);
        free(floats);
    }
    (void)fclose(f);
    cr_assert_eq(n_records[0], 16, "every type is decoded");
    cr_assert_eq(n_records[1], 8);
}

Test(dtype, names_and_unknown_types)
{
    cr_assert_eq(dtype_from_name("q4_1"), DTYPE_Q4_1);
    cr_assert_eq(dtype_from_name("BF16"), DTYPE_BF16);
    cr_assert_eq(dtype_from_name("Q1_K"), -EINVAL);
    cr_assert_eq(dtype_from_name(""), -EINVAL);
    cr_assert_null(dtype_info(4));
    cr_assert_null(dtype_info(31));
    cr_assert_null(dtype_info(UINT32_MAX));
    cr_assert(dtype_info(DTYPE_Q6_K)->can_encode);
    cr_assert_not(dtype_info(DTYPE_IQ4_XS)->can_encode);
    cr_assert_not(dtype_info(DTYPE_Q2_K)->can_encode);
    cr_assert_not(dtype_info(DTYPE_Q3_K)->can_encode);
}

Test(dtype, row_bytes_refuses_part_blocks_and_overflow)
{
    uint64_t bytes = 7;

    cr_assert_not(dtype_row_bytes(DTYPE_Q4_0, 33, &bytes));
    cr_assert_not(dtype_row_bytes(DTYPE_Q4_K, 32, &bytes));
    cr_assert_not(dtype_row_bytes(DTYPE_F32, UINT64_MAX / 2, &bytes));
    cr_assert_not(dtype_row_bytes((enum dtype)4, 32, &bytes));
    cr_assert_eq(bytes, 7);
    cr_assert(dtype_row_bytes(DTYPE_Q5_1, 64, &bytes));
    cr_assert_eq(bytes, 48);
}

/* ---- K-quants ---- */

/* Root mean square error over that of the values, at most: of normal ones, of what is one decoded
 * already. The format's best for the former: steps of 1/15 (1/31, 1/63) of a group's range give
 * 0.080 (0.039) and 0.018 where codes are laid over it from end to end. */
static const struct {
    enum dtype type;
    double normal;
    double again;
} k_types[] = {{DTYPE_Q4_K, 0.071, 0.010}, {DTYPE_Q5_K, 0.035, 0.010}, {DTYPE_Q6_K, 0.0175, 0.005}};

enum { N_K_TYPES = sizeof(k_types) / sizeof(k_types[0]), N_K = 256 * 32 };

/* The sum of 12 uniform numbers less 6: nearly normal, the same everywhere. */
static float near_normal(uint32_t *state)
{
    float sum = -6;

    for (int i = 0; i < 12; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) * 0x1p-24f;
    }
    return sum;
}

/* Encodes, decodes to y; returns the relative error. */
static double round_trip(enum dtype type, const float *x, float *y)
{
    static uint8_t blocks[N_K];
    double change = 0;
    double all = 0;

    cr_assert_eq(dtype_encode(type, x, blocks, N_K), 0);
    dtype_decode(type, blocks, y, N_K);
    for (int i = 0; i < N_K; i++) {
        change += pow((double)y[i] - (double)x[i], 2);
        all += pow((double)x[i], 2);
    }
    return all > 0 ? sqrt(change / all) : sqrt(change);
}

Test(dtype, k_quants_leave_little_error)
{
    static float x[N_K];
    static float y[N_K];
    static float z[N_K];

    for (int t = 0; t < N_K_TYPES; t++) {
        const char *name = dtype_info(k_types[t].type)->name;

        for (float size = 0.01f; size < 2000; size *= 316) {
            uint32_t state = 7;
            double error;

            for (int i = 0; i < N_K; i++) {
                x[i] = size * near_normal(&state);
            }
            error = round_trip(k_types[t].type, x, y);
            cr_assert_lt(error, k_types[t].normal, "%s, values of %g: %g", name, (double)size,
                         error);
            error = round_trip(k_types[t].type, y, z);
            cr_assert_lt(error, k_types[t].again, "%s, again: %g", name, error);
        }
    }
}

Test(dtype, k_quants_of_corners)
{
    static float x[N_K];
    static float y[N_K];

    for (int t = 0; t < N_K_TYPES; t++) {
        const char *name = dtype_info(k_types[t].type)->name;
        uint32_t state = 3;

        memset(x, 0, sizeof(x));
        cr_assert_eq(round_trip(k_types[t].type, x, y), 0, "%s: zeros", name);
        for (int i = 0; i < N_K; i++) { /* each group one number, negative or not */
            x[i] = (float)(i / 32 % 8 - 4) * 0.25f;
        }
        cr_assert_lt(round_trip(k_types[t].type, x, y), 0.01, "%s: constants", name);
        for (int i = 0; i < N_K; i++) { /* all far above zero, all below */
            x[i] = (i / 256 % 2 ? 1.0f : -1.0f) * (10 + near_normal(&state));
        }
        cr_assert_lt(round_trip(k_types[t].type, x, y), 0.035, "%s: one-sided", name);
        for (int i = 0; i < N_K; i++) { /* one large among small ones */
            x[i] = i % 256 == 77 ? -60000 : near_normal(&state);
        }
        cr_assert_lt(round_trip(k_types[t].type, x, y), 0.003, "%s: outlier", name);
        for (int i = 0; i < N_K; i++) { /* about the least f16 */
            x[i] = 0x1p-24f * near_normal(&state);
        }
        cr_assert_leq(round_trip(k_types[t].type, x, y), 1.01, "%s: tiny", name);
    }
}

Test(dtype, encoders_refuse_what_does_not_fit)
{
    static const enum dtype types[] = {DTYPE_F16,  DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                       DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    float x[256] = {0};
    uint8_t out[1024];

    cr_assert_eq(dtype_encode((enum dtype)99, x, out, 256), -ENOTSUP);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const char *name = dtype_info(types[i])->name;
        uint64_t n = dtype_info(types[i])->block_len == 256 ? 256 : 32;

        x[9] = NAN;
        cr_assert_eq(dtype_encode(types[i], x, out, n), -EINVAL, "%s", name);
        x[9] = -INFINITY;
        cr_assert_eq(dtype_encode(types[i], x, out, n), -EINVAL, "%s", name);
        x[9] = 1e9f; /* the scale does not fit f16 */
        cr_assert_eq(dtype_encode(types[i], x, out, n), -EINVAL, "%s", name);
        x[9] = 1e-42f; /* the scale's reciprocal does not fit f32 */
        cr_assert_eq(dtype_encode(types[i], x, out, n), 0, "%s", name);
        x[9] = 0;
    }
    for (int sign = -1; sign <= 1; sign += 2) { /* squares do not fit f32 */
        for (size_t t = 0; t < N_K_TYPES; t++) {
            x[9] = (float)sign * 3.4e38f;
            cr_assert_eq(dtype_encode(k_types[t].type, x, out, 256), -EINVAL);
            x[200] = -x[9];
            cr_assert_eq(dtype_encode(k_types[t].type, x, out, 256), -EINVAL);
            x[200] = 0;
            x[9] = (float)sign * 1e20f;
            cr_assert_eq(dtype_encode(k_types[t].type, x, out, 256), -EINVAL);
            x[9] = 0;
        }
    }
    x[9] = 3.4e38f;
    cr_assert_eq(dtype_encode(DTYPE_BF16, x, out, 32), -EINVAL, "rounds to infinity");
}
