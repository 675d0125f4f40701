/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the table of tok_spec.h as a GGUF file and reads it back. */

#include "tests/unit/tok_spec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/gguf.h"

static const char *const markers[] = {
    "<|im_start|>", "<|im_end|>",      "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",   "<start_of_turn>", "<end_of_turn>",       "<|endoftext|>",
};

int tok_spec_add(struct tok_spec *s, const char *text, int kind, float score)
{
    assert(s->n < TOK_SPEC_MAX);
    s->tokens[s->n] = text;
    s->kinds[s->n] = kind;
    s->scores[s->n] = score;
    s->n_kinds = s->n_scores = s->n + 1;
    return s->n++;
}

int tok_spec_find(const struct tok_spec *s, const char *text)
{
    for (int i = 0; i < s->n; i++) {
        if (!strcmp(s->tokens[i], text)) {
            return i;
        }
    }
    return -1;
}

static void add_markers(struct tok_spec *s)
{
    for (size_t i = 0; i < sizeof(markers) / sizeof(markers[0]); i++) {
        (void)tok_spec_add(s, markers[i], 3, 0);
    }
}

/* GPT-2's letter for a byte. */
static void letter(int byte, char *out)
{
    int cp = byte;

    if (byte <= 32) {
        cp = 256 + byte;
    } else if (byte >= 127 && byte <= 160) {
        cp = 256 + 33 + byte - 127;
    } else if (byte == 173) {
        cp = 256 + 67;
    }
    if (cp < 128) {
        out[0] = (char)cp;
    } else {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
    }
}

void tok_spec_bpe(struct tok_spec *s)
{
    static const char *const words[] = {
        "he", "ll",   "hell",      "hello",         "us",
        "er", "user", "\xc4\xa0h", "\xc4\xa0hello", "\xc4\x8a\xc4\x8a"};
    static const char *const merges[] = {
        "h e", "l l",   "he ll",      "hell o",         "u s",
        "e r", "us er", "\xc4\xa0 h", "\xc4\xa0 hello", "\xc4\x8a \xc4\x8a"};

    memset(s, 0, sizeof(*s));
    s->model = "gpt2";
    s->pre = "gpt-2";
    s->add_bos = -1;
    for (int i = 0; i < 256; i++) {
        letter(i, s->letters[i]);
        (void)tok_spec_add(s, s->letters[i], 1, 0);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        (void)tok_spec_add(s, words[i], 1, 0);
        s->merges[s->n_merges++] = merges[i];
    }
    add_markers(s);
    s->bos = s->eos = tok_spec_find(s, "<|endoftext|>");
    s->n_scores = -1;
}

void tok_spec_spm(struct tok_spec *s)
{
    static const char *const words[] = {"\xe2\x96\x81",
                                        "a",
                                        "b",
                                        "ab",
                                        ("\342\226\201a"),
                                        "\xe2\x96\x81\xe2\x96\x81",
                                        "s",
                                        "<",
                                        ">",
                                        "/",
                                        "<s",
                                        "s>",
                                        "</",
                                        "</s",
                                        "\xc3\xa4"};

    memset(s, 0, sizeof(*s));
    s->model = "llama";
    s->add_bos = -1;
    (void)tok_spec_add(s, "<unk>", 2, 0);
    s->bos = tok_spec_add(s, "<s>", 3, 0);
    s->eos = tok_spec_add(s, "</s>", 3, 0);
    for (int i = 0; i < 256; i++) {
        (void)snprintf(s->letters[i], sizeof(s->letters[i]), "<0x%02X>", (unsigned)i);
        (void)tok_spec_add(s, s->letters[i], 6, 0);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        (void)tok_spec_add(s, words[i], 1, -(float)i);
    }
    add_markers(s);
}

void tok_spec_gemma4(struct tok_spec *s)
{
    /* Of equal length and in an order that scores would not give: "bc" before "ab". */
    static const char *const merges[] = {"b c",   "a b",     "\xe2\x96\x81 a",
                                         "\n \n", "\n\n \n", "\xe2\x96\x81 \xe2\x96\x81"};
    static const char *const words[] = {"bc",
                                        "ab",
                                        "\342\226\201a",
                                        "\n\n",
                                        "\n\n\n",
                                        "\xe2\x96\x81\xe2\x96\x81",
                                        "\xe2\x96\x81",
                                        "a",
                                        "b",
                                        "c",
                                        "\n",
                                        "\xc3\xa4"};

    memset(s, 0, sizeof(*s));
    s->model = "gemma4";
    s->add_bos = -1;
    (void)tok_spec_add(s, "<unk>", 2, 0);
    s->eos = tok_spec_add(s, "<eos>", 3, 0);
    s->bos = tok_spec_add(s, "<bos>", 3, 0);
    for (int i = 0; i < 256; i++) {
        (void)snprintf(s->letters[i], sizeof(s->letters[i]), "<0x%02X>", (unsigned)i);
        (void)tok_spec_add(s, s->letters[i], 6, 0);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        (void)tok_spec_add(s, words[i], 1, 0);
    }
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        s->merges[s->n_merges++] = merges[i];
    }
    (void)tok_spec_add(s, "<|turn>", 3, 0);
    (void)tok_spec_add(s, "<turn|>", 3, 0);
    (void)tok_spec_add(s, "<|channel>", 4, 0);
    (void)tok_spec_add(s, "<|tool_response>", 4, 0);
    s->n_scores = -1;
}

/* Scores with one best cut for most texts; "a" twice is as good as "aa". */
static void add_likely(struct tok_spec *s)
{
    static const struct {
        const char *text;
        float score;
    } words[] = {{"\xe2\x96\x81", -4},
                 {"a", -2},
                 {"b", -3},
                 {"c", -3},
                 {"ab", -3},
                 {"bc", -2},
                 {"aa", -4},
                 {"abcab", -9},
                 {"\xe2\x96\x81\xe2\x96\x81", -7},
                 {"\xe2\x96\x81"
                  "ca",
                  -6.5F},
                 {"<", -5},
                 {">", -5},
                 {"</s", -6},
                 {"\xc3\xa4", -6}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        (void)tok_spec_add(s, words[i].text, 1, words[i].score);
    }
    (void)tok_spec_add(s, "user", 4, -1);
    (void)tok_spec_add(s, "bcbc", 5, -3.5F);
}

void tok_spec_unigram(struct tok_spec *s)
{
    memset(s, 0, sizeof(*s));
    s->model = "t5";
    s->add_bos = s->bos = -1;
    (void)tok_spec_add(s, "<unk>", 2, 0);
    s->eos = tok_spec_add(s, "</s>", 3, 0);
    for (int i = 0; i < 256; i++) {
        (void)snprintf(s->letters[i], sizeof(s->letters[i]), "<0x%02X>", (unsigned)i);
        (void)tok_spec_add(s, s->letters[i], 6, 0);
    }
    add_likely(s);
    add_markers(s);
}

enum { BLOCK = 256, N_BLOCKS = 12, REPLACED = 64 };

/* A double array in which each node's children have a block of their own. */
struct charsmap {
    uint32_t n_bytes;
    uint32_t node[N_BLOCKS * BLOCK];
    char text[REPLACED];
};

static void replace(struct charsmap *m, uint32_t *n_blocks, uint32_t *n_text, const char *what,
                    const char *by)
{
    uint32_t block = 1;
    uint32_t at = 0;

    for (; *what; what++) {
        uint32_t c = (uint8_t)*what;

        at = block * BLOCK + c;
        if (m->node[at] == 0) {
            assert(*n_blocks < N_BLOCKS);
            m->node[at] = (at ^ *n_blocks * BLOCK) << 10 | c;
            block = (*n_blocks)++;
        } else {
            block = (at ^ m->node[at] >> 10) / BLOCK;
        }
    }
    m->node[at] |= 1 << 8;
    m->node[block * BLOCK] = *n_text | 1U << 31;
    assert(*n_text + strlen(by) < REPLACED);
    memcpy(m->text + *n_text, by, strlen(by) + 1);
    *n_text += (uint32_t)strlen(by) + 1;
}

void tok_spec_normal(struct tok_spec *s)
{
    static struct charsmap map;
    uint32_t n_blocks = 2;
    uint32_t n_text = 0;

    memset(&map, 0, sizeof(map));
    map.n_bytes = sizeof(map.node);
    map.node[0] = BLOCK << 10;
    replace(&map, &n_blocks, &n_text, "\t", " ");
    replace(&map, &n_blocks, &n_text, "\n", " ");
    replace(&map, &n_blocks, &n_text, "x", "");
    replace(&map, &n_blocks, &n_text, "xy", "ab c");
    replace(&map, &n_blocks, &n_text, "\xc3\xa6", "\xc3\xa4");
    replace(&map, &n_blocks, &n_text, "A", "a");
    memset(s, 0, sizeof(*s));
    s->model = "t5";
    s->add_bos = s->bos = -1;
    s->merge_spaces = true;
    s->charsmap = (const char *)&map;
    s->n_charsmap = sizeof(map);
    (void)tok_spec_add(s, "<pad>", 3, 0);
    s->eos = tok_spec_add(s, "</s>", 3, 0);
    s->more_key = "tokenizer.ggml.unknown_token_id";
    s->more_id = tok_spec_add(s, "<unk>", 2, 0);
    add_likely(s);
    add_markers(s);
}

void tok_spec_replace_a(struct tok_spec *s, const char *by)
{
    enum { ROOT = 256, LEAF = 300, NODES = 512, CHILD = ROOT | 'a' };
    static uint32_t map[1 + NODES + 64];

    map[0] = NODES * sizeof(uint32_t);
    map[1] = (uint32_t)ROOT << 10;
    map[1 + CHILD] = (CHILD ^ LEAF) << 10 | 1 << 8 | 'a';
    map[1 + LEAF] = 1U << 31;
    (void)snprintf((char *)&map[1 + NODES], 64 * sizeof(uint32_t), "%s", by);
    s->charsmap = (const char *)map;
    s->n_charsmap = sizeof(map);
}

static void write_strings(struct gguf_writer *w, const char *key, const char *const *texts, int n)
{
    struct gguf_str *list = calloc((size_t)n + 1, sizeof(*list));
    int r;

    assert(list);
    for (int i = 0; i < n; i++) {
        list[i] = (struct gguf_str){texts[i], strlen(texts[i])};
    }
    r = gguf_writer_str_array(w, key, list, (size_t)n);
    assert(r == 0);
    (void)r;
    free(list);
}

static void write_keys(struct gguf_writer *w, const struct tok_spec *s)
{
    int r = 0;

    if (s->model) {
        r |= gguf_writer_str(w, "tokenizer.ggml.model", s->model, strlen(s->model));
    }
    if (s->pre) {
        r |= gguf_writer_str(w, "tokenizer.ggml.pre", s->pre, strlen(s->pre));
    }
    if (s->chat_template) {
        r |= gguf_writer_str(w, "tokenizer.chat_template", s->chat_template,
                             strlen(s->chat_template));
    }
    write_strings(w, "tokenizer.ggml.tokens", s->tokens, s->n);
    if (s->n_merges >= 0) {
        write_strings(w, "tokenizer.ggml.merges", s->merges, s->n_merges);
    }
    if (s->n_kinds >= 0) {
        r |= gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, s->kinds,
                               (size_t)s->n_kinds);
    }
    if (s->n_scores >= 0) {
        r |=
            gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, s->scores, (size_t)s->n_scores);
    }
    if (s->bos >= 0) {
        r |= gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)s->bos);
    }
    if (s->eos >= 0) {
        r |= gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)s->eos);
    }
    if (s->model && !strcmp(s->model, "t5")) {
        r |= gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", true);
        r |= gguf_writer_bool(w, "tokenizer.ggml.remove_extra_whitespaces", s->merge_spaces);
    }
    if (s->charsmap) {
        r |= gguf_writer_array(w, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, s->charsmap,
                               s->n_charsmap);
    }
    if (s->more_key) {
        r |= gguf_writer_u32(w, s->more_key, (uint32_t)s->more_id);
    }
    if (s->add_bos >= 0) {
        r |= gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", s->add_bos);
    }
    assert(r == 0);
    (void)r;
}

int tok_spec_make(const struct tok_spec *s, struct tok **ret, struct gguf **ret_g,
                  struct error *reterr)
{
    char dir[] = "/tmp/test-tok-XXXXXX";
    char path[64];
    struct gguf_writer *w;
    struct gguf *g;
    int r;

    if (!mkdtemp(dir)) {
        abort();
    }
    (void)snprintf(path, sizeof(path), "%s/v.gguf", dir);
    r = gguf_writer_create(path, &w, reterr);
    if (r == 0) {
        write_keys(w, s);
        r = gguf_writer_finish(w, reterr);
    }
    if (r == 0) {
        r = gguf_open(path, &g, reterr);
    }
    if (r < 0) {
        (void)fprintf(stderr, "%s: %s\n", path, reterr->text);
        abort();
    }
    (void)unlink(path);
    (void)rmdir(dir);
    r = tok_create(g, ret, reterr);
    if (r == 0 && ret_g) {
        *ret_g = g;
    } else {
        gguf_close(g);
    }
    return r;
}
