/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that name another whose text theirs begins with (engine_request.fork_of).
 *
 * A fork says, to the bit, what it would have said alone, so to share is never more than a saving:
 * where it cannot be (the other has gone, or has said more than the fork knows of, or there is no
 * room) the fork reads its prompt like anybody else. It joins at one of two moments:
 *
 * - when the other's prompt has been read, and both draw their first token from one distribution;
 *   until then the fork waits (fork_waits);
 * - later, while the other's tokens in the cache are a beginning of the fork's own text.
 *
 * A fork that joins at the first moment passes by other requests of its principal only: as long as
 * another principal waits for admission it queues. */

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/admit.h"
#include "engine/sched/state.h"

static struct request *parent_of(const struct sched *s, const struct request *r)
{
    struct request *p = r->fork_of ? request_find(&s->running, r->fork_of) : NULL;

    p = p || !r->fork_of ? p : request_find(&s->waiting, r->fork_of);
    return p && !p->finished && !p->cancelled ? p : NULL;
}

static bool same_policy(const struct policy *a, const struct policy *b)
{
    char x[KV_TEXT_MAX];
    char y[KV_TEXT_MAX];

    policy_print(a, x, sizeof(x));
    policy_print(b, y, sizeof(y));
    return strcmp(x, y) == 0;
}

/* Is the state of p after n of its tokens one that r would come to? What went on from a snapshot
 * may have been computed in other pieces. */
static bool matches(const struct request *r, const struct request *p, int32_t n)
{
    return r->kind == ENGINE_GENERATE && p->kind == ENGINE_GENERATE && !p->resumed &&
           r->principal == p->principal && r->n_prompt == p->n_prompt &&
           kv_may_fork(&p->policy, r->text.n_steps == p->text.n_steps) && n < r->n_tokens_max &&
           same_policy(&r->policy, &p->policy) &&
           memcmp(r->tokens, p->tokens, (size_t)n * sizeof(*r->tokens)) == 0;
}

bool fork_waits(const struct sched *s, const struct request *r)
{
    const struct request *p = parent_of(s, r);

    /* What was read layer by layer has yet to give its first token. */
    return p && (p->n_fed < p->n_prompt || s->chunk.r == p || s->whole.r == p) &&
           matches(r, p, p->n_prompt);
}

/* Sits r down beside p, with all that p has in the cache. */
static int join(struct sched *s, struct request *r, const struct request *p)
{
    int seq = kv_fork(s->config.cache, p->seq, &r->text);

    if (seq < 0) {
        return seq;
    }
    request_remove(&s->waiting, r);
    r->seq = seq;
    r->n_fed = p->n_fed;
    r->text.held = p->n_fed;
    r->first_row_ns = clock_ns();
    request_append(&s->running, r);
    return 0;
}

int fork_admit(struct sched *s, struct request *r)
{
    const struct request *p = parent_of(s, r);

    /* The token that is fed next must be known, and not still have to be drawn. */
    if (!p || p->seq < 0 || p->n_fed < p->n_prompt || p->n_fed >= r->n_prompt + r->n_forced ||
        !matches(r, p, p->n_fed)) {
        return -ENOENT;
    }
    int e = join(s, r, p);

    for (int32_t i = r->n_prompt; !e && i <= r->n_fed; i++) {
        sampler_accept(&r->sampler, r->tokens[i]);
    }
    if (!e) {
        r->n_new = r->n_fed - r->n_prompt + 1;
    }
    return e;
}

static bool others_wait(const struct sched *s, const struct principal *p)
{
    for (const struct request *r = s->waiting.first; r; r = r->next) {
        if (r->principal != p) {
            return true;
        }
    }
    return false;
}

int fork_first_tokens(struct sched *s, struct request *p, const float *logits)
{
    struct request *next;

    for (struct request *r = s->waiting.first; r; r = next) {
        next = r->next;
        if (r->cancelled || parent_of(s, r) != p || !matches(r, p, p->n_prompt) ||
            others_wait(s, p->principal)) {
            continue;
        }
        int e = join(s, r, p);

        if (e && e != -EBUSY) {
            return e;
        }
        if (!e) {
            output_token(s, r, logits);
            next = s->waiting.first; /* whoever heard of the token may have submitted more */
        }
    }
    return 0;
}
