/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of the kernel checks: buffers on all sides between guard bytes, calls one side after
 * another, timing, comparing. Contract in check.h. */

#include "tests/kernels/check.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/turn.h"

/* ---- random numbers ------------------------------------------------------------------------- */

float check_uniform(struct check *c)
{
    if (c->counter % 4 == 0) {
        rng_philox(c->key, (uint32_t[4]){c->counter / 4, 0, 0, 0}, c->words);
    }
    return rng_uniform(c->words[c->counter++ % 4]);
}

int32_t check_range(struct check *c, int32_t lo, int32_t hi) /* [lo, hi] */
{
    return lo + (int32_t)(check_uniform(c) * (float)(hi - lo + 1));
}

float check_normal(struct check *c)
{
    float u = check_uniform(c);

    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * check_uniform(c));
}

void check_fill(struct check *c, struct check_buf *b, float scale)
{
    for (size_t i = 0; i < b->bytes / 4; i++) {
        ((float *)(void *)b->init)[i] = scale * check_normal(c);
    }
}

/* ---- cases ---------------------------------------------------------------------------------- */

void check_fail(struct check *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    printf("FAIL %s, %s: ", c->variant, c->name);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    c->n_failed++;
}

void check_require(int r, const char *what)
{
    if (r < 0) {
        printf("check: %s: %s\n", what, strerror(-r));
        exit(1);
    }
}

void check_clear(struct check *c)
{
    for (int i = 0; i < c->n_bufs; i++) {
        free(c->bufs[i].init);
        for (int s = 0; s < CHECK_SIDES; s++) {
            if (c->bufs[i].dev[s]) {
                c->sides[s]->ops->free(c->sides[s], c->bufs[i].dev[s],
                                       c->bufs[i].bytes + 2 * CHECK_GUARD);
            }
            free(c->bufs[i].out[s]);
        }
    }
    c->n_bufs = 0;
    c->side = -1;
    c->n_samples = 0;
    c->bench_bytes = 0;
}

/* A case's numbers follow from its name (FNV-1a), not from the cases before it: a sample of the
 * cases, or one by --filter, draws what the whole program draws for them. */
static void draw_by_name(struct check *c)
{
    uint64_t hash = 0xcbf29ce484222325;

    for (const char *s = c->name; *s; s++) {
        hash = (hash ^ (uint8_t)*s) * 0x100000001b3;
    }
    c->key = rng_key_make(hash);
    c->counter = 0;
}

/* False: left out by --filter or --every, do nothing more. */
bool check_case(struct check *c, const char *fmt, ...)
{
    va_list ap;

    check_clear(c);
    va_start(ap, fmt);
    (void)vsnprintf(c->name, sizeof(c->name), fmt, ap);
    va_end(ap);
    draw_by_name(c);
    if (c->every > 0 && !case_has_turn(c->n_cases++, c->every, c->phase)) {
        return false;
    }
    return !c->filter || strstr(c->name, c->filter);
}

struct check_buf *check_buf(struct check *c, const char *what, size_t bytes)
{
    struct check_buf *b = &c->bufs[c->n_bufs++];

    *b = (struct check_buf){.what = what, .bytes = bytes, .init = calloc(1, bytes + 1)};
    return b;
}

void *check_dev(const struct check *c, const struct check_buf *b)
{
    return b ? b->dev[c->side] + CHECK_GUARD : NULL;
}

/* Before a side's first call: its buffers, between guards. */
static void upload(struct check *c)
{
    uint8_t guard[CHECK_GUARD];

    memset(guard, 0xa5, sizeof(guard));
    for (int i = 0; i < c->n_bufs; i++) {
        struct check_buf *b = &c->bufs[i];
        void *dev;

        check_require(c->ops->alloc(c->be, b->bytes + 2 * CHECK_GUARD, b->what, &dev, NULL),
                      b->what);
        b->dev[c->side] = dev;
        check_require(c->ops->write(c->be, dev, guard, CHECK_GUARD), b->what);
        check_require(c->ops->write(c->be, check_dev(c, b), b->init, b->bytes), b->what);
        check_require(
            c->ops->write(c->be, b->dev[c->side] + CHECK_GUARD + b->bytes, guard, CHECK_GUARD),
            b->what);
    }
}

static void download(struct check *c)
{
    for (int i = 0; i < c->n_bufs; i++) {
        struct check_buf *b = &c->bufs[i];
        uint8_t *all = malloc(b->bytes + 2 * CHECK_GUARD);

        check_require(c->ops->read(c->be, all, b->dev[c->side], b->bytes + 2 * CHECK_GUARD),
                      b->what);
        for (size_t g = 0; g < 2 * CHECK_GUARD; g++) {
            if (all[g < CHECK_GUARD ? g : b->bytes + g] != 0xa5) {
                check_fail(c, "side %d wrote outside %s", c->side, b->what);
                break;
            }
        }
        b->out[c->side] = malloc(b->bytes + 1);
        memcpy(b->out[c->side], all + CHECK_GUARD, b->bytes);
        free(all);
        if (c->side >= 2 && memcmp(b->out[c->side], b->out[1], b->bytes) != 0) {
            check_fail(c, "%s depends on the number of threads", b->what);
        }
    }
}

double check_now(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(struct check *c)
{
    double median;

    qsort(c->samples, (size_t)c->n_samples, sizeof(double), by_value);
    median = c->samples[c->n_samples / 2];
    printf("%-28s %-60s %9.1f us  best %9.1f  %7.2f MB  %6.1f GB/s  %3.0f %% of copy\n", c->variant,
           c->name, median * 1e6, c->samples[0] * 1e6, (double)c->bench_bytes / 1e6,
           (double)c->bench_bytes / median / 1e9,
           100 * (double)c->bench_bytes / median / c->copy_rate);
}

/* Wall time, or with --cpu-time what all threads used divided by their number: for a machine that
 * others use too. */
static double clock_of(const struct check *c)
{
    struct timespec ts;

    if (!c->cpu_time) {
        return check_now();
    }
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return ((double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec) / c->n_threads;
}

/* A model's other layers come between two calls: whatever a call left in the caches is gone. */
static void flush(struct check *c)
{
    for (size_t i = 0; i < CHECK_FLUSH; i += 64) {
        c->flush[i]++;
    }
}

/* Ends the call before and begins the next; false when all sides have had theirs. */
bool check_call(struct check *c)
{
    double now;

    if (c->side >= 0) {
        check_require(c->ops->sync(c->be), "sync");
        now = clock_of(c);
        if (c->bench && c->side == 1) {
            if (c->warm) { /* the first call also set things up */
                c->samples[c->n_samples++] = now - c->started;
            }
            c->warm = true;
            if (c->n_samples < 5 ||
                (c->n_samples < CHECK_SAMPLES && c->samples[0] * c->n_samples < 0.3)) {
                flush(c);
                c->started = clock_of(c);
                return true;
            }
            report(c);
        }
        c->errs[c->side] = c->err;
        download(c);
        if (c->err < 0 && c->errs[0] == 0) {
            check_fail(c, "side %d returned %s", c->side, strerror(-c->err));
        }
    }
    if (++c->side == c->n_sides || (c->bench && c->side == 2)) {
        return false;
    }
    c->be = c->sides[c->side];
    c->ops = c->be->ops;
    upload(c);
    c->err = 0;
    c->warm = false;
    c->started = clock_of(c);
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* n rows of n_cols, `ld` apart; what lies between must be as it was. `got` against `want`. */
void check_rows(struct check *c, const char *what, const float *got, const float *want, int32_t n,
                int32_t ld, int32_t n_cols, const struct tolerance *tol)
{
    double error = 0;
    double square = 0;
    double worst = 0;
    double rms;

    if (c->bench) {
        return; /* operations in place have run many times */
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < n_cols; j++) {
            double a = got[(size_t)i * (size_t)ld + (size_t)j];
            double b = want[(size_t)i * (size_t)ld + (size_t)j];

            if (!isfinite(a)) {
                check_fail(c, "%s[%d][%d] is %g, wanted %g", what, i, j, a, b);
                return;
            }
            error += (a - b) * (a - b);
            square += b * b;
            worst = fmax(worst, fabs(a - b));
        }
    }
    rms = sqrt(square / fmax(1, (double)n * n_cols));
    if (error > tol->nmse * square || worst > tol->max * rms) {
        check_fail(c, "%s: nmse %.2e of %.0e, max %.2e of %.0e (%s)", what,
                   error / fmax(square, 1e-300), tol->nmse, worst / fmax(rms, 1e-300), tol->max,
                   tol->reason);
        return;
    }
    c->n_passed++;
    if (getenv("CHECK_VERBOSE")) {
        printf("     %s, %s, %s: nmse %.1e max %.1e\n", c->variant, c->name, what,
               error / fmax(square, 1e-300), worst / fmax(rms, 1e-300));
    }
}

void check_bits(struct check *c, const char *what, const void *got, const void *want, size_t bytes)
{
    for (size_t i = 0; i < bytes && !c->bench; i++) {
        if (((const uint8_t *)got)[i] != ((const uint8_t *)want)[i]) {
            check_fail(c, "%s differs at byte %zu of %zu", what, i, bytes);
            return;
        }
    }
    c->n_passed++;
}

void check_reference_again(struct check *c)
{
    c->side = 0;
    c->be = c->sides[0];
    c->ops = c->be->ops;
    c->warm = true;
}

void check_same(struct check *c, const char *what, struct check_buf *b)
{
    uint8_t *got = malloc(b->bytes);

    check_require(c->ops->read(c->be, got, check_dev(c, b), b->bytes), b->what);
    check_bits(c, what, b->out[0], got, b->bytes);
    free(got);
}

/* Side 1 against the reference, and nothing written between the rows. */
void check_floats(struct check *c, const struct check_buf *b, int32_t n, int32_t ld, int32_t n_cols,
                  const struct tolerance *tol)
{
    check_rows(c, b->what, (const void *)b->out[1], (const void *)b->out[0], n, ld, n_cols, tol);
    for (int32_t i = 0; i + 1 < n && !c->bench; i++) {
        size_t at = ((size_t)i * (size_t)ld + (size_t)n_cols) * 4;

        if (memcmp(b->out[1] + at, b->init + at, (size_t)(ld - n_cols) * 4) != 0) {
            check_fail(c, "%s: row %d written beyond its end", b->what, i);
            return;
        }
    }
}

static bool describes(const struct check *c, const char *kernel)
{
    char text[4096];

    c->sides[1]->ops->describe(c->sides[1], text, sizeof(text));
    return strstr(text, kernel) != NULL;
}

bool check_has_tiles(const struct check *c)
{
    return describes(c, " tile_mul");
}

bool check_has_tiles_of(const struct check *c, enum dtype type)
{
    char kernel[32];

    snprintf(kernel, sizeof(kernel), " tile_%s_", dtype_info(type)->name);
    for (char *p = kernel; *p; p++) {
        *p = (char)tolower((unsigned char)*p);
    }
    return describes(c, kernel);
}

bool check_has_unpacked(const struct check *c)
{
    return describes(c, ", of quantised weights as bf16") && !describes(c, "own tiles for ");
}

bool check_has_mma(const struct check *c)
{
    return describes(c, " prefill_mma");
}

bool check_has_half(const struct check *c)
{
    return describes(c, " pv_fp8_avx512fp16");
}

bool check_has_flush(const struct check *c)
{
    return describes(c, " qk_fp8_avx2bits");
}

bool check_has_int_keys(const struct check *c, enum ops_kv_type k_type)
{
    return (k_type == OPS_KV_I8 && describes(c, " query_i8_")) ||
           (k_type == OPS_KV_G4 && describes(c, " query_g4_"));
}

bool check_has_int_values(const struct check *c, enum ops_kv_type v_type)
{
    return v_type == OPS_KV_G4 &&
           (describes(c, " pv_g4_avx512vnni") || describes(c, " pv_g4_avx2int"));
}
