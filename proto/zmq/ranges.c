/* SPDX-License-Identifier: Apache-2.0 */
/* The table of limits and its one checker, which walks protobuf-c's descriptors: a field that gets
 * into pipit.proto without a row here is found by a unit test, not by an attacker. Numbers are
 * compared as doubles, exact for everything but the outermost 64-bit values, which are allowed
 * anyway. Lengths and counts of what is on the wire are checked before decoding (wire.c); here
 * again only what can be wrong by absence. */

#include "proto/zmq/ranges.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/zmq/pipit.pb-c.h"

#define U64_MAX 18446744073709551615.0

/* clang-format off */
static const struct ranges_row rows[] = {
    {&pipit__request__descriptor, "id", .min_len = 16, .max_len = 16, .required = true},
    {&pipit__request__descriptor, "tenant", .max_len = 64},
    {&pipit__request__descriptor, "urgency", -100, 100},
    {&pipit__request__descriptor, "timeout_ms", 0, 86400000},

    {&pipit__generate__descriptor, "prompt"},
    {&pipit__generate__descriptor, "tokens", 0, INT32_MAX},
    {&pipit__generate__descriptor, "policy", .min_len = 1, .max_len = 1024},
    {&pipit__generate__descriptor, "session", .min_len = 1, .max_len = 64},

    {&pipit__lease__descriptor, "lane", 1, U64_MAX, .required = true},
    {&pipit__lease__descriptor, "buf", 1, UINT32_MAX, .required = true},
    {&pipit__lease__descriptor, "generation", 0, UINT32_MAX, .required = true},
    {&pipit__lease__descriptor, "bytes", 4, 1099511627776.0},

    {&pipit__chat__descriptor, "messages", .max_count = 1024, .required = true},
    {&pipit__chat__descriptor, "policy", .min_len = 1, .max_len = 1024},
    {&pipit__chat__descriptor, "session", .min_len = 1, .max_len = 64},
    {&pipit__chat__descriptor, "tools", .min_len = 2},
    {&pipit__message__descriptor, "role", 1, 4, .required = true},
    {&pipit__message__descriptor, "content", .required = true},
    {&pipit__message__descriptor, "reasoning"},
    {&pipit__message__descriptor, "calls", .max_count = 64},
    {&pipit__message__descriptor, "name", .max_len = 128},
    {&pipit__message__descriptor, "call_id", .max_len = 64},
    {&pipit__tool_call__descriptor, "id", .max_len = 64},
    {&pipit__tool_call__descriptor, "name", .min_len = 1, .max_len = 128, .required = true},
    {&pipit__tool_call__descriptor, "arguments"},

    {&pipit__sampling__descriptor, "temperature", 0, 100},
    {&pipit__sampling__descriptor, "top_k", 0, 1000000},
    {&pipit__sampling__descriptor, "top_p", 0, 1},
    {&pipit__sampling__descriptor, "min_p", 0, 1},
    {&pipit__sampling__descriptor, "repeat_penalty", 0.01, 100},
    {&pipit__sampling__descriptor, "presence_penalty", -100, 100},
    {&pipit__sampling__descriptor, "frequency_penalty", -100, 100},
    {&pipit__sampling__descriptor, "penalty_last_n", 0, 1024},
    {&pipit__sampling__descriptor, "seed", 0, U64_MAX},
    {&pipit__sampling__descriptor, "max_tokens", 0, 16777216},
    {&pipit__sampling__descriptor, "logprobs", 0, 20},
    {&pipit__sampling__descriptor, "stop", .min_len = 1, .max_len = 256, .max_count = 16},

    {&pipit__tokenize__descriptor, "text", .required = true},
    {&pipit__detokenize__descriptor, "tokens", 0, INT32_MAX},

    {&pipit__score__descriptor, "prompt"},
    {&pipit__score__descriptor, "tokens", 0, INT32_MAX},
    {&pipit__score__descriptor, "first", 0, 16777216},
    {&pipit__score__descriptor, "policy", .min_len = 1, .max_len = 1024},

    {&pipit__embed__descriptor, "prompt"},
    {&pipit__embed__descriptor, "tokens", 0, INT32_MAX},
    {&pipit__embed__descriptor, "pooling", 0, 2},
    {&pipit__embed__descriptor, "policy", .min_len = 1, .max_len = 1024},
    {&pipit__embed__descriptor, "output", .required = true},

    {&pipit__session_list__descriptor, "after", .max_len = 64},
    {&pipit__session_remove__descriptor, "name", .min_len = 1, .max_len = 64, .required = true},

    {&pipit__credit__descriptor, "n_rows", 1, U64_MAX, .required = true},
    {&pipit__resume__descriptor, "next_seq", 1, U64_MAX, .required = true},
};
/* clang-format on */

const struct ranges_row *ranges_table(size_t *ret_n)
{
    *ret_n = sizeof(rows) / sizeof(rows[0]);
    return rows;
}

const struct ranges_row *ranges_find(const ProtobufCMessageDescriptor *message, const char *field)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].message == message && strcmp(rows[i].field, field) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

/* How many values of a field are there: 0 or 1, or a repeated field's count. */
static size_t count_of(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    const uint8_t *base = (const uint8_t *)m;
    const void *quantifier = base + f->quantifier_offset;

    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        return *(const size_t *)quantifier;
    }
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        return *(const uint32_t *)quantifier == f->id;
    }
    if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
        return *(const void *const *)(base + f->offset) != NULL;
    }
    return *(const protobuf_c_boolean *)quantifier != 0;
}

static const void *value_of(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, size_t i)
{
    const uint8_t *base = (const uint8_t *)m;
    const uint8_t *p = base + f->offset;

    if (f->label != PROTOBUF_C_LABEL_REPEATED) {
        return p;
    }
    p = *(const uint8_t *const *)p;
    switch (f->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        return p + i * sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return p + i * sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
        return p + i * sizeof(uint64_t);
    default:
        return p + i * sizeof(uint32_t);
    }
}

/* The number at `p`; *ret_number is false for what is none (bool, bytes, message). */
static double number_at(const void *p, ProtobufCType type, bool *ret_number)
{
    *ret_number = true;
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM:
        return *(const int32_t *)p;
    case PROTOBUF_C_TYPE_UINT32:
        return *(const uint32_t *)p;
    case PROTOBUF_C_TYPE_INT64:
        return (double)*(const int64_t *)p;
    case PROTOBUF_C_TYPE_UINT64:
        return (double)*(const uint64_t *)p;
    case PROTOBUF_C_TYPE_FLOAT:
        return (double)*(const float *)p;
    default:
        *ret_number = false;
        return 0;
    }
}

static int check_number(double v, const struct ranges_row *row, const struct fault_path *path,
                        struct fault *reterr)
{
    /* A float's 0.01 is a little less than the table's. */
    if (v >= (double)(float)row->min && v <= (double)(float)row->max) { /* false for NaN */
        return 0;
    }
    return fault_set(reterr, path, LANE_ERR_INVALID, -EINVAL, "%.9g is outside %.9g to %.9g", v,
                     row->min, row->max);
}

static int check_field(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f,
                       const struct fault_path *up, struct fault *reterr)
{
    const struct ranges_row *row = ranges_find(m->descriptor, f->name);
    struct fault_path path = {.up = up, .name = f->name, .index = -1};
    size_t n = count_of(m, f);
    int rc = 0;

    if (n == 0 && row && row->required) {
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL, "is missing");
    }
    for (size_t i = 0; i < n && rc == 0; i++) {
        const void *p = value_of(m, f, i);
        bool is_number;
        double v = number_at(p, f->type, &is_number);

        path.index = f->label == PROTOBUF_C_LABEL_REPEATED ? (int64_t)i : -1;
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            rc = ranges_check(*(const ProtobufCMessage *const *)p, &path, reterr);
        } else if (is_number && row) {
            rc = check_number(v, row, &path, reterr);
        }
    }
    return rc;
}

int ranges_check(const ProtobufCMessage *m, const struct fault_path *path, struct fault *reterr)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        int rc = check_field(m, &m->descriptor->fields[i], path, reterr);

        if (rc) {
            return rc;
        }
    }
    return 0;
}
