/* SPDX-License-Identifier: Apache-2.0 */
/* Files, model, mix and backend of a configuration, and the plan that follows from them. */

#include "engine/prepare.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "engine/model/ple.h"
#include "engine/sched/sched.h"
#include "engine/text/tok.h"
#include "kernels/kv_round.h"

enum { MAX_SEQS = 4096, MAX_BATCH = 1 << 16, MAX_DRAFT_ROWS = 64, MOST_CHOSEN_SEQS = 8 };

/* Tokens of a prompt in a step of a card: rows of one product of cublasLt
 * (kernels/cuda/cublas.cuh), for which weights in blocks are unpacked once. More would gain little
 * and keep others longer. */
enum { JOINED_ROWS = 2048 };

_Static_assert((int)ENGINE_PREFILL_OWN == (int)BACKEND_PREFILL_OWN &&
                   (int)ENGINE_PREFILL_CUBLAS == (int)BACKEND_PREFILL_CUBLAS,
               "one order");

void prepared_finish(struct prepared *p)
{
    free(p->stores);
    model_close(p->model);
    for (int i = 0; i < MODEL_MAX_OVERLAYS; i++) {
        gguf_close(p->overlays[i]);
    }
    gguf_close(p->base);
    *p = (struct prepared){0};
}

static int check_config(const struct engine_config *c, struct error *reterr)
{
    if (!c->model_path) {
        return error_set(reterr, -EINVAL, "no model was given");
    }
    if (c->n_seqs < 0 || c->n_seqs > MAX_SEQS) {
        return error_set(reterr, -EINVAL, "sequences: %d, but must be from 0 to %d", c->n_seqs,
                         MAX_SEQS);
    }
    if (c->ctx < 0 || c->ctx == 1 || c->ctx > HPARAMS_MAX_CTX) {
        return error_set(reterr, -EINVAL, "context: %d, but must be 0 or from 2 to %d", c->ctx,
                         HPARAMS_MAX_CTX);
    }
    if (c->batch_tokens < 0 || c->batch_tokens > MAX_BATCH) {
        return error_set(reterr, -EINVAL, "batch tokens: %d, but must be from 0 to %d",
                         c->batch_tokens, MAX_BATCH);
    }
    if (c->prompt_rows < 0 || c->prompt_rows > MAX_BATCH) {
        return error_set(reterr, -EINVAL, "prompt rows: %d, but must be from 0 to %d",
                         c->prompt_rows, MAX_BATCH);
    }
    if (c->n_draft < 0 || c->n_draft > ENGINE_MAX_DRAFT) {
        return error_set(reterr, -EINVAL, "drafted tokens: %d, but must be from 0 to %d",
                         c->n_draft, ENGINE_MAX_DRAFT);
    }
    if (c->n_overlays < 0 || c->n_overlays > MODEL_MAX_OVERLAYS) {
        return error_set(reterr, -E2BIG, "%d overlays, at most %d are offered", c->n_overlays,
                         MODEL_MAX_OVERLAYS);
    }
    return 0;
}

static int open_files(struct prepared *p, struct error *reterr)
{
    const struct engine_config *c = &p->config;
    const char *sha[MODEL_MAX_OVERLAYS];
    int r = gguf_open(c->model_path, &p->base, reterr);

    if (!r && c->n_overlays > 0) {
        r = gguf_sha256(c->model_path, c->cache_dir, p->sha256, reterr);
    }
    for (int i = 0; !r && i < c->n_overlays; i++) {
        sha[i] = p->overlay_sha256[i];
        r = gguf_open(c->overlay_paths[i], &p->overlays[i], reterr);
        if (!r) {
            r = gguf_sha256(c->overlay_paths[i], c->cache_dir, p->overlay_sha256[i], reterr);
        }
    }
    if (r) {
        return r;
    }
    struct model_source source = {
        .base = p->base,
        .overlays = (const struct gguf *const *)p->overlays,
        .n_overlays = c->n_overlays,
        .base_sha256 = p->sha256,
        .overlay_sha256 = sha,
        .rounds = p->ops->rounds,
    };

    for (int32_t i = 0; source.rounds && i < p->mix.n; i++) {
        const struct policy *policy = &p->mix.part[i].policy;

        source.holds |= kv_rounds(policy->k_type);
        source.holds_turned |= kv_rounds(policy->k_type) && policy_may_rotate(policy);
    }
    r = model_open(&source, &p->model, reterr);
    if (r) {
        (void)error_prefix(reterr, "%s", c->model_path);
    }
    return r;
}

/* Do several layers read the store? */
static bool is_shared(const struct model *m, int32_t store)
{
    int32_t n = 0;

    for (int32_t i = 0; i < m->h.n_layers; i++) {
        n += m->layers[i].store == store;
    }
    return n > 1;
}

static int describe_stores(struct prepared *p, struct error *reterr)
{
    const struct model *m = p->model;

    p->stores = calloc((size_t)m->n_stores, sizeof(*p->stores));
    if (!p->stores) {
        return error_set(reterr, -ENOMEM, "model: no memory");
    }
    for (int32_t i = 0; i < m->n_stores; i++) {
        p->stores[i] = (struct geometry_store){
            .layer = m->stores[i].layer,
            .n_k = m->stores[i].n_k,
            .n_v = m->stores[i].n_v,
            .k_dim = m->stores[i].k_dim,
            .v_dim = m->stores[i].v_dim,
            .window = m->stores[i].window,
            .state_bytes = m->stores[i].state_bytes,
            .deep = m->stores[i].deep,
            .shared = is_shared(m, i),
            .weight = m->stores[i].weight,
            .skew = model_opt(&m->layers[m->stores[i].layer].w[LT_SKEW]),
            .columns = model_opt(&m->layers[m->stores[i].layer].w[LT_COLUMNS]),
            .center = model_opt(&m->layers[m->stores[i].layer].w[LT_CENTER]),
            .surrogate = m->layers[m->stores[i].layer].w[LT_SCORE].n_cols != 0,
            .balance = model_opt(&m->layers[m->stores[i].layer].w[LT_BALANCE]),
            .carry = model_opt(&m->layers[m->stores[i].layer].w[LT_CARRY]),
            .carry_turned = model_opt(&m->layers[m->stores[i].layer].w[LT_CARRY_TURNED]),
        };
    }
    return 0;
}

/* A batch holds the largest chunk of the planned policies and a row of every sequence. */
static int lay_batch(struct prepared *p, struct error *reterr)
{
    int32_t n = p->config.batch_tokens;

    p->max_chunk = KV_DEFAULT_CHUNK;
    for (int32_t i = 0; i < p->mix.n; i++) {
        int32_t chunk = p->mix.part[i].policy.chunk;

        p->max_chunk = chunk > p->max_chunk ? chunk : p->max_chunk;
    }
    p->batch_tokens = n ? n : p->max_chunk + p->config.n_seqs;
    if (p->batch_tokens < p->max_chunk + p->config.n_seqs) {
        return error_set(reterr, -EINVAL,
                         "batch tokens: %d, but a chunk of %d and %d sequences need at least %d", n,
                         p->max_chunk, p->config.n_seqs, p->max_chunk + p->config.n_seqs);
    }
    return 0;
}

/* What a backend may lack. */
static int check_operations(const struct prepared *p, struct error *reterr)
{
    const char *op = model_lacks(p->model, p->ops);
    enum dtype type;
    const char *weight = model_lacks_type(p->model, p->ops, &type);

    if (weight) {
        return error_set(reterr, -ENOTSUP,
                         "%s: tensor %s is %s, which backend %s does not read; backend cpu does",
                         p->config.model_path, weight, dtype_info(type)->name, p->ops->name);
    }
    return !op ? 0
               : error_set(reterr, -ENOTSUP,
                           "%s: architecture %s needs the operation %s, which backend %s does not "
                           "have; backend cpu does",
                           p->config.model_path, p->model->arch->name, op, p->ops->name);
}

/* How many bytes of experts the backend keeps ready, where they stay in the file. */
static int place_experts(struct prepared *p, struct error *reterr)
{
    bool cpu = strcmp(p->ops->name, "cpu") == 0;
    uint64_t one = model_one_expert_bytes(p->model, p->ops);
    uint64_t all = model_n_experts(p->model) * one;
    uint64_t least = BACKEND_LEAST_EXPERTS * one;
    uint64_t n = p->config.expert_bytes;

    if (p->config.experts == ENGINE_EXPERTS_HELD && n) {
        return error_set(reterr, -EINVAL,
                         "expert-bytes: all experts are held; experts = mapped keeps some");
    }
    if (p->config.experts == ENGINE_EXPERTS_HELD || one == 0 || strcmp(p->ops->name, "ref") == 0) {
        return 0;
    }
    if (!cpu) {
        return error_set(reterr, -ENOTSUP,
                         "experts mapped: backend %s holds all of them; backend cpu does not",
                         p->ops->name);
    }
    if (n == 0) {
        n = all / (uint64_t)p->model->h.n_expert * (uint64_t)p->model->h.n_used * 2;
        n = n > least ? n : least;
    }
    if (n < least) {
        return error_set(reterr, -EINVAL,
                         "expert-bytes: %" PRIu64 ", but %d experts of this model, the least, are "
                         "%" PRIu64,
                         n, BACKEND_LEAST_EXPERTS, least);
    }
    all = all > least ? all : least;
    p->be_config.expert_bytes = n < all ? n : all;
    return 0;
}

int prepare(const struct engine_config *c, struct prepared *p, struct error *reterr)
{
    int r = check_config(c, reterr);

    *p = (struct prepared){
        .config = *c,
        .be_config = {.n_threads = c->n_threads,
                      .cpu_mask = c->cpu_mask,
                      .prefill = (enum backend_prefill)c->prefill,
                      .wait_asleep = c->wait == ENGINE_WAIT_SLEEP},
    };
    if (!r) {
        r = backend_find(c->backend ? c->backend : "auto", &p->ops, reterr);
    }
    if (!r) {
        r = policy_parse_mix(c->kv, &p->mix, reterr);
    }
    if (!r) {
        r = lay_batch(p, reterr);
    }
    if (!r) {
        r = open_files(p, reterr);
    }
    r = r ? r : check_operations(p, reterr);
    r = r ? r : place_experts(p, reterr);
    if (!r) {
        p->index_bytes = gguf_index_bytes(p->base) + tok_bytes(p->base) +
                         model_table_bytes(p->model) + forward_table_bytes();
        for (int i = 0; i < p->config.n_overlays; i++) {
            p->index_bytes += gguf_index_bytes(p->overlays[i]);
        }
        r = describe_stores(p, reterr);
    }
    if (r) {
        prepared_finish(p);
    }
    return r;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Under some part of the mix; else kv_spare_rows() is 0 for every sequence. */
static bool may_draft(const struct policy_mix *mix)
{
    bool may = false;

    for (int32_t i = 0; i < mix->n; i++) {
        may = may || policy_only_appends(&mix->part[i].policy);
    }
    return may;
}

/* Rows of drafted tokens in a step. With many sequences there is no room for drafts between reading
 * weights and computing. Only where rows are known to be the same bits alone and in company. That
 * it pays was measured on x86-64 with the cpu backend; no Arm machine was timed, where it rests on
 * the times that the engine takes of its own steps (draft_cost.h). */
int32_t prepared_draft_rows(const struct prepared *p, int32_t n_seqs)
{
    bool known = strcmp(p->ops->name, "ref") == 0 || strcmp(p->ops->name, "cpu") == 0;
    int32_t n = known && may_draft(&p->mix) ? p->config.n_draft : 0;

    return n_seqs < MAX_DRAFT_ROWS / (n > 0 ? n : 1) ? n * n_seqs : n > 0 ? MAX_DRAFT_ROWS : 0;
}

int32_t prepared_rows(const struct prepared *p, int32_t n_seqs)
{
    int32_t least = p->max_chunk + n_seqs;

    return least > p->batch_tokens ? least : p->batch_tokens;
}

int32_t prepared_most_rows(const struct prepared *p, int32_t n_seqs, int32_t prompt_rows)
{
    int32_t rows = prepared_rows(p, n_seqs);
    int32_t joined = p->config.batch_tokens ? 0 : prompt_rows + n_seqs;

    return joined > rows ? joined : rows;
}

/* Is there a policy under which a step may take several chunks of a prompt, in a model whose stores
 * keep what every row writes? A ring would have to hold as many rows more. A recurrent layer's
 * state is at hand at a step's end alone, and texts go on from copies of it at chunks' ends. */
static bool may_join(const struct prepared *p)
{
    bool joins = false;

    for (int32_t i = 0; i < p->mix.n; i++) {
        joins = joins || policy_joins_chunks(&p->mix.part[i].policy);
    }
    for (int32_t i = 0; i < p->model->n_stores; i++) {
        joins = joins && !p->model->stores[i].window && !p->model->stores[i].state_bytes;
    }
    return joins;
}

/* Tokens of a prompt that a step should take, 0 where that is no more than a chunk. A board's own
 * products do not unpack weights, and its memory is everybody's; a CPU reads weights for a chunk in
 * a fraction of its time. */
static int32_t joined_rows(const struct prepared *p, bool own_memory)
{
    int32_t n = p->config.prompt_rows;

    if (n == 0 && p->ops->async && own_memory) {
        n = p->config.batch_tokens ? p->config.batch_tokens : JOINED_ROWS;
    }
    n = p->config.batch_tokens && p->config.batch_tokens < n ? p->config.batch_tokens : n;
    return n >= 2 * p->max_chunk && may_join(p) ? n : 0;
}

struct backend_limits prepared_limits(const struct prepared *p, int32_t ctx, int32_t n_seqs,
                                      int32_t prompt_rows)
{
    struct backend_limits l = {
        .max_rows = prepared_most_rows(p, n_seqs, prompt_rows) + prepared_draft_rows(p, n_seqs),
        .max_decode = n_seqs + prepared_draft_rows(p, n_seqs),
        .max_seqs = n_seqs,
        .max_slots = model_attends(p->model) ? ctx : 0,
    };

    model_limits(p->model, &l);
    if (p->be_config.expert_bytes) {
        l.max_expert_bytes = model_one_expert_bytes(p->model, p->ops);
    }
    for (int32_t i = 0; i < p->mix.n; i++) {
        l.observe = l.observe || policy_observes(&p->mix.part[i].policy);
        l.expect = l.expect || policy_expects(&p->mix.part[i].policy);
        l.select = l.select || policy_selects(&p->mix.part[i].policy);
    }
    return l;
}

int32_t prepared_predicted(const struct prepared *p, int32_t ctx)
{
    for (int32_t i = 0; i < p->mix.n; i++) {
        if (policy_predicts(&p->mix.part[i].policy)) {
            return ctx;
        }
    }
    return 0;
}

static uint64_t scratch_for(const void *arg, int32_t ctx, int32_t n_seqs, int32_t prompt_rows,
                            uint64_t *ret_host)
{
    const struct prepared *p = arg;
    struct backend_limits l = prepared_limits(p, ctx, n_seqs, prompt_rows);
    struct sched_config sizes = {
        .ctx = ctx,
        .n_seqs = n_seqs,
        .batch_tokens = prepared_rows(p, n_seqs),
        .most_rows = prepared_most_rows(p, n_seqs, prompt_rows),
        .max_chunk = p->max_chunk,
        .draft_rows = prepared_draft_rows(p, n_seqs),
        .predicted_slots = prepared_predicted(p, ctx),
    };

    return memory_rounded(p->ops->scratch_bytes(&p->be_config, &l)) +
           sched_bytes(p->model, &sizes, ret_host);
}

/* Sequences of an engine that is not told how many. On two threads eight sequences decode 2.8 times
 * the tokens of one (docs/results/speed.md), four some 2. A file of pool=disk is made for one. */
static int32_t most_seqs(const struct prepared *p)
{
    for (int32_t i = 0; i < p->mix.n; i++) {
        if (policy_on_disk(&p->mix.part[i].policy)) {
            return 1;
        }
    }
    int32_t n = p->config.n_threads > 0 ? p->config.n_threads : cpu_count();

    return strcmp(p->ops->name, "cuda") == 0 || n >= MOST_CHOSEN_SEQS / 2 ? MOST_CHOSEN_SEQS
                                                                          : 2 * n;
}

/* What a library of the backend's takes of the device for itself, it takes before the plan asks
 * what is free. Rows are those of the largest steps that the plan may come to. */
static int try_weights(const struct prepared *p, struct backend *be, bool own_memory,
                       struct error *reterr)
{
    int32_t ctx = p->config.ctx ? p->config.ctx : p->model->h.n_ctx_train;
    int32_t n_seqs = p->config.n_seqs ? p->config.n_seqs : most_seqs(p);
    int64_t all = (int64_t)ctx * n_seqs;
    int32_t joined = joined_rows(p, own_memory);
    struct backend_limits limits;

    joined = joined < all ? joined : (int32_t)all;
    limits = prepared_limits(p, ctx, n_seqs, joined < 2 * p->max_chunk ? p->max_chunk : joined);
    return model_try(p->model, p->ops, be, &limits, reterr);
}

/* What the plan must fit. free_bytes() returns 1 where a device shares the host's memory, or is the
 * host. A device with memory of its own has what is free there; --memory bounds its sum and the
 * host's, each. */
static int find_available(const struct prepared *p, struct backend *be, struct plan_input *in,
                          struct error *reterr)
{
    uint64_t limit = p->config.memory_bytes;
    uint64_t device = 0;
    int r = p->ops->free_bytes(be, &device);

    if (r >= 0) {
        int tried = try_weights(p, be, r == 0, reterr);

        if (tried < 0) {
            return tried;
        }
        r = p->ops->free_bytes(be, &device);
    }
    in->limit_bytes = limit;
    in->available_bytes = plan_memory_available();
    if (r == 1) {
        in->available_bytes = device < in->available_bytes ? device : in->available_bytes;
        in->available_bytes = limit ? limit : in->available_bytes;
        return 0;
    }
    if (r) {
        return error_set_errno(reterr, r, "free memory of the device");
    }
    in->device_available_bytes = limit && limit < device ? limit : device;
    if (limit && limit < in->available_bytes) {
        in->available_bytes = limit;
    }
    return 0;
}

int prepared_plan(const struct prepared *p, struct backend *be, struct plan *ret,
                  struct geometry *ret_geometry, struct error *reterr)
{
    struct plan_input in = {
        .geometry =
            {
                .ops = p->ops,
                .stores = p->stores,
                .n_stores = p->model->n_stores,
                .ctx = p->config.ctx,
                .n_seqs = p->config.n_seqs,
                .max_chunk = p->max_chunk,
                .n_q = p->model->h.most.n_q,
                .exit_head = model_can_exit(p->model),
                .sinks = model_has_sinks(p->model),
                .alibi = p->model->h.alibi_max > 0,
                .softcap = p->model->h.attn_softcap > 0,
                .wide = p->model->h.wide,
                .untapped = model_untapped(p->model) != NULL,
                .split = p->model->h.swift_layers < p->model->h.n_layers,
                .shared = p->model->h.shared,
                .keep_prefixes = p->config.keep_prefixes,
                .tier_dir = p->config.tier_dir,
                .tier_calls = p->config.tier_calls,
                .hidden_bytes = forward_row_bytes(p->model),
                .mix = p->mix,
            },
        .most_seqs = most_seqs(p),
        .ctx_model = p->model->h.n_ctx_train,
        .index_bytes = p->index_bytes,
        .extra_bytes = p->config.extra_bytes,
        .extra_seq_bytes = p->config.extra_seq_bytes,
        .scratch = scratch_for,
        .arg = p,
    };

    int r = find_available(p, be, &in, reterr);

    if (r) {
        return r;
    }
    in.geometry.one_memory = in.device_available_bytes == 0;
    in.joined_rows = joined_rows(p, in.device_available_bytes > 0);
    model_weight_bytes(p->model, p->ops, &p->be_config, &in.weights_bytes, &in.mapped_bytes);
    in.experts_bytes = model_expert_bytes(p->model, p->ops, &p->be_config);
    in.experts_mapped = p->be_config.expert_bytes > 0;
    in.n_expert = p->model->h.n_expert;
    in.n_used = p->model->h.n_used;
    in.rows_bytes = p->model->ple.bytes;
    in.mapped_bytes += ple_resident_bytes(&p->model->ple);
    return plan_make(&in, ret, ret_geometry, reterr);
}
