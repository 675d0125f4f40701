/* SPDX-License-Identifier: Apache-2.0 */
/* pipit doctor: everything between here and an answer, looked at in the order in which it can fail.
 * Each finding is ok, a note, or bad with what to do; the exit code is that of the first bad one,
 * so that scripts can tell "no daemon" from "no model". It looks by itself (paths, permissions,
 * limits) and through the library (hello, status), and changes nothing. */

#include <errno.h>
#include <grp.h>
#include <jansson.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "client/cli/cli.h"

enum level { FINE, NOTE, BAD };

struct doctor {
    bool json;
    int code; /* of the first bad finding */
};

/* A finding: `text`, and after a newline what to do about it. */
static void finding(struct doctor *d, enum level level, int code, const char *what, const char *fmt,
                    ...) PRINTF_LIKE(5, 6);

static void finding(struct doctor *d, enum level level, int code, const char *what, const char *fmt,
                    ...)
{
    static const char *const marks[] = {"ok  ", "note", "BAD "};
    static const char *const words[] = {"ok", "note", "bad"};
    char text[1200];
    char *advice;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    advice = strchr(text, '\n');
    if (advice) {
        *advice++ = '\0';
    }
    if (d->json) {
        json_t *obj = json_pack("{s:s, s:s, s:s, s:s*}", "check", what, "level", words[level],
                                "text", text, "advice", advice);

        (void)json_dumpf(obj, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(obj);
    } else {
        (void)printf("%s  %-10s%s\n", marks[level], what, text);
        if (advice) {
            (void)printf("                -> %s\n", advice);
        }
    }
    d->code = level == BAD && d->code == 0 ? code : d->code;
}

/* Why a socket's path does not work, as far as can be seen from outside. */
static const char *path_state(const char *path, int err)
{
    struct stat st;

    if (err == -ENAMETOOLONG) {
        return "the path is over 107 bytes";
    }
    if (lstat(path, &st) < 0) {
        return errno == ENOENT   ? "not there"
               : errno == EACCES ? "a folder above it may not be entered by this user"
                                 : strerror(errno);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return "there, but no socket";
    }
    if (access(path, W_OK) < 0) {
        return "a socket that this user may not write to";
    }
    return err == -ECONNREFUSED ? "a socket without a daemon behind it"
           : err == -EPERM      ? "in a folder that is open to others, or another user's"
                                : strerror(-err);
}

/* What somebody else's socket lets this user do about it. */
static void look_closed(struct doctor *d, const char *path)
{
    char folder[200];
    char who[64];
    struct stat st;
    struct passwd *user = getpwuid(geteuid());
    struct group *group;

    (void)snprintf(folder, sizeof(folder), "%.190s", path);
    if (strrchr(folder, '/')) {
        *strrchr(folder, '/') = '\0';
    }
    (void)snprintf(who, sizeof(who), "%.60s", user ? user->pw_name : "USER");
    if (stat(path, &st) < 0 && stat(folder, &st) < 0) {
        finding(d, BAD, EXIT_UNREACHABLE, "daemon",
                "this user (%s) may not look into %s\nask root, or whom the folder belongs to", who,
                folder);
        return;
    }
    group = st.st_mode & S_IWGRP || (S_ISDIR(st.st_mode) && st.st_mode & S_IXGRP)
                ? getgrgid(st.st_gid)
                : NULL;
    if (group && st.st_gid != 0) {
        finding(d, BAD, EXIT_UNREACHABLE, "daemon",
                "this user (%s) may not open the socket, group %.60s may\nask root: adduser %s "
                "%.60s; then log in again",
                who, group->gr_name, who, group->gr_name);
    } else {
        finding(d, BAD, EXIT_UNREACHABLE, "daemon",
                "this user (%s) may not open the socket; only its owner (uid %u) may\nask for a "
                "daemon that is open to a group: docs/guide/service.md, several users",
                who, (unsigned)st.st_uid);
    }
}

static void look_places(struct doctor *d, struct pipit_client *c, const struct pipit_error *e,
                        bool connected)
{
    struct pipit_place p;
    char closed[200] = "";

    for (size_t i = 0; pipit_client_place(c, i, &p) == 0; i++) {
        if (p.err == -EACCES && !closed[0]) {
            (void)snprintf(closed, sizeof(closed), "%.190s", p.path);
        }
        if (connected && strcmp(p.path, pipit_client_info(c)->path) == 0) {
            finding(d, FINE, 0, "socket", "%s (%s)", p.path, p.origin);
            break;
        }
        finding(d, NOTE, 0, "socket", "%s (%s): %s", p.path, p.origin, path_state(p.path, p.err));
    }
    if (connected) {
        return;
    }
    if (e->code == PIPIT_E_UNREACHABLE && closed[0]) {
        look_closed(d, closed);
    } else if (e->code == PIPIT_E_UNREACHABLE) {
        finding(d, BAD, EXIT_UNREACHABLE, "daemon",
                "none answers\nstart one: pipitd --model FILE.gguf, or systemctl start "
                "pipitd@default.socket; with --runtime-dir say where it is");
    } else {
        finding(d, BAD, exit_of_code(e->code), "daemon", "%s\n%s", e->text,
                e->code == PIPIT_E_TIMED_OUT ? "it hangs: look at its log, restart it"
                : e->code == PIPIT_E_ABI     ? "install pipit and pipitd of the same version"
                                             : "try again; if it stays, look at the daemon's log");
    }
}

static void look_hello(struct doctor *d, const struct pipit_info *i)
{
    char to[32];
    char from[32];
    double ms = (double)i->hello_ns / 1e6;

    finding(d, ms > 200 ? NOTE : FINE, 0, "hello", "in %.1f ms, lane %llu, version %u.%u%s", ms,
            (unsigned long long)i->lane_id, i->abi_major, i->abi_minor,
            ms > 200 ? "\nslower than 200 ms: the machine is overloaded or swapping" : "");
    finding(d, FINE, 0, "memory", "shared: %s to the daemon, %s from it",
            bytes_text(i->to_daemon_bytes, to), bytes_text(i->from_daemon_bytes, from));
}

static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof(line), f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1) {
    }
    if (f) {
        (void)fclose(f);
    }
    return kib * 1024;
}

static void look_model(struct doctor *d, const struct pipit_status *st,
                       const struct pipit_report *rep)
{
    const char *cause = rep && rep->cause[0] ? rep->cause : NULL;
    const char *backend = rep && rep->backend[0] ? rep->backend : st->backend;

    switch (st->state) {
    case PIPIT_STATE_READY:
        finding(d, FINE, 0, "model", "%s, ready on %.*s, context %d, %d sequences", st->model,
                backend_len(backend), backend, st->ctx, st->n_seqs);
        break;
    case PIPIT_STATE_LOADING:
        finding(d, NOTE, 0, "model",
                "being loaded, %u %%%s%s\n'pipit wait' returns when it is ready", st->progress / 10,
                cause ? ", again: " : "", cause ? cause : "");
        break;
    case PIPIT_STATE_UNLOADED:
        finding(d, NOTE, 0, "model", "not loaded; the first request loads it");
        break;
    case PIPIT_STATE_FAILED:
        finding(d, BAD, EXIT_MODEL, "model",
                "cannot be loaded: %s\n'pipitd plan' checks file and memory",
                cause ? cause : "the daemon's log says why");
        break;
    default:
        finding(d, BAD, EXIT_REFUSED, "model", "the daemon is shutting down\nstart it again");
        break;
    }
    if (st->n_restarts) {
        finding(d, NOTE, 0, "engine", "was restarted %u times\nthe daemon's log says why",
                st->n_restarts);
    }
    if (st->n_running && st->step_age_ns > INT64_C(10000000000)) {
        finding(d, BAD, EXIT_INTERNAL, "engine",
                "has %u requests but has made no step for %.0f s\nit is stuck or starved of CPU",
                st->n_running, (double)st->step_age_ns / 1e9);
    } else {
        finding(d, FINE, 0, "engine", "last step %.1f s ago, %u running, %u waiting",
                (double)st->step_age_ns / 1e9, st->n_running, st->n_queued);
    }
}

static void look_memory(struct doctor *d, const struct pipit_status *st)
{
    uint64_t available = available_bytes();
    uint64_t limit = cgroup_memory_max("/proc/self/cgroup", "/sys/fs/cgroup");
    char a[32];
    char b[32];
    char c[32];

    if (st) {
        finding(d, FINE, 0, "plan", "%s in all, cache %s of %s in use",
                bytes_text(st->plan_bytes, a), bytes_text(st->kv_bytes_used, b),
                bytes_text(st->kv_bytes_total, c));
    }
    finding(d, available && available < (128 << 20) ? NOTE : FINE, 0, "memory",
            "%s available on this machine%s%s", bytes_text(available, a),
            limit == UINT64_MAX ? "" : ", this control group may use ",
            limit == UINT64_MAX ? "" : bytes_text(limit, b));
}

static void look_machine(struct doctor *d)
{
    struct rlimit files = {0};
    uint32_t flags = cpu_flags();
    char names[256] = "";

    for (int bit = 0; cpu_flag_name(bit); bit++) {
        if (flags & (1u << bit)) {
            size_t n = strlen(names);

            (void)snprintf(names + n, sizeof(names) - n, "%s%s", n ? " " : "", cpu_flag_name(bit));
        }
    }
    finding(d, names[0] ? FINE : NOTE, 0, "cpu", "%d usable, %s%s", cpu_count(),
            names[0] ? names : "no vector instructions that pipit knows",
            names[0] ? "" : "\nanswers will be slow");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        finding(d, files.rlim_cur < 64 ? NOTE : FINE, 0, "limits", "%llu open files",
                (unsigned long long)files.rlim_cur);
    }
}

int doctor_run(struct settings *s, const struct option_list *words)
{
    struct doctor d = {.json = s->json};
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    const struct pipit_status *st = NULL;
    const struct pipit_report *rep = NULL;
    bool connected;
    int code;

    if (words->n) {
        return usage_error("doctor", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_client(s, &c);
    if (code) {
        pipit_client_destroy(c);
        return code;
    }
    connected = pipit_client_connect(c, &e) == 0;
    if (!connected && e.err == -EINVAL) {
        pipit_client_destroy(c);
        return usage_error("doctor", "%s", e.text);
    }
    look_places(&d, c, &e, connected);
    if (connected) {
        look_hello(&d, pipit_client_info(c));
        if (pipit_client_status(c, &st, &e) < 0) {
            finding(&d, BAD, EXIT_UNREACHABLE, "daemon", "%s\nlook at its log, restart it", e.text);
            st = NULL;
        } else {
            rep = pipit_client_report(c, &rep, &e) < 0 ? NULL : rep;
            look_model(&d, st, rep);
        }
    }
    look_memory(&d, st);
    look_machine(&d);
    pipit_client_destroy(c);
    return fflush(stdout) == 0 ? d.code : EXIT_INTERNAL;
}
