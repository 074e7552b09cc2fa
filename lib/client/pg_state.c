/* SPDX-License-Identifier: PostgreSQL */
#include "client/pg_state.h"

#include <libpq-fe.h>
#include <string.h>

enum walbus_result pg_state_check(const struct pg_conn *conn, bool in_transaction, bool waits)
{
    bool pipeline = PQpipelineStatus(conn) != PQ_PIPELINE_OFF;

    if (PQstatus(conn) != CONNECTION_OK)
        return WALBUS_NOT_CONNECTED;
    if (pipeline && waits)
        return WALBUS_PIPELINE;
    switch (PQtransactionStatus(conn)) {
    case PQTRANS_IDLE:
        return in_transaction ? WALBUS_NO_TRANSACTION : WALBUS_OK;
    case PQTRANS_ACTIVE:
        /* In pipeline mode this says only that something is under way, which is what it is for. */
        return pipeline ? WALBUS_OK : WALBUS_BUSY;
    case PQTRANS_INERROR:
        return WALBUS_FAILED_TRANSACTION;
    case PQTRANS_INTRANS:
        return WALBUS_OK;
    case PQTRANS_UNKNOWN:
        break;
    }
    return WALBUS_NOT_CONNECTED;
}

enum walbus_result pg_state_error(const struct pg_conn *conn, const struct pg_result *result,
                                  struct buf *why, char sqlstate[PG_SQLSTATE_SIZE])
{
    const char *severity =
        result ? PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED) : NULL;

    switch (result ? PQresultStatus(result) : PGRES_FATAL_ERROR) {
    case PGRES_PIPELINE_ABORTED:
        return WALBUS_FAILED_TRANSACTION;
    case PGRES_FATAL_ERROR:
        break;
    default:
        return WALBUS_BAD_RESULT;
    }
    pg_put_error(why, conn, result);
    (void)strncpy(sqlstate, pg_sqlstate(result), PG_SQLSTATE_SIZE - 1);

    bool fatal = severity && strcmp(severity, "ERROR") != 0;
    if (conn && PQstatus(conn) != CONNECTION_OK)
        fatal = true;
    if (fatal || (!conn && sqlstate[0] == '\0'))
        return WALBUS_CONNECTION_LOST;
    /* libpq's own failure on a connection that is well: it could not send, or not keep the answer. */
    if (sqlstate[0] == '\0')
        return result ? WALBUS_BAD_RESULT : WALBUS_NO_MEMORY;
    return strcmp(sqlstate, "25P02") == 0 ? WALBUS_FAILED_TRANSACTION : WALBUS_SERVER;
}
