/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_STREAM_H
#define WALBUS_DAEMON_STREAM_H

/*
 * The running stream: reads the copy-both connection until it is empty, puts
 * what was decoded into batches, decides when a batch is handed on, and sends
 * the feedback. Connecting is source.c's; what is reported is feedback.c's.
 *
 * Pace. The walsender sends one message per system call. Handing on, and even
 * reading, whatever is there each time the socket is empty takes the server's
 * processor away (measured: 0.1 to 0.6 of the rate on two cores). So a message
 * that comes alone goes on at once, but under load, that is when data came less
 * than STREAM_HAND_ON_NS ago, reading rests for STREAM_PAUSE_NS when the
 * socket is momentarily empty, and hand-ons are at least STREAM_HAND_ON_NS
 * apart unless a batch is full or nothing came during the rest. libuv's timers
 * are too coarse for that: a timerfd is used.
 *
 * One pass reads at most STREAM_PASS_BYTES, then other descriptors get their
 * turn; what libpq has buffered is taken up again by an idle handle, since the
 * socket's readiness says nothing of it.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/macros.h"
#include "builder.h"
#include "feedback.h"
#include "pglink.h"

#define STREAM_HAND_ON_NS UINT64_C(500000)
#define STREAM_PAUSE_NS   50000L
#define STREAM_PASS_BYTES (1u << 20)
/** libpq never gives its input buffer back: after a message above this the connection is renewed when idle… */
#define STREAM_RENEW_SIZE (16u << 20)
/** … that is when nothing was readable for so long: the walsender then waits, and reads the last report. One
 *  that is sending when the connection goes ends without reading it, and everything would come again. */
#define STREAM_RENEW_IDLE_NS UINT64_C(1000000000)

struct stream_ops {
    /** A batch, possibly without frames; its reference is handed over. Answer with stream_advance
     *  when its mark is safe. */
    void (*batch)(void *owner, struct batch *batch);
    /** Some router's heartbeat came. */
    void (*heartbeat)(void *owner, struct bytes content);
    /** A transaction's end came. */
    void (*committed)(void *owner);
    /** The stream ended or cannot go on; the link's error says why. The stream is stopped already. */
    void (*ended)(void *owner);
    /** Nothing is outstanding and the connection should be renewed to give memory back. Stopped already. */
    void (*renew)(void *owner);
};

struct stream {
    const struct stream_ops *ops;
    void *owner;
    struct pglink *link;
    struct builder builder;
    struct feedback feedback;

    uv_poll_t pause_poll; /* on pause_fd */
    int pause_fd;         /* timerfd */
    uv_idle_t idle;       /* runs while a pass left something in libpq's buffer */
    uv_timer_t report;    /* next feedback */
    uint64_t report_at;   /* when it fires; 0: not set */
    bool running, pausing;
    bool held;            /* reading waits until the owner lets it go on; reports do not */
    bool proven;          /* a message came through this slot: keepalives may be acknowledged */
    bool renew;           /* a large message went by */
    bool undecodable;     /* it ended because of what the server sent */
    uint64_t last_readable, last_data, last_handed;
};

/** 0 or a negative errno. */
int stream_init(struct stream *s, uv_loop_t *loop, struct pglink *link, struct batch_pool *pool,
                const struct stream_ops *ops, void *owner) MUST_CHECK;
/** Closes the handles (on the loop) and frees the rest. */
void stream_deinit(struct stream *s);

/** The link is in copy-both mode: begin; the first pass is stream_readable, which the caller owes
 *  at once, since libpq may have read messages with the answer to START. `history` and `start` as for
 *  builder_connected. */
void stream_start(struct stream *s, const struct timeline_history *history, struct position start,
                  int64_t wal_sender_timeout_ms);

/** Hands on what was read. */
void stream_hand_on(struct stream *s);

/** Ends reading and reporting; an open batch is handed on first. The link is the caller's to close. */
void stream_stop(struct stream *s);

/** The link is readable. */
void stream_readable(struct stream *s);

/** Stops reading, or lets it go on; feedback is sent in either case. Stays across connections. */
void stream_hold(struct stream *s, bool on);

/** Everything up to `lsn`, from this connection, is safe. */
void stream_advance(struct stream *s, uint64_t lsn);

/** stream_stop, but with a last report of what is safe, as far as the socket takes it. */
void stream_finish(struct stream *s);

#endif
