/* SPDX-License-Identifier: PostgreSQL */
#include "builder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void builder_init(struct builder *b, struct batch_pool *pool)
{
    *b = (struct builder){.pool = pool};
}

void builder_deinit(struct builder *b)
{
    b->open = batch_unref(b->open);
    b->again = batch_unref(b->again);
}

void builder_restore(struct builder *b, struct position last, const struct frame_begin *inside,
                     int64_t received_time)
{
    b->open = batch_unref(b->open);
    b->again = batch_unref(b->again);
    b->inside = false;
    b->begun = false;
    b->last = last;
    b->pending = inside;
    if (inside)
        b->pending_at = (struct position){inside->timeline, inside->commit_lsn, 0};
    builder_set_time(b, received_time);
}

void builder_connected(struct builder *b, const struct timeline_history *history,
                       struct position start)
{
    /* What was begun towards subscribers stays so: its rest may come on the new connection. */
    if (b->inside && b->begun) {
        b->pending = true;
        b->pending_at = (struct position){b->begin.timeline, b->begin.commit_lsn, 0};
    }
    b->inside = false;
    b->begun = false;
    b->again_begun = false;
    b->history = history;
    b->decoder = DECODER_INIT;
    b->mark = 0;
    b->mark_taken = 0;
    if (position_is_zero(b->last))
        b->last = start;
}

void builder_set_time(struct builder *b, int64_t now_us)
{
    if (now_us > b->now_us)
        b->now_us = now_us;
}

static struct batch *builder_batch(struct builder *b)
{
    if (!b->open) {
        b->open = batch_new(b->pool);
        if (b->open && b->inside && b->begun) {
            b->open->starts_inside = true;
            (void)frame_begin_encode(b->open->begin, &b->begin);
        }
    }
    return b->open;
}

static struct batch *builder_again(struct builder *b)
{
    if (!b->again) {
        b->again = batch_new(b->pool);
        if (b->again)
            b->again->again = true;
    }
    return b->again;
}

static bool same_transaction(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

static int wrong(char why[DECODE_WHY_SIZE], const struct pgoutput *m, const char *what)
{
    snprintf(why, DECODE_WHY_SIZE, "message '%c' %s", (char)m->type, what);
    return -EBADMSG;
}

static int put_gap(struct builder *b, struct position to, const char *reason)
{
    const struct frame_gap gap = {
        .from = position_next(b->last),
        .to = to,
        .messages = UINT64_MAX,
        .bytes = UINT64_MAX,
        .reason = bytes_of_text(reason),
    };
    if (!builder_batch(b))
        return -ENOMEM;
    int r = batch_add_gap(b->open, &gap);
    if (r < 0)
        return r;
    b->last = to;
    return 0;
}

/* Something new came at `p`: is a half-delivered transaction thereby given up? Then a GAP takes the place of its rest. */
static int notice_interruption(struct builder *b, struct position p)
{
    int r = 0;

    if (!b->pending)
        return 0;
    if (!same_transaction(p, b->pending_at) || p.index == POSITION_INDEX_NONTRANSACTIONAL)
        r = put_gap(b, (struct position){b->pending_at.timeline, b->pending_at.lsn, POSITION_INDEX_END},
                    "the server never finished this transaction");
    if (r == 0)
        b->pending = false;
    return r;
}

int builder_accept_gap(struct builder *b, struct position to, const char *reason)
{
    int r = put_gap(b, to, reason);

    if (r == 0)
        b->pending = false; /* its rest lies in the gap */
    return r;
}

static int add_begin(struct builder *b, const struct pgoutput *m, char why[DECODE_WHY_SIZE])
{
    if (b->inside)
        return wrong(why, m, "inside a transaction");
    b->inside = true;
    b->again_begun = false;
    b->index = 0;
    b->begin = (struct frame_begin){
        .timeline = timeline_of(b->history, m->begin.commit_lsn),
        .commit_lsn = m->begin.commit_lsn,
        .commit_time = m->begin.commit_time,
        .xid = m->xid,
    };
    b->begun = b->pending && same_transaction((struct position){b->begin.timeline,
                                                                b->begin.commit_lsn, 0},
                                              b->pending_at);
    return BUILDER_NOTHING;
}

static int put_message(struct builder *b, const struct frame_message *f, void **owner)
{
    bool transactional = f->flags & FRAME_FLAG_TRANSACTIONAL;
    int r = notice_interruption(b, f->position);

    if (r < 0)
        return r;
    if (!builder_batch(b))
        return -ENOMEM;
    if (transactional && !b->begun) {
        r = batch_add_begin(b->open, &b->begin);
        if (r < 0)
            return r;
        b->begun = true;
    }
    r = batch_add_message(b->open, f, owner);
    if (r < 0)
        return r;
    b->last = f->position;
    b->messages++;
    return BUILDER_ADDED;
}

static int put_again(struct builder *b, const struct frame_message *f, void **owner)
{
    int r = 0;

    if (!builder_again(b))
        return -ENOMEM;
    if ((f->flags & FRAME_FLAG_TRANSACTIONAL) && !b->again_begun)
        r = batch_add_begin(b->again, &b->begin);
    if (r < 0)
        return r;
    b->again_begun = f->flags & FRAME_FLAG_TRANSACTIONAL;
    r = batch_add_message(b->again, f, owner);
    if (r < 0)
        return r;
    b->repeated++;
    return BUILDER_AGAIN;
}

static bool is_heartbeat(struct bytes prefix)
{
    return bytes_equal(prefix, bytes_of_text(SUBJECT_HEARTBEAT_PREFIX));
}

static int add_message(struct builder *b, const struct pgoutput *m, void **owner,
                       char why[DECODE_WHY_SIZE])
{
    struct frame_message f = {
        .lsn = m->message.lsn,
        .received_time = b->now_us,
        .prefix = m->message.prefix,
        .content = m->message.content,
    };

    if (m->message.transactional) {
        if (!b->inside)
            return wrong(why, m, "of a transaction, outside of one");
        if (b->index == POSITION_INDEX_END - 1)
            return wrong(why, m, "is more than 4294967294 in one transaction");
        f.position = (struct position){b->begin.timeline, b->begin.commit_lsn, ++b->index};
        f.xid = b->begin.xid;
        f.commit_time = b->begin.commit_time;
        f.flags = FRAME_FLAG_TRANSACTIONAL;
    } else {
        if (b->inside)
            return wrong(why, m, "of no transaction, inside of one");
        /* its LSN is the end of its record, so the record lies before it */
        f.position = (struct position){timeline_of(b->history, m->message.lsn - 1), m->message.lsn,
                                       POSITION_INDEX_NONTRANSACTIONAL};
    }
    int r;
    if (is_heartbeat(f.prefix))
        r = position_compare(f.position, b->last) > 0 ? BUILDER_HEARTBEAT : BUILDER_NOTHING;
    else if (position_compare(f.position, b->last) <= 0)
        r = put_again(b, &f, owner);
    else
        r = put_message(b, &f, owner);
    /* not when there was no memory for it: the mark would tell subscribers that it is behind them */
    if (r >= 0 && !m->message.transactional)
        b->mark = m->message.lsn;
    return r;
}

/* The end of a transaction that is newer than `last`. */
static int put_commit(struct builder *b, struct position end, const struct frame_commit *f)
{
    int r = 0;

    if (!b->begun) { /* nothing of it is delivered, but it is newer all the same */
        r = notice_interruption(b, end);
        if (r == 0)
            b->last = end;
        return r < 0 ? r : BUILDER_COMMITTED;
    }
    if (!builder_batch(b))
        return -ENOMEM;
    r = batch_add_commit(b->open, f);
    if (r < 0)
        return r;
    b->pending = false;
    b->last = end;
    return BUILDER_ADDED;
}

static int put_commit_again(struct builder *b, const struct frame_commit *f)
{
    if (!b->again_begun)
        return BUILDER_COMMITTED;
    if (!builder_again(b))
        return -ENOMEM;
    int r = batch_add_commit(b->again, f);
    return r < 0 ? r : BUILDER_COMMITTED;
}

static int add_commit(struct builder *b, const struct pgoutput *m, char why[DECODE_WHY_SIZE])
{
    struct position end = {b->begin.timeline, b->begin.commit_lsn, POSITION_INDEX_END};

    if (!b->inside)
        return wrong(why, m, "outside a transaction");
    if (m->commit.commit_lsn != b->begin.commit_lsn)
        return wrong(why, m, "carries another commit LSN than its begin");
    const struct frame_commit f = {
        .begin = b->begin,
        .end_lsn = m->commit.end_lsn,
        .messages = b->index,
    };
    int r = position_compare(end, b->last) > 0 ? put_commit(b, end, &f) : put_commit_again(b, &f);
    if (r < 0)
        return r;
    b->mark = m->commit.end_lsn;
    b->inside = false;
    b->begun = false;
    b->again_begun = false;
    return r;
}

int builder_add(struct builder *b, const struct pgoutput *m, void **owner,
                char why[DECODE_WHY_SIZE])
{
    switch (m->type) {
    case PGOUTPUT_BEGIN:
        return add_begin(b, m, why);
    case PGOUTPUT_MESSAGE:
        if (m->streamed)
            return wrong(why, m, "in a stream block, which was not asked for");
        return add_message(b, m, owner, why);
    case PGOUTPUT_COMMIT:
        return add_commit(b, m, why);
    case PGOUTPUT_ORIGIN:
    case PGOUTPUT_RELATION:
    case PGOUTPUT_TYPE:
    case PGOUTPUT_INSERT:
    case PGOUTPUT_UPDATE:
    case PGOUTPUT_DELETE:
    case PGOUTPUT_TRUNCATE:
        return BUILDER_NOTHING;
    case PGOUTPUT_STREAM_ABORT: /* PostgreSQL 18 may send one that nobody asked for */
        b->ignored++;
        return BUILDER_NOTHING;
    case PGOUTPUT_STREAM_START:
    case PGOUTPUT_STREAM_STOP:
    case PGOUTPUT_STREAM_COMMIT:
        return wrong(why, m, "of a streamed transaction, which was not asked for");
    case PGOUTPUT_STREAM_PREPARE:
    case PGOUTPUT_BEGIN_PREPARE:
    case PGOUTPUT_PREPARE:
    case PGOUTPUT_COMMIT_PREPARED:
    case PGOUTPUT_ROLLBACK_PREPARED:
        return wrong(why, m, "of two-phase decoding: the slot was made, or altered to, TWO_PHASE");
    }
    return wrong(why, m, "is unknown");
}

void builder_keepalive(struct builder *b, uint64_t wal_end)
{
    if (!b->inside && wal_end > b->mark)
        b->mark = wal_end;
}

static bool is_full(const struct batch *batch)
{
    return batch && (batch->head_size >= BATCH_SIZE || batch->tail_owner);
}

bool builder_is_full(const struct builder *b)
{
    return is_full(b->open) || is_full(b->again);
}

bool builder_has_news(const struct builder *b)
{
    return b->open || b->again || b->mark != b->mark_taken;
}

struct batch *builder_take(struct builder *b)
{
    struct batch *batch = b->again;

    if (batch) { /* its mark is no news */
        b->again = NULL;
        batch_seal(batch);
        return batch;
    }
    batch = b->open;
    if (!batch) {
        if (b->mark == b->mark_taken)
            return NULL;
        batch = batch_new(b->pool);
        if (!batch)
            return NULL;
    }
    batch->mark = b->mark;
    if (b->mark)
        batch->mark_position = (struct position){timeline_of(b->history, b->mark - 1), b->mark, 0};
    b->mark_taken = b->mark;
    batch_seal(batch);
    b->open = NULL;
    return batch;
}

struct position builder_now(const struct builder *b)
{
    struct position end = {b->begin.timeline, b->begin.commit_lsn, POSITION_INDEX_END};

    if (b->inside && position_compare(end, b->last) > 0)
        return end;
    if (b->pending && position_compare((struct position){b->pending_at.timeline, b->pending_at.lsn,
                                                         POSITION_INDEX_END}, b->last) > 0)
        return (struct position){b->pending_at.timeline, b->pending_at.lsn, POSITION_INDEX_END};
    return b->last;
}
