/* SPDX-License-Identifier: PostgreSQL */
#include <errno.h>
#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

#include "pg/connect.h"
#include "pg/emit.h"
#include "pg/precondition.h"
#include "unit.h"

/* ---- text ---- */

static void assert_built(struct buf *b, const char *want)
{
    unit_assert_text(buf_bytes(b), want);
    buf_deinit(b);
}

START_TEST(quoting)
{
    struct buf b = BUF_INIT;

    sql_put_identifier(&b, "a\"b'c\\");
    assert_built(&b, "\"a\"\"b'c\\\"");
    sql_put_literal(&b, "it's \"x\"");
    assert_built(&b, "'it''s \"x\"'");
    sql_put_literal(&b, "a\\'b");
    assert_built(&b, " E'a\\\\''b'");
    shell_put_word(&b, "plain_1-x./:");
    assert_built(&b, "plain_1-x./:");
    shell_put_word(&b, "");
    assert_built(&b, "''");
    shell_put_word(&b, "it's $x");
    assert_built(&b, "'it'\\''s $x'");
}
END_TEST

START_TEST(messages_of_libpq)
{
    struct buf b = BUF_INIT;

    pg_put_message(&b, "FATAL:  no\nDETAIL:  because\n\tof it\n\n");
    assert_built(&b, "FATAL:  no; DETAIL:  because; of it");
    pg_put_message(&b, "\n");
    assert_built(&b, "unknown error");
    pg_put_message(&b, NULL);
    assert_built(&b, "unknown error");
}
END_TEST

START_TEST(sqlstate_of_message)
{
    static const struct {
        const char *message, *state;
    } cases[] = {
        {"connection failed: FATAL:  57P03: the database system is shutting down", "57P03"},
        {"connection failed: SCHWERWIEGEND:  28000: nein\nLOCATION:  x:  99999: y", "28000"},
        {"a:  b:  42501: c", "42501"},
        {"FATAL:  the database system is shutting down", ""},
        {"FATAL:  57P03", ""},
        {"FATAL:  57p03: lower case", ""},
        {"FATAL:  57P031: too long", ""},
        {"", ""},
    };
    char state[PG_SQLSTATE_SIZE];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        ck_assert_int_eq(pg_sqlstate_of_message(cases[i].message, state), *cases[i].state != '\0');
        ck_assert_str_eq(state, cases[i].state);
    }
}
END_TEST

/* What libpq says of a dsn that it cannot read, without a piece of what may be a password. */
START_TEST(dsn_that_cannot_be_read)
{
    static const struct {
        const char *dsn, *says;
    } rows[] = {
        {"host=x pasword", "missing \"=\" after \"pasword\" in connection info string"},
        {"host=x passwrd=y", "invalid connection option \"passwrd\""},
        {"password=my secret", "missing \"...\" in connection info string"},
        {"password=my se\"cret", "missing \"...\" in connection info string"},
        {"password='my secret", "unterminated quoted string in connection info string"},
        {"password=my secret=", "invalid connection option \"...\""},
        {"postgresql://me:%zz@host/db", "invalid percent-encoded token: \"...\""},
        {"postgresql://me:secret@[host/db", "end of string reached when looking for matching \"...\""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct buf why = BUF_INIT;

        ck_assert_int_eq(connect_dsn_check(rows[i].dsn, &why), -EINVAL);
        ck_assert_str_eq(buf_str(&why), rows[i].says);
        buf_deinit(&why);
    }
}
END_TEST

START_TEST(password_in_dsn)
{
    ck_assert(connect_dsn_has_password("host=x password=secret"));
    ck_assert(connect_dsn_has_password("postgresql://me:secret@host/db"));
    ck_assert(!connect_dsn_has_password("host=x user=password"));
    ck_assert(!connect_dsn_has_password("postgresql://me@host/db"));
    ck_assert(!connect_dsn_has_password("password=''"));
    ck_assert(!connect_dsn_has_password("mydb"));
    ck_assert(!connect_dsn_has_password("host=x nonsense"));
}
END_TEST

static size_t index_of(const struct connect_params *p, const char *keyword)
{
    size_t i = 0;

    while (p->keywords[i] && strcmp(p->keywords[i], keyword) != 0)
        i++;
    ck_assert_ptr_nonnull(p->keywords[i]);
    return i;
}

/* libpq keeps the last of repeated keywords, and expands dbname at its place. */
START_TEST(connect_params_in_order)
{
    struct connect_options o = {.dsn = "client_encoding=LATIN1 application_name=mine",
                                .application_name = "walbus",
                                .client_encoding = "SQL_ASCII",
                                .replication = true};
    struct connect_params p;

    connect_params(&o, &p);
    size_t dsn = index_of(&p, "dbname");
    ck_assert_str_eq(p.values[dsn], o.dsn);
    ck_assert_uint_lt(index_of(&p, "fallback_application_name"), dsn);
    ck_assert_uint_lt(index_of(&p, "connect_timeout"), dsn);
    ck_assert_uint_gt(index_of(&p, "client_encoding"), dsn);
    ck_assert_str_eq(p.values[index_of(&p, "client_encoding")], "SQL_ASCII");
    ck_assert_uint_gt(index_of(&p, "replication"), dsn);

    /* another connection's place replaces the dsn's; libpq passes over what is empty in it */
    const struct connect_place place = {.host = "a", .port = "5433"};
    o.place = &place;
    connect_params(&o, &p);
    dsn = index_of(&p, "dbname");
    ck_assert_uint_gt(index_of(&p, "host"), dsn);
    ck_assert_str_eq(p.values[index_of(&p, "host")], "a");
    ck_assert_str_eq(p.values[index_of(&p, "hostaddr")], "");
    ck_assert_str_eq(p.values[index_of(&p, "port")], "5433");

    connect_params(&(struct connect_options){0}, &p);
    ck_assert_str_eq(p.values[index_of(&p, "client_encoding")], "UTF8");
    for (size_t i = 0; p.keywords[i]; i++)
        ck_assert(strcmp(p.keywords[i], "dbname") != 0 &&
                  strcmp(p.keywords[i], "replication") != 0);
}
END_TEST

START_TEST(patience)
{
    struct buf sql = BUF_INIT;

    sql_put_patience(&sql, 160003, true);
    unit_assert_text(buf_bytes(&sql), "SELECT pg_catalog.set_config('statement_timeout', '0', true), "
                                      "pg_catalog.set_config('lock_timeout', '0', true), "
                                      "pg_catalog.set_config('idle_session_timeout', '0', true); ");
    buf_clear(&sql);
    sql_put_patience(&sql, 170000, false);
    ck_assert_ptr_nonnull(strstr(
        buf_str(&sql), ", pg_catalog.set_config('transaction_timeout', '0', false); "));
    buf_deinit(&sql);
}
END_TEST

START_TEST(connect_that_fails)
{
    struct connect_options o = {.dsn = "host=/nonexistent user=x"};
    struct pg_conn *conn = NULL;
    struct buf why = BUF_INIT;

    ck_assert_int_eq(connect_open(&o, &conn, &why), -ENOTCONN);
    ck_assert_ptr_null(conn);
    ck_assert_ptr_nonnull(strstr(buf_str(&why), "/nonexistent"));
    ck_assert_ptr_null(strchr(buf_str(&why), '\n'));
    buf_deinit(&why);
}
END_TEST

START_TEST(refusal_mends)
{
#define AT "connection to server on socket \"/s/.s.PGSQL.5432\" failed: FATAL:  "
    static const struct {
        const char *sqlstate, *message, *mend; /* some of its words; NULL: none */
    } cases[] = {
        {"", AT "Peer authentication failed for user \"walbus\"", "pg_hba.conf"},
        {"", AT "no pg_hba.conf entry for host \"[local]\", user \"x\", database \"y\", no encryption", "add a line"},
        {"", AT "password authentication failed for user \"x\"", "PGPASSFILE"},
        {"", "connection to server at \"h\", port 5432 failed: fe_sendauth: no password supplied", "~/.pgpass"},
        {"", AT "role \"x\" does not exist", "CREATE ROLE"},
        {"", AT "database \"x\" does not exist", "dbname="},
        {"28000", AT "28000: role \"x\" is not permitted to log in", "ALTER ROLE"},
        {"28P01", "FATAL:  28P01: nein", "its password"},
        {"3D000", "FATAL:  3D000: nein", "dbname="},
        {"", AT "the database system is starting up", NULL},
        {"57P03", AT "57P03: the database system is starting up", NULL},
        {"57P03", AT "57P03: role \"x\" does not exist", NULL},
        {"", "connection to server on socket \"/s\" failed: No such file or directory", NULL},
        {"", "", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *mend = connect_refusal_mend(cases[i].sqlstate, cases[i].message);

        ck_assert_msg((mend != NULL) == (cases[i].mend != NULL), "%s", cases[i].message);
        ck_assert_msg(!mend || strstr(mend, cases[i].mend), "%s: %s", cases[i].message, mend);
    }
}
END_TEST

/* ---- emit ---- */

START_TEST(array_bytes)
{
    struct emit_array a;

    emit_array_init(&a, 17);
    emit_array_open(&a);
    buf_append_str(&a.buf, "ab");
    ck_assert_int_eq(emit_array_close(&a), 0);
    emit_array_open(&a);
    ck_assert_int_eq(emit_array_close(&a), 0);
    /* dimensions, no NULLs, type; elements, lower bound; then length and bytes of each */
    unit_assert_hex(emit_array_finish(&a), "00000001 00000000 00000011 00000002 00000001"
                                           "00000002 6162 00000000");
    ck_assert_uint_eq(emit_array_server_size(&a), 20 + 6 + 4 + 2 * 3);
    buf_deinit(&a.buf);
}
END_TEST

static void add(struct emit_batch *batch, const char *prefix, const char *content)
{
    buf_append_str(emit_batch_begin(batch, unit_bytes(prefix)), content);
    ck_assert_int_eq(emit_batch_end(batch), 0);
}

static struct bytes value(const struct emit_statement *s, int i)
{
    ck_assert_int_lt(i, s->n);
    ck_assert_int_eq(s->formats[i], 1);
    return (struct bytes){(const uint8_t *)s->values[i], (size_t)s->lengths[i]};
}

START_TEST(statement_of_one)
{
    struct emit_statement s;

    ck_assert_int_eq(emit_one(&s, 150000, true, unit_bytes("a.b"), (struct bytes){NULL, 0}), 0);
    ck_assert_int_eq(s.n, 3);
    unit_assert_hex(value(&s, 0), "01");
    unit_assert_text(value(&s, 1), "a.b");
    unit_assert_text(value(&s, 2), "");
    ck_assert_ptr_nonnull(s.values[2]); /* else it would be SQL's NULL */
    ck_assert_uint_eq(s.types[0], 16);
    ck_assert_uint_eq(s.types[1], 25);
    ck_assert_uint_eq(s.types[2], 17);

    /* The flush is asked for where the server knows it, and only without a transaction. */
    const char *plain = s.sql;
    ck_assert_int_eq(emit_one(&s, 170000, true, unit_bytes("a"), unit_bytes("x")), 0);
    ck_assert_str_eq(s.sql, plain);
    ck_assert_int_eq(emit_one(&s, 160099, false, unit_bytes("a"), unit_bytes("x")), 0);
    ck_assert_str_eq(s.sql, plain);
    unit_assert_hex(value(&s, 0), "00");
    ck_assert_int_eq(emit_one(&s, 170000, false, unit_bytes("a"), unit_bytes("x")), 0);
    ck_assert_ptr_nonnull(strstr(s.sql, "$3, true)"));
}
END_TEST

START_TEST(statement_of_many)
{
    struct emit_batch batch;
    struct emit_statement s;

    emit_batch_init(&batch);
    add(&batch, "p", "one");
    ck_assert_int_eq(emit_many(&s, 150000, true, &batch), 0);
    ck_assert_int_eq(s.n, 3);
    ck_assert_uint_eq(s.types[2], 17); /* one alone is no array */
    unit_assert_text(value(&s, 1), "p");
    unit_assert_text(value(&s, 2), "one");

    add(&batch, "qq", "");
    ck_assert_int_eq(emit_many(&s, 170000, true, &batch), 0);
    ck_assert_int_eq(s.n, 3);
    ck_assert_uint_eq(s.types[1], 1009);
    ck_assert_uint_eq(s.types[2], 1001);
    unit_assert_hex(value(&s, 1), "00000001 00000000 00000019 00000002 00000001"
                                  "00000001 70 00000002 7171");
    unit_assert_hex(value(&s, 2), "00000001 00000000 00000011 00000002 00000001"
                                  "00000003 6f6e65 00000000");

    ck_assert_int_eq(emit_many(&s, 170000, false, &batch), 0);
    ck_assert_int_eq(s.n, 4);
    ck_assert_uint_eq(s.types[3], 1000);
    unit_assert_hex(value(&s, 3), "00000001 00000000 00000010 00000002 00000001"
                                  "00000001 00 00000001 01");
    emit_batch_deinit(&batch);
}
END_TEST

START_TEST(statement_too_large)
{
    struct emit_statement s;
    struct emit_batch batch;
    uint8_t byte = 0;

    ck_assert_int_eq(
        emit_one(&s, 150000, true, unit_bytes("a"), (struct bytes){&byte, EMIT_STATEMENT_MAX}),
        -E2BIG);
    ck_assert_int_eq(emit_one(&s, 150000, true, unit_bytes("a"), (struct bytes){&byte, SIZE_MAX}),
                     -E2BIG);
    ck_assert_int_eq(
        emit_one(&s, 150000, true, unit_bytes("a"), (struct bytes){&byte, EMIT_STATEMENT_MAX - 1}),
        0);

    /* A buffer that says it holds more than it does: its bytes are not looked at before the
     * refusal. */
    emit_batch_init(&batch);
    struct buf *content = emit_batch_begin(&batch, unit_bytes("a"));
    size_t before = content->size;
    content->size = EMIT_STATEMENT_MAX + 100;
    ck_assert_int_eq(emit_batch_end(&batch), -E2BIG);
    content->size = before;
    emit_batch_deinit(&batch);
}
END_TEST

/* A result made by hand: one column, given type and format. */
static PGresult *lsn_result(unsigned type, int format, int rows, int length)
{
    static char bytes[] = "\0\0\0\1\0\0\0\2";
    PGresAttDesc column = {.name = (char *)(uintptr_t) "x", .typid = type, .format = format};
    PGresult *r = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);

    ck_assert(PQsetResultAttrs(r, 1, &column));
    for (int i = 0; i < rows; i++)
        ck_assert(PQsetvalue(r, i, 0, length < 0 ? NULL : bytes, length));
    return r;
}

START_TEST(reading_lsns)
{
    static const struct {
        unsigned type;
        int format, rows, length, rc;
    } cases[] = {
        {3220, 1, 2, 8, 0},         {3220, 1, 1, 8, -EBADMSG}, {3220, 1, 3, 8, -EBADMSG},
        {3220, 1, 2, 4, -EBADMSG},  {3220, 0, 2, 8, -EBADMSG}, {20, 1, 2, 8, -EBADMSG},
        {3220, 1, 2, -1, -EBADMSG},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint64_t lsns[2] = {0, 0};
        PGresult *r = lsn_result(cases[i].type, cases[i].format, cases[i].rows, cases[i].length);

        ck_assert_int_eq(emit_read(r, lsns, 2), cases[i].rc);
        ck_assert_uint_eq(lsns[0], cases[i].rc ? 0 : UINT64_C(0x100000002));
        ck_assert_uint_eq(lsns[1], lsns[0]);
        ck_assert_int_eq(emit_read(r, NULL, 2), cases[i].rc);
        PQclear(r);
    }
    PGresult *r = PQmakeEmptyPGresult(NULL, PGRES_FATAL_ERROR);
    ck_assert_int_eq(emit_read(r, NULL, 0), -EBADMSG);
    PQclear(r);
}
END_TEST

/* ---- preconditions ---- */

/* A server on which nothing is to be found by anybody. */
static struct server_facts good(void)
{
    return (struct server_facts){
        .version_num = 150003,
        .wal_level = "logical",
        .role = "Ro\"le",
        .database = "sh'op",
        .may_replicate = true,
        .may_emit = true,
        .may_restrict = true,
        .may_create = true,
        .may_create_slot = true,
        .slots_max = 10,
        .slots_used = 1,
        .name_max = 63,
        .publication_exists = true,
        .slot_exists = true,
        .slot_logical = true,
        .slot_plugin = "pgoutput",
        .slot_database = "sh'op",
        .slot_wal_status = "reserved",
    };
}

#define ROUTER   PRECONDITION_FOR_ROUTER
#define SETUP    PRECONDITION_FOR_SETUP
#define TEARDOWN PRECONDITION_FOR_TEARDOWN
#define RESTRICT PRECONDITION_FOR_RESTRICT

static void spoil(struct server_facts *f, const char *id)
{
    if (strcmp(id, "version") == 0)
        f->version_num = 130009;
    else if (strcmp(id, "pooler") == 0)
        f->pooler = true;
    else if (strcmp(id, "recovery") == 0)
        f->in_recovery = true;
    else if (strcmp(id, "wal-level") == 0)
        strcpy(f->wal_level, "replica");
    else if (strcmp(id, "replication-right") == 0)
        f->may_replicate = false;
    else if (strcmp(id, "emit-right") == 0)
        f->may_emit = false;
    else if (strcmp(id, "restrict-right") == 0)
        f->may_restrict = false;
    else if (strcmp(id, "create-right") == 0)
        f->publication_exists = f->may_create = false;
    else if (strcmp(id, "slots-used") == 0) {
        f->slot_exists = f->slot_logical = false;
        f->slots_used = f->slots_max;
    } else if (strcmp(id, "name-length") == 0)
        f->name_too_long = true;
    else if (strcmp(id, "database") == 0)
        strcpy(f->slot_database, "other");
    else if (strcmp(id, "plugin") == 0)
        strcpy(f->slot_plugin, "wal2json");
    else if (strcmp(id, "two-phase") == 0)
        f->slot_two_phase = true;
    else if (strcmp(id, "publication") == 0)
        f->publication_exists = false;
    else if (strcmp(id, "slot-invalidated") == 0)
        strcpy(f->slot_wal_status, "lost");
    else if (strcmp(id, "slot-in-use") == 0)
        f->slot_active_pid = 4711;
    else if (strcmp(id, "slot-missing") == 0)
        f->slot_exists = f->slot_logical = false;
    else
        ck_abort_msg("no way to spoil %s", id);
}

static const struct {
    const char *id;
    enum precondition_class klass;
    unsigned askers;
    const char *text, *mend; /* some of their words */
} rows[] = {
    {"version", PRECONDITION_REFUSE, ROUTER | SETUP, "PostgreSQL 13.9;", "upgrade"},
    {"pooler", PRECONDITION_REFUSE, ROUTER | SETUP, "pooler", "host and port"},
    {"recovery", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, "recovery", "primary"},
    {"wal-level", PRECONDITION_REFUSE, ROUTER | SETUP, "wal_level is replica",
     "ALTER SYSTEM SET wal_level = logical; then restart the server"},
    {"replication-right", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, "may not replicate",
     "ALTER ROLE \"Ro\"\"le\" REPLICATION;"},
    {"emit-right", PRECONDITION_REFUSE, ROUTER | SETUP, "pg_logical_emit_message",
     "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) TO "
     "\"Ro\"\"le\";"},
    {"restrict-right", PRECONDITION_REFUSE, RESTRICT, "no superuser",
     "walbus setup --slot 'my'\\''slot' --publication 'my pub' --restrict --grant 'Ro\"le'"},
    {"create-right", PRECONDITION_REFUSE, SETUP, "may not create a publication",
     "GRANT CREATE ON DATABASE \"sh'op\" TO \"Ro\"\"le\";"},
    {"slots-used", PRECONDITION_REFUSE, SETUP, "10 are there, and max_replication_slots is 10.",
     "ALTER SYSTEM SET max_replication_slots = 11; then restart"},
    {"name-length", PRECONDITION_REFUSE, SETUP, "\"my pub\" is longer than the 63 bytes",
     "--publication"},
    {"database", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN,
     "belongs to the database \"other\"", "dbname=other"},
    {"plugin", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, "wal2json",
     "pg_drop_replication_slot('my''slot')"},
    {"two-phase", PRECONDITION_REFUSE, ROUTER | SETUP, "two_phase", "walbus setup --slot"},
    {"publication", PRECONDITION_REFUSE, ROUTER, "no publication \"my pub\"",
     "walbus setup --slot 'my'\\''slot' --publication 'my pub'"},
    {"slot-missing", PRECONDITION_DECIDE, ROUTER, "no replication slot", "walbus setup"},
    {"slot-invalidated", PRECONDITION_DECIDE, ROUTER | SETUP, "invalidated", "walbus setup"},
    {"slot-in-use", PRECONDITION_WAIT, ROUTER, "process 4711", "pg_terminate_backend(4711)"},
};

static const struct precondition_finding *find(const struct precondition_finding *f, size_t n,
                                               const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].id, id) == 0)
            return &f[i];
    return NULL;
}

START_TEST(nothing_to_find)
{
    struct precondition_finding out[PRECONDITION_MAX];
    struct server_facts facts = good();

    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 0);
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP, out), 0);
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", TEARDOWN, out), 0);
    /* A server with neither: what setup and teardown are for. */
    facts.slot_exists = facts.slot_logical = facts.publication_exists = false;
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP, out), 0);
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", TEARDOWN, out), 0);
}
END_TEST

/* Each row is found when its fact is spoiled, by those whom it concerns, and alone. */
START_TEST(each_row)
{
    static const enum precondition_asker askers[] = {ROUTER, SETUP, TEARDOWN, RESTRICT};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (size_t a = 0; a < ARRAY_SIZE(askers); a++) {
            struct precondition_finding out[PRECONDITION_MAX];
            struct server_facts facts = good();

            spoil(&facts, rows[i].id);
            size_t n = precondition_check(&facts, "my'slot", "my pub", askers[a], out);
            const struct precondition_finding *f = find(out, n, rows[i].id);
            ck_assert_msg((f != NULL) == ((rows[i].askers & askers[a]) != 0), "%s for %u",
                          rows[i].id, askers[a]);
            if (f) {
                ck_assert_uint_eq(n, 1);
                ck_assert_int_eq(f->klass, rows[i].klass);
                ck_assert_msg(strstr(buf_str(&out[0].text), rows[i].text), "%s",
                              buf_str(&out[0].text));
                ck_assert_msg(strstr(buf_str(&out[0].mend), rows[i].mend), "%s",
                              buf_str(&out[0].mend));
                ck_assert_ptr_null(strchr(buf_str(&out[0].text), '{'));
                ck_assert_ptr_null(strchr(buf_str(&out[0].mend), '{'));
            }
            precondition_findings_deinit(out, n);
        }
}
END_TEST

START_TEST(rows_by_version)
{
    struct precondition_finding out[PRECONDITION_MAX];
    struct server_facts facts = good();

    facts.version_num = 180000;
    facts.may_emit = false;
    facts.may_restrict = false;
    facts.slot_two_phase = true;
    /* Of several askers each row once. */
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP | RESTRICT, out), 3);
    precondition_findings_deinit(out, 3);
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 2);
    ck_assert_ptr_nonnull(strstr(buf_str(&out[0].mend), "(boolean, text, bytea, boolean)"));
    ck_assert_str_eq(out[1].id, "two-phase");
    ck_assert_ptr_nonnull(
        strstr(buf_str(&out[1].mend), "ALTER_REPLICATION_SLOT \"s\" (TWO_PHASE false);"));
    precondition_findings_deinit(out, 2);

    facts = good();
    facts.version_num = 90624;
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 1);
    ck_assert_ptr_nonnull(strstr(buf_str(&out[0].text), "PostgreSQL 9.6.24;"));
    precondition_findings_deinit(out, 1);

    facts = good();
    strcpy(facts.slot_wal_status, "lost");
    strcpy(facts.slot_invalidation_reason, "wal_removed");
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 1);
    ck_assert_ptr_nonnull(strstr(buf_str(&out[0].text), "\"s\" (wal_removed):"));
    precondition_findings_deinit(out, 1);
}
END_TEST

/* What only setup needs, and only to make a slot that is not there. */
START_TEST(right_to_make_a_slot)
{
    struct precondition_finding out[PRECONDITION_MAX];

    for (int version = 160000; version <= 170000; version += 10000) {
        struct server_facts facts = good();

        facts.version_num = version;
        facts.may_create_slot = false;
        facts.slots_used = facts.slots_max;
        ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP, out), 0);
        facts.slots_used--;
        facts.slot_exists = facts.slot_logical = false;
        ck_assert_uint_eq(precondition_check(&facts, "s", "p", TEARDOWN, out), 0);
        ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP, out), 1);
        ck_assert_str_eq(out[0].id, "create-right");
        ck_assert_ptr_nonnull(strstr(buf_str(&out[0].mend),
                                     version < 170000 ? "(name, name, boolean, boolean) TO \"Ro"
                                                      : "(name, name, boolean, boolean, boolean) "
                                                        "TO \"Ro"));
        precondition_findings_deinit(out, 1);
    }
}
END_TEST

START_TEST(physical_slot)
{
    struct precondition_finding out[PRECONDITION_MAX];
    struct server_facts facts = good();

    /* It has neither plugin nor database. */
    facts.slot_logical = false;
    facts.slot_plugin[0] = facts.slot_database[0] = '\0';
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", SETUP, out), 1);
    ck_assert_str_eq(out[0].id, "plugin");
    ck_assert_ptr_nonnull(strstr(buf_str(&out[0].text), "physical"));
    precondition_findings_deinit(out, 1);
}
END_TEST

/* A misspelt name is the likely cause: nobody is told to drop a slot that is good. */
START_TEST(publication_that_is_missing)
{
    struct precondition_finding out[PRECONDITION_MAX];
    struct server_facts facts = good();

    facts.publication_exists = false;
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 1);
    const char *mend = buf_str(&out[0].mend), *drop = strstr(mend, "pg_drop_replication_slot('s')");
    ck_assert_int_eq(strncmp(mend, "if another one is meant, name it with --publication", 51), 0);
    ck_assert_ptr_nonnull(strstr(mend, "only if it was there before"));
    ck_assert(drop && drop > strstr(mend, "walbus setup"));
    precondition_findings_deinit(out, 1);

    strcpy(facts.slot_database, "other"); /* the slot was never read with it */
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 2);
    ck_assert_str_eq(out[0].id, "database");
    ck_assert_str_eq(out[1].id, "publication");
    ck_assert_ptr_null(strstr(buf_str(&out[1].mend), "pg_drop_replication_slot"));
    ck_assert_ptr_nonnull(strstr(buf_str(&out[1].mend), "walbus setup"));
    precondition_findings_deinit(out, 2);

    facts.slot_exists = facts.slot_logical = false;
    ck_assert_uint_eq(precondition_check(&facts, "s", "p", ROUTER, out), 2);
    ck_assert_str_eq(out[0].id, "publication");
    ck_assert_ptr_null(strstr(buf_str(&out[0].mend), "pg_drop_replication_slot"));
    precondition_findings_deinit(out, 2);
}
END_TEST

START_TEST(everything_at_once)
{
    struct precondition_finding out[PRECONDITION_MAX];
    struct server_facts facts = {.slot_exists = true, .slot_logical = true};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(rows[i].id, "slot-missing") != 0 && strcmp(rows[i].id, "slots-used") != 0 &&
            strcmp(rows[i].id, "publication") != 0)
            spoil(&facts, rows[i].id);
    size_t n = precondition_check(&facts, "s", "p", ROUTER, out);
    ck_assert_uint_eq(n, 12);
    ck_assert_str_eq(out[0].id, "version"); /* the most fundamental first */
    precondition_findings_deinit(out, n);
}
END_TEST

START_TEST(verdict_of_findings)
{
    struct precondition_finding waiting = {.klass = PRECONDITION_WAIT};
    struct precondition_finding refused = {.klass = PRECONDITION_REFUSE};
    struct precondition_finding undecided = {.klass = PRECONDITION_DECIDE};

    ck_assert_int_eq(precondition_verdict(&waiting, 1), PRECONDITION_WAIT);
    ck_assert_int_eq(precondition_verdict(
                         (struct precondition_finding[]){refused, undecided, waiting}, 3),
                     PRECONDITION_REFUSE);
    ck_assert_int_eq(precondition_verdict(
                         (struct precondition_finding[]){waiting, undecided, refused}, 3),
                     PRECONDITION_DECIDE);
}
END_TEST

START_TEST(explain_connect)
{
    static const struct {
        const char *sqlstate, *message, *id;
    } cases[] = {
        {"", "FATAL:  must be superuser or replication role to start walsender",
         "replication-right"},
        {"42501", "FATAL:  permission denied to start WAL sender\nDETAIL:  …", "replication-right"},
        {NULL, "FATAL:  unsupported startup parameter: replication", "pooler"},
        {"42501", "FATAL:  permission denied for database \"x\"", NULL},
        {"28000", "FATAL:  must be superuser or replication role to start walsender", NULL},
        {NULL, "could not connect", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct precondition_finding out[PRECONDITION_MAX];
        size_t n = precondition_explain_connect(cases[i].sqlstate, cases[i].message, "R", out);

        ck_assert_uint_eq(n, cases[i].id ? 1 : 0);
        if (n == 0)
            continue;
        ck_assert_str_eq(out[0].id, cases[i].id);
        if (strcmp(cases[i].id, "replication-right") == 0)
            ck_assert_str_eq(buf_str(&out[0].mend), "ALTER ROLE \"R\" REPLICATION;");
        precondition_findings_deinit(out, n);
    }
}
END_TEST

START_TEST(explain_query)
{
    struct precondition_finding out[PRECONDITION_MAX];

    ck_assert_uint_eq(precondition_explain_query(NULL, "", "p", out), 0);
    ck_assert_uint_eq(precondition_explain_query(NULL, "22021", "p", out), 0);
    ck_assert_uint_eq(precondition_explain_query(NULL, "22P05", "p", out), 1);
    ck_assert_str_eq(out[0].id, "name-encoding");
    ck_assert_int_eq(precondition_verdict(out, 1), PRECONDITION_REFUSE);
    ck_assert_ptr_nonnull(strstr(buf_str(&out[0].text), "name \"p\" has a character"));
    ck_assert_str_eq(buf_str(&out[0].mend), "choose another name with --publication");
    precondition_findings_deinit(out, 1);
}
END_TEST

UNIT_MAIN("pg", quoting, messages_of_libpq, sqlstate_of_message, password_in_dsn,
         dsn_that_cannot_be_read,
          connect_params_in_order, patience, connect_that_fails, refusal_mends, array_bytes, statement_of_one,
          statement_of_many, statement_too_large, reading_lsns, nothing_to_find, each_row,
          rows_by_version, right_to_make_a_slot, physical_slot, publication_that_is_missing, everything_at_once,
          verdict_of_findings, explain_connect, explain_query)
