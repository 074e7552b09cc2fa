/* SPDX-License-Identifier: PostgreSQL */
#include "publish_connection.h"

#include <libpq-fe.h>
#include <string.h>

#include "base/buf.h"
#include "key_operand.h"
#include "server.h"

#define NAME "publish"

/* /walbus/DATABASE, everything percent-encoded that RFC 3986 does not call unreserved. */
static void put_default_source(struct buf *out, const char *database)
{
    static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                     "0123456789-._~";

    buf_append_str(out, "/walbus/");
    for (; *database; database++) {
        if (strchr(unreserved, *database))
            buf_append_u8(out, (uint8_t)*database);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)*database);
    }
}

void publish_connection_close(struct publish_connection *c)
{
    c->publisher = walbus_publisher_free(c->publisher);
    PQfinish(c->conn); /* rolls back what was not committed */
    c->conn = NULL;
}

/* Says so when the server's settings make publishing pointless. */
static int warn_of_wal_level(struct publish_connection *c)
{
    PGresult *result = PQexec(c->conn, "SHOW wal_level");
    int status = CLI_OK;

    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        status = cli_server_error(NAME, "Cannot read wal_level", c->conn, result);
    else if (strcmp(PQgetvalue(result, 0, 0), "logical") != 0)
        (void)cli_fail(NAME,
                       "Warning: wal_level is %s, not logical: nobody will see what is published.",
                       PQgetvalue(result, 0, 0));
    PQclear(result);
    return status;
}

static int set_key(struct walbus_publisher *publisher,
                   const struct publish_connection_options *options)
{
    enum walbus_result result =
        options->key ? walbus_publisher_set_key(publisher, options->key, options->audience)
                     : WALBUS_OK;
    const char *why = walbus_publisher_error(publisher);

    if (result == WALBUS_BAD_KEY)
        return key_operand_not_private(NAME, options->key, why);
    if (result == WALBUS_BAD_ARGUMENT)
        return cli_usage(NAME, "--audience: %s", why);
    if (result != WALBUS_OK)
        return cli_fail(NAME, "%s", *why ? why : "Not enough memory.");
    return CLI_OK;
}

/* What is wrong with the key is found before anything is connected. */
static int check_key(const struct publish_connection_options *options)
{
    struct walbus_publisher_options with = WALBUS_PUBLISHER_OPTIONS_INIT;
    struct walbus_publisher *publisher;

    if (!options->key)
        return CLI_OK;
    with.source = "/"; /* nothing is published by this one */
    if (walbus_publisher_new(&with, &publisher) != WALBUS_OK)
        return cli_fail(NAME, "Not enough memory.");
    int status = set_key(publisher, options);
    (void)walbus_publisher_free(publisher);
    return status;
}

int publish_connection_open(struct cli *cli, const struct publish_connection_options *options,
                            struct publish_connection *ret)
{
    struct publish_connection c = {.flags = options->flags};
    struct buf source = BUF_INIT;
    struct walbus_publisher_options with = WALBUS_PUBLISHER_OPTIONS_INIT;
    enum walbus_result result = WALBUS_NO_MEMORY;
    int status = check_key(options);

    if (status == CLI_OK)
        status = cli_connect(cli, NAME, &c.conn);
    if (status != CLI_OK)
        return status;
    put_default_source(&source, PQdb(c.conn));
    with.source = options->source ? options->source : buf_str(&source);
    if (!source.failed)
        result = walbus_publisher_new(&with, &c.publisher);
    if (result == WALBUS_BAD_ARGUMENT)
        status = cli_usage(NAME, "--source must be UTF-8 and not empty.");
    else if (result != WALBUS_OK)
        status = cli_fail(NAME, "Cannot publish: %s.", walbus_result_text(result));
    else
        status = set_key(c.publisher, options);
    if (status == CLI_OK)
        status = warn_of_wal_level(&c);
    buf_deinit(&source);
    if (status != CLI_OK)
        publish_connection_close(&c);
    else
        *ret = c;
    return status;
}

int publish_connection_failed(const struct publish_connection *c, const char *where,
                              enum walbus_result result)
{
    const char *why = walbus_publisher_error(c->publisher);

    if (*why == '\0')
        why = walbus_result_text(result);
    switch (result) {
    case WALBUS_NOT_PERMITTED: {
        struct precondition_finding finding;
        struct buf sentence = BUF_INIT;

        precondition_explain_emit(c->conn, &finding);
        buf_printf(&sentence, "%s%s", where, why);
        cli_report(NAME, buf_str(&sentence), buf_str(&finding.mend));
        buf_deinit(&sentence);
        precondition_findings_deinit(&finding, 1);
        return CLI_FAILED;
    }
    case WALBUS_CONNECTION_LOST:
    case WALBUS_NOT_CONNECTED:
        return cli_unreachable(NAME, "%s%s", where, why);
    case WALBUS_BAD_PREFIX:
    case WALBUS_BAD_EVENT:
        return cli_usage(NAME, "%s%s", where, why);
    default:
        return cli_fail(NAME, "%s%s", where, why);
    }
}
