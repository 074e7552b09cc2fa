/* SPDX-License-Identifier: PostgreSQL */
#include "journal/window.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void window_go(struct window *w, struct segment *segment, uint64_t offset)
{
    w->segment = segment;
    w->at = offset;
    w->pos = w->end = w->floor;
    w->limit = atomic_load_explicit(&segment->size, memory_order_acquire);
}

/* At most `size` bytes: how many; -EBADMSG: none, although they were there. */
static ssize_t read_some(int fd, uint64_t offset, uint8_t *to, size_t size)
{
    ssize_t n;

    do
        n = pread(fd, to, size, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n == 0 ? -EBADMSG : n;
}

int window_want(struct window *w, size_t size)
{
    size_t have = w->end - w->pos;

    if (have >= size)
        return 0;
    if (size > w->limit - w->at)
        return -EBADMSG;
    if (size > w->cap - w->floor)
        return -ENOBUFS;
    if (have)
        memmove(w->buf + w->floor, w->buf + w->pos, have);
    w->pos = w->floor;
    w->end = w->pos + have;
    while (w->end - w->pos < size) {
        uint64_t next = w->at + (w->end - w->pos);
        size_t room = (size_t)MIN((uint64_t)(w->cap - w->end), w->limit - next);
        ssize_t n = read_some(w->segment->fd, next, w->buf + w->end, room);

        if (n < 0)
            return (int)n;
        w->end += (size_t)n;
    }
    return 0;
}

void window_pass(struct window *w, uint64_t size)
{
    w->at += size;
    if (size <= w->end - w->pos)
        w->pos += (size_t)size;
    else
        w->pos = w->end = w->floor;
}

int window_copy(const struct window *w, uint64_t offset, uint8_t *to, size_t size)
{
    uint64_t left = w->limit - w->at;

    if (offset > left || size > left - offset)
        return -EBADMSG;
    for (size_t done = 0; done < size;) {
        ssize_t n = read_some(w->segment->fd, w->at + offset + done, to + done, size - done);

        if (n < 0)
            return (int)n;
        done += (size_t)n;
    }
    return 0;
}

int window_frame(struct window *w, struct frame_header *ret)
{
    struct frame_header h;
    int r = window_want(w, FRAME_HEADER_SIZE);

    if (r == 0)
        r = frame_header_decode(window_data(w), &h);
    if (r == 0 && h.size > w->limit - w->at - FRAME_HEADER_SIZE)
        r = -EBADMSG;
    if (r == 0)
        *ret = h;
    return r;
}
