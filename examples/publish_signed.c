/* SPDX-License-Identifier: PostgreSQL */
/*
 * Events of which subscribers can tell who made them: each line of stdin is one, signed.
 *
 *   cc publish_signed.c $(pkg-config --cflags --libs walbus libpq) -o publish_signed
 *   walbus keygen shop.key
 *   ./publish_signed 'host=/run/postgresql dbname=shop' shop.key orders.created < lines
 *
 * Meanwhile, `walbus tail --trust FILE` says `valid`, when the trust file lets the key sign for that prefix:
 *
 *   walbus trust --trust FILE add shop.key.pub 'orders.>'
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

/** Outside a transaction block each call is a transaction of its own. */
static int publish(PGconn *conn, struct walbus_publisher *publisher, const char *prefix,
                   const char *line)
{
    struct walbus_event event = WALBUS_EVENT_INIT;
    struct walbus_receipt receipt;

    event.prefix = prefix;
    event.data_kind = WALBUS_DATA_TEXT;
    event.data = line;
    event.data_size = strcspn(line, "\n");
    if (walbus_publish(publisher, conn, &event, 0, &receipt) != WALBUS_OK)
        return 0;
    printf("%s\n", receipt.id);
    return 1;
}

int main(int argc, char **argv)
{
    struct walbus_publisher_options options = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *publisher;
    char line[4096];

    if (argc != 4) {
        fprintf(stderr, "usage: publish_signed CONNINFO KEY-FILE PREFIX\n");
        return 2;
    }
    options.source = "/shop/orders";
    enum walbus_result result = walbus_publisher_new(&options, &publisher);
    if (result != WALBUS_OK) {
        fprintf(stderr, "%s\n", walbus_result_text(result));
        return 1;
    }
    /* NULL: the empty audience. One of your own keeps what was signed for tests out of production. */
    int ok = walbus_publisher_set_key(publisher, argv[2], NULL) == WALBUS_OK;
    PGconn *conn = ok ? PQconnectdb(argv[1]) : NULL;

    if (ok && PQstatus(conn) != CONNECTION_OK) {
        fprintf(stderr, "%s", PQerrorMessage(conn));
        walbus_publisher_free(publisher);
        PQfinish(conn);
        return 1;
    }
    while (ok && fgets(line, sizeof line, stdin))
        ok = publish(conn, publisher, argv[3], line);
    if (!ok)
        fprintf(stderr, "%s\n", walbus_publisher_error(publisher));
    walbus_publisher_free(publisher);
    PQfinish(conn);
    return ok ? 0 : 1;
}
