/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_JOURNAL_WINDOW_H
#define WALBUS_DAEMON_JOURNAL_WINDOW_H

/*
 * A segment, read frame by frame through one buffer: private to daemon/journal. Any thread, one at a time.
 *
 *   buffer   | what the owner keeps … floor |  …  | pos … what was read … end |  …  cap |
 *   file                                           at ──────────────────────►      limit
 *
 * The owner may use the buffer up to `floor` for itself and raise that, never beyond `pos`.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "codec/frame.h"
#include "journal/segment.h"

struct window {
    struct segment *segment; /* borrowed */
    uint8_t *buf;
    size_t cap, floor, pos, end;
    uint64_t at;    /* where in the file `pos` lies */
    uint64_t limit; /* what can be read of it, as far as known */
};

/** Goes to another place; what was read is forgotten. */
void window_go(struct window *w, struct segment *segment, uint64_t offset);
/** Makes `size` bytes stand at window_data(). 0; -ENOBUFS: the buffer has no room for them; -EBADMSG: the file does not have them
 *  before its limit; another negative errno: the disk's. */
int window_want(struct window *w, size_t size) MUST_CHECK;
/** Moves on in the file. */
void window_pass(struct window *w, uint64_t size);
/** Reads bytes that begin `offset` behind `at` to somewhere else. As window_want. What stands in the window is kept. */
int window_copy(const struct window *w, uint64_t offset, uint8_t *to, size_t size) MUST_CHECK;

static inline uint8_t *window_data(const struct window *w)
{
    return w->buf + w->pos;
}

/** The header of the frame at `at`, and that the frame ends before the limit. As window_want. */
int window_frame(struct window *w, struct frame_header *ret) MUST_CHECK;

#endif
