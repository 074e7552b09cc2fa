/* SPDX-License-Identifier: PostgreSQL */
/*
 * The data frames. The input is a header and a body; the length in the header is replaced by what
 * there is, because the reader of frames hands out whole ones (fuzz_frame_reader.c).
 */
#include "codec/frame.h"

#include <errno.h>

#include "fuzz.h"

static uint8_t *out;
static struct frame_header head;
static struct bytes frame; /* header and body, as they should be written again */

/* Compares `size` bytes written to `out` with the frame of this type. Frames without flags of their
 * own are written with none. */
static void check_written(size_t size, uint8_t type, uint8_t flags, struct bytes content)
{
    uint8_t want[FRAME_HEADER_SIZE];

    frame_header_encode(want, (struct frame_header){head.size, type, flags});
    FUZZ_CHECK(size + content.size == frame.size);
    FUZZ_CHECK(memcmp(out, want, FRAME_HEADER_SIZE) == 0);
    FUZZ_CHECK(
        bytes_equal((struct bytes){out + FRAME_HEADER_SIZE, size - FRAME_HEADER_SIZE},
                    (struct bytes){frame.data + FRAME_HEADER_SIZE, size - FRAME_HEADER_SIZE}));
    FUZZ_CHECK(content.size == 0 || content.data == frame.data + size);
}

static const struct bytes nothing = {NULL, 0};

static void check_begin(const uint8_t *body)
{
    struct frame_begin f;

    fuzz_mark(&f, sizeof f);
    if (frame_begin_decode(head, body, &f) < 0) {
        FUZZ_CHECK(head.size != FRAME_BEGIN_BODY && fuzz_is_marked(&f, sizeof f));
        return;
    }
    check_written(frame_begin_encode(out, &f), FRAME_BEGIN, head.flags, nothing);
}

static void check_commit(const uint8_t *body)
{
    struct frame_commit f;

    fuzz_mark(&f, sizeof f);
    if (frame_commit_decode(head, body, &f) < 0) {
        FUZZ_CHECK(head.size != FRAME_COMMIT_BODY && fuzz_is_marked(&f, sizeof f));
        return;
    }
    check_written(frame_commit_encode(out, &f), FRAME_COMMIT, head.flags, nothing);
}

static void check_progress(const uint8_t *body)
{
    struct position p;

    fuzz_mark(&p, sizeof p);
    if (frame_progress_decode(head, body, &p) < 0) {
        FUZZ_CHECK(head.size != FRAME_PROGRESS_BODY && fuzz_is_marked(&p, sizeof p));
        return;
    }
    check_written(frame_progress_encode(out, p), FRAME_PROGRESS, 0, nothing);
}

static void check_message(const uint8_t *body)
{
    struct frame_message f;

    fuzz_mark(&f, sizeof f);
    if (frame_message_decode(head, body, &f) < 0) {
        FUZZ_CHECK(fuzz_is_marked(&f, sizeof f));
        FUZZ_CHECK(head.size < FRAME_MESSAGE_FIXED ||
                   bytes_get_u32(body + FRAME_MESSAGE_FIXED - 4) > head.size - FRAME_MESSAGE_FIXED);
        return;
    }
    check_written(frame_message_encode_head(out, &f), FRAME_MESSAGE, head.flags, f.content);
}

static void check_gap(const uint8_t *body)
{
    struct frame_gap f;

    fuzz_mark(&f, sizeof f);
    if (frame_gap_decode(head, body, &f) < 0) {
        FUZZ_CHECK(head.size < FRAME_GAP_FIXED && fuzz_is_marked(&f, sizeof f));
        return;
    }
    check_written(frame_gap_encode(out, &f), FRAME_GAP, 0, nothing);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame_header h;
    uint8_t again[FRAME_HEADER_SIZE];

    if (size < FRAME_HEADER_SIZE)
        return 0;
    fuzz_mark(&h, sizeof h);
    int r = frame_header_decode(data, &h);
    if (r < 0) {
        FUZZ_CHECK(r == -EBADMSG && bytes_get_u16(data + 6) != 0 && fuzz_is_marked(&h, sizeof h));
        return 0;
    }
    frame_header_encode(again, h);
    FUZZ_CHECK(memcmp(again, data, sizeof again) == 0);
    FUZZ_CHECK(frame_type_name(h.type)[0] != '\0');

    head = h;
    head.size = (uint32_t)(size - FRAME_HEADER_SIZE);
    frame = (struct bytes){data, size};
    out = malloc(size); /* no byte more than the frame: an encoder writes what it says */
    FUZZ_CHECK(out != NULL);
    check_begin(data + FRAME_HEADER_SIZE);
    check_commit(data + FRAME_HEADER_SIZE);
    check_progress(data + FRAME_HEADER_SIZE);
    check_message(data + FRAME_HEADER_SIZE);
    check_gap(data + FRAME_HEADER_SIZE);
    free(out);
    return 0;
}
