/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_SERVER_H
#define WALBUS_CLI_SERVER_H

/* What the subcommands that talk to the server share. */

#include <stddef.h>

#include "base/macros.h"
#include "cli.h"
#include "pg/precondition.h"

/**
 * Connects with the settings' dsn; warns on stderr of a password given on the command line.
 * CLI_OK and *ret, to be closed with PQfinish; else says why on stderr and returns CLI_UNREACHABLE;
 * CLI_USAGE when the dsn is not understood; CLI_FAILED when memory ran out.
 */
int cli_connect(struct cli *cli, const char *command, struct pg_conn **ret) MUST_CHECK;

/** A command that has no operands and does its work over one connection: refuses operands, connects,
 *  calls `work` with the command's `state`, closes. Returns the exit status, that of `work` if it
 *  came to it. */
int cli_run_connected(struct cli *cli, const char *command, void *state, int argc, char **argv,
                      int (*work)(struct cli *cli, void *state, struct pg_conn *conn));

/**
 * Reads the facts and evaluates the table for `askers`, as precondition_check() does. CLI_OK when all
 * is well, and no time-out of role or database cuts the session from then on; else says every finding
 * and its mend on stderr and returns CLI_FAILED (CLI_UNREACHABLE when the connection broke).
 */
int cli_check(struct cli *cli, const char *command, struct pg_conn *conn,
              unsigned askers, struct server_facts *ret_facts) MUST_CHECK;

/** Says "walbus COMMAND: FINDING" and the mend on a line of its own. */
void cli_report(const char *command, const char *finding, const char *mend);

/** Says what failed and the server's words; returns CLI_FAILED, or CLI_UNREACHABLE when the
 * connection broke. */
int cli_server_error(const char *command, const char *what, const struct pg_conn *conn,
                     const struct pg_result *result);

#endif
