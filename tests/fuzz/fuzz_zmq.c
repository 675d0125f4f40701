/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what a ZeroMQ client can send: scan, decode, check, and writing the items of a request.
 * The first byte, if not 255, is the allocation that fails. Checks the promises of decode.h: a
 * refusal has a code and a text; an accepted message keeps every limit, packs again, and decodes
 * again. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/gateway/items.h"
#include "proto/lane/tlv.h"
#include "proto/zmq/decode.h"
#include "proto/zmq/ranges.h"
#include "proto/zmq/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_MESSAGE = 1 << 14 };

static void require(int ok)
{
    if (!ok) {
        abort();
    }
}

static void try_items(const Pipit__Request *r)
{
    _Alignas(8) static uint8_t buf[MAX_MESSAGE];
    struct tlv_item item;
    uint32_t n;

    if (!items_kind(r) || items_write(r, buf, sizeof(buf), &n)) {
        return;
    }
    struct tlv_reader reader = {.buf = buf, .size = n};

    while (tlv_next(&reader, &item, NULL) == 1) {
    }
    require(reader.pos == n);
}

static void try_again(const Pipit__Request *r, struct arena *second)
{
    size_t n = pipit__request__get_packed_size(r);
    uint8_t *packed = malloc(n + 1);
    const Pipit__Request *back;
    struct fault f;

    if (!packed) {
        return;
    }
    require(pipit__request__pack(r, packed) == n);
    /* Packed anew, unpacked numbers take less room and non-minimal varints are minimal. */
    require(n > MAX_MESSAGE || decode_request(packed, n, MAX_MESSAGE, second, &back, &f) == 0);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct arena arena, second;
    const Pipit__Request *r;
    struct fault f = {0};
    uint8_t id[16];
    int rc;

    if (!arena.base &&
        (arena_init(&arena, 8 * MAX_MESSAGE, NULL) || arena_init(&second, 8 * MAX_MESSAGE, NULL))) {
        return 0;
    }
    if (size == 0) {
        return 0;
    }
    arena.fail_at = data[0] == 255 ? -1 : data[0];
    rc = decode_request(data + 1, size - 1, MAX_MESSAGE, &arena, &r, &f);
    if (rc) {
        require(rc < 0 && f.code && f.text[0] && memchr(f.text, 0, sizeof(f.text)));
        require(memchr(f.field, 0, sizeof(f.field)) != NULL);
        (void)wire_peek_id(data + 1, size - 1, id);
        return 0;
    }
    require(wire_peek_id(data + 1, size - 1, id) && memcmp(id, r->id.data, 16) == 0);
    require(r->body_case != PIPIT__REQUEST__BODY__NOT_SET);
    try_items(r);
    try_again(r, &second);
    return 0;
}
