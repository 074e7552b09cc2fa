/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_SLOT_WAIT_H
#define WALBUS_CLI_SLOT_WAIT_H

/*
 * Creating a logical slot waits for every transaction that had an xid when it
 * began, prepared ones included, and says nothing meanwhile. This one says after
 * a second whom it waits for, over a second connection, and again whenever that
 * changes.
 */

#include "base/macros.h"
#include "cli.h"

struct pg_conn;
struct pg_result;

/**
 * Runs `sql`, one statement that creates a slot, and waits. Whom it waits for is told on
 * stderr. SIGINT and SIGTERM cancel it in the server too. Returns the result, to be cleared by the
 * caller, or NULL (PQerrorMessage).
 */
struct pg_result *slot_wait_exec(struct cli *cli, const char *command, struct pg_conn *conn,
                                 const char *sql) MUST_CHECK;

#endif
