/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, and the search for what would fit.
 *
 * A plan for one (context, sequences) pair is a pure function, so the largest context and the
 * largest number of sequences are found by halving. Context 0 means the model's own where it fits,
 * else the largest that does, down to 256 positions. Both count on steps of one chunk of a prompt;
 * several go in one where what is left over has room for them. */

#include "engine/kv/plan/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/cgroup.h"
#include "engine/kv/policy/advice.h"
#include "engine/kv/seq/cache.h"

enum {
    LEAST_CTX = 2, /* a prompt of one token and one to follow */
    MIN_CTX = 256, /* less is not chosen for a user who did not ask for it */
    ADVICE_BYTES = 256,
};

/* ---- one pair -------------------------------------------------------------------------------- */

static int evaluate(const struct plan_input *in, int32_t ctx, int32_t n_seqs, int32_t prompt_rows,
                    struct plan *p, struct geometry *ret_geometry, struct error *reterr)
{
    struct geometry s;
    uint64_t host = 0;
    uint64_t n = (uint64_t)n_seqs;
    struct geometry_config config = in->geometry;
    int r;

    config.ctx = ctx;
    config.n_seqs = n_seqs;
    r = geometry_make(&config, &s, reterr);

    if (r) {
        return r;
    }
    *p = (struct plan){
        .weights_bytes = in->weights_bytes,
        .mapped_bytes = in->mapped_bytes,
        .kv_bytes = s.kv_bytes,
        .policy_bytes = s.state_bytes * n,
        .prefill_peak_bytes = s.peak_bytes + s.peak_state_bytes,
        .tier_bytes = s.tier.n_stores ? tier_bytes(&s.tier) : 0,
        .experts_bytes = in->experts_mapped ? 0 : in->experts_bytes,
        .file_expert_bytes = in->experts_mapped ? in->experts_bytes : 0,
        .n_expert = in->n_expert,
        .n_used = in->n_used,
        .rows_bytes = in->rows_bytes,
        .file_bytes = s.tier.n_stores ? tier_file_bytes(&s.tier) : 0,
        .prompt_read_bytes = s.prompt_read_bytes,
        .index_bytes = in->index_bytes,
        .lane_bytes = in->extra_bytes + in->extra_seq_bytes * n,
        .available_bytes = in->available_bytes,
        .limit_bytes = in->limit_bytes,
        .device_available_bytes = in->device_available_bytes,
        .seq_bytes = s.seq_bytes,
        .n_states = s.n_states,
        .n_stores = s.config.n_stores,
        .n_checkpoints = s.n_checkpoints,
        .ctx = ctx,
        .n_seqs = n_seqs,
        .prompt_rows = prompt_rows,
        .n_classes = s.n_classes,
    };
    for (int32_t i = 0; i < s.n_classes; i++) {
        struct plan_class *c = &p->page_classes[i];

        memcpy(c->name, s.classes[i].name, sizeof(c->name));
        c->page_bytes = s.classes[i].page_bytes;
        c->n_pages = s.classes[i].n_pages;
        c->state = s.classes[i].state;
        p->recurrent_bytes += s.classes[i].state ? c->page_bytes * c->n_pages : 0;
    }
    /* What the cache takes beside what has a line of its own: tables, and sizes made even. */
    p->scratch_bytes = in->scratch(in->arg, ctx, n_seqs, prompt_rows, &host) + cache_bytes(&s) -
                       p->kv_bytes - p->policy_bytes - p->prefill_peak_bytes - p->tier_bytes;
    p->total_bytes = p->weights_bytes + p->kv_bytes + p->policy_bytes + p->prefill_peak_bytes +
                     p->scratch_bytes + p->tier_bytes + p->index_bytes + p->lane_bytes;
    p->host_bytes = host + cache_host_bytes(&s) + p->index_bytes + p->lane_bytes;
    p->fits = p->device_available_bytes > 0
                  ? p->host_bytes + p->mapped_bytes <= p->available_bytes &&
                        p->total_bytes - p->host_bytes <= p->device_available_bytes
                  : p->total_bytes + p->mapped_bytes <= p->available_bytes;
    if (ret_geometry) {
        *ret_geometry = s;
    } else {
        geometry_finish(&s);
    }
    return 0;
}

static bool fits(const struct plan_input *in, int32_t ctx, int32_t n_seqs)
{
    struct plan p;

    return evaluate(in, ctx, n_seqs, in->geometry.max_chunk, &p, NULL, NULL) == 0 && p.fits;
}

/* The largest value of [1, max] that fits, 0 for none; what fits fits with less too. */
static int32_t search(const struct plan_input *in, int32_t max, int32_t fixed, bool over_ctx)
{
    int32_t low = 0;
    int32_t high = max;

    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;

        if (over_ctx ? fits(in, mid, fixed) : fits(in, fixed, mid)) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

/* What would fit instead, if anything. */
static void advise(const struct plan *p, char *text, size_t size)
{
    char ctx[80] = "";
    char seqs[80] = "";

    if (p->max_ctx > 0) {
        (void)snprintf(ctx, sizeof(ctx), "a context of %d with %d sequence%s", p->max_ctx,
                       p->n_seqs, p->n_seqs > 1 ? "s" : "");
    }
    if (p->max_sequences > 0) {
        (void)snprintf(seqs, sizeof(seqs), "%d sequence%s with a context of %d", p->max_sequences,
                       p->max_sequences > 1 ? "s" : "", p->ctx);
    }
    if (ctx[0] || seqs[0]) {
        (void)snprintf(text, size, "%s%s%s would fit", ctx, ctx[0] && seqs[0] ? ", or " : "", seqs);
    } else {
        (void)snprintf(
            text, size,
            "no context fits with %d sequence%s: even one of %d tokens needs %" PRIu64 " MiB",
            p->n_seqs, p->n_seqs > 1 ? "s" : "", LEAST_CTX, (p->least_bytes + (1 << 20) - 1) >> 20);
    }
    if (p->lane_bytes > p->available_bytes / 4) {
        size_t used = strlen(text);

        (void)snprintf(
            text + used, size - used,
            "; smaller --lanes, --lane-bytes or --journal-bytes can save some of %" PRIu64 " MiB",
            p->lane_bytes >> 20);
    }
}

/* By what n bytes are bounded: the user's limit, or what there is. */
static const char *why(const struct plan *p, uint64_t n)
{
    return n != p->limit_bytes ? "free"
           : n >= 1 << 20      ? "allowed by --memory"
                               : "allowed by --memory (bytes, or with a unit: 300MiB)";
}

static int refuse(const struct plan *p, struct error *reterr)
{
    char instead[ADVICE_BYTES];

    advise(p, instead, sizeof(instead));
    if (p->device_available_bytes > 0) {
        return error_set(
            reterr, -ENOMEM,
            "the plan needs %" PRIu64 " MiB of the device (weights %" PRIu64 ", cache %" PRIu64
            "), where %" PRIu64 " MiB are %s, and %" PRIu64 " MiB of the host's %" PRIu64 "; %s",
            (p->total_bytes - p->host_bytes) >> 20, p->weights_bytes >> 20, p->kv_bytes >> 20,
            p->device_available_bytes >> 20, why(p, p->device_available_bytes),
            (p->host_bytes + p->mapped_bytes) >> 20, p->available_bytes >> 20, instead);
    }
    return error_set(reterr, -ENOMEM,
                     "the plan needs %" PRIu64 " MiB (weights %" PRIu64 ", cache %" PRIu64
                     ", the rest %" PRIu64 "), %" PRIu64 " MiB are %s; %s",
                     (p->total_bytes + p->mapped_bytes) >> 20,
                     (p->weights_bytes + p->mapped_bytes) >> 20, p->kv_bytes >> 20,
                     (p->total_bytes - p->weights_bytes - p->kv_bytes) >> 20,
                     p->available_bytes >> 20, why(p, p->available_bytes), instead);
}

/* The sequences of a plan that names no number. Where nobody set a limit, other programs keep half
 * of what is free. A context that does not fit whole is not divided. */
static int32_t choose_seqs(const struct plan_input *in)
{
    struct plan_input roomy = *in;
    int32_t ctx = in->geometry.ctx ? in->geometry.ctx : in->ctx_model;

    if (in->limit_bytes == 0) {
        roomy.available_bytes /= 2;
        roomy.device_available_bytes /= 2;
    }
    int32_t n = search(&roomy, in->most_seqs, ctx, false);

    return n > 1 ? n : 1;
}

/* Several chunks of a prompt in a step, if they fit beside what the plan has: never at the cost of
 * its context or its sequences. No more of them than all sequences can hold. */
static void join_chunks(const struct plan_input *in, struct plan *p)
{
    int64_t most = (int64_t)p->ctx * p->n_seqs;
    int32_t rows = in->joined_rows < most ? in->joined_rows : (int32_t)most;
    struct plan joined;

    if (rows < 2 * p->prompt_rows || evaluate(in, p->ctx, p->n_seqs, rows, &joined, NULL, NULL)) {
        return;
    }
    p->joined_rows = rows;
    p->joined_bytes = joined.total_bytes - p->total_bytes;
    if (joined.fits) {
        p->prompt_rows = joined.prompt_rows;
        p->scratch_bytes = joined.scratch_bytes;
        p->total_bytes = joined.total_bytes;
        p->host_bytes = joined.host_bytes;
    }
}

int plan_make(const struct plan_input *wanted, struct plan *ret, struct geometry *ret_geometry,
              struct error *reterr)
{
    struct plan_input own = *wanted;
    const struct plan_input *in = &own;
    int32_t ctx = in->geometry.ctx ? in->geometry.ctx : in->ctx_model;

    if (in->geometry.n_seqs == 0) {
        own.geometry.n_seqs = choose_seqs(in);
    }
    int32_t max_ctx =
        search(in, in->ctx_model > ctx ? in->ctx_model : ctx, in->geometry.n_seqs, true);

    if (in->geometry.ctx == 0 && max_ctx < ctx && max_ctx >= MIN_CTX) {
        ctx = max_ctx;
    }
    int32_t chunk = in->geometry.max_chunk;
    int r = evaluate(in, ctx, in->geometry.n_seqs, chunk, ret, ret_geometry, reterr);
    struct plan least;

    if (r) {
        return r;
    }
    ret->ctx_is_cut = in->geometry.ctx == 0 && ctx < in->ctx_model;
    if (max_ctx < LEAST_CTX &&
        evaluate(in, LEAST_CTX, in->geometry.n_seqs, chunk, &least, NULL, NULL) == 0) {
        ret->least_bytes = least.total_bytes + least.mapped_bytes;
    }
    ret->ctx_model = in->ctx_model;
    ret->max_ctx = max_ctx >= LEAST_CTX ? max_ctx : 0;
    ret->max_sequences = search(in, GEOMETRY_MOST_SEQS, ctx, false);
    policy_print(&in->geometry.mix.part[0].policy, ret->policy, sizeof(ret->policy));
    join_chunks(in, ret);
    return ret->fits ? 0 : refuse(ret, reterr);
}

/* ---- printing ---------------------------------------------------------------------------------
 */

struct figure {
    const char *key;
    const char *label;
    uint64_t value;
};

enum { N_FIGURES = 19 };

static void figures(const struct plan *p, struct figure out[N_FIGURES])
{
    const struct figure f[N_FIGURES] = {
        {"weights_bytes", "weights", p->weights_bytes},
        {"experts_bytes", "  of it or of the map: experts", p->experts_bytes},
        {"kv_bytes", "keys and values", p->kv_bytes},
        {"recurrent_bytes", "  of it recurrent states", p->recurrent_bytes},
        {"policy_bytes", "what policies know of tokens", p->policy_bytes},
        {"prefill_peak_bytes", "more while a prompt is read", p->prefill_peak_bytes},
        {"scratch_bytes", "activations and tables", p->scratch_bytes},
        {"tier_bytes", "K and V on disk: partial keys and staging", p->tier_bytes},
        {"index_bytes", "tokenizer and files' indices", p->index_bytes},
        {"lane_bytes", "clients' lanes, journal, other processes", p->lane_bytes},
        {"total_bytes", "total", p->total_bytes},
        {"host_bytes", "  of it in the host's memory", p->host_bytes},
        {"mapped_bytes", "beside it: weights in the file's map", p->mapped_bytes},
        {"available_bytes", "available", p->available_bytes},
        {"device_available_bytes", "available on the device", p->device_available_bytes},
        {"file_expert_bytes", "not memory: experts in the model's file", p->file_expert_bytes},
        {"rows_bytes", "not memory: rows in the model's file", p->rows_bytes},
        {"prompt_read_bytes", "  a prompt of the context's length reads", p->prompt_read_bytes},
        {"file_bytes", "not memory: K and V on disk", p->file_bytes},
    };

    memcpy(out, f, sizeof(f));
}

void plan_print_json(const struct plan *p, FILE *out)
{
    struct figure f[N_FIGURES];

    figures(p, f);
    fprintf(out, "{");
    for (int i = 0; i < N_FIGURES; i++) {
        fprintf(out, "\"%s\": %" PRIu64 ", ", f[i].key, f[i].value);
    }
    fprintf(out, "\"seq_bytes\": %" PRIu64 ", \"policy\": \"%s\", \"page_classes\": [",
            p->seq_bytes, p->policy);
    for (int32_t i = 0; i < p->n_classes; i++) {
        const struct plan_class *c = &p->page_classes[i];

        fprintf(out, "%s{\"name\": \"%s\", \"page_bytes\": %" PRIu64 ", \"pages\": %u}",
                i ? ", " : "", c->name, c->page_bytes, c->n_pages);
    }
    fprintf(out, "], ");
    if (p->advice) {
        fprintf(out,
                "\"advice\": {\"kv\": \"%s\", \"kv_percent\": %.1f, \"perplexity_percent\": [%.1f, "
                "%.1f], \"half_interval\": %.1f, \"evicts\": %s}, ",
                p->advice->kv, p->advice->bytes, p->advice->least, p->advice->most, p->advice->half,
                p->advice->evicts ? "true" : "false");
    }
    fprintf(out,
            "\"ctx\": %d, \"sequences\": %d, \"fits\": %s, \"max_ctx\": %d, "
            "\"max_sequences\": %d, \"trained_ctx\": %d, \"prompt_rows\": %d}\n",
            p->ctx, p->n_seqs, p->fits ? "true" : "false", p->max_ctx, p->max_sequences,
            p->ctx_model, p->prompt_rows);
}

static void print_advice(const struct policy_advice *a, FILE *out)
{
    fprintf(out, "advice --kv %s, the policy of least loss that fits", a->kv);
    if (a->bytes < 100) {
        fprintf(
            out,
            ": %.1f %% of f16's bytes of keys and values;\n  perplexity %+.1f to %+.1f %% (95 %%: "
            "± %.1f) on three small models, which is to be measured on others",
            a->bytes, a->least, a->most, a->half);
    }
    fprintf(out, "%s\n",
            a->evicts ? ";\n  it evicts tokens: what was evicted cannot be quoted" : "");
}

static void print_joined(const struct plan *p, FILE *out)
{
    if (p->prompt_rows == p->joined_rows) {
        fprintf(out, "prompts are read by %d tokens a step while nobody waits for a next token\n",
                p->prompt_rows);
    } else {
        fprintf(out,
                "prompts are read by %d tokens a step; %d, which is faster, takes %.1f MiB more, "
                "and these are not free\n",
                p->prompt_rows, p->joined_rows, (double)p->joined_bytes / (1 << 20));
    }
}

void plan_print_table(const struct plan *p, FILE *out)
{
    struct figure f[N_FIGURES];

    const bool apart = p->device_available_bytes > 0;

    figures(p, f);
    for (int i = 0; i < N_FIGURES; i++) {
        if (f[i].value == 0 || (strcmp(f[i].key, "host_bytes") == 0 && !apart)) {
            continue;
        }
        fprintf(out, "%-42s %14" PRIu64 "  %10.1f MiB\n", f[i].label, f[i].value,
                (double)f[i].value / (1 << 20));
    }
    for (int32_t i = 0; i < p->n_classes; i++) {
        const struct plan_class *c = &p->page_classes[i];

        if (c->state) {
            fprintf(out, "%u pages of %" PRIu64 " bytes, each a %s\n", c->n_pages, c->page_bytes,
                    c->name);
            continue;
        }
        fprintf(out, "%u pages of %" PRIu64 " bytes, each %d tokens of a head group: %s\n",
                c->n_pages, c->page_bytes, OPS_PAGE_SLOTS, c->name);
    }
    if (p->n_states > 0 && p->n_states == p->n_stores) {
        fprintf(out,
                "all %d stores hold a recurrent state, of the same size at any length, and prompts "
                "leave %d\ncheckpoints of it at most; there are no keys and values, so precision "
                "changes nothing\n",
                p->n_states, p->n_checkpoints);
    } else if (p->n_states > 0) {
        fprintf(out,
                "%d of %d stores hold a recurrent state, and prompts leave %d checkpoints of it at "
                "most;\nprecision, eviction, selection and offload concern the other %d\n",
                p->n_states, p->n_stores, p->n_checkpoints, p->n_stores - p->n_states);
    }
    if (p->n_expert > 0) {
        fprintf(out, "a token reads %d of the %d experts of a layer\n", p->n_used, p->n_expert);
    }
    fprintf(out, "policy %s\n", p->policy);
    if (p->joined_rows > 0 && p->fits) {
        print_joined(p, out);
    }
    if (p->advice) {
        print_advice(p->advice, out);
    }
    if (p->fits) {
        fprintf(
            out,
            "context %d, sequences %d: fits; at most a context of %d with as many sequences, or "
            "%d sequences with this context\n",
            p->ctx, p->n_seqs, p->max_ctx, p->max_sequences);
        if (p->ctx_is_cut) {
            fprintf(out,
                    "model and overlay were trained on %d: the context is what %" PRIu64
                    " MiB %s leave of it\n",
                    p->ctx_model, p->available_bytes >> 20, why(p, p->available_bytes));
        }
    } else {
        char instead[ADVICE_BYTES];

        advise(p, instead, sizeof(instead));
        fprintf(out, "context %d, sequences %d: does not fit; %s\n", p->ctx, p->n_seqs, instead);
    }
}

/* ---- what is free ------------------------------------------------------------------------------
 */

uint64_t plan_memory_available(void)
{
    uint64_t least = cgroup_memory_max("/proc/self/cgroup", "/sys/fs/cgroup");
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];

    while (f && fgets(line, sizeof(line), f)) {
        uint64_t kb;

        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kb) == 1) {
            least = kb * 1024 < least ? kb * 1024 : least;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    return least;
}
