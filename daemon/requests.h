/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_REQUESTS_H
#define WALBUS_DAEMON_REQUESTS_H

/*
 * What clients may ask of the router over the socket (docs/protocol.md). Some answers take a while: how far the
 * durable subscriptions are behind is looked up in the journal, and what was changed is answered when it is
 * on disk. A client has one such request under way; another one is answered by what is known.
 * A part of the router; loop thread only.
 */

#include "codec/control.h"
#include "router.h"

/** A REQUEST came; `request` is borrowed. */
void requests_take(struct router *r, struct session *s, const struct control_request *request);
/** The lags are measured, or something is on disk that was not: answers who waits for it. */
void requests_measured(struct router *r);
void requests_stored(struct router *r);
/** The session is gone, or the router ends (NULL: all). */
void requests_forget(struct router *r, const struct session *s);

/** What may be asked; NULL-terminated. */
extern const char *const requests_names[];

#endif
