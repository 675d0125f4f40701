/* SPDX-License-Identifier: Apache-2.0 */
/* Writing and reading type-length-value items (tlv.h). Pure; every offset is checked by subtraction
 * from what is left, so no length can wrap. The reader never writes: it runs over the journal's
 * copy of a request, which the engine maps read-only. */

#include "proto/lane/tlv.h"

#include <errno.h>
#include <string.h>

enum { TLV_HEADER_BYTES = 8, TLV_ALIGN = 8, TLV_SKIPPABLE = 0x8000 };

struct tlv_sampling tlv_sampling_default(void)
{
    return (struct tlv_sampling){
        .temperature = 0.7f,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1.0f,
        .penalty_last_n = 64,
    };
}

static size_t padding(size_t len)
{
    return (TLV_ALIGN - len % TLV_ALIGN) % TLV_ALIGN;
}

void tlv_put(struct tlv_writer *w, uint16_t type, const void *data, size_t len)
{
    size_t left = w->cap - w->used;
    uint16_t flags = 0;
    uint32_t len32 = (uint32_t)len;
    uint8_t *p = w->buf + w->used;

    if (w->overflow || len > UINT32_MAX - TLV_ALIGN || left < TLV_HEADER_BYTES ||
        left - TLV_HEADER_BYTES < len + padding(len)) {
        w->overflow = true;
        return;
    }
    memcpy(p, &type, 2);
    memcpy(p + 2, &flags, 2);
    memcpy(p + 4, &len32, 4);
    if (len) {
        memcpy(p + TLV_HEADER_BYTES, data, len);
    }
    memset(p + TLV_HEADER_BYTES + len, 0, padding(len));
    w->used += TLV_HEADER_BYTES + len + padding(len);
}

static int read_one(struct tlv_reader *r, struct tlv_item *ret, struct error *reterr)
{
    size_t left = r->size - r->pos;
    const uint8_t *p = r->buf + r->pos;
    uint16_t flags;
    size_t pad;

    if (left < TLV_HEADER_BYTES) {
        return error_set(reterr, -EBADMSG, "item header is cut at byte %zu of %zu", r->pos,
                         r->size);
    }
    memcpy(&ret->type, p, 2);
    memcpy(&flags, p + 2, 2);
    memcpy(&ret->len, p + 4, 4);
    left -= TLV_HEADER_BYTES;
    pad = padding(ret->len);
    if (flags) {
        return error_set(reterr, -EBADMSG, "item of type %u has unknown flags 0x%x", ret->type,
                         flags);
    }
    if (ret->len > left || pad > left - ret->len) {
        return error_set(reterr, -EBADMSG, "item of type %u says %u bytes, %zu are left", ret->type,
                         ret->len, left);
    }
    ret->data = p + TLV_HEADER_BYTES;
    for (size_t i = 0; i < pad; i++) {
        if (ret->data[ret->len + i]) {
            return error_set(reterr, -EBADMSG, "item of type %u is padded with other than zeros",
                             ret->type);
        }
    }
    r->pos += TLV_HEADER_BYTES + ret->len + pad;
    return 0;
}

int tlv_next(struct tlv_reader *r, struct tlv_item *ret, struct error *reterr)
{
    struct tlv_item item;

    while (r->pos < r->size) {
        int rc = read_one(r, &item, reterr);

        if (rc) {
            return rc;
        }
        if (item.type >= TLV_PROMPT && item.type <= TLV_CALL_ID) {
            *ret = item;
            return 1;
        }
        if (!(item.type & TLV_SKIPPABLE)) {
            return error_set(reterr, -EBADMSG, "item of unknown type %u", item.type);
        }
    }
    return 0;
}

void tlv_sampling_read(const struct tlv_item *item, struct tlv_sampling *ret)
{
    memset(ret, 0, sizeof(*ret));
    memcpy(ret, item->data, item->len < sizeof(*ret) ? item->len : sizeof(*ret));
}
