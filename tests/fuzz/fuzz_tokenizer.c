/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes everything that reads a client's text, on two small vocabularies. The first byte says
 * what:
 *
 *   bit 0       byte-level BPE or SentencePiece
 *   bits 1-3    0 encode and back, 1 the same with markers parsed, 2 ids to text, 3 stop strings,
 *               4 a template to recognise, 5-7 messages to render
 *
 * Promises: a text comes back from its ids byte for byte; no text becomes a control token unless
 * asked; what comes out of the detokenizer is always whole UTF-8, within its bound; stop strings do
 * not depend on the cut; a conversation holds the renderer's control tokens and no others. */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/chat.h"
#include "engine/text/detok.h"
#include "engine/text/stop.h"
#include "tests/unit/tok_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tok *toks[2];

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void init(void)
{
    static struct tok_spec spec;
    struct error e = {0};

    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            tok_spec_bpe(&spec);
            spec.pre = "llama-bpe";
        } else {
            tok_spec_spm(&spec);
        }
        (void)tok_spec_add(&spec, "<x>", 4, 0);
        (void)tok_spec_add(&spec, "x><", 4, 0);
        (void)tok_spec_add(&spec, "\xe2\x96\x81\xe2\x96\x81<", 4, -3);
        require(tok_spec_make(&spec, &toks[i], NULL, &e) == 0);
    }
}

static void encode(const struct tok *t, const char *text, size_t len, unsigned flags)
{
    struct error e = {0};
    struct detok d;
    int32_t *ids;
    size_t n;
    size_t counted;
    size_t pos = 0;
    char *out;

    require(tok_encode_new(t, text, len, flags, &ids, &n, &e) == 0);
    require(n <= tok_bound(len));
    require(tok_encode(t, text, len, flags, NULL, 0, &counted, NULL) == (n ? -E2BIG : 0) &&
            counted == n);
    out = malloc(detok_bound(t) * (n + 1));
    require(out);
    detok_init(&d, t, -1, true);
    for (size_t i = 0; i < n; i++) {
        size_t got = detok_push(&d, ids[i], out + pos);

        require(got <= detok_bound(t) && utf8_valid(out + pos, got));
        require((flags & TOK_PARSE_SPECIAL) || !tok_is_control(t, ids[i]));
        pos += got;
    }
    pos += detok_flush(&d, out + pos);
    require(!utf8_valid(text, len) || (pos == len && !memcmp(out, text, len)));
    pos = 0;
    for (size_t i = 0; i < n; i++) {
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
    require(pos == len);
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

/* Strings end at 0xff bytes; what follows the fourth is the text. */
static void stop(const char *data, size_t size)
{
    struct stop_text texts[4];
    struct stop one;
    struct stop many;
    size_t n = 0;
    const char *end;

    while (n < 4 && (end = memchr(data, 0xff, size))) {
        texts[n++] = (struct stop_text){data, (size_t)(end - data)};
        size -= (size_t)(end + 1 - data);
        data = end + 1;
    }
    if (stop_init(&one, texts, n, NULL) < 0) {
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

static size_t n_control(const struct tok *t, const struct chat *c, const struct chat_message *m,
                        size_t n)
{
    int32_t *ids;
    size_t n_ids;
    size_t found = 0;

    require(chat_render(c, t, m, n, true, &ids, &n_ids, NULL) == 0);
    for (size_t i = 0; i < n_ids; i++) {
        found += tok_is_control(t, ids[i]);
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

    if (chat_init(text, len, &c, &e) < 0) {
        require((e.code == -EBADMSG || e.code == -E2BIG) && e.text[0]);
        return;
    }
    if (chat_render(&c, t, &m, 1, true, &ids, &n, &e) == 0) {
        free(ids);
    } else {
        require(e.code < 0 && e.text[0]);
    }
    chat_finish(&c);
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

        require(chat_init(templates[k], strlen(templates[k]), &c, NULL) == 0);
        for (size_t i = 0; i < 3; i++) {
            m[i].len = 0;
        }
        wanted = n_control(t, &c, m, 3);
        for (size_t i = 0; i < 3; i++) {
            m[i].text = text + i * part;
            m[i].len = part;
        }
        require(n_control(t, &c, m, 3) == wanted);
        chat_finish(&c);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!toks[0]) {
        init();
    }
    if (size == 0) {
        return 0;
    }
    const struct tok *t = toks[data[0] & 1];
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
    default:
        render(t, text, size);
        break;
    }
    return 0;
}
