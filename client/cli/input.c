/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt: from the command line, a file (@FILE), stdin (-), or a word with stdin behind it.
 *
 * One newline at the end of stdin or of a file is dropped: it belongs to echo and to editors, and a
 * model continues "France is" otherwise than "France is\n". A word is joined to stdin with a
 * newline between, when stdin is a pipe or a file and holds something. What is no UTF-8, or holds
 * NUL, is refused here, with the byte's offset in the place it came from. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/cli/cli.h"

enum { INPUT_MAX = 256 << 20, PATIENCE_MS = 2000 };

/* Length of the well-formed character at p, or 0. */
static size_t character(const uint8_t *p, size_t left)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;

    if (n == 0 || n > left || p[0] > 0xf4 || p[0] == 0) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) {
        return 0; /* overlong, surrogate, beyond U+10FFFF */
    }
    return n;
}

ssize_t input_bad_byte(const char *data, size_t len)
{
    const uint8_t *p = (const uint8_t *)data;
    size_t i = 0;

    while (i < len) {
        size_t n = character(p + i, len - i);

        if (n == 0) {
            return (ssize_t)i;
        }
        i += n;
    }
    return -1;
}

static int check(const struct text *t, const char *from)
{
    ssize_t bad = input_bad_byte(t->data, t->len);

    if (bad < 0) {
        return 0;
    }
    if (t->data[bad] == '\0') {
        say("%s holds a zero byte at byte %zd", from, bad);
    } else {
        say("%s is not UTF-8 at byte %zd (0x%02x)", from, bad, (uint8_t)t->data[bad]);
    }
    return EXIT_USAGE;
}

static void drop_newline(struct text *t)
{
    if (t->len && t->data[t->len - 1] == '\n') {
        t->len--;
        if (t->len && t->data[t->len - 1] == '\r') {
            t->len--;
        }
        t->data[t->len] = '\0';
    }
}

static int grow(struct text *t, size_t *cap)
{
    char *more = realloc(t->data, *cap * 2);

    if (!more) {
        return -ENOMEM;
    }
    t->data = more;
    *cap *= 2;
    return 0;
}

/* Everything that fd holds. Whoever waits for a person or a program to end its input is told so. */
static int slurp(int fd, const char *from, struct text *ret)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t cap = 4096;
    ssize_t n = 0;

    ret->data = malloc(cap);
    ret->len = 0;
    if (!ret->data) {
        say("no memory for %s", from);
        return EXIT_INTERNAL;
    }
    if (!isatty(fd) && poll(&p, 1, PATIENCE_MS) == 0) {
        say("waiting for %s to end (give </dev/null if there is none)", from);
    }
    for (;;) {
        if (ret->len + 1 >= cap && grow(ret, &cap) < 0) {
            say("no memory for %s", from);
            return EXIT_INTERNAL;
        }
        n = read(fd, ret->data + ret->len, cap - ret->len - 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        ret->len += (size_t)n;
        if (ret->len > INPUT_MAX) {
            say("%s is larger than %d MiB", from, INPUT_MAX >> 20);
            return EXIT_USAGE;
        }
    }
    if (n < 0) {
        say("cannot read %s: %s", from, strerror(errno));
        return EXIT_USAGE;
    }
    ret->data[ret->len] = '\0';
    return 0;
}

static int from_fd(int fd, const char *from, struct text *ret)
{
    int r = slurp(fd, from, ret);

    if (r == 0) {
        r = check(ret, from);
    }
    if (r == 0) {
        drop_newline(ret);
    }
    return r;
}

static int from_file(const char *path, struct text *ret)
{
    char from[300];
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        say("cannot open '%.200s': %s (a word that begins with @ names a file; @@ stands for @)",
            path, strerror(errno));
        return EXIT_USAGE;
    }
    (void)snprintf(from, sizeof(from), "the file %.200s", path);
    return from_fd(fd, from, ret);
}

static int from_word(const char *word, struct text *ret)
{
    if (word[0] == '@' && word[1] != '@') {
        return from_file(word + 1, ret);
    }
    ret->data = strdup(word + (word[0] == '@'));
    if (!ret->data) {
        say("no memory for the prompt");
        return EXIT_INTERNAL;
    }
    ret->len = strlen(ret->data);
    return check(ret, "the prompt");
}

/* Is there input behind the word? A terminal is for the person; /dev/null and closed are none. */
static bool stdin_is_input(void)
{
    struct stat st;

    return fstat(STDIN_FILENO, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

static int join(struct text *a, const struct text *b)
{
    char *more = realloc(a->data, a->len + b->len + 2);

    if (!more) {
        say("no memory for the prompt");
        return EXIT_INTERNAL;
    }
    a->data = more;
    more[a->len] = '\n';
    memcpy(more + a->len + 1, b->data, b->len + 1);
    a->len += b->len + 1;
    return 0;
}

int input_prompt(const struct command *cmd, const struct option_list *words, struct text *ret)
{
    struct text behind = {0};
    const char *word = words->n ? words->v[0] : NULL;
    int r;

    *ret = (struct text){0};
    if (words->n > 1) {
        return usage_error(cmd->name, "more than one text: put it in quotes");
    }
    if (!word && isatty(STDIN_FILENO)) {
        return usage_error(cmd->name, "no text: give it as an argument, in a file (@FILE) or on "
                                      "stdin");
    }
    if (!word || strcmp(word, "-") == 0) {
        r = from_fd(STDIN_FILENO, "stdin", ret);
    } else {
        r = from_word(word, ret);
        if (r == 0 && stdin_is_input()) {
            r = from_fd(STDIN_FILENO, "stdin", &behind);
            if (r == 0 && behind.len) {
                r = join(ret, &behind);
            }
        }
    }
    free(behind.data);
    if (r) {
        free(ret->data);
        *ret = (struct text){0};
    }
    return r;
}
