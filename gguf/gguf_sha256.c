/* SPDX-License-Identifier: Apache-2.0 */
/* The SHA-256 of a file, remembered. An overlay names its base by it, and hashing gigabytes at each
 * start would cost seconds; so results are appended to CACHE_DIR/sha256, one line each:
 *
 *     DEVICE INODE SIZE MTIME_NS HEX
 *
 * A line counts only when all four numbers are the file's own, before and after hashing. The cache
 * is a help, never a duty: what cannot be read or written there is ignored. One write(2) with
 * O_APPEND a line, so several processes may share it; past 64 KiB it begins anew. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hex.h"
#include "gguf/gguf.h"

enum { PIECE = 1 << 20, MAX_CACHE_BYTES = 64 << 10 };

struct identity {
    char text[100]; /* the four numbers and a space */
};

static struct identity identify(const struct stat *st)
{
    struct identity id;

    (void)snprintf(id.text, sizeof(id.text), "%" PRIuMAX " %" PRIuMAX " %" PRIdMAX " %" PRIdMAX " ",
                   (uintmax_t)st->st_dev, (uintmax_t)st->st_ino, (intmax_t)st->st_size,
                   (intmax_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec);
    return id;
}

static bool cache_path(const char *dir, char ret[PATH_MAX])
{
    return dir && snprintf(ret, PATH_MAX, "%s/sha256", dir) < PATH_MAX;
}

static bool cache_find(const char *dir, const struct identity *id, char ret_hex[65])
{
    char path[PATH_MAX];
    char line[256];
    size_t n = strlen(id->text);
    bool found = false;
    FILE *f = cache_path(dir, path) ? fopen(path, "re") : NULL;

    if (!f) {
        return false;
    }
    while (!found && fgets(line, sizeof(line), f)) {
        const char *hex = line + n;

        found = strncmp(line, id->text, n) == 0 && strspn(hex, "0123456789abcdef") == 64 &&
                hex[64] == '\n';
        if (found) {
            memcpy(ret_hex, hex, 64);
            ret_hex[64] = '\0';
        }
    }
    (void)fclose(f);
    return found;
}

static void cache_add(const char *dir, const struct identity *id, const char *hex)
{
    char path[PATH_MAX];
    char line[256];
    struct stat st;
    AUTO_CLOSE int fd = -1;

    if (!cache_path(dir, path)) {
        return;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &st) == 0 && st.st_size > MAX_CACHE_BYTES && ftruncate(fd, 0) < 0) {
        return;
    }
    int n = snprintf(line, sizeof(line), "%s%s\n", id->text, hex);
    if (write(fd, line, (size_t)n) != n) {
        return; /* a broken line is no line */
    }
}

static int hash_file(int fd, EVP_MD_CTX *ctx, uint8_t *piece, uint8_t ret[32])
{
    ssize_t n;

    if (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
        return -ENOTSUP;
    }
    while ((n = read(fd, piece, PIECE)) != 0) {
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        if (EVP_DigestUpdate(ctx, piece, (size_t)n) != 1) {
            return -ENOTSUP;
        }
    }
    return EVP_DigestFinal_ex(ctx, ret, NULL) == 1 ? 0 : -ENOTSUP;
}

static int hash_to_hex(int fd, char ret_hex[65])
{
    uint8_t *piece = malloc(PIECE);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    uint8_t sum[32];
    int r = piece && ctx ? hash_file(fd, ctx, piece, sum) : -ENOMEM;

    EVP_MD_CTX_free(ctx);
    free(piece);
    if (r == 0) {
        hex_of(sum, sizeof(sum), ret_hex);
    }
    return r;
}

int gguf_sha256(const char *path, const char *cache_dir, char ret_hex[65], struct error *reterr)
{
    struct stat before;
    struct stat after;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int r;

    if (fd < 0 || fstat(fd, &before) < 0) {
        return error_set_errno(reterr, -errno, "cannot open %.150s", path);
    }
    if (!S_ISREG(before.st_mode)) {
        return error_set(reterr, -EBADMSG, "%.150s is not a regular file", path);
    }
    struct identity id = identify(&before);
    if (cache_find(cache_dir, &id, ret_hex)) {
        return 0;
    }
    r = hash_to_hex(fd, ret_hex);
    if (r < 0) {
        return error_set_errno(reterr, r, "cannot compute the SHA-256 of %.150s", path);
    }
    if (fstat(fd, &after) == 0 && strcmp(identify(&after).text, id.text) == 0) {
        cache_add(cache_dir, &id, ret_hex);
    }
    return 0;
}
