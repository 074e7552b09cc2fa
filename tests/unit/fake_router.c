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

static void on_notice(void *context, enum subscriber_notice notice, const char *sentence)
{
    struct fake_router *f = context;

    ck_assert(strlen(sentence) > 10 && sentence[strlen(sentence) - 1] == '.');
    if (notice == SUBSCRIBER_NOTICE_LOST)
        f->lost++;
    else
        f->disconnected++;
}

void fake_open_absent(struct fake_router *f, const char *pattern)
{
    struct filter filter = {.kind = FILTER_PATTERN};

    *f = (struct fake_router){.dir = "/tmp/walbus-fake-XXXXXX", .listener = -1, .connection = -1};
    ck_assert_ptr_nonnull(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
    if (pattern)
        filter.text = unit_bytes(pattern);
    struct subscriber_options options = {
        .socket = f->path,
        .client = "test",
        .filters = &filter,
        .n_filters = pattern ? 1 : 0,
        .notice = on_notice,
        .context = f,
    };
    ck_assert_int_eq(subscriber_new(&options, &f->sub), 0);
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
    fake_open_absent(f, pattern);
    fake_listen(f);
    ck_assert_int_eq(subscriber_start(f->sub), 0);
}

void fake_close(struct fake_router *f)
{
    f->sub = subscriber_free(f->sub);
    f->connection = fd_close(f->connection);
    if (f->listener >= 0)
        fake_unlisten(f);
    ck_assert_int_eq(rmdir(f->dir), 0);
    buf_deinit(&f->frame);
}

/** Lets the subscriber work without an event, until `fd` can be read. */
static void work_until_readable(struct fake_router *f, int fd)
{
    for (;;) {
        struct subscriber_event event;
        int rc = subscriber_process(f->sub, &event);

        ck_assert(rc == 0 || rc == -ENOTCONN);
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                                {.fd = subscriber_fd(f->sub), .events = subscriber_events(f->sub)}};
        ck_assert_int_ge(poll(fds, 2, rc == 0 ? subscriber_timeout(f->sub) : 0), 0);
        if (fds[0].revents)
            return;
    }
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

struct subscriber_event fake_event(struct fake_router *f, enum subscriber_event_kind kind)
{
    struct subscriber_event event;
    int rc;

    while ((rc = subscriber_process(f->sub, &event)) == 0) {
        struct pollfd fd = {.fd = subscriber_fd(f->sub), .events = subscriber_events(f->sub)};
        ck_assert_int_ge(poll(&fd, 1, subscriber_timeout(f->sub)), 0);
    }
    ck_assert_int_eq(rc, 1);
    ck_assert_msg(event.kind == kind, "event %d, wanted %d (%.*s)", (int)event.kind, (int)kind,
                  event.kind == SUBSCRIBER_ERROR ? (int)event.error.text.size : 0,
                  (const char *)event.error.text.data);
    return event;
}

void fake_no_event(struct fake_router *f)
{
    struct subscriber_event event;

    ck_assert_int_eq(subscriber_process(f->sub, &event), 0);
}

void fake_protocol_error(struct fake_router *f, const char *code)
{
    struct subscriber_event event = fake_event(f, SUBSCRIBER_ERROR);

    unit_assert_text(event.error.code, code);
    ck_assert(event.error.fatal);
    ck_assert_uint_gt(event.error.text.size, 5);
    ck_assert_int_eq(subscriber_fd(f->sub), -1);
    ck_assert_int_eq(subscriber_process(f->sub, &event), -ENOTCONN);
}

void fake_greet(struct fake_router *f, enum control_start start, struct position start_position,
                struct position answer)
{
    struct control_subscribe subscribe;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;

    fake_accept(f);
    (void)fake_read(f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(f, &b);
    struct bytes body = fake_read(f, FRAME_SUBSCRIBE);
    ck_assert_int_eq(control_subscribe_decode(body, &subscribe, why), 0);
    ck_assert_int_eq(subscribe.start, start);
    if (start == CONTROL_START_POSITION)
        ck_assert_int_eq(position_compare(subscribe.position, start_position), 0);
    control_subscribe_deinit(&subscribe);
    fake_put_subscribed(&b, answer, "7/1");
    fake_send(f, &b);
    struct subscriber_event event = fake_event(f, SUBSCRIBER_READY);
    ck_assert_int_eq(position_compare(event.ready.position, answer), 0);
}
