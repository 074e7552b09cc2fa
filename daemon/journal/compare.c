/* SPDX-License-Identifier: PostgreSQL */
#include "journal/compare.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codec/frame.h"
#include "journal/segment.h"

/* So much is read at once. */
#define COMPARE_WINDOW (256u << 10)
/* Of a frame's body, what says where it stands: GAP's two positions. */
#define FIXED_MAX (2u * POSITION_SIZE)
/* MESSAGE: the received time is the router's own, another each time. */
#define RECEIVED_AT   (FRAME_HEADER_SIZE + 36u)
#define RECEIVED_SIZE 8u
#define FLAGS_AT      5u

/* An entry of the journal. */
struct found {
    uint8_t type, flags;
    uint64_t at, size;              /* of the whole frame, in the segment */
    struct position position, from; /* GAP: its end and its start */
};

void compare_drop(struct compare *c)
{
    c->active = false;
    c->segment = segment_unref(c->segment);
    c->window_of = NULL;
}

void compare_deinit(struct compare *c)
{
    compare_drop(c);
    free(c->window);
    c->window = NULL;
}

/* ---- reading ---- */

/* `want` bytes, at most COMPARE_WINDOW, valid until the next call. 0; -ENODATA: they are not there; another negative errno. */
static int look(struct compare *c, uint64_t at, size_t want, const uint8_t **ret)
{
    if (c->window_of != c->segment || at < c->window_at || at - c->window_at > c->window_size ||
        c->window_size - (at - c->window_at) < want) {
        size_t got = 0;

        c->window_of = NULL;
        while (got < want) {
            ssize_t n =
                pread(c->segment->fd, c->window + got, COMPARE_WINDOW - got, (off_t)(at + got));

            if (n < 0 && errno == EINTR)
                continue;
            if (n < 0)
                return -errno;
            if (n == 0)
                return -ENODATA;
            got += (size_t)n;
        }
        c->window_of = c->segment;
        c->window_at = at;
        c->window_size = got;
    }
    *ret = c->window + (at - c->window_at);
    return 0;
}

/* The frame at c->at, which is no RECORD. 0 or a negative errno. */
static int parse(struct compare *c, struct frame_header h, uint64_t limit, struct found *ret)
{
    struct found f = {.type = h.type,
                      .flags = h.flags,
                      .at = c->at,
                      .size = FRAME_HEADER_SIZE + (uint64_t)h.size};
    const uint8_t *body;

    if (f.size > limit - c->at)
        return -EBADMSG;
    int r = look(c, c->at + FRAME_HEADER_SIZE, MIN((size_t)h.size, FIXED_MAX), &body);
    if (r < 0)
        return r;
    switch (h.type) {
    case FRAME_BEGIN:
        if (h.size != FRAME_BEGIN_BODY)
            return -EBADMSG;
        f.position = (struct position){bytes_get_u32(body), bytes_get_u64(body + 4), 0};
        break;
    case FRAME_COMMIT:
        if (h.size != FRAME_COMMIT_BODY)
            return -EBADMSG;
        f.position =
            (struct position){bytes_get_u32(body), bytes_get_u64(body + 4), POSITION_INDEX_END};
        break;
    case FRAME_MESSAGE:
        if (h.size < FRAME_MESSAGE_FIXED)
            return -EBADMSG;
        f.position = position_decode(body);
        break;
    case FRAME_WITHHELD:
        if (h.size != FRAME_WITHHELD_BODY)
            return -EBADMSG;
        f.position = position_decode(body);
        break;
    case FRAME_GAP:
        if (h.size < FRAME_GAP_FIXED)
            return -EBADMSG;
        f.from = position_decode(body);
        f.position = position_decode(body + POSITION_SIZE);
        break;
    default:
        return -EBADMSG;
    }
    *ret = f;
    return 0;
}

/* The entry where the run stands; c->at moves to it, over records that end at or before `passed`. 1; 0: that is the journal's
 * end; a negative errno: -EBADMSG or the disk's. */
static int find_next(struct compare *c, struct journal *j, struct position passed,
                     struct found *ret)
{
    for (;;) {
        const uint8_t *bytes;
        struct frame_header h;
        int r = segment_verify(c->segment, false);

        if (r < 0)
            return r;
        uint64_t limit = atomic_load_explicit(&c->segment->size, memory_order_acquire);
        if (c->at >= limit) {
            if (segment_damaged_at(c->segment))
                return -EBADMSG;
            struct segment *next = journal_segment_after(j, c->segment);
            if (!next)
                return 0;
            if (next->header.sequence != c->segment->header.sequence + 1)
                c->dropped = next->header.after;
            segment_unref(c->segment);
            c->segment = next;
            c->window_of = NULL;
            c->at = SEGMENT_HEADER_SIZE;
            continue;
        }
        if (limit - c->at < FRAME_HEADER_SIZE)
            return -EBADMSG;
        r = look(c, c->at, FRAME_HEADER_SIZE, &bytes);
        if (r == 0)
            r = frame_header_decode(bytes, &h);
        if (r < 0)
            return r;
        if (h.type != FRAME_RECORD) {
            r = parse(c, h, limit, ret);
            return r < 0 ? r : 1;
        }
        struct record record;
        if (limit - c->at < RECORD_SIZE)
            return -EBADMSG;
        r = look(c, c->at, RECORD_SIZE, &bytes);
        if (r == 0)
            r = record_decode(bytes, &record);
        if (r < 0)
            return r;
        c->at += RECORD_SIZE;
        if (record.size > limit - c->at)
            return -EBADMSG;
        if (position_compare(record.last, passed) <= 0)
            c->at += record.size;
    }
}

/* ---- order ---- */

static struct position position_before(struct position p)
{
    if (p.index)
        return (struct position){p.timeline, p.lsn, p.index - 1};
    if (p.lsn)
        return (struct position){p.timeline, p.lsn - 1, POSITION_INDEX_END};
    return (struct position){p.timeline ? p.timeline - 1 : 0, UINT64_MAX, POSITION_INDEX_END};
}

/* A non-transactional message and the BEGIN right behind it can have one position. */
static int compare_order(struct position a, bool a_is_begin, struct position b, bool b_is_begin)
{
    int r = position_compare(a, b);

    return r ? r : (int)a_is_begin - (int)b_is_begin;
}

static int order_of(const struct found *f, const struct batch_entry *e)
{
    /* a GAP stands in front of the BEGIN that has the position where it ends */
    return compare_order(f->position, f->type == FRAME_BEGIN, e->position, e->type == FRAME_BEGIN);
}

/* ---- one entry ---- */

static int differs(struct position at, struct position *ret_at, char what[COMPARE_WHAT_SIZE],
                   const char *fmt, ...) PRINTF_LIKE(4, 5);

static int differs(struct position at, struct position *ret_at, char what[COMPARE_WHAT_SIZE],
                   const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, COMPARE_WHAT_SIZE, fmt, ap);
    va_end(ap);
    *ret_at = at;
    return COMPARE_DIFFERS;
}

/* Whether [from, to) of an entry is the same in both; 1, 0 or a negative errno. */
static int same_bytes(struct compare *c, const struct batch *b, const struct batch_entry *e,
                      const struct found *f, uint64_t from, uint64_t to)
{
    while (from < to) {
        struct bytes pieces[2];
        const uint8_t *bytes;
        size_t size = (size_t)MIN(to - from, (uint64_t)COMPARE_WINDOW);

        (void)batch_pieces(b, e->offset + (size_t)from, size, pieces);
        size = pieces[0].size;
        int r = look(c, f->at + from, size, &bytes);
        if (r < 0)
            return r;
        if (memcmp(bytes, pieces[0].data, size) != 0)
            return 0;
        from += size;
    }
    return 1;
}

/* A message that went to quarantine, and is sent again whole: what stands here in its place must have been made from it. What the
 * policy says of it now changes nothing. */
static int same_withheld(struct compare *c, const struct batch *b, const struct batch_entry *e, const struct found *f)
{
    uint8_t frame[FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY];
    struct frame_withheld there;
    struct frame_header h = {.size = FRAME_WITHHELD_BODY, .flags = f->flags};
    const uint8_t *bytes;

    int r = look(c, f->at, sizeof frame, &bytes);
    if (r == 0)
        r = frame_withheld_decode(h, bytes + FRAME_HEADER_SIZE, &there);
    if (r < 0)
        return r;
    struct frame_withheld here = {.message = batch_message_of(b, e), .status = there.status};
    batch_hash(&here.message, here.hash);
    here.message.received_time = there.message.received_time;
    (void)frame_withheld_encode(frame, &here);
    return memcmp(frame, bytes, sizeof frame) == 0;
}

/* The same, apart from what is the router's own: when it was received, and that a gap swallowed a part. */
static int same_entry(struct compare *c, const struct batch *b, const struct batch_entry *e,
                      const struct found *f)
{
    uint64_t skip = e->size, skipped = 0;

    if (e->size != f->size)
        return 0;
    if (e->type == FRAME_MESSAGE) {
        skip = RECEIVED_AT;
        skipped = RECEIVED_SIZE;
    } else if (e->type == FRAME_COMMIT) {
        skip = FLAGS_AT;
        skipped = 1;
    }
    int r = same_bytes(c, b, e, f, 0, skip);
    return r == 1 ? same_bytes(c, b, e, f, skip + skipped, e->size) : r;
}

/* Looks the first entry of a run up. 0: the run is active; 1: the journal has nothing so old, and a run that is active goes on; a
 * negative errno. */
static int begin_run(struct compare *c, struct journal *j, const struct batch_entry *e)
{
    struct position before = position_before(e->position);
    struct found f;
    struct segment *s = journal_segment_of(j, before);

    if (s && position_compare(e->position, s->header.after) <= 0) {
        segment_unref(s);
        return 1;
    }
    compare_drop(c);
    c->segment = s;
    if (!s)
        return -EBADMSG;
    int r = segment_verify(c->segment, false);
    if (r < 0)
        return r;
    c->at = segment_locate(c->segment, before).offset;
    c->dropped = (struct position){0};
    while ((r = find_next(c, j, before, &f)) == 1 && order_of(&f, e) < 0)
        c->at += f.size;
    if (r < 0)
        return r;
    c->active = true;
    return 0;
}

static int compare_entry(struct compare *c, struct journal *j, const struct batch *b,
                         const struct batch_entry *e, struct position *ret_at,
                         char what[COMPARE_WHAT_SIZE])
{
    bool e_is_begin = e->type == FRAME_BEGIN;
    char text[POSITION_TEXT_SIZE], other[POSITION_TEXT_SIZE];
    struct position nowhere = {0};
    struct found f;
    int r;

    if (!c->active || compare_order(e->position, e_is_begin, c->last, c->last_is_begin) <= 0) {
        r = begin_run(c, j, e);
        if (r < 0)
            return r;
        if (r > 0)
            return COMPARE_SAME;
    }
    c->last = e->position;
    c->last_is_begin = e_is_begin;
    (void)position_format(e->position, text);
    while ((r = find_next(c, j, nowhere, &f)) == 1) {
        int order = order_of(&f, e);

        if (order > 0 && position_compare(e->position, c->dropped) <= 0)
            return COMPARE_SAME;
        if (f.type == FRAME_GAP && position_compare(f.from, e->position) <= 0 &&
            compare_order(e->position, e_is_begin, f.position, false) <= 0)
            return COMPARE_SAME;
        if (order > 0)
            break;
        if (order < 0) {
            if (f.type != FRAME_GAP && f.position.timeline == e->position.timeline)
                return differs(
                    f.position, ret_at, what,
                    "the journal has an entry at %s, which the server did not send again before %s",
                    position_format(f.position, other), text);
            c->at += f.size;
            continue;
        }
        r = f.type == e->type                                        ? same_entry(c, b, e, &f)
            : f.type == FRAME_WITHHELD && e->type == FRAME_MESSAGE ? same_withheld(c, b, e, &f)
                                                                   : 0;
        if (r < 0)
            return r;
        if (r == 0)
            return differs(e->position, ret_at, what,
                           "what the server sent again at %s is not what the journal has there",
                           text);
        c->at += f.size;
        return COMPARE_SAME;
    }
    if (r < 0)
        return r;
    if (r == 0)
        return differs(e->position, ret_at, what,
                       "the server sent an entry at %s again, where the journal, which ends before "
                       "it, has none",
                       text);
    return differs(
        e->position, ret_at, what,
        "the server sent an entry at %s again, where the journal has none, though it has one at %s",
        text, position_format(f.position, other));
}

/* ---- batches ---- */

/* Errors of the file end the run: who reads it will be told of the damage. */
static int unknown(struct compare *c, int error, char what[COMPARE_WHAT_SIZE])
{
    if (error == -ENOMEM)
        return error;
    uint64_t damaged_at = c->segment ? segment_damaged_at(c->segment) : 0;
    if (c->segment && (error == -EBADMSG || error == -ENODATA))
        (void)snprintf(what, COMPARE_WHAT_SIZE, "%s is damaged at offset %" PRIu64, c->segment->path,
                       damaged_at ? damaged_at : c->at);
    else
        (void)snprintf(what, COMPARE_WHAT_SIZE, "%s cannot be read at offset %" PRIu64 ": %s",
                       c->segment ? c->segment->path : "the journal", c->at, strerror(-error));
    compare_drop(c);
    return COMPARE_UNKNOWN;
}

static int make_window(struct compare *c)
{
    return c->window || (c->window = malloc(COMPARE_WINDOW)) ? 0 : -ENOMEM;
}

int compare_expect(struct compare *c, struct journal *j, struct position from,
                   char what[COMPARE_WHAT_SIZE])
{
    int r = make_window(c);

    if (r < 0)
        return r;
    struct segment *first = journal_segment_first(j);
    /* what retention has let go of cannot be looked for */
    if (first && position_compare(from, first->header.after) <= 0)
        from = position_next(first->header.after);
    segment_unref(first);
    /* A non-transactional message stands where its record ends: one that does so at the slot's place is behind it. A transaction
     * stands where its commit record begins, and comes. */
    const struct batch_entry e = {.type = FRAME_BEGIN, .position = from};
    r = begin_run(c, j, &e);
    if (r < 0)
        return unknown(c, r, what);
    c->last = from;
    c->last_is_begin = false;
    return COMPARE_SAME;
}

int compare_mark(struct compare *c, struct journal *j, uint64_t mark, uint32_t timeline,
                 struct position *ret_at, char what[COMPARE_WHAT_SIZE])
{
    char text[POSITION_TEXT_SIZE], passed[LSN_TEXT_SIZE];
    struct position nowhere = {0};
    struct found f;
    int r;

    if (!c->active)
        return COMPARE_SAME;
    while ((r = find_next(c, j, nowhere, &f)) == 1) {
        if (f.position.timeline > timeline ||
            (f.position.timeline == timeline && f.position.lsn >= mark))
            return COMPARE_SAME;
        if (f.type != FRAME_GAP && f.position.timeline == timeline)
            return differs(
                f.position, ret_at, what,
                "the journal has an entry at %s, which the server, being past %s, did not send again",
                position_format(f.position, text), lsn_format(mark, passed));
        c->at += f.size;
    }
    return r < 0 ? unknown(c, r, what) : COMPARE_SAME;
}

int compare_batch(struct compare *c, struct journal *j, const struct batch *b,
                  struct position *ret_at, char what[COMPARE_WHAT_SIZE])
{
    int r = make_window(c), result = COMPARE_SAME;

    if (r < 0)
        return r;
    for (size_t i = 0; i < b->n_entries; i++) {
        if (b->entries[i].type == FRAME_GAP) /* ours, not the server's */
            continue;
        r = compare_entry(c, j, b, &b->entries[i], ret_at, what);
        if (r < 0)
            r = unknown(c, r, what);
        if (r < 0 || r == COMPARE_DIFFERS)
            return r;
        if (r == COMPARE_UNKNOWN)
            result = r;
    }
    return result;
}

int compare_end(struct compare *c, struct journal *j, const struct batch *b,
                struct position *ret_at, char what[COMPARE_WHAT_SIZE])
{
    const struct batch_entry *e = b->entries, *end = e + b->n_entries;
    char text[POSITION_TEXT_SIZE], other[POSITION_TEXT_SIZE];
    struct position nowhere = {0};
    struct found f;
    int r = 0, result = COMPARE_SAME;

    while (e < end && e->type == FRAME_GAP) /* ours, not the server's: it says nothing of what is missing */
        e++;
    if (e == end)
        return COMPARE_SAME;
    while (c->active && (r = find_next(c, j, nowhere, &f)) == 1) {
        if (f.type != FRAME_GAP && f.position.timeline == e->position.timeline) {
            result = differs(
                f.position, ret_at, what,
                "the journal has an entry at %s, which the server did not send again before %s",
                position_format(f.position, other), position_format(e->position, text));
            break;
        }
        c->at += f.size;
    }
    if (r < 0)
        return unknown(c, r, what);
    compare_drop(c);
    return result;
}
