/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-calibrate: the overlay that says what a cache of 8 bits stores keys less
 * (docs/design/centring.md): the mean key of every store and head, after RoPE, over a text that the
 * model reads once. Any text of the model's language will do. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/command.h"
#include "tools/skew_run.h"

struct config {
    char *model;
    struct option_list overlays;
    char *text;
    int64_t tokens;
    int64_t threads;
    bool help;
};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct config, model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, offsetof(struct config, overlays), .metavar = "FILE", .help = "an overlay that the new one builds on (a distilled SwiftKV); repeats"},
    {"text", 0, OPTION_STRING, offsetof(struct config, text), .metavar = "FILE", .help = "UTF-8 text to calibrate with"},
    {"tokens", 'n', OPTION_INT, offsetof(struct config, tokens), 16, 1 << 20, .fallback = "512", .help = "of the text's start"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 1024, .fallback = "0", .help = "0: one for each CPU"},
    {"help", 'h', OPTION_FLAG, offsetof(struct config, help), .flags = OPTION_ARGV_ONLY, .help = "show this text"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-calibrate --model FILE --text FILE [OPTION]... OUT.gguf",
    .intro = "Makes an overlay with what 8-bit caches store keys less (center=auto), from a text\n"
             "that the model reads once.",
};

struct store {
    int32_t layer;
    int32_t n_heads;
};

static int put_store(struct gguf_writer *w, const struct skew_sums *sums, int32_t store,
                     int32_t n_heads, int32_t dim)
{
    size_t n = (size_t)n_heads * (size_t)dim;
    const double *mean = sums->mean + (size_t)store * (size_t)sums->heads * (size_t)dim;
    float *center = calloc(n, sizeof(*center));
    int r = center ? 0 : -ENOMEM;

    for (size_t i = 0; !r && i < n; i++) {
        center[i] = (float)mean[i];
    }
    r = r ? r : gguf_writer_data(w, center, n * sizeof(*center));
    free(center);
    return r;
}

static int write_overlay(const struct skew_model *m, const struct store *stores, int32_t n_stores,
                         int32_t dim, const struct skew_sums *sums, const char *path,
                         struct error *reterr)
{
    struct gguf_writer *w = NULL;
    int r = skew_overlay_create(m, path, &w, reterr);

    if (r) {
        return r;
    }
    for (int32_t s = 0; !r && s < n_stores; s++) {
        uint64_t dims[1] = {(uint64_t)stores[s].n_heads * (uint64_t)dim};
        char name[64];

        (void)snprintf(name, sizeof(name), "blk.%d.attn_center.weight", stores[s].layer);
        r = gguf_writer_tensor(w, name, DTYPE_F32, 1, dims);
    }
    for (int32_t s = 0; !r && s < n_stores; s++) {
        r = put_store(w, sums, s, stores[s].n_heads, dim);
    }
    if (r) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", path);
    }
    return gguf_writer_finish(w, reterr);
}

/* Two overlays may not bring the same tensors. */
static int check_new(const struct skew_model *m, struct error *reterr)
{
    char name[64];

    for (int i = 0; i < m->n_overlays; i++) {
        for (int32_t s = 0; s < m->model->n_stores; s++) {
            (void)snprintf(name, sizeof(name), "blk.%d.attn_center.weight",
                           m->model->stores[s].layer);
            if (gguf_tensor_find(m->overlays[i], name)) {
                return error_set(reterr, -EINVAL, "the overlay has centers already: %s", name);
            }
        }
    }
    return 0;
}

static int run(const void *config, const struct option_list *words, struct error *reterr)
{
    const struct config *c = config;
    struct skew_model m = {0};
    struct skew_sums sums = {0};
    struct store *stores = NULL;
    char *text = NULL;
    size_t len = 0;
    int r;

    if (!c->model || !c->text || words->n != 1) {
        return error_set(reterr, -EINVAL, "--model, --text and one OUT.gguf are needed");
    }
    r = skew_read_text(c->text, &text, &len, reterr);
    r = r ? r : skew_open(c->model, c->overlays.v, c->overlays.n, &m, reterr);
    r = r ? r : check_new(&m, reterr);
    if (!r && m.model->h.attn_softcap > 0) {
        r = error_set(reterr, -ENOTSUP,
                      "the model caps its logits, and a cap feels what keys are stored less");
    }
    if (!r) {
        int32_t n_stores = m.model->n_stores; /* the run closes the model */
        int32_t dim = m.model->h.most.k_dim;

        stores = calloc((size_t)n_stores, sizeof(*stores));
        r = stores ? 0 : error_set(reterr, -ENOMEM, "no memory");
        for (int32_t s = 0; !r && s < n_stores; s++) {
            stores[s] = (struct store){m.model->stores[s].layer, m.model->stores[s].n_k};
        }
        r = r ? r
              : skew_run(&m, text, len, (int32_t)c->tokens, (int)c->threads, NULL, true, &sums,
                         reterr);
        r = r ? r : write_overlay(&m, stores, n_stores, dim, &sums, words->v[0], reterr);
    }
    skew_sums_finish(&sums);
    skew_close(&m);
    free(stores);
    free(text);
    return r;
}

int main(int argc, char **argv)
{
    struct config c = {0};

    return command_main(&(struct command){.name = "pipit-calibrate",
                                          .table = &table,
                                          .config = &c,
                                          .help = &c.help,
                                          .takes_words = true,
                                          .run = run},
                        argc, argv);
}
