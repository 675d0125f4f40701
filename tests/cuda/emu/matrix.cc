/* SPDX-License-Identifier: Apache-2.0 */
/* What threads have beside ordinary instructions: products of matrix fragments by a warp (mma),
 * their loads (ldmatrix), and asynchronous copies, which are made when they are waited for. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>

enum { MAX_COPIES = 128 }; /* of a thread, under way */

struct operands {
    float ha[32][8], hb[32][4];
    int8_t qa[32][16], qb[32][8];
};

struct async_copy {
    void *to;
    const void *from;
    size_t bytes;
    int group;
};

static struct operands operands[EMU_FIBERS / 32][2]; /* of a warp; in turn */
static struct async_copy copies[EMU_FIBERS][MAX_COPIES];
static int n_copies[EMU_FIBERS], groups[EMU_FIBERS]; /* copies; groups so far */

/* ---- matrix fragments ----------------------------------------------------------------------- */

void emu_mma_half(float c[4], const uint32_t a[4], const uint32_t b[2], bool bf16)
{
    struct operands *w = &operands[emu_index / 32][emu_next_parity()];
    int lane = emu_index % 32;

    for (int i = 0; i < 8; i++) {
        w->ha[lane][i] = emu_half_of(a[i / 2], i % 2, bf16);
    }
    for (int i = 0; i < 4; i++) {
        w->hb[lane][i] = emu_half_of(b[i / 2], i % 2, bf16);
    }
    emu_sync_warp(~0u, "mma", 0);
    for (int j = 0; j < 4; j++) {
        int row = j / 2; /* + 8 */
        int col = lane % 4 * 2 + j % 2;

        for (int k = 0; k < 16; k++) {
            const float *fa = w->ha[lane / 4 * 4 + k % 8 / 2];
            const float *fb = w->hb[col * 4 + k % 8 / 2];

            c[j] += fa[(k / 8 * 2 + row) * 2 + k % 2] * fb[k / 8 * 2 + k % 2];
        }
    }
}

void emu_mma_s8(int c[4], const uint32_t *a, const uint32_t *b, int n_b)
{
    struct operands *w = &operands[emu_index / 32][emu_next_parity()];
    int lane = emu_index % 32;

    memcpy(w->qa[lane], a, (size_t)n_b * 8);
    memcpy(w->qb[lane], b, (size_t)n_b * 4);
    emu_sync_warp(~0u, "mma", 0);
    for (int j = 0; j < 4; j++) {
        int row = j / 2;
        int col = lane % 4 * 2 + j % 2;

        for (int k = 0; k < 16 * n_b; k++) {
            const int8_t *fa = w->qa[lane / 4 * 4 + k % 16 / 4];
            const int8_t *fb = w->qb[col * 4 + k % 16 / 4];

            c[j] = (int)((unsigned)c[j] + (unsigned)(fa[(k / 16 * 2 + row) * 4 + k % 4] *
                                                     fb[k / 16 * 4 + k % 4]));
        }
    }
}

void emu_matrix_load4(const void *row, uint32_t ret[4], bool trans)
{
    const uint64_t *rows = emu_exchange(~0u, (uint64_t)(uintptr_t)row, "ldmatrix", 0);
    int lane = emu_index % 32;

    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "emu: %s: ldmatrix from an address that is not aligned\n", emu_kernel.name);
        abort();
    }
    for (int i = 0; i < 4; i++) {
        unsigned banks = 0; /* of 16 bytes: a matrix is read at once */
        uint16_t e[2];

        for (int r = 0; r < 8; r++) {
            banks |= 1u << (rows[i * 8 + r] / 16 % 8);
        }
        if (banks != 0xff) {
            fprintf(stderr, "emu: %s: two rows of a matrix of ldmatrix lie in one bank\n",
                    emu_kernel.name);
            abort();
        }
        for (int j = 0; j < 2; j++) {
            int r = trans ? lane % 4 * 2 + j : lane / 4;
            int c = trans ? lane / 4 : lane % 4 * 2 + j;

            e[j] = ((const uint16_t *)(uintptr_t)rows[i * 8 + r])[c];
        }
        ret[i] = e[0] | (uint32_t)e[1] << 16;
    }
}

/* ---- cp.async ------------------------------------------------------------------------------- */

void emu_async_copy(void *to, const void *from, size_t bytes)
{
    if (n_copies[emu_index] == MAX_COPIES) {
        fprintf(stderr, "emu: %s: more copies under way than the emulator keeps\n",
                emu_kernel.name);
        abort();
    }
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0) {
        fprintf(stderr, "emu: %s: cp.async to or from an address that is not aligned\n",
                emu_kernel.name);
        abort();
    }
    if constexpr (EMU_BLOCKS > 1) {
        emu_order_ahead(from, bytes);
    }
    copies[emu_index][n_copies[emu_index]++] = async_copy{to, from, bytes, groups[emu_index]};
}

void emu_async_commit(void)
{
    groups[emu_index]++;
}

void emu_async_wait(int n_pending)
{
    int kept = 0;

    for (int i = 0; i < n_copies[emu_index]; i++) {
        struct async_copy *c = &copies[emu_index][i];

        if (c->group < groups[emu_index] - n_pending) {
            if constexpr (EMU_BLOCKS > 1) {
                emu_order_read(c->from, c->bytes);
            }
            memcpy(c->to, c->from, c->bytes);
        } else {
            copies[emu_index][kept++] = *c;
        }
    }
    n_copies[emu_index] = kept;
}

void emu_async_end(void)
{
    if (n_copies[emu_index] > 0) {
        emu_async_wait(0);
        n_copies[emu_index] = 0;
    }
}
