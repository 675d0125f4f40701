/* SPDX-License-Identifier: Apache-2.0 */
/* What a program that has taken over a service could do. tests/e2e/booted.sh runs it in place of
 * the daemon under each unit, where every attempt has to fail, and as root without a unit, where
 * every attempt has to succeed: so a wall that is tested is known to be the unit's.
 *
 *     probe listen          accepts TCP connections; prints its port
 *     probe PORT FILE PID   one line an attempt, "open NAME" or "shut NAME: error"; exit code 1
 * when any is open. FILE may be read by everybody; PID belongs to somebody else */

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int n_open;

static void say(const char *name, bool open)
{
    int err = errno;

    n_open += open;
    if (open) {
        (void)printf("open %s\n", name);
    } else {
        (void)printf("shut %s: %s\n", name, strerror(err));
    }
}

static bool readable(const char *path)
{
    char byte;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && read(fd, &byte, 1) == 1;
    int err = errno;

    (void)close(fd);
    errno = err;
    return ok;
}

static bool tcp(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0;
}

static bool speaks_to_dbus(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/run/dbus/system_bus_socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    return fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0;
}

static pid_t sleeper(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        for (;;) {
            (void)pause();
        }
    }
    return pid;
}

static bool traces(pid_t pid)
{
    return ptrace(PTRACE_ATTACH, pid, NULL, NULL) == 0 && waitpid(pid, NULL, 0) == pid &&
           ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0;
}

static bool reads_memory(pid_t pid)
{
    char byte;
    struct iovec mine = {&byte, 1};
    struct iovec theirs = {&n_open, 1};

    return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == 1;
}

static bool writes_code(void)
{
    void *p =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p != MAP_FAILED;
}

static bool makes_namespace(void)
{
    pid_t pid = fork();
    int status = 1;

    if (pid == 0) {
        _exit(unshare(CLONE_NEWNS) ? errno : 0);
    }
    (void)waitpid(pid, &status, 0);
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    return errno == 0;
}

static bool runs(const char *path)
{
    pid_t pid = fork();
    int status = 1;

    if (pid == 0) {
        (void)execl(path, path, "-c", "exit 0", (char *)NULL);
        _exit(errno);
    }
    (void)waitpid(pid, &status, 0);
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    return errno == 0;
}

/* A copy of this program in a folder that it may write in. */
static bool runs_copy(const char *folder)
{
    char path[256];
    char bytes[65536];
    bool ran;
    ssize_t n;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to;

    (void)snprintf(path, sizeof(path), "%s/copy-of-probe", folder);
    to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    while (to >= 0 && (n = read(from, bytes, sizeof(bytes))) > 0) {
        if (write(to, bytes, (size_t)n) != n) {
            break;
        }
    }
    (void)close(from);
    (void)close(to);
    ran = to >= 0 && runs(path);
    if (to >= 0) {
        int err = errno;

        (void)unlink(path);
        errno = err;
    }
    return ran;
}

static bool runs_what_it_wrote(void)
{
    const char *own[] = {getenv("STATE_DIRECTORY"),
                         getenv("CACHE_DIRECTORY"),
                         "/run/pipit/probe",
                         "/tmp",
                         "/var/tmp",
                         "/dev/shm"};
    int err = ENOENT;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (own[i] && runs_copy(own[i])) {
            (void)printf("in %s\n", own[i]);
            return true;
        }
        err = own[i] && errno == EACCES ? EACCES : err;
    }
    errno = err;
    return false;
}

static int listen_for_ever(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 8) ||
        getsockname(fd, (struct sockaddr *)&a, &n)) {
        perror("probe: cannot listen");
        return 1;
    }
    (void)printf("%d\n", ntohs(a.sin_port));
    (void)fflush(stdout);
    for (;;) {
        (void)close(accept(fd, NULL, NULL));
    }
}

int main(int argc, char **argv)
{
    char path[64];
    pid_t child;

    if (argc == 2 && strcmp(argv[1], "listen") == 0) {
        return listen_for_ever();
    }
    if (argc > 1 && strcmp(argv[1], "-c") == 0) {
        return 0; /* the copy */
    }
    if (argc != 4) {
        (void)fputs("usage: probe PORT FILE PID\n", stderr);
        return 2;
    }
    child = sleeper();
    (void)snprintf(path, sizeof(path), "/proc/%d/status", atoi(argv[3]));
    say("read /home", readable(argv[2]));
    say("connect TCP", tcp(atoi(argv[1])));
    say("ptrace", traces(child));
    say("read another process's memory", reads_memory(child));
    say("see another user's process", readable(path));
    say("make memory writable and executable", writes_code());
    say("make a namespace", makes_namespace());
    say("write in /usr", access("/usr", W_OK) == 0);
    say("write in /run", access("/run", W_OK) == 0);
    say("run a shell", runs("/usr/bin/sh"));
    say("run what it wrote", runs_what_it_wrote());
    say("speak to D-Bus", speaks_to_dbus());
    (void)kill(child, SIGKILL);
    return n_open > 0;
}
