/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of policy texts, a text a line: one is refused with a position, or its
 * canonical form says the same and is known again when a session saved it; a budget is at least
 * what the policy protects and never more than the context; and a model and backend that cannot do
 * what it asks say so. Seeds: make_seeds_policy.py. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/kv/policy/policy.h"
#include "kernels/backend.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 600 };

static int predict(struct backend *b, const struct ops_predict *p)
{
    (void)b;
    (void)p;
    return 0;
}

/* Models and backends of every kind. */
static void check_hosts(const struct policy *p)
{
    const struct backend_ops ops[] = {{.name = "all"},
                                      {.name = "some", .selects = true},
                                      {.name = "more", .selects = true, .predict = predict}};

    for (unsigned bits = 0; bits < 2048; bits++) {
        const struct policy_host h = {.ops = &ops[bits % 3],
                                      .one_memory = bits & 1,
                                      .exit_head = bits & 2,
                                      .sinks = bits & 4,
                                      .split = bits & 8,
                                      .alibi = bits & 256,
                                      .softcap = bits & 512,
                                      .stateful = bits & 1024,
                                      .least_k_dim = bits & 16 ? 8 : 128,
                                      .part_keys = bits & 32,
                                      .no_part_keys = bits & 64 ? 2 : -1,
                                      .weighed = bits & 128,
                                      .uneven = {bits & 4 ? -1 : 1, 3}};
        struct error e = {0};
        int r = policy_check_host(p, &h, &e);

        require(r == 0 || ((r == -ENOTSUP || r == -EINVAL) && e.code == r && e.text[0]));
    }
}

static void check(const struct policy *p)
{
    char text[KV_TEXT_MAX];
    struct policy q;

    policy_print(p, text, sizeof(text));
    require(policy_parse(text, &q, NULL) == 0);
    require(memcmp(p, &q, sizeof(q)) == 0);
    require(policy_same_saved(p, text));
    for (int32_t n = 1; n < 1 << 20; n *= 7) {
        int32_t b = policy_budget(p, n, 4096);

        require(b >= 0 && b <= 4096 && (policy_evicts(p) ? b > 0 : b == 0));
    }
    check_hosts(p);
}

static void try_text(const char *data, size_t n)
{
    char text[MOST];
    struct error e = {0};
    struct policy p;
    struct policy saved;
    struct policy_mix m;

    n = n < sizeof(text) - 1 ? n : sizeof(text) - 1;
    memcpy(text, data, n);
    text[n] = 0;
    int r = policy_parse(text, &p, &e);

    require(r == 0 || (r == -EINVAL && strstr(e.text, "character")));
    if (r == 0) {
        check(&p);
        require(policy_parse_saved(text, &saved, NULL) == 0);
        require(policy_same_saved(&saved, text));
        check_hosts(&saved);
    }
    require(r == 0 || !policy_same_saved(&(struct policy){0}, text));
    r = policy_parse_mix(text, &m, NULL);
    for (int32_t i = 0; r == 0 && i < m.n; i++) {
        check(&m.part[i].policy);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *end;

    while ((end = memchr(text, '\n', size))) {
        try_text(text, (size_t)(end - text));
        size -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    try_text(text, size);
    return 0;
}
