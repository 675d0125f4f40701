/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_open() on files that lie: a table of single lies, each refused with -EBADMSG and a text that
 * names the place; the file cut at every byte; random bits flipped. Files are exactly as long as
 * their buffers, so that a sanitizer build sees any step outside. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "gguf/gguf.h"
#include "tests/unit/gguf_spec.h"

static void refused(const struct gguf_spec *s, const char *lie, const char *said)
{
    struct gguf *g = NULL;
    struct error e = {0};
    size_t size;
    uint8_t *file = gguf_spec_write(s, &size);

    cr_assert_eq(gguf_open_memory(file, size, &g, &e), -EBADMSG, "%s: %s", lie, e.text);
    cr_assert(strstr(e.text, said), "%s: '%s' does not say '%s'", lie, e.text, said);
    free(file);
}

#define LIE(said, ...)                                                                             \
    do {                                                                                           \
        struct gguf_spec s = gguf_spec_good();                                                     \
        __VA_ARGS__;                                                                               \
        refused(&s, #__VA_ARGS__, said);                                                           \
    } while (0)

enum { ALIGNMENT, NAME, U8, I32, F32, F64, BOOL, U64, WORDS, SHORTS, N_KEYS };

Test(gguf_hostile, header)
{
    LIE("does not begin with 'GGUF'", s.magic[0] = 'g');
    LIE("version 2 is not offered", s.version = 2);
    LIE("version 4 is not offered", s.version = 4);
    LIE("little-endian", s.version = 3u << 24);
    LIE("header: its 18446744073709551615 keys", s.n_keys = UINT64_MAX);
    LIE("header: its 100 keys", s.n_keys = 100);
    LIE("header: its 18446744073709551615 tensors", s.n_tensors = UINT64_MAX);
    LIE("header: its 2000000 tensors", s.n_tensors = 2000000);
    LIE("tensor 4 of 4: its name", s.n_tensors = 4; s.tensors[2].offset = 1 << 20;
        s.data_bytes = 0);
    LIE("tensor 1 of 3: its name has", s.n_keys = 11); /* the first tensor is taken for a key */
}

Test(gguf_hostile, names_of_keys)
{
    LIE("key 2 of 10: its name has 0 bytes", s.keys[NAME].name_len = 0);
    LIE("key 2 of 10: its name has 65536 bytes", s.keys[NAME].name_len = 65536);
    LIE("key 2 of 10: its name has 18446744073709551615 bytes", s.keys[NAME].name_len = UINT64_MAX);
    LIE("key 2 of 10: the file ends inside a name", s.keys[NAME].name_len = 60000);
    LIE("key 2 of 10: its name is not valid UTF-8", s.keys[NAME].name = "general.nam\xff");
    LIE("key 2 of 10: its name is not valid UTF-8", s.keys[NAME].name = "general.na\xc0\x80");
    LIE("key 'a.u8': it is there twice", s.keys[BOOL].name = "a.u8"; s.keys[BOOL].name_len = 4);
    LIE("key 'a.?8'", s.keys[U8].name = "a.\n8"; s.keys[U8].type = 13);
}

static void strings_lie(struct gguf_spec *s, uint64_t count, uint64_t first_len)
{
    memcpy(s->keys[WORDS].value + 4, &count, 8);
    memcpy(s->keys[WORDS].value + 12, &first_len, 8);
}

static void shorts_lie(struct gguf_spec *s, uint32_t type, uint64_t count)
{
    memcpy(s->keys[SHORTS].value, &type, 4);
    memcpy(s->keys[SHORTS].value + 4, &count, 8);
}

Test(gguf_hostile, values)
{
    uint64_t len = UINT64_MAX;

    LIE("key 'a.u8': its type 13 is unknown", s.keys[U8].type = 13);
    LIE("key 'a.u8': its type 4294967295 is unknown", s.keys[U8].type = UINT32_MAX);
    LIE("key 'a.bool': a bool is 2", s.keys[BOOL].value[0] = 2);
    LIE("key 'general.name': the file ends inside its string", memcpy(s.keys[NAME].value, &len, 8));
    LIE("key 'general.name': the file ends inside its string",
        memcpy(s.keys[NAME].value, &(uint64_t){1 << 20}, 8));
    LIE("key 'a.words': the file ends inside a string of its array", strings_lie(&s, 2, len));
    LIE("key 'a.words': the file ends inside a string of its array", strings_lie(&s, 2, 100000));
    LIE("key 'a.words': an array of 18446744073709551615 strings is over the limit",
        strings_lie(&s, len, 1));
    LIE("key 'a.words': the file has no room for its 16000000 strings",
        strings_lie(&s, 16000000, 1));
    LIE("key 'a.shorts': an array of arrays", shorts_lie(&s, 9, 3));
    LIE("key 'a.shorts': its array has the unknown type 77", shorts_lie(&s, 77, 3));
    LIE("key 'a.shorts': an array of 18446744073709551615 elements", shorts_lie(&s, 3, len));
    LIE("key 'a.shorts': an array of 9223372036854775808 elements", shorts_lie(&s, 10, 1ull << 63));
    LIE("key 'a.shorts': the file ends inside its array", shorts_lie(&s, 10, 1 << 20));
    LIE("key 'a.shorts': a bool is", shorts_lie(&s, 7, 6));
}

static void alignment_lies(struct gguf_spec *s, uint32_t v)
{
    memcpy(s->keys[ALIGNMENT].value, &v, 4);
}

Test(gguf_hostile, alignment)
{
    LIE("key 'general.alignment': 0 is not in 8..1048576", alignment_lies(&s, 0));
    LIE("key 'general.alignment': 4 is not in 8..1048576", alignment_lies(&s, 4));
    LIE("key 'general.alignment': 48 is not a power of two", alignment_lies(&s, 48));
    LIE("key 'general.alignment': 2097152 is not in", alignment_lies(&s, 2097152));
    LIE("key 'general.alignment': its type is f32", s.keys[ALIGNMENT].type = 6);
    LIE("tensor 'b': its offset 64 is not a multiple of the alignment 128",
        alignment_lies(&s, 128));
}

Test(gguf_hostile, shapes)
{
    uint64_t big = 1ull << 62;

    LIE("tensor 'b': it has 0 dimensions", s.tensors[1].n_dims = 0);
    LIE("tensor 'b': it has 5 dimensions", s.tensors[1].n_dims = 5);
    LIE("tensor 'b': it has 4294967295 dimensions", s.tensors[1].n_dims = UINT32_MAX);
    LIE("tensor 'a': dimension 0 is 0", s.tensors[0].dims[0] = 0);
    LIE("tensor 'a': dimension 1 is 0", s.tensors[0].dims[1] = 0);
    LIE("tensor 'a': its size is more than 64 bits", s.tensors[0].dims[0] = big);
    LIE("tensor 'a': its size is more than 64 bits", s.tensors[0].dims[1] = big);
    LIE("tensor 'a': its dimensions multiply to more than 64 bits", s.tensors[0].n_dims = 3;
        s.tensors[0].dims[1] = big; s.tensors[0].dims[2] = 4);
    LIE("tensor 'a': its data", s.tensors[0].dims[1] = 4000);
    LIE("tensor 'b': its rows of 33 are not whole blocks of 32 (Q8_0)", s.tensors[1].dims[0] = 33);
    LIE("tensor 'b': its element type 99 is not known", s.tensors[1].type = 99);
    LIE("tensor 'b': its element type 4 is not known", s.tensors[1].type = 4);
}

Test(gguf_hostile, places)
{
    LIE("tensor 'b': its offset 65 is not a multiple", s.tensors[1].offset = 65);
    LIE("tensor 'b': its data (34 bytes at offset 160) reaches beyond the end",
        s.tensors[1].offset = 160);
    LIE("tensor 'b': its data", s.tensors[1].offset = UINT64_MAX - 31);
    LIE("tensor 'c.weight': its data overlaps that of 'b'", s.tensors[2].offset = 64;
        s.tensors[1].offset = 64);
    LIE("overlaps that of 'a'", s.tensors[2].offset = 32);
    LIE("overlaps", s.tensors[0].offset = 64);
}

Test(gguf_hostile, names_of_tensors)
{
    static const char long_name[] =
        "a.name.of.more.than.sixty.three.bytes.is.not.something.that.ggml.reads.either";

    LIE("tensor 1 of 3: its name has 0 bytes", s.tensors[0].name_len = 0);
    LIE("tensor 1 of 3: its name has 77 bytes, not 1..63", s.tensors[0].name = long_name;
        s.tensors[0].name_len = strlen(long_name));
    LIE("tensor 1 of 3: its name is not valid UTF-8", s.tensors[0].name = "\xed\xa0\x80";
        s.tensors[0].name_len = 3);
    LIE("tensor 'b': it is there twice", s.tensors[0].name = "b");
}

Test(gguf_hostile, cut_at_every_byte)
{
    struct gguf_spec s = gguf_spec_good();
    struct gguf *g = NULL;
    size_t size;
    uint8_t *file = gguf_spec_write(&s, &size);

    for (size_t n = 0; n < size; n++) {
        struct error e = {0};
        uint8_t *cut = malloc(n ? n : 1);

        cr_assert(cut);
        memcpy(cut, file, n);
        cr_assert_eq(gguf_open_memory(cut, n, &g, &e), -EBADMSG, "%zu of %zu bytes", n, size);
        cr_assert(strstr(e.text, "header") || strstr(e.text, "key") || strstr(e.text, "tensor"),
                  "%zu bytes: %s", n, e.text);
        free(cut);
    }
    cr_assert_eq(gguf_open_memory(file, size, &g, NULL), 0, "the whole file is right");
    gguf_close(g);
    free(file);
}

/* Whatever is accepted must be readable from end to end. */
static unsigned walk(const struct gguf *g)
{
    unsigned sum = 0;

    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        sum += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->n_bytes - 1];
    }
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        struct gguf_str name;
        enum gguf_type type;
        const void *raw;
        size_t bytes;

        gguf_key_at(g, i, &name, &type, &raw, &bytes);
        sum += bytes ? ((const uint8_t *)raw)[bytes - 1] : 0;
    }
    return sum;
}

Test(gguf_hostile, flipped_bits)
{
    struct gguf_spec s = gguf_spec_good();
    size_t size;
    uint8_t *file = gguf_spec_write(&s, &size);
    unsigned sum = 0;
    int n_refused = 0;

    for (uint32_t round = 0; round < 20000; round++) {
        struct gguf *g = NULL;
        struct error e = {0};
        uint8_t *copy = malloc(size);
        uint32_t r[4];

        cr_assert(copy);
        memcpy(copy, file, size);
        rng_philox(rng_key_make(1), (uint32_t[]){round, 0, 0, 0}, r);
        for (uint32_t i = 0; i <= r[3] % 3; i++) {
            copy[r[i] % size] ^= (uint8_t)(1u << (r[i] >> 29));
        }
        int code = gguf_open_memory(copy, size, &g, &e);
        if (code == 0) {
            sum += walk(g);
            gguf_close(g);
        } else {
            cr_assert_eq(code, -EBADMSG, "round %u: %s", round, e.text);
            cr_assert(e.text[0]);
            n_refused++;
        }
        free(copy);
    }
    cr_log_info("%d of 20000 refused, sum %u\n", n_refused, sum);
    cr_assert_gt(n_refused, 2000);
    free(file);
}
