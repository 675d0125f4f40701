/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step as one list of launches, and when it is handed over.
 *
 * A step is some three hundred small kernels; launched one by one each costs the host a few
 * microseconds, which is what small models then wait for. So from the embedding of a batch of
 * decode rows on, launches are only written down (launch.cu): kernel, grid, arguments by value. The
 * first call that needs the device's answer (a read of logits, as a rule) hands them over, as a
 * graph where there is one (graph.cu). Every other call of the backend that touches the device
 * hands over first (cuda_queue_flush), so the order of calls is kept.
 *
 * Behind the list go scores that were put off (expect.cu). Victims are noted ahead of a step, and
 * looked for by its list's first kernel (victim.cu).
 *
 * Nothing is allocated here but at creation; graphs are the driver's. */

#include <cerrno>
#include <cstdlib>

#include "kernels/cuda/queue.cuh"
#include "kernels/cuda/times.cuh"

uint64_t cuda_queue_bytes(void)
{
    return sizeof(struct cuda_queue) + (uint64_t)(QUEUE_GRAPHS + 1) * QUEUE_BYTES;
}

int cuda_queue_create(struct cuda *cu)
{
    struct cuda_queue *q = static_cast<struct cuda_queue *>(calloc(1, sizeof(*q)));

    if (!q) {
        return -ENOMEM;
    }
    cu->queue = q;
    q->bytes = static_cast<uint8_t *>(malloc((size_t)(QUEUE_GRAPHS + 1) * QUEUE_BYTES));
    if (!q->bytes) {
        return -ENOMEM;
    }
    q->now.bytes = q->bytes;
    q->back = BACK_MIN;
    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        q->graphs[i].list.bytes = q->bytes + (size_t)(i + 1) * QUEUE_BYTES;
    }
    return 0;
}

void cuda_queue_destroy(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;

    if (q) {
        cuda_graph_drop_all(q);
        free(q->bytes);
        free(q);
    }
    cu->queue = NULL;
}

void cuda_queue_begin(struct cuda *cu)
{
    cu->queue->active = !cu->queue->refused;
}

bool cuda_queue_writes(const struct cuda *cu)
{
    return cu->queue->active;
}

int cuda_queue_error(struct cuda *cu)
{
    int r = cu->queue->error;

    cu->queue->error = 0;
    return r;
}

/* ---- handing over --------------------------------------------------------------------------- */

/* The list, as a graph or kernel by kernel. */
static int flush(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    bool done = false;
    int r;

    q->clock++;
    r = cuda_times_on() ? cuda_times_hold(cu, q->now.n) : cuda_graph_launch(cu, &done);
    return r < 0 || done ? r : cuda_launch_list(cu, &q->now);
}

int cuda_queue_hand_over(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    int joined;
    int r = 0;

    if (q->now.n > 0) {
        r = flush(cu);
        q->now.n = 0;
        q->now.n_pointers = 0;
        q->now.n_bytes = 0;
        q->offer.y = NULL;
    }
    joined = cuda_launch_join(cu);
    q->branch = false;
    q->join = false;
    q->active = false;
    return r < 0 ? r : joined;
}

/* The list, and what was put off behind it. */
static int finish(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    int r;

    q->finishing = true;
    r = cuda_queue_hand_over(cu);
    for (int i = 0; i < q->n_behind && r >= 0; i++) {
        r = cuda_expect_score(cu, &q->behind[i].p, &q->behind[i].turn);
    }
    q->n_behind = 0;
    q->finishing = false;
    return r;
}

static int find_victims(struct cuda *cu)
{
    struct cuda_victims *v = &cu->queue->victims;
    struct cuda_victims found = *v;

    v->n = 0; /* the launch asks whether any are noted */
    v->most_groups = 0;
    return found.n > 0 ? cuda_victims_find(cu, &found) : 0;
}

int cuda_queue_flush(struct cuda *cu)
{
    int r = finish(cu);

    return r < 0 ? r : find_victims(cu);
}

int cuda_queue_step(struct cuda *cu, bool decode)
{
    int r = finish(cu);

    if (cuda_times_on()) {
        cuda_times_step();
        r = r < 0 || decode ? r : cuda_times_hold(cu, QUEUE_MAX / 2);
    }
    if (r >= 0 && decode) {
        cuda_queue_begin(cu);
    }
    return r < 0 ? r : find_victims(cu);
}

int cuda_queue_victim(struct cuda *cu, struct victim v)
{
    struct cuda_victims *noted = &cu->queue->victims;
    int32_t groups = v.rank.shared ? 1 : v.rank.n_groups;
    int r;

    for (int32_t i = 0; i < noted->n; i++) {
        if (noted->of[i].to == v.to) { /* of a step that was given up before its first launch */
            noted->of[i] = v;
            return 0;
        }
    }
    r = noted->n == VICTIMS ? cuda_queue_flush(cu) : 0;
    if (r < 0) {
        return r;
    }
    noted->of[noted->n++] = v;
    noted->most_groups = groups > noted->most_groups ? groups : noted->most_groups;
    return 0;
}

bool cuda_queue_put_off(struct cuda *cu, const struct cuda_expect *p,
                        const struct expect_pairs *turn)
{
    struct cuda_queue *q = cu->queue;

    if (!q->active || q->n_behind == QUEUE_BEHIND) {
        return false;
    }
    q->behind[q->n_behind++] = {*p, *turn};
    return true;
}
