/* SPDX-License-Identifier: Apache-2.0 */
/* What the device itself does: how fast memory is read and copied, what a launch costs in a chain,
 * what changing a node of a graph costs the host; and drawing tokens. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "bench/kernels/kbench.h"

struct buffers {
    void *from;
    void *to;
    uint64_t bytes;
};

static int read_round(struct kbench *k, void *arg, int n)
{
    const struct buffers *b = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->clock->read(k->be, b->from, b->bytes);
    }
    return r;
}

static int copy_round(struct kbench *k, void *arg, int n)
{
    const struct buffers *b = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->ops->copy(k->be, b->to, b->from, b->bytes);
    }
    return r;
}

int kbench_rates(struct kbench *k, struct error *e)
{
    struct buffers b = {.bytes = k->small ? 1 << 18 : (uint64_t)1 << 30};
    double ns = 0;
    int r = kbench_fill(k, b.bytes, &b.from, e);

    r = r ? r : k->ops->alloc(k->be, b.bytes, "a buffer", &b.to, e);
    r = r ? r : kbench_time(k, read_round, &b, 2, &ns, e); /* always: shares are of it */
    if (!r) {
        k->read_rate = (double)b.bytes / ns * 1e9;
        kbench_print(k, "read", ns, (double)b.bytes, 0);
        if (kbench_wants(k, "copy")) {
            r = kbench_time(k, copy_round, &b, 2, &ns, e);
            if (!r) {
                kbench_print(k, "copy", ns, 2.0 * (double)b.bytes, 0);
            }
        }
    }
    k->ops->free(k->be, b.from, b.bytes);
    k->ops->free(k->be, b.to, b.bytes);
    return r;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct chain {
    bool early;
    int32_t value;
    int32_t step; /* added round by round: each node changes */
};

static int chain_round(struct kbench *k, void *arg, int n)
{
    struct chain *c = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->clock->nothing(k->be, c->value, c->early);
    }
    c->value += c->step;
    return r;
}

/* Host ns of handing over one node, all of them changed or none. */
static int host_ns(struct kbench *k, int32_t step, int n, double *ret)
{
    struct chain c = {.early = true, .step = step};
    int n_rounds = k->small ? 2 : 50;
    int64_t ns = 0;
    int r = 0;

    for (int i = -3; i < n_rounds && !r; i++) {
        int64_t t;

        r = k->ops->sync(k->be);
        t = clock_ns();
        r = r ? r : k->clock->begin(k->be);
        r = r ? r : chain_round(k, &c, n);
        r = r ? r : k->clock->end(k->be);
        ns += i < 0 ? 0 : clock_ns() - t;
    }
    *ret = (double)ns / n_rounds / n;
    return r;
}

int kbench_launches(struct kbench *k, struct error *e)
{
    int n = k->small ? 8 : 256;
    double ns;
    double same = 0;
    double changed = 0;
    int r = 0;

    for (int early = 0; early < 2 && !r; early++) {
        const char *name = early ? "launch, programmatic edge" : "launch, plain edge";

        if (kbench_wants(k, name)) {
            r = kbench_time(k, chain_round, &(struct chain){.early = early}, n, &ns, e);
            if (!r) {
                kbench_print(k, name, ns, 0, 0);
            }
        }
    }
    if (!r && kbench_wants(k, "launch alone")) {
        r = kbench_kernels(k, chain_round, &(struct chain){0}, n, "launch alone", NULL, e);
    }
    if (!r && kbench_wants(k, "node, host")) {
        r = host_ns(k, 0, n, &same);
        r = r ? r : host_ns(k, 1, n, &changed);
        if (r) {
            return error_set_errno(e, r, "a chain of kernels");
        }
        kbench_print(k, "node, host, unchanged", same, 0, 0);
        kbench_print(k, "node, host, changed", changed, 0, 0);
    }
    return r;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static int sample_round(struct kbench *k, void *arg, int n)
{
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->ops->sample(k->be, arg);
    }
    return r;
}

/* Eight rows. Probabilities fall as 1 / rank^1.2, as a language model's roughly do, or are within a
 * factor of e of each other. */
static int write_logits(struct kbench *k, float *to, int32_t n_vocab, bool flat, struct error *e)
{
    uint64_t n = 8 * (uint64_t)n_vocab;
    float *l = malloc(n * sizeof(*l));
    int r;

    if (!l) {
        return error_set(e, -ENOMEM, "no memory for logits");
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t rank = i * 7919 % (uint64_t)n_vocab + 1; /* a prime: each rank once a row */

        l[i] = flat ? (float)rank / (float)n_vocab : -1.2f * logf((float)rank);
    }
    r = k->ops->write(k->be, to, l, n * sizeof(*l));
    free(l);
    return r ? error_set_errno(e, r, "write") : 0;
}

int kbench_sampling(struct kbench *k, struct error *e)
{
    static const struct {
        const char *name;
        struct ops_sample_row row;
        bool flat; /* logits */
    } kinds[] = {
        {"sample greedy", {.temperature = 0, .top_p = 1}, false},
        {"sample top_k 40", {.temperature = 0.7f, .top_p = 0.95f, .top_k = 40}, false},
        /* the default */
        {"sample all", {.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.05f}, false},
        {"sample all, flat", {.temperature = 0.7f, .top_p = 0.95f, .min_p = 0.05f}, true},
    };
    enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    static const int n_rows[] = {1, 8};
    const int32_t n_vocab = k->small ? 2048 : 128256;
    struct ops_sample_row rows[8];
    struct ops_sample s = {.n_vocab = n_vocab, .ld = n_vocab, .rows = rows};
    void *logits = NULL;
    void *ids = NULL;
    bool wanted = false;
    int r;

    for (int i = 0; i < N_KINDS; i++) {
        wanted = wanted || kbench_wants(k, kinds[i].name);
    }
    if (!wanted) {
        return 0;
    }
    r = k->ops->alloc(k->be, (uint64_t)n_vocab * 8 * 4, "logits", &logits, e);
    r = r ? r : k->ops->alloc(k->be, 256, "ids", &ids, e);
    s.logits = logits;
    s.ids = ids;
    for (int i = 0; i < 2 * N_KINDS && !r; i++) {
        char name[64];
        double ns;

        if (i % 2 == 0 && (r = write_logits(k, logits, n_vocab, kinds[i / 2].flat, e))) {
            break;
        }

        for (int row = 0; row < 8; row++) {
            rows[row] = kinds[i / 2].row;
            rows[row].seed = 5;
        }
        s.n_rows = n_rows[i % 2];
        (void)snprintf(name, sizeof(name), "%s, %d rows of %d", kinds[i / 2].name, s.n_rows,
                       n_vocab);
        if (kbench_wants(k, name)) {
            r = kbench_time(k, sample_round, &s, k->small ? 1 : 16, &ns, e);
            if (!r) {
                kbench_print(k, name, ns, 0, 0);
            }
        }
    }
    k->ops->free(k->be, logits, 0);
    k->ops->free(k->be, ids, 0);
    return r;
}
