/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_FAKE_JOURNAL_H
#define WALBUS_TESTS_UNIT_FAKE_JOURNAL_H

/*
 * As much of a journal as a test says: its segments and messages are a list. It stands in the place of daemon/journal,
 * so it is a source of those test programs alone that name it in meson.build.
 */

#include "journal/journal.h"
#include "journal/reader.h"

#define FAKE_SEGMENTS_MAX 32
#define FAKE_MESSAGES_MAX 1024

struct fake_message {
    struct position position;
    const char *prefix;
    uint64_t bytes;
    int64_t received_time;
};

struct journal {
    struct journal_end end;
    struct position written; /* zero: as the end */
    bool failed;

    struct segment_info segments[FAKE_SEGMENTS_MAX];
    size_t n_segments;
    uint64_t size, running_ms;
    int drop_error;

    struct fake_message messages[FAKE_MESSAGES_MAX]; /* in order; those before the oldest segment do not count */
    size_t n_messages;

    unsigned refs;     /* of who reads in it */
    int read_error;    /* what measuring, probing and finding fail with */
    unsigned measured; /* how many positions were measured, from any thread */
    int64_t asked_time; /* the last that was looked for */
};

/** Empties it: one segment behind 1:0/0:0, with nothing in it. */
void fake_journal_init(struct journal *j);
/** Adds a message at the end. */
void fake_journal_add(struct journal *j, struct position position, const char *prefix, uint64_t bytes);
/** A new segment begins behind the last message. */
void fake_journal_cut(struct journal *j);

#endif
