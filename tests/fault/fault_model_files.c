/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation and system call of base/ and gguf/ fails once: opening a model from a file and
 * from memory, writing one, hashing one, reading settings, starting threads. A writer that failed
 * must leave neither its file nor the temporary one. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/pool.h"
#include "gguf/gguf.h"
#include "tests/fault/fault.h"
#include "tests/unit/gguf_spec.h"

struct files {
    char dir[64];
    char model[96];
    char out[96];
    char out_tmp[96];
    char settings[96];
    const uint8_t *data;
    size_t size;
};

static int open_file(void *arg, struct error *reterr)
{
    struct files *f = arg;
    struct gguf *g = NULL;
    int r = gguf_open(f->model, &g, reterr);

    gguf_close(g);
    return r;
}

static int open_memory(void *arg, struct error *reterr)
{
    struct files *f = arg;
    struct gguf *g = NULL;
    int r = gguf_open_memory(f->data, f->size, &g, reterr);

    gguf_close(g);
    return r;
}

static int write_model(void *arg, struct error *reterr)
{
    struct files *f = arg;
    struct gguf_writer *w = NULL;
    static const uint64_t dims[2] = {32, 5};
    static const uint8_t data[5 * 34];
    struct gguf_str words[2] = {{"a", 1}, {"b", 1}};
    int r;

    (void)unlink(f->out);
    r = gguf_writer_create(f->out, &w, reterr);
    if (r < 0) {
        return r;
    }
    (void)!gguf_writer_str_array(w, "words", words, 2);
    for (char name[] = "a"; *name < 'f'; ++*name) {
        (void)!gguf_writer_tensor(w, name, DTYPE_Q8_0, 2, dims);
    }
    for (int i = 0; i < 5; i++) {
        (void)!gguf_writer_data(w, data, sizeof(data));
    }
    r = gguf_writer_finish(w, reterr);
    if (access(f->out_tmp, F_OK) == 0 || (access(f->out, F_OK) == 0) != (r == 0)) {
        return -EXDEV; /* odd: fault_loop() says so */
    }
    return r;
}

static int hash_model(void *arg, struct error *reterr)
{
    struct files *f = arg;
    char hex[65];
    char cache[96];

    (void)snprintf(cache, sizeof(cache), "%s/sha256", f->dir);
    (void)unlink(cache);
    return gguf_sha256(f->model, f->dir, hex, reterr);
}

struct config {
    char *model;
    int64_t threads;
    struct option_list overlays;
    char *config;
};

static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct config, model), .fallback = "x"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), .fallback = "1"},
    {"overlay", 0, OPTION_LIST, offsetof(struct config, overlays)},
    {"config", 0, OPTION_STRING, offsetof(struct config, config)},
};

static const struct option_table table = {rows, 4, "x", NULL, 0};

static int read_settings(void *arg, struct error *reterr)
{
    struct files *f = arg;
    struct config c = {0};
    struct option_list words = {0};
    char *argv[] = {"x", "--config", f->settings, "--overlay", "c", "word", "word"};
    int r = options_load(&table, &c, 7, argv, NULL, "config", &words, reterr);

    options_list_clear(&words);
    options_clear(&table, &c);
    return r;
}

static int show_help(void *arg, struct error *reterr)
{
    char *text = options_help(&table);

    free(text);
    return text ? 0 : error_set(reterr, -ENOMEM, "no memory for the help");
}

static int start_threads(void *arg, struct error *reterr)
{
    struct pool *pool = NULL;
    int r = pool_create(4, &pool, reterr);

    pool_destroy(pool);
    return r;
}

static int map_memory(void *arg, struct error *reterr)
{
    void *small = NULL;
    void *large = NULL;
    int r = memory_map(1000, "small", &small, reterr);

    r = r < 0 ? r : memory_map(3 << 20, "large", &large, reterr);
    memory_unmap(small, 1000);
    memory_unmap(large, 3 << 20);
    return memory_mapped_bytes() == 0 ? r : -EXDEV;
}

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "we");

    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

int main(void)
{
    struct files f = {.dir = "/tmp/test-fault-XXXXXX"};
    struct gguf_spec spec = gguf_spec_good();
    uint8_t *data = gguf_spec_write(&spec, &f.size);
    static const char settings[] = "model = y\noverlay = a\noverlay = b\n";
    char command[96];
    int n = 0;

    if (!mkdtemp(f.dir)) {
        return 1;
    }
    f.data = data;
    (void)snprintf(f.model, sizeof(f.model), "%s/model", f.dir);
    (void)snprintf(f.out, sizeof(f.out), "%s/out", f.dir);
    (void)snprintf(f.out_tmp, sizeof(f.out_tmp), "%s/out.tmp", f.dir);
    (void)snprintf(f.settings, sizeof(f.settings), "%s/settings", f.dir);
    put_file(f.model, data, f.size);
    put_file(f.settings, settings, sizeof(settings) - 1);
    n += fault_loop("gguf_open", open_file, &f);
    n += fault_loop("gguf_open_memory", open_memory, &f);
    n += fault_loop("gguf_writer", write_model, &f);
    n += fault_loop("gguf_sha256", hash_model, &f);
    n += fault_loop("options_load", read_settings, &f);
    n += fault_loop("options_help", show_help, &f);
    n += fault_loop("pool_create", start_threads, &f);
    n += fault_loop("memory_map", map_memory, &f);
    free(data);
    (void)snprintf(command, sizeof(command), "rm -rf %s", f.dir);
    if (system(command) != 0) {
        return 1;
    }
    (void)printf("%d failures passed through\n", n);
    return n > 40 ? 0 : 1; /* fewer: the wrappers are not linked in */
}
