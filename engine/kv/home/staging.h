/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_STAGING_H
#define PIPIT_ENGINE_KV_HOME_STAGING_H

/* Where K and V of pool=host are read: pages of the device for one store of every sequence of a
 * batch, twice, since a layer's are brought while the layer before reads its own. Stores take turns
 * by their parity, as the lists of what to bring do (forward_predict.c).
 *
 * Page g * max_pages + i of a sequence holds slots [64 i, 64 i + 64) of group g: of the list, for
 * rows that read some slots, or of the whole store, for a prompt's.
 *
 * Batches of the step have it (sched/batch.c). A pass that is given none reads pages on the host
 * where they lie, over the bus, and is right, but slow: none does today. Units of a prompt beside a
 * step (sched/prompt.c) are not for backends that have such pages, and prompts that are read layer
 * by layer whole are those of policies that evict, which pool=host is not for.
 *
 * Creator: staging_create; freed by staging_destroy. One thread. */

#include "base/error.h"
#include "kernels/backend.h"

struct staging_config {
    const struct backend_ops *ops;
    int32_t n_seqs; /* of a batch */
    int32_t max_groups;
    int32_t max_pages;  /* of one group: the whole context */
    uint64_t seq_bytes; /* of the largest store */
};

struct staging {
    struct staging_config config;
    struct backend *be;
    uint8_t *pool;   /* device (2, n_seqs, seq_bytes) */
    uint32_t *pages; /* device (max_groups * max_pages): 0, 1, 2, ... */
};

uint64_t staging_bytes(const struct staging_config *c);
int staging_create(const struct staging_config *config, struct backend *be, struct staging **ret,
                   struct error *reterr) WARN_UNUSED;
void staging_destroy(struct staging *s); /* takes NULL */

/* Of a sequence of the batch: slots in `turn`, without positions, scores or partial keys. */
struct ops_kv staging_view(const struct staging *s, int32_t turn, int32_t seq,
                           const struct ops_kv *home);

#endif
