/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_RETENTION_H
#define WALBUS_DAEMON_RETENTION_H

/*
 * How much of the journal is kept: in whole segments, oldest first to go, at least
 * JOURNAL_SEGMENTS_MIN of them.
 *
 * A segment goes when the journal is larger than `size`, or has more than `segments` of them, or when it is older than `age`, of
 * the running time of routers, so that a clock that jumps expires nothing. It stays as long
 * as a durable subscription needs it: one that has a matching message in it behind its
 * cursor. Whether it has is looked up in the file, on a worker thread, only when the
 * segment is about to go and a cursor stands in it or before it: a name that is up to date,
 * which is the usual one, costs nothing. What does not match is passed over: the cursor moves.
 *
 *            needed by nobody       needed, the journal is too large      needed, old only
 *            goes                   pause: reading is to wait             stays
 *                                   discard: goes, the names lose it
 *
 * Pausing begins only between transactions (that is the source's to see to), so the journal
 * can be larger by one transaction, and by the segment that is being written. It ends when there is room again: the
 * subscription that pins has gone on, or is removed. It is looked for again when a
 * cursor moves (retention_check), and not otherwise: what pinned is remembered.
 *
 * Loop thread only. It knows the durable subscriptions by its callbacks alone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "journal/journal.h"
#include "settings/settings.h"

/** Segments that go in one turn of the loop, at most: unlinking is the file system's work. */
#define RETENTION_DROPS_A_TURN 4u
/** So long a segment that could not be read is left alone. */
#define RETENTION_AGAIN_MS 1000u
/** Names that are looked up in a segment at a time. */
#define RETENTION_PROBES_MAX 64u

/** A durable subscription, as far as retention looks at it. */
struct retention_name {
    const char *name;        /* borrowed: until the callback that gave it is called again, or the loop turns */
    struct position cursor;
    uint64_t filters_made;   /* tells these filters from others of the same name, before and after */
    const struct filter *filters, *exclusions;
    size_t n_filters, n_exclusions;
};

struct retention_ops {
    /** Fills in names whose cursor lies before `last`, and which have not lost everything up to there, up to `max`;
     *  returns how many there are in all. */
    size_t (*behind)(void *owner, struct position last, struct retention_name *out, size_t max);
    /** Whether this name still has this cursor, and these filters. */
    bool (*stands)(void *owner, const char *name, struct position cursor, uint64_t filters_made);
    /** Nothing behind its cursor matches, up to `to`: it may move there; so much of others lies between. */
    void (*pass)(void *owner, const char *name, struct position to, uint64_t messages, uint64_t bytes);
    /** What lies behind its cursor is dropped, up to `to`; so much of it is in the segment that goes now. */
    void (*lost)(void *owner, const char *name, struct position to, uint64_t messages, uint64_t bytes);
    /** Whether it is on disk that nobody needs what lies up to `last`; if not, retention_check() once it is. */
    bool (*may_go)(void *owner, struct position last);
    /** Whether reading is to wait, between two transactions: retention_holds() has changed. */
    void (*held)(void *owner);
};

struct retention_limits {
    uint64_t size, age_ms; /* bytes; ms, 0: none */
    size_t segments;       /* each keeps a descriptor; 0: no limit */
    uint64_t segment_size; /* bytes: how much it may exceed `size` by, beside one transaction */
    enum when_full when_full;
};

struct retention_job;

struct retention {
    const struct retention_ops *ops;
    void *owner;
    struct logger *log;
    uv_loop_t *loop;
    struct journal *journal;
    struct retention_limits limits;
    bool paused;               /* a name needs the oldest segment of a full journal: until that changes */
    bool ahead;                /* what was read exceeds the limit, and the oldest segment has not gone yet: soon over */
    struct retention_job *job; /* under way; NULL: none */
    bool again;                /* something changed meanwhile */
    bool closed;
    char *pinned_by;           /* a name that needs the oldest segment … */
    struct position pinned_at; /* … with its cursor here … */
    uint64_t pinned_filters;   /* … and these filters, … */
    uint64_t pinned_segment;   /* … and that segment's sequence; */
    uint64_t pinned_until;     /* uv_now() when the segment, which could not be read, is looked at again; 0: it was read */
};

void retention_init(struct retention *r, uv_loop_t *loop, struct journal *journal, const struct retention_limits *limits,
                    const struct retention_ops *ops, void *owner, struct logger *log);

/** A batch was appended: what waits to be written counts too. */
void retention_appended(struct retention *r);

/** Whether reading is to wait between two transactions. */
static inline bool retention_holds(const struct retention *r)
{
    return r->paused || r->ahead;
}

/** The journal has grown, a cursor has moved, a name has gone, or time has passed. */
void retention_check(struct retention *r);

/** Nothing is dropped any more; what is under way ends with the loop. */
void retention_close(struct retention *r);

/* ---- the decision, for tests ---- */

enum retention_verdict {
    RETENTION_KEEP,  /* nothing is to go */
    RETENTION_DROP,  /* the oldest goes */
    RETENTION_PROBE, /* … unless one of the names behind needs it: look */
};

/** What is to happen to the oldest of `segments`; *ret_full: because the journal is too large, and not only old. */
enum retention_verdict retention_decide(const struct retention_limits *limits, size_t segments, uint64_t size,
                                        uint64_t running_ms, uint64_t second_begun_ms, size_t names_behind,
                                        bool *ret_full) MUST_CHECK;

#endif
