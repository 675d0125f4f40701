/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma. Products are made when they are waited for. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>

enum { GROUP_OPS = 32 }; /* of a thread, under way */

/* A product under way. */
struct group_op {
    float *x;
    const uint32_t *registers; /* a; NULL: in shared memory */
    uint64_t a, b;
    int n, group;
    bool add, bf16;
};

/* Operands of one that is made: (row, k), (column, k); `parity` says which are read still. */
struct group_warp {
    float a[2][16][16], b[2][128][16];
};

static struct group_op group_ops[EMU_FIBERS][GROUP_OPS];
static int group_n[EMU_FIBERS], group_at[EMU_FIBERS]; /* products; groups so far */
static struct group_warp group_warps[EMU_FIBERS / 32];

uint64_t emu_group_matrix(const void *at, uint32_t panel)
{
    size_t offset = (size_t)((const uint8_t *)at - (const uint8_t *)emu_shared());

    if (offset >= EMU_SHARED_MAX || offset % 16 != 0) {
        fprintf(stderr, "emu: %s: a matrix that is not in shared memory\n", emu_kernel.name);
        abort();
    }
    return offset >> 4 | (uint64_t)(panel >> 4) << 16;
}

/* Element k of row r where rows are 128 bytes and pieces swapped; further ones a panel on. */
static float group_element(uint64_t m, int r, int k, bool bf16)
{
    uintptr_t at = (uintptr_t)emu_shared() + (m & 0x3fff) * 16 + (uintptr_t)r * 128 +
                   (uintptr_t)(k / 64) * ((m >> 16) * 16) + (uintptr_t)(k % 64) * 2;

    return emu_half_of(*(const uint16_t *)(at ^ (at >> 7 & 7) << 4), 0, bf16);
}

static void group_product(const struct group_op *o)
{
    struct group_warp *w = &group_warps[emu_index / 32];
    int lane = emu_index % 32;
    int parity = emu_next_parity();

    for (int i = 0; i < 8; i++) {
        if (o->registers) {
            w->a[parity][lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
                emu_half_of(o->registers[i / 2], i % 2, o->bf16);
        } else {
            w->a[parity][lane / 2][lane % 2 * 8 + i] =
                group_element(o->a, emu_index / 32 % 4 * 16 + lane / 2, lane % 2 * 8 + i, o->bf16);
        }
    }
    for (int n = lane; n < o->n; n += 32) {
        for (int k = 0; k < 16; k++) {
            w->b[parity][n][k] = o->registers ? group_element(o->b, k, n, o->bf16)
                                              : group_element(o->b, n, k, o->bf16);
        }
    }
    emu_sync_warp(~0u, "wgmma", 0);
    for (int i = 0; i < o->n / 2; i++) {
        const float *a = w->a[parity][lane / 4 + i / 2 % 2 * 8];
        const float *b = w->b[parity][i / 4 * 8 + lane % 4 * 2 + i % 2];
        float sum = o->add ? o->x[i] : 0.0f;

        for (int k = 0; k < 16; k++) {
            sum += a[k] * b[k];
        }
        o->x[i] = sum;
    }
}

static void group_add(const struct group_op *o)
{
    if (group_n[emu_index] == GROUP_OPS) {
        fprintf(stderr, "emu: %s: more products under way than the emulator keeps\n",
                emu_kernel.name);
        abort();
    }
    group_ops[emu_index][group_n[emu_index]] = *o;
    group_ops[emu_index][group_n[emu_index]++].group = group_at[emu_index];
}

void emu_group_mma(float *x, uint64_t a, uint64_t b, bool add, bool bf16)
{
    struct group_op o = {x, NULL, a, b, 128, 0, add, bf16};

    group_add(&o);
}

void emu_group_mma_values(float *x, const uint32_t *a, uint64_t b, int n, bool bf16)
{
    struct group_op o = {x, a, 0, b, n, 0, true, bf16};

    group_add(&o);
}

void emu_group_commit(void)
{
    group_at[emu_index]++;
}

void emu_group_wait(int n_pending)
{
    int kept = 0;
    int n = group_n[emu_index];

    for (int i = 0; i < n; i++) {
        struct group_op o = group_ops[emu_index][i];

        if (o.group < group_at[emu_index] - n_pending) {
            group_product(&o);
        } else {
            group_ops[emu_index][kept++] = o;
        }
    }
    group_n[emu_index] = kept;
}
