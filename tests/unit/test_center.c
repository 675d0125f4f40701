/* SPDX-License-Identifier: Apache-2.0 */
/* Keys stored less a constant, and rotated: what the constant is, that answers do not feel it, and
 * that a cache of 8 bits is the better for both where a model's K projection has a large bias, as
 * Qwen2.5's has. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/center.h"
#include "gguf/gguf.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 60, N_NEW = 12, N_LAYERS_MOST = 8 };

/* A process's own: Criterion runs tests beside each other. */
static char biased[64];
static char overlay[64];

static void name_files(void)
{
    (void)snprintf(biased, sizeof(biased), "/tmp/pipit_test_center_%d_model.gguf", (int)getpid());
    (void)snprintf(overlay, sizeof(overlay), "/tmp/pipit_test_center_%d_overlay.gguf",
                   (int)getpid());
}

TestSuite(center, .init = name_files);

Test(center, is_the_mean_of_the_turned_bias)
{
    static const float inv_freq[2] = {1.0f, 0.001f};
    static const float x[6] = {1, -2, 3, 0.5f, 7, -8};
    float got[6];

    for (int form = OPS_ROPE_NONE; form <= OPS_ROPE_NEOX; form++) {
        struct ops_rope rope = {
            .form = (enum ops_rope_form)form, .n_dims = 4, .inv_freq = inv_freq, .mscale = 1.5f};
        double want[6] = {0};

        for (int p = 0; p < 100; p++) {
            for (int i = 0; i < 6; i++) {
                want[i] += i >= 4 || form == OPS_ROPE_NONE ? (double)x[i] / 100 : 0;
            }
            for (int i = 0; i < 2 && form != OPS_ROPE_NONE; i++) {
                int a = form == OPS_ROPE_NORM ? 2 * i : i;
                int b = form == OPS_ROPE_NORM ? 2 * i + 1 : i + 2;
                double t = p * (double)inv_freq[i];

                want[a] += 1.5 * ((double)x[a] * cos(t) - (double)x[b] * sin(t)) / 100;
                want[b] += 1.5 * ((double)x[a] * sin(t) + (double)x[b] * cos(t)) / 100;
            }
        }
        center_turn(&rope, 100, x, 6, got);
        for (int i = 0; i < 6; i++) {
            cr_assert_float_eq(got[i], want[i], 1e-5, "form %d, dim %d: %g, %g", form, i,
                               (double)got[i], want[i]);
        }
    }
}

/* Of an F32 tensor in the file's bytes, by pairs of dims of each head of 12: pair 2 times `factor`,
 * pair 5 and `add`. */
static bool change(uint8_t *bytes, size_t n, const struct gguf *g, const char *what, int32_t il,
                   float factor, float add)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "blk.%d.attn_%s", il, what);
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    uint8_t *p = t ? memmem(bytes, n, t->data, t->n_bytes) : NULL;

    cr_assert(!t || t->type == DTYPE_F32);
    for (size_t i = 0; p && i < t->n_bytes / sizeof(float); i++) {
        size_t row = strstr(what, "weight") ? i / t->dims[0] : i;
        float x;

        memcpy(&x, p + i * sizeof(x), sizeof(x));
        x = row % 6 == 2 ? x * factor : row % 6 == 5 ? x + add : x;
        memcpy(p + i * sizeof(x), &x, sizeof(x));
    }
    return p != NULL;
}

/* The tiny Qwen2 with `add` more in the slowest pair of every K head's bias, and another pair of
 * every K head `factor` times as large, of every query head as much smaller. */
static void write_biased(float add, float factor)
{
    struct error e = {0};
    struct gguf *g;
    FILE *f = fopen(run_data("arch_qwen2.gguf"), "rb");
    uint8_t *bytes = calloc(1, 1 << 20);

    cr_assert_not_null(f);
    cr_assert_not_null(bytes);
    size_t n = fread(bytes, 1, 1 << 20, f);

    cr_assert_eq(fclose(f), 0);
    cr_assert(n > 0 && n < 1 << 20);
    cr_assert_eq(gguf_open(run_data("arch_qwen2.gguf"), &g, &e), 0, "%s", e.text);
    for (int32_t il = 0; il < N_LAYERS_MOST; il++) {
        bool found = change(bytes, n, g, "k.bias", il, factor, add) &&
                     change(bytes, n, g, "k.weight", il, factor, 0) &&
                     change(bytes, n, g, "q.bias", il, 1 / factor, 0) &&
                     change(bytes, n, g, "q.weight", il, 1 / factor, 0);

        cr_assert(found || il > 0);
    }
    gguf_close(g);
    f = fopen(biased, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(bytes, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
    free(bytes);
}

/* An overlay that says what keys are stored less: `value` in every dim, n of them a layer. */
static int open_overlaid(float value, int n, const char *kv, struct engine **ret, struct error *e)
{
    struct gguf *g;
    struct gguf_writer *w;
    char sha[65];
    float values[256];

    for (int i = 0; i < 256; i++) {
        values[i] = value;
    }
    cr_assert_eq(gguf_open(run_data("arch_qwen2.gguf"), &g, e), 0, "%s", e->text);
    cr_assert_eq(gguf_sha256(run_data("arch_qwen2.gguf"), NULL, sha, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_create(overlay, &w, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_str(w, "general.architecture", "qwen2", 5), 0);
    cr_assert_eq(gguf_writer_str(w, "pipit.overlay.base_sha256", sha, 64), 0);
    for (int32_t il = 0; il < N_LAYERS_MOST; il++) {
        char name[64];
        uint64_t dims[1] = {(uint64_t)n};

        (void)snprintf(name, sizeof(name), "blk.%d.attn_k.bias", il);
        const struct gguf_tensor *t = gguf_tensor_find(g, name);

        if (t) {
            dims[0] = n ? (uint64_t)n : t->dims[0];
            (void)snprintf(name, sizeof(name), "blk.%d.attn_center.weight", il);
            cr_assert_eq(gguf_writer_tensor(w, name, DTYPE_F32, 1, dims), 0);
        }
    }
    for (int32_t il = 0; il < N_LAYERS_MOST; il++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "blk.%d.attn_k.bias", il);
        const struct gguf_tensor *t = gguf_tensor_find(g, name);

        if (t) {
            cr_assert_eq(gguf_writer_data(w, values, (n ? (size_t)n : t->dims[0]) * sizeof(float)),
                         0);
        }
    }
    cr_assert_eq(gguf_writer_finish(w, e), 0, "%s", e->text);
    gguf_close(g);

    const char *overlays[] = {overlay};
    struct engine_config c = {.model_path = run_data("arch_qwen2.gguf"),
                              .overlay_paths = overlays,
                              .n_overlays = 1,
                              .kv = kv,
                              .backend = "cpu",
                              .ctx = 128,
                              .n_seqs = 1,
                              .n_threads = 1};

    return engine_create(&c, NULL, NULL, ret, e);
}

/* The root mean square difference of logits between a cache of some precision and an f32 one, over
 * new tokens that are given. */
static double loss_of(struct engine *exact, struct engine *e, const char *kv)
{
    int32_t ids[N_PROMPT];
    struct run a;
    struct run b;
    double sum = 0;

    run_tokens(51, engine_info(exact)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    run_submit(exact, &q, &a);
    run_all(exact);
    q.forced = a.tokens;
    q.n_forced = N_NEW - 1;
    q.kv = kv;
    run_submit(e, &q, &b);
    run_all(e);
    cr_assert_eq(b.reason, ENGINE_LENGTH, "%s", b.error.text);
    cr_assert_eq(b.n_new, N_NEW);
    for (int32_t i = 0; i < N_NEW * a.n_vocab; i++) {
        double d = (double)b.logits[i] - (double)a.logits[i];

        sum += d * d;
    }
    run_clear(&a);
    run_clear(&b);
    return sqrt(sum / (N_NEW * engine_info(exact)->n_vocab));
}

Test(center, mends_large_biases)
{
    static const char *const backends[] = {"ref", "cpu"};
    static const struct {
        const char *mended;
        const char *as_it_is;
        double factor;
    } kv[] = {{"fp8", "fp8,center=off", 1.5},
              {"kv8,rot=off", "kv8,center=off,rot=off", 1.5},
              {"kv8,center=off", "kv8,center=off,rot=off", 1.2}};

    write_biased(30, 1);
    for (int b = 0; b < 2; b++) {
        struct engine *exact = run_engine(biased, backends[b], 128, 1, "f32");

        for (int k = 0; k < 3; k++) {
            struct engine *e = run_engine(biased, backends[b], 128, 1, kv[k].mended);
            double mended = loss_of(exact, e, kv[k].mended);
            double as_it_is = loss_of(exact, e, kv[k].as_it_is);

            cr_assert_lt(mended * kv[k].factor, as_it_is, "%s, %s: %g, %s: %g", backends[b],
                         kv[k].mended, mended, kv[k].as_it_is, as_it_is);
            engine_destroy(e);
        }
        engine_destroy(exact);
    }
    cr_assert_eq(unlink(biased), 0);
}

/* A model of powers of two more or less in K, and as much less or more in q, is the same model. Its
 * keys are balanced before they are rotated: a cache of integers does not feel it. */
Test(center, balance_undoes_uneven_dims)
{
    struct engine *exact = run_engine("arch_qwen2.gguf", "cpu", 128, 1, "f32");
    struct engine *even = run_engine("arch_qwen2.gguf", "cpu", 128, 1, "kv8");
    double of_even = loss_of(exact, even, "kv8");

    for (int i = 0; i < 2; i++) {
        struct engine *uneven;

        write_biased(0, i ? 0x1p-6f : 0x1p6f);
        uneven = run_engine(biased, "cpu", 128, 1, "kv8");
        double got = loss_of(exact, uneven, "kv8");
        double off = loss_of(exact, uneven, "kv8,rot=off");

        cr_assert_lt(got, 1.5 * of_even, "%g, %g where dims are even", got, of_even);
        cr_assert_gt(off, 4 * of_even, "%g, %g where dims are even", off, of_even);
        engine_destroy(uneven);
    }
    engine_destroy(even);
    engine_destroy(exact);
    cr_assert_eq(unlink(biased), 0);
}

/* A center far off costs precision, so it is really taken away; the logits are nearly the same, so
 * attention does not feel it. */
Test(center, an_overlay_brings_it)
{
    struct error err = {0};
    struct engine *exact = run_engine("arch_qwen2.gguf", "cpu", 128, 1, "f32");
    struct engine *e;

    cr_assert_eq(open_overlaid(3, 0, "fp8", &e, &err), 0, "%s", err.text);
    double far = loss_of(exact, e, "fp8");
    double off = loss_of(exact, e, "fp8,center=off");

    cr_assert_gt(far, 1.5 * off, "%g, not centered %g", far, off);
    cr_assert_lt(far, 20 * off, "%g, not centered %g", far, off);
    engine_destroy(e);
    engine_destroy(exact);
    err.code = 0;
    cr_assert_eq(open_overlaid(3, 7, "fp8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "attn_center.weight"), "%s", err.text);
    err.code = 0;
    cr_assert_eq(open_overlaid(NAN, 0, "fp8", &e, &err), -EBADMSG);
    cr_assert_not_null(strstr(err.text, "not finite"), "%s", err.text);
    cr_assert_eq(unlink(overlay), 0);
}
