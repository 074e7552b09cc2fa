/* SPDX-License-Identifier: PostgreSQL */
#include "clients.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "deliver.h"
#include "permit.h"
#include "quota.h"
#include "requests.h"
#include "subscribe.h"

/* Looked up when somebody grows, which is seldom, so that nothing has to be kept in step. */
const char *clients_lack_room(const struct router *r, const struct session *asking, size_t bytes)
{
    size_t held = 0, most = ROUTER_CLIENTS_MAX;

    if (permit_is_privileged(asking))
        most += ROUTER_CLIENTS_RESERVED;
    for (const struct session *s = r->sessions; s; s = s->next)
        held += session_held(s);
    if (held > most || bytes > most - held)
        return "all clients";
    return quota_has_bytes(r, asking, bytes) ? NULL : "this user's clients (bytes-per-uid)";
}

static const char *on_room(void *owner, const struct session *asking, size_t bytes)
{
    return clients_lack_room(owner, asking, bytes);
}

static void on_welcome(void *owner, struct control_welcome *welcome)
{
    struct router *r = owner;

    subscribe_learn_identity(r);
    welcome->identity = (struct bytes){(const uint8_t *)r->identity, strlen(r->identity)};
    welcome->timeline = r->source.continuity.timeline;
    welcome->position = r->progress;
}

/* `setting`: where the number stands. */
static void refuse_too_many(struct router *r, struct session *s, const char *what, uint64_t most, const char *setting,
                            bool fatal)
{
    struct buf text = BUF_INIT;

    permit_put_who(r, s->uid, &text);
    buf_printf(&text, " has %" PRIu64 " %s, the most of one user (%s)", most, what, setting);
    permit_refuse(r, s, CONTROL_ERROR_LIMIT, buf_str(&text), fatal);
    buf_deinit(&text);
}

static void on_subscribe(void *owner, struct session *s)
{
    struct router *r = owner;
    char why[PERMIT_WHY_SIZE];

    if (s->old_era) { /* its position, if it has one, is of that: to override by it would lose what is before it here */
        session_error(s, CONTROL_ERROR_SOURCE, "the journal has begun a new era since WELCOME", true);
        return;
    }
    if (!permit_subscription(r, s, why)) {
        permit_refuse(r, s, CONTROL_ERROR_FORBIDDEN, why, false);
        return;
    }
    if (!quota_has_subscription(r, s)) {
        refuse_too_many(r, s, "subscriptions", r->settings->subscriptions_per_uid, "subscriptions-per-uid", false);
        return;
    }
    subscribe_answer(r, s, false);
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

/* Of everybody else so many that the disk is not filled. */
static void on_failed(void *owner, const struct session *s, const char *code, const char *text)
{
    static const char sentence[] = "A client is told an error and let go.";
    struct router *r = owner;
    struct refusal what = {.id = "session.error", .sentence = sentence, .level = LOG_INFO, .uid = s->uid,
                           .pid = s->pid, .session = s->id, .code = code, .text = text};

    if (r->phase == ROUTER_RUNNING && !permit_is_privileged(s))
        refusals_note(&r->refusals, r->log, uv_now(r->loop), &what);
    else
        log_line(r->log, LOG_INFO, "session.error", sentence, LOG_U64("session", s->id), LOG_I64("pid", s->pid),
                 LOG_I64("uid", s->uid), LOG_STR("code", code), LOG_STR("text", text));
}

static const struct session_ops session_ops = {
    .welcome = on_welcome,
    .subscribe = on_subscribe,
    .request = on_request,
    .room = on_room,
    .acked = on_acked,
    .caught_up = on_caught_up,
    .was_read = on_was_read,
    .failed = on_failed,
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
    permit_meet(r, s);
    if (!quota_open_account(r, s)) {
        session_close(s, "no memory");
        return;
    }
    char why[PERMIT_WHY_SIZE];
    if (!permit_entry(r, s, why))
        permit_refuse(r, s, CONTROL_ERROR_FORBIDDEN, why, true);
    else if (!quota_has_connection(r, s))
        refuse_too_many(r, s, "connections", r->settings->connections_per_uid, "connections-per-uid", true);
    else if (r->n_sessions > r->max_sessions ||
             (!permit_is_privileged(s) && r->n_sessions > r->max_sessions - ROUTER_SESSIONS_RESERVED))
        permit_refuse(r, s, CONTROL_ERROR_LIMIT, "the router has its largest number of connections", true);
    if (s->state == SESSION_LEAVING)
        session_flush(s);
}

void clients_tick(struct router *r)
{
    refusals_tick(&r->refusals, r->log, uv_now(r->loop));
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
