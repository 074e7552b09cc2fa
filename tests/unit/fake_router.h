/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_FAKE_ROUTER_H
#define WALBUS_TESTS_UNIT_FAKE_ROUTER_H

/*
 * The router's end of a connection, driven by the test from the same process: a
 * listening socket, one accepted connection, and the subscriber that is tested.
 * Whatever does not happen as the test says fails it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "client/subscriber.h"

struct fake_router {
    char dir[32];
    char path[64];
    int listener;
    int connection;
    struct subscriber *sub;
    struct buf frame;            /* the last one read, header and body */
    unsigned disconnected, lost; /* notices */
};

/** A router that listens, and a subscriber of the one pattern (NULL: none) that has connected. */
void fake_open(struct fake_router *f, const char *pattern);
/** The same, but nothing listens yet, and the subscriber was not started. */
void fake_open_absent(struct fake_router *f, const char *pattern);
void fake_close(struct fake_router *f);

void fake_listen(struct fake_router *f);
/** Closes and removes the listening socket. */
void fake_unlisten(struct fake_router *f);
/** Accepts the connection that the subscriber has made or makes now. */
void fake_accept(struct fake_router *f);
/** Closes the accepted connection. */
void fake_hang_up(struct fake_router *f);

/** Reads one frame of this type, letting the subscriber work meanwhile; its body until the next
 * read. */
struct bytes fake_read(struct fake_router *f, uint8_t type);
/** Whether the subscriber has ended its direction. */
bool fake_at_end(struct fake_router *f);

/** Sends the buffer and empties it. */
void fake_send(struct fake_router *f, struct buf *b);

/** Frames, appended to `b`. */
void fake_put_welcome(struct buf *b, const char *identity);
void fake_put_subscribed(struct buf *b, struct position position, const char *identity);
void fake_put_error(struct buf *b, const char *code, bool fatal);
void fake_put_begin(struct buf *b, uint64_t lsn);
void fake_put_commit(struct buf *b, uint64_t lsn);
void fake_put_message(struct buf *b, uint64_t lsn, uint32_t index, struct bytes content);
void fake_put_progress(struct buf *b, struct position position);

/** Waits for the next event, of this kind. */
struct subscriber_event fake_event(struct fake_router *f, enum subscriber_event_kind kind);
/** There is none now. */
void fake_no_event(struct fake_router *f);
/** The next event is a fatal error with this code that the subscriber itself has found. */
void fake_protocol_error(struct fake_router *f, const char *code);

/**
 * Accepts, answers HELLO with WELCOME, expects SUBSCRIBE with this start, answers it, and
 * takes SUBSCRIBER_READY.
 */
void fake_greet(struct fake_router *f, enum control_start start, struct position start_position,
                struct position answer);

#endif
