/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_PGLINK_H
#define WALBUS_DAEMON_PGLINK_H

/*
 * One libpq connection on a libuv loop: connecting without blocking, watching
 * its socket, and letting go of both in the right order (the poll handle first,
 * then PQfinish, because the descriptor's number may come back at once).
 *
 * Two uses: the replication connection (source.c) and the ordinary one
 * (heartbeat.c). Loop thread only.
 */

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>
#include <uv.h>

#include "base/buf.h"
#include "base/macros.h"
#include "pg/connect.h"

/**
 * How long one host may take, in ms, where the dsn sets no connect_timeout. As libpq's own it holds for each
 * address of each host; but libpq keeps it only when it waits itself. A host that does not answer at all (its
 * packets are dropped, so that no connection comes about) is passed over for the next. Behind one that took
 * the connection and then says nothing libpq offers no way to the next: the attempt fails. Names are looked up
 * synchronously; that is not covered.
 */
#define PGLINK_CONNECT_MS 10000u

enum pglink_state { PGLINK_CLOSED = 0, PGLINK_CONNECTING, PGLINK_OPEN };

struct pglink_ops {
    /** The connection stands. */
    void (*opened)(void *owner);
    /** Connecting failed; the link is closed already; error and sqlstate say why. */
    void (*failed)(void *owner);
    /** The socket is readable: call PQconsumeInput or PQgetCopyData until there is nothing more. */
    void (*readable)(void *owner);
};

struct pglink {
    uv_loop_t *loop;
    const struct pglink_ops *ops;
    void *owner;
    enum pglink_state state;
    PGconn *conn;
    uv_poll_t *poll; /* owned; NULL while nothing is watched */
    uv_timer_t *timer; /* owned; bounds connecting to one address */
    uint64_t connect_ms;    /* for each */
    struct buf address;     /* the one that is tried */
    bool passed_over;       /* one that did not answer */
    int events;
    bool reading; /* wanted by the owner */
    bool writing; /* libpq has output queued */
    struct buf error; /* of the last failure, one line */
    char sqlstate[PG_SQLSTATE_SIZE]; /* of it, or of the last notice; "" unknown */
    char user[256]; /* the role of the last attempt, as libpq worked it out */
};

void pglink_init(struct pglink *l, uv_loop_t *loop, const struct pglink_ops *ops, void *owner);
/** Closes and frees. */
void pglink_deinit(struct pglink *l);

/** Begins to connect; the outcome comes through ops, never from within. Closed before. */
void pglink_connect(struct pglink *l, const struct connect_options *options);

/** Closes the connection; nothing more comes through ops. Idempotent. error and sqlstate stay. */
void pglink_close(struct pglink *l);

/** Whether the socket's input is waited for. On when opened. */
void pglink_read(struct pglink *l, bool on);

/** PQflush, and waits for the socket when something is left. 0, or -EPIPE: see error. */
int pglink_flush(struct pglink *l) MUST_CHECK;

/** Takes error and sqlstate from a result (NULL: from the connection). */
void pglink_note_error(struct pglink *l, const PGresult *result);

#endif
