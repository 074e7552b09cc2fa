/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_OUTBOX_H
#define WALBUS_DAEMON_OUTBOX_H

/*
 * What a session still has to write: ranges of batches in delivery order, and
 * control frames, which go ahead of data frames not yet begun. A range is a
 * pointer into a counted batch, so a message is in memory once however many
 * sessions wait to send it. What was read from the journal for one session comes
 * as a batch too; its ends may lie in the middle of a frame:
 *
 *     live batch    [ BEGIN | MESSAGE | MESSAGE ]      whole frames
 *     chunks        [ MESSAGE | MESS ]  [ AGE ]  [ AGE | COMMIT | … ]
 *                               owed ──►          rest ──►
 *
 * `rest` of an item are the bytes at its start that go on with a frame begun in an
 * earlier one, `owed` the bytes that the last frame of an item still lacks.
 *
 * The outbox knows where the subscriber stands by what was written (its place), not
 * by what was queued: what is still queued can thus be dropped at any byte, and is
 * sent later from the journal, which has it too.
 *
 * Limited by count and by bytes; session_read.c says what happens to a full one. A
 * batch is charged to the outbox in full as long as one byte of it stands here,
 * since that is what it keeps alive; the batch at the head is not counted
 * against the limit, so that any message, however large, can be sent to a
 * reader that reads.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "account.h"
#include "base/buf.h"
#include "base/macros.h"
#include "batch.h"

/** An outbox is full above this many bytes of batches behind the one that is being sent: some 50 ms of what a server
 *  sends at full speed, in which a reader may wait for a processor. Who is longer behind reads from the journal… */
#define OUTBOX_BYTES_MAX (4u << 20)
/** … or above so many ranges. */
#define OUTBOX_ITEMS_MAX 4096u
/** A begun frame of which no more than this is missing is kept when the rest is dropped, as a copy. */
#define OUTBOX_KEEP 4096u

/** A frame of its own, which stands in no batch as it is sent here: BEGIN, COMMIT. */
#define OUTBOX_FRAME_SIZE (FRAME_HEADER_SIZE + FRAME_COMMIT_BODY)

/** Where a subscriber stands. */
struct outbox_place {
    struct position told; /* the last position it was told; of a BEGIN, index 0 of the transaction */
    bool inside;          /* `told` lies in a transaction of which it was told the BEGIN, not the end */
    bool resume;          /* `told` lies inside a transaction whose BEGIN it was told on an earlier connection */
};

struct outbox_item {
    struct batch *batch; /* one reference */
    struct account_hold *hold; /* of it, shared by the neighbours of the same batch; NULL: not counted */
    uint8_t frame;       /* size of the frame below; 0: a range of the batch */
    union {
        struct {
            size_t offset, size;
            size_t last; /* where in the range its last frame begins; if it begins in an earlier item: size */
            size_t rest;
            uint64_t owed;
        };
        uint8_t bytes[OUTBOX_FRAME_SIZE];
    };
};

struct outbox {
    struct outbox_item *items; /* ring */
    size_t head, n, cap;
    size_t done;     /* bytes of the head item that are written */
    size_t boundary; /* start of a frame in the head item, at or before the one in which `done` lies */
    size_t charge;   /* of all batches here */
    struct account *account; /* to which they are charged too, borrowed; NULL: to none */

    uint64_t waiting;/* bytes of data not yet written */

    struct outbox_place place; /* behind the last frame that was written whole in an item before the head */
    uint64_t begun;  /* bytes of one more frame that were written in items before the head … */
    uint64_t owed;   /* … and how many of it were not */
    uint8_t type;    /* … its type … */
    struct position position; /* … and position */

    struct buf control;   /* frames not yet written */
    size_t control_done;
    uint64_t written;     /* bytes ever */
    uint64_t written_data;/* of these in data frames */
};

void outbox_deinit(struct outbox *o);

/** Adds a range of whole frames, of which the last begins at `last`; joined with the last item when it follows it.
 *  0 or -ENOMEM. */
int outbox_add(struct outbox *o, struct batch *batch, size_t offset, size_t size, size_t last) MUST_CHECK;
/** Adds all of a batch that goes on where the stream stands: `rest` and `owed` as above, `last` as in an item. 0 or -ENOMEM. */
int outbox_add_chunk(struct outbox *o, struct batch *batch, size_t rest, size_t last, uint64_t owed) MUST_CHECK;
/** Adds a frame that stands in no batch so, in front of what comes from `batch`. 0 or -ENOMEM. */
int outbox_add_frame(struct outbox *o, struct batch *batch, const uint8_t *frame, size_t size) MUST_CHECK;

/** Bytes that are still to be added of the last frame here, or of the one that was begun last. */
uint64_t outbox_owed(const struct outbox *o);

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

/** Drops every data frame that has not been begun. Returns how many of them were MESSAGE frames. */
size_t outbox_drop(struct outbox *o);

struct outbox_rest {
    struct outbox_place place; /* where the stream goes on: in front of a frame that is owed, else behind everything left */
    uint64_t skip;             /* bytes of that frame that were written or are left; 0: none is owed */
    struct position skip_of;   /* its position */
    size_t messages;           /* MESSAGE frames that have to come again */
};

/**
 * Drops what was not begun, and of a begun MESSAGE the rest, if that is more than OUTBOX_KEEP and can be read again: its
 * position is at or before `readable`. Its fixed part stays one piece: the received time in it may be another one when a
 * journal that failed gets it a second time. What is left is a copy, so no batch of others is kept; only a
 * begun frame that cannot be read again stays as it is, and so does everything when there is no memory for the copy.
 */
void outbox_let_go(struct outbox *o, struct batch_pool *pool, struct position readable, struct outbox_rest *ret);

/** Bytes of the batches behind the one that is being sent. */
size_t outbox_behind(const struct outbox *o);

/** Whether a batch of this pool stands here, at its head or its end. */
bool outbox_holds(const struct outbox *o, const struct batch_pool *pool);

/** Nothing waits, and no frame is begun. */
bool outbox_is_empty(const struct outbox *o);
bool outbox_is_full(const struct outbox *o);

/** Most bytes written in one call, so that a peer that reads as fast as we write does not keep the loop. */
#define OUTBOX_TURN_MAX (4u << 20)

/** What outbox_write has left. */
enum outbox_left {
    OUTBOX_NOTHING = 0,
    OUTBOX_BLOCKED, /* wait until the socket is writable */
    OUTBOX_OWED,    /* nothing that could be written: the rest of the begun frame is still to come, and goes first */
};

/** Writes what the socket takes, up to OUTBOX_TURN_MAX. An enum outbox_left; a negative errno: it is broken. */
int outbox_write(struct outbox *o, int fd) MUST_CHECK;

#endif
