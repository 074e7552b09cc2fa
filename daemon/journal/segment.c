/* SPDX-License-Identifier: PostgreSQL */
#include "journal/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "journal/fault.h"

/* Verification reads so much at once: enough that a call costs nothing beside the hash. */
#define VERIFY_WINDOW (256u << 10)
/* Room for the index of a segment of the usual 16 MB. */
#define INDEX_START 260u

/* ---- files ---- */

/* All `size` bytes: 0; -ENODATA: the file ends before; another negative errno. */
static int read_exactly(int fd, uint64_t offset, uint8_t *to, size_t size)
{
    while (size) {
        ssize_t n = pread(fd, to, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        to += n;
        offset += (size_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static char *join(const char *folder, const char *name)
{
    char *path = NULL;

    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

int segment_sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = fsync(fd) < 0 ? -errno : 0;
    fd_close(fd);
    return r;
}

/* ---- one segment ---- */

static struct segment *segment_new(void)
{
    struct segment *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    atomic_init(&s->refs, 1);
    s->fd = -1;
    (void)pthread_mutex_init(&s->lock, NULL);
    s->index = malloc(INDEX_START * sizeof *s->index);
    s->index_cap = INDEX_START;
    return s->index ? s : segment_unref(s);
}

struct segment *segment_ref(struct segment *s)
{
    (void)atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

struct segment *segment_unref(struct segment *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return NULL;
    fd_close(s->fd);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s->index);
    free(s);
    return NULL;
}

/* Nothing behind the header is known. */
static void segment_begin(struct segment *s)
{
    const struct segment_header *h = &s->header;

    s->end = (struct segment_mark){
        .offset = SEGMENT_HEADER_SIZE,
        .before = h->after,
        .starts_inside = h->starts_inside,
        .received_time = h->received_time,
        .messages = h->messages_before,
        .bytes = h->bytes_before,
        .checksum = h->previous_checksum,
    };
    s->end_begin = h->begin;
    s->mark = h->mark;
    s->mark_timeline = h->mark_timeline;
    s->running_ms = h->running_ms;
    s->index[0] = s->end;
    s->n_index = 1;
}

int segment_open(const char *path, uint64_t size, struct segment **ret)
{
    uint8_t header[SEGMENT_HEADER_SIZE];
    struct segment *s = segment_new();
    struct stat st;
    int r;

    if (!s)
        return -ENOMEM;
    s->path = strdup(path);
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* whatever stands there */
    if (!s->path)
        r = -ENOMEM;
    else if (s->fd < 0 || fstat(s->fd, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode))
        r = -EBADMSG;
    else
        r = read_exactly(s->fd, 0, header, sizeof header);
    if (r == 0)
        r = segment_header_decode(header, &s->header);
    if (r < 0) {
        segment_unref(s);
        return r == -ENODATA ? -EBADMSG : r;
    }
    s->file_size = (uint64_t)st.st_size;
    atomic_init(&s->size, size ? size : s->file_size);
    segment_begin(s);
    *ret = s;
    return 0;
}

/* Writes the header, then the name. */
static int make_file(struct segment *s, const char *folder, const char *unnamed)
{
    uint8_t header[SEGMENT_HEADER_SIZE];

    int r = FAULT("journal-segment");
    if (r < 0)
        return r;
    if (unlink(unnamed) < 0 && errno != ENOENT)
        return -errno;
    s->fd = open(unnamed, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s->fd < 0)
        return -errno;
    segment_header_encode(&s->header, header);
    ssize_t n = pwrite(s->fd, header, sizeof header, 0);
    r = n == (ssize_t)sizeof header ? 0 : n < 0 ? -errno : -ENOSPC;
    if (r == 0 && fsync(s->fd) < 0)
        r = -errno;
    if (r == 0)
        r = FAULT("journal-segment");
    if (r == 0 && rename(unnamed, s->path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(unnamed);
        return r;
    }
    r = FAULT("journal-segment");
    if (r >= 0)
        r = segment_sync_folder(folder);
    if (r < 0)
        (void)unlink(s->path);
    return r;
}

int segment_create(const char *folder, const struct segment_header *h, struct segment **ret)
{
    char name[SEGMENT_NAME_SIZE], *unnamed = join(folder, SEGMENT_UNNAMED);
    struct segment *s = segment_new();
    int r = -ENOMEM;

    if (s) {
        s->header = *h;
        s->header.format = JOURNAL_FORMAT;
        s->header.layout = FRAME_LAYOUT;
        s->path = join(folder, segment_name_format(h->sequence, h->after, name));
    }
    if (s && s->path && unnamed)
        r = make_file(s, folder, unnamed);
    free(unnamed);
    if (r < 0) {
        segment_unref(s);
        return r;
    }
    segment_begin(s);
    s->verified = true;
    atomic_init(&s->size, SEGMENT_HEADER_SIZE);
    *ret = s;
    return 0;
}

/* ---- what a record changes ---- */

/* Without memory the index is only sparser. */
static void index_add(struct segment *s, const struct segment_mark *mark)
{
    if (mark->offset - s->index[s->n_index - 1].offset < SEGMENT_INDEX_STEP)
        return;
    if (s->n_index == s->index_cap) {
        struct segment_mark *index = realloc(s->index, 2 * s->index_cap * sizeof *index);

        if (!index)
            return;
        s->index = index;
        s->index_cap *= 2;
    }
    s->index[s->n_index++] = *mark;
}

void segment_state_move(struct segment_state *to, const struct record *r,
                        const struct frame_begin *open_at_end)
{
    to->end.offset += RECORD_SIZE + r->size;
    if (!position_is_zero(r->last))
        to->end.before = r->last;
    to->end.starts_inside = r->ends_inside;
    to->end.received_time = r->received_time;
    to->end.messages = r->messages_before + r->messages;
    to->end.bytes = r->bytes_before + r->bytes;
    to->end.checksum = r->checksum;
    to->end_begin = r->ends_inside ? *open_at_end : (struct frame_begin){0};
    if (r->mark) {
        to->mark = r->mark;
        to->mark_timeline = r->mark_timeline;
    }
    to->running_ms = r->running_ms;
}

static struct segment_state state_of(const struct segment *s)
{
    return (struct segment_state){
        .end = s->end,
        .end_begin = s->end_begin,
        .mark = s->mark,
        .mark_timeline = s->mark_timeline,
        .running_ms = s->running_ms,
    };
}

static void set_state(struct segment *s, const struct segment_state *to)
{
    s->end = to->end;
    s->end_begin = to->end_begin;
    s->mark = to->mark;
    s->mark_timeline = to->mark_timeline;
    s->running_ms = to->running_ms;
}

/* The end moves behind a record that begins there. */
static void move_end(struct segment *s, const struct record *r,
                     const struct frame_begin *open_at_end)
{
    struct segment_state state = state_of(s);

    index_add(s, &s->end);
    segment_state_move(&state, r, open_at_end);
    set_state(s, &state);
}

static void fall_back(struct segment *s, const struct segment_state *to)
{
    set_state(s, to);
    while (s->n_index > 1 && s->index[s->n_index - 1].offset >= to->end.offset)
        s->n_index--;
}

void segment_note(struct segment *s, uint64_t offset, const struct record *r,
                  const struct frame_begin *open_at_end)
{
    (void)pthread_mutex_lock(&s->lock);
    s->end.offset = offset;
    move_end(s, r, open_at_end);
    atomic_store_explicit(&s->size, s->end.offset, memory_order_release);
    (void)pthread_mutex_unlock(&s->lock);
}

void segment_close(struct segment *s, uint64_t next_checksum)
{
    (void)pthread_mutex_lock(&s->lock);
    s->has_next = true;
    s->next_checksum = next_checksum;
    s->verified = false;
    (void)pthread_mutex_unlock(&s->lock);
}

uint64_t segment_damaged_at(struct segment *s)
{
    (void)pthread_mutex_lock(&s->lock);
    uint64_t at = s->damaged_at;
    (void)pthread_mutex_unlock(&s->lock);
    return at;
}

struct segment_state segment_state_of(struct segment *s)
{
    (void)pthread_mutex_lock(&s->lock);
    struct segment_state state = state_of(s);
    (void)pthread_mutex_unlock(&s->lock);
    return state;
}

void segment_fall_back(struct segment *s, const struct segment_state *to)
{
    (void)pthread_mutex_lock(&s->lock);
    fall_back(s, to);
    atomic_store_explicit(&s->size, to->end.offset, memory_order_release);
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- verification ---- */

/* The file, read from its start to its end through one window. */
struct window {
    int fd;
    uint8_t *data;
    uint64_t at, limit; /* in the file: where the window begins, where reading ends */
    size_t size, used;
};

/* The next bytes, at most `want`; without any: -ENODATA. */
static int window_next(struct window *w, uint64_t want, struct bytes *ret)
{
    if (w->used == w->size) {
        uint64_t next = w->at + w->size;
        ssize_t n;

        do
            n = pread(w->fd, w->data, (size_t)MIN((uint64_t)VERIFY_WINDOW, w->limit - next),
                      (off_t)next);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        w->at = next;
        w->size = (size_t)n;
        w->used = 0;
    }
    size_t part = (size_t)MIN(want, (uint64_t)(w->size - w->used));
    *ret = (struct bytes){w->data + w->used, part};
    w->used += part;
    return 0;
}

static int window_copy(struct window *w, uint8_t *to, size_t size)
{
    struct bytes part;

    while (size) {
        int r = window_next(w, size, &part);

        if (r < 0)
            return r;
        memcpy(to, part.data, part.size);
        to += part.size;
        size -= part.size;
    }
    return 0;
}

/* The record at the end so far: 0, and the end is behind it; -ENODATA or -EBADMSG: there is none; another negative errno. */
static int verify_record(struct segment *s, struct window *w, struct record_check *check,
                         struct record *ret)
{
    uint8_t frame[RECORD_SIZE];
    struct record record;
    struct bytes part;

    if (w->limit - s->end.offset < RECORD_SIZE)
        return -ENODATA;
    int r = window_copy(w, frame, sizeof frame);
    if (r == 0)
        r = record_decode(frame, &record);
    if (r < 0)
        return r;
    if (record.size > w->limit - s->end.offset - RECORD_SIZE)
        return -ENODATA;
    record_check_begin(check, frame, s->end.checksum);
    for (uint64_t left = record.size; left; left -= part.size) {
        r = window_next(w, left, &part);
        if (r < 0)
            return r;
        record_check_add(check, part);
    }
    if (!record_check_is_right(check) || record.starts_inside != s->end.starts_inside ||
        (!position_is_zero(record.last) && position_compare(record.last, s->end.before) < 0))
        return -EBADMSG;
    move_end(s, &record, &(struct frame_begin){0}); /* find_open will say */
    *ret = record;
    return 0;
}

/* The BEGIN that is open at the end of a record: its last one, or what was open at its start. -EBADMSG: its frames do not fill it. */
static int find_open(const struct segment *s, uint64_t offset, const struct record *record,
                     struct frame_begin *ret)
{
    uint8_t frame[FRAME_HEADER_SIZE + FRAME_BEGIN_BODY];
    uint64_t at = offset + RECORD_SIZE, end = at + record->size;
    struct frame_begin begin = record->begin;
    bool found = record->starts_inside;

    while (at < end) {
        struct frame_header h;

        if (end - at < FRAME_HEADER_SIZE)
            return -EBADMSG;
        int r = read_exactly(s->fd, at, frame, FRAME_HEADER_SIZE);
        if (r == 0)
            r = frame_header_decode(frame, &h);
        if (r < 0)
            return r;
        at += FRAME_HEADER_SIZE;
        if (h.size > end - at)
            return -EBADMSG;
        if (h.type == FRAME_BEGIN) {
            if (h.size != FRAME_BEGIN_BODY)
                return -EBADMSG;
            r = read_exactly(s->fd, at, frame + FRAME_HEADER_SIZE, FRAME_BEGIN_BODY);
            if (r == 0)
                r = frame_begin_decode(h, frame + FRAME_HEADER_SIZE, &begin);
            if (r < 0)
                return r;
            found = true;
        }
        at += h.size;
    }
    if (!found)
        return -EBADMSG;
    *ret = begin;
    return 0;
}

/* Reads on to the first record that does not fit. 0, or a negative errno: the disk's. */
static int verify_records(struct segment *s, struct window *w, struct record_check *check)
{
    struct segment_state state = state_of(s), before = state; /* before: the last whole record */
    struct record record = {0};
    int r = 0;

    while (r == 0 && s->end.offset < w->limit) {
        state = state_of(s);
        r = verify_record(s, w, check, &record);
        if (r == 0)
            before = state;
    }
    if (r < 0 && r != -ENODATA && r != -EBADMSG)
        return r;
    if (before.end.offset == s->end.offset) /* there is none */
        return 0;
    if (!record.ends_inside)
        return 0;
    r = find_open(s, before.end.offset, &record, &s->end_begin);
    if (r == -ENODATA || r == -EBADMSG) {
        fall_back(s, &before);
        s->end_begin = record.begin;
        return 0;
    }
    return r;
}

/* What was to be there and does not fit is damage; where it begins, 0: nowhere. */
static uint64_t find_damage(struct segment *s, uint64_t limit)
{
    if (s->end.offset != limit)
        return s->end.offset;
    if (!s->has_next || s->end.checksum == s->next_checksum)
        return 0;
    segment_begin(s); /* good in itself, but no part of this journal */
    return s->end.offset;
}

int segment_verify(struct segment *s, bool torn_is_end)
{
    struct window w = {.fd = s->fd, .at = SEGMENT_HEADER_SIZE};
    struct record_check *check = NULL;
    int r = 0;

    (void)pthread_mutex_lock(&s->lock);
    if (s->verified)
        goto out;
    w.limit = atomic_load_explicit(&s->size, memory_order_relaxed);
    w.data = malloc(VERIFY_WINDOW);
    check = record_check_new();
    if (!w.data || !check) {
        r = -ENOMEM;
        goto out;
    }
    segment_begin(s); /* an attempt that failed may have left something */
    r = verify_records(s, &w, check);
    if (r < 0)
        goto out;
    if (!torn_is_end)
        s->damaged_at = find_damage(s, w.limit);
    atomic_store_explicit(&s->size, s->end.offset, memory_order_release);
    s->verified = true;
out:
    (void)pthread_mutex_unlock(&s->lock);
    record_check_free(check);
    free(w.data);
    return r;
}

uint64_t segment_disk_size(const struct segment *s)
{
    uint64_t size = atomic_load_explicit(&s->size, memory_order_relaxed);

    return MAX(size, s->file_size);
}

/* ---- finding ---- */

struct segment_mark segment_locate(struct segment *s, struct position p)
{
    (void)pthread_mutex_lock(&s->lock);
    size_t low = 0, high = s->n_index; /* the answer is in [low, high) */

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (position_compare(s->index[middle].before, p) <= 0)
            low = middle;
        else
            high = middle;
    }
    struct segment_mark mark = s->index[low];
    (void)pthread_mutex_unlock(&s->lock);
    return mark;
}

struct segment_mark segment_locate_time(struct segment *s, int64_t time)
{
    (void)pthread_mutex_lock(&s->lock);
    size_t low = 0, high = s->n_index;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (s->index[middle].received_time < time)
            low = middle;
        else
            high = middle;
    }
    struct segment_mark mark = s->index[low];
    (void)pthread_mutex_unlock(&s->lock);
    return mark;
}
