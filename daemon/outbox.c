/* SPDX-License-Identifier: PostgreSQL */
#include "outbox.h"

#include <assert.h>
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
    return item->frame ? item->frame : item->size;
}

static uint64_t item_owed(const struct outbox_item *item)
{
    return item->frame ? 0 : item->owed;
}

/* ---- frames ---- */

/* The size of a frame by its header, with it. */
static size_t frame_size(const uint8_t *frame)
{
    return FRAME_HEADER_SIZE + (size_t)bytes_get_u32(frame);
}

static uint8_t frame_type(const uint8_t *frame)
{
    return frame[4];
}

/* Behind which everything is new to whoever was sent the frame. */
static struct position frame_position(const uint8_t *frame)
{
    const uint8_t *body = frame + FRAME_HEADER_SIZE;

    switch (frame_type(frame)) {
    case FRAME_BEGIN:
        return (struct position){bytes_get_u32(body), bytes_get_u64(body + 4), 0};
    case FRAME_COMMIT:
        return (struct position){bytes_get_u32(body), bytes_get_u64(body + 4), POSITION_INDEX_END};
    case FRAME_GAP:
        return position_decode(body + POSITION_SIZE);
    default: /* MESSAGE */
        return position_decode(body);
    }
}

static void place_pass(struct outbox_place *place, uint8_t type, struct position position)
{
    place->resume = false;
    if (type == FRAME_GAP) /* one that ends right before the end of the open transaction leaves it its COMMIT */
        place->inside = place->inside && position.index == POSITION_INDEX_END - 1 &&
                        position.timeline == place->told.timeline && position.lsn == place->told.lsn;
    else
        place->inside = type == FRAME_BEGIN || (type == FRAME_MESSAGE && position.index != POSITION_INDEX_NONTRANSACTIONAL);
    if (position_compare(position, place->told) > 0) /* a resumed BEGIN lies before it */
        place->told = position;
}

static void place_pass_frame(struct outbox_place *place, const uint8_t *frame)
{
    place_pass(place, frame_type(frame), frame_position(frame));
}

/* A frame that begins in the item. Its header, and what else is looked at, always lies in the batch's head, in one piece. */
static const uint8_t *item_frame(const struct outbox_item *item, size_t at)
{
    return item->frame ? item->bytes : item->batch->head + item->offset + at;
}

/* ---- the ring ---- */

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
    const struct outbox_item *before = o->n ? outbox_at(o, o->n - 1) : NULL;
    if (before && before->batch == item.batch) {
        item.hold = before->hold;
    } else {
        o->charge += batch_charge(item.batch);
        item.hold = o->account ? account_hold(o->account, item.batch) : NULL;
    }
    o->waiting += item_size(&item);
    (void)batch_ref(item.batch);
    *outbox_at(o, o->n++) = item;
    return 0;
}

static void outbox_release(struct outbox *o, size_t i, bool last_of_batch)
{
    struct outbox_item *item = outbox_at(o, i);

    if (last_of_batch) {
        o->charge -= batch_charge(item->batch);
        if (item->hold)
            account_let_go(item->hold);
    }
    item->batch = batch_unref(item->batch);
}

/* The place moves behind the frames that begin in the item before `end`. */
static void pass_frames(struct outbox *o, const struct outbox_item *item, size_t end)
{
    for (size_t at = item->rest; at < end; at += frame_size(item_frame(item, at)))
        place_pass_frame(&o->place, item_frame(item, at));
}

/* The head item is written: the place moves behind its last frame. */
static void outbox_pass(struct outbox *o)
{
    const struct outbox_item *item = outbox_at(o, 0);
    size_t size = item_size(item);

    if (item_owed(item)) { /* a piece of one frame, which goes on in the next item */
        if (item->rest == 0) {
            o->type = frame_type(item_frame(item, 0));
            o->position = frame_position(item_frame(item, 0));
            o->begun = 0;
        }
        o->begun += size;
        o->owed = item->owed;
        return;
    }
    if (item->frame)
        place_pass_frame(&o->place, item->bytes);
    else if (item->last < size)
        place_pass_frame(&o->place, item_frame(item, item->last));
    else
        place_pass(&o->place, o->type, o->position);
    o->begun = 0;
    o->owed = 0;
}

static void outbox_pop(struct outbox *o)
{
    outbox_release(o, 0, o->n == 1 || outbox_at(o, 1)->batch != outbox_at(o, 0)->batch);
    o->head = (o->head + 1) & (o->cap - 1);
    o->n--;
    o->done = 0;
    o->boundary = 0;
}

static void outbox_pop_last(struct outbox *o)
{
    outbox_release(o, o->n - 1,
                   o->n == 1 || outbox_at(o, o->n - 2)->batch != outbox_at(o, o->n - 1)->batch);
    o->n--;
    if (o->n == 0) {
        o->done = 0;
        o->boundary = 0;
    }
}

void outbox_deinit(struct outbox *o)
{
    while (o->n)
        outbox_pop(o);
    free(o->items);
    buf_deinit(&o->control);
    *o = (struct outbox){0};
}

int outbox_add(struct outbox *o, struct batch *batch, size_t offset, size_t size, size_t last)
{
    if (o->n) {
        struct outbox_item *item = outbox_at(o, o->n - 1);

        if (item->batch == batch && !item->frame && !item->owed &&
            item->offset + item->size == offset) {
            item->last = last - item->offset;
            item->size += size;
            o->waiting += size;
            return 0;
        }
    }
    return outbox_push(o,
                       (struct outbox_item){
                           .batch = batch, .offset = offset, .size = size, .last = last - offset});
}

int outbox_add_chunk(struct outbox *o, struct batch *batch, size_t rest, size_t last, uint64_t owed)
{
    assert(rest == MIN(outbox_owed(o), batch->head_size) &&
           (owed == 0 || last == 0 || rest == batch->head_size));
    return outbox_push(
        o, (struct outbox_item){
               .batch = batch, .size = batch->head_size, .last = last, .rest = rest, .owed = owed});
}

int outbox_add_frame(struct outbox *o, struct batch *batch, const uint8_t *frame, size_t size)
{
    struct outbox_item item = {.batch = batch, .frame = (uint8_t)size};

    assert(size <= sizeof item.bytes);
    memcpy(item.bytes, frame, size);
    return outbox_push(o, item);
}

uint64_t outbox_owed(const struct outbox *o)
{
    return o->n ? item_owed(outbox_at(o, o->n - 1)) : o->owed;
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
    return o->n == 0 && o->owed == 0 && o->control.size == 0;
}

size_t outbox_behind(const struct outbox *o)
{
    if (o->n == 0)
        return 0;
    const struct batch *head = outbox_at(o, 0)->batch;
    return o->charge - batch_charge(head);
}

bool outbox_holds(const struct outbox *o, const struct batch_pool *pool)
{
    return o->n &&
           (outbox_at(o, 0)->batch->pool == pool || outbox_at(o, o->n - 1)->batch->pool == pool);
}

bool outbox_is_full(const struct outbox *o)
{
    return o->n > OUTBOX_ITEMS_MAX || outbox_behind(o) > OUTBOX_BYTES_MAX;
}

/* The end, within the head item, of the frame in which `done` lies; `done` itself at a boundary. */
static size_t frame_end(struct outbox *o)
{
    const struct outbox_item *item = outbox_at(o, 0);

    if (item->frame)
        return o->done ? item->frame : 0;
    if (o->done < item->rest)
        return item->rest;
    o->boundary = MAX(o->boundary, item->rest);
    while (o->boundary < o->done) {
        size_t end = o->boundary + frame_size(item_frame(item, o->boundary));
        if (end > o->done)
            return MIN(end, item->size);
        o->boundary = end;
    }
    return o->done;
}

/* Whether what was written ends in the middle of a frame. */
static bool is_mid_frame(struct outbox *o)
{
    return o->n ? frame_end(o) > o->done : o->owed > 0;
}

/* ---- dropping ---- */

/* How many MESSAGE frames end in the item. */
static size_t item_messages(const struct outbox_item *item)
{
    size_t n = 0;

    if (item->frame)
        return 0;
    if (item->rest && (item->rest < item->size || !item->owed))
        n++; /* frames that come in pieces are MESSAGE frames, or a GAP with a very long reason */
    if (item->owed)
        return n;
    for (size_t at = item->rest; at < item->size; at += frame_size(item_frame(item, at)))
        n += frame_type(item_frame(item, at)) == FRAME_MESSAGE;
    return n;
}

/* Cuts the written frames off the head item, so that it begins with the frame that is being written, or with what is left of one begun
 * in an earlier item; the place moves behind them. */
static void outbox_rebase(struct outbox *o)
{
    struct outbox_item *item = outbox_at(o, 0);

    if (item->frame || o->done == 0)
        return;
    (void)frame_end(o); /* finds the boundary */
    size_t cut;
    if (o->done < item->rest) {
        cut = o->done;
        o->begun += cut;
        o->owed -= cut;
        item->rest -= cut;
    } else {
        cut = o->boundary;
        if (item->rest) {
            place_pass(&o->place, o->type, o->position);
            o->begun = 0;
            o->owed = 0;
        }
        pass_frames(o, item, cut);
        item->rest = 0;
    }
    item->last = item->last >= cut
                     ? item->last - cut
                     : 0; /* all of it but the frame at hand is cut off by outbox_drop */
    item->offset += cut;
    item->size -= cut;
    o->done -= cut;
    o->boundary = 0;
}

/* Cuts an item behind the frame that it begins with, or goes on with; `owed` are the bytes of that before it. */
static size_t item_cut(struct outbox *o, struct outbox_item *item, uint64_t owed)
{
    struct outbox_item whole = *item;
    size_t end;

    if (item->frame)
        return 0;
    if (item->rest) {
        end = item->rest;
        item->last = end;
        item->owed = owed - end;
    } else {
        end = MIN(frame_size(item_frame(item, 0)), item->size);
        item->last = 0;
        item->owed = end < item->size ? 0 : item->owed;
    }
    o->waiting -= item->size - end;
    item->size = end;
    return item_messages(&whole) - item_messages(item);
}

size_t outbox_drop(struct outbox *o)
{
    size_t keep = 0, messages = 0;

    if (o->n) {
        outbox_rebase(o);
        if (is_mid_frame(o)) {
            uint64_t owed = o->owed;
            do {
                messages += item_cut(o, outbox_at(o, keep), owed);
                owed = item_owed(outbox_at(o, keep));
                keep++;
            } while (owed && keep < o->n);
        }
    }
    while (o->n > keep) {
        const struct outbox_item *last = outbox_at(o, o->n - 1);

        messages += item_messages(last);
        o->waiting -= item_size(last);
        outbox_pop_last(o);
    }
    /* a session that is let go may wait for long to finish its frame: the ring of a full outbox is large */
    outbox_shrink(o);
    return messages;
}

/* All that waits is the rest of one frame: its bytes from the first on, `size` of them. NULL: no memory. */
static uint8_t *outbox_copy(const struct outbox *o, size_t size)
{
    uint8_t *copy = malloc(size);
    size_t at = 0;

    for (size_t i = 0; copy && at < size; i++) {
        const struct outbox_item *item = outbox_at(o, i);
        size_t from = i ? 0 : o->done, n = MIN(size - at, item_size(item) - from);
        struct bytes pieces[2] = {{item->bytes + from, n}, {NULL, 0}};

        if (!item->frame)
            (void)batch_pieces(item->batch, item->offset + from, n, pieces);
        memcpy(copy + at, pieces[0].data, pieces[0].size);
        if (pieces[0].size < n)
            memcpy(copy + at + pieces[0].size, pieces[1].data, n - pieces[0].size);
        at += n;
    }
    return copy;
}

/* Puts a copy of `size` bytes, which may be 0, in the place of the rest of the frame. False: no memory, all is as before. */
static bool outbox_replace(struct outbox *o, struct batch_pool *pool, size_t size, uint64_t total)
{
    struct outbox_item item = {.size = size, .last = size, .rest = size, .owed = total - size};

    if (size) {
        uint8_t *copy = outbox_copy(o, size);
        item.batch = copy ? batch_wrap(pool, copy, size) : NULL;
        if (!item.batch)
            return false;
    }
    const struct outbox_item *head = outbox_at(o, 0);
    if (head->frame || !head->rest) {
        o->type = frame_type(item_frame(head, 0));
        o->position = frame_position(item_frame(head, 0));
        o->begun = o->done;
    }
    o->owed = total;
    while (o->n)
        outbox_pop_last(o);
    o->waiting = 0;
    if (size) { /* the ring has room: at least one item stood there */
        (void)outbox_push(o, item);
        (void)batch_unref(item.batch);
    }
    return true;
}

void outbox_let_go(struct outbox *o, struct batch_pool *pool, struct position readable,
                   struct outbox_rest *ret)
{
    *ret = (struct outbox_rest){.messages = outbox_drop(o)};
    if (o->n == 0) {
        ret->place = o->place;
        ret->skip = o->owed ? o->begun : 0;
        ret->skip_of = o->position;
        return;
    }
    const struct outbox_item *head = outbox_at(o, 0);
    bool here = head->frame || !head->rest;
    uint8_t type = here ? frame_type(item_frame(head, 0)) : o->type;
    struct position position = here ? frame_position(item_frame(head, 0)) : o->position;
    uint64_t written = here ? o->done : o->begun;
    uint64_t owed = outbox_owed(o), total = o->waiting + owed;
    uint64_t left = o->waiting; /* of it, here */

    if (type == FRAME_MESSAGE && position_compare(position, readable) <= 0 && total > OUTBOX_KEEP) {
        const uint64_t fixed = FRAME_HEADER_SIZE + FRAME_MESSAGE_FIXED;
        uint64_t copy = written < fixed ? MIN(fixed - written, left) : 0;

        if (outbox_replace(o, pool, (size_t)copy, total)) {
            ret->messages += owed == 0;
            left = copy;
            owed = total - copy;
        }
    } else if (left <= OUTBOX_KEEP) {
        (void)outbox_replace(o, pool, (size_t)left, total);
    }
    ret->place = o->place;
    ret->skip_of = position;
    if (owed)
        ret->skip = written + left;
    else
        place_pass(&ret->place, type, position);
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

/* ---- writing ---- */

static void outbox_wrote(struct outbox *o, size_t size)
{
    o->waiting -= size;
    while (size) {
        size_t left = item_size(outbox_at(o, 0)) - o->done;

        if (size < left) {
            o->done += size;
            return;
        }
        size -= left;
        outbox_pass(o);
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

    while (o->n || o->control.size) {
        ssize_t sent = 0;

        if (o->written >= limit)
            return OUTBOX_BLOCKED;
        if (o->control.size) {
            /* a control frame that is itself half written goes on; else a begun data frame is first finished */
            if (o->control_done || !is_mid_frame(o))
                r = write_control(o, fd);
            else if (o->n)
                sent = send_data(o, fd, frame_end(o) - o->done);
            else
                return OUTBOX_OWED;
        } else {
            sent = send_data(o, fd, 0);
        }
        if (sent < 0)
            r = (int)sent;
        if (r == -EINTR)
            r = 0;
        else if (r == -EAGAIN)
            return OUTBOX_BLOCKED;
        else if (r < 0)
            return r;
    }
    return o->owed ? OUTBOX_OWED : OUTBOX_NOTHING;
}
