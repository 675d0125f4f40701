/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_FAKE_FAKE_H
#define PIPIT_TESTS_CUDA_FAKE_FAKE_H

/* A run-time library that computes nothing: kernels/cuda/ over it is the backend's host side alone.
 *
 * It has the properties of a device that a test gives it, checks every call against the rules of
 * such a device, and writes down what was asked for: launches with their geometry, graphs with
 * their nodes, memory, copies. Device memory is address space that nothing may touch. What is read
 * from the device is 0. The emulator of ../emu runs kernels instead; this one runs under
 * sanitizers, takes shapes of any size, and devices of any kind.
 *
 * The first rule that is broken is kept in fake_broken(): a launch beyond the device's limits; a
 * node that follows neither the one before nor what that one branched off; a copy outside of what
 * was allocated, or between the wrong sides; pinned memory that changes while a copy out of it may
 * still be under way; a free of what was not given; code that is loaded when a kernel is first
 * launched. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fake_device {
    int major, minor, n_sms;
    int integrated;
    size_t shared_max;    /* of a block, when asked for */
    uint64_t memory;      /* that is free at the start */
    uint64_t graph_bytes; /* that the driver takes for a graph */
    int driver;           /* CUDA version, 13000; 0: none */
    int n_devices;
    int no_code; /* the build has no code for it */
};

enum fake_kind {
    FAKE_LAUNCH,       /* one kernel */
    FAKE_NODE,         /* of the graph that the next FAKE_GRAPH makes */
    FAKE_EARLY,        /* that node may begin before the one ahead has ended */
    FAKE_GRAPH,        /* instantiated; n: nodes */
    FAKE_CHANGE,       /* of a node of a graph */
    FAKE_GRAPH_LAUNCH, /* n: nodes */
    FAKE_ALLOC,        /* device memory */
    FAKE_MAP,          /* of the host, that kernels reach */
    FAKE_WRITE,        /* host to device */
    FAKE_READ,
    FAKE_WAIT,  /* for everything */
    FAKE_EVENT, /* for what came before an event */
    FAKE_FOLLOW, /* a stream waits for what the other has by then */
};

struct fake_call {
    enum fake_kind kind;
    char name[56]; /* of a kernel, as it is launched */
    unsigned grid[3], block[3];
    size_t shared;
    uint64_t bytes; /* copied, allocated */
    int n;
    int n_early;  /* FAKE_GRAPH_LAUNCH: nodes that may begin early */
    int node;     /* FAKE_NODE: its number, from 1 on; */
    /* those that it follows, 0: none. An early edge's is there, too, once it is made */
    int after[2];
    /* FAKE_LAUNCH: on which; FAKE_FOLLOW: which waits. 0: the first made, 1: the second */
    int stream;
};

/* Another device; nothing may be held. The log is emptied, the rules hold again. */
void fake_start(const struct fake_device *d);
const struct fake_call *fake_log(int *ret_n);
void fake_log_clear(void);
/* What the device has run since the log was cleared: so many kernels, one by one or in graphs, and
 * a sum of their names, grids, blocks, shared memory and arguments, in order. An address among the
 * arguments counts as its place in an allocation. */
uint64_t fake_ran(int *ret_n);
/* The n-th call from now on fails with `code`; a sticky one then stays. n = 0: none. */
void fake_fail(int n, int code);
/* The next `times` calls that would be noted as `kind` (FAKE_LAUNCH to FAKE_GRAPH_LAUNCH) fail with
 * `code`, which is not sticky; 0: none. */
void fake_refuse(enum fake_kind kind, int code, int times);
/* Every question for free memory from now on fails with `code`, which is not sticky; 0: none. */
void fake_fail_free(int code);
/* The driver takes as much for each graph from now on. */
void fake_graph_bytes(uint64_t bytes);
int fake_pending(void);
/* How the host asked to wait: flags of the device (4: asleep) and of events (1: asleep). */
unsigned fake_waits(void);
/* NULL, or the first rule that was broken. */
const char *fake_broken(void);
/* Held: device memory, each allocation rounded up to `grain`, graphs included; the most there ever
 * was; pinned memory, without what is mapped; that. And objects (streams, graphs). */
uint64_t fake_device_bytes(uint64_t grain);
uint64_t fake_most_bytes(void);
uint64_t fake_pinned_bytes(void);
uint64_t fake_mapped_bytes(void);
/* Device memory that another library has taken for itself since fake_start(); in no sum above, but
 * not free. */
uint64_t fake_library_bytes(void);
int fake_objects(void);

#ifdef __cplusplus
}
#endif

#endif
