/* SPDX-License-Identifier: PostgreSQL */
/*
 * A SUBSCRIBE passes these, in this order, and waits at each for as long as it takes:
 *
 *   the name                  can be one; exists, or the start says where a new one begins
 *   the source                streams; or may not go on, or cannot keep what it reads: then the journal is served
 *   durable: the bound        after an unclean stop, how far messages may have been sent (durables_bound)
 *   the name's holder         is nobody, or is taken over from
 *   a start by time           is looked up in the journal, by a worker
 *   a start by position       is not beyond the server's WAL; a look-up of that may be asked for
 *   durable: the catalog      has the name and its filters on disk
 *   a gap that ends inside
 *   a transaction             its rest is counted in the journal, by a worker: it is swallowed too
 *
 * From the place where it gets its name on, it holds it (s->durable), although not yet answered: another SUBSCRIBE of the
 * name is refused, or takes over.
 */
#include "subscribe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "journal/reader.h"
#include "names.h"
#include "session_read.h"

/* What a worker looks up for one session. It outlives both the session and the SUBSCRIBE if need be. */
struct subscribe_job {
    uv_work_t work;
    struct router *router;
    struct journal *journal; /* one reference */
    uint64_t session;
    bool by_time;
    int64_t time;            /* in: that is looked for … */
    struct position found;   /* … and found */
    struct journal_measure gap, end; /* or: a gap's end, and the end of the transaction inside which it lies */
    int error;
};

static void refuse(struct router *r, struct session *s, const char *code, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* The answer is no; another SUBSCRIBE may follow. */
static void refuse(struct router *r, struct session *s, const char *code, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    subscribe_release(r, s);
    session_error(s, code, text, false);
}

/* ---- positions ---- */

struct position subscribe_farthest(const struct router *r)
{
    uint64_t read = MAX(r->source.continuity.told, r->newest.lsn);

    return (struct position){r->source.continuity.timeline, MAX(r->source.facts.wal_lsn, read), POSITION_INDEX_END};
}

static struct position now_of(const struct router *r)
{
    return position_later(builder_now(&r->source.stream.builder), journal_end(r->journal)->last);
}

struct position subscribe_oldest(const struct router *r)
{
    struct segment_info first;

    if (journal_segments(r->journal) == 0)
        return now_of(r);
    journal_segment_info(r->journal, 0, &first);
    return journal_oldest_start(first.after);
}

/* ---- what workers look up ---- */

static void on_work(uv_work_t *work)
{
    struct subscribe_job *job = work->data;

    if (job->by_time) {
        job->error = journal_find_time(job->journal, job->time, &job->found);
        return;
    }
    journal_measure(job->journal, &job->gap);
    journal_measure(job->journal, &job->end);
    job->error = job->gap.error ? job->gap.error : job->end.error;
}

static void finish(struct router *r, struct session *s, const struct subscribe_job *job);

static void on_looked_up(uv_work_t *work, int status)
{
    struct subscribe_job *job = work->data;
    struct router *r = job->router;
    struct session *s = r->sessions;

    (void)status;
    while (s && s->id != job->session)
        s = s->next;
    if (s && s->looks_up) {
        s->looks_up = false;
        if (s->state == SESSION_WAITING && job->by_time && job->error) {
            refuse(r, s, CONTROL_ERROR_JOURNAL, "the router cannot read its journal: %s", strerror(-job->error));
        } else if (s->state == SESSION_WAITING && job->by_time) {
            s->subscribe.start = CONTROL_START_POSITION;
            s->subscribe.position = job->found;
            subscribe_answer(r, s, true);
        } else if (s->state == SESSION_WAITING && s->durable) {
            finish(r, s, job);
        }
        router_flush(r);
    }
    (void)journal_unref(job->journal);
    free(job);
}

static struct subscribe_job *job_new(struct router *r, const struct session *s)
{
    struct subscribe_job *job = calloc(1, sizeof *job);

    if (!job)
        return NULL;
    job->work.data = job;
    job->router = r;
    job->session = s->id;
    job->journal = journal_ref(r->journal);
    return job;
}

/* Takes the job over. */
static void look_up(struct router *r, struct session *s, struct subscribe_job *job)
{
    if (job && uv_queue_work(r->loop, &job->work, on_work, on_looked_up) == 0) {
        s->looks_up = true;
        return;
    }
    if (job)
        (void)journal_unref(job->journal);
    free(job);
    session_close(s, "no memory");
}

static void look_up_time(struct router *r, struct session *s)
{
    struct subscribe_job *job = job_new(r, s);

    if (job) {
        job->by_time = true;
        job->time = s->subscribe.time;
    }
    look_up(r, s, job);
}

/* ---- the end: SUBSCRIBED ---- */

static struct position end_of_transaction(struct position inside)
{
    return (struct position){inside.timeline, inside.lsn, POSITION_INDEX_END};
}

static bool is_open(const struct router *r, struct position inside)
{
    const struct journal_end *end = journal_end(r->journal);

    return end->inside && end->last.timeline == inside.timeline && end->last.lsn == inside.lsn;
}

/* What was dropped of a name is told. A gap swallows the rest of a transaction inside which it ends. */
static void tell_gap(struct router *r, struct session *s, const struct durable_gap *gap, const struct subscribe_job *job)
{
    uint64_t messages = gap->messages, bytes = gap->bytes;
    struct position to = gap->to;

    if (position_is_inside(to)) {
        bool counted = job && !job->error && !is_open(r, to) && job->end.messages >= job->gap.messages;

        messages = !counted || messages == UINT64_MAX ? UINT64_MAX : messages + (job->end.messages - job->gap.messages);
        bytes = !counted || bytes == UINT64_MAX ? UINT64_MAX : bytes + (job->end.bytes - job->gap.bytes);
        to = end_of_transaction(to);
    }
    session_send_gap(s, &r->pool, to, messages, bytes, "retention has passed this");
}

static bool may_answer(const struct router *r)
{
    switch (r->source.state) {
    case SOURCE_STREAMING:
    case SOURCE_SUSPENDED: /* a full disk: those who read what is there are who make room */
    case SOURCE_GIVEN_UP:
        return !journal_end(r->journal)->empty;
    default:
        return false; /* names_streaming comes back to it */
    }
}

/* Served without ever having streamed. */
void subscribe_learn_identity(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);

    if (!r->identity[0] && may_answer(r))
        (void)snprintf(r->identity, sizeof r->identity, "%" PRIu64 "/%" PRIu32, end->system_identifier, end->era);
}

static void start(struct router *r, struct session *s, struct position at, const struct subscribe_job *job)
{
    const struct durable *d = s->durable;
    const struct control_subscribe *c = &s->subscribe;

    subscribe_learn_identity(r);
    struct control_subscribed subscribed = {
        .position = at,
        .stored = s->stored,
        .redelivered_to = d && position_compare(d->sent, at) > 0 ? d->sent : (struct position){0},
        .identity = bytes_of_text(r->identity),
        .timeline = r->source.continuity.timeline,
    };

    if (route_add(r->route, &s->member, c->filters, c->n_filters, c->exclusions, c->n_exclusions) < 0) {
        session_close(s, "no memory");
        return;
    }
    s->subscribed = true;
    log_line(r->log, LOG_DEBUG, "session.subscribed", "A client subscribed.", LOG_U64("session", s->id),
             LOG_I64("pid", s->pid), LOG_STR("subscription", d ? (const char *)d->name.data : ""),
             LOG_U64("filters", c->n_filters), LOG_U64("exclusions", c->n_exclusions));
    session_subscribed(s, &subscribed);
    if (!d)
        return;
    if (s->resume && !d->resumes) { /* it was passed over to there, and has had no part of that transaction */
        s->resume = false;
        session_reseat(s, 0, (struct position){0});
    }
    if (d->gap.is)
        tell_gap(r, s, &d->gap, job);
}

/* It holds its name; once that is on disk, it is answered. `job`: what was counted of a gap. */
static void finish(struct router *r, struct session *s, const struct subscribe_job *job)
{
    const struct durable *d = s->durable;

    if (!durable_is_stored(d))
        return; /* subscribe_stored comes back to it */
    bool count = d->gap.is && position_is_inside(d->gap.to) && d->gap.messages != UINT64_MAX;
    if (count && (!job || position_compare(job->gap.at, d->gap.to) != 0)) {
        struct subscribe_job *next = job_new(r, s);

        if (next) {
            next->gap.at = d->gap.to;
            next->end.at = end_of_transaction(d->gap.to);
        }
        look_up(r, s, next);
        return;
    }
    start(r, s, d->cursor, count ? job : NULL);
}

/* ---- holding ---- */

/* Whoever held the name is told, and says nothing more. */
static void take_over(struct router *r, struct durable *d, pid_t pid)
{
    struct session *old = d->holder;
    char text[128];

    old->durable = NULL;
    durable_sent(r->durables, d, session_sent(old));
    (void)snprintf(text, sizeof text, "process %ld has taken the durable subscription over", (long)pid);
    session_error(old, CONTROL_ERROR_TAKEN_OVER, text, true);
    session_flush(old);
}

/* False: it was answered, or closed. */
static bool make_or_change(struct router *r, struct session *s, struct durable *d, struct position at)
{
    const struct control_subscribe *c = &s->subscribe;
    uint64_t filters = d ? d->filters_made : 0;
    int e;

    if (d)
        e = durable_set_filters(r->durables, d, c->filters, c->n_filters, c->exclusions, c->n_exclusions);
    else
        e = durables_add(r->durables, c->name, c->filters, c->n_filters, c->exclusions, c->n_exclusions, at, &d);
    if (e < 0)
        session_close(s, "no memory");
    else if (e > 0)
        refuse(r, s, CONTROL_ERROR_LIMIT, "%s", durable_fault_text((enum durable_fault)e));
    if (e)
        return false;
    if (!filters)
        durable_set_maker(d, s->uid);
    if (filters && filters != d->filters_made)
        log_line(r->log, LOG_INFO, "durable.filters",
                 "A durable subscription has other filters than before: they are for all that it has not acknowledged.",
                 LOG_STR("subscription", (const char *)d->name.data), LOG_U64("filters", c->n_filters),
                 LOG_U64("exclusions", c->n_exclusions), LOG_I64("pid", s->pid), LOG_I64("uid", s->uid));
    if (s->stored)
        return true;
    if (c->override && position_compare(durable_cursor(r->durables, d), at) != 0)
        durable_move(r->durables, d, at);
    return true;
}

static void hold(struct router *r, struct session *s, struct position at)
{
    const struct bytes name = s->subscribe.name;
    struct durable *d = durables_find(r->durables, name);

    if (!make_or_change(r, s, d, at))
        return;
    d = durables_find(r->durables, name);
    if (d->holder)
        take_over(r, d, s->pid);
    durable_hold(r->durables, d, s, s->pid);
    s->durable = d;
    finish(r, s, NULL);
}

void subscribe_release(struct router *r, struct session *s)
{
    struct durable *d = s->durable;

    s->durable = NULL;
    if (!d)
        return;
    if (!s->subscribed && !d->on_disk) { /* nobody was ever told that it is there */
        d->holder = NULL;
        durables_remove(r->durables, d);
        return;
    }
    if (s->subscribed)
        durable_sent(r->durables, d, session_sent(s));
    durable_release(r->durables, d, s->subscribed && s->was_live && !s->owes);
}

/* ---- the steps before ---- */

/* False: it was refused. */
static bool check_name(struct router *r, struct session *s, const struct durable *d)
{
    const struct control_subscribe *c = &s->subscribe;

    if (c->name.size && !control_name_is_good(c->name)) {
        refuse(r, s, CONTROL_ERROR_INVALID, "the name of a durable subscription is 1 to %d bytes of visible characters, without blanks",
               CONTROL_NAME_MAX);
        return false;
    }
    if (c->start == CONTROL_START_STORED && !c->name.size) {
        refuse(r, s, CONTROL_ERROR_INVALID, "only a durable subscription has a stored position");
        return false;
    }
    if (c->start == CONTROL_START_STORED && !d) {
        refuse(r, s, CONTROL_ERROR_UNKNOWN_NAME, "there is no durable subscription of this name");
        return false;
    }
    if (d && d->holder && !c->take_over) {
        refuse(r, s, CONTROL_ERROR_HELD, "process %ld holds the durable subscription", (long)d->holder_pid);
        return false;
    }
    return true;
}

/* Where the SUBSCRIBE begins, unless its name says so. False: it waits, or was refused. */
static bool find_start(struct router *r, struct session *s, bool final, struct position *ret)
{
    const struct control_subscribe *c = &s->subscribe;

    switch (c->start) {
    case CONTROL_START_STORED: /* a name that exists: not asked */
    case CONTROL_START_NOW:
        *ret = now_of(r);
        return true;
    case CONTROL_START_OLDEST:
        *ret = subscribe_oldest(r);
        return true;
    case CONTROL_START_TIME:
        look_up_time(r, s);
        return false;
    case CONTROL_START_POSITION:
        break;
    }
    struct position known = position_later(subscribe_farthest(r), journal_end(r->journal)->last);
    if (position_compare(c->position, known) <= 0) {
        *ret = c->position;
        return true;
    }
    if (!final && r->source.state == SOURCE_STREAMING)
        source_look_up(&r->source); /* on_facts comes back to it, or on_tick */
    else
        refuse(r, s, CONTROL_ERROR_INVALID, "the position lies beyond the server's WAL");
    return false;
}

void subscribe_answer(struct router *r, struct session *s, bool final)
{
    const struct control_subscribe *c = &s->subscribe;
    struct position at;

    if (s->state != SESSION_WAITING || s->looks_up)
        return;
    if (s->durable) {
        finish(r, s, NULL);
        return;
    }
    struct durable *d = c->name.size ? durables_find(r->durables, c->name) : NULL;
    if (!check_name(r, s, d))
        return;
    if (r->source.state == SOURCE_GIVEN_UP && journal_end(r->journal)->empty) {
        session_error(s, CONTROL_ERROR_SOURCE, buf_str(&r->source.last_error), true);
        return;
    }
    if (!may_answer(r))
        return;
    if (r->source.state == SOURCE_SUSPENDED && r->source.has_facts)
        names_streaming(r); /* it may take long to stream, and the server was asked */
    if (c->name.size && !durables_is_bound(r->durables))
        return;
    s->stored = d && (!c->override || c->start == CONTROL_START_STORED);
    if (s->stored)
        at = d->cursor; /* but see hold */
    else if (!find_start(r, s, final, &at))
        return;
    else if (d && durable_is_reached(r->durables, d, at, c->filters, c->n_filters, c->exclusions, c->n_exclusions))
        s->stored = true; /* to move it back would make a gap of what it was passed over */
    if (c->name.size)
        hold(r, s, at);
    else
        start(r, s, at, NULL);
}

void subscribe_stored(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        if (s->state == SESSION_WAITING && s->durable && !s->looks_up)
            finish(r, s, NULL);
    }
}

/* ---- acknowledgements ---- */

void subscribe_acked(struct router *r, struct session *s, bool confirm)
{
    if (s->durable)
        durable_acked(r->durables, s->durable, s->acked, confirm);
    else if (confirm) /* it has no cursor that could be lost */
        session_confirm(s, s->acked);
}

void subscribe_float(struct router *r, struct session *s)
{
    if (s->durable && s->state == SESSION_ACTIVE && !s->owes && !s->inside && !s->resume)
        durable_float(r->durables, s->durable, s->told);
}
