/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_SESSION_H
#define WALBUS_DAEMON_SESSION_H

/*
 * One connection of a client: handshake, at most one subscription, its place in
 * delivery order, its outbox. A session knows nothing of PostgreSQL, and of the
 * router only the callbacks below. It is live, and gets what session_send_… gives it, or
 * behind, and reads from the journal (session_read.c).
 *
 * Loop thread only. A session frees itself some turns after its socket was
 * closed; `closed` is the last that its owner hears of it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "account.h"
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
    /** A SUBSCRIBE came. The owner answers by session_subscribed or session_error, now or later; until
     *  then the decoded frame stays in s->subscribe. */
    void (*subscribe)(void *owner, struct session *s);
    /** A REQUEST came; answer by session_reply or session_request_error before returning. `request` is borrowed. */
    void (*request)(void *owner, struct session *s, const struct control_request *request);
    /** Whether the session may hold `bytes` more of what clients make the router keep: unfinished frames, answers,
     *  filters. What it holds already says session_held(). NULL, or whose are too many, for a sentence. */
    const char *(*room)(void *owner, const struct session *s, size_t bytes);
    /** An ACK moved s->acked, or asks (`confirm`) for a word when it is on disk: answer by session_confirm, now or later. */
    void (*acked)(void *owner, struct session *s, bool confirm);
    /** It has read all that the journal has written, and is live from here on: deliver what is not yet written, now. False:
     *  not now, and nothing was delivered; it asks again when session_wake() says that there is more. */
    bool (*caught_up)(void *owner, struct session *s);
    /** The journal was read for it up to `told`. `why` NULL: and may be read on; else it cannot be, and this sentence says why: it is
     *  let go when this returns. False: that has been said already, of the durable name that it holds. */
    bool (*was_read)(void *owner, struct session *s, struct position told, const char *why);
    /** It is told a fatal error: log it. NULL: the session does. */
    void (*failed)(void *owner, const struct session *s, const char *code, const char *text);
    /** The session is gone: drop every pointer to it. Its member is still in the route: take it out. */
    void (*closed)(void *owner, struct session *s);
};

enum session_state {
    SESSION_GREETING,   /* waits for HELLO */
    SESSION_READY,      /* waits for SUBSCRIBE or REQUEST */
    SESSION_WAITING,    /* waits for the owner's answer to its SUBSCRIBE */
    SESSION_ACTIVE,     /* is sent what matches */
    SESSION_LEAVING,    /* writes a last ERROR, then closes */
    SESSION_CLOSED,     /* waits for libuv to let go of its handles */
};

/** Silence allowed before HELLO, and behind it before a subscription, in ms. */
#define SESSION_HELLO_MS 10000u
#define SESSION_READY_MS 60000u
/** How long a last ERROR may wait for a client that does not read, in ms. */
#define SESSION_LEAVE_MS 60000u

/** Answers may wait for a client up to this many bytes before nothing more is read of it; one that has subscribed, of
 *  which acknowledgements must be read, is let go when it then still asks. */
#define SESSION_ANSWERS_MAX 65536u
/** Requests answered in one turn of the loop; an answer can cost much, and others wait meanwhile. */
#define SESSION_REQUESTS_A_TURN 4u
/** Largest body of the first frame, which must be HELLO. */
#define SESSION_HELLO_MAX 4096u
/** What a filter, and each token of a pattern, is counted as beside its text: the route keeps a node for it. */
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
    gid_t gid;

    int fd;
    uv_poll_t poll;
    uv_timer_t timer;
    int events;
    unsigned handles; /* that libuv still holds */

    uint8_t *in; /* frame bytes read and not yet handled: [0, in_size) */
    size_t in_size, in_cap;

    struct outbox outbox;
    struct account *account;     /* of its user, one reference; NULL: it is not counted */
    struct session_reads *reads; /* NULL: it has no journal, and is always live */
    struct session_read *read;   /* NULL: it is live */
    size_t chunk;       /* most bytes that are read for it at once */
    bool blocked;       /* it has let go of what waited: nothing is read before its socket takes something */
    bool waits_for_end; /* in the owner's list of those that stand inside a transaction */
    unsigned replies_due; /* of requests whose answers take a while, … */
    size_t replies_room;  /* … and the bytes that are kept for them */
    unsigned requests;  /* answered in this turn */
    bool must_flush; /* something was queued in this turn */

    struct control_subscribe subscribe; /* while WAITING */
    uint8_t *subscribe_body;            /* its bytes */
    size_t filters_cost;                /* of the subscription, from SUBSCRIBE on */
    struct route_member member;
    bool subscribed;                    /* member is in the route */
    struct durable *durable;            /* whose holder it is; NULL: ephemeral */
    bool old_era;                       /* the owner's: its WELCOME told a journal that is no more */
    bool looks_up, stored;              /* the owner's: it looks something up for the SUBSCRIBE; the name's cursor is used */

    struct position told;   /* the last position queued for it, PROGRESS included, or passed over … */
    bool passed_over;       /* … by reading what does not match: then the last one queued is … */
    struct position said;   /* … this */
    struct position sent;   /* LEAVING, CLOSED: session_sent() when it became that; before that zero */
    struct position acked;
    bool owes;              /* it was queued something since it acknowledged all that it was told */
    bool was_live;          /* CLOSED: it was live before, or when the router stopped */
    struct position confirmed; /* what it acknowledged, up to here, is safe */
    bool acked_due;         /* ACKED of that is to be put into the outbox */
    bool half_closed;       /* the client sends nothing more: it gets its answers, then it is closed */
    bool inside;            /* has been told the BEGIN of a transaction, not its end */
    bool lingers;           /* LEAVING: the client closes, so that its last ACK can still come */
    bool resume;            /* `told` lies inside a transaction: its BEGIN will be flagged resumed */
    uint64_t messages;      /* MESSAGE frames queued */
    uint64_t written_before;/* outbox.written_data when somebody last looked */
    uint64_t took_at;       /* uv_now() when its socket last took a byte of a data frame, or it subscribed */
    uint64_t waiting_since; /* uv_now() of its SUBSCRIBE */
};

/** Takes the connected descriptor over (closed on failure too). `reads` NULL: without a journal. NULL without memory. */
struct session *session_new(uv_loop_t *loop, int fd, uint64_t id, const struct session_ops *ops,
                            void *owner, struct session_reads *reads, struct logger *log) MUST_CHECK;

/** What it is to be sent is charged to the account, whose reference it takes over. Once, before anything was queued. */
void session_charge_to(struct session *s, struct account *account);

/** Writes what the socket takes; closes the session when that fails or nothing more is to be said. */
void session_flush(struct session *s);

/** Answers SUBSCRIBE: it is active from `position` on, reading from the journal what is already there. */
void session_subscribed(struct session *s, const struct control_subscribed *subscribed);

/** What was acknowledged up to `position` is on disk: queues the ACKED. */
void session_confirm(struct session *s, struct position position);

void session_reply(struct session *s, const struct control_reply *reply);

/** Tells the client an error; a fatal one closes the connection behind it, dropping the data frames not yet begun. */
void session_error(struct session *s, const char *code, const char *text, bool fatal);
/** The same, for what its owner logs himself. */
void session_refuse(struct session *s, const char *code, const char *text, bool fatal);
/** Tells the client how far the router is and why it ends, and reads on until the client has
 *  acknowledged and closed. */
void session_stop(struct session *s, struct position position, const char *code, const char *text);
/** The same as session_error, not fatal, as the answer to a request. */
void session_request_error(struct session *s, uint64_t id, const char *code, const char *text);

/** Queues the ACKED that is due, when the answers that wait leave room for it. For session_frames.c. */
void session_put_acked(struct session *s);

/** The one place that changes the state. For session_frames.c. */
void session_set(struct session *s, enum session_state state);

/** Whether it has asked for more than it has read: then nothing more of it is read, unless it is subscribed, when
 *  its acknowledgements are. */
bool session_is_choked(const struct session *s);

/** Bytes that it makes the router keep beside deliveries. */
size_t session_held(const struct session *s);

/** Closes at once, what is queued is lost. */
void session_close(struct session *s, const char *reason);

/** From here on it waits for its socket. */
void session_block(struct session *s);

/* ---- delivery; all but the gap ignore a session that is not live, and all what it was told before ---- */

/** Active, and not reading from the journal. */
bool session_is_live(const struct session *s);

/** The whole batch, for a session of everything that was told all before it. False: it does not apply, deliver entry by entry. */
bool session_send_batch(struct session *s, struct batch *batch);

/** One MESSAGE entry. `begin` is the entry of its transaction's BEGIN in this batch, or NULL.
 *  True when the session thereby came inside a transaction. */
bool session_send_message(struct session *s, struct batch *batch, const struct batch_entry *entry,
                          const struct batch_entry *begin);

/** A COMMIT entry, for a session that is inside or resumes. */
void session_send_commit(struct session *s, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin);

/** A GAP entry: for everybody. */
void session_send_gap_entry(struct session *s, struct batch *batch, const struct batch_entry *entry);

/** No message that it is to be sent lies up to `to`, which is about to leave the journal: it stands there, unless that is behind
 *  the transaction inside which it is. */
void session_pass(struct session *s, struct position to);

/** GAP: what lies behind what it was told, up to `to`, may be missing; how much is known or UINT64_MAX. An open transaction is
 *  swallowed: `to` is never inside one. */
void session_send_gap(struct session *s, struct batch_pool *pool, struct position to, uint64_t messages, uint64_t bytes,
                      const char *reason);

/** Whether all that the journal has for it was written to its socket. */
bool session_is_at_end(const struct session *s);

/** PROGRESS, when it is live, nothing is queued, it is not inside a transaction, and `position` is news. */
void session_send_progress(struct session *s, struct position position);

/* ---- for session_read.c ---- */

/** Before something is queued: tells the outbox where the session stands, as long as that is not known by what was written. */
void session_note_place(struct session *s);
/** Whether it was queued (0), and else tells the client that there is no memory. */
bool session_queued(struct session *s, int r);
/** Queues the frame, and nothing else. */
void session_put_gap(struct session *s, struct batch_pool *pool, const struct frame_gap *gap);

/** "greeting", "active", … for status and log. */
const char *session_state_name(enum session_state state);

#endif
