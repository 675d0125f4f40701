/* SPDX-License-Identifier: Apache-2.0 */
/* From a model and a text to an overlay: what pipit-skew and pipit-calibrate have in common. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tools/skew_run.h"

void skew_close(struct skew_model *m)
{
    model_close(m->model);
    for (int i = 0; i < m->n_overlays; i++) {
        gguf_close(m->overlays[i]);
    }
    gguf_close(m->base);
    *m = (struct skew_model){0};
}

int skew_open(const char *path, const struct option_list *overlays, struct skew_model *ret,
              struct error *reterr)
{
    const size_t n_overlays = overlays->n;
    const char *sha[SKEW_MAX_OVERLAYS];
    int e;

    *ret = (struct skew_model){0};
    if (n_overlays > SKEW_MAX_OVERLAYS) {
        return error_set(reterr, -E2BIG, "%zu overlays, at most %d are offered", n_overlays,
                         SKEW_MAX_OVERLAYS);
    }
    e = gguf_open(path, &ret->base, reterr);
    e = e ? e : gguf_sha256(path, NULL, ret->sha256, reterr);
    for (size_t i = 0; !e && i < n_overlays; i++) {
        e = gguf_open(overlays->v[i], &ret->overlays[i], reterr);
        e = e ? e : gguf_sha256(overlays->v[i], NULL, ret->overlay_sha256[i], reterr);
        sha[i] = ret->overlay_sha256[i];
        ret->n_overlays++;
    }
    struct model_source source = {
        .base = ret->base,
        .overlays = (const struct gguf *const *)ret->overlays,
        .n_overlays = (int32_t)n_overlays,
        .base_sha256 = ret->sha256,
        .overlay_sha256 = sha,
    };

    e = e ? e : model_open(&source, &ret->model, reterr);
    if (!e && model_untapped(ret->model)) {
        e = error_set(reterr, -ENOTSUP, "not offered for models %s", model_untapped(ret->model));
    }
    if (e) {
        skew_close(ret);
    }
    return e;
}

int skew_read_text(const char *path, char **ret, size_t *ret_len, struct error *reterr)
{
    FILE *f = fopen(path, "rb");
    long n = -1;

    if (f && fseek(f, 0, SEEK_END) == 0) {
        n = ftell(f);
        rewind(f);
    }
    *ret = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (!*ret || fread(*ret, 1, (size_t)n, f) != (size_t)n) {
        int e = !f || n < 0 ? -errno : *ret ? -EIO : -ENOMEM;

        free(*ret);
        if (f) {
            (void)fclose(f);
        }
        return error_set_errno(reterr, e, "cannot read %s", path);
    }
    (void)fclose(f);
    *ret_len = (size_t)n;
    return 0;
}

int skew_create_overlay(const struct skew_model *m, const char *path, struct gguf_writer **ret,
                        struct error *reterr)
{
    struct gguf_writer *w = NULL;
    struct gguf_str arch;
    struct gguf_str sha[SKEW_MAX_OVERLAYS];
    int r = gguf_get_str(m->base, "general.architecture", &arch, reterr);

    r = r ? r : gguf_writer_create(path, &w, reterr);
    if (r) {
        return r;
    }
    for (int i = 0; i < m->n_overlays; i++) {
        sha[i] = (struct gguf_str){.ptr = m->overlay_sha256[i], .len = 64};
    }
    r = gguf_writer_str(w, "general.architecture", arch.ptr, arch.len);
    r = r ? r : gguf_writer_str(w, "general.type", "overlay", 7);
    r = r ? r : gguf_writer_str(w, "pipit.overlay.base_sha256", m->sha256, 64);
    if (!r && m->n_overlays > 0) {
        r = gguf_writer_str_array(w, "pipit.overlay.builds_on", sha, (size_t)m->n_overlays);
    }
    if (r) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", path);
    }
    *ret = w;
    return 0;
}

/* Finishes or aborts the writer. */
static int write_overlay(struct gguf_writer *w, const struct skew_job *job,
                         const struct skew_store *stores, int32_t n_stores, int32_t n_layers,
                         const struct skew_sums *sums, const char *path, struct error *reterr)
{
    int r = job->put_keys ? job->put_keys(w, sums, n_layers) : 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int32_t s = 0; !r && s < n_stores; s++) {
            r = job->put_store(w, sums, s, &stores[s], pass == 0);
        }
    }
    if (r) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", path);
    }
    return gguf_writer_finish(w, reterr);
}

int skew_make(const struct skew_job *job, const struct option_list *words, struct error *reterr)
{
    struct skew_model m = {0};
    struct skew_sums sums = {0};
    struct skew_store *stores = NULL;
    char *text = NULL;
    size_t len = 0;
    int r;

    if (!job->model || !job->text || words->n != 1) {
        return error_set(reterr, -EINVAL, "--model, --text and one OUT.gguf are needed");
    }
    r = skew_read_text(job->text, &text, &len, reterr);
    r = r ? r : skew_open(job->model, job->overlays, &m, reterr);
    r = r ? r : job->check(&m, reterr);
    if (!r) {
        int32_t n_stores = m.model->n_stores; /* the run closes the model */
        int32_t n_layers = m.model->h.n_layers;

        stores = calloc((size_t)n_stores, sizeof(*stores));
        r = stores ? 0 : error_set(reterr, -ENOMEM, "no memory");
        for (int32_t s = 0; !r && s < n_stores; s++) {
            stores[s] = (struct skew_store){.layer = m.model->stores[s].layer,
                                            .n_k = m.model->stores[s].n_k,
                                            .dim = m.model->stores[s].k_dim,
                                            .wanted = skew_wanted(m.model, s),
                                            .queries = skew_has_queries(m.model, s),
                                            .deep = m.model->stores[s].deep};
        }
        struct gguf_writer *w = NULL; /* a path that cannot be written is told before the run */

        r = r ? r : skew_create_overlay(&m, words->v[0], &w, reterr);
        r = r ? r : skew_run(&m, job, text, len, &sums, reterr);
        if (r) {
            gguf_writer_abort(w);
        } else {
            r = write_overlay(w, job, stores, n_stores, n_layers, &sums, words->v[0], reterr);
        }
    }
    skew_sums_finish(&sums);
    skew_close(&m);
    free(stores);
    free(text);
    return r;
}
