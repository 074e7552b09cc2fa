/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ACCOUNT_H
#define WALBUS_DAEMON_ACCOUNT_H

/*
 * What one user's sessions keep in memory of what is to be delivered to them. A live batch is in
 * memory once however many sessions wait to send it, so it is charged to a user once, by the first
 * of his sessions that holds it; the last one that lets go of it, wherever, gives the charge (a
 * hold) back. Thus an account says what would become free without its user, and a hundred
 * subscribers of one user that keep up cost him what one does.
 *
 *     session 1   outbox  [ b1 | b2 | b3 ]       holds: b1 by 1, b2 by 2, b3 by 2
 *     session 2   outbox       [ b2 | b3 ]       bytes: b1 + b2 + b3
 *
 * Live batches come in order and to all sessions in one go, so the hold that is looked for is the
 * newest. One that is found no more (a session that has just caught up) is charged again. Without
 * memory for a hold nothing is charged.
 *
 * Loop thread only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/macros.h"
#include "batch.h"

struct account;

/** Of a batch, by sessions of one user. */
struct account_hold {
    struct account *account; /* one reference */
    const struct batch *batch;
    unsigned n; /* outboxes */
};

/** All accounts of a router. */
struct accounts {
    struct account *first;
    size_t most;   /* bytes that one may have */
    size_t n_over; /* of those that have more */
};

struct account {
    struct accounts *all;
    struct account *prev, *next;
    uid_t uid;
    size_t refs;
    size_t bytes;
    struct account_hold *newest; /* NULL: it is gone */
};

/** From here on one may have so many bytes. */
void accounts_limit(struct accounts *all, size_t most);

/** All that was charged must be back. */
void accounts_deinit(struct accounts *all);

/** The account of a user, with one more reference. NULL: no memory. */
struct account *account_of(struct accounts *all, uid_t uid) MUST_CHECK;
/** Takes NULL, who is not counted; so do all below. */
struct account *account_ref(struct account *a);
/** Returns NULL. With the last one it goes; nothing is charged to it then. */
struct account *account_unref(struct account *a);

/** Charges, until it is given back. */
void account_charge(struct account *a, size_t bytes);
void account_give_back(struct account *a, size_t bytes);

/** The same for a batch that an outbox gets. NULL: nothing was charged. */
struct account_hold *account_hold(struct account *a, const struct batch *batch);
/** The outbox has let go of it; before the batch goes. Takes NULL. */
void account_let_go(struct account_hold *h);

/** Whether it would then have more than it may. */
static inline bool account_lacks(const struct account *a, size_t bytes)
{
    return a && (a->bytes > a->all->most || bytes > a->all->most - a->bytes);
}

#endif
