/* SPDX-License-Identifier: PostgreSQL */
#include "client/frame_reader.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void check_invariants(const struct frame_reader *r)
{
    assert(r->start <= r->parsed && r->parsed <= r->end && r->end <= r->cap);
    assert((r->data == NULL) == (r->cap == 0));
    assert(r->skip == 0 || r->start == r->end);
    (void)r;
}

void frame_reader_deinit(struct frame_reader *r)
{
    free(r->data);
    *r = (struct frame_reader){0};
}

void frame_reader_reset(struct frame_reader *r)
{
    if (r->cap > FRAME_READER_SIZE)
        frame_reader_deinit(r);
    r->start = r->parsed = r->end = 0;
    r->skip = 0;
}

static bool is_for_clients(uint8_t type)
{
    switch (type) {
    case FRAME_WELCOME:
    case FRAME_SUBSCRIBED:
    case FRAME_ACKED:
    case FRAME_REPLY:
    case FRAME_ERROR:
    case FRAME_BEGIN:
    case FRAME_MESSAGE:
    case FRAME_COMMIT:
    case FRAME_PROGRESS:
    case FRAME_GAP:
        return true;
    default:
        return false;
    }
}

/** Passes over `size` bytes behind `start`, those that are here and those that are not yet. */
static void pass_over(struct frame_reader *r, uint32_t size)
{
    uint32_t here = (uint32_t)MIN((size_t)size, r->end - r->start);

    r->start += here;
    r->parsed = r->start;
    r->skip = size - here;
}

static uint32_t body_max(uint8_t type)
{
    return type == FRAME_MESSAGE ? FRAME_MESSAGE_MAX : FRAME_CONTROL_MAX;
}

int frame_reader_next(struct frame_reader *r, struct frame_header *ret_header,
                      const uint8_t **ret_body, char why[FRAME_READER_WHY_SIZE])
{
    struct frame_header h;

    check_invariants(r);
    r->start = r->parsed;
    for (;;) {
        if (r->end - r->start < FRAME_HEADER_SIZE)
            return 0;
        if (frame_header_decode(r->data + r->start, &h) < 0) {
            (void)snprintf(
                why, FRAME_READER_WHY_SIZE,
                "The header of a frame has something else than two zero bytes at its end.");
            return -EBADMSG;
        }
        if (!(h.flags & FRAME_FLAG_IGNORABLE) || is_for_clients(h.type))
            break;
        r->start += FRAME_HEADER_SIZE;
        pass_over(r, h.size);
    }
    if (h.size > body_max(h.type)) {
        (void)snprintf(why, FRAME_READER_WHY_SIZE,
                       "A frame of type %s (0x%02x) announces %u bytes; at most %u are allowed.",
                       frame_type_name(h.type), h.type, h.size, body_max(h.type));
        return -EBADMSG;
    }
    if (r->end - r->start - FRAME_HEADER_SIZE < h.size)
        return 0;
    r->parsed = r->start + FRAME_HEADER_SIZE + h.size;
    *ret_header = h;
    *ret_body = r->data + r->start + FRAME_HEADER_SIZE;
    return 1;
}

void frame_reader_put_back(struct frame_reader *r)
{
    r->parsed = r->start;
}

/** Bytes of the frame at `start`, as far as known; its header was found good. */
static size_t frame_need(const struct frame_reader *r)
{
    if (r->end - r->start < FRAME_HEADER_SIZE)
        return FRAME_HEADER_SIZE;
    return FRAME_HEADER_SIZE + (size_t)bytes_get_u32(r->data + r->start);
}

/** Makes `cap` right for the frame at hand, and room behind `end` for at least one of its bytes. */
static int make_room(struct frame_reader *r)
{
    size_t need = frame_need(r), have = r->end - r->start;
    size_t want = MAX(need, FRAME_READER_SIZE);

    if (have == 0)
        r->start = r->parsed = r->end = 0;
    if (want > r->cap || (want < r->cap && have <= want)) {
        uint8_t *data = malloc(want);

        if (!data)
            return -ENOMEM;
        if (have > 0)
            memcpy(data, r->data + r->start, have);
        free(r->data);
        r->data = data;
        r->cap = want;
        r->start = 0;
    } else if (r->cap - r->start < need) {
        memmove(r->data, r->data + r->start, have);
        r->start = 0;
    }
    r->parsed = r->start;
    r->end = r->start + have;
    return 0;
}

ssize_t frame_reader_fill(struct frame_reader *r, int fd)
{
    assert(r->start == r->parsed);
    int rc = make_room(r);
    if (rc < 0)
        return rc;
    check_invariants(r);

    ssize_t n;
    do
        n = recv(fd, r->data + r->end, r->cap - r->end, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    r->end += (size_t)n;
    if (r->skip > 0)
        pass_over(r, r->skip);
    return n;
}
