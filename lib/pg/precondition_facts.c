/* SPDX-License-Identifier: PostgreSQL */
#include <errno.h>
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "codec/position.h"
#include "pg/connect.h"
#include "pg/precondition.h"

/* One table makes the query and reads its row. */

enum fact_kind { FACT_BOOL, FACT_INT, FACT_I64, FACT_IDENTIFIER, FACT_LSN, FACT_TEXT };

struct fact {
    enum fact_kind kind;
    size_t offset, size; /* of the member of struct server_facts */
    const char *sql;
    int since;          /* the oldest server that knows it; 0: all */
    const char *before; /* asked of older ones instead */
};

#define MEMBER(m)     offsetof(struct server_facts, m), sizeof(((struct server_facts *)0)->m)
#define SETTING(name) "pg_catalog.current_setting('" name "')"
/* Evaluated only outside recovery, where pg_current_wal_lsn() is an error. */
#define OUTSIDE_RECOVERY(sql) "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN " sql " END"
#define EMIT_SIGNATURE(rest)                                                 \
    "pg_catalog.has_function_privilege('pg_catalog.pg_logical_emit_message(" \
    "boolean, pg_catalog.text, pg_catalog.bytea" rest ")', 'EXECUTE')"

#define SLOT_SIGNATURE(rest)                                                            \
    "pg_catalog.has_function_privilege('pg_catalog.pg_create_logical_replication_slot(" \
    "pg_catalog.name, pg_catalog.name, boolean, boolean" rest ")', 'EXECUTE')"

static const struct fact fact_table[] = {
    {FACT_BOOL, MEMBER(in_recovery), "pg_catalog.pg_is_in_recovery()", 0, NULL},
    {FACT_TEXT, MEMBER(wal_level), SETTING("wal_level"), 0, NULL},
    {FACT_TEXT, MEMBER(role), "current_user", 0, NULL},
    {FACT_TEXT, MEMBER(database), "pg_catalog.current_database()", 0, NULL},
    {FACT_BOOL, MEMBER(may_replicate),
     "(SELECT r.rolsuper OR r.rolreplication FROM pg_catalog.pg_roles AS r"
     " WHERE r.rolname = current_user)",
     0, NULL},
    {FACT_BOOL, MEMBER(may_emit), EMIT_SIGNATURE(", boolean"), 170000, EMIT_SIGNATURE("")},
    {FACT_BOOL, MEMBER(may_create),
     "pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')", 0, NULL},
    {FACT_BOOL, MEMBER(may_create_slot), SLOT_SIGNATURE(", boolean"), 170000, SLOT_SIGNATURE("")},
    {FACT_BOOL, MEMBER(may_restrict),
     "(SELECT pg_catalog.bool_and(pg_catalog.pg_has_role(f.proowner, 'USAGE')) FROM pg_catalog.pg_proc AS f"
     " WHERE f.proname = 'pg_logical_emit_message' AND f.pronamespace = 'pg_catalog'::pg_catalog.regnamespace)",
     0, NULL},
    {FACT_INT, MEMBER(slots_max), SETTING("max_replication_slots"), 0, NULL},
    {FACT_INT, MEMBER(slots_used),
     "(SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots)", 0, NULL},
    /* The server would cut it, to a name that nobody finds again. */
    {FACT_BOOL, MEMBER(name_too_long),
     "pg_catalog.octet_length(asked.publication) >"
     " " SETTING("max_identifier_length") "::pg_catalog.int4",
     0, NULL},
    {FACT_INT, MEMBER(name_max), SETTING("max_identifier_length"), 0, NULL},
    {FACT_BOOL, MEMBER(publication_exists), "p.pubname IS NOT NULL", 0, NULL},
    {FACT_TEXT, MEMBER(publication), "p.pubname", 0, NULL},
    {FACT_BOOL, MEMBER(slot_exists), "s.slot_name IS NOT NULL", 0, NULL},
    {FACT_BOOL, MEMBER(slot_logical), "s.slot_type = 'logical'", 0, NULL},
    {FACT_TEXT, MEMBER(slot_plugin), "s.plugin", 0, NULL},
    {FACT_TEXT, MEMBER(slot_database), "s.database", 0, NULL},
    {FACT_BOOL, MEMBER(slot_two_phase), "s.two_phase", 0, NULL},
    {FACT_BOOL, MEMBER(slot_failover), "s.failover", 170000, "false"},
    {FACT_INT, MEMBER(slot_active_pid), "s.active_pid", 0, NULL},
    {FACT_TEXT, MEMBER(slot_wal_status), "s.wal_status", 0, NULL},
    {FACT_TEXT, MEMBER(slot_invalidation_reason), "s.invalidation_reason", 170000, "''"},
    {FACT_LSN, MEMBER(slot_restart_lsn), "s.restart_lsn", 0, NULL},
    {FACT_LSN, MEMBER(slot_confirmed_flush_lsn), "s.confirmed_flush_lsn", 0, NULL},
    {FACT_I64, MEMBER(slot_retained_bytes),
     "coalesce(" OUTSIDE_RECOVERY("pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(),"
                                  " s.restart_lsn)") ", -1)",
     0, NULL},
    {FACT_I64, MEMBER(slot_safe_wal_size), "coalesce(s.safe_wal_size, -1)", 0, NULL},
    {FACT_LSN, MEMBER(wal_lsn), OUTSIDE_RECOVERY("pg_catalog.pg_current_wal_lsn()"), 0, NULL},
    {FACT_I64, MEMBER(wal_sender_timeout_ms),
     "(SELECT t.setting FROM pg_catalog.pg_settings AS t WHERE t.name = 'wal_sender_timeout')", 0,
     NULL},
    /* A bigint there, printed with a sign; unsigned everywhere else. */
    {FACT_IDENTIFIER, MEMBER(system_identifier),
     "(SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c)", 0, NULL},
};

/** The column behind the facts: which process answers. */
#define BACKEND_PID_COLUMN ((int)ARRAY_SIZE(fact_table))

/* The name in the database's own encoding, whatever the connection's is: one of SQL_ASCII hands the bytes of a literal
 * on as they are, and UTF-8 is another name where names are LATIN1. What is no UTF-8 is taken at its bytes. */
static void put_name(struct buf *sql, const char *name)
{
    struct bytes text = bytes_of_text(name);
    bool ascii = true;

    for (size_t i = 0; i < text.size; i++)
        ascii = ascii && text.data[i] < 0x80;
    if (ascii || !text_is_utf8(text)) {
        sql_put_literal(sql, name);
        return;
    }
    buf_append_str(sql, "pg_catalog.convert_from(pg_catalog.decode('");
    for (size_t i = 0; i < text.size; i++)
        buf_printf(sql, "%02x", text.data[i]);
    buf_append_str(sql, "', 'hex'), 'UTF8')");
}

int precondition_query(struct pg_conn *conn, const char *slot, const char *publication,
                       struct buf *sql)
{
    int version = PQserverVersion(conn);

    buf_append_str(sql, "SELECT ");
    for (size_t i = 0; i < ARRAY_SIZE(fact_table); i++) {
        const struct fact *f = &fact_table[i];

        buf_append_str(sql, version >= f->since ? f->sql : f->before);
        buf_append_str(sql, ", ");
    }
    buf_append_str(sql, "pg_catalog.pg_backend_pid() FROM (SELECT ");
    put_name(sql, publication);
    buf_append_str(sql, "::pg_catalog.text AS publication) AS asked"
                        " LEFT JOIN pg_catalog.pg_replication_slots AS s ON s.slot_name = ");
    sql_put_literal(sql, slot);
    buf_append_str(sql,
                   " LEFT JOIN pg_catalog.pg_publication AS p ON p.pubname = asked.publication");
    return sql->failed ? -ENOMEM : 0;
}

static int read_number(const char *text, int64_t min, int64_t max, int64_t *ret)
{
    char *end;

    errno = 0;
    int64_t v = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || v < min || v > max)
        return -EBADMSG;
    *ret = v;
    return 0;
}

/** Reads one column; SQL's NULL leaves the member at zero. */
static int read_fact(const struct fact *f, const char *text, void *member)
{
    int64_t number = 0;

    switch (f->kind) {
    case FACT_BOOL:
        if (strcmp(text, "t") != 0 && strcmp(text, "f") != 0)
            return -EBADMSG;
        *(bool *)member = *text == 't';
        return 0;
    case FACT_INT:
        if (read_number(text, INT32_MIN, INT32_MAX, &number) < 0)
            return -EBADMSG;
        *(int *)member = (int)number;
        return 0;
    case FACT_I64:
        return read_number(text, INT64_MIN, INT64_MAX, member);
    case FACT_IDENTIFIER:
        if (read_number(text, INT64_MIN, INT64_MAX, &number) < 0)
            return -EBADMSG;
        *(uint64_t *)member = (uint64_t)number;
        return 0;
    case FACT_LSN:
        return lsn_parse(text, member) < 0 ? -EBADMSG : 0;
    case FACT_TEXT:
        if (strlen(text) >= f->size)
            return -EBADMSG;
        memcpy(member, text, strlen(text) + 1);
        return 0;
    }
    return -EBADMSG;
}

int precondition_read(struct pg_conn *conn, const struct pg_result *result,
                      struct server_facts *ret)
{
    struct server_facts facts = {.version_num = PQserverVersion(conn)};
    int64_t pid;

    if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) != 1 ||
        PQnfields(result) != BACKEND_PID_COLUMN + 1)
        return -EBADMSG;
    for (int i = 0; i < BACKEND_PID_COLUMN; i++) {
        const struct fact *f = &fact_table[i];

        if (PQgetisnull(result, 0, i))
            continue;
        int rc = read_fact(f, PQgetvalue(result, 0, i), (char *)&facts + f->offset);
        if (rc < 0)
            return rc;
    }
    if (read_number(PQgetvalue(result, 0, BACKEND_PID_COLUMN), 0, INT32_MAX, &pid) < 0)
        return -EBADMSG;
    facts.pooler = pid != PQbackendPID(conn);
    *ret = facts;
    return 0;
}
