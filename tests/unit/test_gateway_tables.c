/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's tables and the reading of a peer's credentials: what is full, gone or foreign. */

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitized.h"
#include "daemon/gateway/clients.h"
#include "daemon/gateway/requests.h"
#include "daemon/gateway/router.h"
#include "daemon/gateway/trim.h"

static struct clients clients;
static struct requests requests;

static struct router_peer peer(uint32_t n, uint32_t uid)
{
    struct router_peer p = {.id_len = 5, .uid = uid, .known = true};

    memcpy(p.id + 1, &n, sizeof(n));
    return p;
}

Test(gateway_tables, addresses)
{
    static const struct {
        const char *text;
        bool ok;
        uint32_t uid;
    } cases[] = {
        {"localhost:1000:1001:77", true, 1000},
        {"localhost:0:0:1", true, 0},
        {"localhost:4294967295:0:1", true, UINT32_MAX},
        {"localhost:4294967296:0:1", false, 0},
        {"localhost:99999999999999999999999:0:1", false, 0},
        {"localhost:1000:1001", false, 0},
        {"localhost:1000:1001:", false, 0},
        {"localhost::1001:77", false, 0},
        {"localhost:-1:1001:77", false, 0},
        {"localhost:1000:1001:77x", false, 0},
        {"localhost:1000:1001:77:8", false, 0},
        {"localhost", false, 0},
        {"127.0.0.1", false, 0},
        {"", false, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t uid = 7;

        cr_assert_eq(router_parse_address(cases[i].text, strlen(cases[i].text), &uid), cases[i].ok,
                     "%s", cases[i].text);
        cr_assert(!cases[i].ok || uid == cases[i].uid);
    }
}

Test(gateway_tables, own_ids)
{
    struct router_peer p = peer(5, 0);

    cr_assert(router_id_is_own(&p));
    p.id[0] = 1;
    cr_assert(!router_id_is_own(&p));
    p.id[0] = 0;
    p.id_len = 6;
    cr_assert(!router_id_is_own(&p));
}

Test(gateway_tables, a_client_keeps_its_uid)
{
    struct router_peer p = peer(1, 1000);
    struct client *a, *b;

    clients_init(&clients);
    cr_assert_eq(clients_find(&clients, &p, 1, &a), 0);
    p.delimiter = true;
    cr_assert_eq(clients_find(&clients, &p, 2, &b), 0);
    cr_assert(a == b && a->delimiter);
    cr_assert(clients_get(&clients, a->handle) == a);
    p.uid = 1001;
    cr_assert_eq(clients_find(&clients, &p, 3, &b), -EPERM);
    uint64_t handle = a->handle;
    clients_forget(&clients, a);
    cr_assert_null(clients_get(&clients, handle));
    cr_assert_null(clients_get(&clients, 0));
    cr_assert_eq(clients_find(&clients, &p, 4, &b), 0);
    cr_assert_neq(b->handle, handle);
    clients_finish(&clients);
}

/* libzmq takes a message's bytes as it sends it, and a client's sum must fall by what it rose. */
Test(gateway_tables, what_was_sent_no_longer_waits)
{
    enum { N = 5, SIZE = 1000 };
    struct router_peer p = peer(1, 1000);
    void *context = zmq_ctx_new();
    void *near = zmq_socket(context, ZMQ_PAIR);
    void *far = zmq_socket(context, ZMQ_PAIR);
    struct client *c;

    cr_assert_eq(zmq_bind(near, "inproc://there"), 0);
    cr_assert_eq(zmq_connect(far, "inproc://there"), 0);
    clients_init(&clients);
    cr_assert_eq(clients_find(&clients, &p, 1, &c), 0);
    for (size_t i = 1; i <= N; i++) {
        zmq_msg_t body;

        cr_assert_eq(zmq_msg_init_size(&body, i * SIZE), 0);
        memset(zmq_msg_data(&body), 0, i * SIZE);
        cr_assert_eq(clients_append(&clients, c, &body, 7), 0);
    }
    cr_assert_eq(c->backlog_bytes, 15 * SIZE);
    cr_assert_eq(clients.n_stalled, 1);
    for (size_t left = 15 * SIZE, i = 1; i <= 3; i++) {
        cr_assert_eq(zmq_msg_send(&c->backlog->body, far, 0), (int)(i * SIZE));
        clients_sent(&clients, c);
        left -= i * SIZE;
        cr_assert_eq(c->backlog_bytes, left);
        cr_assert_eq(clients.backlog_bytes, left);
    }
    clients_forget(&clients, c);
    cr_assert_eq(clients.backlog_bytes, 0);
    cr_assert_eq(clients.n_stalled, 0);
    clients_finish(&clients);
    cr_assert_eq(zmq_close(near), 0);
    cr_assert_eq(zmq_close(far), 0);
    cr_assert_eq(zmq_ctx_term(context), 0);
}

Test(gateway_tables, the_longest_silent_client_gives_way)
{
    struct client *c, *busy = NULL;
    struct router_peer p;
    uint64_t oldest = 0;

    clients_init(&clients);
    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        p = peer(i, 1000);
        cr_assert_eq(clients_find(&clients, &p, i, &c), 0);
        if (i == 0) {
            busy = c;
            busy->n_requests = 1;
        } else if (i == 1) {
            oldest = c->handle;
        }
    }
    p = peer(CLIENTS_MAX, 1000);
    cr_assert_eq(clients_find(&clients, &p, CLIENTS_MAX, &c), 0);
    cr_assert_null(clients_get(&clients, oldest));
    cr_assert_not_null(clients_get(&clients, busy->handle));
    for (int i = 0; i < CLIENTS_MAX; i++) {
        clients.slots[i].n_requests = 1;
    }
    p = peer(CLIENTS_MAX + 1, 1000);
    cr_assert_eq(clients_find(&clients, &p, 1, &c), -EBUSY);
}

Test(gateway_tables, backlog_is_counted)
{
    struct router_peer p = peer(1, 1000);
    struct client *c;
    zmq_msg_t m;

    clients_init(&clients);
    cr_assert_eq(clients_find(&clients, &p, 1, &c), 0);
    for (size_t i = 1; i <= 3; i++) {
        cr_assert_eq(zmq_msg_init_size(&m, i * 100), 0);
        cr_assert_eq(clients_append(&clients, c, &m, 5), 0);
    }
    cr_assert(c->backlog_bytes == 600 && clients.backlog_bytes == 600 && clients.n_stalled == 1);
    cr_assert_eq(zmq_msg_size(&c->backlog->body), 100);
    clients_sent(&clients, c);
    cr_assert(c->backlog_bytes == 500 && clients.n_stalled == 1 && c->stalled_ns == 5);
    clients_forget(&clients, c);
    cr_assert(clients.backlog_bytes == 0 && clients.n_stalled == 0);
}

Test(gateway_tables, requests_by_id)
{
    uint8_t id[16] = {0};
    struct request *q = NULL;

    requests_init(&requests, 12345);
    for (int i = 0; i < REQUESTS_MAX; i++) {
        memcpy(id, &i, sizeof(i));
        q = requests_add(&requests, id);
        cr_assert_not_null(q);
        q->uid = (uint32_t)i % 4;
    }
    cr_assert_null(requests_add(&requests, (const uint8_t[16]){9}));
    cr_assert_eq(requests_count_uid(&requests, 3), REQUESTS_MAX / 4);
    for (int i = 0; i < REQUESTS_MAX; i += 2) {
        memcpy(id, &i, sizeof(i));
        q = requests_find(&requests, id);
        cr_assert_not_null(q);
        requests_set_orphan(&requests, q, 77);
        requests_remove(&requests, q);
        cr_assert_null(requests_find(&requests, id));
    }
    cr_assert(requests.n_orphans == 0 && requests.n_used == REQUESTS_MAX / 2);
    for (int i = 1; i < REQUESTS_MAX; i += 2) {
        memcpy(id, &i, sizeof(i));
        cr_assert_not_null(requests_find(&requests, id));
    }
}

Test(gateway_tables, gathering_has_a_limit)
{
    static const uint8_t text[1000];
    struct request *q;
    size_t n = 0;
    int rc;

    requests_init(&requests, 1);
    q = requests_add(&requests, (const uint8_t[16]){1});
    q->kind = LANE_KIND_GENERATE;
    while ((rc = requests_gather_text(&requests, q, LANE_PART_TEXT, text, sizeof(text))) == 0) {
        n += sizeof(text);
    }
    cr_assert(rc == -E2BIG && n <= REQUESTS_GATHER_BYTES && n > REQUESTS_GATHER_BYTES - 1000);
    cr_assert_eq(requests_gather_text(&requests, q, LANE_PART_TEXT, text, 0), 0);
    for (n = 0; (rc = requests_gather_token(&requests, q, (int32_t)n, 0)) == 0; n++) {
    }
    cr_assert(rc == -E2BIG && n == REQUESTS_IDS_BYTES / 8);
    cr_assert_eq(q->gathered.tokens[n - 1], (int32_t)n - 1);
    requests_finish(&requests);
}

static struct request *asked(uint8_t id, uint32_t uid, enum lane_kind kind)
{
    struct request *q = requests_add(&requests, (const uint8_t[16]){id});

    q->uid = uid;
    q->kind = kind;
    q->unary = true;
    return q;
}

static int gather_ids(struct request *q, size_t *ret_n)
{
    int rc = 0;

    for (*ret_n = 0; rc == 0; *ret_n += rc == 0) {
        rc = requests_gather_token(&requests, q, 1, 0);
    }
    return rc;
}

static int gather_texts(struct request *q)
{
    static const uint8_t text[1000];
    int rc = 0;

    while (rc == 0) {
        rc = requests_gather_text(&requests, q, LANE_PART_TEXT, text, sizeof(text));
    }
    return rc;
}

static size_t held(void)
{
    size_t n = 0;

    for (int i = 0; i < REQUESTS_MAX; i++) {
        const struct request *q = &requests.slots[i];

        n += q->gathered.text.cap + q->gathered.cap_tokens * (q->gathered.logprobs ? 8 : 4);
    }
    return n;
}

/* What is no sequence in the engine is not limited by the plan's sequences, and one user may have
 * many of them. */
Test(gateway_tables, what_is_no_sequence_shares_a_limit)
{
    struct request *q;
    size_t n;

    requests_init(&requests, 1);
    cr_expect_eq(gather_ids(asked(1, 7, LANE_KIND_TOKENIZE), &n), -E2BIG);
    cr_expect_eq(n, REQUESTS_SHARED_UID / 4);
    cr_expect_eq(gather_texts(asked(2, 7, LANE_KIND_DETOKENIZE)), -EBUSY, "this user has enough");
    cr_expect_eq(gather_texts(asked(3, 8, LANE_KIND_DETOKENIZE)), -E2BIG, "another has not");
    /* Resumed from before this process's start, it may be any kind. */
    q = asked(4, 8, 0);
    cr_expect_eq(gather_ids(q, &n), -EBUSY);
    cr_expect(n > 0 && held() <= REQUESTS_SHARED_BYTES);
    cr_expect_eq(gather_ids(asked(5, 9, LANE_KIND_TOKENIZE), &n), -EBUSY, "there is no more");
    q = asked(6, 9, LANE_KIND_TOKENIZE);
    q->unary = false;
    for (n = 0; n < 4096 && requests_gather_token(&requests, q, 1, 0) == 0; n++) {
    }
    cr_expect_eq(n, 4096, "a piece that is sent on is no burden");
    cr_expect_eq(gather_ids(asked(7, 9, LANE_KIND_GENERATE), &n), -E2BIG);
    cr_expect_eq(n, REQUESTS_IDS_BYTES / 8, "a sequence's are in the plan");
    requests_remove(&requests, requests_find(&requests, (const uint8_t[16]){1}));
    cr_expect_eq(gather_texts(asked(8, 9, LANE_KIND_DETOKENIZE)), -E2BIG, "there is room again");
    requests_finish(&requests);
}

/* An answer in parts takes no more than one of text alone, which the plan holds. */
Test(gateway_tables, the_parts_share_the_limit)
{
    static const uint8_t text[1000];
    static const enum lane_part parts[] = {LANE_PART_TEXT, LANE_PART_REASONING, LANE_PART_NAME,
                                           LANE_PART_ARGUMENTS};
    struct request *q;
    size_t n = 0;
    int rc = 0;

    requests_init(&requests, 1);
    q = requests_add(&requests, (const uint8_t[16]){1});
    for (int i = 0; rc == 0; i++) {
        rc = requests_gather_text(&requests, q,
                                  parts[i < 3   ? i
                                        : i % 2 ? 3
                                                : i / 2 % 2],
                                  text, sizeof(text));
        n += rc ? 0 : sizeof(text);
    }
    cr_expect(rc == -E2BIG && n <= REQUESTS_GATHER_BYTES && n > REQUESTS_GATHER_BYTES - 1000);
    n = q->gathered.text.cap + q->gathered.reasoning.cap + q->gathered.called.cap;
    cr_expect_leq(n, REQUESTS_GATHER_BYTES + 3 * REQUESTS_GATHER_STEP);
    requests_finish(&requests);
}

Test(gateway_tables, owners)
{
    struct request q = {.uid = 5, .tenant_len = 2, .tenant = "ab"};

    cr_assert(requests_owned(&q, 5, (const uint8_t *)"ab", 2));
    cr_assert(!requests_owned(&q, 6, (const uint8_t *)"ab", 2));
    cr_assert(!requests_owned(&q, 5, (const uint8_t *)"ac", 2));
    cr_assert(!requests_owned(&q, 5, (const uint8_t *)"abc", 3));
    cr_assert(!requests_owned(&q, 5, NULL, 0));
}

/* What is wished for again meanwhile does not put it off. */
Test(gateway_tables, memory_is_given_back_after_a_while)
{
    const int64_t ms = 1000000;
    struct trim t = {0};

    cr_assert_eq(trim_timeout_ms(&t, 5 * ms), -1);
    trim_wish(&t, 5 * ms);
    trim_wish(&t, 900 * ms);
    cr_assert_eq(trim_timeout_ms(&t, 5 * ms), TRIM_AFTER_MS);
    cr_assert_eq(trim_timeout_ms(&t, 4 * ms + TRIM_AFTER_MS * ms + 1), 1);
    trim_due(&t, 4 * ms + TRIM_AFTER_MS * ms);
    cr_assert_eq(trim_timeout_ms(&t, 5 * ms + TRIM_AFTER_MS * ms), 0);
    trim_due(&t, 5 * ms + TRIM_AFTER_MS * ms);
    cr_assert_eq(trim_timeout_ms(&t, 5 * ms + TRIM_AFTER_MS * ms), -1);
}

static int64_t resident_kb(void)
{
    char line[256];
    int64_t kb = -1;
    FILE *f = fopen("/proc/self/status", "re");

    while (f && kb < 0 && fgets(line, sizeof(line), f)) {
        (void)sscanf(line, "VmRSS: %" SCNd64, &kb);
    }
    if (f) {
        (void)fclose(f);
    }
    return kb;
}

/* 64 MB in pieces, every 64th of which stays: free pages lie between such as are in use. */
Test(gateway_tables, pages_amid_others_are_given_back)
{
    enum { N = 64 * 1024, BYTES = 1000, MB = 1024 };
    char **piece = calloc(N, sizeof(*piece));
    struct trim t = {.next_ns = 1};
    int64_t most;
    int64_t kept;
    int64_t left;

#if SANITIZED
    cr_skip_test("the sanitizer's allocator keeps what was freed");
#endif
    cr_assert_not_null(piece);
    for (int i = 0; i < N; i++) {
        piece[i] = malloc(BYTES);
        cr_assert_not_null(piece[i]);
        memset(piece[i], i, BYTES);
    }
    most = resident_kb();
    for (int i = 0; i < N; i++) {
        if (i % 64 != 0) {
            free(piece[i]);
        }
    }
    kept = resident_kb();
    trim_due(&t, 2);
    left = resident_kb();
    cr_assert_lt(left, most - 40 * MB, "%jd kB, %jd before", (intmax_t)left, (intmax_t)most);
    cr_expect_gt(kept, left + 40 * MB, "%jd kB were given back anyway", (intmax_t)kept);
    for (int i = 0; i < N; i += 64) {
        free(piece[i]);
    }
    free(piece);
}
