/* SPDX-License-Identifier: PostgreSQL */
#include "source_steps.h"

#include <stdio.h>
#include <stdlib.h>

static void source_on_step(uv_timer_t *timer)
{
    source_fail_with(timer->data, "the server does not answer", "source.silent",
                     "A query on the replication connection was not answered; connecting again.");
}

static void source_query(struct source *s, enum source_state state, const char *sql)
{
    source_set(s, state);
    source_time_limit(s, source_on_step, SOURCE_STEP_MS);
    if (!PQsendQuery(s->link.conn, sql) || pglink_flush(&s->link) < 0) {
        pglink_note_error(&s->link, NULL);
        source_fail(s, "source.query-failed", "A query on the replication connection failed.");
    }
}

void source_steps_begin(struct source *s)
{
    struct precondition_finding findings[PRECONDITION_MAX];
    struct buf sql = BUF_INIT;
    size_t n = precondition_check_connection(s->link.conn, findings);

    if (n) {
        source_findings(s, findings, n);
        return;
    }
    sql_put_patience(&sql, PQserverVersion(s->link.conn), true);
    if (precondition_query(s->link.conn, s->slot, s->publication, &sql) < 0)
        source_fail_with(s, "no memory", "source.query-failed",
                         "The preconditions could not be looked up.");
    else
        source_query(s, SOURCE_CHECKING, buf_str(&sql));
    buf_deinit(&sql);
}

/* No pooler is in front: what is set now stays in a session of our own. */
static void source_settings(struct source *s)
{
    struct buf sql = BUF_INIT;

    sql_put_patience(&sql, PQserverVersion(s->link.conn), false);
    source_query(s, SOURCE_SETTING, buf_str(&sql));
    buf_deinit(&sql);
}

static void take_facts(struct source *s, const PGresult *result)
{
    struct precondition_finding findings[PRECONDITION_MAX];

    if (precondition_read(s->link.conn, result, &s->facts) < 0) {
        source_fail_with(s, "the server's answer to the preconditions' query is not as expected",
                         "source.query-failed", "The preconditions could not be looked up.");
        return;
    }
    s->has_facts = true;
    if (!source_judge(s, continuity_server(&s->continuity, s->facts.system_identifier)) ||
        !source_judge(s, continuity_database(&s->continuity, s->facts.database)))
        return;
    size_t n = precondition_check(&s->facts, s->slot, s->publication, PRECONDITION_FOR_ROUTER,
                                  findings);
    if (n) {
        source_findings(s, findings, n);
        return;
    }
    source_settings(s); /* the slot's place is judged when its timeline is known */
}

static void source_start_replication(struct source *s)
{
    struct buf sql = BUF_INIT, publication = BUF_INIT;

    buf_append_str(&sql, "START_REPLICATION SLOT ");
    sql_put_identifier(&sql, s->slot);
    buf_append_str(&sql, " LOGICAL 0/0 (proto_version '1', publication_names ");
    /* a list of identifiers inside a literal */
    sql_put_identifier(&publication, s->facts.publication);
    sql_put_literal(&sql, buf_str(&publication));
    buf_append_str(&sql, ", messages 'true')");
    source_query(s, SOURCE_STARTING, buf_str(&sql));
    buf_deinit(&publication);
    buf_deinit(&sql);
}

/* Behind what the history shares: what was told may have fallen back, and a slot made anew on a promoted server stands
 * beyond it. Where a gap was accepted nothing was told, and the slot is adopted. */
static void source_judge_slot(struct source *s)
{
    if (source_judge(s, continuity_slot(&s->continuity, s->facts.slot_confirmed_flush_lsn)))
        source_start_replication(s);
}

static void take_system(struct source *s, const PGresult *result)
{
    char sql[64];
    unsigned long timeline = PQntuples(result) == 1 && PQnfields(result) >= 3
                                 ? strtoul(PQgetvalue(result, 0, 1), NULL, 10)
                                 : 0;

    if (timeline == 0 || timeline > UINT32_MAX) {
        source_fail_with(s, "IDENTIFY_SYSTEM gave no timeline", "source.query-failed",
                         "The server could not be identified.");
        return;
    }
    if (!source_judge(s, continuity_timeline(&s->continuity, (uint32_t)timeline, s->facts.wal_lsn)))
        return;
    s->history.current = (uint32_t)timeline;
    if (timeline == 1) { /* has no history file; asking for it is an error */
        source_judge_slot(s);
        return;
    }
    snprintf(sql, sizeof sql, "TIMELINE_HISTORY %lu", timeline);
    source_query(s, SOURCE_HISTORY, sql);
}

/* After a promotion: was something read that the new history does not have? */
static void source_note_switch(struct source *s)
{
    char told[LSN_TEXT_SIZE], at[LSN_TEXT_SIZE];
    uint64_t read_to = s->continuity.told, left_at;

    if (continuity_left(&s->continuity, &s->history, &left_at))
        log_line(s->log, LOG_WARNING, "source.timeline-left",
                 "The server follows a new timeline; what lies behind the switch point on the old "
                 "one was read here and is not part of its history.",
                 LOG_U64("old_timeline", s->continuity.timeline),
                 LOG_U64("timeline", s->history.current),
                 LOG_STR("switch_point", lsn_format(left_at, at)),
                 LOG_STR("read_to", lsn_format(read_to, told)));
}

static void take_history(struct source *s, const PGresult *result)
{
    struct timeline_history history;
    bool one = PQntuples(result) == 1 && PQnfields(result) == 2;
    const struct bytes text = {one ? (const uint8_t *)PQgetvalue(result, 0, 1) : NULL,
                               one ? (size_t)PQgetlength(result, 0, 1) : 0};

    if (!one || timeline_history_parse(&history, s->history.current, text) < 0) {
        source_fail_with(s, "the timeline history could not be read", "source.query-failed",
                         "The server's timelines are unknown.");
        return;
    }
    s->history = history;
    if (!source_judge(s, continuity_history(&s->continuity, &s->history)))
        return;
    source_note_switch(s);
    source_judge_slot(s);
}

void source_steps_answer(struct source *s)
{
    PGresult *result = s->result;

    s->result = NULL;
    if (PQresultStatus(result) != PGRES_TUPLES_OK) {
        struct precondition_finding findings[PRECONDITION_MAX];

        pglink_note_error(&s->link, result);
        size_t n = precondition_explain_query(s->link.conn, s->link.sqlstate, s->publication,
                                              findings);
        if (n)
            source_findings(s, findings, n);
        else
            source_fail(s, "source.query-failed", "The server refused a step towards streaming.");
    } else if (s->state == SOURCE_CHECKING) {
        take_facts(s, result);
    } else if (s->state == SOURCE_SETTING) {
        source_query(s, SOURCE_IDENTIFYING, "IDENTIFY_SYSTEM");
    } else if (s->state == SOURCE_IDENTIFYING) {
        take_system(s, result);
    } else if (s->state == SOURCE_HISTORY) {
        take_history(s, result);
    }
    PQclear(result);
}
