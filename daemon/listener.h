/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_LISTENER_H
#define WALBUS_DAEMON_LISTENER_H

/*
 * The router's Unix socket: made with the right mode and group, a stale one of
 * a router that died is replaced, one that is in use or anything that is not a
 * socket is left alone. Whoever sees it can connect: it listens before it has
 * its name. At the end the path is removed if it is still ours.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "base/macros.h"

#define LISTENER_WHY_SIZE 512

struct listener {
    char *path;
    int fd; /* -1: closed */
    int spare; /* given up for a moment to turn a connection away when no descriptor is left */
    dev_t dev;
    ino_t ino;
    uv_poll_t *poll; /* owned; libuv lets go of it later */
    void (*accepted)(void *owner, int fd); /* a connection, non-blocking, close-on-exec; takes it over */
    void *owner;
    uint64_t refused; /* connections turned away for want of descriptors */
};

/** Binds and listens. `group` NULL: as the process. 0; -EADDRINUSE (another router, or something
 *  that is no socket); any other negative errno. `why` says what stands where and what to do. */
int listener_open(struct listener *l, const char *path, mode_t mode, const char *group,
                  char why[LISTENER_WHY_SIZE]) MUST_CHECK;

/** Starts accepting on the loop. 0 or a negative errno. */
int listener_start(struct listener *l, uv_loop_t *loop, void (*accepted)(void *owner, int fd),
                   void *owner) MUST_CHECK;

/** Stops accepting and removes the path if it is still the socket made here. Idempotent. */
void listener_close(struct listener *l);

#endif
