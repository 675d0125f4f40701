/* SPDX-License-Identifier: Apache-2.0 */
/* Stores whose pages lie in the host's memory (pool=host), as the forward pass meets them.
 *
 * Behind layer i - 1's attention layer i's K and V begin to come to the device (kv/home/staging.h),
 * beside the products up to layer i's attention, which waits for them and for nothing brought
 * later: of decode rows that choose, what was predicted, in the order of the list; of all others
 * the whole store. New rows are stored at home and once more in staging: behind the list, or at
 * their own slot. Deep stores (SwiftKV) have their new rows at home before anything is brought, and
 * get them brought with the rest; the first of them is brought behind the split.
 *
 * Consecutive stores take turns by parity. Staging of turn t is free when layer i's is brought:
 * attention of the store before last, which read it, came before layer i's choice. All layers of an
 * AcrossKV group find what their first one brought. */

#include "engine/model/forward_layer.h"

static bool on_host(const struct forward *f, const struct ops_seq *s)
{
    return f->b.staging && s->n_rows > 0 && s->kv.layout->part_apart;
}

static bool lists(const struct forward *f, int32_t seq, const struct ops_seq *s)
{
    return f->b.select && f->b.select[seq].kind == OPS_SELECT_GIVEN && s->row0 < f->rows.n_decode;
}

int forward_host_bring(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    int32_t turn = l->store & 1;
    struct ops_bring p = {.seqs = f->brings, .chosen = &f->chosen[turn]};

    if (!f->b.staging) {
        return 0;
    }
    forward_take_seqs(f, l->store);
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->seqs[i];
        bool some = lists(f, i, s);
        struct ops_bring_seq b = {
            .from = s->kv,
            .to = staging_view(f->b.staging, turn, i, &s->kv),
            .listed = some,
            .entry = i,
            .own = some && l->deep ? s->slot0 : -1,
            .n = some || l->deep ? s->kv.n_slots : s->slot0,
        };

        if (on_host(f, s) && b.n > 0) {
            f->brings[p.n_seqs++] = b;
        }
    }
    return p.n_seqs ? f->ops->bring(f->be, &p) : 0;
}

int forward_host_store(struct forward *f, int32_t layer, const struct ops_rope_store *home)
{
    const struct model_layer *l = &f->m->layers[layer];
    int32_t turn = l->store & 1;
    const struct ops_chosen *c = &f->chosen[turn];
    struct ops_rope_store p = *home;
    int r = 0;

    if (!f->b.staging || l->deep) {
        return 0;
    }
    p.n_q = 0;
    p.seqs = f->seqs;
    p.n_seqs = 0;
    forward_take_seqs(f, l->store);
    for (int32_t i = 0; i <= f->b.n_seqs && !r; i++) {
        struct ops_seq s = i < f->b.n_seqs ? f->seqs[i] : (struct ops_seq){.n_rows = 1};

        if (i < f->b.n_seqs && on_host(f, &s)) {
            s.kv = staging_view(f->b.staging, turn, i, &s.kv);
            s.victim = lists(f, i, &s) ? c->own + i * c->max_groups : NULL;
            f->seqs[p.n_seqs++] = s;
        } else if (p.n_seqs > 0 && s.n_rows > 0) { /* the end of rows that lie together */
            r = f->ops->rope_store(f->be, &p);
            p.n_seqs = 0;
        }
    }
    return r;
}

void forward_host_attend(struct forward *f, int32_t layer, struct ops_attention *p)
{
    int32_t turn = f->m->layers[layer].store & 1;

    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        struct ops_kv *kv = &f->seqs[i].kv;

        if (!on_host(f, &f->seqs[i])) {
            continue;
        }
        f->staged[i] = staging_view(f->b.staging, turn, i, kv);
        p->joins = true;
        if (p->select && lists(f, i, &f->seqs[i])) {
            f->select[i].staged = &f->staged[i];
        } else {
            kv->pool = f->staged[i].pool;
            kv->pages = f->staged[i].pages;
            kv->max_pages = f->staged[i].max_pages;
            kv->part = NULL;
        }
    }
}
