/* SPDX-License-Identifier: PostgreSQL */
#include "codec/control.h"

#include <errno.h>
#include <string.h>

#include "codec/cbor.h"
#include "codec/frame.h"
#include "control_bodies.h"
#include "unit.h"

static void encode(uint8_t type, const union body *b, struct buf *out)
{
    switch (type) {
    case FRAME_HELLO:
        control_hello_encode(&b->hello, out);
        return;
    case FRAME_WELCOME:
        control_welcome_encode(&b->welcome, out);
        return;
    case FRAME_SUBSCRIBE:
        control_subscribe_encode(&b->subscribe, out);
        return;
    case FRAME_SUBSCRIBED:
        control_subscribed_encode(&b->subscribed, out);
        return;
    case FRAME_ACK:
    case FRAME_ACKED:
        control_ack_encode(&b->ack, type == FRAME_ACKED, out);
        return;
    case FRAME_REQUEST:
        control_request_encode(&b->request, out);
        return;
    case FRAME_REPLY:
        control_reply_encode(&b->reply, out);
        return;
    case FRAME_ERROR:
        control_error_encode(&b->error, out);
        return;
    }
    ck_abort_msg("no control frame: %u", type);
}

/* Bodies as the encoders write them: the encoding that comes back must be these bytes. */
static const struct canonical {
    uint8_t type;
    const char *hex;
} canonicals[] = {
    /* {"max": 1, "min": 1, "layout": 1} */
    {FRAME_HELLO, "a3 636d6178 01 636d696e 01 666c61796f7574 01"},
    /* … and "client": "tail" */
    {FRAME_HELLO, "a4 636d6178 1903e8 636d696e 01 66636c69656e74 647461696c "
                  "666c61796f7574 1bffffffffffffffff"},
    {FRAME_WELCOME, "a8 666c61796f7574 01 66736572766572 6a77616c62757320302e31 "
                    "6776657273696f6e 01 686964656e74697479 63372f31 68706f736974696f6e " P1 " "
                    "6874696d656c696e65 01 696d61785f6672616d65 1a00100000 "
                    "6b6d61785f66696c74657273 190400"},
    {FRAME_WELCOME, "a8 666c61796f7574 00 66736572766572 60 6776657273696f6e 00 "
                    "686964656e74697479 60 "
                    "68706f736974696f6e 50 00000000000000000000000000000000 "
                    "6874696d656c696e65 00 696d61785f6672616d65 00 6b6d61785f66696c74657273 00"},
    /* {"start": "now", "filters": [[0, h'3e']]} */
    {FRAME_SUBSCRIBE, "a2 657374617274 636e6f77 6766696c74657273 81 82 00 41 3e"},
    {FRAME_SUBSCRIBE, "a2 657374617274 666f6c64657374 6766696c74657273 83 "
                      "82 00 40 82 01 43 612e62 82 02 42 ff00"},
    {FRAME_SUBSCRIBE, "a4 646e616d65 6173 657374617274 6673746f726564 "
                      "6766696c74657273 81 82 00 412a 6974616b655f6f766572 f5"},
    {FRAME_SUBSCRIBE, "a4 657374617274 68706f736974696f6e "
                      "676578636c756465 82 82 01 4178 82 00 41 79 "
                      "6766696c74657273 81 82 00 413e 68706f736974696f6e " P1},
    {FRAME_SUBSCRIBE, "a3 6474696d65 1b000644c08d2bad80 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBE, "a3 6474696d65 3b7fffffffffffffff 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBE, "a3 6474696d65 00 657374617274 6474696d65 "
                      "6766696c74657273 81 82 00 413e"},
    {FRAME_SUBSCRIBED, "a4 6673746f726564 f4 686964656e74697479 60 68706f736974696f6e " P1 " "
                       "6874696d656c696e65 01"},
    {FRAME_SUBSCRIBED, "a5 6673746f726564 f5 686964656e74697479 63372f31 "
                       "68706f736974696f6e " P1 " 6874696d656c696e65 1affffffff "
                       "6e726564656c6976657265645f746f " P2},
    {FRAME_ACK, "a1 68706f736974696f6e " P1},
    {FRAME_ACK, "a2 67636f6e6669726d f5 68706f736974696f6e " P2},
    {FRAME_ACKED, "a1 68706f736974696f6e " P2},
    /* {"id": 7, "what": "status"} */
    {FRAME_REQUEST, "a2 626964 07 6477686174 66737461747573"},
    {FRAME_REQUEST, "a3 626964 00 6461726773 a16161 820102 6477686174 60"},
    {FRAME_REPLY, "a2 626964 1bffffffffffffffff 66726573756c74 f6"},
    {FRAME_REPLY, "a2 626964 01 66726573756c74 9f 5f 41 00 ff fb 3ff199999999999a ff"},
    {FRAME_ERROR, "a3 64636f6465 6870726f746f636f6c 6474657874 62c3a9 65666174616c f5"},
    {FRAME_ERROR, "a4 626964 00 64636f6465 60 6474657874 60 65666174616c f4"},
};

START_TEST(canonical_bodies_come_back)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        uint8_t type = canonicals[i].type;
        struct bytes body = unit_from_hex(canonicals[i].hex);
        struct buf out = BUF_INIT;
        struct frame_header h;
        union body b;
        char why[CONTROL_WHY_SIZE];

        ck_assert_msg(body_decode(type, body, &b, why) == 0, "case %zu: %s", i, why);
        /* Behind something that is there already: frames are gathered in one buffer. */
        buf_append_str(&out, "before");
        encode(type, &b, &out);
        ck_assert(!out.failed);
        ck_assert_uint_eq(out.size, 6 + FRAME_HEADER_SIZE + body.size);
        unit_assert_text((struct bytes){out.data, 6}, "before");
        ck_assert_int_eq(frame_header_decode(out.data + 6, &h), 0);
        ck_assert_uint_eq(h.size, body.size);
        ck_assert_uint_eq(h.type, type);
        ck_assert_uint_eq(h.flags, 0);
        unit_assert_hex((struct bytes){out.data + 6 + FRAME_HEADER_SIZE, body.size},
                        canonicals[i].hex);
        buf_deinit(&out);
        body_deinit(type, &b);
        unit_free(body);
    }
}
END_TEST

START_TEST(keys_stand_in_deterministic_order)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex), before = {NULL, 0}, key;
        struct cbor_reader r = cbor_reader_init(body);
        uint64_t pairs;

        ck_assert_int_eq(cbor_read_map(&r, &pairs), CBOR_OK);
        for (; pairs; pairs--) {
            ck_assert_int_eq(cbor_read_text(&r, &key), CBOR_OK);
            ck_assert_int_eq(cbor_read_item(&r, NULL), CBOR_OK);
            ck_assert(before.size < key.size ||
                      (before.size == key.size && memcmp(before.data, key.data, key.size) < 0));
            before = key;
        }
        unit_free(body);
    }
}
END_TEST

START_TEST(bodies_cut_at_every_byte)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex);

        for (size_t size = 0; size < body.size; size++) {
            struct bytes cut = unit_exact((struct bytes){body.data, size});
            union body b;
            char why[CONTROL_WHY_SIZE];

            ck_assert_msg(body_decode(canonicals[i].type, cut, &b, why) == -EBADMSG,
                          "case %zu of %zu bytes", i, size);
            ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
            unit_free(cut);
        }
        unit_free(body);
    }
}
END_TEST

START_TEST(bodies_with_something_behind)
{
    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        struct bytes body = unit_from_hex(canonicals[i].hex);
        struct buf longer = BUF_INIT;
        union body b;
        char why[CONTROL_WHY_SIZE];

        buf_append(&longer, body.data, body.size);
        buf_append_u8(&longer, 0xf6);
        ck_assert_int_eq(body_decode(canonicals[i].type, buf_bytes(&longer), &b, why), -EBADMSG);
        ck_assert_int_eq(strncmp(why, "The body is not one CBOR item: ", 31), 0);
        buf_deinit(&longer);
        unit_free(body);
    }
}
END_TEST

/* Every byte of every body replaced by every other: no fault of memory, a sentence for each
 * refusal, and what is accepted survives encoding and decoding unchanged. */
START_TEST(bodies_with_any_byte_replaced)
{
    size_t accepted = 0, refused = 0;

    for (size_t i = 0; i < ARRAY_SIZE(canonicals); i++) {
        uint8_t type = canonicals[i].type;
        struct bytes body = unit_from_hex(canonicals[i].hex);
        uint8_t *raw = (uint8_t *)(uintptr_t)body.data;

        for (size_t at = 0; at < body.size; at++) {
            uint8_t good = raw[at];

            for (unsigned v = 0; v < 256; v++) {
                struct buf once = BUF_INIT, twice = BUF_INIT;
                union body b, again;
                char why[CONTROL_WHY_SIZE];

                raw[at] = (uint8_t)v;
                if (body_decode(type, body, &b, why) != 0) {
                    if (why[0] == '\0' || why[strlen(why) - 1] != '.')
                        ck_abort_msg("case %zu, byte %zu is %u: \"%s\"", i, at, v, why);
                    refused++;
                    continue;
                }
                encode(type, &b, &once);
                struct bytes copy = {once.data + FRAME_HEADER_SIZE, once.size - FRAME_HEADER_SIZE};
                if (body_decode(type, copy, &again, why) != 0)
                    ck_abort_msg("case %zu, byte %zu is %u, again: %s", i, at, v, why);
                encode(type, &again, &twice);
                if (!bytes_equal(buf_bytes(&once), buf_bytes(&twice)))
                    ck_abort_msg("case %zu, byte %zu is %u: encoded differently", i, at, v);
                body_deinit(type, &again);
                body_deinit(type, &b);
                buf_deinit(&once);
                buf_deinit(&twice);
                accepted++;
            }
            raw[at] = good;
        }
        unit_free(body);
    }
    ck_assert_uint_gt(accepted, 1000);
    ck_assert_uint_gt(refused, 1000);
}
END_TEST

/* ---- each frame's members ---- */

START_TEST(members_arrive_in_their_places)
{
    struct buf out = BUF_INIT;
    char why[CONTROL_WHY_SIZE];

    struct control_hello hello = {1, 2, 3, unit_bytes("client")};
    control_hello_encode(&hello, &out);
    struct bytes body = {out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&hello, 0, sizeof hello);
    ck_assert_int_eq(control_hello_decode(body, &hello, why), 0);
    ck_assert_uint_eq(hello.min, 1);
    ck_assert_uint_eq(hello.max, 2);
    ck_assert_uint_eq(hello.layout, 3);
    unit_assert_text(hello.client, "client");

    struct control_welcome welcome = {
        .version = 1,
        .layout = 2,
        .server = unit_bytes("walbusd"),
        .identity = unit_bytes("7/1"),
        .timeline = 3,
        .position = place1,
        .max_frame = 4,
        .max_filters = 5,
    };
    buf_clear(&out);
    control_welcome_encode(&welcome, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&welcome, 0, sizeof welcome);
    ck_assert_int_eq(control_welcome_decode(body, &welcome, why), 0);
    ck_assert_uint_eq(welcome.version, 1);
    ck_assert_uint_eq(welcome.layout, 2);
    unit_assert_text(welcome.server, "walbusd");
    unit_assert_text(welcome.identity, "7/1");
    ck_assert_uint_eq(welcome.timeline, 3);
    ck_assert_int_eq(position_compare(welcome.position, place1), 0);
    ck_assert_uint_eq(welcome.max_frame, 4);
    ck_assert_uint_eq(welcome.max_filters, 5);

    struct control_subscribed subscribed = {place1, true, place2, unit_bytes("7/1"), 9};
    buf_clear(&out);
    control_subscribed_encode(&subscribed, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&subscribed, 0, sizeof subscribed);
    ck_assert_int_eq(control_subscribed_decode(body, &subscribed, why), 0);
    ck_assert_int_eq(position_compare(subscribed.position, place1), 0);
    ck_assert_int_eq(position_compare(subscribed.redelivered_to, place2), 0);
    ck_assert(subscribed.stored);
    unit_assert_text(subscribed.identity, "7/1");
    ck_assert_uint_eq(subscribed.timeline, 9);

    struct control_error error = {unit_bytes("limit"), unit_bytes("Full."), true, true, 77};
    buf_clear(&out);
    control_error_encode(&error, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&error, 0, sizeof error);
    ck_assert_int_eq(control_error_decode(body, &error, why), 0);
    unit_assert_text(error.code, CONTROL_ERROR_LIMIT);
    unit_assert_text(error.text, "Full.");
    ck_assert(error.fatal);
    ck_assert(error.has_id);
    ck_assert_uint_eq(error.id, 77);

    struct control_request request = {7, unit_bytes("what"),
                                      (struct bytes){(uint8_t *)"\x82\x01\x02", 3}};
    buf_clear(&out);
    control_request_encode(&request, &out);
    body = (struct bytes){out.data + FRAME_HEADER_SIZE, out.size - FRAME_HEADER_SIZE};
    memset(&request, 0, sizeof request);
    ck_assert_int_eq(control_request_decode(body, &request, why), 0);
    ck_assert_uint_eq(request.id, 7);
    unit_assert_text(request.what, "what");
    unit_assert_hex(request.args, "820102");
    buf_deinit(&out);
}
END_TEST

START_TEST(acked_never_asks_to_confirm)
{
    struct buf out = BUF_INIT;
    struct control_ack ack = {place2, true};

    control_ack_encode(&ack, true, &out);
    unit_assert_hex(buf_bytes(&out), "0000001b 06 00 0000 a1 68706f736974696f6e " P2);
    buf_clear(&out);
    control_ack_encode(&ack, false, &out);
    unit_assert_hex(buf_bytes(&out),
                    "00000024 05 00 0000 a2 67636f6e6669726d f5 68706f736974696f6e " P2);
    buf_deinit(&out);
}
END_TEST

START_TEST(nothing_is_written_on_failure)
{
    struct control_error error = {.id = 9, .has_id = true};
    struct control_subscribe subscribe = {.time = 9};
    struct bytes no_text = unit_from_hex("a3 626964 05 64636f6465 60 65666174616c f4");
    struct bytes bad_filter = unit_from_hex("a1 6766696c74657273 82 82 00 40 82 03 40");
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_error_decode(no_text, &error, why), -EBADMSG);
    ck_assert_str_eq(why, "The key \"text\" is missing.");
    ck_assert_uint_eq(error.id, 9);
    ck_assert_int_eq(control_subscribe_decode(bad_filter, &subscribe, why), -EBADMSG);
    ck_assert_str_eq(why, "Entry 2 of \"filters\" is of the unknown kind 3.");
    ck_assert_ptr_null(subscribe.filters);
    ck_assert_int_eq(subscribe.time, 9);
    unit_free(no_text);
    unit_free(bad_filter);
}
END_TEST

START_TEST(failed_buffers_stay_failed)
{
    struct buf out = BUF_INIT;
    struct control_hello hello = {0};
    struct filter everything = {FILTER_PATTERN, unit_bytes(">")};
    struct control_subscribe subscribe = {.filters = &everything, .n_filters = 1};

    ck_assert_ptr_null(buf_reserve(&out, SIZE_MAX));
    control_hello_encode(&hello, &out);
    control_subscribe_encode(&subscribe, &out);
    ck_assert(out.failed);
    ck_assert_uint_eq(out.size, 0);
    buf_deinit(&out);
}
END_TEST

UNIT_MAIN("control", canonical_bodies_come_back, keys_stand_in_deterministic_order,
          bodies_cut_at_every_byte, bodies_with_something_behind, bodies_with_any_byte_replaced,
          members_arrive_in_their_places, acked_never_asks_to_confirm,
          nothing_is_written_on_failure, failed_buffers_stay_failed)
