/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "session_fixture.h"
#include "unit.h"

START_TEST(malformed_bodies)
{
    static const struct {
        uint8_t type;
        const char *begins;
    } cases[] = {{FRAME_HELLO, "HELLO: "},
                 {FRAME_SUBSCRIBE, "SUBSCRIBE: "},
                 {FRAME_ACK, "ACK: "},
                 {FRAME_REQUEST, "REQUEST: "},
                 {FRAME_ERROR, "ERROR: "}};
    static const struct bytes bodies[] = {{NULL, 0},
                                          {(const uint8_t *)"\xa0", 1},
                                          {(const uint8_t *)"\xff\xff", 2},
                                          {(const uint8_t *)"\xa1\x01", 2}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t k = 0; k < ARRAY_SIZE(bodies); k++) {
            struct control_error error;
            char why[CONTROL_WHY_SIZE];

            setup();
            if (cases[i].type == FRAME_ACK)
                subscribe();
            else if (cases[i].type != FRAME_HELLO)
                greet();
            put_frame(cases[i].type, 0, bodies[k].data, bodies[k].size);
            send_out();
            ck_assert_int_eq(control_error_decode(next(FRAME_ERROR), &error, why), 0);
            unit_assert_text(error.code, CONTROL_ERROR_PROTOCOL);
            ck_assert(error.fatal);
            ck_assert_uint_gt(error.text.size, strlen(cases[i].begins));
            ck_assert_mem_eq(error.text.data, cases[i].begins, strlen(cases[i].begins));
            assert_end();
            teardown();
        }
    }
}
END_TEST

START_TEST(unknown_frames)
{
    static const struct {
        uint8_t type;
        const char *text;
    } cases[] = {
        {0x00, "a client does not send frame type 0x00 (unknown)"},
        {0x0a, "a client does not send frame type 0x0a (unknown)"},
        {0xff, "a client does not send frame type 0xff (unknown)"},
        {FRAME_WELCOME, "a client does not send frame type 0x02 (WELCOME)"},
        {FRAME_MESSAGE, "a client does not send frame type 0x11 (MESSAGE)"},
        {FRAME_GAP, "a client does not send frame type 0x14 (GAP)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setup();
        subscribe();
        put_frame(cases[i].type, FRAME_FLAG_IGNORABLE, "body", 4);
        put_frame(cases[i].type, 0xff, NULL, 0);
        put_ack(owner.start, true);
        send_out();
        assert_acked(owner.start); /* the frames before it were skipped */
        put_frame(cases[i].type, 0x7f, "body", 4);
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, cases[i].text);
        teardown();
    }
}
END_TEST

START_TEST(largest_body)
{
    uint8_t *body = calloc(1, FRAME_CONTROL_MAX);
    static const uint8_t over[] = {0x00, 0x10, 0x00, 0x01, 0x7f, FRAME_FLAG_IGNORABLE, 0, 0};

    ck_assert_ptr_nonnull(body);
    setup();
    greet();
    put_frame(0x7f, FRAME_FLAG_IGNORABLE, body, FRAME_CONTROL_MAX);
    put_request(1);
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    ck_assert_uint_eq(session->in_size, 0);
    put_request(1); /* an empty buffer falls back */
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    ck_assert_uint_eq(session->in_cap, 4096);
    buf_append(&out, over, sizeof over); /* one more is refused by the header alone */
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL,
                 "a frame body of 1048577 bytes, at most 1048576 are accepted");
    teardown();
    free(body);
}
END_TEST

START_TEST(headers_that_are_none)
{
    static const char *const hex[] = {"00000001 01 00 0100 a0", "00000001 01 00 0001 a0",
                                      "ffffffff ff ff ffff"};

    for (size_t i = 0; i < ARRAY_SIZE(hex); i++) {
        struct bytes raw = unit_from_hex(hex[i]);

        setup();
        buf_append(&out, raw.data, raw.size);
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, "a frame's bytes 6 and 7 must be zero");
        teardown();
        unit_free(raw);
    }
}
END_TEST

START_TEST(input_in_pieces_of_every_size)
{
    static const size_t pieces[] = {1, 2, 3, 7, 8, 9, 50, SIZE_MAX};

    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        setup();
        put_hello();
        put_frame(0x7f, FRAME_FLAG_IGNORABLE, NULL, 0);
        put_subscribe();
        put_request(1);
        put_ack(owner.start, true);
        put_request(2);
        send_in_pieces(pieces[i]);
        (void)next(FRAME_WELCOME);
        (void)next(FRAME_SUBSCRIBED);
        assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
        assert_acked(owner.start);
        assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
        assert_silent();
        ck_assert_uint_eq(owner.requests, 2);
        ck_assert_uint_eq(session->in_size, 0);
        teardown();
    }
}
END_TEST

START_TEST(random_input)
{
    struct unit_random random = unit_random_init();
    unsigned ended = 0;

    for (unsigned round = 0; round < 100; round++) {
        setup();
        if (round % 2)
            greet();
        put_hello();
        put_subscribe();
        put_request(1);
        put_ack(owner.start, true);
        for (unsigned i = 0; i < 3; i++) /* a few wrong bytes */
            out.data[unit_random_below(&random, (uint32_t)out.size)] =
                (uint8_t)unit_random_next(&random);
        send_in_pieces(1 + unit_random_below(&random, 100));
        ended += session == NULL;
        teardown();
    }
    ck_assert_uint_ge(ended, 50); /* HELLO twice at the least */
}
END_TEST

START_TEST(a_header_that_is_refused_behind_requests_of_a_turn)
{
    static const uint8_t over[] = {0xff, 0xff, 0xff, 0xff, 0x7f, FRAME_FLAG_IGNORABLE, 0, 0};

    for (int subscribed = 0; subscribed < 2; subscribed++) {
        setup();
        if (subscribed)
            subscribe();
        else
            greet();
        for (unsigned i = 0; i < SESSION_REQUESTS_A_TURN; i++)
            put_request(i);
        buf_append(&out, over, sizeof over);
        send_out();
        for (unsigned i = 0; i < SESSION_REQUESTS_A_TURN; i++)
            assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
        /* Its body never comes: nothing but the header itself makes the session look at it. */
        assert_fatal(CONTROL_ERROR_PROTOCOL,
                     "a frame body of 4294967295 bytes, at most 1048576 are accepted");
        teardown();
    }
}
END_TEST

START_TEST(who_says_no_more_is_told_why_it_is_refused)
{
    for (int state = 0; state < 3; state++) {
        setup();
        if (state == 1)
            greet();
        if (state == 2)
            subscribe();
        put_frame(FRAME_GAP, 0, "body", 4);
        ck_assert_int_eq(send(client, out.data, out.size, MSG_NOSIGNAL), (ssize_t)out.size);
        buf_clear(&out);
        ck_assert_int_eq(shutdown(client, SHUT_WR), 0); /* both are there in the same turn */
        turns(3);
        assert_fatal(CONTROL_ERROR_PROTOCOL,
                     state == 0 ? "HELLO expected first, found frame type 0x14"
                                : "a client does not send frame type 0x14 (GAP)");
        teardown();
    }
}
END_TEST

UNIT_MAIN("session_input", malformed_bodies, unknown_frames, largest_body, headers_that_are_none,
          input_in_pieces_of_every_size, a_header_that_is_refused_behind_requests_of_a_turn,
          who_says_no_more_is_told_why_it_is_refused, random_input)
