/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that a backend draws against the host's sampler: the same token from the same logits, for
 * every combination of temperature, top_k, top_p and min_p that it covers, with ties, with tokens
 * forbidden by -inf, and with logits that are none. What it does not cover it must refuse.
 *
 *     check_sample BACKEND [SIDES [VOCAB]]   (a module's path; as many backends, one after
 * another: the emulator's threads then run in other orders; one of the vocabularies) */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/text/sampler.h"
#include "kernels/backend.h"
#include "tests/turn.h"

enum { ROWS = 40, MAX_VOCAB = 128256, KINDS = 8 };

static int n_failed, n_passed;

static void expect(bool ok, const char *what, int vocab, int row, int got, int want)
{
    n_passed += ok;
    if (!ok) {
        n_failed++;
        printf("FAILED: %s, %d tokens, row %d: %d, not %d\n", what, vocab, row, got, want);
    }
}

static uint32_t bits(uint32_t i, uint32_t row)
{
    const uint32_t counter[4] = {i, row, 7, 0};
    uint32_t ret[4];

    rng_philox(rng_key_make(99), counter, ret);
    return ret[0];
}

/* Logits by row: a bell, a few far ahead, ties, all alike, most forbidden, one that is none, a bell
 * within two logits, all forbidden. */
static void fill(float *l, int32_t n, int32_t row)
{
    int kind = row % KINDS;

    for (int32_t i = 0; i < n; i++) {
        uint32_t b = bits((uint32_t)i, (uint32_t)row);
        float x = ((float)(b & 0xffff) + (float)(b >> 16)) / 8192 - 8;

        l[i] = kind == 0   ? x
               : kind == 1 ? (b % 997 == 0 ? x + 20 : x)
               : kind == 2 ? roundf(x * 2) / 2
               : kind == 3 ? -1.5f
               : kind == 4 ? (b % 13 ? -INFINITY : x)
               : kind == 5 ? x
               : kind == 6 ? x / 8
                           : -INFINITY;
    }
    if (kind == 5) {
        l[n / 2] = row % 2 ? NAN : INFINITY;
    }
}

static struct sampler_params params(int32_t row)
{
    static const float temperature[] = {0.8f, 0, 0.1f, 5, 1};
    static const int32_t top_k[] = {40, 0, 1024, 2, 300, INT32_MAX, 0, 1};
    static const float top_p[] = {0.95f, 1, 0.1f, 0, 0.999f};
    static const float min_p[] = {0.05f, 0, 1, 0.5f};
    struct sampler_params p = sampler_params_default();
    uint32_t b = bits((uint32_t)row, 1u << 20);

    p.temperature = temperature[b % 5];
    p.top_k = top_k[(b >> 8) % 8];
    p.top_p = top_p[(b >> 16) % 5];
    p.min_p = min_p[(b >> 24) % 4];
    p.seed = 0x123456789abcull * (uint64_t)(row + 1);
    return p;
}

static void check(struct backend *be, int32_t vocab, uint64_t index, float *logits,
                  struct sampler_scratch *x, float *device)
{
    struct ops_sample_row rows[ROWS];
    int32_t want[ROWS];
    int32_t got[ROWS];
    int32_t *ids = (int32_t *)(void *)(device + (size_t)ROWS * MAX_VOCAB);
    struct ops_sample p = {
        .logits = device, .n_rows = ROWS, .n_vocab = vocab, .ld = vocab, .rows = rows, .ids = ids};
    int r;

    for (int32_t row = 0; row < ROWS; row++) {
        struct sampler_params q = params(row + ROWS * (int32_t)(index % 11));
        struct sampler_result ret = {0};
        struct sampler s;

        if (row % KINDS == 3 &&
            row % 2) { /* all alike: where top_p ends is found among thousands */
            q.top_k = 0;
            q.temperature = 1;
            q.top_p = q.top_p < 1 ? q.top_p : 0.7f;
        }
        fill(logits + (size_t)row * (size_t)vocab, vocab, row);
        sampler_init(&s, &q);
        want[row] = sampler_sample(&s, x, logits + (size_t)row * (size_t)vocab, index, &ret) < 0
                        ? -1
                        : ret.id;
        rows[row] =
            (struct ops_sample_row){q.temperature, q.top_p, q.min_p, q.top_k, q.seed, index};
    }
    memset(got, 0x7f, sizeof(got));
    r = be->ops->write(be, device, logits, (uint64_t)ROWS * (uint64_t)vocab * sizeof(float));
    r = r < 0 ? r : be->ops->sample(be, &p);
    r = r < 0 ? r : be->ops->read(be, got, ids, sizeof(got));
    expect(r == 0, "the call", vocab, 0, r, 0);
    for (int32_t row = 0; row < ROWS && r == 0; row++) {
        expect(got[row] == want[row], "a token", vocab, row, got[row], want[row]);
    }
    rows[3].temperature = 1;
    rows[3].top_k = 1025; /* as many as there are, or more: no truncation */
    expect(be->ops->sample(be, &p) == (vocab > 1025 ? -ENOTSUP : 0), "1025", vocab, 3, 0, 0);
}

int main(int argc, char **argv)
{
    static const int32_t vocab[] = {3, 50, 1025, 20000, 49152, MAX_VOCAB};
    const struct backend_ops *ops;
    struct backend_config config = {0};
    const struct backend_limits limits = {.max_rows = ROWS, .max_cols = 32, .max_outputs = 32};
    int32_t only = argc > 3 ? atoi(argv[3]) : 0;
    int n_sides = argc > 2 ? atoi(argv[2]) : 1;
    struct error e = {0};
    struct sampler_scratch x;
    uint64_t bytes = ((uint64_t)MAX_VOCAB + 1) * ROWS * sizeof(float);
    float *logits = malloc((size_t)ROWS * MAX_VOCAB * sizeof(float));
    void *scratch = aligned_alloc(64, (sampler_scratch_bytes(MAX_VOCAB) + 63) / 64 * 64);

    if (argc < 2 || !logits || !scratch || backend_find(argv[1], &ops, &e) < 0) {
        printf("FAILED: %s\n", e.text);
        return 1;
    }
    if (!ops->sample) {
        printf("the backend draws no tokens\n");
        return 77;
    }
    for (int side = 0; side < n_sides; side++) {
        struct backend *be = NULL;
        void *device = NULL;

        if (ops->create(&config, &be, &e) < 0 || ops->reserve(be, &limits, &e) < 0 ||
            ops->alloc(be, bytes, "logits", &device, &e) < 0) {
            printf("FAILED: %s\n", e.text);
            return 1;
        }
        for (size_t i = 0; i < sizeof(vocab) / sizeof(vocab[0]); i++) {
            /* the larger ones in one of the orders each, other ones for each commit */
            bool turn = (turn_begin(n_sides) + (int)i) % n_sides == side;
            bool skipped = only ? vocab[i] != only : vocab[i] >= 20000 && !turn;
            uint64_t n = skipped ? 0 : vocab[i] < 2000 ? 8 : 1;

            for (uint64_t index = 0; index < n; index++) {
                sampler_scratch_init(&x, scratch, vocab[i]);
                check(be, vocab[i], index * 0x100000001ull, logits, &x, device);
            }
        }
        ops->free(be, device, bytes);
        ops->destroy(be);
    }
    free(logits);
    free(scratch);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
