/* SPDX-License-Identifier: PostgreSQL */
#include "control_bodies.h"

#include "codec/cbor.h"
#include "codec/frame.h"
#include "unit.h"

int body_decode(uint8_t type, struct bytes body, union body *ret, char why[CONTROL_WHY_SIZE])
{
    why[0] = '\0';
    switch (type) {
    case FRAME_HELLO:
        return control_hello_decode(body, &ret->hello, why);
    case FRAME_WELCOME:
        return control_welcome_decode(body, &ret->welcome, why);
    case FRAME_SUBSCRIBE:
        return control_subscribe_decode(body, &ret->subscribe, why);
    case FRAME_SUBSCRIBED:
        return control_subscribed_decode(body, &ret->subscribed, why);
    case FRAME_ACK:
    case FRAME_ACKED:
        return control_ack_decode(body, &ret->ack, why);
    case FRAME_REQUEST:
        return control_request_decode(body, &ret->request, why);
    case FRAME_REPLY:
        return control_reply_decode(body, &ret->reply, why);
    case FRAME_ERROR:
        return control_error_decode(body, &ret->error, why);
    }
    ck_abort_msg("no control frame: %u", type);
}

void body_deinit(uint8_t type, union body *b)
{
    if (type == FRAME_SUBSCRIBE)
        control_subscribe_deinit(&b->subscribe);
}

void body_put_pair(struct buf *out, const struct pair *pair)
{
    struct bytes value = unit_from_hex(pair->value);

    cbor_put_str(out, pair->key);
    buf_append(out, value.data, value.size);
    unit_free(value);
}

int body_decode_pairs(uint8_t type, const struct pair *pairs, size_t n, char why[CONTROL_WHY_SIZE])
{
    struct buf map = BUF_INIT;
    union body b;

    cbor_put_map(&map, n);
    for (size_t i = 0; i < n; i++)
        body_put_pair(&map, &pairs[i]);
    struct bytes body = unit_exact(buf_bytes(&map));
    int r = body_decode(type, body, &b, why);
    if (r == 0)
        body_deinit(type, &b);
    unit_free(body);
    buf_deinit(&map);
    return r;
}
