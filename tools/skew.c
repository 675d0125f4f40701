/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-skew: the overlay that InfiniGen ranks by (docs/design/sparse-attention.md). A text is read
 * once; of each store's queries the right singular vectors become the rows of
 * blk.J.attn_skew.weight, the largest first, and the order of its dims by |q| + |k| those of
 * blk.J.attn_columns.weight. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/command.h"
#include "tools/skew_math.h"
#include "tools/skew_run.h"

struct config {
    char *model;
    struct option_list overlays;
    char *text;
    int64_t tokens;
    int64_t threads;
    bool report;
    bool help;
};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct config, model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, offsetof(struct config, overlays), .metavar = "FILE", .help = "an overlay that the skew builds on (a distilled SwiftKV); repeats"},
    {"text", 0, OPTION_STRING, offsetof(struct config, text), .metavar = "FILE", .help = "UTF-8 text to calibrate with"},
    {"tokens", 'n', OPTION_INT, offsetof(struct config, tokens), 64, 1 << 20, .fallback = "2048", .help = "of the text's start"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 1024, .fallback = "0", .help = "0: one for each CPU"},
    {"report", 0, OPTION_FLAG, offsetof(struct config, report), .help = "print by layer how alike successive inputs are, and how many keys hold 0.9 of the weight"},
    {"help", 'h', OPTION_FLAG, offsetof(struct config, help), .flags = OPTION_ARGV_ONLY, .help = "show this text"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-skew --model FILE --text FILE [OPTION]... OUT.gguf",
    .intro = "Makes the overlay that the cache policy \"infinigen\" needs, from a text that the\n"
             "model reads once.",
};

/* One store's heads. */
static int put_store(struct gguf_writer *w, const struct skew_sums *sums, int32_t store,
                     const struct skew_store *s, bool declare)
{
    size_t d = (size_t)s->dim;
    uint64_t dims[2] = {d, d * (uint64_t)s->n_k};
    char name[64];

    if (!s->wanted) {
        return 0;
    }
    if (declare) {
        (void)snprintf(name, sizeof(name), "blk.%d.attn_skew.weight", s->layer);
        int r = gguf_writer_tensor(w, name, DTYPE_F32, 2, dims);

        (void)snprintf(name, sizeof(name), "blk.%d.attn_columns.weight", s->layer);
        return r ? r : gguf_writer_tensor(w, name, DTYPE_F16, 2, dims);
    }
    double *scratch = calloc(d * (d + 1), sizeof(*scratch));
    float *skew = calloc(d * d * (size_t)s->n_k, sizeof(*skew));
    uint16_t *order = calloc(d * d * (size_t)s->n_k, sizeof(*order));
    int r = scratch && skew && order ? 0 : -ENOMEM;

    for (size_t h = 0; !r && h < (size_t)s->n_k; h++) {
        skew_eigenvectors(skew_qq(sums, store) + h * d * d, s->dim, scratch, skew + h * d * d);
        skew_order(skew_size(sums, store) + h * d, s->dim, order + h * d * d);
    }
    r = r ? r : gguf_writer_data(w, skew, d * d * (size_t)s->n_k * sizeof(*skew));
    r = r ? r : gguf_writer_data(w, order, d * d * (size_t)s->n_k * sizeof(*order));
    free(scratch);
    free(skew);
    free(order);
    return r;
}

static int check(const struct skew_model *m, struct error *reterr)
{
    bool any = false;

    if (model_has_sinks(m->model)) {
        return error_set(
            reterr, -ENOTSUP,
            "the model's heads have attention sinks, and no query may leave slots out");
    }
    if (m->model->h.wide) {
        return error_set(reterr, -ENOTSUP,
                         "queries read a wide store by maps of their own, which "
                         "skews are not offered for");
    }
    for (int32_t i = 0; i < m->model->n_stores; i++) {
        if (m->model->layers[m->model->stores[i].layer].w[LT_SKEW].n_cols) {
            return error_set(reterr, -EINVAL, "an overlay has skews already");
        }
        any = any || skew_wanted(m->model, i);
    }
    return any ? 0
               : error_set(reterr, -EINVAL,
                           "no layer from the third on owns a store of the whole text");
}

static int run(const void *config, const struct option_list *words, struct error *reterr)
{
    const struct config *c = config;

    return skew_make(&(struct skew_job){.model = c->model,
                                        .overlays = &c->overlays,
                                        .text = c->text,
                                        .n_tokens = (int32_t)c->tokens,
                                        .n_threads = (int)c->threads,
                                        .report = c->report ? stdout : NULL,
                                        .check = check,
                                        .put_store = put_store},
                     words, reterr);
}

int main(int argc, char **argv)
{
    struct config c = {0};

    return command_main(&(struct command){.name = "pipit-skew",
                                          .table = &table,
                                          .config = &c,
                                          .help = &c.help,
                                          .takes_words = true,
                                          .run = run},
                        argc, argv);
}
