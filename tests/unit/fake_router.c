/* SPDX-License-Identifier: PostgreSQL */
#include "fake_router.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "unit.h"

static void on_log(void *context, const char *sentence)
{
    struct fake_router *f = context;

    /* Nothing is asserted here: Check needs memory for it, and test_memory.c counts it. */
    f->mumbled |= strlen(sentence) <= 10;
    f->logged++;
    f->gone += strstr(sentence, "reconnecting.") != NULL;
    f->back += strcmp(sentence, "The router is back.") == 0;
    (void)snprintf(f->sentence, sizeof f->sentence, "%s", sentence);
}

void fake_init(struct fake_router *f)
{
    *f = (struct fake_router){.dir = "/tmp/walbus-fake-XXXXXX", .listener = -1, .connection = -1};
    ck_assert_ptr_nonnull(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
}

static void open_subscription(struct fake_router *f, struct walbus_subscription_options options)
{
    options.socket = f->path;
    options.log = on_log;
    options.context = f;
    enum walbus_result result = walbus_subscription_open(&options, &f->sub);
    ck_assert_msg(result == WALBUS_OK, "%s", walbus_result_name(result));
}

static void open_pattern(struct fake_router *f, const char *pattern, unsigned flags)
{
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;

    options.flags = flags;
    options.filters = &filter;
    options.n_filters = 1;
    open_subscription(f, options);
}

void fake_open_absent(struct fake_router *f, const char *pattern)
{
    fake_init(f);
    open_pattern(f, pattern, WALBUS_WAIT_FOR_ROUTER);
}

void fake_listen(struct fake_router *f)
{
    struct sockaddr_un address;

    ck_assert_int_eq(fd_socket_address(f->path, &address), 0);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(f->listener, 0);
    ck_assert_int_eq(bind(f->listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(f->listener, 8), 0);
}

void fake_unlisten(struct fake_router *f)
{
    f->listener = fd_close(f->listener);
    ck_assert_int_eq(unlink(f->path), 0);
}

void fake_open(struct fake_router *f, const char *pattern)
{
    fake_init(f);
    fake_listen(f);
    open_pattern(f, pattern, 0);
}

void fake_open_with(struct fake_router *f, struct walbus_subscription_options options)
{
    fake_init(f);
    fake_listen(f);
    open_subscription(f, options);
}

void fake_close(struct fake_router *f)
{
    f->sub = walbus_subscription_close(f->sub);
    ck_assert(!f->mumbled);
    f->connection = fd_close(f->connection);
    if (f->listener >= 0)
        fake_unlisten(f);
    ck_assert_int_eq(rmdir(f->dir), 0);
    buf_deinit(&f->frame);
}

/** Waits as a caller does, or until `fd` (-1: none) can be read; whether that. */
static bool wait_for(struct fake_router *f, int fd, int timeout)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}};
    nfds_t n = 1;

    if (f->sub) {
        fds[1].fd = walbus_subscription_fd(f->sub);
        fds[1].events = walbus_subscription_events(f->sub);
        timeout = walbus_subscription_timeout(f->sub);
        n = 2;
    }
    ck_assert_int_ge(poll(fds, n, timeout), 0);
    return fds[0].revents != 0;
}

/** Lets the subscription work without a delivery, until `fd` can be read. */
static void work_until_readable(struct fake_router *f, int fd)
{
    do {
        const struct walbus_delivery *d = NULL;

        if (f->sub && walbus_subscription_process(f->sub, &d) == WALBUS_OK)
            ck_assert_ptr_null(d);
    } while (!wait_for(f, fd, -1));
}

void fake_accept(struct fake_router *f)
{
    ck_assert_int_lt(f->connection, 0);
    work_until_readable(f, f->listener);
    f->connection = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(f->connection, 0);
}

void fake_hang_up(struct fake_router *f)
{
    f->connection = fd_close(f->connection);
}

static void read_exactly(struct fake_router *f, size_t size)
{
    while (size > 0) {
        work_until_readable(f, f->connection);
        uint8_t *to = buf_reserve(&f->frame, size);
        ck_assert_ptr_nonnull(to);
        ssize_t n = recv(f->connection, to, size, 0);
        ck_assert_int_gt(n, 0);
        f->frame.size += (size_t)n;
        size -= (size_t)n;
    }
}

struct bytes fake_read(struct fake_router *f, uint8_t type)
{
    struct frame_header h;

    buf_clear(&f->frame);
    read_exactly(f, FRAME_HEADER_SIZE);
    ck_assert_int_eq(frame_header_decode(f->frame.data, &h), 0);
    ck_assert_msg(h.type == type, "got %s, wanted %s", frame_type_name(h.type),
                  frame_type_name(type));
    read_exactly(f, h.size);
    return (struct bytes){f->frame.data + FRAME_HEADER_SIZE, h.size};
}

bool fake_at_end(struct fake_router *f)
{
    uint8_t byte;

    work_until_readable(f, f->connection);
    return recv(f->connection, &byte, 1, MSG_DONTWAIT) == 0;
}

void fake_send(struct fake_router *f, struct buf *b)
{
    ck_assert(!b->failed);
    ck_assert_int_eq(send(f->connection, b->data, b->size, MSG_NOSIGNAL), (ssize_t)b->size);
    buf_deinit(b);
}

void fake_put_welcome(struct buf *b, const char *identity)
{
    struct control_welcome welcome = {
        .version = PROTOCOL_VERSION,
        .layout = FRAME_LAYOUT,
        .server = unit_bytes("fake 1"),
        .identity = unit_bytes(identity),
        .timeline = 1,
        .max_frame = FRAME_CONTROL_MAX,
        .max_filters = FILTERS_MAX,
    };
    control_welcome_encode(&welcome, b);
}

void fake_put_subscribed(struct buf *b, struct position position, const char *identity)
{
    struct control_subscribed subscribed = {
        .position = position, .identity = unit_bytes(identity), .timeline = 1};
    control_subscribed_encode(&subscribed, b);
}

void fake_put_subscribed_durable(struct buf *b, struct position position, const char *identity,
                                 bool stored, struct position redelivered_to)
{
    struct control_subscribed subscribed = {
        .position = position,
        .stored = stored,
        .redelivered_to = redelivered_to,
        .identity = unit_bytes(identity),
        .timeline = 1,
    };
    control_subscribed_encode(&subscribed, b);
}

void fake_put_error(struct buf *b, const char *code, bool fatal)
{
    struct control_error error = {
        .code = unit_bytes(code), .text = unit_bytes("So it is."), .fatal = fatal};
    control_error_encode(&error, b);
}

void fake_put_begin(struct buf *b, uint64_t lsn)
{
    struct frame_begin begin = {.timeline = 1, .commit_lsn = lsn, .commit_time = 77, .xid = 9};

    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_BEGIN_BODY));
    b->size += frame_begin_encode(b->data + b->size, &begin);
}

void fake_put_commit(struct buf *b, uint64_t lsn)
{
    struct frame_commit commit = {
        .begin = {.timeline = 1, .commit_lsn = lsn, .commit_time = 77, .xid = 9},
        .end_lsn = lsn + 8,
        .messages = 3,
    };

    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_COMMIT_BODY));
    b->size += frame_commit_encode(b->data + b->size, &commit);
}

void fake_put_message(struct buf *b, uint64_t lsn, uint32_t index, struct bytes content)
{
    struct frame_message message = {
        .position = {1, lsn, index},
        .lsn = lsn - 1,
        .xid = index ? 9 : 0,
        .commit_time = index ? 77 : 0,
        .received_time = 78,
        .prefix = unit_bytes("a.b"),
        .content = content,
        .flags = index ? FRAME_FLAG_TRANSACTIONAL : 0,
    };

    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED + 3));
    b->size += frame_message_encode_head(b->data + b->size, &message);
    buf_append(b, content.data, content.size);
}

void fake_put_progress(struct buf *b, struct position position)
{
    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_PROGRESS_BODY));
    b->size += frame_progress_encode(b->data + b->size, position);
}

void fake_put_gap(struct buf *b, struct position from, struct position to, const char *reason)
{
    struct frame_gap gap = {
        .from = from, .to = to, .messages = 4, .bytes = UINT64_MAX, .reason = unit_bytes(reason)};

    ck_assert_ptr_nonnull(buf_reserve(b, FRAME_HEADER_SIZE + FRAME_GAP_FIXED + gap.reason.size));
    b->size += frame_gap_encode(b->data + b->size, &gap);
}

/** What the next call that says something says. */
static enum walbus_result next(struct fake_router *f, const struct walbus_delivery **ret)
{
    enum walbus_result result;

    *ret = NULL;
    while ((result = walbus_subscription_process(f->sub, ret)) == WALBUS_OK && !*ret)
        (void)wait_for(f, -1, -1);
    return result;
}

const struct walbus_delivery *fake_delivery(struct fake_router *f, enum walbus_delivery_kind kind)
{
    const struct walbus_delivery *d;
    enum walbus_result result = next(f, &d);

    ck_assert_msg(result == WALBUS_OK, "%s: %s", walbus_result_name(result),
                  walbus_subscription_error(f->sub));
    ck_assert_str_eq(walbus_subscription_error(f->sub), "");
    ck_assert_msg(walbus_delivery_kind(d) == kind, "delivery %d, wanted %d",
                  (int)walbus_delivery_kind(d), (int)kind);
    return d;
}

void fake_no_delivery(struct fake_router *f)
{
    const struct walbus_delivery *d = NULL;

    ck_assert_int_eq(walbus_subscription_process(f->sub, &d), WALBUS_OK);
    ck_assert_ptr_null(d);
}

void fake_end(struct fake_router *f, enum walbus_result result, const char *code)
{
    const struct walbus_delivery *d;
    char why[640];
    enum walbus_result got = next(f, &d);

    ck_assert_msg(got == result, "%s: %s", walbus_result_name(got),
                  walbus_subscription_error(f->sub));
    (void)snprintf(why, sizeof why, "%s", walbus_subscription_error(f->sub));
    ck_assert_uint_gt(strlen(why), 5);
    ck_assert_str_eq(walbus_subscription_error_code(f->sub), code);
    ck_assert_int_eq(walbus_subscription_fd(f->sub), -1);
    ck_assert_int_eq(walbus_subscription_events(f->sub), 0);
    ck_assert_int_eq(walbus_subscription_timeout(f->sub), 0);
    ck_assert_int_eq(walbus_subscription_flush(f->sub), WALBUS_OK);
    ck_assert_str_eq(walbus_subscription_error(f->sub), "");
    ck_assert_int_eq(walbus_subscription_process(f->sub, &d), result);
    ck_assert_int_eq(walbus_subscription_next(f->sub, -1, &d), result);
    ck_assert_str_eq(walbus_subscription_error(f->sub), why);
}

void fake_assert_position(struct walbus_position got, struct position want)
{
    char text[WALBUS_POSITION_TEXT_SIZE], wanted[POSITION_TEXT_SIZE];

    ck_assert_str_eq(walbus_position_format(got, text), position_format(want, wanted));
}

void fake_subscribe(struct fake_router *f, const char *identity, enum control_start start,
                    struct position start_position)
{
    fake_take_subscribe(f, identity,
                        &(struct control_subscribe){.start = start, .position = start_position});
}

void fake_take_subscribe(struct fake_router *f, const char *identity,
                         const struct control_subscribe *want)
{
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;

    fake_accept(f);
    (void)fake_read(f, FRAME_HELLO);
    fake_put_welcome(&b, identity);
    fake_send(f, &b);
    struct bytes body = fake_read(f, FRAME_SUBSCRIBE);
    ck_assert_int_eq(control_subscribe_decode(body, &subscribe, why), 0);
    ck_assert_int_eq(subscribe.start, want->start);
    if (want->start == CONTROL_START_POSITION)
        ck_assert_int_eq(position_compare(subscribe.position, want->position), 0);
    ck_assert_int_eq(subscribe.time, want->time);
    ck_assert(bytes_equal(subscribe.name, want->name));
    ck_assert_int_eq(subscribe.take_over, want->take_over);
    ck_assert_int_eq(subscribe.override, want->override);
    control_subscribe_deinit(&subscribe);
}

void fake_greet(struct fake_router *f, enum control_start start, struct position start_position,
                struct position answer)
{
    struct buf b = BUF_INIT;

    fake_subscribe(f, "7/1", start, start_position);
    fake_put_subscribed(&b, answer, "7/1");
    fake_send(f, &b);
    fake_assert_position(walbus_delivery_position(fake_delivery(f, WALBUS_DELIVERY_READY)), answer);
    ck_assert_str_eq(walbus_subscription_identity(f->sub), "7/1");
    fake_assert_position(walbus_subscription_position(f->sub), answer);
}
