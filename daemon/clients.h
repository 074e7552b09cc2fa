/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_CLIENTS_H
#define WALBUS_DAEMON_CLIENTS_H

/* The router's side of its sessions: what they ask for, and when they are answered. A part of the router; loop thread only. */

#include "router.h"

/** A client connected; takes the descriptor over. */
void clients_accept(struct router *r, int fd);
/** The router's tick: PROGRESS, and subscriptions that have waited long enough. */
void clients_tick(struct router *r);
/** What is known now is as much as will be known: answers every SUBSCRIBE that waits. */
void clients_answer(struct router *r);

/** Positions are about to mean something else: whoever has or waits for a subscription is let go, and subscribes anew. */
void clients_new_era(struct router *r);

/** Whether a client may make the router hold so many bytes more: NULL, or whose there are too many, for a sentence. */
const char *clients_lack_room(const struct router *r, const struct session *asking, size_t bytes);
/** How far the server's WAL is known to reach. */
struct position clients_farthest(const struct router *r);

/** Something of the durable subscriptions is on disk that was not. */
void clients_stored(struct router *r);
/** What was to be measured of the journal is. */
void clients_measured(struct router *r);

#endif
