/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_FEEDBACK_H
#define WALBUS_DAEMON_FEEDBACK_H

/*
 * The one place that decides what the server is told. Pure: it is fed with what
 * happens and asked what to send; the source does the sending.
 *
 * The flushed field means "the first byte not held": the server may forget
 * everything before it. So it is exactly the end LSN of the last thing that is
 * safe, never one more, and 0 as long as nothing was told on this connection:
 * a value of an earlier connection can be one of another history.
 *
 * Reports: at once when asked (once a turn, however often: a server in fast
 * shutdown asks 30,000 times a second), soon after the mark moved, and on a
 * timer well within wal_sender_timeout.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Standby status update, 'r': type, written, flushed, applied, clock (i64 each), reply flag. */
#define FEEDBACK_SIZE 34
/** Shortest time between reports that only a moved mark causes: the pace at which a disk syncs. */
#define FEEDBACK_PACE_NS UINT64_C(10000000)
/** Longest silence, whatever the server's timeout. */
#define FEEDBACK_IDLE_NS UINT64_C(10000000000)
/** So often one WAL end may be asked for in vain before the stream is closed: far more than an answer under way explains. */
#define FEEDBACK_ASKED_MAX 1000u

struct feedback {
    uint64_t mark;       /* safe, as told on this connection; 0: nothing yet */
    uint64_t reported;   /* flushed field of the last report */
    uint64_t reported_at;/* clock_monotonic_ns of it */
    uint64_t interval;   /* ns, from wal_sender_timeout */
    bool asked;          /* a report is due at once */
    uint64_t asked_for;  /* the WAL end that was last asked for */
    unsigned asked_count;
};

/** For a new connection. `wal_sender_timeout_ms` 0: the server has none. */
void feedback_connected(struct feedback *f, int64_t wal_sender_timeout_ms, uint64_t now);

/** The server's time-out changed. */
void feedback_set_timeout(struct feedback *f, int64_t wal_sender_timeout_ms);

/** Everything up to `lsn`, told on this connection, is safe. Never falls. */
void feedback_advance(struct feedback *f, uint64_t lsn);

/** The server asks, having sent everything up to `wal_end`. */
void feedback_asked(struct feedback *f, uint64_t wal_end);

/** Whether one WAL end was asked for FEEDBACK_ASKED_MAX times and still cannot be acknowledged. */
bool feedback_is_stuck(const struct feedback *f);

/** Whether to report now; if not, *ret_wait is the time until it may be due, in ns. */
bool feedback_is_due(const struct feedback *f, uint64_t now, uint64_t *ret_wait);

/** Writes the report and notes that it was sent. */
void feedback_report(struct feedback *f, uint64_t now, int64_t unix_us, uint8_t out[FEEDBACK_SIZE]);

#endif
