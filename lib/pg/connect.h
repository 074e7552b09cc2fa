/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_PG_CONNECT_H
#define WALBUS_PG_CONNECT_H

/*
 * Connections as walbus wants them, and text for and from the server.
 *
 * A dsn is what libpq takes: a conninfo, a URI, or a database's name; what it
 * leaves open comes from libpq's PG… variables. Some settings are ours
 * whatever the dsn says, others only where it says nothing: libpq keeps the
 * last of repeated keywords, so their place around the expanded dbname decides.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/macros.h"

struct pg_conn;
struct pg_result;

/** The server at which one connection ended up, so that a second one can be made to the same. */
struct connect_place {
    char host[256]; /* a name, an address or a socket folder; all three "": unknown, as the dsn says */
    char hostaddr[64];
    char port[16];
};

struct connect_options {
    const char *dsn;              /* NULL: libpq's variables alone */
    const char *application_name; /* where neither dsn nor PGAPPNAME has one */
    const char *client_encoding;  /* always ours, whatever PGCLIENTENCODING says; NULL: UTF8 */
    bool replication;             /* replication=database */
    const struct connect_place *place; /* of the dsn's hosts this one alone; NULL: as the dsn says */
};

#define CONNECT_PARAMS_MAX 16

/** For PQconnectdbParams, PQconnectStartParams and PQpingParams, with expand_dbname = 1. */
struct connect_params {
    const char *keywords[CONNECT_PARAMS_MAX];
    const char *values[CONNECT_PARAMS_MAX];
};

/** Fills the arrays; the strings are those of `options`, or static. */
void connect_params(const struct connect_options *options, struct connect_params *ret);

/** Where `conn`, which stands, leads to. */
void connect_place_of(struct pg_conn *conn, struct connect_place *ret);

/**
 * Opens a connection and waits for it (the dsn's connect_timeout holds, 10 s
 * where it has none). 0 and *ret, to be closed with PQfinish, with notices of the server
 * dropped; -ENOMEM; -ENOTCONN with one line in `why`.
 */
int connect_open(const struct connect_options *options, struct pg_conn **ret,
                 struct buf *why) MUST_CHECK;

/**
 * What mends it, when a connection failed because the server, which was reached, did not let the role in or has no such
 * role or database; NULL: it is something else. Static. `sqlstate` may be "" (libpq tells none of a blocking connect);
 * then the server's text must be English. `message` is what libpq said.
 */
const char *connect_refusal_mend(const char *sqlstate, const char *message) MUST_CHECK;

/** Whether libpq can read a dsn: 0; -EINVAL with what it says of it in `why`, one line, without the pieces that it
 *  repeats where one may be of a password; -ENOMEM. A text without '=' that is no URI is a database's name. NULL is
 *  read from libpq's variables alone: 0. */
int connect_dsn_check(const char *dsn, struct buf *why) MUST_CHECK;

/** Whether a dsn holds a password (conninfo or URI). False for one that libpq cannot read. */
bool connect_dsn_has_password(const char *dsn);

/** Appends what libpq said as one line: "; " for line breaks, none at the end, "unknown error"
 * for nothing. Foreign bytes stay what they are: print with text_put_visible. */
void pg_put_message(struct buf *out, const char *message);

/** Appends the server's error with its detail and hint, or the connection's when there is no
 *  result; as one line. */
void pg_put_error(struct buf *out, const struct pg_conn *conn, const struct pg_result *result);

/** SQLSTATE and a NUL. */
#define PG_SQLSTATE_SIZE 6

/** SQLSTATE of a result; "" when it has none. `result` may be NULL. */
const char *pg_sqlstate(const struct pg_result *result);

/**
 * SQLSTATE out of the text that PQerrorMessage gives of a connection that failed, where libpq
 * keeps no result: needs PQsetErrorVerbosity(conn, PQERRORS_VERBOSE) between
 * PQconnectStartParams and the first PQconnectPoll ("FATAL:  57P03: …", the first word in any
 * language). False, and `out` is "", when there is none.
 */
bool pg_sqlstate_of_message(const char *message, char out[PG_SQLSTATE_SIZE]);

/*
 * Quoting, without a connection. Right for connections whose client_encoding is
 * UTF8 or SQL_ASCII, where no byte of a longer character looks like a quote; ours are.
 */

/** "name", inner quotes doubled. */
void sql_put_identifier(struct buf *out, const char *name);
/** 'text', inner quotes doubled; E'…' when it has a backslash, so that standard_conforming_strings
 * does not matter. */
void sql_put_literal(struct buf *out, const char *text);
/**
 * A SELECT that takes every time-out from the session that could cut what waits by its nature: set for
 * the role or the database with short statements in mind, or in the dsn's own options. With
 * `local` it is for the transaction alone: as a first statement of a query with several, which are one
 * transaction, it then leaves nothing behind in a session that turns out to be a pooler's.
 *
 * A statement, not the connection parameter `options`: that one may come from a service file, which
 * nobody but libpq reads and which ours would replace; a pooler refuses it; and a server ends at a name
 * that it does not know yet. idle_in_transaction_session_timeout is not among them: no transaction of
 * ours is ever left idle.
 */
void sql_put_patience(struct buf *out, int server_version, bool local);
/** A word of a shell command: as it is when it is harmless, else in single quotes. */
void shell_put_word(struct buf *out, const char *word);

#endif
