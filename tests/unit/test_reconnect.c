/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/subscribe.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

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
    (void)fake_delivery(f, WALBUS_DELIVERY_MESSAGE);
    return (struct position){1, lsn, 0};
}

/** The GAP that stands right behind READY: up to it. */
static void expect_gap(struct fake_router *f, struct position last, struct position to,
                       const char *word)
{
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_GAP);

    fake_assert_position(walbus_delivery_from(d), position_next(last));
    fake_assert_position(walbus_delivery_position(d), to);
    ck_assert_uint_eq(walbus_delivery_messages(d), UINT64_MAX);
    ck_assert_uint_eq(walbus_delivery_bytes(d), UINT64_MAX);
    ck_assert_msg(strstr(walbus_delivery_reason(d), word) != NULL, "%s", walbus_delivery_reason(d));
    fake_no_delivery(f);
}

static void acknowledge(struct fake_router *f, struct position p, unsigned flags)
{
    struct walbus_position position = {p.lsn, p.timeline, p.index};

    ck_assert_int_eq(walbus_subscription_ack(f->sub, position, flags), WALBUS_OK);
}

static void expect_ack(struct fake_router *f, struct position want, bool confirm)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(fake_read(f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, want), 0);
    ck_assert_int_eq(ack.confirm, confirm);
}

START_TEST(goes_on_behind_the_last_position)
{
    struct fake_router f;

    greet(&f);
    struct position last = receive_one(&f, 200);
    fake_hang_up(&f);
    uint64_t before = clock_monotonic_ns();
    fake_no_delivery(&f);
    ck_assert_uint_eq(f.gone, 1);
    ck_assert_int_eq(walbus_subscription_fd(f.sub), -1);
    ck_assert_int_eq(walbus_subscription_events(f.sub), 0);
    ck_assert_int_gt(walbus_subscription_timeout(f.sub), 0);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 49 * UINT64_C(1000000));
    ck_assert_uint_eq(f.back, 1);
    fake_no_delivery(&f);
    last = receive_one(&f, 300);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_eq(f.gone, 2);
    fake_close(&f);
}
END_TEST

static void put_resumed(struct buf *b, uint64_t lsn)
{
    size_t at = b->size;

    fake_put_begin(b, lsn);
    b->data[at + 5] |= FRAME_FLAG_RESUMED; /* the header's flags */
}

START_TEST(goes_on_inside_a_transaction)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_begin(&b, 200);
    fake_put_message(&b, 200, 1, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    struct position last = {1, 200, 1};
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    put_resumed(&b, 200);
    fake_put_message(&b, 200, 2, unit_bytes("x"));
    fake_put_commit(&b, 200);
    fake_send(&f, &b);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    ck_assert_uint_eq(walbus_delivery_flags(d),
                      WALBUS_DELIVERY_TRANSACTIONAL | WALBUS_DELIVERY_RESUMED);
    fake_assert_position(walbus_delivery_position(d), last);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    (void)fake_delivery(&f, WALBUS_DELIVERY_COMMIT);
    fake_close(&f);
}
END_TEST

START_TEST(a_begin_alone_is_gone_on_behind)
{
    struct position begin = {1, 200, 0};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_begin(&b, 200);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_BEGIN);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, begin, begin);
    fake_put_begin(&b, 200); /* nothing of it was delivered, so it is not resumed */
    fake_put_message(&b, 200, 1, unit_bytes("x"));
    fake_send(&f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(&f, WALBUS_DELIVERY_BEGIN)), begin);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
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
    fake_no_delivery(&f);
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
    for (size_t i = 0; i < ARRAY_SIZE(most); i++) {
        int timeout = walbus_subscription_timeout(f.sub);

        ck_assert_msg(timeout >= most[i] / 2 - 10 && timeout <= most[i] + 1, "%d ms", timeout);
        fake_no_delivery(&f);
        ck_assert_int_eq(poll(NULL, 0, timeout), 0);
        fake_no_delivery(&f);
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
    for (int i = 0; i < 5; i++) {
        ck_assert_int_le(walbus_subscription_timeout(f.sub), 2001);
        ck_assert_int_eq(poll(NULL, 0, walbus_subscription_timeout(f.sub)), 0);
        fake_no_delivery(&f);
    }
    ck_assert_int_ge(walbus_subscription_timeout(f.sub), 950);
    fake_close(&f);
}
END_TEST

/* ---- what is lost ---- */

static const struct position last = {1, 200, 0}, later = {1, 900, 0};

/** Up to a SUBSCRIBE that asks for a position. */
static void come_back(struct fake_router *f)
{
    greet(f);
    (void)receive_one(f, last.lsn);
    fake_hang_up(f);
    fake_subscribe(f, "7/1", CONTROL_START_POSITION, last);
}

/** Takes the SUBSCRIBE on this connection, answers it, and takes READY. */
static void answer(struct fake_router *f, enum control_start asked, const char *identity)
{
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;

    ck_assert_int_eq(control_subscribe_decode(fake_read(f, FRAME_SUBSCRIBE), &subscribe, why), 0);
    ck_assert_int_eq(subscribe.start, asked);
    control_subscribe_deinit(&subscribe);
    fake_put_subscribed(&b, later, identity);
    fake_send(f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(f, WALBUS_DELIVERY_READY)), later);
    ck_assert_str_eq(walbus_subscription_identity(f->sub), identity);
}

START_TEST(a_position_that_is_refused_becomes_now_and_a_gap)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    acknowledge(&f, last, WALBUS_ACK_CONFIRM);
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, false);
    fake_send(&f, &b);
    answer(&f, CONTROL_START_NOW, "7/1"); /* on the same connection */
    expect_gap(&f, last, later, "So it is.");
    expect_ack(&f, last, true);
    fake_close(&f);

    come_back(&f);
    fake_put_error(&b, CONTROL_ERROR_INVALID, true);
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_NOW, none, later);
    expect_gap(&f, last, later, "cannot go on");
    fake_close(&f);
}
END_TEST

/** Refused, and "now" is not behind the last delivery: a GAP at that place, and on from there. */
static void restart_at(struct position now)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    acknowledge(&f, last, 0);
    fake_put_error(&b, CONTROL_ERROR_INVALID, false);
    fake_send(&f, &b);
    (void)fake_read(&f, FRAME_SUBSCRIBE);
    fake_put_subscribed(&b, now, "7/1");
    fake_send(&f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(&f, WALBUS_DELIVERY_READY)), now);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_from(d), now);
    fake_assert_position(walbus_delivery_position(d), now);
    fake_assert_position(walbus_subscription_position(f.sub), now);
    fake_no_delivery(&f);
    if (position_compare(now, last) == 0) /* that is still there, and so is what was acknowledged */
        expect_ack(&f, last, false);
    struct position p = receive_one(&f, now.lsn + 1);
    acknowledge(&f, p, 0);
    expect_ack(&f, p, false); /* not taken for what was acknowledged before */
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, p, p);
    fake_no_delivery(&f);
    fake_close(&f);
}

START_TEST(a_journal_that_lost_its_end_is_a_gap_in_one_place)
{
    restart_at((struct position){1, 150, 0});
    restart_at(last);
}
END_TEST

START_TEST(a_new_journal_forgets_what_was_acknowledged)
{
    struct position low = {1, 50, 0};
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f); /* refused in the old one, and the new one comes only with the next connection */
    acknowledge(&f, last, WALBUS_ACK_CONFIRM);
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, true);
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_hang_up(&f);
    fake_subscribe(&f, "8/1", CONTROL_START_OLDEST, none);
    fake_put_subscribed(&b, later, "8/1");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    expect_gap(&f, last, later, "cannot go on");
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    acknowledge(&f, later, 0);
    expect_ack(&f, later, false);
    fake_close(&f);

    come_back(&f); /* of another journal the beginning stays as it was, however the numbers stand */
    fake_put_subscribed(&b, low, "8/1");
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_hang_up(&f);
    fake_subscribe(&f, "8/1", CONTROL_START_OLDEST, none);
    fake_put_subscribed(&b, low, "8/1");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    expect_gap(&f, last, low, "8/1");
    fake_close(&f);
}
END_TEST

START_TEST(a_journal_without_a_name)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    fake_put_subscribed(&b, last, ""); /* the protocol says: never empty */
    fake_send(&f, &b);
    fake_end(&f, WALBUS_PROTOCOL, "");
    fake_close(&f);
}
END_TEST

START_TEST(one_loss_is_one_gap)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, true);
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_hang_up(&f);
    fake_subscribe(&f, "8/1", CONTROL_START_OLDEST, none);
    fake_hang_up(&f); /* before it is answered */
    fake_greet(&f, CONTROL_START_NOW, none, later);
    fake_hang_up(&f); /* before the gap is fetched */
    expect_gap(&f, last, later, "cannot go on");
    fake_greet(&f, CONTROL_START_POSITION, later, later);
    fake_no_delivery(&f);
    fake_close(&f);
}
END_TEST

START_TEST(a_later_start_than_asked_for_is_a_gap)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    fake_put_subscribed(&b, later, "7/1");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    ck_assert_int_eq(walbus_subscription_timeout(f.sub), 0);
    expect_gap(&f, last, later, "started behind");
    fake_close(&f);

    come_back(&f);
    fake_put_subscribed(&b, (struct position){1, 199, 0}, "7/1"); /* it would come twice */
    fake_send(&f, &b);
    fake_end(&f, WALBUS_PROTOCOL, "");
    fake_close(&f);
}
END_TEST

START_TEST(a_gap_of_the_router)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    come_back(&f);
    fake_put_subscribed(&b, last, "7/1");
    fake_put_gap(&b, position_next(last), later, "it has passed");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_from(d), position_next(last));
    fake_assert_position(walbus_delivery_position(d), later);
    ck_assert_str_eq(walbus_delivery_reason(d), "it has passed");
    fake_assert_position(walbus_subscription_position(f.sub), later);
    fake_close(&f);
}
END_TEST

START_TEST(another_journal_is_a_gap)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    fake_hang_up(&f);
    fake_no_delivery(&f);
    acknowledge(&f, last, WALBUS_ACK_CONFIRM); /* means nothing there: is not sent */
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "8/1");
    fake_send(&f, &b);
    answer(&f, CONTROL_START_OLDEST, "8/1");
    expect_gap(&f, last, later, "8/1");
    ck_assert_int_eq(walbus_subscription_events(f.sub), POLLIN);
    fake_close(&f);

    /* WELCOME did not know it yet, SUBSCRIBED does: the router would wait for a position that means
     * nothing there, so the subscription comes again and begins with the oldest. */
    come_back(&f);
    fake_put_subscribed(&b, (struct position){1, 100, 0}, "8/1");
    fake_send(&f, &b);
    fake_no_delivery(&f);
    fake_hang_up(&f);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "8/1");
    fake_send(&f, &b);
    answer(&f, CONTROL_START_OLDEST, "8/1");
    expect_gap(&f, last, later, "7/1");
    fake_assert_position(walbus_subscription_position(f.sub), later);
    fake_close(&f);
}
END_TEST

START_TEST(a_router_that_stops_gets_the_last_acknowledgement)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_message(&b, last.lsn, 0, unit_bytes("x"));
    fake_put_error(&b, CONTROL_ERROR_STOPPING, true);
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    fake_no_delivery(&f);
    ck_assert_int_eq(walbus_subscription_timeout(f.sub), 0);
    acknowledge(&f, last, 0);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    expect_ack(&f, last, false);
    ck_assert(fake_at_end(&f)); /* the router need not wait for more */
    ck_assert_uint_eq(f.gone, 0);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    ck_assert_uint_eq(f.gone, 1);
    ck_assert_uint_eq(f.back, 1);
    fake_close(&f);
}
END_TEST

START_TEST(errors_that_pass)
{
    static const char *const codes[] = {CONTROL_ERROR_TOO_SLOW, CONTROL_ERROR_SOURCE,
                                        CONTROL_ERROR_LIMIT, CONTROL_ERROR_TIMEOUT,
                                        CONTROL_ERROR_JOURNAL};

    for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
        struct buf b = BUF_INIT;
        struct fake_router f;

        greet(&f);
        (void)receive_one(&f, last.lsn);
        fake_put_error(&b, codes[i], true);
        fake_send(&f, &b);
        fake_no_delivery(&f);
        ck_assert_str_eq(f.sentence, "The router closed the connection: So it is.; reconnecting.");
        ck_assert_int_eq(walbus_subscription_fd(f.sub), -1);
        fake_hang_up(&f);
        fake_accept(&f);
        (void)fake_read(&f, FRAME_HELLO);
        fake_put_error(&b, codes[i], true); /* and before READY */
        fake_send(&f, &b);
        fake_no_delivery(&f);
        fake_hang_up(&f);
        fake_greet(&f, CONTROL_START_POSITION, last, last);
        fake_no_delivery(&f);
        ck_assert_uint_eq(f.gone, 2);
        ck_assert_uint_eq(f.back, 1);
        fake_close(&f);
    }
}
END_TEST

START_TEST(errors_that_end_it)
{
    static const struct {
        const char *code;
        enum walbus_result result;
    } errors[] = {{CONTROL_ERROR_INVALID, WALBUS_REFUSED},
                  {CONTROL_ERROR_PROTOCOL, WALBUS_REFUSED},
                  {CONTROL_ERROR_UNSUPPORTED, WALBUS_REFUSED},
                  {"of-a-later-version", WALBUS_REFUSED},
                  {CONTROL_ERROR_VERSION, WALBUS_PROTOCOL}};

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        struct buf b = BUF_INIT;
        struct fake_router f;

        greet(&f);
        fake_put_error(&b, errors[i].code, true);
        fake_send(&f, &b);
        fake_end(&f, errors[i].result, errors[i].code);
        ck_assert_str_eq(walbus_subscription_error(f.sub), "So it is.");
        ck_assert_uint_eq(f.logged, 0);
        fake_close(&f);
    }
}
END_TEST

START_TEST(before_ready_every_error_is_a_refusal)
{
    static const char *const codes[] = {CONTROL_ERROR_INVALID, CONTROL_ERROR_LIMIT,
                                        CONTROL_ERROR_SOURCE, CONTROL_ERROR_JOURNAL};

    for (size_t i = 0; i < 2 * ARRAY_SIZE(codes); i++) {
        struct buf b = BUF_INIT;
        struct fake_router f;

        fake_open(&f, "a.>");
        fake_subscribe(&f, "7/1", CONTROL_START_NOW, none);
        fake_put_error(&b, codes[i / 2], i % 2);
        fake_send(&f, &b);
        fake_end(&f, WALBUS_REFUSED, codes[i / 2]);
        fake_close(&f);
    }
}
END_TEST

START_TEST(reasons_that_pass_are_waited_out_when_asked_for)
{
    static const char *const codes[] = {CONTROL_ERROR_LIMIT, CONTROL_ERROR_SOURCE,
                                        CONTROL_ERROR_TOO_SLOW, CONTROL_ERROR_TIMEOUT,
                                        CONTROL_ERROR_JOURNAL};

    for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
        struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
        bool late = codes[i] == codes[3]; /* it was this end's own, so it need not be asked for */
        struct buf b = BUF_INIT;
        struct fake_router f;

        options.flags = late ? 0 : WALBUS_WAIT_FOR_ROUTER;
        fake_open_with(&f, options);
        fake_accept(&f);
        fake_put_error(&b, codes[i], true);
        fake_send(&f, &b);
        fake_no_delivery(&f);
        fake_hang_up(&f);
        fake_greet(&f, CONTROL_START_NOW, none, last);
        fake_close(&f);
    }
}
END_TEST

START_TEST(an_error_that_is_not_fatal_is_told)
{
    struct control_error error = {.code = unit_bytes(CONTROL_ERROR_INVALID),
                                  .text = unit_bytes("no \x1b[2J\n\xff such ACK")};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    control_error_encode(&error, &b);
    fake_put_error(&b, CONTROL_ERROR_INVALID, false);
    fake_send(&f, &b);
    fake_end(&f, WALBUS_PROTOCOL, ""); /* a text that is not UTF-8 */
    fake_close(&f);

    greet(&f);
    error.text = unit_bytes("no \x1b[2J\n such ACK \xc3\xa9");
    control_error_encode(&error, &b);
    fake_send(&f, &b);
    fake_no_delivery(&f);
    ck_assert_str_eq(f.sentence, "The router: no ?[2J? such ACK \xc3\xa9");
    (void)receive_one(&f, last.lsn);
    fake_close(&f);
}
END_TEST

START_TEST(an_unsent_acknowledgement_goes_out_on_the_next_connection)
{
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    fake_hang_up(&f);
    fake_no_delivery(&f);
    acknowledge(&f, last, 0);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN); /* no connection */
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    expect_ack(&f, last, false);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    fake_close(&f);
}
END_TEST

START_TEST(flushing_goes_on_until_the_acknowledgement_has_gone)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    fake_hang_up(&f);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    acknowledge(&f, last, 0);
    ck_assert_int_ge(walbus_subscription_fd(f.sub), 0);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN); /* before WELCOME */
    ck_assert_int_eq(walbus_subscription_events(f.sub), POLLIN);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    (void)fake_read(&f, FRAME_SUBSCRIBE);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN); /* before SUBSCRIBED */
    fake_put_subscribed(&b, last, "7/1");
    fake_send(&f, &b);
    while (walbus_subscription_flush(f.sub) == WALBUS_AGAIN) { /* as the header says it */
        const struct walbus_delivery *d;
        struct pollfd fd = {walbus_subscription_fd(f.sub), walbus_subscription_events(f.sub), 0};

        ck_assert_int_eq(poll(&fd, 1, walbus_subscription_timeout(f.sub)), 1);
        ck_assert_int_eq(walbus_subscription_process(f.sub, &d), WALBUS_OK);
    }
    f.sub = walbus_subscription_close(f.sub);
    expect_ack(&f, last, false);
    fake_close(&f);
}
END_TEST

START_TEST(flushing_is_done_when_the_subscription_is_at_its_end)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    fake_hang_up(&f);
    fake_no_delivery(&f);
    acknowledge(&f, last, 0);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_error(&b, CONTROL_ERROR_INVALID, true);
    fake_send(&f, &b);
    fake_end(&f, WALBUS_REFUSED, CONTROL_ERROR_INVALID);
    fake_close(&f);
}
END_TEST

START_TEST(what_was_not_confirmed_is_asked_for_again)
{
    struct control_ack acked = {.position = last};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    acknowledge(&f, last, WALBUS_ACK_CONFIRM);
    expect_ack(&f, last, true);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    expect_ack(&f, last, true);
    control_ack_encode(&acked, true, &b);
    fake_send(&f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(&f, WALBUS_DELIVERY_ACKED)), last);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, last, last);
    fake_no_delivery(&f);
    ck_assert_int_eq(recv(f.connection, &acked, 1, MSG_DONTWAIT), -1);
    fake_close(&f);
}
END_TEST

START_TEST(the_highest_acknowledgement_goes_out_again)
{
    struct position end = {1, 300, 0};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    (void)receive_one(&f, last.lsn);
    acknowledge(&f, last, WALBUS_ACK_CONFIRM);
    expect_ack(&f, last, true);
    (void)receive_one(&f, end.lsn);
    acknowledge(&f, end, 0);
    expect_ack(&f, end, false);
    fake_hang_up(&f);
    fake_subscribe(&f, "7/1", CONTROL_START_POSITION, end);
    fake_put_subscribed(&b, end, "7/1");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    expect_ack(&f, end, true); /* and not the one that is to be confirmed, which lies before */
    fake_close(&f);
}
END_TEST

UNIT_MAIN("reconnect", goes_on_behind_the_last_position, goes_on_inside_a_transaction,
          a_begin_alone_is_gone_on_behind, having_seen_nothing_goes_on_from_where_it_was_subscribed,
          half_a_frame_before_the_end_is_forgotten, a_router_that_is_not_there_yet_is_waited_for,
          delays_end_at_two_seconds, a_position_that_is_refused_becomes_now_and_a_gap,
          a_journal_that_lost_its_end_is_a_gap_in_one_place,
          a_new_journal_forgets_what_was_acknowledged, a_journal_without_a_name,
          the_highest_acknowledgement_goes_out_again, one_loss_is_one_gap,
          a_later_start_than_asked_for_is_a_gap, a_gap_of_the_router, another_journal_is_a_gap,
          a_router_that_stops_gets_the_last_acknowledgement, errors_that_pass, errors_that_end_it,
          before_ready_every_error_is_a_refusal, reasons_that_pass_are_waited_out_when_asked_for,
          an_error_that_is_not_fatal_is_told,
          an_unsent_acknowledgement_goes_out_on_the_next_connection,
          flushing_goes_on_until_the_acknowledgement_has_gone,
          flushing_is_done_when_the_subscription_is_at_its_end,
          what_was_not_confirmed_is_asked_for_again)
