/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/expect.c against sums written out in double precision. Whole models are compared
 * with NumPy's in tests/golden. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/kv/policy/policy.h"
#include "kernels/backend.h"
#include "kernels/expect.h"
#include "tests/unit/engine_run.h"

enum { DIM = 20, PADDED = 32, N = 50, AHEAD = 37, POS = 900, WORDS = 2 * PADDED + 16 * 16 * 3 };

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / (float)(1U << 24) - 0.5f;
}

/* Queries of some heads are nearly all the same: `shift` on top of numbers around zero. */
static void compare(enum ops_rope_form form, int32_t n_rot, float shift, bool with_cov)
{
    static float q[N][PADDED];
    static float keys[PADDED][EXPECT_LANES];
    static double turn[DIM][DIM];
    float stats[WORDS];
    float row[PADDED];
    float square[DIM * DIM];
    float mean[PADDED];
    float cov[WORDS];
    float freq[DIM / 2];
    float x[EXPECT_LANES];
    const float scale = 0.3f;
    uint32_t seed = 7;
    double m[DIM] = {0};
    double c[DIM][DIM] = {{0}};

    cr_assert_eq(expect_head_words(DIM), WORDS);
    for (int32_t i = 0; i < DIM / 2; i++) {
        freq[i] = powf(100.0f, -2.0f * (float)i / DIM);
    }
    const struct ops_rope rope = {.form = form, .n_dims = n_rot, .inv_freq = freq, .mscale = 1};

    double table[4][DIM / 2];
    struct expect_turns turns = {
        .pos = -1, .c = table[0], .s = table[1], .step_c = table[2], .step_s = table[3]};

    for (int32_t i = 0; i < N; i++) {
        for (int32_t j = 0; j < PADDED; j++) {
            q[i][j] = j < DIM ? shift + noise(&seed) : 0;
        }
        memcpy(row, q[i], sizeof(row));
        expect_add(stats, row, 1, DIM, (float)i, with_cov);
    }
    /* The mean of the rotations, column by column. */
    memset(turn, 0, sizeof(turn));
    for (int32_t p = POS; p < POS + AHEAD; p++) {
        expect_turn_to(&rope, p, &turns);
        for (int32_t i = 0; i < DIM; i++) {
            float unit[DIM] = {0};

            unit[i] = 1;
            expect_unrotate(&rope, &turns, unit); /* the inverse, which is the transpose */
            for (int32_t j = 0; j < DIM; j++) {
                turn[i][j] += (double)unit[j] / AHEAD;
            }
        }
    }
    for (int32_t i = 0; i < DIM; i++) {
        for (int32_t k = 0; k < N; k++) {
            m[i] += (double)q[k][i] / N;
        }
    }
    for (int32_t i = 0; i < DIM; i++) {
        for (int32_t j = 0; j < DIM; j++) {
            for (int32_t k = 0; k < N; k++) {
                c[i][j] += ((double)q[k][i] - m[i]) * ((double)q[k][j] - m[j]) / N;
            }
        }
    }
    for (int32_t i = 0; i < PADDED; i++) {
        for (int32_t t = 0; t < EXPECT_LANES; t++) {
            keys[i][t] = i < DIM ? 4 * noise(&seed) : 0;
        }
    }
    const struct expect_query ahead = {.mean = mean, .cov = cov};
    const struct expect_map as_made = {.center = NULL};
    const struct expect_query used = {.mean = mean, .cov = with_cov ? cov : NULL};

    expect_future(stats, N, &rope, DIM, POS, AHEAD, scale, with_cov, &as_made, square, &ahead);
    expect_exponents(&used, &keys[0][0], DIM, x);
    for (int32_t t = 0; t < EXPECT_LANES; t++) {
        double k[DIM] = {0}; /* the key under R^T, so that R m.k = m.R^T k */
        double want = 0;

        for (int32_t i = 0; i < DIM; i++) {
            for (int32_t j = 0; j < DIM; j++) {
                k[i] += turn[j][i] * (double)keys[j][t];
            }
        }
        for (int32_t i = 0; i < DIM; i++) {
            want += (double)scale * m[i] * k[i];
            for (int32_t j = 0; with_cov && j < DIM; j++) {
                want += 0.5 * (double)scale * (double)scale * k[i] * c[i][j] * k[j];
            }
        }
        cr_assert_float_eq(x[t], want, 2e-5 * (1 + (double)fabsf(shift)), "key %d: %g, not %g", t,
                           (double)x[t], want);
    }
}

Test(expect, exponents_are_what_the_paper_says)
{
    static const float shifts[] = {0, 3, 200};

    for (int i = 0; i < 3; i++) {
        for (int with_cov = 0; with_cov < 2; with_cov++) {
            compare(OPS_ROPE_NORM, DIM, shifts[i], with_cov);
            compare(OPS_ROPE_NEOX, DIM, shifts[i], with_cov);
            compare(OPS_ROPE_NEOX, 8, shifts[i], with_cov);
            compare(OPS_ROPE_NONE, DIM, shifts[i], with_cov);
        }
    }
}

/* One query at a time or several: the same bits. */
Test(expect, rows_at_once_are_rows_one_by_one)
{
    static float q[N][PADDED];
    static float rows[N][PADDED];
    static float one[WORDS];
    static float some[WORDS];
    uint32_t seed = 3;

    for (int32_t i = 0; i < N; i++) {
        for (int32_t j = 0; j < DIM; j++) {
            q[i][j] = 5 + noise(&seed);
        }
    }
    memcpy(rows, q, sizeof(q));
    for (int32_t i = 0; i < N; i++) {
        expect_add(one, rows[i], 1, DIM, (float)i, true);
    }
    memcpy(rows, q, sizeof(q));
    for (int32_t i = 0, n; i < N; i += n) {
        n = i % 7 + 1 < N - i ? i % 7 + 1 : N - i;
        expect_add(some, rows[i], n, DIM, (float)i, true);
    }
    cr_assert_eq(memcmp(one, some, sizeof(one)), 0);
}

/* Whatever was asked for before: the same bits, and what the angles have. */
Test(expect, turns_are_the_positions_alone)
{
    static const int32_t order[] = {5, 6, 7, 63, 64, 65, 130, 129, 1000, 1001, 1100, 3, 90001};
    const float freq[2] = {1.0f, 0.01f};
    const struct ops_rope rope = {
        .form = OPS_ROPE_NEOX, .n_dims = 4, .inv_freq = freq, .mscale = 1};
    double a[4][2];
    struct expect_turns t = {-1, a[0], a[1], a[2], a[3]};

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        double b[4][2];
        struct expect_turns fresh = {-1, b[0], b[1], b[2], b[3]};

        expect_turn_to(&rope, order[i], &t);
        expect_turn_to(&rope, order[i], &fresh);
        cr_assert_eq(memcmp(a, b, sizeof(a)), 0, "position %d", order[i]);
        for (int k = 0; k < 2; k++) {
            cr_assert_float_eq(a[0][k], cos(order[i] * (double)freq[k]), 1e-12);
            cr_assert_float_eq(a[1][k], sin(order[i] * (double)freq[k]), 1e-12);
        }
    }
}

/* Deep layers of such a model see few of a prompt's queries; and ALiBi is no part of q.k. */
Test(expect, not_with_swiftkv_nor_alibi)
{
    const struct backend_ops *ops = NULL;
    struct policy p;
    struct error e = {0};

    cr_assert_eq(backend_find("ref", &ops, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse("expected:64", &p, &e), 0, "%s", e.text);
    struct policy_host h = {.ops = ops, .no_part_keys = -1, .uneven = {-1, -1}};

    cr_assert_eq(policy_check_host(&p, &h, &e), 0, "%s", e.text);
    h.split = true;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "SwiftKV's split"), "%s", e.text);
    h = (struct policy_host){.ops = ops, .no_part_keys = -1, .uneven = {-1, -1}, .alibi = true};
    e.code = 0;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "has ALiBi"), "%s", e.text);
}

/* Weights that are expected are exponents of q.k: an engine of a model with others does not start.
 */
Test(expect, not_with_capped_logits)
{
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};

    engine_config_default(&c);
    c.model_path = run_data("arch_gemma2.gguf");
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 128;
    c.n_seqs = 1;
    c.kv = "expected:20";
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "caps its logits"), "%s", err.text);
}

/* Policies that score without observing attention plan no scratch to observe it by. Whoever asks
 * for one that observes is told so; the engine goes on. */
Test(expect, others_that_observe_are_refused)
{
    static const char *const planned[][2] = {{"expected:40", NULL},
                                             {"kvzap:40", "cache_scores.gguf"}};
    static const char *const asked[] = {
        "h2o:40",    "keyformer:40",        "keyformer:40,mode=as-shipped", "recency:40",
        "snapkv:40", "h2o:40,score=shared", "h2o:40,layers=pyramid"};
    int32_t ids[60];

    for (int i = 0; i < 2; i++) {
        struct engine *e =
            run_engine_overlay("cache_model.gguf", planned[i][1], "cpu", 128, 1, planned[i][0]);

        run_tokens(51, engine_info(e)->n_vocab, ids, 60);
        for (size_t k = 0; k < sizeof(asked) / sizeof(asked[0]); k++) {
            struct engine_request q = run_request(ids, 60, 24);
            struct error err = {0};
            struct run r;
            uint64_t handle;

            q.kv = asked[k];
            cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOMEM, "%s under %s: %s", asked[k],
                         planned[i][0], err.text);
            cr_assert_not_null(strstr(err.text, "start the daemon with --kv"), "%s", err.text);
            q.kv = NULL;
            run_submit(e, &q, &r);
            run_all(e);
            cr_assert_eq(r.reason, ENGINE_LENGTH, "%s", r.error.text);
            run_clear(&r);
        }
        engine_destroy(e);
    }
}
