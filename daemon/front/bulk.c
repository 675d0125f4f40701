/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/front/bulk.h"

#include <string.h>
#include <unistd.h>

#include "daemon/front/lane.h"

const uint8_t *bulk_id(const uint8_t id[16])
{
    static const uint8_t none[16];

    return memcmp(id, none, sizeof(none)) ? id : NULL;
}

struct lease *bulk_lease(struct lane *l, const uint8_t id[16], uint32_t buf, uint32_t generation)
{
    struct lease *lease = lease_of_client(&l->leases, LANE_ARENA_E2C, buf, generation);

    if (!lease) {
        lane_send_error(l, bulk_id(id), LANE_ERR_DENIED, 0,
                        "the output lease is not this client's");
    }
    return lease;
}

void bulk_text(struct lane *l, const uint8_t id[16], const struct lease *lease, uint32_t buf,
               const char *what, const char *text, size_t n)
{
    struct lane_record out;

    if (n > lease->length) {
        lane_send_error(l, bulk_id(id), LANE_ERR_TOO_LARGE, 0, "%s need a lease of %zu bytes", what,
                        n);
        return;
    }
    if (pwrite(l->e2c_fd, text, n, (off_t)lease->offset) != (ssize_t)n) {
        lane_send_error(l, bulk_id(id), LANE_ERR_INTERNAL, 0, "%s cannot be written", what);
        return;
    }
    lane_record_init(&out, LANE_BULK, id);
    out.bulk = (struct lane_bulk_body){.kind = LANE_BULK_TEXT,
                                       .buf = buf,
                                       .generation = lease->generation,
                                       .n_rows = 1,
                                       .n_cols = (uint32_t)n,
                                       .n_bytes = n};
    lane_send(l, &out);
    lane_record_init(&out, LANE_DONE, id);
    out.done.reason = LANE_REASON_STOP;
    lane_send(l, &out);
}
