/* SPDX-License-Identifier: Apache-2.0 */
/* A decode step as one graph.
 *
 * A step is some three hundred small kernels; launched one by one each costs the host a few
 * microseconds, which is what small models then wait for. So from the embedding of a batch of
 * decode rows on, launches are only written down: kernel, grid, arguments by value. The first call
 * that needs the device's answer (a read of logits, as a rule) hands them over:
 *
 *   - as the graph that this list of kernels has, if it has one. Grids and arguments that differ
 * from the step before are changed in it; its shape is the list of kernels alone, so a context that
 * grows, or another slot, page or sequence keep their graph;
 *   - one by one, if the list is new. Seen a second time, it is made a graph.
 *
 * The kernels of a graph run in the order of the list, as on a stream; but for those on the side
 * (cuda_call_side): such a one follows the last kernel of the main chain and the last one on the
 * side, the main chain goes on from where it was, and a kernel that joins follows both. What is
 * never joined ends with the graph: what comes behind a graph waits for all of it. Kernel by kernel
 * the same by a second stream and two events, and whatever is flushed is joined. From sm_90 on
 * those that wait for themselves (CUDA_LAUNCH_EARLY) are launched while the one ahead still runs:
 * the edge between the two is a programmatic one. Kernel by kernel there are none; so go steps
 * whose kernels are timed (times.cu). Victims are noted ahead of a step, and looked for by its
 * list's first kernel (victim.cu). Every other call of the backend that touches the device hands
 * over first (cuda_queue_flush), so the order of calls is kept. Lists longer than QUEUE_MAX go in
 * parts.
 *
 * A graph that the driver refuses, be it a node, an edge, the whole, a change or a launch, costs no
 * step: all graphs are given back, and the list goes kernel by kernel. The next ones are made
 * without programmatic edges. If there were none, or memory is what is missing, that was the last
 * graph. News name the call, the error and the consequence. A refused launch of one kernel ends the
 * step with the kernel's name.
 *
 * Nothing is allocated here but at creation; graphs are the driver's. What it takes of the device
 * for them is not documented, so the plan sets GRAPH_BYTES aside for each, and each is measured as
 * it is made. One that goes beyond the sum is given back, and with it one that was not used for
 * BACK_MIN lists; the next is tried after BACK_MIN lists, then twice as many each time. Where host
 * and device share their memory, or the driver does not say what is free, a graph counts as
 * GRAPH_BYTES.
 *
 * On an H200 a launch costs 0.50 us in a chain, and 0.43 us with programmatic edges. */

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/expect.cuh"
#include "kernels/cuda/times.cuh"
#include "kernels/cuda/victim.cuh"

enum {
    QUEUE_MAX = 1024,      /* kernels of one list */
    QUEUE_BYTES = 2 << 20, /* of their arguments */
    QUEUE_GRAPHS = 6,
    /* The largest list's arguments, 1 KB for each of its kernels, and what the driver rounds up.
     * Not measured on a device. */
    GRAPH_BYTES = QUEUE_BYTES + QUEUE_MAX * 1024 + CUDA_GRAIN,
    QUEUE_SEEN = 16,
    QUEUE_BEHIND = 256, /* stores whose slots are scored behind one step */
    BACK_MIN = 64,      /* lists */
    BACK_MAX = 1 << 20,
};

struct list {
    struct cuda_call call[QUEUE_MAX];
    void *pointer[QUEUE_MAX * 4]; /* to arguments, in order */
    uint8_t *bytes;               /* (QUEUE_BYTES) the arguments */
    int32_t n, n_pointers;
    uint32_t n_bytes;
};

struct graph {
    struct list list; /* as the graph has it now */
    cudaGraphNode_t node[QUEUE_MAX];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t shape, used; /* used: the clock at its last launch; 0: none here */
    uint64_t bytes;       /* that the driver took for it */
};

struct cuda_queue {
    struct list now;
    struct graph graphs[QUEUE_GRAPHS];
    uint64_t seen[QUEUE_SEEN]; /* shapes that had no graph yet */
    uint32_t n_seen;
    uint64_t clock; /* lists handed over */
    bool active;
    bool refused;      /* no graph any more */
    const char *call;  /* that failed last, for a graph */
    bool early, side, join; /* the call that comes next */
    bool branch;            /* a call beside was taken that none behind it has joined */
    bool beside;       /* the second stream has work that the first has not waited for */
    uint64_t next_new; /* the clock from which on a new graph is tried; */
    uint64_t back;     /* and how many lists it waits when one is given back */
    int error;         /* of launches since the last cuda_launched */
    struct {
        const float *y; /* NULL: none */
        int32_t n_cols;
        const uint8_t *reads;
    } offer; /* of the last call (cuda_call_offer) */
    struct {
        struct cuda_expect p;
        struct expect_pairs turn;
    } behind[QUEUE_BEHIND]; /* scores for when the list is handed over */
    int n_behind;
    struct cuda_victims victims; /* noted, not yet looked for */
    bool finishing;              /* what was asked for before them goes now */
    uint8_t *bytes;
};

uint64_t cuda_queue_bytes(void)
{
    return sizeof(struct cuda_queue) + (uint64_t)(QUEUE_GRAPHS + 1) * QUEUE_BYTES;
}

uint64_t cuda_graph_bytes(void)
{
    return (uint64_t)QUEUE_GRAPHS * GRAPH_BYTES;
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

static void drop_graph(struct graph *g)
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

void cuda_queue_destroy(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;

    if (q) {
        for (int i = 0; i < QUEUE_GRAPHS; i++) {
            drop_graph(&q->graphs[i]);
        }
        free(q->bytes);
        free(q);
    }
    cu->queue = NULL;
}

void cuda_queue_begin(struct cuda *cu)
{
    cu->queue->active = !cu->queue->refused;
}

/* ---- one by one ----------------------------------------------------------------------------- */

/* What is launched on `to` from here on waits for what `from` has now. */
static int follow(struct cuda *cu, cudaStream_t to, cudaStream_t from, cudaEvent_t at)
{
    int r = cuda_err(cu, cudaEventRecord(at, from), "cudaEventRecord");

    return r < 0 ? r : cuda_err(cu, cudaStreamWaitEvent(to, at, 0), "cudaStreamWaitEvent");
}

static int join(struct cuda *cu)
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
            : c->join ? join(cu)
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

static int launch_list(struct cuda *cu, struct list *l)
{
    void **args = l->pointer;
    int r = 0;

    for (int32_t i = 0; i < l->n && r == 0; args += l->call[i++].n_args) {
        r = launch(cu, &l->call[i], args);
    }
    return r;
}

/* ---- graphs --------------------------------------------------------------------------------- */

static uint64_t shape_of(const struct list *l)
{
    uint64_t h = 0xcbf29ce484222325ull ^ (uint64_t)l->n;

    for (int32_t i = 0; i < l->n; i++) {
        h = (h ^ (uint64_t)(uintptr_t)l->call[i].kernel) * 0x100000001b3ull;
        h ^= h >> 29;
    }
    return h;
}

static bool same_shape(const struct list *a, const struct list *b)
{
    bool same = a->n == b->n && a->n_bytes == b->n_bytes;

    for (int32_t i = 0; i < a->n && same; i++) {
        same = a->call[i].kernel == b->call[i].kernel && a->call[i].n_args == b->call[i].n_args &&
               a->call[i].at == b->call[i].at && a->call[i].side == b->call[i].side &&
               a->call[i].join == b->call[i].join;
    }
    return same;
}

static void copy_list(struct list *to, const struct list *from)
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

static cudaError_t build(struct cuda *cu, struct graph *g, const struct list *l)
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

static uint64_t taken(const struct cuda_queue *q)
{
    uint64_t sum = 0;

    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        sum += q->graphs[i].bytes;
    }
    return sum;
}

/* The one unused for longest; first of all a place without one. */
static struct graph *oldest_graph(struct cuda_queue *q)
{
    struct graph *oldest = &q->graphs[0];

    for (int i = 1; i < QUEUE_GRAPHS; i++) {
        oldest = q->graphs[i].used < oldest->used ? &q->graphs[i] : oldest;
    }
    return oldest;
}

/* The graph is beyond the plan. If it is not so alone, one that stands unused makes room. */
static void give_back(struct cuda *cu, struct graph *g)
{
    struct cuda_queue *q = cu->queue;
    bool fits_alone = g->bytes <= cuda_graph_bytes();
    struct graph *idle = NULL;

    (void)snprintf(cu->news, sizeof(cu->news),
                   "a step's graph took %llu MiB of the device, with the others %llu MiB, %llu are "
                   "planned: it is given back, such steps go kernel by kernel",
                   (unsigned long long)(g->bytes >> 20), (unsigned long long)(taken(q) >> 20),
                   (unsigned long long)(cuda_graph_bytes() >> 20));

    drop_graph(g);
    for (int i = 0; i < QUEUE_GRAPHS && fits_alone; i++) {
        struct graph *o = &q->graphs[i];

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
static cudaError_t replace(struct cuda *cu, struct graph *g, const struct list *l)
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

static bool same_dim(dim3 a, dim3 b)
{
    return a.x == b.x && a.y == b.y && a.z == b.z;
}

/* Grids and arguments of the graph as the list has them. */
static cudaError_t update(struct cuda *cu, struct graph *g, const struct list *l)
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

static struct graph *find_graph(struct cuda_queue *q, uint64_t shape)
{
    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        struct graph *g = &q->graphs[i];

        if (g->exec && g->shape == shape && same_shape(&g->list, &q->now)) {
            return g;
        }
    }
    return NULL;
}

/* A graph for the list: the one it has, changed, or a new one if the list was seen before. */
static struct graph *graph_for(struct cuda *cu, cudaError_t *ret_error)
{
    struct cuda_queue *q = cu->queue;
    uint64_t shape = shape_of(&q->now);
    struct graph *g = find_graph(q, shape);

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
    for (int i = 0; i < QUEUE_GRAPHS; i++) {
        drop_graph(&q->graphs[i]);
    }
    cu->early = cu->early && !edges;
    q->refused = !edges;
}

static int flush(struct cuda *cu)
{
    struct cuda_queue *q = cu->queue;
    cudaError_t e = cudaSuccess;
    struct graph *g;
    int r;

    q->clock++;
    if (cuda_times_on()) {
        r = cuda_times_hold(cu, q->now.n);
        return r < 0 ? r : launch_list(cu, &q->now);
    }
    g = q->refused ? NULL : graph_for(cu, &e);
    if (g && e == cudaSuccess) {
        g->used = q->clock;
        e = tried(cu, cudaGraphLaunch(g->exec, cu->stream), "cudaGraphLaunch");
        if (e == cudaSuccess) {
            return 0;
        }
    }
    if (e != cudaSuccess) {
        r = cuda_err(cu, e, q->call);
        if (cu->lost) {
            return r;
        }
        refuse(cu, e);
    }
    return launch_list(cu, &q->now);
}

/* The list, and what runs beside it is joined. */
static int hand_over(struct cuda *cu)
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
    joined = join(cu);
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
    r = hand_over(cu);
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

void cuda_call_start(struct cuda *cu, struct cuda_call *c, const char *name, const void *kernel,
                     dim3 grid, dim3 block, size_t shared)
{
    struct list *l = &cu->queue->now;

    if (cu->queue->victims.n > 0 && !cu->queue->finishing) {
        bool early = cu->queue->early; /* this call's, not the searches' */
        bool side = cu->queue->side;
        bool join = cu->queue->join;

        cu->queue->early = cu->queue->side = cu->queue->join = false;
        int r = cuda_queue_flush(cu);

        cu->queue->early = early;
        cu->queue->side = side;
        cu->queue->join = join;
        cu->queue->error = cu->queue->error < 0 ? cu->queue->error : r;
    }
    if (l->n == QUEUE_MAX || l->n_bytes + CUDA_CALL_BYTES > QUEUE_BYTES ||
        l->n_pointers + CUDA_CALL_ARGS > (int32_t)(sizeof(l->pointer) / sizeof(l->pointer[0]))) {
        bool active = cu->queue->active;
        int r = hand_over(cu); /* the step goes on: what is put off behind it stays so */

        /* the first failure counts */
        cu->queue->error = cu->queue->error < 0 ? cu->queue->error : r;
        cu->queue->active = active;
    }
    cu->queue->offer.y = NULL;
    *c = {};
    c->name = name;
    c->kernel = kernel;
    c->grid = grid;
    c->block = block;
    c->shared = shared;
    c->early = cu->queue->early;
    c->side = cu->queue->side;
    c->join = cu->queue->join && !c->side;
    cu->queue->early = false;
    cu->queue->side = false;
    cu->queue->join = cu->queue->join && !c->join;
    cu->queue->branch = (cu->queue->branch || c->side) && !c->join;
    c->at = aligned(l->n_bytes, 16);
    memset(l->bytes + l->n_bytes, 0, c->at - l->n_bytes);
}

void cuda_call_arg(struct cuda *cu, struct cuda_call *c, const void *arg, size_t size, size_t align)
{
    struct list *l = &cu->queue->now;
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
