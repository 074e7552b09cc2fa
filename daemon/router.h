/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ROUTER_H
#define WALBUS_DAEMON_ROUTER_H

/*
 * The owner that wires all: source and sessions meet here and nowhere else. A
 * batch comes in from the source, goes out to the sessions by the route, and its
 * mark goes back to the source. Two routers can live in one process.
 *
 * Without a journal the mark follows what was handed to the sessions: a
 * subscriber that is not connected misses what passes meanwhile.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "listener.h"
#include "route.h"
#include "session.h"
#include "settings/settings.h"
#include "source.h"

/** Most connections at a time, as far as descriptors allow; the next one is told so and closed. */
#define ROUTER_SESSIONS_MAX 1000u
/** Of these so many are kept for the router's own user and root, who must always be able to look. */
#define ROUTER_SESSIONS_RESERVED 16u
/** Descriptors that are kept for the router itself: its connections, its loop, its files. */
#define ROUTER_DESCRIPTORS 32u
/** Most bytes of batches alive, all sessions together; room again at half. One message alone may be larger. */
#define ROUTER_BYTES_MAX (32u << 20)
/** A session whose socket took nothing for so long, in ms, while messages wait, is stalled: let go when its outbox is
 *  more than half full. A reader that waits for a processor, or collects garbage, must not look like that. */
#define ROUTER_STALL_MS 250u
/** The same for one that was behind when it last took something, with more than ROUTER_PRESSURE_BYTES to take, or for
 *  which a content over BATCH_LARGE waits. */
#define ROUTER_REST_MS 1000u
/** Who holds less than this holds nothing up when memory is short, and is not behind. */
#define ROUTER_PRESSURE_BYTES (1u << 20)
/** While an outbox is full its session must take this many bytes in each ROUTER_PRESSURE_MS, or is let go. */
#define ROUTER_PACE_BYTES (256u << 10)
#define ROUTER_PRESSURE_MS    500u
/** Most bytes of unfinished frames, answers and filters of all clients together; who needs more is refused. */
#define ROUTER_CLIENTS_MAX (24u << 20)
/** So much more is kept for the router's own user and root, who must always be able to look. */
#define ROUTER_CLIENTS_RESERVED (4u << 20)
/** Idle and filtered-out sessions are told how far they are this often, in ms. */
#define ROUTER_PROGRESS_MS 1000u
/** How long a SUBSCRIBE from a position beyond the known WAL may wait for a look-up, in ms. */
#define ROUTER_FACTS_MS 5000u
/** How long sessions may take to be written out at a clean stop, and clients to close, in ms. */
#define ROUTER_DRAIN_MS 1000u

enum router_phase {
    ROUTER_RUNNING,
    ROUTER_DRAINING, /* the source is stopped; waits for the outboxes to empty */
    ROUTER_LEAVING,  /* the clients were told; waits for them to close */
    ROUTER_ENDED,    /* handles are closed; waits for the loop to run out */
};

enum router_exit { ROUTER_EXIT_OK = 0, ROUTER_EXIT_FAILURE = 1, ROUTER_EXIT_USAGE = 2, ROUTER_EXIT_DECIDE = 4 };

struct router {
    uv_loop_t *loop;
    struct logger *log;
    const struct settings *settings;

    enum router_phase phase;
    int exit_code;
    struct listener listener;
    struct source source;
    struct batch_pool pool;
    struct route *route;

    struct session *sessions; /* list */
    size_t n_sessions, max_sessions;
    uint64_t next_session;
    struct session **inside;  /* entry by entry served sessions that were told a BEGIN */
    size_t n_inside, inside_cap;

    struct position newest;   /* of the last entry routed; at first where the slot stands */
    struct position progress; /* nothing at or below it is still to come */
    uint64_t messages;        /* routed since the start */
    uint64_t too_slow;        /* sessions closed for it */
    bool holding;             /* reading waits for a session that takes its messages (pressure.c) */
    uv_timer_t pressure;      /* looks at them meanwhile */
    unsigned looks;           /* until their pace is judged next */
    bool judging;             /* they are looked at just now: what that changes is seen afterwards */

    uv_timer_t tick;          /* PROGRESS */
    uv_timer_t drain;         /* looks whether the phase is over */
    bool hurry;               /* a signal came while it drained */
    uint64_t phase_ends;      /* uv_now() at which it is over in any case */
    uv_signal_t sigterm, sigint, sighup;
    char identity[IDENTITY_TEXT_SIZE]; /* journal identity, "" while unknown */
};

/** Opens the socket and starts the source. 0, or an exit code (enum router_exit) after logging why. */
int router_open(struct router *r, uv_loop_t *loop, const struct settings *settings,
                const char *socket_path, struct logger *log) MUST_CHECK;

/** Begins a clean stop; the loop runs out when it is done. Idempotent. */
void router_stop(struct router *r, int exit_code);

/** Frees what is left after the loop has run out. */
void router_deinit(struct router *r);

/** Looks whether outboxes are full, or have room again; after every batch and every write (pressure.c). */
void router_check_pressure(struct router *r);

/** Writes out what was queued in this turn. */
void router_flush(struct router *r);

/** Appends the answer to REQUEST "status": one CBOR map (status.c). */
void router_put_status(struct router *r, struct buf *out);

#endif
