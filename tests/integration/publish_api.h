/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_INTEGRATION_PUBLISH_API_H
#define WALBUS_TESTS_INTEGRATION_PUBLISH_API_H

/* What the parts of publish_api share. Nothing of lib/ is used: the program is a user's. */

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "walbus/walbus.h"

/* ---- checks (publish_api_checks.c) ---- */

/** Prints the check's line and counts it when it failed; returns `ok`. */
__attribute__((format(printf, 2, 3))) bool check(bool ok, const char *fmt, ...);
/** A check that the library's result is `want`. */
void expect(const struct walbus_publisher *p, enum walbus_result got, enum walbus_result want,
            const char *what);
/** Ends the program: nothing further can be checked. */
__attribute__((noreturn)) void die(const char *what, const char *why);
/** Says what came of all checks; the exit status. */
int result_of_all(void);

/* These die where they fail. */
PGconn *open_connection(const char *dsn);
void run(PGconn *conn, const char *sql);
struct walbus_publisher *new_publisher(size_t max_content, size_t max_prefix);
struct walbus_event new_event(const char *prefix);

/* For pipeline mode and for commands that were only sent. */
void send_query(PGconn *conn, const char *sql);
/** Reads a statement's result and the NULL behind it. */
PGresult *next_result(PGconn *conn);
void read_sync(PGconn *conn);

/* An 'M' of pgoutput: type, flags, LSN, prefix with its NUL, length, content. */
struct message {
    bool transactional;
    uint64_t lsn;
    const char *prefix;
    const uint8_t *content;
    size_t size;
};

/** Everything published since the last call, at most `max`; the messages borrow from *ret. */
size_t read_back(PGconn *conn, struct message *messages, size_t max, PGresult **ret);
bool holds(const struct message *m, const char *text);
void expect_nothing(PGconn *reader, const char *what);

/* ---- what is published and comes back (publish_api_events.c) ---- */

enum { MANY = 1000 };

void test_one(struct walbus_publisher *p, PGconn *conn, PGconn *reader);
void test_rollback(struct walbus_publisher *p, PGconn *conn, PGconn *reader);
void test_many(struct walbus_publisher *p, PGconn *conn, PGconn *reader, unsigned flags);
void test_raw(struct walbus_publisher *p, PGconn *conn, PGconn *reader);
/** Sessions that a statement of ours must not care about. */
void test_odd_sessions(struct walbus_publisher *p, PGconn *conn, PGconn *reader);

/* ---- pipeline mode (publish_api_pipeline.c) ---- */

void test_pipeline(struct walbus_publisher *p, PGconn *conn, PGconn *reader);

/* ---- refusals (publish_api_refusals.c) ---- */

void test_arguments(struct walbus_publisher *p, PGconn *conn);
void test_prefixes(struct walbus_publisher *p, PGconn *conn);
void test_bad_events(struct walbus_publisher *p, PGconn *conn);
void test_sizes(struct walbus_publisher *p, PGconn *conn);
/** max_prefix: below the default, above it, and no further than 1 MiB. */
void test_prefix_limit(PGconn *conn);
/** What the server refuses; each inside a transaction that is rolled back, functions and roles
 *  included. */
void test_server_errors(struct walbus_publisher *p, PGconn *conn);
void test_connection_states(struct walbus_publisher *p, PGconn *conn, const char *dsn);

/* ---- through a pooler (publish_api_pooled.c) ---- */

void test_pooler(const char *pooler, const char *server);

#endif
