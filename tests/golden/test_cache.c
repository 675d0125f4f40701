/* SPDX-License-Identifier: Apache-2.0 */
/* The cache against an independent model: each .vec file (tests/golden/make_cache_vectors.py) holds
 * a policy text, a prompt, new tokens, and the logits that numpy_model.py gives for them. Here the
 * engine decodes the same tokens, forced, and its logits must agree: on `ref` to 1e-4 of the row's
 * largest magnitude, on `cpu` to 2e-3 (f32 weights; attention's exponential is a polynomial there).
 * Where there is a .live file, the positions that every store and head holds at each step are those
 * of the other model, one by one. InfiniGen's files are run a second time with K and V on disk;
 * and, where the backend is a module, with them in the host's memory and the prompt in chunks: the
 * same logits then, bit for bit.
 *
 *     test_cache FOLDER BACKEND [N]
 *
 * N: one file of so many, beginning with number $PIPIT_PHASE modulo N. */

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/seq/snapshot.h"
#include "tests/turn.h"

struct vec {
    int32_t n_prompt;
    int32_t n_new;
    int32_t n_vocab;
    char policy[256];
    char overlay[256];
    int32_t *ids;  /* (n_prompt + n_new) */
    float *logits; /* (n_new, n_vocab) */
};

struct run {
    const struct vec *v;
    struct engine *e;
    uint64_t handle;
    const uint64_t *live; /* (n_new, stores, heads) bits of positions, or NULL */
    size_t n_live;
    int n_strays; /* sets that differ */
    int first_stray;
    const float *row;
    float *all;   /* (n_new, n_vocab) of it, or NULL */
    double worst; /* relative to the row's largest magnitude */
    int worst_row;
    int n_rows;
    enum engine_reason reason;
    struct error error;
};

static bool read_vec(const char *path, struct vec *v)
{
    char magic[4];
    int32_t head[5];
    FILE *f = fopen(path, "rb");
    bool ok = f && fread(magic, 1, 4, f) == 4 && memcmp(magic, "PVEC", 4) == 0 &&
              fread(head, 4, 5, f) == 5 && head[3] < 256 && head[4] < 256;

    memset(v, 0, sizeof(*v));
    if (ok) {
        v->n_prompt = head[0];
        v->n_new = head[1];
        v->n_vocab = head[2];
        size_t n_ids = (size_t)(v->n_prompt + v->n_new);
        size_t n_logits = (size_t)v->n_new * (size_t)v->n_vocab;

        v->ids = calloc(n_ids, sizeof(*v->ids));
        v->logits = calloc(n_logits, sizeof(*v->logits));
        ok = v->ids && v->logits && fread(v->policy, 1, (size_t)head[3], f) == (size_t)head[3] &&
             fread(v->overlay, 1, (size_t)head[4], f) == (size_t)head[4] &&
             fread(v->ids, 4, n_ids, f) == n_ids && fread(v->logits, 4, n_logits, f) == n_logits;
    }
    if (f) {
        (void)fclose(f);
    }
    return ok;
}

static uint64_t *read_live(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    uint64_t *bits = NULL;

    if (f && fseek(f, 0, SEEK_END) == 0) {
        *ret_n = (size_t)ftell(f) / sizeof(*bits);
        rewind(f);
        bits = calloc(*ret_n + 1, sizeof(*bits));
        if (bits && fread(bits, sizeof(*bits), *ret_n, f) != *ret_n) {
            free(bits);
            bits = NULL;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    return bits;
}

/* The sequence's slots, as a saved block tells them, against one row of the .live file. */
static void compare_live(struct run *r, int row)
{
    size_t n_sets = r->n_live / (size_t)r->v->n_new;
    const uint64_t *want = r->live + (size_t)row * n_sets;
    size_t n_seen = 0;
    void *block = NULL;
    size_t size;

    if (engine_save(r->e, r->handle, &block, &size, &r->error)) {
        r->n_strays++;
        return;
    }
    for (int32_t store = 0; n_seen < n_sets; store++) {
        const int32_t *pos;
        int32_t n;

        if (snapshot_positions(block, size, store, 0, &pos, &n)) {
            break;
        }
        for (int32_t g = 0; !snapshot_positions(block, size, store, g, &pos, &n); g++) {
            uint64_t bits = 0;

            for (int32_t i = 0; i < n; i++) {
                bits |= pos && pos[i] < 0 ? 0 : UINT64_C(1) << (pos ? pos[i] : i);
            }
            if (n_seen >= n_sets || bits != want[n_seen]) {
                r->first_stray = r->n_strays ? r->first_stray : row;
                r->n_strays++;
            }
            n_seen++;
        }
    }
    r->n_strays += n_seen != n_sets;
    free(block);
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = arg;

    if (ev->type == ENGINE_EV_TOKEN) {
        const float *want = r->v->logits + (size_t)ev->index * (size_t)r->v->n_vocab;
        double largest = 0;
        double diff = 0;

        for (int i = 0; i < r->v->n_vocab; i++) {
            double d = fabs((double)want[i] - (double)r->row[i]);

            largest = fmax(largest, fabs((double)want[i]));
            diff = isfinite(d) ? fmax(diff, d) : INFINITY;
        }
        r->n_rows++;
        if (r->all) {
            memcpy(r->all + (size_t)ev->index * (size_t)r->v->n_vocab, r->row,
                   (size_t)r->v->n_vocab * sizeof(*r->row));
        }
        if (diff / largest > r->worst) {
            r->worst = diff / largest;
            r->worst_row = ev->index;
        }
        if (r->live) {
            compare_live(r, ev->index);
        }
    } else if (ev->type == ENGINE_EV_DONE) {
        r->reason = ev->reason;
        r->error = ev->error;
    }
}

/* `more` is added to the policy; all logits go to *ret_all, which the caller frees. */
static int run_vec(const char *folder, const char *name, const char *backend, double limit,
                   const char *more, float **ret_all, size_t *ret_bytes)
{
    char path[512];
    char model[512];
    char overlay[2][512];
    const char *overlays[2] = {overlay[0], overlay[1]};
    struct vec v;
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    struct run r = {.v = &v};
    uint64_t *live = NULL;
    int bad = 1;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    (void)snprintf(model, sizeof(model), "%s/cache_model.gguf", folder);
    if (!read_vec(path, &v) || strlen(v.policy) + strlen(more) >= sizeof(v.policy)) {
        (void)fprintf(stderr, "%s: not a vector file\n", path);
        return 1;
    }
    size_t first = strcspn(v.overlay, ",");
    char policy[2 * sizeof(v.policy)];
    size_t type = strcspn(v.policy, "+") + 1;

    if (strcmp(more, ",pool=disk") == 0) {
        memcpy(v.policy + strlen(v.policy), more, strlen(more) + 1);
    } else if (*more) { /* a prompt in parts, too */
        (void)snprintf(policy, sizeof(policy), "%.*sfull,chunk=5+%.*s%s", (int)type, v.policy,
                       (int)sizeof(v.policy) - 64, v.policy + type, more);
        memcpy(v.policy, policy, sizeof(v.policy) - 1);
    }
    *ret_bytes = (size_t)v.n_new * (size_t)v.n_vocab * sizeof(**ret_all);
    r.all = *ret_all = calloc(*ret_bytes + 1, 1);

    (void)snprintf(overlay[0], sizeof(overlay[0]), "%s/%.*s", folder, (int)first, v.overlay);
    (void)snprintf(overlay[1], sizeof(overlay[1]), "%s/%s", folder,
                   v.overlay[first] ? v.overlay + first + 1 : "");
    float *row = calloc((size_t)v.n_vocab, sizeof(*row));
    engine_config_default(&c);
    c.model_path = model;
    c.overlay_paths = overlays;
    c.n_overlays = (v.overlay[0] != '\0') + (v.overlay[first] != '\0');
    c.backend = backend;
    c.n_threads = 1;
    c.ctx = 128;
    c.kv = v.policy;
    c.tier_dir = "/tmp";
    int ret = row ? engine_create(&c, NULL, NULL, &e, &err) : -ENOMEM;

    if (ret) {
        (void)fprintf(stderr, "%s: %s\n", name, err.text);
        if (ret == -ENOTSUP && strcmp(backend, "ref") != 0) {
            bad = -1; /* this backend lacks what the policy asks for */
        }
        goto out;
    }
    r.row = row;
    r.e = e;
    memcpy(strrchr(path, '.'), ".live", sizeof(".live"));
    live = read_live(path, &r.n_live);
    r.live = live;
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = v.ids,
                               .n_prompt = v.n_prompt,
                               .forced = v.ids + v.n_prompt,
                               .n_forced = v.n_new,
                               .report_forced = true,
                               .max_tokens = v.n_new,
                               .ignore_end = true,
                               .sampler = sampler_params_default(),
                               .principal = 1,
                               .logits = row,
                               .logits_rows = 1};
    if (engine_submit(e, &q, &r.handle, &err)) {
        (void)fprintf(stderr, "%s: %s\n", name, err.text);
        goto out;
    }
    while (engine_step(e, on_event, &r) > 0) {
    }
    bad = r.n_rows != v.n_new || r.reason != ENGINE_LENGTH || !(r.worst <= limit) || r.n_strays > 0;
    printf("%s %-28s %-70s worst %.2e at row %d of %d%s%s%s\n", bad ? "FAILED" : "ok    ", name,
           v.policy, r.worst, r.worst_row, r.n_rows,
           r.n_strays ? ", slots differ"
           : r.live   ? ", slots equal"
                      : "",
           r.error.code ? ": " : "", r.error.text);
out:
    engine_destroy(e);
    free(live);
    free(row);
    free(v.ids);
    free(v.logits);
    return bad;
}

/* The vector; and its twin with pages in the host's memory, where there is a difference. */
static int run_both(const char *folder, const char *name, const char *backend, double limit)
{
    float *all[2] = {NULL, NULL};
    size_t bytes[2];
    bool away = strstr(name, "infinigen") && strchr(backend, '/');
    int bad = run_vec(folder, name, backend, limit, "", &all[0], &bytes[0]);

    if (bad == 0 && away) {
        bad = run_vec(folder, name, backend, limit, ",pool=host", &all[1], &bytes[1]);
        if (bad || bytes[0] != bytes[1] || memcmp(all[0], all[1], bytes[0]) != 0) {
            printf("FAILED %s: other logits with pool=host\n", name);
            bad = 1;
        }
    }
    free(all[0]);
    free(all[1]);
    return bad;
}

int main(int argc, char **argv)
{
    int n = 0;
    int bad = 0;
    int skipped = 0;
    int seen = 0;
    int every = argc > 3 ? atoi(argv[3]) : 1;

    if (argc < 3 || every < 1) {
        (void)fprintf(stderr, "usage: test_cache FOLDER BACKEND [N]\n");
        return 2;
    }
    int begin = turn_begin(every);

    if (every > 1) {
        printf("one file of %d: PIPIT_PHASE=%d\n", every, begin);
    }
    struct dirent **names;
    int n_names = scandir(argv[1], &names, NULL, alphasort);

    for (int i = 0; i < n_names; i++) {
        size_t len = strlen(names[i]->d_name);

        if (len > 10 && strncmp(names[i]->d_name, "cache_", 6) == 0 &&
            strcmp(names[i]->d_name + len - 4, ".vec") == 0 && seen++ % every == begin) {
            bool ahead = strncmp(names[i]->d_name, "cache_infinigen", 15) == 0;
            float *all = NULL;
            size_t bytes;
            double limit = strcmp(argv[2], "ref") == 0 ? 1e-4 : 2e-3;

            for (int k = 0; k < 1 + ahead; k++) {
                int r = k == 0 ? run_both(argv[1], names[i]->d_name, argv[2], limit)
                               : run_vec(argv[1], names[i]->d_name, argv[2], limit, ",pool=disk",
                                         &all, &bytes);

                if (k > 0) {
                    free(all);
                }
                n++;
                bad += r > 0;
                skipped += r < 0;
            }
        }
        free(names[i]);
    }
    if (n_names >= 0) {
        free(names);
    }
    printf("%d runs, %d failed, %d skipped\n", n, bad, skipped);
    if (skipped > 0 && skipped == n) {
        return 77;
    }
    return n == 0 || bad > 0;
}
