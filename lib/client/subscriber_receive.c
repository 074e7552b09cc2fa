/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscriber_private.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"

static void send_subscribe(struct subscriber *s)
{
    bool resume = !position_is_zero(s->sequence.last);
    struct control_subscribe subscribe = {
        .filters = s->filters,
        .n_filters = s->n_filters,
        .exclusions = s->exclusions,
        .n_exclusions = s->n_exclusions,
        .start = resume ? CONTROL_START_POSITION : CONTROL_START_NOW,
        .position = s->sequence.last,
    };
    control_subscribe_encode(&subscribe, &s->out);
    s->resuming = resume;
    s->state = STATE_SUBSCRIBING;
}

int subscriber_fail(struct subscriber *s, const char *code, const char *why,
                    struct subscriber_event *ret)
{
    struct control_error error = {
        .code = bytes_of_text(code),
        .fatal = true,
    };

    if (why != s->why)
        (void)snprintf(s->why, sizeof s->why, "%s", why);
    error.text = bytes_of_text(s->why);
    if (s->out_sent == s->out.size)
        control_error_encode(&error, &s->out);
    s->ack_queued = false;
    (void)subscriber_flush(s);
    subscriber_disconnect(s);
    s->state = STATE_FAILED;
    ret->kind = SUBSCRIBER_ERROR;
    ret->error = error;
    return 1;
}

static int fail_order(struct subscriber *s, uint8_t type, struct subscriber_event *ret)
{
    static const char *const when[] = {
        [STATE_NEW] = "before a connection",       [STATE_WAITING] = "before a connection",
        [STATE_GREETING] = "before WELCOME",       [STATE_SUBSCRIBING] = "before SUBSCRIBED",
        [STATE_READY] = "where it has no meaning", [STATE_FAILED] = "after the end",
    };

    (void)snprintf(s->why, sizeof s->why, "The router sent a frame of type %s (0x%02x) %s.",
                   frame_type_name(type), type, when[s->state]);
    return subscriber_fail(s, CONTROL_ERROR_PROTOCOL, s->why, ret);
}

static int fail_body(struct subscriber *s, uint8_t type, const char *why,
                     struct subscriber_event *ret)
{
    (void)snprintf(s->why, sizeof s->why, "%s: %s", frame_type_name(type), why);
    return subscriber_fail(s, CONTROL_ERROR_PROTOCOL, s->why, ret);
}

/** The position held is worth nothing to this router: goes on from now, and says so. */
static void lose_position(struct subscriber *s, const char *because)
{
    char text[POSITION_TEXT_SIZE], sentence[SUBSCRIBER_WHY_SIZE];

    (void)snprintf(sentence, sizeof sentence,
                   "Cannot go on behind %s (%s); going on from now, messages may be missing.",
                   position_format(s->sequence.last, text), because);
    sequence_start(&s->sequence, (struct position){0});
    s->ack_queued = s->ack_confirm = false;
    subscriber_notify(s, SUBSCRIBER_NOTICE_LOST, sentence);
}

static bool identity_is_other(const struct subscriber *s, struct bytes identity)
{
    struct bytes held = bytes_of_text(s->identity);

    return held.size > 0 && identity.size > 0 && !bytes_equal(held, identity);
}

static int become_ready(struct subscriber *s, struct subscriber_event *ret)
{
    s->state = STATE_READY;
    s->ready_ns = clock_monotonic_ns();
    ret->kind = SUBSCRIBER_READY;
    return 1;
}

static int on_welcome(struct subscriber *s, struct bytes body, struct subscriber_event *ret)
{
    struct control_welcome welcome;
    char why[CONTROL_WHY_SIZE];

    if (s->state != STATE_GREETING)
        return fail_order(s, FRAME_WELCOME, ret);
    if (control_welcome_decode(body, &welcome, why) < 0)
        return fail_body(s, FRAME_WELCOME, why, ret);
    if (welcome.version != PROTOCOL_VERSION || welcome.layout != FRAME_LAYOUT)
        return subscriber_fail(
            s, CONTROL_ERROR_VERSION,
            "The router chose a protocol version or frame layout that was not offered.", ret);
    if (s->n_filters == 0) {
        ret->ready = (struct control_subscribed){0};
        return become_ready(s, ret);
    }
    if (!position_is_zero(s->sequence.last) && identity_is_other(s, welcome.identity))
        lose_position(s, "it belongs to another journal");
    send_subscribe(s);
    return 0;
}

static int on_subscribed(struct subscriber *s, struct bytes body, struct subscriber_event *ret)
{
    struct control_subscribed subscribed;
    char why[CONTROL_WHY_SIZE];

    if (s->state != STATE_SUBSCRIBING)
        return fail_order(s, FRAME_SUBSCRIBED, ret);
    if (control_subscribed_decode(body, &subscribed, why) < 0)
        return fail_body(s, FRAME_SUBSCRIBED, why, ret);
    if (subscribed.identity.size >= sizeof s->identity)
        return fail_body(s, FRAME_SUBSCRIBED, "The journal identity is too long.", ret);
    if (s->resuming) {
        if (identity_is_other(s, subscribed.identity)) {
            /* the WELCOME could not tell: the router had not reached its server. Asked for anew, since it
             * would now wait for a position that means nothing there. */
            lose_position(s, "it belongs to another journal");
            subscriber_disconnect(s);
            subscriber_wait_for_retry(s);
            return 0;
        }
        if (position_compare(subscribed.position, s->sequence.last) < 0)
            return fail_body(s, FRAME_SUBSCRIBED, "It starts before the position asked for.", ret);
        else if (position_compare(subscribed.position, s->sequence.last) > 0)
            lose_position(s, "the router starts later");
    }
    if (subscribed.identity.size > 0) {
        memcpy(s->identity, subscribed.identity.data, subscribed.identity.size);
        s->identity[subscribed.identity.size] = '\0';
    }
    sequence_start(&s->sequence, subscribed.position);
    s->redelivered_to = subscribed.redelivered_to;
    ret->ready = subscribed;
    return become_ready(s, ret);
}

static int on_error(struct subscriber *s, struct bytes body, struct subscriber_event *ret)
{
    struct control_error error;
    char why[CONTROL_WHY_SIZE];

    if (control_error_decode(body, &error, why) < 0)
        return fail_body(s, FRAME_ERROR, why, ret);
    struct bytes unsupported = {(const uint8_t *)CONTROL_ERROR_UNSUPPORTED,
                                strlen(CONTROL_ERROR_UNSUPPORTED)};
    struct bytes invalid = bytes_of_text(CONTROL_ERROR_INVALID);
    struct bytes stopping = {(const uint8_t *)CONTROL_ERROR_STOPPING,
                             strlen(CONTROL_ERROR_STOPPING)};

    if (bytes_equal(error.code, stopping)) {
        s->stopping = true;
        return 0;
    }
    if (s->state == STATE_SUBSCRIBING && s->resuming && !error.has_id &&
        (bytes_equal(error.code, unsupported) || bytes_equal(error.code, invalid))) {
        lose_position(s, "the router cannot serve it");
        if (error.fatal) {
            subscriber_disconnect(s);
            subscriber_wait_for_retry(s);
        } else {
            send_subscribe(s);
        }
        return 0;
    }
    /* Before READY there is nothing that an error could leave intact. */
    error.fatal |= s->state != STATE_READY;
    if (error.fatal) {
        /* The text lies in the read buffer, which stays until the next connection. */
        s->fd = fd_close(s->fd);
        s->state = STATE_FAILED;
    }
    ret->kind = SUBSCRIBER_ERROR;
    ret->error = error;
    return 1;
}

static int on_data(struct subscriber *s, struct frame_header h, const uint8_t *body,
                   struct subscriber_event *ret)
{
    char why[SEQUENCE_WHY_SIZE] = "Its length cannot be right.";
    int rc;

    switch (h.type) {
    case FRAME_BEGIN:
        ret->kind = SUBSCRIBER_BEGIN;
        rc = frame_begin_decode(h, body, &ret->begin);
        if (rc == 0)
            rc = sequence_begin(&s->sequence, &ret->begin, why);
        break;
    case FRAME_MESSAGE:
        ret->kind = SUBSCRIBER_MESSAGE;
        rc = frame_message_decode(h, body, &ret->message);
        if (rc == 0)
            rc = sequence_message(&s->sequence, &ret->message, why);
        ret->redelivered =
            rc == 0 && position_compare(ret->message.position, s->redelivered_to) <= 0;
        break;
    case FRAME_COMMIT:
        ret->kind = SUBSCRIBER_COMMIT;
        rc = frame_commit_decode(h, body, &ret->commit);
        if (rc == 0)
            rc = sequence_commit(&s->sequence, &ret->commit, why);
        break;
    case FRAME_PROGRESS:
        ret->kind = SUBSCRIBER_PROGRESS;
        rc = frame_progress_decode(h, body, &ret->progress);
        if (rc == 0)
            rc = sequence_progress(&s->sequence, ret->progress, why);
        break;
    default:
        assert(h.type == FRAME_GAP);
        ret->kind = SUBSCRIBER_GAP;
        rc = frame_gap_decode(h, body, &ret->gap);
        if (rc == 0)
            rc = sequence_gap(&s->sequence, &ret->gap, why);
        break;
    }
    return rc < 0 ? fail_body(s, h.type, why, ret) : 1;
}

int subscriber_on_frame(struct subscriber *s, struct frame_header h, const uint8_t *body,
                        struct subscriber_event *ret)
{
    struct bytes bytes = {body, h.size};
    struct control_ack acked;
    char why[CONTROL_WHY_SIZE];

    switch (h.type) {
    case FRAME_WELCOME:
        return on_welcome(s, bytes, ret);
    case FRAME_SUBSCRIBED:
        return on_subscribed(s, bytes, ret);
    case FRAME_ERROR:
        return on_error(s, bytes, ret);
    case FRAME_ACKED:
        if (s->state != STATE_READY)
            return fail_order(s, h.type, ret);
        if (control_ack_decode(bytes, &acked, why) < 0)
            return fail_body(s, h.type, why, ret);
        ret->kind = SUBSCRIBER_ACKED;
        ret->acked = acked.position;
        return 1;
    case FRAME_REPLY:
        if (s->state != STATE_READY)
            return fail_order(s, h.type, ret);
        if (control_reply_decode(bytes, &ret->reply, why) < 0)
            return fail_body(s, h.type, why, ret);
        ret->kind = SUBSCRIBER_REPLY;
        return 1;
    case FRAME_BEGIN:
    case FRAME_MESSAGE:
    case FRAME_COMMIT:
    case FRAME_PROGRESS:
    case FRAME_GAP:
        if (s->state != STATE_READY || s->n_filters == 0)
            return fail_order(s, h.type, ret);
        return on_data(s, h, body, ret);
    default:
        return h.flags & FRAME_FLAG_IGNORABLE ? 0 : fail_order(s, h.type, ret);
    }
}
