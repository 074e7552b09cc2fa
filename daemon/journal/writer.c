/* SPDX-License-Identifier: PostgreSQL */
#include "journal/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "journal/fault.h"

/* ---- failures ---- */

static int failing(struct journal *j, int error, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* One sentence of what failed; returns the error. */
static int failing(struct journal *j, int error, const char *fmt, ...)
{
    char *what = j->writer.what;
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(what, WRITER_WHAT_SIZE, fmt, ap);
    va_end(ap);
    if (n >= 0 && n < (int)WRITER_WHAT_SIZE)
        (void)snprintf(what + n, WRITER_WHAT_SIZE - (size_t)n, ": %s", strerror(-error));
    return error;
}

/* What is not on disk does not exist any more. */
static void fail(struct journal *j, int error)
{
    struct writer *w = &j->writer;

    if (w->writable && w->dirty) {
        w->was_read = atomic_load_explicit(&w->tail->size, memory_order_relaxed) > w->synced.end.offset;
        segment_fall_back(w->tail, &w->synced);
        (void)writer_cut_tail(j); /* at once: a router that is killed now would find it */
    }
    w->now = w->synced;
    w->n = w->n_iov = 0;
    w->dirty = false;
    w->has_passed = false;
    compare_deinit(&w->compare); /* it may stand in what is gone */

    (void)pthread_mutex_lock(&j->lock);
    j->failed = true;
    j->error = error;
    j->no_memory = false;
    j->taken = j->queue.tail;
    j->news.any = true;
    j->news.done = j->queue.tail;
    j->news.written = w->synced;
    j->news.end_mark = w->synced.mark;
    j->news.end_mark_timeline = w->synced.mark_timeline;
    j->news.synced = false;
    j->news.failed = true;
    j->news.error = error;
    (void)memcpy(j->news.what, w->what, sizeof w->what);
    (void)pthread_mutex_unlock(&j->lock);
    (void)uv_async_send(&j->async);
}

/* ---- syncing ---- */

static int sync_tail(struct journal *j)
{
    struct writer *w = &j->writer;
    uint64_t began = clock_monotonic_ns();
    int r = FAULT("journal-sync");

    if (r >= 0)
        r = fdatasync(w->tail->fd) < 0 ? -errno : 0;
    if (r < 0)
        return failing(j, r, "syncing %s failed", w->tail->path);
    FAULT_POINT("journal-synced");
    w->synced = w->now;
    w->synced_at = began;
    w->dirty = false;
    return 0;
}

/* ---- segments ---- */

struct segment_header writer_next_header(const struct journal *j)
{
    const struct segment_state *now = &j->writer.now;
    struct segment_header h = j->writer.tail->header;

    h.after = now->end.before;
    h.previous_size = now->end.offset;
    h.previous_checksum = now->end.checksum;
    h.messages_before = now->end.messages;
    h.bytes_before = now->end.bytes;
    h.mark = now->mark;
    h.mark_timeline = now->mark_timeline;
    h.starts_inside = now->end.starts_inside;
    h.begin = now->end_begin;
    return h;
}

static bool list_reserve(struct journal *j)
{
    size_t cap = j->segments_cap ? 2 * j->segments_cap : 64;

    if (j->n_segments < j->segments_cap)
        return true;
    struct segment **segments = realloc(j->segments, cap * sizeof *segments);
    if (!segments)
        return false;
    j->segments = segments;
    j->segments_cap = cap;
    return true;
}

int writer_make_segment(struct journal *j, struct segment_header *h, struct segment **ret)
{
    struct writer *w = &j->writer;

    (void)pthread_mutex_lock(&j->lock);
    bool room = list_reserve(j); /* for writer_add_segment: nobody else adds one meanwhile */
    (void)pthread_mutex_unlock(&j->lock);
    h->sequence = w->tail ? w->tail->header.sequence + 1 : 1;
    h->received_time = w->now.end.received_time;
    h->running_ms = MAX(journal_running_ms(j), w->now.running_ms);
    int r = room ? segment_create(j->folder, h, ret) : -ENOMEM;
    return r < 0 ? failing(j, r, "making a segment in %s failed", j->folder) : 0;
}

void writer_add_segment(struct journal *j, struct segment *s)
{
    struct writer *w = &j->writer;

    (void)pthread_mutex_lock(&j->lock);
    if (w->tail) {
        w->tail->file_size = segment_disk_size(w->tail); /* damage that is found takes from `size`, and not from the disk */
        j->size_before_tail += w->tail->file_size;
    }
    j->segments[j->n_segments++] = segment_ref(s);
    if (j->stale) { /* now that something is changed on the disk */
        *j->doomed_end = j->stale;
        j->doomed_end = j->stale_end;
        j->stale = NULL;
    }
    (void)pthread_mutex_unlock(&j->lock);
    /* from here on the loop does not ask for its lock, which verifying holds for long; one of an era before is of no use */
    if (w->tail && w->tail->header.era == s->header.era)
        segment_close(w->tail, s->header.previous_checksum);
    segment_unref(w->tail);
    w->tail = s;
    w->writable = true;
    w->now = w->synced = segment_state_of(s);
    w->dirty = false;
}

/* ---- writing ---- */

#ifdef WALBUS_FAULTS
/* The first half, at least one byte, of what is to be written. */
static ssize_t write_half(int fd, const struct iovec *iov, size_t n, uint64_t offset)
{
    size_t size = 0, done = 0;

    for (size_t i = 0; i < n; i++)
        size += iov[i].iov_len;
    for (size_t i = 0; i < n && done < (size + 1) / 2; i++) {
        ssize_t r = pwrite(fd, iov[i].iov_base, MIN(iov[i].iov_len, (size + 1) / 2 - done),
                           (off_t)(offset + done));

        if (r < 0)
            return r;
        done += (size_t)r;
    }
    return (ssize_t)done;
}
#endif

static ssize_t write_some(int fd, const struct iovec *iov, size_t n, uint64_t offset)
{
    int r = FAULT("journal-write");

    if (r < 0) {
        errno = -r;
        return -1;
    }
#ifdef WALBUS_FAULTS
    ssize_t done =
        r == FAULT_SHORT ? write_half(fd, iov, n, offset) : pwritev(fd, iov, (int)n, (off_t)offset);
#else
    ssize_t done = pwritev(fd, iov, (int)n, (off_t)offset);
#endif
    FAULT_POINT("journal-wrote");
    return done;
}

static int write_all(int fd, struct iovec *iov, size_t n, uint64_t offset)
{
    while (n) {
        ssize_t done = write_some(fd, iov, n, offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        if (done == 0)
            return -ENOSPC;
        offset += (size_t)done;
        for (; n && (size_t)done >= iov->iov_len; iov++, n--)
            done -= (ssize_t)iov->iov_len;
        if (n) {
            iov->iov_base = (uint8_t *)iov->iov_base + done;
            iov->iov_len -= (size_t)done;
        }
    }
    return 0;
}

/* Writes what is staged. */
static int flush(struct journal *j)
{
    struct writer *w = &j->writer;
    uint64_t offset = w->offset;

    if (!w->n)
        return 0;
    w->dirty = true; /* also when it fails half way */
    int r = write_all(w->tail->fd, w->iov, w->n_iov, offset);
    w->wanted = r < 0 ? w->now.end.offset - w->synced.end.offset : 0;
    if (r < 0)
        return failing(j, r, "writing %s failed", w->tail->path);
    for (size_t i = 0; i < w->n; i++) {
        segment_note(w->tail, offset, &w->records[i], &w->open_at_end[i]);
        offset += RECORD_SIZE + w->records[i].size;
    }
    w->n = w->n_iov = 0;
    return 0;
}

/* What an unclean end has left behind the last whole record of a file that this process goes on behind, and does not write
 * to, would take room for as long as it is kept. */
static void cut_torn(struct journal *j)
{
    struct segment *tail = j->writer.tail;
    uint64_t end = j->writer.now.end.offset;

    if (j->writer.writable || tail->file_size <= end || truncate(tail->path, (off_t)end) < 0)
        return;
    (void)pthread_mutex_lock(&j->lock);
    tail->file_size = end;
    (void)pthread_mutex_unlock(&j->lock);
}

/* Whatever was begun is finished and synced before the next one's header says so. */
static int next_segment(struct journal *j)
{
    struct writer *w = &j->writer;

    int r = flush(j);
    if (r == 0 && w->dirty)
        r = sync_tail(j);
    if (r < 0)
        return r;
    cut_torn(j);
    struct segment_header h = writer_next_header(j);
    struct segment *s;
    r = writer_make_segment(j, &h, &s);
    if (r == 0)
        writer_add_segment(j, s);
    return r;
}

static bool is_news(const struct batch *b, const struct segment_state *now)
{
    uint32_t timeline = b->mark_position.timeline;

    return b->mark && (timeline > now->mark_timeline ||
                       (timeline == now->mark_timeline && b->mark > now->mark));
}

/* The transaction that is open behind the batch. */
static int open_at_end(struct journal *j, const struct batch *b, struct frame_begin *ret)
{
    const uint8_t *frame;
    struct frame_header h;

    if (b->has_begin) {
        frame = b->head + b->begin_offset;
    } else if (j->writer.now.end.starts_inside) {
        *ret = j->writer.now.end_begin;
        return 0;
    } else {
        /* its beginning was dropped in a failure of which the source does not know yet */
        return failing(j, -ESTALE,
                       "a batch goes on with a transaction whose begin is not in the journal");
    }
    int r = frame_header_decode(frame, &h);
    return r < 0 ? r : frame_begin_decode(h, frame + FRAME_HEADER_SIZE, ret);
}

/* Puts a batch, or with `mark_alone` only its mark, behind what is staged. */
static int stage(struct journal *j, const struct batch *b, bool mark_alone)
{
    struct writer *w = &j->writer;
    bool entries = !mark_alone && b->n_entries;
    uint64_t size = entries ? batch_size(b) : 0;
    struct bytes pieces[2];

    if (!w->writable || (w->now.end.offset > SEGMENT_HEADER_SIZE &&
                         w->now.end.offset + RECORD_SIZE + size > j->segment_size)) {
        int r = next_segment(j);
        if (r < 0)
            return r;
    }
    if (w->n == 0)
        w->offset = w->now.end.offset;

    const struct segment_state *now = &w->now;
    struct record *record = &w->records[w->n];
    bool news = is_news(b, now), inside = now->end.starts_inside;
    *record = (struct record){
        .size = size,
        .mark = news ? b->mark : 0,
        .mark_timeline = news ? b->mark_position.timeline : 0,
        .received_time = now->end.received_time,
        .running_ms = MAX(journal_running_ms(j), now->running_ms),
        .messages_before = now->end.messages,
        .bytes_before = now->end.bytes,
        .begin = now->end_begin,
        .starts_inside = inside,
        .ends_inside = inside,
    };
    w->open_at_end[w->n] = now->end_begin;
    if (entries) {
        record->first = b->first;
        record->last = b->last;
        if (b->messages)
            record->received_time = MAX(record->received_time, b->received_time);
        record->messages = b->messages;
        record->bytes = b->content_bytes;
        record->ends_inside = b->ends_inside;
    }
    if (record->ends_inside && entries) {
        int r = open_at_end(j, b, &w->open_at_end[w->n]);
        if (r < 0)
            return r;
    }

    uint8_t *head = w->heads[w->n];
    size_t n_pieces = entries ? batch_pieces(b, 0, (size_t)size, pieces) : 0;
    record_encode(record, now->end.checksum, pieces, n_pieces, head);
    w->iov[w->n_iov++] = (struct iovec){head, RECORD_SIZE};
    for (size_t i = 0; i < n_pieces; i++)
        w->iov[w->n_iov++] = (struct iovec){(void *)(uintptr_t)pieces[i].data, pieces[i].size};
    segment_state_move(&w->now, record, &w->open_at_end[w->n]);
    return ++w->n == WRITER_RUN_MAX ? flush(j) : 0;
}

/* ---- the queue ---- */

static void tell_trouble(struct journal *j, const char *id, const char *trouble)
{
    (void)pthread_mutex_lock(&j->lock);
    j->news.any = true;
    j->news.trouble_id = id;
    (void)snprintf(j->news.trouble, sizeof j->news.trouble, "%s", trouble);
    (void)pthread_mutex_unlock(&j->lock);
    (void)uv_async_send(&j->async);
}

static void refuse(struct journal *j, struct position at, const char *what)
{
    j->writer.refused = true;
    (void)pthread_mutex_lock(&j->lock);
    j->news.any = true;
    j->news.differs = true;
    j->news.differs_at = at;
    (void)snprintf(j->news.differs_what, sizeof j->news.differs_what, "%s", what);
    (void)pthread_mutex_unlock(&j->lock);
    (void)uv_async_send(&j->async);
}

/* One step of comparing. 0 or a negative errno. */
static int compared(struct journal *j, int r, struct position at, const char *what)
{
    if (r == COMPARE_DIFFERS)
        refuse(j, at, what);
    if (r == COMPARE_UNKNOWN)
        tell_trouble(j, "journal.not-compared", what);
    if (r == -ENOMEM)
        return failing(j, r, "comparing what came again failed");
    return r < 0 ? r : 0;
}

/* What comes again, before something new what did not, and what a mark has passed. 0 or a negative errno; `refused` may be set. */
static int compare(struct journal *j, const struct batch *b)
{
    struct writer *w = &j->writer;
    char what[COMPARE_WHAT_SIZE];
    struct position at = {0};

    int r = flush(j); /* what it may have to find is in a file */
    if (r == 0 && !position_is_zero(b->expected_from))
        r = compared(j, compare_expect(&w->compare, j, b->expected_from, what), at, what);
    if (r == 0 && b->n_entries) {
        r = b->again ? compare_batch(&w->compare, j, b, &at, what)
                     : compare_end(&w->compare, j, b, &at, what);
        r = compared(j, r, at, what);
    }
    if (r == 0 && !w->refused && b->mark) {
        r = compare_mark(&w->compare, j, b->mark, b->mark_position.timeline, &at, what);
        r = compared(j, r, at, what);
    }
    return r;
}

static int take_batch(struct journal *j, const struct batch *b)
{
    struct writer *w = &j->writer;
    int r = 0;

    if (b->connection != w->connection)
        compare_drop(&w->compare);
    w->connection = b->connection;
    if ((b->n_entries && b->again) || w->compare.active || !position_is_zero(b->expected_from))
        r = compare(j, b);
    if (r < 0 || w->refused)
        return r;
    if ((b->n_entries && !b->again) || is_news(b, &w->now))
        r = stage(j, b, b->again);
    if (r == 0 && b->mark) {
        w->has_passed = true;
        w->passed = b->mark;
        w->passed_connection = b->connection;
    }
    return r;
}

/* Says how far things are; what is synced too, if everything is. */
static void publish(struct journal *j, size_t done)
{
    struct writer *w = &j->writer;

    (void)pthread_mutex_lock(&j->lock);
    j->news.any = true;
    j->news.done += done;
    j->news.written = w->now;
    if (!w->dirty && w->has_passed) {
        j->news.synced = true;
        j->news.synced_mark = w->passed;
        j->news.synced_connection = w->passed_connection;
        w->has_passed = false;
    }
    j->news.end_mark = w->synced.mark;
    j->news.end_mark_timeline = w->synced.mark_timeline;
    (void)pthread_mutex_unlock(&j->lock);
    (void)uv_async_send(&j->async);
}

static void take_batches(struct journal *j, struct batch *const *batches, size_t n)
{
    int r = 0;

    for (size_t i = 0; i < n && r == 0 && !j->writer.refused; i++)
        r = take_batch(j, batches[i]);
    if (r == 0)
        r = flush(j);
    if (r < 0)
        fail(j, r);
    else
        publish(j, n);
}

static void sync_now(struct journal *j)
{
    int r = sync_tail(j);

    if (r < 0)
        fail(j, r);
    else
        publish(j, 0);
}

/* Unlinks the first doomed file; under the lock, which is let go meanwhile. Without success it stays the first: a later one must not
 * go before it. */
static void unlink_doomed(struct journal *j)
{
    struct doomed *d = j->doomed;
    char trouble[WRITER_WHAT_SIZE];

    (void)pthread_mutex_unlock(&j->lock);
    int r = unlink(d->path) < 0 && errno != ENOENT ? -errno : 0;
    if (r == 0)
        r = segment_sync_folder(j->folder);
    if (r < 0) {
        (void)snprintf(trouble, sizeof trouble, "%s: %s", d->path, strerror(-r));
        tell_trouble(j, "journal.not-removed", trouble);
    }
    (void)pthread_mutex_lock(&j->lock);
    j->doomed_stuck = r < 0;
    if (r == 0) {
        j->doomed = d->next;
        if (!j->doomed)
            j->doomed_end = &j->doomed;
        free(d);
    }
}

static void try_again(struct journal *j)
{
    int r = writer_retry(j);

    (void)pthread_mutex_lock(&j->lock);
    j->retry = false;
    j->news.any = j->news.retried = true;
    j->news.retry_error = r;
    (void)pthread_mutex_unlock(&j->lock);
    (void)uv_async_send(&j->async);
}

static void rest(struct journal *j)
{
    j->resting = true;
    (void)pthread_cond_broadcast(&j->settled);
    (void)pthread_cond_wait(&j->wake, &j->lock);
    j->resting = false;
}

static void wait_until(struct journal *j, uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u)};

    (void)pthread_cond_timedwait(&j->wake, &j->lock, &ts);
}

void *writer_run(void *journal)
{
    struct journal *j = journal;
    struct writer *w = &j->writer;
    struct batch *batches[WRITER_RUN_MAX];

    (void)pthread_mutex_lock(&j->lock);
    for (;;) {
        uint64_t due = w->synced_at ? w->synced_at + j->sync_interval_ns : 0;
        uint64_t waiting = j->queue.tail - j->taken;

        if (j->doomed && !j->doomed_stuck) {
            unlink_doomed(j);
        } else if (j->stop) {
            break;
        } else if (j->failed && j->retry) {
            (void)pthread_mutex_unlock(&j->lock);
            try_again(j);
            (void)pthread_mutex_lock(&j->lock);
        } else if (j->failed) {
            rest(j);
        } else if (j->no_memory) {
            (void)pthread_mutex_unlock(&j->lock);
            fail(j, failing(j, -ENOMEM, "queueing for the journal failed"));
            (void)pthread_mutex_lock(&j->lock);
        } else if (w->dirty && ((j->finishing && !waiting) || clock_monotonic_ns() >= due)) {
            (void)pthread_mutex_unlock(&j->lock);
            sync_now(j);
            (void)pthread_mutex_lock(&j->lock);
        } else if (waiting) {
            size_t n = 0, bytes = 0;

            while (n < MIN(waiting, (uint64_t)WRITER_RUN_MAX) && bytes < WRITER_RUN_BYTES) {
                batches[n] = *ring_at(&j->queue, j->taken++);
                bytes += batch_size(batches[n++]);
            }
            (void)pthread_mutex_unlock(&j->lock);
            take_batches(j, batches, n);
            (void)pthread_mutex_lock(&j->lock);
        } else if (w->dirty) {
            wait_until(j, due);
        } else {
            rest(j);
        }
    }
    (void)pthread_mutex_unlock(&j->lock);
    return NULL;
}
