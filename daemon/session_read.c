/* SPDX-License-Identifier: PostgreSQL */
/*
 * Every subscription is a cursor on the journal, and live delivery a short cut.
 *
 *               caught up: all that is written was looked at
 *      BEHIND ────────────────────────────────────────────────► LIVE
 *        │  ◄──────────────────────────────────────────────────   │
 *        │      the outbox is full, or memory is short            │
 *   chunks of the journal,                           ranges of batches,
 *   one at a time, by a worker                       as they come (deliver.c)
 *
 * Who is behind has a `struct session_read`, who is live has none. The change to live is one step of
 * the loop: what is written was read up to `told`, what is not yet written is in the journal's pending batches, which the
 * owner delivers there and then. So nothing lies between, and what lies in both is told apart by `told`.
 *
 * Falling behind by itself drops nothing: a full outbox is sent first. Memory is what makes a session let go: it drops all that can be
 * read again, even the rest of the message that it is sending, and stands where its socket stands. It reads again when that takes
 * something; so who does not read costs nothing but its place, and a job never waits for a peer.
 *
 *   a chunk is asked for    when half of one or less waits, so that disk and socket work at the same time
 *   … and is read           when fewer than SESSION_READS_AT_ONCE are, and SESSION_READS_BYTES leave room: else the session
 *                           that has waited longest for its socket lets go; and first one of the same user, as long as
 *                           that has more than is one's (account.h)
 *
 * A job has its own object, which outlives its session if need be, and its own copy of the filters.
 */
#include "session_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "journal/reader.h"

struct session_read {
    uv_work_t work;
    struct session_reads *reads;
    struct session *session;   /* NULL: it was closed while the worker read */
    struct account *account;   /* while that reads: to which the chunk is charged, one reference; or NULL */
    struct logger *log;        /* outlives both */
    struct session_read *next; /* that waits for its turn */
    bool waits;                /* for its turn */
    bool running;              /* what follows is the worker's … */
    bool stale;                /* … and its result is of no use: it begins anew */
    bool at_end;               /* nothing can be done before the journal has written more */
    bool failed;               /* reading on failed, which is told once everything before that was written */
    uint64_t skip;             /* where it begins anew: so much of … */
    struct position skip_of;   /* … the frame there was sent */
    struct journal_read read;
    struct filter *filters, *exclusions; /* owned copies; NULL before the first job */
};

static struct session_read *session_read_free(struct session_read *x)
{
    if (!x)
        return NULL;
    journal_read_deinit(&x->read);
    (void)journal_unref(x->read.journal);
    free(x->filters);
    free(x->exclusions);
    free(x);
    return NULL;
}

void session_reads_init(struct session_reads *reads, uv_loop_t *loop, struct journal *journal,
                        struct session *const *sessions)
{
    *reads = (struct session_reads){.loop = loop, .journal = journal, .sessions = sessions};
}

void session_reads_deinit(struct session_reads *reads)
{
    batch_pool_deinit(&reads->pool);
}

/* ---- behind ---- */

/* The reader stands where the session stands. */
static void begin_anew(struct session_read *x)
{
    const struct session *s = x->session;

    journal_place_drop(&x->read.place);
    x->read.told = s->told;
    x->read.handed = s->passed_over ? s->said : s->told;
    x->read.inside = s->inside;
    x->read.resume = s->resume;
    x->read.skip = x->skip;
    x->read.skip_of = x->skip_of;
    x->stale = x->failed = false;
}

void session_fall_behind(struct session *s)
{
    if (!s->reads || s->read)
        return;
    struct session_read *x = calloc(1, sizeof *x);
    if (!x) {
        session_error(s, CONTROL_ERROR_TOO_SLOW,
                      "the router has no memory to let this subscriber catch up", true);
        return;
    }
    x->reads = s->reads;
    x->session = s;
    x->log = s->log;
    x->work.data = x;
    x->read.journal = journal_ref(s->reads->journal);
    x->read.everything = s->member.everything;
    s->read = x;
    begin_anew(x);
    s->must_flush = true;
}

void session_reseat(struct session *s, uint64_t skip, struct position of)
{
    struct session_read *x = s->read;

    if (!x)
        return;
    x->skip = skip;
    x->skip_of = of;
    x->at_end = false;
    if (x->running)
        x->stale = true;
    else
        begin_anew(x);
}

struct position session_sent(const struct session *s)
{
    const struct session_read *x = s->read;
    uint64_t skip = !x ? 0 : x->running ? x->skip : x->read.skip;

    struct position sent = position_later(s->told, s->sent);

    return skip ? position_later(sent, x->running ? x->skip_of : x->read.skip_of) : sent;
}

void session_reseat_ahead(struct session *s)
{
    struct session_read *x = s->read;

    if (!x)
        return;
    if (x->running) /* what it brings is of no use: as when it began */
        session_reseat(s, x->skip, x->skip_of);
    else
        session_reseat(s, x->read.skip, x->read.skip_of);
}

static void stop_waiting(struct session_read *x)
{
    struct session_reads *reads = x->reads;
    struct session_read **at = &reads->first, *before = NULL;

    if (!x->waits)
        return;
    while (*at != x) {
        before = *at;
        at = &before->next;
    }
    *at = x->next;
    if (reads->last == x)
        reads->last = before;
    x->next = NULL;
    x->waits = false;
}

void session_read_end(struct session *s)
{
    struct session_read *x = s->read;

    s->read = NULL;
    if (!x)
        return;
    stop_waiting(x);
    x->session = NULL;
    if (!x->running)
        (void)session_read_free(x);
}

void session_let_go(struct session *s)
{
    struct outbox_rest rest;

    if (!s->reads)
        return;
    session_fall_behind(s);
    if (!s->read) { /* it is let go for good; nobody is to ask again meanwhile */
        session_block(s);
        return;
    }
    session_note_place(s);
    outbox_let_go(&s->outbox, &s->reads->pool, journal_written(s->reads->journal), &rest);
    s->told = rest.place.told;
    s->inside = rest.place.inside;
    s->resume = rest.place.resume;
    s->messages -= rest.messages;
    s->chunk = MAX(s->chunk / 2, (size_t)SESSION_CHUNK_MIN);
    stop_waiting(s->read);
    session_reseat(s, rest.skip, rest.skip_of);
    session_block(s);
}

/* Whether it can let go, and has waited for longer than the other one, if there is one. */
static bool waits_longer(const struct session *s, const struct session *other)
{
    return s->reads && !s->blocked && (!other || s->took_at < other->took_at);
}

struct session *session_longest_waiting(struct session *list, const struct batch_pool *pool)
{
    struct session *longest = NULL;

    for (struct session *s = list; s; s = s->next)
        if (waits_longer(s, longest) && outbox_holds(&s->outbox, pool))
            longest = s;
    return longest;
}

struct session *session_longest_waiting_of(struct session *list, const struct account *account)
{
    struct session *longest = NULL;

    for (struct session *s = list; s; s = s->next)
        if (s->account == account && s->outbox.n && waits_longer(s, longest))
            longest = s;
    return longest;
}

void session_wake(struct session *s)
{
    if (!s->read || !s->read->at_end)
        return;
    s->read->at_end = false;
    s->must_flush = true;
}

/* ---- live ---- */

/* True: it is live. */
static bool catch_up(struct session *s)
{
    struct session_read *x = s->read;

    s->read = NULL;
    if (s->ops->caught_up(s->owner, s)) { /* may have fallen behind again */
        (void)session_read_free(x);
        return true;
    }
    s->read = x;
    x->at_end = true;
    return false;
}

/* ---- a job ---- */

static void on_work(uv_work_t *work)
{
    struct session_read *x = work->data;

    journal_read_step(&x->read);
}

/* What was read for a session that leaves: of use is the rest of the frame that it was being sent. */
static void keep_rest(struct journal_read *r)
{
    if (r->rest < r->size)
        r->owed = 0;
    r->size = r->last = r->rest;
    r->messages = r->owed == 0 && r->rest ? 1 : 0;
    if (r->size == 0) {
        free(r->data);
        r->data = NULL;
    }
}

static void queue_chunk(struct session *s, struct journal_read *r)
{
    struct batch *batch = batch_wrap(&s->reads->pool, r->data, r->size);

    r->data = NULL;
    session_note_place(s);
    if (session_queued(s, batch ? outbox_add_chunk(&s->outbox, batch, r->rest, r->last, r->owed)
                                : -ENOMEM))
        s->messages += r->messages;
    (void)batch_unref(batch);
}

static void tell_gap(struct session *s, const struct journal_read *r)
{
    if (r->skip)
        session_close(s,
                      "the rest of a message that was being sent is not in the journal any more");
    else if (s->state == SESSION_ACTIVE)
        session_put_gap(s, &s->reads->pool, &r->gap);
}

/* Whoever has met it first says so, and nobody else will: also when its own result is of no use any more. */
static void log_damage(const struct session_read *x)
{
    if (x->read.first)
        log_line(x->log, LOG_ERROR, "journal.damaged",
                 "The journal is damaged: what was written there is lost, and subscribers are told "
                 "of a gap.",
                 LOG_STR("where", x->read.why));
}

static void let_go(struct session *s, const struct journal_read *r)
{
    char why[128];

    (void)snprintf(why, sizeof why, "the router cannot read its journal: %s", strerror(r->error));
    bool is_new = s->state != SESSION_ACTIVE || s->ops->was_read(s->owner, s, r->told, why);
    log_line(s->log, is_new ? LOG_ERROR : LOG_DEBUG, "journal.unreadable",
             "The journal cannot be read; a subscriber is let go.", LOG_U64("session", s->id),
             LOG_STR("where", r->why), LOG_STR("error", strerror(r->error)));
    if (r->skip)
        session_close(s, "the journal cannot be read");
    else
        session_error(s, CONTROL_ERROR_JOURNAL, why, true);
}

/* Takes what the worker has brought. May close the session. */
static void take(struct session *s)
{
    struct session_read *x = s->read;
    struct journal_read *r = &x->read;

    if (s->state == SESSION_LEAVING)
        keep_rest(r);
    if (r->size)
        queue_chunk(s, r);
    if (r->end == READ_GAP || r->end == READ_DAMAGED) {
        tell_gap(s, r);
    } else if (r->end == READ_FAILED) {
        x->failed = !r->skip && s->outbox.waiting;
        if (!x->failed)
            let_go(s, r);
    }
    if (s->state != SESSION_ACTIVE)
        return;
    (void)s->ops->was_read(s->owner, s, r->told, NULL);
    s->told = r->told;
    s->said = r->handed;
    s->passed_over = position_compare(s->said, s->told) < 0;
    s->inside = r->inside;
    s->resume = r->resume;
    /* what it was being sent is not there, because a sync failed: it comes again */
    x->at_end = r->end == READ_END && r->skip &&
                position_compare(s->told, journal_written(x->reads->journal)) >= 0;
}

static void on_worked(uv_work_t *work, int status)
{
    struct session_read *x = work->data;
    struct session_reads *reads = x->reads;
    struct session *s = x->session;

    (void)status; /* nobody cancels */
    reads->running--;
    reads->reserved -= x->read.chunk;
    account_give_back(x->account, x->read.chunk);
    x->account = account_unref(x->account);
    x->running = false;
    log_damage(x);
    if (!s) {
        (void)session_read_free(x);
    } else if (x->stale) {
        free(x->read.data);
        x->read.data = NULL;
        begin_anew(x);
        session_flush(s);
    } else {
        take(s);
        session_flush(s);
    }
    session_reads_go(reads);
}

static void start(struct session_read *x)
{
    struct session_reads *reads = x->reads;

    reads->running++;
    reads->reserved += x->read.chunk;
    x->account = account_ref(x->session->account);
    account_charge(x->account, x->read.chunk);
    x->skip = x->read.skip;
    x->skip_of = x->read.skip_of;
    x->running = true;
    (void)uv_queue_work(reads->loop, &x->work, on_work,
                        on_worked); /* fails without a function alone */
}

static size_t bytes_held(const struct session_reads *reads)
{
    return reads->pool.live_bytes + reads->reserved;
}

/* As far as there is anything to let go of in its user's account. It is read for all the same: what cannot let go now,
 * since its socket takes nothing, must not keep others of the same user from getting on. */
static void make_room_in_account(struct session_read *x)
{
    struct account *account = x->session->account;
    struct session *s;

    while (account_lacks(account, x->read.chunk) &&
           (s = session_longest_waiting_of(*x->reads->sessions, account)))
        session_let_go(s);
}

/* Makes room for so many bytes more, as far as there is anything to let go of. */
static bool make_room(struct session_reads *reads, size_t size)
{
    struct session *s;

    while (bytes_held(reads) + size > SESSION_READS_BYTES &&
           (s = session_longest_waiting(*reads->sessions, &reads->pool)))
        session_let_go(s);
    return bytes_held(reads) + size <= SESSION_READS_BYTES;
}

void session_reads_go(struct session_reads *reads)
{
    while (reads->first && reads->running < SESSION_READS_AT_ONCE) {
        struct session_read *x = reads->first;

        make_room_in_account(x);
        if (x != reads->first)
            continue;
        if (!make_room(reads, x->read.chunk))
            return;
        if (x != reads->first) /* it was the one that let go */
            continue;
        stop_waiting(x);
        start(x);
    }
}

/* The job's own, since the session's may go while it runs. */
static bool copy_filters(struct session_read *x)
{
    const struct route_member *m = &x->session->member;

    if (x->read.everything || x->filters)
        return true;
    x->filters = filters_copy(m->filters, m->n_filters);
    x->exclusions = filters_copy(m->exclusions, m->n_exclusions);
    if (!x->filters || !x->exclusions)
        return false;
    x->read.filters = x->filters;
    x->read.n_filters = m->n_filters;
    x->read.exclusions = x->exclusions;
    x->read.n_exclusions = m->n_exclusions;
    return true;
}

/* Asks for the next chunk. Who takes all of one gets a larger one. */
static void ask(struct session *s)
{
    struct session_read *x = s->read;
    struct session_reads *reads = x->reads;

    if (!copy_filters(x)) {
        session_error(s, CONTROL_ERROR_TOO_SLOW,
                      "the router has no memory to let this subscriber catch up", true);
        return;
    }
    if (s->outbox.waiting == 0)
        s->chunk = MIN(s->chunk * 2, (size_t)READER_CHUNK);
    x->read.chunk = s->chunk;
    x->waits = true;
    if (reads->last)
        reads->last->next = x;
    else
        reads->first = x;
    reads->last = x;
}

size_t session_read_held(const struct session *s)
{
    return s->read && s->read->filters ? sizeof *s->read + s->filters_cost : 0;
}

bool session_read_on(struct session *s)
{
    struct session_read *x = s->read;

    if (!x || x->running || x->waits || x->at_end || s->blocked || s->outbox.waiting > s->chunk / 2)
        return false;
    if (x->failed && s->state == SESSION_ACTIVE) {
        if (s->outbox.waiting)
            return false;
        x->failed = false;
        let_go(s, &x->read);
        return true;
    }
    if (s->state == SESSION_ACTIVE) {
        if (!x->read.skip && position_compare(s->told, journal_written(x->reads->journal)) >= 0)
            return catch_up(s);
    } else if (s->state != SESSION_LEAVING || !outbox_owed(&s->outbox)) {
        return false;
    }
    ask(s);
    return false;
}
