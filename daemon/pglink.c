/* SPDX-License-Identifier: PostgreSQL */
#include "pglink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void pglink_on_poll(uv_poll_t *poll, int status, int events);

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void close_handle(void *handle)
{
    if (handle)
        uv_close(handle, free_handle);
}

void pglink_init(struct pglink *l, uv_loop_t *loop, const struct pglink_ops *ops, void *owner)
{
    *l = (struct pglink){.loop = loop, .ops = ops, .owner = owner};
}

void pglink_deinit(struct pglink *l)
{
    pglink_close(l);
    buf_deinit(&l->error);
    buf_deinit(&l->address);
}

void pglink_note_error(struct pglink *l, const PGresult *result)
{
    const char *state = pg_sqlstate(result);

    buf_clear(&l->error);
    pg_put_error(&l->error, l->conn, result);
    /* a refused connection's words are verbose for the sake of the SQLSTATE: less the place in the source */
    const char *place = strstr(buf_str(&l->error), "; LOCATION:");
    if (place)
        l->error.size = (size_t)(place - (const char *)l->error.data);
    if (*state)
        snprintf(l->sqlstate, sizeof l->sqlstate, "%s", state);
    else
        (void)pg_sqlstate_of_message(PQerrorMessage(l->conn), l->sqlstate);
}

void pglink_close(struct pglink *l)
{
    close_handle(l->poll);
    close_handle(l->timer);
    l->poll = NULL;
    l->timer = NULL;
    PQfinish(l->conn);
    l->conn = NULL;
    l->events = 0;
    l->reading = false;
    l->writing = false;
    l->state = PGLINK_CLOSED;
}

static void pglink_fail(struct pglink *l)
{
    pglink_close(l);
    l->ops->failed(l->owner);
}

/* Watches the present socket for `events`; a new handle when libpq may have changed the socket. */
static int pglink_watch(struct pglink *l, int events, bool anew)
{
    if (anew) {
        close_handle(l->poll);
        l->poll = NULL;
        l->events = 0;
    }
    if (!l->poll) {
        uv_poll_t *poll = malloc(sizeof *poll);

        if (!poll)
            return -ENOMEM;
        if (uv_poll_init(l->loop, poll, PQsocket(l->conn)) < 0) {
            free(poll);
            return -EBADF;
        }
        poll->data = l;
        l->poll = poll;
    }
    if (events == l->events)
        return 0;
    l->events = events;
    return events ? uv_poll_start(l->poll, events, pglink_on_poll) : uv_poll_stop(l->poll);
}

static void pglink_update(struct pglink *l)
{
    (void)pglink_watch(l, (l->reading ? UV_READABLE : 0) | (l->writing ? UV_WRITABLE : 0), false);
}

static void pglink_on_timeout(uv_timer_t *timer);

/* The dsn's connect_timeout, wherever libpq found it. Its 0 is "for ever", which a loop cannot wait. */
static uint64_t connect_ms(PGconn *conn)
{
    PQconninfoOption *options = PQconninfo(conn);
    long seconds = 0;

    for (PQconninfoOption *o = options; o && o->keyword; o++)
        if (strcmp(o->keyword, "connect_timeout") == 0 && o->val)
            seconds = strtol(o->val, NULL, 10);
    PQconninfoFree(options);
    return seconds > 0 && seconds <= INT32_MAX ? (uint64_t)seconds * 1000 : PGLINK_CONNECT_MS;
}

/* The time begins anew with each address. */
static void pglink_note_address(struct pglink *l)
{
    struct buf now = BUF_INIT;

    buf_printf(&now, "%s %s %s", PQhost(l->conn), PQhostaddr(l->conn), PQport(l->conn));
    if (!bytes_equal(buf_bytes(&now), buf_bytes(&l->address)))
        (void)uv_timer_start(l->timer, pglink_on_timeout, l->connect_ms, 0);
    buf_deinit(&l->address);
    l->address = now;
}

/* libpq failed: its words, and that a host was passed over, which it calls a reset. */
static void pglink_fail_connecting(struct pglink *l)
{
    pglink_note_error(l, NULL);
    if (l->passed_over)
        buf_printf(&l->error, "; a host that did not answer within %u s was passed over",
                   (unsigned)(l->connect_ms / 1000));
    pglink_fail(l);
}

static void pglink_step(struct pglink *l, PostgresPollingStatusType step)
{
    int events = step == PGRES_POLLING_WRITING ? UV_WRITABLE : UV_READABLE;

    switch (step) {
    case PGRES_POLLING_OK:
        close_handle(l->timer);
        l->timer = NULL;
        PQsetErrorVerbosity(l->conn, PQERRORS_DEFAULT);
        if (PQsetnonblocking(l->conn, 1) < 0 || pglink_watch(l, UV_READABLE, true) < 0) {
            pglink_note_error(l, NULL);
            pglink_fail(l);
            return;
        }
        l->state = PGLINK_OPEN;
        l->reading = true;
        l->ops->opened(l->owner);
        return;
    case PGRES_POLLING_READING:
    case PGRES_POLLING_WRITING:
        pglink_note_address(l);
        if (pglink_watch(l, events, true) == 0)
            return;
        buf_clear(&l->error);
        buf_append_str(&l->error, "cannot watch the connection's socket");
        pglink_fail(l);
        return;
    default:
        pglink_fail_connecting(l);
    }
}

static void pglink_on_timeout(uv_timer_t *timer)
{
    struct pglink *l = timer->data;

    /* Not even TCP's handshake came about. Ended here, it is an error of the socket like any other, behind
     * which libpq tries the next address. */
    if (PQstatus(l->conn) == CONNECTION_STARTED && shutdown(PQsocket(l->conn), SHUT_RDWR) == 0) {
        l->passed_over = true;
        (void)uv_timer_start(timer, pglink_on_timeout, l->connect_ms, 0);
        pglink_step(l, PQconnectPoll(l->conn));
        return;
    }
    buf_clear(&l->error);
    l->sqlstate[0] = 0;
    buf_printf(&l->error, "no connection within %u s", (unsigned)(l->connect_ms / 1000));
    pglink_fail(l);
}

static void pglink_on_poll(uv_poll_t *poll, int status, int events)
{
    struct pglink *l = poll->data;

    if (l->state == PGLINK_CONNECTING) {
        pglink_step(l, PQconnectPoll(l->conn));
        return;
    }
    /* an error, of the poll itself or in writing, shows when libpq reads */
    bool broken = status < 0 || ((events & UV_WRITABLE) && l->writing && pglink_flush(l) < 0);
    if (broken || (events & UV_READABLE))
        l->ops->readable(l->owner);
}

/* The first step, from the loop rather than from within pglink_connect. */
static void pglink_on_start(uv_timer_t *timer)
{
    struct pglink *l = timer->data;

    if (PQstatus(l->conn) == CONNECTION_BAD) {
        pglink_note_error(l, NULL);
        pglink_fail(l);
        return;
    }
    pglink_step(l, PGRES_POLLING_WRITING);
}

static void pglink_on_notice(void *arg, const PGresult *result)
{
    struct pglink *l = arg;
    const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

    /* an idle connection learns of its end through a notice; plain warnings are no errors */
    if (severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        pglink_note_error(l, result);
}

void pglink_connect(struct pglink *l, const struct connect_options *options)
{
    struct connect_params params;

    pglink_close(l);
    buf_clear(&l->error);
    l->sqlstate[0] = 0;
    connect_params(options, &params);
    l->timer = malloc(sizeof *l->timer);
    l->conn = PQconnectStartParams(params.keywords, params.values, 1);
    if (!l->timer || !l->conn)
        abort(); /* not even a few hundred bytes are left: nothing could be reported either */
    PQsetErrorVerbosity(l->conn, PQERRORS_VERBOSE); /* so that a refusal's text has its SQLSTATE */
    (void)PQsetNoticeReceiver(l->conn, pglink_on_notice, l);
    snprintf(l->user, sizeof l->user, "%s", PQuser(l->conn) ? PQuser(l->conn) : "");
    l->connect_ms = connect_ms(l->conn);
    l->passed_over = false;
    buf_clear(&l->address);
    l->state = PGLINK_CONNECTING;
    (void)uv_timer_init(l->loop, l->timer);
    l->timer->data = l;
    (void)uv_timer_start(l->timer, pglink_on_start, 0, 0);
}

void pglink_read(struct pglink *l, bool on)
{
    if (l->state != PGLINK_OPEN || l->reading == on)
        return;
    l->reading = on;
    pglink_update(l);
}

int pglink_flush(struct pglink *l)
{
    int r = PQflush(l->conn);

    if (r < 0) {
        pglink_note_error(l, NULL);
        return -EPIPE;
    }
    if (l->writing != (r > 0)) {
        l->writing = r > 0;
        pglink_update(l);
    }
    return 0;
}
