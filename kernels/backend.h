/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_BACKEND_H
#define PIPIT_KERNELS_BACKEND_H
/* A backend: a device, its memory, and the table of operations of kernels/ops.h.
 *
 * `ref` (plain C, the definition), `cpu` (instruction sets chosen at run time), `cuda` (a module
 * opened at run time). One thread, the engine's worker, makes all calls on one backend. Calls may
 * return before the device is done; `read` and `sync` wait. Nothing here allocates except create,
 * alloc, weight_create and reserve. */

#include "base/error.h"
#include "kernels/ops.h"
#include "kernels/ops_experts.h"

struct backend;
struct ops_expect;

/* What multiplies prompts' rows by 16-bit weights, where a backend has the choice (cuda): its own
 * kernels, or the vendor's library, which then must be there. */
enum backend_prefill { BACKEND_PREFILL_AUTO, BACKEND_PREFILL_OWN, BACKEND_PREFILL_CUBLAS };

enum { BACKEND_LEAST_EXPERTS = 8 };

struct backend_config {
    int n_threads;      /* CPU backends; 0: base/cpu.h's count */
    uint32_t cpu_mask;  /* CPU flags allowed; UINT32_MAX: all this CPU has */
    uint64_t expert_bytes; /* cpu: experts stay where their data is, and so many bytes of them are
                              kept ready, at least BACKEND_LEAST_EXPERTS; 0: all are held */
    enum backend_prefill prefill;
    bool wait_asleep; /* for a device: the thread sleeps, which costs some 20 us, not a CPU */
};

/* Upper bounds of what one call will see, so that scratch is reserved once. */
struct backend_limits {
    int32_t max_rows;    /* of a batch */
    int32_t max_decode;
    int32_t max_seqs;
    int32_t max_cols;    /* largest n_cols of a weight */
    int32_t max_outputs; /* largest n_rows of a weight other than the output head */
    uint64_t max_quantised; /* n_rows x n_cols of the largest of those in blocks; experts' apart */
    int32_t max_heads;   /* n_q */
    int32_t max_head_dim;
    int32_t max_slots;   /* of one sequence and group */
    int16_t max_experts; /* of a layer; 0: no mixtures */
    int16_t max_experts_used; /* of a row */
    uint64_t max_expert_bytes; /* gate, up and down of one, as weight_bytes counts them if held */
    bool observe;        /* a scoring policy may be used */
    bool select;         /* queries may select */
    bool expect;         /* slots may be scored by queries to come (ops_expect) */
};

enum { BACKEND_FETCHES = 2, BACKEND_FETCH_BYTES = 16 << 10 };

struct backend_ops {
    const char *name;
    bool selects; /* attention honours ops_select, kv_sum is there */
    bool in_host; /* what it allocates is ordinary memory: a tier may reach into it */
    bool sums_by_row; /* what attention observes is added row by row: however a sequence's rows are
                         dealt out to calls, the scores are the same bits */
    bool rounds;  /* rope_store honours ops_kv.carry */
    uint64_t lacks_types; /* bit t: weights of enum dtype t are not offered */
    bool async;   /* the device works while the host does: what it draws need not be waited for */

    int (*create)(const struct backend_config *config, struct backend **ret, struct error *reterr);
    void (*destroy)(struct backend *be); /* takes NULL; frees scratch, not what alloc gave */
    /* One line: device or CPU, instruction sets, threads; and the kernel chosen for each slot. */
    void (*describe)(const struct backend *be, char *buf, size_t size);

    /* What its user's log should say of it, once: text in buf and true, or false. NULL: never anything. */
    bool (*news)(struct backend *be, char *buf, size_t size);

    /* Memory. `what` is a literal for messages. Zeroed. */
    int (*alloc)(struct backend *be, uint64_t bytes, const char *what, void **ret, struct error *reterr);
    void (*free)(struct backend *be, void *device, uint64_t bytes);
    /* Memory of the host that the device's kernels reach, slowly: for pages that `bring` reads. Zeroed. NULL,
     * all three: the device's memory is the host's. */
    int (*alloc_mapped)(struct backend *be, uint64_t bytes, const char *what, void **ret, struct error *reterr);
    void (*free_mapped)(struct backend *be, void *device, uint64_t bytes);
    int (*bring)(struct backend *be, const struct ops_bring *p);
    int (*free_bytes)(struct backend *be, uint64_t *ret); /* what alloc could still give */
    int (*write)(struct backend *be, void *device, const void *host, uint64_t bytes);
    int (*read)(struct backend *be, void *host, const void *device, uint64_t bytes);
    int (*copy)(struct backend *be, void *device, const void *from_device, uint64_t bytes);
    int (*zero)(struct backend *be, void *device, uint64_t bytes);
    int (*sync)(struct backend *be);

    /* Scratch for all ops under `limits`: bytes by `plan` (no device needed, be may be NULL),
     * taken by `reserve`. */
    uint64_t (*scratch_bytes)(const struct backend_config *config, const struct backend_limits *limits);
    int (*reserve)(struct backend *be, const struct backend_limits *limits, struct error *reterr);

    /* A library that multiplies by such weights takes now what its code needs of the device, and
     * nothing later, if the limits are no larger then: free_bytes says afterwards what a plan may
     * count on. Called before reserve, with weights in their order; nothing else is left behind.
     * Where there is no memory for trials, none are made. NULL: there is no such library. */
    int (*weights_try)(struct backend *be, const struct backend_limits *limits,
                       const struct ops_weight_desc *const *list, int32_t n, struct error *reterr);

    /* Weights. weight_bytes: what weight_create will hold, from the description alone.
     * weights_reserve (or NULL): takes the sum of them in one piece, which the following
     * weight_create calls fill; a weight that does not fit gets memory of its own. */
    int (*weights_reserve)(struct backend *be, uint64_t bytes, struct error *reterr);
    uint64_t (*weight_bytes)(const struct backend_config *config, const struct ops_weight_desc *desc);
    int (*weight_create)(struct backend *be, const struct ops_weight_desc *desc, struct ops_weight *ret,
                         struct error *reterr);
    void (*weight_destroy)(struct backend *be, struct ops_weight *w);

    /* Fills page_bytes; -ENOTSUP for a combination of types that this backend lacks. */
    int (*kv_layout)(struct ops_kv_layout *layout, struct error *reterr);

    int (*embed)(struct backend *be, const struct ops_embed *p);
    int (*norm)(struct backend *be, const struct ops_norm_op *p);
    int (*matmul)(struct backend *be, const struct ops_matmul *p);
    int (*experts)(struct backend *be, const struct ops_experts *p); /* NULL: no mixtures */
    int (*gather)(struct backend *be, const struct ops_gather *p);
    int (*mul)(struct backend *be, const struct ops_mul *p);
    int (*softcap)(struct backend *be, const struct ops_softcap *p);
    int (*rope_store)(struct backend *be, const struct ops_rope_store *p);
    /* matmul(qkv), then rope_store(store), to the bit: every buffer holds afterwards what these two
     * leave. qkv's parts write store's q, k and v, in this order, those that there are. NULL: no
     * better than the two. */
    int (*qkv_store)(struct backend *be, const struct ops_matmul *qkv,
                     const struct ops_rope_store *store);
    int (*attention)(struct backend *be, const struct ops_attention *p);
    int (*predict)(struct backend *be, const struct ops_predict *p); /* NULL: no partial keys */
    int (*conv)(struct backend *be, const struct ops_conv *p); /* NULL, all three: no recurrent layers */
    int (*delta)(struct backend *be, const struct ops_delta *p);
    int (*gate)(struct backend *be, const struct ops_gate *p);
    int (*scan)(struct backend *be, const struct ops_scan *p); /* NULL: no state spaces */
    int (*kv_sum)(struct backend *be, const struct ops_kv_sum *p);
    int (*victim)(struct backend *be, const struct ops_victim *p);
    int (*cut)(struct backend *be, const struct ops_cut *p);
    int (*expect)(struct backend *be, const struct ops_expect *p);
    int (*kv_export)(struct backend *be, const struct ops_kv_slots *p);
    int (*kv_import)(struct backend *be, const struct ops_kv_slots *p);
    /* NULL, all three: the host draws. fetch starts to bring what the device has computed by then to
     * the host (at most BACKEND_FETCH_BYTES, in one of two places); fetched waits for that, and for
     * nothing that came after it. */
    int (*sample)(struct backend *be, const struct ops_sample *p);
    int (*fetch)(struct backend *be, int place, const void *device, uint64_t bytes);
    int (*fetched)(struct backend *be, int place, void *host, uint64_t bytes);
};

struct backend {
    const struct backend_ops *ops;
    /* The backend's own struct begins with this one. */
};

/* "ref", "cpu"; "cuda" opens the module (-ENODEV, -EPERM with the cause); "auto": cuda, else cpu. With a slash:
 * the file of a module (kernels/module.h). */
int backend_find(const char *name, const struct backend_ops **ret, struct error *reterr) WARN_UNUSED;

/* Did "auto" pass by the device? Then why. */
bool backend_passed_by(const char *name, const struct backend_ops *found, struct error *ret_cause);

#endif
