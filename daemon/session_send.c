/* SPDX-License-Identifier: PostgreSQL */
/* What a live session is given, entry by entry or whole batches, and what it is told beside. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"
#include "session_read.h"

bool session_is_live(const struct session *s)
{
    return s->state == SESSION_ACTIVE && !s->read;
}

bool session_is_at_end(const struct session *s)
{
    return !s->read && outbox_is_empty(&s->outbox);
}

void session_note_place(struct session *s)
{
    s->owes = true;
    s->passed_over = false;
    if (s->outbox.n == 0 && s->outbox.owed == 0)
        s->outbox.place = (struct outbox_place){s->told, s->inside, s->resume};
}

bool session_queued(struct session *s, int r)
{
    if (r == 0) {
        s->must_flush = true;
        return true;
    }
    session_error(s, CONTROL_ERROR_TOO_SLOW,
                  "the router has no memory for what this subscriber has not read", true);
    return false;
}

/* Whether it was queued. What was not, for want of memory, is read from the journal: without one that would be a silent gap. */
static bool put(struct session *s, int r)
{
    if (r < 0 && s->reads) {
        session_fall_behind(s);
        return false;
    }
    return session_queued(s, r);
}

/* After something was queued. */
static void check_full(struct session *s)
{
    if (!outbox_is_full(&s->outbox))
        return;
    if (s->reads)
        session_fall_behind(s);
    else
        session_error(s, CONTROL_ERROR_TOO_SLOW,
                      "messages came faster than this subscriber reads them", true);
}

static int put_range(struct session *s, struct batch *batch, const struct batch_entry *entry)
{
    session_note_place(s);
    return outbox_add(&s->outbox, batch, entry->offset, entry->size, entry->offset);
}

static bool is_in_transaction_of(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

/* A gap has swallowed messages of it, up to the last one that it could have. */
static bool is_incomplete(const struct session *s)
{
    return s->inside && s->told.index == POSITION_INDEX_END - 1;
}

bool session_send_batch(struct session *s, struct batch *batch)
{
    if (!session_is_live(s) || !s->member.everything || s->resume ||
        position_compare(s->told, batch->first) >= 0 || (batch->starts_inside && !s->inside))
        return false;
    if (batch->withheld) /* what stands there is for nobody */
        return false;
    if (batch->entries[0].type == FRAME_GAP) /* it may begin before what was told */
        return false;
    if (is_incomplete(s)) /* its COMMIT is to say so */
        return false;
    if (s->inside && !is_in_transaction_of(s->told, batch->first)) /* which then never ends */
        return false;
    session_note_place(s);
    if (!put(s, outbox_add(&s->outbox, batch, 0, batch_size(batch),
                           batch->entries[batch->n_entries - 1].offset)))
        return true;
    s->told = batch->last;
    s->inside = batch->ends_inside;
    s->messages += batch->messages;
    check_full(s);
    return true;
}

/* The BEGIN of the transaction to which `position` belongs: from this batch, or the copy it carries. */
static bool send_begin(struct session *s, struct batch *batch, const struct batch_entry *begin)
{
    const uint8_t *body = (begin ? batch->head + begin->offset : batch->begin) + FRAME_HEADER_SIZE;
    uint8_t frame[BATCH_BEGIN_SIZE];
    int r;

    if (begin && !s->resume) {
        r = put_range(s, batch, begin);
    } else {
        memcpy(frame, body - FRAME_HEADER_SIZE, sizeof frame);
        if (s->resume)
            frame[5] |= FRAME_FLAG_RESUMED; /* the header's flags */
        session_note_place(s);
        r = outbox_add_frame(&s->outbox, batch, frame, sizeof frame);
    }
    if (!put(s, r))
        return false;
    struct position at = {bytes_get_u32(body), bytes_get_u64(body + 4), 0};
    if (position_compare(at, s->told) > 0) /* nothing of what stands before it is still to come */
        s->told = at;
    s->inside = true;
    s->resume = false;
    return true;
}

/* A frame for this session alone. */
static int put_own_gap(struct session *s, struct batch_pool *pool, const struct frame_gap *gap)
{
    size_t size = FRAME_HEADER_SIZE + FRAME_GAP_FIXED + gap->reason.size;
    uint8_t *frame = malloc(size);

    if (!frame)
        return -ENOMEM;
    (void)frame_gap_encode(frame, gap);
    struct batch *batch = batch_wrap(pool, frame, size);
    if (!batch)
        return -ENOMEM;
    session_note_place(s);
    int r = outbox_add(&s->outbox, batch, 0, size, 0);
    (void)batch_unref(batch);
    return r;
}

void session_put_gap(struct session *s, struct batch_pool *pool, const struct frame_gap *gap)
{
    (void)session_queued(s, put_own_gap(s, pool, gap));
}

void session_send_gap(struct session *s, struct batch_pool *pool, struct position to,
                      uint64_t messages, uint64_t bytes, const char *reason)
{
    struct frame_gap gap = {
        .from = position_next(s->told),
        .to = to,
        .messages = messages,
        .bytes = bytes,
        .reason = bytes_of_text(reason),
    };

    if (s->state != SESSION_ACTIVE || position_compare(to, s->told) <= 0 ||
        !session_queued(s, put_own_gap(s, pool, &gap)))
        return;
    s->told = to;
    s->inside = false;
    s->resume = false;
    session_reseat(s, 0, (struct position){0});
}

/* Whether who was told so much may be passed over to there. */
static bool stands_up_to(struct position told, bool inside, struct position to)
{
    return position_compare(to, told) > 0 && (!inside || (position_is_inside(to) && is_in_transaction_of(told, to)));
}

void session_pass(struct session *s, struct position to)
{
    struct outbox_place *place = &s->outbox.place; /* where it goes on if it has to let go of what is queued */

    if (s->state != SESSION_ACTIVE)
        return;
    if (stands_up_to(place->told, place->inside || place->resume, to))
        place->told = to;
    if (!stands_up_to(s->told, s->inside || s->resume, to))
        return;
    s->told = to;
    session_reseat_ahead(s);
}

void session_send_gap_entry(struct session *s, struct batch *batch, const struct batch_entry *entry)
{
    const uint8_t *body = batch->head + entry->offset + FRAME_HEADER_SIZE;
    struct frame_header h = {.size = (uint32_t)(entry->size - FRAME_HEADER_SIZE),
                             .type = FRAME_GAP};
    struct frame_gap gap;

    if (!session_is_live(s) || position_compare(entry->position, s->told) <= 0 ||
        frame_gap_decode(h, body, &gap) < 0)
        return;
    int r;
    if (position_compare(gap.from, s->told) > 0) {
        r = put_range(s, batch, entry);
    } else { /* it stands inside the gap */
        gap.from = position_next(s->told);
        gap.messages = gap.bytes = UINT64_MAX;
        r = put_own_gap(s, batch->pool, &gap);
    }
    if (!put(s, r))
        return;
    s->told = entry->position;
    s->inside = false;
    s->resume = false;
    check_full(s);
}

/* Something newer than the rest of the transaction inside which the session stands: that will not come any more. The journal has a GAP
 * in its place, unless it never had that transaction. */
static void notice_interruption(struct session *s, const struct batch *batch, const struct batch_entry *entry)
{
    if ((s->resume || s->inside) && !is_in_transaction_of(s->told, entry->position))
        session_send_gap(s, batch->pool, (struct position){s->told.timeline, s->told.lsn, POSITION_INDEX_END}, UINT64_MAX,
                         UINT64_MAX, "the server never finished this transaction");
}

bool session_send_message(struct session *s, struct batch *batch, const struct batch_entry *entry,
                          const struct batch_entry *begin)
{
    bool came_inside = false;

    if (!session_is_live(s) || position_compare(entry->position, s->told) <= 0)
        return false;
    notice_interruption(s, batch, entry);
    if (!session_is_live(s))
        return false;
    if (entry->position.index != POSITION_INDEX_NONTRANSACTIONAL && !s->inside) {
        if (!send_begin(s, batch, begin))
            return false;
        came_inside = true;
    }
    if (put(s, put_range(s, batch, entry))) {
        s->told = entry->position;
        s->messages++;
        check_full(s);
    }
    return came_inside;
}

void session_send_commit(struct session *s, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin)
{
    uint8_t frame[OUTBOX_FRAME_SIZE];
    int r;

    if (!session_is_live(s) || position_compare(entry->position, s->told) <= 0)
        return;
    notice_interruption(s, batch, entry);
    if (!session_is_live(s))
        return;
    if (!s->inside && !(s->resume && send_begin(s, batch, begin)))
        return;
    if (is_incomplete(s)) {
        memcpy(frame, batch->head + entry->offset, sizeof frame);
        frame[5] |= FRAME_FLAG_INCOMPLETE;
        session_note_place(s);
        r = outbox_add_frame(&s->outbox, batch, frame, sizeof frame);
    } else {
        r = put_range(s, batch, entry);
    }
    if (put(s, r)) {
        s->told = entry->position;
        s->inside = false;
        check_full(s);
    }
}

void session_send_progress(struct session *s, struct position position)
{
    struct position known = s->passed_over ? s->said : s->told;
    uint8_t frame[FRAME_HEADER_SIZE + FRAME_PROGRESS_BODY];

    if (!session_is_live(s) || s->inside || s->resume || !outbox_is_empty(&s->outbox) ||
        position_compare(position, known) <= 0)
        return;
    buf_append(outbox_control(&s->outbox), frame, frame_progress_encode(frame, position));
    s->said = position;
    s->passed_over = position_compare(position, s->told) < 0;
    if (!s->passed_over)
        s->told = position;
    s->must_flush = true;
}
