/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler takes at its start: bytes for the plan, and the memory itself. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/memory.h"
#include "engine/sched/state.h"

enum { MIN_LOGIT_ROWS = 16 };

int32_t sched_logit_rows(int32_t n_seqs)
{
    return n_seqs > MIN_LOGIT_ROWS ? n_seqs : MIN_LOGIT_ROWS;
}

static int32_t most_rows(const struct sched_config *c)
{
    return c->most_rows > c->batch_tokens ? c->most_rows : c->batch_tokens;
}

static struct forward_limits limits_of(const struct sched_config *c)
{
    return (struct forward_limits){
        .max_rows = most_rows(c) + c->draft_rows,
        .max_seqs = c->n_seqs,
        .max_logits = sched_logit_rows(c->n_seqs),
        .predicted_slots = c->predicted_slots,
    };
}

static uint64_t stash_bytes_of(const struct model *m, int32_t max_chunk)
{
    return (uint64_t)max_chunk * (((uint64_t)m->h.n_embd + 15) & ~UINT64_C(15)) * sizeof(float);
}

static uint64_t host_logits_bytes(const struct model *m, int32_t n_seqs)
{
    return (uint64_t)sched_logit_rows(n_seqs) * (uint64_t)m->h.n_vocab * sizeof(float);
}

static void lay_batch(struct memory_arena *a, const struct sched_config *c, struct batch *b,
                      float **logprobs)
{
    size_t n_seqs = (size_t)c->n_seqs;
    size_t n_rows = (size_t)most_rows(c) + (size_t)c->draft_rows;

    b->of = memory_arena_take(a, n_seqs * sizeof(struct request *));
    b->seqs = memory_arena_take(a, n_seqs * sizeof(*b->seqs));
    b->exit = memory_arena_take(a, n_seqs * sizeof(*b->exit));
    b->propose = memory_arena_take(a, n_seqs * sizeof(*b->propose));
    b->ids = memory_arena_take(a, n_rows * sizeof(*b->ids));
    b->wanted = memory_arena_take(a, n_rows * sizeof(*b->wanted));
    b->wanted_rows = memory_arena_take(a, n_rows * sizeof(*b->wanted_rows));
    b->draws = memory_arena_take(a, n_seqs * sizeof(*b->draws));
    b->drawn = memory_arena_take(a, n_seqs * sizeof(*b->drawn));
    *logprobs = memory_arena_take(a, (size_t)sched_logit_rows(c->n_seqs) * sizeof(**logprobs));
}

static size_t batch_bytes(const struct sched_config *c)
{
    struct memory_arena plan = {0};
    struct batch b;
    float *logprobs;

    lay_batch(&plan, c, &b, &logprobs);
    return plan.used;
}

uint64_t sched_bytes(const struct model *m, const struct sched_config *c, uint64_t *ret_host)
{
    struct forward_limits l = limits_of(c);
    uint64_t host = memory_rounded(host_logits_bytes(m, c->n_seqs)) +
                    memory_rounded(sampler_scratch_bytes(m->h.n_vocab)) +
                    memory_rounded(batch_bytes(c)) + memory_rounded(draft_bytes(c));

    *ret_host = host + forward_host_bytes(m, &l);
    return host + forward_bytes(m, &l) + memory_rounded(stash_bytes_of(m, c->max_chunk));
}

static int alloc_batch(struct sched *s, struct error *reterr)
{
    const struct sched_config *c = &s->config;
    struct memory_arena a = {.size = batch_bytes(c)};
    int r = memory_map(a.size, "scheduler", &s->batch_memory, reterr);

    if (!r) {
        a.base = s->batch_memory;
        lay_batch(&a, c, &s->batch, &s->logprobs);
    }
    return r;
}

int sched_create(const struct sched_config *config, struct sched **ret, struct error *reterr)
{
    struct sched *s = calloc(1, sizeof(*s));
    struct model *m = config->model;
    struct forward_limits limits = limits_of(config);
    void *p = NULL;
    int r;

    if (!s) {
        return error_set(reterr, -ENOMEM, "scheduler: no memory");
    }
    assert(config->batch_tokens >= config->max_chunk + config->n_seqs);
    s->config = *config;
    s->config.most_rows = most_rows(config);
    s->ops = m->ops;
    s->be = m->be;
    s->next_handle = 1;
    s->token_budget.target_ns = config->gap_target_ns;
    uses_init(&s->uses, kv_mix(config->cache));
    r = alloc_batch(s, reterr);
    if (r) {
        goto fail;
    }
    r = forward_create(m, &limits, &s->interrupt, &s->forward, reterr);
    if (r) {
        goto fail;
    }
    s->stash_bytes = stash_bytes_of(m, config->max_chunk);
    r = s->ops->alloc(s->be, s->stash_bytes, "scored rows", &s->stash_memory, reterr);
    if (r) {
        goto fail;
    }
    s->stash.hidden = s->stash_memory;
    s->logits_bytes = host_logits_bytes(m, config->n_seqs);
    r = memory_map((size_t)s->logits_bytes, "logits", &p, reterr);
    if (r) {
        goto fail;
    }
    s->logits = p;
    r = memory_map(sampler_scratch_bytes(m->h.n_vocab), "sampler", &s->sampler_memory, reterr);
    if (r) {
        goto fail;
    }
    sampler_scratch_init(&s->sampler, s->sampler_memory, m->h.n_vocab);
    r = draft_create(s, reterr);
    if (r) {
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    sched_destroy(s);
    return r;
}

static void free_list(struct request_list *l)
{
    while (l->first) {
        struct request *r = l->first;

        l->first = r->next;
        request_destroy(r);
    }
}

void sched_destroy(struct sched *s)
{
    if (!s) {
        return;
    }
    free_list(&s->waiting);
    free_list(&s->running);
    free_list(&s->resting);
    for (int32_t i = 0; i < s->n_principals; i++) {
        free(s->principals[i]);
    }
    free(s->principals);
    draft_destroy(s);
    memory_unmap(s->sampler_memory, sampler_scratch_bytes(s->config.model->h.n_vocab));
    memory_unmap(s->logits, (size_t)s->logits_bytes);
    if (s->stash_memory) {
        s->ops->free(s->be, s->stash_memory, s->stash_bytes);
    }
    forward_destroy(s->forward);
    memory_unmap(s->batch_memory, batch_bytes(&s->config));
    free(s);
}
