/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-calibrate: an overlay with what a cache may be told of a model, from a text that the model
 * reads once. Any text of the model's language will do.
 *
 * Tensors: the mean key of every store and head, after RoPE, which 8-bit caches subtract, and the
 * mean of q q^T over its queries, for which keys in fp8 and 4 bits are rounded
 * (docs/design/centring.md). Key pipit.cache.layer_weights: how many keys of each layer hold 0.9 of
 * a query's weight, on average over the last chunk, by which layers=measured divides budgets. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/command.h"
#include "tools/skew_run.h"
#include "tools/surrogate_make.h"

struct config {
    char *model;
    struct option_list overlays;
    char *text;
    bool scores;
    char *check;
    int64_t tokens;
    int64_t threads;
    bool help;
};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct config, model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, offsetof(struct config, overlays), .metavar = "FILE", .help = "an overlay that the new one builds on (a distilled SwiftKV); repeats"},
    {"text", 0, OPTION_STRING, offsetof(struct config, text), .metavar = "FILE", .help = "UTF-8 text to calibrate with"},
    {"tokens", 'n', OPTION_INT, offsetof(struct config, tokens), 0, 1 << 20, .fallback = "0", .help = "that are read; 0: 512 of the text's start, with --scores 24576 in pieces of 768 that lie evenly over it"},
    {"scores", 0, OPTION_FLAG, offsetof(struct config, scores), .help = "make maps from hidden states to scores instead, for the policy kvzap"},
    {"check", 0, OPTION_STRING, offsetof(struct config, check), .metavar = "FILE", .help = "with --scores: another text, on which the maps are tested; prints what they explain"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 1024, .fallback = "0", .help = "0: one for each CPU"},
    {"help", 'h', OPTION_FLAG, offsetof(struct config, help), .flags = OPTION_ARGV_ONLY, .help = "show this text"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-calibrate --model FILE --text FILE [OPTION]... OUT.gguf",
    .intro =
        "Makes an overlay from a text that the model reads once: what 8-bit caches subtract from\n"
        "keys (center=auto), how keys in fp8 and 4 bits are rounded, and how evicting policies\n"
        "divide slots among layers (layers=measured).",
};

static int put_keys(struct gguf_writer *w, const struct skew_sums *sums, int32_t n_layers)
{
    float *weights = calloc((size_t)n_layers, sizeof(*weights));
    int r = weights ? 0 : -ENOMEM;

    for (int32_t il = 0; !r && il < n_layers; il++) {
        weights[il] = (float)sums->reach[il];
    }
    r = r ? r
          : gguf_writer_array(w, "pipit.cache.layer_weights", GGUF_F32, weights, (size_t)n_layers);
    free(weights);
    return r;
}

/* n values, each over `count`, as f32. */
static int put_values(struct gguf_writer *w, const double *x, size_t n, double count)
{
    float *values = calloc(n, sizeof(*values));
    int r = values ? 0 : -ENOMEM;

    for (size_t i = 0; !r && i < n; i++) {
        values[i] = (float)(x[i] / count);
    }
    r = r ? r : gguf_writer_data(w, values, n * sizeof(*values));
    free(values);
    return r;
}

static int put_store(struct gguf_writer *w, const struct skew_sums *sums, int32_t store,
                     const struct skew_store *s, bool declare)
{
    size_t n = (size_t)s->n_k * (size_t)s->dim;
    char name[64];

    if (declare) {
        uint64_t dims[2] = {(uint64_t)s->dim, n};
        int r;

        (void)snprintf(name, sizeof(name), "blk.%d.attn_center.weight", s->layer);
        r = gguf_writer_tensor(w, name, DTYPE_F32, 1, (const uint64_t[]){n});
        (void)snprintf(name, sizeof(name), "blk.%d.attn_query%s.weight", s->layer,
                       s->deep ? "_swiftkv" : "");
        return r || !s->queries ? r : gguf_writer_tensor(w, name, DTYPE_F32, 2, dims);
    }
    int r = put_values(w, skew_mean(sums, store), n, 1);

    if (!r && s->queries) {
        r = put_values(w, skew_qq(sums, store), n * (size_t)s->dim, sums->queries[store]);
    }
    return r;
}

/* Two overlays may not bring the same tensors. */
static int check(const struct skew_model *m, struct error *reterr)
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
    if (m->model->h.attn_softcap > 0) {
        return error_set(reterr, -ENOTSUP,
                         "the model caps its logits, and a cap feels what keys are stored less");
    }
    return model_has_sinks(m->model)
               ? error_set(reterr, -ENOTSUP,
                           "the model has sinks, logits that feel what keys are stored less")
               : 0;
}

static int make_scores(const struct config *c, const struct option_list *words,
                       struct error *reterr)
{
    if (!c->model || !c->text || words->n != 1) {
        return error_set(reterr, -EINVAL, "--model, --text and one OUT.gguf are needed");
    }
    return surrogate_make(
        &(struct surrogate_config){.model = c->model,
                                   .overlays = &c->overlays,
                                   .text = c->text,
                                   .check = c->check,
                                   .n_tokens = c->tokens ? (int32_t)c->tokens : 24576,
                                   .n_threads = (int)c->threads,
                                   .out = words->v[0]},
        reterr);
}

static int run(const void *config, const struct option_list *words, struct error *reterr)
{
    const struct config *c = config;

    if (!c->scores && c->check) {
        return error_set(reterr, -EINVAL, "--check is for --scores");
    }
    if (c->tokens && c->tokens < 16) {
        return error_set(reterr, -EINVAL, "--tokens: %d, but must be 0 or at least 16",
                         (int)c->tokens);
    }
    if (c->scores) {
        return make_scores(c, words, reterr);
    }
    return skew_make(&(struct skew_job){.model = c->model,
                                        .overlays = &c->overlays,
                                        .text = c->text,
                                        .n_tokens = c->tokens ? (int32_t)c->tokens : 512,
                                        .n_threads = (int)c->threads,
                                        .means = true,
                                        .check = check,
                                        .put_keys = put_keys,
                                        .put_store = put_store},
                     words, reterr);
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
