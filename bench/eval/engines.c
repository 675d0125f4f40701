/* SPDX-License-Identifier: Apache-2.0 */
/* The policy an engine is planned with keeps 100 % and scores (infinigen, beside which no other
 * placement stands: a pool that counts): that plan has pages for the whole context and the state
 * (positions, scores) of any other policy, so prompts need no peak region and any number of them
 * is read at once. A policy that goes beyond the context has an engine of its own, planned with its
 * own text. */

#include "bench/eval/engines.h"

#include <errno.h>
#include <string.h>

#include "engine/kv/plan/geometry.h"
#include "engine/kv/policy/policy.h"

/* Texts under it may be longer than the context, which no plan for all policies holds. */
static bool goes_beyond(const struct policy *p)
{
    return policy_most_tokens(p, 2) > 2;
}

/* Does one plan serve both? Beside their pages: what queries read, and what open_class() plans
 * for. */
static bool same_class(const struct policy *a, const struct policy *b)
{
    return !goes_beyond(a) && !goes_beyond(b) && geometry_same_pages(a, b) &&
           a->select == b->select && a->select_mode == b->select_mode && a->mean == b->mean &&
           policy_expects(a) == policy_expects(b) &&
           policy_divides_heads(a) == policy_divides_heads(b);
}

/* With room for everything that a class's policies may keep. */
static int open_class(struct engines *v, int class, struct error *reterr)
{
    const struct engines_class *c = &v->class[class];
    const struct policy *p = &c->policy;
    const char *all = !c->evicts                ? "full"
                      : policy_expects(p)       ? "expected:100%"
                      : policy_divides_heads(p) ? "snapkv:100%,heads=adaptive"
                      : policy_predicts(p)      ? "infinigen:pool=100%ctx,victim=counter"
                                                : "keyformer:100%";
    struct engine_config config = v->apart && class == 0 ? v->first : v->base;
    char text[KV_TEXT_MAX];
    struct policy widest;
    int err = policy_parse(all, &widest, reterr);

    if (err) {
        return err;
    }
    widest.k_type = p->k_type;
    widest.v_type = p->v_type;
    widest.shared = p->shared;
    widest.pos_new = p->pos_new;
    widest.chunk = p->chunk;
    widest.select = p->select;
    widest.r = p->r;
    widest.top_k = p->top_k;
    widest.local = p->local;
    widest.select_mode = p->select_mode;
    widest.mean = p->mean;
    widest.rank = p->rank;
    widest.renorm = p->renorm;
    widest.partial = p->partial;
    widest.partial8 = p->partial8;
    policy_print(goes_beyond(p) ? p : &widest, text, sizeof(text));
    config.kv = text;
    if (c->n_policies < config.n_seqs && v->n_texts < config.n_seqs / c->n_policies) {
        config.n_seqs = c->n_policies * v->n_texts;
    }
    v->open_class = class;
    return engine_create(&config, NULL, NULL, &v->open, reterr);
}

int engines_use(struct engines *v, int class, struct engine **ret, struct error *reterr)
{
    int err = 0;

    if (!v->open || v->open_class != class) {
        engines_close(v);
        err = open_class(v, class, reterr);
    }
    *ret = v->open;
    return err;
}

int engines_open(const struct engine_config *base, const struct engine_config *against,
                 const char *const *kv, int n_kv, int n_texts, struct engines *ret,
                 struct error *reterr)
{
    struct engine *first;

    memset(ret, 0, sizeof(*ret));
    ret->base = *base;
    ret->apart = against;
    ret->first = against ? *against : *base;
    ret->n_texts = n_texts;
    if (n_kv > ENGINES_MAX_POLICIES) {
        return error_set(reterr, -EINVAL, "at most %d policies", ENGINES_MAX_POLICIES);
    }
    for (int i = 0; i < n_kv; i++) {
        struct policy p;
        int k = i > 0 && ret->apart;
        int err = policy_parse(kv[i], &p, reterr);

        if (err) {
            (void)error_prefix(reterr, "policy %s", kv[i]);
            return err;
        }
        while (k < ret->n && !same_class(&ret->class[k].policy, &p)) {
            k++;
        }
        if (k == ENGINES_MAX) {
            return error_set(reterr, -EINVAL, "at most %d classes of policies, each with an engine",
                             ENGINES_MAX);
        }
        struct engines_class *c = &ret->class[k];

        if (k == ret->n) {
            c->policy = p;
            ret->n++;
        }
        c->policy.chunk = p.chunk > c->policy.chunk ? p.chunk : c->policy.chunk;
        c->evicts = c->evicts || policy_evicts(&p);
        c->n_policies++;
        ret->of[i] = k;
    }
    return engines_use(ret, 0, &first, reterr);
}

void engines_close(struct engines *v)
{
    engine_destroy(v->open);
    v->open = NULL;
}

double engines_tokens_read(const struct engine *e, const struct engine_usage *u)
{
    int32_t slots = engine_info(e)->token_slots; /* 0: all layers are recurrent, none is read */
    double held = slots ? (double)u->n_slots / slots : 0;
    double sum = 0;

    /* The first new token comes from the prompt; each later one is a step. */
    for (int32_t i = 1; i < u->n_new; i++) {
        double text = (double)u->n_prompt + i;

        sum += text < held ? text : held;
    }
    return u->n_new > 1 ? sum / (u->n_new - 1) : held;
}
