/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_KERNELS_CHECK_KV_H
#define PIPIT_TESTS_KERNELS_CHECK_KV_H

/* A sequence's cache for the checks: scattered pages, one canonical content for all sides. Pages
 * are laid out by each backend in its own way, so the content goes in and out through kv_import and
 * kv_export. */

#include "tests/kernels/check.h"

struct check_kv {
    struct ops_kv_layout layout[CHECK_SIDES];
    struct check_buf *pool;
    struct check_buf *pages;
    struct check_buf *slot_pos; /* or NULL */
    struct check_buf *score;    /* or NULL */
    struct check_buf *skew;     /* random rotations where the layout has partial keys, or NULL */
    struct check_buf *center;   /* the caller's: (n_groups, k_heads, k_dim) f32, or NULL */
    struct check_buf *balance;  /* the same */
    struct check_buf *carry;    /* check_kv_carry()'s, or NULL */
    struct check_buf *latest;   /* check_kv_latest()'s, or NULL: ops_kv.latest */
    int32_t latest_from;
    bool k_hadamard; /* the caller's */
    bool v_hadamard;
    uint8_t *content; /* (n_groups, n_slots) canonical slots */
    uint8_t *back[2]; /* the same, as sides 0 and 1 left it: check_kv_export() */
    size_t slot_bytes;
    int32_t max_pages;
    int32_t cap;
    int32_t n_slots;
};

/* Room for cap slots, n_slots of them in use and filled with random K and V. The caller sets the
 * layout's heads, dims and types. `positions`: slot_pos is kept; here slot i holds position i. */
void check_kv_make(struct check *c, struct check_kv *kv, const struct ops_kv_layout *layout,
                   int32_t cap, int32_t n_slots, bool positions, bool scores);
/* Factors of K's dims, and of q's inverse: ops_kv.balance. */
void check_kv_balance(struct check *c, struct check_kv *kv);
/* ops_kv.carry, another one for each K head, small enough that no key grows without end. */
void check_kv_carry(struct check *c, struct check_kv *kv);
/* Entries of the latest tokens from position `from` on, with values of their own, for a layout that
 * has such. */
void check_kv_latest(struct check *c, struct check_kv *kv, int32_t from);
/* Positions in a random order over the slots, every seventh slot empty; the cache has positions. */
void check_kv_scatter(struct check *c, struct check_kv *kv);
void check_kv_free(struct check_kv *kv);

/* For the side being called; imports the content if this is the side's first call. */
struct ops_kv check_kv_of(struct check *c, const struct check_kv *kv);
/* After a call of sides 0 and 1: all slots of all groups into kv->back. */
void check_kv_export(struct check *c, struct check_kv *kv, int32_t n_slots);

/* f32 of one slot and head of canonical slots. */
void check_kv_decode_k(const struct check_kv *kv, const uint8_t *slots, int32_t group, int32_t slot,
                       int32_t head, float *ret);
void check_kv_decode_v(const struct check_kv *kv, const uint8_t *slots, int32_t group, int32_t slot,
                       int32_t head, float *ret);

/* The types that a backend may be asked for, n of them; it may refuse with -ENOTSUP. */
extern const struct check_kv_types {
    enum ops_kv_type k;
    enum ops_kv_type v;
} check_kv_types[];
extern const int check_kv_n_types;
/* Does the backend under test have this pair? */
bool check_kv_offered(struct check *c, struct ops_kv_layout *layout);

#endif
