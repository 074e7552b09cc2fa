/* SPDX-License-Identifier: PostgreSQL */
/*
 * An application that publishes events inside its transactions. Four
 * transactions show what becomes of them; a fifth event ends the show:
 *
 *   1  inserts a row, publishes orders.created, commits           it arrives
 *   2  the same, and rolls back                                   it never existed
 *   3  publishes orders.created, orders.discounted inside a
 *      savepoint that is rolled back, orders.paid, and commits     the first and the last arrive
 *   4  publishes orders.created, and audit.attempted as
 *      non-transactional, and rolls back                          only audit.attempted arrives
 *   5  publishes orders.closed                                    it arrives
 *
 * Usage: quickstart [CONNINFO]; without one WALBUS_DSN, or libpq's own variables.
 */
#include <stdio.h>
#include <stdlib.h>

#include <libpq-fe.h>
#include <walbus/walbus.h>

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "quickstart: %s: %s\n", what, why);
    exit(1);
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);

    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        fail(sql, PQerrorMessage(conn));
    PQclear(result);
    printf("  %s\n", sql);
}

/* Publishes {"order": number} on the connection, as part of whatever transaction it is in. */
static void publish(struct walbus_publisher *publisher, PGconn *conn, const char *prefix,
                    unsigned char number, unsigned flags)
{
    /* One CBOR map: a1 is "one pair", 65 "five bytes of text", and a number below 24 is itself. */
    const unsigned char data[] = {0xa1, 0x65, 'o', 'r', 'd', 'e', 'r', number};
    struct walbus_event event = WALBUS_EVENT_INIT;

    event.prefix = prefix;
    event.data = data;
    event.data_size = sizeof data;
    if (walbus_publish(publisher, conn, &event, flags, NULL) != WALBUS_OK)
        fail(prefix, walbus_publisher_error(publisher));
    printf("  publish %s {\"order\": %d}%s\n", prefix, number,
           flags & WALBUS_NON_TRANSACTIONAL ? ", non-transactional" : "");
}

int main(int argc, char **argv)
{
    const char *dsn = argc > 1 ? argv[1] : getenv("WALBUS_DSN");
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *publisher;

    PGconn *conn = PQconnectdb(dsn ? dsn : "");
    if (PQstatus(conn) != CONNECTION_OK)
        fail("connecting", PQerrorMessage(conn));
    options.source = "/walbus/quickstart";
    enum walbus_result result = walbus_publisher_new(&options, &publisher);
    if (result != WALBUS_OK)
        fail("making a publisher", walbus_result_text(result));

    run(conn, "CREATE TEMPORARY TABLE orders (id int PRIMARY KEY)");

    run(conn, "BEGIN");
    run(conn, "INSERT INTO orders VALUES (1)");
    publish(publisher, conn, "orders.created", 1, WALBUS_REQUIRE_TRANSACTION);
    run(conn, "COMMIT");

    run(conn, "BEGIN");
    run(conn, "INSERT INTO orders VALUES (2)");
    publish(publisher, conn, "orders.created", 2, WALBUS_REQUIRE_TRANSACTION);
    run(conn, "ROLLBACK");

    run(conn, "BEGIN");
    run(conn, "INSERT INTO orders VALUES (3)");
    publish(publisher, conn, "orders.created", 3, WALBUS_REQUIRE_TRANSACTION);
    run(conn, "SAVEPOINT discount");
    publish(publisher, conn, "orders.discounted", 3, WALBUS_REQUIRE_TRANSACTION);
    run(conn, "ROLLBACK TO SAVEPOINT discount");
    publish(publisher, conn, "orders.paid", 3, WALBUS_REQUIRE_TRANSACTION);
    run(conn, "COMMIT");

    run(conn, "BEGIN");
    publish(publisher, conn, "orders.created", 4, WALBUS_REQUIRE_TRANSACTION);
    publish(publisher, conn, "audit.attempted", 4, WALBUS_NON_TRANSACTIONAL);
    run(conn, "ROLLBACK");

    publish(publisher, conn, "orders.closed", 5, 0);

    publisher = walbus_publisher_free(publisher);
    PQfinish(conn);
    return 0;
}
