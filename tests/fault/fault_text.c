/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of engine/text/ fails once: loading both kinds of vocabulary, tokenizing,
 * rendering a conversation. PCRE2's own allocations are not among them: they are made inside its
 * library.
 *
 *   fault_text SEEDS     the folder of fuzz_vocabulary's seeds */

#include <stdio.h>
#include <stdlib.h>

#include "engine/text/chat.h"
#include "engine/text/tok.h"
#include "gguf/gguf.h"
#include "tests/fault/fault.h"

struct text {
    struct gguf *g;
    struct tok *t;
};

static int create(void *arg, struct error *reterr)
{
    const struct text *x = arg;
    struct tok *t = NULL;
    int r = tok_create(x->g, &t, reterr);

    if (r == 0) {
        tok_destroy(t);
    }
    return r;
}

static int encode(void *arg, struct error *reterr)
{
    /* Long enough that every array grows: symbols, pairs, special tokens. */
    static char text[2000];
    const struct text *x = arg;
    int32_t *ids;
    size_t n;
    int r;

    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = i < 1000 ? "hell"[i % 4] : "<|im_end|>"[i % 10];
    }
    r = tok_encode_new(x->t, text, sizeof(text), TOK_PARSE_SPECIAL, &ids, &n, reterr);
    if (r == 0) {
        free(ids);
    }
    return r;
}

static int render(void *arg, struct error *reterr)
{
    static const struct chat_message m[] = {{CHAT_SYSTEM, "hell", 4}, {CHAT_USER, "hello\xff", 6}};
    const struct text *x = arg;
    struct chat c;
    int32_t *ids;
    size_t n;
    int r = chat_open(x->g, &c, reterr);

    if (r == 0) {
        r = chat_render(&c, x->t, m, 2, true, &ids, &n, reterr);
        chat_finish(&c);
    }
    if (r == 0) {
        free(ids);
    }
    return r;
}

static int run(const char *folder, const char *name)
{
    struct error e = {0};
    struct text x;
    char path[4096];
    int n;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (gguf_open(path, &x.g, &e) < 0 || tok_create(x.g, &x.t, &e) < 0) {
        (void)fprintf(stderr, "%s: %s\n", path, e.text);
        exit(EXIT_FAILURE);
    }
    n = fault_loop("tok_create", create, &x);
    n += fault_loop("tok_encode_new", encode, &x);
    if (gguf_has(x.g, "tokenizer.chat_template")) {
        n += fault_loop("chat_render", render, &x);
    }
    tok_destroy(x.t);
    gguf_close(x.g);
    return n;
}

int main(int argc, char **argv)
{
    int n = argc == 2 ? run(argv[1], "bpe") + run(argv[1], "spm") : 0;

    (void)printf("%d failures passed through\n", n);
    return n > 30 ? EXIT_SUCCESS : EXIT_FAILURE; /* fewer: the wrappers are not linked in */
}
