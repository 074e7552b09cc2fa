/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SESSION_H
#define WALBUS_DAEMON_SESSION_H

/*
 * One connection of a client: handshake, at most one subscription, its place in
 * delivery order, its outbox. A session knows nothing of PostgreSQL, and of the
 * router only the callbacks below.
 *
 * Loop thread only. A session frees itself some turns after its socket was
 * closed; `closed` is the last that its owner hears of it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/macros.h"
#include "batch.h"
#include "codec/control.h"
#include "codec/frame.h"
#include "outbox.h"
#include "route.h"

struct session;

/** How the session calls its owner. All are called from the loop, never from within session_new. */
struct session_ops {
    /** HELLO was accepted: fill in identity, timeline and position of the WELCOME. Borrowed texts
     *  must live until the callback has returned. */
    void (*welcome)(void *owner, struct control_welcome *welcome);
    /** A SUBSCRIBE came. The owner answers by session_subscribed or session_error, now or later;
     *  until then the decoded frame stays in s->subscribe. */
    void (*subscribe)(void *owner, struct session *s);
    /** A REQUEST came; answer by session_reply or session_request_error before returning. `request`
     *  is borrowed. */
    void (*request)(void *owner, struct session *s, const struct control_request *request);
    /** Whether the session may hold `bytes` more of what clients make the router keep: unfinished
     *  frames, answers, filters. What it holds already says session_held(). */
    bool (*room)(void *owner, const struct session *s, size_t bytes);
    /** Something was written from the outbox. */
    void (*wrote)(void *owner);
    /** The session is gone: drop every pointer to it. Its member is still in the route: take it
     *  out. */
    void (*closed)(void *owner, struct session *s);
};

enum session_state {
    SESSION_GREETING, /* waits for HELLO */
    SESSION_READY,    /* waits for SUBSCRIBE or REQUEST */
    SESSION_WAITING,  /* waits for the owner's answer to its SUBSCRIBE */
    SESSION_ACTIVE,   /* is sent what matches */
    SESSION_LEAVING,  /* writes a last ERROR, then closes */
    SESSION_CLOSED,   /* waits for libuv to let go of its handles */
};

/** Silence allowed before HELLO, and behind it before a subscription, in ms. */
#define SESSION_HELLO_MS 10000u
#define SESSION_READY_MS 60000u
/** How long a last ERROR may wait for a client that does not read, in ms. */
#define SESSION_LEAVE_MS 60000u

/** Answers may wait for a client up to this many bytes before nothing more is read of it; one that
 *  has subscribed, of which acknowledgements must be read, is let go when it then still asks. */
#define SESSION_ANSWERS_MAX 65536u
/** Requests answered in one turn of the loop; an answer can cost much, and others wait. */
#define SESSION_REQUESTS_A_TURN 4u
/** Largest body of the first frame, which must be HELLO. */
#define SESSION_HELLO_MAX 4096u
/** What a filter, and each token of a pattern, is counted as beside its text: the route keeps a
 *  node for it. */
#define SESSION_FILTER_COST 160u

struct session {
    const struct session_ops *ops;
    void *owner;
    struct logger *log;
    struct session *prev, *next; /* the owner's list */

    enum session_state state;
    uint64_t id;
    pid_t pid; /* of the peer when it connected (SO_PEERCRED) */
    uid_t uid;

    int fd;
    uv_poll_t poll;
    uv_timer_t timer;
    int events;
    unsigned handles; /* that libuv still holds */

    uint8_t *in; /* frame bytes read and not yet handled: [0, in_size) */
    size_t in_size, in_cap;

    struct outbox outbox;
    unsigned requests; /* answered in this turn */
    bool must_flush;   /* something was queued in this turn */

    struct control_subscribe subscribe; /* while WAITING */
    uint8_t *subscribe_body;            /* its bytes */
    size_t filters_cost;                /* of the subscription, from SUBSCRIBE on */
    struct route_member member;
    bool subscribed; /* member is in the route */

    struct position told; /* the last position queued for it, PROGRESS included */
    struct position acked;
    bool acked_due;    /* ACKED of it was asked for and is not yet in the outbox */
    bool half_closed;  /* the client sends nothing more: it gets its answers, then it is closed */
    bool inside;       /* has been told the BEGIN of a transaction, not its end */
    bool lingers;      /* LEAVING: the client closes, so that its last ACK can still come */
    bool resume;       /* `told` lies inside a transaction: its BEGIN will be flagged resumed */
    uint64_t messages; /* MESSAGE frames queued */
    uint64_t written_before; /* outbox.written_data when its pace was last looked at */
    bool fell_short;         /* of its pace, in the window before */
    uint64_t took_at;        /* uv_now() when its socket last took data, or it subscribed */
    size_t behind;           /* bytes that waited then, behind what was being sent */
    uint64_t waiting_since;  /* uv_now() of its SUBSCRIBE */
};

/** Takes the connected descriptor over (closed on failure too). NULL without memory. */
struct session *session_new(uv_loop_t *loop, int fd, uint64_t id, const struct session_ops *ops,
                            void *owner, struct logger *log) MUST_CHECK;

/** Writes what the socket takes; closes the session when that fails or nothing is left to say. */
void session_flush(struct session *s);

/** Answers SUBSCRIBE: it is active from `position` on. */
void session_subscribed(struct session *s, const struct control_subscribed *subscribed);

void session_reply(struct session *s, const struct control_reply *reply);

/** Tells the client an error; a fatal one closes the connection behind it, dropping the data frames
 *  not yet begun. */
void session_error(struct session *s, const char *code, const char *text, bool fatal);
/** Tells the client how far the router is and why it ends, and reads on until the client has
 *  acknowledged and closed. */
void session_stop(struct session *s, struct position position, const char *code, const char *text);
/** The same as session_error, not fatal, as the answer to a request. */
void session_request_error(struct session *s, uint64_t id, const char *code, const char *text);

/** Queues the ACKED that is due, when the answers that wait leave room for it. For
 *  session_frames.c. */
void session_put_acked(struct session *s);

/** The one place that changes the state. For session_frames.c. */
void session_set(struct session *s, enum session_state state);

/** Whether it has asked for more than it has read: then nothing more of it is read, unless it is
 *  subscribed, when its acknowledgements are. */
bool session_is_choked(const struct session *s);

/** Bytes that it makes the router keep beside deliveries. */
size_t session_held(const struct session *s);

/** Closes at once, what is queued is lost. */
void session_close(struct session *s, const char *reason);

/* ---- delivery; all ignore a session that is not active, and what it was told before ---- */

/** The whole batch, for a session of everything that was told all before it. False: it does not
 *  apply, deliver entry by entry. */
bool session_send_batch(struct session *s, struct batch *batch);

/** One MESSAGE entry. `begin` is the entry of its transaction's BEGIN in this batch, or NULL.
 *  True when the session thereby came inside a transaction. */
bool session_send_message(struct session *s, struct batch *batch, const struct batch_entry *entry,
                          const struct batch_entry *begin);

/** A COMMIT entry, for a session that is inside or resumes. */
void session_send_commit(struct session *s, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin);

/** GAP: what lies behind what it was told, up to `to`, may be missing; how many is not known. An
 *  open transaction is swallowed: `to` is never inside one. */
void session_send_gap(struct session *s, struct batch_pool *pool, struct position to,
                      const char *reason);

/** A session that was told a BEGIN, or stands inside a transaction, whose rest will not come: a GAP
 *  takes its place. */
void session_interrupt(struct session *s, struct batch_pool *pool);

/** PROGRESS, when nothing is queued, it is not inside a transaction, and `position` is news. */
void session_send_progress(struct session *s, struct position position);

/** "greeting", "active", … for status and log. */
const char *session_state_name(enum session_state state);

#endif
