/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/kv/policy/advice.h"

#include <stddef.h>

/* Of War and Peace, 8 chunks of 2,048 tokens, decoded: SmolLM2-135M, gemma-3-270m,
 * Qwen2.5-Coder-0.5B. */
static const struct policy_advice table[] = {
    {.kv = "full", .bytes = 100},
    {.kv = "kv8", .bytes = 51.6, .least = -0.1, .most = 0.2, .half = 0.3},
    {.kv = "k8v4", .bytes = 39.8, .least = -0.4, .most = 0.2, .half = 0.3},
    {.kv = "kv4", .bytes = 28.1, .least = 0.4, .most = 1.0, .half = 0.6},
    {.kv = "kv8+recency:50%ctx",
     .bytes = 25.8,
     .least = -0.8,
     .most = 1.1,
     .half = 0.8,
     .evicts = true},
    {.kv = "kv4+expected:50%ctx",
     .bytes = 14.1,
     .least = -0.5,
     .most = 1.4,
     .half = 0.9,
     .evicts = true},
    /* where expected weights are refused, or take more memory than they save */
    {.kv = "kv4+recency:50%ctx",
     .bytes = 14.1,
     .least = -0.2,
     .most = 1.6,
     .half = 1.4,
     .evicts = true},
    {.kv = "kv4+expected:43%ctx",
     .bytes = 12.3,
     .least = -0.1,
     .most = 1.8,
     .half = 0.9,
     .evicts = true},
    {.kv = "kv4+recency:43%ctx",
     .bytes = 12.3,
     .least = -0.1,
     .most = 2.1,
     .half = 1.4,
     .evicts = true},
    /* for heads that 4 bits do not take: it holds more than those before */
    {.kv = "kv8+recency:25%ctx",
     .bytes = 12.9,
     .least = 1.6,
     .most = 3.9,
     .half = 2.5,
     .evicts = true},
    {.kv = "kv4+expected:25%ctx",
     .bytes = 7.0,
     .least = 1.0,
     .most = 3.9,
     .half = 1.4,
     .evicts = true},
    {.kv = "kv4+recency:25%ctx",
     .bytes = 7.0,
     .least = 2.1,
     .most = 4.3,
     .half = 2.7,
     .evicts = true},
};

const struct policy_advice *policy_advice(int i)
{
    return i >= 0 && (size_t)i < sizeof(table) / sizeof(table[0]) ? &table[i] : NULL;
}
