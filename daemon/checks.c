/* SPDX-License-Identifier: PostgreSQL */
#include "checks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "check_item.h"
#include "check_tally.h"
#include "checks_work.h"
#include "journal/fault.h"

/* From so many on the batches that wait keep no more memory than they need. */
#define TRIM_FROM 16u

struct checks {
    uv_loop_t *loop;
    struct quarantine *quarantine;
    struct check_rules *rules;
    check_verify verify;
    const struct checks_ops *ops;
    void *owner;
    struct logger *log;

    struct check_item *head, *tail;
    struct check_item *cut; /* the first that is not wholly with workers; NULL: none */
    size_t count, bytes;
    unsigned parts;         /* with workers */
    bool storing;
    int stuck;
    bool passing;           /* a batch is being passed */
    bool behind;            /* of this journal nothing that comes stands in quarantine */
    bool lost;              /* something was dropped that what comes stands behind */
    uint64_t system_identifier;
    uint32_t era;

    uv_async_t told; /* something is done */
    pthread_mutex_t lock;
    pthread_cond_t some_done;
    struct check_job *ready, **ready_end; /* under the lock: parts that are to be begun, oldest first, … */
    unsigned runners;                     /* … and how many workers look for them */
    struct check_job *done;               /* under the lock: newest first */
    bool closed;                          /* under the lock: nobody is told any more */

    struct checks_counts counts;
    struct check_tally unverified, withheld;
};

/* ---- the log ---- */

static void log_tallies(struct checks *c, uint64_t now)
{
    uint64_t entries = quarantine_count(c->quarantine).entries;

    check_tally_log(&c->withheld, c->log, now, true, entries);
    check_tally_log(&c->unverified, c->log, now, false, entries);
}

/* ---- items ---- */

static void item_drop(struct check_item *item)
{
    item->dropped = true;
    if (!item->jobs)
        (void)check_item_free(item);
}

static void push(struct checks *c, struct check_item *item)
{
    item->charge = batch_charge(item->batch);
    if (c->tail)
        c->tail->next = item;
    else
        c->head = item;
    c->tail = item;
    c->count++;
    c->bytes += item->charge;
    if (item->rules && !c->cut)
        c->cut = item;
}

static struct check_item *pop(struct checks *c)
{
    struct check_item *item = c->head;

    c->head = item->next;
    if (!c->head)
        c->tail = NULL;
    item->next = NULL;
    c->count--;
    c->bytes -= item->charge;
    return item;
}

void checks_drop(struct checks *c)
{
    while (c->head)
        item_drop(pop(c));
    c->cut = NULL;
    c->behind = false;
    c->lost = false;
    c->stuck = 0;
    c->ops->room(c->owner);
}

/* What was read behind it comes before the owner has heard: who got that would never get what is lost. */
static void no_memory(struct checks *c)
{
    checks_drop(c);
    c->lost = true;
    c->ops->no_memory(c->owner);
}

/* ---- jobs ---- */

/* Under the lock. */
static void put_done(struct checks *c, struct check_job *job)
{
    job->next = c->done;
    c->done = job;
    (void)pthread_cond_signal(&c->some_done);
    if (!c->closed)
        (void)uv_async_send(&c->told);
}

static void go_on(struct checks *c);

/* Whoever ends a part begins the next at once, and does not wait for the loop. */
static void on_run(uv_work_t *work)
{
    struct checks *c = work->data;
    struct check_job *job;

    (void)pthread_mutex_lock(&c->lock);
    while ((job = c->ready)) {
        c->ready = job->next;
        if (!c->ready)
            c->ready_end = &c->ready;
        (void)pthread_mutex_unlock(&c->lock);
        check_part(job, c->verify);
        (void)pthread_mutex_lock(&c->lock);
        put_done(c, job);
    }
    c->runners--;
    (void)pthread_mutex_unlock(&c->lock);
}

static void on_ran(uv_work_t *work, int status)
{
    (void)status; /* nobody cancels */
    go_on(work->data); /* what it has done may not have been told: behind checks_close() */
    free(work);
}

static void on_told(uv_async_t *told)
{
    go_on(told->data);
}

/* False: nobody runs, for want of memory. */
static bool start_runners(struct checks *c)
{
    bool some = true;

    (void)pthread_mutex_lock(&c->lock);
    while (c->ready && c->runners < CHECKS_AT_ONCE) {
        uv_work_t *work = calloc(1, sizeof *work);

        if (!work) {
            some = c->runners > 0;
            break;
        }
        c->runners++;
        work->data = c;
        (void)uv_queue_work(c->loop, work, on_run, on_ran); /* fails without a function alone */
    }
    (void)pthread_mutex_unlock(&c->lock);
    return some;
}

static void on_store(uv_work_t *work)
{
    struct check_job *job = work->data;
    struct checks *c = job->checks;

    check_store(job, c->quarantine);
    (void)pthread_mutex_lock(&c->lock);
    put_done(c, job);
    (void)pthread_mutex_unlock(&c->lock);
}

static void on_stored(uv_work_t *work, int status)
{
    struct check_job *job = work->data;

    (void)status;
    go_on(job->checks);
    free(job); /* it was taken from the list, now or before */
}

/* The next part. False: there is none; *ret_failed: no memory. */
static bool start_part(struct checks *c, bool *ret_failed)
{
    struct check_item *item = c->cut;
    size_t cost = 0, to;

    while (item && (!item->rules || item->cut == item->batch->n_entries))
        item = item->next;
    c->cut = item;
    if (!item)
        return false;
    struct check_job *job = calloc(1, sizeof *job);
    if (!job) {
        *ret_failed = true;
        return false;
    }
    for (to = item->cut; to < item->batch->n_entries && cost < CHECKS_PART; to++)
        if (item->policies[to] != POLICY_IGNORE)
            cost += CHECKS_MESSAGE_COST + item->batch->entries[to].size;
    *job = (struct check_job){.kind = CHECK_PART, .item = item, .from = item->cut, .to = to};
    item->cut = to;
    item->jobs++;
    c->parts++;
    (void)pthread_mutex_lock(&c->lock);
    *c->ready_end = job;
    c->ready_end = &job->next;
    (void)pthread_mutex_unlock(&c->lock);
    return true;
}

/* From the head on, as far as it is checked. */
static bool start_store(struct checks *c)
{
    struct check_job *job = calloc(1, sizeof *job);

    if (!job)
        return false;
    *job = (struct check_job){.kind = CHECK_STORE, .system_identifier = c->system_identifier, .era = c->era};
    for (struct check_item *item = c->head; item && check_item_is_checked(item) && job->n < CHECK_RUN_MAX;
         item = item->next) {
        if (item->rules && check_item_must_store(item)) {
            job->items[job->n++] = item;
            item->jobs++;
        }
    }
    c->storing = true;
    job->checks = c;
    job->work.data = job;
    (void)uv_queue_work(c->loop, &job->work, on_store, on_stored);
    return true;
}

/* ---- what is done ---- */

static int take_part(struct checks *c, struct check_job *job)
{
    struct check_item *item = job->item;
    size_t n = item->notes.n + job->notes.n;
    int r = job->error;

    item->jobs--;
    c->parts--;
    item->valid += job->valid;
    if (job->notes.n && r == 0) {
        struct check_note *grown = realloc(item->notes.notes, n * sizeof *grown);

        if (grown) {
            item->notes.notes = grown;
            memcpy(grown + item->notes.n, job->notes.notes, job->notes.n * sizeof *grown);
            item->notes.n = n;
            item->notes.cap = n;
            free(job->notes.notes);
            job->notes = (struct check_notes){0};
        } else {
            r = -ENOMEM;
        }
    }
    check_notes_deinit(&job->notes);
    if (item->dropped) {
        item_drop(item);
        return 0;
    }
    return r;
}

static void take_store(struct checks *c, struct check_job *job)
{
    c->storing = false;
    for (size_t i = 0; i < job->n; i++) {
        struct check_item *item = job->items[i];

        item->jobs--;
        item->stored = job->error == 0 && i < job->stored;
        if (item->dropped)
            item_drop(item);
    }
    if (job->error == c->stuck || (job->error && !c->head))
        return;
    c->stuck = job->error;
    c->ops->stuck(c->owner, job->error);
}

/* 0, or -ENOMEM: one of them failed for want of memory. */
static int take_done(struct checks *c)
{
    int r = 0;

    (void)pthread_mutex_lock(&c->lock);
    struct check_job *done = c->done;
    c->done = NULL;
    (void)pthread_mutex_unlock(&c->lock);
    while (done) {
        struct check_job *job = done;

        done = job->next;
        if (job->kind == CHECK_STORE) {
            take_store(c, job);
        } else {
            int e = take_part(c, job);
            r = e < 0 ? e : r;
            free(job);
        }
    }
    return r;
}

/* ---- passing ---- */

/* When it passes: what is dropped, or checked anew, is counted when that passes. */
static void count(struct checks *c, const struct check_item *item)
{
    c->counts.statuses[VERIFY_VALID] += item->valid;
    for (size_t i = 0; i < item->notes.n; i++) {
        const struct check_note *note = &item->notes.notes[i];
        struct bytes prefix = item->batch->entries[note->withheld.entry].prefix;

        c->counts.statuses[note->withheld.status]++;
        c->counts.withheld += note->required;
        check_tally_add(note->required ? &c->withheld : &c->unverified, prefix, note);
    }
}

/* Passes what is ready. False: no memory. */
static bool pass_ready(struct checks *c)
{
    bool passed = false;

    while (c->head && check_item_is_checked(c->head) && !c->stuck) {
        struct check_item *item = c->head;

        if (item->rules && check_item_must_store(item)) {
            if (!c->storing && !start_store(c))
                return false;
            break;
        }
        struct batch *batch = check_item_result(item);
        if (!batch)
            return false;
        if (item->stored)
            FAULT_POINT("quarantine-pass");
        if (c->cut == item)
            c->cut = item->next;
        count(c, item);
        (void)pop(c);
        (void)check_item_free(item);
        c->ops->pass(c->owner, batch);
        passed = true;
    }
    if (passed) {
        log_tallies(c, uv_now(c->loop));
        c->ops->room(c->owner);
    }
    return true;
}

/* Whatever can be done now. */
static void go_on(struct checks *c)
{
    bool failed = false;

    if (c->passing)
        return;
    c->passing = true;
    if (take_done(c) < 0)
        failed = true;
    while (!failed && c->parts < CHECKS_GIVEN && start_part(c, &failed))
        ;
    failed |= !start_runners(c);
    if (failed || !pass_ready(c))
        no_memory(c);
    c->passing = false;
}

/* ---- coming in ---- */

/* Something of it may stand in quarantine: the router died, or its journal failed, before that knew of it. What is
 * just being put there may be of the same messages, when they were dropped and come again. */
static bool may_have_come(struct checks *c, const struct batch *batch)
{
    if (!c->behind && !c->storing)
        c->behind = quarantine_is_behind(c->quarantine, c->system_identifier, c->era, batch->first);
    return !c->behind;
}

/* 1: it must be checked, and *item says what; 0; -ENOMEM. */
static int examine(struct checks *c, const struct batch *batch, struct check_item *item)
{
    if (!batch->n_entries || batch->again)
        return 0;
    item->came_before = may_have_come(c, batch);
    int r = c->rules->policies.idle ? 0 : check_policies(c->rules, batch, &item->policies);
    if (r < 0 || (r == 0 && !item->came_before))
        return r;
    if (r == 0)
        item->policies = calloc(batch->n_entries, 1);
    return item->policies ? 1 : -ENOMEM;
}

void checks_take(struct checks *c, struct batch *batch)
{
    struct check_item found = {0}, *item;

    if (c->lost) {
        (void)batch_unref(batch);
        return;
    }
    int r = examine(c, batch, &found);
    if (r == 0 && !c->head) {
        c->ops->pass(c->owner, batch);
        return;
    }
    item = r < 0 ? NULL : malloc(sizeof *item);
    if (!item) {
        free(found.policies);
        (void)batch_unref(batch);
        no_memory(c);
        return;
    }
    *item = found;
    item->batch = batch;
    item->rules = r ? check_rules_ref(c->rules) : NULL;
    if (c->count >= TRIM_FROM)
        batch_trim(batch);
    push(c, item);
    go_on(c);
    c->ops->room(c->owner);
}

void checks_set_journal(struct checks *c, uint64_t system_identifier, uint32_t era)
{
    c->system_identifier = system_identifier;
    c->era = era;
    c->behind = false;
}

/* All that stands and was checked by other rules; what is still with workers is so when they are done. */
static int recheck_all(struct checks *c)
{
    int r = 0;

    for (struct check_item *item = c->head; item && r == 0; item = item->next)
        if (item->rules && item->rules != c->rules && check_item_is_checked(item) && !item->stored)
            r = check_item_anew(item, c->rules);
    c->cut = c->head;
    return r;
}

void checks_set_rules(struct checks *c, struct check_rules *rules)
{
    (void)check_rules_unref(c->rules);
    c->rules = rules;
    checks_tick(c);
}

/* ---- asked ---- */

struct check_rules *checks_rules(const struct checks *c)
{
    return c->rules;
}

size_t checks_bytes(const struct checks *c)
{
    return c ? c->bytes : 0;
}

bool checks_is_full(const struct checks *c, bool half)
{
    size_t part = half ? 2 : 1;

    return c->stuck || c->bytes > CHECKS_BYTES_MAX / part || c->count > CHECKS_COUNT_MAX / part;
}

int checks_stuck(const struct checks *c)
{
    return c->stuck;
}

const struct checks_counts *checks_counts(const struct checks *c)
{
    return &c->counts;
}

/* ---- by time ---- */

void checks_tick(struct checks *c)
{
    log_tallies(c, uv_now(c->loop));
    if (c->stuck && !c->storing && recheck_all(c) < 0) {
        no_memory(c);
        return;
    }
    if (c->stuck && !c->storing && c->head && check_item_is_checked(c->head)) {
        if (c->head->rules && check_item_must_store(c->head)) {
            if (!start_store(c))
                no_memory(c);
            return;
        }
        c->stuck = 0; /* other rules let it through */
        c->ops->stuck(c->owner, 0);
    }
    go_on(c);
}

static bool is_done(struct checks *c, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    int r = 0;

    (void)pthread_mutex_lock(&c->lock);
    while (!c->done && r == 0)
        r = pthread_cond_timedwait(&c->some_done, &c->lock, &until);
    bool done = c->done;
    (void)pthread_mutex_unlock(&c->lock);
    return done;
}

uint64_t checks_finish(struct checks *c, struct position *ret_first)
{
    uint64_t left = 0;
    uint64_t until = clock_monotonic_ns() + CHECKS_FINISH_MS * UINT64_C(1000000);

    go_on(c);
    while (c->head && !c->stuck && is_done(c, until))
        go_on(c);
    bool lost = c->head;
    for (const struct check_item *item = c->head; item; item = item->next)
        left += item->batch->messages;
    if (c->head) /* which has some: nothing else waits in front */
        *ret_first = c->head->batch->first;
    checks_drop(c);
    log_tallies(c, CHECK_TALLY_LAST);
    c->lost = lost;
    return left;
}

/* ---- life ---- */

struct checks *checks_new(uv_loop_t *loop, struct quarantine *quarantine, struct check_rules *rules, check_verify verify,
                          const struct checks_ops *ops, void *owner, struct logger *log)
{
    struct checks *c = calloc(1, sizeof *c);
    pthread_condattr_t monotonic;

    if (!c) {
        (void)check_rules_unref(rules);
        return NULL;
    }
    *c = (struct checks){
        .loop = loop,
        .quarantine = quarantine,
        .rules = rules,
        .verify = verify,
        .ops = ops,
        .owner = owner,
        .log = log,
    };
    c->ready_end = &c->ready;
    if (uv_async_init(loop, &c->told, on_told) < 0) {
        (void)check_rules_unref(rules);
        free(c);
        return NULL;
    }
    c->told.data = c;
    uv_unref((uv_handle_t *)&c->told); /* the work itself keeps the loop */
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->some_done, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return c;
}

void checks_close(struct checks *c)
{
    (void)pthread_mutex_lock(&c->lock);
    bool closed = c->closed;
    c->closed = true;
    (void)pthread_mutex_unlock(&c->lock);
    checks_drop(c);
    if (!closed)
        uv_close((uv_handle_t *)&c->told, NULL);
}

struct checks *checks_free(struct checks *c)
{
    if (!c)
        return NULL;
    while (c->head)
        item_drop(pop(c));
    while (c->ready) { /* there was no memory for a worker */
        struct check_job *job = c->ready;

        c->ready = job->next;
        (void)take_part(c, job);
        free(job);
    }
    (void)check_rules_unref(c->rules);
    check_tally_deinit(&c->unverified);
    check_tally_deinit(&c->withheld);
    (void)pthread_cond_destroy(&c->some_done);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
    return NULL;
}
