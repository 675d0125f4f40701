/* SPDX-License-Identifier: Apache-2.0 */
/* A hello says what we speak; its reply is checked before anything that it names is used. */

#include "link/hello.h"

#include <errno.h>
#include <stdio.h>

void hello_make(struct lane_record *ret, const char *program, uint64_t c2e_bytes,
                uint64_t e2c_bytes)
{
    lane_record_init(ret, LANE_HELLO, NULL);
    ret->hello.magic = LANE_MAGIC;
    ret->hello.abi_major = LANE_ABI_MAJOR;
    ret->hello.abi_minor = LANE_ABI_MINOR;
    ret->hello.record_bytes = LANE_RECORD_BYTES;
    ret->hello.c2e_bytes = c2e_bytes;
    ret->hello.e2c_bytes = e2c_bytes;
    (void)snprintf((char *)ret->hello.program, sizeof(ret->hello.program), "%s", program);
}

int hello_check(const struct lane_hello_reply *h, struct error *reterr)
{
    if (h->abi_major != LANE_ABI_MAJOR || h->record_bytes != LANE_RECORD_BYTES) {
        return error_set(reterr, -EPROTONOSUPPORT,
                         "the daemon speaks version %u.%u of the lane, this %d.%d", h->abi_major,
                         h->abi_minor, (int)LANE_ABI_MAJOR, (int)LANE_ABI_MINOR);
    }
    if (h->max_request_bytes == 0 || h->max_request_bytes > h->c2e_bytes) {
        return error_set(reterr, -EBADMSG,
                         "the daemon offers requests of %u bytes in an arena of %llu",
                         h->max_request_bytes, (unsigned long long)h->c2e_bytes);
    }
    return 0;
}
