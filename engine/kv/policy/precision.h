/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_PRECISION_H
#define PIPIT_ENGINE_KV_POLICY_PRECISION_H

/* The words of precision, one row each, for registry.c. */

#include "engine/kv/policy/word.h"

enum { POLICY_N_PRECISIONS = 10 };

extern const struct policy_word policy_precisions[POLICY_N_PRECISIONS];

#endif
