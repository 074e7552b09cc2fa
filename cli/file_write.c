/* SPDX-License-Identifier: PostgreSQL */
#include "file_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

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

int file_write_replace(const char *path, const struct stat *like, struct bytes content)
{
    struct buf name = BUF_INIT;
    int r = 0;

    buf_printf(&name, "%s.new-XXXXXX", path);
    if (name.failed)
        return -ENOMEM;
    /* buf_str has ended it, and nothing is appended any more */
    char *temporary = (char *)(uintptr_t)buf_str(&name);
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */

    if (fd < 0) {
        r = -errno;
        buf_deinit(&name);
        return r;
    }
    if (like) {
        struct stat own;

        if (fstat(fd, &own) < 0)
            r = -errno;
        else if ((own.st_uid != like->st_uid || own.st_gid != like->st_gid) &&
                 fchown(fd, like->st_uid, like->st_gid) < 0)
            r = -errno;
        if (r == 0 && fchmod(fd, like->st_mode & 07777) < 0)
            r = -errno;
    } else {
        mode_t mask = umask(0);

        (void)umask(mask);
        if (fchmod(fd, 0644 & ~mask) < 0)
            r = -errno;
    }
    r = finish(fd, r < 0 ? r : write_and_sync(fd, content));
    if (r == 0 && rename(temporary, path) < 0)
        r = -errno;
    if (r < 0)
        (void)unlink(temporary);
    else
        r = file_write_sync_folder(path);
    buf_deinit(&name);
    return r;
}

int file_write_sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash          ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));
    int fd, r = 0;

    if (!folder)
        return -ENOMEM;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (fd < 0)
        return -errno;
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: a file system that knows no such thing */
        r = -errno;
    (void)fd_close(fd);
    return r;
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
