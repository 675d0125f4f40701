/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-skew: the overlay that InfiniGen ranks by (docs/design/sparse-attention.md). A text is read
 * once; of each store's queries the right singular vectors become the rows of
 * blk.J.attn_skew.weight, the largest first, and the order of its dims by |q| + |k| those of
 * blk.J.attn_columns.weight. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* One store's heads; declares or writes both tensors. */
static int put_store(struct gguf_writer *w, struct skew_sums *sums, int32_t store, int32_t layer,
                     int32_t n_heads, int32_t dim, bool declare)
{
    size_t d = (size_t)dim;
    size_t head = (size_t)store * (size_t)sums->heads;
    uint64_t dims[2] = {d, d * (uint64_t)n_heads};
    char name[64];

    if (declare) {
        (void)snprintf(name, sizeof(name), "blk.%d.attn_skew.weight", layer);
        int r = gguf_writer_tensor(w, name, DTYPE_F32, 2, dims);

        (void)snprintf(name, sizeof(name), "blk.%d.attn_columns.weight", layer);
        return r ? r : gguf_writer_tensor(w, name, DTYPE_F16, 2, dims);
    }
    double *scratch = calloc(d * (d + 1), sizeof(*scratch));
    float *skew = calloc(d * d * (size_t)n_heads, sizeof(*skew));
    uint16_t *order = calloc(d * d * (size_t)n_heads, sizeof(*order));
    int r = scratch && skew && order ? 0 : -ENOMEM;

    for (size_t h = 0; !r && h < (size_t)n_heads; h++) {
        skew_eigenvectors(sums->qq + (head + h) * d * d, dim, scratch, skew + h * d * d);
        skew_order(sums->size + (head + h) * d, dim, order + h * d * d);
    }
    r = r ? r : gguf_writer_data(w, skew, d * d * (size_t)n_heads * sizeof(*skew));
    r = r ? r : gguf_writer_data(w, order, d * d * (size_t)n_heads * sizeof(*order));
    free(scratch);
    free(skew);
    free(order);
    return r;
}

struct store {
    int32_t layer;
    int32_t n_heads; /* 0: has no skew */
};

static int write_overlay(const struct skew_model *m, const struct store *stores, int32_t n_stores,
                         int32_t dim, struct skew_sums *sums, const char *path,
                         struct error *reterr)
{
    struct gguf_writer *w = NULL;
    int r = skew_overlay_create(m, path, &w, reterr);

    if (r) {
        return r;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t s = 0; !r && s < n_stores; s++) {
            if (stores[s].n_heads > 0) {
                r = put_store(w, sums, s, stores[s].layer, stores[s].n_heads, dim, pass == 0);
            }
        }
    }
    if (r) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", path);
    }
    return gguf_writer_finish(w, reterr);
}

/* Whose overlay it will be; -EINVAL where there is nothing to rank. */
static int list_stores(const struct model *m, struct store *stores, struct error *reterr)
{
    bool any = false;

    for (int32_t i = 0; i < m->n_stores; i++) {
        stores[i].layer = m->stores[i].layer;
        stores[i].n_heads = skew_wanted(m, i) ? m->stores[i].n_k : 0;
        any = any || skew_wanted(m, i);
    }
    return any ? 0
               : error_set(reterr, -EINVAL,
                           "no layer from the third on owns a store of the whole text");
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
    if (!r) {
        int32_t n_stores = m.model->n_stores; /* the run closes the model */
        int32_t dim = m.model->h.most.k_dim;

        stores = calloc((size_t)n_stores, sizeof(*stores));
        r = stores ? list_stores(m.model, stores, reterr) : error_set(reterr, -ENOMEM, "no memory");
        r = r ? r
              : skew_run(&m, text, len, (int32_t)c->tokens, (int)c->threads,
                         c->report ? stdout : NULL, false, &sums, reterr);
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

    return command_main(&(struct command){.name = "pipit-skew",
                                          .table = &table,
                                          .config = &c,
                                          .help = &c.help,
                                          .takes_words = true,
                                          .run = run},
                        argc, argv);
}
