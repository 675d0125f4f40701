/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary's single values: the ids of BOS, EOS and their like, the flags, and which tokens
 * end a generation. Files name one EOS, but models of several turns end on other tokens too, so
 * those that are known by their spelling count as well, as long as the file does not call them
 * ordinary text. Spellings and exceptions are llama.cpp's (src/llama-vocab.cpp), which takes
 * ordinary text, too: with it an answer of Qwen's ends where it writes "</s>". */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <string.h>

#include "gguf/gguf.h"

#define KEY(name) "tokenizer.ggml." name

static const char *const ends[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "</s>",
    "<eos>",
    "[EOT]", /* Kimi K2, also the next */
    "[EOS]",
    "<\357\275\234end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>", /* DeepSeek */
    "<|return|>",                                                      /* gpt-oss, also the next */
    "<|call|>",
    "<|calls|>", /* Solar Open, also the next */
    "<|flush|>",
    "<turn|>", /* Gemma 4, also the next: a tool's answer follows */
    "<|tool_response>",
    "[e~[", /* MiniMax M2 */
    /* Filling in the middle: padding, and the beginning of another file or repository. */
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

enum { END, RETURN, CALL, CALLS, FLUSH, N_MESSAGE_ENDS };
static const char *const message_ends[N_MESSAGE_ENDS] = {
    [END] = "<|end|>",     [RETURN] = "<|return|>", [CALL] = "<|call|>",
    [CALLS] = "<|calls|>", [FLUSH] = "<|flush|>",
};

static const char *const markers[] = {"<start_of_turn>", "<end_of_turn>", "<bos>",
                                      "<eos>",           "<s>",           "</s>",
                                      "[INST]",          "[/INST]",       "<EOT>"};

/* What a model says with these only it and its template may say. */
static const char *const meant[] = {
    "<think>",           "</think>",          "<tool_call>",     "</tool_call>", "<tool_response>",
    "</tool_response>",  "<tools>",           "</tools>",        "<response>",   "</response>",
    "[THINK]",           "[/THINK]",          "[TOOL_CALLS]",    "[CALL_ID]",    "[ARGS]",
    "[TOOL_CONTENT]",    "[TOOL_RESULTS]",    "[/TOOL_RESULTS]", "<tool_calls>", "</tool_calls>",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"};

static bool is_one_of(const char *text, size_t len, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i]) == len && !memcmp(list[i], text, len)) {
            return true;
        }
    }
    return false;
}

bool tok_keys_is_marker(const char *text, size_t len)
{
    return (len > 4 && !memcmp(text, "<|", 2) && !memcmp(text + len - 2, "|>", 2)) ||
           is_one_of(text, len, markers, sizeof(markers) / sizeof(markers[0]));
}

bool tok_keys_is_guarded(const char *text, size_t len)
{
    return (len > 3 && text[0] == '<' && text[len - 1] == '>' &&
            (text[1] == '|' || text[len - 2] == '|')) ||
           is_one_of(text, len, meant, sizeof(meant) / sizeof(meant[0]));
}

/* A token's id; -1 without the key. Such a token is never plain text. */
static int load_id(struct tok *t, const struct gguf *g, const char *key, enum tok_kind kind,
                   bool end, int32_t *ret, struct error *reterr)
{
    uint64_t id;
    int r = gguf_get_u64(g, key, 0, (uint64_t)t->n_vocab - 1, &id, reterr);

    *ret = -1;
    if (r == -ENOENT) {
        return 0;
    }
    if (r < 0) {
        return r;
    }
    *ret = (int32_t)id;
    t->entries[id].kind = (uint8_t)kind;
    t->entries[id].end |= end;
    return 0;
}

/* A flag that stays as it is without the key. */
static int load_flag(const struct gguf *g, const char *key, bool *flag, struct error *reterr)
{
    int r = gguf_get_bool(g, key, flag, reterr);

    return r == -ENOENT ? 0 : r;
}

/* Where an answer may also end in <|return|> or a call, <|end|> closes a message of several. */
static void keep_messages_open(struct tok *t, const int32_t *id)
{
    bool harmony = id[RETURN] >= 0 && id[CALL] >= 0;
    bool solar = id[FLUSH] >= 0 && (id[CALL] >= 0 || id[CALLS] >= 0);

    if (id[END] >= 0 && (harmony || solar)) {
        t->entries[id[END]].end = false;
    }
}

static void find_ends(struct tok *t, const struct gguf *g)
{
    int32_t id[N_MESSAGE_ENDS] = {-1, -1, -1, -1, -1};

    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct tok_entry *e = &t->entries[i];
        struct gguf_str s = gguf_array_str(g, KEY("tokens"), (size_t)i);

        if (e->kind != TOK_CONTROL && e->kind != TOK_USER && e->kind != TOK_UNKNOWN) {
            continue; /* SmolLM2's unknown token is <|endoftext|> */
        }
        if (is_one_of(s.ptr, s.len, ends, sizeof(ends) / sizeof(ends[0]))) {
            e->kind = TOK_CONTROL;
            e->end = true;
        }
        for (int j = 0; j < N_MESSAGE_ENDS; j++) {
            if (is_one_of(s.ptr, s.len, &message_ends[j], 1)) {
                id[j] = i;
            }
        }
    }
    keep_messages_open(t, id);
}

int tok_keys_load(struct tok *t, const struct gguf *g, struct error *reterr)
{
    int32_t other;
    int r;

    t->unknown = -1;

    /* Order matters where one token has two roles: the last says its kind. */
    if ((r = load_id(t, g, KEY("unknown_token_id"), TOK_UNKNOWN, false, &t->unknown, reterr)) < 0 ||
        (r = load_id(t, g, KEY("eot_token_id"), TOK_CONTROL, true, &other, reterr)) < 0 ||
        (r = load_id(t, g, KEY("eom_token_id"), TOK_CONTROL, true, &other, reterr)) < 0 ||
        (r = load_id(t, g, KEY("fim_pad_token_id"), TOK_CONTROL, true, &other, reterr)) < 0 ||
        (r = load_id(t, g, KEY("fim_rep_token_id"), TOK_CONTROL, true, &other, reterr)) < 0 ||
        (r = load_id(t, g, KEY("fim_sep_token_id"), TOK_CONTROL, true, &other, reterr)) < 0 ||
        (r = load_id(t, g, KEY("bos_token_id"), TOK_CONTROL, false, &t->bos, reterr)) < 0 ||
        (r = load_id(t, g, KEY("eos_token_id"), TOK_CONTROL, true, &t->eos, reterr)) < 0 ||
        (r = load_flag(g, KEY("add_bos_token"), &t->add_bos, reterr)) < 0 ||
        (r = load_flag(g, KEY("add_space_prefix"), &t->space_prefix, reterr)) < 0 ||
        (r = load_flag(g, KEY("remove_extra_whitespaces"), &t->merge_spaces, reterr)) < 0) {
        return r;
    }
    /* Files of Gemma 4 deny it, but the models lose their way without (llama.cpp #21500). */
    t->add_bos = (t->add_bos || (t->spm && t->ranks)) && t->bos >= 0;
    t->space_prefix = t->space_prefix && t->spm && !t->ranks;
    find_ends(t, g);
    return 0;
}
