/* SPDX-License-Identifier: PostgreSQL */
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/socket_place.h"
#include "base/text.h"
#include "codec/cbor.h"
#include "codec/control.h"
#include "print_status.h"
#include "walbus/walbus.h"

#define COMMAND "status"

/** Without --wait: a router that has not answered by then is counted as not reachable. */
#define ANSWER_NS UINT64_C(10000000000)
/** With --wait: how often to ask. */
#define AGAIN_MS 100

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
    struct buf answer;                       /* the last one, a CBOR map */
    char unreachable[ANSWER_WHY_SIZE]; /* why there is no router, so far */
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

static int out_of_time(struct status *s)
{
    if (s->answer.size == 0)
        return cli_unreachable(COMMAND, "%s", s->unreachable);
    int status = show(s);
    struct bytes state = answer_text(buf_bytes(&s->answer), "state");
    return status != CLI_OK ? status
                            : cli_fail(COMMAND, "The router is not streaming but %.*s.",
                                       (int)MIN(state.size, (size_t)INT_MAX),
                                       state.size > 0 ? (const char *)state.data : "");
}

/** Acts on an answer. -1: ask again; else the exit status. */
static int on_answer(struct status *s, const struct walbus_reply *reply)
{
    size_t size;
    const void *result = walbus_reply_result(reply, &size);

    buf_clear(&s->answer);
    buf_append(&s->answer, result, size);
    struct bytes state = answer_text(buf_bytes(&s->answer), "state");
    return !s->wait || bytes_equal(state, bytes_of_text("streaming")) ? show(s) : -1;
}

/** Acts on what came instead of an answer. -1: ask again; else the exit status. */
static int on_failure(struct status *s, enum walbus_result result, const struct walbus_reply *reply)
{
    const char *code = walbus_reply_error_code(reply);

    if (s->wait && result == WALBUS_TIMEOUT && *s->unreachable)
        return -1; /* it was our own time that ran out: what was said before tells more */
    (void)snprintf(s->unreachable, sizeof s->unreachable, "%s", walbus_reply_error(reply));
    if (s->wait && strcmp(code, CONTROL_ERROR_FORBIDDEN) != 0) /* which no waiting changes */
        return -1;
    if (result == WALBUS_NO_ROUTER || result == WALBUS_TIMEOUT)
        return cli_unreachable(COMMAND, "%s", s->unreachable);
    return cli_fail(COMMAND, *code ? "%s (%s)" : "%s", s->unreachable, code);
}

/** Asks once. -1: ask again; else the exit status. */
static int ask_at(struct status *s, const char *path)
{
    struct walbus_reply *reply;
    enum walbus_result result =
        walbus_request(path, "status", NULL, 0, clock_ms_until(s->deadline_ns), &reply);

    if (result == WALBUS_NO_MEMORY)
        return cli_fail(COMMAND, "%s.", walbus_result_text(result));
    int status = result == WALBUS_OK ? on_answer(s, reply) : on_failure(s, result, reply);
    walbus_reply_free(reply);
    return status;
}

/** The same, where the router is now: with --wait its socket may still have to appear, also in front of another one's. */
static int ask_once(struct status *s)
{
    char *path;
    int rc = answer_place(s->cli, &path, s->unreachable);

    if (rc == 0) {
        int status = ask_at(s, path);
        free(path);
        return status;
    }
    if (rc == -EINVAL)
        return cli_usage(COMMAND, "%s", s->unreachable);
    if (rc != -ENOENT)
        return cli_fail(COMMAND, "%s.", strerror(-rc));
    return s->wait ? -1 : cli_unreachable(COMMAND, "%s", s->unreachable);
}

/** Asks until there is an answer to exit with. */
static int ask(struct status *s)
{
    for (;;) {
        int status = ask_once(s);

        if (status >= 0)
            return status;
        if (clock_ms_until(s->deadline_ns) == 0)
            return out_of_time(s);
        (void)poll(NULL, 0, MIN(clock_ms_until(s->deadline_ns), AGAIN_MS));
    }
}

static int status_run(struct cli *cli, void *state, int argc, char **argv)
{
    const struct status_options *o = state;
    struct status s = {.cli = cli, .wait = o->wait_us > 0};

    if (argc > 0)
        return cli_usage(COMMAND, "There is nothing to be done with '%s'.", argv[0]);
    s.deadline_ns = clock_monotonic_ns() + (s.wait ? o->wait_us * 1000 : ANSWER_NS);
    int status = ask(&s);
    buf_deinit(&s.answer);
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
    .common = cli_common_router,
    .run = status_run,
    .state_size = sizeof(struct status_options),
    .lists = true,
};
