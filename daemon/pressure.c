/* SPDX-License-Identifier: PostgreSQL */
/*
 * Subscribers that do not keep up.
 *
 * A server that is read at full speed sends faster than most subscribers can
 * read, above all when a backlog waits in the slot. Until there is a journal to
 * go back to, what is queued for a subscriber is all that it can still get. Two
 * wishes are at odds: a subscriber that reads as fast as it can must get a
 * backlog of any size, and one that does not read must delay nobody.
 *
 * So the pace decides. When an outbox is full, reading from the server waits, as
 * long as each session with a full outbox takes at least ROUTER_PRESSURE_BYTES
 * every ROUTER_PRESSURE_MS (some 4 MB a second). One that does not is told
 * "too-slow" and let go, so a stopped one costs the others a quarter of a second,
 * once. Reading goes on when all outboxes are half empty again.
 *
 * All outboxes together have a limit as well; when it is passed, the session
 * that holds most is judged like one with a full outbox.
 */
#include "router.h"

static bool is_over(const struct session *s, bool half)
{
    return s->state == SESSION_ACTIVE && outbox_is_full(&s->outbox, half);
}

/* The one that holds most behind what it is sending, or NULL. */
static struct session *holds_most(const struct router *r)
{
    struct session *most = NULL;

    for (struct session *s = r->sessions; s; s = s->next)
        if (s->state == SESSION_ACTIVE && s->outbox.n > 1 &&
            (!most || s->outbox.charge > most->outbox.charge))
            most = s;
    return most;
}

static bool is_pressed(const struct router *r, bool half)
{
    for (const struct session *s = r->sessions; s; s = s->next)
        if (is_over(s, half))
            return true;
    return r->pool.live_bytes > ROUTER_BYTES_MAX / (half ? 2 : 1) && holds_most(r);
}

static bool keeps_pace(const struct session *s)
{
    return s->outbox.written - s->written_before >= ROUTER_PRESSURE_BYTES;
}

static void let_go(struct router *r, struct session *s)
{
    r->too_slow++;
    session_error(s, CONTROL_ERROR_TOO_SLOW,
                  "messages came faster than this subscriber reads them", true);
}

static void remember(struct router *r)
{
    for (struct session *s = r->sessions; s; s = s->next)
        s->written_before = s->outbox.written;
}

static void on_pressure(uv_timer_t *timer)
{
    struct router *r = timer->data;

    for (struct session *s = r->sessions; s; s = s->next)
        if (is_over(s, true) && !keeps_pace(s))
            let_go(r, s);
    struct session *most = r->pool.live_bytes > ROUTER_BYTES_MAX / 2 ? holds_most(r) : NULL;
    if (most && !keeps_pace(most))
        let_go(r, most);
    remember(r);
    router_flush(r);
    router_check_pressure(r);
}

void router_check_pressure(struct router *r)
{
    bool pressed = is_pressed(r, r->holding);

    if (pressed == r->holding)
        return;
    r->holding = pressed;
    source_hold(&r->source, pressed);
    if (!pressed) {
        (void)uv_timer_stop(&r->pressure);
        return;
    }
    remember(r);
    uv_update_time(r->loop);
    (void)uv_timer_start(&r->pressure, on_pressure, ROUTER_PRESSURE_MS, ROUTER_PRESSURE_MS);
}
