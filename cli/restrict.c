/* SPDX-License-Identifier: PostgreSQL */
#include "restrict.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "pg/connect.h"
#include "server.h"

/* Of which this is a part. */
#define NAME "setup"

/* The variants differ by major, so they are asked for and not named. */
#define OURS                                       \
    " WHERE f.proname = 'pg_logical_emit_message'" \
    " AND f.pronamespace = 'pg_catalog'::pg_catalog.regnamespace"
#define FUNCTIONS " FROM pg_catalog.pg_proc AS f" OURS
/* Each right to execute a variant that somebody was given; the grantee 0 is PUBLIC. Who has had none of it revoked or
 * granted has no list, and then the default one holds. */
#define GIVEN                                                                 \
    "(SELECT f.oid AS function, given.grantee"                                \
    " FROM pg_catalog.pg_proc AS f, pg_catalog.aclexplode(coalesce(f.proacl," \
    " pg_catalog.acldefault('f', f.proowner))) AS given" OURS                 \
    " AND given.privilege_type = 'EXECUTE')"

struct restriction {
    struct cli *cli;
    struct pg_conn *conn;
    const struct restrict_roles *named;
    struct restrict_roles roles; /* those that were named, and the reader's */
    PGresult *reader;            /* holds its name */
    PGresult *before;            /* of who_has_it() */
};

int restrict_add(struct restrict_roles *roles, const char *name)
{
    /* In quotes too PostgreSQL takes this word for everybody. */
    if (strcmp(name, "public") == 0)
        return cli_usage(NAME,
                         "--grant takes a role; PUBLIC is who --restrict takes the right from.");
    if (*name == '\0')
        return cli_usage(NAME, "--grant takes a role, and this name is empty.");
    for (size_t i = 0; i < roles->n; i++)
        if (strcmp(roles->names[i], name) == 0)
            return CLI_OK;
    if (roles->n == RESTRICT_ROLES_MAX)
        return cli_usage(
            NAME,
            "--grant takes %d roles at most; give the right to one that the others are "
            "members of.",
            RESTRICT_ROLES_MAX);
    roles->names[roles->n++] = name;
    return CLI_OK;
}

/** CLI_OK and *ret, which may be NULL: nobody wants it. */
static int run(struct restriction *r, const char *sql, PGresult **ret)
{
    PGresult *result = PQexec(r->conn, sql);
    ExecStatusType status = PQresultStatus(result);
    int exit_status = CLI_OK;

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        exit_status = cli_server_error(NAME, "Cannot restrict who publishes", r->conn, result);
    if (exit_status == CLI_OK && ret)
        *ret = result;
    else
        PQclear(result);
    return exit_status;
}

static int run_buf(struct restriction *r, struct buf *sql, PGresult **ret)
{
    int status = sql->failed ? cli_fail(NAME, "Not enough memory.") : run(r, buf_str(sql), ret);

    buf_deinit(sql);
    return status;
}

static int find_reader(struct restriction *r)
{
    struct buf sql = BUF_INIT;

    buf_append_str(&sql, "SELECT a.usename FROM pg_catalog.pg_replication_slots AS s"
                         " JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid"
                         " WHERE a.usename IS NOT NULL AND s.slot_name = ");
    sql_put_literal(&sql, r->cli->settings.slot);
    return run_buf(r, &sql, &r->reader);
}

static int refuse_nobody(struct restriction *r)
{
    struct buf finding = BUF_INIT;

    buf_printf(&finding,
               "Nobody is named to publish, and nobody reads the slot \"%s\" at the moment, so the "
               "router's "
               "role is not known; its heartbeat needs the right too.",
               r->cli->settings.slot);
    cli_report(NAME, buf_str(&finding),
               "name the router's role, and each that publishes, with --grant");
    buf_deinit(&finding);
    return CLI_FAILED;
}

/** Whoever is to have the right is there. */
static int check_roles(struct restriction *r)
{
    struct buf sql = BUF_INIT;
    PGresult *missing = NULL;

    /* As text: a name would be cut to the length of names, and then be another one's. */
    buf_append_str(&sql, "SELECT asked.name FROM (VALUES ");
    for (size_t i = 0; i < r->roles.n; i++) {
        buf_append_str(&sql, i == 0 ? "(" : ", (");
        sql_put_literal(&sql, r->roles.names[i]);
        buf_append_str(&sql, "::pg_catalog.text)");
    }
    buf_append_str(&sql,
                   ") AS asked(name) WHERE asked.name NOT IN"
                   " (SELECT there.rolname::pg_catalog.text FROM pg_catalog.pg_roles AS there)");
    int status = run_buf(r, &sql, &missing);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < PQntuples(missing); i++) {
        struct buf finding = BUF_INIT, mend = BUF_INIT;
        const char *name = PQgetvalue(missing, i, 0);

        buf_printf(&finding, "There is no role \"%s\".", name);
        buf_append_str(&mend, "correct its name; or: CREATE ROLE ");
        sql_put_identifier(&mend, name);
        buf_append_str(&mend, " LOGIN;");
        cli_report(NAME, buf_str(&finding), buf_str(&mend));
        buf_deinit(&finding);
        buf_deinit(&mend);
        status = CLI_FAILED;
    }
    PQclear(missing);
    return status;
}

static int change(struct restriction *r)
{
    struct buf sql = BUF_INIT;
    PGresult *functions;

    int status =
        run(r, "SELECT pg_catalog.oidvectortypes(f.proargtypes)" FUNCTIONS " ORDER BY f.oid",
            &functions);
    if (status != CLI_OK)
        return status;
    for (int i = 0; i < PQntuples(functions); i++) {
        const char *types = PQgetvalue(functions, i, 0);

        buf_printf(&sql,
                   "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(%s) FROM PUBLIC;"
                   " GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(%s) TO ",
                   types, types);
        for (size_t j = 0; j < r->roles.n; j++) {
            buf_append_str(&sql, j == 0 ? "" : ", ");
            sql_put_identifier(&sql, r->roles.names[j]);
        }
        buf_append_str(&sql, "; ");
    }
    PQclear(functions);
    return run_buf(r, &sql, NULL);
}

/** Who has the right on any variant, which is enough to publish: its name, PUBLIC as NULL; and whether on all. */
static int who_has_it(struct restriction *r, PGresult **ret)
{
    return run(
        r,
        "SELECT CASE WHEN given.grantee <> 0 THEN pg_catalog.pg_get_userbyid(given.grantee) END,"
        " pg_catalog.count(DISTINCT given.function) = (SELECT pg_catalog.count(*)" FUNCTIONS ")"
        " FROM " GIVEN " AS given GROUP BY given.grantee"
        " ORDER BY 1 NULLS FIRST",
        ret);
}

static bool has_all(const PGresult *rows, int i)
{
    return *PQgetvalue(rows, i, 1) == 't';
}

/** A role on all variants; PUBLIC, NULL, on one. */
static bool has(const PGresult *rows, const char *name)
{
    for (int i = 0; i < PQntuples(rows); i++)
        if (name ? !PQgetisnull(rows, i, 0) && strcmp(PQgetvalue(rows, i, 0), name) == 0 && has_all(rows, i)
                 : PQgetisnull(rows, i, 0))
            return true;
    return false;
}

/** What the owner has given is gone; somebody else with the grant option may have given it as well. */
static int check_public(struct restriction *r)
{
    PGresult *result;
    int status = run(r,
                     "SELECT 1" FUNCTIONS
                     " AND pg_catalog.has_function_privilege('public', f.oid, 'EXECUTE')",
                     &result);

    if (status != CLI_OK)
        return status;
    if (PQntuples(result) > 0) {
        cli_report(NAME,
                   "PUBLIC would still have the right: another role than the owner of "
                   "pg_logical_emit_message has given it.",
                   "SELECT proacl FROM pg_catalog.pg_proc WHERE proname = "
                   "'pg_logical_emit_message'; shows "
                   "who, behind the slash; as that role REVOKE it");
        status = CLI_FAILED;
    }
    PQclear(result);
    return status;
}

static void say_role(const char *before, const char *name, const char *behind)
{
    struct buf line = BUF_INIT;

    text_put_visible(&line, bytes_of_text(name));
    (void)printf("publishing: %s\"%s\"%s\n", before, buf_str(&line), behind);
    buf_deinit(&line);
}

static void say(const struct restriction *r, const PGresult *after)
{
    (void)printf("publishing: %s\n",
                 has(r->before, NULL) ? "revoked from PUBLIC" : "PUBLIC has no right to it");
    for (size_t i = 0; i < r->roles.n; i++) {
        const char *name = r->roles.names[i];

        if (has(r->before, name))
            say_role("", name, " has the right already");
        else
            say_role("granted to ", name, "");
    }
    for (int i = 0; i < PQntuples(after); i++) {
        const char *name = PQgetvalue(after, i, 0);
        bool asked = false;

        for (size_t j = 0; j < r->roles.n; j++)
            asked = asked || strcmp(r->roles.names[j], name) == 0;
        if (!asked)
            say_role("", name, has_all(after, i) ? " has the right too" : " has the right too, to some of the variants");
    }
}

/** Inside of the transaction. */
static int work(struct restriction *r, PGresult **ret_after)
{
    int status = find_reader(r);

    if (status == CLI_OK && PQntuples(r->reader) > 0)
        status = restrict_add(&r->roles, PQgetvalue(r->reader, 0, 0));
    for (size_t i = 0; status == CLI_OK && i < r->named->n; i++)
        status = restrict_add(&r->roles, r->named->names[i]);
    if (status == CLI_OK && r->roles.n == 0)
        status = refuse_nobody(r);
    if (status == CLI_OK)
        status = check_roles(r);
    if (status == CLI_OK)
        status = who_has_it(r, &r->before);
    if (status == CLI_OK)
        status = change(r);
    if (status == CLI_OK)
        status = check_public(r);
    if (status == CLI_OK)
        status = who_has_it(r, ret_after);
    return status;
}

int restrict_publishing(struct cli *cli, struct pg_conn *conn, const struct restrict_roles *roles)
{
    struct restriction r = {.cli = cli, .conn = conn, .named = roles};
    PGresult *after = NULL;

    /* A superuser's statements: nothing of anybody's schema may be found by a name in them. */
    int status = run(&r,
                     "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
                     " SET LOCAL search_path TO pg_catalog, pg_temp",
                     NULL);
    if (status == CLI_OK)
        status = work(&r, &after);
    if (status == CLI_OK)
        status = run(&r, "COMMIT", NULL);
    else
        PQclear(PQexec(conn, "ROLLBACK"));
    if (status == CLI_OK)
        say(&r, after);
    PQclear(after);
    PQclear(r.before);
    PQclear(r.reader);
    return status;
}
