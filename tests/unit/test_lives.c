/* SPDX-License-Identifier: Apache-2.0 */
/* Ten requests at a time live at random in one engine of eight sequences and mixed policies:
 * submitted fresh or from a saved block, saved while they run or at rest in slices, cancelled,
 * interrupted between two operations from another thread. Each says, to the bit, what it says
 * alone; at the end nothing is held.
 *
 * PIPIT_LIVES: steps of each test (600). PIPIT_PHASE: the seed. */

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/unit/engine_run.h"

enum {
    CTX = 320,
    N_LIVES = 10,
    N_SEQS = 8,
    N_PROMPTS = 6,
    N_SAVED = 8,
    MOST = 90,
    MAX_POLICIES = 4
};

static const int32_t prompt_lengths[N_PROMPTS] = {1,   63,  64,
                                                  129, 150, 200}; /* a page is 64 slots */

struct said {
    int32_t n;
    int32_t tokens[MOST];
    float logprobs[MOST];
};

struct life {
    enum { NOBODY, LIVES, RESTS, OVER } state;
    uint64_t handle;
    int policy;
    int prompt;
    int32_t from; /* tokens said before it was saved */
    bool to_rest; /* is saved in slices when it is done */
    bool cancelled;
    struct said said;
    enum engine_reason reason;
    struct error error;
    uint8_t *rest; /* (rest_size), rest_got of it there */
    size_t rest_size;
    size_t rest_got;
    size_t rest_least;
};

struct saved {
    uint8_t *p;
    size_t size;
    int policy;
    int prompt;
    int32_t at; /* tokens said */
};

static struct world {
    struct engine *e;
    struct rng_key key;
    uint32_t n_drawn;
    const char *const *policies;
    int n_policies;
    struct life lives[N_LIVES];
    struct saved saved[N_SAVED];
    struct said alone[MAX_POLICIES][N_PROMPTS];
    atomic_bool over;
    int n_fresh, n_back, n_saved, n_rested, n_cut, n_cancelled;
} w;

static int32_t ids[N_PROMPTS][CTX];

static uint32_t below(uint32_t n)
{
    const uint32_t counter[4] = {w.n_drawn++};
    uint32_t out[4];

    rng_philox(w.key, counter, out);
    return out[0] % n;
}

static bool one_in(uint32_t n)
{
    return below(n) == 0;
}

/* ---- one of them ------------------------------------------------------------------------- */

static void keep(const struct life *l, uint8_t *block, size_t size)
{
    struct saved *s = &w.saved[below(N_SAVED)];
    int32_t at = l->from + l->said.n;

    if (at >= MOST) {
        free(block);
        return;
    }
    free(s->p);
    *s = (struct saved){block, size, l->policy, l->prompt, at};
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct life *l = ev->user;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN) {
        cr_assert_lt(l->from + l->said.n, MOST);
        l->said.tokens[l->said.n] = ev->token;
        l->said.logprobs[l->said.n++] = ev->logprob;
        if (one_in(60)) {
            engine_interrupt(w.e);
        }
    } else if (ev->type == ENGINE_EV_DONE) {
        uint64_t bytes = 0;

        l->state = OVER;
        l->reason = ev->reason;
        l->error = ev->error;
        if (l->to_rest && ev->usage.kv_bytes > 0 &&
            engine_save_begin(w.e, l->handle, &bytes, &l->rest_least, &l->error) == 0) {
            l->state = RESTS;
            l->rest_size = bytes;
            l->rest = malloc(bytes);
            cr_assert_not_null(l->rest);
        }
    }
}

static void submit(struct life *l, struct engine_request *q)
{
    struct error err = {0};

    l->state = LIVES;
    l->to_rest = one_in(3);
    q->kv = w.policies[l->policy];
    q->sampler.temperature = 0.8f;
    q->sampler.seed = 3 + (uint64_t)l->prompt;
    q->logits_rows = 0;
    q->report_forced = false;
    q->user = l;
    cr_assert_eq(engine_submit(w.e, q, &l->handle, &err), 0, "%s", err.text);
}

static void begin_fresh(struct life *l, int policy, int prompt, int32_t n_new)
{
    struct engine_request q = run_request(ids[prompt], prompt_lengths[prompt], n_new);

    *l = (struct life){.policy = policy, .prompt = prompt};
    submit(l, &q);
}

static void begin_back(struct life *l, const struct saved *s)
{
    struct engine_request q = run_request(ids[s->prompt], prompt_lengths[s->prompt], MOST);

    *l = (struct life){.policy = s->policy, .prompt = s->prompt, .from = s->at};
    q.saved = s->p;
    q.saved_size = s->size;
    q.forced = w.alone[s->policy][s->prompt].tokens;
    q.n_forced = s->at;
    submit(l, &q);
}

static void end(struct life *l)
{
    const struct said *alone = &w.alone[l->policy][l->prompt];
    size_t n = (size_t)l->said.n;

    cr_assert(l->cancelled || l->reason == ENGINE_LENGTH, "%s: %s", w.policies[l->policy],
              l->error.text);
    cr_assert(memcmp(l->said.tokens, alone->tokens + l->from, n * sizeof(int32_t)) == 0 &&
                  memcmp(l->said.logprobs, alone->logprobs + l->from, n * sizeof(float)) == 0,
              "%s, prompt of %d, after %d: says otherwise than alone", w.policies[l->policy],
              prompt_lengths[l->prompt], l->from);
    l->state = NOBODY;
}

static void rest_on(struct life *l)
{
    size_t room = l->rest_least + below(9000);
    uint8_t *slice = malloc(room);
    size_t n = 0;
    struct error err = {0};

    cr_assert_not_null(slice);
    (void)engine_save_waits(w.e, l->handle, room);
    cr_assert_eq(engine_save_next(w.e, l->handle, slice, room, &n, &err), 0, "%s", err.text);
    cr_assert_leq(l->rest_got + n, l->rest_size);
    memcpy(l->rest + l->rest_got, slice, n);
    free(slice);
    l->rest_got += n;
    if (n > 0 && !one_in(60)) {
        return;
    }
    engine_save_end(w.e, l->handle);
    l->state = OVER;
    if (n > 0) { /* given up in the middle */
        free(l->rest);
        w.n_cut++;
        return;
    }
    cr_assert_eq(l->rest_got, l->rest_size);
    keep(l, l->rest, l->rest_size);
    w.n_rested++;
}

/* ---- all of them ------------------------------------------------------------------------- */

static void something_happens(struct life *l, bool may_begin)
{
    const struct saved *s = &w.saved[below(N_SAVED)];
    struct error err = {0};
    void *block = NULL;
    size_t size = 0;

    switch (l->state) {
    case NOBODY:
        if (may_begin && s->p && one_in(2)) {
            begin_back(l, s);
            w.n_back++;
        } else if (may_begin) {
            int policy = (int)below((uint32_t)w.n_policies);
            /* Keyformer's temperature rises to its end over the tokens that were asked for. */
            bool whole = strncmp(w.policies[policy], "keyformer", 9) == 0;

            begin_fresh(l, policy, (int)below(N_PROMPTS), whole ? MOST : 1 + (int32_t)below(MOST));
            w.n_fresh++;
        }
        break;
    case LIVES:
        if (one_in(20)) {
            l->cancelled = true;
            (void)engine_cancel(w.e, l->handle, ENGINE_CANCELLED);
            w.n_cancelled++;
        } else if (l->said.n > 0 && one_in(4) &&
                   engine_save(w.e, l->handle, &block, &size, &err) == 0) {
            keep(l, block, size);
            w.n_saved++;
        }
        break;
    case RESTS:
        rest_on(l);
        break;
    case OVER:
        break;
    }
    if (l->state == OVER) {
        end(l);
    }
}

static void *interrupt_often(void *arg)
{
    for (uint32_t i = 0; !atomic_load(&w.over); i++) {
        usleep(100 + i * 977 % 3000);
        engine_interrupt(w.e);
    }
    return arg;
}

static void hear_each_alone(void)
{
    for (int p = 0; p < w.n_policies; p++) {
        for (int i = 0; i < N_PROMPTS; i++) {
            struct life *l = &w.lives[0];

            begin_fresh(l, p, i, MOST);
            l->to_rest = false;
            while (engine_step(w.e, on_event, NULL) > 0) {
            }
            cr_assert_eq(l->said.n, MOST, "%s: %s", w.policies[p], l->error.text);
            w.alone[p][i] = l->said;
            l->state = NOBODY;
        }
    }
}

static int32_t from_env(const char *name, int32_t otherwise)
{
    const char *s = getenv(name);

    return s ? (int32_t)strtol(s, NULL, 0) : otherwise;
}

static void live(const char *model, const char *swift, const char *skew, const char *kv,
                 const char *const *policies, int n_policies)
{
    int32_t n_steps = from_env("PIPIT_LIVES", 600);
    struct engine_counters c;
    pthread_t other;

    run_overlay_below = swift;
    w.e = run_engine_overlay(model, skew, "cpu", CTX, N_SEQS, kv);
    w.policies = policies;
    w.n_policies = n_policies;
    w.key = rng_key_make((uint64_t)from_env("PIPIT_PHASE", 1));
    for (int i = 0; i < N_PROMPTS; i++) {
        run_tokens(100 + (uint64_t)i, engine_info(w.e)->n_vocab, ids[i], CTX);
    }
    hear_each_alone();
    cr_assert_eq(pthread_create(&other, NULL, interrupt_often, NULL), 0);
    for (int32_t i = 0, n_left = 1; i < n_steps || n_left > 0; i++) {
        for (int k = 0; k < 2; k++) {
            something_happens(&w.lives[below(N_LIVES)], i < n_steps);
        }
        cr_assert_geq(engine_step(w.e, on_event, NULL), 0);
        n_left = 0;
        for (int k = 0; k < N_LIVES; k++) {
            n_left += w.lives[k].state != NOBODY;
        }
    }
    atomic_store(&w.over, true);
    pthread_join(other, NULL);
    engine_counters(w.e, &c);
    cr_assert_eq(c.kv_bytes_used, 0);
    engine_destroy(w.e);
    for (int i = 0; i < N_SAVED; i++) {
        free(w.saved[i].p);
    }
    cr_log_info("%d fresh, %d back, %d saved running, %d at rest, %d given up, %d cancelled",
                w.n_fresh, w.n_back, w.n_saved, w.n_rested, w.n_cut, w.n_cancelled);
    cr_assert(n_steps < 600 ||
              (w.n_back > 0 && w.n_saved > 0 && w.n_rested > 0 && w.n_cancelled > 0));
}

#define POLICIES(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

Test(lives, on_disk)
{
    live("cache_model.gguf", NULL, "cache_skew.gguf",
         "full,chunk=64+infinigen:count=9,pool=disk=30%;"
         "full,chunk=64+infinigen:count=9,pool=90,full=spill,victim=lru=30%;full,chunk=64=40%",
         POLICIES("full,chunk=64+infinigen:count=9,pool=disk", "full,chunk=64",
                  "full,chunk=64+infinigen:count=9,pool=90,full=spill,victim=lru",
                  "full,chunk=23+infinigen:count=9,pool=70,full=spill,victim=counter"),
         4);
}

Test(lives, on_disk_with_shared_layers)
{
    live("cache_model.gguf", "cache_swiftkv_2_3.gguf", "cache_skew_2_3.gguf",
         "full,chunk=64+infinigen:count=9,pool=disk=30%;"
         "full,chunk=64+infinigen:alpha=2,pool=90,full=spill,victim=fifo=30%;full,chunk=64=40%",
         POLICIES("full,chunk=64+infinigen:count=9,pool=disk", "full,chunk=64",
                  "full,chunk=64+infinigen:alpha=2,pool=90,full=spill,victim=fifo"),
         3);
}

Test(lives, that_evict_and_draft)
{
    run_draft = 3;
    run_keep_prefixes = true;
    live("cache_model.gguf", NULL, NULL,
         "full,chunk=64=40%;window:40,chunk=64+sinks:4=20%;"
         "keyformer:30,chunk=64,prefill=bounded=20%;recency:50%,chunk=64=20%",
         POLICIES("full,chunk=64", "window:40,chunk=64+sinks:4",
                  "keyformer:30,chunk=64,prefill=bounded", "recency:50%,chunk=64"),
         4);
}

Test(lives, with_recurrent_layers)
{
    run_draft = 3;
    run_keep_prefixes = true;
    live("arch_qwen35.gguf", NULL, NULL,
         "full,chunk=64=50%;window:40,chunk=64=20%;h2o:30,chunk=64=30%",
         POLICIES("full,chunk=64", "window:40,chunk=64", "h2o:30,chunk=64"), 3);
}

Test(lives, with_local_layers)
{
    run_draft = 3;
    run_keep_prefixes = true;
    live("arch_gemma3.gguf", NULL, NULL,
         "full,chunk=64=50%;window:40,chunk=64=20%;h2o:30,chunk=64=30%",
         POLICIES("full,chunk=64", "window:40,chunk=64", "h2o:30,chunk=64"), 3);
}
