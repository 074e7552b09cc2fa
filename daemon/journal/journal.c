/* SPDX-License-Identifier: PostgreSQL */
#include "journal/journal.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "journal/writer.h"

#define RING_START 64u

/* ---- rings ---- */

static bool ring_reserve(struct ring *r)
{
    if (r->tail - r->head < r->cap)
        return true;
    size_t cap = r->cap ? 2 * r->cap : RING_START;
    struct ring grown = {
        .slots = malloc(cap * sizeof *grown.slots), .cap = cap, .head = r->head, .tail = r->tail};
    if (!grown.slots)
        return false;
    for (uint64_t i = r->head; i < r->tail; i++)
        *ring_at(&grown, i) = *ring_at(r, i);
    free(r->slots);
    *r = grown;
    return true;
}

/* ---- the end, as the loop sees it ---- */

static void end_set(struct journal *j, const struct segment_state *state)
{
    j->end.last = state->end.before;
    j->end.inside = state->end.starts_inside;
    j->end.begin = state->end_begin;
    j->end.received_time = state->end.received_time;
    j->end.messages = state->end.messages;
    j->end.bytes = state->end.bytes;
}

void journal_set_end(struct journal *j, const struct segment_header *h)
{
    (void)memcpy(j->database, h->database, sizeof j->database);
    (void)memcpy(j->slot, h->slot, sizeof j->slot);
    j->end = (struct journal_end){
        .system_identifier = h->system_identifier,
        .era = h->era,
        .database = j->database,
        .slot = j->slot,
        .mark = j->writer.synced.mark,
        .mark_timeline = j->writer.synced.mark_timeline,
    };
    end_set(j, &j->writer.synced);
    /* what else is told before something was written says that nothing was */
    (void)pthread_mutex_lock(&j->lock);
    j->news.written = j->writer.synced;
    j->news.end_mark = j->end.mark;
    j->news.end_mark_timeline = j->end.mark_timeline;
    (void)pthread_mutex_unlock(&j->lock);
}

const struct journal_end *journal_end(const struct journal *j)
{
    return &j->end;
}

uint64_t journal_running_ms(const struct journal *j)
{
    return j->running_base + atomic_load_explicit(&j->ran_ns, memory_order_relaxed) / 1000000u;
}

void journal_tick(struct journal *j)
{
    uint64_t now = clock_monotonic_ns();

    (void)atomic_fetch_add_explicit(&j->ran_ns, MIN(now - j->ticked_at, JOURNAL_STOOD_MS * UINT64_C(1000000)),
                                    memory_order_relaxed);
    j->ticked_at = now;
}

/* ---- what the journal thread has to say ---- */

/* Those of the queue up to `done` leave `pending`, and, behind the call, the queue. */
static void release(struct journal *j, uint64_t done, void (*before_drop)(void *owner))
{
    (void)pthread_mutex_lock(&j->lock);
    uint64_t head = j->queue.head;
    (void)pthread_mutex_unlock(&j->lock);
    if (head == done)
        return;
    for (uint64_t i = head; i < done; i++) { /* the loop alone moves the slots */
        struct batch *b = *ring_at(&j->queue, i);

        j->queued_bytes -= batch_charge(b);
        j->pending.head += !b->again;
    }
    if (before_drop)
        before_drop(j->owner);
    if (j->closing) /* it has dropped them */
        return;
    for (uint64_t i = head; i < done; i++) {
        struct batch *b = *ring_at(&j->queue, i);

        if (b->refs > 1) /* somebody waits to send from it */
            batch_settle(b);
        batch_unref(b);
    }
    (void)pthread_mutex_lock(&j->lock);
    j->queue.head = done;
    (void)pthread_mutex_unlock(&j->lock);
}

static void tell_failure(struct journal *j, const struct news *news)
{
    end_set(j, &news->written);
    j->end.mark = news->end_mark;
    j->end.mark_timeline = news->end_mark_timeline;
    release(j, news->done, NULL);
    j->ops->failed(j->owner, -news->error, news->what);
}

static void tell_progress(struct journal *j, const struct news *news)
{
    end_set(j, &news->written);
    j->end.mark = news->end_mark;
    j->end.mark_timeline = news->end_mark_timeline;
    release(j, news->done, j->ops->written);
    if (news->synced && !j->closing)
        j->ops->synced(j->owner, news->synced_mark, news->synced_connection);
}

/* It has failed until the owner hears that it can go on: what is appended before would not follow what is there. */
static void tell_retried(struct journal *j, int error)
{
    if (error == 0) {
        (void)pthread_mutex_lock(&j->lock);
        j->failed = false;
        (void)pthread_mutex_unlock(&j->lock);
    }
    j->ops->retried(j->owner, -error);
}

/* What is called may append, and may close the journal. */
static void deliver(struct journal *j)
{
    if (j->delivering)
        return;
    j->delivering = true;
    while (!j->closing) {
        (void)pthread_mutex_lock(&j->lock);
        struct news news = j->news;
        j->news.any = j->news.synced = j->news.failed = j->news.retried = j->news.differs = false;
        j->news.trouble_id = NULL;
        (void)pthread_mutex_unlock(&j->lock);
        if (!news.any)
            break;
        if (news.failed)
            tell_failure(j, &news);
        else
            tell_progress(j, &news);
        if (news.retried && !j->closing)
            tell_retried(j, news.retry_error);
        if (news.trouble_id && !j->closing && strcmp(news.trouble, j->trouble) != 0) {
            (void)snprintf(j->trouble, sizeof j->trouble, "%s", news.trouble);
            log_line(j->log, LOG_WARNING, news.trouble_id,
                     "The journal has a file that cannot be used as it should.",
                     LOG_STR("what", news.trouble));
        }
        if (news.differs && !j->closing)
            j->ops->differs(j->owner, news.differs_at, news.differs_what);
    }
    j->delivering = false;
}

static void on_async(uv_async_t *async)
{
    deliver(container_of(async, struct journal, async));
}

/* ---- handing over ---- */

/* When the loop is about to wait: so one turn's batches are one call, and go out to sessions before it. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct journal *j = container_of(prepare, struct journal, prepare);

    (void)uv_prepare_stop(prepare);
    j->wake_is_due = false;
    (void)pthread_cond_signal(&j->wake);
}

/* With so many waiting the disk is slow, or each is small: then they keep no more than they need. */
#define TRIM_FROM 64u

void journal_append(struct journal *j, struct batch *batch)
{
    assert(!j->closing && !j->end.empty);
    if (j->queue.tail - j->queue.head >= TRIM_FROM) /* the loop alone moves them */
        batch_trim(batch);
    (void)pthread_mutex_lock(&j->lock);
    bool taken = !j->failed && !j->no_memory;
    if (taken && (!ring_reserve(&j->queue) || !ring_reserve(&j->pending))) {
        j->no_memory = true;
        taken = false;
        (void)pthread_cond_signal(&j->wake);
    }
    if (taken)
        *ring_at(&j->queue, j->queue.tail++) = batch_ref(batch);
    (void)pthread_mutex_unlock(&j->lock);
    if (!taken)
        return;
    j->queued_bytes += batch_charge(batch);
    if (!batch->again)
        *ring_at(&j->pending, j->pending.tail++) = batch;
    if (!j->wake_is_due) {
        j->wake_is_due = true;
        (void)uv_prepare_start(&j->prepare, on_prepare);
    }
}

void journal_no_memory(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    j->no_memory = !j->failed;
    (void)pthread_cond_signal(&j->wake);
    (void)pthread_mutex_unlock(&j->lock);
}

size_t journal_queued(const struct journal *j)
{
    return j->queued_bytes;
}

bool journal_is_full_queue(const struct journal *j, bool half)
{
    return j->queued_bytes > JOURNAL_QUEUE_MAX / (half ? 2 : 1);
}

size_t journal_pending(const struct journal *j)
{
    return (size_t)(j->pending.tail - j->pending.head);
}

struct batch *journal_pending_at(const struct journal *j, size_t i)
{
    return *ring_at(&j->pending, j->pending.head + i);
}

struct position journal_written(const struct journal *j)
{
    return j->end.last;
}

/* ---- while the journal thread rests ---- */

/* Under the lock. Files to unlink are unlinked also when it has failed. */
static bool is_settled(const struct journal *j)
{
    return j->resting && !j->no_memory && !(j->doomed && !j->doomed_stuck) &&
           (j->failed ? !j->retry : j->taken == j->queue.tail);
}

/* Under the lock: waits until nothing is left to do, or it has failed and is not trying again. */
static void settle(struct journal *j)
{
    if (is_settled(j))
        return;
    j->finishing = true;
    (void)pthread_cond_signal(&j->wake);
    while (!is_settled(j))
        (void)pthread_cond_wait(&j->settled, &j->lock);
    j->finishing = false;
}

int journal_finish(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    settle(j);
    int r = j->failed ? j->error : 0;
    (void)pthread_mutex_unlock(&j->lock);
    deliver(j);
    return r;
}

bool journal_has_failed(const struct journal *j)
{
    struct journal *shared = (struct journal *)(uintptr_t)j; /* a lock is no state */

    (void)pthread_mutex_lock(&shared->lock);
    bool failed = j->failed;
    (void)pthread_mutex_unlock(&shared->lock);
    return failed;
}

void journal_retry(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    /* An owner that has not heard of the failure still goes on from another end. */
    if (j->failed && !j->news.failed && !j->news.retried) {
        j->retry = true;
        (void)pthread_cond_signal(&j->wake);
    }
    (void)pthread_mutex_unlock(&j->lock);
}

/* ---- eras ---- */

int journal_begin_era(struct journal *j, uint64_t system_identifier, uint32_t era,
                      const char *database, const char *slot, struct position after, uint64_t mark,
                      uint32_t mark_timeline)
{
    struct segment_header h = {
        .system_identifier = system_identifier,
        .era = era,
        .after = after,
        .mark = mark,
        .mark_timeline = mark_timeline,
    };
    struct writer *w = &j->writer;
    struct doomed *doomed, **doomed_end;
    struct segment *s;

    if (strlen(database) > JOURNAL_NAME_SIZE || strlen(slot) > JOURNAL_NAME_SIZE)
        return -ENAMETOOLONG;
    if (!j->end.empty && j->end.system_identifier == system_identifier && j->end.era == era)
        return -EEXIST; /* its segments could not be told from the old ones */
    (void)memcpy(h.database, database, strlen(database));
    (void)memcpy(h.slot, slot, strlen(slot));
    (void)pthread_mutex_lock(&j->lock);
    settle(j);
    (void)pthread_mutex_unlock(&j->lock);
    deliver(j);

    int r = doomed_all(j, &doomed, &doomed_end);
    if (r == 0) {
        r = writer_make_segment(j, &h, &s);
        if (r < 0)
            doomed_free(doomed);
    }
    if (r < 0)
        return r;
    compare_deinit(&w->compare);
    w->has_passed = w->refused = false;
    writer_add_segment(j, s);

    (void)pthread_mutex_lock(&j->lock);
    size_t n_old = j->n_segments - 1;
    struct segment *newest = j->segments[n_old];
    for (size_t i = 0; i < n_old; i++)
        segment_unref(j->segments[i]);
    j->segments[0] = newest;
    j->n_segments = 1;
    j->size_before_tail = 0;
    j->failed = false;
    if (doomed)
        doomed_add(j, doomed, doomed_end);
    (void)pthread_mutex_unlock(&j->lock);
    journal_set_end(j, &s->header);
    return 0;
}

/* ---- opening and closing ---- */

struct journal *journal_ref(struct journal *j)
{
    (void)atomic_fetch_add_explicit(&j->refs, 1, memory_order_relaxed);
    return j;
}

struct journal *journal_unref(struct journal *j)
{
    if (!j || atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) != 1)
        return NULL;
    for (size_t i = 0; i < j->n_segments; i++)
        segment_unref(j->segments[i]);
    free(j->segments);
    segment_unref(j->writer.tail);
    compare_deinit(&j->writer.compare);
    doomed_free(j->doomed);
    doomed_free(j->stale);
    free(j->queue.slots);
    free(j->pending.slots);
    (void)pthread_cond_destroy(&j->settled);
    (void)pthread_cond_destroy(&j->wake);
    (void)pthread_mutex_destroy(&j->lock);
    free(j->folder);
    free(j);
    return NULL;
}

static void on_close(uv_handle_t *handle)
{
    struct journal *j = handle->data;

    if (--j->handles == 0)
        journal_unref(j);
}

struct journal *journal_close(struct journal *j)
{
    if (!j)
        return NULL;
    j->closing = true;
    if (j->has_thread) {
        (void)pthread_mutex_lock(&j->lock);
        j->stop = true;
        (void)pthread_cond_signal(&j->wake);
        (void)pthread_mutex_unlock(&j->lock);
        (void)pthread_join(j->thread, NULL);
        if (j->failed)
            (void)writer_cut_tail(j);
    }
    while (j->queue.head < j->queue.tail)
        batch_unref(*ring_at(&j->queue, j->queue.head++));
    j->pending.head = j->pending.tail;
    if (!j->handles)
        return journal_unref(j);
    uv_close((uv_handle_t *)&j->async, on_close);
    uv_close((uv_handle_t *)&j->prepare, on_close);
    return NULL;
}

static struct journal *journal_alloc(const struct journal_options *options,
                                     const struct journal_ops *ops, void *owner, struct logger *log)
{
    struct journal *j = calloc(1, sizeof *j);
    pthread_condattr_t monotonic;

    if (!j)
        return NULL;
    atomic_init(&j->refs, 1);
    (void)pthread_mutex_init(&j->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&j->wake, &monotonic);
    (void)pthread_cond_init(&j->settled, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    j->segment_size = options->segment_size;
    j->sync_interval_ns = options->sync_interval_ns;
    j->ops = ops;
    j->owner = owner;
    j->log = log;
    j->ticked_at = clock_monotonic_ns();
    j->end.empty = true;
    j->doomed_end = &j->doomed;
    j->stale_end = &j->stale;
    j->folder = strdup(options->folder);
    return j->folder ? j : journal_unref(j);
}

/* No signal is for it. */
static int start_thread(struct journal *j)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&j->thread, NULL, writer_run, j);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    j->has_thread = r == 0;
    return -r;
}

int journal_open(const struct journal_options *options, uv_loop_t *loop,
                 const struct journal_ops *ops, void *owner, struct logger *log,
                 struct journal **ret, char why[JOURNAL_WHY_SIZE])
{
    struct journal *j = journal_alloc(options, ops, owner, log);

    if (!j) {
        (void)snprintf(why, JOURNAL_WHY_SIZE, "there is no memory for the journal");
        return -ENOMEM;
    }
    int r = journal_open_folder(j, why);
    if (r < 0) {
        journal_unref(j);
        return r;
    }
    r = uv_async_init(loop, &j->async, on_async);
    if (r == 0) {
        (void)uv_prepare_init(loop, &j->prepare);
        j->async.data = j->prepare.data = j;
        j->handles = 2;
        r = start_thread(j);
    }
    if (r < 0) {
        journal_close(j);
        (void)snprintf(why, JOURNAL_WHY_SIZE, "the journal's thread cannot be started: %s",
                       strerror(-r));
        return r;
    }
    *ret = j;
    return 0;
}
