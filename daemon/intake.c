/* SPDX-License-Identifier: PostgreSQL */
#include "intake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "clients.h"
#include "deliver.h"
#include "names.h"
#include "settings/setting_place.h"

void intake_hold(struct router *r)
{
    if (r->checks)
        r->checks_full = checks_is_full(r->checks, r->checks_full);
    source_hold(&r->source, r->queue_full || r->checks_full);
}

/* ---- what the journal tells ---- */

static void on_written(void *owner)
{
    struct router *r = owner;

    if (r->unproven && !position_is_zero(r->unproven_first) &&
        position_compare(journal_written(r->journal), r->unproven_first) >= 0)
        r->unproven = false;
    if (r->queue_full && !journal_is_full_queue(r->journal, true)) {
        r->queue_full = false;
        intake_hold(r);
    }
    deliver_written(r);
    names_written(r);
}

static void on_synced(void *owner, uint64_t mark, uint32_t connection)
{
    struct router *r = owner;
    const struct journal_end *end = journal_end(r->journal);

    /* The server has nothing new, and is past all that stands here: what had to come again has come, and was the same. */
    if (connection == r->connection && r->unproven && position_is_zero(r->unproven_first) &&
        mark > end->last.lsn)
        r->unproven = false;

    /* What another connection said may mean something else here: the server may have been restored meanwhile. */
    if (connection == r->connection) {
        if (!r->unproven)
            source_settled(&r->source);
        source_advance(&r->source, mark);
    }
    names_synced(r);
}

/* Nothing at or below it is still to come: what is in the journal. What was dropped from behind its end comes again, and
 * who has not had it yet must not be told that it is past. The rest of a transaction may never come: what stands before it
 * is past all the same. */
static struct position progress_of_end(const struct journal_end *end)
{
    return end->inside && position_is_inside(end->last) ? position_before_transaction(end->last) : end->last;
}

/* What is being checked stands behind what was lost, or is not the same server's. */
static void drop_checks(struct router *r)
{
    if (r->checks)
        checks_drop(r->checks);
}

static const char *mend_of(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return "the state folder, or a part of it, was moved or removed: put it back, or restart the router, which says what is missing";
    case EMFILE:
    case ENFILE:
        return "raise the limit on open files (LimitNOFILE), or segment-size";
    case ENOSPC:
    case EDQUOT:
        return "make room in the state folder; the router goes on by itself, and nothing is lost meanwhile";
    default:
        return "look after the state folder's disk; the router goes on by itself once it can be written, and nothing is lost meanwhile";
    }
}

static void on_failed(void *owner, int error, const char *what)
{
    struct router *r = owner;

    r->progress = progress_of_end(journal_end(r->journal));
    r->mark_waiting =
        batch_unref(r->mark_waiting); /* it is of a time when what was dropped was there */
    durables_fell_back(r->durables);
    r->queue_full = false; /* it is empty, and on_written does not come */
    intake_hold(r);
    log_line(r->log, LOG_ERROR, "journal.failed", what, LOG_STR("error", strerror(error)),
             LOG_STR("mend", mend_of(error)));
    r->journal_error = error;
    source_suspend(&r->source, what);
    drop_checks(r);
}

/* The builder goes on from where the journal ends. */
static void restore_builder(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);

    builder_restore(&r->source.stream.builder, end->last, end->inside ? &end->begin : NULL,
                    end->received_time);
}

static void on_retried(void *owner, int error)
{
    struct router *r = owner;

    r->journal_error = error;
    if (error)
        return;
    log_line(r->log, LOG_INFO, "journal.recovered", "The journal can be written again.");
    restore_builder(r);
    if (!r->state_gone)
        source_go_on(&r->source);
}

static void on_differs(void *owner, struct position position, const char *what)
{
    struct router *r = owner;

    durables_fell_back(r->durables);
    drop_checks(r);
    source_differs(&r->source, position, what);
}

static const struct journal_ops journal_ops = {
    .written = on_written,
    .synced = on_synced,
    .failed = on_failed,
    .retried = on_retried,
    .differs = on_differs,
};

/* ---- keeping ---- */

static void append_mark(struct router *r)
{
    struct batch *batch = r->mark_waiting;

    r->mark_waiting = NULL;
    r->mark_written_at = uv_now(r->loop);
    journal_append(r->journal, batch);
    (void)batch_unref(batch);
}

static bool is_news(const struct journal_end *end, const struct batch *batch)
{
    uint32_t timeline = batch->mark_position.timeline;

    return timeline > end->mark_timeline ||
           (timeline == end->mark_timeline && batch->mark > end->mark);
}

/* A mark alone. What the journal has synced already, on this timeline, is not written once more, but it passes behind what
 * came again before it and is compared. */
static void take_mark(struct router *r, struct batch *batch)
{
    if (!position_is_zero(batch->expected_from) || !is_news(journal_end(r->journal), batch)) {
        journal_append(r->journal, batch);
        return;
    }
    (void)batch_unref(r->mark_waiting);
    r->mark_waiting = batch_ref(batch);
    if (source_is_asked(&r->source) || uv_now(r->loop) - r->mark_written_at >= INTAKE_MARK_MS)
        append_mark(r);
}

bool intake_stamp(struct router *r, struct batch *batch)
{
    if (journal_has_failed(r->journal))
        return false;
    batch->connection = r->connection;
    batch->expected_from = r->expected_from;
    r->expected_from = (struct position){0};
    if (batch->n_entries && !batch->again && position_is_zero(r->unproven_first))
        r->unproven_first = batch->last;
    return true;
}

bool intake_batch(struct router *r, struct batch *batch)
{
    if (journal_has_failed(r->journal))
        return false; /* it comes again */
    if (!batch->n_entries) {
        take_mark(r, batch);
        return true;
    }
    if (!batch->again)
        r->mark_waiting = batch_unref(r->mark_waiting); /* this one has a later mark */
    journal_append(r->journal, batch);
    retention_appended(&r->retention);
    if (!r->queue_full && journal_is_full_queue(r->journal, false)) {
        r->queue_full = true;
        intake_hold(r);
    }
    return !batch->again;
}

/* What is written where nobody will look for it must not be acknowledged. */
static void look_after_state(struct router *r)
{
    const char *part = state_missing(&r->state);

    if (part && !r->state_gone) {
        log_line(r->log, LOG_ERROR, "state.gone",
                 "A part of the state folder was moved or removed; nothing is read from the server.",
                 LOG_STR("state_dir", r->state.folder), LOG_STR("part", part),
                 LOG_STR("mend", "put it back: the router goes on by itself; or restart the router, which says what is missing"));
        source_suspend(&r->source, "a part of the state folder was moved or removed");
    } else if (!part && r->state_gone) {
        log_line(r->log, LOG_INFO, "state.back", "The state folder is whole again.",
                 LOG_STR("state_dir", r->state.folder));
    }
    r->state_gone = part != NULL;
}

void intake_tick(struct router *r)
{
    look_after_state(r);
    if (r->state_gone) {
        /* it is no use */
    } else if (journal_has_failed(r->journal)) {
        journal_retry(r->journal);
    } else if (r->source.state == SOURCE_SUSPENDED) { /* it could not be begun, or the folder is back */
        r->journal_error = 0;
        source_go_on(&r->source);
    }
    if (r->mark_waiting && uv_now(r->loop) - r->mark_written_at >= INTAKE_MARK_MS)
        append_mark(r);
    names_tick(r);
}

/* ---- where an era begins ---- */

static bool begun(struct router *r, int e)
{
    if (e == 0)
        return true;
    log_line(r->log, LOG_ERROR, "journal.failed", "The journal cannot be begun.",
             LOG_STR("error", strerror(-e)));
    r->journal_error = -e;
    return false;
}

static int begin_journal(struct router *r, uint32_t era, struct position after, uint64_t mark)
{
    const struct source *s = &r->source;

    return journal_begin_era(r->journal, s->continuity.system_identifier, era, s->facts.database,
                             s->slot, after, mark, s->history.current);
}

/* An empty one adopts the slot. The catalog is first: a journal without one is refused. */
static bool begin_first(struct router *r, struct position start)
{
    uint32_t era = names_first_era(r);

    return begun(r, names_begin_era(r, r->source.continuity.system_identifier, era, start)) &&
           begun(r, begin_journal(r, era, start, start.lsn));
}

/* Positions behind the gap do not compare with those before it: a new era, whose first entry is the gap. */
static bool accept_into_new_era(struct router *r, struct position start)
{
    const struct position before = {start.timeline, start.lsn ? start.lsn - 1 : 0,
                                    POSITION_INDEX_END};
    uint32_t era = journal_end(r->journal)->era + 1;

    names_log_unread(r);
    drop_checks(r);
    clients_new_era(r); /* some may have come while the server still seemed to be the old one */
    r->mark_waiting = batch_unref(r->mark_waiting);
    if (!begun(r, begin_journal(r, era, before, start.lsn)) ||
        !begun(r, names_begin_era(r, r->source.continuity.system_identifier, era, before)))
        return false;
    log_line(r->log, LOG_WARNING, "journal.new-era",
             "The journal begins a new era; what the old one held is not delivered any more.",
             LOG_U64("era", era));
    r->newest = r->progress = before;
    r->unproven = false;
    builder_restore(&r->source.stream.builder, before, NULL, 0);
    return true;
}

/* A stream is over, and what it read is handed on. Its marks are not for the next one, which runs for a while before it is looked
 * at: that may be another server's. */
void intake_changed(struct router *r)
{
    switch (r->source.state) {
    case SOURCE_BACKING_OFF:
    case SOURCE_SUSPENDED:
    case SOURCE_GIVEN_UP:
        r->connection++;
        break;
    default:
        break;
    }
}

/* Nothing stands in an era that was begun behind a gap: whoever began it got no further. (A journal's first era begins where the slot
 * stands, which is no end of anything.) */
static bool is_bare(const struct router *r)
{
    struct segment_info first;

    journal_segment_info(r->journal, 0, &first);
    return first.after.index == POSITION_INDEX_END && journal_end(r->journal)->messages == 0 &&
           position_compare(journal_end(r->journal)->last, first.after) == 0;
}

/* Whether the journal lacks the gap in front of `start`. What was accepted may have been written before the connection was lost,
 * and may have to be written once more after a failure. */
static bool is_gap_due(const struct router *r, struct position start,
                       enum continuity_verdict accepted)
{
    const struct journal_end *end = journal_end(r->journal);
    const struct position mark = {end->mark_timeline, end->mark, 0};

    if (end->era > 1 && is_bare(r))
        return true;
    return accepted != CONTINUITY_GOES_ON && position_compare(start, end->last) > 0 &&
           position_compare(start, mark) > 0;
}

bool intake_started(struct router *r, struct position start, bool looked_at,
                    enum continuity_verdict accepted)
{
    const struct journal_end *end = journal_end(r->journal);
    struct buf reason = BUF_INIT;
    bool done = true;

    if (journal_has_failed(r->journal))
        return false;
    if (accepted != CONTINUITY_GOES_ON && !begun(r, names_unproven(r))) /* another slot, or made anew */
        return false;
    const char *why = accepted != CONTINUITY_GOES_ON ? continuity_refusal(accepted)->text
                                                     : "The journal begins a new era here.";
    buf_printf(&reason, "accepted by the operator: %.*s", (int)strlen(why) - 1, why); /* without its full stop */
    /* What the journal has behind `start` comes again. It is compared beside the loop, which must not hand out meanwhile
     * what another server, or an older state of this one, has instead. */
    r->unproven = !end->empty && position_compare(start, end->last) <= 0;
    r->unproven_first = r->expected_from = (struct position){0};
    if (r->unproven && looked_at && accepted == CONTINUITY_GOES_ON)
        r->expected_from = start;
    r->connection++;
    r->mark_waiting = batch_unref(r->mark_waiting); /* that of the connection before */
    if (end->empty)
        done = begin_first(r, start);
    else if (continuity_is_new_era(accepted))
        done = accept_into_new_era(r, start);
    if (done && is_gap_due(r, start, accepted))
        done = builder_accept_gap(&r->source.stream.builder, start, buf_str(&reason)) == 0;
    buf_deinit(&reason);
    return done;
}

/* ---- life ---- */

int intake_open(struct router *r)
{
    const struct settings *settings = r->settings;
    char why[MAX(JOURNAL_WHY_SIZE, STATE_WHY_SIZE)];
    struct buf folder = BUF_INIT;

    int e = state_open(&r->state, settings->state_dir, why);
    if (e < 0) {
        setting_place_blame(settings, settings_find("state-dir"), 0, why);
        log_line(r->log, LOG_ERROR, "state", why,
                 LOG_STR("mend", e == -EBUSY    ? "stop that one first, or give this one a --state-dir of its own"
                                 : e == -EACCES ? "run the router as the user whose folder it is, or give another --state-dir"
                                 : e == -EINVAL ? "give --state-dir an absolute path, one that begins with /"
                                 : e == -ENOENT ? "make the folder above it first, or give another --state-dir"
                                                : "see that the folder can be made, or give another --state-dir"));
        return e == -EINVAL ? ROUTER_EXIT_USAGE : ROUTER_EXIT_FAILURE;
    }
    buf_printf(&folder, "%s/journal", r->state.folder);
    const struct journal_options options = {
        .folder = buf_str(&folder),
        .segment_size = settings->segment_size,
        .sync_interval_ns = settings->sync_interval * 1000,
    };
    e = journal_open(&options, r->loop, &journal_ops, r, r->log, &r->journal, why);
    buf_deinit(&folder);
    if (e < 0) {
        log_line(r->log, LOG_ERROR, "journal", why);
        return e == -EBADMSG || e == -EPROTONOSUPPORT ? ROUTER_EXIT_DECIDE : ROUTER_EXIT_FAILURE;
    }
    int status = names_open(r);
    if (status == 0)
        state_note(&r->state);
    return status;
}

void intake_restore(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);
    struct continuity *c = &r->source.continuity;

    if (end->empty)
        return;
    c->system_identifier = end->system_identifier;
    (void)snprintf(c->database, sizeof c->database, "%s", end->database);
    c->timeline = end->mark_timeline;
    c->told = end->mark;
    restore_builder(r);
    r->newest = end->last;
    r->progress = progress_of_end(end);
}

void intake_finish(struct router *r)
{
    if (!r->journal || journal_has_failed(r->journal))
        return;
    if (r->mark_waiting)
        append_mark(r);
    int e = journal_finish(r->journal);
    (void)e; /* what failed is told, and logged */
}

void intake_close(struct router *r)
{
    r->mark_waiting = batch_unref(r->mark_waiting);
    names_close(r);
    r->journal = journal_close(r->journal);
}
