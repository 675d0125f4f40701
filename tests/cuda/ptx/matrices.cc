/* SPDX-License-Identifier: Apache-2.0 */
/* Inline PTX, interpreted: what the lanes of a warp, or of four, do together. Each instruction
 * gathers the fragments of all lanes into whole matrices, as the document draws them, and gives
 * each lane its part of the result. */

#include "tests/cuda/ptx/interpreter.cuh"

#include <array>

typedef std::array<uint32_t, 32> word_of_lanes;

struct product {
    std::vector<float *> d;
    double a[16][16]; /* of the warp's rows, when they came in registers */
    bool a_in_registers, bf16, scale_d, trans_a, trans_b;
    double sign;
    uint64_t a_matrix, b_matrix;
    int group;
};

static struct products {
    std::vector<struct product> under_way;
    int groups;
    bool fenced, proxy; /* wgmma.fence, fence.proxy.async */
} lanes[MAX_LANES];

static word_of_lanes of_all_lanes(uint32_t word)
{
    const uint64_t *all = emu_exchange(~0u, word, "ptx", 0);
    word_of_lanes ret;

    for (int i = 0; i < 32; i++) {
        ret[i] = (uint32_t)all[i];
    }
    return ret;
}

/* Elements of `bytes` bytes, in the order of registers, of all lanes: use(lane, i, bits). */
template <typename F>
static void fragments(struct frame *f, const strings &list, size_t bytes, F use)
{
    for (size_t r = 0; r < list.size(); r++) {
        word_of_lanes words = of_all_lanes((uint32_t)ptx_get(f, list[r]));

        for (int lane = 0; lane < 32; lane++) {
            for (size_t j = 0; j < 4 / bytes; j++) {
                uint32_t bits = words[lane] >> (8 * bytes * j);

                use(lane, (int)(r * (4 / bytes) + j), bytes == 2 ? bits & 0xffff : bits & 0xff);
            }
        }
    }
}

static void half_fragment_a(struct frame *f, const strings &list, bool bf16, double a[16][16])
{
    fragments(f, list, 2, [&](int lane, int i, uint32_t bits) {
        int row = lane / 4 + (i == 2 || i == 3 || i == 6 || i == 7 ? 8 : 0);
        int col = lane % 4 * 2 + (i & 1) + (i >= 4 ? 8 : 0);

        a[row][col] = ptx_half_value((uint16_t)bits, bf16);
    });
}

static void mma_half(struct frame *f, const struct instruction *in, bool bf16)
{
    double a[16][16];
    double b[16][8];
    int lane = emu_lane();

    if (!ptx_has(in, {4, 4, 2, 4})) {
        return;
    }
    strings d = ptx_members(in->args[0]);
    strings c = ptx_members(in->args[3]);

    half_fragment_a(f, ptx_members(in->args[1]), bf16, a);
    fragments(f, ptx_members(in->args[2]), 2, [&](int l, int i, uint32_t bits) {
        b[l % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0)][l / 4] = ptx_half_value((uint16_t)bits, bf16);
    });
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + (i >= 2 ? 8 : 0);
        int col = lane % 4 * 2 + (i & 1);
        double sum = ptx_float_of((uint32_t)ptx_get(f, c[i]));

        for (int k = 0; k < 16; k++) {
            sum += a[row][k] * b[k][col];
        }
        ptx_set(f, d[i], ptx_bits_of((float)sum));
    }
}

static void mma_byte(struct frame *f, const struct instruction *in, int k_all, bool a_signed,
                     bool b_signed, bool saturate)
{
    int a[16][32];
    int b[32][8];
    int lane = emu_lane();

    if (!ptx_has(in, {4, (size_t)k_all / 8, (size_t)k_all / 16, 4})) {
        return;
    }
    strings d = ptx_members(in->args[0]);
    strings c = ptx_members(in->args[3]);

    fragments(f, ptx_members(in->args[1]), 1, [&](int l, int i, uint32_t bits) {
        int row = l / 4 + ((i >= 4 && i < 8) || i >= 12 ? 8 : 0);
        int col = l % 4 * 4 + (i & 3) + (i >= 8 ? 16 : 0);

        a[row][col] = a_signed ? (int8_t)bits : (int)bits;
    });
    fragments(f, ptx_members(in->args[2]), 1, [&](int l, int i, uint32_t bits) {
        b[l % 4 * 4 + (i & 3) + (i >= 4 ? 16 : 0)][l / 4] = b_signed ? (int8_t)bits : (int)bits;
    });
    for (int i = 0; i < 4; i++) {
        int64_t sum = (int32_t)ptx_get(f, c[i]);

        for (int k = 0; k < k_all; k++) {
            sum += (int64_t)a[lane / 4 + (i >= 2 ? 8 : 0)][k] * b[k][lane % 4 * 2 + (i & 1)];
        }
        if (saturate) {
            sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
        }
        ptx_set(f, d[i], (uint32_t)sum);
    }
}

/* What lane 4 g + t gets of an 8 x 8 matrix: elements 2 t and 2 t + 1 of row g. */
static uint32_t pair_of(const uint16_t m[8][8], bool trans)
{
    int g = emu_lane() / 4;
    int t = emu_lane() % 4 * 2;

    return trans ? m[t][g] | (uint32_t)m[t + 1][g] << 16 : m[g][t] | (uint32_t)m[g][t + 1] << 16;
}

static void ldmatrix_x4(struct frame *f, const struct instruction *in, bool trans)
{
    if (!ptx_has(in, {4, 0})) {
        return;
    }
    word_of_lanes rows = of_all_lanes((uint32_t)ptx_address(f, in->args[1]));

    for (int i = 0; i < 4; i++) {
        uint16_t m[8][8] = {};

        for (int r = 0; r < 8; r++) {
            const void *row = ptx_shared_at(rows[8 * i + r], 16, 16);

            if (row) {
                memcpy(m[r], row, 16);
            }
        }
        ptx_set(f, ptx_members(in->args[0])[i], pair_of(m, trans));
    }
}

static void movmatrix(struct frame *f, const struct instruction *in)
{
    uint16_t m[8][8];

    if (!ptx_has(in, {0, 0})) {
        return;
    }
    fragments(f, {in->args[1]}, 2, [&](int lane, int i, uint32_t bits) {
        m[lane / 4][lane % 4 * 2 + i] = (uint16_t)bits;
    });
    ptx_set(f, in->args[0], pair_of(m, true));
}

/* ---- products of four warps ----------------------------------------------------------------- */

/* Element (mn, k) of a matrix in shared memory, swizzled by 128 bytes; `trans`: MN is what lies
 * together. Three bits of the address, from 16 on, are exchanged with those from 128 on. */
static double matrix_element(uint64_t matrix, int mn, int k, bool trans, bool bf16)
{
    uint64_t start = (matrix & 0x3fff) << 4;
    uint64_t leading = (matrix >> 16 & 0x3fff) << 4;
    uint64_t stride = (matrix >> 32 & 0x3fff) << 4;
    uint64_t at;
    uint16_t bits = 0;

    if (matrix >> 62 != 1 || (matrix >> 49 & 7) != 0) {
        ptx_fail("a matrix that is not swizzled by 128 bytes from a multiple of 1,024 on");
        return 0;
    }
    at = trans ? (uint64_t)(mn % 64 * 2) + (uint64_t)(mn / 64) * leading + (uint64_t)(k % 8 * 128) +
                     (uint64_t)(k / 8) * stride
               : (uint64_t)(mn % 8 * 128) + (uint64_t)(mn / 8) * stride + (uint64_t)(k * 2);
    at += start;
    at ^= (at >> 7 & 7) << 4;
    if (const void *p = ptx_shared_at(at, 2, 2)) {
        memcpy(&bits, p, 2);
    }
    return ptx_half_value(bits, bf16);
}

static void finish_product(const struct product *p)
{
    int lane = emu_lane();
    int warp = emu_index / 32 % 4;

    for (size_t i = 0; i < p->d.size(); i++) {
        int row = lane / 4 + (int)(i / 2 % 2) * 8;
        int col = (int)(i / 4) * 8 + lane % 4 * 2 + (int)(i % 2);
        double sum = 0;

        for (int k = 0; k < 16; k++) {
            double a = p->a_in_registers
                           ? p->a[row][k]
                           : matrix_element(p->a_matrix, 16 * warp + row, k, p->trans_a, p->bf16);

            sum += p->sign * a * matrix_element(p->b_matrix, col, k, p->trans_b, p->bf16);
        }
        *p->d[i] = ptx_float_of(ptx_bits_of((float)(p->scale_d ? *p->d[i] + sum : sum)));
    }
}

/* {d}, a, b, scale-d, scale-a, scale-b[, trans-a], trans-b; a: {registers} or a matrix. */
static void wgmma(struct frame *f, const struct instruction *in, size_t n, bool bf16)
{
    struct products *l = &lanes[emu_index];
    struct product p = {};
    bool registers = in->args.size() > 1 && in->args[1][0] == '{';
    size_t last = registers ? 6 : 7;

    if (!(registers ? ptx_has(in, {n / 2, 4, 0, 0, 0, 0, 0})
                    : ptx_has(in, {n / 2, 0, 0, 0, 0, 0, 0, 0}))) {
        return;
    }
    if (!l->fenced || !l->proxy) {
        ptx_fail("%s: without wgmma.fence and fence.proxy.async before", in->name.c_str());
    }
    for (const std::string &d : ptx_members(in->args[0])) {
        struct ptx_operand *o = ptx_operand_of(f, d);

        if (!o || o->constraint[0] != '+') {
            ptx_fail("%s: a sum that is not read and written", in->name.c_str());
            return;
        }
        p.d.push_back((float *)o->at);
    }
    p.a_in_registers = registers;
    if (registers) {
        half_fragment_a(f, ptx_members(in->args[1]), bf16, p.a);
    } else {
        p.a_matrix = ptx_get(f, in->args[1]);
    }
    p.b_matrix = ptx_get(f, in->args[2]);
    p.scale_d = ptx_get(f, in->args[3]) != 0;
    for (int i = 4; i < 6; i++) {
        if (in->args[i] != "1" && in->args[i] != "-1") {
            ptx_fail("%s: a sign of %s", in->name.c_str(), in->args[i].c_str());
        }
    }
    for (size_t i = 6; i <= last; i++) {
        if (in->args[i] != "0" && in->args[i] != "1") {
            ptx_fail("%s: transposed by %s", in->name.c_str(), in->args[i].c_str());
        }
    }
    p.sign = in->args[4] == in->args[5] ? 1 : -1;
    p.trans_a = !registers && in->args[6] == "1";
    p.trans_b = in->args[last] == "1";
    p.bf16 = bf16;
    p.group = l->groups;
    l->under_way.push_back(p);
}

static void wait_products(int n_pending)
{
    struct products *l = &lanes[emu_index];
    std::vector<struct product> kept;

    for (const struct product &p : l->under_way) {
        if (p.group < l->groups - n_pending) {
            finish_product(&p);
        } else {
            kept.push_back(p);
        }
    }
    l->under_way = kept;
}

/* ---- instructions --------------------------------------------------------------------------- */

static bool product_of(struct frame *f, const struct instruction *in)
{
    const std::string &s = in->name;
    const std::string half = "mma.sync.aligned.m16n8k16.row.col.f32.";

    if (s == half + "bf16.bf16.f32" || s == half + "f16.f16.f32") {
        mma_half(f, in, s[half.size()] == 'b');
        return true;
    }
    for (int k = 16; k <= 32; k += 16) {
        std::string byte = "mma.sync.aligned.m16n8k" + std::to_string(k) + ".row.col.";

        for (int type = 0; type < 8; type++) {
            if (s == byte + (type & 4 ? "satfinite." : "") + "s32." + (type & 1 ? "u8." : "s8.") +
                         (type & 2 ? "u8." : "s8.") + "s32") {
                mma_byte(f, in, k, !(type & 1), !(type & 2), type & 4);
                return true;
            }
        }
    }
    for (int n = 8; n <= 256; n += 8) {
        std::string group = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(n) + "k16.f32.";

        if (s == group + "bf16.bf16" || s == group + "f16.f16") {
            wgmma(f, in, (size_t)n, s[group.size()] == 'b');
            return true;
        }
    }
    return false;
}

bool ptx_step_matrix(struct frame *f, const struct instruction *in)
{
    const std::string &s = in->name;
    struct products *l = &lanes[emu_index];

    if (s.compare(0, 4, "mma.") == 0 || s.compare(0, 15, "wgmma.mma_async") == 0) {
        return product_of(f, in);
    } else if (s == "ldmatrix.sync.aligned.m8n8.x4.shared.b16") {
        ldmatrix_x4(f, in, false);
    } else if (s == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") {
        ldmatrix_x4(f, in, true);
    } else if (s == "movmatrix.sync.aligned.m8n8.trans.b16") {
        movmatrix(f, in);
    } else if (s == "fence.proxy.async.shared::cta" && in->args.empty()) {
        l->proxy = true;
    } else if (s == "wgmma.fence.sync.aligned" && in->args.empty()) {
        l->fenced = true;
    } else if (s == "wgmma.commit_group.sync.aligned" && in->args.empty()) {
        l->groups++;
    } else if (s == "wgmma.wait_group.sync.aligned" && in->args.size() == 1) {
        wait_products((int)ptx_get(f, in->args[0]));
    } else {
        return false;
    }
    return true;
}

void ptx_begin_matrices(void)
{
    for (struct products &l : lanes) {
        l = {};
    }
}
