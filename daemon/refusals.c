/* SPDX-License-Identifier: PostgreSQL */
#include "refusals.h"

#include "base/macros.h"

static void tell_suppressed(struct refusals_user *u, struct logger *log)
{
    if (u->suppressed == 0)
        return;
    log_line(log, LOG_WARNING, "access.refused-more", "A user was refused more than was logged.",
             LOG_I64("uid", u->uid), LOG_U64("suppressed", u->suppressed));
    u->suppressed = 0;
}

static void fill(struct refusals_user *u, uint64_t now_ms)
{
    uint64_t more = (now_ms - u->filled_at) / REFUSALS_EVERY_MS;

    if (u->left + more >= REFUSALS_AT_ONCE) {
        u->left = REFUSALS_AT_ONCE;
        u->filled_at = now_ms;
        return;
    }
    u->left += (unsigned)more;
    u->filled_at += more * REFUSALS_EVERY_MS;
}

static struct refusals_user *user_of(struct refusals *f, struct logger *log, uid_t uid, uint64_t now_ms)
{
    struct refusals_user *oldest = &f->users[0];

    for (size_t i = 0; i < ARRAY_SIZE(f->users); i++) {
        struct refusals_user *u = &f->users[i];

        if (u->used && u->uid == uid)
            return u;
        if (oldest->used && (!u->used || u->last_at < oldest->last_at))
            oldest = u;
    }
    tell_suppressed(oldest, log);
    *oldest = (struct refusals_user){.used = true, .uid = uid, .left = REFUSALS_AT_ONCE, .filled_at = now_ms};
    return oldest;
}

void refusals_note(struct refusals *f, struct logger *log, uint64_t now_ms, const struct refusal *what)
{
    struct refusals_user *u = user_of(f, log, what->uid, now_ms);

    f->total++;
    u->last_at = now_ms;
    fill(u, now_ms);
    if (u->left == 0) {
        u->suppressed++;
        return;
    }
    u->left--;
    log_line(log, what->level, what->id, what->sentence, LOG_U64("session", what->session), LOG_I64("pid", what->pid),
             LOG_I64("uid", what->uid), LOG_STR("code", what->code), LOG_STR("text", what->text),
             LOG_U64("suppressed", u->suppressed));
    u->suppressed = 0;
}

void refusals_tick(struct refusals *f, struct logger *log, uint64_t now_ms)
{
    for (size_t i = 0; i < ARRAY_SIZE(f->users); i++) {
        struct refusals_user *u = &f->users[i];

        if (u->suppressed == 0)
            continue;
        fill(u, now_ms);
        if (u->left == 0)
            continue;
        u->left--;
        tell_suppressed(u, log);
    }
}
