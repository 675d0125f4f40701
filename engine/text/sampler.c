/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to a token: penalties, truncation, one draw. The steps and their order are in the
 * header.
 *
 * The common case (top_k on) looks at the vocabulary twice: one pass checks every logit and finds
 * the largest, one keeps the k best in a small heap; both go 16 logits at a time in loops that
 * compilers turn into vector code. With top_k off and top_p on, masses are summed by 1/16 of a
 * logit below the largest; only the bucket in which they reach p of the whole is sorted.
 *
 * All sums that decide anything are of integers, and exp is exp_fixed(): no libm function, thread
 * count, instruction set or device has a say in which token comes. */

#include "engine/text/sampler.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/exp_fixed.h"
#include "base/rng.h"

enum { LANES = 16, BUCKETS = 2048, BUCKETS_A_UNIT = 16 };

/* The largest logit; -EBADMSG for NaN or +inf anywhere, or nothing above -inf. */
static int scan(const float *l, int32_t n, float *ret_max)
{
    float max[LANES];
    int bad = 0;
    int32_t i = 0;

    for (int j = 0; j < LANES; j++) {
        max[j] = -INFINITY;
    }
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            bad |= !(l[i + j] <= FLT_MAX);
            max[j] = l[i + j] > max[j] ? l[i + j] : max[j];
        }
    }
    for (; i < n; i++) {
        bad |= !(l[i] <= FLT_MAX);
        max[0] = l[i] > max[0] ? l[i] : max[0];
    }
    for (int j = 1; j < LANES; j++) {
        max[0] = max[j] > max[0] ? max[j] : max[0];
    }
    *ret_max = max[0];
    return bad || max[0] < -FLT_MAX ? -EBADMSG : 0;
}

/* Sum of exp(l - max), in blocks whose float sums go to a double. */
static double sum_exp(const float *l, int32_t n, float max)
{
    double sum = 0;
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        float part[LANES];

        for (int j = 0; j < LANES; j++) {
            part[j] = exp_fixed(l[i + j] - max);
        }
        for (int half = LANES / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; j++) {
                part[j] += part[j + half];
            }
        }
        sum += (double)part[0];
    }
    for (; i < n; i++) {
        sum += (double)exp_fixed(l[i] - max);
    }
    return sum;
}

/* ---- the k best -------------------------------------------------------------------------- */

/* In `struct sampler_alt` of the scratch, `logprob` is a logit (later a weight). */
static bool worse(struct sampler_alt a, struct sampler_alt b)
{
    return a.logprob < b.logprob || (a.logprob == b.logprob && a.id > b.id);
}

/* Puts `item` into the heap (worst on top) of n, from its top down. */
static void sift(struct sampler_alt *heap, int32_t n, struct sampler_alt item)
{
    int32_t i = 0;

    for (;;) {
        int32_t child = 2 * i + 1;

        if (child >= n) {
            break;
        }
        if (child + 1 < n && worse(heap[child + 1], heap[child])) {
            child++;
        }
        if (!worse(heap[child], item)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

static void rise(struct sampler_alt *heap, int32_t n, struct sampler_alt item)
{
    int32_t i = n;

    for (; i > 0 && worse(item, heap[(i - 1) / 2]); i = (i - 1) / 2) {
        heap[i] = heap[(i - 1) / 2];
    }
    heap[i] = item;
}

/* A heap into falling order. */
static void sort_heap(struct sampler_alt *heap, int32_t n)
{
    while (n > 1) {
        struct sampler_alt worst = heap[0];

        n--;
        sift(heap, n, heap[n]);
        heap[n] = worst;
    }
}

static bool any_above(const float *l, float limit)
{
    int any = 0;

    for (int j = 0; j < LANES; j++) {
        any |= l[j] > limit;
    }
    return any;
}

/* The k best in falling order, ties to the lower id. */
static void select_best(const float *l, int32_t n, int32_t k, struct sampler_alt *out)
{
    int32_t i = 0;

    for (; i < k; i++) {
        rise(out, i, (struct sampler_alt){i, l[i]});
    }
    while (i < n) {
        if (i + LANES <= n && !any_above(l + i, out[0].logprob)) {
            i += LANES;
            continue;
        }
        for (int32_t end = i + LANES < n ? i + LANES : n; i < end; i++) {
            if (l[i] > out[0].logprob) {
                sift(out, k, (struct sampler_alt){i, l[i]});
            }
        }
    }
    sort_heap(out, k);
}

/* ---- steps ------------------------------------------------------------------------------- */

bool sampler_penalizes(const struct sampler_params *p)
{
    return p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static float within_floats(float v)
{
    return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
}

/* The logits with penalties, in the scratch. */
static const float *penalize(const struct sampler *s, struct sampler_scratch *x,
                             const float *logits)
{
    const struct sampler_params *p = &s->params;

    memcpy(x->logits, logits, (size_t)x->n_vocab * sizeof(*logits));
    for (int32_t i = 0; i < s->n_window; i++) {
        int32_t id = s->window[i];

        if (id >= 0 && id < x->n_vocab) {
            x->counts[id]++;
        }
    }
    for (int32_t i = 0; i < s->n_window; i++) {
        int32_t id = s->window[i];
        bool known = id >= 0 && id < x->n_vocab;
        float *l = known ? &x->logits[id] : NULL;

        if (!known || x->counts[id] == 0 || *l < -FLT_MAX) {
            continue; /* done already, or forbidden and stays so */
        }
        *l = *l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty;
        *l -= (float)x->counts[id] * p->frequency_penalty + p->presence_penalty;
        *l = within_floats(*l);
        x->counts[id] = 0;
    }
    for (int32_t i = 0; i < s->n_window; i++) {
        if (s->window[i] >= 0 && s->window[i] < x->n_vocab) {
            x->counts[s->window[i]] = 0;
        }
    }
    return x->logits;
}

/* How many of the n best are needed for p of what they hold together. */
static int32_t nucleus(const struct sampler_alt *best, int32_t n, float p)
{
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t need;
    int32_t i = 0;

    for (int32_t k = 0; k < n; k++) {
        total += exp_units(best[k].logprob - best[0].logprob);
    }
    need = units_share((double)p, total);
    do {
        sum += exp_units(best[i].logprob - best[0].logprob);
        i++;
    } while (sum < need && i < n);
    return i;
}

/* Which bucket a logit at distance `d` (0 to inf) from the best belongs to. */
static int bucket_of(float d)
{
    return d < (float)(BUCKETS - 1) / BUCKETS_A_UNIT ? (int)(d * BUCKETS_A_UNIT) : BUCKETS - 1;
}

/* The last token inside the nucleus of all logits. Uses the scratch. */
static struct sampler_alt find_cut(const float *l, float max, float top_p,
                                   struct sampler_scratch *x)
{
    uint64_t mass[BUCKETS] = {0};
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t need;
    int32_t n = 0;
    int32_t last = 0;
    int cut = 0;

    for (int32_t i = 0; i < x->n_vocab; i++) {
        mass[bucket_of(max - l[i])] += exp_units(l[i] - max);
    }
    for (int b = 0; b < BUCKETS; b++) {
        total += mass[b];
    }
    need = units_share((double)top_p, total);
    while (sum + mass[cut] < need) {
        sum += mass[cut++];
    }
    for (int32_t i = 0; i < x->n_vocab; i++) {
        if (bucket_of(max - l[i]) == cut) {
            rise(x->sorted, n, (struct sampler_alt){i, l[i]});
            n++;
        }
    }
    sort_heap(x->sorted, n);
    sum += exp_units(x->sorted[0].logprob - max);
    while (sum < need) {
        last++;
        sum += exp_units(x->sorted[last].logprob - max);
    }
    return x->sorted[last];
}

/* top_k and top_p: the survivors in falling order with top_k, else in order of id; returns how
 * many. */
static int32_t truncate(const struct sampler_params *p, const float *l, float max,
                        struct sampler_scratch *x)
{
    struct sampler_alt cut = {-1, 0};
    int32_t n = 0;

    if (p->top_k > 0 && p->top_k < x->n_vocab) {
        select_best(l, x->n_vocab, p->top_k, x->sorted);
        return p->top_p < 1 ? nucleus(x->sorted, p->top_k, p->top_p) : p->top_k;
    }
    if (p->top_p < 1) {
        cut = find_cut(l, max, p->top_p, x);
    }
    for (int32_t i = 0; i < x->n_vocab; i++) {
        struct sampler_alt a = {i, l[i]};

        if (cut.id < 0 || !worse(a, cut)) {
            x->sorted[n++] = a;
        }
    }
    return n;
}

/* Drops what is under min_p; the order stays. */
static int32_t drop_small(float min_p, struct sampler_alt *c, int32_t n, float max)
{
    int32_t kept = 0;

    for (int32_t i = 0; i < n && min_p > 0; i++) {
        if (exp_fixed(c[i].logprob - max) >= min_p) {
            c[kept++] = c[i];
        }
    }
    return min_p > 0 ? kept : n;
}

static int32_t draw(struct sampler_alt *c, int32_t n, float max, float temperature, double u)
{
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t at;
    int32_t i = 0;

    for (int32_t k = 0; k < n; k++) {
        c[k].logprob = exp_fixed((c[k].logprob - max) / temperature);
        total += weight_units(c[k].logprob);
    }
    at = units_drawn(u, total);
    while ((sum += weight_units(c[i].logprob)) <= at) {
        i++;
    }
    return c[i].id;
}

static int32_t find(const float *l, int32_t n, float value)
{
    for (int32_t i = 0; i < n; i++) {
        if (l[i] == value) {
            return i;
        }
    }
    return 0;
}

/* ---- entry points ------------------------------------------------------------------------ */

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t sampler_scratch_bytes(int32_t n_vocab)
{
    size_t n = (size_t)n_vocab;

    return round_up(n * sizeof(float)) + round_up(n * sizeof(struct sampler_alt)) +
           round_up(n * sizeof(uint16_t));
}

void sampler_scratch_init(struct sampler_scratch *x, void *memory, int32_t n_vocab)
{
    size_t n = (size_t)n_vocab;
    char *p = memory;

    x->n_vocab = n_vocab;
    x->logits = (float *)p;
    p += round_up(n * sizeof(float));
    x->sorted = (struct sampler_alt *)p;
    p += round_up(n * sizeof(struct sampler_alt));
    x->counts = (uint16_t *)p;
    memset(x->counts, 0, n * sizeof(uint16_t));
}

void sampler_init(struct sampler *s, const struct sampler_params *params)
{
    *s = (struct sampler){.params = *params};
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->params.penalty_window == 0) {
        return;
    }
    s->window[s->next] = id;
    s->next = (s->next + 1) % s->params.penalty_window;
    if (s->n_window < s->params.penalty_window) {
        s->n_window++;
    }
}

static void report(struct sampler_scratch *x, const float *logits, float max, int32_t n_logprobs,
                   struct sampler_result *ret)
{
    float log_sum;

    ret->logprob = 0;
    ret->n_alts = 0;
    if (n_logprobs < 0) {
        return;
    }
    log_sum = (float)log(sum_exp(logits, x->n_vocab, max));
    ret->logprob = logits[ret->id] - max - log_sum;
    ret->n_alts = n_logprobs < x->n_vocab ? n_logprobs : x->n_vocab;
    if (ret->n_alts > 0) {
        select_best(logits, x->n_vocab, ret->n_alts, x->sorted);
    }
    for (int32_t i = 0; i < ret->n_alts; i++) {
        ret->alts[i].id = x->sorted[i].id;
        ret->alts[i].logprob = x->sorted[i].logprob - max - log_sum;
    }
}

int sampler_sample(const struct sampler *s, struct sampler_scratch *x, const float *logits,
                   uint64_t index, struct sampler_result *ret)
{
    const struct sampler_params *p = &s->params;
    const float *l = logits;
    float model_max;
    float max;
    int r = scan(logits, x->n_vocab, &model_max);

    if (r < 0) {
        return r;
    }
    max = model_max;
    if (s->n_window > 0 && sampler_penalizes(&s->params)) {
        l = penalize(s, x, logits);
        r = scan(l, x->n_vocab, &max);
        assert(r == 0);
    }
    if (p->temperature <= 0) {
        ret->id = find(l, x->n_vocab, max);
    } else {
        int32_t n = truncate(p, l, max, x);

        n = drop_small(p->min_p, x->sorted, n, max);
        ret->id = draw(x->sorted, n, max, p->temperature, rng_draw(p->seed, index));
    }
    report(x, logits, model_max, p->n_logprobs, ret);
    return 0;
}

int sampler_score(struct sampler_scratch *x, const float *logits, int32_t id, int32_t n_logprobs,
                  struct sampler_result *ret)
{
    float max;
    int r = scan(logits, x->n_vocab, &max);

    assert(id >= 0 && id < x->n_vocab);
    if (r < 0) {
        return r;
    }
    ret->id = id;
    report(x, logits, max, n_logprobs, ret);
    return 0;
}
