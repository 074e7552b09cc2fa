/* SPDX-License-Identifier: PostgreSQL */
/* Subscriptions with a name: what they ask for at each connect, what comes again, what acknowledgements mean then, and
 * which refusals end them. */
#include "walbus/subscribe.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "fake_router.h"
#include "unit.h"

static const struct position start = {1, 100, POSITION_INDEX_END};
static const struct position none = {0, 0, 0};

#define NAME "billing"

static struct control_subscribe asks(enum control_start begin)
{
    return (struct control_subscribe){.name = unit_bytes(NAME), .start = begin};
}

static struct walbus_subscription_options named(void)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;

    options.name = NAME;
    return options;
}

/** Takes SUBSCRIBE and answers it. */
static void greet(struct fake_router *f, struct control_subscribe want, struct position answer,
                  bool stored, struct position redelivered_to)
{
    struct buf b = BUF_INIT;

    fake_take_subscribe(f, "7/1", &want);
    fake_put_subscribed_durable(&b, answer, "7/1", stored, redelivered_to);
    fake_send(f, &b);
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_READY);
    fake_assert_position(walbus_delivery_position(d), answer);
    ck_assert_uint_eq(walbus_delivery_flags(d), stored ? WALBUS_DELIVERY_STORED : 0);
}

static void send_message(struct fake_router *f, uint64_t lsn)
{
    struct buf b = BUF_INIT;

    fake_put_message(&b, lsn, 0, unit_bytes("x"));
    fake_send(f, &b);
}

static void expect_message(struct fake_router *f, uint64_t lsn, bool redelivered)
{
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_MESSAGE);

    fake_assert_position(walbus_delivery_position(d), (struct position){1, lsn, 0});
    ck_assert_uint_eq(walbus_delivery_flags(d), redelivered ? WALBUS_DELIVERY_REDELIVERED : 0);
}

static void acknowledge(struct fake_router *f, uint64_t lsn, unsigned flags)
{
    enum walbus_result result =
        walbus_subscription_ack(f->sub, (struct walbus_position){lsn, 1, 0}, flags);

    ck_assert_msg(result == WALBUS_OK, "%s", walbus_subscription_error(f->sub));
}

static void expect_ack(struct fake_router *f, uint64_t lsn, bool confirm)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(fake_read(f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, (struct position){1, lsn, 0}), 0);
    ck_assert_int_eq(ack.confirm, confirm);
}

static void nothing_was_sent(struct fake_router *f)
{
    uint8_t byte;

    ck_assert_int_eq(recv(f->connection, &byte, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(errno, EAGAIN);
}

static void refuse(struct fake_router *f, const char *code)
{
    struct buf b = BUF_INIT;

    fake_put_error(&b, code, true);
    fake_send(f, &b);
}

/* ---- what is asked for ---- */

START_TEST(each_start_is_asked_for)
{
    static const struct {
        enum walbus_start start;
        enum control_start asked;
    } cases[] = {
        {WALBUS_START_NOW, CONTROL_START_NOW},
        {WALBUS_START_OLDEST, CONTROL_START_OLDEST},
        {WALBUS_START_TIME, CONTROL_START_TIME},
        {WALBUS_START_POSITION, CONTROL_START_POSITION},
        {WALBUS_START_STORED, CONTROL_START_STORED},
    };

    for (size_t i = 0; i < 3 * ARRAY_SIZE(cases); i++) {
        struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
        struct control_subscribe want = {.start = cases[i / 3].asked};
        struct fake_router f;
        bool durable = i % 3 > 0;

        if (cases[i / 3].start == WALBUS_START_STORED && i % 3 != 1)
            continue; /* nothing without a name, and no contradiction */
        options.start = cases[i / 3].start;
        options.time_us = -1234567;
        options.position = (struct walbus_position){200, 1, 3};
        if (options.start == WALBUS_START_TIME)
            want.time = -1234567;
        want.position = (struct position){1, 200, 3};
        if (durable) {
            options.name = NAME;
            want.name = unit_bytes(NAME);
        }
        if (i % 3 == 2) {
            options.flags = WALBUS_OVERRIDE | WALBUS_TAKE_OVER;
            want.override = want.take_over = true;
        }
        fake_open_with(&f, options);
        fake_take_subscribe(&f, "7/1", &want);
        fake_close(&f);
    }
}
END_TEST

START_TEST(a_start_is_asked_for_until_it_is_answered)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_OLDEST);
    struct fake_router f;

    options.start = WALBUS_START_OLDEST;
    options.flags = WALBUS_TAKE_OVER;
    want.take_over = true;
    fake_open_with(&f, options);
    fake_take_subscribe(&f, "7/1", &want);
    fake_hang_up(&f);
    greet(&f, want, start, false, none);
    fake_close(&f);
}
END_TEST

START_TEST(the_stored_cursor_goes_before_the_start)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_POSITION);
    struct fake_router f;

    /* Neither one before nor one behind the position asked for is a fault, or a gap. */
    options.start = WALBUS_START_POSITION;
    for (uint64_t lsn = 50; lsn <= 150; lsn += 100) {
        options.position = (struct walbus_position){100, 1, 0};
        want.position = (struct position){1, 100, 0};
        fake_open_with(&f, options);
        greet(&f, want, (struct position){1, lsn, 0}, true, none);
        send_message(&f, 200);
        expect_message(&f, 200, false);
        fake_close(&f);
    }
}
END_TEST

/* ---- connecting again ---- */

START_TEST(it_goes_on_at_the_stored_cursor_and_what_comes_again_is_flagged)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_NOW);
    struct fake_router f;

    options.flags = WALBUS_TAKE_OVER;
    want.take_over = true;
    fake_open_with(&f, options);
    greet(&f, want, start, false, none);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    send_message(&f, 300);
    expect_message(&f, 300, false);
    acknowledge(&f, 200, 0);
    expect_ack(&f, 200, false);

    /* Taking over was asked for once: whoever has the name meanwhile is not thrown out again. */
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), (struct position){1, 200, 0}, true,
          (struct position){1, 300, 0});
    fake_assert_position(walbus_subscription_position(f.sub), (struct position){1, 200, 0});
    send_message(&f, 300);
    send_message(&f, 400);
    expect_message(&f, 300, true);
    expect_message(&f, 400, false);
    fake_close(&f);
}
END_TEST

START_TEST(a_place_inside_a_transaction)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open_with(&f, named());
    greet(&f, asks(CONTROL_START_NOW), start, false, none);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 1, unit_bytes("x"));
    fake_put_message(&b, 200, 2, unit_bytes("y"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){200, 1, 1}, 0),
                     WALBUS_OK);
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, (struct position){1, 200, 1}), 0);

    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), (struct position){1, 200, 1}, true,
          (struct position){1, 200, 2});
    struct frame_begin begin = {
        .timeline = 1, .commit_lsn = 200, .commit_time = 77, .xid = 9, .flags = FRAME_FLAG_RESUMED};
    ck_assert_ptr_nonnull(buf_reserve(&b, FRAME_HEADER_SIZE + FRAME_BEGIN_BODY));
    b.size += frame_begin_encode(b.data, &begin);
    fake_put_message(&b, 200, 2, unit_bytes("y"));
    fake_put_message(&b, 200, 3, unit_bytes("z"));
    fake_put_commit(&b, 200);
    fake_send(&f, &b);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    ck_assert_uint_eq(walbus_delivery_flags(d),
                      WALBUS_DELIVERY_TRANSACTIONAL | WALBUS_DELIVERY_RESUMED);
    d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    ck_assert_uint_eq(walbus_delivery_flags(d),
                      WALBUS_DELIVERY_TRANSACTIONAL | WALBUS_DELIVERY_REDELIVERED);
    d = fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    ck_assert_uint_eq(walbus_delivery_flags(d), WALBUS_DELIVERY_TRANSACTIONAL);
    (void)fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    fake_close(&f);
}
END_TEST

/* ---- a subscriber that keeps its position ---- */

/** One that has begun behind `start`. */
static void open_keeping(struct fake_router *f)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_POSITION);

    options.flags = WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION;
    options.start = WALBUS_START_POSITION;
    options.position = (struct walbus_position){100, 1, WALBUS_INDEX_END};
    options.identity = "7/1";
    want.override = true;
    want.position = start;
    fake_open_with(f, options);
    greet(f, want, start, false, none);
}

/** Connected again it asks to go on behind `asked`, and its caller goes on behind `place`. */
static void greet_keeping(struct fake_router *f, struct position asked, struct position place)
{
    struct control_subscribe want = asks(CONTROL_START_POSITION);
    struct buf b = BUF_INIT;

    want.override = true;
    want.position = asked;
    fake_hang_up(f);
    fake_take_subscribe(f, "7/1", &want);
    fake_put_subscribed_durable(&b, asked, "7/1", false, none);
    fake_send(f, &b);
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_READY);
    fake_assert_position(walbus_delivery_position(d), place);
    fake_assert_position(walbus_subscription_position(f->sub), place);
}

static struct position at(uint64_t lsn)
{
    return (struct position){1, lsn, 0};
}

/* In front of what has this LSN. */
static struct position before(uint64_t lsn)
{
    return (struct position){1, lsn - 1, POSITION_INDEX_END};
}

/* The override moves the router's cursor, and what lies before that may be dropped. */
START_TEST(what_is_delivered_and_not_acknowledged_stays_the_routers_and_does_not_come_twice)
{
    struct fake_router f;

    open_keeping(&f);
    for (uint64_t lsn = 200; lsn <= 400; lsn += 100) {
        send_message(&f, lsn);
        expect_message(&f, lsn, false);
    }
    greet_keeping(&f, before(200), at(400)); /* nothing was; what did not match is done with */
    send_message(&f, 200);
    fake_no_delivery(&f);
    acknowledge(&f, 200, 0);
    expect_ack(&f, 200, false);
    greet_keeping(&f, at(200), at(400));

    /* Committed and acknowledged; the router hears of it when it has sent as much on this connection. */
    acknowledge(&f, 400, 0);
    send_message(&f, 300);
    fake_no_delivery(&f);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN);
    nothing_was_sent(&f);
    send_message(&f, 400);
    fake_no_delivery(&f);
    expect_ack(&f, 400, false);
    send_message(&f, 500);
    expect_message(&f, 500, false);
    greet_keeping(&f, before(500), at(500));
    acknowledge(&f, 500, 0);
    greet_keeping(&f, at(500), at(500)); /* before that could be sent */
    expect_ack(&f, 500, false);
    fake_close(&f);
}
END_TEST

/* The router's journal has gone on without it, over what does not match: the router says so by `stored`. */
START_TEST(a_kept_position_that_the_router_has_passed_is_no_gap)
{
    struct control_subscribe want = asks(CONTROL_START_POSITION);

    for (int again = 0; again < 2; again++) {
        struct fake_router f;

        if (again) { /* one that begins there, or one that was there before */
            open_keeping(&f);
            fake_hang_up(&f);
        } else {
            struct walbus_subscription_options options = named();

            options.flags = WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION;
            options.start = WALBUS_START_POSITION;
            options.position = (struct walbus_position){100, 1, WALBUS_INDEX_END};
            options.identity = "7/1";
            fake_open_with(&f, options);
        }
        want.override = true;
        want.position = start;
        greet(&f, want, at(500), true, none);
        send_message(&f, 600);
        expect_message(&f, 600, false); /* and not a GAP */
        acknowledge(&f, 600, 0);
        expect_ack(&f, 600, false);
        greet_keeping(&f, at(600), at(600));
        fake_close(&f);
    }
}
END_TEST

START_TEST(an_acknowledgement_while_the_router_thinks_does_not_change_what_was_asked)
{
    struct control_subscribe want = asks(CONTROL_START_POSITION);
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_keeping(&f);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    fake_hang_up(&f);
    want.override = true;
    want.position = before(200);
    fake_take_subscribe(&f, "7/1", &want);
    acknowledge(&f, 200, 0);
    fake_put_subscribed_durable(&b, before(200), "7/1", false, none);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    fake_no_delivery(&f);
    nothing_was_sent(&f);
    send_message(&f, 200);
    fake_no_delivery(&f);
    expect_ack(&f, 200, false);
    fake_close(&f);
}
END_TEST

/** A transaction of the messages 1 to n. */
static void send_transaction(struct fake_router *f, uint64_t lsn, uint32_t n, bool whole)
{
    struct buf b = BUF_INIT;

    fake_put_begin(&b, lsn);
    for (uint32_t i = 1; i <= n; i++)
        fake_put_message(&b, lsn, i, unit_bytes("x"));
    if (whole)
        fake_put_commit(&b, lsn);
    fake_send(f, &b);
}

static void expect_transactional(struct fake_router *f, uint64_t lsn, uint32_t index)
{
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_MESSAGE);

    fake_assert_position(walbus_delivery_position(d), (struct position){1, lsn, index});
}

static void expect_begin(struct fake_router *f, struct position position, bool resumed)
{
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_BEGIN);

    fake_assert_position(walbus_delivery_position(d), position);
    ck_assert_uint_eq(walbus_delivery_flags(d),
                      WALBUS_DELIVERY_TRANSACTIONAL | (resumed ? WALBUS_DELIVERY_RESUMED : 0));
}

START_TEST(a_transaction_that_was_delivered_in_part_goes_on_resumed)
{
    struct fake_router f;

    open_keeping(&f);
    send_transaction(&f, 200, 2, true);
    expect_begin(&f, at(200), false);
    expect_transactional(&f, 200, 1);
    expect_transactional(&f, 200, 2);
    (void)fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    send_transaction(&f, 300, 2, false);
    expect_begin(&f, at(300), false);
    expect_transactional(&f, 300, 1);
    expect_transactional(&f, 300, 2);

    /* The first comes whole, the second's beginning, and both are known; the connection breaks on the way. */
    greet_keeping(&f, before(200), (struct position){1, 300, 2});
    send_transaction(&f, 200, 2, true);
    fake_no_delivery(&f);
    send_transaction(&f, 300, 1, false);
    expect_begin(&f, (struct position){1, 300, 2}, true);
    fake_no_delivery(&f);

    greet_keeping(&f, before(200), (struct position){1, 300, 2});
    send_transaction(&f, 200, 2, true);
    send_transaction(&f, 300, 3, true);
    expect_begin(&f, (struct position){1, 300, 2}, true);
    expect_transactional(&f, 300, 3);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    fake_assert_position(walbus_delivery_position(d),
                         (struct position){1, 300, POSITION_INDEX_END});

    /* Of one that had only begun nothing was delivered. */
    send_transaction(&f, 400, 0, false);
    expect_begin(&f, at(400), false);
    greet_keeping(&f, before(200), at(400));
    send_transaction(&f, 400, 1, true);
    expect_begin(&f, at(400), false);
    expect_transactional(&f, 400, 1);
    (void)fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    fake_close(&f);
}
END_TEST

START_TEST(a_transaction_of_which_a_part_is_acknowledged)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_keeping(&f);
    send_transaction(&f, 200, 3, false);
    expect_begin(&f, at(200), false);
    for (uint32_t i = 1; i <= 3; i++)
        expect_transactional(&f, 200, i);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){200, 1, 1}, 0),
                     WALBUS_OK);
    greet_keeping(&f, (struct position){1, 200, 1}, (struct position){1, 200, 3});
    struct frame_begin begin = {
        .timeline = 1, .commit_lsn = 200, .commit_time = 77, .xid = 9, .flags = FRAME_FLAG_RESUMED};
    ck_assert_ptr_nonnull(buf_reserve(&b, FRAME_HEADER_SIZE + FRAME_BEGIN_BODY));
    b.size += frame_begin_encode(b.data, &begin);
    for (uint32_t i = 2; i <= 4; i++)
        fake_put_message(&b, 200, i, unit_bytes("x"));
    fake_put_commit(&b, 200);
    fake_send(&f, &b);
    expect_begin(&f, (struct position){1, 200, 3}, true);
    expect_transactional(&f, 200, 4);
    (void)fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    fake_close(&f);
}
END_TEST

START_TEST(progress_is_settled_when_nothing_before_it_waits)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_keeping(&f);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    acknowledge(&f, 200, 0);
    fake_put_progress(&b, at(300));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);
    greet_keeping(&f, at(300), at(300));
    send_message(&f, 400);
    expect_message(&f, 400, false);
    fake_put_progress(&b, at(500));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);

    greet_keeping(&f, before(400), at(500)); /* 400 is not acknowledged */
    send_message(&f, 400);
    fake_put_progress(&b, at(450));
    fake_put_progress(&b, at(500));
    fake_put_progress(&b, at(600));
    fake_send(&f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(&f, WALBUS_DELIVERY_PROGRESS)),
                         at(600));
    acknowledge(&f, 400, 0);
    greet_keeping(&f, at(600), at(600));
    fake_close(&f);
}
END_TEST

START_TEST(a_gap_in_what_was_delivered_is_none)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_keeping(&f);
    send_message(&f, 400);
    expect_message(&f, 400, false);
    send_message(&f, 450);
    expect_message(&f, 450, false);
    greet_keeping(&f, before(400), at(450));
    fake_put_gap(&b, at(400), at(430), "retention");
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_put_gap(&b, at(431), at(500), "retention");
    fake_send(&f, &b);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_from(d), (struct position){1, 450, 1});
    fake_assert_position(walbus_delivery_position(d), at(500));
    ck_assert_uint_eq(walbus_delivery_messages(d), UINT64_MAX);
    ck_assert_uint_eq(walbus_delivery_bytes(d), UINT64_MAX);
    greet_keeping(&f, before(400), at(500)); /* a gap is a place like any other */
    fake_put_gap(&b, at(400), at(500), "retention");
    fake_send(&f, &b);
    fake_no_delivery(&f);
    acknowledge(&f, 500, 0);
    expect_ack(&f, 500, false);
    fake_close(&f);
}
END_TEST

/* ---- acknowledging over a reconnect ---- */

START_TEST(the_place_counts_from_the_first_ready_on)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_OLDEST);
    struct fake_router f;

    /* Nothing is kept yet: a name that is there begins at its cursor, and from then on the subscriber knows better. */
    options.flags = WALBUS_KEEPS_POSITION;
    options.start = WALBUS_START_OLDEST;
    fake_open_with(&f, options);
    greet(&f, want, start, true, none);
    fake_hang_up(&f);
    want = asks(CONTROL_START_POSITION);
    want.override = true;
    want.position = start;
    greet(&f, want, start, false, none);
    fake_close(&f);

    /* Overriding alone is for once. */
    options.flags = WALBUS_OVERRIDE;
    want = asks(CONTROL_START_OLDEST);
    want.override = true;
    fake_open_with(&f, options);
    greet(&f, want, start, false, none);
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), start, true, none);
    fake_close(&f);
}
END_TEST

START_TEST(an_acknowledgement_waits_until_its_place_has_come_again)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open_with(&f, named());
    greet(&f, asks(CONTROL_START_NOW), start, false, none);
    for (uint64_t lsn = 200; lsn <= 400; lsn += 100) {
        send_message(&f, lsn);
        expect_message(&f, lsn, false);
    }
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), start, true, (struct position){1, 400, 0});

    /* The caller works on what came before: its acknowledgement is good, but not yet for this router. */
    acknowledge(&f, 300, WALBUS_ACK_CONFIRM);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN);
    ck_assert_int_eq(walbus_subscription_events(f.sub), POLLIN);
    send_message(&f, 200);
    expect_message(&f, 200, true);
    acknowledge(&f, 200, 0); /* says less than what waits */
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN);
    nothing_was_sent(&f);
    send_message(&f, 300);
    expect_message(&f, 300, true);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    expect_ack(&f, 300, true);
    struct control_ack acked = {.position = {1, 300, 0}};
    control_ack_encode(&acked, true, &b);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_ACKED);

    /* No further than was ever delivered, whichever connection it was. */
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){401, 1, 0}, 0),
                     WALBUS_BAD_ARGUMENT);
    acknowledge(&f, 400, 0);
    nothing_was_sent(&f);
    send_message(&f, 400);
    expect_message(&f, 400, true);
    expect_ack(&f, 400, false);
    fake_close(&f);
}
END_TEST

START_TEST(one_that_was_lost_on_the_way_is_sent_again)
{
    struct fake_router f;

    fake_open_with(&f, named());
    greet(&f, asks(CONTROL_START_NOW), start, false, none);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    acknowledge(&f, 200, WALBUS_ACK_CONFIRM);
    expect_ack(&f, 200, true);
    /* The router had it and, killed, forgot it. */
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), start, true, (struct position){1, 200, 0});
    nothing_was_sent(&f);
    send_message(&f, 200);
    expect_message(&f, 200, true);
    expect_ack(&f, 200, true);
    /* It had stored it: then there is nothing to wait for. */
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), (struct position){1, 200, 0}, true, none);
    expect_ack(&f, 200, true);
    fake_close(&f);
}
END_TEST

START_TEST(one_that_a_killed_router_forgot_is_sent_again)
{
    struct fake_router f;

    fake_open_with(&f, named());
    greet(&f, asks(CONTROL_START_NOW), start, false, none);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    acknowledge(&f, 200, 0);
    expect_ack(&f, 200, false);
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), start, true, (struct position){1, 200, 0});
    fake_no_delivery(&f);
    nothing_was_sent(&f); /* not before it has come again */
    send_message(&f, 200);
    expect_message(&f, 200, true);
    expect_ack(&f, 200, false);
    /* It had stored it: nothing is to be said. */
    fake_hang_up(&f);
    greet(&f, asks(CONTROL_START_STORED), (struct position){1, 200, 0}, true, none);
    fake_no_delivery(&f);
    nothing_was_sent(&f);
    fake_close(&f);
}
END_TEST

/* ---- other journals ---- */

START_TEST(another_journal_is_a_gap_and_the_router_knows_where_to_go_on)
{
    struct control_subscribe want = asks(CONTROL_START_NOW);
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open_with(&f, named());
    greet(&f, want, start, false, none);
    send_message(&f, 900);
    expect_message(&f, 900, false);
    acknowledge(&f, 900, WALBUS_ACK_CONFIRM);
    expect_ack(&f, 900, true);
    fake_hang_up(&f);

    want = asks(CONTROL_START_OLDEST);
    fake_take_subscribe(&f, "8/1", &want);
    fake_put_subscribed_durable(&b, (struct position){1, 50, 0}, "8/1", true, none);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_from(d), (struct position){1, 900, 1});
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 50, 0});
    ck_assert_str_eq(walbus_delivery_reason(d), "the router has the journal 8/1 now, in which "
                                                "positions of 7/1 mean nothing");
    ck_assert_str_eq(walbus_subscription_identity(f.sub), "8/1");
    /* What was acknowledged there is nothing here. */
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    nothing_was_sent(&f);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){900, 1, 0}, 0),
                     WALBUS_BAD_ARGUMENT);
    send_message(&f, 60); /* nor is what was delivered there */
    expect_message(&f, 60, false);
    fake_close(&f);
}
END_TEST

/* The subscriber that runs on through an accepted gap is no other than the one that is started behind it: what the position
 * that he keeps is worth now, his owner says. */
START_TEST(a_kept_position_is_lost_in_another_journal_while_it_runs)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_keeping(&f);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    acknowledge(&f, 200, 0);
    expect_ack(&f, 200, false);
    fake_hang_up(&f);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "8/1");
    fake_send(&f, &b);
    fake_end(&f, WALBUS_POSITION_LOST, "");
    ck_assert_str_eq(walbus_subscription_error(f.sub), "The position 1:0/C8:0 belongs to the journal 7/1, but the "
                                                       "router has the journal 8/1.");
    fake_close(&f);
}
END_TEST

START_TEST(a_kept_position_of_another_journal_is_lost)
{
    struct walbus_subscription_options options = named();
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.flags = WALBUS_OVERRIDE;
    options.start = WALBUS_START_POSITION;
    options.position = (struct walbus_position){100, 1, 0};
    options.identity = "7/1";
    fake_open_with(&f, options);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/2");
    fake_send(&f, &b);
    fake_end(&f, WALBUS_POSITION_LOST, "");
    fake_close(&f);
}
END_TEST

/* A router that has not reached its server cannot say which journal it has, and a position of another one must not move
 * the name there. */
START_TEST(a_kept_position_waits_for_the_journals_identity)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_POSITION);
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.flags = WALBUS_OVERRIDE;
    options.start = WALBUS_START_POSITION;
    options.position = (struct walbus_position){100, 1, 0};
    options.identity = "7/1";
    fake_open_with(&f, options);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "");
    fake_send(&f, &b);
    fake_no_delivery(&f);
    ck_assert(fake_at_end(&f)); /* without a SUBSCRIBE */
    fake_hang_up(&f);
    want.position = (struct position){1, 100, 0};
    want.override = true;
    greet(&f, want, (struct position){1, 100, 0}, false, none); /* it connects again */
    fake_close(&f);
}
END_TEST

START_TEST(a_kept_position_that_is_refused_is_a_gap)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_NOW);
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.flags = WALBUS_KEEPS_POSITION;
    fake_open_with(&f, options);
    greet(&f, want, start, false, none);
    send_message(&f, 900);
    expect_message(&f, 900, false);
    acknowledge(&f, 900, 0);
    fake_hang_up(&f);
    want.start = CONTROL_START_POSITION;
    want.position = (struct position){1, 900, 0};
    want.override = true;
    fake_take_subscribe(&f, "7/1", &want);
    refuse(&f, CONTROL_ERROR_INVALID);
    fake_hang_up(&f);
    /* Where the router has the name, or from now. */
    want = asks(CONTROL_START_NOW);
    fake_take_subscribe(&f, "7/1", &want);
    fake_put_subscribed_durable(&b, (struct position){1, 500, 0}, "7/1", true, none);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 500, 0});
    nothing_was_sent(&f);
    /* What comes there now is not what was delivered there before. */
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){900, 1, 0}, 0),
                     WALBUS_BAD_ARGUMENT);
    send_message(&f, 600);
    expect_message(&f, 600, false);
    fake_close(&f);
}
END_TEST

/* ---- refusals ---- */

static void open_and_greet(struct fake_router *f, unsigned flags)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_NOW);

    options.flags = flags;
    fake_open_with(f, options);
    greet(f, want, start, false, none);
}

START_TEST(refusals_that_end_it)
{
    static const char *const at_once[] = {CONTROL_ERROR_HELD, CONTROL_ERROR_UNKNOWN_NAME,
                                          CONTROL_ERROR_FORBIDDEN, CONTROL_ERROR_REMOVED};
    static const char *const later[] = {CONTROL_ERROR_TAKEN_OVER, CONTROL_ERROR_FORBIDDEN};
    struct control_subscribe want = asks(CONTROL_START_NOW), stored = asks(CONTROL_START_STORED);
    struct fake_router f;

    for (size_t i = 0; i < ARRAY_SIZE(at_once); i++) {
        fake_open_with(&f, named());
        fake_take_subscribe(&f, "7/1", &want);
        refuse(&f, at_once[i]);
        fake_end(&f, WALBUS_REFUSED, at_once[i]);
        ck_assert_str_eq(walbus_subscription_error(f.sub), "So it is.");
        fake_close(&f);
    }
    for (size_t i = 0; i < 2 * ARRAY_SIZE(later); i++) {
        open_and_greet(&f, i % 2 ? WALBUS_WAIT_FOR_ROUTER : 0);
        refuse(&f, later[i / 2]);
        fake_end(&f, WALBUS_REFUSED, later[i / 2]);
        fake_close(&f);
    }
    /* When it comes back: somebody else has it now, or it is gone. */
    for (size_t i = 0; i < 2; i++) {
        open_and_greet(&f, 0);
        fake_hang_up(&f);
        fake_take_subscribe(&f, "7/1", &stored);
        refuse(&f, at_once[i]);
        fake_end(&f, WALBUS_REFUSED, at_once[i]);
        fake_close(&f);
    }
}
END_TEST

START_TEST(a_name_that_is_held_is_waited_for_when_asked_for)
{
    struct walbus_subscription_options options = named();
    struct control_subscribe want = asks(CONTROL_START_NOW), stored = asks(CONTROL_START_STORED);
    struct fake_router f;

    options.flags = WALBUS_WAIT_FOR_ROUTER;
    fake_open_with(&f, options);
    for (size_t i = 0; i < 3; i++) {
        fake_take_subscribe(&f, "7/1", &want);
        refuse(&f, CONTROL_ERROR_HELD);
        fake_hang_up(&f);
    }
    greet(&f, want, start, false, none);
    ck_assert_uint_eq(f.logged, 1); /* said once */
    ck_assert_str_eq(f.sentence, "Waiting for the durable name: So it is.");
    fake_hang_up(&f);
    fake_take_subscribe(&f, "7/1", &stored);
    refuse(&f, CONTROL_ERROR_HELD);
    fake_hang_up(&f);
    greet(&f, stored, start, true, none);
    fake_close(&f);
}
END_TEST

START_TEST(a_name_that_was_moved_goes_on_there)
{
    struct fake_router f;

    open_and_greet(&f, 0);
    send_message(&f, 200);
    expect_message(&f, 200, false);
    acknowledge(&f, 200, WALBUS_ACK_CONFIRM);
    expect_ack(&f, 200, true);
    refuse(&f, CONTROL_ERROR_REMOVED);
    fake_hang_up(&f);
    /* Back to an earlier place: what was acknowledged is to be handled once more, so nothing is said of it. */
    greet(&f, asks(CONTROL_START_STORED), start, true, (struct position){1, 200, 0});
    ck_assert_int_eq(walbus_subscription_ack(f.sub, (struct walbus_position){200, 1, 0}, 0),
                     WALBUS_BAD_ARGUMENT);
    send_message(&f, 200);
    expect_message(&f, 200, true);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    nothing_was_sent(&f);
    acknowledge(&f, 200, 0);
    expect_ack(&f, 200, false);

    refuse(&f, CONTROL_ERROR_REMOVED);
    fake_hang_up(&f);
    fake_take_subscribe(
        &f, "7/1",
        &(struct control_subscribe){.name = unit_bytes(NAME), .start = CONTROL_START_STORED});
    refuse(&f, CONTROL_ERROR_UNKNOWN_NAME);
    fake_end(&f, WALBUS_REFUSED, CONTROL_ERROR_UNKNOWN_NAME);
    fake_close(&f);

    /* Who keeps the position itself would undo it by connecting again. */
    open_and_greet(&f, WALBUS_KEEPS_POSITION);
    refuse(&f, CONTROL_ERROR_REMOVED);
    fake_end(&f, WALBUS_REFUSED, CONTROL_ERROR_REMOVED);
    fake_close(&f);
}
END_TEST

START_TEST(a_gap_of_the_router_is_acknowledged_like_anything)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_and_greet(&f, 0);
    fake_put_gap(&b, (struct position){1, 101, 0}, (struct position){1, 300, 0}, "retention");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_GAP);
    acknowledge(&f, 300, 0);
    expect_ack(&f, 300, false);
    fake_close(&f);
}
END_TEST

UNIT_MAIN("subscription_durable", each_start_is_asked_for,
          a_start_is_asked_for_until_it_is_answered, the_stored_cursor_goes_before_the_start,
          it_goes_on_at_the_stored_cursor_and_what_comes_again_is_flagged,
          a_place_inside_a_transaction,
          what_is_delivered_and_not_acknowledged_stays_the_routers_and_does_not_come_twice,
          a_kept_position_that_the_router_has_passed_is_no_gap,
          an_acknowledgement_while_the_router_thinks_does_not_change_what_was_asked,
          a_transaction_that_was_delivered_in_part_goes_on_resumed,
          a_transaction_of_which_a_part_is_acknowledged,
          progress_is_settled_when_nothing_before_it_waits, a_gap_in_what_was_delivered_is_none,
          the_place_counts_from_the_first_ready_on,
          an_acknowledgement_waits_until_its_place_has_come_again,
          one_that_was_lost_on_the_way_is_sent_again, one_that_a_killed_router_forgot_is_sent_again,
          another_journal_is_a_gap_and_the_router_knows_where_to_go_on,
          a_kept_position_of_another_journal_is_lost,
          a_kept_position_is_lost_in_another_journal_while_it_runs,
          a_kept_position_waits_for_the_journals_identity, a_kept_position_that_is_refused_is_a_gap,
          refusals_that_end_it, a_name_that_is_held_is_waited_for_when_asked_for,
          a_name_that_was_moved_goes_on_there, a_gap_of_the_router_is_acknowledged_like_anything)
