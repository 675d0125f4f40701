/* SPDX-License-Identifier: Apache-2.0 */
/* Each primitive of prim.cuh that has PTX, by the emulator's stand-in and by its PTX, interpreted:
 * the same bits. Inputs are all codes where there are few enough, edges and random words elsewhere.
 *
 * Compared are bits, but: any NaN of 32 bits equals another, and of 16 bits the GPU's 0x7fff does;
 * a sum of 16-bit products whose order matters may differ by SLACK; 2^x by two units of the last
 * place, and may be 0 below 2^-126; codes 0x7f and 0xff of e4m3, which nothing writes, are a NaN by
 * the instruction and 480 by the stand-in.
 *
 * Then statements with one fault each: an operand lost or another's, a modifier lost, a number
 * changed, and by hand other roundings, types and orders, and bits of operands flipped. The cases
 * that execute the statement must find every one: the result differs, or the interpreter refuses
 * it. A statement that no case executes is a failure, too. */

#include "tests/cuda/ptx/cases.cuh"
#include "tests/cuda/ptx/ptx.cuh"

#include "tests/cuda/emu/emu_impl.cuh"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

static const float SLACK = 1e-4f; /* of sums of 17 numbers up to 4 */

typedef void lane_fn(const struct ptx_lane *l);
/* Fills a lane's words for round `round`. */
typedef void fill_fn(uint32_t *in, unsigned lane, unsigned round);
typedef bool same_fn(uint32_t emu, uint32_t ptx);

static uint64_t random_state;
static uint8_t shared_now[PTX_SHARED], global_now[PTX_GLOBAL] __attribute__((aligned(16)));

static uint32_t any32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return bits;
}

/* ---- comparisons ---------------------------------------------------------------------------- */

static bool same_bits(uint32_t a, uint32_t b)
{
    return a == b;
}

/* Two f16 or bf16, as the case may be: the GPU's NaN is another's, too. */
static bool same_halves(uint32_t a, uint32_t b)
{
    for (int i = 0; i < 32; i += 16) {
        uint32_t x = a >> i & 0xffff;
        uint32_t y = b >> i & 0xffff;

        if (x != y && (y != 0x7fff || (x & 0x7fff) <= 0x7c00)) {
            return false;
        }
    }
    return true;
}

static bool same_float(uint32_t a, uint32_t b)
{
    return a == b || (std::isnan(float_of(a)) && std::isnan(float_of(b)));
}

static bool same_sum(uint32_t a, uint32_t b)
{
    return same_float(a, b) || fabsf(float_of(a) - float_of(b)) <= SLACK;
}

static bool same_exp2(uint32_t a, uint32_t b)
{
    return same_float(a, b) || (a < 0x00800000 && b == 0) || (a - b + 2) <= 4;
}

static bool same_e4m3(uint32_t a, uint32_t b)
{
    return same_float(a, b) || (fabsf(float_of(a)) == 480.0f / 256 && std::isnan(float_of(b)));
}

/* ---- inputs --------------------------------------------------------------------------------- */

static void fill_words(uint32_t *in, unsigned, unsigned)
{
    for (int i = 0; i < PTX_IN; i++) {
        in[i] = any32();
    }
}

/* f32 on both sides of where rounding to 16 bits changes: of each f16 and each bf16 the number, the
 * middle of it and the next, and their neighbours; then any words. */
static void fill_rounding(uint32_t *in, unsigned lane, unsigned round)
{
    static const int near[] = {0, -1, 1};
    uint16_t code = (uint16_t)(round * 32 + lane);
    unsigned kind = round * 32 / 65536 % 12;
    float next = (float)ptx_half_value((uint16_t)(code + 1), false);
    float x = (float)ptx_half_value(code, false);
    uint32_t bits = kind < 3   ? bits_of(x)
                    : kind < 6 ? bits_of(std::isfinite(x) && std::isfinite(next) ? (x + next) / 2
                                         : x < 0                                 ? -65520.0f
                                                                                 : 65520.0f)
                    : kind < 9 ? (uint32_t)code << 16
                               : (uint32_t)code << 16 | 0x8000;

    in[0] = round < 12 * 2048 ? bits + (uint32_t)near[kind % 3] : any32();
    in[1] = in[0] ^ any32() % 65536;
}

static void fill_codes(uint32_t *in, unsigned lane, unsigned round)
{
    in[0] = (round * 32 + lane) % 65536;
}

/* Bytes: each code in each place, then any. */
static void fill_bytes(uint32_t *in, unsigned lane, unsigned round)
{
    in[0] = any32();
    if (round < 32) {
        unsigned place = round / 8 * 8;

        in[0] = (in[0] & ~(0xffu << place)) | (round % 8 * 32 + lane) << place;
    }
}

static void fill_exponents(uint32_t *in, unsigned, unsigned round)
{
    static const float edges[] = {0.0f,    -0.0f,   1e-40f,  -1e-40f, INFINITY, -INFINITY,
                                  127.9f,  128.0f,  -125.9f, -126.0f, -126.1f,  -149.0f,
                                  -150.0f, -151.0f, 1e30f,   -1e30f,  0x1p-30f, -0x1p-126f};
    float x = (float)((int32_t)any32() % 40000) * 0.004f;

    in[0] = round < 4         ? bits_of(edges[any32() % (sizeof(edges) / sizeof(*edges))])
            : round % 16 == 0 ? any32()
            : round % 4 == 0  ? bits_of(floorf(x))
                              : bits_of(x);
}

/* Pairs of f16: each code, with a scale that is an edge or any. */
static void fill_scaled(uint32_t *in, unsigned lane, unsigned round)
{
    static const uint16_t edges[] = {0,      0x8000, 1,      0x3ff,  0x400,
                                     0x3c00, 0x7bff, 0x7c00, 0x7e01, 0xbc00};

    in[0] = ((round * 32 + lane) & 0xffff) | any32() << 16;
    in[1] = round % 4 == 0 ? any32() : edges[any32() % 10] | (uint32_t)edges[any32() % 10] << 16;
}

static void fill_selectors(uint32_t *in, unsigned lane, unsigned round)
{
    in[0] = any32();
    in[1] = any32();
    in[2] = round < 2048 ? round * 32 + lane : any32();
}

/* A 16-bit number: in turn small whole ones, any between -2 and 2, edges, subnormal ones. */
static uint16_t any_half(unsigned round, bool bf16)
{
    static const double edges[] = {0.0, -0.0, 1.0,      -1.0,      0.5, -2.0, 1.0, 1.0,
                                   1.5, -1.5, INFINITY, -INFINITY, NAN, -0.5, 0.0, 0.0};
    uint32_t r = any32();

    switch (round % 4) {
    case 0:
        return ptx_half_of((double)(int)(r % 257) - 128, bf16, false);
    case 1:
        return ptx_half_of((double)(int32_t)r * 0x1p-30, bf16, false);
    case 2: /* few of those that make all sums a NaN */
        return ptx_half_of(edges[r % 256 < 4 ? 10 + r % 3 : r % 10], bf16, false);
    default:
        return (uint16_t)(bf16 ? (r & 0x807f) : (r & 0x83ff));
    }
}

static uint32_t any_halves(unsigned round, bool bf16)
{
    uint32_t lo = any_half(round, bf16);

    return lo | (uint32_t)any_half(round, bf16) << 16;
}

/* Sums to begin with, of such products. */
static uint32_t any_sum(unsigned round, bool bf16)
{
    return round % 4 == 3 ? 0 : bits_of((float)ptx_half_value(any_half(round, bf16), bf16));
}

template <bool BF16> static void fill_mma(uint32_t *in, unsigned, unsigned round)
{
    for (int i = 0; i < 10; i++) {
        in[i] = i < 4 ? any_sum(round, BF16) : any_halves(round, BF16);
    }
    if (round % 4 == 3) { /* exact: one factor is a power of two */
        in[8] = in[9] = BF16 ? 0x3f804000 : 0x3c004000;
    }
}

static void fill_bytes_mma(uint32_t *in, unsigned, unsigned round)
{
    for (int i = 0; i < 10; i++) {
        in[i] = any32();
    }
    for (int i = 4; i < 10 && round % 4 == 1; i++) {
        in[i] = any32() % 2 ? 0x80808080 : 0x7f7f7f7f;
    }
    for (int i = 0; i < 4 && round % 2 == 1; i++) { /* where sums go round */
        in[i] = (any32() % 2 ? 0x80000000 : 0x7fffffff) + any32() % 5 - 2;
    }
}

/* Sums, and the whole of shared memory, by the first lane; all lanes have the first two words. */
template <bool BF16> static void fill_group(uint32_t *in, unsigned lane, unsigned round)
{
    static uint32_t part, add;

    if (lane == 0) {
        part = any32();
        add = any32() % 2;
        for (int i = 0; i < PTX_SHARED; i += 4) {
            uint32_t pair = any_halves(round, BF16);

            memcpy(shared_now + i, &pair, 4);
        }
    }
    for (int i = 0; i < PTX_IN; i++) {
        in[i] = i < 66 ? any_sum(round, BF16) : any_halves(round, BF16);
    }
    in[0] = part;
    in[1] = add;
    for (int i = 66; i < 70 && round % 4 == 3; i++) {
        in[i] = BF16 ? 0x3f804000 : 0x3c004000;
    }
}

static void fill_memory(uint32_t *in, unsigned lane, unsigned round)
{
    if (lane == 0) {
        for (int i = 0; i < PTX_SHARED; i++) {
            shared_now[i] = (uint8_t)any32();
        }
        for (int i = 0; i < PTX_GLOBAL; i++) {
            global_now[i] = (uint8_t)any32();
        }
    }
    fill_words(in, lane, round);
}

/* The same for ldmatrix: rows lie anywhere, but eight lanes' in a bank each (emu.cuh). */
static void fill_rows(uint32_t *in, unsigned lane, unsigned round)
{
    fill_memory(in, lane, round);
    in[0] = (in[0] & ~7u) | (lane * 3 + round) % 8;
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* name, comparison, threads, rounds, inputs */
#define CASES(X)                                                                                   \
    X(halves_of_f32, same_halves, 32, 25000, fill_rounding)                                        \
    X(f32_of_half, same_float, 32, 2048, fill_codes)                                               \
    X(exp2_about, same_exp2, 32, 4000, fill_exponents)                                             \
    X(half4_of_s8, same_bits, 32, 500, fill_bytes)                                                 \
    X(half4_of_e4m3, same_e4m3, 32, 500, fill_bytes)                                               \
    X(half2_times, same_halves, 32, 8192, fill_scaled)                                             \
    X(byte_perm_signed, same_bits, 32, 3000, fill_selectors)                                       \
    X(thread_anew, same_bits, 64, 1, fill_words)                                                   \
    X(grid, same_bits, 64, 4, fill_words)                                                          \
    X(mma_f16, same_sum, 32, 400, fill_mma<false>)                                                 \
    X(mma_bf16, same_sum, 32, 400, fill_mma<true>)                                                 \
    X(mma_s8_k32, same_bits, 32, 400, fill_bytes_mma)                                              \
    X(mma_s8_k16, same_bits, 32, 400, fill_bytes_mma)                                              \
    X(matrix_load4, same_bits, 32, 100, fill_rows)                                                 \
    X(matrix_turn, same_bits, 32, 100, fill_words)                                                 \
    X(group_mma_f16, same_sum, 128, 16, fill_group<false>)                                         \
    X(group_mma_bf16, same_sum, 128, 16, fill_group<true>)                                         \
    X(group_values_f16_64, same_sum, 128, 16, fill_group<false>)                                   \
    X(group_values_f16_128, same_sum, 128, 16, fill_group<false>)                                  \
    X(group_values_bf16_64, same_sum, 128, 16, fill_group<true>)                                   \
    X(group_values_bf16_128, same_sum, 128, 16, fill_group<true>)                                  \
    X(async, same_bits, 128, 100, fill_memory)

#define DECLARE(name, same, threads, rounds, fill) extern "C" lane_fn emu_##name, ptx_##name;
CASES(DECLARE)

static const struct test_case {
    const char *name;
    lane_fn *emu, *ptx;
    same_fn *same;
    unsigned threads, rounds;
    fill_fn *fill;
} cases[] = {
#define ROW(name, same, threads, rounds, fill)                                                     \
    {#name, emu_##name, ptx_##name, same, threads, rounds, fill},
    CASES(ROW)};

static struct ptx_lane lanes[128];
static uint32_t outs[2][128][PTX_OUT];
static lane_fn *runs;

static void run_lane(void *)
{
    runs(&lanes[emu_index]);
}

/* All lanes of a block, by one side. */
static void run_block(const struct test_case *c, lane_fn *fn, uint32_t out[128][PTX_OUT])
{
    uint8_t *shared = (uint8_t *)(((uintptr_t)emu_shared() + 1023) & ~(uintptr_t)1023);

    memset(out, 0, sizeof(outs[0]));
    for (unsigned i = 0; i < c->threads; i++) {
        lanes[i].out = out[i];
        lanes[i].shared = shared;
        lanes[i].global = global_now;
    }
    memcpy(shared, shared_now, PTX_SHARED);
    runs = fn;
    emu_kernel = {c->name, run_lane, NULL, (int)c->threads, false};
    emu_where.block_dim = dim3(c->threads);
    ptx_begin(global_now, sizeof(global_now));
    emu_begin_block(0);
    while (emu_run_threads(0, 0)) {
    }
}

/* What differs first, or "". */
static std::string run_case(const struct test_case *c)
{
    char said[256];

    random_state = 1;
    for (unsigned round = 0; round < c->rounds; round++) {
        for (unsigned i = 0; i < c->threads; i++) {
            c->fill(lanes[i].in, i, round);
        }
        run_block(c, c->emu, outs[0]);
        run_block(c, c->ptx, outs[1]);
        if (ptx_failure()) {
            return std::string(c->name) + ": " + ptx_failure();
        }
        for (unsigned i = 0; i < c->threads; i++) {
            for (int j = 0; j < PTX_OUT; j++) {
                if (!c->same(outs[0][i][j], outs[1][i][j])) {
                    snprintf(said, sizeof(said),
                             "%s: round %u lane %u word %d: stand-in %08x, PTX %08x (in: %08x %08x "
                             "%08x)",
                             c->name, round, i, j, outs[0][i][j], outs[1][i][j], lanes[i].in[0],
                             lanes[i].in[1], lanes[i].in[2]);
                    return said;
                }
            }
        }
    }
    return "";
}

/* ---- faults --------------------------------------------------------------------------------- */

static std::vector<std::set<const struct test_case *>> used_by; /* by statement */
static int n_faults, n_missed, n_by_value;

static void expect_found(struct ptx_fault f, const std::string &what)
{
    bool found = false;

    ptx_set_fault(&f);
    for (const struct test_case *c : used_by[f.site]) {
        found = found || !run_case(c).empty();
    }
    ptx_set_fault(NULL);
    n_faults++;
    n_by_value += found && !ptx_failure();
    if (!found) {
        printf("MISSED: line %d: %s in: %s\n", ptx_sites[f.site].line, what.c_str(),
               ptx_sites[f.site].text);
        n_missed++;
    }
}

static void replace(int site, size_t at, size_t n, const char *to)
{
    std::string from = std::string(ptx_sites[site].text).substr(at, n);

    expect_found({site, at, n, to, 0, 0}, "'" + from + "' as '" + to + "'");
}

/* Each modifier is lost, each number changed, each operand lost or replaced by the next. */
static void faults_of_text(int site)
{
    std::string text = ptx_sites[site].text;

    for (size_t i = 0; i < text.size(); i++) {
        size_t n = 1;
        bool word = isalpha((unsigned char)text[i]) || text[i] == '%' || text[i] == '.';

        while (i + n < text.size() && (isalnum((unsigned char)text[i + n]) || text[i + n] == '_')) {
            n++;
        }
        if (text[i] == '.') {
            replace(site, i, n, "");
        } else if (text[i] == '%') {
            unsigned operand = (unsigned)atoi(text.c_str() + i + 1);
            std::string next = "%" + std::to_string(operand + 1);

            if (operand < 4 || operand > 60) { /* of 64 sums a few */
                replace(site, i, n, next.c_str());
                replace(site, i, n, "");
            }
        } else if (isdigit((unsigned char)text[i])) {
            replace(site, i, n, text[i] == '0' ? "1" : "0");
        }
        i += word || isdigit((unsigned char)text[i]) ? n - 1 : 0;
    }
}

static const struct by_hand {
    const char *in, *from, *to;
} by_hand[] = {
    {"cvt.rn.bf16x2.f32", ".rn", ".rz"},
    {"cvt.rn.f16x2.f32", ".rn", ".rz"},
    {"cvt.rn.bf16x2.f32", "bf16x2", "f16x2"},
    {"cvt.rn.f16x2.f32", "f16x2", "bf16x2"},
    {"cvt.rn.bf16x2.f32", "%1, %2", "%2, %1"},
    {"prmt.b32", "%1, %2", "%2, %1"},
    {"prmt.b32", "%2, %3", "%3, %2"},
    {"e4m3x2", "%0, a", "%0, b"},
    {"e4m3x2", "{a, b}, %2", "{b, a}, %2"},
    {"f32.bf16.bf16.f32", "bf16.bf16", "f16.f16"},
    {"f32.f16.f16.f32", "f16.f16", "bf16.bf16"},
    {"f32.f16.f16.f32", "{%4,%5,%6,%7}", "{%4,%6,%5,%7}"},
    {"f32.f16.f16.f32", "{%8,%9}", "{%9,%8}"},
    {"f32.f16.f16.f32", ",{%0,%1,%2,%3};", ",{%0,%1,%3,%2};"},
    {"m16n8k32", "s32.s8.s8", "s32.u8.s8"},
    {"m16n8k32", "s32.s8.s8", "s32.s8.u8"},
    {"m16n8k32", ".s32.s8", ".satfinite.s32.s8"},
    {"m16n8k32", "{%4,%5,%6,%7}", "{%4,%6,%5,%7}"},
    {"m16n8k32", "{%8,%9}", "{%9,%8}"},
    {"k16.row.col.s32", ".s32.s8", ".satfinite.s32.s8"},
    {"k16.row.col.s32", "{%4,%5}", "{%5,%4}"},
    {"ldmatrix", "{%0,%1,%2,%3}", "{%0,%2,%1,%3}"},
    {".x4.trans", ".trans", ""},
    {"x4.shared", "x4.", "x4.trans."},
    {"cp.async.cg", "[%0], [%1]", "[%1], [%0]"},
    {"cp.async.ca", ", 4", ", 8"},
    {"cp.async.wait_group", "%0", "3"},
    {"cp.async.commit_group", "cp.async.commit_group;", ""},
    {"wgmma.commit_group", "wgmma.commit_group.sync.aligned;", ""},
    {"wgmma.fence", "wgmma.fence.sync.aligned;", ""},
    {"fence.proxy", "fence.proxy.async.shared::cta;", ""},
    {"wgmma.wait_group", "%0", "2"},
    {"setp.ne", ".ne", ".eq"},
    {"%64, %65, p, 1, 1, 0, 0", "%64, %65", "%65, %64"},
    {"%64, %65, p, 1, 1, 0, 0", "1, 1, 0, 0", "1, -1, 0, 0"},
    {"%64, %65, p, 1, 1, 0, 0", "1, 1, 0, 0", "1, 1, 1, 0"},
    {"%64, %65, p, 1, 1, 0, 0", "1, 1, 0, 0", "1, 1, 0, 1"},
    {"n64k16.f32.bf16", "1, 1, 1, 1", "1, 1, 1, 0"},
};

/* What group_matrix() and the callers make of operands: inputs with a bit of theirs flipped. */
static const struct flipped {
    const char *in;
    size_t operand;
    int bit;
} flipped[] = {
    {"prmt.b32", 3, 3},         {"cp.async.wait_group", 0, 0},
    {"wgmma.wait_group", 0, 0}, {"%64, %65, p", 64, 1}, /* the address: 32 bytes */
    {"%64, %65, p", 64, 38},                            /* 8 rows are 1,024 bytes */
    {"%64, %65, p", 64, 62},                            /* how pieces are swapped */
    {"%64, %65, p", 65, 9},     {"%64, %65, p", 65, 38},
    {"%64, %65, p", 65, 63},    {"%64, %65, p", 66, 0}, /* added to what is there, or not */
    {"n64k16", 36, 7},          {"n64k16", 36, 38},
    {"%67}, %68", 68, 7},       {"%67}, %68", 68, 26}, /* 64 columns are a panel of 16 KiB */
    {"%67}, %68", 68, 38},
};

static void faults_by_hand(void)
{
    for (const struct flipped &h : flipped) {
        int n = 0;

        for (int i = 0; i < ptx_n_sites; i++) {
            if (strstr(ptx_sites[i].text, h.in)) {
                expect_found({i, 0, 0, NULL, h.operand, 1ull << h.bit},
                             "operand " + std::to_string(h.operand) + " bit " +
                                 std::to_string(h.bit));
                n++;
            }
        }
        if (n == 0) {
            printf("FAILED: no statement has '%s'\n", h.in);
            n_missed++;
        }
    }
    for (const struct by_hand &h : by_hand) {
        int n = 0;

        for (int i = 0; i < ptx_n_sites; i++) {
            const char *at = strstr(ptx_sites[i].text, h.from);

            if (strstr(ptx_sites[i].text, h.in) && at) {
                replace(i, (size_t)(at - ptx_sites[i].text), strlen(h.from), h.to);
                n++;
            }
        }
        if (n == 0) {
            printf("FAILED: no statement has '%s' in '%s'\n", h.from, h.in);
            n_missed++;
        }
    }
}

int main(void)
{
    int failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    used_by.resize((size_t)ptx_n_sites);
    for (const struct test_case &c : cases) {
        std::vector<uint64_t> before;
        std::string said;

        for (int i = 0; i < ptx_n_sites; i++) {
            before.push_back(ptx_count(i));
        }
        said = run_case(&c);
        for (int i = 0; i < ptx_n_sites; i++) {
            if (ptx_count(i) > before[(size_t)i]) {
                used_by[(size_t)i].insert(&c);
            }
        }
        if (!said.empty()) {
            printf("FAILED: %s\n", said.c_str());
            failed++;
        }
    }
    for (int i = 0; i < ptx_n_sites; i++) {
        if (used_by[(size_t)i].empty()) {
            printf("FAILED: prim.cuh:%d: no case executes: %s\n", ptx_sites[i].line,
                   ptx_sites[i].text);
            failed++;
        }
    }
    if (failed) {
        return 1;
    }
    for (int i = 0; i < ptx_n_sites; i++) {
        faults_of_text(i);
    }
    faults_by_hand();
    printf("%d statements, %zu cases; %d of %d faults found, %d by what they compute\n",
           ptx_n_sites, sizeof(cases) / sizeof(*cases), n_faults - n_missed, n_faults, n_by_value);
    return n_missed > 0;
}
