/* SPDX-License-Identifier: PostgreSQL */
#include "walbus/subscribe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "codec/subject.h"
#include "environment.h"
#include "fake_router.h"
#include "unit.h"

static const struct position start = {1, 100, POSITION_INDEX_END};
static const struct position none = {0, 0, 0};

/* ---- arguments ---- */

static enum walbus_result result_of(const struct walbus_subscription_options *options)
{
    struct walbus_subscription *sub = (struct walbus_subscription *)&sub;
    enum walbus_result result = walbus_subscription_open(options, &sub);

    if (result == WALBUS_OK)
        sub = walbus_subscription_close(sub);
    else
        ck_assert_ptr_eq(sub, &sub); /* not written */
    return result;
}

/** Options with which nothing but the missing router is wrong. */
static struct walbus_subscription_options good(void)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;

    options.socket = "/nonexistent/walbus.sock";
    return options;
}

START_TEST(bad_arguments)
{
    struct walbus_subscription_options options = good();
    struct walbus_subscription *sub;
    char client[WALBUS_MAX_CLIENT + 2];
    struct {
        struct walbus_subscription_options options;
        uint64_t later;
    } of_later = {good(), 0};

    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    ck_assert_int_eq(walbus_subscription_open(NULL, &sub), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_open(&options, NULL), WALBUS_BAD_ARGUMENT);
    options.size--;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.size = SIZE_MAX;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    of_later.options.size = sizeof of_later;
    ck_assert_int_eq(result_of(&of_later.options), WALBUS_NO_ROUTER);
    of_later.later = 1;
    ck_assert_int_eq(result_of(&of_later.options), WALBUS_BAD_ARGUMENT);

    options = good();
    options.flags = 0x20u;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options = good();
    options.start = (enum walbus_start)5;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.start = WALBUS_START_POSITION;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.position.lsn = 1;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.identity = "\xff";
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.identity = "12345678901234567890/12345678901234567890/123456";
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.identity++;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);

    options = good();
    memset(client, 'c', sizeof client - 1);
    client[sizeof client - 1] = '\0';
    options.client = client;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.client = client + 1;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.client = "\xc3";
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);

    options = good();
    options.n_filters = 1;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options = good();
    options.n_exclusions = 1;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    struct walbus_filter no_text = {WALBUS_FILTER_EXACT, NULL, 1};
    options = good();
    options.filters = &no_text;
    options.n_filters = 1;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    no_text.size = 0;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
}
END_TEST

START_TEST(bad_names)
{
    static const enum walbus_start anywhere[] = {WALBUS_START_NOW, WALBUS_START_OLDEST,
                                                 WALBUS_START_TIME};
    static const char *const hidden[] = {"",     "a\nb", "\xff",   "a\u202e",
                                         "\x7f", "a b",  "\u00a0", "a\u200b"};
    struct walbus_subscription_options options = good();
    char name[WALBUS_MAX_NAME + 2];

    for (size_t i = 0; i < ARRAY_SIZE(anywhere); i++) {
        options = good();
        options.start = anywhere[i];
        ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
        options.name = "billing";
        ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
        options.flags = WALBUS_TAKE_OVER | WALBUS_OVERRIDE | WALBUS_KEEPS_POSITION;
        ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    }
    for (size_t i = 0; i < ARRAY_SIZE(hidden); i++) {
        options = good();
        options.name = hidden[i];
        ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    }
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    options = good();
    options.name = name;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.name = name + 1;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.name = "größe-17.x/y";
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);

    /* What is about a name needs one, and the stored cursor cannot be overridden by itself. */
    options = good();
    options.flags = WALBUS_TAKE_OVER;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.flags = WALBUS_OVERRIDE;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.flags = WALBUS_KEEPS_POSITION;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.flags = 0;
    options.start = WALBUS_START_STORED;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
    options.name = "billing";
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.flags = WALBUS_TAKE_OVER;
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.flags = WALBUS_OVERRIDE;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_ARGUMENT);
}
END_TEST

static enum walbus_result with_filters(const struct walbus_filter *filters, size_t n, bool exclude)
{
    struct walbus_subscription_options options = good();

    if (exclude) {
        options.exclusions = filters;
        options.n_exclusions = n;
    } else {
        options.filters = filters;
        options.n_filters = n;
    }
    return result_of(&options);
}

START_TEST(bad_filters)
{
    static char text[WALBUS_MAX_FILTER + 1];
    static struct walbus_filter many[WALBUS_MAX_FILTERS + 1];
    const struct walbus_filter bad[] = {
        {(enum walbus_filter_kind)3, "a", 1}, {(enum walbus_filter_kind) - 1, "a", 1},
        {WALBUS_FILTER_PATTERN, "", 0},       {WALBUS_FILTER_PATTERN, "a\0b", 3},
        {WALBUS_FILTER_EXACT, "\0", 1},       {WALBUS_FILTER_STARTS_WITH, text, sizeof text}};

    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(bad); i++)
        ck_assert_int_eq(with_filters(&bad[i / 2], 1, i % 2), WALBUS_BAD_FILTER);
    struct walbus_filter f = {WALBUS_FILTER_STARTS_WITH, text, WALBUS_MAX_FILTER};
    ck_assert_int_eq(with_filters(&f, 1, false), WALBUS_NO_ROUTER);

    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = (struct walbus_filter){WALBUS_FILTER_PATTERN, "a.b.c.d.e.f.g.h", 15};
    for (int exclude = 0; exclude < 2; exclude++)
        ck_assert_int_eq(with_filters(many, WALBUS_MAX_FILTERS + 1, exclude), WALBUS_BAD_FILTER);
    /* 1024 of 8 tokens are the most, and one more token is too many; as exclusions with the filter ">". */
    ck_assert_int_eq(with_filters(many, WALBUS_MAX_FILTERS, false), WALBUS_NO_ROUTER);
    ck_assert_int_eq(with_filters(many, WALBUS_MAX_FILTERS, true), WALBUS_BAD_FILTER);
    ck_assert_int_eq(with_filters(many, WALBUS_MAX_FILTERS - 1, true), WALBUS_NO_ROUTER);
    many[0] = (struct walbus_filter){WALBUS_FILTER_PATTERN, "a.b.c.d.e.f.g.h.i", 17};
    ck_assert_int_eq(with_filters(many, WALBUS_MAX_FILTERS, false), WALBUS_BAD_FILTER);

    /* Each is good, all together are more than a frame. */
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = f;
    ck_assert_int_eq(with_filters(many, 254, false), WALBUS_NO_ROUTER);
    ck_assert_int_eq(with_filters(many, 256, false), WALBUS_BAD_FILTER);
}
END_TEST

/* ---- the place ---- */

START_TEST(where_the_router_is)
{
    char path[128], folder[] = "/tmp/walbus-unit-XXXXXX";
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct fake_router f;

    environment_clean();
    if (access("/run/walbus/walbus.sock", F_OK) != 0) {
        ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
        ck_assert_int_eq(errno, ENOENT);
        options.flags = WALBUS_WAIT_FOR_ROUTER;
        ck_assert_int_eq(result_of(&options), WALBUS_OK);
    }
    options.socket = "";
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_SOCKET);
    memset(path, 'p', sizeof path - 1);
    path[0] = '/';
    path[108] = '\0';
    options.socket = path;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_SOCKET); /* the flag is set: never one */
    options.flags = 0;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_SOCKET);
    environment_set("WALBUS_SOCKET", path);
    options.socket = NULL;
    ck_assert_int_eq(result_of(&options), WALBUS_BAD_SOCKET);
    environment_clean();
    options.socket = path;
    path[107] = '\0';
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    ck_assert_int_eq(errno, ENOENT);

    fake_init(&f);
    fake_listen(&f);
    options.socket = NULL;
    environment_set("WALBUS_SOCKET", f.path);
    ck_assert_int_eq(result_of(&options), WALBUS_OK);
    environment_set("WALBUS_SOCKET", "/nonexistent");
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    options.socket = f.path; /* is before the environment */
    ck_assert_int_eq(result_of(&options), WALBUS_OK);
    fake_close(&f);

    environment_set("WALBUS_SOCKET", "");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    environment_set("XDG_RUNTIME_DIR", folder);
    (void)snprintf(f.path, sizeof f.path, "%s/walbus.sock", folder);
    fake_listen(&f);
    options.socket = NULL;
    ck_assert_int_eq(result_of(&options), WALBUS_OK);
    f.listener = fd_close(f.listener); /* a socket file at which nobody listens */
    ck_assert_int_eq(result_of(&options), WALBUS_NO_ROUTER);
    ck_assert_int_eq(errno, ECONNREFUSED);
    options.flags = WALBUS_WAIT_FOR_ROUTER;
    ck_assert_int_eq(result_of(&options), WALBUS_OK);
    ck_assert_int_eq(unlink(f.path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

/** A router at the usual place of this folder, for the first or for the next connection. */
static void come_up_in(struct fake_router *f, const char *folder)
{
    (void)snprintf(f->path, sizeof f->path, "%s/walbus.sock", folder);
    fake_listen(f);
}

START_TEST(a_socket_that_is_not_there_yet_is_waited_for)
{
    char first[] = "/tmp/walbus-unit-XXXXXX", second[] = "/tmp/walbus-unit-XXXXXX";
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct fake_router f;

    if (access("/run/walbus/walbus.sock", F_OK) == 0)
        return; /* that of this machine would be taken, while there is none in the folder */
    environment_clean();
    ck_assert_ptr_nonnull(mkdtemp(first));
    ck_assert_ptr_nonnull(mkdtemp(second));
    environment_set("XDG_RUNTIME_DIR", first);
    fake_init(&f);
    options.flags = WALBUS_WAIT_FOR_ROUTER;
    ck_assert_int_eq(walbus_subscription_open(&options, &f.sub), WALBUS_OK);
    ck_assert_int_eq(walbus_subscription_fd(f.sub), -1);
    fake_no_delivery(&f);
    come_up_in(&f, first);
    fake_greet(&f, CONTROL_START_NOW, none, start);

    /* It is looked up again, so the router may come back at another of the usual places. */
    fake_unlisten(&f);
    environment_set("XDG_RUNTIME_DIR", second);
    come_up_in(&f, second);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, start, start);
    fake_close(&f);
    ck_assert_int_eq(rmdir(first), 0);
    ck_assert_int_eq(rmdir(second), 0);
}
END_TEST

/* ---- starting at a position ---- */

static void open_at(struct fake_router *f, const char *identity)
{
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    char given[IDENTITY_TEXT_SIZE];

    options.start = WALBUS_START_POSITION;
    options.position = (struct walbus_position){start.lsn, start.timeline, start.index};
    options.identity = identity;
    if (identity) {
        (void)snprintf(given, sizeof given, "%s", identity);
        options.identity = given;
    }
    fake_open_with(f, options);
    memset(given, 0, sizeof given); /* it was copied */
    fake_assert_position(walbus_subscription_position(f->sub), none);
    ck_assert_str_eq(walbus_subscription_identity(f->sub), "");
}

START_TEST(a_position_to_start_behind)
{
    static const char *const identities[] = {NULL, "", "7/1"};
    struct buf b = BUF_INIT;
    struct fake_router f;

    for (size_t i = 0; i < ARRAY_SIZE(identities); i++) {
        open_at(&f, identities[i]);
        fake_greet(&f, CONTROL_START_POSITION, start, start);
        fake_no_delivery(&f);
        fake_close(&f);
    }
    open_at(&f, "7/1"); /* a connection that breaks before READY changes nothing */
    fake_subscribe(&f, "", CONTROL_START_POSITION, start);
    fake_hang_up(&f);
    fake_greet(&f, CONTROL_START_POSITION, start, start);
    fake_close(&f);

    open_at(&f, "7/1"); /* what the router leaves out is told here too */
    fake_subscribe(&f, "7/1", CONTROL_START_POSITION, start);
    fake_put_subscribed(&b, (struct position){1, 300, 0}, "7/1");
    fake_send(&f, &b);
    (void)fake_delivery(&f, WALBUS_DELIVERY_READY);
    const struct walbus_delivery *d = fake_delivery(&f, WALBUS_DELIVERY_GAP);
    fake_assert_position(walbus_delivery_from(d), (struct position){1, 101, 0});
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 300, 0});
    fake_close(&f);
}
END_TEST

START_TEST(a_position_of_another_journal)
{
    static const char why[] = "The position 1:0/64:4294967295 belongs to the journal 6/1, but the "
                              "router has the journal 7/1.";
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_at(&f, "6/1");
    fake_accept(&f);
    (void)fake_read(&f, FRAME_HELLO);
    fake_put_welcome(&b, "7/1");
    fake_send(&f, &b);
    fake_end(&f, WALBUS_POSITION_LOST, "");
    ck_assert_str_eq(walbus_subscription_error(f.sub), why);
    fake_close(&f);

    open_at(&f, "6/1"); /* WELCOME does not know it yet */
    fake_subscribe(&f, "", CONTROL_START_POSITION, start);
    fake_put_subscribed(&b, start, "7/1");
    fake_send(&f, &b);
    fake_end(&f, WALBUS_POSITION_LOST, "");
    ck_assert_str_eq(walbus_subscription_error(f.sub), why);
    fake_close(&f);
}
END_TEST

START_TEST(a_position_that_is_refused_is_no_gap_at_first)
{
    struct buf b = BUF_INIT;
    struct fake_router f;

    open_at(&f, NULL);
    fake_subscribe(&f, "7/1", CONTROL_START_POSITION, start);
    fake_put_error(&b, CONTROL_ERROR_UNSUPPORTED, false);
    fake_send(&f, &b);
    fake_end(&f, WALBUS_REFUSED, CONTROL_ERROR_UNSUPPORTED);
    fake_close(&f);
}
END_TEST

/* ---- the blocking call ---- */

static volatile sig_atomic_t alarms;

static void on_alarm(int sig)
{
    (void)sig;
    alarms++;
}

START_TEST(next_waits_as_long_as_it_is_told)
{
    const struct walbus_delivery *d = NULL;
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    fake_greet(&f, CONTROL_START_NOW, none, start);
    ck_assert_int_eq(walbus_subscription_next(f.sub, 0, &d), WALBUS_TIMEOUT);
    uint64_t before = clock_monotonic_ns();
    ck_assert_int_eq(walbus_subscription_next(f.sub, 50, &d), WALBUS_TIMEOUT);
    ck_assert_uint_ge(clock_monotonic_ns() - before, 50 * UINT64_C(1000000));
    ck_assert_str_eq(walbus_subscription_error(f.sub), walbus_result_text(WALBUS_TIMEOUT));
    ck_assert_ptr_null(d);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_send(&f, &b);
    ck_assert_int_eq(walbus_subscription_next(f.sub, 0, &d), WALBUS_OK);
    ck_assert_int_eq(walbus_delivery_kind(d), WALBUS_DELIVERY_MESSAGE);
    fake_put_message(&b, 300, 0, unit_bytes("x"));
    fake_send(&f, &b);
    ck_assert_int_eq(walbus_subscription_next(f.sub, -1, &d), WALBUS_OK);
    fake_assert_position(walbus_delivery_position(d), (struct position){1, 300, 0});
    fake_close(&f);
}
END_TEST

START_TEST(next_lets_signals_through)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval timer = {.it_value = {.tv_usec = 30000}};
    const struct walbus_delivery *d = NULL;
    struct buf b = BUF_INIT;
    struct fake_router f;

    fake_open(&f, "a.>");
    fake_greet(&f, CONTROL_START_NOW, none, start);
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
    ck_assert_int_eq(walbus_subscription_next(f.sub, -1, &d), WALBUS_INTERRUPTED);
    ck_assert_int_eq(alarms, 1);
    ck_assert_ptr_null(d);
    fake_put_message(&b, 200, 0, unit_bytes("x"));
    fake_send(&f, &b);
    ck_assert_int_eq(walbus_subscription_next(f.sub, -1, &d), WALBUS_OK); /* nothing is lost */
    fake_close(&f);
}
END_TEST

START_TEST(calls_that_cannot_be)
{
    const struct walbus_delivery *d = NULL;
    struct fake_router f;

    ck_assert_int_eq(walbus_subscription_process(NULL, &d), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_next(NULL, 0, &d), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_flush(NULL), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_ack(NULL, (struct walbus_position){0, 0, 0}, 0),
                     WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_fd(NULL), -1);
    ck_assert_int_eq(walbus_subscription_events(NULL), 0);
    ck_assert_int_eq(walbus_subscription_timeout(NULL), -1);
    fake_assert_position(walbus_subscription_position(NULL), none);
    ck_assert_str_eq(walbus_subscription_identity(NULL), "");
    ck_assert_str_eq(walbus_subscription_error(NULL), "");
    ck_assert_str_eq(walbus_subscription_error_code(NULL), "");
    fake_open(&f, "a.>");
    ck_assert_int_eq(walbus_subscription_process(f.sub, NULL), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_next(f.sub, 0, NULL), WALBUS_BAD_ARGUMENT);
    ck_assert_int_eq(walbus_subscription_next(f.sub, -2, &d), WALBUS_BAD_ARGUMENT);
    ck_assert_str_eq(walbus_subscription_error(f.sub), walbus_result_text(WALBUS_BAD_ARGUMENT));
    ck_assert_ptr_null(d);
    fake_greet(&f, CONTROL_START_NOW, none, start);
    fake_close(&f);
}
END_TEST

/* ---- two in one process ---- */

START_TEST(two_know_nothing_of_each_other)
{
    struct buf b = BUF_INIT;
    struct fake_router one, two;

    fake_open(&one, "a.>");
    fake_greet(&one, CONTROL_START_NOW, none, start);
    fake_put_message(&b, 200, 0, unit_bytes("of one"));
    fake_send(&one, &b);
    const struct walbus_delivery *d = fake_delivery(&one, WALBUS_DELIVERY_MESSAGE);

    fake_open(&two, "b.>");
    fake_greet(&two, CONTROL_START_NOW, none, (struct position){1, 5000, 0});
    fake_put_message(&b, 6000, 0, unit_bytes("of two"));
    fake_send(&two, &b);
    (void)fake_delivery(&two, WALBUS_DELIVERY_MESSAGE);
    fake_put_error(&b, CONTROL_ERROR_INVALID, true);
    fake_send(&two, &b);
    fake_end(&two, WALBUS_REFUSED, CONTROL_ERROR_INVALID);
    fake_close(&two);

    /* The delivery of the first is still its own, and so is all else. */
    size_t size;
    const void *content = walbus_delivery_content(d, &size);
    unit_assert_text((struct bytes){content, size}, "of one");
    ck_assert_str_eq(walbus_subscription_error(one.sub), "");
    fake_assert_position(walbus_subscription_position(one.sub), (struct position){1, 200, 0});
    fake_put_message(&b, 300, 0, unit_bytes("x"));
    fake_send(&one, &b);
    (void)fake_delivery(&one, WALBUS_DELIVERY_MESSAGE);
    fake_close(&one);
}
END_TEST

UNIT_MAIN("subscription_open", bad_arguments, bad_names, bad_filters, where_the_router_is,
          a_socket_that_is_not_there_yet_is_waited_for, a_position_to_start_behind,
          a_position_of_another_journal, a_position_that_is_refused_is_no_gap_at_first,
          next_waits_as_long_as_it_is_told, next_lets_signals_through, calls_that_cannot_be,
          two_know_nothing_of_each_other)
