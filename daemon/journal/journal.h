/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_JOURNAL_H
#define WALBUS_DAEMON_JOURNAL_JOURNAL_H

/*
 * The router's local, bounded, crash-safe log of messages.
 *
 * What comes in. The loop hands every batch over (journal_append) and routes it at
 * once; it never waits for a disk. The journal thread writes what is queued, and
 * syncs at most once in a sync interval. Until a batch is written it stands in
 * `pending` on the loop's side, so that a session can always be given what is not yet
 * in a file. The mark is told only when everything up to it is synced.
 *
 * What comes again. A batch flagged `again` holds what the server sent although the
 * journal has it. It is not written but compared, entry by entry (received times
 * aside); entries older than the journal are passed over, and those within a GAP that
 * stands in it. What differs, or is missing between its neighbours, or has a neighbour
 * in the journal that did not come, is told: the server was restored to an older state.
 *
 * Failure. When a write or a sync fails nothing more is written: the end of the journal
 * falls back to what the last good sync covered, everything queued is dropped, and
 * `failed` is told. The owner then stops the source, tells its builder the end, and calls
 * journal_retry from time to time, until `retried` says that it goes on; what followed is sent by the server again. Bytes once written
 * are never rewritten: after a failure, and after every opening, writing goes on
 * in a new segment, whose header says how far the one before is valid. (After a clean end the last one could be
 * continued, but then the journal would have to know which end was clean, and an end that was taken for one and was not
 * would be written over; a restart costs a small segment instead.)
 *
 * Files. Segments by rising sequence, each named after the position behind which it begins.
 * They are only appended to and only unlinked. A record larger than a segment has one of its own size.
 *
 * Threads. Everything here is for the loop thread, unless it says so. Segments are counted, so that a reader on a
 * worker thread (reader.h) keeps its file while retention unlinks it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "journal/record.h"

struct journal;
struct segment;

/** Most bytes of batches that wait to be written; then the owner lets reading wait, until half of it is written. A
 *  single message may be larger. */
#define JOURNAL_QUEUE_MAX (16u << 20)
/** Retention keeps at least so many segments. */
#define JOURNAL_SEGMENTS_MIN 4u
/** Why opening failed, one sentence with the file's name. */
#define JOURNAL_WHY_SIZE 512

struct journal_options {
    const char *folder;        /* is made, 0700, if it is missing; its parent must be there */
    uint64_t segment_size;     /* bytes */
    uint64_t sync_interval_ns; /* shortest time between two syncs */
};

struct journal_ops {
    /** Some pending batches were written (their references are still held while this runs, and dropped behind it), or
     *  the queue is half empty again. */
    void (*written)(void *owner);
    /** Everything up to the mark is on disk: the mark of the newest batch of which, and of all before it, that is true. One
     *  that came again has its mark told as well, so that it can be less than what was told on an earlier connection. With it
     *  the connection to the server that the batch came from: no other may be told this mark. */
    void (*synced)(void *owner, uint64_t mark, uint32_t connection);
    /** Writing failed, as above; `what` is one sentence. journal_end() is what is left. */
    void (*failed)(void *owner, int error, const char *what);
    /** What journal_retry began is over. 0: it can be written again, from journal_end() on; the owner goes on. Else the errno for which
     *  it still cannot be. */
    void (*retried)(void *owner, int error);
    /** What came again at `position` is not what the journal has there. From that batch on nothing is written and no mark
     *  told, until an era begins: what is handed over is dropped. */
    void (*differs)(void *owner, struct position position, const char *what);
};

/** Where the journal ends: what a builder goes on from. */
struct journal_end {
    bool empty;                 /* nothing was ever written: all below is zero */
    uint64_t system_identifier;
    uint32_t era;
    const char *database, *slot;
    struct position last;       /* of the last entry, or `after` of the first segment */
    bool inside;                /* a transaction is open behind `last` … */
    struct frame_begin begin;   /* … this one */
    uint64_t mark;              /* synced */
    uint32_t mark_timeline;
    int64_t received_time;
    uint64_t messages, bytes;   /* of this era so far */
};

/** Opens what is in the folder and reads the last segment to its last whole record. 0; a negative errno with `why`: -EBADMSG:
 *  a segment that is not one, a hole in the sequence, another format. Nothing is changed on the disk before the first append. */
int journal_open(const struct journal_options *options, uv_loop_t *loop, const struct journal_ops *ops, void *owner,
                 struct logger *log, struct journal **ret, char why[JOURNAL_WHY_SIZE]) MUST_CHECK;

const struct journal_end *journal_end(const struct journal *j);

/**
 * Begins an era: the first one of an empty journal, or one that lies behind an accepted gap onto another
 * system or an older state; -EEXIST: it is the present one. Older segments are unlinked once the new era's first one, with
 * its mark, is synced. Waits for the disk: called before streaming. 0 or a negative errno (the journal is as before).
 */
int journal_begin_era(struct journal *j, uint64_t system_identifier, uint32_t era, const char *database, const char *slot,
                      struct position after, uint64_t mark, uint32_t mark_timeline) MUST_CHECK;

/** Takes a reference. A batch without entries is written for its mark alone; its owner paces those. */
void journal_append(struct journal *j, struct batch *batch);

/** What was to be appended next is lost for want of memory: as a write that fails. */
void journal_no_memory(struct journal *j);

/** Bytes of memory that batches take which are not written yet. */
size_t journal_queued(const struct journal *j);
/** Whether JOURNAL_QUEUE_MAX is passed, or, with `half`, half of it still waits. */
bool journal_is_full_queue(const struct journal *j, bool half);

/** Batches handed over and not yet known to be written, oldest first: n and each. Entries are still there. */
size_t journal_pending(const struct journal *j);
struct batch *journal_pending_at(const struct journal *j, size_t i);
/** Everything at or below it is in the files and can be read there. */
struct position journal_written(const struct journal *j);

/** After `failed`: lets the journal thread try to go on, in a new segment, in which there must be some room; `retried` tells the end
 *  of it. Nothing before `failed` was told, nor without a failure. */
void journal_retry(struct journal *j);
/** Until `retried` has told that it goes on. */
bool journal_has_failed(const struct journal *j);

/** Syncs what is queued and waits for it; for the clean stop. 0 or a negative errno. */
int journal_finish(struct journal *j) MUST_CHECK;
/** Stops the thread, dropping what is queued; frees when the loop has let go of the handles, and every other reference is dropped.
 *  May be called from an op. Returns NULL; takes NULL. */
struct journal *journal_close(struct journal *j);
/** Any thread: whoever reads on a worker thread (reader.h) holds one meanwhile. */
struct journal *journal_ref(struct journal *j);
/** Returns NULL. Takes NULL. */
struct journal *journal_unref(struct journal *j);

/* ---- segments: for retention, and for readers ---- */

struct segment_info {
    uint64_t sequence;
    struct position after;          /* what is before it */
    struct position last;           /* of its last entry; of the one that is written: so far */
    uint64_t size;                  /* bytes on disk */
    uint64_t messages_before, bytes_before;
    int64_t received_time;          /* of what is before it */
    uint64_t running_ms;            /* of routers, when it was begun */
    bool ends_inside;               /* a transaction goes on in the next one */
};

size_t journal_segments(const struct journal *j);
void journal_segment_info(const struct journal *j, size_t i, struct segment_info *ret);
uint64_t journal_size(const struct journal *j);
/** ms that routers of this journal have run, up to the last tick; it never falls. Any thread. */
uint64_t journal_running_ms(const struct journal *j);
/** To be called each second. Of what has passed since the last one no more than this counts, in ms: the router stood still. */
#define JOURNAL_STOOD_MS 1500u
void journal_tick(struct journal *j);
/** Lets go of the oldest segment, never of the one that is written: -EBUSY. The journal thread unlinks its file, soon and in
 *  order, since that waits for the disk; one that cannot be unlinked is logged, and is back after a restart. 0 or a negative errno. */
int journal_drop_first(struct journal *j) MUST_CHECK;

#endif
