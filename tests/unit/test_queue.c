/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/queue.h and request.h: whose turn it is, bounds, lookups by number and by id. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/front/queue.h"

static struct request_table t;
static struct queue q;
static uint8_t next_id;

static void begin(void)
{
    request_table_init(&t, 12345);
    queue_init(&q, 16);
}

static struct request *add(uint32_t uid, const char *tenant, uint64_t lane, int32_t urgency)
{
    struct request *r;
    uint8_t id[16] = {1, ++next_id};

    cr_assert_eq(request_create(&t, uid, (const uint8_t *)tenant, (uint32_t)strlen(tenant), id, &r),
                 0);
    r->home_lane = lane;
    r->urgency = urgency;
    queue_push(&q, r);
    return r;
}

Test(queue, turns_go_round_principals, .init = begin)
{
    struct request *a[4];
    struct request *b;
    struct request *c;

    for (int i = 0; i < 4; i++) {
        a[i] = add(1000, "", 1, 0);
    }
    b = add(1001, "", 2, 0);
    c = add(1000, "tenant", 3, 0);
    cr_assert_eq(queue_pop(&q), a[0]);
    cr_assert_eq(queue_pop(&q), b);
    cr_assert_eq(queue_pop(&q), c);
    cr_assert_eq(queue_pop(&q), a[1]);
    b = add(1001, "", 2, 0);
    cr_assert_eq(queue_pop(&q), b);
    cr_assert_eq(queue_pop(&q), a[2]);
    cr_assert_eq(queue_pop(&q), a[3]);
    cr_assert_null(queue_pop(&q));
    cr_assert_eq(q.n, 0);
}

Test(queue, new_tenants_are_no_way_past_other_users, .init = begin)
{
    struct request *b[2];

    cr_assert_eq(queue_pop(&q), NULL);
    (void)add(1000, "", 1, 0);
    b[0] = add(1001, "", 2, 0);
    b[1] = add(1001, "", 2, 0);
    (void)queue_pop(&q);
    cr_assert_eq(queue_pop(&q), b[0]);
    (void)add(1000, "made up", 1, 0);
    (void)add(1000, "this too", 1, 0);
    (void)queue_pop(&q);
    cr_assert_eq(queue_pop(&q), b[1]);
}

/* Two persons whose numbers share a place of the table, both with a request waiting at all times.
 */
Test(queue, two_of_one_place_starve_nobody, .init = begin)
{
    static const uint32_t uids[] = {1000, 1000 + QUEUE_USERS, 1001};
    int served[3] = {0};

    for (int i = 0; i < 3; i++) {
        (void)add(uids[i], "", (uint64_t)i + 1, 0);
    }
    for (int n = 0; n < 30; n++) {
        struct request *r = queue_pop(&q);

        for (int i = 0; i < 3; i++) {
            if (r->who->person == uids[i]) {
                served[i]++;
                (void)add(uids[i], "", (uint64_t)i + 1, 0);
            }
        }
        request_destroy(&t, r);
    }
    for (int i = 0; i < 3; i++) {
        cr_expect_geq(served[i], 8, "person %d: %d of 30", (int)uids[i], served[i]);
    }
}

Test(queue, within_a_principal_urgency_then_lanes_then_age, .init = begin)
{
    struct request *slow = add(1000, "", 1, 0);
    struct request *slow2 = add(1000, "", 1, 0);
    struct request *late = add(1000, "", 1, -5);
    struct request *other = add(1000, "", 2, 0);
    struct request *urgent = add(1000, "", 1, 7);

    cr_assert_eq(queue_pop(&q), urgent);
    cr_assert_eq(queue_pop(&q), other, "its lane had no turn yet");
    cr_assert_eq(queue_pop(&q), slow);
    cr_assert_eq(queue_pop(&q), slow2);
    cr_assert_eq(queue_pop(&q), late);
}

Test(queue, two_lanes_that_ask_one_by_one_starve_nobody, .init = begin)
{
    int n_third = 0;

    (void)add(1000, "", 1, 0);
    (void)add(1000, "", 2, 0);
    for (int i = 0; i < 10; i++) {
        (void)add(1000, "", 3, 0);
    }
    for (int i = 0; i < 12; i++) {
        struct request *r = queue_pop(&q);

        n_third += r->home_lane == 3;
        if (r->home_lane != 3) {
            (void)add(1000, "", r->home_lane, 0);
        }
    }
    cr_assert_eq(n_third, 4);
}

Test(queue, bounds, .init = begin)
{
    for (int i = 0; i < 14; i++) {
        cr_assert(queue_has_room(&q, 1000));
        (void)add(1000, i % 2 ? "a" : "b", 1, 0);
    }
    cr_assert_not(queue_has_room(&q, 1000), "7/8 are its share, whatever its tenants");
    cr_assert(queue_has_room(&q, 1001));
    (void)add(1001, "", 1, 0);
    (void)add(1002, "", 1, 0);
    cr_assert_not(queue_has_room(&q, 1003));
    cr_assert_eq(queue_retry_ms(&q, 1), 1000, "nothing measured yet");
    queue_served(&q, 4000000000);
    cr_assert_eq(queue_retry_ms(&q, 2), 2000);
    queue_served(&q, 1000);
    cr_assert_lt(queue_retry_ms(&q, 2), 2000);
}

Test(queue, remove_and_push_front, .init = begin)
{
    struct request *a = add(1000, "", 1, 0);
    struct request *b = add(1000, "", 1, 0);
    struct request *c = add(1000, "", 1, 0);

    queue_remove(&q, b);
    cr_assert_eq(q.n, 2);
    cr_assert_eq(q.last, c);
    queue_remove(&q, c);
    cr_assert_eq(q.last, a);
    queue_push_front(&q, b);
    cr_assert_eq(q.first, b);
    queue_push(&q, c);
    cr_assert_eq(queue_pop(&q), b);
    cr_assert_eq(queue_pop(&q), a);
    cr_assert_eq(queue_pop(&q), c);
    cr_assert_null(q.first);
    cr_assert_null(q.last);
}

Test(request, ids_belong_to_principals, .init = begin)
{
    const uint8_t id[16] = {9, 9, 9};
    struct request *a;
    struct request *b;
    struct request *c;

    cr_assert_eq(request_create(&t, 1, NULL, 0, id, &a), 0);
    cr_assert_eq(request_create(&t, 2, NULL, 0, id, &b), 0);
    cr_assert_eq(request_create(&t, 1, (const uint8_t *)"x", 1, id, &c), 0);
    cr_assert_eq(request_find(&t, request_principal(&t, 1, NULL, 0), id), a);
    cr_assert_eq(request_find(&t, request_principal(&t, 2, NULL, 0), id), b);
    cr_assert_eq(request_find(&t, request_principal(&t, 1, (const uint8_t *)"x", 1), id), c);
    cr_assert_null(request_find(&t, request_principal(&t, 3, NULL, 0), id));
    cr_assert_null(request_principal(&t, 1, (const uint8_t *)"y", 1));
    cr_assert_neq(a->who->hash, 0);
    cr_assert_neq(a->who->hash, c->who->hash);
    cr_assert_eq(request_by_number(&t, b->number), b);
    request_destroy(&t, b);
    cr_assert_null(request_principal(&t, 2, NULL, 0), "gone with its last request");
    cr_assert_eq(t.open.oldest, a);
    cr_assert_eq(a->age_next, c);
    request_destroy(&t, a);
    request_destroy(&t, c);
    cr_assert_null(t.open.oldest);
    cr_assert_null(t.open.newest);
    cr_assert_eq(t.n, 0);
}

/* What asks for the open ones never walks over those that ended, however many are kept. */
Test(request, a_finished_one_is_open_no_more, .init = begin)
{
    struct request *r[3];
    uint8_t id[16] = {0};

    for (uint8_t i = 0; i < 3; i++) {
        id[0] = i;
        cr_assert_eq(request_create(&t, 1, NULL, 0, id, &r[i]), 0);
    }
    request_finish(&t, r[1]);
    request_finish(&t, r[0]);
    request_finish(&t, r[1]);
    cr_assert_eq(t.open.oldest, r[2]);
    cr_assert_eq(t.open.newest, r[2]);
    cr_assert_null(r[2]->age_prev);
    cr_assert_null(r[2]->age_next);
    cr_assert_eq(t.finished.oldest, r[1], "in the order in which they ended");
    cr_assert_eq(t.finished.newest, r[0]);
    cr_assert_eq(r[1]->age_next, r[0]);
    cr_assert_eq(request_by_number(&t, r[1]->number), r[1]);
    request_destroy(&t, r[1]);
    cr_assert_eq(t.finished.oldest, r[0]);
    request_destroy(&t, r[2]);
    request_destroy(&t, r[0]);
    cr_assert_null(t.open.oldest);
    cr_assert_null(t.finished.newest);
    cr_assert_eq(t.n, 0);
}

Test(request, the_table_is_bounded, .init = begin)
{
    struct request *r;
    uint8_t id[16] = {0};

    for (uint32_t i = 0; i < REQUEST_MAX; i++) {
        uint32_t uid = i < REQUEST_MAX / 8 * 7 ? 1 : 2;

        memcpy(id, &i, sizeof(i));
        id[15] = 1;
        cr_assert_eq(request_create(&t, uid, NULL, 0, id, &r), 0);
        if (i == REQUEST_MAX / 8 * 7 - 1) {
            id[14] = 1;
            cr_assert_eq(request_create(&t, 1, (const uint8_t *)"t", 1, id, &r), -EDQUOT,
                         "the rest is for others, whatever the tenant");
            id[14] = 0;
        }
    }
    id[14] = 1;
    cr_assert_eq(request_create(&t, 2, NULL, 0, id, &r), -EBUSY);
    request_destroy(&t, t.open.oldest);
    cr_assert_eq(request_create(&t, 1, NULL, 0, id, &r), 0, "its share has room again");
    while (t.open.oldest) {
        request_destroy(&t, t.open.oldest);
    }
}
