/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of the cpu backend: what its two ways share, and the choice between them. Rows of class
 * decode read all slots once, cut into chunks (attention_decode.c); rows of class prefill go in
 * blocks over pages (attention_prefill.c). */

#include "kernels/cpu/attention.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/noise.h"

#define LOG2_E 1.44269504f

struct att_unit att_unit_make(const struct cpu *cpu, const struct ops_attention *p, int32_t seq,
                              int32_t group, const struct kv_thread *t)
{
    const struct ops_seq *s = &p->seqs[seq];
    const struct ops_observe *o = p->observe ? &p->observe[seq] : NULL;
    struct att_unit u = {.cpu = cpu, .p = p, .seq = s, .l = s->kv.layout, .t = t, .group = group};

    if (o && o->row_first < s->n_rows && s->kv.score && cpu->limits.observe) {
        u.observe = o;
    }
    u.n_heads = p->n_q / u.l->n_groups;
    u.share_k = u.n_heads / u.l->k_heads;
    u.share_v = u.n_heads / u.l->v_heads;
    return u;
}

void att_positions(const struct att_unit *u, int32_t slot0, int32_t *pos)
{
    const struct ops_kv *kv = &u->seq->kv;
    int32_t n = kv->n_slots - slot0 < OPS_PAGE_SLOTS ? kv->n_slots - slot0 : OPS_PAGE_SLOTS;

    if (kv->slot_pos) {
        memcpy(pos, kv->slot_pos + (size_t)u->group * (size_t)kv->cap + (size_t)slot0,
               (size_t)n * sizeof(int32_t));
    }
    for (int32_t i = 0; i < n && !kv->slot_pos; i++) {
        pos[i] = slot0 + i;
    }
    for (int32_t i = n; i < OPS_PAGE_SLOTS; i++) {
        pos[i] = -1;
    }
}

bool att_is_masked(const struct att_unit *u, int32_t row, int32_t slot0)
{
    int32_t row_pos = u->seq->pos0 + row;
    int32_t end = slot0 + OPS_PAGE_SLOTS;

    return u->seq->kv.slot_pos || end > u->seq->kv.n_slots || end - 1 > row_pos ||
           (u->p->window > 0 && slot0 <= row_pos - u->p->window);
}

float att_logits(const struct att_unit *u, int32_t row, int32_t head, const uint16_t *k_scale,
                 const int32_t *pos, const int32_t *distance, bool masked, float *x)
{
    const struct ops_attention *p = u->p;
    int32_t row_pos = u->seq->pos0 + row;
    int32_t oldest = p->window > 0 ? row_pos - p->window + 1 : 0;
    int32_t query_head = u->group * u->n_heads + head;
    struct cpu_kv_logits logits = {
        .scale = p->scale * LOG2_E,
        .k_scale = k_scale,
        .softcap = p->softcap,
        .slope = p->alibi_max > 0 ? ops_alibi_slope(query_head, p->n_q, p->alibi_max) : 0,
        .row_pos = row_pos,
        .distance = distance,
        .pos = masked ? pos : NULL,
        .pos_min = oldest > 0 ? oldest : 0,
        .pos_max = row_pos,
    };

    return u->cpu->table.kv_logits(&logits, x);
}

float att_with_sink(const struct ops_attention *p, int32_t head, float max, float sum)
{
    const float *sinks = p->sinks ? p->sinks->device : NULL;

    return sinks && sum > 0 ? sum + exp2f(sinks[head] * LOG2_E - max) : sum;
}

/* ---- observing ----------------------------------------------------------------------------- */

float att_tau(const struct att_unit *u, int32_t row)
{
    return u->observe->tau0 + (float)row * u->observe->tau_step;
}

enum att_mode att_mode(const struct att_unit *u, int32_t row)
{
    const struct ops_observe *o = u->observe;

    if (!o || row < o->row_first) {
        return ATT_UNSEEN;
    }
    if (o->noise == OPS_NOISE_GAUSS || att_tau(u, row) != 1.0f) {
        return ATT_TEMPERED;
    }
    return o->noise == OPS_NOISE_GUMBEL ? ATT_GUMBEL : ATT_SOFTMAX;
}

static bool aligned(const int32_t *pos)
{
    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        if (pos[i] != pos[0] + i) {
            return false;
        }
    }
    return pos[0] % OPS_PAGE_SLOTS == 0;
}

const float *att_noise(const struct att_unit *u, enum att_mode mode, int32_t row, int32_t head,
                       const int32_t *pos)
{
    const struct ops_observe *o = u->observe;
    struct cpu_kv_noise noise = {
        .o = o,
        .head = (uint32_t)(u->group * u->n_heads + head),
        .row_pos = (uint32_t)(u->seq->pos0 + row),
        .pos = pos,
    };

    if (o->noise == OPS_NOISE_NONE || o->noise == OPS_NOISE_CONST) {
        return NULL;
    }
    if (o->noise == OPS_NOISE_GAUSS) { /* the paper's comparison only: not worth vectors */
        for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
            u->t->noise[i] = noise_draw(o, noise.head, noise.row_pos, (uint32_t)pos[i]);
        }
        return u->t->noise;
    }
    noise.aligned = aligned(pos);
    u->cpu->table.kv_gumbel(&noise, u->t->noise);
    if (mode == ATT_TEMPERED) {
        u->cpu->table.kv_log(u->t->noise, 1.0f);
    }
    return u->t->noise;
}

void att_score(const struct att_unit *u, int32_t slot0, const struct cpu_kv_score *rows)
{
    const struct ops_kv *kv = &u->seq->kv;
    float *score = kv->score + (size_t)u->group * (size_t)kv->cap + (size_t)slot0;
    int32_t n = kv->n_slots - slot0;
    float part[OPS_PAGE_SLOTS] = {0};

    if (n >= OPS_PAGE_SLOTS) {
        u->cpu->table.kv_score(score, rows);
        return;
    }
    memcpy(part, score, (size_t)n * sizeof(float));
    u->cpu->table.kv_score(part, rows);
    memcpy(score, part, (size_t)n * sizeof(float));
}

void att_damp(const struct att_unit *u, int32_t slot0, int32_t n)
{
    const struct ops_kv *kv = &u->seq->kv;
    float *score = kv->score + (size_t)u->group * (size_t)kv->cap + (size_t)slot0;
    float factor = 1;

    for (int32_t r = u->observe->row_first; r < u->seq->n_rows; r++) {
        factor *= u->observe->damp;
    }
    for (int32_t i = 0; i < n && factor != 1.0f; i++) {
        score[i] *= factor;
    }
}

/* ---- the operation ------------------------------------------------------------------------- */

static bool valid(const struct cpu *cpu, const struct ops_attention *p)
{
    const struct backend_limits *limits = &cpu->limits;

    if (p->rows.n > limits->max_rows || p->n_seqs > limits->max_seqs ||
        p->n_q > limits->max_heads || (p->sinks && (p->select || p->sinks->n_cols != p->n_q))) {
        return false;
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (p->seqs[i].kv.n_slots > limits->max_slots || l->k_dim > limits->max_head_dim ||
            l->v_dim > limits->max_head_dim || p->n_q % (l->n_groups * l->k_heads) != 0 ||
            p->n_q % (l->n_groups * l->v_heads) != 0) {
            return false;
        }
        if (l->k_unrotated && p->unrotated_rope && p->unrotated_rope->form != OPS_ROPE_NONE &&
            p->unrotated_rope->n_dims > l->k_dim) {
            return false;
        }
        if (p->observe && p->observe[i].row_first < p->seqs[i].n_rows && p->seqs[i].kv.score &&
            !limits->observe) {
            return false;
        }
    }
    return true;
}

/* Sums of transformed V become sums of V, TURN_ROWS rows a unit. */
enum { TURN_ROWS = 16 };

struct turn {
    const struct cpu *cpu;
    const struct ops_attention *p;
    struct pool_counter next;
};

static void turn_rows(void *arg, int tid, int n_threads)
{
    struct turn *turn = arg;
    const struct ops_attention *p = turn->p;
    const struct ops_seq *s = p->seqs;
    int32_t row = 0;

    (void)tid;
    (void)n_threads;
    while ((row = TURN_ROWS * pool_counter_take(&turn->next)) < p->rows.n) {
        for (int32_t i = row; i < p->rows.n && i < row + TURN_ROWS; i++) {
            while (s + 1 < p->seqs + p->n_seqs && i >= s->row0 + s->n_rows) {
                s++;
            }
            for (int32_t h = 0; h < p->n_q && s->kv.v_hadamard; h++) {
                turn->cpu->table.kv_hadamard(p->out + (size_t)i * (size_t)p->ldo +
                                                 (size_t)h * (size_t)s->kv.layout->v_dim,
                                             s->kv.layout->v_dim);
            }
        }
    }
}

static void turn_back(const struct cpu *cpu, const struct ops_attention *p)
{
    struct turn turn = {.cpu = cpu, .p = p};
    bool any = false;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        any = any || p->seqs[i].kv.v_hadamard;
    }
    if (any && p->rows.n > TURN_ROWS) {
        pool_run(cpu->pool, turn_rows, &turn);
    } else if (any) {
        turn_rows(&turn, 0, 1);
    }
}

int cpu_attention(struct backend *be, const struct ops_attention *p)
{
    struct cpu *cpu = cpu_of(be);
    int r;

    if (!valid(cpu, p)) {
        return -EINVAL;
    }
    r = p->select ? att_select(cpu, p) : att_decode(cpu, p);
    r = r < 0 ? r : att_prefill(cpu, p);
    if (r == 0) {
        turn_back(cpu, p);
    }
    return r;
}
