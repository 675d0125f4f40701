/* SPDX-License-Identifier: Apache-2.0 */
/* proto/zmq: honest requests decode; what breaks a promise of pipit.proto is refused with the
 * field's name; no allocation failure leaks or crashes; every field of a Request has its row of
 * limits. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/zmq/decode.h"
#include "proto/zmq/ranges.h"
#include "proto/zmq/wire.h"

static struct arena arena;

static void setup(void)
{
    cr_assert_eq(arena_init(&arena, 1 << 20, NULL), 0);
}

static void teardown(void)
{
    arena_finish(&arena);
}

TestSuite(zmq_decode, .init = setup, .fini = teardown);

static ProtobufCBinaryData bin(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* A chat with everything in it, packed into `buf`. */
static size_t full_chat(uint8_t *buf, size_t cap)
{
    static uint8_t id[16] = "sixteen bytes id";
    Pipit__Request r = PIPIT__REQUEST__INIT;
    Pipit__Chat chat = PIPIT__CHAT__INIT;
    Pipit__Sampling s = PIPIT__SAMPLING__INIT;
    Pipit__Message m[3] = {PIPIT__MESSAGE__INIT, PIPIT__MESSAGE__INIT, PIPIT__MESSAGE__INIT};
    Pipit__Message *list[3] = {&m[0], &m[1], &m[2]};
    ProtobufCBinaryData stop[2] = {bin("one"), bin("two")};

    r.has_id = r.has_tenant = r.has_urgency = true;
    r.id = (ProtobufCBinaryData){16, id};
    r.tenant = bin("shop");
    r.urgency = -100;
    for (int i = 0; i < 3; i++) {
        m[i].has_role = m[i].has_content = true;
        m[i].role = (Pipit__Message__Role)(i + 1);
        m[i].content = bin("text");
    }
    chat.n_messages = 3;
    chat.messages = list;
    chat.sampling = &s;
    s.has_temperature = s.has_seed = true;
    s.temperature = 0.5f;
    s.seed = UINT64_MAX;
    s.n_stop = 2;
    s.stop = stop;
    r.body_case = PIPIT__REQUEST__BODY_CHAT;
    r.chat = &chat;
    cr_assert_leq(pipit__request__get_packed_size(&r), cap);
    return pipit__request__pack(&r, buf);
}

Test(zmq_decode, honest_request)
{
    uint8_t buf[512];
    size_t n = full_chat(buf, sizeof(buf));
    const Pipit__Request *r;
    struct fault f;

    cr_assert_eq(decode_request(buf, n, sizeof(buf), &arena, &r, &f), 0, "%s", f.text);
    cr_assert_eq(r->body_case, PIPIT__REQUEST__BODY_CHAT);
    cr_assert_eq(r->chat->n_messages, 3);
    cr_assert_eq(r->chat->messages[2]->role, PIPIT__MESSAGE__ROLE__ASSISTANT);
    cr_assert_eq(r->chat->sampling->seed, UINT64_MAX);
    cr_assert_eq(r->chat->sampling->n_stop, 2);
    cr_assert(memcmp(r->id.data, "sixteen bytes id", 16) == 0);
}

Test(zmq_decode, every_cut_is_refused_or_complete)
{
    uint8_t buf[512];
    size_t n = full_chat(buf, sizeof(buf));
    int n_ok = 0;

    for (size_t i = 0; i < n; i++) {
        const Pipit__Request *r;
        struct fault f = {0};
        int rc = decode_request(buf, i, sizeof(buf), &arena, &r, &f);

        n_ok += rc == 0;
        cr_assert(rc == 0 || (f.code == LANE_ERR_INVALID && f.text[0]));
    }
    cr_assert_eq(n_ok, 0); /* the body comes last: without all of it there is none */
}

Test(zmq_decode, every_allocation_may_fail)
{
    uint8_t buf[512];
    size_t n = full_chat(buf, sizeof(buf));
    const Pipit__Request *r = NULL;
    struct fault f;
    int rc = -1;
    int k;

    for (k = 0; k < 1000 && rc; k++) {
        arena.fail_at = k;
        rc = decode_request(buf, n, sizeof(buf), &arena, &r, &f);
        cr_assert(rc == 0 || (rc == -ENOMEM && f.code == LANE_ERR_TOO_LARGE), "%d at %d", rc, k);
    }
    arena.fail_at = -1;
    cr_assert_eq(rc, 0);
    cr_assert_gt(k, 5); /* it did fail a few times before */
}

Test(zmq_decode, cap_of_the_arena)
{
    uint8_t buf[512];
    size_t n = full_chat(buf, sizeof(buf));
    struct arena small;
    const Pipit__Request *r;
    struct fault f;

    cr_assert_eq(arena_init(&small, 256, NULL), 0);
    cr_assert_eq(decode_request(buf, n, sizeof(buf), &small, &r, &f), -ENOMEM);
    cr_assert_eq(f.code, LANE_ERR_TOO_LARGE);
    arena_finish(&small);
}

Test(zmq_decode, arena_is_zero_again)
{
    uint8_t *p;

    for (int round = 0; round < 2; round++) {
        size_t n = round ? 100 : 900000; /* over and under what is kept */

        p = arena.hook.alloc(arena.hook.allocator_data, 600000);
        cr_assert_not_null(p);
        memset(p, 0xff, 600000);
        p = arena.hook.alloc(arena.hook.allocator_data, n);
        cr_assert_eq(p == NULL, n == 900000);
        cr_assert_eq(arena.exhausted, n == 900000);
        arena_clear(&arena);
        cr_assert(!arena.exhausted);
        p = arena.hook.alloc(arena.hook.allocator_data, 600000);
        for (int i = 0; i < 600000; i++) {
            cr_assert_eq(p[i], 0);
        }
        arena_clear(&arena);
    }
    cr_assert_null(arena.hook.alloc(arena.hook.allocator_data, SIZE_MAX));
}

Test(zmq_decode, too_long)
{
    uint8_t buf[512];
    size_t n = full_chat(buf, sizeof(buf));
    const Pipit__Request *r;
    struct fault f;

    cr_assert_eq(decode_request(buf, n, n - 1, &arena, &r, &f), -E2BIG);
    cr_assert(f.code == LANE_ERR_TOO_LARGE && f.asked == n && f.allowed == n - 1);
}

/* Walks all messages that a Request can hold; calls `visit` for each field. */
static void walk(const ProtobufCMessageDescriptor *d,
                 void (*visit)(const ProtobufCMessageDescriptor *,
                               const ProtobufCFieldDescriptor *))
{
    for (unsigned i = 0; i < d->n_fields; i++) {
        visit(d, &d->fields[i]);
        if (d->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
            walk(d->fields[i].descriptor, visit);
        }
    }
}

static void has_row(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f)
{
    if (f->type != PROTOBUF_C_TYPE_BOOL && f->type != PROTOBUF_C_TYPE_MESSAGE) {
        const struct ranges_row *row = ranges_find(d, f->name);

        cr_assert_not_null(row, "%s.%s has no row", d->name, f->name);
        cr_assert(f->type == PROTOBUF_C_TYPE_BYTES || row->min < row->max, "%s.%s", d->name,
                  f->name);
    }
    cr_assert(f->type != PROTOBUF_C_TYPE_STRING, "%s.%s: text is bytes", d->name, f->name);
}

Test(zmq_decode, every_field_has_its_row)
{
    walk(&pipit__request__descriptor, has_row);
}

Test(zmq_decode, every_row_has_its_field)
{
    size_t n;
    const struct ranges_row *rows = ranges_table(&n);

    for (size_t i = 0; i < n; i++) {
        cr_assert_not_null(
            protobuf_c_message_descriptor_get_field_by_name(rows[i].message, rows[i].field),
            "%s.%s", rows[i].message->name, rows[i].field);
    }
}

Test(zmq_decode, numbers_at_and_over_their_limits)
{
    Pipit__Sampling s = PIPIT__SAMPLING__INIT;
    struct fault f;

    s.has_repeat_penalty = true;
    s.repeat_penalty = 0.01f;
    cr_assert_eq(ranges_check(&s.base, NULL, &f), 0);
    s.repeat_penalty = nextafterf(0.01f, 0);
    cr_assert_eq(ranges_check(&s.base, NULL, &f), -EINVAL);
    s.repeat_penalty = NAN;
    cr_assert_eq(ranges_check(&s.base, NULL, &f), -EINVAL);
    cr_assert_str_eq(f.field, "repeat_penalty");
    s.has_repeat_penalty = false; /* absent: not looked at */
    cr_assert_eq(ranges_check(&s.base, NULL, &f), 0);
    s.has_logprobs = true;
    s.logprobs = 21;
    cr_assert_eq(ranges_check(&s.base, NULL, &f), -EINVAL);
    cr_assert_str_eq(f.text, "logprobs: 21 is outside 0 to 20");
}

Test(zmq_decode, scan_of_small_messages)
{
    static const struct {
        const char *bytes;
        size_t n;
        int rc;
    } cases[] = {
        {"\x20\x01", 2, 0},                                      /* timeout_ms = 1 */
        {"\x20\x01\x20\x01", 4, -EBADMSG},                       /* twice */
        {"\x20", 1, -EBADMSG},                                   /* cut */
        {"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 0}, /* the longest varint */
        {"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, -EBADMSG},
        {"\x00\x01", 2, -EBADMSG}, /* field 0 */
        {"\x23", 1, -EBADMSG},     /* group */
        {"\x12\x05"
         "abc",
         5, -EBADMSG}, /* longer than what is left */
        {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, -EBADMSG},
        {"\xf8\x3f\x01", 3, 0},                                /* unknown field */
        {"\xfd\x3f\x01\x02\x03\x04", 6, 0},                    /* unknown, 32 bit */
        {"\xf9\x3f\x01\x02\x03\x04\x05\x06\x07", 9, -EBADMSG}, /* unknown, 64 bit, cut */
        {"\xb2\x01\x00", 3, 0},                                /* cancel {} */
        {"\xb2\x01\x00\xc2\x01\x00", 6, -EBADMSG},             /* cancel {} ping {} */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault f;

        cr_assert_eq(
            wire_scan(&pipit__request__descriptor, (const uint8_t *)cases[i].bytes, cases[i].n, &f),
            cases[i].rc, "case %zu", i);
    }
}

Test(zmq_decode, what_goes_with_a_lease)
{
    static uint8_t id[16] = "sixteen bytes id";
    static const struct {
        bool unary;
        bool input;
        bool output;
        bool logits;
        const char *field; /* refused; NULL: not */
    } cases[] = {
        {true, false, true, true, "unary"},    {true, true, true, true, "unary"},
        {true, false, true, false, NULL},      {true, true, true, false, NULL},
        {false, true, false, false, "output"}, {true, true, false, false, "output"},
        {false, true, true, true, NULL},       {false, false, true, false, NULL},
        {true, false, false, false, NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Pipit__Request r = PIPIT__REQUEST__INIT;
        Pipit__Score score = PIPIT__SCORE__INIT;
        Pipit__Lease lease = PIPIT__LEASE__INIT;
        const Pipit__Request *got;
        uint8_t buf[128];
        struct fault f = {0};

        lease.has_lane = lease.has_buf = lease.has_generation = lease.has_bytes = true;
        lease.lane = lease.buf = lease.generation = 5;
        lease.bytes = 4;
        score.has_prompt = !cases[i].input;
        score.prompt = bin("x");
        score.input = cases[i].input ? &lease : NULL;
        score.output = cases[i].output ? &lease : NULL;
        score.has_logits = true;
        score.logits = cases[i].logits;
        r.has_id = r.has_unary = true;
        r.id = (ProtobufCBinaryData){16, id};
        r.unary = cases[i].unary;
        r.body_case = PIPIT__REQUEST__BODY_SCORE;
        r.score = &score;
        size_t n = pipit__request__pack(&r, buf);
        int rc = decode_request(buf, n, sizeof(buf), &arena, &got, &f);

        cr_assert_eq(rc, cases[i].field ? -EINVAL : 0, "case %zu: %d, %s", i, rc, f.text);
        cr_assert_str_eq(f.field, cases[i].field ? cases[i].field : "", "case %zu", i);
    }
}

Test(zmq_decode, id_of_a_broken_message)
{
    uint8_t buf[512];
    uint8_t id[16];
    size_t n = full_chat(buf, sizeof(buf));

    cr_assert(wire_peek_id(buf, n, id));
    cr_assert(memcmp(id, "sixteen bytes id", 16) == 0);
    cr_assert(wire_peek_id(buf, 18, id));
    cr_assert(!wire_peek_id(buf, 17, id));
    cr_assert(!wire_peek_id(buf, 0, id));
}

Test(zmq_decode, long_paths_are_cut)
{
    struct fault_path p[40];
    struct fault f;

    for (int i = 0; i < 40; i++) {
        p[i] = (struct fault_path){.up = i ? &p[i - 1] : NULL, .name = "field", .index = i};
    }
    cr_assert_eq(fault_set(&f, &p[39], LANE_ERR_INVALID, -EINVAL, "%0200d", 7), -EINVAL);
    cr_assert_eq(strlen(f.field), sizeof(f.field) - 1);
    cr_assert_eq(strlen(f.text), sizeof(f.text) - 1);
}
