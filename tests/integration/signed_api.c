/* SPDX-License-Identifier: PostgreSQL */
/*
 * libwalbus' signatures, from C, as a user links it. Run by test_signed_api.py.
 *
 *   signed_api publish DSN KEY OTHER-KEY        publishes events by every call, their data being texts that count from
 *                                               "1" on, and the prefix `end` at last; checks what is refused
 *   signed_api follow SOCKET TRUST NAME FLAGS   TRUST or NAME "-": none. Prints up to a message `end`:
 *                                                 message PREFIX FORM STATUS KID TEXT
 *                                                 begin, commit, and progress when one follows a message that was withheld
 *                                               and "withheld N"
 */
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <walbus/walbus.h>

#include "publish_api.h"

#define WAIT_MS 60000

/* ---- publishing ---- */

static struct walbus_event event_of(const char *prefix, const char *text)
{
    struct walbus_event event = new_event(prefix);

    event.data = text;
    event.data_size = strlen(text);
    event.data_kind = WALBUS_DATA_TEXT;
    return event;
}

static void publish_one(struct walbus_publisher *p, PGconn *conn, const char *prefix, const char *text,
                        unsigned flags)
{
    struct walbus_event event = event_of(prefix, text);
    struct walbus_receipt receipt;

    expect(p, walbus_publish(p, conn, &event, flags, &receipt), WALBUS_OK, text);
    check(strlen(receipt.id) == WALBUS_ID_SIZE - 1, "it has an id");
}

static void publish_in_pipeline(struct walbus_publisher *p, PGconn *conn)
{
    struct walbus_event events[] = {event_of("orders.sent", "5"), event_of("orders.sent", "6")};
    uint64_t lsns[2];

    if (!PQenterPipelineMode(conn))
        die("pipeline", PQerrorMessage(conn));
    expect(p, walbus_publish_send(p, conn, events, 2, 0, NULL), WALBUS_OK, "sent");
    PQpipelineSync(conn);
    PGresult *result = next_result(conn);
    expect(p, walbus_publish_read(p, result, lsns, 2), WALBUS_OK, "read");
    PQclear(result);
    read_sync(conn);
    PQexitPipelineMode(conn);
}

static void set_key(struct walbus_publisher *p, const char *path, const char *audience)
{
    expect(p, walbus_publisher_set_key(p, path, audience), WALBUS_OK, path ? path : "no key");
}

/* What is signed counts against max_content. */
static void publish_too_much(PGconn *conn, const char *key)
{
    char text[101];
    struct walbus_publisher *p = new_publisher(250, 0);

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    struct walbus_event event = event_of("orders.large", text);

    event.id = "1";
    run(conn, "BEGIN");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "as large as may be");
    set_key(p, key, NULL);
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_TOO_LARGE, "too large with a signature");
    expect(p, walbus_publisher_set_key(p, "/none/at/all", NULL), WALBUS_BAD_KEY, "no such file");
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_TOO_LARGE, "still with the key");
    set_key(p, NULL, NULL);
    expect(p, walbus_publish(p, conn, &event, 0, NULL), WALBUS_OK, "and without");
    run(conn, "ROLLBACK");
    p = walbus_publisher_free(p);
}

static int publish(const char *dsn, const char *key, const char *other)
{
    struct walbus_publisher *p = new_publisher(0, 0);
    PGconn *conn = open_connection(dsn);
    struct walbus_event events[] = {event_of("orders.many", "2"), event_of("payments.many", "3"),
                                    event_of("orders.many", "4")};

    publish_too_much(conn, key);
    set_key(p, key, NULL);
    publish_one(p, conn, "orders.one", "1", 0);
    expect(p, walbus_publish_many(p, conn, events, 3, 0, NULL), WALBUS_OK, "many");
    publish_in_pipeline(p, conn);
    expect(p, walbus_publish_raw(p, conn, "orders.raw", "7", 1, 0, NULL), WALBUS_OK, "raw");
    publish_one(p, conn, "orders.now", "8", WALBUS_NON_TRANSACTIONAL);
    set_key(p, key, "staging");
    publish_one(p, conn, "orders.one", "9", 0);
    set_key(p, other, NULL);
    publish_one(p, conn, "orders.one", "10", WALBUS_NON_TRANSACTIONAL);
    set_key(p, NULL, NULL);
    publish_one(p, conn, "orders.one", "11", 0);
    set_key(p, key, NULL);
    publish_one(p, conn, "end", "12", 0);
    p = walbus_publisher_free(p);
    PQfinish(conn);
    return result_of_all();
}

/* ---- following ---- */

static void log_to_stderr(void *context, const char *sentence)
{
    (void)context;
    (void)fprintf(stderr, "%s\n", sentence);
}

static bool print_message(const struct walbus_delivery *d)
{
    static const char *const forms[] = {"opaque", "event", "signed"};
    enum walbus_form form = walbus_delivery_form(d);
    size_t prefix_size, kid_size, size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const uint8_t *kid = walbus_delivery_kid(d, &kid_size);
    const char *text = form == WALBUS_FORM_OPAQUE ? walbus_delivery_content(d, &size)
                                                  : walbus_delivery_data_text(d, &size);

    (void)printf("message %.*s %s %s ", (int)prefix_size, prefix, forms[form],
                 walbus_signature_text(walbus_delivery_signature(d)));
    for (size_t i = 0; i < kid_size; i++)
        (void)printf("%02x", kid[i]);
    (void)printf("%s %.*s\n", kid ? "" : "-", (int)size, text);
    return prefix_size == 3 && memcmp(prefix, "end", 3) == 0;
}

static bool handle(const struct walbus_subscription *sub, const struct walbus_delivery *d,
                   uint64_t *withheld)
{
    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_READY:
        (void)puts("ready");
        break;
    case WALBUS_DELIVERY_BEGIN:
        (void)puts("begin");
        break;
    case WALBUS_DELIVERY_COMMIT:
        (void)puts("commit");
        break;
    case WALBUS_DELIVERY_MESSAGE:
        return print_message(d);
    case WALBUS_DELIVERY_PROGRESS:
        if (walbus_subscription_withheld(sub) > *withheld)
            (void)puts("progress");
        break;
    default:
        break;
    }
    *withheld = walbus_subscription_withheld(sub);
    return false;
}

static int follow(char **argv)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct walbus_subscription *sub;
    const struct walbus_delivery *d;
    uint64_t withheld = 0;
    bool ended = false;

    options.socket = argv[0];
    options.trust = strcmp(argv[1], "-") == 0 ? NULL : argv[1];
    options.name = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
    options.flags = (unsigned)strtoul(argv[3], NULL, 0);
    options.log = log_to_stderr;
    enum walbus_result result = walbus_subscription_open(&options, &sub);
    if (result != WALBUS_OK)
        die("open", walbus_result_name(result));
    while (!ended) {
        if (walbus_subscription_next(sub, WAIT_MS, &d) != WALBUS_OK)
            die("next", walbus_subscription_error(sub));
        ended = handle(sub, d, &withheld);
        (void)fflush(stdout);
        /* The end is left, with all that was withheld before it acknowledged by what came between. */
        if (!ended && walbus_subscription_ack(sub, walbus_delivery_position(d), 0) != WALBUS_OK)
            die("ack", walbus_subscription_error(sub));
    }
    (void)printf("withheld %llu\n", (unsigned long long)walbus_subscription_withheld(sub));
    sub = walbus_subscription_close(sub);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "publish") == 0)
        return publish(argv[2], argv[3], argv[4]);
    if (argc == 6 && strcmp(argv[1], "follow") == 0)
        return follow(argv + 2);
    (void)fputs("usage: signed_api publish DSN KEY OTHER-KEY | follow SOCKET TRUST NAME FLAGS\n",
                stderr);
    return 2;
}
