/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_SUBSCRIBER_PRIVATE_H
#define WALBUS_CLIENT_SUBSCRIBER_PRIVATE_H

/* What subscriber.c (connecting, sending, the loop's interface) and subscriber_receive.c (what each
 * frame of the router means) share. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "client/frame_reader.h"
#include "client/sequence.h"
#include "client/subscriber.h"

/*
 *   NEW ──start──► WAITING ◄─────────────── connection ended ──────────────┐
 *                     │ connected                                          │
 *                     ▼                                                    │
 *                 GREETING ──WELCOME──► SUBSCRIBING ──SUBSCRIBED──► READY ─┤
 *                     └──────WELCOME, no filters ────────────────────►─┘   │
 *                              fatal ERROR ──► FAILED ──restart────────────┘
 *
 * NEW waits for the caller, WAITING for the back-off, GREETING and SUBSCRIBING for
 * the router's answer (SUBSCRIBED may take as long as the router needs to reach its server),
 * READY for frames, FAILED for the caller.
 */
enum state {
    STATE_NEW,
    STATE_WAITING,
    STATE_GREETING,
    STATE_SUBSCRIBING,
    STATE_READY,
    STATE_FAILED
};

/** Longest sentence that is made here, with its NUL. */
#define SUBSCRIBER_WHY_SIZE 224

struct subscriber {
    enum state state;
    char *socket;
    char *client;
    struct filter *filters; /* both lists in one allocation, with their texts behind them */
    size_t n_filters;
    struct filter *exclusions;
    size_t n_exclusions;
    void (*notice)(void *context, enum subscriber_notice notice, const char *sentence);
    void *context;

    int fd;
    uint64_t wake_ns;   /* WAITING: when to connect */
    uint64_t ready_ns;  /* READY: since when */
    unsigned attempts;  /* connects since one that lasted */
    bool more;          /* the last process yielded: there may be another event without a wait */
    bool resuming;      /* SUBSCRIBING: asked for a position */
    bool unwritable;    /* nothing can be sent any more; what came before is still to be read */
    bool stopping;      /* the router said so and reads last acknowledgements */
    bool stopping_seen; /* and the caller has had its turn since */

    struct frame_reader in;
    struct buf out;
    size_t out_sent;
    uint64_t next_id;
    bool ack_queued, ack_confirm;
    struct position ack;

    struct sequence sequence; /* .last is where to go on; zero: from now */
    struct position redelivered_to;
    char identity[IDENTITY_TEXT_SIZE]; /* within which `sequence.last` means something */
    char why[SUBSCRIBER_WHY_SIZE];     /* what a SUBSCRIBER_ERROR made here borrows */
};

/** Calls the notice callback, if there is one. */
void subscriber_notify(struct subscriber *s, enum subscriber_notice notice, const char *sentence);

/** Drops everything that belongs to one connection: the socket and what is buffered either way. */
void subscriber_disconnect(struct subscriber *s);

/** Enters WAITING with the next delay. */
void subscriber_wait_for_retry(struct subscriber *s);

/** A fault in what the router sent, found by this end: tells the router as far as its socket takes
 *  it, enters FAILED and makes the event; 1. */
int subscriber_fail(struct subscriber *s, const char *code, const char *why,
                    struct subscriber_event *ret);

/** Acts on one frame. 1: *ret is an event; 0: nothing to tell. The connection may be gone. */
int subscriber_on_frame(struct subscriber *s, struct frame_header h, const uint8_t *body,
                        struct subscriber_event *ret) MUST_CHECK;

#endif
