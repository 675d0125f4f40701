/* SPDX-License-Identifier: Apache-2.0 */
/* Making jobs: the request's items and leases are checked and decoded here, before the engine sees
 * anything. Every path out of job_start() either leaves a submitted job or has sent the request's
 * last record. */

#include "daemon/worker/job_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/worker/answer.h"
#include "daemon/worker/hook.h"
#include "daemon/worker/mapping.h"
#include "daemon/worker/texts.h"
#include "engine/kv/plan/plan.h"
#include "engine/kv/policy/policy.h"
#include "engine/text/tok.h"

enum { PROMPT_END = 256 /* bytes of a prompt's end that tell where it leaves off */ };

struct job *job_find(const struct worker *w, const uint8_t id[16])
{
    for (struct job *j = w->jobs; j; j = j->next) {
        if (memcmp(j->id, id, sizeof(j->id)) == 0) {
            return j;
        }
    }
    return NULL;
}

void job_end(struct worker *w, struct job *j)
{
    struct job **p = &w->jobs;

    while (*p && *p != j) {
        p = &(*p)->next;
    }
    if (*p) {
        *p = j->next;
        w->n_jobs--;
    }
    mapping_unref(w, j->mapping);
    session_close(&j->session);
    calls_destroy(j->calls);
    free(j->text);
    free(j->prompt);
    free(j);
}

static bool reads_text(const struct job *j)
{
    return j->kind == LANE_KIND_TOKENIZE || j->kind == LANE_KIND_DETOKENIZE;
}

/* Before the engine had it. */
static void end_stopped(struct worker *w, struct job *j)
{
    if (j->session.dir >= 0) {
        (void)error_set(&j->save_error, -ECANCELED,
                        "the answer was ended before it began: the session stays as it was");
        j->saved = LANE_SESSION_NOT_SAVED;
    }
    answer_stopped(j);
    job_end(w, j);
}

void job_cancel(struct worker *w, struct job *j, uint32_t reason)
{
    if (j->stop_reason) {
        return;
    }
    j->stop_reason = reason;
    if (reads_text(j)) {
        atomic_store(&j->load_stop, true);
        return;
    }
    if (j->reads) {
        atomic_store(&j->load_stop, true);
        return;
    }
    if (!j->loading) {
        (void)engine_cancel(atomic_load(&w->engine), j->handle, ENGINE_CANCELLED);
        return;
    }
    atomic_store(&j->load_stop, true);
    if (loader_drop(&w->loader, j)) {
        end_stopped(w, j);
    }
}

void job_credit(struct job *j, int64_t n_rows)
{
    if (!j->handle) {
        j->credit = n_rows;
    } else if (j->logits_rows) {
        (void)engine_score_credit(atomic_load(&j->worker->engine), j->handle, n_rows);
    }
}

/* An answer in parts: with its tools, before a step could wait for it. */
static int take_parts(struct job *j, const struct ask *a, const struct ask_source *source,
                      struct error *reterr)
{
    struct json_t *tools = NULL;
    int rc = 0;

    if (j->calls || j->kind != LANE_KIND_CHAT || !ask_wants_parts(a)) {
        return 0;
    }
    if (a->tools.ptr) {
        rc = chat_tools_parse(a->tools.ptr, a->tools.len, &tools, reterr);
    }
    if (rc == 0 && tools && !chat_shows_tools(source->chat) &&
        !atomic_exchange(&j->worker->tools_told, true)) {
        log_event(LOG_LEVEL_WARNING, "tools-unseen",
                  "the chat template has no place for tools: the model does not see them");
    }
    rc = rc ? rc : answer_take_parts(j, source->chat->calls, tools, reterr);
    chat_tools_release(tools);
    return rc;
}

/* Where the prompt leaves off: a template may begin the reasoning, or a message's header. */
static void begin_parts(struct job *j, const struct tok *tok)
{
    char end[PROMPT_END];
    size_t n = 0;

    for (int32_t i = j->n_prompt; i-- > 0;) {
        const char *piece;
        size_t len;

        tok_token_text(tok, j->prompt[i], &piece, &len);
        if (len > sizeof(end) - n) {
            break;
        }
        n += len;
        memcpy(end + sizeof(end) - n, piece, len);
    }
    calls_begin(j->calls, end + sizeof(end) - n, n);
}

/* Detokenizer and stop strings, in the state they were in before a crash. */
static int prepare_text(struct job *j, const struct ask *a, const struct lane_engine_request *e,
                        const int32_t *forced, struct error *reterr)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));
    int rc;

    if (a->n_stops && !tok_has_text(tok)) {
        return error_set(reterr, -ENOTSUP,
                         "the model's file has no tokenizer: stop strings never come");
    }
    rc = stop_init(&j->stop, a->stops, a->n_stops, reterr);
    if (rc) {
        return rc;
    }
    detok_init(&j->detok, tok, j->prompt[j->n_prompt - 1], false);
    j->skip_text = e->text_sent;
    j->index = -1;
    if (j->calls) {
        begin_parts(j, tok);
    }
    answer_replay(j, forced, j->n_forced);
    return 0;
}

/* Did the answer end with the ids that were said already? Then the engine only lacked the time to
 * say so. */
static uint32_t ended_before(const struct job *j, const struct ask *a, const int32_t *said,
                             uint32_t n)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));
    int32_t max = a->sampling.max_tokens;

    if (n == 0) {
        return 0;
    }
    if (j->stop.hit >= 0) {
        return LANE_REASON_STOP;
    }
    if (!(a->sampling.flags & TLV_S_IGNORE_END) && tok_is_end(tok, said[n - 1])) {
        return LANE_REASON_STOP;
    }
    return max > 0 && n >= (uint32_t)max ? LANE_REASON_LENGTH : 0;
}

/* A model file may have been replaced since the ids were said. */
static int check_forced(const struct worker *w, const struct lane_engine_request *e,
                        struct error *reterr)
{
    uint64_t bytes = (uint64_t)e->n_forced * sizeof(int32_t);
    int32_t n_vocab = tok_n_vocab(engine_tok(atomic_load(&w->engine)));
    const int32_t *forced;

    if (!checked_range(e->journal_offset, e->tlv_bytes, w->journal_bytes) ||
        !checked_range(e->forced_offset, bytes, w->journal_bytes)) {
        return error_set(reterr, -EBADMSG, "a request beyond the journal's end");
    }
    forced = (const int32_t *)(const void *)(w->journal + e->forced_offset);
    for (uint64_t i = 0; i < e->n_forced; i++) {
        if (forced[i] < 0 || forced[i] >= n_vocab) {
            return error_set(reterr, -ESTALE,
                             "the answer cannot go on: the model loaded now has no token %d",
                             forced[i]);
        }
    }
    return 0;
}

/* Refused for want of something that a daemon plans at its start: with what plan it runs, and
 * whether less could be asked for. Where the machine has no memory, neither would help. */
static void explain(const struct job *j, const struct engine_request *q, struct error *reterr)
{
    const struct engine *e = atomic_load(&j->worker->engine);
    const char *kv = j->worker->config.kv ? j->worker->config.kv : "full";
    const size_t room = sizeof(((struct lane_error *)NULL)->text);
    struct engine_request less = *q;
    struct error ignored;
    size_t n;

    less.max_tokens = 1;
    if (engine_check(e, q, &ignored) != -ENOMEM) {
        return;
    }
    /* None in halves. */
    _Static_assert(sizeof(((struct lane_error *)NULL)->text) <= sizeof(reterr->text), "room");
    if (strlen(reterr->text) + strlen(kv) + 32 < room) {
        (void)error_prefix(reterr, "this daemon runs with --kv %s", kv);
    }
    n = strlen(reterr->text);
    if (q->kind == ENGINE_GENERATE && engine_check(e, &less, &ignored) == 0 && n + 32 < room) {
        (void)snprintf(reterr->text + n, room - n, "; -n N may ask for less");
    }
}

/* A larger context is no remedy where the model was trained on no longer texts. */
static void say_whose(const struct engine *engine, struct error *reterr)
{
    const struct plan *p = engine_plan_of(engine);
    const size_t room = sizeof(((struct lane_error *)NULL)->text);
    size_t n = strlen(reterr->text);

    if (p->ctx_model > 0 && p->ctx == p->ctx_model && n + 32 < room) {
        (void)snprintf(reterr->text + n, room - n, ", the model's own");
    }
}

static int submit(struct job *j, const struct ask *a, const struct lane_engine_request *e,
                  const int32_t *forced, struct job_counts *c, struct error *reterr)
{
    struct worker *w = j->worker;
    struct engine *engine = atomic_load(&w->engine);
    uint32_t flags = a->sampling.flags;
    struct engine_request q = {.kind = j->kind == LANE_KIND_SCORE   ? ENGINE_SCORE
                                       : j->kind == LANE_KIND_EMBED ? ENGINE_EMBED
                                                                    : ENGINE_GENERATE,
                               .pool = flags & TLV_S_POOL_NONE   ? ENGINE_POOL_NONE
                                       : flags & TLV_S_POOL_LAST ? ENGINE_POOL_LAST
                                                                 : ENGINE_POOL_MEAN,
                               .unit = !(flags & TLV_S_NOT_UNIT),
                               .prompt = j->prompt,
                               .n_prompt = j->n_first,
                               .forced = j->n_again ? j->text + j->n_first : forced,
                               .n_forced = j->n_again + (int32_t)j->n_forced,
                               .max_tokens = a->sampling.max_tokens,
                               .ignore_end = a->sampling.flags & TLV_S_IGNORE_END,
                               .n_draft = flags & TLV_S_NO_DRAFT ? 0 : w->config.n_draft,
                               .sampler = ask_sampler(a, e->seed),
                               .kv = j->policy[0] ? j->policy : a->kv,
                               .saved_read = session_exists(&j->session) ? session_read : NULL,
                               .saved_arg = &j->session,
                               .saved_size = (size_t)j->session.head.block_bytes,
                               .unsaved = j->session.dir < 0,
                               .principal = e->principal,
                               .urgency = e->urgency,
                               .user = j,
                               .score_first = j->score_first};
    bool logits =
        j->kind == LANE_KIND_GENERATE || j->kind == LANE_KIND_CHAT || (flags & TLV_S_LOGITS);
    int rc = sampler_params_check(&q.sampler, reterr);

    j->seed = q.sampler.seed;
    if (j->n_again && q.max_tokens) {
        q.max_tokens = q.max_tokens < INT32_MAX - j->n_again ? q.max_tokens + j->n_again : 0;
    }
    if (j->n_again && e->out_bytes) {
        return error_set(reterr, -ENOTSUP, "no logits from a session under a policy that evicts");
    }
    rc = rc ? rc : job_lay_output(j, e, logits, &q, c, reterr);
    if (!rc) {
        if (q.saved_read) { /* the snapshot's headers and states */
            job_files_begin(w);
        }
        rc = engine_submit(engine, &q, &j->handle, reterr);
        if (q.saved_read) {
            job_files_end(w);
        }
        if (rc == -ENOMEM) {
            explain(j, &q, reterr);
        }
    }
    if (rc == -EMSGSIZE) {
        say_whose(engine, reterr);
        *c = (struct job_counts){.a = (uint64_t)j->n_prompt,
                                 .b = (uint64_t)engine_info(engine)->ctx - 1};
    }
    if (rc == 0 && j->kind == LANE_KIND_SCORE) {
        rc = engine_score_credit(engine, j->handle, q.logits ? q.logits_rows : INT64_MAX);
    }
    if (rc == 0 && j->credit) {
        job_credit(j, j->credit);
    }
    return rc;
}

static void end_before(struct job *j, const struct ask *a, const struct lane_engine_request *e,
                       uint32_t reason)
{
    j->seed = ask_sampler(a, e->seed).seed;
    answer_done(j, reason, NULL);
    job_end(j->worker, j);
}

/* What the front has not heard of a saved turn is said again from the file. */
static int end_saved(struct job *j, const struct ask *a, const struct ask_source *source,
                     const struct lane_engine_request *e, const int32_t *forced,
                     struct error *reterr)
{
    const struct session_header *h = &j->session.head;
    uint32_t n = h->n_answer > e->n_forced ? h->n_answer : e->n_forced;
    const int32_t *said = n < h->n_text ? j->session.text + h->n_text - n : NULL;
    uint32_t ended;
    int rc;

    if (!said || memcmp(said, forced, e->n_forced * sizeof(*said)) != 0) {
        return error_set(reterr, -ESTALE, "session %s holds another answer to this request",
                         j->session.name);
    }
    j->n_prompt = (int32_t)(h->n_text - n);
    j->n_forced = e->n_forced;
    j->prompt = malloc((size_t)j->n_prompt * sizeof(*j->prompt));
    if (!j->prompt) {
        return error_set(reterr, -ENOMEM, "no memory for the session's text");
    }
    memcpy(j->prompt, j->session.text, (size_t)j->n_prompt * sizeof(*j->prompt));
    rc = source->chat ? take_parts(j, a, source, reterr) : 0;
    rc = rc ? rc : prepare_text(j, a, e, forced, reterr);
    if (rc) {
        return rc;
    }
    answer_said(j, said, e->n_forced, n);
    ended = ended_before(j, a, said, n);
    j->n_forced = n;
    j->saved = LANE_SESSION_SAVED;
    j->saved_bytes = j->session.file_bytes;
    end_before(j, a, e, ended ? ended : LANE_REASON_CONTEXT);
    return 0;
}

int job_prompt(struct job *j, const struct ask *a, const struct ask_source *source,
               struct error *reterr)
{
    size_t n;
    int rc = session_exists(&j->session)
                 ? job_go_on(j, a, source, &n, reterr)
                 : ask_prompt(a, j->kind == LANE_KIND_CHAT, source, &j->prompt, &n, reterr);

    if (rc) {
        return rc;
    }
    if (n > INT32_MAX) {
        return error_set(reterr, -E2BIG, "the prompt has too many tokens");
    }
    j->n_prompt = (int32_t)n;
    return take_parts(j, a, source, reterr);
}

/* 1: the tokenizing thread reads it first. */
static int prompt_of(struct job *j, const struct ask *a, const struct ask_source *source,
                     struct error *reterr)
{
    int rc;

    if (j->has_read) {
        return 0;
    }
    if (a->has_tokens || source->lease_ids) {
        return job_prompt(j, a, source, reterr);
    }
    rc = texts_take(&j->worker->texts, j, reterr);
    j->reads = rc == 0;
    return rc ? rc : 1;
}

static int begin(struct job *j, struct ask *a, const struct ask_source *source,
                 const struct lane_engine_request *e, int dir, struct job_counts *c,
                 struct error *reterr)
{
    const int32_t *forced = (const int32_t *)(const void *)(j->worker->journal + e->forced_offset);
    uint32_t ended;
    int rc = j->loads || j->has_read ? 0 : job_open_session(j, a, e, dir, reterr);

    if (!rc && job_is_saved(j, e)) {
        return end_saved(j, a, source, e, forced, reterr);
    }
    if (!rc && j->session.dir >= 0) {
        job_note_policy(j, a);
    }
    rc = rc ? rc : prompt_of(j, a, source, reterr);
    if (rc) {
        return rc;
    }
    j->n_forced = e->n_forced;
    j->score_first = a->sampling.score_first;
    if (j->kind == LANE_KIND_SCORE && j->n_prompt < 2) {
        return error_set(reterr, -EINVAL, "a score takes at least two tokens, the prompt has %d",
                         j->n_prompt);
    }
    if (j->kind == LANE_KIND_SCORE && j->score_first > j->n_prompt - 2) {
        return error_set(reterr, -EINVAL, "score_first %d: a prompt of %d tokens allows 0..%d",
                         j->score_first, j->n_prompt, j->n_prompt - 2);
    }
    hook_begin(j, a);
    rc = prepare_text(j, a, e, forced, reterr);
    if (rc) {
        return rc;
    }
    ended = ended_before(j, a, forced, e->n_forced);
    if (ended && j->session.dir < 0) {
        end_before(j, a, e, ended);
        return 0;
    }
    if (ended) { /* nothing more is to be said, but it is not saved */
        j->ended = ended;
        a->sampling.max_tokens = (int32_t)j->n_forced;
    }
    job_split_prompt(j);
    rc = job_keep_text(j, a, forced, reterr);
    return rc ? rc : submit(j, a, e, forced, c, reterr);
}

static int take_leases(struct job *j, const struct lane_engine_request *e,
                       struct ask_source *source, struct error *reterr)
{
    if (e->out_bytes == 0 && e->in_bytes == 0) {
        return 0;
    }
    if (!j->mapping) {
        j->mapping = mapping_find(j->worker, e->lane_id);
        if (!j->mapping) {
            return error_set(reterr, -ENOMEM, "the lane's arenas could not be mapped");
        }
        mapping_ref(j->mapping);
    }
    if (e->in_bytes) {
        if (!checked_range(e->in_offset, e->in_bytes, j->mapping->c2e_bytes) ||
            e->in_bytes % sizeof(int32_t) != 0 || e->in_offset % sizeof(int32_t) != 0) {
            return error_set(reterr, -EINVAL, "the token lease holds no whole 32-bit ids");
        }
        source->lease_ids =
            (const volatile int32_t *)(const void *)(j->mapping->c2e + e->in_offset);
        source->n_lease_ids = e->in_bytes / sizeof(int32_t);
    }
    return 0;
}

/* The folder is the session's from job_open_session() on. 1: the job is the loader's or the
 * tokenizing thread's, and this is done again when the file or the prompt is read. */
static int dispatch(struct job *j, const struct lane_engine_request *e, int *dir,
                    struct job_counts *c, struct error *reterr)
{
    struct worker *w = j->worker;
    struct ask_source source = {.tok = engine_tok(atomic_load(&w->engine)),
                                .chat = w->has_chat ? &w->chat : NULL,
                                .chat_error = &w->chat_error};
    struct ask a;
    int rc = check_forced(w, e, reterr);

    rc = rc ? rc : take_leases(j, e, &source, reterr);
    if (rc == 0 && reads_text(j)) {
        j->text_ids = source.lease_ids;
        j->n_text_ids = source.n_lease_ids;
        return texts_take(&w->texts, j, reterr);
    }
    rc = rc ? rc : ask_read(w->journal + e->journal_offset, e->tlv_bytes, &a, reterr);
    if (rc) {
        return rc;
    }
    rc = ask_check(&a, j->kind, reterr);
    if (rc) {
        ask_clear(&a);
        return rc;
    }
    if (w->answer_limit && (j->kind == LANE_KIND_GENERATE || j->kind == LANE_KIND_CHAT) &&
        (a.sampling.max_tokens == 0 || a.sampling.max_tokens > w->answer_limit)) {
        a.sampling.max_tokens = w->answer_limit;
    }
    rc = begin(j, &a, &source, e, a.session ? STEAL_FD(*dir) : -1, c, reterr);
    ask_clear(&a);
    return rc;
}

void job_start(struct worker *w, const struct lane_record *rec, int dir)
{
    AUTO_CLOSE int own_dir = dir;
    struct job *j = calloc(1, sizeof(*j));
    struct error e = {0};
    struct job_counts c = {0};

    if (!j) {
        (void)error_set(&e, -ENOMEM, "no memory for another request");
        answer_error(w, rec->h.id, &e, 0, 0);
        return;
    }
    j->worker = w;
    memcpy(j->id, rec->h.id, sizeof(j->id));
    j->kind = rec->e_request.kind;
    j->flags = rec->e_request.flags;
    session_init(&j->session);
    j->next = w->jobs;
    w->jobs = j;
    w->n_jobs++;
    j->rec = *rec;
    if (dispatch(j, &rec->e_request, &own_dir, &c, &e) < 0) {
        answer_error(w, rec->h.id, &e, c.a, c.b);
        job_end(w, j);
    }
}

/* What another thread did for it went so. */
static void go_on(struct job *j, int rc, struct error *e, struct job_counts c)
{
    struct worker *w = j->worker;
    const struct lane_record rec = j->rec; /* the job may have ended when dispatch() returns */
    int no_dir = -1;

    if (j->stop_reason) {
        end_stopped(w, j);
        return;
    }
    if (rc || dispatch(j, &rec.e_request, &no_dir, &c, e) < 0) {
        answer_error(w, rec.h.id, e, c.a, c.b);
        job_end(w, j);
    }
}

void job_loaded(struct job *j)
{
    struct error e = j->load_error;

    j->loading = false;
    go_on(j, job_bad_file(j->load_rc, &e), &e, (struct job_counts){0});
}

bool job_reads(const struct job *j)
{
    return j->reads;
}

void job_read(struct job *j)
{
    struct error e = j->load_error;

    j->reads = false;
    j->has_read = true;
    go_on(j, j->load_rc, &e, (struct job_counts){j->text_counts[0], j->text_counts[1]});
}
