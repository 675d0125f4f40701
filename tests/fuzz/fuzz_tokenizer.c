/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes everything that reads a client's text, on small vocabularies, and what is made of their
 * merges and scores. The first byte says what:
 *
 *   bits 0,4-7  the vocabulary (`makes` below)
 *   bits 1-3    0 encode and back, 1 the same with markers parsed, 2 ids to text, 3 stop strings,
 *               4 a template to recognise, 5 messages to render, 6 the same with tools and calls,
 *               7 a vocabulary that is changed first
 *
 * Promises: a text comes back from its ids byte for byte, but for a vocabulary that normalises; no
 * text becomes a control token unless asked; what comes out of the detokenizer is always whole
 * UTF-8, within its bound; stop strings do not depend on the cut; a conversation holds the
 * renderer's control tokens and no others. Memory can fail (fail.h). */

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/chat.h"
#include "engine/text/detok.h"
#include "engine/text/stop.h"
#include "gguf/gguf.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"
#include "tests/unit/tok_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
    void (*spec)(struct tok_spec *s);
    const char *pre; /* NULL: the specification's own */
} makes[] = {
    {tok_spec_bpe, "llama-bpe"},  {tok_spec_spm, NULL},           {tok_spec_bpe, "smollm"},
    {tok_spec_gemma4, NULL},      {tok_spec_bpe, "afmoe"},        {tok_spec_bpe, "superbpe"},
    {tok_spec_bpe, "tiny_aya"},   {tok_spec_bpe, "deepseek-llm"}, {tok_spec_bpe, "gpt-4o"},
    {tok_spec_bpe, "exaone-moe"}, {tok_spec_bpe, "kimi-k2"},      {tok_spec_bpe, "youtu"},
    {tok_spec_bpe, "qwen35"},     {tok_spec_bpe, "jais-2"},       {tok_spec_bpe, "minicpm5"},
    {tok_spec_bpe, "bloom"},      {tok_spec_unigram, NULL},       {tok_spec_normal, NULL}};

enum { N_MAKES = sizeof(makes) / sizeof(makes[0]) };

static struct tok *toks[N_MAKES];

static void specify(int make, struct tok_spec *spec)
{
    makes[make].spec(spec);
    spec->pre = makes[make].pre ? makes[make].pre : spec->pre;
    (void)tok_spec_add(spec, "<x>", 4, 0);
    (void)tok_spec_add(spec, "x><", 4, 0);
    (void)tok_spec_add(spec, "\xe2\x96\x81\xe2\x96\x81<", 4, -3);
    spec->n_scores = make == 1 || make > 15 ? spec->n : -1;
}

static const struct tok *get(int make)
{
    static struct tok_spec spec;
    struct error e = {0};

    if (!toks[make]) {
        specify(make, &spec);
        require(tok_spec_make(&spec, &toks[make], NULL, &e) == 0);
    }
    return toks[make];
}

/* Memory failed, and the call said so. */
static bool no_memory(int r, const struct error *e)
{
    require(r != -ENOMEM || (fail_hit() && e->code == r && e->text[0]));
    return r == -ENOMEM;
}

/* Control tokens that no text may become; the unknown one stands for what a vocabulary lacks. */
static bool is_marker(const struct tok *t, int32_t id)
{
    return tok_is_control(t, id) && (tok_is_exact(t) || id != tok_find_special(t, "<unk>"));
}

static void encode(const struct tok *t, const char *text, size_t len, unsigned flags)
{
    struct error e = {0};
    struct detok d;
    int32_t *ids;
    int r;
    size_t n;
    size_t counted;
    size_t pos = 0;
    char *out;

    fail_begin(FAIL_ALL);
    r = tok_encode_new(t, text, len, flags, &ids, &n, &e);
    fail_end();
    if (no_memory(r, &e)) {
        return;
    }
    if (r == -EINVAL) { /* a byte that no token spells: only a changed vocabulary lacks one */
        require(e.text[0]);
        return;
    }
    if (r == -E2BIG && !tok_is_exact(t)) { /* a normal form that is far longer */
        require(strstr(e.text, "normal form"));
        return;
    }
    require(r == 0 && n <= tok_bound(t, len));
    require(tok_encode(t, text, len, flags, NULL, 0, &counted, NULL) == (n ? -E2BIG : 0) &&
            counted == n);
    out = malloc(detok_bound(t) * (n + 1));
    require(out);
    detok_init(&d, t, -1, true);
    for (size_t i = 0; i < n; i++) {
        size_t got = detok_push(&d, ids[i], out + pos);

        require(got <= detok_bound(t) && utf8_valid(out + pos, got));
        require((flags & TOK_PARSE_SPECIAL) || !is_marker(t, ids[i]));
        pos += got;
    }
    pos += detok_flush(&d, out + pos);
    bool exact = tok_is_exact(t);

    require(!exact || !utf8_valid(text, len) || (pos == len && !memcmp(out, text, len)));
    pos = 0;
    for (size_t i = 0; i < n && exact; i++) {
        int32_t prev = i ? ids[i - 1] : -1;
        const char *s;
        size_t size;

        tok_token_text(t, ids[i], &s, &size);
        if (size && *s == ' ' && !tok_is_control(t, ids[i]) && tok_space_after(t, prev)) {
            s++;
            size--;
        }
        require(size <= len - pos && !memcmp(text + pos, s, size));
        pos += size;
    }
    require(!exact || pos == len);
    free(out);
    free(ids);
}

static void decode(const struct tok *t, const uint8_t *data, size_t size)
{
    char *out = malloc(detok_bound(t));
    struct detok d;

    require(out);
    detok_init(&d, t, -1, size & 1);
    for (; size >= 2; data += 2, size -= 2) {
        int32_t id = (int16_t)(data[0] | data[1] << 8);
        size_t n = detok_push(&d, id % 512, out);

        require(n <= detok_bound(t) && utf8_valid(out, n));
    }
    require(utf8_valid(out, detok_flush(&d, out)));
    free(out);
}

/* Strings end at 0xff bytes; what follows the most is the text. */
static void stop(const char *data, size_t size)
{
    struct stop_text texts[STOP_MAX_STRINGS + 1];
    struct error e = {0};
    struct stop one;
    struct stop many;
    size_t n = 0;
    const char *end;

    while (n <= STOP_MAX_STRINGS && (end = memchr(data, 0xff, size))) {
        texts[n++] = (struct stop_text){data, (size_t)(end - data)};
        size -= (size_t)(end + 1 - data);
        data = end + 1;
    }
    if (stop_init(&one, texts, n, &e) < 0) {
        require(e.text[0]);
        return;
    }
    char *a = malloc(size + STOP_MAX_BYTES);
    char *b = malloc(2 * size + 2 * STOP_MAX_BYTES);
    size_t n_b = 0;
    require(a && b);
    many = one;
    size_t n_a = stop_push(&one, data, size, a);
    for (size_t i = 0; i < size; i++) {
        n_b += stop_push(&many, data + i, 1, b + n_b);
        require(many.n_held < STOP_MAX_BYTES);
    }
    require(one.hit == many.hit && n_a == n_b && !memcmp(a, b, n_a));
    n_b += stop_flush(&many, b + n_b);
    require(n_b <= size && !memcmp(b, data, n_b) && (many.hit >= 0 || n_b == size));
    free(a);
    free(b);
}

/* SIZE_MAX: memory failed. */
static size_t n_control(const struct tok *t, const struct chat *c, const struct chat_message *m,
                        size_t n)
{
    struct error e = {0};
    int32_t *ids;
    size_t n_ids;
    size_t found = 0;
    int r;

    fail_begin(FAIL_ALL);
    r = chat_render(c, t, m, n, true, &ids, &n_ids, &e);
    fail_end();
    if (no_memory(r, &e)) {
        return SIZE_MAX;
    }
    require(r == 0);
    for (size_t i = 0; i < n_ids; i++) {
        found += is_marker(t, ids[i]);
    }
    free(ids);
    return found;
}

static void detect(const struct tok *t, const char *text, size_t len)
{
    const struct chat_message m = {CHAT_USER, "hello", 5};
    struct error e = {0};
    struct chat c;
    int32_t *ids;
    size_t n;
    int r;

    fail_begin(FAIL_ALL);
    r = chat_init(text, len, &c, &e);
    if (r == 0) {
        r = chat_render(&c, t, &m, 1, true, &ids, &n, &e);
        if (r == 0) {
            free(ids);
        }
        chat_finish(&c);
    }
    fail_end();
    require(r == 0 || (e.code == r && e.text[0]));
}

/* Three messages, cut from the text. */
static void render(const struct tok *t, const char *text, size_t len)
{
    static const char *const templates[] = {
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{% for m in messages %}<start_of_turn>{{ m.content | trim }}<end_of_turn>{% endfor %}",
        "{% for m in messages %}{{ '<|eot_' + 'id|>' + m.content[1:] ~ eos_token }}{% endfor %}",
        "{{ messages | tojson }}{{ messages | map(attribute='content') | join('<|im_end|>') }}"};
    struct chat_message m[3] = {{CHAT_USER, "", 0}, {CHAT_ASSISTANT, "", 0}, {CHAT_USER, "", 0}};
    struct chat c;

    for (size_t k = 0; k < 4; k++) {
        size_t part = len / 3;
        size_t wanted;
        size_t found;

        require(chat_init(templates[k], strlen(templates[k]), &c, NULL) == 0);
        for (size_t i = 0; i < 3; i++) {
            m[i].len = 0;
        }
        wanted = n_control(t, &c, m, 3);
        for (size_t i = 0; i < 3; i++) {
            m[i].text = text + i * part;
            m[i].len = part;
        }
        found = n_control(t, &c, m, 3);
        require(found == SIZE_MAX || wanted == SIZE_MAX || found == wanted);
        chat_finish(&c);
    }
}

/* The next part of a text, up to a 0xff byte. */
static struct chat_text part(const char **text, size_t *len)
{
    const char *end = memchr(*text, 0xff, *len);
    struct chat_text p = {*text, end ? (size_t)(end - *text) : *len};

    *text += p.len + (end != NULL);
    *len -= p.len + (end != NULL);
    return p;
}

/* A conversation with everything, its texts divided by 0xff bytes: definitions of tools, two calls'
 * arguments, a name, an id, what the assistant thought and said. */
static void render_tools(const struct tok *t, const char *text, size_t len)
{
    static const char *const templates[] = {
        "{{ tools }}{% for m in messages %}{{ m }}{% endfor %}",
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.thinking or m.reasoning_content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{{ m.name ~ m.tool_call_id ~ m.content }}<|im_end|>{% endfor %}"};
    struct chat_text definitions = part(&text, &len);
    struct chat_text first = part(&text, &len);
    struct chat_text second = part(&text, &len);
    struct chat_text name = part(&text, &len);
    struct chat_text id = part(&text, &len);
    struct chat_text thought = part(&text, &len);
    const struct chat_call calls[2] = {{id, name, first}, {{NULL, 0}, name, second}};
    const struct chat_tools tools = {definitions.len ? definitions.ptr : NULL, definitions.len,
                                     calls};
    const struct chat_message m[] = {
        {.role = CHAT_USER, .text = "hello", .len = 5},
        {.role = CHAT_ASSISTANT, .text = text, .len = len, .reasoning = thought, .n_calls = 2},
        {.role = CHAT_TOOL, .text = text, .len = len, .name = name, .call_id = id},
        {.role = CHAT_ASSISTANT, .text = text, .len = len, .reasoning = thought}};

    for (size_t k = 0; k < 2; k++) {
        struct error e = {0};
        struct chat c;
        int32_t *ids;
        size_t n;
        size_t control = 0;
        int r;

        require(chat_init(templates[k], strlen(templates[k]), &c, NULL) == 0);
        fail_begin(FAIL_ALL);
        r = chat_render_tools(&c, t, m, len ? 4 : 0, &tools, true, &ids, &n, &e);
        fail_end();
        chat_finish(&c);
        if (r < 0) {
            require(e.code == r && e.text[0] && (r == -EINVAL || r == -E2BIG || no_memory(r, &e)));
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            control += is_marker(t, ids[i]);
        }
        require(control <= (k ? 9 : 1)); /* the template's own, and BOS */
        free(ids);
    }
}

/* Changes of a vocabulary, until a byte that names none; the rest is a text. */
static void change(struct tok_spec *spec, struct input *in)
{
    static char texts[8][64];
    size_t n_texts = 0;

    for (;;) {
        unsigned what = take(in);
        size_t i;

        switch (what) {
        case 'm': /* a merge more */
        case 'p': /* its pre-tokenizer */
        case 't': /* a token more */
            i = take(in) % sizeof(texts[0]);
            i = i < in->left ? i : in->left;
            if (n_texts == 8 || spec->n == TOK_SPEC_MAX || spec->n_merges == TOK_SPEC_MAX_MERGES) {
                return;
            }
            memcpy(texts[n_texts], in->p, i);
            texts[n_texts][i] = '\0';
            in->p += i;
            in->left -= i;
            if (what == 'p') {
                spec->pre = texts[n_texts++];
            } else if (what == 't') {
                (void)tok_spec_add(spec, texts[n_texts++], take(in), 1);
            } else if (spec->n_merges >= 0) {
                spec->merges[spec->n_merges++] = texts[n_texts++];
            }
            break;
        case 'M': /* no merges; S: no scores, or as many */
            spec->n_merges = -1;
            break;
        case 'S':
            spec->n_scores = (int)take(in) % (spec->n + 1) - 1;
            break;
        case 's': /* a token's score; k: its kind */
            i = (size_t)take(in) | (size_t)take(in) << 8;
            spec->scores[i % (size_t)spec->n] = take(in) ? NAN : 7;
            break;
        case 'c': /* rules of normalisation */
            i = take(in);
            i = i < in->left ? i : in->left;
            spec->charsmap = (const char *)in->p;
            spec->n_charsmap = i;
            in->p += i;
            in->left -= i;
            break;
        case 'k':
            i = (size_t)take(in) | (size_t)take(in) << 8;
            spec->kinds[i % (size_t)spec->n] = take(in);
            break;
        default:
            return;
        }
    }
}

static void load(int make, struct input *in)
{
    static struct tok_spec spec;
    struct error e = {0};
    struct gguf *g = NULL;
    struct tok *t = NULL;
    int r;

    specify(make, &spec);
    change(&spec, in);
    r = tok_spec_make(&spec, &t, &g, &e);
    if (r < 0) {
        require((r == -EBADMSG || r == -ENOTSUP) && e.code == r && e.text[0]);
        return;
    }
    tok_destroy(t);
    fail_begin(FAIL_ALL);
    r = tok_create(g, &t, &e);
    fail_end();
    gguf_close(g);
    if (!no_memory(r, &e)) {
        require(r == 0);
        encode(t, (const char *)in->p, in->left, 0);
        tok_destroy(t);
    }
}

static int one(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }

    int make = ((data[0] & 1) | (data[0] >> 3 & 30)) % N_MAKES;
    struct input in = {data + 1, size - 1};
    const struct tok *t = get(make);
    const char *text = (const char *)data + 1;

    size--;
    switch (data[0] >> 1 & 7) {
    case 0:
    case 1:
        encode(t, text, size, data[0] & 2 ? TOK_PARSE_SPECIAL : 0);
        break;
    case 2:
        decode(t, data + 1, size);
        break;
    case 3:
        stop(text, size);
        break;
    case 4:
        detect(t, text, size);
        break;
    case 5:
        render(t, text, size);
        break;
    case 6:
        render_tools(t, text, size);
        break;
    default:
        load(make, &in);
        break;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}
