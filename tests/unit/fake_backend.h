/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_FAKE_BACKEND_H
#define WALBUS_TESTS_UNIT_FAKE_BACKEND_H

/*
 * As much of a PostgreSQL as a test of the way in needs, on the test's own loop:
 * it takes connections over a Unix socket, lets them in, hands each query to the
 * test, and sends what the test tells it to. It knows nothing by itself, so a test
 * decides what is said, in which order, and what is left out.
 *
 * Everything happens in BACKEND_RUN_UNTIL and backend_run_ms, which turn the loop.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "unit.h"

#define BACKEND_CLIENTS_MAX 8
struct fake_backend;

struct fake_client {
    struct fake_backend *server;
    uv_poll_t poll;
    int fd; /* -1: closed, by either end */
    int pid;
    bool started;     /* let in, or refused */
    bool replication; /* asked for with the connection */
    char application[64];
    struct buf in, out;
    size_t sent;      /* of `out` */
    struct buf sql;   /* of an extended query */
    struct buf param; /* its first parameter, as it came */
    unsigned queries; /* both kinds */
    unsigned reports; /* CopyData that came, all of 34 bytes */
    uint64_t flushed; /* the last one's */
    uint64_t copied;  /* bytes of CopyData of any size */
};

struct fake_backend {
    uv_loop_t loop;
    uv_poll_t poll;
    uv_timer_t tick; /* so that a turn of the loop ends */
    int fd;
    char folder[64];
    char dsn[128];
    const char *refuse; /* the SQLSTATE that every new connection is refused with; NULL: let in */
    bool mute;          /* new connections get no answer at all */
    bool deaf;          /* nothing is read of anybody */
    struct fake_client clients[BACKEND_CLIENTS_MAX]; /* in the order of their coming */
    unsigned n;

    /** A query came; answer with the calls below, now or later. */
    void (*on_query)(void *owner, struct fake_client *c, const char *sql);
    void *owner;
};

/** Listens; `on_query` may be NULL where none comes. */
void backend_init(struct fake_backend *f,
                  void (*on_query)(void *owner, struct fake_client *c, const char *sql),
                  void *owner);
/** Closes everything, and the loop: handles of the test's must be closed or closing. */
void backend_deinit(struct fake_backend *f);

void backend_turn(struct fake_backend *f);
/** Turns the loop for so long: for what must not happen. */
void backend_run_ms(struct fake_backend *f, unsigned ms);

/** How long BACKEND_RUN_UNTIL waits, in ns: 10 s, and ten times that where Check sets no limit (CK_FORK=no), that
 *  is in a debugger, or under valgrind, which needs half a minute for a message of 16 MiB. */
uint64_t backend_patience_ns(void);

#define BACKEND_RUN_UNTIL(f, condition)                                         \
    do {                                                                        \
        uint64_t end_ = clock_monotonic_ns() + backend_patience_ns();           \
        while (!(condition)) {                                                  \
            ck_assert_msg(clock_monotonic_ns() < end_, "in vain: " #condition); \
            backend_turn(f);                                                    \
        }                                                                       \
    } while (0)

/* ---- what it says; in vain when the client is gone ---- */

/** A result of one row of texts, NULL for SQL's. backend_ready is to follow. */
void backend_row(struct fake_client *c, unsigned n, const char *const *values);
/** A result without rows. */
void backend_done(struct fake_client *c);
/** ReadyForQuery. */
void backend_ready(struct fake_client *c);
/** An error: `severity` ERROR or FATAL; with `notice` the same as a notice. */
void backend_error(struct fake_client *c, bool notice, const char *severity, const char *sqlstate,
                   const char *text);
/** CopyBothResponse: streaming begins. */
void backend_copy_both(struct fake_client *c);
/** CopyDone: it ends. */
void backend_copy_done(struct fake_client *c);
/** One CopyData 'w' with a message of pgoutput. */
void backend_data(struct fake_client *c, struct bytes payload);
/** A keepalive. */
void backend_keepalive(struct fake_client *c, uint64_t wal_end, bool reply);
/** A transaction of one message: begin, message at lsn - 8, commit at lsn with its end at lsn + 8. */
void backend_transaction(struct fake_client *c, uint64_t lsn, const char *prefix,
                         struct bytes content);
/** The parts of one. */
void backend_begin(struct fake_client *c, uint64_t lsn);
void backend_message(struct fake_client *c, uint64_t lsn, const char *prefix, struct bytes content);
void backend_commit(struct fake_client *c, uint64_t lsn);
/** Closes the connection, once what was said has gone out as far as the socket takes it. */
void backend_hang_up(struct fake_client *c);

#endif
