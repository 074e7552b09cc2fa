/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "journal/reader.h"
#include "session_frames.h"
#include "session_read.h"

/** First size of the read buffer; it grows to the frame at hand and falls back when empty. */
#define INPUT_START 4096u
/** Reads of one turn: what a client may occupy the loop with. */
#define READS_A_TURN 4

static const char *const state_names[] = {
    [SESSION_GREETING] = "greeting", [SESSION_READY] = "ready",     [SESSION_WAITING] = "waiting",
    [SESSION_ACTIVE] = "active",     [SESSION_LEAVING] = "leaving", [SESSION_CLOSED] = "closed",
};

const char *session_state_name(enum session_state state)
{
    return state_names[state];
}

void session_set(struct session *s, enum session_state state)
{
    log_line(s->log, LOG_DEBUG, "session.state", "A session changes its state.",
             LOG_U64("session", s->id), LOG_STR("from", session_state_name(s->state)),
             LOG_STR("to", session_state_name(state)));
    if (state == SESSION_LEAVING || state == SESSION_CLOSED)
        s->sent = session_sent(s);
    s->state = state;
}

static void session_on_poll(uv_poll_t *poll, int status, int events);

static void session_watch(struct session *s, int events)
{
    if (s->state == SESSION_CLOSED || events == s->events)
        return;
    s->events = events;
    (void)uv_poll_start(&s->poll, events, session_on_poll);
}

static void session_on_handle_closed(uv_handle_t *handle)
{
    struct session *s = handle->data;

    if (--s->handles)
        return;
    outbox_deinit(&s->outbox);
    free(s->in);
    free(s);
}

static void session_drop_subscribe(struct session *s)
{
    control_subscribe_deinit(&s->subscribe);
    free(s->subscribe_body);
    s->subscribe_body = NULL;
}

void session_close(struct session *s, const char *reason)
{
    if (s->state == SESSION_CLOSED)
        return;
    log_line(s->log, LOG_DEBUG, "session.closed", "A client's connection was closed.",
             LOG_U64("session", s->id), LOG_I64("pid", s->pid), LOG_STR("reason", reason));
    s->was_live = session_is_live(s) || (s->lingers && !s->read);
    session_set(s, SESSION_CLOSED);
    session_drop_subscribe(s);
    session_read_end(s);
    s->ops->closed(s->owner, s);
    outbox_deinit(&s->outbox); /* batches go at once, not when libuv has let go */
    s->account = account_unref(s->account);
    if (s->reads)
        session_reads_go(s->reads);
    uv_close((uv_handle_t *)&s->poll, session_on_handle_closed);
    uv_close((uv_handle_t *)&s->timer, session_on_handle_closed);
    s->fd = fd_close(s->fd);
}

void session_put_acked(struct session *s)
{
    struct control_ack acked = {.position = s->confirmed};

    if (!s->acked_due || outbox_waiting_control(&s->outbox) > SESSION_ANSWERS_MAX)
        return;
    control_ack_encode(&acked, true, outbox_control(&s->outbox));
    s->acked_due = false;
}

/* One go of writing: what is left (enum outbox_left), or a negative errno. */
static int session_write(struct session *s)
{
    uint64_t before = s->outbox.written_data;
    int r = outbox_write(&s->outbox, s->fd);

    if (s->outbox.written_data != before) {
        uv_update_time(s->poll.loop); /* this turn may have begun long ago */
        s->took_at = uv_now(s->poll.loop);
    }
    return r;
}

static size_t session_read(struct session *s);

/* Its socket is broken, and its client most likely gone. What that said before is still heard: what it has acknowledged must
 * not come again for want of a few reads. Requests are not (LEAVING), since nobody waits for their answers. As much is
 * read as is there now: one that has only shut down its reading side could go on for ever. */
static void session_hear_out(struct session *s, const char *reason)
{
    int there = 0;

    if (s->state == SESSION_ACTIVE) {
        s->lingers = true;
        session_set(s, SESSION_LEAVING);
    }
    if (s->lingers && ioctl(s->fd, FIONREAD, &there) == 0) {
        s->requests = 0; /* they cost nothing any more */
        if (s->in_size)
            session_handle_input(s);
        for (size_t left = (size_t)there, got; left && s->lingers && (got = session_read(s)); left -= MIN(left, got))
            ;
    }
    session_close(s, reason);
}

void session_flush(struct session *s)
{
    int r;

    if (s->state == SESSION_CLOSED)
        return;
    do {
        s->must_flush = false;
        session_put_acked(s);
        if (s->outbox.control
                .failed) { /* an answer is lost, the client would wait for it for ever */
            session_close(s, "no memory");
            return;
        }
        r = session_write(s);
        if (r < 0) {
            session_hear_out(s, strerror(-r));
            return;
        }
    } while (session_read_on(s));
    if (r == OUTBOX_NOTHING && s->state == SESSION_LEAVING && !s->lingers) {
        session_close(s, "told a fatal error");
        return;
    }
    if (r == OUTBOX_NOTHING && s->half_closed && !s->replies_due) {
        session_close(s, "the client closed it");
        return;
    }
    if (s->reads) /* what was written may have made room */
        session_reads_go(s->reads);
    /* a frame that this turn left alone: the next is asked for by a socket that can be written */
    bool more = !session_is_choked(s) && session_frame_waits(s);
    bool waits = r == OUTBOX_BLOCKED || more || s->blocked;
    session_watch(s, (session_is_choked(s) || s->half_closed ? 0 : UV_READABLE) |
                         (waits ? UV_WRITABLE : 0));
}

void session_block(struct session *s)
{
    s->blocked = true;
    session_watch(s, s->events | UV_WRITABLE);
}

static void session_on_timer(uv_timer_t *timer)
{
    struct session *s = timer->data;

    switch (s->state) {
    case SESSION_GREETING:
        session_error(s, CONTROL_ERROR_TIMEOUT, "no HELLO within 10 s", true);
        break;
    case SESSION_READY:
        session_error(s, CONTROL_ERROR_TIMEOUT, "neither SUBSCRIBE nor REQUEST within 60 s", true);
        break;
    case SESSION_LEAVING:
        session_close(s, "did not read the last error");
        return;
    case SESSION_WAITING:
    case SESSION_ACTIVE:
    case SESSION_CLOSED:
        return;
    }
    session_flush(s);
}

/* One read. So many bytes came, and there may be more; 0: not now; the session may be closed afterwards. */
static size_t session_read(struct session *s)
{
    size_t want = session_input_wanted(s);
    size_t cap = MAX(s->in_size + want, (size_t)INPUT_START);

    const char *whose = cap > INPUT_START && s->in_cap < cap ? s->ops->room(s->owner, s, cap - s->in_cap) : NULL;
    if (whose) {
        char text[128];

        (void)snprintf(text, sizeof text, "the router holds too many unfinished frames of %s", whose);
        session_error(s, CONTROL_ERROR_LIMIT, text, true);
        return 0;
    }
    if (s->in_cap < cap) {
        uint8_t *in = realloc(s->in, cap);
        if (!in) {
            session_close(s, "no memory");
            return 0;
        }
        s->in = in;
        s->in_cap = cap;
    }
    ssize_t got = recv(s->fd, s->in + s->in_size, s->in_cap - s->in_size, MSG_DONTWAIT);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return 0;
        session_close(s, strerror(errno));
        return 0;
    }
    if (got == 0) {
        bool told = s->state == SESSION_READY || (s->state == SESSION_LEAVING && !s->lingers);

        if (told && (outbox_waiting_control(&s->outbox) || s->replies_due))
            s->half_closed =
                true; /* sends no more, but reads what is left for it; session_flush goes on */
        else
            session_close(s, "the client closed it");
        return 0;
    }
    s->in_size += (size_t)got;
    session_handle_input(s);
    if (s->state != SESSION_CLOSED && s->in_size == 0 && s->in_cap > INPUT_START) {
        free(s->in); /* a large frame is over */
        s->in = NULL;
        s->in_cap = 0;
    }
    return s->state != SESSION_CLOSED ? (size_t)got : 0;
}

size_t session_held(const struct session *s)
{
    return (s->in_cap > INPUT_START ? s->in_cap : 0) + s->outbox.control.cap + s->filters_cost +
           s->replies_room + session_read_held(s);
}

/* Nothing more of it is read in this turn. */
static bool session_rests(const struct session *s)
{
    return s->state == SESSION_CLOSED || session_is_choked(s) ||
           s->requests >= SESSION_REQUESTS_A_TURN;
}

static void session_on_poll(uv_poll_t *poll, int status, int events)
{
    struct session *s = poll->data;

    if (status < 0) { /* it has gone with something unread: EPOLLERR */
        session_hear_out(s, "the socket has failed");
        return;
    }
    s->requests = 0;
    if (events & UV_WRITABLE)
        s->blocked = false;
    /* Frames that were left alone in an earlier turn: nothing else would come back to them. */
    if (s->in_size)
        session_handle_input(s);
    if (events & UV_READABLE)
        for (int i = 0; i < READS_A_TURN && !session_rests(s) && session_read(s); i++)
            ;
    session_flush(s);
}

bool session_is_choked(const struct session *s)
{
    return s->state == SESSION_READY && outbox_waiting_control(&s->outbox) > SESSION_ANSWERS_MAX;
}

struct session *session_new(uv_loop_t *loop, int fd, uint64_t id, const struct session_ops *ops,
                            void *owner, struct session_reads *reads, struct logger *log)
{
    struct session *s = calloc(1, sizeof *s);
    struct ucred peer = {0};
    socklen_t size = sizeof peer;

    /* Who it is decides what it may: nobody without a name. */
    if (!s || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        uv_poll_init(loop, &s->poll, fd) < 0) {
        free(s);
        (void)fd_close(fd);
        return NULL;
    }
    s->ops = ops;
    s->owner = owner;
    s->log = log;
    s->id = id;
    s->pid = peer.pid;
    s->uid = peer.uid;
    s->gid = peer.gid;
    s->fd = fd;
    s->reads = reads;
    s->chunk = READER_CHUNK;
    s->handles = 2;
    s->poll.data = s;
    s->timer.data = s;
    (void)uv_timer_init(loop, &s->timer);
    (void)uv_timer_start(&s->timer, session_on_timer, SESSION_HELLO_MS, SESSION_READY_MS);
    session_watch(s, UV_READABLE);
    return s;
}

void session_charge_to(struct session *s, struct account *account)
{
    s->account = account;
    s->outbox.account = account;
}

void session_subscribed(struct session *s, const struct control_subscribed *subscribed)
{
    session_set(s, SESSION_ACTIVE);
    s->told = subscribed->position;
    s->acked = subscribed->position;
    s->confirmed = subscribed->position;
    s->resume = subscribed->position.index != POSITION_INDEX_NONTRANSACTIONAL &&
                subscribed->position.index != POSITION_INDEX_END;
    session_drop_subscribe(s);
    s->took_at = uv_now(s->poll.loop);
    control_subscribed_encode(subscribed, outbox_control(&s->outbox));
    s->must_flush = true;
    session_fall_behind(s);
}

void session_confirm(struct session *s, struct position position)
{
    if (s->state != SESSION_ACTIVE && !s->lingers)
        return;
    s->confirmed = position;
    s->acked_due = true;
    s->must_flush = true;
}

void session_reply(struct session *s, const struct control_reply *reply)
{
    control_reply_encode(reply, outbox_control(&s->outbox));
    s->must_flush = true;
}

static void log_error(const struct session *s, const char *code, const char *text, bool fatal)
{
    log_line(s->log, fatal ? LOG_INFO : LOG_DEBUG, "session.error",
             fatal ? "A client is told an error and let go." : "A client is told an error.",
             LOG_U64("session", s->id), LOG_I64("pid", s->pid), LOG_I64("uid", s->uid),
             LOG_STR("code", code), LOG_STR("text", text));
}

static void tell_error(struct session *s, const char *code, const char *text, bool fatal)
{
    if (s->state == SESSION_CLOSED || s->state == SESSION_LEAVING)
        return;
    struct control_error error = {
        .code = bytes_of_text(code), .text = bytes_of_text(text), .fatal = fatal};
    control_error_encode(&error, outbox_control(&s->outbox));
    s->must_flush = true;
    if (!fatal) {
        if (s->state == SESSION_WAITING) { /* that was the answer to its SUBSCRIBE */
            session_set(s, SESSION_READY);
            session_drop_subscribe(s);
            s->filters_cost = 0;
            uv_timer_again(&s->timer);
        }
        return;
    }
    session_set(s, SESSION_LEAVING);
    s->messages -= outbox_drop(&s->outbox);
    (void)uv_timer_start(&s->timer, session_on_timer, SESSION_LEAVE_MS, 0);
    session_watch(s, UV_READABLE | UV_WRITABLE);
}

void session_error(struct session *s, const char *code, const char *text, bool fatal)
{
    if (s->state == SESSION_CLOSED || s->state == SESSION_LEAVING)
        return;
    if (fatal && s->ops->failed)
        s->ops->failed(s->owner, s, code, text);
    else
        log_error(s, code, text, fatal);
    tell_error(s, code, text, fatal);
}

void session_refuse(struct session *s, const char *code, const char *text, bool fatal)
{
    tell_error(s, code, text, fatal);
}

void session_stop(struct session *s, struct position position, const char *code, const char *text)
{
    session_send_progress(s, position);
    s->lingers = s->state == SESSION_ACTIVE;
    session_error(s, code, text, true);
}

void session_request_error(struct session *s, uint64_t id, const char *code, const char *text)
{
    struct control_error error = {
        .code = bytes_of_text(code), .text = bytes_of_text(text), .has_id = true, .id = id};

    control_error_encode(&error, outbox_control(&s->outbox));
    s->must_flush = true;
}
