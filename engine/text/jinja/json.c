/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in and out: the caller's trees, and `tojson` as transformers defines it (json.dumps without
 * HTML escapes; ensure_ascii, indent, separators, sort_keys). Punctuation has the mark of users, as
 * in repr.c; an escaped character keeps its own. */

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "engine/text/jinja/run.h"

struct dump {
    jrun *r;
    struct jbuf o;
    bool ascii;
    bool sort;
    bool lines;
    const struct jstr *indent;
    const struct jstr *between;
    const struct jstr *colon;
};

static void put_unit(struct jbuf *o, uint32_t unit, enum jmark mark)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "\\u%04x", unit);
    jbuf_ascii(o, text, mark);
}

static void dump_char(struct dump *d, uint32_t c, enum jmark mark)
{
    static const char from[] = "\"\\\n\r\t\b\f";
    static const char to[] = "\"\\nrtbf";

    for (int i = 0; i < 7; i++) {
        if (c == (uint8_t)from[i]) {
            jbuf_put(&d->o, "\\", 1, mark);
            jbuf_put(&d->o, &to[i], 1, mark);
            return;
        }
    }
    if (c >= 0x10000) {
        put_unit(&d->o, 0xd800 + ((c - 0x10000) >> 10), mark);
        put_unit(&d->o, 0xdc00 + ((c - 0x10000) & 0x3ff), mark);
        return;
    }
    put_unit(&d->o, c, mark);
}

static void dump_string(struct dump *d, const struct jstr *s)
{
    size_t plain = 0;
    size_t n;

    jstep(d->r, s->len / 16);
    jbuf_put(&d->o, "\"", 1, MARK_USER);
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);

        if (c < 0x20 || c == '"' || c == '\\' || (d->ascii && c >= 0x7f)) {
            jbuf_cut(&d->o, s, plain, i);
            dump_char(d, c, jstr_mark_at(s, i));
            plain = i + n;
        }
    }
    jbuf_cut(&d->o, s, plain, s->len);
    jbuf_put(&d->o, "\"", 1, MARK_USER);
}

static void dump_any(struct dump *d, jval v, int level);

static void new_line(struct dump *d, int level)
{
    if (!d->lines) {
        return;
    }
    jbuf_ascii(&d->o, "\n", MARK_USER);
    for (int i = 0; i < level; i++) {
        jbuf_str(&d->o, d->indent);
    }
}

static void dump_list(struct dump *d, const struct jlist *l, int level)
{
    jbuf_ascii(&d->o, "[", MARK_USER);
    for (size_t i = 0; i < l->n; i++) {
        if (i) {
            jbuf_str(&d->o, d->between);
        }
        new_line(d, level + 1);
        dump_any(d, l->v[i], level + 1);
    }
    if (l->n) {
        new_line(d, level);
    }
    jbuf_ascii(&d->o, "]", MARK_USER);
}

static void dump_key(struct dump *d, jval key)
{
    if (key.kind == J_STR) {
        dump_string(d, jstr_of(key));
        return;
    }
    if (!jis_number(key) && key.kind != J_NONE) {
        jfail(jb(d->r), -EINVAL, "tojson: a %s cannot be a key", jkind_name(key));
    }
    jbuf_ascii(&d->o, "\"", MARK_USER);
    dump_any(d, key, 0);
    jbuf_ascii(&d->o, "\"", MARK_USER);
}

static void dump_dict(struct dump *d, const struct jdict *dict, int level)
{
    jval *order = jalloc_array(jb(d->r), dict->n + 1, sizeof(*order));
    jval *keys = jalloc_array(jb(d->r), dict->n + 1, sizeof(*keys));

    for (size_t i = 0; i < dict->n; i++) {
        order[i] = jint((int64_t)i);
        keys[i] = dict->e[i].key;
    }
    if (d->sort) {
        jsort(d->r, order, keys, dict->n, false);
    }
    jbuf_ascii(&d->o, "{", MARK_USER);
    for (size_t i = 0; i < dict->n; i++) {
        const struct jentry *e = &dict->e[order[i].u.i];

        if (i) {
            jbuf_str(&d->o, d->between);
        }
        new_line(d, level + 1);
        dump_key(d, e->key);
        jbuf_str(&d->o, d->colon);
        dump_any(d, e->val, level + 1);
    }
    if (dict->n) {
        new_line(d, level);
    }
    jbuf_ascii(&d->o, "}", MARK_USER);
}

static void dump_any(struct dump *d, jval v, int level)
{
    enum jmark mark = v.user ? MARK_USER : MARK_TEMPLATE;

    jenter(d->r);
    switch (v.kind) {
    case J_NONE:
        jbuf_ascii(&d->o, "null", mark);
        break;
    case J_BOOL:
        jbuf_ascii(&d->o, v.u.b ? "true" : "false", mark);
        break;
    case J_FLOAT:
        if (!isfinite(v.u.f)) {
            jbuf_ascii(&d->o, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity", mark);
            break;
        }
        jput_repr(d->r, &d->o, v);
        break;
    case J_INT:
        jput_repr(d->r, &d->o, v);
        break;
    case J_STR:
        dump_string(d, jstr_of(v));
        break;
    case J_LIST:
    case J_TUPLE:
        dump_list(d, jlist_of(v), level);
        break;
    case J_DICT:
        dump_dict(d, jdict_of(v), level);
        break;
    default:
        juse(d->r, v);
        jfail(jb(d->r), -EINVAL, "tojson: a %s has no JSON", jkind_name(v));
    }
    jleave(d->r);
}

jval jfilter_tojson(jrun *r, jval self, struct jargs *a)
{
    jval arg[4];
    struct dump d = {.r = r, .o = {.b = jb(r)}};

    jargs_take(r, a, "ensure_ascii,indent,separators,sort_keys", 0, arg);
    d.ascii = arg[0].kind != J_MISSING && jtruth(arg[0]);
    d.sort = arg[3].kind != J_MISSING && jtruth(arg[3]);
    d.lines = arg[1].kind != J_MISSING && arg[1].kind != J_NONE;
    if (d.lines) {
        d.indent = arg[1].kind == J_STR
                       ? jstr_of(arg[1])
                       : jstr_of(jbinary(r, T_MUL, jstr_new(jb(r), " ", 1, MARK_USER),
                                         jint(jwant_int(r, arg[1], "tojson: indent"))));
    }
    d.between = jstr_of(jstr_new(jb(r), ", ", d.lines ? 1 : 2, MARK_USER));
    d.colon = jstr_of(jstr_new(jb(r), ": ", 2, MARK_USER));
    if (arg[2].kind != J_MISSING && arg[2].kind != J_NONE) {
        struct jlist *two = jitems(r, arg[2]);

        if (two->n != 2) {
            jfail(jb(r), -EINVAL, "tojson: separators are two strings");
        }
        d.between = jwant_str(r, two->v[0], "tojson: a separator");
        d.colon = jwant_str(r, two->v[1], "tojson: a separator");
    }
    dump_any(&d, self, 0);
    return jbuf_done(&d.o);
}

/* ---- the caller's values --------------------------------------------------------------------- */

static jval from_object(jrun *r, const json_t *json, bool trusted)
{
    jval dict = jdict_new(jb(r));
    json_t *object = (json_t *)(uintptr_t)json; /* jansson's iterators take no const */

    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        jval key = jinja_string(r, json_object_iter_key(i), json_object_iter_key_len(i), trusted);

        (void)jdict_put(jb(r), dict, key, jinja_json(r, json_object_iter_value(i), trusted));
    }
    return dict;
}

jval jinja_json(jrun *r, const json_t *json, bool trusted)
{
    jval v = jnone();

    jenter(r);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        v = from_object(r, json, trusted);
        break;
    case JSON_ARRAY:
        v = jlist_new(jb(r), J_LIST, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++) {
            jlist_push(jb(r), v, jinja_json(r, json_array_get(json, i), trusted));
        }
        break;
    case JSON_STRING:
        v = jinja_string(r, json_string_value(json), json_string_length(json), trusted);
        break;
    case JSON_INTEGER:
        v = jint(json_integer_value(json));
        break;
    case JSON_REAL:
        v = jfloat(json_real_value(json));
        break;
    default:
        v = json_is_null(json) ? jnone() : jboolean(json_is_true(json));
    }
    v.user = !trusted;
    jleave(r);
    return v;
}
