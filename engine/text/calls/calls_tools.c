/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer needs of the definitions of tools: their names, and which arguments are strings.
 * As a tree of JSON the definitions would take 80 times their bytes for as long as the answer runs.
 * In `tools` a tool is a head, its name, and for each argument with a type a head and its name. */

#include <jansson.h>
#include <string.h>

#include "engine/text/calls/calls_impl.h"

struct tool_head {
    uint16_t bytes; /* of all of the tool */
    uint16_t name;
};

struct key_head {
    uint16_t type;
    uint16_t name;
};

static bool put(struct calls *c, const void *data, size_t len)
{
    if (len > sizeof(c->tools) - c->n_tools) {
        return false;
    }
    memcpy(c->tools + c->n_tools, data, len);
    c->n_tools += len;
    return true;
}

static enum calls_type type_of(const json_t *type)
{
    if (json_is_array(type)) {
        for (size_t i = 0; i < json_array_size(type); i++) {
            const char *one = json_string_value(json_array_get(type, i));

            if (one && strcmp(one, "string") == 0) {
                return TYPE_STRING;
            }
        }
        return TYPE_OTHER;
    }
    if (!json_is_string(type)) {
        return TYPE_ANY;
    }
    return strcmp(json_string_value(type), "string") == 0 ? TYPE_STRING : TYPE_OTHER;
}

static bool put_tool(struct calls *c, const char *name, size_t len, const json_t *definition)
{
    json_t *all = json_object_get(json_object_get(definition, "parameters"), "properties");
    struct tool_head head = {.name = (uint16_t)len};
    size_t at = c->n_tools;
    const char *key;
    size_t key_len;
    json_t *value;

    if (!put(c, &head, sizeof(head)) || !put(c, name, len)) {
        return false;
    }
    json_object_keylen_foreach(all, key, key_len, value)
    {
        struct key_head k = {.type = (uint16_t)type_of(json_object_get(value, "type"))};

        if (k.type == TYPE_ANY) {
            continue;
        }
        if (key_len > sizeof(c->tools)) {
            return false;
        }
        k.name = (uint16_t)key_len;
        if (!put(c, &k, sizeof(k)) || !put(c, key, key_len)) {
            return false;
        }
    }
    head.bytes = (uint16_t)(c->n_tools - at);
    memcpy(c->tools + at, &head, sizeof(head));
    return true;
}

bool calls_tools_take(struct calls *c, const json_t *list)
{
    _Static_assert(CALLS_MAX_TOOLS <= UINT16_MAX, "lengths are of 16 bits");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i);
        const json_t *f = json_object_get(tool, "function");
        const json_t *name = json_object_get(f ? f : tool, "name");
        size_t len = json_string_length(name);

        /* No call has a longer name. */
        if (len && len <= CALLS_MAX_NAME &&
            !put_tool(c, json_string_value(name), len, f ? f : tool)) {
            return false;
        }
    }
    return true;
}

const char *calls_tool(const struct calls *c, const char *name, size_t len)
{
    struct tool_head head;

    for (const char *p = c->tools; p < c->tools + c->n_tools; p += head.bytes) {
        memcpy(&head, p, sizeof(head));
        if (head.name == len && !memcmp(p + sizeof(head), name, len)) {
            return p;
        }
    }
    return NULL;
}

enum calls_type calls_type_of(const char *tool, const char *key, size_t len)
{
    struct tool_head head;
    struct key_head k;

    if (!tool) {
        return TYPE_ANY;
    }
    memcpy(&head, tool, sizeof(head));
    for (const char *p = tool + sizeof(head) + head.name; p < tool + head.bytes;
         p += sizeof(k) + k.name) {
        memcpy(&k, p, sizeof(k));
        if (k.name == len && !memcmp(p + sizeof(k), key, len)) {
            return (enum calls_type)k.type;
        }
    }
    return TYPE_ANY;
}
