/* SPDX-License-Identifier: PostgreSQL */
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "session_frames.h"

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
    session_set(s, SESSION_CLOSED);
    session_drop_subscribe(s);
    s->ops->closed(s->owner, s);
    outbox_deinit(&s->outbox); /* batches go at once, not when libuv has let go */
    uv_close((uv_handle_t *)&s->poll, session_on_handle_closed);
    uv_close((uv_handle_t *)&s->timer, session_on_handle_closed);
    s->fd = fd_close(s->fd);
}

void session_put_acked(struct session *s)
{
    struct control_ack acked = {.position = s->acked};

    if (!s->acked_due || outbox_waiting_control(&s->outbox) > SESSION_ANSWERS_MAX)
        return;
    control_ack_encode(&acked, true, outbox_control(&s->outbox));
    s->acked_due = false;
}

void session_flush(struct session *s)
{
    if (s->state == SESSION_CLOSED)
        return;
    s->must_flush = false;
    session_put_acked(s);
    if (s->outbox.control.failed) { /* an answer is lost, the client would wait for it for ever */
        session_close(s, "no memory");
        return;
    }
    uint64_t before = s->outbox.written_data;
    int r = outbox_write(&s->outbox, s->fd);
    if (s->outbox.written_data != before) {
        /* this turn may have begun long ago, and it is judged by this time */
        uv_update_time(s->poll.loop);
        s->took_at = uv_now(s->poll.loop);
        s->behind = outbox_behind(&s->outbox);
    }
    if (r < 0) {
        session_close(s, strerror(-r));
        return;
    }
    if (r == 0 && s->state == SESSION_LEAVING && !s->lingers) {
        session_close(s, "told a fatal error");
        return;
    }
    if (r == 0 && s->half_closed) {
        session_close(s, "the client closed it");
        return;
    }
    /* a frame that this turn left alone: the next is asked for by a socket that can be written */
    bool more = !session_is_choked(s) && session_frame_waits(s);
    session_watch(s, (session_is_choked(s) || s->half_closed ? 0 : UV_READABLE) |
                         (r || more ? UV_WRITABLE : 0));
    s->ops->wrote(s->owner);
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

/* One read. 1: there may be more; 0: not now; the session may be closed afterwards. */
static int session_read(struct session *s)
{
    size_t want = session_input_wanted(s);
    size_t cap = MAX(s->in_size + want, (size_t)INPUT_START);

    if (cap > INPUT_START && s->in_cap < cap && !s->ops->room(s->owner, s, cap - s->in_cap)) {
        session_error(s, CONTROL_ERROR_LIMIT,
                      "the router holds too many unfinished frames of all clients", true);
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

        if (told && outbox_waiting_control(&s->outbox))
            s->half_closed = true; /* it reads what is left for it: session_flush goes on */
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
    return s->state != SESSION_CLOSED;
}

size_t session_held(const struct session *s)
{
    return (s->in_cap > INPUT_START ? s->in_cap : 0) + s->outbox.control.cap + s->filters_cost;
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

    if (status < 0) {
        session_close(s, uv_strerror(status));
        return;
    }
    s->requests = 0;
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
                            void *owner, struct logger *log)
{
    struct session *s = calloc(1, sizeof *s);
    struct ucred peer = {0};
    socklen_t size = sizeof peer;

    if (!s || uv_poll_init(loop, &s->poll, fd) < 0) {
        free(s);
        (void)fd_close(fd);
        return NULL;
    }
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    s->ops = ops;
    s->owner = owner;
    s->log = log;
    s->id = id;
    s->pid = peer.pid;
    s->uid = peer.uid;
    s->fd = fd;
    s->handles = 2;
    s->poll.data = s;
    s->timer.data = s;
    (void)uv_timer_init(loop, &s->timer);
    (void)uv_timer_start(&s->timer, session_on_timer, SESSION_HELLO_MS, SESSION_READY_MS);
    session_watch(s, UV_READABLE);
    return s;
}

void session_subscribed(struct session *s, const struct control_subscribed *subscribed)
{
    session_set(s, SESSION_ACTIVE);
    s->told = subscribed->position;
    s->acked = subscribed->position;
    s->resume = subscribed->position.index != POSITION_INDEX_NONTRANSACTIONAL &&
                subscribed->position.index != POSITION_INDEX_END;
    session_drop_subscribe(s);
    s->took_at = uv_now(s->poll.loop);
    control_subscribed_encode(subscribed, outbox_control(&s->outbox));
    s->must_flush = true;
}

void session_reply(struct session *s, const struct control_reply *reply)
{
    control_reply_encode(reply, outbox_control(&s->outbox));
    s->must_flush = true;
}

void session_error(struct session *s, const char *code, const char *text, bool fatal)
{
    if (s->state == SESSION_CLOSED || s->state == SESSION_LEAVING)
        return;
    struct control_error error = {
        .code = bytes_of_text(code), .text = bytes_of_text(text), .fatal = fatal};
    log_line(s->log, fatal ? LOG_INFO : LOG_DEBUG, "session.error",
             fatal ? "A client is told an error and let go." : "A client is told an error.",
             LOG_U64("session", s->id), LOG_I64("pid", s->pid), LOG_I64("uid", s->uid),
             LOG_STR("code", code), LOG_STR("text", text));
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
    outbox_drop(&s->outbox);
    (void)uv_timer_start(&s->timer, session_on_timer, SESSION_LEAVE_MS, 0);
    session_watch(s, UV_READABLE | UV_WRITABLE);
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

/* ---- delivery ---- */

/* What could not be queued for want of memory would be a silent gap: the session ends instead. */
static bool queued(struct session *s, int r)
{
    if (r == 0) {
        s->must_flush = true;
        return true;
    }
    session_error(s, CONTROL_ERROR_TOO_SLOW,
                  "the router has no memory for what this subscriber has not read", true);
    return false;
}

bool session_send_batch(struct session *s, struct batch *batch)
{
    if (s->state != SESSION_ACTIVE || !s->member.everything || s->resume ||
        position_compare(s->told, batch->first) >= 0 || (batch->starts_inside && !s->inside))
        return false;
    if (!queued(s, outbox_add(&s->outbox, batch, 0, batch_size(batch))))
        return true;
    s->told = batch->last;
    s->inside = batch->ends_inside;
    for (size_t i = 0; i < batch->n_entries; i++)
        s->messages += batch->entries[i].type == FRAME_MESSAGE;
    return true;
}

/* The BEGIN of the transaction that is entered: from this batch, or the copy it carries. */
static bool send_begin(struct session *s, struct batch *batch, const struct batch_entry *begin)
{
    uint8_t frame[BATCH_BEGIN_SIZE];
    int r;

    if (begin && !s->resume) {
        r = outbox_add(&s->outbox, batch, begin->offset, begin->size);
    } else {
        memcpy(frame, begin ? batch->head + begin->offset : batch->begin, sizeof frame);
        if (s->resume)
            frame[5] |= FRAME_FLAG_RESUMED; /* the header's flags */
        r = outbox_add_begin(&s->outbox, batch, frame);
    }
    if (!queued(s, r))
        return false;
    s->inside = true;
    s->resume = false;
    return true;
}

static bool is_in_transaction_of(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

void session_send_gap(struct session *s, struct batch_pool *pool, struct position to,
                      const char *reason)
{
    if (s->state != SESSION_ACTIVE || position_compare(to, s->told) <= 0)
        return;
    struct frame_gap gap = {
        .from = position_next(s->told),
        .to = to,
        .messages = UINT64_MAX,
        .bytes = UINT64_MAX,
        .reason = bytes_of_text(reason),
    };
    struct batch *batch = batch_new(pool);
    int r = batch ? batch_add_gap(batch, &gap) : -ENOMEM;

    if (r == 0) {
        batch_seal(batch);
        r = outbox_add(&s->outbox, batch, 0, batch_size(batch));
        batch_settle(batch);
    }
    (void)batch_unref(batch);
    if (!queued(s, r))
        return;
    s->told = to;
    s->inside = false;
    s->resume = false;
}

void session_interrupt(struct session *s, struct batch_pool *pool)
{
    if (s->inside || s->resume)
        session_send_gap(s, pool,
                         (struct position){s->told.timeline, s->told.lsn, POSITION_INDEX_END},
                         "the server never finished this transaction");
}

/* Something newer than the rest of the transaction inside which the session resumed: that will not
 * come any more. */
static void notice_interruption(struct session *s, const struct batch *batch,
                                const struct batch_entry *entry)
{
    if (s->resume && !is_in_transaction_of(s->told, entry->position))
        session_interrupt(s, batch->pool);
}

bool session_send_message(struct session *s, struct batch *batch, const struct batch_entry *entry,
                          const struct batch_entry *begin)
{
    bool came_inside = false;

    if (s->state != SESSION_ACTIVE || position_compare(entry->position, s->told) <= 0)
        return false;
    notice_interruption(s, batch, entry);
    if (entry->position.index != POSITION_INDEX_NONTRANSACTIONAL && !s->inside) {
        if (!send_begin(s, batch, begin))
            return false;
        came_inside = true;
    }
    if (queued(s, outbox_add(&s->outbox, batch, entry->offset, entry->size))) {
        s->told = entry->position;
        s->messages++;
    }
    return came_inside;
}

void session_send_commit(struct session *s, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin)
{
    if (s->state != SESSION_ACTIVE || position_compare(entry->position, s->told) <= 0)
        return;
    notice_interruption(s, batch, entry);
    if (!s->inside && !(s->resume && send_begin(s, batch, begin)))
        return;
    if (s->state == SESSION_ACTIVE &&
        queued(s, outbox_add(&s->outbox, batch, entry->offset, entry->size))) {
        s->told = entry->position;
        s->inside = false;
    }
}

void session_send_progress(struct session *s, struct position position)
{
    uint8_t frame[FRAME_HEADER_SIZE + FRAME_PROGRESS_BODY];

    if (s->state != SESSION_ACTIVE || s->inside || s->resume || !outbox_is_empty(&s->outbox) ||
        position_compare(position, s->told) <= 0)
        return;
    buf_append(outbox_control(&s->outbox), frame, frame_progress_encode(frame, position));
    s->told = position;
    s->must_flush = true;
}
