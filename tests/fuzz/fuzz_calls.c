/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/calls/calls.h with any bytes as an answer: nothing is lost, what is told as a call is
 * a name and a JSON object, no piece of a text has halves of characters, and the cut into pieces
 * does not matter. The first byte chooses format
 * and prompt, the second whether markers come as tokens; the third cuts. Dictionary:
 * fuzz_calls.dict; seeds: make_seeds_calls.py. */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/calls/calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1000, ROOM = 64 * MOST };

static const char *const formats[] = {"hermes", "qwen-xml", "llama3",  "mistral", "harmony",
                                      "gemma4", "lfm2",     "granite", "none"};
static const char *const prompts[] = {"", "<think>\n", "<|start|>assistant", "[THINK]"};
static const char *const tokens[] = {
    "<tool_call>",       "</tool_call>",   "<think>",      "</think>",
    "[TOOL_CALLS]",      "[ARGS]",         "[THINK]",      "[/THINK]",
    "<|channel|>",       "<|message|>",    "<|start|>",    "<|end|>",
    "<|call|>",          "<|python_tag|>", "<|tool_call>", "<tool_call|>",
    "<|channel>",        "<channel|>",     "<|\"|>",       "<|tool_call_start|>",
    "<|tool_call_end|>", "<|tool_call|>",  "<|im_end|>"};

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

struct heard {
    char raw[MOST];
    size_t n_raw;
    char said[ROOM]; /* a byte for the part where it changes, and its text */
    size_t n_said;
    bool valid;
    int last;
};

static void hear(void *arg, enum calls_part part, const char *text, size_t len)
{
    struct heard *h = arg;

    require(len > 0);
    require(!h->valid || utf8_valid(text, len));
    if (part == CALLS_ARGUMENTS) {
        json_t *object = json_loadb(text, len, JSON_ALLOW_NUL, NULL);

        /* Numbers beyond what jansson holds, lone surrogates and bytes that are no UTF-8 are the
         * model's own. */
        require(!object || json_is_object(object));
        require(text[0] == '{' && text[len - 1] == '}' && h->last == CALLS_NAME);
        json_decref(object);
    }
    if (part == CALLS_NAME) {
        require(len <= CALLS_MAX_NAME && !memchr(text, '"', len) && !memchr(text, '\\', len));
    } else if (part != CALLS_ARGUMENTS) {
        require(h->n_raw + len <= sizeof(h->raw));
        memcpy(h->raw + h->n_raw, text, len);
        h->n_raw += len;
    }
    if ((int)part != h->last || part == CALLS_NAME) {
        require(h->n_said < sizeof(h->said));
        h->said[h->n_said++] = (char)part;
    }
    require(h->n_said + len <= sizeof(h->said));
    memcpy(h->said + h->n_said, text, len);
    h->n_said += len;
    h->last = (int)part;
}

static size_t token_at(const char *p, size_t len)
{
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        size_t n = strlen(tokens[i]);

        if (n <= len && !memcmp(p, tokens[i], n)) {
            return n;
        }
    }
    return 0;
}

/* `cut`: 0 for pieces as long as can be, else a seed. */
static bool run(const uint8_t *head, const char *text, size_t len, unsigned cut, struct heard *h)
{
    static const char tools[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":"
                                "\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]}}}},"
                                "{\"type\":\"function\",\"function\":{\"name\":\"python\"}}]";
    const char *prompt = prompts[head[0] / 16 % 4];
    const struct calls_format *f;
    struct calls *c;
    struct error e;
    json_t *list = json_loads(tools, 0, NULL);
    bool broken;

    memset(h, 0, offsetof(struct heard, raw));
    h->n_raw = h->n_said = 0;
    h->valid = utf8_valid(text, len);
    h->last = -1;
    require(calls_choose(formats[head[0] % 16 % 9], NULL, 0, &f, &e) == 0);
    require(calls_create(f, NULL, head[1] & 2 ? NULL : list, hear, h, &c, &e) == 0);
    json_decref(list);
    calls_begin(c, prompt, strlen(prompt));
    for (size_t i = 0; i < len;) {
        size_t special = head[1] & 1 ? token_at(text + i, len - i) : 0;
        size_t n = special;

        if (special) {
            calls_push(c, text[i + 1] == '|' ? CALLS_CONTROL : CALLS_ADDED, text + i, n);
        } else {
            size_t most = cut ? 1 + cut % 7 : len;

            cut = cut ? cut * 1103515245u + 12345u : 0;
            cut |= cut ? 1 : 0;
            for (n = 1; n < most && i + n < len &&
                        !(head[1] & 1 && token_at(text + i + n, len - i - n));) {
                n++;
            }
            while (h->valid && i + n < len && ((uint8_t)text[i + n] & 0xc0) == 0x80) {
                n++;
            }
            calls_push(c, CALLS_PLAIN, text + i, n);
        }
        i += n;
    }
    calls_finish(c, head[1] & 4);
    require(h->n_raw == len && !memcmp(h->raw, text, len));
    broken = calls_broken(c);
    calls_destroy(c);
    return broken;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct heard whole;
    static struct heard pieces;
    const char *text = (const char *)data + 3;
    size_t len = size - 3;

    if (size < 4 || len > MOST) {
        return 0;
    }
    require(run(data, text, len, 0, &whole) == run(data, text, len, data[2] | 1u, &pieces));
    require(whole.n_said == pieces.n_said && !memcmp(whole.said, pieces.said, whole.n_said));
    return 0;
}
