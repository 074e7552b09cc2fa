/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_DEV_KEEPER_H
#define WALBUS_CLI_DEV_KEEPER_H

/*
 * The process behind `walbus dev`: parent of the throw-away server and of the
 * router, and the one that removes their folder. See dev_keeper.c.
 */

#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/macros.h"

struct dev_plan {
    /* Holds everything: the logs and the router's socket, and below it the server's user's `data`
     * and `server_socket`. It is short enough for two socket paths. */
    char folder[80];
    char data[80 + sizeof "/data"];
    char server_socket[80 + sizeof "/pg"];
    char bindir[PATH_MAX]; /* initdb and postgres */
    char walbus[PATH_MAX]; /* this executable, for `setup` and `status --wait` */
    char walbusd[PATH_MAX];
    char dsn[160]; /* a conninfo that needs no quoting */
    char socket[107];
    char state[80 + sizeof "/state"]; /* the router's folder, which it makes */
    const char *slot, *publication;
    bool change_user; /* root: the server runs as uid and gid */
    uid_t uid;
    gid_t gid;
    bool keep; /* leave the folder there */
};

/** What the keeper writes into `ready_fd` once the router streams; end of file without it: it
 * failed, and has said why on stderr. */
#define DEV_READY 'R'

/**
 * Runs the keeper in a process that was forked for it; never returns. It
 * ends everything and exits when `hold_fd` reaches its end (the other process
 * closed it, or died), when a child dies by itself (exit 1), or on SIGTERM.
 */
_Noreturn void dev_keeper_run(const struct dev_plan *plan, int hold_fd, int ready_fd);

/** In a forked child: the default signal mask, and `sig` when the parent ends. `parent` is the pid
 * that forked it: when that is gone already, the child exits at once. */
void dev_child_prepare(pid_t parent, int sig);

#endif
