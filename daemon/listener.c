/* SPDX-License-Identifier: PostgreSQL */
#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define BACKLOG        1024
#define ACCEPTS_A_TURN 64

static int complain(char why[LISTENER_WHY_SIZE], int error, const char *what, const char *path)
{
    snprintf(why, LISTENER_WHY_SIZE, "%s %s: %s", what, path, strerror(error));
    return -error;
}

/* The folder of the path, made if only its last component is missing; open for locking. */
static int open_folder(const char *path, char why[LISTENER_WHY_SIZE])
{
    char folder[FD_SOCKET_PATH_MAX + 1];
    const char *slash = strrchr(path, '/');
    size_t size = slash ? (size_t)(slash - path) : 0;

    if (slash == path || !slash)
        snprintf(folder, sizeof folder, "%s", slash ? "/" : ".");
    else
        snprintf(folder, sizeof folder, "%.*s", (int)size, path);
    int error = mkdir(folder, 0755) < 0 ? errno : 0;
    if (error == ENOENT) {
        snprintf(why, LISTENER_WHY_SIZE, "cannot make the folder %s: the folder above it is missing, make that one first",
                 folder);
        return -ENOENT;
    }
    if (error && error != EEXIST)
        return complain(why, error, "cannot make the folder", folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return complain(why, errno, "cannot open the folder", folder);
    return fd;
}

/* Removes a socket that nobody listens on. 0: the path is free. */
static int clear_path(const char *path, char why[LISTENER_WHY_SIZE])
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : complain(why, errno, "cannot look at", path);
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(why, LISTENER_WHY_SIZE,
                 "%s exists and is not a socket: remove it yourself or choose another --socket",
                 path);
        return -EADDRINUSE;
    }
    int fd = fd_connect_unix(path);
    if (fd >= 0 || fd == -EAGAIN) {
        (void)fd_close(fd);
        snprintf(why, LISTENER_WHY_SIZE,
                 "another process listens on %s: stop it or choose another --socket", path);
        return -EADDRINUSE;
    }
    if (fd != -ECONNREFUSED)
        return complain(why, -fd, "cannot tell whether somebody listens on", path);
    if (unlink(path) < 0)
        return complain(why, errno, "cannot remove the stale socket", path);
    return 0;
}

static int set_group(const char *path, const char *group, char why[LISTENER_WHY_SIZE])
{
    if (!group || !*group)
        return 0;
    errno = 0;
    const struct group *g = getgrnam(group);
    if (!g) {
        snprintf(why, LISTENER_WHY_SIZE, "socket-group: there is no group \"%s\"", group);
        return -EINVAL;
    }
    if (chown(path, (uid_t)-1, g->gr_gid) < 0) {
        int error = errno;

        snprintf(why, LISTENER_WHY_SIZE, "socket-group: cannot give %s to the group \"%s\": %s%s", path, group,
                 strerror(error), error == EPERM ? "; the router's user must be a member of it, or be root" : "");
        return -error;
    }
    return 0;
}

/* What a name beside the path ends with. */
#define BESIDE ".new"

/* Bound, with its mode and group, and listening; nothing is left when it fails. */
static int listen_at(struct listener *l, const char *at, mode_t mode, const char *group,
                     char why[LISTENER_WHY_SIZE])
{
    struct sockaddr_un address;
    struct stat st;
    int r = fd_socket_address(at, &address);
    int fd = r < 0 ? r : socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return complain(why, r < 0 ? -r : errno, "cannot make a socket for", at);
    mode_t before = umask(0177); /* nobody gets in between bind and chmod */
    r = bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    umask(before);
    if (r < 0) {
        (void)fd_close(fd);
        return complain(why, -r, "cannot bind", at);
    }
    r = set_group(at, group, why);
    if (r == 0 && chmod(at, mode) < 0)
        r = complain(why, errno, "cannot set the mode of", at);
    if (r == 0 && (listen(fd, BACKLOG) < 0 || lstat(at, &st) < 0))
        r = complain(why, errno, "cannot listen on", at);
    if (r < 0) {
        (void)unlink(at);
        (void)fd_close(fd);
        return r;
    }
    l->fd = fd;
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return 0;
}

/* A socket that is bound and does not listen yet refuses who connects. So it gets its name last: it
 * is made beside it and linked, which unlike a rename never takes the place of what somebody has put
 * there meanwhile. */
static int make_socket(struct listener *l, const char *path, mode_t mode, const char *group,
                       char why[LISTENER_WHY_SIZE])
{
    char beside[FD_SOCKET_PATH_MAX + sizeof BESIDE];

    snprintf(beside, sizeof beside, "%s" BESIDE, path);
    if (strlen(beside) > FD_SOCKET_PATH_MAX) /* no room for that name: it refuses for an instant */
        return listen_at(l, path, mode, group, why);
    int r = clear_path(beside, why); /* of a router that was killed just here */
    if (r == 0)
        r = listen_at(l, beside, mode, group, why);
    if (r < 0)
        return r;
    if (link(beside, path) < 0)
        r = complain(why, errno, "cannot give the socket its name", path);
    (void)unlink(beside);
    if (r < 0)
        l->fd = fd_close(l->fd);
    return r == -EEXIST ? -EADDRINUSE : r;
}

#define LOCK_TRIES   20
#define LOCK_WAIT_US 100000

static int lock_folder(int folder)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(folder, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -1;
        (void)usleep(LOCK_WAIT_US); /* nothing is served yet: the loop does not run */
    }
    return -1;
}

int listener_open(struct listener *l, const char *path, mode_t mode, const char *group,
                  char why[LISTENER_WHY_SIZE])
{
    struct sockaddr_un address;

    *l = (struct listener){.fd = -1, .spare = -1};
    int r =
        fd_socket_address(path, &address); /* before a folder is made, under a name cut to fit */
    if (r < 0)
        return complain(why, -r, "not a usable socket path:", path);
    int folder = open_folder(path, why);
    if (folder < 0)
        return folder;
    /* Two routers that start at once: one at a time looks and makes its socket. */
    r = lock_folder(folder) < 0 ? complain(why, errno, "cannot lock the folder of", path) : 0;
    if (r == 0)
        r = clear_path(path, why);
    if (r == 0)
        r = make_socket(l, path, mode, group, why);
    (void)fd_close(folder);
    if (r == 0) {
        l->path = strdup(path);
        l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (!l->path || l->spare < 0) {
            listener_close(l);
            return complain(why, ENOMEM, "cannot listen on", path);
        }
    }
    return r;
}

/* Without this a connection that cannot be accepted would keep the socket readable and the loop spinning. */
static void turn_away(struct listener *l)
{
    l->spare = fd_close(l->spare);
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    (void)fd_close(fd);
    l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    l->refused++;
}

static void listener_on_poll(uv_poll_t *poll, int status, int events)
{
    struct listener *l = poll->data;

    (void)events;
    if (status < 0)
        return;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                turn_away(l);
            return;
        }
        l->accepted(l->owner, fd);
    }
}

int listener_start(struct listener *l, uv_loop_t *loop, void (*accepted)(void *owner, int fd),
                   void *owner)
{
    l->accepted = accepted;
    l->owner = owner;
    l->poll = malloc(sizeof *l->poll);
    if (!l->poll)
        return -ENOMEM;
    int r = uv_poll_init(loop, l->poll, l->fd);
    if (r < 0) {
        free(l->poll);
        l->poll = NULL;
        return r;
    }
    l->poll->data = l;
    return uv_poll_start(l->poll, UV_READABLE, listener_on_poll);
}

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

void listener_close(struct listener *l)
{
    struct stat st;

    if (l->poll) {
        uv_close((uv_handle_t *)l->poll, free_handle);
        l->poll = NULL;
    }
    if (l->fd >= 0 && l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev &&
        st.st_ino == l->ino)
        (void)unlink(l->path);
    l->fd = fd_close(l->fd);
    l->spare = fd_close(l->spare);
    free(l->path);
    l->path = NULL;
}
