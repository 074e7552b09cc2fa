/* SPDX-License-Identifier: PostgreSQL */
#include "feedback.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/macros.h"

void feedback_set_timeout(struct feedback *f, int64_t wal_sender_timeout_ms)
{
    f->interval = FEEDBACK_IDLE_NS;
    /* A third of the time-out: a report may be late by that much again and still count. */
    if (wal_sender_timeout_ms > 0)
        f->interval = MIN(f->interval, (uint64_t)wal_sender_timeout_ms * 1000000 / 3);
}

void feedback_connected(struct feedback *f, int64_t wal_sender_timeout_ms, uint64_t now)
{
    *f = (struct feedback){.reported_at = now};
    feedback_set_timeout(f, wal_sender_timeout_ms);
}

void feedback_advance(struct feedback *f, uint64_t lsn)
{
    if (lsn > f->mark)
        f->mark = lsn;
}

void feedback_asked(struct feedback *f, uint64_t wal_end)
{
    if (wal_end != f->asked_for)
        f->asked_count = 0;
    f->asked_for = wal_end;
    f->asked_count++;
    f->asked = true;
}

bool feedback_is_stuck(const struct feedback *f)
{
    return f->asked_count >= FEEDBACK_ASKED_MAX && f->mark < f->asked_for;
}

bool feedback_is_due(const struct feedback *f, uint64_t now, uint64_t *ret_wait)
{
    uint64_t since = now - f->reported_at;
    uint64_t limit = f->mark != f->reported ? MIN(FEEDBACK_PACE_NS, f->interval) : f->interval;

    *ret_wait = 0;
    if (f->asked || since >= limit)
        return true;
    *ret_wait = limit - since;
    return false;
}

void feedback_report(struct feedback *f, uint64_t now, int64_t unix_us, uint8_t out[FEEDBACK_SIZE])
{
    out[0] = 'r';
    bytes_put_u64(out + 1, f->mark);
    bytes_put_u64(out + 9, f->mark);
    bytes_put_u64(out + 17, f->mark);
    bytes_put_u64(out + 25, (uint64_t)(unix_us - CLOCK_PG_EPOCH_US));
    out[33] = 0;
    f->reported = f->mark;
    f->reported_at = now;
    f->asked = false;
}
