/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/exactly_once.h"

#include <errno.h>
#include <libpq-fe.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "client/pg_state.h"
#include "client/position.h"
#include "codec/control.h"
#include "pg/connect.h"

/* pg_type.dat; none of them has changed since it is there. */
#define BYTEA_OID  17
#define INT8_OID   20
#define TEXT_OID   25
#define PG_LSN_OID 3220

struct walbus_position_store {
    char *subscription;
    bool loaded;
    struct position position; /* the one that is there, as far as this holder knows; zero: none */
    char identity[IDENTITY_TEXT_SIZE]; /* "": none */
    struct walbus_subscription_options
        given;                 /* those that load() has filled in, as they were before */
    enum walbus_result result; /* of the last call */
    struct buf why;
    char sqlstate[PG_SQLSTATE_SIZE];
};

enum walbus_result walbus_position_store_new(const char *subscription,
                                             struct walbus_position_store **ret)
{
    if (!ret || !control_name_is_good(bytes_of_text(subscription)))
        return WALBUS_BAD_ARGUMENT;
    struct walbus_position_store *s = calloc(1, sizeof *s);
    if (!s)
        return WALBUS_NO_MEMORY;
    s->subscription = strdup(subscription);
    if (!s->subscription) {
        free(s);
        return WALBUS_NO_MEMORY;
    }
    *ret = s;
    return WALBUS_OK;
}

struct walbus_position_store *walbus_position_store_free(struct walbus_position_store *s)
{
    if (s) {
        buf_deinit(&s->why);
        free(s->subscription);
        free(s);
    }
    return NULL;
}

const char *walbus_position_store_error(const struct walbus_position_store *s)
{
    if (!s || s->result == WALBUS_OK)
        return "";
    return s->why.size > 0 ? (const char *)s->why.data : walbus_result_text(s->result);
}

const char *walbus_position_store_sqlstate(const struct walbus_position_store *s)
{
    return s ? s->sqlstate : "";
}

struct walbus_position walbus_position_store_position(const struct walbus_position_store *s)
{
    return position_shown(s ? s->position : (struct position){0});
}

const char *walbus_position_store_identity(const struct walbus_position_store *s)
{
    return s ? s->identity : "";
}

/** Begins a call: nothing has failed yet. */
static void begin(struct walbus_position_store *s)
{
    s->result = WALBUS_OK;
    s->sqlstate[0] = '\0';
    buf_clear(&s->why);
}

/** Ends a call; the text in `why`, if any, becomes a C string. */
static enum walbus_result finish(struct walbus_position_store *s, enum walbus_result result)
{
    if (s->why.size > 0)
        (void)buf_str(&s->why);
    s->result = result;
    return result;
}

static enum walbus_result fail(struct walbus_position_store *s, enum walbus_result result,
                               const char *sentence)
{
    buf_append_str(&s->why, sentence);
    return result;
}

/* ---- statements ---- */

#define PARAMS_MAX 9

/** A statement's parameters, in binary; their numbers stand in here, texts are borrowed. */
struct params {
    int n;
    Oid types[PARAMS_MAX];
    const char *values[PARAMS_MAX];
    int lengths[PARAMS_MAX], formats[PARAMS_MAX];
    uint8_t numbers[PARAMS_MAX][8];
};

static void add(struct params *p, Oid type, const void *value, size_t size)
{
    p->types[p->n] = type;
    p->values[p->n] = value;
    p->lengths[p->n] = (int)size; /* WALBUS_MAX_NAME bounds it */
    p->formats[p->n] = 1;
    p->n++;
}

static void add_number(struct params *p, Oid type, uint64_t n)
{
    bytes_put_u64(p->numbers[p->n], n);
    add(p, type, p->numbers[p->n], 8);
}

/** As bytes, so that the connection's client_encoding does not matter. */
static void add_name(struct params *p, const char *name)
{
    add(p, BYTEA_OID, name, strlen(name));
}

static void add_place(struct params *p, const char *identity, struct position position)
{
    add(p, TEXT_OID, identity,
        strlen(identity)); /* ASCII, as walbus_subscription_identity() gives it */
    add_number(p, INT8_OID, position.timeline);
    add_number(p, PG_LSN_OID, position.lsn);
    add_number(p, INT8_OID, position.index);
}

/** Executes and waits. On WALBUS_OK *ret is the result, of this status, to be cleared. */
static enum walbus_result execute(struct walbus_position_store *s, struct pg_conn *conn,
                                  const char *sql, const struct params *p, ExecStatusType want,
                                  PGresult **ret)
{
    PGresult *r = PQexecParams(conn, sql, p->n, p->types, p->values, p->lengths, p->formats, 1);

    if (r && PQresultStatus(r) == want) {
        *ret = r;
        return WALBUS_OK;
    }
    enum walbus_result result = pg_state_error(conn, r, &s->why, s->sqlstate);
    if (strcmp(s->sqlstate, "42P01") == 0)
        buf_append_str(&s->why, "; walbus_position_store_create_table() makes it");
    PQclear(r);
    return result;
}

static enum walbus_result check_call(struct walbus_position_store *s, const struct pg_conn *conn,
                                     bool in_transaction)
{
    if (!conn)
        return fail(s, WALBUS_BAD_ARGUMENT, "The connection is NULL.");
    return pg_state_check(conn, in_transaction, true);
}

/* ---- the table ---- */

static enum walbus_result look_for_table(struct walbus_position_store *s, struct pg_conn *conn,
                                         bool *ret_there)
{
    static const struct params none;
    PGresult *r = NULL;
    enum walbus_result result = execute(s, conn, "SELECT pg_catalog.to_regclass('walbus_position')",
                                        &none, PGRES_TUPLES_OK, &r);

    if (result != WALBUS_OK)
        return result;
    *ret_there = !PQgetisnull(r, 0, 0);
    PQclear(r);
    return WALBUS_OK;
}

/** Whether another session has made it at the same time: the unique index of a catalog says so, or the table itself. */
static bool is_made_meanwhile(const struct walbus_position_store *s)
{
    return strcmp(s->sqlstate, "23505") == 0 || strcmp(s->sqlstate, "42P07") == 0;
}

/** Looks first, since IF NOT EXISTS on what exists gives a notice, which libpq prints. */
static enum walbus_result create_table(struct walbus_position_store *s, struct pg_conn *conn)
{
    static const struct params none;
    bool there = false, alone = PQtransactionStatus(conn) == PQTRANS_IDLE;
    PGresult *r = NULL;
    enum walbus_result result = look_for_table(s, conn, &there);

    if (result != WALBUS_OK || there)
        return result;
    result = execute(s, conn, WALBUS_POSITION_TABLE, &none, PGRES_COMMAND_OK, &r);
    PQclear(r);
    if (result != WALBUS_SERVER || !alone || !is_made_meanwhile(s))
        return result;
    begin(s);
    result = look_for_table(s, conn, &there);
    return result != WALBUS_OK || there ? result
                                        : fail(s, WALBUS_SERVER, "The table was made and dropped.");
}

enum walbus_result walbus_position_store_create_table(struct walbus_position_store *s,
                                                      struct pg_conn *conn)
{
    if (!s)
        return WALBUS_BAD_ARGUMENT;
    begin(s);
    enum walbus_result result = check_call(s, conn, false);
    return finish(s, result == WALBUS_OK ? create_table(s, conn) : result);
}

/* ---- loading ---- */

static bool get_number(const PGresult *r, int column, uint64_t max, uint64_t *ret)
{
    if (PQgetisnull(r, 0, column) || PQgetlength(r, 0, column) != 8)
        return false;
    *ret = bytes_get_u64((const uint8_t *)PQgetvalue(r, 0, column));
    return *ret <= max;
}

/** The one row, or none. False when it is no position. */
static bool read_row(struct walbus_position_store *s, const PGresult *r)
{
    uint64_t timeline, lsn, index;

    s->identity[0] = '\0';
    s->position = (struct position){0};
    if (PQntuples(r) == 0)
        return true;
    int size = PQgetlength(r, 0, 0);
    if (PQftype(r, 0) != TEXT_OID || PQftype(r, 1) != INT8_OID || PQftype(r, 2) != PG_LSN_OID ||
        PQftype(r, 3) != INT8_OID || size == 0 || size >= (int)sizeof s->identity ||
        !get_number(r, 1, UINT32_MAX, &timeline) || !get_number(r, 2, UINT64_MAX, &lsn) ||
        !get_number(r, 3, UINT32_MAX, &index))
        return false;
    memcpy(s->identity, PQgetvalue(r, 0, 0), (size_t)size);
    s->identity[size] = '\0';
    s->position = (struct position){(uint32_t)timeline, lsn, (uint32_t)index};
    return !position_is_zero(s->position);
}

static enum walbus_result load(struct walbus_position_store *s, struct pg_conn *conn)
{
    struct params p = {0};
    PGresult *r = NULL;

    add_name(&p, s->subscription);
    enum walbus_result result = execute(s, conn,
                                        "SELECT identity, timeline, lsn, idx FROM walbus_position "
                                        "WHERE subscription = pg_catalog.convert_from($1, 'UTF8')",
                                        &p, PGRES_TUPLES_OK, &r);
    if (result != WALBUS_OK)
        return result;
    if (!read_row(s, r)) {
        s->identity[0] = '\0';
        s->position = (struct position){0};
        result = fail(s, WALBUS_SERVER,
                      "What stands in the table walbus_position is not what this library writes.");
    }
    PQclear(r);
    s->loaded = result == WALBUS_OK;
    return result;
}

enum walbus_result walbus_position_store_load(struct walbus_position_store *s, struct pg_conn *conn,
                                              struct walbus_subscription_options *options)
{
    if (!s)
        return WALBUS_BAD_ARGUMENT;
    begin(s);
    s->loaded = false;
    enum walbus_result result = check_call(s, conn, false);
    if (result == WALBUS_OK)
        result = load(s, conn);
    if (result == WALBUS_OK && options) {
        if (options->identity != s->identity) {
            s->given = *options;
        } else { /* filled in by the load before, and the row may have gone since */
            options->start = s->given.start;
            options->position = s->given.position;
            options->identity = s->given.identity;
            options->flags =
                (options->flags & ~WALBUS_OVERRIDE) | (s->given.flags & WALBUS_OVERRIDE);
        }
        options->name = s->subscription;
        options->flags |= WALBUS_KEEPS_POSITION;
        if (!position_is_zero(s->position)) {
            options->start = WALBUS_START_POSITION;
            options->position = position_shown(s->position);
            options->identity = s->identity;
            options->flags |= WALBUS_OVERRIDE;
        }
    }
    return finish(s, result);
}

/* ---- saving ---- */

/*
 * The compare and the set are one statement, so that the server decides between two holders: the later one waits for the
 * row until the earlier one has committed, and then finds another position there (or, inserting, a row).
 */
static const char insert_sql[] =
    "INSERT INTO walbus_position (subscription, identity, timeline, lsn, idx, updated) "
    "VALUES (pg_catalog.convert_from($1, 'UTF8'), $2, $3, $4, $5, pg_catalog.now()) "
    "ON CONFLICT DO NOTHING";
static const char update_sql[] =
    "UPDATE walbus_position SET identity = $2, timeline = $3, lsn = $4, idx = $5, "
    "updated = pg_catalog.now() WHERE subscription = pg_catalog.convert_from($1, 'UTF8') "
    "AND identity = $6 AND timeline = $7 AND lsn = $8 AND idx = $9";

static enum walbus_result conflict(struct walbus_position_store *s)
{
    char text[POSITION_TEXT_SIZE];

    buf_append_str(&s->why, "Another holder of \"");
    text_put_visible(&s->why, bytes_of_text(s->subscription));
    if (position_is_zero(s->position))
        buf_append_str(&s->why, "\" is ahead: a position is stored where there was none.");
    else
        buf_printf(&s->why, "\" is ahead: the stored position is not %s any more.",
                   position_format(s->position, text));
    return WALBUS_CONFLICT;
}

static enum walbus_result save(struct walbus_position_store *s, struct pg_conn *conn,
                               const char *identity, struct position position)
{
    struct params p = {0};
    bool first = position_is_zero(s->position);
    PGresult *r = NULL;

    add_name(&p, s->subscription);
    add_place(&p, identity, position);
    if (!first)
        add_place(&p, s->identity, s->position);
    enum walbus_result result =
        execute(s, conn, first ? insert_sql : update_sql, &p, PGRES_COMMAND_OK, &r);
    if (result != WALBUS_OK)
        return result;
    bool done = strcmp(PQcmdTuples(r), "1") == 0;
    PQclear(r);
    if (!done)
        return conflict(s);
    s->position = position;
    (void)strcpy(s->identity, identity); /* check_place() has bounded it */
    return WALBUS_OK;
}

static enum walbus_result check_place(struct walbus_position_store *s, const char *identity,
                                      struct position position)
{
    size_t size = identity ? strlen(identity) : 0;
    char given[POSITION_TEXT_SIZE], last[POSITION_TEXT_SIZE];

    if (!s->loaded)
        return fail(s, WALBUS_BAD_ARGUMENT, "The stored position has not been loaded.");
    if (size == 0 || size >= sizeof s->identity || !text_is_utf8(bytes_of_text(identity)))
        return fail(s, WALBUS_BAD_ARGUMENT, "There is no identity, or it cannot be one.");
    if (position_is_zero(position))
        return fail(s, WALBUS_BAD_ARGUMENT, "There is no position.");
    if (strcmp(identity, s->identity) != 0 || position_compare(position, s->position) > 0)
        return WALBUS_OK;
    buf_printf(&s->why, "The position %s does not stand behind the last one, %s.",
               position_format(position, given), position_format(s->position, last));
    return WALBUS_BAD_ARGUMENT;
}

enum walbus_result walbus_position_store_save(struct walbus_position_store *s, struct pg_conn *conn,
                                              const char *identity, struct walbus_position position)
{
    if (!s)
        return WALBUS_BAD_ARGUMENT;
    begin(s);
    enum walbus_result result = check_place(s, identity, position_given(position));
    if (result == WALBUS_OK)
        result = check_call(s, conn, true);
    if (result == WALBUS_OK)
        result = save(s, conn, identity, position_given(position));
    return finish(s, result);
}
