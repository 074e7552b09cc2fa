/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/socket_place.h"
#include "base/text.h"
#include "client/subscriber.h"
#include "codec/cbor.h"
#include "print_status.h"

#define COMMAND "status"

/** Without --wait: a router that has not answered by then is counted as not reachable. */
#define ANSWER_NS UINT64_C(10000000000)
/** With --wait: how often to ask. */
#define AGAIN_NS UINT64_C(100000000)

struct status_options {
    uint64_t wait_us; /* 0: answer now, whatever the state */
};

static const struct cli_option status_cli_options[] = {
    {"wait", "SECONDS", "Return when the router is streaming; exit 1 when this passes before."},
    {NULL, NULL, NULL},
};

static int status_option(void *state, const struct cli_option *option, const char *value)
{
    struct status_options *o = state;

    return cli_take_duration(COMMAND, option->name, value, &o->wait_us);
}

struct status {
    struct cli *cli;
    bool wait;
    uint64_t deadline_ns;
    uint64_t ask_ns;  /* when to ask; UINT64_MAX: not connected, or an answer is awaited */
    uint64_t request; /* the one that is awaited */
    struct subscriber *sub;
    struct buf answer;                   /* the last one, a CBOR map */
    char unreachable[SOCKET_PLACE_WHY_SIZE]; /* why there is no router, so far */
};

static int show(struct status *s)
{
    struct bytes answer = buf_bytes(&s->answer);
    struct buf out = BUF_INIT;
    int status = CLI_OK, rc = 0;

    if (s->cli->json) {
        rc = cbor_print_json(answer, &out) == CBOR_OK ? 0 : -EINVAL;
        buf_append_u8(&out, '\n');
    } else {
        rc = print_status(answer, &out);
    }
    if (rc < 0)
        status = cli_fail(COMMAND, "The router's answer cannot be read.");
    else if (out.failed || s->answer.failed)
        status = cli_fail(COMMAND, "Not enough memory.");
    else
        (void)fwrite(out.data, 1, out.size, stdout); /* main asks for ferror */
    buf_deinit(&out);
    return status;
}

/** Acts on one event. -1: go on; else the exit status. */
static int on_event(struct status *s, const struct subscriber_event *event)
{
    const struct control_error *e = &event->error;

    switch (event->kind) {
    case SUBSCRIBER_READY:
        s->ask_ns = 0;
        return -1;
    case SUBSCRIBER_REPLY:
        if (event->reply.id != s->request)
            return -1;
        buf_clear(&s->answer);
        buf_append(&s->answer, event->reply.result.data, event->reply.result.size);
        struct bytes state = print_status_text(buf_bytes(&s->answer), "state");
        if (!s->wait || bytes_equal(state, bytes_of_text("streaming")))
            return show(s);
        s->ask_ns = clock_monotonic_ns() + AGAIN_NS;
        return -1;
    case SUBSCRIBER_ERROR:
        if (s->wait && e->fatal) {
            s->ask_ns = UINT64_MAX;
            subscriber_restart(s->sub, false);
            return -1;
        }
        if (!e->fatal && (!e->has_id || e->id != s->request))
            return -1;
        return cli_fail(COMMAND, "%.*s (%.*s)", (int)MIN(e->text.size, (size_t)INT_MAX),
                        (const char *)e->text.data, (int)e->code.size, (const char *)e->code.data);
    default:
        return -1;
    }
}

static void on_notice(void *context, enum subscriber_notice notice, const char *sentence)
{
    struct status *s = context;

    if (notice == SUBSCRIBER_NOTICE_DISCONNECTED) {
        s->ask_ns = UINT64_MAX;
        (void)snprintf(s->unreachable, sizeof s->unreachable, "%s", sentence);
    }
}

static int out_of_time(struct status *s)
{
    if (s->answer.size == 0)
        return cli_unreachable(COMMAND, "%s", s->unreachable);
    int status = show(s);
    struct bytes state = print_status_text(buf_bytes(&s->answer), "state");
    return status != CLI_OK ? status
                            : cli_fail(COMMAND, "The router is not streaming but %.*s.",
                                       (int)MIN(state.size, (size_t)INT_MAX),
                                       state.size > 0 ? (const char *)state.data : "");
}

/** Asks until there is an answer to exit with. */
static int ask(struct status *s)
{
    struct subscriber_event event;

    for (;;) {
        int rc, status;

        while ((rc = subscriber_process(s->sub, &event)) > 0) {
            status = on_event(s, &event);
            if (status >= 0)
                return status;
        }
        if (rc == 0 && clock_monotonic_ns() >= s->ask_ns) {
            s->ask_ns = UINT64_MAX;
            rc = subscriber_request(s->sub, "status", (struct bytes){NULL, 0}, &s->request);
        }
        if (rc < 0 || (rc = subscriber_flush(s->sub)) < 0)
            return cli_fail(COMMAND, "%s.", strerror(-rc));
        if (clock_ms_until(s->deadline_ns) == 0)
            return out_of_time(s);

        struct pollfd fd = {.fd = subscriber_fd(s->sub), .events = subscriber_events(s->sub)};
        int timeout = MIN(clock_ms_until(s->deadline_ns), clock_ms_until(s->ask_ns)),
            own = subscriber_timeout(s->sub);
        if (poll(&fd, 1, own >= 0 ? MIN(own, timeout) : timeout) < 0 && errno != EINTR)
            return cli_fail(COMMAND, "%s.", strerror(errno));
    }
}

/** Where the router is. With --wait its socket may still have to appear. -1 or the exit status. */
static int find_socket(struct status *s, char **ret)
{
    for (;;) {
        int rc = socket_place_of_client(s->cli->settings.socket, ret, s->unreachable);

        if (rc == 0)
            return -1;
        if (rc == -EINVAL)
            return cli_usage(COMMAND, "%s", s->unreachable);
        if (rc != -ENOENT)
            return cli_fail(COMMAND, "%s.", strerror(-rc));
        if (!s->wait || clock_ms_until(s->deadline_ns) == 0)
            return cli_unreachable(COMMAND, "%s", s->unreachable);
        (void)poll(NULL, 0, MIN(clock_ms_until(s->deadline_ns), (int)(AGAIN_NS / 1000000)));
    }
}

static int connect_and_ask(struct status *s, const char *path)
{
    struct subscriber_options options = {
        .socket = path,
        .client = "walbus status",
        .notice = on_notice,
        .context = s,
    };
    int rc = subscriber_new(&options, &s->sub);

    if (rc < 0)
        return cli_fail(COMMAND, "%s: %s.", path, strerror(-rc));
    rc = subscriber_start(s->sub);
    (void)snprintf(s->unreachable, sizeof s->unreachable,
                   rc < 0 ? "Cannot reach the router at %s: %s."
                          : "The router at %s does not answer.",
                   path, strerror(-rc));
    int status = rc < 0 && !s->wait ? cli_unreachable(COMMAND, "%s", s->unreachable) : ask(s);
    s->sub = subscriber_free(s->sub);
    return status;
}

static int status_run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct status_options *o = state;
    struct status s = {.cli = cli, .wait = o->wait_us > 0, .ask_ns = UINT64_MAX};
    char *path = NULL;

    if (argc > 0)
        return cli_usage(COMMAND, "There is nothing to be done with '%s'.", argv[0]);
    s.deadline_ns = clock_monotonic_ns() + (s.wait ? o->wait_us * 1000 : ANSWER_NS);
    int status = find_socket(&s, &path);
    if (status < 0)
        status = connect_and_ask(&s, path);
    buf_deinit(&s.answer);
    free(path);
    return status;
}

const struct cli_command cli_command_status = {
    .name = COMMAND,
    .usage = "[OPTION...]",
    .sentence = "Show what the router is doing.",
    .details =
        "Exit status 0 whenever the router answers, whatever its state; with --wait only when\n"
        "it is streaming.\n"
        "\n"
        "Examples:\n"
        "  walbus status\n"
        "  walbus status --json | jq .slot\n"
        "  walbus status --wait 30",
    .options = status_cli_options,
    .option = status_option,
    .run = status_run,
    .state_size = sizeof(struct status_options),
    .lists = true,
};
