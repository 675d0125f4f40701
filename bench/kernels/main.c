/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-kbench: what the cuda backend's kernels reach on a GPU, one by one, as CSV on stdout.
 *
 * A figure is the median time of one launch among many: launches go as the daemon's do, as graphs
 * with programmatic edges, each on a buffer of its own so that nothing is found in L2, and the
 * device's clock (events) times them. Shares are of the rate at which a plain kernel reads memory,
 * measured first in the same run. --small takes sizes that the emulated module of the tests can do;
 * its times say nothing. */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "bench/kernels/kbench.h"
#include "kernels/module.h"
#include "tools/command.h"

struct config {
    char *module;
    char *only;
    int products; /* enum backend_prefill */
    bool small;
    bool help;
};

#define ROW(field) offsetof(struct config, field)

static const char *const products[] = {"auto", "own", "cublas", NULL}; /* enum backend_prefill */

/* clang-format off */
static const struct option_row rows[] = {
    {"module", 'm', OPTION_STRING, ROW(module), .metavar = "FILE", .help = "libpipit-cuda.so (default: as a build folder has it)"},
    {"only", 0, OPTION_STRING, ROW(only), .metavar = "TEXT", .help = "figures whose name holds it"},
    {"products", 0, OPTION_ENUM, ROW(products), .words = products, .fallback = "auto", .help = "of prompts: own kernels, or cublas"},
    {"small", 0, OPTION_FLAG, ROW(small), .help = "small sizes, to see that all of it runs"},
    {"help", 'h', OPTION_FLAG, ROW(help), .flags = OPTION_ARGV_ONLY, .help = "this text"},
};
/* clang-format on */

static const struct option_table table = {
    rows, sizeof(rows) / sizeof(rows[0]), "pipit-kbench [OPTION]...",
    "Times the kernels of the cuda backend and prints CSV.", 0};

/* ---- figures --------------------------------------------------------------------------------- */

bool kbench_wants(const struct kbench *k, const char *name)
{
    return !k->only || strstr(name, k->only);
}

void kbench_print(struct kbench *k, const char *name, double ns, double bytes, double work)
{
    double rate = ns > 0 ? bytes / ns * 1e9 : 0;

    printf("\"%s\",%.2f,", name, ns / 1e3);
    if (bytes > 0) {
        printf("%.0f,%.1f,", bytes, rate / 1e9);
    } else {
        printf(",,");
    }
    if (bytes > 0 && k->read_rate > 0) {
        printf("%.3f", rate / k->read_rate);
    }
    printf(",");
    if (work > 0 && ns > 0) {
        printf("%.2f", work / ns / 1e3);
    }
    printf("\n");
    (void)fflush(stdout); /* figures stay when the run is cut off */
    k->n_printed++;
}

int kbench_fill(struct kbench *k, uint64_t bytes, void **ret, struct error *reterr)
{
    void *p = NULL;
    int r = k->ops->alloc(k->be, bytes, "a buffer", &p, reterr);

    for (uint64_t at = 0; at < bytes && !r; at += KBENCH_NOISE) {
        uint64_t n = bytes - at < KBENCH_NOISE ? bytes - at : KBENCH_NOISE;

        r = k->ops->write(k->be, (uint8_t *)p + at, k->noise, n);
        if (r) {
            k->ops->free(k->be, p, bytes);
            return error_set_errno(reterr, r, "write");
        }
    }
    if (!r) {
        *ret = p;
    }
    return r;
}

int kbench_copies(const struct kbench *k, uint64_t bytes)
{
    uint64_t n = bytes > 0 ? (k->cold_bytes + bytes - 1) / bytes : 1;

    return n < 2 ? 2 : n > 32 ? 32 : (int)n;
}

int kbench_weights(struct kbench *k, const struct ops_weight_desc *like, int n,
                   struct ops_weight *ret, int *ret_n, struct error *reterr)
{
    struct ops_weight_desc desc = *like;
    uint64_t n_rows = (uint64_t)desc.n_rows * (uint64_t)ops_stack(desc.n_stack);
    uint64_t bytes;
    uint8_t *data;
    int r = 0;

    *ret_n = 0;
    if (!dtype_row_bytes(desc.type, (uint64_t)desc.n_cols, &bytes)) {
        return error_set(reterr, -EINVAL, "rows of %d", desc.n_cols);
    }
    bytes *= n_rows;
    data = malloc(bytes);
    if (!data) {
        return error_set(reterr, -ENOMEM, "no memory for a weight");
    }
    for (uint64_t at = 0; at < bytes; at += KBENCH_NOISE) {
        memcpy(data + at, k->noise, bytes - at < KBENCH_NOISE ? bytes - at : KBENCH_NOISE);
    }
    desc.data = data;
    while (*ret_n < n && !r) {
        r = k->ops->weight_create(k->be, &desc, &ret[*ret_n], reterr);
        *ret_n += r == 0;
    }
    free(data);
    return r;
}

struct backend_limits kbench_limits(const struct kbench *k)
{
    return (struct backend_limits){
        .max_rows = k->small ? 64 : 2048,
        .max_decode = 32,
        .max_seqs = 8,
        .max_cols = 14336,
        .max_outputs = 14336,
        .max_quantised = (uint64_t)14336 * 4096,
        .max_heads = 32,
        .max_head_dim = 128,
        .max_slots = k->small ? 1024 : 65536, /* the deepest figure's */
        .observe = true,
        .expect = true,
        .select = true,
    };
}

/* ---- the run --------------------------------------------------------------------------------- */

static int find_module(const struct config *c, char *path, size_t size, struct error *e)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    int r;

    if (c->module) {
        bool fits = (size_t)snprintf(path, size, "%s", c->module) < size;

        return fits ? 0 : error_set(e, -ENAMETOOLONG, "%s", c->module);
    }
    program[n > 0 ? n : 0] = '\0';
    r = module_beside(program, path, size, e);
    return r == -ENOENT ? error_set(e, r, "no libpipit-cuda.so beside this program: give --module")
                        : r;
}

static int open_device(struct kbench *k, const struct config *c, struct error *e)
{
    const struct backend_config config = {.n_threads = 1,
                                          .prefill = (enum backend_prefill)c->products};
    const struct backend_limits limits = kbench_limits(k);
    char path[PATH_MAX];
    char text[800];
    int r = find_module(c, path, sizeof(path), e);

    r = r ? r : module_open(path, &k->ops, e);
    if (r) {
        return r;
    }
    k->clock = module_symbol(CUDA_BENCH_SYMBOL);
    if (!k->clock || k->clock->bytes != sizeof(*k->clock)) {
        return error_set(e, -ENOEXEC, "%s has no %s of this build", path, CUDA_BENCH_SYMBOL);
    }
    r = k->ops->create(&config, &k->be, e);
    r = r ? r : k->ops->reserve(k->be, &limits, e);
    if (!r && (r = k->clock->open(k->be))) {
        return error_set_errno(e, r, "events");
    }
    if (!r) {
        k->ops->describe(k->be, text, sizeof(text));
        (void)fprintf(stderr, "pipit-kbench: %s\n", text);
    }
    return r;
}

/* Bytes 0x20 to 0x3f: positive numbers below 2 as f16, bf16 and fp8, and finite scales. */
static int make_noise(struct kbench *k, struct error *e)
{
    k->noise = malloc(KBENCH_NOISE);
    if (!k->noise) {
        return error_set(e, -ENOMEM, "no memory");
    }
    for (uint32_t i = 0; i < KBENCH_NOISE / 16; i++) {
        uint32_t bits[4];

        rng_philox(rng_key_make(3), (uint32_t[4]){i, 0, 0, 0}, bits);
        for (int b = 0; b < 4; b++) {
            bits[b] = (bits[b] & 0x1f1f1f1fu) | 0x20202020u;
        }
        memcpy(k->noise + (size_t)i * 16, bits, 16);
    }
    return 0;
}

static int run(const void *config, const struct option_list *words, struct error *e)
{
    const struct config *c = config;
    struct kbench k = {.small = c->small, .only = c->only};
    char news[256];
    int r;

    (void)words;
    k.cold_bytes = k.small ? 1 << 16 : (uint64_t)256 << 20;
    r = make_noise(&k, e);
    r = r ? r : open_device(&k, c, e);
    if (!r) {
        printf("figure,us,bytes,gb_s,share,tera_ops\n");
        r = kbench_rates(&k, e);
    }
    r = r ? r : kbench_launches(&k, e);
    r = r ? r : kbench_products(&k, e);
    r = r ? r : kbench_experts(&k, e);
    r = r ? r : kbench_attention(&k, e);
    r = r ? r : kbench_select(&k, e);
    r = r ? r : kbench_sampling(&k, e);
    if (k.be && k.ops->news(k.be, news, sizeof(news)) && !r) {
        r = error_set(e, -EIO, "the figures are of a backend that says: %s", news);
    }
    if (!r && k.n_printed == 1 && !kbench_wants(&k, "read")) { /* that one is always printed */
        r = error_set(e, -EINVAL, "no figure is named '%s'", k.only);
    }
    if (k.be) {
        k.clock->close(k.be);
        k.ops->destroy(k.be);
    }
    free(k.noise);
    return r;
}

int main(int argc, char **argv)
{
    struct config c = {0};

    return command_main(
        &(struct command){
            .name = "pipit-kbench", .table = &table, .config = &c, .help = &c.help, .run = run},
        argc, argv);
}
