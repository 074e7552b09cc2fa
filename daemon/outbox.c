/* SPDX-License-Identifier: PostgreSQL */
#include "outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/bytes.h"

/* Frames of 400 bytes over a Unix socket: 0.7 million a second with one in a sendmsg, 4.8 with 16,
 * 11 with 256. */
#define GATHER 256
/* First size of the ring; a power of two. */
#define ITEMS_START 16
/* So many written bytes of control frames may stand before those that wait. */
#define CONTROL_COMPACT 65536
/* So much memory of it is kept for the next ones. */
#define CONTROL_KEEP 4096

static struct outbox_item *outbox_at(const struct outbox *o, size_t i)
{
    return &o->items[(o->head + i) & (o->cap - 1)];
}

static size_t item_size(const struct outbox_item *item)
{
    return item->frame ? BATCH_BEGIN_SIZE : item->size;
}

static int outbox_push(struct outbox *o, struct outbox_item item)
{
    if (o->n == o->cap) {
        size_t cap = o->cap ? o->cap * 2 : ITEMS_START;
        struct outbox_item *items = malloc(cap * sizeof *items);

        if (!items)
            return -ENOMEM;
        for (size_t i = 0; i < o->n; i++)
            items[i] = *outbox_at(o, i);
        free(o->items);
        o->items = items;
        o->head = 0;
        o->cap = cap;
    }
    if (o->n == 0 || outbox_at(o, o->n - 1)->batch != item.batch) {
        o->charge += batch_charge(item.batch);
        o->large += batch_large(item.batch);
    }
    (void)batch_ref(item.batch);
    *outbox_at(o, o->n++) = item;
    return 0;
}

static void outbox_release(struct outbox *o, size_t i, bool last_of_batch)
{
    struct outbox_item *item = outbox_at(o, i);

    if (last_of_batch) {
        o->charge -= batch_charge(item->batch);
        o->large -= batch_large(item->batch);
    }
    item->batch = batch_unref(item->batch);
}

static void outbox_pop(struct outbox *o)
{
    outbox_release(o, 0, o->n == 1 || outbox_at(o, 1)->batch != outbox_at(o, 0)->batch);
    o->head = (o->head + 1) & (o->cap - 1);
    o->n--;
    o->done = 0;
    o->boundary = 0;
}

void outbox_deinit(struct outbox *o)
{
    while (o->n)
        outbox_pop(o);
    free(o->items);
    buf_deinit(&o->control);
    *o = (struct outbox){0};
}

int outbox_add(struct outbox *o, struct batch *batch, size_t offset, size_t size)
{
    if (o->n) {
        struct outbox_item *last = outbox_at(o, o->n - 1);

        if (last->batch == batch && !last->frame && last->offset + last->size == offset) {
            last->size += size;
            return 0;
        }
    }
    return outbox_push(o, (struct outbox_item){.batch = batch, .offset = offset, .size = size});
}

int outbox_add_begin(struct outbox *o, struct batch *batch, const uint8_t begin[BATCH_BEGIN_SIZE])
{
    struct outbox_item item = {.batch = batch, .frame = true};

    memcpy(item.bytes, begin, sizeof item.bytes);
    return outbox_push(o, item);
}

struct buf *outbox_control(struct outbox *o)
{
    return &o->control;
}

size_t outbox_waiting_control(const struct outbox *o)
{
    return o->control.size - o->control_done;
}

bool outbox_is_empty(const struct outbox *o)
{
    return o->n == 0 && o->control.size == 0;
}

size_t outbox_behind(const struct outbox *o)
{
    if (o->n == 0)
        return 0;
    const struct batch *head = outbox_at(o, 0)->batch;
    return o->charge + o->large - batch_charge(head) - batch_large(head);
}

bool outbox_is_full(const struct outbox *o, bool half)
{
    unsigned part = half ? 2 : 1;

    if (o->n == 0)
        return false;
    const struct batch *head = outbox_at(o, 0)->batch;
    return o->n > OUTBOX_ITEMS_MAX / part ||
           o->charge - batch_charge(head) > OUTBOX_BYTES_MAX / part ||
           o->large > batch_large(head);
}

/* The end, within the head item, of the frame in which `done` lies; `done` itself at a boundary.
 * A frame's header always lies in a batch's head, in one piece. */
static size_t frame_end(struct outbox *o)
{
    const struct outbox_item *item = outbox_at(o, 0);

    if (item->frame)
        return o->done ? BATCH_BEGIN_SIZE : 0;
    while (o->boundary < o->done) {
        struct frame_header h;
        size_t end;

        if (frame_header_decode(item->batch->head + item->offset + o->boundary, &h) < 0)
            return item->size; /* our own encoder's frames: cannot be */
        end = o->boundary + FRAME_HEADER_SIZE + h.size;
        if (end > o->done)
            return end;
        o->boundary = end;
    }
    return o->done;
}

void outbox_drop(struct outbox *o)
{
    size_t keep = 0;

    if (o->n) {
        size_t end = frame_end(o);
        if (end > o->done) {
            keep = 1;
            if (!outbox_at(o, 0)->frame)
                outbox_at(o, 0)->size = end;
        }
    }
    while (o->n > keep) {
        outbox_release(o, o->n - 1,
                       o->n == 1 || outbox_at(o, o->n - 2)->batch != outbox_at(o, o->n - 1)->batch);
        o->n--;
    }
    if (o->n == 0) {
        o->done = 0;
        o->boundary = 0;
    }
    /* a session that is let go may wait for long to finish its frame: the ring of a full outbox is large */
    outbox_shrink(o);
}

void outbox_shrink(struct outbox *o)
{
    if (o->n > ITEMS_START || o->cap <= ITEMS_START)
        return;
    struct outbox_item *items = malloc(ITEMS_START * sizeof *items);
    if (!items)
        return;
    for (size_t i = 0; i < o->n; i++)
        items[i] = *outbox_at(o, i);
    free(o->items);
    o->items = items;
    o->head = 0;
    o->cap = ITEMS_START;
}

static void outbox_wrote(struct outbox *o, size_t size)
{
    while (size) {
        size_t left = item_size(outbox_at(o, 0)) - o->done;

        if (size < left) {
            o->done += size;
            return;
        }
        size -= left;
        outbox_pop(o);
    }
}

static unsigned item_pieces(const struct outbox_item *item, size_t from, size_t to,
                            struct iovec out[2])
{
    if (item->frame) {
        out[0] = (struct iovec){(void *)(item->bytes + from), to - from};
        return 1;
    }
    struct bytes pieces[2];
    unsigned n = batch_pieces(item->batch, item->offset + from, to - from, pieces);
    for (unsigned i = 0; i < n; i++)
        out[i] = (struct iovec){(void *)pieces[i].data, pieces[i].size};
    return n;
}

/* One sendmsg of data, up to `limit` bytes of the head item alone when limit is not 0. Bytes, or a negative errno. */
static ssize_t send_data(struct outbox *o, int fd, size_t limit)
{
    struct iovec iov[GATHER + 1];
    struct msghdr msg = {.msg_iov = iov};
    size_t n = 0;

    if (limit) {
        n = item_pieces(outbox_at(o, 0), o->done, o->done + limit, iov);
    } else {
        for (size_t i = 0; i < o->n && n < GATHER; i++) {
            const struct outbox_item *item = outbox_at(o, i);
            n += item_pieces(item, i ? 0 : o->done, item_size(item), iov + n);
        }
    }
    msg.msg_iovlen = n;
    ssize_t sent = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return -errno;
    o->written += (uint64_t)sent;
    o->written_data += (uint64_t)sent;
    outbox_wrote(o, (size_t)sent);
    return sent;
}

/* A peer that always reads a little, and always asks for more, must not make the buffer grow. One written
 * byte stays, to tell that a frame is half written. */
static void control_compact(struct outbox *o)
{
    size_t gone = o->control_done - 1;

    if (o->control_done <= CONTROL_COMPACT)
        return;
    memmove(o->control.data + 1, o->control.data + o->control_done,
            o->control.size - o->control_done);
    o->control.size -= gone;
    o->control_done = 1;
}

static int write_control(struct outbox *o, int fd)
{
    while (o->control_done < o->control.size) {
        ssize_t sent = send(fd, o->control.data + o->control_done,
                            o->control.size - o->control_done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            int error = errno;

            control_compact(o);
            return -error;
        }
        o->written += (uint64_t)sent;
        o->control_done += (size_t)sent;
    }
    if (o->control.cap > CONTROL_KEEP)
        buf_deinit(&o->control);
    else
        buf_clear(&o->control);
    o->control_done = 0;
    return 0;
}

int outbox_write(struct outbox *o, int fd)
{
    uint64_t limit = o->written + OUTBOX_TURN_MAX;
    int r = 0;

    while (!outbox_is_empty(o)) {
        ssize_t sent = 0;

        if (o->written >= limit)
            return 1;
        if (o->control.size) {
            /* a control frame that is itself half written goes on; else a begun data frame is first finished */
            size_t end = o->control_done == 0 && o->n ? frame_end(o) : o->done;
            if (o->control_done == 0 && o->n && end > o->done)
                sent = send_data(o, fd, end - o->done);
            else
                r = write_control(o, fd);
        } else {
            sent = send_data(o, fd, 0);
        }
        if (sent < 0)
            r = (int)sent;
        if (r == -EINTR)
            r = 0;
        else if (r == -EAGAIN)
            return 1;
        else if (r < 0)
            return r;
    }
    return 0;
}
