/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLI_RESTRICT_H
#define WALBUS_CLI_RESTRICT_H

/*
 * Who may publish in a database: whoever may execute pg_logical_emit_message there, whatever the prefix. At first that
 * is everybody, by way of PUBLIC.
 */

#include <stddef.h>

#include "base/macros.h"
#include "cli.h"

struct pg_conn;

#define RESTRICT_ROLES_MAX 64

struct restrict_roles {
    const char *names[RESTRICT_ROLES_MAX]; /* borrowed */
    size_t n;
};

/** Adds a role to those that are to publish; one that is there already is left out. CLI_OK, or CLI_USAGE after saying
 *  why. */
int restrict_add(struct restrict_roles *roles, const char *name) MUST_CHECK;

/**
 * Takes EXECUTE on every variant of pg_logical_emit_message from PUBLIC and gives it to `roles` and to the role of who
 * reads the slot at this moment; all in one transaction, or nothing. Prints what was done, and who else has the right.
 * CLI_OK; else says why on stderr: a role that is not there, nobody at all to give it to, the server's error.
 */
int restrict_publishing(struct cli *cli, struct pg_conn *conn,
                        const struct restrict_roles *roles) MUST_CHECK;

#endif
