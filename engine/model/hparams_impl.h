/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_HPARAMS_IMPL_H
#define PIPIT_ENGINE_MODEL_HPARAMS_IMPL_H

/* What the files that read hyperparameters share. Private to hparams*.c. */

#include "engine/model/hparams.h"

struct reader {
    const struct gguf *g;
    const char *prefix;
    struct error *reterr;
    size_t n_unused; /* layers that are left out at the end of lists */
    int rc;
};

enum { REQUIRED = -1 }; /* as what an absent key stands for: none may be absent */

/* hparams.c: a key's full name; its value; a number for each layer. */
void hparams_key(const struct reader *r, const char *name, char *buf, size_t size);
int32_t hparams_i32(struct reader *r, const char *name, int32_t min, int32_t max, int32_t absent);
float hparams_f32(struct reader *r, const char *name, float min, float max, float absent);
void hparams_list(struct reader *r, const char *name, int32_t min, int32_t max, int32_t absent,
                  int32_t n, int32_t *ret);

/* hparams_experts.c: mixtures of experts. */
void hparams_experts(struct reader *r, const struct arch *arch, struct hparams *h);

/* hparams_recur.c: which layers are recurrent; the sizes of these; which of the rotated dims follow
 * positions of their own. */
void hparams_recurrent(struct reader *r, const struct arch *arch, struct hparams *h);
void hparams_recur(struct reader *r, const struct arch *arch, struct hparams *h);
void hparams_sections(struct reader *r, const struct arch *arch, const struct hparams *h);

/* The first layer with attention; of a model without, the last layer. */
static inline const struct layer_sizes *hparams_first(const struct hparams *h)
{
    int32_t i = 0;

    while (i + 1 < h->n_layers && (h->layer[i].recurrent || h->layer[i].bare)) {
        i++;
    }
    return &h->layer[i];
}

#endif
