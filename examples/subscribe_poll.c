/* SPDX-License-Identifier: PostgreSQL */
/*
 * Follows the messages of one pattern in a loop of its own: poll() waits for the router and for
 * signals. Any other loop needs the same three of a subscription: descriptor, events, timeout.
 *
 *   cc subscribe_poll.c $(pkg-config --cflags --libs walbus) -o subscribe_poll
 *   ./subscribe_poll 'orders.>'
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <walbus/walbus.h>

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

/** All that is there now; acknowledged together, if anything, since what is not handled is not. */
static enum walbus_result handle_all(struct walbus_subscription *sub)
{
    const struct walbus_delivery *d;
    enum walbus_result result;
    int n = 0;

    for (; (result = walbus_subscription_process(sub, &d)) == WALBUS_OK && d; n++)
        handle(d);
    if (n > 0 && fflush(stdout) == 0)
        (void)walbus_subscription_ack(sub, walbus_subscription_position(sub), 0);
    (void)walbus_subscription_flush(sub); /* the rest leaves when `events` has POLLOUT */
    return result;
}

int main(int argc, char **argv)
{
    const char *pattern = argc > 1 ? argv[1] : ">";
    struct walbus_filter filter = {WALBUS_FILTER_PATTERN, pattern, strlen(pattern)};
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    struct pollfd fds[2] = {{.events = POLLIN}};
    struct walbus_subscription *sub;
    sigset_t signals;

    options.filters = &filter;
    options.n_filters = 1;
    enum walbus_result result = walbus_subscription_open(&options, &sub);
    if (result != WALBUS_OK) {
        fprintf(stderr, "%s%s%s\n", walbus_result_text(result),
                result == WALBUS_NO_ROUTER ? ": " : "",
                result == WALBUS_NO_ROUTER ? strerror(errno) : "");
        return 1;
    }
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    fds[0].fd = signalfd(-1, &signals, SFD_CLOEXEC);
    while (fds[0].fd >= 0 && !fds[0].revents && (result = handle_all(sub)) == WALBUS_OK) {
        fds[1].fd = walbus_subscription_fd(sub); /* these change: asked for before every wait */
        fds[1].events = walbus_subscription_events(sub);
        (void)poll(fds, 2, walbus_subscription_timeout(sub));
    }
    if (result != WALBUS_OK)
        fprintf(stderr, "%s\n", walbus_subscription_error(sub));
    walbus_subscription_close(sub);
    return result == WALBUS_OK ? 0 : 1;
}
