/* SPDX-License-Identifier: Apache-2.0 */
/* streaming:N beyond the context: an engine whose context is a quarter of the text says, to the
 * bit, what one whose context holds all of it says; so does one that reads a long prompt, and a
 * sequence that was saved beyond the context. Every other policy refuses. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/engine_run.h"

enum { CTX = 64, TEXT = 4 * CTX, N_PROMPT = 40 };

static const char *const backends[] = {"ref", "cpu"};
static const char kv[] = "streaming:36,chunk=8";

/* The first n_prompt of the tokens, then so many more. */
static void run(const char *backend, int32_t ctx, const int32_t *ids, int32_t n_prompt,
                int32_t n_new, struct run *r)
{
    struct engine *e = run_engine("cache_model.gguf", backend, ctx, 2, kv);
    struct engine_request q = run_request(ids, n_prompt, n_new);

    run_submit(e, &q, r);
    run_all(e);
    engine_destroy(e);
}

Test(streaming, four_contexts_of_text)
{
    for (int b = 0; b < 2; b++) {
        struct run *r = calloc(4, sizeof(*r));
        int32_t ids[TEXT];

        run_tokens(7, 256, ids, TEXT);
        run(backends[b], 2 * TEXT, ids, N_PROMPT, TEXT - N_PROMPT, &r[0]);
        run(backends[b], CTX, ids, N_PROMPT, TEXT - N_PROMPT, &r[1]);
        cr_assert(run_same(&r[0], &r[1]), "%s", r[1].error.text);
        run(backends[b], 2 * TEXT, ids, TEXT - 20, 20, &r[2]); /* a prompt of nearly four */
        run(backends[b], CTX, ids, TEXT - 20, 20, &r[3]);
        cr_assert(run_same(&r[2], &r[3]), "%s", r[3].error.text);
        for (int i = 0; i < 4; i++) {
            run_clear(&r[i]);
        }
        free(r);
    }
}

Test(streaming, saved_beyond_the_context)
{
    for (int b = 0; b < 2; b++) {
        struct run *r = calloc(3, sizeof(*r));
        struct engine *e = run_engine("cache_model.gguf", backends[b], CTX, 2, kv);
        struct error err = {0};
        int32_t ids[2 * TEXT];
        void *saved = NULL;
        size_t size = 0;

        run_tokens(9, 256, ids, N_PROMPT);
        struct engine_request q = run_request(ids, N_PROMPT, TEXT - N_PROMPT);

        run_submit(e, &q, &r[0]);
        run_all(e);
        run_submit(e, &q, &r[1]);
        while (r[1].n_new < 3 * CTX - N_PROMPT) {
            cr_assert(run_step(e) > 0);
        }
        cr_assert_eq(engine_save(e, r[1].handle, &saved, &size, &err), 0, "%s", err.text);
        (void)engine_cancel(e, r[1].handle, ENGINE_CANCELLED);
        run_all(e);

        int32_t n_said = r[1].n_new;

        memcpy(ids + N_PROMPT, r[1].tokens, (size_t)n_said * sizeof(*ids));
        q = run_request(ids, N_PROMPT, TEXT - N_PROMPT);
        q.forced = ids + N_PROMPT;
        q.n_forced = n_said;
        q.saved = saved;
        q.saved_size = size;
        run_submit(e, &q, &r[2]);
        run_all(e);
        cr_assert_eq(r[2].reason, ENGINE_LENGTH, "%s", r[2].error.text);
        cr_assert_eq(r[2].n_new, r[0].n_new - n_said);
        cr_assert_eq(
            memcmp(r[2].tokens, r[0].tokens + n_said, (size_t)r[2].n_new * sizeof(*r[0].tokens)),
            0);
        for (int i = 0; i < 3; i++) {
            run_clear(&r[i]);
        }
        free(saved);
        free(r);
        engine_destroy(e);
    }
}

Test(streaming, others_end_at_the_context)
{
    struct engine *e = run_engine("cache_model.gguf", "ref", CTX, 1, kv);
    struct run *r = calloc(1, sizeof(*r));
    struct error err = {0};
    int32_t ids[TEXT];
    uint64_t handle;

    run_tokens(3, 256, ids, TEXT);
    struct engine_request q = run_request(ids, TEXT, 8);

    q.kv = "window:40,pos=new,prefill=bounded,chunk=8";
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -EMSGSIZE, "%s", err.text);
    q = run_request(ids, N_PROMPT, 0); /* as much as the context holds */
    run_submit(e, &q, r);
    run_all(e);
    cr_assert_eq(r->reason, ENGINE_CONTEXT);
    cr_assert_eq(r->n_new, CTX - N_PROMPT);
    run_clear(r);
    free(r);
    engine_destroy(e);
}
