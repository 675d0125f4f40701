/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_PLAN_GEOMETRY_IMPL_H
#define PIPIT_ENGINE_KV_PLAN_GEOMETRY_IMPL_H

/* What the files of the geometry share. Private to geometry*.c, which fill a struct geometry in
 * this order: selection, classes, arrays, homes, pages. */

#include "engine/kv/plan/geometry.h"

static inline int32_t geometry_pages_of(int32_t slots)
{
    return (int32_t)(((int64_t)slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
}

/* Head groups of a store: each has its own pages, positions and scores. */
int32_t geometry_groups(const struct geometry_store *st);

int geometry_lay_select(struct geometry *s, struct error *reterr) WARN_UNUSED;
int geometry_lay_classes(struct geometry *s, struct error *reterr) WARN_UNUSED;
void geometry_lay_arrays(struct geometry *s);
int geometry_lay_homes(struct geometry *s, struct error *reterr) WARN_UNUSED;
int geometry_lay_pages(struct geometry *s, struct error *reterr) WARN_UNUSED;

#endif
