/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_POLICY_WORDS_H
#define PIPIT_BASE_POLICY_WORDS_H

/* The words of cache policies, for --help and completions of programs that have no engine in them.
 * In the form in which deploy/describe.py finds the values of an option. tests/unit's policy_tables
 * compares the list with the registry (engine/kv/policy/registry.c). */
#define POLICY_WORDS                                                                               \
    "[f32, f16, bf16, fp8, kv8, k8v4, kv4, k16v8, q8_0, q4_0, full, window, streaming, h2o, "      \
    "keyformer, recency, snapkv, expected, kvzap, sinks, sparq, topv, infinigen or exit]"

#endif
