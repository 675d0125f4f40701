/* SPDX-License-Identifier: Apache-2.0 */
/* Folders are opened one below the other with O_NOFOLLOW, so that nothing that was put in the way
 * leads elsewhere. Listing reads names and sizes: a few hundred files at most, since their bytes
 * are limited. */

#include "daemon/front/sessions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"

#define SUFFIX ".session"
enum { LIST_MOST = 16 << 10 };

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

/* $STATE_DIRECTORY may list several: the first. */
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
        n = snprintf(ret, size, "%.*s/%s", (int)strcspn(state, ":"), state, instance);
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

static int folder_of(const struct config *c, uint32_t uid, const uint8_t *tenant,
                     uint32_t tenant_len, struct error *reterr)
{
    AUTO_CLOSE int base = open_base(c, reterr);
    char name[16 + 2 * sizeof(((struct principal *)0)->tenant)];
    int n = snprintf(name, sizeof(name), "%u%s", uid, tenant_len ? "-" : "");
    int fd;

    if (base < 0) {
        return base;
    }
    for (uint32_t i = 0; i < tenant_len; i++) {
        n += snprintf(name + n, sizeof(name) - (size_t)n, "%02x", tenant[i]);
    }
    fd = open_below(base, name);
    return fd < 0 ? error_set_errno(reterr, fd, "the folder of this user's sessions") : fd;
}

int sessions_folder(const struct config *c, const struct principal *who, struct error *reterr)
{
    return folder_of(c, who->uid, who->tenant, who->tenant_len, reterr);
}

/* ---- listing and removing -------------------------------------------------------------------- */

struct list {
    char text[LIST_MOST];
    size_t n;
};

static int list_files(int dir, struct list *l, struct error *reterr)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool full = false;

    if (!d) {
        int r = error_set_errno(reterr, -errno, "the folder of this user's sessions");

        close_fd(&fd);
        return r;
    }
    for (struct dirent *f; !full && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        size_t stem = len - (len > sizeof(SUFFIX) ? sizeof(SUFFIX) - 1 : 0);
        struct stat st;
        int n;

        if (stem == len || strcmp(f->d_name + stem, SUFFIX) != 0 ||
            !lane_session_name_ok(f->d_name, stem) ||
            fstatat(dir, f->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) {
            continue;
        }
        n = snprintf(l->text + l->n, sizeof(l->text) - l->n, "%.*s\t%lld\t%lld\n", (int)stem,
                     f->d_name, (long long)st.st_size, (long long)st.st_mtime);
        full = n < 0 || (size_t)n >= sizeof(l->text) - l->n;
        l->n += full ? 0 : (size_t)n;
    }
    (void)closedir(d);
    return full ? error_set(reterr, -E2BIG, "more sessions than can be listed") : 0;
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
    return err == -ENOENT ? LANE_E_NOT_FOUND : err == -EINVAL ? LANE_E_INVALID : LANE_E_UNSUPPORTED;
}

static void answer(struct lane *l, const struct lane_record *r, const struct lease *lease,
                   const struct list *list)
{
    struct lane_record out;

    if (list->n > lease->length) {
        lane_send_error(l, NULL, LANE_E_TOO_LARGE, 0, "the list needs a lease of %zu bytes",
                        sizeof(list->text));
        return;
    }
    if (pwrite(l->e2c_fd, list->text, list->n, (off_t)lease->offset) != (ssize_t)list->n) {
        lane_send_error(l, NULL, LANE_E_INTERNAL, 0, "cannot write the list");
        return;
    }
    lane_record_init(&out, LANE_BULK, NULL);
    out.bulk = (struct lane_bulk_body){.kind = LANE_BULK_TEXT,
                                       .buf = r->session.buf,
                                       .generation = r->session.generation,
                                       .n_rows = 1,
                                       .n_cols = (uint32_t)list->n,
                                       .n_bytes = list->n};
    lane_send(l, &out);
    lane_record_init(&out, LANE_DONE, NULL);
    out.done.reason = LANE_REASON_STOP;
    lane_send(l, &out);
}

void sessions_serve(struct front *f, struct lane *l, const struct lane_record *r)
{
    const struct lease *lease =
        lease_of_client(&l->leases, LANE_ARENA_E2C, r->session.buf, r->session.generation);
    AUTO_CLOSE int dir = -1;
    struct list list = {.n = 0};
    struct error e = {0};
    int rc;

    if (!lease) {
        lane_send_error(l, NULL, LANE_E_DENIED, 0, "the output lease is not this client's");
        return;
    }
    dir = folder_of(f->config, l->uid, NULL, 0, &e);
    rc = dir < 0                                ? dir
         : r->session.op == LANE_SESSION_REMOVE ? remove_file(dir, r->session.name, &e)
                                                : list_files(dir, &list, &e);
    if (rc) {
        lane_send_error(l, NULL, code_of(rc), 0, "%s", e.text);
    } else {
        answer(l, r, lease, &list);
    }
}
