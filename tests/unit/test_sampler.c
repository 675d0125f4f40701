/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/sampler.h: every step against the NumPy model (tests/data/sampler_vectors.txt, made
 * by make_sampler_vectors.py), the frequencies of many draws, log-probabilities, ties, and logits
 * that are no numbers. */

#include <criterion/criterion.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exp_fixed.h"
#include "base/rng.h"
#include "engine/text/sampler.h"

enum { MAX_VOCAB = 50000 };

static struct sampler_scratch x;
static float logits[MAX_VOCAB];

static void open_scratch(int32_t n_vocab)
{
    void *memory = aligned_alloc(64, sampler_scratch_bytes(n_vocab));

    cr_assert(memory);
    memset(memory, 0xff, sampler_scratch_bytes(n_vocab));
    sampler_scratch_init(&x, memory, n_vocab);
}

static void close_scratch(void)
{
    free(x.logits);
}

/* All steps off: the draw alone, at temperature 1. */
static struct sampler_params plain(void)
{
    struct sampler_params p = sampler_params_default();

    p.temperature = 1;
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
    return p;
}

static int32_t sample(const struct sampler_params *p, uint64_t index)
{
    static struct sampler s;
    struct sampler_result out;

    sampler_init(&s, p);
    cr_assert_eq(sampler_sample(&s, &x, logits, index, &out), 0);
    return out.id;
}

static float rnd(void)
{
    return (float)rand() / (float)RAND_MAX;
}

Test(sampler, exp)
{
    double worst = 0;

    for (float v = 0; v > -86.9f; v -= 0.00137f) {
        double want = exp((double)v);

        worst = fmax(worst, fabs((double)exp_fixed(v) - want) / want);
    }
    cr_assert_lt(worst, 3e-7);
    cr_assert_eq(exp_fixed(0), 1);
    cr_assert_eq(exp_fixed(-200), 0);
    cr_assert_eq(exp_fixed(-INFINITY), 0);
}

Test(sampler, numpy_vectors)
{
    char path[4096];
    char *line = NULL;
    size_t cap = 0;
    FILE *f;
    int n_cases = 0;

    (void)snprintf(path, sizeof(path), "%s/sampler_vectors.txt", getenv("PIPIT_TEST_DATA"));
    f = fopen(path, "re");
    cr_assert(f, "%s", path);
    while (getline(&line, &cap, f) > 0) {
        double v[12];
        char *p = line;
        struct sampler s;
        struct sampler_result out;
        unsigned long long seed = 0;
        unsigned long long index = 0;

        for (int i = 0; i < 12; i++) {
            char *q = p;

            v[i] = strtod(p, &p);
            if (i == 8) {
                seed = strtoull(q, NULL, 10);
            } else if (i == 9) {
                index = strtoull(q, NULL, 10);
            }
        }
        struct sampler_params params = {(float)v[0],    (int32_t)v[1], (float)v[2], (float)v[3],
                                        (float)v[4],    (float)v[5],   (float)v[6], (int32_t)v[7],
                                        (int32_t)v[10], seed};
        struct error e = {0};
        cr_assert_eq(sampler_params_check(&params, &e), 0, "%s", e.text);
        open_scratch((int32_t)v[11]);
        cr_assert_gt(getline(&line, &cap, f), 0);
        for (int32_t i = 0; i < x.n_vocab; i++) {
            uint32_t bits = 0;

            for (int j = 0; j < 4; j++) {
                const char digits[3] = {line[8 * i + 2 * j], line[8 * i + 2 * j + 1], '\0'};

                bits |= (uint32_t)strtoul(digits, NULL, 16) << 8 * j;
            }
            memcpy(&logits[i], &bits, sizeof(bits));
        }
        sampler_init(&s, &params);
        cr_assert_gt(getline(&line, &cap, f), 0);
        for (p = line; *p >= '0' && *p <= '9'; p++) {
            sampler_accept(&s, (int32_t)strtol(p, &p, 10));
        }
        /* Twice: nothing of the first call may linger in the scratch. */
        for (int round = 0; round < 2; round++) {
            cr_assert_eq(sampler_sample(&s, &x, logits, index, &out), 0);
        }
        cr_assert_gt(getline(&line, &cap, f), 0);
        long wanted = strtol(line, &p, 10);
        double logprob = strtod(p, &p);
        if (params.n_logprobs >= 0) {
            cr_expect_float_eq((double)out.logprob, logprob, 2e-5);
        }
        for (int32_t i = 0; i < out.n_alts; i++) {
            long id = strtol(p, &p, 10);

            logprob = strtod(p, &p);
            cr_expect_eq(out.alts[i].id, id, "case %d, alternative %d", n_cases, i);
            cr_expect_float_eq((double)out.alts[i].logprob, logprob, 2e-5);
        }
        cr_expect_eq(out.id, wanted, "case %d: token %d, wanted %ld", n_cases, out.id, wanted);
        cr_expect_eq(*p, '\n', "case %d: more alternatives wanted", n_cases);
        close_scratch();
        n_cases++;
    }
    cr_assert_eq(n_cases, 150);
    free(line);
    (void)fclose(f);
}

/* Chi-square of 200,000 draws over 20 tokens: 43.8 is the 99.9 % point for 19 degrees of freedom.
 */
static void check_frequencies(struct sampler_params p)
{
    enum { N = 20, DRAWS = 200000 };
    int seen[N] = {0};
    double weight[N];
    double total = 0;
    double chi = 0;

    open_scratch(N);
    srand(9);
    for (int i = 0; i < N; i++) {
        logits[i] = 3 * rnd();
        weight[i] = exp((double)logits[i] / (double)p.temperature);
        total += weight[i];
    }
    for (uint64_t i = 0; i < DRAWS; i++) {
        seen[sample(&p, i)]++;
    }
    for (int i = 0; i < N; i++) {
        double want = DRAWS * weight[i] / total;

        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    cr_assert_lt(chi, 43.8);
    close_scratch();
}

Test(sampler, frequencies)
{
    struct sampler_params p = plain();

    check_frequencies(p);
    p.temperature = 2;
    check_frequencies(p);
    p.top_k = 20;
    check_frequencies(p);
    p.top_k = 0;
    p.top_p = 0.99999994f;
    check_frequencies(p);
}

Test(sampler, draws_depend_on_seed_and_index_only)
{
    struct sampler_params p = plain();
    int32_t first[64];
    int same = 0;

    open_scratch(1000);
    for (int i = 0; i < 1000; i++) {
        logits[i] = rnd();
    }
    for (int i = 0; i < 64; i++) {
        first[i] = sample(&p, (uint64_t)i);
    }
    for (int i = 63; i >= 0; i--) {
        cr_assert_eq(sample(&p, (uint64_t)i), first[i]);
    }
    p.seed = 1;
    for (int i = 0; i < 64; i++) {
        same += sample(&p, (uint64_t)i) == first[i];
    }
    cr_assert_lt(same, 8, "another seed, other tokens");
    close_scratch();
}

Test(sampler, greedy_and_ties)
{
    struct sampler_params p = plain();

    open_scratch(40);
    p.temperature = 0;
    for (int i = 0; i < 40; i++) {
        logits[i] = -1;
    }
    logits[17] = logits[33] = logits[39] = 2;
    cr_assert_eq(sample(&p, 0), 17);
    p = plain();
    p.top_k = 1;
    for (uint64_t i = 0; i < 100; i++) {
        cr_assert_eq(sample(&p, i), 17, "the lower id of equals is kept");
    }
    p.top_k = 2;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t id = sample(&p, i);

        cr_assert(id == 17 || id == 33);
    }
    p = plain();
    p.top_p = 0;
    cr_assert_eq(sample(&p, 5), 17, "one survives");
    p = plain();
    p.min_p = 1;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t id = sample(&p, i);

        cr_assert(id == 17 || id == 33 || id == 39);
    }
    p = plain();
    p.temperature = 1e-30f;
    cr_assert_leq(sample(&p, 0), 39);
    cr_assert_geq(logits[sample(&p, 1)], 2);
    close_scratch();
}

static int falling(const void *a, const void *b)
{
    float v = *(const float *)a;
    float w = *(const float *)b;

    return (v < w) - (v > w);
}

/* Without top_k the cut is found in buckets; it must be where sorting everything puts it. */
static void check_nucleus(float spread)
{
    static const float top_p[] = {0.001f, 0.01f, 0.1f, 0.9f, 0.9999f};
    static float sorted[MAX_VOCAB];
    struct sampler_params p = plain();
    double total = 0;

    open_scratch(MAX_VOCAB);
    srand(4);
    for (int i = 0; i < MAX_VOCAB; i++) {
        logits[i] = spread * rnd() * rnd() - 3;
        sorted[i] = logits[i];
        total += exp((double)logits[i]);
    }
    qsort(sorted, MAX_VOCAB, sizeof(sorted[0]), falling);
    for (int k = 0; k < 5; k++) {
        double sum = 0;
        double inside = 0;
        double before = 0;
        int n_kept = 0;
        uint32_t bits[4];

        while (sum < (double)top_p[k] * total) {
            sum += exp((double)sorted[n_kept++]);
        }
        p.top_p = top_p[k];
        int32_t id = sample(&p, 7);
        cr_assert_geq(logits[id], sorted[n_kept], "p %g: outside the nucleus", (double)top_p[k]);
        /* Of the equals at the cut, those with lower ids are in. */
        int n_equal = 0;
        while (n_equal < n_kept && sorted[n_kept - 1 - n_equal] == sorted[n_kept - 1]) {
            n_equal++;
        }
        for (int i = 0; i < MAX_VOCAB; i++) {
            bool in = logits[i] > sorted[n_kept - 1] ||
                      (logits[i] == sorted[n_kept - 1] && n_equal-- > 0);
            double w = in ? exp((double)logits[i]) : 0;

            before += i < id ? w : 0;
            inside += w;
        }
        rng_philox(rng_key_make(p.seed), (uint32_t[4]){7, 0, 0x73616d70, 0}, bits);
        double u = ((double)((uint64_t)bits[0] << 20 | bits[1] >> 12) + 0.5) * 0x1p-52;
        /* Float exps may move the cut by a few of the smallest. */
        cr_assert_gt(u, before / inside - 2e-4, "p %g, spread %g", (double)top_p[k],
                     (double)spread);
        cr_assert_lt(u, (before + exp((double)logits[id])) / inside + 2e-4, "p %g, spread %g",
                     (double)top_p[k], (double)spread);
    }
    close_scratch();
}

Test(sampler, large_nucleus)
{
    check_nucleus(0);
    check_nucleus(0.01f);
    check_nucleus(1);
    check_nucleus(30);
    check_nucleus(300);
}

Test(sampler, penalties_window)
{
    struct sampler_params p = plain();
    struct sampler s;
    struct sampler copy;
    struct sampler_result out;

    open_scratch(8);
    for (int i = 0; i < 8; i++) {
        logits[i] = 1 - 0.01f * (float)i;
    }
    p.temperature = 0;
    p.penalty_window = 3;
    p.presence_penalty = 5;
    sampler_init(&s, &p);
    for (int32_t i = 0; i < 20; i++) {
        cr_assert_eq(sampler_sample(&s, &x, logits, (uint64_t)i, &out), 0);
        cr_assert_eq(out.id, i % 4, "three are penalised, the fourth is free again");
        sampler_accept(&s, out.id);
    }
    copy = s;
    sampler_accept(&copy, 7);
    cr_assert_eq(sampler_sample(&s, &x, logits, 20, &out), 0);
    cr_assert_eq(out.id, 0, "the copy is another sampler");
    sampler_accept(&s, -1);
    sampler_accept(&s, 8);
    sampler_accept(&s, INT32_MAX);
    cr_assert_eq(sampler_sample(&s, &x, logits, 21, &out), 0);
    cr_assert_eq(out.id, 0, "ids outside the vocabulary do nothing");
    close_scratch();
}

Test(sampler, forbidden_tokens)
{
    struct sampler_params p = plain();
    struct sampler s;
    struct sampler_result out;

    open_scratch(50);
    for (int i = 0; i < 50; i++) {
        logits[i] = i % 10 == 3 ? rnd() : -INFINITY;
    }
    p.repeat_penalty = 0.01f;
    p.presence_penalty = -100;
    p.n_logprobs = 20;
    for (int32_t k = 0; k <= 60; k += 20) {
        p.top_k = k;
        for (uint64_t i = 0; i < 200; i++) {
            sampler_init(&s, &p);
            sampler_accept(&s, 4);
            cr_assert_eq(sampler_sample(&s, &x, logits, i, &out), 0);
            cr_assert_eq(out.id % 10, 3);
        }
    }
    cr_assert_eq(out.alts[5].logprob, -INFINITY);
    close_scratch();
}

Test(sampler, no_numbers)
{
    static const float bad[] = {NAN, INFINITY};
    struct sampler_params p = plain();
    struct sampler s;
    struct sampler_result out;

    open_scratch(37);
    for (int k = 0; k < 4; k++) {
        p.temperature = k & 1 ? 0 : 1;
        p.top_k = k & 2 ? 5 : 0;
        sampler_init(&s, &p);
        for (int at = 0; at < 37; at++) {
            for (int b = 0; b < 2; b++) {
                memset(logits, 0, sizeof(logits));
                logits[at] = bad[b];
                cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), -EBADMSG, "%g at %d",
                             (double)bad[b], at);
                cr_assert_eq(sampler_score(&x, logits, 0, 3, &out), -EBADMSG);
            }
        }
        for (int i = 0; i < 37; i++) {
            logits[i] = -INFINITY;
        }
        cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), -EBADMSG);
        for (int i = 0; i < 37; i++) {
            logits[i] = i % 2 ? FLT_MAX : -FLT_MAX;
        }
        cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), 0);
        cr_assert_eq(out.id % 2, 1);
    }
    p.repeat_penalty = 0.01f;
    sampler_init(&s, &p);
    sampler_accept(&s, 1);
    cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), 0, "a penalty cannot make infinities");
    close_scratch();
}

Test(sampler, logprobs_are_the_models_own)
{
    struct sampler_params p = plain();
    struct sampler s;
    struct sampler_result out;
    struct sampler_result scored;
    double sum = 0;

    open_scratch(MAX_VOCAB);
    srand(6);
    for (int i = 0; i < MAX_VOCAB; i++) {
        logits[i] = 20 * rnd() - 10;
    }
    for (int i = 0; i < MAX_VOCAB; i++) {
        sum += exp((double)logits[i]);
    }
    p.temperature = 0.3f;
    p.top_k = 3;
    p.presence_penalty = 2;
    p.n_logprobs = 7;
    sampler_init(&s, &p);
    sampler_accept(&s, 11);
    cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), 0);
    cr_assert_float_eq((double)out.logprob, (double)logits[out.id] - log(sum), 1e-5);
    cr_assert_eq(out.n_alts, 7);
    cr_assert_eq(sampler_score(&x, logits, out.id, 7, &scored), 0);
    cr_assert_eq(scored.logprob, out.logprob);
    cr_assert_eq(memcmp(scored.alts, out.alts, 7 * sizeof(out.alts[0])), 0);
    p.n_logprobs = -1;
    sampler_init(&s, &p);
    cr_assert_eq(sampler_sample(&s, &x, logits, 0, &out), 0);
    cr_assert_eq(out.n_alts, 0);
    cr_assert_eq(out.logprob, 0);
    close_scratch();
}

Test(sampler, params_checked)
{
    struct sampler_params good = sampler_params_default();
    struct error e = {0};

    cr_assert_eq(sampler_params_check(&good, &e), 0);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct sampler_params p = good;                                                            \
                                                                                                   \
        p.field = value;                                                                           \
        e = (struct error){0};                                                                     \
        cr_expect_eq(sampler_params_check(&p, &e), -EINVAL);                                       \
        cr_expect(strstr(e.text, #field " is "), "%s", e.text);                                    \
    } while (0)
    REFUSED(temperature, NAN);
    REFUSED(temperature, -0.1f);
    REFUSED(temperature, INFINITY);
    REFUSED(top_k, -1);
    REFUSED(top_p, 1.5f);
    REFUSED(top_p, NAN);
    REFUSED(min_p, -1);
    REFUSED(repeat_penalty, 0);
    REFUSED(repeat_penalty, -NAN);
    REFUSED(presence_penalty, 101);
    REFUSED(frequency_penalty, -101);
    REFUSED(penalty_window, SAMPLER_MAX_WINDOW + 1);
    REFUSED(penalty_window, -1);
    REFUSED(n_logprobs, SAMPLER_MAX_LOGPROBS + 1);
    REFUSED(n_logprobs, -2);
}
