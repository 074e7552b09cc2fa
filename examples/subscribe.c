/* SPDX-License-Identifier: PostgreSQL */
/*
 * Follows the messages of one pattern, waiting in the library, until SIGINT or SIGTERM.
 *
 *   cc subscribe.c $(pkg-config --cflags --libs walbus) -o subscribe
 *   ./subscribe 'orders.>'
 *
 * Meanwhile, `walbus publish orders.created '"apples"'` makes a line.
 */
#include <errno.h>
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

/** POSITION PREFIX TEXT: of an event its data, if that is text; of what is no event its content. */
static void print_message(const struct walbus_delivery *d)
{
    char position[WALBUS_POSITION_TEXT_SIZE];
    size_t prefix_size, size;
    const char *prefix = walbus_delivery_prefix(d, &prefix_size);
    const char *text = walbus_delivery_form(d) != WALBUS_FORM_OPAQUE
                           ? walbus_delivery_data_text(d, &size)
                           : walbus_delivery_content(d, &size);

    (void)printf("%s %.*s %.*s\n", walbus_position_format(walbus_delivery_position(d), position),
                 (int)prefix_size, prefix, (int)size, text ? text : "");
}

static void handle(const struct walbus_delivery *d)
{
    char from[WALBUS_POSITION_TEXT_SIZE], to[WALBUS_POSITION_TEXT_SIZE];

    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_READY:
        (void)fputs("ready\n", stderr);
        break;
    case WALBUS_DELIVERY_MESSAGE:
        print_message(d);
        break;
    case WALBUS_DELIVERY_GAP: /* messages may be missing: who keeps a state begins it anew here */
        (void)printf("gap %s %s %s\n", walbus_position_format(walbus_delivery_from(d), from),
                     walbus_position_format(walbus_delivery_position(d), to),
                     walbus_delivery_reason(d));
        break;
    default: /* BEGIN, COMMIT, PROGRESS, and what later versions have */
        break;
    }
}

int main(int argc, char **argv)
{
    const char *pattern = argc > 1 ? argv[1] : ">";
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: it interrupts */
    struct walbus_subscription *sub;
    const struct walbus_delivery *d;

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
        /* A second: a signal that comes just before the wait does not interrupt it. */
        result = walbus_subscription_next(sub, 1000, &d);
        if (result == WALBUS_TIMEOUT || result == WALBUS_INTERRUPTED)
            continue;
        if (result != WALBUS_OK) {
            fprintf(stderr, "%s\n", walbus_subscription_error(sub));
            break;
        }
        handle(d);
        if (fflush(stdout) == 0) /* what is not handled is not acknowledged */
            (void)walbus_subscription_ack(sub, walbus_delivery_position(d), 0);
    }
    walbus_subscription_close(sub);
    return stop ? 0 : 1;
}
