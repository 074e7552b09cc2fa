/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscription.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* ---- the ends ---- */

static void end(struct walbus_subscription *s, enum walbus_result result)
{
    connection_close(&s->connection);
    subscription_forget_acks(s);
    s->end = result;
    s->state = STATE_ENDED;
}

void subscription_breach(struct walbus_subscription *s, const char *code, const char *why)
{
    struct control_error error = {
        .code = bytes_of_text(code), .text = bytes_of_text(why), .fatal = true};
    struct buf frame = BUF_INIT;

    if (why != s->end_why)
        (void)snprintf(s->end_why, sizeof s->end_why, "%s", why);
    control_error_encode(&error, &frame);
    /* Without memory for it the router learns no more than that the connection ends. */
    if (connection_queue(&s->connection, &frame) == 0)
        (void)connection_flush(&s->connection);
    end(s, WALBUS_PROTOCOL);
}

static void breach_of_order(struct walbus_subscription *s, uint8_t type)
{
    static const char *const when[] = {
        [STATE_WAITING] = "before a connection",   [STATE_GREETING] = "before WELCOME",
        [STATE_SUBSCRIBING] = "before SUBSCRIBED", [STATE_READY] = "where it has no meaning",
        [STATE_ENDED] = "after the end",
    };

    (void)snprintf(s->end_why, sizeof s->end_why, "The router sent a frame of type %s (0x%02x) %s.",
                   frame_type_name(type), type, when[s->state]);
    subscription_breach(s, CONTROL_ERROR_PROTOCOL, s->end_why);
}

static void breach_of_body(struct walbus_subscription *s, uint8_t type, const char *why)
{
    (void)snprintf(s->end_why, sizeof s->end_why, "%s: %s", frame_type_name(type), why);
    subscription_breach(s, CONTROL_ERROR_PROTOCOL, s->end_why);
}

/* ---- the place ---- */

struct position subscription_place(const struct walbus_subscription *s)
{
    return s->keeps_position ? position_later(s->sequence.last, s->delivered) : s->sequence.last;
}

struct position subscription_resumes(const struct walbus_subscription *s)
{
    return s->keeps_position && s->was_ready ? s->settled : s->sequence.last;
}

void subscription_settle(struct walbus_subscription *s)
{
    s->settled = position_later(s->settled, s->acked);
    if (position_compare(s->settled, s->owed) >= 0)
        s->settled = position_later(s->settled, subscription_place(s));
}

static bool identity_is_other(const struct walbus_subscription *s, struct bytes identity)
{
    struct bytes held = bytes_of_text(s->identity);

    return s->knows_identity && identity.size > 0 && !bytes_equal(held, identity);
}

static void lose(struct walbus_subscription *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/** What is behind the last delivery may not all come: a GAP will say so. */
static void lose(struct walbus_subscription *s, const char *fmt, ...)
{
    va_list ap;

    if (s->lost)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(s->lost_why, sizeof s->lost_why, fmt, ap);
    va_end(ap);
    s->lost = true;
    s->gap = (struct frame_gap){
        .from = position_next(subscription_place(s)),
        .messages = UINT64_MAX,
        .bytes = UINT64_MAX,
    };
}

/** The place belongs to another journal than the router's, and only its owner can say what that means. */
static void end_position_lost(struct walbus_subscription *s, struct bytes identity)
{
    char other[IDENTITY_TEXT_SIZE], text[POSITION_TEXT_SIZE];

    connection_words(identity, other, sizeof other);
    (void)snprintf(s->end_why, sizeof s->end_why,
                   "The position %s belongs to the journal %s, but the router has the journal %s.",
                   position_format(subscription_place(s), text), s->identity, other);
    end(s, WALBUS_POSITION_LOST);
}

void subscription_put_subscribe(const struct walbus_subscription *s,
                                struct subscription_start start, struct buf *frame)
{
    struct control_subscribe subscribe = {
        .filters = s->filters,
        .n_filters = s->n_filters,
        .exclusions = s->exclusions,
        .n_exclusions = s->n_exclusions,
        .name = bytes_of_text(s->name),
        .start = start.start,
        .position = subscription_resumes(s),
        .time = s->time,
        .take_over = s->take_over,
        .override = start.override,
    };

    control_subscribe_encode(&subscribe, frame);
}

static int send_subscribe(struct walbus_subscription *s, struct subscription_start start)
{
    struct buf frame = BUF_INIT;

    subscription_put_subscribe(s, start, &frame);
    int rc = connection_queue(&s->connection, &frame);
    if (rc == 0) {
        s->state = STATE_SUBSCRIBING;
        s->asked = start;
        s->asked_position = subscription_resumes(s);
    }
    return rc;
}

/* ---- the handshake ---- */

static int on_welcome(struct walbus_subscription *s, struct bytes body)
{
    struct control_welcome welcome;
    char why[CONTROL_WHY_SIZE];
    bool version;

    if (s->state != STATE_GREETING) {
        breach_of_order(s, FRAME_WELCOME);
        return 0;
    }
    if (connection_welcome(body, &welcome, &version, why) < 0) {
        if (version)
            subscription_breach(s, CONTROL_ERROR_VERSION, why);
        else
            breach_of_body(s, FRAME_WELCOME, why);
        return 0;
    }
    /* A position that moves the name must not be one of another journal, and only SUBSCRIBED would tell. */
    if (welcome.identity.size == 0 && s->knows_identity && s->start.override) {
        if (!s->told_gone)
            subscription_log(s, "The router has not reached its server yet, and cannot say which "
                                "journal it has; reconnecting.");
        s->told_gone = true;
        subscription_reconnect(s);
        return 0;
    }
    s->asked_other = identity_is_other(s, welcome.identity);
    if (!s->asked_other)
        return send_subscribe(s, s->start);
    if (s->was_ready && !s->keeps_position) /* all of it is new to him; where a name in it goes on, the router knows */
        return send_subscribe(s, (struct subscription_start){CONTROL_START_OLDEST, false});
    end_position_lost(s, welcome.identity);
    return 0;
}

/** What acknowledgements mean from here on. */
static void keep_acks(struct walbus_subscription *s, bool same, struct position position)
{
    /* Given in another journal, or, without a stored cursor, where this one has lost it: counts from here anew. */
    if (!same || ((!s->name || s->lost) && position_compare(s->acked, position) > 0))
        subscription_forget_acks(s);
    else if (s->name && s->was_ready && !s->moved && !s->lost &&
             position_compare(s->sequence.last, s->delivered) > 0)
        s->delivered = s->sequence.last;
    if (!same || !s->was_ready || s->lost) {
        s->settled = position;
        s->owed = (struct position){0};
    }
    s->moved = false;
    /* A router that was killed may have taken it, and not stored it. */
    if (s->name && position_compare(s->acked, position) > 0)
        s->ack_queued = true;
}

static int become_ready(struct walbus_subscription *s, const struct control_subscribed *subscribed)
{
    bool same = bytes_equal(bytes_of_text(s->identity), subscribed->identity);
    bool stored_next = s->name && !s->keeps_position;

    if (!same && s->was_ready) {
        char other[IDENTITY_TEXT_SIZE];

        connection_words(subscribed->identity, other, sizeof other);
        lose(s, "the router has the journal %s now, in which positions of %s mean nothing", other,
             s->identity);
    }
    memcpy(s->identity, subscribed->identity.data, subscribed->identity.size);
    s->identity[subscribed->identity.size] = '\0';
    keep_acks(s, same, subscribed->position);
    if (s->lost) {
        s->gap.to = subscribed->position;
        /* The journal has lost its end, or goes on right here: what is missing has no place. */
        if (same && position_compare(s->gap.from, s->gap.to) > 0)
            s->gap.from = s->gap.to;
        s->gap_waits = true;
        s->lost = false;
    }
    if (s->told_gone)
        subscription_log(s, "The router is back.");
    s->told_gone = s->told_held = false;
    sequence_start(&s->sequence, subscribed->position);
    s->redelivered_to = subscribed->redelivered_to;
    s->start = stored_next ? (struct subscription_start){CONTROL_START_STORED, false}
                           : (struct subscription_start){CONTROL_START_POSITION, s->keeps_position};
    s->take_over = false;
    s->knows_identity = s->was_ready = true;
    s->state = STATE_READY;
    s->ready_ns = clock_monotonic_ns();
    delivery_ready(&s->delivery, subscription_place(s), subscribed->stored);
    return 1;
}

static int on_subscribed(struct walbus_subscription *s, struct bytes body)
{
    struct control_subscribed subscribed;
    char why[CONTROL_WHY_SIZE];

    if (s->state != STATE_SUBSCRIBING) {
        breach_of_order(s, FRAME_SUBSCRIBED);
        return 0;
    }
    if (control_subscribed_decode(body, &subscribed, why) < 0) {
        breach_of_body(s, FRAME_SUBSCRIBED, why);
        return 0;
    }
    if (subscribed.identity.size == 0 || subscribed.identity.size >= sizeof s->identity ||
        memchr(subscribed.identity.data, '\0', subscribed.identity.size)) {
        breach_of_body(s, FRAME_SUBSCRIBED,
                       "The journal identity is empty, too long, or has a NUL.");
        return 0;
    }
    if (identity_is_other(s, subscribed.identity) && !s->asked_other) {
        /* The WELCOME could not tell: the router had not reached its server. Asked for anew, since it would now wait
         * for a position that means nothing there. */
        if (s->was_ready)
            subscription_reconnect(s);
        else
            end_position_lost(s, subscribed.identity);
        return 0;
    }
    if (s->asked.start == CONTROL_START_POSITION && !subscribed.stored) {
        if (position_compare(subscribed.position, s->asked_position) < 0) {
            breach_of_body(s, FRAME_SUBSCRIBED, "It starts before the position asked for.");
            return 0;
        }
        if (position_compare(subscribed.position, subscription_place(s)) > 0)
            lose(s, "the router started behind the position that was asked for");
    }
    return become_ready(s, &subscribed);
}

/* ---- errors ---- */

static bool code_is(const struct control_error *e, const char *code)
{
    return bytes_equal(e->code, bytes_of_text(code));
}

/** Reasons to close a connection that say nothing against the next one. */
static bool passes(const struct walbus_subscription *s, const struct control_error *e)
{
    if (code_is(e, CONTROL_ERROR_TIMEOUT)) /* this end's own: its owner was elsewhere */
        return true;
    if (code_is(e, CONTROL_ERROR_HELD))
        return s->waits;
    /* Moved: to where the cursor is now. If the name is gone the next attempt ends here. */
    if (code_is(e, CONTROL_ERROR_REMOVED))
        return s->was_ready && !s->keeps_position;
    return (s->was_ready || s->waits) &&
           (code_is(e, CONTROL_ERROR_TOO_SLOW) || code_is(e, CONTROL_ERROR_SOURCE) ||
            code_is(e, CONTROL_ERROR_LIMIT) || code_is(e, CONTROL_ERROR_JOURNAL));
}

static void wait_and_reconnect(struct walbus_subscription *s, const struct control_error *e,
                               const char *words)
{
    if (code_is(e, CONTROL_ERROR_HELD)) { /* said once, however often it is asked */
        if (!s->told_held)
            subscription_log(s, "Waiting for the durable name: %s", words);
        s->told_held = true;
    } else {
        subscription_log(s, "The router closed the connection: %s; reconnecting.", words);
        s->told_gone = true;
    }
    if (code_is(e, CONTROL_ERROR_REMOVED)) { /* they are about the place that it was moved from */
        subscription_forget_acks(s);
        s->moved = true;
    }
    subscription_reconnect(s);
}

/** The position that was delivered last is refused: from now, then, or where the router has the name. */
static int on_position_refused(struct walbus_subscription *s, const struct control_error *e,
                               const char *words)
{
    struct subscription_start now = {CONTROL_START_NOW, false};

    if (!e->fatal) {
        int rc = send_subscribe(s, now);
        if (rc < 0)
            return rc;
    }
    lose(s, "the router cannot go on behind what was delivered last: %s", words);
    s->start = now;
    if (s->name) /* a stored cursor may be anywhere */
        subscription_forget_acks(s);
    if (e->fatal)
        subscription_reconnect(s);
    return 0;
}

static int on_error(struct walbus_subscription *s, struct bytes body)
{
    struct control_error e;
    char why[CONTROL_WHY_SIZE], words[SUBSCRIPTION_WHY_SIZE / 2];

    if (control_error_decode(body, &e, why) < 0) {
        breach_of_body(s, FRAME_ERROR, why);
        return 0;
    }
    if (code_is(&e, CONTROL_ERROR_STOPPING)) {
        s->stopping = true;
        return 0;
    }
    connection_words(e.text, words, sizeof words);
    if (s->state == STATE_SUBSCRIBING && s->asked.start == CONTROL_START_POSITION && s->was_ready &&
        (code_is(&e, CONTROL_ERROR_UNSUPPORTED) || code_is(&e, CONTROL_ERROR_INVALID)))
        return on_position_refused(s, &e, words);
    if (s->state == STATE_READY && !e.fatal) {
        subscription_log(s, "The router: %s", words);
        return 0;
    }
    /* Before READY there is nothing that an error, fatal or not, could leave intact. */
    if (passes(s, &e)) {
        wait_and_reconnect(s, &e, words);
        return 0;
    }
    (void)snprintf(s->end_why, sizeof s->end_why, "%s", words);
    connection_words(e.code, s->end_code, sizeof s->end_code);
    end(s, code_is(&e, CONTROL_ERROR_VERSION) ? WALBUS_PROTOCOL : WALBUS_REFUSED);
    return 0;
}

/* ---- deliveries ---- */

static int on_acked(struct walbus_subscription *s, struct bytes body)
{
    struct control_ack acked;
    char why[CONTROL_WHY_SIZE];

    if (control_ack_decode(body, &acked, why) < 0) {
        breach_of_body(s, FRAME_ACKED, why);
        return 0;
    }
    if (position_compare(acked.position, s->confirm) >= 0)
        s->confirming = false;
    /* The router's may be higher: where it began counts as acknowledged. */
    if (position_compare(acked.position, s->sequence.last) <= 0) {
        if (position_compare(acked.position, s->acked) > 0)
            s->acked = acked.position;
        if (position_compare(acked.position, s->confirm) > 0)
            s->confirm = acked.position;
    }
    delivery_acked(&s->delivery, acked.position);
    return 1;
}

/** Whether everything up to `p` was handed on by an earlier connection: see the places in subscription.h. */
static bool is_known(const struct walbus_subscription *s, struct position p)
{
    return s->keeps_position && position_compare(p, s->delivered) <= 0;
}

/** BEGIN of a transaction of which the caller has had a part, and this connection none. */
static void resume_begin(const struct walbus_subscription *s, struct frame_begin *begin)
{
    struct position known = s->delivered;

    if (s->keeps_position && known.timeline == begin->timeline && known.lsn == begin->commit_lsn &&
        position_is_inside(known))
        begin->flags |= FRAME_FLAG_RESUMED;
}

/** The router's reason needs a NUL, and so memory of its own. As on_data(). */
static int on_gap(struct walbus_subscription *s, struct frame_header h, const uint8_t *body,
                  char why[SEQUENCE_WHY_SIZE])
{
    struct frame_gap gap;
    int rc = frame_gap_decode(h, body, &gap);

    if (rc < 0)
        return rc;
    buf_clear(&s->reason);
    buf_append(&s->reason, gap.reason.data, gap.reason.size);
    const char *reason = buf_str(&s->reason);
    if (s->reason.failed)
        return -ENOMEM;
    rc = sequence_gap(&s->sequence, &gap, why);
    if (rc < 0)
        return rc;
    if (is_known(s, gap.to))
        return 0;
    if (is_known(s, gap.from)) { /* nobody has counted the rest alone */
        gap.from = position_next(s->delivered);
        gap.messages = gap.bytes = UINT64_MAX;
    }
    s->owed = gap.to;
    delivery_gap(&s->delivery, &gap, reason);
    return 1;
}

/* A delivery that is to be acknowledged. If it is the only one, whatever lies before it is done with, also what did not match: the
 * router may have let go of that, and would tell a gap of it. */
static void owe(struct walbus_subscription *s, struct position position)
{
    if (position_compare(s->settled, s->owed) >= 0)
        s->settled = position_later(s->settled, position_before_transaction(position));
    s->owed = position;
}

static int on_begin(struct walbus_subscription *s, struct frame_header h, const uint8_t *body,
                    char why[SEQUENCE_WHY_SIZE])
{
    struct frame_begin begin;
    int rc = frame_begin_decode(h, body, &begin);

    if (rc == 0)
        rc = sequence_begin(&s->sequence, &begin, why);
    if (rc < 0)
        return rc;
    if (is_known(s, (struct position){begin.timeline, begin.commit_lsn, POSITION_INDEX_END}))
        return 0;
    resume_begin(s, &begin);
    delivery_begin(&s->delivery, &begin, subscription_place(s));
    return 1;
}

/** A message that is not valid, in place of its delivery. Inside a transaction the COMMIT's position covers it, outside of
 *  one its own has to be acknowledged: the router has it among what this subscription may still ask for. */
static int withhold(struct walbus_subscription *s, const struct frame_message *message)
{
    s->withheld++;
    if (message->flags & FRAME_FLAG_TRANSACTIONAL)
        return 0;
    owe(s, message->position);
    delivery_progress(&s->delivery, message->position);
    return 1;
}

static int on_message(struct walbus_subscription *s, struct frame_header h, const uint8_t *body,
                      char why[SEQUENCE_WHY_SIZE])
{
    struct frame_message message;
    int rc = frame_message_decode(h, body, &message);
    bool known = rc == 0 && is_known(s, message.position);

    if (rc == 0 && !known) /* before its place is noted: without memory the frame comes again */
        rc = subscription_verify(s, &message);
    if (rc == 0)
        rc = sequence_message(&s->sequence, &message, why);
    if (rc < 0)
        return rc;
    if (known)
        return 0;
    if (s->valid_only && s->delivery.verified.status != VERIFY_VALID)
        return withhold(s, &message);
    owe(s, message.position);
    delivery_message(&s->delivery, &message,
                     position_compare(message.position, s->redelivered_to) <= 0, s->verifies);
    return 1;
}

static int on_commit(struct walbus_subscription *s, struct frame_header h, const uint8_t *body,
                     char why[SEQUENCE_WHY_SIZE])
{
    struct frame_commit commit;
    int rc = frame_commit_decode(h, body, &commit);

    if (rc == 0)
        rc = sequence_commit(&s->sequence, &commit, why);
    if (rc < 0)
        return rc;
    if (is_known(s, s->sequence.last))
        return 0;
    owe(s, s->sequence.last);
    delivery_commit(&s->delivery, &commit);
    return 1;
}

static int on_progress(struct walbus_subscription *s, struct frame_header h, const uint8_t *body,
                       char why[SEQUENCE_WHY_SIZE])
{
    struct position progress;
    int rc = frame_progress_decode(h, body, &progress);

    if (rc == 0)
        rc = sequence_progress(&s->sequence, progress, why);
    if (rc < 0)
        return rc;
    if (is_known(s, progress))
        return 0;
    subscription_settle(s);
    delivery_progress(&s->delivery, progress);
    return 1;
}

/** 1: the delivery is made; 0: it was made by an earlier connection, or is a breach; -ENOMEM. */
static int on_data(struct walbus_subscription *s, struct frame_header h, const uint8_t *body)
{
    char why[SEQUENCE_WHY_SIZE] = "Its length cannot be right.";
    int rc;

    switch (h.type) {
    case FRAME_BEGIN:
        rc = on_begin(s, h, body, why);
        break;
    case FRAME_MESSAGE:
        rc = on_message(s, h, body, why);
        break;
    case FRAME_COMMIT:
        rc = on_commit(s, h, body, why);
        break;
    case FRAME_PROGRESS:
        rc = on_progress(s, h, body, why);
        break;
    default:
        assert(h.type == FRAME_GAP);
        rc = on_gap(s, h, body, why);
        break;
    }
    if (rc >= 0 || rc == -ENOMEM)
        return rc;
    breach_of_body(s, h.type, why);
    return 0;
}

int subscription_on_frame(struct walbus_subscription *s, struct frame_header h, const uint8_t *body)
{
    struct bytes bytes = {body, h.size};

    switch (h.type) {
    case FRAME_WELCOME:
        return on_welcome(s, bytes);
    case FRAME_SUBSCRIBED:
        return on_subscribed(s, bytes);
    case FRAME_ERROR:
        return on_error(s, bytes);
    case FRAME_ACKED:
    case FRAME_BEGIN:
    case FRAME_MESSAGE:
    case FRAME_COMMIT:
    case FRAME_PROGRESS:
    case FRAME_GAP:
        if (s->state == STATE_READY)
            return h.type == FRAME_ACKED ? on_acked(s, bytes) : on_data(s, h, body);
        break;
    default:
        break;
    }
    breach_of_order(s, h.type);
    return 0;
}
