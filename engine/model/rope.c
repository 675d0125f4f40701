/* SPDX-License-Identifier: Apache-2.0 */
/* Inverse frequencies. Linear scaling divides every frequency; YaRN (Peng et al., 2023) divides
 * the slow ones, keeps those that turn more than beta_fast times within the original context, and
 * goes from one to the other linearly in the pair's index; cos and sin grow by 0.1 ln(factor) + 1.
 */

#include "engine/model/rope.h"

#include <math.h>

/* The pair's index whose frequency makes `turns` turns over the original context. */
static double yarn_index(const struct hparams *h, int32_t n_rot, double base, double turns)
{
    return (double)n_rot * log((double)h->rope_orig_ctx / (turns * 2.0 * M_PI)) / (2.0 * log(base));
}

float rope_table(const struct hparams *h, int32_t n_rot, float base, bool scaled,
                 const float *factors, float *inv_freq)
{
    int n = n_rot / 2;
    enum rope_scaling scaling = scaled ? h->rope_scaling : ROPE_SCALING_NONE;
    double divisor = scaling == ROPE_SCALING_NONE ? 1.0 : (double)h->rope_factor;
    double low = 0;
    double high = 1;

    if (scaling == ROPE_SCALING_YARN) {
        low = fmax(0.0, floor(yarn_index(h, n_rot, (double)base, (double)h->rope_beta_fast)));
        high = fmin((double)(n - 1),
                    ceil(yarn_index(h, n_rot, (double)base, (double)h->rope_beta_slow)));
    }
    for (int i = 0; i < n; i++) {
        double f = pow((double)base, -2.0 * i / (double)n_rot);
        double share = 1.0; /* of the divided frequency */

        if (factors) {
            f /= (double)factors[i];
        }
        if (scaling == ROPE_SCALING_YARN) {
            share = fmin(1.0, fmax(0.0, ((double)i - low) / fmax(0.001, high - low)));
        }
        inv_freq[i] = (float)(share * f / divisor + (1.0 - share) * f);
    }
    if (scaling != ROPE_SCALING_YARN) {
        return scaled ? h->rope_attn_factor : 1.0f;
    }
    double grown = divisor > 1.0 ? 0.1 * log(divisor) : 0.0;

    return h->rope_attn_factor * (float)((1.0 + grown) / (1.0 + (double)h->rope_log_mul * grown));
}
