/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_QUEUE_CUH
#define PIPIT_KERNELS_CUDA_QUEUE_CUH

/* What the three files of the queue share: launches as they are written down (launch.cu), the
 * graphs that lists of them have (graph.cu), and when a list is handed over (queue.cu). */

#include "kernels/cuda/expect.cuh"
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

struct queue_list {
    struct cuda_call call[QUEUE_MAX];
    void *pointer[QUEUE_MAX * 4]; /* to arguments, in order */
    uint8_t *bytes;               /* (QUEUE_BYTES) the arguments */
    int32_t n, n_pointers;
    uint32_t n_bytes;
};

struct queue_graph {
    struct queue_list list; /* as the graph has it now */
    cudaGraphNode_t node[QUEUE_MAX];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t shape, used; /* used: the clock at its last launch; 0: none here */
    uint64_t bytes;       /* that the driver took for it */
};

struct cuda_queue {
    struct queue_list now;
    struct queue_graph graphs[QUEUE_GRAPHS];
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

/* ---- launch.cu ------------------------------------------------------------------------------- */

/* The list's launches, kernel by kernel. */
int cuda_launch_list(struct cuda *cu, struct queue_list *l);
/* The main stream waits for what the side stream has. */
int cuda_launch_join(struct cuda *cu);

/* ---- graph.cu -------------------------------------------------------------------------------- */

/* The list as the graph that it has, or gets. *ret_done false: there is none, and the list is to go
 * kernel by kernel. An error: the device is lost. */
int cuda_graph_launch(struct cuda *cu, bool *ret_done);
/* All graphs are given back. */
void cuda_graph_drop_all(struct cuda_queue *q);

/* ---- queue.cu -------------------------------------------------------------------------------- */

/* The list, and what runs beside it is joined. What is put off behind it stays so. */
int cuda_queue_hand_over(struct cuda *cu);

#endif
