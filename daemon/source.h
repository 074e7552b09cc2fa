/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SOURCE_H
#define WALBUS_DAEMON_SOURCE_H

/*
 * The way in: keeps a stream from the slot running. At every connect all
 * preconditions are checked again on the replication connection itself, then
 * come the session's settings, IDENTIFY_SYSTEM, TIMELINE_HISTORY and START_REPLICATION at 0/0: the server
 * goes on where the slot stands, and what comes again is dropped by position.
 * Whether the answers continue what was read before is continuity.c's to say.
 *
 * Between the check of the slot and START somebody may move it, or drop it and make
 * it anew; the server then goes on from there without a word. Only once the stream
 * runs is the slot ours and nobody else's to move, and as long as nothing was
 * acknowledged it stands where START found it. So it is looked at again then, over
 * the heartbeat's connection, and nothing is read before: what lies behind a gap
 * must not be delivered. The ordinary connection may be impossible (max_connections
 * is reached) without any harm to the stream; so this waits SOURCE_CONFIRM_MS at most,
 * and goes on with a warning.
 *
 * Knows no subscriber. Loop thread only.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "continuity.h"
#include "heartbeat.h"
#include "pg/precondition.h"
#include "pglink.h"
#include "stream.h"
#include "timeline.h"

enum source_state {
    SOURCE_STOPPED,     /* not started, or stopped for good */
    SOURCE_BACKING_OFF, /* waits before the next attempt */
    SOURCE_CONNECTING,  /* waits for the connection */
    SOURCE_CHECKING,    /* waits for the facts of the preconditions */
    SOURCE_SETTING,     /* waits for the session's settings */
    SOURCE_IDENTIFYING, /* waits for IDENTIFY_SYSTEM */
    SOURCE_HISTORY,     /* waits for TIMELINE_HISTORY */
    SOURCE_STARTING,    /* waits for START_REPLICATION's copy-both */
    SOURCE_CONFIRMING,  /* waits for a look at the slot, now that it is held; reports, reads nothing */
    SOURCE_STREAMING,   /* reads */
    SOURCE_SUSPENDED,   /* waits for source_go_on: the owner cannot keep what is read */
    SOURCE_GIVEN_UP,    /* may not go on: somebody must mend something */
};

struct source_ops {
    /** As stream_ops.batch. */
    void (*batch)(void *owner, struct batch *batch);
    /** Streaming begins at `start`, where the slot stands, or, if it could not be `looked_at` since it is held, stood right before;
     *  nothing was read yet. `accepted`: what was refused before and has been accepted now (CONTINUITY_GOES_ON: nothing). False:
     *  not now, the owner has said why; the source tries again. */
    bool (*started)(void *owner, struct position start, bool looked_at, enum continuity_verdict accepted);
    /** Streaming runs: stream.builder knows where "now" is. */
    void (*streaming)(void *owner);
    /** A look-up's facts are in place. */
    void (*facts)(void *owner);
    /** The state changed; called with the new one in place. */
    void (*changed)(void *owner);
};

/** First and longest wait between attempts, in ms; each is drawn from [half, whole]. */
#define SOURCE_BACKOFF_FIRST_MS 100u
#define SOURCE_BACKOFF_LAST_MS  5000u
/** How long a server that is stopping may take to get its acknowledgement, in ms: a fast shutdown must not be held up. */
#define SOURCE_STOPPING_MS 1000u
/** How long the server may take to answer one query towards streaming, in ms. */
#define SOURCE_STEP_MS 30000u
/** How long the look at the slot behind START may take, in ms: some of the heartbeat's attempts to connect. */
#define SOURCE_CONFIRM_MS 5000u
/** Reading that waits for so long, in ms, is not likely to go on by itself soon. */
#define SOURCE_PAUSED_MS 5000u
/** A stream that lasted for so long went well: the next failure is a new one. */
#define SOURCE_WELL_MS 1000u

struct source {
    const struct source_ops *ops;
    void *owner;
    struct logger *log;
    const char *dsn, *slot, *publication; /* borrowed */

    enum source_state state;
    enum precondition_class verdict; /* when GIVEN_UP */
    struct pglink link;
    PGresult *result; /* of the step's query, until the query is over */
    struct stream stream;
    struct heartbeat heartbeat;
    struct timeline_history history;
    uv_timer_t retry;    /* next attempt */
    uv_timer_t step;     /* a step towards streaming has no answer yet */
    uv_timer_t stopping; /* the server is stopping: close the stream */

    bool held;             /* the owner wants no more read for now */
    bool pausing;          /* … behind the transaction that is being read */
    bool paused;           /* … and that is read */
    uint64_t waits_since;  /* held or paused, since (clock_monotonic_ns); 0: it is not */
    bool accept_gap;       /* what is refused is accepted, until source_settled() */
    enum continuity_verdict accepted; /* what was, the gravest */
    struct position start; /* of this stream */
    unsigned attempts;     /* since streaming last went well */
    uint64_t streaming_since;
    bool in_use;           /* what is waited for is the slot's other reader */
    struct buf last_error; /* what is wrong now; empty while streaming */
    bool waited;           /* the slot's holder has been named */

    struct server_facts facts; /* of the last look-up */
    bool has_facts;
    bool publication_alarm;
    bool wal_alarm; /* the server may soon drop WAL that the slot needs, and that was said */
    struct continuity continuity; /* what is known from before */
    uint64_t reconnects;
};

/** 0 or a negative errno. The strings must outlive it. */
int source_init(struct source *s, uv_loop_t *loop, const char *dsn, const char *slot,
                const char *publication, uint64_t heartbeat_interval_ns, struct batch_pool *pool,
                const struct source_ops *ops, void *owner, struct logger *log) MUST_CHECK;

/** Begins; the first attempt is made from the loop. */
void source_start(struct source *s);

/** Everything up to `lsn` is safe (the mark of a batch that was handed on). */
void source_advance(struct source *s, uint64_t lsn);

/** What came again is not what was read before: as a refusal at a connect. `position`: where. */
void source_differs(struct source *s, struct position position, const char *what);

/** Ends the stream until source_go_on: what is read cannot be kept. `why` is what is wrong meanwhile. */
void source_suspend(struct source *s, const char *why);
void source_go_on(struct source *s);

/** Hands on what was read; the stream goes on. */
void source_hand_on(struct source *s);

/** What came again was compared, and what is new was kept: nothing more is accepted than what has been. */
void source_settled(struct source *s);

/** Whether the server waits for a report. */
bool source_is_asked(const struct source *s);

/** Asks for fresh facts; source_ops.facts comes when they are there, if the heartbeat's connection works. */
void source_look_up(struct source *s);

/** Stops reading, or lets it go on, also across connections; feedback is sent in either case. */
void source_hold(struct source *s, bool on);
/** The same, but a transaction that has begun is read to its end first. */
void source_pause(struct source *s, bool on);

/** Stops for good, with a last report. Idempotent. */
void source_stop(struct source *s);

/** Stops and closes the handles on the loop; free the rest with source_deinit when the loop has run out. */
void source_close(struct source *s);
void source_deinit(struct source *s);

/** "connecting", "streaming", … for log and debug. */
const char *source_state_name(enum source_state state);

#endif
