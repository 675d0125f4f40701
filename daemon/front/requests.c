/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/front/requests.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/front/bulk.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"

enum { LINE_MOST = 256, PAGE_BYTES = 32 << 10 };

bool requests_admin(const struct lane *l)
{
    return !l->privileged && (l->uid == 0 || l->uid == geteuid());
}

/* Of each that waits, how many came before it and wait, and itself. */
static void number_places(struct front *f)
{
    uint32_t n = 0;

    for (struct request *r = f->queue.first; r; r = r->queue_next) {
        r->place = ++n;
    }
}

static int write_line(const struct request *r, char *line)
{
    int n = 0;

    n += snprintf(line, LINE_MOST, "%llu\t", (unsigned long long)r->number);
    for (size_t i = 0; i < sizeof(r->id); i++) {
        n += snprintf(line + n, LINE_MOST - (size_t)n, "%02x", r->id[i]);
    }
    n += snprintf(line + n, LINE_MOST - (size_t)n, "\t%u\t%s\t%s\t%lld\t%u\t%llu\t%llu\t%llu\n",
                  r->who->uid, lane_kind_name(r->kind),
                  r->stop_reason               ? "ending"
                  : r->state == REQUEST_QUEUED ? "waiting"
                                               : "running",
                  (long long)((clock_ns() - r->accepted_ns) / 1000000),
                  r->state == REQUEST_QUEUED ? r->place : 0, (unsigned long long)r->log.n_tokens,
                  (unsigned long long)(r->log.tlv_bytes + r->in_bytes),
                  (unsigned long long)r->log.text_bytes);
    return n;
}

void requests_serve(struct front *f, struct lane *l, const struct lane_record *rec)
{
    const struct lease *lease = bulk_lease(l, rec->h.id, rec->lease.buf, rec->lease.generation);
    bool all = requests_admin(l);
    char text[PAGE_BYTES];
    size_t room = sizeof(text);
    size_t n = 0;

    if (!lease) {
        return;
    }
    if (lease->length < room) {
        room = (size_t)lease->length;
    }
    number_places(f);
    for (const struct request *r = f->requests.open.oldest; r; r = r->age_next) {
        bool seen = r->number <= rec->lease.offset;
        bool own = !l->privileged && r->who->uid == l->uid;
        char line[LINE_MOST];
        size_t len;

        if (seen || !(all || own)) {
            continue;
        }
        len = (size_t)write_line(r, line);
        if (len > room - n) {
            if (n == 0) {
                lane_send_error(l, bulk_id(rec->h.id), LANE_ERR_TOO_LARGE, 0,
                                "a list of requests needs a lease of at least %d bytes",
                                (int)LINE_MOST);
                return;
            }
            break;
        }
        memcpy(text + n, line, len);
        n += len;
    }
    bulk_text(l, rec->h.id, lease, rec->lease.buf, "the requests", text, n);
}
