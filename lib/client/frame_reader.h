/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_CLIENT_FRAME_READER_H
#define WALBUS_CLIENT_FRAME_READER_H

/*
 * Frames out of a stream that may be cut at any byte.
 *
 *   0 ..... start ..... parsed ........ end ..... cap
 *     dead    frame lent   received and   free
 *             out last     not yet parsed
 *
 * A frame is lent out in place, so it is whole and contiguous; the next call
 * takes it back. The buffer has FRAME_READER_SIZE bytes, grows to exactly the frame
 * at hand when that is larger, and goes back behind it. A length beyond what its
 * type allows is refused before anything is allocated for it.
 *
 * A frame that is flagged ignorable and of no type that a router sends to clients is
 * never lent out: it is passed over piece by piece as it comes, whatever its length.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "codec/frame.h"

/** Large enough that a burst of small frames costs few system calls. */
#define FRAME_READER_SIZE ((size_t)256 * 1024)

/** PostgreSQL's palloc stops short of 1 GiB, which bounds prefix and content together. */
#define FRAME_MESSAGE_MAX ((UINT32_C(1) << 30) + FRAME_MESSAGE_FIXED)

#define FRAME_READER_WHY_SIZE 120

struct frame_reader {
    uint8_t *data; /* owned; NULL until the first fill */
    size_t cap;
    size_t start, parsed, end;
    uint32_t skip; /* bytes to come of a frame that is passed over; then nothing is buffered */
};

void frame_reader_deinit(struct frame_reader *r);

/** Forgets every byte, and what was to be passed over, for the next connection. */
void frame_reader_reset(struct frame_reader *r);

/**
 * Takes back the frame lent out before and lends the next one: 1 and *ret_header,
 * *ret_body (valid until the next call of any of these functions); 0 when more bytes
 * are needed; -EBADMSG and a sentence in `why` when the bytes can be no frame.
 */
int frame_reader_next(struct frame_reader *r, struct frame_header *ret_header,
                      const uint8_t **ret_body, char why[FRAME_READER_WHY_SIZE]) MUST_CHECK;

/** Takes back the frame lent out, to lend it again: there was no memory to act on it. */
void frame_reader_put_back(struct frame_reader *r);

/**
 * Receives once from a non-blocking socket; to be called when frame_reader_next has
 * returned 0. The number of bytes, 0 at the end of the stream, or a negative errno: -EAGAIN
 * when there is nothing now, -ENOMEM.
 */
ssize_t frame_reader_fill(struct frame_reader *r, int fd) MUST_CHECK;

#endif
