/* SPDX-License-Identifier: Apache-2.0 */
/* dtype_dump decode|encode TYPE: blocks on stdin, f32 on stdout, or the other way round. The C side
 * of tests/golden/check_dtype_gguf.py. Exit 2: usage; 1: refused. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/dtype.h"

static char *read_all(size_t *ret_size)
{
    size_t room = 1 << 20;
    char *p = malloc(room);
    size_t n = 0;
    size_t got;

    while (p && (got = fread(p + n, 1, room - n, stdin)) > 0) {
        n += got;
        if (n == room) {
            room *= 2;
            char *q = realloc(p, room);

            if (!q) {
                free(p);
            }
            p = q;
        }
    }
    *ret_size = n;
    return p;
}

int main(int argc, char **argv)
{
    int type = argc == 3 ? dtype_from_name(argv[2]) : -EINVAL;
    const struct dtype_info *info = type < 0 ? NULL : dtype_info((uint32_t)type);
    size_t size;
    uint64_t n;
    size_t n_out;
    void *out;
    int r = 0;

    if (!info || (strcmp(argv[1], "decode") != 0 && strcmp(argv[1], "encode") != 0)) {
        (void)fprintf(stderr, "usage: dtype_dump decode|encode TYPE < in > out\n");
        return 2;
    }
    char *in = read_all(&size);
    if (!in) {
        return 1;
    }
    if (argv[1][0] == 'd') {
        n = size / (size_t)info->block_bytes * (size_t)info->block_len;
        n_out = n * sizeof(float);
        out = malloc(n_out + 1);
        if (out) {
            dtype_decode((enum dtype)type, in, out, n);
        }
    } else {
        n = size / sizeof(float);
        n_out = n / (size_t)info->block_len * (size_t)info->block_bytes;
        out = malloc(n_out + 1);
        r = out ? dtype_encode((enum dtype)type, (float *)in, out, n) : 0;
    }
    if (!out || r < 0 || fwrite(out, 1, n_out, stdout) != n_out) {
        (void)fprintf(stderr, "dtype_dump: failed (%d)\n", r);
        r = -1;
    }
    free(out);
    free(in);
    return r < 0 ? 1 : 0;
}
