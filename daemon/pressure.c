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
 * So the pace decides. When an outbox is full, or all together hold more than
 * ROUTER_BYTES_MAX, reading from the server waits, as long as those who hold it
 * up take at least ROUTER_PRESSURE_BYTES every ROUTER_PRESSURE_MS (some 2 MB a
 * second). One that does not is told "too-slow" and let go, so a stopped one
 * costs the others half a second, once. Reading goes on when all
 * outboxes, and all together, are half empty again.
 *
 * Who holds it up: each session with a full outbox, and while the total is
 * passed each one that holds more than what it should have taken meanwhile, or
 * else the one that holds most. A session that was let go may take
 * SESSION_LEAVE_MS to read its last frame, but not while the total is passed.
 */
#include "router.h"

static size_t holds(const struct session *s)
{
    return s->state == SESSION_ACTIVE || s->state == SESSION_LEAVING
               ? s->outbox.charge + s->outbox.large
               : 0;
}

static bool is_full(const struct session *s, bool half)
{
    return s->state == SESSION_ACTIVE && outbox_is_full(&s->outbox, half);
}

/* Of what somebody still has to send, a single message, however large, is not yet too much. */
static bool is_total_passed(const struct router *r, bool half)
{
    size_t total = r->pool.live_bytes + r->pool.large_bytes;

    if (r->pool.live <= 1 || total <= ROUTER_BYTES_MAX / (half ? 2 : 1))
        return false;
    for (const struct session *s = r->sessions; s; s = s->next)
        if (holds(s))
            return true;
    return false;
}

static bool is_pressed(const struct router *r, bool half)
{
    for (const struct session *s = r->sessions; s; s = s->next)
        if (is_full(s, half))
            return true;
    return is_total_passed(r, half);
}

static bool keeps_pace(const struct session *s)
{
    return s->outbox.written_data - s->written_before >= ROUTER_PRESSURE_BYTES;
}

static void let_go(struct router *r, struct session *s)
{
    if (s->state == SESSION_LEAVING) {
        session_close(s, "did not read its last frame while memory was short");
        return;
    }
    r->too_slow++;
    session_error(s, CONTROL_ERROR_TOO_SLOW,
                  "messages came faster than this subscriber reads them", true);
}

/* While the total is passed: those who hold much and do not read. */
static void relieve(struct router *r)
{
    struct session *most = NULL;
    bool some = false, moving = false;

    for (struct session *s = r->sessions, *next; s; s = next) {
        next = s->next;
        if (keeps_pace(s)) {
            moving |= holds(s) > ROUTER_PRESSURE_BYTES; /* who holds much takes it: that relieves */
            continue;
        }
        if (holds(s) == 0)
            continue;
        if (!most || holds(s) > holds(most))
            most = s;
        if (holds(s) > ROUTER_PRESSURE_BYTES) {
            let_go(r, s);
            some = true;
        }
    }
    if (most && !some && !moving)
        let_go(r, most);
}

static void remember(struct router *r)
{
    for (struct session *s = r->sessions; s; s = s->next)
        s->written_before = s->outbox.written_data;
}

static void on_pressure(uv_timer_t *timer)
{
    struct router *r = timer->data;

    bool some = false;

    for (struct session *s = r->sessions; s; s = s->next) {
        if (is_full(s, true) && !keeps_pace(s)) {
            let_go(r, s);
            some = true;
        }
    }
    if (!some && is_total_passed(r, true)) /* those let go just now have relieved it, or get their chance */
        relieve(r);
    remember(r);
    router_flush(r);
    router_check_pressure(r);
}

void router_check_pressure(struct router *r)
{
    if (r->phase != ROUTER_RUNNING)
        return;
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
