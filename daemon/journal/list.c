/* SPDX-License-Identifier: PostgreSQL */
/* The journal's list of segments: what is in it, and what goes out of it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "journal/writer.h"

/* Under the lock. */
static struct segment *listed(struct journal *j, size_t i)
{
    return i < j->n_segments ? segment_ref(j->segments[i]) : NULL;
}

struct segment *journal_segment_first(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    struct segment *s = listed(j, 0);
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

/* The last segment that `begins_before` says yes to, as all before it do; else the first one. */
static struct segment *
find_last(struct journal *j,
          bool (*begins_before)(const struct segment_header *h, const void *what), const void *what)
{
    (void)pthread_mutex_lock(&j->lock);
    size_t low = 0, high = j->n_segments;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (begins_before(&j->segments[middle]->header, what))
            low = middle;
        else
            high = middle;
    }
    struct segment *s = listed(j, low);
    (void)pthread_mutex_unlock(&j->lock);
    return s;
}

static bool begins_at_or_before(const struct segment_header *h, const void *p)
{
    return position_compare(h->after, *(const struct position *)p) <= 0;
}

static bool begins_before_time(const struct segment_header *h, const void *time)
{
    return h->received_time < *(const int64_t *)time;
}

static bool begins_no_later(const struct segment_header *h, const void *sequence)
{
    return h->sequence <= *(const uint64_t *)sequence;
}

struct segment *journal_segment_of(struct journal *j, struct position p)
{
    return find_last(j, begins_at_or_before, &p);
}

struct segment *journal_segment_of_time(struct journal *j, int64_t time)
{
    return find_last(j, begins_before_time, &time);
}

struct segment *journal_segment_after(struct journal *j, struct segment *s)
{
    uint64_t sequence = s->header.sequence + 1;
    struct segment *next = find_last(j, begins_no_later, &sequence);

    /* the first one, if `s` and what followed it is no longer here */
    return next && next->header.sequence > s->header.sequence ? next : segment_unref(next);
}

size_t journal_segments(const struct journal *j)
{
    struct journal *shared = (struct journal *)(uintptr_t)j;

    (void)pthread_mutex_lock(&shared->lock);
    size_t n = j->n_segments;
    (void)pthread_mutex_unlock(&shared->lock);
    return n;
}

void journal_segment_info(const struct journal *j, size_t i, struct segment_info *ret)
{
    struct journal *shared = (struct journal *)(uintptr_t)j;

    (void)pthread_mutex_lock(&shared->lock);
    struct segment *s = j->segments[i], *next = i + 1 < j->n_segments ? j->segments[i + 1] : NULL;
    *ret = (struct segment_info){
        .sequence = s->header.sequence,
        .after = s->header.after,
        .size = segment_disk_size(s),
        .messages_before = s->header.messages_before,
        .bytes_before = s->header.bytes_before,
        .received_time = s->header.received_time,
        .running_ms = s->header.running_ms,
    };
    if (next) {
        ret->last = next->header.after;
        ret->ends_inside = next->header.starts_inside;
    } else { /* its lock is never held for long: it is verified */
        struct segment_state state = segment_state_of(s);

        ret->last = state.end.before;
        ret->ends_inside = state.end.starts_inside;
    }
    (void)pthread_mutex_unlock(&shared->lock);
}

uint64_t journal_size(const struct journal *j)
{
    struct journal *shared = (struct journal *)(uintptr_t)j;

    (void)pthread_mutex_lock(&shared->lock);
    uint64_t size = j->size_before_tail;
    if (j->n_segments)
        size += segment_disk_size(j->segments[j->n_segments - 1]);
    (void)pthread_mutex_unlock(&shared->lock);
    return size;
}

/* ---- files to unlink ---- */

struct doomed *doomed_new(const char *path)
{
    size_t size = strlen(path) + 1;
    struct doomed *d = malloc(sizeof *d + size);

    if (!d)
        return NULL;
    d->next = NULL;
    (void)memcpy(d->path, path, size);
    return d;
}

struct doomed *doomed_free(struct doomed *d)
{
    while (d) {
        struct doomed *next = d->next;

        free(d);
        d = next;
    }
    return NULL;
}

void doomed_add(struct journal *j, struct doomed *first, struct doomed **end)
{
    *j->doomed_end = first;
    j->doomed_end = end;
    j->doomed_stuck = false;
    (void)pthread_cond_signal(&j->wake);
}

int doomed_all(struct journal *j, struct doomed **ret, struct doomed ***ret_end)
{
    struct doomed *first = NULL, **end = &first;

    for (size_t i = 0; i < j->n_segments;
         i++) { /* while the journal thread rests, only the loop changes the list */
        *end = doomed_new(j->segments[i]->path);
        if (!*end) {
            doomed_free(first);
            return -ENOMEM;
        }
        end = &(*end)->next;
    }
    *ret = first;
    *ret_end = end;
    return 0;
}

int journal_drop_first(struct journal *j)
{
    (void)pthread_mutex_lock(&j->lock);
    struct segment *s = j->n_segments > 1 ? j->segments[0] : NULL;
    struct doomed *d = s ? doomed_new(s->path) : NULL;
    if (d) {
        j->size_before_tail -= segment_disk_size(s);
        (void)memmove(j->segments, j->segments + 1, --j->n_segments * sizeof(struct segment *));
        doomed_add(j, d, &d->next);
    }
    (void)pthread_mutex_unlock(&j->lock);
    if (!s)
        return -EBUSY;
    if (!d)
        return -ENOMEM;
    segment_unref(s);
    return 0;
}
