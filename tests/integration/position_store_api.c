/* SPDX-License-Identifier: PostgreSQL */
/*
 * position_store_api DSN: keeping positions in a real server, through the shared library, from two connections.
 * One line a check on stdout; exit 0 when all are ok. Run by test_exactly_once.py.
 */
#include "publish_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void want(const struct walbus_position_store *s, enum walbus_result got,
                 enum walbus_result wanted, const char *what)
{
    const char *error = walbus_position_store_error(s);

    check(got == wanted, "%s: %s%s%s%s%s", what, walbus_result_name(got),
          got == wanted ? "" : ", wanted ", got == wanted ? "" : walbus_result_name(wanted),
          *error ? ": " : "", error);
    check((*error == '\0') == (got == WALBUS_OK), "%s: words when it failed, and only then", what);
}

static struct walbus_position_store *new_store(const char *name)
{
    struct walbus_position_store *s = NULL;

    if (walbus_position_store_new(name, &s) != WALBUS_OK)
        die("walbus_position_store_new", name);
    return s;
}

static struct walbus_position at(uint64_t lsn, uint32_t index)
{
    return (struct walbus_position){.lsn = lsn, .timeline = 1, .index = index};
}

static void expect_stored(struct walbus_position_store *s, struct walbus_position position,
                          const char *identity, const char *what)
{
    char text[WALBUS_POSITION_TEXT_SIZE];

    check(walbus_position_compare(walbus_position_store_position(s), position) == 0 &&
              strcmp(walbus_position_store_identity(s), identity) == 0,
          "%s: %s of %s", what, walbus_position_format(walbus_position_store_position(s), text),
          walbus_position_store_identity(s));
}

static void expect_value(PGconn *conn, const char *sql, const char *value)
{
    PGresult *r = PQexec(conn, sql);
    const char *got =
        PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1 ? PQgetvalue(r, 0, 0) : "no row";

    check(strcmp(got, value) == 0, "%s: %s%s%s", sql, got, strcmp(got, value) ? ", wanted " : "",
          strcmp(got, value) ? value : "");
    PQclear(r);
}

static enum walbus_result save(struct walbus_position_store *s, PGconn *conn,
                               struct walbus_position position)
{
    return walbus_position_store_save(s, conn, "7/1", position);
}

/** Commits in a while, on the server's side alone: whoever needs what this session has locked waits meanwhile. */
static void commit_soon(PGconn *conn)
{
    if (!PQsendQuery(conn, "SELECT pg_sleep(0.5); COMMIT"))
        die("sending COMMIT", PQerrorMessage(conn));
}

static void has_committed(PGconn *conn)
{
    PGresult *r;

    while ((r = PQgetResult(conn)) != NULL)
        PQclear(r);
    if (PQtransactionStatus(conn) != PQTRANS_IDLE)
        die("COMMIT", PQerrorMessage(conn));
}

/** BEGIN, save, COMMIT. */
static void save_alone(struct walbus_position_store *s, PGconn *conn,
                       struct walbus_position position)
{
    run(conn, "BEGIN");
    want(s, save(s, conn, position), WALBUS_OK, "save");
    run(conn, "COMMIT");
}

/* ---- arguments ---- */

static void check_arguments(PGconn *conn)
{
    char name[WALBUS_MAX_NAME + 2];
    struct walbus_position_store *s = NULL;
    static const char *const bad[] = {"", "a\nb", "\xff"};

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    check(walbus_position_store_new(NULL, &s) == WALBUS_BAD_ARGUMENT &&
              walbus_position_store_new("x", NULL) == WALBUS_BAD_ARGUMENT &&
              walbus_position_store_new(name, &s) == WALBUS_BAD_ARGUMENT && !s,
          "new: NULL and a name that is too long");
    for (size_t i = 0; i < 3; i++)
        check(walbus_position_store_new(bad[i], &s) == WALBUS_BAD_ARGUMENT && !s,
              "new: a bad name");
    check(!walbus_position_store_free(NULL) && !*walbus_position_store_error(NULL) &&
              !*walbus_position_store_sqlstate(NULL) && !*walbus_position_store_identity(NULL) &&
              walbus_position_store_position(NULL).lsn == 0 &&
              walbus_position_store_load(NULL, conn, NULL) == WALBUS_BAD_ARGUMENT &&
              walbus_position_store_create_table(NULL, conn) == WALBUS_BAD_ARGUMENT &&
              save(NULL, conn, at(1, 0)) == WALBUS_BAD_ARGUMENT,
          "NULL in place of a store");

    s = new_store(name + 1);
    want(s, walbus_position_store_create_table(s, NULL), WALBUS_BAD_ARGUMENT, "no connection");
    want(s, walbus_position_store_load(s, NULL, NULL), WALBUS_BAD_ARGUMENT, "no connection");
    run(conn, "BEGIN");
    want(s, save(s, conn, at(1, 0)), WALBUS_BAD_ARGUMENT, "save before load");
    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_OK, "load");
    want(s, save(s, NULL, at(1, 0)), WALBUS_BAD_ARGUMENT, "no connection");
    want(s, save(s, conn, at(0, 0)), WALBUS_OK, "the smallest position");
    want(s, save(s, conn, (struct walbus_position){0}), WALBUS_BAD_ARGUMENT, "no position");
    want(s, walbus_position_store_save(s, conn, NULL, at(2, 0)), WALBUS_BAD_ARGUMENT,
         "no identity");
    want(s, walbus_position_store_save(s, conn, "", at(2, 0)), WALBUS_BAD_ARGUMENT, "no identity");
    want(s, walbus_position_store_save(s, conn, name, at(2, 0)), WALBUS_BAD_ARGUMENT,
         "an identity that is too long");
    want(s, walbus_position_store_save(s, conn, "\xc3", at(2, 0)), WALBUS_BAD_ARGUMENT,
         "an identity that is not UTF-8");
    run(conn, "ROLLBACK");
    s = walbus_position_store_free(s);
}

/* ---- the table ---- */

static void check_table(PGconn *conn, PGconn *other)
{
    struct walbus_position_store *s = new_store("billing");

    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_SERVER, "load without a table");
    check(strcmp(walbus_position_store_sqlstate(s), "42P01") == 0 &&
              strstr(walbus_position_store_error(s), "create_table"),
          "and that is said");
    expect_value(conn, "SELECT to_regclass('walbus_position') IS NULL", "t");
    run(conn, "BEGIN");
    want(s, walbus_position_store_create_table(s, conn), WALBUS_OK, "create, in a transaction");
    run(conn, "ROLLBACK");
    expect_value(conn, "SELECT to_regclass('walbus_position') IS NULL", "t");

    /* Another session makes it at the same moment: this one waits, and then finds it. */
    run(other, "BEGIN");
    run(other, WALBUS_POSITION_TABLE);
    commit_soon(other);
    want(s, walbus_position_store_create_table(s, conn), WALBUS_OK, "create, at once");
    has_committed(other);
    want(s, walbus_position_store_create_table(s, conn), WALBUS_OK, "create, once more");
    expect_value(conn,
                 "SELECT string_agg(attname || ' ' || format_type(atttypid, -1), ', ' ORDER BY "
                 "attnum) FROM pg_attribute WHERE attrelid = 'walbus_position'::regclass AND "
                 "attnum > 0",
                 "subscription text, identity text, timeline bigint, lsn pg_lsn, idx bigint, "
                 "updated timestamp with time zone");
    expect_value(conn,
                 "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = "
                 "'walbus_position'::regclass AND contype = 'p'",
                 "PRIMARY KEY (subscription)");
    s = walbus_position_store_free(s);
}

/* ---- loading and saving ---- */

static void check_round(PGconn *conn)
{
    static const char name[] = "gr\xc3\xb6\xc3\x9f"
                               "e,'quoted'";
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct walbus_position_store *s = new_store(name), *again = new_store(name);
    struct walbus_position largest = {UINT64_MAX, UINT32_MAX, WALBUS_INDEX_END};

    options.start = WALBUS_START_OLDEST;
    options.flags = WALBUS_TAKE_OVER;
    want(s, walbus_position_store_load(s, conn, &options), WALBUS_OK, "load: nothing there");
    expect_stored(s, (struct walbus_position){0}, "", "nothing");
    check(strcmp(options.name, name) == 0 && options.start == WALBUS_START_OLDEST &&
              options.flags == (WALBUS_TAKE_OVER | WALBUS_KEEPS_POSITION) && !options.identity,
          "the options begin where they did");
    save_alone(s, conn, at(0x16B3748, 3));
    expect_stored(s, at(0x16B3748, 3), "7/1", "saved");
    want(again, walbus_position_store_load(again, conn, &options), WALBUS_OK, "load");
    expect_stored(again, at(0x16B3748, 3), "7/1", "loaded");
    check(options.start == WALBUS_START_POSITION && strcmp(options.identity, "7/1") == 0 &&
              walbus_position_compare(options.position, at(0x16B3748, 3)) == 0 &&
              options.flags == (WALBUS_TAKE_OVER | WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION),
          "the options begin behind it");
    expect_value(
        conn,
        "SELECT concat_ws(' ', subscription, identity, timeline, lsn, idx, updated > now() "
        "- interval '1 minute') FROM walbus_position",
        "gr\xc3\xb6\xc3\x9f"
        "e,'quoted' 7/1 1 0/16B3748 3 t");

    /* Somebody has deleted the row: the same options begin where their owner said, and override nothing. */
    struct walbus_position_store *third = new_store("third");
    struct walbus_subscription_options reused = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    reused.start = WALBUS_START_OLDEST;
    want(third, walbus_position_store_load(third, conn, &reused), WALBUS_OK, "load: nothing there");
    save_alone(third, conn, at(100, 0));
    for (int i = 0; i < 2; i++) {
        want(third, walbus_position_store_load(third, conn, &reused), WALBUS_OK, "load");
        check(reused.start == WALBUS_START_POSITION && (reused.flags & WALBUS_OVERRIDE),
              "they begin behind the row");
    }
    run(conn, "DELETE FROM walbus_position WHERE subscription = 'third'");
    want(third, walbus_position_store_load(third, conn, &reused), WALBUS_OK, "load: gone");
    check(reused.start == WALBUS_START_OLDEST && reused.flags == WALBUS_KEEPS_POSITION &&
              !reused.identity &&
              walbus_position_compare(reused.position, (struct walbus_position){0}) == 0,
          "they begin where they did at first");
    walbus_position_store_free(third);

    /* Several in one transaction; another encoding of the session; the largest there can be; another journal. */
    run(conn, "SET client_encoding = LATIN1");
    run(conn, "BEGIN");
    want(s, save(s, conn, at(0x16B3748, 4)), WALBUS_OK, "save");
    want(s, save(s, conn, at(0x16B3748, WALBUS_INDEX_END)), WALBUS_OK, "save once more");
    run(conn, "COMMIT");
    want(again, walbus_position_store_load(again, conn, NULL), WALBUS_OK, "load");
    expect_stored(again, at(0x16B3748, WALBUS_INDEX_END), "7/1", "the last of them");
    run(conn, "RESET client_encoding");
    save_alone(s, conn, largest);
    want(again, walbus_position_store_load(again, conn, NULL), WALBUS_OK, "load");
    expect_stored(again, largest, "7/1", "the largest");
    run(conn, "BEGIN");
    want(s, save(s, conn, largest), WALBUS_BAD_ARGUMENT, "the same again");
    want(s, save(s, conn, at(5, 0)), WALBUS_BAD_ARGUMENT, "an earlier one");
    want(s, walbus_position_store_save(s, conn, "7/2", at(5, 0)), WALBUS_OK, "of another journal");
    run(conn, "COMMIT");
    want(again, walbus_position_store_load(again, conn, NULL), WALBUS_OK, "load");
    expect_stored(again, at(5, 0), "7/2", "of another journal");
    expect_value(conn, "SELECT count(*) FROM walbus_position", "1");

    /* A name of its own for each. */
    struct walbus_position_store *billing = new_store("billing");
    want(billing, walbus_position_store_load(billing, conn, NULL), WALBUS_OK, "load another");
    expect_stored(billing, (struct walbus_position){0}, "", "another name has nothing");
    billing = walbus_position_store_free(billing);
    run(conn, "TRUNCATE walbus_position");
    s = walbus_position_store_free(s);
    again = walbus_position_store_free(again);
}

static void check_rollback(PGconn *conn)
{
    struct walbus_position_store *s = new_store("billing");

    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_OK, "load");
    save_alone(s, conn, at(100, 0));
    run(conn, "BEGIN");
    want(s, save(s, conn, at(200, 0)), WALBUS_OK, "save");
    run(conn, "ROLLBACK");
    run(conn, "BEGIN");
    want(s, save(s, conn, at(300, 0)), WALBUS_CONFLICT, "save behind a rollback, without load");
    run(conn, "ROLLBACK");
    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_OK, "load");
    expect_stored(s, at(100, 0), "7/1", "what was committed");
    run(conn, "BEGIN");
    run(conn, "SAVEPOINT a");
    want(s, save(s, conn, at(200, 0)), WALBUS_OK, "save");
    run(conn, "ROLLBACK TO a");
    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_OK, "load, in the transaction");
    want(s, save(s, conn, at(150, 0)), WALBUS_OK, "save");
    run(conn, "COMMIT");
    expect_value(conn, "SELECT lsn FROM walbus_position", "0/96");
    run(conn, "TRUNCATE walbus_position");
    s = walbus_position_store_free(s);
}

/* ---- two holders ---- */

/** The second waits for the first's transaction, and then loses. */
static void race(PGconn *conn, PGconn *other, struct walbus_position_store *first,
                 struct walbus_position_store *second, struct walbus_position position)
{
    run(conn, "BEGIN");
    run(other, "BEGIN");
    want(first, save(first, conn, position), WALBUS_OK, "the first");
    commit_soon(conn);
    want(second, save(second, other, position), WALBUS_CONFLICT, "the second");
    has_committed(conn);
    run(other, "ROLLBACK");
}

static void check_two_holders(PGconn *conn, PGconn *other)
{
    struct walbus_position_store *first = new_store("billing"), *second = new_store("billing");

    want(first, walbus_position_store_load(first, conn, NULL), WALBUS_OK, "load");
    want(second, walbus_position_store_load(second, other, NULL), WALBUS_OK, "load");
    race(conn, other, first, second, at(100, 0));
    expect_stored(second, (struct walbus_position){0}, "", "it knows no better yet");
    want(second, walbus_position_store_load(second, other, NULL), WALBUS_OK, "load");
    race(conn, other, first, second, at(200, 0));

    /* At a stricter level the server says it. */
    want(second, walbus_position_store_load(second, other, NULL), WALBUS_OK, "load");
    run(other, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    run(other, "SELECT 1");
    save_alone(first, conn, at(300, 0));
    want(second, save(second, other, at(300, 0)), WALBUS_SERVER, "the second, repeatable read");
    check(strcmp(walbus_position_store_sqlstate(second), "40001") == 0, "with its SQLSTATE");
    want(second, save(second, other, at(300, 0)), WALBUS_FAILED_TRANSACTION, "and again");
    run(other, "ROLLBACK");

    /* Another journal, and the same numbers, are another position. */
    want(second, walbus_position_store_load(second, other, NULL), WALBUS_OK, "load");
    run(conn, "UPDATE walbus_position SET identity = '7/9'");
    run(other, "BEGIN");
    want(second, save(second, other, at(400, 0)), WALBUS_CONFLICT, "of another journal");
    run(other, "ROLLBACK");
    run(conn, "DELETE FROM walbus_position");
    run(other, "BEGIN");
    want(second, save(second, other, at(400, 0)), WALBUS_CONFLICT, "the row is gone");
    run(other, "ROLLBACK");
    first = walbus_position_store_free(first);
    second = walbus_position_store_free(second);
}

/* ---- what the connection and the server can be like ---- */

static void check_states(PGconn *conn, const char *dsn)
{
    struct walbus_position_store *s = new_store("billing");

    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_OK, "load");
    want(s, save(s, conn, at(1, 0)), WALBUS_NO_TRANSACTION, "outside a transaction");
    send_query(conn, "SELECT 1");
    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_BUSY, "busy");
    PQclear(next_result(conn));
    run(conn, "BEGIN");
    PQclear(PQexec(conn, "SELECT 1/0"));
    want(s, walbus_position_store_load(s, conn, NULL), WALBUS_FAILED_TRANSACTION, "failed");
    run(conn, "ROLLBACK");
    check(PQenterPipelineMode(conn), "pipeline mode");
    want(s, walbus_position_store_create_table(s, conn), WALBUS_PIPELINE, "in pipeline mode");
    check(PQexitPipelineMode(conn), "no pipeline mode");

    /* Tables that are not ours, found first by the path. */
    static const char *const others[] = {
        "CREATE TABLE odd.walbus_position (subscription text, identity text, timeline int8, lsn "
        "pg_lsn, idx int8, updated timestamptz); INSERT INTO odd.walbus_position VALUES "
        "('billing', "
        "'', 1, '0/1', 1, now())",
        "CREATE TABLE odd.walbus_position (subscription text, identity text, timeline int8, lsn "
        "pg_lsn, idx int8, updated timestamptz); INSERT INTO odd.walbus_position VALUES "
        "('billing', "
        "'7/1', 1, '0/1', -1, now())",
        "CREATE TABLE odd.walbus_position (subscription text, identity text, timeline int8, lsn "
        "pg_lsn, idx int8, updated timestamptz); INSERT INTO odd.walbus_position VALUES "
        "('billing', "
        "'7/1', NULL, '0/1', 1, now())",
        "CREATE TABLE odd.walbus_position (subscription text, identity text, timeline int4, lsn "
        "pg_lsn, idx int8, updated timestamptz); INSERT INTO odd.walbus_position VALUES "
        "('billing', "
        "'7/1', 1, '0/1', 1, now())",
        "CREATE TABLE odd.walbus_position (subscription text)",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        run(conn, "CREATE SCHEMA odd");
        run(conn, "SET search_path = odd");
        run(conn, others[i]);
        want(s, walbus_position_store_load(s, conn, NULL), WALBUS_SERVER, "another table");
        run(conn, "BEGIN");
        want(s, save(s, conn, at(9, 0)), WALBUS_BAD_ARGUMENT, "nothing was loaded");
        run(conn, "ROLLBACK");
        run(conn, "RESET search_path");
        run(conn, "SET client_min_messages = error");
        run(conn, "DROP SCHEMA odd CASCADE");
    }

    /* A server that goes away, and a connection that was never open. */
    PGconn *gone = open_connection(dsn);
    run(gone, "BEGIN");
    want(s, walbus_position_store_load(s, gone, NULL), WALBUS_OK, "load");
    char sql[64];
    (void)snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(%d, 10000)", PQbackendPID(gone));
    run(conn, sql);
    want(s, save(s, gone, at(9, 0)), WALBUS_CONNECTION_LOST, "the session was ended");
    want(s, save(s, gone, at(9, 0)), WALBUS_NOT_CONNECTED, "and is gone");
    PQfinish(gone);
    expect_value(conn, "SELECT count(*) FROM walbus_position", "0");
    s = walbus_position_store_free(s);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: position_store_api DSN\n");
        return 2;
    }
    PGconn *conn = open_connection(argv[1]), *other = open_connection(argv[1]);

    check_table(conn, other);
    check_arguments(conn);
    check_round(conn);
    check_rollback(conn);
    check_two_holders(conn, other);
    check_states(conn, argv[1]);
    PQfinish(conn);
    PQfinish(other);
    return result_of_all();
}
