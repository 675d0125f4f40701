/* SPDX-License-Identifier: Apache-2.0 */
/* Whose template: the model's own, one of a few that are here, or a file's. Those that are here are
 * for models whose file brings none, in the styles that most are trained on; without tools, which a
 * model's own template knows better. A style whose markers the vocabulary lacks is refused, since
 * the model would read them as words. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/text/chat.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/tok.h"

enum { MAX_MARKERS = 4 };

static const struct style {
    const char *name;
    const char *markers[MAX_MARKERS]; /* control tokens without which it is no use */
    const char *text;
} styles[] = {
    {"chatml",
     {"<|im_start|>", "<|im_end|>"},
     "{% for m in messages %}"
     "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama3",
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     "{{ bos_token }}"
     "{% for m in messages %}"
     "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
     "{{ m['content'] | trim + '<|eot_id|>' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}"
     "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
     "{% endif %}"},
    /* No system role: its text begins the first turn. */
    {"gemma",
     {"<start_of_turn>", "<end_of_turn>"},
     "{{ bos_token }}{% set talk = messages %}{% set first = '' %}"
     "{% if messages[0]['role'] == 'system' %}"
     "{% set first = messages[0]['content'] | trim + '\\n\\n' %}{% set talk = messages[1:] %}"
     "{% endif %}"
     "{% for m in talk %}"
     "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\\n' }}"
     "{{ (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"},
    /* The brackets are control tokens in later vocabularies only, words in earlier ones. */
    {"mistral",
     {NULL},
     "{{ bos_token }}{% set talk = messages %}{% set first = '' %}"
     "{% if messages[0]['role'] == 'system' %}"
     "{% set first = messages[0]['content'] + '\\n\\n' %}{% set talk = messages[1:] %}"
     "{% endif %}"
     "{% for m in talk %}"
     "{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim }}{{ eos_token }}"
     "{% else %}{{ '[INST] ' + (first if loop.first else '') + m['content'] + ' [/INST]' }}"
     "{% endif %}"
     "{% endfor %}"},
    {"phi3",
     {"<|user|>", "<|assistant|>", "<|end|>"},
     "{% for m in messages %}"
     "{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}"
     "{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
};

enum { N_STYLES = sizeof(styles) / sizeof(styles[0]) };

static int open_style(const struct style *s, const struct tok *t, struct chat *ret,
                      struct error *reterr)
{
    for (int i = 0; i < MAX_MARKERS && s->markers[i]; i++) {
        if (tok_find_special(t, s->markers[i]) < 0) {
            return error_set(reterr, -EINVAL,
                             "template '%s' needs the token %s, which the model's vocabulary lacks",
                             s->name, s->markers[i]);
        }
    }
    return chat_init(s->text, strlen(s->text), ret, reterr);
}

static int open_file(const char *path, struct chat *ret, struct error *reterr)
{
    AUTO_FREE char *text = malloc(JINJA_MAX_SOURCE + 1);
    struct error cause = {0};
    FILE *f = fopen(path, "re");
    size_t n = 0;
    bool broken = !f;
    int r;

    if (f) {
        n = text ? fread(text, 1, JINJA_MAX_SOURCE + 1, f) : 0;
        broken = ferror(f);
        (void)fclose(f);
    }
    if (!text) {
        return error_set(reterr, -ENOMEM, "no memory for the template");
    }
    if (broken) {
        return error_set(reterr, -EINVAL,
                         "template '%.120s' is no file that can be read, nor one of " CHAT_STYLES,
                         path);
    }
    r = chat_init(text, n, ret, &cause);
    return r == 0 ? 0
                  : error_set(reterr, r == -ENOMEM ? r : -EINVAL, "template '%.80s': %.150s", path,
                              cause.text);
}

int chat_choose(const char *choice, const struct gguf *g, const struct tok *t, struct chat *ret,
                struct error *reterr)
{
    bool own = !choice || !choice[0];

    if (!tok_has_text(t)) {
        return own ? error_set(reterr, -ENOTSUP,
                               "the model's file has no tokenizer, so it takes token ids, no chat")
                   : error_set(reterr, -EINVAL,
                               "template '%.80s' is of no use: the model's file has no tokenizer",
                               choice);
    }
    if (own) {
        return chat_open(g, ret, reterr);
    }
    for (int i = 0; i < N_STYLES; i++) {
        if (!strcmp(styles[i].name, choice)) {
            return open_style(&styles[i], t, ret, reterr);
        }
    }
    return open_file(choice, ret, reterr);
}
