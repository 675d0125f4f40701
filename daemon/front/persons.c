/* SPDX-License-Identifier: Apache-2.0 */
/* A few lines, looked through at each connection and each request. */

#include "daemon/front/persons.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { FILE_BYTES = 1 << 20, NAME_BYTES = 64, HOPS = 4 };

/* false: nothing to count by. */
static bool read_line(const char *line, int (*owner)(const char *name, uint32_t *ret),
                      uint32_t *ret_first, uint32_t *ret_n, uint32_t *ret_owner)
{
    char name[NAME_BYTES];
    uint64_t first;
    uint64_t n;
    uint32_t number;
    char end;

    if (sscanf(line, "%63[^: \t]:%" SCNu64 ":%" SCNu64, name, &first, &n) != 3 || first == 0 ||
        n == 0 || first > UINT32_MAX || n > UINT32_MAX - first) {
        return false;
    }
    if (sscanf(name, "%" SCNu32 "%c", &number, &end) == 1) {
        *ret_owner = number;
    } else if (owner(name, ret_owner)) {
        return false;
    }
    *ret_first = (uint32_t)first;
    *ret_n = (uint32_t)n;
    return true;
}

int persons_parse(const char *text, size_t len, int (*owner)(const char *name, uint32_t *ret),
                  struct persons *ret, struct error *reterr)
{
    struct persons p = {.v = calloc(PERSONS_MOST, sizeof(*p.v))};

    if (!p.v) {
        return error_set(reterr, -ENOMEM, "no memory for the ranges of user ids");
    }
    while (len > 0 && p.n < PERSONS_MOST) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        char line[256];

        if (n < sizeof(line)) {
            memcpy(line, text, n);
            line[n] = '\0';
            p.n += read_line(line, owner, &p.v[p.n].first, &p.v[p.n].n, &p.v[p.n].owner);
        }
        n += end != NULL;
        text += n;
        len -= n;
    }
    *ret = p;
    return 0;
}

static int user_of_name(const char *name, uint32_t *ret)
{
    const struct passwd *pw = getpwnam(name);

    if (!pw) {
        return -ENOENT;
    }
    *ret = (uint32_t)pw->pw_uid;
    return 0;
}

int persons_load(const char *path, struct persons *ret, struct error *reterr)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    AUTO_FREE char *text = NULL;
    size_t len = 0;

    *ret = (struct persons){0};
    if (fd < 0) {
        return errno == ENOENT ? 0 : error_set_errno(reterr, -errno, "%s", path);
    }
    text = malloc(FILE_BYTES);
    if (!text) {
        return error_set(reterr, -ENOMEM, "no memory for %s", path);
    }
    while (len < FILE_BYTES) {
        ssize_t n = read(fd, text + len, FILE_BYTES - len);

        if (n < 0 && errno != EINTR) {
            return error_set_errno(reterr, -errno, "%s", path);
        }
        if (n == 0) {
            break;
        }
        len += n > 0 ? (size_t)n : 0;
    }
    return persons_parse(text, len, user_of_name, ret, reterr);
}

void persons_clear(struct persons *p)
{
    free(p->v);
    *p = (struct persons){0};
}

/* An owner's id may be another's subordinate one, in a container in a container. */
uint32_t persons_of(const struct persons *p, uint32_t uid)
{
    for (int hop = 0; p && hop < HOPS; hop++) {
        uint32_t i = 0;

        while (i < p->n && (uid < p->v[i].first || uid - p->v[i].first >= p->v[i].n)) {
            i++;
        }
        if (i == p->n || p->v[i].owner == uid) {
            break;
        }
        uid = p->v[i].owner;
    }
    return uid;
}
