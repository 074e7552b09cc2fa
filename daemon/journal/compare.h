/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_COMPARE_H
#define WALBUS_DAEMON_JOURNAL_COMPARE_H

/*
 * What the server sends again against what the journal has: private to daemon/journal, for its thread.
 *
 * A run begins with the first entry that comes again and is looked up by position. From there
 * on the two must go side by side, entry by entry, until something new comes, which must find the run at the journal's end: so
 * an entry that is missing on either side is noticed, and not only one that differs. Nor may a mark pass an entry of the run that
 * has not come.
 *
 *     journal        A  B  C  GAP(D…F)  G  ║ end
 *     comes again       B  C  D         G    then new: H
 *
 * B begins the run, D lies within a gap and is passed over, H finds the end. Where the journal has entries of an older timeline
 * that do not come again, the server that had them is gone: that is no contradiction.
 *
 * Where it is known from where on a connection's stream goes, its run begins there, before anything has come: a server that was
 * restored to an older state may have nothing at all where the journal has entries, and be beyond them.
 *
 * A run is of one connection (compare_drop). Every new one begins somewhere at or before the place that the one before had
 * reached, since the server was told no more than that; what comes at or before the last compared position begins a new run.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "batch.h"
#include "codec/position.h"

#define COMPARE_WHAT_SIZE 256

struct journal;
struct segment;

struct compare {
    bool active;             /* a run goes on: */
    struct segment *segment; /* where its next entry must stand, one reference … */
    uint64_t at;             /* … a record, a frame or the end */
    struct position last;    /* compared last */
    bool last_is_begin;
    struct position dropped; /* up to it retention has let go of what the run would have come to */

    uint8_t *window; /* of the file, so that small entries cost no call each */
    uint64_t window_at;
    size_t window_size;
    const struct segment *window_of;
};

enum compare_result {
    COMPARE_SAME = 0, /* or passed over */
    COMPARE_DIFFERS,  /* *ret_at and `what` say */
    COMPARE_UNKNOWN,  /* the journal cannot be read there; `what` says where. The run is over, the entries are passed over */
};

/** A slot stands at `from`: begins a run at the first entry that is to come. Results as of compare_batch, but
 *  COMPARE_DIFFERS. */
int compare_expect(struct compare *c, struct journal *j, struct position from, char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
/** The server is past `mark` on this timeline: has everything come that lies before it? Results as of compare_batch. */
int compare_mark(struct compare *c, struct journal *j, uint64_t mark, uint32_t timeline, struct position *ret_at,
                 char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
/** A batch that came again. Positive results as above, or a negative errno (memory). */
int compare_batch(struct compare *c, struct journal *j, const struct batch *b, struct position *ret_at,
                  char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
/** A new batch with entries is about to be written: has everything come again that stands in the journal? Ends the run. */
int compare_end(struct compare *c, struct journal *j, const struct batch *b, struct position *ret_at,
                char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
/** Another connection: nothing more comes of this run. */
void compare_drop(struct compare *c);
void compare_deinit(struct compare *c);

#endif
