/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <unistd.h>

#include "session_fixture.h"
#include "unit.h"

/* ---- handshake ---- */

START_TEST(handshake)
{
    struct control_welcome welcome;
    char why[CONTROL_WHY_SIZE];

    setup();
    ck_assert_int_eq(session->pid, getpid());
    ck_assert_uint_eq(session->uid, getuid());
    ck_assert_str_eq(session_state_name(session->state), "greeting");
    assert_silent(); /* the client speaks first */
    put_hello();
    send_out();
    ck_assert_int_eq(control_welcome_decode(next(FRAME_WELCOME), &welcome, why), 0);
    ck_assert_uint_eq(welcome.version, PROTOCOL_VERSION);
    ck_assert_uint_eq(welcome.layout, FRAME_LAYOUT);
    unit_assert_text(welcome.server, "walbusd " WALBUS_VERSION);
    unit_assert_text(welcome.identity, "42/1");
    ck_assert_uint_eq(welcome.timeline, 3);
    ck_assert_int_eq(position_compare(welcome.position, (struct position){3, 0x500, 0}), 0);
    ck_assert_uint_eq(welcome.max_frame, FRAME_CONTROL_MAX);
    ck_assert_uint_eq(welcome.max_filters, FILTERS_MAX);
    ck_assert_str_eq(session_state_name(session->state), "ready");
    ck_assert_uint_eq(owner.welcomes, 1);
    assert_silent();
    teardown();
}
END_TEST

START_TEST(versions)
{
    static const struct {
        uint64_t min, max, layout;
        const char *text; /* NULL: welcome */
    } cases[] = {
        {1, 1, 1, NULL},
        {0, 1, 1, NULL},
        {1, UINT64_MAX, UINT64_MAX, NULL},
        {0, 0, 1, "protocol versions 0 to 0 offered, this router speaks 1"},
        {2, 9, 1, "protocol versions 2 to 9 offered, this router speaks 1"},
        {9, 0, 1, "protocol versions 9 to 0 offered, this router speaks 1"},
        {1, 1, 0, "data-frame layout 0 offered, this router writes layout 1"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct control_hello hello = {cases[i].min, cases[i].max, cases[i].layout, {NULL, 0}};

        setup();
        control_hello_encode(&hello, &out);
        send_out();
        if (cases[i].text) {
            assert_fatal(CONTROL_ERROR_VERSION, cases[i].text);
            ck_assert_uint_eq(owner.welcomes, 0);
        } else {
            (void)next(FRAME_WELCOME);
        }
        teardown();
    }
}
END_TEST

START_TEST(something_else_before_hello)
{
    static const struct {
        uint8_t type;
        const char *text;
    } cases[] = {
        {FRAME_SUBSCRIBE, "HELLO expected first, found frame type 0x03"},
        {FRAME_ACK, "HELLO expected first, found frame type 0x05"},
        {FRAME_REQUEST, "HELLO expected first, found frame type 0x07"},
        {FRAME_MESSAGE, "HELLO expected first, found frame type 0x11"},
        {0x7f, "HELLO expected first, found frame type 0x7f"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setup();
        put_frame(cases[i].type, 0, "\xa0", 1);
        put_hello();
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, cases[i].text);
        ck_assert_uint_eq(owner.welcomes, 0);
        teardown();
    }
    /* what may be ignored is, unless it is known and wrong here */
    setup();
    put_frame(0x7f, FRAME_FLAG_IGNORABLE, "xyz", 3);
    greet();
    teardown();
    setup();
    put_frame(FRAME_SUBSCRIBE, FRAME_FLAG_IGNORABLE, "\xa0", 1);
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL, NULL);
    teardown();
}
END_TEST

START_TEST(hello_twice)
{
    setup();
    greet();
    put_hello();
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL, "HELLO came twice");
    ck_assert_uint_eq(owner.welcomes, 1);
    teardown();
}
END_TEST

/* ---- subscribing ---- */

START_TEST(subscribing)
{
    struct control_subscribed subscribed;
    char why[CONTROL_WHY_SIZE];

    setup();
    owner.answer = false;
    greet();
    put_subscribe();
    send_out();
    ck_assert_uint_eq(owner.subscribes, 1);
    ck_assert_str_eq(session_state_name(session->state), "waiting");
    ck_assert_uint_eq(session->subscribe.n_filters, 2);
    ck_assert_int_eq(session->subscribe.filters[0].kind, FILTER_PATTERN);
    unit_assert_text(session->subscribe.filters[0].text, "a.>");
    ck_assert_int_eq(session->subscribe.filters[1].kind, FILTER_EXACT);
    unit_assert_text(session->subscribe.filters[1].text, "b");
    ck_assert_int_eq(session->subscribe.start, CONTROL_START_NOW);
    ck_assert(!uv_is_active((uv_handle_t *)&session->timer)); /* the answer may take time */
    /* it may ask meanwhile, and its frame is still there for the owner */
    put_request(9);
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    unit_assert_text(session->subscribe.filters[0].text, "a.>");
    owner.start = (struct position){1, 0x500, 3};
    answer_subscribe(session);
    ck_assert(session->must_flush);
    session_flush(session);
    ck_assert_int_eq(control_subscribed_decode(next(FRAME_SUBSCRIBED), &subscribed, why), 0);
    ck_assert_int_eq(position_compare(subscribed.position, owner.start), 0);
    unit_assert_text(subscribed.identity, "42/1");
    ck_assert_str_eq(session_state_name(session->state), "active");
    ck_assert_int_eq(position_compare(session->told, owner.start), 0);
    ck_assert_int_eq(position_compare(session->acked, owner.start), 0);
    ck_assert_ptr_null(session->subscribe_body);
    teardown();
}
END_TEST

START_TEST(subscribing_twice)
{
    for (int active = 0; active < 2; active++) {
        setup();
        owner.answer = active;
        greet();
        put_subscribe();
        put_subscribe();
        send_out();
        if (active)
            (void)next(FRAME_SUBSCRIBED);
        assert_fatal(CONTROL_ERROR_PROTOCOL,
                     "SUBSCRIBE came twice: one connection carries one subscription");
        ck_assert_uint_eq(owner.subscribes, 1);
        teardown();
    }
}
END_TEST

START_TEST(a_refused_subscribe_may_be_tried_again)
{
    setup();
    owner.answer = false;
    greet();
    put_subscribe();
    send_out();
    session_error(session, CONTROL_ERROR_UNSUPPORTED, "Not that.", false);
    session_flush(session);
    assert_error(CONTROL_ERROR_UNSUPPORTED, "Not that.", false);
    ck_assert_int_eq(session->state, SESSION_READY);
    ck_assert_ptr_null(session->subscribe_body);
    ck_assert(uv_is_active((uv_handle_t *)&session->timer));
    owner.answer = true;
    put_subscribe();
    send_out();
    (void)next(FRAME_SUBSCRIBED);
    ck_assert_uint_eq(owner.subscribes, 2);
    teardown();
}
END_TEST

START_TEST(acknowledging)
{
    static const struct position start = {1, 0x50, 0}, later = {1, 0x80, 0};

    setup();
    subscribe();
    put_ack(start, true);
    send_out();
    assert_acked(start);
    session_send_progress(session, later);
    session_flush(session);
    ck_assert_int_eq(position_compare(position_decode(next(FRAME_PROGRESS).data), later), 0);
    put_ack((struct position){1, 0x7f, 9}, false); /* not confirmed: silence */
    send_out();
    assert_silent();
    ck_assert_int_eq(position_compare(session->acked, (struct position){1, 0x7f, 9}), 0);
    put_ack(later, true);
    send_out();
    assert_acked(later);
    put_ack(start, true); /* an older one takes nothing back */
    send_out();
    assert_acked(later);
    put_ack((struct position){1, 0x80, 1}, true);
    send_out();
    assert_fatal(CONTROL_ERROR_INVALID, "ACK of 1:0/80:1, but nothing beyond 1:0/80:0 was sent");
    teardown();
}
END_TEST

START_TEST(acknowledging_without_subscription)
{
    for (int waiting = 0; waiting < 2; waiting++) {
        setup();
        owner.answer = false;
        greet();
        if (waiting)
            put_subscribe();
        put_ack((struct position){0, 0, 0}, true);
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, "ACK without a subscription");
        teardown();
    }
}
END_TEST

START_TEST(requests)
{
    struct control_reply reply;
    struct control_error error;
    char why[CONTROL_WHY_SIZE];

    setup();
    greet();
    owner.reply = unit_bytes("\x63"
                             "abc");
    put_request(77);
    send_out();
    ck_assert_int_eq(control_reply_decode(next(FRAME_REPLY), &reply, why), 0);
    ck_assert_uint_eq(reply.id, 77);
    ck_assert_str_eq(owner.what, "status");
    unit_assert_hex(reply.result, "63616263");
    owner.reply.size = 0;
    put_request(78);
    send_out();
    ck_assert_int_eq(control_error_decode(next(FRAME_ERROR), &error, why), 0);
    ck_assert(error.has_id && error.id == 78 && !error.fatal);
    unit_assert_text(error.text, "No.");
    ck_assert_uint_eq(owner.requests, 2);
    ck_assert_int_eq(session->state, SESSION_READY);
    teardown();
}
END_TEST

START_TEST(errors_of_the_client)
{
    struct control_error error = {.code = unit_bytes("invalid"), .text = unit_bytes("Hm.")};

    setup();
    subscribe();
    control_error_encode(&error, &out);
    send_out();
    assert_silent();
    ck_assert_int_eq(session->state, SESSION_ACTIVE);
    error.fatal = true;
    control_error_encode(&error, &out);
    put_ack(owner.start, true);
    send_out();
    assert_end(); /* and what came behind it is not looked at */
    teardown();
}
END_TEST

UNIT_MAIN("session", handshake, versions, something_else_before_hello, hello_twice, subscribing,
          subscribing_twice, a_refused_subscribe_may_be_tried_again, acknowledging,
          acknowledging_without_subscription, requests, errors_of_the_client)
