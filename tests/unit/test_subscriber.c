/* SPDX-License-Identifier: PostgreSQL */
#include "client/subscriber.h"

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

static void assert_position(struct position got, uint32_t timeline, uint64_t lsn, uint32_t index)
{
    ck_assert_int_eq(position_compare(got, (struct position){timeline, lsn, index}), 0);
}

/* ---- what is said ---- */

START_TEST(hello_and_subscribe_say_what_was_asked_for)
{
    struct filter filters[] = {{FILTER_PATTERN, unit_bytes("a.*")}, {FILTER_EXACT, unit_bytes("")}};
    struct filter exclusions[] = {{FILTER_STARTS_WITH, unit_bytes("a.x")}};
    struct control_hello hello;
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    f.sub = subscriber_free(f.sub);
    struct subscriber_options options = {
        .socket = f.path,
        .client = "me",
        .filters = filters,
        .n_filters = 2,
        .exclusions = exclusions,
        .n_exclusions = 1,
    };
    ck_assert_int_eq(subscriber_new(&options, &f.sub), 0);
    memset(filters, 0, sizeof filters);
    memset(exclusions, 0, sizeof exclusions);
    fake_accept(&f); /* the one that fake_open made */
    fake_hang_up(&f);
    ck_assert_int_eq(subscriber_start(f.sub), 0);
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
    fake_close(&f);
}
END_TEST

START_TEST(acknowledgements_are_sent_and_bounded_by_what_was_yielded)
{
    struct control_ack ack;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;

    greet(&f);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_put_message(&b, 300, 0, unit_bytes("y"));
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_MESSAGE);
    ck_assert_int_eq(subscriber_ack(f.sub, (struct position){1, 300, 0}, false), -EINVAL);
    ck_assert_int_eq(subscriber_ack(f.sub, (struct position){1, 200, 0}, true), 0);
    (void)fake_event(&f, SUBSCRIBER_MESSAGE);
    assert_position(subscriber_position(f.sub), 1, 300, 0);
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    assert_position(ack.position, 1, 200, 0);
    ck_assert(ack.confirm);

    /* The later one replaces the earlier one that has not been sent. */
    ck_assert_int_eq(subscriber_ack(f.sub, (struct position){1, 250, 0}, false), 0);
    ck_assert_int_eq(subscriber_ack(f.sub, (struct position){1, 300, 0}, false), 0);
    ck_assert_int_eq(subscriber_ack(f.sub, (struct position){1, 200, 0}, false), 0);
    ck_assert_int_eq(subscriber_flush(f.sub), 0);
    ck_assert_int_eq(control_ack_decode(fake_read(&f, FRAME_ACK), &ack, why), 0);
    assert_position(ack.position, 1, 300, 0);
    ck_assert(!ack.confirm);

    control_ack_encode(&ack, true, &b);
    fake_send(&f, &b);
    struct subscriber_event event = fake_event(&f, SUBSCRIBER_ACKED);
    assert_position(event.acked, 1, 300, 0);
    fake_close(&f);
}
END_TEST

START_TEST(requests_go_over_a_connection_without_subscription)
{
    struct control_request request;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;
    struct fake_router f;
    uint64_t id;

    fake_open(&f, NULL);
    ck_assert_int_eq(subscriber_request(f.sub, "status", (struct bytes){NULL, 0}, &id), -ENOTCONN);
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_READY);
    ck_assert_int_eq(subscriber_request(f.sub, "status", (struct bytes){NULL, 0}, &id), 0);
    ck_assert_int_eq(control_request_decode(fake_read(&f, FRAME_REQUEST), &request, why), 0);
    ck_assert_uint_eq(request.id, id);
    unit_assert_text(request.what, "status");
    ck_assert_uint_eq(request.args.size, 0);

    struct control_reply reply = {.id = id, .result = {(const uint8_t *)"\xa0", 1}};
    control_reply_encode(&reply, &b);
    struct control_error error = {.code = unit_bytes(CONTROL_ERROR_UNSUPPORTED),
                                  .text = unit_bytes("No."),
                                  .has_id = true,
                                  .id = id};
    control_error_encode(&error, &b);
    fake_send(&f, &b);
    struct subscriber_event event = fake_event(&f, SUBSCRIBER_REPLY);
    ck_assert_uint_eq(event.reply.id, id);
    unit_assert_hex(event.reply.result, "a0");
    event = fake_event(&f, SUBSCRIBER_ERROR);
    ck_assert(!event.error.fatal && event.error.has_id && event.error.id == id);

    fake_put_message(&b, 200, 0, unit_bytes("x")); /* nobody subscribed */
    fake_send(&f, &b);
    fake_protocol_error(&f, CONTROL_ERROR_PROTOCOL);
    fake_close(&f);
}
END_TEST

START_TEST(a_router_that_does_not_read_bounds_what_is_queued)
{
    static const uint8_t args[100001] = {0x5a, 0x00, 0x01, 0x86, 0x9c}; /* a byte string of 99996 */
    struct fake_router f;
    uint64_t id;
    int rc;

    greet(&f);
    while ((rc = subscriber_request(f.sub, "x", (struct bytes){args, sizeof args}, &id)) == 0)
        (void)subscriber_flush(f.sub);
    ck_assert_int_eq(rc, -ENOBUFS);
    ck_assert_int_eq(subscriber_flush(f.sub), 1);
    ck_assert_int_eq(subscriber_events(f.sub), POLLIN | POLLOUT);
    fake_no_event(&f);
    for (uint64_t i = 0; i < id; i++)
        (void)fake_read(&f, FRAME_REQUEST);
    ck_assert_int_eq(subscriber_flush(f.sub), 0);
    ck_assert_int_eq(subscriber_events(f.sub), POLLIN);
    fake_close(&f);
}
END_TEST

/* ---- what is received ---- */

/** Every kind of data frame once; *ends gets where each stops. */
static void put_session(struct buf *b, size_t ends[6])
{
    struct frame_gap gap = {.from = {1, 500, 1},
                            .to = {1, 600, 0},
                            .messages = 4,
                            .bytes = UINT64_MAX,
                            .reason = unit_bytes("retention")};

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
    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_GAP_FIXED + gap.reason.size));
    b->size += frame_gap_encode(b->data + b->size, &gap);
    ends[5] = b->size;
}

static void check_session(const struct subscriber_event *e, size_t i)
{
    switch (i) {
    case 0:
        ck_assert_int_eq(e->kind, SUBSCRIBER_BEGIN);
        ck_assert_uint_eq(e->begin.timeline, 1);
        ck_assert_uint_eq(e->begin.commit_lsn, 200);
        ck_assert_int_eq(e->begin.commit_time, 77);
        ck_assert_uint_eq(e->begin.xid, 9);
        return;
    case 1:
        ck_assert_int_eq(e->kind, SUBSCRIBER_MESSAGE);
        assert_position(e->message.position, 1, 200, 2);
        ck_assert_uint_eq(e->message.lsn, 199);
        ck_assert_int_eq(e->message.received_time, 78);
        ck_assert_uint_eq(e->message.flags, FRAME_FLAG_TRANSACTIONAL);
        unit_assert_text(e->message.prefix, "a.b");
        unit_assert_text(e->message.content, "content");
        ck_assert(!e->redelivered);
        return;
    case 2:
        ck_assert_int_eq(e->kind, SUBSCRIBER_COMMIT);
        ck_assert_uint_eq(e->commit.end_lsn, 208);
        ck_assert_uint_eq(e->commit.messages, 3);
        return;
    case 3:
        ck_assert_int_eq(e->kind, SUBSCRIBER_MESSAGE);
        assert_position(e->message.position, 1, 300, 0);
        ck_assert_uint_eq(e->message.content.size, 0);
        return;
    case 4:
        ck_assert_int_eq(e->kind, SUBSCRIBER_PROGRESS);
        assert_position(e->progress, 1, 500, 0);
        return;
    default:
        ck_assert_int_eq(e->kind, SUBSCRIBER_GAP);
        assert_position(e->gap.to, 1, 600, 0);
        ck_assert_uint_eq(e->gap.messages, 4);
        unit_assert_text(e->gap.reason, "retention");
    }
}

START_TEST(frames_arrive_byte_by_byte)
{
    struct subscriber_event event;
    struct buf b = BUF_INIT;
    struct fake_router f;
    size_t ends[6], next = 0;

    greet(&f);
    put_session(&b, ends);
    for (size_t i = 0; i < b.size; i++) {
        ck_assert_int_eq(send(f.connection, b.data + i, 1, 0), 1);
        int rc = subscriber_process(f.sub, &event);
        ck_assert_int_eq(rc, i + 1 == ends[next]);
        if (rc == 1) {
            ck_assert_int_eq(subscriber_timeout(f.sub), 0);
            check_session(&event, next++);
            fake_no_event(&f);
            ck_assert_int_eq(subscriber_timeout(f.sub), -1);
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
        struct subscriber_event event;
        struct fake_router f;
        size_t got = 0, first = 0;

        greet(&f);
        while (first < 6 && ends[first] <= cut)
            first++;
        if (cut > 0)
            ck_assert_int_eq(send(f.connection, b.data, cut, 0), (ssize_t)cut);
        while (subscriber_process(f.sub, &event) == 1)
            check_session(&event, got++);
        ck_assert_uint_eq(got, first);
        if (cut < b.size)
            ck_assert_int_eq(send(f.connection, b.data + cut, b.size - cut, 0),
                             (ssize_t)(b.size - cut));
        while (subscriber_process(f.sub, &event) == 1)
            check_session(&event, got++);
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
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    (void)fake_read(&f, FRAME_SUBSCRIBE);
    control_subscribed_encode(&subscribed, &b);
    fake_put_message(&b, 300, 0, unit_bytes("x"));
    fake_put_message(&b, 301, 0, unit_bytes("x"));
    fake_send(&f, &b);
    (void)fake_event(&f, SUBSCRIBER_READY);
    ck_assert(fake_event(&f, SUBSCRIBER_MESSAGE).redelivered);
    ck_assert(!fake_event(&f, SUBSCRIBER_MESSAGE).redelivered);
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
    fake_protocol_error(&f, CONTROL_ERROR_PROTOCOL);
    ck_assert_int_eq(control_error_decode(fake_read(&f, FRAME_ERROR), &error, why), 0);
    unit_assert_text(error.code, CONTROL_ERROR_PROTOCOL);
    ck_assert(error.fatal);
    ck_assert(fake_at_end(&f));
    ck_assert_uint_eq(f.disconnected, 0);
    fake_close(&f);
}

START_TEST(lengths_that_cannot_be)
{
    static const uint8_t types[] = {FRAME_BEGIN, FRAME_MESSAGE, FRAME_COMMIT, FRAME_PROGRESS,
                                    FRAME_GAP,   FRAME_REPLY,   FRAME_ACKED,  FRAME_ERROR};

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
    (void)fake_event(&f, SUBSCRIBER_MESSAGE);
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
        fake_protocol_error(&f, CONTROL_ERROR_PROTOCOL);
        fake_close(&f);
    }
    buf_append(&both, welcome.data, welcome.size);
    buf_append(&both, message.data, message.size);
    fake_open(&f, "a.>");
    fake_accept(&f);
    fake_send(&f, &both);
    fake_protocol_error(&f, CONTROL_ERROR_PROTOCOL);
    fake_close(&f);

    refused(welcome.data, welcome.size);
    refused(subscribed.data, subscribed.size);
    static const uint8_t clients[] = {FRAME_HELLO, FRAME_SUBSCRIBE, FRAME_ACK, FRAME_REQUEST};
    for (size_t i = 0; i < ARRAY_SIZE(clients); i++) {
        uint8_t raw[FRAME_HEADER_SIZE];

        frame_header_encode(raw, (struct frame_header){.type = clients[i]});
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
    fake_protocol_error(&f, CONTROL_ERROR_VERSION);
    fake_close(&f);
}
END_TEST

START_TEST(garbage_never_does_harm)
{
    unsigned errors = 0;

    srandom(17);
    for (int round = 0; round < 400; round++) {
        struct subscriber_event event;
        struct buf b = BUF_INIT;
        struct fake_router f;
        size_t ends[6];
        int rc;

        greet(&f);
        put_session(&b, ends);
        for (int flips = 1 + (int)(random() % 4); flips > 0; flips--)
            b.data[(size_t)random() % b.size] = (uint8_t)random();
        size_t size = b.size;
        ck_assert_int_eq(send(f.connection, b.data, size, 0), (ssize_t)size);
        buf_deinit(&b);
        for (size_t n = 0; (rc = subscriber_process(f.sub, &event)) == 1; n++)
            ck_assert_uint_le(n, 6);
        ck_assert(rc == 0 || rc == -ENOTCONN);
        errors += rc == -ENOTCONN;
        fake_close(&f);
    }
    ck_assert_uint_gt(errors, 100);
}
END_TEST

UNIT_MAIN("subscriber", hello_and_subscribe_say_what_was_asked_for,
          acknowledgements_are_sent_and_bounded_by_what_was_yielded,
          requests_go_over_a_connection_without_subscription,
          a_router_that_does_not_read_bounds_what_is_queued, frames_arrive_byte_by_byte,
          frames_arrive_in_two_parts_cut_anywhere, what_may_have_been_seen_is_flagged,
          lengths_that_cannot_be, unknown_frames_are_skipped_only_if_ignorable, frames_out_of_order,
          falling_positions, a_version_that_was_not_offered, garbage_never_does_harm)
