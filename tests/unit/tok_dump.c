/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer as a filter, for comparing it with other implementations.
 *
 *   tok_dump MODEL.gguf [FLAGS]     FLAGS: the number that tok_encode takes, default 0
 *   tok_dump MODEL.gguf ends        the ids that end a generation, on one line
 *   tok_dump words PRE              bytes of the words into which the pre-tokenizer PRE cuts
 *
 * Each line of standard input is a text as hex digits; the answer is a line of ids. A text that
 * does not come back from its ids byte by byte, or is refused, gives a line that begins with "!".
 */

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tok.h"
#include "engine/text/tok_impl.h"
#include "gguf/gguf.h"

/* Hex digits to bytes in place; returns how many. */
static size_t unhex(char *line)
{
    size_t n = 0;

    for (const char *p = line; isxdigit((unsigned char)p[0]) && isxdigit((unsigned char)p[1]);
         p += 2) {
        const char digits[3] = {p[0], p[1], '\0'};

        line[n++] = (char)strtoul(digits, NULL, 16);
    }
    return n;
}

/* Do the pieces spell the text (after the space that SentencePiece puts first)? */
static bool comes_back(const struct tok *t, const int32_t *ids, size_t n, const char *text,
                       size_t len)
{
    int32_t prev = -1;
    size_t pos = 0;

    for (size_t i = 0; i < n; i++) {
        const char *piece;
        size_t size;

        tok_token_text(t, ids[i], &piece, &size);
        if (size > 0 && piece[0] == ' ' && !tok_is_control(t, ids[i]) && tok_space_after(t, prev)) {
            piece++;
            size--;
        }
        if (size > len - pos || memcmp(text + pos, piece, size) != 0) {
            return false;
        }
        pos += size;
        prev = ids[i];
    }
    return pos == len;
}

static void dump(const struct tok *t, const char *text, size_t len, unsigned flags)
{
    struct error err = {0};
    int32_t *ids;
    size_t n;

    if (tok_encode_new(t, text, len, flags, &ids, &n, &err) < 0) {
        (void)printf("! %s\n", err.text);
        return;
    }
    if (tok_is_exact(t) && !comes_back(t, ids, n, text, len) &&
        !(flags & (TOK_ADD_BOS | TOK_FORCE_BOS))) {
        (void)printf("! does not come back:");
    }
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s%d", i ? " " : "", ids[i]);
    }
    (void)printf("\n");
    free(ids);
}

static void dump_ends(const struct tok *t)
{
    for (int32_t i = 0; i < tok_n_vocab(t); i++) {
        if (tok_is_end(t, i)) {
            (void)printf("%d ", i);
        }
    }
    (void)printf("\n");
}

static int print_word(void *arg, const char *word, uint32_t len)
{
    bool *first = arg;

    (void)word;
    (void)printf("%s%u", *first ? "" : ",", len);
    *first = false;
    return 0;
}

static int dump_words(const char *pre)
{
    struct error err = {0};
    struct tok_pre p = {0};
    pcre2_match_data *scratch = pcre2_match_data_create(1, NULL);
    char *line = NULL;
    size_t cap = 0;
    int r = scratch ? tok_pre_init(&p, pre, strlen(pre), &err) : -ENOMEM;

    while (r == 0 && getline(&line, &cap, stdin) >= 0) {
        bool first = true;

        r = tok_pre_split(&p, scratch, line, (uint32_t)unhex(line), print_word, &first);
        (void)printf("\n");
    }
    if (r < 0) {
        (void)fprintf(stderr, "%s\n", err.text);
    }
    free(line);
    tok_pre_finish(&p);
    pcre2_match_data_free(scratch);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct gguf *g;
    struct tok *t;
    char *line = NULL;
    size_t cap = 0;

    if (argc == 3 && !strcmp(argv[1], "words")) {
        return dump_words(argv[2]);
    }
    if (argc < 2 || gguf_open(argv[1], &g, &err) < 0 || tok_create(g, &t, &err) < 0) {
        (void)fprintf(stderr, "%s\n", argc < 2 ? "usage: tok_dump MODEL.gguf [FLAGS]" : err.text);
        return EXIT_FAILURE;
    }
    gguf_close(g);
    if (argc > 2 && !strcmp(argv[2], "ends")) {
        dump_ends(t);
        tok_destroy(t);
        return EXIT_SUCCESS;
    }
    while (getline(&line, &cap, stdin) >= 0) {
        dump(t, line, unhex(line), argc > 2 ? (unsigned)strtoul(argv[2], NULL, 0) : 0);
    }
    free(line);
    tok_destroy(t);
    return EXIT_SUCCESS;
}
