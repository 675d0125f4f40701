/* SPDX-License-Identifier: Apache-2.0 */
/* chat_choose(): the model's own template, a style by name, a file; and what is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/chat.h"
#include "gguf/gguf.h"
#include "tests/unit/tok_spec.h"

static struct tok_spec spec;
static struct tok *t;
static struct gguf *g;
static struct chat c;
static struct error e;

static void open_tok(void)
{
    tok_spec_bpe(&spec);
    (void)tok_spec_add(&spec, "<|user|>", 3, 0);
    (void)tok_spec_add(&spec, "<|assistant|>", 3, 0);
    (void)tok_spec_add(&spec, "<|system|>", 3, 0);
    (void)tok_spec_add(&spec, "<|end|>", 3, 0);
    cr_assert_eq(tok_spec_make(&spec, &t, &g, &e), 0, "%s", e.text);
}

static void close_tok(void)
{
    chat_finish(&c);
    gguf_close(g);
    tok_destroy(t);
}

TestSuite(chat_choose, .init = open_tok, .fini = close_tok);

static int choose(const char *choice)
{
    chat_finish(&c);
    e = (struct error){0};
    return chat_choose(choice, g, t, &c, &e);
}

/* A conversation of five in this style; control tokens in braces. */
static const char *talk(const char *choice, bool system)
{
    static const struct chat_message all[] = {{CHAT_SYSTEM, "s", 1},
                                              {CHAT_USER, " u<|end|>", 9},
                                              {CHAT_ASSISTANT, "a", 1},
                                              {CHAT_USER, "v", 1}};
    static char out[4096];
    size_t pos = 0;
    int32_t *ids;
    size_t n;

    cr_assert_eq(choose(choice), 0, "%s: %s", choice, e.text);
    cr_assert_eq(chat_render(&c, t, all + !system, 4 - !system, true, &ids, &n, &e), 0, "%s: %s",
                 choice, e.text);
    for (size_t i = 0; i < n; i++) {
        bool control = tok_is_control(t, ids[i]);
        const char *s;
        size_t len;

        tok_token_text(t, ids[i], &s, &len);
        pos += (size_t)snprintf(out + pos, sizeof(out) - pos, "%s%.*s%s", control ? "{" : "",
                                (int)len, s, control ? "}" : "");
    }
    free(ids);
    return out;
}

/* What people say is never a marker, in no style. */
Test(chat_choose, styles)
{
    cr_assert_str_eq(
        talk("chatml", true),
        "{<|im_start|>}system\ns{<|im_end|>}\n{<|im_start|>}user\n u<|end|>{<|im_end|>}\n"
        "{<|im_start|>}assistant\na{<|im_end|>}\n{<|im_start|>}user\nv{<|im_end|>}\n"
        "{<|im_start|>}assistant\n");
    cr_assert_str_eq(talk("phi3", true),
                     "{<|system|>}\ns{<|end|>}\n{<|user|>}\n u<|end|>{<|end|>}\n"
                     "{<|assistant|>}\na{<|end|>}\n{<|user|>}\nv{<|end|>}\n{<|assistant|>}\n");
    cr_assert_str_eq(
        talk("llama3", false),
        "{<|endoftext|>}{<|start_header_id|>}user{<|end_header_id|>}\n\nu<|end|>{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\na{<|eot_id|>}"
        "{<|start_header_id|>}user{<|end_header_id|>}\n\nv{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n");
    cr_assert_str_eq(
        talk("gemma", true),
        "{<|endoftext|>}{<start_of_turn>}user\ns\n\nu<|end|>{<end_of_turn>}\n"
        "{<start_of_turn>}model\na{<end_of_turn>}\n{<start_of_turn>}user\nv{<end_of_turn>}\n"
        "{<start_of_turn>}model\n");
    cr_assert_str_eq(
        talk("mistral", true),
        "{<|endoftext|>}[INST] s\n\n u<|end|> [/INST] a{<|endoftext|>}[INST] v [/INST]");
    cr_assert_str_eq(talk("mistral", false),
                     "{<|endoftext|>}[INST]  u<|end|> [/INST] a{<|endoftext|>}[INST] v [/INST]");
}

/* Each name that the messages offer is one. */
Test(chat_choose, all_names)
{
    char names[] = CHAT_STYLES;
    char *rest;
    int n = 0;

    for (char *name = strtok_r(names, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        cr_assert_eq(choose(name), 0, "%s: %s", name, e.text);
        n++;
    }
    cr_assert_eq(n, 5);
}

Test(chat_choose, the_models_own)
{
    cr_assert_eq(choose(NULL), -ENOTSUP);
    cr_assert(strstr(e.text, "--template") && strstr(e.text, "chatml"), "%s", e.text);
    cr_assert_eq(choose(""), -ENOTSUP);
    close_tok();
    c = (struct chat){0};
    spec.chat_template = "own";
    cr_assert_eq(tok_spec_make(&spec, &t, &g, &e), 0);
    cr_assert_str_eq(talk(NULL, true), "own");
    cr_assert_str_neq(talk("chatml", true), "own");
}

Test(chat_choose, a_style_without_its_markers)
{
    close_tok();
    c = (struct chat){0};
    tok_spec_spm(&spec);
    spec.n -= 5; /* <end_of_turn> is among the last */
    spec.n_kinds = spec.n_scores = spec.n;
    cr_assert_eq(tok_spec_make(&spec, &t, &g, &e), 0, "%s", e.text);
    cr_assert_eq(choose("gemma"), -EINVAL);
    cr_assert(strstr(e.text, "template 'gemma'") && strstr(e.text, "<start_of_turn>"), "%s",
              e.text);
    cr_assert_eq(choose("mistral"), 0, "%s", e.text);
}

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "we");

    cr_assert(f);
    for (size_t i = 0; i < n; i++) {
        (void)fputs(text, f);
    }
    (void)fclose(f);
}

Test(chat_choose, files)
{
    char dir[] = "/tmp/test-template-XXXXXX";
    char path[64];

    cr_assert(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/t.jinja", dir);
    cr_assert_eq(choose(path), -EINVAL);
    cr_assert(strstr(e.text, path) && strstr(e.text, "no file"), "%s", e.text);
    write_file(path, "{% for m in messages %}{{ m.role[0] }}{% endfor %}", 1);
    cr_assert_str_eq(talk(path, true), "suau");
    write_file(path, "line\n{% for m in %}", 1);
    cr_assert_eq(choose(path), -EINVAL);
    cr_assert(strstr(e.text, path) && strstr(e.text, "line 2"), "%s", e.text);
    write_file(path, "0123456789abcdef", (1 << 16) + 1);
    cr_assert_eq(choose(path), -EINVAL, "%s", e.text);
    cr_assert(strstr(e.text, "bytes"), "%s", e.text);
    cr_assert_eq(choose(dir), -EINVAL);
    cr_assert(strstr(e.text, "no file"), "%s", e.text);
    (void)unlink(path);
    (void)rmdir(dir);
}

Test(chat_choose, no_tokenizer)
{
    close_tok();
    c = (struct chat){0};
    spec.model = "none";
    cr_assert_eq(tok_spec_make(&spec, &t, &g, &e), 0);
    cr_assert_eq(choose("mistral"), -EINVAL);
    cr_assert(strstr(e.text, "no tokenizer"), "%s", e.text);
    cr_assert_eq(choose(NULL), -ENOTSUP);
    cr_assert(strstr(e.text, "token ids"), "%s", e.text);
}
