/* SPDX-License-Identifier: PostgreSQL */
/* Going on after a failure: on the journal thread, since each attempt waits for the disk. */
#include "journal/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "journal/fault.h"

/* A sign that the next writes will not fail at once. A file system that cannot reserve is believed. */
static int reserve_room(const struct journal *j, const struct segment *s)
{
    uint64_t room = MAX(j->writer.wanted, (uint64_t)WRITER_RETRY_ROOM);
    int r =
        fallocate(s->fd, FALLOC_FL_KEEP_SIZE, SEGMENT_HEADER_SIZE, (off_t)room) < 0 ? -errno : 0;

    return r == -EOPNOTSUPP || r == -ENOSYS || r == -EINVAL ? 0 : r;
}

/* A file that was just made, and is in no list. */
static void unmake(struct segment *s)
{
    (void)unlink(s->path);
    segment_unref(s);
}

bool writer_cut_tail(struct journal *j)
{
    struct writer *w = &j->writer;

    return w->writable && ftruncate(w->tail->fd, (off_t)w->synced.end.offset) == 0;
}

int writer_retry(struct journal *j)
{
    struct writer *w = &j->writer;
    struct segment *s;

    int r = FAULT("journal-retry");
    if (r < 0)
        return r;
    bool cut = writer_cut_tail(j);
    /* Where nothing but the header ever stood, which is synced, and no sync has failed: else each attempt would leave a file. */
    if (cut && w->wanted && !w->was_read && w->synced.end.offset == SEGMENT_HEADER_SIZE) {
        r = reserve_room(j, w->tail);
        if (r < 0)
            (void)writer_cut_tail(j);
        return r;
    }
    struct segment_header h = writer_next_header(j);
    r = writer_make_segment(j, &h, &s);
    if (r < 0)
        return r;
    r = reserve_room(j, s);
    if (r < 0) {
        unmake(s);
        return r;
    }
    writer_add_segment(j, s);
    return 0;
}
