/* SPDX-License-Identifier: Apache-2.0 */
/* gguf/gguf.h on files that are right: typed access to keys, tensors, files that cannot be opened,
 * what the writer writes and refuses, and the remembered SHA-256. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/gguf.h"
#include "tests/unit/gguf_spec.h"

static uint8_t *file;
static struct gguf *g;
static char dir[] = "/tmp/test-gguf-XXXXXX";

static void open_good(void)
{
    struct gguf_spec s = gguf_spec_good();
    struct error e = {0};
    size_t size;

    file = gguf_spec_write(&s, &size);
    cr_assert_eq(gguf_open_memory(file, size, &g, &e), 0, "%s", e.text);
}

static void close_good(void)
{
    gguf_close(g);
    free(file);
}

static void make_dir(void)
{
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void)
{
    char command[64];

    (void)snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int next;
    char *p = path[next++ % 4];

    (void)snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

Test(gguf, numbers, .init = open_good, .fini = close_good)
{
    struct error e = {0};
    uint64_t u = 0;
    float f = 0;
    bool b = false;

    cr_assert_eq(gguf_get_u64(g, "a.u8", 0, 255, &u, &e), 0);
    cr_assert_eq(u, 200);
    cr_assert_eq(gguf_get_u64(g, "a.u64", 0, UINT64_MAX, &u, &e), 0);
    cr_assert_eq(u, 1ull << 40);
    cr_assert_eq(gguf_get_f32(g, "a.f32", &f, &e), 0);
    cr_assert_float_eq(f, 0.5f, 0);
    cr_assert_eq(gguf_get_f32(g, "a.f64", &f, &e), 0);
    cr_assert_float_eq(f, 0.25f, 0);
    cr_assert_eq(gguf_get_bool(g, "a.bool", &b, &e), 0);
    cr_assert(b);
    cr_assert_eq(gguf_get_u64(g, "a.none", 0, 1, &u, &e), -ENOENT);
    cr_assert_eq(e.code, 0, "a missing key leaves reterr alone");
    cr_assert(gguf_has(g, "a.u8"));
    cr_assert_not(gguf_has(g, "a.u"));
    cr_assert_eq(gguf_n_keys(g), 10);
}

static void check_refused(int r, const struct error *e, const char *said)
{
    cr_assert_eq(r, -EBADMSG);
    cr_assert(strstr(e->text, said), "'%s' does not say '%s'", e->text, said);
}

Test(gguf, numbers_of_the_wrong_kind, .init = open_good, .fini = close_good)
{
    struct error e[8] = {0};
    uint64_t u = 7;
    float f;
    bool b;
    struct gguf_str s;
    int64_t v[3];

    check_refused(gguf_get_u64(g, "a.u8", 0, 199, &u, &e[0]), &e[0],
                  "key 'a.u8': 200 is not in 0..199");
    check_refused(gguf_get_u64(g, "a.i32", 0, 9, &u, &e[1]), &e[1],
                  "key 'a.i32': -5 is not in 0..9");
    check_refused(gguf_get_u64(g, "a.f32", 0, 9, &u, &e[2]), &e[2],
                  "key 'a.f32': its type is f32, wanted is a whole");
    cr_assert_eq(u, 7);
    check_refused(gguf_get_f32(g, "a.u8", &f, &e[3]), &e[3], "its type is u8, wanted is f32");
    check_refused(gguf_get_bool(g, "a.u8", &b, &e[4]), &e[4], "wanted is bool");
    check_refused(gguf_get_str(g, "a.words", &s, &e[5]), &e[5],
                  "it is an array of string, wanted is string");
    check_refused(gguf_array_i64(g, "a.words", v, 2, &e[6]), &e[6],
                  "wanted is an array of whole numbers");
    check_refused(gguf_array_i64(g, "a.shorts", v, 2, &e[7]), &e[7], "it has 3 elements, not 2");
}

Test(gguf, floats_must_be_finite)
{
    struct gguf_spec s = gguf_spec_good();
    struct error e = {0};
    float f = 1;
    size_t size;

    gguf_spec_value(&s.keys[4], &(uint32_t){0x7fc00000}, 4);
    file = gguf_spec_write(&s, &size);
    cr_assert_eq(gguf_open_memory(file, size, &g, &e), 0);
    check_refused(gguf_get_f32(g, "a.f32", &f, &e), &e, "key 'a.f32': it is not a finite number");
    close_good();
}

Test(gguf, strings_and_arrays, .init = open_good, .fini = close_good)
{
    struct error e = {0};
    struct gguf_str s;
    enum gguf_type type;
    int64_t v[3];
    size_t n;

    cr_assert_eq(gguf_get_str(g, "general.name", &s, &e), 0);
    cr_assert_eq(s.len, 5);
    cr_assert_eq(memcmp(s.ptr, "pipit", 5), 0);
    cr_assert_eq(gguf_get_array(g, "a.words", &type, &n, &e), 0);
    cr_assert_eq(type, GGUF_STRING);
    cr_assert_eq(n, 2);
    s = gguf_array_str(g, "a.words", 1);
    cr_assert_eq(s.len, 2);
    cr_assert_eq(memcmp(s.ptr, "yz", 2), 0);
    cr_assert_eq(gguf_array_i64(g, "a.shorts", v, 3, &e), 0);
    cr_assert_eq(v[0], -2);
    cr_assert_eq(v[2], 7);
}

Test(gguf, tensors, .init = open_good, .fini = close_good)
{
    const struct gguf_tensor *a = gguf_tensor_find(g, "a");
    const struct gguf_tensor *c = gguf_tensor_find(g, "c.weight");

    cr_assert_eq(gguf_n_tensors(g), 3);
    cr_assert_eq(gguf_tensor_at(g, 0), a);
    cr_assert_eq(a->n_dims, 2);
    cr_assert_eq(a->dims[0], 4);
    cr_assert_eq(a->dims[1], 3);
    cr_assert_eq(a->dims[2], 1);
    cr_assert_eq(a->n_bytes, 48);
    cr_assert_eq(c->type, DTYPE_F16);
    cr_assert_eq(c->n_bytes, 10);
    cr_assert_eq((const uint8_t *)c->data - (const uint8_t *)a->data, 128);
    cr_assert_null(gguf_tensor_find(g, "c"));
    cr_assert_null(gguf_tensor_find(g, "d.weight"));
    cr_assert_str_eq(gguf_path(g), "");
}

Test(gguf, files_that_cannot_be_opened, .init = make_dir, .fini = remove_dir)
{
    struct error e[4] = {0};

    cr_assert_eq(gguf_open(in_dir("none"), &g, &e[0]), -ENOENT);
    cr_assert(strstr(e[0].text, "none: No such file"), "%s", e[0].text);
    check_refused(gguf_open(dir, &g, &e[1]), &e[1], "is not a regular file");
    cr_assert_eq(mkfifo(in_dir("fifo"), 0600), 0);
    check_refused(gguf_open(in_dir("fifo"), &g, &e[2]), &e[2], "is not a regular file");
    cr_assert_eq(close(open(in_dir("empty"), O_CREAT | O_WRONLY, 0600)), 0);
    check_refused(gguf_open(in_dir("empty"), &g, &e[3]), &e[3], "is empty");
}

/* ---- writing ---- */

static const uint64_t dims_a[2] = {32, 3};
static const uint64_t dims_b[1] = {5};

static struct gguf_writer *begin_file(const char *name)
{
    struct gguf_writer *w = NULL;
    struct error e = {0};
    struct gguf_str words[2] = {{"x", 1}, {"", 0}};

    cr_assert_eq(gguf_writer_create(in_dir(name), &w, &e), 0, "%s", e.text);
    cr_assert_eq(gguf_writer_u32(w, "general.alignment", 64), 0);
    cr_assert_eq(gguf_writer_str(w, "general.name", "w", 1), 0);
    cr_assert_eq(gguf_writer_f32(w, "f", 1.5f), 0);
    cr_assert_eq(gguf_writer_bool(w, "b", true), 0);
    cr_assert_eq(gguf_writer_array(w, "i", GGUF_I32, (int32_t[]){-1, 2}, 2), 0);
    cr_assert_eq(gguf_writer_str_array(w, "s", words, 2), 0);
    cr_assert_eq(gguf_writer_tensor(w, "a", DTYPE_Q4_0, 2, dims_a), 0);
    cr_assert_eq(gguf_writer_tensor(w, "b", DTYPE_F32, 1, dims_b), 0);
    return w;
}

Test(gguf, what_is_written_is_read, .init = make_dir, .fini = remove_dir)
{
    struct gguf_writer *w = begin_file("w.gguf");
    struct error e = {0};
    uint8_t data[54 + 20];
    int64_t v[2];
    float f;

    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)i;
    }
    cr_assert_eq(gguf_writer_data(w, data, 10), 0);
    cr_assert_eq(gguf_writer_data(w, data + 10, 60), 0, "pieces may cross tensors");
    cr_assert_eq(gguf_writer_data(w, data + 70, 4), 0);
    cr_assert_eq(access(in_dir("w.gguf"), F_OK), -1, "it appears when it is complete");
    cr_assert_eq(gguf_writer_finish(w, &e), 0, "%s", e.text);
    cr_assert_eq(access(in_dir("w.gguf.tmp"), F_OK), -1);

    cr_assert_eq(gguf_open(in_dir("w.gguf"), &g, &e), 0, "%s", e.text);
    cr_assert_str_eq(gguf_path(g), in_dir("w.gguf"));
    cr_assert_eq(gguf_file_bytes(g) % 64, 0);
    cr_assert_eq(memcmp(gguf_tensor_find(g, "a")->data, data, 54), 0);
    cr_assert_eq(memcmp(gguf_tensor_find(g, "b")->data, data + 54, 20), 0);
    cr_assert_eq((uintptr_t)gguf_tensor_find(g, "b")->data % 64, 0);
    gguf_drop_pages(g);
    cr_assert_eq(memcmp(gguf_tensor_find(g, "b")->data, data + 54, 20), 0);
    cr_assert_eq(gguf_get_f32(g, "f", &f, &e), 0);
    cr_assert_float_eq(f, 1.5f, 0);
    cr_assert_eq(gguf_array_i64(g, "i", v, 2, &e), 0);
    cr_assert_eq(v[0], -1);
    cr_assert_eq(gguf_array_str(g, "s", 1).len, 0);
    gguf_close(g);
}

Test(gguf, keys_are_copied_raw, .init = make_dir, .fini = remove_dir)
{
    struct gguf_writer *w = NULL;
    struct gguf *copy = NULL;

    open_good();
    cr_assert_eq(gguf_writer_create(in_dir("copy.gguf"), &w, NULL), 0);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < gguf_n_keys(g); i++) {
            struct gguf_str name[2];
            enum gguf_type type[2];
            const void *raw[2];
            size_t bytes[2];

            gguf_key_at(g, i, &name[0], &type[0], &raw[0], &bytes[0]);
            if (pass == 0) {
                cr_assert_eq(gguf_writer_raw(w, name[0], type[0], raw[0], bytes[0]), 0);
                continue;
            }
            gguf_key_at(copy, i, &name[1], &type[1], &raw[1], &bytes[1]);
            cr_assert_eq(type[0], type[1]);
            cr_assert_eq(bytes[0], bytes[1]);
            cr_assert_eq(memcmp(raw[0], raw[1], bytes[0]), 0);
        }
        if (pass == 0) {
            cr_assert_eq(gguf_writer_finish(w, NULL), 0);
            cr_assert_eq(gguf_open(in_dir("copy.gguf"), &copy, NULL), 0);
        }
    }
    gguf_close(copy);
    close_good();
}

static void check_stays(const char *name, mode_t kind)
{
    struct error e = {0};
    struct gguf_writer *w = NULL;
    struct stat st;

    cr_assert(gguf_writer_create(in_dir(name), &w, &e) < 0, "%s would be replaced", name);
    cr_assert(strstr(e.text, "no regular file"), "%s", e.text);
    cr_assert_eq(lstat(in_dir(name), &st), 0);
    cr_assert_eq(st.st_mode & S_IFMT, kind, "%s was replaced", name);
}

Test(gguf, what_is_no_regular_file_stays, .init = make_dir, .fini = remove_dir)
{
    cr_assert_eq(mkfifo(in_dir("pipe"), 0600), 0);
    check_stays("pipe", S_IFIFO);
    cr_assert_eq(symlink("pipe", in_dir("link")), 0);
    check_stays("link", S_IFLNK);
    cr_assert_eq(mkdir(in_dir("folder"), 0700), 0);
    check_stays("folder", S_IFDIR);
}

Test(gguf, missing_and_surplus_data, .init = make_dir, .fini = remove_dir)
{
    struct gguf_writer *w = begin_file("short.gguf");
    struct error e[2] = {0};
    uint8_t data[54 + 21] = {0};

    cr_assert_eq(gguf_writer_data(w, data, 54 + 19), 0);
    cr_assert_eq(gguf_writer_finish(w, &e[0]), -EINVAL);
    cr_assert(strstr(e[0].text, "data of its tensors is missing"), "%s", e[0].text);
    w = begin_file("long.gguf");
    cr_assert_eq(gguf_writer_data(w, data, 54 + 21), -EINVAL);
    cr_assert_eq(gguf_writer_u32(w, "late", 1), -EINVAL, "the first failure sticks");
    cr_assert_eq(gguf_writer_finish(w, &e[1]), -EINVAL);
    cr_assert(strstr(e[1].text, "more data than its tensors hold"), "%s", e[1].text);
    cr_assert_eq(access(in_dir("short.gguf"), F_OK), -1);
    cr_assert_eq(access(in_dir("short.gguf.tmp"), F_OK), -1);
    cr_assert_eq(access(in_dir("long.gguf.tmp"), F_OK), -1);
}

static void check_writer_refuses(int (*call)(struct gguf_writer *w))
{
    struct gguf_writer *w = begin_file("r.gguf");

    cr_assert_eq(call(w), -EINVAL);
    gguf_writer_abort(w);
    cr_assert_eq(access(in_dir("r.gguf.tmp"), F_OK), -1);
}

static int empty_key(struct gguf_writer *w)
{
    return gguf_writer_u32(w, "", 1);
}

static int late_alignment(struct gguf_writer *w)
{
    return gguf_writer_u32(w, "general.alignment", 32);
}

static int part_block(struct gguf_writer *w)
{
    return gguf_writer_tensor(w, "t", DTYPE_Q4_0, 1, (uint64_t[]){33});
}

static int no_rows(struct gguf_writer *w)
{
    return gguf_writer_tensor(w, "t", DTYPE_F32, 2, (uint64_t[]){4, 0});
}

static int huge(struct gguf_writer *w)
{
    return gguf_writer_tensor(w, "t", DTYPE_F32, 2, (uint64_t[]){1ull << 32, 1ull << 32});
}

static int long_name(struct gguf_writer *w)
{
    return gguf_writer_tensor(w, "0123456789012345678901234567890123456789012345678901234567890123",
                              DTYPE_F32, 1, (uint64_t[]){4});
}

Test(gguf, writer_refuses_what_the_reader_would, .init = make_dir, .fini = remove_dir)
{
    check_writer_refuses(empty_key);
    check_writer_refuses(late_alignment);
    check_writer_refuses(part_block);
    check_writer_refuses(no_rows);
    check_writer_refuses(huge);
    check_writer_refuses(long_name);
}

Test(gguf, writer_says_why_it_cannot)
{
    struct gguf_writer *w = NULL;
    struct error e = {0};

    cr_assert_eq(gguf_writer_create("/nonexistent/x.gguf", &w, &e), -ENOENT);
    cr_assert(strstr(e.text, "/nonexistent/x.gguf"), "%s", e.text);
    gguf_writer_abort(NULL);
}

/* A limit on the size of files stands in for a full disk: both end a write with an errno. */
Test(gguf, a_write_that_fails_is_reported, .init = make_dir, .fini = remove_dir)
{
    static uint8_t zeroes[1 << 20];
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    struct gguf_writer *w = NULL;
    struct error e = {0};
    int r = 0;

    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(gguf_writer_create(in_dir("full.gguf"), &w, &e), 0);
    cr_assert_eq(gguf_writer_tensor(w, "t", DTYPE_F32, 1, (uint64_t[]){1 << 20}), 0);
    for (int i = 0; i < 4; i++) {
        r = gguf_writer_data(w, zeroes, sizeof(zeroes));
    }
    cr_assert_eq(r, -EFBIG);
    cr_assert_eq(gguf_writer_finish(w, &e), -EFBIG);
    cr_assert(strstr(e.text, "full.gguf: data: File too large"), "%s", e.text);
    cr_assert_eq(access(in_dir("full.gguf.tmp"), F_OK), -1);
}

/* ---- SHA-256 ---- */

Test(gguf, sha256_is_remembered_until_the_file_changes, .init = make_dir, .fini = remove_dir)
{
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    struct error e = {0};
    char hex[65] = "";
    struct stat st;
    int fd = open(in_dir("f"), O_CREAT | O_WRONLY, 0600);

    cr_assert_eq(write(fd, "abc", 3), 3);
    cr_assert_eq(gguf_sha256(in_dir("f"), NULL, hex, &e), 0, "%s", e.text);
    cr_assert_str_eq(hex, abc);
    cr_assert_eq(stat(in_dir("sha256"), &st), -1);
    cr_assert_eq(gguf_sha256(in_dir("f"), dir, hex, &e), 0);
    cr_assert_str_eq(hex, abc);
    cr_assert_eq(stat(in_dir("sha256"), &st), 0);

    /* What is remembered is believed: a forged line shows that the file was not read again. */
    char command[400];
    (void)snprintf(command, sizeof(command), "sed -i 's/ba7816bf/00000000/' %s", in_dir("sha256"));
    cr_assert_eq(system(command), 0);
    cr_assert_eq(gguf_sha256(in_dir("f"), dir, hex, &e), 0);
    cr_assert_eq(memcmp(hex, "00000000", 8), 0);

    cr_assert_eq(write(fd, "d", 1), 1);
    (void)close(fd);
    cr_assert_eq(gguf_sha256(in_dir("f"), dir, hex, &e), 0);
    cr_assert_eq(memcmp(hex, "88d4266fd4e6338d", 16), 0, "%s", hex);
    cr_assert_eq(gguf_sha256(in_dir("none"), dir, hex, &e), -ENOENT);
}
