/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_ROUTER_H
#define WALBUS_DAEMON_ROUTER_H

/*
 * The owner that wires all: source and sessions meet here and nowhere else. A
 * batch comes in from the source, goes out to the sessions by the route, and its
 * mark goes back to the source. Two routers can live in one process.
 *
 * What comes in is kept in the journal (intake.c) and handed to the sessions
 * (deliver.c); what the sessions ask for is answered in clients.c.
 */

#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "checks.h"
#include "durable.h"
#include "journal/journal.h"
#include "listener.h"
#include "quarantine.h"
#include "refusals.h"
#include "retention.h"
#include "route.h"
#include "session.h"
#include "session_read.h"
#include "settings/settings.h"
#include "source.h"
#include "state.h"
#include "strangers.h"

/** Most connections at a time, as far as descriptors allow; the next one is told so and closed. */
#define ROUTER_SESSIONS_MAX 1000u
/** Of these so many are kept for the router's own user and root, who must always be able to look. */
#define ROUTER_SESSIONS_RESERVED 16u
/** Descriptors that are kept for the router itself: its connections, its loop, its files. */
#define ROUTER_DESCRIPTORS 32u
/** Of the descriptors that sessions leave, the part that segments of the journal may take before retention acts: what is left is for a
 *  transaction larger than the journal. */
#define ROUTER_SEGMENTS_PERCENT 75u
/** Most bytes of batches alive that the journal has written: of all that sessions wait to send. Who waits longest lets go; only a message
 *  that some session is just sending, and that cannot be read again, may be larger. */
#define ROUTER_BYTES_MAX (16u << 20)
/** Most of these, and of chunks read from the journal (SESSION_READS_BYTES), for one user: others have their share of
 *  either. */
#define ROUTER_ACCOUNT_MAX (8u << 20)
/** Most bytes of unfinished frames, answers and filters of all clients together; who needs more is refused. */
#define ROUTER_CLIENTS_MAX (24u << 20)
/** So much more is kept for the router's own user and root, who must always be able to look. */
#define ROUTER_CLIENTS_RESERVED (4u << 20)
/** Idle and filtered-out sessions are told how far they are this often, in ms. */
#define ROUTER_PROGRESS_MS 1000u
/** How long a SUBSCRIBE from a position beyond the known WAL may wait for a look-up, in ms. */
#define ROUTER_FACTS_MS 5000u
/** The source may not go on, and no subscriber is here: so long the router waits for one before it ends, in ms. */
#define ROUTER_GIVEN_UP_MS 3000u
/** How long sessions may take to be written out at a clean stop, and clients to close, in ms. */
#define ROUTER_DRAIN_MS 1000u

enum router_phase {
    ROUTER_RUNNING,
    ROUTER_DRAINING, /* the source is stopped; waits for the outboxes to empty */
    ROUTER_LEAVING,  /* the clients were told; waits for them to close */
    ROUTER_ENDED,    /* handles are closed; waits for the loop to run out */
};

enum router_exit { ROUTER_EXIT_OK = 0, ROUTER_EXIT_FAILURE = 1, ROUTER_EXIT_USAGE = 2, ROUTER_EXIT_DECIDE = 4 };

/** Where the settings come from, to read them again. All is borrowed. */
struct router_origin {
    const struct settings *without_file; /* defaults, environment and options */
    const char *file;                    /* NULL: none is read */
    bool file_was_there;
    const char *socket_variable;         /* that has named the socket's folder, where no setting names it; or NULL */
};

struct router {
    uv_loop_t *loop;
    struct logger *log;
    struct settings *settings; /* not owned; what is reloadable changes (reload.h) */
    struct router_origin origin;
    struct access *access;     /* who may do what */
    struct strangers strangers; /* whom nobody knows */
    struct refusals refusals;

    enum router_phase phase;
    int exit_code;
    struct listener listener;
    struct source source;
    struct batch_pool pool;
    struct route *route;

    struct state state;
    struct journal *journal;
    struct durables *durables;
    struct retention retention;
    int journal_error;          /* why it cannot be written now; 0: it can */
    struct batch *mark_waiting; /* a mark alone that waits to be written */
    uint64_t mark_written_at;   /* uv_now() of the last one */
    bool queue_full;            /* reading waits for the journal's queue */
    struct quarantine *quarantine;
    struct check_rules *rules;  /* until there are … */
    struct checks *checks;      /* … these: what stands between source and journal */
    struct quarantine_job *quarantine_jobs; /* what clients ask of it (quarantine_requests.c) */
    bool checks_full;           /* reading waits for them */
    uint32_t connection;        /* to the server: its number */
    bool unproven;              /* what came again is being compared: nothing new goes out before it is written */
    struct position expected_from;  /* for this connection's first batch; zero: that is told, or unknown */
    struct position unproven_first; /* the first new entries meanwhile; zero: none yet */
    uint64_t given_up_at;       /* uv_now() when the source gave up and the journal was served on; 0: not */

    struct session *sessions; /* list */
    size_t n_sessions, max_sessions;
    bool state_gone;     /* a part of the state folder was moved or removed */
    size_t max_segments; /* that retention keeps; 0: as many as the journal's size has room for */
    uint64_t next_session;
    struct session_reads reads;
    struct accounts accounts; /* of the users who are limited (quota.h) */
    struct request_waiting *waiting; /* answers that take a while (requests.c) */
    struct session **inside;  /* entry by entry served sessions that were told a BEGIN */
    size_t n_inside, inside_cap;

    struct position newest;   /* of the last entry routed; at first where the slot stands */
    struct position progress; /* nothing at or below it is still to come */
    uint64_t messages;        /* routed since the start */

    uv_timer_t tick;          /* PROGRESS */
    uv_timer_t drain;         /* looks whether the phase is over */
    bool hurry;               /* a signal came while it drained */
    uint64_t phase_ends;      /* uv_now() at which it is over in any case */
    uv_signal_t sigterm, sigint, sighup;
    char identity[IDENTITY_TEXT_SIZE]; /* journal identity, "" while unknown */
};

/** Opens the socket and starts the source. 0, or an exit code (enum router_exit) after logging why. */
int router_open(struct router *r, uv_loop_t *loop, struct settings *settings, struct router_origin origin,
                const char *socket_path, bool accept_gap, struct logger *log) MUST_CHECK;

/** Begins a clean stop; the loop runs out when it is done. Idempotent. */
void router_stop(struct router *r, int exit_code);

/** The last sessions, timers and the source go; the loop then runs out. */
void router_end(struct router *r);

/** Frees what is left after the loop has run out. */
void router_deinit(struct router *r);

/** Writes out what was queued in this turn. */
void router_flush(struct router *r);

/** Appends the answer to REQUEST "status": one CBOR map (status.c). */
void router_put_status(struct router *r, struct buf *out);
/** Appends the key "subscriptions" and the list of the durable ones. */
void router_put_subscriptions(struct router *r, struct buf *out);

#endif
