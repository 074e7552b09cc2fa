/* SPDX-License-Identifier: PostgreSQL */
#include "intake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "clients.h"
#include "deliver.h"
#include "names.h"

static void apply_hold(struct router *r)
{
    source_hold(&r->source, r->queue_full);
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
        apply_hold(r);
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
 * who has not had it yet must not be told that it is past. */
static struct position progress_of_end(const struct journal_end *end)
{
    return end->inside ? (struct position){0} : end->last;
}

static void on_failed(void *owner, int error, const char *what)
{
    struct router *r = owner;

    r->progress = progress_of_end(journal_end(r->journal));
    r->mark_waiting =
        batch_unref(r->mark_waiting); /* it is of a time when what was dropped was there */
    durables_fell_back(r->durables);
    r->queue_full = false; /* it is empty, and on_written does not come */
    apply_hold(r);
    log_line(r->log, LOG_ERROR, "journal.failed", what, LOG_STR("error", strerror(error)),
             LOG_STR("mend", "make room in the state folder; the router goes on by itself, and "
                             "nothing is lost meanwhile"));
    r->journal_error = error;
    source_suspend(&r->source, what);
}

static void on_differs(void *owner, struct position position, const char *what)
{
    struct router *r = owner;

    durables_fell_back(r->durables);
    source_differs(&r->source, position, what);
}

static const struct journal_ops journal_ops = {
    .written = on_written,
    .synced = on_synced,
    .failed = on_failed,
    .differs = on_differs,
};

/* The builder goes on from where the journal ends. */
static void restore_builder(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);

    builder_restore(&r->source.stream.builder, end->last, end->inside ? &end->begin : NULL,
                    end->received_time);
}

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
    if (!is_news(journal_end(r->journal), batch)) {
        journal_append(r->journal, batch);
        return;
    }
    (void)batch_unref(r->mark_waiting);
    r->mark_waiting = batch_ref(batch);
    if (source_is_asked(&r->source) || uv_now(r->loop) - r->mark_written_at >= INTAKE_MARK_MS)
        append_mark(r);
}

bool intake_batch(struct router *r, struct batch *batch)
{
    if (journal_has_failed(r->journal))
        return false; /* it comes again */
    batch->connection = r->connection;
    if (!batch->n_entries) {
        take_mark(r, batch);
        return true;
    }
    if (!batch->again)
        r->mark_waiting = batch_unref(r->mark_waiting); /* this one has a later mark */
    if (!batch->again && position_is_zero(r->unproven_first))
        r->unproven_first = batch->last;
    journal_append(r->journal, batch);
    retention_appended(&r->retention);
    if (!r->queue_full && journal_is_full_queue(r->journal, false)) {
        r->queue_full = true;
        apply_hold(r);
    }
    return !batch->again;
}

static void try_again(struct router *r)
{
    int error = journal_retry(r->journal);

    if (error < 0)
        return;
    log_line(r->log, LOG_INFO, "journal.recovered", "The journal can be written again.");
    r->journal_error = 0;
    restore_builder(r);
    source_go_on(&r->source);
}

void intake_tick(struct router *r)
{
    if (journal_has_failed(r->journal)) {
        try_again(r);
    } else if (r->source.state == SOURCE_SUSPENDED) { /* it could not be begun */
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
static bool accept_into_new_era(struct router *r, struct position start, const char *reason)
{
    const struct position before = {start.timeline, start.lsn ? start.lsn - 1 : 0,
                                    POSITION_INDEX_END};
    uint32_t era = journal_end(r->journal)->era + 1;

    names_log_unread(r);
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
    return builder_accept_gap(&r->source.stream.builder, start, reason) == 0;
}

bool intake_started(struct router *r, struct position start, enum continuity_verdict accepted)
{
    const struct journal_end *end = journal_end(r->journal);
    struct buf reason = BUF_INIT;
    bool done = true;

    if (journal_has_failed(r->journal))
        return false;
    if (accepted != CONTINUITY_GOES_ON) {
        r->source.stream.proven = false; /* another slot, or made anew */
        buf_printf(&reason, "accepted by the operator: %s", continuity_refusal(accepted)->text);
    }
    /* What the journal has behind `start` comes again. It is compared beside the loop, which must not hand out meanwhile
     * what another server, or an older state of this one, has instead. */
    r->unproven = !end->empty && position_compare(start, end->last) <= 0;
    r->unproven_first = (struct position){0};
    r->connection++;
    r->mark_waiting = batch_unref(r->mark_waiting); /* that of the connection before */
    if (end->empty)
        done = begin_first(r, start);
    else if (continuity_is_new_era(accepted))
        done = accept_into_new_era(r, start, buf_str(&reason));
    else if (accepted != CONTINUITY_GOES_ON && position_compare(start, end->last) > 0)
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
        log_line(r->log, LOG_ERROR, "state", why);
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
    return names_open(r);
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
