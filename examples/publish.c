/* SPDX-License-Identifier: PostgreSQL */
/*
 * A row and an event in one transaction: both are there after COMMIT, or neither.
 *
 *   cc publish.c $(pkg-config --cflags --libs walbus libpq) -o publish
 *   ./publish 'host=/run/postgresql dbname=shop' apples 3
 *
 * The role makes its table at first, so it needs CREATE on the schema. Meanwhile, `walbus tail 'orders.>'` shows the event.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

/** Runs a statement; says on stderr why it failed. */
static int run(PGconn *conn, const char *sql, int n, const char *const *values)
{
    PGresult *r = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);
    int ok = PQresultStatus(r) == PGRES_COMMAND_OK;

    if (!ok)
        fprintf(stderr, "%s: %s", sql, PQerrorMessage(conn));
    /* A COMMIT of a failed transaction succeeds, as ROLLBACK. */
    if (ok && strcmp(sql, "COMMIT") == 0)
        ok = strcmp(PQcmdStatus(r), "COMMIT") == 0;
    PQclear(r);
    return ok;
}

static int publish(PGconn *conn, struct walbus_publisher *publisher, const char *item)
{
    struct walbus_event event = WALBUS_EVENT_INIT;
    struct walbus_receipt receipt;

    event.prefix = "orders.created";
    event.data_kind = WALBUS_DATA_TEXT;
    event.data = item;
    event.data_size = strlen(item);
    if (walbus_publish(publisher, conn, &event, WALBUS_REQUIRE_TRANSACTION, &receipt) !=
        WALBUS_OK) {
        fprintf(stderr, "publish: %s\n", walbus_publisher_error(publisher));
        return 0;
    }
    printf("%s\n", receipt.id);
    return 1;
}

static int order(PGconn *conn, struct walbus_publisher *publisher, const char *const *values)
{
    if (!run(conn, "BEGIN", 0, NULL))
        return 0;
    if (run(conn, "INSERT INTO orders (item, quantity) VALUES ($1, $2)", 2, values) &&
        publish(conn, publisher, values[0]) && run(conn, "COMMIT", 0, NULL))
        return 1;
    (void)run(conn, "ROLLBACK", 0, NULL);
    return 0;
}

int main(int argc, char **argv)
{
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *publisher = NULL;

    if (argc != 4) {
        fprintf(stderr, "usage: publish CONNINFO ITEM QUANTITY\n");
        return 2;
    }
    PGconn *conn = PQconnectdb(argv[1]);
    if (PQstatus(conn) != CONNECTION_OK) {
        fprintf(stderr, "%s", PQerrorMessage(conn));
        PQfinish(conn);
        return 1;
    }
    options.source = "/shop/orders";
    enum walbus_result result = walbus_publisher_new(&options, &publisher);
    int ok = result == WALBUS_OK;
    if (!ok)
        fprintf(stderr, "%s\n", walbus_result_text(result));
    ok = ok && run(conn, "CREATE TABLE IF NOT EXISTS orders (item text, quantity int)", 0, NULL) &&
         order(conn, publisher, (const char *const *)&argv[2]);
    walbus_publisher_free(publisher);
    PQfinish(conn);
    return ok ? 0 : 1;
}
