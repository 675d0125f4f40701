/* SPDX-License-Identifier: Apache-2.0 */
/* One line of a batch: an object whose keys are the options of `pipit ask` by their names in JSON
 * APIs, and one of prompt, messages and tokens. Unknown keys are errors: a misspelt limit that is
 * silently ignored costs a night. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "client/cli/batch.h"

/* Nobody reads along: below 0, prompts are read without regard to gaps between tokens. */
enum { UNHURRIED = -1 };

struct number_key {
    const char *key;
    enum pipit_param param;
};

static const struct number_key numbers[] = {
    {"max_tokens", PIPIT_MAX_TOKENS},
    {"temperature", PIPIT_TEMPERATURE},
    {"top_k", PIPIT_TOP_K},
    {"top_p", PIPIT_TOP_P},
    {"min_p", PIPIT_MIN_P},
    {"repeat_penalty", PIPIT_REPEAT_PENALTY},
    {"presence_penalty", PIPIT_PRESENCE_PENALTY},
    {"frequency_penalty", PIPIT_FREQUENCY_PENALTY},
    {"urgency", PIPIT_URGENCY},
};

/* Handled one by one below. */
static const char *const others[] = {"custom_id", "prompt", "messages", "tokens", "system",
                                     "raw",       "seed",   "stop",     "kv",     "timeout"};

static int number(struct pipit_request *q, const char *key, enum pipit_param param, json_t *v,
                  double factor, struct error *reterr)
{
    if (!json_is_number(v) ||
        pipit_request_set_param(q, param, ceil(json_number_value(v) * factor * 1e6) / 1e6) < 0) {
        return error_set(reterr, -EINVAL, "'%s' is not a number in its range", key);
    }
    return 0;
}

static bool known(const char *key)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(numbers[i].key, key) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (strcmp(others[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* The text of a key, without NUL inside; jansson has checked that it is UTF-8. */
static int text_of(json_t *v, const char *key, const char **ret, size_t *ret_len,
                   struct error *reterr)
{
    *ret = json_string_value(v);
    *ret_len = json_string_length(v);
    if (!*ret) {
        return error_set(reterr, -EINVAL, "'%s' is not a text", key);
    }
    return strlen(*ret) == *ret_len ? 0 : error_set(reterr, -EINVAL, "'%s' holds a NUL byte", key);
}

static int add_messages(struct pipit_request *q, json_t *list, struct error *reterr)
{
    json_t *m;
    size_t i;

    if (json_array_size(list) == 0) {
        return error_set(reterr, -EINVAL, "'messages' is not a list of messages");
    }
    json_array_foreach(list, i, m)
    {
        const char *text;
        size_t len;
        const char *role = json_string_value(json_object_get(m, "role"));
        int r = text_of(json_object_get(m, "content"), "content", &text, &len, reterr);

        if (r) {
            return r;
        }
        if (!role || pipit_request_add_message(q, role, text, len) < 0) {
            return error_set(reterr, -EINVAL,
                             "message %zu: its role is not system, user or assistant", i);
        }
    }
    return 0;
}

static int add_tokens(struct pipit_request *q, json_t *list, struct error *reterr)
{
    size_t n = json_array_size(list);
    int32_t *ids = n ? calloc(n, sizeof(*ids)) : NULL;
    int r = 0;

    if (!ids) {
        return error_set(reterr, -EINVAL, "'tokens' is not a list of token ids");
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        json_t *v = json_array_get(list, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

        if (id < 0 || id > INT32_MAX) {
            r = error_set(reterr, -EINVAL, "token %zu is not a token id", i);
        } else {
            ids[i] = (int32_t)id;
        }
    }
    if (r == 0 && pipit_request_set_tokens(q, ids, n) < 0) {
        r = error_set(reterr, -ENOMEM, "no memory for the request");
    }
    free(ids);
    return r;
}

static int add_stops(struct pipit_request *q, json_t *v, struct error *reterr)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    for (size_t i = 0; i < n; i++) {
        const char *text;
        size_t len;
        int r = text_of(json_is_array(v) ? json_array_get(v, i) : v, "stop", &text, &len, reterr);

        if (r) {
            return r;
        }
        if (pipit_request_add_stop(q, text, len) < 0) {
            return error_set(reterr, -EINVAL, "'stop': an empty text, or more than 16");
        }
    }
    return 0;
}

static int add_seed(struct pipit_request *q, json_t *v, struct error *reterr)
{
    unsigned long long seed = (unsigned long long)json_integer_value(v);
    const char *text = json_string_value(v);
    char *end = NULL;

    errno = 0;
    if (text) {
        seed = strtoull(text, &end, 10);
    }
    if (text ? errno || *end || text[0] < '0' || text[0] > '9'
             : !json_is_integer(v) || json_integer_value(v) < 0) {
        return error_set(reterr, -EINVAL,
                         "'seed' is not a whole number (above 2^63 - 1 write it as a text)");
    }
    return pipit_request_set_seed(q, seed) < 0 ? error_set(reterr, -EINVAL, "'seed'") : 0;
}

/* Which of prompt, messages, tokens; -1 unless it is exactly one. */
static int content_kind(json_t *line)
{
    json_t *have[] = {json_object_get(line, "prompt"), json_object_get(line, "messages"),
                      json_object_get(line, "tokens")};
    int kind = -1;

    for (int i = 0; i < 3; i++) {
        if (have[i]) {
            if (kind >= 0) {
                return -1;
            }
            kind = i;
        }
    }
    return kind;
}

static int add_content(struct pipit_request *q, json_t *line, int kind, bool raw,
                       struct error *reterr)
{
    const char *text;
    size_t len;
    int r = 0;

    if (kind == 1) {
        return add_messages(q, json_object_get(line, "messages"), reterr);
    }
    if (kind == 2) {
        return add_tokens(q, json_object_get(line, "tokens"), reterr);
    }
    r = text_of(json_object_get(line, "prompt"), "prompt", &text, &len, reterr);
    if (r == 0 && len == 0 && !raw) {
        return error_set(reterr, -EINVAL, "the prompt is empty");
    }
    if (r == 0 && (raw ? pipit_request_set_prompt(q, text, len)
                       : pipit_request_add_message(q, "user", text, len)) < 0) {
        r = error_set(reterr, -EINVAL, "the prompt is too long");
    }
    return r;
}

static int add_options(const struct settings *s, struct pipit_request *q, json_t *line, bool raw,
                       struct error *reterr)
{
    json_t *system = json_object_get(line, "system");
    json_t *kv = json_object_get(line, "kv");
    json_t *v;
    const char *text = s->system;
    size_t len = text ? strlen(text) : 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        v = json_object_get(line, numbers[i].key);
        r = v ? number(q, numbers[i].key, numbers[i].param, v, 1, reterr) : 0;
    }
    if (r == 0 && (v = json_object_get(line, "timeout"))) {
        r = number(q, "timeout", PIPIT_TIMEOUT_MS, v, 1000, reterr);
    }
    if (r == 0 && (v = json_object_get(line, "seed"))) {
        r = add_seed(q, v, reterr);
    }
    if (r == 0 && (v = json_object_get(line, "stop"))) {
        r = add_stops(q, v, reterr);
    }
    if (r == 0 && system) {
        r = text_of(system, "system", &text, &len, reterr);
    }
    if (r == 0 && text && (raw || pipit_request_set_system(q, text, len) < 0)) {
        r = error_set(reterr, -EINVAL,
                      "a system message needs the chat template, raw leaves it out");
    }
    if (r == 0 && kv) {
        r = text_of(kv, "kv", &text, &len, reterr);
        r = r ? r : pipit_request_set_policy(q, text) < 0 ? error_set(reterr, -EINVAL, "'kv'") : 0;
    }
    return r;
}

int batch_line_request(const struct settings *s, struct pipit_client *c, json_t *line,
                       struct pipit_request **ret, struct error *reterr)
{
    struct pipit_request *q = NULL;
    json_t *raw_key = json_object_get(line, "raw");
    int kind = content_kind(line);
    const char *key;
    json_t *v;
    bool raw;
    int r = 0;

    *ret = NULL;
    if (!json_is_object(line)) {
        return error_set(reterr, -EINVAL, "not a JSON object");
    }
    json_object_foreach(line, key, v)
    {
        if (!known(key)) {
            return error_set(reterr, -EINVAL, "unknown key '%.60s'", key);
        }
    }
    if (kind < 0) {
        return error_set(reterr, -EINVAL, "not exactly one of prompt, messages and tokens");
    }
    if (raw_key && !json_is_boolean(raw_key)) {
        return error_set(reterr, -EINVAL, "'raw' is neither true nor false");
    }
    raw = kind == 2 || (kind == 0 && (raw_key ? json_is_true(raw_key) : s->raw));
    if (pipit_request_create(c, raw ? PIPIT_GENERATE : PIPIT_CHAT, &q) < 0) {
        return error_set(reterr, -ENOMEM, "no memory for the request");
    }
    r = settings_apply(s, q, reterr);
    if (r == 0 && pipit_request_set_param(q, PIPIT_URGENCY, UNHURRIED) < 0) {
        r = error_set(reterr, -EINVAL, "'urgency'");
    }
    r = r ? r : add_options(s, q, line, raw, reterr);
    r = r ? r : add_content(q, line, kind, raw, reterr);
    if (r) {
        pipit_request_destroy(q);
        return r;
    }
    *ret = q;
    return 0;
}
