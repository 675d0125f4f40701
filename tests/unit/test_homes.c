/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv/home/home.h: each row of the table alone, on caches of which a part has another home.
 * What is stored in a store's home comes back from it; a store's home follows the policy; sequences
 * do not see each other; and creation takes the bytes that are told. What the homes do at a step's
 * moments is tested where steps run (test_infinigen.c, test_tier.c). */

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"

enum { N_STORES = 4, CTX = 256, CHUNK = 64, N_SEQS = 2, HEADS = 2, DIM = 8, N = 100 };

static struct backend *be;
static struct backend_ops ops; /* ref's, with memory of the host apart */
static uint64_t taken;         /* bytes of the device and of the host's that are held */

static int alloc(struct backend *b, uint64_t bytes, const char *what, void **ret,
                 struct error *reterr)
{
    const struct backend_ops *ref;

    (void)b;
    (void)what;
    cr_assert_eq(backend_find("ref", &ref, reterr), 0);
    taken += bytes;
    return ref->alloc(be, bytes, what, ret, reterr);
}

static int alloc_mapped(struct backend *b, uint64_t bytes, const char *what, void **ret,
                        struct error *reterr)
{
    return alloc(b, bytes, what, ret, reterr);
}

static void free_mapped(struct backend *b, void *device, uint64_t bytes)
{
    ops.free(b, device, bytes);
}

static int bring(struct backend *b, const struct ops_bring *p)
{
    (void)b;
    (void)p;
    return -ENOTSUP; /* no step is run here */
}

/* ref has partial keys in the page alone; these pages have room for both. */
static int kv_layout(struct ops_kv_layout *l, struct error *reterr)
{
    const struct backend_ops *ref;
    bool apart = l->part_apart;
    int r = backend_find("ref", &ref, reterr);

    l->part_apart = false;
    r = r ? r : ref->kv_layout(l, reterr);
    l->part_apart = apart;
    l->part_bytes = apart ? (uint64_t)(OPS_PAGE_SLOTS * l->k_heads) * ops_kv_part_bytes(l) : 0;
    return r;
}

static struct cache *make(const char *kv)
{
    static struct geometry_store stores[N_STORES];
    static float rotation[HEADS * DIM * DIM];
    static const struct ops_weight skew = {
        .device = rotation, .n_rows = HEADS * DIM, .n_cols = DIM};
    struct backend_config config = {.n_threads = 1};
    struct backend_limits limits = {.max_rows = CHUNK,
                                    .max_decode = N_SEQS,
                                    .max_seqs = N_SEQS,
                                    .max_heads = HEADS,
                                    .max_head_dim = DIM,
                                    .max_slots = CTX,
                                    .select = true};
    struct geometry_config s = {.ops = &ops,
                                .stores = stores,
                                .n_stores = N_STORES,
                                .ctx = CTX,
                                .n_seqs = N_SEQS,
                                .max_chunk = CHUNK,
                                .n_q = HEADS,
                                .hidden_bytes = 16,
                                .tier_dir = "/tmp"};
    const struct backend_ops *ref;
    struct geometry geometry;
    struct cache *c = NULL;
    struct error e = {0};

    for (int32_t i = 0; i < N_STORES; i++) {
        stores[i] = (struct geometry_store){.layer = i,
                                            .n_k = HEADS,
                                            .n_v = HEADS,
                                            .k_dim = DIM,
                                            .v_dim = DIM,
                                            .skew = i >= 2 ? &skew : NULL,
                                            .columns = i >= 2 ? &skew : NULL};
    }
    cr_assert_eq(backend_find("ref", &ref, &e), 0);
    ops = *ref;
    ops.alloc = alloc;
    ops.alloc_mapped = alloc_mapped;
    ops.free_mapped = free_mapped;
    ops.bring = bring;
    ops.kv_layout = kv_layout;
    cr_assert_eq(ref->create(&config, &be, &e), 0, "%s", e.text);
    cr_assert_eq(ref->reserve(be, &limits, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse_mix(kv, &s.mix, &e), 0, "%s: %s", kv, e.text);
    cr_assert_eq(geometry_make(&s, &geometry, &e), 0, "%s: %s", kv, e.text);
    taken = 0;
    cr_assert_eq(kv_create(&geometry, be, &c, &e), 0, "%s: %s", kv, e.text);
    return c;
}

static void finish(struct cache *c)
{
    kv_destroy(c);
    ops.destroy(be);
}

static int admit(struct cache *c)
{
    const struct geometry_text text = {.n_prompt = N, .n_tokens = CTX};
    struct policy p = c->geometry.config.mix.part[0].policy;
    int seq = kv_admit(c, &p, 1, &text, NULL, 0);

    cr_assert_geq(seq, 0);
    cr_assert_eq(cache_refill(c, seq, N, NULL, NULL, 0), 0);
    return seq;
}

/* What slot `slot` of a group has, in canonical form. */
static void content(const struct ops_kv_layout *l, int seq, int32_t store, int32_t group,
                    int32_t slot, uint8_t *ret)
{
    float *x = (float *)(void *)ret;

    for (size_t i = 0; i < ops_kv_slot_bytes(l) / sizeof(float); i++) {
        x[i] = (float)(seq * 7 + store) + (float)group / 8 + (float)slot / 1024 + (float)i;
    }
}

/* Fills a store as a snapshot is loaded. */
static void fill(struct cache *c, int seq, int32_t store)
{
    const struct home_ops *home = home_of(c, seq, store);
    struct ops_kv kv = cache_store_kv(c, seq, store);
    struct ops_kv_layout bare = *kv.layout;
    size_t bytes;
    uint8_t *all;

    bare.part_dims = 0;
    bytes = ops_kv_slot_bytes(&bare);
    all = malloc(N * bytes);
    for (int32_t g = 0; g < kv.layout->n_groups; g++) {
        for (int32_t i = 0; i < N; i++) {
            content(&bare, seq, store, g, i, all + (size_t)i * bytes);
        }
        cr_assert_eq(
            ops.kv_import(be,
                          &(struct ops_kv_slots){.kv = &kv, .group = g, .n_slots = N, .host = all}),
            0);
    }
    for (int32_t at = 0; home->keep && at < N; at += CHUNK) {
        cr_assert_eq(home->keep(c, seq, store, at, N - at < CHUNK ? N - at : CHUNK), 0);
    }
    free(all);
}

static void expect(struct cache *c, int seq, int32_t store)
{
    const struct home_ops *home = home_of(c, seq, store);
    struct ops_kv_layout bare = *cache_store_kv(c, seq, store).layout;
    size_t bytes;
    uint8_t *got;
    uint8_t want[1024];

    bare.part_dims = 0;
    bytes = ops_kv_slot_bytes(&bare);
    got = malloc(N * bytes);
    for (int32_t g = 0; g < bare.n_groups; g++) {
        memset(got, 0xee, N * bytes);
        cr_assert_eq(home->export(c, seq, store, g, 0, 33, got), 0);
        cr_assert_eq(home->export(c, seq, store, g, 33, N - 33, got + 33 * bytes), 0);
        for (int32_t i = 0; i < N; i++) {
            content(&bare, seq, store, g, i, want);
            cr_assert_arr_eq(got + (size_t)i * bytes, want, bytes, "sequence %d, store %d, slot %d",
                             seq, store, i);
        }
    }
    free(got);
}

static void check(const char *kv, const struct home_ops *const want[N_STORES])
{
    struct cache *c = make(kv);
    uint64_t told = home_bytes(&c->geometry);
    int seqs[N_SEQS];

    cr_assert_gt(told, 0);
    cr_assert_leq(taken, cache_bytes(&c->geometry), "%s: more is taken than told", kv);
    if (want[N_STORES - 1] != &home_disk) { /* whose buffers are not the backend's */
        cr_assert_leq(told - taken, 1024,
                      "%s: pages of %" PRIu64 " bytes are told, %" PRIu64 " taken", kv, told,
                      taken);
    }
    for (int k = 0; k < N_SEQS; k++) {
        seqs[k] = admit(c);
        for (int32_t i = 0; i < N_STORES; i++) {
            cr_assert_eq(home_of(c, seqs[k], i), want[i], "%s, store %d", kv, i);
        }
    }
    for (int32_t i = 0; i < N_STORES; i++) { /* of a file, stores are loaded one after the other */
        for (int k = 0; k < N_SEQS; k++) {
            fill(c, seqs[k], i);
        }
    }
    for (int k = 0; k < N_SEQS; k++) {
        home_save_begin(c, seqs[k]);
        for (int32_t i = 0; i < N_STORES; i++) {
            expect(c, seqs[k], i);
        }
        home_save_end(c, seqs[k]);
        cr_assert_eq(home_failed(c, seqs[k], NULL), 0);
    }
    kv_release(c, seqs[0]);
    seqs[0] = admit(c); /* its pages and its place in the file are free again */
    fill(c, seqs[0], 0);
    fill(c, seqs[0], 3);
    home_save_begin(c, seqs[1]);
    expect(c, seqs[1], 3);
    home_save_end(c, seqs[1]);
    finish(c);
}

Test(homes, pages_of_the_device)
{
    check("f32",
          (const struct home_ops *const[]){&home_device, &home_device, &home_device, &home_device});
}

Test(homes, pages_of_the_host_from_the_third_layer_on)
{
    check("f32+infinigen:count=8,pool=host",
          (const struct home_ops *const[]){&home_device, &home_device, &home_host, &home_host});
}

Test(homes, a_file_from_the_third_layer_on)
{
    check("f32+infinigen:count=8,pool=disk",
          (const struct home_ops *const[]){&home_device, &home_device, &home_disk, &home_disk});
}

/* A home that a plan does not need takes nothing; one without its directory says so. */
Test(homes, what_is_not_needed_is_not_there)
{
    struct cache *c = make("f32");
    struct geometry g;
    struct geometry_config s = c->geometry.config;
    struct cache *none = NULL;
    struct error e = {0};

    cr_assert_null(c->tier);
    cr_assert_null(c->staging);
    cr_assert_eq(home_host.bytes(&c->geometry), 0);
    cr_assert_eq(home_disk.bytes(&c->geometry), 0);
    cr_assert_eq(home_bytes(&c->geometry), home_device.bytes(&c->geometry));
    s.tier_dir = NULL;
    cr_assert_eq(policy_parse_mix("f32+infinigen:count=8,pool=disk", &s.mix, &e), 0);
    cr_assert_eq(geometry_make(&s, &g, &e), 0, "%s", e.text);
    cr_assert_eq(kv_create(&g, be, &none, &e), -EINVAL);
    cr_assert(strstr(e.text, "--tier-dir"), "%s", e.text);
    finish(c);
}
