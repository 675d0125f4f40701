/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of every check program: which backend, which instruction sets, the sides of a check,
 * the copy bandwidth that benches are measured against. See check.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/pool.h"
#include "tests/kernels/check.h"
#include "tests/turn.h"

#define AVX2 CPU_AVX2
#define AVX512 (CPU_AVX2 | CPU_AVX512)

static const struct {
    const char *name;
    uint32_t mask;
} variants[] = {
    {"none", 0},
    {"avx2", AVX2},
    {"avx2+vnni", AVX2 | CPU_AVX_VNNI},
    {"avx512", AVX512},
    {"avx512+vnni", AVX512 | CPU_AVX512_VNNI},
    {"avx512+bf16", AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16},
    {"avx512+fp16", AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_AVX512_FP16},
    {"neon", CPU_NEON},
    {"neon+dotprod", CPU_NEON | CPU_DOTPROD},
    {"neon+i8mm", CPU_NEON | CPU_DOTPROD | CPU_I8MM},
    {"all", UINT32_MAX},
};

enum { COPY_BYTES = 64 << 20 };

struct copy {
    uint8_t *from;
    uint8_t *to;
};

static void copy_piece(void *arg, int tid, int n_threads)
{
    struct copy *copy = arg;
    size_t piece = COPY_BYTES / (size_t)n_threads / 64 * 64;

    memcpy(copy->to + (size_t)tid * piece, copy->from + (size_t)tid * piece, piece);
}

/* Bytes read and written a second by two threads that copy 64 MiB. */
static double copy_rate(void)
{
    struct copy copy;
    struct pool *pool;
    void *from;
    void *to;
    double best = 1e9;

    check_require(pool_create(2, &pool, NULL), "threads");
    check_require(memory_map(COPY_BYTES, "copy", &from, NULL), "copy");
    check_require(memory_map(COPY_BYTES, "copy", &to, NULL), "copy");
    copy = (struct copy){from, to};
    for (int i = 0; i < 10; i++) {
        double t = check_now();

        pool_run(pool, copy_piece, &copy);
        t = check_now() - t;
        best = t < best ? t : best;
    }
    memory_unmap(from, COPY_BYTES);
    memory_unmap(to, COPY_BYTES);
    pool_destroy(pool);
    return 2.0 * COPY_BYTES / best;
}

static void open_side(struct check *c, int side, const char *name, int n_threads, uint32_t mask)
{
    const struct backend_ops *ops;
    struct error e = {0};
    struct backend_config config = {
        .n_threads = n_threads, .cpu_mask = mask, .prefill = c->prefill};

    if (backend_find(name, &ops, &e) < 0 || ops->create(&config, &c->sides[side], &e) < 0) {
        printf("SKIP: %s\n", e.text);
        exit(77);
    }
    if (ops->reserve(c->sides[side], &check_limits, &e) < 0) {
        printf("FAIL: %s\n", e.text);
        exit(1);
    }
}

static void run(struct check *c, const char *backend, const char *name, uint32_t mask)
{
    char variant[64];
    char text[1024];
    int failed = c->n_failed;
    int passed = c->n_passed;

    (void)snprintf(variant, sizeof(variant), "%s %s", backend, name);
    c->variant = variant;
    c->first = c->n_passed + c->n_failed == 0;
    c->n_cases = 0;
    open_side(c, 0, "ref", 2, UINT32_MAX);
    open_side(c, 1, backend, c->n_threads, mask);
    open_side(c, 2, backend, 1, mask);
    open_side(c, 3, backend, 3, mask);
    if (c->bench) {
        c->sides[1]->ops->describe(c->sides[1], text, sizeof(text));
        printf("%s\n", text);
    }
    check_op(c);
    check_clear(c);
    for (int s = 0; s < CHECK_SIDES; s++) {
        c->sides[s]->ops->destroy(c->sides[s]);
    }
    printf("%s: %d passed, %d failed\n", variant, c->n_passed - passed, c->n_failed - failed);
}

static const char *option(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return i + 1 < argc ? argv[i + 1] : "";
        }
    }
    return NULL;
}

/* "own" or "cublas": what multiplies prompts on a GPU. */
static enum backend_prefill prefill_of(const char *s)
{
    return !s                         ? BACKEND_PREFILL_AUTO
           : strcmp(s, "cublas") == 0 ? BACKEND_PREFILL_CUBLAS
                                      : BACKEND_PREFILL_OWN;
}

int main(int argc, char **argv)
{
    static struct check c;
    const char *backend = option(argc, argv, "--backend");
    const char *only = option(argc, argv, "--mask");
    const char *threads = option(argc, argv, "--threads");
    const char *sides = option(argc, argv, "--sides");
    const char *every = option(argc, argv, "--every");
    uint32_t done[sizeof(variants) / sizeof(variants[0])];
    int n_done = 0;

    c.bench = option(argc, argv, "--bench") != NULL;
    c.filter = option(argc, argv, "--filter");
    c.cpu_time = option(argc, argv, "--cpu-time") != NULL;
    c.few = option(argc, argv, "--few") != NULL;
    c.prefill = prefill_of(option(argc, argv, "--prefill"));
    c.n_threads = atoi(threads ? threads : "2");
    c.n_sides = sides ? atoi(sides) : CHECK_SIDES;
    if (c.n_sides < 2 || c.n_sides > CHECK_SIDES) {
        (void)fprintf(stderr, "--sides: 2 (the reference and what is checked) to %d\n",
                      CHECK_SIDES);
        return 2;
    }
    c.every = every ? atoi(every) : 0;
    if (c.every > 0) {
        c.phase = turn_begin(c.every);
        printf("one case of %d: PIPIT_PHASE=%d\n", c.every, c.phase);
    }
    backend = backend ? backend : "cpu";
    if (c.bench) {
        c.copy_rate = copy_rate();
        c.flush = calloc(1, CHECK_FLUSH);
        printf("copy: %.1f GB/s\n", c.copy_rate / 1e9);
    }
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        uint32_t flags = variants[i].mask & cpu_flags() & check_flags;
        bool known = false;

        for (int j = 0; j < n_done; j++) {
            known = known || done[j] == flags;
        }
        if (strcmp(backend, "cpu") != 0) {
            run(&c, backend, "", UINT32_MAX);
            break;
        }
        if (only ? strcmp(only, variants[i].name) == 0 : !known) {
            run(&c, backend, variants[i].name, variants[i].mask);
            done[n_done++] = flags;
        }
    }
    free(c.flush);
    printf("%d passed, %d failed\n", c.n_passed, c.n_failed);
    if (c.n_passed + c.n_failed == 0) {
        printf("SKIP: %s \"%s\"\n",
               c.every > 0 ? "the cases whose turn it is compare nothing on"
                           : "none of this is offered by",
               backend);
        return 77;
    }
    return c.n_failed > 0;
}
