/* SPDX-License-Identifier: Apache-2.0 */
/* heads=adaptive (engine/kv/policy/heads.c, engine/kv/seq/cache_heads.c): the division keeps as
 * much of the scores as any that it may choose; sequences whose head groups keep unequal numbers of
 * slots take the bytes that equal ones take, come back from where they were saved, fork and go on
 * to the bit; and what leaves nothing to divide is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "engine/kv/policy/place.h"
#include "engine/kv/seq/snapshot.h"
#include "kernels/backend.h"
#include "tests/unit/engine_run.h"

enum { MOST_GROUPS = 4, MOST_PAGES = 24, N_PROMPT = 380, N_NEW = 40, CTX = 512 };

static struct policy parse(const char *text)
{
    struct policy p;
    struct error e = {0};

    cr_assert_eq(policy_parse(text, &p, &e), 0, "%s: %s", text, e.text);
    return p;
}

/* ---- the division ----------------------------------------------------------------------------
 */

struct division {
    struct policy p;
    int32_t budget;
    int32_t n_groups;
    struct policy_head heads[MOST_GROUPS];
    float page[MOST_GROUPS][MOST_PAGES];
};

static int32_t draw(uint64_t seed, uint64_t index, int32_t n)
{
    return (int32_t)(rng_draw(seed, index) * n);
}

static int32_t pages_of(int32_t n)
{
    return (n + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static double kept_sum(const struct division *d, const int32_t *keep)
{
    double sum = 0;

    for (int32_t g = 0; g < d->n_groups; g++) {
        for (int32_t i = 0; i < keep[g]; i++) {
            sum += (double)d->page[g][i];
        }
    }
    return sum;
}

/* The largest sum of any division, by trying all. */
static double best_of_all(const struct division *d, int32_t g, int32_t left, int32_t *keep)
{
    int32_t live = d->heads[g].live;
    int32_t sure = least(pages_of(policy_sure_slots(&d->p, d->budget)), pages_of(live));
    int32_t most = least(2 * pages_of(d->budget), live / OPS_PAGE_SLOTS);
    double best = -1;

    for (int32_t n = sure; n <= (most > sure ? most : sure) && n - sure <= left; n++) {
        keep[g] = n;
        double sum = g + 1 < d->n_groups ? best_of_all(d, g + 1, left - (n - sure), keep)
                                         : kept_sum(d, keep);

        best = sum > best ? sum : best;
    }
    return best;
}

/* Scores of a group fall, and are whole numbers, so that sums are exact and often equal. */
static void make(struct division *d, uint64_t seed, const char *text, int32_t budget)
{
    *d = (struct division){.p = parse(text), .budget = budget};
    d->n_groups = 1 + draw(seed, 0, MOST_GROUPS);
    for (int32_t g = 0; g < d->n_groups; g++) {
        uint64_t at = 1 + (uint64_t)g * 100;
        int32_t live = budget / 2 + draw(seed, at, 2 * budget);
        float top = (float)draw(seed, at + 1, 50);

        live = least(live, MOST_PAGES * OPS_PAGE_SLOTS);
        for (int32_t i = 0; i < pages_of(live); i++) {
            d->page[g][i] = top;
            top -= (float)draw(seed, at + 2 + (uint64_t)i, 9);
            top = top > 0 ? top : 0;
        }
        d->heads[g] = (struct policy_head){d->page[g], live};
    }
}

Test(heads, keep_as_much_as_any_division)
{
    static const char *const texts[] = {"snapkv:400,heads=adaptive",
                                        "snapkv:400,heads=adaptive,safeguard=0%",
                                        "snapkv:400,observe=100,heads=adaptive,safeguard=50%"};

    for (uint64_t seed = 0; seed < 300; seed++) {
        struct division d;
        int32_t keep[MOST_GROUPS];
        int32_t other[MOST_GROUPS];
        int32_t sum = 0;

        make(&d, seed, texts[seed % 3], 257 + (int32_t)(seed * 7 % 200));
        int32_t equal = pages_of(d.budget);
        int32_t sure = pages_of(policy_sure_slots(&d.p, d.budget));

        policy_divide(&d.p, d.budget, d.heads, d.n_groups, keep);
        for (int32_t g = 0; g < d.n_groups; g++) {
            cr_assert_geq(keep[g], least(sure, pages_of(d.heads[g].live)));
            cr_assert_leq(keep[g], pages_of(d.heads[g].live));
            cr_assert_leq(keep[g] * OPS_PAGE_SLOTS,
                          policy_most_slots(&d.p, d.budget, d.n_groups, 1 << 24));
            sum += keep[g];
        }
        cr_assert_leq(sum, d.n_groups * equal, "more pages than equal heads take");
        cr_assert_eq(kept_sum(&d, keep), best_of_all(&d, 0, d.n_groups * (equal - sure), other),
                     "seed %d", (int)seed);
    }
}

/* A larger budget makes sure of no more slots than it is larger: what a group had and a new prompt
 * brought is never too little (snapshot_check.c). */
Test(heads, a_larger_budget_is_sure_of_no_more_than_it_adds)
{
    static const char *const texts[] = {"snapkv:50%,heads=adaptive",
                                        "snapkv:50%,heads=adaptive,safeguard=100%",
                                        "sinks:9+snapkv:50%,observe=77,heads=adaptive"};

    for (int k = 0; k < 3; k++) {
        struct policy p = parse(texts[k]);
        int32_t before = policy_sure_slots(&p, 128);

        for (int32_t b = 129; b < 3000; b++) {
            int32_t now = policy_sure_slots(&p, b);

            cr_assert(now >= before && now <= before + 1 && now <= b, "%s: %d", texts[k], b);
            before = now;
        }
    }
}

Test(heads, what_has_no_meaning_is_refused)
{
    static const char *const bad[] = {"snapkv:64,heads=adaptive",
                                      "snapkv:128,heads=adaptive",
                                      "snapkv:128,observe=60,heads=adaptive,safeguard=50%",
                                      "snapkv:300,heads=adaptive,safeguard=100%",
                                      "snapkv:300,heads=adaptive,pos=new",
                                      "snapkv:300,safeguard=30%",
                                      "snapkv:300,heads=unequal",
                                      "snapkv:300,heads=adaptive,safeguard=101%",
                                      "window:300,heads=adaptive"};
    char text[KV_TEXT_MAX];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct policy p;
        struct error e = {0};

        cr_assert_eq(policy_parse(bad[i], &p, &e), -EINVAL, "%s", bad[i]);
        cr_assert(e.text[0] != 0);
    }
    struct policy p = parse("snapkv:300,heads=adaptive,safeguard=30%");
    const struct backend_ops far = {.name = "far"};
    const struct policy_host host = {
        .ops = &far, .least_k_dim = 64, .no_part_keys = -1, .no_surrogate = -1, .uneven = {-1}};
    struct error e = {0};

    cr_assert_eq(policy_check_host(&p, &host, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "heads=equal"), "%s", e.text);
    policy_print(&p, text, sizeof(text));
    cr_assert(strstr(text, ",heads=adaptive,safeguard=30%"), "%s", text);
    p = parse("snapkv:300,heads=equal,safeguard=20%");
    policy_print(&p, text, sizeof(text));
    cr_assert(!strstr(text, "heads") && !strstr(text, "safeguard"), "%s", text);
}

/* ---- sequences -------------------------------------------------------------------------------
 */

static const char *const kv[] = {"snapkv:130,observe=8,heads=adaptive,safeguard=0%",
                                 "kv8+sinks:2+snapkv:40%,observe=8,prefill=dense,heads=adaptive",
                                 "snapkv:130,observe=8,heads=adaptive,layers=pyramid",
                                 "f32+snapkv:200,observe=8,prefill=dense,heads=adaptive"};
static const char *const equal_kv[] = {
    "snapkv:130,observe=8", "kv8+sinks:2+snapkv:40%,observe=8,prefill=dense",
    "snapkv:130,observe=8,layers=pyramid", "f32+snapkv:200,observe=8,prefill=dense"};

enum { N_KV = sizeof(kv) / sizeof(kv[0]) };

/* Of two turns with each policy: the very first by plain C, which takes ten times as long; NULL:
 * not again. */
static const char *backend_of(int i)
{
    return i == 0 ? "ref" : i % 2 ? "cpu" : NULL;
}

static struct engine_request request(const int32_t *ids, int i)
{
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.sampler.temperature = 0.9f;
    q.sampler.seed = (uint64_t)(5 + i);
    return q;
}

/* Live slots of each group, and that the window of the prompt is among them just after the cut. */
static bool groups_differ(const void *block, size_t size, bool fresh)
{
    bool differ = false;

    for (int32_t store = 0;; store++) {
        int32_t live[16] = {0};
        const int32_t *pos;
        int32_t n;

        for (int32_t g = 0; snapshot_positions(block, size, store, g, &pos, &n) == 0; g++) {
            int32_t window = 0;

            for (int32_t i = 0; i < n; i++) {
                live[g] += pos[i] >= 0;
                window += pos[i] >= N_PROMPT - 8 && pos[i] < N_PROMPT;
            }
            cr_assert(!fresh || live[g] < 64 || window == 8, "store %d, group %d: %d of the window",
                      store, g, window);
            differ = differ || live[g] != live[0];
        }
        if (live[0] == 0) {
            return differ;
        }
    }
}

Test(heads, take_the_bytes_of_equal_ones)
{
    int32_t ids[N_PROMPT];

    for (int i = 0; i < 2 * N_KV; i++) {
        const char *backend = i < N_KV ? "ref" : "cpu";
        struct engine *e = run_engine("stories260K.gguf", backend, CTX, 1, kv[i % N_KV]);
        struct engine *equal = run_engine("stories260K.gguf", backend, CTX, 1, equal_kv[i % N_KV]);
        struct engine_counters c[2];
        struct error err = {0};
        struct run r;
        struct run other;
        void *block;
        size_t size;

        run_tokens(61, engine_info(e)->n_vocab, ids, N_PROMPT);
        struct engine_request q = request(ids, 0);

        run_submit(e, &q, &r);
        run_submit(equal, &q, &other);
        while (r.n_new < 2) {
            (void)run_step(e);
        }
        engine_counters(e, &c[0]);
        cr_assert_eq(engine_save(e, r.handle, &block, &size, &err), 0, "%s", err.text);
        cr_assert(groups_differ(block, size, true), "%s: nothing was divided", kv[i % N_KV]);
        free(block);
        run_all(e);
        while (other.n_new < 2) {
            (void)run_step(equal);
        }
        engine_counters(equal, &c[1]);
        run_all(equal);
        cr_assert_eq(r.n_new, N_NEW, "%s", r.error.text);
        cr_assert_leq(c[0].kv_bytes_used, c[1].kv_bytes_used, "%s", kv[i % N_KV]);
        cr_assert_leq(r.usage.kv_bytes, other.usage.kv_bytes, "%s", kv[i % N_KV]);
        engine_counters(e, &c[0]);
        cr_assert_eq(c[0].kv_bytes_used, 0);
        run_clear(&r);
        run_clear(&other);
        engine_destroy(e);
        engine_destroy(equal);
    }
}

/* Two backends' sums differ in their last bits, so these are nearly the same, not the same. Under
 * kv8 a CPU with byte products rounds queries to 8 bits, too, and a slot may go to another head:
 * log probabilities were 0.12 apart at most. */
Test(heads, as_the_reference)
{
    int32_t ids[N_PROMPT];

    run_cpu_mask = ~(uint32_t)CPU_AMX_BF16;

    for (int i = 0; i < N_KV; i++) {
        struct engine *e[] = {run_engine("stories260K.gguf", "ref", CTX, 1, kv[i]),
                              run_engine("stories260K.gguf", "cpu", CTX, 1, kv[i])};
        struct run r[2];

        run_tokens(65, engine_info(e[0])->n_vocab, ids, N_PROMPT);
        struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

        for (int k = 0; k < 2; k++) {
            run_submit(e[k], &q, &r[k]);
            run_all(e[k]);
            q.forced = r[0].tokens;
            q.n_forced = N_NEW - 1;
        }
        cr_assert_eq(r[1].n_new, N_NEW);
        for (int32_t t = 0; t < N_NEW; t++) {
            cr_assert_float_eq(r[0].logprobs[t], r[1].logprobs[t], i == 1 ? 0.25f : 5e-3f,
                               "%s: token %d: %g, %g", kv[i], t, (double)r[0].logprobs[t],
                               (double)r[1].logprobs[t]);
        }
        cr_assert_eq(r[0].usage.n_slots, r[1].usage.n_slots);
        for (int k = 0; k < 2; k++) {
            run_clear(&r[k]);
            engine_destroy(e[k]);
        }
    }
}

/* Saved after some tokens and gone on elsewhere; the plan has room for one. */
Test(heads, come_back)
{
    static const int32_t at[] = {1, 20};
    int32_t ids[N_PROMPT];

    for (int i = 0; i < 2 * N_KV * 2; i++) {
        const char *backend = backend_of(i);

        if (!backend) {
            continue;
        }
        const char *text = kv[i / 2 % N_KV];
        int32_t n = at[i / 2 / N_KV];
        struct engine *e = run_engine("stories260K.gguf", backend, CTX, 1, text);
        struct engine *other = run_engine("stories260K.gguf", backend, CTX, 1, text);
        struct error err = {0};
        struct run whole;
        struct run r;
        void *block;
        size_t size;

        run_tokens(62, engine_info(e)->n_vocab, ids, N_PROMPT);
        struct engine_request q = request(ids, 1);

        run_submit(e, &q, &whole);
        while (whole.n_new < n) {
            (void)run_step(e);
        }
        cr_assert_eq(engine_save(e, whole.handle, &block, &size, &err), 0, "%s", err.text);
        cr_assert(groups_differ(block, size, false));
        run_all(e);
        q.saved = block;
        q.saved_size = size;
        q.forced = whole.tokens;
        q.n_forced = n;
        run_submit(other, &q, &r);
        free(block);
        run_all(other);
        cr_assert_eq(r.n_new, N_NEW - n, "%s: %s", text, r.error.text);
        cr_assert_eq(memcmp(r.tokens, whole.tokens + n, (size_t)r.n_new * sizeof(int32_t)), 0,
                     "%s differs after %d", text, n);
        cr_assert_eq(memcmp(r.logprobs, whole.logprobs + n, (size_t)r.n_new * sizeof(float)), 0);
        cr_assert_eq(r.usage.n_evicted, whole.usage.n_evicted);
        cr_assert_eq(r.usage.n_slots, whole.usage.n_slots);
        cr_assert_eq(r.usage.kv_bytes, whole.usage.kv_bytes);
        run_clear(&r);
        run_clear(&whole);
        engine_destroy(e);
        engine_destroy(other);
    }
}

/* A block whose group holds too little for a victim, or more pages than are reserved, is refused.
 */
Test(heads, a_bent_block_is_refused)
{
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine("stories260K.gguf", "cpu", CTX, 1, kv[0]);
    struct error err = {0};
    struct run r;
    void *block;
    size_t size;

    run_tokens(66, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = request(ids, 3);

    run_submit(e, &q, &r);
    while (r.n_new < 2) {
        (void)run_step(e);
    }
    cr_assert_eq(engine_save(e, r.handle, &block, &size, &err), 0, "%s", err.text);
    q.saved_size = size;
    q.forced = r.tokens;
    q.n_forced = 2;
    for (int way = 0; way < 2; way++) {
        uint8_t *bent = malloc(size);
        bool done = false;

        cr_assert_not_null(bent);
        memcpy(bent, block, size);
        for (int32_t store = 0; !done; store++) {
            const int32_t *pos;
            int32_t n;

            cr_assert_eq(snapshot_positions(bent, size, store, 0, &pos, &n), 0);
            for (int32_t g = 0; snapshot_positions(bent, size, store, g, &pos, &n) == 0; g++) {
                int32_t *own = (int32_t *)(void *)(bent + ((const uint8_t *)pos - bent));
                bool seen[CTX] = {false};
                int32_t free = 0;

                for (int32_t i = 0; way == 1 && i < n; i++) {
                    if (own[i] >= 0) {
                        seen[own[i]] = true;
                    }
                }
                for (int32_t i = 0; i < n; i++) {
                    if (way == 0) {
                        own[i] = -1;
                    } else if (own[i] < 0) {
                        while (seen[free]) {
                            free++;
                        }
                        own[i] = free++;
                    }
                    done = true;
                }
            }
        }
        struct run again = {0};

        q.saved = bent;
        q.user = &again;
        err = (struct error){0};
        cr_assert_eq(engine_submit(e, &q, &again.handle, &err), -EBADMSG, "way %d: %s", way,
                     err.text);
        free(bent);
    }
    free(block);
    run_all(e);
    run_clear(&r);
    engine_destroy(e);
}

/* A second prompt after the first one's answer: cut again, to the same total. A plan for one that
 * is read layer by layer has no room for it, whatever the heads. */
Test(heads, a_second_turn)
{
    enum { MORE = 40 };
    int32_t ids[N_PROMPT + N_NEW + MORE];

    for (int i = 0; i < N_KV * 2; i++) {
        const char *backend = backend_of(i);

        if (!backend) {
            continue;
        }
        const char *text = kv[i / 2];

        if (!strstr(text, "dense")) {
            continue; /* the plan has no room, whatever the heads */
        }
        struct engine *e = run_engine("stories260K.gguf", backend, CTX, 2, text);
        struct engine *equal = run_engine("stories260K.gguf", backend, CTX, 2, equal_kv[i / 2]);
        struct engine *of[] = {e, equal};
        uint64_t bytes[2];

        for (int k = 0; k < 2; k++) {
            struct error err = {0};
            struct run r;
            void *block;
            size_t size;

            run_tokens(63, engine_info(e)->n_vocab, ids, N_PROMPT + N_NEW + MORE);
            struct engine_request q = request(ids, 2);

            run_submit(of[k], &q, &r);
            while (r.n_new < N_NEW - 1) {
                (void)run_step(of[k]);
            }
            cr_assert_eq(engine_save(of[k], r.handle, &block, &size, &err), 0, "%s", err.text);
            memcpy(ids + N_PROMPT, r.tokens, (N_NEW - 1) * sizeof(*ids));
            run_all(of[k]);
            run_clear(&r);
            q = run_request(ids, N_PROMPT + N_NEW - 1 + MORE, N_NEW);
            q.saved = block;
            q.saved_size = size;
            run_submit(of[k], &q, &r);
            free(block);
            while (r.n_new < 2 && !r.done) {
                (void)run_step(of[k]);
            }
            cr_assert(!r.done, "%s: %s", k ? equal_kv[i / 2] : text, r.error.text);
            cr_assert_eq(engine_save(of[k], r.handle, &block, &size, &err), 0, "%s", err.text);
            cr_assert(k == 1 || groups_differ(block, size, false));
            free(block);
            run_all(of[k]);
            cr_assert_eq(r.n_new, N_NEW, "%s: %s", text, r.error.text);
            bytes[k] = r.usage.kv_bytes;
            run_clear(&r);
        }
        cr_assert_leq(bytes[0], bytes[1], "%s", text);
        engine_destroy(e);
        engine_destroy(equal);
    }
}

/* Forks of a prompt draw tokens of their own and say what each says alone. */
Test(heads, fork)
{
    enum { N = 3 };
    int32_t ids[N_PROMPT];

    for (int i = 0; i < N_KV * 2; i++) {
        const char *backend = backend_of(i);

        if (!backend) {
            continue;
        }
        struct engine *alone = run_engine("stories260K.gguf", backend, CTX, 1, kv[i / 2]);
        struct engine *e = run_engine("stories260K.gguf", backend, CTX, N, kv[i / 2]);
        struct engine_counters c;
        struct run want[N];
        struct run r[N];

        run_tokens(64, engine_info(e)->n_vocab, ids, N_PROMPT);
        for (int k = 0; k < N; k++) {
            struct engine_request q = request(ids, k);

            run_submit(alone, &q, &want[k]);
            run_all(alone);
            q.fork_of = k == 0 ? 0 : r[0].handle;
            run_submit(e, &q, &r[k]);
        }
        run_all(e);
        for (int k = 0; k < N; k++) {
            cr_assert(run_same(&r[k], &want[k]), "%s %s: member %d", backend, kv[i / 2], k);
            cr_assert_eq(r[k].usage.n_slots, want[k].usage.n_slots);
            cr_assert(k == 0 || r[k].usage.n_cached == N_PROMPT);
        }
        engine_counters(e, &c);
        cr_assert_eq(c.kv_bytes_used, 0);
        for (int k = 0; k < N; k++) {
            run_clear(&r[k]);
            run_clear(&want[k]);
        }
        engine_destroy(e);
        engine_destroy(alone);
    }
}
