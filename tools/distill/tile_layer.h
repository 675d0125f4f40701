/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer's passes are given and keep (tile_layer.c, tile_wide.c). */

#ifndef PIPIT_DISTILL_TILE_LAYER_H
#define PIPIT_DISTILL_TILE_LAYER_H

#include "tools/distill/tile.h"

/* Every field of these two has 8 bytes; layers.py has the same lists. Weights are packed; q, k, v
 * and o_back have their rows or columns in the order of `halves`. k and v are null where the layer
 * reads a shared store.
 *
 * The store has kv heads of key_dim and value_dim, 64 unless it is wide: then kv is 1, q and o_back
 * are in their own order, and every head has maps, one after another: q_map of key_dim rows (in the
 * order of `halves`) and 64 columns, v_map of 64 rows and value_dim columns, their _back in their
 * own order for the gradients by what they are multiplied with. */
struct tile_layer {
    int64_t s;    /* rows of a sequence */
    int64_t keys; /* positions of the store; s where the layer has its own */
    int64_t d;
    int64_t heads;
    int64_t kv;
    int64_t width;
    int64_t key_dim;
    int64_t value_dim;
    double eps;
    const int32_t *at;   /* (s) the rows' positions, or null: tile.h's struct rows */
    const float *cosine; /* (s, key_dim / 2) of these positions */
    const float *sine;
    const float *attn_norm;
    const float *ffn_norm;
    const uint16_t *q;
    const uint16_t *k;
    const uint16_t *v;
    const uint16_t *o;
    const uint16_t *gate_up;
    const uint16_t *down;
    const uint16_t *q_back;
    const uint16_t *o_back;
    const uint16_t *gate_up_back;
    const uint16_t *down_back;
    const uint16_t *q_map; /* null: not wide */
    const uint16_t *v_map;
    const uint16_t *q_map_back;
    const uint16_t *v_map_back;
};

static inline struct rows queried(const struct tile_layer *l)
{
    return (struct rows){l->s, l->keys, l->at, l->key_dim, l->value_dim};
}

/* What the way back needs of a layer, for all sequences; only `state` may be alone. */
struct tile_kept {
    float *state;      /* the layer's input (b, s, d) */
    float *mid;        /* after attention (b, s, d) */
    float *inv_attn;   /* (b, s) */
    float *inv_ffn;    /* (b, s) */
    float *log_sum;    /* (b, heads, s) */
    uint16_t *queries; /* (b, heads, s, key_dim), rotated */
    uint16_t *out;     /* of attention: (b) left operands of heads * 64 columns */
    uint16_t *gated;   /* (b, s, 2 * width) */
    /* of wide stores */
    uint16_t *plain; /* queries before their maps: (b, heads) left operands of 64 columns */
    uint16_t *read;  /* of the store: (b, heads) left operands of value_dim columns */
};

/* What the way back gives of a layer: factors of gradients by weights. */
struct tile_back {
    uint16_t *dq;  /* by the query projection: dq^T x, (b, s, heads * 64) */
    uint16_t *x;   /* (b, s, d) */
    uint16_t *dy;  /* by the output projection: dy^T out, (b, s, d); null: it is frozen */
    uint16_t *out; /* (b, s, heads * 64) */
    /* by the maps: dmapped^T plain, (b, heads, s, key_dim) and 64; da^T read, 64 and value_dim */
    uint16_t *dmapped;
    uint16_t *plain;
    uint16_t *da;
    uint16_t *read;
};

/* Attention over a wide store: x, a left operand of d columns, to what the output projection takes,
 * o, a left operand of heads * 64 columns. k, v: the sequence's store. kept: where the sequence's
 * rotated queries, plain and read go; log_sum may be null. */
void wide_there(const struct tile_layer *l, const uint16_t *x, const uint16_t *k, const uint16_t *v,
                const struct tile_kept *kept, uint16_t *o, uint8_t *scratch);
/* g, the gradient by the layer's attention as a left operand of d columns, to that by projected
 * queries, left, a left operand of heads * 64 columns. kept, back: of the sequence. */
void wide_back(const struct tile_layer *l, const uint16_t *g, const uint16_t *k, const uint16_t *v,
               const struct tile_kept *kept, const struct tile_back *back, float *dk, float *dv,
               uint16_t *left, uint8_t *scratch);
/* Bytes. */
int64_t wide_there_scratch(const struct tile_layer *l);
int64_t wide_back_scratch(const struct tile_layer *l);

/* To memory that is not read soon. */
static inline void stream(void *to, const void *from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) {
        _mm512_stream_si512((void *)((char *)to + i), _mm512_loadu_si512((const char *)from + i));
    }
}

/* Rows of a left operand of k columns. */
static inline void from_left(const uint16_t *x, int64_t n, int64_t k, uint16_t *y)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t i = 0; i < k; i += 32) {
            memcpy(y + r * k + i, tiled((uint16_t *)x, k, r, i), 64);
        }
    }
}

#endif
