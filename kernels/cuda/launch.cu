/* SPDX-License-Identifier: Apache-2.0 */
/* A launch: written down in the queue's list, or, where nothing is written down, made at once.
 *
 * cuda_launch (cuda.cuh) starts a call, puts its arguments one behind the other, and ends it. They
 * lie in the list by value, each aligned as its type is and gaps zeroed, so that two lists can be
 * compared by their bytes (graph.cu). The first call behind noted victims has these looked for
 * ahead of itself (victim.cu). A list that is full goes in parts.
 *
 * Kernel by kernel, what runs beside (cuda_call_side) is on a second stream, between two events;
 * nothing begins early. So go steps whose kernels are timed (times.cu), and these on one stream. A
 * refused launch of one kernel ends the step with the kernel's name. */

#include <cstring>

#include "kernels/cuda/queue.cuh"
#include "kernels/cuda/times.cuh"

/* ---- one by one ----------------------------------------------------------------------------- */

/* What is launched on `to` from here on waits for what `from` has now. */
static int follow(struct cuda *cu, cudaStream_t to, cudaStream_t from, cudaEvent_t at)
{
    int r = cuda_err(cu, cudaEventRecord(at, from), "cudaEventRecord");

    return r < 0 ? r : cuda_err(cu, cudaStreamWaitEvent(to, at, 0), "cudaStreamWaitEvent");
}

int cuda_launch_join(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    int r = q->beside ? follow(cu, cu->stream, cu->side, cu->side_at) : 0;

    q->beside = q->beside && r < 0;
    return r;
}

static int launch(struct cuda *cu, const struct cuda_call *c, void **args)
{
    bool timed = cuda_times_on();
    bool side = c->side && !timed;
    int r = side      ? follow(cu, cu->side, cu->stream, cu->main_at)
            : c->join ? cuda_launch_join(cu)
                      : 0;

    r = r < 0 || !timed ? r : cuda_times_ready(cu);
    if (r < 0) {
        return r;
    }
    cu->queue->beside = cu->queue->beside || side;
    r = cuda_err(cu,
                 cudaLaunchKernel(c->kernel, c->grid, c->block, args, c->shared,
                                  side ? cu->side : cu->stream),
                 c->name);
    r = r < 0 ? r : cuda_err(cu, cudaGetLastError(), c->name);
    return r < 0 || !timed ? r : cuda_times_note(cu, c->name, c->grid);
}

int cuda_launch_list(struct cuda *cu, struct queue_list *l)
{
    void **args = l->pointer;
    int r = 0;

    for (int32_t i = 0; i < l->n && r == 0; args += l->call[i++].n_args) {
        r = launch(cu, &l->call[i], args);
    }
    return r;
}

/* ---- writing down --------------------------------------------------------------------------- */

static uint32_t aligned(uint32_t at, uint32_t to)
{
    return (at + to - 1) / to * to;
}

void cuda_call_early(struct cuda *cu)
{
    cu->queue->early = true;
}

void cuda_call_side(struct cuda *cu)
{
    cu->queue->side = true;
}

void cuda_call_join(struct cuda *cu)
{
    cu->queue->join = cu->queue->branch;
}

/* Victims that are noted are looked for now. What was said of the call to come stays said of it. */
static void victims_first(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    bool early = q->early;
    bool side = q->side;
    bool join = q->join;
    int r;

    q->early = q->side = q->join = false;
    r = cuda_queue_flush(cu);
    q->early = early;
    q->side = side;
    q->join = join;
    q->error = q->error < 0 ? q->error : r;
}

static bool is_full(const struct queue_list *l)
{
    return l->n == QUEUE_MAX || l->n_bytes + CUDA_CALL_BYTES > QUEUE_BYTES ||
           l->n_pointers + CUDA_CALL_ARGS > (int32_t)(sizeof(l->pointer) / sizeof(l->pointer[0]));
}

void cuda_call_start(struct cuda *cu, struct cuda_call *c, const char *name, const void *kernel,
                     dim3 grid, dim3 block, size_t shared)
{
    struct cuda_queue *q = cu->queue;
    struct queue_list *l = &q->now;

    if (q->victims.n > 0 && !q->finishing) {
        victims_first(cu);
    }
    if (is_full(l)) {
        bool active = q->active;
        int r = cuda_queue_hand_over(cu); /* the step goes on: what is put off behind it stays so */

        q->error = q->error < 0 ? q->error : r; /* the first failure counts */
        q->active = active;
    }
    q->offer.y = NULL;
    *c = {};
    c->name = name;
    c->kernel = kernel;
    c->grid = grid;
    c->block = block;
    c->shared = shared;
    c->early = q->early;
    c->side = q->side;
    c->join = q->join && !c->side;
    q->early = false;
    q->side = false;
    q->join = q->join && !c->join;
    q->branch = (q->branch || c->side) && !c->join;
    c->at = aligned(l->n_bytes, 16);
    memset(l->bytes + l->n_bytes, 0, c->at - l->n_bytes);
}

void cuda_call_arg(struct cuda *cu, struct cuda_call *c, const void *arg, size_t size, size_t align)
{
    struct queue_list *l = &cu->queue->now;
    uint32_t at = aligned(c->at + c->n_bytes, (uint32_t)align);

    memset(l->bytes + c->at + c->n_bytes, 0, at - c->at - c->n_bytes);
    memcpy(l->bytes + at, arg, size);
    l->pointer[l->n_pointers + c->n_args++] = l->bytes + at;
    c->n_bytes = at + (uint32_t)size - c->at;
}

void cuda_call_end(struct cuda *cu, struct cuda_call *c)
{
    struct cuda_queue *q = cu->queue;

    if (!q->active) {
        int r = launch(cu, c, q->now.pointer + q->now.n_pointers);

        q->error = q->error < 0 ? q->error : r;
        return;
    }
    q->now.call[q->now.n++] = *c;
    q->now.n_pointers += c->n_args;
    q->now.n_bytes = c->at + c->n_bytes;
}

void cuda_call_offer(struct cuda *cu, const float *y, int32_t n_cols, const uint8_t *reads)
{
    if (cu->queue->active) {
        cu->queue->offer = {y, n_cols, reads};
    }
}

struct cuda_codes *cuda_call_offered(struct cuda *cu, const float *x, int32_t n_cols,
                                     const uint8_t **ret_reads)
{
    struct cuda_queue *q = cu->queue;

    if (!q->offer.y || q->offer.y != x || q->offer.n_cols != n_cols) {
        return NULL;
    }
    *ret_reads = q->offer.reads;
    return static_cast<struct cuda_codes *>(q->now.pointer[q->now.n_pointers - 1]);
}
