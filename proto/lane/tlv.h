/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_LANE_TLV_H
#define PIPIT_PROTO_LANE_TLV_H

/* A request's text and numbers, as type-length-value items in the lane's c2e arena: u16 type, u16
 * flags (0), u32 length, then `length` bytes, padded with zeros to a multiple of 8. Written by
 * clients and the gateway, copied once by the front (which does not look inside), read by the
 * engine. Unknown types with bit 15 set are skipped, others refused. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum tlv_type {
    TLV_PROMPT = 1,   /* UTF-8 text */
    TLV_TOKENS = 2,   /* i32 ids */
    TLV_SYSTEM = 3,   /* UTF-8 text of the system message */
    TLV_ROLE = 4,     /* "system", "user", "assistant", "tool"; behind it its TLV_CONTENT */
    TLV_CONTENT = 5,  /* UTF-8 text */
    TLV_POLICY = 6,   /* cache policy text */
    TLV_STOP = 7,     /* one stop string; repeats, at most 16 */
    TLV_SAMPLING = 8, /* struct tlv_sampling, zero-filled when shorter */
    TLV_SCHEMA = 9,
    TLV_SESSION = 10,
    TLV_TOOLS = 11, /* JSON list of definitions, as OpenAI's; the answer is then told in parts */
    /* Of the message before them: */
    TLV_REASONING = 12, /* an assistant's, UTF-8 text */
    TLV_CALL = 13,      /* an assistant's call begins: its id, which may be empty; then */
    TLV_NAME = 14,      /* the call's name; or the name of the tool whose message it is */
    TLV_ARGUMENTS = 15, /* the call's, a JSON object */
    TLV_CALL_ID = 16,   /* a tool's: which call it answers */
};

enum tlv_sampling_flag {
    TLV_S_SEED = 1 << 0, /* seed given; else the engine draws one */
    TLV_S_IGNORE_END = 1 << 1,
    TLV_S_GREEDY = 1 << 2, /* temperature 0 said on purpose */
    TLV_S_LOGITS = 1 << 3, /* SCORE: full logits too, behind the log-probabilities in the lease */
    TLV_S_POOL_LAST = 1 << 4, /* EMBED: of the last token, not the mean of all */
    TLV_S_POOL_NONE = 1 << 5, /* EMBED: a row for each token */
    TLV_S_NOT_UNIT = 1 << 6,  /* EMBED: rows as they are, not of length 1 */
    TLV_S_NO_DRAFT = 1 << 7,  /* no tokens are drafted; the answer is the same either way */
    TLV_S_PARTS = 1 << 8,     /* reasoning is told apart from text: enum lane_part */
};

/* What a client does not set has the value of tlv_sampling_default(), which is also what counts where
 * there is no such item, and what `pipit` and pipit.proto name. */
struct tlv_sampling { /* 56 bytes */
    float temperature;
    float top_p;
    float min_p;
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    int32_t top_k;
    int32_t penalty_last_n;
    int32_t max_tokens;  /* 0: to the end of the context */
    int32_t n_logprobs;  /* 0..20 alternatives; -1: not even the token's own */
    uint32_t flags;      /* enum tlv_sampling_flag */
    int32_t score_first; /* LANE_KIND_SCORE */
    uint64_t seed;
};
_Static_assert(sizeof(struct tlv_sampling) == 56, "wire");

struct tlv_sampling tlv_sampling_default(void);

/* Writing into a caller's buffer; `overflow` stays set once something did not fit. */
struct tlv_writer {
    uint8_t *buf;
    size_t cap;
    size_t used;
    bool overflow;
};
void tlv_put(struct tlv_writer *w, uint16_t type, const void *data, size_t len);

/* Reading: tlv_next gives each item in turn; 1 with an item, 0 at the end, -EBADMSG with the cause
 * (cut item, padding, unknown type). Items point into `buf`, which the reader owns alone. */
struct tlv_reader {
    const uint8_t *buf;
    size_t size;
    size_t pos;
};
struct tlv_item {
    uint16_t type;
    uint32_t len;
    const uint8_t *data; /* 8-aligned when buf is */
};
int tlv_next(struct tlv_reader *r, struct tlv_item *ret, struct error *reterr) WARN_UNUSED;

/* A TLV_SAMPLING item as a struct: a shorter item is filled with zeros, a longer one cut. */
void tlv_sampling_read(const struct tlv_item *item, struct tlv_sampling *ret);

#endif
