/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the loading of vocabularies: a GGUF file gives a tokenizer or a text that says why not; a
 * tokenizer that it gives can encode, decode and be asked anything. */

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"
#include "gguf/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void use(const struct tok *t)
{
    static const char text[] = "<s>hello  hello</s> \xe2\x96\x81 \xff\xf0\x9f 12 <|im_end|>\n\n";
    char *out = malloc(detok_bound(t));
    struct detok d;
    int32_t ids[256];
    size_t n;

    require(out);
    for (unsigned flags = 0; flags < 16; flags++) {
        int r = tok_encode(t, text, sizeof(text) - 1, flags, ids, 256, &n, NULL);

        require(r == 0 || r == -EINVAL || (r == -ENOTSUP && !tok_has_text(t)));
        for (size_t i = 0; r == 0 && i < n; i++) {
            require(ids[i] >= 0 && ids[i] < tok_n_vocab(t));
            require((flags & ~(unsigned)TOK_MID_TEXT) || !tok_is_control(t, ids[i]));
        }
    }
    detok_init(&d, t, tok_bos(t), true);
    for (int32_t id = -1; id <= tok_n_vocab(t); id++) {
        require(detok_push(&d, id, out) <= detok_bound(t));
        (void)tok_is_end(t, id);
    }
    (void)detok_flush(&d, out);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error e = {0};
    struct gguf *g;
    struct tok *t;
    struct chat c;

    if (gguf_open_memory(data, size, &g, NULL) < 0) {
        return 0;
    }
    if (tok_create(g, &t, &e) == 0) {
        int r = chat_open(g, &c, NULL);

        require(r == 0 || r == -ENOTSUP || r == -EBADMSG || r == -E2BIG);
        if (r == 0) {
            chat_finish(&c);
        }
        gguf_close(g);
        use(t);
        tok_destroy(t);
        return 0;
    }
    require(e.code < 0 && e.text[0]);
    gguf_close(g);
    return 0;
}
