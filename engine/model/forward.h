/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_FORWARD_H
#define PIPIT_ENGINE_MODEL_FORWARD_H

/* The forward pass: a model's layers as a program of backend operations on a batch of rows, several
 * sequences at once.
 *
 * A run can stop between two operations (the interrupt flag) and be taken up again where it
 * stopped, or be given up: K and V already written are written again, the same, by a rerun; only
 * observed scores are not repeatable, so a batch that observes is taken up, never given up.
 *
 * Creator: forward_create; freed by forward_destroy, before its model and backend. All memory is
 * taken at creation. One thread. */

#include <stdatomic.h>

#include "engine/kv/kv.h"
#include "engine/model/model.h"

struct forward;

struct forward_limits {
    int32_t max_rows;   /* of a batch */
    int32_t max_seqs;   /* of a batch */
    int32_t max_logits; /* rows of one forward_logits() */
    int32_t
        predicted_slots; /* that a layer may be said to read one layer ahead (InfiniGen); 0: never */
};

/* Bytes of one row of hidden states. */
uint64_t forward_row_bytes(const struct model *m);
/* Device and host bytes that forward_create takes. */
uint64_t forward_bytes(const struct model *m, const struct forward_limits *limits);
uint64_t forward_host_bytes(const struct model *m, const struct forward_limits *limits);
/* What forward_create holds beside forward_bytes. */
uint64_t forward_table_bytes(void);

int forward_create(struct model *m, const struct forward_limits *limits,
                   const atomic_int *interrupt, struct forward **ret,
                   struct error *reterr) WARN_UNUSED;
void forward_destroy(struct forward *f); /* takes NULL */

enum forward_part {
    FORWARD_ALL,     /* every layer and the split; rows lie in a buffer of ours */
    FORWARD_LAYER,   /* one layer on `hidden` (layer 0 embeds first); beyond the split the rows are
                        those that go on, and the store's K and V must be there */
    FORWARD_DEEP_KV, /* K and V of one deep store from the split's hidden states */
};

/* A batch; everything it points to stays the caller's and must not change until the run is over. */
struct forward_batch {
    struct cache *kv;     /* its step has these rows */
    struct ops_rows rows; /* decode rows first */
    const int32_t *ids;   /* (rows.n), */
    bool drawn;           /* or those that forward_draw() left, row by row */
    int32_t n_seqs;
    const struct kv_rows *seqs; /* (n_seqs) as they were added to the step */
    /* (n_seqs) or NULL: the probability above which a sequence's row, if it is one of class decode, goes
     * no further than the split; 0: it goes on */
    const float *exit;
    /* (n_seqs) or NULL: how many of a sequence's last rows, of class decode, hold tokens that are not known:
     * the early-exit head is to propose them, each from the row before it, which goes no further than
     * the split until all are proposed (forward_rounds.c). Where its largest probability is not a word's,
     * or below `least`, a sequence's rows end: forward_ran(). */
    const int32_t *propose;
    int32_t *proposed; /* (rows.n), with propose: the array that `ids` is; what was proposed is written */
    float least;
    /* For a prompt that is read layer by layer: */
    enum forward_part part;
    int32_t at;    /* FORWARD_LAYER: which; FORWARD_DEEP_KV: which store */
    float *hidden; /* device (rows.n, forward_ld()): read and, by a layer, written in place */
};

/* Hidden states (n, forward_ld()) that batches of at most max_rows - n rows leave alone: room for a
 * prompt's rows that are read layer by layer between them. */
float *forward_spare(const struct forward *f, int32_t n);

/* Starts on a batch. */
void forward_begin(struct forward *f, const struct forward_batch *b);
/* Runs it to its end: 0, -EINTR when the interrupt flag was seen (call again, or begin another), or
 * the backend's error. */
int forward_run(struct forward *f) WARN_UNUSED;
/* As if a batch of one sequence had just been run whose n rows have these final hidden states: they
 * are what forward_logits() and the others take rows of. */
void forward_computed(struct forward *f, float *hidden, int32_t n);
/* Floats from one row of hidden states to the next. */
int32_t forward_ld(const struct forward *f);

/* What the early-exit head said of a sequence's row, if it was sure enough: logits on the host, one a
 * word of the model's exit_words and one for all others; else NULL. Until the next forward_begin. */
const float *forward_exited(const struct forward *f, int32_t seq);

/* How many of a sequence's rows were run: all, but where the head did not propose what was asked of it. */
int32_t forward_ran(const struct forward *f, int32_t seq);

/* Next-token logits of n batch rows (ascending, each of them kept, none exited) after forward_run:
 * device (n, n_vocab), valid until the next call. n at most max_logits. */
int forward_logits(struct forward *f, const int32_t *rows, int32_t n,
                   const float **ret) WARN_UNUSED;

/* A token of each of the n rows of logits that forward_logits() or forward_head() left, drawn on the
 * device; they start on their way to the host, to `place` (backend's fetch). -ENOTSUP: not by this
 * backend, or not such a row. */
int forward_draw(struct forward *f, const struct ops_sample_row *rows, int32_t n,
                 int place) WARN_UNUSED;

/* The same in two steps: final hidden states into `hidden` (n, forward_ld()), and logits of such.
 */
int forward_take(struct forward *f, const int32_t *rows, int32_t n, float *hidden) WARN_UNUSED;
int forward_head(struct forward *f, const float *hidden, int32_t n, int32_t n_decode,
                 const float **ret) WARN_UNUSED;

/* As forward_logits, what the head would see: hidden states behind the last norm, device
 * (n, forward_ld()), valid until the next call of these. */
int forward_normed(struct forward *f, const int32_t *rows, int32_t n,
                   const float **ret) WARN_UNUSED;

/* Monotonic ns when an operation last finished, and the longest one's duration. Any thread. */
void forward_heartbeat(const struct forward *f, int64_t *ret_last_ns, int64_t *ret_longest_ns);

#endif
