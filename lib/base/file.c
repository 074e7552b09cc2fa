/* SPDX-License-Identifier: PostgreSQL */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define OTHERS (S_IRWXG | S_IRWXO)

static int refuse(int error, char why[FILE_WHY_SIZE], const char *path, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

static int refuse(int error, char why[FILE_WHY_SIZE], const char *path, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(why, FILE_WHY_SIZE, "%.200s: ", path);

    if (n < 0)
        return error;
    va_start(ap, fmt);
    (void)vsnprintf(why + n, FILE_WHY_SIZE - (size_t)n, fmt, ap);
    va_end(ap);
    return error;
}

static const char *kind_text(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

/* Of the open file, so that it cannot become another one afterwards. */
static int check(const struct stat *st, const char *path, size_t max, unsigned flags,
                 char why[FILE_WHY_SIZE])
{
    if (!S_ISREG(st->st_mode))
        return refuse(-EINVAL, why, path, "It is %s, and must be a regular file.",
                      kind_text(st->st_mode));
    if ((flags & FILE_PRIVATE) && (st->st_mode & OTHERS))
        return refuse(-EPERM, why, path,
                      "Others than its owner have rights to it (mode %04o), and a secret is in it: "
                      "chmod 600 it.",
                      (unsigned)(st->st_mode & 07777));
    if ((flags & FILE_PRIVATE) && st->st_uid != geteuid() && st->st_uid != 0)
        return refuse(-EPERM, why, path,
                      "It belongs to the user %lu, and a secret must belong to root or to the user "
                      "who reads it, %lu.",
                      (unsigned long)st->st_uid, (unsigned long)geteuid());
    if ((flags & FILE_TRUSTED) && (st->st_mode & S_IWOTH))
        return refuse(-EPERM, why, path,
                      "Everybody may write it (mode %04o), and so nothing in it can be relied on: "
                      "chmod o-w it.",
                      (unsigned)(st->st_mode & 07777));
    if ((uintmax_t)st->st_size > max)
        return refuse(-EFBIG, why, path, "It has %jd bytes; %zu are the most.",
                      (intmax_t)st->st_size, max);
    return 0;
}

/* ---- memory ---- */

static int allocate(struct file_content *content, size_t size)
{
    if (!(content->flags & FILE_PRIVATE)) {
        content->data = malloc(size);
        return content->data ? 0 : -ENOMEM;
    }
    if (sodium_init() < 0)
        return -ENOMEM;
    content->data = sodium_malloc(size);
    /* sodium_malloc says nothing when its memory could not be locked. */
    if (content->data && sodium_mlock(content->data, size) < 0) {
        sodium_free(content->data);
        content->data = NULL;
    }
    return content->data ? 0 : -ENOMEM;
}

void file_content_deinit(struct file_content *content)
{
    if (content->flags & FILE_PRIVATE) {
        sodium_free(content->data); /* wipes */
    } else {
        if (content->data) /* a secret may stand where it should not */
            sodium_memzero(content->data, content->size);
        free(content->data);
    }
    content->data = NULL;
    content->size = 0;
}

/* ---- reading ---- */

/* Up to `max` bytes and one that would be too many: the file may have grown since it was looked at. */
static int read_all(int fd, struct file_content *content, size_t max)
{
    while (content->size <= max) {
        ssize_t n = read(fd, content->data + content->size, max + 1 - content->size);

        if (n == 0)
            return 0;
        if (n > 0)
            content->size += (size_t)n;
        else if (errno != EINTR)
            return -errno;
    }
    return -EFBIG;
}

static int read_fd(int fd, const char *path, size_t max, struct file_content *content,
                   char why[FILE_WHY_SIZE])
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return refuse(-errno, why, path, "It cannot be read: %s.", strerror(errno));
    int r = check(&st, path, max, content->flags, why);
    if (r < 0)
        return r;
    if (allocate(content, max + 1) < 0)
        return refuse(-ENOMEM, why, path, "There is no memory for it%s.",
                      content->flags & FILE_PRIVATE ? " that may be locked (ulimit -l)" : "");
    r = read_all(fd, content, max);
    if (r == -EFBIG)
        return refuse(r, why, path, "It has more than %zu bytes, which are the most.", max);
    if (r < 0)
        return refuse(r, why, path, "It cannot be read: %s.", strerror(-r));
    content->data[content->size] = '\0';
    return 0;
}

int file_read(const char *path, size_t max, unsigned flags, struct file_content *ret,
              char why[FILE_WHY_SIZE])
{
    struct file_content content = {.flags = flags};
    /* A FIFO without a writer would else be waited for, before it can be told that it is one. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return refuse(-errno, why, path, "It cannot be opened: %s.", strerror(errno));
    int r = read_fd(fd, path, max, &content, why);
    (void)fd_close(fd);
    if (r < 0)
        file_content_deinit(&content);
    else
        *ret = content;
    return r;
}
