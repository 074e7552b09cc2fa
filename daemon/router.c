/* SPDX-License-Identifier: PostgreSQL */
#include "router.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

static void router_end(struct router *r);

/* Ends the turn of whatever was queued; sessions may vanish while the list is walked. */
void router_flush(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        if (s->must_flush)
            session_flush(s);
    }
}

/* ---- routing ---- */

static void inside_add(struct router *r, struct session *s)
{
    if (r->n_inside == r->inside_cap) {
        size_t cap = r->inside_cap ? r->inside_cap * 2 : 64;
        struct session **inside = realloc(r->inside, cap * sizeof *inside);

        if (!inside) {
            session_error(s, CONTROL_ERROR_TOO_SLOW, "the router has no memory", true);
            return;
        }
        r->inside = inside;
        r->inside_cap = cap;
    }
    r->inside[r->n_inside++] = s;
}

static void inside_remove(struct router *r, const struct session *s)
{
    for (size_t i = 0; i < r->n_inside; i++)
        if (r->inside[i] == s)
            r->inside[i--] = r->inside[--r->n_inside];
}

/* One that resumes waits for its own transaction: others that come again before it are not the one. */
static void send_commits(struct router *r, struct batch *batch, const struct batch_entry *entry,
                         const struct batch_entry *begin)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->n_inside; i++) {
        session_send_commit(r->inside[i], batch, entry, begin);
        if (r->inside[i]->resume)
            r->inside[kept++] = r->inside[i];
    }
    r->n_inside = kept;
}

/* For the sessions that could not take the batch whole; the others ignore what they were told. */
static void route_entries(struct router *r, struct batch *batch)
{
    const struct batch_entry *begin = NULL;

    for (size_t i = 0; i < batch->n_entries; i++) {
        const struct batch_entry *entry = &batch->entries[i];
        struct route_set set;

        switch (entry->type) {
        case FRAME_BEGIN:
            begin = entry;
            break;
        case FRAME_MESSAGE:
            if (route_lookup(r->route, entry->prefix, &set) < 0) {
                log_line(r->log, LOG_ERROR, "router.no-memory",
                         "No memory to route a message; the subscribers are let go.");
                for (struct session *s = r->sessions; s; s = s->next)
                    session_error(s, CONTROL_ERROR_TOO_SLOW, "the router has no memory", true);
                return;
            }
            for (size_t j = 0; j < set.n; j++) {
                struct session *s = container_of(set.members[j], struct session, member);
                if (session_send_message(s, batch, entry, begin))
                    inside_add(r, s);
            }
            break;
        case FRAME_COMMIT:
            send_commits(r, batch, entry, begin);
            begin = NULL;
            break;
        default:
            break;
        }
    }
}

static void on_batch(void *owner, struct batch *batch)
{
    struct router *r = owner;
    bool entries_needed = false;

    if (batch->n_entries) {
        for (struct session *s = r->sessions; s; s = s->next)
            if (s->state == SESSION_ACTIVE && !session_send_batch(s, batch))
                entries_needed = true;
        if (entries_needed)
            route_entries(r, batch);
        for (size_t i = 0; i < batch->n_entries; i++)
            r->messages += batch->entries[i].type == FRAME_MESSAGE;
        r->newest = batch->last;
        if (!batch->ends_inside && position_compare(batch->last, r->progress) > 0)
            r->progress = batch->last;
    }
    if (batch->mark && position_compare(batch->mark_position, r->progress) > 0)
        r->progress = batch->mark_position;
    uint64_t mark = batch->mark;
    router_flush(r);
    if (batch->refs > 1)
        batch_settle(batch);
    (void)batch_unref(batch);
    router_check_pressure(r);
    if (mark)
        source_advance(&r->source, mark);
}

static void on_interrupted(void *owner)
{
    struct router *r = owner;

    for (struct session *s = r->sessions; s; s = s->next)
        session_interrupt(s, &r->pool);
    r->n_inside = 0;
    router_flush(r);
}

/* ---- sessions ---- */

static void start_subscription(struct router *r, struct session *s, struct position at)
{
    struct control_subscribed subscribed = {
        .position = at,
        .identity = {(const uint8_t *)r->identity, strlen(r->identity)},
        .timeline = r->source.continuity.timeline,
    };
    const struct control_subscribe *c = &s->subscribe;

    if (route_add(r->route, &s->member, c->filters, c->n_filters, c->exclusions, c->n_exclusions) < 0) {
        session_close(s, "no memory");
        return;
    }
    s->subscribed = true;
    log_line(r->log, LOG_DEBUG, "session.subscribed", "A client subscribed.",
             LOG_U64("session", s->id), LOG_I64("pid", s->pid), LOG_U64("filters", c->n_filters),
             LOG_U64("exclusions", c->n_exclusions));
    session_subscribed(s, &subscribed);
    if (position_compare(at, r->newest) < 0)
        session_send_gap(s, &r->pool, builder_now(&r->source.stream.builder),
                         "the router had passed this on, or begun behind it, when the subscription came; it keeps no journal");
    if (s->resume)
        inside_add(r, s);
}

/* How far the server's WAL is known to reach: by the last look-up, and by what came since. */
static uint64_t wal_known(const struct router *r)
{
    uint64_t read = MAX(r->source.continuity.told, r->newest.lsn);

    return MAX(r->source.facts.wal_lsn, read);
}

/* Answers a SUBSCRIBE that can be answered now. `final`: how far the WAL reaches is known as well as it can be. */
static void answer_subscribe(struct router *r, struct session *s, bool final)
{
    const struct control_subscribe *c = &s->subscribe;
    struct position now = builder_now(&r->source.stream.builder);

    if (c->name.size || c->start == CONTROL_START_STORED) {
        session_error(s, CONTROL_ERROR_UNSUPPORTED, "this router keeps no journal: durable subscriptions are not available", false);
        return;
    }
    if (c->start == CONTROL_START_OLDEST || c->start == CONTROL_START_TIME) {
        session_error(s, CONTROL_ERROR_UNSUPPORTED, "this router keeps no journal: a subscription starts now or at a position", false);
        return;
    }
    if (r->source.state == SOURCE_GIVEN_UP) {
        session_error(s, CONTROL_ERROR_SOURCE, buf_str(&r->source.last_error), true);
        return;
    }
    if (r->source.state != SOURCE_STREAMING)
        return; /* on_started comes back to it */
    bool beyond = c->start == CONTROL_START_POSITION &&
                  (c->position.timeline > r->source.continuity.timeline || c->position.lsn > wal_known(r));
    if (beyond && !final) {
        source_look_up(&r->source); /* on_facts comes back to it, or on_tick */
        return;
    }
    if (beyond) {
        session_error(s, CONTROL_ERROR_INVALID, "the position lies beyond the server's WAL", false);
        return;
    }
    start_subscription(r, s, c->start == CONTROL_START_POSITION ? c->position : now);
}

static bool is_privileged(const struct session *s)
{
    return s->uid == 0 || s->uid == geteuid();
}

/* Looked up when somebody grows, which is seldom, so that nothing has to be kept in step. */
static bool on_room(void *owner, const struct session *asking, size_t bytes)
{
    const struct router *r = owner;
    size_t held = 0, most = ROUTER_CLIENTS_MAX;

    if (is_privileged(asking))
        most += ROUTER_CLIENTS_RESERVED;
    for (const struct session *s = r->sessions; s; s = s->next)
        held += session_held(s);
    return held <= most && bytes <= most - held;
}

static void on_welcome(void *owner, struct control_welcome *welcome)
{
    struct router *r = owner;

    welcome->identity = (struct bytes){(const uint8_t *)r->identity, strlen(r->identity)};
    welcome->timeline = r->source.continuity.timeline;
    welcome->position = r->progress;
}

static void on_subscribe(void *owner, struct session *s)
{
    answer_subscribe(owner, s, false);
}

static bool request_is(const struct control_request *request, const char *what)
{
    return request->what.size == strlen(what) && memcmp(request->what.data, what, request->what.size) == 0;
}

/* An answer to "status" has some hundred bytes, and so for each session. */
#define ANSWER_ROOM 256u
/* While there is no room for an answer: who has more than this to read and asks on is let go. */
#define ANSWERS_FEW 4096u
/* What REPLY puts around its result, with room to spare. */
#define REPLY_FRAME 64u

static void on_request(void *owner, struct session *s, const struct control_request *request)
{
    struct router *r = owner;
    struct buf result = BUF_INIT;

    if (!on_room(r, s, ANSWER_ROOM * (1 + r->n_sessions))) { /* before it is made: that is what costs */
        if (outbox_waiting_control(&s->outbox) > ANSWERS_FEW)
            session_error(s, CONTROL_ERROR_LIMIT,
                          "too many answers to all clients wait to be read, some of them to this one", true);
        else
            session_request_error(s, request->id, CONTROL_ERROR_LIMIT,
                                  "too many answers to all clients wait to be read");
    } else if (request_is(request, "status")) {
        router_put_status(r, &result);
        struct control_reply reply = {.id = request->id, .result = buf_bytes(&result)};
        if (result.failed)
            session_close(s, "no memory");
        else if (result.size > FRAME_CONTROL_MAX - REPLY_FRAME)
            session_request_error(s, request->id, CONTROL_ERROR_LIMIT,
                                  "the answer does not fit into a frame");
        else
            session_reply(s, &reply);
    } else {
        session_request_error(s, request->id, CONTROL_ERROR_UNSUPPORTED,
                              "this router does not know that request; it knows: status");
    }
    buf_deinit(&result);
}

static void on_closed(void *owner, struct session *s)
{
    struct router *r = owner;

    if (s->subscribed) {
        route_remove(r->route, &s->member);
        s->subscribed = false;
        inside_remove(r, s);
    }
    if (s->prev)
        s->prev->next = s->next;
    else
        r->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    r->n_sessions--;
    if (r->holding)
        router_check_pressure(r);
    if (r->phase == ROUTER_LEAVING && r->n_sessions == 0)
        router_end(r);
}

static void on_wrote(void *owner)
{
    struct router *r = owner;

    if (r->holding)
        router_check_pressure(r);
}

static const struct session_ops session_ops = {
    .welcome = on_welcome,
    .subscribe = on_subscribe,
    .request = on_request,
    .room = on_room,
    .wrote = on_wrote,
    .closed = on_closed,
};

static void on_accepted(void *owner, int fd)
{
    struct router *r = owner;
    struct session *s = session_new(r->loop, fd, ++r->next_session, &session_ops, r, r->log);

    if (!s)
        return;
    s->next = r->sessions;
    if (s->next)
        s->next->prev = s;
    r->sessions = s;
    r->n_sessions++;
    if (r->n_sessions > r->max_sessions ||
        (!is_privileged(s) && r->n_sessions > r->max_sessions - ROUTER_SESSIONS_RESERVED)) {
        session_error(s, CONTROL_ERROR_LIMIT, "the router has its largest number of connections", true);
        session_flush(s);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct router *r = timer->data;

    for (struct session *s = r->sessions; s; s = s->next) {
        session_send_progress(s, r->progress);
        outbox_shrink(&s->outbox);
        if (s->state == SESSION_WAITING && uv_now(r->loop) - s->waiting_since >= ROUTER_FACTS_MS)
            answer_subscribe(r, s, true);
    }
    router_flush(r);
}

/* ---- states of the source ---- */

static void on_changed(void *owner)
{
    struct router *r = owner;

    if (r->source.state == SOURCE_GIVEN_UP) {
        for (struct session *s = r->sessions; s; s = s->next)
            if (s->state == SESSION_WAITING)
                answer_subscribe(r, s, true);
        router_stop(r, r->source.verdict == PRECONDITION_REFUSE ? ROUTER_EXIT_FAILURE
                                                                : ROUTER_EXIT_DECIDE);
    }
}

static void on_started(void *owner)
{
    struct router *r = owner;

    snprintf(r->identity, sizeof r->identity, "%" PRIu64 "/1", r->source.continuity.system_identifier);
    if (position_is_zero(r->newest))
        r->newest = r->source.stream.builder.last;
    for (struct session *s = r->sessions; s; s = s->next)
        if (s->state == SESSION_WAITING)
            answer_subscribe(r, s, true); /* the facts are of this very connect */
    router_flush(r);
}

static void on_facts(void *owner)
{
    struct router *r = owner;

    for (struct session *s = r->sessions; s; s = s->next)
        if (s->state == SESSION_WAITING)
            answer_subscribe(r, s, true);
    router_flush(r);
}

static const struct source_ops source_ops = {
    .batch = on_batch,
    .interrupted = on_interrupted,
    .started = on_started,
    .facts = on_facts,
    .changed = on_changed,
};

/* ---- stopping ---- */

static void close_timer(uv_timer_t *timer)
{
    if (!uv_is_closing((uv_handle_t *)timer))
        uv_close((uv_handle_t *)timer, NULL);
}

static void router_end(struct router *r)
{
    if (r->phase == ROUTER_ENDED)
        return;
    r->phase = ROUTER_ENDED;
    while (r->sessions)
        session_close(r->sessions, "the router ends");
    close_timer(&r->tick);
    close_timer(&r->pressure);
    close_timer(&r->drain);
    source_close(&r->source);
}

static void router_leave(struct router *r)
{
    bool given_up = r->exit_code != ROUTER_EXIT_OK; /* the source's state is another by now */

    r->phase = ROUTER_LEAVING;
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        session_stop(s, r->progress, given_up ? CONTROL_ERROR_SOURCE : CONTROL_ERROR_STOPPING,
                     given_up ? buf_str(&r->source.last_error) : "the router is being stopped");
        session_flush(s);
    }
    if (r->n_sessions == 0)
        router_end(r);
}

static bool router_is_drained(const struct router *r)
{
    for (const struct session *s = r->sessions; s; s = s->next)
        if (s->state == SESSION_ACTIVE && !outbox_is_empty(&s->outbox))
            return false;
    return true;
}

/* Whether some session has taken bytes since the last look. */
static bool router_wrote(struct router *r)
{
    bool wrote = false;

    for (struct session *s = r->sessions; s; s = s->next) {
        wrote |= s->outbox.written_data != s->written_before;
        s->written_before = s->outbox.written_data;
    }
    return wrote;
}

#define DRAIN_LOOK_MS 10u

static void on_drain(uv_timer_t *timer)
{
    struct router *r = timer->data;

    if (r->phase == ROUTER_DRAINING) {
        if (!router_is_drained(r)) {
            /* to be decided by the operator: nobody waits for the end, so whoever reads gets all there is */
            if (r->exit_code == ROUTER_EXIT_DECIDE && !r->hurry && router_wrote(r))
                r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
            if (uv_now(r->loop) < r->phase_ends)
                return;
        }
        r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
        router_leave(r);
    } else if (r->phase == ROUTER_LEAVING && uv_now(r->loop) >= r->phase_ends) {
        router_end(r);
    }
}

void router_stop(struct router *r, int exit_code)
{
    if (r->phase != ROUTER_RUNNING)
        return;
    r->phase = ROUTER_DRAINING;
    r->exit_code = exit_code;
    log_line(r->log, LOG_INFO, "router.stopping", "The router stops.",
             LOG_I64("exit", exit_code));
    listener_close(&r->listener);
    (void)uv_timer_stop(&r->pressure); /* nothing more comes: nobody is judged by its pace any more */
    r->holding = false;
    source_stop(&r->source);
    uv_update_time(r->loop);
    r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
    (void)uv_timer_start(&r->drain, on_drain, 0, DRAIN_LOOK_MS);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct router *r = handle->data;

    if (signum == SIGHUP) {
        log_line(r->log, LOG_INFO, "router.reload",
                 "SIGHUP: no setting of this version can change while the router runs; ignoring.");
        return;
    }
    if (r->phase == ROUTER_DRAINING && !r->hurry) {
        r->hurry = true;
        uv_update_time(r->loop);
        r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
    }
    router_stop(r, ROUTER_EXIT_OK);
}

/* ---- life ---- */

/* As many as the descriptors allow, less what the router itself needs. */
static size_t max_sessions(struct logger *log)
{
    struct rlimit files;
    rlim_t least = ROUTER_DESCRIPTORS + 2 * ROUTER_SESSIONS_RESERVED;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY)
        return ROUTER_SESSIONS_MAX;
    if (files.rlim_cur < least) {
        log_line(log, LOG_WARNING, "router.few-descriptors",
                 "The limit on open files leaves room for very few clients.",
                 LOG_U64("limit", files.rlim_cur), LOG_U64("needed", least));
        return ROUTER_SESSIONS_RESERVED + 1;
    }
    return MIN((size_t)(files.rlim_cur - ROUTER_DESCRIPTORS), (size_t)ROUTER_SESSIONS_MAX);
}

static void watch_signal(struct router *r, uv_signal_t *handle, int signum)
{
    (void)uv_signal_init(r->loop, handle);
    handle->data = r;
    (void)uv_signal_start(handle, on_signal, signum);
    uv_unref((uv_handle_t *)handle); /* watched as long as there is anything else to do */
}

int router_open(struct router *r, uv_loop_t *loop, const struct settings *settings,
                const char *socket_path, struct logger *log)
{
    char why[LISTENER_WHY_SIZE];

    *r = (struct router){
        .loop = loop, .log = log, .settings = settings, .max_sessions = max_sessions(log)};
    r->route = route_new();
    if (!r->route)
        return ROUTER_EXIT_FAILURE;
    int e = listener_open(&r->listener, socket_path, (mode_t)settings->socket_mode,
                          settings->socket_group, why);
    if (e < 0) {
        log_line(log, LOG_ERROR, "router.socket", why);
        r->route = route_free(r->route);
        return ROUTER_EXIT_FAILURE;
    }
    e = listener_start(&r->listener, loop, on_accepted, r);
    if (e == 0)
        e = source_init(&r->source, loop, settings->dsn, settings->slot, settings->publication,
                        settings->heartbeat_interval * 1000, &r->pool, &source_ops, r, log);
    if (e < 0) {
        log_line(log, LOG_ERROR, "router.start", "The router cannot start.",
                 LOG_STR("error", strerror(-e)));
        listener_close(&r->listener);
        r->route = route_free(r->route);
        return ROUTER_EXIT_FAILURE;
    }
    (void)uv_timer_init(loop, &r->tick);
    (void)uv_timer_init(loop, &r->drain);
    (void)uv_timer_init(loop, &r->pressure);
    r->tick.data = r;
    r->pressure.data = r;
    r->drain.data = r;
    (void)uv_timer_start(&r->tick, on_tick, ROUTER_PROGRESS_MS, ROUTER_PROGRESS_MS);
    watch_signal(r, &r->sigterm, SIGTERM);
    watch_signal(r, &r->sigint, SIGINT);
    watch_signal(r, &r->sighup, SIGHUP);
    log_line(log, LOG_INFO, "router.listening", "The router listens.",
             LOG_STR("socket", socket_path), LOG_STR("version", WALBUS_VERSION));
    source_start(&r->source);
    return 0;
}

void router_deinit(struct router *r)
{
    uv_close((uv_handle_t *)&r->sigterm, NULL);
    uv_close((uv_handle_t *)&r->sigint, NULL);
    uv_close((uv_handle_t *)&r->sighup, NULL);
    (void)uv_run(r->loop, UV_RUN_DEFAULT);
    source_deinit(&r->source);
    r->route = route_free(r->route);
    free(r->inside);
    batch_pool_deinit(&r->pool);
}
