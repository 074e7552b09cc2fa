/* SPDX-License-Identifier: PostgreSQL */
#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "unit.h"

static char folder[] = "/tmp/walbus-unit-XXXXXX";
static char path[256];
static char why[LISTENER_WHY_SIZE];
static struct listener listener;

static void setup(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/walbus-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/bus.sock", folder);
    memset(why, 0, sizeof why);
}

/** Nothing may be left in the folder. */
static void teardown(void)
{
    ck_assert_msg(rmdir(folder) == 0, "%s: %s", folder, strerror(errno));
}

static struct stat stat_of(const char *at)
{
    struct stat st;

    ck_assert_msg(lstat(at, &st) == 0, "%s: %s", at, strerror(errno));
    return st;
}

static void assert_absent(const char *at)
{
    struct stat st;

    ck_assert(lstat(at, &st) < 0 && errno == ENOENT);
}

static int open_here(void)
{
    return listener_open(&listener, path, 0660, NULL, why);
}

static void assert_connects(bool connects)
{
    int fd = fd_connect_unix(path);

    ck_assert_int_eq(fd >= 0, connects);
    (void)fd_close(fd);
}

/** A socket that is bound to the path; listening or not. */
static int bound_socket(const char *at, int type, bool listening)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fd_socket_address(at, &address), 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (listening)
        ck_assert_int_eq(listen(fd, 5), 0);
    return fd;
}

START_TEST(modes_and_masks)
{
    static const mode_t modes[] = {0600, 0660, 0666, 0700, 0000, 0777};
    static const mode_t masks[] = {0, 022, 077, 0777};

    setup();
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        for (size_t k = 0; k < ARRAY_SIZE(masks); k++) {
            mode_t before = umask(masks[k]);

            ck_assert_int_eq(listener_open(&listener, path, modes[i], "", why), 0);
            ck_assert_uint_eq(umask(before), masks[k]); /* left as it was */
            struct stat st = stat_of(path);
            ck_assert(S_ISSOCK(st.st_mode));
            ck_assert_uint_eq(st.st_mode & 07777, modes[i]);
            int flags = fcntl(listener.fd, F_GETFL), fd_flags = fcntl(listener.fd, F_GETFD);
            ck_assert(flags & O_NONBLOCK);
            ck_assert(fd_flags & FD_CLOEXEC);
            listener_close(&listener);
            assert_absent(path);
        }
    }
    teardown();
}
END_TEST

START_TEST(groups)
{
    const struct group *g = getgrgid(getgid());

    setup();
    ck_assert_int_eq(listener_open(&listener, path, 0660, "no-such-group-here", why), -EINVAL);
    ck_assert_str_eq(why, "socket-group: there is no group \"no-such-group-here\"");
    ck_assert_int_eq(listener.fd, -1);
    assert_absent(path); /* nothing half-made is left */
    if (g) {
        ck_assert_int_eq(listener_open(&listener, path, 0660, g->gr_name, why), 0);
        ck_assert_uint_eq(stat_of(path).st_gid, g->gr_gid);
        listener_close(&listener);
    }
    teardown();
}
END_TEST

START_TEST(group_of_others)
{
    int status;

    setup();
    ck_assert_int_eq(chmod(folder, 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setegid(65534) < 0 || seteuid(65534) < 0))
            _exit(1);
        if (listener_open(&listener, path, 0660, "root", why) != -EPERM)
            _exit(2);
        _exit(strstr(why, "to the group \"root\": ") && strstr(why, "must be a member of it, or be root") ? 0 : 3);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    assert_absent(path);
    teardown();
}
END_TEST

START_TEST(closing_is_idempotent)
{
    setup();
    ck_assert_int_eq(open_here(), 0);
    assert_connects(true);
    listener_close(&listener);
    assert_absent(path);
    ck_assert_int_eq(listener.fd, -1);
    listener_close(&listener);
    ck_assert_int_eq(open_here(), 0); /* and again */
    listener_close(&listener);
    listener_close(&listener);
    teardown();
}
END_TEST

START_TEST(a_stale_socket_is_replaced)
{
    setup();
    /* of a router that died, and one that was bound but never listened */
    for (int listening = 0; listening < 2; listening++) {
        int fd = bound_socket(path, SOCK_STREAM, listening);

        ck_assert_int_eq(close(fd), 0);
        ck_assert(S_ISSOCK(stat_of(path).st_mode));
        assert_connects(false);
        ck_assert_int_eq(open_here(), 0);
        assert_connects(true);
        listener_close(&listener);
        assert_absent(path);
    }
    teardown();
}
END_TEST

START_TEST(a_live_one_is_refused)
{
    char want[LISTENER_WHY_SIZE];
    struct listener second;

    setup();
    ck_assert_int_eq(open_here(), 0);
    struct stat before = stat_of(path);
    ck_assert_int_eq(listener_open(&second, path, 0660, NULL, why), -EADDRINUSE);
    (void)snprintf(want, sizeof want,
                   "another process listens on %s: stop it or choose another --socket", path);
    ck_assert_str_eq(why, want);
    ck_assert_int_eq(second.fd, -1);
    listener_close(&second); /* closes nothing of the first */
    ck_assert_uint_eq(stat_of(path).st_ino, before.st_ino);
    assert_connects(true);
    listener_close(&listener);

    /* one whose backlog is full lives too */
    int fd = bound_socket(path, SOCK_STREAM, false), clients[3] = {-1, -1, -1};
    ck_assert_int_eq(listen(fd, 0), 0);
    int last = 0;
    for (size_t i = 0; i < ARRAY_SIZE(clients) && last >= 0; i++)
        last = clients[i] = fd_connect_unix(path);
    ck_assert_int_eq(last, -EAGAIN);
    ck_assert_int_eq(open_here(), -EADDRINUSE);
    ck_assert_str_eq(why, want);
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++)
        (void)fd_close(clients[i]);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(path), 0);

    /* somebody else's socket of another type is not ours to remove */
    fd = bound_socket(path, SOCK_DGRAM, false);
    ck_assert_int_eq(open_here(), -EPROTOTYPE);
    ck_assert(S_ISSOCK(stat_of(path).st_mode));
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(path), 0);
    teardown();
}
END_TEST

static void make_file(const char *at)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "mine", 4), 4);
    ck_assert_int_eq(close(fd), 0);
}

/** The path holds something that must be left alone. */
static void assert_left_alone(void)
{
    struct stat before = stat_of(path);
    char want[LISTENER_WHY_SIZE];

    ck_assert_int_eq(open_here(), -EADDRINUSE);
    (void)snprintf(want, sizeof want,
                   "%s exists and is not a socket: remove it yourself or choose another --socket",
                   path);
    ck_assert_str_eq(why, want);
    listener_close(&listener);
    struct stat after = stat_of(path);
    ck_assert_uint_eq(after.st_ino, before.st_ino);
    ck_assert_uint_eq(after.st_mode, before.st_mode);
    ck_assert_int_eq(after.st_size, before.st_size);
}

START_TEST(what_is_no_socket_is_left_alone)
{
    char target[300];

    setup();
    make_file(path);
    assert_left_alone();
    ck_assert_int_eq(unlink(path), 0);

    ck_assert_int_eq(mkdir(path, 0700), 0);
    assert_left_alone();
    ck_assert_int_eq(rmdir(path), 0);

    ck_assert_int_eq(mkfifo(path, 0600), 0);
    assert_left_alone();
    ck_assert_int_eq(unlink(path), 0);

    /* links: to nothing, to a file, to a stale socket */
    ck_assert_int_eq(symlink("nowhere", path), 0);
    assert_left_alone();
    ck_assert_int_eq(unlink(path), 0);

    (void)snprintf(target, sizeof target, "%s/target", folder);
    make_file(target);
    ck_assert_int_eq(symlink(target, path), 0);
    assert_left_alone();
    ck_assert_int_eq(stat_of(target).st_size, 4);
    ck_assert_int_eq(unlink(target), 0);
    int fd = bound_socket(target, SOCK_STREAM, true);
    ck_assert_int_eq(close(fd), 0);
    assert_left_alone();
    ck_assert(S_ISSOCK(stat_of(target).st_mode));
    ck_assert_int_eq(unlink(target), 0);
    ck_assert_int_eq(unlink(path), 0);
    teardown();
}
END_TEST

START_TEST(the_path_is_removed_only_while_it_is_ours)
{
    struct listener other;

    setup();
    /* a file in its place */
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(unlink(path), 0);
    make_file(path);
    listener_close(&listener);
    ck_assert_int_eq(stat_of(path).st_size, 4);
    ck_assert_int_eq(unlink(path), 0);

    /* another router's socket in its place */
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(listener_open(&other, path, 0600, NULL, why), 0);
    struct stat before = stat_of(path);
    listener_close(&listener);
    ck_assert_uint_eq(stat_of(path).st_ino, before.st_ino);
    assert_connects(true);
    listener_close(&other);
    assert_absent(path);

    /* nothing in its place, not even the folder */
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(unlink(path), 0);
    listener_close(&listener);
    teardown();
}
END_TEST

START_TEST(the_folder)
{
    char sub[128];
    mode_t before = umask(022);

    setup();
    (void)snprintf(sub, sizeof sub, "%s/run", folder);
    (void)snprintf(path, sizeof path, "%s/bus.sock", sub);
    ck_assert_int_eq(open_here(), 0); /* its last component is made */
    ck_assert_uint_eq(stat_of(sub).st_mode, S_IFDIR | 0755);
    listener_close(&listener);
    ck_assert_int_eq(rmdir(sub), 0);

    (void)snprintf(path, sizeof path, "%s/run/deeper/bus.sock", folder); /* more is not */
    ck_assert_int_eq(open_here(), -ENOENT);
    (void)snprintf(sub, sizeof sub, "cannot make the folder %s/run/deeper: the folder above it is missing, ", folder);
    ck_assert_int_eq(strncmp(why, sub, strlen(sub)), 0);
    (void)snprintf(sub, sizeof sub, "%s/run", folder);
    assert_absent(sub);

    make_file(sub); /* a file where the folder should be */
    (void)snprintf(path, sizeof path, "%s/run/bus.sock", folder);
    ck_assert_int_eq(open_here(), -ENOTDIR);
    ck_assert_int_eq(stat_of(sub).st_size, 4);
    ck_assert_int_eq(unlink(sub), 0);

    ck_assert_int_eq(chdir(folder), 0); /* without any */
    (void)snprintf(path, sizeof path, "bus.sock");
    ck_assert_int_eq(open_here(), 0);
    assert_connects(true);
    listener_close(&listener);
    assert_absent(path);
    ck_assert_int_eq(chdir("/"), 0);
    (void)umask(before);
    teardown();
}
END_TEST

/** A path of exactly this many bytes in a folder `run` that does not exist. */
static void path_of(size_t size)
{
    size_t n = (size_t)snprintf(path, sizeof path, "%s/run/", folder);

    memset(path + n, 's', size - n);
    path[size] = '\0';
    ck_assert_uint_eq(strlen(path), size);
}

START_TEST(lengths_of_the_path)
{
    char sub[64], want[LISTENER_WHY_SIZE];

    setup();
    (void)snprintf(sub, sizeof sub, "%s/run", folder);
    for (size_t size = 102; size <= 107; size++) { /* with and without room for a name beside it */
        path_of(size);
        ck_assert_int_eq(open_here(), 0);
        assert_connects(true);
        ck_assert(S_ISSOCK(stat_of(path).st_mode)); /* not a shorter one */
        listener_close(&listener);
        assert_absent(path);
        ck_assert_int_eq(rmdir(sub), 0);
    }
    for (size_t size = 108; size < 250; size += 71) {
        path_of(size);
        ck_assert_int_eq(open_here(), -ENAMETOOLONG);
        (void)snprintf(want, sizeof want, "not a usable socket path: %s: %s", path,
                       strerror(ENAMETOOLONG));
        ck_assert_str_eq(why, want);
        ck_assert_int_eq(listener.fd, -1);
        assert_absent(sub); /* refused before anything is made */
    }
    /* a long folder, whose name must not be cut and then made */
    memset(path, 0, sizeof path);
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", folder);
    memset(path + n, 'd', 150);
    memcpy(path + n + 150, "/s", 3);
    ck_assert_int_eq(open_here(), -ENAMETOOLONG);
    path[0] = '\0';
    ck_assert_int_eq(open_here(), -EINVAL);
    teardown(); /* the folder is empty */
}
END_TEST

/** Connects as soon as the path is there; exits with the errno of an attempt that failed otherwise. */
static void connect_when_seen(void)
{
    int fd;

    do
        fd = fd_connect_unix(path);
    while (fd == -ENOENT);
    _exit(fd < 0 ? -fd : 0);
}

START_TEST(whoever_sees_it_can_connect)
{
    setup();
    for (unsigned i = 0; i < 300; i++) {
        int status;
        pid_t pid = fork();

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            connect_when_seen();
        if (i % 4) /* so that it is looking already */
            (void)usleep(300);
        ck_assert_int_eq(open_here(), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status));
        ck_assert_msg(WEXITSTATUS(status) == 0, "round %u: %s", i, strerror(WEXITSTATUS(status)));
        listener_close(&listener);
    }
    teardown(); /* and no other name is left */
}
END_TEST

/** Puts a file at the path once the socket is there under its first name; exits with 0 if in time. */
static void make_file_before_it(const char *beside)
{
    while (access(beside, F_OK) < 0 && access(path, F_OK) < 0)
        ;
    _exit(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) < 0);
}

START_TEST(what_comes_between_is_left_alone)
{
    char beside[sizeof path + 8];

    setup();
    (void)snprintf(beside, sizeof beside, "%s.new", path);
    for (unsigned i = 0; i < 50; i++) {
        int status;
        pid_t pid = fork();

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            make_file_before_it(beside);
        (void)usleep(1000);
        int r = open_here();
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status));
        bool made = WEXITSTATUS(status) == 0;
        ck_assert_int_eq(r, made ? -EADDRINUSE : 0);
        ck_assert(made ? S_ISREG(stat_of(path).st_mode) : S_ISSOCK(stat_of(path).st_mode));
        assert_absent(beside);
        listener_close(&listener);
        if (made)
            ck_assert_int_eq(unlink(path), 0);
        assert_absent(path);
    }
    teardown();
}
END_TEST

START_TEST(what_stands_beside_it)
{
    char beside[sizeof path + 8], want[2 * LISTENER_WHY_SIZE];

    setup();
    (void)snprintf(beside, sizeof beside, "%s.new", path);
    int fd = bound_socket(beside, SOCK_STREAM, true); /* of a router that was killed */
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(open_here(), 0);
    assert_absent(beside);
    assert_connects(true);
    listener_close(&listener);

    fd = bound_socket(beside, SOCK_STREAM, true); /* of one that lives */
    ck_assert_int_eq(open_here(), -EADDRINUSE);
    (void)snprintf(want, sizeof want,
                   "another process listens on %s: stop it or choose another --socket", beside);
    ck_assert_str_eq(why, want);
    assert_absent(path);
    ck_assert(S_ISSOCK(stat_of(beside).st_mode));
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(beside), 0);

    make_file(beside);
    ck_assert_int_eq(open_here(), -EADDRINUSE);
    ck_assert_int_eq(stat_of(beside).st_size, 4);
    assert_absent(path);
    ck_assert_int_eq(listener.fd, -1);
    ck_assert_int_eq(unlink(beside), 0);
    teardown();
}
END_TEST

/* ---- accepting ---- */

static int accepted[200];
static size_t n_accepted;

static void on_accepted(void *owner, int fd)
{
    ck_assert_ptr_eq(owner, &n_accepted);
    ck_assert_uint_lt(n_accepted, ARRAY_SIZE(accepted));
    accepted[n_accepted++] = fd;
}

START_TEST(accepting)
{
    int clients[ARRAY_SIZE(accepted)];
    uv_loop_t loop;

    setup();
    n_accepted = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(open_here(), 0);
    ck_assert_int_eq(listener_start(&listener, &loop, on_accepted, &n_accepted), 0);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(n_accepted, 0);
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++) {
        clients[i] = fd_connect_unix(path);
        ck_assert_int_ge(clients[i], 0);
    }
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(n_accepted, 64); /* what one turn may take */
    for (unsigned i = 0; i < 10; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(n_accepted, ARRAY_SIZE(accepted));
    ck_assert_uint_eq(listener.refused, 0);
    for (size_t i = 0; i < n_accepted; i++) {
        ck_assert(fcntl(accepted[i], F_GETFL) & O_NONBLOCK);
        ck_assert(fcntl(accepted[i], F_GETFD) & FD_CLOEXEC);
        ck_assert_int_eq(close(accepted[i]), 0);
        ck_assert_int_eq(close(clients[i]), 0);
    }
    listener_close(&listener);
    listener_close(&listener);
    assert_absent(path);
    assert_connects(false);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    teardown();
}
END_TEST

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    uv_loop_t loop;

    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

UNIT_MAIN("listener", modes_and_masks, groups, group_of_others, closing_is_idempotent, a_stale_socket_is_replaced,
          a_live_one_is_refused, what_is_no_socket_is_left_alone,
          the_path_is_removed_only_while_it_is_ours, the_folder, lengths_of_the_path,
          whoever_sees_it_can_connect, what_comes_between_is_left_alone, what_stands_beside_it,
          accepting)
