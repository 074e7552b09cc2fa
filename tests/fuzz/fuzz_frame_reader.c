/* SPDX-License-Identifier: PostgreSQL */
/*
 * The client's reader of frames, over a socket, with the stream cut at any byte. The input is a list
 * of steps (enum step, then operands) that make the stream and the sizes of the pieces in which it
 * is sent. What the reader hands out is compared with the same stream read from memory.
 *
 * Frames are made up to 512 KiB, so that the buffer grows, moves and goes back. A length that the
 * stream does not fulfil ends the run when it is large: filling would allocate as much, which is
 * right (the limit is checked before) but takes all the time there is.
 */
#include "client/frame_reader.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "fuzz.h"

enum step {
    STEP_FRAME, /* type, flags, size of the body */
    STEP_LARGE, /* the same, the size in units of 8 bytes: to both sides of FRAME_READER_SIZE */
    STEP_RAW,   /* size, then that many bytes as they are */
    STEP_CUT,   /* size of the pieces from here on */
    STEP_RESET, /* the connection ends where the reader has got to, and another begins */
    STEPS,
};

/* All streams of one run together; it ends there. */
#define STREAM_MAX ((size_t)1 << 20)
/* Pieces sent in one run: behind them what is left comes in large ones, or a large frame in pieces
 * of a byte would take the time of a thousand runs. */
#define PIECES_MAX 1000
/* Less than a socket's buffer takes at once. */
#define PIECE_MAX ((size_t)32768)

static int fds[2];
static unsigned n_pieces, n_frames;

/* ---- the same from memory ---- */

enum answer { ANSWER_FRAME, ANSWER_MORE, ANSWER_WRONG };

static enum answer expect(struct bytes rest, struct frame_header *ret)
{
    if (rest.size < FRAME_HEADER_SIZE)
        return ANSWER_MORE;
    uint32_t size = bytes_get_u32(rest.data);
    uint32_t most = rest.data[4] == FRAME_MESSAGE ? FRAME_MESSAGE_MAX : FRAME_CONTROL_MAX;

    if (bytes_get_u16(rest.data + 6) != 0 || size > most)
        return ANSWER_WRONG;
    *ret = (struct frame_header){size, rest.data[4], rest.data[5]};
    return rest.size - FRAME_HEADER_SIZE < size ? ANSWER_MORE : ANSWER_FRAME;
}

static bool is_passed_over(const uint8_t *header)
{
    static const uint8_t lent[] = {FRAME_WELCOME,  FRAME_SUBSCRIBED, FRAME_ACKED,   FRAME_REPLY,
                                   FRAME_ERROR,    FRAME_BEGIN,      FRAME_MESSAGE, FRAME_COMMIT,
                                   FRAME_PROGRESS, FRAME_GAP};

    return (header[5] & FRAME_FLAG_IGNORABLE) && !memchr(lent, header[4], sizeof lent) &&
           bytes_get_u16(header + 6) == 0;
}

/* Moves *at behind frames that are passed over, also to where the last of them will end. */
static void pass_over(struct bytes stream, size_t received, size_t *at)
{
    while (*at <= received && received - *at >= FRAME_HEADER_SIZE &&
           is_passed_over(stream.data + *at))
        *at += FRAME_HEADER_SIZE + (size_t)bytes_get_u32(stream.data + *at);
}

/* ---- reading ---- */

/* Whether the reader would allocate far more than there is to come. */
static bool is_hopeless(struct bytes rest, size_t to_come)
{
    return rest.size >= FRAME_HEADER_SIZE && bytes_get_u32(rest.data) > STREAM_MAX &&
           bytes_get_u32(rest.data) > to_come;
}

/* Reads all frames that are whole in the first `received` bytes; *at moves behind them. False when
 * the stream is found wrong. */
static bool read_frames(struct frame_reader *r, struct bytes stream, size_t received, size_t *at)
{
    for (;;) {
        pass_over(stream, received, at);
        struct bytes rest = {stream.data + MIN(*at, received), *at < received ? received - *at : 0};
        struct frame_header want, got;
        const uint8_t *body = NULL;
        char why[FRAME_READER_WHY_SIZE];
        enum answer answer = expect(rest, &want);

        fuzz_mark(&got, sizeof got);
        int rc = frame_reader_next(r, &got, &body, why);
        if (answer == ANSWER_FRAME) {
            FUZZ_CHECK(rc == 1);
            FUZZ_CHECK(got.size == want.size && got.type == want.type && got.flags == want.flags);
            FUZZ_CHECK(memcmp(body, rest.data + FRAME_HEADER_SIZE, got.size) == 0);
            *at += FRAME_HEADER_SIZE + want.size;
            continue;
        }
        FUZZ_CHECK(rc == (answer == ANSWER_MORE ? 0 : -EBADMSG));
        FUZZ_CHECK(r->skip == (*at > received ? *at - received : 0));
        FUZZ_CHECK(fuzz_is_marked(&got, sizeof got) && body == NULL);
        if (answer == ANSWER_WRONG)
            FUZZ_CHECK_WHY(why);
        return answer == ANSWER_MORE;
    }
}

/* Sends the stream in pieces and reads what has come after each. */
static bool read_stream(struct frame_reader *r, struct bytes stream, size_t piece, size_t *at,
                        size_t *received)
{
    while (*received < stream.size) {
        size_t most = n_pieces++ < PIECES_MAX ? piece : PIECE_MAX;
        size_t size = MIN(most, stream.size - *received), sent = *received + size;

        FUZZ_CHECK(send(fds[0], stream.data + *received, size, MSG_DONTWAIT) == (ssize_t)size);
        while (*received < sent) {
            if (!read_frames(r, stream, *received, at))
                return false;
            if (*at < *received && is_hopeless((struct bytes){stream.data + *at, *received - *at},
                                               stream.size - *received))
                return false;
            ssize_t n = frame_reader_fill(r, fds[1]);
            FUZZ_CHECK(n > 0 && (size_t)n <= sent - *received);
            *received += (size_t)n;
            /* it is no larger than the frame at hand makes it */
            FUZZ_CHECK(r->cap <= FRAME_READER_SIZE ||
                       r->cap - FRAME_HEADER_SIZE == bytes_get_u32(r->data + r->start));
        }
    }
    return read_frames(r, stream, *received, at);
}

/* Bytes for bodies, in which no stretch looks like one near it; each frame begins at another place,
 * so that a frame that was not moved does not look like the one that stood there. */
#define PLACES 251
static uint8_t pattern[8u * UINT16_MAX + PLACES];

static void pattern_init(void)
{
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i ^ i >> 8 ^ i >> 16);
}

static void put_frame(struct buf *out, uint8_t type, uint8_t flags, uint32_t size)
{
    uint8_t header[FRAME_HEADER_SIZE];

    frame_header_encode(header, (struct frame_header){size, type, flags});
    buf_append(out, header, sizeof header);
    uint8_t *body = buf_reserve(out, size);
    FUZZ_CHECK(body != NULL);
    memcpy(body, pattern + 37 * n_frames++ % PLACES, size);
    out->size += size;
}

/* A socket for each connection: what it still holds belongs to no other. */
static void connect_again(void)
{
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

static void disconnect(void)
{
    FUZZ_CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_in in = {data, size};
    struct frame_reader reader = {0};
    struct buf stream = BUF_INIT;
    size_t piece = PIECE_MAX, at = 0, received = 0, before = 0; /* of connections before */
    bool good = true;

    if (pattern[1] == 0)
        pattern_init();
    n_pieces = n_frames = 0;
    FUZZ_CHECK(buf_reserve(&stream, 1) != NULL); /* so that it has an address while empty */
    connect_again();
    while (in.left > 0 && good && before + stream.size < STREAM_MAX) {
        uint8_t type, flags;
        struct bytes raw;

        switch (fuzz_u8(&in) % STEPS) {
        case STEP_FRAME:
            type = fuzz_u8(&in);
            flags = fuzz_u8(&in);
            put_frame(&stream, type, flags, fuzz_u8(&in));
            break;
        case STEP_LARGE:
            type = fuzz_u8(&in);
            flags = fuzz_u8(&in);
            put_frame(&stream, type, flags, 8u * fuzz_u16(&in));
            break;
        case STEP_RAW:
            raw = fuzz_bytes(&in, fuzz_u8(&in));
            buf_append(&stream, raw.data, raw.size);
            break;
        case STEP_CUT:
            good = read_stream(&reader, buf_bytes(&stream), piece, &at, &received);
            piece = fuzz_u8(&in) + 1u;
            if (piece > 200) /* and larger ones, up to what the socket takes */
                piece = MIN(piece * piece, PIECE_MAX);
            break;
        case STEP_RESET:
            /* also what follows a stream that was wrong */
            (void)read_stream(&reader, buf_bytes(&stream), piece, &at, &received);
            frame_reader_reset(&reader);
            FUZZ_CHECK(reader.cap <= FRAME_READER_SIZE);
            before += stream.size;
            buf_clear(&stream);
            at = received = 0;
            disconnect();
            connect_again();
            break;
        }
    }
    if (good)
        (void)read_stream(&reader, buf_bytes(&stream), piece, &at, &received);
    frame_reader_deinit(&reader);
    buf_deinit(&stream);
    disconnect();
    return 0;
}
