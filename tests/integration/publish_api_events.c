/* SPDX-License-Identifier: PostgreSQL */
#include "publish_api.h"

#include <stdio.h>
#include <string.h>

void test_one(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
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

void test_rollback(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
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

void test_many(struct walbus_publisher *p, PGconn *conn, PGconn *reader, unsigned flags)
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

void test_raw(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
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

void test_odd_sessions(struct walbus_publisher *p, PGconn *conn, PGconn *reader)
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
