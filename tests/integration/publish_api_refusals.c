/* SPDX-License-Identifier: PostgreSQL */
#include "publish_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void test_arguments(struct walbus_publisher *p, PGconn *conn)
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

void test_prefixes(struct walbus_publisher *p, PGconn *conn)
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

void test_bad_events(struct walbus_publisher *p, PGconn *conn)
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

void test_sizes(struct walbus_publisher *p, PGconn *conn)
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

void test_prefix_limit(PGconn *conn)
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

void test_server_errors(struct walbus_publisher *p, PGconn *conn)
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

void test_connection_states(struct walbus_publisher *p, PGconn *conn, const char *dsn)
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
