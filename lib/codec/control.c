/* SPDX-License-Identifier: PostgreSQL */
/* The control bodies that are their keys and no more; SUBSCRIBE is in control_subscribe.c. */
#include "codec/control.h"

#include "codec/control_fields.h"

static const struct control_field hello_fields[] = {
    REQUIRED(FIELD_UINT, struct control_hello, "max", max),
    REQUIRED(FIELD_UINT, struct control_hello, "min", min),
    OPTIONAL(FIELD_TEXT, struct control_hello, "client", client),
    REQUIRED(FIELD_UINT, struct control_hello, "layout", layout),
};

static const struct control_field welcome_fields[] = {
    REQUIRED(FIELD_UINT, struct control_welcome, "layout", layout),
    REQUIRED(FIELD_TEXT, struct control_welcome, "server", server),
    REQUIRED(FIELD_UINT, struct control_welcome, "version", version),
    REQUIRED(FIELD_TEXT, struct control_welcome, "identity", identity),
    REQUIRED(FIELD_POSITION, struct control_welcome, "position", position),
    REQUIRED(FIELD_UINT, struct control_welcome, "timeline", timeline),
    REQUIRED(FIELD_UINT, struct control_welcome, "max_frame", max_frame),
    REQUIRED(FIELD_UINT, struct control_welcome, "max_filters", max_filters),
};

static const struct control_field subscribed_fields[] = {
    REQUIRED(FIELD_BOOL, struct control_subscribed, "stored", stored),
    REQUIRED(FIELD_TEXT, struct control_subscribed, "identity", identity),
    REQUIRED(FIELD_POSITION, struct control_subscribed, "position", position),
    REQUIRED(FIELD_UINT, struct control_subscribed, "timeline", timeline),
    OPTIONAL(FIELD_POSITION, struct control_subscribed, "redelivered_to", redelivered_to),
};

static const struct control_field ack_fields[] = {
    OPTIONAL(FIELD_BOOL, struct control_ack, "confirm", confirm),
    REQUIRED(FIELD_POSITION, struct control_ack, "position", position),
};

static const struct control_field request_fields[] = {
    REQUIRED(FIELD_UINT, struct control_request, "id", id),
    OPTIONAL(FIELD_ITEM, struct control_request, "args", args),
    REQUIRED(FIELD_TEXT, struct control_request, "what", what),
};

static const struct control_field reply_fields[] = {
    REQUIRED(FIELD_UINT, struct control_reply, "id", id),
    REQUIRED(FIELD_ITEM, struct control_reply, "result", result),
};

static const struct control_field error_fields[] = {
    FLAGGED(FIELD_UINT, struct control_error, "id", id, has_id),
    REQUIRED(FIELD_TEXT, struct control_error, "code", code),
    REQUIRED(FIELD_TEXT, struct control_error, "text", text),
    REQUIRED(FIELD_BOOL, struct control_error, "fatal", fatal),
};

_Static_assert(ARRAY_SIZE(welcome_fields) <= CONTROL_FIELDS_MAX, "a bit of `seen` for each row");

/* A decoder writes its output only on success. */
#define DECODE(body, fields, ret, why)                                                       \
    do {                                                                                     \
        __typeof__(*(ret)) decoded_ = {0};                                                   \
        int r_ = control_fields_get((body), (fields), ARRAY_SIZE(fields), &decoded_, (why)); \
        if (r_ < 0)                                                                          \
            return r_;                                                                       \
        *(ret) = decoded_;                                                                   \
        return 0;                                                                            \
    } while (0)

void control_hello_encode(const struct control_hello *c, struct buf *out)
{
    control_fields_put(out, FRAME_HELLO, hello_fields, ARRAY_SIZE(hello_fields), c);
}

int control_hello_decode(struct bytes body, struct control_hello *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, hello_fields, ret, why);
}

void control_welcome_encode(const struct control_welcome *c, struct buf *out)
{
    control_fields_put(out, FRAME_WELCOME, welcome_fields, ARRAY_SIZE(welcome_fields), c);
}

int control_welcome_decode(struct bytes body, struct control_welcome *ret,
                           char why[CONTROL_WHY_SIZE])
{
    DECODE(body, welcome_fields, ret, why);
}

void control_subscribed_encode(const struct control_subscribed *c, struct buf *out)
{
    control_fields_put(out, FRAME_SUBSCRIBED, subscribed_fields, ARRAY_SIZE(subscribed_fields), c);
}

int control_subscribed_decode(struct bytes body, struct control_subscribed *ret,
                              char why[CONTROL_WHY_SIZE])
{
    DECODE(body, subscribed_fields, ret, why);
}

void control_ack_encode(const struct control_ack *c, bool acked, struct buf *out)
{
    struct control_ack sent = {.position = c->position, .confirm = !acked && c->confirm};

    control_fields_put(out, acked ? FRAME_ACKED : FRAME_ACK, ack_fields, ARRAY_SIZE(ack_fields),
                       &sent);
}

int control_ack_decode(struct bytes body, struct control_ack *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, ack_fields, ret, why);
}

void control_request_encode(const struct control_request *c, struct buf *out)
{
    control_fields_put(out, FRAME_REQUEST, request_fields, ARRAY_SIZE(request_fields), c);
}

int control_request_decode(struct bytes body, struct control_request *ret,
                           char why[CONTROL_WHY_SIZE])
{
    DECODE(body, request_fields, ret, why);
}

void control_reply_encode(const struct control_reply *c, struct buf *out)
{
    control_fields_put(out, FRAME_REPLY, reply_fields, ARRAY_SIZE(reply_fields), c);
}

int control_reply_decode(struct bytes body, struct control_reply *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, reply_fields, ret, why);
}

void control_error_encode(const struct control_error *c, struct buf *out)
{
    control_fields_put(out, FRAME_ERROR, error_fields, ARRAY_SIZE(error_fields), c);
}

int control_error_decode(struct bytes body, struct control_error *ret, char why[CONTROL_WHY_SIZE])
{
    DECODE(body, error_fields, ret, why);
}
