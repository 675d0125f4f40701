/* SPDX-License-Identifier: Apache-2.0 */
/* The pool beside a tier's file against a plain model of it: an array that is searched for the
 * smallest count, then the one that came to it first. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/kv/home/tier_pool.h"

enum { CTX = 200, SLOTS = 40, SETS = 3, EXEMPT = 7, BYTES = 12 };

struct model {
    enum policy_victim victim;
    bool here[CTX];
    int count[CTX];
    uint64_t since[CTX]; /* when it came to its count */
    uint8_t data[CTX][BYTES];
    uint64_t now;
    int n_halved;
};

static int held(const struct model *m)
{
    int n = 0;

    for (int i = 0; i < CTX; i++) {
        n += m->here[i];
    }
    return n;
}

/* In the order of counts, then of time: what has half of two counts keeps that order. */
static void halve(struct model *m)
{
    m->n_halved++;
    for (int c = 0; c < 256; c++) {
        uint64_t last = 0;

        for (;;) {
            int next = -1;

            for (int i = 0; i < CTX; i++) {
                if (m->here[i] && m->count[i] == c && m->since[i] > last &&
                    (next < 0 || m->since[i] < m->since[next])) {
                    next = i;
                }
            }
            if (next < 0) {
                break;
            }
            last = m->since[next];
            m->count[next] = 1000 + c / 2;
            m->since[next] = ++m->now;
        }
    }
    for (int i = 0; i < CTX; i++) {
        m->count[i] -= m->count[i] >= 1000 ? 1000 : 0;
    }
}

static void list(struct model *m, int slot)
{
    if (!m->here[slot] || m->victim == POLICY_FIFO) {
        return;
    }
    if (m->victim == POLICY_COUNTER && m->count[slot] == 255) {
        halve(m);
    }
    m->count[slot] += m->victim == POLICY_COUNTER;
    m->since[slot] = ++m->now;
}

static void put(struct model *m, int slot, const uint8_t *from, const uint8_t *marks, int last)
{
    if (!m->here[slot] && held(m) == SLOTS) {
        int v = -1;

        for (int i = 0; i < CTX; i++) {
            bool stays =
                marks[i] == TIER_IN_POOL || (m->victim == POLICY_COUNTER && i > last - EXEMPT);

            if (m->here[i] && !stays &&
                (v < 0 || m->count[i] < m->count[v] ||
                 (m->count[i] == m->count[v] && m->since[i] < m->since[v]))) {
                v = i;
            }
        }
        if (v < 0) {
            return;
        }
        m->here[v] = false;
    }
    if (!m->here[slot]) {
        m->here[slot] = true;
        m->count[slot] = 0;
        m->since[slot] = ++m->now;
    }
    memcpy(m->data[slot], from, BYTES);
}

static void same(const struct tier_pool *p, const struct model *m, int set, int step)
{
    for (int i = 0; i < CTX; i++) {
        const uint8_t *d = tier_pool_find(p, 1, set, i);

        cr_assert_eq(d != NULL, m->here[i], "set %d, step %d: slot %d", set, step, i);
        cr_assert(!d || memcmp(d, m->data[i], BYTES) == 0, "set %d, step %d: slot %d", set, step,
                  i);
    }
}

static void compare(enum policy_victim rule)
{
    const struct tier_pool_config config = {2, SETS, SLOTS, CTX, BYTES};
    struct model m[SETS] = {{.victim = rule}, {.victim = rule}, {.victim = rule}};
    struct tier_pool *p = NULL;
    struct error err;
    uint8_t marks[CTX];
    uint8_t data[BYTES];

    cr_assert_eq(tier_pool_create(&config, &p, &err), 0);
    tier_pool_admit(p, 1, &(struct tier_pool_rule){rule, SLOTS, EXEMPT});
    cr_assert_eq(tier_pool_readmits(p, 1), rule != POLICY_FIFO);
    for (int step = 0; step < 6000; step++) {
        uint32_t counter[4] = {(uint32_t)step, (uint32_t)rule, 0, 0};
        uint32_t r[4];

        rng_philox(rng_key_make(8), counter, r);
        int set = (int)(r[0] % SETS);
        int last = step / 40 + 20; /* the text grows */
        int slot = (int)(r[1] % (uint32_t)(last + 1));

        memset(marks, 0, sizeof(marks));
        for (int i = 0; step % 5 == 0 && i < CTX; i++) {
            marks[i] = step % 1000 == 0 || (r[2] >> i % 32 & 1) ? TIER_IN_POOL : TIER_IN_FILE;
        }
        memset(data, (int)r[3], BYTES);
        if (step % 3 == 0) {
            int at = step % 6 ? slot : last;

            tier_pool_put(p, 1, set, at, data, marks, last);
            put(&m[set], at, data, marks, last);
        }
        for (int n = 0; n < (slot % 10 == 0 ? 30 : 1); n++) {
            tier_pool_list(p, 1, set, slot);
            list(&m[set], slot);
        }
        same(p, &m[set], set, step);
        cr_assert_null(tier_pool_find(p, 0, set, slot));
    }
    cr_assert(rule != POLICY_COUNTER || m[0].n_halved > 1);
    tier_pool_admit(p, 1, &(struct tier_pool_rule){rule, SLOTS, EXEMPT});
    for (int i = 0; i < CTX; i++) {
        cr_assert_null(tier_pool_find(p, 1, 0, i));
    }
    tier_pool_destroy(p);
}

Test(tier_pool, fifo)
{
    compare(POLICY_FIFO);
}

Test(tier_pool, lru)
{
    compare(POLICY_LRU);
}

Test(tier_pool, counter)
{
    compare(POLICY_COUNTER);
}
