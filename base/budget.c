/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define DAY_S 86400.0
enum { SLOT_BYTES = 4096, N_SLOTS = 2, BUDGET_VERSION = 1 };
static const char slot_magic[8] = "PIPITBGT";

struct slot {
    char magic[8];
    uint32_t version;
    uint32_t pad;
    uint64_t serial;
    uint8_t boot[16];
    int64_t ns;
    uint64_t used;
    uint64_t written;
    uint64_t sum; /* of all before it: against accidents, not against who may write here */
};

static uint64_t sum_of(const struct slot *s)
{
    const uint8_t *p = (const uint8_t *)s;
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (size_t i = 0; i < offsetof(struct slot, sum); i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

void budget_now(struct budget_time *ret)
{
    AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    struct timespec now;
    char text[40] = "";
    size_t n = 0;

    *ret = (struct budget_time){.ns = 0};
    if (clock_gettime(CLOCK_BOOTTIME, &now) == 0) {
        ret->ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    if (fd < 0 || read(fd, text, sizeof(text) - 1) < 36) {
        return;
    }
    for (const char *p = text; *p && n < sizeof(ret->boot); p++) {
        unsigned byte;

        if (*p != '-' && sscanf(p, "%2x", &byte) == 1) {
            ret->boot[n++] = (uint8_t)byte;
            p++;
        }
    }
}

static bool is_sound(const struct slot *s)
{
    return memcmp(s->magic, slot_magic, sizeof(slot_magic)) == 0 && s->version == BUDGET_VERSION &&
           s->serial > 0 && s->ns >= 0 && s->sum == sum_of(s);
}

/* What of `used` the time since then forgives. A boot that is not known (its id could not be read)
 * may be the same one, after which the least time has gone by. */
static uint64_t forgiven(const struct slot *s, uint64_t limit, const struct budget_time *now)
{
    static const uint8_t unknown[sizeof(s->boot)];
    bool maybe = memcmp(s->boot, now->boot, sizeof(s->boot)) == 0 ||
                 memcmp(s->boot, unknown, sizeof(unknown)) == 0 ||
                 memcmp(now->boot, unknown, sizeof(unknown)) == 0;
    bool same = maybe && now->ns >= s->ns;
    double seconds = (double)(now->ns - (same ? s->ns : 0)) / 1e9;
    double bytes = (double)(limit > s->used ? limit : s->used) / DAY_S * seconds;

    return bytes >= (double)s->used ? s->used : (uint64_t)bytes;
}

int budget_read(int dir, uint64_t limit, const struct budget_time *now, struct budget *ret)
{
    AUTO_CLOSE int fd = openat(dir, BUDGET_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct slot best = {.serial = 0};
    int rc = fd < 0 && errno != ENOENT ? -errno : 0;

    for (off_t i = 0; fd >= 0 && rc == 0 && i < N_SLOTS; i++) {
        struct slot s;
        ssize_t n = pread(fd, &s, sizeof(s), i * SLOT_BYTES);

        if (n < 0) {
            rc = -errno;
        } else if (n == (ssize_t)sizeof(s) && is_sound(&s) && s.serial > best.serial) {
            best = s;
        }
    }
    if (rc) {
        return rc;
    }
    *ret =
        (struct budget){.limit = limit, .written = best.written, .serial = best.serial, .at = *now};
    if (best.serial) {
        ret->used = best.used - forgiven(&best, limit, now);
    }
    return 0;
}

uint64_t budget_left(const struct budget *b)
{
    if (b->limit == 0) {
        return UINT64_MAX;
    }
    return b->used < b->limit ? b->limit - b->used : 0;
}

int64_t budget_wait_s(const struct budget *b, uint64_t bytes)
{
    uint64_t rate = b->limit > b->used ? b->limit : b->used;

    if (bytes <= budget_left(b)) {
        return 0;
    }
    return bytes > b->limit
               ? -1
               : (int64_t)((double)(bytes - (b->limit - b->used)) / ((double)rate / DAY_S)) + 1;
}

static int put(int dir, struct budget *b, uint64_t used, uint64_t written)
{
    AUTO_CLOSE int fd = -1;
    struct slot s = {.version = BUDGET_VERSION,
                     .serial = b->serial + 1,
                     .ns = b->at.ns,
                     .used = used,
                     .written = written};
    ssize_t n;

    memcpy(s.magic, slot_magic, sizeof(s.magic));
    memcpy(s.boot, b->at.boot, sizeof(s.boot));
    s.sum = sum_of(&s);
    fd = openat(dir, BUDGET_FILE, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -errno;
    }
    do {
        n = pwrite(fd, &s, sizeof(s), (off_t)(s.serial % N_SLOTS) * SLOT_BYTES);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(s)) {
        return n < 0 ? -errno : -EIO;
    }
    b->used = s.used;
    b->written = s.written;
    b->serial = s.serial;
    return 0;
}

int budget_charge(int dir, struct budget *b, uint64_t bytes)
{
    if (bytes > budget_left(b)) {
        return -EDQUOT;
    }
    return put(dir, b, b->used + bytes, b->written + bytes);
}

int budget_give_back(int dir, struct budget *b, uint64_t bytes)
{
    return put(dir, b, b->used > bytes ? b->used - bytes : 0,
               b->written > bytes ? b->written - bytes : 0);
}
