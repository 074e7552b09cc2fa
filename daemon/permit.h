/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_PERMIT_H
#define WALBUS_DAEMON_PERMIT_H

/*
 * Whether a client may do what it asks for, and the words for it if not: who it is, what it was, which rule would allow
 * it. Root and the router's own user may do all; of others access.h decides. A part of the router; loop thread only.
 */

#include "router.h"

#define PERMIT_WHY_SIZE 512

/** A client has come: one that nobody knows (strangers.h) is nobody from here on. */
void permit_meet(const struct router *r, struct session *s);
/** Of the router's own user, or root (SO_PEERCRED). */
bool permit_is_privileged(const struct session *s);

/** Whether anything at all is allowed to it. False with `why`. */
bool permit_entry(const struct router *r, const struct session *s, char why[PERMIT_WHY_SIZE]);
/** Whether it may have the subscription that it waits for or has, its durable name included. False with `why`. */
bool permit_subscription(const struct router *r, const struct session *s, char why[PERMIT_WHY_SIZE]);
/** Whether it may use a durable name. False with `why`. */
bool permit_name(const struct router *r, const struct session *s, struct bytes name, char why[PERMIT_WHY_SIZE]);
/** Whether it may make a request. False with `why`. */
bool permit_request(const struct router *r, const struct session *s, struct bytes what, char why[PERMIT_WHY_SIZE]);

/** "user alice (uid 1001)", or "uid 1001". */
void permit_put_who(const struct router *r, uid_t uid, struct buf *out);

/** Logs a refusal, and tells the client, as session_error(). */
void permit_refuse(struct router *r, struct session *s, const char *code, const char *text, bool fatal);
/** Logs a refusal, and tells the client, as session_request_error(). */
void permit_refuse_request(struct router *r, struct session *s, uint64_t id, const char *text);

/** The rules have changed: who may not have any more what it has is let go. */
void permit_check_all(struct router *r);

#endif
