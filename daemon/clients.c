/* SPDX-License-Identifier: PostgreSQL */
#include "clients.h"

#include <string.h>
#include <unistd.h>

#include "deliver.h"
#include "requests.h"
#include "subscribe.h"

/* Looked up when somebody grows, which is seldom, so that nothing has to be kept in step. */
bool clients_have_room(const struct router *r, const struct session *asking, size_t bytes)
{
    size_t held = 0, most = ROUTER_CLIENTS_MAX;

    if (requests_is_privileged(asking))
        most += ROUTER_CLIENTS_RESERVED;
    for (const struct session *s = r->sessions; s; s = s->next)
        held += session_held(s);
    return held <= most && bytes <= most - held;
}

static bool on_room(void *owner, const struct session *asking, size_t bytes)
{
    return clients_have_room(owner, asking, bytes);
}

static void on_welcome(void *owner, struct control_welcome *welcome)
{
    struct router *r = owner;

    subscribe_learn_identity(r);
    welcome->identity = (struct bytes){(const uint8_t *)r->identity, strlen(r->identity)};
    welcome->timeline = r->source.continuity.timeline;
    welcome->position = r->progress;
}

static void on_subscribe(void *owner, struct session *s)
{
    if (s->old_era) { /* its position, if it has one, is of that: to override by it would lose what is before it here */
        session_error(s, CONTROL_ERROR_SOURCE, "the journal has begun a new era since WELCOME", true);
        return;
    }
    subscribe_answer(owner, s, false);
}

static void on_acked(void *owner, struct session *s, bool confirm)
{
    subscribe_acked(owner, s, confirm);
}

static void on_request(void *owner, struct session *s, const struct control_request *request)
{
    requests_take(owner, s, request);
}

static void on_closed(void *owner, struct session *s)
{
    struct router *r = owner;

    requests_forget(r, s);
    subscribe_release(r, s);
    if (s->subscribed) {
        route_remove(r->route, &s->member);
        s->subscribed = false;
        deliver_forget(r, s);
    }
    if (s->prev)
        s->prev->next = s->next;
    else
        r->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    r->n_sessions--;
    if (r->phase == ROUTER_LEAVING && r->n_sessions == 0)
        router_end(r);
}

static bool on_caught_up(void *owner, struct session *s)
{
    struct router *r = owner;

    if (s->durable)
        durable_read_on(r->durables, s->durable, s->told, true);
    return deliver_pending(r, s);
}

static bool on_was_read(void *owner, struct session *s, struct position told, const char *why)
{
    struct router *r = owner;

    if (!s->durable)
        return true;
    if (why)
        return durable_suspend(r->durables, s->durable, told, why);
    durable_read_on(r->durables, s->durable, told, false);
    return true;
}

static const struct session_ops session_ops = {
    .welcome = on_welcome,
    .subscribe = on_subscribe,
    .request = on_request,
    .room = on_room,
    .acked = on_acked,
    .caught_up = on_caught_up,
    .was_read = on_was_read,
    .closed = on_closed,
};

void clients_accept(struct router *r, int fd)
{
    struct session *s = session_new(r->loop, fd, ++r->next_session, &session_ops, r, &r->reads, r->log);

    if (!s)
        return;
    s->next = r->sessions;
    if (s->next)
        s->next->prev = s;
    r->sessions = s;
    r->n_sessions++;
    if (r->n_sessions > r->max_sessions ||
        (!requests_is_privileged(s) && r->n_sessions > r->max_sessions - ROUTER_SESSIONS_RESERVED)) {
        session_error(s, CONTROL_ERROR_LIMIT, "the router has its largest number of connections", true);
        session_flush(s);
    }
}

void clients_tick(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        session_send_progress(s, r->progress);
        subscribe_float(r, s);
        outbox_shrink(&s->outbox);
        if (s->state == SESSION_WAITING)
            subscribe_answer(r, s, uv_now(r->loop) - s->waiting_since >= ROUTER_FACTS_MS);
    }
    router_flush(r);
    deliver_check_held(r);
}

void clients_answer(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        if (s->state == SESSION_WAITING)
            subscribe_answer(r, s, true);
    }
}

void clients_new_era(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        s->old_era |= s->state == SESSION_READY;
        if (s->state != SESSION_ACTIVE && s->state != SESSION_WAITING)
            continue;
        subscribe_release(r, s); /* what it still acknowledges is of the old era */
        session_error(s, CONTROL_ERROR_SOURCE, "the journal begins a new era, in which positions mean something else", true);
        session_flush(s);
    }
}

struct position clients_farthest(const struct router *r)
{
    return subscribe_farthest(r);
}

void clients_measured(struct router *r)
{
    requests_measured(r);
}

void clients_stored(struct router *r)
{
    subscribe_stored(r);
    requests_stored(r);
    router_flush(r);
}
