/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_HOME_H
#define PIPIT_ENGINE_KV_HOME_HOME_H

/* Where K and V of a store are: in pages of the device (device.c), in pages of the host's memory
 * (host.c), or in a file (disk.c). Each home is a row of one table. A sequence's policy says which
 * of its stores have which home; the rest of the cache does not ask. */

#include "engine/kv/seq/step.h"

/* A step calls every home at these moments of a layer; a home acts on its own stores. */
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

/* NULL: nothing to do. */
struct home_ops {
    uint64_t (*bytes)(const struct geometry *s); /* that create() takes, of device and host */
    int (*create)(struct cache *c, struct error *reterr);
    void (*destroy)(struct cache *c); /* also what was half created */
    /* A sequence under a policy of this home begins; ends. */
    void (*admit)(struct cache *c, int32_t seq, const struct geometry_text *text);
    void (*release)(struct cache *c, int32_t seq);
    /* Has something of it been lost? A negative errno, and the cause. */
    int (*failed)(const struct cache *c, int32_t seq, struct error *ret);
    /* Layout, pool and pages of a store of this home, as the backend sees them. */
    void (*attach)(const struct cache *c, int32_t seq, int32_t store, struct ops_kv *kv);

    void (*begin)(struct cache *c); /* a step begins; another may have been given up */
    home_fn *at[HOME_N_MOMENTS];

    /* Snapshots of a sequence at rest, from begin to end: slots [slot0, slot0 + n) of a group in
     * canonical form; would export() wait for slots up to this one? */
    void (*save_begin)(struct cache *c, int32_t seq);
    bool (*save_waits)(struct cache *c, int32_t seq, int32_t store, int32_t slot);
    int (*export)(struct cache *c, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                  int32_t n, void *to);
    void (*save_end)(struct cache *c, int32_t seq);
    /* Slots [slot0, slot0 + n) of all groups were imported. */
    int (*keep)(struct cache *c, int32_t seq, int32_t store, int32_t slot0, int32_t n);
};

extern const struct home_ops home_device;
extern const struct home_ops home_host;
extern const struct home_ops home_disk;

/* The home of a store of a sequence. */
const struct home_ops *home_of(const struct cache *c, int32_t seq, int32_t store);

/* Every home in turn; as long as none fails. */
uint64_t home_bytes(const struct geometry *s);
int home_create(struct cache *c, struct error *reterr) WARN_UNUSED;
void home_destroy(struct cache *c);
void home_admit(struct cache *c, int32_t seq, const struct geometry_text *text);
void home_release(struct cache *c, int32_t seq);
int home_failed(const struct cache *c, int32_t seq, struct error *ret);
void home_begin(struct cache *c);
int home_at(struct cache *c, enum home_moment moment, const struct kv_args *args) WARN_UNUSED;
void home_save_begin(struct cache *c, int32_t seq);
void home_save_end(struct cache *c, int32_t seq);

/* device.c, for homes that have pages: the classes with pages on the device, or on the host. */
uint64_t home_pages_bytes(const struct geometry *s, bool on_host);
int home_pages_create(struct cache *c, bool on_host, struct error *reterr) WARN_UNUSED;
void home_pages_destroy(struct cache *c, bool on_host);
void home_pages_attach(const struct cache *c, int32_t seq, int32_t store, struct ops_kv *kv);
int home_pages_export(struct cache *c, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                      int32_t n, void *to);

#endif
