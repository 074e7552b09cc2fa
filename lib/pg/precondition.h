/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_PG_PRECONDITION_H
#define WALBUS_PG_PRECONDITION_H

/*
 * What must be true of a server before its slot is read, each with the command
 * that mends it: written once, as a table, for walbusd, `walbus setup`,
 * and `walbus teardown`.
 *
 * One query brings all facts in one row; the table is evaluated over them. So
 * the synchronous command and the router's loop share everything but the way in
 * which they wait. The query is plain SQL that runs on an ordinary connection
 * and on a replication=database one alike (simple query protocol).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"

struct pg_conn;
struct pg_result;

#define PRECONDITION_NAME_SIZE 256 /* NAMEDATALEN is 64; room for rebuilt servers */

/** Oldest server that logical messages can be read from with pgoutput. */
#define PRECONDITION_OLDEST_SERVER 140000

struct server_facts {
    int version_num; /* PQserverVersion */
    bool pooler;     /* the server's pid is not the one that the connection was told */
    bool in_recovery;
    char wal_level[32];
    char role[PRECONDITION_NAME_SIZE];
    char database[PRECONDITION_NAME_SIZE];
    bool may_replicate;   /* REPLICATION or superuser */
    bool may_emit;        /* EXECUTE on pg_logical_emit_message (the bytea variant) */
    bool may_restrict;    /* of the owner's role, as a superuser is: may say who emits */
    bool may_create;      /* CREATE on the database (for setup) */
    bool may_create_slot; /* EXECUTE on pg_create_logical_replication_slot (for setup) */
    int slots_max;        /* max_replication_slots */
    int slots_used;       /* of all kinds and databases */
    bool name_too_long;   /* the publication's, for an identifier in the server's encoding */
    int name_max;         /* bytes of an identifier */
    bool publication_exists;
    /* As the connection spells it: over one of SQL_ASCII the server's own bytes, which START_REPLICATION needs. "":
     * there is none. */
    char publication[PRECONDITION_NAME_SIZE];
    bool slot_exists;
    bool slot_logical;
    char slot_plugin[PRECONDITION_NAME_SIZE];
    char slot_database[PRECONDITION_NAME_SIZE];
    bool slot_two_phase;
    bool slot_failover;                /* false before 17 */
    int slot_active_pid;               /* 0: nobody reads it */
    char slot_wal_status[32];          /* "reserved", "extended", "unreserved", "lost", "" */
    char slot_invalidation_reason[64]; /* "wal_removed", "rows_removed", …; "" before 17 */
    uint64_t slot_restart_lsn;
    uint64_t slot_confirmed_flush_lsn;
    int64_t slot_retained_bytes; /* pg_current_wal_lsn() - restart_lsn; -1 unknown (in recovery) */
    int64_t slot_safe_wal_size;  /* -1: unlimited or unknown */
    uint64_t wal_lsn;            /* pg_current_wal_lsn(), 0 in recovery */
    int64_t wal_sender_timeout_ms; /* 0: off */
    uint64_t system_identifier;
};

enum precondition_class {
    PRECONDITION_REFUSE, /* nothing works before it is mended: mend it, then start again (exit 1) */
    PRECONDITION_WAIT,   /* the slot is in use: wait */
    PRECONDITION_DECIDE, /* slot missing or invalidated: the operator decides (exit 4) */
};

/** Who asks; rows that concern none of the askers are passed over. */
enum precondition_asker {
    PRECONDITION_FOR_ROUTER = 1, /* every row */
    /* What must hold before publication and slot are made: not that they are there, but that a slot
     * which is there is right. */
    PRECONDITION_FOR_SETUP = 2,
    /* What must hold before they are dropped: not that they are there, but that the slot is ours.
     */
    PRECONDITION_FOR_TEARDOWN = 4,
    /* Beside setup: what must hold before the right to publish is taken from PUBLIC. */
    PRECONDITION_FOR_RESTRICT = 8,
};

struct precondition_finding {
    const char *id; /* stable: "wal-level", "replication-right", "emit-right", "version", "plugin",
                       "two-phase", "publication", "pooler", "database", "recovery", "slot-in-use",
                       "slot-missing", "slot-invalidated"; for setup also "create-right",
                       "slots-used", "name-length", with --restrict "restrict-right";
                       of a query that failed "name-encoding" */
    enum precondition_class klass;
    struct buf text; /* one sentence: what was found, what was expected */
    struct buf mend; /* the command or setting that mends it */
};

#define PRECONDITION_MAX 24

/**
 * Appends the query. `conn` gives the server's version, which decides the columns that may be asked
 * for: older than PRECONDITION_OLDEST_SERVER, where precondition_check_connection() finds
 * something, it cannot run. Its client_encoding is UTF8 or SQL_ASCII (pg/connect.h). 0, or -ENOMEM.
 */
int precondition_query(struct pg_conn *conn, const char *slot, const char *publication,
                       struct buf *sql) MUST_CHECK;

/** Reads the query's one row. 0; -EBADMSG when it is none: an error of the server, for one. */
int precondition_read(struct pg_conn *conn, const struct pg_result *result,
                      struct server_facts *ret) MUST_CHECK;

/** What can be said from the connection alone, before any query: the server's version. Returns the
 *  number of findings. */
size_t precondition_check_connection(struct pg_conn *conn,
                                     struct precondition_finding out[PRECONDITION_MAX]);

/** Evaluates the table for one asker, or for several at once (A | B), most fundamental first; returns the number of findings, 0: all is well. */
size_t precondition_check(const struct server_facts *facts, const char *slot,
                          const char *publication, unsigned askers,
                          struct precondition_finding out[PRECONDITION_MAX]);

/** What n > 0 findings, in their order, amount to: the first that is not to be waited out decides, since
 *  mending it comes first; PRECONDITION_WAIT when there is none but such. */
enum precondition_class precondition_verdict(const struct precondition_finding *findings,
                                             size_t n) MUST_CHECK;

/**
 * Explains why a replication connection could not be made, when that is one of the table's rows:
 * the role may not replicate, a pooler in front that does not know `replication`. 0 or 1 finding.
 * `sqlstate` may be NULL or "", `message` is PQerrorMessage, `role` is PQuser (NULL: unknown) and
 * stands in the mend.
 *
 * The server's text is looked at, because 42501 says nothing alone: a missing right to connect has
 * it too. A server that speaks another language than English is not understood (0); the same row is
 * then found by precondition_check() over an ordinary connection.
 */
size_t precondition_explain_connect(const char *sqlstate, const char *message, const char *role,
                                    struct precondition_finding out[PRECONDITION_MAX]) MUST_CHECK;

/** The finding "emit-right" about the role of `conn`: to be freed as one of precondition_check(). */
void precondition_explain_emit(struct pg_conn *conn, struct precondition_finding *ret);

/** Why the query of precondition_query() failed with `sqlstate`, when it is a finding. 0 or 1. */
size_t precondition_explain_query(struct pg_conn *conn, const char *sqlstate,
                                  const char *publication,
                                  struct precondition_finding out[PRECONDITION_MAX]) MUST_CHECK;

/** Frees the texts of findings; those of n = 0 are not looked at. */
void precondition_findings_deinit(struct precondition_finding *findings, size_t n);

#endif
