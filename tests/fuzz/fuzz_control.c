/* SPDX-License-Identifier: PostgreSQL */
/*
 * The control frames' bodies. The first byte of the input is the frame's type, the rest its body.
 * What was decoded is encoded, decoded again and compared; and encoded again, to the same bytes.
 */
#include "codec/control.h"

#include <errno.h>

#include "codec/cbor.h"
#include "codec/frame.h"
#include "fuzz.h"
#include "rewrite.h"

static bool same_position(struct position a, struct position b)
{
    return position_compare(a, b) == 0;
}

static bool same_hello(const struct control_hello *a, const struct control_hello *b)
{
    return a->min == b->min && a->max == b->max && a->layout == b->layout &&
           bytes_equal(a->client, b->client);
}

static bool same_welcome(const struct control_welcome *a, const struct control_welcome *b)
{
    return a->version == b->version && a->layout == b->layout &&
           bytes_equal(a->server, b->server) && bytes_equal(a->identity, b->identity) &&
           a->timeline == b->timeline && same_position(a->position, b->position) &&
           a->max_frame == b->max_frame && a->max_filters == b->max_filters;
}

static bool same_filters(const struct filter *a, size_t n_a, const struct filter *b, size_t n_b)
{
    if (n_a != n_b)
        return false;
    for (size_t i = 0; i < n_a; i++)
        if (a[i].kind != b[i].kind || !bytes_equal(a[i].text, b[i].text))
            return false;
    return true;
}

/* "position" and "time" travel only with the start that needs them. */
static bool same_subscribe(const struct control_subscribe *a, const struct control_subscribe *b)
{
    return same_filters(a->filters, a->n_filters, b->filters, b->n_filters) &&
           same_filters(a->exclusions, a->n_exclusions, b->exclusions, b->n_exclusions) &&
           bytes_equal(a->name, b->name) && a->start == b->start && a->take_over == b->take_over &&
           a->override == b->override &&
           (a->start != CONTROL_START_POSITION || same_position(a->position, b->position)) &&
           (a->start != CONTROL_START_TIME || a->time == b->time);
}

static bool same_subscribed(const struct control_subscribed *a, const struct control_subscribed *b)
{
    return same_position(a->position, b->position) && a->stored == b->stored &&
           same_position(a->redelivered_to, b->redelivered_to) &&
           bytes_equal(a->identity, b->identity) && a->timeline == b->timeline;
}

static bool same_ack(const struct control_ack *a, const struct control_ack *b)
{
    return same_position(a->position, b->position) && a->confirm == b->confirm;
}

static bool same_request(const struct control_request *a, const struct control_request *b)
{
    return a->id == b->id && bytes_equal(a->what, b->what) && bytes_equal(a->args, b->args);
}

static bool same_reply(const struct control_reply *a, const struct control_reply *b)
{
    return a->id == b->id && bytes_equal(a->result, b->result);
}

static bool same_error(const struct control_error *a, const struct control_error *b)
{
    return bytes_equal(a->code, b->code) && bytes_equal(a->text, b->text) && a->fatal == b->fatal &&
           a->has_id == b->has_id && a->id == b->id;
}

/* The body of the one frame in `out`, which must be of this type and one deterministic map. */
static struct bytes body_of(const struct buf *out, uint8_t type)
{
    struct frame_header h;
    struct bytes body = {out->data + FRAME_HEADER_SIZE, out->size - FRAME_HEADER_SIZE};

    FUZZ_CHECK(!out->failed && out->size > FRAME_HEADER_SIZE);
    FUZZ_CHECK(frame_header_decode(out->data, &h) == 0);
    FUZZ_CHECK(h.type == type && h.flags == 0 && h.size == body.size);
    FUZZ_CHECK(cbor_check(body, NULL) == CBOR_OK);

    struct cbor_reader r = cbor_reader_init(body);
    struct bytes before = {NULL, 0}, key;
    uint64_t n;
    FUZZ_CHECK(cbor_read_map(&r, &n) == CBOR_OK);
    for (; n > 0; n--) {
        FUZZ_CHECK(cbor_read_text(&r, &key) == CBOR_OK && cbor_read_item(&r, NULL) == CBOR_OK);
        FUZZ_CHECK(before.size < key.size ||
                   (before.size == key.size && memcmp(before.data, key.data, key.size) < 0));
        before = key;
    }
    return body;
}

/* The value of a key in a map of definite length; how often it stands there. */
static unsigned find(struct bytes body, struct bytes wanted, struct bytes *ret)
{
    struct cbor_reader r = cbor_reader_init(body);
    struct bytes key, value;
    unsigned found = 0;
    uint64_t n;

    FUZZ_CHECK(cbor_read_map(&r, &n) == CBOR_OK);
    for (; n > 0; n--) {
        FUZZ_CHECK(cbor_read_text(&r, &key) == CBOR_OK && cbor_read_item(&r, &value) == CBOR_OK);
        if (bytes_equal(key, wanted)) {
            *ret = value;
            found++;
        }
    }
    return found;
}

static bool is_key(struct bytes key, const char *name)
{
    return bytes_equal(key, bytes_of_text(name));
}

/* What is written was read: each key stands in the first body once, with the same value. Only the
 * start has a default, and a filter's text may have come as text. */
static void check_origin(struct bytes first, struct bytes written)
{
    struct cbor_reader r = cbor_reader_init(written);
    struct bytes key, value, origin;
    uint64_t n;

    FUZZ_CHECK(cbor_read_map(&r, &n) == CBOR_OK);
    for (; n > 0; n--) {
        struct buf a = BUF_INIT, b = BUF_INIT;

        FUZZ_CHECK(cbor_read_text(&r, &key) == CBOR_OK && cbor_read_item(&r, &value) == CBOR_OK);
        unsigned times = find(first, key, &origin);
        if (is_key(key, "start") && times == 0) {
            FUZZ_CHECK(cbor_read_text(
                           &(struct cbor_reader){value.data, value.data, value.data + value.size},
                           &origin) == CBOR_OK);
            FUZZ_CHECK(is_key(origin, "now"));
            continue;
        }
        FUZZ_CHECK(times == 1);
        if (is_key(key, "filters") || is_key(key, "exclude"))
            continue;
        (void)rewrite(origin, false, &a);
        (void)rewrite(value, false, &b);
        FUZZ_CHECK(bytes_equal(buf_bytes(&a), buf_bytes(&b)));
        buf_deinit(&a);
        buf_deinit(&b);
    }
}

static void free_nothing(void *unused)
{
    (void)unused;
}

static void free_subscribe(struct control_subscribe *c)
{
    control_subscribe_deinit(c);
}

static void ack_encode(const struct control_ack *c, struct buf *out)
{
    control_ack_encode(c, false, out);
}

static void acked_encode(const struct control_ack *c, struct buf *out)
{
    control_ack_encode(c, true, out);
}

static bool same_acked(const struct control_ack *a, const struct control_ack *b)
{
    return same_position(a->position, b->position) && !b->confirm;
}

#define CHECK_BODY(name, frame, encode, same, discard)                               \
    static void check_##name(struct bytes body)                                      \
    {                                                                                \
        struct control_##name c, again;                                              \
        char why[CONTROL_WHY_SIZE];                                                  \
        struct buf out = BUF_INIT, out_again = BUF_INIT;                             \
                                                                                     \
        fuzz_mark(&c, sizeof c);                                                     \
        int r = control_##name##_decode(body, &c, why);                              \
        if (r < 0) {                                                                 \
            FUZZ_CHECK(r == -EBADMSG && fuzz_is_marked(&c, sizeof c));               \
            FUZZ_CHECK_WHY(why);                                                     \
            return;                                                                  \
        }                                                                            \
        encode(&c, &out);                                                            \
        FUZZ_CHECK(control_##name##_decode(body_of(&out, frame), &again, why) == 0); \
        FUZZ_CHECK(same(&c, &again));                                                \
        check_origin(body, body_of(&out, frame));                                    \
        encode(&again, &out_again);                                                  \
        FUZZ_CHECK(bytes_equal(buf_bytes(&out), buf_bytes(&out_again)));             \
        discard(&c);                                                                 \
        discard(&again);                                                             \
        buf_deinit(&out);                                                            \
        buf_deinit(&out_again);                                                      \
    }

CHECK_BODY(hello, FRAME_HELLO, control_hello_encode, same_hello, free_nothing)
CHECK_BODY(welcome, FRAME_WELCOME, control_welcome_encode, same_welcome, free_nothing)
CHECK_BODY(subscribe, FRAME_SUBSCRIBE, control_subscribe_encode, same_subscribe, free_subscribe)
CHECK_BODY(subscribed, FRAME_SUBSCRIBED, control_subscribed_encode, same_subscribed, free_nothing)
CHECK_BODY(ack, FRAME_ACK, ack_encode, same_ack, free_nothing)
CHECK_BODY(request, FRAME_REQUEST, control_request_encode, same_request, free_nothing)
CHECK_BODY(reply, FRAME_REPLY, control_reply_encode, same_reply, free_nothing)
CHECK_BODY(error, FRAME_ERROR, control_error_encode, same_error, free_nothing)

/* ACKED is decoded as ACK is, and written without "confirm". */
static void check_acked(struct bytes body)
{
    struct control_ack c, again;
    char why[CONTROL_WHY_SIZE];
    struct buf out = BUF_INIT;

    if (control_ack_decode(body, &c, why) < 0)
        return;
    acked_encode(&c, &out);
    FUZZ_CHECK(control_ack_decode(body_of(&out, FRAME_ACKED), &again, why) == 0);
    FUZZ_CHECK(same_acked(&c, &again));
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct bytes body = {data + 1, size - 1};
    switch (data[0]) {
    case FRAME_HELLO:
        check_hello(body);
        break;
    case FRAME_WELCOME:
        check_welcome(body);
        break;
    case FRAME_SUBSCRIBE:
        check_subscribe(body);
        break;
    case FRAME_SUBSCRIBED:
        check_subscribed(body);
        break;
    case FRAME_ACK:
        check_ack(body);
        check_acked(body);
        break;
    case FRAME_REQUEST:
        check_request(body);
        break;
    case FRAME_REPLY:
        check_reply(body);
        break;
    case FRAME_ERROR:
        check_error(body);
        break;
    default:
        return -1; /* libFuzzer: not worth keeping */
    }
    return 0;
}
