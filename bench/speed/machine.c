/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine could do: reading alone, multiplying alone.
 *
 * Reading: each thread sums its share of the working set in four streams, again and again, so that
 * a set that fits a cache is read from there, as a step that uses no more would find it. And in
 * pieces, one of every four: what reading the chosen dims of K (SparQ's ranking) comes to.
 * Multiplying: independent chains on registers or tiles; and of tiles that are each loaded first,
 * 18 long as kernels/cpu/matmul_tiles.c takes them: 72 KiB, from L1 and L2. A core whose other
 * thread works for somebody else keeps its rate in the first and loses up to three quarters of it
 * in the second. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/pool.h"
#include "bench/speed/bench.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#else
#define X86 0
#endif

enum {
    READ_PASSES = 5,
    PEAK_ROUNDS = 5,
    PEAK_LOOPS = 20000,
    LINE = 64,
    PIECES_BYTES = 256 << 20, /* more than caches hold */
    PIECES_OF = 4,
    FED_STEPS = 18,
    TILE = 1024
};

struct machine {
    struct pool *pool;
    uint8_t *data;
    uint64_t max_bytes;
    uint64_t bytes; /* of the pass that runs */
    uint64_t (*read)(const uint8_t *p, size_t n);
    _Atomic uint64_t sink;
};

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t read_c(const uint8_t *p, size_t n)
{
    uint64_t sum[8] = {0};
    size_t quarter = n / 4 / LINE * LINE;

    for (size_t i = 0; i < quarter; i += LINE) {
        for (size_t s = 0; s < 4; s++) {
            const uint64_t *v = (const void *)(p + s * quarter + i);

            __builtin_prefetch((const uint8_t *)v + 4096, 0, 3);
            for (int k = 0; k < 8; k++) {
                sum[k] += v[k];
            }
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

#if X86
__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n)
{
    __m512i a = _mm512_setzero_si512();
    __m512i b = a;
    __m512i c = a;
    __m512i d = a;
    size_t quarter = n / 4 / LINE * LINE;

    for (size_t i = 0; i < quarter; i += LINE) {
        for (size_t s = 0; s < 4; s++) {
            _mm_prefetch((const char *)p + s * quarter + i + 4096, _MM_HINT_T0);
        }
        a = _mm512_add_epi64(a, _mm512_load_si512((const void *)(p + i)));
        b = _mm512_add_epi64(b, _mm512_load_si512((const void *)(p + quarter + i)));
        c = _mm512_add_epi64(c, _mm512_load_si512((const void *)(p + 2 * quarter + i)));
        d = _mm512_add_epi64(d, _mm512_load_si512((const void *)(p + 3 * quarter + i)));
    }
    a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
    return (uint64_t)_mm512_reduce_add_epi64(a);
}
#endif

static void read_piece(void *arg, int tid, int n_threads)
{
    struct machine *m = arg;
    size_t piece = (size_t)m->bytes / (size_t)n_threads / LINE * LINE;

    m->sink += m->read(m->data + (size_t)tid * piece, piece);
}

double machine_read(struct machine *m, uint64_t bytes)
{
    int64_t best = INT64_MAX;

    m->bytes = bytes < m->max_bytes ? bytes : m->max_bytes;
    pool_run(m->pool, read_piece, m); /* warms up */
    for (int i = 0; i < READ_PASSES; i++) {
        int64_t t = clock_ns();

        pool_run(m->pool, read_piece, m);
        t = clock_ns() - t;
        best = t < best ? t : best;
    }
    return 1e9 * (double)m->bytes / (double)best;
}

/* ---- in pieces ---- */

struct pieces {
    struct machine *m;
    const uint8_t *data;
    size_t bytes; /* of one */
    size_t ahead; /* so many are asked for before they are read */
    uint32_t pass;
};

/* One of the PIECES_OF that begin at piece PIECES_OF i; another in each pass. */
static const uint8_t *piece_at(const struct pieces *p, size_t i)
{
    uint32_t scattered = (uint32_t)i * 2654435761U >> 30;

    return p->data + (PIECES_OF * i + (scattered + p->pass) % PIECES_OF) * p->bytes;
}

static void read_pieces(void *arg, int tid, int n_threads)
{
    const struct pieces *p = arg;
    size_t n = PIECES_BYTES / PIECES_OF / p->bytes;
    size_t end = n * ((size_t)tid + 1) / (size_t)n_threads;
    uint64_t sum[8] = {0};

    for (size_t i = n * (size_t)tid / (size_t)n_threads; i < end; i++) {
        const uint8_t *ahead = piece_at(p, i + p->ahead < n ? i + p->ahead : i);
        const uint64_t *v = (const void *)piece_at(p, i);

        for (size_t k = 0; k < p->bytes; k += LINE) {
            __builtin_prefetch(ahead + k, 0, 3);
            for (size_t j = 0; j < 8; j++) {
                sum[j] += v[k / 8 + j];
            }
        }
    }
    for (int j = 0; j < 8; j++) {
        p->m->sink += sum[j];
    }
}

int machine_read_pieces(struct machine *m, uint32_t bytes, double *ret_rate, struct error *reterr)
{
    struct pieces p = {.m = m, .bytes = bytes};
    void *data = NULL;
    int64_t best = INT64_MAX;
    int r = memory_map(PIECES_BYTES, "pieces to read", &data, reterr);

    if (r) {
        return r;
    }
    memset(data, 1, PIECES_BYTES);
    p.data = data;
    for (size_t ahead = 1 << 10; ahead <= 1 << 16; ahead *= 2) {
        p.ahead = ahead > bytes ? ahead / bytes : 1;
        for (p.pass = 0; p.pass < PIECES_OF; p.pass++) {
            int64_t t = clock_ns();

            pool_run(m->pool, read_pieces, &p);
            t = clock_ns() - t;
            best = t < best ? t : best;
        }
    }
    memory_unmap(data, PIECES_BYTES);
    *ret_rate = 1e9 * (PIECES_BYTES / PIECES_OF) / (double)best;
    return 0;
}

/* ---- multiplying ----------------------------------------------------------------------------- */

struct peak {
    pool_fn *fn;
    const char *unit;
    double ops; /* of one run of fn on one thread */
};

#if X86
struct tile_config {
    uint8_t palette;
    uint8_t start;
    uint8_t reserved[14];
    uint16_t cols[16];
    uint8_t rows[16];
};

__attribute__((target("amx-tile"))) static void tiles_on(void)
{
    struct tile_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        c.cols[i] = 64;
        c.rows[i] = 16;
    }
    /* gcc's intrinsic says that it reads one word only. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

__attribute__((target("amx-tile,amx-int8"))) static void amx_int8(void *arg, int tid, int n_threads)
{
    tiles_on();
    for (int i = 0; i < PEAK_LOOPS; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

__attribute__((target("amx-tile,amx-bf16"))) static void amx_bf16(void *arg, int tid, int n_threads)
{
    tiles_on();
    for (int i = 0; i < PEAK_LOOPS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

/* Two rows of tiles by two, FED_STEPS long: a tile load for each product. */
__attribute__((target("amx-tile,amx-bf16"))) static void amx_bf16_fed(void *arg, int tid,
                                                                      int n_threads)
{
    _Alignas(64) static const uint8_t a[2 * FED_STEPS * TILE];
    _Alignas(64) static const uint8_t b[2 * FED_STEPS * TILE];

    tiles_on();
    for (int i = 0; i < PEAK_LOOPS / FED_STEPS; i++) {
        const uint8_t *at = a;
        const uint8_t *bt = b;

        for (int k = 0; k < FED_STEPS; k++, at += TILE, bt += 2 * TILE) {
            _tile_loadd(4, at, 64);
            _tile_loadd(6, bt, 64);
            _tile_loadd(7, bt + TILE, 64);
            _tile_loadd(5, at + FED_STEPS * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_release();
}

__attribute__((target("avx512f,avx512vnni"))) static void vnni(void *arg, int tid, int n_threads)
{
    struct machine *m = arg;
    __m512i a[12];
    __m512i x = _mm512_set1_epi8((char)(tid + 1));

    for (int k = 0; k < 12; k++) {
        a[k] = _mm512_set1_epi32(k);
    }
    for (int i = 0; i < PEAK_LOOPS; i++) {
        for (int k = 0; k < 12; k++) {
            a[k] = _mm512_dpbusd_epi32(a[k], x, x);
            __asm__ volatile("" : "+v"(a[k])); /* every one of them */
        }
    }
    for (int k = 1; k < 12; k++) {
        a[0] = _mm512_add_epi32(a[0], a[k]);
    }
    m->sink += (uint64_t)_mm512_reduce_add_epi32(a[0]);
}

__attribute__((target("avx512f"))) static void fma512(void *arg, int tid, int n_threads)
{
    struct machine *m = arg;
    __m512 a[12];
    __m512 x = _mm512_set1_ps(1e-9f * (float)(tid + 1));

    for (int k = 0; k < 12; k++) {
        a[k] = _mm512_set1_ps((float)k);
    }
    for (int i = 0; i < PEAK_LOOPS; i++) {
        for (int k = 0; k < 12; k++) {
            a[k] = _mm512_fmadd_ps(x, x, a[k]);
            __asm__ volatile("" : "+v"(a[k]));
        }
    }
    for (int k = 1; k < 12; k++) {
        a[0] = _mm512_add_ps(a[0], a[k]);
    }
    m->sink += (uint64_t)_mm512_reduce_add_ps(a[0]);
}
#endif

/* A tile product is 16 x 16 sums of 64 int8 or 32 bf16 products. */
static bool find_peak(bool int8, struct peak *ret)
{
    uint32_t flags = cpu_flags();

    *ret = (struct peak){.unit = "not measured on this CPU"};
#if X86
    const double loops = PEAK_LOOPS;

    if (flags & CPU_AVX512) {
        *ret = (struct peak){fma512, "AVX-512 f32 FMA", loops * 12 * 16 * 2};
    }
    if (int8 && (flags & CPU_AVX512_VNNI)) {
        *ret = (struct peak){vnni, "AVX-512 VNNI", loops * 12 * 64 * 2};
    }
    if (int8 && (flags & CPU_AMX_INT8)) {
        *ret = (struct peak){amx_int8, "AMX int8", loops * 4 * 16 * 16 * 64 * 2};
    }
    if (!int8 && (flags & CPU_AMX_BF16)) {
        *ret = (struct peak){amx_bf16, "AMX bf16", loops * 4 * 16 * 16 * 32 * 2};
    }
#else
    (void)flags;
    (void)int8;
#endif
    return ret->fn != NULL;
}

static double best_of(struct machine *m, const struct peak *p)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < PEAK_ROUNDS && p->fn; i++) {
        int64_t t = clock_ns();

        pool_run(m->pool, p->fn, m);
        t = clock_ns() - t;
        best = t < best ? t : best;
    }
    return p->fn ? 1e9 * p->ops * pool_n_threads(m->pool) / (double)best : 0.0;
}

static double peak(struct machine *m, bool int8, const char **ret_unit)
{
    struct peak p;

    (void)find_peak(int8, &p);
    *ret_unit = p.unit;
    return best_of(m, &p);
}

double machine_peak_int8(struct machine *m, const char **ret_unit)
{
    return peak(m, true, ret_unit);
}

double machine_peak_bf16(struct machine *m, const char **ret_unit)
{
    return peak(m, false, ret_unit);
}

double machine_fed_bf16(struct machine *m)
{
    struct peak p = {0};

#if X86
    if (cpu_flags() & CPU_AMX_BF16) {
        p.fn = amx_bf16_fed;
        p.ops = (double)(PEAK_LOOPS / FED_STEPS * FED_STEPS) * 4 * 16 * 16 * 32 * 2;
    }
#endif
    return best_of(m, &p);
}

/* ---- life ------------------------------------------------------------------------------------ */

int machine_create(int n_threads, uint64_t max_bytes, struct machine **ret, struct error *reterr)
{
    struct machine *m = calloc(1, sizeof(*m));
    void *p = NULL;
    int r;

    if (!m) {
        return error_set(reterr, -ENOMEM, "no memory");
    }
    m->max_bytes = max_bytes;
    m->read = read_c;
#if X86
    if (cpu_flags() & CPU_AVX512) {
        m->read = read_avx512;
    }
#endif
    r = pool_create(n_threads, &m->pool, reterr);
    if (!r && max_bytes > 0) {
        r = memory_map((size_t)max_bytes, "a working set to read", &p, reterr);
    }
    m->data = p;
    if (r) {
        machine_destroy(m);
        return r;
    }
    *ret = m;
    return 0;
}

void machine_destroy(struct machine *m)
{
    if (!m) {
        return;
    }
    memory_unmap(m->data, (size_t)m->max_bytes);
    pool_destroy(m->pool);
    free(m);
}
