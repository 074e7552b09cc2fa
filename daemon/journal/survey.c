/* SPDX-License-Identifier: PostgreSQL */
/*
 * Questions that are answered by looking at the journal without handing anything out: whole records are leapt over by what their
 * headers say, and frames are looked at only in those where the answer lies.
 */
#include "journal/reader.h"

#include <errno.h>
#include <stdlib.h>

#include "journal/segment.h"
#include "journal/window.h"

#define FIXED (FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED)
/* Enough that a record of the usual size is read at once. */
#define SURVEY_WINDOW (128u << 10)

/* What is called in passing. Each answers whether to go on. */
struct surveyor {
    void *owner;
    /* *ret_pass: its frames need not be looked at */
    bool (*record)(void *owner, const struct record *r, bool *ret_pass);
    /* `f` has neither prefix nor content, but their sizes */
    bool (*message)(void *owner, const struct frame_message *f);
    bool (*end)(void *owner, struct position p, bool gap); /* COMMIT, GAP; NULL: of no interest */
    bool prefixes;                                         /* the prefix is there */
};

static int survey_message(struct window *w, size_t size, const struct surveyor *v,
                          uint8_t **scratch, bool *ret_on)
{
    int r = size < FIXED ? -EBADMSG : window_want(w, FIXED);

    if (r < 0)
        return r;
    const uint8_t *body = window_data(w) + FRAME_HEADER_SIZE;
    uint32_t prefix_size = bytes_get_u32(body + 44);
    struct frame_message f = {
        .position = position_decode(body),
        .received_time = (int64_t)bytes_get_u64(body + 36),
        .prefix.size = prefix_size,
    };
    if (prefix_size > size - FIXED)
        return -EBADMSG;
    f.content.size = size - FIXED - prefix_size;
    if (v->prefixes) {
        r = window_want(w, FIXED + prefix_size);
        f.prefix.data = window_data(w) + FIXED;
        if (r == -ENOBUFS) {
            free(*scratch);
            *scratch = malloc(prefix_size);
            f.prefix.data = *scratch;
            r = *scratch ? window_copy(w, FIXED, *scratch, prefix_size) : -ENOMEM;
        }
    }
    if (r == 0)
        *ret_on = v->message(v->owner, &f);
    return r;
}

static int survey_end(struct window *w, uint8_t type, size_t size, const struct surveyor *v,
                      bool *ret_on)
{
    bool gap = type == FRAME_GAP;
    size_t fixed = FRAME_HEADER_SIZE + (gap ? FRAME_GAP_FIXED : FRAME_COMMIT_BODY);
    int r = !v->end ? 0 : size < fixed ? -EBADMSG : window_want(w, fixed);

    if (r < 0 || !v->end)
        return r;
    const uint8_t *body = window_data(w) + FRAME_HEADER_SIZE;
    struct position p = {bytes_get_u32(body), bytes_get_u64(body + 4), POSITION_INDEX_END};
    *ret_on = v->end(v->owner, gap ? position_decode(body + POSITION_SIZE) : p, gap);
    return 0;
}

/* One frame. 0, or a negative errno. */
static int survey_frame(struct window *w, const struct surveyor *v, uint8_t **scratch, bool *ret_on)
{
    struct frame_header h;
    int r = window_frame(w, &h);

    if (r < 0)
        return r;
    uint64_t size = FRAME_HEADER_SIZE + (uint64_t)h.size;
    if (h.type == FRAME_RECORD) {
        struct record record;
        bool passes = false;

        r = size != RECORD_SIZE ? -EBADMSG : window_want(w, RECORD_SIZE);
        if (r == 0)
            r = record_decode(window_data(w), &record);
        if (r == 0 && record.size > w->limit - w->at - RECORD_SIZE)
            r = -EBADMSG;
        if (r < 0)
            return r;
        *ret_on = v->record(v->owner, &record, &passes);
        size += passes ? record.size : 0;
    } else if (h.type == FRAME_MESSAGE) {
        r = survey_message(w, (size_t)size, v, scratch, ret_on);
    } else if (h.type == FRAME_COMMIT || h.type == FRAME_GAP) {
        r = survey_end(w, h.type, (size_t)size, v, ret_on);
    }
    window_pass(w, size);
    return r;
}

/* From `offset` of a segment, which is verified, on to its end; *ret_on: nobody said to end. */
static int survey_segment(struct window *w, struct segment *s, uint64_t offset,
                          const struct surveyor *v, bool *ret_on)
{
    uint8_t *scratch = NULL;
    int r = 0;

    *ret_on = true;
    for (window_go(w, s, offset); r == 0 && *ret_on && w->at < w->limit;)
        r = survey_frame(w, v, &scratch, ret_on);
    free(scratch);
    /* a failed write has taken away what was read here: there it ends */
    if (r < 0 && atomic_load_explicit(&s->size, memory_order_acquire) < w->limit)
        return 0;
    return r == -ENOBUFS ? -EBADMSG : r; /* all that is asked for is small */
}

/* The same, and on through the segments behind it. Takes the reference. */
static int survey(struct journal *j, struct segment *s, uint64_t offset, const struct surveyor *v)
{
    struct window w = {.buf = malloc(SURVEY_WINDOW), .cap = SURVEY_WINDOW};
    bool on = true;
    int r = w.buf ? 0 : -ENOMEM;

    while (r == 0 && s && on) {
        r = survey_segment(&w, s, offset, v, &on);
        if (r < 0 || !on)
            break;
        struct segment *next = journal_segment_after(j, s);
        (void)segment_unref(s);
        s = next;
        offset = SEGMENT_HEADER_SIZE;
        if (s)
            r = segment_verify(s, false);
    }
    (void)segment_unref(s);
    free(w.buf);
    return r;
}

/* ---- measuring ---- */

static bool measure_record(void *owner, const struct record *r, bool *ret_pass)
{
    struct journal_measure *m = owner;
    bool before = position_compare(r->last, m->at) <= 0; /* or it has no entries */

    m->messages = r->messages_before + (before ? r->messages : 0);
    m->bytes = r->bytes_before + (before ? r->bytes : 0);
    *ret_pass = before;
    return true;
}

static bool measure_message(void *owner, const struct frame_message *f)
{
    struct journal_measure *m = owner;

    if (position_compare(f->position, m->at) > 0) {
        m->received_time = f->received_time;
        return false;
    }
    m->messages++;
    m->bytes += f->content.size;
    return true;
}

void journal_measure(struct journal *j, struct journal_measure *m)
{
    const struct surveyor v = {.owner = m, .record = measure_record, .message = measure_message};
    struct segment *s = journal_segment_of(j, m->at);

    m->messages = m->bytes = 0;
    m->received_time = 0;
    m->error = 0;
    if (!s)
        return;
    int r = segment_verify(s, false);
    if (r < 0) {
        (void)segment_unref(s);
        m->error = -r;
        return;
    }
    struct segment_mark mark = segment_locate(s, m->at);
    m->messages = mark.messages;
    m->bytes = mark.bytes;
    m->error = -survey(j, s, mark.offset, &v);
}

/* ---- by time ---- */

struct search {
    int64_t time;
    struct position before; /* the last one that was passed */
    bool found;
};

static bool search_record(void *owner, const struct record *r, bool *ret_pass)
{
    struct search *x = owner;

    *ret_pass = r->messages == 0 || r->received_time < x->time;
    if (*ret_pass && !position_is_zero(r->last))
        x->before = r->last;
    return true;
}

static bool search_message(void *owner, const struct frame_message *f)
{
    struct search *x = owner;
    struct position begin = {f->position.timeline, f->position.lsn, 0};

    if (f->received_time < x->time) {
        x->before = f->position;
        return true;
    }
    if (f->position.index != POSITION_INDEX_NONTRANSACTIONAL)
        x->before = begin; /* all of its transaction was committed later */
    x->found = true;
    return false;
}

static bool search_end(void *owner, struct position p, bool gap)
{
    (void)gap;
    struct search *x = owner;

    x->before = p;
    return true;
}

int journal_find_time(struct journal *j, int64_t time, struct position *ret)
{
    struct search x = {.time = time};
    const struct surveyor v = {
        .owner = &x, .record = search_record, .message = search_message, .end = search_end};
    struct segment *s = journal_segment_of_time(j, time), *first = journal_segment_first(j);

    if (!s || !first) {
        (void)segment_unref(s);
        (void)segment_unref(first);
        return -ENODATA;
    }
    struct position after = first->header.after;
    (void)segment_unref(first);
    int r = segment_verify(s, false);
    if (r < 0) {
        (void)segment_unref(s);
        return r;
    }
    struct segment_mark mark = segment_locate_time(s, time);
    x.before = mark.before;
    r = survey(j, s, mark.offset, &v);
    if (r < 0)
        return r;
    if (!x.found && x.before.index != POSITION_INDEX_END)
        x.before.index =
            0; /* the journal ends inside a transaction, which will be committed later */
    *ret = position_compare(x.before, after) > 0 ? x.before : journal_oldest_start(after);
    return 0;
}

/* ---- what a name has in the oldest segment ---- */

struct probing {
    struct journal_probe *probes;
    size_t n;
};

static bool probe_record(void *owner, const struct record *r, bool *ret_pass)
{
    struct probing *x = owner;

    *ret_pass = true;
    for (size_t i = 0; i < x->n; i++)
        *ret_pass &= position_compare(r->last, x->probes[i].after) <= 0;
    return true;
}

static bool probe_message(void *owner, const struct frame_message *f)
{
    struct probing *x = owner;

    for (size_t i = 0; i < x->n; i++) {
        struct journal_probe *p = &x->probes[i];
        if (position_compare(f->position, p->after) <= 0)
            continue;
        p->messages++;
        p->bytes += f->content.size;
        p->matches = p->matches || filters_match(p->filters, p->n_filters, p->exclusions,
                                                 p->n_exclusions, f->prefix);
    }
    return true;
}

static bool probe_end(void *owner, struct position p, bool gap)
{
    struct probing *x = owner;

    for (size_t i = 0; gap && i < x->n; i++)
        x->probes[i].gap = x->probes[i].gap || position_compare(p, x->probes[i].after) > 0;
    return true;
}

void journal_probe_first(struct journal *j, struct journal_probe *probes, size_t n)
{
    struct probing x = {probes, n};
    const struct surveyor v = {.owner = &x,
                               .record = probe_record,
                               .message = probe_message,
                               .end = probe_end,
                               .prefixes = true};
    struct window w = {.buf = malloc(SURVEY_WINDOW), .cap = SURVEY_WINDOW};
    struct segment *s = journal_segment_first(j);
    bool on;

    for (size_t i = 0; i < n; i++) {
        probes[i].matches = false;
        probes[i].gap = false;
        probes[i].messages = probes[i].bytes = 0;
    }
    int r = w.buf ? 0 : -ENOMEM;
    if (s && r == 0)
        r = segment_verify(s, false);
    if (s && r == 0)
        r = survey_segment(&w, s, SEGMENT_HEADER_SIZE, &v, &on);
    /* behind the damage anything may have stood */
    bool damaged = s && r == 0 && segment_damaged_at(s) != 0;
    (void)segment_unref(s);
    free(w.buf);
    for (size_t i = 0; i < n; i++) {
        probes[i].gap |= damaged;
        probes[i].error = -r;
    }
}
