/* SPDX-License-Identifier: Apache-2.0 */
/* One allocation for both turns, one table of pages for everybody: only the pool's address differs.
 */

#include "engine/kv/home/staging.h"

#include <errno.h>
#include <stdlib.h>

#include "base/memory.h"

static uint64_t pool_bytes(const struct staging_config *c)
{
    return 2 * (uint64_t)c->n_seqs * c->seq_bytes;
}

static size_t n_pages(const struct staging_config *c)
{
    return (size_t)c->max_groups * (size_t)c->max_pages;
}

uint64_t staging_bytes(const struct staging_config *c)
{
    return memory_rounded(pool_bytes(c)) + memory_rounded(n_pages(c) * sizeof(uint32_t));
}

static int number_pages(struct staging *s)
{
    size_t n = n_pages(&s->config);
    uint32_t *numbers = calloc(n, sizeof(*numbers));
    int r = numbers ? 0 : -ENOMEM;

    for (size_t i = 0; i < n && !r; i++) {
        numbers[i] = (uint32_t)i;
    }
    r = r ? r : s->config.ops->write(s->be, s->pages, numbers, n * sizeof(*numbers));
    r = r ? r : s->config.ops->sync(s->be);
    free(numbers);
    return r;
}

int staging_create(const struct staging_config *config, struct backend *be, struct staging **ret,
                   struct error *reterr)
{
    struct staging *s = calloc(1, sizeof(*s));
    void *p[2] = {NULL, NULL};
    int r;

    if (!s) {
        return error_set(reterr, -ENOMEM, "staging: no memory");
    }
    s->config = *config;
    s->be = be;
    r = config->ops->alloc(be, pool_bytes(config), "staging of pages on the host", &p[0], reterr);
    s->pool = p[0];
    r = r ? r
          : config->ops->alloc(be, n_pages(config) * sizeof(uint32_t), "staged pages", &p[1],
                               reterr);
    s->pages = p[1];
    if (!r) {
        r = number_pages(s);
        r = r ? error_set_errno(reterr, r, "staged pages") : 0;
    }
    if (r) {
        staging_destroy(s);
        return r;
    }
    *ret = s;
    return 0;
}

void staging_destroy(struct staging *s)
{
    if (!s) {
        return;
    }
    if (s->pool) {
        s->config.ops->free(s->be, s->pool, pool_bytes(&s->config));
    }
    if (s->pages) {
        s->config.ops->free(s->be, s->pages, n_pages(&s->config) * sizeof(uint32_t));
    }
    free(s);
}

struct ops_kv staging_view(const struct staging *s, int32_t turn, int32_t seq,
                           const struct ops_kv *home)
{
    size_t at = (size_t)turn * (size_t)s->config.n_seqs + (size_t)seq;

    return (struct ops_kv){
        .layout = home->layout,
        .pool = s->pool + at * s->config.seq_bytes,
        .pages = s->pages,
        .max_pages = s->config.max_pages,
        .center = home->center,
        .balance = home->balance,
        .carry = home->carry,
        .k_hadamard = home->k_hadamard,
        .v_hadamard = home->v_hadamard,
        .n_slots = home->n_slots,
    };
}
