/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket_place.h"
#include "base/text.h"
#include "output.h"
#include "print.h"
#include "walbus/walbus.h"

#define COMMAND "tail"

/* One turn of the loop ends after this much, so that signals, the deadline and acknowledgements get
 * their turn however fast the router sends. */
#define TURN_DELIVERIES 1024
#define TURN_BYTES      ((size_t)256 * 1024)

/** How long the last acknowledgement may take to leave. */
#define FAREWELL_NS UINT64_C(1000000000)

/** What the command line says. */
struct tail_options {
    struct walbus_filter filters[WALBUS_MAX_FILTERS];
    size_t n_filters;
    struct walbus_filter exclusions[WALBUS_MAX_FILTERS];
    size_t n_exclusions;
    uint64_t count;      /* 0: without end */
    uint64_t timeout_us; /* 0: none */
    enum print_format format;
    bool no_ack;
};

static const struct cli_option tail_cli_options[] = {
    {"exact", "PREFIX", "Also follow the prefix that is exactly this. May be repeated."},
    {"starts-with", "PREFIX", "Also follow prefixes that begin with this. May be repeated."},
    {"exclude", "PATTERN", "Leave out prefixes that match this. May be repeated."},
    {"from", "WHERE", "Where to begin; this version knows only now, the default."},
    {"count", "N", "Acknowledge and exit 0 after N messages."},
    {"timeout", "SECONDS", "Exit 1 when this passes, unless --count is reached before."},
    {"no-ack", NULL, "Do not tell the router what has been written."},
    {"output", "FORMAT", "text (default), json, cloudevents or, not to a terminal, raw."},
    {NULL, NULL, NULL},
};

static int add_filter(struct walbus_filter *list, size_t *n, enum walbus_filter_kind kind,
                      const char *text)
{
    size_t size = strlen(text);

    if (kind == WALBUS_FILTER_PATTERN && size == 0)
        return cli_usage(COMMAND, "A pattern is empty; %s. The empty prefix alone is --exact ''.",
                         cli_shell_hint);
    if (size > WALBUS_MAX_FILTER)
        return cli_usage(COMMAND, "A filter of %zu bytes is too long; at most %d are allowed.",
                         size, WALBUS_MAX_FILTER);
    if (*n == WALBUS_MAX_FILTERS)
        return cli_usage(COMMAND, "There are more than %d filters.", WALBUS_MAX_FILTERS);
    list[(*n)++] = (struct walbus_filter){kind, text, size};
    return CLI_OK;
}

static int parse_count(const char *value, uint64_t *ret)
{
    char *end;

    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || n == 0)
        return cli_usage(COMMAND, "--count needs a number from 1 on, not '%s'.", value);
    *ret = n;
    return CLI_OK;
}

static int tail_option(void *state, const struct cli_option *option, const char *value)
{
    struct tail_options *o = state;

    if (strcmp(option->name, "exact") == 0)
        return add_filter(o->filters, &o->n_filters, WALBUS_FILTER_EXACT, value);
    if (strcmp(option->name, "starts-with") == 0)
        return add_filter(o->filters, &o->n_filters, WALBUS_FILTER_STARTS_WITH, value);
    if (strcmp(option->name, "exclude") == 0)
        return add_filter(o->exclusions, &o->n_exclusions, WALBUS_FILTER_PATTERN, value);
    if (strcmp(option->name, "count") == 0)
        return parse_count(value, &o->count);
    if (strcmp(option->name, "timeout") == 0)
        return cli_take_duration(COMMAND, option->name, value, &o->timeout_us);
    if (strcmp(option->name, "no-ack") == 0) {
        o->no_ack = true;
        return CLI_OK;
    }
    if (strcmp(option->name, "from") == 0)
        return strcmp(value, "now") == 0
                   ? CLI_OK
                   : cli_usage(COMMAND,
                               "--from %s needs the journal, which this version does not have; "
                               "there is only --from now.",
                               value);
    if (print_format_parse(value, &o->format) < 0)
        return cli_usage(COMMAND, "--output is text, json, cloudevents or raw, not '%s'.", value);
    return CLI_OK;
}

/** Everything that lives while the command follows. */
struct tail {
    const struct tail_options *options;
    struct walbus_subscription *sub;
    struct print print;
    struct output output;
    int signal_fd;
    uint64_t deadline_ns;
    uint64_t count;              /* messages printed */
    struct walbus_position last; /* handled, not necessarily written yet */
    bool moved;                  /* `last` is not acknowledged yet */
    bool ready;                  /* SUBSCRIBED has come once */
    bool deaf;                   /* nobody reads stdout any more, and stderr is to stay silent */
    bool done;                   /* `status` is what to exit with */
    int status;
};

static void finish(struct tail *t, int status)
{
    t->done = true;
    t->status = status;
}

static void on_log(void *context, const char *sentence)
{
    const struct tail *t = context;

    if (!t->done) /* during the farewell it would say that it reconnects */
        (void)cli_fail(COMMAND, "%s", sentence);
}

static void on_gap(struct tail *t, const struct walbus_delivery *d)
{
    struct buf sentence = BUF_INIT;

    if (print_gap(&t->print, d, &t->output.buf))
        return;
    print_gap_sentence(d, &sentence);
    (void)cli_fail(COMMAND, "%s.", buf_str(&sentence));
    buf_deinit(&sentence);
}

static void on_delivery(struct tail *t, const struct walbus_delivery *d)
{
    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_READY:
        if (!t->ready)
            (void)fputs("ready\n", stderr);
        t->ready = true;
        return;
    case WALBUS_DELIVERY_MESSAGE:
        if (print_message(&t->print, d, &t->output.buf) && ++t->count == t->options->count)
            finish(t, CLI_OK);
        break;
    case WALBUS_DELIVERY_GAP:
        on_gap(t, d);
        break;
    default:
        break;
    }
    t->last = walbus_delivery_position(d);
    t->moved = true;
}

/** "sentence (code)"; what this end has found has no code of the router's. */
static int fail_with(const struct tail *t)
{
    const char *code = walbus_subscription_error_code(t->sub);

    return cli_fail(COMMAND, *code ? "%s (%s)" : "%s", walbus_subscription_error(t->sub), code);
}

static void receive(struct tail *t)
{
    const struct walbus_delivery *d;

    for (int n = 0; n < TURN_DELIVERIES && t->output.buf.size < TURN_BYTES && !t->done; n++) {
        if (walbus_subscription_process(t->sub, &d) != WALBUS_OK) {
            finish(t, fail_with(t));
            break;
        }
        if (!d)
            break;
        on_delivery(t, d);
    }
}

static int too_late(const struct tail *t)
{
    return cli_fail(COMMAND, "The time is over after %" PRIu64 " message%s.", t->count,
                    t->count == 1 ? "" : "s");
}

/** Writes what was printed and, when all of it is written, acknowledges it. */
static void write_and_acknowledge(struct tail *t)
{
    int rc = output_flush(&t->output, t->signal_fd, t->deadline_ns);

    if (rc == -EPIPE) {
        t->deaf = true;
        finish(t, CLI_OK);
    } else if (rc < 0) {
        finish(t, cli_fail(COMMAND, "Cannot write to standard output: %s.", strerror(-rc)));
    } else if (rc == 0 && t->moved) {
        if (!t->options->no_ack)
            (void)walbus_subscription_ack(t->sub, t->last, 0); /* never behind what was delivered */
        t->moved = false;
    } else if (rc == 1 && t->done && clock_monotonic_ns() >= t->deadline_ns) {
        finish(t, too_late(t)); /* received in time, but not read in time by who reads our output */
    }
    if (walbus_subscription_flush(t->sub) == WALBUS_NO_MEMORY && !t->done)
        finish(t, fail_with(t));
}

static int wait_timeout(const struct tail *t)
{
    int timeout = walbus_subscription_timeout(t->sub), left = clock_ms_until(t->deadline_ns);

    return timeout < 0 ? left : MIN(left, timeout);
}

static void wait_for_something(struct tail *t)
{
    struct pollfd fds[] = {
        {.fd = walbus_subscription_fd(t->sub), .events = walbus_subscription_events(t->sub)},
        {.fd = t->signal_fd, .events = POLLIN},
        {.fd = t->output.fd}, /* only whether its reader has gone */
    };

    if (poll(fds, ARRAY_SIZE(fds), wait_timeout(t)) < 0) {
        if (errno != EINTR)
            finish(t, cli_fail(COMMAND, "%s.", strerror(errno)));
        return;
    }
    t->deaf = fds[2].revents & (POLLERR | POLLHUP);
    if (fds[1].revents || t->deaf)
        finish(t, CLI_OK);
    else if (clock_monotonic_ns() >= t->deadline_ns)
        finish(t, too_late(t));
}

/** Gives the last acknowledgement time to leave, since closing would drop it; also over a reconnect. What is received
 *  meanwhile is not printed, and so not acknowledged. */
static void say_farewell(struct tail *t)
{
    uint64_t until = clock_monotonic_ns() + FAREWELL_NS;
    const struct walbus_delivery *d;

    while (walbus_subscription_flush(t->sub) == WALBUS_AGAIN) {
        int left = clock_ms_until(until), timeout = walbus_subscription_timeout(t->sub);
        struct pollfd fd = {.fd = walbus_subscription_fd(t->sub),
                            .events = walbus_subscription_events(t->sub)};

        if (left == 0 || poll(&fd, 1, timeout < 0 ? left : MIN(left, timeout)) < 0 ||
            walbus_subscription_process(t->sub, &d) != WALBUS_OK)
            break;
    }
}

static int follow(struct tail *t)
{
    while (!t->done) {
        receive(t);
        write_and_acknowledge(t);
        if (!t->done)
            wait_for_something(t);
    }
    say_farewell(t);
    if (t->print.skipped > 0 && !t->deaf)
        (void)cli_fail(COMMAND, "Skipped %" PRIu64 " message%s that %s.", t->print.skipped,
                       t->print.skipped == 1 ? "" : "s",
                       t->print.skipped == 1 ? "is no event" : "are no events");
    return t->status;
}

static int open_signals(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -errno;
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/** Terminals that say what they are, and people who have not asked for none (no-color.org). */
static bool wants_colour(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(STDOUT_FILENO) && !(no_color && *no_color) &&
           !(term && strcmp(term, "dumb") == 0);
}

static int open_and_follow(const struct walbus_subscription_options *options, const char *path,
                           struct tail *t)
{
    enum walbus_result result = walbus_subscription_open(options, &t->sub);

    if (result == WALBUS_NO_ROUTER)
        return cli_unreachable(COMMAND, "Cannot reach the router at %s: %s.", path,
                               strerror(errno));
    if (result == WALBUS_BAD_FILTER)
        return cli_usage(COMMAND, "The filters together have more than %d tokens or 1 MiB.",
                         WALBUS_MAX_TOKENS);
    if (result != WALBUS_OK)
        return cli_fail(COMMAND, "%s.", walbus_result_text(result));
    int status = follow(t);
    t->sub = walbus_subscription_close(t->sub);
    return status;
}

static int run_with(struct cli *cli, const struct tail_options *o, struct tail *t)
{
    char why[SOCKET_PLACE_WHY_SIZE], *path;
    int rc = socket_place_of_client(cli->settings.socket, &path, why);

    if (rc == -ENOENT)
        return cli_unreachable(COMMAND, "%s", why);
    if (rc == -EINVAL)
        return cli_usage(COMMAND, "%s", why);
    if (rc < 0)
        return cli_fail(COMMAND, "%s.", strerror(-rc));
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    options.socket = cli->settings.socket; /* NULL: looked up again at every connect */
    options.client = "walbus tail";
    options.filters = o->filters;
    options.n_filters = o->n_filters;
    options.exclusions = o->exclusions;
    options.n_exclusions = o->n_exclusions;
    options.log = on_log;
    options.context = t;
    int status = open_and_follow(&options, path, t);
    free(path);
    return status;
}

/** `walbus tail orders.> file` reaches us as the pattern "orders.". */
static void warn_of_redirection(const struct tail_options *o, const struct output *output)
{
    for (size_t i = 0; i < o->n_filters && output->is_file; i++) {
        const struct walbus_filter *f = &o->filters[i];

        if (f->kind == WALBUS_FILTER_PATTERN && f->text[f->size - 1] == '.')
            (void)cli_fail(COMMAND, "The pattern '%s' ends with an empty token; %s.", f->text,
                           cli_shell_hint);
    }
}

static int tail_run(struct cli *cli, void *state, int argc, char **argv)
{
    struct tail_options *o = state;
    struct tail t = {.options = o, .signal_fd = -1, .deadline_ns = UINT64_MAX};

    for (int i = 0; i < argc; i++) {
        int status = add_filter(o->filters, &o->n_filters, WALBUS_FILTER_PATTERN, argv[i]);
        if (status != CLI_OK)
            return status;
    }
    if (o->format == PRINT_RAW && isatty(STDOUT_FILENO))
        return cli_usage(COMMAND, "--output raw: a terminal would act on control characters in "
                                  "the contents; send them to a file or a pipe.");
    if (o->timeout_us > 0)
        t.deadline_ns = clock_monotonic_ns() + o->timeout_us * 1000;
    t.print = (struct print){.format = o->format, .colour = wants_colour()};

    int rc = output_init(&t.output, STDOUT_FILENO);
    if (rc == -EBADF) /* closed from the start, and that ends it silently, as it does later */
        return CLI_OK;
    if (rc < 0)
        return cli_fail(COMMAND, "Standard output: %s.", strerror(-rc));
    warn_of_redirection(o, &t.output);
    t.signal_fd = open_signals();
    int status = t.signal_fd < 0
                     ? cli_fail(COMMAND, "Cannot wait for signals: %s.", strerror(-t.signal_fd))
                     : run_with(cli, o, &t);
    output_deinit(&t.output);
    (void)fd_close(t.signal_fd);
    return status;
}

const struct cli_command cli_command_tail = {
    .name = COMMAND,
    .usage = "[OPTION...] [PATTERN...]",
    .sentence = "Follow messages from now on; without a pattern all of them.",
    .details =
        "A pattern is split at dots: '*' stands for exactly one token, '>' at the end for one or\n"
        "more. Quote patterns, since the shell would take > as a redirection and * as files.\n"
        "\n"
        "Prints the line 'ready' on stderr once nothing more is missed. Only what has been "
        "written\n"
        "to standard output is acknowledged. When the router goes away, reconnects and goes on\n"
        "behind the last message.\n"
        "\n"
        "Examples:\n"
        "  walbus tail\n"
        "  walbus tail 'orders.>' --exclude 'orders.internal.*'\n"
        "  walbus tail --starts-with neon-file: --output raw\n"
        "  walbus tail 'orders.created' --output json --count 1 --timeout 10",
    .options = tail_cli_options,
    .option = tail_option,
    .run = tail_run,
    .state_size = sizeof(struct tail_options),
};
