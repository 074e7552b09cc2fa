/* SPDX-License-Identifier: PostgreSQL */
/*
 * From the registry to the catalog and back. What changed is marked (durables_touch); a
 * timer gathers it into one commit, which a worker writes; what changes meanwhile waits for the next. A commit that fails
 * leaves everything marked, and is tried again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "durable_registry.h"

struct durable_commit {
    uv_work_t work;
    struct durables *ds; /* NULL: it was dealt with already */
    struct catalog *catalog;
    struct catalog_changes *changes;
    bool whole; /* nothing was left for the next */
    int result;
    uv_mutex_t lock;
    uv_cond_t ended_cond;
    bool ended;
};

/* ---- pacing ---- */

static void on_timer(uv_timer_t *timer);

static void arm(struct durables *ds)
{
    uint64_t due, now = uv_now(ds->loop);

    if (ds->commit || !ds->changed || ds->closed)
        return;
    if (ds->failed)
        due = ds->ended_at + DURABLE_RETRY_MS;
    else
        due = ds->started_at + (ds->urgent ? DURABLE_CONFIRM_MS : DURABLE_COMMIT_MS);
    uint64_t wait = due > now ? due - now : 0;
    if (!uv_is_active((uv_handle_t *)&ds->timer) || uv_timer_get_due_in(&ds->timer) > wait)
        (void)uv_timer_start(&ds->timer, on_timer, wait, 0);
}

void durables_touch(struct durables *ds, struct durable *d, bool filters, bool urgent)
{
    if (d) {
        d->dirty = true;
        d->filters_dirty |= filters;
        if (filters)
            d->is_there = false;
    }
    ds->changed = true;
    ds->urgent |= urgent;
    arm(ds);
}

bool durable_is_stored(const struct durable *d)
{
    return d->is_there;
}

uint64_t durables_ticket(struct durables *ds)
{
    return ds->changed ? ds->started + 1 : ds->started;
}

bool durables_is_done(const struct durables *ds, uint64_t ticket)
{
    return ds->done >= ticket;
}

/* ---- one commit ---- */

static struct catalog_subscription subscription_of(const struct durables *ds, const struct durable *d)
{
    return (struct catalog_subscription){
        .name = d->name,
        .filters = d->filters->filters,
        .n_filters = d->filters->n_filters,
        .exclusions = d->filters->exclusions,
        .n_exclusions = d->filters->n_exclusions,
        .cursor = durable_cursor(ds, d),
        .resumes = d->resumes,
        .acked = d->acked,
        .sent = d->sent,
        .has_gap = d->gap.is,
        .gap_to = d->gap.to,
        .gap_messages = d->gap.messages,
        .gap_bytes = d->gap.bytes,
        .seen_ms = d->seen_ms,
        .made_ms = d->made_ms,
        .has_maker = d->has_maker,
        .maker = d->maker,
        .mark = {d->mark.since, d->mark.at, bytes_of_text(d->mark.why)},
    };
}

static void commit_free(struct durable_commit *c)
{
    uv_cond_destroy(&c->ended_cond);
    uv_mutex_destroy(&c->lock);
    (void)catalog_changes_free(c->changes);
    free(c);
}

static struct durable_commit *commit_new(struct durables *ds)
{
    struct durable_commit *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->changes = catalog_changes_new();
    if (!c->changes || uv_mutex_init(&c->lock) < 0) {
        (void)catalog_changes_free(c->changes);
        free(c);
        return NULL;
    }
    if (uv_cond_init(&c->ended_cond) < 0) {
        uv_mutex_destroy(&c->lock);
        (void)catalog_changes_free(c->changes);
        free(c);
        return NULL;
    }
    c->work.data = c;
    c->ds = ds;
    c->catalog = ds->catalog;
    c->whole = true;
    return c;
}

static int gather_name(struct durables *ds, struct durable *d, struct durable_commit *c, size_t *filters_size)
{
    struct catalog_subscription s = subscription_of(ds, d);

    if (d->filters_dirty && *filters_size > CATALOG_COMMIT_MAX) {
        c->whole = false; /* a name that is not there, or not so, yet: all of it next time */
        return 0;
    }
    if (d->filters_dirty)
        *filters_size += catalog_filters_size(s.filters, s.n_filters, s.exclusions, s.n_exclusions);
    int r = d->filters_dirty ? catalog_change_put(c->changes, &s) : catalog_change_state(c->changes, &s);
    if (r < 0)
        return r;
    d->storing = s.cursor;
    d->storing_gap = d->gap.is ? d->gap.to : (struct position){0};
    d->in_commit = true;
    d->filters_in_commit = d->filters_dirty;
    d->dirty = d->filters_dirty = false;
    return 0;
}

/* Everything that is marked. On failure what was gathered is marked in_commit all the same. */
static int gather(struct durables *ds, struct durable_commit *c, const struct catalog_head *head)
{
    size_t filters_size = 0;
    int r = 0;

    if (head) {
        r = catalog_change_head(c->changes, head);
        ds->head_in_commit = true;
        ds->head_dirty = false;
    }
    /* before the names: one of them may have been made anew */
    ds->removing = ds->removed;
    ds->removed = NULL;
    for (const struct durable *d = ds->removing; r == 0 && d; d = d->next)
        r = catalog_change_remove(c->changes, d->name);
    for (size_t i = 0; r == 0 && i < ds->n; i++)
        if (ds->all[i]->dirty)
            r = gather_name(ds, ds->all[i], c, &filters_size);
    return r;
}

static void take_name(struct durables *ds, struct durable *d, int result)
{
    d->in_commit = false;
    if (result < 0) {
        d->dirty = true;
        /* the catalog lacks what should be there: all of it, then */
        d->filters_dirty |= d->filters_in_commit || result == -ENOENT;
        d->filters_in_commit = false;
        return;
    }
    d->on_disk = true;
    d->stored = d->storing;
    d->stored_gap = d->storing_gap;
    d->seen_stored_ms = d->seen_ms;
    if (d->filters_in_commit && !d->filters_dirty)
        d->is_there = true;
    d->filters_in_commit = false;
    if (d->confirm_due && position_compare(d->stored, d->confirm) >= 0) {
        d->confirm_due = false;
        ds->ops->confirmed(ds->owner, d, d->confirm);
    }
}

static void take_removed(struct durables *ds, int result)
{
    struct durable *next;

    for (struct durable *d = ds->removing; d; d = next) {
        next = d->next;
        if (result < 0) {
            d->next = ds->removed;
            ds->removed = d;
        } else {
            ds->n_removed--;
            ds->cost -= d->filters->cost;
            durable_free(d);
        }
    }
    ds->removing = NULL;
}

static void log_result(struct durables *ds, int result)
{
    if (result == -ECANCELED)
        return;
    if (result < 0 && !ds->failed)
        log_line(ds->log, LOG_ERROR, "catalog.failed",
                 "The durable subscriptions cannot be stored; what waits for that waits on, and it is tried again.",
                 LOG_STR("error", strerror(-result)));
    if (result == 0 && ds->failed)
        log_line(ds->log, LOG_INFO, "catalog.recovered", "The durable subscriptions can be stored again.");
    ds->failed = result < 0;
}

/* The outcome of the commit that was the last to begin. */
static void take_result(struct durables *ds, bool whole, int result)
{
    log_result(ds, result);
    ds->ended_at = uv_now(ds->loop);
    if (result < 0 || !whole)
        ds->changed = ds->urgent = true;
    if (result < 0)
        ds->head_dirty |= ds->head_in_commit;
    ds->head_in_commit = false;
    if (result == 0 && whole)
        ds->done = ds->started;
    take_removed(ds, result);
    for (size_t i = 0; i < ds->n; i++)
        if (ds->all[i]->in_commit)
            take_name(ds, ds->all[i], result);
}

static void on_work(uv_work_t *work)
{
    struct durable_commit *c = work->data;
    int r = catalog_commit(c->catalog, c->changes);

    uv_mutex_lock(&c->lock);
    c->result = r;
    c->ended = true;
    uv_cond_signal(&c->ended_cond);
    uv_mutex_unlock(&c->lock);
}

static void on_committed(uv_work_t *work, int status)
{
    struct durable_commit *c = work->data;
    struct durables *ds = c->ds;

    (void)status; /* cancelled only by durables_store, which has dealt with it */
    if (ds) {
        bool whole = c->whole;
        int result = c->result;

        ds->commit = NULL;
        commit_free(c);
        take_result(ds, whole, result);
        ds->ops->stored(ds->owner);
        arm(ds);
        return;
    }
    commit_free(c);
}

static void begin(struct durables *ds)
{
    ds->changed = ds->urgent = false;
    ds->started++;
    ds->started_at = uv_now(ds->loop);
}

static void on_timer(uv_timer_t *timer)
{
    struct durables *ds = timer->data;
    struct catalog_head head = ds->head;
    struct durable_commit *c = commit_new(ds);

    begin(ds);
    head.clean = false;
    int r = c ? gather(ds, c, ds->head_dirty ? &head : NULL) : -ENOMEM;
    if (r == 0)
        r = uv_queue_work(ds->loop, &c->work, on_work, on_committed);
    if (r == 0) {
        ds->commit = c;
        return;
    }
    if (c)
        commit_free(c);
    take_result(ds, false, r);
    arm(ds);
}

/* ---- now ---- */

/* What is under way is over and dealt with when this returns. */
static void wait_for_commit(struct durables *ds)
{
    struct durable_commit *c = ds->commit;

    if (!c)
        return;
    ds->commit = NULL;
    c->ds = NULL; /* on_committed has nothing to do but to free it */
    if (uv_cancel((uv_req_t *)&c->work) == 0) {
        take_result(ds, c->whole, -ECANCELED); /* as if it had never been begun */
        return;
    }
    uv_mutex_lock(&c->lock);
    while (!c->ended)
        uv_cond_wait(&c->ended_cond, &c->lock);
    uv_mutex_unlock(&c->lock);
    take_result(ds, c->whole, c->result);
}

static int store_once(struct durables *ds, const struct catalog_head *head, bool *ret_whole)
{
    struct durable_commit *c = commit_new(ds);

    begin(ds);
    int r = c ? gather(ds, c, head) : -ENOMEM;
    if (r == 0)
        r = catalog_commit(ds->catalog, c->changes);
    *ret_whole = r < 0 || c->whole;
    if (c)
        commit_free(c);
    take_result(ds, *ret_whole, r);
    return r;
}

static int store(struct durables *ds, bool clean)
{
    struct catalog_head head = ds->head;
    bool whole = false;
    int r = 0;

    head.clean = false;
    wait_for_commit(ds);
    (void)uv_timer_stop(&ds->timer);
    /* that the stop is a clean one is the last word: not in front of names that did not go into one commit */
    while (r == 0 && !whole)
        r = store_once(ds, &head, &whole);
    if (r == 0 && clean) {
        head.clean = true;
        r = store_once(ds, &head, &whole);
    }
    return r;
}

int durables_store(struct durables *ds)
{
    return store(ds, false);
}

/* ---- head ---- */

bool durables_head(const struct durables *ds, struct catalog_head *ret)
{
    if (ds->has_head)
        *ret = ds->head;
    return ds->has_head;
}

bool durables_head_is_stored(const struct durables *ds)
{
    return !ds->head_dirty && !ds->head_in_commit;
}

void durables_set_head(struct durables *ds, const struct catalog_head *head)
{
    bool clean = ds->head.clean;

    ds->head = *head;
    ds->head.clean = clean;
    ds->has_head = true;
    ds->head_dirty = true;
    durables_touch(ds, NULL, false, false);
}

/* ---- opening ---- */

static int read_name(void *owner, const struct catalog_subscription *s)
{
    struct durables *ds = owner;
    struct durable_filters *f = durable_filters_new(s->filters, s->n_filters, s->exclusions, s->n_exclusions);
    struct durable *d = f ? durables_insert(ds, s->name, f) : NULL;

    if (!d) {
        (void)durable_filters_unref(f);
        return -ENOMEM;
    }
    d->cursor = d->stored = s->cursor;
    d->resumes = s->resumes;
    d->acked = s->acked;
    d->sent = s->sent;
    d->gap = (struct durable_gap){s->has_gap, s->gap_to, s->gap_messages, s->gap_bytes};
    if (s->has_gap)
        d->stored_gap = s->gap_to;
    d->seen_ms = d->seen_stored_ms = s->seen_ms;
    d->made_ms = s->made_ms;
    d->has_maker = s->has_maker;
    d->maker = (uid_t)s->maker;
    d->mark.since = s->mark.since;
    d->mark.at = s->mark.at;
    if (s->mark.why.size)
        memcpy(d->mark.why, s->mark.why.data, MIN(s->mark.why.size, sizeof d->mark.why - 1));
    d->on_disk = d->is_there = true;
    return 0;
}

/* Where the names stand by the journal as it was found. */
static void place_names(struct durables *ds)
{
    const struct journal_end *end = journal_end(ds->journal);

    ds->floated = end->last;
    for (size_t i = 0; i < ds->n; i++) {
        struct durable *d = ds->all[i];

        durable_note_hole(ds, d);
        if (position_compare(d->cursor, end->last) >= 0)
            durable_rise(ds, d);
    }
}

static int read_all(struct durables *ds, char why[CATALOG_WHY_SIZE])
{
    int r = catalog_read_head(ds->catalog, &ds->head);

    if (r == -EBADMSG)
        (void)snprintf(why, CATALOG_WHY_SIZE, "the catalog is damaged: its head is not what was written");
    if (r < 0 && r != -ENOENT)
        return r;
    ds->has_head = r == 0;
    (void)snprintf(why, CATALOG_WHY_SIZE, "no memory");
    char sentence[CATALOG_WHY_SIZE];
    r = catalog_read_all(ds->catalog, read_name, ds, sentence);
    if (r < 0 && sentence[0])
        memcpy(why, sentence, sizeof sentence);
    if (r < 0)
        return r;
    ds->bound = ds->known = ds->n == 0 || (ds->has_head && ds->head.clean);
    return 0;
}

int durables_open(const char *folder, uv_loop_t *loop, struct journal *journal, struct route *route, uint64_t expire_ms,
                  const struct durables_ops *ops, void *owner, struct logger *log, struct durables **ret,
                  char why[CATALOG_WHY_SIZE])
{
    struct durables *ds = calloc(1, sizeof *ds);

    if (!ds) {
        (void)snprintf(why, CATALOG_WHY_SIZE, "no memory");
        return -ENOMEM;
    }
    ds->loop = loop;
    ds->journal = journal;
    ds->route = route;
    ds->expire_ms = expire_ms;
    ds->ops = ops;
    ds->owner = owner;
    ds->log = log;
    (void)uv_timer_init(loop, &ds->timer);
    uv_unref((uv_handle_t *)&ds->timer);
    ds->timer.data = ds;
    int r = catalog_open(folder, &ds->catalog, why);
    if (r == 0)
        r = read_all(ds, why);
    if (r == 0) {
        place_names(ds);
        r = durables_store(ds); /* from here on a stop is an unclean one */
        if (r < 0)
            (void)snprintf(why, CATALOG_WHY_SIZE, "the catalog cannot be written: %s", strerror(-r));
    }
    if (r < 0) {
        (void)durables_close(ds);
        return r;
    }
    *ret = ds;
    return 0;
}

int durables_finish(struct durables *ds, bool clean)
{
    for (size_t i = 0; i < ds->n; i++) {
        struct durable *d = ds->all[i];

        if (d->holder)
            durable_release(ds, d, false);
        d->dirty = true; /* where it floats, and what was sent */
    }
    /* what was sent before an unclean stop, and was not yet found out, stays unknown */
    return store(ds, clean && ds->known);
}

/* ---- closing ---- */

void durables_free_if_idle(struct durables *ds)
{
    if (!ds->closed || !ds->timer_closed || ds->lags)
        return;
    free(ds);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct durables *ds = handle->data;

    ds->timer_closed = true;
    durables_free_if_idle(ds);
}

struct durables *durables_close(struct durables *ds)
{
    if (!ds)
        return NULL;
    wait_for_commit(ds);
    ds->closed = true;
    for (size_t i = 0; i < ds->n; i++) {
        durable_sink(ds, ds->all[i]);
        durable_free(ds->all[i]);
    }
    free(ds->all);
    ds->all = NULL;
    ds->n = 0;
    for (struct durable *d = ds->removed, *next; d; d = next) {
        next = d->next;
        durable_free(d);
    }
    ds->removed = NULL;
    ds->catalog = catalog_close(ds->catalog);
    uv_close((uv_handle_t *)&ds->timer, on_timer_closed);
    return NULL;
}
