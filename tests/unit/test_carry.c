/* SPDX-License-Identifier: Apache-2.0 */
/* Keys rounded for their queries: the sum over errors falls, what an overlay brings is what a cache
 * does, and what is no mean of q q^T is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "engine/kv/plan/plan.h"
#include "gguf/gguf.h"
#include "kernels/kv_code.h"
#include "kernels/kv_round.h"
#include "tests/unit/engine_run.h"

enum { D = 64, N_KEYS = 200, N_PROMPT = 60, N_NEW = 12 };

static uint32_t seed = 7;

static float normal(void)
{
    float sum = -6;

    for (int i = 0; i < 12; i++) {
        seed = seed * 1664525 + 1013904223;
        sum += (float)(seed >> 8) / (float)(1 << 24);
    }
    return sum;
}

/* The mean of q q^T: all dims a little, one direction much. */
static void make_mean(double c[D][D])
{
    float direction[D];

    for (int i = 0; i < D; i++) {
        direction[i] = normal();
    }
    for (int i = 0; i < D; i++) {
        for (int j = 0; j < D; j++) {
            c[i][j] = 3 * (double)direction[i] * (double)direction[j] + (i == j);
        }
    }
}

/* Row i: the regression of dim i on those before it, by elimination. */
static void make_carry(double c[D][D], float *ret)
{
    memset(ret, 0, sizeof(float) * D * D);
    for (int i = 1; i < D; i++) {
        double a[D][D + 1];

        for (int r = 0; r < i; r++) {
            memcpy(a[r], c[r], sizeof(double) * (size_t)i);
            a[r][i] = c[r][i];
        }
        for (int p = 0; p < i; p++) {
            for (int r = 0; r < i; r++) {
                double f = r == p ? 0 : a[r][p] / a[p][p];

                for (int k = p; k <= i; k++) {
                    a[r][k] -= f * a[p][k];
                }
            }
        }
        for (int j = 0; j < i; j++) {
            ret[i * D + j] = (float)(a[j][i] / a[j][j]);
        }
    }
}

static double felt(double c[D][D], const float *key, const float *stored)
{
    double sum = 0;

    for (int i = 0; i < D; i++) {
        for (int j = 0; j < D; j++) {
            sum += c[i][j] * (double)(key[i] - stored[i]) * (double)(key[j] - stored[j]);
        }
    }
    return sum;
}

Test(carry, queries_feel_less)
{
    static const enum ops_kv_type types[] = {OPS_KV_FP8, OPS_KV_G4};
    static double c[D][D];
    static float carry[D * D];
    static const float none[D * D];

    make_mean(c);
    make_carry(c, carry);
    for (int t = 0; t < 2; t++) {
        double plain = 0;
        double carried = 0;

        for (int n = 0; n < N_KEYS; n++) {
            uint8_t codes[3][D];
            uint16_t scale[3] = {0};
            float key[D];
            float got[D];

            for (int i = 0; i < D; i++) {
                key[i] = normal() * (i % 7 == 0 ? 4.0f : 1.0f);
            }
            size_t bytes = (size_t)ops_kv_type_bytes(types[t], D);

            kv_code_encode(types[t], key, codes[0], &scale[0], D);
            scale[1] = kv_round_encode(types[t], carry, key, codes[1], D);
            scale[2] = kv_round_encode(types[t], none, key, codes[2], D);
            cr_assert_arr_eq(codes[0], codes[2], bytes, "nothing is carried, key %d", n);
            cr_assert_eq(scale[1], scale[0]);
            cr_assert_eq(scale[2], scale[0]);
            kv_code_decode(types[t], codes[0], scale[0], got, D);
            plain += felt(c, key, got);
            kv_code_decode(types[t], codes[1], scale[1], got, D);
            carried += felt(c, key, got);
        }
        cr_assert_lt(carried * 3, plain, "%s: %g, each dim alone %g", ops_kv_type_name(types[t]),
                     carried, plain);
    }
}

Test(carry, of_no_value)
{
    static const float carry[D * D];
    float key[D] = {0};
    uint8_t codes[D];
    float got[D];

    uint16_t scale = kv_round_encode(OPS_KV_FP8, carry, key, codes, D);

    kv_code_decode(OPS_KV_FP8, codes, scale, got, D);
    for (int i = 0; i < D; i++) {
        cr_assert_eq(got[i], 0.0f);
    }
    key[3] = 3e38f;
    key[4] = -1;
    (void)kv_round_encode(OPS_KV_G4, carry, key, codes, D);
    kv_code_decode(OPS_KV_G4, codes, 0, got, D);
    cr_assert(got[3] > 60000 && got[3] < 66000, "%g", (double)got[3]);
}

struct base {
    const char *file;
    const char *arch;
    uint32_t d;        /* dims of a K head */
    const char *under; /* an overlay below; NULL: none */
    const char *deep;  /* the one tensor, of a store of `n_rows`; NULL: all layers' */
    uint64_t n_rows;
};

static const struct base qwen2 = {"arch_qwen2.gguf", "qwen2", 12};
static const struct base heads_32 = {"heads_32.gguf", "llama", 32};
static const struct base wide = {
    "cache_model.gguf", "llama", 20, "cache_wide_4_1.gguf", "blk.2.attn_query_swiftkv.weight", 20};
static const struct base wide_by_base = {
    "cache_model.gguf", "llama", 8, "cache_wide_4_1.gguf", "blk.2.attn_query.weight", 16};

/* A tensor of K heads' C: `diagonal` there, `beside` elsewhere. */
static int put_c(struct gguf_writer *w, const char *name, uint32_t d, uint64_t n_rows,
                 float diagonal, float beside, bool declare)
{
    float *c;
    int r;

    if (declare) {
        return gguf_writer_tensor(w, name, DTYPE_F32, 2, (uint64_t[]){d, n_rows});
    }
    c = calloc(n_rows * d, sizeof(*c));
    for (uint64_t i = 0; i < n_rows * d; i++) {
        c[i] = i % d == i / d % d ? diagonal : beside;
    }
    r = gguf_writer_data(w, c, n_rows * d * sizeof(*c));
    free(c);
    return r;
}

/* `cut`: so many columns fewer. */
static int open_overlaid(const struct base *base, float diagonal, float beside, int cut,
                         const char *backend, const char *kv, struct engine **ret, struct error *e)
{
    const char *path = run_data(base->file);
    struct gguf *g;
    struct gguf_writer *w;
    char sha[65];
    uint32_t n_layers = 0;
    uint32_t d = base->d;
    uint64_t n_rows = base->n_rows;
    char overlay[64]; /* tests run side by side */

    (void)snprintf(overlay, sizeof(overlay), "/tmp/pipit_test_carry_%d.gguf", (int)getpid());
    cr_assert_eq(gguf_open(path, &g, e), 0, "%s", e->text);
    for (char name[64] = "blk.0.attn_k.weight"; !base->deep && gguf_tensor_find(g, name);) {
        n_rows = gguf_tensor_find(g, name)->dims[1];
        (void)snprintf(name, sizeof(name), "blk.%u.attn_k.weight", ++n_layers);
    }
    cr_assert_eq(gguf_sha256(path, NULL, sha, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_create(overlay, &w, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_str(w, "general.architecture", base->arch, strlen(base->arch)), 0);
    cr_assert_eq(gguf_writer_str(w, "pipit.overlay.base_sha256", sha, 64), 0);
    n_rows -= (uint64_t)cut * (base->deep ? 1 : d);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t il = 0; il < n_layers; il++) {
            char name[64];

            (void)snprintf(name, sizeof(name), "blk.%u.attn_query.weight", il);
            cr_assert_eq(put_c(w, name, d, n_rows, diagonal, beside, pass == 0), 0);
        }
        if (base->deep) {
            cr_assert_eq(put_c(w, base->deep, d, n_rows, diagonal, beside, pass == 0), 0);
        }
    }
    cr_assert_eq(gguf_writer_finish(w, e), 0, "%s", e->text);
    gguf_close(g);

    const char *overlays[2];
    int n = 0;

    if (base->under) {
        overlays[n++] = run_data(base->under);
    }
    overlays[n++] = overlay;

    struct engine_config config = {.model_path = path,
                                   .cpu_mask = run_cpu_mask,
                                   .overlay_paths = overlays,
                                   .n_overlays = n,
                                   .kv = kv,
                                   .backend = backend,
                                   .ctx = 128,
                                   .n_seqs = 1,
                                   .n_threads = 1};
    int r = engine_create(&config, NULL, NULL, ret, e);

    cr_assert_eq(unlink(overlay), 0);
    return r;
}

/* Logits of some tokens that are given. */
static void run_given(struct engine *e, struct run *ret)
{
    int32_t ids[N_PROMPT];
    int32_t forced[N_NEW];

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    run_tokens(52, engine_info(e)->n_vocab, forced, N_NEW);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.forced = forced;
    q.n_forced = N_NEW - 1;
    run_submit(e, &q, ret);
    run_all(e);
    cr_assert_eq(ret->reason, ENGINE_LENGTH, "%s", ret->error.text);
}

static double distance(const struct run *a, const struct run *b)
{
    double sum = 0;

    for (int32_t i = 0; i < N_NEW * a->n_vocab; i++) {
        double d = (double)a->logits[i] - (double)b->logits[i];

        sum += d * d;
    }
    return sqrt(sum / (N_NEW * a->n_vocab));
}

/* Dims that queries mix with no other are rounded alone; else the cache has other codes, on both
 * backends alike. */
Test(carry, an_overlay_brings_it)
{
    static const char *const backends[] = {"ref", "cpu"};
    struct run with[2];

    run_cpu_mask = ~(uint32_t)CPU_AMX_BF16;
    for (int b = 0; b < 2; b++) {
        struct engine *bare = run_engine("arch_qwen2.gguf", backends[b], 128, 1, "fp8");
        struct error err = {0};
        struct engine *e;
        struct run plain;
        struct run alone;

        run_given(bare, &plain);
        cr_assert_eq(open_overlaid(&qwen2, 2, 0, 0, backends[b], "fp8", &e, &err), 0, "%s",
                     err.text);
        run_given(e, &alone);
        engine_destroy(e);
        cr_assert_lt(distance(&plain, &alone), 1e-5, "%s: %g", backends[b],
                     distance(&plain, &alone)); /* encoders differ where two codes are as near */
        cr_assert_eq(open_overlaid(&qwen2, 2, 1.9f, 0, backends[b], "fp8", &e, &err), 0, "%s",
                     err.text);
        run_given(e, &with[b]);
        engine_destroy(e);
        engine_destroy(bare);
        cr_assert_gt(distance(&plain, &with[b]), 1e-3);
        run_clear(&plain);
        run_clear(&alone);
    }
    cr_assert_lt(distance(&with[0], &with[1]), 0.05);
    run_clear(&with[0]);
    run_clear(&with[1]);
}

/* A store that layers beyond SwiftKV's split share has queries of its own; those of the base's
 * layer in its place are not asked. */
Test(carry, of_layers_that_share_a_store)
{
    static const char *const backends[] = {"ref", "cpu"};
    struct run with[2];

    for (int b = 0; b < 2; b++) {
        struct engine *bare = run_engine_overlay(wide.file, wide.under, backends[b], 128, 1, "fp8");
        struct error err = {0};
        struct engine *e;
        struct run plain;

        run_given(bare, &plain);
        engine_destroy(bare);
        cr_assert_lt(open_overlaid(&wide_by_base, 2, 1.9f, 0, backends[b], "fp8", &e, &err), 0);
        cr_assert_not_null(strstr(err.text, "nothing reads tensor blk.2.attn_query"), "%s",
                           err.text);
        err.code = 0;
        cr_assert_eq(open_overlaid(&wide, 2, 1.9f, 0, backends[b], "fp8", &e, &err), 0, "%s",
                     err.text);
        run_given(e, &with[b]);
        engine_destroy(e);
        cr_assert_gt(distance(&plain, &with[b]), 1e-3, "%s", backends[b]);
        run_clear(&plain);
    }
    cr_assert_lt(distance(&with[0], &with[1]), 0.05, "%g", distance(&with[0], &with[1]));
    run_clear(&with[0]);
    run_clear(&with[1]);
}

/* Keys in four bits are balanced and turned, and so is C: a diagonal one is diagonal no more. It is
 * not the plain one's carry, which would be none. */
Test(carry, turned_as_the_keys_are)
{
    static const char *const backends[] = {"ref", "cpu"};
    struct run plain[2];
    struct run with[2];

    for (int b = 0; b < 2; b++) {
        struct engine *bare = run_engine("heads_32.gguf", backends[b], 128, 1, "kv4");
        struct error err = {0};
        struct engine *e;

        run_given(bare, &plain[b]);
        cr_assert_eq(open_overlaid(&heads_32, 2, 0, 0, backends[b], "kv4", &e, &err), 0, "%s",
                     err.text);
        run_given(e, &with[b]);
        engine_destroy(e);
        engine_destroy(bare);
        cr_assert_gt(distance(&plain[b], &with[b]), 1e-3, "%s: %g", backends[b],
                     distance(&plain[b], &with[b]));
    }
    /* the backends differ by no more than they do without */
    cr_assert_lt(distance(&with[0], &with[1]), 2 * distance(&plain[0], &plain[1]), "%g of %g",
                 distance(&with[0], &with[1]), distance(&plain[0], &plain[1]));
    for (int b = 0; b < 2; b++) {
        run_clear(&plain[b]);
        run_clear(&with[b]);
    }
}

/* Matrices are held for the keys that are rounded by them: as they are for fp8, and turned too for
 * kv4, whose requests may say rot=off. */
Test(carry, only_what_is_used_is_held)
{
    static const struct {
        const char *kv;
        uint64_t n;
    } cases[] = {{"full", 0}, {"kv8", 0}, {"k8v4", 0}, {"fp8", 1}, {"kv4", 2}};
    struct error err = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine *bare = run_engine("heads_32.gguf", "cpu", 128, 1, cases[i].kv);
        struct engine *e;
        uint64_t one = 3 * 32 * 32 * sizeof(float); /* layers of one K head */
        uint64_t held[2];

        cr_assert_eq(open_overlaid(&heads_32, 2, 1, 0, "cpu", cases[i].kv, &e, &err), 0, "%s",
                     err.text);
        held[0] = engine_plan_of(bare)->weights_bytes;
        held[1] = engine_plan_of(e)->weights_bytes;
        engine_destroy(bare);
        engine_destroy(e);
        if (cases[i].n == 0) {
            cr_assert_eq(held[1], held[0], "%s", cases[i].kv);
        } else {
            cr_assert_geq(held[1], held[0] + cases[i].n * one, "%s", cases[i].kv);
            cr_assert_lt(held[1], held[0] + (cases[i].n + 1) * one, "%s", cases[i].kv);
        }
    }
}

Test(carry, what_is_no_mean_is_refused)
{
    struct error err = {0};
    struct engine *e;

    cr_assert_eq(open_overlaid(&qwen2, 2, 0, 1, "cpu", "fp8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "attn_query.weight"), "%s", err.text);
    err.code = 0;
    cr_assert_eq(open_overlaid(&wide, 2, 0, 1, "cpu", "kv8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "attn_query_swiftkv"), "%s", err.text);
    err.code = 0;
    cr_assert_eq(open_overlaid(&qwen2, 2, 0, 1, "cpu", "kv8", &e, &err), -EBADMSG,
                 "also where nothing is rounded by it");
    err.code = 0;
    cr_assert_eq(open_overlaid(&qwen2, NAN, 0, 0, "cpu", "fp8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "no mean"), "%s", err.text);
    err.code = 0;
    cr_assert_eq(open_overlaid(&qwen2, 1, 3, 0, "cpu", "fp8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "no mean"), "%s", err.text);
}
