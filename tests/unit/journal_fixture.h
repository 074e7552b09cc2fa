/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_JOURNAL_FIXTURE_H
#define WALBUS_TESTS_UNIT_JOURNAL_FIXTURE_H

/*
 * A journal in a folder of its own, on a loop that is turned by hand, what it has told, batches to
 * append, and what is read back from its files, by code that shares nothing with the reader.
 *
 * The system calls that write stand behind wrappers (meson.build: --wrap): they can fail, do a part, count, kill the process
 * before the nth of them, and leave out the waiting for a disk, which is all that a sync would add to a test.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "journal/journal.h"
#include "journal/segment.h"
#include "unit.h"

/* ---- the disk ---- */

enum disk_call {
    DISK_WRITEV,
    DISK_WRITE,
    DISK_DATASYNC,
    DISK_SYNC,
    DISK_RENAME,
    DISK_UNLINK,
    DISK_ALLOCATE,
    DISK_CALLS
};

static struct {
    atomic_int error[DISK_CALLS];   /* each fails with it; 0: none does */
    atomic_uint after[DISK_CALLS];  /* so many succeed before */
    atomic_uint counts[DISK_CALLS]; /* those that were done */
    atomic_bool half;               /* the next DISK_WRITEV writes half */
    atomic_bool hold;               /* DISK_WRITEV waits while it is set */
    atomic_int kill_at;             /* dies before the so manieth call of all kinds; 0: never */
    atomic_bool dying;
    atomic_int fail_at, fail_error; /* that one fails */
} disk;

/* What a child that dies has got done, in memory that it shares with its parent; NULL without a child. */
static struct jf_shared {
    atomic_uint_fast64_t mark, appended; /* told to be synced; handed over */
    struct {                             /* files, and how far each is on disk */
        ino_t file;
        off_t size;
    } synced[64];
    unsigned n_synced;
    atomic_bool finished;
    /* waits for the parent's SIGKILL: one of its own would make valgrind look for leaks */
    atomic_bool dies;
} * jf_shared;

static inline void jf_note_synced(int fd)
{
    struct stat st;
    unsigned i = 0;

    if (!jf_shared || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    while (i < jf_shared->n_synced && jf_shared->synced[i].file != st.st_ino)
        i++;
    if (i == jf_shared->n_synced)
        ck_assert_uint_lt(jf_shared->n_synced++, ARRAY_SIZE(jf_shared->synced));
    jf_shared->synced[i].file = st.st_ino;
    jf_shared->synced[i].size = st.st_size;
}

static inline bool disk_fails(enum disk_call call)
{
    while (disk.dying)
        (void)pause();
    if (disk.kill_at && --disk.kill_at == 0) {
        disk.dying = true;
        if (jf_shared)
            jf_shared->dies = true;
        for (;;)
            (void)pause();
    }
    if (disk.fail_at && --disk.fail_at == 0) {
        errno = disk.fail_error;
        return true;
    }
    if (disk.error[call] && (disk.after[call] == 0 || disk.after[call]-- == 0)) {
        errno = disk.error[call];
        return true;
    }
    disk.counts[call]++;
    return false;
}

/* From now on, or behind so many that succeed. */
static inline void disk_fail(enum disk_call call, int error, unsigned after)
{
    disk.after[call] = after;
    disk.error[call] = error;
}

static inline void disk_mend(void)
{
    for (unsigned i = 0; i < DISK_CALLS; i++)
        disk_fail(i, 0, 0);
}

ssize_t __real_pwritev64(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t offset);
ssize_t __real_pwrite64(int fd, const void *data, size_t size, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t size, off_t offset);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_fallocate64(int fd, int mode, off_t offset, off_t size);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t size);

ssize_t __wrap_pwritev64(int fd, const struct iovec *iov, int n, off_t offset)
{
    while (disk.hold)
        (void)usleep(1000);
    if (disk.half) {
        disk.half = false;
        size_t size = 0;
        for (int i = 0; i < n; i++)
            size += iov[i].iov_len;
        size /= 2;
        for (int i = 0; i < n; i++) {
            if (size <= iov[i].iov_len) {
                struct iovec part[1024];

                memcpy(part, iov, (size_t)n * sizeof *iov);
                part[i].iov_len = size;
                return __real_pwritev64(fd, part, i + 1, offset);
            }
            size -= iov[i].iov_len;
        }
    }
    return disk_fails(DISK_WRITEV) ? -1 : __real_pwritev64(fd, iov, n, offset);
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    return disk_fails(DISK_WRITE) ? -1 : __real_pwrite64(fd, data, size, offset);
}

int __wrap_fdatasync(int fd)
{
    if (disk_fails(DISK_DATASYNC))
        return -1;
    jf_note_synced(fd);
    return 0;
}

int __wrap_fsync(int fd)
{
    if (disk_fails(DISK_SYNC))
        return -1;
    jf_note_synced(fd);
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    return disk_fails(DISK_RENAME) ? -1 : __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
    return disk_fails(DISK_UNLINK) ? -1 : __real_unlink(path);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t size)
{
    return disk_fails(DISK_ALLOCATE) ? -1 : __real_fallocate64(fd, mode, offset, size);
}

/* ---- a journal, and what it has told ---- */

static struct {
    uv_loop_t loop;
    struct batch_pool pool;
    struct logger log;
    char *log_text; /* of the last journal */
    size_t log_size;
    char *folder;
    struct journal_options options;
    struct journal *j;
    char why[JOURNAL_WHY_SIZE];

    unsigned written, synced, failed, retried, differs;
    uint64_t synced_mark;
    uint32_t synced_connection;
    int error, retry_error;
    char what[512];
    struct position differs_at;
    bool close_when_written;
} jf;

static inline void jf_on_written(void *owner)
{
    (void)owner;
    jf.written++;
    if (jf.close_when_written)
        jf.j = journal_close(jf.j);
}

static inline void jf_on_synced(void *owner, uint64_t mark, uint32_t connection)
{
    (void)owner;
    jf.synced_connection = connection;
    jf.synced++;
    jf.synced_mark = mark;
    if (jf_shared)
        jf_shared->mark = mark;
}

static inline void jf_on_failed(void *owner, int error, const char *what)
{
    (void)owner;
    jf.failed++;
    jf.error = error;
    (void)snprintf(jf.what, sizeof jf.what, "%s", what);
}

static inline void jf_on_retried(void *owner, int error)
{
    (void)owner;
    jf.retried++;
    jf.retry_error = error;
}

static inline void jf_on_differs(void *owner, struct position position, const char *what)
{
    (void)owner;
    jf.differs++;
    jf.differs_at = position;
    (void)snprintf(jf.what, sizeof jf.what, "%s", what);
}

static const struct journal_ops jf_ops = {jf_on_written, jf_on_synced, jf_on_failed, jf_on_retried,
                                         jf_on_differs};

#define JF_SYSTEM 7000000000000000000u

/* Opens what is in the folder: 0 or the errno, with jf.why. */
static inline int jf_try_open(void)
{
    free(jf.log_text);
    jf.log_text = NULL;
    jf.log = (struct logger){.out = open_memstream(&jf.log_text, &jf.log_size)};
    jf.options.folder = jf.folder;
    jf.written = jf.synced = jf.failed = jf.retried = jf.differs = 0;
    jf.synced_mark = 0;
    ck_assert_int_eq(uv_loop_init(&jf.loop), 0);
    int r = journal_open(&jf.options, &jf.loop, &jf_ops, NULL, &jf.log, &jf.j, jf.why);
    if (r < 0) {
        (void)uv_run(&jf.loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&jf.loop), 0);
        (void)fclose(jf.log.out);
    }
    return r;
}

static inline void jf_open(void)
{
    int r = jf_try_open();

    ck_assert_msg(r == 0, "%s", jf.why);
}

static inline void jf_begin(void)
{
    ck_assert_int_eq(journal_begin_era(jf.j, JF_SYSTEM, 1, "shop", "walbus",
                                       (struct position){1, 0x100, 0}, 0x100, 1),
                     0);
}

/* A new folder with a journal whose era begins behind 1:0/100:0. */
static inline void jf_make(uint64_t segment_size, uint64_t sync_interval_ns)
{
    memset(&disk, 0, sizeof disk);
    jf.folder = unit_temp_folder();
    jf.options = (struct journal_options){.segment_size = segment_size,
                                          .sync_interval_ns = sync_interval_ns};
    jf_open();
    ck_assert(journal_end(jf.j)->empty);
    jf_begin();
}

static inline void jf_close(void)
{
    jf.j = journal_close(jf.j);
    (void)uv_run(&jf.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&jf.loop), 0);
    (void)fclose(jf.log.out);
    ck_assert_uint_eq(jf.pool.live, 0);
}

static inline void jf_remove(void)
{
    unit_temp_folder_remove(jf.folder);
    batch_pool_deinit(&jf.pool);
    free(jf.log_text);
    jf.log_text = NULL;
}

static inline void jf_finish(void)
{
    ck_assert_int_eq(journal_finish(jf.j), 0);
}

/* Tries to go on, and waits for the end of it: 0 or the negative errno. */
static inline int jf_retry(void)
{
    unsigned before = jf.retried;

    while (jf.retried == before) { /* it may still have to be told of the failure */
        journal_retry(jf.j);
        int r = journal_finish(jf.j);
        (void)r;
    }
    return -jf.retry_error;
}

/* Turns the loop until it is so, ten seconds at most. */
#define JF_UNTIL(condition)                                                              \
    do {                                                                                 \
        uint64_t jf_until = clock_monotonic_ns() + UINT64_C(10000000000);                \
        while (!(condition)) {                                                           \
            ck_assert_msg(clock_monotonic_ns() < jf_until, "waited for %s", #condition); \
            if (!uv_run(&jf.loop, UV_RUN_NOWAIT) || !(condition))                        \
                (void)usleep(200);                                                       \
        }                                                                                \
    } while (0)

/* libuv opens descriptors of its own for good with the first loop: before they are counted. */
__attribute__((constructor)) static void jf_open_libuv(void)
{
    if (uv_loop_init(&jf.loop) < 0 || uv_loop_close(&jf.loop) < 0)
        abort();
}

/* ---- batches ---- */

#define JF_BEGIN_TIME 0x77
/* of the messages made next */
static int64_t jf_received = 1;

static inline struct batch *jf_batch(void)
{
    struct batch *b = batch_new(&jf.pool);

    ck_assert_ptr_nonnull(b);
    return b;
}

/* A content that says where it belongs. */
static inline uint8_t jf_byte(struct position p, size_t i)
{
    return (uint8_t)(p.lsn * 31 + p.index * 7 + i * 13);
}

static inline void jf_add(struct batch *b, struct position p, size_t size, uint8_t flags)
{
    uint8_t *content = malloc(size ? size : 1);
    void *owner = content;
    struct frame_message f = {.position = p,
                              .lsn = p.lsn - 1,
                              .received_time = jf_received,
                              .prefix = unit_bytes("orders.created"),
                              .content = {content, size},
                              .flags = flags};

    ck_assert_ptr_nonnull(content);
    for (size_t i = 0; i < size; i++)
        content[i] = jf_byte(p, i);
    if (flags & FRAME_FLAG_TRANSACTIONAL) {
        f.xid = 5;
        f.commit_time = JF_BEGIN_TIME;
    }
    ck_assert_int_eq(batch_add_message(b, &f, &owner), 0);
    free(owner);
}

static inline struct frame_begin jf_begin_at(struct position p)
{
    return (struct frame_begin){
        .timeline = p.timeline, .commit_lsn = p.lsn, .commit_time = JF_BEGIN_TIME, .xid = 5};
}

static inline void jf_add_begin(struct batch *b, struct position p)
{
    struct frame_begin f = jf_begin_at(p);

    ck_assert_int_eq(batch_add_begin(b, &f), 0);
}

static inline void jf_add_part(struct batch *b, struct position p, uint32_t index, size_t size)
{
    jf_add(b, (struct position){p.timeline, p.lsn, index}, size, FRAME_FLAG_TRANSACTIONAL);
}

static inline void jf_add_commit(struct batch *b, struct position p, uint32_t messages)
{
    struct frame_commit f = {.begin = jf_begin_at(p), .end_lsn = p.lsn + 8, .messages = messages};

    ck_assert_int_eq(batch_add_commit(b, &f), 0);
}

static inline void jf_add_gap(struct batch *b, struct position from, struct position to)
{
    struct frame_gap f = {.from = from,
                          .to = to,
                          .messages = UINT64_MAX,
                          .bytes = UINT64_MAX,
                          .reason = unit_bytes("accepted")};

    ck_assert_int_eq(batch_add_gap(b, &f), 0);
}

/* That transaction's BEGIN is in an earlier batch. */
static inline void jf_starts_inside(struct batch *b, struct position p)
{
    struct frame_begin f = jf_begin_at(p);

    b->starts_inside = true;
    (void)frame_begin_encode(b->begin, &f);
}

/* Appends it with that mark, 0: none. */
static inline void jf_append(struct batch *b, uint64_t mark)
{
    b->mark = mark;
    b->mark_position = (struct position){b->n_entries ? b->last.timeline : 1, mark, 0};
    batch_seal(b);
    journal_append(jf.j, b);
    batch_unref(b);
}

static inline struct position jf_at(uint64_t lsn)
{
    return (struct position){1, lsn, 0};
}

/* One non-transactional message, marked by its LSN. */
static inline void jf_append_message(uint64_t lsn, size_t size)
{
    struct batch *b = jf_batch();

    jf_add(b, jf_at(lsn), size, 0);
    jf_append(b, lsn);
}

/* ---- what stands in the files ---- */

struct jf_entry {
    uint8_t type, flags;
    struct position position; /* GAP: its end */
    uint64_t content;         /* MESSAGE: size; it is checked against jf_byte */
    int64_t received_time;    /* MESSAGE */
};

static struct jf_entry *jf_entries;
static size_t jf_n_entries;

static inline void jf_read_frame(struct frame_header h, const uint8_t *body)
{
    struct jf_entry e = {.type = h.type, .flags = h.flags};
    struct frame_begin begin;
    struct frame_message m;
    struct frame_commit commit;
    struct frame_gap gap;

    switch (h.type) {
    case FRAME_BEGIN:
        ck_assert_int_eq(frame_begin_decode(h, body, &begin), 0);
        e.position = (struct position){begin.timeline, begin.commit_lsn, 0};
        break;
    case FRAME_MESSAGE:
        ck_assert_int_eq(frame_message_decode(h, body, &m), 0);
        e.position = m.position;
        e.content = m.content.size;
        e.received_time = m.received_time;
        for (size_t i = 0; i < m.content.size; i++)
            if (m.content.data[i] != jf_byte(m.position, i))
                ck_abort_msg("content of %llx", (unsigned long long)m.position.lsn);
        break;
    case FRAME_COMMIT:
        ck_assert_int_eq(frame_commit_decode(h, body, &commit), 0);
        e.position =
            (struct position){commit.begin.timeline, commit.begin.commit_lsn, POSITION_INDEX_END};
        break;
    case FRAME_GAP:
        ck_assert_int_eq(frame_gap_decode(h, body, &gap), 0);
        e.position = gap.to;
        break;
    default:
        ck_abort_msg("frame of type %u", h.type);
    }
    if (jf_n_entries % 1024 == 0) {
        jf_entries = realloc(jf_entries, (jf_n_entries + 1024) * sizeof *jf_entries);
        ck_assert_ptr_nonnull(jf_entries);
    }
    jf_entries[jf_n_entries++] = e;
}

/* One whole segment, and that every number in its records is what its frames and the record before say. */
static inline void jf_read_segment(struct segment *s)
{
    ck_assert_int_eq(segment_verify(s, false), 0);
    ck_assert_uint_eq(s->damaged_at, 0);
    size_t size = s->size, at = SEGMENT_HEADER_SIZE;
    uint8_t *data = malloc(size);
    uint64_t checksum = s->header.previous_checksum, messages = s->header.messages_before,
             bytes = s->header.bytes_before;
    int64_t received = s->header.received_time;
    uint64_t running = s->header.running_ms;
    bool inside = s->header.starts_inside;
    struct position last = s->header.after;

    ck_assert_int_eq(pread(s->fd, data, size, 0), (ssize_t)size);
    while (at < size) {
        struct record r;
        size_t first = jf_n_entries;

        ck_assert_uint_ge(size - at, RECORD_SIZE);
        ck_assert_int_eq(record_decode(data + at, &r), 0);
        ck_assert(
            record_verify(data + at, checksum, (struct bytes){data + at + RECORD_SIZE, r.size}));
        checksum = r.checksum;
        ck_assert_uint_eq(r.messages_before, messages);
        ck_assert_uint_eq(r.bytes_before, bytes);
        ck_assert_int_ge(r.received_time, received);
        received = r.received_time;
        ck_assert_uint_ge(r.running_ms, running);
        running = r.running_ms;
        ck_assert_int_eq(r.starts_inside, inside);
        inside = r.ends_inside;
        at += RECORD_SIZE;
        uint64_t n = 0;
        for (size_t end = at + r.size; at < end;) {
            struct frame_header h;

            ck_assert_int_eq(frame_header_decode(data + at, &h), 0);
            jf_read_frame(h, data + at + FRAME_HEADER_SIZE);
            at += FRAME_HEADER_SIZE + h.size;
            ck_assert_uint_le(at, end);
            const struct jf_entry *e = &jf_entries[jf_n_entries - 1];
            /* a BEGIN can have the position of the message before it */
            ck_assert(position_compare(last, e->position) < (e->type == FRAME_BEGIN ? 1 : 0));
            last = e->position;
            if (e->type == FRAME_MESSAGE) {
                n++;
                bytes += e->content;
                ck_assert_int_ge(received, e->received_time);
            }
        }
        messages += n;
        ck_assert_uint_eq(r.messages, n);
        ck_assert_uint_eq(r.bytes_before + r.bytes, bytes);
        if (jf_n_entries > first) {
            ck_assert_int_eq(position_compare(r.first, jf_entries[first].position), 0);
            ck_assert_int_eq(position_compare(r.last, last), 0);
        } else {
            ck_assert(position_is_zero(r.first) && position_is_zero(r.last));
        }
    }
    free(data);
}

/* All of it, into jf_entries; jf_forget when they were looked at. */
static inline void jf_read(void)
{
    struct segment *s = journal_segment_first(jf.j), *next;

    jf_n_entries = 0;
    free(jf_entries);
    jf_entries = NULL;
    while (s) {
        jf_read_segment(s);
        next = journal_segment_after(jf.j, s);
        if (next) { /* as the list says, and nothing between them */
            ck_assert_uint_eq(next->header.sequence, s->header.sequence + 1);
            ck_assert_uint_eq(next->header.previous_size, s->size);
            ck_assert_uint_eq(next->header.previous_checksum, s->end.checksum);
            ck_assert_int_eq(position_compare(next->header.after, s->end.before), 0);
            ck_assert_uint_eq(next->header.messages_before, s->end.messages);
            ck_assert_uint_eq(next->header.bytes_before, s->end.bytes);
            ck_assert_int_eq(next->header.starts_inside, s->end.starts_inside);
            ck_assert_uint_eq(next->header.begin.commit_lsn, s->end_begin.commit_lsn);
        }
        segment_unref(s);
        s = next;
    }
}

static inline void jf_forget(void)
{
    free(jf_entries);
    jf_entries = NULL;
    jf_n_entries = 0;
}

/* That messages of the LSNs [from, to) stand there and nothing else. */
static inline void jf_check_messages(uint64_t from, uint64_t to)
{
    jf_read();
    ck_assert_uint_eq(jf_n_entries, to - from);
    for (uint64_t lsn = from; lsn < to; lsn++) {
        ck_assert_uint_eq(jf_entries[lsn - from].type, FRAME_MESSAGE);
        ck_assert_uint_eq(jf_entries[lsn - from].position.lsn, lsn);
    }
    jf_forget();
}

#endif
