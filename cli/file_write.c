/* SPDX-License-Identifier: PostgreSQL */
#include "file_write.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#define LOCK_WAIT_NS  UINT64_C(10000000000)
#define LOCK_SLEEP_US 20000

/* Everything, and on disk. 0 or a negative errno. */
static int write_and_sync(int fd, struct bytes content)
{
    while (content.size > 0) {
        ssize_t n = write(fd, content.data, content.size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        content.data += n;
        content.size -= (size_t)n;
    }
    return fsync(fd) < 0 ? -errno : 0;
}

/* Closes; what some file systems say only then is a failure as well. */
static int finish(int fd, int r)
{
    if (close(fd) < 0 && r == 0 && errno != EINTR)
        return -errno;
    return r;
}

int file_write_new(const char *path, mode_t mode, struct bytes content)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);

    if (fd < 0)
        return -errno;
    int r = finish(fd, write_and_sync(fd, content));
    if (r < 0)
        (void)unlink(path);
    return r;
}

/* Mode and owner of what it is to take the place of. 0 or a negative errno. */
static int become_like(int fd, const struct stat *like)
{
    struct stat own;

    if (!like)
        return fchmod(fd, 0644) < 0 ? -errno : 0;
    if (fstat(fd, &own) < 0)
        return -errno;
    if ((own.st_uid != like->st_uid || own.st_gid != like->st_gid) &&
        fchown(fd, like->st_uid, like->st_gid) < 0)
        return -errno;
    return fchmod(fd, like->st_mode & 07777) < 0 ? -errno : 0;
}

/* `temporary` ends with XXXXXX. */
static int replace(const char *path, char *temporary, const struct stat *like, struct bytes content)
{
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */

    if (fd < 0)
        return -errno;
    int r = become_like(fd, like);
    r = finish(fd, r < 0 ? r : write_and_sync(fd, content));
    if (r == 0 && rename(temporary, path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(temporary);
        return r;
    }
    return file_write_sync_folder(path);
}

int file_write_replace(const char *path, const struct stat *like, struct bytes content)
{
    static const char ending[] = ".new-XXXXXX";
    size_t size = strlen(path);
    char *temporary = malloc(size + sizeof ending);
    sigset_t all, before;

    if (!temporary)
        return -ENOMEM;
    memcpy(temporary, path, size);
    memcpy(temporary + size, ending, sizeof ending);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    int r = replace(path, temporary, like, content);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    free(temporary);
    return r;
}

/* The folder that `path` is in, opened; or a negative errno. */
static int open_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash          ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));

    if (!folder)
        return -ENOMEM;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        fd = -errno;
    free(folder);
    return fd;
}

int file_write_sync_folder(const char *path)
{
    int fd = open_folder(path), r = 0;

    if (fd < 0)
        return fd;
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: a file system that knows no such thing */
        r = -errno;
    (void)fd_close(fd);
    return r;
}

int file_write_lock(const char *path, struct file_lock *ret)
{
    uint64_t until = clock_monotonic_ns() + LOCK_WAIT_NS;
    int fd = open_folder(path);

    if (fd < 0)
        return fd;
    /* Of the folder, since the file itself is another one after each change. */
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int error = errno;

        if (error == EINTR)
            continue;
        if (error == EWOULDBLOCK && clock_monotonic_ns() < until) {
            (void)usleep(LOCK_SLEEP_US);
            continue;
        }
        (void)fd_close(fd);
        return error == EWOULDBLOCK ? -EAGAIN : -error;
    }
    ret->fd = fd;
    return 0;
}

void file_write_unlock(struct file_lock *lock)
{
    lock->fd = fd_close(lock->fd);
}

bool file_write_is_link(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

const char *file_write_what_is_at(const char *path)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return "something";
    switch (st.st_mode & S_IFMT) {
    case S_IFREG:
        return "a file";
    case S_IFDIR:
        return "a folder";
    case S_IFLNK:
        return stat(path, &st) < 0 ? "a symbolic link to nothing" : "a symbolic link";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}
