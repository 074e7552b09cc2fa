/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit.h"

/* A size that no allocator has, so that a failed allocation can be seen; the sanitizer must give
 * NULL for it too. */
#define TOO_LARGE ((size_t)1 << 46)
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* ---- the owner, the loop, the client ---- */

static struct {
    unsigned welcomes, subscribes, requests, wrote, closed;
    bool answer; /* SUBSCRIBE at once, from `start` */
    struct position start;
    struct bytes reply; /* the answer to a request; empty: an error */
    char what[4096];    /* of the last request */
} owner;

static uv_loop_t loop;
static struct session *session; /* NULL once it is closed */
static struct batch_pool pool;
static struct logger silent;
static int client;
static struct buf received;
static size_t taken; /* of what was received */
static struct buf out;

static void owner_welcome(void *o, struct control_welcome *welcome)
{
    ck_assert_ptr_eq(o, &owner);
    owner.welcomes++;
    welcome->identity = unit_bytes("42/1");
    welcome->timeline = 3;
    welcome->position = (struct position){3, 0x500, 0};
}

static void answer_subscribe(struct session *s)
{
    struct control_subscribed subscribed = {
        .position = owner.start, .identity = unit_bytes("42/1"), .timeline = 3};

    session_subscribed(s, &subscribed);
}

static void owner_subscribe(void *o, struct session *s)
{
    ck_assert_ptr_eq(o, &owner);
    owner.subscribes++;
    ck_assert_int_eq(s->state, SESSION_WAITING);
    if (owner.answer)
        answer_subscribe(s);
}

static void owner_request(void *o, struct session *s, const struct control_request *request)
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

static void owner_wrote(void *o)
{
    ck_assert_ptr_eq(o, &owner);
    owner.wrote++;
}

static void owner_closed(void *o, struct session *s)
{
    ck_assert_ptr_eq(o, &owner);
    ck_assert_ptr_eq(s, session);
    session = NULL;
    owner.closed++;
}

static const struct session_ops ops = {.welcome = owner_welcome,
                                       .subscribe = owner_subscribe,
                                       .request = owner_request,
                                       .wrote = owner_wrote,
                                       .closed = owner_closed};

static void turns(unsigned n)
{
    while (n--)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void setup(void)
{
    int pair[2];

    memset(&owner, 0, sizeof owner);
    owner.answer = true;
    owner.start = (struct position){1, 0x50, 0};
    pool = (struct batch_pool){0};
    taken = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    client = pair[1];
    session = session_new(&loop, pair[0], 7, &ops, &owner, &silent);
    ck_assert_ptr_nonnull(session);
}

/** Ends whatever is left; the session is closed once, and gives everything back. */
static void teardown(void)
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
static void send_in_pieces(size_t piece)
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

static void send_out(void)
{
    send_in_pieces(SIZE_MAX);
}

/** Reads what is there. False: the end was reached. */
static bool receive(void)
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
static bool frame(struct frame_header *h, const uint8_t **body)
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

static struct bytes next(uint8_t type)
{
    struct frame_header h;
    const uint8_t *body;

    ck_assert_msg(frame(&h, &body), "no %s came", frame_type_name(type));
    ck_assert_msg(h.type == type, "%s came, wanted %s", frame_type_name(h.type),
                  frame_type_name(type));
    return (struct bytes){body, h.size};
}

static void assert_silent(void)
{
    struct frame_header h;
    const uint8_t *body;

    turns(3);
    ck_assert_msg(!frame(&h, &body), "a frame of type %02x", h.type);
}

static void assert_error(const char *code, const char *text, bool fatal)
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
static void assert_end(void)
{
    struct frame_header h;
    const uint8_t *body;

    turns(3);
    ck_assert_msg(!frame(&h, &body), "a frame of type %02x", h.type);
    ck_assert(!receive());
    ck_assert_ptr_null(session);
    ck_assert_uint_eq(owner.closed, 1);
}

static void assert_fatal(const char *code, const char *text)
{
    assert_error(code, text, true);
    assert_end();
}

/* ---- frames of the client ---- */

static void put_frame(uint8_t type, uint8_t flags, const void *body, size_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];

    frame_header_encode(header, (struct frame_header){(uint32_t)size, type, flags});
    buf_append(&out, header, sizeof header);
    buf_append(&out, body, size);
}

static void put_hello(void)
{
    struct control_hello hello = {1, 1, 1, unit_bytes("unit")};

    control_hello_encode(&hello, &out);
}

static void put_subscribe(void)
{
    struct filter filters[] = {{FILTER_PATTERN, unit_bytes("a.>")},
                               {FILTER_EXACT, unit_bytes("b")}};
    struct control_subscribe subscribe = {
        .filters = filters, .n_filters = 2, .start = CONTROL_START_NOW};

    control_subscribe_encode(&subscribe, &out);
}

static void put_ack(struct position position, bool confirm)
{
    struct control_ack ack = {position, confirm};

    control_ack_encode(&ack, false, &out);
}

static void put_request(uint64_t id)
{
    struct control_request request = {.id = id, .what = unit_bytes("status")};

    control_request_encode(&request, &out);
}

static void greet(void)
{
    put_hello();
    send_out();
    (void)next(FRAME_WELCOME);
    ck_assert_int_eq(session->state, SESSION_READY);
}

static void subscribe_at(struct position start)
{
    owner.start = start;
    greet();
    put_subscribe();
    send_out();
    (void)next(FRAME_SUBSCRIBED);
    ck_assert_int_eq(session->state, SESSION_ACTIVE);
}

static void subscribe(void)
{
    subscribe_at((struct position){1, 0x50, 0});
}

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

START_TEST(malformed_bodies)
{
    static const struct {
        uint8_t type;
        const char *begins;
    } cases[] = {{FRAME_HELLO, "HELLO: "},
                 {FRAME_SUBSCRIBE, "SUBSCRIBE: "},
                 {FRAME_ACK, "ACK: "},
                 {FRAME_REQUEST, "REQUEST: "},
                 {FRAME_ERROR, "ERROR: "}};
    static const struct bytes bodies[] = {{NULL, 0},
                                          {(const uint8_t *)"\xa0", 1},
                                          {(const uint8_t *)"\xff\xff", 2},
                                          {(const uint8_t *)"\xa1\x01", 2}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (size_t k = 0; k < ARRAY_SIZE(bodies); k++) {
            struct control_error error;
            char why[CONTROL_WHY_SIZE];

            setup();
            if (cases[i].type == FRAME_ACK)
                subscribe();
            else if (cases[i].type != FRAME_HELLO)
                greet();
            put_frame(cases[i].type, 0, bodies[k].data, bodies[k].size);
            send_out();
            ck_assert_int_eq(control_error_decode(next(FRAME_ERROR), &error, why), 0);
            unit_assert_text(error.code, CONTROL_ERROR_PROTOCOL);
            ck_assert(error.fatal);
            ck_assert_uint_gt(error.text.size, strlen(cases[i].begins));
            ck_assert_mem_eq(error.text.data, cases[i].begins, strlen(cases[i].begins));
            assert_end();
            teardown();
        }
    }
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

/* ---- acknowledging ---- */

static void assert_acked(struct position position)
{
    struct control_ack acked;
    char why[CONTROL_WHY_SIZE];

    ck_assert_int_eq(control_ack_decode(next(FRAME_ACKED), &acked, why), 0);
    ck_assert_int_eq(position_compare(acked.position, position), 0);
    ck_assert_int_eq(position_compare(session->acked, position), 0);
}

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

/* ---- frames in general ---- */

START_TEST(unknown_frames)
{
    static const struct {
        uint8_t type;
        const char *text;
    } cases[] = {
        {0x00, "a client does not send frame type 0x00 (unknown)"},
        {0x0a, "a client does not send frame type 0x0a (unknown)"},
        {0xff, "a client does not send frame type 0xff (unknown)"},
        {FRAME_WELCOME, "a client does not send frame type 0x02 (WELCOME)"},
        {FRAME_MESSAGE, "a client does not send frame type 0x11 (MESSAGE)"},
        {FRAME_GAP, "a client does not send frame type 0x14 (GAP)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setup();
        subscribe();
        put_frame(cases[i].type, FRAME_FLAG_IGNORABLE, "body", 4);
        put_frame(cases[i].type, 0xff, NULL, 0);
        put_ack(owner.start, true);
        send_out();
        assert_acked(owner.start); /* the frames before it were skipped */
        put_frame(cases[i].type, 0x7f, "body", 4);
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, cases[i].text);
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

START_TEST(largest_body)
{
    uint8_t *body = calloc(1, FRAME_CONTROL_MAX);
    static const uint8_t over[] = {0x00, 0x10, 0x00, 0x01, 0x7f, FRAME_FLAG_IGNORABLE, 0, 0};

    ck_assert_ptr_nonnull(body);
    setup();
    greet();
    put_frame(0x7f, FRAME_FLAG_IGNORABLE, body, FRAME_CONTROL_MAX);
    put_request(1);
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    ck_assert_uint_eq(session->in_size, 0);
    put_request(1); /* an empty buffer falls back */
    send_out();
    assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
    ck_assert_uint_eq(session->in_cap, 4096);
    buf_append(&out, over, sizeof over); /* one more is refused by the header alone */
    send_out();
    assert_fatal(CONTROL_ERROR_PROTOCOL,
                 "a frame body of 1048577 bytes, at most 1048576 are accepted");
    teardown();
    free(body);
}
END_TEST

START_TEST(headers_that_are_none)
{
    static const char *const hex[] = {"00000001 01 00 0100 a0", "00000001 01 00 0001 a0",
                                      "ffffffff ff ff ffff"};

    for (size_t i = 0; i < ARRAY_SIZE(hex); i++) {
        struct bytes raw = unit_from_hex(hex[i]);

        setup();
        buf_append(&out, raw.data, raw.size);
        send_out();
        assert_fatal(CONTROL_ERROR_PROTOCOL, "a frame's bytes 6 and 7 must be zero");
        teardown();
        unit_free(raw);
    }
}
END_TEST

START_TEST(input_in_pieces_of_every_size)
{
    static const size_t pieces[] = {1, 2, 3, 7, 8, 9, 50, SIZE_MAX};

    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        setup();
        put_hello();
        put_frame(0x7f, FRAME_FLAG_IGNORABLE, NULL, 0);
        put_subscribe();
        put_request(1);
        put_ack(owner.start, true);
        put_request(2);
        send_in_pieces(pieces[i]);
        (void)next(FRAME_WELCOME);
        (void)next(FRAME_SUBSCRIBED);
        assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
        assert_acked(owner.start);
        assert_error(CONTROL_ERROR_UNSUPPORTED, "No.", false);
        assert_silent();
        ck_assert_uint_eq(owner.requests, 2);
        ck_assert_uint_eq(session->in_size, 0);
        teardown();
    }
}
END_TEST

START_TEST(random_input)
{
    struct unit_random random = unit_random_init();
    unsigned ended = 0;

    for (unsigned round = 0; round < 100; round++) {
        setup();
        if (round % 2)
            greet();
        put_hello();
        put_subscribe();
        put_request(1);
        put_ack(owner.start, true);
        for (unsigned i = 0; i < 3; i++) /* a few wrong bytes */
            out.data[unit_random_below(&random, (uint32_t)out.size)] =
                (uint8_t)unit_random_next(&random);
        send_in_pieces(1 + unit_random_below(&random, 100));
        ended += session == NULL;
        teardown();
    }
    ck_assert_uint_ge(ended, 50); /* HELLO twice at the least */
}
END_TEST

/* ---- delivery ---- */

static struct batch *new_batch(void)
{
    struct batch *batch = batch_new(&pool);

    ck_assert_ptr_nonnull(batch);
    return batch;
}

static void add_begin(struct batch *batch, uint64_t lsn)
{
    struct frame_begin f = {1, lsn, 7, 5, 0};

    ck_assert_int_eq(batch_add_begin(batch, &f), 0);
}

static void add_message(struct batch *batch, uint64_t lsn, uint32_t index, size_t size)
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

static void add_commit(struct batch *batch, uint64_t lsn)
{
    struct frame_commit f = {{1, lsn, 7, 5, 0}, lsn + 0x30, 3};

    ck_assert_int_eq(batch_add_commit(batch, &f), 0);
}

/** BEGIN, messages `first` to `last`, COMMIT; without BEGIN when `first` is not 1, without COMMIT
 * when open. */
static struct batch *transaction(uint64_t lsn, uint32_t first, uint32_t last, bool open)
{
    struct batch *batch = new_batch();

    if (first == 1) {
        add_begin(batch, lsn);
    } else {
        struct frame_begin f = {1, lsn, 7, 5, 0};
        batch->starts_inside = true;
        (void)frame_begin_encode(batch->begin, &f);
    }
    for (uint32_t i = first; i <= last; i++)
        add_message(batch, lsn, i, 10);
    if (!open)
        add_commit(batch, lsn);
    batch_seal(batch);
    return batch;
}

/** As the router does it for a session with filters that match all of it but message `skip`; gives
 * the batch away. */
static void deliver(struct batch *batch, uint32_t skip)
{
    const struct batch_entry *begin = NULL;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *e = &batch->entries[i];

        if (e->type == FRAME_BEGIN) {
            begin = e;
        } else if (e->type == FRAME_COMMIT) {
            session_send_commit(session, batch, e, begin);
            begin = NULL;
        } else if (e->position.index != skip || skip == 0) {
            bool was_inside = session->inside;
            bool came = session_send_message(session, batch, e, begin);

            ck_assert_int_eq(came, !was_inside && session->inside);
        }
    }
    session_flush(session);
    (void)batch_unref(batch);
}

static void assert_begin(uint64_t lsn, uint8_t flags)
{
    struct bytes body = next(FRAME_BEGIN);
    struct frame_begin f;

    ck_assert_int_eq(frame_begin_decode((struct frame_header){(uint32_t)body.size, FRAME_BEGIN,
                                                              body.data[-FRAME_HEADER_SIZE + 5]},
                                        body.data, &f),
                     0);
    ck_assert_uint_eq(f.commit_lsn, lsn);
    ck_assert_uint_eq(f.flags, flags);
    ck_assert_uint_eq(f.xid, 5);
}

static void assert_message(uint64_t lsn, uint32_t index)
{
    struct position p = position_decode(next(FRAME_MESSAGE).data);

    ck_assert_int_eq(position_compare(p, (struct position){1, lsn, index}), 0);
}

static void assert_commit(uint64_t lsn)
{
    ck_assert_uint_eq(bytes_get_u64(next(FRAME_COMMIT).data + 4), lsn);
    ck_assert_int_eq(position_compare(session->told, (struct position){1, lsn, POSITION_INDEX_END}),
                     0);
    ck_assert(!session->inside);
}

START_TEST(begin_only_around_what_matches)
{
    setup();
    subscribe();
    deliver(transaction(0x100, 1, 1, false), 1); /* its only message does not match */
    assert_silent();
    ck_assert_int_eq(position_compare(session->told, (struct position){1, 0x50, 0}), 0);
    deliver(transaction(0x200, 1, 3, false), 1);
    assert_begin(0x200, 0);
    assert_message(0x200, 2);
    assert_message(0x200, 3);
    assert_commit(0x200);
    assert_silent();
    ck_assert_uint_eq(session->messages, 2);
    /* over several batches; the first match is in the second, whose BEGIN was in the first */
    deliver(transaction(0x300, 1, 1, true), 1);
    assert_silent();
    deliver(transaction(0x300, 2, 3, true), 3);
    assert_begin(0x300, 0);
    assert_message(0x300, 2);
    ck_assert(session->inside);
    deliver(transaction(0x300, 4, 4, false), 0);
    assert_message(0x300, 4);
    assert_commit(0x300);
    /* two in one batch, of which only the second matches, and a message alone */
    struct batch *batch = new_batch();
    add_begin(batch, 0x400);
    add_message(batch, 0x400, 1, 1);
    add_commit(batch, 0x400);
    add_message(batch, 0x430, 0, 1);
    add_begin(batch, 0x500);
    add_message(batch, 0x500, 1, 1);
    add_message(batch, 0x500, 2, 1);
    add_commit(batch, 0x500);
    batch_seal(batch);
    deliver(batch, 1);
    assert_message(0x430, 0);
    assert_begin(0x500, 0);
    assert_message(0x500, 2);
    assert_commit(0x500);
    assert_silent();
    teardown();
}
END_TEST

START_TEST(told_never_falls)
{
    setup();
    subscribe_at((struct position){1, 0x200, 0});
    deliver(transaction(0x100, 1, 3, false), 0); /* before its start */
    assert_silent();
    deliver(transaction(0x200, 1, 2, false), 0);
    assert_begin(0x200, 0);
    assert_message(0x200, 1);
    assert_message(0x200, 2);
    assert_commit(0x200);
    deliver(transaction(0x200, 1, 3, false),
            0); /* again, and longer: at or below what it was told */
    deliver(transaction(0x100, 1, 3, false), 0);
    struct batch *batch = new_batch();
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    deliver(batch, 0);
    assert_silent();
    ck_assert_int_eq(
        position_compare(session->told, (struct position){1, 0x200, POSITION_INDEX_END}), 0);
    teardown();
}
END_TEST

START_TEST(resumed_within_a_transaction)
{
    /* with a rest, in its own batch and in one that starts inside */
    for (int inside = 0; inside < 2; inside++) {
        setup();
        subscribe_at((struct position){1, 0x100, 2});
        ck_assert(session->resume);
        deliver(transaction(0x100, inside ? 2 : 1, 4, false), 0);
        assert_begin(0x100, FRAME_FLAG_RESUMED);
        assert_message(0x100, 3);
        assert_message(0x100, 4);
        assert_commit(0x100);
        ck_assert(!session->resume);
        deliver(transaction(0x200, 1, 1, false), 0);
        assert_begin(0x200, 0);
        assert_message(0x200, 1);
        assert_commit(0x200);
        assert_silent();
        teardown();
        /* without a rest: still BEGIN and COMMIT */
        setup();
        subscribe_at((struct position){1, 0x100, 2});
        deliver(transaction(0x100, inside ? 2 : 1, 2, false), 0);
        assert_begin(0x100, FRAME_FLAG_RESUMED);
        assert_commit(0x100);
        assert_silent();
        teardown();
    }
    /* the frame of the batch itself is not touched */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    struct batch *batch = transaction(0x100, 1, 2, false);
    (void)batch_ref(batch);
    deliver(batch, 0);
    ck_assert_uint_eq(batch->head[5], 0);
    (void)batch_unref(batch);
    teardown();
    /* at an end, or at a message outside of transactions, there is nothing to resume */
    setup();
    subscribe_at((struct position){1, 0x100, POSITION_INDEX_END});
    ck_assert(!session->resume);
    deliver(transaction(0x100, 1, 2, false), 0);
    assert_silent();
    teardown();
}
END_TEST

START_TEST(resumed_where_another_transaction_goes_on)
{
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x200, 1, 1, false), 0);
    assert_fatal(CONTROL_ERROR_INTERRUPTED, NULL);
    teardown();
    /* only a COMMIT of it matches */
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x200, 1, 1, false), 1);
    assert_fatal(CONTROL_ERROR_INTERRUPTED, NULL);
    teardown();
    /* the same LSN of another timeline is another transaction */
    setup();
    subscribe_at((struct position){0, 0x100, 2});
    deliver(transaction(0x100, 1, 1, false), 0);
    assert_fatal(CONTROL_ERROR_INTERRUPTED, NULL);
    teardown();
    /* one that stands before it comes again: nothing of it, and it is waited on */
    setup();
    subscribe_at((struct position){1, 0x100, 2});
    deliver(transaction(0x80, 1, 1, false), 0);
    assert_silent();
    ck_assert(session->resume);
    deliver(transaction(0x100, 3, 3, false), 0);
    assert_begin(0x100, FRAME_FLAG_RESUMED);
    assert_message(0x100, 3);
    assert_commit(0x100);
    teardown();
}
END_TEST

/** Delivers a batch whole; what session_send_batch said. Gives the batch away. */
static bool send_batch(struct batch *batch)
{
    bool taken_whole = session_send_batch(session, batch);

    session_flush(session);
    (void)batch_unref(batch);
    return taken_whole;
}

START_TEST(whole_batches)
{
    setup();
    subscribe();
    ck_assert(!send_batch(transaction(0x100, 1, 2, false))); /* it has filters */
    session->member.everything = true;
    ck_assert(!send_batch(transaction(0x50, 2, 2, false))); /* inside of what it does not know */
    ck_assert(!send_batch(new_batch()));                    /* no frames */
    assert_silent();
    ck_assert(send_batch(transaction(0x100, 1, 2, true)));
    ck_assert(session->inside);
    ck_assert_int_eq(position_compare(session->told, (struct position){1, 0x100, 2}), 0);
    ck_assert(send_batch(transaction(0x100, 3, 3, true)));
    ck_assert(send_batch(transaction(0x100, 4, 3, false))); /* only the COMMIT */
    assert_begin(0x100, 0);
    for (uint32_t i = 1; i <= 3; i++)
        assert_message(0x100, i);
    assert_commit(0x100);
    ck_assert_uint_eq(session->messages, 3);
    /* told before, in part or all: entry by entry */
    ck_assert(!send_batch(transaction(0x100, 1, 2, false)));
    struct batch *batch = new_batch();
    add_message(batch, 0x100, 0, 1);
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    ck_assert(!session_send_batch(session, batch));
    deliver(batch, 0);
    assert_message(0x200, 0);
    batch = new_batch(); /* exactly its first */
    add_message(batch, 0x200, 0, 1);
    batch_seal(batch);
    ck_assert(!send_batch(batch));
    assert_silent();
    teardown();
    /* one that resumes must have its BEGIN flagged */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    session->member.everything = true;
    ck_assert(!send_batch(transaction(0x200, 1, 2, false)));
    teardown();
}
END_TEST

START_TEST(nothing_before_it_is_active)
{
    setup();
    greet();
    session->member.everything = true;
    ck_assert(!session_send_batch(session, (struct batch *)NULL));
    deliver(transaction(0x100, 1, 2, false), 0);
    session_send_progress(session, (struct position){1, 0x900, 0});
    assert_silent();
    ck_assert(position_is_zero(session->told));
    teardown();
}
END_TEST

START_TEST(progress_only_when_idle)
{
    static const struct position p = {1, 0x180, 0};

    setup();
    subscribe();
    session_send_progress(session, (struct position){1, 0x50, 0}); /* no news */
    session_send_progress(session, (struct position){1, 0x4f, 9});
    session_flush(session);
    assert_silent();
    deliver(transaction(0x100, 1, 1, true), 0);
    assert_begin(0x100, 0);
    assert_message(0x100, 1);
    session_send_progress(session, p); /* inside */
    session_flush(session);
    assert_silent();
    struct batch *batch = transaction(0x100, 2, 1, false);
    session_send_commit(session, batch, &batch->entries[0], NULL);
    (void)batch_unref(batch);
    session_send_progress(session, p); /* the COMMIT still waits to be written */
    session_flush(session);
    assert_commit(0x100);
    assert_silent();
    session_send_progress(session, p);
    session_flush(session);
    ck_assert_int_eq(position_compare(position_decode(next(FRAME_PROGRESS).data), p), 0);
    ck_assert_int_eq(position_compare(session->told, p), 0);
    session_send_progress(session, p); /* once */
    session_flush(session);
    assert_silent();
    teardown();
    /* not while it waits for the rest of a transaction */
    setup();
    subscribe_at((struct position){1, 0x100, 1});
    session_send_progress(session, p);
    session_flush(session);
    assert_silent();
    teardown();
}
END_TEST

/* ---- the end ---- */

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
        for (unsigned i = 0; i < 300000 && session; i++) {
            if (what == ASK_ACKED)
                put_ack(owner.start, true);
            else
                put_request(i);
            if (out.size < 4096)
                continue;
            ssize_t n = send(client, out.data, out.size, MSG_NOSIGNAL);
            ck_assert(n == (ssize_t)out.size || errno == EPIPE);
            buf_clear(&out);
            for (unsigned k = 0; k < 3 && session; k++) {
                turns(1);
                if (session)
                    most = MAX(most, session->outbox.control.size);
            }
        }
        ck_assert_ptr_null(session);
        ck_assert_uint_eq(owner.closed, 1);
        ck_assert_uint_gt(most, OUTBOX_CONTROL_MAX / 2);
        ck_assert_uint_le(most, OUTBOX_CONTROL_MAX);
        teardown();
    }
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

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void open_libuv(void)
{
    if (uv_loop_init(&loop) < 0 || uv_loop_close(&loop) < 0)
        abort();
}

UNIT_MAIN("session", handshake, versions, something_else_before_hello, hello_twice,
          malformed_bodies, subscribing, subscribing_twice, a_refused_subscribe_may_be_tried_again,
          acknowledging, acknowledging_without_subscription, unknown_frames, requests,
          errors_of_the_client, largest_body, headers_that_are_none, input_in_pieces_of_every_size,
          random_input, begin_only_around_what_matches, told_never_falls,
          resumed_within_a_transaction, resumed_where_another_transaction_goes_on, whole_batches,
          nothing_before_it_is_active, progress_only_when_idle,
          a_fatal_error_finishes_the_begun_frame, silence, a_last_error_that_is_not_read,
          the_client_goes_away, closing_twice, asking_without_reading_is_bounded,
          without_memory_for_an_answer_it_ends)
