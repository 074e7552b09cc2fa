/* SPDX-License-Identifier: PostgreSQL */
/*
 * Follows the messages of one pattern under a durable name, until SIGINT or SIGTERM. What it misses while it is away
 * comes when it is back; what it had not acknowledged when it was killed comes again, marked.
 *
 *   cc subscribe_durable.c $(pkg-config --cflags --libs walbus) -o subscribe_durable
 *   ./subscribe_durable billing 'orders.>'
 *
 * `walbus subscriptions` lists the name, and how far behind it is.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <walbus/walbus.h>

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    (void)sig;
    stop = 1;
}

/** What is done with a message, for good: when this returns it may be acknowledged. */
static void handle(const struct walbus_delivery *d)
{
    char position[WALBUS_POSITION_TEXT_SIZE];
    size_t prefix_size, size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const char *content = walbus_delivery_content(d, &size);
    int again = walbus_delivery_flags(d) & WALBUS_DELIVERY_REDELIVERED;

    (void)printf("%s%s %.*s %zu bytes, the first %.1s\n", again ? "again " : "",
                 walbus_position_format(walbus_delivery_position(d), position), (int)prefix_size,
                 prefix, size, size > 0 ? content : "");
    (void)fflush(stdout);
}

/** Gives the last acknowledgement a second to leave: whatever arrives meanwhile comes again. */
static void say_farewell(struct walbus_subscription *sub)
{
    const struct walbus_delivery *d;

    for (int i = 0; i < 10 && walbus_subscription_flush(sub) == WALBUS_AGAIN; i++) {
        struct pollfd fd = {walbus_subscription_fd(sub), walbus_subscription_events(sub), 0};
        (void)poll(&fd, 1, 100);
        if (walbus_subscription_process(sub, &d) != WALBUS_OK)
            break;
    }
}

int main(int argc, char **argv)
{
    const char *pattern = argc > 2 ? argv[2] : ">";
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: it interrupts */
    struct walbus_subscription *sub;
    const struct walbus_delivery *d;

    options.name = argc > 1 ? argv[1] : "example";
    options.start = WALBUS_START_OLDEST; /* the first time; then where it was */
    options.filters = &filter;
    options.n_filters = 1;
    enum walbus_result result = walbus_subscription_open(&options, &sub);
    if (result != WALBUS_OK) {
        fprintf(stderr, "%s%s%s\n", walbus_result_text(result),
                result == WALBUS_NO_ROUTER ? ": " : "",
                result == WALBUS_NO_ROUTER ? strerror(errno) : "");
        return 1;
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    while (!stop) {
        result =
            walbus_subscription_next(sub, 1000, &d); /* a second: see walbus_subscription_next() */
        if (result == WALBUS_TIMEOUT || result == WALBUS_INTERRUPTED)
            continue;
        if (result != WALBUS_OK)
            break;
        if (walbus_delivery_kind(d) == WALBUS_DELIVERY_READY)
            (void)fputs("ready\n", stderr);
        else if (walbus_delivery_kind(d) == WALBUS_DELIVERY_MESSAGE)
            handle(d);
        else if (walbus_delivery_kind(d) == WALBUS_DELIVERY_GAP) /* messages may be missing */
            fprintf(stderr, "gap: %s\n", walbus_delivery_reason(d));
        (void)walbus_subscription_ack(sub, walbus_delivery_position(d), 0);
    }
    if (!stop)
        fprintf(stderr, "%s (%s)\n", walbus_subscription_error(sub),
                walbus_subscription_error_code(sub));
    say_farewell(sub);
    walbus_subscription_close(sub);
    return stop ? 0 : 1;
}
