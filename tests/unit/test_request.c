/* SPDX-License-Identifier: PostgreSQL */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "environment.h"
#include "fake_router.h"
#include "unit.h"

/* The call blocks, so it runs in a thread, and the test is the router meanwhile. */
struct call {
    const char *socket, *what;
    struct bytes args;
    int timeout_ms;
    enum walbus_result result;
    int error; /* errno behind it */
    struct walbus_reply *reply;
    pthread_t thread;
};

static void *run(void *context)
{
    struct call *c = context;

    c->result =
        walbus_request(c->socket, c->what, c->args.data, c->args.size, c->timeout_ms, &c->reply);
    c->error = errno;
    return NULL;
}

static void start(struct call *c, struct fake_router *f, struct bytes args)
{
    *c = (struct call){.socket = f->path, .what = "status", .args = args, .timeout_ms = 20000};
    ck_assert_int_eq(pthread_create(&c->thread, NULL, run, c), 0);
}

static void join(struct call *c, enum walbus_result want)
{
    ck_assert_int_eq(pthread_join(c->thread, NULL), 0);
    ck_assert_msg(c->result == want, "%s: %s", walbus_result_name(c->result),
                  c->reply ? walbus_reply_error(c->reply) : "");
}

/** Ends it: what is said about a failure, and no result. */
static void join_failed(struct call *c, struct fake_router *f, enum walbus_result want,
                        const char *code, const char *word)
{
    size_t size = 99;

    join(c, want);
    ck_assert_str_eq(walbus_reply_error_code(c->reply), code);
    ck_assert_msg(strstr(walbus_reply_error(c->reply), word) != NULL, "%s",
                  walbus_reply_error(c->reply));
    ck_assert_ptr_null(walbus_reply_result(c->reply, &size));
    ck_assert_uint_eq(size, 0);
    ck_assert_ptr_null(walbus_reply_free(c->reply));
    fake_close(f);
}

/** A router that listens, and a call that has sent HELLO to it. */
static void begin(struct call *c, struct fake_router *f)
{
    fake_init(f);
    fake_listen(f);
    start(c, f, (struct bytes){NULL, 0});
    fake_accept(f);
    (void)fake_read(f, FRAME_HELLO);
}

static struct control_request welcome(struct fake_router *f)
{
    struct control_request request;
    char why[CONTROL_WHY_SIZE];
    struct buf b = BUF_INIT;

    fake_put_welcome(&b, "7/1");
    fake_send(f, &b);
    ck_assert_int_eq(control_request_decode(fake_read(f, FRAME_REQUEST), &request, why), 0);
    unit_assert_text(request.what, "status");
    return request;
}

static void put_reply(struct buf *b, uint64_t id, const char *item, size_t size)
{
    struct control_reply reply = {.id = id, .result = {(const uint8_t *)item, size}};

    control_reply_encode(&reply, b);
}

START_TEST(an_answer)
{
    static const uint8_t ignorable[] = {0, 0, 0, 3, 0x55, FRAME_FLAG_IGNORABLE, 0, 0, 1, 2, 3};
    struct buf b = BUF_INIT;
    struct fake_router f;
    struct call c;
    size_t size;

    for (int args = 0; args < 2; args++) {
        fake_init(&f);
        fake_listen(&f);
        start(&c, &f,
              args ? (struct bytes){(const uint8_t *)"\x81\x01", 2} : (struct bytes){NULL, 0});
        fake_accept(&f);
        (void)fake_read(&f, FRAME_HELLO);
        struct control_request request = welcome(&f);
        unit_assert_hex(request.args, args ? "8101" : "");
        buf_append(&b, ignorable, sizeof ignorable);
        put_reply(&b, request.id, "\xa1\x61x\x01", 4);
        for (size_t i = 0; i < b.size; i++) /* cut at every byte */
            ck_assert_int_eq(send(f.connection, b.data + i, 1, MSG_NOSIGNAL), 1);
        buf_deinit(&b);
        join(&c, WALBUS_OK);
        const void *result = walbus_reply_result(c.reply, &size);
        unit_assert_hex((struct bytes){result, size}, "a1617801");
        ck_assert_ptr_eq(walbus_reply_result(c.reply, NULL), result);
        ck_assert_str_eq(walbus_reply_error(c.reply), "");
        ck_assert_str_eq(walbus_reply_error_code(c.reply), "");
        walbus_reply_free(c.reply);
        ck_assert(fake_at_end(&f)); /* the connection is its own and ends with it */
        fake_close(&f);
    }
    ck_assert_ptr_null(walbus_reply_free(NULL));
    ck_assert_ptr_null(walbus_reply_result(NULL, &size));
    ck_assert_uint_eq(size, 0);
    ck_assert_ptr_null(walbus_reply_result(NULL, NULL));
    ck_assert_str_eq(walbus_reply_error(NULL), "");
    ck_assert_str_eq(walbus_reply_error_code(NULL), "");
}
END_TEST

START_TEST(refusals)
{
    struct control_error error = {.code = unit_bytes(CONTROL_ERROR_UNSUPPORTED),
                                  .text = unit_bytes("There is\nno such request."),
                                  .has_id = true};
    struct buf b = BUF_INIT;
    struct fake_router f;
    struct call c;

    begin(&c, &f);
    error.id = welcome(&f).id;
    control_error_encode(&error, &b);
    fake_send(&f, &b);
    join_failed(&c, &f, WALBUS_REFUSED, CONTROL_ERROR_UNSUPPORTED, "There is?no such request.");

    begin(&c, &f);
    fake_put_error(&b, CONTROL_ERROR_LIMIT, true);
    fake_send(&f, &b);
    join_failed(&c, &f, WALBUS_REFUSED, CONTROL_ERROR_LIMIT, "So it is.");

    begin(&c, &f);
    fake_put_error(&b, CONTROL_ERROR_VERSION, true);
    fake_send(&f, &b);
    join_failed(&c, &f, WALBUS_PROTOCOL, CONTROL_ERROR_VERSION, "So it is.");
}
END_TEST

START_TEST(a_router_that_stops_may_still_answer)
{
    struct buf b = BUF_INIT;
    struct fake_router f;
    struct call c;

    begin(&c, &f);
    struct control_request request = welcome(&f);
    fake_put_error(&b, CONTROL_ERROR_STOPPING, true);
    put_reply(&b, request.id, "\x01", 1);
    fake_send(&f, &b);
    join(&c, WALBUS_OK);
    walbus_reply_free(c.reply);
    fake_close(&f);

    begin(&c, &f);
    fake_put_error(&b, CONTROL_ERROR_STOPPING, true);
    fake_send(&f, &b);
    fake_hang_up(&f);
    join_failed(&c, &f, WALBUS_NO_ROUTER, "", "without an answer");
    ck_assert_int_eq(c.error, ECONNRESET);
}
END_TEST

/** What is sent instead of WELCOME, or behind the request. */
static void breach(bool welcomed, const void *data, size_t size, const char *word)
{
    struct fake_router f;
    struct call c;

    begin(&c, &f);
    if (welcomed)
        (void)welcome(&f);
    ck_assert_int_eq(send(f.connection, data, size, MSG_NOSIGNAL), (ssize_t)size);
    join_failed(&c, &f, WALBUS_PROTOCOL, "", word);
}

START_TEST(breaches_of_protocol)
{
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, FRAME_REPLY, 0, 0, 0};
    static const uint8_t not_zero[] = {0, 0, 0, 0, FRAME_REPLY, 0, 0, 1};
    static const uint8_t empty[] = {0, 0, 0, 0, FRAME_REPLY, 0, 0, 0};
    static const uint8_t unknown[] = {0, 0, 0, 0, 0x55, 0, 0, 0};
    static const uint8_t no_welcome[] = {0, 0, 0, 1, FRAME_WELCOME, 0, 0, 0, 0xa0};
    struct control_welcome other = {.version = PROTOCOL_VERSION + 1,
                                    .layout = FRAME_LAYOUT,
                                    .server = unit_bytes("fake"),
                                    .identity = unit_bytes("")};
    struct buf b = BUF_INIT;

    breach(true, huge, sizeof huge, "4294967295");
    breach(true, not_zero, sizeof not_zero, "header");
    breach(true, empty, sizeof empty, "REPLY");
    breach(true, unknown, sizeof unknown, "0x55");
    breach(false, empty, sizeof empty, "before WELCOME");
    breach(false, no_welcome, sizeof no_welcome, "WELCOME: ");
    fake_put_welcome(&b, "7/1");
    breach(true, b.data, b.size, "no meaning");
    buf_clear(&b);
    put_reply(&b, 99, "\x01", 1);
    breach(true, b.data, b.size, "another request");
    buf_clear(&b);
    control_welcome_encode(&other, &b);
    breach(false, b.data, b.size, "not offered");
    buf_deinit(&b);
}
END_TEST

START_TEST(no_router)
{
    struct walbus_reply *reply = NULL;
    char path[128];

    ck_assert_int_eq(walbus_request("/nonexistent/s", "status", NULL, 0, -1, &reply),
                     WALBUS_NO_ROUTER);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_str_eq(walbus_reply_error(reply),
                     "Cannot reach the router at /nonexistent/s: No such file or directory.");
    walbus_reply_free(reply);
    memset(path, 'p', sizeof path - 1);
    path[108] = '\0';
    ck_assert_int_eq(walbus_request(path, "status", NULL, 0, -1, &reply), WALBUS_BAD_SOCKET);
    ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "108 bytes"));
    walbus_reply_free(reply);
    environment_clean();
    if (access("/run/walbus/walbus.sock", F_OK) != 0) {
        ck_assert_int_eq(walbus_request(NULL, "status", NULL, 0, -1, &reply), WALBUS_NO_ROUTER);
        ck_assert_int_eq(errno, ENOENT);
        ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "/run/walbus/walbus.sock"));
        walbus_reply_free(reply);
    }
    environment_set("WALBUS_SOCKET", "/nonexistent/w");
    ck_assert_int_eq(walbus_request(NULL, "status", NULL, 0, -1, &reply), WALBUS_NO_ROUTER);
    ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "/nonexistent/w"));
    walbus_reply_free(reply);
}
END_TEST

static void on_alarm(int sig)
{
    (void)sig;
}

START_TEST(time_and_signals)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval timer = {.it_value = {.tv_usec = 30000}};
    struct walbus_reply *reply = NULL;
    struct fake_router f;

    fake_init(&f);
    fake_listen(&f); /* connects, and is never answered */
    ck_assert_int_eq(walbus_request(f.path, "status", NULL, 0, 0, &reply), WALBUS_TIMEOUT);
    walbus_reply_free(reply);
    uint64_t before = clock_monotonic_ns();
    ck_assert_int_eq(walbus_request(f.path, "status", NULL, 0, 50, &reply), WALBUS_TIMEOUT);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 50 * UINT64_C(1000000));
    ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "does not answer"));
    walbus_reply_free(reply);

    /* The queue of connections fills up: it is tried again until the time is over. */
    int waiting[64];
    size_t n = 0;
    while (n < ARRAY_SIZE(waiting) && (waiting[n] = fd_connect_unix(f.path)) >= 0)
        n++;
    ck_assert_int_eq(waiting[n], -EAGAIN);
    ck_assert_int_eq(walbus_request(f.path, "status", NULL, 0, 50, &reply), WALBUS_TIMEOUT);
    walbus_reply_free(reply);

    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
    ck_assert_int_eq(walbus_request(f.path, "status", NULL, 0, -1, &reply), WALBUS_INTERRUPTED);
    ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "signal"));
    walbus_reply_free(reply);
    while (n > 0)
        (void)fd_close(waiting[--n]);
    fake_close(&f);
}
END_TEST

START_TEST(bad_arguments)
{
    static uint8_t large[FRAME_CONTROL_MAX] = {0x5a, 0x00, 0x0f, 0xff, 0xfb}; /* a byte string */
    struct walbus_reply *reply = NULL;

    ck_assert_int_eq(walbus_request("/s", NULL, NULL, 0, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", NULL, 0, 0, NULL), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "\xff", NULL, 0, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", NULL, 1, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", "", 0, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", "\x81", 1, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", "\x01\x01", 2, 0, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_request("/s", "x", NULL, 0, -2, &reply), WALBUS_BAD_ARGUMENT);
    ck_assert_ptr_null(reply); /* not written */
    ck_assert_int_eq(walbus_request("/s", "x", large, sizeof large, 0, &reply), WALBUS_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(walbus_reply_error(reply), "1048576"));
    walbus_reply_free(reply);
}
END_TEST

UNIT_MAIN("request", an_answer, refusals, a_router_that_stops_may_still_answer,
          breaches_of_protocol, no_router, time_and_signals, bad_arguments)
