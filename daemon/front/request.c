/* SPDX-License-Identifier: Apache-2.0 */
/* Two hash tables with chains, by number and by (principal, id), and a list by age. Sizes are
 * fixed: requests are bounded by the journal (two blocks each at least) and REQUEST_MAX. Principals
 * are few (users of one machine, tenants of one gateway): a list. */

#include "daemon/front/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hot.h"

void request_table_init(struct request_table *t, uint64_t hash_key)
{
    memset(t, 0, sizeof(*t));
    t->hash_key = hash_key;
    t->next_number = 1;
}

/* FNV-1a with a secret start and a final mix: enough against a client that aims at one bucket. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;

    h ^= 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3ull;
    }
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ (h >> 32);
}

static struct request **number_bucket(const struct request_table *t, uint64_t number)
{
    return (struct request **)&t->by_number[number % REQUEST_BUCKETS];
}

static struct request **id_bucket(const struct request_table *t, const struct principal *who,
                                  const uint8_t id[16])
{
    return (struct request **)&t
        ->by_id[hash_bytes(t->hash_key ^ who->hash, id, 16) % REQUEST_BUCKETS];
}

struct principal *request_principal(const struct request_table *t, uint32_t uid,
                                    const uint8_t *tenant, uint32_t tenant_len)
{
    for (struct principal *p = t->principals; p; p = p->next) {
        if (p->uid == uid && p->tenant_len == tenant_len &&
            (tenant_len == 0 || memcmp(p->tenant, tenant, tenant_len) == 0)) {
            return p;
        }
    }
    return NULL;
}

struct request *request_find(const struct request_table *t, const struct principal *who,
                             const uint8_t id[16])
{
    if (!who) {
        return NULL;
    }
    for (struct request *r = *id_bucket(t, who, id); r; r = r->by_id) {
        if (r->who == who && memcmp(r->id, id, sizeof(r->id)) == 0) {
            return r;
        }
    }
    return NULL;
}

HOT struct request *request_by_number(const struct request_table *t, uint64_t number)
{
    for (struct request *r = *number_bucket(t, number); r; r = r->by_number) {
        if (r->number == number) {
            return r;
        }
    }
    return NULL;
}

struct account *request_account(const struct request_table *t, uint32_t person)
{
    struct account *a = t->accounts;

    while (a && a->person != person) {
        a = a->next;
    }
    return a;
}

static struct account *account_ref(struct request_table *t, uint32_t person)
{
    struct account *a = request_account(t, person);

    if (!a) {
        a = calloc(1, sizeof(*a));
        if (!a) {
            return NULL;
        }
        a->person = person;
        a->next = t->accounts;
        t->accounts = a;
    }
    a->n_principals++;
    return a;
}

static void account_unref(struct request_table *t, struct account *a)
{
    struct account **p = &t->accounts;

    if (--a->n_principals > 0) {
        return;
    }
    while (*p != a) {
        p = &(*p)->next;
    }
    *p = a->next;
    free(a);
}

static struct principal *principal_create(struct request_table *t, uint32_t uid,
                                          const uint8_t *tenant, uint32_t tenant_len)
{
    struct principal *p = calloc(1, sizeof(*p));

    if (!p) {
        return NULL;
    }
    p->uid = uid;
    p->person = persons_of(t->persons, uid);
    p->account = account_ref(t, p->person);
    if (!p->account) {
        free(p);
        return NULL;
    }
    p->tenant_len = tenant_len;
    if (tenant_len) {
        memcpy(p->tenant, tenant, tenant_len);
    }
    p->hash = hash_bytes(hash_bytes(t->hash_key, &uid, sizeof(uid)), p->tenant, tenant_len);
    p->hash += p->hash == 0;
    p->next = t->principals;
    t->principals = p;
    return p;
}

static void principal_release(struct request_table *t, struct principal *who)
{
    if (who->n_requests > 0) {
        return;
    }
    for (struct principal **p = &t->principals; *p; p = &(*p)->next) {
        if (*p == who) {
            *p = who->next;
            account_unref(t, who->account);
            free(who);
            return;
        }
    }
}

static struct request_list *list_of(struct request_table *t, const struct request *r)
{
    return r->state == REQUEST_FINISHED ? &t->finished : &t->open;
}

static void list_add(struct request_list *l, struct request *r)
{
    r->age_prev = l->newest;
    r->age_next = NULL;
    *(l->newest ? &l->newest->age_next : &l->oldest) = r;
    l->newest = r;
}

static void list_remove(struct request_list *l, struct request *r)
{
    *(r->age_prev ? &r->age_prev->age_next : &l->oldest) = r->age_next;
    *(r->age_next ? &r->age_next->age_prev : &l->newest) = r->age_prev;
}

int request_create(struct request_table *t, uint32_t uid, const uint8_t *tenant,
                   uint32_t tenant_len, const uint8_t id[16], struct request **ret)
{
    struct principal *who = request_principal(t, uid, tenant, tenant_len);
    uint32_t person = who ? who->person : persons_of(t->persons, uid);
    struct request *r;
    struct request **bucket;

    if (t->n >= REQUEST_MAX) {
        return -EBUSY;
    }
    if (t->n_of[person % REQUEST_USERS] >= REQUEST_MAX / 8 * 7) {
        return -EDQUOT;
    }
    who = who ? who : principal_create(t, uid, tenant, tenant_len);
    if (!who) {
        return -ENOMEM;
    }
    r = calloc(1, sizeof(*r));
    if (!r) {
        principal_release(t, who);
        return -ENOMEM;
    }
    r->number = t->next_number++;
    memcpy(r->id, id, sizeof(r->id));
    r->who = who;
    r->log = (struct journal_entry){
        .first = JOURNAL_NONE, .tlv_block = JOURNAL_NONE, .forced_block = JOURNAL_NONE};
    who->n_requests++;
    bucket = number_bucket(t, r->number);
    r->by_number = *bucket;
    *bucket = r;
    bucket = id_bucket(t, who, id);
    r->by_id = *bucket;
    *bucket = r;
    list_add(list_of(t, r), r);
    t->n++;
    t->n_of[person % REQUEST_USERS]++;
    *ret = r;
    return 0;
}

void request_finish(struct request_table *t, struct request *r)
{
    if (r->state != REQUEST_FINISHED) {
        list_remove(&t->open, r);
        r->state = REQUEST_FINISHED;
        list_add(&t->finished, r);
    }
}

void request_destroy(struct request_table *t, struct request *r)
{
    struct request **p;

    for (p = number_bucket(t, r->number); *p != r; p = &(*p)->by_number) {
    }
    *p = r->by_number;
    for (p = id_bucket(t, r->who, r->id); *p != r; p = &(*p)->by_id) {
    }
    *p = r->by_id;
    list_remove(list_of(t, r), r);
    t->n--;
    t->n_of[r->who->person % REQUEST_USERS]--;
    r->who->n_requests--;
    principal_release(t, r->who);
    free(r);
}
