/* SPDX-License-Identifier: PostgreSQL */
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "pg/connect.h"
#include "restrict.h"
#include "server.h"
#include "slot_wait.h"

#define NAME "setup"

/* duplicate_object: somebody else made it between our look and our statement. */
#define SQLSTATE_DUPLICATE_OBJECT "42710"

/** Failover slots came with PostgreSQL 17. */
#define FAILOVER_SERVER 170000

struct setup {
    bool failover;
    bool restricts;
    struct restrict_roles grant;
};

static int take_option(void *state, const struct cli_option *option, const char *value)
{
    struct setup *s = state;

    if (strcmp(option->name, "grant") == 0)
        return restrict_add(&s->grant, value);
    if (strcmp(option->name, "restrict") == 0)
        s->restricts = true;
    else
        s->failover = true;
    return CLI_OK;
}

/** What became of creating something; of FAILED stderr has the reason. */
enum made { MADE, WAS_THERE, FAILED };

static enum made judge(struct pg_conn *conn, const struct pg_result *result, const char *what,
                       int *ret_status)
{
    ExecStatusType status = PQresultStatus(result);

    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK)
        return MADE;
    if (strcmp(pg_sqlstate(result), SQLSTATE_DUPLICATE_OBJECT) == 0)
        return WAS_THERE;
    *ret_status = cli_server_error(NAME, what, conn, result);
    return FAILED;
}

/** An empty publication is enough: messages flow whatever it holds. */
static enum made make_publication(struct pg_conn *conn, const char *name, int *ret_status)
{
    struct buf sql = BUF_INIT;

    buf_append_str(&sql, "CREATE PUBLICATION ");
    sql_put_identifier(&sql, name);
    PGresult *result = PQexec(conn, buf_str(&sql));
    enum made made = judge(conn, result, "Cannot create the publication", ret_status);
    PQclear(result);
    buf_deinit(&sql);
    return made;
}

static enum made make_slot(struct cli *cli, struct pg_conn *conn, bool failover, int *ret_status)
{
    struct buf sql = BUF_INIT;

    buf_append_str(&sql, "SELECT pg_catalog.pg_create_logical_replication_slot(");
    sql_put_literal(&sql, cli->settings.slot);
    /* Neither temporary nor two_phase. */
    buf_append_str(&sql, ", 'pgoutput', false, false");
    buf_append_str(&sql, failover ? ", true)" : ")");
    PGresult *result = slot_wait_exec(cli, NAME, conn, buf_str(&sql));
    enum made made = judge(conn, result, "Cannot create the slot", ret_status);
    PQclear(result);
    buf_deinit(&sql);
    return made;
}

static int check_failover(struct cli *cli, const struct server_facts *facts)
{
    struct buf finding = BUF_INIT, mend = BUF_INIT;

    if (facts->slot_failover)
        return CLI_OK;
    buf_printf(&finding, "The slot \"%s\" is there, but it is not a failover slot.",
               cli->settings.slot);
    buf_append_str(&mend, "over a connection with replication=database: ALTER_REPLICATION_SLOT ");
    sql_put_identifier(&mend, cli->settings.slot);
    buf_append_str(&mend, " (FAILOVER true);");
    cli_report(NAME, buf_str(&finding), buf_str(&mend));
    buf_deinit(&finding);
    buf_deinit(&mend);
    return CLI_FAILED;
}

static void say(enum made made, const char *what, const char *name)
{
    (void)printf("%s \"%s\" %s\n", what, name, made == MADE ? "created" : "is there already");
}

static int set_up(struct cli *cli, void *state, struct pg_conn *conn)
{
    const struct setup *s = state;
    const char *publication = cli->settings.publication, *slot = cli->settings.slot;
    enum made made = WAS_THERE;
    struct server_facts facts;

    int status = cli_check(
        cli, NAME, conn,
        s->restricts ? PRECONDITION_FOR_SETUP | PRECONDITION_FOR_RESTRICT : PRECONDITION_FOR_SETUP,
        &facts);
    if (status != CLI_OK)
        return status;
    if (s->failover && facts.version_num < FAILOVER_SERVER)
        return cli_fail(NAME, "--failover needs PostgreSQL 17 or newer; the server is %d.",
                        facts.version_num / 10000);
    if (s->failover && facts.slot_exists) {
        status = check_failover(cli, &facts);
        if (status != CLI_OK)
            return status;
    }

    cli_begin_change(cli, "Publication and slot are there");
    /* Before the slot, which may be long in coming. */
    if (s->restricts)
        status = restrict_publishing(cli, conn, &s->grant);
    if (status != CLI_OK)
        return status;
    /* The publication first: the server looks it up as of the WAL that it decodes, so one made
     * after the slot would be missing for everything in between. */
    if (!facts.publication_exists)
        made = make_publication(conn, publication, &status);
    if (made == FAILED)
        return status;
    say(made, "publication", publication);

    made = WAS_THERE;
    if (!facts.slot_exists)
        made = make_slot(cli, conn, s->failover, &status);
    if (made == FAILED)
        return status;
    if (made == WAS_THERE && !facts.slot_exists) {
        /* Made by somebody else just now: is it right? */
        status = cli_check(cli, NAME, conn, PRECONDITION_FOR_SETUP, &facts);
        if (status == CLI_OK && s->failover)
            status = check_failover(cli, &facts);
        if (status != CLI_OK)
            return status;
    }
    say(made, "slot", slot);
    return CLI_OK;
}

static int run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct setup *s = state;

    if (s->grant.n > 0 && !s->restricts)
        return cli_usage(NAME, "--grant says who may still publish; --restrict is missing.");
    return cli_run_connected(cli, NAME, state, argc, argv, set_up);
}

static const struct cli_option options[] = {
    {"failover", NULL, "Make the slot one that standbys keep in step (PostgreSQL 17 and newer)."},
    {"restrict", NULL,
     "Let only the router's role and those of --grant publish in this database (needs a superuser)."},
    {"grant", "ROLE", "With --restrict: let this role publish. May be repeated."},
    {NULL, NULL, NULL},
};

const struct cli_command cli_command_setup = {
    .name = NAME,
    .usage = "[OPTION...]",
    .sentence = "Create the publication and the replication slot that the router reads.",
    .details =
        "Everything that must be true of the server is checked first; what is not is named with\n"
        "the command that mends it, and nothing is made. It is safe to repeat: what is there and\n"
        "right stays as it is.\n"
        "\n"
        "Creating a slot waits for the end of every transaction that has written something,\n"
        "prepared ones included; after a second those are named.\n"
        "\n"
        "Everybody may publish, on any prefix, until --restrict takes the right to execute\n"
        "pg_logical_emit_message from PUBLIC. The role that reads the slot at this moment keeps it;\n"
        "while no router runs, name its role with --grant.\n"
        "\n"
        "Examples:\n"
        "  walbus setup --dsn 'host=/run/postgresql dbname=shop'\n"
        "  walbus setup --dsn postgresql://db.example/shop --slot shop_bus --publication shop_bus\n"
        "  walbus setup --dsn 'dbname=shop user=postgres' --restrict --grant walbus --grant shop_app",
    .options = options,
    .option = take_option,
    .run = run,
    .state_size = sizeof(struct setup),
};
