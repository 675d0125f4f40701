/* SPDX-License-Identifier: Apache-2.0 */
/* Making a geometry: the order of its parts, each of which is a file (geometry_impl.h). */

#include "engine/kv/plan/geometry_impl.h"

#include <errno.h>
#include <stdlib.h>

int geometry_make(const struct geometry_config *config, struct geometry *ret, struct error *reterr)
{
    struct geometry s = {.config = *config};
    size_t n = (size_t)config->mix.n * (size_t)config->n_stores;
    int r;

    s.layouts = calloc(n, sizeof(*s.layouts));
    s.class_of = calloc(n, sizeof(*s.class_of));
    s.arrays = calloc((size_t)config->n_stores, sizeof(*s.arrays));
    if (!s.layouts || !s.class_of || !s.arrays) {
        r = error_set(reterr, -ENOMEM, "cache: no memory for its geometry");
        goto fail;
    }
    for (int32_t i = 0; i < config->n_stores; i++) {
        const struct geometry_store *st = &config->stores[i];
        struct geometry_arrays *a = &s.arrays[i];

        a->n_groups = geometry_groups(st);
        a->kind = store_kind_of(st, config->ctx, config->max_chunk, &a->ring);
        a->max_pages = geometry_pages_of(a->kind->slots(a, config->ctx));
        s.n_states += a->kind->state;
        s.full_token_bytes +=
            2 * ((uint64_t)st->n_k * (uint64_t)st->k_dim + (uint64_t)st->n_v * (uint64_t)st->v_dim);
    }
    r = geometry_lay_select(&s, reterr);
    if (!r) {
        r = geometry_lay_classes(&s, reterr);
    }
    if (!r) {
        geometry_lay_arrays(&s);
        r = geometry_lay_homes(&s, reterr);
    }
    if (!r) {
        r = geometry_lay_pages(&s, reterr);
    }
    if (r) {
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    geometry_finish(&s);
    return r;
}

bool geometry_keeps_prefixes(const struct geometry *s)
{
    bool keeps = s->config.keep_prefixes;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        keeps = keeps && s->arrays[i].kind->keeps != STORE_KEEPS_NOTHING;
    }
    return keeps;
}

void geometry_finish(struct geometry *s)
{
    free(s->arrays);
    free(s->class_of);
    free(s->layouts);
    *s = (struct geometry){0};
}
