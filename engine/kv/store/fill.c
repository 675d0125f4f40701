/* SPDX-License-Identifier: Apache-2.0 */
/* One page of random slots is encoded and imported into every page of a group, the same for all.
 * Slots hold the latest positions; scores are random, so that victims lie anywhere. Recurrent
 * states are zeros. */

#include "engine/kv/seq/cache_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/kv_code.h"

enum { MAX_HEAD_DIM = 1024 };

struct filler {
    struct cache *c;
    uint64_t seed;
    uint32_t n_drawn;
    uint8_t *page; /* (OPS_PAGE_SLOTS, slot_bytes) canonical */
    int32_t *pos;  /* (most slots) */
    float *score;  /* (most slots) */
};

static float draw(struct filler *f)
{
    uint32_t out[4];

    rng_philox(rng_key_make(f->seed), (uint32_t[4]){f->n_drawn++, 0, 0, 0}, out);
    return rng_uniform(out[0]);
}

/* The heads of one side of a slot; their scales lie behind the elements of both sides. */
static void encode_heads(struct filler *f, enum ops_kv_type type, int32_t n_heads, int32_t dim,
                         uint8_t **at, uint8_t **scale_at)
{
    float head[MAX_HEAD_DIM];

    for (int32_t h = 0; h < n_heads; h++) {
        uint16_t scale = 0;

        for (int32_t i = 0; i < dim; i++) {
            head[i] = 2 * draw(f) - 1;
        }
        kv_code_encode(type, head, *at, &scale, dim);
        *at += ops_kv_type_bytes(type, dim);
        memcpy(*scale_at, &scale, (size_t)ops_kv_scale_bytes(type));
        *scale_at += ops_kv_scale_bytes(type);
    }
}

static void make_page(struct filler *f, const struct ops_kv_layout *l)
{
    uint64_t elements = (uint64_t)l->k_heads * ops_kv_type_bytes(l->k_type, l->k_dim) +
                        (uint64_t)l->v_heads * ops_kv_type_bytes(l->v_type, l->v_dim);

    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        uint8_t *at = f->page + (uint64_t)i * ops_kv_slot_bytes(l);
        uint8_t *scale_at = at + elements;

        encode_heads(f, l->k_type, l->k_heads, l->k_dim, &at, &scale_at);
        encode_heads(f, l->v_type, l->v_heads, l->v_dim, &at, &scale_at);
    }
}

static int fill_group(struct filler *f, const struct ops_kv *kv, int32_t group, int32_t n_slots)
{
    const struct backend_ops *ops = f->c->geometry.config.ops;
    size_t at = (size_t)group * (size_t)kv->cap;
    int r = 0;

    for (int32_t s = 0; !r && s < n_slots; s += OPS_PAGE_SLOTS) {
        struct ops_kv_slots slots = {
            .kv = kv,
            .group = group,
            .slot0 = s,
            .n_slots = n_slots - s < OPS_PAGE_SLOTS ? n_slots - s : OPS_PAGE_SLOTS,
            .host = f->page,
        };

        r = ops->kv_import(f->c->be, &slots);
    }
    if (!r && kv->slot_pos) {
        r = ops->write(f->c->be, kv->slot_pos + at, f->pos, (uint64_t)n_slots * sizeof(*f->pos));
    }
    if (!r && kv->score) {
        for (int32_t s = 0; s < n_slots; s++) {
            f->score[s] = draw(f);
        }
        r = ops->write(f->c->be, kv->score + at, f->score, (uint64_t)n_slots * sizeof(*f->score));
    }
    return r;
}

static int zero_state(struct filler *f, int32_t seq, int32_t store)
{
    const struct geometry *s = &f->c->geometry;
    const struct cache_seq *q = &f->c->seqs[seq];

    return s->config.ops->zero(f->c->be, cache_state_page(f->c, q, store, 0),
                               geometry_layout(s, q->variant, store)->page_bytes);
}

static int fill_store(struct filler *f, int32_t seq, int32_t store)
{
    struct ops_kv kv = cache_store_kv(f->c, seq, store);
    int32_t n_tokens = f->c->seqs[seq].n_tokens;
    int32_t n_slots = cache_store_slots(f->c, seq, store);
    int32_t ring = f->c->geometry.arrays[store].ring;
    int r = 0;

    for (int32_t s = 0; s < n_slots; s++) {
        int32_t latest = n_tokens - 1;

        /* In a ring slot s holds the latest position that is s modulo its size. */
        f->pos[s] = ring ? latest - (latest - s) % ring : n_tokens - n_slots + s;
    }
    make_page(f, kv.layout);
    for (int32_t g = 0; !r && g < kv.layout->n_groups; g++) {
        r = fill_group(f, &kv, g, n_slots);
    }
    return r;
}

int kv_fill(struct cache *c, int32_t seq)
{
    const struct cache_seq *q = &c->seqs[seq];
    int32_t n = q->n_prompt;
    uint64_t slot_bytes = 1;
    struct filler f = {.c = c, .seed = 1};
    int r = cache_refill(c, seq, n, NULL, NULL, 0);

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        uint64_t b = ops_kv_slot_bytes(geometry_layout(&c->geometry, q->variant, i));

        slot_bytes = b > slot_bytes ? b : slot_bytes;
    }
    f.page = malloc((size_t)slot_bytes * OPS_PAGE_SLOTS);
    f.pos = calloc((size_t)n, sizeof(*f.pos));
    f.score = calloc((size_t)n, sizeof(*f.score));
    if (!f.page || !f.pos || !f.score) {
        r = -ENOMEM;
    }
    for (int32_t i = 0; !r && i < c->geometry.config.n_stores; i++) {
        r = c->geometry.arrays[i].kind->state ? zero_state(&f, seq, i) : fill_store(&f, seq, i);
    }
    free(f.score);
    free(f.pos);
    free(f.page);
    return r;
}
