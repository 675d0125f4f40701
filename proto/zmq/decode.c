/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding a Request in three passes: the wire (nothing expensive or ambiguous), protobuf-c into a
 * capped arena, then the table of limits and the rules that span fields. Text is only measured
 * here; whether it is UTF-8 and what it says is for the engine alone. */

#include "proto/zmq/decode.h"

#include <errno.h>
#include <string.h>

#include "proto/zmq/ranges.h"
#include "proto/zmq/wire.h"

static int check_source(const char *name, bool has_prompt, size_t n_tokens, struct fault *reterr)
{
    struct fault_path path = {.name = name, .index = -1};

    if (has_prompt == (n_tokens > 0)) {
        return fault_set(reterr, &path, LANE_E_INVALID, -EINVAL,
                         "needs exactly one of prompt and tokens");
    }
    return 0;
}

/* Rules that concern more than one field. */
static int check_whole(const Pipit__Request *r, struct fault *reterr)
{
    static const uint8_t zero[16];
    struct fault_path id = {.name = "id", .index = -1};

    if (memcmp(r->id.data, zero, sizeof(zero)) == 0) {
        return fault_set(reterr, &id, LANE_E_INVALID, -EINVAL, "all 16 bytes are zero");
    }
    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        return check_source("generate", r->generate->has_prompt, r->generate->n_tokens, reterr);
    case PIPIT__REQUEST__BODY_SCORE:
        return check_source("score", r->score->has_prompt, r->score->n_tokens, reterr);
    case PIPIT__REQUEST__BODY__NOT_SET:
        return fault_set(reterr, NULL, LANE_E_INVALID, -EINVAL,
                         "a Request without a body this version knows");
    default:
        return 0;
    }
}

int decode_request(const uint8_t *data, size_t len, size_t max_len, struct arena *a,
                   const Pipit__Request **ret, struct fault *reterr)
{
    Pipit__Request *r;
    int rc;

    arena_clear(a);
    if (len > max_len) {
        (void)fault_set(reterr, NULL, LANE_E_TOO_LARGE, -E2BIG,
                        "the message has %zu bytes, allowed are %zu", len, max_len);
        reterr->asked = len;
        reterr->allowed = max_len;
        return -E2BIG;
    }
    rc = wire_scan(&pipit__request__descriptor, data, len, reterr);
    if (rc) {
        return rc;
    }
    r = pipit__request__unpack(&a->hook, len, data);
    if (!r && a->exhausted) {
        return fault_set(reterr, NULL, LANE_E_TOO_LARGE, -ENOMEM,
                         "the message takes more than %zu bytes decoded (numbers not packed?)",
                         a->size);
    }
    if (!r) {
        return fault_set(reterr, NULL, LANE_E_INVALID, -EBADMSG, "not a well-formed Request");
    }
    rc = ranges_check(&r->base, NULL, reterr);
    if (rc == 0) {
        rc = check_whole(r, reterr);
    }
    if (rc) {
        return rc;
    }
    *ret = r;
    return 0;
}
