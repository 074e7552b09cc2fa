/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_SESSION_FIXTURE_H
#define WALBUS_TESTS_UNIT_SESSION_FIXTURE_H

/* A session with a client at the other end of its socket and an owner that counts what it is asked.
 * Each program of tests that includes this has one. */

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "codec/control.h"
#include "codec/frame.h"
#include "session.h"
#include "unit.h"

/* ---- the owner, the loop, the client ---- */

static struct {
    unsigned welcomes, subscribes, requests, closed;
    bool answer; /* SUBSCRIBE at once, from `start` */
    struct position start;
    struct bytes reply; /* the answer to a request; empty: an error */
    char what[4096];    /* of the last request */
    size_t room;        /* that is left beside what the session holds */
    struct position acked; /* by the last ACK */
} owner;

static uv_loop_t loop;
static struct session *session; /* NULL once it is closed */
static struct batch_pool pool;
static struct logger silent;

static int client;
static struct buf received;
static size_t taken; /* of what was received */
static struct buf out;

static inline void owner_welcome(void *o, struct control_welcome *welcome)
{
    ck_assert_ptr_eq(o, &owner);
    owner.welcomes++;
    welcome->identity = unit_bytes("42/1");
    welcome->timeline = 3;
    welcome->position = (struct position){3, 0x500, 0};
}

static inline void answer_subscribe(struct session *s)
{
    struct control_subscribed subscribed = {
        .position = owner.start, .identity = unit_bytes("42/1"), .timeline = 3};

    session_subscribed(s, &subscribed);
}

static inline void owner_subscribe(void *o, struct session *s)
{
    ck_assert_ptr_eq(o, &owner);
    owner.subscribes++;
    ck_assert_int_eq(s->state, SESSION_WAITING);
    if (owner.answer)
        answer_subscribe(s);
}

static inline void owner_request(void *o, struct session *s, const struct control_request *request)
{
    struct control_reply reply = {.id = request->id, .result = owner.reply};

    ck_assert_ptr_eq(o, &owner);
    owner.requests++;
    ck_assert_uint_lt(request->what.size, sizeof owner.what);
    memcpy(owner.what, request->what.data, request->what.size);
    owner.what[request->what.size] = '\0';
    if (owner.reply.size)
        session_reply(s, &reply);
    else
        session_request_error(s, request->id, CONTROL_ERROR_UNSUPPORTED, "No.");
}

static inline const char *owner_room(void *o, const struct session *s, size_t bytes)
{
    ck_assert_ptr_eq(o, &owner);
    ck_assert_ptr_eq(s, session);
    return bytes <= owner.room ? NULL : "all clients";
}

static inline bool owner_caught_up(void *o, struct session *s)
{
    ck_assert_ptr_eq(o, &owner);
    ck_abort_msg("session %lu has no journal to catch up with", (unsigned long)s->id);
    return false;
}

static inline void owner_closed(void *o, struct session *s)
{
    ck_assert_ptr_eq(o, &owner);
    ck_assert_ptr_eq(s, session);
    session = NULL;
    owner.closed++;
}

static inline void owner_acked(void *o, struct session *s, bool confirm)
{
    ck_assert_ptr_eq(o, &owner);
    owner.acked = s->acked;
    if (confirm)
        session_confirm(s, s->acked);
}

static inline bool owner_was_read(void *o, struct session *s, struct position told, const char *why)
{
    (void)o;
    (void)told;
    (void)why;
    ck_abort_msg("session %lu has no journal to read", (unsigned long)s->id);
    return false;
}

static const struct session_ops ops = {.welcome = owner_welcome,
                                       .subscribe = owner_subscribe,
                                       .request = owner_request,
                                       .room = owner_room,
                                       .acked = owner_acked,
                                       .caught_up = owner_caught_up,
                                       .was_read = owner_was_read,
                                       .closed = owner_closed};

static inline void turns(unsigned n)
{
    while (n--)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static inline void setup(void)
{
    int pair[2];

    memset(&owner, 0, sizeof owner);
    owner.answer = true;
    owner.room = SIZE_MAX;
    owner.start = (struct position){1, 0x50, 0};
    pool = (struct batch_pool){0};
    taken = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    client = pair[1];
    session = session_new(&loop, pair[0], 7, &ops, &owner, NULL, &silent);
    ck_assert_ptr_nonnull(session);
}

/** Ends whatever is left; the session is closed once, and gives everything back. */
static inline void teardown(void)
{
    if (session)
        session_close(session, "the test is over");
    ck_assert_uint_eq(owner.closed, 1);
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_uint_eq(owner.closed, 1);
    batch_pool_deinit(&pool);
    buf_deinit(&received);
    buf_deinit(&out);
    if (client >= 0)
        ck_assert_int_eq(close(client), 0);
}

/** Sends `out`, in pieces of at most `piece` bytes with turns of the loop between. */
static inline void send_in_pieces(size_t piece)
{
    size_t sent = 0;

    ck_assert(!out.failed);
    while (sent < out.size) {
        ssize_t n = send(client, out.data + sent, MIN(piece, out.size - sent), MSG_NOSIGNAL);

        if (n < 0 && errno == EPIPE)
            break; /* a test will see that it is closed */
        ck_assert(n > 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        turns(1);
    }
    buf_clear(&out);
    turns(3);
}

static inline void send_out(void)
{
    send_in_pieces(SIZE_MAX);
}

/** Reads what is there. False: the end was reached. */
static inline bool receive(void)
{
    for (;;) {
        uint8_t *to = buf_reserve(&received, 65536);

        ck_assert_ptr_nonnull(to);
        ssize_t n = recv(client, to, 65536, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0) {
            ck_assert(n == 0 || errno == ECONNRESET);
            return false;
        }
        received.size += (size_t)n;
    }
}

/** The next frame; false when there is none, even after some turns. */
static inline bool frame(struct frame_header *h, const uint8_t **body)
{
    for (unsigned i = 0; i < 100; i++) {
        bool more = receive();
        size_t left = received.size - taken;

        if (left >= FRAME_HEADER_SIZE) {
            ck_assert_int_eq(frame_header_decode(received.data + taken, h), 0);
            if (left - FRAME_HEADER_SIZE >= h->size) {
                *body = received.data + taken + FRAME_HEADER_SIZE;
                taken += FRAME_HEADER_SIZE + h->size;
                return true;
            }
        }
        if (!more || (left == 0 && i > 3))
            break;
        turns(1);
    }
    ck_assert_uint_eq(received.size, taken); /* no half frame */
    return false;
}

static inline struct bytes next(uint8_t type)
{
    struct frame_header h;
    const uint8_t *body;

    ck_assert_msg(frame(&h, &body), "no %s came", frame_type_name(type));
    ck_assert_msg(h.type == type, "%s came, wanted %s", frame_type_name(h.type),
                  frame_type_name(type));
    return (struct bytes){body, h.size};
}

static inline void assert_silent(void)
{
    struct frame_header h;
    const uint8_t *body;

    turns(3);
    ck_assert_msg(!frame(&h, &body), "a frame of type %02x", h.type);
}

static inline void assert_error(const char *code, const char *text, bool fatal)
{
    struct control_error error;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_error_decode(next(FRAME_ERROR), &error, why), 0);
    unit_assert_text(error.code, code);
    if (text)
        unit_assert_text(error.text, text);
    ck_assert_int_eq(error.fatal, fatal);
}

/** The connection ends here, and the owner was told once. */
static inline void assert_end(void)
{
    struct frame_header h;
    const uint8_t *body;

    turns(3);
    ck_assert_msg(!frame(&h, &body), "a frame of type %02x", h.type);
    ck_assert(!receive());
    ck_assert_ptr_null(session);
    ck_assert_uint_eq(owner.closed, 1);
}

static inline void assert_fatal(const char *code, const char *text)
{
    assert_error(code, text, true);
    assert_end();
}

/* ---- frames of the client ---- */

static inline void put_frame(uint8_t type, uint8_t flags, const void *body, size_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];

    frame_header_encode(header, (struct frame_header){(uint32_t)size, type, flags});
    buf_append(&out, header, sizeof header);
    buf_append(&out, body, size);
}

static inline void put_hello(void)
{
    struct control_hello hello = {1, 1, 1, unit_bytes("unit")};

    control_hello_encode(&hello, &out);
}

static inline void put_subscribe(void)
{
    struct filter filters[] = {{FILTER_PATTERN, unit_bytes("a.>")},
                               {FILTER_EXACT, unit_bytes("b")}};
    struct control_subscribe subscribe = {
        .filters = filters, .n_filters = 2, .start = CONTROL_START_NOW};

    control_subscribe_encode(&subscribe, &out);
}

static inline void put_ack(struct position position, bool confirm)
{
    struct control_ack ack = {position, confirm};

    control_ack_encode(&ack, false, &out);
}

static inline void put_request(uint64_t id)
{
    struct control_request request = {.id = id, .what = unit_bytes("status")};

    control_request_encode(&request, &out);
}

static inline void greet(void)
{
    put_hello();
    send_out();
    (void)next(FRAME_WELCOME);
    ck_assert_int_eq(session->state, SESSION_READY);
}

static inline void subscribe_at(struct position start)
{
    owner.start = start;
    greet();
    put_subscribe();
    send_out();
    (void)next(FRAME_SUBSCRIBED);
    ck_assert_int_eq(session->state, SESSION_ACTIVE);
}

static inline void subscribe(void)
{
    subscribe_at((struct position){1, 0x50, 0});
}

static inline void assert_acked(struct position position)
{
    struct control_ack acked;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(next(FRAME_ACKED), &acked, why), 0);
    ck_assert_int_eq(position_compare(acked.position, position), 0);
    ck_assert_int_eq(position_compare(session->acked, position), 0);
}

/* ---- delivery ---- */

static inline struct batch *new_batch(void)
{
    struct batch *batch = batch_new(&pool);

    ck_assert_ptr_nonnull(batch);
    return batch;
}

static inline void add_message(struct batch *batch, uint64_t lsn, uint32_t index, size_t size)
{
    uint8_t *memory = calloc(1, size ? size : 1);
    void *memory_owner = memory;
    struct frame_message f = {.position = {1, lsn, index},
                              .prefix = unit_bytes("a.b"),
                              .content = {memory, size},
                              .flags = index ? FRAME_FLAG_TRANSACTIONAL : 0};

    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(batch_add_message(batch, &f, &memory_owner), 0);
    free(memory_owner);
}

/** As the router does it for a session with filters that match all of it but message `skip`; gives
 * the batch away. */
static inline void deliver(struct batch *batch, uint32_t skip)
{
    const struct batch_entry *begin = NULL;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *e = &batch->entries[i];

        if (e->type == FRAME_BEGIN) {
            begin = e;
        } else if (e->type == FRAME_COMMIT) {
            session_send_commit(session, batch, e, begin);
            begin = NULL;
        } else if (e->type == FRAME_GAP) {
            session_send_gap_entry(session, batch, e);
        } else if (e->position.index != skip || skip == 0) {
            bool was_inside = session->inside;
            bool came = session_send_message(session, batch, e, begin);

            ck_assert_int_eq(came, !was_inside && session->inside);
        }
    }
    session_flush(session);
    (void)batch_unref(batch);
}

static inline void assert_message(uint64_t lsn, uint32_t index)
{
    struct position p = position_decode(next(FRAME_MESSAGE).data);

    ck_assert_int_eq(position_compare(p, (struct position){1, lsn, index}), 0);
}

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

#endif
