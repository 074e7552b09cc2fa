/* SPDX-License-Identifier: PostgreSQL */
/*
 * Counts messages by prefix in a table of its own database, each message once whatever happens: the position stands
 * in that database too, and changes with the counts. It may be killed at any instant, and has no handler for signals:
 * whoever starts it anew loses nothing and counts nothing twice.
 *
 *   psql 'dbname=reports' -c 'CREATE TABLE counts (prefix text PRIMARY KEY, n int8)'
 *   cc exactly_once.c $(pkg-config --cflags --libs walbus libpq) -o exactly_once
 *   ./exactly_once counter 'dbname=reports' 'orders.>'
 */
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

/** Whether the server did that. The COMMIT of a failed transaction is answered by ROLLBACK. */
static bool command(PGconn *conn, const char *sql, const char *tag)
{
    PGresult *r = PQexec(conn, sql);
    bool done = PQresultStatus(r) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(r), tag) == 0;

    PQclear(r);
    return done;
}

/** The effect of a message. */
static bool count(PGconn *conn, const struct walbus_delivery *d)
{
    size_t size;
    const char *values[] = {walbus_delivery_prefix(d, &size)};
    const int lengths[] = {(int)size}, formats[] = {1};
    PGresult *r =
        PQexecParams(conn,
                     "INSERT INTO counts AS c VALUES (convert_from($1::bytea, 'UTF8'), 1) "
                     "ON CONFLICT (prefix) DO UPDATE SET n = c.n + 1",
                     1, NULL, values, lengths, formats, 0);
    bool done = PQresultStatus(r) == PGRES_COMMAND_OK;

    PQclear(r);
    return done;
}

/** One delivery in one transaction, effect and position. Whether both are there. */
static bool handle(PGconn *conn, struct walbus_position_store *store,
                   struct walbus_subscription *sub, const struct walbus_delivery *d)
{
    const char *identity = walbus_subscription_identity(sub);
    struct walbus_position position = walbus_delivery_position(d);
    enum walbus_delivery_kind kind = walbus_delivery_kind(d);

    if (kind == WALBUS_DELIVERY_GAP)
        fprintf(stderr, "gap: %s\n", walbus_delivery_reason(d));
    else if (kind != WALBUS_DELIVERY_MESSAGE && kind != WALBUS_DELIVERY_PROGRESS)
        return true;
    if (walbus_position_compare(position, walbus_position_store_position(store)) == 0)
        return true; /* a PROGRESS without news */
    if (!command(conn, "BEGIN", "BEGIN") || (kind == WALBUS_DELIVERY_MESSAGE && !count(conn, d)) ||
        walbus_position_store_save(store, conn, identity, position) != WALBUS_OK ||
        !command(conn, "COMMIT", "COMMIT"))
        return false;
    (void)walbus_subscription_ack(sub, position, 0); /* only what is committed */
    return true;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "counter", *pattern = argc > 3 ? argv[3] : ">";
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct walbus_position_store *store = NULL;
    struct walbus_subscription *sub = NULL;
    const struct walbus_delivery *d;
    PGconn *conn = PQconnectdb(argc > 2 ? argv[2] : "");
    enum walbus_result result;

    options.start = WALBUS_START_OLDEST; /* the first time */
    options.filters = &filter;
    options.n_filters = 1;
    if ((result = walbus_position_store_new(name, &store)) == WALBUS_OK &&
        (result = walbus_position_store_create_table(store, conn)) == WALBUS_OK &&
        (result = walbus_position_store_load(store, conn, &options)) == WALBUS_OK)
        result = walbus_subscription_open(&options, &sub);
    while (result == WALBUS_OK && (result = walbus_subscription_next(sub, -1, &d)) == WALBUS_OK)
        if (!handle(conn, store, sub, d))
            break; /* what was not committed is not there, and comes again at the next start */
    fprintf(stderr, "%s %s%s%s\n", walbus_result_text(result), walbus_subscription_error(sub),
            walbus_position_store_error(store), PQerrorMessage(conn));
    walbus_subscription_close(sub);
    walbus_position_store_free(store);
    PQfinish(conn);
    return 1;
}
