/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_QUARANTINE_REQUESTS_H
#define WALBUS_DAEMON_QUARANTINE_REQUESTS_H

/*
 * REQUEST quarantine-list, -show, -drop and -release. Each waits for the disk, so a worker does it; a client has one
 * under way, one release is under way at all, and no drop beside it.
 *
 * A release publishes the message anew, once the journal has WITHHELD in its place: read and verified by the present
 * rules on a worker ─► emitted over the heartbeat's connection ─► committed ─► removed from quarantine, synced, on a
 * worker. Whatever fails leaves the entry; a router that dies between commit and removal leaves it too, and the
 * message has been published all the same. A part of the router; loop thread only.
 */

#include "codec/control.h"
#include "router.h"

/** Each is answered, now or later. */
void quarantine_requests_list(struct router *r, struct session *s, const struct control_request *request);
void quarantine_requests_show(struct router *r, struct session *s, const struct control_request *request);
void quarantine_requests_drop(struct router *r, struct session *s, const struct control_request *request);
void quarantine_requests_release(struct router *r, struct session *s, const struct control_request *request);

#endif
