/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_READER_FIXTURE_H
#define WALBUS_TESTS_UNIT_READER_FIXTURE_H

/*
 * A journal for those who read it: real segments in a folder, written here, and a list of them. What was put in is
 * remembered (journal_model.h).
 *
 * The list stands in for journal.c, so nothing is written behind anybody's back.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "journal/segment.h"
#include "journal_model.h"
#include "unit.h"

#define SEGMENTS_MAX 64

/* ---- the journal ---- */

struct journal {
    pthread_mutex_t lock;
    struct segment *segments[SEGMENTS_MAX];
    size_t first, n; /* [first, n) are there */
    struct position written;
};

static struct journal journal = {.lock = PTHREAD_MUTEX_INITIALIZER};
static char *journal_folder;

struct journal *journal_ref(struct journal *j)
{
    return j;
}

struct journal *journal_unref(struct journal *j)
{
    (void)j;
    return NULL;
}

struct position journal_written(const struct journal *j)
{
    return j->written;
}

struct segment *journal_segment_of(struct journal *j, struct position p)
{
    struct segment *s = NULL;

    (void)pthread_mutex_lock(&j->lock);
    for (size_t i = j->first; i < j->n; i++)
        if (i == j->first || position_compare(j->segments[i]->header.after, p) <= 0)
            s = j->segments[i];
    s = s ? segment_ref(s) : NULL;
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

struct segment *journal_segment_of_time(struct journal *j, int64_t time)
{
    struct segment *s = NULL;

    (void)pthread_mutex_lock(&j->lock);
    for (size_t i = j->first; i < j->n; i++)
        if (i == j->first || j->segments[i]->header.received_time < time)
            s = j->segments[i];
    s = s ? segment_ref(s) : NULL;
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

struct segment *journal_segment_after(struct journal *j, struct segment *after)
{
    struct segment *s = NULL;

    (void)pthread_mutex_lock(&j->lock);
    for (size_t i = j->n; i > j->first; i--)
        if (j->segments[i - 1]->header.sequence > after->header.sequence)
            s = j->segments[i - 1];
    s = s ? segment_ref(s) : NULL;
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

struct segment *journal_segment_first(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    struct segment *s = j->first < j->n ? segment_ref(j->segments[j->first]) : NULL;
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

/** The last segment ends here and the next one begins. */
static inline void journal_new_segment(struct position after)
{
    struct segment_header h = {.sequence = journal.n + 1,
                               .system_identifier = 7,
                               .era = 1,
                               .after = after,
                               .database = "d",
                               .slot = "s"};
    struct segment *s = NULL;

    ck_assert_uint_lt(journal.n, SEGMENTS_MAX);
    if (journal.n) {
        struct segment *last = journal.segments[journal.n - 1];

        h.after = last->end.before;
        h.previous_size = last->end.offset;
        h.previous_checksum = last->end.checksum;
        h.messages_before = last->end.messages;
        h.bytes_before = last->end.bytes;
        h.received_time = last->end.received_time;
        h.starts_inside = last->end.starts_inside;
        h.begin = last->end_begin;
    }
    ck_assert_int_eq(segment_create(journal_folder, &h, &s), 0);
    (void)pthread_mutex_lock(&journal.lock);
    journal.segments[journal.n++] = s;
    (void)pthread_mutex_unlock(&journal.lock);
}

/** Unlinks the oldest one. */
static inline void journal_drop_segment(void)
{
    (void)pthread_mutex_lock(&journal.lock);
    struct segment *s = journal.segments[journal.first++];
    (void)pthread_mutex_unlock(&journal.lock);
    ck_assert_int_eq(unlink(s->path), 0);
    (void)segment_unref(s);
}

/** As after a restart: nothing of it is verified. */
static inline void journal_reopen(void)
{
    for (size_t i = journal.first; i < journal.n; i++) {
        struct segment *s = journal.segments[i];
        uint64_t size = i + 1 < journal.n ? journal.segments[i + 1]->header.previous_size : 0;

        ck_assert_int_eq(segment_open(s->path, size, &journal.segments[i]), 0);
        if (i + 1 < journal.n) {
            journal.segments[i]->has_next = true;
            journal.segments[i]->next_checksum = journal.segments[i + 1]->header.previous_checksum;
        }
        (void)segment_unref(s);
    }
}

static struct batch_pool journal_pool;

static inline void journal_setup(void)
{
    journal_folder = unit_temp_folder();
    journal.first = journal.n = 0;
    journal.written = (struct position){1, 0x100, 0};
    model_setup(&journal_pool);
    journal_new_segment(journal.written);
}

static inline void journal_teardown(void)
{
    model_teardown();
    for (size_t i = journal.first; i < journal.n; i++)
        (void)segment_unref(journal.segments[i]);
    unit_temp_folder_remove(journal_folder);
    ck_assert_uint_eq(journal_pool.live, 0);
    batch_pool_deinit(&journal_pool);
}

/** A batch as a record at the end of the last segment. */
static inline void journal_write(const struct batch *b)
{
    struct segment *s = journal.segments[journal.n - 1];
    uint8_t head[RECORD_SIZE];
    struct bytes pieces[2];
    struct record r = {
        .size = batch_size(b),
        .first = b->first,
        .last = b->last,
        .received_time = MAX(s->end.received_time, journal_clock),
        .messages_before = s->end.messages,
        .bytes_before = s->end.bytes,
        .begin = s->end_begin,
        .starts_inside = s->end.starts_inside,
        .ends_inside = b->n_entries ? b->ends_inside : s->end.starts_inside,
    };
    struct frame_begin open = s->end_begin;
    unsigned n = batch_pieces(b, 0, batch_size(b), pieces);

    for (size_t i = 0; i < b->n_entries; i++) {
        const uint8_t *frame = b->head + b->entries[i].offset;
        if (b->entries[i].type == FRAME_MESSAGE) {
            r.messages++;
            r.bytes += b->entries[i].size - FRAME_HEADER_SIZE - FRAME_MESSAGE_FIXED -
                       b->entries[i].prefix.size;
        } else if (b->entries[i].type == FRAME_BEGIN) {
            ck_assert_int_eq(
                frame_begin_decode((struct frame_header){FRAME_BEGIN_BODY, FRAME_BEGIN, 0},
                                   frame + FRAME_HEADER_SIZE, &open),
                0);
        }
    }
    record_encode(&r, s->end.checksum, pieces, n, head);
    uint64_t at = s->end.offset;
    ck_assert_int_eq(pwrite(s->fd, head, sizeof head, (off_t)at), sizeof head);
    at += sizeof head;
    for (unsigned i = 0; i < n; i++) {
        ck_assert_int_eq(pwrite(s->fd, pieces[i].data, pieces[i].size, (off_t)at),
                         (ssize_t)pieces[i].size);
        at += pieces[i].size;
    }
    segment_note(s, s->end.offset, &r, &open);
    if (b->n_entries)
        journal.written = b->last;
}

/** Writes what was put since the last time. */
static inline void end_record(void)
{
    struct batch *b = take_batch();

    for (size_t i = 0; i < b->n_entries; i++)
        entries[n_entries - 1 - i].segment = journal.n - 1;
    journal_write(b);
    (void)batch_unref(b);
}

static inline void end_segment(void)
{
    journal_new_segment((struct position){0});
}

/* ---- at random ---- */

/** `n` steps of making one: messages in and out of transactions, ends of records and segments. */
static inline void random_journal(struct unit_random *random, unsigned n)
{
    uint64_t lsn = 0x1000;

    for (unsigned i = 0; i < n; i++) {
        lsn += 1 + unit_random_below(random, 30);
        unsigned what = unit_random_below(random, 20);
        if (what < 12)
            put_message(lsn, prefixes[unit_random_below(random, 7)],
                        unit_random_below(random, 15) ? unit_random_below(random, 300)
                                                      : unit_random_below(random, 5000));
        else if (what < 14 && !transaction.inside)
            put_begin(lsn), put_message(lsn, prefixes[unit_random_below(random, 7)], 10);
        else if (what < 17 && transaction.inside)
            put_commit();
        else if (what == 17 && n_entries && unit_random_below(random, 3) == 0)
            put_gap(transaction.inside
                        ? (struct position){1, transaction.begin.commit_lsn, transaction.index + 1}
                        : position_next(entries[n_entries - 1].position),
                    (struct position){1, lsn, POSITION_INDEX_END});
        journal_clock += unit_random_below(random, 3);
        if (n_entries == 0)
            put_message(lsn, "a", 1);
        if (what >= 18)
            end_record();
        if (what == 19 && open_batch == NULL && unit_random_below(random, 4) == 0 &&
            journal.n < SEGMENTS_MAX)
            end_segment();
    }
    if (open_batch)
        end_record();
}

#endif
