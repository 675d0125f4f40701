/* SPDX-License-Identifier: Apache-2.0 */
/* Variables. A scope is a short array in the order of assignment; names are interned, so finding
 * one compares pointers. Inner scopes see outer ones and never change them. */

#include "engine/text/jinja/run.h"

struct jscope *jscope_new(jrun *r, struct jscope *parent)
{
    struct jscope *s = jalloc(jb(r), sizeof(*s));

    s->parent = parent;
    return s;
}

void jscope_set(jrun *r, struct jscope *s, const struct jname *name, jval v)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].v = v;
            return;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;

        s->vars = jgrow(jb(r), s->vars, s->n * sizeof(*s->vars), cap * sizeof(*s->vars));
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jvar){name, v};
}

bool jscope_get(const struct jscope *s, const struct jname *name, jval *ret)
{
    for (; s; s = s->parent) {
        for (size_t i = 0; i < s->n; i++) {
            if (s->vars[i].name == name) {
                *ret = s->vars[i].v;
                return true;
            }
        }
    }
    return false;
}
