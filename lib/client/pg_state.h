/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_PG_STATE_H
#define WALBUS_CLIENT_PG_STATE_H

/* The caller's connection to the server: can it take a command now, and what did the server say to one. */

#include <stdbool.h>

#include "base/buf.h"
#include "base/macros.h"
#include "pg/connect.h"
#include "walbus/result.h"

struct pg_conn;
struct pg_result;

/** Before anything is sent. `in_transaction`: a transaction block must be open; `waits`: the call waits for the result,
 *  which cannot be in pipeline mode. */
enum walbus_result pg_state_check(const struct pg_conn *conn, bool in_transaction,
                                  bool waits) MUST_CHECK;

/** What a result that is not the one hoped for means: appends the server's words to `why`, and writes the SQLSTATE.
 *  `conn` is NULL where only the result is known; `result` is NULL when there is none. WALBUS_BAD_RESULT when it is no
 *  error at all. */
enum walbus_result pg_state_error(const struct pg_conn *conn, const struct pg_result *result,
                                  struct buf *why, char sqlstate[PG_SQLSTATE_SIZE]) MUST_CHECK;

#endif
