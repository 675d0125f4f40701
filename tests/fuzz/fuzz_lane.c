/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what a lane's peer can send: the first byte says who it is, then 256 bytes are a record
 * (fewer are a short one, or, with bit 2, one whose rest is zeros), and what follows is the TLVs of
 * a request. Checks the promises of record.h and tlv.h, not only that nothing crashes; items are
 * written again, into room that may not do, and then read the same. Seeds: make_seeds_lane.py. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/lane/record.h"
#include "proto/lane/tlv.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_record(const uint8_t *data, size_t size, enum lane_peer from)
{
    struct lane_record r = {0};
    struct lane_record again;
    struct error e = {0};

    memcpy(&r, data, size < sizeof(r) ? size : sizeof(r));
    if (lane_record_check(&r, size < sizeof(r) ? size : sizeof(r), from, &e)) {
        require(e.code == -EBADMSG && e.text[0]);
        return;
    }
    require(size >= sizeof(r) && lane_record_size(r.h.type) >= sizeof(r.h));
    for (size_t i = r.h.size; i < sizeof(r); i++) {
        require(((const uint8_t *)&r)[i] == 0);
    }
    again = r;
    require(lane_record_check(&again, sizeof(again), from, NULL) == 0);
    require(memcmp(&again, &r, sizeof(r)) == 0);
    if (r.h.type == LANE_TOKEN) {
        require(r.token.text_len <= sizeof(r.token.text));
    }
    lane_record_init(&again, r.h.type, r.h.id);
    require(again.h.size == lane_record_size(r.h.type) && !memcmp(again.h.id, r.h.id, 16));
    (void)lane_reason_name(r.done.reason);
    (void)lane_error_name(r.error.code);
    (void)lane_state_name(r.status.state);
}

/* What was read, written into exactly its room, or into less. */
static void try_writing(const uint8_t *data, size_t size, size_t room)
{
    uint8_t *copy = malloc(room + 1);
    struct tlv_writer w = {.buf = copy, .cap = room};
    struct tlv_reader from = {.buf = data, .size = size};
    struct tlv_reader back = {.buf = copy};
    struct tlv_item a;
    struct tlv_item b;

    require(copy != NULL);
    while (tlv_next(&from, &a, NULL) == 1) {
        tlv_put(&w, a.type, a.data, a.len);
    }
    require(w.used <= room && (w.overflow || w.used <= size));
    back.size = w.used;
    from.pos = 0;
    while (tlv_next(&back, &b, NULL) == 1) {
        require(tlv_next(&from, &a, NULL) == 1 && a.type == b.type && a.len == b.len);
        require(memcmp(a.data, b.data, a.len) == 0);
    }
    require(back.pos == w.used);
    free(copy);
}

static void try_tlv(const uint8_t *data, size_t size)
{
    /* A copy of the exact size, so that the sanitizer sees a read beyond it. */
    uint8_t *copy = malloc(size ? size : 1);
    struct tlv_reader r = {.buf = copy, .size = size};
    struct tlv_item item;
    struct tlv_sampling s = tlv_sampling_default();
    unsigned sum = (unsigned)s.top_k;

    if (!copy) {
        return;
    }
    memcpy(copy, data, size);
    while (tlv_next(&r, &item, NULL) == 1) {
        require(item.data >= copy && item.len <= size &&
                (size_t)(item.data - copy) <= size - item.len);
        for (uint32_t i = 0; i < item.len; i++) {
            sum += item.data[i];
        }
        if (item.type == TLV_SAMPLING) {
            tlv_sampling_read(&item, &s);
            sum += (unsigned)s.top_k;
        }
    }
    require(r.pos <= size);
    *(volatile unsigned *)&sum = sum;
    try_writing(copy, size, size);
    try_writing(copy, size, size / 2);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t whole[1 + sizeof(struct lane_record)];

    if (size == 0) {
        return 0;
    }
    if (data[0] & 4 && size < sizeof(whole)) {
        memset(whole, 0, sizeof(whole));
        memcpy(whole, data, size);
        data = whole;
        size = sizeof(whole);
    }
    try_record(data + 1, size - 1, (enum lane_peer)(data[0] & 3));
    if (size > 1 + sizeof(struct lane_record)) {
        try_tlv(data + 1 + sizeof(struct lane_record), size - 1 - sizeof(struct lane_record));
    }
    return 0;
}
