/* SPDX-License-Identifier: Apache-2.0 */
/* Early exit (exit:P) on models made here. The exit head of their overlays is the base's own output
 * norm and the first rows of its head, so what it must say is what the base cut off at the split
 * says: an independent run of a model of that many layers. What rows that go on must say is what
 * they say without early exit, whoever exited before them: the cache is complete. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/engine_run.h"
#include "tests/unit/tiny_model.h"

enum { LAYERS = 6, SPLIT = 2, WORDS = 40, PROMPT = 30, NEW = 40 };

static const struct tiny_bend with_head = {.exit_words = WORDS};
static int32_t n_words = WORDS;
static char dir[] = "/tmp/test-exit-XXXXXX";
static char base[64];
static char cut[64];
static char overlay[64];

static void set_up(void)
{
    cr_assert(mkdtemp(dir));
    (void)snprintf(base, sizeof(base), "%s/base.gguf", dir);
    (void)snprintf(cut, sizeof(cut), "%s/cut.gguf", dir);
    (void)snprintf(overlay, sizeof(overlay), "%s/overlay.gguf", dir);
    tiny_model(base, LAYERS, NULL);
    tiny_model(cut, SPLIT, NULL);
    tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, &with_head);
}

static void tear_down(void)
{
    (void)unlink(base);
    (void)unlink(cut);
    (void)unlink(overlay);
    (void)rmdir(dir);
}

TestSuite(exit, .init = set_up, .fini = tear_down);

static void forced_run(struct engine *e, uint64_t seed, struct run *r)
{
    static int32_t prompt[PROMPT];
    static int32_t text[NEW];

    run_tokens(seed, TINY_VOCAB, prompt, PROMPT);
    run_tokens(seed + 1, TINY_VOCAB, text, NEW);
    struct engine_request q = run_request(prompt, PROMPT, NEW);

    q.forced = text;
    q.n_forced = NEW;
    run_submit(e, &q, r);
}

static struct run forced(const char *model, const char *over, const char *backend, const char *kv)
{
    struct engine *e = run_engine_overlay(model, over, backend, 128, 1, kv);
    struct run r;

    forced_run(e, 5, &r);
    run_all(e);
    engine_destroy(e);
    cr_assert_eq(r.n_new, NEW);
    return r;
}

/* What the head must say, from the logits of the cut-off base; returns the likeliest word's
 * probability. */
static double expect(const float *base_logits, float *ret)
{
    double top = -INFINITY;
    double sum = 0;

    for (int32_t i = 0; i <= n_words; i++) {
        sum += exp((double)base_logits[i]);
        top = i < n_words ? fmax(top, (double)base_logits[i]) : top;
    }
    for (int32_t i = 0; i < TINY_VOCAB; i++) {
        ret[i] = i < n_words ? base_logits[i]
                             : base_logits[n_words] - logf((float)(TINY_VOCAB - n_words));
    }
    return exp(top) / sum;
}

static void compare(const char *backend, double p, int32_t least)
{
    char kv[64];
    int32_t n_exited = 0;
    double tolerance = strcmp(backend, "ref") == 0 ? 1e-5 : 1e-3;

    (void)snprintf(kv, sizeof(kv), "f32+exit:%g", p);
    struct run shallow = forced(cut, NULL, backend, "f32");
    struct run whole = forced(base, overlay, backend, "f32");
    struct run mine = forced(base, overlay, backend, kv);

    /* the first new token follows the prompt, whose rows do not exit */
    for (int32_t t = 0; t < NEW; t++) {
        float want[TINY_VOCAB];
        const float *got = mine.logits + (size_t)t * TINY_VOCAB;
        double sure = expect(shallow.logits + (size_t)t * TINY_VOCAB, want);
        bool exits = t > 0 && sure > p;

        cr_assert(fabs(sure - p) > tolerance, "a toss-up: choose another threshold");
        n_exited += exits;
        for (int32_t i = 0; i < TINY_VOCAB && exits; i++) {
            cr_assert_float_eq(got[i], want[i], tolerance, "%s, %g: token %d, word %d: %g, not %g",
                               backend, p, t, i, (double)got[i], (double)want[i]);
        }
        cr_assert(exits || memcmp(got, whole.logits + (size_t)t * TINY_VOCAB,
                                  TINY_VOCAB * sizeof(float)) == 0,
                  "%s, %g: token %d went on, and differs", backend, p, t);
    }
    cr_assert_eq(mine.usage.n_exited, n_exited);
    cr_assert_geq(n_exited, least);
    cr_assert_leq(n_exited, NEW - 1);
    cr_assert_eq(mine.usage.n_slots, whole.usage.n_slots);
    run_clear(&shallow);
    run_clear(&whole);
    run_clear(&mine);
}

Test(exit, says_what_the_cut_off_base_says_or_what_all_layers_say)
{
    compare("ref", 0.01, NEW - 1); /* all */
    compare("ref", 0.5, 5);        /* some */
    compare("ref", 1, 0);          /* none */
}

/* With two words the row for all others has the largest probability more often than not. */
Test(exit, another_word_is_no_word)
{
    static const struct tiny_bend two = {.exit_words = 2};

    n_words = 2;
    tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, &two);
    compare("ref", 0.5, 3);
}

Test(exit, cpu_backend)
{
    compare("cpu", 0.5, 5);
}

Test(exit, alone_as_in_company)
{
    struct run alone = forced(base, overlay, "ref", "f32+exit:0.5");
    struct engine *e = run_engine_overlay(base, overlay, "ref", 128, 3, "f32+exit:0.5");
    struct run r[3];

    cr_assert_gt(alone.usage.n_exited, 4);
    for (uint64_t i = 0; i < 3; i++) {
        forced_run(e, 5 + i * 40, &r[i]);
    }
    run_all(e);
    cr_assert(run_same(&alone, &r[0]));
    cr_assert_eq(alone.usage.n_exited, r[0].usage.n_exited);
    struct engine_counters c;

    engine_counters(e, &c);
    cr_assert_eq(c.n_exited,
                 (uint64_t)(r[0].usage.n_exited + r[1].usage.n_exited + r[2].usage.n_exited));
    for (int i = 0; i < 3; i++) {
        run_clear(&r[i]);
    }
    run_clear(&alone);
    engine_destroy(e);
}

static void answer(int32_t draft, struct run *r)
{
    int32_t prompt[PROMPT];

    run_draft = draft;
    struct engine *e = run_engine_overlay(base, overlay, "ref", 128, 1, "f32+exit:0.5");

    for (int32_t i = 0; i < PROMPT; i++) { /* something to be looked up */
        prompt[i] = i % 3;
    }
    struct engine_request q = run_request(prompt, PROMPT, NEW);

    q.logits_rows = 0;
    run_submit(e, &q, r);
    run_all(e);
    engine_destroy(e);
    run_draft = 0;
}

Test(exit, drafts_change_nothing)
{
    struct run plain;
    struct run drafted;

    answer(0, &plain);
    answer(3, &drafted);
    cr_assert(run_same(&plain, &drafted));
    cr_assert_eq(plain.usage.n_exited, drafted.usage.n_exited);
    run_clear(&plain);
    run_clear(&drafted);
}

static int create(const char *over, const char *kv, struct engine **ret, struct error *e)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = base;
    c.overlay_paths = &over;
    c.n_overlays = over != NULL;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 128;
    c.kv = kv;
    return engine_create(&c, NULL, NULL, ret, e);
}

Test(exit, refused_where_it_cannot_work)
{
    struct engine *e;
    struct error err = {0};
    int32_t prompt[PROMPT];

    cr_assert_eq(create(NULL, "exit:0.9", &e, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "needs a model with an early-exit head"), "%s", err.text);
    err = (struct error){0};
    tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, NULL);
    cr_assert_eq(create(overlay, "f16=50%;f16+exit:0.9=50%", &e, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "this one's brings none"), "%s", err.text);

    err = (struct error){0};
    cr_assert_eq(create(overlay, NULL, &e, &err), 0, "%s", err.text);
    run_tokens(3, TINY_VOCAB, prompt, PROMPT);
    struct engine_request q = run_request(prompt, PROMPT, 3);
    uint64_t handle;

    q.kv = "f16+exit:0.9";
    q.logits_rows = 0;
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOTSUP);
    cr_assert_eq(engine_check(e, &q, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "early-exit head"), "%s", err.text);
    engine_destroy(e);
}

Test(exit, heads_that_do_not_fit)
{
    static const struct {
        struct tiny_bend bend;
        const char *holds;
    } bends[] = {
        {{.exit_words = WORDS, .words = TINY_WORDS_ABSENT}, "pipit.exit.words is missing"},
        {{.exit_words = WORDS, .words = TINY_WORDS_TWICE}, "entry 1 is no token id above"},
        {{.exit_words = WORDS, .words = TINY_WORDS_BEYOND}, "entry 39 is no token id"},
        {{.exit_words = WORDS, .words = TINY_WORDS_FEW}, "pipit.exit.words"},
        {{.exit_words = WORDS, .drop = "exit_norm.weight"}, "exit_norm.weight is missing"},
        {{.exit_words = WORDS, .drop = "exit_head.weight"}, "nothing reads tensor exit_norm"},
        {{.exit_words = WORDS, .misshape = "exit_head.weight"}, "exit_head.weight is (17, 41)"},
        {{.exit_words = TINY_VOCAB}, "51 rows"},
    };

    for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
        struct engine *e;
        struct error err = {0};

        tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, &bends[i].bend);
        cr_assert_eq(create(overlay, NULL, &e, &err), -EBADMSG, "%zu", i);
        cr_assert(strstr(err.text, bends[i].holds), "%s, not: %s", err.text, bends[i].holds);
    }
}
