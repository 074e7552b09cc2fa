/* SPDX-License-Identifier: PostgreSQL */
#include "names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "clients.h"

/* ---- what retention asks ---- */

static size_t on_behind(void *owner, struct position last, struct retention_name *out, size_t max)
{
    const struct router *r = owner;
    size_t n = 0;

    for (size_t i = 0; i < durables_count(r->durables); i++) {
        struct durable *d = durables_at(r->durables, i);
        struct position stands = durable_stands(r->durables, d);

        if (position_compare(stands, last) >= 0)
            continue;
        if (n < max)
            out[n] = (struct retention_name){
                .name = (const char *)d->name.data,
                .cursor = stands,
                .filters_made = d->filters_made,
                .filters = d->filters->filters,
                .exclusions = d->filters->exclusions,
                .n_filters = d->filters->n_filters,
                .n_exclusions = d->filters->n_exclusions,
            };
        n++;
    }
    return n;
}

static struct durable *find(const struct router *r, const char *name)
{
    return durables_find(r->durables, bytes_of_text(name));
}

static bool on_stands(void *owner, const char *name, struct position cursor, uint64_t filters_made)
{
    const struct router *r = owner;
    const struct durable *d = find(r, name);

    return d && d->filters_made == filters_made && position_compare(durable_stands(r->durables, d), cursor) == 0;
}

static void on_pass(void *owner, const char *name, struct position to, uint64_t messages, uint64_t bytes)
{
    struct router *r = owner;
    struct durable *d = find(r, name);

    durable_pass(r->durables, d, to, messages, bytes);
    if (d->holder && !d->gap.is)
        session_pass(d->holder, to);
}

static void on_lost(void *owner, const char *name, struct position to, uint64_t messages, uint64_t bytes)
{
    struct router *r = owner;

    durable_lost(r->durables, find(r, name), to, messages, bytes);
}

static bool on_may_go(void *owner, struct position last)
{
    const struct router *r = owner;

    return durables_stored_behind(r->durables, last);
}

static void on_held(void *owner)
{
    struct router *r = owner;

    source_pause(&r->source, retention_holds(&r->retention));
}

static const struct retention_ops retention_ops = {
    .behind = on_behind,
    .stands = on_stands,
    .pass = on_pass,
    .lost = on_lost,
    .may_go = on_may_go,
    .held = on_held,
};

/* ---- what the registry tells ---- */

static void on_confirmed(void *owner, struct durable *d, struct position position)
{
    (void)owner;
    if (d->holder)
        session_confirm(d->holder, position);
}

static void on_stored(void *owner)
{
    struct router *r = owner;

    retention_check(&r->retention);
    clients_stored(r);
}

static void on_measured(void *owner)
{
    clients_measured(owner);
}

static const struct durables_ops durables_ops = {
    .confirmed = on_confirmed,
    .stored = on_stored,
    .measured = on_measured,
};

/* ---- which journal they are of ---- */

uint32_t names_first_era(const struct router *r)
{
    struct catalog_head head;

    return durables_head(r->durables, &head) && head.era ? head.era : 1;
}

int names_begin_era(struct router *r, uint64_t system_identifier, uint32_t era, struct position after)
{
    const struct catalog_head head = {
        .system_identifier = system_identifier, .era = era, .proven = r->source.stream.proven};

    return durables_new_era(r->durables, &head, after);
}

/* It was made at this start, and would stand in the way of the one that is to be put back. */
static void remove_empty_journal(const struct router *r)
{
    char *path;

    if (asprintf(&path, "%s/journal", r->state.folder) < 0)
        return;
    (void)rmdir(path);
    free(path);
}

/* Brings the two together as far as a crash may have parted them. 0, or an exit code. */
static int match(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);
    struct segment_info first;
    struct catalog_head head;
    bool known = durables_head(r->durables, &head) && head.system_identifier;

    if (known)
        r->source.stream.proven = head.proven;
    if (end->empty && known && durables_count(r->durables)) {
        log_line(r->log, LOG_ERROR, "journal.missing",
                 "The state folder has a catalog of durable subscriptions but no journal: what they had not read is lost.",
                 LOG_STR("state_dir", r->state.folder), LOG_U64("subscriptions", durables_count(r->durables)),
                 LOG_U64("catalog_system", head.system_identifier), LOG_U64("catalog_era", head.era),
                 LOG_STR("mend", "put both back from the same copy; or move the folder away: a new journal begins where the "
                                 "slot stands, and subscribers begin anew"));
        remove_empty_journal(r);
        return ROUTER_EXIT_DECIDE;
    }
    if (end->empty || (known && head.system_identifier == end->system_identifier && head.era == end->era))
        return 0;
    if (known && head.era < end->era) {
        journal_segment_info(r->journal, 0, &first);
        int e = names_begin_era(r, end->system_identifier, end->era, first.after);
        if (e == 0)
            return 0;
        log_line(r->log, LOG_ERROR, "catalog.failed", "The catalog cannot be written.", LOG_STR("error", strerror(-e)));
        return ROUTER_EXIT_FAILURE;
    }
    log_line(r->log, LOG_ERROR, known ? "catalog.other" : "catalog.missing",
             known ? "The catalog of the state folder belongs to another journal than the one beside it."
                   : "The state folder has a journal but no catalog: its durable subscriptions are lost.",
             LOG_STR("state_dir", r->state.folder), LOG_U64("journal_system", end->system_identifier),
             LOG_U64("journal_era", end->era), LOG_U64("catalog_system", known ? head.system_identifier : 0),
             LOG_U64("catalog_era", known ? head.era : 0),
             LOG_STR("mend", "put both back from the same copy; or move the folder away: a new journal begins where the "
                             "slot stands, and subscribers begin anew"));
    return ROUTER_EXIT_DECIDE;
}

void names_log_unread(struct router *r)
{
    const struct journal_end *end = journal_end(r->journal);
    char at[POSITION_TEXT_SIZE], last[POSITION_TEXT_SIZE];

    for (size_t i = 0; i < durables_count(r->durables); i++) {
        const struct durable *d = durables_at(r->durables, i);
        struct position stands = durable_stands(r->durables, d);

        if (position_compare(stands, end->last) < 0)
            log_line(r->log, LOG_WARNING, "journal.unread",
                     "A durable subscription had not read the old era to its end.",
                     LOG_STR("subscription", (const char *)d->name.data), LOG_STR("position", position_format(stands, at)),
                     LOG_STR("end", position_format(end->last, last)));
    }
}

/* ---- life ---- */

int names_open(struct router *r)
{
    const struct settings *settings = r->settings;
    char why[CATALOG_WHY_SIZE];
    const struct retention_limits limits = {
        .size = settings->journal_size,
        .segments = r->max_segments,
        .age_ms = settings->journal_age / 1000,
        .segment_size = settings->segment_size,
        .when_full = (enum when_full)settings->when_full,
    };
    int e = durables_open(r->state.folder, r->loop, r->journal, r->route, settings->expire_after / 1000, &durables_ops, r,
                          r->log, &r->durables, why);

    if (e < 0) {
        log_line(r->log, LOG_ERROR, "catalog", why);
        return e == -EBADMSG ? ROUTER_EXIT_DECIDE : ROUTER_EXIT_FAILURE;
    }
    retention_init(&r->retention, r->loop, r->journal, &limits, &retention_ops, r, r->log);
    if (limits.segments && limits.size / limits.segment_size > limits.segments)
        log_line(r->log, LOG_WARNING, "journal.few-descriptors",
                 "The limit on open files leaves room for less journal than it may have.",
                 LOG_U64("journal_size", limits.size), LOG_U64("files", limits.size / limits.segment_size),
                 LOG_U64("files_at_most", limits.segments), LOG_STR("mend", "a larger segment-size, or LimitNOFILE"));
    return match(r);
}

void names_streaming(struct router *r)
{
    const struct source *s = &r->source;
    /* a source that is suspended has let go of the history */
    uint32_t timeline = s->history.current ? s->history.current : s->continuity.timeline;

    durables_bound(r->durables, (struct position){timeline, s->facts.wal_lsn, POSITION_INDEX_END}, true);
}

void names_given_up(struct router *r)
{
    durables_bound(r->durables, journal_end(r->journal)->last, false);
}

int names_unproven(struct router *r)
{
    struct catalog_head head;

    r->source.stream.proven = false;
    if (!durables_head(r->durables, &head))
        return 0;
    if (head.proven) {
        head.proven = false;
        durables_set_head(r->durables, &head);
    }
    return durables_head_is_stored(r->durables) ? 0 : durables_store(r->durables);
}

void names_synced(struct router *r)
{
    struct catalog_head head;

    if (!r->source.stream.proven || !durables_head(r->durables, &head) || head.proven)
        return;
    head.proven = true;
    durables_set_head(r->durables, &head);
}

void names_written(struct router *r)
{
    retention_check(&r->retention);
}

void names_tick(struct router *r)
{
    journal_tick(r->journal);
    for (const struct session *s = r->sessions; s; s = s->next) {
        struct durable *d = s->state == SESSION_WAITING ? durables_find(r->durables, s->subscribe.name) : NULL;

        if (d) /* whoever waits to be answered is a subscriber */
            durable_seen(r->durables, d);
    }
    durables_tick(r->durables);
    retention_check(&r->retention);
}

void names_finish(struct router *r)
{
    if (!r->durables)
        return;
    int e = durables_finish(r->durables, true);
    if (e < 0)
        log_line(r->log, LOG_ERROR, "catalog.failed", "The catalog cannot be written: some messages will come again.",
                 LOG_STR("error", strerror(-e)));
}

void names_close(struct router *r)
{
    retention_close(&r->retention);
    r->durables = durables_close(r->durables);
}
