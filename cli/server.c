/* SPDX-License-Identifier: PostgreSQL */
#include "server.h"

#include <errno.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "pg/connect.h"
#include "settings/setting_place.h"

static int out_of_memory(const char *command)
{
    return cli_fail(command, "Not enough memory.");
}

static void put_mend(const char *mend)
{
    struct buf line = BUF_INIT;

    buf_append_str(&line, "  mend: ");
    text_put_visible(&line, bytes_of_text(mend));
    (void)fprintf(stderr, "%s\n", buf_str(&line));
    buf_deinit(&line);
}

static int say_no_connection(const char *command, const char *why)
{
    const char *mend = connect_refusal_mend("", why);

    if (!mend)
        return cli_unreachable(command, "Cannot reach the server: %s", why);
    (void)cli_unreachable(command, "The server refused the connection: %s", why);
    put_mend(mend);
    return CLI_UNREACHABLE;
}

int cli_connect(struct cli *cli, const char *command, struct pg_conn **ret)
{
    const struct connect_options options = {.dsn = cli->settings.dsn, .application_name = "walbus"};
    struct buf why = BUF_INIT;

    if (cli_given(cli, "dsn") && cli->settings.dsn && connect_dsn_has_password(cli->settings.dsn))
        (void)fputs(
            "walbus: warning: a password in --dsn can be read by every user of this machine; "
            "PGPASSFILE names a file for it.\n",
            stderr);
    int rc = connect_dsn_check(cli->settings.dsn, &why);
    if (rc == -EINVAL) {
        char text[SETTINGS_WHY_SIZE];

        (void)snprintf(text, sizeof text, "The dsn cannot be read: %.450s", buf_str(&why));
        setting_place_blame(&cli->settings, settings_find("dsn"), 0, text);
        int usage = cli_usage(command, "%s", text);
        buf_deinit(&why);
        return usage;
    }
    if (rc == 0)
        rc = connect_open(&options, ret, &why);
    int status = rc == 0         ? CLI_OK
                 : rc == -ENOMEM ? out_of_memory(command)
                                 : say_no_connection(command, buf_str(&why));
    buf_deinit(&why);
    return status;
}

int cli_run_connected(struct cli *cli, const char *command, void *state, int argc, char **argv,
                      int (*work)(struct cli *cli, void *state, struct pg_conn *conn))
{
    struct pg_conn *conn;

    if (argc > 0)
        return cli_usage(command, "There is no operand here: '%s'.", argv[0]);
    int status = cli_connect(cli, command, &conn);
    if (status != CLI_OK)
        return status;
    status = work(cli, state, conn);
    PQfinish(conn);
    return status;
}

void cli_report(const char *command, const char *finding, const char *mend)
{
    (void)cli_fail(command, "%s", finding);
    put_mend(mend);
}

int cli_server_error(const char *command, const char *what, const struct pg_conn *conn,
                     const struct pg_result *result)
{
    struct buf why = BUF_INIT;
    bool lost = PQstatus(conn) != CONNECTION_OK;

    pg_put_error(&why, conn, result);
    if (lost)
        (void)cli_unreachable(command, "%s: the connection was lost: %s", what, buf_str(&why));
    else
        (void)cli_fail(command, "%s: %s", what, buf_str(&why));
    buf_deinit(&why);
    return lost ? CLI_UNREACHABLE : CLI_FAILED;
}

static int report_all(const char *command, struct precondition_finding *findings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cli_report(command, buf_str(&findings[i].text), buf_str(&findings[i].mend));
    precondition_findings_deinit(findings, n);
    return n > 0 ? CLI_FAILED : CLI_OK;
}

static int read_facts(const char *command, struct pg_conn *conn, const char *publication,
                      const char *sql, struct server_facts *ret)
{
    struct precondition_finding findings[PRECONDITION_MAX];
    PGresult *result = PQexec(conn, sql);
    int status = CLI_OK;

    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        status = report_all(
            command, findings,
            precondition_explain_query(conn, pg_sqlstate(result), publication, findings));
    if (PQresultStatus(result) != PGRES_TUPLES_OK && status == CLI_OK)
        status = cli_server_error(command, "Cannot look at the server", conn, result);
    else if (status == CLI_OK && precondition_read(conn, result, ret) < 0)
        status = cli_fail(command, "The server's answer about its own state was not understood.");
    PQclear(result);
    return status;
}

/* From here on the command may wait: for locks, and for other transactions. */
static int be_patient(const char *command, struct pg_conn *conn)
{
    struct buf sql = BUF_INIT;
    int status = CLI_OK;

    sql_put_patience(&sql, PQserverVersion(conn), false);
    PGresult *result = PQexec(conn, buf_str(&sql));
    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        status = cli_server_error(command, "Cannot switch time-outs off", conn, result);
    PQclear(result);
    buf_deinit(&sql);
    return status;
}

int cli_check(struct cli *cli, const char *command, struct pg_conn *conn,
              unsigned askers, struct server_facts *ret_facts)
{
    struct precondition_finding findings[PRECONDITION_MAX];
    const char *slot = cli->settings.slot, *publication = cli->settings.publication;
    struct server_facts facts;
    struct buf sql = BUF_INIT;

    int status = report_all(command, findings, precondition_check_connection(conn, findings));
    if (status != CLI_OK)
        return status;
    sql_put_patience(&sql, PQserverVersion(conn), true);
    if (precondition_query(conn, slot, publication, &sql) < 0)
        status = out_of_memory(command);
    else
        status = read_facts(command, conn, publication, buf_str(&sql), &facts);
    buf_deinit(&sql);
    if (status != CLI_OK)
        return status;
    status = report_all(command, findings,
                        precondition_check(&facts, slot, publication, askers, findings));
    if (status == CLI_OK)
        status = be_patient(command, conn); /* no pooler is in front: the session is ours */
    if (status == CLI_OK)
        *ret_facts = facts;
    return status;
}
