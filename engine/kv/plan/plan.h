/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_PLAN_PLAN_H
#define PIPIT_ENGINE_KV_PLAN_PLAN_H

/* The memory plan: every byte the process will hold, computed before loading, by the same code that
 * later takes them. What does not fit is refused with the numbers and with the largest context and
 * number of sequences that would.
 *
 * But for index_bytes and lane_bytes the sum is what memory_map() will have taken, to the byte
 * (tests/unit/test_plan_taken.c), and what is taken is resident from then on. Not in it: the
 * program's own text and data, its threads' stacks, requests' copies of their tokens, and C structs
 * of less than 64 KiB in all.
 *
 * A device may have memory of its own (a graphics card). Then the plan has two sums, the device's
 * and the host's, and each must fit where it lies. Where they share one memory (Jetson, CPU) there
 * is one sum. */

#include <stdio.h>

#include "engine/kv/plan/geometry.h"

struct plan_class {
    char name[GEOMETRY_CLASS_NAME];
    uint64_t page_bytes;
    uint32_t n_pages;
    bool state; /* a page holds one */
};

struct plan {
    uint64_t weights_bytes; /* held; weights read from the file's map are in mapped_bytes */
    uint64_t mapped_bytes;
    uint64_t kv_bytes;
    uint64_t policy_bytes;       /* positions, scores, victims, sums of V */
    uint64_t prefill_peak_bytes; /* pages and state that only a prompt being read needs */
    uint64_t scratch_bytes;      /* activations, logits, page tables, the backend's scratch */
    uint64_t tier_bytes;  /* of pool=disk: partial keys, staging, what is being read and written */
    uint64_t index_bytes; /* on the C library's heap: files' indices, lists of tensors, tokenizer */
    uint64_t lane_bytes;  /* the caller's part (extra_bytes, extra_seq_bytes) */
    uint64_t total_bytes; /* all of the above but mapped_bytes */
    uint64_t available_bytes; /* what total and mapped (host and mapped) must fit */
    uint64_t
        limit_bytes; /* that the user set (--memory), 0: none; available_bytes says if it counts */
    uint64_t host_bytes;             /* of the total: on the host, whatever the device is */
    uint64_t device_available_bytes; /* what total less host must fit; 0: the device has none of its
                                        own */
    uint64_t file_bytes;             /* of pool=disk: the file; not memory, and in no sum */
    uint64_t rows_bytes; /* per-layer embeddings in the model's file; the same */
    uint64_t
        prompt_read_bytes; /* of it, by one prompt as long as the context, read in whole chunks */
    uint64_t recurrent_bytes; /* of kv_bytes: states of recurrent layers, and their checkpoints */
    uint64_t experts_bytes;   /* of weights_bytes and mapped_bytes: matrices of experts */
    uint64_t file_expert_bytes; /* those that stay in the model's file; in no sum */
    int32_t n_expert;         /* of a layer, 0: none, */
    int32_t n_used;           /* and how many of them a token reads */
    int32_t n_states;         /* recurrent layers, */
    int32_t n_stores;         /* of so many stores in all, */
    int32_t n_checkpoints;    /* and how often prompts may leave their states */
    uint64_t seq_bytes;    /* pages of one full sequence of the default policy */
    uint64_t least_bytes;  /* total and maps of the shortest context, where none fits; else 0 */
    bool fits;
    bool ctx_is_cut; /* nobody asked for it, and the model was trained on more than fits */
    int32_t ctx;
    int32_t n_seqs;
    int32_t ctx_model;     /* that the model was trained on */
    int32_t max_ctx;       /* that would fit with n_seqs */
    int32_t max_sequences; /* that would fit with ctx */
    int32_t prompt_rows;   /* tokens of one prompt in a step, at most */
    int32_t joined_rows;   /* what that would be at best (plan_input); 0: no more than a chunk, */
    uint64_t joined_bytes; /* and so many bytes more are taken for it, or would be */
    int32_t n_classes;
    struct plan_class page_classes[GEOMETRY_MAX_CLASSES];
    char policy[KV_TEXT_MAX]; /* canonical, of the default */
    const struct policy_advice *advice; /* by which it was chosen; NULL: it was given */
};

/* Where a plan's numbers come from. */
struct plan_input {
    struct geometry_config geometry; /* ctx 0: ctx_model, or what fits of it; n_seqs 0: as many as
                                        half of the free memory holds, or all of a set limit */
    int32_t most_seqs;               /* that n_seqs 0 may become */
    int32_t ctx_model;
    uint64_t weights_bytes;
    uint64_t mapped_bytes;
    uint64_t experts_bytes; /* of both, */
    bool experts_mapped;    /* or of neither: they stay in the file */
    int32_t n_expert;
    int32_t n_used;
    uint64_t rows_bytes; /* of per-layer embeddings, which stay in the file */
    uint64_t index_bytes;
    uint64_t extra_bytes;     /* the caller's own, */
    uint64_t extra_seq_bytes; /* and for each sequence */
    uint64_t limit_bytes; /* --memory, 0: none */
    uint64_t available_bytes;
    uint64_t device_available_bytes; /* of a device with memory of its own, else 0 */
    int32_t joined_rows; /* of one prompt, several chunks, that a step takes where there is memory
                            for it beside all else; 0: none, a chunk (geometry.max_chunk) */
    /* Scratch for a context, a number of sequences and tokens of one prompt in a step; *ret_host:
     * how much of it is the host's. */
    uint64_t (*scratch)(const void *arg, int32_t ctx, int32_t n_seqs, int32_t prompt_rows,
                        uint64_t *ret_host);
    const void *arg;
};

/* Fills `ret`, and with `ret_geometry` the geometry (geometry_finish it). 0, or -ENOMEM with
 * numbers when it does not fit (`ret` and `ret_geometry` are then filled too), or what
 * geometry_make returns. */
int plan_make(const struct plan_input *wanted, struct plan *ret, struct geometry *ret_geometry,
              struct error *reterr) WARN_UNUSED;

/* As one JSON object, or as a table for people. */
void plan_print_json(const struct plan *p, FILE *out);
void plan_print_table(const struct plan *p, FILE *out);

/* The least of MemAvailable and the control group's limit, UINT64_MAX when neither is known. */
uint64_t plan_memory_available(void);

#endif
