/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_STORE_FILL_H
#define PIPIT_ENGINE_KV_STORE_FILL_H

/* For measurements: a sequence whose cache holds synthetic keys and values, as many and laid out as
 * its policy would have them after its prompt. What a decode step costs depends on counts and
 * types, not on values, and reading 32k tokens to get there would take minutes. */

#include "engine/kv/seq/cache.h"

/* On a fresh seat whose text says that all of the prompt is held. -ENOMEM, or the device's error.
 */
int cache_fill(struct cache *c, int32_t seat) WARN_UNUSED;

#endif
