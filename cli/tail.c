/* SPDX-License-Identifier: PostgreSQL */
#include "tail_options.h"

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

#include "answer.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/socket_place.h"
#include "base/text.h"
#include "codec/control.h"
#include "output.h"

#define COMMAND TAIL_COMMAND

/* One turn of the loop ends after this much, so that signals, the deadline and acknowledgements get
 * their turn however fast the router sends. */
#define TURN_DELIVERIES 1024
#define TURN_BYTES      ((size_t)256 * 1024)

/** How long the last acknowledgement may take to leave. */
#define FAREWELL_NS UINT64_C(1000000000)

/** Everything that lives while the command follows. */
struct tail {
    const struct tail_options *options;
    struct walbus_subscription *sub;
    struct print print;
    struct output output;
    int signal_fd;
    uint64_t deadline_ns;
    uint64_t count;                /* messages printed */
    struct walbus_position last;   /* handled, not necessarily written yet; all zero: nothing */
    struct walbus_position target; /* --no-follow: what stood whole in the journal, up to here */
    struct walbus_position last_alone; /* the same for a message that is no part of a transaction */
    bool moved;                    /* `last` is not acknowledged yet */
    bool ready;                    /* SUBSCRIBED has come once */
    bool deaf;                     /* nobody reads stdout any more, and stderr is to stay silent */
    bool done;                     /* `status` is what to exit with */
    bool confirm,
        confirmed; /* the end waits until the acknowledgement of `last` is on the router's disk */
    bool farewell; /* what the subscription says of itself does not matter any more */
    int status;
};

static void finish(struct tail *t, int status)
{
    t->done = true;
    t->status = status;
}

/** All that was asked for has come. */
static void finish_whole(struct tail *t)
{
    t->confirm = t->options->name && !t->options->no_ack;
    if (t->confirm && t->last.timeline != 0)
        t->moved = true; /* acknowledged or not: the confirmation is still to be asked for */
    finish(t, CLI_OK);
}

static void on_log(void *context, const char *sentence)
{
    const struct tail *t = context;

    if (!t->farewell) /* it would say that it reconnects */
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

static bool is_at_target(const struct tail *t, const struct walbus_delivery *d)
{
    return t->options->no_follow &&
           walbus_position_compare(walbus_delivery_position(d), t->target) >= 0;
}

/** It has come since, or is of a transaction of which the router had only a part. */
static bool is_behind_target(const struct tail *t, const struct walbus_delivery *d)
{
    enum walbus_delivery_kind kind = walbus_delivery_kind(d);

    return t->options->no_follow &&
           (kind == WALBUS_DELIVERY_BEGIN || kind == WALBUS_DELIVERY_MESSAGE) &&
           walbus_position_compare(walbus_delivery_position(d),
                                   kind == WALBUS_DELIVERY_BEGIN ? t->target : t->last_alone) > 0;
}

static int from_does_not_count(const struct tail_options *o)
{
    return cli_usage(
        COMMAND,
        "The durable subscription %s is there, and goes on where it stands: --from is for a "
        "new name. 'walbus subscriptions seek %s %s' moves it.",
        o->name, o->name, o->start.start == WALBUS_START_TIME ? "WHERE" : o->from);
}

static void on_ready(struct tail *t, const struct walbus_delivery *d)
{
    /* It was asked for before; somebody has made it since. */
    if (!t->ready && t->options->from && (walbus_delivery_flags(d) & WALBUS_DELIVERY_STORED)) {
        finish(t, from_does_not_count(t->options));
        return;
    }
    if (!t->ready)
        (void)fputs("ready\n", stderr);
    t->ready = true;
    if (is_at_target(t, d))
        finish_whole(t);
}

static void on_delivery(struct tail *t, const struct walbus_delivery *d)
{
    if (is_behind_target(t, d)) {
        finish_whole(t);
        return;
    }
    switch (walbus_delivery_kind(d)) {
    case WALBUS_DELIVERY_READY:
        on_ready(t, d);
        return;
    case WALBUS_DELIVERY_ACKED: /* of an earlier connection; its position is one from before */
        return;
    case WALBUS_DELIVERY_MESSAGE:
        if (print_message(&t->print, d, &t->output.buf) && ++t->count == t->options->count)
            finish_whole(t);
        break;
    case WALBUS_DELIVERY_GAP:
        on_gap(t, d);
        break;
    default:
        break;
    }
    t->last = walbus_delivery_position(d);
    t->moved = true;
    if (walbus_delivery_kind(d) != WALBUS_DELIVERY_BEGIN && is_at_target(t, d))
        finish_whole(t);
}

/** "sentence (code)"; what this end has found has no code of the router's. */
static int fail_with(const struct tail *t)
{
    const char *code = walbus_subscription_error_code(t->sub);
    bool held = strcmp(code, CONTROL_ERROR_HELD) == 0;

    return cli_fail(COMMAND, *code ? "%s (%s)%s" : "%s", walbus_subscription_error(t->sub), code,
                    held ? "; --take-over ends the other" : "");
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
        if (!t->options->no_ack) /* never behind what was delivered */
            (void)walbus_subscription_ack(t->sub, t->last, t->confirm ? WALBUS_ACK_CONFIRM : 0);
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

/** While the confirmation is waited for, further messages are neither printed nor acknowledged. */
static void on_late_delivery(struct tail *t, const struct walbus_delivery *d)
{
    enum walbus_delivery_kind kind = walbus_delivery_kind(d);

    if (kind == WALBUS_DELIVERY_ACKED)
        t->confirmed = walbus_position_compare(walbus_delivery_position(d), t->last) >= 0;
    /* The library asks again by itself, unless the place means nothing any more. */
    if (kind == WALBUS_DELIVERY_READY &&
        walbus_subscription_ack(t->sub, t->last, WALBUS_ACK_CONFIRM) != WALBUS_OK)
        finish(t, fail_with(t));
}

/** A durable name: what was written is acknowledged for good before this ends. */
static void await_confirmation(struct tail *t)
{
    const struct walbus_delivery *d;

    while (!t->confirmed && t->status == CLI_OK) {
        if (walbus_subscription_process(t->sub, &d) != WALBUS_OK) {
            finish(t, fail_with(t));
            return;
        }
        if (d) {
            on_late_delivery(t, d);
            continue;
        }
        struct pollfd fds[] = {
            {.fd = walbus_subscription_fd(t->sub), .events = walbus_subscription_events(t->sub)},
            {.fd = t->signal_fd, .events = POLLIN},
        };
        (void)poll(fds, ARRAY_SIZE(fds), wait_timeout(t));
        if (fds[1].revents)
            return;
        if (clock_monotonic_ns() >= t->deadline_ns)
            finish(t,
                   cli_fail(COMMAND, "The time is over before the acknowledgement was confirmed."));
    }
}

/** Gives the last acknowledgement time to leave, since closing would drop it; also over a reconnect. What is received
 *  meanwhile is not printed, and so not acknowledged. */
static void say_farewell(struct tail *t)
{
    uint64_t until = clock_monotonic_ns() + FAREWELL_NS;
    const struct walbus_delivery *d;

    t->farewell = true;
    while (walbus_subscription_flush(t->sub) == WALBUS_AGAIN) {
        int left = clock_ms_until(until), timeout = walbus_subscription_timeout(t->sub);
        struct pollfd fd = {.fd = walbus_subscription_fd(t->sub),
                            .events = walbus_subscription_events(t->sub)};

        if (left == 0 || poll(&fd, 1, timeout < 0 ? left : MIN(left, timeout)) < 0 ||
            walbus_subscription_process(t->sub, &d) != WALBUS_OK)
            break;
    }
}

/** What was not printed, and why. */
static void tell_left_out(const struct tail *t)
{
    uint64_t withheld = walbus_subscription_withheld(t->sub);

    if (t->print.skipped > 0)
        (void)cli_fail(COMMAND, "Skipped %" PRIu64 " message%s that %s.", t->print.skipped,
                       t->print.skipped == 1 ? "" : "s",
                       t->print.skipped == 1 ? "is no event" : "are no events");
    if (withheld > 0)
        (void)cli_fail(COMMAND, "Left out %" PRIu64 " message%s without a valid signature.",
                       withheld, withheld == 1 ? "" : "s");
}

static int follow(struct tail *t)
{
    while (!t->done) {
        receive(t);
        write_and_acknowledge(t);
        if (!t->done)
            wait_for_something(t);
    }
    if (t->confirm && t->last.timeline != 0 && !t->moved)
        await_confirmation(t);
    say_farewell(t);
    if (!t->deaf)
        tell_left_out(t);
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

    if (result == WALBUS_NO_ROUTER) {
        int error = errno;

        return cli_unreachable(COMMAND, "Cannot reach the router at %s: %s%s.", path, strerror(error),
                               socket_place_mend(error));
    }
    if (result == WALBUS_BAD_TRUST) /* on_log has said why */
        return CLI_FAILED;
    if (result == WALBUS_BAD_FILTER)
        return cli_usage(COMMAND, "The filters together have more than %d tokens or 1 MiB.",
                         WALBUS_MAX_TOKENS);
    if (result != WALBUS_OK)
        return cli_fail(COMMAND, "%s.", walbus_result_text(result));
    int status = follow(t);
    t->sub = walbus_subscription_close(t->sub);
    return status;
}

/** Up to where what stands whole in the journal now goes. CLI_OK, or the exit status. */
static int find_target(struct cli *cli, struct tail *t)
{
    char text[WALBUS_POSITION_TEXT_SIZE] = "";
    struct walbus_reply *reply;
    int status = answer_ask(cli, COMMAND, "status", (struct bytes){NULL, 0}, NULL, NULL, &reply);

    if (status != CLI_OK)
        return status;
    struct bytes journal = answer_item(answer_of(reply), "journal");
    struct bytes newest = answer_text(journal, "newest");
    if (newest.size > 0 && newest.size < sizeof text)
        memcpy(text, newest.data, newest.size);
    /* an empty one has no newest, and all of it has come at once */
    if (newest.size > 0 && walbus_position_parse(text, &t->target) != WALBUS_OK)
        status = cli_fail(COMMAND, "The router's answer cannot be read.");
    t->last_alone = t->target;
    /* The rest of a transaction may never come, and within one there is no PROGRESS: what stands whole counts. A non-transactional
     * message can have the LSN of the transaction behind it. */
    if (t->target.index != 0 && t->target.index != WALBUS_INDEX_END) {
        t->last_alone.index = 0;
        t->target =
            (struct walbus_position){t->target.lsn - 1, t->target.timeline, WALBUS_INDEX_END};
    }
    walbus_reply_free(reply);
    return status;
}

/** --from is for a new name: whether this one is. Asked before subscribing, since that would already change its filters.
 *  CLI_OK, or the exit status. */
static int check_name_is_new(struct cli *cli, const struct tail_options *o)
{
    struct bytes key = {NULL, 0}, entry;
    struct walbus_reply *reply;
    struct answer_walk w;
    int status =
        answer_ask(cli, COMMAND, "subscriptions", (struct bytes){NULL, 0}, NULL, NULL, &reply);

    if (status != CLI_OK)
        return status;
    struct bytes list = answer_item(answer_of(reply), "subscriptions");
    bool good = list.data && answer_walk_start(&w, list, CBOR_ARRAY), found = false;
    while (good && !found && answer_walk_next(&w, &key, &entry))
        found = bytes_equal(answer_text(entry, "name"), bytes_of_text(o->name));
    walbus_reply_free(reply);
    if (!good)
        return cli_fail(COMMAND, "The router's answer cannot be read.");
    return found ? from_does_not_count(o) : CLI_OK;
}

/** What is to be known before subscribing. CLI_OK, or the exit status. */
static int look_before(struct cli *cli, struct tail *t)
{
    const struct tail_options *o = t->options;
    int status = o->no_follow ? find_target(cli, t) : CLI_OK;

    return status == CLI_OK && o->name && o->from ? check_name_is_new(cli, o) : status;
}

static int run_with(struct cli *cli, const struct tail_options *o, struct tail *t)
{
    char why[ANSWER_WHY_SIZE], *path;
    int rc = answer_place(cli, &path, why);

    if (rc == -ENOENT)
        return cli_unreachable(COMMAND, "%s", why);
    if (rc == -EINVAL)
        return cli_usage(COMMAND, "%s", why);
    if (rc < 0)
        return cli_fail(COMMAND, "%s.", strerror(-rc));
    struct walbus_subscription_options options = WALBUS_SUBSCRIPTION_OPTIONS_INIT;
    options.socket = cli->settings.socket; /* NULL: looked up again at every connect */
    options.client = "walbus tail";
    tail_options_subscription(o, &options);
    options.log = on_log;
    options.context = t;
    int status = look_before(cli, t);
    if (status == CLI_OK)
        status = open_and_follow(&options, path, t);
    free(path);
    return status;
}

static int tail_run(struct cli *cli, void *state, int argc, char **argv)
{
    struct tail_options *o = state;
    struct tail t = {.options = o, .signal_fd = -1, .deadline_ns = UINT64_MAX};

    int status = CLI_OK;

    for (int i = 0; i < argc && status == CLI_OK; i++)
        status = tail_options_add_pattern(o, argv[i]);
    if (status == CLI_OK)
        status = tail_options_check(o);
    if (status != CLI_OK)
        return status;
    if (o->timeout_us > 0)
        t.deadline_ns = clock_monotonic_ns() + o->timeout_us * 1000;
    t.print = (struct print){.format = o->format, .colour = wants_colour(), .trust = o->trust};

    int rc = output_init(&t.output, STDOUT_FILENO);
    if (rc == -EBADF) /* closed from the start, and that ends it silently, as it does later */
        return CLI_OK;
    if (rc < 0)
        return cli_fail(COMMAND, "Standard output: %s.", strerror(-rc));
    tail_options_warn(o, t.output.is_file);
    t.signal_fd = open_signals();
    status = t.signal_fd < 0
                 ? cli_fail(COMMAND, "Cannot wait for signals: %s.", strerror(-t.signal_fd))
                 : run_with(cli, o, &t);
    output_deinit(&t.output);
    (void)fd_close(t.signal_fd);
    return status;
}

const struct cli_command cli_command_tail = {
    .name = COMMAND,
    .usage = "[OPTION...] [PATTERN...]",
    .sentence = "Follow messages; without a pattern all of them.",
    .details =
        "A pattern is split at dots: '*' stands for exactly one token, '>' at the end for one or\n"
        "more. Quote patterns, since the shell would take > as a redirection and * as files.\n"
        "\n"
        "Prints the line 'ready' on stderr once nothing more is missed. Only what has been "
        "written\n"
        "to standard output is acknowledged. When the router goes away, reconnects and goes on\n"
        "behind the last message.\n"
        "\n"
        "WHERE is now, oldest, a position that was printed (what follows comes), a time that the\n"
        "router's clock showed, or so long ago.\n"
        "\n"
        "Under a durable name the router keeps the place: the next one who follows under it goes\n"
        "on behind what was acknowledged, and --from counts only when the name is new. Then\n"
        "--count and --no-follow end when the acknowledgement is on the router's disk.\n"
        "'walbus subscriptions' lists the names, removes and moves them.\n"
        "\n"
        "With --trust each message says what its signature is worth: valid, unsigned, unknown-key,\n"
        "bad-signature, malformed, not-allowed or stale. Without, no key is known.\n"
        "\n"
        "Examples:\n"
        "  walbus tail\n"
        "  walbus tail 'orders.>' --exclude 'orders.internal.*'\n"
        "  walbus tail --starts-with neon-file: --output raw\n"
        "  walbus tail 'orders.created' --output json --count 1 --timeout 10\n"
        "  walbus tail 'orders.>' --from -15min\n"
        "  walbus tail --from oldest --no-follow --output json > journal.jsonl\n"
        "  walbus tail 'orders.>' --durable billing --output json\n"
        "  walbus tail 'orders.>' --trust /etc/walbus/trust --valid-only",
    .options = tail_cli_options,
    .option = tail_option,
    .common = cli_common_router,
    .run = tail_run,
    .state_size = sizeof(struct tail_options),
};
