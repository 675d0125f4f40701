/* SPDX-License-Identifier: Apache-2.0 */
/* The table of homes. */

#include "engine/kv/home/home.h"

#include "engine/kv/seq/cache.h"

enum { N_HOMES = 3 };

static const struct home_ops *const homes[N_HOMES] = {&home_device, &home_host, &home_disk};

const struct home_ops *home_of(const struct cache *c, int32_t seq, int32_t store)
{
    const struct cache_seq *q = &c->seqs[seq];

    return geometry_on_disk(&c->geometry, &q->policy, store) >= 0         ? &home_disk
           : geometry_layout(&c->geometry, q->variant, store)->part_apart ? &home_host
                                                                          : &home_device;
}

uint64_t home_bytes(const struct geometry *s)
{
    uint64_t n = 0;

    for (int i = 0; i < N_HOMES; i++) {
        n += homes[i]->bytes(s);
    }
    return n;
}

int home_create(struct cache *c, struct error *reterr)
{
    int r = 0;

    for (int i = 0; !r && i < N_HOMES; i++) {
        r = homes[i]->create(c, reterr);
    }
    return r;
}

void home_destroy(struct cache *c)
{
    for (int i = N_HOMES - 1; i >= 0; i--) {
        homes[i]->destroy(c);
    }
}

void home_admit(struct cache *c, int32_t seq, const struct geometry_text *text)
{
    for (int i = 0; i < N_HOMES; i++) {
        if (homes[i]->admit) {
            homes[i]->admit(c, seq, text);
        }
    }
}

void home_release(struct cache *c, int32_t seq)
{
    for (int i = 0; i < N_HOMES; i++) {
        if (homes[i]->release) {
            homes[i]->release(c, seq);
        }
    }
}

int home_failed(const struct cache *c, int32_t seq, struct error *ret)
{
    int r = 0;

    for (int i = 0; !r && i < N_HOMES; i++) {
        r = homes[i]->failed ? homes[i]->failed(c, seq, ret) : 0;
    }
    return r;
}

void home_begin(struct cache *c)
{
    for (int i = 0; i < N_HOMES; i++) {
        if (homes[i]->begin) {
            homes[i]->begin(c);
        }
    }
}

int home_at(struct cache *c, enum home_moment moment, const struct kv_args *args)
{
    int r = 0;

    for (int i = 0; !r && i < N_HOMES; i++) {
        r = homes[i]->at[moment] ? homes[i]->at[moment](c, args) : 0;
    }
    return r;
}

void home_save_begin(struct cache *c, int32_t seq)
{
    for (int i = 0; i < N_HOMES; i++) {
        if (homes[i]->save_begin) {
            homes[i]->save_begin(c, seq);
        }
    }
}

void home_save_end(struct cache *c, int32_t seq)
{
    for (int i = 0; i < N_HOMES; i++) {
        if (homes[i]->save_end) {
            homes[i]->save_end(c, seq);
        }
    }
}
