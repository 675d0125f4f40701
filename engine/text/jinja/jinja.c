/* SPDX-License-Identifier: Apache-2.0 */
/* The two ways in, compilation and rendering, each with its arena and the place that a failure
 * comes back to. */

#include "engine/text/jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/run.h"

/* A node has 130 bytes and some four characters of source. */
enum { COMPILE_MEMORY = 96 << 20 };

static void intern(struct jinja *t)
{
    t->n_loop = jname_of(t, "loop", 4);
    t->n_caller = jname_of(t, "caller", 6);
    t->n_varargs = jname_of(t, "varargs", 7);
    t->n_kwargs = jname_of(t, "kwargs", 6);
}

int jinja_compile(const char *source, size_t len, struct jinja **ret, struct error *reterr)
{
    struct jinja *t;

    if (len > JINJA_MAX_SOURCE) {
        return error_set(reterr, -E2BIG, "the chat template has %zu bytes (at most %d)", len,
                         (int)JINJA_MAX_SOURCE);
    }
    t = calloc(1, sizeof(*t));
    if (!t) {
        return error_set(reterr, -ENOMEM, "no memory for the chat template");
    }
    t->base.limit = COMPILE_MEMORY;
    t->base.reterr = reterr;
    t->base.key = siphash_key_random();
    t->base.line = 1;
    if (setjmp(t->base.out)) {
        int code = t->base.code;

        jinja_destroy(t);
        return code;
    }
    intern(t);
    jlex_start(t, source, len);
    jparse(t);
    t->base.reterr = NULL;
    *ret = t;
    return 0;
}

void jinja_destroy(struct jinja *t)
{
    if (t) {
        jmem_finish(&t->base);
        free(t);
    }
}

static const struct jname *find_name(const struct jinja *t, const char *name)
{
    size_t len = strlen(name);
    const struct jname *n = t->names[siphash(&t->base.key, name, len) % JINJA_BUCKETS];

    while (n && !(n->len == len && memcmp(n->text, name, len) == 0)) {
        n = n->next;
    }
    return n;
}

/* Keys are spelt as strings as often as behind a dot, so the source is searched. */
bool jinja_mentions(const struct jinja *t, const char *name)
{
    return memmem(t->source, t->len, name, strlen(name)) != NULL;
}

struct jinja_limits jinja_limits_for(size_t input_bytes)
{
    size_t input = input_bytes < (size_t)1 << 32 ? input_bytes : (size_t)1 << 32;

    return (struct jinja_limits){.steps = 4000000 + 4 * (uint64_t)input,
                                 .output_bytes = ((size_t)1 << 20) + 4 * input,
                                 .memory_bytes = ((size_t)64 << 20) + 32 * input};
}

/* ---- rendering ------------------------------------------------------------------------------- */

static int output(const struct jbuf *o, struct jinja_output *ret, struct error *reterr)
{
    size_t n = 0;
    size_t skip = (o->len + 1 + sizeof(struct jinja_span) - 1) / sizeof(struct jinja_span);

    for (size_t i = 0; i < o->len; i++) {
        n += i == 0 || (o->marks && o->marks[i] != o->marks[i - 1]);
    }
    *ret = (struct jinja_output){.len = o->len, .n_spans = n};
    ret->text = calloc(skip + n, sizeof(struct jinja_span));
    if (!ret->text) {
        return error_set(reterr, -ENOMEM, "no memory for the prompt");
    }
    if (o->len) {
        memcpy(ret->text, o->p, o->len);
    }
    ret->spans = (struct jinja_span *)(void *)ret->text + skip;
    n = 0;
    for (size_t i = 0; i < o->len; i++) {
        if (i == 0 || (o->marks && o->marks[i] != o->marks[i - 1])) {
            ret->spans[n++].trusted = (o->marks ? o->marks[i] : o->mark) == MARK_TEMPLATE;
        }
        ret->spans[n - 1].len++;
    }
    return 0;
}

void jinja_output_finish(struct jinja_output *out)
{
    free(out->text);
    *out = (struct jinja_output){0};
}

int jinja_render(const struct jinja *t, const struct jinja_limits *limits, int64_t now,
                 jinja_bind *bind, void *arg, struct jinja_output *ret, struct error *reterr)
{
    struct jbuf o = {.max = limits->output_bytes};
    jrun *r = calloc(1, sizeof(*r));
    int code;

    if (!r) {
        return error_set(reterr, -ENOMEM, "no memory for the prompt");
    }
    r->t = t;
    r->now = now;
    r->steps_left = limits->steps;
    r->base.limit = limits->memory_bytes;
    r->base.reterr = reterr;
    r->base.key = siphash_key_random();
    o.b = &r->base;
    if (setjmp(r->base.out) == 0) {
        r->out = &o;
        r->context = jscope_new(r, NULL);
        bind(arg, r);
        r->top = jscope_new(r, r->context);
        r->scope = r->top;
        (void)jexec(r, t->body);
        r->base.code = output(&o, ret, reterr);
    }
    code = r->base.code;
    jmem_finish(&r->base);
    free(r);
    return code;
}

/* ---- for jinja_bind -------------------------------------------------------------------------- */

/* What the template never names is dropped here. */
void jinja_set(jrun *r, const char *name, jval v)
{
    const struct jname *n = find_name(r->t, name);

    if (n) {
        jscope_set(r, r->context, n, v);
    }
}

jval jinja_none(void)
{
    return jnone();
}

jval jinja_bool(bool b)
{
    return jboolean(b);
}

jval jinja_string(jrun *r, const char *s, size_t len, bool trusted)
{
    return jstr_new(jb(r), s, len, trusted ? MARK_TEMPLATE : MARK_USER);
}

jval jinja_list(jrun *r)
{
    return jlist_new(jb(r), J_LIST, 0);
}

void jinja_list_add(jrun *r, jval list, jval v)
{
    jlist_push(jb(r), list, v);
}

jval jinja_dict(jrun *r)
{
    return jdict_new(jb(r));
}

void jinja_dict_set(jrun *r, jval dict, const char *key, jval v)
{
    (void)jdict_put(jb(r), dict, jinja_string(r, key, strlen(key), true), v);
}
