/* SPDX-License-Identifier: Apache-2.0 */
/* quant/dtype.h against vectors that the Python package `gguf` made (tests/data/dtype_vectors.bin,
 * written by tests/golden/make_dtype_vectors.py): decoding and encoding bit for bit; and the table
 * of types, refusals, and sizes that overflow. */

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
    cr_assert_eq(n_records[0], 11, "every type is decoded");
    cr_assert_eq(n_records[1], 7);
}

Test(dtype, names_and_unknown_types)
{
    cr_assert_eq(dtype_from_name("q4_1"), DTYPE_Q4_1);
    cr_assert_eq(dtype_from_name("BF16"), DTYPE_BF16);
    cr_assert_eq(dtype_from_name("Q2_K"), -EINVAL);
    cr_assert_eq(dtype_from_name(""), -EINVAL);
    cr_assert_null(dtype_info(4));
    cr_assert_null(dtype_info(31));
    cr_assert_null(dtype_info(UINT32_MAX));
    cr_assert_not(dtype_info(DTYPE_Q6_K)->can_encode);
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

Test(dtype, encoders_refuse_what_does_not_fit)
{
    static const enum dtype types[] = {DTYPE_F16,  DTYPE_Q4_0, DTYPE_Q4_1,
                                       DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0};
    float x[256] = {0};
    uint8_t out[1024];

    cr_assert_eq(dtype_encode(DTYPE_Q4_K, x, out, 256), -ENOTSUP);
    cr_assert_eq(dtype_encode((enum dtype)99, x, out, 256), -ENOTSUP);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const char *name = dtype_info(types[i])->name;

        x[9] = NAN;
        cr_assert_eq(dtype_encode(types[i], x, out, 32), -EINVAL, "%s", name);
        x[9] = -INFINITY;
        cr_assert_eq(dtype_encode(types[i], x, out, 32), -EINVAL, "%s", name);
        x[9] = 1e9f; /* the scale does not fit f16 */
        cr_assert_eq(dtype_encode(types[i], x, out, 32), -EINVAL, "%s", name);
        x[9] = 1e-42f; /* the scale's reciprocal does not fit f32 */
        cr_assert_eq(dtype_encode(types[i], x, out, 32), 0, "%s", name);
        x[9] = 0;
    }
    x[9] = 3.4e38f;
    cr_assert_eq(dtype_encode(DTYPE_BF16, x, out, 32), -EINVAL, "rounds to infinity");
}
