/* SPDX-License-Identifier: PostgreSQL */
/*
 * `walbus dev` promises that nothing is left behind, however it ends: SIGINT,
 * the end of its parent, SIGKILL. A process cannot clean up after its own
 * SIGKILL, so the work is divided:
 *
 *   walbus dev ──hold pipe──► keeper ──► postgres   (SIGQUIT when the keeper dies)
 *        │                       └─────► walbusd    (SIGTERM when the keeper dies)
 *        └──► COMMAND
 *
 * The keeper makes, watches and removes everything. It lives exactly as long as
 * the write end of the hold pipe, which only `walbus dev` has and which the kernel
 * closes whatever happens to it. So there is one way to the end, and it is the same for a
 * normal end and for a crash. Is the keeper itself killed, the kernel signals its
 * children (PR_SET_PDEATHSIG); only the folder is left then.
 *
 * Publication and slot are made by running `walbus setup`, and readiness is `walbus status
 * --wait`: what a user would do.
 */
#include "dev_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli.h"

/* How long each step may take. initdb needs about a second; the rest is for slow disks. */
#define INITDB_MS 60000
#define START_MS  60000
#define SETUP_MS  30000
#define ROUTER_MS 30000
/* The router promises to stop in under 5 s. */
#define ROUTER_STOP_MS 6000
#define SERVER_STOP_MS 10000
/* The server says that it is ready in a file; how often that is looked at. */
#define LOOK_MS 20

#define LOG_TAIL 2000

/* Descriptors for the removal: the server's folder is not nested deeper, and nftw copes with less. */
#define REMOVE_DESCRIPTORS 16
/* How long those take whom SIGKILL has ended already: what is still in the kernel then waits for a
 * disk. */
#define ORPHANS_MS 10000

enum await {
    AWAIT_ENDED, /* the child has ended */
    AWAIT_TIMEOUT,
    AWAIT_STOP, /* the hold pipe is closed, or SIGTERM: wind up */
};

struct keeper {
    const struct dev_plan *plan;
    int hold_fd;
    int signal_fd;
    pid_t self;
    pid_t server, router; /* 0: not running */
    bool holding;         /* false once the end was asked for */
};

void dev_child_prepare(pid_t parent, int sig)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, sig);
    if (getppid() != parent)
        _exit(1);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    (void)remove(path);
    return 0;
}

static int remove_or_say_why(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path) < 0 && errno != ENOENT ? errno : 0;
}

/* The folder and all below it; of what cannot be removed as much as can. 0, or the first reason. */
static int remove_folder(const char *path)
{
    const int how = FTW_DEPTH | FTW_PHYS | FTW_MOUNT;
    struct stat st;

    (void)nftw(path, remove_entry, REMOVE_DESCRIPTORS, how);
    if (lstat(path, &st) < 0 && errno == ENOENT)
        return 0;
    int r = nftw(path, remove_or_say_why, REMOVE_DESCRIPTORS, how);
    return r < 0 ? -errno : -r;
}

/* Forks and runs a program with its outputs at the end of `log`. The server's programs run
 * unprivileged. */
static pid_t spawn(struct keeper *k, const char *log, bool as_server, int death_signal,
                   const char *const *argv)
{
    const struct dev_plan *plan = k->plan;
    char path[sizeof plan->folder + 16];
    pid_t pid;

    snprintf(path, sizeof path, "%s/%s", plan->folder, log);
    pid = fork();
    if (pid != 0)
        return pid;
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    if (as_server && plan->change_user &&
        (setgroups(0, NULL) < 0 || setgid(plan->gid) < 0 || setuid(plan->uid) < 0)) {
        perror("changing the user");
        _exit(126);
    }
    dev_child_prepare(k->self, death_signal);
    execv(argv[0], (char *const *)argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Waits for what happens first: the child `pid` ends, `ms` pass, or the end is asked for. A child
 * that has ended is left to waitpid. */
static enum await await(struct keeper *k, pid_t pid, int ms, bool heed_hold)
{
    uint64_t end = clock_monotonic_ns() + (uint64_t)ms * 1000000u;

    for (;;) {
        siginfo_t info = {0};
        if (pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == pid)
            return AWAIT_ENDED;
        int left = clock_ms_until(end);
        if (left == 0)
            return AWAIT_TIMEOUT;
        struct pollfd fds[2] = {
            {.fd = k->signal_fd, .events = POLLIN},
            {.fd = heed_hold ? k->hold_fd : -1, .events = POLLIN},
        };
        if (poll(fds, 2, left) < 0)
            continue;
        if (fds[0].revents) {
            struct signalfd_siginfo si;
            if (read(k->signal_fd, &si, sizeof si) == sizeof si && si.ssi_signo == SIGTERM &&
                heed_hold)
                return AWAIT_STOP;
        }
        if (fds[1].revents)
            return AWAIT_STOP;
    }
}

static int reap(pid_t pid)
{
    int status = -1;

    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* Shows the end of a log, for whoever has to find out. */
static void show_log(struct keeper *k, const char *log)
{
    char path[sizeof k->plan->folder + 16];
    char tail[LOG_TAIL + 1];
    struct stat st;

    snprintf(path, sizeof path, "%s/%s", k->plan->folder, log);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0) {
        off_t from = st.st_size > LOG_TAIL ? st.st_size - LOG_TAIL : 0;
        ssize_t n = pread(fd, tail, LOG_TAIL, from);
        if (n > 0)
            fprintf(stderr, "%.*s%s", (int)n, tail, tail[n - 1] == '\n' ? "" : "\n");
    }
    (void)fd_close(fd);
}

static bool failed(struct keeper *k, const char *log, const char *what)
{
    (void)cli_fail("dev", "%s", what);
    show_log(k, log);
    return false;
}

/* Runs a program to its end, which must be exit 0. */
static bool run(struct keeper *k, const char *log, bool as_server, int ms, const char *what,
                const char *const *argv)
{
    pid_t pid = spawn(k, log, as_server, SIGKILL, argv);
    if (pid < 0)
        return failed(k, log, what);
    enum await a = await(k, pid, ms, true);
    if (a != AWAIT_ENDED)
        kill(pid, SIGKILL);
    int status = reap(pid);
    if (a == AWAIT_STOP) {
        k->holding = false;
        return false;
    }
    if (a == AWAIT_TIMEOUT || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return failed(k, log, what);
    return true;
}

/* The eighth line of postmaster.pid is the server's state, "ready" with blanks behind. */
static bool server_is_ready(struct keeper *k)
{
    char path[sizeof k->plan->data + 32];
    char line[256];
    bool ready = false;

    snprintf(path, sizeof path, "%s/postmaster.pid", k->plan->data);
    /* The file is the server's user's, who may be another: no link is followed, no pipe waited for.
     */
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f) {
        (void)fd_close(fd);
        return false;
    }
    for (int n = 1; fgets(line, sizeof line, f); n++) {
        if (n == 1 && strtol(line, NULL, 10) != k->server)
            break;
        if (n == 8)
            ready = strncmp(line, "ready", 5) == 0;
    }
    (void)fclose(f);
    return ready;
}

static bool start_server(struct keeper *k)
{
    const struct dev_plan *plan = k->plan;
    char initdb[PATH_MAX + 16], postgres[PATH_MAX + 16], sockets[sizeof plan->server_socket + 32];

    snprintf(initdb, sizeof initdb, "%s/initdb", plan->bindir);
    snprintf(postgres, sizeof postgres, "%s/postgres", plan->bindir);
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", plan->server_socket);
    const char *make[] = {initdb,         "-D",          plan->data,        "-U",        "postgres",
                          "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync", NULL};
    if (!run(k, "initdb.log", true, INITDB_MS, "initdb failed.", make))
        return false;
    /* fsync off: the whole cluster is thrown away with the machine's first crash anyway. jit off: a server that
     * was only unpacked from its package has no libLLVM, and costly queries would fail. */
    const char *start[] = {postgres,
                           "-D",
                           plan->data,
                           "-c",
                           "listen_addresses=",
                           "-c",
                           sockets,
                           "-c",
                           "port=5432",
                           "-c",
                           "wal_level=logical",
                           "-c",
                           "max_prepared_transactions=10",
                           "-c",
                           "fsync=off",
                           "-c",
                           "jit=off",
                           NULL};
    k->server = spawn(k, "server.log", true, SIGQUIT, start);
    if (k->server < 0) {
        k->server = 0;
        return failed(k, "server.log", "The server could not be started.");
    }
    for (int waited = 0; !server_is_ready(k); waited += LOOK_MS) {
        enum await a = await(k, k->server, LOOK_MS, true);
        if (a == AWAIT_STOP) {
            k->holding = false;
            return false;
        }
        if (a == AWAIT_ENDED || waited > START_MS)
            return failed(k, "server.log", "The server did not start.");
    }
    return true;
}

static bool start_router(struct keeper *k)
{
    const struct dev_plan *plan = k->plan;
    /* The machine's settings file must not reach them either. */
    const char *setup[] = {plan->walbus,    "setup",           "--config", "/dev/null",
                           "--dsn",         plan->dsn,         "--slot",   plan->slot,
                           "--publication", plan->publication, NULL};
    const char *router[] = {plan->walbusd,     "--config", "/dev/null",  "--dsn",
                            plan->dsn,         "--slot",   plan->slot,   "--publication",
                            plan->publication, "--socket", plan->socket, "--state-dir",
                            plan->state,       NULL};
    const char *wait[] = {plan->walbus, "status", "--config", "/dev/null", "--socket",
                          plan->socket, "--wait", "30",       NULL};

    if (!run(k, "setup.log", false, SETUP_MS, "walbus setup failed.", setup))
        return false;
    k->router = spawn(k, "router.log", false, SIGTERM, router);
    if (k->router < 0) {
        k->router = 0;
        return failed(k, "router.log", "walbusd could not be started.");
    }
    /* `status --wait` would wait for a router that is gone already; so look for its socket first.
     */
    for (int waited = 0; access(plan->socket, F_OK) < 0; waited += LOOK_MS) {
        enum await a = await(k, k->router, LOOK_MS, true);
        if (a == AWAIT_STOP) {
            k->holding = false;
            return false;
        }
        if (a == AWAIT_ENDED || waited > ROUTER_MS)
            return failed(k, "router.log", "walbusd did not start.");
    }
    if (!run(k, "status.log", false, ROUTER_MS + 1000, "walbusd does not read the server.", wait)) {
        if (k->holding)
            show_log(k, "router.log");
        return false;
    }
    return true;
}

/* Sends SIGKILL to all children. Where the kernel does not list them, none: they end by themselves,
 * without the server or initdb that they belong to. */
static void kill_children(const struct keeper *k)
{
    char path[64];
    long pid;

    (void)snprintf(path, sizeof path, "/proc/self/task/%ld/children", (long)k->self);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fscanf(f, "%ld", &pid) == 1)
        (void)kill((pid_t)pid, SIGKILL); /* not reaped yet, so nobody else's number */
    (void)fclose(f);
}

/*
 * Ends what is left of programs that were killed, and waits for it: initdb runs postgres through a
 * shell, and the server's backends outlive it while they are busy. Whoever lives on would make files
 * while the folder is removed. The keeper is their subreaper, so all of them become its children,
 * those in sessions of their own included.
 */
static void end_orphans(struct keeper *k)
{
    uint64_t end = clock_monotonic_ns() + ORPHANS_MS * UINT64_C(1000000);

    while (clock_ms_until(end) > 0) {
        kill_children(k);
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0)
            return;
        if (pid == 0) /* none has ended yet */
            (void)await(k, 0, LOOK_MS, false);
    }
}

static void stop(struct keeper *k, pid_t *pid, int sig, int ms, int last_sig)
{
    if (*pid <= 0)
        return;
    kill(*pid, sig);
    if (await(k, *pid, ms, false) != AWAIT_ENDED) {
        kill(*pid, last_sig);
        if (await(k, *pid, ms, false) != AWAIT_ENDED)
            kill(*pid, SIGKILL);
    }
    (void)reap(*pid);
    *pid = 0;
}

/* Until the end is asked for; false when a child ended by itself. */
static bool watch(struct keeper *k)
{
    for (;;) {
        if (await(k, k->server, 0, false) == AWAIT_ENDED)
            return failed(k, "server.log", "The server ended.");
        if (await(k, k->router, 0, false) == AWAIT_ENDED)
            return failed(k, "router.log", "walbusd ended.");
        struct pollfd fds[2] = {
            {.fd = k->signal_fd, .events = POLLIN},
            {.fd = k->hold_fd, .events = POLLIN},
        };
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents)
            return true;
        struct signalfd_siginfo si;
        if (fds[0].revents && read(k->signal_fd, &si, sizeof si) == sizeof si &&
            si.ssi_signo == SIGTERM)
            return true;
    }
}

/* PG… variables of the caller must reach neither the server nor a connection to it. */
static void clear_environment(void)
{
    extern char **environ;

    for (char **e = environ; *e;) {
        char name[64];
        const char *equals = strchr(*e, '=');
        size_t n = equals ? (size_t)(equals - *e) : 0;
        if (n > 2 && n < sizeof name && strncmp(*e, "PG", 2) == 0) {
            memcpy(name, *e, n);
            name[n] = '\0';
            unsetenv(name);
            e = environ;
        } else {
            e++;
        }
    }
    unsetenv("WALBUS_DSN");
    unsetenv("WALBUS_SOCKET");
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
}

/*
 * The server's user, where it is another, gets two folders and no more: what root opens and removes
 * beside them, the logs first of all, nobody else can put links in the place of. Both are 0700,
 * since whoever reaches the server's socket is its superuser. 0 or a negative errno.
 */
static int make_folder(const struct dev_plan *plan)
{
    if (mkdir(plan->folder, 0700) < 0 || mkdir(plan->data, 0700) < 0 || mkdir(plan->server_socket, 0700) < 0)
        return -errno;
    if (plan->change_user &&
        (chmod(plan->folder, 0711) < 0 || chown(plan->data, plan->uid, plan->gid) < 0 ||
         chown(plan->server_socket, plan->uid, plan->gid) < 0))
        return -errno;
    return 0;
}

_Noreturn void dev_keeper_run(const struct dev_plan *plan, int hold_fd, int ready_fd)
{
    struct keeper k = {.plan = plan, .hold_fd = hold_fd, .self = getpid(), .holding = true};
    sigset_t signals;
    bool ok = false;

    /* A process group of its own: the terminal's SIGINT is for `walbus dev`, which closes the pipe.
     */
    (void)setpgid(0, 0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    k.signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    clear_environment();
    int made = make_folder(plan);
    if (made < 0) {
        (void)cli_fail("dev", "%s: %s.", plan->folder, strerror(-made));
    } else if (k.signal_fd < 0 || chdir("/") < 0) {
        (void)cli_fail("dev", "%s.", strerror(errno));
    } else if (start_server(&k) && start_router(&k)) {
        const char ready = DEV_READY;
        ok = write(ready_fd, &ready, 1) == 1;
        ok = watch(&k) && ok;
    }
    /* Stopped on purpose before it was ready is no failure either. */
    ok = ok || !k.holding;
    stop(&k, &k.router, SIGTERM, ROUTER_STOP_MS, SIGKILL);
    stop(&k, &k.server, SIGINT, SERVER_STOP_MS, SIGQUIT);
    end_orphans(&k);
    if (made == -EEXIST)
        _exit(CLI_FAILED); /* somebody else's */
    int removed = 0;
    if (plan->keep && made == 0)
        fprintf(stderr, "walbus dev: kept %s\n", plan->folder);
    else
        removed = remove_folder(plan->folder);
    if (removed < 0) {
        (void)cli_fail("dev", "Cannot remove %s: %s.", plan->folder, strerror(-removed));
        ok = false;
    }
    _exit(ok ? CLI_OK : CLI_FAILED);
}
