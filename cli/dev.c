/* SPDX-License-Identifier: PostgreSQL */
/*
 * walbus dev: a PostgreSQL and a router for as long as one needs them. This
 * process prints, waits, runs COMMAND; all that is made and removed is the
 * keeper's (dev_keeper.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/text.h"
#include "cli.h"
#include "dev_keeper.h"

#define DEBIAN_VERSIONS "/usr/lib/postgresql"
/* The longest folder for temporary files below which both sockets still have their 107 bytes. */
#define TMPDIR_MAX 48
/* How long COMMAND may take to end when it must, as others give it: systemd 90 s, Docker 10 s. */
#define COMMAND_STOP_MS 10000

struct dev {
    const char *pg_bindir;
    bool keep;
};

static const struct cli_option dev_options[] = {
    {"pg-bindir", "DIR", "The folder with the server's initdb and postgres."},
    {"keep", NULL, "Leave the folder with the server's data and the logs there at the end."},
    {NULL, NULL, NULL},
};

static int dev_option(void *state, const struct cli_option *option, const char *value)
{
    struct dev *dev = state;

    if (strcmp(option->name, "pg-bindir") == 0)
        dev->pg_bindir = value;
    else
        dev->keep = true;
    return CLI_OK;
}

static bool has_server(const char *bindir)
{
    char path[PATH_MAX + 16];

    snprintf(path, sizeof path, "%s/initdb", bindir);
    if (access(path, X_OK) < 0)
        return false;
    snprintf(path, sizeof path, "%s/postgres", bindir);
    return access(path, X_OK) == 0;
}

/* Calls `fits` with each folder of PATH in `ret`, until one does. */
static bool search_path(char ret[PATH_MAX], bool (*fits)(const char *folder))
{
    const char *path = getenv("PATH");

    for (const char *at = path; at && *at;) {
        size_t n = strcspn(at, ":");
        if (n > 0 && n < PATH_MAX && at[0] == '/') {
            memcpy(ret, at, n);
            ret[n] = '\0';
            if (fits(ret))
                return true;
        }
        at += n + (at[n] == ':');
    }
    return false;
}

static bool find_server(const char *named, char ret[PATH_MAX])
{
    if (named) {
        char *absolute = realpath(named, NULL);
        bool found = absolute && has_server(absolute) && strlen(absolute) < PATH_MAX;
        if (found)
            memcpy(ret, absolute, strlen(absolute) + 1);
        free(absolute);
        return found;
    }
    if (search_path(ret, has_server))
        return true;
    DIR *dir = opendir(DEBIAN_VERSIONS);
    long newest = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char bindir[PATH_MAX];
        long version = strtol(e->d_name, NULL, 10);
        snprintf(bindir, sizeof bindir, "%s/%s/bin", DEBIAN_VERSIONS, e->d_name);
        if (version > newest && has_server(bindir)) {
            newest = version;
            memcpy(ret, bindir, strlen(bindir) + 1);
        }
    }
    if (dir)
        (void)closedir(dir);
    return newest > 0;
}

static bool has_walbusd(const char *folder)
{
    char path[PATH_MAX + 16];

    snprintf(path, sizeof path, "%s/walbusd", folder);
    return access(path, X_OK) == 0;
}

/* This executable, and the walbusd that belongs to it: of the same build, of the same installation,
 * of PATH. */
static bool find_programs(struct dev_plan *plan)
{
    char folder[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", plan->walbus, sizeof plan->walbus - 1);

    if (n <= 0)
        return false;
    plan->walbus[n] = '\0';
    memcpy(folder, plan->walbus, (size_t)n + 1);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return false;
    *slash = '\0';
    if (!has_walbusd(folder)) {
        if ((size_t)(slash - folder) + sizeof "/../daemon" > sizeof folder)
            return false;
        memcpy(slash, "/../daemon", sizeof "/../daemon");
        if (!has_walbusd(folder) && !search_path(folder, has_walbusd))
            return false;
    }
    return (size_t)snprintf(plan->walbusd, sizeof plan->walbusd, "%s/walbusd", folder) <
           sizeof plan->walbusd;
}

/* A path that is as it is in a conninfo string and between a shell's single quotes. */
static bool is_plain_path(const char *path)
{
    return path[0] == '/' && strlen(path) <= TMPDIR_MAX &&
           strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@") ==
               strlen(path);
}

/* The folder's name, and the places in it. The keeper makes it, so that whatever ends this process, at any
 * moment, leaves nothing behind. */
static int name_folder(struct dev_plan *plan)
{
    const char *tmp = getenv("TMPDIR");
    uint8_t random[6];
    char hex[2 * sizeof random + 1];

    if (!tmp || !is_plain_path(tmp))
        tmp = "/tmp";
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return cli_fail("dev", "%s.", strerror(errno));
    snprintf(plan->folder, sizeof plan->folder, "%s/walbus-dev-%s", tmp,
             text_hex(random, sizeof random, hex));
    snprintf(plan->data, sizeof plan->data, "%s/data", plan->folder);
    snprintf(plan->server_socket, sizeof plan->server_socket, "%s/pg", plan->folder);
    snprintf(plan->socket, sizeof plan->socket, "%s/walbus.sock", plan->folder);
    snprintf(plan->state, sizeof plan->state, "%s/state", plan->folder);
    snprintf(plan->dsn, sizeof plan->dsn, "host=%s port=5432 dbname=postgres user=postgres",
             plan->server_socket);
    return CLI_OK;
}

static int make_plan(struct cli *cli, const struct dev *dev, struct dev_plan *plan)
{
    *plan = (struct dev_plan){
        .slot = cli->settings.slot, .publication = cli->settings.publication, .keep = dev->keep};
    if (!find_server(dev->pg_bindir, plan->bindir)) {
        if (dev->pg_bindir)
            return cli_fail("dev", "There is no initdb and postgres in %s.", dev->pg_bindir);
        return cli_fail("dev", "PostgreSQL's initdb is neither in PATH nor below " DEBIAN_VERSIONS
                               ": install a server, or name its folder with --pg-bindir.");
    }
    if (!find_programs(plan))
        return cli_fail("dev", "walbusd is neither beside this program nor in PATH.");
    if (geteuid() == 0) {
        const struct passwd *user = getpwnam("postgres");
        if (!user)
            user = getpwnam("nobody");
        if (!user)
            return cli_fail("dev", "The server refuses to run as root, and there is neither a "
                                   "user postgres nor a user nobody.");
        plan->change_user = true;
        plan->uid = user->pw_uid;
        plan->gid = user->pw_gid;
    }
    return name_folder(plan);
}

static pid_t start_command(const struct dev_plan *plan, char **argv)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    if (setenv("WALBUS_DSN", plan->dsn, 1) < 0 || setenv("WALBUS_SOCKET", plan->socket, 1) < 0)
        _exit(126);
    dev_child_prepare(parent, SIGTERM);
    execvp(argv[0], argv);
    int status = errno == ENOENT ? 127 : 126;
    (void)cli_fail("dev", "%s: %s.", argv[0], strerror(errno));
    _exit(status);
}

static int exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Ends COMMAND, whose bus or whose user is gone: it may ignore SIGTERM, but not for ever. */
static void end_command(pid_t pid, int signal_fd)
{
    uint64_t end = clock_monotonic_ns() + COMMAND_STOP_MS * UINT64_C(1000000);
    int left;

    (void)kill(pid, SIGTERM);
    while ((left = clock_ms_until(end)) > 0) {
        struct pollfd fd = {.fd = signal_fd, .events = POLLIN};
        struct signalfd_siginfo si;

        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        if (poll(&fd, 1, left) > 0)
            (void)!read(signal_fd, &si, sizeof si); /* SIGCHLD; what else comes hastens nothing */
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* Waits for the keeper's word, then for the end: of COMMAND, by a signal, or of the keeper. `parent`
 * is whose end ends this. */
static int serve(const struct dev_plan *plan, pid_t parent, int ready_fd, int signal_fd, int argc,
                 char **argv)
{
    pid_t command = 0;
    bool stopping = false;

    for (;;) {
        struct pollfd fds[2] = {
            {.fd = signal_fd, .events = POLLIN},
            {.fd = ready_fd, .events = POLLIN},
        };
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents) {
            char c;
            if (read(ready_fd, &c, 1) != 1) {
                /* The keeper is gone, and has said why. */
                if (command > 0)
                    end_command(command, signal_fd);
                return CLI_FAILED;
            }
            if (argc == 0) {
                printf("WALBUS_DSN='%s'\nWALBUS_SOCKET='%s'\nready\n", plan->dsn, plan->socket);
                int why = cli_flush();
                if (why != 0)
                    return cli_fail("dev", "Cannot write to standard output: %s.", strerror(why));
            } else if ((command = start_command(plan, argv)) < 0) {
                return cli_fail("dev", "%s.", strerror(errno));
            }
        }
        struct signalfd_siginfo si;
        if (!fds[0].revents || read(signal_fd, &si, sizeof si) != sizeof si)
            continue;
        int status;
        if (command > 0 && waitpid(command, &status, WNOHANG) == command)
            return exit_status(status);
        if (si.ssi_signo == SIGCHLD)
            continue;
        /* With a COMMAND that never began the signal is what ended it, in a shell's words. */
        if (command == 0)
            return argc == 0 ? CLI_OK : 128 + (int)si.ssi_signo;
        if (si.ssi_signo == SIGTERM && getppid() != parent) {
            end_command(command, signal_fd);
            return 128 + SIGTERM;
        }
        /* The terminal gives SIGINT to the whole group; the others, and a second one, are handed
         * on. */
        if (si.ssi_signo != SIGINT || si.ssi_code != SI_KERNEL || stopping)
            kill(command, (int)si.ssi_signo);
        stopping = true;
    }
}

static int dev_run(struct cli *cli, void *state, int argc, char **argv)
{
    struct dev_plan plan;
    int hold[2], ready[2];
    sigset_t signals;
    pid_t parent = getppid();

    if (cli_given(cli, "dsn") || cli_given(cli, "socket"))
        return cli_usage("dev", "--%s names another server or router; dev runs its own.",
                         cli_given(cli, "dsn") ? "dsn" : "socket");
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int status = make_plan(cli, state, &plan);
    if (status != CLI_OK)
        return status;
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (signal_fd < 0 || pipe2(hold, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0)
        return cli_fail("dev", "%s.", strerror(errno));
    (void)fflush(stdout);
    (void)fflush(stderr);
    pid_t keeper = fork();
    if (keeper < 0)
        return cli_fail("dev", "%s.", strerror(errno));
    if (keeper == 0) {
        (void)fd_close(hold[1]);
        (void)fd_close(ready[0]);
        (void)fd_close(signal_fd);
        dev_keeper_run(&plan, hold[0], ready[1]);
    }
    (void)fd_close(hold[0]);
    (void)fd_close(ready[1]);
    if (getppid() == parent)
        status = serve(&plan, parent, ready[0], signal_fd, argc, argv);
    else if (argc > 0) /* the parent's end came before we asked to be told of it */
        status = 128 + SIGTERM;
    (void)fd_close(hold[1]);
    int keeper_status;
    while (waitpid(keeper, &keeper_status, 0) < 0 && errno == EINTR)
        ;
    (void)fd_close(ready[0]);
    (void)fd_close(signal_fd);
    /* The signals stay blocked: a second Ctrl-C that came while the keeper wound up must not turn the
     * status into its own. */
    if (status == CLI_OK && exit_status(keeper_status) != 0 && argc == 0)
        status = CLI_FAILED;
    return status;
}

const struct cli_command cli_command_dev = {
    .name = "dev",
    .usage = "[OPTION...] [-- COMMAND [ARGUMENT...]]",
    .sentence = "Run a throw-away PostgreSQL and a router.",
    .details =
        "Prints WALBUS_DSN='...' and WALBUS_SOCKET='...', then 'ready', and runs until SIGINT. "
        "With\n"
        "COMMAND it runs that with both exported, prints nothing itself, and exits with its "
        "status.\n"
        "The server listens on a socket in a folder of its own, not on TCP; as root it runs as "
        "the\n"
        "user postgres, else nobody. Without --keep all is gone at the end, also when the parent\n"
        "ends. Neither variables nor the settings file of another bus reach them.\n"
        "\n"
        "Examples:\n"
        "  walbus dev\n"
        "  walbus dev -- sh -c 'walbus tail --count 1 & sleep 1; walbus publish orders.created 1; "
        "wait'\n"
        "  walbus dev --pg-bindir /usr/lib/postgresql/15/bin -- ./my-tests",
    .options = dev_options,
    .option = dev_option,
    .run = dev_run,
    .state_size = sizeof(struct dev),
    .hermetic = true,
};
