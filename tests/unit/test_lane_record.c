/* SPDX-License-Identifier: Apache-2.0 */
/* proto/lane/record.h: the layout against tests/data/lane_golden.hex (made by an independent
 * implementation), and the checks on what a peer sends. In a golden line every byte of the k-th
 * field is k, so that a moved field shows as a moved run. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/lane/record.h"

#define F(field) memset(&r.field, ++k, sizeof(r.field))

static struct lane_record filled(const char *name)
{
    struct lane_record r = {0};
    int k = 0;

    F(h.type), F(h.flags), F(h.size), F(h.id), F(h.seq);
    if (!strcmp(name, "hello")) {
        F(hello.magic), F(hello.abi_major), F(hello.abi_minor), F(hello.record_bytes);
        F(hello.features), F(hello.c2e_bytes), F(hello.e2c_bytes), F(hello.program);
    } else if (!strcmp(name, "hello_reply")) {
        F(hello_reply.magic), F(hello_reply.abi_major), F(hello_reply.abi_minor);
        F(hello_reply.record_bytes), F(hello_reply.features), F(hello_reply.front_epoch);
        F(hello_reply.model_epoch), F(hello_reply.lane_id), F(hello_reply.c2e_bytes);
        F(hello_reply.e2c_bytes), F(hello_reply.state), F(hello_reply.progress);
        F(hello_reply.max_request_bytes), F(hello_reply.max_lease_bytes), F(hello_reply.ctx);
        F(hello_reply.n_vocab), F(hello_reply.request_buf), F(hello_reply.request_generation);
        F(hello_reply.model);
    } else if (!strcmp(name, "lease")) {
        F(lease.arena), F(lease.buf), F(lease.generation), F(lease.pad), F(lease.offset);
        F(lease.length);
    } else if (!strcmp(name, "request")) {
        F(request.kind), F(request.urgency), F(request.buf), F(request.generation);
        F(request.tlv_bytes), F(request.timeout_ms), F(request.out_buf);
        F(request.out_generation), F(request.in_buf), F(request.in_generation);
        F(request.in_bytes), F(request.uid), F(request.tenant_len), F(request.tenant);
        F(request.lease_lane);
    } else if (!strcmp(name, "resume")) {
        F(resume.next_seq), F(resume.uid), F(resume.tenant_len), F(resume.tenant);
    } else if (!strcmp(name, "cancel")) {
        F(cancel.uid), F(cancel.tenant_len), F(cancel.tenant);
    } else if (!strcmp(name, "credit")) {
        F(credit.n_rows);
    } else if (!strcmp(name, "accepted")) {
        F(accepted.front_epoch), F(accepted.model_epoch), F(accepted.n_ahead);
    } else if (!strcmp(name, "progress")) {
        F(progress.n_done), F(progress.n_total), F(progress.phase);
    } else if (!strcmp(name, "token")) {
        F(token.index), F(token.token), F(token.logprob), F(token.text_len), F(token.n_alts);
        F(token.text);
    } else if (!strcmp(name, "alt")) {
        F(alt.index), F(alt.token), F(alt.logprob), F(alt.rank), F(alt.text_len), F(alt.text);
    } else if (!strcmp(name, "bulk")) {
        F(bulk.kind), F(bulk.buf), F(bulk.generation), F(bulk.window), F(bulk.row0);
        F(bulk.n_rows), F(bulk.n_cols), F(bulk.n_bytes), F(bulk.offset);
    } else if (!strcmp(name, "done")) {
        F(done.reason), F(done.n_prompt), F(done.n_cached), F(done.n_new), F(done.queue_ns);
        F(done.prefill_ns), F(done.decode_ns), F(done.load_ns), F(done.kv_bytes);
        F(done.kv_bytes_full), F(done.n_slots), F(done.n_evicted), F(done.replay);
        F(done.stop_index), F(done.seed), F(done.session), F(done.session_err);
        F(done.session_bytes), F(done.session_cause), F(done.n_drafted), F(done.n_accepted);
    } else if (!strcmp(name, "session")) {
        F(session.op), F(session.buf), F(session.generation), F(session.uid), F(session.name);
    } else if (!strcmp(name, "control")) {
        F(control.op), F(control.limit_ms);
    } else if (!strcmp(name, "error")) {
        F(error.code), F(error.err), F(error.retry_after_ms), F(error.pad), F(error.count_a);
        F(error.count_b), F(error.text);
    } else if (!strcmp(name, "status")) {
        F(status.front_epoch), F(status.model_epoch), F(status.state), F(status.progress);
        F(status.n_running), F(status.n_queued), F(status.n_lanes), F(status.n_restarts);
        F(status.n_requests), F(status.n_prompt_tokens), F(status.n_new_tokens);
        F(status.kv_bytes_used), F(status.kv_bytes_total), F(status.plan_bytes);
        F(status.step_age_ns), F(status.uptime_ns), F(status.ctx), F(status.n_seqs);
        F(status.model), F(status.backend);
    } else if (!strcmp(name, "e_lane")) {
        F(e_lane.lane_id), F(e_lane.c2e_bytes), F(e_lane.e2c_bytes);
    } else if (!strcmp(name, "e_request")) {
        F(e_request.kind), F(e_request.urgency), F(e_request.lane_id);
        F(e_request.journal_offset), F(e_request.tlv_bytes), F(e_request.n_forced);
        F(e_request.forced_offset), F(e_request.text_sent), F(e_request.out_offset);
        F(e_request.out_bytes), F(e_request.in_offset), F(e_request.in_bytes);
        F(e_request.principal), F(e_request.out_buf), F(e_request.out_generation);
        F(e_request.flags), F(e_request.person), F(e_request.seed);
        F(e_request.session_bytes), F(e_request.client_id), F(e_request.session_writes);
    } else if (!strcmp(name, "e_cancel")) {
        F(e_cancel.reason);
    } else if (!strcmp(name, "e_state")) {
        F(e_state.state), F(e_state.progress), F(e_state.ctx), F(e_state.n_vocab);
        F(e_state.n_seqs), F(e_state.n_running), F(e_state.n_queued), F(e_state.text_ms);
        F(e_state.n_prompt_tokens), F(e_state.n_new_tokens), F(e_state.n_evicted);
        F(e_state.kv_bytes_used), F(e_state.kv_bytes_total), F(e_state.plan_bytes);
        F(e_state.last_step_ns), F(e_state.longest_step_ns), F(e_state.model);
        F(e_state.backend), F(e_state.n_prefix_hits), F(e_state.n_prefix_tokens);
        F(e_state.n_drafted), F(e_state.n_accepted);
    } else if (!strcmp(name, "e_report")) {
        F(e_report.kind), F(e_report.row), F(e_report.n_rows), F(e_report.n_seqs);
        F(e_report.n_requests), F(e_report.n_slots), F(e_report.kv_bytes), F(e_report.n_evicted);
        F(e_report.text_at), F(e_report.text_len), F(e_report.text);
    } else {
        cr_assert_fail("golden line of unknown name %s", name);
    }
    return r;
}

/* What an older front does not say is no leave to write without end. */
Test(lane_record, writes_that_nobody_limited)
{
    cr_assert_eq(lane_session_writes(0), LANE_SESSION_WRITES);
    cr_assert_eq(lane_session_writes(lane_session_writes_field(0)), 0);
    cr_assert_eq(lane_session_writes(lane_session_writes_field(5)), 5);
}

Test(lane_record, offsets_are_the_golden_ones)
{
    const char *dir = getenv("PIPIT_TEST_DATA");
    char path[4096];
    char line[1024];
    int n = 0;

    cr_assert_not_null(dir, "PIPIT_TEST_DATA is not set");
    (void)snprintf(path, sizeof(path), "%s/lane_golden.hex", dir);
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), f)) {
        char name[32];
        char want[2 * LANE_RECORD_BYTES + 1];
        char got[2 * LANE_RECORD_BYTES + 1];

        if (line[0] == '#') {
            continue;
        }
        cr_assert_eq(sscanf(line, "%31s %512s", name, want), 2);
        struct lane_record r = filled(name);
        for (int i = 0; i < LANE_RECORD_BYTES; i++) {
            (void)snprintf(got + 2 * i, 3, "%02x", ((const uint8_t *)&r)[i]);
        }
        cr_assert_str_eq(got, want, "layout of %s changed", name);
        n++;
    }
    (void)fclose(f);
    cr_assert_eq(n, 22);
}

static const uint8_t some_id[16] = {7};

Test(lane_record, exit_codes_of_the_documentation)
{
    cr_assert_eq(lane_error_exit(LANE_ERR_SHUTDOWN), 4, "refused: nothing was begun");
    cr_assert_eq(lane_reason_exit(LANE_REASON_SHUTDOWN), 8, "an answer was cut");
}

Test(lane_record, sizes_and_init)
{
    struct lane_record r;

    cr_assert_eq(lane_record_size(LANE_PING), 32);
    cr_assert_eq(lane_record_size(LANE_REQUEST), 32 + sizeof(struct lane_request));
    cr_assert_eq(lane_record_size(0), 0);
    cr_assert_eq(lane_record_size(0x7fff), 0);
    lane_record_init(&r, LANE_REQUEST, some_id);
    cr_assert_eq(r.h.type, LANE_REQUEST);
    cr_assert_eq(r.h.size, lane_record_size(LANE_REQUEST));
    cr_assert_eq(r.h.id[0], 7);
    cr_assert_eq(r.request.kind, 0);
}

static int check(struct lane_record r, enum lane_peer from)
{
    return lane_record_check(&r, LANE_RECORD_BYTES, from, NULL);
}

Test(lane_record, a_peer_sends_only_its_own_types)
{
    for (uint32_t t = 0; t < 0x200; t++) {
        struct lane_record r;

        lane_record_init(&r, t, some_id);
        r.h.size = r.h.size ? r.h.size : 32;
        int n = 0;
        for (int from = LANE_PEER_CLIENT; from <= LANE_PEER_ENGINE; from++) {
            struct error e = {0};
            struct lane_record copy = r;

            int rc = lane_record_check(&copy, LANE_RECORD_BYTES, (enum lane_peer)from, &e);
            n += rc == 0 || strstr(e.text, "not expected here") == NULL;
        }
        cr_assert(lane_record_size(t) ? n == 1 || n == 2 : n == 0, "type 0x%x: %d", t, n);
    }
}

Test(lane_record, wrong_lengths_and_sizes)
{
    struct lane_record r;

    lane_record_init(&r, LANE_PING, NULL);
    cr_assert_eq(lane_record_check(&r, 255, LANE_PEER_CLIENT, NULL), -EBADMSG);
    cr_assert_eq(lane_record_check(&r, 257, LANE_PEER_CLIENT, NULL), -EBADMSG);
    cr_assert_eq(lane_record_check(&r, 0, LANE_PEER_CLIENT, NULL), -EBADMSG);
    cr_assert_eq(lane_record_check(&r, 256, LANE_PEER_CLIENT, NULL), 0);
    r.h.size = 31;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.h.size = 257;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.h.size = UINT32_MAX;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
}

Test(lane_record, what_was_not_sent_reads_as_zero)
{
    struct lane_record r;

    lane_record_init(&r, LANE_REQUEST, some_id);
    r.request.kind = LANE_KIND_CHAT;
    memset((uint8_t *)&r + 36, 0xff, 220);
    r.h.size = 36;
    cr_assert_eq(lane_record_check(&r, 256, LANE_PEER_CLIENT, NULL), 0);
    cr_assert_eq(r.request.kind, LANE_KIND_CHAT);
    for (int i = 36; i < 256; i++) {
        cr_assert_eq(((uint8_t *)&r)[i], 0);
    }
}

Test(lane_record, fields_of_a_request)
{
    struct lane_record r;

    lane_record_init(&r, LANE_REQUEST, some_id);
    r.request.kind = LANE_KIND_GENERATE;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), 0);
    r.request.kind = 0;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.request.kind = LANE_KIND_EMBED + 1;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.request.kind = LANE_KIND_GENERATE;
    r.request.urgency = 101;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.request.urgency = -101;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.request.urgency = -100;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), 0);
    r.request.tenant_len = 65;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.request.tenant_len = 64;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), 0);
    r.h.flags = LANE_F_REPLAYED;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
    r.h.flags = LANE_F_DETACH;
    cr_assert_eq(check(r, LANE_PEER_CLIENT), 0);
    memset(r.h.id, 0, 16);
    cr_assert_eq(check(r, LANE_PEER_CLIENT), -EBADMSG);
}

Test(lane_record, texts_from_the_daemon_are_bounded)
{
    struct lane_record r;

    lane_record_init(&r, LANE_TOKEN, some_id);
    r.token.text_len = 200;
    cr_assert_eq(check(r, LANE_PEER_FRONT), 0);
    cr_assert_eq(check(r, LANE_PEER_ENGINE), 0);
    r.token.text_len = 201;
    cr_assert_eq(check(r, LANE_PEER_FRONT), -EBADMSG);
    lane_record_init(&r, LANE_ERROR, some_id);
    r.error.code = LANE_ERR_BUSY;
    cr_assert_eq(check(r, LANE_PEER_FRONT), 0);
    memset(r.error.text, 'x', sizeof(r.error.text));
    cr_assert_eq(check(r, LANE_PEER_FRONT), -EBADMSG);
    lane_record_init(&r, LANE_ALT, some_id);
    r.alt.text_len = 129;
    cr_assert_eq(check(r, LANE_PEER_ENGINE), -EBADMSG);
    lane_record_init(&r, LANE_DONE, some_id);
    cr_assert_eq(check(r, LANE_PEER_ENGINE), -EBADMSG);
    r.done.reason = LANE_REASON_SHUTDOWN;
    cr_assert_eq(check(r, LANE_PEER_ENGINE), 0);
}

Test(lane_record, names_hold_no_control_characters)
{
    struct lane_record r;

    lane_record_init(&r, LANE_ENGINE_STATE, NULL);
    r.e_state.state = LANE_READY;
    (void)strcpy(r.e_state.model, "model\nMAINPID=1\033[2J\177");
    cr_assert_eq(check(r, LANE_PEER_ENGINE), 0);
    cr_assert_eq(lane_record_check(&r, sizeof(r), LANE_PEER_ENGINE, NULL), 0);
    cr_assert_str_eq(r.e_state.model, "model?MAINPID=1?[2J?");
}

Test(lane_record, names_and_exit_codes)
{
    cr_assert_str_eq(lane_reason_name(LANE_REASON_SLOW_CONSUMER), "slow_consumer");
    cr_assert_str_eq(lane_reason_name(LANE_REASONS), "unknown");
    for (uint32_t i = 1; i < LANE_REASONS; i++) {
        cr_assert_str_neq(lane_reason_name(i), "unknown", "reason %u", i);
    }
    cr_assert_str_eq(lane_reason_name(0), "unknown");
    cr_assert_str_eq(lane_reason_name(99), "unknown");
    cr_assert_str_eq(lane_error_name(LANE_ERR_CONTEXT_OVERFLOW), "CONTEXT_OVERFLOW");
    cr_assert_str_eq(lane_error_name(UINT32_MAX), "unknown");
    cr_assert_str_eq(lane_state_name(LANE_UNLOADED), "unloaded");
    cr_assert_str_eq(lane_state_name(LANE_STOPPING), "stopping");
    cr_assert_eq(lane_reason_exit(LANE_REASON_STOP), 0);
    cr_assert_eq(lane_reason_exit(LANE_REASON_CONTEXT), 5);
    cr_assert_eq(lane_reason_exit(LANE_REASON_TIMEOUT), 7);
    cr_assert_eq(lane_error_exit(LANE_ERR_BUSY), 4);
    cr_assert_eq(lane_error_exit(LANE_ERR_MODEL), 6);
    cr_assert_eq(lane_error_exit(0), 8);
}
