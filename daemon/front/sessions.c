/* SPDX-License-Identifier: Apache-2.0 */
/* Folders are opened one below the other with O_NOFOLLOW, so that nothing that was put in the way
 * leads elsewhere. A list comes in pages, in order of names, each asked for by the last name of the
 * one before: a folder of any size is listed through a small lease, and only what goes into the
 * page has its size looked up. */

#include "daemon/front/sessions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/cleanup.h"
#include "daemon/front/bulk.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"

#define SUFFIX ".session"
enum { LIST_MOST = 128 << 10 }; /* some 2000 names: a page reads the whole folder */

/* Makes a folder and those above it. */
static int make_path(const char *path)
{
    char part[1024];
    size_t n = strlen(path);

    if (n >= sizeof(part)) {
        return -ENAMETOOLONG;
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) && errno != EEXIST && errno != EROFS && errno != EACCES) {
            return -errno;
        }
    }
    return 0;
}

static const char *variable(const struct config *c, const char *name)
{
    size_t n = strlen(name);

    for (char *const *v = c->env; v && *v; v++) {
        if (strncmp(*v, name, n) == 0 && (*v)[n] == '=') {
            return *v + n + 1;
        }
    }
    return NULL;
}

/* The instance's folder below the service's, or that folder where the unit names the instance's. */
static int below_state(const char *state, const char *instance, char *ret, size_t size)
{
    size_t len = strcspn(state, ":"); /* it may list several: the first */
    size_t n = strlen(instance);
    bool own = len > n && state[len - n - 1] == '/' && strncmp(state + len - n, instance, n) == 0;

    return own ? snprintf(ret, size, "%.*s", (int)len, state)
               : snprintf(ret, size, "%.*s/%s", (int)len, state, instance);
}

static int state_path(const struct config *c, char *ret, size_t size)
{
    const char *state = variable(c, "STATE_DIRECTORY");
    const char *xdg = variable(c, "XDG_STATE_HOME");
    const char *home = variable(c, "HOME");
    const char *instance = c->instance ? c->instance : "default";
    int n = -1;

    if (c->state_dir) {
        n = snprintf(ret, size, "%s", c->state_dir);
    } else if (state && state[0] == '/') {
        n = below_state(state, instance, ret, size);
    } else if (xdg && xdg[0] == '/') {
        n = snprintf(ret, size, "%s/pipit/%s", xdg, instance);
    } else if (home && home[0] == '/') {
        n = snprintf(ret, size, "%s/.local/state/pipit/%s", home, instance);
    }
    return n > 0 && (size_t)n < size ? 0 : -ENOENT;
}

static int open_below(int dir, const char *name)
{
    if (mkdirat(dir, name, 0700) && errno != EEXIST) {
        return -errno;
    }
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

static int open_base(const struct config *c, struct error *reterr)
{
    AUTO_CLOSE int base = -1;
    char path[1024];
    int r = state_path(c, path, sizeof(path));

    if (r) {
        return error_set(reterr, r, "no place for sessions: give pipitd a --state-dir");
    }
    r = make_path(path);
    base = r ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = r ? r : base < 0 ? -errno : open_below(base, "sessions");
    return r < 0 ? error_set_errno(reterr, r, "sessions cannot be kept in %s", path) : r;
}

int sessions_folder(const struct config *c, uint32_t uid, struct error *reterr)
{
    AUTO_CLOSE int base = open_base(c, reterr);
    char name[16];
    int fd;

    if (base < 0) {
        return base;
    }
    (void)snprintf(name, sizeof(name), "%u", uid);
    fd = open_below(base, name);
    return fd < 0 ? error_set_errno(reterr, fd, "the folder of this user's sessions") : fd;
}

bool sessions_budget(const struct config *c, uint32_t uid, struct budget *ret)
{
    AUTO_CLOSE int dir = -1;
    struct budget_time now;
    char path[1024];
    char below[sizeof(path) + 32];
    int err;

    if (c->session_writes == 0 || state_path(c, path, sizeof(path))) {
        return false;
    }
    (void)snprintf(below, sizeof(below), "%s/sessions/%u", path, uid);
    dir = open(below, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    err = errno;
    budget_now(&now);
    if (dir < 0) { /* has saved nothing yet */
        *ret = (struct budget){.limit = c->session_writes, .at = now};
        return err == ENOENT;
    }
    return budget_read(dir, c->session_writes, &now, ret) == 0;
}

/* ---- listing and removing -------------------------------------------------------------------- */

struct list {
    char text[LIST_MOST];
    size_t n;
};

struct names {
    char (*v)[LANE_SESSION_NAME + 1];
    size_t n;
    size_t cap;
};

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static bool is_session(const char *file, size_t *ret_stem)
{
    size_t len = strlen(file);
    size_t stem = len - (len > sizeof(SUFFIX) - 1 ? sizeof(SUFFIX) - 1 : 0);

    *ret_stem = stem;
    return stem < len && strcmp(file + stem, SUFFIX) == 0 && lane_session_name_ok(file, stem);
}

/* The names behind `after`, in order. */
static int read_names(DIR *d, const char *after, struct names *ret)
{
    errno = 0;
    for (struct dirent *f; (f = readdir(d)); errno = 0) {
        char name[LANE_SESSION_NAME + 1];
        size_t stem;

        if (!is_session(f->d_name, &stem)) {
            continue;
        }
        memcpy(name, f->d_name, stem);
        name[stem] = '\0';
        if (strcmp(name, after) <= 0) {
            continue;
        }
        if (ret->n == ret->cap) {
            size_t cap = ret->cap ? 2 * ret->cap : 64;
            void *more = realloc(ret->v, cap * sizeof(*ret->v));

            if (!more) {
                return -ENOMEM;
            }
            ret->v = more;
            ret->cap = cap;
        }
        memcpy(ret->v[ret->n++], name, sizeof(name));
    }
    if (errno) {
        return -errno;
    }
    if (ret->n) { /* qsort() takes no null array, not even an empty one */
        qsort(ret->v, ret->n, sizeof(*ret->v), compare);
    }
    return 0;
}

/* As many lines as fit `room` bytes; -E2BIG when not even one does. A session that cannot be looked
 * at is an error: left out, it would seem to be gone. */
static int write_page(int dir, const struct names *names, size_t room, struct list *l)
{
    room = room < sizeof(l->text) - 1 ? room : sizeof(l->text) - 1;
    for (size_t i = 0; i < names->n; i++) {
        char path[LANE_SESSION_NAME + sizeof(SUFFIX)];
        char line[LANE_SESSION_NAME + 48];
        struct stat st;
        size_t n;

        (void)snprintf(path, sizeof(path), "%s%s", names->v[i], SUFFIX);
        if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW)) {
            if (errno != ENOENT) { /* removed meanwhile */
                return -errno;
            }
            continue;
        }
        if (!S_ISREG(st.st_mode)) {
            continue;
        }
        n = (size_t)snprintf(line, sizeof(line), "%s\t%lld\t%lld\n", names->v[i],
                             (long long)st.st_size, (long long)st.st_mtime);
        if (n > room - l->n) {
            return l->n ? 0 : -E2BIG;
        }
        memcpy(l->text + l->n, line, n);
        l->n += n;
    }
    return 0;
}

static int list_files(int dir, const char *after, size_t room, struct list *l, struct error *reterr)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct names names = {0};
    int r;

    if (!d) {
        r = error_set_errno(reterr, -errno, "the folder of this user's sessions");
        close_fd(&fd);
        return r;
    }
    r = read_names(d, after, &names);
    (void)closedir(d);
    r = r ? r : write_page(dir, &names, room, l);
    free(names.v);
    return r == -E2BIG ? error_set(reterr, r, "the list needs a lease of %d bytes", (int)LIST_MOST)
           : r         ? error_set_errno(reterr, r, "cannot list this user's sessions")
                       : 0;
}

static int remove_file(int dir, const char *name, struct error *reterr)
{
    char path[sizeof(((struct lane_session *)0)->name) + sizeof(SUFFIX) + 1];
    bool cut_short;

    if (!lane_session_name_ok(name, strlen(name))) {
        return error_set(reterr, -EINVAL,
                         "session name: allowed are 1..%d letters, digits, '.', '_' and '-', the "
                         "first no '.'",
                         (int)LANE_SESSION_NAME);
    }
    (void)snprintf(path, sizeof(path), ".%s%s", name,
                   SUFFIX); /* of a save that a crash cut short */
    cut_short = unlinkat(dir, path, 0) == 0;
    (void)snprintf(path, sizeof(path), "%s%s", name, SUFFIX);
    /* Not synced: a removal that a power cut undoes can be repeated, and the loop must not wait. */
    if (unlinkat(dir, path, 0) && !cut_short) {
        return errno == ENOENT ? error_set(reterr, -ENOENT, "no session %s", name)
                               : error_set_errno(reterr, -errno, "session %s", name);
    }
    return 0;
}

static uint32_t code_of(int err)
{
    switch (err) {
    case -ENOENT:
        return LANE_ERR_NOT_FOUND;
    case -EINVAL:
        return LANE_ERR_INVALID;
    case -E2BIG:
        return LANE_ERR_TOO_LARGE;
    case -ENOMEM:
        return LANE_ERR_NO_MEMORY;
    default:
        return LANE_ERR_UNSUPPORTED;
    }
}

void sessions_serve(struct front *f, struct lane *l, uint32_t uid, const struct lane_record *r)
{
    const struct lease *lease = bulk_lease(l, r->h.id, r->session.buf, r->session.generation);
    AUTO_CLOSE int dir = -1;
    struct list list = {.n = 0};
    struct error e = {0};
    int rc;

    if (!lease) {
        return;
    }
    dir = sessions_folder(f->config, uid, &e);
    rc = dir < 0 ? dir
         : r->session.op == LANE_SESSION_REMOVE
             ? remove_file(dir, r->session.name, &e)
             : list_files(dir, r->session.name, (size_t)lease->length, &list, &e);
    if (rc) {
        lane_send_error(l, bulk_id(r->h.id), code_of(rc), 0, "%s", e.text);
    } else {
        bulk_text(l, r->h.id, lease, r->session.buf, "the list's names", list.text, list.n);
    }
}
