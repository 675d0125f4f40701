/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the parser of policy texts: a text is refused with a position, or its canonical form says
 * the same; a budget is at least what the policy protects and never more than the context. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/policy/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void check(const struct policy *p)
{
    char text[KV_TEXT_MAX];
    struct policy q;

    policy_print(p, text, sizeof(text));
    require(policy_parse(text, &q, NULL) == 0);
    require(memcmp(p, &q, sizeof(q)) == 0);
    for (int32_t n = 1; n < 1 << 20; n *= 7) {
        int32_t b = policy_budget(p, n, 4096);

        require(b >= 0 && b <= 4096 && (policy_evicts(p) ? b > 0 : b == 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[600];
    struct error e = {0};
    struct policy p;
    struct policy_mix m;
    size_t n = size < sizeof(text) - 1 ? size : sizeof(text) - 1;

    memcpy(text, data, n);
    text[n] = 0;
    int r = policy_parse(text, &p, &e);

    require(r == 0 || (r == -EINVAL && strstr(e.text, "character")));
    if (r == 0) {
        check(&p);
    }
    r = policy_parse_mix(text, &m, NULL);
    for (int32_t i = 0; r == 0 && i < m.n; i++) {
        check(&m.part[i].policy);
    }
    return 0;
}
