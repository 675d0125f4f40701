/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-quantize: a model file with its matrices in another element type. The answer is the file;
 * what happened to each tensor goes to stderr. */

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "tools/command.h"
#include "tools/quantize_model.h"

struct config {
    struct option_list keep;
    char *head_type;
    int64_t threads;
    bool quiet;
    bool help;
};

/* clang-format off */
static const struct option_row rows[] = {
    {"keep", 'k', OPTION_LIST, offsetof(struct config, keep), .metavar = "PATTERN", .help = "leave the tensors of this name as they are (shell pattern, repeats)"},
    {"head-type", 0, OPTION_STRING, offsetof(struct config, head_type), .metavar = "TYPE", .help = "element type of the head: output.weight, or token_embd.weight where it is both (default: TYPE; Q6_K in a mix)"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 1024, .fallback = "0", .help = "0: one for each CPU"},
    {"quiet", 'q', OPTION_FLAG, offsetof(struct config, quiet), .help = "no line for each tensor"},
    {"help", 'h', OPTION_FLAG, offsetof(struct config, help), .flags = OPTION_ARGV_ONLY, .help = "show this text"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-quantize [OPTION]... IN.gguf OUT.gguf TYPE",
    .intro =
        "Encodes a model's matrices as TYPE: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K,\n"
        "Q5_K, Q6_K, IQ4_NL, MXFP4, or a mix: Q4_K_M or Q5_K_M, which are Q4_K or Q5_K with the "
        "head and about\n"
        "half of the layers' attn_v and ffn_down in Q6_K. Rows that are no whole blocks of 256\n"
        "become Q5_0, Q5_1 and Q8_0 where they would be Q4_K, Q5_K and Q6_K.\n"
        "Norms, biases and other vectors keep their type; every key is copied.",
};

static int pick_type(const char *name, enum dtype *ret, struct error *reterr)
{
    int type = dtype_from_name(name);

    if (type < 0) {
        return error_set(reterr, -EINVAL, "'%.40s' is not an element type; see --help", name);
    }
    if (!dtype_info((uint32_t)type)->can_encode) {
        return error_set(reterr, -EINVAL, "%s can be read, but there is no encoder for it",
                         dtype_info((uint32_t)type)->name);
    }
    *ret = (enum dtype)type;
    return 0;
}

/* TYPE, which may be a mix, and the head's. */
static int pick_types(const char *name, const char *head, struct quantize_plan *plan,
                      struct error *reterr)
{
    int r;

    plan->mix = strcasecmp(name, "Q4_K_M") == 0 || strcasecmp(name, "Q5_K_M") == 0;
    if (plan->mix) {
        plan->type = name[1] == '4' ? DTYPE_Q4_K : DTYPE_Q5_K;
        plan->head_type = DTYPE_Q6_K;
        return head ? pick_type(head, &plan->head_type, reterr) : 0;
    }
    r = pick_type(name, &plan->type, reterr);
    return r < 0 ? r : pick_type(head ? head : name, &plan->head_type, reterr);
}

/* What it came to. A file that grew had fewer bits a weight already, which is said in any case. */
static void say_sizes(const char *in, const char *out, bool quiet)
{
    struct stat a;
    struct stat b;

    if (stat(in, &a) == 0 && stat(out, &b) == 0 && (!quiet || b.st_size > a.st_size)) {
        (void)fprintf(stderr, "%s: %.1f MB, %s: %.1f MB%s\n", in, (double)a.st_size / 1e6, out,
                      (double)b.st_size / 1e6,
                      b.st_size > a.st_size
                          ? ": larger, its weights had fewer bits already; no detail came back"
                          : "");
    }
}

static int run(const void *config, const struct option_list *words, struct error *reterr)
{
    const struct config *c = config;
    struct quantize_plan plan = {.keep = &c->keep, .report = c->quiet ? NULL : stderr};
    struct gguf *in = NULL;
    int r;

    if (words->n != 3) {
        return error_set(reterr, -EINVAL, "IN, OUT and TYPE are needed, %zu words are given",
                         words->n);
    }
    r = pick_types(words->v[2], c->head_type, &plan, reterr);
    r = r < 0 ? r : pool_create((int)c->threads, &plan.pool, reterr);
    if (r < 0) {
        return r;
    }
    r = gguf_open(words->v[0], &in, reterr);
    if (r == 0) {
        r = quantize_model(&plan, in, words->v[1], reterr);
        gguf_close(in);
    }
    if (r == 0) {
        say_sizes(words->v[0], words->v[1], c->quiet);
    }
    pool_destroy(plan.pool);
    return r;
}

int main(int argc, char **argv)
{
    struct config c = {0};

    (void)signal(SIGPIPE, SIG_IGN); /* `2>&1 | head` must not leave half a file */
    return command_main(&(struct command){.name = "pipit-quantize",
                                          .table = &table,
                                          .config = &c,
                                          .help = &c.help,
                                          .takes_words = true,
                                          .run = run},
                        argc, argv);
}
