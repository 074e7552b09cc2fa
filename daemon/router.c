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

#include "admission.h"
#include "base/clock.h"
#include "base/fd.h"
#include "clients.h"
#include "deliver.h"
#include "intake.h"
#include "names.h"
#include "reload.h"
#include "requests.h"
#include "settings/setting_place.h"

/* Ends the turn of whatever was queued; sessions may vanish while the list is walked. */
void router_flush(struct router *r)
{
    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        if (s->must_flush)
            session_flush(s);
    }
}
/* ---- what the source tells ---- */

static void on_batch(void *owner, struct batch *batch)
{
    admission_batch(owner, batch);
}

/* The journal is served on to whoever has something left to read, or comes soon. */
static void give_up(struct router *r)
{
    names_given_up(r);
    clients_answer(r);
    if (r->source.verdict == PRECONDITION_REFUSE)
        router_stop(r, ROUTER_EXIT_FAILURE);
    else if (r->journal && journal_end(r->journal)->empty && !checks_bytes(r->checks))
        router_stop(r, ROUTER_EXIT_DECIDE);
    else
        r->given_up_at = uv_now(r->loop);
}

static void on_changed(void *owner)
{
    struct router *r = owner;

    intake_changed(r);
    if (r->source.state == SOURCE_GIVEN_UP)
        give_up(r);
}

static bool on_started(void *owner, struct position start, bool looked_at, enum continuity_verdict accepted)
{
    struct router *r = owner;

    if (!intake_started(r, start, looked_at, accepted))
        return false;
    admission_started(r);
    snprintf(r->identity, sizeof r->identity, "%" PRIu64 "/%" PRIu32, r->source.continuity.system_identifier,
             journal_end(r->journal)->era);
    if (position_is_zero(r->newest))
        r->newest = r->source.stream.builder.last;
    return true;
}

static void on_streaming(void *owner)
{
    struct router *r = owner;

    names_streaming(r);
    clients_answer(r); /* the facts are of this very connect */
    router_flush(r);
}

static void on_facts(void *owner)
{
    struct router *r = owner;

    clients_answer(r);
    router_flush(r);
}

static const struct source_ops source_ops = {
    .batch = on_batch,
    .started = on_started,
    .streaming = on_streaming,
    .facts = on_facts,
    .changed = on_changed,
};

static void on_accepted(void *owner, int fd)
{
    clients_accept(owner, fd);
}

/* Nobody has anything left to read, and who was away could have come. What waits for the quarantine was read from a server
 * that may not have it any more. */
static bool is_read_to_the_end(const struct router *r)
{
    bool some = false;

    if (checks_bytes(r->checks))
        return false;
    for (const struct session *s = r->sessions; s; s = s->next) {
        if (s->state == SESSION_ACTIVE && !session_is_at_end(s))
            return false;
        some |= s->state == SESSION_ACTIVE;
    }
    return some || uv_now(r->loop) - r->given_up_at >= ROUTER_GIVEN_UP_MS;
}

static void on_tick(uv_timer_t *timer)
{
    struct router *r = timer->data;

    intake_tick(r);
    admission_tick(r);
    clients_tick(r);
    if (r->given_up_at && is_read_to_the_end(r))
        router_stop(r, ROUTER_EXIT_DECIDE);
}

/* ---- stopping ---- */

static void close_timer(uv_timer_t *timer)
{
    if (!uv_is_closing((uv_handle_t *)timer))
        uv_close((uv_handle_t *)timer, NULL);
}

void router_end(struct router *r)
{
    if (r->phase == ROUTER_ENDED)
        return;
    r->phase = ROUTER_ENDED;
    while (r->sessions)
        session_close(r->sessions, "the router ends");
    close_timer(&r->tick);
    close_timer(&r->drain);
    source_close(&r->source);
    names_finish(r);
    admission_close(r);
    intake_close(r); /* nothing is handed on any more */
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
        if (s->state == SESSION_ACTIVE && !session_is_at_end(s))
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
    source_hand_on(&r->source);
    admission_finish(r);
    intake_finish(r);
    source_stop(&r->source);
    uv_update_time(r->loop);
    r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
    (void)uv_timer_start(&r->drain, on_drain, 0, DRAIN_LOOK_MS);
}

static void reload_on_signal(struct router *r)
{
    struct reload_answer answer;
    char why[SETTINGS_WHY_SIZE];

    if (reload_settings(r, "SIGHUP", &answer, why) < 0)
        return; /* it was logged */
    reload_answer_deinit(&answer);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct router *r = handle->data;

    if (signum == SIGHUP) {
        reload_on_signal(r);
        return;
    }
    if (r->phase == ROUTER_DRAINING && !r->hurry) {
        r->hurry = true;
        uv_update_time(r->loop);
        r->phase_ends = uv_now(r->loop) + ROUTER_DRAIN_MS;
    }
    if (r->given_up_at) { /* it was to end so anyway: only nobody is waited for any more */
        r->hurry = true;
        router_stop(r, ROUTER_EXIT_DECIDE);
        return;
    }
    router_stop(r, ROUTER_EXIT_OK);
}

/* ---- life ---- */

/* Of the descriptors that the router itself does not need, sessions get up to a half; segments of the journal what is left. */
static void share_descriptors(struct router *r)
{
    struct rlimit files;
    rlim_t least = ROUTER_DESCRIPTORS + 2 * (2 * ROUTER_SESSIONS_RESERVED);

    r->max_sessions = ROUTER_SESSIONS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY)
        return;
    rlim_t room = files.rlim_cur - MIN(files.rlim_cur, (rlim_t)ROUTER_DESCRIPTORS);
    if (files.rlim_cur < least) {
        log_line(r->log, LOG_WARNING, "router.few-descriptors",
                 "The limit on open files leaves room for very few clients.",
                 LOG_U64("limit", files.rlim_cur), LOG_U64("needed", least));
        r->max_sessions = ROUTER_SESSIONS_RESERVED + 1;
    } else {
        r->max_sessions = MIN((size_t)(room / 2), (size_t)ROUTER_SESSIONS_MAX);
    }
    room -= MIN(room, (rlim_t)r->max_sessions);
    r->max_segments = MAX((size_t)room * ROUTER_SEGMENTS_PERCENT / 100, (size_t)JOURNAL_SEGMENTS_MIN);
}

static void watch_signal(struct router *r, uv_signal_t *handle, int signum)
{
    (void)uv_signal_init(r->loop, handle);
    handle->data = r;
    (void)uv_signal_start(handle, on_signal, signum);
    uv_unref((uv_handle_t *)handle); /* watched as long as there is anything else to do */
}

static int open_parts(struct router *r, const char *socket_path)
{
    const struct settings *settings = r->settings;
    char why[MAX(LISTENER_WHY_SIZE, SETTINGS_WHY_SIZE)];
    int e = reload_begin(r, why);

    if (e < 0) {
        log_line(r->log, LOG_ERROR, "router.settings", "The settings cannot be used.",
                 LOG_STR("error", e == -EINVAL ? why : strerror(-e)));
        return e == -EINVAL ? ROUTER_EXIT_USAGE : ROUTER_EXIT_FAILURE;
    }
    r->route = route_new();
    if (!r->route)
        return ROUTER_EXIT_FAILURE;
    int status = intake_open(r); /* the lock on the state comes before the socket */
    if (status != 0)
        return status;
    status = admission_open(r);
    if (status != 0)
        return status;
    session_reads_init(&r->reads, r->loop, r->journal, &r->sessions);
    e = listener_open(&r->listener, socket_path, (mode_t)settings->socket_mode, settings->socket_group, why);
    if (e < 0) {
        if (strncmp(why, "socket-group:", 13) == 0) {
            setting_place_blame(settings, settings_find("socket-group"), 0, why);
        } else {
            setting_place_blame(settings, settings_find("socket"), 0, why);
            setting_place_blame_variable(r->origin.socket_variable, why);
        }
        log_line(r->log, LOG_ERROR, "router.socket", why);
        return ROUTER_EXIT_FAILURE;
    }
    e = listener_start(&r->listener, r->loop, on_accepted, r);
    if (e == 0)
        e = source_init(&r->source, r->loop, settings->dsn, settings->slot, settings->publication,
                        settings->heartbeat_interval * 1000, &r->pool, &source_ops, r, r->log);
    if (e < 0) {
        log_line(r->log, LOG_ERROR, "router.start", "The router cannot start.", LOG_STR("error", strerror(-e)));
        listener_close(&r->listener);
        return ROUTER_EXIT_FAILURE;
    }
    return 0;
}

static void free_parts(struct router *r)
{
    admission_close(r);
    intake_close(r);
    (void)uv_run(r->loop, UV_RUN_DEFAULT); /* the journal's handle, and checks under way */
    admission_deinit(r);
    state_close(&r->state);
    reload_end(r);
    r->route = route_free(r->route);
    free(r->inside);
    session_reads_deinit(&r->reads);
    batch_pool_deinit(&r->pool);
    accounts_deinit(&r->accounts);
}

int router_open(struct router *r, uv_loop_t *loop, struct settings *settings, struct router_origin origin,
                const char *socket_path, bool accept_gap, struct logger *log)
{
    *r = (struct router){
        .loop = loop, .log = log, .settings = settings, .origin = origin, .state = STATE_INIT};
    strangers_find(&r->strangers);
    share_descriptors(r);
    int status = open_parts(r, socket_path);
    if (status != 0) {
        free_parts(r);
        return status;
    }
    intake_restore(r);
    r->source.accept_gap = accept_gap;
    (void)uv_timer_init(loop, &r->tick);
    (void)uv_timer_init(loop, &r->drain);
    r->tick.data = r;
    r->drain.data = r;
    (void)uv_timer_start(&r->tick, on_tick, ROUTER_PROGRESS_MS, ROUTER_PROGRESS_MS);
    watch_signal(r, &r->sigterm, SIGTERM);
    watch_signal(r, &r->sigint, SIGINT);
    watch_signal(r, &r->sighup, SIGHUP);
    log_line(log, LOG_INFO, "router.listening", "The router listens.", LOG_STR("socket", socket_path),
             LOG_STR("state_dir", r->state.folder), LOG_STR("version", WALBUS_VERSION));
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
    free_parts(r);
}
