/* SPDX-License-Identifier: PostgreSQL */
#include "publish_api.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_failed;

bool check(bool ok, const char *fmt, ...)
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

void die(const char *what, const char *why)
{
    (void)printf("NOT OK  %s: %s\n", what, why);
    exit(1);
}

void expect(const struct walbus_publisher *p, enum walbus_result got, enum walbus_result want,
            const char *what)
{
    check(got == want, "%s: %s%s%s%s%s", what, walbus_result_name(got),
          got == want ? "" : ", wanted ", got == want ? "" : walbus_result_name(want),
          got == WALBUS_OK ? "" : ": ", got == WALBUS_OK ? "" : walbus_publisher_error(p));
}

void run(PGconn *conn, const char *sql)
{
    PGresult *r = PQexec(conn, sql);
    ExecStatusType status = PQresultStatus(r);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        die(sql, PQerrorMessage(conn));
    PQclear(r);
}

PGconn *open_connection(const char *dsn)
{
    PGconn *conn = PQconnectdb(dsn);

    if (PQstatus(conn) != CONNECTION_OK)
        die("connect", PQerrorMessage(conn));
    run(conn, "SET client_min_messages = error");
    return conn;
}

struct walbus_publisher *new_publisher(size_t max_content, size_t max_prefix)
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

struct walbus_event new_event(const char *prefix)
{
    struct walbus_event event = WALBUS_EVENT_INIT;

    event.prefix = prefix;
    return event;
}

/* ---- reading back ---- */

static uint64_t big_endian(const char *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v = v << 8 | (uint8_t)p[i];
    return v;
}

size_t read_back(PGconn *conn, struct message *messages, size_t max, PGresult **ret)
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

bool holds(const struct message *m, const char *text)
{
    return memmem(m->content, m->size, text, strlen(text)) != NULL;
}

void expect_nothing(PGconn *reader, const char *what)
{
    struct message m[8];
    PGresult *r = NULL;

    check(read_back(reader, m, 8, &r) == 0, "%s: nothing was published", what);
    PQclear(r);
}

/* ---- sending apart from reading ---- */

void send_query(PGconn *conn, const char *sql)
{
    if (!PQsendQueryParams(conn, sql, 0, NULL, NULL, NULL, NULL, 0))
        die(sql, PQerrorMessage(conn));
}

PGresult *next_result(PGconn *conn)
{
    PGresult *r = PQgetResult(conn), *end = PQgetResult(conn);

    check(end == NULL, "one result a statement");
    PQclear(end);
    return r;
}

void read_sync(PGconn *conn)
{
    PGresult *r = PQgetResult(conn);

    check(PQresultStatus(r) == PGRES_PIPELINE_SYNC, "the end of the pipeline");
    PQclear(r);
}

/* ---- the end ---- */

int result_of_all(void)
{
    (void)printf(n_failed ? "%d checks failed\n" : "all checks are ok\n", n_failed);
    return n_failed ? 1 : 0;
}
