/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_SUBSCRIPTION_H
#define WALBUS_CLIENT_SUBSCRIPTION_H

/* What subscription.c (options, connecting, sending, the loop's interface), subscription_receive.c (what each
 * frame of the router means) and subscription_trust.c (whose signatures are believed) share. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "client/connection.h"
#include "client/delivery.h"
#include "client/sequence.h"
#include "codec/control.h"
#include "codec/position.h"
#include "codec/subject.h"
#include "keys/trust_file.h"
#include "walbus/subscribe.h"

/*
 *   WAITING ◄──────────── the connection ended, or an ERROR that passes ─────────┐
 *      │ connected                                                               │
 *      ▼                                                                         │
 *   GREETING ──WELCOME──► SUBSCRIBING ──SUBSCRIBED──► READY ─────────────────────┤
 *                              a refusal, another journal, a breach of protocol ─┴─► ENDED
 *
 * WAITING waits for the back-off, GREETING and SUBSCRIBING for the router's answer (SUBSCRIBED may
 * take as long as the router needs to reach its server), READY for frames, ENDED for
 * walbus_subscription_close().
 */
enum state { STATE_WAITING, STATE_GREETING, STATE_SUBSCRIBING, STATE_READY, STATE_ENDED };

/** Longest sentence that is kept, with its NUL: what the router says is of half that size. */
#define SUBSCRIPTION_WHY_SIZE 512
/** Longest code of an ERROR, with its NUL. The words of CONTROL_ERROR_… are of half that size. */
#define SUBSCRIPTION_CODE_SIZE 32

/*
 * The places of a subscriber that keeps its position (WALBUS_KEEPS_POSITION), when it connects again:
 *
 *   router   … 50 ──────────────── 60 ─────────────── 99 ── 100 …
 *            settled               sequence.last      delivered
 *
 * 51 to 99 were delivered, and the caller has them in a transaction that is not committed. The override moves the router's
 * cursor, and what is before a cursor may be dropped: so it says `settled`, the place up to which the caller has
 * acknowledged, or the one in front of the first delivery that it has not. If the transaction then fails the router still
 * has 51 to 99. If it does not, the caller must not get them twice: until the connection has come to `delivered` what
 * comes is checked, and not handed on.
 */

/** Where a SUBSCRIBE begins. CONTROL_START_POSITION: behind subscription_resumes(). */
struct subscription_start {
    enum control_start start;
    bool override;
};

struct walbus_subscription {
    enum state state;
    struct connection connection;
    char *socket; /* as given; NULL: the usual place, looked up at every attempt */
    char *client;
    char *name; /* of the durable subscription; NULL: ephemeral */
    struct filter *filters, *exclusions; /* of filters_copy() */
    size_t n_filters, n_exclusions;
    void (*log)(void *context, const char *sentence);
    void *context;

    uint64_t wake_ns;   /* WAITING: when to connect */
    uint64_t ready_ns;  /* READY: since when */
    unsigned attempts;  /* connects since one that lasted */
    bool more;          /* the last process gave something: there may be more without a wait */
    bool paused;        /* the last process passed over so much that its caller was to have a turn: likewise */
    bool stopping;      /* the router said so and reads last acknowledgements */
    bool stopping_seen; /* and the caller has had its turn since */
    bool told_gone;     /* the caller was told that the router is away */

    /* The place. `sequence.last` is what this connection has come to: the last delivery's position, unless what comes
     * was delivered before; before the first READY the position of the options. */
    struct sequence sequence;
    struct subscription_start start;   /* where the next connection goes on, in the same journal */
    struct subscription_start asked;   /* what this connection's SUBSCRIBE says … */
    struct position asked_position;    /* … with this position */
    bool asked_other;                  /* of another journal than the place belongs to */
    int64_t time;                      /* CONTROL_START_TIME */
    bool keeps_position;               /* under a name too it goes on behind the last delivery */
    bool take_over;                    /* WALBUS_TAKE_OVER, until READY */
    bool waits;                        /* WALBUS_WAIT_FOR_ROUTER */
    bool was_ready;                    /* READY has come once */
    bool moved;                        /* the name was: what was delivered is nothing to acknowledge by */
    bool told_held;                    /* the caller was told that the name is waited for */
    bool knows_identity;               /* the router's is to be compared with this one */
    char identity[IDENTITY_TEXT_SIZE]; /* the journal to which the place belongs; "": not known */
    struct position redelivered_to;

    /* What cannot be gone on behind becomes a GAP: `lost` until the next READY, then `gap_waits` until it is
     * delivered. */
    bool lost, gap_waits;
    struct frame_gap gap;
    char lost_why[SUBSCRIPTION_WHY_SIZE];
    struct buf reason; /* of the router's own GAP */

    /* Acknowledgements. One is sent when everything before it has been, and the router has sent what it is about on this
     * connection: a durable name may go on from before what was acknowledged. Both positions only rise, until they are
     * forgotten; zero: none yet. */
    struct position acked;     /* the highest that the caller gave, sent or queued */
    struct position delivered; /* durable: the highest that earlier connections delivered, and so may be given */
    struct position settled;   /* behind the first READY: acknowledged up to here, or nothing there to acknowledge */
    struct position owed;      /* the last delivery that asks for it: a MESSAGE, what stands for one, a COMMIT, a GAP */
    bool ack_queued, ack_confirm;
    bool ack_sending;        /* it is among what the connection still has to send */
    struct position confirm; /* the highest that the caller wanted confirmed */
    bool confirming;         /* ACKED of it or beyond is awaited */

    /* Signatures. */
    bool verifies;           /* `trust` is there */
    bool valid_only;         /* WALBUS_VALID_ONLY */
    struct trust_file trust;
    char *audience;
    struct buf scratch;      /* of verify_content() */
    uint64_t withheld;

    struct walbus_delivery delivery;

    enum walbus_result end; /* ENDED */
    char end_why[SUBSCRIPTION_WHY_SIZE];
    char end_code[SUBSCRIPTION_CODE_SIZE];
    const char *error, *error_code;  /* of the last call */
    char why[SUBSCRIPTION_WHY_SIZE]; /* what `error` borrows, unless it is `end_why` or static */
};

/** Reads the trust file, if there is one: WALBUS_OK, WALBUS_NO_MEMORY, WALBUS_BAD_TRUST (told to the
 *  options' log). Whatever it is, subscription_drop_trust() frees what was taken. */
enum walbus_result
subscription_take_trust(struct walbus_subscription *s,
                        const struct walbus_subscription_options *o) MUST_CHECK;
void subscription_drop_trust(struct walbus_subscription *s);

/** Verifies a message that is about to become the delivery, by what the trust file says now; without one
 *  does nothing. 0; -ENOMEM. */
int subscription_verify(struct walbus_subscription *s,
                        const struct frame_message *message) MUST_CHECK;

/** Tells the caller's log. */
void subscription_log(struct walbus_subscription *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/** Ends the connection and enters WAITING with the next delay. */
void subscription_reconnect(struct walbus_subscription *s);

/** Forgets all acknowledgements: what they say means nothing to this router, or any more. */
void subscription_forget_acks(struct walbus_subscription *s);

/** The last delivery's position, whichever connection it came on: what the caller goes on behind. */
struct position subscription_place(const struct walbus_subscription *s);

/** Behind which position the router is asked to go on. Never behind subscription_place(). */
struct position subscription_resumes(const struct walbus_subscription *s);

/** Moves `settled`, if all that was delivered is acknowledged. */
void subscription_settle(struct walbus_subscription *s);

/** Makes the frame SUBSCRIBE. */
void subscription_put_subscribe(const struct walbus_subscription *s,
                                struct subscription_start start, struct buf *frame);

/** Acts on one frame. 1: the delivery is made; 0: nothing to tell, and the connection may be gone, the state ENDED;
 *  -ENOMEM: nothing was done, the frame is to be put back. */
int subscription_on_frame(struct walbus_subscription *s, struct frame_header h,
                          const uint8_t *body) MUST_CHECK;

/** What came is no frame: ends the subscription, telling the router as far as its socket takes it. */
void subscription_breach(struct walbus_subscription *s, const char *code, const char *why);

#endif
