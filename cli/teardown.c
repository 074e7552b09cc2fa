/* SPDX-License-Identifier: PostgreSQL */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "pg/connect.h"
#include "server.h"

#define NAME "teardown"

#define SQLSTATE_UNDEFINED_OBJECT "42704"
#define SQLSTATE_OBJECT_IN_USE    "55006"

/* A terminated walsender is gone in some milliseconds, unless it waits for a dead peer: then
 * wal_sender_timeout, 60 s unless set otherwise, is not waited for. */
#define HOLDER_TRIES    100
#define HOLDER_PAUSE_NS 100000000L

struct teardown {
    bool force;
};

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct teardown *t = state;

    (void)option; /* there is one */
    (void)value;
    t->force = true;
    return CLI_OK;
}

static int drop_publication(struct pg_conn *conn, const char *name, bool exists)
{
    struct buf sql = BUF_INIT;
    int status = CLI_OK;

    if (!exists) {
        (void)printf("publication \"%s\" is not there\n", name);
        return CLI_OK;
    }
    buf_append_str(&sql, "DROP PUBLICATION IF EXISTS ");
    sql_put_identifier(&sql, name);
    PGresult *result = PQexec(conn, buf_str(&sql));
    if (PQresultStatus(result) != PGRES_COMMAND_OK)
        status = cli_server_error(NAME, "Cannot drop the publication", conn, result);
    else
        (void)printf("publication \"%s\" dropped\n", name);
    PQclear(result);
    buf_deinit(&sql);
    return status;
}

/** Ends whoever reads the slot at this moment. */
static int terminate_holder(struct pg_conn *conn, const char *slot)
{
    struct buf sql = BUF_INIT;
    int status = CLI_OK;

    buf_append_str(&sql, "SELECT pg_catalog.pg_terminate_backend(active_pid)"
                         " FROM pg_catalog.pg_replication_slots"
                         " WHERE active_pid IS NOT NULL AND slot_name = ");
    sql_put_literal(&sql, slot);
    PGresult *result = PQexec(conn, buf_str(&sql));
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        status = cli_server_error(NAME, "Cannot end the reader of the slot", conn, result);
    PQclear(result);
    buf_deinit(&sql);
    return status;
}

static int refuse_in_use(struct cli *cli, int pid)
{
    const char *slot = cli->settings.slot;
    struct buf finding = BUF_INIT, mend = BUF_INIT;

    buf_printf(&finding, "The slot \"%s\" is in use by the server process %d.", slot, pid);
    buf_append_str(&mend, "stop the router that reads it; or: walbus teardown --force --slot ");
    shell_put_word(&mend, slot);
    buf_append_str(&mend, " --publication ");
    shell_put_word(&mend, cli->settings.publication);
    cli_report(NAME, buf_str(&finding), buf_str(&mend));
    buf_deinit(&finding);
    buf_deinit(&mend);
    return CLI_FAILED;
}

/** Drops the slot; with force, ends its readers until it can be dropped. */
static int drop_slot(struct cli *cli, struct pg_conn *conn, bool force)
{
    const struct timespec pause = {0, HOLDER_PAUSE_NS};
    const char *slot = cli->settings.slot;
    struct buf sql = BUF_INIT;
    int status = CLI_OK;

    buf_append_str(&sql, "SELECT pg_catalog.pg_drop_replication_slot(");
    sql_put_literal(&sql, slot);
    buf_append_str(&sql, ")");
    for (int tries = 1;; tries++) {
        PGresult *result = PQexec(conn, buf_str(&sql));
        const char *state = pg_sqlstate(result);
        bool again = force && tries < HOLDER_TRIES && strcmp(state, SQLSTATE_OBJECT_IN_USE) == 0;

        if (PQresultStatus(result) == PGRES_TUPLES_OK)
            (void)printf("slot \"%s\" dropped\n", slot);
        else if (strcmp(state, SQLSTATE_UNDEFINED_OBJECT) == 0)
            (void)printf("slot \"%s\" is not there\n", slot);
        else if (!again)
            status = cli_server_error(NAME, "Cannot drop the slot", conn, result);
        PQclear(result);
        if (!again)
            break;
        status = terminate_holder(conn, slot);
        if (status != CLI_OK)
            break;
        (void)nanosleep(&pause, NULL);
    }
    buf_deinit(&sql);
    return status;
}

static int tear_down(struct cli *cli, void *state, struct pg_conn *conn)
{
    const struct teardown *t = state;
    struct server_facts facts;

    int status = cli_check(cli, NAME, conn, PRECONDITION_FOR_TEARDOWN, &facts);
    if (status != CLI_OK)
        return status;
    if (facts.slot_active_pid != 0) {
        if (!t->force)
            return refuse_in_use(cli, facts.slot_active_pid);
        /* Before anything is dropped: the role may not be allowed to. */
        status = terminate_holder(conn, cli->settings.slot);
        if (status != CLI_OK)
            return status;
    }
    /* The publication first: without it the router does not take the slot up again. */
    status = drop_publication(conn, cli->settings.publication, facts.publication_exists);
    if (status != CLI_OK)
        return status;
    if (facts.slot_exists)
        return drop_slot(cli, conn, t->force);
    (void)printf("slot \"%s\" is not there\n", cli->settings.slot);
    return CLI_OK;
}

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    return cli_run_connected(cli, NAME, state, argc, argv, tear_down);
}

static const struct cli_option options[] = {
    {"force", NULL, "Also when the slot is being read: end its reader and wait for that."},
    {NULL, NULL, NULL},
};

const struct cli_command cli_command_teardown = {
    .name = NAME,
    .usage = "[OPTION...]",
    .sentence = "Drop the publication and the replication slot.",
    .details =
        "What the slot still held for the router is lost. It is safe to repeat: what is not there\n"
        "is reported as such. A slot of another kind, plugin or database is left alone.\n"
        "\n"
        "Examples:\n"
        "  walbus teardown --dsn 'host=/run/postgresql dbname=shop'\n"
        "  walbus teardown --dsn 'host=/run/postgresql dbname=shop' --force",
    .options = options,
    .option = take_option,
    .run = run,
    .state_size = sizeof(struct teardown),
};
