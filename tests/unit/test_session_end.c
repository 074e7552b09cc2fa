/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "session_fixture.h"
#include "unit.h"

/* A size that no allocator has, so that a failed allocation can be seen; the sanitizer must give
 * NULL for it too. */
#define TOO_LARGE ((size_t)1 << 46)
const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

START_TEST(a_fatal_error_finishes_the_begun_frame)
{
    enum { SIZE = 3000000 };
    struct frame_header h;
    const uint8_t *body;

    setup();
    subscribe();
    struct batch *batch = new_batch();
    add_message(batch, 0x100, 0, 10);
    add_message(batch, 0x108, 0, SIZE); /* more than a socket takes */
    batch_seal(batch);
    deliver(batch, 0);
    batch = new_batch();
    add_message(batch, 0x200, 0, 10);
    batch_seal(batch);
    deliver(batch, 0);
    ck_assert_uint_eq(session->outbox.n, 2);
    ck_assert_uint_eq(pool.live, 2);
    session_error(session, CONTROL_ERROR_STOPPING, "Bye.", true);
    ck_assert_str_eq(session_state_name(session->state), "leaving");
    ck_assert_uint_eq(pool.live, 1); /* what was not begun is dropped */
    session_error(session, CONTROL_ERROR_STOPPING, "Bye again.", true);
    batch = new_batch();
    add_message(batch, 0x300, 0, 10);
    batch_seal(batch);
    deliver(batch, 0); /* and nothing is taken any more */
    put_request(1);    /* nor heard */
    send_out();
    ck_assert_uint_eq(owner.requests, 0);
    ck_assert_uint_eq(owner.closed, 0);
    assert_message(0x100, 0);
    ck_assert(frame(&h, &body));
    ck_assert_uint_eq(h.type, FRAME_MESSAGE);
    ck_assert_uint_eq(h.size, FRAME_MESSAGE_FIXED + 3 + SIZE);
    assert_fatal(CONTROL_ERROR_STOPPING, "Bye.");
    teardown();
}
END_TEST

/** Lets the session's timer fire now, as if its time had passed. */
static void let_time_pass(void)
{
    uv_update_time(&loop);
    uv_timer_set_repeat(&session->timer, 1);
    ck_assert_int_eq(uv_timer_again(&session->timer), 0);
    usleep(3000);
    uv_update_time(&loop);
    turns(3);
}

START_TEST(silence)
{
    setup();
    ck_assert_uint_gt(uv_timer_get_due_in(&session->timer), SESSION_HELLO_MS - 1000);
    ck_assert_uint_le(uv_timer_get_due_in(&session->timer), SESSION_HELLO_MS);
    let_time_pass();
    assert_fatal(CONTROL_ERROR_TIMEOUT, "no HELLO within 10 s");
    teardown();

    /* HELLO begins the longer time; each further word begins it anew */
    setup();
    greet();
    ck_assert_uint_gt(uv_timer_get_due_in(&session->timer), SESSION_READY_MS - 1000);
    put_request(1);
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    ck_assert_uint_gt(uv_timer_get_due_in(&session->timer), SESSION_READY_MS - 1000);
    let_time_pass();
    assert_fatal(CONTROL_ERROR_TIMEOUT, "neither SUBSCRIBE nor REQUEST within 60 s");
    teardown();

    /* a subscriber may be silent for ever */
    setup();
    subscribe();
    ck_assert(!uv_is_active((uv_handle_t *)&session->timer));
    teardown();
}
END_TEST

START_TEST(a_last_error_that_is_not_read)
{
    setup();
    subscribe();
    struct batch *batch = new_batch();
    add_message(batch, 0x108, 0, 3000000);
    batch_seal(batch);
    deliver(batch, 0);
    session_error(session, CONTROL_ERROR_STOPPING, "Bye.", true);
    turns(3);
    ck_assert_uint_eq(owner.closed, 0);
    ck_assert_uint_gt(uv_timer_get_due_in(&session->timer), SESSION_LEAVE_MS - 1000);
    let_time_pass();
    ck_assert_uint_eq(owner.closed, 1);
    teardown();
}
END_TEST

START_TEST(the_client_goes_away)
{
    for (int state = 0; state < 3; state++) {
        setup();
        if (state == 1)
            greet();
        if (state == 2)
            subscribe();
        ck_assert_int_eq(close(client), 0);
        client = -1;
        turns(3);
        ck_assert_ptr_null(session);
        ck_assert_uint_eq(owner.closed, 1);
        teardown();
    }
    /* with something queued, and while writing */
    setup();
    subscribe();
    struct batch *batch = new_batch();
    add_message(batch, 0x108, 0, 3000000);
    batch_seal(batch);
    deliver(batch, 0);
    ck_assert_uint_eq(pool.live, 1);
    ck_assert_int_eq(close(client), 0);
    client = -1;
    session_flush(session); /* EPIPE */
    ck_assert_ptr_null(session);
    ck_assert_uint_eq(pool.live, 0); /* at once, not when libuv has let go */
    teardown();
}
END_TEST

/* How a session learns that its client is gone. */
enum going {
    GOING_READ,     /* the socket's end */
    GOING_WRITE,    /* EPIPE */
    GOING_UNREAD,   /* ECONNRESET, since what it was sent lay unread in its socket */
    GOING_STOPPED,  /* the same, while it is told that the router stops */
    GOING_N,
};

/* What a client said before it went is heard, however much that is: what it has processed does not come again. */
START_TEST(a_last_ack_is_heard)
{
    enum { N = 1000 }; /* 44 bytes each: more than one turn reads */

    for (int going = 0; going < GOING_N; going++) {
        setup();
        subscribe();
        struct batch *batch = new_batch();
        for (unsigned i = 1; i <= N; i++)
            add_message(batch, 0x100 + i, 0, 1);
        batch_seal(batch);
        deliver(batch, 0);
        if (going != GOING_UNREAD && going != GOING_STOPPED)
            ck_assert(receive());
        put_ack((struct position){1, 0x101, 0}, false);
        for (unsigned i = 0; i <= SESSION_REQUESTS_A_TURN; i++)
            put_request(i); /* nobody waits for the answers */
        for (unsigned i = 2; i <= N; i++)
            put_ack((struct position){1, 0x100 + i, 0}, i == N);
        ck_assert_uint_gt(out.size, 4 * 4096);
        ck_assert(send(client, out.data, out.size, MSG_NOSIGNAL) == (ssize_t)out.size);
        buf_clear(&out);
        if (going == GOING_STOPPED)
            session_stop(session, (struct position){1, 0x100 + N, 0}, CONTROL_ERROR_STOPPING, "Bye.");
        ck_assert_int_eq(close(client), 0);
        client = -1;
        if (going == GOING_WRITE) {
            batch = new_batch();
            add_message(batch, 0x2000, 0, 10);
            batch_seal(batch);
            deliver(batch, 0);
        }
        turns(N / 50);
        ck_assert_ptr_null(session);
        ck_assert_uint_eq(owner.closed, 1);
        ck_assert_msg(owner.acked.lsn == 0x100 + N, "%d: up to %lx", going, (unsigned long)owner.acked.lsn);
        teardown();
    }
}
END_TEST

START_TEST(closing_twice)
{
    setup();
    struct session *s = session;
    session_close(s, "once");
    session_close(s, "twice");
    session_flush(s); /* all of these find it closed */
    session_error(s, CONTROL_ERROR_STOPPING, "Bye.", true);
    ck_assert_uint_eq(owner.closed, 1);
    assert_end();
    teardown();
}
END_TEST

/* ---- a client that asks and does not read ---- */

enum asking { ASK_REPLY, ASK_ERROR, ASK_ACKED };

START_TEST(asking_without_reading_is_bounded)
{
    static uint8_t text[4096];

    memset(text, 'x', sizeof text);
    text[0] = 0x79; /* a CBOR text of 4,093 bytes */
    text[1] = 0x0f;
    text[2] = 0xfd;
    for (int what = ASK_REPLY; what <= ASK_ACKED; what++) {
        size_t most = 0;

        setup();
        subscribe();
        if (what == ASK_REPLY)
            owner.reply = (struct bytes){text, sizeof text};
        for (unsigned i = 0; i < 100000 && session && session->state == SESSION_ACTIVE; i++) {
            if (what == ASK_ACKED)
                put_ack(owner.start, true);
            else
                put_request(i);
            if (out.size < 4096)
                continue;
            ssize_t n;
            while ((n = send(client, out.data, out.size, MSG_NOSIGNAL)) < 0 && errno == EAGAIN &&
                   session && session->state == SESSION_ACTIVE)
                turns(1); /* it answers few requests a turn */
            ck_assert(n == (ssize_t)out.size || errno == EPIPE || errno == EAGAIN);
            buf_clear(&out);
            for (unsigned k = 0; k < 3 && session; k++) {
                turns(1);
                if (session)
                    most = MAX(most, session->outbox.control.size);
            }
        }
        ck_assert_uint_le(most, SESSION_ANSWERS_MAX + 2 * sizeof text);
        if (what == ASK_ACKED) { /* one ACKED stands for all: there is always room */
            ck_assert_ptr_nonnull(session);
            ck_assert_int_eq(session->state, SESSION_ACTIVE);
        } else {
            struct frame_header h;
            const uint8_t *body;
            struct control_error error = {0};
            char why[CONTROL_WHY_SIZE];

            while (!error.fatal && frame(&h, &body))
                if (h.type == FRAME_ERROR)
                    ck_assert_int_eq(control_error_decode((struct bytes){body, h.size}, &error, why), 0);
            ck_assert(error.fatal);
            unit_assert_text(error.code, CONTROL_ERROR_LIMIT);
            assert_end();
        }
        teardown();
    }
}
END_TEST

START_TEST(without_room_it_is_refused)
{
    uint8_t *body = calloc(1, FRAME_CONTROL_MAX);

    ck_assert_ptr_nonnull(body);
    setup(); /* HELLO is small */
    put_frame(FRAME_HELLO, 0, body, SESSION_HELLO_MAX);
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL, NULL); /* its content */
    teardown();
    setup();
    put_frame(FRAME_HELLO, 0, body, SESSION_HELLO_MAX + 1);
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL, "a frame body of 4097 bytes before HELLO, at most 4096 are accepted");
    teardown();

    setup(); /* an unfinished frame */
    greet();
    owner.room = 100000;
    put_frame(FRAME_REQUEST, 0, body, 200000);
    out.size = 50; /* a part of it is enough */
    send_out();
    assert_fatal(CONTROL_ERROR_LIMIT, "the router holds too many unfinished frames of all clients");
    teardown();

    setup(); /* the filters; one byte of room more and it is taken */
    greet();
    put_subscribe();
    size_t cost = out.size - FRAME_HEADER_SIZE + 4 * SESSION_FILTER_COST; /* two filters, two tokens */
    owner.room = cost - 1;
    send_out();
    assert_fatal(CONTROL_ERROR_LIMIT, "the subscriptions of all clients have too many filters");
    teardown();
    setup();
    greet();
    put_subscribe();
    owner.room = cost;
    send_out();
    (void)next(FRAME_SUBSCRIBED);
    ck_assert_uint_ge(session_held(session), cost);
    teardown();
    free(body);
}
END_TEST

START_TEST(a_half_closed_client_gets_its_answer)
{
    setup();
    greet();
    put_request(1);
    put_request(2);
    ck_assert(send(client, out.data, out.size, MSG_NOSIGNAL) == (ssize_t)out.size);
    buf_clear(&out);
    ck_assert_int_eq(shutdown(client, SHUT_WR), 0);
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    assert_end();
    teardown();
}
END_TEST

START_TEST(without_memory_for_an_answer_it_ends)
{
    static const uint8_t byte = 0;

    setup();
    subscribe();
    owner.reply = (struct bytes){&byte, TOO_LARGE}; /* never read: there is no room for it */
    put_request(1);
    send_out();
    assert_end();
    teardown();
}
END_TEST

UNIT_MAIN("session_end", a_fatal_error_finishes_the_begun_frame, silence,
          a_last_error_that_is_not_read, the_client_goes_away, a_last_ack_is_heard, closing_twice,
          asking_without_reading_is_bounded, without_room_it_is_refused,
          a_half_closed_client_gets_its_answer, without_memory_for_an_answer_it_ends)
