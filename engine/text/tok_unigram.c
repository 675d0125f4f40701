/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's unigram model: of all ways to cut a text into tokens the one whose scores, the
 * logarithms of probabilities, have the largest sum (Kudo, 2018). The text is normalised first;
 * then one pass over its characters knows the best cut of what lies before each (Viterbi), and the
 * way back from the end gives the tokens. Sums are double, equal sums keep the earlier cut: the ids
 * are those of llama.cpp and of SentencePiece itself.
 *
 * Tokens that a text goes on with are found in a list of ids sorted by bytes: those that begin with
 * what was read so far are a part of it, which each further byte narrows down. A character that is
 * no token costs 10 more than the worst token, and becomes bytes where the vocabulary has all 256,
 * else the unknown token, once for a run of them.
 *
 * Here alone texts are rewritten: a table's replacements (tok_charsmap.c) and, where the file asks
 * for it, one space for a run of them and none at the end. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "gguf/gguf.h"

#define SCORES "tokenizer.ggml.scores"
enum { UNKNOWN_COST = 10 };

/* ---- loading --------------------------------------------------------------------------------- */

struct spelt {
    const char *piece;
    int32_t id;
    uint16_t len;
};

static int by_bytes(const void *a, const void *b)
{
    const struct spelt *x = a;
    const struct spelt *y = b;
    int order = memcmp(x->piece, y->piece, x->len < y->len ? x->len : y->len);

    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int sort_ids(struct tok *t, struct error *reterr)
{
    AUTO_FREE struct spelt *list = malloc((size_t)t->n_vocab * sizeof(*list));
    int32_t n = 0;

    t->sorted = malloc((size_t)t->n_vocab * sizeof(*t->sorted));
    if (!list || !t->sorted) {
        return error_set(reterr, -ENOMEM, "no memory for the vocabulary");
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (t->entries[i].merges && t->entries[i].piece_len > TOK_MAX_SPELT) {
            return error_set(reterr, -EBADMSG,
                             "token %d has %d bytes; a unigram vocabulary's have "
                             "at most %d",
                             i, (int)t->entries[i].piece_len, TOK_MAX_SPELT);
        }
        if (t->entries[i].merges) {
            list[n++] = (struct spelt){tok_piece_of(t, i), i, t->entries[i].piece_len};
        }
    }
    qsort(list, (size_t)n, sizeof(*list), by_bytes);
    for (int32_t i = 0; i < n; i++) {
        t->sorted[i] = list[i].id;
    }
    t->n_sorted = n;
    return 0;
}

/* Scores of user-defined tokens, which are to be taken wherever they stand, are 0. */
static int load_scores(struct tok *t, const struct gguf *g, struct error *reterr)
{
    float least = 0;
    bool any = false;

    t->score = malloc((size_t)t->n_vocab * sizeof(*t->score));
    if (!t->score) {
        return error_set(reterr, -ENOMEM, "no memory for the scores");
    }
    int r = gguf_array_f32(g, SCORES, t->score, (size_t)t->n_vocab, reterr);

    if (r < 0) {
        return r == -ENOENT ? error_set(reterr, -EBADMSG, "key '%s' is missing", SCORES) : r;
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (!isfinite(t->score[i])) {
            return error_set(reterr, -EBADMSG, "key '%s': token %d has no finite score", SCORES, i);
        }
        if (t->entries[i].kind == TOK_NORMAL) {
            least = any && least < t->score[i] ? least : t->score[i];
            any = true;
        } else if (t->entries[i].kind == TOK_USER) {
            t->score[i] = 0;
        }
    }
    t->unknown_score = (double)least - UNKNOWN_COST;
    return 0;
}

int tok_unigram_load(struct tok *t, const struct gguf *g, struct error *reterr)
{
    int n_bytes = 0;
    int r = load_scores(t, g, reterr);

    for (int i = 0; i < 256; i++) {
        n_bytes += t->byte_id[i] >= 0;
    }
    t->spells = n_bytes == 256;
    if (!r && !t->spells && t->unknown < 0) {
        return error_set(reterr, -EBADMSG,
                         "the vocabulary has neither a token for each byte nor an unknown one");
    }
    r = r ? r : sort_ids(t, reterr);
    return r ? r : tok_charsmap_load(&t->charsmap, g, reterr);
}

/* ---- normalising ----------------------------------------------------------------------------- */

struct normal {
    const struct tok *t;
    struct tok_sink *sink;
    char *out;
    size_t n;
    size_t cap;
    bool space; /* one is owed before the next character */
};

static int put(struct normal *s, const char *text, size_t len)
{
    if (s->sink->normal_left < len) {
        return -E2BIG;
    }
    s->sink->normal_left -= len;
    if (s->cap - s->n < len) {
        size_t cap = s->cap + s->cap / 2 + len + 64;
        char *larger = cap <= TOK_MAX_TEXT ? realloc(s->out, cap) : NULL;

        if (!larger) {
            return -ENOMEM;
        }
        s->out = larger;
        s->cap = cap;
    }
    memcpy(s->out + s->n, text, len);
    s->n += len;
    return 0;
}

/* A part of the text in its new form: spaces, and characters or halves of such. */
static int put_part(struct normal *s, const char *text, size_t len)
{
    int r = 0;

    for (size_t i = 0; i < len && r == 0; i++) {
        bool space = text[i] == ' ';

        if (space && s->t->merge_spaces) {
            s->space = s->space || s->n > 0 || s->t->space_prefix;
            continue;
        }
        r = s->space ? put(s, " ", 1) : 0;
        s->space = false;
        r = r ? r : put(s, text + i, 1);
    }
    return r;
}

/* The text in the form that tokens have, of its own memory. */
static int normalise(const struct tok *t, const char *text, size_t len, bool space_before,
                     struct tok_sink *sink, struct normal *ret)
{
    static const char replacement[] = "\xef\xbf\xbd";
    int r = 0;

    *ret = (struct normal){.t = t, .sink = sink, .space = space_before};
    for (size_t i = 0; i < len && r == 0;) {
        const char *as = NULL;
        size_t n = 0;
        size_t took = tok_charsmap_find(&t->charsmap, text + i, len - i, &as, &n);

        if (took == 0) {
            int size = utf8_character(text + i, len - i);
            bool broken = size <= 0;

            took = broken ? 1 : (size_t)size;
            as = broken && !t->spells ? replacement : text + i;
            n = broken && !t->spells ? sizeof(replacement) - 1 : took;
        }
        r = put_part(ret, as, n);
        i += took;
    }
    return r;
}

/* ---- the best cut ---------------------------------------------------------------------------- */

/* The best cut of the bytes before a place: its last token, and where that begins. */
struct cut {
    double sum;
    uint32_t from;
    int32_t id; /* -1: a character that is no token */
};

static void offer(struct cut *at, double sum, size_t from, int32_t id)
{
    if (sum > at->sum) {
        *at = (struct cut){sum, (uint32_t)from, id};
    }
}

/* Of the sorted ids [*low, *high), which share their first `depth` bytes, those whose next is c. */
static void narrow(const struct tok *t, uint32_t depth, uint8_t c, int32_t *low, int32_t *high)
{
    int32_t end[2];

    for (int k = 0; k < 2; k++) { /* the first of c, then the first beyond */
        int32_t a = k ? end[0] : *low;
        int32_t b = *high;

        while (a < b) {
            int32_t mid = a + (b - a) / 2;
            const struct tok_entry *e = &t->entries[t->sorted[mid]];
            int byte = e->piece_len > depth ? (uint8_t)t->bytes[e->piece + depth] : -1;

            if (byte < c + k) {
                a = mid + 1;
            } else {
                b = mid;
            }
        }
        end[k] = a;
    }
    *low = end[0];
    *high = end[1];
}

/* All tokens that the text goes on with at `at`, where a character of `size` bytes stands. */
static void extend(const struct tok *t, const char *text, size_t len, size_t at, size_t size,
                   struct cut *cuts)
{
    double sum = cuts[at].sum;
    int32_t low = 0;
    int32_t high = t->n_sorted;
    bool whole = false;

    for (size_t n = 0; at + n < len; n++) {
        narrow(t, (uint32_t)n, (uint8_t)text[at + n], &low, &high);
        if (low == high) {
            break;
        }
        int32_t id = t->sorted[low]; /* the shortest comes first */

        if (t->entries[id].piece_len == n + 1) {
            offer(&cuts[at + n + 1], sum + (double)t->score[id], at, id);
            whole = whole || n + 1 == size;
        }
    }
    if (!whole) {
        offer(&cuts[at + size], sum + t->unknown_score, at, -1);
    }
}

static void put_unknown(const struct tok *t, const char *text, size_t from, size_t to,
                        struct tok_sink *sink)
{
    for (size_t i = from; t->spells && i < to; i++) {
        tok_sink_put(sink, t->byte_id[(uint8_t)text[i]]);
    }
    if (!t->spells) {
        tok_sink_put(sink, t->unknown);
    }
}

/* Turns the way back into the way forth, in place, then follows it. */
static void put_tokens(const struct tok *t, const char *text, size_t len, struct cut *cuts,
                       struct tok_sink *sink)
{
    uint32_t next = (uint32_t)len;
    bool unknown = false;

    for (size_t at = len; at > 0;) {
        uint32_t from = cuts[at].from;

        cuts[from].sum = next; /* where its token ends; exact below 2^53 */
        next = from;
        at = from;
    }
    (void)next;
    for (size_t at = 0; at < len;) {
        size_t to = (size_t)cuts[at].sum;

        if (cuts[to].id >= 0) {
            tok_sink_put(sink, cuts[to].id);
        } else if (t->spells || !unknown) {
            put_unknown(t, text, at, to, sink);
        }
        unknown = cuts[to].id < 0;
        at = to;
    }
}

static int cut_text(const struct tok *t, const char *text, size_t len, struct tok_sink *sink)
{
    AUTO_FREE struct cut *cuts = malloc((len + 1) * sizeof(*cuts));

    if (!cuts) {
        return -ENOMEM;
    }
    for (size_t i = 0; i <= len; i++) {
        cuts[i] = (struct cut){.sum = i ? -INFINITY : 0, .id = -1};
    }
    for (size_t at = 0; at < len;) {
        int size = utf8_character(text + at, len - at);
        size_t n = size > 0 ? (size_t)size : 1;

        extend(t, text, len, at, n, cuts);
        at += n;
    }
    put_tokens(t, text, len, cuts, sink);
    return 0;
}

int tok_unigram_encode(const struct tok *t, const char *text, uint32_t len, bool space_before,
                       struct tok_sink *sink)
{
    struct normal s;
    int r = normalise(t, text, len, space_before, sink, &s);

    if (r == 0 && s.n > 0) {
        r = cut_text(t, s.out, s.n, sink);
    }
    free(s.out);
    return r;
}
