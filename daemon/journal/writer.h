/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_WRITER_H
#define WALBUS_DAEMON_JOURNAL_WRITER_H

/*
 * What the loop thread (journal.c) and the journal thread (writer.c, compare.c) share:
 * private to daemon/journal.
 *
 *   loop      journal_append ─► queue ─┐                      ┌─► written, synced, failed, differs
 *   ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┼ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┼ ─
 *   journal                            └─► stage, write, sync ─┴ news
 *
 * The queue holds the loop's references, and the loop alone drops them, when `news` says how many
 * batches are done with; the journal thread only reads batches. The members of `struct writer` are the journal
 * thread's, except while it rests: it rests when it has failed, and when there is nothing in the queue and nothing to
 * be synced, until the loop appends, asks for another attempt or closes. Beginning an era is done by the loop in such a rest.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include <uv.h>

#include "journal/compare.h"
#include "journal/journal.h"
#include "journal/segment.h"

/** Most batches of one write: what it gathers stays below IOV_MAX, and with small batches a call is paid well enough. */
#define WRITER_RUN_MAX 128u
/** With so many bytes it ends: they are let go of soon, and still in the processor's cache when the kernel copies what was hashed. */
#define WRITER_RUN_BYTES (512u << 10)
/** RECORD frame, head, tail. */
#define WRITER_IOV_MAX (3u * WRITER_RUN_MAX)
/** So much room must be there before writing goes on after a failure: else the next write would fail again,
 *  and each attempt leave a segment behind. */
#define WRITER_RETRY_ROOM (1u << 20)
/** One sentence with a file's name. */
#define WRITER_WHAT_SIZE 512

/** A queue of batches that grows and keeps its memory; positions in it only rise. */
struct ring {
    struct batch **slots;
    size_t cap; /* a power of two */
    uint64_t head, tail;
};

static inline struct batch **ring_at(const struct ring *r, uint64_t i)
{
    return &r->slots[i & (r->cap - 1)];
}

/** A file to unlink. Older ones come first, so that no crash leaves a hole in the sequence. */
struct doomed {
    struct doomed *next;
    char path[];
};

/** What the loop is to be told. */
struct news {
    bool any;
    uint64_t done;                /* of the queue: written, compared or dropped */
    struct segment_state written; /* the end of what is in the files */
    bool synced;                  /* … up to and with a batch that had this mark: */
    uint64_t synced_mark;
    uint32_t synced_connection;
    uint64_t end_mark;            /* the journal's, synced */
    uint32_t end_mark_timeline;
    bool failed;
    int error;
    char what[WRITER_WHAT_SIZE];
    bool retried;
    int retry_error; /* 0: it can be written again */
    bool differs;
    struct position differs_at;
    char differs_what[COMPARE_WHAT_SIZE];
    const char *trouble_id;       /* for the log: what could not be compared, or not be unlinked */
    char trouble[WRITER_WHAT_SIZE];
};

struct writer {
    struct segment *tail;        /* the newest segment, one reference; NULL: there is no journal yet */
    uint64_t wanted;             /* a write failed: so many bytes were not synced with it, and must find room; 0: none did */
    bool was_read;               /* what was taken back then could be read: other entries must not stand there, or whoever has a place
                                    there is in the middle of one */
    bool writable;               /* it was made by this process, and nothing has failed in it */
    struct segment_state now;    /* its end with what is staged … */
    struct segment_state synced; /* … and as far as it is on disk */
    bool dirty;                  /* something was written since */
    bool has_passed;             /* a mark went by that was not told yet: … */
    uint64_t passed;             /* … this one, the last … */
    uint32_t passed_connection;  /* … of this connection */
    uint64_t synced_at;          /* when the last sync began */
    bool refused;                /* what came again differs: nothing is written any more */
    uint32_t connection;         /* of the batch taken last */
    struct compare compare;

    /* staged: what the next write takes */
    size_t n, n_iov;
    uint64_t offset; /* where it begins */
    uint8_t heads[WRITER_RUN_MAX][RECORD_SIZE];
    struct record records[WRITER_RUN_MAX];
    struct frame_begin open_at_end[WRITER_RUN_MAX];
    struct iovec iov[WRITER_IOV_MAX];

    char what[WRITER_WHAT_SIZE]; /* of the last failure */
};

struct journal {
    /* constant */
    char *folder;
    uint64_t segment_size, sync_interval_ns;
    uint64_t running_base;            /* ms of the routers before */
    const struct journal_ops *ops;
    void *owner;
    struct logger *log;
    pthread_t thread;
    bool has_thread;

    atomic_uint refs; /* the loop's handles are one together, each journal_ref one */
    atomic_uint_fast64_t ran_ns; /* since it was opened; the loop alone adds to it */

    /* the loop's */
    uv_async_t async;
    uv_prepare_t prepare;
    unsigned handles;
    uint64_t ticked_at; /* clock_monotonic_ns */
    struct ring pending; /* those of the queue that are to be written and not known to be */
    struct journal_end end;
    char database[JOURNAL_NAME_SIZE + 1], slot[JOURNAL_NAME_SIZE + 1];
    size_t queued_bytes;
    bool delivering, closing, wake_is_due;
    char trouble[WRITER_WHAT_SIZE]; /* logged last: each only once */

    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* the journal thread */
    pthread_cond_t settled; /* whoever waits for it */
    struct ring queue;      /* [head, taken) is with the journal thread or done */
    uint64_t taken;
    bool stop, finishing, failed, no_memory;
    bool retry;    /* the owner wants it tried again; while it has failed */
    int error;     /* why it has failed */
    bool resting; /* the journal thread, as above */
    struct news news;
    struct segment **segments; /* oldest first, one reference each */
    size_t n_segments, segments_cap;
    uint64_t size_before_tail; /* of all but the newest */
    struct doomed *doomed, **doomed_end;
    struct doomed *stale, **stale_end; /* of an older era, found at opening: doomed with the first segment that is made */
    bool doomed_stuck;                 /* the first one cannot be unlinked: tried again with the next */

    struct writer writer;
};

/** journal.c: what the loop sees as the end is the writer's, as far as it is synced. */
void journal_set_end(struct journal *j, const struct segment_header *h);

/** recover.c: finds the segments and where they end; before there is a thread. 0 or a negative errno. */
int journal_open_folder(struct journal *j, char why[JOURNAL_WHY_SIZE]) MUST_CHECK;

/** list.c: files to unlink. All of the present list, while the journal thread rests: 0 or -ENOMEM. */
struct doomed *doomed_new(const char *path) MUST_CHECK;
struct doomed *doomed_free(struct doomed *d);
int doomed_all(struct journal *j, struct doomed **ret, struct doomed ***ret_end) MUST_CHECK;
/** Under the lock: the journal thread unlinks them. */
void doomed_add(struct journal *j, struct doomed *first, struct doomed **end);

/** The journal thread. */
void *writer_run(void *journal);

/** retry.c: after a failure; what stands behind the tail's end is cut off. 0: it can be written again; or a negative errno. */
int writer_retry(struct journal *j) MUST_CHECK;
/** What could not be synced may well be read back, and synced without an error at the next opening, although it is on no
 *  disk: the kernel tells of that once. So it goes; nobody reads there any more. Whether the tail ends where it should. */
bool writer_cut_tail(struct journal *j);

/** Makes the file of the segment behind the newest, from h (sequence, running and received time are set here). By the journal
 *  thread, or while it rests. 0 or a negative errno with writer.what. */
int writer_make_segment(struct journal *j, struct segment_header *h, struct segment **ret) MUST_CHECK;
/** Makes it the newest; takes the reference. */
void writer_add_segment(struct journal *j, struct segment *s);
/** The header of the segment that goes on where the newest one ends. */
struct segment_header writer_next_header(const struct journal *j);

#endif
