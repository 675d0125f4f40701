/* SPDX-License-Identifier: Apache-2.0 */
/* infinigen (Lee et al., 2024): a layer's slots are chosen one layer ahead, from partial keys made
 * by pipit-skew's overlay. K and V of all slots lie on the device, on the host or in a file, or the
 * device has a pool of so many slots, whose victims are lost or read back from a file. A pool that
 * loses its victims decides which tokens stay: the policy's place_ops are then of pool.c. */

#include <errno.h>
#include <stdio.h>

#include "engine/kv/policy/word.h"
#include "kernels/backend.h"

static const struct word_value switches[] = {{"off", 0}, {"on", 1}, {NULL, 0}};
static const struct word_value pools[] = {{"device", POLICY_POOL_DEVICE},
                                          {"host", POLICY_POOL_HOST},
                                          {"disk", POLICY_POOL_DISK},
                                          {NULL, 0}};
static const struct word_value victims[] = {
    {"fifo", POLICY_FIFO}, {"lru", POLICY_LRU}, {"counter", POLICY_COUNTER}, {NULL, 0}};
static const struct word_value fulls[] = {
    {"drop", POLICY_DROP}, {"spill", POLICY_SPILL}, {NULL, 0}};

static const struct word_option alpha = {
    .name = "alpha",
    .type = WORD_FLOAT,
    .offset = WORD_FIELD(alpha),
    .max = 1000,
    .help = "slots whose predicted logit is within this of a query head's largest; their number is "
            "the mean over heads"};
static const struct word_option cap = {.name = "cap",
                                       .type = WORD_PERCENT,
                                       .offset = WORD_FIELD(cap),
                                       .min = 1,
                                       .max = 100,
                                       .help = "at most this share of the text"};
static const struct word_option count = {.name = "count",
                                         .type = WORD_INT,
                                         .offset = WORD_FIELD(count),
                                         .max = 1 << 24,
                                         .help = "instead of `alpha` and `cap`: so many slots"};
static const struct word_option share = {
    .name = "share",
    .type = WORD_PERCENT,
    .offset = WORD_FIELD(share),
    .max = 100,
    .help = "instead of them: this share of the text; not with `count`"};
static const struct word_option partial = {
    .name = "partial",
    .type = WORD_FLOAT,
    .offset = WORD_FIELD(partial),
    .min = 0.01,
    .max = 1,
    .help = "share of a key's dims that its partial key has, at least one"};
static const struct word_option partial8 = {
    .name = "partial8",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(partial8),
    .values = switches,
    .help = "partial keys in FP8 with one scale a slot and K head, else in f16 (f32 in an `f32` "
            "cache)"};
static const struct word_option skew = {
    .name = "skew",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(skew),
    .values = switches,
    .help = "partial keys by the overlay's rotation, or by the columns of K that matter most"};
static const struct word_option pool = {
    .name = "pool",
    .type = WORD_POOL,
    .offset = WORD_FIELD(pool),
    .values = pools,
    .help = "where K and V are: on the device; in a file (`pipitd --tier-dir DIR`; not on CUDA); "
            "in the host's memory beside a GPU (`host`; refused where device and host are one "
            "memory); or only so many slots"};
static const struct word_option victim = {
    .name = "victim",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(victim),
    .values = victims,
    .help = "with a number of slots: evicted is the oldest, the one selected longest ago, the one "
            "selected least often"};
static const struct word_option exempt = {
    .name = "exempt",
    .type = WORD_INT,
    .offset = WORD_FIELD(exempt),
    .min = 1,
    .max = 4096,
    .help = "`counter`: the latest tokens, which are not evicted"};
static const struct word_option full = {
    .name = "full",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(full),
    .values = fulls,
    .help = "with a number of slots: what is evicted is lost, or is read again from a file that "
            "has all slots (`pipitd --tier-dir DIR`; not with `sinks`). This option follows a "
            "comma, the word `full` a plus"};

static const struct word_option *const options[] = {
    &alpha, &cap, &count, &share, &partial, &partial8, &skew, &pool, &victim, &exempt, &full, NULL};

static int join(struct policy *p, char *what, size_t size)
{
    const char *fault = NULL;

    if (p->place != &place_full) {
        fault = "infinigen's pool decides which tokens stay: no other word for that";
    } else if (p->full == POLICY_SPILL && p->pool != POLICY_POOL_SLOTS) {
        fault = "full=spill needs a pool of so many slots, such as pool=60%ctx";
    } else if (p->count > 0 && p->share > 0) {
        fault = "count and share both say how many slots are read";
    }
    if (fault) {
        (void)snprintf(what, size, "%s", fault);
        return -EINVAL;
    }
    if (p->pool == POLICY_POOL_SLOTS && p->full == POLICY_DROP) {
        p->place = place_pool[p->victim];
    }
    return 0;
}

/* Of every store that is read from the third layer on only, or of none. */
static int needs_part_keys(const struct policy_host *h, struct error *reterr)
{
    if (h->no_part_keys >= 0) {
        return error_set(reterr, -ENOTSUP, "infinigen: no overlay has blk.%d.attn_skew.weight; %s",
                         h->no_part_keys,
                         h->untapped || h->wide
                             ? "no tool makes one for a model of this kind"
                             : "pipit-skew makes one of this model and its other overlays");
    }
    return h->part_keys ? 0
                        : error_set(reterr, -ENOTSUP,
                                    "infinigen acts from the third layer on, and this model has "
                                    "none that reads its whole text");
}

/* What the file's regions, all alike, can hold. */
static int needs_disk(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    if (!h->ops->in_host) {
        return error_set(reterr, -ENOTSUP,
                         "%s: backend \"%s\" has memory of its own, which the file's slots do not "
                         "go to yet; pool=device is there",
                         policy_disk_option(p), h->ops->name);
    }
    if (h->uneven[0] >= 0) {
        return error_set(reterr, -ENOTSUP, "%s: layers %d and %d differ in their heads",
                         policy_disk_option(p), h->uneven[0], h->uneven[1]);
    }
    return 0;
}

/* Pages in the host's memory: where that is not the device's anyway. */
static int needs_host(const struct policy_host *h, struct error *reterr)
{
    if (!h->ops->bring || h->one_memory) {
        return error_set(reterr, -ENOTSUP,
                         "pool=host is no tier where the device is the CPU or shares its memory; "
                         "pool=device and pool=disk are there");
    }
    return 0;
}

static int needs(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    int r = needs_part_keys(h, reterr);

    r = r || !policy_on_disk(p) ? r : needs_disk(p, h, reterr);
    return r || !policy_on_host(p) ? r : needs_host(h, reterr);
}

static void make(const struct policy *p, struct ops_select *ret)
{
    bool all = policy_on_disk(p) && p->share == 100; /* read as one, no choice */

    ret->kind = all ? OPS_SELECT_ALL : OPS_SELECT_GIVEN;
    ret->alpha = p->alpha;
    ret->cap = p->cap;
    ret->count = p->count;
    ret->share = p->share;
    ret->use = p->place->use;
}

static int32_t part_dims(const struct policy *p, int32_t k_dim)
{
    int32_t n = (int32_t)(p->partial * (float)k_dim);

    return n > 1 ? n : 1;
}

static enum ops_kv_type part_type(const struct policy *p)
{
    return p->partial8 ? OPS_KV_FP8 : p->k_type == OPS_KV_F32 ? OPS_KV_F32 : OPS_KV_F16;
}

static const struct select_ops select_infinigen = {
    .predicts = true, .make = make, .part_dims = part_dims, .part_type = part_type};

const struct policy_word policy_word_infinigen = {
    .name = "infinigen",
    .axis = AXIS_SELECT,
    .help = "the slots that the layer before predicted from partial keys (Lee et al. 2024); needs "
            "an overlay by `pipit-skew`",
    .options = options,
    .colon = true,
    .select = &select_infinigen,
    .join = join,
    .needs = needs,
};
