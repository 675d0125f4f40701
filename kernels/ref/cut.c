/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the victim of one token, and the cut at the end of a prompt.
 *
 * Both rank slots by (score, position), the smaller first; window policies by position alone.
 * A shared choice sums the scores of the groups in order and takes the same slots everywhere, which
 * supposes that the groups hold the same positions in the same slots. */

#include <errno.h>
#include <string.h>

#include "kernels/ref/ref.h"

static const float *group_score(const struct ops_kv *kv, int32_t group)
{
    return kv->score + (size_t)group * (size_t)kv->cap;
}

/* Scores by which group `group` (all of them, when shared) chooses. */
static const float *choice_score(const struct ops_kv *kv, int32_t group, bool shared, float *sum)
{
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

/* Does slot a go before slot b? score NULL: by position. */
static bool goes_first(const struct ops_kv *kv, int32_t group, const float *score, int32_t a,
                       int32_t b)
{
    if (score && score[a] != score[b]) {
        return score[a] < score[b];
    }
    return ref_kv_pos(kv, group, a) < ref_kv_pos(kv, group, b);
}

static int32_t find_victim(const struct ops_victim *p, int32_t group, const float *score)
{
    int32_t best = -1;

    for (int32_t s = 0; s < p->kv->n_slots; s++) {
        int32_t pos = ref_kv_pos(p->kv, group, s);

        if (pos >= 0 && pos >= p->sinks && pos < p->pos_protect &&
            (best < 0 || goes_first(p->kv, group, score, s, best))) {
            best = s;
        }
    }
    return best;
}

int ref_victim(struct backend *be, const struct ops_victim *p)
{
    struct ref *ref = (struct ref *)be;

    if (p->kv->n_slots > ref->limits.max_slots) {
        return -EINVAL;
    }
    for (int32_t g = 0; g < p->kv->layout->n_groups; g++) {
        if (p->shared && g > 0) {
            p->victim[g] = p->victim[0];
            continue;
        }
        p->victim[g] = find_victim(
            p, g, p->by_position ? NULL : choice_score(p->kv, g, p->shared, ref->score));
        if (p->victim[g] < 0) {
            return -EINVAL;
        }
    }
    return 0;
}

/* Heap sort of slots, the first to go first: no memory, and the same order everywhere. */
static void sift(const struct ops_kv *kv, int32_t group, const float *score, int32_t *order,
                 int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        int32_t held = order[root];

        if (child + 1 < n && goes_first(kv, group, score, order[child], order[child + 1])) {
            child++;
        }
        if (!goes_first(kv, group, score, held, order[child])) {
            return;
        }
        order[root] = order[child];
        order[child] = held;
    }
}

static void sort_slots(const struct ops_kv *kv, int32_t group, const float *score, int32_t *order,
                       int32_t n)
{
    for (int32_t i = n / 2; i-- > 0;) {
        sift(kv, group, score, order, i, n);
    }
    for (int32_t end = n; end-- > 1;) {
        int32_t first = order[0];

        order[0] = order[end];
        order[end] = first;
        sift(kv, group, score, order, 0, end);
    }
}

static void move_slot(const struct ops_kv *kv, int32_t group, int32_t to, int32_t from)
{
    const struct ops_kv_layout *l = kv->layout;
    struct ref_slot a = ref_kv_slot(kv, group, to);
    struct ref_slot b = ref_kv_slot(kv, group, from);

    memcpy(a.k, b.k, (size_t)l->k_heads * ops_kv_type_bytes(l->k_type, l->k_dim));
    memcpy(a.v, b.v, (size_t)l->v_heads * ops_kv_type_bytes(l->v_type, l->v_dim));
    memcpy(a.k_scale, b.k_scale, (size_t)l->k_heads * ops_kv_scale_bytes(l->k_type));
    memcpy(a.v_scale, b.v_scale, (size_t)l->v_heads * ops_kv_scale_bytes(l->v_type));
    for (int32_t h = 0; h < l->k_heads && l->part_dims > 0; h++) {
        memcpy(ref_kv_part(kv, group, to, h), ref_kv_part(kv, group, from, h),
               ops_kv_part_bytes(l));
    }
}

/* Survivors at or above the budget move into dead slots below it, both in ascending order. */
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

/* Orders the slots that may go, and says how many must; -EINVAL when these are too few, or a
 * position is beyond the end. */
static int choose(const struct ops_cut *p, int32_t group, const float *score, int32_t *order)
{
    const struct ops_kv *kv = p->kv;
    int32_t n = 0;
    int32_t live = 0;

    for (int32_t s = 0; s < kv->n_slots; s++) {
        int32_t pos = ref_kv_pos(kv, group, s);

        if (pos >= p->pos_end) {
            return -EINVAL; /* a device that trusts pos_end would write outside the group */
        }
        live += pos >= 0;
        if (pos >= 0 && pos >= p->sinks && pos < p->pos_protect) {
            order[n++] = s;
        }
    }
    if (live - p->budget > n) {
        return -EINVAL;
    }
    sort_slots(kv, group, score, order, n);
    return live > p->budget ? live - p->budget : 0;
}

int ref_cut(struct backend *be, const struct ops_cut *p)
{
    struct ref *ref = (struct ref *)be;
    const struct ops_kv *kv = p->kv;
    int n = 0;

    if (!kv->slot_pos || kv->n_slots > ref->limits.max_slots) {
        return -EINVAL;
    }
    for (int32_t g = 0; g < kv->layout->n_groups; g++) {
        if (g == 0 || !p->shared) {
            n = choose(p, g, p->by_position ? NULL : choice_score(kv, g, p->shared, ref->score),
                       ref->order);
            if (n < 0) {
                return n;
            }
        }
        for (int32_t i = 0; i < n; i++) {
            size_t slot = (size_t)g * (size_t)kv->cap + (size_t)ref->order[i];

            kv->slot_pos[slot] = -1;
            if (kv->score) {
                kv->score[slot] = 0;
            }
        }
        close_gaps(kv, g, p->budget);
    }
    return 0;
}
