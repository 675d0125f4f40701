/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of model files that differ in a key or a tensor. */

#include "tests/unit/bend.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "gguf/gguf.h"
#include "tests/unit/engine_run.h"

static bool is(struct gguf_str s, const char *name)
{
    return name && s.len == strlen(name) && memcmp(s.ptr, name, s.len) == 0;
}

static void bend_keys(const struct gguf *g, const struct bend *b, struct gguf_writer *w)
{
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        struct gguf_str name;
        enum gguf_type type;
        const void *raw;
        size_t bytes;

        gguf_key_at(g, i, &name, &type, &raw, &bytes);
        if (!is(name, b->key) && !is(name, b->less)) {
            cr_assert_eq(gguf_writer_raw(w, name, type, raw, bytes), 0);
        }
    }
    if (b->list) {
        cr_assert_eq(gguf_writer_array(w, b->key, GGUF_U32, b->list, b->n_list), 0);
    } else if (b->key && b->boolean) {
        cr_assert_eq(gguf_writer_bool(w, b->key, b->value != 0), 0);
    } else if (b->key && !b->drop) {
        cr_assert_eq(gguf_writer_u32(w, b->key, b->value), 0);
    }
}

/* What is written for a tensor's data. */
static const void *data_of(const struct gguf_tensor *t, const char *name, const struct bend *b)
{
    static float x[64];
    const char *k = strstr(name, ".attn_k_norm.");
    const char *q = strstr(name, ".attn_q_norm.");

    if (!b->uneven || (!k && !q)) {
        return t->data;
    }
    cr_assert_leq(t->n_bytes, sizeof(x));
    memcpy(x, t->data, t->n_bytes);
    for (size_t i = 1; i < t->n_bytes / sizeof(*x); i += 2) {
        x[i] *= k ? 0x1p6f : 0x1p-6f;
    }
    return x;
}

void bend_file(const char *from, const char *to, const struct bend *b)
{
    static const float more[1 << 12];
    struct gguf *g;
    struct gguf_writer *w;
    struct error e = {0};
    char name[64];

    cr_assert_eq(gguf_open(from, &g, &e), 0, "%s", e.text);
    cr_assert_eq(gguf_writer_create(to, &w, &e), 0, "%s", e.text);
    bend_keys(g, b, w);
    for (int data = 0; data < 2; data++) {
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            uint64_t dims[4] = {t->dims[0], t->dims[1], t->dims[2], t->dims[3]};
            bool bent = is(t->name, b->tensor);

            if (bent && !b->wider && !b->name) {
                continue;
            }
            dims[0] += bent && b->wider ? 1 : 0;
            (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.ptr);
            if (bent && b->name) {
                (void)snprintf(name, sizeof(name), "%s", b->name);
            }
            cr_assert_eq(data ? gguf_writer_data(w, data_of(t, name, b), t->n_bytes)
                              : gguf_writer_tensor(w, name, t->type, (int)t->n_dims, dims),
                         0);
            if (data && bent && b->wider) {
                cr_assert_leq(dims[1], sizeof(more) / sizeof(more[0]));
                cr_assert_eq(gguf_writer_data(w, more, (size_t)dims[1] * sizeof(float)), 0);
            }
        }
    }
    cr_assert_eq(gguf_writer_finish(w, &e), 0, "%s", e.text);
    gguf_close(g);
}

int bend_plan(const char *path, const char *kv, bool keeps, struct plan *ret, struct error *e)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = path;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 256;
    c.n_seqs = 3;
    c.kv = kv;
    c.keep_prefixes = keeps;
    c.memory_bytes = UINT64_C(1) << 40;
    return engine_plan(&c, ret, e);
}

void bend_refused(const char *model, const struct bend *b, int code, const char *text)
{
    char from[512];
    char to[64];
    struct plan plan;
    struct error e = {0};

    (void)snprintf(from, sizeof(from), "%s", run_data(model));
    (void)snprintf(to, sizeof(to), "/tmp/pipit-hybrid-%d.gguf", (int)getpid());
    bend_file(from, to, b);
    int r = bend_plan(to, "full", false, &plan, &e);

    cr_assert_eq(r, code, "%s %s: %d, %s", b->key ? b->key : "", b->tensor ? b->tensor : "", r,
                 e.text);
    cr_assert(!text || strstr(e.text, text), "'%s' says nothing of '%s'", e.text, text);
    (void)unlink(to);
}

void bend_cases(const char *model, const struct bend_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bend_refused(model, &cases[i].bend, cases[i].code, cases[i].text);
    }
}
