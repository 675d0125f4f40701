/* SPDX-License-Identifier: Apache-2.0 */
/* Names to builtins, and to what Python's types have but a template may not have: changing a list
 * or dict in place (the sandbox is immutable), and methods that no template was seen to use. */

#include <string.h>

#include "engine/text/jinja/run.h"

#define FORBIDDEN "a template must not change a list or dict in place"
#define LEFT_OUT "it is not supported"

static const struct jbuiltin left_out_filters[] = {
    {"filesizeformat", NULL, LEFT_OUT}, {"pprint", NULL, LEFT_OUT},    {"random", NULL, LEFT_OUT},
    {"striptags", NULL, LEFT_OUT},      {"urlize", NULL, LEFT_OUT},    {"wordwrap", NULL, LEFT_OUT},
    {"xmlattr", NULL, LEFT_OUT},        {"urlencode", NULL, LEFT_OUT}, {0},
};
static const struct jbuiltin hidden_list[] = {
    {"append", NULL, FORBIDDEN}, {"clear", NULL, FORBIDDEN},   {"extend", NULL, FORBIDDEN},
    {"insert", NULL, FORBIDDEN}, {"pop", NULL, FORBIDDEN},     {"remove", NULL, FORBIDDEN},
    {"sort", NULL, FORBIDDEN},   {"reverse", NULL, FORBIDDEN}, {0},
};
static const struct jbuiltin hidden_dict[] = {
    {"clear", NULL, FORBIDDEN},
    {"pop", NULL, FORBIDDEN},
    {"popitem", NULL, FORBIDDEN},
    {"setdefault", NULL, FORBIDDEN},
    {"update", NULL, FORBIDDEN},
    {"fromkeys", NULL, LEFT_OUT},
    {0},
};
static const struct jbuiltin hidden_str[] = {
    {"encode", NULL, LEFT_OUT},
    {"maketrans", NULL, LEFT_OUT},
    {"translate", NULL, LEFT_OUT},
    {"format_map", NULL, LEFT_OUT},
    {0},
};

static const struct jbuiltin *find(const struct jbuiltin *table, const char *name, size_t len)
{
    for (; table->name; table++) {
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0) {
            return table;
        }
    }
    return NULL;
}

static const struct jbuiltin *find_in(const struct jbuiltin *const *tables, const char *name,
                                      size_t len)
{
    const struct jbuiltin *b = NULL;

    for (; *tables && !b; tables++) {
        b = find(*tables, name, len);
    }
    return b;
}

const struct jbuiltin *jfilter_find(const char *name)
{
    static const struct jbuiltin *const tables[] = {jfilters_text, jfilters_list, jfilters_value,
                                                    left_out_filters, NULL};

    return find_in(tables, name, strlen(name));
}

const struct jbuiltin *jtest_find(const char *name)
{
    return find(jtests, name, strlen(name));
}

const struct jbuiltin *jglobal_find(const char *name)
{
    return find(jglobals, name, strlen(name));
}

const struct jbuiltin *jmethod_find(jval v, const struct jstr *name)
{
    static const struct jbuiltin *const str[] = {jmethods_str, jmethods_find, jmethods_case,
                                                 hidden_str, NULL};
    static const struct jbuiltin *const list[] = {jmethods_list, hidden_list, NULL};
    static const struct jbuiltin *const tuple[] = {jmethods_tuple, NULL};
    static const struct jbuiltin *const dict[] = {jmethods_dict, hidden_dict, NULL};
    static const struct jbuiltin *const cycler[] = {jmethods_cycler, NULL};
    static const struct jbuiltin *const loop[] = {jmethods_loop, NULL};

    switch (v.kind) {
    case J_STR:
        return find_in(str, name->ptr, name->len);
    case J_LIST:
        return find_in(list, name->ptr, name->len);
    case J_TUPLE:
        return find_in(tuple, name->ptr, name->len);
    case J_DICT:
        return find_in(dict, name->ptr, name->len);
    case J_CYCLER:
        return ((struct jcycler *)v.u.p)->joiner ? NULL : find_in(cycler, name->ptr, name->len);
    case J_LOOP:
        return find_in(loop, name->ptr, name->len);
    default:
        return NULL;
    }
}
