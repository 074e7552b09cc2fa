/* SPDX-License-Identifier: PostgreSQL */
#include "pg/connect.h"

#include <errno.h>
#include <libpq-fe.h>
#include <string.h>

#include "base/bytes.h"

void connect_params(const struct connect_options *options, struct connect_params *ret)
{
    size_t n = 0;

    *ret = (struct connect_params){0};
#define PUT(k, v)               \
    do {                        \
        ret->keywords[n] = (k); \
        ret->values[n++] = (v); \
    } while (0)
    /* Before dbname: may be replaced by the dsn. */
    if (options->application_name)
        PUT("fallback_application_name", options->application_name);
    PUT("connect_timeout", "10");
    /* A peer that is gone without a word is noticed within a minute, over TCP. */
    PUT("keepalives_idle", "30");
    PUT("keepalives_interval", "10");
    PUT("keepalives_count", "3");
    PUT("tcp_user_timeout", "60000");
    if (options->dsn)
        PUT("dbname", options->dsn);
    /* Behind it: replaces what the dsn says. */
    PUT("client_encoding", options->client_encoding ? options->client_encoding : "UTF8");
    if (options->replication)
        PUT("replication", "database");
    if (options->place) { /* libpq passes over empty values */
        PUT("host", options->place->host);
        PUT("hostaddr", options->place->hostaddr);
        PUT("port", options->place->port);
    }
#undef PUT
}

/* Whether the dsn, a service or the environment names addresses beside the hosts. */
static bool names_addresses(PGconn *conn)
{
    bool found = false;
    PQconninfoOption *options = PQconninfo(conn);

    for (PQconninfoOption *o = options; o && o->keyword && !found; o++)
        found = strcmp(o->keyword, "hostaddr") == 0 && o->val && *o->val;
    PQconninfoFree(options);
    return found;
}

void connect_place_of(struct pg_conn *conn, struct connect_place *ret)
{
    const char *host = PQhost(conn), *hostaddr = PQhostaddr(conn), *port = PQport(conn);

    *ret = (struct connect_place){0};
    if (!host || !hostaddr || !port || strlen(host) >= sizeof ret->host ||
        strlen(hostaddr) >= sizeof ret->hostaddr || strlen(port) >= sizeof ret->port)
        return;
    /* A socket folder among hosts with addresses: an empty one would not replace their list, and
     * libpq refuses lists of different lengths. */
    if (!*hostaddr && names_addresses(conn))
        return;
    memcpy(ret->host, host, strlen(host));
    memcpy(ret->hostaddr, hostaddr, strlen(hostaddr));
    memcpy(ret->port, port, strlen(port));
}

static void drop_notice(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

int connect_open(const struct connect_options *options, struct pg_conn **ret, struct buf *why)
{
    struct connect_params params;

    connect_params(options, &params);
    PGconn *conn = PQconnectdbParams(params.keywords, params.values, 1);
    if (!conn)
        return -ENOMEM;
    if (PQstatus(conn) != CONNECTION_OK) {
        pg_put_message(why, PQerrorMessage(conn));
        PQfinish(conn);
        return -ENOTCONN;
    }
    (void)PQsetNoticeReceiver(conn, drop_notice, NULL);
    *ret = conn;
    return 0;
}

/* First the texts, which say more; then classes of SQLSTATE, for a server that speaks another language. */
static const struct {
    const char *text, *further; /* NULL: the class alone */
    const char *klass;
    const char *mend;
} refusals[] = {
    {"Peer authentication failed", "", "28",
     "connect as the system user of the role's name, name another role in the dsn (user=), or change its line in pg_hba.conf"},
    {"Ident authentication failed", "", "28",
     "connect as the system user of the role's name, name another role in the dsn (user=), or change its line in pg_hba.conf"},
    {"no pg_hba.conf entry", "", "28", "add a line for this role and database to pg_hba.conf, and reload the server"},
    {"pg_hba.conf rejects", "", "28", "change the line for this role and database in pg_hba.conf, and reload the server"},
    {"no password supplied", "", "28", "put the role's password into ~/.pgpass or the file that PGPASSFILE names"},
    {"password authentication failed", "", "28",
     "correct the role (user=) or its password, in ~/.pgpass or the file that PGPASSFILE names"},
    {"role \"", "\" does not exist", "28",
     "name another role in the dsn (user=), or make this one: CREATE ROLE NAME LOGIN; for the router and walbus setup: "
     "LOGIN REPLICATION"},
    {"role \"", "\" is not permitted to log in", "28", "name another role in the dsn (user=), or: ALTER ROLE NAME LOGIN;"},
    {"database \"", "\" does not exist", "3D", "name another database in the dsn (dbname=), or make this one"},
    {NULL, NULL, "28", "correct the role in the dsn (user=), its password, or its line in pg_hba.conf"},
    {NULL, NULL, "3D", "name another database in the dsn (dbname=), or make this one"},
};

const char *connect_refusal_mend(const char *sqlstate, const char *message)
{
    for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
        bool same = strncmp(sqlstate, refusals[i].klass, 2) == 0;
        const char *text = refusals[i].text ? strstr(message, refusals[i].text) : NULL;

        if (refusals[i].text ? (same || !*sqlstate) && text && strstr(text, refusals[i].further) : same)
            return refusals[i].mend;
    }
    return NULL;
}

/* libpq repeats, in quotes, pieces of what it could not read, and one may be a piece of a password. What stands between
 * the first and the last quote of a message goes: a password may have quotes as well. */
static void hide_quoted(char *message)
{
    char *first = strchr(message, '"'), *last = strrchr(message, '"');

    if (first && first != last) {
        size_t dots = MIN((size_t)(last - first) - 1, (size_t)3);

        memset(first + 1, '.', dots);
        memmove(first + 1 + dots, last, strlen(last) + 1);
    }
}

/* It could not be read, so nobody knows; in a URI one stands before the '@'. */
static bool may_hold_password(const char *dsn)
{
    return strstr(dsn, "password") || strchr(dsn, '@');
}

int connect_dsn_check(const char *dsn, struct buf *why)
{
    char *error = NULL;

    /* what libpq itself takes for a database's name when it expands one */
    if (!dsn || (!strchr(dsn, '=') && strncmp(dsn, "postgres://", 11) != 0 &&
                 strncmp(dsn, "postgresql://", 13) != 0))
        return 0;
    PQconninfoOption *options = PQconninfoParse(dsn, &error);
    if (options) {
        PQconninfoFree(options);
        return 0;
    }
    if (!error)
        return -ENOMEM;
    if (may_hold_password(dsn))
        hide_quoted(error);
    pg_put_message(why, error);
    PQfreemem(error);
    return -EINVAL;
}

bool connect_dsn_has_password(const char *dsn)
{
    bool found = false;
    PQconninfoOption *options = PQconninfoParse(dsn, NULL);

    for (PQconninfoOption *o = options; o && o->keyword && !found; o++)
        found = strcmp(o->keyword, "password") == 0 && o->val && *o->val;
    PQconninfoFree(options);
    return found;
}

void pg_put_message(struct buf *out, const char *message)
{
    const char *separator = "";

    if (!message)
        message = "";
    message += strspn(message, " \t\r\n");
    if (!*message)
        buf_append_str(out, "unknown error");
    while (*message) {
        size_t line = strcspn(message, "\r\n");

        buf_append_str(out, separator);
        buf_append(out, message, line);
        message += line;
        message += strspn(message, " \t\r\n");
        separator = "; ";
    }
}

void pg_put_error(struct buf *out, const struct pg_conn *conn, const struct pg_result *result)
{
    static const int further[] = {PG_DIAG_MESSAGE_DETAIL, PG_DIAG_MESSAGE_HINT};
    const char *text = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;

    if (!text) {
        /* The connection's own trouble, or libpq's: no fields. */
        text = result ? PQresultErrorMessage(result) : "";
        pg_put_message(out, *text ? text : PQerrorMessage(conn));
        return;
    }
    pg_put_message(out, text);
    for (size_t i = 0; i < ARRAY_SIZE(further); i++) {
        text = PQresultErrorField(result, further[i]);
        if (text) {
            buf_append_str(out, i == 0 ? ": " : "; ");
            pg_put_message(out, text);
        }
    }
}

const char *pg_sqlstate(const struct pg_result *result)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

    return state ? state : "";
}

static size_t sqlstate_length(const char *p)
{
    size_t n = 0;

    while ((p[n] >= '0' && p[n] <= '9') || (p[n] >= 'A' && p[n] <= 'Z'))
        n++;
    return n;
}

bool pg_sqlstate_of_message(const char *message, char out[PG_SQLSTATE_SIZE])
{
    /* libpq joins severity and code by a colon and two blanks, code and text by a colon and one. */
    for (const char *p = strstr(message, ":  "); p; p = strstr(p, ":  ")) {
        p += 3;
        if (sqlstate_length(p) == PG_SQLSTATE_SIZE - 1 && p[5] == ':') {
            memcpy(out, p, PG_SQLSTATE_SIZE - 1);
            out[PG_SQLSTATE_SIZE - 1] = '\0';
            return true;
        }
    }
    out[0] = '\0';
    return false;
}

static void put_quoted(struct buf *out, char quote, const char *text, bool backslashes)
{
    buf_append_u8(out, (uint8_t)quote);
    for (; *text; text++) {
        if (*text == quote || (backslashes && *text == '\\'))
            buf_append_u8(out, (uint8_t)*text);
        buf_append_u8(out, (uint8_t)*text);
    }
    buf_append_u8(out, (uint8_t)quote);
}

void sql_put_identifier(struct buf *out, const char *name)
{
    put_quoted(out, '"', name, false);
}

void sql_put_literal(struct buf *out, const char *text)
{
    bool backslashes = strchr(text, '\\') != NULL;

    if (backslashes)
        buf_append_str(out, " E"); /* the blank keeps it from joining a word before it */
    put_quoted(out, '\'', text, backslashes);
}

void sql_put_patience(struct buf *out, int server_version, bool local)
{
    static const struct {
        const char *name;
        int since;
    } timeouts[] = {
        {"statement_timeout", 0},
        {"lock_timeout", 0}, /* decoding looks into tables too */
        {"idle_session_timeout", 140000},
        {"transaction_timeout", 170000}, /* decoding a transaction is one */
    };
    const char *separator = "SELECT ";

    for (size_t i = 0; i < ARRAY_SIZE(timeouts); i++) {
        if (server_version < timeouts[i].since)
            continue;
        buf_append_str(out, separator);
        buf_printf(out, "pg_catalog.set_config('%s', '0', %s)", timeouts[i].name,
                   local ? "true" : "false");
        separator = ", ";
    }
    buf_append_str(out, "; ");
}

void shell_put_word(struct buf *out, const char *word)
{
    static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "_-./:@%+=,";

    if (*word && word[strspn(word, harmless)] == '\0') {
        buf_append_str(out, word);
        return;
    }
    buf_append_u8(out, '\'');
    for (; *word; word++)
        if (*word == '\'')
            buf_append_str(out, "'\\''");
        else
            buf_append_u8(out, (uint8_t)*word);
    buf_append_u8(out, '\'');
}
