/* SPDX-License-Identifier: PostgreSQL */
#include "pg/precondition.h"

#include <assert.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <string.h>

#include "pg/connect.h"

/** untranslatable_character: of all that is asked, only a name can be it. */
#define SQLSTATE_UNTRANSLATABLE "22P05"

struct question {
    const struct server_facts *facts;
    const char *slot;
    const char *publication;
};

static bool too_old(const struct server_facts *f)
{
    return f->version_num < PRECONDITION_OLDEST_SERVER;
}

static bool through_pooler(const struct server_facts *f)
{
    return f->pooler;
}

static bool in_recovery(const struct server_facts *f)
{
    return f->in_recovery;
}

static bool wal_level_low(const struct server_facts *f)
{
    return strcmp(f->wal_level, "logical") != 0;
}

static bool may_not_replicate(const struct server_facts *f)
{
    return !f->may_replicate;
}

static bool may_not_emit(const struct server_facts *f)
{
    return !f->may_emit;
}

static bool may_not_restrict(const struct server_facts *f)
{
    return !f->may_restrict;
}

static bool may_not_create(const struct server_facts *f)
{
    return !f->publication_exists && !f->may_create;
}

static bool may_not_create_slot(const struct server_facts *f)
{
    return !f->slot_exists && !f->may_create_slot;
}

static bool no_slot_free(const struct server_facts *f)
{
    return !f->slot_exists && f->slots_used >= f->slots_max;
}

static bool publication_name_too_long(const struct server_facts *f)
{
    return f->name_too_long;
}

static bool other_database(const struct server_facts *f)
{
    return f->slot_exists && f->slot_logical && strcmp(f->slot_database, f->database) != 0;
}

static bool slot_physical(const struct server_facts *f)
{
    return f->slot_exists && !f->slot_logical;
}

static bool other_plugin(const struct server_facts *f)
{
    return f->slot_exists && f->slot_logical && strcmp(f->slot_plugin, "pgoutput") != 0;
}

/** From 18 on two_phase of a slot can be switched off. */
static bool two_phase_for_good(const struct server_facts *f)
{
    return f->slot_two_phase && f->version_num < 180000;
}

static bool two_phase_alterable(const struct server_facts *f)
{
    return f->slot_two_phase && f->version_num >= 180000;
}

/** There is a slot of this database, which may have been read with it. */
static bool publication_missing_beside_slot(const struct server_facts *f)
{
    return !f->publication_exists && f->slot_exists && strcmp(f->slot_database, f->database) == 0;
}

static bool publication_missing_without_slot(const struct server_facts *f)
{
    return !f->publication_exists && !publication_missing_beside_slot(f);
}

static bool slot_missing(const struct server_facts *f)
{
    return !f->slot_exists;
}

static bool slot_invalidated(const struct server_facts *f)
{
    return f->slot_exists && strcmp(f->slot_wal_status, "lost") == 0;
}

static bool slot_in_use(const struct server_facts *f)
{
    return f->slot_active_pid != 0;
}

enum {
    ROUTER = PRECONDITION_FOR_ROUTER,
    SETUP = PRECONDITION_FOR_SETUP,
    TEARDOWN = PRECONDITION_FOR_TEARDOWN,
    RESTRICT = PRECONDITION_FOR_RESTRICT,
};

/* In text and mend, {word} is a fact, {word|identifier}, {word|literal}, {word|shell} the same
 * quoted. */
#define SETUP_COMMAND "walbus setup --slot {slot|shell} --publication {publication|shell}"
#define NAME_PUBLICATION "if another one is meant, name it with --publication, or its database in the dsn (dbname=)"
#define DROP_SLOT     "SELECT pg_catalog.pg_drop_replication_slot({slot|literal});"

struct row {
    const char *id;
    enum precondition_class klass;
    unsigned askers;
    bool (*found)(const struct server_facts *f);
    const char *text;
    const char *mend;
};

static const struct row rows[] = {
    {"version", PRECONDITION_REFUSE, ROUTER | SETUP, too_old,
     "The server is PostgreSQL {version}; logical messages are read from PostgreSQL 14 on.",
     "upgrade the server to PostgreSQL 14 or newer"},
    {"pooler", PRECONDITION_REFUSE, ROUTER | SETUP, through_pooler,
     "The connection goes through a pooler: another server process answers than the one that the "
     "connection was told of.",
     "in the dsn, name host and port of PostgreSQL itself, not of the pooler"},
    {"recovery", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, in_recovery,
     "The server is in recovery: it is a standby, or is being restored.",
     "in the dsn, name the primary; of several hosts target_session_attrs=read-write finds it"},
    {"wal-level", PRECONDITION_REFUSE, ROUTER | SETUP, wal_level_low,
     "wal_level is {wal_level}; it must be logical.",
     "ALTER SYSTEM SET wal_level = logical; then restart the server"},
    {"replication-right", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, may_not_replicate,
     "The role \"{role}\" may not replicate: it is neither superuser nor has it REPLICATION.",
     "ALTER ROLE {role|identifier} REPLICATION;"},
    {"emit-right", PRECONDITION_REFUSE, ROUTER | SETUP, may_not_emit,
     "The role \"{role}\" may not execute pg_logical_emit_message, which the heartbeat needs.",
     "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message({signature}) TO "
     "{role|identifier};"},
    {"restrict-right", PRECONDITION_REFUSE, RESTRICT, may_not_restrict,
     "The role \"{role}\" may not say who executes pg_logical_emit_message: it is no superuser.",
     "in the dsn, name a superuser (user=postgres), and with --grant the router's role and who else publishes: "
     SETUP_COMMAND " --restrict --grant {role|shell}"},
    {"create-right", PRECONDITION_REFUSE, SETUP, may_not_create,
     "The role \"{role}\" may not create a publication in the database \"{database}\".",
     "GRANT CREATE ON DATABASE {database|identifier} TO {role|identifier};"},
    {"create-right", PRECONDITION_REFUSE, SETUP, may_not_create_slot,
     "The role \"{role}\" may not execute pg_create_logical_replication_slot.",
     "GRANT EXECUTE ON FUNCTION pg_catalog.pg_create_logical_replication_slot({make_signature}) TO "
     "{role|identifier};"},
    {"slots-used", PRECONDITION_REFUSE, SETUP, no_slot_free,
     "No replication slot is free: {used} are there, and max_replication_slots is {slots}.",
     "ALTER SYSTEM SET max_replication_slots = {more}; then restart the server; or drop a slot "
     "that "
     "nobody needs"},
    {"name-length", PRECONDITION_REFUSE, SETUP, publication_name_too_long,
     "The publication's name \"{publication}\" is longer than the {limit} bytes of a name.",
     "choose a shorter one with --publication"},
    {"database", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, other_database,
     "The slot \"{slot}\" belongs to the database \"{slot_database}\", but the connection is to "
     "\"{database}\".",
     "in the dsn, name that database (dbname={slot_database}); or choose another slot with --slot"},
    {"plugin", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, slot_physical,
     "The slot \"{slot}\" is a physical one; it must be logical, with the plugin pgoutput.",
     "choose another name with --slot; or, if nobody needs that slot: " DROP_SLOT},
    {"plugin", PRECONDITION_REFUSE, ROUTER | SETUP | TEARDOWN, other_plugin,
     "The slot \"{slot}\" has the plugin {plugin}; it must be pgoutput.",
     "choose another name with --slot; or, if nobody needs that slot: " DROP_SLOT},
    {"two-phase", PRECONDITION_REFUSE, ROUTER | SETUP, two_phase_for_good,
     "The slot \"{slot}\" was made with two_phase, which must be off.",
     DROP_SLOT " then " SETUP_COMMAND " (what the slot still held is lost)"},
    {"two-phase", PRECONDITION_REFUSE, ROUTER | SETUP, two_phase_alterable,
     "The slot \"{slot}\" has two_phase on, which must be off.",
     "over a connection with replication=database: "
     "ALTER_REPLICATION_SLOT {slot|identifier} (TWO_PHASE false);"},
    {"publication", PRECONDITION_REFUSE, ROUTER, publication_missing_beside_slot,
     "There is no publication \"{publication}\" in the database \"{database}\".",
     NAME_PUBLICATION "; or make it: " SETUP_COMMAND "; only if it was there before, and rows were changed without it, the slot "
     "cannot go on (before PostgreSQL 18): then " DROP_SLOT " and again " SETUP_COMMAND},
    {"publication", PRECONDITION_REFUSE, ROUTER, publication_missing_without_slot,
     "There is no publication \"{publication}\" in the database \"{database}\".",
     NAME_PUBLICATION "; or make it: " SETUP_COMMAND},
    {"slot-missing", PRECONDITION_DECIDE, ROUTER, slot_missing,
     "There is no replication slot \"{slot}\".",
     "if another one is meant, name it with --slot; or make it: " SETUP_COMMAND
     "; what was published meanwhile is lost to subscribers, and a router that has a journal goes on behind it with "
     "--accept-gap"},
    {"slot-invalidated", PRECONDITION_DECIDE, ROUTER | SETUP, slot_invalidated,
     "The server has invalidated the slot \"{slot}\"{reason}: what it still held is lost.",
     DROP_SLOT " then " SETUP_COMMAND
               "; what the slot had not delivered is lost to subscribers, and a router that has a journal goes on behind it with "
               "--accept-gap"},
    {"slot-in-use", PRECONDITION_WAIT, ROUTER, slot_in_use,
     "The slot \"{slot}\" is in use by the server process {pid}.",
     "stop the program that reads it; or: SELECT pg_catalog.pg_terminate_backend({pid});"},
};

_Static_assert(ARRAY_SIZE(rows) <= PRECONDITION_MAX, "all rows can be found at once");

/** The value of a word between braces; numbers are written to `scratch`. */
static const char *word_value(const struct question *q, struct bytes word, char scratch[96])
{
    const struct server_facts *f = q->facts;
    const struct {
        const char *name;
        const char *value;
    } texts[] = {
        {"slot", q->slot},
        {"publication", q->publication},
        {"role", f->role},
        {"database", f->database},
        {"wal_level", f->wal_level},
        {"slot_database", f->slot_database},
        {"plugin", f->slot_plugin},
        {"signature",
         f->version_num >= 170000 ? "boolean, text, bytea, boolean" : "boolean, text, bytea"},
        {"make_signature", f->version_num >= 170000 ? "name, name, boolean, boolean, boolean"
                                                    : "name, name, boolean, boolean"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (strlen(texts[i].name) == word.size && memcmp(texts[i].name, word.data, word.size) == 0)
            return texts[i].value;

    scratch[0] = '\0';
    switch (word.data[0]) {
    case 'v': /* version */
        if (f->version_num >= 100000)
            (void)snprintf(scratch, 96, "%d.%d", f->version_num / 10000, f->version_num % 10000);
        else
            (void)snprintf(scratch, 96, "%d.%d.%d", f->version_num / 10000,
                           f->version_num / 100 % 100, f->version_num % 100);
        break;
    case 'u': /* used */
        (void)snprintf(scratch, 96, "%d", f->slots_used);
        break;
    case 's': /* slots */
        (void)snprintf(scratch, 96, "%d", f->slots_max);
        break;
    case 'm': /* more */
        (void)snprintf(scratch, 96, "%d", f->slots_used + 1);
        break;
    case 'l': /* limit */
        (void)snprintf(scratch, 96, "%d", f->name_max);
        break;
    case 'p': /* pid */
        (void)snprintf(scratch, 96, "%d", f->slot_active_pid);
        break;
    case 'r': /* reason */
        if (f->slot_invalidation_reason[0])
            (void)snprintf(scratch, 96, " (%s)", f->slot_invalidation_reason);
        break;
    default:
        assert(!"a word of the table that nobody knows");
    }
    return scratch;
}

static void put_template(struct buf *out, const char *template, const struct question *q)
{
    char scratch[96];

    for (;;) {
        size_t plain = strcspn(template, "{");

        buf_append(out, template, plain);
        template += plain;
        if (!*template)
            return;
        const char *word = template + 1;
        size_t size = strcspn(word, "|}");
        const char *value = word_value(q, (struct bytes){(const uint8_t *)word, size}, scratch);
        const char *quoting = word + size;

        if (*quoting == '}')
            buf_append_str(out, value);
        else if (quoting[1] == 'i')
            sql_put_identifier(out, value);
        else if (quoting[1] == 'l')
            sql_put_literal(out, value);
        else
            shell_put_word(out, value);
        template = strchr(quoting, '}') + 1;
    }
}

static void put_finding(struct precondition_finding *out, const struct row *row,
                        const struct question *q)
{
    *out = (struct precondition_finding){.id = row->id, .klass = row->klass};
    put_template(&out->text, row->text, q);
    put_template(&out->mend, row->mend, q);
}

size_t precondition_check_connection(struct pg_conn *conn,
                                     struct precondition_finding out[PRECONDITION_MAX])
{
    struct server_facts facts = {.version_num = PQserverVersion(conn)};
    struct question q = {&facts, "", ""};

    if (!too_old(&facts))
        return 0;
    put_finding(&out[0], &rows[0], &q);
    return 1;
}

size_t precondition_check(const struct server_facts *facts, const char *slot,
                          const char *publication, unsigned askers,
                          struct precondition_finding out[PRECONDITION_MAX])
{
    struct question q = {facts, slot, publication};
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if ((rows[i].askers & askers) && rows[i].found(facts))
            put_finding(&out[n++], &rows[i], &q);
    return n;
}

enum precondition_class precondition_verdict(const struct precondition_finding *findings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (findings[i].klass != PRECONDITION_WAIT)
            return findings[i].klass;
    return PRECONDITION_WAIT;
}

static const struct row *row_of(const char *id)
{
    size_t i = 0;

    while (strcmp(rows[i].id, id) != 0)
        i++;
    return &rows[i];
}

size_t precondition_explain_connect(const char *sqlstate, const char *message, const char *role,
                                    struct precondition_finding out[PRECONDITION_MAX])
{
    /* InitPostgres in postinit.c, up to 15 and from 16 on. */
    static const char *const no_right[] = {
        "must be superuser or replication role to start walsender",
        "permission denied to start WAL sender"};
    struct server_facts facts = {0};
    struct question q = {&facts, "", ""};

    if (!sqlstate || !*sqlstate || strcmp(sqlstate, "42501") == 0)
        for (size_t i = 0; i < ARRAY_SIZE(no_right); i++)
            if (strstr(message, no_right[i])) {
                (void)snprintf(facts.role, sizeof facts.role, "%s", role ? role : "ROLE");
                put_finding(&out[0], row_of("replication-right"), &q);
                return 1;
            }
    /* PgBouncer's words for a startup parameter that it does not know. */
    if (strstr(message, "unsupported startup parameter")) {
        out[0] = (struct precondition_finding){.id = "pooler", .klass = PRECONDITION_REFUSE};
        buf_append_str(&out[0].text,
                       "The connection goes through a pooler, which does not take replication.");
        put_template(&out[0].mend, row_of("pooler")->mend, &q);
        return 1;
    }
    return 0;
}

void precondition_explain_emit(struct pg_conn *conn, struct precondition_finding *ret)
{
    struct server_facts facts = {.version_num = PQserverVersion(conn)};
    struct question q = {&facts, "", ""};
    const char *role = PQuser(conn);

    (void)snprintf(facts.role, sizeof facts.role, "%s", role ? role : "ROLE");
    put_finding(ret, row_of("emit-right"), &q);
}

size_t precondition_explain_query(struct pg_conn *conn, const char *sqlstate,
                                  const char *publication,
                                  struct precondition_finding out[PRECONDITION_MAX])
{
    const char *database = PQdb(conn);

    if (strcmp(sqlstate, SQLSTATE_UNTRANSLATABLE) != 0)
        return 0;
    out[0] = (struct precondition_finding){.id = "name-encoding", .klass = PRECONDITION_REFUSE};
    buf_printf(&out[0].text,
               "The publication's name \"%s\" has a character that the encoding of the database "
               "\"%s\" does not have.",
               publication, database ? database : "");
    buf_append_str(&out[0].mend, "choose another name with --publication");
    return 1;
}

void precondition_findings_deinit(struct precondition_finding *findings, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_deinit(&findings[i].text);
        buf_deinit(&findings[i].mend);
    }
}
