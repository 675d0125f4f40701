/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's files and limits: overlays that are not orthogonal, of another base or without the
 * overlay they build on are refused with the cause, and so is the policy without any; a sequence
 * says the same alone and in company; selecting everything is attention without selection, to the
 * bit. What it computes is in tests/golden. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/gguf.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 50, N_NEW = 12 };

static int create(const char *model, const char *overlay, const char *backend, const char *kv,
                  struct engine **ret, struct error *e)
{
    struct engine_config c;
    const char *overlays[1] = {overlay};

    engine_config_default(&c);
    c.model_path = model;
    c.overlay_paths = overlays;
    c.n_overlays = overlay != NULL;
    c.backend = backend;
    c.n_threads = 1;
    c.ctx = 128;
    c.n_seqs = 3;
    c.kv = kv;
    return engine_create(&c, NULL, NULL, ret, e);
}

static void refused(const char *model, const char *overlay, const char *kv, int code,
                    const char *says)
{
    struct engine *e = NULL;
    struct error err = {0};

    cr_assert_eq(create(model, overlay, "ref", kv, &e, &err), code, "%s: %d %s", says, err.code,
                 err.text);
    cr_assert(strstr(err.text, says), "%s: %s", says, err.text);
    cr_assert_null(e);
}

/* A copy of the overlay with one value of a tensor doubled. */
static void spoil(const char *from, const char *tensor, char *to)
{
    struct gguf *g = NULL;
    struct error err = {0};
    float v = 2;
    FILE *in = fopen(from, "rb");
    uint8_t *bytes = malloc(1 << 20);
    size_t n = in && bytes ? fread(bytes, 1, 1 << 20, in) : 0;

    cr_assert(n > 0 && n < 1 << 20);
    (void)fclose(in);
    cr_assert_eq(gguf_open(from, &g, &err), 0, "%s", err.text);
    const struct gguf_tensor *t = gguf_tensor_find(g, tensor);

    cr_assert(t && t->type == DTYPE_F32);
    const uint8_t *held = t->data;
    size_t at = 0;

    while (at + 32 <= n && memcmp(bytes + at, held, 32) != 0) {
        at++;
    }
    cr_assert(at + 32 <= n);
    memcpy(bytes + at, &v, sizeof(v));
    gguf_close(g);
    FILE *out = fopen(to, "wb");

    cr_assert(out && fwrite(bytes, 1, n, out) == n && fclose(out) == 0);
    free(bytes);
}

Test(infinigen, refuses_what_does_not_fit)
{
    char model[256];
    char skew[256];
    char spoilt[] = "/tmp/test-infinigen-XXXXXX";
    int fd = mkstemp(spoilt);

    cr_assert(fd >= 0 && close(fd) == 0);
    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    refused(model, NULL, "infinigen", -ENOTSUP, "pipit-skew");
    refused(run_data("stories260K.gguf"), skew, "infinigen", -EBADMSG, "for another base file");
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew_2_1.gguf"));
    refused(model, skew, "infinigen", -EBADMSG, "does not come before it");
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    spoil(skew, "blk.3.attn_skew.weight", spoilt);
    refused(model, spoilt, "full", -EBADMSG,
            "blk.3.attn_skew.weight: the rows of head 0 are not orthonormal");
    (void)unlink(spoilt);
    refused(model, skew, "infinigen:pool=host", -ENOTSUP,
            "pool=host is no tier where the device is the CPU");
}

Test(infinigen, the_plan_must_name_it)
{
    char model[256];
    char skew[256];
    int32_t ids[N_PROMPT];
    struct engine *e = NULL;
    struct error err = {0};
    uint64_t handle;

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    cr_assert_eq(create(model, skew, "cpu", "full", &e, &err), 0, "%s", err.text);
    run_tokens(3, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.kv = "infinigen:count=5";
    cr_assert_lt(engine_submit(e, &q, &handle, &err), 0);
    cr_assert(strstr(err.text, "start the daemon with --kv naming"), "%s", err.text);
    engine_destroy(e);
}

static void answers(const char *backend, const char *kv, int n, struct run *r)
{
    char model[256];
    char skew[256];
    struct engine *e = NULL;
    struct error err = {0};

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    cr_assert_eq(create(model, skew, backend, kv, &e, &err), 0, "%s", err.text);
    for (int i = n - 1; i >= 0; i--) { /* the one that is compared sits behind others */
        int32_t ids[N_PROMPT];

        run_tokens(60 + (uint64_t)i, engine_info(e)->n_vocab, ids, N_PROMPT - 7 * i);
        struct engine_request q = run_request(ids, N_PROMPT - 7 * i, N_NEW);

        run_submit(e, &q, &r[i]);
        (void)run_step(e);
    }
    run_all(e);
    engine_destroy(e);
}

Test(infinigen, alone_and_in_company)
{
    static const char *const backends[] = {"ref", "cpu", "ref", "cpu"};

    for (int b = 0; b < 4; b++) {
        const char *kv = b < 2 ? "f16+infinigen:alpha=2,partial=0.5"
                               : "f16+infinigen:alpha=2,partial=0.5,partial8=on";
        struct run alone;
        struct run many[3];

        answers(backends[b], kv, 1, &alone);
        answers(backends[b], kv, 3, many);
        cr_assert(run_same(&alone, &many[0]), "%s %s", backends[b], kv);
        run_clear(&alone);
        for (int i = 0; i < 3; i++) {
            run_clear(&many[i]);
        }
    }
}

Test(infinigen, everything_is_full)
{
    struct run all;
    struct run full;
    struct run few;

    answers("ref", "infinigen:alpha=1000,cap=100%", 1, &all);
    answers("ref", "full", 1, &full);
    answers("ref", "infinigen:count=3", 1, &few);
    cr_assert(run_same(&all, &full));
    cr_assert_not(run_same(&few, &full));
    run_clear(&all);
    run_clear(&full);
    run_clear(&few);
}

/* Pages of a mix: whose partial keys are of which type. */
Test(infinigen, partial_keys_of_both_types)
{
    static const char *const half = "infinigen:count=2,partial=0.3";
    static const char *const eight = "infinigen:count=2,partial=0.3,partial8=on";
    struct run alone[2];
    char model[256];
    char skew[256];
    char mix[256];
    struct engine *e = NULL;
    struct error err = {0};
    int32_t ids[N_PROMPT];

    answers("cpu", half, 1, &alone[0]);
    answers("cpu", eight, 1, &alone[1]);
    cr_assert_not(run_same(&alone[0], &alone[1]), "nothing hangs on it in this text");
    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    (void)snprintf(mix, sizeof(mix), "%s=50%%;%s=50%%", half, eight);
    cr_assert_eq(create(model, skew, "cpu", mix, &e, &err), 0, "%s", err.text);
    run_tokens(60, engine_info(e)->n_vocab, ids, N_PROMPT);
    for (int i = 0; i < 2; i++) {
        struct engine_request q = run_request(ids, N_PROMPT, N_NEW);
        struct run r;

        q.kv = i ? eight : half;
        run_submit(e, &q, &r);
        run_all(e);
        cr_assert(run_same(&r, &alone[i]), "%s", q.kv);
        run_clear(&r);
        run_clear(&alone[i]);
    }
    engine_destroy(e);
}
