/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SESSION_READ_H
#define WALBUS_DAEMON_SESSION_READ_H

/*
 * A session that does not get live batches, because it begins further back or could
 * not keep up, reads from the journal until it has caught up. See session_read.c.
 * Loop thread only; the reading itself is done on worker threads.
 */

#include <stdbool.h>
#include <stddef.h>

#include <uv.h>

#include "batch.h"
#include "journal/journal.h"
#include "session.h"

/** Most bytes of chunks, of all sessions together: being read, or waiting to be sent. 64 readers at full speed. */
#define SESSION_READS_BYTES (16u << 20)
/** Chunks read at a time: libuv has four threads, and one is left to whoever else waits for a disk. */
#define SESSION_READS_AT_ONCE 3u
/** Chunks of who lets go of what it was to send become smaller, down to this, so that a thousand slow readers can each have one. */
#define SESSION_CHUNK_MIN (16u << 10)

/** What the sessions of one router share. */
struct session_reads {
    uv_loop_t *loop;
    struct journal *journal;
    struct session *const *sessions;   /* the owner's list */
    struct batch_pool pool;            /* of the chunks */
    unsigned running;
    size_t reserved;                   /* bytes that those may bring */
    struct session_read *first, *last; /* wait for their turn */
};

void session_reads_init(struct session_reads *reads, uv_loop_t *loop, struct journal *journal,
                        struct session *const *sessions);
/** When the loop has run out. */
void session_reads_deinit(struct session_reads *reads);

/** From here on it reads, from where it stands. Without memory it is told an error. Ignores one that has no journal, or
 *  reads already. */
void session_fall_behind(struct session *s);
/** Drops what waits for it and can be read again, and reads when its socket takes something. */
void session_let_go(struct session *s);
/** Everything up to there was sent to it, or may come to it yet although it is let go: `told`, and a message behind that of
 *  which a part was sent, since a frame that is begun is finished. */
struct position session_sent(const struct session *s);
/** The session, of all that hold a batch of `pool`, whose socket has taken nothing for longest; NULL: none. */
struct session *session_longest_waiting(struct session *list, const struct batch_pool *pool);
/** The same of all that hold anything charged to `account`. */
struct session *session_longest_waiting_of(struct session *list, const struct account *account);

/** The journal has written more: who waits for that goes on. */
void session_wake(struct session *s);

/* ---- for session.c ---- */

/** Goes on when there is room for more in its outbox. True when something was queued. May free nothing of the session. */
bool session_read_on(struct session *s);
/** Whoever waits for room gets what has become free. */
void session_reads_go(struct session_reads *reads);
/** Where it stands was changed otherwise than by reading; `skip` bytes of the MESSAGE at `of`, which comes next, were sent. */
void session_reseat(struct session *s, uint64_t skip, struct position of);
/** The same, ahead over what is not for it: what comes next, and how much of that was sent, stays. */
void session_reseat_ahead(struct session *s);
/** Bytes that it keeps beside chunks. */
size_t session_read_held(const struct session *s);
/** The session is closed. */
void session_read_end(struct session *s);

#endif
