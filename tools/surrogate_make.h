/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SURROGATE_MAKE_H
#define PIPIT_TOOLS_SURROGATE_MAKE_H

/* pipit-calibrate --scores: from a model and texts to an overlay of maps from hidden states to
 * scores (surrogate_run.h says of what). */

#include "base/options.h"

enum { SURROGATE_PIECE = 768, SURROGATE_TEST = 4 };

struct surrogate_config {
    const char *model;
    const struct option_list *overlays;
    const char *text;
    const char *check; /* a text on which the maps are tested, SURROGATE_TEST pieces; or NULL */
    int32_t n_tokens;  /* of the text, in pieces of SURROGATE_PIECE (one, if that is more) that lie
                          evenly over it */
    int n_threads;
    const char *out;
};

int surrogate_make(const struct surrogate_config *c, struct error *reterr) WARN_UNUSED;

#endif
