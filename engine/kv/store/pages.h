/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_STORE_PAGES_H
#define PIPIT_ENGINE_KV_STORE_PAGES_H

/* One page class's slab: n_pages pages of one size in one piece of device memory.
 *
 * A page's life:
 *
 *      +------+  pages_take(principal)   +--------+  pages_ref   +------------+
 *      | free | -----------------------> | refs 1 | -----------> | refs 2, .. |
 *      +------+   (zeroed here when      +--------+ <----------- +------------+
 *         ^        its last holder was       |       pages_unref
 *         |        another principal)        |
 *         +----------------------------------+  pages_unref
 *
 * A page with more than one reference is read by several holders and written by none: a writer
 * takes a page of its own first, and copies (pages_own). Reservations are counted apart from pages:
 * who has reserved n may take n later without asking whether there are any. Of a page that is
 * shared by holders that may write (pages_share), all but one will need a copy at most, so each new
 * holder brings one reserved page along; what is left of them goes when holders go. A page that
 * nobody will write any more (full, of a policy that keeps all) is shared by pages_ref alone.
 *
 * Pages may lie in memory of the host that the device reaches (pages_create_mapped): then partial
 * keys lie apart, on the device, in pages of the same numbers.
 *
 * Creator: pages_create; freed by pages_destroy. One thread. */

#include "kernels/backend.h"

struct pages {
    const struct backend_ops *ops;
    struct backend *be;
    uint8_t *pool; /* device (n_pages, page_bytes) */
    uint64_t page_bytes;
    uint8_t *part; /* device (n_pages, part_bytes); NULL: pool is the device's */
    uint64_t part_bytes;
    uint32_t n_pages;
    uint32_t n_free;
    uint32_t n_reserved; /* reserved and not taken */
    uint32_t *free_list; /* (n_pages), the first n_free are free */
    uint16_t *refs;      /* (n_pages) */
    uint16_t *copies;    /* (n_pages) reserved for those who will write it; less than refs */
    uint64_t *principal; /* (n_pages) of the last holder */
    bool *used;          /* (n_pages) ever held */
    bool *kept;          /* (n_pages) one of its holders is the prefix cache, */
    uint32_t n_idle;     /* and these have no other */
};

int pages_create(const struct backend_ops *ops, struct backend *be, uint64_t page_bytes,
                 uint32_t n_pages, struct pages *ret, struct error *reterr) WARN_UNUSED;
int pages_create_mapped(const struct backend_ops *ops, struct backend *be, uint64_t page_bytes,
                        uint64_t part_bytes, uint32_t n_pages, struct pages *ret,
                        struct error *reterr) WARN_UNUSED;
void pages_destroy(struct pages *p); /* takes a zeroed struct */

/* Device and host bytes that pages_create takes, or, with partial keys apart, pages_create_mapped;
 * and the host's part of the latter. */
uint64_t pages_bytes(uint64_t page_bytes, uint64_t part_bytes, uint32_t n_pages);
uint64_t pages_mapped_bytes(uint64_t page_bytes, uint64_t part_bytes, uint32_t n_pages);

bool pages_reserve(struct pages *p, uint32_t n);
void pages_unreserve(struct pages *p, uint32_t n);
/* Out of the caller's reservation. */
int pages_take(struct pages *p, uint64_t principal, uint32_t *ret) WARN_UNUSED;
void pages_ref(struct pages *p, uint32_t page);
/* A new holder that may write, like those before it: one page of the caller's reservation becomes
 * the page's. */
void pages_share(struct pages *p, uint32_t page);
/* Before its holder writes: a shared page becomes a copy of its own. 1 when it did, 0 when nobody
 * shared it, or an error. */
int pages_own(struct pages *p, uint64_t principal, uint32_t *page) WARN_UNUSED;
/* The prefix cache becomes a holder of a page that has others, and ceases to be one. */
void pages_keep(struct pages *p, uint32_t page);
void pages_let_go(struct pages *p, uint32_t page);
/* Undoes a take: the page is free, and the caller's reservation has it again. */
void pages_put_back(struct pages *p, uint32_t *page);
/* Drops a reference; true when the page is free again. Makes *page UINT32_MAX. */
bool pages_unref(struct pages *p, uint32_t *page);

#endif
