/* SPDX-License-Identifier: PostgreSQL */
#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "journal/fault.h"

static void stream_pass(struct stream *s);

/* `why`: what was wrong with what the server sent; NULL: the link's error says it. */
static void stream_fail(struct stream *s, const char *why)
{
    s->undecodable = why;
    if (why) {
        buf_clear(&s->link->error);
        buf_append_str(&s->link->error, why);
        s->link->sqlstate[0] = 0;
    }
    stream_stop(s);
    s->ops->ended(s->owner);
}

/* ---- feedback ---- */

static void stream_on_report(uv_timer_t *timer);

static int stream_send_report(struct stream *s)
{
    uint8_t report[FEEDBACK_SIZE];

    FAULT_POINT("feedback");
    feedback_report(&s->feedback, clock_monotonic_ns(), clock_realtime_us(), report);
    if (PQputCopyData(s->link->conn, (const char *)report, sizeof report) <= 0) {
        pglink_note_error(s->link, NULL);
        return -EPIPE;
    }
    int r = pglink_flush(s->link);
    FAULT_POINT("feedback-sent");
    return r;
}

static bool stream_may_renew(const struct stream *s)
{
    return s->renew && !s->held && !s->builder.inside && !builder_has_news(&s->builder) &&
           s->feedback.mark == s->feedback.reported &&
           clock_monotonic_ns() - s->last_readable >= STREAM_RENEW_IDLE_NS;
}

/* The timer fires in `wait` ns, or before. */
static void stream_report_in(struct stream *s, uint64_t now, uint64_t wait)
{
    if (s->report_at && now + wait >= s->report_at && now <= s->report_at)
        return;
    s->report_at = now + wait;
    uv_update_time(s->report.loop);
    (void)uv_timer_start(&s->report, stream_on_report, wait / 1000000 + 1, 0);
}

/* Reports if it is time, else sees to it that the timer fires then. */
static void stream_report(struct stream *s)
{
    uint64_t now = clock_monotonic_ns(), wait;

    if (!s->running)
        return;
    if (feedback_is_stuck(&s->feedback)) {
        buf_clear(&s->link->error);
        buf_append_str(&s->link->error, "the server keeps asking for a position that cannot be "
                                        "acknowledged: it is probably being shut down");
        s->link->sqlstate[0] = 0;
        stream_fail(s, NULL);
        return;
    }
    if (feedback_is_due(&s->feedback, now, &wait)) {
        if (stream_send_report(s) < 0) {
            stream_fail(s, NULL);
            return;
        }
        (void)feedback_is_due(&s->feedback, now, &wait);
    }
    if (s->renew) /* come back to see whether it is idle */
        wait = MIN(wait, STREAM_RENEW_IDLE_NS);
    stream_report_in(s, now, wait);
}

static void stream_on_report(uv_timer_t *timer)
{
    struct stream *s = timer->data;

    s->report_at = 0;
    if (stream_may_renew(s)) {
        stream_finish(s);
        s->ops->renew(s->owner);
        return;
    }
    stream_report(s);
}

void stream_advance(struct stream *s, uint64_t lsn)
{
    uint64_t now = clock_monotonic_ns(), wait;

    if (!s->running)
        return;
    feedback_advance(&s->feedback, lsn);
    /* The server may be silent from here on. It is told by the timer: who calls this may be in the middle of something. */
    if (s->feedback.mark != s->feedback.reported) {
        (void)feedback_is_due(&s->feedback, now, &wait);
        stream_report_in(s, now, wait);
    }
}

/* ---- handing on ---- */

void stream_hand_on(struct stream *s)
{
    struct batch *batch;

    s->last_handed = clock_monotonic_ns();
    while ((batch = builder_take(&s->builder)))
        s->ops->batch(s->owner, batch);
}

static void stream_pause(struct stream *s)
{
    const struct itimerspec pause = {.it_value = {0, STREAM_PAUSE_NS}};

    s->pausing = true;
    pglink_read(s->link, false);
    (void)timerfd_settime(s->pause_fd, 0, &pause, NULL);
}

static void stream_on_pause(uv_poll_t *poll, int status, int events)
{
    struct stream *s = poll->data;
    uint64_t expired;

    (void)status;
    (void)events;
    if (read(s->pause_fd, &expired, sizeof expired) < 0 || !s->pausing)
        return;
    s->pausing = false;
    stream_pass(s);
}

static void stream_on_idle(uv_idle_t *idle)
{
    stream_pass(idle->data);
}

/* The socket was found empty after `n` messages. */
static void stream_dry(struct stream *s, unsigned n)
{
    uint64_t now = clock_monotonic_ns();
    bool loaded = n && now - s->last_data < STREAM_HAND_ON_NS;

    if (n)
        s->last_data = now;
    if (builder_has_news(&s->builder) && (!n || now - s->last_handed >= STREAM_HAND_ON_NS ||
                               (s->feedback.asked && !s->builder.open)))
        stream_hand_on(s);
    if (!s->running || s->held)
        return;
    if (loaded || builder_has_news(&s->builder)) {
        stream_pause(s);
        return;
    }
    pglink_read(s->link, true);
}

/* ---- reading ---- */

static int stream_pgoutput(struct stream *s, struct bytes payload, void **owner,
                           char why[DECODE_WHY_SIZE])
{
    struct pgoutput m;
    int r = decode_pgoutput(&s->builder.decoder, payload, &m, why);

    if (r < 0)
        return r;
    if (m.type == PGOUTPUT_MESSAGE)
        s->proven = true;
    r = builder_add(&s->builder, &m, owner, why);
    if (r == BUILDER_HEARTBEAT)
        s->ops->heartbeat(s->owner, m.message.content);
    else if (m.type == PGOUTPUT_COMMIT && r >= 0)
        s->ops->committed(s->owner);
    return r < 0 ? r : 0;
}

/* One CopyData; `*owner` is its memory and is set to NULL when a batch took it over. */
static int stream_copy(struct stream *s, struct bytes in, void **owner, char why[DECODE_WHY_SIZE])
{
    struct copy_frame frame;
    int r = decode_copy(in, &frame, why);

    if (r < 0)
        return r;
    if (frame.type == COPY_DATA)
        return stream_pgoutput(s, frame.payload, owner, why);
    /* a walsender sends everything before a keepalive's WAL end ahead of it */
    if (s->proven)
        builder_keepalive(&s->builder, frame.wal_end);
    if (frame.reply_requested)
        feedback_asked(&s->feedback, frame.wal_end);
    return 0;
}

/* The copy has ended: the reason is in the results that follow, as far as they are here already. */
static void stream_end_of_copy(struct stream *s)
{
    buf_clear(&s->link->error);
    s->link->sqlstate[0] = 0;
    while (!PQisBusy(s->link->conn)) {
        PGresult *result = PQgetResult(s->link->conn);
        ExecStatusType status = PQresultStatus(result);

        if ((status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE) && result &&
            s->link->error.size == 0)
            pglink_note_error(s->link, result);
        PQclear(result);
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            break; /* nothing more, an error, or a copy state, which libpq would give for ever */
    }
    if (s->link->error.size == 0)
        buf_append_str(&s->link->error, "the server ended the stream");
    stream_fail(s, NULL);
}

/* 1: a message was taken; 0: none is whole; -1: the stream was ended. */
static int stream_take(struct stream *s, size_t *size)
{
    char why[DECODE_WHY_SIZE];
    char *data = NULL;
    int n = PQgetCopyData(s->link->conn, &data, 1);

    if (n == 0)
        return 0;
    if (n < -1) { /* no memory for the message, or a broken connection */
        pglink_note_error(s->link, NULL);
        stream_fail(s, NULL);
        return -1;
    }
    if (n < 0) {
        stream_end_of_copy(s);
        return -1;
    }
    void *owner = data;
    int r = stream_copy(s, (struct bytes){(const uint8_t *)data, (size_t)n}, &owner, why);
    if (owner)
        PQfreemem(owner);
    if (r == -ENOMEM) {
        buf_clear(&s->link->error);
        buf_append_str(&s->link->error, "no memory for a batch");
        s->link->sqlstate[0] = 0;
        stream_fail(s, NULL);
        return -1;
    }
    if (r < 0) {
        stream_fail(s, why);
        return -1;
    }
    if (n > (int)STREAM_RENEW_SIZE)
        s->renew = true;
    *size += (size_t)n;
    if (builder_is_full(&s->builder))
        stream_hand_on(s);
    return s->running ? 1 : -1;
}

static void stream_pass(struct stream *s)
{
    size_t size = 0;
    unsigned n = 0;
    bool consumed = false;

    builder_set_time(&s->builder, clock_realtime_us());
    s->last_readable = clock_monotonic_ns();
    while (size < STREAM_PASS_BYTES && !s->held) {
        int r = stream_take(s, &size);

        if (r < 0)
            return;
        if (r > 0) {
            n++;
            consumed = false;
            continue;
        }
        if (consumed)
            break;
        if (!PQconsumeInput(s->link->conn)) {
            pglink_note_error(s->link, NULL);
            stream_fail(s, NULL);
            return;
        }
        consumed = true;
    }
    if (s->held) {
        stream_hand_on(s); /* who waits for it must not wait for what is not read */
        if (!s->running)
            return;
        (void)uv_idle_stop(&s->idle);
        pglink_read(s->link, false);
    } else if (size >= STREAM_PASS_BYTES) {
        s->last_data = clock_monotonic_ns();
        (void)uv_idle_start(&s->idle, stream_on_idle);
    } else {
        (void)uv_idle_stop(&s->idle);
        stream_dry(s, n);
    }
    stream_report(s);
}

void stream_hold(struct stream *s, bool on)
{
    if (s->held == on)
        return;
    s->held = on;
    if (!s->running || s->pausing)
        return; /* the pass behind the pause sees it */
    if (on)
        pglink_read(s->link, false);
    else
        (void)uv_idle_start(&s->idle, stream_on_idle); /* not from within: the owner is routing */
}

void stream_readable(struct stream *s)
{
    if (!s->running)
        return;
    if (!s->pausing)
        stream_pass(s);
}

/* ---- life ---- */

int stream_init(struct stream *s, uv_loop_t *loop, struct pglink *link, struct batch_pool *pool,
                const struct stream_ops *ops, void *owner)
{
    *s = (struct stream){.ops = ops, .owner = owner, .link = link};
    builder_init(&s->builder, pool);
    s->pause_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (s->pause_fd < 0)
        return -errno;
    int r = uv_poll_init(loop, &s->pause_poll, s->pause_fd);
    if (r < 0) {
        s->pause_fd = fd_close(s->pause_fd);
        return r;
    }
    (void)uv_idle_init(loop, &s->idle);
    (void)uv_timer_init(loop, &s->report);
    s->pause_poll.data = s;
    s->idle.data = s;
    s->report.data = s;
    return 0;
}

static void stream_on_pause_closed(uv_handle_t *handle)
{
    struct stream *s = handle->data;

    s->pause_fd = fd_close(s->pause_fd);
}

void stream_deinit(struct stream *s)
{
    stream_stop(s);
    builder_deinit(&s->builder);
    uv_close((uv_handle_t *)&s->pause_poll, stream_on_pause_closed);
    uv_close((uv_handle_t *)&s->idle, NULL);
    uv_close((uv_handle_t *)&s->report, NULL);
}

void stream_start(struct stream *s, const struct timeline_history *history, struct position start,
                  int64_t wal_sender_timeout_ms)
{
    builder_connected(&s->builder, history, start);
    feedback_connected(&s->feedback, wal_sender_timeout_ms, clock_monotonic_ns());
    s->running = true;
    s->pausing = false;
    s->renew = false;
    s->undecodable = false;
    s->report_at = 0;
    (void)uv_poll_start(&s->pause_poll, UV_READABLE, stream_on_pause);
}

void stream_stop(struct stream *s)
{
    if (!s->running)
        return;
    stream_hand_on(s);
    s->running = false;
    s->pausing = false;
    (void)uv_poll_stop(&s->pause_poll);
    (void)uv_idle_stop(&s->idle);
    (void)uv_timer_stop(&s->report);
}

void stream_finish(struct stream *s)
{
    if (!s->running)
        return;
    stream_hand_on(s);
    (void)stream_send_report(s); /* the connection is about to be closed: a failure changes nothing */
    stream_stop(s);
}
