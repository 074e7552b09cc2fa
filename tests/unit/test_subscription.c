/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/subscribe.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
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

/** Every kind of data frame once; *ends gets where each stops. */
static void put_session(struct buf *b, size_t ends[6])
{
    fake_put_begin(b, 200);
    ends[0] = b->size;
    fake_put_message(b, 200, 2, unit_bytes("content"));
    ends[1] = b->size;
    fake_put_commit(b, 200);
    ends[2] = b->size;
    fake_put_message(b, 300, 0, unit_bytes(""));
    ends[3] = b->size;
    fake_put_progress(b, (struct position){1, 500, 0});
    ends[4] = b->size;
    fake_put_gap(b, (struct position){1, 500, 1}, (struct position){1, 600, 0}, "retention");
    ends[5] = b->size;
}

/* ---- what is said ---- */

START_TEST(hello_and_subscribe_say_what_was_asked_for)
{
    char texts[] = "a.*a.x";
    struct walbus_filter filters[] = {{WALBUS_FILTER_PATTERN, texts, 3},
                                      {WALBUS_FILTER_EXACT, NULL, 0}};
    struct walbus_filter exclusions[] = {{WALBUS_FILTER_STARTS_WITH, texts + 3, 3}};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct control_hello hello;
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;

    options.client = "me";
    options.filters = filters;
    options.n_filters = 2;
    options.exclusions = exclusions;
    options.n_exclusions = 1;
    fake_open_with(&f, options);
    memset(filters, 0, sizeof filters);
    memset(exclusions, 0, sizeof exclusions);
    memset(texts, 0, sizeof texts);
    fake_accept(&f);
    ck_assert_int_eq(control_hello_decode(fake_read(&f, FRAME_HELLO), &hello, why), 0);
    ck_assert_uint_eq(hello.min, PROTOCOL_VERSION);
    ck_assert_uint_eq(hello.max, PROTOCOL_VERSION);
    ck_assert_uint_eq(hello.layout, FRAME_LAYOUT);
    unit_assert_text(hello.client, "me");
    fake_put_welcome(&b, "");
    fake_send(&f, &b);

    struct bytes body = fake_read(&f, FRAME_SUBSCRIBE);
    ck_assert_int_eq(control_subscribe_decode(body, &subscribe, why), 0);
    ck_assert_uint_eq(subscribe.n_filters, 2);
    ck_assert_int_eq(subscribe.filters[0].kind, FILTER_PATTERN);
    unit_assert_text(subscribe.filters[0].text, "a.*");
    ck_assert_int_eq(subscribe.filters[1].kind, FILTER_EXACT);
    unit_assert_text(subscribe.filters[1].text, "");
    ck_assert_uint_eq(subscribe.n_exclusions, 1);
    ck_assert_int_eq(subscribe.exclusions[0].kind, FILTER_STARTS_WITH);
    unit_assert_text(subscribe.exclusions[0].text, "a.x");
    ck_assert_int_eq(subscribe.start, CONTROL_START_NOW);
    ck_assert_uint_eq(subscribe.name.size, 0);
    control_subscribe_deinit(&subscribe);
    fake_assert_position(walbus_subscription_position(f.sub), none);
    ck_assert_str_eq(walbus_subscription_identity(f.sub), "");
    fake_close(&f);
}
END_TEST

START_TEST(no_filters_are_everything)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open_with(&f, options);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    ck_assert_int_eq(control_subscribe_decode(fake_read(&f, FRAME_SUBSCRIBE), &subscribe, why), 0);
    ck_assert_uint_eq(subscribe.n_filters, 1);
    ck_assert_int_eq(subscribe.filters[0].kind, FILTER_PATTERN);
    unit_assert_text(subscribe.filters[0].text, ">");
    ck_assert_uint_eq(subscribe.n_exclusions, 0);
    control_subscribe_deinit(&subscribe);
    fake_close(&f);
}
END_TEST

/* ---- acknowledging ---- */

static void acknowledge(struct fake_router *f, struct walbus_position p, unsigned flags)
{
    ck_assert_int_eq(walbus_subscription_ack(f->sub, p, flags), WALBUS_OK);
}

static void expect_ack(struct fake_router *f, struct position want, bool confirm)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(fake_read(f, FRAME_ACK), &ack, why), 0);
    ck_assert_int_eq(position_compare(ack.position, want), 0);
    ck_assert_int_eq(ack.confirm, confirm);
}

START_TEST(acknowledgements_are_sent_and_bounded_by_what_was_delivered)
{
    struct walbus_position first = {200, 1, 0}, second = {300, 1, 0}, between = {250, 1, 0};
    struct control_ack ack = {.position = {1, 300, 0}};
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    ck_assert_int_eq(walbus_subscription_ack(f.sub, first, 0), WALBUS_BAD_ARGUMENT);
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_put_message(&b, 300, 0, unit_bytes("y"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    ck_assert_int_eq(walbus_subscription_ack(f.sub, second, 0), WALBUS_BAD_ARGUMENT);
    ck_assert_str_eq(walbus_subscription_error(f.sub),
                     "1:0/12C:0 cannot be acknowledged: the last position delivered is 1:0/C8:0.");
    ck_assert_int_eq(walbus_subscription_ack(f.sub, first, 0x2u), WALBUS_BAD_ARGUMENT);
    acknowledge(&f, first, WALBUS_ACK_CONFIRM);
    ck_assert_str_eq(walbus_subscription_error(f.sub), "");
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    fake_assert_position(walbus_subscription_position(f.sub), (struct position){1, 300, 0});
    expect_ack(&f, (struct position){1, 200, 0}, true);

    /* The later one replaces the earlier one that has not been sent. */
    acknowledge(&f, between, 0);
    acknowledge(&f, second, 0);
    acknowledge(&f, first, 0);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    expect_ack(&f, (struct position){1, 300, 0}, false);

    control_ack_encode(&ack, true, &b);
    fake_send(&f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(&f, WALBUS_DELIVERY_ACKED)),
                         (struct position){1, 300, 0});
    fake_close(&f);
}
END_TEST

/** Sends ACKED, and takes it as the loop of the header does: it is acknowledged too. */
static void answer_and_acknowledge(struct fake_router *f, struct position p, unsigned flags)
{
    struct control_ack acked = {.position = p};
    struct buf b = BUF_INIT;

    control_ack_encode(&acked, true, &b);
    fake_send(f, &b);
    const struct walbus_delivery *d = fake_delivery(f, WALBUS_DELIVERY_ACKED);
    fake_assert_position(walbus_delivery_position(d), p);
    acknowledge(f, walbus_delivery_position(d), flags);
    ck_assert_int_eq(walbus_subscription_flush(f->sub), WALBUS_OK);
}

static void nothing_was_sent(struct fake_router *f)
{
    uint8_t byte;

    ck_assert_int_eq(walbus_subscription_flush(f->sub), WALBUS_OK);
    ck_assert_int_eq(recv(f->connection, &byte, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(errno, EAGAIN);
}

START_TEST(what_was_acknowledged_is_not_said_again)
{
    struct walbus_position p = {300, 1, 0}, before = {200, 1, 0};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_message(&b, 300, 0, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    acknowledge(&f, p, 0);
    expect_ack(&f, (struct position){1, 300, 0}, false);
    acknowledge(&f, p, 0);
    acknowledge(&f, before, 0);
    nothing_was_sent(&f);

    acknowledge(&f, before, WALBUS_ACK_CONFIRM); /* to be confirmed still, but not to fall */
    expect_ack(&f, (struct position){1, 300, 0}, true);
    acknowledge(&f, before, WALBUS_ACK_CONFIRM); /* was asked for */
    nothing_was_sent(&f);
    fake_put_message(&b, 400, 0, unit_bytes("y"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    answer_and_acknowledge(&f, (struct position){1, 300, 0}, WALBUS_ACK_CONFIRM);
    nothing_was_sent(&f);
    answer_and_acknowledge(&f, (struct position){1, 300, 0}, 0);
    nothing_was_sent(&f);
    fake_assert_position(walbus_subscription_position(f.sub), (struct position){1, 400, 0});

    p.lsn = 400;
    acknowledge(&f, p, WALBUS_ACK_CONFIRM);
    expect_ack(&f, (struct position){1, 400, 0}, true);
    fake_close(&f);
}
END_TEST

START_TEST(every_delivery_can_be_acknowledged)
{
    static const enum walbus_delivery_kind kinds[] = {
        WALBUS_DELIVERY_BEGIN,   WALBUS_DELIVERY_MESSAGE,  WALBUS_DELIVERY_COMMIT,
        WALBUS_DELIVERY_MESSAGE, WALBUS_DELIVERY_PROGRESS, WALBUS_DELIVERY_GAP};
    static const struct position positions[] = {
        {1, 200, 0}, {1, 200, 2}, {1, 200, POSITION_INDEX_END},
        {1, 300, 0}, {1, 500, 0}, {1, 600, 0}};
    struct buf b = BUF_INIT;
    struct fake_router f;
    size_t ends[6], at = 0;

    greet(&f);
    put_session(&b, ends);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); at = ends[i++]) {
        ck_assert_int_eq(send(f.connection, b.data + at, ends[i] - at, 0), (ssize_t)(ends[i] - at));
        const struct walbus_delivery *d = fake_delivery(&f, kinds[i]);

        fake_assert_position(walbus_subscription_position(f.sub), positions[i]);
        acknowledge(&f, walbus_delivery_position(d), 0);
        expect_ack(&f, positions[i], false);
    }
    buf_deinit(&b);
    fake_close(&f);
}
END_TEST

/** The n-th acknowledgement of those that are counted. */
static struct position nth(unsigned n)
{
    return (struct position){1, 200 + n, 0};
}

static void acknowledge_nth(struct fake_router *f, unsigned n)
{
    struct position p = nth(n);

    acknowledge(f, (struct walbus_position){p.lsn, p.timeline, p.index}, 0);
}

START_TEST(a_router_that_does_not_read_bounds_what_is_queued)
{
    struct buf b = BUF_INIT;
    struct fake_router f;
    unsigned sent = 0, most = 1000000;

    greet(&f);
    fake_put_progress(&b, nth(most));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_PROGRESS);
    do {
        acknowledge_nth(&f, sent);
        sent++;
        ck_assert_uint_lt(sent, most);
    } while (walbus_subscription_flush(f.sub) == WALBUS_OK);
    ck_assert_str_eq(walbus_subscription_error(f.sub), walbus_result_text(WALBUS_AGAIN));
    ck_assert_int_eq(walbus_subscription_events(f.sub), POLLIN | POLLOUT);
    acknowledge_nth(&f, sent);
    acknowledge_nth(&f, most); /* takes the place of the one before */
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_AGAIN);
    for (unsigned i = 0; i < sent; i++)
        expect_ack(&f, nth(i), false);
    expect_ack(&f, nth(most), false);
    ck_assert_int_eq(walbus_subscription_flush(f.sub), WALBUS_OK);
    ck_assert_int_eq(walbus_subscription_events(f.sub), POLLIN);
    fake_close(&f);
}
END_TEST

START_TEST(closing_sends_what_is_queued)
{
    struct walbus_position p = {start.lsn, start.timeline, start.index};
    struct fake_router f;

    greet(&f);
    acknowledge(&f, p, 0);
    f.sub = walbus_subscription_close(f.sub);
    expect_ack(&f, start, false);
    ck_assert(fake_at_end(&f));
    ck_assert_ptr_null(walbus_subscription_close(NULL));
    fake_close(&f);
}
END_TEST

/* ---- what is received ---- */

static void assert_text(const void *data, size_t size, const char *want)
{
    ck_assert_ptr_nonnull(data);
    unit_assert_text((struct bytes){data, size}, want);
}

static void check_session(const struct walbus_delivery *d, size_t i)
{
    size_t prefix_size, content_size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const void *content = walbus_delivery_content(d, &content_size);

    switch (i) {
    case 0:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_BEGIN);
        fake_assert_position(walbus_delivery_position(d), (struct position){1, 200, 0});
        ck_assert_uint_eq(walbus_delivery_lsn(d), 200);
        ck_assert_int_eq(walbus_delivery_commit_time_us(d), 77);
        ck_assert_uint_eq(walbus_delivery_xid(d), 9);
        return;
    case 1:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_MESSAGE);
        fake_assert_position(walbus_delivery_position(d), (struct position){1, 200, 2});
        ck_assert_uint_eq(walbus_delivery_lsn(d), 199);
        ck_assert_int_eq(walbus_delivery_received_time_us(d), 78);
        ck_assert_uint_eq(walbus_delivery_flags(d), WALBUS_DELIVERY_TRANSACTIONAL);
        assert_text(prefix, prefix_size, "a.b");
        assert_text(content, content_size, "content");
        return;
    case 2:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_COMMIT);
        ck_assert_uint_eq(walbus_delivery_end_lsn(d), 208);
        ck_assert_uint_eq(walbus_delivery_messages(d), 3);
        return;
    case 3:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_MESSAGE);
        fake_assert_position(walbus_delivery_position(d), (struct position){1, 300, 0});
        ck_assert_uint_eq(walbus_delivery_flags(d), 0);
        assert_text(content, content_size, "");
        return;
    case 4:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_PROGRESS);
        fake_assert_position(walbus_delivery_position(d), (struct position){1, 500, 0});
        return;
    default:
        ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_GAP);
        fake_assert_position(walbus_delivery_from(d), (struct position){1, 500, 1});
        fake_assert_position(walbus_delivery_position(d), (struct position){1, 600, 0});
        ck_assert_uint_eq(walbus_delivery_messages(d), 4);
        ck_assert_uint_eq(walbus_delivery_bytes(d), UINT64_MAX);
        ck_assert_str_eq(walbus_delivery_reason(d), "retention");
    }
}

/** What there is now, NULL: nothing. */
static const struct walbus_delivery *process(struct fake_router *f)
{
    const struct walbus_delivery *d;

    ck_assert_int_eq(walbus_subscription_process(f->sub, &d), WALBUS_OK);
    return d;
}

START_TEST(frames_arrive_byte_by_byte)
{
    struct buf b = BUF_INIT;
    struct fake_router f;
    size_t ends[6], next = 0;

    greet(&f);
    put_session(&b, ends);
    for (size_t i = 0; i < b.size; i++) {
        ck_assert_int_eq(send(f.connection, b.data + i, 1, 0), 1);
        const struct walbus_delivery *d = process(&f);
        ck_assert_int_eq(d != NULL, i + 1 == ends[next]);
        if (d) {
            ck_assert_int_eq(walbus_subscription_timeout(f.sub), 0);
            check_session(d, next++);
            fake_no_delivery(&f);
            ck_assert_int_eq(walbus_subscription_timeout(f.sub), -1);
        }
    }
    ck_assert_uint_eq(next, 6);
    buf_deinit(&b);
    fake_close(&f);
}
END_TEST

START_TEST(frames_arrive_in_two_parts_cut_anywhere)
{
    struct buf b = BUF_INIT;
    size_t ends[6];

    put_session(&b, ends);
    for (size_t cut = 0; cut <= b.size; cut++) {
        const struct walbus_delivery *d;
        struct fake_router f;
        size_t got = 0, first = 0;

        greet(&f);
        while (first < 6 && ends[first] <= cut)
            first++;
        if (cut > 0)
            ck_assert_int_eq(send(f.connection, b.data, cut, 0), (ssize_t)cut);
        while ((d = process(&f)))
            check_session(d, got++);
        ck_assert_uint_eq(got, first);
        if (cut < b.size)
            ck_assert_int_eq(send(f.connection, b.data + cut, b.size - cut, 0),
                             (ssize_t)(b.size - cut));
        while ((d = process(&f)))
            check_session(d, got++);
        ck_assert_uint_eq(got, 6);
        fake_close(&f);
    }
    buf_deinit(&b);
}
END_TEST

START_TEST(what_may_have_been_seen_is_flagged)
{
    struct control_subscribed subscribed = {
        .position = start, .redelivered_to = {1, 300, 0}, .identity = unit_bytes("7/1")};
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, ">");
    fake_subscribe(&f, "7/1", CONTROL_START_NOW, none);
    control_subscribed_encode(&subscribed, &b);
    fake_put_message(&b, 300, 0, unit_bytes("x"));
    fake_put_message(&b, 301, 0, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    ck_assert_uint_eq(walbus_delivery_flags(fake_delivery(&f, WALBUS_DELIVERY_MESSAGE)),
                      WALBUS_DELIVERY_REDELIVERED);
    ck_assert_uint_eq(walbus_delivery_flags(fake_delivery(&f, WALBUS_DELIVERY_MESSAGE)), 0);
    fake_close(&f);
}
END_TEST

/* ---- what must not be ---- */

/** Sends raw bytes after the greeting: a protocol error here, and the router is told so. */
static void refused(const void *data, size_t size)
{
    struct control_error error;
    char why[CONTROL_WHY_SIZE];
    struct fake_router f;

    greet(&f);
    ck_assert_int_eq(send(f.connection, data, size, 0), (ssize_t)size);
    fake_end(&f, WALBUS_PROTOCOL, "");
    ck_assert_int_eq(control_error_decode(fake_read(&f, FRAME_ERROR), &error, why), 0);
    unit_assert_text(error.code, CONTROL_ERROR_PROTOCOL);
    ck_assert(error.fatal);
    ck_assert(fake_at_end(&f));
    ck_assert_uint_eq(f.gone, 0);
    fake_close(&f);
}

START_TEST(lengths_that_cannot_be)
{
    static const uint8_t types[] = {FRAME_BEGIN, FRAME_MESSAGE, FRAME_COMMIT, FRAME_PROGRESS,
                                    FRAME_GAP,   FRAME_ACKED,   FRAME_ERROR};

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        uint8_t raw[FRAME_HEADER_SIZE + 8] = {0};

        frame_header_encode(raw, (struct frame_header){.size = 0, .type = types[i]});
        refused(raw, FRAME_HEADER_SIZE);
        frame_header_encode(raw, (struct frame_header){.size = UINT32_MAX, .type = types[i]});
        refused(raw, FRAME_HEADER_SIZE);
        frame_header_encode(raw, (struct frame_header){.size = 8, .type = types[i]});
        refused(raw, sizeof raw);
    }
    static const uint8_t not_zero[] = {0, 0, 0, 0, FRAME_PROGRESS, 0, 0, 1};
    refused(not_zero, sizeof not_zero);
}
END_TEST

START_TEST(unknown_frames_are_skipped_only_if_ignorable)
{
    static const uint8_t ignorable[] = {0, 0, 0, 3, 0x55, FRAME_FLAG_IGNORABLE, 0, 0, 1, 2, 3};
    static const uint8_t fatal[] = {0, 0, 0, 3, 0x55, 0x7f, 0, 0, 1, 2, 3};
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    buf_append(&b, ignorable, sizeof ignorable);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_MESSAGE);
    fake_close(&f);
    refused(fatal, sizeof fatal);
}
END_TEST

START_TEST(frames_out_of_order)
{
    struct buf welcome = BUF_INIT, subscribed = BUF_INIT, message = BUF_INIT, both = BUF_INIT;
    struct fake_router f;

    fake_put_welcome(&welcome, "7/1");
    fake_put_subscribed(&subscribed, start, "7/1");
    fake_put_message(&message, 200, 0, unit_bytes("x"));
    struct buf *early[] = {&subscribed, &message};
    for (size_t i = 0; i < ARRAY_SIZE(early); i++) {
        fake_open(&f, "a.>");
        fake_accept(&f);
        ck_assert_int_eq(send(f.connection, early[i]->data, early[i]->size, 0),
                         (ssize_t)early[i]->size);
        fake_end(&f, WALBUS_PROTOCOL, "");
        fake_close(&f);
    }
    buf_append(&both, welcome.data, welcome.size);
    buf_append(&both, message.data, message.size);
    fake_open(&f, "a.>");
    fake_accept(&f);
    fake_send(&f, &both);
    fake_end(&f, WALBUS_PROTOCOL, "");
    fake_close(&f);

    refused(welcome.data, welcome.size);
    refused(subscribed.data, subscribed.size);
    static const uint8_t others[] = {FRAME_HELLO, FRAME_SUBSCRIBE, FRAME_ACK, FRAME_REQUEST,
                                     FRAME_REPLY};
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        uint8_t raw[FRAME_HEADER_SIZE];

        frame_header_encode(raw, (struct frame_header){.type = others[i]});
        refused(raw, sizeof raw);
    }
    buf_deinit(&welcome);
    buf_deinit(&subscribed);
    buf_deinit(&message);
}
END_TEST

START_TEST(falling_positions)
{
    struct buf b = BUF_INIT;

    fake_put_message(&b, 100, 0, unit_bytes("x")); /* before `start` */
    refused(b.data, b.size);
    buf_clear(&b);
    fake_put_progress(&b, (struct position){1, 100, 0});
    refused(b.data, b.size);
    buf_clear(&b);
    fake_put_message(&b, 200, 1, unit_bytes("x")); /* without its BEGIN */
    refused(b.data, b.size);
    buf_deinit(&b);
}
END_TEST

START_TEST(a_version_that_was_not_offered)
{
    struct control_welcome welcome = {.version = PROTOCOL_VERSION + 1,
                                      .layout = FRAME_LAYOUT,
                                      .server = unit_bytes("fake"),
                                      .identity = unit_bytes("")};
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a");
    fake_accept(&f);
    control_welcome_encode(&welcome, &b);
    fake_send(&f, &b);
    fake_end(&f, WALBUS_PROTOCOL, "");
    fake_close(&f);
}
END_TEST

START_TEST(garbage_never_does_harm)
{
    unsigned errors = 0;

    srandom(17);
    for (int round = 0; round < 400; round++) {
        const struct walbus_delivery *d;
        enum walbus_result result;
        struct buf b = BUF_INIT;
        struct fake_router f;
        size_t ends[6], n = 0;

        greet(&f);
        put_session(&b, ends);
        for (int flips = 1 + (int)(random() % 4); flips > 0; flips--)
            b.data[(size_t)random() % b.size] = (uint8_t)random();
        ck_assert_int_eq(send(f.connection, b.data, b.size, 0), (ssize_t)b.size);
        buf_deinit(&b);
        while ((result = walbus_subscription_process(f.sub, &d)) == WALBUS_OK && d)
            ck_assert_uint_le(++n, 6);
        ck_assert(result == WALBUS_OK || result == WALBUS_PROTOCOL);
        errors += result == WALBUS_PROTOCOL;
        fake_close(&f);
    }
    ck_assert_uint_gt(errors, 100);
}
END_TEST

UNIT_MAIN("subscription", hello_and_subscribe_say_what_was_asked_for, no_filters_are_everything,
          acknowledgements_are_sent_and_bounded_by_what_was_delivered,
          what_was_acknowledged_is_not_said_again, every_delivery_can_be_acknowledged,
          a_router_that_does_not_read_bounds_what_is_queued, closing_sends_what_is_queued,
          frames_arrive_byte_by_byte, frames_arrive_in_two_parts_cut_anywhere,
          what_may_have_been_seen_is_flagged, lengths_that_cannot_be,
          unknown_frames_are_skipped_only_if_ignorable, frames_out_of_order, falling_positions,
          a_version_that_was_not_offered, garbage_never_does_harm)
