/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_READER_H
#define WALBUS_DAEMON_JOURNAL_READER_H

/*
 * Reading the journal's files, on worker threads: everything here may wait for the
 * disk, never for a peer, and touches nothing of the loop's. The list of segments is
 * looked up under the journal's lock; a place holds a reference to its segment.
 *
 * Before anything of a segment is handed out for the first time in a process its
 * checksums are verified, all of them in one pass, in which its sparse index is made too. Damage is
 * never handed out: reading ends in front of it and says where.
 *
 * What a step hands out is a stretch of what the subscriber is sent, byte for byte: frames that match, BEGIN in front
 * of the first one of a transaction, COMMIT behind, and nothing between. It is a copy made for one subscriber, so flags are set in
 * it (BEGIN resumed, COMMIT incomplete), and RECORD frames are left out: to move 256 KiB together costs some 20 µs, and an
 * isolated message would have travelled with as many bytes of RECORD as of its own.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/frame.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "journal/journal.h"

/** Most bytes read for one session at a time; a frame beyond it goes in pieces of this size. */
#define READER_CHUNK (256u << 10)
/** Least size of a chunk: any header and fixed part fits in. */
#define READER_CHUNK_MIN 512u
/** A step that finds nothing that matches ends after it has looked at so many bytes, so that others get their turn. */
#define READER_SCAN_MAX (8u << 20)

/** Where a reader stands. Zero: nowhere yet; it is looked up by position. */
struct journal_place {
    struct segment *segment; /* one reference */
    uint64_t offset;         /* of a record or a frame in it */
};

/** Any thread. */
void journal_place_drop(struct journal_place *p);

enum read_end {
    READ_MORE = 0, /* the chunk is full, or much was passed over; there is more */
    READ_END,      /* everything that is written was looked at */
    READ_GAP,      /* what lies behind `told` is not in the journal any more: go on behind `gap` */
    READ_DAMAGED,  /* the same, because the bytes on disk are not those that were written; `why` names file and offset */
    READ_FAILED,   /* `error`: the disk's, or no memory. Never with data: a step that has some ends as READ_MORE in front of it */
};

struct verdicts;

/** Reading for one session, a step at a time. Owned by whoever starts the steps; the worker alone uses it meanwhile. */
struct journal_read {
    /* in; the filters are borrowed and must not change meanwhile */
    struct journal *journal;
    const struct filter *filters, *exclusions;
    size_t n_filters, n_exclusions;
    bool everything;
    size_t chunk;               /* most bytes to hand out, at least READER_CHUNK_MIN */
    struct journal_place place; /* in and out; to go on elsewhere, drop it and set `told` */

    /* in and out */
    struct position told; /* the last position handed out or passed over … */
    struct position handed; /* … and the last one handed out */
    bool inside;          /* `told` lies in a transaction, at its index 0 or behind, whose BEGIN was handed out */
    bool resume;          /* `told` lies inside a transaction: its BEGIN is to be flagged resumed */
    uint64_t skip;        /* bytes of the next frame that were handed out already; a step can end so in a large one. When that frame is
                             not found any more the end says why, and there is nothing to go on with */
    struct position skip_of; /* the position of that MESSAGE: only when `skip` is not 0 */

    /* out */
    enum read_end end; /* may come with data, which then stands before it */
    int error;
    char why[JOURNAL_WHY_SIZE];
    bool first;        /* damage was met that nobody has met before; `why` says where. It may hold nothing that this reader lacks */
    uint8_t *data;     /* malloc'ed, the caller's; NULL when nothing matched */
    size_t size;
    size_t rest;       /* bytes at the start of data that belong to the frame that was to be skipped into */
    size_t last;       /* where in data the last frame begins; `size` when it is that one */
    uint64_t owed;     /* bytes that the last frame still lacks; then data holds nothing but bytes of it */
    uint64_t messages; /* MESSAGE frames that end in data */
    struct frame_gap gap; /* READ_GAP, READ_DAMAGED: first and last position, what is known of it; `reason` is static */

    struct verdicts *verdicts; /* the reader's own */
};

/** Any thread. Fills what is out. */
void journal_read_step(struct journal_read *r);
/** Frees data and what is the reader's own, and drops the place. */
void journal_read_deinit(struct journal_read *r);

/** Whether the subscription of `r` gets this prefix. */
bool journal_read_matches(struct journal_read *r, struct bytes prefix);

/** What lies behind a position: any thread. */
struct journal_measure {
    struct position at;           /* in */
    uint64_t messages, bytes;     /* out: of the era up to and with `at`; of content */
    int64_t received_time;        /* out: of the first message behind it; 0: there is none */
    int error;
};
void journal_measure(struct journal *j, struct journal_measure *m);

/** Behind which position one begins who asks for all of a journal whose first segment is behind `after`. Of a transaction whose beginning
 *  is dropped a gap is then told, and its rest does not look like all of it. */
static inline struct position journal_oldest_start(struct position after)
{
    return position_is_inside(after) ? position_before_transaction(after) : after;
}

/** The first position of a message that was received at or after `time` (µs), as the position to start behind, which is never inside a
 *  transaction; any thread. 0; a negative errno. Without one: the journal's end. Older than the journal: its journal_oldest_start(). */
int journal_find_time(struct journal *j, int64_t time, struct position *ret) MUST_CHECK;

/** Whether the oldest segment holds a message behind `after` that matches, and how much lies behind it there; any thread. */
struct journal_probe {
    const struct filter *filters, *exclusions; /* in, borrowed */
    size_t n_filters, n_exclusions;
    struct position after;
    bool matches;                 /* out */
    bool gap;                     /* out: a GAP stands there, which is for everybody */
    uint64_t messages, bytes;     /* out: in this segment, behind `after`, whether matching or not */
    int error;
};
void journal_probe_first(struct journal *j, struct journal_probe *probes, size_t n);

#endif
