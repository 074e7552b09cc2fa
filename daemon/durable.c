/* SPDX-License-Identifier: PostgreSQL */
/* The registry of durable subscriptions: names, holders, cursors. How it gets to disk is durable_store.c. */
#include "durable.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "durable_registry.h"

static uint64_t add_known(uint64_t a, uint64_t b)
{
    return a == UINT64_MAX || b == UINT64_MAX ? UINT64_MAX : a + b;
}

/* ---- filters ---- */

static size_t filters_cost(const struct filter *filters, size_t n)
{
    size_t cost = 0;

    for (size_t i = 0; i < n; i++)
        cost += filters[i].text.size + DURABLE_FILTER_COST * (1 + filter_tokens(&filters[i]));
    return cost;
}

struct durable_filters *durable_filters_new(const struct filter *filters, size_t n_filters, const struct filter *exclusions,
                                            size_t n_exclusions)
{
    struct durable_filters *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    *f = (struct durable_filters){
        .refs = 1,
        .filters = filters_copy(filters, n_filters),
        .exclusions = filters_copy(exclusions, n_exclusions),
        .n_filters = n_filters,
        .n_exclusions = n_exclusions,
        .cost = filters_cost(filters, n_filters) + filters_cost(exclusions, n_exclusions),
    };
    return f->filters && f->exclusions ? f : durable_filters_unref(f);
}

struct durable_filters *durable_filters_unref(struct durable_filters *f)
{
    if (f && --f->refs == 0) {
        free(f->filters);
        free(f->exclusions);
        free(f);
    }
    return NULL;
}

static bool filters_equal(const struct filter *a, size_t n, const struct filter *b, size_t m)
{
    if (n != m)
        return false;
    for (size_t i = 0; i < n; i++)
        if (a[i].kind != b[i].kind || !bytes_equal(a[i].text, b[i].text))
            return false;
    return true;
}

/* ---- where a name stands ---- */

struct position durable_cursor(const struct durables *ds, const struct durable *d)
{
    return d->floats ? position_later(d->cursor, ds->floated) : d->cursor;
}

struct position durable_stands(const struct durables *ds, const struct durable *d)
{
    struct position cursor = durable_cursor(ds, d);

    return d->gap.is ? position_later(cursor, d->gap.to) : cursor;
}

bool durables_float(const struct durables *ds)
{
    return ds->floating > 0;
}

/* In front of the transaction inside which it lies: who has floated there has had no part of it. Unless the journal
 * itself begins further on, inside it: what was passed over must not look like a gap. */
static struct position in_front(const struct durables *ds, struct position p)
{
    struct position front = {p.timeline, p.lsn, POSITION_INDEX_NONTRANSACTIONAL};
    struct segment_info oldest;

    if (!position_is_inside(p) || journal_segments(ds->journal) == 0)
        return p;
    journal_segment_info(ds->journal, 0, &oldest);
    return position_compare(front, oldest.after) < 0 ? p : front;
}

void durable_sink(struct durables *ds, struct durable *d)
{
    if (!d->floats)
        return;
    d->cursor = position_later(d->cursor, in_front(ds, ds->floated));
    route_remove(ds->route, &d->member);
    d->floats = false;
    ds->floating--;
    ds->matched -= d->matched;
    d->matched = false;
}

void durable_rise(struct durables *ds, struct durable *d)
{
    const struct durable_filters *f = d->filters;

    if (d->floats || d->holder || d->resumes || d->gap.is ||
        route_add(ds->route, &d->member, f->filters, f->n_filters, f->exclusions, f->n_exclusions) < 0)
        return;
    d->member.absent = true;
    d->floats = true;
    ds->floating++;
}

/* Nothing of the journal lies behind it, and nothing that was routed and is not yet there: to float is to skip that. */
static bool is_at_end(const struct durables *ds, const struct durable *d)
{
    return position_compare(d->cursor, position_later(journal_end(ds->journal)->last, ds->floated)) >= 0;
}

void durable_note_hole(const struct durables *ds, struct durable *d)
{
    struct segment_info oldest;

    if (journal_segments(ds->journal) == 0)
        return;
    journal_segment_info(ds->journal, 0, &oldest);
    if (position_compare(durable_stands(ds, d), oldest.after) < 0)
        d->gap = (struct durable_gap){true, oldest.after, UINT64_MAX, UINT64_MAX};
}

/* ---- the list of names ---- */

size_t durables_count(const struct durables *ds)
{
    return ds->n;
}

struct durable *durables_at(const struct durables *ds, size_t i)
{
    return ds->all[i];
}

static int name_compare(struct bytes a, struct bytes b)
{
    int r = memcmp(a.data, b.data, MIN(a.size, b.size));

    return r ? r : (a.size < b.size ? -1 : a.size > b.size);
}

/* The first that is not before the name. */
static size_t find_place(const struct durables *ds, struct bytes name)
{
    size_t low = 0, high = ds->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (name_compare(ds->all[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct durable *durables_find(const struct durables *ds, struct bytes name)
{
    size_t i = name.size ? find_place(ds, name) : ds->n;

    return i < ds->n && bytes_equal(ds->all[i]->name, name) ? ds->all[i] : NULL;
}

const char *durable_fault_text(enum durable_fault fault)
{
    switch (fault) {
    case DURABLE_OK:
        break;
    case DURABLE_TOO_MANY:
        return "there are 1,000 durable subscriptions, and that is the most";
    case DURABLE_FULL:
        return "the filters of all durable subscriptions would take more than 8 MiB";
    }
    return "nothing is wrong";
}

_Static_assert(CATALOG_NAMES_MAX == 1000 && DURABLES_FILTERS_MAX == 8u << 20, "as the texts say");

void durable_free(struct durable *d)
{
    (void)durable_filters_unref(d->filters);
    free((void *)(uintptr_t)d->name.data);
    free(d);
}

struct durable *durables_insert(struct durables *ds, struct bytes name, struct durable_filters *filters)
{
    struct durable *d = calloc(1, sizeof *d);
    uint8_t *copy = malloc(name.size + 1);
    size_t at = find_place(ds, name);

    if (ds->n == ds->cap) {
        size_t cap = ds->cap ? ds->cap * 2 : 16;
        struct durable **all = realloc(ds->all, cap * sizeof *all);

        if (all) {
            ds->all = all;
            ds->cap = cap;
        }
    }
    if (!d || !copy || ds->n == ds->cap) {
        free(d);
        free(copy);
        return NULL;
    }
    memcpy(copy, name.data, name.size);
    copy[name.size] = '\0';
    d->name = (struct bytes){copy, name.size};
    d->filters = filters;
    d->filters_made = ++ds->filters_made;
    memmove(ds->all + at + 1, ds->all + at, (ds->n - at) * sizeof *ds->all);
    ds->all[at] = d;
    ds->n++;
    ds->cost += filters->cost;
    return d;
}

int durables_add(struct durables *ds, struct bytes name, const struct filter *filters, size_t n_filters,
                 const struct filter *exclusions, size_t n_exclusions, struct position cursor, struct durable **ret)
{
    uint64_t running = journal_running_ms(ds->journal);

    if (ds->n + ds->n_removed >= CATALOG_NAMES_MAX)
        return DURABLE_TOO_MANY;
    struct durable_filters *f = durable_filters_new(filters, n_filters, exclusions, n_exclusions);
    if (!f)
        return -ENOMEM;
    if (f->cost > DURABLES_FILTERS_MAX - ds->cost) {
        (void)durable_filters_unref(f);
        return DURABLE_FULL;
    }
    struct durable *d = durables_insert(ds, name, f);
    if (!d) {
        (void)durable_filters_unref(f);
        return -ENOMEM;
    }
    d->cursor = d->acked = cursor;
    d->resumes = position_is_inside(cursor);
    d->seen_ms = d->made_ms = running;
    durable_note_hole(ds, d);
    if (is_at_end(ds, d))
        durable_rise(ds, d);
    durables_touch(ds, d, true, true);
    *ret = d;
    return 0;
}

void durable_set_maker(struct durable *d, uid_t uid)
{
    d->has_maker = true;
    d->maker = uid;
}

void durables_remove(struct durables *ds, struct durable *d)
{
    size_t at = find_place(ds, d->name);

    durable_sink(ds, d);
    memmove(ds->all + at, ds->all + at + 1, (ds->n - at - 1) * sizeof *ds->all);
    ds->n--;
    ds->n_removed++; /* counts, with its filters, until the catalog has let go of it too */
    d->next = ds->removed;
    ds->removed = d;
    durables_touch(ds, NULL, false, true);
}

int durable_set_filters(struct durables *ds, struct durable *d, const struct filter *filters, size_t n_filters,
                        const struct filter *exclusions, size_t n_exclusions)
{
    struct durable_filters *old = d->filters;

    if (filters_equal(old->filters, old->n_filters, filters, n_filters) &&
        filters_equal(old->exclusions, old->n_exclusions, exclusions, n_exclusions))
        return 0;
    struct durable_filters *f = durable_filters_new(filters, n_filters, exclusions, n_exclusions);
    if (!f)
        return -ENOMEM;
    if (f->cost > DURABLES_FILTERS_MAX - (ds->cost - old->cost)) {
        (void)durable_filters_unref(f);
        return DURABLE_FULL;
    }
    ds->cost += f->cost - old->cost;
    d->acked = durable_cursor(ds, d); /* of what lies before the others said what matches, and these do not */
    d->filters = f;
    d->filters_made = ++ds->filters_made;
    (void)durable_filters_unref(old);
    durables_touch(ds, d, true, true);
    return 0;
}

void durable_move(struct durables *ds, struct durable *d, struct position cursor)
{
    durable_sink(ds, d);
    d->sent = position_later(d->sent, d->cursor);
    d->cursor = d->acked = cursor;
    d->resumes = position_is_inside(cursor);
    d->gap = (struct durable_gap){0};
    d->mark = (struct durable_mark){0};
    /* what is on disk says no more where it stands: nothing may be dropped, or confirmed, on its word */
    d->stored = d->storing = (struct position){0};
    d->stored_gap = d->storing_gap = (struct position){0};
    durable_note_hole(ds, d);
    if (is_at_end(ds, d))
        durable_rise(ds, d);
    durables_touch(ds, d, true, true); /* who is told where it stands now must find it there after a crash */
}

/* From what was acknowledged to the cursor nothing matched, and that is known also of what the journal has no more. */
bool durable_is_reached(const struct durables *ds, const struct durable *d, struct position p, const struct filter *filters,
                        size_t n_filters, const struct filter *exclusions, size_t n_exclusions)
{
    const struct durable_filters *f = d->filters;
    struct segment_info oldest;

    if (d->gap.is || journal_segments(ds->journal) == 0 || position_compare(p, d->acked) < 0 ||
        position_compare(p, durable_cursor(ds, d)) > 0)
        return false;
    journal_segment_info(ds->journal, 0, &oldest);
    return position_compare(p, oldest.after) < 0 && filters_equal(f->filters, f->n_filters, filters, n_filters) &&
           filters_equal(f->exclusions, f->n_exclusions, exclusions, n_exclusions);
}

/* ---- holding ---- */

void durable_seen(struct durables *ds, struct durable *d)
{
    d->seen_ms = journal_running_ms(ds->journal);
}

void durable_hold(struct durables *ds, struct durable *d, struct session *s, pid_t pid)
{
    durable_sink(ds, d);
    d->holder = s;
    d->holder_pid = pid;
    d->confirm_due = false;
    durable_seen(ds, d);
}

void durable_release(struct durables *ds, struct durable *d, bool settled)
{
    d->holder = NULL;
    d->holder_pid = 0;
    d->confirm_due = false;
    durable_seen(ds, d);
    if (settled)
        durable_rise(ds, d);
    durables_touch(ds, d, false, false);
}

void durable_sent(struct durables *ds, struct durable *d, struct position position)
{
    (void)ds;
    d->sent = position_later(d->sent, position);
}

void durable_acked(struct durables *ds, struct durable *d, struct position position, bool confirm)
{
    d->acked = position_later(d->acked, position);
    if (position_compare(position, d->cursor) > 0) {
        d->cursor = position;
        d->resumes = position_is_inside(position);
        d->sent = position_later(d->sent, position);
        if (d->gap.is && position_compare(position, d->gap.to) >= 0)
            d->gap = (struct durable_gap){0};
        else if (d->gap.is)
            d->gap.messages = d->gap.bytes = UINT64_MAX; /* of what is left of it */
        durables_touch(ds, d, false, false);
    }
    if (!confirm)
        return;
    if (d->on_disk && position_compare(d->stored, position) >= 0) {
        ds->ops->confirmed(ds->owner, d, position);
        return;
    }
    d->confirm = d->confirm_due ? position_later(d->confirm, position) : position;
    d->confirm_due = true;
    durables_touch(ds, d, false, true);
}

/* Not worth a write: a cursor that is older on disk makes nothing come again that was delivered. */
void durable_float(struct durables *ds, struct durable *d, struct position position)
{
    (void)ds;
    if (d->holder && !d->gap.is && !d->resumes)
        d->cursor = position_later(d->cursor, position);
}

/* ---- suspended ---- */

bool durable_suspend(struct durables *ds, struct durable *d, struct position at, const char *why)
{
    bool is_new = d->mark.since == 0 || strcmp(why, d->mark.why) != 0;
    char text[POSITION_TEXT_SIZE];

    if (!is_new && position_compare(at, d->mark.at) == 0)
        return false;
    if (d->mark.since == 0)
        d->mark.since = clock_realtime_us();
    d->mark.at = at;
    (void)snprintf(d->mark.why, sizeof d->mark.why, "%s", why);
    durables_touch(ds, d, false, false);
    if (is_new)
        log_line(ds->log, LOG_ERROR, "durable.suspended",
                 "A durable subscription is suspended: the journal cannot be read for it. Whoever subscribes tries again.",
                 LOG_STR("subscription", (const char *)d->name.data), LOG_STR("behind", position_format(at, text)),
                 LOG_STR("why", d->mark.why));
    return is_new;
}

void durable_read_on(struct durables *ds, struct durable *d, struct position at, bool all)
{
    char text[POSITION_TEXT_SIZE];

    if (d->mark.since == 0 || (!all && position_compare(at, d->mark.at) <= 0))
        return;
    d->mark = (struct durable_mark){0};
    durables_touch(ds, d, false, false);
    log_line(ds->log, LOG_INFO, "durable.unsuspended",
             "A durable subscription is not suspended any more: what could not be read for it has been read, or is told as a gap.",
             LOG_STR("subscription", (const char *)d->name.data), LOG_STR("position", position_format(at, text)));
}

/* ---- routing ---- */

static void set_matched(struct durables *ds, struct durable *d, struct position position)
{
    if (d->matched || !d->floats || position_compare(position, durable_cursor(ds, d)) <= 0)
        return;
    d->matched = true;
    ds->matched++;
}

void durable_matched(struct durables *ds, struct route_member *m, struct position position)
{
    set_matched(ds, container_of(m, struct durable, member), position);
}

void durables_gap_routed(struct durables *ds, struct position position)
{
    for (size_t i = 0; ds->floating && i < ds->n; i++)
        set_matched(ds, ds->all[i], position);
}

void durables_routed(struct durables *ds, const struct batch *batch)
{
    struct position at = batch->mark_position;

    /* before they float on: the cursor stays where it was before this batch */
    for (size_t i = 0; ds->matched && i < ds->n; i++)
        if (ds->all[i]->matched)
            durable_sink(ds, ds->all[i]);
    if (batch->n_entries)
        at = position_later(at, batch->last);
    ds->floated = position_later(ds->floated, at);
}

void durables_fell_back(struct durables *ds)
{
    for (size_t i = 0; ds->floating && i < ds->n; i++)
        if (ds->all[i]->floats)
            ds->all[i]->cursor = position_later(ds->all[i]->cursor, in_front(ds, ds->floated));
    ds->floated = journal_end(ds->journal)->last;
}

/* ---- retention ---- */

static bool is_same_transaction(struct position a, struct position b)
{
    return a.timeline == b.timeline && a.lsn == b.lsn;
}

static void extend_gap(struct durable *d, struct position to, uint64_t messages, uint64_t bytes)
{
    d->gap.to = position_later(d->gap.to, to);
    d->gap.messages = add_known(d->gap.messages, messages);
    d->gap.bytes = add_known(d->gap.bytes, bytes);
}

void durable_pass(struct durables *ds, struct durable *d, struct position to, uint64_t messages, uint64_t bytes)
{
    if (position_compare(durable_stands(ds, d), to) >= 0)
        return;
    if (d->gap.is) { /* that is still to be told, and nothing behind it before */
        extend_gap(d, to, messages, bytes);
    } else {
        d->resumes &= position_is_inside(to) && is_same_transaction(d->cursor, to);
        d->cursor = to;
    }
    durables_touch(ds, d, false, true);
}

void durable_lost(struct durables *ds, struct durable *d, struct position to, uint64_t messages, uint64_t bytes)
{
    if (position_compare(durable_stands(ds, d), to) >= 0)
        return;
    durable_sink(ds, d);
    if (!d->gap.is)
        d->gap = (struct durable_gap){.is = true};
    extend_gap(d, to, messages, bytes);
    durables_touch(ds, d, false, true);
}

bool durables_stored_behind(struct durables *ds, struct position position)
{
    bool stored = true;

    for (size_t i = 0; i < ds->n; i++) {
        struct durable *d = ds->all[i];

        if (!d->on_disk || position_compare(position_later(d->stored, d->stored_gap), position) >= 0)
            continue;
        stored = false;
        if (!d->in_commit || position_compare(position_later(d->storing, d->storing_gap), position) < 0)
            durables_touch(ds, d, false, true);
    }
    return stored;
}

/* ---- time, and the server's ---- */

void durables_set_expiry(struct durables *ds, uint64_t expire_ms)
{
    ds->expire_ms = expire_ms;
}

static void expire(struct durables *ds, struct durable *d, uint64_t running)
{
    char cursor[POSITION_TEXT_SIZE];

    log_line(ds->log, LOG_WARNING, "durable.expired",
             "A durable subscription had no subscriber for longer than expire-after, and is removed.",
             LOG_STR("subscription", (const char *)d->name.data),
             LOG_STR("position", position_format(durable_cursor(ds, d), cursor)),
             LOG_U64("unseen_s", (running - d->seen_ms) / 1000), LOG_U64("expire_after_s", ds->expire_ms / 1000));
    durables_remove(ds, d);
}

void durables_tick(struct durables *ds)
{
    uint64_t running = journal_running_ms(ds->journal);
    uint64_t often = ds->expire_ms ? MIN(DURABLE_SEEN_MS, ds->expire_ms / 4) : DURABLE_SEEN_MS;

    for (size_t i = ds->n; i-- > 0;) {
        struct durable *d = ds->all[i];

        if (d->holder)
            d->seen_ms = running;
        if (d->seen_ms - MIN(d->seen_ms, d->seen_stored_ms) >= often)
            durables_touch(ds, d, false, false);
        if (!d->holder && ds->expire_ms && running > d->seen_ms && running - d->seen_ms >= ds->expire_ms)
            expire(ds, d, running);
    }
}

void durables_bound(struct durables *ds, struct position at, bool known)
{
    if (ds->bound)
        return;
    ds->bound = true;
    ds->known = known;
    for (size_t i = 0; i < ds->n; i++)
        ds->all[i]->sent = position_later(ds->all[i]->sent, at);
}

bool durables_is_bound(const struct durables *ds)
{
    return ds->bound;
}

int durables_new_era(struct durables *ds, const struct catalog_head *head, struct position after)
{
    ds->floated = after;
    for (size_t i = 0; i < ds->n; i++) {
        struct durable *d = ds->all[i];

        durable_sink(ds, d);
        d->cursor = d->acked = after;
        d->resumes = false;
        d->sent = (struct position){0};
        d->gap = (struct durable_gap){0};
        d->mark = (struct durable_mark){0};
        d->measured.known = false;
        d->stored = d->storing = d->stored_gap = d->storing_gap = (struct position){0};
        durable_rise(ds, d);
        durables_touch(ds, d, false, true);
    }
    ds->bound = ds->known = true; /* nothing of this era was sent to anybody */
    durables_set_head(ds, head);
    return durables_store(ds);
}
