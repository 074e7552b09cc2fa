/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_DELIVER_H
#define WALBUS_DAEMON_DELIVER_H

/* From a batch to the sessions that get it, or parts of it. A part of the router; loop thread only. */

#include "batch.h"
#include "router.h"

/** Takes the reference over. */
void deliver_batch(struct router *r, struct batch *batch);

/** The journal has written some of what was pending. */
void deliver_written(struct router *r);
/** The session has read all that is written, and is live: it gets what is not yet written. False: that would take too long,
 *  and it got nothing. */
bool deliver_pending(struct router *r, struct session *s);

/** As long as the sessions of a user make more be held than is one's, or all of them more than ROUTER_BYTES_MAX, those that
 *  wait longest for their socket let go. */
void deliver_check_held(struct router *r);

/** The session is gone. */
void deliver_forget(struct router *r, struct session *s);

#endif
