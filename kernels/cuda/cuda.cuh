/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUDA_CUH
#define PIPIT_KERNELS_CUDA_CUDA_CUH

/* The cuda backend, inside: one stream, one scratch, one file per family of operations.
 *
 * All calls come from one thread and go to one stream, so kernels run in the order of the calls;
 * `read` and `sync` wait. What a kernel needs to know of sequences travels by value as its
 * parameter (batches of CUDA_SEQS of them), so nothing on the host must outlive a call.
 *
 * Errors become errno in err.cu alone. After a sticky one the device is lost to this process: every
 * later call answers -ENODEV. */

#include "kernels/cuda/prim.cuh"

extern "C" {
#include "kernels/backend.h"
}

#ifndef CUDA_ARCHS
#error                                                                                             \
    "CUDA_ARCHS: the architectures compiled for, ascending, as in 80,90; of the last there is PTX, too"
#endif

enum {
    CUDA_SEQS = 16, /* sequences of one launch */
    CUDA_ROPE_PAIRS = 128,
    CUDA_IDS = 768,       /* row numbers of one launch */
    CUDA_STAGE = 4 << 20, /* pinned bytes through which small writes go; and all of them */
    CUDA_PINNED = CUDA_STAGE + BACKEND_FETCHES * BACKEND_FETCH_BYTES,
    CUDA_ALIGN = 256,     /* of what lies in one allocation */
    CUDA_GRAIN = 2 << 20, /* what the driver rounds an allocation up to, */
    CUDA_ALLOCS = 26,     /* of which an engine makes at most so many */
    CUDA_MAPPED = 256,    /* allocations of the host's memory that kernels reach */
    CUDA_SAMPLE_ROWS = 32,     /* drawn for in one launch */
    CUDA_SAMPLE_GROUPS = 2048, /* that a row's logits fall into (sample.cu) */
};

struct experts_tile; /* experts.cuh */

/* Scratch, laid out by cuda_scratch() from the limits. */
struct cuda_scratch {
    float *xf;        /* (max_rows, max_cols): normalised activations */
    uint8_t *xq;      /* (2, max_rows, x_pad): int8 codes in fragment order, then what they left */
    float *xd;        /* (max_rows, x_pad / 32): scale of a block */
    float *xs;        /* (max_rows, x_pad / 32): its sum */
    uint16_t *xh;     /* (2, max_rows, x_pad): 16-bit pieces */
    uint16_t *passed; /* (max_rows, x_pad): what one matmul leaves for the next (cuda_passed) */
    float *xe;        /* (max_rows): factor that the f16 pieces were divided by; a norm's */
    uint8_t *row_codes; /* two rows of codes, which kernels make for the next one (codes.cuh) */
    float *part;      /* decode attention: (max_decode, heads, chunks, dim + 4) */
    float *sums;      /* observed: (max_rows, heads, 2): about the largest logit, 1 / sum */
    float *logits;    /* observed decode rows: (n_observed, heads, max_slots); of prefill rows
                         what each head gives to its slots' scores */
    uint16_t *queries; /* observed: (max_rows, heads, max_head_dim to a multiple of 8) */
    float *query_factor; /* observed: (max_rows, heads) */
    float *approx;    /* rows that select: (n_selected, heads, max_slots), what ranks slots */
    float *mass;      /* the same as probabilities summed over heads */
    float *tile;      /* (n_selected, heads, tiles, 2): sums of e^approx, a tile of slots each */
    int32_t *count;   /* (n_selected, heads, SELECT_BINS): slots by their mass */
    int32_t *list;    /* (n_selected, heads, max_slots): chosen slots */
    int32_t *list_n;  /* (n_selected, heads, 2): how many; live slots */
    float *stats;     /* (n_selected, heads, 4): largest approx, 1 / sum, chosen share */
    float *skewed;    /* (n_selected, heads, max_head_dim): queries that rank partial keys */
    int32_t *near;    /* (n_selected, heads): slots near the largest logit */
    int32_t *order;   /* cut: (heads + 1, max_slots); exponents of expect.cu */
    int32_t *flag;    /* cut: failed, then slots to move by group (1 + heads) */
    float *lt_sums;   /* (lt_rows + 1, max_outputs): products by cublasLt that are finished later */
    uint8_t *lt_work; /* its workspace */
    uint16_t *lt_slab; /* (lt_weights): rows of a quantised weight as bf16 */
    float *router;    /* experts: (entries, max_experts + 1), logits and the shared expert's gate */
    int32_t *chosen;  /* (entries): of each its expert */
    float *chosen_weight;       /* (entries) */
    int32_t *entries;           /* (entries): by expert */
    struct experts_tile *tiles; /* (entries) */
    float *hidden;              /* (entries, max_cols) */
    float *expert_out;          /* (entries, max_cols) */
    float *shared;              /* (entries, max_cols): the shared expert's */
    float *expect_mean;         /* (heads, padded dim): queries to come (expect.cuh) */
    float *expect_square;       /* (heads, padded dim, padded dim) */
    float *expect_tops;         /* (heads, 2) */
    uint64_t *sample_best;      /* (CUDA_SAMPLE_ROWS, CUDA_SAMPLE_GROUPS) */
    uint64_t *sample_mass;      /* the same: by distance from the best (sample_all.cu) */
    uint64_t *sample_bounds;    /* (CUDA_SAMPLE_ROWS, 2): the first key, the last that is left */
    uint64_t bytes;   /* of all that comes before, which pieces may overwrite; behind it: */
    uint32_t *arrived; /* (3 heads) blocks at a head (gemm_heads.cuh): 0 between launches */
    uint32_t *sample_arrived; /* (CUDA_SAMPLE_ROWS) blocks at a row: 0 between launches */
    int32_t n_observed;
    int32_t n_selected;
    int32_t lt_rows; /* of one product by cublasLt; 0: there are none */
    uint64_t lt_floats; /* of its sums */
    uint64_t lt_weights; /* of a slab */
};

/* Prefill rows of the matmul before, in 16 bits for the one that reads them (ops_matmul.reader). */
struct cuda_passed {
    const struct ops_weight *reader; /* NULL: none */
    const float *y;     /* where they would be */
    const uint16_t *xh; /* (max_rows, n_cols rounded up to 256) */
};

struct cuda_codes; /* codes.cuh */
/* Bytes of a row's codes, scales, sums and squares. */
#define CUDA_CODES_BYTES(pad) ((uint64_t)(pad) + 3 * sizeof(float) * ((uint64_t)(pad) / 32))

struct cuda_queue; /* queue.cuh */
struct cuda_lt;    /* cublas.cu */

struct cuda {
    struct backend be;
    struct cuda_queue *queue;
    cudaStream_t stream;
    bool have_stream;
    cudaStream_t side; /* what runs beside: `bring` (launch.cu) */
    cudaEvent_t main_at, side_at;
    int device;
    int n_sms;
    int sm_major, sm_minor;
    bool integrated;
    bool wait_asleep;  /* backend_config */
    bool early;        /* a graph's kernels may be launched before the one ahead has ended */
    int32_t few_from;  /* rows from which on gemm_q_few.cu multiplies quantised weights */
    size_t shared_max; /* dynamic shared memory of one block */
    struct backend_limits limits;
    void *scratch_base;
    struct cuda_scratch scratch;
    uint8_t *stage; /* pinned (CUDA_STAGE), then what `fetch` brings (BACKEND_FETCHES) */
    cudaEvent_t fetched[BACKEND_FETCHES];
    size_t stage_used;
    struct {
        uint8_t *at;
        uint64_t bytes;
    } mapped[CUDA_MAPPED]; /* alloc_mapped */
    uint8_t *slab;         /* weights, one after another (weights_reserve) */
    uint64_t slab_bytes, slab_used, slab_vectors;
    int32_t slab_weights;
    bool lost;
    struct cuda_lt *lt; /* cublasLt (cublas.cu), or NULL */
    const struct ops_weight *passing; /* of the matmul that runs: its reader takes 16 bits */
    struct cuda_passed passed;
    char lt_text[240];
    char device_name[96];
    char cause[160]; /* of the loss */
    char news[240];  /* that nobody has asked for yet; "": none */
};

/* ---- err.cu --------------------------------------------------------------------------------- */

/* 0 or a negative errno; the call and the error are news, but for -ENOMEM. */
int cuda_err(struct cuda *cu, cudaError_t e, const char *call);
/* The same with a text; cu may be NULL. */
int cuda_error(struct cuda *cu, cudaError_t e, const char *call, struct error *reterr);
/* After each launch; what was only written down fails where it is handed over. */
int cuda_launched(struct cuda *cu, const char *kernel);

/* ---- launches (queue.cu, launch.cu, graph.cu) ------------------------------------------------ */

enum { CUDA_CALL_ARGS = 12, CUDA_CALL_BYTES = 4096 };

/* One launch; its arguments lie in the queue. */
struct cuda_call {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    uint32_t at, n_bytes;
    int32_t n_args;
    bool early; /* the kernel waits for itself: grid_wait() */
    bool side;  /* runs beside what comes next, behind what came before */
    bool join;  /* waits for what runs beside, too */
};

uint64_t cuda_queue_bytes(void); /* of the host */
uint64_t cuda_graph_bytes(void); /* that graphs may take of the device */
int cuda_queue_create(struct cuda *cu);
void cuda_queue_destroy(struct cuda *cu);
/* From here on launches are written down, to go as one graph ... */
void cuda_queue_begin(struct cuda *cu);
/* ... at the latest here: before anything else touches the device. */
int cuda_queue_flush(struct cuda *cu);
/* A step begins: what came before is handed over, and launches of decode rows are written down. */
int cuda_queue_step(struct cuda *cu, bool decode);
bool cuda_queue_writes(const struct cuda *cu); /* are launches written down? */
int cuda_queue_error(struct cuda *cu); /* of launches since the last time */

/* The next launch is one of those. */
void cuda_call_early(struct cuda *cu);
/* The next launch runs beside those behind it, until one that joins or the queue's end. */
void cuda_call_side(struct cuda *cu);
/* The next launch waits for what runs beside, if anything does. */
void cuda_call_join(struct cuda *cu);
void cuda_call_start(struct cuda *cu, struct cuda_call *c, const char *name, const void *kernel,
                     dim3 grid, dim3 block, size_t shared);
void cuda_call_arg(struct cuda *cu, struct cuda_call *c, const void *arg, size_t size,
                   size_t align);
void cuda_call_end(struct cuda *cu, struct cuda_call *c);
/* The launch just made gave y, one row of n_cols, and can give its codes; its last argument is a
 * struct cuda_codes. `reads`: codes that it reads, or NULL. */
void cuda_call_offer(struct cuda *cu, const float *y, int32_t n_cols, const uint8_t *reads);
/* That argument, for as long as the launch is only written down and the last of all, and what it
 * reads; NULL: the last launch is none that gave x. */
struct cuda_codes *cuda_call_offered(struct cuda *cu, const float *x, int32_t n_cols,
                                     const uint8_t **ret_reads);

template <typename P> static inline void cuda_call_put(struct cuda *cu, struct cuda_call *c, P arg)
{
    cuda_call_arg(cu, c, &arg, sizeof(P), alignof(P));
}

template <typename... P, typename... A>
static inline void cuda_launch(struct cuda *cu, const char *name, void (*kernel)(P...), dim3 grid,
                               dim3 block, size_t shared, A... args)
{
    struct cuda_call c;

    cuda_call_start(cu, &c, name, reinterpret_cast<const void *>(kernel), grid, block, shared);
    (cuda_call_put<P>(cu, &c, args), ...);
    cuda_call_end(cu, &c);
}

/* A kernel of the module, in the list of all (code.cu). */
struct cuda_code {
    const void *kernel;
    bool large; /* may be launched with more shared memory than a block has unasked */
    struct cuda_code *next;
};

int cuda_code_add(struct cuda_code *c);

template <auto KERNEL, bool LARGE> struct cuda_code_of {
    static inline struct cuda_code code = {reinterpret_cast<const void *>(KERNEL), LARGE, NULL};
    static inline const int known = cuda_code_add(&code);
};

/* CUDA_LAUNCH(cu, grid, block, shared bytes, kernel, arguments...), then cuda_launched(). The
 * kernel is named, not a variable: the list of all kernels is made of these names. */
#define CUDA_LAUNCH(cu, grid, block, shared, kernel, ...)                                          \
    CUDA_LAUNCH_AS(cu, grid, block, shared, kernel, false, __VA_ARGS__)

/* The same with more dynamic shared memory than a block has unasked. */
#define CUDA_LAUNCH_LARGE(cu, grid, block, shared, kernel, ...)                                    \
    CUDA_LAUNCH_AS(cu, grid, block, shared, kernel, true, __VA_ARGS__)

#define CUDA_LAUNCH_AS(cu, grid, block, shared, kernel, large, ...)                                \
    ((void)&cuda_code_of<(kernel), large>::known, CUDA_KNOWN(kernel),                              \
     cuda_launch(cu, #kernel, kernel, grid, block, shared, __VA_ARGS__))

/* The same of a kernel that calls grid_begin() and grid_wait() (prim.cuh). */
#define CUDA_LAUNCH_EARLY(cu, ...) (cuda_call_early(cu), CUDA_LAUNCH(cu, __VA_ARGS__))

#define CUDA_LAUNCH_LARGE_EARLY(cu, ...) (cuda_call_early(cu), CUDA_LAUNCH_LARGE(cu, __VA_ARGS__))

/* Loads the code of all kernels and sets their limits; -ENODEV: this build has none for the device.
 */
int cuda_code_load(struct cuda *cu, struct error *reterr);

/* ---- pieces (memory.cu) -----------------------------------------------------------------------
 */

/* Memory for the length of a call in which no operation runs: weights being packed, slots on their
 * way out. Scratch that is there anyway, so that nothing is allocated after the start; where host
 * and device share their memory the pinned stage, which then needs no copy (`host` is the same
 * bytes). Only without scratch (tools, tests) memory of its own. */
struct cuda_piece {
    uint8_t *device;
    uint8_t *host; /* NULL: bytes go by write and read */
    uint64_t bytes;
    bool own;
};

/* At least `least` bytes, `most` where there are as many. */
int cuda_piece_take(struct cuda *cu, uint64_t least, uint64_t most, struct cuda_piece *ret);
/* Waits. Returns r, or what the wait found. */
int cuda_piece_drop(struct cuda *cu, struct cuda_piece *p, int r);
/* Bytes of the piece from and to the host; `from` and `to` may be anywhere. */
int cuda_piece_write(struct cuda *cu, struct cuda_piece *p, const void *from, uint64_t bytes);
int cuda_piece_read(struct cuda *cu, struct cuda_piece *p, void *to, uint64_t bytes);

/* cuda.few_from, unless pipit-kbench sets another. */
enum { CUDA_FEW_FROM = 9 };

/* ---- shared by kernels ---------------------------------------------------------------------- */

/* The byte layout of a page: K panels [k_heads][64][k_row], V panels [v_heads][64][v_row], K scales
 * [k_heads][64], V scales [v_heads][64]. A row is padded to whole groups of 8 elements with zeros,
 * so that every load is 8, 16 or 32 aligned bytes. Types of four bits have several scales a slot and
 * head, [k_heads][64][k_scales] (kv_four.cuh). Where queries select, then a copy of K by dim,
 * [k_heads][k_dim][64], to rank slots by: in K's type (OPS_RANK_2K), or in fp8 with scales of its
 * own [k_heads][64] (OPS_RANK_8). Last the partial keys, by dim, too: [k_heads][part_dims][64], in
 * fp8 with scales [k_heads][64]; or these alone in pages of their own. */
struct cuda_layout {
    int32_t n_groups, k_heads, v_heads, k_dim, v_dim;
    int32_t k_type, v_type; /* enum ops_kv_type */
    uint32_t k_row, v_row;  /* bytes */
    uint32_t v_at, k_scale_at, v_scale_at;
    int32_t k_scales, v_scales; /* of a slot and head */
    uint32_t rank_at, rank_scale_at;
    int32_t rank;                 /* enum ops_rank */
    int32_t part_dims, part_type; /* 0: no partial keys */
    uint64_t page_bytes;
    uint64_t part_bytes; /* from a page's partial keys to the next one's */
};

struct cuda_seq {
    uint8_t *pool;
    uint8_t *part; /* partial keys of page 0; NULL: none are made */
    const uint32_t *pages;
    int32_t *slot_pos;
    float *score;
    float *v_sum;
    const float *skew;
    const float *center; /* (n_groups, k_heads, k_dim) or NULL */
    const float *balance; /* the same, with k_hadamard */
    bool k_hadamard, v_hadamard;
    int32_t latest_from;
    uint8_t *latest; /* entries of the latest tokens (kv_four.cuh) or NULL */
    const int32_t *victim;
    int32_t row0, n_rows, pos0, slot0, ring;
    int32_t max_pages, cap, n_slots;
};

struct cuda_seqs {
    struct cuda_layout layout; /* of all of them */
    int32_t n;
    struct cuda_seq s[CUDA_SEQS];
};

struct cuda_norm {
    const float *w;
    const float *b;
    float eps;
    int32_t layer;
};

/* Sequences from `first` on that share a layout, at most CUDA_SEQS; returns how many. */
int32_t cuda_seqs_take(const struct ops_seq *seqs, int32_t first, int32_t n, struct cuda_seqs *ret);
struct cuda_layout cuda_layout_of(const struct ops_kv_layout *l);
struct cuda_norm cuda_norm_of(const struct ops_norm *n);
/* f32 of a weight of role vector, NULL for NULL. */
const float *cuda_vector(const struct ops_weight *w);

static inline struct cuda *cuda_of(struct backend *be)
{
    return reinterpret_cast<struct cuda *>(be);
}

static inline uint32_t cuda_div_up(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* Chunks of attention by the general kernels and of rows that select: a function of n_slots alone
 * (ops.h), so bits do not depend on load. */
static inline __host__ __device__ int32_t cuda_chunk(int32_t n_slots)
{
    return n_slots <= 4096 ? 128 : n_slots <= 32768 ? 512 : 1024;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* What a backend has cublasLt multiply. */
struct cuda_lt_use {
    uint64_t work; /* bytes of its workspace; 0: nothing */
    bool unpacks;  /* quantised weights, too */
};

uint64_t cuda_scratch(const struct backend_limits *limits, struct cuda_lt_use lt, uint8_t *base,
                      struct cuda_scratch *ret);

int cuda_weights_reserve(struct backend *be, uint64_t bytes, struct error *reterr);
uint64_t cuda_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *desc);
int cuda_weight_create(struct backend *be, const struct ops_weight_desc *desc,
                       struct ops_weight *ret, struct error *reterr);
void cuda_weight_destroy(struct backend *be, struct ops_weight *w);
int cuda_kv_layout(struct ops_kv_layout *layout, struct error *reterr);
int cuda_embed(struct backend *be, const struct ops_embed *p);
int cuda_norm(struct backend *be, const struct ops_norm_op *p);
int cuda_matmul(struct backend *be, const struct ops_matmul *p);
int cuda_experts(struct backend *be, const struct ops_experts *p);
int cuda_gather(struct backend *be, const struct ops_gather *p);
int cuda_mul(struct backend *be, const struct ops_mul *p);
int cuda_softcap(struct backend *be, const struct ops_softcap *p);
int cuda_rope_store(struct backend *be, const struct ops_rope_store *p);
int cuda_qkv_store(struct backend *be, const struct ops_matmul *p, const struct ops_rope_store *s);
int cuda_attention(struct backend *be, const struct ops_attention *p);
int cuda_predict(struct backend *be, const struct ops_predict *p);
int cuda_conv(struct backend *be, const struct ops_conv *p);
int cuda_delta(struct backend *be, const struct ops_delta *p);
int cuda_scan(struct backend *be, const struct ops_scan *p);
int cuda_gate(struct backend *be, const struct ops_gate *p);
int cuda_bring(struct backend *be, const struct ops_bring *p);
int cuda_kv_sum(struct backend *be, const struct ops_kv_sum *p);
int cuda_victim(struct backend *be, const struct ops_victim *p);
int cuda_cut(struct backend *be, const struct ops_cut *p);
int cuda_expect(struct backend *be, const struct ops_expect *p);
int cuda_kv_export(struct backend *be, const struct ops_kv_slots *p);
int cuda_kv_import(struct backend *be, const struct ops_kv_slots *p);
int cuda_sample(struct backend *be, const struct ops_sample *p);

#endif
