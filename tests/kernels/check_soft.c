/* SPDX-License-Identifier: Apache-2.0 */
/* The polynomials of the cpu backend's attention against libm in double, for every instruction set
 * of this CPU: 2^x to 1e-6 relative, exactly 0 for what is masked; 1 / -log(u), the factor that
 * Gumbel noise is, to 1e-6 for draws of noise.h at keys in order and scattered. And a logit that is
 * NaN (infinities that cancel) weighs nothing in the softmax of tiles, in the first step of 256
 * slots and in a later one, when a row has a maximum already. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/cpu/table.h"
#include "kernels/noise.h"

enum { N = CPU_KV_SLOTS };

static double worst_exp(const struct cpu_table *t)
{
    double worst = 0;

    for (int i = 0; i < 20000; i++) {
        float x[N];
        float e[N];

        for (int j = 0; j < N; j++) {
            x[j] = -(float)(i * N + j) * 1e-4f; /* down to 2^-128 */
        }
        memcpy(e, x, sizeof(e));
        (void)t->kv_exp(e, 0.0f, NULL, NULL);
        for (int j = 0; j < N; j++) {
            double want = exp2((double)x[j]);

            if (x[j] > -126 && fabs((double)e[j] / want - 1) > worst) {
                worst = fabs((double)e[j] / want - 1);
            }
        }
    }
    return worst;
}

static bool masked_is_zero(const struct cpu_table *t)
{
    static const float maxima[] = {0, 1.4e30f, -1.4e30f, 100, -100};
    bool ok = true;

    for (size_t m = 0; m < sizeof(maxima) / sizeof(maxima[0]); m++) {
        float x[N];

        for (int j = 0; j < N; j++) {
            x[j] = j == 0 ? maxima[m] : CPU_KV_MASKED;
        }
        ok = t->kv_exp(x, maxima[m], NULL, NULL) == x[0] && ok;
        for (int j = 1; j < N; j++) {
            ok = x[j] == 0 && ok;
        }
    }
    return ok;
}

static double worst_gumbel(const struct cpu_table *t, bool aligned)
{
    struct ops_observe o = {.noise = OPS_NOISE_GUMBEL, .seed = 0x123456789abcdefull, .layer = 7};
    double worst = 0;

    for (uint32_t i = 0; i < 4000; i++) {
        int32_t pos[N];
        float got[N];
        struct cpu_kv_noise p = {
            .o = &o, .head = i % 32, .row_pos = 3 * i, .pos = pos, .aligned = aligned};

        o.noise_once = i % 2;
        for (int j = 0; j < N; j++) {
            pos[j] = (int32_t)(i * N) + (aligned ? j : j * 37 % 1000);
        }
        t->kv_gumbel(&p, got);
        for (int j = 0; j < N; j++) {
            float u = noise_uniform(&o, p.head, p.row_pos, (uint32_t)pos[j], 0);

            worst = fmax(worst, fabs((double)got[j] * -log((double)u) - 1));
        }
    }
    return worst;
}

/* Rows of 512 slots, two steps; NaN in slot `at`. */
static bool tiles_pass_over_nan(const struct cpu_table *t, int32_t at)
{
    static float s[TILE_QUERIES * TILE_KEYS];
    static uint16_t p[2 * TILE_KEY_TILES * TILE_ELEMENTS];
    static float acc[TILE_QUERIES * 16];
    static float seen[TILE_QUERIES * TILE_KEYS];
    float k_mul[TILE_KEYS];
    float max[TILE_QUERIES];
    float sum[TILE_QUERIES] = {0};
    float factor[TILE_QUERIES];
    struct cpu_tile_att a = {
        .n_rows = TILE_QUERIES,
        .n_slots = TILE_KEYS,
        .n_kd = 1,
        .n_vd = 1,
        .s = s,
        .p = p,
        .acc = acc,
        .ld_acc = 16,
        .k_mul = k_mul,
        .max = max,
        .sum = sum,
        .factor = factor,
        .seen = seen,
        .ld_seen = TILE_KEYS,
    };
    bool ok = true;

    for (int32_t i = 0; i < TILE_QUERIES; i++) {
        max[i] = CPU_KV_MASKED;
    }
    for (int32_t step = 0; step < 2; step++) {
        for (int32_t i = 0; i < TILE_QUERIES * TILE_KEYS; i++) {
            s[i] = (float)(i % 7) + (step * TILE_KEYS + i % TILE_KEYS == at ? NAN : 0.0f);
            k_mul[i % TILE_KEYS] = 1;
        }
        t->tile_soft(&a);
        for (int32_t i = 0; i < TILE_QUERIES; i++) {
            const float *weight = seen + i * TILE_KEYS;

            ok = isfinite(max[i]) && isfinite(sum[i]) && sum[i] > 0 && ok;
            for (int32_t j = 0; j < TILE_KEYS; j++) {
                ok = (step * TILE_KEYS + j == at ? weight[j] == 0 : weight[j] > 0) && ok;
            }
        }
    }
    return ok;
}

int main(void)
{
    static const uint32_t masks[] = {0, CPU_NEON, CPU_AVX2, CPU_AVX2 | CPU_AVX512,
                                     CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16};
    int n_failed = 0;

    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        struct cpu_table t;
        double e;
        double g;

        if ((masks[i] & cpu_flags()) != masks[i]) {
            printf("SKIP: this CPU lacks %s\n", masks[i] & CPU_AMX_BF16 ? "AMX"
                                                : masks[i] & CPU_AVX512 ? "AVX-512"
                                                : masks[i] & CPU_AVX2   ? "AVX2"
                                                                        : "NEON");
            continue;
        }
        cpu_table_init(&t, masks[i]);
        e = worst_exp(&t);
        g = fmax(worst_gumbel(&t, true), worst_gumbel(&t, false));
        printf("%s: 2^x %.1e, 1/-log(u) %.1e, masked %s\n", t.kv_exp_name, e, g,
               masked_is_zero(&t) ? "0" : "NOT 0");
        n_failed += !(e < 1e-6) + !(g < 1e-6) + !masked_is_zero(&t);
        for (int32_t at = 40; t.tile_soft && at < 2 * TILE_KEYS; at += 260) {
            bool ok = tiles_pass_over_nan(&t, at);

            printf("%s: NaN at slot %d weighs %s\n", t.tile_soft_name, at, ok ? "0" : "SOMETHING");
            n_failed += !ok;
        }
    }
    return n_failed > 0;
}
