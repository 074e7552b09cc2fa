/* SPDX-License-Identifier: PostgreSQL */
/*
 * One step of reading. The segment's bytes are read into one buffer, and what matches is moved together at its
 * start, in place, which becomes the chunk:
 *
 *   read      | RECORD | BEGIN | MESSAGE a | MESSAGE b | COMMIT | RECORD | MESSAGE c | MESS…
 *   handed out  BEGIN | MESSAGE b | COMMIT | MESSAGE c
 *
 * What is put there never reaches what is still to be looked at: all comes from further behind, but a BEGIN whose own frame
 * stands before the buffer, made again from the first MESSAGE that matches. For that one frame RESERVE bytes stay free in front of
 * whatever is read.
 *
 * A frame too large for the buffer is read to its start, and goes in pieces over several steps: `skip` bytes of it are
 * out, the place stays at its beginning. The same when a session was sent the first bytes of it from memory and
 * has let go of the rest.
 */
#include "journal/reader.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "journal/fault.h"
#include "journal/segment.h"
#include "journal/window.h"

#define RESERVE     (FRAME_HEADER_SIZE + FRAME_BEGIN_BODY)
#define FIXED       (FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED)
#define COMMIT_SIZE (FRAME_HEADER_SIZE + FRAME_COMMIT_BODY)

/* ---- filters ---- */

/* Below so many filters each is simply tried. */
#define VERDICTS_FROM 4u
#define VERDICTS      256u /* a power of two; with the prefixes 17 KB */
#define VERDICT_KEY   62u  /* longer prefixes are tried each time */

/* What was found out about a prefix: few different ones stand in a stretch of a journal. */
struct verdict {
    uint8_t known; /* 0: nothing; 1: no; 2: yes */
    uint8_t size;
    uint8_t prefix[VERDICT_KEY];
};

struct verdicts {
    struct verdict at[VERDICTS];
};

bool journal_read_matches(struct journal_read *r, struct bytes prefix)
{
    struct verdict *v = NULL;

    if (r->everything)
        return true;
    if (r->n_filters + r->n_exclusions >= VERDICTS_FROM && prefix.size <= VERDICT_KEY) {
        if (!r->verdicts)
            r->verdicts = calloc(1, sizeof *r->verdicts); /* without it: slower */
        if (r->verdicts)
            v = &r->verdicts->at[XXH3_64bits(prefix.data, prefix.size) & (VERDICTS - 1)];
    }
    if (v && v->known && v->size == prefix.size &&
        (prefix.size == 0 || memcmp(v->prefix, prefix.data, prefix.size) == 0))
        return v->known == 2;
    bool matches = filters_match(r->filters, r->n_filters, r->exclusions, r->n_exclusions, prefix);
    if (v) {
        v->known = matches ? 2 : 1;
        v->size = (uint8_t)prefix.size;
        if (prefix.size)
            memcpy(v->prefix, prefix.data, prefix.size);
    }
    return matches;
}

/* ---- how a step ends ---- */

struct step {
    struct journal_read *r;
    struct window w; /* its floor: what is handed out, and RESERVE */
    size_t out;
    uint64_t scanned;
};

static bool is_inside(struct position p)
{
    return p.index != POSITION_INDEX_NONTRANSACTIONAL && p.index != POSITION_INDEX_END;
}

static bool is_same_transaction(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

static struct position end_of(struct position p)
{
    return (struct position){p.timeline, p.lsn, POSITION_INDEX_END};
}

static void place_set(struct journal_place *p, struct segment *segment, uint64_t offset)
{
    (void)segment_unref(p->segment);
    *p = (struct journal_place){segment, offset};
}

void journal_place_drop(struct journal_place *p)
{
    place_set(p, NULL, 0);
}

/* These say that the step is over. */
static bool end_with(struct step *s, enum read_end end)
{
    s->r->end = end;
    return false;
}

static bool end_failed(struct step *s, int error, const char *what)
{
    struct journal_read *r = s->r;

    r->error = error;
    snprintf(r->why, sizeof r->why, "%s%s%s", r->place.segment ? r->place.segment->path : "",
             r->place.segment ? ": " : "", what);
    return end_with(s, READ_FAILED);
}

/* What lies up to `to` is not to be had. A gap that ends inside a transaction swallows the rest of it; of one that was
 * begun only the messages, so that its COMMIT comes, flagged incomplete. */
static bool end_with_gap(struct step *s, enum read_end end, struct position to, const char *reason)
{
    struct journal_read *r = s->r;
    bool goes_on = r->inside && is_same_transaction(r->told, to) && to.index != POSITION_INDEX_END;

    if (goes_on)
        to.index = POSITION_INDEX_END - 1;
    else if (is_inside(to))
        to.index = POSITION_INDEX_END;
    r->gap = (struct frame_gap){
        .from = position_next(r->told),
        .to = to,
        .messages = UINT64_MAX,
        .bytes = UINT64_MAX,
        .reason = bytes_of_text(reason),
    };
    r->told = r->handed = to;
    r->inside = goes_on;
    r->resume = false;
    return end_with(s, end);
}

/* The bytes at `offset` are not those that were written. What follows is in the next segment. */
static bool end_damaged(struct step *s, uint64_t offset)
{
    struct journal_read *r = s->r;
    struct segment *segment = r->place.segment, *next = journal_segment_after(r->journal, segment);

    if (!next)
        return end_failed(s, EBADMSG, "the bytes on disk are not those that were written");
    struct position from = r->told;
    (void)pthread_mutex_lock(&segment->lock);
    r->first = !segment->damage_told;
    segment->damage_told = true;
    struct segment_mark end = segment->end;
    bool from_end = offset == segment->damaged_at; /* everything before it was handed out */
    (void)pthread_mutex_unlock(&segment->lock);
    snprintf(r->why, sizeof r->why, "%s: offset %llu", segment->path, (unsigned long long)offset);
    struct position to = next->header.after;
    uint64_t messages = next->header.messages_before - end.messages,
             bytes = next->header.bytes_before - end.bytes;
    bool counts = from_end && position_compare(from, end.before) <= 0 &&
                  next->header.era == segment->header.era && !is_inside(to) &&
                  next->header.messages_before >= end.messages &&
                  next->header.bytes_before >= end.bytes;
    (void)segment_unref(next);
    if (position_compare(to, from) <= 0) { /* it holds nothing that was not told */
        place_set(&r->place, NULL, 0);
        return end_with(s, READ_MORE);
    }
    (void)end_with_gap(s, READ_DAMAGED, to, "the journal is damaged here");
    if (counts) {
        r->gap.messages = messages;
        r->gap.bytes = bytes;
    }
    place_set(&r->place, NULL, 0);
    return false;
}

/* What window_want and its kin have answered. */
static bool end_for(struct step *s, int error)
{
    const struct segment *segment = s->r->place.segment;

    if (error == -ENOBUFS)
        return end_with(s, READ_MORE);
    if (atomic_load_explicit(&segment->size, memory_order_acquire) < s->w.limit) { /* a failed sync took it away */
        journal_place_drop(&s->r->place);
        return end_with(s, READ_MORE);
    }
    if (error == -EBADMSG)
        return end_damaged(s, s->w.at);
    return end_failed(s, -error, strerror(-error));
}

static bool end_lost(struct step *s)
{
    return end_failed(s, ESTALE, "the message that was being sent is not there any more");
}

/* ---- handing out ---- */

static void out_raise(struct step *s, size_t size)
{
    assert(s->out + size <= s->w.pos);
    s->r->last = s->out;
    s->out += size;
}

/* The window may use what lies behind what is handed out, and behind room for a BEGIN if there is any. */
static void set_floor(struct step *s)
{
    size_t floor = MIN(s->out + RESERVE, s->w.cap);

    if (s->w.pos == s->w.end) /* it is empty: it may begin anywhere */
        s->w.pos = s->w.end = s->w.floor = floor;
    else
        s->w.floor = MIN(floor, s->w.pos);
}

/* The frame in the window, whole. */
static void put_frame(struct step *s, size_t size)
{
    memmove(s->w.buf + s->out, window_data(&s->w), size);
    window_pass(&s->w, size);
    out_raise(s, size);
}

/* False: there is no room, because a transaction was not begun in the journal either. */
static bool put_begin(struct step *s, const struct frame_begin *begin)
{
    struct journal_read *r = s->r;
    struct frame_begin f = *begin;

    if (s->w.pos - s->out < RESERVE)
        return end_for(s, -EBADMSG);
    f.flags = r->resume ? FRAME_FLAG_RESUMED : 0;
    (void)frame_begin_encode(s->w.buf + s->out, &f);
    out_raise(s, RESERVE);
    r->inside = true;
    r->resume = false;
    struct position at = {f.timeline, f.commit_lsn, 0};
    if (position_compare(at, r->told) > 0)
        r->told = at;
    r->handed = r->told;
    return true;
}

/* A MESSAGE frame, or as much of it as there is room for. */
static bool put_message(struct step *s, size_t size, struct position position)
{
    struct journal_read *r = s->r;
    int e = r->skip ? -ENOBUFS : window_want(&s->w, size);

    if (e == 0) {
        put_frame(s, size);
    } else if (e != -ENOBUFS || s->out) {
        return end_for(s, e);
    } else {
        if (r->skip && (r->skip >= size || position_compare(position, r->skip_of) != 0))
            return end_lost(s);
        size_t part = (size_t)MIN((uint64_t)s->w.cap, size - r->skip);
        e = window_copy(&s->w, r->skip, s->w.buf, part);
        if (e < 0)
            return end_for(s, e);
        r->rest = r->skip ? part : 0;
        r->last = r->rest; /* it begins here, or does not */
        r->skip += part;
        r->skip_of = position;
        s->out = part;
        s->w.pos = s->w.end = s->w.cap; /* what stood in the window is overwritten */
        if (r->skip < size) {
            r->owed = size - r->skip;
            return end_with(s, READ_MORE);
        }
        r->skip = 0;
        window_pass(&s->w, size);
    }
    r->told = r->handed = position;
    r->messages++;
    return true;
}

/* ---- what is read ---- */

static bool pass(struct step *s, uint64_t size)
{
    window_pass(&s->w, size);
    return true;
}

/* The rest of the transaction inside which the subscriber stands will not come: something newer is here. The journal has a GAP
 * in its place, unless it never had that transaction. */
static bool is_interrupted(const struct journal_read *r, struct position p)
{
    return (r->resume || r->inside) && !is_same_transaction(r->told, p);
}

static bool end_interrupted(struct step *s)
{
    return end_with_gap(s, READ_GAP, end_of(s->r->told),
                        "the server never finished this transaction");
}

/* Whether the MESSAGE in the window matches; a negative errno. */
static int message_matches(struct step *s, size_t prefix_size)
{
    int e = window_want(&s->w, FIXED + prefix_size);

    if (e == 0)
        return journal_read_matches(s->r, (struct bytes){window_data(&s->w) + FIXED, prefix_size});
    if (e != -ENOBUFS)
        return e;
    uint8_t *prefix = malloc(prefix_size); /* one of the server's size: as long as it likes */
    if (!prefix)
        return -ENOMEM;
    e = window_copy(&s->w, FIXED, prefix, prefix_size);
    if (e == 0)
        e = journal_read_matches(s->r, (struct bytes){prefix, prefix_size});
    free(prefix);
    return e;
}

static bool on_message(struct step *s, size_t size)
{
    struct journal_read *r = s->r;
    int e = size < FIXED ? -EBADMSG : window_want(&s->w, FIXED);

    if (e < 0)
        return end_for(s, e);
    const uint8_t *body = window_data(&s->w) + FRAME_HEADER_SIZE;
    struct position p = position_decode(body);
    struct frame_begin begin = {.timeline = p.timeline,
                                .commit_lsn = p.lsn,
                                .commit_time = (int64_t)bytes_get_u64(body + 28),
                                .xid = bytes_get_u32(body + 24)};
    uint32_t prefix_size = bytes_get_u32(body + 44);
    bool transactional = p.index != POSITION_INDEX_NONTRANSACTIONAL;
    if (prefix_size > size - FIXED)
        return end_for(s, -EBADMSG);
    if (position_compare(p, r->told) <= 0)
        return pass(s, size);
    if (is_interrupted(r, p))
        return end_interrupted(s);
    int matches = r->everything ? 1 : message_matches(s, prefix_size);
    if (matches < 0)
        return end_for(s, matches);
    if (!matches) {
        r->told = p;
        return pass(s, size);
    }
    if (transactional && !r->inside) {
        if (r->skip)
            return end_lost(s);
        if (!put_begin(s, &begin))
            return false;
    }
    return put_message(s, size, p);
}

static bool on_commit(struct step *s, size_t size)
{
    struct journal_read *r = s->r;
    struct frame_commit f;
    int e = size != COMMIT_SIZE ? -EBADMSG : window_want(&s->w, size);

    if (e < 0)
        return end_for(s, e);
    uint8_t *frame = window_data(&s->w);
    struct frame_header h = {.size = FRAME_COMMIT_BODY, .type = FRAME_COMMIT, .flags = frame[5]};
    e = frame_commit_decode(h, frame + FRAME_HEADER_SIZE, &f);
    if (e < 0)
        return end_for(s, e);
    struct position p = {f.begin.timeline, f.begin.commit_lsn, POSITION_INDEX_END};
    if (position_compare(p, r->told) <= 0)
        return pass(s, size);
    if (is_interrupted(r, p))
        return end_interrupted(s);
    if (r->inside || r->resume) {
        if (r->skip)
            return end_lost(s);
        if (r->resume && !put_begin(s, &f.begin))
            return false;
        if (r->told.index == POSITION_INDEX_END - 1)
            frame[5] |= FRAME_FLAG_INCOMPLETE;
        put_frame(s, size);
        r->handed = p;
    } else {
        (void)pass(s, size);
    }
    r->told = p;
    r->inside = false;
    return true;
}

/* What is in quarantine is for nobody. */
static bool on_withheld(struct step *s, size_t size)
{
    struct journal_read *r = s->r;
    int e = size != FRAME_HEADER_SIZE + FRAME_WITHHELD_BODY ? -EBADMSG : window_want(&s->w, size);

    if (e < 0)
        return end_for(s, e);
    struct position p = position_decode(window_data(&s->w) + FRAME_HEADER_SIZE);
    if (position_compare(p, r->told) <= 0)
        return pass(s, size);
    if (is_interrupted(r, p))
        return end_interrupted(s);
    r->told = p;
    return pass(s, size);
}

/* Everybody is told of a gap. */
static bool on_gap(struct step *s, size_t size)
{
    struct journal_read *r = s->r;
    int e = size < FRAME_HEADER_SIZE + FRAME_GAP_FIXED ? -EBADMSG : window_want(&s->w, size);

    if (e < 0)
        return end_for(s, e == -ENOBUFS && s->out == 0
                              ? -EBADMSG
                              : e); /* none of ours is as long as a chunk */
    uint8_t *body = window_data(&s->w) + FRAME_HEADER_SIZE;
    struct position from = position_decode(body), to = position_decode(body + POSITION_SIZE);
    if (position_compare(to, r->told) <= 0)
        return pass(s, size);
    if (r->skip)
        return end_lost(s);
    if ((r->resume || r->inside) && position_compare(from, end_of(r->told)) > 0)
        return end_interrupted(s);
    if (position_compare(from, r->told) <= 0) { /* it stands inside the gap */
        position_encode(position_next(r->told), body);
        bytes_put_u64(body + 32, UINT64_MAX);
        bytes_put_u64(body + 40, UINT64_MAX);
    }
    put_frame(s, size);
    r->told = r->handed = to;
    r->inside = false;
    r->resume = false;
    return true;
}

static bool on_record(struct step *s, size_t size)
{
    struct record record;
    int e = size != RECORD_SIZE ? -EBADMSG : window_want(&s->w, size);

    if (e == 0)
        e = record_decode(window_data(&s->w), &record);
    if (e == 0 && record.size > s->w.limit - s->w.at - RECORD_SIZE)
        e = -EBADMSG;
    if (e < 0)
        return end_for(s, e);
    return pass(s, position_compare(record.last, s->r->told) <= 0 ? RECORD_SIZE + record.size
                                                                  : RECORD_SIZE);
}

static bool on_frame(struct step *s)
{
    struct frame_header h;
    int e = window_frame(&s->w, &h);

    if (e < 0)
        return end_for(s, e);
    size_t size = FRAME_HEADER_SIZE + (size_t)h.size;
    switch (h.type) {
    case FRAME_RECORD:
        return on_record(s, size);
    case FRAME_BEGIN: /* made again from what it begins, when something of that matches */
        return pass(s, size);
    case FRAME_MESSAGE:
        return on_message(s, size);
    case FRAME_COMMIT:
        return on_commit(s, size);
    case FRAME_GAP:
        return on_gap(s, size);
    case FRAME_WITHHELD:
        return on_withheld(s, size);
    default:
        return h.flags & FRAME_FLAG_IGNORABLE ? pass(s, size) : end_for(s, -EBADMSG);
    }
}

/* ---- segments ---- */

/* Takes the reference. */
static bool enter(struct step *s, struct segment *segment, bool locate)
{
    struct journal_read *r = s->r;
    struct position after = segment->header.after;
    int e = segment_verify(segment, false);

    if (e < 0) {
        snprintf(r->why, sizeof r->why, "%s: %s", segment->path, strerror(-e));
        r->error = -e;
        (void)segment_unref(segment);
        return end_with(s, READ_FAILED);
    }
    place_set(&r->place, segment,
              locate ? segment_locate(segment, r->told).offset : SEGMENT_HEADER_SIZE);
    window_go(&s->w, segment, r->place.offset);
    if (!r->inside && !r->resume && position_compare(after, r->told) > 0)
        r->told = after; /* nothing lies before it that was not looked at */
    return true;
}

/* To where `told` is. */
static bool find_place(struct step *s)
{
    struct journal_read *r = s->r;
    struct segment *segment = journal_segment_of(r->journal, r->told);

    if (!segment)
        return end_with(s, READ_END);
    struct position after = segment->header.after;
    if (position_compare(after, r->told) > 0) {
        (void)segment_unref(segment);
        return end_with_gap(s, READ_GAP, after, "the journal does not reach back so far any more");
    }
    return enter(s, segment, true);
}

/* All that can be read of this segment was. */
static bool at_limit(struct step *s)
{
    struct journal_read *r = s->r;
    struct segment *segment = r->place.segment, *next = journal_segment_after(r->journal, segment);
    uint64_t size = atomic_load_explicit(&segment->size,
                                         memory_order_acquire); /* final, if there is a next one */

    if (size != s->w.limit) {
        (void)segment_unref(next);
        s->w.limit = size;
        return true;
    }
    if (!next)
        return end_with(s, READ_END);
    uint64_t damaged_at = segment_damaged_at(segment);
    bool hole = next->header.sequence != segment->header.sequence + 1;
    struct position after = next->header.after;
    if (damaged_at) {
        (void)segment_unref(next);
        return end_damaged(s, damaged_at);
    }
    if (hole && position_compare(after, r->told) > 0) { /* retention passed this reader */
        (void)segment_unref(next);
        place_set(&r->place, NULL, 0);
        return end_with_gap(s, READ_GAP, after, "the journal does not reach back so far any more");
    }
    return enter(s, next, false);
}

static bool step_on(struct step *s)
{
    struct journal_read *r = s->r;

    if (!r->place.segment)
        return find_place(s);
    if (s->w.at > s->w.limit) { /* a failed sync took away what was read */
        journal_place_drop(&r->place);
        return true;
    }
    if (s->w.at == s->w.limit)
        return at_limit(s);
    if (s->scanned >= READER_SCAN_MAX)
        return end_with(s, READ_MORE);
    set_floor(s);
    uint64_t before = s->w.at;
    bool on = on_frame(s);
    s->scanned += MIN(s->w.at - before, (uint64_t)s->w.cap); /* what is leapt over costs nothing */
    if (r->place.segment)
        r->place.offset = s->w.at;
    return on;
}

void journal_read_step(struct journal_read *r)
{
    struct step s = {.r = r, .w = {.cap = r->chunk, .floor = RESERVE}};

    assert(r->chunk >= READER_CHUNK_MIN);
    r->end = READ_MORE;
    r->error = 0;
    r->why[0] = '\0';
    r->first = false;
    r->data = NULL;
    r->size = r->rest = r->last = 0;
    r->owed = 0;
    r->messages = 0;
    s.w.buf = malloc(r->chunk);
    if (!s.w.buf) {
        (void)end_failed(&s, ENOMEM, "no memory to read it");
        return;
    }
    int e = FAULT("journal-read");
    if (e < 0)
        (void)end_failed(&s, -e, "a read fails");
    else if (r->place.segment)
        window_go(&s.w, r->place.segment, r->place.offset);
    while (e >= 0 && step_on(&s))
        ;
    if (s.out == 0) {
        free(s.w.buf);
        return;
    }
    r->data = s.w.buf;
    r->size = s.out;
    if (r->end == READ_FAILED) { /* first what could be read; the next step says why it is no more */
        r->end = READ_MORE;
        r->error = 0;
        r->why[0] = '\0';
    }
    if (s.out < r->chunk / 2) { /* it may wait for long */
        uint8_t *data = realloc(r->data, s.out);
        r->data = data ? data : r->data;
    }
}

void journal_read_deinit(struct journal_read *r)
{
    journal_place_drop(&r->place);
    free(r->data);
    r->data = NULL;
    free(r->verdicts);
    r->verdicts = NULL;
}
