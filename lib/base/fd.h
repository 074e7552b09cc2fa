/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_BASE_FD_H
#define WALBUS_BASE_FD_H

#include <stddef.h>
#include <sys/un.h>

#include "base/macros.h"

/** Closes a descriptor that may be -1, keeping errno; returns -1. */
int fd_close(int fd);

/**
 * Opens /dev/null in the place of a closed standard descriptor, so that no other file takes its
 * number: what is printed would go into it, and what is read come from it. Stdin can then not be
 * read and stdout and stderr not be written, -EBADF, as if they were closed still: nothing is lost
 * without a word. First thing in a program. 0 or a negative errno.
 */
int fd_open_standard(void) MUST_CHECK;

/** Longest path of a Unix socket: sizeof sun_path less its NUL. */
#define FD_SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

/** 0; -ENAMETOOLONG past FD_SOCKET_PATH_MAX; -EINVAL when empty. */
int fd_socket_address(const char *path, struct sockaddr_un *ret) MUST_CHECK;

/** A connected, non-blocking, close-on-exec Unix stream socket, or a negative errno. A full
 *  backlog is -EAGAIN: try again later. */
int fd_connect_unix(const char *path) MUST_CHECK;

#endif
