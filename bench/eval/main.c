/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-eval: what a cache policy costs in quality, on one model: a text or token ids scored
 * (text.h), or prompts answered (generate.h), under one or more policies. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/eval/generate.h"
#include "bench/eval/text.h"
#include "tools/command.h"

struct config {
    char *model;
    struct option_list overlays;
    char *text;
    char *ids;
    int64_t first;
    int64_t ctx;
    int64_t context;
    int64_t chunks;
    struct option_list kv;
    char *against;
    int mode;
    char *backend;
    int64_t threads;
    int64_t cpu_mask;
    int64_t batch;
    int64_t draft;
    uint64_t reference_bytes;
    char *dump;
    char *prompts;
    char *chat_template;
    char *out;
    bool help;
};

#define ROW(field) offsetof(struct config, field)

static const char *const modes[] = {"prefill", "decode", NULL};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, ROW(model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, ROW(overlays), .metavar = "FILE", .help = "a GGUF that adds tensors; repeats"},
    {"text", 0, OPTION_STRING, ROW(text), .metavar = "FILE", .help = "UTF-8 text to score"},
    {"ids", 0, OPTION_STRING, ROW(ids), .metavar = "FILE", .help = "instead of a text: token ids, decimal, to score as one chunk; every id from --first on gives a row"},
    {"first", 0, OPTION_INT, ROW(first), 0, 1 << 20, .fallback = "0", .help = "of --ids: row 0 is what follows this id, counted from 0; with --mode decode, ids 0 to it are the prompt"},
    {"ctx", 'c', OPTION_INT, ROW(ctx), 16, 1 << 20, .fallback = "2048", .help = "tokens of a chunk; the second half is scored"},
    {"context", 0, OPTION_INT, ROW(context), 0, 1 << 20, .fallback = "0", .help = "positions of the cache, where a policy goes beyond them (streaming); 0: as many as a chunk has; not with --ids"},
    {"chunks", 'n', OPTION_INT, ROW(chunks), 1, 100000, .fallback = "20", .help = "chunks from the text's start"},
    {"kv", 0, OPTION_LIST, ROW(kv), .metavar = "POLICY", .help = "a cache policy; repeats; the first is what the others are compared with (full)"},
    {"against", 0, OPTION_STRING, ROW(against), .metavar = "FILE[,OVERLAY.gguf]...[,POLICY]", .help = "of --text and --ids: compare with another model, with its overlays and a policy (full)"},
    {"mode", 0, OPTION_ENUM, ROW(mode), .words = modes, .fallback = "decode", .help = "how the scored half is fed: token by token, where eviction acts, or as a prompt, where it does not"},
    {"backend", 0, OPTION_STRING, ROW(backend), .fallback = "cpu", .metavar = "NAME", .help = "ref, cpu, cuda or auto"},
    {"threads", 't', OPTION_INT, ROW(threads), 0, 1024, .fallback = "0", .help = "0: all this process may use"},
    {"cpu-mask", 0, OPTION_INT, ROW(cpu_mask), 0, UINT32_MAX, .fallback = "4294967295", .help = "CPU flags allowed, a sum of base/cpu.h's bits (0: plain C, 1: AVX2, 3: AVX-512 without VNNI)"},
    {"batch", 'b', OPTION_INT, ROW(batch), 1, 64, .fallback = "1", .help = "sequences at once"},
    {"draft", 0, OPTION_INT, ROW(draft), 0, ENGINE_MAX_DRAFT, .fallback = "0", .help = "tokens that prompts may want drafted a step"},
    {"reference-bytes", 0, OPTION_BYTES, ROW(reference_bytes), .fallback = "2GiB", .metavar = "BYTES", .help = "of the first policy's logits to hold; with less, policies take turns more often"},
    {"dump", 0, OPTION_STRING, ROW(dump), .metavar = "FILE.npy", .help = "write the first policy's logits, f32 (rows, vocabulary)"},
    {"prompts", 0, OPTION_STRING, ROW(prompts), .metavar = "FILE.jsonl", .help = "instead of a text: prompts to answer greedily, JSON lines (bench/eval/generate.h)"},
    {"template", 0, OPTION_STRING, ROW(chat_template), .metavar = "FILE|NAME", .help = "for prompts: chat template instead of the model's own"},
    {"out", 'o', OPTION_STRING, ROW(out), .metavar = "FILE", .help = "where figures or answers go; else stdout"},
    {"help", 'h', OPTION_FLAG, ROW(help), .flags = OPTION_ARGV_ONLY},
};
/* clang-format on */

static const struct option_table table = {
    rows, sizeof(rows) / sizeof(rows[0]),
    "pipit-eval --model FILE --text FILE|--ids FILE [OPTION]...",
    "Scores a text, or answers prompts, under one or more cache policies.", 0};

static struct engine_config engine_for(const struct config *c)
{
    struct engine_config ec;

    engine_config_default(&ec);
    ec.model_path = c->model;
    ec.overlay_paths = (const char *const *)c->overlays.v;
    ec.n_overlays = (int)c->overlays.n;
    ec.backend = c->backend;
    ec.n_threads = (int)c->threads;
    ec.cpu_mask = (uint32_t)c->cpu_mask;
    ec.n_seqs = (int)c->batch;
    ec.n_draft = (int32_t)c->draft;
    ec.ctx = (int32_t)(c->context ? c->context : c->ctx);
    return ec;
}

enum { MAX_OVERLAYS = 8 };

/* What --against names: its parts up to the last that ends in .gguf are files, the rest is a
 * policy, which may have commas of its own. The text is cut in place. */
static int parse_against(char *text, struct engine_config *ec, const char **overlays,
                         struct error *e)
{
    const char *end = ".gguf";
    char *rest = text;
    char *comma;

    ec->model_path = text;
    ec->overlay_paths = overlays;
    ec->n_overlays = 0;
    ec->kv = "full";
    if ((comma = strchr(rest, ',')) != NULL) {
        *comma = 0;
        rest = comma + 1;
        while ((comma = strchr(rest, ',')) != NULL || strlen(rest) > strlen(end)) {
            size_t n = comma ? (size_t)(comma - rest) : strlen(rest);

            if (n < strlen(end) || strncmp(rest + n - strlen(end), end, strlen(end)) != 0) {
                break;
            }
            if (ec->n_overlays == MAX_OVERLAYS) {
                return error_set(e, -EINVAL, "--against takes at most %d overlays", MAX_OVERLAYS);
            }
            overlays[ec->n_overlays++] = rest;
            rest[n] = 0;
            rest = comma ? comma + 1 : rest + n;
        }
        ec->kv = *rest ? rest : "full";
    }
    return 0;
}

static int run(const void *config, const struct option_list *words, struct error *e)
{
    const struct config *c = config;
    static const char *const full[] = {"full"};
    const char *const *kv = c->kv.n ? (const char *const *)c->kv.v : full;
    int n_kv = c->kv.n ? (int)c->kv.n : 1;
    struct engine_config against = engine_for(c);
    const char *overlays[MAX_OVERLAYS];
    FILE *out;
    int err;

    (void)words;
    if (!c->model || !!c->text + !!c->prompts + !!c->ids != 1) {
        return error_set(e, -EINVAL, "--model and one of --text, --ids and --prompts are needed");
    }
    if (c->against && c->prompts) {
        return error_set(e, -EINVAL, "--against compares scores: it needs --text or --ids");
    }
    err = c->against ? parse_against(c->against, &against, overlays, e) : 0;
    if (err) {
        return err;
    }
    out = c->out ? fopen(c->out, "w") : stdout;
    if (!out) {
        return error_set_errno(e, -errno, "cannot write %s", c->out);
    }
    if (c->prompts) {
        err = generate_run(&(struct generate_job){.path = c->prompts,
                                                  .chat_template = c->chat_template,
                                                  .kv = kv,
                                                  .n_kv = n_kv,
                                                  .engine = engine_for(c),
                                                  .out = out},
                           e);
    } else {
        err = text_run(&(struct text_job){.path = c->text,
                                          .ids = c->ids,
                                          .first = (int32_t)c->first,
                                          .ctx = (int32_t)c->ctx,
                                          .n_chunks = (int)c->chunks,
                                          .decode = c->mode == 1,
                                          .kv = kv,
                                          .n_kv = n_kv,
                                          .against = c->against ? &against : NULL,
                                          .dump = c->dump,
                                          .reference_bytes = c->reference_bytes,
                                          .engine = engine_for(c),
                                          .out = out},
                       e);
    }
    if (c->out) {
        bool bad = ferror(out) != 0; /* an earlier flush may have failed */

        bad |= fclose(out) != 0;
        err = bad && !err ? error_set(e, -EIO, "cannot write all of %s", c->out) : err;
    }
    return err;
}

int main(int argc, char **argv)
{
    struct config c = {0};

    return command_main(
        &(struct command){
            .name = "pipit-eval", .table = &table, .config = &c, .help = &c.help, .run = run},
        argc, argv);
}
