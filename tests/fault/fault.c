/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of fault.h over the counter of fail.h. */

#include "tests/fault/fault.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fail.h"

static int count_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d)) {
        n++;
    }
    if (d) {
        (void)closedir(d);
    }
    return n;
}

static void require(bool ok, const char *name, long n, const char *what, const struct error *e)
{
    if (!ok) {
        (void)fprintf(stderr, "%s, failure %ld: %s (code %d, '%s')\n", name, n, what, e->code,
                      e->text);
        abort();
    }
}

int fault_loop(const char *name, fault_body *body, void *arg)
{
    /* The heap's figures are exact only without the per-thread cache, which meson.build turns off;
     * under a sanitizer they are 0 and its own leak check does the work. */
    bool exact = getenv("GLIBC_TUNABLES") != NULL;
    struct error e = {0};
    size_t heap;
    int descriptors;
    int n_failed = 0;

    /* Once in peace: what libraries allocate for good is allocated now. */
    require(body(arg, &e) == 0, name, 0, "it fails without a fault", &e);
    for (long n = 1;; n++) {
        e = (struct error){0};
        descriptors = count_descriptors();
        heap = mallinfo2().uordblks;
        fail_begin(FAIL_ALL);
        fail_nth(n);
        int r = body(arg, &e);
        fail_end();
        require(!exact || mallinfo2().uordblks == heap, name, n, "memory is lost", &e);
        require(count_descriptors() == descriptors, name, n, "a descriptor is lost", &e);
        if (!fail_hit()) {
            require(r == 0, name, n, "it fails without a fault", &e);
            (void)printf("%s: %d of %ld faults reported, the others borne\n", name, n_failed,
                         n - 1);
            return n_failed;
        }
        if (r != 0) {
            require(r == -ENOMEM || r == -EIO || r == -EAGAIN, name, n, "the code is odd", &e);
            require(e.code == r && e.text[0], name, n, "no text", &e);
            n_failed++;
        }
    }
}
