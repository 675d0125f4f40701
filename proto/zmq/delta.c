/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format of protocol buffers for pipit.proto's Event with a Delta: a key is the field's
 * number and its wire type, numbers are varints of 7 bits a byte (negative ones of 64 bits), fields
 * in the order of their numbers. */

#include "proto/zmq/delta.h"

#include <string.h>

#include "base/hot.h"

enum { VARINT = 0, BYTES = 2, FIXED32 = 5 };
enum { EVENT_ID = 1, EVENT_SEQ = 2, EVENT_DELTA = 18 };
enum {
    DELTA_INDEX = 1,
    DELTA_TOKEN = 2,
    DELTA_TEXT = 3,
    DELTA_LOGPROB = 4,
    DELTA_PART = 6,
    DELTA_CALL = 7
};

static uint8_t *put_varint(uint8_t *p, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) {
        *p++ = (uint8_t)(v | 0x80);
    }
    *p++ = (uint8_t)v;
    return p;
}

static uint8_t *put_key(uint8_t *p, uint32_t field, uint32_t type)
{
    return put_varint(p, field << 3 | type);
}

static uint8_t *put_int(uint8_t *p, uint32_t field, int32_t v)
{
    return put_varint(put_key(p, field, VARINT), (uint64_t)(int64_t)v);
}

static uint8_t *put_bytes(uint8_t *p, uint32_t field, const void *data, size_t len)
{
    p = put_varint(put_key(p, field, BYTES), len);
    memcpy(p, data, len);
    return p + len;
}

HOT size_t delta_pack(const struct lane_record *r, const uint8_t id[16], bool logprob,
                      uint8_t ret[DELTA_MAX])
{
    const struct lane_token *t = &r->token;
    uint32_t part = lane_part(&r->h);
    uint8_t body[DELTA_MAX];
    uint8_t *b = put_int(body, DELTA_INDEX, t->index);
    uint8_t *p = ret;

    if (r->h.type == LANE_TOKEN) {
        b = put_int(b, DELTA_TOKEN, t->token);
    }
    if (t->text_len > 0) {
        b = put_bytes(b, DELTA_TEXT, t->text, t->text_len);
    }
    if (r->h.type == LANE_TOKEN && logprob) {
        uint32_t bits;

        memcpy(&bits, &t->logprob, sizeof(bits));
        b = put_key(b, DELTA_LOGPROB, FIXED32);
        for (int i = 0; i < 4; i++) {
            *b++ = (uint8_t)(bits >> 8 * i);
        }
    }
    if (part != LANE_PART_TEXT) {
        b = put_int(b, DELTA_PART, (int32_t)part);
    }
    if (part >= LANE_PART_NAME) {
        b = put_int(b, DELTA_CALL, t->n_alts);
    }
    p = put_bytes(p, EVENT_ID, id, 16);
    p = put_varint(put_key(p, EVENT_SEQ, VARINT), r->h.seq);
    p = put_bytes(p, EVENT_DELTA, body, (size_t)(b - body));
    return (size_t)(p - ret);
}
