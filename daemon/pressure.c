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
 * Two signs tell them apart. One that is *stalled*, its socket has taken nothing
 * for ROUTER_STALL_MS although messages wait, is let go as soon as its outbox is
 * more than half full, before anybody has waited for it: the other half is what
 * comes meanwhile. Two may *rest*, for ROUTER_REST_MS: one for which a content over
 * BATCH_LARGE waits, since it may well work on another, and one that was behind
 * when it last took something, with more than ROUTER_PRESSURE_BYTES waiting: it
 * reads a backlog, and a large process collects garbage for 300 ms where
 * processors are short. One that takes some waits its turn: when its outbox is full,
 * or all together hold more than ROUTER_BYTES_MAX, reading from the server waits,
 * as long as those who hold it up take at least ROUTER_PACE_BYTES every
 * ROUTER_PRESSURE_MS (some 0.5 MB a second); who may rest for a large content must fail
 * twice in a row. Whoever fails is told "too-slow".
 * Reading goes on when all outboxes, and all together, are half empty again.
 *
 *      rate of the log          what one stopped subscriber costs the others
 *      up to half an outbox
 *      in ROUTER_STALL_MS       nothing: it is let go before its outbox is full
 *      above                    the rest of ROUTER_STALL_MS, once
 *      any, it may rest         ROUTER_REST_MS, once
 *
 * Who holds it up: each session with a full outbox, and while the total is
 * passed each one that holds more than what it should have taken meanwhile, or
 * else the one that holds most. Of the stalled as few are let go for the total
 * as it takes, the one that holds most first. A session that was let go may take
 * SESSION_LEAVE_MS to read its last frame, but not while the total is passed.
 *
 * The router itself may have been away: its loop blocked by a look-up of the
 * server's name, its process stopped. Nobody is judged by that. One that looks
 * stalled is let go only when its socket takes nothing even now, and the time in
 * which a pace is judged is counted in looks.
 *
 * Letting go closes sessions, and trying to write does, each of which calls back;
 * `judging` keeps that from walking the list again from within.
 */
#include "router.h"

/* How often the stalled are looked for while reading waits, in ms. */
#define LOOK_MS 25u
/* After so many looks the pace is judged. */
#define PACE_LOOKS (ROUTER_PRESSURE_MS / LOOK_MS)

/* Nothing when nothing waits: what its ring takes then is given back. */
static size_t holds(const struct session *s)
{
    return s->outbox.n ? s->outbox.charge + s->outbox.large + outbox_ring(&s->outbox) : 0;
}

static bool is_full(const struct session *s, bool half)
{
    return s->state == SESSION_ACTIVE && outbox_is_full(&s->outbox, half);
}

/* Of what somebody still has to send, a single message, however large, is not yet too much. */
static bool is_total_passed(const struct router *r, bool half)
{
    size_t total = r->pool.live_bytes + r->pool.large_bytes;
    bool some = false;

    if (r->pool.live <= 1)
        return false;
    for (const struct session *s = r->sessions; s; s = s->next) {
        total += outbox_ring(&s->outbox);
        some |= s->outbox.charge + s->outbox.large > 0;
    }
    return some && total > ROUTER_BYTES_MAX / (half ? 2 : 1);
}

static bool is_some_full(const struct router *r, bool half)
{
    for (const struct session *s = r->sessions; s; s = s->next)
        if (is_full(s, half))
            return true;
    return false;
}

static bool is_pressed(const struct router *r, bool half)
{
    return is_some_full(r, half) || is_total_passed(r, half);
}

/* Whether somebody must go for the total's sake. Half of it counts only when nothing else is waited for: as long as
 * a full outbox is, what others hold delays nobody. */
static bool is_total_to_blame(const struct router *r)
{
    return is_total_passed(r, r->holding && !is_some_full(r, true));
}

/* One in front of large contents has just got one, and works on it; one that was behind reads a backlog. */
static bool may_rest(const struct session *s)
{
    return s->state == SESSION_ACTIVE && (s->outbox.large || s->behind > ROUTER_PRESSURE_BYTES);
}

static bool is_stalled(const struct router *r, const struct session *s)
{
    uint64_t patience = may_rest(s) ? ROUTER_REST_MS : ROUTER_STALL_MS;

    return s->outbox.n && uv_now(r->loop) - s->took_at >= patience;
}

static bool keeps_pace(const struct session *s)
{
    return s->outbox.written_data - s->written_before >= ROUTER_PACE_BYTES;
}

/* One that works on a large content falls short of the pace once; twice in a row is no work, but a trickle. */
static bool is_too_slow(const struct session *s)
{
    return !keeps_pace(s) && (!s->outbox.large || s->fell_short);
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
        if (holds(s) == 0)
            continue;
        if (!is_too_slow(s)) {
            moving |= holds(s) > ROUTER_PRESSURE_BYTES; /* who holds much takes it: that relieves */
            continue;
        }
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

/* A window of judgement begins. */
static void begin_window(struct router *r, bool first)
{
    for (struct session *s = r->sessions; s; s = s->next) {
        s->fell_short = !first && !keeps_pace(s);
        s->written_before = s->outbox.written_data;
    }
    r->looks = PACE_LOOKS;
}

/* Whether its socket takes nothing even now. */
static bool stays_stalled(const struct router *r, struct session *s)
{
    session_flush(s); /* may close it: then nothing waits */
    return is_stalled(r, s);
}

/* Whom to let go first for the total's sake, NULL: nobody. It would not help to let those go who hold little while
 * others who read hold much. */
static struct session *largest_stalled(const struct router *r)
{
    struct session *most = NULL;
    bool others = false;

    for (struct session *s = r->sessions; s; s = s->next) {
        if (!is_stalled(r, s))
            others |= holds(s) > ROUTER_PRESSURE_BYTES;
        else if (!most || holds(s) > holds(most))
            most = s;
    }
    return most && (!others || holds(most) > ROUTER_PRESSURE_BYTES) ? most : NULL;
}

/* Lets go of those who do not read at all and hold much. */
static void let_stalled_go(struct router *r)
{
    struct session *next;

    for (struct session *s = r->sessions; s; s = next) {
        next = s->next;
        if (is_full(s, true) && is_stalled(r, s) && stays_stalled(r, s))
            let_go(r, s);
    }
    /* Ends: whoever is found takes something, or leaves, or is closed. */
    for (struct session *s; is_total_to_blame(r) && (s = largest_stalled(r));)
        if (stays_stalled(r, s))
            let_go(r, s);
}

static void judge_pace(struct router *r)
{
    bool some = false;

    for (struct session *s = r->sessions; s; s = s->next) {
        if (is_full(s, true) && is_too_slow(s)) {
            let_go(r, s);
            some = true;
        }
    }
    if (!some && is_total_to_blame(r)) /* those let go just now have relieved it, or get their chance */
        relieve(r);
    begin_window(r, false);
}

static void on_pressure(uv_timer_t *timer)
{
    struct router *r = timer->data;

    if (--r->looks == 0) {
        r->judging = true;
        judge_pace(r);
        r->judging = false;
    }
    router_check_pressure(r);
    router_flush(r);
}

/* What a busy time has made the rings take is nobody's queue. */
static void shrink_rings(struct router *r)
{
    for (struct session *s = r->sessions; s; s = s->next)
        outbox_shrink(&s->outbox);
}

void router_check_pressure(struct router *r)
{
    if (r->phase != ROUTER_RUNNING || r->judging)
        return;
    if (is_total_passed(r, r->holding))
        shrink_rings(r);
    r->judging = true;
    let_stalled_go(r);
    r->judging = false;
    bool pressed = is_pressed(r, r->holding);

    if (pressed == r->holding)
        return;
    r->holding = pressed;
    source_hold(&r->source, pressed);
    if (!pressed) {
        (void)uv_timer_stop(&r->pressure);
        return;
    }
    begin_window(r, true);
    uv_update_time(r->loop);
    (void)uv_timer_start(&r->pressure, on_pressure, LOOK_MS, LOOK_MS);
}
