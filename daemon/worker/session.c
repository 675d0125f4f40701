/* SPDX-License-Identifier: Apache-2.0 */
/* Both ways go through a map of the file: the snapshot is written straight into the page cache and
 * read straight from it, so that a conversation of a gigabyte needs no memory of the plan's. Room
 * on the disk is taken before the first byte is written, since a map has no way to say that it is
 * full. */

#include "daemon/worker/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "engine/engine.h"

_Static_assert(sizeof(struct session_header) == SESSION_HEADER_BYTES, "no padding");

#define SUFFIX ".session"
static const char magic[8] = "PIPITSES";

static void path_of(const struct session *s, const char *prefix, char ret[96])
{
    (void)snprintf(ret, 96, "%s%s%s", prefix, s->name, SUFFIX);
}

static int sha(const void *data, size_t n, uint8_t ret[32], struct error *reterr)
{
    return EVP_Digest(data, n, ret, NULL, EVP_sha256(), NULL) == 1
               ? 0
               : error_set(reterr, -EIO, "no SHA-256 from libcrypto");
}

/* ---- reading --------------------------------------------------------------------------------- */

static int broken(const struct session *s, const char *what, struct error *reterr)
{
    return error_set(reterr, -EBADMSG, "session %s is damaged: %s", s->name, what);
}

static int check_sum(const struct session *s, const void *data, size_t n, const uint8_t want[32],
                     const char *what, struct error *reterr)
{
    uint8_t got[32];
    int r = sha(data, n, got, reterr);

    if (!r && memcmp(got, want, sizeof(got)) != 0) {
        r = broken(s, what, reterr);
    }
    return r;
}

static int check_header(const struct session *s, const struct engine_info *info,
                        struct error *reterr)
{
    const struct session_header *h = &s->head;
    int r;

    if (memcmp(h->magic, magic, sizeof(magic)) != 0) {
        return broken(s, "it does not begin as a session", reterr);
    }
    if (h->version != SESSION_VERSION) {
        return error_set(reterr, -ENOTSUP, "session %s is of version %u, this is %d", s->name,
                         h->version, (int)SESSION_VERSION);
    }
    r = check_sum(s, h, offsetof(struct session_header, sha), h->sha, "its header's sum is wrong",
                  reterr);
    if (r) {
        return r;
    }
    if (memcmp(h->identity, info->identity, sizeof(h->identity)) != 0) {
        return error_set(reterr, -EBADMSG, "session %s was saved with another model or overlay",
                         s->name);
    }
    if (!memchr(h->policy, 0, sizeof(h->policy))) {
        return broken(s, "its policy", reterr);
    }
    return 0;
}

static int check_parts(struct session *s, const struct engine_info *info, struct error *reterr)
{
    const struct session_header *h = &s->head;
    uint64_t text_bytes = (uint64_t)h->n_text * sizeof(int32_t);
    int r;

    if (h->n_text == 0 || h->n_text > INT32_MAX || h->n_prompt == 0 || h->n_prompt >= h->n_text ||
        h->block_offset % SESSION_HEADER_BYTES ||
        !checked_range(SESSION_HEADER_BYTES, text_bytes, h->block_offset) ||
        !checked_range(h->block_offset, h->block_bytes, s->map_bytes) ||
        h->block_offset + h->block_bytes != s->map_bytes) {
        return broken(s, "it is cut short, or its sizes are wrong", reterr);
    }
    s->text = (const int32_t *)(const void *)((const uint8_t *)s->map + SESSION_HEADER_BYTES);
    s->block = (const uint8_t *)s->map + h->block_offset;
    r = check_sum(s, s->text, (size_t)(h->block_offset - SESSION_HEADER_BYTES), h->text_sha,
                  "its text's sum is wrong", reterr);
    if (!r) {
        r = check_sum(s, s->block, (size_t)h->block_bytes, h->block_sha, "its cache's sum is wrong",
                      reterr);
    }
    for (uint32_t i = 0; !r && i < h->n_text; i++) {
        if (s->text[i] < 0 || s->text[i] >= info->n_vocab) {
            r = broken(s, "a token", reterr);
        }
    }
    return r;
}

static int map_file(struct session *s, int fd, struct error *reterr)
{
    struct stat st;

    if (fstat(fd, &st)) {
        return error_set_errno(reterr, -errno, "session %s", s->name);
    }
    if (!S_ISREG(st.st_mode) || st.st_size < SESSION_HEADER_BYTES) {
        return broken(s, "it is cut short", reterr);
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    if (p == MAP_FAILED) {
        return error_set_errno(reterr, -errno, "session %s", s->name);
    }
    s->map = p;
    s->map_bytes = (size_t)st.st_size;
    memcpy(&s->head, p, sizeof(s->head));
    return 0;
}

int session_open(struct session *s, const struct engine *e, int dir, const char *name, size_t len,
                 struct error *reterr)
{
    const struct engine_info *info = engine_info(e);
    AUTO_CLOSE int fd = -1;
    char path[96];
    int r;

    s->dir = dir;
    if (!lane_session_name_ok(name, len)) {
        return error_set(reterr, -EINVAL,
                         "session name: allowed are 1..%d letters, digits, '.', '_' and '-', the "
                         "first no '.'",
                         (int)LANE_SESSION_NAME);
    }
    memcpy(s->name, name, len);
    s->name[len] = '\0';
    path_of(s, "", path);
    fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? 0 : error_set_errno(reterr, -errno, "session %s", s->name);
    }
    r = map_file(s, fd, reterr);
    r = r ? r : check_header(s, info, reterr);
    return r ? r : check_parts(s, info, reterr);
}

void session_close(struct session *s)
{
    if (s->map) {
        (void)munmap(s->map, s->map_bytes);
        s->map = NULL;
    }
    close_fd(&s->dir);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Bytes of all files in the folder but this session's. */
static int bytes_of_others(const struct session *s, uint64_t *ret, struct error *reterr)
{
    char own[96];
    char next[96];
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    *ret = 0;
    if (!d) {
        int r = error_set_errno(reterr, -errno, "the folder of sessions");

        close_fd(&fd);
        return r;
    }
    path_of(s, "", own);
    path_of(s, ".", next);
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;

        if (strcmp(f->d_name, own) != 0 && strcmp(f->d_name, next) != 0 &&
            fstatat(s->dir, f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            *ret += (uint64_t)st.st_size;
        }
    }
    (void)closedir(d);
    return 0;
}

/* The file's content, into its map. */
static int fill(const struct session *s, struct engine *e, uint64_t handle,
                const struct session_text *text, const struct session_header *sizes, uint8_t *map,
                struct error *reterr)
{
    struct session_header h = *sizes;
    int r = engine_save_to(e, handle, map + h.block_offset, reterr);

    memcpy(h.magic, magic, sizeof(magic));
    h.version = SESSION_VERSION;
    h.n_text = (uint32_t)text->n;
    h.n_prompt = (uint32_t)text->n_prompt;
    memcpy(h.identity, engine_info(e)->identity, sizeof(h.identity));
    (void)snprintf(h.policy, sizeof(h.policy), "%s", text->policy);
    memcpy(h.request, s->request, sizeof(h.request));
    memcpy(map + SESSION_HEADER_BYTES, text->ids, text->n * sizeof(*text->ids));
    r = r ? r
          : sha(map + SESSION_HEADER_BYTES, (size_t)h.block_offset - SESSION_HEADER_BYTES,
                h.text_sha, reterr);
    r = r ? r : sha(map + h.block_offset, (size_t)h.block_bytes, h.block_sha, reterr);
    r = r ? r : sha(&h, offsetof(struct session_header, sha), h.sha, reterr);
    if (!r) {
        memcpy(map, &h, sizeof(h));
    }
    return r;
}

static int failed(const struct session *s, int err, struct error *reterr)
{
    return error_set_errno(reterr, err, "session %s cannot be written", s->name);
}

static int write_file(const struct session *s, struct engine *e, uint64_t handle,
                      const struct session_text *text, const struct session_header *sizes, int fd,
                      struct error *reterr)
{
    size_t bytes = (size_t)(sizes->block_offset + sizes->block_bytes);
    int r = posix_fallocate(fd, 0, (off_t)bytes);

    if (r) {
        return failed(s, -r, reterr);
    }
    uint8_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (map == MAP_FAILED) {
        return failed(s, -errno, reterr);
    }
    r = fill(s, e, handle, text, sizes, map, reterr);
    (void)munmap(map, bytes);
    if (!r && fsync(fd)) {
        r = failed(s, -errno, reterr);
    }
    return r;
}

int session_save(const struct session *s, struct engine *e, uint64_t handle,
                 const struct session_text *text, uint64_t *ret_bytes, struct error *reterr)
{
    struct session_header sizes = {0};
    AUTO_CLOSE int fd = -1;
    uint64_t others = 0;
    char next[96];
    char path[96];
    int r = engine_save_bytes(e, handle, &sizes.block_bytes, reterr);

    r = r ? r : bytes_of_others(s, &others, reterr);
    if (r) {
        return r;
    }
    sizes.block_offset =
        (SESSION_HEADER_BYTES + text->n * sizeof(*text->ids) + SESSION_HEADER_BYTES - 1) /
        SESSION_HEADER_BYTES * SESSION_HEADER_BYTES;
    *ret_bytes = sizes.block_offset + sizes.block_bytes;
    if (*ret_bytes > s->quota || others > s->quota - *ret_bytes) {
        return error_set(reterr, -EDQUOT,
                         "session %s takes %llu bytes, this user's others %llu, allowed are %llu",
                         s->name, (unsigned long long)*ret_bytes, (unsigned long long)others,
                         (unsigned long long)s->quota);
    }
    path_of(s, "", path);
    path_of(s, ".", next);
    (void)unlinkat(s->dir, next, 0); /* of a save that a crash cut short */
    fd = openat(s->dir, next, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return failed(s, -errno, reterr);
    }
    r = write_file(s, e, handle, text, &sizes, fd, reterr);
    if (!r && renameat(s->dir, next, s->dir, path)) {
        r = failed(s, -errno, reterr);
    }
    if (r) {
        (void)unlinkat(s->dir, next, 0);
        return r;
    }
    return fsync(s->dir) ? failed(s, -errno, reterr) : 0;
}
