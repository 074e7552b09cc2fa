/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_SUBSCRIBER_H
#define WALBUS_CLIENT_SUBSCRIBER_H

/*
 * A subscriber's connection to the router. It starts no thread, installs no
 * signal handler, never blocks, never exits, and speaks to people only through
 * the notice callback. One object belongs to one thread at a time.
 *
 * It fits any loop. The whole of one around poll():
 *
 *   subscriber_new(&options, &sub);
 *   subscriber_start(sub);
 *   for (;;) {
 *       while ((rc = subscriber_process(sub, &event)) > 0)
 *           handle(&event);                   // borrowed: valid until the next process
 *       if (rc < 0)
 *           break;
 *       subscriber_ack(sub, subscriber_position(sub), false);
 *       subscriber_flush(sub);
 *       pfd = {subscriber_fd(sub), subscriber_events(sub)};
 *       poll(&pfd, 1, subscriber_timeout(sub));
 *   }
 *   sub = subscriber_free(sub);
 *
 * When the router goes away the object connects again by itself, after 50 ms to
 * 2 s, and goes on behind the last position it yielded; descriptor, events and timeout
 * change with that, so ask for them before every wait. Nothing is missed then, unless the
 * router cannot serve that position any more: then it goes on from now and the notice
 * SUBSCRIBER_NOTICE_LOST says so.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"
#include "codec/control.h"
#include "codec/frame.h"
#include "codec/position.h"
#include "codec/subject.h"

struct subscriber;

enum subscriber_notice {
    SUBSCRIBER_NOTICE_DISCONNECTED, /* the connection ended; it will be made again */
    SUBSCRIBER_NOTICE_LOST,         /* messages may be missing from here on */
};

struct subscriber_options {
    const char *socket; /* path; copied */
    const char *client; /* name told to the router, for its listings; copied; NULL: none */
    /** What to receive, from now on. Copied. No filters: the connection carries requests only. */
    const struct filter *filters;
    size_t n_filters;
    const struct filter *exclusions;
    size_t n_exclusions;
    /** Called out of subscriber_process() with one sentence, valid during the call. May be NULL.
     *  Must not call back into the subscriber. */
    void (*notice)(void *context, enum subscriber_notice notice, const char *sentence);
    void *context;
};

enum subscriber_event_kind {
    SUBSCRIBER_READY, /* subscribed (without filters: welcomed); again after each reconnect */
    SUBSCRIBER_BEGIN,
    SUBSCRIBER_MESSAGE,
    SUBSCRIBER_COMMIT,
    SUBSCRIBER_PROGRESS,
    SUBSCRIBER_GAP,
    SUBSCRIBER_ACKED,
    SUBSCRIBER_REPLY,
    /** From the router, or found by this end in what the router sent (code "protocol", "version").
     *  After a fatal one the connection is closed; see subscriber_restart(). */
    SUBSCRIBER_ERROR,
};

/** One event; byte strings are borrowed until the next subscriber_process() or subscriber_free().
 */
struct subscriber_event {
    enum subscriber_event_kind kind;
    bool redelivered; /* MESSAGE: may have been seen before */
    union {
        struct control_subscribed ready; /* zeroed without filters */
        struct frame_begin begin;
        struct frame_message message;
        struct frame_commit commit;
        struct position progress;
        struct frame_gap gap;
        struct position acked;
        struct control_reply reply;
        struct control_error error;
    };
};

/** Makes the object; nothing is connected yet. 0; -ENOMEM; -EINVAL or -ENAMETOOLONG: the path. */
int subscriber_new(const struct subscriber_options *options, struct subscriber **ret) MUST_CHECK;

/** Closes and frees; what was not flushed is not sent. Takes NULL; returns NULL. */
struct subscriber *subscriber_free(struct subscriber *s);

/**
 * Tries the first connect at once. 0: connected, or the router's queue of connections is full.
 * A negative errno says why there is no router (-ENOENT, -ECONNREFUSED, -EACCES, …): a caller who
 * wants to wait for one just goes on, since the object then tries again by itself.
 */
int subscriber_start(struct subscriber *s) MUST_CHECK;

/** The descriptor to wait for, -1 while there is none. It is not the caller's. */
int subscriber_fd(const struct subscriber *s);

/** POLLIN and POLLOUT as they are wanted now; 0 without a descriptor. */
short subscriber_events(const struct subscriber *s);

/** Milliseconds after which subscriber_process() has something to do although the descriptor stays
 *  quiet: 0 at once, -1 never. Fit for poll(). */
int subscriber_timeout(const struct subscriber *s);

/**
 * One step: 1 and one event, call again; 0 when there is nothing more before descriptor or timeout
 * say so. Also sends what is queued. -ENOMEM; -ENOTCONN after a fatal error until
 * subscriber_restart(), and before subscriber_start(). It never blocks, and receives a bounded
 * amount.
 */
int subscriber_process(struct subscriber *s, struct subscriber_event *ret) MUST_CHECK;

/** Sends what is queued as far as the socket takes it. 0: all is sent, or there is no connection to
 *  send it on; 1: wait for POLLOUT; -ENOMEM. A broken connection is subscriber_process()'s to find.
 */
int subscriber_flush(struct subscriber *s);

/**
 * Acknowledges everything up to `position`; sent with the next flush, later ones
 * replacing it until then. confirm: an ACKED event follows. 0; -EINVAL when the position is beyond
 * the last one yielded. One that cannot be sent before the connection ends goes out on the next.
 */
int subscriber_ack(struct subscriber *s, struct position position, bool confirm);

/** The last position yielded, that is, what a caller who has handled every event may acknowledge.
 *  Zero before the first SUBSCRIBER_READY. */
struct position subscriber_position(const struct subscriber *s);

/** Most bytes of requests that wait to be sent. */
#define SUBSCRIBER_QUEUE_MAX ((size_t)2 * FRAME_CONTROL_MAX)

/**
 * Queues a request with one CBOR item or nothing as arguments; the answer is a REPLY or an ERROR
 * with *ret_id. 0; -ENOTCONN before SUBSCRIBER_READY; -ENOBUFS when too much waits already;
 * -ENOMEM. A request dies with its connection: ask again at the next SUBSCRIBER_READY.
 */
int subscriber_request(struct subscriber *s, const char *what, struct bytes args,
                       uint64_t *ret_id) MUST_CHECK;

/**
 * After a fatal SUBSCRIBER_ERROR: connects again after the usual delay, going on behind the last
 * position, or from now. At any other time it does nothing.
 */
void subscriber_restart(struct subscriber *s, bool from_now);

#endif
