/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-bench: how fast one model is on one backend, as CSV on stdout.
 *
 *   prefill N   from submitting a prompt of N to its first token, in tokens a second
 *   decode D    a step of one token a sequence at depth D, in tokens a second of all sequences,
 *               beside the bytes that the step must read at least: weights, and K and V (with the
 *               policy's positions and scores), and beside what the machine reads in a second of a
 *               working set of the same size; on a device with memory of its own, beside what it
 *               copies in a second within that memory, both directions counted
 *
 * Several policies (--kv repeats) and an overlay against none (--plain) are measured in one run,
 * each on an engine of its own, in turn within every repeat, so that a change in the machine's
 * speed meets all of them; medians with the spread are printed, and for each policy the ratio to
 * the first one's speed beside the ratio of bytes. With --arrivals it serves requests instead.
 *
 * What the backend has to say (a graph that the driver refused, a device lost) is printed, and
 * fails the run behind its figures: they are not those of the backend as it is meant to run. So
 * does a share above --share-limit, which says that something other than steps was timed. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench/speed/bench.h"
#include "engine/kv/plan/plan.h"
#include "tools/command.h"

enum { MAX_POINTS = 32, MAX_RUNNERS = 16, WARM_UP_TOKENS = 16, MAX_LABEL = 256 };

struct config {
    char *model;
    struct option_list overlays;
    bool plain;
    char *backend;
    int products; /* enum engine_prefill */
    int64_t threads;
    struct option_list kv;
    char *prefill;
    char *depth;
    int64_t batch;
    int experts;
    uint64_t expert_bytes;
    int64_t n_new;
    int64_t repeats;
    int64_t ctx;
    bool real;
    bool limits;
    bool resident;
    int64_t share_limit;
    uint64_t copy_bytes;
    char *kernels;
    char *arrivals;
    uint64_t kv_memory;
    int64_t requests;
    int64_t clients;
    int64_t urgency;
    int64_t gap_target;
    int64_t prompt_rows;
    int64_t prompt;
    int64_t long_prompt;
    int64_t answer;
    char *label;
    bool header;
    bool help;
};

static const char *const experts[] = {"held", "mapped", NULL}; /* enum engine_experts */
static const char *const products[] = {"auto", "own", "cublas", NULL};

#define ROW(field) offsetof(struct config, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, ROW(model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, ROW(overlays), .metavar = "FILE", .help = "a GGUF that adds tensors; repeats"},
    {"plain", 0, OPTION_FLAG, ROW(plain), .help = "each policy without the overlays too, first"},
    {"backend", 0, OPTION_STRING, ROW(backend), .fallback = "cpu", .metavar = "NAME", .help = "ref, cpu, cuda or auto"},
    {"products", 0, OPTION_ENUM, ROW(products), .words = products, .fallback = "auto", .help = "of prompts, on a GPU: own kernels, or cublas"},
    {"experts", 0, OPTION_ENUM, ROW(experts), .words = experts, .fallback = "held", .help = "held, or in the file's map (cpu)"},
    {"expert-bytes", 0, OPTION_BYTES, ROW(expert_bytes), .fallback = "0", .help = "of mapped ones that are kept ready; 0: twice what a token reads"},
    {"threads", 't', OPTION_INT, ROW(threads), 0, 1024, .fallback = "0", .help = "0: all this process may use"},
    {"kv", 0, OPTION_LIST, ROW(kv), .metavar = "POLICY", .help = "a cache policy; repeats: all in one run, in turn (default: full)"},
    {"prefill", 'p', OPTION_STRING, ROW(prefill), .fallback = "512", .metavar = "N,N...", .help = "prompt lengths to time; empty: none"},
    {"depth", 'd', OPTION_STRING, ROW(depth), .fallback = "0", .metavar = "N,N...", .help = "depths at which decode is timed; empty: none"},
    {"batch", 'b', OPTION_INT, ROW(batch), 1, BENCH_MAX_BATCH, .fallback = "1", .help = "sequences at once"},
    {"n-new", 'n', OPTION_INT, ROW(n_new), 2, 4096, .fallback = "32", .help = "decode steps of a sample"},
    {"repeats", 'r', OPTION_INT, ROW(repeats), 1, BENCH_MAX_REPEATS, .fallback = "5", .help = "samples of each figure"},
    {"ctx", 'c', OPTION_INT, ROW(ctx), 0, 1 << 20, .fallback = "0", .help = "context; 0: as long as the figures need"},
    {"real", 0, OPTION_FLAG, ROW(real), .help = "read prompts to get to a depth; else their K and V are made up"},
    {"limits", 0, OPTION_FLAG, ROW(limits), .help = "measure what the machine reads and multiplies, too"},
    {"resident", 0, OPTION_FLAG, ROW(resident), .help = "print what is resident at the end, and the plan"},
    {"share-limit", 0, OPTION_INT, ROW(share_limit), 0, 100000, .fallback = "0", .metavar = "PERCENT", .help = "fail if decode reads more than so much of the measured rate; 0: no limit"},
    {"prompt-rows", 0, OPTION_INT, ROW(prompt_rows), 0, 1 << 16, .fallback = "0", .metavar = "N", .help = "tokens of a prompt in a step; 1: a chunk, 0: as the daemon, 2048 on a GPU with memory of its own"},
    {"copy-bytes", 0, OPTION_BYTES, ROW(copy_bytes), .fallback = "256MiB", .help = "what the measured rate of a device copies; more than its caches hold"},
    {"kernels", 0, OPTION_STRING, ROW(kernels), .metavar = "FILE.csv", .help = "of the backend cuda: what each kernel takes, in a sample more of each figure, in which they run one by one"},
    {"arrivals", 0, OPTION_STRING, ROW(arrivals), .metavar = "RATE,RATE...", .help = "serve requests that arrive at random, so many a second (0: all at once)"},
    {"kv-memory", 0, OPTION_BYTES, ROW(kv_memory), .fallback = "64MiB", .help = "with --arrivals: for keys and values; decides how many sit at once"},
    {"requests", 0, OPTION_INT, ROW(requests), 1, 100000, .fallback = "64", .help = "with --arrivals: how many"},
    {"clients", 0, OPTION_INT, ROW(clients), 0, BENCH_MAX_BATCH, .fallback = "0", .help = "with --arrivals 0: so many sequences, each asks again when its answer is over; 0: as many as --kv-memory holds"},
    {"urgency", 0, OPTION_INT, ROW(urgency), -100, 100, .fallback = "0", .help = "with --arrivals: of the requests"},
    {"gap-target", 0, OPTION_INT, ROW(gap_target), 0, 100000, .fallback = "60", .metavar = "MS", .help = "with --arrivals: what a step may take that reads prompts while others decode"},
    {"long", 0, OPTION_INT, ROW(long_prompt), 0, 1 << 20, .fallback = "0", .metavar = "N", .help = "with --arrivals: tokens of the prompt in the middle; 0: as the others"},
    {"prompt", 0, OPTION_INT, ROW(prompt), 1, 1 << 20, .fallback = "512", .help = "with --arrivals: tokens of a prompt"},
    {"answer", 0, OPTION_INT, ROW(answer), 2, 1 << 20, .fallback = "64", .help = "with --arrivals: tokens of an answer"},
    {"label", 0, OPTION_STRING, ROW(label), .metavar = "TEXT", .help = "printed in the place of the policy"},
    {"header", 0, OPTION_FLAG, ROW(header), .fallback = "yes", .help = "print the CSV header"},
    {"help", 'h', OPTION_FLAG, ROW(help), .flags = OPTION_ARGV_ONLY, .help = "this text"},
};
/* clang-format on */

static const struct option_table table = {rows, sizeof(rows) / sizeof(rows[0]),
                                          "pipit-bench --model FILE [OPTION]...",
                                          "Times prefill and decode of a model and prints CSV.", 0};

/* ---- samples --------------------------------------------------------------------------------- */

long bench_switches(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void series_add(struct series *s, double value, bool clean)
{
    s->value[s->n] = value;
    s->clean[s->n++] = clean;
}

struct summary series_summary(const struct series *s)
{
    struct summary sum = {0};
    double v[BENCH_MAX_REPEATS];
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        sum.n_clean += s->clean[i];
    }
    for (int i = 0; i < s->n; i++) {
        if (s->clean[i] || sum.n_clean == 0) {
            v[n++] = s->value[i];
        }
    }
    if (n > 0) {
        sum.median = bench_median(v, n);
        sum.min = v[0];
        sum.max = v[n - 1];
    }
    return sum;
}

/* ---- the run --------------------------------------------------------------------------------- */

struct point {
    bool decode;
    int n;
    struct series speed[MAX_RUNNERS]; /* tokens a second */
    struct series read[MAX_RUNNERS];  /* bytes a second, of a set as large as the step's */
};

struct bench {
    const struct config *c;
    int n_points;
    int n_runners;
    struct point points[MAX_POINTS];
    struct runner *runner[MAX_RUNNERS];
    char label[MAX_RUNNERS][MAX_LABEL];
    struct machine *machine;
    struct device *device; /* or NULL: the host is the device */
    struct kernels *kernels;
    char news[256]; /* the first that a backend said */
    double most_share;
};

static int parse_list(struct bench *b, const char *text, bool decode, struct error *e)
{
    while (*text) {
        char *end;
        long v = strtol(text, &end, 10);

        if (end == text || v < 0 || v > 1 << 20 || (*end && *end != ',') ||
            b->n_points == MAX_POINTS) {
            return error_set(e, -EINVAL, "'%s' is no list of at most %d lengths", text, MAX_POINTS);
        }
        b->points[b->n_points].decode = decode;
        b->points[b->n_points++].n = v > 0 ? (int)v : 1;
        text = *end ? end + 1 : end;
    }
    return 0;
}

static int32_t decoded_at_depth(const struct config *c)
{
    return (int32_t)((c->n_new + RUNNER_SPARE) * c->repeats);
}

static int32_t longest_text(const struct bench *b)
{
    int32_t longest = 2 * WARM_UP_TOKENS;

    for (int i = 0; i < b->n_points; i++) {
        /* A step or two to warm up, and the one to follow. */
        int32_t more = b->points[i].decode ? decoded_at_depth(b->c) : 0;
        int32_t n = b->points[i].n + more + WARM_UP_TOKENS;

        longest = n > longest ? n : longest;
    }
    return longest;
}

static struct engine_config engine_config_of(const struct config *c, const char *kv, bool plain)
{
    struct engine_config ec;

    engine_config_default(&ec);
    ec.model_path = c->model;
    if (!plain) {
        ec.overlay_paths = (const char *const *)c->overlays.v;
        ec.n_overlays = (int)c->overlays.n;
    }
    ec.backend = c->backend;
    ec.prefill = (enum engine_prefill)c->products;
    ec.n_threads = (int)c->threads;
    ec.experts = (enum engine_experts)c->experts;
    ec.expert_bytes = c->expert_bytes;
    ec.kv = kv;
    ec.n_seqs = (int32_t)c->batch;
    ec.ctx = (int32_t)c->ctx;
    ec.prompt_rows = (int32_t)c->prompt_rows;
    return ec;
}

static int add_runner(struct bench *b, const char *kv, bool plain, struct error *e)
{
    const struct config *c = b->c;
    struct runner_config rc = {
        .engine = engine_config_of(c, kv, plain), .n_batch = (int)c->batch, .real = c->real};

    if (b->n_runners == MAX_RUNNERS) {
        return error_set(e, -EINVAL, "more than %d policies", MAX_RUNNERS);
    }
    if (rc.engine.ctx == 0) {
        rc.engine.ctx = longest_text(b);
    }
    int err = runner_create(&rc, &b->runner[b->n_runners], e);

    if (err) {
        return err;
    }
    struct engine *engine = runner_engine(b->runner[b->n_runners]);

    (void)snprintf(b->label[b->n_runners], MAX_LABEL, "%s%s",
                   c->label ? c->label : engine_info(engine)->kv,
                   !plain && c->overlays.n ? " with overlay" : "");
    if (b->n_runners++ == 0) {
        (void)fprintf(stderr, "pipit-bench: %s\n", engine_info(engine)->backend);
    }
    return 0;
}

static int add_runners(struct bench *b, struct error *e)
{
    const struct config *c = b->c;
    int err = 0;

    for (size_t i = 0; !err && i < (c->kv.n ? c->kv.n : 1); i++) {
        const char *kv = c->kv.n ? c->kv.v[i] : "full";

        if (c->plain && c->overlays.n) {
            err = add_runner(b, kv, true, e);
        }
        err = err ? err : add_runner(b, kv, false, e);
    }
    return err;
}

/* The least bytes of one step of the whole batch. */
static int step_work(const struct bench *b, int runner, int32_t n_prompt, struct engine_work *ret,
                     struct error *e)
{
    uint64_t n = (uint64_t)b->c->batch;
    int err = engine_work(runner_engine(b->runner[runner]), NULL, n_prompt,
                          n_prompt + decoded_at_depth(b->c) / 2, ret, e);

    ret->kv_bytes *= n;
    ret->state_bytes *= n;
    return err;
}

static uint64_t work_bytes(const struct engine_work *w)
{
    return w->weight_bytes + w->kv_bytes + w->state_bytes;
}

static int make_machine(struct bench *b, struct error *e)
{
    uint64_t most = 0;

    for (int i = 0; i < b->n_points; i++) {
        for (int k = 0; b->points[i].decode && k < b->n_runners; k++) {
            struct engine_work w;
            int err = step_work(b, k, b->points[i].n, &w, e);

            if (err) {
                return err;
            }
            most = work_bytes(&w) > most ? work_bytes(&w) : most;
        }
    }
    int err = device_create(b->c->backend, b->c->copy_bytes, &b->device, e);

    return err || b->device ? err : machine_create((int)b->c->threads, most, &b->machine, e);
}

static void hear_news(struct bench *b)
{
    char news[sizeof(b->news)];

    for (int k = 0; k < b->n_runners; k++) {
        while (engine_news(runner_engine(b->runner[k]), news, sizeof(news))) {
            (void)fprintf(stderr, "pipit-bench: %s: %s\n", b->label[k], news);
            if (!b->news[0]) {
                memcpy(b->news, news, sizeof(news));
            }
        }
    }
}

static int prefill_repeat(struct bench *b, struct point *p, struct error *e)
{
    for (int k = 0; k < b->n_runners; k++) {
        double ns;
        bool clean;
        int err = runner_prefill(b->runner[k], p->n, &ns, &clean, e);

        if (err) {
            return err;
        }
        series_add(&p->speed[k], 1e9 * p->n * (double)b->c->batch / ns, clean);
    }
    return 0;
}

static int decode_sample(struct bench *b, struct point *p, int k, struct error *e)
{
    struct engine_work w;
    double ns;
    bool clean;
    int err = step_work(b, k, p->n, &w, e);

    if (!err) {
        err = runner_steps(b->runner[k], (int)b->c->n_new, &ns, &clean, e);
    }
    if (err) {
        return err;
    }
    series_add(&p->speed[k], 1e9 * (double)b->c->batch / ns, clean);
    long before = bench_switches();
    double read = b->device ? device_copy(b->device) : machine_read(b->machine, work_bytes(&w));

    series_add(&p->read[k], read, bench_switches() == before);
    return 0;
}

static int decode_point(struct bench *b, struct point *p, struct error *e)
{
    int err = 0;

    for (int k = 0; !err && k < b->n_runners; k++) {
        err = runner_begin(b->runner[k], p->n, decoded_at_depth(b->c), e);
    }
    for (int rep = 0; !err && rep < b->c->repeats; rep++) {
        for (int k = 0; !err && k < b->n_runners; k++) {
            err = decode_sample(b, p, k, e);
        }
    }
    for (int k = 0; !err && k < b->n_runners; k++) {
        err = runner_end(b->runner[k], e);
    }
    return err;
}

/* One sample of the figure with each kernel timed. */
static int time_kernels(struct bench *b, const struct point *p, int k, struct error *e)
{
    struct runner *r = b->runner[k];
    char label[MAX_LABEL + 200];
    double ns;
    bool clean;
    int err = p->decode ? runner_begin(r, p->n, decoded_at_depth(b->c), e) : 0;

    if (err) {
        return err;
    }
    (void)snprintf(label, sizeof(label), "\"%.120s\",\"%s\",%s,%d,%d",
                   engine_info(runner_engine(r))->model_name, b->label[k],
                   p->decode ? "decode" : "prefill", p->n, (int)b->c->batch);
    kernels_begin(b->kernels);
    err = p->decode ? runner_steps(r, (int)b->c->n_new, &ns, &clean, e)
                    : runner_prefill(r, p->n, &ns, &clean, e);

    struct error more = {0};
    int end = kernels_end(b->kernels, label, err ? &more : e);

    err = err ? err : end;
    return err || !p->decode ? err : runner_end(r, e);
}

static int measure(struct bench *b, struct error *e)
{
    int err = 0;

    for (int k = 0; !err && k < b->n_runners; k++) {
        double ns;
        bool clean;

        err = runner_prefill(b->runner[k], WARM_UP_TOKENS, &ns, &clean, e);
    }
    for (int rep = 0; !err && rep < b->c->repeats; rep++) {
        for (int i = 0; !err && i < b->n_points; i++) {
            err = b->points[i].decode ? 0 : prefill_repeat(b, &b->points[i], e);
        }
    }
    for (int i = 0; !err && i < b->n_points; i++) {
        err = b->points[i].decode ? decode_point(b, &b->points[i], e) : 0;
    }
    for (int i = 0; !err && i < b->n_points && b->kernels; i++) {
        for (int k = 0; !err && k < b->n_runners; k++) {
            err = time_kernels(b, &b->points[i], k, e);
        }
    }
    hear_news(b);
    return err;
}

/* Are the printed figures those of the backend as it is meant to run? */
static int judge(const struct bench *b, struct error *e)
{
    double limit = (double)b->c->share_limit / 100;

    if (b->news[0]) {
        return error_set(e, -EIO, "the figures are of a backend that says: %s", b->news);
    }
    if (limit > 0 && b->most_share > limit) {
        return error_set(e, -ERANGE, "decode reads %.2f of the measured rate, at most %.2f can be",
                         b->most_share, limit);
    }
    return 0;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_head(void)
{
    printf("model,kv,what,tokens,batch,value,min,max,unit,repeats,clean,"
           "weight_bytes,kv_bytes,read_gb_s,share,ratio,byte_ratio\n");
}

/* `share`: of the machine's limit, in the same run; `ratio`: to the first policy. */
static int print_point(struct bench *b, const struct point *p, double flops, struct error *e)
{
    struct engine_work first = {0};
    double base = series_summary(&p->speed[0]).median;

    for (int k = 0; k < b->n_runners; k++) {
        const struct engine_info *info = engine_info(runner_engine(b->runner[k]));
        struct summary s = series_summary(&p->speed[k]);
        struct engine_work w;
        int err = step_work(b, k, p->n, &w, e);

        if (err) {
            return err;
        }
        first = k == 0 ? w : first;
        printf("\"%s\",\"%s\",%s,%d,%d,%.1f,%.1f,%.1f,tok/s,%d,%d,", info->model_name, b->label[k],
               p->decode ? "decode" : "prefill", p->n, (int)b->c->batch, s.median, s.min, s.max,
               p->speed[k].n, s.n_clean);
        if (p->decode) {
            double read = series_summary(&p->read[k]).median;
            double steps = s.median / (double)b->c->batch;
            double share = (double)work_bytes(&w) * steps / read;

            b->most_share = share > b->most_share ? share : b->most_share;
            printf("%" PRIu64 ",%" PRIu64 ",%.1f,%.3f,%.3f,%.3f\n", w.weight_bytes,
                   w.kv_bytes + w.state_bytes, read / 1e9, share, s.median / base,
                   (double)work_bytes(&first) / (double)work_bytes(&w));
        } else if (flops > 0) {
            printf(",,,%.3f,%.3f,\n", s.median / p->n * w.prompt_flops / flops, s.median / base);
        } else {
            printf(",,,,%.3f,\n", s.median / base);
        }
    }
    return 0;
}

static void print_pieces(struct bench *b)
{
    for (uint32_t bytes = 128; bytes <= 4096; bytes *= 2) {
        struct error e = {0};
        double rate;

        if (machine_read_pieces(b->machine, bytes, &rate, &e)) {
            (void)fprintf(stderr, "pipit-bench: %s\n", e.text);
            return;
        }
        printf("machine,\"one of every four\",read pieces,%" PRIu32 ",,%.1f,,,GB/s,,,,,,,,\n",
               bytes, rate / 1e9);
    }
}

static double print_limits(struct bench *b)
{
    const char *unit;
    double int8 = machine_peak_int8(b->machine, &unit);

    printf("machine,\"%s\",peak int8,,,%.2f,,,Top/s,,,,,,,,\n", unit, int8 / 1e12);
    double bf16 = machine_peak_bf16(b->machine, &unit);

    printf("machine,\"%s\",peak bf16,,,%.2f,,,Top/s,,,,,,,,\n", unit, bf16 / 1e12);
    double fed = machine_fed_bf16(b->machine);

    if (fed > 0) {
        printf("machine,\"AMX bf16, tiles loaded\",peak bf16 fed,,,%.2f,,,Top/s,,,,,,,,\n",
               fed / 1e12);
    }
    print_pieces(b);
    return bf16;
}

static void print_resident(const struct bench *b)
{
    FILE *f = fopen("/proc/self/status", "re");
    uint64_t planned = 0;
    char line[128];
    unsigned long kb = 0;

    for (int k = 0; k < b->n_runners; k++) {
        planned += engine_plan_of(runner_engine(b->runner[k]))->total_bytes;
    }
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "RssAnon: %lu kB", &kb) == 1) {
            break;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    printf("machine,,resident,%d,%d,%.1f,,,MB,,,,,,,,\n",
           (int)engine_info(runner_engine(b->runner[0]))->ctx, (int)b->c->batch,
           (double)kb * 1024 / 1e6);
    printf("machine,,planned,%d,%d,%.1f,,,MB,,,,,,,,\n",
           (int)engine_info(runner_engine(b->runner[0]))->ctx, (int)b->c->batch,
           (double)planned / 1e6);
}

static int bench(const struct config *c, struct error *e)
{
    static struct bench b;
    int err;

    b.c = c;
    err = parse_list(&b, c->prefill, false, e);
    err = err ? err : parse_list(&b, c->depth, true, e);
    err = err ? err : add_runners(&b, e);
    if (!err && c->kernels) {
        err = kernels_create(c->kernels, &b.kernels, e);
    }
    if (!err && c->header) {
        print_head();
    }
    if (!err && c->resident) { /* before memory of the bench's own is taken */
        double ns;
        bool clean;

        err = runner_prefill(b.runner[0], WARM_UP_TOKENS, &ns, &clean, e);
        print_resident(&b);
    }
    err = err ? err : make_machine(&b, e);
    err = err ? err : measure(&b, e);
    double flops = !err && c->limits && b.machine ? print_limits(&b) : 0;

    for (int i = 0; i < b.n_points && !err; i++) {
        err = print_point(&b, &b.points[i], flops, e);
    }
    err = err ? err : judge(&b, e);

    struct error more = {0};
    int written = kernels_finish(b.kernels, err ? &more : e);

    err = err ? err : written;
    machine_destroy(b.machine);
    device_destroy(b.device);
    for (int k = 0; k < b.n_runners; k++) {
        runner_destroy(b.runner[k]);
    }
    return err;
}

static int serve(const struct config *c, struct error *e)
{
    struct serve_config s = {
        .engine = engine_config_of(c, c->kv.n ? c->kv.v[0] : "full", false),
        .kv_bytes = c->kv_memory,
        .rates = c->arrivals,
        .n_requests = (int)c->requests,
        .n_clients = (int)c->clients,
        .n_prompt = (int32_t)c->prompt,
        .n_long = (int32_t)c->long_prompt,
        .urgency = (int32_t)c->urgency,
        .n_new = (int32_t)c->answer,
        .label = c->label  ? c->label
                 : c->kv.n ? c->kv.v[0]
                           : "full",
        .header = c->header,
    };

    s.engine.gap_target_ms = (int32_t)c->gap_target;
    return serve_run(&s, e);
}

static int run(const void *config, const struct option_list *words, struct error *e)
{
    const struct config *c = config;

    (void)words;
    if (!c->model) {
        return error_set(e, -EINVAL, "--model is needed");
    }
    return c->arrivals ? serve(c, e) : bench(c, e);
}

int main(int argc, char **argv)
{
    struct config c = {0};

    return command_main(
        &(struct command){
            .name = "pipit-bench", .table = &table, .config = &c, .help = &c.help, .run = run},
        argc, argv);
}
