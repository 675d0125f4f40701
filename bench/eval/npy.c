/* SPDX-License-Identifier: Apache-2.0 */
/* .npy version 1.0: magic, a Python literal that describes the array, padded so that the data
 * begins at a multiple of 64, then the data. The shape is fixed at creation; npy_finish() checks
 * that it was kept. */

#include "bench/eval/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct npy {
    FILE *f;
    int64_t n_cols;
    int64_t left;
};

int npy_create(const char *path, int64_t n_rows, int64_t n_cols, struct npy **ret,
               struct error *reterr)
{
    char head[192];
    struct npy *n = calloc(1, sizeof(*n));
    int len =
        snprintf(head, sizeof(head),
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRId64 ", %" PRId64 "), }",
                 n_rows, n_cols);

    if (!n) {
        return error_set(reterr, -ENOMEM, "no memory for %s", path);
    }
    n->f = fopen(path, "wb");
    if (!n->f) {
        int err = -errno;

        free(n);
        return error_set_errno(reterr, err, "cannot write %s", path);
    }
    n->n_cols = n_cols;
    n->left = n_rows;
    int total = (10 + len + 1 + 63) / 64 * 64;
    uint8_t magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};

    magic[8] = (uint8_t)((total - 10) & 0xff);
    magic[9] = (uint8_t)((total - 10) >> 8);
    (void)fwrite(magic, 1, sizeof(magic), n->f);
    (void)fprintf(n->f, "%-*s\n", total - 11, head);
    *ret = n;
    return 0;
}

int npy_write(struct npy *n, const float *rows, int64_t n_rows, struct error *reterr)
{
    size_t count = (size_t)n_rows * (size_t)n->n_cols;

    n->left -= n_rows;
    if (n->left < 0 || fwrite(rows, sizeof(*rows), count, n->f) != count) {
        return error_set(reterr, -EIO, "cannot write rows of the .npy file: disk full?");
    }
    return 0;
}

int npy_finish(struct npy *n, struct error *reterr)
{
    if (!n) {
        return 0;
    }
    bool bad = n->left != 0 || ferror(n->f);

    bad |= fclose(n->f) != 0;
    free(n);
    return bad ? error_set(reterr, -EIO, "the .npy file is incomplete") : 0;
}
