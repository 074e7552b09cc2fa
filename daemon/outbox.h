/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_OUTBOX_H
#define WALBUS_DAEMON_OUTBOX_H

/*
 * What a session still has to write: ranges of batches in delivery order, and
 * control frames, which go ahead of data frames not yet begun. A range is a
 * pointer into a counted batch, so a message is in memory once however many
 * sessions wait to send it.
 *
 * Limited by count and by bytes; what happens to a full one is pressure.c's. A
 * batch is charged to the outbox in full as long as one byte of it stands here,
 * since that is what it keeps alive; the batch at the head is not counted
 * against the limit, so that any message, however large, can be sent to a
 * reader that reads.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/macros.h"
#include "batch.h"

/** An outbox is full above this many bytes of batches behind the one that is being sent… */
#define OUTBOX_BYTES_MAX (24u << 20)
/** … or ranges, or when a content over BATCH_LARGE waits behind it; and has room again at half of both. */
#define OUTBOX_ITEMS_MAX 16384u

struct outbox_item {
    struct batch *batch; /* one reference */
    bool frame;          /* the frame below, not a range of the batch */
    union {
        struct {
            size_t offset, size;
        };
        uint8_t bytes[BATCH_BEGIN_SIZE];
    };
};

struct outbox {
    struct outbox_item *items; /* ring */
    size_t head, n, cap;
    size_t done;     /* bytes of the head item that are written */
    size_t boundary; /* start of the frame in the head item in which `done` lies, or done itself */
    size_t charge, large; /* of all batches here */
    struct buf control;   /* frames not yet written */
    size_t control_done;
    uint64_t written;     /* bytes ever */
    uint64_t written_data;/* of these in data frames */
};

void outbox_deinit(struct outbox *o);

/** Adds a range of whole frames; joined with the last one when it follows it. 0 or -ENOMEM. */
int outbox_add(struct outbox *o, struct batch *batch, size_t offset, size_t size) MUST_CHECK;
/** Adds a BEGIN frame that stands in no batch, in front of what comes from `batch`. 0 or -ENOMEM. */
int outbox_add_begin(struct outbox *o, struct batch *batch,
                     const uint8_t begin[BATCH_BEGIN_SIZE]) MUST_CHECK;

/** Where control frames are appended. */
struct buf *outbox_control(struct outbox *o);

/** Bytes of control frames that are not yet written. */
size_t outbox_waiting_control(const struct outbox *o);

/** Bytes of the ring of items, beside what the items point to. */
static inline size_t outbox_ring(const struct outbox *o)
{
    return o->cap * sizeof *o->items;
}

/** Little waits: gives back the memory that a busy time has made the ring take. For a quiet moment. */
void outbox_shrink(struct outbox *o);

/** Drops every data frame that has not been begun. */
void outbox_drop(struct outbox *o);

/** Bytes of the batches behind the one that is being sent. */
size_t outbox_behind(const struct outbox *o);

bool outbox_is_empty(const struct outbox *o);
/** Whether it is full, or, with `half`, has not yet room again. */
bool outbox_is_full(const struct outbox *o, bool half);

/** Most bytes written in one call, so that a peer that reads as fast as we write does not keep the loop. */
#define OUTBOX_TURN_MAX (4u << 20)

/** Writes what the socket takes, up to OUTBOX_TURN_MAX. 0: nothing is left; 1: something is, wait until it is writable; a negative errno: it is broken. */
int outbox_write(struct outbox *o, int fd) MUST_CHECK;

#endif
