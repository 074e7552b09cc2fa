/* SPDX-License-Identifier: PostgreSQL */
#include "source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/clock.h"
#include "source_steps.h"

static const char *const state_names[] = {
    [SOURCE_STOPPED] = "stopped",         [SOURCE_BACKING_OFF] = "backing-off",
    [SOURCE_CONNECTING] = "connecting",   [SOURCE_CHECKING] = "checking",
    [SOURCE_SETTING] = "setting",         [SOURCE_IDENTIFYING] = "identifying",
    [SOURCE_HISTORY] = "history",         [SOURCE_STARTING] = "starting",
    [SOURCE_CONFIRMING] = "confirming",   [SOURCE_STREAMING] = "streaming",
    [SOURCE_SUSPENDED] = "suspended",     [SOURCE_GIVEN_UP] = "given-up",
};

const char *source_state_name(enum source_state state)
{
    return state_names[state];
}

void source_set(struct source *s, enum source_state state)
{
    if (s->state == state)
        return;
    log_line(s->log, LOG_DEBUG, "source.state", "The source changes its state.",
             LOG_STR("from", source_state_name(s->state)), LOG_STR("to", source_state_name(state)));
    s->state = state;
    s->ops->changed(s->owner);
}

static void source_on_retry(uv_timer_t *timer);

/* Ends whatever is running on the two connections. */
static void source_drop(struct source *s)
{
    stream_stop(&s->stream);
    heartbeat_stop(&s->heartbeat);
    pglink_close(&s->link);
    PQclear(s->result);
    s->result = NULL;
    (void)uv_timer_stop(&s->stopping);
    (void)uv_timer_stop(&s->step);
    timeline_history_deinit(&s->history);
}

static void source_later(struct source *s)
{
    uint64_t wait = SOURCE_BACKOFF_FIRST_MS;

    for (unsigned i = 0; i < s->attempts && wait < SOURCE_BACKOFF_LAST_MS; i++)
        wait *= 2;
    wait = MIN(wait, (uint64_t)SOURCE_BACKOFF_LAST_MS);
    wait = wait / 2 + randombytes_uniform((uint32_t)(wait / 2) + 1);
    s->attempts++;
    source_set(s, SOURCE_BACKING_OFF);
    uv_update_time(s->retry.loop);
    (void)uv_timer_start(&s->retry, source_on_retry, wait, 0);
}

static void source_give_up(struct source *s, enum precondition_class verdict)
{
    source_drop(s);
    s->verdict = verdict;
    source_set(s, SOURCE_GIVEN_UP);
}

void source_fail(struct source *s, const char *id, const char *sentence)
{
    const char *error = buf_str(&s->link.error);

    if (strcmp(buf_str(&s->last_error), error) != 0)
        log_line(s->log, LOG_WARNING, id, sentence, LOG_STR("error", error),
                 LOG_STR("sqlstate", s->link.sqlstate), LOG_STR("slot", s->slot));
    buf_clear(&s->last_error);
    buf_append_str(&s->last_error, error);
    s->in_use = false;
    source_drop(s);
    source_later(s);
}

void source_fail_with(struct source *s, const char *error, const char *id,
                             const char *sentence)
{
    buf_clear(&s->link.error);
    buf_append_str(&s->link.error, error);
    s->link.sqlstate[0] = 0;
    source_fail(s, id, sentence);
}

void source_findings(struct source *s, struct precondition_finding *findings, size_t n)
{
    enum precondition_class verdict = precondition_verdict(findings, n);
    char told[LSN_TEXT_SIZE];

    buf_clear(&s->last_error);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_append_str(&s->last_error, " ");
        buf_append(&s->last_error, findings[i].text.data, findings[i].text.size);
        if (findings[i].klass != PRECONDITION_WAIT)
            log_line(s->log, LOG_ERROR, findings[i].id, buf_str(&findings[i].text),
                     LOG_STR("mend", buf_str(&findings[i].mend)), LOG_STR("slot", s->slot),
                     LOG_STR("acknowledged", s->continuity.told ? lsn_format(s->continuity.told, told)
                                                                  : "nothing"));
    }
    if (verdict == PRECONDITION_WAIT) {
        /* a walsender of our own last connection lets go within moments: the first time is no news */
        if (s->attempts > 2 && !s->waited) {
            s->waited = true;
            log_line(s->log, LOG_WARNING, findings[0].id, buf_str(&findings[0].text),
                     LOG_STR("mend", buf_str(&findings[0].mend)), LOG_STR("slot", s->slot),
                     LOG_I64("holder_pid", s->facts.slot_active_pid));
        }
    }
    precondition_findings_deinit(findings, n);
    if (verdict != PRECONDITION_WAIT) {
        source_give_up(s, verdict);
        return;
    }
    s->in_use = true;
    source_drop(s);
    source_later(s);
}

void source_time_limit(struct source *s, uv_timer_cb late, uint64_t ms)
{
    uv_update_time(s->step.loop);
    (void)uv_timer_start(&s->step, late, ms, 0);
}

static void on_opened(void *owner)
{
    source_steps_begin(owner);
}

static void on_failed(void *owner)
{
    struct source *s = owner;
    struct precondition_finding findings[PRECONDITION_MAX];
    size_t n = precondition_explain_connect(s->link.sqlstate, buf_str(&s->link.error),
                                            *s->link.user ? s->link.user : NULL, findings);

    const char *mend = connect_refusal_mend(s->link.sqlstate, buf_str(&s->link.error));
    if (n) {
        source_findings(s, findings, n);
    } else if (mend) {
        char sentence[256];

        (void)snprintf(sentence, sizeof sentence, "The server refuses the connection; trying again. To mend it, %s.", mend);
        source_fail(s, "source.unreachable", sentence);
    } else {
        source_fail(s, "source.unreachable", "The server cannot be reached; trying again.");
    }
}

/* Slot or server are not what this router knew: nothing is read on before somebody has decided. */
static void source_refuse(struct source *s, enum continuity_verdict verdict)
{
    const struct continuity_refusal *refusal = continuity_refusal(verdict);
    char found[LSN_TEXT_SIZE], told[LSN_TEXT_SIZE], wal[LSN_TEXT_SIZE];

    log_line(s->log, LOG_ERROR, refusal->id, refusal->text, LOG_STR("slot", s->slot),
             LOG_STR("acknowledged", lsn_format(s->continuity.told, told)),
             LOG_STR("slot_confirmed_flush_lsn",
                     lsn_format(s->facts.slot_confirmed_flush_lsn, found)),
             LOG_STR("wal_lsn", lsn_format(s->facts.wal_lsn, wal)),
             LOG_U64("system_identifier", s->facts.system_identifier),
             LOG_STR("mend", refusal->mend));
    buf_clear(&s->last_error);
    buf_append_str(&s->last_error, refusal->text);
    source_give_up(s, PRECONDITION_DECIDE);
}

static bool source_runs(const struct source *s)
{
    return s->state == SOURCE_CONFIRMING || s->state == SOURCE_STREAMING;
}

/* The operator has said that it goes on all the same: says what is accepted, and connects again without what was known. */
static void source_accept(struct source *s, enum continuity_verdict verdict)
{
    const struct continuity_refusal *refusal = continuity_refusal(verdict);
    char from[LSN_TEXT_SIZE], to[LSN_TEXT_SIZE];

    log_line(s->log, LOG_WARNING, "source.gap-accepted", refusal->text, LOG_STR("refusal", refusal->id),
             LOG_STR("slot", s->slot), LOG_STR("from", lsn_format(s->continuity.told, from)),
             LOG_STR("to", lsn_format(s->facts.slot_confirmed_flush_lsn, to)),
             LOG_U64("system_identifier", s->facts.system_identifier),
             LOG_STR("database", s->facts.database));
    if (s->accepted == CONTINUITY_GOES_ON || continuity_is_new_era(verdict))
        s->accepted = verdict;
    continuity_accept(&s->continuity, verdict);
    source_drop(s);
    s->attempts = 0;
    source_later(s);
}

static void source_object(struct source *s, enum continuity_verdict verdict)
{
    if (s->accept_gap && verdict != CONTINUITY_SLOT_POISONED)
        source_accept(s, verdict);
    else
        source_refuse(s, verdict);
}

bool source_judge(struct source *s, enum continuity_verdict verdict)
{
    if (verdict == CONTINUITY_GOES_ON)
        return true;
    source_object(s, verdict);
    return false;
}

void source_differs(struct source *s, struct position position, const char *what)
{
    char text[POSITION_TEXT_SIZE];

    /* Also when that connection is gone meanwhile: the journal compares nothing any more, and would take nothing. */
    if (s->state == SOURCE_STOPPED || s->state == SOURCE_GIVEN_UP)
        return;
    (void)uv_timer_stop(&s->retry);
    log_line(s->log, LOG_ERROR, "source.differs", what, LOG_STR("position", position_format(position, text)));
    source_object(s, CONTINUITY_SERVER_RESTORED);
}

void source_suspend(struct source *s, const char *why)
{
    if (s->state == SOURCE_STOPPED || s->state == SOURCE_GIVEN_UP)
        return;
    buf_clear(&s->last_error);
    buf_append_str(&s->last_error, why);
    source_drop(s);
    (void)uv_timer_stop(&s->retry);
    source_set(s, SOURCE_SUSPENDED);
}

/* Nothing is read before the slot was looked at, nor while the owner wants none. */
static void source_apply_hold(struct source *s)
{
    bool waits = s->held || s->paused, on = waits || s->state == SOURCE_CONFIRMING;

    if (!waits || !s->waits_since)
        s->waits_since = waits ? clock_monotonic_ns() : 0;
    s->heartbeat.held = on;
    stream_hold(&s->stream, on);
}

/* Between two transactions, if it is to pause. */
static void source_pause_here(struct source *s)
{
    if (!s->pausing || s->paused || s->stream.builder.inside || s->stream.builder.pending)
        return;
    s->paused = true;
    source_apply_hold(s);
}

void source_go_on(struct source *s)
{
    if (s->state != SOURCE_SUSPENDED)
        return;
    /* Where it paused between two transactions it may be inside one again, whose end was not kept. */
    s->paused = false;
    source_pause_here(s);
    s->attempts = 0;
    source_later(s);
}

void source_hand_on(struct source *s)
{
    stream_hand_on(&s->stream);
}

void source_settled(struct source *s)
{
    s->accept_gap = false;
    s->accepted = CONTINUITY_GOES_ON;
}

bool source_is_asked(const struct source *s)
{
    return s->stream.running && s->stream.feedback.asked;
}

/* The slot was looked at, or could not be: read. */
static void source_streaming(struct source *s, bool looked_at)
{
    char lsn[LSN_TEXT_SIZE];

    (void)uv_timer_stop(&s->step);
    bool started = s->ops->started(s->owner, s->start, looked_at, s->accepted);
    if (s->state != SOURCE_CONFIRMING) /* the journal had something to tell meanwhile */
        return;
    if (!started) {
        source_suspend(s, "the state folder cannot be written");
        return;
    }
    if (continuity_is_new_era(s->accepted)) /* it is on the disk */
        s->accepted = CONTINUITY_GOES_ON;
    buf_clear(&s->last_error);
    s->waited = false;
    s->in_use = false;
    continuity_streaming(&s->continuity, s->history.current);
    s->streaming_since = clock_monotonic_ns();
    log_line(s->log, LOG_INFO, "source.streaming", "Streaming from the slot.",
             LOG_STR("slot", s->slot), LOG_STR("database", s->facts.database),
             LOG_U64("system_identifier", s->facts.system_identifier),
             LOG_U64("timeline", s->history.current),
             LOG_STR("from", lsn_format(s->facts.slot_confirmed_flush_lsn, lsn)),
             LOG_I64("server_version", s->facts.version_num));
    source_set(s, SOURCE_STREAMING);
    source_apply_hold(s);
    s->ops->streaming(s->owner);
}

static void source_on_unconfirmed(uv_timer_t *timer)
{
    struct source *s = timer->data;

    log_line(s->log, LOG_WARNING, "source.unconfirmed",
             "The slot could not be looked at once it was held; going on. If it was moved right "
             "before, that goes unnoticed.",
             LOG_STR("slot", s->slot));
    source_streaming(s, false);
}

/* The stream runs and the slot is ours. */
static void source_confirm(struct source *s)
{
    struct connect_place place;

    s->start = (struct position){.lsn = s->facts.slot_confirmed_flush_lsn};
    s->start.timeline = timeline_of(&s->history, s->start.lsn ? s->start.lsn - 1 : 0);
    source_set(s, SOURCE_CONFIRMING);
    source_time_limit(s, source_on_unconfirmed, SOURCE_CONFIRM_MS);
    connect_place_of(s->link.conn, &place);
    heartbeat_start(&s->heartbeat, &place);
    source_apply_hold(s);
    stream_start(&s->stream, &s->history, s->start, s->facts.wal_sender_timeout_ms);
    stream_readable(&s->stream);
}

static void on_readable(void *owner)
{
    struct source *s = owner;

    if (source_runs(s)) {
        stream_readable(&s->stream);
        return;
    }
    if (!PQconsumeInput(s->link.conn)) {
        pglink_note_error(&s->link, NULL);
        source_fail(s, "source.connection-lost",
                    "The connection to the server was lost; trying again.");
        return;
    }
    while (!PQisBusy(s->link.conn)) {
        PGresult *result = PQgetResult(s->link.conn);

        if (result && PQresultStatus(result) == PGRES_COPY_BOTH) {
            PQclear(result);
            source_confirm(s);
            return;
        }
        if (!result) {
            if (s->result)
                source_steps_answer(s);
            return;
        }
        PQclear(s->result);
        s->result = result;
    }
}

static const struct pglink_ops link_ops = {
    .opened = on_opened, .failed = on_failed, .readable = on_readable};

/* ---- what the stream tells ---- */

static void on_batch(void *owner, struct batch *batch)
{
    struct source *s = owner;

    s->ops->batch(s->owner, batch);
}

static void on_heartbeat(void *owner, struct bytes content)
{
    struct source *s = owner;

    heartbeat_received(&s->heartbeat, content, clock_monotonic_ns());
}

static void on_committed(void *owner)
{
    struct source *s = owner;

    source_pause_here(s);
    heartbeat_commit_received(&s->heartbeat, clock_monotonic_ns());
}

static void source_refuse_poisoned(struct source *s)
{
    const struct continuity_refusal *refusal = continuity_refusal(CONTINUITY_SLOT_POISONED);
    char lsn[LSN_TEXT_SIZE];

    buf_clear(&s->last_error);
    buf_append(&s->last_error, s->link.error.data, s->link.error.size);
    log_line(s->log, LOG_ERROR, refusal->id, refusal->text, LOG_STR("slot", s->slot),
             LOG_STR("after", lsn_format(s->continuity.told, lsn)),
             LOG_STR("error", buf_str(&s->link.error)), LOG_STR("mend", refusal->mend));
    source_give_up(s, PRECONDITION_DECIDE);
}

static void on_ended(void *owner)
{
    struct source *s = owner;
    uint64_t now = clock_monotonic_ns();

    if (continuity_error(&s->continuity, buf_str(&s->link.error), s->link.sqlstate,
                         s->stream.undecodable, now) != CONTINUITY_GOES_ON) {
        source_refuse_poisoned(s);
        return;
    }
    if (now - s->streaming_since >= SOURCE_WELL_MS * UINT64_C(1000000) ||
        strncmp(s->link.sqlstate, "57", 2) == 0)
        s->attempts = 0;
    source_fail(s, "source.stream-ended", "The stream ended; connecting again.");
}

static void on_renew(void *owner)
{
    struct source *s = owner;

    log_line(s->log, LOG_DEBUG, "source.renewed",
             "The connection is renewed, to give the memory of a large message back.");
    source_drop(s);
    s->attempts = 0;
    source_later(s);
}

static const struct stream_ops stream_ops = {
    .batch = on_batch,
    .heartbeat = on_heartbeat,
    .committed = on_committed,
    .ended = on_ended,
    .renew = on_renew,
};

/* ---- what the ordinary connection tells ---- */

/* Below this a slot has little WAL left before max_slot_wal_keep_size invalidates it: one of the usual files. */
#define WAL_SHORT (16 << 20)

/* While reading waits, WAL piles up at the server, which may keep only so much of it (max_slot_wal_keep_size). */
static void source_watch_wal(struct source *s)
{
    const struct server_facts *f = &s->facts;
    bool is_short = strcmp(f->slot_wal_status, "unreserved") == 0 || strcmp(f->slot_wal_status, "lost") == 0 ||
                    (f->slot_safe_wal_size >= 0 && f->slot_safe_wal_size < WAL_SHORT);

    if (is_short && !s->wal_alarm)
        log_line(s->log, LOG_ERROR, "source.wal-short",
                 "The server will soon drop WAL that this slot needs; then messages are lost.",
                 LOG_STR("slot", s->slot), LOG_STR("wal_status", f->slot_wal_status),
                 LOG_I64("safe_wal_size", f->slot_safe_wal_size),
                 LOG_STR("mend", "let the router go on, or raise max_slot_wal_keep_size"));
    s->wal_alarm = is_short;
}

static bool source_waits_long(const struct source *s)
{
    return s->waits_since && clock_monotonic_ns() - s->waits_since >= SOURCE_PAUSED_MS * UINT64_C(1000000);
}

/* The server wants to end this walsender, or will at the next checkpoint, which waits for that; and a walsender whose client
 * does not read cannot even end. So it is let go of: whether the slot is kept is the server's to decide. Not while reading waits for
 * the disk for a moment: a slot that is far behind must come on, and a transaction that has begun would come again from its start. */
static bool source_must_let_go(const struct source *s)
{
    return s->state == SOURCE_STREAMING && source_waits_long(s) &&
           (strcmp(s->facts.slot_wal_status, "unreserved") == 0 ||
            strcmp(s->facts.slot_wal_status, "lost") == 0);
}

static void on_facts(void *owner, const struct server_facts *facts)
{
    struct source *s = owner;

    s->facts = *facts;
    feedback_set_timeout(&s->stream.feedback, facts->wal_sender_timeout_ms);
    if (!facts->publication_exists && !s->publication_alarm)
        log_line(s->log, LOG_ERROR, "publication-dropped",
                 "The publication is gone; the next row change may end the slot for good.",
                 LOG_STR("publication", s->publication),
                 LOG_STR("mend", "on PostgreSQL 14 to 17 the slot must be made anew: walbus teardown, "
                                 "walbus setup"));
    s->publication_alarm = !facts->publication_exists;
    source_watch_wal(s);
    /* One that ended before it was confirmed has left its reason in what is still to be read: a slot that cannot
     * be decoded does so at once. */
    if (s->state == SOURCE_STREAMING && facts->slot_active_pid != PQbackendPID(s->link.conn)) {
        s->attempts = 0;
        source_fail_with(s, "the server has ended this stream", "source.stream-gone",
                         "Another process, or none, reads the slot: the connection is dead without a "
                         "word; connecting again.");
        return;
    }
    if (source_must_let_go(s)) {
        s->attempts = 0;
        source_fail_with(s, "the server no longer reserves the WAL that the slot needs, and reading waits", "source.let-go",
                         "The stream was closed so that a checkpoint need not wait for it; connecting again.");
        return;
    }
    /* held by this stream, it moves to what is acknowledged and no further */
    if (!source_judge(s, continuity_slot(&s->continuity, facts->slot_confirmed_flush_lsn)))
        return;
    if (s->state == SOURCE_CONFIRMING)
        source_streaming(s, s->start.lsn == facts->slot_confirmed_flush_lsn);
    s->ops->facts(s->owner);
}

static void on_stopping(uv_timer_t *timer)
{
    struct source *s = timer->data;

    if (!source_runs(s))
        return;
    s->attempts = 0;
    source_fail_with(s, "the server is being shut down and waits for this stream: closed",
                     "source.stream-closed", "The stream was closed so that the server can stop.");
}

static void on_server_stopping(void *owner)
{
    struct source *s = owner;

    log_line(s->log, LOG_INFO, "source.server-stopping", "The server is being shut down.",
             LOG_STR("slot", s->slot));
    uv_update_time(s->stopping.loop);
    /* what is not read cannot be acknowledged either: the server would wait for nothing */
    (void)uv_timer_start(&s->stopping, on_stopping,
                         s->paused || source_waits_long(s) ? 0 : SOURCE_STOPPING_MS, 0);
}

static const struct heartbeat_ops heartbeat_ops = {.facts = on_facts,
                                                   .server_stopping = on_server_stopping};

/* ---- life ---- */

static void source_on_retry(uv_timer_t *timer)
{
    struct source *s = timer->data;
    const struct connect_options options = {
        .dsn = s->dsn,
        .application_name = "walbusd",
        .client_encoding = "SQL_ASCII", /* raw bytes, and no conversion that can fail */
        .replication = true,
    };

    s->reconnects++;
    source_set(s, SOURCE_CONNECTING);
    pglink_connect(&s->link, &options);
}

int source_init(struct source *s, uv_loop_t *loop, const char *dsn, const char *slot,
                const char *publication, uint64_t heartbeat_interval_ns, struct batch_pool *pool,
                const struct source_ops *ops, void *owner, struct logger *log)
{
    *s = (struct source){
        .ops = ops,
        .owner = owner,
        .log = log,
        .dsn = dsn,
        .slot = slot,
        .publication = publication,
    };
    pglink_init(&s->link, loop, &link_ops, s);
    int r = stream_init(&s->stream, loop, &s->link, pool, &stream_ops, s);
    if (r < 0)
        return r;
    r = heartbeat_init(&s->heartbeat, loop, dsn, slot, publication, heartbeat_interval_ns,
                       &heartbeat_ops, s, log);
    if (r < 0)
        return r;
    (void)uv_timer_init(loop, &s->retry);
    (void)uv_timer_init(loop, &s->stopping);
    (void)uv_timer_init(loop, &s->step);
    s->step.data = s;
    s->retry.data = s;
    s->stopping.data = s;
    return 0;
}

void source_start(struct source *s)
{
    (void)uv_timer_start(&s->retry, source_on_retry, 0, 0);
    source_set(s, SOURCE_CONNECTING);
}

void source_advance(struct source *s, uint64_t lsn)
{
    stream_advance(&s->stream, lsn);
    continuity_advance(&s->continuity, lsn);
}

void source_look_up(struct source *s)
{
    heartbeat_look_up(&s->heartbeat);
}

void source_hold(struct source *s, bool on)
{
    s->held = on;
    source_apply_hold(s);
}

void source_pause(struct source *s, bool on)
{
    s->pausing = on;
    if (on) {
        source_pause_here(s);
        return;
    }
    s->paused = false;
    source_apply_hold(s);
}

void source_stop(struct source *s)
{
    if (s->state == SOURCE_STOPPED)
        return;
    stream_finish(&s->stream);
    source_drop(s);
    (void)uv_timer_stop(&s->retry);
    source_set(s, SOURCE_STOPPED);
}

void source_close(struct source *s)
{
    source_stop(s);
    stream_deinit(&s->stream);
    heartbeat_close(&s->heartbeat);
    uv_close((uv_handle_t *)&s->retry, NULL);
    uv_close((uv_handle_t *)&s->stopping, NULL);
    uv_close((uv_handle_t *)&s->step, NULL);
}

void source_deinit(struct source *s)
{
    pglink_deinit(&s->link);
    timeline_history_deinit(&s->history);
    buf_deinit(&s->last_error);
    continuity_deinit(&s->continuity);
}
