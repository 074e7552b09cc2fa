/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_SUBSCRIBE_H
#define WALBUS_SUBSCRIBE_H

/*
 * Subscribing to messages.
 *
 * A subscription is one connection to the router: filters, and a place in the
 * order of delivery. What arrives is a delivery: a message, the begin or the end
 * of a transaction, progress, or a gap. The whole of a program that follows:
 *
 *     struct walbus_filter filter = {WALBUS_FILTER_PATTERN, "orders.>", 8};
 *     struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
 *     options.filters = &filter;
 *     options.n_filters = 1;
 *
 *     struct walbus_subscription *sub;
 *     const struct walbus_delivery *d;
 *     enum walbus_result result = walbus_subscription_open(&options, &sub);
 *     while (result == WALBUS_OK && (result = walbus_subscription_next(sub, -1, &d)) == WALBUS_OK) {
 *         const void *content;
 *         size_t size;
 *         switch (walbus_delivery_kind(d)) {
 *         case WALBUS_DELIVERY_MESSAGE:
 *             content = walbus_delivery_content(d, &size); // on a line of its own: it sets size
 *             handle(content, size);
 *             break;
 *         case WALBUS_DELIVERY_GAP:
 *             alarm(walbus_delivery_reason(d));      // messages may be missing
 *             break;
 *         default:                                   // READY, BEGIN, COMMIT, PROGRESS, later kinds
 *             break;
 *         }
 *         (void)walbus_subscription_ack(sub, walbus_delivery_position(d), 0);
 *     }
 *
 * In a loop of your own wait for a descriptor and a time instead; both change
 * with every call, so ask for them before every wait:
 *
 *     for (;;) {
 *         while ((result = walbus_subscription_process(sub, &d)) == WALBUS_OK && d)
 *             handle(d);                             // borrowed: valid until the next call of process or next
 *         if (result != WALBUS_OK)
 *             break;                                 // walbus_subscription_error(sub) says why
 *         struct pollfd fd = {walbus_subscription_fd(sub), walbus_subscription_events(sub), 0};
 *         poll(&fd, 1, walbus_subscription_timeout(sub));
 *     }
 *
 * When the router goes away, or closes the connection for a reason that passes,
 * the subscription connects again by itself, after 50 ms to 2 s, and goes on:
 *
 *   ephemeral (without a name)      behind the last delivery: nothing comes twice
 *   durable (options.name)          behind the cursor that the router has stored under the name: what
 *                                   was delivered and is not acknowledged there comes again, flagged
 *                                   WALBUS_DELIVERY_REDELIVERED
 *   durable, WALBUS_KEEPS_POSITION  behind the last delivery, since it keeps its position itself: nothing comes twice, and
 *                                   what is not acknowledged stays in the router's journal all the same
 *
 * What was published meanwhile comes out of the router's journal. What its retention has dropped
 * is told as a GAP, never passed over in silence. When the router has another journal by then (another server behind
 * it, an accepted gap), what was delivered means nothing in it: a GAP says so, and the subscription goes on
 * from the oldest that the new journal has, or from where the router has put the durable name in it.
 *
 * A durable subscription is a name that the router keeps, with filters and a cursor, also while nobody
 * uses it. One connection holds it at a time. The loop above is right for it too: acknowledge
 * what is handled for good, and nothing else. Whoever was ended by a crash gets again what it had not acknowledged.
 * To have each message take effect once, keep the position with the effects: walbus/exactly_once.h.
 *
 * Objects know nothing of each other: one process may have any number of
 * subscriptions. Each may be used by any thread, by one at a time. No call but
 * walbus_subscription_next() and walbus_request() waits for anything.
 */

#include <stddef.h>
#include <stdint.h>

#include "walbus/macros.h"
#include "walbus/position.h"
#include "walbus/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what to receive ---- */

/** A prefix splits into tokens at every '.'; empty tokens are tokens. Matching is byte for byte. */
enum walbus_filter_kind {
    /** Token for token: `*` is exactly one token, `>` as the last token one or more, any other token itself. ">" alone is
     *  everything. */
    WALBUS_FILTER_PATTERN = 0,
    WALBUS_FILTER_EXACT = 1,       /* the prefix that is exactly this */
    WALBUS_FILTER_STARTS_WITH = 2, /* every prefix that begins with this */
};

/** Longest filter text, bytes. */
#define WALBUS_MAX_FILTER 4096
/** Most filters of a subscription, and most exclusions. */
#define WALBUS_MAX_FILTERS 1024
/** Most tokens in all patterns of a subscription, exclusions included. */
#define WALBUS_MAX_TOKENS 8192
/** Longest name of a program, bytes. */
#define WALBUS_MAX_CLIENT 255

/** This struct does not grow. */
struct walbus_filter {
    enum walbus_filter_kind kind;
    const char *text; /* any bytes; may be NULL when size is 0 */
    size_t size;      /* bytes */
};

/** Longest name of a durable subscription, bytes. */
#define WALBUS_MAX_NAME 255
/** Longest audience, bytes. */
#define WALBUS_MAX_AUDIENCE 255

/** Where a subscription begins. Of a durable one it counts when the name is new, or with WALBUS_OVERRIDE; else it goes
 *  on behind the cursor that is stored under the name. */
enum walbus_start {
    /** What is delivered from now on. Begins behind a transaction that the router is just reading. */
    WALBUS_START_NOW = 0,
    /** What comes behind `position`, also inside a transaction. One older than the journal: a GAP, then the oldest. */
    WALBUS_START_POSITION = 1,
    /** The oldest that the router's journal has. */
    WALBUS_START_OLDEST = 2,
    /** What the router received at or after `time_us`: nothing that was committed later is missed. A time to come is now. */
    WALBUS_START_TIME = 3,
    /** Durable: the stored cursor, and refused ("unknown-name") when there is no such name: nothing is made. */
    WALBUS_START_STORED = 4,
};

/* ---- the subscription ---- */

struct walbus_subscription;
struct walbus_delivery;

/*
 * NULL in place of a subscription does no harm: what returns a result gives WALBUS_BAD_ARGUMENT, and the others say how
 * it is without one: no descriptor (-1), no events (0), no timeout (-1), a position of zeros, "" for texts.
 */

/** Do not fail when no router is there yet, nor its socket, nor when one refuses for a reason that passes (too many
 *  connections, another connection holds the durable name): wait. */
#define WALBUS_WAIT_FOR_ROUTER 0x1u
/** Take the durable name from the connection that holds it, which is ended ("taken-over"). Asked for until the first
 *  READY, not when it connects again: who has taken the name over meanwhile keeps it. */
#define WALBUS_TAKE_OVER 0x2u
/** Durable: `start` counts although the name has a stored cursor, which moves there. */
#define WALBUS_OVERRIDE 0x4u
/** Durable: the subscriber keeps its position itself, with the effects of messages (walbus/exactly_once.h). When it connects
 *  again it goes on behind its last delivery, so its open transaction may go on too. The router's cursor goes no further than
 *  what is acknowledged: it sends the rest once more, which is checked and not delivered. So if that transaction is rolled
 *  back in the end, what it had handled can still be had, by a subscription that is opened anew behind the kept position. */
#define WALBUS_KEEPS_POSITION 0x8u

/** Deliver only messages whose signature is WALBUS_SIGNATURE_VALID by `trust`, which is needed. What is withheld
 *  is passed over as if no filter had matched it, and counted: walbus_subscription_withheld(). BEGIN and COMMIT
 *  come all the same; in place of a withheld message outside of a transaction comes PROGRESS of its position, to be
 *  acknowledged as ever: the router keeps for a durable name what was not. When the trust file changes, what was passed
 *  over does not come again. */
#define WALBUS_VALID_ONLY 0x10u

struct walbus_subscription_options {
    /** sizeof(struct walbus_subscription_options) as compiled. A larger one, of a later
     *  version, is taken when what is beyond is zero. */
    size_t size;
    /** WALBUS_WAIT_FOR_ROUTER, WALBUS_TAKE_OVER, WALBUS_OVERRIDE, WALBUS_KEEPS_POSITION, WALBUS_VALID_ONLY, or 0. */
    unsigned flags;
    /** Path of the router's socket. NULL: the environment's WALBUS_SOCKET, else the first that exists of
     *  $XDG_RUNTIME_DIR/walbus.sock and /run/walbus/walbus.sock, looked up anew whenever it connects, since a
     *  socket is there only while its router runs. */
    const char *socket;
    /** Name of the program, for the router's listings, UTF-8; NULL: none. Copied, as all below. */
    const char *client;
    /** A message is delivered, once, when at least one filter matches its prefix and no exclusion does. No
     *  filters: everything. Copied. */
    const struct walbus_filter *filters;
    size_t n_filters;
    const struct walbus_filter *exclusions;
    size_t n_exclusions;
    /** Name of a durable subscription, 1 to WALBUS_MAX_NAME bytes of visible UTF-8 without blanks (nothing of
     *  Unicode's categories Cc, Cf, Zl, Zp and Zs, zero-width characters for one); NULL: an ephemeral
     *  one, which ends with this object. A name that the router does not have is made. Filters and exclusions take the
     *  place of those that are stored under it, for everything behind the cursor. */
    const char *name;
    enum walbus_start start;
    /** WALBUS_START_POSITION: the last position already handled, not all zero, and the identity of the journal that
     *  it belongs to, which is checked; NULL or "": not known, not checked. */
    struct walbus_position position;
    const char *identity;
    /** WALBUS_START_TIME: µs since 1970-01-01 UTC, by the router's clock. */
    int64_t time_us;
    /** Called out of the calls that take this subscription with one sentence for people, valid during the call: the
     *  router went away, came back, refused an acknowledgement. NULL: silence. It must not call back into
     *  the subscription. */
    void (*log)(void *context, const char *sentence);
    void *context;
    /** Path of the trust file: the keys that are believed, and what each may sign (docs/format.md). With it every
     *  message is verified when it arrives, which takes some 50 µs and a copy of its content. It is read again when it
     *  has changed, which is looked for when a message comes, at most once a second, and not within 0.2 s of the change:
     *  it may not be whole yet. When it then is gone, cannot be read, is not understood or may be written by everybody,
     *  `log` is told so, once for each reason, and the keys that were read before stay: to take a key away the file
     *  must be there and be good. A relative path is that of now. NULL: no key is known, and nothing is ever valid. */
    const char *trust;
    /** What events are signed for besides their prefix, as walbus_publisher_set_key() has it, where the key's entry
     *  in the trust file names none. At most WALBUS_MAX_AUDIENCE bytes of UTF-8, without control characters, blanks at
     *  its ends, and '#' or ';' behind a blank, so that a trust file can have it; NULL: "". */
    const char *audience;
};

/** Every member at its default: everything, from now, of the router at the usual place. */
#define WALBUS_SUBSCRIPTION_OPTIONS_INIT                                                          \
    {                                                                                             \
        sizeof(struct walbus_subscription_options), 0, NULL, NULL, NULL, 0, NULL, 0, NULL,        \
            WALBUS_START_NOW, {0, 0, 0}, NULL, 0, NULL, NULL, NULL, NULL                          \
    }

/**
 * Connects, without waiting for the router's answers: the first delivery is
 * READY, and from there on nothing is missed. `options` and what it points to
 * are copied.
 *
 * WALBUS_OK            *ret is the subscription; close it
 * WALBUS_BAD_ARGUMENT  NULL, a size that is too small or beyond any version's, members of a later
 *                      version that are not zero, an unknown flag or start, a start at a position without one, a list
 *                      or text that is NULL with a number, a client or identity that is not UTF-8, a client longer
 *                      than WALBUS_MAX_CLIENT, an identity longer than any, a name that is empty, too long or has
 *                      blanks or characters that cannot be shown; without a name WALBUS_TAKE_OVER, WALBUS_OVERRIDE,
 *                      WALBUS_KEEPS_POSITION or WALBUS_START_STORED; that with WALBUS_OVERRIDE; an audience that is too
 *                      long, not UTF-8 or has control characters; WALBUS_VALID_ONLY without trust
 * WALBUS_BAD_TRUST     the trust file cannot be read, or is refused: `log` of the options, if it is set, was called
 *                      with the sentence that says why, and in which line
 * WALBUS_BAD_FILTER    an unknown kind, a NUL in a text, an empty pattern, more than the limits above, or more
 *                      than fits into one frame, 1 MiB
 * WALBUS_BAD_SOCKET    the path is empty or longer than a socket's address
 * WALBUS_NO_ROUTER     nobody answers there, or no path is given and none of the usual ones exists (ENOENT); errno says
 *                      why. Not with WALBUS_WAIT_FOR_ROUTER
 * WALBUS_NO_MEMORY
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_subscription_open(const struct walbus_subscription_options *options,
                         struct walbus_subscription **ret);

/**
 * Sends what is queued as far as the socket takes it, closes, frees. Takes NULL. Returns NULL. An
 * acknowledgement that cannot leave now is dropped: see walbus_subscription_flush().
 */
WALBUS_PUBLIC struct walbus_subscription *
walbus_subscription_close(struct walbus_subscription *sub);

/** The descriptor to wait for; -1 while there is none: then there is only the timeout. Not the caller's to close. */
WALBUS_PUBLIC int walbus_subscription_fd(const struct walbus_subscription *sub);

/** POLLIN and POLLOUT as they are wanted now; 0 without a descriptor. */
WALBUS_PUBLIC short walbus_subscription_events(const struct walbus_subscription *sub);

/** Milliseconds after which walbus_subscription_process() has something to do although the
 *  descriptor stays quiet: 0 at once, -1 never. Fit for poll(). */
WALBUS_PUBLIC int walbus_subscription_timeout(const struct walbus_subscription *sub);

/**
 * One step. It sends what is queued, receives a bounded amount, and never waits.
 *
 * ret  the next delivery: handle it and call again. NULL: there is nothing more until the descriptor or the
 *      timeout says so. Borrowed: valid until the next call of process, next or close. Written only on WALBUS_OK
 *
 * WALBUS_OK
 * WALBUS_BAD_ARGUMENT   NULL
 * WALBUS_NO_MEMORY      nothing is lost: call again
 * WALBUS_REFUSED        the router refuses this subscription: walbus_subscription_error() has its words, and
 *                       walbus_subscription_error_code() its reason. Behind the first READY, and with
 *                       WALBUS_WAIT_FOR_ROUTER, only for reasons that do not pass. Those of a durable name:
 *                         "held"          another connection holds it. With WALBUS_WAIT_FOR_ROUTER waited for
 *                         "taken-over"    another connection has taken it from this one
 *                         "unknown-name"  there is none: WALBUS_START_STORED, or it was removed meanwhile
 *                         "removed"       somebody removed or moved it, under WALBUS_KEEPS_POSITION: for routers that
 *                                         do that to a name in use. Without the flag the subscription goes on where
 *                                         it was moved to, and ends ("unknown-name") only when it is gone
 * WALBUS_POSITION_LOST  `position` of the options belongs to another journal than the router's; or, under
 *                       WALBUS_KEEPS_POSITION, the router has come to another journal meanwhile
 * WALBUS_PROTOCOL       the other end does not speak this protocol, or not this version of it
 *
 * After the last three the subscription is at its end: each further call gives the same result; close it.
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_subscription_process(struct walbus_subscription *sub, const struct walbus_delivery **ret);

/**
 * Waits for the next delivery. The same as a loop of walbus_subscription_process() and poll().
 *
 * timeout_ms  how long; -1: without end; 0: not at all
 *
 * Results as of walbus_subscription_process(), never with NULL, and
 * WALBUS_BAD_ARGUMENT also a timeout below -1
 * WALBUS_TIMEOUT      the time passed
 * WALBUS_INTERRUPTED  a signal handler ran while this waited; look whether it wants you to end
 *
 * A signal that comes just before the wait does not interrupt it: then nothing shows until the next delivery. So wait
 * with a timeout and look after each; or block the signals, and in place of this call use
 * walbus_subscription_process() and ppoll() with a mask that lets them in, or a signalfd beside the descriptor.
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_subscription_next(struct walbus_subscription *sub, int timeout_ms,
                         const struct walbus_delivery **ret);

/**
 * Sends what is queued as far as the socket takes it.
 *
 * WALBUS_OK     all is sent, acknowledgements too, or the subscription is at its end
 * WALBUS_AGAIN  some is left: the socket takes no more now, or there is no connection, or it is not READY yet and
 *               cannot take an acknowledgement, or it has not yet come to the acknowledged place again (durable)
 * WALBUS_BAD_ARGUMENT, WALBUS_NO_MEMORY
 *
 * After AGAIN a loop goes on as ever. Who wants to close, and the last acknowledgement to leave before, waits and calls
 * walbus_subscription_process(), which alone connects and takes the router's answers, as long as it is worth it:
 *
 *     while (walbus_subscription_flush(sub) == WALBUS_AGAIN && there_is_time()) {
 *         struct pollfd fd = {walbus_subscription_fd(sub), walbus_subscription_events(sub), 0};
 *         int timeout = walbus_subscription_timeout(sub);
 *         poll(&fd, 1, timeout < 0 ? 100 : timeout);     // 100: so that the time is looked at
 *         if (walbus_subscription_process(sub, &d) != WALBUS_OK)
 *             break;                                     // d: not handled and so not acknowledged
 *     }
 *     walbus_subscription_close(sub);
 *
 * Sent is not received: WALBUS_ACK_CONFIRM asks for an answer.
 */
WALBUS_PUBLIC enum walbus_result walbus_subscription_flush(struct walbus_subscription *sub);

/** Ask for a delivery ACKED, of this position or a later one, once the acknowledgement is on the router's disk (of an
 *  ephemeral subscription: once the router has it). It is asked for again on each connection until it comes, but does not
 *  come when the router has another journal now, or one that has lost this position, or moved the durable name. */
#define WALBUS_ACK_CONFIRM 0x1u

/**
 * Acknowledges everything up to `position`, the one of a delivery of this subscription, which may lie inside a transaction:
 * then the next holder of a durable name gets the rest of it. It is queued, a later one takes its place, and it is sent by
 * the next call of process, next or flush; one that cannot be sent before the connection ends is sent on the next one. When
 * a durable subscription goes on from an earlier place there, it is sent as soon as the deliveries have come to it again.
 *
 * A position at or before one that was acknowledged already changes nothing and sends nothing; with WALBUS_ACK_CONFIRM,
 * one at or before a position that is confirmed or for which that was asked. So it is safe to acknowledge every delivery,
 * ACKED too.
 *
 * WALBUS_OK            also when there was nothing to do
 * WALBUS_BAD_ARGUMENT  NULL, an unknown flag, or a position behind the last one delivered
 */
WALBUS_PUBLIC enum walbus_result walbus_subscription_ack(struct walbus_subscription *sub,
                                                         struct walbus_position position,
                                                         unsigned flags);

/** Position of the last delivery, ACKED aside: what a reconnect goes on behind, unless it goes on at a stored cursor. Zero
 *  before the first READY. */
WALBUS_PUBLIC struct walbus_position
walbus_subscription_position(const struct walbus_subscription *sub);

/** Identity of the journal that positions of this subscription belong to; "" before the first READY. Owned by the
 *  subscription, valid until the next call of process, next or close; never NULL. */
WALBUS_PUBLIC const char *walbus_subscription_identity(const struct walbus_subscription *sub);

/** How many messages were withheld so far (WALBUS_VALID_ONLY): each time that one came, so one that comes again after a
 *  reconnect counts again. */
WALBUS_PUBLIC uint64_t walbus_subscription_withheld(const struct walbus_subscription *sub);

/** Why the last call failed: one line for people, the router's own words where there are any; "" when it did not.
 *  Owned by the subscription, valid until the next call that is not const; never NULL. */
WALBUS_PUBLIC const char *walbus_subscription_error(const struct walbus_subscription *sub);

/** The router's word for it, of those in docs/protocol.md ("held", "limit"); "" when it was not the
 *  router. As walbus_subscription_error(). */
WALBUS_PUBLIC const char *walbus_subscription_error_code(const struct walbus_subscription *sub);

/* ---- deliveries ---- */

/** Later versions may have further kinds: ignore what you do not know. */
enum walbus_delivery_kind {
    /** The subscription stands: everything that matches behind this position will come. Again after each reconnect; a
     *  transaction that was open then ends here, without COMMIT. The rest of it comes behind a BEGIN of its own, or lies
     *  in the GAP behind READY. Of a durable subscription this position may lie before earlier deliveries, which
     *  then come again; with WALBUS_KEEPS_POSITION it is that of the last one, and to acknowledge it is to acknowledge
     *  that. */
    WALBUS_DELIVERY_READY = 1,
    /** Messages of one transaction follow, up to its COMMIT, to a GAP that swallows it, or to READY, if the connection
     *  breaks meanwhile. Then the same transaction may begin once more, with WALBUS_DELIVERY_RESUMED when a message of it
     *  was delivered before. Only around transactions of which something matches. */
    WALBUS_DELIVERY_BEGIN = 2,
    WALBUS_DELIVERY_MESSAGE = 3,
    /** The transaction ends. Acknowledging this position finishes it. */
    WALBUS_DELIVERY_COMMIT = 4,
    /** Nothing more is coming up to this position. Not within transactions. */
    WALBUS_DELIVERY_PROGRESS = 5,
    /** Messages may be missing, from the position walbus_delivery_from() up to this one. Inside a transaction it
     *  swallows the rest of it when it reaches the transaction's end: then no COMMIT comes. One that the library finds
     *  itself stands right behind the READY of the new connection and reaches up to it.
     *
     *  It is a place like any other: acknowledged, a durable name does not tell it again.
     *
     *  When the server has lost the end of its WAL (a failover, say), the new connection may begin at or before the last
     *  delivery, in the same journal: positions then go on from a lower one, and the gap's two ends are both READY's
     *  position, since what is missing has no place any more. A position kept with effects is then ahead of the journal: what to do
     *  with the effects that the server has forgotten is its owner's decision, and the stored position is theirs to lower. */
    WALBUS_DELIVERY_GAP = 6,
    /** The acknowledgement of this position is on the router's disk. It has no place among the other deliveries: its
     *  position is one from before. */
    WALBUS_DELIVERY_ACKED = 7,
};

/** The message, or the transaction, is transactional. MESSAGE, BEGIN, COMMIT. */
#define WALBUS_DELIVERY_TRANSACTIONAL 0x1u
/** It may have been delivered before, by an earlier connection of the durable name. MESSAGE. */
#define WALBUS_DELIVERY_REDELIVERED 0x2u
/** A message of this transaction was delivered before. BEGIN. */
#define WALBUS_DELIVERY_RESUMED 0x4u
/** A gap swallowed a part of this transaction. COMMIT. */
#define WALBUS_DELIVERY_INCOMPLETE 0x8u
/** The durable name was there: this is its stored cursor, and `start` of the options did not count, or, with WALBUS_OVERRIDE,
 *  nothing that matched lay between the two and the journal reaches back to the cursor alone. READY. */
#define WALBUS_DELIVERY_STORED 0x10u

/*
 * The functions below read a delivery, which must not be NULL. What they return lives as long as the delivery. One
 * that says nothing about the kind of the delivery gives 0 or NULL. `ret_size` may be NULL where it is not stated
 * otherwise; without a value it becomes 0. Some look into the content when they are first asked: one thread at a time,
 * as for all of the subscription.
 */

WALBUS_PUBLIC enum walbus_delivery_kind walbus_delivery_kind(const struct walbus_delivery *d);

/** WALBUS_DELIVERY_… from above. */
WALBUS_PUBLIC unsigned walbus_delivery_flags(const struct walbus_delivery *d);

/** Where it stands, and what to acknowledge when it is handled. Of a BEGIN: the transaction's LSN with the index 0, or,
 *  when resumed, the position behind which it goes on. Of a GAP: its end. */
WALBUS_PUBLIC struct walbus_position walbus_delivery_position(const struct walbus_delivery *d);

/** Of a GAP: its first position. It belongs to another journal when the router has another one now. */
WALBUS_PUBLIC struct walbus_position walbus_delivery_from(const struct walbus_delivery *d);

/** MESSAGE: the LSN that pg_logical_emit_message returned, which does not rise; BEGIN, COMMIT: the commit LSN. */
WALBUS_PUBLIC uint64_t walbus_delivery_lsn(const struct walbus_delivery *d);

/** COMMIT: the LSN behind the transaction. */
WALBUS_PUBLIC uint64_t walbus_delivery_end_lsn(const struct walbus_delivery *d);

/** Transaction id of a transactional MESSAGE, a BEGIN, a COMMIT. */
WALBUS_PUBLIC uint32_t walbus_delivery_xid(const struct walbus_delivery *d);

/** When the transaction was committed, µs since 1970-01-01 UTC by the server's clock: transactional MESSAGE, BEGIN,
 *  COMMIT. Nearly but not quite rising. */
WALBUS_PUBLIC int64_t walbus_delivery_commit_time_us(const struct walbus_delivery *d);

/** MESSAGE: when the router received it, µs since 1970-01-01 UTC by the router's clock; never falling within one
 *  journal. */
WALBUS_PUBLIC int64_t walbus_delivery_received_time_us(const struct walbus_delivery *d);

/** COMMIT: how many messages the transaction has, whether they matched or not. GAP: how many may be missing;
 *  UINT64_MAX: unknown. */
WALBUS_PUBLIC uint64_t walbus_delivery_messages(const struct walbus_delivery *d);

/** GAP: bytes of content that may be missing; UINT64_MAX: unknown. */
WALBUS_PUBLIC uint64_t walbus_delivery_bytes(const struct walbus_delivery *d);

/** GAP: why, one sentence for people, with its NUL. */
WALBUS_PUBLIC const char *walbus_delivery_reason(const struct walbus_delivery *d);

/** MESSAGE: the prefix as PostgreSQL sent it, any bytes but NUL, without a NUL behind it. */
WALBUS_PUBLIC const char *walbus_delivery_prefix(const struct walbus_delivery *d, size_t *ret_size);

/** MESSAGE: the content, byte for byte. Not NULL when it is empty. Keep it in a variable before *ret_size is used: among the
 *  arguments of one call C may read the size first. */
WALBUS_PUBLIC const void *walbus_delivery_content(const struct walbus_delivery *d,
                                                  size_t *ret_size);

/* ---- events: what publish.h published, read out of the content ---- */

enum walbus_form {
    /** Not an event that this library understands: look at the content. Also what is no message. */
    WALBUS_FORM_OPAQUE = 0,
    /** An unsigned event. */
    WALBUS_FORM_EVENT = 1,
    /** A signed one (a COSE_Sign1), which is read by the same functions. What it says is worth what
     *  walbus_delivery_signature() says: ask that first. Signed content that is not understood is WALBUS_FORM_OPAQUE. */
    WALBUS_FORM_SIGNED = 2,
};

/** What the content is. The first of these functions that is called on a delivery parses it; the others then do not. */
WALBUS_PUBLIC enum walbus_form walbus_delivery_form(const struct walbus_delivery *d);

/** A text attribute of an event by its name ("id", "source", "type", "time"), UTF-8, without a NUL behind it. NULL:
 *  there is none of this name, or it is not text; `time` is text here. */
WALBUS_PUBLIC const char *walbus_delivery_attribute(const struct walbus_delivery *d,
                                                    const char *name, size_t *ret_size);

/** How many attributes the event has, data not counted. */
WALBUS_PUBLIC size_t walbus_delivery_attributes(const struct walbus_delivery *d);

/** The i-th of them, from 0 on: returns its name and gives its value as a CBOR item. NULL: there are not so many. */
WALBUS_PUBLIC const char *walbus_delivery_attribute_at(const struct walbus_delivery *d, size_t i,
                                                       size_t *ret_name_size, const void **ret_item,
                                                       size_t *ret_item_size);

/** The event's data as one well-formed CBOR item. NULL: the event has none. */
WALBUS_PUBLIC const void *walbus_delivery_data(const struct walbus_delivery *d, size_t *ret_size);

/** The bytes of data that is a text string of definite length (UTF-8; JSON, for one, as `datacontenttype` says). NULL: it
 *  is something else. */
WALBUS_PUBLIC const char *walbus_delivery_data_text(const struct walbus_delivery *d,
                                                    size_t *ret_size);

/** The same of a byte string. */
WALBUS_PUBLIC const void *walbus_delivery_data_bytes(const struct walbus_delivery *d,
                                                     size_t *ret_size);

/* ---- signatures ---- */

/*
 * Any role of the database may emit any bytes under any prefix, so what an event says of its origin is worth what its
 * signature is worth, and that is said by the first of these that fails, in this order.
 */
enum walbus_signature {
    /** No signature: a plain event, or something else. Also what is no message. */
    WALBUS_SIGNATURE_UNSIGNED = 0,
    /** The key's holder once signed these bytes for this prefix and audience, and may sign for this prefix. Nothing
     *  else: not that it is fresh, that it was emitted once, by that holder, in this order or in this transaction.
     *  Drop repeats by `source` and `id`; max-delay in the trust file refuses what is old. */
    WALBUS_SIGNATURE_VALID = 1,
    /** No trusted key has this id: also without a trust file. */
    WALBUS_SIGNATURE_UNKNOWN_KEY = 2,
    /** Not this key's signature over these bytes, for this prefix and audience. */
    WALBUS_SIGNATURE_BAD_SIGNATURE = 3,
    /** It begins as signed content does, but is none: its structure, its algorithm, its type, the event in it; or the
     *  prefix is not ASCII. */
    WALBUS_SIGNATURE_MALFORMED = 4,
    /** The signature is right, but the key may not sign for this prefix. */
    WALBUS_SIGNATURE_NOT_ALLOWED = 5,
    /** The signature is right, but the event's `time` is further from when the router received it than the key's
     *  max-delay, before or behind, or there is none. */
    WALBUS_SIGNATURE_STALE = 6,
};

/**
 * What the signature of a message is worth. With a trust file it was verified on arrival, else this only takes it apart. A
 * program that acts on what an event says lets pass what is WALBUS_SIGNATURE_VALID and nothing else, or asks
 * for WALBUS_VALID_ONLY. Later versions may have further values: none of them is valid.
 */
WALBUS_PUBLIC enum walbus_signature walbus_delivery_signature(const struct walbus_delivery *d);

/** The word for it, as in listings ("unknown-key"); static, never NULL. Any thread, at any time. */
WALBUS_PUBLIC const char *walbus_signature_text(enum walbus_signature signature);

/** Why it is so: one sentence for people; "" of what is no message. Never NULL. */
WALBUS_PUBLIC const char *walbus_delivery_signature_reason(const struct walbus_delivery *d);

/** The id of the key that the content names, whether it is known or not. NULL: it names none. */
WALBUS_PUBLIC const void *walbus_delivery_kid(const struct walbus_delivery *d, size_t *ret_size);

/* ---- asking the router ---- */

struct walbus_reply;

/**
 * Asks the router one thing over a connection of its own, and waits for the answer.
 *
 * socket      as in the options of a subscription; NULL: the usual place
 * what        the request, of those in docs/protocol.md: "status", "subscriptions", "remove", "seek", "reload"
 * args        one CBOR item, `args_size` bytes; NULL and 0: none
 * timeout_ms  how long the whole may take; -1: without end
 * ret         the answer, or what went wrong in words: free it. Set by every result but the first two failures below
 *
 * WALBUS_OK            walbus_reply_result() is the answer
 * WALBUS_BAD_ARGUMENT  NULL, `what` that is not UTF-8, args that are not one well-formed CBOR item, a timeout below -1
 * WALBUS_NO_MEMORY
 * WALBUS_BAD_SOCKET    as of walbus_subscription_open()
 * WALBUS_NO_ROUTER     nobody answers there, or there is no socket, or it is closed without an answer; errno says why
 * WALBUS_TIMEOUT, WALBUS_INTERRUPTED
 * WALBUS_PROTOCOL      the other end does not speak this protocol, or not this version of it
 * WALBUS_REFUSED       the router does not know the request ("unsupported"), or does not do it: "unknown-name",
 *                      "forbidden" (only its own user and root may), "invalid"
 * WALBUS_TOO_LARGE     the request is larger than a frame, 1 MiB
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_request(const char *socket, const char *what, const void *args, size_t args_size,
               int timeout_ms, struct walbus_reply **ret);

/* NULL in place of a reply is one that says nothing: no result, and "" for texts. Any number of threads may read one. */

/** The answer as one well-formed CBOR item; NULL when there is none. Lives as long as the reply. `ret_size` may be NULL;
 *  without an answer it becomes 0. */
WALBUS_PUBLIC const void *walbus_reply_result(const struct walbus_reply *reply, size_t *ret_size);

/** What went wrong, one line for people, with the socket's path or the router's own words; "" when nothing did. */
WALBUS_PUBLIC const char *walbus_reply_error(const struct walbus_reply *reply);

/** The router's word for it; "" when it was not the router. */
WALBUS_PUBLIC const char *walbus_reply_error_code(const struct walbus_reply *reply);

/** Frees it. Takes NULL. Returns NULL. */
WALBUS_PUBLIC struct walbus_reply *walbus_reply_free(struct walbus_reply *reply);

#ifdef __cplusplus
}
#endif

#endif
