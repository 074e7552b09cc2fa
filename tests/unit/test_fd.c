/* SPDX-License-Identifier: PostgreSQL */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit.h"

START_TEST(fd_close_keeps_errno)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    errno = ENOTTY;
    ck_assert_int_eq(fd_close(fd), -1);
    ck_assert_int_eq(errno, ENOTTY);
    ck_assert_int_lt(fcntl(fd, F_GETFD), 0);
    errno = ENOTTY;
    ck_assert_int_eq(fd_close(-1), -1);
    ck_assert_int_eq(errno, ENOTTY);
}
END_TEST

START_TEST(fd_address_limits)
{
    struct sockaddr_un address;
    char path[FD_SOCKET_PATH_MAX + 2];

    ck_assert_uint_eq(FD_SOCKET_PATH_MAX, 107);
    ck_assert_int_eq(fd_socket_address("", &address), -EINVAL);
    ck_assert_int_eq(fd_socket_address("/s", &address), 0);
    ck_assert_int_eq(address.sun_family, AF_UNIX);
    ck_assert_str_eq(address.sun_path, "/s");
    memset(path, 'p', sizeof path - 1);
    path[FD_SOCKET_PATH_MAX + 1] = '\0';
    ck_assert_int_eq(fd_socket_address(path, &address), -ENAMETOOLONG);
    ck_assert_str_eq(address.sun_path, "/s");
    path[FD_SOCKET_PATH_MAX] = '\0';
    ck_assert_int_eq(fd_socket_address(path, &address), 0);
    ck_assert_str_eq(address.sun_path, path);
}
END_TEST

START_TEST(fd_connects)
{
    char folder[] = "/tmp/walbus-unit-XXXXXX", path[64];
    struct sockaddr_un address;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/s", folder);
    ck_assert_int_eq(fd_connect_unix(path), -ENOENT);
    ck_assert_int_eq(fd_socket_address(path, &address), 0);

    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(server, 0);
    ck_assert_int_eq(bind(server, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(fd_connect_unix(path), -ECONNREFUSED);
    ck_assert_int_eq(listen(server, 0), 0);

    int fd = fd_connect_unix(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    /* The backlog of one is full: no waiting, and no descriptor left behind. */
    ck_assert_int_eq(fd_connect_unix(path), -EAGAIN);

    int peer = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(write(fd, "x", 1), 1);
    char c = 0;
    ck_assert_int_eq(read(peer, &c, 1), 1);
    ck_assert_int_eq(c, 'x');
    (void)fd_close(peer);
    (void)fd_close(fd);
    (void)fd_close(server);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

UNIT_MAIN("fd", fd_close_keeps_errno, fd_address_limits, fd_connects)
