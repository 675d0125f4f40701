/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the victim of one token, and the cut at the end of a prompt (kernels/ref/cut.c says
 * exactly what). A slot's rank is one 64-bit key, score above position, so that a choice among all
 * slots is the selection of the n smallest keys: no sort, linear time, and no two keys are equal.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/kv.h"
#include "quant/half.h"

static const float *group_score(const struct ops_kv *kv, int32_t group)
{
    return kv->score + (size_t)group * (size_t)kv->cap;
}

static const float *choice_score(const struct ops_kv *kv, int32_t group, bool by_position,
                                 bool shared, float *sum)
{
    if (by_position) {
        return NULL;
    }
    if (!shared) {
        return group_score(kv, group);
    }
    for (int32_t s = 0; s < kv->n_slots; s++) {
        sum[s] = 0;
        for (int32_t g = 0; g < kv->layout->n_groups; g++) {
            sum[s] += group_score(kv, g)[s];
        }
    }
    return sum;
}

/* Larger float, larger number; -0 is 0. */
static uint32_t ordered(float f)
{
    uint32_t u = half_bits32(f + 0.0f);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static uint64_t key_of(const float *score, int32_t slot, int32_t pos)
{
    return (uint64_t)(score ? ordered(score[slot]) : 0) << 32 | (uint32_t)pos;
}

/* Slot of [from, end) that goes first, or -1; its key to *least, if smaller than that. */
static int32_t first_to_go(const struct ops_victim *p, int32_t group, const float *score,
                           int32_t from, int32_t end, uint64_t *least)
{
    int32_t best = -1;

    for (int32_t s = from; s < end; s++) {
        int32_t pos = kv_slot_pos(p->kv, group, s);
        uint64_t key = key_of(score, s, pos);

        if (key < *least && pos >= 0 && pos >= p->sinks && pos < p->pos_protect) {
            best = s;
            *least = key;
        }
    }
    return best;
}

/* Vectors find the least score of each of 64 pieces; only pieces that have the least of all are
 * looked at slot by slot. */
static int32_t find_victim(const struct cpu *cpu, const struct ops_victim *p, int32_t group,
                           const float *score)
{
    const struct ops_kv *kv = p->kv;
    const int32_t *pos;
    int32_t piece = (kv->n_slots / 64 + 16) & ~15;
    float least = INFINITY;
    float of_piece[64];
    uint64_t key = UINT64_MAX;
    int32_t best = -1;

    if (!score || !kv->slot_pos) {
        return first_to_go(p, group, score, 0, kv->n_slots, &key);
    }
    pos = kv->slot_pos + (size_t)group * (size_t)kv->cap;
    for (int32_t i = 0; i * piece < kv->n_slots; i++) {
        int32_t left = kv->n_slots - i * piece;

        of_piece[i] =
            cpu->table.kv_least(score + i * piece, pos + i * piece, left < piece ? left : piece,
                                p->sinks > 0 ? p->sinks : 0, p->pos_protect);
        least = of_piece[i] < least ? of_piece[i] : least;
    }
    for (int32_t i = 0; i * piece < kv->n_slots; i++) {
        int32_t end = (i + 1) * piece < kv->n_slots ? (i + 1) * piece : kv->n_slots;
        int32_t s = of_piece[i] == least ? first_to_go(p, group, score, i * piece, end, &key) : -1;

        best = s >= 0 ? s : best;
    }
    return best;
}

struct victim_job {
    const struct cpu *cpu;
    const struct ops_victim *p;
    struct pool_counter next;
};

static void victims(void *arg, int tid, int n_threads)
{
    struct victim_job *job = arg;
    const struct ops_victim *p = job->p;

    (void)tid;
    (void)n_threads;
    for (int g; (g = pool_counter_take(&job->next)) < p->kv->layout->n_groups;) {
        p->victim[g] =
            find_victim(job->cpu, p, g, choice_score(p->kv, g, p->by_position, false, NULL));
    }
}

int cpu_victim(struct backend *be, const struct ops_victim *p)
{
    struct cpu *cpu = cpu_of(be);
    struct kv_scratch scratch = cpu_kv_scratch(cpu, 0);
    struct victim_job job = {.cpu = cpu, .p = p};
    int r = 0;

    if (p->kv->n_slots > cpu->limits.max_slots) {
        return -EINVAL;
    }
    if (p->shared) {
        p->victim[0] =
            find_victim(cpu, p, 0, choice_score(p->kv, 0, p->by_position, true, scratch.score));
    } else {
        pool_share(cpu->pool, victims, &job);
    }
    for (int32_t g = 0; g < p->kv->layout->n_groups; g++) {
        p->victim[g] = p->shared ? p->victim[0] : p->victim[g];
        r = p->victim[g] < 0 ? -EINVAL : r;
    }
    return r;
}

/* ---- the cut ------------------------------------------------------------------------------- */

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t held = *a;

    *a = *b;
    *b = held;
}

/* The n-th smallest (from 0) of distinct keys: quickselect, pivot the median of three. */
static uint64_t nth_smallest(uint64_t *keys, int32_t n_keys, int32_t n)
{
    int32_t lo = 0;
    int32_t hi = n_keys - 1;

    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        int32_t store = lo;

        if (keys[mid] < keys[lo]) {
            swap(&keys[mid], &keys[lo]);
        }
        if (keys[hi] < keys[lo]) {
            swap(&keys[hi], &keys[lo]);
        }
        if (keys[mid] < keys[hi]) {
            swap(&keys[mid], &keys[hi]); /* the median is at hi */
        }
        for (int32_t i = lo; i < hi; i++) {
            if (keys[i] < keys[hi]) {
                swap(&keys[i], &keys[store++]);
            }
        }
        swap(&keys[store], &keys[hi]);
        if (store == n) {
            break;
        }
        if (store < n) {
            lo = store + 1;
        } else {
            hi = store - 1;
        }
    }
    return keys[n];
}

/* The smallest key that stays: all slots that may go and have a smaller one do. -EINVAL when too
 * few may go. */
static int threshold(const struct ops_cut *p, int32_t group, const float *score, uint64_t *keys,
                     uint64_t *ret)
{
    int32_t live = 0;
    int32_t n = 0;
    int32_t n_going;

    for (int32_t s = 0; s < p->kv->n_slots; s++) {
        int32_t pos = kv_slot_pos(p->kv, group, s);

        live += pos >= 0;
        if (pos >= 0 && pos >= p->sinks && pos < p->pos_protect) {
            keys[n++] = key_of(score, s, pos);
        }
    }
    n_going = live > p->budget ? live - p->budget : 0;
    if (n_going > n) {
        return -EINVAL;
    }
    *ret = n_going == n ? UINT64_MAX : nth_smallest(keys, n, n_going);
    return 0;
}

static void move_slot(const struct ops_kv *kv, int32_t group, int32_t to, int32_t from)
{
    const struct ops_kv_layout *l = kv->layout;
    uint8_t *a = kv_page_of(kv, group, to);
    uint8_t *b = kv_page_of(kv, group, from);
    size_t i = (size_t)(to % OPS_PAGE_SLOTS);
    size_t j = (size_t)(from % OPS_PAGE_SLOTS);
    bool by_slot = kv_page_by_slot(l->k_type);
    size_t element =
        by_slot ? (size_t)ops_kv_type_bytes(l->k_type, l->k_dim) : kv_page_element(l->k_type);
    size_t v_row = kv_page_v_row_bytes(l);

    for (int32_t h = 0; h < l->k_heads; h++) {
        uint8_t *x = kv_page_k(l, a, h) + i * element;
        const uint8_t *y = kv_page_k(l, b, h) + j * element;

        for (int32_t d = 0; d < (by_slot ? 1 : l->k_dim); d++) {
            memcpy(x + (size_t)d * OPS_PAGE_SLOTS * element,
                   y + (size_t)d * OPS_PAGE_SLOTS * element, element);
        }
        if (ops_kv_scale_bytes(l->k_type)) {
            kv_page_k_scale(l, a, h)[i] = kv_page_k_scale(l, b, h)[j];
        }
    }
    cpu_kv_move_k(l, a, (int32_t)i, b, (int32_t)j);
    cpu_kv_move_part(l, a, (int32_t)i, b, (int32_t)j);
    for (int32_t h = 0; h < l->v_heads; h++) {
        memcpy(kv_page_v(l, a, h) + i * v_row, kv_page_v(l, b, h) + j * v_row, v_row);
        if (ops_kv_scale_bytes(l->v_type)) {
            kv_page_v_scale(l, a, h)[i] = kv_page_v_scale(l, b, h)[j];
        }
    }
}

static void close_gaps(const struct ops_kv *kv, int32_t group, int32_t budget)
{
    int32_t *slot_pos = kv->slot_pos + (size_t)group * (size_t)kv->cap;
    float *score = kv->score ? kv->score + (size_t)group * (size_t)kv->cap : NULL;
    int32_t to = 0;

    for (int32_t from = budget; from < kv->n_slots; from++) {
        if (slot_pos[from] < 0) {
            continue;
        }
        while (slot_pos[to] >= 0) {
            to++;
        }
        move_slot(kv, group, to, from);
        slot_pos[to] = slot_pos[from];
        slot_pos[from] = -1;
        if (score) {
            score[to] = score[from];
            score[from] = 0;
        }
    }
}

/* Ranks every slot before any score is cleared: with shared scores group 0's are part of the sum.
 */
static void drop(const struct ops_cut *p, int32_t group, const float *score, uint64_t least)
{
    const struct ops_kv *kv = p->kv;

    for (int32_t s = 0; s < kv->n_slots; s++) {
        size_t at = (size_t)group * (size_t)kv->cap + (size_t)s;
        int32_t pos = kv->slot_pos[at];

        if (pos >= 0 && pos >= p->sinks && pos < p->pos_protect && key_of(score, s, pos) < least) {
            kv->slot_pos[at] = -1;
            if (kv->score) {
                kv->score[at] = 0;
            }
        }
    }
    close_gaps(kv, group, p->budget);
}

struct cut_job {
    const struct cpu *cpu;
    const struct ops_cut *p;
    atomic_int result;
    struct pool_counter next;
};

static void cut_group(struct cut_job *job, int32_t g, int tid)
{
    const struct ops_cut *p = job->p;
    struct kv_scratch scratch = cpu_kv_scratch(job->cpu, tid);
    const float *own = p->by_position ? NULL : group_score(p->kv, g);
    const float *score = own && p->shared ? scratch.score : own;
    uint64_t least;
    int r = threshold(p, g, score, scratch.t.keys, &least);

    if (r < 0) {
        atomic_store(&job->result, r);
        return;
    }
    drop(p, g, score, least);
}

static void cut_groups(void *arg, int tid, int n_threads)
{
    struct cut_job *job = arg;

    (void)n_threads;
    for (int g; (g = pool_counter_take(&job->next)) < job->p->kv->layout->n_groups;) {
        cut_group(job, g, tid);
    }
}

int cpu_cut(struct backend *be, const struct ops_cut *p)
{
    struct cpu *cpu = cpu_of(be);
    struct cut_job job = {.cpu = cpu, .p = p};
    struct kv_scratch scratch = cpu_kv_scratch(cpu, 0);

    if (!p->kv->slot_pos || p->kv->n_slots > cpu->limits.max_slots) {
        return -EINVAL;
    }
    if (p->shared && !p->by_position) {
        (void)choice_score(p->kv, 0, false, true, scratch.score);
    }
    pool_run(cpu->pool, cut_groups, &job);
    return atomic_load(&job.result);
}
