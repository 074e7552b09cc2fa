/* SPDX-License-Identifier: PostgreSQL */
#include "client/frame_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "unit.h"

static int pair[2]; /* a stream, written at [0] and read at [1] */

static void open_pair(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
}

static void close_pair(void)
{
    ck_assert_int_eq(close(pair[0]), 0);
    ck_assert_int_eq(close(pair[1]), 0);
}

static void put_frame(struct buf *out, uint8_t type, size_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];

    frame_header_encode(header, (struct frame_header){.size = (uint32_t)size, .type = type});
    buf_append(out, header, sizeof header);
    uint8_t *body = buf_reserve(out, size);
    ck_assert_ptr_nonnull(body);
    for (size_t i = 0; i < size; i++)
        body[i] = (uint8_t)(i * 7 + type);
    out->size += size;
}

static void check_body(struct frame_header h, const uint8_t *body, uint8_t type, size_t size)
{
    ck_assert_uint_eq(h.type, type);
    ck_assert_uint_eq(h.size, size);
    size_t wrong = 0;
    for (size_t i = 0; i < size; i++)
        wrong += body[i] != (uint8_t)(i * 7 + type);
    ck_assert_uint_eq(wrong, 0);
}

/** Sends all of `stream`, filling the reader in between, until a frame is there. */
static void next_frame(struct frame_reader *r, struct buf *stream, size_t *sent, uint8_t type,
                       size_t size)
{
    struct frame_header h;
    const uint8_t *body;
    char why[FRAME_READER_WHY_SIZE];
    int rc;

    while ((rc = frame_reader_next(r, &h, &body, why)) == 0) {
        if (*sent < stream->size) {
            ssize_t n = send(pair[0], stream->data + *sent, stream->size - *sent, MSG_DONTWAIT);
            if (n > 0)
                *sent += (size_t)n;
        }
        ck_assert_int_gt(frame_reader_fill(r, pair[1]), 0);
    }
    ck_assert_int_eq(rc, 1);
    check_body(h, body, type, size);
}

START_TEST(frames_cut_at_every_byte)
{
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    struct frame_header h;
    const uint8_t *body;
    char why[FRAME_READER_WHY_SIZE];

    open_pair();
    put_frame(&stream, FRAME_PROGRESS, 16);
    put_frame(&stream, FRAME_ACKED, 0);
    put_frame(&stream, FRAME_MESSAGE, 61);
    for (size_t i = 0; i < stream.size; i++) {
        int want = i + 1 == 24 || i + 1 == 32 || i + 1 == stream.size;

        ck_assert_int_eq(send(pair[0], stream.data + i, 1, 0), 1);
        ck_assert_int_eq(frame_reader_fill(&r, pair[1]), 1);
        ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), want);
        ck_assert(!want || h.size == (i + 1 == 24 ? 16 : i + 1 == 32 ? 0 : 61));
        if (want) {
            check_body(h, body, h.type, h.size);
            ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), 0);
        }
    }
    ck_assert_int_eq(frame_reader_fill(&r, pair[1]), -EAGAIN);
    ck_assert_int_eq(shutdown(pair[0], SHUT_WR), 0);
    ck_assert_int_eq(frame_reader_fill(&r, pair[1]), 0);
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

START_TEST(the_buffer_grows_to_the_frame_and_shrinks_again)
{
    static const size_t large[] = {FRAME_READER_SIZE - FRAME_HEADER_SIZE, FRAME_READER_SIZE,
                                   3000000, 1000000};
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    size_t sent = 0;

    open_pair();
    for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
        put_frame(&stream, FRAME_COMMIT, 36);
        put_frame(&stream, FRAME_MESSAGE, large[i]);
    }
    put_frame(&stream, FRAME_COMMIT, 36);
    for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
        next_frame(&r, &stream, &sent, FRAME_COMMIT, 36);
        next_frame(&r, &stream, &sent, FRAME_MESSAGE, large[i]);
        ck_assert_uint_eq(r.cap, MAX(large[i] + FRAME_HEADER_SIZE, FRAME_READER_SIZE));
    }
    next_frame(&r, &stream, &sent, FRAME_COMMIT, 36);
    ck_assert_uint_eq(r.cap, FRAME_READER_SIZE);
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

START_TEST(many_frames_pass_through_one_buffer)
{
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    size_t sent = 0;

    open_pair();
    for (size_t i = 0; i < 3000; i++)
        put_frame(&stream, FRAME_MESSAGE, i % 997);
    for (size_t i = 0; i < 3000; i++)
        next_frame(&r, &stream, &sent, FRAME_MESSAGE, i % 997);
    ck_assert_uint_eq(r.cap, FRAME_READER_SIZE);
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

START_TEST(lengths_beyond_the_type_are_refused_by_the_header_alone)
{
    static const struct {
        uint8_t type;
        uint32_t size;
        int rc;
    } cases[] = {
        {FRAME_MESSAGE, FRAME_MESSAGE_MAX, 0},
        {FRAME_MESSAGE, FRAME_MESSAGE_MAX + 1, -EBADMSG},
        {FRAME_MESSAGE, UINT32_MAX, -EBADMSG},
        {FRAME_REPLY, FRAME_CONTROL_MAX, 0},
        {FRAME_REPLY, FRAME_CONTROL_MAX + 1, -EBADMSG},
        {FRAME_GAP, UINT32_MAX, -EBADMSG},
        {0x7f, FRAME_CONTROL_MAX + 1, -EBADMSG},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct frame_reader r = {0};
        uint8_t raw[FRAME_HEADER_SIZE];
        struct frame_header h;
        const uint8_t *body;
        char why[FRAME_READER_WHY_SIZE];

        open_pair();
        frame_header_encode(raw,
                            (struct frame_header){.size = cases[i].size, .type = cases[i].type});
        ck_assert_int_eq(send(pair[0], raw, sizeof raw, 0), (ssize_t)sizeof raw);
        ck_assert_int_eq(frame_reader_fill(&r, pair[1]), (ssize_t)sizeof raw);
        ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), cases[i].rc);
        ck_assert_uint_eq(r.cap, FRAME_READER_SIZE);
        frame_reader_deinit(&r);
        close_pair();
    }
}
END_TEST

static void put_ignorable(struct buf *out, uint8_t type, size_t size)
{
    size_t at = out->size;

    put_frame(out, type, size);
    out->data[at + 5] = FRAME_FLAG_IGNORABLE;
}

START_TEST(ignorable_frames_are_passed_over_at_every_cut)
{
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    struct frame_header h;
    const uint8_t *body;
    char why[FRAME_READER_WHY_SIZE];

    open_pair();
    put_ignorable(&stream, 0x7e, 0);
    put_ignorable(&stream, 0x7e, 5);
    put_ignorable(&stream, FRAME_HELLO, 17);
    put_frame(&stream, FRAME_MESSAGE, 61);
    size_t message_end = stream.size;
    put_ignorable(&stream, 0x7f, 100);
    put_ignorable(&stream, FRAME_GAP,
                  50); /* of a type that is for clients: it is theirs to judge */
    for (size_t i = 0; i < stream.size; i++) {
        bool want = i + 1 == message_end || i + 1 == stream.size;

        ck_assert_int_eq(send(pair[0], stream.data + i, 1, 0), 1);
        ck_assert_int_eq(frame_reader_fill(&r, pair[1]), 1);
        ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), want);
        if (want)
            check_body(h, body, i + 1 == message_end ? FRAME_MESSAGE : FRAME_GAP,
                       i + 1 == message_end ? 61 : 50);
        if (want)
            ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), 0);
    }
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

START_TEST(ignorable_frames_of_any_size_need_no_memory)
{
    /* One at the limit of a length, of which a part comes; and one that is whole, between others. */
    static const uint8_t longest[] = {0xff, 0xff, 0xff, 0xff, 0x7e, FRAME_FLAG_IGNORABLE, 0, 0};
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    struct frame_header h;
    const uint8_t *body;
    char why[FRAME_READER_WHY_SIZE];
    size_t sent = 0;

    open_pair();
    put_frame(&stream, FRAME_PROGRESS, 16);
    put_ignorable(&stream, 0x7e, 10 * FRAME_READER_SIZE);
    put_frame(&stream, FRAME_MESSAGE, 300);
    next_frame(&r, &stream, &sent, FRAME_PROGRESS, 16);
    next_frame(&r, &stream, &sent, FRAME_MESSAGE, 300);
    ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), 0);
    ck_assert_uint_eq(r.cap, FRAME_READER_SIZE);

    ck_assert_int_eq(send(pair[0], longest, sizeof longest, 0), (ssize_t)sizeof longest);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_gt(frame_reader_fill(&r, pair[1]), 0);
        ck_assert_int_eq(frame_reader_next(&r, &h, &body, why), 0);
        ck_assert_uint_eq(r.cap, FRAME_READER_SIZE);
        ck_assert_uint_eq(r.skip, UINT32_MAX - i * 1000);
        ck_assert_int_eq(send(pair[0], stream.data, 1000, 0), 1000);
    }
    /* The next connection begins with a frame. */
    frame_reader_reset(&r);
    close_pair();
    open_pair();
    sent = 0;
    next_frame(&r, &stream, &sent, FRAME_PROGRESS, 16);
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

START_TEST(reset_forgets_what_was_received)
{
    struct frame_reader r = {0};
    struct buf stream = BUF_INIT;
    size_t sent = 0;

    open_pair();
    ck_assert_int_eq(send(pair[0], "\0\0\0", 3, 0), 3);
    ck_assert_int_eq(frame_reader_fill(&r, pair[1]), 3);
    frame_reader_reset(&r);
    put_frame(&stream, FRAME_PROGRESS, 16);
    next_frame(&r, &stream, &sent, FRAME_PROGRESS, 16);
    buf_deinit(&stream);
    frame_reader_deinit(&r);
    close_pair();
}
END_TEST

UNIT_MAIN("frame_reader", frames_cut_at_every_byte, the_buffer_grows_to_the_frame_and_shrinks_again,
          many_frames_pass_through_one_buffer,
          lengths_beyond_the_type_are_refused_by_the_header_alone,
          ignorable_frames_are_passed_over_at_every_cut,
          ignorable_frames_of_any_size_need_no_memory, reset_forgets_what_was_received)
