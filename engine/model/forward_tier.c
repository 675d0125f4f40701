/* SPDX-License-Identifier: Apache-2.0 */
/* Stores whose K and V lie in a file (engine/kv/home/tier.h), as the forward pass meets them.
 *
 * Layer i - 1 asks for layer i's store, then lands its own: so reading overlaps with everything
 * from layer i - 1's landing to layer i's projections, and the disk need not rest in between.
 * Decode rows read what was predicted; rows of a prompt, and of a policy that reads all, everything
 * before them.
 *
 * Deep stores are written at SwiftKV's split, all in a row, through the same staging store; so when
 * a deep layer's turn comes its new rows are not there any more, and land with the others. Of a
 * prompt only sequences of which rows go on read deep stores at all. Layers of an AcrossKV group
 * read what its first one landed: nothing else lands until the group is through. */

#include "engine/model/forward_impl.h"

static int32_t disk_store(const struct forward *f, int32_t seq, int32_t store)
{
    return f->b.tier ? f->b.on_disk[store * f->b.stride + seq] : -1;
}

/* Does any row of it read the store? */
static bool reads(const struct forward *f, int32_t seq, int32_t store)
{
    return !f->m->stores[store].deep || !f->b.keep || f->b.keep[seq] > 0;
}

int forward_tier_land(struct forward *f, int32_t layer)
{
    int32_t store = f->m->layers[layer].store;

    for (int32_t i = 0; f->m->stores[store].deep && i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->b.seqs[store * f->b.stride + i];

        if (disk_store(f, i, store) >= 0 && reads(f, i, store)) {
            tier_fetch(f->b.tier, f->b.seats[i], disk_store(f, i, store), s->slot0,
                       s->slot0 + s->n_rows, NULL, 0);
        }
    }
    for (int32_t i = 0; f->b.tier && i < f->b.n_seqs; i++) {
        if (disk_store(f, i, store) >= 0) {
            return tier_land(f->b.tier, disk_store(f, i, store)); /* of all of them */
        }
    }
    return 0;
}

void forward_tier_parts(struct forward *f, int32_t store)
{
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        if (disk_store(f, i, store) >= 0) {
            tier_part_view(f->b.tier, f->b.seats[i], disk_store(f, i, store), &f->seqs[i].kv);
        }
    }
}

void forward_tier_fetch(struct forward *f, int32_t store, const struct ops_chosen *chosen)
{
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->b.seqs[store * f->b.stride + i];
        bool some =
            s->row0 < f->b.rows.n_decode && f->b.select && f->b.select[i].kind == OPS_SELECT_GIVEN;

        if (disk_store(f, i, store) >= 0 && s->pos0 > 0 && reads(f, i, store)) {
            tier_fetch(f->b.tier, f->b.seats[i], disk_store(f, i, store), 0, s->pos0,
                       some ? chosen : NULL, i);
        }
    }
}

int forward_tier_open(struct forward *f, int32_t store)
{
    int r = 0;

    for (int32_t i = 0; !r && i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->b.seqs[store * f->b.stride + i];

        if (disk_store(f, i, store) >= 0) {
            r = tier_open(f->b.tier, f->b.seats[i], disk_store(f, i, store), s->slot0);
        }
    }
    return r;
}

int forward_tier_keep(struct forward *f, int32_t store)
{
    int r = 0;

    for (int32_t i = 0; !r && i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->b.seqs[store * f->b.stride + i];

        if (disk_store(f, i, store) >= 0) {
            r = tier_keep(f->b.tier, f->b.seats[i], disk_store(f, i, store), s->slot0, s->n_rows);
        }
    }
    return r;
}
