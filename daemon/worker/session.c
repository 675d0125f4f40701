/* SPDX-License-Identifier: Apache-2.0 */
/* Both ways are streams with a small buffer: a conversation of a gigabyte needs no memory of the
 * plan's, and a disk that is full, a copy-on-write file system that only then notices, or a file
 * that is cut short while it is read say so with an errno (a map would with a signal). */

#include "daemon/worker/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/checked.h"
#include "base/cleanup.h"
#include "engine/engine.h"

_Static_assert(sizeof(struct session_header) == SESSION_HEADER_BYTES, "no padding");

#define SUFFIX ".session"
#define LOCK_FILE ".lock"
enum { BUFFER = 64 << 10, YIELD_BYTES = 1 << 20, SESSION_MOST_TOKENS = 1 << 24 };
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

int session_start(struct error *reterr)
{
    uint8_t sum[32];

    return sha("", 0, sum, reterr);
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

static int read_all(const struct session *s, uint64_t at, void *buf, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (uint8_t *)buf + done, n - done, (off_t)(at + done));

        if (got == 0) {
            return -EBADMSG; /* cut short since its size was asked */
        }
        if (got < 0 && errno != EINTR) {
            return -errno;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

int session_read(void *arg, uint64_t at, void *buf, size_t n)
{
    const struct session *s = arg;

    return read_all(s, s->head.block_offset + at, buf, n);
}

static int unreadable(const struct session *s, int err, struct error *reterr)
{
    return err == -EBADMSG ? broken(s, "it is cut short", reterr)
                           : error_set_errno(reterr, err, "session %s", s->name);
}

/* The sum of the file's bytes from `at` on. */
static int check_file_sum(const struct session *s, uint64_t at, uint64_t n, const uint8_t want[32],
                          const char *what, const atomic_bool *stop, struct error *reterr)
{
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    uint8_t *buf = malloc(BUFFER);
    uint8_t got[32];
    bool ok = sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;
    int r = 0;

    if (!buf) {
        EVP_MD_CTX_free(sum);
        return error_set(reterr, -ENOMEM, "no memory to read session %s", s->name);
    }
    for (uint64_t done = 0; ok && !r && done < n; done += BUFFER) {
        size_t part = n - done < BUFFER ? (size_t)(n - done) : BUFFER;

        if (done % YIELD_BYTES == 0 && atomic_load(stop)) {
            r = -ECANCELED;
            break;
        }
        r = read_all(s, at + done, buf, part);
        ok = r || EVP_DigestUpdate(sum, buf, part) == 1;
        if (done % YIELD_BYTES == 0) { /* under a real-time policy a step may not preempt us */
            (void)sched_yield();
        }
    }
    ok = ok && EVP_DigestFinal_ex(sum, got, NULL) == 1;
    if (r) {
        r = unreadable(s, r, reterr);
    } else if (!ok) {
        r = error_set(reterr, -EIO, "no SHA-256 from libcrypto");
    } else if (memcmp(got, want, sizeof(got)) != 0) {
        r = broken(s, what, reterr);
    }
    EVP_MD_CTX_free(sum);
    free(buf);
    return r;
}

/* The text is copied, and its copy looked at. */
static int take_text(struct session *s, int32_t n_vocab, struct error *reterr)
{
    const struct session_header *h = &s->head;
    size_t bytes = (size_t)(h->block_offset - SESSION_HEADER_BYTES);
    int r;

    s->text = malloc(bytes);
    if (!s->text) {
        return error_set(reterr, -ENOMEM, "no memory for the text of session %s", s->name);
    }
    r = read_all(s, SESSION_HEADER_BYTES, s->text, bytes);
    if (r) {
        return unreadable(s, r, reterr);
    }
    r = check_sum(s, s->text, bytes, h->text_sha, "its text's sum is wrong", reterr);
    for (uint32_t i = 0; !r && i < h->n_text; i++) {
        if (s->text[i] < 0 || s->text[i] >= n_vocab) {
            r = broken(s, "a token", reterr);
        }
    }
    return r;
}

int session_load(struct session *s, int32_t n_vocab, const atomic_bool *stop, struct error *reterr)
{
    const struct session_header *h = &s->head;
    uint64_t text_bytes = (uint64_t)h->n_text * sizeof(int32_t);
    int r;

    if (h->n_text == 0 || h->n_text > SESSION_MOST_TOKENS || h->n_prompt == 0 ||
        h->n_prompt >= h->n_text || h->n_answer >= h->n_text ||
        h->block_offset % SESSION_HEADER_BYTES ||
        !checked_range(SESSION_HEADER_BYTES, text_bytes, h->block_offset) ||
        h->block_offset - SESSION_HEADER_BYTES - text_bytes >= SESSION_HEADER_BYTES ||
        !checked_range(h->block_offset, h->block_bytes, s->file_bytes) ||
        h->block_offset + h->block_bytes != s->file_bytes) {
        return broken(s, "it is cut short, or its sizes are wrong", reterr);
    }
    r = take_text(s, n_vocab, reterr);
    return r ? r
             : check_file_sum(s, h->block_offset, h->block_bytes, h->block_sha,
                              "its cache's sum is wrong", stop, reterr);
}

static int read_header(struct session *s, struct error *reterr)
{
    struct stat st;
    int r;

    if (fstat(s->fd, &st)) {
        return error_set_errno(reterr, -errno, "session %s", s->name);
    }
    if (!S_ISREG(st.st_mode) || st.st_size < SESSION_HEADER_BYTES) {
        return broken(s, "it is cut short", reterr);
    }
    s->file_bytes = (uint64_t)st.st_size;
    r = read_all(s, 0, &s->head, sizeof(s->head));
    return r ? unreadable(s, r, reterr) : 0;
}

void session_init(struct session *s)
{
    *s = (struct session){.dir = -1, .fd = -1, .lock_fd = -1};
}

/* FNV-1a: two names that share a byte would only wait for each other. */
static off_t lock_byte(const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (; *name; name++) {
        h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    }
    return (off_t)(h >> 2);
}

/* Two daemons may have one folder: whoever read the file first would lose its turn to the other's
 * save. A byte of the folder's LOCK_FILE stands for each name, and the kernel gives it back with
 * the descriptor. Where the file cannot be made, or the file system has no locks, there are none.
 */
static int lock_name(struct session *s, struct error *reterr)
{
    struct flock l = {.l_type = F_WRLCK, .l_start = lock_byte(s->name), .l_len = 1};

    s->lock_fd = openat(s->dir, LOCK_FILE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0) {
        return errno == ELOOP ? error_set_errno(reterr, -errno, "the lock of session %s", s->name)
                              : 0;
    }
    if (fcntl(s->lock_fd, F_OFD_SETLK, &l) && (errno == EAGAIN || errno == EACCES)) {
        return error_set(reterr, -EBUSY,
                         "session %s is in use by another request, of this daemon or another",
                         s->name);
    }
    return 0;
}

int session_open(struct session *s, const struct engine *e, int dir, const char *name, size_t len,
                 struct error *reterr)
{
    const struct engine_info *info = engine_info(e);
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
    r = lock_name(s, reterr);
    if (r) {
        return r;
    }
    path_of(s, "", path);
    s->fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (s->fd < 0) {
        return errno == ENOENT ? 0 : error_set_errno(reterr, -errno, "session %s", s->name);
    }
    r = read_header(s, reterr);
    return r ? r : check_header(s, info, reterr);
}

void session_unlock(struct session *s)
{
    close_fd(&s->lock_fd);
}

void session_close(struct session *s)
{
    free(s->text);
    s->text = NULL;
    close_fd(&s->fd);
    session_unlock(s);
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
            strcmp(f->d_name, BUDGET_FILE) != 0 && strcmp(f->d_name, LOCK_FILE) != 0 &&
            fstatat(s->dir, f->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            *ret += (uint64_t)st.st_size;
        }
    }
    (void)closedir(d);
    return 0;
}

static int failed(const struct session *s, int err, struct error *reterr)
{
    return error_set_errno(reterr, err, "session %s cannot be written", s->name);
}

/* The cause has 95 bytes in a LANE_DONE, so bytes are told in MB and time in its largest unit. */
static int over_budget(const struct session *s, const struct budget *b, uint64_t bytes,
                       struct error *reterr)
{
    int64_t wait_s = budget_wait_s(b, bytes);
    const char *unit = wait_s > 5400 ? "hours" : wait_s > 90 ? "minutes" : "seconds";
    int64_t units = wait_s > 5400 ? (wait_s + 3599) / 3600
                    : wait_s > 90 ? (wait_s + 59) / 60
                                  : wait_s;
    double mb = 1e6;

    if (wait_s < 0) {
        return error_set(reterr, -EDQUOT,
                         "%.2f MB to write, session-writes allows %.2f a day: never",
                         (double)bytes / mb, (double)s->writes / mb);
    }
    return error_set(reterr, -EDQUOT,
                     "%.2f MB to write, %.2f left of session-writes, %.2f a day: in %lld %s",
                     (double)bytes / mb, (double)budget_left(b) / mb, (double)s->writes / mb,
                     (long long)units, unit);
}

/* Counts what is about to be written, and the budget's own slot. Without a limit a count that fails
 * is no reason not to save. */
static int charge(const struct session *s, uint64_t bytes, struct error *reterr)
{
    struct budget_time now;
    struct budget b;
    int r;

    bytes += SESSION_HEADER_BYTES;
    budget_now(&now);
    r = budget_read(s->dir, s->writes, &now, &b);
    r = r ? r : budget_charge(s->dir, &b, bytes);
    if (s->writes == 0) {
        return 0;
    }
    if (r == -EDQUOT) {
        return over_budget(s, &b, bytes, reterr);
    }
    return r ? error_set_errno(reterr, r, "what may be written a day cannot be counted") : 0;
}

/* After a save that failed. What cannot be given back stays counted. */
static void give_back(const struct session *s, uint64_t bytes)
{
    struct budget_time now;
    struct budget b;

    budget_now(&now);
    if (bytes && budget_read(s->dir, s->writes, &now, &b) == 0) {
        (void)!budget_give_back(s->dir, &b, bytes);
    }
}

/* The file being written: what came last, and the sum of it since the last cut. */
struct writer {
    int fd;
    uint64_t at;
    uint64_t n_put; /* bytes that were written */
    EVP_MD_CTX *sum;
};

static int write_at(struct writer *w, const void *data, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(w->fd, (const uint8_t *)data + done, n - done, (off_t)(at + done));

        if (put < 0 && errno != EINTR) {
            return -errno;
        }
        done += put > 0 ? (size_t)put : 0;
        w->n_put += put > 0 ? (uint64_t)put : 0;
    }
    return 0;
}

static int write_on(struct writer *w, const void *data, size_t n)
{
    int r = write_at(w, data, n, w->at);

    w->at += n;
    return r ? r : EVP_DigestUpdate(w->sum, data, n) == 1 ? 0 : -EIO;
}

static int write_zeros(struct writer *w, size_t n)
{
    static const uint8_t zeros[SESSION_HEADER_BYTES];

    return write_on(w, zeros, n);
}

/* The sum so far; another one begins. */
static int cut_sum(struct writer *w, uint8_t ret[32])
{
    return EVP_DigestFinal_ex(w->sum, ret, NULL) == 1 &&
                   EVP_DigestInit_ex(w->sum, EVP_sha256(), NULL) == 1
               ? 0
               : -EIO;
}

static int write_text(struct writer *w, const struct session_text *text,
                      const struct session_header *h)
{
    size_t bytes = text->n * sizeof(*text->ids);
    int r = write_on(w, text->ids, bytes);

    return r ? r : write_zeros(w, (size_t)h->block_offset - SESSION_HEADER_BYTES - bytes);
}

static int write_block(const struct session *s, const struct session_block *block, struct writer *w,
                       struct error *reterr)
{
    for (uint64_t done = 0; done < block->bytes;) {
        const void *data;
        size_t n;
        int r = block->next(block->arg, &data, &n, reterr);

        if (r) {
            return error_prefix(reterr, "session %s", s->name);
        }
        r = write_on(w, data, n);
        if (r) {
            return failed(s, r, reterr);
        }
        done += n;
    }
    return 0;
}

static int write_parts(const struct session *s, const struct session_text *text,
                       const struct session_block *block, struct session_header *h,
                       struct writer *w, struct error *reterr)
{
    int r = EVP_DigestInit_ex(w->sum, EVP_sha256(), NULL) == 1 ? 0 : -EIO;

    r = r ? r : write_text(w, text, h);
    r = r ? r : cut_sum(w, h->text_sha);
    if (r) {
        return failed(s, r, reterr);
    }
    r = write_block(s, block, w, reterr);
    if (r) {
        return r;
    }
    r = cut_sum(w, h->block_sha);
    memcpy(h->magic, magic, sizeof(magic));
    h->version = SESSION_VERSION;
    h->n_text = (uint32_t)text->n;
    h->n_prompt = (uint32_t)text->n_prompt;
    h->n_answer = (uint32_t)text->n_answer;
    memcpy(h->identity, text->identity, sizeof(h->identity));
    (void)snprintf(h->policy, sizeof(h->policy), "%s", text->policy);
    memcpy(h->request, s->request, sizeof(h->request));
    r = r ? r : sha(h, offsetof(struct session_header, sha), h->sha, reterr);
    r = r ? r : write_at(w, h, sizeof(*h), 0);
    r = r || fsync(w->fd) == 0 ? r : -errno;
    return r ? failed(s, r, reterr) : 0;
}

/* Room is asked for first, where the file system knows how to: a disk that is full says so before
 * anything is written. */
static int write_file(const struct session *s, const struct session_text *text,
                      const struct session_block *block, struct session_header *h, int fd,
                      uint64_t *ret_put, struct error *reterr)
{
    struct writer w = {.fd = fd, .at = SESSION_HEADER_BYTES, .sum = EVP_MD_CTX_new()};
    int r;

    if (fallocate(fd, 0, 0, (off_t)(h->block_offset + h->block_bytes)) && errno != EOPNOTSUPP &&
        errno != ENOSYS && errno != EINTR) {
        r = failed(s, -errno, reterr);
    } else if (!w.sum) {
        r = error_set(reterr, -ENOMEM, "no memory to save session %s", s->name);
    } else {
        r = write_parts(s, text, block, h, &w, reterr);
    }
    *ret_put = w.n_put;
    EVP_MD_CTX_free(w.sum);
    return r;
}

int session_write(const struct session *s, const struct session_text *text,
                  const struct session_block *block, uint64_t *ret_bytes, struct error *reterr)
{
    struct session_header head = {.block_bytes = block->bytes};
    AUTO_CLOSE int fd = -1;
    uint64_t others = 0;
    uint64_t n_put = 0;
    char next[96];
    int r = bytes_of_others(s, &others, reterr);

    if (r) {
        return r;
    }
    head.block_offset =
        (SESSION_HEADER_BYTES + text->n * sizeof(*text->ids) + SESSION_HEADER_BYTES - 1) /
        SESSION_HEADER_BYTES * SESSION_HEADER_BYTES;
    *ret_bytes = head.block_offset + head.block_bytes;
    if (*ret_bytes > s->quota || others > s->quota - *ret_bytes) {
        return error_set(reterr, -EDQUOT,
                         "session %s takes %llu bytes, this user's others %llu, allowed are %llu",
                         s->name, (unsigned long long)*ret_bytes, (unsigned long long)others,
                         (unsigned long long)s->quota);
    }
    r = charge(s, *ret_bytes, reterr);
    if (r) {
        return r;
    }
    path_of(s, ".", next);
    (void)unlinkat(s->dir, next, 0); /* of a save that a crash cut short */
    fd = openat(s->dir, next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        r = failed(s, -errno, reterr);
        give_back(s, *ret_bytes);
        return r;
    }
    r = write_file(s, text, block, &head, fd, &n_put, reterr);
    if (r) {
        (void)unlinkat(s->dir, next, 0);
        give_back(s, *ret_bytes - n_put);
    }
    return r;
}

/* The folders above may be as new as the session: their names are not safe before those that hold
 * them are synced. Up to the first that is not this user's. */
static int sync_above(int dir)
{
    enum { LEVELS = 8 };
    AUTO_CLOSE int at = -1;

    for (int i = 0; i < LEVELS; i++) {
        struct stat st;
        int up = openat(i == 0 ? dir : at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (up < 0) { /* not readable: somebody else's */
            return errno == EACCES || errno == EPERM ? 0 : -errno;
        }
        close_fd(&at);
        at = up;
        if (fsync(at) && errno != EROFS && errno != EINVAL) {
            return -errno;
        }
        if (fstat(at, &st) || st.st_uid != geteuid()) {
            return 0;
        }
    }
    return 0;
}

int session_commit(const struct session *s, struct error *reterr)
{
    char next[96];
    char path[96];
    int r;

    path_of(s, "", path);
    path_of(s, ".", next);
    /* Before the session has its name: a turn that finds one does not sync them again. */
    r = session_exists(s) ? 0 : sync_above(s->dir);
    r = r || renameat(s->dir, next, s->dir, path) == 0 ? r : -errno;
    if (r) {
        r = failed(s, r, reterr);
        (void)unlinkat(s->dir, next, 0);
        return r;
    }
    return fsync(s->dir) ? failed(s, -errno, reterr) : 0;
}
