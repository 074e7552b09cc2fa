/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SUBSCRIBE_H
#define WALBUS_DAEMON_SUBSCRIBE_H

/*
 * The router's answers to SUBSCRIBE, and what it does with acknowledgements. A SUBSCRIBE waits in its
 * session (state WAITING) and is looked at again whenever something happens that it may have waited
 * for; subscribe.c says what that is. A part of the router; loop thread only.
 */

#include "router.h"

/** Answers a SUBSCRIBE that can be answered now. `final`: how far the server's WAL reaches is known as well as it can be. */
void subscribe_answer(struct router *r, struct session *s, bool final);
/** Fills in `identity` as soon as subscriptions are answered: of the journal, where there was no server yet. */
void subscribe_learn_identity(struct router *r);
/** Of a durable name something is on disk that was not: whose SUBSCRIBE waited for that is answered. */
void subscribe_stored(struct router *r);
/** An ACK, as session_ops.acked. */
void subscribe_acked(struct router *r, struct session *s, bool confirm);
/** Once a second: who has acknowledged all that it was sent is where the router is. */
void subscribe_float(struct router *r, struct session *s);
/** The session is closed, or has no subscription any more: lets go of its name. */
void subscribe_release(struct router *r, struct session *s);

/** How far the server's WAL is known to reach. */
struct position subscribe_farthest(const struct router *r);
/** Behind which position "oldest" begins. */
struct position subscribe_oldest(const struct router *r);

#endif
