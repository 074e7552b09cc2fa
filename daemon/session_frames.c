/* SPDX-License-Identifier: PostgreSQL */
#include "session_frames.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(struct session *s, const char *code, const char *fmt, ...) PRINTF_LIKE(3, 4);

static void refuse(struct session *s, const char *code, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    session_error(s, code, text, true);
}

static void handle_hello(struct session *s, struct bytes body)
{
    struct control_hello hello;
    char why[CONTROL_WHY_SIZE];

    if (s->state != SESSION_GREETING) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "HELLO came twice");
        return;
    }
    if (control_hello_decode(body, &hello, why) < 0) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "HELLO: %s", why);
        return;
    }
    if (hello.min > PROTOCOL_VERSION || hello.max < PROTOCOL_VERSION) {
        refuse(s, CONTROL_ERROR_VERSION,
               "protocol versions %llu to %llu offered, this router speaks %d",
               (unsigned long long)hello.min, (unsigned long long)hello.max, PROTOCOL_VERSION);
        return;
    }
    if (hello.layout < FRAME_LAYOUT) {
        refuse(s, CONTROL_ERROR_VERSION,
               "data-frame layout %llu offered, this router writes layout %d",
               (unsigned long long)hello.layout, FRAME_LAYOUT);
        return;
    }
    struct control_welcome welcome = {
        .version = PROTOCOL_VERSION,
        .layout = FRAME_LAYOUT,
        .server = {(const uint8_t *)"walbusd " WALBUS_VERSION, strlen("walbusd " WALBUS_VERSION)},
        .max_frame = FRAME_CONTROL_MAX,
        .max_filters = FILTERS_MAX,
    };
    session_set(s, SESSION_READY);
    (void)uv_timer_again(&s->timer); /* from here on the silence allowed is SESSION_READY_MS */
    s->ops->welcome(s->owner, &welcome);
    control_welcome_encode(&welcome, outbox_control(&s->outbox));
}

/* Their text, and nodes for all their tokens. */
static size_t subscribe_cost(const struct control_subscribe *c, size_t body)
{
    size_t n = c->n_filters + c->n_exclusions;

    for (size_t i = 0; i < c->n_filters; i++)
        n += filter_tokens(&c->filters[i]);
    for (size_t i = 0; i < c->n_exclusions; i++)
        n += filter_tokens(&c->exclusions[i]);
    return body + n * SESSION_FILTER_COST;
}

static void handle_subscribe(struct session *s, struct bytes body)
{
    char why[CONTROL_WHY_SIZE];

    if (s->state != SESSION_READY) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "SUBSCRIBE came twice: one connection carries one subscription");
        return;
    }
    /* the decoded frame borrows from its bytes, which must outlive this turn: the answer may take time */
    uint8_t *copy = malloc(body.size ? body.size : 1);
    if (!copy) {
        session_close(s, "no memory");
        return;
    }
    if (body.size)
        memcpy(copy, body.data, body.size);
    int r = control_subscribe_decode((struct bytes){copy, body.size}, &s->subscribe, why);
    if (r < 0) {
        free(copy);
        if (r == -ENOMEM)
            session_close(s, "no memory");
        else
            refuse(s, CONTROL_ERROR_PROTOCOL, "SUBSCRIBE: %s", why);
        return;
    }
    s->subscribe_body = copy;
    size_t cost = subscribe_cost(&s->subscribe, body.size);
    const char *whose = s->ops->room(s->owner, s, cost);
    if (whose) {
        refuse(s, CONTROL_ERROR_LIMIT, "the subscriptions of %s have too many filters", whose);
        return;
    }
    s->filters_cost = cost;
    session_set(s, SESSION_WAITING);
    s->waiting_since = uv_now(s->timer.loop);
    uv_timer_stop(&s->timer);
    s->ops->subscribe(s->owner, s);
}

static void handle_ack(struct session *s, struct bytes body)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];

    if (s->state != SESSION_ACTIVE && !s->lingers) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "ACK without a subscription");
        return;
    }
    if (control_ack_decode(body, &ack, why) < 0) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "ACK: %s", why);
        return;
    }
    const struct position sent = position_later(s->told, s->sent);
    if (position_compare(ack.position, sent) > 0) {
        char given[POSITION_TEXT_SIZE], told[POSITION_TEXT_SIZE];
        refuse(s, CONTROL_ERROR_INVALID, "ACK of %s, but nothing beyond %s was sent",
               position_format(ack.position, given), position_format(sent, told));
        return;
    }
    if (position_compare(ack.position, s->acked) > 0)
        s->acked = ack.position;
    if (position_compare(s->acked, sent) >= 0)
        s->owes = false;
    s->ops->acked(s->owner, s, ack.confirm);
}

static void handle_request(struct session *s, struct bytes body)
{
    struct control_request request;
    char why[CONTROL_WHY_SIZE];

    if (s->state == SESSION_GREETING) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "REQUEST before HELLO");
        return;
    }
    if (outbox_waiting_control(&s->outbox) > SESSION_ANSWERS_MAX) {
        refuse(s, CONTROL_ERROR_LIMIT, "%zu bytes of answers wait to be read before another request",
               outbox_waiting_control(&s->outbox));
        return;
    }
    if (control_request_decode(body, &request, why) < 0) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "REQUEST: %s", why);
        return;
    }
    s->requests++;
    session_put_acked(s); /* answers come in the order of what they answer */
    s->ops->request(s->owner, s, &request);
}

static void handle_error(struct session *s, struct bytes body)
{
    struct control_error error;
    char why[CONTROL_WHY_SIZE];

    if (control_error_decode(body, &error, why) < 0) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "ERROR: %s", why);
        return;
    }
    if (error.fatal)
        session_close(s, "the client reported a fatal error");
}

static void handle_frame(struct session *s, struct frame_header h, struct bytes body)
{
    if (s->state == SESSION_GREETING && h.type != FRAME_HELLO &&
        !(h.flags & FRAME_FLAG_IGNORABLE)) {
        refuse(s, CONTROL_ERROR_PROTOCOL, "HELLO expected first, found frame type 0x%02x", h.type);
        return;
    }
    if (s->state == SESSION_LEAVING && h.type != FRAME_ACK)
        return; /* nothing else matters any more */
    switch (h.type) {
    case FRAME_HELLO:
        handle_hello(s, body);
        return;
    case FRAME_SUBSCRIBE:
        handle_subscribe(s, body);
        return;
    case FRAME_ACK:
        handle_ack(s, body);
        return;
    case FRAME_REQUEST:
        handle_request(s, body);
        return;
    case FRAME_ERROR:
        handle_error(s, body);
        return;
    default:
        if (!(h.flags & FRAME_FLAG_IGNORABLE))
            refuse(s, CONTROL_ERROR_PROTOCOL, "a client does not send frame type 0x%02x (%s)",
                   h.type, frame_type_name(h.type));
    }
}

static bool wants_input(const struct session *s)
{
    return s->state != SESSION_CLOSED && (s->state != SESSION_LEAVING || s->lingers);
}

static uint32_t frame_max(const struct session *s)
{
    return s->state == SESSION_GREETING ? SESSION_HELLO_MAX : FRAME_CONTROL_MAX;
}

void session_handle_input(struct session *s)
{
    size_t at = 0;

    while (wants_input(s) && !session_is_choked(s) && s->requests < SESSION_REQUESTS_A_TURN && s->in_size - at >= FRAME_HEADER_SIZE) {
        struct frame_header h;

        bool leaving = s->state == SESSION_LEAVING;
        if (frame_header_decode(s->in + at, &h) < 0) {
            refuse(s, CONTROL_ERROR_PROTOCOL, "a frame's bytes 6 and 7 must be zero");
            s->lingers &= !leaving; /* no more can be made out */
            break;
        }
        if (h.size > frame_max(s)) {
            s->lingers &= !leaving;
            refuse(s, CONTROL_ERROR_PROTOCOL, "a frame body of %u bytes%s, at most %u are accepted",
                   h.size, s->state == SESSION_GREETING ? " before HELLO" : "", frame_max(s));
            break;
        }
        if (s->in_size - at - FRAME_HEADER_SIZE < h.size)
            break;
        handle_frame(s, h, (struct bytes){s->in + at + FRAME_HEADER_SIZE, h.size});
        at += FRAME_HEADER_SIZE + h.size;
        if (s->state == SESSION_READY)
            (void)uv_timer_again(&s->timer); /* a whole frame; single bytes buy no time */
    }
    if (!wants_input(s))
        at = s->in_size; /* what a refused client still says is read and dropped */
    memmove(s->in, s->in + at, s->in_size - at);
    s->in_size -= at;
}

bool session_frame_waits(const struct session *s)
{
    struct frame_header h;

    if (!wants_input(s) || s->in_size < FRAME_HEADER_SIZE)
        return false;
    /* What is refused by its header is not waited for to its end. */
    return frame_header_decode(s->in, &h) < 0 || h.size > frame_max(s) ||
           s->in_size - FRAME_HEADER_SIZE >= h.size;
}

size_t session_input_wanted(const struct session *s)
{
    struct frame_header h;

    if (s->in_size < FRAME_HEADER_SIZE || frame_header_decode(s->in, &h) < 0 ||
        h.size > frame_max(s))
        return FRAME_HEADER_SIZE;
    size_t whole = FRAME_HEADER_SIZE + (size_t)h.size;
    return whole > s->in_size ? whole - s->in_size : 1;
}
