/* SPDX-License-Identifier: Apache-2.0 */
/* Weights on the device. Quantised ones are put into fragment order (frag.cuh) by a kernel, from a
 * piece of the file's rows at a time: one thread a row and group of 4 blocks of 32, reading bytes,
 * writing what belongs to that group alone: its blocks share bytes. All weights of a model lie in
 * one allocation (weights_reserve). 16-bit and f32 matrices keep their rows, padded to 64 bytes.
 * Vectors become f32 on the host. */

#include <cerrno>
#include <cstdlib>

#include "kernels/cuda/cublas.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/frag.cuh"

enum { PACK_THREADS = 128, PACK_PIECE = 16 << 20 };

/* ---- packing -------------------------------------------------------------------------------- */

/* The 32 codes of one block of the file, and its scales written to the unit. */
struct raw {
    const uint8_t *row; /* as in the file */
    int32_t col;        /* a multiple of 32 */
};

template <typename F> CUDA_INLINE uint32_t raw_code(struct raw r, int i)
{
    if (F::TYPE == DTYPE_Q8_0) {
        return r.row[(size_t)r.col / 32 * 34 + 2 + i];
    }
    if (F::SCALES == FRAG_D || F::SCALES == FRAG_DM || F::SCALES == FRAG_E8) {
        int head = F::SCALES == FRAG_E8 ? 1 : F::SCALES == FRAG_D ? 2 : 4;
        int high = F::HIGH ? 4 : 0;
        const uint8_t *b = r.row + (size_t)r.col / 32 * (size_t)(head + high + 16);
        uint32_t q = b[head + high + i % 16] >> (i / 16 * 4) & 15;

        return high ? q | (uint32_t)(b[head + i / 8] >> (i % 8) & 1) << 4 : q;
    }
    int g = r.col % 256 / 32;

    if (F::SCALES == FRAG_XS) {
        return r.row[(size_t)r.col / 256 * 136 + 8 + g * 16 + i % 16] >> (i / 16 * 4) & 15;
    }
    if (F::SCALES == FRAG_K) {
        const uint8_t *b = r.row + (size_t)r.col / 256 * (F::HIGH ? 176 : 144);
        uint32_t q = b[(F::HIGH ? 48 : 16) + g / 2 * 32 + i] >> (g % 2 * 4) & 15;

        return F::HIGH ? q | (uint32_t)(b[16 + i] >> g & 1) << 4 : q;
    }
    if (F::CODE == 0) { /* four blocks in 32 bytes; of Q3_K eight blocks' top bits before them */
        const uint8_t *b = r.row + (size_t)r.col / 256 * (F::HIGH == 3 ? 110 : 84);
        uint32_t q = b[(F::HIGH == 3 ? 32 : 16) + g / 4 * 32 + i] >> (g % 4 * 2) & 3;

        return F::HIGH == 3 ? q | (uint32_t)(b[i] >> g & 1) << 2 : q;
    }
    const uint8_t *b = r.row + (size_t)r.col / 256 * 210;
    int k = g % 4 * 32 + i; /* of the half of 128 */
    uint32_t low = b[g / 4 * 64 + k % 64] >> (k / 64 * 4) & 15;

    return low | (uint32_t)(b[128 + g / 4 * 32 + k % 32] >> (k / 32 * 2) & 3) << 4;
}

template <typename F> CUDA_INLINE void pack_scales(struct raw r, uint8_t *s, int row, int block)
{
    if (F::SCALES == FRAG_D || F::SCALES == FRAG_DM || F::SCALES == FRAG_E8) {
        int n = F::SCALES == FRAG_E8 ? 1 : F::SCALES == FRAG_D ? 2 : 4;
        int bytes = n + (F::HIGH ? 4 : 0) + (F::CODE == 8 ? 32 : 16);
        const uint8_t *b = r.row + (size_t)r.col / 32 * (size_t)bytes;

        for (int i = 0; i < n; i++) {
            s[(row * 4 + block) * n + i] = b[i];
        }
    } else if (F::SCALES == FRAG_XS) {
        const uint8_t *b = r.row + (size_t)r.col / 256 * 136; /* d, high bits, low bits of scales */
        int high = (b[2] | b[3] << 8) >> (2 * block) & 3;

        s[row * 8 + block] =
            (uint8_t)(((b[4 + block / 2] >> (block % 2 * 4) & 15) | high << 4) - 32);
        for (int i = 0; i < 2 && block == 0; i++) {
            s[128 + row * 2 + i] = b[i];
        }
    } else if (F::SCALES == FRAG_K) {
        const uint8_t *b = r.row + (size_t)r.col / 256 * (F::HIGH ? 176 : 144);
        const uint8_t *six = b + 4; /* quant/dtype_k.c says how these 12 bytes are cut */

        for (int i = 0; i < 4 && block == 0; i++) {
            s[row * 4 + i] = b[i];
        }
        s[64 + row * 8 + block] =
            block < 4 ? six[block] & 63 : (six[block + 4] & 15) | (six[block - 4] >> 6) << 4;
        s[192 + row * 8 + block] =
            block < 4 ? six[block + 4] & 63 : six[block + 4] >> 4 | (six[block] >> 6) << 4;
    } else if (F::SCALES == FRAG_Q2) {
        const uint8_t *b = r.row + (size_t)r.col / 256 * 84;

        for (int i = 0; i < 2; i++) {
            s[row * 16 + block * 2 + i] = b[block * 2 + i];
        }
        for (int i = 0; i < 4 && block == 0; i++) {
            s[256 + row * 4 + i] = b[80 + i];
        }
    } else if (F::TYPE == DTYPE_Q3_K) {
        const uint8_t *b = r.row + (size_t)r.col / 256 * 110;
        const uint8_t *six = b + 96; /* quant/dtype.h says how these 12 bytes are cut */

        for (int i = 0; i < 2; i++) {
            int k = block * 2 + i;
            int low = six[k % 8] >> (k / 8 * 4) & 15;

            s[row * 16 + k] = (uint8_t)((low | (six[8 + k % 4] >> (k / 4 * 2) & 3) << 4) - 32);
            if (block == 0) {
                s[256 + row * 2 + i] = b[108 + i];
            }
        }
    } else {
        const uint8_t *b = r.row + (size_t)r.col / 256 * 210;

        for (int i = 0; i < 2; i++) {
            s[row * 16 + block * 2 + i] = b[192 + block * 2 + i];
            if (block == 0) {
                s[256 + row * 2 + i] = b[208 + i];
            }
        }
    }
}

template <typename F> CUDA_INLINE void pack_block(struct raw r, uint8_t *unit, int32_t row)
{
    for (int i = 0; i < 32; i++) {
        struct frag_at a = frag_where<F>(row, r.col + i);
        int32_t q = (int32_t)raw_code<F>(r, i) ^ F::MIDDLE;

        if (F::CODE == 8) {
            unit[a.code] = (uint8_t)q;
        } else if (F::CODE == 4) {
            unit[a.code] |= (uint8_t)(frag_nibble<F>(q) << (a.high * 4));
        }
        if (F::HIGH > 0) {
            unit[a.more] |= (uint8_t)((frag_more<F>(q) & (F::HIGH == 1 ? 1 : 3)) << a.shift);
        }
        if (F::HIGH == 3) {
            unit[a.top] |= (uint8_t)(frag_more<F>(q) >> 2 << a.top_shift);
        }
    }
    pack_scales<F>(r, unit + F::SCALES_AT, row % 16, r.col % F::COLS / 32);
}

/* Rows [row0, row0 + n_rows) of the weight from `raw`. */
template <typename F>
CUDA_KERNEL void pack_frag(const uint8_t *file, uint64_t row_bytes, uint8_t *w, int32_t row0,
                           int32_t n_rows, int32_t n_cols)
{
    int32_t row = row0 + (int32_t)blockIdx.y;
    int32_t col = (int32_t)(blockIdx.x * PACK_THREADS + threadIdx.x) * 128;
    struct raw r = {file + (uint64_t)blockIdx.y * row_bytes, col};

    for (; r.col < min(col + 128, n_cols) && (int32_t)blockIdx.y < n_rows; r.col += 32) {
        pack_block<F>(r, const_cast<uint8_t *>(frag_unit<F>(w, n_cols, row, r.col)), row);
    }
}

static int pack_some(struct cuda *cu, enum dtype type, const uint8_t *file, uint64_t row_bytes,
                     uint8_t *w, int32_t row0, int32_t n_rows, int32_t n_cols)
{
    dim3 grid(cuda_div_up((uint64_t)n_cols, 128 * PACK_THREADS), (unsigned)n_rows);

    switch (type) {
#define PACK(TYPE, F)                                                                              \
    case TYPE:                                                                                     \
        CUDA_LAUNCH(cu, grid, dim3(PACK_THREADS), 0, pack_frag<F>, file, row_bytes, w, row0,       \
                    n_rows, n_cols);                                                               \
        break;
        FRAG_TYPES(PACK)
#undef PACK
    default:
        return -EINVAL;
    }
    return cuda_launched(cu, "pack_frag");
}

/* ---- sizes ---------------------------------------------------------------------------------- */

uint64_t cuda_matrix_bytes(enum dtype type, int32_t n_rows, int32_t n_cols)
{
    uint64_t tiles = cuda_div_up((uint64_t)n_rows, 16);

    switch (type) {
#define BYTES(TYPE, F)                                                                             \
    case TYPE:                                                                                     \
        return tiles * frag_units(n_cols, F::COLS) * F::UNIT;
        FRAG_TYPES(BYTES)
#undef BYTES
    default:
        return (uint64_t)n_rows * plain_pitch(type, n_cols);
    }
}

uint64_t cuda_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *desc)
{
    uint64_t bytes = desc->role == OPS_ROLE_VECTOR
                         ? (uint64_t)desc->n_cols * sizeof(float)
                         : (uint64_t)ops_stack(desc->n_stack) *
                               cuda_matrix_bytes(desc->type, desc->n_rows, desc->n_cols);

    (void)config;
    return (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

/* ---- the slab ------------------------------------------------------------------------------- */

int cuda_weights_reserve(struct backend *be, uint64_t bytes, struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    void *p = NULL;
    int r;

    if (cu->slab_weights > 0) {
        return error_set(reterr, -EBUSY, "another model's weights are loaded");
    }
    r = bytes > 0 ? be->ops->alloc(be, bytes, "weights", &p, reterr) : 0;
    if (r == 0) {
        be->ops->free(be, cu->slab, cu->slab_bytes);
        cu->slab = static_cast<uint8_t *>(p);
        cu->slab_bytes = bytes;
        cu->slab_used = cu->slab_vectors = 0;
    }
    return r;
}

/* Matrices from the slab's begin, vectors from its end: so no bias lies between weights that one
 * product takes (cublas_products.cu). */
static int take(struct cuda *cu, uint64_t bytes, bool vector, const char *name, void **ret,
                struct error *reterr)
{
    if (cu->slab_bytes - cu->slab_used - cu->slab_vectors < bytes) {
        return cu->be.ops->alloc(&cu->be, bytes, name, ret, reterr);
    }
    if (vector) {
        cu->slab_vectors += bytes;
        *ret = cu->slab + (cu->slab_bytes - cu->slab_vectors);
    } else {
        *ret = cu->slab + cu->slab_used;
        cu->slab_used += bytes;
    }
    cu->slab_weights++;
    return 0;
}

static void give(struct cuda *cu, void *device, uint64_t bytes)
{
    const uint8_t *p = static_cast<const uint8_t *>(device);

    if (!p || !cu->slab || p < cu->slab || p >= cu->slab + cu->slab_bytes) {
        cu->be.ops->free(&cu->be, device, bytes);
        return;
    }
    if (--cu->slab_weights == 0) {
        cu->be.ops->free(&cu->be, cu->slab, cu->slab_bytes);
        cu->slab = NULL;
        cu->slab_bytes = cu->slab_used = cu->slab_vectors = 0;
    }
}

/* ---- creation ------------------------------------------------------------------------------- */

static bool is_plain(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static int fill_vector(struct backend *be, const struct ops_weight_desc *d, void *device)
{
    float *f = static_cast<float *>(malloc((size_t)d->n_cols * sizeof(float) + 1));
    int r = -ENOMEM;

    if (f) {
        dtype_decode(d->type, d->data, f, (uint64_t)d->n_cols);
        r = be->ops->write(be, device, f, (uint64_t)d->n_cols * sizeof(float));
        r = r < 0 ? r : be->ops->sync(be);
    }
    free(f);
    return r;
}

/* Rows of one matrix of a stack: its tiles begin anew. */
static int fill_matrix(struct cuda *cu, const struct ops_weight_desc *d, struct cuda_piece *piece,
                       uint64_t row_bytes, const uint8_t *from, uint8_t *device)
{
    int32_t step = (int32_t)(piece->bytes / row_bytes);
    int r = 0;

    step = step > 65535 ? 65535 : step;
    for (int32_t row = 0; row < d->n_rows && r == 0; row += step) {
        int32_t n = d->n_rows - row < step ? d->n_rows - row : step;

        r = cuda_piece_write(cu, piece, from + (uint64_t)row * row_bytes, (uint64_t)n * row_bytes);
        if (r == 0) {
            r = pack_some(cu, d->type, piece->device, row_bytes, device, row, n, d->n_cols);
        }
    }
    return r;
}

static int fill_frag(struct backend *be, const struct ops_weight_desc *d, void *device)
{
    struct cuda *cu = cuda_of(be);
    uint64_t bytes = cuda_matrix_bytes(d->type, d->n_rows, d->n_cols);
    struct cuda_piece piece;
    uint64_t row_bytes = 0;
    int r;

    if (!dtype_row_bytes(d->type, (uint64_t)d->n_cols, &row_bytes)) {
        return -EINVAL;
    }
    r = cuda_piece_take(cu, row_bytes, row_bytes > PACK_PIECE ? row_bytes : (uint64_t)PACK_PIECE,
                        &piece);
    for (int32_t i = 0; i < ops_stack(d->n_stack) && r == 0; i++) {
        r = fill_matrix(cu, d, &piece, row_bytes,
                        static_cast<const uint8_t *>(d->data) +
                            (uint64_t)i * ops_stack_rows(d->stack_rows, d->n_rows) * row_bytes,
                        static_cast<uint8_t *>(device) + (uint64_t)i * bytes);
    }
    return cuda_piece_drop(cu, &piece, r);
}

static int fill_plain(struct backend *be, const struct ops_weight_desc *d, void *device)
{
    struct cuda *cu = cuda_of(be);
    size_t row_bytes = (size_t)d->n_cols * (d->type == DTYPE_F32 ? 4 : 2);
    size_t pitch = (size_t)plain_pitch(d->type, d->n_cols);
    int r = cuda_queue_flush(cu);

    for (int32_t i = 0; i < ops_stack(d->n_stack) && r >= 0; i++) {
        r = cuda_err(
            cu,
            cudaMemcpy2DAsync(
                static_cast<uint8_t *>(device) + (size_t)i * (size_t)d->n_rows * pitch, pitch,
                static_cast<const uint8_t *>(d->data) +
                    (size_t)i * ops_stack_rows(d->stack_rows, d->n_rows) * row_bytes,
                row_bytes, row_bytes, (size_t)d->n_rows, cudaMemcpyHostToDevice, cu->stream),
            "cudaMemcpy2DAsync");
    }
    return r < 0 ? r : be->ops->sync(be);
}

int cuda_weight_create(struct backend *be, const struct ops_weight_desc *d, struct ops_weight *ret,
                       struct error *reterr)
{
    uint64_t bytes = cuda_weight_bytes(NULL, d);
    void *device = NULL;
    int r = take(cuda_of(be), bytes, d->role == OPS_ROLE_VECTOR, d->name, &device, reterr);

    if (r < 0) {
        return r;
    }
    r = d->role == OPS_ROLE_VECTOR ? fill_vector(be, d, device)
        : is_plain(d->type)        ? fill_plain(be, d, device)
                                   : fill_frag(be, d, device);
    if (r < 0) {
        give(cuda_of(be), device, bytes);
        return error_set_errno(reterr, r, "%s: no copy on the device", d->name);
    }
    *ret = {};
    ret->type = d->type;
    ret->role = d->role;
    ret->n_stack = d->n_stack;
    ret->n_rows = d->n_rows;
    ret->n_cols = d->n_cols;
    ret->device = device;
    ret->bytes = bytes;
    r = ops_stack(d->n_stack) > 1 ? 0 : cuda_lt_weight(cuda_of(be), ret);
    if (r < 0) {
        cuda_weight_destroy(be, ret);
        return error_set_errno(reterr, r, "%s: tried by cublasLt", d->name);
    }
    return 0;
}

void cuda_weight_destroy(struct backend *be, struct ops_weight *w)
{
    give(cuda_of(be), const_cast<void *>(w->device), w->bytes);
    *w = {};
}

struct cuda_norm cuda_norm_of(const struct ops_norm *n)
{
    struct cuda_norm r = {cuda_vector(n->w), cuda_vector(n->b), n->eps, n->kind == OPS_NORM_LAYER};

    return r;
}

const float *cuda_vector(const struct ops_weight *w)
{
    return w ? static_cast<const float *>(w->device) : NULL;
}
