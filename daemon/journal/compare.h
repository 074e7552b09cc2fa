/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_COMPARE_H
#define WALBUS_DAEMON_JOURNAL_COMPARE_H

/*
 * What the server sends again against what the journal has: private to daemon/journal, for its thread.
 *
 * A run begins with the first entry that comes again and is looked up by position. From there
 * on the two must go side by side, entry by entry, until something new comes, which must find the run at the journal's end: so
 * an entry that is missing on either side is noticed, and not only one that differs.
 *
 *     journal        A  B  C  GAP(D…F)  G  ║ end
 *     comes again       B  C  D         G    then new: H
 *
 * B begins the run, D lies within a gap and is passed over, H finds the end. Where the journal has entries of an older timeline
 * that do not come again, the server that had them is gone: that is no contradiction.
 *
 * Every new connection begins somewhere at or before the place that the one before had reached, since the server was told no
 * more than that; what comes at or before the last compared position begins a new run.
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

/** A batch that came again. Positive results as above, or a negative errno (memory). */
int compare_batch(struct compare *c, struct journal *j, const struct batch *b, struct position *ret_at,
                  char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
/** A new batch with entries is about to be written: has everything come again that stands in the journal? Ends the run. */
int compare_end(struct compare *c, struct journal *j, const struct batch *b, struct position *ret_at,
                char what[COMPARE_WHAT_SIZE]) MUST_CHECK;
void compare_deinit(struct compare *c);

#endif
