/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/eval/input.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"

int input_file(const char *path, char **ret, size_t *ret_len, struct error *reterr)
{
    AUTO_FREE char *buf = NULL;
    struct stat st;
    FILE *f = fopen(path, "rb");

    if (!f) {
        return error_set_errno(reterr, -errno, "cannot read %s", path);
    }
    if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        (void)fclose(f);
        return error_set(reterr, -EINVAL, "%s is no regular file", path);
    }
    size_t len = (size_t)st.st_size;

    buf = malloc(len + 1);
    if (!buf || fread(buf, 1, len, f) != len) {
        (void)fclose(f);
        return error_set(reterr, -EIO, "cannot read %s", path);
    }
    (void)fclose(f);
    *ret = STEAL(buf);
    *ret_len = len;
    return 0;
}

int input_ids(const char *path, int32_t **ret, int32_t *ret_n, struct error *reterr)
{
    AUTO_FREE char *text = NULL;
    AUTO_FREE int32_t *ids = NULL;
    size_t len = 0;
    int32_t n = 0;
    int err = input_file(path, &text, &len, reterr);

    if (err) {
        return err;
    }
    text[len] = 0;
    ids = calloc(len / 2 + 2, sizeof(*ids));
    if (!ids || len > INT32_MAX) {
        return error_set(reterr, -ENOMEM, "no memory for the ids of %s", path);
    }
    for (char *at = text; *(at += strspn(at, " \t\r\n,"));) {
        char *end;
        long long v = strtoll(at, &end, 10);

        if (end == at || v < 0 || v > INT32_MAX) {
            return error_set(reterr, -EINVAL, "%s: offset %td is no token id", path, at - text);
        }
        ids[n++] = (int32_t)v;
        at = end;
    }
    ids[n] = 0;
    *ret = STEAL(ids);
    *ret_n = n + 1;
    return 0;
}
