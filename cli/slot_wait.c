/* SPDX-License-Identifier: PostgreSQL */
#include "slot_wait.h"

#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "pg/connect.h"

/* A slot on a quiet server is there in some 10 ms; past a second people begin to wonder. */
#define PATIENCE_NS UINT64_C(1000000000)

static volatile sig_atomic_t interrupted;

static void interrupt(int signo)
{
    (void)signo;
    interrupted = 1;
}

/*
 * Holders of an xid that began before we did, or for which the slot's creation
 * waits at this moment (it waits in several rounds). pg_locks shows every
 * transaction's own lock to everybody, pg_stat_activity.backend_xid does not. A
 * prepared transaction's lock has no pid; a subtransaction's has its parent's.
 */
static const char holders_sql[] =
    "WITH waited AS ("
    " SELECT transactionid FROM pg_catalog.pg_locks"
    " WHERE pid = $1 AND locktype = 'transactionid' AND NOT granted)"
    " SELECT DISTINCT l.pid, x.gid, x.database, a.usename, a.application_name, a.state"
    " FROM pg_catalog.pg_locks AS l"
    " LEFT JOIN pg_catalog.pg_prepared_xacts AS x"
    " ON l.pid IS NULL AND x.transaction = l.transactionid"
    " LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'transactionid' AND l.granted AND l.pid IS DISTINCT FROM $1"
    " AND (l.pid IS NOT NULL OR x.gid IS NOT NULL)"
    " AND (pg_catalog.age(l.transactionid) > pg_catalog.age($2)"
    " OR l.transactionid IN (SELECT transactionid FROM waited))"
    " ORDER BY l.pid, x.gid";

/* The first xid that had not begun when we did, in 32 bits as locks have it. */
static const char horizon_sql[] =
    "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.xid";

static const char *value_or(const PGresult *r, int row, int column, const char *otherwise)
{
    const char *value = PQgetvalue(r, row, column);

    return *value ? value : otherwise;
}

static void put_holders(const PGresult *r, struct buf *out)
{
    for (int i = 0; i < PQntuples(r); i++) {
        if (i > 0)
            buf_append_str(out, "; ");
        if (PQgetisnull(r, i, 0)) {
            buf_append_str(out, "the prepared transaction ");
            sql_put_literal(out, PQgetvalue(r, i, 1));
            buf_append_str(out, " in the database ");
            sql_put_identifier(out, PQgetvalue(r, i, 2));
        } else {
            buf_printf(out, "the server process %s (role %s, application %s, %s)",
                       PQgetvalue(r, i, 0), value_or(r, i, 3, "unknown"),
                       value_or(r, i, 4, "without a name"),
                       value_or(r, i, 5, "state not visible to this role"));
        }
    }
}

/** Whom the creation waits for now; nothing appended when nobody, or when it cannot be seen. */
static void look(PGconn *observer, int pid, const char *horizon, struct buf *out)
{
    char pid_text[16];
    const char *values[] = {pid_text, horizon};
    static const Oid types[] = {23 /* int4 */, 28 /* xid */};

    (void)snprintf(pid_text, sizeof pid_text, "%d", pid);
    PGresult *r = PQexecParams(observer, holders_sql, 2, types, values, NULL, NULL, 0);
    if (PQresultStatus(r) == PGRES_TUPLES_OK)
        put_holders(r, out);
    PQclear(r);
}

struct wait {
    struct cli *cli;
    const char *command;
    PGconn *conn;
    PGconn *observer; /* NULL until the first second is over, or where it cannot be had */
    bool observed;    /* the attempt to open it was made */
    char horizon[16];
    struct buf told; /* what was said last */
};

/* Between two looks it is idle. Without success they are still looks. */
static void be_patient(PGconn *observer)
{
    struct buf sql = BUF_INIT;

    sql_put_patience(&sql, PQserverVersion(observer), false);
    PQclear(PQexec(observer, buf_str(&sql)));
    buf_deinit(&sql);
}

static void tell(struct wait *w)
{
    const struct connect_options options = {.dsn = w->cli->settings.dsn,
                                            .application_name = "walbus"};
    struct buf now = BUF_INIT, why = BUF_INIT;

    if (!w->observed) {
        w->observed = true;
        if (connect_open(&options, &w->observer, &why) < 0)
            (void)cli_fail(w->command,
                           "Creating the slot waits for open transactions; which ones cannot be "
                           "told, because a second connection fails: %s",
                           buf_str(&why));
        if (w->observer)
            be_patient(w->observer);
    }
    if (w->observer) {
        look(w->observer, PQbackendPID(w->conn), w->horizon, &now);
        if (now.size > 0 && !bytes_equal(buf_bytes(&now), buf_bytes(&w->told)))
            (void)cli_fail(w->command, "Creating the slot waits for the end of: %s", buf_str(&now));
        buf_deinit(&w->told);
        w->told = now;
    }
    buf_deinit(&why);
}

static void cancel(PGconn *conn)
{
    char why[256];
    PGcancel *c = PQgetCancel(conn);

    if (c)
        (void)PQcancel(c, why, sizeof why);
    PQfreeCancel(c);
}

/** Waits until the statement is through; the signals are let in only while it sleeps. */
static void wait_for_result(struct wait *w, const sigset_t *while_asleep)
{
    bool cancelled = false;
    uint64_t due = clock_monotonic_ns() + PATIENCE_NS;

    while (PQisBusy(w->conn)) {
        struct pollfd p = {.fd = PQsocket(w->conn), .events = POLLIN};
        int left = clock_ms_until(due);
        struct timespec timeout = {left / 1000, left % 1000 * 1000000L};
        int n = ppoll(&p, 1, &timeout, while_asleep);

        if (interrupted && !cancelled) {
            cancel(w->conn);
            cancelled = true;
        }
        if (n > 0 && !PQconsumeInput(w->conn))
            return;
        if (n == 0) {
            if (!cancelled)
                tell(w);
            due = clock_monotonic_ns() + PATIENCE_NS;
        }
    }
}

static void read_horizon(struct wait *w)
{
    PGresult *r = PQexec(w->conn, horizon_sql);

    if (PQresultStatus(r) == PGRES_TUPLES_OK && PQntuples(r) == 1)
        (void)snprintf(w->horizon, sizeof w->horizon, "%s", PQgetvalue(r, 0, 0));
    PQclear(r);
}

struct pg_result *slot_wait_exec(struct cli *cli, const char *command, struct pg_conn *conn,
                                 const char *sql)
{
    /* Until the horizon is known: 3 is the first ordinary xid, so only what is waited for is told.
     */
    struct wait w = {.cli = cli, .command = command, .conn = conn, .horizon = "3"};
    const struct sigaction on_signal = {.sa_handler = interrupt};
    struct sigaction old_int, old_term;
    sigset_t blocked, old_mask;
    PGresult *last = NULL;

    read_horizon(&w);
    if (!PQsendQuery(conn, sql))
        return NULL;

    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGINT);
    (void)sigaddset(&blocked, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &blocked, &old_mask);
    interrupted = 0;
    (void)sigaction(SIGINT, &on_signal, &old_int);
    (void)sigaction(SIGTERM, &on_signal, &old_term);

    wait_for_result(&w, &old_mask);
    for (PGresult *r = PQgetResult(conn); r; r = PQgetResult(conn)) {
        PQclear(last);
        last = r;
    }

    (void)sigaction(SIGINT, &old_int, NULL);
    (void)sigaction(SIGTERM, &old_term, NULL);
    (void)sigprocmask(SIG_SETMASK, &old_mask, NULL);
    PQfinish(w.observer);
    buf_deinit(&w.told);
    return last;
}
