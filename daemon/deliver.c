/* SPDX-License-Identifier: PostgreSQL */
#include "deliver.h"

#include <stdlib.h>

#include "journal/fault.h"
#include "session_read.h"

/* What the loop may do at once for a session that comes back, as filters tried: some 5 ms. */
#define PENDING_TRIES 200000u

/* ---- who waits for the end of a transaction ---- */

static void inside_add(struct router *r, struct session *s)
{
    if (s->waits_for_end)
        return;
    if (r->n_inside == r->inside_cap) {
        size_t cap = r->inside_cap ? r->inside_cap * 2 : 64;
        struct session **inside = realloc(r->inside, cap * sizeof *inside);

        if (!inside) {
            session_error(s, CONTROL_ERROR_TOO_SLOW, "the router has no memory", true);
            return;
        }
        r->inside = inside;
        r->inside_cap = cap;
    }
    r->inside[r->n_inside++] = s;
    s->waits_for_end = true;
}

void deliver_forget(struct router *r, struct session *s)
{
    for (size_t i = 0; s->waits_for_end && i < r->n_inside; i++) {
        if (r->inside[i] == s) {
            r->inside[i] = r->inside[--r->n_inside];
            s->waits_for_end = false;
        }
    }
}

static void inside_add_if(struct router *r, struct session *s)
{
    if (session_is_live(s) && (s->inside || s->resume))
        inside_add(r, s);
}

/* One that resumes waits for its own transaction: others that come again before it are not the one. */
static void send_commits(struct router *r, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->n_inside; i++) {
        struct session *s = r->inside[i];

        session_send_commit(s, batch, entry, begin);
        if (session_is_live(s) && (s->inside || s->resume))
            r->inside[kept++] = s;
        else
            s->waits_for_end = false;
    }
    r->n_inside = kept;
}

/* ---- live ---- */

static void send_message(struct router *r, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin)
{
    struct route_set set;

    if (route_lookup(r->route, entry->prefix, &set) < 0) { /* the journal has it */
        for (struct session *s = r->sessions; s; s = s->next)
            if (session_is_live(s))
                session_fall_behind(s);
        durables_gap_routed(r->durables, entry->position); /* for all that is known it is for each of them */
        return;
    }
    for (size_t i = 0; i < set.n; i++) {
        if (set.members[i]->absent) {
            durable_matched(r->durables, set.members[i], entry->position);
            continue;
        }
        struct session *s = container_of(set.members[i], struct session, member);
        if (session_send_message(s, batch, entry, begin))
            inside_add(r, s);
    }
}

/* For the sessions that could not take the batch whole; the others ignore what they were told. */
static void send_entries(struct router *r, struct batch *batch)
{
    const struct batch_entry *begin = NULL;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *entry = &batch->entries[i];

        if (entry->type == FRAME_BEGIN) {
            begin = entry;
        } else if (entry->type == FRAME_MESSAGE) {
            send_message(r, batch, entry, begin);
        } else if (entry->type == FRAME_COMMIT) {
            send_commits(r, batch, entry, begin);
            begin = NULL;
        } else if (entry->type == FRAME_GAP) {
            for (struct session *s = r->sessions; s; s = s->next)
                session_send_gap_entry(s, batch, entry);
            durables_gap_routed(r->durables, entry->position);
        }
    }
}

/* Whoever is to have it reads it from the journal, where it comes only when the server has proven to be the one that the
 * journal was read from. Nobody floats over it, and no progress tells of it. */
static void deliver_unproven(struct router *r, struct batch *batch)
{
    if (batch->n_entries) {
        for (struct session *s = r->sessions; s; s = s->next)
            if (session_is_live(s))
                session_fall_behind(s);
        durables_gap_routed(r->durables, batch->last);
        durables_routed(r->durables, batch);
        r->messages += batch->messages;
        r->newest = batch->last;
    }
    router_flush(r);
    (void)batch_unref(batch);
    deliver_check_held(r);
}

void deliver_batch(struct router *r, struct batch *batch)
{
    if (r->unproven) {
        deliver_unproven(r, batch);
        return;
    }
    bool entries_needed = durables_float(r->durables);

    if (batch->n_entries) {
        for (struct session *s = r->sessions; s; s = s->next) {
            FAULT_POINT("delivery");
            if (!session_is_live(s) || session_send_batch(s, batch))
                continue;
            entries_needed = true;
            inside_add_if(r, s); /* it may have got its BEGIN with a whole batch */
        }
        if (entries_needed)
            send_entries(r, batch);
        r->messages += batch->messages;
        r->newest = batch->last;
        /* inside a transaction: to what stands whole */
        r->progress = position_later(
            r->progress, batch->ends_inside ? position_before_transaction(batch->last) : batch->last);
    }
    if (batch->mark && position_compare(batch->mark_position, r->progress) > 0)
        r->progress = batch->mark_position;
    durables_routed(r->durables, batch);
    router_flush(r);
    (void)batch_unref(batch);
    deliver_check_held(r);
}

/* ---- catching up ---- */

static void send_entries_to(struct session *s, struct batch *batch)
{
    const struct route_member *m = &s->member;
    const struct batch_entry *begin = NULL;

    for (size_t i = 0; i < batch->n_entries && session_is_live(s); i++) {
        const struct batch_entry *entry = &batch->entries[i];

        if (entry->type == FRAME_BEGIN) {
            begin = entry;
        } else if (entry->type == FRAME_MESSAGE) {
            if (position_compare(entry->position, s->told) > 0 &&
                (m->everything || filters_match(m->filters, m->n_filters, m->exclusions,
                                                m->n_exclusions, entry->prefix)))
                (void)session_send_message(s, batch, entry, begin);
        } else if (entry->type == FRAME_COMMIT) {
            session_send_commit(s, batch, entry, begin);
            begin = NULL;
        } else if (entry->type == FRAME_GAP) {
            session_send_gap_entry(s, batch, entry);
        }
    }
}

static bool is_new_to(const struct session *s, const struct batch *batch)
{
    return batch->n_entries && !batch->again && position_compare(batch->last, s->told) > 0;
}

bool deliver_pending(struct router *r, struct session *s)
{
    size_t n = journal_pending(r->journal), filters = s->member.n_filters + s->member.n_exclusions,
           tries = 0;

    for (size_t i = 0; i < n && (r->unproven || !s->member.everything); i++) {
        const struct batch *batch = journal_pending_at(r->journal, i);
        if (r->unproven && batch->n_entries && !batch->again)
            return false;
        if (is_new_to(s, batch))
            tries += batch->n_entries * filters;
    }
    if (tries > PENDING_TRIES)
        return false;
    for (size_t i = 0; i < n && session_is_live(s); i++) {
        struct batch *batch = journal_pending_at(r->journal, i);
        if (is_new_to(s, batch) && !session_send_batch(s, batch))
            send_entries_to(s, batch);
    }
    inside_add_if(r, s);
    return true;
}

void deliver_written(struct router *r)
{
    for (struct session *s = r->sessions; s; s = s->next)
        session_wake(s);
    router_flush(r);
    deliver_check_held(r);
}

/* ---- memory ---- */

/* What is not yet checked or written is kept for the journal's sake, whoever has it too. */
static size_t held_for_sessions(const struct router *r)
{
    size_t held = r->pool.live_bytes, n;

    if (held <= ROUTER_BYTES_MAX)
        return held;
    held -= MIN(held, checks_bytes(r->checks));
    n = journal_pending(r->journal);
    for (size_t i = 0; i < n; i++) {
        const struct batch *batch = journal_pending_at(r->journal, i);
        held -= MIN(held, batch_charge(batch));
    }
    return held;
}

/* The user's, as long as they make more be held than is one's. */
static void check_account(struct router *r, const struct account *a)
{
    struct session *s;

    while (account_lacks(a, 0) && (s = session_longest_waiting_of(r->sessions, a)))
        session_let_go(s);
}

void deliver_check_held(struct router *r)
{
    struct session *s;

    for (const struct account *a = r->accounts.n_over ? r->accounts.first : NULL; a; a = a->next)
        check_account(r, a);
    while (held_for_sessions(r) > ROUTER_BYTES_MAX &&
           (s = session_longest_waiting(r->sessions, &r->pool)))
        session_let_go(s);
}
