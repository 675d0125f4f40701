/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: chains of kernels with branches. */

#include "emu_impl.cuh"

#include <cstdlib>

struct emu_node {
    const struct emu_known_kernel *k;
    dim3 grid, block;
    unsigned shared;
    uint8_t *bytes[EMU_MAX_ARGS];      /* arguments */
    struct emu_node *before[2], *next; /* edges from; the first says what the main chain is */
    int n_before;
    bool early;      /* that edge is a programmatic one */
    bool main, done; /* of the launch under way */
    unsigned number; /* its launch's, where order is looked at */
};

struct emu_graph {
    struct emu_node *first, *last;
    bool exec; /* shares its graph's nodes */
};

static cudaError_t set_node(struct emu_node *n, const struct cudaKernelNodeParams *p)
{
    const struct emu_known_kernel *k = emu_find_known(p->func);

    if (!k || (n->k && n->k != k) || k->n > EMU_MAX_ARGS || p->extra) {
        return cudaErrorInvalidValue;
    }
    n->k = k;
    n->grid = p->gridDim;
    n->block = p->blockDim;
    n->shared = p->sharedMemBytes;
    for (int i = 0; i < k->n; i++) {
        if (!n->bytes[i]) {
            n->bytes[i] = (uint8_t *)malloc(k->sizes[i]);
        }
        memcpy(n->bytes[i], p->kernelParams[i], k->sizes[i]);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *ret, unsigned)
{
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaGraph_t)calloc(1, sizeof(**ret));
        emu_bytes_held++;
    }
    return e;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *ret, cudaGraph_t g,
                                   const cudaGraphNode_t *after, size_t n_after,
                                   const struct cudaKernelNodeParams *p)
{
    cudaError_t e = emu_fails();
    struct emu_node *n;

    if (e != cudaSuccess || n_after > 2) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    n = (struct emu_node *)calloc(1, sizeof(*n));
    e = set_node(n, p);
    if (e != cudaSuccess) {
        free(n);
        return e;
    }
    for (size_t i = 0; i < n_after; i++) {
        n->before[n->n_before++] = after[i];
    }
    (g->last ? g->last->next : g->first) = n;
    g->last = n;
    *ret = n;
    return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to,
                                     const struct cudaGraphEdgeData *edge, size_t n)
{
    cudaError_t e = emu_fails();
    struct emu_node *node = *to;

    if (e != cudaSuccess || n != 1 || node != g->last || node->n_before > 0 || *from == node ||
        edge->from_port != cudaGraphKernelNodePortProgrammatic || edge->to_port != 0 ||
        edge->type != cudaGraphDependencyTypeProgrammatic) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    node->before[node->n_before++] = *from;
    node->early = true;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long)
{
    cudaError_t e = emu_fails();

    for (struct emu_node *n = g->first; n && e == cudaSuccess; n = n->next) {
        e = n->n_before > 0 || n == g->first ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (e == cudaSuccess) {
        emu_calls[1]++;
        *ret = (cudaGraphExec_t)calloc(1, sizeof(**ret));
        **ret = emu_graph{g->first, g->last, true};
        emu_bytes_held++;
    }
    return e;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    cudaError_t e = emu_fails();

    emu_calls[2]++;
    return e != cudaSuccess ? e : set_node(node, p);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return emu_fails();
}

/* The node, and before it what it waits for. */
static cudaError_t run_node(struct emu_node *n, cudaStream_t stream, unsigned begin)
{
    cudaError_t e = cudaSuccess;
    void *args[EMU_MAX_ARGS];
    unsigned after = begin; /* the last of the main chain that it follows */

    for (int i = 0; i < n->n_before && e == cudaSuccess; i++) {
        e = n->before[i]->done ? e : run_node(n->before[i], stream, begin);
        after = n->before[i]->main ? max(after, n->before[i]->number) : after;
    }
    for (int i = 0; i < n->k->n; i++) {
        args[i] = n->bytes[i];
    }
    n->done = true;
    if (e == cudaSuccess) {
        emu_kernel.side = !n->main;
        emu_kernel.after = after;
        e = emu_launch_packed(n->k->kernel, n->grid, n->block, args, n->shared, stream, n->early);
        emu_kernel.side = false;
        if constexpr (EMU_BLOCKS > 1) {
            n->number = emu_order_now();
        }
    }
    return e;
}

/* The main chain leads back from the last node; what branches off runs as late as it may. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t stream)
{
    cudaError_t e = emu_fails();
    unsigned begin = 0;

    emu_calls[3]++;
    if constexpr (EMU_BLOCKS > 1) {
        begin = emu_order_now();
    }
    for (struct emu_node *n = g->first; n; n = n->next) {
        n->main = n->done = false;
    }
    for (struct emu_node *n = g->last; n; n = n->n_before > 0 ? n->before[0] : NULL) {
        n->main = true;
    }
    for (int all = 0; all < 2; all++) {
        for (struct emu_node *n = g->first; n && e == cudaSuccess; n = n->next) {
            if ((all || n->main) && !n->done) {
                e = run_node(n, stream, begin);
            }
        }
    }
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    free(g);
    emu_bytes_held--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    for (struct emu_node *n = g->first; n;) {
        struct emu_node *next = n->next;

        for (int i = 0; i < EMU_MAX_ARGS; i++) {
            free(n->bytes[i]);
        }
        free(n);
        n = next;
    }
    free(g);
    emu_bytes_held--;
    return cudaSuccess;
}
