/* SPDX-License-Identifier: PostgreSQL */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int fd_close(int fd)
{
    if (fd >= 0) {
        int saved = errno;

        (void)close(fd);
        errno = saved;
    }
    return -1;
}

int fd_open_standard(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        /* The lowest free number, since those below are open by now. The wrong way round on purpose. */
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return -errno;
    }
    return 0;
}

int fd_socket_address(const char *path, struct sockaddr_un *ret)
{
    size_t size = strlen(path);

    if (size == 0)
        return -EINVAL;
    if (size > FD_SOCKET_PATH_MAX)
        return -ENAMETOOLONG;
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, size);
    return 0;
}

int fd_connect_unix(const char *path)
{
    struct sockaddr_un address;
    int r = fd_socket_address(path, &address);

    if (r < 0)
        return r;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* A Unix socket connects at once or not at all: there is no EINPROGRESS to wait for. */
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        r = -errno;
        fd_close(fd);
        return r;
    }
    return fd;
}
