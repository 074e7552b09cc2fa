/* SPDX-License-Identifier: PostgreSQL */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_backend.h"
#include "unit.h"

/* What FEEDBACK_IDLE_NS allows at most; no test waits for it. */
#define NO_TIMEOUT 0
#define START_LSN  0x1000

static struct fake_backend server;
static struct fake_client *c; /* the stream's */
static struct pglink link_;
static struct batch_pool pool;
static struct stream s;
static struct timeline_history history = {.current = 1};

static unsigned batches, messages, again, gaps, heartbeats, committed, ended, renewed;
static uint64_t mark; /* the highest of the batches' */
static bool advance;  /* at once, as a router does */
static bool hold;     /* from within, as a router under pressure does */

static void on_batch(void *owner, struct batch *batch)
{
    (void)owner;
    batches++;
    for (size_t i = 0; i < batch->n_entries; i++) {
        *(batch->again ? &again : &messages) += batch->entries[i].type == FRAME_MESSAGE;
        gaps += batch->entries[i].type == FRAME_GAP;
    }
    if (batch->mark) {
        ck_assert_uint_gt(batch->mark, mark);
        mark = batch->mark;
    }
    (void)batch_unref(batch);
    if (hold)
        stream_hold(&s, true);
    if (advance && mark)
        stream_advance(&s, mark);
}

static void on_heartbeat(void *owner, struct bytes content)
{
    (void)owner;
    unit_assert_text(content, "beat");
    heartbeats++;
}

static void on_committed(void *owner)
{
    (void)owner;
    committed++;
}

static void on_ended(void *owner)
{
    (void)owner;
    ck_assert(!s.running);
    ended++;
    pglink_close(&link_);
}

static void on_renew(void *owner)
{
    (void)owner;
    ck_assert(!s.running);
    renewed++;
    pglink_close(&link_);
}

static const struct stream_ops stream_ops = {
    .batch = on_batch,
    .heartbeat = on_heartbeat,
    .committed = on_committed,
    .ended = on_ended,
    .renew = on_renew,
};

/* ---- the link's owner, as source.c is one ---- */

static int64_t timeout_ms;

static void on_opened(void *owner)
{
    (void)owner;
    ck_assert_int_eq(PQsendQuery(link_.conn, "START_REPLICATION"), 1);
    ck_assert_int_eq(pglink_flush(&link_), 0);
}

static void on_failed(void *owner)
{
    (void)owner;
    ck_abort_msg("no connection: %s", buf_str(&link_.error));
}

static void on_readable(void *owner)
{
    (void)owner;
    if (s.running) {
        stream_readable(&s);
        return;
    }
    ck_assert_int_eq(PQconsumeInput(link_.conn), 1);
    if (PQisBusy(link_.conn))
        return;
    PGresult *result = PQgetResult(link_.conn);
    ck_assert_int_eq(PQresultStatus(result), PGRES_COPY_BOTH);
    PQclear(result);
    stream_start(&s, &history, (struct position){1, START_LSN, 0}, timeout_ms);
    stream_readable(&s);
}

static const struct pglink_ops link_ops = {
    .opened = on_opened, .failed = on_failed, .readable = on_readable};

static void on_query(void *owner, struct fake_client *client, const char *sql)
{
    (void)owner;
    ck_assert_str_eq(sql, "START_REPLICATION");
    backend_copy_both(client);
}

static void connect_stream(void)
{
    const struct connect_options options = {.dsn = server.dsn, .replication = true};
    unsigned before = server.n;

    pglink_connect(&link_, &options);
    BACKEND_RUN_UNTIL(&server, s.running);
    ck_assert_uint_eq(server.n, before + 1);
    c = &server.clients[before];
}

static void setup(int64_t wal_sender_timeout_ms)
{
    batches = messages  = heartbeats = committed = ended = renewed = 0;
    mark = 0;
    advance = true;
    hold = false;
    timeout_ms = wal_sender_timeout_ms;
    pool = (struct batch_pool){0};
    backend_init(&server, on_query, NULL);
    pglink_init(&link_, &server.loop, &link_ops, NULL);
    ck_assert_int_eq(stream_init(&s, &server.loop, &link_, &pool, &stream_ops, NULL), 0);
    connect_stream();
}

static void teardown(void)
{
    stream_deinit(&s);
    pglink_deinit(&link_);
    backend_deinit(&server);
    ck_assert_uint_eq(pool.live, 0);
    batch_pool_deinit(&pool);
}

static struct bytes text(const char *t)
{
    return unit_bytes(t);
}

START_TEST(one_alone_goes_on_at_once)
{
    setup(NO_TIMEOUT);
    for (unsigned i = 0; i < 5; i++) {
        backend_run_ms(&server, 5); /* long after the one before */
        backend_transaction(c, 0x2000 + i * 0x100, "a", text("x"));
        BACKEND_RUN_UNTIL(&server, messages == i + 1);
        ck_assert_uint_eq(batches, i + 1);
        ck_assert_uint_eq(committed, i + 1);
        ck_assert_uint_eq(mark, 0x2008 + i * 0x100);
    }
    teardown();
}
END_TEST

START_TEST(many_at_once_go_on_together)
{
    setup(NO_TIMEOUT);
    for (unsigned i = 0; i < 2000; i++)
        backend_transaction(c, 0x2000 + i * 0x100, "a", text("x"));
    BACKEND_RUN_UNTIL(&server, committed == 2000 && mark == 0x2008 + 1999 * 0x100);
    ck_assert_uint_eq(messages, 2000);
    /* about 190 bytes each: by size alone some six, and one each STREAM_HAND_ON_NS */
    ck_assert_uint_lt(batches, 500);
    teardown();
}
END_TEST

START_TEST(reports_what_was_advanced)
{
    setup(NO_TIMEOUT);
    advance = false;
    backend_transaction(c, 0x2000, "a", text("x"));
    BACKEND_RUN_UNTIL(&server, mark == 0x2008);
    backend_keepalive(c, 0x2008, true);
    BACKEND_RUN_UNTIL(&server, c->reports > 0);
    ck_assert_uint_eq(c->flushed, 0); /* handed on is not safe */
    backend_run_ms(&server, 30);
    uint64_t began = clock_monotonic_ns();
    stream_advance(&s, 0x2008); /* the server says nothing more */
    BACKEND_RUN_UNTIL(&server, c->flushed != 0);
    ck_assert_uint_lt(clock_monotonic_ns() - began, FEEDBACK_IDLE_NS / 4); /* which is when it would be told in any case */
    ck_assert_uint_eq(c->flushed, 0x2008); /* exactly, never one more */
    teardown();
}
END_TEST

START_TEST(reports_are_paced)
{
    setup(NO_TIMEOUT);
    uint64_t began = clock_monotonic_ns();
    for (unsigned i = 0; i < 100; i++) {
        backend_transaction(c, 0x2000 + i * 0x100, "a", text("x"));
        backend_run_ms(&server, 1);
    }
    BACKEND_RUN_UNTIL(&server, c->flushed == 0x2008 + 99 * 0x100);
    /* one in FEEDBACK_PACE_NS, and one each for the ends of the time */
    ck_assert_uint_le(c->reports, (clock_monotonic_ns() - began) / FEEDBACK_PACE_NS + 2);
    ck_assert_uint_ge(c->reports, 2);
    teardown();
}
END_TEST

START_TEST(answers_when_asked)
{
    setup(NO_TIMEOUT);
    for (unsigned i = 1; i <= 5; i++) {
        backend_keepalive(c, 0x2000, true);
        BACKEND_RUN_UNTIL(&server, c->reports == i);
    }
    backend_keepalive(c, 0x2000, false);
    backend_run_ms(&server, 50);
    ck_assert_uint_eq(c->reports, 5);
    ck_assert_uint_eq(c->flushed, 0);
    teardown();
}
END_TEST

START_TEST(reports_by_itself_within_the_timeout)
{
    setup(90); /* every 30 ms */
    uint64_t began = clock_monotonic_ns();
    BACKEND_RUN_UNTIL(&server, c->reports == 5);
    ck_assert_uint_ge(clock_monotonic_ns() - began, 5 * UINT64_C(30000000) - UINT64_C(30000000));
    teardown();
}
END_TEST

START_TEST(keepalives_count_once_a_message_came)
{
    setup(NO_TIMEOUT);
    backend_keepalive(c, 0x1800, true);
    BACKEND_RUN_UNTIL(&server, c->reports == 1);
    backend_run_ms(&server, 30);
    ck_assert_uint_eq(mark,
                      0); /* the option `messages` may be missing: then only keepalives come */
    backend_transaction(c, 0x2000, "_walbus.heartbeat", text("beat"));
    BACKEND_RUN_UNTIL(&server, heartbeats == 1 && committed == 1);
    backend_keepalive(c, 0x2800, true);
    BACKEND_RUN_UNTIL(&server, c->flushed == 0x2800);
    ck_assert_uint_eq(messages, 0);
    /* inside a transaction it says nothing */
    backend_begin(c, 0x3000);
    backend_keepalive(c, 0x2900, true);
    unsigned reports = c->reports;
    BACKEND_RUN_UNTIL(&server, c->reports > reports);
    ck_assert_uint_eq(c->flushed, 0x2800);
    /* proven is proven: of this slot, also over another connection */
    backend_hang_up(c);
    BACKEND_RUN_UNTIL(&server, ended == 1);
    connect_stream();
    backend_keepalive(c, 0x3800, true);
    BACKEND_RUN_UNTIL(&server, c->flushed == 0x3800);
    teardown();
}
END_TEST

START_TEST(held)
{
    setup(90);
    stream_hold(&s, true);
    backend_transaction(c, 0x2000, "a", text("x"));
    unsigned reports = c->reports;
    BACKEND_RUN_UNTIL(&server, c->reports >= reports + 3); /* reports go on */
    ck_assert_uint_eq(messages + committed, 0);
    ck_assert_uint_eq(c->flushed, 0);
    stream_hold(&s, true);
    stream_hold(&s, false);
    ck_assert_uint_eq(messages, 0); /* from the loop, not from within */
    BACKEND_RUN_UNTIL(&server, messages == 1 && c->flushed == 0x2008);
    teardown();
}
END_TEST

START_TEST(hold_outlives_a_connection)
{
    setup(NO_TIMEOUT);
    stream_hold(&s, true);
    stream_stop(&s);
    connect_stream();
    backend_transaction(c, 0x2000, "a", text("x"));
    backend_run_ms(&server, 50);
    ck_assert_uint_eq(messages, 0);
    stream_hold(&s, false);
    BACKEND_RUN_UNTIL(&server, messages == 1);
    teardown();
}
END_TEST

START_TEST(held_from_within_a_batch)
{
    char *content = malloc(70000);

    ck_assert_ptr_nonnull(content);
    memset(content, 'x', 70000);
    setup(NO_TIMEOUT);
    hold = true;
    backend_begin(c, 0x9000);
    for (unsigned i = 0; i < 5;
         i++) /* of which the socket holds some, and one pass would read them */
        backend_message(c, 0x2000 + i * 0x10, "a", (struct bytes){(uint8_t *)content, 70000});
    BACKEND_RUN_UNTIL(&server, messages > 0);
    backend_run_ms(&server, 50);
    ck_assert_uint_eq(messages, 1); /* with more in libpq's buffer */
    hold = false;
    stream_hold(&s, false);
    backend_commit(c, 0x9000);
    BACKEND_RUN_UNTIL(&server, committed == 1 && mark == 0x9008);
    ck_assert_uint_eq(messages, 5);
    free(content);
    teardown();
}
END_TEST

START_TEST(ended_by_the_server)
{
    setup(NO_TIMEOUT);
    backend_begin(c, 0x2000);
    backend_message(c, 0x1FF0, "a", text("x"));
    backend_error(c, false, "FATAL", "57P01", "terminating");
    backend_hang_up(c);
    BACKEND_RUN_UNTIL(&server, ended == 1);
    ck_assert_uint_eq(messages, 1); /* what had come is handed on */
    ck_assert_uint_eq(mark, 0);
    ck_assert(!s.undecodable);
    ck_assert_str_eq(link_.sqlstate, "57P01");
    ck_assert_str_eq(buf_str(&link_.error), "terminating");
    teardown();
}
END_TEST

START_TEST(ended_without_a_word)
{
    setup(NO_TIMEOUT);
    backend_copy_done(c);
    backend_done(c);
    backend_ready(c);
    BACKEND_RUN_UNTIL(&server, ended == 1);
    ck_assert_str_eq(buf_str(&link_.error), "the server ended the stream");
    ck_assert_str_eq(link_.sqlstate, "");
    ck_assert(!s.undecodable);
    teardown();
}
END_TEST

START_TEST(ended_by_what_came)
{
    setup(NO_TIMEOUT);
    backend_transaction(c, 0x2000, "a", text("x"));
    backend_data(c, text("?"));
    BACKEND_RUN_UNTIL(&server, ended == 1);
    ck_assert(s.undecodable);
    ck_assert_uint_gt(link_.error.size, 0);
    ck_assert_str_eq(link_.sqlstate, "");
    ck_assert_uint_eq(messages, 1);
    /* the next connection begins with a clean sheet */
    connect_stream();
    ck_assert(!s.undecodable);
    teardown();
}
END_TEST

START_TEST(interrupted_transaction)
{
    setup(NO_TIMEOUT);
    backend_begin(c, 0x2000);
    backend_message(c, 0x1FF0, "a", text("x"));
    BACKEND_RUN_UNTIL(&server, messages == 1);
    stream_stop(&s);
    connect_stream();
    backend_transaction(c, 0x3000, "a", text("y")); /* something newer, and not its rest */
    BACKEND_RUN_UNTIL(&server, messages == 2);
    ck_assert_uint_eq(gaps, 1);
    teardown();
}
END_TEST

START_TEST(asked_in_vain)
{
    setup(NO_TIMEOUT);
    for (unsigned i = 0; i < FEEDBACK_ASKED_MAX; i++)
        backend_keepalive(c, 0x2000, true);
    BACKEND_RUN_UNTIL(&server, ended == 1);
    ck_assert_ptr_nonnull(strstr(buf_str(&link_.error), "being shut down"));
    ck_assert_uint_lt(c->reports, FEEDBACK_ASKED_MAX); /* once a turn, not once a question */
    teardown();
}
END_TEST

START_TEST(finish_reports_for_the_last_time)
{
    setup(NO_TIMEOUT);
    advance = false;
    backend_transaction(c, 0x2000, "a", text("x"));
    BACKEND_RUN_UNTIL(&server, mark == 0x2008);
    stream_advance(&s, 0x2008);
    stream_finish(&s);
    ck_assert(!s.running);
    stream_advance(&s, 0x3000); /* of no connection any more */
    pglink_close(&link_);
    BACKEND_RUN_UNTIL(&server, c->fd < 0);
    ck_assert_uint_eq(c->flushed, 0x2008);
    stream_finish(&s);
    teardown();
}
END_TEST

START_TEST(renewed_after_a_large_message)
{
    size_t size = STREAM_RENEW_SIZE + 1;
    uint8_t *content = calloc(1, size);

    ck_assert_ptr_nonnull(content);
    setup(NO_TIMEOUT);
    backend_transaction(c, 0x2000, "a", (struct bytes){content, size});
    BACKEND_RUN_UNTIL(&server, mark == 0x2008);
    uint64_t began = clock_monotonic_ns();
    BACKEND_RUN_UNTIL(&server, renewed == 1);
    ck_assert_uint_ge(clock_monotonic_ns() - began, STREAM_RENEW_IDLE_NS / 2);
    BACKEND_RUN_UNTIL(&server, c->fd < 0);
    ck_assert_uint_eq(c->flushed, 0x2008); /* else all would come again */
    ck_assert_uint_eq(ended, 0);
    /* the flag is the old connection's */
    connect_stream();
    ck_assert(!s.renew);
    free(content);
    teardown();
}
END_TEST

START_TEST(not_renewed_inside_a_transaction)
{
    setup(NO_TIMEOUT);
    s.renew = true; /* a large message went by */
    backend_begin(c, 0x2000);
    backend_message(c, 0x1FF0, "a", text("x"));
    BACKEND_RUN_UNTIL(&server, messages == 1);
    backend_run_ms(&server, 2200);
    ck_assert_uint_eq(renewed, 0);
    backend_commit(c, 0x2000);
    BACKEND_RUN_UNTIL(&server, renewed == 1);
    teardown();
}
END_TEST

UNIT_MAIN("stream", one_alone_goes_on_at_once, many_at_once_go_on_together,
          reports_what_was_advanced, reports_are_paced, answers_when_asked,
          reports_by_itself_within_the_timeout, keepalives_count_once_a_message_came, held,
          hold_outlives_a_connection, held_from_within_a_batch, ended_by_the_server,
          ended_without_a_word, ended_by_what_came, interrupted_transaction, asked_in_vain,
          finish_reports_for_the_last_time, renewed_after_a_large_message,
          not_renewed_inside_a_transaction)
