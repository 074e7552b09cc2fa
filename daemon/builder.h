/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_BUILDER_H
#define WALBUS_DAEMON_BUILDER_H

/*
 * From decoded messages to batches: gives every message its position, drops what
 * came before by position, leaves the routers' heartbeats out, and knows up to
 * which LSN everything has been read (the mark).
 *
 * Positions (lib/codec/position.h): within a transaction all messages count,
 * the heartbeats too, so that two routers number them alike. BEGIN is
 * put in front of the first message that is delivered, so a transaction without
 * one leaves nothing but its mark.
 *
 * After a reconnect the server sends again from where the slot stands. What is
 * at or below `last` goes into batches flagged `again`, which nobody is sent: they are
 * compared with the journal. A transaction of which a part was handed on
 * goes on behind that part without a second BEGIN. If something newer than its rest
 * comes instead, its rest will not come any more: a GAP takes its place.
 *
 * Pure apart from memory: no connection, no clock.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "batch.h"
#include "codec/subject.h"
#include "decode.h"
#include "timeline.h"


/** What one decoded message was, besides being put into the batch. Positive: for the direct caller. */
enum builder_event {
    BUILDER_NOTHING = 0, /* skipped, or begin of a transaction */
    BUILDER_ADDED,       /* a message or an end is in the open batch */
    BUILDER_AGAIN,       /* it had come before: into the batch that is compared */
    BUILDER_HEARTBEAT,   /* some router's heartbeat */
    BUILDER_COMMITTED,   /* end of a transaction that left nothing but its mark */
};

struct builder {
    struct batch_pool *pool;
    const struct timeline_history *history; /* of the present connection */
    struct batch *open;                     /* NULL while empty */
    struct batch *again;                    /* what came again, NULL while empty; it stands before `open` */
    struct decoder decoder;

    bool inside;             /* between B and C of the stream */
    bool begun;              /* the open transaction's BEGIN is in a batch */
    bool again_begun;        /* … in a batch of what came again */
    struct frame_begin begin;
    uint32_t index;          /* messages of the open transaction so far */

    struct position last;    /* everything at or below it has been put into a batch or passed over */
    bool pending;            /* a transaction that was begun before this connection lacks its COMMIT */
    struct position pending_at;

    uint64_t mark;           /* end LSN of the last complete thing read on this connection */
    uint64_t mark_taken;     /* the mark of the batch handed over last */
    int64_t now_us;          /* received time for what comes, never falling; set by builder_set_time */

    uint64_t messages, repeated, ignored; /* counters: put into batches, had come before, unasked-for kinds */
};

void builder_init(struct builder *b, struct batch_pool *pool);
void builder_deinit(struct builder *b);

/**
 * Goes on behind what a journal has: `last`, its last entry, and the transaction that is open behind it (NULL: none).
 * `received_time` is the last one. Drops what is open. Between two streams only.
 */
void builder_restore(struct builder *b, struct position last, const struct frame_begin *inside,
                     int64_t received_time);

/**
 * A new stream begins. `history` stays the caller's and must live as long as
 * the connection. The open batch must have been taken. `start` is used when nothing came before:
 * nothing at or below it is delivered.
 */
void builder_connected(struct builder *b, const struct timeline_history *history,
                       struct position start);

/** What lies behind everything that came, up to `to`, is lost, and somebody has accepted that: puts the GAP into the open
 *  batch. Before anything of the stream came. 0 or -ENOMEM. */
int builder_accept_gap(struct builder *b, struct position to, const char *reason) MUST_CHECK;

void builder_set_time(struct builder *b, int64_t now_us);

/**
 * One decoded message; `*owner` as for batch_add_message. Returns an enum
 * builder_event, -EBADMSG with `why` (an order that the protocol does not have:
 * a message of a transaction outside one, a two-phase form, a stream block), or -ENOMEM.
 */
int builder_add(struct builder *b, const struct pgoutput *m, void **owner,
                char why[DECODE_WHY_SIZE]) MUST_CHECK;

/** A keepalive's WAL end, when everything before it may count as read: no transaction is open. */
void builder_keepalive(struct builder *b, uint64_t wal_end);

/** Whether a batch has reached BATCH_SIZE or holds a tail: hand it on now. */
bool builder_is_full(const struct builder *b);
/** Whether builder_take() has something to give. */
bool builder_has_news(const struct builder *b);

/**
 * Hands one batch over (one reference): first what came again, without a mark, then the open one,
 * with its mark; NULL when there is neither a frame nor a new mark, or no memory for a batch that only moves the mark.
 * Call it until it gives NULL.
 */
struct batch *builder_take(struct builder *b) MUST_CHECK;

/** Where "now" begins: behind everything put into batches, and behind a transaction whose B was read. */
struct position builder_now(const struct builder *b);

#endif
