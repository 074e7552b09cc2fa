/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_QUOTA_H
#define WALBUS_DAEMON_QUOTA_H

/*
 * What one user may make the router hold: connections, subscriptions, bytes (connections-per-uid,
 * subscriptions-per-uid, bytes-per-uid). Root and the router's own user are not counted. Looked up when somebody asks
 * for more, which is seldom, so that nothing has to be kept in step. A part of the router; loop thread only.
 *
 * A subscription counts for the user who is connected with it. A durable name counts for the user who has made it,
 * whether somebody is connected with it or not, and whoever that is: it makes the router keep its messages.
 */

#include "router.h"

/** Whether the user of a session that is already in the list may have it. */
bool quota_has_connection(const struct router *r, const struct session *s);
/** Whether the user of a session, whose SUBSCRIBE waits for its answer, may have one more subscription. */
bool quota_has_subscription(const struct router *r, const struct session *s);
/** Whether the user of a session may make the router hold so many bytes more. */
bool quota_has_bytes(const struct router *r, const struct session *s, size_t bytes);

/**
 * The setting, which may have changed, holds for what waits to be delivered too, with an account of
 * its own (account.h): a client that reads slowly is not refused an answer for it. Nobody is
 * refused for that: sessions let go, and read on from the journal. Whatever the setting, others
 * have their share of what there is for all.
 */
void quota_limit_accounts(struct router *r);
/** What waits for the session is charged to its user from here on. False: no memory. */
bool quota_open_account(struct router *r, struct session *s);

#endif
