/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of launches as graphs.
 *
 * A graph's shape is its list of kernels alone. Grids and arguments that differ from the step
 * before are changed in it, so a context that grows, or another slot, page or sequence keep their
 * graph. A list that is new goes kernel by kernel; seen a second time, it is made a graph, in the
 * place of the one that was unused for longest.
 *
 * The kernels of a graph run in the order of the list, as on a stream; but for those on the side
 * (cuda_call_side): such a one follows the last kernel of the main chain and the last one on the
 * side, the main chain goes on from where it was, and a kernel that joins follows both. What is
 * never joined ends with the graph: what comes behind a graph waits for all of it. From sm_90 on
 * kernels that wait for themselves (CUDA_LAUNCH_EARLY) are launched while the one ahead still runs:
 * the edge between the two is a programmatic one.
 *
 * A graph that the driver refuses, be it a node, an edge, the whole, a change or a launch, costs no
 * step: all graphs are given back, and the list goes kernel by kernel. The next ones are made
 * without programmatic edges. If there were none, or memory is what is missing, that was the last
 * graph. News name the call, the error and the consequence.
 *
 * Memory of graphs is the driver's. What it takes of the device is not documented, so the plan sets
 * GRAPH_BYTES aside for each, and each is measured as it is made. One that goes beyond the sum is
 * given back, and with it one that was not used for BACK_MIN lists; the next is tried after
 * BACK_MIN lists, then twice as many each time. Where host and device share their memory, or the
 * driver does not say what is free, a graph counts as GRAPH_BYTES.
 *
 * On an H200 a launch costs 0.50 us in a chain, and 0.43 us with programmatic edges. */

#include <cerrno>
#include <cstdio>

#include "kernels/cuda/queue.cuh"

uint64_t cuda_graph_bytes(void)
{
    return (uint64_t)QUEUE_GRAPHS * GRAPH_BYTES;
}

static void drop_graph(struct queue_graph *g)
{
    if (g->exec) {
        (void)cudaGraphExecDestroy(g->exec);
    }
    if (g->graph) {
        (void)cudaGraphDestroy(g->graph);
    }
    g->exec = NULL;
    g->graph = NULL;
    g->bytes = 0;
    g->used = 0;
}

void cuda_graph_drop_all(struct cuda_queue *q)
{
    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        drop_graph(&q->graphs[i]);
    }
}

/* ---- one graph ------------------------------------------------------------------------------ */

static uint64_t shape_of(const struct queue_list *l)
{
    uint64_t h = 0xcbf29ce484222325ull ^ (uint64_t)l->n;

    for (int32_t i = 0; i < l->n; i++) {
        h = (h ^ (uint64_t)(uintptr_t)l->call[i].kernel) * 0x100000001b3ull;
        h ^= h >> 29;
    }
    return h;
}

static bool same_shape(const struct queue_list *a, const struct queue_list *b)
{
    bool same = a->n == b->n && a->n_bytes == b->n_bytes;

    for (int32_t i = 0; i < a->n && same; i++) {
        same = a->call[i].kernel == b->call[i].kernel && a->call[i].n_args == b->call[i].n_args &&
               a->call[i].at == b->call[i].at && a->call[i].side == b->call[i].side &&
               a->call[i].join == b->call[i].join;
    }
    return same;
}

static void copy_list(struct queue_list *to, const struct queue_list *from)
{
    uint8_t *bytes = to->bytes;

    *to = *from;
    to->bytes = bytes;
    memcpy(bytes, from->bytes, from->n_bytes);
    for (int32_t i = 0; i < to->n_pointers; i++) {
        to->pointer[i] = bytes + (static_cast<uint8_t *>(from->pointer[i]) - from->bytes);
    }
}

static struct cudaKernelNodeParams node_params(const struct cuda_call *c, void **args)
{
    struct cudaKernelNodeParams p = {};

    p.func = const_cast<void *>(c->kernel);
    p.gridDim = c->grid;
    p.blockDim = c->block;
    p.sharedMemBytes = (unsigned)c->shared;
    p.kernelParams = args;
    return p;
}

/* `to` may be launched once all blocks of `from` have begun (grid_begin), and waits itself. */
static cudaError_t depend_early(cudaGraph_t g, cudaGraphNode_t from, cudaGraphNode_t to)
{
#if CUDART_VERSION >= 12030
    cudaGraphEdgeData edge = {};

    edge.from_port = cudaGraphKernelNodePortProgrammatic;
    edge.type = cudaGraphDependencyTypeProgrammatic;
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(g, &from, &to, &edge, 1);
#else
    return cudaGraphAddDependencies_v2(g, &from, &to, &edge, 1);
#endif
#else
    return cudaGraphAddDependencies(g, &from, &to, 1);
#endif
}

/* Notes which call it was that failed. */
static cudaError_t tried(struct cuda *cu, cudaError_t e, const char *call)
{
    cu->queue->call = e == cudaSuccess ? cu->queue->call : call;
    return e;
}

static cudaError_t build(struct cuda *cu, struct queue_graph *g, const struct queue_list *l)
{
    int32_t last[2] = {-1, -1}; /* of the main chain, on the side */
    void **args;
    cudaError_t e;

    copy_list(&g->list, l);
    args = g->list.pointer;
    e = tried(cu, cudaGraphCreate(&g->graph, 0), "cudaGraphCreate");
    for (int32_t i = 0; i < l->n && e == cudaSuccess; args += l->call[i++].n_args) {
        const struct cuda_call *c = &l->call[i];
        struct cudaKernelNodeParams p = node_params(c, args);
        bool ahead = cu->early && last[0] >= 0 && c->early && !c->join;
        cudaGraphNode_t behind[2];
        size_t n = 0;

        if (last[0] >= 0 && !ahead) {
            behind[n++] = g->node[last[0]];
        }
        if (last[1] >= 0 && (c->side || c->join)) {
            behind[n++] = g->node[last[1]];
        }
        e = tried(cu, cudaGraphAddKernelNode(&g->node[i], g->graph, behind, n, &p),
                  "cudaGraphAddKernelNode");
        if (e == cudaSuccess && ahead) {
            e = tried(cu, depend_early(g->graph, g->node[last[0]], g->node[i]),
                      "cudaGraphAddDependencies");
        }
        last[1] = c->join ? -1 : last[1]; /* the main chain is behind it from here on */
        last[c->side] = i;
    }
    if (e == cudaSuccess) {
        e = tried(cu, cudaGraphInstantiate(&g->exec, g->graph, 0), "cudaGraphInstantiate");
    }
    if (e == cudaSuccess) { /* its memory is taken now, not by the first launch */
        e = tried(cu, cudaGraphUpload(g->exec, cu->stream), "cudaGraphUpload");
    }
    return e;
}

static bool same_dim(dim3 a, dim3 b)
{
    return a.x == b.x && a.y == b.y && a.z == b.z;
}

/* Grids and arguments of the graph as the list has them. */
static cudaError_t update(struct cuda *cu, struct queue_graph *g, const struct queue_list *l)
{
    void **args = g->list.pointer;
    cudaError_t e = cudaSuccess;

    for (int32_t i = 0; i < l->n && e == cudaSuccess; args += l->call[i++].n_args) {
        const struct cuda_call *c = &l->call[i];
        struct cuda_call *have = &g->list.call[i];
        uint8_t *own = g->list.bytes + c->at;

        if (memcmp(own, l->bytes + c->at, c->n_bytes) != 0 || !same_dim(c->grid, have->grid) ||
            !same_dim(c->block, have->block) || c->shared != have->shared) {
            struct cudaKernelNodeParams p = node_params(c, args);

            memcpy(own, l->bytes + c->at, c->n_bytes);
            *have = *c;
            e = tried(cu, cudaGraphExecKernelNodeSetParams(g->exec, g->node[i], &p),
                      "cudaGraphExecKernelNodeSetParams");
        }
    }
    return e;
}

/* ---- what they take ------------------------------------------------------------------------- */

/* Does the driver say what is free, and rightly? Else a graph counts as GRAPH_BYTES. */
static bool free_bytes(struct cuda *cu, uint64_t *ret)
{
    size_t n = 0;
    size_t total = 0;

    if (cu->integrated || cuda_err(cu, cudaMemGetInfo(&n, &total), "cudaMemGetInfo") < 0) {
        return false;
    }
    *ret = n;
    return true;
}

static uint64_t taken(const struct cuda_queue *q)
{
    uint64_t sum = 0;

    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        sum += q->graphs[i].bytes;
    }
    return sum;
}

/* The one unused for longest; first of all a place without one. */
static struct queue_graph *oldest_graph(struct cuda_queue *q)
{
    struct queue_graph *oldest = &q->graphs[0];

    for (int i = 1; i < QUEUE_GRAPHS; i++) {
        oldest = q->graphs[i].used < oldest->used ? &q->graphs[i] : oldest;
    }
    return oldest;
}

/* The graph is beyond the plan. If it is not so alone, one that stands unused makes room. */
static void give_back(struct cuda *cu, struct queue_graph *g)
{
    struct cuda_queue *q = cu->queue;
    bool fits_alone = g->bytes <= cuda_graph_bytes();
    struct queue_graph *idle = NULL;

    (void)snprintf(cu->news, sizeof(cu->news),
                   "a step's graph took %llu MiB of the device, with the others %llu MiB, %llu are "
                   "planned: it is given back, such steps go kernel by kernel",
                   (unsigned long long)(g->bytes >> 20), (unsigned long long)(taken(q) >> 20),
                   (unsigned long long)(cuda_graph_bytes() >> 20));

    drop_graph(g);
    for (int i = 0; i < QUEUE_GRAPHS && fits_alone; i++) {
        struct queue_graph *o = &q->graphs[i];

        if (o->exec && o->used + BACK_MIN <= q->clock && (!idle || o->used < idle->used)) {
            idle = o;
        }
    }
    if (idle) {
        drop_graph(idle);
    }
    q->next_new = q->clock + q->back;
    q->back *= q->back < BACK_MAX ? 2 : 1;
}

/* A new graph in place of g, within what the plan has for all of them: else g is none. What of an
 * old graph's memory the driver kept for the new one counts as the new one's. */
static cudaError_t replace(struct cuda *cu, struct queue_graph *g, const struct queue_list *l)
{
    uint64_t old = g->bytes;
    uint64_t before = 0;
    uint64_t after = 0;
    bool known = free_bytes(cu, &before);
    cudaError_t e;

    drop_graph(g);
    e = build(cu, g, l);
    known = free_bytes(cu, &after) && known;
    if (known) {
        g->bytes = old + before > after ? old + before - after : 0;
    } else {
        g->bytes = GRAPH_BYTES;
    }
    if (e == cudaSuccess && taken(cu->queue) > cuda_graph_bytes()) {
        give_back(cu, g);
    }
    return e;
}

/* ---- the list's ------------------------------------------------------------------------------ */

static struct queue_graph *find_graph(struct cuda_queue *q, uint64_t shape)
{
    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        struct queue_graph *g = &q->graphs[i];

        if (g->exec && g->shape == shape && same_shape(&g->list, &q->now)) {
            return g;
        }
    }
    return NULL;
}

/* A graph for the list: the one it has, changed, or a new one if the list was seen before. */
static struct queue_graph *graph_for(struct cuda *cu, cudaError_t *ret_error)
{
    struct cuda_queue *q = cu->queue;
    uint64_t shape = shape_of(&q->now);
    struct queue_graph *g = find_graph(q, shape);

    *ret_error = cudaSuccess;
    if (g) {
        *ret_error = update(cu, g, &q->now);
        return g;
    }
    for (int i = 0; i < QUEUE_SEEN && q->clock >= q->next_new; i++) {
        if (q->seen[i] == shape) {
            g = oldest_graph(q);
            *ret_error = replace(cu, g, &q->now);
            g->shape = shape;
            return g->exec || *ret_error != cudaSuccess ? g : NULL;
        }
    }
    q->seen[q->n_seen++ % QUEUE_SEEN] = shape;
    return NULL;
}

/* No graph could be had: what is tried next, and what is said of it. */
static void refuse(struct cuda *cu, cudaError_t e)
{
    struct cuda_queue *q = cu->queue;
    bool edges = cu->early && e != cudaErrorMemoryAllocation;

    (void)snprintf(cu->news, sizeof(cu->news),
                   edges ? "the driver gives no graph whose kernels begin early (%s: %.120s): they "
                           "wait for each other"
                         : "the driver gives no graph of a step (%s: %.120s): steps go kernel by "
                           "kernel",
                   q->call, cudaGetErrorString(e));
    cuda_graph_drop_all(q);
    cu->early = cu->early && !edges;
    q->refused = !edges;
}

int cuda_graph_launch(struct cuda *cu, bool *ret_done)
{
    struct cuda_queue *q = cu->queue;
    cudaError_t e = cudaSuccess;
    struct queue_graph *g = q->refused ? NULL : graph_for(cu, &e);
    int r;

    if (g && e == cudaSuccess) {
        g->used = q->clock;
        e = tried(cu, cudaGraphLaunch(g->exec, cu->stream), "cudaGraphLaunch");
    }
    *ret_done = g && e == cudaSuccess;
    if (e == cudaSuccess) {
        return 0;
    }
    r = cuda_err(cu, e, q->call);
    if (cu->lost) {
        return r;
    }
    refuse(cu, e);
    return 0;
}
