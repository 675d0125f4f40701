/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding a Request in three passes: the wire (nothing expensive or ambiguous), protobuf-c into a
 * capped arena, then the table of limits and the rules that span fields. Text is only measured
 * here; whether it is UTF-8 and what it says is for the engine alone. */

#include "proto/zmq/decode.h"

#include <errno.h>
#include <string.h>

#include "proto/zmq/ranges.h"
#include "proto/zmq/wire.h"

static int check_source(const char *name, bool has_prompt, size_t n_tokens,
                        const Pipit__Lease *input, struct fault *reterr)
{
    struct fault_path path = {.name = name, .index = -1};

    if (has_prompt + (n_tokens > 0) + (input != NULL) != 1) {
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL,
                         "needs exactly one of prompt, tokens and input");
    }
    return 0;
}

const Pipit__Lease *decode_input(const Pipit__Request *r)
{
    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        return r->generate->input;
    case PIPIT__REQUEST__BODY_DETOKENIZE:
        return r->detokenize->input;
    case PIPIT__REQUEST__BODY_SCORE:
        return r->score->input;
    case PIPIT__REQUEST__BODY_EMBED:
        return r->embed->input;
    default:
        return NULL;
    }
}

const Pipit__Lease *decode_output(const Pipit__Request *r)
{
    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        return r->generate->output;
    case PIPIT__REQUEST__BODY_CHAT:
        return r->chat->output;
    case PIPIT__REQUEST__BODY_TOKENIZE:
        return r->tokenize->output;
    case PIPIT__REQUEST__BODY_SCORE:
        return r->score->output;
    case PIPIT__REQUEST__BODY_EMBED:
        return r->embed->output;
    default:
        return NULL;
    }
}

static int check_leases(const Pipit__Request *r, struct fault *reterr)
{
    const Pipit__Lease *in = decode_input(r);
    const Pipit__Lease *out = decode_output(r);
    struct fault_path path = {.name = "input", .index = -1};

    /* An embedding and log-probabilities lie where they do, and are all there at the end. Of the
     * others only events say which rows, or how many ids. */
    if (out && r->unary && r->body_case != PIPIT__REQUEST__BODY_EMBED &&
        (r->body_case != PIPIT__REQUEST__BODY_SCORE || r->score->logits)) {
        path.name = "unary";
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL,
                         "goes without this output: its rows are told by events of their own");
    }
    if (r->body_case == PIPIT__REQUEST__BODY_SCORE && !out && (in || r->score->logits)) {
        path.name = "output";
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL,
                         "is missing: input and logits need it");
    }
    if (in && !in->has_bytes) {
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL, "needs bytes");
    }
    if (in && out && in->lane != out->lane) {
        return fault_set(reterr, &path, LANE_ERR_INVALID, -EINVAL,
                         "lies in another lane than the output");
    }
    return 0;
}

static int check_body(const Pipit__Request *r, struct fault *reterr)
{
    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        return check_source("generate", r->generate->has_prompt, r->generate->n_tokens,
                            r->generate->input, reterr);
    case PIPIT__REQUEST__BODY_DETOKENIZE:
        return check_source("detokenize", false, r->detokenize->n_tokens, r->detokenize->input,
                            reterr);
    case PIPIT__REQUEST__BODY_SCORE:
        return check_source("score", r->score->has_prompt, r->score->n_tokens, r->score->input,
                            reterr);
    case PIPIT__REQUEST__BODY_EMBED:
        return check_source("embed", r->embed->has_prompt, r->embed->n_tokens, r->embed->input,
                            reterr);
    case PIPIT__REQUEST__BODY__NOT_SET:
        return fault_set(reterr, NULL, LANE_ERR_INVALID, -EINVAL,
                         "a Request without a body this version knows");
    default:
        return 0;
    }
}

/* Rules that concern more than one field. */
static int check_whole(const Pipit__Request *r, struct fault *reterr)
{
    static const uint8_t zero[16];
    struct fault_path id = {.name = "id", .index = -1};
    int rc;

    if (memcmp(r->id.data, zero, sizeof(zero)) == 0) {
        return fault_set(reterr, &id, LANE_ERR_INVALID, -EINVAL, "all 16 bytes are zero");
    }
    rc = check_body(r, reterr);
    return rc ? rc : check_leases(r, reterr);
}

int decode_request(const uint8_t *data, size_t len, size_t max_len, struct arena *a,
                   const Pipit__Request **ret, struct fault *reterr)
{
    Pipit__Request *r;
    int rc;

    arena_clear(a);
    if (len > max_len) {
        (void)fault_set(reterr, NULL, LANE_ERR_TOO_LARGE, -E2BIG,
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
        return fault_set(reterr, NULL, LANE_ERR_TOO_LARGE, -ENOMEM,
                         "the message takes more than %zu bytes decoded (numbers not packed?)",
                         a->size);
    }
    if (!r) {
        return fault_set(reterr, NULL, LANE_ERR_INVALID, -EBADMSG, "not a well-formed Request");
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
