/* SPDX-License-Identifier: PostgreSQL */
/*
 * publish_api [POOLER-DSN] DSN: libwalbus' publishing on a real server, through the shared
 * library. What was published is read back by a temporary slot of pgoutput, so
 * contents, flags, order and LSNs are the ones that a subscriber would get. The
 * role must be a superuser. With a second DSN the first one is a pooler's, in
 * mode transaction and with one session of that server's for all. One line a check on stdout; exit 0 when all are ok.
 */
#include <libpq-fe.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "walbus/walbus.h"

static int n_failed;

__attribute__((format(printf, 2, 3))) static bool check(bool ok, const char *fmt, ...)
{
    va_list ap;

    (void)fputs(ok ? "ok      " : "NOT OK  ", stdout);
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)putchar('\n');
    (void)fflush(stdout);
    n_failed += !ok;
    return ok;
}

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
    (void)printf("NOT OK  %s: %s\n", what, why);
    exit(1);
}

static void expect(const struct walbus_publisher *p, enum walbus_result got,
                   enum walbus_result want, const char *what)
{
    check(got == want, "%s: %s%s%s%s%s", what, walbus_result_name(got),
          got == want ? "" : ", wanted ", got == want ? "" : walbus_result_name(want),
          got == WALBUS_OK ? "" : ": ", got == WALBUS_OK ? "" : walbus_publisher_error(p));
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *r = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(r);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        die(sql, PQerrorMessage(conn));
    PQclear(r);
}

static PGconn *open_connection(const char *dsn)
{
    PGconn *conn = PQconnectdb(dsn);

    if (PQstatus(conn) != CONNECTION_OK)
        die("connect", PQerrorMessage(conn));
    run(conn, "SET client_min_messages = error");
    return conn;
}

static struct walbus_publisher *new_publisher(size_t max_content, size_t max_prefix)
{
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *p = NULL;

    options.source = "/test";
    options.max_content = max_content;
    options.max_prefix = max_prefix;
    if (walbus_publisher_new(&options, &p) != WALBUS_OK)
        die("walbus_publisher_new", "failed");
    return p;
}

static struct walbus_event new_event(const char *prefix)
{
    struct walbus_event event = WALBUS_EVENT_INIT;

    event.prefix = prefix;
    return event;
}

/* ---- reading back ---- */

/* An 'M' of pgoutput: type, flags, LSN, prefix with its NUL, length, content. */
struct message {
    bool transactional;
    uint64_t lsn;
    const char *prefix;
    const uint8_t *content;
    size_t size;
};

static uint64_t big_endian(const char *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

/** Everything published since the last call, at most `max`; the messages borrow from *ret. */
static size_t read_back(PGconn *conn, struct message *messages, size_t max, PGresult **ret)
{
    size_t n = 0;
    PGresult *r = PQexecParams(conn,
                               "SELECT data FROM pg_logical_slot_get_binary_changes('publish_api', "
                               "NULL, NULL, 'proto_version', '1', 'publication_names', "
                               "'publish_api', 'messages', 'true')",
                               0, NULL, NULL, NULL, NULL, 1);

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        die("reading back", PQerrorMessage(conn));
    for (int i = 0; i < PQntuples(r); i++) {
        const char *data = PQgetvalue(r, i, 0);

        if (data[0] != 'M')
            continue;
        if (n == max)
            die("reading back", "more messages than expected");
        struct message *m = &messages[n++];
        m->transactional = data[1] == 1;
        m->lsn = big_endian(data + 2, 8);
        m->prefix = data + 10;
        const char *after = m->prefix + strlen(m->prefix) + 1;
        m->size = (size_t)big_endian(after, 4);
        m->content = (const uint8_t *)after + 4;
    }
    *ret = r;
    return n;
}

static bool holds(const struct message *m, const char *text)
{
    return memmem(m->content, m->size, text, strlen(text)) != NULL;
}

static void expect_nothing(PGconn *reader, const char *what)
{
    struct message m[8];
    PGresult *r = NULL;

    check(read_back(reader, m, 8, &r) == 0, "%s: nothing was published", what);
    PQclear(r);
}

/* ---- publishing ---- */

static void test_one(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    const struct walbus_attribute attributes[] = {{"partitionkey", "eu"}, {"traceparent", "00-1"}};
    struct walbus_event event = new_event("orders.created");
    struct walbus_receipt receipt = {0};
    struct message m[4];
    PGresult *r = NULL;

    event.content_type = "application/json";
    event.subject = "17";
    event.data_kind = WALBUS_DATA_TEXT;
    event.data = "{\"order\": 17, \"k\": \"\xc3\xa4\"}";
    event.data_size = strlen(event.data);
    event.attributes = attributes;
    event.n_attributes = 2;
    run(conn, "BEGIN");
    expect(p, walbus_publish(p, conn, &event, WALBUS_REQUIRE_TRANSACTION, &receipt), WALBUS_OK,
           "one event");
    run(conn, "COMMIT");
    if (check(read_back(reader, m, 4, &r) == 1, "one event comes back")) {
        check(m[0].transactional && m[0].lsn == receipt.lsn, "its flag and its LSN");
        check(strcmp(m[0].prefix, "orders.created") == 0, "its prefix");
        check(m[0].size > 4 && memcmp(m[0].content, "\xd9\xd9\xf7", 3) == 0, "tag 55799");
        check(strlen(receipt.id) == 36 && receipt.id[14] == '7' && holds(&m[0], receipt.id),
              "a UUIDv7 as id: %s", receipt.id);
        check(holds(&m[0], "/test") && holds(&m[0], "application/json") && holds(&m[0], event.data),
              "source, content type and data");
        /* Text strings of 12, 2, 11 and 4 bytes: each name stands right before its value. */
        check(holds(&m[0], "\x6cpartitionkey\x62"
                           "eu") &&
                  holds(&m[0], "\x6btraceparent\x64"
                               "00-1"),
              "attributes, name before value");
    }
    PQclear(r);

    event.id = "my-own";
    event.source = "/elsewhere";
    event.type = "com.example.created";
    event.time_us = INT64_C(1700000000123456);
    expect(p, walbus_publish(p, conn, &event, 0, &receipt), WALBUS_OK,
           "outside a transaction block");
    check(receipt.id[0] == '\0', "no id was made for an event that has one");
    if (check(read_back(reader, m, 4, &r) == 1, "it comes back"))
        check(holds(&m[0], "my-own") && holds(&m[0], "/elsewhere") && !holds(&m[0], "/test") &&
                  holds(&m[0], "com.example.created") &&
                  holds(&m[0], "2023-11-14T22:13:20.123456Z"),
              "its own id, source, type and time");
    PQclear(r);
}

static void test_rollback(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    struct walbus_event event = new_event("a.b");
    struct message m[4];
    PGresult *r = NULL;

    run(conn, "BEGIN");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "published, then rolled back");
    run(conn, "ROLLBACK");
    expect_nothing(reader, "rolled back");

    run(conn, "BEGIN");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "before the savepoint");
    run(conn, "SAVEPOINT s");
    event.prefix = "a.savepoint";
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "inside the savepoint");
    run(conn, "ROLLBACK TO s");
    run(conn, "COMMIT");
    if (check(read_back(reader, m, 4, &r) == 1, "only the one before the savepoint"))
        check(strcmp(m[0].prefix, "a.b") == 0, "it is that one");
    PQclear(r);

    event.prefix = "a.now";
    run(conn, "BEGIN");
    expect(p, walbus_publish(p, conn, &event, WALBUS_NON_TRANSACTIONAL, NULL), WALBUS_OK,
           "non-transactional, then rolled back");
    run(conn, "ROLLBACK");
    /* On a server before 17 its WAL is flushed with the next commit. */
    run(conn, "CREATE TABLE publish_api_flush ()");
    run(conn, "DROP TABLE publish_api_flush");
    if (check(read_back(reader, m, 4, &r) == 1, "it comes back all the same"))
        check(!m[0].transactional, "its flag");
    PQclear(r);
}

enum { MANY = 1000 };

static void test_many(struct walbus_publisher *p, PGconn *conn, PGconn *reader, unsigned flags)
{
    static struct walbus_event events[MANY];
    static struct walbus_receipt receipts[MANY];
    static char prefixes[MANY][16], data[MANY][16];
    static struct message m[MANY + 1];
    PGresult *r = NULL;
    bool in_order = true;

    for (int i = 0; i < MANY; i++) {
        (void)snprintf(prefixes[i], sizeof prefixes[i], "many.%d", i % 7);
        (void)snprintf(data[i], sizeof data[i], "number %04d", i);
        events[i] = new_event(prefixes[i]);
        events[i].data_kind = WALBUS_DATA_TEXT;
        events[i].data = data[i];
        events[i].data_size = strlen(data[i]);
    }
    expect(p, walbus_publish_many(p, conn, events, MANY, flags, receipts), WALBUS_OK,
           flags ? "1000 events, non-transactional" : "1000 events");
    run(conn, "CREATE TABLE publish_api_flush ()");
    run(conn, "DROP TABLE publish_api_flush");
    size_t n = read_back(reader, m, MANY + 1, &r);
    if (check(n == MANY, "%zu come back", n)) {
        for (size_t i = 0; i < MANY; i++)
            in_order = in_order && strcmp(m[i].prefix, prefixes[i]) == 0 && holds(&m[i], data[i]) &&
                       holds(&m[i], receipts[i].id) && m[i].lsn == receipts[i].lsn &&
                       m[i].transactional == !flags;
        check(in_order, "in their order, with their prefixes, ids, LSNs and flags");
    }
    PQclear(r);
    expect(p, walbus_publish_many(p, conn, NULL, 0, 0, NULL), WALBUS_OK, "no events at all");
    expect_nothing(reader, "no events");
}

static void test_raw(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    static const char bytes[] = "\0\x01'\\\xff\n";
    uint64_t lsn = 0;
    struct message m[4];
    PGresult *r = NULL;

    expect(p, walbus_publish_raw(p, conn, "raw", bytes, sizeof bytes, 0, &lsn), WALBUS_OK,
           "raw bytes");
    expect(p, walbus_publish_raw(p, conn, "raw.empty", NULL, 0, 0, NULL), WALBUS_OK,
           "an empty content");
    if (check(read_back(reader, m, 4, &r) == 2, "both come back"))
        check(m[0].size == sizeof bytes && memcmp(m[0].content, bytes, sizeof bytes) == 0 &&
                  m[0].lsn == lsn && m[1].size == 0,
              "byte for byte");
    PQclear(r);
}

/** Sessions that a statement of ours must not care about. */
static void test_odd_sessions(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    struct walbus_event events[2] = {new_event("odd.a"), new_event("odd.b")};
    struct message m[4];
    PGresult *r = NULL;

    run(conn, "BEGIN");
    run(conn, "SET LOCAL client_encoding = LATIN1");
    run(conn, "SET LOCAL standard_conforming_strings = off");
    run(conn, "CREATE SCHEMA publish_api_evil");
    run(conn, "CREATE FUNCTION publish_api_evil.unnest(anyarray) RETURNS SETOF anyelement "
              "LANGUAGE sql AS 'SELECT NULL'");
    run(conn, "CREATE FUNCTION publish_api_evil.pg_logical_emit_message(boolean, text, bytea) "
              "RETURNS pg_lsn LANGUAGE sql AS 'SELECT NULL::pg_lsn'");
    run(conn, "CREATE TYPE publish_api_evil.text AS (i int)");
    run(conn, "SET LOCAL search_path = publish_api_evil, pg_catalog");
    events[0].subject = "\xc3\xa4";
    expect(p, walbus_publish_many(p, conn, events, 2, 0, NULL), WALBUS_OK,
           "another encoding, a hostile search_path");
    run(conn, "DROP SCHEMA publish_api_evil CASCADE");
    run(conn, "COMMIT");
    if (check(read_back(reader, m, 4, &r) == 2, "they come back"))
        check(holds(&m[0], "\xc3\xa4"), "the event's text is UTF-8");
    PQclear(r);
    run(conn, "BEGIN READ ONLY");
    expect(p, walbus_publish(p, conn, events, 0, NULL), WALBUS_OK, "a read-only transaction");
    run(conn, "ROLLBACK");
}

/* ---- pipeline mode ---- */

static void send_query(PGconn *conn, const char *sql)
{
    if (!PQsendQueryParams(conn, sql, 0, NULL, NULL, NULL, NULL, 0))
        die(sql, PQerrorMessage(conn));
}

/** Reads a statement's result and the NULL behind it. */
static PGresult *next_result(PGconn *conn)
{
    PGresult *r = PQgetResult(conn), *end = PQgetResult(conn);

    check(end == NULL, "one result a statement");
    PQclear(end);
    return r;
}

static void read_sync(PGconn *conn)
{
    PGresult *r = PQgetResult(conn);

    check(PQresultStatus(r) == PGRES_PIPELINE_SYNC, "the end of the pipeline");
    PQclear(r);
}

static void test_pipeline(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
{
    struct walbus_event events[3] = {new_event("p.a"), new_event("p.b"), new_event("p.c")};
    struct walbus_receipt ids[3];
    uint64_t lsns[3] = {0}, raw_lsn = 0;
    struct message m[8];
    PGresult *r = NULL;

    if (!PQenterPipelineMode(conn))
        die("PQenterPipelineMode", PQerrorMessage(conn));
    expect(p, walbus_publish(p, conn, events, 0, NULL), WALBUS_PIPELINE,
           "waiting in pipeline mode");
    expect(p, walbus_publish_send(p, conn, events, 3, WALBUS_REQUIRE_TRANSACTION, NULL),
           WALBUS_NO_TRANSACTION, "nothing under way, and no transaction");
    send_query(conn, "BEGIN");
    expect(p, walbus_publish_send(p, conn, events, 3, WALBUS_REQUIRE_TRANSACTION, ids), WALBUS_OK,
           "three events");
    expect(p, walbus_publish_send_raw(p, conn, "p.raw", "x", 1, 0), WALBUS_OK, "a raw one");
    send_query(conn, "COMMIT");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_BAD_RESULT, "read as two");
    expect(p, walbus_publish_read(p, r, lsns, 3), WALBUS_OK, "read as three");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, &raw_lsn, 1), WALBUS_OK, "the raw one's result");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_BAD_RESULT, "COMMIT's result");
    PQclear(r);
    read_sync(conn);
    if (check(read_back(reader, m, 8, &r) == 4, "four come back")) {
        for (int i = 0; i < 3; i++)
            check(m[i].lsn == lsns[i] && holds(&m[i], ids[i].id) && ids[i].lsn == 0,
                  "LSN and id of %s", m[i].prefix);
        check(m[3].lsn == raw_lsn && m[3].size == 1, "and of the raw one");
    }
    PQclear(r);

    send_query(conn, "BEGIN");
    send_query(conn, "SELECT 1/0");
    expect(p, walbus_publish_send(p, conn, events, 1, 0, NULL), WALBUS_OK, "behind an error");
    send_query(conn, "ROLLBACK");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_SERVER, "the error's own result");
    check(strcmp(walbus_publisher_sqlstate(p), "22012") == 0, "its SQLSTATE");
    PQclear(r);
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, NULL, 1), WALBUS_FAILED_TRANSACTION, "it was skipped");
    PQclear(r);
    PQclear(next_result(conn));
    read_sync(conn);
    if (!PQexitPipelineMode(conn))
        die("PQexitPipelineMode", PQerrorMessage(conn));
    run(conn, "ROLLBACK");
    expect_nothing(reader, "an aborted pipeline");

    /* Without pipeline mode: send, wait, read. */
    expect(p, walbus_publish_send(p, conn, events, 2, 0, NULL), WALBUS_OK, "send only");
    expect(p, walbus_publish_send(p, conn, events, 2, 0, NULL), WALBUS_BUSY, "before it was read");
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "read");
    PQclear(r);
    check(read_back(reader, m, 8, &r) == 2, "two come back");
    PQclear(r);
}

/* ---- refusals ---- */

static void test_arguments(struct walbus_publisher *p, PGconn *conn)
{
    struct {
        struct walbus_event event;
        uint64_t later;
    } later = {.event = new_event("a")};
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *other = NULL;
    struct walbus_event event = new_event("a"), two[2] = {event, event};
    const struct walbus_attribute nameless = {NULL, "x"};

    check(walbus_publish(NULL, conn, &event, 0, NULL) == WALBUS_BAD_ARGUMENT, "no publisher");
    expect(p, walbus_publish(p, NULL, &event, 0, NULL), WALBUS_BAD_ARGUMENT, "no connection");
    expect(p, walbus_publish(p, conn, NULL, 0, NULL), WALBUS_BAD_ARGUMENT, "no event");
    expect(p, walbus_publish_send(p, conn, &event, 0, 0, NULL), WALBUS_BAD_ARGUMENT,
           "no events to send");
    expect(p, walbus_publish_raw(p, conn, "a", NULL, 1, 0, NULL), WALBUS_BAD_ARGUMENT,
           "no content, but a size");
    expect(p, walbus_publish_raw(p, conn, NULL, "", 0, 0, NULL), WALBUS_BAD_ARGUMENT, "no prefix");
    expect(p, walbus_publish_read(p, NULL, NULL, 1), WALBUS_BAD_ARGUMENT, "no result");
    expect(p, walbus_publish(p, conn, &event, 0x80, NULL), WALBUS_BAD_ARGUMENT, "an unknown flag");
    expect(p,
           walbus_publish(p, conn, &event, WALBUS_NON_TRANSACTIONAL | WALBUS_REQUIRE_TRANSACTION,
                          NULL),
           WALBUS_BAD_ARGUMENT, "flags that exclude each other");
    event.prefix = NULL;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT,
           "an event without prefix");
    event = new_event("a");
    event.size--;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT,
           "a size that is too small");
    two[1].size = 0;
    expect(p, walbus_publish_many(p, conn, two, 2, 0, NULL), WALBUS_BAD_ARGUMENT, "two sizes");
    event = new_event("a");
    event.data_size = 1;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT, "no data, but a size");
    event = new_event("a");
    event.n_attributes = 1;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT,
           "no attributes, but a number");
    event.attributes = &nameless;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT,
           "an attribute without name");
    event = new_event("a");
    event.time_us = INT64_MAX;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_ARGUMENT, "a time beyond 9999");

    later.event.size = sizeof later;
    later.later = 1;
    expect(p, walbus_publish(p, conn, &later.event, 0, NULL), WALBUS_BAD_ARGUMENT,
           "a member of a later version");

    check(walbus_publisher_new(&options, &other) == WALBUS_BAD_ARGUMENT,
          "a publisher without source");
    options.source = "\xff";
    check(walbus_publisher_new(&options, &other) == WALBUS_BAD_ARGUMENT,
          "a source that is not UTF-8");
    options.source = "/x";
    options.max_content = (size_t)WALBUS_LARGEST_CONTENT + 1;
    check(walbus_publisher_new(&options, &other) == WALBUS_BAD_ARGUMENT,
          "a limit beyond the largest");
    check(walbus_publisher_free(NULL) == NULL, "freeing nothing");
}

static void test_prefixes(struct walbus_publisher *p, PGconn *conn)
{
    static const char *const bad[] = {"",    ".",   "a..b", ".a",        "a.",
                                      "a b", "a.*", ">",    "a\xc3\xa4", "_a"};
    char longest[WALBUS_MAX_PREFIX + 2];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(p, walbus_publish_raw(p, conn, bad[i], "", 0, 0, NULL), WALBUS_BAD_PREFIX, bad[i]);
    memset(longest, 'x', sizeof longest);
    longest[WALBUS_MAX_PREFIX + 1] = '\0';
    expect(p, walbus_publish_raw(p, conn, longest, "", 0, 0, NULL), WALBUS_BAD_PREFIX, "256 bytes");
    longest[WALBUS_MAX_PREFIX] = '\0';
    expect(p, walbus_publish_raw(p, conn, longest, "", 0, 0, NULL), WALBUS_OK, "255 bytes");
    expect(p, walbus_publish_raw(p, conn, "_a", "", 0, WALBUS_ALLOW_RESERVED, NULL), WALBUS_OK,
           "_a with its flag");
}

static void test_bad_events(struct walbus_publisher *p, PGconn *conn)
{
    static const struct {
        const char *what, *name, *value;
    } bad[] = {
        {"an upper-case name", "traceParent", "x"},
        {"the name data", "data", "x"},
        {"an empty name", "", "x"},
        {"a name that is there", "id", "x"},
        {"a value that is not UTF-8", "x", "\xc3"},
    };
    struct walbus_attribute lots[60];
    char names[60][8];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct walbus_attribute attribute = {bad[i].name, bad[i].value};
        struct walbus_event event = new_event("a");

        event.attributes = &attribute;
        event.n_attributes = 1;
        expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, bad[i].what);
    }
    for (int i = 0; i < 60; i++) {
        (void)snprintf(names[i], sizeof names[i], "x%d", i);
        lots[i] = (struct walbus_attribute){names[i], "y"};
    }
    struct walbus_event event = new_event("a");
    event.attributes = lots;
    event.n_attributes = 59;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "64 attributes");
    event.n_attributes = 60;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, "65 attributes");

    event = new_event("a");
    event.data = "\x01\x02";
    event.data_size = 2;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, "two CBOR items");
    event.data_size = 0;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, "no CBOR item");
    event.data_kind = WALBUS_DATA_BYTES;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "empty bytes");
    event.data_kind = WALBUS_DATA_TEXT;
    event.data = "\xff";
    event.data_size = 1;
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, "text that is not UTF-8");
    event = new_event("a");
    event.id = "";
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BAD_EVENT, "an empty id");

    struct walbus_event two[2] = {new_event("a"), new_event("b")};
    two[1].id = "";
    expect(p, walbus_publish_many(p, conn, two, 2, 0, NULL), WALBUS_BAD_EVENT, "the second of two");
    check(strstr(walbus_publisher_error(p), "Event 2 of 2") != NULL, "it is named");
}

static void test_sizes(struct walbus_publisher *p, PGconn *conn)
{
    static char bytes[2000];
    struct walbus_publisher *small = new_publisher(1000, 0);
    struct walbus_event event = new_event("a");

    expect(small, walbus_publish_raw(small, conn, "a", bytes, 1000, 0, NULL), WALBUS_OK,
           "as many bytes as allowed");
    expect(small, walbus_publish_raw(small, conn, "a", bytes, 1001, 0, NULL), WALBUS_TOO_LARGE,
           "one more");
    event.data_kind = WALBUS_DATA_BYTES;
    event.data = bytes;
    event.data_size = 950;
    expect(small, walbus_publish(small, conn, &event, 0, NULL), WALBUS_TOO_LARGE,
           "an event whose envelope makes it too large");
    event.data_size = 1001;
    expect(small, walbus_publish(small, conn, &event, 0, NULL), WALBUS_TOO_LARGE,
           "data that are too large");
    /* Refused by their number alone: none but the first is looked at. */
    expect(p, walbus_publish_many(p, conn, &event, 130000000, 0, NULL), WALBUS_BATCH_TOO_LARGE,
           "130 million events");
    small = walbus_publisher_free(small);

    /* The default, from both sides; in a transaction, so that nothing of it is decoded. */
    uint8_t *large = calloc(1, (size_t)WALBUS_MAX_CONTENT + 1);

    if (!large)
        die("64 MiB", "no memory");
    check(WALBUS_MAX_CONTENT == 67108864, "the default limit is 64 MiB");
    run(conn, "BEGIN");
    expect(p, walbus_publish_raw(p, conn, "a", large, WALBUS_MAX_CONTENT, 0, NULL), WALBUS_OK,
           "64 MiB");
    expect(p, walbus_publish_raw(p, conn, "a", large, (size_t)WALBUS_MAX_CONTENT + 1, 0, NULL),
           WALBUS_TOO_LARGE, "64 MiB and a byte");
    run(conn, "ROLLBACK");
    free(large);
}

/* max_prefix: below the default, above it, and no further than 1 MiB. */
static void test_prefix_limit(PGconn *conn)
{
    static char text[2002];
    struct walbus_publisher *p = new_publisher(0, 10);
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;

    memset(text, 'x', sizeof text - 1);
    expect(p, walbus_publish_raw(p, conn, text + sizeof text - 1 - 10, "", 0, 0, NULL), WALBUS_OK,
           "10 bytes, where 10 are allowed");
    expect(p, walbus_publish_raw(p, conn, text + sizeof text - 1 - 11, "", 0, 0, NULL),
           WALBUS_BAD_PREFIX, "11 bytes");
    p = walbus_publisher_free(p);
    p = new_publisher(0, 2000);
    expect(p, walbus_publish_raw(p, conn, text + 1, "", 0, 0, NULL), WALBUS_OK,
           "2000 bytes, where 2000 are allowed");
    expect(p, walbus_publish_raw(p, conn, text, "", 0, 0, NULL), WALBUS_BAD_PREFIX, "2001 bytes");
    p = walbus_publisher_free(p);
    options.source = "/test";
    options.max_prefix = (1u << 20) + 1;
    check(walbus_publisher_new(&options, &p) == WALBUS_BAD_ARGUMENT, "a limit above 1 MiB");
    options.max_prefix = 1u << 20;
    check(walbus_publisher_new(&options, &p) == WALBUS_OK, "1 MiB");
    p = walbus_publisher_free(p);
}

static const char *function_of(PGconn *conn)
{
    return PQserverVersion(conn) >= 170000
               ? "pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean)"
               : "pg_catalog.pg_logical_emit_message(boolean, text, bytea)";
}

/* What the server refuses; each inside a transaction that is rolled back, functions and roles
 * included. */
static void test_server_errors(struct walbus_publisher *p, PGconn *conn)
{
    struct walbus_event event = new_event("a");
    char sql[256];

    run(conn, "BEGIN");
    run(conn, "CREATE ROLE publish_api_role");
    (void)snprintf(sql, sizeof sql, "REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC", function_of(conn));
    run(conn, sql);
    run(conn, "SET LOCAL ROLE publish_api_role");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_NOT_PERMITTED, "without the right");
    check(strcmp(walbus_publisher_sqlstate(p), "42501") == 0, "its SQLSTATE");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_FAILED_TRANSACTION,
           "in the transaction that failed");
    expect(p, walbus_publish_send(p, conn, &event, 1, 0, NULL), WALBUS_FAILED_TRANSACTION,
           "sending in it");
    run(conn, "ROLLBACK");

    run(conn, "BEGIN");
    (void)snprintf(sql, sizeof sql, "ALTER FUNCTION %s RENAME TO publish_api_gone",
                   function_of(conn));
    run(conn, sql);
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_SERVER, "without the function");
    check(strcmp(walbus_publisher_sqlstate(p), "42883") == 0, "its SQLSTATE");
    run(conn, "ROLLBACK");
}

static void test_connection_states(struct walbus_publisher *p, PGconn *conn, const char *dsn)
{
    struct walbus_event event = new_event("a");
    PGconn *doomed = open_connection(dsn);
    char sql[64];

    expect(p, walbus_publish(p, conn, &event, WALBUS_REQUIRE_TRANSACTION, NULL),
           WALBUS_NO_TRANSACTION, "outside a transaction block, when asked to look");
    if (!PQsendQuery(conn, "SELECT 1"))
        die("PQsendQuery", PQerrorMessage(conn));
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_BUSY, "a command in progress");
    expect(p, walbus_publish_send(p, conn, &event, 1, 0, NULL), WALBUS_BUSY, "sending then");
    PQclear(next_result(conn));

    (void)snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 5000)", PQbackendPID(doomed));
    run(conn, sql);
    expect(p, walbus_publish(p, doomed, &event, 0, NULL), WALBUS_CONNECTION_LOST,
           "a session that was killed");
    expect(p, walbus_publish(p, doomed, &event, 0, NULL), WALBUS_NOT_CONNECTED, "once more");
    PQfinish(doomed);

    /* Refusals leave the transaction as it was. */
    run(conn, "BEGIN");
    expect(p, walbus_publish_raw(p, conn, "a..b", "", 0, 0, NULL), WALBUS_BAD_PREFIX,
           "a refusal in a transaction");
    check(PQtransactionStatus(conn) == PQTRANS_INTRANS, "which goes on");
    expect(p, walbus_publish_raw(p, conn, "a.b", "", 0, 0, NULL), WALBUS_OK, "and can publish");
    check(walbus_publisher_error(p)[0] == '\0', "nothing is left of the error");
    run(conn, "ROLLBACK");
}

/* ---- through a pooler ---- */

enum { POOLED_MAX = 4000 };

/* What is to come back, in this order. */
struct pooled {
    const char *prefix;
    bool transactional;
    struct walbus_receipt receipt;
};

static struct pooled pooled[POOLED_MAX];
static size_t n_pooled;

static struct pooled *pooled_add(const char *prefix, unsigned flags)
{
    if (n_pooled == POOLED_MAX)
        die("pooled", "too many");
    pooled[n_pooled] =
        (struct pooled){.prefix = prefix, .transactional = !(flags & WALBUS_NON_TRANSACTIONAL)};
    return &pooled[n_pooled++];
}

static void pooled_one(struct walbus_publisher *p, PGconn *conn, const char *prefix, unsigned flags)
{
    struct walbus_event event = new_event(prefix);
    enum walbus_result result =
        walbus_publish(p, conn, &event, flags, &pooled_add(prefix, flags)->receipt);

    if (result != WALBUS_OK)
        expect(p, result, WALBUS_OK, prefix);
}

static void pooled_many(struct walbus_publisher *p, PGconn *conn, const char *prefix, size_t n,
                        unsigned flags)
{
    static struct walbus_event events[MANY];
    static struct walbus_receipt receipts[MANY];

    for (size_t i = 0; i < n; i++)
        events[i] = new_event(prefix);
    expect(p, walbus_publish_many(p, conn, events, n, flags, receipts), WALBUS_OK, prefix);
    for (size_t i = 0; i < n; i++)
        pooled_add(prefix, flags)->receipt = receipts[i];
}

/* All forms, by one client. */
static void pooled_forms(struct walbus_publisher *p, PGconn *conn)
{
    struct walbus_event events[2] = {new_event("pooled.sent"), new_event("pooled.sent")};
    struct walbus_receipt receipts[2];
    uint64_t lsns[2];
    PGresult *r;

    pooled_one(p, conn, "pooled.alone", 0);
    run(conn, "BEGIN");
    pooled_one(p, conn, "pooled.transaction", WALBUS_REQUIRE_TRANSACTION);
    run(conn, "SAVEPOINT s");
    pooled_one(p, conn, "pooled.never", 0);
    n_pooled--;
    run(conn, "ROLLBACK TO s");
    pooled_one(p, conn, "pooled.after", 0);
    run(conn, "COMMIT");
    run(conn, "BEGIN");
    pooled_one(p, conn, "pooled.never", 0);
    n_pooled--;
    run(conn, "ROLLBACK");
    pooled_one(p, conn, "pooled.now", WALBUS_NON_TRANSACTIONAL);
    pooled_many(p, conn, "pooled.many", MANY, 0);
    pooled_many(p, conn, "pooled.many_now", 10, WALBUS_NON_TRANSACTIONAL);

    struct pooled *raw = pooled_add("pooled.raw", 0);
    expect(p, walbus_publish_raw(p, conn, raw->prefix, "\0\xff", 2, 0, &raw->receipt.lsn),
           WALBUS_OK, "raw");

    expect(p, walbus_publish_send(p, conn, events, 2, 0, receipts), WALBUS_OK, "sent");
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "and read");
    PQclear(r);
    for (int i = 0; i < 2; i++) {
        receipts[i].lsn = lsns[i];
        pooled_add("pooled.sent", 0)->receipt = receipts[i];
    }

    if (!PQenterPipelineMode(conn))
        die("PQenterPipelineMode", PQerrorMessage(conn));
    send_query(conn, "BEGIN");
    expect(p, walbus_publish_send(p, conn, events, 2, WALBUS_REQUIRE_TRANSACTION, receipts),
           WALBUS_OK, "in pipeline mode");
    send_query(conn, "COMMIT");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "and read");
    PQclear(r);
    PQclear(next_result(conn));
    read_sync(conn);
    if (!PQexitPipelineMode(conn))
        die("PQexitPipelineMode", PQerrorMessage(conn));
    for (int i = 0; i < 2; i++) {
        receipts[i].lsn = lsns[i];
        pooled_add("pooled.sent", 0)->receipt = receipts[i];
    }
}

static int backend_of(PGconn *conn)
{
    PGresult *r = PQexec(conn, "SELECT pg_backend_pid()");

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        die("pg_backend_pid", PQerrorMessage(conn));
    int pid = atoi(PQgetvalue(r, 0, 0));
    PQclear(r);
    return pid;
}

/* Two clients that have one session of the server between them. */
static void pooled_by_turns(struct walbus_publisher *p, PGconn *a, PGconn *b)
{
    check(backend_of(a) == backend_of(b), "both have the same session");
    for (int i = 0; i < 50; i++) {
        pooled_one(p, a, "pooled.a", 0);
        pooled_one(p, b, "pooled.b", 0);
        run(a, "BEGIN");
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);

        /* b's waits in the pooler until a's transaction has ended. */
        struct walbus_event event = new_event("pooled.b_waits");
        struct walbus_receipt receipt;
        if (walbus_publish_send(p, b, &event, 1, 0, &receipt) != WALBUS_OK)
            die("sending", walbus_publisher_error(p));
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);
        run(a, "COMMIT");
        PGresult *r = PQgetResult(b);
        if (walbus_publish_read(p, r, &receipt.lsn, 1) != WALBUS_OK)
            die("reading", walbus_publisher_error(p));
        PQclear(r);
        while ((r = PQgetResult(b)))
            PQclear(r);
        pooled_add("pooled.b_waits", 0)->receipt = receipt;
    }
}

static void test_pooler(const char *pooler, const char *server)
{
    static struct message m[POOLED_MAX];
    /* Nothing is set on these: it would stay with a session that others get. */
    PGconn *a = PQconnectdb(pooler), *b = PQconnectdb(pooler), *reader = open_connection(server);
    struct walbus_publisher *p = new_publisher(0, 0);
    PGresult *r = NULL;
    bool in_order = true;

    if (PQstatus(a) != CONNECTION_OK || PQstatus(b) != CONNECTION_OK)
        die("connect", PQerrorMessage(PQstatus(a) != CONNECTION_OK ? a : b));
    run(reader, "SELECT pg_create_logical_replication_slot('publish_api', 'pgoutput', true)");
    pooled_forms(p, a);
    pooled_by_turns(p, a, b);
    size_t n = read_back(reader, m, POOLED_MAX, &r);
    check(n == n_pooled, "%zu were published, %zu come back", n_pooled, n);
    for (size_t i = 0; i < n && i < n_pooled; i++) {
        const struct pooled *want = &pooled[i];
        bool same = strcmp(m[i].prefix, want->prefix) == 0 &&
                    m[i].transactional == want->transactional && m[i].lsn == want->receipt.lsn &&
                    holds(&m[i], want->receipt.id);
        if (!same && in_order)
            check(false, "message %zu: %s instead of %s", i, m[i].prefix, want->prefix);
        in_order = in_order && same;
    }
    check(in_order, "each once, in order, with its prefix, id, LSN and flag");
    PQclear(r);
    p = walbus_publisher_free(p);
    PQfinish(a);
    PQfinish(b);
    PQfinish(reader);
}

static int result_of_all(void)
{
    (void)printf(n_failed ? "%d checks failed\n" : "all checks are ok\n", n_failed);
    return n_failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        test_pooler(argv[1], argv[2]);
        return result_of_all();
    }
    if (argc != 2) {
        (void)fprintf(stderr, "usage: publish_api DSN | publish_api POOLER-DSN DSN\n");
        return 2;
    }
    check(walbus_version_number() == WALBUS_VERSION_NUMBER, "version %s", walbus_version_text());
    PGconn *conn = open_connection(argv[1]), *reader = open_connection(argv[1]);
    struct walbus_publisher *p = new_publisher(0, 0);

    run(reader, "SELECT pg_create_logical_replication_slot('publish_api', 'pgoutput', true)");
    test_one(p, conn, reader);
    test_rollback(p, conn, reader);
    test_many(p, conn, reader, 0);
    test_many(p, conn, reader, WALBUS_NON_TRANSACTIONAL);
    test_raw(p, conn, reader);
    test_odd_sessions(p, conn, reader);
    test_pipeline(p, conn, reader);
    test_arguments(p, conn);
    expect_nothing(reader, "arguments that were refused");
    test_prefixes(p, conn);
    test_bad_events(p, conn);
    test_sizes(p, conn);
    test_prefix_limit(conn);
    test_server_errors(p, conn);
    test_connection_states(p, conn, argv[1]);

    p = walbus_publisher_free(p);
    PQfinish(conn);
    PQfinish(reader);
    return result_of_all();
}
