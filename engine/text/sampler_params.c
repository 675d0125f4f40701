/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler's settings: defaults and ranges, one row each. The defaults are those of llama.cpp,
 * so that the same request reads alike in both. */

#include <errno.h>

#include "engine/text/sampler.h"

struct sampler_params sampler_params_default(void)
{
    return (struct sampler_params){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1,
        .penalty_window = 64,
        .n_logprobs = -1,
    };
}

int sampler_params_check(const struct sampler_params *p, struct error *reterr)
{
    const struct {
        const char *name;
        double value;
        double min;
        double max;
    } rows[] = {
        {"temperature", (double)p->temperature, 0, 100},
        {"top_k", p->top_k, 0, INT32_MAX},
        {"top_p", (double)p->top_p, 0, 1},
        {"min_p", (double)p->min_p, 0, 1},
        {"repeat_penalty", (double)p->repeat_penalty, (double)0.01f, 100},
        {"presence_penalty", (double)p->presence_penalty, -100, 100},
        {"frequency_penalty", (double)p->frequency_penalty, -100, 100},
        {"penalty_window", p->penalty_window, 0, SAMPLER_MAX_WINDOW},
        {"n_logprobs", p->n_logprobs, -1, SAMPLER_MAX_LOGPROBS},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!(rows[i].value >= rows[i].min && rows[i].value <= rows[i].max)) {
            return error_set(reterr, -EINVAL, "%s is %g, allowed is %g to %g", rows[i].name,
                             rows[i].value, rows[i].min, rows[i].max);
        }
    }
    return 0;
}
