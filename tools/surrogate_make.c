/* SPDX-License-Identifier: Apache-2.0 */

#include "tools/surrogate_make.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok.h"
#include "gguf/gguf.h"
#include "tools/skew_run.h"
#include "tools/surrogate_fit.h"
#include "tools/surrogate_run.h"

/* The first tokens of a text stay whatever their scores, and theirs are like no others. */
enum { LEFT_OUT = 4 };
/* Of 1e-4 to 1e-1 the best on texts that the maps were not fitted to (docs/results/quality.md). */
#define RIDGE 0.1
#define ASK "\n\nRepeat the previous context exactly.\n\n"

struct job {
    int32_t n_piece; /* tokens */
    int32_t n_fit;   /* pieces that the maps are fitted to; those behind them test */
    int32_t n_layers;
    int32_t n_in;
    struct surrogate_fit *fits; /* (n_layers); n_in 0: none */
    int32_t *n_k;               /* (n_layers) */
    bool solved;
};

static int take(void *arg, int32_t text, int32_t layer, const float *x, const float *y)
{
    struct job *j = arg;
    struct surrogate_fit *f = &j->fits[layer];
    int32_t n = j->n_piece - LEFT_OUT;
    int r = 0;

    x += (size_t)LEFT_OUT * (size_t)j->n_in;
    y += (size_t)LEFT_OUT * (size_t)j->n_k[layer];
    if (text < j->n_fit) {
        r = f->n_in ? 0 : surrogate_fit_init(f, j->n_in, j->n_k[layer]);
        if (!r) {
            surrogate_fit_add(f, x, y, n);
        }
        return r;
    }
    for (int32_t il = 0; !r && !j->solved && il < j->n_layers; il++) {
        r = j->fits[il].n_in ? surrogate_fit_solve(&j->fits[il], RIDGE) : 0;
    }
    j->solved = true;
    if (!r) {
        surrogate_fit_test(f, x, y, n);
    }
    return r;
}

/* n pieces that lie evenly over a text. */
static int take_pieces(const struct job *j, const struct tok *tok, const char *path, int32_t n,
                       int32_t *ret, struct error *reterr)
{
    char *text = NULL;
    size_t len = 0;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    size_t piece = (size_t)j->n_piece;
    size_t need = (size_t)n * piece;
    int r = skew_read_text(path, &text, &len, reterr);

    r = r ? r : tok_encode_new(tok, text, len, 0, &ids, &n_ids, reterr);
    if (!r && n_ids < need) {
        r = error_set(reterr, -EINVAL, "%.100s has %zu tokens, %zu are needed", path, n_ids, need);
    }
    for (int32_t i = 0; !r && i < n; i++) {
        memcpy(ret + (size_t)i * piece, ids + (size_t)i * (n_ids / (size_t)n),
               piece * sizeof(*ret));
    }
    free(ids);
    free(text);
    return r;
}

static void print_test(const struct job *j)
{
    double sum = 0;
    int32_t n = 0;

    (void)printf("layer  share of the scores' variance that the map explains, by K head\n");
    for (int32_t il = 0; il < j->n_layers; il++) {
        const struct surrogate_fit *f = &j->fits[il];

        if (f->n_in == 0) {
            continue;
        }
        (void)printf("%5d ", il);
        for (int32_t o = 0; o < f->n_out; o++) {
            (void)printf(" %6.3f", surrogate_fit_r2(f, o));
            sum += surrogate_fit_r2(f, o);
            n++;
        }
        (void)printf("\n");
    }
    (void)printf(" mean  %6.3f\n", sum / n);
}

/* ---- the overlay ------------------------------------------------------------------------------
 */

static int put_data(struct gguf_writer *w, enum dtype type, const float *x, uint64_t n)
{
    uint64_t bytes = 0;
    void *data = dtype_row_bytes(type, n, &bytes) ? malloc(bytes) : NULL;
    int r = data ? dtype_encode(type, x, data, n) : -ENOMEM;

    r = r ? r : gguf_writer_data(w, data, bytes);
    free(data);
    return r;
}

static int put_layer(struct gguf_writer *w, int32_t layer, const struct surrogate_fit *f,
                     bool declare)
{
    enum dtype type = f->n_in % 32 == 0 ? DTYPE_Q8_0 : DTYPE_F16;
    char name[64];
    int r = 0;

    if (declare) {
        (void)snprintf(name, sizeof(name), "blk.%d.attn_score.weight", layer);
        r = gguf_writer_tensor(w, name, type, 2,
                               (const uint64_t[]){(uint64_t)f->n_in, (uint64_t)f->n_out});
        (void)snprintf(name, sizeof(name), "blk.%d.attn_score.bias", layer);
        return r ? r
                 : gguf_writer_tensor(w, name, DTYPE_F32, 1,
                                      (const uint64_t[]){(uint64_t)f->n_out});
    }
    r = put_data(w, type, f->w, (uint64_t)f->n_in * (uint64_t)f->n_out);
    return r ? r : put_data(w, DTYPE_F32, f->b, (uint64_t)f->n_out);
}

/* Finishes or aborts the writer. */
static int write_overlay(struct gguf_writer *w, const struct job *j, const char *path,
                         struct error *reterr)
{
    int r = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int32_t il = 0; !r && il < j->n_layers; il++) {
            r = j->fits[il].n_in ? put_layer(w, il, &j->fits[il], pass == 0) : 0;
        }
    }
    if (r) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", path);
    }
    return gguf_writer_finish(w, reterr);
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static int check(const struct model *m, struct error *reterr)
{
    if (m->h.attn_softcap > 0 || m->h.alibi_max > 0 || model_has_sinks(m)) {
        return error_set(reterr, -ENOTSUP,
                         "--scores: made of a plain softmax, and the model has a softcap, ALiBi or "
                         "sinks");
    }
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        if (m->layers[il].deep) {
            return error_set(reterr, -ENOTSUP,
                             "--scores: layers beyond SwiftKV's split have no hidden states of "
                             "their own in a prompt");
        }
        if (m->layers[il].w[LT_SCORE].n_cols) {
            return error_set(reterr, -EINVAL, "the overlay has blk.%d.attn_score.weight already",
                             il);
        }
    }
    return 0;
}

/* Runs the model, which closes it. */
static int gather(const struct surrogate_config *c, struct skew_model *m, struct job *j,
                  struct error *reterr)
{
    int32_t n_test = c->check ? SURROGATE_TEST : 0;
    int32_t *ids = calloc((size_t)(j->n_fit + n_test) * (size_t)j->n_piece, sizeof(*ids));
    int32_t *ask = NULL;
    size_t n_ask = 0;
    struct tok *tok = NULL;
    int r = ids ? tok_create(m->base, &tok, reterr) : error_set(reterr, -ENOMEM, "no memory");

    r = r ? r : take_pieces(j, tok, c->text, j->n_fit, ids, reterr);
    if (!r && n_test) {
        r = take_pieces(j, tok, c->check, n_test, ids + (size_t)j->n_fit * (size_t)j->n_piece,
                        reterr);
    }
    r = r ? r : tok_encode_new(tok, ASK, strlen(ASK), TOK_MID_TEXT, &ask, &n_ask, reterr);
    if (!r) {
        struct surrogate_job job = {
            .ids = ids,
            .n_texts = j->n_fit + n_test,
            .n_text = j->n_piece,
            .ask = ask,
            .n_ask = (int32_t)n_ask,
            .bos = tok_adds_bos(tok) ? tok_bos(tok) : -1,
            .n_threads = c->n_threads,
            .take = take,
            .arg = j,
        };
        struct model *model = m->model;

        m->model = NULL;
        r = surrogate_run(model, &job, reterr);
    }
    for (int32_t il = 0; !r && !j->solved && il < j->n_layers; il++) {
        r = j->fits[il].n_in ? surrogate_fit_solve(&j->fits[il], RIDGE) : 0;
        r = r ? error_set(reterr, r, "layer %d: no map fits its scores", il) : 0;
    }
    tok_destroy(tok);
    free(ids);
    free(ask);
    return r;
}

int surrogate_make(const struct surrogate_config *c, struct error *reterr)
{
    struct skew_model m = {0};
    int32_t piece = c->n_tokens < SURROGATE_PIECE ? c->n_tokens : SURROGATE_PIECE;
    struct job j = {.n_piece = piece, .n_fit = c->n_tokens / piece};
    int r = skew_open(c->model, c->overlays, &m, reterr);

    r = r ? r : check(m.model, reterr);
    if (!r) {
        j.n_layers = m.model->h.n_layers;
        j.n_in = m.model->h.n_embd;
        j.fits = calloc((size_t)j.n_layers, sizeof(*j.fits));
        j.n_k = calloc((size_t)j.n_layers, sizeof(*j.n_k));
        r = j.fits && j.n_k ? 0 : error_set(reterr, -ENOMEM, "no memory");
    }
    for (int32_t il = 0; !r && il < j.n_layers; il++) {
        j.n_k[il] = m.model->h.layer[il].n_k;
    }
    if (!r) { /* of 32 layers of 4096 it is 4.3 GB: said before minutes of work */
        double bytes = (double)j.n_layers * j.n_in * j.n_in * sizeof(double);

        fprintf(stderr,
                "pipit-calibrate: fitting %d layers takes %.0f MB of memory beside the model\n",
                j.n_layers, bytes / 1e6);
    }
    struct gguf_writer *w = NULL; /* a path that cannot be written is told before the run */

    r = r ? r : skew_create_overlay(&m, c->out, &w, reterr);
    r = r ? r : gather(c, &m, &j, reterr);
    if (r) {
        gguf_writer_abort(w);
    } else {
        r = write_overlay(w, &j, c->out, reterr);
    }
    if (!r && c->check) {
        print_test(&j);
    }
    for (int32_t il = 0; j.fits && il < j.n_layers; il++) {
        surrogate_fit_finish(&j.fits[il]);
    }
    free(j.fits);
    free(j.n_k);
    skew_close(&m);
    return r;
}
