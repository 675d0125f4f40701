/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the tensors of a file twice: first to choose each one's type and declare it, then to decode
 * row by row into f32 and encode again, a block of rows at a time, rows shared out to threads. What
 * is not a matrix (norms, biases), what --keep names, and what has the wanted type already, is
 * copied byte for byte.
 *
 * Rows that are no whole blocks of a K-quant take the type with blocks of 32 that is next above it.
 *
 * Quality is reported as the root mean square of the change over that of the weights: what the
 * encoding did, in one number a tensor. */

#include "tools/quantize_model.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 8 << 20 };

struct job {
    const struct gguf_tensor *t;
    enum dtype to;
    uint64_t from_row_bytes;
    uint64_t to_row_bytes;
    uint64_t first; /* row */
    uint64_t n_rows;
    uint8_t *out;
    float *scratch;          /* (n_threads, 2, row length) */
    double *sums;            /* (n_threads, 2): squares of the change, of the weights */
    _Atomic int64_t bad_row; /* one that cannot be encoded, or -1 */
};

/* Those of experts have two dimensions. */
static bool is_bias(struct gguf_str name)
{
    return name.len > 5 && memcmp(name.ptr + name.len - 5, ".bias", 5) == 0;
}

static bool is_norm(struct gguf_str name)
{
    return memmem(name.ptr, name.len, "norm", 4) != NULL;
}

/* Which experts a token goes to hangs on small differences, and routers are small. */
static bool is_router(struct gguf_str name)
{
    static const char part[] = ".ffn_gate_inp";

    return memmem(name.ptr, name.len, part, sizeof(part) - 1) != NULL;
}

/* Weights of short convolutions: a few for a channel. */
static bool is_convolution(struct gguf_str name)
{
    return memmem(name.ptr, name.len, "ssm_conv1d", 10) || memmem(name.ptr, name.len, ".conv.", 6);
}

static bool name_is(struct gguf_str name, const char *s)
{
    return name.len == strlen(s) && memcmp(name.ptr, s, name.len) == 0;
}

static bool is_head(const struct gguf *in, struct gguf_str name)
{
    return name_is(name, "output.weight") ||
           (name_is(name, "token_embd.weight") && !gguf_tensor_find(in, "output.weight"));
}

static bool kept(const struct quantize_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->keep->n; i++) {
        if (fnmatch(plan->keep->v[i], name, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* The layer of "blk.N.PART.weight", or -1. */
static int64_t layer_of(struct gguf_str name, const char *part)
{
    char text[64];
    char rest[64];
    int64_t layer;

    (void)snprintf(text, sizeof(text), "%.*s", (int)name.len, name.ptr);
    if (sscanf(text, "blk.%7" SCNd64 ".%63s", &layer, rest) != 2) {
        return -1;
    }
    return !part || strcmp(rest, part) == 0 ? layer : -1;
}

/* What suffers most from few bits: values and what leaves the feed-forward, near both ends. */
static bool gets_more(const struct gguf *in, struct gguf_str name)
{
    int64_t n_layers = 0;
    int64_t layer = layer_of(name, "attn_v.weight");

    layer = layer < 0 ? layer_of(name, "ffn_down.weight") : layer;
    layer = layer < 0 ? layer_of(name, "ffn_down_exps.weight") : layer;
    if (layer < 0) {
        return false;
    }
    for (size_t i = 0; i < gguf_n_tensors(in); i++) {
        int64_t l = layer_of(gguf_tensor_at(in, i)->name, NULL);

        n_layers = l + 1 > n_layers ? l + 1 : n_layers;
    }
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static enum dtype fallback(enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_K:
        return DTYPE_Q5_0;
    case DTYPE_Q5_K:
        return DTYPE_Q5_1;
    case DTYPE_Q6_K:
        return DTYPE_Q8_0;
    default:
        return type;
    }
}

static int choose(const struct quantize_plan *plan, const struct gguf *in,
                  const struct gguf_tensor *t, const char *name, enum dtype *ret,
                  struct error *reterr)
{
    uint64_t bytes;

    *ret = t->type;
    if (t->n_dims < 2 || t->dims[0] == 1 || is_bias(t->name) || is_norm(t->name) ||
        is_router(t->name) || is_convolution(t->name) || kept(plan, name)) {
        return 0;
    }
    *ret = is_head(in, t->name)                  ? plan->head_type
           : plan->mix && gets_more(in, t->name) ? DTYPE_Q6_K
                                                 : plan->type;
    if (!dtype_row_bytes(*ret, t->dims[0], &bytes)) {
        *ret = fallback(*ret);
    }
    if (!dtype_row_bytes(*ret, t->dims[0], &bytes)) {
        return error_set(reterr, -EBADMSG,
                         "tensor '%s': its rows of %" PRIu64 " are not whole blocks of %s (%d); "
                         "--keep '%s' leaves it as it is",
                         name, t->dims[0], dtype_info(*ret)->name, dtype_info(*ret)->block_len,
                         name);
    }
    return 0;
}

/* ---- keys ---- */

static uint32_t file_type(enum dtype type, bool mix)
{
    switch (type) {
    case DTYPE_Q4_K:
        return mix ? 15 : 14;
    case DTYPE_Q5_K:
        return mix ? 17 : 16;
    case DTYPE_Q6_K:
        return 18;
    case DTYPE_F32:
        return 0;
    case DTYPE_F16:
        return 1;
    case DTYPE_Q4_0:
        return 2;
    case DTYPE_Q4_1:
        return 3;
    case DTYPE_Q8_0:
        return 7;
    case DTYPE_Q5_0:
        return 8;
    case DTYPE_Q5_1:
        return 9;
    case DTYPE_IQ4_NL:
        return 25;
    case DTYPE_BF16:
        return 32;
    case DTYPE_MXFP4:
        return 38;
    default:
        return 1024; /* "guessed" */
    }
}

static int copy_keys(const struct quantize_plan *plan, const struct gguf *in, struct gguf_writer *w)
{
    int r = 0;

    for (size_t i = 0; i < gguf_n_keys(in) && r == 0; i++) {
        struct gguf_str name;
        enum gguf_type type;
        const void *raw;
        size_t bytes;

        gguf_key_at(in, i, &name, &type, &raw, &bytes);
        if (!name_is(name, "general.file_type") && !name_is(name, "general.quantization_version")) {
            r = gguf_writer_raw(w, name, type, raw, bytes);
        }
    }
    r = r < 0 ? r : gguf_writer_u32(w, "general.file_type", file_type(plan->type, plan->mix));
    return r < 0 ? r : gguf_writer_u32(w, "general.quantization_version", 2);
}

/* ---- data ---- */

static void encode_rows(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    uint64_t n = j->t->dims[0];
    float *x = j->scratch + (size_t)tid * 2 * n;
    float *back = x + n;

    for (uint64_t i = (uint64_t)tid; i < j->n_rows; i += (uint64_t)n_threads) {
        uint64_t row = j->first + i;
        uint8_t *out = j->out + i * j->to_row_bytes;

        dtype_decode(j->t->type, (const uint8_t *)j->t->data + row * j->from_row_bytes, x, n);
        if (dtype_encode(j->to, x, out, n) < 0) {
            atomic_store(&j->bad_row, (int64_t)row);
            return;
        }
        dtype_decode(j->to, out, back, n);
        for (uint64_t k = 0; k < n; k++) {
            double change = (double)back[k] - (double)x[k];

            j->sums[2 * tid] += change * change;
            j->sums[2 * tid + 1] += (double)x[k] * (double)x[k];
        }
    }
}

static int encode_tensor(struct job *j, const struct quantize_plan *plan, const char *name,
                         struct gguf_writer *w, struct error *reterr)
{
    uint64_t n_rows = j->t->dims[1] * j->t->dims[2] * j->t->dims[3];
    uint64_t at_once = BLOCK_BYTES / j->to_row_bytes ? BLOCK_BYTES / j->to_row_bytes : 1;
    int r = 0;

    for (j->first = 0; j->first < n_rows && r == 0; j->first += j->n_rows) {
        j->n_rows = n_rows - j->first < at_once ? n_rows - j->first : at_once;
        pool_run(plan->pool, encode_rows, j);
        if (atomic_load(&j->bad_row) >= 0) {
            return error_set(reterr, -EBADMSG,
                             "tensor '%s': row %" PRId64 " has a value that is not finite or does "
                             "not fit %s",
                             name, atomic_load(&j->bad_row), dtype_info(j->to)->name);
        }
        r = gguf_writer_data(w, j->out, (size_t)(j->n_rows * j->to_row_bytes));
    }
    return r;
}

static double relative_change(const struct job *j, int n_threads)
{
    double change = 0;
    double all = 0;

    for (int t = 0; t < n_threads; t++) {
        change += j->sums[2 * t];
        all += j->sums[2 * t + 1];
    }
    return all > 0 ? sqrt(change / all) : 0;
}

static int write_encoded(const struct quantize_plan *plan, const struct gguf_tensor *t,
                         const char *name, enum dtype to, struct gguf_writer *w,
                         struct error *reterr)
{
    int n_threads = pool_n_threads(plan->pool);
    struct job j = {.t = t, .to = to, .bad_row = -1};
    int r = -ENOMEM;

    (void)dtype_row_bytes(t->type, t->dims[0], &j.from_row_bytes);
    (void)dtype_row_bytes(to, t->dims[0], &j.to_row_bytes);
    j.out = malloc(j.to_row_bytes > BLOCK_BYTES ? (size_t)j.to_row_bytes : BLOCK_BYTES);
    j.scratch = calloc((size_t)n_threads * 2, (size_t)t->dims[0] * sizeof(float));
    j.sums = calloc((size_t)n_threads * 2, sizeof(double));
    if (j.out && j.scratch && j.sums) {
        r = encode_tensor(&j, plan, name, w, reterr);
    }
    if (r == 0 && plan->report) {
        (void)fprintf(plan->report, "%-40s %-4s -> %-4s %9.2f -> %8.2f MB  change %.5f\n", name,
                      dtype_info(t->type)->name, dtype_info(to)->name, (double)t->n_bytes / 1e6,
                      (double)t->n_bytes / 1e6 / (double)j.from_row_bytes * (double)j.to_row_bytes,
                      relative_change(&j, n_threads));
    }
    free(j.out);
    free(j.scratch);
    free(j.sums);
    return r;
}

static int write_copy(const struct quantize_plan *plan, const struct gguf_tensor *t,
                      const char *name, struct gguf_writer *w)
{
    if (plan->report) {
        (void)fprintf(plan->report, "%-40s %-4s kept    %9.2f MB\n", name,
                      dtype_info(t->type)->name, (double)t->n_bytes / 1e6);
    }
    return gguf_writer_data(w, t->data, (size_t)t->n_bytes);
}

static int walk(const struct quantize_plan *plan, const struct gguf *in, struct gguf_writer *w,
                bool declaring, struct error *reterr)
{
    int r = 0;

    for (size_t i = 0; i < gguf_n_tensors(in) && r == 0; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(in, i);
        char name[64];
        enum dtype to;

        (void)snprintf(name, sizeof(name), "%.*s", (int)t->name.len, t->name.ptr);
        r = choose(plan, in, t, name, &to, reterr);
        if (r < 0) {
            return r;
        }
        if (declaring) {
            r = gguf_writer_tensor(w, name, to, t->n_dims, t->dims);
        } else if (to == t->type) {
            r = write_copy(plan, t, name, w);
        } else {
            r = write_encoded(plan, t, name, to, w, reterr);
        }
    }
    return r;
}

int quantize_model(const struct quantize_plan *plan, const struct gguf *in, const char *out_path,
                   struct error *reterr)
{
    struct gguf_writer *w = NULL;
    uint64_t n_parts = 1;
    int r = gguf_get_u64(in, "split.count", 0, 1, &n_parts, reterr);

    if (r < 0 && r != -ENOENT) {
        return error_prefix(reterr, "a model in several files is not offered");
    }
    r = gguf_writer_create(out_path, &w, reterr);
    if (r < 0) {
        return r;
    }
    r = copy_keys(plan, in, w);
    r = r < 0 ? r : walk(plan, in, w, true, reterr);
    r = r < 0 ? r : walk(plan, in, w, false, reterr);
    if (r < 0) {
        gguf_writer_abort(w);
        return error_set_errno(reterr, r, "cannot write %.150s", out_path);
    }
    return gguf_writer_finish(w, reterr);
}
