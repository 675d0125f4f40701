/* SPDX-License-Identifier: Apache-2.0 */
/* Finds vocabularies, and checks texts against ids in both directions; see tok_cases.h. */

#include "tests/unit/tok_cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/detok.h"
#include "engine/text/tok.h"
#include "gguf/gguf.h"

static char *read_file(const char *path, size_t *ret_size)
{
    FILE *f = fopen(path, "re");
    char *data = NULL;
    long size;

    if (f && !fseek(f, 0, SEEK_END) && (size = ftell(f)) >= 0 && !fseek(f, 0, SEEK_SET)) {
        data = malloc((size_t)size + 1);
        cr_assert(data && fread(data, 1, (size_t)size, f) == (size_t)size);
        data[size] = '\0';
        *ret_size = (size_t)size;
    }
    if (f) {
        (void)fclose(f);
    }
    return data;
}

const char *tok_cases_shared(const char *file)
{
    static char path[4096];
    const char *root = getenv("PIPIT_SHARED");

    if (root) {
        (void)snprintf(path, sizeof(path), "%s/data/tokenizer/%s", root, file);
    } else {
        (void)snprintf(path, sizeof(path), "%s/../../../shared/data/tokenizer/%s",
                       getenv("PIPIT_TEST_DATA"), file);
    }
    return path;
}

/* The file of a vocabulary in the vectors; NULL when it is not here. */
static const char *file_of(const char *name)
{
    static char path[4096];
    static const char *const files[][2] = {{"gpt-2", "ggml-vocab-gpt-2.gguf"},
                                           {"llama-bpe", "ggml-vocab-llama-bpe.gguf"},
                                           {"llama-spm", "ggml-vocab-llama-spm.gguf"}};
    const char *found = NULL;

    if (!strcmp(name, "stories260K")) {
        (void)snprintf(path, sizeof(path), "%s/stories260K.gguf", getenv("PIPIT_TEST_DATA"));
        found = path;
    } else if (!strcmp(name, "smollm2")) {
        found = getenv("PIPIT_SMOLLM2");
    }
    for (size_t i = 0; i < 3; i++) {
        if (!strncmp(name, files[i][0], strcspn(name, "/")) &&
            files[i][0][strcspn(name, "/")] == '\0') {
            found = tok_cases_shared(files[i][1]);
        }
    }
    return found && !access(found, R_OK) ? found : NULL;
}

/* Another name in tokenizer.ggml.pre of a file without tensors. */
static char *with_pre(char *file, size_t *size, const char *pre)
{
    static const char key[] = "tokenizer.ggml.pre\x08\0\0"; /* and a third zero: type string */
    char *at = memmem(file, *size, key, sizeof(key));
    char *out = malloc(*size + 64);
    uint64_t len;

    cr_assert(at && out);
    at += sizeof(key);
    memcpy(&len, at, sizeof(len));
    size_t head = (size_t)(at - file);
    size_t tail = *size - head - sizeof(len) - len;
    memcpy(out, file, head);
    memcpy(out + head, &(uint64_t){strlen(pre)}, sizeof(len));
    memcpy(out + head + sizeof(len), pre, strlen(pre));
    memcpy(out + head + sizeof(len) + strlen(pre), at + sizeof(len) + len, tail);
    *size = head + sizeof(len) + strlen(pre) + tail;
    free(file);
    return out;
}

/* "gpt-2/qwen2": the vocabulary gpt-2 with the pre-tokenizer qwen2. NULL: not here. */
static struct tok *open_named(const char *name)
{
    const char *path = file_of(name);
    const char *pre = strchr(name, '/');
    struct error e = {0};
    struct gguf *g;
    struct tok *t;
    char *data = NULL;
    size_t size;

    if (!path) {
        return NULL;
    }
    if (pre) {
        data = read_file(path, &size);
        cr_assert(data);
        data = with_pre(data, &size, pre + 1);
        cr_assert_eq(gguf_open_memory(data, size, &g, &e), 0, "%s: %s", name, e.text);
    } else {
        cr_assert_eq(gguf_open(path, &g, &e), 0, "%s: %s", path, e.text);
    }
    cr_assert_eq(tok_create(g, &t, &e), 0, "%s: %s", name, e.text);
    gguf_close(g);
    free(data);
    return t;
}

/* Does the text give the ids of `want` (separated by `comma`), and the ids the text? */
static void check_case(const struct tok *t, const char *text, size_t len, const char *want,
                       char comma, const char *what)
{
    struct error e = {0};
    int32_t *ids;
    size_t n;

    cr_assert_eq(tok_encode_new(t, text, len, 0, &ids, &n, &e), 0, "%s: %s", what, e.text);
    for (size_t i = 0; i < n; i++) {
        char *end;
        long id = strtol(want, &end, 10);

        cr_assert(end > want && id == ids[i], "%s: id %zu of \"%.*s\" is %d, wanted %ld", what, i,
                  (int)len, text, ids[i], id);
        want = *end == comma ? end + 1 : end;
    }
    cr_assert(*want == '\0' || *want == '\n', "%s: more ids wanted: %s", what, want);

    struct detok d;
    char *out = malloc(detok_bound(t) * (n + 1));
    size_t size = 0;
    cr_assert(out);
    detok_init(&d, t, -1, false);
    for (size_t i = 0; i < n; i++) {
        size += detok_push(&d, ids[i], out + size);
    }
    size += detok_flush(&d, out + size);
    cr_assert(size == len && !memcmp(out, text, len), "%s: \"%.*s\" does not come back", what,
              (int)len, text);
    free(out);
    free(ids);
}

static size_t unhex(const char *hex, size_t n, char *out)
{
    for (size_t i = 0; i < n / 2; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        out[i] = (char)strtoul(digits, NULL, 16);
    }
    return n / 2;
}

int tok_cases_vectors(const char *name)
{
    struct tok *t = open_named(name);
    char path[4096];
    char *data;
    char *line;
    char *rest;
    size_t size;
    int n = 0;

    if (!t) {
        return 0;
    }
    (void)snprintf(path, sizeof(path), "%s/tok_vectors.txt", getenv("PIPIT_TEST_DATA"));
    data = read_file(path, &size);
    cr_assert(data, "%s", path);
    for (line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *hex = strchr(line, ' ') + 1;
        char *ids = strchr(hex, ' ') + 1;
        char text[1024];

        if (strncmp(line, name, strlen(name)) != 0 || line[strlen(name)] != ' ') {
            continue;
        }
        check_case(t, text, unhex(hex, (size_t)(ids - 1 - hex), text), ids, ',', name);
        n++;
    }
    cr_assert_gt(n, 20, "%s", name);
    free(data);
    tok_destroy(t);
    return n;
}

/* llama.cpp's own cases: texts in .inp, a line of ids for each in .out. */
void tok_cases_set(const char *gguf_name)
{
    static const char gap[] = "\n__ggml_vocab_test__\n";
    char path[4096 + 8];
    char *in;
    char *out;
    char *rest;
    size_t n_in;
    size_t n_out;
    int n = 0;
    struct tok *t;

    t = open_named(strcmp(gguf_name, "ggml-vocab-llama-spm.gguf") == 0   ? "llama-spm"
                   : strcmp(gguf_name, "ggml-vocab-llama-bpe.gguf") == 0 ? "llama-bpe"
                                                                         : "gpt-2");
    (void)snprintf(path, sizeof(path), "%s.inp", tok_cases_shared(gguf_name));
    in = read_file(path, &n_in);
    (void)snprintf(path, sizeof(path), "%s.out", tok_cases_shared(gguf_name));
    out = read_file(path, &n_out);
    cr_assert(t && in && out);
    rest = out;
    for (char *text = in; text; n++) {
        char *end = memmem(text, n_in - (size_t)(text - in), gap, sizeof(gap) - 1);
        char *line = strsep(&rest, "\n");
        size_t len = end ? (size_t)(end - text) : n_in - (size_t)(text - in);

        cr_assert(line, "fewer lines than texts");
        line += strspn(line, " ");
        check_case(t, text, len, line, ' ', gguf_name);
        text = end ? end + sizeof(gap) - 1 : NULL;
    }
    cr_assert_eq(n, 47);
    tok_destroy(t);
    free(in);
    free(out);
}
