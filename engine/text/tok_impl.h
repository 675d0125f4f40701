/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_TOK_IMPL_H
#define PIPIT_ENGINE_TEXT_TOK_IMPL_H

/* What the files of the tokenizer (tok*.c) share; nobody else includes this.
 *
 *   tok.c          life, questions, tok_encode: BOS, special tokens, then one of the algorithms
 *   tok_vocab.c    the GGUF's arrays into `struct tok`, every entry checked
 *   tok_keys.c     the GGUF's single values: ids, flags; which tokens end a generation
 *   tok_map.c      bytes -> id
 *   tok_special.c  finds control and user-defined tokens in a text
 *   tok_pre.c      cuts a text into words (byte-level BPE);  tok_patterns.c: by which patterns
 *   tok_merge.c    the merge loop of tok_bpe.c and tok_spm.c
 *   tok_bpe.c      merges by rank;  tok_spm.c: merges by score
 *   tok_unigram.c  the likeliest tokens;  tok_charsmap.c: what replaces what before that
 *
 * Texts are never rewritten, but for unigram's (t5): vocabulary entries are brought into the form
 * of raw bytes once (byte-level letters to bytes, U+2581 to a space), so that pieces are compared
 * with the text as it came.
 *
 *                        llama       gpt2              gemma4       t5
 *   spellings            U+2581      bytes as letters  U+2581       U+2581
 *   a symbol is at first a character a byte            a character  -
 *   merged by            scores      ranks             ranks        - (sums of scores)
 *   borders of merges    none        tok_pre.c         line ends    - */

#include "base/siphash.h"
#include "engine/text/tok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum tok_kind {
    TOK_NORMAL = 1,
    TOK_UNKNOWN = 2,
    TOK_CONTROL = 3,
    TOK_USER = 4, /* user-defined: found in every text before anything else */
    TOK_UNUSED = 5,
    TOK_BYTE = 6,
};

enum {
    TOK_MAX_SPECIAL = 256,        /* bytes of a token that is searched for in texts */
    TOK_MAX_TEXT = (1 << 30) - 1, /* bytes of a text */
    TOK_MAX_SPELT = 256,          /* bytes of a replacement, and of a unigram vocabulary's token */
    TOK_MAX_CHARSMAP = 1 << 22,   /* bytes of a table of them */
    TOK_MAX_STAGES = 6,
    TOK_MAX_NAMES = 20, /* of a rule, the last NULL */
};

/* One token: where its spelling and the bytes it stands for lie in tok.bytes. */
struct tok_entry {
    uint32_t text;
    uint32_t piece;
    uint16_t text_len;
    uint16_t piece_len; /* 0 for control tokens */
    uint8_t kind;       /* enum tok_kind */
    bool end : 1;       /* ends a generation */
    bool merges : 1;    /* reachable from plain bytes; in by_piece */
    bool spaced : 1;    /* SentencePiece: its spelling has U+2581 */
    bool guarded : 1;   /* user-defined, but found only where control tokens are */
};

/* Open addressing over ids; the keys are the entries' spellings or pieces. */
struct tok_map {
    int32_t *slot; /* (mask + 1) -1: free */
    uint32_t mask;
    bool by_piece;
    struct siphash_key key;
};

struct tok_pair {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank;
    int32_t id; /* of the two together */
};

/* Pre-tokenizer: each stage's matches, and what lies between them, are cut again by the next. */
struct tok_pre_rule {
    const char *names[TOK_MAX_NAMES];
    const char *stage[TOK_MAX_STAGES];
    unsigned flags;
};
enum {
    TOK_PRE_IGNORE_MERGES = 1 << 0, /* a word that is a token is that token */
    TOK_PRE_ADD_BOS = 1 << 1,       /* what the file's silence means */
};
/* How a stage begins that cuts digits in threes from the right: tok_pre.c, cut_threes(). */
#define TOK_PRE_THREES "3:"
#define TOK_PRE_BEFORE_THREES "3<"
enum { TOK_THREES_ALONE = 1, TOK_THREES_BEFORE };

struct tok_pre {
    const char *name; /* as the table spells it */
    int n_stages;
    pcre2_code *stage[TOK_MAX_STAGES];
    uint8_t threes[TOK_MAX_STAGES]; /* 0, TOK_THREES_... */
    unsigned flags;
    pcre2_match_context *context;
};

/* What replaces what: tok_charsmap.c. All zero: nothing. */
struct tok_charsmap {
    uint8_t *bytes; /* as the file has them */
    size_t n_nodes;
    const char *text; /* (n_text) */
    size_t n_text;
    size_t most; /* bytes that one of a text may become */
};

struct tok {
    int32_t n_vocab;
    int32_t bos;
    int32_t eos;
    uint16_t max_len; /* of any spelling or piece */
    bool spm;         /* spelt as SentencePiece spells: U+2581, <0x0A> */
    bool ranks;       /* merged by ranks, else by scores */
    bool unigram;     /* or not merged, but the likeliest of all cuts */
    bool spells;      /* unigram: has a token for each byte */
    bool merge_spaces; /* unigram: a run of them is one, that at an end none */
    bool bare;        /* ids alone: of what follows only n_vocab and byte_id (all -1) count */
    bool add_bos;
    bool space_prefix;  /* SentencePiece */
    bool ignore_merges; /* BPE: a word that is a token is that token */
    char *bytes;
    struct tok_entry *entries; /* (n_vocab) */
    struct tok_map by_text;    /* all tokens with a spelling */
    struct tok_map by_piece;   /* those that plain bytes can become */
    int32_t byte_id[256];      /* -1: the vocabulary cannot spell it */
    /* (n_vocab) SentencePiece: 0 is the best score, equal scores share one */
    uint32_t *rank;
    float *score;    /* (n_vocab) unigram, as the next ones */
    int32_t *sorted; /* (n_sorted) ids by their pieces' bytes */
    int32_t n_sorted;
    int32_t unknown; /* -1: none */
    double unknown_score;
    struct tok_charsmap charsmap;
    struct tok_pair *pairs; /* (pair_mask + 1) BPE */
    uint32_t pair_mask;
    struct tok_pre pre;
    /* Special tokens: their distinct lengths, falling; which first bytes each length has. */
    int n_lengths;
    uint16_t length[TOK_MAX_SPECIAL];
    uint8_t first[TOK_MAX_SPECIAL][32];
    bool has_user[TOK_MAX_SPECIAL]; /* some of this length are user-defined */
};

static inline const char *tok_text_of(const struct tok *t, int32_t id)
{
    return t->bytes + t->entries[id].text;
}

static inline const char *tok_piece_of(const struct tok *t, int32_t id)
{
    return t->bytes + t->entries[id].piece;
}

/* tok.c: does the file say that it has no tokenizer? */
bool tok_is_bare(const struct gguf *g);

/* tok_map.c */
int tok_map_init(struct tok_map *m, int32_t n, bool by_piece) WARN_UNUSED;
void tok_map_finish(struct tok_map *m);
/* or -1 */
int32_t tok_map_find(const struct tok_map *m, const struct tok *t, const char *key, size_t len);
/* Returns `id`, or the id that already has this key. There is room: n of init. */
int32_t tok_map_add(struct tok_map *m, const struct tok *t, int32_t id);

/* tok_vocab.c */
/* Bytes of a byte-level spelling into `out` (len bytes); -1: a character outside the alphabet. */
int tok_bpe_bytes(const char *text, size_t len, char *out) WARN_UNUSED;
/* The same for a SentencePiece spelling, of which U+2581 is a space; *ret_spaced: it has one. */
size_t tok_spm_bytes(const char *text, size_t len, char *out, bool *ret_spaced);
int tok_vocab_load(struct tok *t, const struct gguf *g, struct error *reterr) WARN_UNUSED;

/* tok_keys.c */
int tok_keys_load(struct tok *t, const struct gguf *g, struct error *reterr) WARN_UNUSED;
bool tok_keys_is_marker(const char *text, size_t len);  /* is it spelt like a turn marker? */
bool tok_keys_is_guarded(const char *text, size_t len); /* or "<|x>", "<x|>", "<tool_call>"? */

/* tok_special.c: the text's spans in order; id -1 is plain text between special tokens. Control
 * tokens are found with `control`; given parts (NULL: none), only inside neighbouring trusted ones.
 */
struct tok_span {
    uint32_t off;
    uint32_t len;
    int32_t id;
};
int tok_special_index(struct tok *t, struct error *reterr) WARN_UNUSED;
int tok_special_split(const struct tok *t, const char *text, uint32_t len, bool control,
                      const struct tok_part *parts, size_t n_parts, struct tok_span **ret,
                      size_t *ret_n) WARN_UNUSED;

/* tok_patterns.c: the rule of a name; NULL without one. *ret_name is the name in the table. */
const struct tok_pre_rule *tok_pre_rule_find(const char *name, size_t len, const char **ret_name);

/* tok_pre.c */
int tok_pre_init(struct tok_pre *p, const char *name, size_t len, struct error *reterr) WARN_UNUSED;
void tok_pre_finish(struct tok_pre *p);
typedef int tok_pre_word(void *arg, const char *word, uint32_t len);
/* Calls `word` for each word in order; together they are the text. Stops at its first error.
 * -ELOOP: PCRE2's limits. */
int tok_pre_split(const struct tok_pre *p, pcre2_match_data *scratch, const char *text,
                  uint32_t len, tok_pre_word *word, void *arg) WARN_UNUSED;

/* tok_merge.c */
struct tok_symbol {
    uint32_t off;
    uint32_t len; /* 0: merged into the one before */
    int32_t prev; /* -1: none */
    int32_t next; /* -1: none */
    int32_t id;   /* -1: no token (yet) */
};
struct tok_merge_item {
    uint64_t order; /* rank << 32 | left symbol: the smallest is merged first */
    uint32_t right;
    uint32_t len;
    int32_t id;
};
struct tok_merge {
    struct tok_symbol *symbols;
    size_t n_symbols;
    size_t cap_symbols;
    struct tok_merge_item *heap;
    size_t n_heap;
    size_t cap_heap;
};
/* May the neighbours l and r of `text` become one token? */
typedef bool tok_merge_pair(const struct tok *t, const char *text, const struct tok_symbol *l,
                            const struct tok_symbol *r, uint32_t *ret_rank, int32_t *ret_id);
void tok_merge_finish(struct tok_merge *m);
int tok_merge_add(struct tok_merge *m, uint32_t off, uint32_t len, int32_t id) WARN_UNUSED;
int tok_merge_run(struct tok_merge *m, const struct tok *t, const char *text,
                  tok_merge_pair *pair) WARN_UNUSED;

/* Where ids go: counted all, written up to the capacity. */
struct tok_sink {
    int32_t *ids;
    size_t cap;
    size_t n;
    size_t normal_left; /* bytes that the text's normal form (unigram) may still grow by */
};
/* Of a text of len bytes: tables that make more of it would take memory that is in no plan. */
static inline size_t tok_normal_most(size_t len)
{
    return 3 * len + 64;
}
static inline void tok_sink_put(struct tok_sink *s, int32_t id)
{
    if (s->n < s->cap) {
        s->ids[s->n] = id;
    }
    s->n++;
}

/* tok_bpe.c, tok_spm.c: plain text to ids. */
int tok_bpe_load(struct tok *t, const struct gguf *g, struct error *reterr) WARN_UNUSED;
int tok_bpe_encode(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                   struct tok_sink *sink) WARN_UNUSED;
int tok_spm_load(struct tok *t, const struct gguf *g, struct error *reterr) WARN_UNUSED;
/* Characters merged by `pair`; what is no token in the end is spelt as bytes. */
int tok_spm_merge(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                  tok_merge_pair *pair, struct tok_sink *sink) WARN_UNUSED;
int tok_spm_check_bytes(const struct tok *t, struct error *reterr) WARN_UNUSED; /* all there? */
int tok_spm_encode(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                   bool space_before, struct tok_sink *sink) WARN_UNUSED;

/* tok_unigram.c */
int tok_unigram_load(struct tok *t, const struct gguf *g, struct error *reterr) WARN_UNUSED;
int tok_unigram_encode(const struct tok *t, const char *text, uint32_t len, bool space_before,
                       struct tok_sink *sink) WARN_UNUSED;

/* tok_charsmap.c */
int tok_charsmap_load(struct tok_charsmap *m, const struct gguf *g,
                      struct error *reterr) WARN_UNUSED;
void tok_charsmap_finish(struct tok_charsmap *m);
/* Bytes of the longest entry that the text begins with, and what replaces it; 0: none. */
size_t tok_charsmap_find(const struct tok_charsmap *m, const char *text, size_t len,
                         const char **ret, size_t *ret_len);
static inline uint32_t tok_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#endif
