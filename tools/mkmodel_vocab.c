/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE without merges: every byte is a token of its own, written as GPT-2 writes bytes:
 * printable Latin-1 characters stand for themselves, the other 68 bytes are U+0100 and up, and
 * token ids follow that order. Control tokens are those of ChatML, so the model can also be asked
 * with a chat template. */

#include "tools/mkmodel_vocab.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_UNUSED = 5, NAME_BYTES = 32 };

static const char *const controls[] = {"<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"};

static const char template_chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

static bool printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* All of them are below U+0800: one or two bytes. */
static size_t put_code_point(unsigned c, char *ret)
{
    if (c < 0x80) {
        ret[0] = (char)c;
        return 1;
    }
    ret[0] = (char)(0xc0 | c >> 6);
    ret[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static void name_bytes(struct gguf_str *tokens, char *names)
{
    unsigned n_others = 0;
    size_t id = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int byte = 0; byte < 256; byte++) {
            char *name = names + id * NAME_BYTES;

            if (printable(byte) != (pass == 0)) {
                continue;
            }
            tokens[id].ptr = name;
            tokens[id++].len =
                put_code_point(pass == 0 ? (unsigned)byte : 0x100 + n_others++, name);
        }
    }
}

static int write_keys(struct gguf_writer *w, const struct gguf_str *tokens, const int32_t *types,
                      size_t n)
{
    int r = gguf_writer_str(w, "tokenizer.ggml.model", "gpt2", 4);

    r = r < 0 ? r : gguf_writer_str(w, "tokenizer.ggml.pre", "gpt-2", 5);
    r = r < 0 ? r : gguf_writer_str_array(w, "tokenizer.ggml.tokens", tokens, n);
    r = r < 0 ? r : gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, n);
    r = r < 0 ? r : gguf_writer_str_array(w, "tokenizer.ggml.merges", NULL, 0);
    r = r < 0 ? r : gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 256);
    r = r < 0 ? r : gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 257);
    r = r < 0 ? r : gguf_writer_u32(w, "tokenizer.ggml.eot_token_id", 259);
    r = r < 0 ? r : gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    return r < 0 ? r
                 : gguf_writer_str(w, "tokenizer.chat_template", template_chatml,
                                   sizeof(template_chatml) - 1);
}

int mkmodel_vocab_write(struct gguf_writer *w, int64_t n)
{
    size_t count = (size_t)n;
    struct gguf_str *tokens = calloc(count, sizeof(*tokens));
    int32_t *types = calloc(count, sizeof(*types));
    char *names = calloc(count, NAME_BYTES);
    int r = -ENOMEM;

    if (tokens && types && names) {
        name_bytes(tokens, names);
        for (size_t i = 0; i < count; i++) {
            char *name = names + i * NAME_BYTES;

            types[i] = i < 256 ? TYPE_NORMAL : i < MKMODEL_VOCAB_MIN ? TYPE_CONTROL : TYPE_UNUSED;
            if (i >= MKMODEL_VOCAB_MIN) {
                (void)snprintf(name, NAME_BYTES, "[unused%zu]", i - MKMODEL_VOCAB_MIN);
                tokens[i] = (struct gguf_str){name, strlen(name)};
            } else if (i >= 256) {
                tokens[i] = (struct gguf_str){controls[i - 256], strlen(controls[i - 256])};
            }
        }
        r = write_keys(w, tokens, types, count);
    }
    free(tokens);
    free(types);
    free(names);
    return r;
}
