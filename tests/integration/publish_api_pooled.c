/* SPDX-License-Identifier: PostgreSQL */
#include "publish_api.h"

#include <stdlib.h>
#include <string.h>

enum { POOLED_MAX = 4000 };

/* What is to come back, in this order. */
struct pooled {
    const char *prefix;
    bool transactional;
    struct walbus_receipt receipt;
};

static struct pooled pooled[POOLED_MAX];
static size_t n_pooled;

static struct pooled *pooled_add(const char *prefix, unsigned flags)
{
    if (n_pooled == POOLED_MAX)
        die("pooled", "too many");
    pooled[n_pooled] =
        (struct pooled){.prefix = prefix, .transactional = !(flags & WALBUS_NON_TRANSACTIONAL)};
    return &pooled[n_pooled++];
}

static void pooled_one(struct walbus_publisher *p, PGconn *conn, const char *prefix, unsigned flags)
{
    struct walbus_event event = new_event(prefix);
    enum walbus_result result =
        walbus_publish(p, conn, &event, flags, &pooled_add(prefix, flags)->receipt);

    if (result != WALBUS_OK)
        expect(p, result, WALBUS_OK, prefix);
}

static void pooled_many(struct walbus_publisher *p, PGconn *conn, const char *prefix, size_t n,
                        unsigned flags)
{
    static struct walbus_event events[MANY];
    static struct walbus_receipt receipts[MANY];

    for (size_t i = 0; i < n; i++)
        events[i] = new_event(prefix);
    expect(p, walbus_publish_many(p, conn, events, n, flags, receipts), WALBUS_OK, prefix);
    for (size_t i = 0; i < n; i++)
        pooled_add(prefix, flags)->receipt = receipts[i];
}

/* All forms, by one client. */
static void pooled_forms(struct walbus_publisher *p, PGconn *conn)
{
    struct walbus_event events[2] = {new_event("pooled.sent"), new_event("pooled.sent")};
    struct walbus_receipt receipts[2];
    uint64_t lsns[2];
    PGresult *r;

    pooled_one(p, conn, "pooled.alone", 0);
    run(conn, "BEGIN");
    pooled_one(p, conn, "pooled.transaction", WALBUS_REQUIRE_TRANSACTION);
    run(conn, "SAVEPOINT s");
    pooled_one(p, conn, "pooled.never", 0);
    n_pooled--;
    run(conn, "ROLLBACK TO s");
    pooled_one(p, conn, "pooled.after", 0);
    run(conn, "COMMIT");
    run(conn, "BEGIN");
    pooled_one(p, conn, "pooled.never", 0);
    n_pooled--;
    run(conn, "ROLLBACK");
    pooled_one(p, conn, "pooled.now", WALBUS_NON_TRANSACTIONAL);
    pooled_many(p, conn, "pooled.many", MANY, 0);
    pooled_many(p, conn, "pooled.many_now", 10, WALBUS_NON_TRANSACTIONAL);

    struct pooled *raw = pooled_add("pooled.raw", 0);
    expect(p, walbus_publish_raw(p, conn, raw->prefix, "\0\xff", 2, 0, &raw->receipt.lsn),
           WALBUS_OK, "raw");

    expect(p, walbus_publish_send(p, conn, events, 2, 0, receipts), WALBUS_OK, "sent");
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "and read");
    PQclear(r);
    for (int i = 0; i < 2; i++) {
        receipts[i].lsn = lsns[i];
        pooled_add("pooled.sent", 0)->receipt = receipts[i];
    }

    if (!PQenterPipelineMode(conn))
        die("PQenterPipelineMode", PQerrorMessage(conn));
    send_query(conn, "BEGIN");
    expect(p, walbus_publish_send(p, conn, events, 2, WALBUS_REQUIRE_TRANSACTION, receipts),
           WALBUS_OK, "in pipeline mode");
    send_query(conn, "COMMIT");
    if (!PQpipelineSync(conn))
        die("PQpipelineSync", PQerrorMessage(conn));
    PQclear(next_result(conn));
    r = next_result(conn);
    expect(p, walbus_publish_read(p, r, lsns, 2), WALBUS_OK, "and read");
    PQclear(r);
    PQclear(next_result(conn));
    read_sync(conn);
    if (!PQexitPipelineMode(conn))
        die("PQexitPipelineMode", PQerrorMessage(conn));
    for (int i = 0; i < 2; i++) {
        receipts[i].lsn = lsns[i];
        pooled_add("pooled.sent", 0)->receipt = receipts[i];
    }
}

static int backend_of(PGconn *conn)
{
    PGresult *r = PQexec(conn, "SELECT pg_backend_pid()");

    if (PQresultStatus(r) != PGRES_TUPLES_OK)
        die("pg_backend_pid", PQerrorMessage(conn));
    int pid = atoi(PQgetvalue(r, 0, 0));
    PQclear(r);
    return pid;
}

/* Two clients that have one session of the server between them. */
static void pooled_by_turns(struct walbus_publisher *p, PGconn *a, PGconn *b)
{
    check(backend_of(a) == backend_of(b), "both have the same session");
    for (int i = 0; i < 50; i++) {
        pooled_one(p, a, "pooled.a", 0);
        pooled_one(p, b, "pooled.b", 0);
        run(a, "BEGIN");
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);

        /* b's waits in the pooler until a's transaction has ended. */
        struct walbus_event event = new_event("pooled.b_waits");
        struct walbus_receipt receipt;
        if (walbus_publish_send(p, b, &event, 1, 0, &receipt) != WALBUS_OK)
            die("sending", walbus_publisher_error(p));
        pooled_one(p, a, "pooled.a", WALBUS_REQUIRE_TRANSACTION);
        run(a, "COMMIT");
        PGresult *r = PQgetResult(b);
        if (walbus_publish_read(p, r, &receipt.lsn, 1) != WALBUS_OK)
            die("reading", walbus_publisher_error(p));
        PQclear(r);
        while ((r = PQgetResult(b)))
            PQclear(r);
        pooled_add("pooled.b_waits", 0)->receipt = receipt;
    }
}

void test_pooler(const char *pooler, const char *server)
{
    static struct message m[POOLED_MAX];
    /* Nothing is set on these: it would stay with a session that others get. */
    PGconn *a = PQconnectdb(pooler), *b = PQconnectdb(pooler), *reader = open_connection(server);
    struct walbus_publisher *p = new_publisher(0, 0);
    PGresult *r = NULL;
    bool in_order = true;

    if (PQstatus(a) != CONNECTION_OK || PQstatus(b) != CONNECTION_OK)
        die("connect", PQerrorMessage(PQstatus(a) != CONNECTION_OK ? a : b));
    run(reader, "SELECT pg_create_logical_replication_slot('publish_api', 'pgoutput', true)");
    pooled_forms(p, a);
    pooled_by_turns(p, a, b);
    size_t n = read_back(reader, m, POOLED_MAX, &r);
    check(n == n_pooled, "%zu were published, %zu come back", n_pooled, n);
    for (size_t i = 0; i < n && i < n_pooled; i++) {
        const struct pooled *want = &pooled[i];
        bool same = strcmp(m[i].prefix, want->prefix) == 0 &&
                    m[i].transactional == want->transactional && m[i].lsn == want->receipt.lsn &&
                    holds(&m[i], want->receipt.id);
        if (!same && in_order)
            check(false, "message %zu: %s instead of %s", i, m[i].prefix, want->prefix);
        in_order = in_order && same;
    }
    check(in_order, "each once, in order, with its prefix, id, LSN and flag");
    PQclear(r);
    p = walbus_publisher_free(p);
    PQfinish(a);
    PQfinish(b);
    PQfinish(reader);
}
