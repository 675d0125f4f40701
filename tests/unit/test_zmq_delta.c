/* SPDX-License-Identifier: Apache-2.0 */
/* proto/zmq/delta.c against protobuf-c: the same bytes for tokens and texts of all sizes, and for
 * numbers of every length of a varint. */

#include <criterion/criterion.h>
#include <string.h>

#include "proto/zmq/delta.h"
#include "proto/zmq/pipit.pb-c.h"

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

static size_t by_library(const struct lane_record *r, uint8_t id[16], bool logprob, uint8_t *ret)
{
    Pipit__Event e = PIPIT__EVENT__INIT;
    Pipit__Delta d = PIPIT__DELTA__INIT;
    uint8_t text[sizeof(r->token.text)];

    memcpy(text, r->token.text, sizeof(text));
    e.has_id = e.has_seq = true;
    e.id = (ProtobufCBinaryData){16, id};
    e.seq = r->h.seq;
    e.body_case = PIPIT__EVENT__BODY_DELTA;
    e.delta = &d;
    d.has_index = true;
    d.index = r->token.index;
    d.has_token = r->h.type == LANE_TOKEN;
    d.token = r->token.token;
    d.has_text = r->token.text_len > 0;
    d.text = (ProtobufCBinaryData){r->token.text_len, text};
    d.has_logprob = d.has_token && logprob;
    d.logprob = r->token.logprob;
    cr_assert_leq(pipit__event__get_packed_size(&e), DELTA_MAX);
    return pipit__event__pack(&e, ret);
}

static void check(const struct lane_record *r, uint8_t id[16], bool logprob)
{
    uint8_t want[DELTA_MAX];
    uint8_t got[DELTA_MAX];
    size_t n = by_library(r, id, logprob, want);

    cr_assert_eq(delta_pack(r, id, logprob, got), n, "index %d token %d text %u", r->token.index,
                 r->token.token, r->token.text_len);
    cr_assert(memcmp(want, got, n) == 0, "index %d token %d text %u", r->token.index,
              r->token.token, r->token.text_len);
}

Test(zmq_delta, is_what_the_library_packs)
{
    static const int32_t numbers[] = {0,         1,       127,      128,       16383,
                                      16384,     2097151, 2097152,  268435455, 268435456,
                                      INT32_MAX, -1,      INT32_MIN};
    uint64_t g = 1;
    struct lane_record r;
    uint8_t id[16];

    for (int round = 0; round < 2000; round++) {
        lane_record_init(&r, round % 3 ? LANE_TOKEN : LANE_TEXT, NULL);
        for (size_t i = 0; i < sizeof(id); i++) {
            id[i] = (uint8_t)draw(&g);
        }
        for (size_t i = 0; i < sizeof(r.token.text); i++) {
            r.token.text[i] = (uint8_t)draw(&g);
        }
        r.h.seq = (((uint64_t)draw(&g) << 32) | draw(&g)) >> draw(&g) % 64;
        r.token.index = numbers[draw(&g) % (sizeof(numbers) / sizeof(numbers[0]))];
        r.token.token = numbers[draw(&g) % (sizeof(numbers) / sizeof(numbers[0]))];
        r.token.logprob = (float)draw(&g) / -1e8f;
        r.token.text_len = (uint16_t)(round % (int)(sizeof(r.token.text) + 1));
        check(&r, id, round & 1);
    }
    r.h.seq = UINT64_MAX;
    r.h.type = LANE_TOKEN;
    r.token.index = r.token.token = -1;
    r.token.text_len = sizeof(r.token.text);
    check(&r, id, true);
}
