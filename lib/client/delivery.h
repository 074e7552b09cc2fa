/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_DELIVERY_H
#define WALBUS_CLIENT_DELIVERY_H

/* What struct walbus_delivery is, and how it is made from a frame. Everything in it is borrowed from whoever made
 * it. The event in the content is parsed when it is first asked for. */

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "codec/event.h"
#include "codec/frame.h"
#include "codec/position.h"
#include "codec/verify.h"
#include "walbus/subscribe.h"

struct delivery_head {
    enum walbus_delivery_kind kind;
    unsigned flags;
    struct position position, from;
    uint64_t lsn, end_lsn;
    uint32_t xid;
    int64_t commit_time, received_time;
    uint64_t messages, bytes;
    const char *reason;
    struct bytes prefix, content;
    bool parsed;   /* `form` and `event` hold */
    bool verified; /* `verified` does */
};

struct walbus_delivery {
    struct delivery_head head; /* what is set anew for each; the rest is kilobytes */
    enum walbus_form form;
    struct event event; /* not of WALBUS_FORM_OPAQUE */
    struct verify_result verified;
};

/**
 * Verifies the content of a message that delivery_message() is about to make a delivery of, which
 * then has to get `true` for `verified`. 0; -ENOMEM.
 */
int delivery_verify(struct walbus_delivery *d, const struct frame_message *f,
                    const struct trust *trust, struct bytes audience,
                    struct buf *scratch) MUST_CHECK;

/** `stored`: it is the cursor that was stored under a durable name. */
void delivery_ready(struct walbus_delivery *d, struct position position, bool stored);
/** `behind`: where the subscriber stands, once it has the BEGIN. */
void delivery_begin(struct walbus_delivery *d, const struct frame_begin *f, struct position behind);
/** `verified`: delivery_verify() was asked; else it is known to nobody whose key it has. */
void delivery_message(struct walbus_delivery *d, const struct frame_message *f, bool redelivered,
                      bool verified);
void delivery_commit(struct walbus_delivery *d, const struct frame_commit *f);
void delivery_progress(struct walbus_delivery *d, struct position position);
/** `reason`: the frame's, with its NUL. */
void delivery_gap(struct walbus_delivery *d, const struct frame_gap *f, const char *reason);
void delivery_acked(struct walbus_delivery *d, struct position position);

#endif
