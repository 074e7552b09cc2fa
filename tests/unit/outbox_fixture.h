/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_TESTS_UNIT_OUTBOX_FIXTURE_H
#define WALBUS_TESTS_UNIT_OUTBOX_FIXTURE_H

/* An outbox, the socket that it writes to, and batches to put into it. Each program of tests that includes this has one. */

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "outbox.h"
#include "unit.h"

/*
 * The socket's writes are this file's own, so that a write can be cut at any byte: after `allowed`
 * bytes the socket is full. Everything still goes through a real socket.
 */
static size_t allowed = SIZE_MAX;

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    struct iovec iov[IOV_MAX];
    struct msghdr cut = *msg;
    size_t left = allowed;

    /* an assertion costs a write to Check's pipe, and these are many */
    if (flags != (MSG_DONTWAIT | MSG_NOSIGNAL) || !msg->msg_iovlen || msg->msg_iovlen > IOV_MAX)
        ck_abort_msg("flags %x, %zu pieces", (unsigned)flags, msg->msg_iovlen);
    if (allowed == 0) {
        errno = EAGAIN;
        return -1;
    }
    cut.msg_iov = iov;
    cut.msg_iovlen = 0;
    for (size_t i = 0; i < msg->msg_iovlen && left; i++) {
        iov[i] = msg->msg_iov[i];
        if (iov[i].iov_len == 0)
            ck_abort_msg("piece %zu of %zu is empty", i, msg->msg_iovlen);
        iov[i].iov_len = MIN(iov[i].iov_len, left);
        left -= iov[i].iov_len;
        cut.msg_iovlen++;
    }
    ssize_t sent = syscall(SYS_sendmsg, fd, &cut, flags);
    if (sent > 0 && allowed != SIZE_MAX)
        allowed -= (size_t)sent;
    return sent;
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
    struct iovec iov = {(void *)(uintptr_t)data, size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    return sendmsg(fd, &msg, flags);
}

/* ---- fixture ---- */

static struct batch_pool pool;
static struct outbox box;
static int pair[2]; /* written at [0], read at [1] */
static struct buf received;

static inline void setup(int buffer)
{
    pool = (struct batch_pool){0};
    box = (struct outbox){0};
    allowed = SIZE_MAX;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    ck_assert_int_eq(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer), 0);
}

static inline void teardown(void)
{
    ck_assert(outbox_is_empty(&box));
    ck_assert_uint_eq(box.charge, 0);
    ck_assert_uint_eq(box.waiting, 0);
    ck_assert_uint_eq(pool.live, 0);
    ck_assert_uint_eq(pool.live_bytes, 0);
    outbox_deinit(&box);
    batch_pool_deinit(&pool);
    buf_deinit(&received);
    ck_assert_int_eq(close(pair[0]), 0);
    ck_assert_int_eq(close(pair[1]), 0);
}

/** Takes up to `size` bytes of what was written; how many. */
static inline size_t receive(size_t size)
{
    uint8_t *to = buf_reserve(&received, size);

    ck_assert_ptr_nonnull(to);
    ssize_t n = recv(pair[1], to, size, MSG_DONTWAIT);
    ck_assert(n > 0 || (n < 0 && errno == EAGAIN));
    received.size += n > 0 ? (size_t)n : 0;
    return n > 0 ? (size_t)n : 0;
}

static inline void receive_all(void)
{
    while (receive(65536))
        ;
}

/** Writes and receives until nothing is left. */
static inline void write_all(void)
{
    for (;;) {
        int r = outbox_write(&box, pair[0]);

        ck_assert(r == 0 || r == 1);
        receive_all();
        if (r == 0)
            break;
    }
}

static uint32_t next_number;

static inline void add_message(struct batch *batch, size_t size)
{
    uint8_t *memory = malloc(size ? size : 1);
    void *owner = memory;
    struct frame_message f = {
        .position = {1, ++next_number, 0}, .prefix = unit_bytes("p"), .content = {memory, size}};

    ck_assert_ptr_nonnull(memory);
    for (size_t i = 0; i < size; i++)
        memory[i] = (uint8_t)(i * 31 + next_number);
    ck_assert_int_eq(batch_add_message(batch, &f, &owner), 0);
    free(owner);
}

static inline struct batch *new_batch(void)
{
    struct batch *batch = batch_new(&pool);

    ck_assert_ptr_nonnull(batch);
    return batch;
}

/** BEGIN, some messages, and one with `last_size` bytes: 0 for none. Handed on. */
static inline struct batch *batch_of(unsigned messages, size_t last_size)
{
    struct batch *batch = new_batch();
    struct frame_begin begin = {1, ++next_number, 7, 5, 0};

    ck_assert_int_eq(batch_add_begin(batch, &begin), 0);
    for (unsigned i = 0; i < messages; i++)
        add_message(batch, i * 5);
    if (last_size)
        add_message(batch, last_size);
    batch_seal(batch);
    return batch;
}

/** A control frame whose body is a number. */
static inline void put_control(uint32_t number)
{
    uint8_t frame[FRAME_HEADER_SIZE + 4];

    frame_header_encode(frame, (struct frame_header){4, FRAME_REPLY, 0});
    bytes_put_u32(frame + FRAME_HEADER_SIZE, number);
    buf_append(outbox_control(&box), frame, sizeof frame);
}

static inline void append_range(struct buf *to, const struct batch *batch, size_t offset,
                                size_t size)
{
    struct bytes pieces[2];
    unsigned n = batch_pieces(batch, offset, size, pieces);

    for (unsigned i = 0; i < n; i++)
        buf_append(to, pieces[i].data, pieces[i].size);
}

/** The first frame boundary at or behind `at` in a stream of frames. */
static inline size_t boundary_of(const struct buf *stream, size_t at)
{
    size_t end = 0;

    while (end < at) {
        struct frame_header h;

        if (frame_header_decode(stream->data + end, &h) < 0)
            ck_abort_msg("no frame at %zu", end);
        end += FRAME_HEADER_SIZE + h.size;
    }
    return end;
}

/** Adds a range of whole frames of a batch that has its entries. */
static inline void add_range(struct batch *batch, size_t offset, size_t size)
{
    size_t last = offset;

    for (size_t i = 0; i < batch->n_entries; i++)
        if (batch->entries[i].offset >= offset && batch->entries[i].offset < offset + size)
            last = batch->entries[i].offset;
    ck_assert_int_eq(outbox_add(&box, batch, offset, size, last), 0);
}

/** Adds the BEGIN that the batch starts with as a frame of its own. */
static inline void add_begin(struct batch *batch)
{
    ck_assert_int_eq(outbox_add_frame(&box, batch, batch->head, BATCH_BEGIN_SIZE), 0);
}

#endif
