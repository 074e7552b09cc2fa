/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_HEARTBEAT_H
#define WALBUS_DAEMON_HEARTBEAT_H

/*
 * The router's ordinary connection, to the server that the stream comes from. Three
 * things hang on it:
 *
 * - the heartbeat, a transactional message on SUBJECT_HEARTBEAT_PREFIX. It comes back
 *   through the slot and so proves server, slot, database and the `messages` option
 *   end to end, and its commit lets the server recycle WAL, which
 *   non-transactional traffic alone does not;
 * - the look-up of publication and slot, first of all and then every HEARTBEAT_LOOKUP_MS;
 * - the sign of a server in fast shutdown: a new connection is refused with 57P03
 *   while the stream still runs.
 *
 * A failing heartbeat is an alarm, never a reason to give the stream up. Loop
 * thread only.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "pg/precondition.h"
#include "pglink.h"

/** Between look-ups of publication and slot. */
#define HEARTBEAT_LOOKUP_MS 10000u
/** How long a query may take, in ms, before the connection is given up; the server cancels one after 10 s. */
#define HEARTBEAT_QUERY_MS 15000u
/** A heartbeat that has not come back after so many intervals is an alarm. */
#define HEARTBEAT_MISSING_INTERVALS 2u
/** Between attempts to connect; also the longest time between looks at what is due. */
#define HEARTBEAT_RETRY_MS 1000u

struct heartbeat_ops {
    /** A look-up's outcome. */
    void (*facts)(void *owner, const struct server_facts *facts);
    /** The server refuses new connections because it is being shut down. Comes once per shutdown. */
    void (*server_stopping)(void *owner);
};

/** A message was published, in a transaction that is committed; `lsn` is what the server has answered. Or, `error` not NULL, it was not,
 *  or nobody knows, as the sentence says. Never from within heartbeat_publish(). */
typedef void (*heartbeat_published)(void *context, const char *error, uint64_t lsn);

struct heartbeat {
    const struct heartbeat_ops *ops;
    void *owner;
    struct logger *log;
    const char *dsn, *slot, *publication; /* borrowed */
    struct connect_place place;           /* the stream's server */

    struct pglink link;
    uv_timer_t timer; /* looks at what is due, while running */
    bool running;
    enum { HEARTBEAT_IDLE, HEARTBEAT_SETTING, HEARTBEAT_EMITTING, HEARTBEAT_LOOKING, HEARTBEAT_PUBLISHING } busy;
    bool ready;       /* connected and set up */
    bool alarmed;     /* a failure was logged and not yet mended */
    bool stopping_told;
    uint64_t interval_ns;
    uint64_t last_commit; /* clock_monotonic_ns of the last transactional commit received */
    uint64_t last_emit, last_lookup, last_try;
    bool emit_now, lookup_now;
    bool held;       /* reading from the stream waits: heartbeats cannot come back */
    bool in_flight;  /* the last one was emitted and has not come back */
    bool missing;    /* that was logged */
    uint64_t busy_since;

    struct {
        heartbeat_published done; /* NULL: nothing is to be published */
        void *context;
        struct bytes prefix, content; /* borrowed */
        bool read;                    /* the server has answered: */
        uint64_t lsn;
        struct buf error;             /* … not well */
    } publish;

    uint8_t instance[16]; /* random: which router */
    uint64_t number;      /* of the last heartbeat emitted */
    uint64_t received_at; /* clock_monotonic_ns when one of ours came back; 0: never */
};

/** 0 or a negative errno. The strings must outlive it. */
int heartbeat_init(struct heartbeat *h, uv_loop_t *loop, const char *dsn, const char *slot,
                   const char *publication, uint64_t interval_ns, const struct heartbeat_ops *ops,
                   void *owner, struct logger *log) MUST_CHECK;

/** A stream from the server at `place` began: look the slot up and emit one, at once; then emit whenever no
 *  transactional commit came for an interval. */
void heartbeat_start(struct heartbeat *h, const struct connect_place *place);
/** Streaming ended: no more until started again. The connection is given up. */
void heartbeat_stop(struct heartbeat *h);
/** Stops for good; handles are closed on the loop. */
void heartbeat_close(struct heartbeat *h);

/** Publishes a message in a transaction of its own; prefix and content are borrowed until `done` is called. 0; -EBUSY: one is being
 *  published; -ENOTCONN: there is no connection; -E2BIG. */
int heartbeat_publish(struct heartbeat *h, struct bytes prefix, struct bytes content, heartbeat_published done,
                      void *context) MUST_CHECK;

/** Looks publication and slot up now. */
void heartbeat_look_up(struct heartbeat *h);

/** A transactional commit came through the stream. */
void heartbeat_commit_received(struct heartbeat *h, uint64_t now);
/** A heartbeat's content came through the stream; others' count for nothing. */
void heartbeat_received(struct heartbeat *h, struct bytes content, uint64_t now);

/** ms since one of ours came back; -1: never. */
int64_t heartbeat_age_ms(const struct heartbeat *h, uint64_t now);

#endif
