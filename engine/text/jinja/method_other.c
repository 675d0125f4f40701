/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of lists, tuples and dicts: those that change nothing. */

#include <errno.h>

#include "engine/text/jinja/run.h"

static jval m_count(jrun *r, jval self, struct jargs *a)
{
    jval what;
    int64_t n = 0;

    jargs_take(r, a, "value", 1, &what);
    jstep(r, jlist_of(self)->n);
    for (size_t i = 0; i < jlist_of(self)->n; i++) {
        n += jeq(jlist_of(self)->v[i], what);
    }
    return jint(n);
}

static jval m_index(jrun *r, jval self, struct jargs *a)
{
    jval what;

    jargs_take(r, a, "value", 1, &what);
    jstep(r, jlist_of(self)->n);
    for (size_t i = 0; i < jlist_of(self)->n; i++) {
        if (jeq(jlist_of(self)->v[i], what)) {
            return jint((int64_t)i);
        }
    }
    jfail(jb(r), -EINVAL, "index: the %s does not hold it", jkind_name(self));
}

static jval m_copy(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return self; /* nothing can change it */
}

static jval m_get(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    jval *v;

    jargs_take(r, a, "key,default", 1, arg);
    if (arg[0].kind == J_LIST || arg[0].kind == J_DICT) {
        jfail(jb(r), -EINVAL, "a %s cannot be a dict's key", jkind_name(arg[0]));
    }
    v = jdict_get(jdict_of(self), arg[0]);
    return v ? *v : arg[1].kind == J_MISSING ? jnone() : arg[1];
}

static jval view(jrun *r, jval self, struct jargs *a, enum jview which)
{
    jargs_take(r, a, "", 0, NULL);
    self.kind = J_VIEW;
    self.sub = (uint8_t)which;
    return self;
}

static jval m_keys(jrun *r, jval self, struct jargs *a)
{
    return view(r, self, a, JVIEW_KEYS);
}

static jval m_values(jrun *r, jval self, struct jargs *a)
{
    return view(r, self, a, JVIEW_VALUES);
}

static jval m_items(jrun *r, jval self, struct jargs *a)
{
    return view(r, self, a, JVIEW_ITEMS);
}

const struct jbuiltin jmethods_list[] = {
    {"count", m_count, NULL}, {"index", m_index, NULL}, {"copy", m_copy, NULL}, {0}};
const struct jbuiltin jmethods_tuple[] = {{"count", m_count, NULL}, {"index", m_index, NULL}, {0}};
const struct jbuiltin jmethods_dict[] = {{"get", m_get, NULL},       {"keys", m_keys, NULL},
                                         {"values", m_values, NULL}, {"items", m_items, NULL},
                                         {"copy", m_copy, NULL},     {0}};
