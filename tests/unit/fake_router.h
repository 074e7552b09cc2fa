/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_FAKE_ROUTER_H
#define WALBUS_TESTS_UNIT_FAKE_ROUTER_H

/*
 * The router's end of a connection, driven by the test from the same process: a
 * listening socket, one accepted connection, and the subscription that is tested.
 * Whatever does not happen as the test says fails it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "codec/control.h"
#include "codec/frame.h"
#include "walbus/walbus.h"

struct fake_router {
    char dir[32];
    char path[64];
    int listener;
    int connection;
    struct walbus_subscription *sub;
    struct buf frame;    /* the last one read, header and body */
    unsigned gone, back; /* how often the log said so */
    unsigned logged;     /* sentences in all */
    char sentence[1024]; /* the last of them */
    bool mumbled;        /* one was no sentence */
};

/** The place of a router that does not listen yet, and nothing else. */
void fake_init(struct fake_router *f);
/** A router that listens, and a subscription of the one pattern that has connected. */
void fake_open(struct fake_router *f, const char *pattern);
/** The same with options, but for the socket and the log. */
void fake_open_with(struct fake_router *f, struct walbus_subscription_options options);
/** The same, but nothing listens yet: the subscription waits for a router. */
void fake_open_absent(struct fake_router *f, const char *pattern);
void fake_close(struct fake_router *f);

void fake_listen(struct fake_router *f);
/** Closes and removes the listening socket. */
void fake_unlisten(struct fake_router *f);
/** Accepts the connection that the subscription has made or makes now. */
void fake_accept(struct fake_router *f);
/** Closes the accepted connection. */
void fake_hang_up(struct fake_router *f);

/** Reads one frame of this type, letting the subscription work meanwhile; its body until the next
 * read. */
struct bytes fake_read(struct fake_router *f, uint8_t type);
/** Whether the subscription has ended its direction. */
bool fake_at_end(struct fake_router *f);

/** Sends the buffer and empties it. */
void fake_send(struct fake_router *f, struct buf *b);

/** Frames, appended to `b`. */
void fake_put_welcome(struct buf *b, const char *identity);
void fake_put_subscribed(struct buf *b, struct position position, const char *identity);
/** The same of a durable name: its stored cursor, unless it is new. */
void fake_put_subscribed_durable(struct buf *b, struct position position, const char *identity,
                                 bool stored, struct position redelivered_to);
void fake_put_error(struct buf *b, const char *code, bool fatal);
void fake_put_begin(struct buf *b, uint64_t lsn);
void fake_put_commit(struct buf *b, uint64_t lsn);
void fake_put_message(struct buf *b, uint64_t lsn, uint32_t index, struct bytes content);
void fake_put_progress(struct buf *b, struct position position);
void fake_put_gap(struct buf *b, struct position from, struct position to, const char *reason);

/** Waits for the next delivery, of this kind. */
const struct walbus_delivery *fake_delivery(struct fake_router *f, enum walbus_delivery_kind kind);
/** There is none now. */
void fake_no_delivery(struct fake_router *f);
/** The subscription ends with this result, and with this code of the router's, and keeps to it. */
void fake_end(struct fake_router *f, enum walbus_result result, const char *code);

/** Accepts, answers HELLO with a WELCOME of this identity, and takes SUBSCRIBE, which must say what `want` says, filters
 *  aside. */
void fake_take_subscribe(struct fake_router *f, const char *identity,
                         const struct control_subscribe *want);
/** The same of an ephemeral subscription with this start. */
void fake_subscribe(struct fake_router *f, const char *identity, enum control_start start,
                    struct position start_position);
/** The same in the journal "7/1", answers SUBSCRIBE, and takes READY. */
void fake_greet(struct fake_router *f, enum control_start start, struct position start_position,
                struct position answer);

/** Fails unless it is this position. */
void fake_assert_position(struct walbus_position got, struct position want);

#endif
