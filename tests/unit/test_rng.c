/* SPDX-License-Identifier: Apache-2.0 */
/* base/rng.h against the known answers of the Random123 distribution (kat_vectors, philox4x32-10).
 */

#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"

static void check(const uint32_t c[4], uint32_t k0, uint32_t k1, const uint32_t want[4])
{
    uint32_t r[4];

    rng_philox(rng_key_make((uint64_t)k1 << 32 | k0), c, r);
    cr_assert_eq(memcmp(r, want, sizeof(r)), 0, "%08x %08x %08x %08x", r[0], r[1], r[2], r[3]);
}

Test(rng, known_answers)
{
    check((uint32_t[]){0, 0, 0, 0}, 0, 0,
          (uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check((uint32_t[]){~0u, ~0u, ~0u, ~0u}, ~0u, ~0u,
          (uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0,
          (uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

Test(rng, uniform_is_open)
{
    cr_assert_gt(rng_uniform(0), 0.0f);
    cr_assert_lt(rng_uniform(~0u), 1.0f);
    cr_assert_lt(rng_uniform(0x7fffffffu), rng_uniform(0x80000000u));
    cr_assert_float_eq(rng_uniform(0x80000000u), 0.5f, 1e-6f);
}
