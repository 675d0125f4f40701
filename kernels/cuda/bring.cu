/* SPDX-License-Identifier: Apache-2.0 */
/* Slots from pages in the host's memory to pages of the device (ops.h struct ops_bring), beside what
 * else runs (graph.cu).
 *
 * A warp takes four slots of a head group at once, its lanes 8 bytes of each and then the next 8:
 * rows are whole lines where they are as long. Which slots the list says is read here, so no index
 * goes to the host. 16 blocks of 128 threads for all sequences: 55 GB/s at 1.5 us want 82 KB under
 * way, these have 128 KB; the products beside it keep their multiprocessors. Scales of codes are two
 * bytes a slot and head, lane by lane.
 *
 * Bytes: K, V and scales of each slot once over the bus, once to memory. Times: not measured. */

#include <cerrno>
#include <climits>

#include "kernels/cuda/kv.cuh"

enum {
    BRING_THREADS = 128,
    BRING_BLOCKS = 16,
    BRING_SEQS = CUDA_SEQS * 3 / 4, /* of a launch: each has two sets of pages */
    SLOTS = 4,
    LOADS = 2,
    PIECE = 8
};

struct bring {
    struct cuda_layout layout;
    int32_t n_seqs;
    struct ops_chosen chosen;
    struct cuda_seq from[BRING_SEQS];
    struct cuda_seq to[BRING_SEQS];
    int32_t n[BRING_SEQS]; /* slots of a sequence whose all are brought, -1: those that are listed */
    int32_t own[BRING_SEQS];
    int32_t entry[BRING_SEQS];
};

static_assert(sizeof(struct bring) <= 4096, "a launch takes no more arguments");

/* Which slot of the home pages goes to place i of a group; -1: none. */
CUDA_INLINE int32_t home_slot(const struct bring *p, int32_t seq, int32_t group, int32_t i)
{
    int32_t entry = p->entry[seq];

    if (p->n[seq] >= 0) {
        return i;
    }
    return i == p->chosen.n[entry]
               ? p->own[seq]
               : p->chosen.slots[(size_t)(entry * p->chosen.max_groups + group) * p->chosen.ld + i];
}

/* Bytes [PIECE i, PIECE (i + 1)) of a slot: of its K heads' rows, then of its V heads'. */
CUDA_INLINE uint8_t *piece_of(const struct cuda_layout *l, uint8_t *page, int32_t slot, int32_t i)
{
    int32_t k = (int32_t)l->k_row / PIECE;
    int32_t v = (int32_t)l->v_row / PIECE;

    if (i < l->k_heads * k) {
        return kv_k_row(l, page, i / k, slot) + i % k * PIECE;
    }
    i -= l->k_heads * k;
    return kv_v_row(l, page, i / v, slot) + i % v * PIECE;
}

/* The scale of head i of the K heads, then the V heads; NULL where codes have none. */
CUDA_INLINE uint16_t *scale_of(const struct cuda_layout *l, uint8_t *page, int32_t slot, int32_t i)
{
    bool is_k = i < l->k_heads;

    if (!kv_has_scale(is_k ? l->k_type : l->v_type)) {
        return NULL;
    }
    return is_k ? kv_scale(page, l->k_scale_at, i, slot)
                : kv_scale(page, l->v_scale_at, i - l->k_heads, slot);
}

CUDA_KERNEL void __launch_bounds__(BRING_THREADS) bring(struct bring p)
{
    const struct cuda_layout *l = &p.layout;
    int32_t seq = (int32_t)blockIdx.y;
    int32_t listed = p.n[seq] < 0 ? p.chosen.n[p.entry[seq]] : 0;
    int32_t n = p.n[seq] < 0 ? listed + (p.own[seq] >= 0) : p.n[seq];
    int32_t n_pieces = (l->k_heads * (int32_t)l->k_row + l->v_heads * (int32_t)l->v_row) / PIECE;
    int32_t n_warps = (int32_t)gridDim.x * (BRING_THREADS / WARP);
    int32_t warp = (int32_t)blockIdx.x * (BRING_THREADS / WARP) + (int32_t)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    for (int32_t u0 = warp; u0 < n * l->n_groups; u0 += SLOTS * n_warps) {
        uint8_t *from[SLOTS];
        uint8_t *to[SLOTS];
        int32_t slot[SLOTS];
        int32_t place[SLOTS];

#pragma unroll
        for (int j = 0; j < SLOTS; j++) {
            int32_t u = u0 + j * n_warps;
            int32_t group = u / n;

            place[j] = u % n;
            slot[j] = group < l->n_groups ? home_slot(&p, seq, group, place[j]) : -1;
            if (slot[j] >= 0) {
                from[j] = kv_page(l, &p.from[seq], group, slot[j]);
                to[j] = kv_page(l, &p.to[seq], group, place[j]);
            }
        }
        for (int32_t i0 = lane; i0 < n_pieces; i0 += LOADS * WARP) {
            uint2 piece[SLOTS][LOADS];

#pragma unroll
            for (int j = 0; j < SLOTS * LOADS; j++) {
                int32_t i = i0 + j % LOADS * WARP;

                if (slot[j / LOADS] >= 0 && i < n_pieces) {
                    piece[j / LOADS][j % LOADS] = *reinterpret_cast<const uint2 *>(
                        piece_of(l, from[j / LOADS], slot[j / LOADS], i));
                }
            }
#pragma unroll
            for (int j = 0; j < SLOTS * LOADS; j++) {
                int32_t i = i0 + j % LOADS * WARP;

                if (slot[j / LOADS] >= 0 && i < n_pieces) {
                    *reinterpret_cast<uint2 *>(piece_of(l, to[j / LOADS], place[j / LOADS], i)) =
                        piece[j / LOADS][j % LOADS];
                }
            }
        }
        for (int32_t i = lane; i < SLOTS * (l->k_heads + l->v_heads); i += WARP) {
            int32_t head = i / SLOTS;
            int32_t j = i % SLOTS;

#pragma unroll
            for (int k = 0; k < SLOTS; k++) { /* which one only the lane knows: registers have no index */
                if (k == j && slot[k] >= 0 && scale_of(l, from[k], slot[k], head)) {
                    *scale_of(l, to[k], place[k], head) = *scale_of(l, from[k], slot[k], head);
                }
            }
        }
    }
}

/* ---- the call ------------------------------------------------------------------------------- */

static bool valid(const struct ops_bring *p, int32_t i)
{
    const struct ops_bring_seq *s = &p->seqs[i];
    const struct ops_kv_layout *l = s->from.layout;

    return l && s->to.layout == l && s->from.pool && s->to.pool && s->n >= 0 &&
           (int64_t)s->n * l->n_groups <= INT_MAX - 2 * BRING_BLOCKS * BRING_THREADS &&
           l->rank == OPS_RANK_ONCE && (l->part_dims == 0 || l->part_apart) &&
           (!s->listed || (p->chosen && l->n_groups <= p->chosen->max_groups));
}

/* Sequences from `at` on that share a layout, a launch's worth; returns how many. */
static int32_t gather(const struct ops_bring *p, int32_t at, struct bring *ret)
{
    int32_t n = 0;

    for (; n < BRING_SEQS && at + n < p->n_seqs; n++) {
        const struct ops_bring_seq *s = &p->seqs[at + n];
        struct ops_seq pair[2] = {{}, {}};
        struct cuda_seqs two;

        pair[0].kv = s->from;
        pair[1].kv = s->to;
        (void)cuda_seqs_take(pair, 0, 2, &two);
        if (n > 0 && memcmp(&two.layout, &ret->layout, sizeof(two.layout)) != 0) {
            break;
        }
        ret->layout = two.layout;
        ret->from[n] = two.s[0];
        ret->to[n] = two.s[1];
        ret->n[n] = s->listed ? -1 : s->n;
        ret->own[n] = s->own;
        ret->entry[n] = s->entry;
    }
    ret->n_seqs = n;
    return n;
}

int cuda_bring(struct backend *be, const struct ops_bring *p)
{
    struct cuda *cu = cuda_of(be);
    int r = 0;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        if (!valid(p, i)) {
            return -EINVAL;
        }
    }
    for (int32_t i = 0; i < p->n_seqs && r == 0;) {
        struct bring b = {};

        if (p->chosen) {
            b.chosen = *p->chosen;
        }
        i += gather(p, i, &b);
        cuda_call_side(cu);
        CUDA_LAUNCH(cu,
                    dim3(cuda_div_up(BRING_BLOCKS, (uint64_t)b.n_seqs), (unsigned)b.n_seqs),
                    dim3(BRING_THREADS), 0, bring, b);
        r = cuda_launched(cu, "bring");
    }
    return r;
}
