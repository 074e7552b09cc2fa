/* SPDX-License-Identifier: PostgreSQL */
#include "client/sequence.h"

#include <errno.h>
#include <stdio.h>

void sequence_start(struct sequence *s, struct position last)
{
    *s = (struct sequence){.last = last};
}

static struct position end_of(uint32_t timeline, uint64_t commit_lsn)
{
    return (struct position){timeline, commit_lsn, POSITION_INDEX_END};
}

static int not_rising(const char *what, struct position p, struct position last,
                      char why[SEQUENCE_WHY_SIZE])
{
    char a[POSITION_TEXT_SIZE], b[POSITION_TEXT_SIZE];

    (void)snprintf(why, SEQUENCE_WHY_SIZE, "%s at %s does not stand behind %s.", what,
                   position_format(p, a), position_format(last, b));
    return -EBADMSG;
}

static int misplaced(const char *what, struct position p, const char *where,
                     char why[SEQUENCE_WHY_SIZE])
{
    char a[POSITION_TEXT_SIZE];

    (void)snprintf(why, SEQUENCE_WHY_SIZE, "%s at %s came %s.", what, position_format(p, a), where);
    return -EBADMSG;
}

int sequence_begin(struct sequence *s, const struct frame_begin *f, char why[SEQUENCE_WHY_SIZE])
{
    struct position begin = {f->timeline, f->commit_lsn, 0};
    struct position end = end_of(f->timeline, f->commit_lsn);

    if (s->in_transaction)
        return misplaced("BEGIN", end, "inside another transaction", why);
    if (position_compare(end, s->last) <= 0)
        return not_rising("BEGIN", end, s->last, why);
    s->in_transaction = true;
    s->timeline = f->timeline;
    s->commit_lsn = f->commit_lsn;
    if (position_compare(begin, s->last) > 0)
        s->last = begin;
    return 0;
}

int sequence_message(struct sequence *s, const struct frame_message *f, char why[SEQUENCE_WHY_SIZE])
{
    struct position p = f->position;

    if (position_compare(p, s->last) <= 0)
        return not_rising("MESSAGE", p, s->last, why);
    if (f->flags & FRAME_FLAG_TRANSACTIONAL) {
        if (!s->in_transaction || p.timeline != s->timeline || p.lsn != s->commit_lsn)
            return misplaced("Transactional MESSAGE", p, "outside its transaction", why);
        if (p.index == POSITION_INDEX_NONTRANSACTIONAL || p.index == POSITION_INDEX_END)
            return misplaced("Transactional MESSAGE", p, "with an index that it cannot have", why);
    } else {
        if (s->in_transaction)
            return misplaced("Non-transactional MESSAGE", p, "inside a transaction", why);
        if (p.index != POSITION_INDEX_NONTRANSACTIONAL)
            return misplaced("Non-transactional MESSAGE", p, "with an index that it cannot have",
                             why);
    }
    s->last = p;
    return 0;
}

int sequence_commit(struct sequence *s, const struct frame_commit *f, char why[SEQUENCE_WHY_SIZE])
{
    struct position end = end_of(f->begin.timeline, f->begin.commit_lsn);

    if (!s->in_transaction || f->begin.timeline != s->timeline ||
        f->begin.commit_lsn != s->commit_lsn)
        return misplaced("COMMIT", end, "without its BEGIN", why);
    if (position_compare(end, s->last) <= 0)
        return not_rising("COMMIT", end, s->last, why);
    s->in_transaction = false;
    s->last = end;
    return 0;
}

int sequence_progress(struct sequence *s, struct position to, char why[SEQUENCE_WHY_SIZE])
{
    if (position_compare(to, s->last) < 0)
        return not_rising("PROGRESS", to, s->last, why);
    if (s->in_transaction)
        return misplaced("PROGRESS", to, "inside a transaction", why);
    s->last = to;
    return 0;
}

int sequence_gap(struct sequence *s, const struct frame_gap *f, char why[SEQUENCE_WHY_SIZE])
{
    if (position_compare(f->from, s->last) <= 0)
        return not_rising("GAP", f->from, s->last, why);
    if (position_compare(f->to, f->from) < 0)
        return misplaced("GAP", f->from, "with an end before its beginning", why);
    if (s->in_transaction && position_compare(f->to, end_of(s->timeline, s->commit_lsn)) >= 0)
        s->in_transaction = false;
    s->last = f->to;
    return 0;
}
