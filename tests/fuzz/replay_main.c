/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a fuzz harness's seeds in ordinary test runs: each argument is a file, or a folder whose
 * files are taken in order of name. The harness aborts on a broken promise; a run without any seed
 * fails, so that a moved folder is noticed. */

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_replayed;

static bool replay_file(const char *path)
{
    struct stat st;
    FILE *f = fopen(path, "re");
    uint8_t *data = NULL;
    bool ok = false;

    if (!f || fstat(fileno(f), &st)) {
        goto out;
    }
    /* Exactly as long as the seed, so that a sanitizer sees a read beyond its end. */
    data = malloc(st.st_size > 0 ? (size_t)st.st_size : 1);
    if (!data || fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        goto out;
    }
    (void)LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
    n_replayed++;
    ok = true;
out:
    if (!ok) {
        perror(path);
    }
    free(data);
    if (f) {
        (void)fclose(f);
    }
    return ok;
}

static int visible(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool replay_folder(const char *path)
{
    struct dirent **names;
    int n = scandir(path, &names, visible, alphasort);
    bool ok = n >= 0;

    if (n < 0) {
        perror(path);
        return false;
    }
    for (int i = 0; i < n; i++) {
        char file[4096];

        (void)snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
        ok = replay_file(file) && ok;
        free(names[i]);
    }
    free(names);
    return ok;
}

int main(int argc, char **argv)
{
    bool ok = true;

    for (int i = 1; i < argc; i++) {
        struct stat st;

        ok = (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? replay_folder(argv[i])
                                                             : replay_file(argv[i])) &&
             ok;
    }
    (void)printf("%d seeds replayed\n", n_replayed);
    return ok && n_replayed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
