/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_JOURNAL_MODEL_H
#define WALBUS_TESTS_UNIT_JOURNAL_MODEL_H

/*
 * What is put into a journal, remembered entry by entry, and a reference that says what a subscriber must get of
 * it. Each program of tests that includes this has one.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "batch.h"
#include "codec/subject.h"
#include "unit.h"

#define ENTRIES_MAX 60000

/* ---- what was put in ---- */

struct entry {
    uint8_t type;
    struct position position; /* BEGIN: index 0 */
    char prefix[16];
    size_t content;
    int64_t received;
    size_t at, size; /* in `all` */
    size_t segment;
};

static struct entry *entries;
static size_t n_entries;
static struct buf all; /* their frames */
static struct batch_pool *model_pool;
static struct batch *open_batch;
static int64_t journal_clock;

static struct {
    bool inside;
    struct frame_begin begin;
    uint32_t index;
} transaction;

static inline void model_setup(struct batch_pool *pool)
{
    model_pool = pool;
    entries = calloc(ENTRIES_MAX, sizeof *entries);
    ck_assert_ptr_nonnull(entries);
    n_entries = 0;
    all = BUF_INIT;
    journal_clock = 1000;
    memset(&transaction, 0, sizeof transaction);
}

static inline void model_teardown(void)
{
    ck_assert_ptr_null(open_batch);
    free(entries);
    buf_deinit(&all);
}

static inline struct batch *journal_batch(void)
{
    if (open_batch)
        return open_batch;
    open_batch = batch_new(model_pool);
    ck_assert_ptr_nonnull(open_batch);
    if (transaction.inside) {
        open_batch->starts_inside = true;
        (void)frame_begin_encode(open_batch->begin, &transaction.begin);
    }
    return open_batch;
}

static inline void journal_remember(struct position position, const char *prefix, size_t content)
{
    const struct batch_entry *e = &open_batch->entries[open_batch->n_entries - 1];
    struct entry *x = &entries[n_entries++];
    struct bytes pieces[2];

    ck_assert_uint_lt(n_entries, ENTRIES_MAX);
    *x = (struct entry){.type = e->type,
                        .position = position,
                        .content = content,
                        .received = journal_clock,
                        .at = all.size,
                        .size = e->size};
    (void)snprintf(x->prefix, sizeof x->prefix, "%s", prefix);
    unsigned n = batch_pieces(open_batch, e->offset, e->size, pieces);
    for (unsigned i = 0; i < n; i++)
        buf_append(&all, pieces[i].data, pieces[i].size);
}

static inline void put_begin(uint64_t lsn)
{
    struct batch *b = journal_batch();

    transaction.begin = (struct frame_begin){1, lsn, (int64_t)lsn * 3, (uint32_t)lsn, 0};
    transaction.index = 0;
    ck_assert_int_eq(batch_add_begin(b, &transaction.begin), 0);
    transaction.inside = true;
    journal_remember((struct position){1, lsn, 0}, "", 0);
}

/** In the open transaction, or outside of one at `lsn`. */
static inline void put_message(uint64_t lsn, const char *prefix, size_t size)
{
    struct batch *b = journal_batch();
    uint8_t *memory = malloc(size ? size : 1);
    void *owner = memory;
    struct frame_message f = {
        .position = transaction.inside
                        ? (struct position){1, transaction.begin.commit_lsn, ++transaction.index}
                        : (struct position){1, lsn, 0},
        .lsn = lsn,
        .received_time = journal_clock,
        .prefix = bytes_of_text(prefix),
        .content = {memory, size},
        .flags = transaction.inside ? FRAME_FLAG_TRANSACTIONAL : 0,
    };

    ck_assert_ptr_nonnull(memory);
    if (transaction.inside) {
        f.xid = transaction.begin.xid;
        f.commit_time = transaction.begin.commit_time;
    }
    for (size_t i = 0; i < size; i++)
        memory[i] = (uint8_t)(i * 31 + lsn + transaction.index);
    ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    free(owner);
    journal_remember(f.position, prefix, size);
}

static inline void put_commit(void)
{
    struct batch *b = journal_batch();
    struct frame_commit f = {transaction.begin, transaction.begin.commit_lsn + 8,
                             transaction.index};

    ck_assert_int_eq(batch_add_commit(b, &f), 0);
    transaction.inside = false;
    journal_remember((struct position){1, f.begin.commit_lsn, POSITION_INDEX_END}, "", 0);
}

static inline void put_gap(struct position from, struct position to)
{
    struct batch *b = journal_batch();
    struct frame_gap f = {from, to, 3, 4, unit_bytes("lost")};

    ck_assert_int_eq(batch_add_gap(b, &f), 0);
    transaction.inside = false;
    journal_remember(to, "", 0);
}

/** Ends the open batch and gives it away. */
static inline struct batch *take_batch(void)
{
    struct batch *b = journal_batch();

    open_batch = NULL;
    batch_seal(b);
    return b;
}

/* ---- the reference ---- */

struct reference {
    const struct filter *filters, *exclusions;
    size_t n_filters, n_exclusions;
    struct position told;
    bool inside, resume;
    struct buf out;
    uint64_t messages;
};

static inline bool reference_matches(const struct reference *x, const struct entry *e)
{
    bool some = false;

    for (size_t i = 0; i < x->n_filters; i++)
        some |= filter_matches(&x->filters[i], bytes_of_text(e->prefix));
    for (size_t i = 0; i < x->n_exclusions; i++)
        some &= !filter_matches(&x->exclusions[i], bytes_of_text(e->prefix));
    return some;
}

static inline bool same_transaction(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

static inline void reference_begin(struct reference *x, uint64_t lsn)
{
    struct frame_begin f = {1, lsn, (int64_t)lsn * 3, (uint32_t)lsn,
                            x->resume ? FRAME_FLAG_RESUMED : 0};
    uint8_t frame[BATCH_BEGIN_SIZE];

    buf_append(&x->out, frame, frame_begin_encode(frame, &f));
    x->inside = true;
    x->resume = false;
}

static inline void reference_gap(struct reference *x, struct position to, const char *reason)
{
    struct frame_gap f = {position_next(x->told), to, UINT64_MAX, UINT64_MAX, unit_bytes(reason)};
    uint8_t frame[200];

    buf_append(&x->out, frame, frame_gap_encode(frame, &f));
    x->told = to;
    x->inside = x->resume = false;
}

/** One entry more. */
static inline void reference_pass(struct reference *x, const struct entry *e)
{
    struct position p = e->position;
    uint8_t frame[200];

    if (e->type == FRAME_BEGIN || position_compare(p, x->told) <= 0)
        return;
    struct position end = {x->told.timeline, x->told.lsn, POSITION_INDEX_END};
    bool covered =
        e->type == FRAME_GAP && position_compare(position_decode(all.data + e->at + 8), end) <= 0;
    if (x->resume && !same_transaction(p, x->told) && !covered)
        reference_gap(x, end, "the server never finished this transaction");
    if (e->type == FRAME_MESSAGE) {
        if (reference_matches(x, e)) {
            if (p.index && !x->inside)
                reference_begin(x, p.lsn);
            buf_append(&x->out, all.data + e->at, e->size);
            x->messages++;
        }
    } else if (e->type == FRAME_COMMIT) {
        if (x->resume)
            reference_begin(x, p.lsn);
        if (x->inside)
            buf_append(&x->out, all.data + e->at, e->size);
        x->inside = false;
    } else {
        memcpy(frame, all.data + e->at, e->size);
        if (position_compare(position_decode(frame + 8), x->told) <= 0) {
            position_encode(position_next(x->told), frame + 8);
            memset(frame + 8 + 2 * POSITION_SIZE, 0xff, 16);
        }
        buf_append(&x->out, frame, e->size);
        x->inside = x->resume = false;
    }
    x->told = p;
}

static inline struct reference reference_of(const struct filter *filters, size_t n,
                                            struct position told)
{
    return (struct reference){.filters = filters,
                              .n_filters = n,
                              .told = told,
                              .resume = told.index != POSITION_INDEX_NONTRANSACTIONAL &&
                                        told.index != POSITION_INDEX_END};
}

static inline void reference_run(struct reference *x)
{
    for (size_t i = 0; i < n_entries; i++)
        reference_pass(x, &entries[i]);
}

/* ---- at random ---- */

static const char *const prefixes[] = {"a", "a.b", "a.b.c", "b", "b.c", "", "long-one-indeed"};

static inline size_t random_filters(struct unit_random *random, struct filter out[8])
{
    static const char *const texts[] = {
        ">", "a", "a.>", "a.*", "*", "b.*", "", "b", "long-one-indeed", "x"};
    size_t n = 1 + (unit_random_below(random, 2) ? 0 : unit_random_below(random, 8));

    for (size_t i = 0; i < n; i++)
        out[i] = (struct filter){unit_random_below(random, 3),
                                 unit_bytes(texts[unit_random_below(random, 10)])};
    return n;
}

#endif
