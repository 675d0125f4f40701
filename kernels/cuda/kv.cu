/* SPDX-License-Identifier: Apache-2.0 */
/* The byte layout of pages, sequences as kernels take them, and slots in and out in canonical form.
 *
 * Export and import go piece by piece: a kernel turns slots of pages into canonical slots in a
 * struct cuda_piece. One block a slot; bytes in any order. They wait: used for saved sequences. */

#include <cerrno>

#include "kernels/cuda/kv_four.cuh"
#include "kernels/cuda/kv_part.cuh"

static uint32_t row_bytes(enum ops_kv_type type, int32_t dim)
{
    if (kv_four(type)) {
        return (uint32_t)dim / 2;
    }
    return (uint32_t)ops_kv_type_bytes(type, (dim + KV_VEC - 1) / KV_VEC * KV_VEC);
}

/* Scales of a slot and head. */
static int32_t n_scales(enum ops_kv_type type, int32_t dim)
{
    return kv_four(type) ? four_scales(dim) : kv_has_scale(type);
}

/* Bytes of a page without its partial keys. */
static uint64_t part_at(const struct ops_kv_layout *l, const struct cuda_layout *c)
{
    return c->rank_scale_at +
           (l->rank == OPS_RANK_8 ? (uint32_t)(l->k_heads * OPS_PAGE_SLOTS * 2) : 0);
}

struct cuda_layout cuda_layout_of(const struct ops_kv_layout *l)
{
    struct cuda_layout r = {};

    r.n_groups = l->n_groups;
    r.k_heads = l->k_heads;
    r.v_heads = l->v_heads;
    r.k_dim = l->k_dim;
    r.v_dim = l->v_dim;
    r.k_type = l->k_type;
    r.v_type = l->v_type;
    r.k_row = row_bytes(l->k_type, l->k_dim);
    r.v_row = row_bytes(l->v_type, l->v_dim);
    r.v_at = (uint32_t)l->k_heads * OPS_PAGE_SLOTS * r.k_row;
    r.k_scales = n_scales(l->k_type, l->k_dim);
    r.v_scales = n_scales(l->v_type, l->v_dim);
    r.k_scale_at = r.v_at + (uint32_t)l->v_heads * OPS_PAGE_SLOTS * r.v_row;
    r.v_scale_at = r.k_scale_at + (uint32_t)(l->k_heads * OPS_PAGE_SLOTS * 2 * r.k_scales);
    r.rank_at = r.v_scale_at + (uint32_t)(l->v_heads * OPS_PAGE_SLOTS * 2 * r.v_scales);
    r.rank = l->rank;
    r.rank_scale_at = r.rank_at;
    r.part_dims = l->part_dims;
    r.part_type = l->part_dims > 0 ? l->part_type : OPS_KV_F32;
    if (l->rank != OPS_RANK_ONCE) {
        r.rank_scale_at +=
            (uint32_t)(l->k_heads * l->k_dim * OPS_PAGE_SLOTS *
                       (l->rank == OPS_RANK_8 ? 1 : (int32_t)ops_kv_type_bytes(l->k_type, 1)));
    }
    r.page_bytes = part_at(l, &r);
    r.part_bytes = (uint64_t)l->k_heads * OPS_PAGE_SLOTS * ops_kv_part_bytes(l);
    if (!l->part_apart) {
        r.page_bytes += r.part_bytes;
        r.part_bytes = r.page_bytes;
    }
    return r;
}

static bool is_there(enum ops_kv_type type)
{
    return type <= OPS_KV_I8 || kv_four(type);
}

int cuda_kv_layout(struct ops_kv_layout *l, struct error *reterr)
{
    bool four = kv_four(l->k_type) || kv_four(l->v_type);

    if (!is_there(l->k_type) || !is_there(l->v_type)) {
        return error_set(reterr, -ENOTSUP, "backend \"cuda\" has no cache of type %s",
                         ops_kv_type_name(is_there(l->k_type) ? l->v_type : l->k_type));
    }
    if (four && (!kv_four(l->v_type) || (l->k_type != OPS_KV_I8 && !kv_four(l->k_type)))) {
        return error_set(reterr, -ENOTSUP, "backend \"cuda\" has no cache of K in %s, V in %s",
                         ops_kv_type_name(l->k_type), ops_kv_type_name(l->v_type));
    }
    if (l->k_dim % ops_kv_block_dims(l->k_type) != 0 ||
        l->v_dim % ops_kv_block_dims(l->v_type) != 0) {
        return error_set(reterr, -ENOTSUP,
                         "a cache of type %s has blocks of %d, the model heads of %d and %d dims",
                         ops_kv_type_name(l->v_type), ops_kv_block_dims(l->v_type), l->k_dim,
                         l->v_dim);
    }
    if (four && (l->rank != OPS_RANK_ONCE || l->part_dims > 0)) {
        return error_set(reterr, -ENOTSUP, "backend \"cuda\" ranks no slots of four bits");
    }
    if (l->k_unrotated) {
        return error_set(reterr, -ENOTSUP, "backend \"cuda\" has no pos=new caches");
    }
    if (l->k_dim > 256 || l->v_dim > 256) {
        return error_set(reterr, -ENOTSUP, "backend \"cuda\" has heads of at most 256, not of %d",
                         l->k_dim > l->v_dim ? l->k_dim : l->v_dim);
    }
    l->page_bytes = cuda_layout_of(l).page_bytes; /* 64 slots: a multiple of 64 */
    l->part_bytes = l->part_apart ? cuda_layout_of(l).part_bytes : 0;
    return 0;
}

static uint64_t in_page(const struct ops_kv_layout *l)
{
    struct cuda_layout c = cuda_layout_of(l);

    return part_at(l, &c);
}

static struct cuda_seq seq_of(const struct ops_kv *kv)
{
    struct cuda_seq r = {};

    r.pool = kv->pool;
    if (kv->layout && kv->layout->part_dims > 0) {
        r.part = kv->layout->part_apart ? kv->part : kv->pool + in_page(kv->layout);
    }
    r.pages = kv->pages;
    r.slot_pos = kv->slot_pos;
    r.score = kv->score;
    r.v_sum = kv->v_sum;
    r.skew = kv->skew;
    r.center = kv->center;
    r.balance = kv->balance;
    r.k_hadamard = kv->k_hadamard;
    r.v_hadamard = kv->v_hadamard;
    r.latest = kv->latest;
    r.latest_from = kv->latest_from;
    r.max_pages = kv->max_pages;
    r.cap = kv->cap;
    r.n_slots = kv->n_slots;
    return r;
}

static bool same_layout(const struct ops_kv_layout *a, const struct ops_kv_layout *b)
{
    return a == b ||
           (a->n_groups == b->n_groups && a->k_heads == b->k_heads && a->v_heads == b->v_heads &&
            a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->k_type == b->k_type &&
            a->v_type == b->v_type && a->rank == b->rank && a->part_dims == b->part_dims &&
            a->part_type == b->part_type && a->part_apart == b->part_apart);
}

int32_t cuda_seqs_take(const struct ops_seq *seqs, int32_t first, int32_t n, struct cuda_seqs *ret)
{
    int32_t i = 0;

    ret->layout = seqs[first].kv.layout ? cuda_layout_of(seqs[first].kv.layout) : cuda_layout{};
    for (; i < CUDA_SEQS && first + i < n; i++) {
        const struct ops_seq *from = &seqs[first + i];
        struct cuda_seq *s = &ret->s[i];

        if (i > 0 && from->kv.layout != seqs[first].kv.layout &&
            !same_layout(from->kv.layout, seqs[first].kv.layout)) {
            break;
        }
        *s = seq_of(&from->kv);
        s->victim = from->victim;
        s->row0 = from->row0;
        s->n_rows = from->n_rows;
        s->pos0 = from->pos0;
        s->slot0 = from->slot0;
        s->ring = from->ring;
    }
    ret->n = i;
    return i;
}

/* ---- canonical slots ------------------------------------------------------------------------ */

struct canon {
    struct cuda_layout l;
    struct cuda_seq s;
    uint8_t *buf;
    int32_t group, slot0, slot_bytes;
    int32_t k_bytes, v_bytes, k_scale, v_scale; /* of one head */
    bool import;
};

/* n bytes between a row of a page and the canonical slot; what pads the row becomes 0. */
CUDA_INLINE void move_row(bool import, uint8_t *row, uint32_t row_bytes, uint8_t *canon, int32_t n)
{
    for (uint32_t i = threadIdx.x; i < row_bytes; i += blockDim.x) {
        if (import) {
            row[i] = i < (uint32_t)n ? canon[i] : 0;
        } else if (i < (uint32_t)n) {
            canon[i] = row[i];
        }
    }
}

/* The same of a row of four bits: gauss4.h's blocks, of which byte i has elements i and i + 16. */
CUDA_INLINE void move_four(bool import, uint8_t *row, uint16_t *scales, int32_t n_scales,
                           uint8_t *canon, int32_t n)
{
    enum { BLOCK_BYTES = 18 };

    for (int32_t i = (int32_t)threadIdx.x; i < n / BLOCK_BYTES * 16; i += (int32_t)blockDim.x) {
        uint8_t *block = canon + i / 16 * BLOCK_BYTES + 2;
        uint8_t *own = row + i / 16 * 16;
        int32_t j = i % 16;

        if (import) { /* byte j of the page's: elements 2 j and 2 j + 1 */
            int32_t shift = j / 8 * 4;
            uint32_t lo = block[2 * j % 16] >> shift & 15;
            uint32_t hi = block[2 * j % 16 + 1] >> shift & 15;

            own[j] = (uint8_t)four_turn(lo | hi << 4);
        } else {
            uint32_t lo = own[j / 2] >> (j % 2 * 4) & 15;
            uint32_t hi = own[8 + j / 2] >> (j % 2 * 4) & 15;

            block[j] = (uint8_t)four_turn(lo | hi << 4);
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n_scales; i += (int32_t)blockDim.x) {
        uint8_t *at = canon + i * BLOCK_BYTES;

        if (import) {
            scales[i] = i < n / BLOCK_BYTES ? (uint16_t)(at[0] | at[1] << 8) : 0;
        } else if (i < n / BLOCK_BYTES) {
            at[0] = (uint8_t)scales[i];
            at[1] = (uint8_t)(scales[i] >> 8);
        }
    }
}

CUDA_KERNEL void canonical_slots(struct canon p)
{
    __shared__ float part[2][256]; /* a partial key of each warp's */
    int32_t slot = p.slot0 + (int32_t)blockIdx.x;
    uint8_t *page = kv_page(&p.l, &p.s, p.group, slot);
    uint8_t *at = p.buf + (size_t)blockIdx.x * p.slot_bytes;

    for (int32_t h = 0; h < p.l.k_heads; h++, at += p.k_bytes) {
        if (kv_four(p.l.k_type)) {
            move_four(p.import, kv_k_row(&p.l, page, h, slot),
                      kv_scales(page, p.l.k_scale_at, p.l.k_scales, h, slot), p.l.k_scales, at,
                      p.k_bytes);
            continue;
        }
        move_row(p.import, kv_k_row(&p.l, page, h, slot), p.l.k_row, at, p.k_bytes);
    }
    for (int32_t h = 0; h < p.l.v_heads; h++, at += p.v_bytes) {
        if (kv_four(p.l.v_type)) {
            move_four(p.import, kv_v_row(&p.l, page, h, slot),
                      kv_scales(page, p.l.v_scale_at, p.l.v_scales, h, slot), p.l.v_scales, at,
                      p.v_bytes);
            continue;
        }
        move_row(p.import, kv_v_row(&p.l, page, h, slot), p.l.v_row, at, p.v_bytes);
    }
    for (int32_t h = 0; h < p.l.k_heads && p.k_scale > 0; h++, at += p.k_scale) {
        move_row(p.import, (uint8_t *)kv_scale(page, p.l.k_scale_at, h, slot), p.k_scale, at,
                 p.k_scale);
    }
    for (int32_t h = 0; h < p.l.v_heads && p.v_scale > 0; h++, at += p.v_scale) {
        move_row(p.import, (uint8_t *)kv_scale(page, p.l.v_scale_at, h, slot), p.v_scale, at,
                 p.v_scale);
    }
    __syncthreads(); /* the slot: written by all, read again below */
    for (int32_t h = (int32_t)threadIdx.x / WARP; p.import && h < p.l.k_heads; h += 2) {
        kv_rank_row(&p.l, page, h, slot);
        kv_part_row(&p.l, &p.s, page, p.group, h, slot, part[threadIdx.x / WARP]);
    }
}

static int move_slots(struct backend *be, const struct ops_kv_slots *p, bool import)
{
    struct cuda *cu = cuda_of(be);
    const struct ops_kv_layout *l = p->kv->layout;
    uint64_t slot_bytes = ops_kv_slot_bytes(l);
    uint8_t *host = static_cast<uint8_t *>(p->host);
    struct cuda_piece piece;
    struct canon c = {};
    int32_t step;
    int r;

    if (import && l->part_dims > 0 && (!p->kv->skew || (l->part_apart && !p->kv->part))) {
        return -EINVAL;
    }
    if (p->n_slots == 0) {
        return 0;
    }
    r = cuda_piece_take(cu, slot_bytes, (uint64_t)p->n_slots * slot_bytes, &piece);
    step = (int32_t)(piece.bytes / slot_bytes);
    c.l = cuda_layout_of(l);
    c.s = seq_of(p->kv);
    c.buf = piece.device;
    c.group = p->group;
    c.slot_bytes = (int32_t)slot_bytes;
    c.k_bytes = (int32_t)ops_kv_type_bytes(l->k_type, l->k_dim);
    c.v_bytes = (int32_t)ops_kv_type_bytes(l->v_type, l->v_dim);
    c.k_scale = (int32_t)ops_kv_scale_bytes(l->k_type);
    c.v_scale = (int32_t)ops_kv_scale_bytes(l->v_type);
    c.import = import;
    for (int32_t i = 0; i < p->n_slots && r == 0; i += step) {
        int32_t n = p->n_slots - i < step ? p->n_slots - i : step;

        if (import) {
            r = cuda_piece_write(cu, &piece, host + (size_t)i * slot_bytes,
                                 (uint64_t)n * slot_bytes);
        }
        if (r == 0) {
            c.slot0 = p->slot0 + i;
            CUDA_LAUNCH(cu, dim3((unsigned)n), dim3(64), 0, canonical_slots, c);
            r = cuda_launched(cu, "canonical_slots");
        }
        if (r == 0 && !import) {
            r = cuda_piece_read(cu, &piece, host + (size_t)i * slot_bytes,
                                (uint64_t)n * slot_bytes);
        }
    }
    return cuda_piece_drop(cu, &piece, r);
}

int cuda_kv_export(struct backend *be, const struct ops_kv_slots *p)
{
    return move_slots(be, p, false);
}

int cuda_kv_import(struct backend *be, const struct ops_kv_slots *p)
{
    return move_slots(be, p, true);
}
