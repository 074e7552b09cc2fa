/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscriber.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "fake_router.h"
#include "unit.h"

static const struct position start = {1, 100, POSITION_INDEX_END};
static const struct position none = {0, 0, 0};

static void greet(struct fake_router *f)
{
    fake_open(f, "a.>");
    fake_greet(f, CONTROL_START_NOW, none, start);
}

/** One non-transactional message, so that there is a position to go on from. */
static struct position receive_one(struct fake_router *f, uint64_t lsn)
{
    struct buf b = BUF_INIT;

    fake_put_message(&b, lsn, 0, unit_bytes("x"));
    fake_send(f, &b);
    return fake_event(f, SUBSCRIBER_MESSAGE).message.position;
}

START_TEST(goes_on_behind_the_last_position)
{
    struct fake_router f;

    greet(&f);
    struct position last = receive_one(&f, 200);
    fake_hang_up(&f);
    uint64_t before = clock_monotonic_ns();
    fake_no_event(&f);
    ck_assert_uint_eq(f.disconnected, 1);
    ck_assert_int_eq(subscriber_fd(f.sub), -1);
    ck_assert_int_eq(subscriber_events(f.sub), 0);
    ck_assert_int_gt(subscriber_timeout(f.sub), 0);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 49 * UINT64_C(1000000));
    ck_assert_uint_eq(f.lost, 0);
    last = receive_one(&f, 300);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_eq(f.disconnected, 2);
    fake_close(&f);
}
END_TEST

START_TEST(goes_on_inside_a_transaction)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 1, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_BEGIN);
    struct position last = fake_event(&f, SUBSCRIBER_MESSAGE).message.position;
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 2, unit_bytes("x"));
    fake_put_commit(&b, 200);
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_BEGIN);
    (void)fake_event(&f, SUBSCRIBER_MESSAGE);
    (void)fake_event(&f, SUBSCRIBER_COMMIT);
    fake_close(&f);
}
END_TEST

START_TEST(having_seen_nothing_goes_on_from_where_it_was_subscribed)
{
    struct fake_router f;

    greet(&f);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, start, start);
    fake_close(&f);

    fake_open(&f, "a.>");
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_hang_up(&f); /* before SUBSCRIBED: from now */
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_close(&f);
}
END_TEST

START_TEST(half_a_frame_before_the_end_is_forgotten)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_message(&b, 200, 0, unit_bytes("a content"));
    b.size -= 4;
    fake_send(&f, &b);
    fake_no_event(&f);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, start, start);
    (void)receive_one(&f, 200);
    fake_close(&f);
}
END_TEST

START_TEST(a_router_that_is_not_there_yet_is_waited_for)
{
    static const int most[] = {100, 200, 400};
    struct fake_router f;

    fake_open_absent(&f, "a.>");
    ck_assert_int_eq(subscriber_start(f.sub), -ENOENT);
    for (size_t i = 0; i < ARRAY_SIZE(most); i++) {
        int timeout = subscriber_timeout(f.sub);

        ck_assert_msg(timeout >= most[i] / 2 - 10 && timeout <= most[i] + 1, "%d ms", timeout);
        fake_no_event(&f);
        ck_assert_int_eq(poll(NULL, 0, timeout), 0);
        fake_no_event(&f);
    }
    fake_listen(&f);
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_close(&f);
}
END_TEST

START_TEST(delays_end_at_two_seconds)
{
    struct fake_router f;

    fake_open_absent(&f, "a.>");
    ck_assert_int_eq(subscriber_start(f.sub), -ENOENT);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_le(subscriber_timeout(f.sub), 2001);
        ck_assert_int_eq(poll(NULL, 0, subscriber_timeout(f.sub)), 0);
        fake_no_event(&f);
    }
    ck_assert_int_ge(subscriber_timeout(f.sub), 950);
    fake_close(&f);
}
END_TEST

/** Up to a SUBSCRIBE that asks for a position. */
static struct position come_back(struct fake_router *f)
{
    struct buf b = BUF_INIT;

    greet(f);
    struct position last = receive_one(f, 200);
    fake_hang_up(f);
    fake_accept(f);
    (void)fake_read(f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(f, &b);
    (void)fake_read(f, FRAME_SUBSCRIBE);
    return last;
}

static void expect_subscribe_from_now(struct fake_router *f)
{
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;

    ck_assert_int_eq(control_subscribe_decode(fake_read(f, FRAME_SUBSCRIBE), &subscribe, why), 0);
    ck_assert_int_eq(subscribe.start, CONTROL_START_NOW);
    control_subscribe_deinit(&subscribe);
    fake_put_subscribed(&b, (struct position){1, 900, 0}, "7/1");
    fake_send(f, &b);
    (void)fake_event(f, SUBSCRIBER_READY);
}

START_TEST(a_position_that_cannot_be_served_becomes_now_and_is_told)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    (void)come_back(&f);
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, false);
    fake_send(&f, &b);
    expect_subscribe_from_now(&f); /* on the same connection */
    ck_assert_uint_eq(f.lost, 1);
    fake_close(&f);

    (void)come_back(&f);
    fake_put_error(&b, CONTROL_ERROR_INVALID, true);
    fake_send(&f, &b);
    fake_no_event(&f);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_NOW, none, (struct position){1, 900, 0});
    ck_assert_uint_eq(f.lost, 1);
    fake_close(&f);
}
END_TEST

START_TEST(a_later_start_than_asked_for_is_told)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    (void)come_back(&f);
    fake_put_subscribed(&b, (struct position){1, 300, 0}, "7/1");
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_READY);
    ck_assert_uint_eq(f.lost, 1);
    fake_close(&f);

    (void)come_back(&f);
    fake_put_subscribed(&b, (struct position){1, 199, 0}, "7/1"); /* it would come twice */
    fake_send(&f, &b);
    fake_protocol_error(&f, CONTROL_ERROR_PROTOCOL);
    fake_close(&f);
}
END_TEST

START_TEST(a_position_of_another_journal_is_not_asked_for)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, 200);
    fake_hang_up(&f);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "8/1");
    fake_send(&f, &b);
    expect_subscribe_from_now(&f);
    ck_assert_uint_eq(f.lost, 1);
    fake_close(&f);

    /* WELCOME did not know it yet, SUBSCRIBED does: the router would wait for a position that means
     * nothing there, so the subscriber comes again and begins from now. */
    (void)come_back(&f);
    fake_put_subscribed(&b, (struct position){1, 100, 0}, "8/1");
    fake_send(&f, &b);
    fake_no_event(&f);
    fake_hang_up(&f);
    fake_accept(&f);
    ck_assert_uint_eq(f.lost, 1);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "8/1");
    fake_send(&f, &b);
    expect_subscribe_from_now(&f);
    ck_assert_uint_eq(f.lost, 1);
    ck_assert_int_eq(position_compare(subscriber_position(f.sub), (struct position){1, 900, 0}), 0);
    fake_close(&f);
}
END_TEST

START_TEST(a_filter_that_is_refused_is_an_error)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    (void)fake_read(&f, FRAME_SUBSCRIBE);
    fake_put_error(&b, CONTROL_ERROR_INVALID, true);
    fake_send(&f, &b);
    fake_protocol_error(&f, CONTROL_ERROR_INVALID);
    ck_assert_uint_eq(f.lost, 0);
    fake_close(&f);
}
END_TEST

START_TEST(a_router_that_stops_gets_the_last_acknowledgement)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_put_error(&b, CONTROL_ERROR_STOPPING, true);
    fake_send(&f, &b);
    struct position last = fake_event(&f, SUBSCRIBER_MESSAGE).message.position;
    fake_no_event(&f);
    ck_assert_int_eq(subscriber_timeout(f.sub), 0);
    ck_assert_int_eq(subscriber_ack(f.sub, last, false), 0);
    ck_assert_int_eq(subscriber_flush(f.sub), 0);
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, last), 0);
    ck_assert(fake_at_end(&f)); /* the router need not wait for more */
    ck_assert_uint_eq(f.disconnected, 0);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_eq(f.disconnected, 1);
    fake_close(&f);
}
END_TEST

START_TEST(a_fatal_error_waits_for_the_caller)
{
    struct subscriber_event event;
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    struct position last = receive_one(&f, 200);
    fake_put_error(&b, CONTROL_ERROR_TOO_SLOW, true);
    fake_send(&f, &b);
    event = fake_event(&f, SUBSCRIBER_ERROR);
    unit_assert_text(event.error.code, CONTROL_ERROR_TOO_SLOW);
    unit_assert_text(event.error.text, "So it is.");
    ck_assert_int_eq(subscriber_process(f.sub, &event), -ENOTCONN);
    fake_hang_up(&f);
    subscriber_restart(f.sub, true);
    fake_greet(&f, CONTROL_START_NOW, none, (struct position){1, 150, 0});
    ck_assert_uint_eq(f.lost, 0);
    last = receive_one(&f, 300);
    subscriber_restart(f.sub, true); /* nothing to do: it is connected */
    fake_put_error(&b, CONTROL_ERROR_INTERRUPTED, true);
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_ERROR);
    fake_hang_up(&f);
    subscriber_restart(f.sub, false);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    fake_close(&f);
}
END_TEST

START_TEST(an_unsent_acknowledgement_goes_out_on_the_next_connection)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];
    struct fake_router f;

    greet(&f);
    struct position last = receive_one(&f, 200);
    fake_hang_up(&f);
    fake_no_event(&f);
    ck_assert_int_eq(subscriber_ack(f.sub, last, false), 0);
    ck_assert_int_eq(subscriber_flush(f.sub), 0);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, last), 0);
    fake_close(&f);
}
END_TEST

UNIT_MAIN("reconnect", goes_on_behind_the_last_position, goes_on_inside_a_transaction,
          having_seen_nothing_goes_on_from_where_it_was_subscribed,
          half_a_frame_before_the_end_is_forgotten, a_router_that_is_not_there_yet_is_waited_for,
          delays_end_at_two_seconds, a_position_that_cannot_be_served_becomes_now_and_is_told,
          a_later_start_than_asked_for_is_told, a_position_of_another_journal_is_not_asked_for,
          a_filter_that_is_refused_is_an_error, a_router_that_stops_gets_the_last_acknowledgement,
          a_fatal_error_waits_for_the_caller,
          an_unsent_acknowledgement_goes_out_on_the_next_connection)
