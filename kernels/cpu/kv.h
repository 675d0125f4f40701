/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_H
#define PIPIT_KERNELS_CPU_KV_H
/* What the cache's operations of the cpu backend share: scratch, and small questions about a
 * sequence's slots. The page's layout is in kv_page.h, the inner kernels in table_kv.h. */

#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_page.h"

enum {
    KV_CHUNK = 256,        /* slots of a decode row that one unit reads */
    KV_CHUNK_PAGES = KV_CHUNK / OPS_PAGE_SLOTS,
    KV_PAIRS = 192,        /* (row, head) pairs of a prefill block, or one row's heads */
    KV_TILE_PAIRS = 768,   /* of a block that goes as tiles; at least 32 rows */
    KV_PARTIAL_HEAD = 16,  /* floats before a partial's sums */
    KV_ROPE_TABLES = 2,    /* models with two RoPEs (local and global layers) alternate */
    KV_ANGLE_STEPS = 32,   /* positions from one whose sine is computed to the next */
};

/* What a RoPE table was made for. Kept in scratch, which starts as zeros. */
struct kv_rope_key {
    int32_t n_dims; /* 0: unused */
    enum ops_rope_form form;
    float mscale;
    uint32_t used; /* larger: later */
};

/* cos and sin of rows' positions, kept from layer to layer. */
struct kv_rope_table {
    struct kv_rope_key *key;
    float *inv_freq; /* (max_head_dim / 2), part of the key */
    /* (max_head_dim / 2, KV_ANGLE_STEPS, 2): cosine and sine of 0, 1, 2 ... positions */
    double *step;
    int32_t *pos;    /* (max_rows): the position that row i holds, plus 1; 0 none */
    float *cos;      /* (max_rows, pad): for each dim the factor of itself ... */
    float *sin;      /* ... and, with its sign, of its partner */
    size_t pad;
};

/* The same for ranks (pos=new), in two levels: the angle of rank 64 a + b is that of 64 a plus that
 * of b. Made once for a model. */
struct kv_rank_table {
    struct kv_rope_key *key;
    float *inv_freq;
    float *coarse_cos; /* (max_slots / 64 + 1, pad / 2) */
    float *coarse_sin;
    float *fine_cos;   /* (64, pad / 2) */
    float *fine_sin;
    size_t ld;
};

/* What threads keep apart. */
struct kv_thread {
    float *k;      /* (64, max_head_dim): a page's head as f32; also one tile of stores */
    float *v;      /* (64, pad(max_head_dim)) */
    float *x;      /* (max(KV_PAIRS, max_heads), 64) or (max_heads, KV_CHUNK) */
    float *acc;    /* (max(KV_PAIRS, max_heads), pad(max_head_dim)); with tiles as many as tile_q */
    float *state;  /* (8, as many): running maxima, sums; factors, by whole 64 */
    float *row;    /* (pad(max_head_dim)) */
    float *noise;  /* (64) */
    int32_t *pos;  /* (KV_CHUNK) */
    float *seen;   /* (seen_floats): what observed rows of a prefill block weigh, see attention */
    float *seen_max; /* (seen_floats / 64) */
    uint64_t *keys; /* (2, max_slots): cut, ranks */
    /* attention_tiles.c, where the CPU has tiles (max_head_dim in whole tiles of 32): */
    uint16_t *tile_q; /* (max(KV_TILE_PAIRS, 32 max_heads), max_head_dim) */
    uint16_t *tile_k; /* (TILE_KEYS, max_head_dim) */
    uint16_t *tile_v; /* (TILE_KEYS, max_head_dim) */
    float *tile_s;    /* (TILE_QUERIES, TILE_KEYS) */
    uint16_t *tile_p; /* (TILE_QUERIES, TILE_KEYS) */
    float *tile_mul;  /* (2, TILE_KEYS) */
    /* Queries that select: */
    float *total;          /* (max_slots in whole pages) */
    float *left;           /* the same */
    int32_t *list;         /* the same */
    int32_t *list_pos;
    uint16_t *list_scale;
    const void **list_rows;
    int32_t *rank; /* pos=new: (max_slots in whole pages) */
    /* (max(KV_PAIRS, max_heads), pad(max_head_dim)): pos=new: turned back queries; decode: queries
     * as qk reads them */
    float *q;
};

/* Decode rows that select: what one step leaves for the next. */
struct kv_select {
    struct ops_seq *seqs; /* (max_seqs) */
    float *x;      /* (wave rows, n_q, ld) */
    float *seen;   /* the same, observed */
    float *max;    /* (wave rows, n_q, ld / 512 + 1) */
    float *q;      /* (wave rows, n_q, pad) */
    int32_t *dims; /* the same */
    size_t ld;
    size_t pad;
    int32_t wave;
};

struct kv_scratch {
    struct kv_rope_table rope[KV_ROPE_TABLES];
    struct kv_rank_table rank[KV_ROPE_TABLES];
    struct kv_thread t;         /* of the thread asked for */
    float *partial;             /* decode: (wave rows, n_q, chunks, KV_PARTIAL_HEAD + v_pad) */
    float *seen;                /* decode, observed: (wave rows, n_q, chunks * KV_CHUNK) */
    atomic_int *done;           /* decode: (wave rows, max_heads) chunks of a row and group */
    atomic_int *commit;         /* prefill, observed: (max_seqs * max_heads) blocks done */
    float *score;               /* (max_slots) shared choices */
    struct kv_select select;
    int32_t wave;               /* decode rows that partial and seen hold */
    size_t seen_floats;
};

/* Addresses of everything, for thread `tid`. */
struct kv_scratch cpu_kv_scratch(const struct cpu *cpu, int tid);

/* Is a table made for these frequencies? Else the one that was not used for longest is to be made
 * anew: returns its index, its key set, and true in *ret_stale. */
int cpu_kv_find_table(struct kv_rope_key *const keys[], float *const inv_freqs[],
                      const struct ops_rope *rope, bool *ret_stale);

/* rope_store.c: the table of these frequencies; and thread tid's part of filling it for the rows of
 * these sequences, all of which are there when all threads have been through. */
struct kv_rope_table cpu_kv_rope_table(const struct kv_scratch *s, const struct ops_rope *r,
                                       int32_t max_rows);
void cpu_kv_fill_angles(const struct kv_rope_table *t, const struct ops_seq *seqs, int32_t n_seqs,
                        int tid, int n_threads);

/* Position held by a slot, -1 when empty. */
static inline int32_t kv_slot_pos(const struct ops_kv *kv, int32_t group, int32_t slot)
{
    return kv->slot_pos ? kv->slot_pos[(size_t)group * (size_t)kv->cap + (size_t)slot] : slot;
}

/* Where the one row of a sequence goes. */
static inline int32_t kv_own_slot(const struct ops_seq *seq, int32_t group)
{
    return seq->victim ? seq->victim[group] : seq->slot0;
}

/* kv_copy.c: copies of K of slots [first, first + n) of a page and head, made anew; scratch (2,
 * pad).
 * Those of slot j of one page to slot i of another, all heads. */
void cpu_kv_copy_k(const struct cpu *cpu, const struct ops_kv_layout *l, uint8_t *page,
                   int32_t head, int32_t first, int32_t n, float *scratch);
void cpu_kv_move_k(const struct ops_kv_layout *l, uint8_t *to, int32_t i, uint8_t *from, int32_t j);
/* kv_part.c: partial keys of slots [slot, slot + n) of one page, made anew from K; and those of
 * slot j of one page to slot i of another, all heads. Uses the thread's k, x and row. */
void cpu_kv_make_part(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, int32_t slot,
                      int32_t n, const struct kv_thread *t);
void cpu_kv_move_part(const struct ops_kv_layout *l, uint8_t *to, int32_t i, uint8_t *from,
                      int32_t j);
/* v_sum gets factor times the slot's V; scratch (v_pad). */
void cpu_kv_add_value(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, int32_t slot,
                      float factor, float *scratch);

cpu_kv_dims_fn *cpu_kv_dims(const struct cpu_table *t, enum ops_kv_type type);
cpu_kv_rows_fn *cpu_kv_rows(const struct cpu_table *t, enum ops_kv_type type);
cpu_kv_blend_fn *cpu_kv_blend(const struct cpu_table *t, enum ops_kv_type type);
cpu_kv_query_fn *cpu_kv_query(const struct cpu_table *t, enum ops_kv_type type); /* NULL: none */
cpu_kv_qk_fn *cpu_kv_qk(const struct cpu_table *t, enum ops_kv_type type);
cpu_kv_pv_fn *cpu_kv_pv(const struct cpu_table *t, enum ops_kv_type type);
cpu_kv_unpack_fn *cpu_kv_unpack(const struct cpu_table *t, enum ops_kv_type type); /* f32: NULL */
cpu_kv_encode_fn *cpu_kv_encode(const struct cpu_table *t, enum ops_kv_type type); /* f32: NULL */

#endif
