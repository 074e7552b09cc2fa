/* SPDX-License-Identifier: PostgreSQL */
#include "retention.h"

#include <stdlib.h>
#include <string.h>

#include "journal/reader.h"

/* What a worker looks up. Names may go, and change their filters, meanwhile: it has copies. */
struct retention_job {
    uv_work_t work;
    struct retention *retention;
    struct journal *journal;
    uint64_t segment;
    struct position last; /* of the segment */
    bool full;
    size_t n;
    char *names[RETENTION_PROBES_MAX];
    uint64_t filters_made[RETENTION_PROBES_MAX];
    struct filter *copies[2 * RETENTION_PROBES_MAX];
    struct journal_probe probes[RETENTION_PROBES_MAX];
};

enum retention_verdict retention_decide(const struct retention_limits *limits, size_t segments,
                                        uint64_t size, uint64_t running_ms,
                                        uint64_t second_begun_ms, size_t names_behind,
                                        bool *ret_full)
{
    *ret_full = size > limits->size || (limits->segments && segments > limits->segments);
    if (segments <= JOURNAL_SEGMENTS_MIN)
        return RETENTION_KEEP;
    /* the oldest ends where the second begins */
    bool old = limits->age_ms && running_ms > second_begun_ms && running_ms - second_begun_ms > limits->age_ms;
    if (!*ret_full && !old)
        return RETENTION_KEEP;
    return names_behind ? RETENTION_PROBE : RETENTION_DROP;
}

static void set_holds(struct retention *r, bool paused, bool ahead)
{
    bool before = retention_holds(r);

    r->paused = paused;
    r->ahead = ahead;
    if (retention_holds(r) != before)
        r->ops->held(r->owner);
}

static void set_paused(struct retention *r, bool paused)
{
    if (r->paused == paused)
        return;
    if (paused)
        log_line(
            r->log, LOG_WARNING, "journal.full",
            "The journal is full, and a durable subscription needs its oldest messages: reading "
            "from the server waits.",
            LOG_STR("subscription", r->pinned_by),
            LOG_U64("journal_bytes", journal_size(r->journal)),
            LOG_U64("journal_size", r->limits.size), LOG_U64("segments", journal_segments(r->journal)),
            LOG_STR("mend",
                    r->limits.segments && journal_segments(r->journal) > r->limits.segments
                        ? "let the subscriber go on, or raise LimitNOFILE or segment-size, or walbus subscriptions rm"
                        : "let the subscriber go on, or raise journal-size, or walbus subscriptions rm"));
    else
        log_line(r->log, LOG_INFO, "journal.room", "The journal has room again: reading goes on.",
                 LOG_U64("journal_bytes", journal_size(r->journal)));
    set_holds(r, paused, r->ahead);
}

/* Half a segment is left for what has been decoded by the time that reading stops. What is written of it, or dropped,
 * is looked at in retention_check. */
void retention_appended(struct retention *r)
{
    uint64_t queued = journal_queued(r->journal), size = journal_size(r->journal) + queued;
    bool ahead = size > r->limits.size + r->limits.segment_size / 2 && !r->closed &&
                 journal_segments(r->journal) + queued / MAX(r->limits.segment_size, 1u) >
                     JOURNAL_SEGMENTS_MIN;

    set_holds(r, r->paused, ahead);
}

static void unpin(struct retention *r)
{
    free(r->pinned_by);
    r->pinned_by = NULL;
}

/* ---- looking up who needs the oldest segment ---- */

static void job_free(struct retention_job *job)
{
    for (size_t i = 0; i < job->n; i++) {
        free(job->names[i]);
        free(job->copies[2 * i]);
        free(job->copies[2 * i + 1]);
    }
    (void)journal_unref(job->journal);
    free(job);
}

static struct retention_job *job_new(struct retention *r, const struct retention_name *names,
                                     size_t n)
{
    struct retention_job *job = calloc(1, sizeof *job);

    if (!job)
        return NULL;
    job->work.data = job;
    job->retention = r;
    job->journal = journal_ref(r->journal);
    for (size_t i = 0; i < n; i++) {
        const struct retention_name *name = &names[i];

        job->n = i + 1;
        job->names[i] = strdup(name->name);
        job->filters_made[i] = name->filters_made;
        job->copies[2 * i] = filters_copy(name->filters, name->n_filters);
        job->copies[2 * i + 1] = filters_copy(name->exclusions, name->n_exclusions);
        if (!job->names[i] || !job->copies[2 * i] || !job->copies[2 * i + 1]) {
            job_free(job);
            return NULL;
        }
        job->probes[i] = (struct journal_probe){
            .filters = job->copies[2 * i],
            .n_filters = name->n_filters,
            .exclusions = job->copies[2 * i + 1],
            .n_exclusions = name->n_exclusions,
            .after = name->cursor,
        };
    }
    return job;
}

static void on_work(uv_work_t *work)
{
    struct retention_job *job = work->data;

    journal_probe_first(job->journal, job->probes, job->n);
}

static void pin(struct retention *r, const struct retention_job *job, size_t i)
{
    unpin(r);
    r->pinned_by = strdup(job->names[i]);
    r->pinned_at = job->probes[i].after;
    r->pinned_filters = job->filters_made[i];
    r->pinned_segment = job->segment;
    r->pinned_until = job->probes[i].error ? uv_now(r->loop) + RETENTION_AGAIN_MS : 0;
}

/* One name's answer. True: it needs the segment, and keeps it. */
static bool take_probe(struct retention *r, const struct retention_job *job, size_t i)
{
    const struct journal_probe *probe = &job->probes[i];

    if (!r->ops->stands(r->owner, job->names[i], probe->after, job->filters_made[i]))
        return false; /* it has moved, or gone, or wants something else: whoever is behind now is looked up again */
    if (!probe->error && !probe->matches && probe->gap) {
        /* nothing that it is waited for, but it is to be told: as a gap of its own, of unknown size */
        r->ops->lost(r->owner, job->names[i], job->last, UINT64_MAX, UINT64_MAX);
        return false;
    }
    if (!probe->error && !probe->matches) {
        r->ops->pass(r->owner, job->names[i], job->last, probe->messages, probe->bytes);
        return false;
    }
    if (!probe->error && job->full && r->limits.when_full == WHEN_FULL_DISCARD) {
        log_line(r->log, LOG_WARNING, "journal.discarded",
                 "The journal is full: a durable subscription loses its oldest messages.",
                 LOG_STR("subscription", job->names[i]), LOG_U64("messages", probe->messages),
                 LOG_U64("bytes", probe->bytes));
        r->ops->lost(r->owner, job->names[i], job->last, probe->messages, probe->bytes);
        return false;
    }
    return true; /* what could not be read is not thrown away either */
}

static void on_looked_up(uv_work_t *work, int status)
{
    struct retention_job *job = work->data;
    struct retention *r = job->retention;
    bool pinned = false;

    r->job = NULL;
    (void)status;
    for (size_t i = 0; i < job->n && !r->closed; i++)
        if (take_probe(r, job, i)) {
            if (!pinned)
                pin(r, job, i);
            pinned = true;
        }
    if (pinned && job->full)
        set_paused(r, true);
    bool again = !pinned || r->again;
    job_free(job);
    r->again = false;
    if (again && !r->closed)
        retention_check(r);
}

/* False: no memory for it, later. */
static bool look_up(struct retention *r, const struct retention_name *names, size_t n,
                    const struct segment_info *first, struct position last, bool full)
{
    struct retention_job *job = job_new(r, names, n);

    if (!job)
        return false;
    job->segment = first->sequence;
    job->last = last;
    job->full = full;
    r->job = job;
    if (uv_queue_work(r->loop, &job->work, on_work, on_looked_up) < 0) {
        r->job = NULL;
        job_free(job);
        return false;
    }
    return true;
}

/* ---- one segment at a time ---- */

static bool is_still_pinned(const struct retention *r, const struct segment_info *first)
{
    return r->pinned_by && r->pinned_segment == first->sequence &&
           (!r->pinned_until || uv_now(r->loop) < r->pinned_until) &&
           r->ops->stands(r->owner, r->pinned_by, r->pinned_at, r->pinned_filters);
}

/* Looks at the oldest segment. True: it went, look at the next. */
static bool check_first(struct retention *r)
{
    struct retention_name names[RETENTION_PROBES_MAX];
    struct segment_info first, second;
    size_t n = journal_segments(r->journal);
    bool full = false;

    if (n <= JOURNAL_SEGMENTS_MIN) {
        set_paused(r, false);
        return false;
    }
    journal_segment_info(r->journal, 0, &first);
    journal_segment_info(r->journal, 1, &second);
    size_t behind = r->ops->behind(r->owner, second.after, names, RETENTION_PROBES_MAX);
    switch (retention_decide(&r->limits, n, journal_size(r->journal),
                             journal_running_ms(r->journal), second.running_ms, behind, &full)) {
    case RETENTION_KEEP:
        set_paused(r, false);
        return false;
    case RETENTION_PROBE:
        if (is_still_pinned(r, &first) && !(full && r->limits.when_full == WHEN_FULL_DISCARD))
            set_paused(r, full);
        else
            (void)look_up(r, names, MIN(behind, (size_t)RETENTION_PROBES_MAX), &first, second.after,
                          full);
        return false;
    case RETENTION_DROP:
        break;
    }
    unpin(r);
    if (!r->ops->may_go(r->owner, second.after))
        return false;
    int e = journal_drop_first(r->journal);
    if (e < 0)
        log_line(r->log, LOG_ERROR, "journal.not-removed",
                 "A segment of the journal cannot be removed.", LOG_STR("error", strerror(-e)));
    return e == 0;
}

void retention_check(struct retention *r)
{
    r->again |= r->job != NULL;
    /* while reading waits for it nothing else calls this soon */
    for (unsigned i = 0; (i < RETENTION_DROPS_A_TURN || r->ahead) && !r->closed && !r->job; i++)
        if (!check_first(r))
            break;
    retention_appended(r);
}

/* ---- life ---- */

void retention_init(struct retention *r, uv_loop_t *loop, struct journal *journal,
                    const struct retention_limits *limits, const struct retention_ops *ops,
                    void *owner, struct logger *log)
{
    *r = (struct retention){.ops = ops,
                            .owner = owner,
                            .log = log,
                            .loop = loop,
                            .journal = journal,
                            .limits = *limits};
}

void retention_close(struct retention *r)
{
    r->closed = true;
    unpin(r);
}
