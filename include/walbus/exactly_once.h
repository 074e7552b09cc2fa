/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_EXACTLY_ONCE_H
#define WALBUS_EXACTLY_ONCE_H

/*
 * Each message takes effect once.
 *
 * A durable subscription delivers at least once: what was not acknowledged when
 * something broke comes again. A subscriber whose effects are rows in a PostgreSQL
 * database makes each message take effect exactly once by keeping the position of the last one
 * in that database, in the same transaction as its effects. Either both are there or
 * neither is, and the subscription begins behind the position that is there, whatever
 * the router has stored.
 *
 * It does not matter which database that is; it need not be the one that the
 * messages come from. What happens outside of it (a mail that is sent, a call of another service) is
 * not in the transaction, and happens at least once.
 *
 * The whole loop. It begins anew behind everything that went wrong, with what the
 * database says:
 *
 *     struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
 *     struct walbus_position_store *store;
 *     struct walbus_subscription *sub;
 *     const struct walbus_delivery *d;
 *     enum walbus_result result;
 *
 *     options.filters = …;
 *     options.start = WALBUS_START_OLDEST;          // counts the first time alone
 *     if (walbus_position_store_new("billing", &store) != WALBUS_OK ||
 *         walbus_position_store_create_table(store, conn) != WALBUS_OK)
 *         die(…);
 *     do {
 *         result = walbus_position_store_load(store, conn, &options);
 *         if (result == WALBUS_OK)
 *             result = walbus_subscription_open(&options, &sub);
 *         if (result != WALBUS_OK)
 *             die(…);
 *         while ((result = walbus_subscription_next(sub, -1, &d)) == WALBUS_OK) {
 *             enum walbus_delivery_kind kind = walbus_delivery_kind(d);
 *             struct walbus_position position = walbus_delivery_position(d);
 *
 *             if (kind != WALBUS_DELIVERY_MESSAGE && kind != WALBUS_DELIVERY_PROGRESS &&
 *                 kind != WALBUS_DELIVERY_GAP)
 *                 continue;
 *             int order = walbus_position_compare(position, walbus_position_store_position(store));
 *             if (kind == WALBUS_DELIVERY_GAP && order <= 0)
 *                 break;                            // the router has lost its place: see below
 *             if (order == 0)
 *                 continue;                         // a PROGRESS that brings nothing new
 *             bool ok = command(conn, "BEGIN");
 *             if (kind == WALBUS_DELIVERY_MESSAGE)
 *                 ok = ok && handle(conn, d);       // its effects, over this connection
 *             else if (kind == WALBUS_DELIVERY_GAP)
 *                 alarm(walbus_delivery_reason(d)); // messages may be missing
 *             if (ok)
 *                 result = walbus_position_store_save(store, conn, walbus_subscription_identity(sub), position);
 *             if (!ok || result != WALBUS_OK || !command(conn, "COMMIT")) {
 *                 (void)command(conn, "ROLLBACK");
 *                 break;
 *             }
 *             (void)walbus_subscription_ack(sub, position, 0);   // only what is committed
 *         }
 *         sub = walbus_subscription_close(sub);
 *         if (PQstatus(conn) != CONNECTION_OK)
 *             PQreset(conn);                        // also when nobody knows whether COMMIT came through: load knows
 *         sleep(1);                                 // a handler that fails now may well fail at once again
 *     } while (!ends(result));                      // WALBUS_CONFLICT, WALBUS_REFUSED, WALBUS_POSITION_LOST,
 *                                                   // WALBUS_BAD_ARGUMENT: none of these passes by itself
 *
 * WALBUS_POSITION_LOST is the end behind an accepted gap onto another server, or an older state of it: the stored position is
 * one of a journal that is no more. Its owner decides what that means for the effects, and then deletes the row: the next load
 * begins as if there had been none, with a new name's start or where the router has the name.
 *
 * command() has to look at what libpq gives it: PQresultStatus() is
 * PGRES_COMMAND_OK also for the COMMIT of a transaction that has failed, which the
 * server makes a ROLLBACK. PQcmdStatus() is "COMMIT" only when it was one.
 *
 * Many messages may share one transaction, which is faster: save the position of the
 * last of them, and acknowledge it behind COMMIT. A transaction of the publisher's is
 * handled whole when that is done at the delivery COMMIT. It may stay open over a READY: what
 * was delivered does not come twice, and the router keeps it until it is acknowledged. One
 * exception: a GAP right behind READY whose positions are not above the last delivery says that the router has lost its
 * place. Then ROLLBACK, close, and begin anew with load().
 *
 * PROGRESS is saved so that the position does not fall behind what the journal has while nothing matches;
 * once a minute is as good. One that did falls back on the router's word that nothing in between matched; where the router cannot
 * say so (the filters are others, or the name was removed meanwhile) a GAP is told, although nothing may be missing.
 *
 * The position is saved by comparing and setting: it is replaced only where the
 * previous one is still there. When two hold the name at once (one was thought dead and the name taken
 * over, but it is in the middle of its work) the first to commit wins, and the
 * other gets WALBUS_CONFLICT: it rolls back and ends. At the isolation levels REPEATABLE READ and SERIALIZABLE the server
 * may say the same by an error: WALBUS_SERVER, SQLSTATE 40001. What is read anew by walbus_position_store_load() decides.
 *
 * The table is found by the connection's search_path. No session state is used, so a
 * transaction pooler may stand between. PostgreSQL 14 or newer.
 */

#include "walbus/macros.h"
#include "walbus/position.h"
#include "walbus/result.h"
#include "walbus/subscribe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn; /* libpq's PGconn */

/**
 * The table, for migrations of your own; walbus_position_store_create_table() executes the same. Roles that
 * keep positions need SELECT, INSERT and UPDATE on it. One row a subscription; `updated` is for people.
 */
#define WALBUS_POSITION_TABLE                              \
    "CREATE TABLE IF NOT EXISTS walbus_position ("         \
    "subscription text PRIMARY KEY, "                      \
    "identity text NOT NULL, "                             \
    "timeline int8 NOT NULL, "                             \
    "lsn pg_lsn NOT NULL, "                                \
    "idx int8 NOT NULL, "                                  \
    "updated timestamptz NOT NULL DEFAULT now())"

/**
 * The position of one durable subscription as it is kept in a database, and what this process last saw of it. It holds no
 * connection. Any thread, one at a time.
 */
struct walbus_position_store;

/**
 * subscription  the durable name, as in the options of a subscription. Copied
 *
 * WALBUS_OK            *ret is to be freed
 * WALBUS_BAD_ARGUMENT  NULL, or a name that cannot be one
 * WALBUS_NO_MEMORY
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_position_store_new(const char *subscription, struct walbus_position_store **ret);

/** Frees it. Takes NULL. Returns NULL. */
WALBUS_PUBLIC struct walbus_position_store *
walbus_position_store_free(struct walbus_position_store *store);

/*
 * The three calls below wait for the server. Each may give
 *
 * WALBUS_BAD_ARGUMENT        NULL in place of store or connection
 * WALBUS_NOT_CONNECTED, WALBUS_BUSY, WALBUS_PIPELINE, WALBUS_FAILED_TRANSACTION
 *                            the connection cannot take a command now: nothing was sent
 * WALBUS_CONNECTION_LOST     it broke meanwhile
 * WALBUS_SERVER              the server reported an error: see walbus_position_store_error(), also for a table that is
 *                            missing (SQLSTATE 42P01) or is another one
 * WALBUS_BAD_RESULT          libpq gave something else than the command's result
 * WALBUS_NO_MEMORY
 */

/**
 * Makes the table WALBUS_POSITION_TABLE unless there is one of this name: by this call alone, never by another. Inside a
 * transaction block it is part of that.
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_position_store_create_table(struct walbus_position_store *store, struct pg_conn *conn);

/**
 * Reads the stored position, and keeps it as the one that the next save replaces. To be called before a subscription is
 * opened, and behind each rollback (also to a savepoint) and each COMMIT of which nobody knows whether it came
 * through: then a subscription is to be opened anew too.
 *
 * options  what a subscription needs to begin behind it is set there: `name` and the flag WALBUS_KEEPS_POSITION; and if
 *          a position is stored, `start`, `position`, `identity` and the flag WALBUS_OVERRIDE. If none is stored,
 *          `start` is left as it is: for a name that the router knows it does not count. The texts live as long as
 *          the store, up to its next call that is not const. NULL: not needed
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_position_store_load(struct walbus_position_store *store, struct pg_conn *conn,
                           struct walbus_subscription_options *options);

/**
 * Inside the caller's open transaction: replaces the stored position, if it is still the one that this store loaded or
 * saved last. Everything up to `position` must have been handled by transactions that are committed, or by this one.
 *
 * identity  walbus_subscription_identity() of the subscription that delivered it
 * position  of a delivery. Behind the last one of the same identity
 *
 * WALBUS_OK              stored when the transaction commits. Acknowledge the router only then
 * WALBUS_CONFLICT        it is another one: another holder of the name has saved, and is ahead. Roll back, and
 *                        do not go on
 * WALBUS_NO_TRANSACTION  the connection is not inside a transaction block: nothing was sent
 * WALBUS_BAD_ARGUMENT    also: no identity, or one that cannot be one, no position, one that is not behind the last, or
 *                        load was not called. Nothing was sent
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_position_store_save(struct walbus_position_store *store, struct pg_conn *conn,
                           const char *identity, struct walbus_position position);

/** The position that was loaded or saved last, not necessarily committed; all zero: none. NULL: all zero. */
WALBUS_PUBLIC struct walbus_position
walbus_position_store_position(const struct walbus_position_store *store);

/** The identity of the journal that it belongs to; "": none. Never NULL; valid until the next call that is not const. */
WALBUS_PUBLIC const char *walbus_position_store_identity(const struct walbus_position_store *store);

/** Why the last call failed: one line for people, the server's own words where there are any; "" when it did not. Valid
 *  until the next call that is not const; never NULL. */
WALBUS_PUBLIC const char *walbus_position_store_error(const struct walbus_position_store *store);

/** SQLSTATE of the server's error behind the last call, "" when there was none. As the error. */
WALBUS_PUBLIC const char *walbus_position_store_sqlstate(const struct walbus_position_store *store);

#ifdef __cplusplus
}
#endif

#endif
