/* SPDX-License-Identifier: PostgreSQL */
#include "heartbeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_backend.h"
#include "unit.h"

#define MS       UINT64_C(1000000)
#define INTERVAL (100 * MS)
#define CONTENT  24 /* instance, number */

static struct fake_backend server;
static struct heartbeat h;
static struct logger logger;
static char *log_text;
static size_t log_size;

static unsigned facts_came, stopping;
static struct server_facts facts;
static bool stop_at_facts;

/* What was asked, in order: s settings, l look-up, e emit. */
static char asked[64];
static struct buf last_emit;
static const char *fail_emit, *fail_look_up; /* SQLSTATE of the answer */
static bool slow;                            /* nothing is answered */

static unsigned asked_for(char what)
{
    unsigned n = 0;

    for (const char *p = asked; *p; p++)
        n += *p == what;
    return n;
}

/* The row of pg/precondition.c's query: as of a good slot that a walsender of pid 77 reads. */
static void answer_look_up(struct fake_client *c)
{
    char pid[16];
    const char *const values[] = {"f",      "logical",  "u",      "d",   "t",      "t",  "t",        "t",
                                  "f",      "10",     "1",        "f",      "63",  "t",      "p",  "t",  "t",        "pgoutput",
                                  "d",      "f",        "f",      "77",  "reserved", "", "0/1000",   "0/2000",
                                  "16",     "-1",       "0/3000", "60000", "4711", pid};

    (void)snprintf(pid, sizeof pid, "%d", c->pid);
    backend_row(c, ARRAY_SIZE(values), values);
}

static void on_query(void *owner, struct fake_client *c, const char *sql)
{
    size_t n = strlen(asked);
    const char *fail = NULL;
    char what = 's';

    (void)owner;
    if (strstr(sql, "pg_replication_slots")) {
        what = 'l';
        fail = fail_look_up;
    } else if (strstr(sql, "pg_logical_emit_message")) {
        what = 'e';
        fail = fail_emit;
        buf_clear(&last_emit);
        buf_append(&last_emit, c->param.data, c->param.size);
    }
    ck_assert_uint_lt(n, sizeof asked - 1);
    asked[n] = what;
    if (slow)
        return;
    if (fail)
        backend_error(c, false, "ERROR", fail, "no");
    else if (what == 'l')
        answer_look_up(c);
    else if (what == 'e')
        backend_row(c, 1, (const char *const[]){"0/2000"});
    else
        backend_done(c);
    backend_ready(c);
}

static void on_facts(void *owner, const struct server_facts *f)
{
    (void)owner;
    facts_came++;
    facts = *f;
    if (stop_at_facts)
        heartbeat_stop(&h);
}

static void on_stopping(void *owner)
{
    (void)owner;
    stopping++;
}

static const struct heartbeat_ops ops = {.facts = on_facts, .server_stopping = on_stopping};

static void start(void)
{
    struct connect_place place = {.port = "5432"};

    (void)snprintf(place.host, sizeof place.host, "%s", server.folder);
    heartbeat_start(&h, &place);
}

static void setup(uint64_t interval)
{
    facts_came = stopping = 0;
    stop_at_facts = slow = false;
    fail_emit = fail_look_up = NULL;
    memset(asked, 0, sizeof asked);
    logger = (struct logger){.level = LOG_INFO};
    logger.out = open_memstream(&log_text, &log_size);
    ck_assert_ptr_nonnull(logger.out);
    backend_init(&server, on_query, NULL);
    ck_assert_int_eq(heartbeat_init(&h, &server.loop, "host=/nonexistent dbname=d user=u", "s'lot",
                                    "pub", interval, &ops, NULL, &logger),
                     0);
    start();
}

static void teardown(void)
{
    heartbeat_close(&h);
    backend_deinit(&server);
    buf_deinit(&last_emit);
    ck_assert_int_eq(fclose(logger.out), 0);
    free(log_text);
}

/** How often an id was logged. */
static unsigned logged(const char *id)
{
    unsigned n = 0;

    ck_assert_int_eq(fflush(logger.out), 0);
    for (const char *p = log_text; (p = strstr(p, id)); p++)
        n++;
    return n;
}

/** The last heartbeat comes back through the stream. */
static void comes_back(void)
{
    uint64_t now = clock_monotonic_ns();

    heartbeat_received(&h, buf_bytes(&last_emit), now);
    heartbeat_commit_received(&h, now);
}

START_TEST(looks_first_and_emits)
{
    setup(3600 * 1000 * MS);
    ck_assert_int_eq(heartbeat_age_ms(&h, clock_monotonic_ns()), -1);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    ck_assert_str_eq(asked, "sle");
    /* the dsn's host is replaced by the stream's */
    ck_assert_uint_eq(server.n, 1);
    ck_assert_str_eq(server.clients[0].application, "walbusd heartbeat");
    ck_assert(!server.clients[0].replication);
    ck_assert_uint_eq(facts_came, 1);
    ck_assert_int_eq(facts.slot_active_pid, 77);
    ck_assert_uint_eq(facts.slot_confirmed_flush_lsn, 0x2000);
    ck_assert(!facts.pooler);
    ck_assert_uint_eq(last_emit.size, CONTENT);
    comes_back();
    uint64_t now = clock_monotonic_ns();
    ck_assert_int_eq(heartbeat_age_ms(&h, now + 1500 * MS) / 1000, 1);
    backend_run_ms(&server, 100);
    ck_assert_str_eq(asked, "sle"); /* nothing more is due */
    ck_assert_uint_eq(logged("heartbeat."), 0);
    teardown();
}
END_TEST

START_TEST(looks_when_told)
{
    setup(3600 * 1000 * MS);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1 && h.busy == HEARTBEAT_IDLE);
    heartbeat_look_up(&h);
    BACKEND_RUN_UNTIL(&server, facts_came == 2);
    ck_assert_str_eq(asked, "slel");
    teardown();
}
END_TEST

START_TEST(one_in_flight)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    backend_run_ms(&server, 150); /* more than an interval */
    ck_assert_uint_eq(asked_for('e'), 1);
    struct buf first = BUF_INIT;
    buf_append(&first, last_emit.data, last_emit.size);
    comes_back();
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 2);
    /* the same router, the next number */
    ck_assert_mem_eq(last_emit.data, first.data, 16);
    ck_assert_uint_eq(bytes_get_u64(last_emit.data + 16), bytes_get_u64(first.data + 16) + 1);
    buf_deinit(&first);
    teardown();
}
END_TEST

START_TEST(transactions_stand_in_for_it)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    comes_back();
    for (unsigned i = 0; i < 40; i++) {
        heartbeat_commit_received(&h, clock_monotonic_ns());
        backend_run_ms(&server, 10);
    }
    ck_assert_uint_eq(asked_for('e'), 1);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 2); /* when they stop */
    teardown();
}
END_TEST

START_TEST(others_count_for_nothing)
{
    uint8_t other[CONTENT + 1] = {0};

    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    uint64_t now = clock_monotonic_ns();
    heartbeat_received(&h, (struct bytes){other, CONTENT}, now);
    heartbeat_received(&h, (struct bytes){last_emit.data, CONTENT - 1}, now);
    memcpy(other, last_emit.data, CONTENT);
    heartbeat_received(&h, (struct bytes){other, CONTENT + 1}, now);
    ck_assert_int_eq(heartbeat_age_ms(&h, now), -1);
    ck_assert(h.in_flight);
    /* one of ours from before a reconnect is a sign of life, and not the one that is waited for */
    bytes_put_u64(other + 16, h.number - 1);
    heartbeat_received(&h, (struct bytes){other, CONTENT}, now);
    ck_assert_int_eq(heartbeat_age_ms(&h, now), 0);
    ck_assert(h.in_flight);
    comes_back();
    ck_assert(!h.in_flight);
    teardown();
}
END_TEST

START_TEST(missing_and_back)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.missing") == 1);
    ck_assert_uint_ge(clock_monotonic_ns() - h.last_emit, HEARTBEAT_MISSING_INTERVALS * INTERVAL);
    backend_run_ms(&server, 300);
    ck_assert_uint_eq(logged("heartbeat.missing"), 1);
    ck_assert_uint_eq(asked_for('e'), 1);
    comes_back();
    ck_assert_uint_eq(logged("heartbeat.back"), 1);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 2);
    teardown();
}
END_TEST

START_TEST(not_missing_while_held)
{
    setup(INTERVAL);
    h.held = true;
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    backend_run_ms(&server, 400);
    ck_assert_uint_eq(logged("heartbeat.missing"), 0);
    h.held = false;
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.missing") == 1);
    teardown();
}
END_TEST

START_TEST(a_failing_one_is_an_alarm)
{
    fail_emit = "42501";
    setup(INTERVAL);
    fail_emit = "42501";
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.failed") == 1);
    ck_assert_uint_eq(logged("42501"), 1);
    BACKEND_RUN_UNTIL(&server, asked_for('e') >= 3);  /* it goes on trying … */
    ck_assert_uint_eq(logged("heartbeat.failed"), 1); /* … and says so once */
    ck_assert_uint_eq(logged("heartbeat.works"), 0);
    fail_emit = NULL;
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.works") == 1);
    teardown();
}
END_TEST

START_TEST(refused_is_an_alarm)
{
    setup(INTERVAL);
    server.refuse = "53300";
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.failed") == 1);
    ck_assert_uint_eq(stopping, 0);
    server.refuse = NULL;
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.works") == 1);
    ck_assert_uint_eq(facts_came, 1); /* the look-up came first, as ever */
    teardown();
}
END_TEST

START_TEST(a_stopping_server)
{
    setup(3600 * 1000 * MS);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1 && h.busy == HEARTBEAT_IDLE);
    server.refuse = "57P03";
    backend_error(&server.clients[0], false, "FATAL", "57P01", "terminating");
    backend_hang_up(&server.clients[0]);
    uint64_t began = clock_monotonic_ns();
    BACKEND_RUN_UNTIL(&server, stopping == 1);
    /* at once: half of the time until the next attempt is far too long for a shutdown */
    ck_assert_uint_lt(clock_monotonic_ns() - began, HEARTBEAT_RETRY_MS * MS / 2);
    backend_run_ms(&server, 2 * HEARTBEAT_RETRY_MS + 200); /* looked at once a second */
    ck_assert_uint_ge(server.n, 3);
    ck_assert_uint_eq(stopping, 1); /* once */
    ck_assert_uint_eq(logged("heartbeat.failed"), 0);
    /* and once more with the next stream */
    heartbeat_stop(&h);
    start();
    BACKEND_RUN_UNTIL(&server, stopping == 2);
    teardown();
}
END_TEST

START_TEST(a_killed_session_is_replaced)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1 && h.busy == HEARTBEAT_IDLE);
    comes_back();
    backend_error(&server.clients[0], false, "FATAL", "57P01", "terminating");
    backend_hang_up(&server.clients[0]);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 2);
    ck_assert_uint_eq(server.n, 2);
    ck_assert_uint_eq(logged("heartbeat."), 0);
    teardown();
}
END_TEST

START_TEST(an_end_without_a_word_is_an_alarm)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1 && h.busy == HEARTBEAT_IDLE);
    comes_back();
    backend_hang_up(&server.clients[0]);
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.failed") == 1);
    BACKEND_RUN_UNTIL(&server, logged("heartbeat.works") == 1);
    teardown();
}
END_TEST

START_TEST(stopped)
{
    setup(INTERVAL);
    BACKEND_RUN_UNTIL(&server, asked_for('e') == 1);
    heartbeat_stop(&h);
    BACKEND_RUN_UNTIL(&server, server.clients[0].fd < 0);
    heartbeat_look_up(&h); /* nobody is there to look */
    backend_run_ms(&server, 250);
    ck_assert_uint_eq(asked_for('e'), 1);
    ck_assert_uint_eq(server.n, 1);
    teardown();
}
END_TEST

START_TEST(stopped_from_within_facts)
{
    setup(INTERVAL);
    stop_at_facts = true; /* as the source does when the stream turns out to be gone */
    BACKEND_RUN_UNTIL(&server, facts_came == 1);
    BACKEND_RUN_UNTIL(&server, server.clients[0].fd < 0);
    ck_assert_str_eq(asked, "sl");
    teardown();
}
END_TEST

UNIT_MAIN("heartbeat", looks_first_and_emits, looks_when_told, one_in_flight,
          transactions_stand_in_for_it, others_count_for_nothing, missing_and_back,
          not_missing_while_held, a_failing_one_is_an_alarm, refused_is_an_alarm, a_stopping_server,
          a_killed_session_is_replaced, an_end_without_a_word_is_an_alarm, stopped,
          stopped_from_within_facts)
