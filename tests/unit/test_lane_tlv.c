/* SPDX-License-Identifier: Apache-2.0 */
/* proto/lane/tlv.h: what is written reads back; what is cut, odd or unknown is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "proto/lane/tlv.h"

Test(lane_tlv, round_trip)
{
    _Alignas(8) uint8_t buf[256];
    struct tlv_writer w = {.buf = buf, .cap = sizeof(buf)};
    struct tlv_sampling s = tlv_sampling_default();
    struct tlv_sampling back;
    struct tlv_item item;

    s.seed = 42;
    s.flags = TLV_S_SEED;
    memset(buf, 0xee, sizeof(buf));
    tlv_put(&w, TLV_PROMPT, "hello", 5);
    tlv_put(&w, TLV_STOP, "", 0);
    tlv_put(&w, 0x8123, "later", 5);
    tlv_put(&w, TLV_SAMPLING, &s, sizeof(s));
    cr_assert(!w.overflow);
    cr_assert_eq(w.used, 16 + 8 + 16 + 64);
    struct tlv_reader r = {.buf = buf, .size = w.used};
    cr_assert_eq(tlv_next(&r, &item, NULL), 1);
    cr_assert(item.type == TLV_PROMPT && item.len == 5 && !memcmp(item.data, "hello", 5));
    cr_assert_eq(tlv_next(&r, &item, NULL), 1);
    cr_assert(item.type == TLV_STOP && item.len == 0);
    cr_assert_eq(tlv_next(&r, &item, NULL), 1);
    cr_assert(item.type == TLV_SAMPLING && item.len == sizeof(s));
    tlv_sampling_read(&item, &back);
    cr_assert_eq(memcmp(&back, &s, sizeof(s)), 0);
    cr_assert_eq(tlv_next(&r, &item, NULL), 0);
    item.len = 4;
    tlv_sampling_read(&item, &back);
    cr_assert(back.temperature == s.temperature && back.top_p == 0.0f && back.seed == 0);
}

Test(lane_tlv, what_does_not_fit_is_not_written)
{
    uint8_t buf[32];
    struct tlv_writer w = {.buf = buf, .cap = 31};

    memset(buf, 0xee, sizeof(buf));
    tlv_put(&w, TLV_PROMPT, "12345678", 8);
    cr_assert(!w.overflow && w.used == 16);
    tlv_put(&w, TLV_PROMPT, "12345678", 8);
    cr_assert(w.overflow && w.used == 16);
    tlv_put(&w, TLV_PROMPT, "", 0);
    cr_assert(w.overflow && w.used == 16);
    cr_assert_eq(buf[16], 0xee);
    w = (struct tlv_writer){.buf = buf, .cap = sizeof(buf)};
    tlv_put(&w, TLV_PROMPT, buf, SIZE_MAX);
    cr_assert(w.overflow && w.used == 0);
}

static int first(const uint8_t *buf, size_t size)
{
    struct tlv_reader r = {.buf = buf, .size = size};
    struct tlv_item item;

    return tlv_next(&r, &item, NULL);
}

Test(lane_tlv, broken_items_are_refused)
{
    uint8_t ok[16] = {TLV_PROMPT, 0, 0, 0, 3, 0, 0, 0, 'a', 'b', 'c'};
    uint8_t bad[16];

    cr_assert_eq(first(ok, 16), 1);
    for (size_t n = 1; n < 16; n++) {
        cr_assert_eq(first(ok, n), -EBADMSG, "cut at %zu", n);
    }
    cr_assert_eq(first(ok, 0), 0);
    memcpy(bad, ok, 16);
    bad[2] = 1;
    cr_assert_eq(first(bad, 16), -EBADMSG, "flags");
    memcpy(bad, ok, 16);
    bad[12] = 1;
    cr_assert_eq(first(bad, 16), -EBADMSG, "padding");
    memcpy(bad, ok, 16);
    bad[0] = 77;
    cr_assert_eq(first(bad, 16), -EBADMSG, "unknown type");
    bad[1] = 0x80;
    cr_assert_eq(first(bad, 16), 0, "skippable");
    memcpy(bad, ok, 16);
    memset(bad + 4, 0xff, 4);
    cr_assert_eq(first(bad, 16), -EBADMSG, "length");
    bad[4] = 0xf9;
    cr_assert_eq(first(bad, 16), -EBADMSG, "length whose padding wraps");
}
