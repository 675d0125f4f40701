/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_HOME_H
#define PIPIT_ENGINE_KV_HOME_HOME_H

/* Where K and V of a store lie: in pages of the device, in pages of the host's memory (host.c), or
 * in a file (disk.c). A sequence's policy says which of its stores have which home; the rest of the
 * cache does not ask. A step calls each home at the same moments of a layer, and a home acts on its
 * own stores. */

#include "engine/kv/seq/step.h"

enum home_moment {
    HOME_BEFORE_RANK,   /* slots will be ranked: partial keys become the taken sequences' */
    HOME_PREDICTED,     /* the slots that will be read are predicted, or all are read */
    HOME_FETCH,         /* the layer before has attended */
    HOME_LAND,          /* what is on its way must be there */
    HOME_BEFORE_STORE,  /* new rows are about to be written, */
    HOME_AFTER_STORE,   /* and have been */
    HOME_BEFORE_ATTEND, /* the taken sequences, and args->attend, come to say where K and V are */
    HOME_N_MOMENTS,
};

typedef int home_fn(struct cache *c, const struct kv_args *args);

struct home_ops {
    void (*begin)(struct cache *c); /* a step begins; another may have been given up */
    home_fn *at[HOME_N_MOMENTS];    /* NULL: nothing to do */
};

/* Every home in turn; a moment of a layer only as long as none fails. */
void home_begin(struct cache *c);
int home_at(struct cache *c, enum home_moment moment, const struct kv_args *args) WARN_UNUSED;

extern const struct home_ops home_host;
extern const struct home_ops home_disk;

#endif
