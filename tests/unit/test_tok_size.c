/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan says of a file's index and its tokenizer, against what the heap says. */

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/text/tok.h"
#include "gguf/gguf.h"

static uint64_t heap(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

/* The heap adds its own headers and rounding. */
static void compare(const char *what, uint64_t said, uint64_t held)
{
    cr_assert_leq(said, held + 512, "%s: %zu bytes said, %zu held", what, (size_t)said,
                  (size_t)held);
    cr_assert_leq(held, said + 1024, "%s: %zu bytes said, %zu held", what, (size_t)said,
                  (size_t)held);
}

static void of_file(const char *name)
{
    const char *dir = getenv("PIPIT_TEST_DATA");
    char path[512];
    uint64_t before = heap();
    struct error e = {0};
    struct gguf *g;
    struct tok *t;

    (void)snprintf(path, sizeof(path), "%s/%s", dir ? dir : "tests/data", name);
    if (before == 0) {
        cr_skip_test("this heap (a sanitizer's) tells nothing");
    }
    cr_assert_eq(gguf_open(path, &g, &e), 0, "%s", e.text);
    compare("index", gguf_index_bytes(g), heap() - before);
    before = heap();
    cr_assert_eq(tok_create(g, &t, &e), 0, "%s", e.text);
    compare("tokenizer", tok_bytes(g), heap() - before);
    tok_destroy(t);
    gguf_close(g);
}

Test(tok_size, as_the_heap_has_it)
{
    of_file("stories260K.gguf");
}

Test(tok_size, of_unigram_vocabularies)
{
    of_file("unigram.gguf");
    of_file("unigram_bytes.gguf");
}
