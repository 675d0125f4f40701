/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_ENGINE_H
#define PIPIT_ENGINE_ENGINE_H

/* The engine as its users see it (pipit-engine's worker, pipit-eval, pipit-bench): one model on one
 * backend, its memory plan, and a scheduler that turns submitted token sequences into events.
 *
 * The engine knows tokens, not text and not sockets: templates, detokenizing and stop strings are
 * engine/text/, called by its users. It has no threads but the backend's pool; one thread (the
 * worker) makes all calls, except engine_interrupt(), which any thread and a signal handler may call,
 * and engine_notice() and engine_heartbeat(), which any thread may.
 *
 * Life of a request: engine_submit() checks it against the plan and queues it; engine_step() runs
 * one batch (decode rows of all running sequences, then prefill chunks, batch.c) and emits
 * events in order; the last event of a request is ENGINE_EV_DONE, also after engine_cancel.
 * Between two tokens of a running batch nothing is allocated, locked or logged. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/text/sampler.h"

struct engine;
struct tok;
struct gguf;
struct plan; /* engine/kv/plan/plan.h */
struct policy_advice; /* engine/kv/policy/advice.h */
struct tier_calls;
struct tier_counts; /* engine/kv/home/tier.h */

enum { ENGINE_MAX_DRAFT = 63 };

/* Who draws tokens; they are the same. AUTO: the device where it works while the host does, and then the
 * next step is begun before the token is known (engine/sched/async_step.c). */
enum engine_draw { ENGINE_DRAW_AUTO, ENGINE_DRAW_HOST, ENGINE_DRAW_DEVICE };

/* What multiplies prompts by 16-bit weights on a GPU: own kernels, or cublasLt, without which nothing
 * then starts. AUTO: cublasLt where it is found, on cards. */
enum engine_prefill { ENGINE_PREFILL_AUTO, ENGINE_PREFILL_OWN, ENGINE_PREFILL_CUBLAS };

/* How a thread waits for a device. SPIN: it asks again and again. SLEEP: the device's interrupt
 * wakes it, later, and the CPU is free meanwhile. */
enum engine_wait { ENGINE_WAIT_SPIN, ENGINE_WAIT_SLEEP };

/* Where experts are. MAPPED: in the model's file, of which the cpu backend keeps those used latest
 * (expert_bytes) ready; ref has all weights there anyhow. */
enum engine_experts { ENGINE_EXPERTS_HELD, ENGINE_EXPERTS_MAPPED };

struct engine_config {
    const char *model_path;
    const char *const *overlay_paths; /* (n_overlays) */
    int n_overlays;
    const char *backend;    /* "auto", "ref", "cpu", "cuda" */
    int n_threads;          /* 0: all this process may use */
    uint32_t cpu_mask;      /* UINT32_MAX: all */
    int32_t ctx;            /* positions a sequence may have; 0: the model's own, cut to what fits */
    int32_t n_seqs;         /* sequences at once; 0: what memory and CPUs allow, at most 8 */
    int32_t batch_tokens;   /* rows of one step; 0: a chunk of a prompt (512) + n_seqs, and where
                               nobody's next token is waited for, prompt_rows + n_seqs */
    int32_t prompt_rows;    /* of prompts in such a step, several chunks of one, if memory has room
                               for them beside all else; less than two chunks: one. 0: 2,048 on a
                               device with memory of its own, else a chunk. Other values are for
                               tests and measurements */
    const char *kv;         /* policy text, NULL: "full"; "auto": engine_advise()'s */
    uint64_t memory_bytes;  /* 0: what the machine has free */
    uint64_t extra_bytes;   /* the caller's own part of the plan (lanes, arenas, journal) */
    uint64_t extra_seq_bytes; /* and for each sequence */
    int32_t gap_target_ms;  /* what a step that reads prompts may take while others decode; 0, or where
                               that is longer: twice a step without. Requests of urgency below 0 do not
                               count among those others */
    int32_t n_draft;        /* tokens that a step may draft for a sequence, 0..ENGINE_MAX_DRAFT; 0: none.
                               Backends other than ref and cpu draft none */
    enum engine_draw draw;
    enum engine_prefill prefill;
    enum engine_wait wait;
    enum engine_experts experts;
    uint64_t expert_bytes;  /* 0: twice what one token reads */
    bool draft_always;      /* all that can be drafted, whatever it costs: for tests and measurements */
    bool keep_prefixes;     /* pages of prompts are kept for texts of the same principal that begin alike */
    const char *cache_dir;  /* for remembered hashes, or NULL */
    const char *tier_dir;   /* where the file of pool=disk is made and at once unlinked, or NULL: refused */
    const struct tier_calls *tier_calls; /* how it is read and written (engine/kv/home/tier_io.h); NULL: as ever */
};

void engine_config_default(struct engine_config *c);

/* The plan for a configuration from the GGUF's header alone; nothing is loaded. `ret` is filled
 * also when it does not fit (-ENOMEM, reterr with the numbers and the largest context that would). */
int engine_plan(const struct engine_config *c, struct plan *ret, struct error *reterr) WARN_UNUSED;

/* Is the policy to be chosen (kv "auto")? */
bool engine_asks_advice(const struct engine_config *c);

/* The policy of least loss whose plan fits, whatever c->kv is, and its plan. *ret_advice is static
 * (engine/kv/policy/advice.h). With c->ctx 0 the context is cut rather than tokens evicted. -ENOMEM
 * when the smallest does not fit either, or what engine_plan returns. */
int engine_advise(const struct engine_config *c, struct plan *ret,
                  const struct policy_advice **ret_advice, struct error *reterr) WARN_UNUSED;

/* Puts engine_advise()'s policy in the place of "auto", if c->kv is that; overwrites `scratch`. */
int engine_take_advice(struct engine_config *c, struct plan *scratch,
                       struct error *reterr) WARN_UNUSED;

/* Plans, reserves, loads. `progress` (or NULL) gets 0 when everything was checked that needs
 * neither memory nor weights (files, plan), then 0..1 now and then, and may return false to stop
 * (-ECANCELED). Errors: -ENOMEM with numbers, -EBADMSG for the file, -ENOTSUP for an architecture,
 * tokenizer, type or policy that this build lacks. */
int engine_create(const struct engine_config *c, bool (*progress)(void *arg, float done), void *arg,
                  struct engine **ret, struct error *reterr) WARN_UNUSED;
void engine_destroy(struct engine *e); /* takes NULL */

struct engine_info {
    const char *model_name;   /* general.name, or the file's name */
    const char *arch;
    const char *backend;      /* describe() of the backend */
    const char *fallback_reason;    /* backend "auto": why it is not the device; "" */
    const char *kv;           /* canonical policy text */
    char sha256[65];          /* of the base file */
    const char *identity;     /* 64 characters that name the base file and its overlays */
    int32_t n_vocab;
    int32_t n_embd;
    int32_t ctx;
    int32_t n_seqs;
    int32_t token_slots;      /* that one token takes when nothing is evicted: usage.n_slots counts these;
                                 0: all layers are recurrent */
    uint64_t n_params;
};
const struct engine_info *engine_info(const struct engine *e);
/* What pool=disk has read and waited for; zeros without. */
void engine_tier_counts(const struct engine *e, struct tier_counts *ret);
const struct plan *engine_plan_of(const struct engine *e);
const struct tok *engine_tok(const struct engine *e);
const struct gguf *engine_gguf(const struct engine *e); /* the base file: template and other text keys */

/* ---- requests --------------------------------------------------------------------------- */

enum engine_kind {
    ENGINE_GENERATE, /* continue the prompt */
    ENGINE_SCORE,    /* only the prompt: log-probability of each token after the first */
    ENGINE_EMBED,    /* only the prompt: its hidden states behind the last norm, pooled */
};

enum engine_pool {
    ENGINE_POOL_MEAN, /* of all tokens */
    ENGINE_POOL_LAST, /* the last token's */
    ENGINE_POOL_NONE, /* each token's */
};

struct engine_request {
    enum engine_kind kind;
    const int32_t *prompt;  /* (n_prompt) at least 1; copied; each id is checked */
    int32_t n_prompt;
    const int32_t *forced;  /* (n_forced) new tokens that are given, not sampled, fed as decode rows: what
                               was said before a crash, or a text to be scored in decode mode; copied */
    int32_t n_forced;
    bool report_forced;     /* TOKEN events (with logprob and logits row) for forced tokens too */
    int32_t max_tokens;     /* new tokens, forced ones included; 0: to the end of the context */
    bool ignore_end;        /* go on after an end token */
    /* Tokens that may be drafted for it a step; what is more than was planned, or less than 0, counts
     * as that. 0: none. Drafts are looked up in
     * its own text (forced tokens are known) and checked in the pass that computes the token before
     * them: it says the same, to the bit, in fewer steps. None are made with `logits`, nor under
     * policies that evict or select (docs/design/engine.md). */
    int32_t n_draft;
    bool synthetic;           /* for measurements: K and V of the whole prompt are made up, not computed;
                               the first new token is a forced one */
    struct sampler_params sampler;
    const char *kv;         /* policy text, NULL: the daemon's default */
    /* A sequence saved by engine_save(): in memory (copied), or what saved_read reads (all n bytes from
     * `at` on, or a negative errno; until the request's first TOKEN or its DONE). Its tokens must begin
     * prompt ++ forced; they are not read again (usage.n_cached), and the token after them,
     * when it is a forced one, is not reported. Where they are all of it (saved between a step's rows and
     * its token), the text is read anew. Same model, overlays and policy. */
    const void *saved;
    size_t saved_size;
    int (*saved_read)(void *arg, uint64_t at, void *buf, size_t n);
    void *saved_arg;
    /* A request that waits or runs, of the same principal, prompt and policy, whose text (what it has
     * said included) is a beginning of prompt ++ forced, or 0. The new one shares its pages instead
     * of reading the prompt again (usage.n_cached), where it can: it says the same either way.
     * Submitted before the other's first token, it draws its own first token; after that, forced
     * tokens that the other has in its cache are not reported. */
    uint64_t fork_of;
    /* Nobody saves it, at its end neither: engine_save() and engine_save_begin() are -EINVAL. So a
     * step that cannot be undone in its cache (of a policy that evicts, or that keeps sums) may be
     * begun before the token ahead of it is known, where the device draws. It says the same either
     * way. */
    bool unsaved;
    uint64_t principal;     /* fairness: turns go round principals, then by urgency, then by age */
    int32_t urgency;        /* -100..100, higher sooner */
    void *user;             /* comes back with each event */
    /* Where full logits go, or NULL: f32 (logits_rows, n_vocab), written once, straight by the head's
     * matmul where the backend can. GENERATE: row (i % logits_rows) is the distribution that new
     * token i was drawn from, written before its TOKEN event (forced ones only with report_forced).
     * SCORE: row (i % logits_rows) for prompt position score_first + i (it predicts the token at
     * score_first + i + 1), while i < engine_score_credit(). */
    float *logits;
    int32_t logits_rows;
    /* EMBED: f32 (1, n_embd), or (n_prompt, n_embd) with POOL_NONE, each row of length 1 with `unit`;
     * written once, before the event HIDDEN. Rows are of all the prompt's tokens, behind the last norm,
     * so a prompt that would be read layer by layer (prefill=layered, longer than the budget) is -ENOTSUP. */
    float *hidden;
    enum engine_pool pool;
    bool unit;
    int32_t score_first;    /* SCORE: first position whose next-token distribution is wanted */
};

enum engine_reason { ENGINE_STOP, ENGINE_LENGTH, ENGINE_CONTEXT, ENGINE_CANCELLED, ENGINE_ERROR };

enum engine_event_type {
    ENGINE_EV_PROGRESS, /* prompt tokens read so far in n_done, at most one a step */
    ENGINE_EV_TOKEN,    /* one new token */
    ENGINE_EV_SCORE,    /* rows [index, index + n_done) are scored: logprobs (n_done) of the prompt's own
                           next tokens; the last position, which predicts nothing known, gives no row */
    ENGINE_EV_HIDDEN,   /* rows [0, n_done) of `hidden` are there */
    ENGINE_EV_DONE,
};

enum { ENGINE_MAX_ALTS = 20 };

struct engine_usage {
    int32_t n_prompt;
    int32_t n_cached;        /* of the prompt, not computed again */
    int32_t n_new;
    int64_t queue_ns;        /* submit to first row */
    int64_t prefill_ns;      /* first row to first token */
    int64_t decode_ns;
    uint64_t kv_bytes;       /* held at the end */
    uint64_t kv_bytes_full;  /* what the full f16 cache would hold */
    int64_t n_slots;         /* live at the end, summed over stores and groups */
    int64_t n_evicted;
    int32_t n_drafted;       /* tokens, guessed and computed beside the one before, */
    int32_t n_accepted;      /* and those of them that it said */
    int32_t n_exited;        /* of n_new, that needed no deep layers (exit:P) */
};

struct engine_event {
    enum engine_event_type type;
    void *user;
    int32_t n_done;
    int32_t index;          /* TOKEN: 0-based index of the new token, forced ones counted */
    int32_t token;
    float logprob;          /* natural log, of the model's own distribution */
    int32_t n_alts;
    struct {
        int32_t token;
        float logprob;
    } alts[ENGINE_MAX_ALTS];
    const float *logprobs;  /* SCORE; valid during the call */
    enum engine_reason reason;
    struct error error;     /* DONE with ENGINE_ERROR */
    struct engine_usage usage; /* DONE */
};

typedef void engine_emit(void *arg, const struct engine_event *ev);

/* 0 and a handle (never 0, never reused). -EMSGSIZE prompt + 1 > context (both counts in the text),
 * -EINVAL (token id, sampler range, policy text with position, saved text), -EBADMSG (saved), -ENOMEM policy needs more than the plan
 * holds, -ENOTSUP. No queue limit here: the front has it. */
int engine_submit(struct engine *e, const struct engine_request *r, uint64_t *ret_handle,
                  struct error *reterr) WARN_UNUSED;

/* Would it be taken, as far as policy and plan decide? 0, or what engine_submit() would say of them:
 * -ENOMEM here is the plan, never the machine. */
int engine_check(const struct engine *e, const struct engine_request *r, struct error *reterr) WARN_UNUSED;

/* Ends a request with `reason` at the next step; its DONE event still comes. -ENOENT. The user of a
 * text-level stop uses reason ENGINE_STOP. May be called from inside the emit callback. */
int engine_cancel(struct engine *e, uint64_t handle, enum engine_reason reason);

/* How many score rows may be written in all so far (grows as the reader frees rows). */
int engine_score_credit(struct engine *e, uint64_t handle, int64_t n_rows);

/* The state of a running sequence in memory that the caller frees: the text in its cache, K and V
 * in canonical form, positions and scores. To be called between steps, or for a request's own
 * handle from inside the callback of its TOKEN or DONE event (a DONE of an admitted one:
 * usage.kv_bytes is not 0). -ENOENT; -EINVAL one submitted as `unsaved`; -EBUSY while its prompt
 * is being read or a step of it is held up. */
int engine_save(struct engine *e, uint64_t handle, void **ret, size_t *ret_size,
                struct error *reterr) WARN_UNUSED;

/* The same in slices, so that others need not wait for it: from inside the callback of its DONE event
 * (as above), which then keeps the sequence admitted until engine_save_end(). *ret_bytes: of all;
 * *ret_least: the least buffer for a slice. */
int engine_save_begin(struct engine *e, uint64_t handle, uint64_t *ret_bytes, size_t *ret_least,
                      struct error *reterr) WARN_UNUSED;
/* Between steps: the next bytes, almost as many as fit; *ret_n 0: that was all. */
int engine_save_next(struct engine *e, uint64_t handle, void *buf, size_t size, size_t *ret_n,
                     struct error *reterr) WARN_UNUSED;
/* Would a call of it with a buffer of this size wait for the file of pool=disk? Reading goes on
 * meanwhile. */
bool engine_save_waits(struct engine *e, uint64_t handle, size_t size);
void engine_save_end(struct engine *e, uint64_t handle);

/* Runs one batch. Returns the number of requests that another step can do something for (queued or
 * running; one that only waits for engine_score_credit() does not count), 0 when idle, or a negative
 * errno when the device is lost (requests are then gone). A device that has no memory left for a step
 * ends the requests that run, with ENGINE_ERROR; those that wait go on. */
int engine_step(struct engine *e, engine_emit *emit, void *arg);

/* Makes a running engine_step (or the next one) return between two operations: the next step takes
 * the batch up where it stopped, or, where a request in it was cancelled meanwhile, runs it again
 * without that one; either way with the same results. For cancelling in a long prefill and for
 * shutdown. Async-signal-safe. */
void engine_interrupt(struct engine *e);
/* Somebody waits for engine_step()'s caller: it returns after the next token. */
void engine_notice(struct engine *e);

/* What the log should say of the backend since the last time (a device lost, and why; graphs given back):
 * true and a text, or false. Of the worker, between steps; also after engine_step() failed. */
bool engine_news(struct engine *e, char *buf, size_t size);

/* For health: monotonic ns when the worker last finished an operation, and the longest one yet. */
void engine_heartbeat(const struct engine *e, int64_t *ret_last_ns, int64_t *ret_longest_ns);

/* The least that steps of a sequence under a policy (NULL: the default) must do; for measurements. */
struct engine_work {
    uint64_t weight_bytes; /* a decode step reads, whatever the number of sequences */
    uint64_t kv_bytes;     /* of keys and values at n_tokens, whole lines */
    uint64_t state_bytes;  /* of positions and scores, read and written */
    double prompt_flops;   /* to read the prompt, keep-all attention */
};
int engine_work(const struct engine *e, const char *kv, int32_t n_prompt, int32_t n_tokens,
                struct engine_work *ret, struct error *reterr) WARN_UNUSED;

struct engine_counters {
    uint64_t n_steps;
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t n_evicted;
    uint64_t n_prefix_hits;   /* requests that found the beginning of their prompt kept, */
    uint64_t n_prefix_tokens; /* and so many tokens in all */
    int32_t n_running;
    int32_t n_queued;
    uint64_t kv_bytes_used; /* by running sequences; what is kept beside them is given up when needed */
    uint64_t kv_bytes_total;
    uint64_t n_drafted;  /* tokens, */
    uint64_t n_accepted; /* and those of them that were said */
    uint64_t n_async_steps;    /* steps begun before the tokens that they read were known */
    uint64_t n_exited;   /* of n_new_tokens, that needed no deep layers */
};
void engine_counters(const struct engine *e, struct engine_counters *ret);

/* Who holds the cache: row i of the policies that requests have asked for, the planned ones first, and
 * last, where there were too many, "others". false: there is no such row. */
struct engine_kv_use {
    char policy[512];    /* canonical */
    int32_t n_seqs;      /* running */
    uint64_t n_requests; /* that asked for it */
    uint64_t kv_bytes;   /* of pages that running sequences hold; one that several share counts for each */
    int64_t n_slots;     /* live, summed over stores and groups */
    uint64_t n_evicted;
};
bool engine_kv_use(const struct engine *e, int32_t i, struct engine_kv_use *ret);

#endif
