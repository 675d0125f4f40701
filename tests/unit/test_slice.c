/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that are read in slices while others decode: what is learnt from times, and that no bit
 * of any answer depends on where a prompt was cut. */

#include <criterion/criterion.h>
#include <stdint.h>

#include "engine/sched/slice.h"
#include "tests/unit/engine_run.h"

/* A prompt of n rows beside one decode row; a step takes plain + fixed + n row. The rows of the
 * last whole slice. */
static int32_t settle(struct slice *s, double plain, double fixed, double row, int32_t n,
                      int32_t *ret_most_plain)
{
    int32_t at = 0;
    int32_t in_a_row = 0;

    while (n > 0) {
        int32_t room = slice_room(s, 1);

        room = room < n ? room : n;
        slice_add(s, 1, room, room ? plain + fixed + room * row : plain);
        in_a_row = room ? 0 : in_a_row + 1;
        *ret_most_plain = in_a_row > *ret_most_plain ? in_a_row : *ret_most_plain;
        n -= room;
        at = n > 0 && room > 0 ? room : at;
    }
    return at;
}

Test(slice, twice_a_plain_step)
{
    struct slice s = {0};
    int32_t most_plain = 0;

    cr_assert_eq(slice_room(&s, 0), INT32_MAX, "nobody waits");
    cr_assert_eq(slice_room(&s, 1), 0, "a plain step first");
    /* A row costs a fortieth of a plain step, whatever their number. */
    int32_t n = settle(&s, 4e6, 0, 1e5, 20000, &most_plain);

    cr_assert(n >= 24 && n <= 48, "%d rows", n);
    cr_assert_leq(most_plain, 1);
}

Test(slice, half_the_speed_at_least)
{
    struct slice s = {0};
    int32_t most_plain = 0;

    /* At full speed a row takes 0.5 ms; each slice goes through the keys, 25 ms. */
    slice_add(&s, 0, 512, 512 * 5e5 + 25e6);
    int32_t n = settle(&s, 4e6, 25e6, 5e5, 20000, &most_plain);
    double row = (25e6 + n * 5e5) / n;

    cr_assert(row > 0.6 * 2 * 5.5e5 && row < 1.4 * 2 * 5.5e5, "%d rows, %.0f ns each", n, row);
    cr_assert_leq(most_plain, 1);
}

Test(slice, forgets_what_was_off)
{
    struct slice s = {0};
    int32_t most_plain = 0;

    /* A plain step that took four times as long, */
    (void)settle(&s, 4e6, 0, 1e5, 20000, &most_plain);
    slice_add(&s, 1, 0, 16e6);
    int32_t n = settle(&s, 4e6, 0, 1e5, 40000, &most_plain);

    cr_assert(n >= 24 && n <= 56, "%d rows", n);
    /* and sixteen who decode, with steps of 49 ms, of whom one stays. */
    for (int i = 0; i < 200; i++) {
        int32_t room = slice_room(&s, 16);

        slice_add(&s, 16, room, 49e6 + room * 1e5);
    }
    n = settle(&s, 4e6, 0, 1e5, 60000, &most_plain);
    cr_assert(n >= 24 && n <= 56, "%d rows", n);
    cr_assert_leq(most_plain, 1);
    /* One lucky sample after another. */
    s.full_ns = 1e3;
    n = settle(&s, 4e6, 0, 1e5, 400000, &most_plain);
    cr_assert(n < 256, "%d rows", n);
}

Test(slice, steps_that_are_never_measured_hold_no_prompt_up)
{
    struct slice s = {0};
    int32_t n_none = 0;

    for (int i = 0; i < 100; i++) {
        n_none += slice_room(&s, 1) == 0;
    }
    cr_assert_leq(n_none, 50);
}

Test(slice, goes_on_when_crowds_change)
{
    struct slice s = {0};
    int32_t n_none = 0;

    for (int i = 0; i < 1000; i++) { /* another number of decode rows in each step */
        int32_t crowd = 1 << i % SLICE_CROWDS;
        int32_t room = slice_room(&s, crowd);

        n_none += room == 0;
        slice_add(&s, crowd, room, 4e6 + room * 1e5);
    }
    cr_assert_leq(n_none, 1000 / 2, "prompts stand still");
}

enum { CTX = 400, N_PROMPT = 330, N_NEW = 30, N_LONG = 120 };

static void compare(const char *backend, const char *kv, bool is_cut)
{
    static struct run talker, alone, beside;
    int32_t first[8];
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine("stories260K.gguf", backend, CTX, 2, kv);
    int32_t n_vocab = engine_info(e)->n_vocab;

    run_tokens(1, n_vocab, first, 8);
    run_tokens(2, n_vocab, ids, N_PROMPT);
    struct engine_request talk = run_request(first, 8, N_LONG);
    struct engine_request ask = run_request(ids, N_PROMPT, N_NEW);

    run_submit(e, &ask, &alone);
    run_all(e);
    run_submit(e, &talk, &talker);
    while (talker.n_new < 5) {
        (void)run_step(e);
    }
    run_submit(e, &ask, &beside);
    int32_t before = talker.n_new;

    while (beside.n_new == 0 && !beside.done) {
        (void)run_step(e);
    }
    /* 330 tokens in chunks of 128 are three steps; slices begin with 64 rows, and a plain step may
     * come between. */
    int32_t steps = talker.n_new - before;

    cr_expect(is_cut ? steps >= 5 : steps <= 4, "%s, %s: %d steps", backend, kv, steps);
    run_all(e);
    cr_expect(run_same(&alone, &beside), "%s, %s: the answer depends on its company", backend, kv);
    cr_expect_eq(beside.progress, N_PROMPT);
    run_clear(&talker);
    run_clear(&alone);
    run_clear(&beside);
    engine_destroy(e);
}

Test(slice, no_bit_depends_on_it, .timeout = 300)
{
    static const struct {
        const char *kv;
        bool is_cut;
    } of[] = {
        {"full,chunk=128", true},
        {"fp8+window:50%,chunk=128", true},
        {"kv8+sinks:4+window:50%,chunk=128", true},
        {"h2o:50%,chunk=128", true},
        {"h2o:50%,chunk=128,prefill=dense", true},
        {"keyformer:50%,chunk=128,prefill=dense", true},
        {"recency:50%,chunk=128,observe=200,prefill=dense",
         true}, /* up to the first row observed */
        {"recency:50%,chunk=128,observe=330,prefill=dense",
         false},                           /* weights from a call's first row */
        {"keyformer:50%,chunk=128", true}, /* layer by layer: three units a layer */
        {"recency:50%,chunk=128", true},
        {"keyformer:50%,chunk=128,prefill=bounded", false},
        {"recency:50%,chunk=128,prefill=bounded", false},
        {"full,chunk=128+sparq:r=4,k=32,local=8", true},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        if (i % 4 == 0) {
            compare("ref", of[i].kv, of[i].is_cut);
        }
        compare("cpu", of[i].kv, of[i].is_cut);
    }
}
