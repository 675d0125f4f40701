/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv/seq/cache_rescore.c: a policy's pass over the scores of a prompt gives the same in
 * chunks as over the whole row, whatever the length, and touches nothing behind the last slot. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/seq/cache_impl.h"
#include "kernels/backend.h"

enum { GROUPS = 2, CAP = 5000 };

static void compare(const char *text, int32_t n)
{
    const struct ops_kv_layout layout = {.n_groups = GROUPS};
    float *row = calloc((size_t)GROUPS * CAP, sizeof(*row));
    float *whole = calloc(CAP + 2 * PLACE_HALO, sizeof(*whole));
    float *want = calloc(CAP, sizeof(*want));
    struct ops_kv kv = {.layout = &layout, .cap = CAP, .score = row};
    struct cache c = {0};
    struct cache_seq q = {0};
    struct error e = {0};

    cr_assert(row && whole && want);
    cr_assert_eq(backend_find("ref", &c.geometry.config.ops, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse(text, &q.policy, &e), 0, "%s", e.text);
    for (int32_t i = 0; i < GROUPS * CAP; i++) {
        row[i] = (float)((uint32_t)i * 2654435761U % 1000U) / 8;
    }
    memcpy(whole + PLACE_HALO, row + CAP, (size_t)n * sizeof(*row));
    q.policy.place->rescore(&q.policy, whole + PLACE_HALO, n, want);
    float behind = row[CAP + n];

    cr_assert_eq(cache_rescore(&c, &q, &kv, n), 0);
    for (int32_t i = 0; i < n; i++) {
        cr_assert_eq(row[CAP + i], want[i], "%s: slot %d of %d", text, i, n);
    }
    cr_assert_eq(row[CAP + n], behind);
    free(row);
    free(whole);
    free(want);
}

Test(rescore, in_chunks_as_in_one)
{
    static const char *const texts[] = {"snapkv:64,kernel=1", "snapkv:64,kernel=7",
                                        "snapkv:64,kernel=63,pool=avg"};
    static const int32_t lengths[] = {1, 5, 31, 32, 1000, 1023, 1024, 1025, 1055, 1056, 2048, 4999};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
            compare(texts[i], lengths[k]);
        }
    }
}

Test(rescore, pools_what_it_says)
{
    struct policy p;
    struct error e = {0};
    float in[2 * PLACE_HALO + 5] = {0};
    float out[5];
    static const float largest[] = {4, 4, 4, 8, 8};

    in[PLACE_HALO + 1] = 4;
    in[PLACE_HALO + 4] = 8;
    cr_assert_eq(policy_parse("snapkv:64,kernel=3", &p, &e), 0, "%s", e.text);
    p.place->rescore(&p, in + PLACE_HALO, 5, out);
    cr_assert_eq(memcmp(out, largest, sizeof(out)), 0);
    cr_assert_eq(policy_parse("snapkv:64,kernel=3,pool=avg", &p, &e), 0, "%s", e.text);
    p.place->rescore(&p, in + PLACE_HALO, 5, out);
    cr_assert_eq(out[1], 4.0f / 3, "zeros beyond the ends count");
    cr_assert_eq(out[4], 8.0f / 3);
}
