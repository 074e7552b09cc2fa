/* SPDX-License-Identifier: PostgreSQL */
#include "pglink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_backend.h"
#include "unit.h"

static struct fake_backend server;
static struct pglink link_;
static unsigned opened, failed, readable;
static bool within;  /* pglink_connect has not returned yet */
static bool consume; /* what is readable is taken */

static void on_opened(void *owner)
{
    ck_assert_ptr_eq(owner, &link_);
    ck_assert(!within);
    ck_assert_int_eq(link_.state, PGLINK_OPEN);
    opened++;
}

static void on_failed(void *owner)
{
    ck_assert_ptr_eq(owner, &link_);
    ck_assert(!within);
    ck_assert_int_eq(link_.state, PGLINK_CLOSED);
    ck_assert_ptr_null(link_.conn);
    failed++;
}

static void on_readable(void *owner)
{
    ck_assert_ptr_eq(owner, &link_);
    readable++;
    if (consume)
        (void)PQconsumeInput(link_.conn); /* what it says is looked at by the test */
}

static const struct pglink_ops ops = {
    .opened = on_opened, .failed = on_failed, .readable = on_readable};

static void answer(void *owner, struct fake_client *c, const char *sql)
{
    (void)owner;
    backend_row(c, 1, (const char *const[]){sql});
    backend_ready(c);
}

static void setup(void)
{
    opened = failed = readable = 0;
    consume = true;
    backend_init(&server, answer, NULL);
    pglink_init(&link_, &server.loop, &ops, &link_);
}

static void teardown(void)
{
    pglink_deinit(&link_);
    backend_deinit(&server);
}

static void connect_to(const char *dsn, bool replication)
{
    const struct connect_options options = {
        .dsn = dsn, .application_name = "a test", .replication = replication};

    within = true;
    pglink_connect(&link_, &options);
    within = false;
    ck_assert_int_eq(link_.state, PGLINK_CONNECTING);
}

static void open_link(void)
{
    connect_to(server.dsn, true);
    BACKEND_RUN_UNTIL(&server, opened == 1);
}

START_TEST(opens)
{
    setup();
    open_link();
    ck_assert_uint_eq(server.n, 1);
    ck_assert(server.clients[0].replication);
    ck_assert_str_eq(server.clients[0].application, "a test");
    ck_assert_str_eq(link_.user, "u");
    ck_assert_int_eq(PQbackendPID(link_.conn), server.clients[0].pid);
    ck_assert_uint_eq(failed, 0);
    teardown();
}
END_TEST

START_TEST(asks_and_is_answered)
{
    setup();
    open_link();
    ck_assert_int_eq(PQsendQuery(link_.conn, "SELECT 'x'"), 1);
    ck_assert_int_eq(pglink_flush(&link_), 0);
    BACKEND_RUN_UNTIL(&server, readable > 0 && !PQisBusy(link_.conn));
    PGresult *result = PQgetResult(link_.conn);
    ck_assert_str_eq(PQgetvalue(result, 0, 0), "SELECT 'x'");
    PQclear(result);
    teardown();
}
END_TEST

START_TEST(refused)
{
    setup();
    server.refuse = "57P03";
    connect_to(server.dsn, false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_str_eq(link_.sqlstate, "57P03");
    ck_assert_ptr_nonnull(strstr(buf_str(&link_.error), "refused"));
    ck_assert_ptr_null(strstr(buf_str(&link_.error), "LOCATION"));
    ck_assert_uint_eq(opened, 0);
    /* and the next attempt forgets it */
    server.refuse = NULL;
    connect_to(server.dsn, false);
    ck_assert_uint_eq(link_.error.size, 0);
    ck_assert_str_eq(link_.sqlstate, "");
    BACKEND_RUN_UNTIL(&server, opened == 1);
    ck_assert_uint_eq(failed, 1);
    teardown();
}
END_TEST

START_TEST(nobody_there)
{
    setup();
    connect_to("host=/nonexistent user=u", false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_str_eq(link_.sqlstate, "");
    ck_assert_ptr_nonnull(strstr(buf_str(&link_.error), "/nonexistent"));
    ck_assert_ptr_null(strchr(buf_str(&link_.error), '\n'));
    teardown();
}
END_TEST

START_TEST(unreadable_dsn)
{
    setup();
    connect_to("nonsense=1", false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_ptr_nonnull(strstr(buf_str(&link_.error), "nonsense"));
    teardown();
}
END_TEST

START_TEST(closed_while_connecting)
{
    setup();
    server.mute = true;
    connect_to(server.dsn, false);
    BACKEND_RUN_UNTIL(&server, server.n == 1 && server.clients[0].started);
    pglink_close(&link_);
    pglink_close(&link_);
    BACKEND_RUN_UNTIL(&server, server.clients[0].fd < 0); /* it sees the end */
    ck_assert_uint_eq(opened + failed + readable, 0);
    teardown();
}
END_TEST

START_TEST(closed_before_the_first_step)
{
    setup();
    connect_to("host=/nonexistent user=u", false);
    pglink_close(&link_);
    backend_run_ms(&server, 50);
    ck_assert_uint_eq(opened + failed + readable, 0);
    teardown();
}
END_TEST

START_TEST(connecting_again_closes_the_first)
{
    setup();
    open_link();
    connect_to(server.dsn, false);
    BACKEND_RUN_UNTIL(&server, opened == 2 && server.clients[0].fd < 0);
    ck_assert(!server.clients[1].replication);
    ck_assert_uint_eq(failed, 0);
    teardown();
}
END_TEST

START_TEST(notices)
{
    setup();
    open_link();
    backend_error(&server.clients[0], true, "WARNING", "01000", "just so");
    BACKEND_RUN_UNTIL(&server, readable == 1);
    (void)PQisBusy(link_.conn); /* parses */
    ck_assert_str_eq(link_.sqlstate, "");
    ck_assert_uint_eq(link_.error.size, 0);
    backend_error(&server.clients[0], false, "FATAL", "57P01", "terminating");
    BACKEND_RUN_UNTIL(&server, readable == 2);
    (void)PQisBusy(link_.conn);
    ck_assert_str_eq(link_.sqlstate, "57P01");
    ck_assert_str_eq(buf_str(&link_.error), "terminating");
    /* closing leaves what was said */
    pglink_close(&link_);
    ck_assert_str_eq(buf_str(&link_.error), "terminating");
    teardown();
}
END_TEST

START_TEST(reading_is_off_and_on)
{
    setup();
    open_link();
    pglink_read(&link_, false);
    backend_error(&server.clients[0], true, "WARNING", "01000", "just so");
    backend_run_ms(&server, 50);
    ck_assert_uint_eq(readable, 0);
    pglink_read(&link_, true);
    BACKEND_RUN_UNTIL(&server, readable == 1);
    /* what is not taken is told of again: the socket decides, not the news */
    consume = false;
    backend_error(&server.clients[0], true, "WARNING", "01000", "just so");
    BACKEND_RUN_UNTIL(&server, readable >= 4);
    teardown();
}
END_TEST

START_TEST(the_server_hangs_up)
{
    setup();
    open_link();
    consume = false;
    backend_hang_up(&server.clients[0]);
    BACKEND_RUN_UNTIL(&server, readable > 0);
    ck_assert_int_eq(PQconsumeInput(link_.conn), 0);
    pglink_note_error(&link_, NULL);
    ck_assert_uint_gt(link_.error.size, 0);
    ck_assert_uint_eq(failed, 0); /* which is the owner's to say of an open link */
    teardown();
}
END_TEST

static void stream_to_deaf_server(void *owner, struct fake_client *c, const char *sql)
{
    (void)owner;
    (void)sql;
    backend_copy_both(c);
}

START_TEST(output_that_does_not_fit_waits)
{
    char *large = calloc(1, 8u << 20);

    ck_assert_ptr_nonnull(large);
    setup();
    server.on_query = stream_to_deaf_server;
    open_link();
    ck_assert_int_eq(PQsendQuery(link_.conn, "START"), 1);
    ck_assert_int_eq(pglink_flush(&link_), 0);
    BACKEND_RUN_UNTIL(&server, readable > 0 && !PQisBusy(link_.conn));
    PQclear(PQgetResult(link_.conn));
    server.deaf = true;
    backend_run_ms(&server, 20);
    pglink_read(&link_, false); /* waiting for the socket does not hang on it */
    ck_assert_int_eq(PQputCopyData(link_.conn, large, 8 << 20), 1);
    ck_assert_int_eq(pglink_flush(&link_), 0);
    ck_assert(link_.writing);
    backend_run_ms(&server, 20);
    ck_assert(link_.writing);
    server.deaf = false;
    BACKEND_RUN_UNTIL(&server, server.clients[0].copied == 8u << 20);
    ck_assert(!link_.writing);
    free(large);
    teardown();
}
END_TEST

/* A TCP port behind which packets are dropped: Linux does so when nobody accepts and the queue is full. */
struct black_hole {
    int fds[16]; /* the listener, then what fills its queue; -1 behind them */
    unsigned n, port;
};

static void black_hole_open(struct black_hole *h)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    bool full = false;

    h->n = 1;
    h->fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(h->fds[0], 0);
    ck_assert_int_eq(bind(h->fds[0], (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(h->fds[0], 0), 0);
    ck_assert_int_eq(getsockname(h->fds[0], (struct sockaddr *)&address, &size), 0);
    h->port = ntohs(address.sin_port);
    while (!full) {
        ck_assert_uint_lt(h->n, ARRAY_SIZE(h->fds));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        ck_assert_int_ge(fd, 0);
        ck_assert(connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ||
                  errno == EINPROGRESS);
        full = poll(&p, 1, 200) == 0;
        h->fds[h->n++] = fd;
    }
}

static void black_hole_close(struct black_hole *h)
{
    for (unsigned i = 0; i < h->n; i++)
        ck_assert_int_eq(close(h->fds[i]), 0);
}

START_TEST(passes_a_black_hole_over)
{
    struct black_hole hole;
    char dsn[256];

    setup();
    black_hole_open(&hole);
    (void)snprintf(
        dsn, sizeof dsn,
        "host=127.0.0.1,127.0.0.1,%s port=%u,%u,5432 user=u sslmode=disable connect_timeout=1",
        server.folder, hole.port, hole.port);
    uint64_t began = clock_monotonic_ns();
    connect_to(dsn, false);
    BACKEND_RUN_UNTIL(&server, opened == 1);
    ck_assert_uint_ge(clock_monotonic_ns() - began, UINT64_C(1900000000)); /* a second for each */
    ck_assert_uint_eq(failed, 0);
    /* the passing over is the attempt's: another failure is not explained by it */
    connect_to("host=/nonexistent user=u", false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_ptr_null(strstr(buf_str(&link_.error), "passed over"));
    black_hole_close(&hole);
    teardown();
}
END_TEST

START_TEST(nothing_but_a_black_hole)
{
    struct black_hole hole;
    char dsn[256];

    setup();
    black_hole_open(&hole);
    (void)snprintf(dsn, sizeof dsn, "host=127.0.0.1 port=%u user=u connect_timeout=1", hole.port);
    connect_to(dsn, false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_ptr_nonnull(
        strstr(buf_str(&link_.error), "; a host that did not answer within 1 s was passed over"));
    ck_assert_str_eq(link_.sqlstate, "");
    black_hole_close(&hole);
    teardown();
}
END_TEST

START_TEST(a_silent_server)
{
    char dsn[256];

    setup();
    server.mute = true;
    (void)snprintf(dsn, sizeof dsn, "%s connect_timeout=1", server.dsn);
    uint64_t began = clock_monotonic_ns();
    connect_to(dsn, false);
    BACKEND_RUN_UNTIL(&server, failed == 1);
    ck_assert_uint_ge(clock_monotonic_ns() - began, UINT64_C(900000000));
    ck_assert_str_eq(buf_str(&link_.error), "no connection within 1 s");
    teardown();
}
END_TEST

START_TEST(time_to_connect)
{
    static const struct {
        const char *dsn;
        uint64_t ms;
    } cases[] = {
        {"", PGLINK_CONNECT_MS},
        {"connect_timeout=3", 3000},
        {"connect_timeout=0", PGLINK_CONNECT_MS},
        {"connect_timeout=-1", PGLINK_CONNECT_MS},
        {"postgresql://u@/d?connect_timeout=20", 20000},
    };

    setup();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        connect_to(cases[i].dsn, false);
        ck_assert_uint_eq(link_.connect_ms, cases[i].ms);
        pglink_close(&link_);
    }
    teardown();
}
END_TEST

UNIT_MAIN("pglink", opens, asks_and_is_answered, refused, nobody_there, unreadable_dsn,
          closed_while_connecting, closed_before_the_first_step, connecting_again_closes_the_first,
          notices, reading_is_off_and_on, the_server_hangs_up, output_that_does_not_fit_waits,
          passes_a_black_hole_over, nothing_but_a_black_hole, a_silent_server, time_to_connect)
