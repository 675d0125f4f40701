/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what a model file and an overlay say: keys, tensors, shapes, and what is derived of them.
 * The bytes of the GGUF format are fuzz_gguf's. The input's first byte names a model of tests/data,
 * the second one an overlay, the third one a policy; changes follow, each of the bytes below. In
 * `what`, bit 7 means the overlay, not the model.
 *
 *     what  0  i           key i goes
 *           1  i n bytes   its value: the first n bytes of it (of an array behind type and count)
 *           2  i type      its type; the value is then 16 zeros
 *           3  i n         an array's count, of u32s that count up from 0
 *           4  i           tensor i goes
 *           5  i d v v     its dimension d; 0 counts from 1
 *           6  i type      its element type
 *           7  i n         its number of dimensions
 *           8  i j         it gets the name of tensor j, and that one its
 *           9  i o n bytes its data, from o * 4 on
 *          10  i n bytes   another tensor like it, by that name
 *          11  type n bytes m bytes  another key, by that name, with that value
 *          12  i n bytes   a tensor as the model's i, by that name, in the overlay
 *
 * Promises: files are refused with a code and a text, or an engine is made of them that reads a
 * prompt and says two tokens, each a token of its vocabulary. Memory can fail while it is made
 * (fail.h). Seeds: make_seeds_model.py. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/engine.h"
#include "gguf/gguf.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_KEYS = 96, MAX_TENSORS = 400, NAME = 80, VALUE = 512, MOST_DATA = 1 << 21, ALIGN = 32 };
enum { MOST_MEMORY = 96 << 20, CTX = 32 };

struct key {
    char name[NAME];
    uint32_t type;
    size_t n; /* bytes of the value, an array's type and count included */
    uint8_t value[VALUE];
};

struct tensor {
    char name[NAME];
    uint32_t type;
    uint32_t n_dims;
    uint64_t dims[4];
    const uint8_t *data;
    uint64_t n_data;
    uint8_t patch[64]; /* over data from `patch_at` on */
    uint64_t patch_at;
    uint64_t n_patch;
};

struct file {
    int n_keys;
    int n_tensors;
    struct key keys[MAX_KEYS];
    struct tensor tensors[MAX_TENSORS];
};

static const char *const models[] = {
    "cache_model",    "arch_qwen2",   "arch_gemma3",       "arch_qwen35",   "arch_qwen2moe",
    "arch_gpt_oss",   "arch_lfm2",    "arch_llama3",       "arch_gemma4_e", "arch_granitemoe",
    "arch_gemma2",    "arch_qwen3vl", "arch_ernie_moe",    "arch_glm4moe",  "arch_qwen2_yarn",
    "arch_llama_moe", "arch_sigma",   "arch_sigma_uneven", "arch_qwen3moe", "arch_gemma4_dense"};
static const char *const overlays[] = {NULL,
                                       "cache_swiftkv_2_3",
                                       "cache_skew",
                                       "cache_swiftkv_2_3_outputs",
                                       "cache_swiftkv_2_4",
                                       "cache_skew_2_3",
                                       "cache_wide_2_2",
                                       "cache_wide_4_1"};
static const char *const policies[] = {"full",
                                       "kv8+h2o:8,prefill=dense",
                                       "kv8+window:8",
                                       "fp8+keyformer:9",
                                       "kv8,center=off",
                                       "infinigen:count=3",
                                       "window:8,layers=measured"};

enum { N_MODELS = sizeof(models) / sizeof(models[0]) };
enum { N_OVERLAYS = sizeof(overlays) / sizeof(overlays[0]) };
enum { N_POLICIES = sizeof(policies) / sizeof(policies[0]) };

static struct file files[2];
static char path[2][32];
static int fds[2] = {-1, -1};

/* ---- files as tables ----------------------------------------------------------------------------
 */

/* Vocabularies are fuzz_vocabulary's. */
static void no_tokenizer(struct file *f)
{
    static const uint8_t none[] = {4, 0, 0, 0, 0, 0, 0, 0, 'n', 'o', 'n', 'e'};
    struct key *k = &f->keys[f->n_keys++];

    require(f->n_keys <= MAX_KEYS);
    (void)snprintf(k->name, NAME, "tokenizer.ggml.model");
    k->type = GGUF_STRING;
    k->n = sizeof(none);
    memcpy(k->value, none, sizeof(none));
}

static void read_file(const char *name, struct file *ret)
{
    static struct gguf *open[N_MODELS + N_OVERLAYS];
    static const char *names[N_MODELS + N_OVERLAYS];
    char full[512];
    int i = 0;

    while (names[i] && names[i] != name) {
        i++;
    }
    if (!names[i]) {
        (void)snprintf(full, sizeof(full), "%s/%s.gguf", PIPIT_TEST_DATA, name);
        require(gguf_open(full, &open[i], NULL) == 0);
        names[i] = name;
    }
    ret->n_keys = 0;
    for (size_t k = 0; k < gguf_n_keys(open[i]); k++) {
        struct key *to = &ret->keys[ret->n_keys];
        enum gguf_type type;
        struct gguf_str s;
        const void *raw;

        gguf_key_at(open[i], k, &s, &type, &raw, &to->n);
        if (to->n > VALUE || ret->n_keys == MAX_KEYS - 1 ||
            (s.len > 10 && memcmp(s.ptr, "tokenizer.", 10) == 0)) {
            continue;
        }
        (void)snprintf(to->name, NAME, "%.*s", (int)s.len, s.ptr);
        to->type = type;
        memcpy(to->value, raw, to->n);
        ret->n_keys++;
    }
    no_tokenizer(ret);
    ret->n_tensors = (int)gguf_n_tensors(open[i]);
    require(ret->n_tensors <= MAX_TENSORS);
    for (int t = 0; t < ret->n_tensors; t++) {
        const struct gguf_tensor *from = gguf_tensor_at(open[i], (size_t)t);
        struct tensor *to = &ret->tensors[t];

        *to = (struct tensor){.type = from->type,
                              .n_dims = (uint32_t)from->n_dims,
                              .data = from->data,
                              .n_data = from->n_bytes};
        (void)snprintf(to->name, NAME, "%.*s", (int)from->name.len, from->name.ptr);
        memcpy(to->dims, from->dims, sizeof(to->dims));
    }
}

struct out {
    uint8_t *p;
    size_t n;
    size_t cap;
};

static void put(struct out *o, const void *data, size_t n)
{
    require(n <= o->cap - o->n);
    memcpy(o->p + o->n, data, n);
    o->n += n;
}

static void put_u32(struct out *o, uint32_t v)
{
    put(o, &v, sizeof(v));
}

static void put_u64(struct out *o, uint64_t v)
{
    put(o, &v, sizeof(v));
}

static void put_name(struct out *o, const char *name)
{
    put_u64(o, strlen(name));
    put(o, name, strlen(name));
}

/* Bytes of its data; what no file could hold counts as 0, which the reader refuses. */
static uint64_t data_bytes(const struct tensor *t)
{
    uint64_t rows = 1;
    uint64_t bytes;

    if (!dtype_info(t->type) || !dtype_row_bytes((enum dtype)t->type, t->dims[0], &bytes)) {
        return 0;
    }
    for (uint32_t d = 1; d < t->n_dims && d < 4; d++) {
        rows *= t->dims[d] < 1 << 16 ? t->dims[d] : 1 << 16;
        rows = rows < 1 << 20 ? rows : 1 << 20;
    }
    return bytes < MOST_DATA / (rows ? rows : 1) ? bytes * rows : 0;
}

static void put_data(struct out *o, const struct tensor *t, uint64_t n)
{
    uint64_t has = n < t->n_data ? n : t->n_data;
    size_t at = o->n;

    require(n <= o->cap - o->n);
    memset(o->p + o->n, 0, n);
    put(o, t->data, has);
    o->n = at + n;
    if (t->patch_at < n) {
        memcpy(o->p + at + t->patch_at, t->patch,
               n - t->patch_at < t->n_patch ? n - t->patch_at : t->n_patch);
    }
}

/* False: it is too large to be tried. */
static bool write_file(const struct file *f, int fd)
{
    static uint8_t bytes[MOST_DATA * 2];
    static uint64_t n_data[MAX_TENSORS];
    struct out o = {.p = bytes, .cap = sizeof(bytes)};
    uint64_t at = 0;

    put(&o, "GGUF", 4);
    put_u32(&o, 3);
    put_u64(&o, (uint64_t)f->n_tensors);
    put_u64(&o, (uint64_t)f->n_keys);
    for (int i = 0; i < f->n_keys; i++) {
        put_name(&o, f->keys[i].name);
        put_u32(&o, f->keys[i].type);
        put(&o, f->keys[i].value, f->keys[i].n);
    }
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];

        n_data[i] = data_bytes(t);
        put_name(&o, t->name);
        put_u32(&o, t->n_dims);
        put(&o, t->dims, (t->n_dims < 4 ? t->n_dims : 4) * sizeof(t->dims[0]));
        put_u32(&o, t->type);
        put_u64(&o, at);
        at += (n_data[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
    if (at > MOST_DATA) {
        return false;
    }
    for (int i = 0; i < f->n_tensors; i++) {
        o.n = (o.n + ALIGN - 1) / ALIGN * ALIGN;
        put_data(&o, &f->tensors[i], n_data[i]);
    }
    require(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, o.n, 0) == (ssize_t)o.n);
    return true;
}

/* ---- changes ------------------------------------------------------------------------------------
 */

/* A length and so many bytes, of which `most` are kept. */
static size_t take_bytes(struct input *in, uint8_t *to, size_t most)
{
    size_t n = take(in);
    size_t kept;

    n = n < in->left ? n : in->left;
    kept = n < most ? n : most;
    memcpy(to, in->p, kept);
    in->p += n;
    in->left -= n;
    return kept;
}

static void take_name(struct input *in, char name[NAME])
{
    name[take_bytes(in, (uint8_t *)name, NAME - 1)] = '\0';
}

static void change_key(struct file *f, int what, int i, struct input *in)
{
    struct key *k = &f->keys[i];
    uint32_t n;

    switch (what) {
    case 0:
        *k = f->keys[--f->n_keys];
        break;
    case 1:
        n = k->type == GGUF_ARRAY && k->n > 12 ? 12 : k->type == GGUF_STRING && k->n > 8 ? 8 : 0;
        (void)take_bytes(in, k->value + n, k->n - n);
        break;
    case 2:
        k->type = take(in);
        k->n = 16;
        memset(k->value, 0, sizeof(k->value));
        break;
    default:
        n = take(in) % ((VALUE - 12) / 4);
        k->type = GGUF_ARRAY;
        k->n = 12 + n * sizeof(uint32_t);
        memset(k->value, 0, sizeof(k->value));
        k->value[0] = GGUF_U32;
        k->value[4] = (uint8_t)n;
        for (uint32_t e = 0; e < n; e++) {
            memcpy(k->value + 12 + e * sizeof(e), &e, sizeof(e));
        }
        break;
    }
}

static void change_tensor(struct file *f, int what, int i, struct input *in)
{
    struct tensor *t = &f->tensors[i];
    struct tensor *other;
    char name[NAME];
    int d;

    switch (what) {
    case 4:
        *t = f->tensors[--f->n_tensors];
        break;
    case 5:
        d = take(in) % 4;
        t->dims[d] = (uint64_t)take(in);
        t->dims[d] |= (uint64_t)take(in) << 8;
        break;
    case 6:
        t->type = take(in);
        break;
    case 7:
        t->n_dims = take(in) % 6;
        break;
    case 8:
        other = &f->tensors[take(in) % f->n_tensors];
        memcpy(name, t->name, NAME);
        memcpy(t->name, other->name, NAME);
        memcpy(other->name, name, NAME);
        break;
    case 9:
        t->patch_at = (uint64_t)take(in) * 4;
        t->n_patch = take_bytes(in, t->patch, sizeof(t->patch));
        break;
    default:
        if (f->n_tensors < MAX_TENSORS) {
            f->tensors[f->n_tensors] = *t;
            take_name(in, f->tensors[f->n_tensors].name);
            f->n_tensors++;
        }
        break;
    }
}

static void add_key(struct file *f, struct input *in)
{
    struct key *k = &f->keys[f->n_keys];

    if (f->n_keys < MAX_KEYS) {
        memset(k, 0, sizeof(*k));
        k->type = take(in);
        take_name(in, k->name);
        k->n = take_bytes(in, k->value, VALUE);
        f->n_keys++;
    }
}

static void copy_tensor(const struct file *from, struct file *to, struct input *in)
{
    int i = take(in) % (from->n_tensors ? from->n_tensors : 1);

    if (from->n_tensors && to->n_tensors < MAX_TENSORS) {
        to->tensors[to->n_tensors] = from->tensors[i];
        take_name(in, to->tensors[to->n_tensors].name);
        to->n_tensors++;
    }
}

static void change(struct input *in)
{
    while (in->left >= 2) {
        uint8_t what = take(in);
        struct file *f = &files[what >> 7];

        what = (what & 127) % 13;
        if (what == 11) {
            add_key(f, in);
        } else if (what == 12) {
            copy_tensor(&files[0], &files[1], in);
        } else if (what < 4 && f->n_keys > 0) {
            change_key(f, what, take(in) % f->n_keys, in);
        } else if (what >= 4 && f->n_tensors > 0) {
            int i = take(in) | (f->n_tensors > 256 ? take(in) << 8 : 0);

            change_tensor(f, what, i % f->n_tensors, in);
        }
    }
}

/* An overlay names its base by the hash of the file, which has been changed. */
static void name_base(struct file *overlay, const char *base)
{
    char sha[65];

    require(gguf_sha256(base, NULL, sha, NULL) == 0);
    for (int i = 0; i < overlay->n_keys; i++) {
        struct key *k = &overlay->keys[i];

        if (strcmp(k->name, "pipit.overlay.base_sha256") == 0 && k->type == GGUF_STRING &&
            k->n == 8 + 64) {
            memcpy(k->value + 8, sha, 64);
        }
    }
}

/* ---- an engine of them --------------------------------------------------------------------------
 */

static int32_t n_said;
static bool ended;

static void on_event(void *arg, const struct engine_event *ev)
{
    const struct engine *e = *(struct engine *const *)arg;

    if (ev->type == ENGINE_EV_TOKEN) {
        require(ev->token >= 0 && ev->token < engine_info(e)->n_vocab);
        n_said++;
    } else if (ev->type == ENGINE_EV_DONE) {
        require(!ended);
        ended = true;
    }
}

static void use(struct engine *e)
{
    int32_t prompt[12];
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = 12,
                               .max_tokens = 2,
                               .ignore_end = true,
                               .sampler = sampler_params_default()};
    struct error err = {0};
    uint64_t handle;
    int n = 1;

    for (int32_t i = 0; i < 12; i++) {
        prompt[i] = i % engine_info(e)->n_vocab;
    }
    n_said = 0;
    ended = false;
    if (engine_submit(e, &q, &handle, &err)) {
        require(err.code < 0 && err.text[0]);
        return;
    }
    while (n > 0) {
        n = engine_step(e, on_event, &e);
        require(n >= 0);
    }
    require(ended && n_said <= 2);
}

static int one(const uint8_t *data, size_t size)
{
    struct input in = {.p = data, .left = size};
    const char *overlay_path = path[1];
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    const char *overlay;
    int r;

    if (size < 3) {
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        if (fds[i] < 0) {
            fds[i] = memfd_create("model", MFD_CLOEXEC);
            require(fds[i] >= 0);
            (void)snprintf(path[i], sizeof(path[i]), "/proc/self/fd/%d", fds[i]);
        }
        files[i].n_keys = files[i].n_tensors = 0;
    }
    engine_config_default(&c);
    read_file(models[take(&in) % N_MODELS], &files[0]);
    overlay = overlays[take(&in) % N_OVERLAYS];
    c.kv = policies[take(&in) % N_POLICIES];
    if (overlay) {
        read_file(overlay, &files[1]);
    }
    change(&in);
    if (!write_file(&files[0], fds[0])) {
        return 0;
    }
    if (overlay) {
        name_base(&files[1], path[0]);
        if (!write_file(&files[1], fds[1])) {
            return 0;
        }
        c.overlay_paths = &overlay_path;
        c.n_overlays = 1;
    }
    c.model_path = path[0];
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = CTX;
    c.n_seqs = 1;
    c.memory_bytes = MOST_MEMORY;
    fail_begin(FAIL_MEMORY);
    r = engine_create(&c, NULL, NULL, &e, &err);
    fail_end();
    if (r) {
        require(err.code == r && err.text[0] && !e);
        require(r == -EBADMSG || r == -ENOTSUP || r == -ENOMEM || r == -E2BIG || r == -EINVAL);
        return 0;
    }
    use(e);
    engine_destroy(e);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}
