/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's façade: takes what the plan says, and hands requests to the scheduler.
 *
 * engine_plan() and engine_create() prepare in the same way (prepare.c) and compute the plan by the
 * same code; create then goes on to take the memory. The order of creation is the order of
 * dependence, destruction its reverse: files, model, backend, cache, scheduler. */

#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/ple.h"
#include "engine/model/work.h"
#include "engine/prepare.h"
#include "engine/sched/sched.h"
#include "engine/text/tok.h"

struct engine {
    struct prepared p;
    struct plan plan;
    struct backend *be;
    struct cache *cache;
    struct sched *sched;
    struct tok *tok;
    struct engine_info info;
    char identity[65];
    char name[128];
    char describe[1024];
    struct error fallback_reason; /* the device, by backend "auto" */
};

void engine_config_default(struct engine_config *c)
{
    *c = (struct engine_config){
        .backend = "auto",
        .cpu_mask = UINT32_MAX,
        .n_seqs = 1,
    };
}

int engine_plan(const struct engine_config *c, struct plan *ret, struct error *reterr)
{
    struct backend *be = NULL;
    struct prepared p;
    struct geometry geometry = {0};
    int r;

    memset(ret, 0, sizeof(*ret));
    if (engine_asks_advice(c)) {
        const struct policy_advice *advice;

        return engine_advise(c, ret, &advice, reterr);
    }
    r = prepare(c, &p, reterr);
    if (r) {
        return r;
    }
    r = p.ops->create(&p.be_config, &be, reterr); /* it knows what the device has free */
    if (!r) {
        r = prepared_plan(&p, be, ret, &geometry, reterr);
    }
    geometry_finish(&geometry);
    if (be) {
        p.ops->destroy(be);
    }
    prepared_finish(&p);
    return r;
}

/* ---- creation -------------------------------------------------------------------------------- */

static void fill_info(struct engine *e)
{
    struct gguf_str s;
    const char *path = e->p.config.model_path;
    const char *slash = strrchr(path, '/');
    size_t n;

    if (gguf_get_str(e->p.base, "general.name", &s, NULL) < 0 || s.len == 0) {
        s.ptr = slash ? slash + 1 : path;
        s.len = strlen(s.ptr);
    }
    n = s.len < sizeof(e->name) - 1 ? s.len : sizeof(e->name) - 1;
    memcpy(e->name, s.ptr, n);
    e->name[n] = 0;
    e->p.ops->describe(e->be, e->describe, sizeof(e->describe));
    if (!backend_passed_by(e->p.config.backend ? e->p.config.backend : "auto", e->p.ops,
                           &e->fallback_reason)) {
        e->fallback_reason.text[0] = 0;
    }
    e->info = (struct engine_info){
        .model_name = e->name,
        .arch = e->p.model->arch->name,
        .backend = e->describe,
        .fallback_reason = e->fallback_reason.text,
        .kv = e->plan.policy,
        .identity = e->identity,
        .n_vocab = e->p.model->h.n_vocab,
        .n_embd = e->p.model->h.n_embd,
        .ctx = e->plan.ctx,
        .n_seqs = e->plan.n_seqs,
        .n_params = e->p.model->n_params,
    };
    e->info.token_slots = kv_token_slots(e->cache);
    memcpy(e->info.sha256, e->p.sha256, sizeof(e->info.sha256));
}

static void drop_files(const struct prepared *p)
{
    gguf_drop_pages(p->base);
    for (int i = 0; i < p->config.n_overlays; i++) {
        gguf_drop_pages(p->overlays[i]);
    }
}

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The base's hash, mixed with each overlay's by its place, and with what LongRoPE's other factors
 * change: keys of one context are none of the other. */
static void make_identity(struct engine *e)
{
    memcpy(e->identity, e->p.sha256, sizeof(e->identity));
    for (int k = 0; k < e->p.config.n_overlays; k++) {
        for (int i = 0; i < 64; i++) {
            int v = hex_value(e->identity[i]) ^ hex_value(e->p.overlay_sha256[k][(i + k + 1) % 64]);

            e->identity[i] = "0123456789abcdef"[v & 15];
        }
    }
    if (e->p.model->long_rope) {
        e->identity[0] = "0123456789abcdef"[hex_value(e->identity[0]) ^ 1];
    }
}

static int make_parts(struct engine *e, bool (*progress)(void *arg, float done), void *arg,
                      struct error *reterr)
{
    struct geometry geometry = {0};
    struct backend_limits limits;

    int r = e->p.ops->create(&e->p.be_config, &e->be, reterr);

    if (!r) {
        r = prepared_plan(&e->p, e->be, &e->plan, &geometry, reterr);
    }
    if (!r) {
        r = model_set_context(e->p.model, e->p.base, e->plan.ctx, reterr);
    }
    if (r) {
        geometry_finish(&geometry);
        return r;
    }
    /* All checks are done. What takes time begins here: whoever waits for the checks may go on. */
    if (progress && !progress(arg, 0)) {
        geometry_finish(&geometry);
        return error_set(reterr, -ECANCELED, "loading was stopped");
    }
    if (e->p.sha256[0] == 0) {
        r = gguf_sha256(e->p.config.model_path, e->p.config.cache_dir, e->p.sha256, reterr);
    }
    if (r) {
        geometry_finish(&geometry);
        return r;
    }
    make_identity(e);
    r = kv_create(&geometry, e->be, &e->cache, reterr);
    if (!r) {
        limits = prepared_limits(&e->p, e->plan.ctx, e->plan.n_seqs, e->plan.prompt_rows);
        r = e->p.ops->reserve(e->be, &limits, reterr);
    }
    for (int32_t i = 0; i < e->p.mix.n; i++) {
        e->p.model->rotates |= policy_may_rotate(&e->p.mix.part[i].policy);
    }
    if (!r) {
        r = model_load(e->p.model, e->p.ops, e->be, &e->p.be_config, progress, arg, reterr);
    }
    if (!r && e->plan.mapped_bytes ==
                  ple_resident_bytes(&e->p.model->ple)) { /* every weight lies elsewhere now */
        drop_files(&e->p);
    }
    if (!r) {
        struct sched_config config = {
            .model = e->p.model,
            .cache = e->cache,
            .tok = e->tok,
            .identity = e->identity,
            .ctx = e->plan.ctx,
            .n_seqs = e->plan.n_seqs,
            .batch_tokens = prepared_rows(&e->p, e->plan.n_seqs),
            .most_rows = prepared_most_rows(&e->p, e->plan.n_seqs, e->plan.prompt_rows),
            .prompt_rows = e->plan.prompt_rows,
            .max_chunk = e->p.max_chunk,
            .draft_rows = prepared_draft_rows(&e->p, e->plan.n_seqs),
            .gap_target_ns = e->p.config.gap_target_ms * 1e6,
            .draft_always = e->p.config.draft_always,
            /* the host reads the rows of per-layer embeddings, so it must know the tokens */
            .device_draws =
                !e->p.model->h.ple && (e->p.config.draw == ENGINE_DRAW_DEVICE ||
                                       (e->p.config.draw == ENGINE_DRAW_AUTO && e->p.ops->async)),
            .predicted_slots = prepared_predicted(&e->p, e->plan.ctx),
        };

        r = sched_create(&config, &e->sched, reterr);
    }
    return r;
}

int engine_create(const struct engine_config *wanted, bool (*progress)(void *arg, float done),
                  void *arg, struct engine **ret, struct error *reterr)
{
    struct engine *e = calloc(1, sizeof(*e));
    struct engine_config own = *wanted;
    int r;

    if (!e) {
        return error_set(reterr, -ENOMEM, "engine: no memory");
    }
    /* The plan is made later: it serves as scratch. */
    r = engine_take_advice(&own, &e->plan, reterr);
    const struct policy_advice *advice = e->plan.advice;

    r = r ? r : prepare(&own, &e->p, reterr);
    if (!r) {
        r = tok_create(e->p.base, &e->tok, reterr);
    }
    if (!r) {
        r = make_parts(e, progress, arg, reterr);
    }
    if (r) {
        engine_destroy(e);
        return r;
    }
    e->plan.advice = advice;
    fill_info(e);
    *ret = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (!e) {
        return;
    }
    const struct backend_ops *ops = e->p.ops;

    sched_destroy(e->sched);
    kv_destroy(e->cache);
    tok_destroy(e->tok);
    prepared_finish(&e->p); /* the weights need the backend */
    if (e->be) {
        ops->destroy(e->be);
    }
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

void engine_tier_counts(const struct engine *e, struct tier_counts *ret)
{
    kv_file_counts(e->cache, ret);
}

const struct plan *engine_plan_of(const struct engine *e)
{
    return &e->plan;
}

const struct tok *engine_tok(const struct engine *e)
{
    return e->tok;
}

const struct gguf *engine_gguf(const struct engine *e)
{
    return e->p.base;
}

/* ---- requests ---------------------------------------------------------------------------------
 */

int engine_submit(struct engine *e, const struct engine_request *r, uint64_t *ret_handle,
                  struct error *reterr)
{
    struct engine_request own = *r;
    int32_t most = e->p.config.n_draft;

    own.n_draft = own.n_draft < 0 ? 0 : own.n_draft < most ? own.n_draft : most;
    return sched_submit(e->sched, &own, ret_handle, reterr);
}

int engine_check(const struct engine *e, const struct engine_request *r, struct error *reterr)
{
    return sched_check(e->sched, r, reterr);
}

int engine_cancel(struct engine *e, uint64_t handle, enum engine_reason reason)
{
    return sched_cancel(e->sched, handle, reason);
}

int engine_score_credit(struct engine *e, uint64_t handle, int64_t n_rows)
{
    return sched_credit(e->sched, handle, n_rows);
}

int engine_save(struct engine *e, uint64_t handle, void **ret, size_t *ret_size,
                struct error *reterr)
{
    return sched_save(e->sched, handle, ret, ret_size, reterr);
}

int engine_work(const struct engine *e, const char *kv, int32_t n_prompt, int32_t n_tokens,
                struct engine_work *ret, struct error *reterr)
{
    struct policy p = kv_mix(e->cache)->part[0].policy;
    struct work w;
    int r = kv ? policy_parse(kv, &p, reterr) : 0;

    if (r) {
        return r;
    }
    if (work_of(e->p.model, e->cache, &p, n_prompt, n_tokens, &w)) {
        return error_set(reterr, -ENOTSUP, "the plan has no pages of this policy's precision");
    }
    *ret = (struct engine_work){
        .weight_bytes = w.weight_bytes,
        .kv_bytes = w.kv_bytes,
        .state_bytes = w.state_bytes,
        .prompt_flops = w.prompt_flops,
    };
    return 0;
}

int engine_save_begin(struct engine *e, uint64_t handle, uint64_t *ret_bytes, size_t *ret_least,
                      struct error *reterr)
{
    return sched_save_begin(e->sched, handle, ret_bytes, ret_least, reterr);
}

int engine_save_next(struct engine *e, uint64_t handle, void *buf, size_t size, size_t *ret_n,
                     struct error *reterr)
{
    return sched_save_next(e->sched, handle, buf, size, ret_n, reterr);
}

bool engine_save_waits(struct engine *e, uint64_t handle, size_t size)
{
    return sched_save_waits(e->sched, handle, size);
}

void engine_save_end(struct engine *e, uint64_t handle)
{
    sched_save_end(e->sched, handle);
}

int engine_step(struct engine *e, engine_emit *emit, void *arg)
{
    return sched_step(e->sched, emit, arg);
}

void engine_interrupt(struct engine *e)
{
    sched_interrupt(e->sched);
}

bool engine_news(struct engine *e, char *buf, size_t size)
{
    return e->p.ops->news && e->p.ops->news(e->be, buf, size);
}

void engine_notice(struct engine *e)
{
    sched_notice(e->sched);
}

void engine_heartbeat(const struct engine *e, int64_t *ret_last_ns, int64_t *ret_longest_ns)
{
    sched_heartbeat(e->sched, ret_last_ns, ret_longest_ns);
}

void engine_counters(const struct engine *e, struct engine_counters *ret)
{
    sched_counters(e->sched, ret);
}

bool engine_kv_use(const struct engine *e, int32_t i, struct engine_kv_use *ret)
{
    return sched_kv_use(e->sched, i, ret);
}
