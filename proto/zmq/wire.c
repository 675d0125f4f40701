/* SPDX-License-Identifier: Apache-2.0 */
/* Scanning protobuf's wire format against a descriptor (wire.h). A field is a tag (number and wire
 * type as one varint) and a value: a varint, 4 or 8 bytes, or a length and that many bytes. Nothing
 * is decoded or kept but counts. All positions move forward by checked amounts; a length is
 * compared with what is left, never added to a pointer first. */

#include "proto/zmq/wire.h"

#include <errno.h>
#include <string.h>

#include "proto/zmq/ranges.h"
#include "proto/zmq/pipit.pb-c.h"

enum { TYPE_VARINT = 0, TYPE_64 = 1, TYPE_BYTES = 2, TYPE_32 = 5 };
enum { MAX_FIELDS = 32 }; /* of one message type; pipit.proto's largest is a Done with 28 */

struct cursor {
    const uint8_t *p;
    size_t left;
};

struct field {
    uint32_t number;
    uint32_t type;
    const uint8_t *data; /* of TYPE_BYTES */
    size_t len;
};

static bool read_varint(struct cursor *c, uint64_t *ret)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < 10 && i < c->left; i++) {
        v |= (uint64_t)(c->p[i] & 0x7f) << (7 * i);
        if (!(c->p[i] & 0x80)) {
            c->p += i + 1;
            c->left -= i + 1;
            *ret = v;
            return true;
        }
    }
    return false;
}

static bool skip(struct cursor *c, size_t n)
{
    if (n > c->left) {
        return false;
    }
    c->p += n;
    c->left -= n;
    return true;
}

static bool read_field(struct cursor *c, struct field *ret)
{
    uint64_t tag, v;

    if (!read_varint(c, &tag) || tag >> 32 || tag >> 3 == 0) {
        return false;
    }
    *ret = (struct field){.number = (uint32_t)(tag >> 3), .type = tag & 7};
    switch (ret->type) {
    case TYPE_VARINT:
        return read_varint(c, &v);
    case TYPE_64:
        return skip(c, 8);
    case TYPE_32:
        return skip(c, 4);
    case TYPE_BYTES:
        if (!read_varint(c, &v) || v > c->left) {
            return false;
        }
        ret->data = c->p;
        ret->len = (size_t)v;
        return skip(c, (size_t)v);
    default:
        return false; /* groups, which nobody uses, and what is no type */
    }
}

static uint32_t type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return TYPE_BYTES;
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return TYPE_32;
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return TYPE_64;
    default:
        return TYPE_VARINT;
    }
}

/* Values in a packed field, or -1 when its bytes are no whole number of them. */
static int64_t count_packed(const struct field *f, uint32_t type)
{
    int64_t n = 0;

    if (type != TYPE_VARINT) {
        size_t each = type == TYPE_32 ? 4 : 8;

        return f->len % each ? -1 : (int64_t)(f->len / each);
    }
    for (size_t i = 0; i < f->len; i++) {
        n += !(f->data[i] & 0x80);
    }
    return f->len && (f->data[f->len - 1] & 0x80) ? -1 : n;
}

static int scan(const ProtobufCMessageDescriptor *d, struct cursor c, const struct fault_path *up,
                unsigned *n_unknown, struct fault *reterr);

/* One value of a known field; `seen` counts the values so far of each field of this message. */
static int scan_known(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *fd,
                      const struct field *f, const struct fault_path *path, uint64_t *seen,
                      unsigned *n_unknown, struct fault *reterr)
{
    const struct ranges_row *row = ranges_find(d, fd->name);
    uint32_t type = type_of(fd->type);
    bool repeated = fd->label == PROTOBUF_C_LABEL_REPEATED;
    int64_t n = 1;

    if (repeated && f->type == TYPE_BYTES && type != TYPE_BYTES) {
        n = count_packed(f, type);
    } else if (f->type != type) {
        n = -1;
    }
    if (n < 0) {
        return fault_set(reterr, path, LANE_ERR_INVALID, -EBADMSG, "is malformed (wire type %u)",
                         f->type);
    }
    if (!repeated && *seen) {
        return fault_set(reterr, path, LANE_ERR_INVALID, -EBADMSG, "is there twice");
    }
    *seen += (uint64_t)n;
    if (row && row->max_count && *seen > row->max_count) {
        (void)fault_set(reterr, path, LANE_ERR_TOO_LARGE, -E2BIG, "more than %u values",
                        row->max_count);
        reterr->asked = *seen;
        reterr->allowed = row->max_count;
        return -E2BIG;
    }
    if (fd->type == PROTOBUF_C_TYPE_MESSAGE) {
        return scan(fd->descriptor, (struct cursor){f->data, f->len}, path, n_unknown, reterr);
    }
    if (fd->type == PROTOBUF_C_TYPE_BYTES && row &&
        (f->len < row->min_len || (row->max_len && f->len > row->max_len))) {
        (void)fault_set(reterr, path, LANE_ERR_INVALID, -EBADMSG,
                        "has %zu bytes, allowed are %u to %u", f->len, row->min_len, row->max_len);
        reterr->asked = f->len;
        reterr->allowed = row->max_len;
        return -EBADMSG;
    }
    return 0;
}

/* Is another member of the same oneof there already? */
static bool oneof_taken(const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *fd,
                        const uint64_t *seen)
{
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *other = &d->fields[i];

        if (other != fd && other->flags & PROTOBUF_C_FIELD_FLAG_ONEOF &&
            other->quantifier_offset == fd->quantifier_offset && seen[i]) {
            return true;
        }
    }
    return false;
}

static int scan(const ProtobufCMessageDescriptor *d, struct cursor c, const struct fault_path *up,
                unsigned *n_unknown, struct fault *reterr)
{
    uint64_t seen[MAX_FIELDS] = {0};

    while (c.left) {
        const ProtobufCFieldDescriptor *fd;
        struct fault_path path = {.up = up, .index = -1};
        struct field f;
        size_t i;
        int rc;

        if (!read_field(&c, &f)) {
            return fault_set(reterr, up, LANE_ERR_INVALID, -EBADMSG,
                             "not a well-formed %s: a field is cut or of no known kind", d->name);
        }
        fd = protobuf_c_message_descriptor_get_field(d, f.number);
        if (!fd) {
            if (++*n_unknown > WIRE_MAX_UNKNOWN) {
                return fault_set(reterr, up, LANE_ERR_INVALID, -EBADMSG,
                                 "more than %d unknown fields", WIRE_MAX_UNKNOWN);
            }
            continue;
        }
        i = (size_t)(fd - d->fields);
        path.name = fd->name;
        if (i >= MAX_FIELDS) {
            return fault_set(reterr, &path, LANE_ERR_INTERNAL, -EBADMSG, "field table too small");
        }
        if (fd->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && oneof_taken(d, fd, seen)) {
            return fault_set(reterr, &path, LANE_ERR_INVALID, -EBADMSG,
                             "a second body beside another one");
        }
        if (fd->label == PROTOBUF_C_LABEL_REPEATED) {
            path.index = (int64_t)seen[i];
        }
        rc = scan_known(d, fd, &f, &path, &seen[i], n_unknown, reterr);
        if (rc) {
            return rc;
        }
    }
    return 0;
}

int wire_scan(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
              struct fault *reterr)
{
    unsigned n_unknown = 0;

    return scan(d, (struct cursor){data, len}, NULL, &n_unknown, reterr);
}

bool wire_peek_id(const uint8_t *data, size_t len, uint8_t ret_id[16])
{
    struct cursor c = {data, len};
    struct field f;

    while (c.left && read_field(&c, &f)) {
        if (f.number == 1 && f.type == TYPE_BYTES && f.len == 16) {
            memcpy(ret_id, f.data, 16);
            return true;
        }
    }
    return false;
}
